"""Planner of key ranges: chooses the parts of a listing to request next, so that many can be requested at once.

    planner = RangePlanner(prefix="events/", workers=16)
    while not planner.finished:
        for task in planner.next_ranges(free):      # any number may be in progress at once
            ...                                     # list at most task.max_pages pages after task.after
            planner.report(result)                  # in any order

A range is half-open, `(after, until]`. Cut points need not exist as keys. Most stores' pages have no upper bound, so
the part of a range's last page beyond `until` is discarded. A cut thus costs about half a call, and cuts are few and
well placed.

Ranges are cut in this order:

1. By the histogram of the last listing.
2. While all known keys share more than they must: at the ends of the subtrees that contain the first keys
   (`logs/2024/01/01/` -> after `logs/2024/01/`, `logs/2024/`, `logs/` ...). As many cuts at once as calls are free:
   this finds the scale of the bucket in two or three round trips.
3. In equal parts of the remaining keys (`remaining_range` and `keyspace` of this package).

Cuts that found nothing are counted, and their number is limited.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from framework.storage.listing.histogram import Histogram, HistogramBuilder, KeyCountEstimate
from framework.storage.listing.keyspace import MAX_KEY_BYTES, KeySpace, after_all, bytes_of, shared_length
from framework.storage.listing.range_tasks import Disagreement, RangeResult, RangeTask, samples_of
from framework.storage.listing.remaining_range import RemainingRange

__all__ = ["Disagreement", "Histogram", "RangePlanner", "RangeResult", "RangeTask", "samples_of"]

SMALLEST_PAGES = 3
"""A range with fewer estimated pages left is not cut; its owner finishes it."""

FEW_PAGES = 3
"""Pages listed before the first cut while nothing is known: they come in key order, one call each."""

SMALLEST_KNOWN_PAGES = 8
"""Like SMALLEST_PAGES, with a histogram: the ranges are equal already, and each cut costs half a call."""

FREE_MISSES = 24
"""Maximum of calls that may find nothing, whatever the bucket's size (2 per page plus 1, while there are few pages)."""

MISS_SHARE = 0.15
"""Further such calls allowed per page."""

MAX_CONFIRMATIONS = 1000
"""Maximum of ends that a listing confirms: a writer that is faster than a call shows a new key at each."""

PRECISION = 0.05
"""Precision of a cut point, as a fraction of the part cut off; its text is no longer than needed for this."""


@attrs.define(slots=True)
class _Seam:
    """Both sides of a cut: a tuple with the key, or with None for no key; None while unknown."""

    before: tuple[str, str | None] | None = None
    behind: tuple[str | None] | None = None


@attrs.define(slots=True)
class _Plan:
    """A planned split of one range.

    Attributes:
        parts: number of parts.
        depths: (shallowest, deepest) subtree of its last key at whose end to cut; None = by the estimate.
        blind: cut in the middle, although the estimate says that little is left.
    """

    parts: int = 1
    depths: tuple[int, int] | None = None
    blind: bool = False


