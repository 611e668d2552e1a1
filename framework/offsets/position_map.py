"""All positions of a source, by key: pending positions as objects, millions of final positions packed."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from typing_extensions import override

from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.offsets.packed_row import RowCodec, Tables
from framework.offsets.packed_table import FinishedTable, FinishedView, RowChunk

if TYPE_CHECKING:
    from framework.offsets.watermark import Watermark


class Compactable(NamedTuple):
    """The positions of an object that a watermark replaces.

    Attributes:
        places: the row of the position, or those of all splits; a position itself where it has none.
        codec: the codec of the rows.
        prefix: the prefix under which the object counts as compacted.
        generation: the generation of the positions.
        records: how many records they add to their source.
    """

    places: Sequence[bytes | OffsetManagerEntry]
    codec: RowCodec
    prefix: str
    generation: int
    records: int


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
    def __contains__(self, key: object) -> bool:
        return isinstance(key, OffsetManagerKey) and (key in self._objects or key in self._finished)

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
        if self._objects.pop(key, None) is None and not self._finished.discard(key):
            raise KeyError(key)

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

    @property
    def records_done(self) -> int:
        """Total records of all entries, those of an object with parts once; each row is read."""
        return self._finished.view().sum_records() + sum(map(_records_of, self._objects.values()))

    def drop(self, compactable: Compactable) -> bool:
        """Drop what a view found to be compactable; return whether it was still here."""
        rows = [place for place in compactable.places if isinstance(place, bytes)]
        dropped = [self._finished.discard_row(row, compactable.codec) for row in rows]
        for entry in compactable.places:
            if not isinstance(entry, bytes):
                key = entry.get_manager_key()
                dropped.append(self._objects.get(key) is entry)
                if dropped[-1]:
                    del self._objects[key]
        if any(dropped):
            self.floor = max(self.floor, compactable.generation)
        return any(dropped)

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
        """Return whether that key's entry is final, of this version, done and no split; if not, the entry. In one search."""
        entry = self._objects.get(key)
        if entry is not None:
            is_whole = entry.final and entry.whole and entry.version == version and not entry.failed
            return is_whole, None if is_whole else entry
        return self._finished.listed(key, version)

    def load(self, tables: Tables, chunks: Iterable[RowChunk]) -> None:
        """Load final entries from a snapshot into an empty map."""
        self._finished.codec.restore(tables)
        self._finished.load(chunks)

    def view(self) -> PositionView:
        """Return a view of all current entries. Copies only pending entries."""
        return PositionView(self._finished.view(), list(self._objects.values()))


class PositionView:
    """A snapshot of positions, each entry built on access. Immutable; threads may share it.

    Equal to any sequence of equal entries in the same order: rows first, in the order in which they became final.
    """

    def __init__(self, finished: FinishedView, objects: Sequence[OffsetManagerEntry]) -> None:
        self.finished = finished
        self._objects = objects

    def __len__(self) -> int:
        return len(self._objects) + len(self.finished)

    def __iter__(self) -> Iterator[OffsetManagerEntry]:
        yield from self.finished
        yield from self._objects

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PositionView | Sequence):
            return NotImplemented
        return len(self) == len(other) and all(left == right for left, right in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    @override
    def __repr__(self) -> str:
        return f"<{len(self)} positions>"

    def compactable(self, watermark: Watermark) -> Iterator[Compactable]:
        """Yield the positions of done objects that the watermark covers.

        The splits of an object are compacted together, when all splits present are done. A split left behind would look
        like a started version.
        """
        splits: defaultdict[tuple[str, str], list[Compactable | None]] = defaultdict(list)
        rows = self.finished.older(watermark.latest_ms) if watermark else ()
        places: Iterable[tuple[bytes | OffsetManagerEntry, OffsetManagerEntry]]
        places = itertools.chain(rows, zip(self._objects, self._objects, strict=True))
        for place, entry in places:
            found = prefix = None
            if entry.final and entry.done:
                prefix = watermark.prefix_over(entry.bucket, entry.key, entry.modified_ms)
            if prefix is not None:
                found = Compactable([place], self.finished.codec, prefix, entry.generation, _records_of(entry))
            if not entry.whole:
                splits[entry.bucket, entry.key].append(found)
            elif found is not None:
                yield found
        for of_object in splits.values():
            covered = list(filter(None, of_object))
            if len(covered) == len(of_object):
                yield covered[0]._replace(
                    places=[place for one in covered for place in one.places],
                    generation=max(one.generation for one in covered),
                    records=sum(one.records for one in covered),
                )

    @property
    def tables(self) -> Tables:
        """The tables that the rows of `chunks` refer to."""
        return self.finished.tables

    def chunks(self) -> Iterator[RowChunk]:
        """Yield the final entries in the form of a snapshot."""
        return self.finished.chunks()

    def others(self) -> Sequence[OffsetManagerEntry]:
        """Return all entries that are in no chunk."""
        return self._objects


def _records_of(entry: OffsetManagerEntry) -> int:
    """Return how many records an entry adds to its source: the parts of an object count once."""
    return entry.records_done if entry.counts_object else 0


def position_map(entries: Iterable[OffsetManagerEntry] = ()) -> PositionMap:
    """Return a new map of these positions, each under its own key."""
    positions = PositionMap()
    for entry in entries:
        positions[entry.get_manager_key()] = entry
    return positions


def begin_in(positions: PositionMap, entry: OffsetManagerEntry) -> None:
    """Start a position under its key; it replaces earlier generations of the object and all their splits."""
    key = entry.get_manager_key()
    whole = key if entry.split_number <= 1 else key.whole()
    first = positions.find(whole)
    if first is not None and not first.is_of(entry):
        if first.split_size:
            for other in positions.splits_of(whole):
                del positions[other]
        del positions[whole]
    positions[key] = entry
