"""Lists a prefix of a bucket on Spark's executors for the pipeline; packed pages are unpacked one at a time.

The keys of a wave take some MB on the driver instead of some hundred.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import attrs
from typing_extensions import override

from framework.engine.spark.capacity import Capacity
from framework.engine.spark.failures import is_stopped, lost_job
from framework.engine.spark.listing_waves import Waves
from framework.engine.spark.range_batch import RangeBatch, RangeListing, list_batch, unpacked
from framework.engine.spark.threads import for_thread
from framework.model.key_range import KeyRange
from framework.model.objects import NativeObject
from framework.storage.listing.pages import OutOfOrderError
from framework.storage.listing.parallel import ListingCounts, list_parallel

if TYPE_CHECKING:
    from pyspark import SparkContext

    from framework.config.sections import SourceCommonConfig
    from framework.iterator.object_store import StoreRecordIterator
    from framework.storage.listing.parallel import Listing, ListingRequest
    from framework.task import AbstractSourceTask

log = logging.getLogger(__name__)


ListerMaker: TypeAlias = "Callable[[StoreRecordIterator], Callable[[ListingRequest], Listing]]"
"""Type of `StoreRecordIterator.list_with`."""


@attrs.frozen(kw_only=True)
class Executors:
    """Executors that list.

    Attributes:
        width: returns the maximum number of concurrent batches.
        run: lists the batches of a wave; blocks until all are done.
    """

    width: Callable[[], int]
    run: Callable[[Sequence[RangeBatch]], list[RangeListing]]


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
    return Executors(width=lambda: capacity.slots, run=run)


def spark_lister(
    executors: Callable[[], Executors], task_class: type[AbstractSourceTask], config: SourceCommonConfig
) -> ListerMaker:
    """Return a lister on Spark's executors for `StoreRecordIterator.list_with`.

    Args:
        executors: waits for Spark; called for what the driver does not list itself.
        task_class: the source.
        config: its configuration.
    """
    return wave_lister(task_class, config, lambda wave: executors().run(wave), lambda: executors().width())


def wave_lister(
    task_class: type[AbstractSourceTask],
    config: SourceCommonConfig,
    run: Callable[[Sequence[RangeBatch]], list[RangeListing]],
    width: Callable[[], int],
    *,
    start_over: Callable[[], None] = lambda: None,
) -> ListerMaker:
    """Return a lister for any way to run a wave.

    Args:
        task_class: the source.
        config: its configuration.
        run: lists the batches of a wave; blocks until all are done.
        width: returns the maximum number of concurrent batches; called before each wave.
        start_over: called before a store without order is listed again from the start.
    """

    def lister_of(iterator: StoreRecordIterator) -> Callable[[ListingRequest], Listing]:
        concurrency = config.discovery.list_concurrency

        def by_threads(request: ListingRequest) -> Listing:
            return list_parallel(
                iterator.store,
                prefix=request.prefix,
                after=request.after,
                page_size=iterator.page_size,
                policy=iterator.policy,
                concurrency=concurrency,
                histogram=request.histogram,
                unordered=request.unordered,
                stop=iterator.closing,
                on_retry=iterator.log_retry,
            )

        def open_listing(request: ListingRequest) -> Listing:
            if request.unordered or not iterator.store.ordered or concurrency == 1:
                return by_threads(request)

            def serial() -> Listing:
                start_over()
                return by_threads(attrs.evolve(request, unordered=True))

            waves = Waves(iterator, request, task_class, config, run=run, width=width)
            return WaveListing(waves, serial)

        return open_listing

    return lister_of


class WaveListing(Iterator[list[NativeObject]]):
    """The objects of a listing by waves, page by page; a `framework.storage.listing.parallel.Listing`. For one thread.

    A store without order is listed from the start by one chain of pages, on the driver. Objects that were
    given before are then given again.
    """

    def __init__(self, waves: Waves, serial: Callable[[], Listing]) -> None:
        self._waves = waves
        self._serial = serial
        self._chain: Listing | None = None
        self._pages = self._by_waves()
        self._key_range: KeyRange | None = None
        self.unordered = False
        self.complete = False
        self.counts = ListingCounts()

    @property
    def histogram(self) -> list[tuple[str, int]]:
        """The plan for the next listing; empty until this one is complete, and for a store without order."""
        return self._waves.planner.histogram() if self.complete and not self.unordered else []

    @property
    def key_range(self) -> KeyRange | None:
        """The range that the last given page covers completely; None for a store without order."""
        return self._key_range

    @property
    def server_time_ms(self) -> int | None:
        """The store's clock at its first answer, milliseconds since 1970 UTC; None when unknown."""
        return self._waves.server_time_ms if self._chain is None else self._chain.server_time_ms

    @override
    def __next__(self) -> list[NativeObject]:
        return next(self._pages)

    def _by_waves(self) -> Iterator[list[NativeObject]]:
        try:
            for wave in self._waves:
                self._count()
                for listed in wave:
                    whole = listed.key_range
                    for number, page in enumerate(listed.pages, 1):
                        objects = unpacked(page)
                        if whole is not None:
                            until = objects[-1].key if number < len(listed.pages) else whole.until
                            self._key_range = KeyRange(whole.after, until)
                            whole = KeyRange(objects[-1].key, whole.until)
                        yield objects
        except OutOfOrderError as error:
            log.warning("%s; one chain of pages lists it from the start", error)
            self.unordered = True
            self._chain = self._serial()
            self._key_range = None
            before = self.counts
            for objects in self._chain:
                yield objects
                self.counts = plus(before, self._chain.counts)
        self.complete = True

    def _count(self) -> None:
        planner = self._waves.planner
        self.counts = ListingCounts(
            calls=planner.pages,
            empty=planner.misses,
            objects=planner.keys,
            retries=self._waves.retries,
            throttled=self._waves.throttled,
            idle_seconds=self._waves.idle_seconds,
        )

    def close(self) -> None:
        """End the listing; a wave in progress is abandoned. Idempotent."""
        self._pages = iter(())
        if self._chain is not None:
            self._chain.close()


def plus(left: ListingCounts, right: ListingCounts) -> ListingCounts:
    """Return the sum."""
    return ListingCounts(
        calls=left.calls + right.calls,
        empty=left.empty + right.empty,
        objects=left.objects + right.objects,
        retries=left.retries + right.retries,
        throttled=left.throttled + right.throttled,
        serial=right.serial,
        idle_seconds=left.idle_seconds + right.idle_seconds,
    )
