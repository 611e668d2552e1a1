"""Deferred keys: objects that were listed but not read yet, for a source whose listings are mostly partial."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from heapq import nsmallest

MAX_DEFERRED = 1000
"""Maximum of keys kept, over all prefixes; with more prefixes, one of each.

The lowest of each prefix are kept: the keys of the prefix after them are listed with them anyway.
"""


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
        self._limit = max(MAX_DEFERRED, len(prefixes))
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
        """Keep the lowest keys of each prefix: first of those that hold listings back, then of those that wait, then others."""
        patient = set(self._patient())
        of_prefix: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for key in self._since:
            rank = 0 if key in patient else 1 if key in self._waiting else 2
            of_prefix[self._prefixes[bisect_right(self._prefixes, key) - 1]].append((rank, key))
        room = self._limit // len(self._prefixes)
        kept = {key for keys in of_prefix.values() for _, key in nsmallest(room, keys)}
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
