"""The iterator of a source: objects -> batches of records, resumable, reading ahead, coming back to life.

A store supplies two methods, `get_native_item_stream` and `get_input_stream`; the rest has defaults that an unusual source
may replace.
"""

from __future__ import annotations

import abc
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs
from typing_extensions import Self, override

from framework.cutting import Cutter
from framework.errors import (
    TaskClosedError,
)
from framework.feed import Assignment, FeedCounts, ListingFeed, ObjectFeed
from framework.named_feed import NamedFeed
from framework.named_objects import NamedObjects
from framework.naming import Router
from framework.object_read import ObjectRead
from framework.offsets import OffsetManager, OffsetManagerEntry, OffsetManagerKey, canonical_options
from framework.past_listing import PastListing
from framework.prefetch import FetchAhead, FetchedInput
from framework.records import Lane, NativeObject, RecordBatch, SourceRecord
from framework.selection import RoutedSelection, Selector, selected_objects, selection_digest
from framework.skip_limits import SkipLimits
from framework.tail import Tail, TailFeed
from framework.transformer import BatchLimits, ObjectInput, Transformer

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.listing import Listing, ListingRequest
    from framework.store_iterator import StoreRecordIterator

log = logging.getLogger(__name__)


@attrs.define(kw_only=True)
class ReadCounts:
    """What an iterator has done since it was made.

    Attributes:
        objects_opened: objects of which bytes were asked for; of a split one each share counts, here and below.
        objects_done: objects read to their end.
        objects_failed: objects whose rest was left out.
        objects_vanished: objects deleted between list and read.
        objects_changed: objects overwritten between list and read.
        objects_archived: objects that must be restored first and are waited for; each counts in each pass.
        records: good records handed out.
        bytes_done: sizes of the objects that are done, failed or gone.
        bytes_vanished: those of the gone ones alone.
        bytes_archived: those of the archived ones that are waited for.
        skipped: bad records left out.
        kinds: error class -> bad records and objects left out for it.
        list_requests: requests that find objects: pages of listings, and lookups of single objects.
        retries: calls to the store that were tried again.
    """

    objects_opened: int = 0
    objects_done: int = 0
    objects_failed: int = 0
    objects_vanished: int = 0
    objects_changed: int = 0
    objects_archived: int = 0
    records: int = 0
    bytes_done: int = 0
    bytes_vanished: int = 0
    bytes_archived: int = 0
    skipped: int = 0
    kinds: dict[str, int] = attrs.field(factory=dict)
    list_requests: int = 0
    retries: int = 0

    def copy(self) -> ReadCounts:
        """The counts as they are now."""
        return attrs.evolve(self, kinds=self.kinds.copy())

    def __add__(self, other: ReadCounts) -> ReadCounts:
        names = [field.name for field in attrs.fields(ReadCounts) if field.name != "kinds"]
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return ReadCounts(**sums, kinds=add_counts(self.kinds, other.kinds))


def add_counts(*counts: Mapping[str, int]) -> dict[str, int]:
    """The sums, by name."""
    total: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            total[name] = total.get(name, 0) + count
    return total


