"""The bounded queue between the reader and the sender: bounded in records and in bytes, blocking, closable."""

from __future__ import annotations

import threading
import time
from collections import deque

from framework.errors import TaskClosedError
from framework.model.batches import RecordBatch
from framework.pipeline.task_statistics import TaskStatistics


class BoundedQueue:
    """Batches in transit from a single reader to a single sender.

    `put` blocks while the queue is full: this is the back-pressure. A batch larger than a bound enters alone, when the
    queue is empty; so the queue never exceeds its bounds by more than a single batch. A blocked reader goes on when half
    of the queue is free: woken for each batch, reader and sender would take turns with the interpreter at each.

    Attributes:
        records: number of records in the queue.
        size_bytes: number of bytes in the queue: payloads, records' own headers, and bad records that await their dead
            letters.
        blocked_seconds: time that the full queue has blocked the reader.
    """

    def __init__(self, *, max_records: int, max_bytes: int) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._batches: deque[RecordBatch] = deque()
        self.records = 0
        self.size_bytes = 0
        self._closed = False
        self._lock = threading.RLock()  # a handler of a signal may call `wake` in the middle of a `take`
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self.blocked_seconds = 0.0

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def statistics(self) -> TaskStatistics:
        """What it holds now, and how long it has blocked the reader."""
        return TaskStatistics(
            queue_records=self.records, queue_bytes=self.size_bytes, blocked_seconds=self.blocked_seconds
        )

    def put(self, batch: RecordBatch) -> None:
        """Add a batch; block while it does not fit.

        Raises:
            TaskClosedError: the queue is closed, before the call or during it.
        """
        records, size = len(batch.payloads), batch.held_bytes
        with self._lock:
            if self._batches and not self._fits(records, size) and not self._closed:
                began = time.monotonic()
                while self._batches and not self._fits(records, size) and not self._closed:
                    self._wait()
                self.blocked_seconds += time.monotonic() - began
            if self._closed:
                raise TaskClosedError("the task was stopped")
            self._batches.append(batch)
            self.records += records
            self.size_bytes += size
            self._notify()

    def _wait(self, timeout_seconds: float | None = None) -> None:
        self._waiting += 1
        try:
            self._changed.wait(timeout_seconds)
        finally:
            self._waiting -= 1

    def _notify(self) -> None:
        if self._waiting:  # a condition looks for waiters slowly, and each small object is a batch
            self._changed.notify_all()

    def _fits(self, records: int, size: int) -> bool:
        return (
            self.records + records <= self._max_records
            and self.size_bytes + size <= self._max_bytes
            and len(self._batches) < self._max_records  # batches without records: an object's end, or only skips
        )

    def take(self, max_records: int, *, timeout_seconds: float = 0.0) -> list[RecordBatch]:
        """Return batches in order, together at most `max_records` records (a single larger batch is returned alone).

        Waits up to the timeout for the first batch. An empty list: no batch arrived, or the queue is closed.
        """
        with self._lock:
            if not self._batches and not self._closed:
                self._wait(timeout_seconds)
            taken: list[RecordBatch] = []
            count = 0
            while self._batches and (not taken or count + len(self._batches[0].payloads) <= max_records):
                batch = self._batches.popleft()
                count += len(batch.payloads)
                self.size_bytes -= batch.held_bytes
                taken.append(batch)
            self.records -= count
            if taken and (not self._batches or self._fits(self._max_records // 2, self._max_bytes // 2)):
                self._notify()
            return taken

    def wake(self) -> None:
        """Wake a waiting `take`, which then returns empty-handed."""
        with self._lock:
            self._changed.notify_all()

    def close(self) -> None:
        """End every wait. `put` raises from now on; `take` still returns the remaining batches. May be called twice."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
