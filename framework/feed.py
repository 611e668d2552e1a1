"""Which objects a task reads: passes over a listing, or objects that somebody else hands out.

A feed answers "what next"; it knows positions, filters and routes, and no bytes. The iterator takes from it.
"""

from __future__ import annotations

import abc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Protocol

import attrs
from typing_extensions import override

from framework.came_back import NOT_GIVEN, CameBack
from framework.cutting import Cutter, InHand
from framework.errors import ObjectChangedError, ObjectError
from framework.half_way import give_up
from framework.offsets import OffsetManager, OffsetManagerEntry, OffsetManagerKey, check_depends_on
from framework.records import Lane, NativeObject
from framework.shares import count_shares

log = logging.getLogger(__name__)

MOST_SAID = 1000
"""Archived objects that are named in the log."""

LIST_SHARE = 10
"""The wait between passes is at least this many times the listing, so that a large bucket is not listed without pause."""

LONG_REST_SECONDS = 30.0
"""A longer one is said: somebody may be waiting for what has just been put there."""


@attrs.frozen(kw_only=True, slots=True)
class Assignment:
    """An object to read, or one share of it, and the position to go on from.

    Attributes:
        native: the object version.
        entry: the position.
        archived: it came back because it must be restored first.
    """

    native: NativeObject
    entry: OffsetManagerEntry
    archived: bool = False

    @property
    def size_bytes(self) -> int:
        """How much there is of it, read or not: the object's size, or its share's."""
        return self.entry.bytes_of(self.native)

    @property
    def bytes_left(self) -> int:
        """How much of it is still to be read, as far as that is known without asking the store."""
        entry = self.entry
        if entry.mark is None:
            return self.size_bytes
        begin = entry.cut.begin if entry.cut is not None else 0
        return max(0, self.size_bytes - (entry.mark.byte - begin))


@attrs.define(kw_only=True)
class FeedCounts:
    """What the passes saw; of the pass under way, or of the last one.

    Attributes:
        passes: complete listings so far.
        listed: objects that the listing showed.
        chosen: objects of this pass that were new or unfinished; of a split one, each share counts.
        total_chosen: the same, over all passes.
        total_chosen_bytes: their sizes.
        waiting: whether no pass is under way.
        list_seconds: how long the listing took.
        left_out: reason -> objects, for what the filters left out.
    """

    passes: int = 0
    listed: int = 0
    chosen: int = 0
    total_chosen: int = 0
    total_chosen_bytes: int = 0
    waiting: bool = False
    list_seconds: float = 0.0
    left_out: dict[str, int] = attrs.field(factory=dict)


class ObjectFeed(abc.ABC):
    """Hands out objects. One reader takes; other threads may release, stop, or look at the counts."""

    @abc.abstractmethod
    def take(self) -> Assignment | None:
        """The next object; None when there is none just now. May block for a request of a listing."""

    @abc.abstractmethod
    def release(self, assignment: Assignment, *, gone: bool = False) -> None:
        """Takes back an object that could not be read as listed: a later pass decides anew, soon unless it is gone."""

    @property
    @abc.abstractmethod
    def finished(self) -> bool:
        """Whether nothing will ever come again."""

    @property
    def seconds_until_due(self) -> float:
        """How long `take` will surely give None; 0 when that is not known."""
        return 0.0

    def wait(self, seconds: float, stop: threading.Event | None) -> None:
        """Waits until there may be more, `stop` is set, or the time is over."""
        if stop is not None:
            stop.wait(seconds)

    @abc.abstractmethod
    def stop(self) -> None:
        """Ends a pass under way; `take` gives None from now on. May be called twice, from any thread."""

    def leave(self) -> None:  # noqa: B027 - most hold nothing
        """Gives back what a pass under way holds; called by the thread that takes, when it takes no more. By default nothing."""


class Selection(Protocol):
    """What decides about a listed object: `framework.selection.Selector` with a `framework.naming.Router`."""

    def begin_pass(self) -> None:
        """A listing begins."""

    def lane_for(self, native: NativeObject, *, started: bool = False) -> Lane | None:
        """Where the object's records go; None when the filters leave it out, which is counted by reason.

        `started`: some of it was sent already, so that its age no longer counts (`modified_after = "now"`).
        """

    def left_out(self) -> dict[str, int]:
        """Reason -> objects left out in this pass."""