class AbstractSourceRecordIterator(abc.ABC, Iterator[SourceRecord]):
    """Records of all objects of a source, in the order in which its listing shows them, each object from its position on.

    The order inside an object is always kept. The order of objects is the listing's: that of their keys where it is one
    chain of pages, and only within ranges of keys where ranges are listed side by side.

    Exhausted is not dead: when `next_batch` gives None (or `next` raises StopIteration), a later call finds the objects that
    have appeared since. One thread at a time; asking for counts or positions changes nothing.

    Guarantee: a record is handed out once per iterator; what was handed out but not committed is handed out again by the
    next iterator over the same positions.

    Args:
        config: the whole configuration.
        transformer: the format.
        offsets: positions; the iterator reads them, only a commit changes them.
        feed: which objects to read; by default passes over `get_native_item_stream`.
        once: with the default feed: one complete pass, then `finished`.
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
        self.counts = ReadCounts()
        self._depends_on = canonical_options(transformer.depends_on())
        self._skip_limits = SkipLimits(
            per_object=config.errors.max_skipped,
            per_hour=config.errors.max_skipped_per_hour,
            before=self.offsets.left_out_lately,
        )
        self._limits = BatchLimits(records=config.iggy.batch_length, size_bytes=config.iggy.batch_bytes)
        self._once = once
        self._feed: ObjectFeed | None = feed
        self._feed_lock = threading.Lock()
        self._ahead = FetchAhead(objects=config.input.fetch_ahead, max_bytes=config.input.fetch_ahead_bytes)
        self._window: deque[tuple[Assignment, FetchedInput]] = deque()
        self._window_bytes = 0
        self._current: Generator[RecordBatch, None, None] | None = None
        self._head: FetchedInput | None = None
        self._feed_failure: Exception | None = None
        self._single: Iterator[SourceRecord] | None = None
        self._left: dict[OffsetManagerKey, OffsetManagerEntry] = {}
        self._closed = False

    # What a store supplies

    @abc.abstractmethod
    def get_native_item_stream(self, offset: str | None) -> Iterator[NativeObject]:
        """The objects after `offset`, strictly; all of them for None.

        What exists during the whole pass comes once, in any order; objects are read in the order in which they come.
        Called once per pass, by the reader's thread; may block for requests, and tries each again by itself. `offset` is a
        key and need not exist. A stop closes the generator where it stands, in the same thread: give back what it holds in a
        `finally`.

        Raises:
            RetriableError: the store stayed away for the whole budget.
            FatalError: no such bucket, no permission, a listing out of order.
        """

    @abc.abstractmethod
    def get_input_stream(self, native: NativeObject) -> ObjectInput:
        """A supplier of streams over the object's bytes: opens nothing yet, may be asked from several threads.

        Its streams resume by themselves after a broken connection, never mix two versions, and raise an `ObjectError` when
        the object is gone, changed, or shorter than listed. See `framework.reading.StoreInput`.
        """

    # What has a default

    def get_native_key(self, native: NativeObject) -> OffsetManagerKey:
        """The identity of an object in the positions."""
        return OffsetManagerKey.of_object(native.bucket, native.key)

    def get_offset_manager_key(self, native_key: OffsetManagerKey) -> OffsetManagerKey:
        """The key under which the position of a native key is kept; the same one unless a source says otherwise.

        It must be the `get_manager_key` of what `create_offset_manager_entry` makes for that object.
        """
        return native_key

    def create_offset_manager_entry(self, native: NativeObject, lane: Lane, depends_on: str) -> OffsetManagerEntry:
        """The position of an object of which nothing was read; a subclass may put something of its own into `extra`."""
        return OffsetManagerEntry.start(native, lane, depends_on)

    def create_source_record(
        self, native: NativeObject, lane: Lane, record_number: int, payload: bytes
    ) -> SourceRecord:
        """One record, for those who iterate record by record."""
        return SourceRecord(native=native, lane=lane, record_number=record_number, payload=payload)

    def create_feed(self) -> ObjectFeed:
        """Passes over the listing with the configuration's filters and routes."""
        start_key = self.start_key
        tail = self._create_tail()
        selector = Selector(self.config, self.store_clock, prefixes=self.prefixes)
        selector.remember_logs(self.get_table_log_keys())
        named = self.named_objects
        make_feed: Callable[..., ListingFeed] = ListingFeed
        put_off: Callable[[str], None] | None = None
        if tail is not None:
            make_feed, put_off = partial(TailFeed, tail), tail.put_off.add
        elif named is not None:
            make_feed, put_off = partial(NamedFeed, named), named.put_off

        def leave_for_later(native: NativeObject) -> None:
            self.offsets.coverage.put_off(native)
            if put_off is not None:
                put_off(native.key)

        feed = make_feed(
            listing=lambda: self.get_native_item_stream(start_key),
            selection=RoutedSelection(selector, Router(self.config), put_off=leave_for_later),
            tolerant=self.config.errors.tolerance != "none",
            offsets=self.offsets,
            depends_on=self._depends_on,
            poll_interval_seconds=self.config.discovery.poll_interval,
            idle_seconds=lambda: self.listing_idle_seconds,
            once=self._once,
            start_entry=self.create_offset_manager_entry,
            key_of=lambda native: self.get_offset_manager_key(self.get_native_key(native)),
            cutter=Cutter(
                split_size=self.config.input.split_size or 0,
                partitions=self.config.iggy.partitions,
                can_split=self.transformer.can_split,
            ),
        )
        window = self.config.discovery.late_arrival_window
        self.offsets.coverage.open(
            selected_objects(self.config, self.bucket, self.prefixes),
            window_ms=None if math.isinf(window) or named is not None else int(window * 1000),
            in_hand=feed.keys_in_hand,
        )
        return feed

    def _create_tail(self) -> Tail | None:
        """For discovery mode `after`; one complete pass (`once`) is a whole one in any mode."""
        discovery, start_key = self.config.discovery, self.start_key
        if discovery.mode != "after" or self._once:
            return None
        return Tail(
            prefixes=self.prefixes,
            base=start_key or "",
            lookback_keys=discovery.lookback_keys,
            full_pass_interval=discovery.full_pass_interval,
            min_age=discovery.min_age,
            selection=selection_digest(self.config, start_key),
            offsets=self.offsets,
            past=self.past_listing,
            list_whole=lambda: self.get_native_item_stream(start_key),
            list_behind=self.get_tail_stream,
        )

    def get_tail_stream(self, starts: Mapping[str, str]) -> Iterator[NativeObject]:
        """The objects of each prefix behind a key of its own, as `get_native_item_stream` gives them for one key.

        For discovery mode `after`. By default everything behind the lowest of the keys, which is more than was asked for.
        """
        return self.get_native_item_stream(min(starts.values()) or None)

    def past_listing(self, prefix: str) -> PastListing:
        """What is kept of the listing of a prefix; empty when that is nothing."""
        return self.offsets.past_listing(prefix) or PastListing(of="")

    @property
    def named_objects(self) -> NamedObjects | None:
        """The supplied list that `get_native_item_stream` reads from; None when it lists."""
        return None

    def look_up(self, native: NativeObject) -> NativeObject | None:
        """The object as it is now; None when it is gone, and by default: the next listing shows it."""
        del native
        return None

    def store_clock(self) -> float:
        """Seconds since 1970 by the store's clock, for what depends on an object's age; this machine's by default."""
        return time.time()

    def get_table_log_keys(self) -> Iterable[str]:
        """Keys that show whether what is listed is itself a table (`framework.selection.log_prefixes`); asked once."""
        return ()

    @property
    def prefixes(self) -> Sequence[str]:
        """What the listing is limited to; hidden names that a prefix itself holds hide nothing."""
        return ()

    @property
    def bucket(self) -> str:
        """The bucket that is listed; positions of finished objects are folded for one bucket."""
        return ""

    @property
    def listing_idle_seconds(self) -> float:
        """For how long, in all so far, listings waited although nothing was asked of the store: that is no load on it."""
        return 0.0

    def list_with(self, make: Callable[[StoreRecordIterator], Callable[[ListingRequest], Listing]]) -> None:
        """Offers another way to list a bucket, such as Spark's executors, before anything is listed.

        By default it is not taken: a source that is no object store lists in its own way.

        Args:
            make: given the iterator of a store, makes what lists a prefix.
        """

    @property
    def start_key(self) -> str | None:
        """The key after which listings begin (`native_start_key`); None to begin at the first."""
        return None

    # What the task uses

    @property
    def feed(self) -> ObjectFeed:
        """Where the objects come from; made at the first use."""
        # The reader asks for it, and whoever shows the figures: a second one would list everything again.
        with self._feed_lock:
            if self._feed is None:
                self._feed = self.create_feed()
            return self._feed

    @property
    def feed_counts(self) -> FeedCounts | None:
        """What the passes saw; None before the first. Asking makes no feed: that may take a request to the store."""
        return getattr(self._feed, "counts", None)

    @property
    def finished(self) -> bool:
        """Whether nothing will ever come again: a feed with an end, read to its end."""
        return self._current is None and not self._window and self.feed.finished

    @property
    def skip_limits(self) -> SkipLimits:
        """What counts the bad records, and stops at too many."""
        return self._skip_limits

    @property
    def seconds_until_due(self) -> float:
        """How long asking again would surely find nothing; 0 when that is not known."""
        return self.feed.seconds_until_due

    def next_batch(self) -> RecordBatch | None:
        """The next batch; None when there is nothing just now.

        Raises:
            SkippableError: a bad record or object, with `errors.tolerance = "none"`. What stood before it was handed out.
            RetriableError, FatalError: what the store or the listing raised.
            TaskClosedError: it is closed.
        """
        while True:
            if self._closed:
                raise TaskClosedError("the iterator is closed")
            if self._current is None:
                self._fill()
                if not self._window:
                    failure, self._feed_failure = self._feed_failure, None
                    if failure is not None:
                        raise failure
                    return None
                assignment, source = self._window.popleft()
                self._window_bytes -= self._planned_bytes(assignment)
                self._head = source
                self._current = ObjectRead(self, assignment, source).batches(self._limits)
                self._fill()
            batch = next(self._current, None)
            if batch is not None:
                self.counts.records += len(batch.payloads)
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
        for number, payload in enumerate(batch.payloads, batch.first_record):
            record = self.create_source_record(batch.native, batch.lane, number, payload)
            yield attrs.evolve(record, share=batch.entry.share) if batch.entry.share else record

    @override
    def __iter__(self) -> Self:
        return self

    def close(self) -> None:
        """Ends reading ahead and drops what was read. May be called twice, from any thread."""
        self._closed = True
        if self._feed is not None:
            self._feed.stop()
        if self._head is not None:
            self._head.close()
        for _, source in list(self._window):
            source.close()
        self._ahead.close()

    def leave(self) -> None:
        """Gives back the object in hand, and the pass under way; for the thread that reads, when it reads no more.

        Left to the collector, streams and listings would be closed at any time, in any thread, under any lock.
        """
        self._single = None
        try:
            if self._current is not None:
                self._current.close()
        finally:
            if self._feed is not None:
                self._feed.leave()

    @staticmethod
    def log_retry(error: Exception, tries: int, seconds: float) -> None:
        """Says that a call failed and will be tried again: the first time quietly, then as a warning."""
        level = logging.INFO if tries == 1 else logging.WARNING
        log.log(level, "try %d failed, next in %.1f seconds: %s", tries, seconds, error)

    # Reading ahead

    def _planned_bytes(self, assignment: Assignment) -> int:
        return min(assignment.size_bytes, self.config.input.fetch_ahead_bytes)

    def left_at(self, entry: OffsetManagerEntry) -> None:
        """Notes how far an object was handed out that is given back to the feed: more than anybody has committed, perhaps."""
        self._left[entry.get_manager_key()] = entry

    def _as_left(self, assignment: Assignment) -> Assignment:
        """Where to go on with an object that was given back and comes again in the same version: a store may be mistaken.

        Whoever hands it out knows what is committed, or what another process has told of it. What was handed out since is on
        its way, and must not be sent again.
        """
        entry = assignment.entry
        left = self._left.pop(entry.get_manager_key(), None)
        if left is None or left.records_done <= entry.records_done:
            return assignment
        if (left.version, left.split_size, left.lane) != (entry.version, entry.split_size, entry.lane):
            return assignment
        return attrs.evolve(assignment, entry=attrs.evolve(left, generation=entry.generation))

    def _fill(self) -> None:
        """Opens objects ahead: up to `fetch_ahead`, and as many as their bytes allow, but always one.

        A failure of the feed is kept until everything before it was handed out.
        """
        limit = self.config.input.fetch_ahead_bytes
        while len(self._window) < self._ahead.objects and (not self._window or self._window_bytes < limit):
            if self._feed_failure is not None:
                return
            try:
                assignment = self.feed.take()
            except Exception as failure:  # noqa: BLE001 - raised in its turn
                self._feed_failure = failure
                return
            if assignment is None:
                return
            assignment = self._as_left(assignment)
            native, entry = assignment.native, assignment.entry
            source = self.get_input_stream(native)
            if entry.cut is not None:
                start, end = entry.cut.window(native.size, entry.mark)
                fetched = self._ahead.fetch(source, start, end)
            elif self.transformer.reads_forward:
                start = entry.mark.byte if entry.mark is not None else 0
                fetched = self._ahead.fetch(source, start)
            else:
                fetched = FetchedInput(source, 0, None)
            self.counts.objects_opened += 1
            self._window.append((assignment, fetched))
            self._window_bytes += self._planned_bytes(assignment)
