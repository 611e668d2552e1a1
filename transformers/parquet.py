"""Parquet: every row is a record, as JSON (docs/reference/record-json.md).

Row groups are read one after the other in small batches over ranged reads of at most 1 MiB, without pyarrow's read-ahead
and its threads, so that memory does not follow the size of a row group. Skipping leaves whole row groups out by the
counts in the footer. There are no marks: a Parquet file is found from its footer, not from a place inside it. Under an
outer compression the file is unpacked into a temporary file first, which is deleted in every case. A small object is
read with one request. With `input.columns` only the chunks of these columns are read.

A row group belongs to the split in which it begins: where its first column does, by the footer, but not before the row
group that stands before it in the footer. Every split reads the footer.
"""

from __future__ import annotations

import io
import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, cast

import attrs
from typing_extensions import override

from framework.errors import CorruptObjectError, RecordError, SourceError, TruncatedObjectError
from framework.model.objects import ResumePoint
from framework.model.payloads import size_of
from framework.model.splits import Split
from framework.model.temporary import temporary_for
from framework.transformer import MAX_MESSAGE_BYTES, InputOptions, ObjectInput
from transformers.batches import SHARED_MODULES, Bad, RunBuilder, Runs, SplittableTransformer, too_large
from transformers.columns import Choice, Field, choose, nothing_inside
from transformers.compression import UnpackedStream
from transformers.parquet_pages import ListStringsError, SeekableFile, WatchedFile
from transformers.row_json import NAMES_BYTES, encode
from transformers.split_input import packing_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from transformers.arrow_sizes import RowSizes
    from transformers.parquet_json import RowEncoder

log = logging.getLogger(__name__)

_MAGIC = b"PAR1"
_SMALL_OBJECT_BYTES = 1 << 22
"""Up to this an object is read whole: with ranges it would take a request for each column of each row group, one by one."""
_BUFFER_BYTES = 1 << 20
_BATCH_BYTES = 1 << 22
_FIRST_BYTES = 1 << 24
"""What the first batch of a row group may take at most, if each of its rows held the longest value that there can be."""
_MESSAGE_CHARACTERS = 200
_AGAIN_ROWS = 100
_DICTIONARY_ROWS = 16
_DICTIONARY_BYTES = 1 << 24
_MOST_ROWS = 5000
"""Maximum rows read and encoded at a time, so that they stay in the processor's cache."""
_UNSURE_ROWS = 256
_KEPT_BYTES = 1 << 25
_GROWTH = 16
_MAX_ROW_BYTES = 2 * MAX_MESSAGE_BYTES
_MAX_VALUES = 8_000_000
"""Maximum values of a row: each takes about 40 bytes in Python, and at least two as JSON."""
_USUAL = 1.5
_ABSURD_BYTES = 1 << 32
_SPOOL_BYTES = 1 << 22


class RangedFile(SeekableFile):
    """A seekable file whose every read is one ranged read of the object.

    Attributes:
        keeps: whether reads are kept for a repeated read of the same place.
        fetched: number of bytes that were read of the object.
        failure: the store's error, kept because a library may wrap or swallow it.
    """

    def __init__(self, source: ObjectInput) -> None:
        super().__init__(source.size)
        self._source = source
        self.keeps = False
        self.fetched = 0
        self._kept: dict[tuple[int, int], bytes] = {}
        self._kept_bytes = 0  # a sum at each read would take time by the square of a file's columns
        self.failure: Exception | None = None

    def keep(self) -> None:
        """Keep the following reads, up to a limit, for a reader that repeats them."""
        self.forget()
        self.keeps = True

    def forget(self) -> None:
        """Drop the kept reads."""
        self.keeps = False
        self._kept.clear()
        self._kept_bytes = 0

    @override
    def read(self, size: int = -1, /) -> bytes:
        end = self._size if size < 0 else min(self._size, self._at + size)
        if self._at >= end:
            return b""
        place = self._at, end
        if (kept := self._kept.pop(place, None)) is not None:
            self._kept_bytes -= len(kept)
            self._at = end
            return kept
        data = self._fetch(end)
        if self.keeps and self._kept_bytes < _KEPT_BYTES:
            self._kept[place] = data
            self._kept_bytes += len(data)
        return data

    def _fetch(self, end: int) -> bytes:
        try:
            with closing(self._source.open(self._at, end)) as raw:
                parts = []
                while self._at < end and (part := raw.read(end - self._at)):
                    parts.append(part)
                    self._at += len(part)
                    self.fetched += len(part)
        except Exception as exc:
            self.failure = exc
            raise
        if self._at < end:
            self.failure = TruncatedObjectError("shorter than listed")
            raise self.failure
        return parts[0] if len(parts) == 1 else b"".join(parts)