@attrs.define(kw_only=True, eq=False, repr=False, slots=False)
class RangePlanner:
    """Split a listing into ranges so that all workers stay busy until its end. Not thread-safe.

    Every key of the prefix after `after` lies in exactly one range at any time. So each key is listed once, whatever
    the estimates. Memory is bounded by the workers and the histogram, not by the keys.

    Args:
        prefix: prefix to list.
        after: the listing starts after this key; empty = at the first.
        page_size: maximum of keys per page.
        workers: maximum of ranges in progress at once.
        max_pages: maximum of pages per task. 1 for threads, which report each page; more where a report costs more than
            a page.
        histogram: histogram of the last listing; empty when there is none.
        ends_are_reliable: whether a page that claims to be the last is; otherwise the range is asked for once more.
        shrink: whether a range in progress may be cut. Its lister must then check `until` before it uses a page, and
            discard what lies after. Otherwise only waiting ranges are cut, which suits waves.

    Attributes:
        pages: calls that were reported.
        keys: keys that were reported.
        misses: calls that found no key.
        disagreements: cuts whose sides disagree, for the caller to examine and remove.
    """

    _prefix: str = ""
    _after: str = ""
    _page_size: int = 1000
    _workers: int
    _max_pages: int = 1
    _histogram: Histogram = ()
    _ends_are_reliable: bool = True
    _shrink: bool = True

    def __attrs_post_init__(self) -> None:
        prefix, after = self._prefix, self._after
        self._confirmations = 0 if self._ends_are_reliable else MAX_CONFIRMATIONS
        self._space = KeySpace(prefix)
        self._marks = HistogramBuilder()
        self._past = KeyCountEstimate(
            [mark for mark in self._histogram if mark[0] > after and mark[0].startswith(prefix)], self._space
        )
        self._ranges = [RemainingRange(after=after, until=None, start=after)]
        self._active: dict[int, RemainingRange] = {}
        self._seams: dict[str, _Seam] = {}
        self._number = 0
        self.pages = 0
        self.keys = 0
        self.misses = 0
        self.disagreements: list[Disagreement] = []
        self._cut_by_histogram()

    def _cut_by_histogram(self) -> None:
        past = self._past
        self._space.observe(past.keys)
        parts = min(self._workers, past.total // (SMALLEST_KNOWN_PAGES * self._page_size))
        cuts = {past.keys[past.at_sum(past.total * part / parts)] for part in range(1, parts)}
        self._split(self._ranges[0], sorted(cuts - set(past.keys[-1:])))

    @property
    def finished(self) -> bool:
        """Whether every range was listed to its end."""
        return not self._ranges

    def until(self, number: int) -> str | None:
        """Return the current end of the range of a task in progress; it may have been cut since the task began."""
        return self._active[number].until

    def histogram(self) -> list[tuple[str, int]]:
        """Return the histogram for the next listing of this prefix; complete once the planner has finished."""
        return self._marks.histogram()

    def next_ranges(self, free: int) -> list[RangeTask]:
        """Return up to `free` ranges to list now, the largest first; cuts ranges if there are too few.

        Empty before the planner has finished: the rest is in progress, and too small to cut.
        """
        waiting = [open_range for open_range in self._ranges if open_range.active is None]
        if free > len(waiting) and (self.pages >= FEW_PAGES or self._past.keys):
            self._cut(free - len(waiting))
            waiting = [open_range for open_range in self._ranges if open_range.active is None]
        if len(waiting) > free:
            waiting.sort(key=self._left, reverse=True)
        return [self._begin(open_range) for open_range in waiting[:free]]

    def _begin(self, open_range: RemainingRange) -> RangeTask:
        self._number += 1
        open_range.active, open_range.estimate = self._number, None
        self._active[self._number] = open_range
        # the less is known, the sooner a report is needed; at the end each worker has listed about as much as before
        pages = max(1, min(self._max_pages, self.pages // self._workers))
        return RangeTask(self._number, open_range.after, open_range.until, pages, open_range.ended)

    def report(self, result: RangeResult) -> None:
        """Apply the result of listing a range.

        Raises:
            ValueError: it found no key and did not reach its end either.
        """
        if result.last_key is None and not result.exhausted:
            raise ValueError("a range without keys must be exhausted")
        open_range = self._active.pop(result.number)
        open_range.active = open_range.estimate = None
        self.pages += result.pages
        self.keys += result.keys
        self.misses += not result.keys
        if open_range.parent is not None:
            open_range.parent.misses = 0 if result.keys else open_range.parent.misses + 1
            open_range.parent.estimate = None
            open_range.parent = None
        if result.samples:
            self._space.observe([key for key, _ in result.samples])
            self._marks.add(result.samples)
        if not open_range.pages and open_range.start in self._seams:
            if result.samples or result.looked_beyond:
                self._seams[open_range.start].behind = (result.samples[0][0] if result.samples else result.beyond,)
                self._compare(open_range.start)
            else:
                del self._seams[open_range.start]
        if result.last_key is not None:
            open_range.advance(result.last_key, result.keys, result.pages)
        ended = result.exhausted and result.beyond is None
        open_range.ended = ended and self.confirms_end(result.last_key)
        if (result.exhausted and not open_range.ended) or open_range.after == open_range.until:
            self._ranges.remove(open_range)
            if open_range.until in self._seams and open_range.until is not None:
                # the cut's key was the last, or the request was bounded: this side saw nothing after the cut
                if open_range.after == open_range.until or not result.looked_beyond:
                    del self._seams[open_range.until]
                else:
                    self._seams[open_range.until].before = (open_range.after, result.beyond)
                    self._compare(open_range.until)

    def confirms_end(self, last_key: str | None) -> bool:
        """Return whether to ask once more behind the last key of a page that claims to be the last; None = it has none.

        Not behind a control character: some servers refuse it as a start key.
        """
        if not last_key or not last_key.isprintable() or not self._confirmations:
            return False
        self._confirmations -= 1
        return True

    def _compare(self, cut: str) -> None:
        seam = self._seams[cut]
        if seam.before is None or seam.behind is None:
            return
        del self._seams[cut]
        if seam.before[1] != seam.behind[0]:
            self.disagreements.append(Disagreement(seam.before[0], cut))

    # ---- choosing the ranges to cut

    def _left(self, open_range: RemainingRange) -> float:
        if open_range.estimate is None:
            open_range.estimate = open_range.reckon(self._space, self._past, self._page_size)
        return open_range.estimate

    def _cut(self, count: int) -> None:
        """Cut up to `count` new ranges, always off the range with the largest part left."""
        for open_range, plan in self._plan_cuts(count).items():
            cuts = [
                cut
                for cut in self._cuts(open_range, plan)
                if cut > open_range.after and (open_range.until is None or cut < open_range.until)
            ]
            risky = self._is_risky(open_range, plan)
            if not cuts:
                open_range.estimate, open_range.tried = 0.0, open_range.pages
            self._split(open_range, [cut for cut in cuts if bytes_of(cut) <= MAX_KEY_BYTES], risky=risky)

    def _plan_cuts(self, count: int) -> dict[RemainingRange, _Plan]:
        """Choose the ranges to cut, and into how many parts."""
        least = self._page_size * (SMALLEST_KNOWN_PAGES if self._past.keys else SMALLEST_PAGES)
        risk = self._misses_left()
        # a range that has shown no key is not cut: it may be empty, and so may all its parts
        able = [
            open_range
            for open_range in self._ranges
            if (self._shrink or open_range.active is None)
            and not open_range.ended
            and (open_range.pages or self._past.inside(open_range.after, open_range.until))
        ]
        plans: dict[RemainingRange, _Plan] = {}
        while count > 0 and able:
            best = max(
                able,
                key=lambda open_range: self._left(open_range) / (plans[open_range].parts if open_range in plans else 1),
            )
            plan = plans.get(best)
            if self._left(best) < least * (plan.parts if plan else 1):
                tried = self._worth_a_try(able, plans, count)
                if tried is None:
                    break
                best, plan = tried, _Plan(blind=True)
            plan = plan or _Plan(depths=self._depths(best))
            risky = self._is_risky(best, plan)
            spent = (
                plan.parts > plan.depths[1] - plan.depths[0] if plan.depths else (best.misses > 0 and plan.parts > 1)
            )
            if (risky and risk <= 0) or spent:
                able.remove(best)
                continue
            plan.parts += 1
            plans[best] = plan
            risk -= int(risky)
            count -= 1
        return plans

    def _is_risky(self, open_range: RemainingRange, plan: _Plan) -> bool:
        return plan.blind or plan.depths is not None or open_range.misses > 0 or open_range.pages < 2  # noqa: PLR2004

    def _misses_left(self) -> int:
        """Return how many more calls may find nothing, without those in progress."""
        tries = sum(open_range.parent is not None and open_range.risky for open_range in self._ranges)
        return int(min(1 + 2 * self.pages, FREE_MISSES + MISS_SHARE * self.pages)) - self.misses - tries

    def _worth_a_try(
        self, able: list[RemainingRange], plans: dict[RemainingRange, _Plan], count: int
    ) -> RemainingRange | None:
        """Return, when most workers idle, the range with the most keys: it is the likeliest to hold more (Lindy's law).

        This happens where the first keys are no sample of the rest: `key-1`, `key-10`, `key-100`, `key-1000` ...
        """
        if self._past.keys or count < len(self._ranges):
            return None
        least = SMALLEST_PAGES * self._page_size
        able = [
            open_range
            for open_range in able
            if open_range not in plans
            and open_range.pages > 2 * open_range.tried
            and open_range.keys >= least * 2**open_range.misses
        ]
        best = max(able, key=lambda open_range: open_range.keys, default=None)
        if best is not None:
            best.tried = best.pages
        return best

    # ---- where to cut it

    def _depths(self, open_range: RemainingRange) -> tuple[int, int] | None:
        """Return the subtrees of its last key outside of which no key is known, although keys could exist."""
        if self._past.inside(open_range.after, open_range.until):
            return None
        stem = self._space.stem(open_range.after, open_range.until)
        first = self._marks.first(stem)
        deepest = 0 if first is None else shared_length(first, open_range.after)
        return (len(stem), deepest) if deepest > len(stem) else None

    def _cuts(self, open_range: RemainingRange, plan: _Plan) -> list[str]:
        shares = [part / plan.parts for part in range(1, plan.parts)]
        if plan.depths is not None:
            top, deepest = plan.depths
            ends = {after_all(open_range.after[: top + max(1, round(share * (deepest - top)))]) for share in shares}
            return sorted(end for end in ends if end is not None)
        left = self._left(open_range)
        under_way = self._page_size if open_range.active is not None else 0
        inside = self._past.inside(open_range.after, open_range.until)
        if inside:
            done = self._past.up_to(open_range.after) + under_way
            wanted = (self._past.at_sum(done + left * share) for share in shares)
            return sorted({self._past.keys[min(max(at, inside[0]), inside[-1])] for at in wanted})
        stem, low, high = self._space.span(open_range.after, open_range.until if plan.blind else open_range.scope)
        if not plan.blind:
            total = under_way + left
            # after a miss the scale is in doubt: the middle between a page and the estimate on a logarithmic scale
            shares = [
                math.sqrt(self._page_size / total) if open_range.misses else (under_way + left * share) / total
                for share in shares
            ]
        precision = PRECISION * (high - low) / plan.parts
        return sorted({self._space.key_at(stem, low + (high - low) * share, precision) for share in shares})

    def _split(self, open_range: RemainingRange, cuts: Sequence[str], *, risky: bool = False) -> None:
        if not cuts:
            return
        at = self._ranges.index(open_range) + 1
        self._ranges[at:at] = [
            RemainingRange(
                after=cut, until=end, start=cut, log_density=open_range.log_density, parent=open_range, risky=risky
            )
            for cut, end in zip(cuts, [*cuts[1:], open_range.until], strict=True)
        ]
        self._seams.update((cut, _Seam()) for cut in cuts)
        open_range.until, open_range.estimate = cuts[0], None
