"""An Iggy server in memory and connections to it, for tests of positions, recovery and crashes without a process.

    server = MemoryIggy()
    connection = server.connect()                # an `IggyConnection`; the real `IggyProducer` works with it
    server.break_connections()                   # as when the server is killed
    server.lose_tail("lake", "orders", 0, 3)     # confirmed messages that a killed server lost

The same tests check it and the embedded server (tests/integration/test_memory_iggy.py).
"""

from __future__ import annotations

import itertools
import secrets
import struct
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import TypeVar

import attrs
from typing_extensions import Self, override

from framework.config.iggy_address import IggyAddress
from framework.errors import (
    IggyProtocolError,
    IggyTopicError,
    IggyUnavailableError,
    TaskClosedError,
    UnknownOutcomeError,
)
from framework.iggy import wire
from framework.iggy.connection import IggyConnection, Offset
from framework.iggy.rights import Right
from framework.iggy.values import (
    ConnectedClient,
    ObjectName,
    PartitionInfo,
    StoredMessage,
    TopicInfo,
)
from framework.model.header_encoding import HeaderValue

T = TypeVar("T")

_OPTIONS: Mapping[str, HeaderValue] = {"durability": "persisted", "messages_required_to_save": 1}
_UNLIMITED = 2**64 - 1
_FIRST_TIME_US = 1_700_000_000_000_000
_TICK_US = 2_000_000
"""Time between messages by the server's clock: more than a server's rounding of its start time."""


def _limit(options: Mapping[str, HeaderValue], name: str) -> int | None:
    value = options.get(name, _UNLIMITED)
    return value if isinstance(value, int) and value != _UNLIMITED else None


@attrs.define
class _Partition:
    messages: list[StoredMessage] = attrs.field(factory=list)
    end: int = 0


@attrs.define
class _Topic:
    number: int
    created_at: int
    partitions: list[_Partition]
    options: Mapping[str, HeaderValue] = _OPTIONS
    groups: set[str] = attrs.field(factory=set)


