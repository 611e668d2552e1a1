"""The same source in a notebook: its objects and records as DataFrames, read by executors, without Iggy.

config = {"s3": {...}, "input": {"format": "jsonl"}, ...}
list_objects(spark, S3SourceTask, config).groupBy("storage_class").count().show()
read_records(spark, S3SourceTask, config).selectExpr("key", "record", "cast(payload as string)").show()
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
from pyspark import StorageLevel

from framework.discovery.feed import Assignment, HandedFeed
from framework.discovery.filters import RoutedSelection, Selector
from framework.discovery.routing import Router
from framework.engine.spark.capacity import Capacity
from framework.engine.spark.listing import wave_lister
from framework.engine.spark.listing_waves import Executors
from framework.engine.spark.packages import ship_packages
from framework.engine.spark.range_batch import RangeBatch, RangeListing, list_batch, packed, unpacked
from framework.engine.spark.session import NO_CONNECT
from framework.errors import ConfigError, ObjectChangedError, ObjectError
from framework.iterator.object_store import StoreRecordIterator
from framework.model.objects import NativeObject, TopicPartition
from framework.model.positions import OffsetManagerEntry
from framework.task import SourceContext, iterator_of

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession

    from framework.config.sections import SourceCommonConfig
    from framework.task import AbstractSourceTask

log = logging.getLogger(__name__)

OBJECTS_SCHEMA = "bucket string, key string, size long, version string, last_modified timestamp, storage_class string"
RECORDS_SCHEMA = "bucket string, key string, version string, record long, topic string, partition int, payload binary"

PAGE_OBJECTS = 1000

OBJECTS_PER_TASK = 200
"""Objects per Spark task: small enough to distribute, large enough to prefetch within."""

LOOKED_AGAIN = 5
"""Maximum restarts of an object that is overwritten while it is read."""

Source: TypeAlias = "tuple[type[AbstractSourceTask], SourceCommonConfig]"


def list_objects(
    spark: SparkSession, task_class: type[AbstractSourceTask], config: Mapping[str, Any] | SourceCommonConfig
) -> DataFrame:
    """Return the objects that the source would read: its listing with its filters.

    Executors list, in parallel, before this returns, and keep the result, compressed (`df.unpersist()`
    does not free it; the session's end does). The driver holds no keys. When an executor is lost with
    its part, a later job of the frame fails ("Checkpoint block ... not found"): call this again.

    Args:
        spark: the session.
        task_class: the source.
        config: sections and options, as in a file, or a checked configuration.

    Returns:
        Columns bucket, key, size (bytes), version, last_modified (UTC) and storage_class.

    Raises:
        ConfigError: mistakes in the configuration, the source would read the files of a table, or a session
            of Spark Connect.
        SourceError: the bucket cannot be listed.
    """
    chosen = _chosen(spark, _described(task_class, config))
    return spark.createDataFrame(chosen.map(_row), OBJECTS_SCHEMA)


def read_records(
    spark: SparkSession, task_class: type[AbstractSourceTask], config: Mapping[str, Any] | SourceCommonConfig
) -> DataFrame:
    """Return the records of all objects of `list_objects`, from the first record on; no positions.

    Returns:
        Columns bucket, key, version, record (1, 2, 3 ... in its object), topic, partition (the
            destination) and payload (the bytes that Iggy would store).

    Raises:
        ConfigError, SourceError: as `list_objects`.
        SourceError: on an executor, as `errors.tolerance` defines; Spark wraps it.
    """
    described = _described(task_class, config)
    numbered = _chosen(spark, described).zipWithIndex().map(lambda pair: (pair[1] // OBJECTS_PER_TASK, pair[0]))
    rows = numbered.groupByKey().flatMap(lambda group: _read(described, group[1]))
    return spark.createDataFrame(rows, RECORDS_SCHEMA)


def _described(task_class: type[AbstractSourceTask], config: Mapping[str, Any] | SourceCommonConfig) -> Source:
    return task_class, task_class().configure(config) if isinstance(config, Mapping) else config


def _chosen(spark: SparkSession, source: Source) -> RDD[NativeObject]:
    """Return the listing after the source's filters. Executors list it now, and keep it."""
    task_class, config = source
    try:
        context = spark.sparkContext
    except AttributeError as exc:
        raise ConfigError(NO_CONNECT) from exc
    ship_packages(context)
    kept: list[RDD[RangeListing]] = []
    on_driver: list[bytes] = []

    def run(wave: Sequence[RangeBatch]) -> list[RangeListing]:
        listed = context.parallelize(wave, len(wave)).flatMap(list_batch).persist(StorageLevel.MEMORY_AND_DISK)
        # Spark would list a lost part again, and find other pages than those that the next wave follows on
        listed.localCheckpoint()
        reports = listed.map(RangeListing.report).collect()
        kept.append(listed)
        return reports

    def start_over() -> None:
        kept.clear()
        on_driver.clear()

    with iterator_of(task_class, SourceContext(config=config, once=True)) as iterator:
        choice = _Choice(
            config=config,
            prefixes=iterator.prefixes,
            logs=list(iterator.get_table_log_keys()),
            ahead_seconds=iterator.store_clock() - time.time(),
        )
        if isinstance(iterator, StoreRecordIterator):
            capacity = Capacity(context)
            executors = Executors(width=lambda: capacity.slots, run=run)
            iterator.lister = wave_lister(iterator, task_class, lambda: executors, start_over=start_over)
        stream = iterator.get_native_item_stream(iterator.start_key)
        while page := list(islice(stream, PAGE_OBJECTS)):  # what the driver listed itself: the first pages
            on_driver.append(packed(page))
    pages = [context.parallelize(on_driver, max(1, len(on_driver)))]
    pages += [listed.flatMap(lambda page_set: page_set.pages) for listed in kept]
    chosen = context.union(pages).mapPartitions(choice.of)
    if config.discovery.mode != "keys":
        return chosen
    # A supplied list may name an object twice, also in two versions.
    return chosen.keyBy(lambda native: native.key).reduceByKey(_later).values()


def _later(left: NativeObject, right: NativeObject) -> NativeObject:
    return max(left, right, key=lambda native: (native.modified_ms, native.version))


@attrs.frozen(kw_only=True)
class _Choice:
    """The source's filters, for executors."""

    config: SourceCommonConfig
    prefixes: Sequence[str]
    logs: Sequence[str]
    ahead_seconds: float

    def of(self, pages: Iterable[bytes]) -> Iterator[NativeObject]:
        """Yield the selected objects of some pages."""
        selector = Selector(self.config, lambda: time.time() + self.ahead_seconds, prefixes=self.prefixes)
        selector.remember_logs(self.logs)
        partition_for = _partition_chooser(self.config, selector)
        return (native for page in pages for native in unpacked(page) if partition_for(native) is not None)


def _partition_chooser(
    config: SourceCommonConfig, selector: Selector
) -> Callable[[NativeObject], TopicPartition | None]:
    """Return a function object -> partition; None for a filtered object, or a tolerated invalid name."""
    selection = RoutedSelection(selector, Router(config))

    def partition_for(native: NativeObject) -> TopicPartition | None:
        try:
            return selection.partition_for(native)
        except ObjectError as error:
            if config.errors.tolerance == "none":
                raise
            log.warning("skipped: %s", error)
            return None

    return partition_for


def _row(native: NativeObject) -> tuple[object, ...]:
    return native.bucket, native.key, native.size, native.version, native.last_modified, native.storage_class


def _read(source: Source, natives: Iterable[NativeObject]) -> Iterator[tuple[object, ...]]:
    """Yield the records of some objects, on an executor."""
    task_class, config = source
    partition_for = _partition_chooser(config, Selector(config))
    topic_partitions = ((native, partition_for(native)) for native in natives)
    looked = Counter[str]()

    def look_again(assignment: Assignment, gone: bool) -> None:
        """Look up an object of a supplied list: its row may be older than the object."""
        looked[assignment.native.key] += 1
        if looked[assignment.native.key] > LOOKED_AGAIN:
            raise ObjectChangedError("another version at each look", location=assignment.native.location)
        native = None if gone else iterator.look_up(assignment.native)
        topic_partition = None if native is None else partition_for(native)
        if native is not None and topic_partition is not None:
            feed.give([Assignment(native=native, entry=OffsetManagerEntry.start(native, topic_partition))])

    feed = HandedFeed(
        [
            Assignment(native=native, entry=OffsetManagerEntry.start(native, topic_partition))
            for native, topic_partition in topic_partitions
            if topic_partition is not None
        ],
        closed=True,
        on_release=look_again,
    )
    with contextlib.ExitStack() as stack:
        iterator = stack.enter_context(iterator_of(task_class, SourceContext(config=config, feed=feed, once=True)))
        stack.callback(iterator.leave)  # Spark may want no more of it
        for record in iterator:
            native, topic_partition = record.native, record.topic_partition
            yield (
                native.bucket,
                native.key,
                native.version,
                record.record_number,
                topic_partition.topic,
                topic_partition.partition,
                bytearray(record.payload),
            )
