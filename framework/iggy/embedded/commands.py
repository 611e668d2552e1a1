"""What each command does: from a request's body to a reply's body."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from xxhash import xxh32_intdigest

from framework.iggy import protocol
from framework.iggy.embedded import batch, fields, replies
from framework.iggy.embedded.fields import Cursor, RefusedError
from framework.iggy.protocol import BrokenFrameError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from framework.iggy.embedded.catalog import Catalog, Topic
    from framework.iggy.embedded.connection import Connection
    from framework.iggy.embedded.options import Option
    from framework.iggy.embedded.partition import Partition

Body = list["bytes | memoryview"]
"""A reply's body in pieces, sent one after the other."""


class Commands:
    """All commands over one catalog; shared by the connections' threads."""

    def __init__(self, catalog: Catalog, folder: Path, clients: Callable[[], list[Connection]]) -> None:
        """Keep what the commands work on.

        Args:
            catalog: The opened catalog.
            folder: The data folder, for statistics.
            clients: Returns the connections that have logged in.
        """
        self._catalog = catalog
        self._folder = folder
        self._clients = clients
        self._started_at = time.time()
        self._table: dict[int, Callable[[Connection, Cursor], Body]] = {
            protocol.PING: lambda _connection, _body: [],
            protocol.LEASE: lambda _connection, _body: [],
            protocol.STATS: self._stats,
            protocol.CLUSTER_METADATA: self._cluster_metadata,
            protocol.DESCRIBE_OPTIONS: lambda _connection, body: [replies.option_catalog_body(body.u8())],
            protocol.GET_ME: self._get_me,
            protocol.GET_CLIENT: self._get_client,
            protocol.GET_CLIENTS: self._get_clients,
            protocol.POLL: self._poll,
            protocol.SEND: self._send,
            protocol.GET_OFFSET: self._get_offset,
            protocol.STORE_OFFSET: self._store_offset,
            protocol.DELETE_OFFSET: self._delete_offset,
            protocol.GET_STREAM: self._get_stream,
            protocol.GET_STREAMS: self._get_streams,
            protocol.CREATE_STREAM: self._create_stream,
            protocol.UPDATE_STREAM: _change(catalog.update_stream, Cursor.identifier, Cursor.name, _options),
            protocol.DELETE_STREAM: _change(catalog.delete_stream, Cursor.identifier),
            protocol.PURGE_STREAM: _change(catalog.purge_stream, Cursor.identifier),
            protocol.GET_TOPIC: self._get_topic,
            protocol.GET_TOPICS: self._get_topics,
            protocol.CREATE_TOPIC: self._create_topic,
            protocol.UPDATE_TOPIC: _change(
                catalog.update_topic, Cursor.identifier, Cursor.identifier, Cursor.name, _options
            ),
            protocol.DELETE_TOPIC: _change(catalog.delete_topic, Cursor.identifier, Cursor.identifier),
            protocol.PURGE_TOPIC: _change(catalog.purge_topic, Cursor.identifier, Cursor.identifier),
            protocol.CREATE_PARTITIONS: _change(
                catalog.create_partitions, Cursor.identifier, Cursor.identifier, Cursor.u32
            ),
            protocol.DELETE_PARTITIONS: _change(
                catalog.delete_partitions, Cursor.identifier, Cursor.identifier, Cursor.u32
            ),
            protocol.DELETE_SEGMENTS: self._delete_segments,
            protocol.GET_GROUP: self._get_group,
            protocol.GET_GROUPS: self._get_groups,
            protocol.CREATE_GROUP: self._create_group,
            protocol.DELETE_GROUP: _change(
                catalog.delete_group, Cursor.identifier, Cursor.identifier, Cursor.identifier
            ),
            protocol.JOIN_GROUP: self._join_group,
            protocol.LEAVE_GROUP: self._join_group,
        }

    def run(self, code: int, connection: Connection, body: memoryview) -> Body:
        """Carry out command `code` and return the reply's body.

        Raises:
            RefusedError: The command failed with a status, or is none that this server knows.
            BrokenFrameError: The connection has to be dropped.
        """
        command = self._table.get(code)
        if command is None:
            raise RefusedError(fields.FEATURE_UNAVAILABLE)
        return command(connection, Cursor(body))

    # -- messages -----------------------------------------------------------------------------------------------

    def _send(self, _connection: Connection, body: Cursor) -> Body:
        metadata_end = 4 + body.u32()
        with self._catalog.lock:
            stream, topic = self._existing_topic(body.identifier(), body.identifier())
            partition = self._target(topic, body)
        count = body.u32()
        if body.position != metadata_end:
            raise RefusedError(fields.INVALID_FORMAT)
        data = body.rest()
        try:
            header, checksums = batch.verify(data)
        except batch.DamagedBatchError as exc:
            raise BrokenFrameError(str(exc)) from exc
        if header.count != count:
            raise BrokenFrameError(f"a batch of {header.count} messages announced as {count}")
        offset = partition.append(data, header, checksums)
        confirmation = b"".join(map(fields.U32.pack, (1, stream, topic.number, partition.number)))
        return [confirmation + fields.U64.pack(offset)]

    def _target(self, topic: Topic, body: Cursor) -> Partition:
        kind, value = body.u8(), body.take(body.u8())
        partitions = topic.partitions
        if kind == fields.PARTITIONING_ID and len(value) == fields.U32.size:
            number = int.from_bytes(value, "little")
        elif kind == fields.PARTITIONING_BALANCED and partitions:
            topic.turn = number = (topic.turn + 1) % len(partitions)
        elif kind == fields.PARTITIONING_KEY and partitions and value:
            number = xxh32_intdigest(value) % len(partitions)  # as clients and servers of Iggy do
        else:
            raise RefusedError(fields.INVALID_FORMAT)
        if number >= len(partitions):
            raise RefusedError(fields.RESOURCE_NOT_FOUND)
        return partitions[number]

    def _existing_topic(self, stream: int | str, topic: int | str) -> tuple[int, Topic]:
        # Writes to something missing answer one code for all levels, as Iggy does; reads say which level.
        try:
            return self._catalog.stream(stream).number, self._catalog.topic(stream, topic)
        except RefusedError as exc:
            raise RefusedError(fields.RESOURCE_NOT_FOUND) from exc

    def _poll(self, _connection: Connection, body: Cursor) -> Body:
        consumer = self._consumer(body)
        partition = self._catalog.partition(body.identifier(), body.identifier(), body.optional_partition() or 0)
        strategy, value, count, auto_commit = body.u8(), body.u64(), body.u32(), body.u8()
        offset = partition.resolve(strategy, value, count, consumer)
        parts, taken, behind = partition.read(offset, count)
        if auto_commit and taken:
            partition.store_offset(consumer, behind - 1)
        head = fields.U32.pack(partition.number) + fields.U64.pack(partition.current_offset)
        return [head + fields.U32.pack(taken), *parts]

    # -- consumer offsets ---------------------------------------------------------------------------------------

    def _consumer(self, body: Cursor) -> str:
        kind, identifier = body.u8(), body.identifier()
        if kind != fields.CONSUMER_SINGLE:
            raise RefusedError(fields.FEATURE_UNAVAILABLE)
        return f"{kind}:{identifier}"

    def _get_offset(self, _connection: Connection, body: Cursor) -> Body:
        consumer = self._consumer(body)
        stream, topic, number = body.identifier(), body.identifier(), body.optional_partition() or 0
        try:
            partition = self._catalog.partition(stream, topic, number)
        except RefusedError as exc:
            return _nothing_if_missing(exc)
        stored = partition.stored_offset(consumer)
        if stored is None:
            return []
        offsets = fields.U64.pack(partition.current_offset) + fields.U64.pack(stored)
        return [fields.U32.pack(partition.number) + offsets]

    def _store_offset(self, _connection: Connection, body: Cursor) -> Body:
        consumer = self._consumer(body)
        self._written_partition(body).store_offset(consumer, body.u64())
        return []

    def _delete_offset(self, _connection: Connection, body: Cursor) -> Body:
        consumer = self._consumer(body)
        self._written_partition(body).delete_offset(consumer)
        return []

    def _written_partition(self, body: Cursor) -> Partition:
        stream, topic, number = body.identifier(), body.identifier(), body.optional_partition() or 0
        try:
            return self._catalog.partition(stream, topic, number)
        except RefusedError as exc:
            raise RefusedError(fields.RESOURCE_NOT_FOUND) from exc

    # -- streams ------------------------------------------------------------------------------------------------

    def _get_stream(self, _connection: Connection, body: Cursor) -> Body:
        try:
            with self._catalog.lock:
                return [replies.stream_details_body(self._catalog.stream(body.identifier()))]
        except RefusedError as exc:
            return _nothing_if_missing(exc)

    def _get_streams(self, _connection: Connection, _body: Cursor) -> Body:
        with self._catalog.lock:
            return [replies.stream_body(stream) for stream in self._catalog.streams.values()]

    def _create_stream(self, _connection: Connection, body: Cursor) -> Body:
        stream = self._catalog.create_stream(body.name(), _options(body))
        return [replies.stream_body(stream)]

    # -- topics -------------------------------------------------------------------------------------------------

    def _get_topic(self, _connection: Connection, body: Cursor) -> Body:
        try:
            with self._catalog.lock:
                return [replies.topic_details_body(self._catalog.topic(body.identifier(), body.identifier()))]
        except RefusedError as exc:
            return _nothing_if_missing(exc)

    def _get_topics(self, _connection: Connection, body: Cursor) -> Body:
        stream = body.identifier()
        with self._catalog.lock:
            try:
                topics = list(self._catalog.stream(stream).topics.values())
            except RefusedError:
                topics = []  # As Iggy answers for a missing stream.
            return [fields.U32.pack(len(topics)), *map(replies.topic_body, topics)]

    def _create_topic(self, _connection: Connection, body: Cursor) -> Body:
        stream, partitions, name = body.identifier(), body.u32(), body.name()
        _, topic = self._catalog.create_topic(stream, name, partitions, _options(body))
        return [replies.topic_details_body(topic)]

    def _delete_segments(self, _connection: Connection, body: Cursor) -> Body:
        partition = self._catalog.partition(body.identifier(), body.identifier(), body.u32())
        partition.delete_segments(body.u32())
        return []

    # -- consumer groups ----------------------------------------------------------------------------------------
    # They exist, and have no members: a name in a topic is all that the framework needs of them.

    def _get_group(self, _connection: Connection, body: Cursor) -> Body:
        try:
            topic, number = self._catalog.group(body.identifier(), body.identifier(), body.identifier())
        except RefusedError as exc:
            return _nothing_if_missing(exc)
        return [replies.group_body(topic, number)]

    def _get_groups(self, _connection: Connection, body: Cursor) -> Body:
        with self._catalog.lock:
            try:
                topic = self._catalog.topic(body.identifier(), body.identifier())
            except RefusedError as exc:
                return _nothing_if_missing(exc)
            return [replies.group_body(topic, number) for number in topic.groups]

    def _create_group(self, _connection: Connection, body: Cursor) -> Body:
        topic, number = self._catalog.create_group(body.identifier(), body.identifier(), body.name())
        return [replies.group_body(topic, number)]

    def _join_group(self, _connection: Connection, body: Cursor) -> Body:
        self._catalog.group(body.identifier(), body.identifier(), body.identifier())
        raise RefusedError(fields.FEATURE_UNAVAILABLE)

    # -- the server ---------------------------------------------------------------------------------------------

    def _stats(self, _connection: Connection, _body: Cursor) -> Body:
        return [replies.stats_body(self._catalog, self._folder, len(self._clients()), self._started_at)]

    def _cluster_metadata(self, connection: Connection, _body: Cursor) -> Body:
        return [replies.cluster_body(*connection.local_address)]

    def _get_me(self, connection: Connection, _body: Cursor) -> Body:
        return [replies.client_body(connection.number, connection.address)]

    def _get_client(self, _connection: Connection, body: Cursor) -> Body:
        number = body.u32()
        return [replies.client_body(c.number, c.address) for c in self._clients() if c.number == number]

    def _get_clients(self, _connection: Connection, _body: Cursor) -> Body:
        return [replies.client_body(c.number, c.address) for c in self._clients()]


def _change(
    change: Callable[..., object], *arguments: Callable[[Cursor], object]
) -> Callable[[Connection, Cursor], Body]:
    """Return a command that reads its arguments one after the other, changes the catalog, and answers nothing."""

    def run(_connection: Connection, body: Cursor) -> Body:
        change(*(read(body) for read in arguments))
        return []

    return run


def _options(body: Cursor) -> list[Option]:
    return fields.decode_options(body.rest())


def _nothing_if_missing(refusal: RefusedError) -> Body:
    # Iggy answers a look-up of something missing with an empty body; the client makes None of it.
    if refusal.status in (fields.STREAM_NOT_FOUND, fields.TOPIC_NOT_FOUND, fields.GROUP_NOT_FOUND):
        return []
    raise refusal
