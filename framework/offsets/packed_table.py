"""Packed positions of finished objects: about 100 bytes each instead of 765.

    key -> row number -> block of rows -> entry

Rows (`framework.offsets.packed_row`) are append-only, in blocks of a few thousand. Replaced and removed rows are marked
as dead, and the table is rewritten when most rows are dead. So a view costs almost nothing: the current blocks, and
which rows are dead. The few entries that have no row are kept as they are.

The numbers of the newest rows are in a dict. Those of all others are in an array, sorted by 32 bits of the key's hash.
The row's own key confirms a match: keys with the same hash are never confused. The hash is Python's, which has a secret
in each process: keys with one hash that someone chose would make each look-up slow.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from typing_extensions import override

from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.offsets.packed_row import HEAD, RowCodec, RowFacts, facts_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BLOCK_BITS = 12
"""4,096 rows per block: about 300 kB."""

_HASH_BITS = 32
_LOW = (1 << _HASH_BITS) - 1
NEWEST = 1 << 12
"""Minimum number of rows in the dict before they are merged into the array; with many rows, a 64th of them."""


@attrs.frozen
class RowChunk:
    """A chunk of rows in a snapshot.

    Attributes:
        rows: the rows, concatenated.
        ends: end of each row, u32 each.
    """

    rows: bytes | memoryview
    ends: bytes | memoryview


class _Block:
    """A block of rows.

    Attributes:
        rows: their bytes, in a bytearray until the block is full.
        ends: end of each row.
    """

    __slots__ = ("ends", "rows")

    def __init__(self, rows: Any, ends: Any) -> None:
        self.rows = rows
        self.ends = ends

    def start(self, number: int) -> int:
        return self.ends[number - 1] if number else 0

    def row(self, number: int) -> bytes:
        return bytes(self.rows[self.start(number) : self.ends[number]])


class FinishedTable:
    """Entries by key. One thread at a time; a `view` may be read concurrently.

    Args:
        codec: packs the entries.
        hash_of: hash of a row's head; replaceable for tests.
        block_bits: a block has two to the power of this many rows; smaller for tests.
        newest: minimum number of rows in the dict before they are merged into the array; smaller for tests.
    """

    def __init__(
        self,
        codec: RowCodec,
        *,
        hash_of: Callable[[bytes | memoryview], int] = hash,
        block_bits: int = BLOCK_BITS,
        newest: int = NEWEST,
    ) -> None:
        self._codec = codec
        self._hash_of = hash_of
        self._block_bits = block_bits
        self._in_block = (1 << block_bits) - 1
        self._least_newest = newest
        self._without_row: dict[OffsetManagerKey, OffsetManagerEntry] = {}
        self._clear()

    def _clear(self) -> None:
        self._blocks: list[_Block] = []
        self._dead = bytearray()
        self._dead_rows = 0
        self._newest: dict[bytes, int] = {}
        self._others = array("Q")  # hash << 32 | row number, sorted

    def __len__(self) -> int:
        return len(self._dead) - self._dead_rows + len(self._without_row)

    def get(self, key: OffsetManagerKey) -> OffsetManagerEntry | None:
        """Return the entry of that key, equal in every field to the stored entry."""
        row = self._row_of(key)
        return self._codec.entry_of(row) if row is not None else self._without_row.get(key)

    def listed(self, key: OffsetManagerKey, version: str) -> tuple[bool, OffsetManagerEntry | None]:
        """Return whether that key's entry is of this version and no split; if not, the entry. In one search."""
        row = self._row_of(key)
        if row is not None:
            is_listed = self._codec.whole_version(row) == version
            return is_listed, None if is_listed else self._codec.entry_of(row)
        entry = self._without_row.get(key)
        is_listed = entry is not None and entry.whole and entry.version == version
        return is_listed, None if is_listed else entry

    def __contains__(self, key: OffsetManagerKey) -> bool:
        return self._row_of(key) is not None or key in self._without_row

    def add(self, key: OffsetManagerKey, entry: OffsetManagerEntry) -> None:
        """Store an entry whose key has none."""
        packed = self._codec.pack(key, entry)
        if packed is not None:
            self._append(*packed)
        else:
            self._without_row[key] = entry

    def discard(self, key: OffsetManagerKey) -> bool:
        """Remove the entry of that key; return False when there is none."""
        head = self._codec.head(key)
        number = self._find(head) if head is not None else None
        if number is None:
            return self._without_row.pop(key, None) is not None
        self.remove([number])
        return True

    def load(self, tables: Mapping[str, Any], chunks: Iterable[RowChunk]) -> None:
        """Load the rows of a view into an empty table. Takes a tenth of the time of single entries.

        Raises:
            KeyError, TypeError, ValueError, IndexError: the stored form is not valid.
        """
        import numpy as np  # noqa: PLC0415 - not loaded for few objects, or for an import only

        self._codec.restore(tables)
        for chunk in chunks:  # used where it is: a copy of each would leave holes in the heap
            self._blocks.append(_Block(chunk.rows, memoryview(chunk.ends).cast("I")))
            ends, raw = np.frombuffer(chunk.ends, np.uint32).astype(np.int64), np.frombuffer(chunk.rows, np.uint8)
            starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
            bodies = starts + HEAD.size + raw[starts[:, None] + np.arange(4, HEAD.size)].view("<u4")[:, 0]
            if (bodies >= ends).any() or ends[-1] != len(raw):
                raise ValueError("a row without a body")
            rows, hash_of, first = chunk.rows, self._hash_of, len(self._others)
            hashes = (hash_of(rows[start:end]) for start, end in zip(starts.tolist(), bodies.tolist(), strict=True))
            self._add(hashes, np.arange(first, first + len(ends), dtype=np.uint64))
        self._dead = bytearray(len(self._others))
        self._sort()
        if self._blocks:
            last = self._blocks[-1]
            self._blocks[-1] = _Block(bytearray(last.rows), array("I", last.ends))

    def facts(self) -> Iterator[tuple[int | OffsetManagerKey, RowFacts]]:
        """Yield the facts of every entry with its place, which `remove` accepts until the next change."""
        for number, row in self.view().rows():
            yield number, self._codec.facts(row)
        for key, entry in self._without_row.items():
            yield key, facts_of(entry)

    def remove(self, places: Collection[int | OffsetManagerKey]) -> None:
        """Remove these entries together."""
        for place in places:
            if isinstance(place, int):
                self._dead[place] = 1
                self._dead_rows += 1
            else:
                del self._without_row[place]
        if self._dead_rows > max(self._in_block, len(self)):
            self._clear_away()

    def view(self, pending: Iterable[OffsetManagerEntry] = ()) -> PositionView:
        """Return a view of the current entries and these; later changes of the table do not affect it."""
        others = [*self._without_row.values(), *pending]
        return PositionView(self._codec, list(self._blocks), bytes(self._dead), self._block_bits, others)

    # ---- rows

    def _row_of(self, key: OffsetManagerKey) -> bytes | None:
        head = self._codec.head(key)
        number = self._find(head) if head is not None else None
        return self._blocks[number >> self._block_bits].row(number & self._in_block) if number is not None else None

    def _append(self, head: bytes, row: bytes) -> None:
        number = len(self._dead)
        if not number & self._in_block:
            if self._blocks:
                self._blocks[-1].rows = bytes(self._blocks[-1].rows)  # without room to grow
            self._blocks.append(_Block(bytearray(), array("I")))
        block = self._blocks[-1]
        block.rows += row
        block.ends.append(len(block.rows))
        self._newest[head] = number
        self._dead.append(0)
        if len(self._newest) >= max(self._least_newest, len(self._others) >> 6):
            self._merge_newest()

    def _clear_away(self) -> None:
        """Copy the live rows, block by block; existing views stay unchanged.

        Templates that no row uses any more go with the dead rows: generations rise over the months, and each is one.
        """
        blocks, dead, former = self._blocks[::-1], self._dead, self._codec
        if former.is_crowded:
            self._codec = former.successor()
        self._clear()
        first, rows = 0, self._in_block + 1
        while blocks:
            for _, row in _live_rows([blocks.pop()], dead[first : first + rows], self._block_bits):
                if self._codec is former:
                    self._append(former.head_of(row), row)
                else:
                    entry = former.entry_of(row)
                    self.add(entry.get_manager_key(), entry)
            first += rows

    # ---- row numbers

    def _find(self, head: bytes) -> int | None:
        number = self._newest.get(head)
        if number is not None and not self._dead[number]:
            return number
        others, hashed = self._others, (self._hash_of(head) & _LOW) << _HASH_BITS
        for at in range(bisect_left(others, hashed), len(others)):
            number = others[at] - hashed
            if number > _LOW:
                break
            block = self._blocks[number >> self._block_bits]
            start = block.start(number & self._in_block)
            if not self._dead[number] and block.rows[start : start + len(head)] == head:
                return number
        return None

    def _merge_newest(self) -> None:
        """Move the numbers of the dict into the array: some hundredths of a second for a million."""
        import numpy as np  # noqa: PLC0415 - not loaded for few objects, or for an import only

        self._add(map(self._hash_of, self._newest), np.fromiter(self._newest.values(), np.uint64, len(self._newest)))
        self._newest = {}
        self._sort()

    def _add(self, hashes: Iterable[int], numbers: NDArray[np.uint64]) -> None:
        """Append to the array, in place: it has 8 MB for a million rows. `_sort` must follow."""
        import numpy as np  # noqa: PLC0415 - as above

        added = np.fromiter((hashed & _LOW for hashed in hashes), np.uint64, len(numbers))
        added <<= np.uint64(_HASH_BITS)
        added |= numbers
        self._others.frombytes(added.tobytes())

    def _sort(self) -> None:
        import numpy as np  # noqa: PLC0415 - as above

        np.frombuffer(self._others, np.uint64).sort()


