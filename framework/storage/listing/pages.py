"""Validated pages of one range of a listing; shared by threads and executors.

A page is used only if its keys rise strictly and lie after the requested key. Keys are compared as Python strings, by
code point, which is the order of their UTF-8 bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import lt
from typing import Any

import attrs

from framework.errors import ListingError, StoreContractError, StoreUnavailableError
from framework.model.objects import NativeObject
from framework.storage.author_code import author_code
from framework.storage.listing.range_tasks import Disagreement, RangeResult, RangeTask, samples_of
from framework.store import Chain, ListPage, ObjectStore

Ask = Callable[..., ListPage]
"""`ObjectStore.list_page`, or a wrapper that retries it."""


def checked_page(store: ObjectStore, *, prefix: str, **call: Any) -> ListPage:
    """Return a page of a store, checked in constant time: of its objects the first is looked at.

    Raises:
        StoreContractError: it is no page, or the store failed with an error that is none of the framework's.
    """
    where = f"{store.scheme}://{store.bucket}/{prefix}"
    with author_code(f"{where}: listing it"):
        page: object = store.list_page(prefix=prefix, **call)
    if not isinstance(page, ListPage):
        found = type(page).__name__
    elif not isinstance(page.objects, Sequence):
        found = f"a page whose objects are {type(page.objects).__name__}"
    elif page.objects and not isinstance(page.objects[0], NativeObject):
        found = f"a page of {type(page.objects[0]).__name__}"
    elif page.objects and not isinstance(page.objects[0].key, str):
        found = f"an object with the key {page.objects[0].key!r}"
    else:
        return page
    raise StoreContractError(
        f"{where}: {type(store).__name__}.list_page returned {found}, not a ListPage with a list of NativeObject"
    )


def check_prefix(where: str, page: ListPage, prefix: str, *, in_order: bool = True) -> None:
    """Check that a page shows keys of the prefix only; of a page in order its ends tell.

    Raises:
        ListingError: it shows another: what answers lost the prefix on the way, or answers another request.
    """
    objects = page.objects
    if objects and page.exact:
        for native in (objects[0], objects[-1]) if in_order else objects:
            if not native.key.startswith(prefix):
                raise ListingError(
                    f"{where}: the listing shows {native.key!r}, which does not begin with the prefix that was asked for; "
                    "check the endpoint, and what lies in between"
                )


def check_versions(where: str, page: ListPage) -> None:
    """Check that a page shows no key in two versions: each listing would begin the object twice, and again.

    Raises:
        ListingError: it does.
    """
    versions: dict[str, str] = {}
    for native in page.objects if page.exact else ():  # else two keys may be shown as one
        if versions.setdefault(native.key, native.version) != native.version:
            raise ListingError(
                f"{where}: the listing shows {native.key!r} twice, as {versions[native.key]!r} and {native.version!r}; a store "
                "lists the present version of each key, and no other"
            )


class OutOfOrderError(ListingError):
    """A page unusable for key ranges: not in key order, or not after the requested key."""


def list_range(
    store: ObjectStore, task: RangeTask, *, prefix: str, page_size: int, ask: Ask | None = None
) -> Iterator[tuple[list[NativeObject], RangeResult]]:
    """Yield the pages of a range, each with its report, for listings that run elsewhere, such as in a Spark task.

    The planner takes the reports as one: see `merged`. At most `task.max_pages` calls, except for empty pages, which
    stores may return anywhere.

    Args:
        store: the bucket.
        task: the range.
        prefix: prefix of the whole listing.
        page_size: keys per page.
        ask: replaces `store.list_page`.

    Raises:
        ListingError: a page is out of order, or made no progress.
    """
    where = f"{store.scheme}://{store.bucket}/{prefix}"
    after, pages = task.after, 0
    while True:
        bound = bound_of(store, task)
        page, calls = page_after(ask or store.list_page, where, prefix, after, page_size, until=bound, ended=task.ended)
        pages += calls
        keys = checked_keys(where, page, after)
        objects, result = in_range(task.number, page, keys, task.until, calls, bounded=bound is not None)
        yield objects, result
        if result.exhausted or result.last_key is None or result.last_key == task.until or pages >= task.max_pages:
            return
        after = result.last_key


def merged(results: Sequence[RangeResult]) -> RangeResult:
    """Merge the reports of a range's pages, in order."""
    last = results[-1]
    return RangeResult(
        number=last.number,
        last_key=next((result.last_key for result in reversed(results) if result.last_key is not None), None),
        keys=sum(result.keys for result in results),
        pages=sum(result.pages for result in results),
        exhausted=last.exhausted,
        samples=[sample for result in results for sample in result.samples],
        beyond=last.beyond,
        bounded=last.bounded,
    )


def bound_of(store: ObjectStore, task: RangeTask) -> str | None:
    """Return the end that pages of the range are requested with; None: the store or the range has no such bound."""
    return task.until if store.bounds_pages else None


