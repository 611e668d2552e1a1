"""S3 Inventory: from a `manifest.json` through data files to their rows.

The layout is documented in the S3 user guide, "Locating your inventory". CSV data files are gzip, with
quoted fields and URL-encoded keys; in Parquet, keys are literal. A data file is only used, as a whole,
when its length and its MD5 match the manifest.
"""

from __future__ import annotations

import codecs
import hashlib
import io
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, BinaryIO

import msgspec

from framework.discovery.key_list.rows import (
    MAX_KEY_BYTES,
    KeyRow,
    RowReader,
    columns_of,
    shown,
    split_rows,
    unpacked,
)
from framework.errors import KeyListError
from framework.model.parquet.files import ProbeFile
from framework.model.parquet.page_headers import PagesError
from framework.model.parquet.pages import WatchedFile
from framework.model.temporary_files import temporary_for

MAX_MANIFEST_BYTES = 16 << 20
"""Those of 100,000 data files. Parsed, the largest that is no manifest takes some 500 MB."""

_COPY_BYTES = 1 << 20
_BATCH_ROWS = 10_000
_MAX_COLUMN_BYTES = 2 * MAX_KEY_BYTES * _BATCH_ROWS
"""Maximum size of a column of so many rows, unpacked. In Parquet a long value that repeats takes next to no space."""
_MAX_PAGES_AT_ONCE = 128 << 20
"""Maximum memory of the pages that a batch is read from. Those of an inventory have 1 MiB; there are about ten columns."""

_AGAIN = "supply the whole inventory again"


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """A data file of an inventory.

    Attributes:
        key: in the bucket of the data files.
        size: bytes; None when the manifest does not state it.
        md5: of these bytes, in hexadecimal; empty or None when the manifest does not state it.
    """

    key: Annotated[str, msgspec.Meta(min_length=1)]
    size: int | None = None
    md5: str | None = msgspec.field(default=None, name="MD5checksum")


class Inventory(msgspec.Struct, kw_only=True, rename="camel"):
    """A manifest.

    Attributes:
        source_bucket: the listed bucket.
        file_format: of the data files: `CSV` or `Parquet`.
        file_schema: columns of CSV, in order, with commas between them.
        files: the data files.
    """

    source_bucket: str
    file_format: str
    file_schema: str
    files: tuple[DataFile, ...]

    def __post_init__(self) -> None:
        """Take the bucket of its ARN."""
        self.source_bucket = self.source_bucket.rpartition(":::")[2]

    @property
    def columns(self) -> list[str]:
        """The columns of CSV, in order."""
        return [name.strip() for name in self.file_schema.split(",")]


def parse_manifest(content: bytes, origin: str) -> Inventory:
    """Parse the content of a `manifest.json`.

    Raises:
        KeyListError: it is truncated, not a manifest, or a manifest of ORC files.
    """
    try:
        inventory = msgspec.json.decode(content.removeprefix(codecs.BOM_UTF8), type=Inventory, strict=False)
    except msgspec.ValidationError as error:
        raise KeyListError(
            f"{origin}: no manifest of an S3 Inventory ({error}); it needs sourceBucket, fileFormat, fileSchema and "
            "files with their keys"
        ) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise KeyListError(f"{origin}: no JSON ({error}); it may be cut short: {_AGAIN}") from None
    if inventory.file_format.lower() not in {"csv", "parquet"}:
        raise KeyListError(
            f"{origin}: its data files are {shown(inventory.file_format)}, which cannot be read here; have the "
            "inventory written as CSV or Parquet"
        )
    if inventory.file_format.lower() == "csv":
        columns_of(inventory.columns, origin)
    return inventory


def copy_checked(source: BinaryIO, target: BinaryIO | None, data: DataFile, origin: str) -> None:
    """Read a data file to its end, copy it to `target` if given, and check it.

    Raises:
        KeyListError: it differs from the manifest.
        FatalError: the copy cannot be written.
    """
    size, md5 = 0, hashlib.md5(usedforsecurity=False)
    while chunk := source.read(_COPY_BYTES):
        size += len(chunk)
        md5.update(chunk)
        if target is not None:
            with temporary_for(origin):
                target.write(chunk)
                target.flush()
    if data.size is not None and size != data.size:
        raise KeyListError(f"{origin}: {size} bytes, but the manifest says {data.size}; none of it was used: {_AGAIN}")
    if data.md5 and md5.hexdigest() != data.md5.lower():
        raise KeyListError(f"{origin}: its MD5 is not that of the manifest; none of it was used: {_AGAIN}")


def data_rows(inventory: Inventory, file: BinaryIO, origin: str) -> Iterator[KeyRow]:
    """Yield the rows of a data file.

    Args:
        inventory: its manifest.
        file: its checked bytes; seekable.
        origin: its name, for messages; a name that ends in `.gz` means gzip.

    Raises:
        KeyListError: it does not have its format, or a row is invalid.
    """
    if inventory.file_format.lower() == "parquet":
        yield from _parquet_rows(file, origin)
        return
    reader = RowReader(inventory.columns, origin, encoded=True)
    with unpacked(file, origin) as content:
        for number, values in split_rows(content, origin):
            yield reader.row(values, number)


