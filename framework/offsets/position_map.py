"""All positions of a source, by key: pending positions as objects, millions of final positions packed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, MutableMapping

from typing_extensions import override

from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.offsets.packed_row import RowChunk, RowCodec, Tables
from framework.offsets.packed_table import FinishedTable
from framework.offsets.position_view import Compactable, PositionView


class PositionMap(MutableMapping["OffsetManagerKey", "OffsetManagerEntry"]):
    """Key -> entry, as a dict. Final entries are packed; pending entries, and final ones that have no row, are objects.

    For one thread at a time; a `view` may be read concurrently.

    Attributes:
        floor: the highest generation of any dropped position; an object without a position starts above it.

    Args:
        finished: the table of packed entries; replaceable for tests.
    """

    def __init__(self, *, finished: FinishedTable | None = None) -> None:
        self.floor = 0
        self._objects: dict[OffsetManagerKey, OffsetManagerEntry] = {}
        self._finished = finished if finished is not None else FinishedTable(RowCodec())

    def find(self, key: OffsetManagerKey) -> OffsetManagerEntry | None:
        """Return the entry of that key; None when there is none."""
        entry = self._objects.get(key)
        return entry if entry is not None else self._finished.get(key)

    def find_pending(self, key: OffsetManagerKey) -> OffsetManagerEntry | None:
        """Return the entry of that key while it is not final; None when it is, or when there is none."""
        entry = self._objects.get(key)
        return entry if entry is not None and not entry.final else None

    @override
    def __getitem__(self, key: OffsetManagerKey) -> OffsetManagerEntry:
        entry = self.find(key)
        if entry is None:
            raise KeyError(key)
        return entry

    @override
    def __setitem__(self, key: OffsetManagerKey, entry: OffsetManagerEntry) -> None:
        row = self._finished.codec.row(key, entry) if entry.final else None
        if row is not None:
            self._finished.put(*row, is_new=self._objects.pop(key, None) is not None)
        else:
            if key not in self._objects:
                self._finished.discard(key)
            self._objects[key] = entry

    @override
    def __delitem__(self, key: OffsetManagerKey) -> None:
        if not self._discard(key):
            raise KeyError(key)
        self._finished.clear_away()

    def _discard(self, key: OffsetManagerKey) -> bool:
        return self._objects.pop(key, None) is not None or self._finished.discard(key)

    @override
    def __len__(self) -> int:
        return len(self._objects) + len(self._finished)

    @override
    def __iter__(self) -> Iterator[OffsetManagerKey]:
        yield from (entry.get_manager_key() for entry in self._finished.view())
        yield from list(self._objects)

    def pending(self) -> list[tuple[OffsetManagerKey, OffsetManagerEntry]]:
        """Return the entries that are being read, or that a crash of the server could still revert."""
        return [(key, entry) for key, entry in self._objects.items() if not entry.final]

    def uncompactable(self) -> list[tuple[OffsetManagerKey, OffsetManagerEntry]]:
        """Return the entries that no watermark replaces: the pending ones, and those of failed objects."""
        objects = [(key, entry) for key, entry in self._objects.items() if entry.failed or not entry.final]
        return objects + [(entry.get_manager_key(), entry) for entry in self._finished.view().failed()]

    def splits_of(self, whole: OffsetManagerKey) -> list[OffsetManagerKey]:
        """Return the keys of an object's splits after the first; they start together, so there is no gap."""
        keys = (whole.of_split(split_number) for split_number in itertools.count(2))
        return list(itertools.takewhile(self.__contains__, keys))

    @property
    def final(self) -> int:
        """Number of packed entries."""
        return len(self._finished)

    def drop(self, compactable: Compactable) -> bool:
        """Drop what a view found to be compactable, as far as it is still the same; return whether any of it is."""
        same = [entry for entry in compactable.entries if self.find(entry.get_manager_key()) == entry]
        for entry in same:
            self._discard(entry.get_manager_key())
            self.floor = max(self.floor, entry.generation)
        return bool(same)

    def clear_away(self) -> None:
        """Give back the memory of dropped positions, when it is much. Call it after the last `drop`."""
        self._finished.clear_away()

    def next_generation(self, key: OffsetManagerKey) -> int:
        """Return a generation that the object never had before."""
        known = self.find(key)
        return max(self.floor, known.generation if known is not None else 0) + 1

    def remove_object(self, key: OffsetManagerKey) -> bool:
        """Drop the position of an object and of all its splits; return False when there is none."""
        known = self.find(key)
        if known is None:
            return False
        for split in self.splits_of(key):
            del self[split]
        del self[key]
        self.floor = max(self.floor, known.generation)
        return True

    def listed(self, key: OffsetManagerKey, version: str) -> tuple[bool, OffsetManagerEntry | None]:
        """Return whether that key's entry is packed, of this version, done and no split; if not, the entry. In one search."""
        entry = self._objects.get(key)
        return (False, entry) if entry is not None else self._finished.listed(key, version)

    def load(self, tables: Tables, chunks: Iterable[RowChunk]) -> None:
        """Load final entries from a snapshot into an empty map."""
        self._finished.codec.restore(tables)
        self._finished.load(chunks)

    def view(self) -> PositionView:
        """Return a view of all current entries. Copies only pending entries."""
        return self._finished.view(list(self._objects.values()))


def position_map(entries: Iterable[OffsetManagerEntry] = ()) -> PositionMap:
    """Return a new map of these positions, each under its own key."""
    positions = PositionMap()
    for entry in entries:
        positions[entry.get_manager_key()] = entry
    return positions


def begin_in(positions: PositionMap, entry: OffsetManagerEntry) -> None:
    """Start a position under its key; it replaces earlier generations of the object and all their splits."""
    key = entry.get_manager_key()
    whole = key.whole()
    first = positions.find(whole)
    if first is not None and not first.is_of(entry):
        if first.split_size:
            for other in positions.splits_of(whole):
                del positions[other]
        del positions[whole]
    positions[key] = entry
