"""Packed positions of finished objects: about 100 bytes each instead of 765.

    key -> row, in the dict of the newest or, by its number, in a block -> entry

Rows (`framework.offsets.packed_row`) come into a dict. When a block is full of them, they move there and never change.
Rows of blocks that are replaced or removed are marked as dead. The table is rewritten when as many as a quarter of all
rows are gone. So a view costs almost nothing: the blocks, which of their rows are dead, and the newest rows.

The numbers of the rows in blocks are in an array, sorted by 32 bits of the key's hash. The row's own key confirms a match:
keys with the same hash are never confused. The hash is Python's, which has a secret in each process: keys with one hash
that someone chose would make each look-up slow.
"""

from __future__ import annotations

import mmap
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import attrs

from framework.offsets.packed_row import RowCodec, Tables

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from framework.model.positions import OffsetManagerEntry, OffsetManagerKey

BLOCK_ROWS = 1 << 12
"""Rows per block: about 300 kB."""

_HASH_BITS = 32
_LOW = (1 << _HASH_BITS) - 1


@attrs.frozen
class RowChunk:
    """A chunk of rows in a snapshot.

    Attributes:
        rows: the rows, concatenated.
        ends: end of each row, u32 each.
    """

    rows: bytes | memoryview
    ends: bytes | memoryview


class _Block(NamedTuple):
    """A full block of rows, their ends as numbers."""

    rows: memoryview
    ends: memoryview

    @classmethod
    def of(cls, chunk: RowChunk) -> _Block:
        return cls(memoryview(chunk.rows), memoryview(chunk.ends).cast("I"))

    def start(self, at: int) -> int:
        start: int = self.ends[at - 1] if at else 0
        return start

    def row(self, at: int) -> bytes:
        return bytes(self.rows[self.start(at) : self.ends[at]])


