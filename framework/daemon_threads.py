"""Threads that a process need not wait for when it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue


class DaemonThreads:
    """Daemon threads that work off what is submitted, at most so many, made when they are needed.

    Not the standard pool: when the process ends that one waits for its threads, and one of ours may be in a request to
    which the store never answers. Work must not raise.

    Args:
        most: threads.
        name: what their names begin with.
    """

    def __init__(self, most: int, *, name: str) -> None:
        self._most = most
        self._name = name
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []

    def submit(self, work: Callable[[], None]) -> None:
        """Takes work; returns at once. For one thread."""
        self._work.put(work)
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._most:
            thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # its object must not live on while there is nothing to do
            self._idle.release()
        self._work.put(None)

    def shutdown(self, *, wait: bool = False) -> None:
        """Drops what no thread has begun, and ends the threads after what they do. May be called twice."""
        try:
            while True:
                self._work.get_nowait()
        except Empty:
            self._work.put(None)
        for thread in self._threads if wait else ():
            thread.join()
