"""Packed positions of finished objects: about 100 bytes each instead of 765.

    key -> row number -> block of rows -> entry

Rows (`framework.offsets.packed_row`) are append-only, in blocks of a few thousand. Replaced and removed rows are marked
as dead, and the table is rewritten when a fifth of the rows are dead. So a view costs almost nothing: the current blocks,
and which rows are dead.

The numbers of the newest rows are in a dict. Those of all others are in an array, sorted by 32 bits of the key's hash. The
row's own key confirms a match: keys with the same hash are never confused. The hash
is Python's, which has a secret in each process: keys with one hash that someone chose would make each look-up slow.
"""

from __future__ import annotations

import mmap
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import attrs

from framework.offsets.packed_row import RowCodec, Tables

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from framework.model.positions import OffsetManagerEntry, OffsetManagerKey

BLOCK_BITS = 12
"""4,096 rows per block: about 300 kB."""

ROOM_BYTES = 4 << 20
"""Some ten blocks: what one of them takes goes back to the system with the last of them."""

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


class _Room:
    """Memory outside of the heap, which messages of the log come to and leave meanwhile: they would leave holes, 10 % of all."""

    def __init__(self) -> None:
        self._left = memoryview(b"")

    def keep(self, data: bytes | memoryview) -> memoryview:
        """Return a copy."""
        size = len(data)
        if size > len(self._left):
            self._left = memoryview(mmap.mmap(-1, max(size, ROOM_BYTES), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        kept, self._left = self._left[:size], self._left[size:]
        kept[:] = data
        return kept


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
    def of(cls, chunk: RowChunk, room: _Room) -> _Block:
        """Return a block over the bytes of a snapshot, kept in that room."""
        block = cls()
        block.rows = room.keep(chunk.rows)
        block.ends = room.keep(chunk.ends).cast("I")  # type: ignore[assignment] # reads like an array
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
    """

    _hash_of = staticmethod(hash)
    _block_bits = BLOCK_BITS
    _least_newest = NEWEST

    def __init__(self, codec: RowCodec) -> None:
        self.codec = codec
        self._in_block = (1 << self._block_bits) - 1
        self._clear()

    def _clear(self) -> None:
        self._blocks = [_Block()]
        self._dead = bytearray()
        self._dead_rows = 0
        self._newest: dict[bytes, int] = {}
        self._absent: bytes | None = None  # a head that has no row: a new object is searched for twice
        self._others = array("Q")  # hash << 32 | row number, sorted

    def __len__(self) -> int:
        return len(self._dead) - self._dead_rows

    def get(self, key: OffsetManagerKey) -> OffsetManagerEntry | None:
        """Return the entry of that key, equal in every field to the stored entry."""
        row = self._row_of(key)
        return self.codec.entry_of(row) if row is not None else None

    def listed(self, key: OffsetManagerKey, version: str) -> tuple[bool, OffsetManagerEntry | None]:
        """Return whether that key's entry is of this version, done and no split; if not, the entry. In one search."""
        row = self._row_of(key)
        if row is None:
            return False, None
        if self.codec.whole_version(row) == version:
            return True, None
        return False, self.codec.entry_of(row)

    def __contains__(self, key: OffsetManagerKey) -> bool:
        return self._row_of(key) is not None

    def put(self, head: bytes, body: bytes, *, is_new: bool) -> None:
        """Store the head and the body of a row.

        Args:
            head: its head.
            body: its body.
            is_new: whether its key has no row.
        """
        known = None if is_new else self._find(head)
        self._append(head, head + body)
        if known is not None:
            self.remove([known])

    def discard(self, key: OffsetManagerKey) -> bool:
        """Remove the entry of that key; return False when there is none."""
        head = self.codec.head(key)
        number = self._find(head) if head is not None else None
        if number is not None:
            self.remove([number])
        return number is not None

    def load(self, chunks: Iterable[RowChunk]) -> None:
        """Replace all rows by the chunks of `FinishedView.chunks`. Takes a tenth of the time of single puts.

        Raises:
            IndexError, TypeError, ValueError: these are no such chunks.
        """
        import numpy as np  # noqa: PLC0415 - not loaded for few objects, or for an import only

        self._clear()
        self._blocks, room = [], _Room()
        whole = self._in_block + 1
        for chunk in chunks:
            block = _Block.of(chunk, room)
            if len(block) > whole or len(self._others) % whole:  # a row's number says its block
                raise ValueError("rows that do not fill a block")
            ends = np.frombuffer(chunk.ends, np.uint32)
            starts = _starts_of(ends)
            raw = np.frombuffer(chunk.rows, np.uint8)
            bodies = self.codec.checked_bodies(raw, starts, ends)
            rows, hash_of, spans = chunk.rows, self._hash_of, zip(starts.tolist(), bodies.tolist(), strict=True)
            hashes = (hash_of(rows[start:end]) & _LOW for start, end in spans)
            first = len(self._others)
            self._add(hashes, np.arange(first, first + len(block), dtype=np.uint64))
            self._blocks.append(block)
        self._dead = bytearray(len(self._others))
        self._sort()
        last = self._blocks[-1] if self._blocks else _Block()
        if not self._blocks or len(last) > self._in_block:
            self._blocks.append(_Block())
        else:
            self._blocks[-1] = last.growing()

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove many rows together, by the numbers that a view of the present entries gave."""
        for number in numbers:
            self._dead[number] = 1
        self._dead_rows += len(numbers)
        # enough: some thousands, and a quarter of those that live, since the others are copied
        if self._dead_rows > max(self._in_block, len(self) >> 2):
            self._clear_away()

    def view(self) -> FinishedView:
        """Return a view of the current entries; later changes of the table do not affect it."""
        return FinishedView(self.codec, list(self._blocks), self._dead, self._block_bits)

    def has_numbers_of(self, view: FinishedView) -> bool:
        """Return whether the rows still have the numbers that a view of this table gave them."""
        return view.numbered_by is self._dead

    def holds(self, number: int) -> bool:
        """Return whether the row of that number is live."""
        return not self._dead[number]

    # ---- rows

    def _row_of(self, key: OffsetManagerKey) -> bytes | None:
        head = self.codec.head(key)
        number = self._find(head) if head is not None else None
        return self._row(number) if number is not None else None

    def _row(self, number: int) -> bytes:
        return self._blocks[number >> self._block_bits].row(number & self._in_block)

    def _append(self, head: bytes, row: bytes) -> None:
        block = self._blocks[-1]
        if len(block) > self._in_block:
            self._blocks[-1] = block.frozen()
            block = _Block()
            self._blocks.append(block)
        block.append(row)
        self._newest[head] = len(self._dead)
        self._absent = None
        self._dead.append(0)
        if len(self._newest) >= max(self._least_newest, len(self._others) >> 6):
            self._merge_newest()

    def _clear_away(self) -> None:
        """Copy the live rows; existing views stay unchanged.

        Templates that no row uses any more go with the dead rows: generations rise over the months, and each is one.
        """
        view, former = self.view(), self.codec
        if not former.is_crowded:
            self.load(view.chunks())
            return
        codec = self.codec = former.successor()
        self._clear()
        for entry in view:
            row = codec.row(entry.get_manager_key(), entry)
            assert row is not None, "it was a row before"
            self.put(*row, is_new=True)
        codec.keep_templates()

    # ---- row numbers

    def _find(self, head: bytes) -> int | None:
        if head is self._absent:
            return None
        number = self._newest.get(head)
        if number is not None and not self._dead[number]:
            return number
        hashed = (self._hash_of(head) & _LOW) << _HASH_BITS
        for at in range(bisect_left(self._others, hashed), len(self._others)):
            number = self._others[at] - hashed
            if number > _LOW:
                break
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
        import numpy as np  # noqa: PLC0415 - as above

        np.frombuffer(self._others, np.uint64).sort()


def _starts_of(ends: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the start of each row."""
    starts: NDArray[np.uint32] = ends.copy()
    starts[1:], starts[:1] = ends[:-1], 0
    return starts


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

    def __init__(self, codec: RowCodec, blocks: Sequence[_Block], dead: bytearray, block_bits: int) -> None:
        self._codec = codec
        self._blocks = blocks
        self.numbered_by, self._dead = dead, bytes(dead)
        self._block_bits = block_bits

    def __len__(self) -> int:
        return len(self._dead) - self._dead.count(1)

    def __iter__(self) -> Iterator[OffsetManagerEntry]:
        return (self._codec.entry_of(row) for _, row in self.rows())

    def rows(
        self, chosen: Callable[[NDArray[np.uint8], NDArray[np.uint32]], NDArray[np.bool_]] | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the live rows with their numbers, in the order of insertion; without a step for each of the others.

        Args:
            chosen: returns which rows of a block to yield, given its bytes and where their bodies begin; None: all.
        """
        for at, block in enumerate(self._columns()):
            wanted = block.live if chosen is None else block.live & chosen(block.raw, block.bodies)
            for number in wanted.nonzero()[0].tolist():
                yield (at << self._block_bits) + number, block.rows[block.starts[number] : block.ends[number]]

    def chunks(self) -> Iterator[RowChunk]:
        """Yield the live rows in chunks of a block's size."""
        import numpy as np  # noqa: PLC0415 - not loaded for few objects, or for an import only

        whole = 1 << self._block_bits
        rows, ends = b"", np.zeros(0, np.uint32)
        for more, more_ends in map(self._live, self._columns()):
            ends = np.concatenate((ends, more_ends + np.uint32(len(rows))))
            rows += more
            if len(ends) >= whole:
                cut = int(ends[whole - 1])
                yield RowChunk(rows[:cut], ends[:whole].tobytes())
                rows, ends = rows[cut:], ends[whole:] - np.uint32(cut)
        if len(ends):
            yield RowChunk(rows, ends.tobytes())

    def _live(self, block: _BlockColumns) -> tuple[bytes, NDArray[np.uint32]]:
        """Return the live rows of a block, and their ends; without a step per row."""
        import numpy as np  # noqa: PLC0415 - as above

        borders = np.append(block.starts, block.ends[-1:])[
            np.flatnonzero(np.diff(block.live, prepend=False, append=False))
        ]
        rows = [block.rows[begin:end] for begin, end in borders.reshape(-1, 2).tolist()]
        return b"".join(rows), (block.ends - block.starts)[block.live].cumsum(dtype=np.uint32)

    def rows_to_compact(self, before_ms: int) -> Iterator[tuple[int, OffsetManagerEntry]]:
        """Yield the entries that a compaction must look at, with the numbers of their rows; no step for the others.

        Args:
            before_ms: no object last modified at this time or later is compacted.
        """
        rows = self.rows(lambda raw, bodies: self._codec.may_be_compacted(raw, bodies, before_ms))
        return ((number, self._codec.entry_of(row)) for number, row in rows)

    def failed(self) -> Iterator[OffsetManagerEntry]:
        """Yield the entries of failed objects; without a step for each of the others."""
        if self._codec.has_failed:
            yield from (self._codec.entry_of(row) for _, row in self.rows(self._codec.failed))

    def sum_records(self) -> int:
        """Return the total records of the entries, those of an object with parts once."""
        return sum(self._codec.sum_records(block.raw, block.bodies[block.live]) for block in self._columns())

    def _columns(self) -> Iterator[_BlockColumns]:
        return map(self._block, range(len(self._blocks)))

    def _block(self, at: int) -> _BlockColumns:
        import numpy as np  # noqa: PLC0415 - as above

        first = at << self._block_bits
        live = np.frombuffer(self._dead[first : first + (1 << self._block_bits)], np.uint8) == 0
        ends = np.array(self._blocks[at].ends[: len(live)], np.uint32)
        starts, rows = _starts_of(ends), bytes(self._blocks[at].rows)
        raw = np.frombuffer(rows, np.uint8)
        return _BlockColumns(rows, raw, starts, starts + self._codec.name_lengths(raw, starts), ends, live)

    @property
    def tables(self) -> Tables:
        """The tables that the rows refer to."""
        return self._codec.tables
