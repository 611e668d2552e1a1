"""The body of one HTTP answer as a stream that knows how many bytes it owes: for the stores of every vendor."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Protocol

from typing_extensions import override

from framework.errors import FatalError, ObjectChangedError, SourceError, StoreUnavailableError, TaskClosedError
from framework.records import NativeObject
from framework.transformer import ReadStream

DRAIN_BYTES = 65_536
"""A remainder up to this long is read off on close, so that the connection can serve again; a longer one costs it."""

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class Body(Protocol):
    """What is needed of urllib3's response."""

    def read(self, amt: int, /) -> bytes:
        """At most that many bytes; fewer, or none, when the connection ended."""

    def close(self) -> None:
        """Closes the connection."""


class HttpStream(ReadStream):
    """Exactly `expected` bytes of an answer, or an error. For one thread; `abort` may come from another.

    A read of n bytes fills n bytes inside urllib3: for 64 MB, reads of 256 KiB and of 1 MiB cost the same CPU (10 ms),
    reads of 64 KiB a third more.

    Args:
        body: urllib3's response, undecoded.
        expected: bytes that must come.
        native: the object that is read.
        translate: the error of the framework for one of urllib3 or the socket.
        on_close: called once, when the connection is given back.
    """

    __slots__ = ("_aborted", "_body", "_closed", "_expected", "_left", "_native", "_on_close", "_translate")

    def __init__(
        self,
        body: Body,
        expected: int,
        *,
        native: NativeObject,
        translate: Callable[[BaseException, NativeObject], SourceError],
        on_close: Callable[[HttpStream], None] | None = None,
    ) -> None:
        self._body = body
        self._expected = expected
        self._left = expected
        self._native = native
        self._translate = translate
        self._on_close = on_close
        self._closed = False
        self._aborted = False

    @override
    def read(self, size: int, /) -> bytes:
        if self._closed or self._aborted:
            raise TaskClosedError(f"{self._native.location}: read after close")
        left = self._left
        if not left:
            return b""
        try:
            data = self._body.read(size if size < left else left)  # noqa: FURB136  # min() costs a call
        except Exception as error:
            self.abandon()
            if self._aborted:
                raise TaskClosedError(f"{self._native.location}: closed while reading") from error
            raise self._translate(error, self._native) from error
        if not data:
            self.abandon()
            if self._aborted:
                raise TaskClosedError(f"{self._native.location}: closed while reading")
            came = self._expected - left
            raise StoreUnavailableError(
                f"{self._native.location}: the connection ended after {came} of {self._expected} bytes"
            )
        self._left = left - len(data)
        return data

    @override
    def close(self) -> None:
        if self._closed:
            return
        if 0 < self._left <= DRAIN_BYTES and not self._aborted:
            try:
                while self._left and (data := self._body.read(self._left)):
                    self._left -= len(data)
            except Exception:  # noqa: BLE001, S110  # nobody waits for these bytes: the connection is given up instead
                pass
        self.abandon(keep=not self._left)

    def abandon(self, *, keep: bool = False) -> None:
        """Gives the connection up, or back when all of the answer was read. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if not keep:
            self._body.close()
        if self._on_close is not None:
            self._on_close(self)

    def abort(self) -> None:
        """From another thread: makes a `read` that is waiting end at once."""
        self._aborted = True
        shutdown = getattr(self._body, "shutdown", None)
        if shutdown is not None:
            try:
                shutdown()
            except (OSError, ValueError, RuntimeError):
                return  # the connection had ended already


class EmptyStream(ReadStream):
    """No bytes: an empty range needs no request."""

    @override
    def read(self, size: int, /) -> bytes:
        return b""

    @override
    def close(self) -> None:
        """Nothing to give back."""


EMPTY = EmptyStream()


def expected_bytes(native: NativeObject, start: int, end: int, *, status: int, headers: Mapping[str, str]) -> int:
    """How many bytes of the answer are wanted, after all that its head says was compared with what was asked.

    Args:
        native: the object as listed.
        start: first byte asked for.
        end: the byte after the last.
        status: 200 or 206.
        headers: of the answer; looked up in lower case.

    Raises:
        ObjectChangedError: another size than listed.
        StoreUnavailableError: the head contradicts itself.
        FatalError: the store ignores ranges.
    """
    length = headers.get("content-length")
    given = int(length) if length is not None and length.isdigit() else None
    if status == 206:  # noqa: PLR2004  # Partial Content
        match = _CONTENT_RANGE.fullmatch((headers.get("content-range") or "").strip())
        if match is None:
            raise StoreUnavailableError(f"{native.location}: the store answered a range without saying which")
        total = match[3]
        if total != "*" and int(total) != native.size:
            raise _other_size(native, int(total))
        if (int(match[1]), int(match[2])) != (start, end - 1):
            raise StoreUnavailableError(
                f"{native.location}: asked for bytes {start} to {end - 1}, the store answered {match[1]} to {match[2]}"
            )
        if given is not None and given != end - start:
            raise StoreUnavailableError(
                f"{native.location}: asked for {end - start} bytes, the store announces {given} of them"
            )
        return end - start
    if given is not None and given != native.size:
        raise _other_size(native, given)
    if start:
        raise FatalError(f"{native.location}: the store ignores range requests; check its endpoint and proxy")
    return end


def _other_size(native: NativeObject, size: int) -> ObjectChangedError:
    return ObjectChangedError(
        f"it was overwritten after it was listed ({size} bytes, listed {native.size})", location=native.location
    )
