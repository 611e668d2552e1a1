"""Creates missing topics, and checks existing ones: partitions must agree, weak guarantees give warnings."""

from __future__ import annotations

import time

from typing_extensions import Self

from framework.errors import IggyTopicError, IggyUnavailableError, PositionError
from framework.iggy.connection import IggyConnection
from framework.iggy.values import PartitionInfo, TopicInfo, place_of
from framework.model.text import counted

DAMAGE_PAUSES_SECONDS = (0.2, 0.5)
"""Pauses before re-checking that a partition returns its last messages: another writer may have only just sent them."""


class PartitionDamagedError(PositionError):
    """The server confirms messages of a partition but does not return them."""

    @classmethod
    def found(cls, place: str, end: int, *, missing: int) -> Self:
        """Return the error for a partition that ends at `end` according to the server, and does not return `missing`."""
        return cls(
            f"{place}: Iggy reports {end} as its last message but does not return message {missing}. See the server's log: if it "
            f"could not read its files (too many open files, a failing disk), mend that and start again. If not, the partition is "
            f"damaged; a killed server can leave it so. Messages sent to it could not be read. Repair or restore it "
            f"on the server, or purge the topic and start again: the start then names the ways out"
        )


def check_answering(connection: IggyConnection, stream: str, topic: str, partition: PartitionInfo) -> None:
    """Check, after a poll that returned nothing, that the server could read the partition.

    A server of which a part has failed or is overloaded answers a poll as if the partition were empty, some at once and
    some after ten seconds.

    Args:
        connection: an open connection.
        stream: name of the stream.
        topic: name of the topic.
        partition: the server's details of the partition; they come from another part of the server.

    Raises:
        IggyUnavailableError: it could not.
    """
    if partition.messages_count and connection.polled_end(stream, topic, partition.id) < partition.current_offset:
        raise IggyUnavailableError(
            f"{place_of(stream, topic, partition.id)}: Iggy at {connection.address.server} reports "
            f"{partition.current_offset} as its last message, and answers as if there were none: a part of the server has failed "
            f"or is overloaded. See its log; if this stays, restart the server"
        )


def check_readable(
    connection: IggyConnection, stream: str, topic: str, partition: PartitionInfo, *, offset: int | None = None
) -> None:
    """Check with one poll that a partition returns a message that the server says it holds.

    Args:
        connection: an open connection.
        stream: name of the stream.
        topic: name of the topic.
        partition: the server's details of the partition.
        offset: offset of the message; by default the last one that the server reports.

    Raises:
        PartitionDamagedError: it does not.
        IggyUnavailableError: the server cannot look.
    """
    if not partition.messages_count:
        return
    end = partition.current_offset
    wanted = end if offset is None else offset
    for pause_seconds in (*DAMAGE_PAUSES_SECONDS, None):
        found = connection.poll(stream, topic, partition.id, offset=wanted, count=1)
        if found and found[0].offset == wanted:
            return
        if not found:
            check_answering(connection, stream, topic, partition)
        if pause_seconds is None:
            place = place_of(stream, topic, partition.id)
            raise PartitionDamagedError.found(place, end, missing=wanted)
        time.sleep(pause_seconds)


def check_delivered(connection: IggyConnection, stream: str, topic: str, partition: int, offset: int) -> None:
    """Check that a partition returns a confirmed message, unless the topic was purged, deleted or expired since.

    A killed server can restart with a torn segment or index. It then confirms new messages that no consumer ever receives,
    or only until they are on disk.

    Raises:
        PartitionDamagedError: it does not.
    """
    found = connection.poll(stream, topic, partition, offset=offset, count=1)
    if found and found[0].offset == offset:
        return
    if found and all(first.offset > offset for first in connection.poll(stream, topic, partition, offset=0, count=1)):
        return  # expired
    info = connection.get_topic(stream, topic)
    for details in info.partitions if info is not None else ():
        if details.id == partition and details.current_offset >= offset:
            check_readable(connection, stream, topic, details, offset=offset)


def ensure_topic(
    connection: IggyConnection,
    stream: str,
    topic: str,
    partitions: int,
    *,
    create: bool = True,
    segment_bytes: int | None = None,
    advice: str | None = None,
) -> tuple[TopicInfo, tuple[str, ...]]:
    """Return the topic, created if missing, and one warning per guarantee that an existing topic lacks.

    Idempotent, and safe for several processes at once.

    Args:
        connection: an open connection.
        stream: name of the stream; created if missing.
        topic: name of the topic.
        partitions: its number of partitions; an offsets topic has 1.
        create: whether a missing topic is created.
        segment_bytes: file size of a new topic; None means the server's default.
        advice: advice for another number of partitions; by default, to change the configured number.

    Raises:
        IggyTopicError: it is missing and `create` is off, or it has another number of partitions.
    """
    info = connection.get_topic(stream, topic)
    if info is None:
        if not create:
            raise IggyTopicError(
                f'there is no topic "{topic}" in stream "{stream}" on Iggy at {connection.address.server}: make it, '
                "or set [iggy] create_topics = true"
            )
        connection.ensure_stream(stream)
        connection.create_topic(stream, topic, partitions, segment_bytes=segment_bytes)
        info = connection.get_topic(stream, topic)
        if info is None:
            raise IggyTopicError(
                f'topic "{topic}" of stream "{stream}" was made and is gone again: is someone deleting it?'
            )
    if len(info.partitions) != partitions:
        has = f'topic "{topic}" of stream "{stream}" has {counted(len(info.partitions), "partition")}'
        if advice is not None:
            raise IggyTopicError(f"{has}: {advice}")
        raise IggyTopicError(
            f"{has}, the configuration says {partitions}: set [iggy] partitions = {len(info.partitions)}, or name another topic"
        )
    return info, topic_warnings(info)


def topic_warnings(info: TopicInfo) -> tuple[str, ...]:
    """Return one sentence per guarantee that the topic lacks; empty for a topic that a source created."""
    name = f'topic "{info.name}" of stream "{info.stream}"'
    warnings: list[str] = []
    if not info.persisted:
        warnings.append(
            f"{name} is not persisted: the server confirms records before they are on disk, and a crash or a power "
            "failure can lose them; make the topic with durability persisted"
        )
    required = info.messages_required_to_save
    if required is not None and required != 1:
        warnings.append(
            f"{name} saves only every {required} messages: a killed server loses up to so many confirmed records of "
            "each partition; make the topic with messages_required_to_save=1"
        )
    if info.expiry_microseconds is not None:
        warnings.append(
            f"{name} drops records {info.expiry_microseconds / 1e6:g} seconds after they are stored (message_expiry)"
        )
    if info.max_bytes is not None:
        warnings.append(f"{name} drops its oldest records beyond {info.max_bytes:,} bytes (max_topic_size)")
    return tuple(warnings)
