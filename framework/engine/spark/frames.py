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
from xxhash import xxh3_64_intdigest

from framework.discovery.feed import Assignment, HandedFeed
from framework.discovery.filters import RoutedSelection, Selector
from framework.discovery.routing import Router
from framework.engine.spark.capacity import Capacity
from framework.engine.spark.listing_waves import Executors
from framework.engine.spark.packages import ship_packages
from framework.engine.spark.range_batch import RangeBatch, RangeListing, list_batch, packed, unpacked
from framework.engine.spark.session import NO_CONNECT
from framework.engine.spark.wave_lister import wave_lister
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
    chosen, _ = _chosen(spark, _described(task_class, config))
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
    chosen, choice = _chosen(spark, described)
    groups = max(1, chosen.count() // OBJECTS_PER_TASK)
    # not by place: what Spark computes again, of a lost executor, comes in another order
    grouped = chosen.keyBy(lambda native: _group_of(native, groups)).groupByKey()
    rows = grouped.flatMap(lambda group: _read(described[0], choice, group[1]))
    return spark.createDataFrame(rows, RECORDS_SCHEMA)


def _group_of(native: NativeObject, groups: int) -> int:
    return xxh3_64_intdigest(native.key.encode(errors="surrogatepass")) % groups


def _described(task_class: type[AbstractSourceTask], config: Mapping[str, Any] | SourceCommonConfig) -> Source:
    return task_class, task_class().configure(config) if isinstance(config, Mapping) else config


def _chosen(spark: SparkSession, source: Source) -> tuple[RDD[NativeObject], _Choice]:
    """Return the listing after the source's filters, and these. Executors list it now, and keep it."""
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
        # Spark would list a lost part again, and find other pages than those that the next wave follows on. What is kept
        # is known once a job has ended, which may list parts twice: so the reports are of what it kept.
        listed.localCheckpoint()
        listed.foreachPartition(_nothing)
        reports = listed.map(RangeListing.report).collect()
        kept.append(listed)
        return reports

    def start_over() -> None:
        kept.clear()
        on_driver.clear()

    began = time.monotonic()
    with iterator_of(task_class, SourceContext(config=config, once=True)) as iterator:
        logs = list(iterator.get_table_log_keys())
        if isinstance(iterator, StoreRecordIterator):
            capacity = Capacity(context)
            executors = Executors(width=lambda: capacity.slots, run=run)
            iterator.lister = wave_lister(iterator, task_class, lambda: executors, start_over=start_over)
        stream = iterator.get_native_item_stream(iterator.start_key)
        while page := list(islice(stream, PAGE_OBJECTS)):  # what the driver listed itself: the first pages
            on_driver.append(packed(page))
        # a store may tell its clock with the first page
        now = iterator.store_clock() - (time.monotonic() - began)
        choice = _Choice(config=config, prefixes=iterator.prefixes, logs=logs, now=now)
    pages = [context.parallelize(on_driver, max(1, len(on_driver)))]
    pages += [listed.flatMap(lambda page_set: page_set.pages) for listed in kept]
    chosen = context.union(pages).mapPartitions(choice.of)
    if config.discovery.mode != "keys":
        return chosen, choice
    # A supplied list may name an object twice, also in two versions.
    return chosen.keyBy(lambda native: native.key).reduceByKey(_later).values(), choice


def _nothing(listings: Iterable[RangeListing]) -> None:
    """Take what a partition keeps."""
    for _ in listings:
        pass


def _later(left: NativeObject, right: NativeObject) -> NativeObject:
    return max(left, right, key=lambda native: (native.modified_ms, native.version))


@attrs.frozen(kw_only=True)
class _Choice:
    """The source's filters, for executors, at one time for all of them: a part that is computed again is the same.

    Attributes:
        config: the configuration.
        prefixes: what was listed.
        logs: the logs of tables.
        now: when the listing began, by the store's clock, seconds since 1970.
    """

    config: SourceCommonConfig
    prefixes: Sequence[str]
    logs: Sequence[str]
    now: float

    def of(self, pages: Iterable[bytes]) -> Iterator[NativeObject]:
        """Yield the selected objects of some pages."""
        partition_for = self.partition_chooser()
        return (native for page in pages for native in unpacked(page) if partition_for(native) is not None)

    def partition_chooser(self) -> Callable[[NativeObject], TopicPartition | None]:
        """Return a function object -> partition; None for a filtered object, or a tolerated invalid name."""
        config = self.config
        selector = Selector(config, lambda: self.now, prefixes=self.prefixes)
        selector.remember_logs(self.logs)
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


def _read(
    task_class: type[AbstractSourceTask], choice: _Choice, natives: Iterable[NativeObject]
) -> Iterator[tuple[object, ...]]:
    """Yield the records of some objects, on an executor."""
    config, partition_for = choice.config, choice.partition_chooser()
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
