"""Positions of finished objects, packed: about 100 bytes for each instead of 765.

    key -> hash -> slot -> row number -> block of rows -> entry

Rows (`framework.finished_rows`) are only ever appended, to blocks of some thousand; what is replaced or removed is marked as
dead, and cleared away when most is. So a view of one moment costs next to nothing: the blocks as they are, and which rows are
dead.

Slots are an open table: 32 bits of the key's hash and the row's number. A slot with the right hash says where to look; the
row's own key says whether it is the one, so two keys of one hash are never mixed up.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from framework.finished_rows import RowCodec
    from framework.offsets import OffsetManagerEntry, OffsetManagerKey

BLOCK_BITS = 12
"""4,096 rows in a block: some 300 kB."""

_HASH_BITS = 32
_LOW = (1 << _HASH_BITS) - 1
_FIRST_SLOTS = 1024
_SPARE_SLOTS = 64
"""Behind the last place that a hash can point to, for what is displaced; the very last slot stays empty and ends a search."""

_FULL = 0.75


class _Block:
    """Some rows.

    Attributes:
        rows: their bytes; a `bytes` once it is full.
        at: where each begins, and the last one ends.
        stored_bytes: about what their entries take as text.
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
        """As it is now, for good."""
        copy = _Block()
        copy.rows, copy.at, copy.stored_bytes = bytes(self.rows), self.at[:], self.stored_bytes
        return copy


class FinishedTable:
    """Entries by key. One thread at a time; a `view` may be read beside it.

    Attributes:
        codec: packs the entries.
        records_done: the records of all entries together.

    Args:
        codec: packs the entries.
        hash_of: hash of a row's head; another one for tests.
        block_bits: a block has two to the power of this many rows; fewer for tests.
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
        """The entry of that key, equal in every field to what was put."""
        head = self._codec.head(key)
        number = self._find(head) if head is not None else None
        return self._codec.entry_of(self._row(number)) if number is not None else None

    def whole_version(self, key: OffsetManagerKey) -> str | None:
        """The version of the entry of that key, cheaper than the entry; None when there is none, or it is of a share."""
        head = self._codec.head(key)
        number = self._find(head) if head is not None else None
        return self._codec.whole_version(self._row(number)) if number is not None else None

    def __contains__(self, key: OffsetManagerKey) -> bool:
        head = self._codec.head(key)
        return head is not None and self._find(head) is not None

    def put(self, key: OffsetManagerKey, entry: OffsetManagerEntry) -> None:
        """Keeps an entry, in place of the one that was there."""
        head = self._codec.head(key, add=True)
        assert head is not None
        row = head + self._codec.body(key, entry)
        known = self._find(head)
        if known is not None:
            if self._row(known) == row:
                return
            self._bury(known)
        self._place(self._hash_of(head) & _LOW, self._append(row))

    def discard(self, key: OffsetManagerKey) -> bool:
        """Removes the entry of that key; False when there is none."""
        head = self._codec.head(key)
        number = self._find(head) if head is not None else None
        if number is None:
            return False
        self._bury(number)
        return True

    def rows(self) -> Iterator[tuple[int, bytes]]:
        """Every row that is here now and its number, which `remove` takes until the next change."""
        dead = self._dead
        for at, block in enumerate(self._blocks):
            first = at << self._block_bits
            for number in range(len(block)):
                if not dead[first + number]:
                    yield first + number, block.row(number)

    def remove(self, numbers: Sequence[int]) -> None:
        """Removes many rows at once."""
        for number in numbers:
            self._dead[number] = 1
            self.records_done -= self._codec.records_of(self._row(number))
        self._dead_rows += len(numbers)
        if self._dead_rows > len(self) or self._dead_rows > self._in_block:
            self._clear_away()

    def keys(self) -> Iterator[tuple[tuple[str, str], ...]]:
        """The properties of every key, as of now."""
        return map(self._codec.key_of, self.view().rows())

    def other_keys(self) -> Iterator[tuple[tuple[str, str], ...]]:
        """The properties of every key that is more than a bucket and a key, as of now."""
        if self._codec.objects_only:
            return iter(())
        return map(self._codec.key_of, filter(self._codec.is_other, self.view().rows()))

    def view(self) -> FinishedView:
        """What is here now; it stays so, whatever happens to the table."""
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
        """Copies what lives, block after block; views keep what they saw."""
        blocks, dead = self._blocks[::-1], bytes(self._dead)
        self._clear()
        first, rows = 0, self._in_block + 1
        while blocks:
            view = FinishedView(self._codec, [blocks.pop()], dead[first : first + rows], self._block_bits)
            for row in view.rows():
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
        """More slots, and none of dead rows.

        The place of a hash grows with the hash. So sorted by hash each goes to its place, or behind the one before it: what
        one by one takes a second for a million takes some milliseconds for all.
        """
        import numpy as np  # noqa: PLC0415 - not loaded by those who read few objects, or import only

        slots = np.frombuffer(self._slots, np.uint64)
        slots = slots[slots != 0]
        self._slots = memoryview(b"")  # some 30 MB for 2 million rows, which the new ones need
        if self._dead_rows:
            dead = np.frombuffer(self._dead, np.uint8)
            slots = slots[dead[(slots & np.uint64(_LOW)) - np.uint64(1)] == 0]
        slots.sort()
        self._used = len(slots)
        self._reach = max(_FIRST_SLOTS, 2 * len(slots))
        places = ((slots >> np.uint64(_HASH_BITS)) * np.uint64(self._reach) >> np.uint64(_HASH_BITS)).view(np.int64)
        row = np.arange(len(slots), dtype=np.uint32)
        places -= row
        np.maximum.accumulate(places, out=places)
        places += row
        most = int(places[-1]) + 1 if len(places) else 0
        wider = np.zeros(max(self._reach, most) + _SPARE_SLOTS, np.uint64)
        wider[places] = slots
        self._slots = wider.data


class FinishedView:
    """Entries of one moment. Threads may share it.

    The last block may still grow: `dead` ends where the view does.
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
        """About what its entries take as text, not packed."""
        return sum(block.stored_bytes for block in self._blocks)

    @property
    def records_done(self) -> int:
        """The records of all entries together."""
        return sum(map(self._codec.records_of, self.rows()))

    def rows(self) -> Iterator[bytes]:
        """The rows that live, in the order in which they came."""
        for at, block in enumerate(self._blocks):
            first = at << self._block_bits
            for number, dead in enumerate(self._dead[first : first + (1 << self._block_bits)]):
                if not dead:
                    yield block.row(number)

    def parts(self, most_bytes: int) -> list[FinishedView]:
        """The same in pieces whose entries take about so much as text, at least a block each. Costs nothing."""
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
