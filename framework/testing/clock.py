"""A clock that only a test moves, and a pause that takes no time."""

from __future__ import annotations

import threading


class FakeClock:
    """A clock that only moves by `advance` and `wait`. Call it for the time; threads may share it.

        clock = FakeClock()
        policy = RetryPolicy(clock=clock, wait=clock.wait, rand=lambda: 0.0)

    Args:
        start: the first time.
        step: seconds added at each call; 0 adds none.

    Attributes:
        waits: the arguments of `wait`, in order.
    """

    def __init__(self, start: float = 1000.0, *, step: float = 0.0) -> None:
        self._now = start
        self._step = step
        self._lock = threading.Lock()
        self.waits: list[float] = []

    def __call__(self) -> float:
        """Return the time."""
        with self._lock:
            self._now += self._step
            return self._now

    def advance(self, seconds: float) -> None:
        """Move the time forward."""
        with self._lock:
            self._now += seconds

    def wait(self, seconds: float, stop: threading.Event | None = None) -> None:
        """Move the time instead of waiting; do nothing when `stop` is set. Fits `RetryPolicy.wait`."""
        if stop is not None and stop.is_set():
            return
        with self._lock:
            self.waits.append(seconds)
            self._now += seconds

    def sleep(self, seconds: float) -> None:
        """Move the time, as a plain `time.sleep`."""
        self.wait(seconds)
