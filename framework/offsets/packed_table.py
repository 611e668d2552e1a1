"""Packed positions of finished objects: about 100 bytes each instead of 765.

    key -> hash -> slot -> row number -> block of rows -> entry

Rows (`framework.offsets.packed_row`) are append-only, in blocks of a few thousand. Replaced and removed rows are marked
as dead, and the table is rewritten when most rows are dead. So a view costs almost nothing: the current blocks, and
which rows are dead.

Slots form an open-addressing table: 32 bits of the key's hash and the row's number. A slot with a matching hash gives
the row to check. The row's own key confirms the match, so two keys with the same hash are never confused.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import xxhash

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
    from framework.offsets.packed_row import RowCodec

BLOCK_BITS = 12
"""4,096 rows per block: about 300 kB."""

_HASH_BITS = 32
_LOW = (1 << _HASH_BITS) - 1
_FIRST_SLOTS = 1024
_SPARE_SLOTS = 64
"""Slots for displaced entries, after the last place of a hash; the very last slot stays empty and ends a search."""

_FULL = 0.75
_SLOTS_AT_ONCE = 1 << 16


class _Block:
    """A block of rows.

    Attributes:
        rows: their bytes; `bytes` once the block is full.
        at: start of each row, and the end of the last.
        stored_bytes: approximate size of the entries as text.
    """

    __slots__ = ("at", "rows", "stored_bytes")

    def __init__(self) -> None:
        self.rows: bytes | bytearray = bytearray()
        self.at = array("I", [0])
        self.stored_bytes = 0

    def __len__(self) -> int:
        return len(self.at) - 1

    def append(self, row: bytes, stored_bytes: int) -> None:
        self.rows += row
        self.at.append(len(self.rows))
        self.stored_bytes += stored_bytes

    def row(self, number: int) -> bytes:
        return bytes(self.rows[self.at[number] : self.at[number + 1]])

    def frozen(self) -> _Block:
        """Return an immutable copy."""
        copy = _Block()
        copy.rows, copy.at, copy.stored_bytes = bytes(self.rows), self.at[:], self.stored_bytes
        return copy


@attrs.frozen
class RowChunk:
    """A chunk of rows in a snapshot.

    Attributes:
        rows: the rows, concatenated.
        ends: end of each row, u32 each.
    """

    rows: bytes
    ends: bytes


STORED_BYTES = 100
"""Approximate size of an entry as text, beyond its row."""


class FinishedTable:
    """Entries by key. One thread at a time; a `view` may be read concurrently.

    Attributes:
        codec: packs the entries.
        records_done: total records of all entries, those of an object with parts once.

    Args:
        codec: packs the entries.
        hash_of: hash of a row's head; replaceable for tests.
        block_bits: a block has two to the power of this many rows; smaller for tests.
    """

    def __init__(
        self,
        codec: RowCodec,
        *,
        hash_of: Callable[[bytes], int] = xxhash.xxh3_64_intdigest,
        block_bits: int = BLOCK_BITS,
    ) -> None:
        self.codec = self._codec = codec
        self._hash_of = hash_of
        self._block_bits = block_bits
        self._in_block = (1 << block_bits) - 1
        self.records_done = 0
        self._clear()

    def _clear(self) -> None:
        self._blocks = [_Block()]
        self._dead = bytearray()
        self._dead_rows = 0
        self.records_done = 0
        self._reach = _FIRST_SLOTS
        self._slots = memoryview(bytearray(8 * (self._reach + _SPARE_SLOTS))).cast("Q")
        self._used = 0

    def __len__(self) -> int:
        return len(self._dead) - self._dead_rows

    def get(self, key: OffsetManagerKey) -> OffsetManagerEntry | None:
        """Return the entry of that key, equal in every field to the stored entry."""
        head = self._codec.head(key)
        number = self._find(head) if head is not None else None
        return self._codec.entry_of(self._row(number)) if number is not None else None

    def whole_version(self, key: OffsetManagerKey) -> str | None:
        """Return the version of that key's entry, cheaper than the entry; None when it is missing or a split."""
        head = self._codec.head(key)
        number = self._find(head) if head is not None else None
        return self._codec.whole_version(self._row(number)) if number is not None else None

    def __contains__(self, key: OffsetManagerKey) -> bool:
        head = self._codec.head(key)
        return head is not None and self._find(head) is not None

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
        self._place(self._hash_of(head) & _LOW, self._append(row))

    def add(self, key: OffsetManagerKey, entry: OffsetManagerEntry) -> None:
        """Store an entry whose key has none: `put` without a search."""
        head, row = self._packed(key, entry)
        self._place(self._hash_of(head) & _LOW, self._append(row))

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
        """Load the chunks of `FinishedView.chunks` into an empty table. Takes a tenth of the time of single puts."""
        import numpy as np  # noqa: PLC0415 - not loaded for few objects, or for an import only

        hashes: list[NDArray[np.uint32]] = []
        self._blocks = []
        for chunk in chunks:
            block = _Block()
            block.rows = chunk.rows
            block.at = array("I", b"\0\0\0\0" + chunk.ends)
            block.stored_bytes = len(chunk.rows) + len(block) * STORED_BYTES
            starts = block.at[:-1]
            raw = np.frombuffer(chunk.rows, np.uint8)
            names = self._codec.name_lengths(raw, np.frombuffer(starts, np.uint32))
            bodies = np.frombuffer(starts, np.uint32) + names
            rows, hash_of = chunk.rows, self._hash_of
            heads = (hash_of(rows[start:end]) & _LOW for start, end in zip(starts, bodies.tolist(), strict=True))
            hashes.append(np.fromiter(heads, np.uint32, len(block)))
            self.records_done += self._codec.sum_records(raw, bodies)
            self._blocks.append(block)
        slots = np.concatenate(hashes).astype(np.uint64) if hashes else np.zeros(0, np.uint64)
        del hashes
        self._dead = bytearray(len(slots))
        slots <<= np.uint64(_HASH_BITS)
        slots += np.arange(1, len(slots) + 1, dtype=np.uint64)
        self._put_slots(slots)
        last = self._blocks[-1] if self._blocks else _Block()
        if not self._blocks or len(last) > self._in_block:
            self._blocks.append(_Block())
        else:
            last.rows = bytearray(last.rows)  # it continues to grow

    def rows(self) -> Iterator[tuple[int, bytes]]:
        """Yield every current row with its number, which `remove` accepts until the next change."""
        dead = self._dead
        for at, block in enumerate(self._blocks):
            first = at << self._block_bits
            for number in range(len(block)):
                if not dead[first + number]:
                    yield first + number, block.row(number)

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove many rows together."""
        for number in numbers:
            self._dead[number] = 1
            self.records_done -= self._codec.records_of(self._row(number))
        self._dead_rows += len(numbers)
        if self._dead_rows > len(self) or self._dead_rows > self._in_block:
            self._clear_away()

    def keys(self) -> Iterator[tuple[tuple[str, str], ...]]:
        """Return the properties of every current key."""
        return map(self._codec.key_of, self.view().rows())

    def view(self) -> FinishedView:
        """Return a view of the current entries; later changes of the table do not affect it."""
        return FinishedView(self._codec, list(self._blocks), bytes(self._dead), self._block_bits)

    # ---- rows

    def _row(self, number: int) -> bytes:
        return self._blocks[number >> self._block_bits].row(number & self._in_block)

    def _append(self, row: bytes) -> int:
        block = self._blocks[-1]
        if len(block) > self._in_block:
            self._blocks[-1] = block.frozen()
            block = _Block()
            self._blocks.append(block)
        block.append(row, self._codec.stored_bytes(row))
        self._dead.append(0)
        self.records_done += self._codec.records_of(row)
        return len(self._dead) - 1

    def _bury(self, number: int) -> None:
        self._dead[number] = 1
        self._dead_rows += 1
        self.records_done -= self._codec.records_of(self._row(number))
        if self._dead_rows > max(self._in_block, len(self)):
            self._clear_away()

    def _clear_away(self) -> None:
        """Copy the live rows, block by block; existing views stay unchanged.

        Templates that no row uses any more go with the dead rows: generations rise over the months, and each is one.
        """
        blocks, dead, former = self._blocks[::-1], bytes(self._dead), self._codec
        if former.is_crowded:
            self.codec = self._codec = former.successor()
        self._clear()
        first, rows = 0, self._in_block + 1
        while blocks:
            view = FinishedView(former, [blocks.pop()], dead[first : first + rows], self._block_bits)
            for former_row in view.rows():
                row = former_row if self._codec is former else self._codec.repack(former_row, former)
                self._place(self._hash_of(self._codec.head_of(row)) & _LOW, self._append(row))
            first += rows

    # ---- slots

    def _find(self, head: bytes) -> int | None:
        hashed = self._hash_of(head) & _LOW
        slots = self._slots
        at = hashed * self._reach >> _HASH_BITS
        while slot := slots[at]:
            if slot >> _HASH_BITS == hashed:
                number = (slot & _LOW) - 1
                block = self._blocks[number >> self._block_bits]
                if not self._dead[number] and block.rows.startswith(head, block.at[number & self._in_block]):
                    return number
            at += 1
        return None

    def _place(self, hashed: int, number: int) -> None:
        if self._used >= _FULL * self._reach:
            self._widen()
        at = self._free_slot(hashed)
        while at == len(self._slots) - 1:
            self._widen()
            at = self._free_slot(hashed)
        self._slots[at] = hashed << _HASH_BITS | (number + 1)
        self._used += 1

    def _free_slot(self, hashed: int) -> int:
        slots = self._slots
        at = hashed * self._reach >> _HASH_BITS
        while slots[at]:
            at += 1
        return at

    def _widen(self) -> None:
        """Enlarge the slots, and drop the slots of dead rows.

        A slot's place is monotonic in its hash. Sorted by hash, each slot goes to its place, or directly after the
        previous slot. For a million rows this takes milliseconds, where single inserts take a second.
        """
        import numpy as np  # noqa: PLC0415 - not loaded for few objects, or for an import only

        slots = np.frombuffer(self._slots, np.uint64)
        slots = slots[slots != 0]
        self._slots = memoryview(b"")  # frees about 30 MB for 2 million rows, which the new slots need
        if self._dead_rows:
            dead = np.frombuffer(self._dead, np.uint8)
            slots = slots[dead[(slots & np.uint64(_LOW)) - np.uint64(1)] == 0]
        self._put_slots(slots)

    def _put_slots(self, slots: NDArray[np.uint64]) -> None:
        import numpy as np  # noqa: PLC0415 - as above

        slots.sort()
        self._used = len(slots)
        self._reach = max(_FIRST_SLOTS, 3 * len(slots) // 2)
        wider = np.zeros(self._reach + _SPARE_SLOTS, np.uint64)
        free = 0
        for first in range(0, len(slots), _SLOTS_AT_ONCE):  # places for all would take as much memory as the slots
            part = slots[first : first + _SLOTS_AT_ONCE]
            places = ((part >> np.uint64(_HASH_BITS)) * np.uint64(self._reach) >> np.uint64(_HASH_BITS)).view(np.int64)
            row = np.arange(len(part))
            places -= row
            places[0] = max(int(places[0]), free)
            np.maximum.accumulate(places, out=places)
            places += row
            free = int(places[-1]) + 1
            if free + _SPARE_SLOTS > len(wider):
                wider = np.concatenate((wider, np.zeros(free + _SPARE_SLOTS - len(wider), np.uint64)))
            wider[places] = part
        self._slots = wider.data


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
        return map(self._codec.entry_of, self.rows())

    @property
    def stored_bytes(self) -> int:
        """Approximate size of the entries as text, unpacked."""
        return sum(block.stored_bytes for block in self._blocks)

    @property
    def records_done(self) -> int:
        """Total records of all entries."""
        return sum(map(self._codec.records_of, self.rows()))

    def rows(self) -> Iterator[bytes]:
        """Yield the live rows, in the order of insertion."""
        for at, block in enumerate(self._blocks):
            first = at << self._block_bits
            for number, dead in enumerate(self._dead[first : first + (1 << self._block_bits)]):
                if not dead:
                    yield block.row(number)

    def chunks(self) -> Iterator[RowChunk]:
        """Yield the live rows in chunks of a block's size, except pickled rows, which have no stored form."""
        import numpy as np  # noqa: PLC0415 - not loaded for few objects, or for an import only

        whole = 1 << self._block_bits
        rows, ends = b"", np.zeros(0, np.uint32)
        for more, more_ends in map(self._stored_rows, range(len(self._blocks))):
            ends = np.concatenate((ends, more_ends + np.uint32(len(rows))))
            rows += more
            if len(ends) >= whole:
                cut = int(ends[whole - 1])
                yield RowChunk(rows[:cut], ends[:whole].tobytes())
                rows, ends = rows[cut:], ends[whole:] - np.uint32(cut)
        if len(ends):
            yield RowChunk(rows, ends.tobytes())

    def _stored_rows(self, at: int) -> tuple[bytes, NDArray[np.uint32]]:
        """Return the live rows of a block that have a stored form, and their ends; without a step per row."""
        import numpy as np  # noqa: PLC0415 - as above

        first = at << self._block_bits
        gone = np.frombuffer(self._dead[first : first + (1 << self._block_bits)], np.uint8) != 0
        block = self._blocks[at]
        starts = np.array(block.at[: len(gone) + 1], np.uint32)
        rows = bytes(block.rows)
        gone |= self._codec.are_pickled(np.frombuffer(rows, np.uint8), starts[:-1])
        borders = starts[np.flatnonzero(np.diff(gone, prepend=True, append=True))].reshape(-1, 2)
        live = [rows[begin:end] for begin, end in borders.tolist()]
        return b"".join(live), np.diff(starts)[~gone].cumsum(dtype=np.uint32)

    def others(self) -> Iterator[OffsetManagerEntry]:
        """Return the entries of the pickled rows."""
        return map(self._codec.entry_of, filter(self._codec.is_pickled, self.rows()))

    @property
    def tables(self) -> dict[str, Any]:
        """The tables that the rows refer to."""
        return self._codec.tables()

    def parts(self, most_bytes: int) -> list[FinishedView]:
        """Split the view into parts of about this many bytes as text, at least a block each. Copies no rows."""
        parts: list[FinishedView] = []
        first, size = 0, 0
        for at, block in enumerate(self._blocks):
            if size and size + block.stored_bytes > most_bytes:
                parts.append(self._part(first, at))
                first, size = at, 0
            size += block.stored_bytes
        return [*parts, self._part(first, len(self._blocks))]

    def _part(self, first: int, end: int) -> FinishedView:
        return FinishedView(
            self._codec,
            self._blocks[first:end],
            self._dead[first << self._block_bits : end << self._block_bits],
            self._block_bits,
        )
