"""Shares: a large object is cut at fixed multiples of the split size, each part with a lane, a position and ids of its own.

Share k of an object (counted from 1) covers the bytes `(k - 1) * split size` up to `k * split size`, and owns the lines that
begin there. Where it is cut follows from size and split size alone, so every process cuts alike and no cut is stored.
"""

from __future__ import annotations

import attrs

from framework.records import Mark

TAIL_BYTES = 1 << 16
"""What is read of a share beyond its end with the same request: the rest of its last line, which is seldom longer."""


@attrs.frozen(slots=True)
class Share:
    """One share of a split object.

    Attributes:
        number: 1, 2, 3 ... in its object.
        split_size: bytes that each share covers but the last.
    """

    number: int
    split_size: int

    @property
    def begin(self) -> int:
        """Offset of the first byte it covers."""
        return (self.number - 1) * self.split_size

    @property
    def end(self) -> int:
        """Offset of the first byte after those it covers; beyond the object's end for the last share."""
        return self.number * self.split_size

    def bytes_of(self, size: int) -> int:
        """How many of an object's `size` bytes it covers; 0 when the object ends before it."""
        return max(0, min(self.end, size) - self.begin)

    def window(self, size: int, mark: Mark | None = None) -> tuple[int, int]:
        """The bytes to read at once: from the mark, or from the byte before the share, to some bytes behind its end.

        The byte before it tells whether a line begins with the share.

        Args:
            size: of the object.
            mark: where to go on.
        """
        start = mark.byte if mark is not None else max(0, self.begin - 1)
        return start, max(start, min(self.end + TAIL_BYTES, size))


def count_shares(size: int, split_size: int) -> int:
    """How many shares an object of `size` bytes has."""
    return -(-size // split_size)
