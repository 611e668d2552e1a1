"""Objects opened ahead of the reading: the next ones of the feed, within a limit of objects and of bytes."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import attrs

from framework.discovery.object_feed import Assignment
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.storage.prefetch import FetchedInput, Prefetcher

if TYPE_CHECKING:
    from framework.config.input_section import InputSection
    from framework.model.objects import NativeObject
    from framework.offsets.manager import OffsetManager
    from framework.pipeline.task_statistics import TaskStatistics
    from framework.transformer import ObjectInput, Transformer

FILL_SHARE = 8
"""Objects are opened ahead once this part of `prefetch_objects` has room: in turns with the reading they cost more."""

TAKE_OBJECTS = 32
"""How many objects are taken from a feed at once, also if they are too large to be opened: what is taken together begins in one
record of the log, long before it is sent."""

FILL_SECONDS = 0.02
"""How long objects that were found wait for more of them."""


class OpenedObject(NamedTuple):
    """An object whose bytes are requested.

    Attributes:
        assignments: the object; or the parts of it that the feed gave in a row, which one read serves.
        source: its bytes.
        planned_bytes: how many bytes of the limit it takes.
    """

    assignments: Sequence[Assignment]
    source: FetchedInput
    planned_bytes: int


@attrs.define(eq=False, repr=False, slots=False, kw_only=True)
class ReadAhead:
    """The objects of a feed, each with the position to resume from, opened before they are read.

    One thread reads; `close` may come from any thread.

    Args:
        limits: `prefetch_objects` and `prefetch_bytes`.
        take: returns the feed's next object within some seconds; None when there is none now.
        open_input: returns the supplier of an object's bytes.
        transformer: the format, which says where a read begins.
        offsets: positions.
        statistics: counts the objects that were opened.
        is_handed: whether another process hands out the objects: its positions may be older than those here.
        waits_for_store: whether the store is away just now, so that nothing is to be opened.
    """

    _limits: InputSection
    _take: Callable[[float], Assignment | None]
    _open_input: Callable[[NativeObject], ObjectInput]
    _transformer: Transformer
    _offsets: OffsetManager
    _statistics: TaskStatistics
    _is_handed: bool
    _waits_for_store: Callable[[], bool]

    def __attrs_post_init__(self) -> None:
        self._max_objects = self._limits.prefetch_objects
        self._max_bytes = self._limits.prefetch_bytes
        self._prefetcher = Prefetcher(objects=self._max_objects, max_bytes=self._max_bytes)
        self._opened: deque[OpenedObject] = deque()
        self._taken: deque[tuple[Sequence[Assignment], int]] = deque()
        self._opened_bytes = 0
        self._head: FetchedInput | None = None
        self._next: Assignment | None = None
        self._failure: Exception | None = None
        self._released: dict[OffsetManagerKey, OffsetManagerEntry] = {}

    @property
    def is_empty(self) -> bool:
        """Whether everything that was taken from the feed was handed out."""
        return not self._opened and not self._taken and self._next is None

    def next(self) -> OpenedObject | None:
        """Return the next object to read; None when there is none now. `fill` should follow, once its reading began.

        Raises:
            Exception: a failure of the feed, after everything before it was handed out.
        """
        if not self._opened:
            self.fill(wait=True)
        if not self._opened:
            if self._taken:  # the store is away
                return None
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            return None
        opened = self._opened.popleft()
        self._opened_bytes -= opened.planned_bytes
        self._head = opened.source
        return opened

    def fill(self, *, wait: bool = False) -> None:
        """Open objects ahead: up to `prefetch_objects`, and as many as their bytes allow, but always at least one.

        Many at a time: the same steps for some objects in a row cost a sixth less than taking turns with the reading.

        Args:
            wait: whether nothing can be read before an object is found. Else none waits for a listing that finds few.
        """
        if self._waits_for_store():
            return
        room = self._max_objects - len(self._opened)
        if not self._taken and not (self._opened and room < self._max_objects // FILL_SHARE):
            self._take_many(room, wait=wait)
        while self._taken and room and (not self._opened or self._opened_bytes < self._max_bytes):
            assignments, planned_bytes = self._taken.popleft()
            self._opened.append(OpenedObject(assignments, self._fetch(assignments), planned_bytes))
            self._opened_bytes += planned_bytes
            self._statistics.objects_opened += 1
            room -= 1

    def _take_many(self, most: int, *, wait: bool) -> None:
        """Take the next objects of the feed. A failure of it is kept until everything before it was handed out."""
        until = math.inf if wait else time.monotonic() + FILL_SECONDS
        size_bytes = self._opened_bytes
        least = not self._opened if self._is_handed else TAKE_OBJECTS  # what one worker takes, no other one can read
        while len(self._taken) < most and (len(self._taken) < least or size_bytes < self._max_bytes):
            if (patience := until - time.monotonic()) <= 0:
                break
            assignment = self._take_next(patience)
            if assignment is None:
                break
            if until == math.inf:
                until = time.monotonic() + FILL_SECONDS
            assignments: Sequence[Assignment] = (self.resumed(assignment),)
            if assignments[0].entry.split_size < 0:
                assignments = self._with_parts(assignments[0])
            planned_bytes = self._planned_bytes(assignments[0])
            size_bytes += planned_bytes
            self._taken.append((assignments, planned_bytes))

    def note_released(self, entry: OffsetManagerEntry) -> None:
        """Keep how far an object was handed out before its release to the feed, possibly beyond its commits."""
        # An object that is gone never comes again: what its commits have reached by now is no longer needed here.
        self._released = {key: kept for key, kept in self._released.items() if self._is_beyond_commits(key, kept)}
        self._released[entry.get_manager_key()] = entry

    def close(self) -> None:
        """Drop what was opened. May be called twice, from any thread."""
        if self._head is not None:
            self._head.close()
        for opened in list(self._opened):
            opened.source.close()
        self._prefetcher.close()

    def resumed(self, assignment: Assignment) -> Assignment:
        """Return the assignment with the position to resume from, for a released object that reappears unchanged.

        The store may have been mistaken. The feed knows only the committed or recovered position. Records handed out
        since then are in flight and must not be sent again.
        """
        entry = assignment.entry
        if self._is_handed or entry.split_size:  # else its own feed has just looked at the table, or begun it there
            entry = self._offsets.table.adopt(entry)
        released = self._released.pop(entry.get_manager_key(), None) if self._released else None
        if released is not None and released.is_of(entry) and released.records_done > entry.records_done:
            entry = released
        return assignment if entry is assignment.entry else attrs.evolve(assignment, entry=entry)

    def _is_beyond_commits(self, key: OffsetManagerKey, released: OffsetManagerEntry) -> bool:
        known = self._offsets.get_entry(key)
        return known is not None and known.is_of(released) and known.records_done < released.records_done

    def _take_next(self, patience_seconds: float = math.inf) -> Assignment | None:
        """Return the next object; None when there is none now, or after a failure of the feed, which is kept."""
        if self._next is not None:
            assignment, self._next = self._next, None
            return assignment
        if self._failure is not None:
            return None
        try:
            return self._take(patience_seconds)
        except Exception as failure:  # noqa: BLE001 - raised in order
            self._failure = failure
            return None

    def _with_parts(self, first: Assignment) -> Sequence[Assignment]:
        """Return the parts of an object that the feed gives in a row: one read serves all of them."""
        assignments = [first]
        while (part := assignments[-1].entry.part) is not None and part.number < part.parts:
            following = self._take_next()
            if following is None:
                break
            if following.native != first.native or not following.entry.is_of(first.entry):
                self._next = following
                break
            assignments.append(self.resumed(following))
        return assignments

    def _planned_bytes(self, first: Assignment) -> int:
        return min(first.size_bytes if first.entry.split_size > 0 else first.native.size, self._max_bytes)

    def _fetch(self, assignments: Sequence[Assignment]) -> FetchedInput:
        """Request an object ahead, from where its reading resumes."""
        native, entry = assignments[0].native, assignments[0].entry
        if len(assignments) > 1:
            entry = min((part.entry for part in assignments), key=lambda entry: entry.records_done)
        source = self._open_input(native)
        ahead = self._transformer.prefetch_range(native.key, native.size, entry.split, entry.mark)
        return FetchedInput(source, 0, None) if ahead is None else self._prefetcher.fetch(source, *ahead)
