"""Prefetching: many objects are requested at once, delivered in order, within a limit of bytes.

Each small object would cost a round trip; here the round trips overlap. All streams of a `Prefetcher` share one budget
of bytes. The object being delivered (the head) may always hold one chunk, so the budget cannot block it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial

import attrs
from typing_extensions import override

from framework.errors import StoreContractError, TaskClosedError
from framework.storage.author_code import author_code
from framework.storage.daemon_threads import DaemonThreads
from framework.storage.http.read_room import CHUNK_BYTES, FetchBudget, StreamRoom
from framework.storage.resuming_stream import ResumingStream, own_bytes
from framework.transformer import ObjectInput, ReadStream

MAX_THREADS = 32
"""Objects read at once of a store that can only block: each takes a thread."""


class CheckedStream(ReadStream):
    """A stream of an author's store or iterator: whatever else than an error of the framework it raises is the source's.

    Without it a transformer's reader would take it for damage of the object, or for a defect of the format.
    """

    __slots__ = ("_location", "_stream")

    def __init__(self, source: ObjectInput, start: int, end: int | None) -> None:
        self._location = source.location
        with author_code(f"{self._location}: reading it"):
            self._stream = source.open(start, end)
        if not hasattr(self._stream, "read"):
            raise StoreContractError(
                f"{self._location}: {type(source).__name__}.open returned {type(self._stream).__name__}, not a ReadStream"
            )

    @override
    def read(self, size: int, /) -> bytes:
        with author_code(f"{self._location}: reading it"):
            data = self._stream.read(size)
        return data if type(data) is bytes else own_bytes(data, self._stream, self._location)

    @override
    def close(self) -> None:
        with author_code(f"{self._location}: reading it"):
            self._stream.close()


@attrs.define(eq=False, repr=False)
class BegunStream:
    """A stream that the store fills by itself, before it is read."""

    _stream: ResumingStream
    _room: StreamRoom
    _came_whole: bool = False

    def whole(self) -> bytes | None:
        """Return the bytes of the whole object, which becomes the head; None when the stream must tell."""
        self._room.make_head()
        data = self._stream.whole()
        self._came_whole = data is not None
        return data

    def taken(self) -> ReadStream:
        """Return the stream, whose object becomes the head; waits for the answer's beginning."""
        self._room.make_head()
        self._stream.connect()
        return self._stream

    def close(self) -> None:
        """Drop the request and what has come, from any thread. Idempotent."""
        if not self._came_whole:  # else the request has ended, or is about to
            self._stream.abort()
        self._room.close()


