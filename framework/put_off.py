"""Objects that were listed and left for later, for a source that does not list everything in each pass."""

from __future__ import annotations

import threading
from collections.abc import Callable
from heapq import nsmallest

MOST_PUT_OFF = 1000
"""Objects of which the names are kept, the lowest ones: what lies behind them is listed with them anyway."""


class PutOff:
    """Which keys the next pass must not leave out. Any thread may add; one thread lists.

    A key waits from when it was put off until it is listed again. Since when it has been put off is remembered beyond that,
    until a whole pass shows it without putting it off again: so one that is put off over and over is told from others, and
    waits no longer than `patience_seconds` in all.

    Args:
        patience_seconds: for so long a key is waited for.
        clock: seconds.
    """

    def __init__(self, patience_seconds: float, clock: Callable[[], float]) -> None:
        self._patience = patience_seconds
        self._clock = clock
        self._since: dict[str, float] = {}
        self._waiting: set[str] = set()
        self._fresh: set[str] = set()  # put off since the pass under way began
        self._lock = threading.Lock()

    def add(self, key: str) -> None:
        """An object was left for later, or came back from the reader."""
        with self._lock:
            self._since.setdefault(key, self._clock())
            self._waiting.add(key)
            self._fresh.add(key)
            if len(self._since) >= 2 * MOST_PUT_OFF:
                kept = set(nsmallest(MOST_PUT_OFF, self._since))
                self._since = {one: since for one, since in self._since.items() if one in kept}
                self._waiting &= kept
                self._fresh &= kept

    def waiting(self) -> list[str]:
        """Every key that waits, however long."""
        with self._lock:
            return list(self._waiting)

    def waited_for(self) -> list[str]:
        """Those that the next pass begins before."""
        now = self._clock()
        with self._lock:
            return [key for key in self._waiting if now - self._since[key] <= self._patience]

    def begin_pass(self) -> None:
        """A listing begins."""
        with self._lock:
            self._fresh.clear()

    def end_pass(self, was_listed: Callable[[str], bool], *, whole: bool) -> None:
        """A listing is complete.

        Args:
            was_listed: whether it would have shown a key.
            whole: it showed all there is.
        """
        with self._lock:
            seen = [key for key in self._since if key not in self._fresh and was_listed(key)]
            self._waiting.difference_update(seen)
            if whole:
                for key in seen:
                    del self._since[key]