class _ProbeFile(SeekableFile):
    """A file that is never read: it shows whether pyarrow can open columns."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._asked = False

    def is_asked(self, read: Callable[[], object]) -> bool:
        """Return whether `read` comes so far as to read the file."""
        self._asked = False
        with suppress(Exception):
            read()
        return self._asked

    @override
    def read(self, size: int = -1, /) -> bytes:
        self._asked = True
        return b""  # not an error, whose traceback pyarrow formats each time


class ParquetTransformer(SplittableTransformer):
    """Rows of a Parquet file."""

    name: ClassVar[str] = "parquet"
    reads_columns: ClassVar[bool] = True
    needs_modules: ClassVar[tuple[str, ...]] = (*SHARED_MODULES, "arro3.io", "pyarrow")

    @override
    def numbering_options(self) -> Mapping[str, str]:
        # Not the compression: read with a wrong one, a file has no record at all, so no number can change its meaning.
        return {"format": self.name}

    @override
    def decode_record(self, raw: bytes, *, key: str) -> bytes:
        return self._fitting(raw)  # a dead letter holds the JSON that was too long

    @override
    def prefetch_range(
        self, key: str, size: int, split: Split | None, mark: ResumePoint | None
    ) -> tuple[int, int | None] | None:
        """Return all of a small object, which is read whole; nothing of others, whose footer comes first."""
        return (0, None) if split is None and size <= _SMALL_OBJECT_BYTES else None

    @override
    def _read(self, source: ObjectInput, skip: int, mark: ResumePoint | None, builder: RunBuilder) -> Runs:
        with _open(source, self.options) as file:
            if file.seek(0, io.SEEK_END) == 0:
                return  # a compression with nothing in it
            file.seek(0)
            yield from self._read_rows(file, skip, builder, None)

    @override
    def _read_split(
        self, source: ObjectInput, split: Split, skip: int, mark: ResumePoint | None, builder: RunBuilder
    ) -> Runs:
        if self.options.compression != "none" and packing_of(source) != "none":
            if split.number == 1:  # it owns all of what is compressed although its name does not show it
                yield from self._read(source, skip, None, builder)
            return
        with closing(RangedFile(source)) as file:
            yield from self._read_rows(file, skip, builder, split)

    def _read_rows(self, file: BinaryIO | RangedFile, skip: int, builder: RunBuilder, split: Split | None) -> Runs:
        failure: Exception
        try:
            yield from _RowReader(file, self.options, builder, split).read(skip)
        except SourceError:
            raise
        except MemoryError as exc:
            if not _is_absurd(exc):
                raise
            failure = exc
        except Exception as exc:  # noqa: BLE001 - pyarrow has many kinds; explained below
            failure = exc
        else:
            return
        if isinstance(file, RangedFile) and file.failure is not None:
            raise file.failure
        raise _explain(failure, file) from failure


@contextmanager
def _open(source: ObjectInput, options: InputOptions) -> Iterator[BinaryIO | RangedFile]:
    """The Parquet file as a seekable one."""
    compression, most = options.compression, options.max_temporary_bytes
    if compression == "auto" and source.size > _SMALL_OBJECT_BYTES:
        compression = packing_of(source)
    if compression == "none" and source.size > _SMALL_OBJECT_BYTES:
        with closing(RangedFile(source)) as ranged:
            yield ranged
        return
    with ExitStack() as stack:
        stream = stack.enter_context(closing(UnpackedStream(source, attrs.evolve(options, compression=compression))))
        file: BinaryIO = stack.enter_context(io.BytesIO())
        for piece in iter(stream.read_some, b""):
            if file.tell() + len(piece) > most:
                raise CorruptObjectError(
                    f"the Parquet file unpacks to more than input.max_temporary_bytes ({most} bytes)"
                )
            with temporary_for(source.location, made="unpacked"):
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


def _explain(failure: Exception, file: BinaryIO | RangedFile) -> CorruptObjectError:
    """Return the framework's error for an error of pyarrow."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    head = file.read(4)
    file.seek(max(0, size - 4))
    tail = file.read(4)
    if head != _MAGIC:
        if head == b"PARE":
            return CorruptObjectError("the Parquet file is encrypted, which is not supported")
        if size < len(_MAGIC) and _MAGIC.startswith(head):
            return TruncatedObjectError("too short for a Parquet file: the object was cut short")
        return CorruptObjectError("not a Parquet file: it does not begin with PAR1; see input.format")
    if tail != _MAGIC:
        return TruncatedObjectError("the Parquet file has no footer: the object was cut short")
    message = "".join(filter(str.isprintable, str(failure).strip().partition("\n")[0]))[:_MESSAGE_CHARACTERS]
    return CorruptObjectError(
        f"the Parquet file cannot be read further ({type(failure).__name__}: {message}): it is damaged, or holds something that "
        "the installed pyarrow cannot read"
    )