_NOTHING: Iterator[Assignment] = iter(())


def _object_key(native: NativeObject) -> OffsetManagerKey:
    return OffsetManagerKey.of_object(native.bucket, native.key)


def _rest_seconds(listing_seconds: float) -> float:
    return LIST_SHARE * listing_seconds


class ListingFeed(ObjectFeed):
    """Passes over a listing: every object that is new or unfinished, once.

    An object is handed out when it has no position, a position of another version, or an unfinished one that is not in
    the hands of the reader already. A finished object costs nothing but its line in the listing. An object that is cut is
    handed out share by share; how it is cut is decided when its version is begun, and stands in its position from then on.
    """

    def __init__(
        self,
        *,
        listing: Callable[[], Iterable[NativeObject]],
        selection: Selection,
        offsets: OffsetManager,
        depends_on: str,
        poll_interval_seconds: float,
        tolerant: bool = False,
        once: bool = False,
        start_entry: Callable[[NativeObject, Lane, str], OffsetManagerEntry] = OffsetManagerEntry.start,
        key_of: Callable[[NativeObject], OffsetManagerKey] = _object_key,
        cutter: Cutter | None = None,
        rest_seconds: Callable[[float], float] = _rest_seconds,
        idle_seconds: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listing = listing
        self._selection = selection
        self._offsets = offsets
        self._depends_on = depends_on
        self._poll_interval = poll_interval_seconds
        self._tolerant = tolerant
        self._unfit: dict[str, int] = {}
        self._once = once
        self._start_entry = start_entry
        self._key_of = key_of
        self._cutter = cutter or Cutter()
        self._rest_seconds = rest_seconds
        self._idle_seconds = idle_seconds
        self._idle_before = 0.0
        self._clock = clock
        self._pass: Iterator[NativeObject] | None = None
        self._due = clock()
        self._listing_seconds = 0.0
        self._decided: Iterator[Assignment] = iter(())
        self._in_hand = InHand(offsets)
        self._released = False
        self._came_back = CameBack(poll_interval_seconds)
        self._finished = False
        self._said_archived: set[str] = set()
        self._stopped = False
        self._lock = threading.Lock()
        self.counts = FeedCounts()

    @override
    def take(self) -> Assignment | None:
        """The next new or unfinished object of the pass under way; begins a pass when one is due."""
        if self._pass is None and not self._begin_pass():
            return None
        assert self._pass is not None
        while not self._stopped:
            assignment = next(self._decided, None)
            if assignment is not None:
                self.counts.chosen += 1
                self.counts.total_chosen += 1
                self.counts.total_chosen_bytes += assignment.size_bytes
                return assignment
            began = self._clock()
            try:
                native = next(self._pass, None)
            except BaseException:
                self._pass = None  # it is over and was not complete: the next `take` begins another
                raise
            self._listing_seconds += self._clock() - began
            if native is None:
                self._end_pass()
                return None
            self.counts.listed += 1
            self._decided = self._decide(native)
        return None

    def _begin_pass(self) -> bool:
        if self._finished or self._stopped or self._clock() < self._due:
            return False
        with self._lock:
            self._in_hand.prune()
            self._in_hand.awaited = False
            self._came_back.begin_pass()
        self._listing_seconds = 0.0
        self._idle_before = self._idle_seconds()
        self._released = False
        past = self.counts
        self.counts = FeedCounts(
            passes=past.passes, total_chosen=past.total_chosen, total_chosen_bytes=past.total_chosen_bytes
        )
        self._selection.begin_pass()
        self._offsets.coverage.begin_pass()
        self._unfit = {}
        self._pass = iter(self._listing())
        return True

    def _end_pass(self) -> None:
        self._pass = None
        # what is queued for busy cores asks nothing of the store; ten times that would be minutes for nothing
        self._listing_seconds = max(0.0, self._listing_seconds - (self._idle_seconds() - self._idle_before))
        self.counts.passes += 1
        self.counts.waiting = True
        self.counts.list_seconds = self._listing_seconds
        self.counts.left_out = self._selection.left_out()
        self.counts.left_out |= self._unfit
        rest = self._rest_seconds(self._listing_seconds)
        self._due = self._clock() + max(self._poll_interval, rest)
        if rest > max(self._poll_interval, LONG_REST_SECONDS) and not self._once:
            log.info(
                "the listing took %.1f seconds, so that the next one begins in %.0f: new objects are found then",
                self._listing_seconds,
                rest,
            )
        if self._once:
            with self._lock:
                self._finished = not (self._released or self._in_hand.awaited)
            if self._released:
                self._due = self._clock() + self._came_back.pause_seconds

    def keys_in_hand(self) -> list[str]:
        """The keys of the objects that were handed out and are not finished, sorted; from any thread."""
        with self._lock:
            return self._in_hand.keys()

    def _decide(self, native: NativeObject) -> Iterator[Assignment]:  # noqa: PLR0911  the cases, in order
        key = self._key_of(native)
        finished = self._offsets.finished_version(key) == native.version
        entry = self._offsets.get_entry(key) if not finished else None
        same = entry if entry is not None and entry.version == native.version else None
        folded = not finished and entry is None and self._offsets.is_folded(key, native.key, native.modified_ms)
        coverage = self._offsets.coverage
        try:
            lane = self._selection.lane_for(native, started=finished or same is not None)
            if lane is None:
                return _NOTHING
            if folded:
                coverage.seen_folded(native)
                return _NOTHING
            coverage.seen(native)
            if finished or (same is not None and same.finished and not same.split_size):
                return _NOTHING
            self._came_back.check(key, native)
            found = 0 if same is not None else self._offsets.records_found(native)
            # what was begun whole goes on whole, what was begun in shares goes on in them
            cut = same.split_size if same is not None else 0 if found else self._cutter.size_for(native)
        except ObjectError as error:
            if not self._tolerant:
                raise
            log.warning("left out: %s", error)
            reason = NOT_GIVEN if isinstance(error, ObjectChangedError) else "name without a lane"
            self._unfit[reason] = self._unfit.get(reason, 0) + 1
            coverage.put_off(native)  # with another number of partitions, say, it may have a lane
            return _NOTHING
        with self._lock:
            in_hand = self._in_hand.shares(key, native.version)
            if in_hand is None or (in_hand and not cut):
                if in_hand is None:
                    coverage.put_off(native)
                    self._put_off(native)
                return _NOTHING  # the reader has it, in this version or in an older one
        generation = same.generation if same is not None else entry.generation + 1 if entry is not None else 0
        if cut:
            return self._shares(native, lane, cut, generation, in_hand)
        if same is None:
            position = attrs.evolve(self._start_entry(native, lane, self._depends_on), generation=generation)
            position = attrs.evolve(position, records_done=found) if found else position
        else:
            check_depends_on(same, self._depends_on, native.location)
            position = same
        return iter((self._hand_out(native, position),))

    def _put_off(self, native: NativeObject) -> None:
        """A version that has to wait for an older one in the reader's hands was listed: a later pass shows it again."""

    def _shares(
        self, native: NativeObject, lane: Lane, split_size: int, generation: int, in_hand: Collection[int]
    ) -> Iterator[Assignment]:
        """The shares of a split object that are neither finished nor in hand."""
        key = self._key_of(native)
        begun: dict[int, OffsetManagerEntry] = {}
        left: list[int] = []
        count = count_shares(native.size, split_size)
        for share in range(1, count + 1):
            position = self._offsets.get_entry(key.of_share(share))
            # a position of another generation is about an earlier version, or about this one when it was there before
            if position is not None and (position.version, position.generation) == (native.version, generation):
                begun[share] = position
            if share not in in_hand and not (share in begun and begun[share].finished):
                left.append(share)
        if left:
            for position in begun.values():
                check_depends_on(position, self._depends_on, native.location)
        if len(left) == count:
            log.info("%s: %d bytes, read in %d shares of %d bytes", native.location, native.size, count, split_size)
        for share in left:
            own_lane = self._cutter.lane(lane, share)
            known = begun.get(share)
            if known is None:
                position = self._start_entry(native, own_lane, self._depends_on)
                position = attrs.evolve(position, share=share, split_size=split_size, generation=generation)
            elif known.records_done or known.skipped:
                position = known
            else:
                position = attrs.evolve(known, lane=own_lane)  # nothing was sent: where it lies is still to be decided
            yield self._hand_out(native, position)

    def _hand_out(self, native: NativeObject, entry: OffsetManagerEntry) -> Assignment:
        with self._lock:
            self._in_hand.prune()  # within a pass too: the first one over a large bucket hands out millions
            self._in_hand.take(self._key_of(native), native, entry.share)
        if not entry.depends_on:  # a replay of the topic knows records, not options and times
            entry = attrs.evolve(entry, depends_on=self._depends_on, modified_ms=native.modified_ms)
        return Assignment(native=native, entry=entry)

    @override
    def release(self, assignment: Assignment, *, gone: bool = False) -> None:
        """Lets the next pass decide about this object again; with `once` there will be one, unless it is gone or archived."""
        if not gone or assignment.archived:
            self._offsets.coverage.given_back(assignment.native)
        if assignment.archived:
            self._say_archived(assignment.native)
            gone = True  # no pass is made for it alone
        with self._lock:
            self._in_hand.give_back(self._key_of(assignment.native), assignment.entry.share, gone=gone)
            if gone:
                return
            self._released = True
            if self._once:
                self._came_back.note(self._key_of(assignment.native), assignment.native, self.counts.passes)
            if self._once and self._finished:
                self._finished = False
                self._due = self._clock() + self._came_back.pause_seconds

    def _say_archived(self, native: NativeObject) -> None:
        """Once for each object; of very many, for the first ones."""
        name = f"{native.location} {native.version}"
        if name in self._said_archived or len(self._said_archived) >= MOST_SAID:
            return
        self._said_archived.add(name)
        log.warning(
            "%s is archived%s and waited for: it is tried again in each pass until it is restored",
            native.location,
            f" ({native.storage_class})" if native.storage_class else "",
        )
        if len(self._said_archived) == MOST_SAID:
            log.warning("more objects are archived; they are waited for without a word")

    @property
    @override
    def finished(self) -> bool:
        """With `once`: one whole pass was handed out and nothing of it came back."""
        return self._finished or self._stopped

    @property
    @override
    def seconds_until_due(self) -> float:
        """Until the next pass begins; 0 while one is under way."""
        return 0.0 if self._pass is not None else max(0.0, self._due - self._clock())

    @override
    def stop(self) -> None:
        """Ends the pass at the next object."""
        self._stopped = True

    @override
    def leave(self) -> None:
        left, self._pass = self._pass, None
        give_up(left)


class HandedFeed(ObjectFeed):
    """Objects that somebody else chose: the process that lists for several tasks, a Spark driver, a test.

    Args:
        assignments: the first ones.
        closed: whether no more will be given.
        on_release: told of every object that came back; from the reader's thread.
    """

    def __init__(
        self,
        assignments: Iterable[Assignment] = (),
        *,
        closed: bool = False,
        on_release: Callable[[Assignment, bool], None] | None = None,
    ) -> None:
        self._waiting = deque(assignments)
        self._closed = closed
        self._on_release = on_release
        self._changed = threading.Condition()

    def give(self, assignments: Iterable[Assignment]) -> None:
        """Adds objects; from any thread."""
        with self._changed:
            self._waiting.extend(assignments)
            self._changed.notify_all()

    def close(self) -> None:
        """Says that no more will be given."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @override
    def take(self) -> Assignment | None:
        with self._changed:
            return self._waiting.popleft() if self._waiting else None

    @override
    def release(self, assignment: Assignment, *, gone: bool = False) -> None:
        if self._on_release is not None:
            self._on_release(assignment, gone)

    @property
    @override
    def finished(self) -> bool:
        return self._closed and not self._waiting

    @override
    def wait(self, seconds: float, stop: threading.Event | None) -> None:
        with self._changed:
            if not (self._waiting or self._closed or (stop is not None and stop.is_set())):
                self._changed.wait(seconds)

    @override
    def stop(self) -> None:
        with self._changed:
            self._waiting.clear()
            self._closed = True
            self._changed.notify_all()
