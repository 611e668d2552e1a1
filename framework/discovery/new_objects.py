"""What is read of a listed object: nothing, or its positions that are new or unfinished.

An object is read if it has no position, or a position of another version. So is one with an unfinished position that the
reader does not hold. A finished object is never read again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator

import attrs

from framework.discovery.object_feed import Assignment
from framework.discovery.object_filters import RoutedSelection
from framework.discovery.splitting import InFlight, SplitPolicy
from framework.discovery.stale_listing import NOT_GIVEN, StaleListingGuard
from framework.errors import ListingError, ObjectChangedError, ObjectError
from framework.model.objects import NativeObject, TopicPartition, is_older_form
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey, check_numbering, is_numbered_by
from framework.offsets.manager import OffsetManager

log = logging.getLogger(__name__)

MAX_LOGGED = 1000
"""Maximum of archived, or refused, objects that the log names individually."""

MAX_KEY_CHARACTERS = 10_000
"""The longest key: headers of a message and of a dead letter name it, and have 100,000 bytes. S3 and GCS allow 1,024."""

MAX_VERSION_CHARACTERS = 2000
"""The longest version, for the same reason."""

NOTHING: Iterator[Assignment] = iter(())
"""Nothing is read of the object."""


def _object_key(native: NativeObject) -> OffsetManagerKey:
    return OffsetManagerKey.of_object(native.bucket, native.key)


_SECONDS = range(10**9, 10**10)
"""Seconds since 1970 from 2001 to 2286. Taken for milliseconds they are in the spring of 1970."""

_MICROSECONDS = 10**14
"""Microseconds, or nanoseconds, since 1970 from 1973 on. As milliseconds this is the year 5138."""


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
    if native.modified_ms in _SECONDS or native.modified_ms >= _MICROSECONDS:
        unit = "seconds" if native.modified_ms < _MICROSECONDS else "microseconds or nanoseconds"
        raise ListingError(
            f"{native.location}: the listing shows the modified_ms {native.modified_ms}, which are {unit}: milliseconds since "
            "1970 are needed, or later objects are taken for old ones and not read"
        )
    if not native.version:
        raise ListingError(
            f"{native.location}: the listing shows the version '', which must not be empty: an overwritten object would look "
            "unchanged, and its new content would not be read"
        )
    if native.size < 0:
        raise ListingError(f"{native.location}: the listing shows the size {native.size}, which must not be below 0")


@attrs.define(kw_only=True, eq=False, repr=False, slots=False)
class NewObjects:
    """Decides what to read of each listed object, by its position.

    An object is split when its version begins; the splits are assigned one by one, and the split size is kept in its
    position. One thread decides; others give back.

    Args:
        selection: filters and routes.
        offsets: the positions.
        numbering_options: what the record numbers of new positions depend on.
        defer: leaves an object to a later listing.
        longest_pause_seconds: maximum pause of the guard.
        tolerant: whether a refused object is logged and counted, instead of ending the run.
        start_entry: makes the first position of an object.
        key_of: returns the key of its position.
        split_policy: how it is split.
        in_order: whether assignments wait for the end of the listing, and are made when they are taken.

    Attributes:
        lock: held while what follows changes.
        in_flight: what was assigned, and neither finished nor released.
        stale_guard: what could not be read as listed.
        done: number of decisions so far that nothing is left to read.
    """

    _selection: RoutedSelection
    offsets: OffsetManager
    _numbering_options: str
    _defer: Callable[[NativeObject], None]
    _longest_pause_seconds: float
    _tolerant: bool = False
    _start_entry: Callable[[NativeObject, TopicPartition, str], OffsetManagerEntry] = OffsetManagerEntry.start
    key_of: Callable[[NativeObject], OffsetManagerKey] = _object_key
    _split_policy: SplitPolicy = attrs.field(factory=SplitPolicy)
    _in_order: bool = False

    def __attrs_post_init__(self) -> None:
        self._table = self.offsets.table
        self._tracker = self.offsets.tracker
        self._unfit: dict[str, int] = {}
        self._logged: set[str] = set()
        self._in_place: dict[OffsetManagerKey, str] = {}
        self.lock = threading.Lock()
        self.in_flight = InFlight(self._table)
        self.stale_guard = StaleListingGuard(self._longest_pause_seconds)
        self.done = 0

    def begin_listing(self) -> None:
        """Forget what the last listing filtered, and its pauses."""
        with self.lock:
            self.in_flight.prune()
            self.in_flight.awaited = False
            self.stale_guard.begin_listing()
        self._selection.begin_listing()
        self._unfit = {}

    def begin_again(self, native: NativeObject) -> None:
        """Let the next listing begin this version again: another content has it now. The caller must lock."""
        self._in_place[self.key_of(native)] = native.version

    def filtered(self) -> dict[str, int]:
        """Return reason -> number of objects of this listing that are not read."""
        return self._selection.filtered() | self._unfit

    def decide(self, native: NativeObject) -> Iterator[Assignment]:
        """Return the assignments of a listed object; `NOTHING` if it is filtered, done, refused or waits.

        Raises:
            ListingError: the listing shows what is no object.
            ObjectError: the object is refused, and bad objects end the run.
            PositionMismatchError: the options that number its records changed, and part of it was sent.
        """
        try:
            return self._decided_as_listed(native)
        except (TypeError, AttributeError):
            check_listed(native)
            raise

    def _decided_as_listed(self, native: NativeObject) -> Iterator[Assignment]:
        key = self.key_of(native)
        final, entry = self._table.listed(key, native.version)
        if entry is not None and is_older_form(entry.version, native.version):
            native = attrs.evolve(native, version=entry.version)
            final, entry = self._table.listed(key, native.version)
        if entry is not None:
            self._tracker.still_exists(key)
        same = entry if entry is not None and entry.version == native.version else None
        try:
            topic_partition = self._selection.partition_for(native, started=final or same is not None)
            if topic_partition is None or self._is_done(key, native, entry, final=final):
                return NOTHING
            self.stale_guard.check(key, native)
            return self._begin(key, native, topic_partition, same)
        except ObjectError as error:
            return self._refuse(native, error)

    def _is_done(
        self, key: OffsetManagerKey, native: NativeObject, entry: OffsetManagerEntry | None, *, final: bool
    ) -> bool:
        """Return whether nothing of a version is left to read; the watermark then accounts for it."""
        tracker = self._tracker
        if entry is not None:
            final = entry.version == native.version and entry.finished and self._all_finished(entry)
        if final:
            tracker.add_known(native)
        elif entry is None and self._table.is_compacted(key, native.key, native.modified_ms):
            tracker.add_compacted(native)
        else:
            return False
        self.done += 1
        return True

    def _all_finished(self, first: OffsetManagerEntry) -> bool:
        """Return whether the other splits or parts of an object are finished, too."""
        return not first.split_size or all(entry.finished for entry in self._table.splits_of(first))

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
        for name, text, most in (
            ("key", native.key, MAX_KEY_CHARACTERS),
            ("version", native.version, MAX_VERSION_CHARACTERS),
        ):
            if len(text) > most:
                raise ObjectError(
                    f"its {name} has {len(text):,} characters; with more than {most:,} it fits into no message",
                    location=native.location[:300],
                )
        with self.lock:
            held = self.in_flight.splits(key, native.version)
            in_flight = frozenset(held) if held is not None else None
            in_place = bool(self._in_place) and self._in_place.get(key) == native.version
        # After what is in flight, not before it: what ended in between is in neither, and would be read again.
        current = self.offsets.get_entry(key) if same is not None else None
        replaced = same is not None and (current is None or current.version != native.version)
        if in_flight is None or replaced or (in_place and in_flight):
            # the reader holds an older version, or a person reset this one: it waits for the next listing
            self._defer(native)
            return NOTHING
        entries = self._entries_of(key, native, topic_partition, None if in_place else current, in_flight)
        if self._in_place:
            self._in_place.pop(key, None)
        tracker.add_known(native)
        # Decided now: these positions are of this moment, and what is in flight may end before the last one is taken.
        waiting = [entry for entry in entries if not entry.finished and entry.split_number not in in_flight]
        if len(waiting) == 1 and not self._in_order:  # taken at once
            return iter((self._assign(key, native, waiting[0]),))
        return (self._assign(key, native, self._table.adopt(entry)) for entry in waiting)

    def _refuse(self, native: NativeObject, error: ObjectError) -> Iterator[Assignment]:
        if not self._tolerant:
            raise error
        last = "further objects are skipped for their names; they are only counted"
        log_once(self._logged, native, last, "skipped: %s", error)
        reason = NOT_GIVEN if isinstance(error, ObjectChangedError) else "refused for its name"
        self._unfit[reason] = self._unfit.get(reason, 0) + 1
        self._tracker.defer(native)  # it may get a partition later
        return NOTHING

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
        with self.lock:
            self.in_flight.prune()  # within a listing too: the first listing of a large bucket gives millions
            self.in_flight.take(key, native, entry)
        return Assignment(native=native, entry=entry)


def log_once(logged: set[str], native: NativeObject, last: str, text: str, *values: object) -> None:
    """Log about each object once, up to a maximum: every listing shows it again. `last` says that no line follows."""
    name = f"{native.location} {native.version}"
    if name in logged or len(logged) >= MAX_LOGGED:
        return
    logged.add(name)
    log.warning(text, *values)
    if len(logged) == MAX_LOGGED:
        log.warning(last)
