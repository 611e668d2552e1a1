"""Streams of a store's object that resume where the connection broke.

Transformers read from here. They get the whole object in one version, or an error; never a short read at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import attrs
from typing_extensions import override

from framework.errors import (
    CorruptObjectError,
    ObjectChangedError,
    RetriableError,
    SourceError,
    StoreContractError,
    TaskClosedError,
    TruncatedObjectError,
)
from framework.storage.retry import OnRetry, RetryPolicy
from framework.transformer import ObjectInput, ReadStream

if TYPE_CHECKING:
    from framework.model.objects import NativeObject
    from framework.storage.checksum import Checksum
    from framework.store import ObjectStore, PendingStream, ReadRoom

T = TypeVar("T")


@attrs.define(eq=False, repr=False, slots=False)
class StoreInput(ObjectInput):
    """One listed object version as the input of a transformer. Thread-safe; each stream belongs to one thread.

    Args:
        store: the object's store.
        native: the version to read. The store refuses any other version.
        policy: the retry policy. The budget restarts whenever bytes have come.
        on_retry: called before each wait.
        stop: ends a wait at once, with `TaskClosedError`.
    """

    _store: ObjectStore
    native: NativeObject
    _policy: RetryPolicy = attrs.field(factory=RetryPolicy)
    _on_retry: OnRetry | None = attrs.field(default=None, kw_only=True)
    _stop: threading.Event | None = attrs.field(default=None, kw_only=True)

    @property
    @override
    def location(self) -> str:
        return self.native.location

    @property
    @override
    def key(self) -> str:
        return self.native.key

    @property
    @override
    def size(self) -> int:
        return self.native.size

    @override
    def open(self, start: int = 0, end: int | None = None) -> ReadStream:
        stop_at = self.native.size if end is None else min(end, self.native.size)
        stream = ResumingStream(self, start, stop_at)
        stream.connect()
        return stream

    def begin(self, start: int, end: int | None, room: ReadRoom) -> ResumingStream | None:
        """Start the request of a stream that is read later; None when the store can only block, or fails.

        Call `connect` before the first read. A retriable failure is retried meanwhile.
        """
        stop_at = self.native.size if end is None else min(end, self.native.size)
        stream = ResumingStream(self, start, stop_at)
        if start < stop_at:
            stop = None if stop_at == self.native.size else stop_at
            try:
                stream.pending = self._store.begin(self.native, start, stop, room=room, retry=stream.retry)
            except SourceError:
                return None  # `open` tries again, or raises it when it is this object's turn
            if stream.pending is None:
                return None
        return stream

    def request(self, start: int, end: int, failed: RetriableError | None) -> ReadStream:
        """Open a plain stream of the store, with retries. A read of the whole object is requested without an end.

        Args:
            start: first byte.
            end: the byte after the last.
            failed: the failure of a first try; None before one.
        """
        return self._call(f"opening {self.location}", failed, lambda: self._open(start, end))

    def _call(self, what: str, failed: RetriableError | None, attempt: Callable[[], T]) -> T:
        return self._policy.call(attempt, what=what, failed=failed, on_retry=self._on_retry, stop=self._stop)

    def _open(self, start: int, end: int) -> ReadStream:
        stream = self._store.open(self.native, start, None if end == self.native.size else end)
        if not hasattr(stream, "read"):
            raise StoreContractError(
                f"{self.location}: {type(self._store).__name__}.open returned {type(stream).__name__}, not a ReadStream"
            )
        return stream

    def retry_delay(self, error: RetriableError, failures: int, elapsed_seconds: float) -> float | None:
        """Return the seconds before the next try of a request made ahead; None when its tries are used up."""
        policy = self._policy
        delay = policy.delay(failures, error.retry_after_seconds, elapsed_seconds)
        if failures >= policy.attempts or elapsed_seconds + delay > policy.budget_seconds:
            return None
        if self._on_retry is not None:
            self._on_retry(error, failures, delay)
        return delay

    @property
    def clock(self) -> Callable[[], float]:
        """The policy's clock."""
        return self._policy.clock

    def again(self, failed: RetriableError, start: int, end: int, size: int) -> tuple[ReadStream, bytes]:
        """Reopen after a read failed at `start`; return the new stream and its first bytes.

        Opening and the first read are one call for the policy: a store that accepts every connection but breaks it
        before the first byte uses up the budget.

        Raises:
            RetriableError: the last error, when the budget is used up.
        """

        def attempt() -> tuple[ReadStream, bytes]:
            stream = self._open(start, end)
            try:
                return stream, stream.read(size)
            except BaseException:
                stream.close()
                raise

        return self._call(f"reading {self.location} on from byte {start}", failed, attempt)

    @override
    def __repr__(self) -> str:
        return f"StoreInput({self.location}, {self.size} bytes)"


