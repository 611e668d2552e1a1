"""Parallel listing of one prefix of a bucket: threads over the planner of key ranges.

    with list_parallel(store, prefix="events/", policy=policy, concurrency=16) as listing:
        for objects in listing:                    # a list for each page
            ...
    histogram = listing.histogram                  # for the next listing

Each thread requests one page, hands it on and takes the next task, so the planner can move work after every page.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol

import attrs
from typing_extensions import Self, override

from framework.model.key_range import KeyRange
from framework.model.objects import NativeObject
from framework.storage.listing.engine import ListingCounts, ListingEngine
from framework.storage.listing.histogram import Histogram
from framework.storage.listing.limiter import CallLimiter
from framework.storage.retry import OnRetry, RetryPolicy
from framework.store import ListPage, ObjectStore

__all__ = ["Listing", "ListingCounts", "ListingRequest", "ParallelListing", "list_parallel"]


@attrs.frozen(kw_only=True, slots=True)
class ListingRequest:
    """A listing request, and prior knowledge about the prefix. Picklable.

    Attributes:
        prefix: compared as a plain string.
        after: only keys after this key; empty = from the first.
        histogram: histogram of the last complete listing of this prefix; empty = none.
        unordered: the store is known to be unordered: one chain of pages, from the start of the prefix.
    """

    prefix: str
    after: str
    histogram: Histogram = ()
    unordered: bool = False


class Listing(Protocol):
    """The objects of a prefix, a list for each page, however the pages are requested. For one consumer.

    Iteration blocks for requests and raises permanent failures. It ends early, without an error and with `complete`
    False, when it was closed.
    """

    @property
    def counts(self) -> ListingCounts:
        """Counts so far."""

    @property
    def complete(self) -> bool:
        """Whether every object was handed out."""

    @property
    def histogram(self) -> Histogram:
        """Histogram for the next listing; empty until this listing is complete, and for an unordered store."""

    @property
    def server_time_ms(self) -> int | None:
        """The store's clock at its first answer, milliseconds since 1970 UTC; None until known."""

    @property
    def key_range(self) -> KeyRange | None:
        """The key range that the last returned page covers completely; None for an unordered store."""

    @property
    def unordered(self) -> bool:
        """Whether the store is unordered: requested or detected; an ordered chain disproves it."""

    def __iter__(self) -> Iterator[list[NativeObject]]:
        """Return itself."""

    def __next__(self) -> list[NativeObject]:
        """Return the next page's objects."""

    def close(self) -> None:
        """End the listing. Idempotent."""


def list_parallel(
    store: ObjectStore,
    *,
    prefix: str = "",
    after: str = "",
    page_size: int = 1000,
    policy: RetryPolicy,
    concurrency: int = 16,
    histogram: Histogram = (),
    unordered: bool = False,
    limiter: CallLimiter | None = None,
    on_retry: OnRetry | None = None,
    first: ListPage | None = None,
) -> ParallelListing:
    """List the objects of a prefix, a list for each page; starts when it is first iterated.

    Every key that exists during the whole listing is returned exactly once. Pages come in any order, within a range in
    key order. At most `2 * concurrency` pages wait for the consumer.

    A store that is, or proves, unordered is listed again from the start by one chain of pages with continuation tokens;
    objects that were handed out before are skipped. Any page whose keys do not rise shows it, and any cut whose sides
    disagree. Only objects that such a store hides before `after` cannot be detected.

    Args:
        store: the bucket.
        prefix: compared as a plain string.
        after: only keys after this key.
        page_size: keys per page.
        policy: the retry policy of each call.
        concurrency: maximum of concurrent calls; 1 = one page after the other.
        histogram: histogram of the last complete listing of this prefix; empty = none.
        unordered: the store is known to be unordered: one chain of pages.
        limiter: limiter and budget of calls; None = a new one without a budget.
        on_retry: called for each failed try, from any thread.
        first: the first page, if already requested: after `after`, or from the start of an unordered store.

    Returns:
        An iterator; close it, or use it in a `with` statement.
    """
    engine = ListingEngine(
        store=store,
        prefix=prefix,
        after=after,
        page_size=page_size,
        policy=policy,
        concurrency=concurrency,
        histogram=histogram,
        limiter=limiter or CallLimiter(),
        on_retry=on_retry,
        unordered=unordered,
        first=first,
    )
    return ParallelListing(engine)


class ParallelListing(Iterator[list[NativeObject]]):
    """The pages of a listing, in order of arrival. For one consumer; see `list_parallel`.

    Attributes:
        counts: counts so far.
    """

    def __init__(self, engine: ListingEngine) -> None:
        self._engine = engine
        self.counts = engine.counts
        weakref.finalize(self, engine.close)  # the threads hold the engine, never this object

    @property
    def complete(self) -> bool:
        """Whether every object was handed out."""
        return self._engine.complete

    @property
    def histogram(self) -> list[tuple[str, int]]:
        """Histogram for the next listing; empty until this listing is complete, and for an unordered store."""
        return self._engine.histogram()

    @property
    def server_time_ms(self) -> int | None:
        """The store's clock at its first answer, milliseconds since 1970 UTC; None if the store does not send it."""
        return self._engine.server_time_ms

    @property
    def key_range(self) -> KeyRange | None:
        """The key range that the last returned page covers completely; None for an unordered store."""
        return self._engine.key_range

    @property
    def unordered(self) -> bool:
        """Whether the store is unordered: requested or detected; once a chain is complete, the chain's finding."""
        return self._engine.unordered

    @override
    def __next__(self) -> list[NativeObject]:
        """Return the next page's objects; blocks until there are some.

        Raises:
            ListingError: the store repeats itself, or proved unordered too late.
            SourceError: a call failed permanently; pages listed before it are returned first.
        """
        batch = self._engine.take()
        if batch is None:
            raise StopIteration
        return batch

    def close(self) -> None:
        """End the listing; calls in progress are abandoned in their threads. Idempotent."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