def _live_rows(blocks: Sequence[_Block], dead: bytes | bytearray, block_bits: int) -> Iterator[tuple[int, bytes]]:
    for at, block in enumerate(blocks):
        first = at << block_bits
        for number, is_dead in enumerate(dead[first : first + (1 << block_bits)]):
            if not is_dead:
                yield first + number, block.row(number)


class PositionView:
    """A snapshot of positions, each entry built on access. Threads may share it.

    Equal to any sequence of equal entries in the same order: packed entries first, in the order in which they became final.

    The last block may still grow: `dead` ends at the view's end.
    """

    def __init__(
        self,
        codec: RowCodec,
        blocks: Sequence[_Block],
        dead: bytes,
        block_bits: int,
        others: Sequence[OffsetManagerEntry],
    ) -> None:
        self._codec = codec
        self._blocks = blocks
        self._dead = dead
        self._block_bits = block_bits
        self.others = others

    def __len__(self) -> int:
        return len(self._dead) - self._dead.count(1) + len(self.others)

    def __iter__(self) -> Iterator[OffsetManagerEntry]:
        yield from (self._codec.entry_of(row) for _, row in self.rows())
        yield from self.others

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PositionView | Sequence):
            return NotImplemented
        return len(self) == len(other) and all(left == right for left, right in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    @override
    def __repr__(self) -> str:
        return f"<{len(self)} positions>"

    def rows(self) -> Iterator[tuple[int, bytes]]:
        """Yield the live rows with their numbers, in the order of insertion."""
        return _live_rows(self._blocks, self._dead, self._block_bits)

    def chunks(self) -> Iterator[RowChunk]:
        """Yield the live rows in chunks of a block's size: the form of a snapshot."""
        rows, ends = bytearray(), array("I")
        for _, row in self.rows():
            if len(ends) == 1 << self._block_bits:
                yield RowChunk(bytes(rows), ends.tobytes())
                rows, ends = bytearray(), array("I")
            rows += row
            ends.append(len(rows))
        if ends:
            yield RowChunk(bytes(rows), ends.tobytes())

    @property
    def tables(self) -> dict[str, Any]:
        """The tables that the rows of `chunks` refer to."""
        return self._codec.tables()
