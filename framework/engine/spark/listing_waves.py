"""Waves of a listing: key ranges planned on the driver, distributed over Spark's tasks.

    planner -> a wave of ranges -> batches -> executors: pages -> results, and remaining ranges -> planner

The driver lists the first pages of a bucket, and executors list the rest: a small bucket costs no job. Packed pages are
unpacked one at a time, so the keys of a wave take some MB on the driver instead of some hundred.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from typing_extensions import override

from framework.engine.spark.capacity import Capacity
from framework.engine.spark.failure_messages import is_stopped, lost_job, on_executor, sentence
from framework.engine.spark.range_batch import (
    RangeBatch,
    RangeListing,
    list_batch,
    list_ranges,
    seconds_asked,
    unpacked,
)
from framework.engine.spark.spark_context import runs_locally
from framework.engine.spark.threads import for_thread
from framework.errors import FatalError, SourceError, TaskClosedError
from framework.model.objects import NativeObject
from framework.storage.daemon_threads import Awaited
from framework.storage.listing.listing import Listing
from framework.storage.listing.pages import OutOfOrderError, checked_page, look_again
from framework.storage.listing.planner import RangePlanner
from framework.storage.listing.range_tasks import RangeTask

if TYPE_CHECKING:
    from pyspark import SparkContext

    from framework.config.sections import SourceCommonConfig
    from framework.iterator.store_iterator import StoreRecordIterator
    from framework.storage.listing.listing import ListingRequest
    from framework.store import ListPage
    from framework.task import AbstractSourceTask

log = logging.getLogger(__name__)

DRIVER_PAGES = 16
"""Pages that the driver lists before it uses executors: a Spark job takes as long as several pages."""

WAVE_ATTEMPTS = 3

WAVE_PAGES = 32
"""Maximum pages of a range per wave: one or two seconds of requests, against the start of a job."""


@attrs.frozen(kw_only=True)
class Executors:
    """Executors that list.

    Attributes:
        width: returns the maximum number of concurrent batches; called before each wave.
        run: lists the batches of a wave; blocks until all are done. A wave that Spark lost is run again, after any error
            but a `SourceError`.
        remote: whether they are on other machines, which their errors name.
    """

    width: Callable[[], int]
    run: Callable[[Sequence[RangeBatch]], list[RangeListing]]
    remote: bool = False


def executors_of(context: SparkContext, config: SourceCommonConfig, *, group: str) -> Executors:
    """Return the executors of a context; their jobs have this thread's local properties of Spark.

    Args:
        context: Spark's context.
        config: configuration of the source.
        group: the job group of the waves, for cancelling them.
    """

    def list_wave(wave: Sequence[RangeBatch]) -> list[RangeListing]:
        context.setJobGroup(group, f"{config.source.name}: listing", interruptOnCancel=True)
        return context.parallelize(wave, len(wave)).flatMap(list_batch).collect()

    in_thread = for_thread(context, list_wave)

    def run(wave: Sequence[RangeBatch]) -> list[RangeListing]:
        try:
            return in_thread(wave)
        except Exception as error:
            if is_stopped(context):
                raise lost_job(context, error, "a listing") from error
            raise

    capacity = Capacity(context)
    return Executors(width=lambda: capacity.slots, run=run, remote=not runs_locally(context))


def wave_lister(
    iterator: StoreRecordIterator,
    task_class: type[AbstractSourceTask],
    executors: Callable[[], Executors],
    *,
    unpack: Callable[[bytes], list[NativeObject]] = unpacked,
) -> Callable[[ListingRequest], Listing]:
    """Return a lister by waves, for `StoreRecordIterator.lister`.

    Args:
        iterator: iterator of the source, on the driver.
        task_class: the source.
        executors: waits for Spark; called for what the driver does not list itself.
        unpack: takes each packed page; returns the objects that the listing then gives.
    """

    def open_listing(request: ListingRequest) -> Listing:
        if request.unordered or not iterator.store.ordered or iterator.config.discovery.list_concurrency == 1:
            return iterator.list_by_threads(request)
        bundle = RangeBatch(task_class=task_class, config=iterator.config, prefix=request.prefix, tasks=())
        return WaveListing(iterator, request, bundle, executors, unpack)

    return open_listing


@attrs.define(eq=False, repr=False, slots=False)
class WaveListing(Listing):
    """The objects of a listing by waves, page by page. For one thread.

    Waves run in sequence; the next one runs while the current one is used. A store without order is listed from the start
    by one chain of pages, on the driver. Objects that were given before are then given again. Its
    idle time is that of waiting for waves without a request in progress: they were queued for busy cores.

    Args:
        iterator: iterator of the source, on the driver.
        request: the listing.
        bundle: what the batches of all waves have in common.
        executors: waits for Spark; called for what the driver does not list itself.
        unpack: takes each packed page; returns the objects to give.
    """

    _iterator: StoreRecordIterator
    _request: ListingRequest
    _bundle: RangeBatch
    _executors: Callable[[], Executors]
    _unpack: Callable[[bytes], list[NativeObject]]
    _chain: Listing | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        iterator, request = self._iterator, self._request
        self._concurrency = self._bundle.config.discovery.list_concurrency
        self._limiter = iterator.limiter
        self._planner = RangePlanner(
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
        self._pages = self._list()

    @property
    @override
    def histogram(self) -> list[tuple[str, int]]:
        return self._planner.histogram() if self.complete and not self.unordered else []

    @override
    def __next__(self) -> list[NativeObject]:
        """Return the next page's objects.

        Raises:
            SourceError: a call failed permanently, or Spark lost a wave repeatedly.
        """
        return next(self._pages)

    @override
    def close(self) -> None:
        """End the listing; a wave in progress is abandoned. Idempotent."""
        self._pages = iter(())
        if self._chain is not None:
            self._chain.close()

    def _list(self) -> Iterator[list[NativeObject]]:
        try:
            for wave in self._waves():
                for listed in wave:
                    for page, self.key_range in listed.pages:
                        yield self._unpack(page)
        except OutOfOrderError as error:
            log.warning("%s; one chain of pages lists it from the start", error)
            self.unordered = True
            self.key_range = None
            self._chain = chain = self._iterator.list_by_threads(attrs.evolve(self._request, unordered=True))
            if self._iterator.closing.is_set():  # `close` may have looked for it before
                chain.close()
            self.counts = chain.counts = attrs.evolve(self.counts, serial=True)
            for objects in chain:
                self.server_time_ms = self.server_time_ms or chain.server_time_ms
                yield objects
            self.complete = chain.complete
        else:
            self.complete = True

    def _waves(self) -> Iterator[list[RangeListing]]:
        """Yield the results of each wave.

        Raises:
            OutOfOrderError: the store has no order; no object of the last wave was given.
        """
        under_way = self._begin()
        while under_way is not None:
            clock = self._iterator.policy.clock
            began = clock()
            wave = under_way()
            self.counts.idle_seconds += max(0.0, clock() - began - seconds_asked(wave))
            failure = next((listed.failure for listed in wave if listed.failure is not None), None)
            if failure is not None:
                raise failure
            self._report(wave)
            under_way = self._begin()
            yield wave

    def _begin(self) -> Callable[[], list[RangeListing]] | None:
        """Start the next wave; return a function that waits for its end. None: no range is left."""
        if self._planner.finished:
            return None
        tasks = self._planner.next_ranges(min(self._concurrency, self._limiter.allowed))
        began = self._iterator.policy.clock()
        if max(self._planner.pages, self._known_pages) < DRIVER_PAGES:  # not their sum: those known come again
            wave = self._spread(tasks, 1)
            work = _in_background(lambda: list_ranges(self._iterator, wave[0]))
        else:
            executors = self._executors()
            wave = self._spread(tasks, executors.width())
            work = _in_background(lambda: self._on_executors(executors, wave))

        def end() -> list[RangeListing]:
            listed = work()
            throttled = sum(range_listed.throttled for range_listed in listed)
            # only now, so that a wave that was given up takes nothing; a process lists a bucket once at a time
            for _ in range(self._limiter.take(len(tasks))):
                self._limiter.give_back(1, succeeded=not throttled)
            if throttled:
                self._limiter.throttled(began)
            return listed

        return end

    def _spread(self, tasks: Sequence[RangeTask], width: int) -> list[RangeBatch]:
        """Distribute ranges over batches, with a part of the budget each."""
        dealt = [tasks[number::width] for number in range(min(width, len(tasks)))]
        return [attrs.evolve(self._bundle, tasks=batch, budget_part=len(batch) / len(tasks)) for batch in dealt]

    def _on_executors(self, executors: Executors, wave: Sequence[RangeBatch]) -> list[RangeListing]:
        """Run a wave on executors. A wave that Spark loses is listed again: listing changes nothing."""
        for attempt in range(1, WAVE_ATTEMPTS + 1):
            try:
                listed = executors.run(wave)
            except Exception as error:
                if self._iterator.closing.is_set():
                    raise TaskClosedError("closed while listing") from error
                if isinstance(error, SourceError):
                    raise
                if attempt == WAVE_ATTEMPTS:
                    raise FatalError(f"Spark lost a listing {attempt} times: {sentence(error)}") from error
                log.warning("Spark lost a part of the listing, which is listed again: %s", sentence(error))
            else:
                for range_listed in listed if executors.remote else ():
                    if range_listed.failure is not None:
                        on_executor(range_listed.failure, range_listed.host)
                return listed
        raise AssertionError

    def _report(self, wave: Sequence[RangeListing]) -> None:
        for listed in wave:
            if listed.result is not None:
                self._planner.report(listed.result)
            self.counts.retries += listed.retries
            self.counts.throttled += listed.throttled
            if listed.server_time_ms is not None:
                self.server_time_ms = min(listed.server_time_ms, self.server_time_ms or listed.server_time_ms)
        planner, counts = self._planner, self.counts
        counts.calls, counts.objects = planner.pages, planner.keys
        doubts, self._planner.disagreements = self._planner.disagreements, []
        for doubt in doubts if not self._iterator.store.order_is_documented else ():
            look_again(self._ask, self._where, self._request.prefix, self._iterator.page_size, doubt)

    @property
    def _where(self) -> str:
        return f"{self._iterator.store.scheme}://{self._iterator.store.bucket}/{self._request.prefix}"

    def _ask(self, **call: Any) -> ListPage:
        store, policy = self._iterator.store, self._iterator.policy
        stop = self._iterator.closing
        return policy.call(lambda: checked_page(store, **call), what=f"listing {self._where}", stop=stop)


def _in_background(work: Callable[[], list[RangeListing]]) -> Callable[[], list[RangeListing]]:
    """Run work in a thread; return a function that waits for its result or exception."""
    return Awaited(work, "wave").result
