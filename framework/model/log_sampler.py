"""Lines of one kind that come by the hundred, as when a store goes away under many reads: the first few, and a count."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

LINES = 5
SECONDS = 10.0


class LogSampler:
    """Logs the first `LINES` of each `SECONDS`; the others at level debug, and the next line says how many. Thread-safe.

    Args:
        log: where to.
        clock: monotonic seconds.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._ends = 0.0
        self._count = 0

    def log(self, level: int, text: str, *values: object) -> None:
        """Log a line, as `logging.Logger.log` does."""
        note = ""
        with self._lock:
            now = self._clock()
            if now >= self._ends:
                if self._count > LINES:
                    note = f" ({self._count - LINES} more such lines before, at level debug)"
                self._ends, self._count = now + SECONDS, 0
            self._count += 1
            if self._count == LINES:
                note = f" (more such lines in the next {self._ends - now:.0f} seconds: at level debug)"
            elif self._count > LINES:
                level = logging.DEBUG
        self._log.log(level, f"{text}%s", *values, note)