def _parquet_rows(file: BinaryIO, origin: str) -> Iterator[KeyRow]:
    import pyarrow as pa  # noqa: PLC0415 - only for inventories in Parquet
    import pyarrow.parquet as pq  # noqa: PLC0415

    number = 0
    watched = WatchedFile(file, _MAX_PAGES_AT_ONCE, limit_name="the limit of an inventory")
    try:
        # Read piece by piece, without pyarrow's threads: a row group of an inventory may have some hundred MB.
        # Texts stay a dictionary and its indexes until their size is known.
        metadata = pq.read_metadata(watched)
        leaves = [metadata.schema.column(at) for at in range(metadata.num_columns)]
        texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY" and leaf.path == leaf.name]
        with pq.ParquetFile(watched, buffer_size=_COPY_BYTES, pre_buffer=False, read_dictionary=texts) as parquet:
            names = parquet.schema_arrow.names
            wanted = [names[at] for _, at in columns_of(names, origin)]
            chosen = _check_columns(metadata, leaves, wanted, origin, file.seek(0, io.SEEK_END))
            reader = RowReader(wanted, origin, encoded=False)
            for batch in _batches(parquet, watched, wanted, chosen):
                for name in wanted:
                    if (size := _text_bytes(batch.column(name))) > _MAX_COLUMN_BYTES:
                        raise KeyListError(
                            f"{origin}, behind row {number}: {name} has {size:,} bytes in {len(batch):,} rows, more than the "
                            f"limit of {_MAX_COLUMN_BYTES:,}; is this an inventory?"
                        )
                for values in zip(*(_values(batch.column(name)) for name in wanted), strict=True):
                    number += 1
                    yield reader.row(values, number)
    except (pa.ArrowException, OSError, TypeError, UnicodeDecodeError, PagesError) as error:
        if watched.failure is not None:  # the library may wrap it
            raise KeyListError(f"{origin}, behind row {number}: {watched.failure}; is this an inventory?") from error
        raise KeyListError(
            f"{origin}, behind row {number}: no Parquet file of an inventory ({error}): {_AGAIN}"
        ) from error


def _batches(parquet: Any, watched: WatchedFile, wanted: Sequence[str], chosen: Sequence[int]) -> Iterator[Any]:
    """Yield the batches of the columns `wanted`, which are the leaves `chosen`; each within the limit of their pages."""
    for index in range(parquet.num_row_groups):
        watched.begin(parquet, index, chosen)
        size = watched.step(_BATCH_ROWS)
        for batch in parquet.iter_batches(size, row_groups=[index], columns=wanted, use_threads=False):
            yield batch
            parquet.reader.set_batch_size(watched.step(_BATCH_ROWS))


def _check_columns(
    metadata: Any, leaves: Sequence[Any], wanted: Sequence[str], origin: str, file_bytes: int
) -> list[int]:
    """Refuse columns that are no columns of an inventory, before a page of them is read; return their places.

    Raises:
        KeyListError: a column has lists, records or values of a fixed length inside, or cannot be opened.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415

    at_of = {leaf.path: at for at, leaf in enumerate(leaves) if not leaf.max_repetition_level}
    for name in wanted:
        at = at_of.get(name)
        if at is None or leaves[at].physical_type == "FIXED_LEN_BYTE_ARRAY":
            raise KeyListError(
                f"{origin}: {name} is no column of texts, numbers, times or booleans; is this an inventory?"
            )
    probe = ProbeFile(file_bytes)
    with pq.ParquetFile(probe, metadata=metadata, buffer_size=_COPY_BYTES, pre_buffer=False) as parquet:
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            if group.num_columns != metadata.num_columns:
                raise KeyListError(
                    f"{origin}: row group {number + 1} has {group.num_columns} columns, its schema {metadata.num_columns}: "
                    f"{_AGAIN}"
                )
            if not group.num_rows:
                continue
            # The metadata of an encrypted column, asked for, would end the process: opening it is an error.
            read = parquet.iter_batches(1, row_groups=[number], columns=wanted, use_threads=False)
            if not probe.is_asked(partial(next, read)):
                raise KeyListError(
                    f"{origin}: the columns of row group {number + 1} cannot be opened; are they encrypted?"
                )
    return [at_of[name] for name in wanted]


def _text_bytes(column: Any) -> int:
    """Return how many bytes the values of a column of texts have together; 0 for other columns."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    if not pa.types.is_dictionary(column.type) or pa.types.is_nested(column.type.value_type):
        return 0
    lengths = pc.binary_length(column.dictionary).cast(pa.int64())
    return pc.sum(lengths.take(column.indices)).as_py() or 0


def _values(column: Any) -> list[Any]:
    """Return a column as Python values; times as milliseconds."""
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    elif pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        column = column.cast(pa.string())
    values: list[Any] = column.to_pylist()
    return values
