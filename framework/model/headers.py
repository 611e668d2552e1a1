"""Headers of a message as values: their limits, before Iggy's bytes are made of them.

A header's name holds 1 to 255 bytes. A value is text, bytes, a truth value or a number. A text or bytes longer than 255
bytes continue in `name.1`, `name.2` and so on (`framework.iggy.headers`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from framework.model.header_kinds import HeaderNumber
from framework.model.message_ids import MAX_SPLIT
from framework.model.objects import NativeObject
from framework.model.splits import Split

HeaderValue = str | bytes | bool | int | float | HeaderNumber
"""The value of a header: text, raw bytes, a truth value, a 64-bit number, a number of a certain kind."""

MAX_NAME_BYTES = 255
MAX_VALUE_BYTES = 255
MAX_HEADERS_BYTES = 100_000
"""Maximum bytes of a message's headers in Iggy."""

MAX_OWN_HEADERS_BYTES = 90_000
"""Maximum bytes of a record's own headers; the rest is for the headers that name the object, see `own_headers_room`."""

_FIELD_BYTES = 2 * 5
"""Bytes of a header beyond its name and value: kind and length of both."""

_MAX_PIECE_DIGITS = 4
"""Digits of the numbers that pieces of a value have; the block's limit allows fewer than 400 pieces."""


class SharedHeaders(dict[str, HeaderValue]):
    """Headers that many records share. They never change, so they are checked and encoded once.

    Attributes:
        error: the reason why Iggy cannot store them; None when it can.
        encoded: their header block, once it is made.
    """

    __slots__ = ("encoded", "error", "size_bytes")

    def __init__(self, headers: Mapping[str, HeaderValue]) -> None:
        super().__init__(headers)
        self.encoded: bytes | None = None
        self.size_bytes, self.error = _checked(headers)


def headers_error(headers: Mapping[str, HeaderValue], most_bytes: int = MAX_OWN_HEADERS_BYTES) -> str | None:
    """Return the reason why Iggy cannot store these headers; None when it can.

    Args:
        headers: a record's own headers.
        most_bytes: how many bytes they may take beside those of the object.
    """
    size, error = (headers.size_bytes, headers.error) if isinstance(headers, SharedHeaders) else _checked(headers)
    if error is None and size > most_bytes:
        return f"its headers take {size:,} bytes, at most {most_bytes:,} can be stored"
    return error


def provenance(native: NativeObject, *, split: Split | None = None) -> dict[str, str]:
    """Return the headers that identify a record's object: bucket, key, version, and the split if it is split."""
    headers = {"bucket": native.bucket, "key": native.key, "version": native.version}
    if split is not None:
        headers["share"] = f"{split.number}/{split.split_size}"
    return headers


def own_headers_room(native: NativeObject) -> int:
    """Return how many bytes a record's own headers may take, beside those that name its object or split."""
    of_object = provenance(native, split=_LONGEST_SPLIT)
    return min(MAX_OWN_HEADERS_BYTES, MAX_HEADERS_BYTES - sum(_size_of(*header)[0] for header in of_object.items()))


def _checked(headers: Mapping[str, HeaderValue]) -> tuple[int, str | None]:
    """Return how many bytes headers take at most, and the reason why Iggy cannot store them, whatever their number."""
    if len(headers) <= _FEW and _are_short(headers):
        return len(headers) * _SHORT_BYTES, None
    total = 0
    continued: Collection[object] | None = None
    for name, value in headers.items():
        size, reason = _size_of(name, value)
        if reason is not None:
            return total, reason
        total += size
        if size > MAX_VALUE_BYTES:
            continued = _continued(headers) if continued is None else continued
            if name in continued and _has_pieces(value):
                reason = f"header {name!r} is longer than {MAX_VALUE_BYTES} bytes, and another has the name of its continuation"
                return total, reason
    return total, None


def _continued(headers: Mapping[str, HeaderValue]) -> Collection[object]:
    """Return the names of values, there or not, of which a header has the name of a continuation."""
    parts = (str(name).rpartition(".") for name in headers)
    return {name for name, _, number in parts if number.isdigit()}


def _has_pieces(value: HeaderValue) -> bool:
    raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    return isinstance(raw, bytes) and len(raw) > MAX_VALUE_BYTES


_LONGEST_SPLIT = Split(MAX_SPLIT, 10**18)
_FEW = 100
_SHORT = 60
"""Characters of a text that is within every limit, whatever they are."""

_SHORT_BYTES = _SHORT + 4 * _SHORT + _FIELD_BYTES
"""Bytes of a header with such a name and such a value, at most."""


def _are_short(headers: Mapping[str, HeaderValue]) -> bool:
    """Whether no header needs a closer look. By type, without a call for each: every record may have some."""
    for name, value in headers.items():
        kind = type(value)
        if kind is str:
            if len(value) > _SHORT:  # type: ignore[arg-type]
                return False
        elif kind is int:
            if not 0 <= value < 1 << 63:  # type: ignore[operator]
                return False
        elif kind is not float and kind is not bool:
            return False
        if type(name) is not str or not (0 < len(name) <= _SHORT and name.isascii()):
            return False
    return True


def _size_of(name: object, value: object) -> tuple[int, str | None]:
    """Return the bytes that a header takes at most, or the reason why it cannot be stored."""
    if not isinstance(name, str):
        return 0, f"the name of a header is {type(name).__name__}, not text"
    try:
        name_bytes = len(name.encode())
    except UnicodeEncodeError:
        return 0, "the name of a header is not valid Unicode"
    if isinstance(value, str):
        length = len(value) * 4 if len(value) > MAX_VALUE_BYTES // 4 else len(value.encode("utf-8", "surrogatepass"))
    elif isinstance(value, bytes):
        length = len(value)
    elif isinstance(value, HeaderNumber):
        length = len(value.data)
    elif isinstance(value, bool | float):
        length = 8
    elif isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 64:
            return 0, f"header {name!r} holds a number of more than 64 bits"
        length = 8
    else:
        return 0, f"header {name!r} is {type(value).__name__}; a header is text, bytes, a number or a truth value"
    pieces = max(1, -(-length // (MAX_VALUE_BYTES - 3)))
    most = name_bytes + (1 + _MAX_PIECE_DIGITS if pieces > 1 else 0)
    if not name_bytes >= 1 or most > MAX_NAME_BYTES:
        return 0, f"a header's name holds 1 to {MAX_NAME_BYTES} bytes, with the number of its continuation, not {most}"
    return length + pieces * (most + _FIELD_BYTES), None
