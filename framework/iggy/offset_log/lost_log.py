"""Notice a lost offsets log: a source marks every topic that it writes, and a log that does not know a marked topic is lost."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import TYPE_CHECKING

from framework.errors import IggyAuthError, IggyProtocolError
from framework.iggy.offset_log.partition_replay import PartitionGoneError
from framework.iggy.offset_log.state import LogState
from framework.model.objects import TopicPartition

if TYPE_CHECKING:
    from framework.iggy.connection import IggyConnection
    from framework.iggy.values import TopicInfo

MAX_MARK_CHARACTERS = 60


def mark_of(source: str) -> str:
    """Return the consumer group, without members, by which a source marks every topic that it writes.

    A stored consumer offset could mark each partition, but would hold back retention of everything after it.
    """
    mark = f"source {source}"
    if len(mark) <= MAX_MARK_CHARACTERS:
        return mark
    digest = hashlib.blake2b(source.encode(), digest_size=8).hexdigest()
    return f"{mark[: MAX_MARK_CHARACTERS - len(digest) - 1]} {digest}"


class TopicMarks:
    """The marks of a source in its stream. Not thread-safe.

    Args:
        connection: an open connection.
        stream: the stream's name.
        state: state of the source's log.
    """

    def __init__(self, connection: IggyConnection, stream: str, state: LogState) -> None:
        self._connection = connection
        self._stream = stream
        self._state = state
        self._mark = mark_of(state.source)
        self._marked: dict[str, bool] = {}

    def is_marked(self, topic: str) -> bool:
        """Return whether a topic has the mark of this source."""
        if topic not in self._marked:
            try:
                self._marked[topic] = self._connection.has_group(self._stream, topic, self._mark)
            except (IggyAuthError, IggyProtocolError):  # this user has no permission
                self._marked[topic] = False
        return self._marked[topic]

    def check_topic(self, info: TopicInfo) -> None:
        """Check that a topic without partitions in the log was not written by this source: if it was, the log was lost.

        Raises:
            PartitionGoneError: the log was lost.
        """
        topic = info.name
        if self._state.has_abandoned_partitions or any(
            topic_partition.topic == topic for topic_partition in self._state.partitions
        ):
            return
        if info.partitions and self.is_marked(topic):
            raise self._log_lost(TopicPartition(topic, info.partitions[0].id))

    def check_log(self, others: Collection[str]) -> None:
        """Check that a source whose log knows nothing has written no topic of its stream: if it has, the log was lost.

        Topic names can come from object keys, so no configuration lists them.

        Args:
            others: topics that hold no records of a source.

        Raises:
            PartitionGoneError: the log was lost.
        """
        if not self._state.knows_nothing:
            return
        try:
            topics = self._connection.topic_names(self._stream)
        except (IggyAuthError, IggyProtocolError):  # this user has no permission
            return
        for topic in topics:
            if topic not in others and self.is_marked(topic):
                raise self._log_lost(TopicPartition(topic, 0))

    def _log_lost(self, topic_partition: TopicPartition) -> PartitionGoneError:
        return PartitionGoneError(
            f'topic "{topic_partition.topic}" of stream "{self._stream}" was written by source "{self._state.source}", and its '
            f"offsets topic knows nothing of that: it was purged, deleted or renamed. Bring it back, or name "
            f"the right one with [offsets] topic. Or read everything again: `offsets reset --all`; to read only what is new, set "
            f"[discovery] modified_after before",
            topic_partition,
        )
