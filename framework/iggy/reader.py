"""Reads the messages of a topic in bounded steps: for a replay, for the commands `read` and `dead-letter`, and for tests."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from framework.errors import IggyTopicError
from framework.iggy.connection import IggyConnection
from framework.iggy.topics import DAMAGE_PAUSES_SECONDS, PartitionDamagedError, check_answering
from framework.iggy.values import PartitionInfo, StoredMessage, place_of

TARGET_BYTES = 8_000_000
FIRST_MESSAGES = 8
MAX_MESSAGES = 256
"""Messages of a poll: a server limits an answer in messages, not in bytes, and each may have 64 MB. So the first poll asks
for few, each at most for four times as many as the last, and for 8 MB if none is larger than the largest of late. Large ones may
still come behind small ones. On a link with 50 ms to the server, this reads 4,000 small ones a second."""


def read_partition(
    connection: IggyConnection,
    stream: str,
    topic: str,
    partition: int,
    *,
    start: int = 0,
) -> Iterator[StoredMessage]:
    """Yield the messages of a partition from `start` on, in order, until there are no more.

    Lazy: one poll at a time. Its length follows the size of the largest message of late (about 8 MB).

    Args:
        connection: an open connection; may be used for other calls meanwhile.
        stream: name of the stream.
        topic: name of the topic.
        partition: counted from 0.
        start: an offset; when retention dropped it, the first message left.
    """
    place = start
    count, large = FIRST_MESSAGES, 0
    while messages := connection.poll(stream, topic, partition, offset=place, count=count):
        yield from messages
        place = messages[-1].offset + 1
        large = max(large * 3 // 4, *(len(message.payload) for message in messages), 1)
        count = max(1, min(4 * count, MAX_MESSAGES, TARGET_BYTES // large))


def offset_since(
    connection: IggyConnection, stream: str, topic: str, partition: PartitionInfo, timestamp_us: int
) -> int:
    """Return the offset of the first message that the server stored at a time or later; else that of the next message.

    A binary search of single messages.

    Args:
        connection: an open connection.
        stream: name of the stream.
        topic: name of the topic.
        partition: the server's details of the partition.
        timestamp_us: the time, microseconds since 1970.
    """
    low, high = 0, partition.current_offset + 1 if partition.messages_count else 0
    while low < high:
        middle = (low + high) // 2
        found = connection.poll(stream, topic, partition.id, offset=middle, count=1)  # the first that is left answers
        if found and found[0].timestamp_us < timestamp_us:
            low = found[0].offset + 1
        else:
            high = middle
    return low


def read_whole(
    connection: IggyConnection,
    stream: str,
    topic: str,
    partition: PartitionInfo,
    *,
    start: int = 0,
) -> Iterator[StoredMessage]:
    """Yield as `read_partition` does, and check at the end that nothing is missing.

    Args:
        connection: as there.
        stream: as there.
        topic: as there.
        partition: the server's details of the partition; what it names as the last message must be read.
        start: as there.

    Raises:
        PartitionDamagedError: the server has messages that it does not return.
        IggyUnavailableError: the server cannot read the partition.
    """
    end = start
    for pause_seconds in (*DAMAGE_PAUSES_SECONDS, None):
        for message in read_partition(connection, stream, topic, partition.id, start=end):
            yield message
            end = message.offset + 1
        if not partition.messages_count or partition.current_offset < end:
            return
        check_answering(connection, stream, topic, partition)
        if pause_seconds is None:
            place = place_of(stream, topic, partition.id)
            raise PartitionDamagedError.found(place, partition.current_offset, missing=end)
        time.sleep(pause_seconds)


def read_topic(
    connection: IggyConnection,
    stream: str,
    topic: str,
    partitions: Sequence[int],
    *,
    start: int = 0,
) -> Iterator[tuple[int, StoredMessage]]:
    """Yield partition number and message, one partition after another, each from `start` to its present end.

    Args:
        connection: an open connection.
        stream: the stream's name.
        topic: the topic's name.
        partitions: their numbers, counted from 0.
        start: as there.

    Raises:
        IggyTopicError: there is no such topic or partition.
        PartitionDamagedError, IggyUnavailableError: see `read_whole`.
    """
    info = connection.get_topic(stream, topic)
    details = {partition.id: partition for partition in info.partitions} if info is not None else {}
    for number in partitions:
        if number not in details:
            raise IggyTopicError(f'topic "{topic}" of stream "{stream}" has no partition {number}')
        for message in read_whole(connection, stream, topic, details[number], start=start):
            yield number, message
