"""Threads that do not delay the end of the process."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from queue import Empty, SimpleQueue
from typing import TypeVar

import attrs

T = TypeVar("T")

SLICE_SECONDS = 0.1


@attrs.define(eq=False, repr=False, slots=False)
class DaemonThreads:
    """A bounded pool of daemon threads, one more with each work until there are enough.

    The standard pool waits for its threads at process exit, and ours may hang in a request that the store never
    answers.

    Args:
        most: maximum of threads.
        name: prefix of their names.
    """

    _most: int
    _name: str = attrs.field(kw_only=True)
    _work: SimpleQueue[Callable[[], None] | None] = attrs.field(factory=SimpleQueue)
    _threads: list[threading.Thread] = attrs.field(factory=list)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue work; return at once. The future has its result, or what it raised. Not thread-safe."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                future.set_exception(error)

        self._work.put(run)
        if len(self._threads) < self._most:
            thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # an idle thread must not keep its object alive
        self._work.put(None)

    def shutdown(self) -> None:
        """Drop work that has not started, and end each thread after its current work. Idempotent."""
        try:
            while True:
                self._work.get_nowait()
        except Empty:
            self._work.put(None)


class Awaited(Future[T]):
    """Work in a thread of its own, which its owner can leave behind.

    Args:
        work: the work.
        name: of the thread.
        too_late: called with a result that arrives after the owner has left.

    Attributes:
        ended: set at the end of the work.
    """

    def __init__(self, work: Callable[[], T], name: str, *, too_late: Callable[[T], object] = lambda _: None) -> None:
        super().__init__()
        self._work = work
        self._too_late = too_late
        self.ended = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            result = self._work()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            with contextlib.suppress(InvalidStateError):
                self.set_exception(error)
        else:
            try:
                self.set_result(result)
            except InvalidStateError:  # its owner has left
                self._too_late(result)
        finally:
            self.ended.set()

    def wait(self, stopping: threading.Event, limit_seconds: float = math.inf) -> T | None:
        """Return the result, or None when `stopping` is set or the limit passes first. Several threads may wait.

        Raises:
            BaseException: the exception of the work.
        """
        began = time.monotonic()
        while not self.ended.wait(SLICE_SECONDS):
            if stopping.is_set() or time.monotonic() - began >= limit_seconds:
                return None
        return self.result()

    def leave(self) -> bool:
        """Leave the work behind, unless there is a result; return whether there is none."""
        return self.cancel() or self.exception() is not None


def start_timer(seconds: float, work: Callable[[], object]) -> threading.Timer:
    """Do work after some time, unless the returned timer is cancelled."""
    timer = threading.Timer(seconds, work)
    timer.daemon = True
    timer.start()
    return timer
