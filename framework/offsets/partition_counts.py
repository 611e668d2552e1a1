"""The partitions that a process writes, and the counts that a crash of the server can still revert.

A count is saved only when no crash of the server can revert the records it covers. A partition that saves each message
allows it immediately; in others it waits until `hold_back` messages follow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

import attrs

from framework.model.batches import Acknowledgement
from framework.model.objects import Anchor, TopicPartition
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.offsets.offset_store import PositionDelta
from framework.offsets.table import PositionTable, is_further


@attrs.frozen(slots=True)
class UnsavedCount:
    """An acknowledged count that is not saved.

    Attributes:
        anchor: the message that must be safe before the count is.
        key: key of the position.
        generation: generation of the position.
        records: the count.
    """

    anchor: Anchor
    key: OffsetManagerKey
    generation: int
    records: int


@attrs.define(kw_only=True)
class PartitionState:
    """The state of a partition that this process writes.

    Attributes:
        hold_back: number of last messages that a killed server may lose; 0 when it loses none.
        last: the last message that was acknowledged, or found in the partition.
        unsaved: unsaved counts, in the order of the partition.
    """

    hold_back: int = 0
    last: Anchor | None = None
    unsaved: deque[UnsavedCount] = attrs.field(factory=deque)

    def hold(self, count: UnsavedCount) -> None:
        """Add an unsaved count; a position that passes over many records without a message needs only the last."""
        last = self.unsaved[-1] if self.unsaved else None
        if last is not None and (last.anchor, last.key) == (count.anchor, count.key):
            self.unsaved.pop()
        self.unsaved.append(count)

    def take_safe(self) -> Iterator[UnsavedCount]:
        """Yield, and remove, the unsaved counts that no crash can revert.

        A killed server loses at most the last `hold_back - 1` messages of a partition; so a message with that many
        after it is permanent. Counts and anchor change together: a recovery replays from where they end.
        """
        while self.last and self.unsaved and self.unsaved[0].anchor.offset <= self.last.offset - self.hold_back:
            yield self.unsaved.popleft()


class PartitionCounts:
    """The open partitions of a process, with their counts and anchors. Thread-safe.

    Args:
        table: the positions that are counted.
        anchors: partition -> the message up to which its saved counts are complete; the ledger changes them.
    """

    def __init__(self, table: PositionTable, anchors: dict[TopicPartition, Anchor] | None = None) -> None:
        self._table = table
        self._anchors = anchors if anchors is not None else {}
        self._partitions: dict[TopicPartition, PartitionState] = {}
        self._held: set[TopicPartition] = set()  # hold counts back, and received messages since the last save
        self._moved: set[TopicPartition] = set()  # their anchors changed since the last save

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._partitions

    def open(
        self,
        topic_partition: TopicPartition,
        state: PartitionState,
        *,
        anchor: Anchor | None = None,
        saved: Mapping[OffsetManagerKey, int] | None = None,
    ) -> None:
        """Take over a partition that this process writes from now on.

        Args:
            topic_partition: the partition.
            state: its state as found.
            anchor: the message up to which `saved` is complete.
            saved: position -> records that were found and are safe; the next flush writes them.
        """
        table = self._table
        with table.lock:
            self._partitions[topic_partition] = state
            if anchor is not None and anchor != self._anchors.get(topic_partition):
                self._move(topic_partition, anchor)
            for key, records in (saved or {}).items():
                entry = table.positions.find(key)
                if entry is not None and entry.records_saved < records:
                    table.put(key, entry.changed(records_saved=records))

    def ends(self) -> dict[TopicPartition, Anchor]:
        """Return the last message of each open partition."""
        with self._table.lock:
            return {name: state.last for name, state in self._partitions.items() if state.last is not None}

    def hold_back(self, topic_partition: TopicPartition) -> int:
        """Return the number of last messages that a killed server may lose of a partition; 0 when it loses none."""
        with self._table.lock:
            partition = self._partitions.get(topic_partition)
            return partition.hold_back if partition is not None else 0

    def counted(self) -> dict[TopicPartition, Anchor]:
        """Return the last message that counts account for, of each open partition that can lose messages."""
        with self._table.lock:
            return {name: last for name, last in self.ends().items() if self._partitions[name].hold_back}

    def confirm(self, acknowledgement: Acknowledgement) -> None:
        """Advance the positions of confirmed batches; count and anchor change together."""
        last = {batch.entry.get_manager_key(): batch.entry for batch in acknowledgement.batches}
        topic_partition, anchor = acknowledgement.topic_partition, acknowledgement.anchor
        table = self._table
        with table.lock:
            partition = self._partitions.get(topic_partition)
            if partition is None:
                partition = self._partitions[topic_partition] = PartitionState()
            if anchor is not None:
                partition.last = anchor
                if partition.hold_back:
                    self._held.add(topic_partition)
                else:
                    self._move(topic_partition, anchor)
            for key, entry in last.items():
                known = table.positions.find(key)
                if known is not None and is_further(known, entry):
                    continue  # overwritten or reset meanwhile
                last_message = partition.last
                if last_message is None or not partition.hold_back or (anchor is None and _is_saved(known, entry)):
                    saved = entry.records_done  # no message of it can be lost: there is none, or all are saved
                else:
                    saved = known.records_saved if known is not None and known.generation == entry.generation else 0
                    partition.hold(UnsavedCount(last_message, key, entry.generation, entry.records_done))
                table.put(key, entry if saved == entry.records_saved else entry.changed(records_saved=saved))

    def _move(self, topic_partition: TopicPartition, anchor: Anchor) -> None:
        self._anchors[topic_partition] = anchor
        self._moved.add(topic_partition)

    def _save_count(self, topic_partition: TopicPartition) -> None:
        """Advance saved counts and the anchor as far as no crash can revert them."""
        table = self._table
        for item in self._partitions[topic_partition].take_safe():
            self._move(topic_partition, item.anchor)
            entry = table.positions.find(item.key)
            if entry is not None and entry.generation == item.generation and entry.records_saved < item.records:
                table.put(item.key, entry.changed(records_saved=item.records))

    # ---- what a flush saves

    def closing(self) -> PositionDelta:
        """Return a delta that says where each open partition ends, and that nothing will follow."""
        closed = {topic_partition: last.offset for topic_partition, last in self.ends().items()}
        return PositionDelta(closed=closed, counted=self.counted())

    @property
    def dirty(self) -> bool:
        """Whether a partition received messages, or its anchor changed, since the last save."""
        return bool(self._moved or self._held)

    def take(self, delta: PositionDelta) -> PositionDelta:
        """Move the new anchors into the delta, after saving all counts that are safe now."""
        held, written = self._held, self._held | self._moved
        for topic_partition in held:
            self._save_count(topic_partition)
        moved, self._moved, self._held = self._moved, set(), set()
        return attrs.evolve(
            delta,
            anchors={topic_partition: self._anchors[topic_partition] for topic_partition in moved},
            written=written,
            counted=self.counted() if held else delta.counted,
        )

    def restore(self, delta: PositionDelta) -> None:
        """Take back the anchors of an unsaved delta."""
        self._moved |= delta.anchors.keys()
        self._held |= delta.counted.keys() & set(delta.written)  # entries are saved with the message they count up to


def _is_saved(known: OffsetManagerEntry | None, entry: OffsetManagerEntry) -> bool:
    """Return whether all that was counted of a position before is saved."""
    return known is not None and known.is_of(entry) and known.records_saved >= known.records_done
