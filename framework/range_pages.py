"""The pages of one range of a listing, checked: what threads and executors share.

A page is used only when its keys rise strictly and lie behind the key that was asked for; keys are compared as Python
strings, by code point, which is the order of their UTF-8 bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from operator import lt

from framework.errors import ListingError
from framework.range_tasks import Disagreement, RangeResult, RangeTask, samples_of
from framework.records import NativeObject
from framework.store import ListPage, ObjectStore

SECOND_LOOKS = 3
"""So often both sides of a cut are asked again before the store is taken for one without order."""

Ask = Callable[..., ListPage]
"""`ObjectStore.list_page`, or what calls it again when it fails."""


class OutOfOrderError(ListingError):
    """A page that key ranges cannot be made of: not in the order of the keys, or not behind the key asked for."""


def list_range(
    store: ObjectStore, task: RangeTask, *, prefix: str, page_size: int, ask: Ask | None = None
) -> Iterator[tuple[list[NativeObject], RangeResult]]:
    """The pages of one range, each with its report, for who lists ranges elsewhere, such as a Spark task.

    The reports go to the planner as one: see `merged`. At most `task.max_pages` calls, but for empty pages, which
    stores may put anywhere.

    Args:
        store: the bucket.
        task: the range.
        prefix: of the whole listing.
        page_size: keys in a page.
        ask: instead of `store.list_page`.

    Raises:
        ListingError: a page is out of order, or brought the listing no further.
    """
    where = f"{store.scheme}://{store.bucket}/{prefix}"
    after, pages = task.after, 0
    while True:
        bound = bound_of(store, task)
        page, calls = page_after(ask or store.list_page, where, prefix, after, page_size, until=bound)
        pages += calls
        keys = checked_keys(where, page, after)
        objects, result = in_range(task.number, page, keys, task.until, calls, bounded=bound is not None)
        yield objects, result
        if result.exhausted or result.last_key is None or result.last_key == task.until or pages >= task.max_pages:
            return
        after = result.last_key


def merged(results: Sequence[RangeResult]) -> RangeResult:
    """One report for the pages of one range, in order."""
    last = results[-1]
    return RangeResult(
        number=last.number,
        last_key=next((one.last_key for one in reversed(results) if one.last_key is not None), None),
        keys=sum(one.keys for one in results),
        pages=sum(one.pages for one in results),
        exhausted=last.exhausted,
        samples=[sample for one in results for sample in one.samples],
        beyond=last.beyond,
        bounded=last.bounded,
    )


def bound_of(store: ObjectStore, task: RangeTask) -> str | None:
    """Up to where pages of the range are asked for; None: the store, or the range, knows no such end."""
    return task.until if store.bounds_pages else None


def page_after(
    ask: Ask, where: str, prefix: str, after: str, page_size: int, *, until: str | None = None
) -> tuple[ListPage, int]:
    """The next page that has objects, or the last of all; and the calls that it took.

    Args:
        ask: makes one call.
        where: for messages.
        prefix: of the whole listing.
        after: exclusive.
        page_size: keys in a page.
        until: only of a store that bounds pages.

    Raises:
        ListingError: an empty page names itself as the next one.
    """
    bound = {} if until is None else {"until": until}
    page, calls = ask(prefix=prefix, after=after, continuation=None, page_size=page_size, **bound), 1
    while not page.objects and page.continuation is not None:
        continuation = page.continuation
        page = ask(prefix=prefix, after=after, continuation=continuation, page_size=page_size, **bound)
        calls += 1
        if page.continuation == continuation:
            raise ListingError(f"{where}: an empty page of the listing, behind {after!r}, repeats itself; stopped")
    return page, calls


def checked_keys(where: str, page: ListPage, after: str) -> list[str]:
    """The page's keys.

    Raises:
        OutOfOrderError: they do not rise strictly, or do not all lie behind `after`.
    """
    keys = [native.key for native in page.objects]
    if keys and after and keys[0] <= after:
        raise OutOfOrderError(
            f"{where}: asked for the keys behind {after!r}, the listing shows {keys[0]!r} first; "
            "it is out of order or makes no progress"
        )
    if not all(map(lt, keys, keys[1:])):
        before, key = next((one, two) for one, two in pairwise(keys) if one >= two)
        raise OutOfOrderError(f"{where}: the listing shows {key!r} after {before!r}; it is out of order")
    return keys


def in_range(
    number: int, page: ListPage, keys: Sequence[str], until: str | None, calls: int, *, bounded: bool = False
) -> tuple[list[NativeObject], RangeResult]:
    """The part of a page that lies in the range of task `number`, which ends at `until`, and the report about it.

    With `bounded` the page was asked for up to the end that the range had then.
    """
    count = len(keys) if until is None else bisect_right(keys, until)
    beyond = keys[count] if count < len(keys) else None
    mine = keys[:count]
    result = RangeResult(
        number=number,
        last_key=mine[-1] if mine else None,
        keys=count,
        pages=calls,
        exhausted=beyond is not None or page.continuation is None,
        samples=samples_of(mine),
        beyond=beyond,
        bounded=bounded,
    )
    return list(page.objects[:count]), result


def look_again(ask: Ask, where: str, prefix: str, page_size: int, doubt: Disagreement) -> None:
    """Asks for both sides of a cut again.

    Raises:
        OutOfOrderError: they still do not agree. In a store with another order than that of the keys, a range can have a
            hole although every page of it rises; every such hole shows at a cut.
    """

    def first_behind_cut(after: str) -> str | None:
        while True:
            page, _ = page_after(ask, where, prefix, after, page_size)
            keys = checked_keys(where, page, after)
            at = bisect_right(keys, doubt.cut)
            if at < len(keys):
                return keys[at]
            if not keys or page.continuation is None:
                return None
            after = keys[-1]

    for _ in range(SECOND_LOOKS):
        from_before, from_cut = first_behind_cut(doubt.before), first_behind_cut(doubt.cut)
        if from_before == from_cut:
            return
    raise OutOfOrderError(
        f"{where}: behind {doubt.cut!r} the listing shows {from_cut!r} first when asked so, "
        f"and {from_before!r} when coming from {doubt.before!r}; it is out of order"
    )
