"""Deferred keys: objects that were listed but not read yet, for a source whose listings are mostly partial."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from heapq import nsmallest

from framework.model.key_range import prefix_of

MAX_DEFERRED = 1000
"""Number of keys kept, the lowest: keys after them are listed with them anyway. Many prefixes keep more, some of each."""

KINDS = 5
"""Maximum number of kinds of keys; see `DeferredKeys._prune`."""


class DeferredKeys:
    """Keys that the next listing must include. Any thread may add; one thread lists.

    A key waits from its deferral until it is listed again. The time of its first deferral is kept longer: until a full
    listing shows the key without another deferral. So a key that is deferred repeatedly is recognized, and holds
    listings back no longer than `patience_seconds` in all.

    Args:
        patience_seconds: how long a key holds listings back.
        clock: returns seconds.
        prefixes: listed prefixes; none begins with another.
    """

    def __init__(self, patience_seconds: float, clock: Callable[[], float], prefixes: Sequence[str] = ("",)) -> None:
        self._patience = patience_seconds
        self._clock = clock
        self._prefixes = sorted(prefixes)
        self._limit = max(MAX_DEFERRED, 2 * KINDS * len(prefixes))
        self._since: dict[str, float] = {}
        self._waiting: set[str] = set()
        self._fresh: set[str] = set()  # deferred since the current listing began
        self._lock = threading.Lock()

    def add(self, key: str) -> None:
        """Defer an object that was not read yet, or that the reader released."""
        with self._lock:
            self._since.setdefault(key, self._clock())
            self._waiting.add(key)
            self._fresh.add(key)
            if len(self._since) >= 2 * self._limit:
                self._prune()

    def _prune(self) -> None:
        """Keep the lowest keys: first of those that hold listings back, then of those that wait, then of the others.

        Each prefix keeps the lowest of each kind, too. The listing in progress may settle all keys that were deferred before
        it, and none that were deferred since.
        """
        patient = set(self._patient())
        lowest: dict[tuple[str | None, bool, bool, bool], str] = {}
        for key in sorted(self._since, reverse=True):
            lowest[prefix_of(self._prefixes, key), key in patient, key in self._waiting, key in self._fresh] = key
        kept = set(lowest.values())
        for keys in (patient, self._waiting, set(self._since)):
            kept.update(nsmallest(self._limit - len(kept), keys - kept))
        self._since = {key: since for key, since in self._since.items() if key in kept}
        self._waiting &= kept
        self._fresh &= kept

    def _patient(self) -> list[str]:
        now = self._clock()
        return [key for key in self._waiting if now - self._since[key] <= self._patience]

    def waiting(self) -> list[str]:
        """Return every waiting key, however old."""
        with self._lock:
            return list(self._waiting)

    def waited_for(self) -> list[str]:
        """Return the keys that the next listing must start before."""
        with self._lock:
            return self._patient()

    def begin_listing(self) -> None:
        """Start a listing."""
        with self._lock:
            self._fresh.clear()

    def end_listing(self, was_listed: Callable[[str], bool], *, whole: bool) -> None:
        """Complete a listing.

        Args:
            was_listed: whether the listing would have shown a key.
            whole: whether the listing was a full listing.
        """
        with self._lock:
            seen = [key for key in self._since if key not in self._fresh and was_listed(key)]
            self._waiting.difference_update(seen)
            if whole:
                for key in seen:
                    del self._since[key]
