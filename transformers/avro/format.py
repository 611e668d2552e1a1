"""Avro object container files: every datum is a record, as JSON (docs/reference/record-json.md).

The container is read here and only the data inside is given to fastavro, because fastavro reads on over a wrong sync
marker and takes a cut between two reads for the end. What is checked: the magic bytes, every block's sync marker, that
a block's records end exactly where its bytes end, and snappy's CRC. A cut exactly behind a block looks like the end in
this format: then the stream raises, because the object is shorter than listed.

Blocks of flat records are decoded a column at a time (`flat`).

Skipping does not decode, and does not even unpack, whole blocks. With `input.columns` the decoder skips the other
fields. A mark is the start of a block; to go on from it the
file's header is read once more, with one small request.

A block belongs to the split in which the sync marker before it begins, as in Hadoop: a split searches for the first
marker from its begin on, and follows the blocks from there. A writer draws the marker at random, so it stands between
blocks only. A file that has it inside of a block as well could begin a split with blocks that are none. So the block
over a split's end is searched for the marker, by the split that came to it block by block: by induction, either all
splits begin where they should, or one of them fails.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from typing import IO, Any, ClassVar, cast

import attrs
from typing_extensions import override

from framework.errors import CorruptObjectError, RecordError, is_of_machine
from framework.model.avro_indexes import refuse_indexes, refuses_indexes
from framework.model.avro_limits import (
    EMPTY_DATA,
    UnusableDatumError,
    Walker,
    cut_short,
    not_there,
    undecodable,
)
from framework.model.avro_values import LongDecimalError
from framework.model.objects import ResumePoint
from framework.model.payloads import longest, size_of
from framework.model.splits import Split
from framework.transformer import InputOptions, ObjectInput
from transformers.avro.codecs import unpack_block
from transformers.avro.columns import Pick, Projection, decode_chosen, decodes_chosen
from transformers.avro.container_header import (
    SYNC_BYTES,
    Header,
    check_sync,
    encode_long,
    file_cut_short,
    file_header,
    read_header,
    read_long,
    unusable_schema,
)
from transformers.avro.flat import FlatBlocks
from transformers.avro.json_values import JsonEncoder, plain_schema
from transformers.batches import SHARED_MODULES, Bad, RunBuilder, Runs, SplittableTransformer
from transformers.compression import UnpackedStream, check_expansion
from transformers.compression_codecs import ExactReader, ShortRead
from transformers.split_input import OnwardInput, packing_of

_HEADER_BYTES = 1 << 16
_RECORDS_AT_ONCE = 500
_FLAT_RECORDS = 128
"""The number of records in a block from which decoding by columns is quicker, measured with 8 fields."""
_EXCESS = "a block holds more than its records"
_WHOLE = "whole"
"""The field of the record in which a datum comes that is a union: it has the very bytes of its field."""


class _BlockSource:
    """The file that fastavro reads: a header without a codec, then one checked block at a time, which is not copied."""

    def __init__(self, schema: object) -> None:
        self._around = io.BytesIO(file_header(schema))
        self._block = b""
        self.tell = self._around.tell

    def read(self, size: int = -1) -> bytes:
        """Return the bytes around the block, until the block itself is read."""
        if self._block and size == len(self._block):
            block, self._block = self._block, b""
            return block
        return self._around.read(size)

    def put(self, count: int, data: bytes) -> None:
        """The next block; the one before must have been read."""
        small = len(data) <= SYNC_BYTES  # as long as a sync marker or a number: its length does not distinguish it
        self._block = b"" if small else data
        self._around.seek(0)
        self._around.truncate()
        self._around.write(
            b"".join((encode_long(count), encode_long(len(data)), data if small else b"", bytes(SYNC_BYTES)))
        )
        self._around.seek(0)


class AvroTransformer(SplittableTransformer):
    """Data of an Avro object container file."""

    name: ClassVar[str] = "avro"
    reads_columns: ClassVar[bool] = True
    needs_modules: ClassVar[tuple[str, ...]] = (*SHARED_MODULES, "fastavro", "polars")

    @override
    def _read(self, source: ObjectInput, skip: int, mark: ResumePoint | None, builder: RunBuilder) -> Runs:
        try:
            header, start, done = None, 0, 0
            if mark is not None and 0 < mark.record <= skip:
                if mark.byte >= source.size:
                    return
                (header, _), start, done = self._header_alone(source), mark.byte, mark.record
            with closing(UnpackedStream(source, self.options, start=start)) as stream:
                packed = ExactReader(iter(stream.read_some, b""))
                if header is None:
                    if packed.at_end():
                        return  # a compression with nothing in it
                    header = read_header(packed)
                yield from self._blocks(packed, header, done, skip, start, stream, builder)
        except ShortRead:
            raise file_cut_short() from None

    @override
    def _read_split(
        self, source: ObjectInput, split: Split, skip: int, mark: ResumePoint | None, builder: RunBuilder
    ) -> Runs:
        start, ahead = split.window(source.size, mark)
        if start >= source.size:
            return
        first = split.number == 1 and mark is None
        options = self.options if first else attrs.evolve(self.options, compression="none")
        try:
            with closing(UnpackedStream(OnwardInput(source, ahead), options, start=start)) as stream:
                packed = ExactReader(iter(stream.read_some, b""))
                if packed.at_end():
                    return
                if first:
                    header = read_header(packed)
                    end = None if stream.packed else _end_of(split, header)
                    yield from self._blocks(packed, header, 0, skip, 0, stream, builder, end)
                    return
                found = self._split_header(source)
                if found is None:
                    return
                header, header_bytes = found
                end = _end_of(split, header)
                if mark is None and not (end and _seek(packed, header, header_bytes, split, start)):
                    return
                done = 0 if mark is None else mark.record
                yield from self._blocks(packed, header, done, skip, start, stream, builder, end)
        except ShortRead:
            raise file_cut_short() from None

    def _split_header(self, source: ObjectInput) -> tuple[Header, int] | None:
        """Return the header and its length; None when the object is compressed, so that split 1 owns all of it."""
        try:
            return self._header_alone(source)
        except CorruptObjectError:
            if self.options.compression != "none" and packing_of(source) != "none":
                return None
            raise

    def _header_alone(self, source: ObjectInput) -> tuple[Header, int]:
        end = min(_HEADER_BYTES, source.size)
        while True:
            with closing(source.open(0, end)) as raw:
                packed = ExactReader(iter(lambda: raw.read(_HEADER_BYTES), b""))
                try:
                    return read_header(packed), packed.taken
                except ShortRead:
                    if end >= source.size:
                        raise
            end = min(end * 16, source.size)

    def _blocks(
        self,
        packed: ExactReader,
        header: Header,
        done: int,
        skip: int,
        start: int,
        stream: UnpackedStream,
        builder: RunBuilder,
        end: int | None = None,
    ) -> Runs:
        """Yield the records of the blocks from here on, or of those whose marker before them begins before `end`."""
        decoder: _Decoder | None = None
        unpacked = 0
        while not packed.at_end():
            byte = start + packed.taken
            if end is not None and byte - SYNC_BYTES >= end:
                return
            head = bytearray()
            count, size = read_long(packed, head), read_long(packed, head)
            self._check_sizes(count, size, done, header)
            # Only a split's last block: what follows it belongs to the next, which searches from `end` on.
            is_last = end is not None and byte + len(head) + size >= end
            if done + count <= skip and not is_last and (count or not size):
                packed.drop(size)
                check_sync(packed, header)
                done += count
                continue
            stored = packed.take(size)
            check_sync(packed, header)
            if end is not None:
                builder.stored_bytes = packed.taken
            if not count:  # from every record to resume at: nothing else looks at its bytes
                if unpack_block(header.codec, stored, self.options):
                    raise CorruptObjectError(_EXCESS)
            elif done + count > skip:
                data = unpack_block(header.codec, stored, self.options)
                unpacked += len(data)
                check_expansion("its blocks unpack to", unpacked, self.options.max_expansion, builder.stored_bytes)
                decoder = decoder or _Decoder(header, self.options)
                drop = max(0, skip - done)
                if not drop and not stream.packed:
                    builder.border(byte)
                yield from decoder.decode(count, data, drop, builder)
            done += count
            if end is not None and is_last:
                _check_border(header, bytes(head), stored, end - byte)

    def _check_sizes(self, count: int, size: int, done: int, header: Header) -> None:
        longest = self.options.max_block_bytes
        if count < 0 or size < 0:
            raise CorruptObjectError("a block of the Avro file has an impossible size")
        if size > longest:
            raise CorruptObjectError(f"a block of the Avro file is longer than input.max_block_bytes ({longest} bytes)")
        if not header.weight.least and done + count > EMPTY_DATA:
            raise CorruptObjectError(f"the Avro file has more than {EMPTY_DATA} records without a single byte")


def _end_of(split: Split, header: Header) -> int | None:
    """Return where the split's blocks end; None when split 1 owns all: data without a byte, whose number is limited."""
    return split.end if header.weight.least else None


