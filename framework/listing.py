"""One prefix of a bucket, listed by many calls at once: threads over the planner of key ranges.

    with list_parallel(store, prefix="events/", policy=policy, concurrency=16) as listing:
        for objects in listing:                    # a list for each page
            ...
    histogram = listing.histogram                  # for the next pass

Each thread asks for one page, hands it on and takes the next task, so that the planner can move work after every page.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol

import attrs
from typing_extensions import Self, override

from framework.histogram import Histogram
from framework.listing_engine import SLICE_SECONDS, ListingCounts, ListingEngine
from framework.pace import CallPace, pace_of
from framework.records import NativeObject
from framework.retry import OnRetry, RetryPolicy
from framework.store import ListPage, ObjectStore
from framework.stretch import Stretch

__all__ = ["Listing", "ListingCounts", "ListingRequest", "ParallelListing", "list_parallel"]


@attrs.frozen(kw_only=True, slots=True)
class ListingRequest:
    """What is to be listed, and what is known about it from before. Pickles.

    Attributes:
        prefix: compared as a plain string.
        after: only keys behind this one; empty = from the first.
        histogram: that of the last complete listing of this prefix; empty = none.
        unordered: the store is known to list in no order: one chain of pages, from the start of the prefix.
    """

    prefix: str
    after: str
    histogram: Histogram = ()
    unordered: bool = False


class Listing(Protocol):
    """The objects of a prefix, a list for each page, whoever asks for the pages. For one consumer.

    Iterating blocks for requests and raises what failed for good. It ends early, without an error and with `complete`
    False, when it was closed or told to stop.
    """

    @property
    def counts(self) -> ListingCounts:
        """What it did so far."""

    @property
    def complete(self) -> bool:
        """Whether every object was handed out."""

    @property
    def histogram(self) -> Histogram:
        """What the next listing should start from; empty until this one is complete, and for one without order."""

    @property
    def server_time_ms(self) -> int | None:
        """The store's clock when it first answered, milliseconds since 1970 UTC; None while it has not told."""

    @property
    def stretch(self) -> Stretch | None:
        """The keys that the page handed out last has shown wholly; None for a store without order."""

    @property
    def unordered(self) -> bool:
        """Whether the store lists in no order: it was told by the request, or noticed; a chain that comes in order denies it."""

    def __iter__(self) -> Iterator[list[NativeObject]]:
        """Itself."""

    def __next__(self) -> list[NativeObject]:
        """The next page's objects."""

    def close(self) -> None:
        """Ends it. May be called twice."""


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
    stop: threading.Event | None = None,
    pace: CallPace | None = None,
    on_retry: OnRetry | None = None,
    first: ListPage | None = None,
) -> ParallelListing:
    """The objects of a prefix, a list for each page; begins when it is first iterated.

    Every key that exists during the whole listing comes exactly once. Pages come in any order, inside a range in the
    order of the keys. At most `2 * concurrency` pages wait for the consumer.

    A store that has no order, or is noticed to have none, is listed again from the start by one chain of pages and by
    continuation; objects that were handed out before are left out. It is noticed by any page whose keys do not rise, and
    by any cut whose sides disagree; only what such a store hides before `after` cannot be noticed.

    Args:
        store: the bucket.
        prefix: compared as a plain string.
        after: only keys behind this one.
        page_size: keys in a page.
        policy: how patiently each call is tried.
        concurrency: calls at once, at most; 1 = one chain of pages.
        histogram: that of the last complete listing of this prefix; empty = none.
        unordered: the store is known to list in no order: one chain of pages, without a word about it.
        stop: ends the iteration early when it is set.
        pace: calls allowed at once and the budget; None = the process's own for this bucket.
        on_retry: told of each failed try, from any thread.
        first: the first page, when it was asked for already: behind `after`, or from the start of a store without order.

    Returns:
        An iterator; close it, or use it in a `with` statement.
    """
    engine = ListingEngine(
        store,
        prefix,
        after,
        page_size,
        policy,
        concurrency,
        histogram,
        _Ending(stop),
        pace or pace_of(store),
        on_retry,
        unordered=unordered,
        first=first,
    )
    return ParallelListing(engine)


class _Ending(threading.Event):
    """Set by itself, or when the caller's event is."""

    def __init__(self, outer: threading.Event | None) -> None:
        super().__init__()
        self._outer = outer

    @override
    def is_set(self) -> bool:
        return super().is_set() or (self._outer is not None and self._outer.is_set())

    @override
    def wait(self, timeout: float | None = None) -> bool:
        left = timeout
        while not self.is_set() and (left is None or left > 0):
            piece = SLICE_SECONDS if left is None else min(left, SLICE_SECONDS)
            if self._outer is None:
                piece = left if left is not None else SLICE_SECONDS
            super().wait(piece)
            left = None if left is None else left - piece
        return self.is_set()


class ParallelListing(Iterator[list[NativeObject]]):
    """The pages of a listing, as they come in. For one consumer; see `list_parallel`.

    Attributes:
        counts: what it did so far.
    """

    def __init__(self, engine: ListingEngine) -> None:
        self._engine = engine
        self.counts = engine.counts
        weakref.finalize(self, engine.close)  # the threads hold the engine, never this

    @property
    def complete(self) -> bool:
        """Whether every object was handed out."""
        return self._engine.complete

    @property
    def histogram(self) -> list[tuple[str, int]]:
        """What the next listing should start from; empty until this one is complete, and for one without order."""
        return self._engine.histogram()

    @property
    def server_time_ms(self) -> int | None:
        """The store's clock when it first answered, milliseconds since 1970 UTC; None when it does not tell."""
        return self._engine.server_time_ms

    @property
    def stretch(self) -> Stretch | None:
        """The keys that the page handed out last has shown wholly; None for a store without order."""
        return self._engine.stretch

    @property
    def unordered(self) -> bool:
        """Whether the store lists in no order: it was told or noticed; once a chain is complete, what that showed."""
        return self._engine.unordered

    @override
    def __next__(self) -> list[NativeObject]:
        """The next page's objects; blocks until there are some.

        Raises:
            ListingError: the store repeats itself, or was noticed too late to have no order.
            SourceError: a call failed for good; what was listed before it is handed out first.
        """
        batch = self._engine.take()
        if batch is None:
            raise StopIteration
        return batch

    def close(self) -> None:
        """Ends it; calls under way are left behind in their threads. May be called twice."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
