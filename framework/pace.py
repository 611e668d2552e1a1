"""How many calls a bucket is given at once: few at first, more while it takes them, fewer when it asks for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from framework.store import ObjectStore

START_CALLS = 4
"""Calls at once before anything is known of the store."""


class CallPace:
    """The calls that a process has under way to one bucket. Threads share it.

    The number of calls allowed at once grows by one with each that succeeds, which doubles it in each round trip, until
    the store throttles for the first time; from then on it grows by one in each round trip and is halved by each
    throttling, once for all calls that were under way when it was halved last (additive increase, multiplicative
    decrease: Chiu and Jain, 1989; slow start: Jacobson, 1988). It does not grow while less is used than allowed.

    A budget of requests and of bytes a second spaces the calls out; a page that was larger than its share delays the
    next ones.

    Args:
        most: calls at once, whatever the store takes.
        requests_per_second: budget; None = none.
        bytes_per_second: budget; None = none.
        clock: seconds that only go up.
    """

    def __init__(
        self,
        *,
        most: int = 1024,
        requests_per_second: float | None = None,
        bytes_per_second: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._allowed = float(min(START_CALLS, most))
        self._under_way = 0
        self._throttled = False
        self._halved = -1.0
        self._request_seconds = 1.0 / requests_per_second if requests_per_second else 0.0
        self._byte_seconds = 1.0 / bytes_per_second if bytes_per_second else 0.0
        self._due = clock()
        self._clock = clock
        self._lock = threading.RLock()  # the collector may end a listing that was not closed in the middle of a call
        self._waiting: set[Callable[[], None]] = set()

    @property
    def allowed(self) -> int:
        """Calls that may be under way now."""
        return int(self._allowed)

    def take(self, wanted: int) -> int:
        """Takes leave for up to that many calls; how many were given. Each must be given back."""
        with self._lock:
            given = max(0, min(wanted, self.allowed - self._under_way))
            self._under_way += given
            return given

    def give_back(self, calls: int, *, succeeded: bool = False, quiet: bool = False) -> None:
        """Ends calls, or gives back leave that was not used; who listens is told that there is room, unless `quiet`."""
        with self._lock:
            if succeeded and 2 * self._under_way > self._allowed:
                self._allowed = min(self._most, self._allowed + (1.0 / self._allowed if self._throttled else 1.0))
            self._under_way -= calls
            listeners = [] if quiet else list(self._waiting)
        for listener in listeners:
            listener()

    def delay_seconds(self) -> float:
        """Takes a place in the budget of requests; how long the call has to wait for it."""
        if not self._request_seconds and not self._byte_seconds:
            return 0.0
        with self._lock:
            now = self._clock()
            at = max(now, self._due)
            self._due = at + self._request_seconds
            return at - now

    def spend(self, size_bytes: int) -> None:
        """Takes the bytes of an answer out of the budget."""
        if self._byte_seconds:
            with self._lock:
                self._due = max(self._clock(), self._due) + size_bytes * self._byte_seconds

    def throttled(self, since: float) -> None:
        """The store asked for less, in answer to a request sent at `since`."""
        with self._lock:
            if since <= self._halved:
                return
            self._throttled = True
            self._allowed = max(1.0, self._allowed / 2)
            self._halved = self._clock()

    def listen(self, listener: Callable[[], None]) -> None:
        """From now on `listener` is called when there may be room; from any thread, with no lock held."""
        with self._lock:
            self._waiting.add(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Ends that. May be called twice."""
        with self._lock:
            self._waiting.discard(listener)


_paces: dict[tuple[str, str, str], CallPace] = {}
_paces_lock = threading.Lock()


def pace_of(store: ObjectStore) -> CallPace:
    """The one pace of that bucket in this process: what was learnt in one pass holds for the next."""
    with _paces_lock:
        return _paces.setdefault((store.scheme, store.address, store.bucket), CallPace())


def set_pace(store: ObjectStore, pace: CallPace) -> None:
    """Gives a bucket a pace with a budget, before it is listed."""
    with _paces_lock:
        _paces[store.scheme, store.address, store.bucket] = pace
