"""Streams of a store's object that resume where the connection broke.

Transformers read from here. They get the whole object in one version, or an error; never a short read at the end.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from typing_extensions import override

from framework.errors import CorruptObjectError, RetriableError, TaskClosedError, TruncatedObjectError
from framework.storage.retry import OnRetry, RetryPolicy
from framework.transformer import ObjectInput, ReadStream

if TYPE_CHECKING:
    from framework.model.objects import NativeObject
    from framework.storage.checksum import Checksum
    from framework.store import ObjectStore


class StoreInput(ObjectInput):
    """One listed object version as the input of a transformer. Thread-safe; each stream belongs to one thread.

    Args:
        store: the object's store.
        native: the version to read. The store refuses any other version.
        policy: the retry policy. The budget restarts whenever bytes have come.
        on_retry: called before each wait.
        stop: ends a wait at once, with `TaskClosedError`.
    """

    def __init__(
        self,
        store: ObjectStore,
        native: NativeObject,
        policy: RetryPolicy | None = None,
        *,
        on_retry: OnRetry | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self.native = native
        self._store = store
        self._policy = policy or RetryPolicy()
        self._on_retry = on_retry
        self._stop = stop

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

    def request(self, start: int, end: int) -> ReadStream:
        """Open a plain stream of the store, with retries. A read of the whole object is requested without an end."""
        return self._policy.call(
            self._store.open,
            self.native,
            start,
            None if end == self.native.size else end,
            what=f"opening {self.location}",
            on_retry=self._on_retry,
            stop=self._stop,
        )

    def again(self, failed: RetriableError, start: int, end: int, size: int) -> tuple[ReadStream, bytes]:
        """Reopen after a read failed at `start`; return the new stream and its first bytes.

        Opening and the first read are one call for the policy: a store that accepts every connection but breaks it
        before the first byte uses up the budget.

        Raises:
            RetriableError: the last error, when the budget is used up.
        """
        failures: list[RetriableError] = [failed]

        def attempt() -> tuple[ReadStream, bytes]:
            if failures:
                raise failures.pop()
            stream = self._store.open(self.native, start, None if end == self.native.size else end)
            try:
                return stream, stream.read(size)
            except BaseException:
                stream.close()
                raise

        return self._policy.call(
            attempt, what=f"reading {self.location} on from byte {start}", on_retry=self._on_retry, stop=self._stop
        )

    @override
    def __repr__(self) -> str:
        return f"StoreInput({self.location}, {self.size} bytes)"


class ResumingStream(ReadStream):
    """The bytes `start .. end - 1` of one version, complete. Not thread-safe.

    When a read raises `RetriableError`, the object is reopened at the byte that was reached. The condition on the
    version prevents mixed contents. Created by `StoreInput.open`.
    """

    __slots__ = ("_checksum", "_closed", "_end", "_position", "_source", "_stream")

    def __init__(self, source: StoreInput, start: int, end: int) -> None:
        self._source = source
        self._position = start
        self._end = end
        self._stream: ReadStream | None = None
        self._checksum: Checksum | None = None
        self._closed = False

    def connect(self) -> None:
        """Send the first request; none for an empty range."""
        if self._position < self._end:
            self._stream = self._source.request(self._position, self._end)
            if self._position == 0 and self._end == self._source.native.size:
                self._checksum = getattr(self._stream, "checksum", None)

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
            data = self._go_on(failed, size)
        if not data:
            raise _short(self._source.native, self._position, self._end)
        self._position += len(data)
        if self._checksum is not None:
            self._checksum.add(data)
            if self._position == self._end and not self._checksum.holds:
                raise _changed_on_the_way(self._source.native, self._checksum)
        return data

    def _go_on(self, failed: RetriableError, size: int) -> bytes:
        self._drop()
        self._stream, data = self._source.again(failed, self._position, self._end, size)
        return data

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    @override
    def close(self) -> None:
        self._closed = True
        self._drop()


def _changed_on_the_way(native: NativeObject, checksum: Checksum) -> CorruptObjectError:
    digits = 16 if checksum.name == "crc64nvme" else 8
    return CorruptObjectError(
        f"its bytes have the {checksum.name} {checksum.value:0{digits}x}, the store says {checksum.expected:0{digits}x}: "
        f"they were changed on the way, or in the store. Read it again; when that stays so, write it again",
        location=native.location,
    )


def _short(native: NativeObject, reached: int, end: int) -> TruncatedObjectError:
    return TruncatedObjectError(
        f"the object ends at byte {reached}, {end} were to be read of the {native.size} listed; list it again",
        location=native.location,
    )
