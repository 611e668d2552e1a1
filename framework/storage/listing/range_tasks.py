"""Tasks and results of the planner of key ranges. Picklable values without a store."""

from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen(slots=True)
class RangeTask:
    """A range to list: the keys `after < key <= until`.

    Attributes:
        number: identifies it in the report.
        after: exclusive; need not exist.
        until: inclusive; need not exist. None = to the end of the prefix.
        max_pages: stop after this many pages, wherever that is.
        ended: whether the store said that nothing follows, which this task confirms.
    """

    number: int
    after: str
    until: str | None
    max_pages: int
    ended: bool = False


@attrs.frozen(kw_only=True, slots=True)
class RangeResult:
    """The result of listing a range.

    Attributes:
        number: the task's number.
        last_key: the last key found in the range; None if none was, and then the range must be exhausted.
        keys: number of keys found in it.
        pages: number of calls.
        exhausted: whether nothing is left of the range.
        samples: some of the keys in order, with the first and the last. Each has the number of keys after the previous
            sample up to and including it: 1 for the first. See `samples_of`.
        beyond: the first key after `until`, if the range is exhausted because that key was seen; else None.
        bounded: whether the store was asked for no key after `until`: then a missing `beyond` proves nothing.
    """

    number: int
    last_key: str | None
    keys: int
    pages: int
    exhausted: bool
    samples: Sequence[tuple[str, int]] = ()
    beyond: str | None = None
    bounded: bool = False

    @property
    def looked_beyond(self) -> bool:
        """Whether `beyond` is certainly the first key after the range."""
        return self.beyond is not None or not self.bounded


@attrs.frozen(slots=True)
class Disagreement:
    """A cut whose two sides, both listed, disagree on the first key after it.

    A key was written or deleted there between the two calls, or the store is unordered and its ranges have holes.
    Requesting both sides again decides.

    Attributes:
        before: the last key that was listed before the cut, or where that listing began.
        cut: the cut point.
    """

    before: str
    cut: str


def samples_of(keys: Sequence[str], most: int = 4) -> list[tuple[str, int]]:
    """Return the samples of a page's keys for a report: the first, the last, and some between at equal distances."""
    if not keys:
        return []
    step = max(1, -(-len(keys) // most))
    chosen = [0, *range(step, len(keys) - 1, step), *([len(keys) - 1] if len(keys) > 1 else [])]
    return [(keys[at], at - before) for before, at in zip([-1, *chosen], chosen, strict=False)]