@attrs.define(eq=False, repr=False, slots=False)
class FetchedStream:
    """A stream that a thread fills ahead of its reader. One reader; closing also ends the filling."""

    _opener: Callable[[], ReadStream]
    _expected: int
    _room: StreamRoom
    _chunks: deque[bytes] = attrs.field(factory=deque)
    _begin: int = 0  # of what is left of the first chunk: to cut it off would copy the rest at every read
    _ended: bool = False
    _refused: bool = False
    _error: BaseException | None = None
    _changed: threading.Condition = attrs.field(factory=lambda: threading.Condition())  # noqa: PLW0108 - a test replaces it

    def fill(self) -> None:
        """Fill the stream in a pool thread until the object's end, an error, or `close`."""
        stream: ReadStream | None = None
        try:
            stream = self._opener()
            self._fill_from(stream)
        except BaseException as error:  # noqa: BLE001 - re-raised in `read`
            self._error = error
        try:
            if stream is not None:
                stream.close()
        except Exception as error:  # noqa: BLE001 - re-raised in `read`, or the reader would wait without end
            self._error = self._error or error
        self._ended = True
        self._wake()

    def _fill_from(self, stream: ReadStream) -> None:
        left, chunk = self._expected, b"first"
        while chunk:
            size = max(1, min(CHUNK_BYTES, left))  # taken before it is read, as many threads read at once
            self._wait_until(partial(self._has_taken, size))
            if self._room.is_closed:
                return
            chunk = b""
            try:
                chunk = stream.read(CHUNK_BYTES)
            finally:
                self._room.give(size - len(chunk))
            left -= len(chunk)
            with self._changed:
                if chunk and not self._room.is_closed:
                    self._chunks.append(chunk)
                    self._changed.notify_all()

    def _has_taken(self, size: int) -> bool:
        taken = self._room.take(size, self._wake)
        if not taken and self._room.is_head:
            self._refused = True
            self._changed.notify_all()
        return taken

    def _wait_until(self, ready: Callable[[], object]) -> None:
        """Wait until `ready()`, or until the stream is closed. Holds no lock at the end: a change of the budget wakes others."""
        with self._changed:
            self._room.watch(self._wake)  # before the look: a change between look and wait must not be missed
            while not (self._room.is_closed or ready()):
                self._changed.wait()
                self._room.watch(self._wake)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, at most `size`; `b""` at the end. Raises an error of the filling after its bytes."""
        self._wait_until(lambda: self._chunks or self._ended)
        with self._changed:
            if self._room.is_closed:
                raise TaskClosedError("read from a closed stream")
            if not self._chunks:
                if self._error is not None:
                    raise self._error
                return b""
            data = self._chunks[0][self._begin : self._begin + size]
            self._begin += len(data)
            if self._begin == len(self._chunks[0]):
                self._chunks.popleft()
                self._begin = 0
        self._room.give(len(data))
        return data

    def whole(self) -> bytes | None:
        """Return all bytes, which stay; None when `read` must tell: of an error, or when they need more room."""
        self.taken()
        self._wait_until(lambda: self._ended or self._refused)
        with self._changed:  # else a close in between would leave no bytes, which is a whole object too
            good = self._ended and self._error is None and not self._room.is_closed
            return b"".join(self._chunks)[self._begin :] if good else None

    def taken(self) -> FetchedStream:
        """Return the stream itself; its object becomes the head, which is being delivered."""
        self._room.make_head()
        return self

    def close(self) -> None:
        """Drop the fetched bytes and end the filling. Idempotent."""
        self._room.close()
        with self._changed:
            self._chunks.clear()
            self._changed.notify_all()


class FetchedInput:
    """An `ObjectInput` whose first stream was opened ahead; every other range is read from the object itself."""

    def __init__(
        self, inner: ObjectInput, start: int, stream: FetchedStream | BegunStream | None, end: int | None = None
    ) -> None:
        self._inner = inner
        self._range = start, end
        self._stream = stream
        self._taken: FetchedStream | BegunStream | None = None

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
        """Return the prefetched stream if its range is requested, else a new one."""
        stream = self._stream
        if stream is not None and (start, end) == self._range:
            self._stream, self._taken = None, stream
            return stream.taken()
        self._drop()
        return CheckedStream(self._inner, start, end)

    def whole(self) -> bytes | None:
        """Return the bytes of the whole object if they were requested ahead, waiting for them; nothing is taken.

        They are checked as those of a stream. None: `open` gives them, or their error.
        """
        stream = self._stream
        if stream is None or self._range != (0, None):
            return None
        data = stream.whole()
        if self._stream is not stream:
            raise TaskClosedError(f"{self.location}: closed while reading")
        return data

    def close(self) -> None:
        """Drop the prefetched stream, and end a read that waits in a stream already taken. Idempotent."""
        self._drop()
        if self._taken is not None:
            self._taken.close()

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class Prefetcher:
    """What one iterator reads ahead, and its budget.

    A store that can begin a read without blocking does so, and needs no threads; others are read by a thread each.
    """

    def __init__(self, *, objects: int, max_bytes: int) -> None:
        self.objects = max(1, objects)
        self._budget = FetchBudget(max_bytes)
        self._pool = DaemonThreads(min(self.objects, MAX_THREADS), name="fetch")

    def fetch(self, source: ObjectInput, start: int, end: int | None = None) -> FetchedInput:
        """Start reading the bytes `start .. end - 1` of an object, or all from `start` on; returns at once."""
        begin, room = getattr(source, "begin", None), StreamRoom(self._budget)
        begun = begin(start, end, room) if begin is not None else None
        if begun is not None:
            return FetchedInput(source, start, BegunStream(begun, room), end)
        expected = (source.size if end is None else end) - start
        stream = FetchedStream(lambda: CheckedStream(source, start, end), expected, room)
        self._pool.submit(stream.fill)
        return FetchedInput(source, start, stream, end)

    def close(self) -> None:
        """End every waiting read, and the threads as soon as their requests end. Idempotent.

        This includes a stream whose filling has not started: its reader would otherwise wait without end.
        """
        with self._budget:
            self._budget.closed = True
        self._pool.shutdown()
