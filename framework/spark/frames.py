"""The same source in a notebook: its objects and its records as DataFrames, listed and read by executors. No Iggy.

source = S3SourceTask()
source.config = source.configure({"s3": {...}, "input": {"format": "jsonl"}, ...})
list_objects(spark, source).groupBy("storage_class").count().show()
read_records(spark, source).selectExpr("key", "record", "cast(payload as string)").show()
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from framework.errors import ConfigError
from framework.feed import Assignment, HandedFeed
from framework.naming import Router
from framework.offsets import OffsetManagerEntry
from framework.records import NativeObject
from framework.selection import RoutedSelection, Selector
from framework.spark.session import ship_packages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from framework.config.sections import SourceCommonConfig
    from framework.task import AbstractSourceTask

OBJECTS_SCHEMA = "bucket string, key string, size long, version string, last_modified timestamp, storage_class string"
RECORDS_SCHEMA = "bucket string, key string, version string, record long, topic string, partition int, payload binary"

OBJECTS_PER_TASK = 200
"""Objects that one Spark task reads: small enough to spread, large enough to read ahead in."""

Source: TypeAlias = "tuple[type[AbstractSourceTask], SourceCommonConfig]"


def list_objects(spark: SparkSession, source: AbstractSourceTask) -> DataFrame:
    """The objects that the source would read: its listing with its filters, done by an executor when the frame is used.

    Args:
        spark: the session.
        source: with `config` set; nothing of it is started.

    Returns:
        Columns bucket, key, size (bytes), version, last_modified (UTC) and storage_class.

    Raises:
        ConfigError: the source has no configuration.
    """
    ship_packages(spark)
    rows = spark.sparkContext.parallelize([_described(source)], 1).flatMap(_list)
    return spark.createDataFrame(rows, OBJECTS_SCHEMA)


def read_records(spark: SparkSession, source: AbstractSourceTask) -> DataFrame:
    """The records of every object of `list_objects`, read by executors from the first record on; no positions.

    Returns:
        Columns bucket, key, version, record (1, 2, 3 ... in its object), topic, partition (where the record would go) and
        payload (the bytes that Iggy would store).

    Raises:
        ConfigError: the source has no configuration.
        SourceError: on an executor, as `errors.tolerance` says; Spark wraps it.
    """
    ship_packages(spark)
    described = _described(source)
    natives = spark.sparkContext.parallelize([described], 1).flatMap(_list_natives)
    numbered = natives.zipWithIndex().map(lambda pair: (pair[1] // OBJECTS_PER_TASK, pair[0]))
    rows = numbered.groupByKey().flatMap(lambda group: _read(described, group[1]))
    return spark.createDataFrame(rows, RECORDS_SCHEMA)


def _described(source: AbstractSourceTask) -> Source:
    if source.config is None:
        raise ConfigError("the source has no configuration: source.config = source.configure({...})")
    return type(source), source.config


def _list_natives(source: Source) -> Iterator[NativeObject]:
    """On an executor: the listing, filtered."""
    task_class, config = source
    task = task_class()
    task.config, task.once = config, True
    iterator = task.get_iterator(task.backoff_config)
    try:
        selector = Selector(config, iterator.store_clock, prefixes=iterator.prefixes)
        selector.remember_logs(iterator.get_table_log_keys())
        selection = RoutedSelection(selector, Router(config))
        for native in iterator.get_native_item_stream(iterator.start_key):
            if selection.lane_for(native) is not None:
                yield native
    finally:
        iterator.close()
        task.close_resources()


def _list(source: Source) -> Iterator[tuple[object, ...]]:
    for native in _list_natives(source):
        yield native.bucket, native.key, native.size, native.version, native.last_modified, native.storage_class


def _read(source: Source, natives: Iterable[NativeObject]) -> Iterator[tuple[object, ...]]:
    """On an executor: the records of some objects."""
    task_class, config = source
    task = task_class()
    task.config = config
    selection = RoutedSelection(Selector(config), Router(config))
    lanes = ((native, selection.lane_for(native)) for native in natives)
    task.feed = HandedFeed(
        [
            Assignment(native=native, entry=OffsetManagerEntry.start(native, lane))
            for native, lane in lanes
            if lane is not None
        ],
        closed=True,
    )
    iterator = task.get_iterator(task.backoff_config)
    try:
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
    finally:
        iterator.close()
        task.close_resources()
