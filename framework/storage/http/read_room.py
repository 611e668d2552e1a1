"""Memory for what comes before it is read: a budget of bytes, and the part of it that each stream holds."""

from __future__ import annotations

import threading
from collections.abc import Callable

import attrs

from framework.storage.http.errors import MAX_REFUSAL_BYTES

CHUNK_BYTES = 1 << 19
"""Size of one read: large, because every read releases and reacquires the interpreter's lock."""


class FetchBudget:
    """Budget of bytes that all streams together may hold.

    Use it with `with` for a change after which others may find room: they are woken at its end, without the lock, which they
    want at once. What only looks, or takes room, holds `lock`.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.limit_ahead = limit - min(limit // 4, 8 * CHUNK_BYTES)  # the rest is the head's, or it would starve
        self.used = 0
        self.closed = False
        self.lock = threading.RLock()
        self.blocked: set[Callable[[], None]] = set()

    def has_room(self, size: int, *, is_head: bool, is_empty: bool) -> bool:
        """Return whether a stream may hold that many bytes more. The caller holds the lock."""
        limit = self.limit if is_head else self.limit_ahead
        return self.used + size <= limit or (is_head and is_empty)

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        woken = tuple(self.blocked)
        self.blocked.clear()
        self.lock.release()
        for resume in woken:
            resume()


@attrs.define(eq=False, repr=False)
class StreamRoom:
    """The part of a budget that one stream holds; a `ReadRoom`.

    Attributes:
        is_head: whether the stream's object is being delivered.
    """

    _budget: FetchBudget
    _held: int = 0
    is_head: bool = False
    _closed: bool = False

    @property
    def is_closed(self) -> bool:
        """Whether nothing is wanted of the stream any more."""
        return self._closed or self._budget.closed

    def watch(self, wake: Callable[[], None]) -> None:
        """Have `wake` called at the next change of the budget."""
        with self._budget.lock:
            self._budget.blocked.add(wake)

    def take(self, size: int, resume: Callable[[], None]) -> bool:
        """Take room for a piece; False when there is none. Bytes of a closed stream do not count."""
        budget = self._budget
        with budget.lock:
            if self.is_closed:
                return True
            # the head always has room for a refusal, and one piece more: see MAX_REFUSAL_BYTES
            if not budget.has_room(size, is_head=self.is_head, is_empty=self._held < MAX_REFUSAL_BYTES):
                budget.blocked.add(resume)
                return False
            self._held += size
            budget.used += size
            return True

    def give(self, size: int) -> None:
        """Give back the room of bytes that were read."""
        budget = self._budget
        with budget:
            if not self._closed:
                self._held -= size
                budget.used -= size

    def make_head(self) -> None:
        """Mark the stream's object as the head, which is being delivered."""
        with self._budget:
            self.is_head = True

    def close(self) -> None:
        """Give back everything. Idempotent."""
        budget = self._budget
        with budget:
            self._closed = True
            budget.used -= self._held
            self._held = 0
