"""Partitions are taken over before their first record is sent."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import attrs

from framework.engine.topic_checks import ensure_data_topic
from framework.iggy.offset_log import codec
from framework.iggy.offset_log.log import OffsetLog
from framework.iggy.offset_log.log_offset_store import LogOffsetStore
from framework.iggy.offset_log.lost_log import TopicMarks
from framework.iggy.offset_log.partition_replay import PartitionReader
from framework.iggy.offset_log.record_size import divided
from framework.model.objects import TopicPartition
from framework.offsets.manager import OffsetManager
from framework.pipeline.task_statistics import TaskStatistics

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.iggy.offset_log.state import LogState
    from framework.iggy.values import TopicInfo


@attrs.define(eq=False, repr=False, slots=False)
class PartitionOpener:
    """Take partitions over before their first record is sent. Not thread-safe.

    Args:
        log: the offsets log, over the connection that sends.
        config: configuration of the source.
        state: state of the log.
        offsets: manager of that state's positions.
        store: the manager's store.
        epoch: the epoch.
        writer: token of this connection's claim.
        leads: whether the state knows all topics; a worker's leader checks new topics.

    Attributes:
        replayed: messages that were read.
        statistics: how many of them are records that no position counted.
    """

    _log: OffsetLog
    _config: SourceCommonConfig
    _state: LogState
    _offsets: OffsetManager
    _store: LogOffsetStore
    _epoch: int = attrs.field(kw_only=True)
    _writer: str = attrs.field(kw_only=True)
    _leads: bool = attrs.field(default=False, kw_only=True)
    _topics: dict[str, TopicInfo] = attrs.field(factory=dict, init=False)
    replayed: int = attrs.field(default=0, init=False)
    statistics: TaskStatistics = attrs.field(factory=TaskStatistics, init=False)

    def __attrs_post_init__(self) -> None:
        where = self._log.connection, self._config.iggy.stream, self._state
        self._reader, self._marks = PartitionReader(*where), TopicMarks(*where)

    def ensure_topic(self, topic: str) -> TopicInfo:
        """Return the data topic; create or check it on first use.

        Raises:
            IggyTopicError: it cannot be used as configured.
            PositionError: the log with its positions was lost.
        """
        info = self._topics.get(topic)
        if info is None:
            info = ensure_data_topic(self._log.connection, self._config, topic)
            if self._leads:
                self._marks.check_topic(info)
            if self._marks.is_marked(topic):
                self._store.note_marked(topic)
            self._topics[topic] = info
        return info

    def open(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Take over the partitions that are not open yet: read what they hold and append an `open` record.

        Raises:
            PositionError: messages that positions count as saved are gone.
        """
        found = [
            self._reader.read(topic_partition, self.ensure_topic(topic_partition.topic))
            for topic_partition in sorted(topic_partitions)
            if topic_partition not in self._offsets.partitions
        ]
        if not found:
            return
        openings = [opened.opening for opened in found]
        for payload in divided(openings, partial(codec.encode_open, self._log.source, self._epoch, self._writer)):
            self._log.append(payload)  # a partition's record does not depend on another's
        with self._offsets.table.lock:
            self._state.open(openings, self._writer)
            for opened in found:
                self.replayed += opened.messages
                self.statistics.found_records += opened.found
                self._offsets.partitions.open(
                    opened.opening.topic_partition, opened.state, anchor=opened.anchor, saved=opened.saved
                )

    def check(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Check saved messages in partitions that are not open here: workers open them, or they need no writer.

        Raises:
            PositionError: messages that positions count as saved are gone.
        """
        for topic_partition in sorted(topic_partitions):
            if topic_partition not in self._offsets.partitions:
                self._reader.check(topic_partition, self.ensure_topic(topic_partition.topic))

    def open_one(self, topic_partition: TopicPartition) -> None:
        """Take over a single partition, as `open` does."""
        self.open([topic_partition])
