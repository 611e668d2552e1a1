"""Which parts of a listing to ask for next, so that many can be asked for at once: the planner of key ranges.

    planner = RangePlanner(prefix="events/", workers=16)
    while not planner.finished:
        for task in planner.next_ranges(free):      # any number may be under way at once
            ...                                     # list at most task.max_pages pages behind task.after
            planner.report(result)                  # in any order

A range is half-open, `(after, until]`. Cut points need not exist as keys. Most stores' pages have no upper bound, so what a
range's last page shows beyond `until` is thrown away: a cut costs about half a call, and cuts are few and well placed.

How it is cut, in this order: by the histogram of the last pass; while the keys known all share more than they must, at the
ends of the subtrees that the first ones lie in (`logs/2024/01/01/` -> behind `logs/2024/01/`, `logs/2024/`, `logs/` ...), all
at once as far as calls are free, which finds the scale of the bucket in two or three round trips; then in equal parts of
what is left, by `framework.remainder` and `framework.keyspace`. Cuts that found nothing are counted, and only so many
are risked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from framework.histogram import Histogram, Marks, PastPass
from framework.keyspace import MAX_KEY_BYTES, KeySpace, after_all, shared_length
from framework.range_tasks import Disagreement, RangeResult, RangeTask, samples_of
from framework.remainder import OpenRange

__all__ = ["Disagreement", "Histogram", "RangePlanner", "RangeResult", "RangeTask", "samples_of"]

SMALLEST_PAGES = 3
"""A remainder that is estimated to have fewer pages is finished by its owner."""

FEW_PAGES = 3
"""Listed before the first cut while nothing is known: so few pages come in the order of the keys, each for one call."""

SMALLEST_KNOWN_PAGES = 8
"""The same while a histogram tells how much is left: the ranges are equal already, and each cut costs half a call."""

FREE_MISSES = 24
"""So many calls may find nothing, whatever the size of the bucket (two for each page so far, in the first few)."""

MISS_SHARE = 0.15
"""And so many more for each page."""

PRECISION = 0.05
"""A cut point is written out no longer than it takes to lie this near, as a part of what it cuts off."""


@attrs.define(slots=True)
class _Seam:
    """What is known of a cut from both sides: a tuple that holds the key, or holds None; None as long as unknown."""

    before: tuple[str, str | None] | None = None
    behind: tuple[str | None] | None = None


@attrs.define(slots=True)
class _Plan:
    """How one range is about to be cut.

    Attributes:
        parts: into how many.
        depths: (shallowest, deepest) subtree of its last key at whose end to cut; None = by the estimate.
        blind: in the middle, although the estimate says that little is left.
    """

    parts: int = 1
    depths: tuple[int, int] | None = None
    blind: bool = False


class RangePlanner:
    """Cuts a listing into ranges so that all workers stay busy until its end. For one thread at a time.

    Every key of the prefix behind `after` lies in exactly one range at any time, so whatever is guessed, each key is
    listed once. Memory is bounded by the workers and the histogram, not by the keys.

    Args:
        prefix: what is listed.
        after: the listing begins behind this key; empty = at the first.
        page_size: the most keys in a page.
        workers: how many ranges may be under way at once.
        max_pages: of one task. 1 for threads, which report each page; more where a report costs more than a page.
        histogram: of the last pass; empty when there is none.
        shrink: whether a range under way may be cut: who lists it must ask `until` before it uses a page, and throw away
            what lies behind. Without it only ranges that wait are cut, which suits waves.

    Attributes:
        pages: calls that were reported.
        keys: keys that were reported.
        misses: calls that brought no key.
        disagreements: cuts whose sides do not agree, for the caller to look into and take out.
    """

    def __init__(
        self,
        *,
        prefix: str = "",
        after: str = "",
        page_size: int = 1000,
        workers: int,
        max_pages: int = 1,
        histogram: Histogram = (),
        shrink: bool = True,
    ) -> None:
        self._page_size = page_size
        self._workers = workers
        self._max_pages = max_pages
        self._shrink = shrink
        self._space = KeySpace(prefix)
        self._marks = Marks()
        self._past = PastPass(
            [mark for mark in histogram if mark[0] > after and mark[0].startswith(prefix)], self._space
        )
        self._ranges = [OpenRange(after=after, until=None, start=after)]
        self._active: dict[int, OpenRange] = {}
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
        """Where the range of a task under way ends now; it may have been cut since the task was given out."""
        return self._active[number].until

    def histogram(self) -> list[tuple[str, int]]:
        """What the next pass over this prefix should start from; whole once the planner has finished."""
        return self._marks.histogram()

    def first_range(self) -> RangeTask:
        """The range at the start, for who has its first page already; before any other is asked for."""
        return self._begin(self._ranges[0])

    def next_ranges(self, free: int) -> list[RangeTask]:
        """Up to `free` ranges to list now, the largest first; ranges are cut when there are too few of them.

        Empty although the planner has not finished: what is left is under way, and too little to be cut.
        """
        waiting = [one for one in self._ranges if one.active is None]
        if free > len(waiting) and (self.pages >= FEW_PAGES or self._past.keys):
            self._cut(free - len(waiting))
            waiting = [one for one in self._ranges if one.active is None]
        if len(waiting) > free:
            waiting.sort(key=self._left, reverse=True)
        return [self._begin(one) for one in waiting[:free]]

    def _begin(self, one: OpenRange) -> RangeTask:
        self._number += 1
        one.active, one.estimate = self._number, None
        self._active[self._number] = one
        # the less is known, the sooner a report is wanted; in the end each worker has listed about as much as before
        pages = max(1, min(self._max_pages, self.pages // self._workers))
        return RangeTask(self._number, one.after, one.until, pages)

    def report(self, result: RangeResult) -> None:
        """Takes in what the listing of a range found.

        Raises:
            ValueError: it found no key and did not come to its end either.
        """
        if result.last_key is None and not result.exhausted:
            raise ValueError("a range without keys must be exhausted")
        one = self._active.pop(result.number)
        one.active = one.estimate = None
        self.pages += result.pages
        self.keys += result.keys
        self.misses += not result.keys
        if one.parent is not None:
            one.parent.misses = 0 if result.keys else one.parent.misses + 1
            one.parent.estimate = None
            one.parent = None
        if result.samples:
            self._space.observe([key for key, _ in result.samples])
            self._marks.add(result.samples)
        if not one.pages and one.start in self._seams:
            if result.samples or result.looked_beyond:
                self._seams[one.start].behind = (result.samples[0][0] if result.samples else result.beyond,)
                self._compare(one.start)
            else:
                del self._seams[one.start]
        if result.last_key is not None:
            one.advance(result.last_key, result.keys, result.pages)
        if result.exhausted or one.after == one.until:
            self._ranges.remove(one)
            if one.until in self._seams and one.until is not None:
                # the key of the cut was the last, or the store was asked for no more: nothing behind it was seen from here
                if one.after == one.until or not result.looked_beyond:
                    del self._seams[one.until]
                else:
                    self._seams[one.until].before = (one.after, result.beyond)
                    self._compare(one.until)

    def _compare(self, cut: str) -> None:
        seam = self._seams[cut]
        if seam.before is None or seam.behind is None:
            return
        del self._seams[cut]
        if seam.before[1] != seam.behind[0]:
            self.disagreements.append(Disagreement(seam.before[0], cut, seam.before[1], seam.behind[0]))

    # ---- what to cut

    def _left(self, one: OpenRange) -> float:
        if one.estimate is None:
            one.estimate = one.reckon(self._space, self._past, self._page_size)
        return one.estimate

    def _cut(self, count: int) -> None:
        """Cuts up to `count` new ranges off those there are: always off the one with the largest part left."""
        least = self._page_size * (SMALLEST_KNOWN_PAGES if self._past.keys else SMALLEST_PAGES)
        risk = self._misses_left()
        # one that has shown no key is not cut: it may be empty, and all that is cut off it too
        able = [
            one
            for one in self._ranges
            if (self._shrink or one.active is None) and (one.pages or self._past.inside(one.after, one.until))
        ]
        plans: dict[OpenRange, _Plan] = {}
        while count > 0 and able:
            best = max(able, key=lambda one: self._left(one) / (plans[one].parts if one in plans else 1))
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
        for one, plan in plans.items():
            cuts = [cut for cut in self._cuts(one, plan) if cut > one.after and (one.until is None or cut < one.until)]
            risky = self._is_risky(one, plan)
            if not cuts:
                one.estimate, one.tried = 0.0, one.pages
            self._split(one, [cut for cut in cuts if len(cut.encode()) <= MAX_KEY_BYTES], risky=risky)

    def _is_risky(self, one: OpenRange, plan: _Plan) -> bool:
        return plan.blind or plan.depths is not None or one.misses > 0 or one.pages < 2  # noqa: PLR2004

    def _misses_left(self) -> int:
        """How many more calls may turn out to be for nothing, those under way left out."""
        tries = sum(one.parent is not None and one.risky for one in self._ranges)
        return int(min(1 + 2 * self.pages, FREE_MISSES + MISS_SHARE * self.pages)) - self.misses - tries

    def _worth_a_try(self, able: list[OpenRange], plans: dict[OpenRange, _Plan], count: int) -> OpenRange | None:
        """When most workers idle: the range that brought most, for it goes on to surprise (Lindy's law).

        Seen where the first keys are no sample of the rest: `key-1`, `key-10`, `key-100`, `key-1000` ...
        """
        if self._past.keys or count < len(self._ranges):
            return None
        least = SMALLEST_PAGES * self._page_size
        able = [
            one for one in able if one not in plans and one.pages > 2 * one.tried and one.keys >= least * 2**one.misses
        ]
        best = max(able, key=lambda one: one.keys, default=None)
        if best is not None:
            best.tried = best.pages
        return best

    # ---- where to cut it

    def _depths(self, one: OpenRange) -> tuple[int, int] | None:
        """Subtrees of its last key that no known key lies outside of, although keys could."""
        if self._past.inside(one.after, one.until):
            return None
        stem = self._space.stem(one.after, one.until)
        first = self._marks.first(stem)
        deepest = 0 if first is None else shared_length(first, one.after)
        return (len(stem), deepest) if deepest > len(stem) else None

    def _cuts(self, one: OpenRange, plan: _Plan) -> list[str]:
        shares = [part / plan.parts for part in range(1, plan.parts)]
        if plan.depths is not None:
            top, deepest = plan.depths
            ends = {after_all(one.after[: top + max(1, round(share * (deepest - top)))]) for share in shares}
            return sorted(end for end in ends if end is not None)
        left = self._left(one)
        under_way = self._page_size if one.active is not None else 0
        inside = self._past.inside(one.after, one.until)
        if inside:
            done = self._past.up_to(one.after) + under_way
            wanted = (self._past.at_sum(done + left * share) for share in shares)
            return sorted({self._past.keys[min(max(at, inside[0]), inside[-1])] for at in wanted})
        stem, low, high = self._space.span(one.after, one.until if plan.blind else one.scope)
        if not plan.blind:
            total = under_way + left
            # after a miss the scale is in doubt: the middle between a page and the estimate on a logarithmic scale
            shares = [
                math.sqrt(self._page_size / total) if one.misses else (under_way + left * share) / total
                for share in shares
            ]
        precision = PRECISION * (high - low) / plan.parts
        return sorted({self._space.key_at(stem, low + (high - low) * share, precision) for share in shares})

    def _split(self, one: OpenRange, cuts: Sequence[str], *, risky: bool = False) -> None:
        if not cuts:
            return
        at = self._ranges.index(one) + 1
        self._ranges[at:at] = [
            OpenRange(after=cut, until=end, start=cut, log_density=one.log_density, parent=one, risky=risky)
            for cut, end in zip(cuts, [*cuts[1:], one.until], strict=True)
        ]
        self._seams.update((cut, _Seam()) for cut in cuts)
        one.until, one.estimate = cuts[0], None
