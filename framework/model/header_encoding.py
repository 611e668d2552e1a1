"""Headers of a message: values, their limits, and the bytes that Iggy stores.

A header's name holds 1 to 255 bytes, its value too, and a key of S3 has up to 1,024. A longer text or longer bytes continue
in `name.1`, `name.2` and so on, divided between characters: a string header with half a character makes every consumer's
`user_headers()` raise.

Layout (version 0.9): for each header its name, then its value, each as `kind u8 | length u32 | bytes`, little-endian.
Kinds: 1 raw, 2 UTF-8 string, 3 truth value, 7 signed and 12 unsigned 64-bit number, 15 64-bit float.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import NoReturn

from typing_extensions import override

from framework.errors import TransformContractError
from framework.model.header_kinds import HeaderNumber
from framework.model.message_ids import MAX_SPLIT
from framework.model.objects import NativeObject
from framework.model.splits import Split

HeaderValue = str | bytes | bool | int | float | HeaderNumber
"""The value of a header: text, raw bytes, a truth value, a 64-bit number, a number of a certain kind."""

LETTER_HEADER = "letter"
"""Marks a message of a topic of dead letters, and says of which kind it is."""

REPLAY_HEADER = "replay"
"""Marks a record that was replayed from a dead letter: recovery does not count it."""

MAX_VALUE_BYTES = 255
"""Maximum bytes of a value, and of a name."""

MAX_HEADERS_BYTES = 100_000
"""Maximum bytes of a message's headers in Iggy."""

MAX_OWN_HEADERS_BYTES = 90_000
"""Maximum bytes of a record's own headers; the rest is for the headers that name the object, see `own_headers_room`."""

RAW, STRING, BOOL, _INT64, _UINT64, _FLOAT64 = 1, 2, 3, 7, 12, 15
_NUMBERS = {_INT64: struct.Struct("<q"), _UINT64: struct.Struct("<Q"), _FLOAT64: struct.Struct("<d")}
_CONTINUATION = 0b10  # upper bits of a byte that goes on with a UTF-8 character
_field = struct.Struct("<BI").pack
_LONGEST_SPLIT = Split(MAX_SPLIT, 10**18)
_TOO_MANY = f"the headers take more than {MAX_HEADERS_BYTES:,} bytes, which is all that Iggy stores"


class HeaderError(ValueError):
    """Iggy cannot store headers. The text is the reason."""


