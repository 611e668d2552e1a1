"""The feed of repeated listings: which listed objects are new or unfinished, each once."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from operator import itemgetter

import attrs
from typing_extensions import override

from framework.discovery.feed import Assignment, FeedCounts, ObjectFeed
from framework.discovery.filters import RoutedSelection, SortKey
from framework.discovery.splitting import InFlight, SplitPolicy
from framework.discovery.stale_listing import NOT_GIVEN, StaleListingGuard
from framework.errors import ListingError, ObjectChangedError, ObjectError
from framework.model.closing import close_iterator
from framework.model.objects import NativeObject, TopicPartition
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey, check_numbering, is_numbered_by
from framework.offsets.manager import OffsetManager

log = logging.getLogger(__name__)

MAX_LOGGED = 1000
"""Maximum of archived, or refused, objects that the log names individually."""

MAX_KEY_CHARACTERS = 10_000
"""The longest key: headers of a message and of a dead letter name it, and have 100,000 bytes. S3 and GCS allow 1,024."""

MAX_VERSION_CHARACTERS = 2000
"""The longest version, for the same reason."""

REST_FACTOR = 10
"""Minimum pause between listings, in multiples of a listing's duration: large buckets are not listed continuously."""

LONG_REST_SECONDS = 30.0
"""Longer pauses are logged: a user may be waiting for new objects."""


_NOTHING: Iterator[Assignment] = iter(())


def _object_key(native: NativeObject) -> OffsetManagerKey:
    return OffsetManagerKey.of_object(native.bucket, native.key)


class _End:
    """The end of a listing. A listing that shows None is mistaken, and not at its end."""


_END = _End()

_SECONDS = range(10**9, 10**10)
"""Seconds since 1970 from 2001 to 2286. Taken for milliseconds they are in the spring of 1970."""


_LISTED = {"key": str, "bucket": str, "version": str, "size": int, "modified_ms": int}
_LISTED_TYPES = tuple(_LISTED.values())


def check_listed(native: NativeObject) -> None:
    """Check an object of a listing that is to be read.

    Raises:
        ListingError: names the attribute that is not as `NativeObject` says.
    """
    if not isinstance(native, NativeObject):
        raise ListingError(f"the listing shows {type(native).__name__}, not a NativeObject")
    values = native.key, native.bucket, native.version, native.size, native.modified_ms
    if tuple(map(type, values)) != _LISTED_TYPES:
        for (name, kind), value in zip(_LISTED.items(), values, strict=True):
            if type(value) is not kind:
                raise ListingError(
                    f"{native.location}: the listing shows the {name} {value!r}, which must be {kind.__name__}"
                )
    if native.modified_ms in _SECONDS:
        raise ListingError(
            f"{native.location}: the listing shows the modified_ms {native.modified_ms}, which are seconds: milliseconds since "
            "1970 are needed, or later objects are taken for old ones and not read"
        )
    if native.size < 0:
        raise ListingError(f"{native.location}: the listing shows the size {native.size}, which must not be below 0")


