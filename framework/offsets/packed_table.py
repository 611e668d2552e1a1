"""Packed positions of finished objects: about 100 bytes each instead of 765.

    key -> row number -> block of rows -> entry

Rows (`framework.offsets.packed_row`) are append-only, in blocks of a few thousand. Replaced and removed rows are marked
as dead, and the table is rewritten when a fifth of the rows are dead. So a view costs almost nothing: the current blocks,
and which rows are dead.

The numbers of the newest rows are in a dict. Those of all others are in an array, sorted by 32 bits of the key's hash; the
first bits say where in it to look. The row's own key confirms a match: keys with the same hash are never confused. The hash
is Python's, which has a secret in each process: keys with one hash that someone chose would make each look-up slow.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from framework.offsets.packed_row import RowCodec, records_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from framework.model.positions import OffsetManagerEntry, OffsetManagerKey

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
        rows: their bytes; immutable once the block is full.
        ends: end of each row.
    """

    __slots__ = ("ends", "rows")

    def __init__(self) -> None:
        self.rows: bytes | bytearray | memoryview = bytearray()
        self.ends = array("I")

    @classmethod
    def of(cls, chunk: RowChunk) -> _Block:
        """Return a block over the bytes of a snapshot: a copy of each would leave holes in the heap."""
        block = cls()
        block.rows = chunk.rows
        block.ends = memoryview(chunk.ends).cast("I")  # type: ignore[assignment] # reads like an array
        return block

    def __len__(self) -> int:
        return len(self.ends)

    def append(self, row: bytes) -> None:
        self.rows += row  # type: ignore[operator] # a block that is not full has a bytearray
        self.ends.append(len(self.rows))

    def start(self, number: int) -> int:
        return self.ends[number - 1] if number else 0

    def row(self, number: int) -> bytes:
        return bytes(self.rows[self.start(number) : self.ends[number]])

    def frozen(self) -> _Block:
        """Return an immutable copy."""
        copy = _Block()
        copy.rows, copy.ends = bytes(self.rows), self.ends[:]
        return copy

    def growing(self) -> _Block:
        """Return a copy that can grow."""
        copy = _Block()
        copy.rows, copy.ends = bytearray(self.rows), array("I", self.ends)
        return copy


