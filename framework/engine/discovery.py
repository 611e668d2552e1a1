"""What a leader of several tasks lists, and its books of what is out: handed to a task, and not finished.

    feed -> [thread] -> taken -> the leader hands it to a task -> settled, or released to a later pass

Listing has a thread of its own: a store that does not answer must hold no stop up.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from framework.feed import Assignment, FeedCounts, ObjectFeed

if TYPE_CHECKING:
    from framework.iterator import AbstractSourceRecordIterator
    from framework.offsets import OffsetManagerKey

WAIT_SECONDS = 0.05

LONGEST_WAIT_SECONDS = 0.5

TOLD = 64
"""Objects after which the leader is told; it looks by itself soon enough."""


class Discovery:
    """The listing of one epoch. `changed` is the leader's lock: its methods take it, and tell it when something came.

    Args:
        iterator: of a task that only lists.
        changed: shared with the leader.
        most: objects that may be out; the listing pauses above that.
    """

    def __init__(self, iterator: AbstractSourceRecordIterator, changed: threading.Condition, *, most: int) -> None:
        self._iterator = iterator
        self._changed = changed
        self._most = most
        self._out: dict[tuple[OffsetManagerKey, str], Assignment] = {}
        self._taken: list[Assignment] = []
        self._feed: ObjectFeed | None = None
        self._failure: BaseException | None = None
        self._ended = False
        self._idle = False
        self._thread = threading.Thread(target=self._list, name="listing", daemon=True)

    def start(self) -> None:
        """Begins to list."""
        self._thread.start()

    def end(self) -> None:
        """Takes no more. A request that is under way is left behind. May be called twice."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def counts(self) -> FeedCounts | None:
        """What the passes saw; None before the first."""
        return getattr(self._feed, "counts", None)

    @property
    def idle(self) -> bool:
        """Whether there was nothing to take just now, or no room for it: what was taken is all there is for the moment."""
        return self._idle

    def take(self) -> list[Assignment]:
        """What was found since the last time.

        Raises:
            SourceError: why the listing ended.
        """
        with self._changed:
            taken, self._taken = self._taken, []
            if not taken and self._failure is not None:
                raise self._failure
            return taken

    @property
    def finished(self) -> bool:
        """Whether the feed has come to its end, and everything that it gave is settled."""
        with self._changed:
            return self._feed is not None and self._feed.finished and not self._out

    def settle(self, key: OffsetManagerKey, version: str) -> Assignment | None:
        """Strikes a finished object out; None when it was not out."""
        with self._changed:
            return self._out.pop((key, version), None)

    def release(self, assignment: Assignment, *, gone: bool) -> None:
        """Gives an object back to the feed: a later pass decides anew."""
        with self._changed:
            if self._feed is not None:  # before it is struck out, or the pass could look finished in between
                self._feed.release(assignment, gone=gone)
            self._out.pop((assignment.entry.get_manager_key(), assignment.entry.version), None)
            self._changed.notify_all()

    def _list(self) -> None:
        try:
            self._feed = feed = self._iterator.feed
            while not self._ended:
                assignment = feed.take() if len(self._out) < self._most else None
                with self._changed:
                    self._idle = assignment is None
                    if assignment is not None:
                        entry = assignment.entry
                        self._out[(entry.get_manager_key(), entry.version)] = assignment
                        self._taken.append(assignment)
                        if len(self._taken) < TOLD:
                            continue
                    self._changed.notify_all()
                    if assignment is None and not self._ended:
                        self._changed.wait(min(feed.seconds_until_due or WAIT_SECONDS, LONGEST_WAIT_SECONDS))
        except BaseException as error:  # noqa: BLE001 - raised where objects are taken
            with self._changed:
                self._failure = error
                self._changed.notify_all()
        finally:
            self._iterator.leave()
