"""The iterator of a source: objects -> batches of records. It resumes, prefetches, and continues after exhaustion.

A store supplies two methods, `get_native_item_stream` and `get_input_stream`; the others have defaults that an unusual
source may override.
"""

from __future__ import annotations

import abc
import logging
import math
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs
from typing_extensions import Self, override

from framework.config.envelope import make_envelope
from framework.config.transform_registry import make_transforms
from framework.discovery.incremental import IncrementalFeed
from framework.discovery.key_list.feed import KeyListFeed
from framework.discovery.key_list.resolver import KeyListResolver
from framework.discovery.listing_feed import ListingFeed
from framework.discovery.new_objects import NewObjects
from framework.discovery.object_feed import Assignment, FeedCounts, ObjectFeed
from framework.discovery.object_filters import (
    RoutedSelection,
    Selector,
    selected_objects,
    selection_digest,
    with_start,
)
from framework.discovery.order import listing_order
from framework.discovery.routing import Router
from framework.discovery.splitting import SplitPolicy
from framework.errors import (
    StoreContractError,
    StoreUnavailableError,
    TaskClosedError,
    ThrottledError,
    drop_tracebacks,
)
from framework.model.batches import RecordBatch, SourceRecord
from framework.model.log_sampler import LogSampler
from framework.model.objects import NativeObject, TopicPartition
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.offsets.listing_hints import ListingHints
from framework.offsets.manager import OffsetManager
from framework.pipeline.error_policy import ErrorPolicy
from framework.pipeline.keyed_reader import KeyedRead
from framework.pipeline.object_reader import ObjectRead
from framework.pipeline.read_ahead import ReadAhead
from framework.pipeline.task_statistics import TaskStatistics
from framework.pipeline.transforming import TransformChain
from framework.storage.author_code import author_code
from framework.storage.outage import StoreOutage
from framework.transformer import BatchLimits, ObjectInput, Transformer

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig

log = logging.getLogger(__name__)


