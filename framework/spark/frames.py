"""The same source in a notebook: its objects and its records as DataFrames, listed and read by executors. No Iggy.

source = S3SourceTask()
source.config = source.configure({"s3": {...}, "input": {"format": "jsonl"}, ...})
list_objects(spark, source).groupBy("storage_class").count().show()
read_records(spark, source).selectExpr("key", "record", "cast(payload as string)").show()
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

import attrs
from pyspark import StorageLevel

from framework.errors import ConfigError, ObjectChangedError
from framework.feed import Assignment, HandedFeed
from framework.naming import Router
from framework.offsets import OffsetManagerEntry
from framework.records import NativeObject
from framework.selection import RoutedSelection, Selector
from framework.spark.bundles import Bundle, RangeListed, list_bundle, packed, unpacked
from framework.spark.listing import wave_lister
from framework.spark.packages import ship_packages
from framework.task import iterator_of

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession

    from framework.config.sections import SourceCommonConfig
    from framework.task import AbstractSourceTask

OBJECTS_SCHEMA = "bucket string, key string, size long, version string, last_modified timestamp, storage_class string"
RECORDS_SCHEMA = "bucket string, key string, version string, record long, topic string, partition int, payload binary"

PAGE_OBJECTS = 1000

OBJECTS_PER_TASK = 200
"""Objects that one Spark task reads: small enough to spread, large enough to read ahead in."""

LOOKED_AGAIN = 5
"""So often an object is read from its first record because it was overwritten."""

Source: TypeAlias = "tuple[type[AbstractSourceTask], SourceCommonConfig]"


def list_objects(spark: SparkSession, source: AbstractSourceTask) -> DataFrame:
    """The objects that the source would read: its listing with its filters.

    Executors list, in parallel, before this returns, and keep what they found, compressed (`df.unpersist()` does not end
    that; the session does). The driver holds no keys. Pages that were lost with an executor are listed again.

    Args:
        spark: the session.
        source: with `config` set; nothing of it is started.

    Returns:
        Columns bucket, key, size (bytes), version, last_modified (UTC) and storage_class.

    Raises:
        ConfigError: the source has no configuration, or would read the files of a table.
        SourceError: the bucket cannot be listed.
    """
    chosen = _chosen(spark, source)
    return spark.createDataFrame(chosen.map(_row), OBJECTS_SCHEMA)


def read_records(spark: SparkSession, source: AbstractSourceTask) -> DataFrame:
    """The records of every object of `list_objects`, read by executors from the first record on; no positions.

    Returns:
        Columns bucket, key, version, record (1, 2, 3 ... in its object), topic, partition (where the record would go) and
        payload (the bytes that Iggy would store).

    Raises:
        ConfigError, SourceError: as `list_objects`.
        SourceError: on an executor, as `errors.tolerance` says; Spark wraps it.
    """
    described = _described(source)
    numbered = _chosen(spark, source).zipWithIndex().map(lambda pair: (pair[1] // OBJECTS_PER_TASK, pair[0]))
    rows = numbered.groupByKey().flatMap(lambda group: _read(described, group[1]))
    return spark.createDataFrame(rows, RECORDS_SCHEMA)


def _described(source: AbstractSourceTask) -> Source:
    if source.config is None:
        raise ConfigError("the source has no configuration: source.config = source.configure({...})")
    return type(source), source.config


def _chosen(spark: SparkSession, source: AbstractSourceTask) -> RDD[NativeObject]:
    """What the source's filters leave of its listing. Executors list it now, and keep it."""
    task_class, config = _described(source)
    context = spark.sparkContext
    ship_packages(context)
    task = task_class()
    task.config, task.once = config, True
    kept: list[RDD[RangeListed]] = []
    on_driver: list[bytes] = []

    def run(wave: Sequence[Bundle]) -> list[RangeListed]:
        listed = context.parallelize(wave, len(wave)).flatMap(list_bundle).persist(StorageLevel.MEMORY_AND_DISK)
        reports = listed.map(RangeListed.report).collect()
        kept.append(listed)
        return reports

    def start_over() -> None:
        kept.clear()
        on_driver.clear()

    with iterator_of(task) as iterator:
        choice = _Choice(
            config=config,
            prefixes=iterator.prefixes,
            logs=list(iterator.get_table_log_keys()),
            ahead_seconds=iterator.store_clock() - time.time(),
        )
        iterator.list_with(wave_lister(task_class, config, run, context.defaultParallelism, start_over=start_over))
        stream = iterator.get_native_item_stream(iterator.start_key)
        while page := list(islice(stream, PAGE_OBJECTS)):  # what the driver listed itself: the first pages
            on_driver.append(packed(page))
    pages = [context.parallelize(on_driver, max(1, len(on_driver)))]
    pages += [listed.flatMap(lambda one: one.pages) for listed in kept]
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
        """What they leave of some pages."""
        selector = Selector(self.config, lambda: time.time() + self.ahead_seconds, prefixes=self.prefixes)
        selector.remember_logs(self.logs)
        selection = RoutedSelection(selector, Router(self.config))
        return (native for page in pages for native in unpacked(page) if selection.lane_for(native) is not None)


def _row(native: NativeObject) -> tuple[object, ...]:
    return native.bucket, native.key, native.size, native.version, native.last_modified, native.storage_class


def _read(source: Source, natives: Iterable[NativeObject]) -> Iterator[tuple[object, ...]]:
    """On an executor: the records of some objects."""
    task_class, config = source
    task = task_class()
    task.config = config
    selection = RoutedSelection(Selector(config), Router(config))
    lanes = ((native, selection.lane_for(native)) for native in natives)
    looked = Counter[str]()

    def look_again(assignment: Assignment, gone: bool) -> None:
        """A row of a supplied list may be older than the object."""
        looked[assignment.native.key] += 1
        if looked[assignment.native.key] > LOOKED_AGAIN:
            raise ObjectChangedError("another version at each look", location=assignment.native.location)
        native = None if gone else iterator.look_up(assignment.native)
        lane = None if native is None else selection.lane_for(native)
        if native is not None and lane is not None:
            feed.give([Assignment(native=native, entry=OffsetManagerEntry.start(native, lane))])

    task.feed = feed = HandedFeed(
        [
            Assignment(native=native, entry=OffsetManagerEntry.start(native, lane))
            for native, lane in lanes
            if lane is not None
        ],
        closed=True,
        on_release=look_again,
    )
    with contextlib.ExitStack() as stack:
        iterator = stack.enter_context(iterator_of(task))
        stack.callback(iterator.leave)  # Spark may want no more of it
        for record in iterator:
            native, lane = record.native, record.lane
            yield (
                native.bucket,
                native.key,
                native.version,
                record.record_number,
                lane.topic,
                lane.partition,
                bytearray(record.payload),
            )
