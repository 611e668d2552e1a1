"""Headers of a message: encoding a mapping to Iggy's bytes; long values are divided into pieces and joined again.

A header's value holds 1 to 255 bytes, a key of S3 up to 1,024. A longer value continues in `key.1`,
`key.2` ..., divided between characters: a string header with half a character makes every consumer's
`user_headers()` raise.

Layout (version 0.9): for each header its key, then its value, each as `kind u8 | length u32 | bytes`,
little-endian; kind 2 is a UTF-8 string, kind 1 is raw.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping

from framework.iggy.values import HeaderScalar
from framework.model.objects import NativeObject
from framework.model.splits import Split

MAX_VALUE_BYTES = 255
MAX_HEADERS_BYTES = 100_000
_RAW, _STRING = 1, 2
_CONTINUATION = 0b10  # upper bits of a byte that goes on with a UTF-8 character
_field = struct.Struct("<BI").pack


REPLAY_HEADER = "replay"
"""Marks a record that was replayed from a dead letter: recovery does not count it."""

_SPLIT = re.compile(r"([1-9][0-9]{0,7})/([1-9][0-9]{0,18})", re.ASCII)


def provenance(native: NativeObject, *, split: Split | None = None) -> dict[str, str]:
    """Return the headers that identify a record's object: bucket, key, version, and the split if it is split."""
    headers = {"bucket": native.bucket, "key": native.key, "version": native.version}
    if split is not None:
        headers["share"] = f"{split.number}/{split.split_size}"
    return headers


def split_of(headers: Mapping[str, str]) -> Split | None:
    """Parse the split that `provenance` wrote; None when the object is not split."""
    found = _SPLIT.fullmatch(headers.get("share", ""))
    return Split(int(found[1]), int(found[2])) if found else None


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """Encode the header block of a message, to follow its payload.

    An empty value gets no header (Iggy has no empty values), so a reader finds it missing. A value that
    is not valid Unicode (a lone surrogate, from a file's name) is stored raw.

    Raises:
        ValueError: a name is empty, or longer than 255 bytes with its number; two headers have one name,
            because a piece of another value has it; or the block exceeds Iggy's limit.
    """
    block = bytearray()
    seen: set[str] = set()
    for name, value, kind in _pieces(headers):
        raw_name = name.encode()
        if not 1 <= len(raw_name) <= MAX_VALUE_BYTES:
            raise ValueError(f"a header's name holds 1 to {MAX_VALUE_BYTES} bytes, not {len(raw_name)}")
        if name in seen:
            raise ValueError(f"header {name!r} stands twice: once by itself, once as a piece of a longer value")
        seen.add(name)
        block += _field(_STRING, len(raw_name)) + raw_name + _field(kind, len(value)) + value
    if len(block) > MAX_HEADERS_BYTES:
        raise ValueError(f"the headers take {len(block)} bytes, Iggy stores at most {MAX_HEADERS_BYTES}")
    return bytes(block)


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


def decode_headers(block: bytes | memoryview) -> dict[str, HeaderScalar]:
    """Decode the headers of a stored message: strings as `str`, everything else as `bytes`.

    Raises:
        ValueError: the block is not a header block.
    """
    fields: list[str | bytes] = []
    place = 0
    while place < len(block):
        if place + 5 > len(block):
            raise ValueError("a header block ends inside a field")
        kind, length = struct.unpack_from("<BI", block, place)
        value = bytes(block[place + 5 : place + 5 + length])
        if len(value) != length:
            raise ValueError("a header block ends inside a value")
        fields.append(value.decode() if kind == _STRING else value)
        place += 5 + length
    if len(fields) % 2:
        raise ValueError("a header block ends after a name")
    names = (name if isinstance(name, str) else name.decode("utf-8", "replace") for name in fields[0::2])
    return dict(zip(names, fields[1::2], strict=True))


def _to_bytes(value: HeaderScalar) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


def _pieces(headers: Mapping[str, str]) -> Iterator[tuple[str, bytes, int]]:
    for name, value in headers.items():
        try:
            raw, kind = value.encode(), _STRING
        except UnicodeEncodeError:
            raw, kind = value.encode("utf-8", "surrogatepass"), _RAW
        for number, piece in enumerate(_cut(raw)):
            yield (f"{name}.{number}" if number else name), piece, kind


def _cut(raw: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(raw):
        end = start + MAX_VALUE_BYTES
        while end < len(raw) and raw[end] >> 6 == _CONTINUATION:
            end -= 1
        yield raw[start:end]
        start = end