@attrs.define(kw_only=True, eq=False, repr=False, slots=False)
class ListingFeed(ObjectFeed):
    """Repeated listings: gives every new or unfinished object once.

    An object is assigned if it has no position, or a position of another version. So is one with an unfinished position
    that the reader does not hold. A finished object is never read again; it only appears in the listing. An object is
    split when its version begins; the splits are assigned one by one, and the split size is kept in its position.

    With `order` the objects of a listing are assigned in that order, once the listing is complete: they all wait in memory.
    """

    _listing: Callable[[], Iterable[NativeObject]]
    _selection: RoutedSelection
    _offsets: OffsetManager
    _numbering_options: str
    _poll_interval_seconds: float
    _tolerant: bool = False
    _once: bool = False
    _start_entry: Callable[[NativeObject, TopicPartition, str], OffsetManagerEntry] = OffsetManagerEntry.start
    _key_of: Callable[[NativeObject], OffsetManagerKey] = _object_key
    _split_policy: SplitPolicy = attrs.field(factory=SplitPolicy)
    _order: Callable[[NativeObject], SortKey] | None = None
    _idle_seconds: Callable[[], float] = lambda: 0.0
    _clock: Callable[[], float] = time.monotonic

    def __attrs_post_init__(self) -> None:
        self._table = self._offsets.table
        self._tracker = self._offsets.tracker
        self._unfit: dict[str, int] = {}
        self._ordered: dict[OffsetManagerKey, tuple[SortKey, Iterator[Assignment]]] = {}
        self._idle_before = 0.0
        self._current: Iterator[NativeObject] | None = None
        self._due = self._clock()
        self._listing_seconds = 0.0
        self._decided: Iterator[Assignment] = iter(())
        self._in_flight = InFlight(self._table)
        self._released = False
        self._stale_guard = StaleListingGuard(self._poll_interval_seconds)
        self._finished = False
        self._logged_archived: set[str] = set()
        self._logged_refused: set[str] = set()
        self._stopped = False
        self._lock = threading.Lock()
        self.counts = FeedCounts()

    @override
    def take(self, patience_seconds: float = math.inf) -> Assignment | None:
        """Return the next new or unfinished object of the listing in progress; start a listing when due."""
        if self._current is None and not self._begin_listing():
            return None
        assert self._current is not None
        until = self._clock() + patience_seconds
        while not self._stopped:
            assignment = next(self._decided, None)
            if assignment is not None:
                counts = assignment.entry.counts_object
                self.counts.chosen += counts
                self.counts.total_chosen += counts
                self.counts.total_chosen_bytes += assignment.size_bytes
                return assignment
            began = self._clock()
            if began >= until:
                return None
            try:
                native = next(self._current, _END)
            except BaseException:
                self._current = None  # incomplete: the next `take` starts another
                raise
            self._listing_seconds += self._clock() - began
            if isinstance(native, _End):
                if self._ordered:
                    self._decided = self._in_order()
                    continue
                self._end_listing()
                return None
            self.counts.listed += 1
            self._decided = self._decide(native)
            if self._order is not None and self._decided is not _NOTHING:
                # a listing may show an object twice, also with another version: the last one counts
                self._ordered[self._key_of(native)] = self._order(native), self._decided
                self._decided = _NOTHING
        return None

    def _in_order(self) -> Iterator[Assignment]:
        """Return the waiting objects of a complete listing, in order. Each is assigned when it is taken."""
        waiting, self._ordered = self._ordered, {}
        return chain.from_iterable(assignments for _, assignments in sorted(waiting.values(), key=itemgetter(0)))

    def _begin_listing(self) -> bool:
        if self._finished or self._stopped or self._clock() < self._due:
            return False
        with self._lock:
            self._in_flight.prune()
            self._in_flight.awaited = False
            self._stale_guard.begin_listing()
        self._listing_seconds = 0.0
        self._idle_before = self._idle_seconds()
        self._released = False
        past = self.counts
        self.counts = FeedCounts(
            listings=past.listings,
            total_chosen=past.total_chosen,
            total_chosen_bytes=past.total_chosen_bytes,
            done_before=past.done_before,
        )
        self._selection.begin_listing()
        self._unfit = {}
        self._ordered = {}
        listing = self._list()
        if not hasattr(listing, "__iter__"):
            raise ListingError(
                f"get_native_item_stream returned {type(listing).__name__}, not an iterator of NativeObject"
            )
        self._current = iter(listing)
        return True

    def _list(self) -> Iterable[NativeObject]:
        """Return the objects of one listing."""
        return self._listing()

    def _end_listing(self) -> None:
        self._current = None
        # time spent waiting for busy cores costs the store nothing; ten times that would be minutes for nothing
        self._listing_seconds = max(0.0, self._listing_seconds - (self._idle_seconds() - self._idle_before))
        self.counts.listings += 1
        self.counts.waiting = True
        self.counts.list_seconds = self._listing_seconds
        self.counts.filtered = self._selection.filtered()
        self.counts.filtered |= self._unfit
        rest = self._rest_seconds()
        self._due = self._clock() + max(self._poll_interval_seconds, rest)
        if rest > max(self._poll_interval_seconds, LONG_REST_SECONDS) and not self._once:
            log.info(
                "the listing took %.1f seconds, so that the next one begins in %.0f: new objects are found then",
                self._listing_seconds,
                rest,
            )
        if self._once:
            with self._lock:
                self._finished = not (self._released or self._in_flight.awaited)
            if self._released:
                self._due = self._clock() + self._stale_guard.pause_seconds

    def _rest_seconds(self) -> float:
        """Return the shortest pause after the listing."""
        return REST_FACTOR * self._listing_seconds

    def _decide(self, native: NativeObject) -> Iterator[Assignment]:
        """Return the assignments of a listed object: none if it is filtered, done, refused or waits."""
        try:
            return self._decided_as_listed(native)
        except (TypeError, AttributeError):
            check_listed(native)
            raise

    def _decided_as_listed(self, native: NativeObject) -> Iterator[Assignment]:
        key = self._key_of(native)
        final, entry = self._table.listed(key, native.version)
        if entry is not None:
            self._tracker.show(key)
        same = entry if entry is not None and entry.version == native.version else None
        try:
            topic_partition = self._selection.partition_for(native, started=final or same is not None)
            if topic_partition is None or self._is_done(key, native, entry, final=final):
                return _NOTHING
            self._stale_guard.check(key, native)
            return self._begin(key, native, topic_partition, same)
        except ObjectError as error:
            return self._refuse(native, error)

    def _is_done(
        self, key: OffsetManagerKey, native: NativeObject, entry: OffsetManagerEntry | None, *, final: bool
    ) -> bool:
        """Return whether nothing of a version is left to read; the watermark then accounts for it."""
        tracker = self._tracker
        if final:
            tracker.seen(native)
        elif entry is None:
            if not self._table.is_compacted(key, native.key, native.modified_ms):
                return False
            tracker.seen_compacted(native)
        elif entry.version == native.version and entry.finished and not entry.split_size:
            tracker.seen_open(key, native)
        else:
            return False
        self.counts.done_before += not self.counts.listings
        return True

    def _begin(
        self,
        key: OffsetManagerKey,
        native: NativeObject,
        topic_partition: TopicPartition,
        same: OffsetManagerEntry | None,
    ) -> Iterator[Assignment]:
        """Return the assignments of a version that is new or unfinished, without those in flight."""
        tracker = self._tracker
        check_listed(native)
        if len(native.key) > MAX_KEY_CHARACTERS:
            raise ObjectError(
                f"its key has {len(native.key):,} characters; with more than {MAX_KEY_CHARACTERS:,} it fits into no message",
                location=native.location[:300],
            )
        if len(native.version) > MAX_VERSION_CHARACTERS:
            raise ObjectError(
                f"its version has {len(native.version):,} characters; with more than {MAX_VERSION_CHARACTERS:,} it fits into no "
                f"message beside a long key",
                location=native.location[:300],
            )
        with self._lock:
            held = self._in_flight.splits(key, native.version)
            in_flight = frozenset(held) if held is not None else None
        # After what is in flight, not before it: what ended in between is in neither, and would be read again.
        current = self._offsets.get_entry(key) if same is not None else None
        replaced = same is not None and (current is None or current.version != native.version)
        if in_flight is None or replaced:
            # the reader holds an older version, or a person reset this one: it waits for the next listing
            self.defer(native)
            return _NOTHING
        entries = self._entries_of(key, native, topic_partition, current, in_flight)
        tracker.seen_open(key, native)
        # Decided now: these positions are of this moment, and what is in flight may end before the last one is taken.
        waiting = [entry for entry in entries if not entry.finished and entry.split_number not in in_flight]
        if len(waiting) == 1 and self._order is None:  # taken at once
            return iter((self._assign(key, native, waiting[0]),))
        return (self._assign(key, native, self._table.adopt(entry)) for entry in waiting)

    def _refuse(self, native: NativeObject, error: ObjectError) -> Iterator[Assignment]:
        if not self._tolerant:
            raise error
        last = "further objects are skipped for their names; they are only counted"
        self._log_once(self._logged_refused, native, last, "skipped: %s", error)
        reason = NOT_GIVEN if isinstance(error, ObjectChangedError) else "name without a partition"
        self._unfit[reason] = self._unfit.get(reason, 0) + 1
        self._tracker.defer(native)  # it may get a partition later
        return _NOTHING

    @staticmethod
    def _log_once(logged: set[str], native: NativeObject, last: str, text: str, *values: object) -> None:
        """Log about each object once, up to a maximum: every listing shows it again. `last` says that no line follows."""
        name = f"{native.location} {native.version}"
        if name in logged or len(logged) >= MAX_LOGGED:
            return
        logged.add(name)
        log.warning(text, *values)
        if len(logged) == MAX_LOGGED:
            log.warning(last)

    def defer(self, native: NativeObject) -> None:
        """Leave a version to a later listing: it is too young, or waits for an older version in the reader's hands."""
        self._tracker.defer(native)

    def _entries_of(
        self,
        key: OffsetManagerKey,
        native: NativeObject,
        topic_partition: TopicPartition,
        known: OffsetManagerEntry | None,
        in_flight: Collection[int],
    ) -> list[OffsetManagerEntry]:
        """Return the positions of a version: existing, or new.

        An object begun whole continues whole; an object begun in splits or parts keeps these. If the options that number
        its records have changed, it restarts, provided that nothing of it was sent.

        Raises:
            PositionMismatchError: they have changed, and part of it was sent.
        """
        if known is not None:
            entries = [known]
            if known.split_size:
                entries += self._table.splits_of(known)
            if in_flight or all(is_numbered_by(entry, self._numbering_options) for entry in entries):
                return entries
            begun = any(entry.records_done or entry.finished for entry in entries)
            if begun and not any(entry.may_begin_again and not entry.finished for entry in entries):
                for entry in sorted(entries, key=lambda entry: -entry.records_done):
                    if not entry.finished:
                        check_numbering(entry, self._numbering_options, native.location)
                return entries
        first = self._start_entry(native, topic_partition, self._numbering_options)
        entries = self._split_policy.positions_of(native, first)
        if known is None and len(entries) == 1:
            started = self._table.begin_first(key, entries[0])
            if started is not None:
                return [started]
        generation = self._table.next_generation(key)
        return self._table.begin(*(entry.changed(generation=generation) for entry in entries))

    def _assign(self, key: OffsetManagerKey, native: NativeObject, entry: OffsetManagerEntry) -> Assignment:
        with self._lock:
            self._in_flight.prune()  # within a listing too: the first listing of a large bucket gives millions
            self._in_flight.take(key, native, entry)
        return Assignment(native=native, entry=entry)

    @override
    def release(self, assignment: Assignment, *, gone: bool = False) -> None:
        """Let the next listing decide about this object; `once` makes it unless the object is gone or archived."""
        if assignment.archived:
            native = assignment.native
            self._log_once(
                self._logged_archived,
                native,
                "more objects are archived and waited for; no line names them",
                "%s is archived%s and waited for: it is tried again after each listing until it is restored",
                native.location,
                f" ({native.storage_class})" if native.storage_class else "",
            )
            gone = True  # no listing is made for it alone
        with self._lock:
            self._in_flight.give_back(self._key_of(assignment.native), assignment.entry, gone=gone)
            if gone:
                return
            self._released = True
            if self._once:
                self._stale_guard.note(self._key_of(assignment.native), assignment.native, self.counts.listings)
            if self._once and self._finished:
                self._finished = False
                self._due = self._clock() + self._stale_guard.pause_seconds

    @override
    def complete(self, assignment: Assignment) -> None:
        """Let the object go: its position decides from now on, and another version may begin."""
        with self._lock:
            self._in_flight.give_back(self._key_of(assignment.native), assignment.entry, gone=True)

    @property
    @override
    def finished(self) -> bool:
        """With `once`: whether one complete listing was assigned and no object of it was released."""
        return self._finished or self._stopped

    @property
    @override
    def seconds_until_due(self) -> float:
        """Seconds until the next listing starts; 0 while one is in progress."""
        return 0.0 if self._current is not None else max(0.0, self._due - self._clock())

    @override
    def stop(self) -> None:
        """End the listing at the next object."""
        self._stopped = True

    @override
    def leave(self) -> None:
        left, self._current = self._current, None
        close_iterator(left)