def _kept(data: bytes | memoryview) -> memoryview:
    """Return a copy outside of the heap, where messages of the log come and go meanwhile: it would have holes, 10 % of all."""
    kept = memoryview(mmap.mmap(-1, len(data), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    kept[:] = data
    return kept


class FinishedTable:
    """Entries by key. One thread at a time; a `view` may be read concurrently.

    Attributes:
        codec: packs the entries.
    """

    _hash_of = staticmethod(hash)
    _block_rows = BLOCK_ROWS

    def __init__(self, codec: RowCodec) -> None:
        self.codec = codec
        self._clear()

    def _clear(self) -> None:
        self._newest: dict[bytes, bytes] = {}  # head -> row
        self._blocks: list[_Block] = []
        self._dead = bytearray()  # of each row of the blocks
        self._numbers = array("Q")  # hash << 32 | row number, sorted
        self._live = self._gone = 0

    def __len__(self) -> int:
        return self._live

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
        if not is_new:
            self._discard(head)
        self._newest[head] = head + body
        self._live += 1
        if len(self._newest) == self._block_rows:
            self._add(self._newest_chunk(), self._newest)
            self._dead += bytes(self._block_rows)
            self._newest = {}
            self._as_numpy().sort(kind="stable")  # fast, as all but those of the last block are in order
        self.clear_away()

    def discard(self, key: OffsetManagerKey) -> bool:
        """Remove the entry of that key; return False when there is none."""
        head = self.codec.head(key)
        is_gone = head is not None and self._discard(head)
        self.clear_away()
        return is_gone

    def discard_row(self, row: bytes, codec: RowCodec) -> bool:
        """Remove a row of a view; return False when it is no longer there, or rows have another codec now.

        Call `clear_away` after the last one.
        """
        head = codec.head_of(row)
        return codec is self.codec and self._row_with(head) == row and self._discard(head)

    def load(self, chunks: Iterable[RowChunk]) -> None:
        """Replace all rows by the chunks of `FinishedView.chunks`. Takes a tenth of the time of single puts.

        Raises:
            IndexError, TypeError, ValueError: these are no such chunks.
        """
        import numpy as np  # noqa: PLC0415 - not loaded for few objects, or for an import only

        self._clear()
        for chunk in chunks:
            ends = np.frombuffer(chunk.ends, np.uint32)
            if len(ends) > self._block_rows or self._newest:  # a row's number says its block
                raise ValueError("rows that do not fill a block")
            starts, raw, rows = _starts_of(ends), np.frombuffer(chunk.rows, np.uint8), chunk.rows
            bodies = self.codec.checked_bodies(raw, starts, ends)
            heads = (rows[start:end] for start, end in zip(starts.tolist(), bodies.tolist(), strict=True))
            if len(ends) == self._block_rows:
                self._add(RowChunk(_kept(rows), _kept(chunk.ends)), heads)
            else:
                block = _Block.of(chunk)
                self._newest = {bytes(head): block.row(at) for at, head in enumerate(heads)}
        self._as_numpy().sort()
        self._dead = bytearray(len(self._numbers))  # at once: if it grew, it would leave holes
        self._live = len(self._dead) + len(self._newest)

    def view(self) -> FinishedView:
        """Return a view of the current entries; later changes of the table do not affect it."""
        newest = [_Block.of(self._newest_chunk())] if self._newest else []
        dead = bytes(self._dead) + bytes(len(self._newest))
        return FinishedView(self.codec, self._blocks + newest, dead, self._block_rows)

    # ---- rows

    def _row_of(self, key: OffsetManagerKey) -> bytes | None:
        head = self.codec.head(key)
        return self._row_with(head) if head is not None else None

    def _row_with(self, head: bytes) -> bytes | None:
        row = self._newest.get(head)
        if row is not None:
            return row
        number = self._find(head)
        return self._blocks[number // self._block_rows].row(number % self._block_rows) if number is not None else None

    def _find(self, head: bytes) -> int | None:
        """Return the number of the row in a block that has this head."""
        hashed = (self._hash_of(head) & _LOW) << _HASH_BITS
        for at in range(bisect_left(self._numbers, hashed), len(self._numbers)):
            number = self._numbers[at] - hashed
            if number > _LOW:
                break
            block = self._blocks[number // self._block_rows]
            start = block.start(number % self._block_rows)
            if not self._dead[number] and block.rows[start : start + len(head)] == head:
                return number
        return None

    def _discard(self, head: bytes) -> bool:
        if self._newest.pop(head, None) is None:
            number = self._find(head)
            if number is None:
                return False
            self._dead[number] = 1
        self._live -= 1
        self._gone += 1
        return True

    def clear_away(self) -> None:
        """Copy the rows that live, when many others take room among them."""
        # from some thousands on, and a quarter of those that live, since the others are copied
        if self._gone > max(self._block_rows, self._live >> 2):
            self._clear_away()

    def _clear_away(self) -> None:
        """Copy the live rows; existing views stay unchanged.

        Templates that no row uses any more go with the dead rows: generations rise over the months, and each is one.
        """
        view, former = self.view(), self.codec
        if not former.is_crowded:
            self.load(view.chunks())
            return
        codec = self.codec = type(former)()
        self._clear()
        for entry in view:
            row = codec.row(entry.get_manager_key(), entry)
            assert row is not None  # it was a row before
            self.put(*row, is_new=True)
        codec.keep_templates()

    def _newest_chunk(self) -> RowChunk:
        rows = self._newest.values()
        return RowChunk(b"".join(rows), array("I", accumulate(map(len, rows))).tobytes())

    def _add(self, chunk: RowChunk, heads: Iterable[bytes | memoryview]) -> None:
        """Add a full block. The numbers must be sorted then."""
        import numpy as np  # noqa: PLC0415 - as above

        hashes = (self._hash_of(head) & _LOW for head in heads)
        added = np.fromiter(hashes, np.uint64, self._block_rows)
        added <<= np.uint64(_HASH_BITS)
        added |= np.arange(len(self._numbers), len(self._numbers) + self._block_rows, dtype=np.uint64)
        self._numbers.frombytes(added.tobytes())  # in place: it has 8 MB for a million rows
        self._blocks.append(_Block.of(chunk))

    def _as_numpy(self) -> NDArray[np.uint64]:
        import numpy as np  # noqa: PLC0415 - as above

        return np.frombuffer(self._numbers, np.uint64)


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

    Attributes:
        codec: unpacks the entries.

    Args:
        codec: as the attribute.
        blocks: the rows.
        dead: which rows are dead, 0 or 1 each.
        block_rows: how many rows each block but the last has.
    """

    def __init__(self, codec: RowCodec, blocks: Sequence[_Block], dead: bytes, block_rows: int) -> None:
        self.codec = codec
        self._blocks = blocks
        self._dead = dead
        self._block_rows = block_rows

    def __len__(self) -> int:
        return self._dead.count(0)

    def __iter__(self) -> Iterator[OffsetManagerEntry]:
        return map(self.codec.entry_of, self.rows())

    def rows(
        self, chosen: Callable[[NDArray[np.uint8], NDArray[np.uint32]], NDArray[np.bool_]] | None = None
    ) -> Iterator[bytes]:
        """Yield the live rows in the order of insertion; without a step for each of the others.

        Args:
            chosen: returns which rows of a block to yield, given its bytes and where their bodies begin; None: all.
        """
        for block in self._columns():
            wanted = block.live if chosen is None else block.live & chosen(block.raw, block.bodies)
            for at in wanted.nonzero()[0].tolist():
                yield block.rows[block.starts[at] : block.ends[at]]

    def chunks(self) -> Iterator[RowChunk]:
        """Yield the live rows in chunks of a block's size."""
        import numpy as np  # noqa: PLC0415 - not loaded for few objects, or for an import only

        whole = self._block_rows
        rows, sizes = b"", np.zeros(0, np.uint32)
        for block in self._columns():
            more = block.ends - block.starts
            rows += block.raw[np.repeat(block.live, more)].tobytes()
            sizes = np.concatenate((sizes, more[block.live]))
            if len(sizes) >= whole:
                cut = int(sizes[:whole].sum())
                yield RowChunk(rows[:cut], sizes[:whole].cumsum(dtype=np.uint32).tobytes())
                rows, sizes = rows[cut:], sizes[whole:]
        if len(sizes):
            yield RowChunk(rows, sizes.cumsum(dtype=np.uint32).tobytes())

    def older(self, before_ms: int) -> Iterator[tuple[bytes, OffsetManagerEntry]]:
        """Yield what a compaction must look at: the rows of older objects, and of splits; without a step for the others.

        Args:
            before_ms: no object last modified at this time or later is compacted.
        """
        rows = self.rows(lambda raw, bodies: self.codec.may_be_compacted(raw, bodies, before_ms))
        return ((row, self.codec.entry_of(row)) for row in rows)

    def failed(self) -> Iterator[OffsetManagerEntry]:
        """Yield the entries of failed objects; without a step for each of the others."""
        if self.codec.has_failed:
            yield from map(self.codec.entry_of, self.rows(self.codec.failed))

    def sum_records(self) -> int:
        """Return the total records of the entries, those of an object with parts once."""
        return sum(self.codec.sum_records(block.raw, block.bodies[block.live]) for block in self._columns())

    def _columns(self) -> Iterator[_BlockColumns]:
        return map(self._block, range(len(self._blocks)))

    def _block(self, at: int) -> _BlockColumns:
        import numpy as np  # noqa: PLC0415 - as above

        ends = np.array(self._blocks[at].ends, np.uint32)
        live = np.frombuffer(self._dead, np.bool_, len(ends), at * self._block_rows) == 0
        starts, rows = _starts_of(ends), bytes(self._blocks[at].rows)
        raw = np.frombuffer(rows, np.uint8)
        return _BlockColumns(rows, raw, starts, starts + self.codec.name_lengths(raw, starts), ends, live)

    @property
    def tables(self) -> Tables:
        """The tables that the rows refer to."""
        return self.codec.tables
