"""The bounded queue between the reader and the sender: bounded in records and in bytes, blocking, closable."""

from __future__ import annotations

import threading
import time
from collections import deque

from framework.errors import TaskClosedError
from framework.records import RecordBatch


class BoundedQueue:
    """Batches on their way from one reader to one sender.

    `put` blocks while the queue is full: that is the back-pressure. A batch that is larger than a bound by itself goes in
    alone, when the queue is empty; so at most one batch more than the bounds is ever held.
    """

    def __init__(self, *, max_records: int, max_bytes: int) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._batches: deque[RecordBatch] = deque()
        self._records = 0
        self._bytes = 0
        self._closed = False
        self._changed = threading.Condition()
        self.blocked_seconds = 0.0

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def records(self) -> int:
        """Records in the queue."""
        return self._records

    @property
    def size_bytes(self) -> int:
        """Bytes in the queue: payloads, and bad records that wait for their dead letters."""
        return self._bytes

    def put(self, batch: RecordBatch) -> None:
        """Adds a batch; blocks while it does not fit.

        Raises:
            TaskClosedError: the queue is closed, before or while it waits.
        """
        records, size = len(batch.payloads), batch.held_bytes
        with self._changed:
            if self._batches and not self._fits(records, size) and not self._closed:
                began = time.monotonic()
                while self._batches and not self._fits(records, size) and not self._closed:
                    self._changed.wait()
                self.blocked_seconds += time.monotonic() - began
            if self._closed:
                raise TaskClosedError("the task was stopped")
            self._batches.append(batch)
            self._records += records
            self._bytes += size
            self._changed.notify_all()

    def _fits(self, records: int, size: int) -> bool:
        return (
            self._records + records <= self._max_records
            and self._bytes + size <= self._max_bytes
            and len(self._batches) < self._max_records  # those without records: an object's end, skips alone
        )

    def take(self, max_records: int, *, timeout_seconds: float = 0.0) -> list[RecordBatch]:
        """Batches in order, together at most `max_records` records (one larger batch goes alone).

        Waits up to the timeout for the first; an empty list means that nothing came, or that the queue is closed.
        """
        with self._changed:
            if not self._batches and timeout_seconds > 0 and not self._closed:
                self._changed.wait(timeout_seconds)
            taken: list[RecordBatch] = []
            count = 0
            while self._batches and (not taken or count + len(self._batches[0].payloads) <= max_records):
                batch = self._batches.popleft()
                count += len(batch.payloads)
                self._bytes -= batch.held_bytes
                taken.append(batch)
            self._records -= count
            if taken:
                self._changed.notify_all()
            return taken

    def wake(self) -> None:
        """Ends a `take` that waits, empty-handed."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Ends every wait; `put` raises from now on, what is inside can still be taken. May be called twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
