"""Parallel listing of one prefix of a bucket: threads over the planner of key ranges.

Each thread requests one page, hands it on and takes the next task, so the planner can move work after every page.
"""

from __future__ import annotations

import logging
import threading
from array import array
from collections import deque
from collections.abc import Callable
from operator import lt
from typing import Any

import attrs
from typing_extensions import override

from framework.errors import ListingError, RetriableError, TaskClosedError, ThrottledError
from framework.model.key_range import KeyRange
from framework.model.objects import NativeObject
from framework.storage.listing.limiter import CallLimiter
from framework.storage.listing.listing import Listing, ListingRequest
from framework.storage.listing.pages import (
    OutOfOrderError,
    answers_another,
    behind,
    bound_of,
    check_prefix,
    check_versions,
    checked_keys,
    checked_page,
    in_range,
    look_again,
    page_after,
)
from framework.storage.listing.planner import RangePlanner
from framework.storage.listing.range_tasks import Disagreement, RangeTask
from framework.storage.listing.seen_keys import SeenKeys
from framework.storage.retry import OnRetry, RetryPolicy
from framework.store import Chain, ListPage, ObjectStore

log = logging.getLogger(__name__)

REMEMBERED_KEYS = 4_000_000
"""Maximum of keys whose hashes a listing keeps (8 bytes each) until it ends, in case the store proves unordered."""

OBJECT_BYTES = 350
"""Approximate bytes per object in an answer beside its key, for the budget of bytes (S3: a `Contents` element)."""

SLICE_SECONDS = 0.1
"""Interval at which a listing that has nothing to do looks whether another one gave permits back."""


