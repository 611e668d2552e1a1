"""Adaptive limit of concurrent calls to a bucket: starts low, grows with success, shrinks on throttling."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

START_CALLS = 4
"""Concurrent calls before anything is known about the store."""


class CallLimiter:
    """Limiter of the concurrent calls that list one bucket. Thread-safe.

    The limit grows by one with each successful call, which doubles it per round trip, until the store throttles for the
    first time. From then on it grows by one per round trip. Each throttling halves it, but only once for all calls that
    were in progress at the last halving (additive increase, multiplicative decrease: Chiu and Jain, 1989; slow start:
    Jacobson, 1988). The limit does not grow while less than half of it is used.

    A budget of requests and of bytes per second spaces the calls; an oversized page delays the next calls.

    Args:
        most: upper bound of the limit.
        requests_per_second: budget; None = none.
        bytes_per_second: budget; None = none.
        clock: monotonic seconds.
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
        self._lock = threading.RLock()  # the garbage collector may end an unclosed listing in the middle of a call

    @property
    def allowed(self) -> int:
        """Current limit of concurrent calls."""
        return int(self._allowed)

    def take(self, wanted: int) -> int:
        """Acquire permits for up to that many calls; return how many were granted. Each must be given back."""
        with self._lock:
            given = max(0, min(wanted, self.allowed - self._under_way))
            self._under_way += given
            return given

    def give_back(self, calls: int, *, succeeded: bool = False) -> None:
        """Release the permits of calls, or unused permits."""
        with self._lock:
            if succeeded and 2 * self._under_way > self._allowed:
                self._allowed = min(self._most, self._allowed + (1.0 / self._allowed if self._throttled else 1.0))
            self._under_way -= calls

    def delay_seconds(self) -> float:
        """Reserve a slot in the budget of requests; return the seconds that the call has to wait for it."""
        if not self._request_seconds and not self._byte_seconds:
            return 0.0
        with self._lock:
            now = self._clock()
            at = max(now, self._due)
            self._due = at + self._request_seconds
            return at - now

    def spend(self, size_bytes: int) -> None:
        """Charge the bytes of an answer to the budget."""
        if self._byte_seconds:
            with self._lock:
                self._due = max(self._clock(), self._due) + size_bytes * self._byte_seconds

    def throttled(self, since: float) -> None:
        """Note that the store throttled a request sent at `since`."""
        with self._lock:
            if since <= self._halved:
                return
            self._throttled = True
            self._allowed = max(1.0, self._allowed / 2)
            self._halved = self._clock()
