"""Parquet: every row is a record, as JSON (docs/reference/record-json.md).

Row groups are read one after the other in small batches over ranged reads of at most 1 MiB, without pyarrow's read-ahead
and its threads, so that memory does not follow the size of a row group. Skipping leaves whole row groups out by the
counts in the footer. There are no marks: a Parquet file is found from its footer, not from a place inside it. Under an
outer compression the file is unpacked into a temporary file first, which is deleted in every case. A small object is
read with one request.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, BinaryIO, ClassVar, cast

from typing_extensions import override

from framework.errors import CorruptObjectError, RecordError, SourceError, TruncatedObjectError
from framework.records import Mark, SkippedRecord
from framework.transformer import ObjectInput, PayloadRun
from transformers.compression import UnpackedStream, detect_compression
from transformers.row_json import encode
from transformers.runs import SHARED_MODULES, RunBuilder, ShippedTransformer, too_large

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from transformers.parquet_json import RowEncoder

_MAGIC = b"PAR1"
_HEAD_BYTES = 16
_SMALL_OBJECT_BYTES = 1 << 22
"""Up to this an object is read whole: with ranges it would take a request for each column of each row group, one by one."""
_BUFFER_BYTES = 1 << 20
_BATCH_BYTES = 1 << 22
_SPOOL_BYTES = 1 << 22


class RangedFile(io.RawIOBase):
    """A seekable file whose every read is one ranged read of the object.

    Attributes:
        failure: the store's error, kept because a library may wrap or swallow it.
    """

    def __init__(self, source: ObjectInput) -> None:
        super().__init__()
        self._source = source
        self._at = 0
        self.failure: Exception | None = None

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._at

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._source.size}[whence]
        return self._at

    @override
    def read(self, size: int = -1, /) -> bytes:
        end = self._source.size if size < 0 else min(self._source.size, self._at + size)
        if self._at >= end:
            return b""
        try:
            with closing(self._source.open(self._at, end)) as raw:
                parts = []
                while self._at < end and (part := raw.read(end - self._at)):
                    parts.append(part)
                    self._at += len(part)
        except Exception as exc:
            self.failure = exc
            raise
        if self._at < end:
            self.failure = TruncatedObjectError("shorter than listed", location=self._source.location)
            raise self.failure
        return parts[0] if len(parts) == 1 else b"".join(parts)


class ParquetTransformer(ShippedTransformer):
    """Rows of a Parquet file."""

    name: ClassVar[str] = "parquet"
    needs_modules: ClassVar[tuple[str, ...]] = (*SHARED_MODULES, "pyarrow")

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
        with _open(source, self.options.compression) as file:
            if file.seek(0, io.SEEK_END) == 0:
                return  # a compression with nothing in it
            file.seek(0)
            failure: Exception
            try:
                yield from _RowReader(file, source.location, self.options.max_record_bytes, builder).read(skip)
            except SourceError:
                raise
            except Exception as exc:  # noqa: BLE001 - pyarrow has many kinds; explained below
                failure = exc
            else:
                return
            if isinstance(file, RangedFile) and file.failure is not None:
                raise file.failure
            raise _explain(failure, file, source.location) from failure


@contextmanager
def _open(source: ObjectInput, compression: str) -> Iterator[BinaryIO | RangedFile]:
    """The Parquet file as a seekable one."""
    if compression == "auto" and source.size > _SMALL_OBJECT_BYTES:
        with closing(source.open(0, _HEAD_BYTES)) as raw:
            head = b"".join(iter(lambda: raw.read(_HEAD_BYTES), b""))
        compression = detect_compression(head, source.key)
    if compression == "none" and source.size > _SMALL_OBJECT_BYTES:
        with closing(RangedFile(source)) as ranged:
            yield ranged
        return
    with ExitStack() as stack:
        stream = stack.enter_context(closing(UnpackedStream(source, compression)))
        file: BinaryIO = stack.enter_context(io.BytesIO())
        for piece in iter(stream.read_some, b""):
            file.write(piece)
            if isinstance(file, io.BytesIO) and file.tell() > _SPOOL_BYTES:
                # Without a name from the start, or deleted when closed: nothing stays behind.
                on_disk = stack.enter_context(tempfile.TemporaryFile())
                on_disk.write(file.getbuffer())
                file.close()
                file = cast("BinaryIO", on_disk)
        stream.close()
        file.seek(0)
        yield file


def _explain(failure: Exception, file: BinaryIO | RangedFile, location: str) -> CorruptObjectError:
    """What pyarrow's error means for the object."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    head = file.read(4)
    file.seek(max(0, size - 4))
    tail = file.read(4)
    if head != _MAGIC:
        if head == b"PARE":
            return CorruptObjectError("the Parquet file is encrypted, which is not supported", location=location)
        if size < len(_MAGIC) and _MAGIC.startswith(head):
            return TruncatedObjectError("too short for a Parquet file: the object was cut short", location=location)
        return CorruptObjectError(
            "not a Parquet file: it does not begin with PAR1; see input.format", location=location
        )
    if tail != _MAGIC:
        return TruncatedObjectError("the Parquet file has no footer: the object was cut short", location=location)
    return CorruptObjectError(
        f"the Parquet file cannot be read further ({type(failure).__name__}): it is damaged, or holds something that the "
        "installed pyarrow cannot read",
        location=location,
    )


