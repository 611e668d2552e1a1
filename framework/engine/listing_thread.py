"""Listing for a leader of several tasks, and its record of objects that are assigned but not finished.

    feed -> [thread] -> taken -> the leader assigns it to a task -> completed, or released to a later listing

Listing has its own thread: an unresponsive store must not delay a stop.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

from framework.discovery.object_feed import Assignment, FeedCounts, ObjectFeed

if TYPE_CHECKING:
    from framework.iterator import AbstractSourceRecordIterator
    from framework.model.positions import OffsetManagerEntry, OffsetManagerKey

WAIT_SECONDS = 0.05

MAX_WAIT_SECONDS = 0.5

MAX_NAMED = 64
"""Objects after which the leader is notified; it also polls by itself."""


class ListingThread:
    """The listing of one epoch. `changed` is the leader's condition: methods acquire it, and notify it of new objects.

    Args:
        iterator: iterator of a task that only lists.
        changed: condition shared with the leader.
        most: maximum of assigned and unfinished objects; the listing pauses above that.

    Attributes:
        idle: whether the last attempt took no object: none was found, or the limit was reached.
    """

    def __init__(self, iterator: AbstractSourceRecordIterator, changed: threading.Condition, *, most: int) -> None:
        self._iterator = iterator
        self._changed = changed
        self._most = most
        self._out: dict[tuple[OffsetManagerKey, int], Assignment] = {}  # by object and generation
        self._taken: list[Assignment] = []
        self._feed: ObjectFeed | None = None
        self._failure: BaseException | None = None
        self._ended = False
        self.idle = False
        self._thread = threading.Thread(target=self._list, name="listing", daemon=True)

    def start(self) -> None:
        """Start listing."""
        self._thread.start()

    def end(self) -> None:
        """Stop listing. A request in progress is abandoned. Idempotent."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def counts(self) -> FeedCounts | None:
        """Counts of the listings; None before the first."""
        return getattr(self._feed, "counts", None)

    def take(self) -> list[Assignment]:
        """Return the objects found since the last call; all parts of an object together, so that one read serves them.

        Raises:
            SourceError: the listing failed.
        """
        with self._changed:
            complete = len(self._taken) - self._incomplete()
            taken, self._taken = self._taken[:complete], self._taken[complete:]
            if not taken and self._failure is not None:
                raise self._failure
            return taken

    def _incomplete(self) -> int:
        """Return how many of the last objects are parts of an object whose next part may follow at once."""
        part = self._taken[-1].entry.part if self._taken else None
        if part is None or part.number == part.parts or self.idle or self._ended or self._failure is not None:
            return 0
        native = self._taken[-1].native
        return sum(1 for _ in itertools.takewhile(lambda taken: taken.native is native, reversed(self._taken)))

    @property
    def finished(self) -> bool:
        """Whether the feed has ended, and every object that it gave is completed."""
        with self._changed:
            return self._feed is not None and self._feed.finished and not self._out

    def complete(self, entry: OffsetManagerEntry) -> Assignment | None:
        """Remove a finished object; return None when it was not assigned.

        The feed learns of it, too: the next opening of its partition may find fewer records than were counted, of an object
        that ends with records that left no message. Then a later listing assigns it again.
        """
        with self._changed:
            assignment = self._out.pop((entry.get_manager_key(), entry.generation), None)
            if assignment is not None and self._feed is not None:
                self._feed.complete(assignment)
            return assignment

    def release(self, assignment: Assignment, *, gone: bool) -> None:
        """Give an object back to the feed: a later listing decides about it."""
        with self._changed:
            if self._feed is not None:  # before it is removed, or the listing could look finished in between
                self._feed.release(assignment, gone=gone)
            self._out.pop((assignment.entry.get_manager_key(), assignment.entry.generation), None)
            self._changed.notify_all()

    def _list(self) -> None:
        try:
            self._feed = self._iterator.feed
            while not self._ended:
                assignment = self._iterator.take() if len(self._out) < self._most else None
                with self._changed:
                    self.idle = assignment is None
                    if assignment is not None:
                        entry = assignment.entry
                        self._out[(entry.get_manager_key(), entry.generation)] = assignment
                        self._taken.append(assignment)
                        if len(self._taken) < MAX_NAMED:
                            continue
                    self._changed.notify_all()
                    if assignment is None and not self._ended:
                        due = self._iterator.seconds_until_due
                        self._changed.wait(min(due or WAIT_SECONDS, MAX_WAIT_SECONDS))
        except BaseException as error:  # noqa: BLE001 - re-raised in `take`
            with self._changed:
                self._failure = error
                self._changed.notify_all()
        finally:
            self._iterator.leave()
