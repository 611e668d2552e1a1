"""What a pass remembers of its keys for the next one: a few hundred cut points, each with how many keys lie before it."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from framework.keyspace import KeySpace

Histogram = Sequence[tuple[str, int]]
"""Cut points in the order of the keys, each with how many keys lie behind the one before it, up to and with it."""

POINTS = 512
"""The most cut points that are kept from one pass to the next."""

CHARACTERS = 65_536
"""The most characters that their keys have together; most of them are shared, so that they compress to a few kB."""


def thinned(marks: Histogram, points: int) -> list[tuple[str, int]]:
    """The same counts at about that many cut points at most, with about as many keys between any two."""
    share = sum(count for _, count in marks) / points
    kept: list[tuple[str, int]] = []
    held = 0
    for index, (key, count) in enumerate(marks, 1):
        held += count
        if held >= share or index == len(marks):
            kept.append((key, held))
            held = 0
    return kept


class Marks:
    """The histogram of the pass under way, in the making. Bounded; for one thread at a time."""

    def __init__(self) -> None:
        self._marks: list[tuple[str, int]] = []

    def add(self, samples: Histogram) -> None:
        """Takes in samples of keys that follow each other in the listing; no others may lie between them."""
        at = bisect_left(self._marks, samples[0])
        self._marks[at:at] = samples
        if len(self._marks) > 8 * POINTS:
            self._marks = thinned(self._marks, 4 * POINTS)

    def first(self, stem: str) -> str | None:
        """The first key known that begins with `stem`."""
        at = bisect_left(self._marks, (stem, 0))
        if at < len(self._marks) and self._marks[at][0].startswith(stem):
            return self._marks[at][0]
        return None

    def histogram(self) -> list[tuple[str, int]]:
        """What the next pass starts from."""
        points = POINTS
        while True:
            kept = thinned(self._marks, points)
            if len(kept) <= 1 or sum(len(key) for key, _ in kept) <= CHARACTERS:
                return kept
            points //= 2


class PastPass:
    """The histogram of the last pass, asked for numbers of keys.

    Args:
        histogram: of that pass; empty when there was none.
        space: guesses between two cut points.
    """

    def __init__(self, histogram: Histogram, space: KeySpace) -> None:
        self._space = space
        self.keys = [key for key, _ in histogram]
        self.sums = list(accumulate(count for _, count in histogram))

    @property
    def total(self) -> int:
        """All keys of that pass."""
        return self.sums[-1] if self.sums else 0

    def inside(self, after: str, until: str | None) -> range:
        """The numbers of the cut points between the two; the last cut point of all is the end, and none."""
        end = len(self.keys) - 1 if until is None else bisect_left(self.keys, until)
        return range(bisect_right(self.keys, after), min(end, len(self.keys) - 1))

    def at_sum(self, keys: float) -> int:
        """The number of the first cut point with at least so many keys up to it."""
        return min(bisect_left(self.sums, keys), len(self.sums) - 1)

    def between(self, after: str, until: str | None) -> float:
        """About how many keys lay between the two."""
        return max(0.0, (self.total if until is None else self.up_to(until)) - self.up_to(after))

    def up_to(self, key: str) -> float:
        """About how many keys lay up to `key`."""
        at = bisect_left(self.keys, key)
        if at == len(self.keys):
            return self.total
        if self.keys[at] == key:
            return self.sums[at]
        if at == 0:
            return 0.0
        before = self.keys[at - 1]
        part, whole = self._space.log_size(before, key), self._space.log_size(before, self.keys[at])
        share = 0.0 if part is None else 0.5 if whole is None else math.exp(min(0.0, part - whole))
        return self.sums[at - 1] + share * (self.sums[at] - self.sums[at - 1])
