"""Waves of a listing: key ranges planned on the driver, distributed over Spark's tasks.

    planner -> a wave of ranges -> batches -> executors: pages -> results, and remaining ranges -> planner

The driver lists the first pages of a bucket, and executors list the rest: a small bucket costs no job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from framework.engine.spark.failures import sentence
from framework.engine.spark.range_batch import RangeBatch, RangeListing, list_ranges, seconds_asked
from framework.engine.spark.session import Awaited
from framework.errors import FatalError, SparkUnavailableError, TaskClosedError
from framework.storage.listing.limiter import limiter_of
from framework.storage.listing.pages import look_again
from framework.storage.listing.planner import RangePlanner
from framework.storage.listing.tasks import RangeTask

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.iterator.object_store import StoreRecordIterator
    from framework.storage.listing.parallel import ListingRequest
    from framework.store import ListPage
    from framework.task import AbstractSourceTask

log = logging.getLogger(__name__)

DRIVER_PAGES = 16
"""Pages that the driver lists before it uses executors: a Spark job takes as long as several pages."""

WAVE_ATTEMPTS = 3

WAVE_PAGES = 32
"""Maximum pages of a range per wave: one or two seconds of requests, against the start of a job."""


class Waves:
    """The waves of one listing, in sequence; the next wave runs while the current one is used. For one thread.

    Attributes:
        planner: planner of the ranges.
        calls: requested pages.
        retries: retried calls.
        throttled: retries because the store asked to slow down.
        server_time_ms: the store's clock at the first answer.
        idle_seconds: time waiting for waves without a request in progress: they were queued for busy
            cores.
    """

    def __init__(
        self,
        iterator: StoreRecordIterator,
        request: ListingRequest,
        task_class: type[AbstractSourceTask],
        config: SourceCommonConfig,
        *,
        run: Callable[[Sequence[RangeBatch]], list[RangeListing]],
        width: Callable[[], int],
    ) -> None:
        self._iterator = iterator
        self._request = request
        self._bundle = RangeBatch(task_class=task_class, config=config, prefix=request.prefix, tasks=())
        self._run = run
        self._width = width
        self._concurrency = config.discovery.list_concurrency
        self._limiter = limiter_of(iterator.store)
        self.planner = RangePlanner(
            prefix=request.prefix,
            after=request.after,
            page_size=iterator.page_size,
            workers=self._concurrency,
            max_pages=WAVE_PAGES,
            histogram=request.histogram,
            ends_are_reliable=iterator.store.ends_are_reliable,
            shrink=False,
        )
        self._known_pages = sum(keys for _, keys in request.histogram) // iterator.page_size
        self.retries = 0
        self.throttled = 0
        self.server_time_ms: int | None = None
        self.idle_seconds = 0.0
        self._leave = 0

    def __iter__(self) -> Iterator[list[RangeListing]]:
        """Yield the results of each wave.

        Raises:
            OutOfOrderError: the store has no order; no object of the last wave was given.
            SourceError: a call failed permanently, or Spark lost a wave repeatedly.
        """
        try:
            under_way = self._begin()
            while under_way is not None:
                clock = self._iterator.policy.clock
                began = clock()
                wave = under_way()
                self.idle_seconds += max(0.0, clock() - began - seconds_asked(wave))
                failure = next((listed.failure for listed in wave if listed.failure is not None), None)
                if failure is not None:
                    raise failure
                self._report(wave)
                under_way = self._begin()
                yield wave
        finally:
            # of a wave that is left behind, or was lost: the limiter is the process's, and the next listing's
            self._limiter.give_back(self._leave)
            self._leave = 0

    def _begin(self) -> Callable[[], list[RangeListing]] | None:
        """Start the next wave; return a function that waits for its end. None: no range is left."""
        if self.planner.finished:
            return None
        leave = self._limiter.take(self._concurrency)
        tasks = self.planner.next_ranges(max(1, leave))  # one goes on also while others use up what the bucket takes
        self._limiter.give_back(max(0, leave - len(tasks)), quiet=True)
        self._leave = min(leave, len(tasks))
        began = self._iterator.policy.clock()
        if max(self.planner.pages, self._known_pages) < DRIVER_PAGES:  # not their sum: those known come again
            wave = self._spread(tasks, 1)
            work = _in_background(lambda: list_ranges(self._iterator, wave[0], self._iterator.closing))
        else:
            wave = self._spread(tasks, self._width())
            work = _in_background(lambda: self._on_executors(wave))

        def end() -> list[RangeListing]:
            listed = work()
            throttled = sum(range_listed.throttled for range_listed in listed)
            calls, self._leave = self._leave, 0
            for _ in range(calls):
                self._limiter.give_back(1, succeeded=not throttled)
            if throttled:
                self._limiter.throttled(began)
            return listed

        return end

    def _spread(self, tasks: Sequence[RangeTask], width: int) -> list[RangeBatch]:
        """Distribute ranges over batches, with a part of the budget each."""
        discovery = self._bundle.config.discovery
        dealt = [tasks[number::width] for number in range(min(width, len(tasks)))]

        def part(budget: float | None, batch: Sequence[RangeTask]) -> float | None:
            return None if budget is None else budget * len(batch) / len(tasks)

        return [
            attrs.evolve(
                self._bundle,
                tasks=list(batch),
                requests_per_second=part(discovery.list_requests_per_second, batch),
                bytes_per_second=part(discovery.list_bytes_per_second, batch),
            )
            for batch in dealt
        ]

    def _on_executors(self, wave: Sequence[RangeBatch]) -> list[RangeListing]:
        """Run a wave on executors. A wave that Spark loses is listed again: listing changes nothing."""
        for attempt in range(1, WAVE_ATTEMPTS + 1):
            try:
                return self._run(wave)
            except Exception as error:
                if self._iterator.closing.is_set():
                    raise TaskClosedError("closed while listing") from error
                if isinstance(error, SparkUnavailableError):
                    raise
                if attempt == WAVE_ATTEMPTS:
                    raise FatalError(f"Spark lost a listing {attempt} times: {sentence(error)}") from error
                log.warning("Spark lost a part of the listing, which is listed again: %s", sentence(error))
        raise AssertionError

    def _report(self, wave: Sequence[RangeListing]) -> None:
        for listed in wave:
            if listed.result is not None:
                self.planner.report(listed.result)
            self.retries += listed.retries
            self.throttled += listed.throttled
            if listed.server_time_ms is not None:
                self.server_time_ms = min(listed.server_time_ms, self.server_time_ms or listed.server_time_ms)
        doubts, self.planner.disagreements = self.planner.disagreements, []
        for doubt in doubts if not self._iterator.store.order_is_documented else ():
            look_again(self._ask, self._where, self._request.prefix, self._iterator.page_size, doubt)

    @property
    def _where(self) -> str:
        return f"{self._iterator.store.scheme}://{self._iterator.store.bucket}/{self._request.prefix}"

    def _ask(self, **call: object) -> ListPage:
        store, policy = self._iterator.store, self._iterator.policy
        stop = self._iterator.closing
        return policy.call(lambda: store.list_page(**call), what=f"listing {self._where}", stop=stop)  # type: ignore[arg-type]


def _in_background(work: Callable[[], list[RangeListing]]) -> Callable[[], list[RangeListing]]:
    """Run work in a thread; return a function that waits for its result or exception."""
    return Awaited(work).start("wave").result
