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
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from framework.offsets.packed_row import RowChunk, RowCodec, RowColumns
from framework.offsets.position_view import PositionView

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from framework.model.positions import OffsetManagerEntry, OffsetManagerKey

BLOCK_ROWS = 1 << 12
"""Rows per block: about 300 kB."""

_HASH_BITS = 32
_LOW = (1 << _HASH_BITS) - 1


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
        self._blocks: list[RowChunk] = []
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
        """Remove the entry of that key; return False when there is none. Call `clear_away` after many."""
        head = self.codec.head(key)
        return head is not None and self._discard(head)

    def load(self, chunks: Iterable[RowChunk]) -> None:
        """Replace all rows by the chunks of `PositionView.chunks`. Takes a tenth of the time of single puts.

        Raises:
            IndexError, TypeError, ValueError: these are no such chunks.
        """
        self._clear()
        for chunk in chunks:
            if len(chunk) > self._block_rows or self._newest:  # a row's number says its block
                raise ValueError("rows that do not fill a block")
            columns = RowColumns.of(chunk)
            self.codec.check(columns)
            heads = (chunk.rows[a:b] for a, b in zip(columns.starts.tolist(), columns.bodies.tolist(), strict=True))
            if len(chunk) == self._block_rows:
                self._add(RowChunk(_kept(chunk.rows), _kept(chunk.ends)), heads)
            else:
                self._newest = {bytes(head): chunk.row(at) for at, head in enumerate(heads)}
        self._as_numpy().sort()
        self._dead = bytearray(len(self._numbers))  # at once: if it grew, it would leave holes
        self._live = len(self._dead) + len(self._newest)

    def view(self, objects: Sequence[OffsetManagerEntry] = ()) -> PositionView:
        """Return a view of the current entries, and of these; later changes of the table do not affect it."""
        newest = [self._newest_chunk()] if self._newest else []
        dead = bytes(self._dead) + bytes(len(self._newest))
        return PositionView(self.codec, self._blocks + newest, dead, self._block_rows, objects)

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
        self._blocks.append(chunk)

    def _as_numpy(self) -> NDArray[np.uint64]:
        import numpy as np  # noqa: PLC0415 - as above

        return np.frombuffer(self._numbers, np.uint64)
