"""The container of Avro data: a header with schema and codec, and the sync marker between blocks (Avro 1.12)."""

from __future__ import annotations

import json
from typing import Any

import attrs

from framework.errors import CorruptObjectError, TruncatedObjectError
from framework.model.avro_limits import UnusableSchemaError, Weight, check_parts, resolve_names, weigh
from framework.model.varints import signed
from transformers.compression_codecs import ExactReader, ShortRead

SYNC_BYTES = 16
_MAGIC = b"Obj\x01"
_MAX_HEADER_BYTES = 1 << 22
"""Of the whole header, with the schema."""


@attrs.frozen(slots=True)
class Header:
    """What a file begins with.

    Attributes:
        schema: as parsed JSON, with names resolved.
        weight: of a datum.
        codec: name of the codec of its blocks.
        sync: the marker behind each block.
    """

    schema: Any
    weight: Weight
    codec: str
    sync: bytes


def unusable_schema(failure: Exception) -> CorruptObjectError:
    """Return the error for a schema that cannot be used."""
    return CorruptObjectError(f"the Avro schema cannot be used ({failure})")


def read_header(packed: ExactReader) -> Header:
    """The file header: magic bytes, a map of metadata, the sync marker (Avro 1.12, Object Container Files)."""
    try:
        magic = packed.take(4)
    except ShortRead:
        raise TruncatedObjectError("too short for an Avro file") from None
    if magic != _MAGIC:
        raise CorruptObjectError(
            "not an Avro object container file: it does not begin with 'Obj' and 1; see input.format"
        )
    meta: dict[bytes, bytes] = {}
    ends = packed.taken + _MAX_HEADER_BYTES
    while (entries := read_long(packed)) != 0:
        if entries < 0:
            entries = -entries
            read_long(packed)
        for _ in range(entries):
            name = _read_bytes(packed, ends)
            meta[name] = _read_bytes(packed, ends)
    sync = packed.take(SYNC_BYTES)
    try:
        schema = json.loads(meta[b"avro.schema"])
    except (KeyError, ValueError, RecursionError) as exc:
        raise CorruptObjectError("the Avro file's header holds no schema that can be read") from exc
    try:
        check_parts(schema)
        schema = resolve_names(schema)
        weight = weigh(schema)
    except (UnusableSchemaError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as exc:
        raise unusable_schema(exc) from exc
    codec = meta.get(b"avro.codec", b"null").decode("ascii", "replace") or "null"
    return Header(schema, weight, codec, sync)


def file_cut_short() -> TruncatedObjectError:
    """Return the error for a file that ends too early."""
    return TruncatedObjectError("the Avro file ends inside a block or its header: the object was cut short")


def check_sync(packed: ExactReader, header: Header) -> None:
    """Read the marker behind a block.

    Raises:
        CorruptObjectError: it is another.
    """
    if packed.take(SYNC_BYTES) != header.sync:
        raise CorruptObjectError("a block of the Avro file does not end with the sync marker")


def read_long(packed: ExactReader, raw: bytearray | None = None) -> int:
    """A zig-zag varint of at most ten bytes, which are added to `raw`."""
    value = shift = 0
    while True:
        byte = packed.take(1)[0]
        if raw is not None:
            raw.append(byte)
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004
            return signed(value)
        shift += 7
        if shift > 63:  # noqa: PLR2004
            return -1 << 63


def _read_bytes(packed: ExactReader, ends: int) -> bytes:
    size = read_long(packed)
    if size < 0:
        raise CorruptObjectError("the Avro file's header is damaged")
    if packed.taken + size > ends:
        raise CorruptObjectError(f"the Avro file's header has more than {_MAX_HEADER_BYTES} bytes: it is damaged")
    return packed.take(size)


def file_header(schema: object) -> bytes:
    """Return the header of a file without a codec, with a sync marker of zeros."""
    name, text = b"avro.schema", json.dumps(schema).encode()
    entry = b"".join((encode_long(len(name)), name, encode_long(len(text)), text))
    return b"".join((_MAGIC, encode_long(1), entry, encode_long(0), bytes(SYNC_BYTES)))


def encode_long(value: int) -> bytes:
    """Return a number as a zig-zag varint."""
    value = value << 1 ^ value >> 63
    out = bytearray()
    while value > 0x7F:  # noqa: PLR2004
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
