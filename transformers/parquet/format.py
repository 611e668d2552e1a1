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
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import BinaryIO, ClassVar, cast

import attrs
from typing_extensions import override

from framework.errors import CorruptObjectError, SourceError, TruncatedObjectError, is_of_machine
from framework.model.objects import ResumePoint
from framework.model.splits import Split
from framework.model.temporary_files import closed_at_end, temporary_for
from framework.transformer import InputOptions, ObjectInput
from transformers.batches import SHARED_MODULES, RunBuilder, Runs, SplittableTransformer
from transformers.compression import UnpackedStream
from transformers.parquet.files import RangedFile
from transformers.parquet.row_groups import RowReader, is_absurd
from transformers.split_input import packing_of

_MAGIC = b"PAR1"
_SMALL_OBJECT_BYTES = 1 << 22
"""Up to this an object is read whole: with ranges it would take a request for each column of each row group, one by one."""
_MESSAGE_CHARACTERS = 200
_SPOOL_BYTES = 1 << 22


class ParquetTransformer(SplittableTransformer):
    """Rows of a Parquet file."""

    name: ClassVar[str] = "parquet"
    reads_columns: ClassVar[bool] = True
    needs_modules: ClassVar[tuple[str, ...]] = (*SHARED_MODULES, "arro3.io", "pyarrow")

    @override
    def prefetch_range(
        self, key: str, size: int, split: Split | None, mark: ResumePoint | None
    ) -> tuple[int, int | None] | None:
        """Return all of a small object, which is read whole; nothing of others, whose footer comes first."""
        return (0, None) if split is None and size <= _SMALL_OBJECT_BYTES else None

    @override
    def _read(self, source: ObjectInput, skip: int, mark: ResumePoint | None, builder: RunBuilder) -> Runs:
        with _open(source, self.options) as file:
            file.seek(0, io.SEEK_END)
            if file.tell() == 0:
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
            yield from RowReader(file, self.options, builder, split).read(skip)
        except SourceError:
            raise
        except Exception as exc:  # pyarrow has many kinds; explained below
            if is_of_machine(exc) and not is_absurd(exc):
                raise
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
        # On disk it is without a name from the start, or deleted when closed: nothing stays behind.
        spooled = tempfile.SpooledTemporaryFile(_SPOOL_BYTES)  # noqa: SIM115 - its end may fail
        file = stack.enter_context(closed_at_end(cast("BinaryIO", spooled)))
        for piece in iter(stream.read_some, b""):
            if file.tell() + len(piece) > most:
                raise CorruptObjectError(
                    f"the Parquet file unpacks to more than input.max_temporary_bytes ({most} bytes)"
                )
            with temporary_for(source.location, made="unpacked"):
                file.write(piece)
                file.flush()
        stream.close()
        file.seek(0)
        yield file


def _explain(failure: Exception, file: BinaryIO | RangedFile) -> CorruptObjectError:
    """Return the framework's error for an error of pyarrow."""
    file.seek(0, io.SEEK_END)  # that of a spooled file returns nothing in Python 3.10
    size = file.tell()
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
