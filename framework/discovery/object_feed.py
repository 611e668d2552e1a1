"""The source of the objects that a task reads: the contract, and the feed of objects that another process assigns.

A feed returns the next object; it knows positions, filters and routes, but no bytes. The iterator takes from it.
`framework.discovery.listing_feed` lists.
"""

from __future__ import annotations

import abc
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable

import attrs
from typing_extensions import override

from framework.model.objects import NativeObject
from framework.model.positions import OffsetManagerEntry

log = logging.getLogger(__name__)


@attrs.frozen(kw_only=True, slots=True)
class Assignment:
    """An object, or a split or part of it, to read, and the position to resume from.

    Attributes:
        native: the object version.
        entry: the position.
        archived: whether it was released because it must be restored first.
        in_place: whether it was released because other content has its version: see `ObjectChangedError`.
    """

    native: NativeObject
    entry: OffsetManagerEntry
    archived: bool = False
    in_place: bool = False

    @property
    def size_bytes(self) -> int:
        """Total bytes, read or not: the object's size, or that of its split or part."""
        return self.entry.bytes_of(self.native)

    @property
    def bytes_left(self) -> int:
        """Bytes still to read, as far as is known without asking the store."""
        entry = self.entry
        if entry.mark is None:
            return self.size_bytes
        if entry.part is not None:  # its records lie all over the object
            return entry.part.bytes_of(max(0, self.native.size - entry.mark.byte))
        begin = entry.split.begin if entry.split is not None else 0
        return max(0, self.size_bytes - (entry.mark.byte - begin))


@attrs.define(kw_only=True)
class FeedCounts:
    """Counts of the current listing, or of the last.

    Attributes:
        listings: complete listings so far.
        listed: objects that the listing showed.
        total_chosen: new or unfinished objects of all listings that are done or left to do; each split counts, and an object
            with parts once. One that was given back counts once, and not when no listing shows it again.
        total_chosen_bytes: their total size.
        given_back: how many of them the reader gave back, and wait for the next listing.
        waiting: whether no listing is in progress.
        filtered: reason -> number of objects that were filtered.
        done_before: objects that were finished already when the first listing showed them.
    """

    listings: int = 0
    listed: int = 0
    total_chosen: int = 0
    total_chosen_bytes: int = 0
    given_back: int = 0
    waiting: bool = False
    filtered: dict[str, int] = attrs.field(factory=dict)
    done_before: int = 0


class ObjectFeed(abc.ABC):
    """Source of objects to read. One reader takes; other threads may release, stop, or read the counts."""

    @abc.abstractmethod
    def take(self, patience_seconds: float = math.inf) -> Assignment | None:
        """Return the next object; None when there is none at the moment. May block for a listing request.

        Args:
            patience_seconds: how long to look for one in a listing in progress; by default to its end.
        """

    @abc.abstractmethod
    def release(self, assignment: Assignment, *, gone: bool = False) -> None:
        """Take back an object that could not be read as listed: a later listing decides, soon unless it is gone."""

    def complete(self, assignment: Assignment) -> None:  # noqa: B027 - most ask the positions
        """Learn that an object was read to its end, from a leader whose workers read. Default: nothing."""

    @property
    @abc.abstractmethod
    def finished(self) -> bool:
        """Whether no object will ever follow."""

    @property
    def seconds_until_due(self) -> float:
        """Seconds for which `take` will certainly return None; 0 when unknown."""
        return 0.0

    def wait(self, seconds: float, stop: threading.Event | None) -> None:
        """Wait until there may be more, `stop` is set, or the time is over."""
        if stop is not None:
            stop.wait(seconds)

    @abc.abstractmethod
    def stop(self) -> None:
        """End the current listing; `take` then returns None. Idempotent; callable from any thread."""

    def leave(self) -> None:  # noqa: B027 - most hold nothing
        """Release what a listing in progress holds. The taking thread calls it at its end. Default: nothing."""


class AssignedFeed(ObjectFeed):
    """Objects that another party chose: the process that lists for several tasks, a Spark driver, or a test.

    Args:
        assignments: the first objects.
        closed: whether no more will be given.
        on_release: called with every released object, in the reader's thread.
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
        """Add objects. Thread-safe."""
        with self._changed:
            self._waiting.extend(assignments)
            self._changed.notify_all()

    def close(self) -> None:
        """Declare that no more will be given."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @override
    def take(self, patience_seconds: float = math.inf) -> Assignment | None:
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