class EncodedHeaders(dict[str, HeaderValue]):
    """Headers that never change, encoded once: many records may share them. A copy, such as `{**headers}`, may change.

    Attributes:
        encoded: their header block; empty when Iggy cannot store them.
        error: the reason why it cannot; None when it can.
    """

    __slots__ = ("encoded", "error")

    def __init__(self, headers: Mapping[str, HeaderValue]) -> None:
        dict.__init__(self, headers)  # each record may have some: `super` takes longer
        self.error: str | None = None
        try:
            self.encoded = _encode(headers)
        except HeaderError as exc:
            self.encoded, self.error = b"", str(exc)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TransformContractError(
            "headers that it was given never change, as other records share them: return a copy with the change"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    @override
    def __reduce__(self) -> tuple[type[EncodedHeaders], tuple[dict[str, HeaderValue]]]:
        return EncodedHeaders, (dict(self),)


def headers_error(headers: Mapping[str, HeaderValue], most_bytes: int = MAX_OWN_HEADERS_BYTES) -> str | None:
    """Return the reason why Iggy cannot store these headers; None when it can.

    Args:
        headers: a record's own headers.
        most_bytes: how many bytes they may take beside those of the object.
    """
    made = headers if isinstance(headers, EncodedHeaders) else EncodedHeaders(headers)
    if len(made.encoded) <= most_bytes and made.error != _TOO_MANY:
        return made.error
    taken = f"more than {MAX_HEADERS_BYTES:,}" if made.error else f"{len(made.encoded):,}"
    longest, size = max(((name, _length(value)) for name, value in headers.items()), key=itemgetter(1))
    return f"its headers take {taken} bytes, at most {most_bytes:,} can be stored; the longest is {longest!r} with {size:,} bytes"


def _length(value: HeaderValue) -> int:
    raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    return len(raw) if isinstance(raw, bytes) else 0


def provenance(native: NativeObject, *, split: Split | None = None) -> dict[str, str]:
    """Return the headers that identify a record's object: bucket, key, version, and the split if it is split."""
    headers = {"bucket": native.bucket, "key": native.key, "version": native.version}
    if split is not None:
        headers["share"] = f"{split.number}/{split.split_size}"
    return headers


def own_headers_room(native: NativeObject) -> int:
    """Return how many bytes a record's own headers may take, beside those that name its object or split."""
    of_object = encode_headers(provenance(native, split=_LONGEST_SPLIT))
    return min(MAX_OWN_HEADERS_BYTES, MAX_HEADERS_BYTES - len(of_object))


def encode_headers(headers: Mapping[str, HeaderValue]) -> bytes:
    """Encode the header block of a message, to follow its payload.

    Text becomes a string, bytes become raw, numbers have 64 bits unless a kind is given.

    An empty value gets no header (Iggy has no empty values), so a reader finds it missing. A value that
    is not valid Unicode (a lone surrogate, from a file's name) is stored raw.

    Raises:
        HeaderError: a name is empty, or longer than 255 bytes with its number; two headers have one name,
            because a piece of another value has it; a value is of another type; or the block exceeds Iggy's limit.
    """
    if not isinstance(headers, EncodedHeaders):
        block = _encode(headers)
    elif headers.error is None:
        block = headers.encoded
    else:
        raise HeaderError(headers.error)
    if len(block) > MAX_HEADERS_BYTES:
        raise HeaderError(_TOO_MANY)
    return block


def _encode(headers: Mapping[str, HeaderValue]) -> bytes:
    parts: list[bytes] = []
    for name, value in headers.items():
        field = _name_field(name)
        raw, kind = (value.encode(), STRING) if type(value) is str and value.isascii() else _raw_and_kind(name, value)
        if len(raw) > MAX_VALUE_BYTES:
            return _encode_pieces(headers)
        if raw:
            parts += (field, _field(kind, len(raw)), raw)
    return b"".join(parts)


@lru_cache(maxsize=1000)
def _name_field(name: object) -> bytes:
    if not isinstance(name, str):
        raise HeaderError(f"the name of a header is {type(name).__name__}, not text")
    try:
        raw = name.encode()
    except UnicodeEncodeError:
        raise HeaderError("the name of a header is not valid Unicode") from None
    if not 1 <= len(raw) <= MAX_VALUE_BYTES:
        raise HeaderError(
            f"a header's name holds 1 to {MAX_VALUE_BYTES} bytes, with the number of its continuation, not {len(raw)}"
        )
    return _field(STRING, len(raw)) + raw


def _encode_pieces(headers: Mapping[str, HeaderValue]) -> bytes:
    """The header block when a value is longer than a header's."""
    block = bytearray()
    seen: set[str] = set()
    for name, value, kind in _pieces(headers):
        if name in seen:
            raise HeaderError(
                f"header {name.rpartition('.')[0]!r} is longer than {MAX_VALUE_BYTES} bytes, and another has the name of its "
                "continuation"
            )
        seen.add(name)
        block += _name_field(name) + _field(kind, len(value)) + value
        if len(block) > MAX_HEADERS_BYTES:  # the rest may be thousands of pieces
            raise HeaderError(_TOO_MANY)
    return bytes(block)


def _pieces(headers: Mapping[str, HeaderValue]) -> Iterator[tuple[str, bytes, int]]:
    for name, value in headers.items():
        _name_field(name)  # a value that is empty needs a good name, too
        raw, kind = _raw_and_kind(name, value)
        if len(raw) <= MAX_VALUE_BYTES:
            if raw:
                yield name, raw, kind
            continue
        for number, piece in enumerate(_cut(raw, whole_characters=kind == STRING)):
            yield (f"{name}.{number}" if number else name), piece, kind


def _raw_and_kind(name: str, value: object) -> tuple[bytes, int]:
    if isinstance(value, str):
        try:
            return value.encode(), STRING
        except UnicodeEncodeError:
            return value.encode("utf-8", "surrogatepass"), RAW
    if isinstance(value, bool):
        return (b"\x01" if value else b"\x00"), BOOL
    if isinstance(value, int):
        kind = _INT64 if value < 1 << 63 else _UINT64
        if not -(1 << 63) <= value < 1 << 64:
            raise HeaderError(f"header {name!r} holds a number of more than 64 bits")
        return _NUMBERS[kind].pack(value), kind
    if isinstance(value, float):
        return _NUMBERS[_FLOAT64].pack(value), _FLOAT64
    if not isinstance(value, HeaderNumber | bytes):
        raise HeaderError(
            f"header {name!r} is {type(value).__name__}; a header is text, bytes, a number or a truth value"
        )
    return (value, RAW) if isinstance(value, bytes) else (value.data, value.kind)


def _cut(raw: bytes, *, whole_characters: bool) -> Iterator[bytes]:
    start = 0
    while start < len(raw):
        end = start + MAX_VALUE_BYTES
        while whole_characters and end < len(raw) and raw[end] >> 6 == _CONTINUATION:
            end -= 1
        yield raw[start:end]
        start = end
