"""The body of an HTTP answer as a stream of known length, for the stores of every vendor."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping

import attrs
from typing_extensions import override

from framework.errors import (
    ObjectChangedError,
    ObjectError,
    SourceError,
    StoreUnavailableError,
    TaskClosedError,
)
from framework.model.objects import NativeObject
from framework.storage.checksum import Checksum
from framework.storage.http.answer import HttpAnswer
from framework.transformer import ReadStream

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.ASCII | re.IGNORECASE)
_LENGTH_DIGITS = 19


@attrs.define(eq=False, repr=False)
class HttpStream(ReadStream):
    """Exactly `expected` bytes of an answer, or an error. Not thread-safe, except `abort`.

    Args:
        body: the answer's body, undecoded.
        expected: number of bytes that must come.
        native: the object that is read.
        translate: maps an error of the connection to the framework's.
        ends_there: whether the body must end with the last of these bytes. Needed when no length was announced: a store
            that decompresses in transit sends more than is stored.
        goes_on: whether the body is longer: it is the whole object, and its beginning was asked for.
        checksum: checksum of the whole object, if the store sent it; see `framework.storage.resuming_stream`,
            which resumes over several of these streams.
    """

    _body: HttpAnswer
    _expected: int
    _native: NativeObject = attrs.field(kw_only=True)
    _translate: Callable[[BaseException, NativeObject], SourceError] = attrs.field(kw_only=True)
    _ends_there: bool = attrs.field(default=False, kw_only=True)
    _goes_on: bool = attrs.field(default=False, kw_only=True)
    checksum: Checksum | None = attrs.field(default=None, kw_only=True)
    _left: int = attrs.field(init=False)
    _closed: bool = False
    _aborted: bool = False

    @_left.default
    def _all(self) -> int:
        return self._expected

    @override
    def read(self, size: int, /) -> bytes:
        if self._closed or self._aborted:
            raise TaskClosedError(f"{self._native.location}: read after close")
        left = self._left
        if not left:
            return b""
        try:
            data = self._body.read(size if size < left else left)  # noqa: FURB136  # min() costs a call
            last = self._ends_there and len(data) == left
            more = self._body.read(1) if last else b""
        except Exception as error:
            self.close()
            if self._aborted:
                raise TaskClosedError(f"{self._native.location}: closed while reading") from error
            raise self._translate(error, self._native) from error
        if not data:
            self.close()
            if self._aborted:
                raise TaskClosedError(f"{self._native.location}: closed while reading")
            came = self._expected - left
            raise StoreUnavailableError(
                f"{self._native.location}: the connection ended after {came} of {self._expected} bytes"
            )
        if last and self._body.failure is not None:
            self.close()
            raise StoreUnavailableError(
                f"{self._native.location}: the connection ended before the body did, which announces no length, after "
                f"{self._expected} bytes"
            )
        if more:
            self.close()
            raise other_bytes(self._native, f"more than its {self._native.size} bytes came")
        self._left = left - len(data)
        return data

    @override
    def close(self) -> None:
        """Release the connection if the whole answer was read, else close it. Idempotent."""
        if not self._closed:
            self._closed = True
            if self._left or self._goes_on:
                self._body.close()

    def abort(self) -> None:
        """End a waiting `read` at once, from another thread."""
        self._aborted = True
        with contextlib.suppress(RuntimeError):  # the process ends: no thread of the loop can begin
            self._body.shutdown()


class EmptyStream(ReadStream):
    """An empty stream: an empty range needs no request."""

    @override
    def read(self, size: int, /) -> bytes:
        return b""

    @override
    def close(self) -> None:
        """Do nothing: there is no connection."""


EMPTY = EmptyStream()


def announces(headers: Mapping[str, str], size: int) -> bool:
    """Return whether the head announces a body of that length, in the usual form."""
    return headers.get("content-length") == str(size) and "transfer-encoding" not in headers


def announces_length(headers: Mapping[str, str]) -> bool:
    """Return whether the head announces the body's length; otherwise only the body's end shows it.

    A `Transfer-Encoding` overrides the length beside it (RFC 9112, 6.3): such a body may go on behind it.
    """
    length = headers.get("content-length")
    if length is None or "transfer-encoding" in headers:
        return False
    return length.isdecimal() and length.isascii() and len(length) <= _LENGTH_DIGITS


def expected_bytes(native: NativeObject, start: int, end: int, *, status: int, headers: Mapping[str, str]) -> int:
    """Validate an answer's head against the request; return how many bytes to read.

    When it announces no length (see `announces_length`), the caller must check that the body ends there.

    Args:
        native: the object as listed.
        start: first byte requested.
        end: the byte after the last.
        status: 200 or 206.
        headers: the answer's headers; looked up in lower case.

    Raises:
        ObjectChangedError: the size is not as listed.
        StoreUnavailableError: the head contradicts itself, or a whole body of the listed size comes in place of a range.
        ObjectError: a range was requested, but a whole body of unknown length comes.
    """
    length = headers.get("content-length")
    given = int(length) if length is not None and announces_length(headers) else None
    if status == 206:  # noqa: PLR2004  # Partial Content
        match = _CONTENT_RANGE.fullmatch((headers.get("content-range") or "").strip())
        if match is None:
            raise _wrong_range(native, "the store answered a range without saying which")
        total = match[3]
        if total != "*" and int(total) != native.size:
            raise _other_size(native, int(total))
        if (int(match[1]), int(match[2])) != (start, end - 1):
            raise _wrong_range(
                native, f"asked for bytes {start} to {end - 1}, the store answered {match[1]} to {match[2]}"
            )
        if given is not None and given != end - start:
            raise _wrong_range(native, f"asked for {end - start} bytes, the store announces {given} of them")
        return end - start
    if given is not None and given != native.size:
        raise _other_size(native, given)
    if given is None and (start or end < native.size):
        raise other_bytes(native, "a range was asked for, and a body of unknown length came")
    if start:
        raise _wrong_range(
            native,
            f"asked for bytes {start} to {end - 1}, the store or a proxy ignored that and answered the whole object",
        )
    return end


def other_bytes(native: NativeObject, seen: str) -> ObjectError:
    """Return the error for a body that is not the stored bytes, such as unpacked in transit. Retries do not help."""
    return ObjectError(
        f"{seen}: what answers does not give the bytes that are stored. Stores and proxies do that to objects with the "
        f"metadata Content-Encoding: gzip: take it off the object, or keep what lies in between from changing answers",
        location=native.location,
    )


def _wrong_range(native: NativeObject, seen: str) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"{native.location}: {seen}; when that stays so, check the options endpoint and proxy: what they name must answer ranges"
    )


def _other_size(native: NativeObject, size: int) -> ObjectChangedError:
    return ObjectChangedError(
        f"it was overwritten after it was listed ({size} bytes, listed {native.size})", location=native.location
    )
