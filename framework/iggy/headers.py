"""Headers of a message: encoding a mapping to Iggy's bytes; long values are divided into pieces and joined again.

A header's value holds 1 to 255 bytes, a key of S3 up to 1,024. A longer value continues in `key.1`,
`key.2` ..., divided between characters: a string header with half a character makes every consumer's
`user_headers()` raise.

Layout (version 0.9): for each header its key, then its value, each as `kind u8 | length u32 | bytes`,
little-endian. Kinds: 1 raw, 2 UTF-8 string, 3 truth value, 7 signed and 12 unsigned 64-bit number, 15 64-bit float.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache

from framework.iggy.values import HeaderScalar
from framework.model.header_kinds import HeaderNumber, number_of
from framework.model.headers import MAX_HEADERS_BYTES, MAX_VALUE_BYTES, HeaderValue, SharedHeaders, provenance
from framework.model.objects import NativeObject
from framework.model.splits import KeyPart, Split

_RAW, STRING, BOOL, _INT64, _UINT64, _FLOAT64 = 1, 2, 3, 7, 12, 15
_NUMBERS = {_INT64: struct.Struct("<q"), _UINT64: struct.Struct("<Q"), _FLOAT64: struct.Struct("<d")}
_CONTINUATION = 0b10  # upper bits of a byte that goes on with a UTF-8 character
_field = struct.Struct("<BI").pack


REPLAY_HEADER = "replay"
"""Marks a record that was replayed from a dead letter: recovery does not count it."""

_SPLIT = re.compile(r"([1-9][0-9]{0,7})/([1-9][0-9]{0,18})", re.ASCII)
_PART = re.compile(r"([1-9][0-9]{0,7})/([1-9][0-9]{0,7})", re.ASCII)


def split_of(headers: Mapping[str, str]) -> Split | None:
    """Parse the split that `provenance` wrote; None when the object is not split."""
    found = _SPLIT.fullmatch(headers.get("share", ""))
    return Split(int(found[1]), int(found[2])) if found else None


def position_headers(native: NativeObject, division: Split | KeyPart | None) -> dict[str, str]:
    """Return the headers that identify a position: those of `provenance`, and the part if the object is divided by key."""
    if isinstance(division, KeyPart):
        return {**provenance(native), "part": f"{division.number}/{division.parts}"}
    return provenance(native, split=division)


def division_of(headers: Mapping[str, str]) -> Split | KeyPart | None:
    """Parse the split or part that `position_headers` wrote; None when the object has one position."""
    found = _PART.fullmatch(headers.get("part", ""))
    return KeyPart(int(found[1]), int(found[2])) if found else split_of(headers)


def encode_headers(headers: Mapping[str, HeaderValue]) -> bytes:
    """Encode the header block of a message, to follow its payload.

    Text becomes a string, bytes become raw, numbers have 64 bits unless a kind is given.

    An empty value gets no header (Iggy has no empty values), so a reader finds it missing. A value that
    is not valid Unicode (a lone surrogate, from a file's name) is stored raw.

    Raises:
        ValueError: a name is empty, or longer than 255 bytes with its number; two headers have one name,
            because a piece of another value has it; or the block exceeds Iggy's limit.
    """
    if not isinstance(headers, SharedHeaders):
        return _encode(headers)
    if headers.encoded is None:
        headers.encoded = _encode(headers)
    return headers.encoded


def _encode(headers: Mapping[str, HeaderValue]) -> bytes:
    parts: list[bytes] = []
    for name, value in headers.items():
        raw, kind = (value.encode(), STRING) if type(value) is str and value.isascii() else _raw_and_kind(value)
        if len(raw) > MAX_VALUE_BYTES:
            return _encode_pieces(headers)
        if raw:
            parts += (_name_field(name), _field(kind, len(raw)), raw)
    block = b"".join(parts)
    if len(block) > MAX_HEADERS_BYTES:
        raise ValueError(f"the headers take {len(block)} bytes, Iggy stores at most {MAX_HEADERS_BYTES}")
    return block


@lru_cache(maxsize=1000)
def _name_field(name: str) -> bytes:
    raw = name.encode()
    if not 1 <= len(raw) <= MAX_VALUE_BYTES:
        raise ValueError(f"a header's name holds 1 to {MAX_VALUE_BYTES} bytes, not {len(raw)}")
    return _field(STRING, len(raw)) + raw


def _encode_pieces(headers: Mapping[str, HeaderValue]) -> bytes:
    """The header block when a value is longer than a header's."""
    block = bytearray()
    seen: set[str] = set()
    for name, value, kind in _pieces(headers):
        if name in seen:
            raise ValueError(f"header {name!r} stands twice: once by itself, once as a piece of a longer value")
        seen.add(name)
        block += _name_field(name) + _field(kind, len(value)) + value
    if len(block) > MAX_HEADERS_BYTES:
        raise ValueError(f"the headers take {len(block)} bytes, Iggy stores at most {MAX_HEADERS_BYTES}")
    return bytes(block)


def merge_headers(of_object: Mapping[str, str], own: Mapping[str, HeaderValue]) -> dict[str, HeaderValue]:
    """Return the headers of an object's record: its own replace those that name the object, also by a piece's name."""
    replaced = {name.partition(".")[0] for name in own} & of_object.keys()
    return {**{name: value for name, value in of_object.items() if name not in replaced}, **own}


def join_provenance(headers: Mapping[str, HeaderScalar]) -> dict[str, str]:
    """Return the mapping that was passed to `encode_headers`, from the headers of a stored message.

    Numbered pieces are appended to the value they belong to; a gap in the numbers ends a value. Headers
    of other kinds become text; bytes that are not text become backslash escapes.
    """
    raw = {str(name): _to_bytes(value) for name, value in headers.items()}
    whole: dict[str, str] = {}
    taken: set[str] = set()
    for name in sorted(raw):  # a piece's name sorts behind the name it belongs to
        if name in taken:
            continue
        value, number = raw[name], 1
        while (piece := raw.get(f"{name}.{number}")) is not None:
            taken.add(f"{name}.{number}")
            value += piece
            number += 1
        try:
            whole[name] = value.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:  # bytes of another program
            whole[name] = value.decode("utf-8", "backslashreplace")
    return whole


def header_fields(block: bytes | memoryview) -> list[tuple[int, bytes]]:
    """Return names and values of a header block in turn, each with its kind.

    Raises:
        ValueError: the block is not a header block.
    """
    fields: list[tuple[int, bytes]] = []
    place = 0
    while place < len(block):
        if place + 5 > len(block):
            raise ValueError("a header block ends inside a field")
        kind, length = struct.unpack_from("<BI", block, place)
        value = bytes(block[place + 5 : place + 5 + length])
        if len(value) != length:
            raise ValueError("a header block ends inside a value")
        fields.append((kind, value))
        place += 5 + length
    if len(fields) % 2:
        raise ValueError("a header block ends after a name")
    return fields


def decode_headers(block: bytes | memoryview) -> dict[str, HeaderScalar]:
    """Decode the headers of a stored message: text, truth values and numbers; bytes for any other kind.

    Raises:
        ValueError: the block is not a header block.
    """
    fields = header_fields(block)
    return {name.decode(): _scalar(*field) for (_, name), field in zip(fields[::2], fields[1::2], strict=True)}


def _scalar(kind: int, data: bytes) -> HeaderScalar:
    if kind == STRING:
        return data.decode()
    if kind == BOOL:
        return data != b"\x00"
    number = number_of(kind, data)
    return data if number is None else number[1]


def _to_bytes(value: HeaderScalar) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


def _pieces(headers: Mapping[str, HeaderValue]) -> Iterator[tuple[str, bytes, int]]:
    for name, value in headers.items():
        raw, kind = _raw_and_kind(value)
        if len(raw) <= MAX_VALUE_BYTES:
            if raw:
                yield name, raw, kind
            continue
        for number, piece in enumerate(_cut(raw, whole_characters=kind == STRING)):
            yield (f"{name}.{number}" if number else name), piece, kind


def _raw_and_kind(value: HeaderValue) -> tuple[bytes, int]:
    if isinstance(value, str):
        try:
            return value.encode(), STRING
        except UnicodeEncodeError:
            return value.encode("utf-8", "surrogatepass"), _RAW
    if isinstance(value, bool):
        return (b"\x01" if value else b"\x00"), BOOL
    if isinstance(value, int):
        kind = _INT64 if value < 1 << 63 else _UINT64
        return _NUMBERS[kind].pack(value), kind
    if isinstance(value, float):
        return _NUMBERS[_FLOAT64].pack(value), _FLOAT64
    return (value.data, value.kind) if isinstance(value, HeaderNumber) else (value, _RAW)


def _cut(raw: bytes, *, whole_characters: bool) -> Iterator[bytes]:
    start = 0
    while start < len(raw):
        end = start + MAX_VALUE_BYTES
        while whole_characters and end < len(raw) and raw[end] >> 6 == _CONTINUATION:
            end -= 1
        yield raw[start:end]
        start = end
