"""Reading ahead: several objects are opened and read at once, handed out in order, and bounded in bytes.

A small object would cost a round trip each; here their round trips overlap. All streams of one `FetchAhead` share one
budget of bytes. The object that is being handed out (the head) may always hold one chunk, so the budget cannot block it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from framework.daemon_threads import DaemonThreads
from framework.errors import TaskClosedError
from framework.transformer import ObjectInput, ReadStream

CHUNK_BYTES = 1 << 19
"""What is read at once: large, because every read hands the interpreter's lock over and back."""


class FetchBudget:
    """Bytes that all streams together may hold."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.limit_ahead = limit - min(limit // 4, 8 * CHUNK_BYTES)  # the rest is the head's, or it would crawl
        self.used = 0
        self.closed = False
        self.changed = threading.Condition()


class FetchedStream:
    """A stream that a thread fills ahead of its reader. One reader; closing ends the filling too."""

    def __init__(self, opener: Callable[[], ReadStream], expected: int, budget: FetchBudget) -> None:
        self._opener = opener
        self._expected = expected
        self._budget = budget
        self._chunks: deque[bytes] = deque()
        self._held = 0
        self._ended = False
        self._error: BaseException | None = None
        self._closed = False
        self.is_head = False

    def fill(self) -> None:
        """Runs in a thread of the pool until the object's end, an error, or `close`."""
        stream: ReadStream | None = None
        reserved = 0
        try:
            stream = self._opener()
            remaining = self._expected
            while True:
                reserved = self._reserve(max(1, min(CHUNK_BYTES, remaining)))
                if not reserved:
                    break
                chunk = stream.read(CHUNK_BYTES)
                remaining -= len(chunk)
                if not self._keep(chunk, reserved):
                    break
                reserved = 0
        except BaseException as error:  # noqa: BLE001 - it is raised where the bytes are read
            self._error = error
        finally:
            try:
                if stream is not None:
                    stream.close()
            except Exception as error:  # noqa: BLE001 - as the others: who reads would wait for ever
                self._error = self._error or error
            with self._budget.changed:
                self._budget.used -= reserved
                self._ended = True
                self._budget.changed.notify_all()

    def _reserve(self, size: int) -> int:
        """Waits for room and takes it, before the bytes are there: many threads read at once. 0 when it was closed."""
        budget = self._budget
        with budget.changed:
            while not (self._closed or budget.closed):
                limit = budget.limit if self.is_head else budget.limit_ahead
                if budget.used + size <= limit or (self.is_head and not self._chunks):
                    budget.used += size
                    return size
                budget.changed.wait()
            return 0

    def _keep(self, chunk: bytes, reserved: int) -> bool:
        """Adds a chunk in place of its reservation; False at the end, or when nobody wants it."""
        with self._budget.changed:
            if not chunk or self._closed:
                return False
            self._chunks.append(chunk)
            self._held += len(chunk)
            self._budget.used += len(chunk) - reserved
            self._budget.changed.notify_all()
            return True

    def read(self, size: int, /) -> bytes:
        """The next bytes, at most `size`; `b""` at the end. Raises what the filling raised, after what came before it."""
        budget = self._budget
        with budget.changed:
            while not (self._chunks or self._ended or self._closed or budget.closed):
                budget.changed.wait()
            if self._closed or budget.closed:
                raise TaskClosedError("read from a closed stream")
            if not self._chunks:
                if self._error is not None:
                    raise self._error
                return b""
            chunk = self._chunks.popleft()
            if len(chunk) > size:
                self._chunks.appendleft(chunk[size:])
                chunk = chunk[:size]
            self._held -= len(chunk)
            budget.used -= len(chunk)
            budget.changed.notify_all()
            return chunk

    def make_head(self) -> None:
        """This stream's object is the one being handed out."""
        with self._budget.changed:
            self.is_head = True
            self._budget.changed.notify_all()

    def close(self) -> None:
        """Drops what was fetched and ends the filling. May be called twice."""
        budget = self._budget
        with budget.changed:
            self._closed = True
            budget.used -= self._held
            self._held = 0
            self._chunks.clear()
            budget.changed.notify_all()


class FetchedInput:
    """An `ObjectInput` whose first stream was opened ahead; every other range goes to the object itself."""

    def __init__(self, inner: ObjectInput, start: int, stream: FetchedStream | None, end: int | None = None) -> None:
        self._inner = inner
        self._range = start, end
        self._stream = stream
        self._taken: FetchedStream | None = None

    @property
    def location(self) -> str:
        """The object's address."""
        return self._inner.location

    @property
    def key(self) -> str:
        """The object's key."""
        return self._inner.key

    @property
    def size(self) -> int:
        """Its listed size in bytes."""
        return self._inner.size

    def open(self, start: int = 0, end: int | None = None) -> ReadStream:
        """The stream that was fetched ahead when it is the one that is asked for, else a new one."""
        stream = self._stream
        if stream is not None and (start, end) == self._range:
            self._stream, self._taken = None, stream
            stream.make_head()
            return stream
        self._drop()
        return self._inner.open(start, end)

    def close(self) -> None:
        """Gives up what was fetched, and ends a read that waits in the stream that was taken. May be called twice."""
        self._drop()
        if self._taken is not None:
            self._taken.close()

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class FetchAhead:
    """The threads and the budget of one iterator."""

    def __init__(self, *, objects: int, max_bytes: int) -> None:
        self.objects = max(1, objects)
        self._budget = FetchBudget(max_bytes)
        self._pool = DaemonThreads(self.objects, name="fetch")

    @property
    def used_bytes(self) -> int:
        """Bytes that are held now."""
        return self._budget.used

    def fetch(self, source: ObjectInput, start: int, end: int | None = None) -> FetchedInput:
        """Begins to read the bytes `start .. end - 1` of an object, or all from `start` on; returns at once."""
        expected = (source.size if end is None else end) - start
        stream = FetchedStream(lambda: source.open(start, end), expected, self._budget)
        self._pool.submit(stream.fill)
        return FetchedInput(source, start, stream, end)

    def close(self) -> None:
        """Ends every read that waits, and the threads as soon as their requests let them. May be called twice.

        Also for a stream that its thread has not begun to fill: nobody would ever end the wait for it.
        """
        with self._budget.changed:
            self._budget.closed = True
            self._budget.changed.notify_all()
        self._pool.shutdown()
