"""The rows of a Parquet file, row group by row group, in batches that fit in memory."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

from framework.errors import CorruptObjectError, RecordError, SourceError, TruncatedObjectError, is_of_machine
from framework.model.parquet.files import ProbeFile
from framework.model.parquet.pages import WatchedFile
from framework.model.parquet.strings import ListStringsError
from framework.model.payloads import size_of
from framework.model.splits import Split
from framework.transformer import MAX_MESSAGE_BYTES, InputOptions
from transformers.batches import Bad, RunBuilder, Runs, too_large
from transformers.compression import check_expansion
from transformers.parquet.batch_sizes import BatchSizes, OneByOne
from transformers.parquet.files import RangedFile
from transformers.parquet.leaves import chosen_leaves, int96_leaves, read_leaves
from transformers.row_json import NAMES_BYTES, encode

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from transformers.parquet.row_encoder import RowEncoder

log = logging.getLogger(__name__)

_BUFFER_BYTES = 1 << 20
_DICTIONARY_ROWS = 16
_DICTIONARY_BYTES = 1 << 24
_MOST_ROWS = 5000
"""Maximum rows read and encoded at a time, so that they stay in the processor's cache."""
_MAX_ROW_BYTES = 2 * MAX_MESSAGE_BYTES
_MAX_VALUES = 8_000_000
"""Maximum values of a row: each takes about 40 bytes in Python, and at least two as JSON."""
_ABSURD_BYTES = 1 << 32


class RowReader:
    """The state of one read, of all rows or of those of a split."""

    def __init__(
        self, file: BinaryIO | RangedFile, options: InputOptions, builder: RunBuilder, split: Split | None
    ) -> None:
        self._file = file
        self._limit = options.max_record_bytes
        self._page_limit = options.max_page_bytes
        self._expansion = options.max_expansion
        self._columns = options.columns
        self._leaves: list[int] | None = None  # those of the chosen columns; None: all
        self._builder = builder
        self._split = split
        self._encoder: RowEncoder | None = None
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
        """Yield the rows behind the first `skip`."""
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
                self._leaves = chosen_leaves(self._columns, parquet)
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
        probe, meta = ProbeFile(last + 1), parquet.metadata
        with pq.ParquetFile(probe, metadata=meta, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
            for index, rows in enumerate(counts):
                if begin >= split.end:
                    return
                if not rows:
                    continue
                group = meta.row_group(index)
                # The metadata of an encrypted column, asked for, would end the process: opening it is an error.
                if group.num_columns and probe.is_asked(partial(next, read_leaves(file, index, [0], 1))):
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
        rows = BatchSizes(group, min(_MOST_ROWS, self._builder.limits.records))
        try:
            yield from self._rows(parquet, index, drop, rows)
        except SourceError:
            raise
        except Exception as exc:  # pyarrow has many kinds; what cannot be read raises again below
            if is_of_machine(exc) and not is_absurd(exc):
                raise
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
            yield from self._rows(parquet, index, done, OneByOne(done))

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
                yield from self._rows(
                    file, index, done, BatchSizes(parquet.metadata.row_group(index), _DICTIONARY_ROWS)
                )
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

    def _rows(self, parquet: pq.ParquetFile, index: int, drop: int, rows: BatchSizes | OneByOne) -> Runs:
        seen = 0
        group = parquet.metadata.row_group(index)
        for batch, seconds in self._batches(parquet, index, rows):
            # Of few rows, too, and again and again: row groups may share a page.
            unpacked = sum(watched.unpacked for watched in self._watched.values())
            check_expansion("its pages unpack to", unpacked, self._expansion, self._builder.stored_bytes)
            if self._encoder is None:
                from transformers.parquet.row_encoder import RowEncoder  # noqa: PLC0415 - imports pyarrow

                self._encoder = RowEncoder(batch.schema, parquet.schema, self._leaves)
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
            is_first = seen == batch.num_rows < group.num_rows
            if is_first and isinstance(rows, BatchSizes) and (self._leaves is not None or rows.unsized):
                leaves = range(group.num_columns) if self._leaves is None else self._leaves
                self._check_row(index, rows.narrow(self._chunk_bytes(group, leaves), group.num_rows))
            rows.observe(batch, self._json_bytes - json_before)
        if seen != group.num_rows:
            raise TruncatedObjectError(
                f"row group {index + 1} of the Parquet file has {seen} rows where the footer counts {group.num_rows}"
            )

    @staticmethod
    def _chunk_bytes(group: Any, leaves: Sequence[int]) -> int:
        """Return the decompressed size of columns. Not before pyarrow has opened them: see `WatchedFile._prepare`."""
        return sum(max(0, group.column(leaf).total_uncompressed_size) for leaf in leaves)

    def _batches(
        self, parquet: pq.ParquetFile, index: int, rows: BatchSizes | OneByOne
    ) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch | None]]:
        """The batches of a row group, and beside each the columns with INT96, in seconds, where there are any."""
        with ExitStack() as stack:
            files = [parquet]
            columns: list[list[int] | None] = [self._leaves]
            if old := int96_leaves(parquet, self._leaves):
                again = self._open(metadata=parquet.metadata, coerce_int96_timestamp_unit="s", **self._in_dictionaries)
                files.append(stack.enter_context(again))
                columns.append(old)
                if isinstance(self._file, RangedFile):
                    self._file.keep()
            watched = [self._watched[file] for file in files]
            for file, watch, leaves in zip(files, watched, columns, strict=True):
                watch.begin(file, index, leaves)
            size = min(watch.step(rows.next_size()) for watch in watched)
            iterators = [read_leaves(file, index, leaves, size) for file, leaves in zip(files, columns, strict=True)]
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
        from transformers.parquet.arrow_sizes import row_sizes  # noqa: PLC0415 - imports pyarrow

        takes = row_sizes(batch)
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
        from transformers.parquet.arrow_sizes import row_sizes, text_bytes  # noqa: PLC0415 - imports pyarrow

        takes = row_sizes(row)
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


def is_absurd(failure: Exception) -> bool:
    """Return whether memory was asked for that no file can need: then the file is damaged. pyarrow says how much it was."""
    asked = re.search(r"of size (\d+) failed", str(failure)) if isinstance(failure, MemoryError) else None
    return asked is not None and int(asked[1]) >= _ABSURD_BYTES
