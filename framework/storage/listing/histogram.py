"""The histogram that a listing keeps for the next: a few hundred cut points, each with the number of keys before it."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from framework.storage.listing.keyspace import KeySpace

Histogram = Sequence[tuple[str, int]]
"""Cut points in key order, each with the number of keys after the previous cut point, up to and including it."""

POINTS = 512
"""Maximum of cut points kept from one listing to the next."""

CHARACTERS = 65_536
"""Maximum of characters of their keys together; most are shared, so they compress to a few kB."""


def thinned(marks: Histogram, points: int) -> list[tuple[str, int]]:
    """Reduce to about that many cut points at most, with about as many keys between any two."""
    share = sum(count for _, count in marks) / points
    kept: list[tuple[str, int]] = []
    held = 0
    for index, (key, count) in enumerate(marks, 1):
        held += count
        if held >= share or index == len(marks):
            kept.append((key, held))
            held = 0
    return kept


class HistogramBuilder:
    """The histogram of the current listing, under construction. Bounded; not thread-safe."""

    def __init__(self) -> None:
        self._marks: list[tuple[str, int]] = []

    def add(self, samples: Histogram) -> None:
        """Add samples of consecutive keys of the listing; no other keys may lie between them."""
        at = bisect_left(self._marks, samples[0])
        self._marks[at:at] = samples
        if len(self._marks) > 8 * POINTS:
            self._marks = thinned(self._marks, 4 * POINTS)

    def first(self, stem: str) -> str | None:
        """Return the first known key that begins with `stem`."""
        at = bisect_left(self._marks, (stem, 0))
        if at < len(self._marks) and self._marks[at][0].startswith(stem):
            return self._marks[at][0]
        return None

    def histogram(self) -> list[tuple[str, int]]:
        """Return the histogram for the next listing."""
        points = POINTS
        while True:
            kept = thinned(self._marks, points)
            if len(kept) <= 1 or sum(len(key) for key, _ in kept) <= CHARACTERS:
                return kept
            points //= 2


class KeyCountEstimate:
    """The histogram of the last listing, for estimates of key counts.

    Args:
        histogram: histogram of that listing; empty when there was none.
        space: interpolates between two cut points.
    """

    def __init__(self, histogram: Histogram, space: KeySpace) -> None:
        self._space = space
        self.keys = [key for key, _ in histogram]
        self.sums = list(accumulate(count for _, count in histogram))

    @property
    def total(self) -> int:
        """Total number of keys of that listing."""
        return self.sums[-1] if self.sums else 0

    def inside(self, after: str, until: str | None) -> range:
        """Return the indexes of the cut points between the two, without the last: it is the end, not a cut point."""
        end = len(self.keys) - 1 if until is None else bisect_left(self.keys, until)
        return range(bisect_right(self.keys, after), min(end, len(self.keys) - 1))

    def at_sum(self, keys: float) -> int:
        """Return the index of the first cut point with at least that many keys up to it."""
        return min(bisect_left(self.sums, keys), len(self.sums) - 1)

    def between(self, after: str, until: str | None) -> float:
        """Estimate the number of keys between the two."""
        return max(0.0, (self.total if until is None else self.up_to(until)) - self.up_to(after))

    def up_to(self, key: str) -> float:
        """Estimate the number of keys up to `key`."""
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
