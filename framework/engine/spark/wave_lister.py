"""Lists a prefix of a bucket on Spark's executors for the pipeline; packed pages are unpacked one at a time.

The keys of a wave take some MB on the driver instead of some hundred.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs

from framework.engine.spark.capacity import Capacity
from framework.engine.spark.failure_messages import is_stopped, lost_job
from framework.engine.spark.listing_waves import Executors, WaveListing
from framework.engine.spark.range_batch import RangeBatch, RangeListing, list_batch
from framework.engine.spark.spark_context import runs_locally
from framework.engine.spark.threads import for_thread

if TYPE_CHECKING:
    from pyspark import SparkContext

    from framework.config.sections import SourceCommonConfig
    from framework.iterator.object_store import StoreRecordIterator
    from framework.storage.listing.listing import Listing, ListingRequest
    from framework.task import AbstractSourceTask


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
    start_over: Callable[[], None] = lambda: None,
) -> Callable[[ListingRequest], Listing]:
    """Return a lister by waves, for `StoreRecordIterator.lister`.

    Args:
        iterator: iterator of the source, on the driver.
        task_class: the source.
        executors: waits for Spark; called for what the driver does not list itself.
        start_over: called before a store without order is listed again from the start.
    """

    def open_listing(request: ListingRequest) -> Listing:
        if request.unordered or not iterator.store.ordered or iterator.config.discovery.list_concurrency == 1:
            return iterator.list_by_threads(request)

        def serial() -> Listing:
            start_over()
            return iterator.list_by_threads(attrs.evolve(request, unordered=True))

        bundle = RangeBatch(task_class=task_class, config=iterator.config, prefix=request.prefix, tasks=())
        return WaveListing(iterator, request, bundle, executors, serial)

    return open_listing