def page_after(
    ask: Ask, where: str, prefix: str, after: str, page_size: int, *, until: str | None = None, ended: bool = False
) -> tuple[ListPage, int]:
    """Return the next page that has objects, or the last page; and the number of calls.

    Args:
        ask: makes one call.
        where: place, for messages.
        prefix: prefix of the whole listing.
        after: exclusive start key.
        page_size: keys per page.
        until: only for a store that bounds pages.
        ended: whether the store said that nothing follows `after`, which this call confirms.

    Raises:
        ListingError: empty pages form a cycle, or a page shows keys of another prefix.
        StoreUnavailableError: twice the answer that was to confirm an end `answers_another` request.
    """
    bound = {} if until is None else {"until": until}
    page, calls = ask(prefix=prefix, after=after, continuation=None, page_size=page_size, **bound), 1
    check_prefix(where, page, prefix)
    chain = Chain(where) if not page.objects else None
    while chain is not None and not page.objects and page.continuation is not None:
        chain.check(page)
        page = ask(prefix=prefix, after=after, continuation=page.continuation, page_size=page_size, **bound)
        check_prefix(where, page, prefix)
        calls += 1
    if ended and page.continuation is None:
        if answers_another(page, after):
            page = ask(prefix=prefix, after=after, continuation=None, page_size=page_size, **bound)
            calls += 1
        if page.continuation is None:
            page = behind(where, page, after)
    return page, calls


def answers_another(page: ListPage, after: str) -> bool:
    """Return whether a last page shows keys, and none from `after` on, a key that the store has shown.

    A server that takes no start key shows that key once more: the page belongs to another request, and proves no end.
    """
    return page.continuation is None and bool(page.objects) and all(native.key < after for native in page.objects)


def behind(where: str, page: ListPage, after: str) -> ListPage:
    """Return what a page shows behind `after`: a server that takes no start key shows all keys once more.

    Raises:
        StoreUnavailableError: it `answers_another` request.
    """
    if answers_another(page, after):
        raise StoreUnavailableError(
            f"{where}: asked for the keys behind {after!r}, the listing ends with {page.objects[-1].key!r}: it answers another "
            "request; when that stays so, check the endpoint, and what lies in between"
        )
    return attrs.evolve(page, objects=[native for native in page.objects if native.key > after])


def checked_keys(where: str, page: ListPage, after: str) -> list[str]:
    """Return the page's keys, validated.

    Raises:
        OutOfOrderError: they do not rise strictly, do not all lie after `after`, or are not shown exactly.
    """
    keys = [native.key for native in page.objects]
    if not page.exact:
        shown = next((key for key in keys if "\ufffd" in key), "")
        raise OutOfOrderError(f"{where}: the listing shows {shown!r} for a key that it cannot show as it is")
    if keys and after and keys[0] <= after:
        raise OutOfOrderError(
            f"{where}: asked for the keys behind {after!r}, the listing shows {keys[0]!r} first; "
            "it is out of order or makes no progress"
        )
    if not all(map(lt, keys, keys[1:])):
        before, key = next((first, two) for first, two in pairwise(keys) if first >= two)
        raise OutOfOrderError(f"{where}: the listing shows {key!r} after {before!r}; it is out of order")
    return keys


def in_range(
    number: int, page: ListPage, keys: Sequence[str], until: str | None, calls: int, *, bounded: bool = False
) -> tuple[list[NativeObject], RangeResult]:
    """Return the part of a page in the range of task `number`, which ends at `until`, and the report about it.

    With `bounded` the page was requested up to the range's end at that time.
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


@attrs.frozen
class _Seen:
    """The keys after a cut in one answer, and their versions; up to `until`, or all of them."""

    versions: Mapping[str, str]
    until: str | None

    def covers(self, key: str) -> bool:
        return self.until is None or key <= self.until


def look_again(ask: Ask, where: str, prefix: str, page_size: int, doubt: Disagreement) -> None:
    """Request both sides of a cut again, each twice and alternately, and accept only proof that changes cannot explain.

    In a store with another order than that of the keys, a range can have a hole although every page of it rises. Every
    such hole shows at a cut. So does a key that is written or deleted between two calls; in a bucket used as a queue,
    at every cut. Proof of a hole is a key that one side shows twice in the same version, while the other side's answer in
    between lacks it. In another version it was deleted and written again, as a lock file is.

    Raises:
        OutOfOrderError: a hole is proven.
    """

    def behind_cut(after: str) -> _Seen:
        while True:
            page, _ = page_after(ask, where, prefix, after, page_size)
            keys = checked_keys(where, page, after)
            at = bisect_right(keys, doubt.cut)
            last = not keys or page.continuation is None
            if at < len(keys) or last:
                versions = {native.key: native.version for native in page.objects[at:]}
                return _Seen(versions, None if last else keys[-1])
            after = keys[-1]

    looks = [behind_cut(after) for after in (doubt.cut, doubt.before, doubt.cut, doubt.before)]
    for first, between, second in ((0, 1, 2), (1, 2, 3)):
        shown = dict(looks[first].versions.items() & looks[second].versions.items())
        missing = shown.keys() - looks[between].versions.keys()
        proof = min((key for key in missing if looks[between].covers(key)), default=None)
        if proof is not None:
            sides = (f"behind {doubt.cut!r}", f"coming from {doubt.before!r}")
            raise OutOfOrderError(
                f"{where}: the listing shows {proof!r} when asked {sides[first]}, twice, and in between not when asked "
                f"{sides[between % 2]}; it is out of order"
            )