class MemoryIggy:
    """The server: streams, topics, messages, clients. Threads may share it.

    Attributes:
        segment_bytes: minimum payload bytes of a sealed segment; None: a single segment.
        on_event: called before each event: `send` before messages are stored, `ack` before their confirmation;
            `append` and `appended` likewise for single messages (the offsets log). The connection's call raises
            its error, so a crash is possible at each event.
        unreadable: topic and partition where a part of the server has failed: polls return nothing and tell no end.
    """

    def __init__(self, *, segment_bytes: int | None = None) -> None:
        self.segment_bytes = segment_bytes
        self.on_event: Callable[[str], None] | None = None
        self.unreadable: set[tuple[str, int]] = set()
        self._streams: dict[str, dict[str, _Topic]] = {}
        self._clients: dict[int, MemoryConnection] = {}
        self._numbers = itertools.count(1)
        self._ticks = itertools.count(_FIRST_TIME_US, _TICK_US)
        self._lock = threading.RLock()

    def connect(self) -> MemoryConnection:
        """Return a new connection, logged in."""
        with self._lock:
            connection = MemoryConnection(self, next(self._numbers))
            self._clients[connection.number] = connection
            return connection

    # ---- failures and operations

    def break_connections(self) -> None:
        """Break every connection; the server notices it."""
        with self._lock:
            for connection in list(self._clients.values()):
                connection.broken = True
            self._clients.clear()

    def lose_tail(self, stream: str, topic: str, partition: int, count: int) -> None:
        """Drop the last messages, as a killed server does with a topic that is not saved message by message.

        The topic then has that setting, and the server has restarted.
        """
        with self._lock:
            self.set_option(stream, topic, "messages_required_to_save", 1024)
            part = self._partition(stream, topic, partition)
            part.end -= min(count, len(part.messages))  # also where everything before them has expired
            del part.messages[len(part.messages) - count :]
            next(self._ticks)  # a restart takes time

    def restart(self) -> None:
        """Restart the server without loss."""
        with self._lock:
            self.break_connections()
            next(self._ticks)  # it takes time

    def purge_topic(self, stream: str, topic: str) -> None:
        """Delete every message of a topic; offsets begin at 0 again."""
        with self._lock:
            for part in self._streams[stream][topic].partitions:
                part.messages.clear()
                part.end = 0

    def drop_head(self, stream: str, topic: str, partition: int, count: int) -> None:
        """Drop the oldest messages, as retention does."""
        with self._lock:
            del self._partition(stream, topic, partition).messages[:count]

    def rewrite(self, stream: str, topic: str, partition: int, change: Callable[[bytes], bytes]) -> None:
        """Change the payload of every message, as a later version or a bad disk might."""
        with self._lock:
            part = self._partition(stream, topic, partition)
            part.messages = [attrs.evolve(message, payload=change(message.payload)) for message in part.messages]

    def delete_segments(self, stream: str, topic: str, partition: int, count: int) -> None:
        """Delete the oldest sealed segments."""
        with self._lock:
            part = self._partition(stream, topic, partition)
            sealed = self._segments(part)[:-1]
            del part.messages[: sum(sealed[:count])]

    def _segments(self, part: _Partition) -> list[int]:
        """Return the message counts of the segments; the last segment is being written."""
        counts, size = [0], 0
        for message in part.messages:
            if self.segment_bytes is not None and size >= self.segment_bytes:
                counts.append(0)
                size = 0
            counts[-1] += 1
            size += len(message.payload)
        return counts

    def delete_topic(self, stream: str, topic: str) -> None:
        """Delete a topic and its messages."""
        with self._lock:
            del self._streams[stream][topic]

    def messages(self, stream: str, topic: str, partition: int = 0) -> list[StoredMessage]:
        """Return the messages of a partition."""
        with self._lock:
            return list(self._partition(stream, topic, partition).messages)

    def add_partitions(self, stream: str, topic: str, count: int) -> None:
        """Give a topic further partitions, as a person does."""
        with self._lock:
            self._streams[stream][topic].partitions.extend(_Partition() for _ in range(count))

    # ---- for connections

    def set_option(self, stream: str, topic: str, name: str, value: HeaderValue) -> None:
        """Set an option of a topic."""
        with self._lock:
            found = self._streams[stream][topic]
            found.options = {**found.options, name: value}

    def make_topic(self, stream: str, topic: str, partitions: int) -> None:
        """Create a topic unless it exists."""
        with self._lock:
            topics = self._streams[stream]
            if topic not in topics:
                number = next(self._numbers)
                topics[topic] = _Topic(number, _FIRST_TIME_US + number, [_Partition() for _ in range(partitions)])

    def make_stream(self, stream: str) -> None:
        """Create a stream unless it exists."""
        with self._lock:
            self._streams.setdefault(stream, {})

    def topic_names(self, stream: str) -> list[str]:
        """Return the sorted topic names of a stream."""
        with self._lock:
            return sorted(self._streams.get(stream, {}))

    def topic_info(self, stream: str, topic: str) -> TopicInfo | None:
        """Return a topic; None when it is missing."""
        with self._lock:
            found = self._streams.get(stream, {}).get(topic)
            if found is None:
                return None
            partitions = tuple(
                PartitionInfo(
                    id=number,
                    current_offset=max(part.end - 1, 0),
                    messages_count=len(part.messages),
                    segments_count=len(self._segments(part)),
                )
                for number, part in enumerate(found.partitions)
            )
            return TopicInfo(
                stream=stream,
                name=topic,
                id=found.number,
                created_at=found.created_at,
                partitions=partitions,
                expiry_microseconds=_limit(found.options, "message_expiry"),
                max_bytes=_limit(found.options, "max_topic_size"),
                options=found.options
                if self.segment_bytes is None
                else {**found.options, "segment_size": self.segment_bytes},
            )

    def store(
        self,
        stream: str,
        topic: str,
        partition: int,
        new: list[tuple[int, bytes, Mapping[str, HeaderValue], int]],
    ) -> int:
        """Store messages, `(id, payload, headers, time of origin)` each, as one batch; return the first one's offset."""
        with self._lock:
            part = self._partition(stream, topic, partition)
            base, now = part.end, next(self._ticks)
            part.messages.extend(
                StoredMessage(base + number, message_id, payload, headers, now, origin_us)
                for number, (message_id, payload, headers, origin_us) in enumerate(new)
            )
            part.end = base + len(new)
            return base

    def read(self, stream: str, topic: str, partition: int, offset: Offset, count: int) -> list[StoredMessage]:
        """Return the messages of a poll."""
        if isinstance(offset, int) and offset < 0:
            raise IggyProtocolError(f"no message has offset {offset}")
        with self._lock:
            messages = self._partition(stream, topic, partition).messages
            if (topic, partition) in self.unreadable:
                return []
            if offset == "last":
                return messages[max(0, len(messages) - count) :]
            return [message for message in messages if message.offset >= offset][:count]

    def polled_end(self, stream: str, topic: str, partition: int) -> int:
        """Return the end that a poll tells."""
        with self._lock:
            end = self._partition(stream, topic, partition).end
            return 0 if (topic, partition) in self.unreadable else max(0, end - 1)

    def groups(self, stream: str, topic: str) -> set[str]:
        """Return the consumer groups of a topic."""
        with self._lock:
            found = self._streams.get(stream, {}).get(topic)
            if found is None:
                raise IggyTopicError(f'there is no topic "{topic}" in stream "{stream}"')
            return found.groups

    def event(self, name: str) -> None:
        """Call `on_event`."""
        if self.on_event is not None:
            self.on_event(name)

    def clients(self) -> tuple[ConnectedClient, ...]:
        """Return the connected clients."""
        with self._lock:
            return tuple(connection.client for connection in self._clients.values())

    def leave(self, number: int) -> None:
        """Remove a client."""
        with self._lock:
            self._clients.pop(number, None)

    def _partition(self, stream: str, topic: str, partition: int) -> _Partition:
        found = self._streams.get(stream, {}).get(topic)
        if found is None or partition >= len(found.partitions):
            raise IggyTopicError(f'there is no partition {partition} of topic "{topic}" in stream "{stream}"')
        return found.partitions[partition]


