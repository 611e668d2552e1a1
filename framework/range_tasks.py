"""What the planner of key ranges gives out and takes back. Values: they pickle, and know no store."""

from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen(slots=True)
class RangeTask:
    """A range to list: the keys `after < key <= until`.

    Attributes:
        number: names it in the report.
        after: exclusive; need not exist.
        until: inclusive; need not exist. None = to the end of the prefix.
        max_pages: stop after so many pages, wherever that is.
    """

    number: int
    after: str
    until: str | None
    max_pages: int


@attrs.frozen(kw_only=True, slots=True)
class RangeResult:
    """What the listing of a range found.

    Attributes:
        number: the task's.
        last_key: the last key in the range; None when none was found, and then the range must be exhausted.
        keys: how many were in it.
        pages: calls that were made.
        exhausted: whether nothing is left of the range.
        samples: some of the keys in order, the first and the last among them, each with how many keys there are from the
            sample before (exclusive) to this one (inclusive): 1 with the first. See `samples_of`.
        beyond: the first key behind `until`, when the range is exhausted because it was seen; else None.
        bounded: whether the store was asked to show nothing behind `until`: then no `beyond` says nothing about what is there.
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
        """Whether `beyond` is what really comes first behind the range."""
        return self.beyond is not None or not self.bounded


@attrs.frozen(slots=True)
class Disagreement:
    """Both sides of a cut were listed, and they do not agree on which key comes first behind it.

    A key was written or deleted there between the two calls, or the store does not list in the order of its keys and
    ranges of it have holes. Asking for both once more tells which.

    Attributes:
        before: the last key that was listed before the cut, or where that listing began.
        cut: the cut point.
        from_before: the first key behind the cut, as the listing that came from before it showed it; None = none.
        from_cut: the first key of the listing that began at the cut; None = none.
    """

    before: str
    cut: str
    from_before: str | None
    from_cut: str | None


def samples_of(keys: Sequence[str], most: int = 4) -> list[tuple[str, int]]:
    """The samples of a page's keys for a report: the first, the last, and some between at equal distances."""
    if not keys:
        return []
    step = max(1, -(-len(keys) // most))
    chosen = [0, *range(step, len(keys) - 1, step), *([len(keys) - 1] if len(keys) > 1 else [])]
    return [(keys[at], at - before) for before, at in zip([-1, *chosen], chosen, strict=False)]
