"""The state of a log, built by applying its records in order: all that is known at a start.

A record of an epoch counts until an *opening* of a later epoch precedes it. An opening is written when no connection of
an earlier epoch is left, so no record of an earlier epoch follows it. A claim alone ends nothing. Progress counts when
its writer was the last to open the partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import attrs

from framework.errors import PositionError
from framework.iggy.offset_log import codec, framing, records
from framework.iggy.offset_log.framing import LogMessage
from framework.iggy.offset_log.records import LogFacts, PartitionOpening, Progress, ProgressItem, SnapshotFooter
from framework.model.message_ids import entry_hash64
from framework.model.objects import TopicPartition, length_only
from framework.model.positions import OffsetManagerEntry
from framework.offsets.offset_store import PositionDelta
from framework.offsets.position_map import PositionMap, begin_in, position_map
from framework.offsets.selection_scope import SelectionScope
from framework.offsets.skip_history import HOUR_SECONDS, SkippedCount

T = TypeVar("T")

KINDS = frozenset({"claim", "opening", "begin", "open", "progress", "snapshot"})


@attrs.define(kw_only=True)
class LogState(LogFacts):
    """The state at one offset of the log. Not thread-safe. It has the attributes of `LogFacts`, too.

    Attributes:
        source: name of the source.
        epoch: the last epoch that was opened; 0 for none.
        last_epoch: the highest epoch that was ever claimed.
        positions: every position.
        now_us: when the last record was stored.
        saved_us: when the last record about positions was stored.
        snapshot_at: offset of the snapshot that was loaded; 0 without one.
        snapshot_end: offset after its last part; 0 without one.
        snapshot_bytes: size of the log up to there.
    """

    source: str
    epoch: int = 0
    last_epoch: int = 0
    positions: PositionMap = attrs.field(factory=position_map, repr=length_only)
    now_us: int = 0
    saved_us: int = 0
    snapshot_at: int = 0
    snapshot_end: int = 0
    snapshot_bytes: int = 0
    _begun: dict[tuple[int, int], OffsetManagerEntry] = attrs.field(factory=dict, init=False, repr=False)

    @property
    def partitions(self) -> set[TopicPartition]:
        """Every partition that was ever opened."""
        return {*self.topics, *self.anchors}

    @property
    def knows_nothing(self) -> bool:
        """Whether the log says nothing of what was sent: it is new, its predecessor was lost, or a reset did not end."""
        return not (self.topics or self.anchors or len(self.positions) or self.has_abandoned_partitions)

    def identity(self, entry: OffsetManagerEntry) -> tuple[int, int]:
        """Return a position's identity in messages and progress: object hash and split."""
        return entry_hash64(self.source, entry), entry.split_number

    def find(self, object_hash: int, split_number: int) -> OffsetManagerEntry | None:
        """Return the position of that identity; None if it is final or of another generation."""
        begun = self._begun.get((object_hash, split_number))
        if begun is None:
            return None
        entry = self.positions.find_pending(begun.get_manager_key())
        return entry if entry is not None and entry.is_of(begun) else None

    def unindex_final(self, entries: Iterable[OffsetManagerEntry], items: Iterable[ProgressItem]) -> None:
        """Drop final positions from the index of `find`: there is no more progress of them.

        Args:
            entries: positions that this process changed.
            items: their progress.
        """
        for entry, item in zip(entries, items, strict=True):
            if entry.final:
                self._begun.pop((item.object_hash, item.split_number), None)

    # ---- records

    def apply(self, message: LogMessage) -> Sequence[tuple[OffsetManagerEntry, OffsetManagerEntry]]:
        """Apply one record of the source. Return the positions that its writer advanced, before and after.

        Raises:
            PositionError: it cannot be read.
        """
        self.now_us = max(self.now_us, message.timestamp_us)
        if message.kind not in KINDS:
            raise PositionError(
                f"offsets topic, message {message.offset}: a record of kind {message.kind!r}, which this version does not know; "
                f"run the version that wrote it"
            )
        if message.kind not in {"claim", "opening"}:
            self.saved_us = self.now_us
        with framing.shape_of(message):
            return self._apply(message)

    def _apply(self, message: LogMessage) -> Sequence[tuple[OffsetManagerEntry, OffsetManagerEntry]]:
        if message.kind == "claim":
            self.claims[message.offset] = codec.decode_claim(message)
            self.last_epoch = max(self.last_epoch, message.epoch)
        elif message.kind == "opening":
            if message.epoch > self.epoch:
                self.open_epoch(message.epoch, codec.decode_opening(message))
        elif message.epoch == self.epoch:
            if message.kind == "begin":
                entries, selected = codec.decode_begin(message)
                self.begin(entries, selected)
            elif message.kind == "open":
                self.open(codec.decode_open(message), message.writer)
            elif message.kind == "progress":
                return self.advance(codec.decode_progress(message), message.writer, message.timestamp_us)
        return ()

    def open_epoch(self, epoch: int, fenced: int) -> None:
        """Apply the opening of an epoch.

        Args:
            epoch: its number.
            fenced: offset before which every claim's connection is gone.
        """
        self.epoch = epoch
        self.last_epoch = max(self.last_epoch, epoch)
        self.owners.clear()
        self.claims = {offset: claim for offset, claim in self.claims.items() if offset >= fenced}

    def begin(self, entries: Iterable[OffsetManagerEntry], selected: SelectionScope | None = None) -> None:
        """Add new positions, in place of earlier generations of their objects."""
        if selected is not None:
            self._select(selected)
        begun = list(entries)
        for entry in begun:
            begin_in(self.positions, entry)
        self.index(begun)

    def index(self, entries: Iterable[OffsetManagerEntry]) -> None:
        """Index these positions for `find`."""
        for entry in entries:
            self._begun[self.identity(entry)] = entry

    def _select(self, selected: SelectionScope) -> None:
        if self.selected is not None:
            self.watermark = selected.left_of(self.selected, self.watermark)
        self.selected = selected

    def open(self, openings: Iterable[PartitionOpening], writer: str) -> None:
        """Apply the openings of a writer that took partitions over and counted the records of each position there."""
        by_partition = {opening.topic_partition: opening for opening in openings}
        for topic_partition, opening in by_partition.items():
            self.forget(topic_partition)
            self.owners[topic_partition] = writer
            self.topics[topic_partition] = opening.topic
            if opening.counted is not None:
                self.counted[topic_partition] = opening.counted
            if opening.anchor is not None:
                self.anchors[topic_partition] = opening.anchor
        for _, entry in self.positions.pending():
            found = by_partition.get(entry.topic_partition)
            if found is not None:
                count = found.counts.get(self.identity(entry), entry.records_saved)
                if count != entry.records_done:
                    self.positions[entry.get_manager_key()] = entry.recovered(count)

    def advance(
        self, progress: Progress, writer: str, at_us: int
    ) -> list[tuple[OffsetManagerEntry, OffsetManagerEntry]]:
        """Apply a writer's progress in partitions that it owns. Return the positions that changed, before and after."""
        changed: list[tuple[OffsetManagerEntry, OffsetManagerEntry]] = []
        for item in progress.items:
            before = self.find(item.object_hash, item.split_number)
            if before is None or self.owners.get(before.topic_partition) != writer:
                continue
            counts = dict(zip(records.COUNTED, item[2:], strict=True))
            entry = before.changed(**{**counts, "extra": dict(item.extra)})
            self.positions[entry.get_manager_key()] = entry
            changed.append((before, entry))
            if entry.final:
                del self._begun[item.object_hash, item.split_number]
        self.anchors.update(self.of_owner(progress.anchors, writer))
        self.apply_ends(progress, [entry.topic_partition for _, entry in changed], writer)
        for key in progress.removed:
            self.positions.remove_object(key)
        self.listings.update(progress.listings)
        if progress.selected is not None:
            self._select(progress.selected)
        if progress.skipped:
            self.count_skipped(at_us, progress.skipped)
        return changed

    def apply_ends(self, changes: Progress | PositionDelta, written: Iterable[TopicPartition], writer: str) -> None:
        """Apply up to which message a writer's counts are complete in its partitions, and which partitions have ended.

        Args:
            changes: what the writer saved.
            written: partitions of the positions in it: like one whose anchor moved, such a partition goes on.
            writer: token of the writer's claim.
        """
        for topic_partition in self.of_owner(dict.fromkeys((*changes.anchors, *written)), writer):
            self.closed.pop(topic_partition, None)
        self.counted.update(self.of_owner(changes.counted, writer))
        self.closed.update(self.of_owner(changes.closed, writer))

    def of_owner(self, facts: Mapping[TopicPartition, T], writer: str) -> dict[TopicPartition, T]:
        """Return the facts of the partitions that this writer still owns."""
        return {name: fact for name, fact in facts.items() if self.owners.get(name) == writer}

    # ---- snapshots

    def restore(self, footer: SnapshotFooter, epoch: int) -> None:
        """Restore everything in a snapshot apart from positions, which are already loaded."""
        self.epoch = self.last_epoch = epoch
        self.positions.floor = footer.floor
        for name, value in footer.facts().items():
            setattr(self, name, value)
        self.reindex()

    def reindex(self) -> None:
        """Rebuild the index of `find` from the pending positions."""
        self._begun = {self.identity(entry): entry for _, entry in self.positions.pending()}

    def footer(self) -> SnapshotFooter:
        """Return everything apart from positions, for a snapshot."""
        self.reindex()  # drops those of earlier generations
        since = self.now_us - HOUR_SECONDS * 1e6
        self.skipped = [(at_us, count) for at_us, count in self.skipped if at_us > since]
        return SnapshotFooter(floor=self.positions.floor, **self.facts())

    def count_skipped(self, at_us: int, count: int) -> None:
        """Add records that were skipped at this time; those of more than an hour before it no longer count."""
        self.skipped.append((at_us, count))
        while self.skipped[0][0] <= at_us - HOUR_SECONDS * 1e6:
            del self.skipped[0]

    def skipped_lately(self) -> list[SkippedCount]:
        """Return what was skipped within the hour before the last record."""
        ages = ((self.now_us - at) / 1e6 for at, _ in self.skipped)
        return [
            SkippedCount(age, count) for age, (_, count) in zip(ages, self.skipped, strict=True) if age < HOUR_SECONDS
        ]