@attrs.define(eq=False, repr=False)
class ResumingStream(ReadStream):
    """The bytes `start .. end - 1` of one version, complete. Not thread-safe.

    When a read raises `RetriableError`, the object is reopened at the byte that was reached. The condition on the
    version prevents mixed contents. Created by `StoreInput.open`.
    """

    _source: StoreInput
    _position: int
    _end: int
    _stream: ReadStream | None = None
    _checksum: Checksum | None = None
    _closed: bool = False
    pending: PendingStream | None = None
    _failures: int = 0
    _failed_since: float = 0.0
    _gave_up: bool = False

    def connect(self) -> None:
        """Wait for the request that is under way, or send the first; none for an empty range."""
        if self._closed:
            raise TaskClosedError(f"{self._source.location}: read after close")
        if self._position < self._end:
            self._stream = self._begun() if self.pending is not None else self._request(None)
            if self._position == 0 and self._end == self._source.native.size:
                self._checksum = getattr(self._stream, "checksum", None)

    def whole(self) -> bytes | None:
        """Return the whole object, of which nothing was read yet, and take nothing; None when `connect` must tell."""
        pending = self.pending
        return pending.whole() if pending is not None and not self._closed else None

    def _request(self, failed: RetriableError | None) -> ReadStream:
        return self._source.request(self._position, self._end, failed)

    def _begun(self) -> ReadStream:
        pending = self.pending
        assert pending is not None
        try:
            stream = pending.result()
        except RetriableError as error:
            self.pending = None
            if self._gave_up:
                seconds = self._source.clock() - self._failed_since
                error.args = (
                    f"{error} (gave up opening {self._source.location} after {self._failures} tries in {seconds:.1f} seconds)",
                )
                raise
            return self._request(error)
        self.pending = None
        return stream

    def retry(self, error: RetriableError) -> float | None:
        """Return the seconds before the request made ahead is made again; None when its tries are used up."""
        now = self._source.clock()
        if not self._failures:
            self._failed_since = now
        self._failures += 1
        delay = self._source.retry_delay(error, self._failures, now - self._failed_since)
        self._gave_up = delay is None
        return delay

    @override
    def read(self, size: int, /) -> bytes:
        if self._closed:
            raise TaskClosedError(f"{self._source.location}: read after close")
        if self._position >= self._end or size <= 0:
            return b""
        stream = self._stream
        if stream is None:
            raise TaskClosedError(f"{self._source.location}: read after a failure; open it again")
        try:
            data = stream.read(size)
        except RetriableError as failed:
            self._drop()
            self._stream, data = self._source.again(failed, self._position, self._end, size)
        if type(data) is not bytes:
            data = own_bytes(data, stream, self._source.location)
        if not data:
            raise _short(self._source.native, self._position, self._end)
        self._position += len(data)
        if self._position > self._end:
            raise _long(self._source.native, self._end)
        if self._checksum is not None:
            self._checksum.add(data)
            if self._position == self._end and not self._checksum.holds:
                raise _changed_on_the_way(self._source.native, self._checksum)
        return data

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    @override
    def close(self) -> None:
        self._closed = True
        self._drop()
        if self.pending is not None:
            self.pending.close()

    def abort(self) -> None:
        """End a waiting `connect` or `read` at once, from another thread."""
        self._closed = True
        pending, stream = self.pending, self._stream
        if pending is not None:
            pending.close()
        abort = getattr(stream, "abort", None)
        if abort is not None:
            abort()


def own_bytes(data: object, stream: ReadStream, location: str) -> bytes:
    """Return what a stream of an author gave in place of `bytes`: a copy, as the stream may use its buffer again.

    Raises:
        StoreContractError: it is no buffer of bytes.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise StoreContractError(f"{location}: {type(stream).__name__}.read returned {type(data).__name__}, not bytes")
    return bytes(data)


def _changed_on_the_way(native: NativeObject, checksum: Checksum) -> CorruptObjectError:
    digits = 16 if checksum.name == "crc64nvme" else 8
    return CorruptObjectError(
        f"its bytes have the {checksum.name} {checksum.value:0{digits}x}, the store says {checksum.expected:0{digits}x}: "
        f"they were changed on the way, or in the store. Read it again; when that stays so, write it again",
        location=native.location,
    )


def _long(native: NativeObject, end: int) -> ObjectChangedError | StoreContractError:
    if end == native.size:
        return ObjectChangedError(
            f"more bytes came than the {native.size} listed: it was overwritten, or is listed with a wrong size",
            location=native.location,
        )
    return StoreContractError(
        f"{native.location}: the bytes up to {end} were requested, and more came: `end` is exclusive"
    )


def _short(native: NativeObject, reached: int, end: int) -> TruncatedObjectError:
    return TruncatedObjectError(
        f"the object ends at byte {reached}, {end} were to be read of the {native.size} listed; list it again",
        location=native.location,
    )
