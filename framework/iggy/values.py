"""The server's answers as values of the framework: topics, messages, clients, confirmations.

None holds an object of the client.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from framework.model.header_encoding import HeaderValue
from framework.model.objects import length_only

NEVER = (1 << 64) - 1
"""The server's value for "no expiry" and "no size limit"."""

ObjectName = tuple[str, str]
"""The bucket and the key of an object."""

HeaderScalar = HeaderValue
"""A header's key or value; the headers that name a record's object are all `str`."""


@attrs.frozen(kw_only=True, slots=True)
class PartitionInfo:
    """A partition.

    Attributes:
        id: counted from 0.
        current_offset: offset of the last message; also 0 without messages, so check `messages_count`.
        messages_count: number of stored messages.
        segments_count: number of files; the last one is being written.
    """

    id: int
    current_offset: int
    messages_count: int
    segments_count: int


@attrs.frozen(kw_only=True, slots=True)
class TopicInfo:
    """The current state of a topic.

    Attributes:
        stream: name of its stream.
        name: its name.
        id: number in its stream; a purge keeps it, recreating it does not always change it.
        created_at: microseconds since 1970; distinguishes a topic from an earlier one with the same name.
        partitions: in the order of their ids.
        options: all options, explicit ones and the server's defaults.
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
        """Number of messages that the server may keep in memory before it saves them; None when not reported."""
        value = self.options.get("messages_required_to_save")
        return value if isinstance(value, int) else None

    @property
    def expiry_microseconds(self) -> int | None:
        """Retention time of messages; None means forever."""
        return self._limit("message_expiry")

    @property
    def max_bytes(self) -> int | None:
        """Size at which the server drops the oldest segments; None means no limit."""
        return self._limit("max_topic_size")

    def _limit(self, name: str) -> int | None:
        value = self.options.get(name)
        return value if isinstance(value, int) and 0 < value < NEVER else None


@attrs.frozen(slots=True)
class StoredMessage:
    """A message of a partition.

    Attributes:
        offset: its offset.
        message_id: 128 bits; see `framework.model.message_ids`.
        payload: its bytes.
        headers: as stored; `framework.iggy.header_decoding.join_provenance` joins long values.
        timestamp_us: when the server stored it, microseconds since 1970.
        origin_us: when it was sent, by the sender's clock; 0 when unknown.
    """

    offset: int
    message_id: int
    payload: bytes = attrs.field(repr=length_only)
    headers: Mapping[str, HeaderScalar] = attrs.field(factory=dict)
    timestamp_us: int = 0
    origin_us: int = 0


@attrs.frozen(slots=True)
class ConnectedClient:
    """A client in the server's list.

    Attributes:
        client_id: number of the connection; numbers restart with the server.
        address: `ip:port` of the client, as the server sees it.
        user_id: the user that is logged in.
    """

    client_id: int
    address: str
    user_id: int = 0

    @property
    def identity(self) -> tuple[int, str]:
        """Number and address: no other connection ever has both."""
        return self.client_id, self.address


@attrs.frozen(slots=True)
class Confirmation:
    """The server's confirmation that a batch is stored.

    Attributes:
        stream_id: number of the stream.
        topic_id: number of the topic.
        partition: number of the partition.
        base_offset: offset of the batch's first message.
    """

    stream_id: int
    topic_id: int
    partition: int
    base_offset: int


def place_of(stream: str, topic: str, partition: int) -> str:
    """Return how messages name a partition."""
    return f'topic "{topic}", partition {partition}, of stream "{stream}"'
