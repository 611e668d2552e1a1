"""Storage of positions: `OffsetManager`, the cache in front of an `OffsetStore`.

A position is a value of `framework.model.positions`.

add_entry (starts) -> [stored] -> send -> acknowledged -> commit -> [flush] -> saved
"""

from __future__ import annotations

import abc
import itertools
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import attrs
from typing_extensions import override

from framework.errors import NotAcknowledgedError
from framework.model.batches import Acknowledgement
from framework.model.objects import Anchor, TopicPartition
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.offsets.listing_hints import ListingHints
from framework.offsets.selection_scope import SelectionScope
from framework.offsets.skipped import SkippedCount
from framework.offsets.table import PositionMap, PositionView, begin_in, position_map
from framework.offsets.watermark import Watermark
from framework.offsets.watermark_tracker import WatermarkTracker

LOAD_BATCH = 1000
"""Positions loaded per hold of the lock, while other threads wait for it."""


@attrs.frozen(kw_only=True, slots=True)
class PositionDelta:
    """The changes since the last save.

    Attributes:
        begun: positions that start, in place of earlier generations of their objects.
        entries: positions with changed counts; each partition's anchor covers their saved counts.
        anchors: partition -> the message up to which saved counts are complete.
        removed: objects with dropped positions.
        listings: prefix -> hints of its listing for the next listing; the last value wins.
        skipped: skipped records and failed objects since the last save.
        selected: the selection of objects, when it was not stored before.
        written: partitions that received messages.
        counted: partition that can lose messages -> the last message that the counts of `entries` account for.
        closed: partition -> offset of its last message, where everything is confirmed and no message will follow.
    """

    begun: Sequence[OffsetManagerEntry] = ()
    entries: Sequence[OffsetManagerEntry] = ()
    anchors: Mapping[TopicPartition, Anchor] = attrs.field(factory=dict)
    removed: Sequence[OffsetManagerKey] = ()
    listings: Mapping[str, ListingHints] = attrs.field(factory=dict)
    skipped: int = 0
    selected: SelectionScope | None = None
    written: Collection[TopicPartition] = ()
    counted: Mapping[TopicPartition, Anchor] = attrs.field(factory=dict)
    closed: Mapping[TopicPartition, int] = attrs.field(factory=dict)

    def __bool__(self) -> bool:
        return bool(
            self.begun
            or self.entries
            or self.anchors
            or self.removed
            or self.listings
            or self.skipped
            or self.selected is not None
            or self.closed
        )


class OffsetStore(abc.ABC):
    """Storage of positions. Not thread-safe; the manager calls one method at a time."""

    @abc.abstractmethod
    def load(self, keys: Iterable[OffsetManagerKey] | None = None) -> Iterator[OffsetManagerEntry]:
        """Yield the stored entries of these keys, or all. May block. May be called again."""

    @abc.abstractmethod
    def save(self, delta: PositionDelta) -> None:
        """Save a change; on return it is as durable as the store can make it. May block.

        Raises:
            RetriableError: the change is not saved, or its state is unknown; the manager keeps it and saves it again.
        """

    def begin(self, delta: PositionDelta) -> None:
        """Store positions that start, before any of their records is sent.

        A store may return earlier if it guarantees that no record sent from now on is stored before these positions.

        Raises:
            RetriableError: as `save`.
        """
        self.save(delta)

    def load_listings(self) -> Mapping[str, ListingHints]:
        """Return the saved listing hints by prefix.

        By default none: each start then lists without hints.
        """
        return {}


