"""The feed of repeated listings: when a listing begins and ends, and what it gives in which order."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import itemgetter

import attrs
from typing_extensions import override

from framework.discovery.new_objects import NOTHING, NewObjects, log_once
from framework.discovery.object_feed import Assignment, FeedCounts, ObjectFeed
from framework.discovery.order import SortKey
from framework.errors import ListingError
from framework.model.closing import close_iterator
from framework.model.objects import NativeObject
from framework.model.positions import OffsetManagerKey
from framework.storage.author_code import author_code

log = logging.getLogger(__name__)

REST_FACTOR = 10
"""Minimum pause between listings, in multiples of a listing's duration: large buckets are not listed continuously."""

COMPARED_LISTINGS = 2
"""The shortest of so many listings counts: one that an outage held up does not delay the next."""

LONG_REST_SECONDS = 30.0
"""Longer pauses are logged: a user may be waiting for new objects."""


def iterated(listing: Callable[[], object]) -> Iterator[NativeObject]:
    """Yield the objects of a listing, which begins with the first of them.

    Raises:
        ListingError: it is none.
        StoreContractError: it failed with an error that is none of the framework's.
    """
    with author_code("get_native_item_stream"):
        objects = listing()
        if not isinstance(objects, Iterable):
            raise ListingError(
                f"get_native_item_stream returned {type(objects).__name__}, not an iterator of NativeObject"
            )
        yield from objects


