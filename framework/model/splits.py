"""Objects with several positions: splits by bytes, and parts by key. Each has its own partition and message ids.

Split k of an object (counted from 1) covers the bytes `(k - 1) * split size` up to `k * split size`. It owns the
lines, Avro blocks or Parquet row groups that begin there. The boundaries follow from size and split size alone: every
process splits alike, and no boundary is stored.

Part k of an object that is divided by key over P partitions has partition k - 1. It owns the records whose key belongs
to that partition, and sees the others as filtered. Records are numbered in the object, so the numbers of a part have
holes.

A position stores both as a pair of numbers: `(number, split size)` for a split, `(number, -P)` for a part.
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


@attrs.frozen(slots=True)
class KeyPart:
    """The part of an object whose keys belong to a partition.

    Attributes:
        number: 1, 2, 3 ...: the partition plus 1.
        parts: number of parts: the partitions of the topic when the object was begun.
    """

    number: int
    parts: int

    @property
    def partition(self) -> int:
        """The partition of its records."""
        return self.number - 1

    @property
    def split_size(self) -> int:
        """The split size that a position stores for a part: below 0, so that it is no number of bytes."""
        return -self.parts

    def bytes_of(self, size: int) -> int:
        """Return the part's share of an object's `size` bytes, for progress: the shares of all parts add up to `size`."""
        return size * self.number // self.parts - size * (self.number - 1) // self.parts


def division_of(number: int, split_size: int) -> Split | KeyPart | None:
    """Return the split or part that a position stores; None for an object that is read whole."""
    if not split_size:
        return None
    return Split(number, split_size) if split_size > 0 else KeyPart(number, -split_size)


def count_splits(size: int, split_size: int) -> int:
    """Return the number of splits of an object of `size` bytes."""
    return -(-size // split_size)
