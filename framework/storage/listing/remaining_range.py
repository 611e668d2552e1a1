"""A range of a listing in progress: how far it is, and an estimate of the rest."""

from __future__ import annotations

import math

import attrs

from framework.storage.listing.histogram import KeyCountEstimate
from framework.storage.listing.keyspace import KeySpace, after_all, shared_length

MAX_LOG = 400.0
"""Upper bound of logarithms of estimates, so that their exponential fits a float."""

NARROWER = 1.5
"""Factor by which an estimate over a narrower scope must be larger to be preferred."""

TRUSTED = 1.25
"""The last listing's histogram is trusted until a range has found this many times the keys that it predicted."""


@attrs.define(slots=True, eq=False, kw_only=True)
class RemainingRange:
    """The keys `after < key <= until` that are still to be listed.

    Attributes:
        after: last key listed.
        until: its current end.
        start: its original start.
        keys: keys listed since the start.
        pages: calls since the start that found keys.
        active: number of the task that lists it; None while it waits.
        misses: how often in a row a part cut off it was found empty.
        tried: pages at the last cut made although little seemed to be left.
        log_density: natural logarithm of keys per unit of the key space; its parent's, until it has its own.
        estimate: keys left, without those that the call in progress will find; None when it must be recomputed.
        scope: end of the part that the estimate covers: `(after, scope]`.
        trail: (pages, key, keys) at some earlier places: 1, 2, 4, 8 ... pages ago, and the start.
        parent: the range it was cut off, until its first report.
        risky: whether that cut was speculative.
        ended: whether the store says that nothing is left, which is asked once more.
    """

    after: str
    until: str | None
    start: str
    keys: int = 0
    pages: int = 0
    active: int | None = None
    misses: int = 0
    tried: int = 0
    log_density: float | None = None
    estimate: float | None = None
    scope: str | None = None
    trail: list[tuple[int, str, int]] = attrs.field(factory=list)
    parent: RemainingRange | None = None
    risky: bool = False
    ended: bool = False

    def advance(self, last_key: str, keys: int, pages: int) -> None:
        """Apply a report."""
        kept: dict[int, tuple[int, str, int]] = {}
        for entry in [*self.trail, (self.pages, self.after, self.keys)]:
            kept.setdefault((self.pages + pages - entry[0]).bit_length(), entry)
        self.trail = list(kept.values())
        self.after = last_key
        self.keys += keys
        self.pages += pages

    def reckon(self, space: KeySpace, past: KeyCountEstimate, page_size: int) -> float:
        """Estimate the remaining keys, and set the scope that they lie in.

        Uses the histogram while it holds; otherwise the density: keys seen over the part of the key space that they lay
        in, times the part that is left. Keys come in clusters (a folder with a hundred times as many objects as its
        neighbors). So densities are taken over the last 1, 2, 4, 8 ... pages, each extended no further than the end of
        the smallest subtree that holds those pages. The density since the start is extended to the end. The largest
        estimate counts: too high costs a call, too low costs waiting.
        """
        under_way = page_size if self.active is not None else 0
        self.scope = self.until
        if past.keys and (
            past.inside(self.after, self.until)
            or self.keys <= TRUSTED * past.between(self.start, self.until) + page_size
        ):
            return max(0.0, past.between(self.after, self.until) - under_way)
        if not self.trail:
            return max(0.0, self._carried(space, self.log_density, self.until) - under_way)
        best = 0.0
        for index, (_, key, keys) in enumerate(self.trail):
            size = space.log_size(key, self.after)
            if size is None:
                continue
            density = math.log(self.keys - keys) - size
            until = self.until
            if index == 0:
                self.log_density = density
            else:
                end = after_all(self.after[: shared_length(key, self.after)])
                until = end if end is not None and (until is None or end < until) else until
            left = self._carried(space, density, until)
            if left > best * NARROWER:
                best, self.scope = left, until
        return max(0.0, best - under_way)

    def _carried(self, space: KeySpace, log_density: float | None, until: str | None) -> float:
        size = space.log_size(self.after, until)
        return 0.0 if size is None or log_density is None else math.exp(min(log_density + size, MAX_LOG))