class _RowReader:
    """The state of one read."""

    def __init__(self, file: BinaryIO | RangedFile, location: str, limit: int, builder: RunBuilder) -> None:
        self._file = file
        self._location = location
        self._limit = limit
        self._builder = builder

    def read(self, skip: int) -> Iterator[PayloadRun | SkippedRecord]:
        import pyarrow.parquet as pq  # noqa: PLC0415 - 50 MB, only for who reads Parquet

        from transformers.parquet_json import RowEncoder  # noqa: PLC0415 - imports pyarrow

        with pq.ParquetFile(self._file, pre_buffer=False, buffer_size=_BUFFER_BYTES) as parquet:
            encoder = RowEncoder(parquet.schema_arrow, parquet.schema, self._location)
            counts = [parquet.metadata.row_group(index).num_rows for index in range(parquet.metadata.num_row_groups)]
            if sum(counts) != parquet.metadata.num_rows:  # first: behind a row that is missing all numbers are wrong
                raise CorruptObjectError(
                    f"the Parquet file's footer counts {parquet.metadata.num_rows} rows, its row groups {sum(counts)}",
                    location=self._location,
                )
            done = 0
            for index, rows in enumerate(counts):
                if done + rows > skip:
                    yield from self._row_group(parquet, index, max(0, skip - done), encoder)
                done += rows

    def _row_group(
        self, parquet: pq.ParquetFile, index: int, drop: int, encoder: RowEncoder
    ) -> Iterator[PayloadRun | SkippedRecord]:
        group = parquet.metadata.row_group(index)
        row_bytes = max(1, group.total_byte_size // max(1, group.num_rows))
        size = max(1, min(self._builder.limits.records, _BATCH_BYTES // row_bytes))
        seen = 0
        for batch in parquet.iter_batches(batch_size=size, row_groups=[index], use_threads=False):
            part = batch
            if drop > seen:
                part = batch.slice(min(drop - seen, batch.num_rows))
            seen += batch.num_rows
            if part.num_rows:
                yield from self._encode(part, encoder)
        if seen != group.num_rows:
            raise TruncatedObjectError(
                f"row group {index + 1} of the Parquet file has {seen} rows where the footer counts {group.num_rows}",
                location=self._location,
            )

    def _encode(self, batch: pa.RecordBatch, encoder: RowEncoder) -> Iterator[PayloadRun | SkippedRecord]:
        rows = encoder.rows(batch)
        try:
            payloads = list(map(encode, rows))
        except (TypeError, ValueError):
            payloads = []
        size = sum(map(len, payloads))
        if payloads and (size <= self._limit or max(map(len, payloads)) <= self._limit):
            yield from self._builder.add(payloads, size)
            return
        for row in rows:
            number = self._builder.next_record
            try:
                payload = encode(row)
            except (TypeError, ValueError):
                error = RecordError(
                    "the row has no JSON form (text that is not UTF-8)", location=self._location, record_number=number
                )
                yield from self._builder.bad(error)
                continue
            if len(payload) > self._limit:
                large = too_large(self._location, number, self._limit)
                yield from self._builder.bad(large, payload, length=len(payload))
            else:
                yield from self._builder.add([payload], len(payload))


__all__ = ["ParquetTransformer", "RangedFile"]
