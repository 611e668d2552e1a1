"""The server's answers as values of the framework: topics, messages, clients, confirmations.

None holds an object of the client.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from framework.errors import IggyTopicError
from framework.model.header_encoding import HeaderValue
from framework.model.objects import length_only

ObjectName = tuple[str, str]
"""The bucket and the key of an object."""


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
        expiry_microseconds: retention time of messages; None means forever.
        max_bytes: size at which the server drops the oldest segments; None means no limit.
        options: all options, explicit ones and the server's defaults: numbers, or texts as someone sent them.
    """

    stream: str
    name: str
    id: int
    created_at: int
    partitions: tuple[PartitionInfo, ...]
    expiry_microseconds: int | None
    max_bytes: int | None
    options: Mapping[str, HeaderValue] = attrs.field(repr=False)

    @property
    def persisted(self) -> bool:
        """Whether a confirmation waits for stable storage."""
        fsync, durability = self.options.get("enforce_fsync"), self.options.get("durability")
        return fsync in (True, "true") or (isinstance(durability, str) and durability.lower() == "persisted")

    @property
    def messages_required_to_save(self) -> int | None:
        """Number of messages that the server may keep in memory before it saves them; None when not reported.

        Raises:
            IggyTopicError: it is reported, and is no number.
        """
        value = self.options.get("messages_required_to_save")
        if isinstance(value, str) and value.isascii() and value.isdecimal():
            return int(value)
        if value is None or type(value) is int:
            return value
        raise IggyTopicError(
            f'topic "{self.name}" of stream "{self.stream}" has messages_required_to_save = {value!r}, which is no number: what '
            f"a killed server keeps of it is unknown. Make it again with a number, or name another topic"
        )


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
    headers: Mapping[str, HeaderValue] = attrs.field(factory=dict)
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
        """Number and address: no other connection has both, as long as the server runs."""
        return self.client_id, self.address


def place_of(stream: str, topic: str, partition: int) -> str:
    """Return how messages name a partition."""
    return f'topic "{topic}", partition {partition}, of stream "{stream}"'