def _seek(packed: ExactReader, header: Header, header_bytes: int, split: Split, start: int) -> bool:
    """Skip to the split's first block, behind the first sync marker that begins in it; return whether there is one."""
    first = max(split.begin, header_bytes - SYNC_BYTES)
    if first >= split.end:
        return False
    packed.drop(first - start)
    return packed.drop_past(header.sync, split.end - first)


def _check_border(header: Header, head: bytes, stored: bytes, end: int) -> None:
    """Check that the next split begins behind this block: that from `end` on, which counts from it, no marker is inside."""
    block = b"".join((header.sync, head, stored, header.sync))
    if block.find(header.sync, end + SYNC_BYTES) != len(block) - SYNC_BYTES:
        raise CorruptObjectError(
            "the Avro file's sync marker also stands inside of a block, where the next split searches for it: the splits "
            "behind it may hold records that are none; read the object whole, without input.split_size"
        )


class _Decoder:
    """Blocks of one file -> JSON."""

    def __init__(self, header: Header, options: InputOptions) -> None:
        import fastavro  # noqa: PLC0415 - only who reads Avro pays for it

        self._limit = options.max_record_bytes
        self._pick: Pick | None = None
        self._schema, self._weight = header.schema, header.weight
        self._at_once = min(_RECORDS_AT_ONCE, self._weight.at_once)
        self._walker: Walker | None = None
        try:
            plain = plain_schema(self._schema)
            self._wrapped = isinstance(plain, list)
            if self._wrapped:
                name = "iggy_cloud_sources.datum"
                plain = {"type": "record", "name": name, "fields": [{"name": _WHOLE, "type": plain}]}
            projection = Projection(self._schema, options.columns) if options.columns else None
            self._encoder = JsonEncoder(self._schema, partial=projection is not None)
            self._source = _BlockSource(plain)
            chosen = None
            if projection is not None:
                if isinstance(plain, dict) and plain["type"] == "record" and not self._wrapped and decodes_chosen():
                    chosen = projection.reader_schema(plain)
                if chosen is None or not projection.at_top:
                    self._pick = projection.pick
            # Strings that are not UTF-8 become half surrogate pairs and fail when encoded: one bad record, not the rest.
            self._blocks = fastavro.block_reader(
                cast("IO[bytes]", self._source), chosen, handle_unicode_errors="surrogateescape"
            )
            refuse_indexes(self._blocks.writer_schema)
            if chosen is not None:
                decode_chosen(self._blocks)
            self._flat = FlatBlocks.of(self._schema, None if projection is None else projection.names, self._weight)
        except CorruptObjectError:
            raise
        except Exception as exc:  # fastavro and the schema's shape raise many kinds
            if is_of_machine(exc):
                raise
            raise unusable_schema(exc) from exc

    def decode(self, count: int, data: bytes, drop: int, builder: RunBuilder) -> Runs:
        flat = self._flat if count >= _FLAT_RECORDS else None
        for payloads in () if flat is None else flat.payloads(count, data, drop):
            size = size_of(payloads)
            if size > self._limit and longest(payloads) > self._limit:
                break
            yield from builder.add(payloads, size)
            drop += len(payloads)
        if drop < count:
            yield from self._decode_rest(count, data, drop, builder)

    def _decode_rest(self, count: int, data: bytes, drop: int, builder: RunBuilder) -> Runs:
        """Decode the records of a block behind the first `drop`, one after the other."""
        walker = self._walker_of(data)
        self._source.put(count, data)
        block = next(self._blocks)
        records = iter(block)
        left = count
        while left:
            here = min(left, self._at_once)
            try:
                batch, problem = _some(records, here if walker is None else walker.count(here))
            except UnusableDatumError as exc:
                raise CorruptObjectError(str(exc)) from None
            if self._wrapped:
                batch = [datum[_WHOLE] for datum in batch]
            if self._pick is not None:
                batch = list(map(self._pick, batch))
            left -= len(batch)
            if not left and problem is None and cast("Any", block).bytes_.read(1):
                # The last one stays out: behind it the next start would pass over the block, and over the error.
                problem = _EXCESS
                del batch[-1]
            if drop:
                dropped = min(drop, len(batch))
                drop -= dropped
                del batch[:dropped]
            if batch:
                encode_all = partial(self._encoder.encode_all, batch)
                yield from builder.add_encoded(encode_all, partial(iter, batch), self._encoder.encode, _refused)
            if problem is not None:
                raise CorruptObjectError(problem)

    def _walker_of(self, data: bytes) -> Walker | None:
        """Return the check that walks through a block before it is decoded, if one is needed."""
        if not self._weight.must_walk(len(data)) and refuses_indexes():
            return None
        self._walker = self._walker or Walker(self._schema)
        self._walker.put(data)
        return self._walker


def _some(records: Iterator[Any], count: int) -> tuple[list[Any], str | None]:
    """The next data of a block, and what is wrong with the one behind them."""
    batch: list[Any] = []
    try:
        # What was decoded before an error stays in the list.
        batch.extend(islice(records, count))
    except KeyError as exc:
        return batch, not_there(*exc.args)
    except (EOFError, IndexError):
        return batch, cut_short()
    except Exception as exc:  # damaged data makes fastavro raise anything
        if is_of_machine(exc):
            raise
        return batch, undecodable(type(exc).__name__)
    return batch, None if batch else cut_short()


def _refused(_datum: object, failure: Exception) -> Bad:
    """Say why a datum has no JSON form, without what it holds."""
    cause = type(failure).__name__
    if isinstance(failure, LongDecimalError):
        cause = str(failure)
    elif isinstance(failure, UnicodeError):
        cause = "text that is not UTF-8"
    elif isinstance(failure, RecursionError):
        cause = "nested too deeply"
    return (RecordError(f"the datum has no JSON form ({cause})"),)
