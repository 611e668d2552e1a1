"""The positions of a source: `OffsetManager`, a cache in front of an `OffsetStore`.

A position is a value of `framework.model.positions`.

add_entry (starts) -> [stored] -> send -> acknowledged -> commit -> [flush] -> saved
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Sequence

import attrs

from framework.errors import NotAcknowledgedError
from framework.model.batches import Acknowledgement
from framework.model.objects import Anchor, TopicPartition
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.offsets.listing_hints import ListingHints
from framework.offsets.offset_store import MemoryOffsetStore, OffsetStore, PositionDelta
from framework.offsets.partition_counts import PartitionCounts
from framework.offsets.position_map import PositionMap
from framework.offsets.saved_facts import BoundSelection, HintTable
from framework.offsets.selection_scope import SelectionScope
from framework.offsets.skip_history import SkippedCount
from framework.offsets.table import PositionTable
from framework.offsets.watermark import Watermark
from framework.offsets.watermark_tracker import WatermarkTracker

LOAD_BATCH = 1000
"""Positions loaded per hold of the lock, while other threads wait for it."""


@attrs.frozen(kw_only=True)
class StartFacts:
    """What a start knows about a source beside its positions.

    Attributes:
        skipped_lately: skips and failures of earlier runs within the last hour, for the limits.
        known_topics: topics that hold records of this source, according to the log.
        topic_refusal: returns why a topic named by a key cannot take records; None: unknown. See
            `framework.discovery.routing.Router`.
    """

    skipped_lately: Sequence[SkippedCount] = ()
    known_topics: Collection[str] = ()
    topic_refusal: Callable[[str], str | None] | None = None


class OffsetManager:
    """The positions of a source: a cache in front of a store. Thread-safe.

    The reading thread calls `get_entry` and starts positions with `add_entry`. The sending thread calls `store_begun`
    before it sends, and passes the server's confirmations to `commit`. `flush` writes the changes since the last flush.
    Final positions are packed: about 100 bytes each.

    A count is saved only when no crash of the server can revert the records it covers. A partition that saves each
    message allows it immediately; in others it waits until `hold_back` messages follow.

    Args:
        store: storage of the positions; in memory by default.
        positions: known positions; the manager takes ownership and changes them.
        anchors: partition -> anchor; ownership as for `positions`.
        listings: prefix -> listing hints; ownership as for `positions`.
        watermark: replaces the compacted positions.
        selected: the selection of objects so far; None when unknown.
        facts: what else the start knows.
        source: name of the source.

    Attributes:
        table: the positions, their lock and their watermark.
        partitions: the partitions that this process writes.
        hints: the listing hints by prefix.
        selection: the selection of objects that the positions belong to.
        tracker: advances the watermark from listings.
        facts: as the argument.
    """

    def __init__(
        self,
        store: OffsetStore | None = None,
        *,
        positions: PositionMap | None = None,
        anchors: dict[TopicPartition, Anchor] | None = None,
        listings: dict[str, ListingHints] | None = None,
        watermark: Watermark | None = None,
        selected: SelectionScope | None = None,
        facts: StartFacts | None = None,
        source: str = "",
    ) -> None:
        self.facts = facts if facts is not None else StartFacts()
        self.table = PositionTable(positions, watermark, source=source)
        self.partitions = PartitionCounts(self.table, anchors)
        self.hints = HintTable(self.table, listings)
        self.selection = BoundSelection(self.table, selected)
        self.tracker = WatermarkTracker(self.table, self.store_begun)
        self._store = store if store is not None else MemoryOffsetStore()
        self._store_lock = threading.RLock()  # acquired before `table.lock`: one thread at a time calls the store

    def populate_offset_manager(self, keys: Iterable[OffsetManagerKey] | None = None) -> None:
        """Load the positions of these keys, or all, together; a position already here stays when it is further."""
        self.hints.load(self._store.load_listings())
        loaded = self._store.load(keys)
        while batch := list(itertools.islice(loaded, LOAD_BATCH)):
            self.table.load(batch)

    # ---- calls of the reader

    def get_entry(self, key: OffsetManagerKey) -> OffsetManagerEntry | None:
        """Return the position of a key; None when it has none."""
        table = self.table
        with table.lock:
            return table.positions.find(key)

    def add_entry(self, entry: OffsetManagerEntry, *others: OffsetManagerEntry) -> OffsetManagerEntry:
        """Start a position in place of earlier generations of its object; `store_begun` or the next flush writes it.

        Args:
            entry: the position.
            *others: positions of the object's other splits: all of them start together.

        Returns:
            The position as it starts: of a later generation where another object in progress has the same message ids.
        """
        return self.table.begin(entry, *others)[0]

    def remove_entry(self, key: OffsetManagerKey | OffsetManagerEntry) -> None:
        """Remove the position of an object and of all its splits. No effect when it has none."""
        self.table.remove(key.get_manager_key() if isinstance(key, OffsetManagerEntry) else key)

    # ---- calls of the sender

    def store_begun(self) -> None:
        """Ensure that every started position is stored before any message of its object that is sent after this call."""
        with self._store_lock:
            if self.table.unsaved.begun:
                with self.table.lock:
                    begun = self.table.take_begun()
                self._save(self._store.begin, begun)

    def commit(self, acknowledgement: Acknowledgement) -> None:
        """Commit the positions of confirmed batches. The invariant: acknowledge, then commit.

        Raises:
            NotAcknowledgedError: the batches hold records but the confirmation names no message.
        """
        if acknowledgement.anchor is None and any(batch.payloads for batch in acknowledgement.batches):
            raise NotAcknowledgedError(
                f"{acknowledgement.topic_partition}: a commit of records without a confirmed message; commit only what a "
                f"producer returned"
            )
        self.partitions.confirm(acknowledgement)

    @property
    def dirty(self) -> bool:
        """Whether a flush would write anything."""
        return self.table.dirty or self.partitions.dirty

    def flush(self, *, closing: bool = False) -> PositionDelta:
        """Save the changes since the last flush; after a failure they remain for the next flush.

        Args:
            closing: no more messages will be sent, and everything is confirmed.
        """
        with self._store_lock:
            with self.table.lock:  # once for both: what begins in between would take a count from its anchor
                begun = self.table.take_begun()
                delta = self.partitions.closing() if closing else PositionDelta()
                delta = self.partitions.take(delta)  # first: it saves counts, which changes the table
                delta = self.table.take(delta)
            if begun:
                self._save(self._store.begin, begun, delta)
            if delta:
                self._save(self._store.save, delta)
            return delta

    def _save(self, save: Callable[[PositionDelta], None], delta: PositionDelta, *later: PositionDelta) -> None:
        """Save a delta; after a failure its changes, and those of the deltas behind it, are unsaved again."""
        try:
            save(delta)  # outside the positions' lock: the reader looks up positions meanwhile
        except BaseException:
            with self.table.lock:
                for unsaved in (*reversed(later), delta):
                    self.partitions.restore(unsaved)
                    self.table.restore(unsaved)
            raise
