"""The pipe over which the process of a task reaches its leader.

It carries the statistics, log lines and errors of a task. Its positions are not sent over it: the leader reads them from the
offsets topic (`framework.engine.session`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from multiprocessing.connection import Connection

log = logging.getLogger(__name__)


class LeaderPipe:
    """The pipe to the leader, shared by the worker's threads. If the leader is gone, messages are dropped.

    The garbage collector may run finalizers that log at any time, even while this thread is sending a message.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.RLock()
        self._sending = False
        self._waiting: deque[tuple[str, object]] = deque()

    def send(self, kind: str, value: object) -> None:
        """Send a message, after those that wait."""
        self._waiting.append((kind, value))
        with self._lock:
            if self._sending:  # by this thread, below: the loop sends it next
                return
            self._sending = True
            try:
                while self._waiting:
                    self._pipe.send(self._waiting.popleft())
            except (OSError, ValueError):
                log.debug("the leader is gone")
            finally:
                self._sending = False