class AbstractSourceRecordIterator(abc.ABC, Iterator[SourceRecord]):
    """Records of all objects of a source, in the order of its listing, each object from its position on.

    The order within an object is always kept. The order of objects is the order of the listing. That is key order for a
    single chain of pages; a parallel listing keeps key order only within each key range.

    An exhausted iterator can continue: after `next_batch` returned None (or `next` raised StopIteration), a later call
    finds objects that have appeared since. One thread at a time; reading counts or positions changes nothing.

    Guarantee: an iterator hands out a record once. Records that were handed out but not committed are handed out again
    by the next iterator over the same positions.

    Args:
        config: the whole configuration.
        transformer: the format.
        offsets: positions; the iterator reads them, only a commit changes them.
        feed: which objects to read; by default repeated listings with `get_native_item_stream`.
        once: with the default feed: one complete listing, then `finished`.
    """

    def __init__(
        self,
        config: SourceCommonConfig,
        transformer: Transformer,
        offsets: OffsetManager | None = None,
        *,
        feed: ObjectFeed | None = None,
        once: bool = False,
    ) -> None:
        self.config = config
        self.transformer = transformer
        self.offsets = offsets if offsets is not None else OffsetManager()
        self.statistics = TaskStatistics()
        transforms = [*make_envelope(config), *make_transforms(config.transforms)]
        self.transforms = TransformChain(transforms) if transforms else None
        transformer.row_decoder = self.transforms.row_decoder if self.transforms is not None else None
        self.numbering_options = config.numbering_options(transformer.numbering_options())
        self._error_policy = ErrorPolicy(
            tolerance=config.errors.tolerance,
            per_object=config.errors.max_bad_records,
            per_hour=config.errors.max_bad_records_per_hour,
            before=self.offsets.facts.skipped_lately,
        )
        self.denied_in_a_row = 0
        self._outage = StoreOutage(config.source.name)
        self._retries = {level: LogSampler(log) for level in (logging.INFO, logging.WARNING)}
        self.given_back = LogSampler(log)
        self._outage.answered = feed is not None  # the process that hands objects out has listed them
        self._limits = BatchLimits(records=config.iggy.batch_length, size_bytes=config.iggy.batch_bytes)
        self._once = once
        self._feed: ObjectFeed | None = feed
        self._feed_lock = threading.Lock()
        self._ahead = ReadAhead(
            limits=config.input,
            take=self.take,
            open_input=self.open_input,
            transformer=transformer,
            offsets=self.offsets,
            statistics=self.statistics,
            is_handed=feed is not None,
            waits_for_store=lambda: self._outage.seconds_left > 0,
        )
        self._listings = 0  # complete ones of the feed, when it last had no object
        self._current: Generator[RecordBatch, None, None] | None = None
        self._single: Iterator[SourceRecord] | None = None
        self._closed = False

    # Supplied by a store

    @abc.abstractmethod
    def get_native_item_stream(self, offset: str | None) -> Iterator[NativeObject]:
        """Yield the objects strictly after `offset`; all objects for None.

        An object that exists during the whole listing is yielded once, in any order; objects are read in the order
        yielded. Called once per listing, by the reader's thread. May block for requests, and retries each request
        itself. `offset` is a key and need not exist. A stop closes the generator midway, in the same thread: release
        its resources in a `finally`.

        Raises:
            RetriableError: the store stayed unavailable for the whole retry budget.
            FatalError: no such bucket, no permission, a listing out of order.
        """

    @abc.abstractmethod
    def get_input_stream(self, native: NativeObject) -> ObjectInput:
        """Return a supplier of streams over the object's bytes: it opens nothing yet, and is thread-safe.

        Its streams resume by themselves after a broken connection and never mix two versions. They raise an
        `ObjectError` when the object is deleted, changed, or shorter than listed. See
        `framework.storage.resuming_stream.StoreInput`.
        """

    # With defaults

    def get_native_key(self, native: NativeObject) -> OffsetManagerKey:
        """Return the identity of an object in the positions."""
        return OffsetManagerKey.of_object(native.bucket, native.key)

    def get_offset_manager_key(self, native_key: OffsetManagerKey) -> OffsetManagerKey:
        """Return the key under which the position of a native key is stored; by default the native key.

        It must equal the `get_manager_key` of the entry that `create_offset_manager_entry` makes for that object.
        """
        return native_key

    def create_offset_manager_entry(
        self, native: NativeObject, topic_partition: TopicPartition, numbering_options: str
    ) -> OffsetManagerEntry:
        """Return the position of an object before its first record; a subclass may add its own data to `extra`."""
        return OffsetManagerEntry.start(native, topic_partition, numbering_options)

    def create_source_record(
        self, native: NativeObject, topic_partition: TopicPartition, record_number: int, payload: bytes
    ) -> SourceRecord:
        """Return a record, for callers that iterate record by record."""
        return SourceRecord(
            native=native, topic_partition=topic_partition, record_number=record_number, payload=payload
        )

    def create_feed(self) -> ObjectFeed:
        """Make the feed of repeated listings, with the configuration's filters and routes. May require a request.

        It also binds the positions to what the listings show.
        """
        configured, offsets, named = self.config, self.offsets, self.named_objects
        discovery = configured.discovery
        config = self._since_first_start()
        selector = Selector(config, self.store_clock, prefixes=self.prefixes)
        selector.remember_logs(self.get_table_log_keys())
        router = Router(configured, known_topics=offsets.facts.known_topics, refusal=offsets.facts.topic_refusal)
        make_feed: Callable[..., ListingFeed] = ListingFeed
        if discovery.mode == "incremental" and not self._once:  # once: everything is listed
            make_feed = partial(
                IncrementalFeed,
                prefixes=self.prefixes,
                base=self.start_key or "",
                lookback_keys=discovery.lookback_keys,
                full_listing_interval=discovery.full_listing_interval,
                min_age=discovery.min_age,
                digest=selection_digest(configured, self.start_key),
                past=self.listing_hints,
                list_behind=self.get_incremental_stream,
            )
        elif named is not None:
            make_feed = partial(KeyListFeed, named, router)
        order = listing_order(configured)

        def defer(native: NativeObject) -> None:
            feed.defer(native)

        objects = NewObjects(
            selection=RoutedSelection(selector, router, on_deferred=defer),
            offsets=offsets,
            numbering_options=self.numbering_options,
            defer=defer,
            longest_pause_seconds=discovery.poll_interval,
            tolerant=configured.errors.tolerance != "none",
            start_entry=self.create_offset_manager_entry,
            key_of=lambda native: self.get_offset_manager_key(self.get_native_key(native)),
            split_policy=SplitPolicy(
                split_size=configured.input.split_size or 0,
                partitions=configured.iggy.partitions,
                can_split=self.transformer.can_split,
                by_key=configured.divides_by_key,
            ),
            in_order=order is not None,
        )
        feed = make_feed(
            listing=lambda: self.get_native_item_stream(self.start_key),
            objects=objects,
            poll_interval_seconds=discovery.poll_interval,
            once=self._once,
            order=order,
            idle_seconds=lambda: self.listing_idle_seconds,
        )
        since_start = config is not configured
        offsets.selection.bind(
            selected_objects(config, self.bucket, self.prefixes, address=self.address, since_start=since_start)
        )
        if since_start and offsets.dirty:
            offsets.flush()  # a start that is killed now is the first one nevertheless
        window = discovery.allowed_lateness
        offsets.tracker.open(None if math.isinf(window) or named is not None else int(window * 1000))
        return feed

    def _since_first_start(self) -> SourceCommonConfig:
        """Return the configuration with `modified_after = "now"` replaced by the time of the source's first start."""
        config = self.config
        if config.discovery.modified_after != "now":
            return config
        start_ms = self.offsets.selection.first_start_ms
        if start_ms is None:
            # the earlier clock: a wrong one then makes objects too old only if both are ahead
            start_ms = int(min(self.ask_clock(), time.time()) * 1000)
        config = with_start(config, start_ms)
        log.info(
            '[discovery] modified_after = "now": objects last modified at %s or later are read',
            (config.discovery.modified_after or "").replace("+00:00", "Z"),
        )
        return config

    def get_incremental_stream(self, starts: Mapping[str, str]) -> Iterator[NativeObject]:
        """Yield the objects of each prefix after its own start key, as `get_native_item_stream` does for a single key.

        For discovery mode `incremental`. By default yields everything after the lowest start key: more than requested.
        """
        return self.get_native_item_stream(min(starts.values()) or None)

    def listing_hints(self, prefix: str) -> ListingHints:
        """Return the listing hints of a prefix; empty when there are none."""
        return self.offsets.hints.get(prefix) or ListingHints(of="")

    @property
    def named_objects(self) -> KeyListResolver | None:
        """The supplied list that `get_native_item_stream` reads from; None when it lists the bucket."""
        return None

    def look_up(self, native: NativeObject) -> NativeObject | None:
        """Return the object as it is now; None when it is gone. By default None: the next listing shows it."""
        del native
        return None

    def metadata_of(self, native: NativeObject) -> Mapping[str, str]:
        """Return the metadata of an object, for transforms that ask for it: one request. By default there are none."""
        del native
        return {}

    def tags_of(self, native: NativeObject) -> Mapping[str, str]:
        """Return the tags of an object, for transforms that ask for them: one request. By default there are none."""
        del native
        return {}

    def store_clock(self) -> float:
        """Return seconds since 1970 by the store's clock, for rules on object age; by default this machine's clock."""
        return time.time()

    def ask_clock(self) -> float:
        """Return `store_clock`, after a request if the store has not told its time yet; by default makes no request."""
        return self.store_clock()

    def get_table_log_keys(self) -> Iterable[str]:
        """Return keys that show whether the listed folder is itself a table; called once.

        See `framework.discovery.object_filters.log_prefixes`.
        """
        return ()

    @property
    def prefixes(self) -> Sequence[str]:
        """The listed prefixes; none begins with another. Hidden names within one do not filter its objects."""
        return ()

    @property
    def bucket(self) -> str:
        """The listed bucket; positions of finished objects are compacted for a single bucket."""
        return ""

    @property
    def address(self) -> str | None:
        """The endpoint of the bucket's store; None when the endpoint says nothing about the bucket's content."""
        return None

    @property
    def listing_idle_seconds(self) -> float:
        """Total seconds so far in which listings waited without a request to the store, so without load on it."""
        return 0.0

    @property
    def start_key(self) -> str | None:
        """The key after which listings begin (`start_after`); None to begin at the first key."""
        return None

    # Used by the task

    @property
    def feed(self) -> ObjectFeed:
        """The source of the objects; made on first use."""
        if self._feed is None:
            # The reader and the statistics both ask for it: a second feed would list everything again.
            with self._feed_lock:
                if self._feed is None:
                    self._feed = self.create_feed()
        return self._feed

    @property
    def feed_counts(self) -> FeedCounts | None:
        """Counts of the listings; None before the feed exists. Does not make the feed, which may require a request."""
        return getattr(self._feed, "counts", None)

    @property
    def finished(self) -> bool:
        """Whether the iterator has ended: the feed is finished and everything was handed out."""
        return self._current is None and self._ahead.is_empty and self.feed.finished

    @property
    def error_policy(self) -> ErrorPolicy:
        """What happens to bad records and failed objects."""
        return self._error_policy

    @property
    def seconds_until_due(self) -> float:
        """Seconds during which another call is certain to find nothing; 0 when unknown."""
        return self._outage.seconds_left or self.feed.seconds_until_due

    def wait(self, seconds: float, stop: threading.Event | None) -> None:
        """Wait until there may be more, `stop` is set, or the time is over."""
        left = self._outage.seconds_left
        if left and stop is not None:  # objects that wait in the feed depend on the store, too
            stop.wait(min(seconds, left))
        else:
            self.feed.wait(seconds, stop)

    def take(self, patience_seconds: float = math.inf) -> Assignment | None:
        """Return the feed's next object; None when none is available now, or while it waits for the store.

        Args:
            patience_seconds: see `ObjectFeed.take`.

        Raises:
            RetriableError, FatalError: an error of the store or the listing.
        """
        if self._outage.seconds_left:
            return None
        try:
            assignment = self.feed.take(patience_seconds)
        except (StoreUnavailableError, ThrottledError) as error:
            self.wait_for_store("listing", error)
            return None
        if assignment is None:
            counts = self.feed_counts
            listings, self._listings = self._listings, counts.listings if counts is not None else 0
            if self._listings == listings:
                return None
        self.store_works("listing")
        return assignment

    def wait_for_store(self, doing: str, error: StoreUnavailableError | ThrottledError, location: str = "") -> None:
        """Handle a store failure beyond the retry budget of a single call: return when a continuous run should wait.

        Args:
            doing: `listing` or `reading`.
            error: the failure.
            location: the object that could not be read.

        Raises:
            RetriableError: the error itself, when the run does not wait, or has waited long enough.
        """
        if self._once:
            raise error
        self._outage.failed(doing, error, location)
        drop_tracebacks(error)
        self.statistics.store_away = 1

    def store_works(self, doing: str) -> None:
        """Record a successful call to the store. Cheap: called for each batch."""
        if self.statistics.store_away or not self._outage.answered:
            self._outage.works(doing)
            self.statistics.store_away = int(self._outage.away)

    def next_batch(self) -> RecordBatch | None:
        """Return the next batch; None when none is available now.

        Raises:
            SkippableError: a bad record or object, with `errors.tolerance = "none"`; earlier records were handed out.
            RetriableError, FatalError: an error of the store or the listing.
            TaskClosedError: the iterator is closed.
        """
        while True:
            if self._closed:
                raise TaskClosedError("the iterator is closed")
            if self._current is None:
                opened = self._ahead.next()
                if opened is None:
                    return None
                assignments, source, _ = opened
                if assignments[0].entry.split_size >= 0:
                    read = ObjectRead(self, assignments[0], source)
                    small = read.at_once(self._limits)
                    if small is not None:
                        self._ahead.fill()
                        self.statistics.records_read += len(small.payloads)
                        return small
                    self._current = read.batches(self._limits)
                else:
                    self._current = KeyedRead(self, assignments, source).batches(self._limits)
                self._ahead.fill()
            batch = next(self._current, None)
            if batch is not None:
                self.statistics.records_read += len(batch.payloads)
                return batch
            self._current = None

    @override
    def __next__(self) -> SourceRecord:
        while True:
            if self._closed:
                raise TaskClosedError("the iterator is closed")
            if self._single is not None:
                record = next(self._single, None)
                if record is not None:
                    return record
                self._single = None
            batch = self.next_batch()
            if batch is None:
                raise StopIteration
            self._single = self._records(batch)

    def _records(self, batch: RecordBatch) -> Iterator[SourceRecord]:
        for plain in batch.records():
            record = self.create_source_record(plain.native, plain.topic_partition, plain.record_number, plain.payload)
            if plain.split_number or plain.headers or plain.timestamp_us:
                record = attrs.evolve(
                    record,
                    split_number=plain.split_number,
                    headers=plain.headers,
                    timestamp_us=plain.timestamp_us,
                )
            yield record

    @override
    def __iter__(self) -> Self:
        return self

    def close(self) -> None:
        """Stop prefetching and drop prefetched data. May be called twice, from any thread."""
        self._closed = True
        self.statistics.store_away = 0
        if self._feed is not None:
            self._feed.stop()
        self._ahead.close()

    def leave(self) -> None:
        """Release the current object and the current listing; for the reading thread, when it stops reading.

        Otherwise the garbage collector would close streams and listings at any time, in any thread, under any lock.
        """
        self._single = None
        try:
            if self._current is not None:
                self._current.close()
        finally:
            if self._feed is not None:
                self._feed.leave()

    def note_released(self, entry: OffsetManagerEntry) -> None:
        """Keep how far an object was handed out before its release to the feed."""
        self._ahead.note_released(entry)

    def open_input(self, native: NativeObject) -> ObjectInput:
        """Return `get_input_stream` of an object.

        Raises:
            StoreContractError: it returned something else, or failed with an error that is none of the framework's.
        """
        with author_code(f"{native.location}: get_input_stream"):
            source = self.get_input_stream(native)
        if not hasattr(source, "open"):
            raise StoreContractError(
                f"{native.location}: {type(self).__name__}.get_input_stream returned {type(source).__name__}, "
                "not an ObjectInput"
            )
        return source

    def log_retry(self, error: Exception, tries: int, seconds: float) -> None:
        """Log that a call failed and will be retried: the first time at info level, then as a warning. From any thread."""
        if isinstance(error, StoreUnavailableError):
            self.statistics.store_away = 1
        level = logging.INFO if tries == 1 else logging.WARNING
        self._retries[level].log(level, "try %d failed, next in %.1f seconds: %s", tries, seconds, error)