class _RowReader:
    """The state of one read, of all rows or of those of a split."""

    def __init__(
        self, file: BinaryIO | RangedFile, options: InputOptions, builder: RunBuilder, split: Split | None
    ) -> None:
        self._file = file
        self._limit = options.max_record_bytes
        self._page_limit = options.max_page_bytes
        self._columns = options.columns
        self._leaves: list[int] | None = None  # those of the chosen columns; None: all
        self._builder = builder
        self._split = split
        self._encoder: RowEncoder | None = None
        self._sizes: RowSizes | None = None
        self._json_bytes = 0  # of all rows so far
        self._watched: dict[pq.ParquetFile, WatchedFile] = {}
        self._opened = False
        self._in_dictionaries: dict[str, Any] = {}  # options of `_open` that leave the strings of lists there

    @contextmanager
    def _open(self, *, keeps_dictionaries: bool = False, **options: Any) -> Iterator[pq.ParquetFile]:
        """The file, open once more; what is read of it is watched."""
        import pyarrow.parquet as pq  # noqa: PLC0415 - 50 MB, only for who reads Parquet

        watched = WatchedFile(
            self._file, self._page_limit, footer_fits=self._opened, keeps_dictionaries=keeps_dictionaries
        )
        try:
            with pq.ParquetFile(
                watched, pre_buffer=False, buffer_size=_BUFFER_BYTES, page_checksum_verification=True, **options
            ) as parquet:
                self._opened = True
                self._watched[parquet] = watched
                try:
                    yield parquet
                finally:
                    del self._watched[parquet]
        except Exception as exc:
            if watched.failure is not None:
                # The library may wrap it, or say something of its own.
                raise CorruptObjectError(str(watched.failure)) from exc
            raise

    def read(self, skip: int) -> Runs:
        with self._open() as parquet:
            meta = parquet.metadata
            counts = []
            for group in map(meta.row_group, range(meta.num_row_groups)):
                # pyarrow ends the process when it is asked for a column that is in one of both only.
                if group.num_columns != meta.num_columns:
                    raise CorruptObjectError(
                        f"a row group of the Parquet file has {group.num_columns} columns, its schema {meta.num_columns}"
                    )
                counts.append(group.num_rows)
            # First: behind a row that is missing all numbers are wrong. Some writers leave the sum at 0.
            if min(counts, default=0) < 0 or meta.num_rows not in {sum(counts), 0}:
                raise CorruptObjectError(
                    f"the Parquet file's footer counts {meta.num_rows} rows, its row groups {sum(counts)}"
                )
            if self._columns:
                self._leaves = _chosen_leaves(self._columns, parquet)
            own = list(enumerate(counts))
            if self._split is not None:
                own = [own[index] for index in self._own_row_groups(parquet, counts, self._split)]
            done = 0
            for index, rows in own:
                if done + rows > skip:
                    yield from self._row_group(parquet, index, max(0, skip - done))
                done += rows

    def _own_row_groups(self, parquet: pq.ParquetFile, counts: Sequence[int], split: Split) -> Iterator[int]:
        """Yield the row groups with rows that begin in the split."""
        import pyarrow.parquet as pq  # noqa: PLC0415

        begin, last = 0, self._file.seek(0, io.SEEK_END) - 1
        probe, meta = _ProbeFile(last + 1), parquet.metadata
        with pq.ParquetFile(probe, metadata=meta, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
            for index, rows in enumerate(counts):
                if begin >= split.end:
                    return
                if not rows:
                    continue
                group = meta.row_group(index)
                # The metadata of an encrypted column, asked for, would end the process: opening it is an error.
                if group.num_columns and probe.is_asked(partial(next, _read_leaves(file, index, [0], 1))):
                    chunk = group.column(0)
                    at = chunk.data_page_offset
                    if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < at:
                        at = chunk.dictionary_page_offset
                    begin = min(max(begin, at), last)
                if split.holds(begin):
                    yield index

    def _row_group(self, parquet: pq.ParquetFile, index: int, drop: int) -> Runs:
        group = parquet.metadata.row_group(index)
        if self._leaves is None:
            self._check_row(index, group.total_byte_size // max(1, group.num_rows))
        before = self._builder.next_record - drop
        rows = _Rows(group, min(_MOST_ROWS, self._builder.limits.records))
        try:
            yield from self._rows(parquet, index, drop, rows)
        except (SourceError, MemoryError) as exc:
            if not isinstance(exc, MemoryError) or not _is_absurd(exc):
                raise
        except Exception as exc:  # noqa: BLE001 - pyarrow has many kinds; what cannot be read raises again below
            log.debug(
                "%s: row group %d is read again, row by row: %s", self._builder.location, index + 1, type(exc).__name__
            )
        else:
            return
        if isinstance(self._file, RangedFile) and self._file.failure is not None:
            raise self._file.failure
        # The rows before what cannot be read go out, whatever was read with them: one by one from there.
        done = self._builder.next_record - before
        if isinstance(self._watched[parquet].failure, ListStringsError):
            yield from self._rows_with_dictionaries(parquet, index, done)
        else:
            yield from self._rows(parquet, index, done, _OneByOne(done))

    def _rows_with_dictionaries(self, parquet: pq.ParquetFile, index: int, done: int) -> Runs:
        """Read on with the strings of lists in their dictionaries, until it is known which rows are not too large."""
        too_much, self._watched[parquet].failure = self._watched[parquet].failure, None
        encoder, self._encoder = self._encoder, None
        leaves = range(len(parquet.schema)) if self._leaves is None else self._leaves
        strings = [
            leaf.path
            for leaf in map(parquet.schema.column, leaves)
            if leaf.physical_type == "BYTE_ARRAY" and leaf.max_repetition_level
        ]
        self._in_dictionaries = {"keeps_dictionaries": True, "read_dictionary": strings}
        try:
            with self._open(metadata=parquet.metadata, **self._in_dictionaries) as file:
                yield from self._rows(file, index, done, _Rows(parquet.metadata.row_group(index), _DICTIONARY_ROWS))
        except OSError as exc:
            if "DictAccumulator" not in str(exc):  # pyarrow cannot keep them for every encoding
                raise
            raise CorruptObjectError(str(too_much)) from exc
        finally:
            self._encoder, self._in_dictionaries = encoder, {}

    def _check_row(self, index: int, row_bytes: int) -> None:
        if row_bytes > _MAX_ROW_BYTES:
            raise CorruptObjectError(
                f"a row of row group {index + 1} of the Parquet file has about {row_bytes} bytes, more than the "
                f"{_MAX_ROW_BYTES} that are read at once; an Iggy message holds {MAX_MESSAGE_BYTES}"
            )

    def _rows(self, parquet: pq.ParquetFile, index: int, drop: int, rows: _Rows | _OneByOne) -> Runs:
        seen = 0
        group = parquet.metadata.row_group(index)
        for batch, seconds in self._batches(parquet, index, rows):
            if self._encoder is None:
                from transformers.arrow_sizes import RowSizes  # noqa: PLC0415 - imports pyarrow
                from transformers.parquet_json import RowEncoder  # noqa: PLC0415

                self._encoder = RowEncoder(batch.schema, parquet.schema, self._leaves)
                self._sizes = RowSizes(batch.schema)
            cut = min(max(0, drop - seen), batch.num_rows)
            seen += batch.num_rows
            json_before = self._json_bytes
            if cut < batch.num_rows:
                part = batch.slice(cut), None if seconds is None else seconds.slice(cut)
                for piece in self._pieces(*part):
                    if piece[0].num_rows == 1 and self._is_too_large(piece[0]):
                        yield from self._builder.bad(too_large(self._limit))
                    else:
                        yield from self._encode(*piece, self._encoder)
            if seen == batch.num_rows < group.num_rows and isinstance(rows, _Rows):
                if self._leaves is not None or rows.unsized:
                    leaves = range(group.num_columns) if self._leaves is None else self._leaves
                    self._check_row(index, rows.narrow(self._chunk_bytes(group, leaves), group.num_rows))
                rows.limit(self._longest_words(parquet, index, rows.most, batch))
            rows.saw(batch, self._json_bytes - json_before)
        if seen != group.num_rows:
            raise TruncatedObjectError(
                f"row group {index + 1} of the Parquet file has {seen} rows where the footer counts {group.num_rows}"
            )

    @staticmethod
    def _chunk_bytes(group: Any, leaves: Sequence[int]) -> int:
        """Return the decompressed size of columns. Not before pyarrow has opened them: see `WatchedFile._prepare`."""
        return sum(max(0, group.column(leaf).total_uncompressed_size) for leaf in leaves)

    def _longest_words(self, parquet: pq.ParquetFile, index: int, most: int, first: pa.RecordBatch) -> int | None:
        """Return how long the strings of a row can be that stand in dictionaries; None when that cannot be told.

        The footer counts a dictionary once, and a string in it may be in every row. The dictionaries were measured as
        pyarrow read them for the first batch. They count where reading `most` rows at once could take too much; but not
        where the first rows take as much as the footer says of all, because those are not made of a few long strings.
        """
        group, watched = parquet.metadata.row_group(index), self._watched[parquet]
        leaves = range(group.num_columns) if self._leaves is None else self._leaves
        chunks = [group.column(leaf) for leaf in leaves]
        usual = _usual_columns(chunks, group.num_rows, first)
        takes = 0
        for leaf, chunk in zip(leaves, chunks, strict=True):
            delta = "DELTA_BYTE_ARRAY" in chunk.encodings  # a string may be all of the one before
            if (
                chunk.physical_type == "BYTE_ARRAY"
                and chunk.total_uncompressed_size * most > _FIRST_BYTES
                and chunk.path_in_schema.split(".")[0] not in usual
                and (chunk.has_dictionary_page or delta)
            ):
                longest = 0 if delta else watched.longest_word(leaf)
                if not longest:
                    return None
                takes += longest * max(1, -(-chunk.num_values // max(1, group.num_rows)))
        return takes

    def _batches(
        self, parquet: pq.ParquetFile, index: int, rows: _Rows | _OneByOne
    ) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch | None]]:
        """The batches of a row group, and beside each the columns with INT96, in seconds, where there are any."""
        with ExitStack() as stack:
            files = [parquet]
            columns: list[list[int] | None] = [self._leaves]
            if old := _int96_leaves(parquet, self._leaves):
                again = self._open(metadata=parquet.metadata, coerce_int96_timestamp_unit="s", **self._in_dictionaries)
                files.append(stack.enter_context(again))
                columns.append(old)
                if isinstance(self._file, RangedFile):
                    self._file.keep()
            watched = [self._watched[file] for file in files]
            for file, watch, leaves in zip(files, watched, columns, strict=True):
                watch.begin(file, index, leaves)
            size = min(watch.step(rows.next_size()) for watch in watched)
            iterators = [_read_leaves(file, index, leaves, size) for file, leaves in zip(files, columns, strict=True)]
            while (batch := next(iterators[0], None)) is not None:
                seconds = next(iterators[1]) if len(iterators) > 1 else None
                if isinstance(self._file, RangedFile):
                    self._file.forget()
                    if self._split is not None:
                        self._builder.stored_bytes = self._file.fetched
                yield batch, seconds
                size = min(watch.step(rows.next_size()) for watch in watched)
                for file in files:
                    file.reader.set_batch_size(size)

    def _pieces(self, batch: pa.RecordBatch, seconds: pa.RecordBatch | None) -> Iterator[tuple[Any, Any]]:
        """The rows in parts that are no larger than one row may be, or are one. What comes from dictionaries is not there yet."""
        assert self._sizes is not None
        takes = self._sizes.of(batch)
        if batch.num_rows == 1 or not (
            batch.nbytes > _MAX_ROW_BYTES
            or takes.values > _MAX_VALUES
            or takes.dictionary_bytes > _DICTIONARY_BYTES
            or takes.name_bytes > NAMES_BYTES
        ):
            yield batch, seconds
            return
        half = batch.num_rows // 2
        for place in ((0, half), (half, batch.num_rows - half)):
            yield from self._pieces(batch.slice(*place), None if seconds is None else seconds.slice(*place))

    def _is_too_large(self, row: pa.RecordBatch) -> bool:
        """Return whether a row is too large to become values of Python, each of which takes far more than in Arrow, and JSON."""
        from transformers.arrow_sizes import text_bytes  # noqa: PLC0415 - imports pyarrow

        assert self._sizes is not None
        takes = self._sizes.of(row)
        if max(row.nbytes, takes.dictionary_bytes) > _MAX_ROW_BYTES or takes.values > _MAX_VALUES:
            return True
        # What stands in a null record may count, though it is not written: that is never so much.
        return takes.name_bytes + sum(map(text_bytes, row.columns)) > max(self._limit, NAMES_BYTES)

    def _encode(self, batch: pa.RecordBatch, seconds: pa.RecordBatch | None, encoder: RowEncoder) -> Runs:
        def encode_all() -> Sequence[bytes]:
            payloads = encoder.payloads(batch, seconds)
            self._json_bytes += size_of(payloads)
            return payloads

        return self._builder.add_encoded(encode_all, partial(encoder.rows, batch, seconds), encode, _refused)


def _refused(_row: object, failure: Exception) -> Bad:
    if not isinstance(failure, TypeError | ValueError):
        raise failure
    return (RecordError("the row has no JSON form (text that is not UTF-8, or an INT96 that is no time)"),)


class _Rows:
    """How many rows of a row group are read at a time: few at first, then by the memory that they took.

    What the footer says is the size of encoded values: a dictionary counts once there, and its strings may be in every row.

    Attributes:
        unsized: the footer says no size, as some writers leave it; the columns' own sizes count once they are open.
    """

    def __init__(self, group: Any, most: int) -> None:
        self._limit = most
        stated = int(group.total_byte_size)
        self.unsized = stated <= 0
        widest = _FIRST_BYTES if self.unsized else stated  # no single value is longer than all of them
        self.most: int = max(1, min(most, _BATCH_BYTES // max(1, widest // max(1, group.num_rows))))
        self._size: int = max(1, min(self.most, _FIRST_BYTES // widest))
        # A small row group is no more than a batch may be, wherever in it the long values are.
        self._growth = _GROWTH if widest > _BATCH_BYTES else most
        self._seen = 0

    def limit(self, row_bytes: int | None) -> None:
        """Return whether the maximum string length of a row is known, or cannot be."""
        self.most = min(self.most, _UNSURE_ROWS if row_bytes is None else max(1, _FIRST_BYTES // max(1, row_bytes)))
        self._size = min(self._size, self.most)

    def narrow(self, chunk_bytes: int, rows: int) -> int:
        """Take the size of the chosen columns in place of the row group's; return the average of a row."""
        row_bytes = chunk_bytes // max(1, rows)
        self.most = max(1, min(self._limit, _BATCH_BYTES // max(1, row_bytes)))
        return row_bytes

    def next_size(self) -> int:
        """For the next batch. Small ones fill up a large one, so that those behind them are whole runs."""
        return min(self._size, self.most - self._seen % self.most)

    def saw(self, batch: pa.RecordBatch, json_bytes: int) -> None:
        """A batch was read, and so many bytes of JSON written: with long names they are far more than its values."""
        self._seen += batch.num_rows
        takes = max(int(batch.get_total_buffer_size()), json_bytes)
        each = max(1, takes // max(1, batch.num_rows))
        self._size = max(1, min(self.most, self._growth * self._size, _BATCH_BYTES // each))


class _OneByOne:
    """Rows one at a time, behind those that were read already."""

    def __init__(self, done: int) -> None:
        self._left = done

    def next_size(self) -> int:
        """For the next batch."""
        return max(1, min(self._left, _AGAIN_ROWS))

    def saw(self, batch: pa.RecordBatch, json_bytes: int) -> None:
        """A batch was read."""
        del json_bytes
        self._left -= batch.num_rows


def _usual_columns(chunks: list[Any], rows: int, first: pa.RecordBatch) -> set[str]:
    """The columns of which the first rows take about as much as all of them do on the average."""
    sizes: dict[str, int] = {}
    for chunk in chunks:
        name = chunk.path_in_schema.split(".")[0]
        sizes[name] = sizes.get(name, 0) + chunk.total_uncompressed_size
    found = set()
    for name, array in zip(first.schema.names, first.columns, strict=True):
        here, all_rows = array.nbytes / first.num_rows, sizes.get(name, 0) / rows
        if all_rows / _USUAL < here < all_rows * _USUAL:
            found.add(name)
    return found


def _read_leaves(file: pq.ParquetFile, index: int, leaves: list[int] | None, size: int) -> Iterator[pa.RecordBatch]:
    """Return the batches of a row group, of all columns or of leaves by their places: two may have the path `a.b`."""
    if leaves is None:
        return file.iter_batches(size, row_groups=[index], use_threads=False)  # type: ignore[no-any-return]
    return file.reader.iter_batches(size, row_groups=[index], column_indices=leaves, use_threads=False)  # type: ignore[no-any-return]


def _int96_leaves(parquet: pq.ParquetFile, chosen: list[int] | None) -> list[int]:
    """Return the leaves of those columns at the top in which there is INT96."""
    schema = parquet.schema
    leaves = range(len(schema)) if chosen is None else chosen
    old = {leaf for leaf in leaves if schema.column(leaf).physical_type == "INT96"}
    if not old:
        return []
    found: list[int] = []
    begin = 0
    for field in parquet.schema_arrow:
        column = range(begin, begin := begin + _leaf_count(field.type))
        if not old.isdisjoint(column):
            found += [leaf for leaf in leaves if leaf in column]
    return found


def _chosen_leaves(columns: Sequence[str], parquet: pq.ParquetFile) -> list[int]:
    """Return the places of the chosen columns' leaves, in the file's order.

    Raises:
        CorruptObjectError: a column does not exist.
    """
    kinds = [(field.name, field.type) for field in parquet.schema_arrow]
    choice = choose(columns, [_field(*kind) for kind in kinds])
    return list(_leaves_of(choice, [kind for _, kind in kinds], 0))


def _field(name: str, kind: Any) -> Field:
    struct = _struct_in(kind)
    if struct is None:
        return Field(name, nothing_inside)
    return Field(
        name, lambda: [_field(struct.field(at).name, struct.field(at).type) for at in range(struct.num_fields)]
    )


def _leaves_of(choice: Choice, kinds: Sequence[Any], begin: int) -> Iterator[int]:
    """Yield the leaves of the chosen of some fields, the first of which begins with leaf `begin`."""
    for place, kind in enumerate(kinds):
        end = begin + _leaf_count(kind)
        if place in choice:
            inner, struct = choice[place], _struct_in(kind)
            if inner is None or struct is None:
                yield from range(begin, end)
            else:
                yield from _leaves_of(inner, [struct.field(at).type for at in range(struct.num_fields)], begin)
        begin = end


def _struct_in(kind: Any) -> Any:
    """Return the struct that a type is, or holds in lists; None when it is another."""
    from pyarrow import types  # noqa: PLC0415

    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind if types.is_struct(kind) else None


def _leaf_count(kind: Any) -> int:
    """Return the number of Parquet's columns that an Arrow type takes."""
    from pyarrow import types  # noqa: PLC0415

    if hasattr(kind, "storage_type"):
        return _leaf_count(kind.storage_type)
    if types.is_struct(kind):
        return sum(_leaf_count(kind.field(at).type) for at in range(kind.num_fields))
    if types.is_map(kind):
        return _leaf_count(kind.key_type) + _leaf_count(kind.item_type)
    if types.is_dictionary(kind):
        return 1
    return _leaf_count(kind.value_type) if hasattr(kind, "value_type") else 1


def _is_absurd(failure: MemoryError) -> bool:
    """Return whether memory was asked for that no file can need: then the file is damaged. pyarrow says how much it was."""
    asked = re.search(r"of size (\d+) failed", str(failure))
    return asked is not None and int(asked[1]) >= _ABSURD_BYTES


__all__ = ["ParquetTransformer", "RangedFile"]