@attrs.define(kw_only=True, eq=False, repr=False, slots=False)
class ListingFeed(ObjectFeed):
    """Repeated listings: gives every new or unfinished object once.

    With `order` the objects of a listing are assigned in that order, once the listing is complete: they all wait in memory.
    """

    _listing: Callable[[], Iterable[NativeObject]]
    _objects: NewObjects
    _poll_interval_seconds: float
    _once: bool = False
    _order: Callable[[NativeObject], SortKey] | None = None
    _idle_seconds: Callable[[], float] = lambda: 0.0
    _clock: Callable[[], float] = time.monotonic

    def __attrs_post_init__(self) -> None:
        self._ordered: dict[OffsetManagerKey, tuple[SortKey, Iterator[Assignment]]] = {}
        self._idle_before = 0.0
        self._current: Iterator[NativeObject] | None = None
        self._due = self._clock()
        self._listing_seconds = 0.0
        self._durations: deque[float] = deque(maxlen=COMPARED_LISTINGS)
        self._decided = NOTHING
        self._released = False
        self._finished = False
        self._logged_archived: set[str] = set()
        # what was given back and not chosen since, with the number of the listing that decides about it
        self._given_back: dict[OffsetManagerKey, tuple[Assignment, int]] = {}
        self._stopped = False
        self.counts = FeedCounts()

    @override
    def take(self, patience_seconds: float = math.inf) -> Assignment | None:
        """Return the next new or unfinished object of the listing in progress; start a listing when due."""
        if self._current is None and not self._begin_listing():
            return None
        assert self._current is not None
        until = self._clock() + patience_seconds
        while not self._stopped:
            assignment = next(self._decided, None)
            if assignment is not None:
                self._choose(assignment)
                return assignment
            began = self._clock()
            if began >= until:
                return None
            try:
                native = next(self._current)
            except StopIteration:
                self._listing_seconds += self._clock() - began
                if self._ordered:
                    self._decided = self._in_order()
                    continue
                self._end_listing()
                return None
            except BaseException:
                self._current = None  # incomplete: the next `take` starts another
                raise
            self._listing_seconds += self._clock() - began
            self.counts.listed += 1
            self._decided = self._objects.decide(native)
            if not self.counts.listings:
                self.counts.done_before = self._objects.done
            if self._order is not None and self._decided is not NOTHING:
                # a listing may show an object twice, also with another version: the last one counts
                self._ordered[self._objects.key_of(native)] = self._order(native), self._decided
                self._decided = NOTHING
        return None

    def _choose(self, assignment: Assignment) -> None:
        with self._objects.lock:  # others give back
            if self._given_back:
                self._drop_given_back(assignment.entry.get_manager_key())
            self._count(assignment, 1)

    def _count(self, assignment: Assignment, by: int) -> None:
        """Count an object as chosen, or no more. The caller must lock."""
        self.counts.total_chosen += by * assignment.entry.counts_object
        self.counts.total_chosen_bytes += by * assignment.size_bytes

    def _drop_given_back(self, key: OffsetManagerKey) -> None:
        """Count a given back object no more: a listing has chosen it again, or did not. The caller must lock."""
        assignment, _ = self._given_back.pop(key, (None, 0))
        if assignment is not None:
            self.counts.given_back -= assignment.entry.counts_object
            self._count(assignment, -1)

    def _in_order(self) -> Iterator[Assignment]:
        """Return the waiting objects of a complete listing, in order. Each is assigned when it is taken."""
        waiting, self._ordered = self._ordered, {}
        return chain.from_iterable(assignments for _, assignments in sorted(waiting.values(), key=itemgetter(0)))

    def _begin_listing(self) -> bool:
        if self._finished or self._stopped or self._clock() < self._due:
            return False
        self._listing_seconds = 0.0
        self._idle_before = self._idle_seconds()
        self._released = False
        with self._objects.lock:
            self.counts = attrs.evolve(self.counts, listed=0, waiting=False, filtered={})
        self._objects.begin_listing()
        self._ordered = {}
        self._current = iterated(self._list)
        return True

    def _list(self) -> Iterable[NativeObject]:
        """Return the objects of one listing."""
        return self._listing()

    def _end_listing(self) -> None:
        with self._objects.lock:
            self._current = None
            for key in [key for key, (_, at) in self._given_back.items() if at <= self.counts.listings]:
                self._drop_given_back(key)
            self.counts.listings += 1
        # time spent waiting for busy cores costs the store nothing; ten times that would be minutes for nothing
        self._listing_seconds = max(0.0, self._listing_seconds - (self._idle_seconds() - self._idle_before))
        self.counts.waiting = True
        self.counts.filtered = self._objects.filtered()
        rest = self._rest_seconds()
        self._due = self._clock() + max(self._poll_interval_seconds, rest)
        if rest > max(self._poll_interval_seconds, LONG_REST_SECONDS) and not self._once:
            log.info(
                "a listing takes %.1f seconds, so that the next one begins in %.0f: new objects are found then",
                rest / REST_FACTOR,
                rest,
            )
        if self._once:
            with self._objects.lock:
                self._finished = not (self._released or self._objects.in_flight.awaited)
            if self._released:
                self._due = self._clock() + self._objects.stale_guard.pause_seconds

    def _rest_seconds(self) -> float:
        """Return the shortest pause after the listing that has ended."""
        self._durations.append(self._listing_seconds)
        return REST_FACTOR * min(self._durations)

    def defer(self, native: NativeObject) -> None:
        """Leave a version to a later listing: it is too young, or waits for an older version in the reader's hands."""
        self._objects.offsets.tracker.defer(native)

    @override
    def release(self, assignment: Assignment, *, gone: bool = False) -> None:
        """Let the next listing decide about this object; `once` makes it unless the object is gone or archived."""
        if assignment.archived:
            native = assignment.native
            log_once(
                self._logged_archived,
                native,
                "more objects are archived and waited for; no line names them",
                "%s is archived%s and waited for: it is tried again after each listing until it is restored",
                native.location,
                f" ({native.storage_class})" if native.storage_class else "",
            )
            gone = True  # no listing is made for it alone
        with self._objects.lock:
            self._objects.in_flight.give_back(self._objects.key_of(assignment.native), assignment.entry, gone=gone)
            if gone:
                self._count(assignment, -1)
                return
            self._given_back[assignment.entry.get_manager_key()] = (
                assignment,
                self.counts.listings + (self._current is not None),
            )
            self.counts.given_back += assignment.entry.counts_object
            self._released = True
            if assignment.in_place:
                self._objects.begin_again(assignment.native)
            if self._once or assignment.in_place:
                self._objects.stale_guard.note(
                    self._objects.key_of(assignment.native), assignment.native, self.counts.listings
                )
            if self._once and self._finished:
                self._finished = False
                self._due = self._clock() + self._objects.stale_guard.pause_seconds

    @override
    def complete(self, assignment: Assignment) -> None:
        """Let the object go: its position decides from now on, and another version may begin."""
        with self._objects.lock:
            self._objects.in_flight.give_back(self._objects.key_of(assignment.native), assignment.entry, gone=True)

    @property
    @override
    def finished(self) -> bool:
        """With `once`: whether one complete listing was assigned and no object of it was released."""
        return self._finished or self._stopped

    @property
    @override
    def seconds_until_due(self) -> float:
        """Seconds until the next listing starts; 0 while one is in progress."""
        return 0.0 if self._current is not None else max(0.0, self._due - self._clock())

    @override
    def stop(self) -> None:
        """End the listing at the next object."""
        self._stopped = True

    @override
    def leave(self) -> None:
        left, self._current = self._current, None
        close_iterator(left)
