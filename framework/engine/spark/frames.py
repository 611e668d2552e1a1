"""The same source in a notebook: its objects and records as DataFrames, read by executors, without Iggy.

config = {"s3": {...}, "input": {"format": "jsonl"}, ...}
list_objects(spark, S3SourceTask, config).groupBy("storage_class").count().show()
read_records(spark, S3SourceTask, config).selectExpr("key", "record", "cast(payload as string)").show()

    driver      waves of key ranges ---+     +--> pages of objects, in frames ---+
    executors                          +-> list                                 +--> filters -> by key -> records

Only DataFrames are used, so a session of Spark Connect serves as well as one of this process.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import pickle
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from framework.config.sections import SourceCommonConfig
from framework.discovery.listing_feed import iterated
from framework.discovery.object_feed import AssignedFeed, Assignment
from framework.discovery.object_filters import RoutedSelection, Selector
from framework.discovery.routing import Router
from framework.discovery.splitting import SplitPolicy
from framework.engine.spark.failure_messages import is_cancelled, sentence
from framework.engine.spark.listing_waves import Executors, wave_lister
from framework.engine.spark.packages import require_packages_of
from framework.engine.spark.range_batch import FIELDS, VALUES, RangeBatch, RangeListing, list_batch, packed, unpacked
from framework.engine.spark.spark_context import require_at_work, runs_locally
from framework.engine.spark.threads import context_of, for_thread_of
from framework.errors import FatalError, ObjectChangedError, ObjectError
from framework.iterator.store_iterator import StoreRecordIterator
from framework.model.objects import NativeObject, TopicPartition
from framework.model.positions import OffsetManagerEntry
from framework.task import SourceContext, iterator_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from framework.model.batches import RecordBatch
    from framework.task import AbstractSourceTask

log = logging.getLogger(__name__)

CHOSEN_SCHEMA = (
    "scheme string, bucket string, key binary, size long, version string, modified_ms long, storage_class string"
)
"""The fields of `NativeObject`; a key may be no valid Unicode."""

RECORDS_SCHEMA = "bucket string, key string, version string, record long, topic string, partition int, payload binary"

PAGE_OBJECTS = 1000

DRIVER_BYTES = 16 << 20
"""Packed pages that the driver keeps, of about half a million objects; executors keep more than that."""

OBJECTS_PER_TASK = 200
"""Objects per Spark task: small enough to distribute, large enough to prefetch within."""

ROWS_RECORDS = 1000
ROWS_BYTES = 1 << 20
"""Records, or bytes of payloads, that go to Spark together."""

MAX_SLOTS = 4096

LOOKED_AGAIN = 5
"""Maximum restarts of an object that is overwritten while it is read."""


def list_objects(
    spark: SparkSession, task_class: type[AbstractSourceTask], config: Mapping[str, Any] | SourceCommonConfig
) -> DataFrame:
    """Return the objects that the source would read: its listing with its filters.

    Executors list, in parallel, before this returns. The result is kept, compressed: up to `DRIVER_BYTES` by the driver,
    what is more by executors (`df.unpersist()` does not free it; the session's end does). When an executor is lost with
    its part, a later job of the frame fails ("Checkpoint block ... not found"): call this again.

    Args:
        spark: the session, of this process or of Spark Connect (4.0 or newer).
        task_class: the source.
        config: sections and options, as in a file, or a checked configuration.

    Returns:
        Columns bucket, key, size (bytes), version, last_modified (UTC) and storage_class.

    Raises:
        ConfigError: mistakes in the configuration, or the source would read the files of a table.
        FatalError: the session has ended, no pandas, executors cannot have, or lack, the packages, or the listing was cancelled.
        SourceError: the bucket cannot be listed.
    """
    chosen, _ = _chosen(spark, task_class, config)
    return chosen.selectExpr(
        "bucket",
        "make_valid_utf8(cast(key as string)) as key",
        "size",
        "version",
        "timestamp_millis(modified_ms) as last_modified",
        "storage_class",
    )


def read_records(
    spark: SparkSession, task_class: type[AbstractSourceTask], config: Mapping[str, Any] | SourceCommonConfig
) -> DataFrame:
    """Return the records of all objects of `list_objects`, from the first record on; no positions.

    Returns:
        Columns bucket, key, version, record (1, 2, 3 ... in its object), topic, partition (the
        destination; with `[input] split_size` that of the object's first split) and payload (the bytes that Iggy
        would store).

    Raises:
        ConfigError, FatalError, SourceError: as `list_objects`.
        SourceError: on an executor, as `errors.tolerance` defines; Spark wraps it.
    """
    chosen, choice = _chosen(spark, task_class, config)
    with _final_when_cancelled():
        groups = max(1, chosen.count() // OBJECTS_PER_TASK)
    # not by place: what Spark computes again, of a lost executor, comes in another order
    grouped = chosen.repartition(groups, "key")
    return grouped.mapInArrow(_Reader(task_class=task_class, choice=choice).records, RECORDS_SCHEMA)


def _chosen(
    spark: SparkSession, task_class: type[AbstractSourceTask], config: Mapping[str, Any] | SourceCommonConfig
) -> tuple[DataFrame, _Choice]:
    """Return the listing after the source's filters, and these. Executors list it now."""
    if not isinstance(config, SourceCommonConfig):
        config = task_class().configure(config)
    if importlib.util.find_spec("pandas") is None:
        raise FatalError('pyspark has no DataFrames of Python functions without pandas: pip install "pandas>=2.2"')
    context = context_of(spark)
    if context is not None:
        require_at_work(context)
    require_packages_of(spark, task_class, config)
    pages = _Pages(put=lambda rows: spark.createDataFrame([(page,) for page in rows], "page binary"))

    @_final_when_cancelled()
    def run(wave: Sequence[RangeBatch]) -> list[RangeListing]:
        rows = spark.range(0, len(wave), 1, len(wave)).mapInArrow(functools.partial(_listed, wave), "listing binary")
        return [pickle.loads(listing) for (listing,) in rows.collect()]  # noqa: S301 - our own bytes

    began = time.monotonic()
    with iterator_of(task_class, SourceContext(config=config, once=True)) as iterator:
        logs = list(iterator.get_table_log_keys())
        if isinstance(iterator, StoreRecordIterator):
            remote = context is None or not runs_locally(context)
            executors = Executors(width=lambda: _slots(spark), run=for_thread_of(spark, run), remote=remote)
            own = type(iterator).get_native_item_stream is not StoreRecordIterator.get_native_item_stream
            # a stream of the source's own may change or leave out objects: only then the driver looks at each
            unpack = unpacked if own else pages.keep
            iterator.lister = wave_lister(iterator, task_class, lambda: executors, unpack=unpack)
        for native in iterated(functools.partial(iterator.get_native_item_stream, iterator.start_key)):
            pages.add(native)
        # a store may tell its clock with the first page
        now = iterator.store_clock() - (time.monotonic() - began)
        choice = _Choice(config=config, prefixes=iterator.prefixes, logs=logs, now=now)
        unordered = any(iterator.listing_hints(prefix).unordered for prefix in iterator.prefixes)
    chosen = pages.frame().mapInArrow(choice.objects, CHOSEN_SCHEMA)
    if config.discovery.mode != "keys" and not unordered:
        return chosen, choice
    # A supplied list may name an object twice, also in two versions: the later one counts. So does a listing that started over.
    latest = "struct(modified_ms, version, size, storage_class, scheme, bucket) as latest"
    by_key = chosen.selectExpr("key", latest).groupBy("key").agg({"latest": "max"}).toDF("key", "latest")
    return by_key.selectExpr("latest.*", "key"), choice


@contextlib.contextmanager
def _final_when_cancelled() -> Iterator[None]:
    """Raise a `FatalError` for a job that was cancelled: another attempt would not be what the user wants."""
    try:
        yield
    except Exception as error:
        if is_cancelled(error):
            raise FatalError(f"the listing was cancelled: {sentence(error)}") from error
        raise


@_final_when_cancelled()
def _slots(spark: SparkSession) -> int:
    """Return the number of tasks that Spark makes of a job by itself: as many as there are cores, unless an option says else.

    It is asked before each wave: executors join and leave at any time.
    """
    (last,) = spark.range(MAX_SLOTS).selectExpr("spark_partition_id() as part").tail(1)
    return int(last.part) + 1


@attrs.define(eq=False, repr=False)
class _Pages:
    """The listed objects, packed: on the driver, and beyond `DRIVER_BYTES` in frames that executors keep.

    Args:
        put: makes a frame of packed pages.
    """

    _put: Callable[[Sequence[bytes]], DataFrame]
    _frames: list[DataFrame] = attrs.field(factory=list, init=False)
    _packed: list[bytes] = attrs.field(factory=list, init=False)
    _page: list[NativeObject] = attrs.field(factory=list, init=False)

    def add(self, native: NativeObject) -> None:
        """Add an object."""
        self._page.append(native)
        if len(self._page) == PAGE_OBJECTS:
            self._pack()

    def keep(self, page: bytes) -> list[NativeObject]:
        """Add a packed page as it came; return none of its objects, which executors unpack."""
        self._packed.append(page)
        self._put_large()
        return []

    def frame(self) -> DataFrame:
        """Return all pages, as column `page`."""
        self._pack()
        frames = [*self._frames, self._put(self._packed)]
        while len(frames) > 1:  # by pairs: a plan of some hundred levels is refused
            frames = [frames[at].union(frames[at + 1]) for at in range(0, len(frames) - 1, 2)] + (
                frames[-1:] if len(frames) % 2 else []
            )
        return frames[0]

    def _pack(self) -> None:
        if self._page:
            self._packed.append(packed(self._page))
            self._page.clear()
        self._put_large()

    @_final_when_cancelled()
    def _put_large(self) -> None:
        if sum(map(len, self._packed)) >= DRIVER_BYTES:
            self._frames.append(self._put(self._packed).localCheckpoint())
            self._packed.clear()


# ---- on an executor


def _listed(wave: Sequence[RangeBatch], rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what the batches of a wave find: a pickled `RangeListing` for each key range. A row names the batch to list."""
    import pyarrow as pa  # noqa: PLC0415 - 50 MB, which a run without frames does not need

    for row in rows:
        for number in row.column(0).to_pylist():
            for listed in list_batch(wave[number]):
                yield pa.RecordBatch.from_pydict({"listing": [pickle.dumps(listed, protocol=5)]})


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

    def objects(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the selected objects of some pages, as `CHOSEN_SCHEMA`."""
        partition_for = self.partition_chooser()
        for row in rows:
            for page in row.column(0).to_pylist():
                chosen = [native for native in unpacked(page) if partition_for(native) is not None]
                if chosen:
                    yield _rows_of_objects(chosen)

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


def _rows_of_objects(natives: Sequence[NativeObject]) -> pa.RecordBatch:
    """Return objects as `CHOSEN_SCHEMA`."""
    import pyarrow as pa  # noqa: PLC0415

    columns = dict(zip(FIELDS, zip(*map(VALUES, natives), strict=True), strict=True))
    columns["key"] = tuple(key.encode(errors="surrogatepass") for key in columns["key"])
    return pa.RecordBatch.from_pydict(columns)


def _objects_of_rows(rows: pa.RecordBatch) -> Iterator[NativeObject]:
    """Yield the objects of `CHOSEN_SCHEMA`, whatever the order of its columns."""
    for row in rows.to_pylist():
        row["key"] = row["key"].decode(errors="surrogatepass")
        yield NativeObject(**row)


@attrs.frozen(kw_only=True)
class _Reader:
    """Reads the objects of a group."""

    task_class: type[AbstractSourceTask]
    choice: _Choice

    def records(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records of the objects, as `RECORDS_SCHEMA`; those before a bad one come before its error."""
        natives = [native for batch in rows for native in _objects_of_rows(batch)]
        with contextlib.closing(self._batches(natives)) as batches:  # Spark may want no more of it
            yield from _merged(map(_rows_of_records, batches))

    def _batches(self, natives: Iterable[NativeObject]) -> Generator[RecordBatch, None, None]:
        config, partition_for = self.choice.config, self.choice.partition_chooser()
        positions = SplitPolicy(partitions=config.iggy.partitions, by_key=config.divides_by_key)
        looked = Counter[tuple[str, int]]()

        def assigned(native: NativeObject) -> list[Assignment]:
            """Return the object, or its parts by key; nothing when it is filtered."""
            topic_partition = partition_for(native)
            if topic_partition is None:
                return []
            start = OffsetManagerEntry.start(native, topic_partition)
            return [Assignment(native=native, entry=entry) for entry in positions.positions_of(native, start)]

        @functools.lru_cache(maxsize=1)  # all parts of an object are of one version
        def look_up(native: NativeObject, _time: int) -> NativeObject | None:
            return iterator.look_up(native)

        def look_again(assignment: Assignment, gone: bool) -> None:
            """Look up an object of a supplied list: its row may be older than the object."""
            part = assignment.native.key, assignment.entry.split_number
            looked[part] += 1
            if looked[part] > LOOKED_AGAIN:
                raise ObjectChangedError("another version at each look", location=assignment.native.location)
            native = None if gone else look_up(assignment.native, looked[part])
            if native is not None:
                feed.give(given for given in assigned(native) if given.entry.split_number == part[1])

        feed = AssignedFeed(
            [assignment for native in natives for assignment in assigned(native)], closed=True, on_release=look_again
        )
        context = SourceContext(config=config, feed=feed, once=True)
        with contextlib.ExitStack() as stack:
            iterator = stack.enter_context(iterator_of(self.task_class, context))
            stack.callback(iterator.leave)
            while (batch := iterator.next_batch()) is not None:
                yield batch


def _rows_of_records(batch: RecordBatch) -> pa.RecordBatch:
    """Return records as `RECORDS_SCHEMA`."""
    import pyarrow as pa  # noqa: PLC0415

    native, destination, count = batch.native, batch.topic_partition, len(batch.payloads)
    key = native.key.encode(errors="surrogatepass").decode(errors="replace")  # as `make_valid_utf8`
    columns = {
        "bucket": pa.repeat(native.bucket, count),
        "key": pa.repeat(key, count),
        "version": pa.repeat(native.version, count),
        "record": pa.array(batch.record_numbers, pa.int64()),
        "topic": pa.repeat(destination.topic, count),
        "partition": pa.repeat(pa.scalar(destination.partition, pa.int32()), count),
        "payload": pa.array(list(batch.payloads), pa.binary()),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _merged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in fewer batches: objects of a line each would be as many messages to Spark."""
    import pyarrow as pa  # noqa: PLC0415

    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    try:
        for batch in batches:
            waiting.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= ROWS_RECORDS or size >= ROWS_BYTES:
                ready, waiting, rows, size = waiting, [], 0, 0
                yield from pa.Table.from_batches(ready).combine_chunks().to_batches()
    except Exception:
        if waiting:
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
        raise
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