class FinishedTable:
    """Entries by key. One thread at a time; a `view` may be read concurrently.

    Attributes:
        codec: packs the entries.
        records_done: total records of all entries, those of an object with parts once.

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
        self.codec = self._codec = codec
        self._hash_of = hash_of
        self._block_bits = block_bits
        self._in_block = (1 << block_bits) - 1
        self._least_newest = newest
        self.records_done = 0
        self._clear()

    def _clear(self) -> None:
        self._blocks = [_Block()]
        self._dead = bytearray()
        self._dead_rows = 0
        self.records_done = 0
        self._newest: dict[bytes, int] = {}
        self._absent: bytes | None = None  # a head that has no row: a new object is searched for twice
        self._others = array("Q")  # hash << 32 | row number, sorted
        self._starts = array("I", (0, 0))  # of each group of hashes with the same first bits, its start in _others
        self._group_shift = _HASH_BITS

    def __len__(self) -> int:
        return len(self._dead) - self._dead_rows

    def get(self, key: OffsetManagerKey) -> OffsetManagerEntry | None:
        """Return the entry of that key, equal in every field to the stored entry."""
        row = self._row_of(key)
        return self._codec.entry_of(row) if row is not None else None

    def listed(self, key: OffsetManagerKey, version: str) -> tuple[bool, OffsetManagerEntry | None]:
        """Return whether that key's entry is of this version and no split; if not, the entry. In one search."""
        row = self._row_of(key)
        if row is None:
            return False, None
        if self._codec.whole_version(row) == version:
            return True, None
        return False, self._codec.entry_of(row)

    def __contains__(self, key: OffsetManagerKey) -> bool:
        return self._row_of(key) is not None

    def put(self, key: OffsetManagerKey, entry: OffsetManagerEntry) -> None:
        """Store an entry; it replaces the previous entry of its key."""
        head, row = self._packed(key, entry)
        known = self._find(head)
        if known is not None:
            if self._row(known) == row:
                return
            codec = self._codec
            self._bury(known)
            if self._codec is not codec:
                head, row = self._packed(key, entry)
        self._append(head, row, records_of(entry))

    def add(self, key: OffsetManagerKey, entry: OffsetManagerEntry) -> None:
        """Store an entry whose key has none: `put` without a search."""
        self._append(*self._packed(key, entry), records_of(entry))

    def _packed(self, key: OffsetManagerKey, entry: OffsetManagerEntry) -> tuple[bytes, bytes]:
        """Return the head and the whole row of an entry."""
        head = self._codec.head(key, add=True)
        assert head is not None
        return head, head + self._codec.body(key, entry)

    def discard(self, key: OffsetManagerKey) -> bool:
        """Remove the entry of that key; return False when there is none."""
        head = self._codec.head(key)
        number = self._find(head) if head is not None else None
        if number is None:
            return False
        self._bury(number)
        return True

    def load(self, chunks: Iterable[RowChunk]) -> None:
        """Load the chunks of `FinishedView.chunks` into an empty table. Takes a tenth of the time of single puts.

        Raises:
            IndexError, TypeError, ValueError: these are no such chunks.
        """
        import numpy as np  # noqa: PLC0415 - not loaded for few objects, or for an import only

        self._blocks, self._absent = [], None
        whole = self._in_block + 1
        for chunk in chunks:
            block = _Block.of(chunk)
            if len(block) > whole or len(self._others) % whole:  # a row's number says its block
                raise ValueError("rows that do not fill a block")
            ends = np.frombuffer(chunk.ends, np.uint32)
            starts = _starts_of(ends)
            raw = np.frombuffer(chunk.rows, np.uint8)
            bodies = self._codec.checked_bodies(raw, starts, ends)
            rows, hash_of, spans = chunk.rows, self._hash_of, zip(starts.tolist(), bodies.tolist(), strict=True)
            hashes = (hash_of(rows[start:end]) & _LOW for start, end in spans)
            first = len(self._others)
            self._add(hashes, np.arange(first, first + len(block), dtype=np.uint64))
            self.records_done += self._codec.sum_records(raw, bodies)
            self._blocks.append(block)
        self._dead = bytearray(len(self._others))
        self._sort()
        last = self._blocks[-1] if self._blocks else _Block()
        if not self._blocks or len(last) > self._in_block:
            self._blocks.append(_Block())
        else:
            self._blocks[-1] = last.growing()

    def rows_to_compact(self, before_ms: int) -> Iterator[tuple[int, bytes]]:
        """Yield the current rows that a compaction must look at, with their numbers.

        `remove` accepts the numbers until the next change. Objects too young to be compacted, usually most, take no step each.

        Args:
            before_ms: no object last modified at this time or later is compacted.
        """
        view, codec = self.view(), self._codec
        return view.rows_where(lambda block: codec.may_be_compacted(block.raw, block.bodies, before_ms))

    def remove(self, numbers: Sequence[int], records: int) -> None:
        """Remove many rows together.

        Args:
            numbers: the rows.
            records: the sum of their `RowFacts.records`.
        """
        for number in numbers:
            self._dead[number] = 1
        self.records_done -= records
        self._dead_rows += len(numbers)
        # enough: some thousands, and a quarter of those that live, since the others are copied
        if self._dead_rows > max(self._in_block, len(self) >> 2):
            self._clear_away()

    def keys(self) -> Iterator[tuple[tuple[str, str], ...]]:
        """Return the properties of every current key."""
        return (self._codec.key_of(row) for _, row in self.view().rows())

    def view(self) -> FinishedView:
        """Return a view of the current entries; later changes of the table do not affect it."""
        return FinishedView(self._codec, list(self._blocks), bytes(self._dead), self._block_bits)

    # ---- rows

    def _row_of(self, key: OffsetManagerKey) -> bytes | None:
        head = self._codec.head(key)
        number = self._find(head) if head is not None else None
        return self._row(number) if number is not None else None

    def _row(self, number: int) -> bytes:
        return self._blocks[number >> self._block_bits].row(number & self._in_block)

    def _append(self, head: bytes, row: bytes, records: int) -> None:
        block = self._blocks[-1]
        if len(block) > self._in_block:
            self._blocks[-1] = block.frozen()
            block = _Block()
            self._blocks.append(block)
        block.append(row)
        self._newest[head] = len(self._dead)
        self._absent = None
        self._dead.append(0)
        self.records_done += records
        if len(self._newest) >= max(self._least_newest, len(self._others) >> 6):
            self._merge_newest()

    def _bury(self, number: int) -> None:
        self.remove([number], records_of(self._codec.entry_of(self._row(number))))

    def _clear_away(self) -> None:
        """Copy the live rows, block by block; existing views stay unchanged.

        Templates that no row uses any more go with the dead rows: generations rise over the months, and each is one.
        """
        blocks, dead, former = self._blocks[::-1], self._dead, self._codec
        if former.is_crowded:
            self.codec = self._codec = former.successor()
        records = self.records_done
        self._clear()
        first, rows = 0, self._in_block + 1
        while blocks:
            for _, former_row in _live_rows([blocks.pop()], dead[first : first + rows], self._block_bits):
                row = former_row if self._codec is former else self._codec.repack(former_row, former)
                self._append(self._codec.head_of(row), row, 0)
            first += rows
        self.records_done = records

    # ---- row numbers

    def _find(self, head: bytes) -> int | None:
        if head is self._absent:
            return None
        number = self._newest.get(head)
        if number is not None and not self._dead[number]:
            return number
        hashed = self._hash_of(head) & _LOW
        group, starts = hashed >> self._group_shift, self._starts
        for at in range(starts[group], starts[group + 1]):
            other = self._others[at]
            if other >> _HASH_BITS == hashed:
                number = other & _LOW
                block = self._blocks[number >> self._block_bits]
                start = block.start(number & self._in_block)
                if not self._dead[number] and block.rows[start : start + len(head)] == head:
                    return number
        self._absent = head
        return None

    def _merge_newest(self) -> None:
        """Move the numbers of the dict into the array: some hundredths of a second for a million."""
        import numpy as np  # noqa: PLC0415 - not loaded for few objects, or for an import only

        hashes = (self._hash_of(head) & _LOW for head in self._newest)
        self._add(hashes, np.fromiter(self._newest.values(), np.uint64, len(self._newest)))
        self._newest = {}
        self._sort()

    def _add(self, hashes: Iterable[int], numbers: NDArray[np.uint64]) -> None:
        """Append to the array, in place: it has 8 MB for a million rows. `_sort` must follow."""
        import numpy as np  # noqa: PLC0415 - as above

        added = np.fromiter(hashes, np.uint64, len(numbers))
        added <<= np.uint64(_HASH_BITS)
        added |= numbers
        self._others.frombytes(added.tobytes())

    def _sort(self) -> None:
        """Sort the array, and group it by its first bits. On average a group has four to eight numbers."""
        import numpy as np  # noqa: PLC0415 - as above

        numbers = np.frombuffer(self._others, np.uint64)
        numbers.sort()
        bits = max(1, len(numbers).bit_length() - 3)
        firsts = np.arange(1 << bits, dtype=np.uint64) << np.uint64(2 * _HASH_BITS - bits)
        self._starts = array("I", numbers.searchsorted(firsts).astype(np.uint32).tobytes())
        self._starts.append(len(numbers))
        self._group_shift = _HASH_BITS - bits


