"""The positions of a source together with their watermark, and which of their changes are not saved yet."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator

import attrs

from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.offsets.id_hashes import Identities
from framework.offsets.listing_hints import ListingHints
from framework.offsets.offset_store import PositionDelta
from framework.offsets.position_map import PositionMap, begin_in, position_map
from framework.offsets.position_view import PositionView, records_of
from framework.offsets.selection_scope import SelectionScope
from framework.offsets.watermark import Watermark

COMPACT_BATCH = 1000
"""Objects whose positions are dropped per hold of the lock."""


@attrs.define(kw_only=True)
class Unsaved:
    """The changes since the last save; see `PositionDelta`."""

    begun: list[OffsetManagerEntry] = attrs.field(factory=list)
    changed: dict[OffsetManagerKey, OffsetManagerEntry] = attrs.field(factory=dict)
    removed: dict[OffsetManagerKey, None] = attrs.field(factory=dict)
    listings: dict[str, ListingHints] = attrs.field(factory=dict)
    skipped: int = 0
    selected: SelectionScope | None = None


class PositionTable:
    """All positions of a source and their watermark. Thread-safe.

    Args:
        positions: known positions; the table takes ownership and changes them.
        watermark: replaces the compacted positions.
        source: name of the source.

    Attributes:
        lock: held while positions or the watermark change; code that changes them from outside acquires it.
        compacting: held while positions are compacted, and before `lock` by who lowers the watermark.
        positions: the positions by key, for holders of the lock.
        watermark: the times before which objects without a position are done.
        unsaved: what no store has yet, of positions and of what is saved with them; for holders of the lock.
    """

    def __init__(
        self, positions: PositionMap | None = None, watermark: Watermark | None = None, *, source: str = ""
    ) -> None:
        self.lock = threading.RLock()
        self.compacting = threading.Lock()
        self.positions = positions if positions is not None else position_map()
        self.watermark = watermark if watermark is not None else Watermark()
        self.unsaved = Unsaved()
        self._identities = Identities(source, self._in_progress)

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def final(self) -> int:
        """Number of final positions."""
        return self.positions.final

    def entries(self) -> PositionView:
        """Return a view of all current positions, which builds each entry on access."""
        with self.lock:
            return self.positions.view()

    def unfinished(self) -> list[OffsetManagerEntry]:
        """Return the positions with records left to read; final ones, which may be millions, are not looked at."""
        with self.lock:
            return [entry for _, entry in self.positions.pending() if not entry.finished]

    def splits_of(self, first: OffsetManagerEntry) -> list[OffsetManagerEntry]:
        """Return the positions of an object's splits after the first."""
        with self.lock:
            keys = self.positions.splits_of(first.get_manager_key())
            return [entry for entry in map(self.positions.find, keys) if entry is not None and entry.is_of(first)]

    def listed(self, key: OffsetManagerKey, version: str) -> tuple[bool, OffsetManagerEntry | None]:
        """Return whether this version of an object is done, finally and without splits; if not, the object's position.

        A listing calls this for each object that it shows: such a position is not unpacked.
        """
        with self.lock:
            return self.positions.listed(key, version)

    def next_generation(self, key: OffsetManagerKey) -> int:
        """Return a generation that the object never had before."""
        with self.lock:
            return self.positions.next_generation(key)

    def is_compacted(self, key: OffsetManagerKey, name: str, modified_ms: int) -> bool:
        """Return whether an object is done and its position was compacted.

        Args:
            key: key of its former position.
            name: the object's key in its bucket.
            modified_ms: last-modified, milliseconds since 1970.
        """
        watermark = self.watermark
        if not watermark.covers(watermark.bucket, name, modified_ms):
            return False
        with self.lock:
            return (
                dict(key.properties).get("bucket", watermark.bucket) == watermark.bucket and key not in self.positions
            )

    def is_finished(self, key: OffsetManagerKey, entry: OffsetManagerEntry) -> bool:
        """Return whether the object of this position is done, failed or superseded, with or without its position."""
        with self.lock:
            known = self.positions.find_pending(key)
        return known is None or not known.is_of(entry) or known.finished  # a final position of any version is finished

    # ---- changes

    def begin(self, first: OffsetManagerEntry, *others: OffsetManagerEntry) -> list[OffsetManagerEntry]:
        """Start the positions of an object in place of its earlier generations; return them as they start.

        Args:
            first: the position.
            *others: those of the object's other splits.
        """
        with self.lock:
            unsaved = self.unsaved
            whole = first.get_manager_key().whole()
            generation = self._identities.take(first).generation
            entries = [entry.changed(generation=generation) for entry in (first, *others)]
            known = self.positions.find(whole)
            if known is not None and not known.is_of(entries[0]):  # other splits of the same version keep their counts
                self._drop_changes(whole)
            unsaved.removed.pop(whole, None)  # starts are stored before removals
            for entry in entries:
                begin_in(self.positions, entry)
            unsaved.begun += entries
            return entries

    def begin_first(self, key: OffsetManagerKey, entry: OffsetManagerEntry) -> OffsetManagerEntry | None:
        """Start the position of an object that has none, in a generation that it never had; None when it has one.

        Most objects are new: this takes one search.

        Args:
            key: the entry's key.
            entry: the position of a whole object.
        """
        with self.lock:
            if self.positions.find(key) is not None:
                return None
            generation = self.positions.floor + 1
            if entry.generation != generation:
                entry = entry.changed(generation=generation)
            self.positions[key] = begun = self._identities.take(entry)
            self.unsaved.removed.pop(key, None)  # starts are stored before removals
            self.unsaved.begun.append(begun)
            return begun

    def _in_progress(self) -> Iterator[OffsetManagerEntry]:
        """Yield the positions that may still get progress: pending ones, and those whose last count is not saved."""
        yield from (entry for _, entry in self.positions.pending())
        yield from self.unsaved.changed.values()

    def put(self, key: OffsetManagerKey, entry: OffsetManagerEntry) -> None:
        """Set a position with another count, for a holder of the lock."""
        self.positions[key] = self.unsaved.changed[key] = entry

    def remove(self, key: OffsetManagerKey) -> None:
        """Remove the position of an object and of all its splits. No effect when it has none."""
        with self.lock:
            self._drop_changes(key)
            if self.positions.remove_object(key):
                self.unsaved.removed[key] = None
                self.unsaved.begun = [one for one in self.unsaved.begun if one.get_manager_key().whole() != key]

    def _drop_changes(self, whole: OffsetManagerKey) -> None:
        """Forget the unsaved counts of an object whose position goes, or gives way to its successor."""
        for key in (whole, *self.positions.splits_of(whole)):
            self.unsaved.changed.pop(key, None)

    def load(self, entries: Iterable[OffsetManagerEntry]) -> None:
        """Add stored positions; a position already here stays when it is further."""
        with self.lock:
            for entry in entries:
                known = self.positions.find(entry.get_manager_key())
                if known is None or is_further(entry, known):
                    begin_in(self.positions, entry)

    def adopt(self, entry: OffsetManagerEntry) -> OffsetManagerEntry:
        """Return this table's version of a position that another process started.

        The count of this process decides: the other process may not know yet which messages a killed server lost.
        """
        with self.lock:
            known = self.positions.find(entry.get_manager_key())
            if known is not None and known.is_of(entry):
                return known
            if known is None or known.generation < entry.generation:
                begin_in(self.positions, entry)
            return entry

    def forget_final(self, entries: Iterable[OffsetManagerEntry]) -> None:
        """Drop final and saved positions, for a worker: its leader holds them and decides by them."""
        with self.lock:
            for entry in entries:
                key = entry.get_manager_key()
                known = self.positions.find(key)
                if entry.final and key not in self.unsaved.changed and known == entry:
                    del self.positions[key]

    def count_skipped(self, count: int) -> None:
        """Add skipped records and failed objects; the next flush writes their number."""
        with self.lock:
            self.unsaved.skipped += count

    def mark_missing(
        self, listed: Iterable[OffsetManagerKey], unseen: Collection[OffsetManagerKey], now_ms: int
    ) -> None:
        """Update which objects are missing after a complete listing.

        Args:
            listed: the pending positions, and those of failed objects, that it should have shown.
            unseen: the objects among them that it did not show.
            now_ms: start of the listing, by the store's clock.
        """
        with self.lock:
            for key in listed:
                entry = self.positions.find(key)
                if entry is None or (entry.final and not entry.failed):
                    continue
                missing = (entry.missing_since_ms or now_ms) if key.whole() in unseen else 0
                if missing != entry.missing_since_ms:
                    self.positions[key] = entry.changed(missing_since_ms=missing)

    def compact(self, is_gone: Callable[[OffsetManagerEntry], bool]) -> int:
        """Drop the positions that the watermark replaces, and those of missing objects; return the number of objects.

        Args:
            is_gone: whether a missing object is never expected again.
        """
        with self.compacting:
            with self.lock:
                view, watermark = self.positions.view(), self.watermark
            objects = 0
            # not at once: it takes seconds for a million, and senders wait for the lock
            found = view.compactable(watermark)
            while batch := list(itertools.islice(found, COMPACT_BATCH)):
                with self.lock:
                    gone = list(filter(self.positions.drop, batch))
                    prefixes = Counter(one.prefix for one in gone)
                    records = sum(records_of(entry) for one in gone for entry in one.entries)
                    self.watermark = self.watermark.with_compacted(prefixes, records)
                objects += len(gone)
            with self.lock:
                self.positions.clear_away()
                uncompactable = self.positions.uncompactable()
                missing = {
                    key.whole(): None for key, entry in uncompactable if entry.missing_since_ms and is_gone(entry)
                }
                return objects + sum(map(self.positions.remove_object, missing))

    # ---- what a flush saves

    @property
    def dirty(self) -> bool:
        """Whether anything changed since the last save."""
        new = self.unsaved
        return any((new.begun, new.changed, new.removed, new.listings, new.skipped, new.selected))

    def take_begun(self) -> PositionDelta:
        """Move what began into a delta, with the selection, which is written first. For a holder of the lock."""
        unsaved = self.unsaved
        if not unsaved.begun:
            return PositionDelta()
        delta = PositionDelta(begun=unsaved.begun, selected=unsaved.selected)
        unsaved.begun, unsaved.selected = [], None
        return delta

    def take(self, delta: PositionDelta) -> PositionDelta:
        """Move everything else that changed into the delta. For a holder of the lock."""
        unsaved, self.unsaved = self.unsaved, Unsaved(begun=self.unsaved.begun)
        return attrs.evolve(
            delta,
            entries=list(unsaved.changed.values()),
            removed=list(unsaved.removed),
            listings=unsaved.listings,
            skipped=unsaved.skipped,
            selected=unsaved.selected,
        )

    def restore(self, delta: PositionDelta) -> None:
        """Take back the changes of a delta that was not saved; newer changes win. For a holder of the lock."""
        unsaved = self.unsaved
        changed = {entry.get_manager_key(): entry for entry in delta.entries if not self._is_replaced(entry)}
        self.unsaved = Unsaved(
            begun=[*delta.begun, *unsaved.begun],
            changed=changed | unsaved.changed,
            removed={key: None for key in delta.removed if key not in self.positions} | unsaved.removed,
            listings={**delta.listings, **unsaved.listings},
            skipped=delta.skipped + unsaved.skipped,
            selected=unsaved.selected or delta.selected,
        )

    def _is_replaced(self, entry: OffsetManagerEntry) -> bool:
        """Return whether the object of this position was removed or began again."""
        whole = entry.get_manager_key().whole()
        known = self.positions.find(whole)
        return whole in self.unsaved.removed or (known is not None and not known.is_of(entry))


def is_further(entry: OffsetManagerEntry, other: OffsetManagerEntry) -> bool:
    """Return whether a position of the same key is of a later generation, or of the same one and counts more records."""
    return (entry.generation, entry.records_done) > (other.generation, other.records_done)
