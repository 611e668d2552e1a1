"""Partitions that the log names and the server no longer has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from framework.iggy.offset_log.state import LogState
from framework.model.objects import TopicPartition
from framework.model.positions import OffsetManagerKey

if TYPE_CHECKING:
    from framework.iggy.connection import IggyConnection
    from framework.iggy.values import TopicInfo


def data_topics(connection: IggyConnection, stream: str, state: LogState) -> dict[str, TopicInfo | None]:
    """Return the current state of every data topic that the log names; None for a missing topic."""
    begun = {entry.topic_partition for _, entry in state.positions.pending()}
    topic_partitions = state.partitions | begun
    return {
        name: connection.get_topic(stream, name)
        for name in sorted({topic_partition.topic for topic_partition in topic_partitions})
    }


def lost_partitions(
    state: LogState, topics: Mapping[str, TopicInfo | None], partitions: int
) -> dict[TopicPartition, int]:
    """Return missing partitions that the log names -> number of objects there that are partly read.

    A position can name a partition that was never opened: its source ended between the two records. Nothing was sent
    there, so an object that begins there is partly read only when another of its splits is, or may be: one in an opened
    partition, where a killed worker may have sent more than the log tells.

    Args:
        state: state of the log.
        topics: every data topic that it names, as it is now.
        partitions: partition count of a topic that is not yet created.
    """
    opened = state.partitions

    def is_lost(topic_partition: TopicPartition) -> bool:
        info = topics.get(topic_partition.topic)
        if info is None:
            return topic_partition in opened or topic_partition.partition >= partitions
        return all(partition.id != topic_partition.partition for partition in info.partitions)

    lost = dict.fromkeys(filter(is_lost, opened), 0)
    pending = state.positions.pending()
    begun = {key.whole() for key, entry in pending if entry.records_done or entry.topic_partition in opened}
    for key, entry in pending:
        if is_lost(entry.topic_partition):
            half_read = key.whole() in begun or _has_final_split(state, key.whole())
            lost[entry.topic_partition] = lost.get(entry.topic_partition, 0) + half_read
    return lost


def _has_final_split(state: LogState, whole: OffsetManagerKey) -> bool:
    splits = [state.positions.find(key) for key in (whole, *state.positions.splits_of(whole))]
    return any(split is not None and split.final for split in splits)


def abandon_partitions(state: LogState, topic_partitions: Iterable[TopicPartition]) -> None:
    """Remove partitions from the state; their pending objects are read again from the start, on other partitions."""
    gone = set(topic_partitions)
    for topic_partition in gone:
        state.forget(topic_partition)
    for key, entry in state.positions.pending():
        if entry.topic_partition in gone:
            _abandon_object(state, key.whole())


def _abandon_object(state: LogState, key: OffsetManagerKey) -> None:
    """Drop the positions of an object; one without records stays where the watermark would hide it."""
    known = state.positions.find(key)
    state.positions.remove_object(key)
    if known is not None and state.watermark.covers(known.bucket, known.key, known.modified_ms):
        state.positions[key] = known.abandoned()