def _starts_of(ends: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the start of each row."""
    starts: NDArray[np.uint32] = ends.copy()
    starts[1:], starts[:1] = ends[:-1], 0
    return starts


def _live_rows(blocks: Sequence[_Block], dead: bytes | bytearray, block_bits: int) -> Iterator[tuple[int, bytes]]:
    for at, block in enumerate(blocks):
        first = at << block_bits
        for number, is_dead in enumerate(dead[first : first + (1 << block_bits)]):
            if not is_dead:
                yield first + number, block.row(number)


class _BlockColumns(NamedTuple):
    """The rows of a block in a view: bytes, and as an array; of each row its start, its body's, its end, whether it is live."""

    rows: bytes
    raw: NDArray[np.uint8]
    starts: NDArray[np.uint32]
    bodies: NDArray[np.uint32]
    ends: NDArray[np.uint32]
    live: NDArray[np.bool_]


class FinishedView:
    """A snapshot of the entries. Threads may share it.

    The last block may still grow: `dead` ends at the view's end.
    """

    def __init__(self, codec: RowCodec, blocks: Sequence[_Block], dead: bytes, block_bits: int) -> None:
        self._codec = codec
        self._blocks = blocks
        self._dead = dead
        self._block_bits = block_bits

    def __len__(self) -> int:
        return len(self._dead) - self._dead.count(1)

    def __iter__(self) -> Iterator[OffsetManagerEntry]:
        return (self._codec.entry_of(row) for _, row in self.rows())

    def rows(self) -> Iterator[tuple[int, bytes]]:
        """Yield the live rows with their numbers, in the order of insertion."""
        return _live_rows(self._blocks, self._dead, self._block_bits)

    def chunks(self) -> Iterator[RowChunk]:
        """Yield the live rows in chunks of a block's size, except those without a stored form."""
        import numpy as np  # noqa: PLC0415 - not loaded for few objects, or for an import only

        whole = 1 << self._block_bits
        rows, ends = b"", np.zeros(0, np.uint32)
        for more, more_ends in map(self._stored, range(len(self._blocks))):
            ends = np.concatenate((ends, more_ends + np.uint32(len(rows))))
            rows += more
            if len(ends) >= whole:
                cut = int(ends[whole - 1])
                yield RowChunk(rows[:cut], ends[:whole].tobytes())
                rows, ends = rows[cut:], ends[whole:] - np.uint32(cut)
        if len(ends):
            yield RowChunk(rows, ends.tobytes())

    def _stored(self, at: int) -> tuple[bytes, NDArray[np.uint32]]:
        """Return the live rows of a block that have a stored form, and their ends; without a step per row."""
        import numpy as np  # noqa: PLC0415 - as above

        block = self._block(at)
        kept, ends = block.live & self._are_stored(block), block.ends
        borders = np.append(block.starts, ends[-1:])[np.flatnonzero(np.diff(kept, prepend=False, append=False))]
        rows = [block.rows[begin:end] for begin, end in borders.reshape(-1, 2).tolist()]
        return b"".join(rows), (ends - block.starts)[kept].cumsum(dtype=np.uint32)

    def others(self) -> Iterator[OffsetManagerEntry]:
        """Return the entries of the rows without a stored form."""
        return (self._codec.entry_of(row) for _, row in self.rows_where(lambda block: ~self._are_stored(block)))

    def rows_where(self, which: Callable[[_BlockColumns], NDArray[np.bool_]]) -> Iterator[tuple[int, bytes]]:
        """Yield the live rows of which this is true, with their numbers; without a step for each of the others.

        Args:
            which: returns of which rows of a block it is true.
        """
        for at in range(len(self._blocks)):
            block = self._block(at)
            chosen = (block.live & which(block)).nonzero()[0]
            places = chosen.tolist(), block.starts[chosen].tolist(), block.ends[chosen].tolist()
            for number, begin, end in zip(*places, strict=True):
                yield (at << self._block_bits) + number, block.rows[begin:end]

    def _are_stored(self, block: _BlockColumns) -> NDArray[np.bool_]:
        return self._codec.are_stored(block.raw, block.bodies, block.ends - block.starts)

    def _block(self, at: int) -> _BlockColumns:
        import numpy as np  # noqa: PLC0415 - as above

        first = at << self._block_bits
        live = np.frombuffer(self._dead[first : first + (1 << self._block_bits)], np.uint8) == 0
        ends = np.array(self._blocks[at].ends[: len(live)], np.uint32)
        starts, rows = _starts_of(ends), bytes(self._blocks[at].rows)
        raw = np.frombuffer(rows, np.uint8)
        return _BlockColumns(rows, raw, starts, starts + self._codec.name_lengths(raw, starts), ends, live)

    @property
    def tables(self) -> dict[str, Any]:
        """The tables that the rows refer to."""
        return self._codec.tables()
