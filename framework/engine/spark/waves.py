"""Which key ranges the executors list next: waves, planned on the driver, dealt out to Spark's tasks.

    planner -> a wave of ranges -> bundles -> executors: pages -> what they found, and what is left -> planner

The first pages of a bucket are listed on the driver, and executors are asked when there are more: a small bucket costs no job.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeAlias

import attrs

from framework.engine.spark.bundles import Bundle, RangeListed, list_ranges, seconds_asked
from framework.engine.spark.failures import sentence
from framework.errors import FatalError, TaskClosedError
from framework.storage.listing.limiter import pace_of
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
"""Pages that the driver lists itself before it asks executors: a job of Spark takes as long as some pages do."""

WAVE_ATTEMPTS = 3

WAVE_PAGES = 32
"""Pages of one range in one wave, at most: about a second or two of requests, against the start of a job."""

ThreadMaker: TypeAlias = "Callable[[Callable[[], None]], threading.Thread]"


class Waves:
    """The waves of one listing, one after the other; the next one is under way while one is being used. For one thread.

    Attributes:
        planner: of the ranges.
        calls: pages asked for.
        retries: calls that were tried again.
        throttled: of these, because the store asked to slow down.
        server_time_ms: the store's clock at the first answer.
        idle_seconds: of the waiting for waves, what no request took: they were queued for cores that were busy.
    """

    def __init__(
        self,
        iterator: StoreRecordIterator,
        request: ListingRequest,
        task_class: type[AbstractSourceTask],
        config: SourceCommonConfig,
        *,
        run: Callable[[Sequence[Bundle]], list[RangeListed]],
        width: int,
        make_thread: ThreadMaker,
    ) -> None:
        self._iterator = iterator
        self._make_thread = make_thread
        self._request = request
        self._bundle = Bundle(task_class=task_class, config=config, prefix=request.prefix, tasks=())
        self._run = run
        self._width = width
        self._concurrency = config.discovery.list_concurrency
        self._pace = pace_of(iterator.store)
        self.planner = RangePlanner(
            prefix=request.prefix,
            after=request.after,
            page_size=iterator.page_size,
            workers=self._concurrency,
            max_pages=WAVE_PAGES,
            histogram=request.histogram,
            shrink=False,
        )
        self._known_pages = sum(keys for _, keys in request.histogram) // iterator.page_size
        self.retries = 0
        self.throttled = 0
        self.server_time_ms: int | None = None
        self.idle_seconds = 0.0
        self._leave = 0

    def __iter__(self) -> Iterator[list[RangeListed]]:
        """What came of each wave.

        Raises:
            OutOfOrderError: the store has no order; nothing of the last wave was handed out.
            SourceError: a call failed for good, or Spark lost a wave again and again.
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
            # of a wave that is left behind, or was lost: the pace is the process's, and the next listing's
            self._pace.give_back(self._leave)
            self._leave = 0

    def _begin(self) -> Callable[[], list[RangeListed]] | None:
        """Starts the next wave; what waits for its end. None: nothing is left."""
        if self.planner.finished:
            return None
        leave = self._pace.take(self._concurrency)
        tasks = self.planner.next_ranges(max(1, leave))  # one goes on also while others use up what the bucket takes
        self._pace.give_back(max(0, leave - len(tasks)), quiet=True)
        self._leave = min(leave, len(tasks))
        began = self._iterator.policy.clock()
        if max(self.planner.pages, self._known_pages) < DRIVER_PAGES:  # not their sum: those known come again
            wave = self._spread(tasks, 1)
            work = _in_background(
                lambda: list_ranges(self._iterator, wave[0], self._iterator.closing), self._make_thread
            )
        else:
            wave = self._spread(tasks, self._width)
            work = _in_background(lambda: self._on_executors(wave), self._make_thread)

        def end() -> list[RangeListed]:
            listed = work()
            throttled = sum(one.throttled for one in listed)
            calls, self._leave = self._leave, 0
            for _ in range(calls):
                self._pace.give_back(1, succeeded=not throttled)
            if throttled:
                self._pace.throttled(began)
            return listed

        return end

    def _spread(self, tasks: Sequence[RangeTask], width: int) -> list[Bundle]:
        """Ranges dealt out to bundles, with a part of the budget for each."""
        discovery = self._bundle.config.discovery
        dealt = [tasks[number::width] for number in range(min(width, len(tasks)))]

        def part(budget: float | None, bundle: Sequence[RangeTask]) -> float | None:
            return None if budget is None else budget * len(bundle) / len(tasks)

        return [
            attrs.evolve(
                self._bundle,
                tasks=list(bundle),
                requests_per_second=part(discovery.list_requests_per_second, bundle),
                bytes_per_second=part(discovery.list_bytes_per_second, bundle),
            )
            for bundle in dealt
        ]

    def _on_executors(self, wave: Sequence[Bundle]) -> list[RangeListed]:
        """A wave that Spark loses is listed again: that changes nothing in the bucket."""
        for attempt in range(1, WAVE_ATTEMPTS + 1):
            try:
                return self._run(wave)
            except Exception as error:
                if self._iterator.closing.is_set():
                    raise TaskClosedError("closed while listing") from error
                if attempt == WAVE_ATTEMPTS:
                    raise FatalError(f"Spark lost a listing {attempt} times: {sentence(error)}") from error
                log.warning("Spark lost a part of the listing, which is listed again: %s", sentence(error))
        raise AssertionError

    def _report(self, wave: Sequence[RangeListed]) -> None:
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


def _in_background(work: Callable[[], list[RangeListed]], make_thread: ThreadMaker) -> Callable[[], list[RangeListed]]:
    """Does work in a thread of its own; gives what waits for what it returns or raises."""
    answer: Future[list[RangeListed]] = Future()

    def do() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            answer.set_exception(error)

    make_thread(do).start()
    return answer.result
