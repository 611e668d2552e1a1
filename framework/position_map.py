"""All positions of a source, by key: the few that are being read as objects, the millions that are finished packed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, overload

from typing_extensions import override

from framework.finished import FinishedTable, FinishedView
from framework.finished_rows import RowCodec

if TYPE_CHECKING:
    from framework.offsets import OffsetManagerEntry, OffsetManagerKey
    from framework.watermark import Watermark

_READING_BYTES = 200
"""What an entry that is being read takes as text beside its key and version, about."""

_PAIR_BYTES = 40
"""A range of skipped records as text, at most."""


class PositionMap(MutableMapping["OffsetManagerKey", "OffsetManagerEntry"]):
    """Key -> entry, as a dict would hold it. An entry is packed when it is finished, and an object again when it is not.

    For one thread at a time; a `view` may be read beside it.

    Args:
        entry_class: what the entries are.
        key_class: what the keys are.
        finished: holds the packed ones; another one for tests.
    """

    def __init__(
        self,
        key_class: type[OffsetManagerKey],
        entry_class: type[OffsetManagerEntry],
        *,
        finished: FinishedTable | None = None,
    ) -> None:
        self._key_class = key_class
        self._reading: dict[OffsetManagerKey, OffsetManagerEntry] = {}
        self._finished = finished if finished is not None else FinishedTable(RowCodec(entry_class))

    def find(self, key: OffsetManagerKey) -> OffsetManagerEntry | None:
        """The entry of that key; None when there is none."""
        entry = self._reading.get(key)
        return entry if entry is not None else self._finished.get(key)

    @override
    def __getitem__(self, key: OffsetManagerKey) -> OffsetManagerEntry:
        entry = self.find(key)
        if entry is None:
            raise KeyError(key)
        return entry

    @override
    def __contains__(self, key: object) -> bool:
        return isinstance(key, self._key_class) and (key in self._reading or key in self._finished)

    @override
    def __setitem__(self, key: OffsetManagerKey, entry: OffsetManagerEntry) -> None:
        if entry.finished:
            self._finished.put(key, entry)
            self._reading.pop(key, None)
        else:
            if key not in self._reading:
                self._finished.discard(key)
            self._reading[key] = entry

    @override
    def __delitem__(self, key: OffsetManagerKey) -> None:
        if self._reading.pop(key, None) is None and not self._finished.discard(key):
            raise KeyError(key)

    @override
    def __len__(self) -> int:
        return len(self._reading) + len(self._finished)

    @override
    def __iter__(self) -> Iterator[OffsetManagerKey]:
        yield from map(self._key_class, self._finished.keys())
        yield from list(self._reading)

    def unfinished(self) -> list[tuple[OffsetManagerKey, OffsetManagerEntry]]:
        """What is being read."""
        return list(self._reading.items())

    @property
    def records_done(self) -> int:
        """The records of all entries together; asks only those that are being read."""
        return self._finished.records_done + sum(entry.records_done for entry in self._reading.values())

    def fold(self, watermark: Watermark) -> tuple[dict[str, int], int]:
        """Drops the entries of objects that are done and that the watermark stands for.

        The shares of a split object go together, when all that are here are done: what is left of one would be taken for a version
        that was begun.

        Returns:
            Prefix -> how many objects' entries went, and the records of these.
        """
        if not watermark:
            return {}, 0
        gone: list[int] = []
        folded: dict[str, int] = {}
        shares: dict[tuple[str, str], list[int]] = {}
        kept = {(entry.bucket, entry.key) for entry in self._reading.values() if entry.cut is not None}
        facts = self._finished.codec.facts
        before = self._finished.records_done
        for number, row in self._finished.rows():
            bucket, key, modified_ms, done, whole = facts(row)
            if not (done and watermark.covers(bucket, key, modified_ms)):
                if not whole:
                    kept.add((bucket, key))
                continue
            if not whole:
                shares.setdefault((bucket, key), []).append(number)
                continue
            gone.append(number)
            _count(folded, watermark, key)
        for (bucket, key), numbers in shares.items():
            if (bucket, key) not in kept:
                gone.extend(numbers)
                _count(folded, watermark, key)
        self._finished.remove(gone)
        return folded, before - self._finished.records_done

    def share_keys(self) -> list[OffsetManagerKey]:
        """The keys of shares, found without looking at each of millions of objects."""
        finished = map(self._key_class, self._finished.other_keys())
        return [key for keys in (finished, self._reading) for key in keys if key.share]

    def finished_version(self, key: OffsetManagerKey) -> str | None:
        """The version of that key's entry, cheaper than the entry; None when it is not finished, or of a share."""
        return self._finished.whole_version(key)

    def view(self) -> PositionView:
        """All entries of this moment. Copies only those that are being read."""
        return PositionView(self._finished.view(), list(self._reading.values()))


def _count(folded: dict[str, int], watermark: Watermark, key: str) -> None:
    place = watermark.place_of(key)
    if place is not None:
        folded[place[0]] = folded.get(place[0], 0) + 1


class PositionView(Sequence["OffsetManagerEntry"]):
    """Positions of one moment, made one by one as they are asked for. Never changes; threads may share it.

    Equal to any sequence of equal entries in the same order: finished ones first, as they were finished.
    """

    def __init__(self, finished: FinishedView | None, reading: Sequence[OffsetManagerEntry]) -> None:
        self._finished = finished
        self._reading = reading

    @override
    def __len__(self) -> int:
        return len(self._reading) + (len(self._finished) if self._finished is not None else 0)

    @override
    def __iter__(self) -> Iterator[OffsetManagerEntry]:
        if self._finished is not None:
            yield from self._finished
        yield from self._reading

    @overload
    def __getitem__(self, index: int) -> OffsetManagerEntry: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[OffsetManagerEntry]: ...

    @override
    def __getitem__(self, index: int | slice) -> OffsetManagerEntry | Sequence[OffsetManagerEntry]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return list(itertools.islice(self, start, stop, step) if step > 0 else list(self)[index])
        at = index + len(self) if index < 0 else index
        found = next(itertools.islice(self, at, None), None) if at >= 0 else None
        if found is None:
            raise IndexError(index)
        return found

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(left == right for left, right in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    @override
    def __repr__(self) -> str:
        return f"<{len(self)} positions>"

    @property
    def records_done(self) -> int:
        """The records of all positions together."""
        finished = self._finished.records_done if self._finished is not None else 0
        return finished + sum(entry.records_done for entry in self._reading)

    def parts(self, most_bytes: int) -> list[PositionView]:
        """The same in pieces that take about so much as text, at least one. Makes no entry."""
        *parts, last = self._finished.parts(most_bytes) if self._finished is not None else [None]
        views = [PositionView(part, ()) for part in parts]
        first, size = 0, last.stored_bytes if last is not None else 0
        for at, entry in enumerate(self._reading):
            more = len(entry.key) + len(entry.version) + _READING_BYTES + _PAIR_BYTES * len(entry.skipped)
            if size and size + more > most_bytes:
                views.append(PositionView(last, self._reading[first:at]))
                last, first, size = None, at, 0
            size += more
        return [*views, PositionView(last, self._reading[first:])]