class MemoryConnection(IggyConnection):
    """A connection to a `MemoryIggy`. Every call is answered at once.

    Attributes:
        number: the client id.
        broken: whether it broke; then every call raises, and a pending send has an unknown outcome.
        on_event: receives this connection's events in place of the server's `on_event`.
    """

    def __init__(self, server: MemoryIggy, number: int) -> None:
        super().__init__(IggyAddress(host="127.0.0.1", port=8090))
        self.number = number
        self.broken = False
        self.on_event: Callable[[str], None] | None = None
        self._server = server
        self._over = False

    @property
    def client(self) -> ConnectedClient:
        """The client as the server lists it."""
        return ConnectedClient(self.number, f"127.0.0.1:{40_000 + self.number}")

    @override
    def connect(self) -> Self:
        return self

    @override
    def close(self) -> None:
        self._over = True
        self._server.leave(self.number)

    @override
    def __enter__(self) -> Self:
        return self

    def _event(self, name: str) -> None:
        (self.on_event or self._server.event)(name)

    def _check(self) -> None:
        if self._over:
            raise TaskClosedError("this connection to Iggy was closed")
        if self.broken:
            raise IggyUnavailableError("not sent, the connection to Iggy is gone")

    @override
    def server_version(self) -> str:
        self._check()
        return "0.9.0"

    @override
    def open_sending(self) -> None:
        self._check()

    @override
    def own_client(self) -> ConnectedClient:
        self._check()
        return self.client

    @override
    def clients(self) -> tuple[ConnectedClient, ...]:
        self._check()
        return self._server.clients()

    @override
    def missing_rights(self, stream: str, topics: Iterable[Right]) -> list[str] | None:
        self._check()
        return []

    @override
    def ensure_stream(self, stream: str) -> None:
        self._check()
        wire.encode_name(stream)
        self._server.make_stream(stream)

    @override
    def get_topic(self, stream: str, topic: str) -> TopicInfo | None:
        self._check()
        return self._server.topic_info(stream, topic)

    @override
    def topic_names(self, stream: str) -> list[str]:
        self._check()
        return self._server.topic_names(stream)

    @override
    def create_topic(self, stream: str, topic: str, partitions: int, *, segment_bytes: int | None = None) -> None:
        self._check()
        wire.encode_name(topic)
        self._server.make_topic(stream, topic, partitions)

    @override
    def delete_segments(self, stream: str, topic: str, partition: int, count: int) -> None:
        self._check()
        self._server.delete_segments(stream, topic, partition, count)

    @override
    def wait(self, future: Future[T]) -> T:
        return future.result(0)

    @override
    def submit_append(
        self,
        stream: str,
        topic: str,
        partition: int,
        payload: bytes,
        *,
        on_stored: Callable[[int], None] | None = None,
        begins: Collection[ObjectName] = (),
    ) -> Future[int]:
        self._check()
        self._event("append")
        future: Future[int] = Future()
        try:
            offset = self._server.store(stream, topic, partition, [(secrets.randbits(128), payload, {}, 0)])
        except IggyTopicError as error:
            future.set_exception(self._refused(error))
            return future
        self._event("appended")
        if self.broken:
            future.set_exception(UnknownOutcomeError("the connection broke before the confirmation came"))
        else:
            if on_stored is not None:
                on_stored(offset)
            future.set_result(offset)
        return future

    def _refused(self, error: IggyTopicError) -> IggyUnavailableError:
        """Return the error of a send whose topic is missing; it ends the connection."""
        self.broken = True
        self._server.leave(self.number)
        return IggyUnavailableError(str(error))

    @override
    def join_group(self, stream: str, topic: str, group: str) -> None:
        self._check()

    @override
    def ensure_group(self, stream: str, topic: str, group: str) -> None:
        self._check()
        self._server.groups(stream, topic).add(group)

    @override
    def has_group(self, stream: str, topic: str, group: str) -> bool:
        self._check()
        return group in self._server.groups(stream, topic)

    @override
    def poll(self, stream: str, topic: str, partition: int, *, offset: Offset, count: int) -> list[StoredMessage]:
        self._check()
        return self._server.read(stream, topic, partition, offset, count)

    @override
    def polled_end(self, stream: str, topic: str, partition: int) -> int:
        self._check()
        return self._server.polled_end(stream, topic, partition)

    @override
    def submit_send(
        self, stream: str, topic: str, partition: int, body: bytes | bytearray, objects: Iterable[ObjectName] = ()
    ) -> Future[int]:
        self._check()
        future: Future[int] = Future()
        self._event("send")
        try:
            offset = self._server.store(stream, topic, partition, decode_send(body))
            self._event("ack")
        except IggyTopicError as error:
            future.set_exception(self._refused(error))
            return future
        if self.broken:
            future.set_exception(UnknownOutcomeError("the connection broke before the confirmation came"))
        else:
            future.set_result(offset)
        return future


