"""What the server tells, as our own values: topics, messages, clients, confirmations. None holds a client's object."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

NEVER = (1 << 64) - 1
"""What the server writes for "no expiry" and "no size limit"."""

HeaderScalar = str | bytes | bool | int | float
"""A header's key or value; a source's own headers are all `str`."""


def _length(value: bytes) -> str:
    return f"<{len(value)} bytes>"


@attrs.frozen(kw_only=True, slots=True)
class PartitionInfo:
    """One partition.

    Attributes:
        id: counted from 0.
        current_offset: offset of the last message; 0 too when there is none, so look at `messages_count`.
        messages_count: messages it holds.
        segments_count: files it is kept in; the last one is being written.
    """

    id: int
    current_offset: int
    messages_count: int
    segments_count: int


@attrs.frozen(kw_only=True, slots=True)
class TopicInfo:
    """A topic as it is.

    Attributes:
        stream: its stream's name.
        name: its name.
        id: number in its stream; a purge keeps it, recreating it does not always change it.
        created_at: microseconds since 1970; tells a topic from an earlier one of the same name.
        partitions: in the order of their ids.
        options: every option, those that its maker set and those that the server filled in.
    """

    stream: str
    name: str
    id: int
    created_at: int
    partitions: tuple[PartitionInfo, ...]
    options: Mapping[str, HeaderScalar] = attrs.field(repr=False)

    @property
    def persisted(self) -> bool:
        """Whether a confirmation waits for stable storage."""
        return self.options.get("enforce_fsync") is True or self.options.get("durability") == "persisted"

    @property
    def messages_required_to_save(self) -> int | None:
        """How many messages the server may keep in memory before it saves them; None when it does not tell."""
        value = self.options.get("messages_required_to_save")
        return value if isinstance(value, int) else None

    @property
    def expiry_microseconds(self) -> int | None:
        """How long messages are kept; None means forever."""
        return self._limit("message_expiry")

    @property
    def max_bytes(self) -> int | None:
        """The size at which the server drops the oldest segments; None for no limit."""
        return self._limit("max_topic_size")

    def _limit(self, name: str) -> int | None:
        value = self.options.get(name)
        return value if isinstance(value, int) and 0 < value < NEVER else None


@attrs.frozen(slots=True)
class StoredMessage:
    """One message of a partition.

    Attributes:
        offset: its place.
        message_id: 128 bits; see `framework.model.message_ids`.
        payload: its bytes.
        headers: as stored; `framework.iggy.headers.join_provenance` puts long values together.
        timestamp_us: when the server stored it, microseconds since 1970.
        origin_us: when it was sent, by its sender's clock; 0 when that is not known.
    """

    offset: int
    message_id: int
    payload: bytes = attrs.field(repr=_length)
    headers: Mapping[str, HeaderScalar] = attrs.field(factory=dict)
    timestamp_us: int = 0
    origin_us: int = 0


@attrs.frozen(slots=True)
class ConnectedClient:
    """One client as the server lists it.

    Attributes:
        client_id: number of the connection; numbers begin again when the server restarts.
        address: `ip:port` of the client, as the server sees it.
        user_id: who logged in.
    """

    client_id: int
    address: str
    user_id: int = 0


@attrs.frozen(slots=True)
class Confirmation:
    """The server's word that a batch is stored.

    Attributes:
        stream_id: the stream's number.
        topic_id: the topic's number.
        partition: where.
        base_offset: offset of the batch's first message.
    """

    stream_id: int
    topic_id: int
    partition: int
    base_offset: int
