"""Whether the topics on the server are as a source needs them, and fit its log: checked before a start writes anything."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from framework.errors import IggyTopicError, PositionError
from framework.iggy.connection import IggyConnection
from framework.iggy.offset_log.loading import load
from framework.iggy.offset_log.log import OffsetLog
from framework.iggy.offset_log.lost_log import TopicMarks
from framework.iggy.offset_log.lost_partitions import abandon_partitions, data_topics, lost_partitions
from framework.iggy.offset_log.partition_replay import (
    WAYS_OUT,
    PartitionGoneError,
)
from framework.iggy.topics import ensure_topic
from framework.model.text import counted

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.iggy.offset_log.state import LogState
    from framework.iggy.values import TopicInfo

log = logging.getLogger(__name__)

OFFSETS_SEGMENT_BYTES = 1 << 20
"""The smallest segment size that a server accepts: only whole segments can be deleted."""


def ensure_offsets_topic(connection: IggyConnection, config: SourceCommonConfig) -> None:
    """Create the offsets topic, or check the existing topic.

    Raises:
        IggyTopicError: it cannot be used, or may lose or drop confirmed messages.
    """
    iggy, topic = config.iggy, config.offsets_topic
    info, warnings = ensure_topic(
        connection,
        iggy.stream,
        topic,
        1,
        create=iggy.create_topics,
        segment_bytes=OFFSETS_SEGMENT_BYTES,
        advice="positions need exactly 1; delete the others, or name another topic with [offsets] topic",
    )
    refusal = offsets_topic_refusal(info)
    if refusal is not None:
        raise IggyTopicError(refusal)
    for warning in warnings:
        log.warning("%s", warning)


def offsets_topic_refusal(info: TopicInfo) -> str | None:
    """Return why a topic cannot keep positions, and the ways out; None if it can."""
    name = f'topic "{info.name}" of stream "{info.stream}"'
    another = "name another one with [offsets] topic, and let the source make it"
    if info.messages_required_to_save not in {None, 1}:
        return (
            f"{name} saves only every {info.messages_required_to_save} messages, and positions must not be lost: {another}, or "
            f"make it with messages_required_to_save=1"
        )
    if info.expiry_microseconds is not None or info.max_bytes is not None:
        return (
            f"{name} drops old messages (message_expiry, max_topic_size), and positions must not be lost: update it so that its "
            f"messages never expire and its size has no limit, or {another}"
        )
    return None


def ensure_data_topic(connection: IggyConnection, config: SourceCommonConfig, topic: str) -> TopicInfo:
    """Create a data topic, or check the existing topic.

    Raises:
        IggyTopicError: it cannot be used as configured.
    """
    if topic in {config.offsets_topic, config.errors.dead_letter_topic}:
        # last check: an earlier version's partition, or a dead letter that another program wrote, can name it
        raise IggyTopicError(f'topic "{topic}" keeps positions or dead letters: records never go there')
    iggy = config.iggy
    info, warnings = ensure_topic(connection, iggy.stream, topic, iggy.partitions, create=iggy.create_topics)
    for warning in warnings:
        log.warning("%s", warning)
    return info


def check_log(connection: IggyConnection, config: SourceCommonConfig, state: LogState) -> None:
    """Check that the log was not lost: a source whose log knows nothing has written no topic of its stream.

    Raises:
        PositionError: it has; the message names the ways out.
    """
    stream, topic = config.iggy.stream, config.offsets_topic
    others = [name for name in (topic, config.errors.dead_letter_topic) if name is not None]
    try:
        TopicMarks(connection, stream, state).check_log(others)
    except PartitionGoneError:
        # a mark is made after a begin: if the log knows one now, another instance began since it was read
        if connection.get_topic(stream, topic) is None or load(OffsetLog.of(connection, config)).knows_nothing:
            raise


def check_topics(connection: IggyConnection, config: SourceCommonConfig, state: LogState) -> bool:
    """Check that the data topics match the log, before a start writes anything; drop what is gone and not needed.

    Return whether anything was dropped. Then a snapshot must follow before a partition is opened: without it, an object
    that was dropped looks half read at the next start.

    Raises:
        PositionError: they do not: the log was lost, a missing partition has objects that are partly read, or a whole
            topic is gone. The message names the ways out.
    """
    check_log(connection, config, state)
    stream = config.iggy.stream
    topics = data_topics(connection, stream, state)
    lost = lost_partitions(state, topics, config.iggy.partitions)
    for topic_partition, half_read in sorted(lost.items()):
        if topics[topic_partition.topic] is None and topic_partition in state.partitions:
            raise PositionError(
                f'topic "{topic_partition.topic}" of stream "{stream}" was deleted or renamed since source '
                f'"{state.source}" last ran, so what its positions call done is not there. {WAYS_OUT}; or bring the topic back'
            )
        if half_read:
            raise PositionError(
                f'partition {topic_partition.partition} of topic "{topic_partition.topic}" in stream "{stream}" is gone, with '
                f"{counted(half_read, 'half-read object')}. To read from the first record, into other partitions: "
                f"`offsets accept-data-loss`. Or bring the partition back"
            )
        if topic_partition in state.partitions:
            log.warning(
                "%s: the partition is gone; everything in it was finished, so the source goes on without it",
                topic_partition,
            )
    abandon_partitions(state, lost)
    return bool(lost)
