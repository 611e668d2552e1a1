"""The pauses of an idle reader: 1 ms, 2 ms and so on, up to 5 seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable

import attrs

from framework.storage.retry import pause, uniform


@attrs.frozen(kw_only=True)
class BackoffConfig:
    """The pauses of an exhausted iterator.

    The n-th wait in a row (n = 0, 1, 2 ...) is `2**n` milliseconds, at most `cap_seconds * (1 - jitter)`, plus a random
    part of at most a quarter of that: 1 ms, 2 ms ... 2048 ms, 4000 ms, and never above 5 seconds.

    Attributes:
        cap_seconds: maximum wait.
        jitter: the random part of a wait; 0.2 adds at most a quarter to the exponential part.
    """

    cap_seconds: float = attrs.field(default=5.0, validator=[attrs.validators.gt(0), attrs.validators.le(5.0)])
    jitter: float = attrs.field(default=0.2, validator=[attrs.validators.ge(0), attrs.validators.lt(1)])


@attrs.define(eq=False, repr=False, slots=False)
class Backoff:
    """Exponential waits while there is nothing to read, restarted by `reset`. Not thread-safe.

    Args:
        config: the limits.
        wait: waits that many seconds, less when the event is set.
        rand: 0 .. 1, for the jitter.
    """

    _config: BackoffConfig = attrs.field(factory=BackoffConfig)
    _wait: Callable[[float, threading.Event | None], None] = attrs.field(default=pause, kw_only=True)
    _rand: Callable[[], float] = attrs.field(default=uniform, kw_only=True)
    _waits: int = attrs.field(default=0, init=False)

    @property
    def delay_seconds(self) -> float:
        """The next wait without its jitter. Has no side effects."""
        largest = self._config.cap_seconds * (1.0 - self._config.jitter)
        return min(0.001 * 2.0 ** min(self._waits, 60), largest)

    def reset(self) -> None:
        """Restart with the shortest wait, after there was something to read."""
        self._waits = 0

    def wait(self, stop: threading.Event) -> bool:
        """Wait once, at most `cap_seconds`; return whether `stop` is set, at once when it is."""
        if stop.is_set():
            return True
        exponential = self.delay_seconds
        # Jitter is always the same fraction (up to 1 s of 4 s, 0.25 ms of 1 ms), and the total never exceeds the cap.
        spread = self._config.jitter / (1.0 - self._config.jitter)
        self._waits += 1
        self._wait(exponential * (1.0 + spread * self._rand()), stop)
        return stop.is_set()