def decode_send(body: bytes | bytearray) -> list[tuple[int, bytes, Mapping[str, HeaderValue], int]]:
    """Return the messages of a send request, `(id, payload, headers, time of origin)`; layout: `framework.iggy.wire`."""
    body = bytes(body)
    (target,) = struct.unpack_from("<I", body)
    (origin_us,) = struct.unpack_from("<Q", body, 4 + target + 24)
    place = 4 + target + wire.BATCH_HEADER_BYTES
    messages: list[tuple[int, bytes, Mapping[str, HeaderValue], int]] = []
    while place < len(body):
        low, high, _, delta_us, headers_length, payload_length = struct.unpack_from("<8xQQIIII8x", body, place)
        place += wire.FRAME_BYTES
        payload = body[place : place + payload_length]
        place += payload_length
        headers = _headers(body[place : place + headers_length])
        messages.append((high << 64 | low, payload, headers, origin_us + delta_us))
        place += headers_length
    return messages


def _headers(block: bytes) -> dict[str, HeaderValue]:
    fields: list[HeaderValue] = []
    place = 0
    while place < len(block):
        kind, length = struct.unpack_from("<BI", block, place)
        place += 5
        raw = block[place : place + length]
        fields.append(raw.decode() if kind == 2 else raw)  # noqa: PLR2004  2 is text
        place += length
    return {str(name): value for name, value in zip(fields[::2], fields[1::2], strict=True)}
