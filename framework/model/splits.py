"""Splits: parts of a large object at fixed multiples of the split size.

Each split has its own partition, position and message ids.

Split k of an object (counted from 1) covers the bytes `(k - 1) * split size` up to `k * split size`. It owns the
lines, Avro blocks or Parquet row groups that begin there. The boundaries follow from size and split size alone: every
process splits alike, and no boundary is stored.
"""

from __future__ import annotations

import attrs

from framework.model.objects import ResumePoint

TAIL_BYTES = 1 << 16
"""Bytes read beyond a split's end in the same request: the rest of its last line, which is seldom longer."""


@attrs.frozen(slots=True)
class Split:
    """A split of an object.

    Attributes:
        number: 1, 2, 3 ... in its object.
        split_size: bytes per split; the last split may be shorter.
    """

    number: int
    split_size: int

    @property
    def begin(self) -> int:
        """Offset of the first byte of the split."""
        return (self.number - 1) * self.split_size

    @property
    def end(self) -> int:
        """Offset of the first byte after the split; beyond the object's end for the last split."""
        return self.number * self.split_size

    def holds(self, byte: int) -> bool:
        """Return whether the split covers a byte."""
        return self.begin <= byte < self.end

    def bytes_of(self, size: int) -> int:
        """Return how many of an object's `size` bytes the split covers; 0 when the object ends before it."""
        return max(0, min(self.end, size) - self.begin)

    def window(self, size: int, mark: ResumePoint | None = None) -> tuple[int, int]:
        """Return the byte range to read at once.

        It starts at the mark, or at the byte before the split, and ends just beyond the split's end.

        The byte before the split shows whether a line begins with the split.

        Args:
            size: size of the object in bytes.
            mark: where to resume.
        """
        start = mark.byte if mark is not None else max(0, self.begin - 1)
        return start, max(start, min(self.end + TAIL_BYTES, size))


def count_splits(size: int, split_size: int) -> int:
    """Return the number of splits of an object of `size` bytes."""
    return -(-size // split_size)