class MemoryOffsetStore(OffsetStore):
    """Positions for the lifetime of this process: for tests, and for library use without Iggy."""

    def __init__(self) -> None:
        self.entries = position_map()
        self.anchors: dict[TopicPartition, Anchor] = {}
        self.listings: dict[str, ListingHints] = {}

    @override
    def load_listings(self) -> Mapping[str, ListingHints]:
        return self.listings

    @override
    def load(self, keys: Iterable[OffsetManagerKey] | None = None) -> Iterator[OffsetManagerEntry]:
        """Return the entries as saved."""
        if keys is None:
            return iter(self.entries.view())
        return (self.entries[key] for key in keys if key in self.entries)

    @override
    def save(self, delta: PositionDelta) -> None:
        """Save the change in memory."""
        for key in delta.removed:
            self.entries.remove_object(key)
        for entry in delta.begun:
            begin_in(self.entries, entry)
        for entry in delta.entries:
            begin_in(self.entries, entry)
        self.anchors.update(delta.anchors)
        self.listings.update(delta.listings)


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
        watermark: replaces the compacted positions.
        selected: the selection of objects so far; None when unknown.
        skipped_lately: skips and failures of earlier runs within the last hour, for the limits.
        known_topics: topics that hold records of this source, according to the log.
        topic_refusal: returns why a topic named by a key cannot take records; None: unknown. See
            `framework.discovery.routing.Router`.

    Attributes:
        skipped_lately: as the argument.
        known_topics: as the argument.
        topic_refusal: as the argument.
        lock: held while positions change; code that changes `positions` from outside acquires it.
        tracker: advances the watermark from listings.
    """

    def __init__(
        self,
        store: OffsetStore | None = None,
        *,
        positions: PositionMap | None = None,
        anchors: dict[TopicPartition, Anchor] | None = None,
        watermark: Watermark | None = None,
        selected: SelectionScope | None = None,
        skipped_lately: Sequence[SkippedCount] = (),
        known_topics: Collection[str] = (),
        topic_refusal: Callable[[str], str | None] | None = None,
    ) -> None:
        self.skipped_lately = skipped_lately
        self.known_topics = known_topics
        self.topic_refusal = topic_refusal
        self.lock = threading.RLock()
        self._skipped = 0
        self._store = store if store is not None else MemoryOffsetStore()
        self._watermark = watermark if watermark is not None else Watermark()
        self._positions = positions if positions is not None else position_map()
        self._anchors = anchors if anchors is not None else {}
        self._partitions: dict[TopicPartition, PartitionState] = {}
        self._begun: list[OffsetManagerEntry] = []
        self._store_lock = threading.RLock()  # acquired before `lock`: one thread at a time calls the store
        self._dirty: dict[OffsetManagerKey, OffsetManagerEntry] = {}
        self._held: set[TopicPartition] = (
            set()
        )  # partitions that hold counts back and received messages since the last flush
        self._dirty_anchors: set[TopicPartition] = set()
        self._removed: dict[OffsetManagerKey, None] = {}
        self._listings: dict[str, ListingHints] = {}
        self._dirty_listings: dict[str, ListingHints] = {}
        self._selected = selected
        self._new_selected: SelectionScope | None = None
        self.tracker = WatermarkTracker(self)

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, key: OffsetManagerKey) -> bool:
        with self.lock:
            return key in self._positions

    def populate_offset_manager(self, keys: Iterable[OffsetManagerKey] | None = None) -> None:
        """Load the positions of these keys, or all, together; a position already here stays when it is further."""
        listings = self._store.load_listings()
        with self.lock:
            self._listings = {**listings, **self._listings}
        loaded = self._store.load(keys)
        while batch := list(itertools.islice(loaded, LOAD_BATCH)):
            with self.lock:
                for entry in batch:
                    known = self._positions.find(entry.get_manager_key())
                    if known is None or _progress(known) < _progress(entry):
                        begin_in(self._positions, entry)

    # ---- calls of the reader

    def get_entry(self, key: OffsetManagerKey) -> OffsetManagerEntry | None:
        """Return the position of a key; None when it has none."""
        with self.lock:
            return self._positions.find(key)

    def get_splits(self, first: OffsetManagerEntry) -> list[OffsetManagerEntry]:
        """Return the positions of an object's splits after the first."""
        with self.lock:
            keys = self._positions.splits_of(first.get_manager_key())
            return [entry for entry in map(self._positions.find, keys) if entry is not None and entry.is_of(first)]

    def final_version(self, key: OffsetManagerKey) -> str | None:
        """Return the version of a final object; None without a position, while it is read, or when it is split.

        A listing asks this for each object that it shows: cheaper than the position.
        """
        with self.lock:
            return self._positions.final_version(key)

    def next_generation(self, key: OffsetManagerKey) -> int:
        """Return a generation that the object never had before."""
        with self.lock:
            return self._positions.next_generation(key)

    def add_entry(self, entry: OffsetManagerEntry) -> OffsetManagerEntry:
        """Start a position in place of earlier generations of its object; `store_begun` or the next flush writes it."""
        return self.add_entries([entry])[0]

    def add_entries(self, entries: Iterable[OffsetManagerEntry]) -> list[OffsetManagerEntry]:
        """Start the positions of all splits of an object together, as `add_entry`."""
        added = list(entries)
        with self.lock:
            for entry in added:
                begin_in(self._positions, entry)
                if self._removed:
                    self._removed.pop(entry.get_manager_key().whole(), None)  # starts are stored before removals
            self._begun += added
        return added

    def adopt(self, entry: OffsetManagerEntry) -> OffsetManagerEntry:
        """Return this manager's version of a position that another process started.

        The count of this process decides: the other process may not know yet which messages a killed server lost.
        """
        with self.lock:
            known = self._positions.find(entry.get_manager_key())
            if known is not None and known.is_of(entry):
                return known
            if known is None or known.generation < entry.generation:
                begin_in(self._positions, entry)
            return entry

    def remove_entry(self, key: OffsetManagerKey | OffsetManagerEntry) -> None:
        """Remove the position of an object and of all its splits. No effect when it has none."""
        if isinstance(key, OffsetManagerEntry):
            key = key.get_manager_key()
        with self.lock:
            known = self._positions.find(key)
            splits = self._positions.splits_of(key) if known is not None and known.split_size else []
            if not self._positions.remove_object(key):
                return
            self._removed[key] = None
            for gone in (key, *splits):
                self._dirty.pop(gone, None)
            self._begun = [entry for entry in self._begun if entry.get_manager_key() not in {key, *splits}]

    @property
    def watermark(self) -> Watermark:
        """The times before which objects without a position are done."""
        return self._watermark

    @watermark.setter
    def watermark(self, watermark: Watermark) -> None:
        self._watermark = watermark

    def is_compacted(self, key: OffsetManagerKey, name: str, modified_ms: int) -> bool:
        """Return whether an object is done and its position was compacted.

        Args:
            key: key of its former position.
            name: the object's key in its bucket.
            modified_ms: last-modified, milliseconds since 1970.
        """
        watermark = self._watermark
        if not watermark or not watermark.covers(watermark.bucket, name, modified_ms):
            return False
        return dict(key.properties).get("bucket", watermark.bucket) == watermark.bucket and key not in self

    def is_finished(self, entry: OffsetManagerEntry) -> bool:
        """Return whether the object of this position is done, failed or superseded, with or without its position."""
        with self.lock:
            known = self._positions.find_pending(entry.get_manager_key())
        return known is None or not known.is_of(entry) or known.finished  # a final position of any version is finished

    def listing_hints(self, prefix: str) -> ListingHints | None:
        """Return the hints of the last listing of that prefix."""
        with self.lock:
            return self._listings.get(prefix)

    def note_listing(self, prefix: str, past: ListingHints) -> None:
        """Set hints for the next listing of that prefix; the next flush writes them."""
        with self.lock:
            self._listings[prefix] = self._dirty_listings[prefix] = past

    def note_skipped(self, count: int) -> None:
        """Add skipped records and failed objects to the count; the next flush writes it."""
        with self.lock:
            self._skipped += count

    @property
    def selected(self) -> SelectionScope | None:
        """The selection of objects."""
        return self._selected

    def select(self, selected: SelectionScope) -> None:
        """Bind the positions to the selection; it is written before any position starts.

        Raises:
            PositionError: the positions or the watermark belong to other objects; the message says how to resolve that.
        """
        with self.lock:
            known = self._selected
            if known is not None:
                selected.check(known, self._watermark)
                self._watermark = selected.left_of(known, self._watermark)
            if not self._watermark.bucket:
                self._watermark = attrs.evolve(self._watermark, bucket=selected.bucket)
            if known != selected:
                self._selected = self._new_selected = selected

    def _keep_selected(self, selected: SelectionScope | None) -> None:
        """Restore a selection that could not be saved, unless a newer selection exists."""
        if self._new_selected is None:
            self._new_selected = selected

    # ---- calls of the sender

    def open_partition(
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
        with self.lock:
            self._partitions[topic_partition] = state
            if anchor is not None and anchor != self._anchors.get(topic_partition):
                self._anchors[topic_partition] = anchor
                self._dirty_anchors.add(topic_partition)
            for key, records in (saved or {}).items():
                entry = self._positions.find(key)
                if entry is not None and entry.records_saved < records:
                    self._positions[key] = self._dirty[key] = attrs.evolve(entry, records_saved=records)

    def ends(self) -> dict[TopicPartition, Anchor]:
        """Return the last message of each partition that this process writes."""
        with self.lock:
            return {
                topic_partition: state.last
                for topic_partition, state in self._partitions.items()
                if state.last is not None
            }

    def counted(self) -> dict[TopicPartition, Anchor]:
        """Return the last message that counts account for, of each partition that can lose messages."""
        with self.lock:
            return {
                topic_partition: state.last
                for topic_partition, state in self._partitions.items()
                if state.last is not None and state.hold_back
            }

    def is_open(self, topic_partition: TopicPartition) -> bool:
        """Return whether this process writes that partition."""
        return topic_partition in self._partitions

    def store_begun(self) -> None:
        """Ensure that every started position is stored before any message sent after this call."""
        with self._store_lock:
            if not self._begun:
                return
            with self.lock:
                begun, self._begun = self._begun, []
                selected, self._new_selected = self._new_selected, None
            try:
                self._store.begin(PositionDelta(begun=begun, selected=selected))
            except BaseException:
                with self.lock:
                    self._begun = [*begun, *self._begun]
                    self._keep_selected(selected)
                raise

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
        last = {batch.entry.get_manager_key(): batch.entry for batch in acknowledgement.batches}
        topic_partition = acknowledgement.topic_partition
        with self.lock:
            partition = self._partitions.get(topic_partition)
            if partition is None:
                partition = self._partitions[topic_partition] = PartitionState()
            if acknowledgement.anchor is not None:
                partition.last = acknowledgement.anchor
                if partition.hold_back:
                    self._held.add(topic_partition)
                else:
                    self._anchors[topic_partition] = acknowledgement.anchor
                    self._dirty_anchors.add(topic_partition)
            for key, entry in last.items():
                self._commit_entry(key, entry, partition)

    def _commit_entry(self, key: OffsetManagerKey, entry: OffsetManagerEntry, partition: PartitionState) -> None:
        known = self._positions.find(key)
        if known is not None and _progress(known) > _progress(entry):
            return  # overwritten or reset meanwhile
        if partition.last is None or not partition.hold_back:  # no message of it can be lost
            saved = entry.records_done
        else:
            saved = known.records_saved if known is not None and known.generation == entry.generation else 0
            partition.unsaved.append(UnsavedCount(partition.last, key, entry.generation, entry.records_done))
        if saved != entry.records_saved:
            entry = entry.changed(records_saved=saved)
        self._positions[key] = self._dirty[key] = entry

    def _save_count(self, topic_partition: TopicPartition) -> None:
        """Advance saved counts and the anchor as far as no crash can revert them.

        A killed server loses at most the last `hold_back - 1` messages of a partition; so a message with that many
        after it is permanent. Counts and anchor change together: a recovery replays from where they end.
        """
        partition = self._partitions[topic_partition]
        assert partition.last is not None
        limit = partition.last.offset - partition.hold_back
        unsaved = partition.unsaved
        while unsaved and unsaved[0].anchor.offset <= limit:
            item = unsaved.popleft()
            self._anchors[topic_partition] = item.anchor
            self._dirty_anchors.add(topic_partition)
            entry = self._positions.find(item.key)
            if entry is not None and entry.generation == item.generation and entry.records_saved < item.records:
                self._positions[item.key] = self._dirty[item.key] = entry.changed(records_saved=item.records)

    @property
    def dirty(self) -> bool:
        """Whether a flush would write anything."""
        return bool(
            self._begun
            or self._dirty
            or self._removed
            or self._dirty_anchors
            or self._held
            or self._dirty_listings
            or self._skipped
            or self._new_selected is not None
        )

    def flush(self, *, closing: bool = False) -> PositionDelta:
        """Save the changes since the last flush; after a failure they remain for the next flush.

        Args:
            closing: no more messages will be sent, and everything is confirmed.
        """
        with self._store_lock:
            self.store_begun()
            with self.lock:
                held, written = self._held, self._held | self._dirty_anchors
                for topic_partition in held:
                    self._save_count(topic_partition)
                entries, removed, topic_partitions = self._dirty, self._removed, self._dirty_anchors
                listings, skipped, selected = self._dirty_listings, self._skipped, self._new_selected
                delta = PositionDelta(
                    entries=list(entries.values()),
                    anchors={
                        topic_partition: self._anchors[topic_partition] for topic_partition in sorted(topic_partitions)
                    },
                    removed=list(removed),
                    listings=listings,
                    skipped=skipped,
                    selected=selected,
                    written=written,
                    counted=self.counted() if held or closing else {},
                    closed={topic_partition: last.offset for topic_partition, last in self.ends().items()}
                    if closing
                    else {},
                )
                self._dirty, self._removed, self._dirty_anchors, self._held = {}, {}, set(), set()
                self._dirty_listings, self._skipped, self._new_selected = {}, 0, None
            if not delta:
                return delta
            try:
                self._store.save(delta)  # outside the lock: the reader looks up positions meanwhile
            except BaseException:
                with self.lock:
                    kept = {key: entry for key, entry in entries.items() if key not in self._removed}
                    self._dirty = {**kept, **self._dirty}
                    gone = {key: None for key in removed if key not in self._positions}
                    self._removed = {**gone, **self._removed}
                    self._held |= held  # entries and the message that they account for are saved together
                    self._dirty_anchors |= topic_partitions
                    self._dirty_listings = {**listings, **self._dirty_listings}
                    self._skipped += skipped
                    self._keep_selected(selected)
                raise
            return delta

    def forget_final(self, entries: Iterable[OffsetManagerEntry]) -> None:
        """Drop final and saved positions, for a worker: its leader holds them and decides by them."""
        with self.lock:
            for entry in entries:
                key = entry.get_manager_key()
                known = self._positions.find(key)
                if entry.final and key not in self._dirty and known == entry:
                    del self._positions[key]

    # ---- calls of a leader

    @property
    def final(self) -> int:
        """Number of final positions."""
        return self._positions.final

    def entries(self) -> PositionView:
        """Return a view of all current positions: a sequence that builds each entry on access."""
        with self.lock:
            return self._positions.view()

    def snapshot_listings(self) -> dict[str, ListingHints]:
        """Return the known listing hints by prefix."""
        with self.lock:
            return dict(self._listings)

    def observe_listings(self, listings: Mapping[str, ListingHints]) -> None:
        """Merge listing hints from a log."""
        with self.lock:
            self._listings.update(listings)

    def compact(self) -> int:
        """Drop the positions that the watermark replaces; return the number of objects."""
        with self.lock:
            compacted = self._positions.compact(self._watermark)
            if compacted.objects:
                self._watermark = self._watermark.with_compacted(compacted.objects, compacted.records)
            objects = sum(compacted.objects.values())
            objects += self._drop_missing()
        self.tracker.compacted(objects)
        return objects

    def _drop_missing(self) -> int:
        """Drop the positions of objects that complete listings missed for longer than late arrivals are allowed."""
        gone = [
            key.whole()
            for key, entry in self._positions.pending()
            if entry.missing_since_ms and self.tracker.is_gone_for_good(entry)
        ]
        return sum(map(self._positions.remove_object, dict.fromkeys(gone)))

    def mark_missing(self, shown: Iterable[OffsetManagerKey], covers: str, after: str, now_ms: int) -> None:
        """Update which objects are missing after a complete listing of a prefix.

        Args:
            shown: listed objects with pending positions.
            covers: the prefix.
            after: the key after which the listing began.
            now_ms: start of the listing, by the store's clock.
        """
        shown = set(shown)
        with self.lock:
            for key, entry in self._positions.pending():
                if not entry.key.startswith(covers) or entry.key <= after:
                    continue
                missing = 0 if key.whole() in shown else entry.missing_since_ms or now_ms
                if missing != entry.missing_since_ms:
                    self._positions[key] = attrs.evolve(entry, missing_since_ms=missing)


def _progress(entry: OffsetManagerEntry) -> tuple[int, int]:
    return entry.generation, entry.records_done
