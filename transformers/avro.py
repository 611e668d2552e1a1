"""Avro object container files: every datum is a record, as JSON (docs/reference/record-json.md).

The container is read here and only the data inside is given to fastavro, because fastavro reads on over a wrong sync
marker and takes a cut between two reads for the end. What is checked: the magic bytes, every block's sync marker, that
a block's records end exactly where its bytes end, and snappy's CRC. A cut exactly behind a block looks like the end in
this format: then the stream raises, because the object is shorter than listed.

Skipping does not decode, and does not even unpack, whole blocks. A mark is the start of a block; to go on from it the
file's header is read once more, with one small request.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import islice
from typing import IO, Any, ClassVar, cast

import attrs
from typing_extensions import override

from framework.errors import CorruptObjectError, RecordError, TruncatedObjectError
from framework.records import Mark, SkippedRecord
from framework.transformer import ObjectInput, PayloadRun
from transformers.avro_codecs import unpack_block
from transformers.avro_json import JsonEncoder, plain_schema
from transformers.compression import UnpackedStream
from transformers.runs import SHARED_MODULES, RunBuilder, ShippedTransformer, too_large
from transformers.unpack import ExactReader, ShortRead

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_LONGEST_BLOCK = 1 << 28
_HEADER_BYTES = 1 << 16
_RECORDS_AT_ONCE = 500


@attrs.frozen(slots=True)
class _Header:
    schema: Any
    codec: str
    sync: bytes


class _BlockSource:
    """The file that fastavro reads: a header without a codec, then one checked block at a time."""

    def __init__(self, schema: object) -> None:
        meta = json.dumps(schema).encode()
        header = _MAGIC + _long(1) + _bytes(b"avro.schema") + _bytes(meta) + _long(0) + bytes(_SYNC_BYTES)
        self._data = io.BytesIO(header)
        self.read = self._data.read
        self.tell = self._data.tell

    def put(self, count: int, data: bytes) -> None:
        """The next block; the one before must have been read."""
        self._data.seek(0)
        self._data.truncate()
        self._data.write(b"".join((_long(count), _long(len(data)), data, bytes(_SYNC_BYTES))))
        self._data.seek(0)


class AvroTransformer(ShippedTransformer):
    """Data of an Avro object container file."""

    name: ClassVar[str] = "avro"
    needs_modules: ClassVar[tuple[str, ...]] = (*SHARED_MODULES, "fastavro")

    @override
    def depends_on(self) -> Mapping[str, str]:
        # Not the compression: read with a wrong one, a file has no record at all, so no number can change its meaning.
        return {"format": self.name}

    @override
    def remake(self, raw: bytes, *, key: str) -> bytes:
        return self._fitting(raw)  # a letter holds the JSON that was too long

    @override
    def _read(
        self, source: ObjectInput, skip: int, mark: Mark | None, builder: RunBuilder
    ) -> Iterator[PayloadRun | SkippedRecord]:
        try:
            header, start, done = None, 0, 0
            if mark is not None and 0 < mark.record <= skip:
                if mark.byte >= source.size:
                    return
                header, start, done = self._header_alone(source), mark.byte, mark.record
            with closing(UnpackedStream(source, self.options.compression, start=start)) as stream:
                packed = ExactReader(iter(stream.read_some, b""))
                if header is None:
                    if packed.at_end():
                        return  # a compression with nothing in it
                    header = _read_header(packed, source.location)
                yield from self._blocks(packed, header, done, skip, start, stream, builder)
        except ShortRead:
            raise TruncatedObjectError(
                "the Avro file ends inside a block or its header: the object was cut short", location=source.location
            ) from None

    def _header_alone(self, source: ObjectInput) -> _Header:
        end = min(_HEADER_BYTES, source.size)
        while True:
            with closing(source.open(0, end)) as raw:
                try:
                    return _read_header(ExactReader(iter(lambda: raw.read(_HEADER_BYTES), b"")), source.location)
                except ShortRead:
                    if end >= source.size:
                        raise
            end = min(end * 16, source.size)

    def _blocks(
        self,
        packed: ExactReader,
        header: _Header,
        done: int,
        skip: int,
        start: int,
        stream: UnpackedStream,
        builder: RunBuilder,
    ) -> Iterator[PayloadRun | SkippedRecord]:
        location = stream.location
        decoder: _Decoder | None = None
        while not packed.at_end():
            byte = start + packed.taken
            count, size = _read_long(packed), _read_long(packed)
            if count < 0 or not 0 <= size <= _LONGEST_BLOCK:
                raise CorruptObjectError("a block of the Avro file has an impossible size", location=location)
            if done + count <= skip:
                packed.drop(size)
                _check_sync(packed, header, location)
                done += count
                continue
            data = packed.take(size)
            _check_sync(packed, header, location)
            data = unpack_block(header.codec, data, location)
            decoder = decoder or _Decoder(header.schema, location, self.options.max_record_bytes)
            drop = max(0, skip - done)
            if not drop and not stream.packed:
                builder.border(byte)
            yield from decoder.decode(count, data, drop, builder)
            done += count


class _Decoder:
    """Blocks of one file -> JSON."""

    def __init__(self, schema: object, location: str, limit: int) -> None:
        import fastavro  # noqa: PLC0415 - only who reads Avro pays for it

        self._location = location
        self._limit = limit
        try:
            plain = plain_schema(schema)
            self._encoder = JsonEncoder(schema)
            self._source = _BlockSource(plain)
            # Strings that are not UTF-8 become half surrogate pairs and fail when encoded: one bad record, not the rest.
            self._blocks = fastavro.block_reader(
                cast("IO[bytes]", self._source), handle_unicode_errors="surrogateescape"
            )
        except Exception as exc:  # fastavro and the schema's shape raise many kinds
            raise CorruptObjectError(f"the Avro schema cannot be used ({exc})", location=location) from exc

    def decode(self, count: int, data: bytes, drop: int, builder: RunBuilder) -> Iterator[PayloadRun | SkippedRecord]:
        self._source.put(count, data)
        block = next(self._blocks)
        records = iter(block)
        left = count
        while left:
            batch: list[Any] = []
            failure: Exception | None = None
            try:
                # What was decoded before an error stays in the list.
                batch.extend(islice(records, min(left, _RECORDS_AT_ONCE)))
            except Exception as exc:  # noqa: BLE001 - damaged data makes fastavro raise anything
                failure = exc
            left -= len(batch)
            if drop:
                here = min(drop, len(batch))
                drop -= here
                batch = batch[here:]
            if batch:
                yield from self._encode(batch, builder)
            if failure is not None or (left and not batch and not drop):
                raise CorruptObjectError(
                    "a record cannot be decoded, and so the rest of its block cannot either", location=self._location
                ) from None
        if cast("Any", block).bytes_.read(1):
            raise CorruptObjectError("a block holds more than its records", location=self._location)

    def _encode(self, batch: list[Any], builder: RunBuilder) -> Iterator[PayloadRun | SkippedRecord]:
        try:
            payloads = self._encoder.encode_all(batch)
        except (TypeError, ValueError, OverflowError, RecursionError):
            payloads = []
        size = sum(map(len, payloads))
        if payloads and (size <= self._limit or max(map(len, payloads)) <= self._limit):
            yield from builder.add(payloads, size)
            return
        for datum in batch:
            number = builder.next_record
            try:
                payload = self._encoder.encode(datum)
            except (TypeError, ValueError, OverflowError, RecursionError):
                error = RecordError(
                    "the datum has no JSON form (text that is not UTF-8, or a date beyond every calendar)",
                    location=self._location,
                    record_number=number,
                )
                yield from builder.bad(error)
                continue
            if len(payload) > self._limit:
                large = too_large(self._location, number, self._limit)
                yield from builder.bad(large, payload, length=len(payload))
            else:
                yield from builder.add([payload], len(payload))


def _read_header(packed: ExactReader, location: str) -> _Header:
    """The file header: magic bytes, a map of metadata, the sync marker (Avro 1.12, Object Container Files)."""
    try:
        magic = packed.take(4)
    except ShortRead:
        raise TruncatedObjectError("too short for an Avro file", location=location) from None
    if magic != _MAGIC:
        raise CorruptObjectError(
            "not an Avro object container file: it does not begin with 'Obj' and 1; see input.format",
            location=location,
        )
    meta: dict[bytes, bytes] = {}
    while (entries := _read_long(packed)) != 0:
        if entries < 0:
            entries = -entries
            _read_long(packed)
        for _ in range(entries):
            name = _read_bytes(packed, location)
            meta[name] = _read_bytes(packed, location)
    sync = packed.take(_SYNC_BYTES)
    try:
        schema = json.loads(meta[b"avro.schema"])
    except (KeyError, ValueError) as exc:
        raise CorruptObjectError("the Avro file's header holds no schema that can be read", location=location) from exc
    codec = meta.get(b"avro.codec", b"null").decode("ascii", "replace") or "null"
    return _Header(schema, codec, sync)


def _check_sync(packed: ExactReader, header: _Header, location: str) -> None:
    if packed.take(_SYNC_BYTES) != header.sync:
        raise CorruptObjectError("a block of the Avro file does not end with the sync marker", location=location)


def _read_long(packed: ExactReader) -> int:
    """A zig-zag varint of at most ten bytes."""
    value = shift = 0
    while True:
        byte = packed.take(1)[0]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004
            return value >> 1 ^ -(value & 1)
        shift += 7
        if shift > 63:  # noqa: PLR2004
            return -1 << 63


def _read_bytes(packed: ExactReader, location: str) -> bytes:
    size = _read_long(packed)
    if not 0 <= size <= _LONGEST_BLOCK:
        raise CorruptObjectError("the Avro file's header is damaged", location=location)
    return packed.take(size)


def _long(value: int) -> bytes:
    value = value << 1 ^ value >> 63
    out = bytearray()
    while value > 0x7F:  # noqa: PLR2004
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _bytes(data: bytes) -> bytes:
    return _long(len(data)) + data
