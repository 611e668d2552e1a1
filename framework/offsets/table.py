"""The positions of a source together with their watermark, and which of their changes are not saved yet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable

import attrs

from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.offsets.position_map import PositionMap, PositionView, begin_in, position_map
from framework.offsets.store import PositionDelta
from framework.offsets.watermark import Watermark


class PositionTable:
    """All positions of a source and their watermark. Thread-safe.

    Args:
        positions: known positions; the table takes ownership and changes them.
        watermark: replaces the compacted positions.

    Attributes:
        lock: held while positions or the watermark change; code that changes them from outside acquires it.
        positions: the positions by key, for holders of the lock.
        watermark: the times before which objects without a position are done.
        begun: positions that no store has yet.
    """

    def __init__(self, positions: PositionMap | None = None, watermark: Watermark | None = None) -> None:
        self.lock = threading.RLock()
        self.positions = positions if positions is not None else position_map()
        self.watermark = watermark if watermark is not None else Watermark()
        self.begun: list[OffsetManagerEntry] = []
        self._changed: dict[OffsetManagerKey, OffsetManagerEntry] = {}
        self._removed: dict[OffsetManagerKey, None] = {}

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def final(self) -> int:
        """Number of final positions."""
        return self.positions.final

    def entries(self) -> PositionView:
        """Return a view of all current positions: a sequence that builds each entry on access."""
        with self.lock:
            return self.positions.view()

    def splits_of(self, first: OffsetManagerEntry) -> list[OffsetManagerEntry]:
        """Return the positions of an object's splits after the first."""
        with self.lock:
            keys = self.positions.splits_of(first.get_manager_key())
            return [entry for entry in map(self.positions.find, keys) if entry is not None and entry.is_of(first)]

    def final_version(self, key: OffsetManagerKey) -> str | None:
        """Return the version of a final object; None without a position, while it is read, or when it is split.

        A listing calls this for each object that it shows: cheaper than the position.
        """
        with self.lock:
            return self.positions.final_version(key)

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
        if not watermark or not watermark.covers(watermark.bucket, name, modified_ms):
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

    def begin(self, *entries: OffsetManagerEntry) -> None:
        """Start positions in place of earlier generations of their objects."""
        with self.lock:
            for entry in entries:
                if self._changed or self._removed:
                    key = entry.get_manager_key()
                    whole = key if entry.split_number <= 1 else key.whole()
                    self._drop_changes(whole, entry)
                    self._removed.pop(whole, None)  # starts are stored before removals
                begin_in(self.positions, entry)
            self.begun += entries

    def put(self, key: OffsetManagerKey, entry: OffsetManagerEntry) -> None:
        """Set a position with another count, for a holder of the lock."""
        self.positions[key] = self._changed[key] = entry

    def remove(self, key: OffsetManagerKey) -> None:
        """Remove the position of an object and of all its splits. No effect when it has none."""
        with self.lock:
            self._drop_changes(key)
            if self.positions.remove_object(key):
                self._removed[key] = None
                self.begun = [entry for entry in self.begun if entry.get_manager_key().whole() != key]

    def _drop_changes(self, whole: OffsetManagerKey, successor: OffsetManagerEntry | None = None) -> None:
        """Forget the unsaved counts of an object whose position goes, or gives way to its successor."""
        known = self.positions.find(whole)
        if known is not None and not (successor is not None and known.is_of(successor)):
            for key in (whole, *(self.positions.splits_of(whole) if known.split_size else ())):
                self._changed.pop(key, None)

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
                if entry.final and key not in self._changed and known == entry:
                    del self.positions[key]

    def mark_missing(self, shown: Collection[OffsetManagerKey], covers: str, after: str, now_ms: int) -> None:
        """Update which objects are missing after a complete listing of a prefix.

        Args:
            shown: listed objects with pending positions.
            covers: the prefix.
            after: the key after which the listing began.
            now_ms: start of the listing, by the store's clock.
        """
        with self.lock:
            for key, entry in self.positions.pending():
                if not entry.key.startswith(covers) or entry.key <= after:
                    continue
                missing = 0 if key.whole() in shown else entry.missing_since_ms or now_ms
                if missing != entry.missing_since_ms:
                    self.positions[key] = attrs.evolve(entry, missing_since_ms=missing)

    def compact(self, is_gone: Callable[[OffsetManagerEntry], bool]) -> int:
        """Drop the positions that the watermark replaces, and those of missing objects; return the number of objects.

        Args:
            is_gone: whether a missing object is never expected again.
        """
        with self.lock:
            compacted = self.positions.compact(self.watermark)
            if compacted.objects:
                self.watermark = self.watermark.with_compacted(compacted.objects, compacted.records)
            gone = [key.whole() for key, entry in self.positions.pending() if entry.missing_since_ms and is_gone(entry)]
            missing = sum(map(self.positions.remove_object, dict.fromkeys(gone)))
            return sum(compacted.objects.values()) + missing

    # ---- what a flush saves

    @property
    def dirty(self) -> bool:
        """Whether a position changed since the last save."""
        return bool(self.begun or self._changed or self._removed)

    def take_begun(self) -> list[OffsetManagerEntry]:
        """Return the positions that no store has yet; from now on a store has them. For a holder of the lock."""
        begun, self.begun = self.begun, []
        return begun

    def take(self, delta: PositionDelta) -> PositionDelta:
        """Move the changed and removed positions into the delta."""
        changed, removed = self._changed, self._removed
        self._changed, self._removed = {}, {}
        return attrs.evolve(delta, entries=list(changed.values()), removed=list(removed))

    def restore(self, delta: PositionDelta) -> None:
        """Take back the positions of an unsaved delta."""
        self.begun = [*delta.begun, *self.begun]
        changed = {entry.get_manager_key(): entry for entry in delta.entries if not self._is_replaced(entry)}
        self._changed = changed | self._changed
        self._removed = {key: None for key in delta.removed if key not in self.positions} | self._removed

    def _is_replaced(self, entry: OffsetManagerEntry) -> bool:
        """Return whether the object of this position was removed or began again."""
        whole = entry.get_manager_key().whole()
        known = self.positions.find(whole)
        return whole in self._removed or (known is not None and not known.is_of(entry))


def is_further(entry: OffsetManagerEntry, other: OffsetManagerEntry) -> bool:
    """Return whether a position of the same key is of a later generation, or of the same one and counts more records."""
    return (entry.generation, entry.records_done) > (other.generation, other.records_done)