@attrs.define(kw_only=True, eq=False, repr=False, slots=False)
class ParallelListing(Listing):
    """The objects of a prefix, a list for each page; starts when it is first iterated.

    Every key that exists during the whole listing is returned exactly once. Pages come in any order, within a range in
    key order. At most `2 * concurrency` pages wait for the consumer. One lock guards threads, planner and queue.

    A store that is, or proves, unordered is listed again from the start by one chain of pages with continuation tokens;
    objects that were handed out before are skipped. Any page whose keys do not rise shows it, and any cut whose sides
    disagree. Only objects that such a store hides before `request.after` cannot be detected.

    Args:
        store: the bucket.
        request: what to list.
        page_size: keys per page.
        policy: the retry policy of each call.
        concurrency: maximum of concurrent calls; 1 = one page after the other.
        limiter: limiter and budget of calls.
        on_retry: called for each failed try, from any thread.
        first: the first page, if already requested: after `request.after`, or from the start of an unordered store.
    """

    _store: ObjectStore
    _request: ListingRequest
    _page_size: int
    _policy: RetryPolicy
    _concurrency: int
    _limiter: CallLimiter
    _on_retry: OnRetry | None = None
    _first: ListPage | None = None

    def __attrs_post_init__(self) -> None:
        store, first = self._store, self._first
        if first is not None and not first.objects and first.continuation is not None:
            self._first = None
        self._prefix, self._after = self._request.prefix, self._request.after
        self._ending = threading.Event()
        self._where = f"{store.scheme}://{store.bucket}/{self._prefix}"
        self._planner = RangePlanner(
            prefix=self._prefix,
            after=self._after,
            page_size=self._page_size,
            workers=self._concurrency,
            histogram=self._request.histogram,
            ends_are_reliable=store.ends_are_reliable,
        )
        lock = threading.RLock()
        self._work = threading.Condition(lock)  # workers wait for tasks, the serial worker for room
        self._filled = threading.Condition(lock)  # the consumer waits for pages
        self._begun = False
        self._threads = 0
        self._ready: deque[RangeTask] = deque()
        self._under_way = 0
        self._queue: deque[tuple[list[NativeObject], KeyRange | None]] = deque()
        self._emitted: array[int] | None = array("q")
        self._failure: BaseException | None = None
        self._over = False
        self.unordered = self._request.unordered or not store.ordered
        # with a start key each page is requested behind the last key, as those of a range: some stores' tokens leave a key
        # out when the start key does not exist (MinIO)
        self.counts.serial = self.unordered or (self._concurrency == 1 and not self._after)

    # ---- the consumer's side

    @override
    def __next__(self) -> list[NativeObject]:
        """Return the next page's objects; blocks until there are some.

        Raises:
            ListingError: the store repeats itself, or proved unordered too late.
            SourceError: a call failed permanently; pages listed before it are returned first.
        """
        with self._filled:
            if not self._begun:
                self._begun = True
                self._begin()
            while not self._queue and not self._over and not self._ending.is_set():
                if not self._filled.wait(SLICE_SECONDS):
                    self._schedule()  # another listing may have given permits back
            if self._ending.is_set():
                self._shut()
                raise StopIteration
            if self._queue:
                batch, self.key_range = self._queue.popleft()
                self._schedule()
                self._work.notify()
                return batch
            if self._failure is not None:
                raise self._failure
            self.complete = True
            raise StopIteration

    def _begin(self) -> None:
        if self.counts.serial:
            self._start(self._list_serially)
        else:
            self._schedule()

    def _start(self, work: Callable[[], None]) -> None:
        self._threads += 1
        threading.Thread(target=self._run, args=(work,), name=f"listing-{self._threads}", daemon=True).start()

    @override
    def close(self) -> None:
        """End the listing; each thread ends as soon as its call is over. Idempotent."""
        self._ending.set()
        with self._work:
            self._queue.clear()
            self._shut()

    def _shut(self) -> None:
        self._over = True
        self._limiter.give_back(len(self._ready))
        self._ready.clear()
        self._work.notify_all()
        self._filled.notify_all()

    @property
    @override
    def histogram(self) -> list[tuple[str, int]]:
        return self._planner.histogram() if self.complete and not self.counts.serial else []

    # ---- ranges, in many threads

    def _schedule(self) -> None:
        """Start as many tasks as workers, queue room and permits allow. The lock must be held."""
        if self._over or self.counts.serial:
            return
        busy = self._under_way + len(self._ready)
        wanted = min(self._concurrency, 2 * self._concurrency - len(self._queue)) - busy
        given = self._limiter.take(wanted) if wanted > 0 else 0
        if not given:
            return
        tasks = self._planner.next_ranges(given)
        self._limiter.give_back(given - len(tasks))
        self._ready.extend(tasks)
        self._work.notify(len(tasks))
        while self._threads < min(self._concurrency, self._under_way + len(self._ready)):
            self._start(self._list_ranges)

    def _run(self, work: Callable[[], None]) -> None:
        error: BaseException | None = None
        try:
            work()
        except BaseException as failure:  # noqa: BLE001 - re-raised in `__next__`
            if not (isinstance(failure, TaskClosedError) and self._ending.is_set()):
                error = failure
        else:
            return
        with self._work:
            self._failure = self._failure or error
            self._shut()

    def _list_ranges(self) -> None:
        while True:
            with self._work:
                while not self._ready and not self._over and not self.counts.serial:
                    self._work.wait()
                if self._over or self.counts.serial:
                    return
                task = self._ready.popleft()
                self._under_way += 1
                first = self._first if task.after == self._after else None
                if first is not None:
                    self._first = None
            succeeded = False
            try:
                bound = bound_of(self._store, task) if first is None else None
                page, calls = (first, 1) if first is not None else self._page_of(task, bound)
                succeeded = first is None
            finally:
                self._limiter.give_back(1, succeeded=succeeded)
            try:
                keys = checked_keys(self._where, page, task.after)
                for doubt in self._accept(task, page, keys, calls, bounded=bound is not None):
                    self._look_again(doubt)
            except OutOfOrderError as error:
                self._start_over(error)
            with self._work:
                self._under_way -= 1
                if self._planner.finished and not self._under_way and not self.counts.serial:
                    self._shut()
                self._schedule()

    def _page_of(self, task: RangeTask, bound: str | None) -> tuple[ListPage, int]:
        return page_after(
            self._ask, self._where, self._prefix, task.after, self._page_size, until=bound, ended=task.ended
        )

    def _accept(
        self, task: RangeTask, page: ListPage, keys: list[str], calls: int, *, bounded: bool = False
    ) -> list[Disagreement]:
        """Hand on the objects of a page that lie in its range, and report them to the planner."""
        with self._work:
            if self._over or self.counts.serial:
                return []
            until = self._planner.until(task.number)
            objects, result = in_range(task.number, page, keys, until, calls, bounded=bounded)
            self._planner.report(result)
            self._count(page, calls)
            if objects:
                self._remember(keys[: len(objects)])
                self._pass_on(objects, KeyRange(task.after, until if result.exhausted else result.last_key))
            doubts, self._planner.disagreements = self._planner.disagreements, []
            # a documented order is not doubted because keys come and go between two calls
            return [] if self._store.order_is_documented else doubts

    def _count(self, page: ListPage, calls: int) -> None:
        self.counts.calls += calls
        if page.server_time_ms is not None:
            self.server_time_ms = min(page.server_time_ms, self.server_time_ms or page.server_time_ms)

    def _pass_on(self, objects: list[NativeObject], key_range: KeyRange | None) -> None:
        self.counts.objects += len(objects)
        self._queue.append((objects, key_range))
        self._filled.notify()

    def _remember(self, keys: list[str]) -> None:
        if self._emitted is not None:
            self._emitted.extend(map(hash, keys))
            if len(self._emitted) > REMEMBERED_KEYS:
                self._emitted = None

    def _ask(self, **call: Any) -> ListPage:
        """Make one call within the budget, with the policy's retries."""
        delay = self._limiter.delay_seconds()
        if delay > 0:
            self._policy.wait(delay, self._ending)
        if self._ending.is_set():
            raise TaskClosedError(f"{self._where}: the listing was closed")
        clock = self._policy.clock
        began = clock()

        def attempt() -> ListPage:
            nonlocal began
            began = clock()
            return checked_page(self._store, **call)

        def again(error: RetriableError, tries: int, seconds: float) -> None:
            slow_down = isinstance(error, ThrottledError)
            with self._work:
                self.counts.retries += 1
                self.counts.throttled += slow_down
            if slow_down:
                self._limiter.throttled(began)
            if self._on_retry is not None:
                self._on_retry(error, tries, seconds)

        page = self._policy.call(attempt, what=f"listing {self._where}", on_retry=again, stop=self._ending)
        self._limiter.spend(OBJECT_BYTES * len(page.objects))
        return page

    # ---- a store without order

    def _look_again(self, doubt: Disagreement) -> None:
        def ask(**call: Any) -> ListPage:
            page = self._ask(**call)
            with self._work:
                self._count(page, 1)
            return page

        look_again(ask, self._where, self._prefix, self._page_size, doubt)

    def _start_over(self, error: OutOfOrderError) -> None:
        """Restart as a single chain of pages over the whole prefix, without the objects handed on already."""
        with self._work:
            if self._over or self.counts.serial:
                return
            self.unordered = True
            if self._emitted is None:
                raise ListingError(
                    f"{error}; noticed after more than {REMEMBERED_KEYS:,} objects, too late to list it from the start without "
                    "repeating some: start the source again, which then lists it by one chain of pages"
                ) from error
            log.warning("%s; one chain of pages lists it from the start", error)
            self.counts.serial = True
            self._first = None  # it lies behind the start key, and the chain begins before it
            self._limiter.give_back(len(self._ready))
            self._ready.clear()
            self._work.notify_all()
            self._start(self._list_serially)

    def _list_serially(self) -> None:
        """List the whole prefix by one chain of pages with continuation tokens; skip what was handed on before.

        That needs no order, and shows whether there is one.
        """
        again = bool(self._emitted)
        proved = self.unordered and not self._request.unordered
        emitted = SeenKeys(self._emitted)
        last, rising = "", True
        after, continuation = "", None
        chain = Chain(self._where)
        while not self._over:
            page = self._chain_page(after, continuation)
            chain.check(page)
            before, keys = last, [native.key for native in page.objects]
            # behind a key that is not shown as it is, no range can start: the next listing is one chain, too
            rising = rising and page.exact and (not last or not keys or last < keys[0]) and all(map(lt, keys, keys[1:]))
            if not rising:
                check_prefix(self._where, page, self._prefix, in_order=False)
                check_versions(self._where, page)
            last = keys[-1] if keys else last
            objects = emitted.without([native for native in page.objects if native.key > self._after])
            continuation = page.continuation
            with self._work:
                self._hand_on(page, objects, (before, last) if rising and not again else None)
                if continuation is not None:
                    continue
                if rising and not again and self._planner.confirms_end(last if keys else None):
                    after = last
                else:
                    self.unordered = proved or not (rising and self._store.ordered)
                    self._shut()

    def _chain_page(self, after: str, continuation: str | None) -> ListPage:
        page, self._first = self._first, None
        if page is None:
            page = self._ask(prefix=self._prefix, after=after, continuation=continuation, page_size=self._page_size)
            if after and answers_another(page, after):
                with self._work:
                    self._count(page, 1)
                page = self._ask(prefix=self._prefix, after=after, continuation=continuation, page_size=self._page_size)
            check_prefix(self._where, page, self._prefix)
        return behind(self._where, page, after) if after else page

    def _hand_on(self, page: ListPage, objects: list[NativeObject], ends: tuple[str, str] | None) -> None:
        """Queue a page of a chain when there is room. The lock must be held.

        Args:
            page: the page.
            objects: its objects that were not handed on before.
            ends: the last keys before this page and of it, if the chain is in order.
        """
        self._count(page, 1)
        while len(self._queue) >= 2 * self._concurrency and not self._over:
            self._work.wait()
        if objects and not self._over:
            until = ends[1] if ends is not None and page.continuation is not None else None
            self._pass_on(objects, KeyRange(max(ends[0], self._after), until) if ends is not None else None)
