"""Arrow columns -> rows for JSON, losslessly. The mapping is written down in docs/reference/record-json.md.

Values are converted a column at a time: numbers leave Arrow as one list, and only what JSON has no form for is touched
one by one. The column's type in the file is asked as well as Arrow's, which shows a UUID as 16 bytes and an enum as
binary.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from framework.errors import CorruptObjectError
from transformers.json_time import timestamp_text
from transformers.parquet.arrow_lines import LineWriter
from transformers.parquet.arrow_texts import DIGITS, all_within, counts_of, texts_of, timestamp_texts
from transformers.row_json import encode_all, float_form, interval_form, row_maker, uuid_text

Column = Callable[[Any], list[Any]]
"""An array -> one value for the encoder per row."""

_NAME_CHARACTERS = 100
_LINES_ROWS = 64
"""The number of rows from which lines are written a batch at a time."""


class RowEncoder:
    """Record batches of one file -> rows that the encoder can write.

    Args:
        schema: of the batches.
        file_schema: of the file.
        leaves: the places of the file's columns that are in the batches; None: all.
    """

    def __init__(self, schema: pa.Schema, file_schema: pq.ParquetSchema, leaves: Sequence[int] | None = None) -> None:
        names = tuple(schema.names)
        if len(set(names)) < len(names):
            raise CorruptObjectError(
                f"two columns of the Parquet file have the same name, {_twice(names)}: as JSON one of them would be lost"
            )
        self._make = row_maker(names)
        places = range(len(file_schema)) if leaves is None else leaves
        self._int96 = _Int96()
        build = _Columns([file_schema.column(place) for place in places], self._int96)
        self._columns = [build.column(field.type) for field in schema]
        self._by_name = dict(zip(names, self._columns, strict=True))
        self._writer = LineWriter.of(schema)

    def payloads(self, batch: pa.RecordBatch, seconds: pa.RecordBatch | None = None) -> Sequence[bytes]:
        """The JSON of all rows. The arguments are those of `rows`.

        Raises:
            TypeError, ValueError: one of them has none.
        """
        if self._writer is not None and seconds is None and batch.num_rows >= _LINES_ROWS:
            lines = self._writer.lines(batch)
            if lines is not None:
                return lines
        return encode_all(self.rows(batch, seconds), batch.num_rows)

    def rows(self, batch: pa.RecordBatch, seconds: pa.RecordBatch | None = None) -> list[Any]:
        """One object per row.

        Args:
            batch: the rows.
            seconds: of the columns with INT96, the same rows with seconds in place of nanoseconds.
        """
        if not self._columns:
            return [{} for _ in range(batch.num_rows)]
        if seconds is not None:
            self._int96.begin()
            for name, array in zip(seconds.schema.names, seconds.columns, strict=True):
                self._by_name[name](array)
            self._int96.collecting = False
        columns = [convert(array) for convert, array in zip(self._columns, batch.columns, strict=True)]
        return list(map(self._make, *columns))


def _twice(names: Iterable[str]) -> str:
    """The first name that is there twice, shortened and printable."""
    name = next(name for name, count in Counter(names).items() if count > 1)
    return ascii(name[:_NAME_CHARACTERS])


class _Int96:
    """Times of the old kind, days and nanoseconds in 96 bits, of which 64 reach from 1677 to 2262 only.

    pyarrow lets them go around silently. So they are read twice: the seconds always fit, and with the nanoseconds, right but
    for multiples of 2**64, they give the whole value. First the arrays of seconds go through the columns, then the others,
    the same leaves in the same order.
    """

    def __init__(self) -> None:
        self.collecting = False
        self._seconds: deque[Any] = deque()

    def begin(self) -> None:
        """The arrays of seconds come next; what is left of others, after a failure, is dropped."""
        self._seconds.clear()
        self.collecting = True

    def column(self, array: Any) -> list[Any]:
        """The values of a leaf; something that has no JSON form for what is no time."""
        counts = counts_of(array)
        if self.collecting:
            self._seconds.append(counts)
            return [None] * len(array)
        seconds = self._seconds.popleft()
        if all_within(seconds, -_NANOSECONDS_REACH, _NANOSECONDS_REACH) and all_within(
            pc.subtract(counts, pc.multiply(seconds, 10**9)), 0, 10**9
        ):
            return timestamp_texts(counts, 9, "").to_pylist()  # type: ignore[no-any-return]
        return [
            None if nanos is None else _int96_text(second, nanos)
            for second, nanos in zip(seconds.to_pylist(), counts.to_pylist(), strict=True)
        ]


_NANOSECONDS_REACH = 2**63 // 10**9
"""Seconds from 1970 that 64 bits of nanoseconds reach in both directions."""
_NO_TIME = object()
_LAST_SECONDS = (2**31 - 2_440_588) * 86_400
"""Behind the last day that an INT96 can hold. pyarrow takes negative days, as Spark writes them beyond 290,000, for later ones."""


def _int96_text(seconds: int, nanos: int) -> Any:
    rest = (nanos - seconds * 10**9) % 2**64
    if rest >= 10**9 or seconds >= _LAST_SECONDS:
        return _NO_TIME
    return timestamp_text(seconds * 10**9 + rest, 9, "")


class _Columns:
    """Builds the function for each column, taking the file's leaf columns in their order."""

    def __init__(self, leaves: list[Any], int96: _Int96) -> None:
        self._leaves = iter(leaves)
        self._int96 = int96

    def column(self, kind: pa.DataType) -> Column:  # noqa: PLR0911 - one for each kind of nesting
        types = pa.types
        if isinstance(kind, pa.BaseExtensionType):
            inner = self.column(kind.storage_type)
            if kind.extension_name == "arrow.uuid":
                return lambda array: _each(array.storage.to_pylist(), uuid_text)
            return lambda array: inner(array.storage)
        if types.is_struct(kind):
            return self._struct(kind)
        if types.is_map(kind):
            return self._map(kind)
        if types.is_list_view(kind) or types.is_large_list_view(kind):
            inner = self._list(kind)
            return lambda array: inner(plain_lists(array))
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            return self._list(kind)
        leaf = next(self._leaves, None)
        if types.is_dictionary(kind):
            inner = self._leaf(kind.value_type, leaf)
            return lambda array: inner(_without_dictionary(array))
        return self._leaf(kind, leaf)

    def _leaf(self, kind: pa.DataType, leaf: Any) -> Column:  # noqa: PLR0911 - one for each type
        types = pa.types
        if types.is_integer(kind):
            return _integers
        if types.is_floating(kind):
            return _floats
        if types.is_boolean(kind) or types.is_null(kind):
            return _as_they_are
        if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
            return _strings
        if (
            types.is_binary(kind)
            or types.is_large_binary(kind)
            or types.is_fixed_size_binary(kind)
            or types.is_binary_view(kind)
        ):
            return _binary_column(leaf)
        if types.is_timestamp(kind) and leaf is not None and leaf.physical_type == "INT96":
            return self._int96.column
        if (texts := texts_of(kind)) is not None:
            return lambda array: texts(array).to_pylist()
        if types.is_duration(kind):
            digits = DIGITS[kind.unit]
            return lambda array: _each(counts_of(array).to_pylist(), lambda value: _duration_text(value, digits))
        raise CorruptObjectError(f"there is no JSON form for the Arrow type {kind}")

    def _struct(self, kind: pa.StructType) -> Column:
        names = [kind.field(index).name for index in range(kind.num_fields)]
        if len(set(names)) < len(names):
            raise CorruptObjectError(
                f"two fields of a struct have the same name, {_twice(names)}: as JSON one of them would be lost"
            )
        columns = [self.column(kind.field(index).type) for index in range(kind.num_fields)]

        make = row_maker(tuple(names))

        def convert(array: Any) -> list[Any]:
            fields = [column(array.field(index)) for index, column in enumerate(columns)]
            return _with_nulls(array, list(map(make, *fields)) if fields else [{} for _ in range(len(array))])

        return convert

    def _list(self, kind: Any) -> Column:
        inner = self.column(kind.value_type)
        size = kind.list_size if pa.types.is_fixed_size_list(kind) else None

        def convert(array: Any) -> list[Any]:
            if size is not None:
                values = inner(array.values.slice(array.offset * size, len(array) * size))
                rows = (
                    [values[at : at + size] for at in range(0, len(array) * size, size)] if size else [[]] * len(array)
                )
                return _with_nulls(array, rows)
            offsets = array.offsets.to_pylist()
            base = offsets[0] if offsets else 0
            values = inner(array.values.slice(base, offsets[-1] - base)) if offsets else []
            return _with_nulls(array, [values[a - base : b - base] for a, b in zip(offsets, offsets[1:])])  # noqa: B905, RUF007

        return convert

    def _map(self, kind: pa.MapType) -> Column:
        keys, items = self.column(kind.key_type), self.column(kind.item_type)
        key = kind.key_type.value_type if pa.types.is_dictionary(kind.key_type) else kind.key_type
        named = pa.types.is_string(key) or pa.types.is_large_string(key)

        def convert(array: Any) -> list[Any]:
            offsets = array.offsets.to_pylist()
            base = offsets[0] if offsets else 0
            size = offsets[-1] - base if offsets else 0
            pairs = list(zip(keys(array.keys.slice(base, size)), items(array.items.slice(base, size)), strict=True))
            rows: list[Any] = []
            for a, b in zip(offsets, offsets[1:]):  # noqa: B905, RUF007
                row = pairs[a - base : b - base]
                as_object = dict(row) if named else None
                rows.append(as_object if as_object is not None and len(as_object) == len(row) else row)
            return _with_nulls(array, rows)

        return convert


def plain_lists(array: Any) -> Any:
    """Return list views as lists; other arrays as they are.

    Not by a cast: where a null view begins before the one in front of it, pyarrow's cast loses items.
    """
    types, kind = pa.types, array.type
    large = types.is_large_list_view(kind)
    if not large and not types.is_list_view(kind):
        return array
    ends = pc.cumulative_sum(pc.if_else(array.is_valid(), array.sizes, 0).cast(pa.int64()))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(pa.int64() if large else pa.int32())
    # pyarrow cannot flatten where all are null and would hold a UUID.
    values = array.flatten() if offsets[-1].as_py() else array.values.slice(0, 0)
    return (pa.LargeListArray if large else pa.ListArray).from_arrays(offsets, values, mask=array.is_null())


def _without_dictionary(array: Any) -> Any:
    if not len(array.dictionary):  # below nulls alone, where an index may be anything
        return pa.nulls(len(array), array.type.value_type)
    return array.dictionary_decode()


def _as_they_are(array: Any) -> list[Any]:
    return array.to_pylist()  # type: ignore[no-any-return]


def _integers(array: Any) -> list[Any]:
    return array.to_pylist() if array.null_count else array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def _floats(array: Any) -> list[Any]:
    if array.null_count:
        values = array.to_pylist()
        finite = math.isfinite(sum(filter(None, values)))
    else:
        values = array.to_numpy(zero_copy_only=False).tolist()
        finite = math.isfinite(sum(values))
    # A sum is finite only if all that it adds is.
    return values if finite else _each(values, float_form)


def _strings(array: Any) -> list[Any]:
    try:
        return array.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        # What is not UTF-8 becomes half a surrogate pair, which the encoder refuses: that row alone is bad.
        binary = pa.large_binary() if pa.types.is_large_string(array.type) else pa.binary()
        return _each(array.cast(binary).to_pylist(), lambda value: value.decode("utf-8", "surrogateescape"))


def _binary_column(leaf: Any) -> Column:
    logical = leaf.logical_type.type if leaf is not None else ""
    if logical in {"ENUM", "JSON", "STRING"}:
        return lambda array: _each(array.to_pylist(), lambda value: value.decode("utf-8", "surrogateescape"))
    if logical == "UUID":
        return lambda array: _each(array.to_pylist(), uuid_text)
    if leaf is not None and leaf.converted_type == "INTERVAL":
        return lambda array: _each(array.to_pylist(), interval_form)
    return lambda array: _each(array.to_pylist(), lambda value: b64encode(value).decode())


def _duration_text(value: int, digits: int) -> str:
    seconds, fraction = divmod(abs(value), 10**digits)
    tail = f".{fraction:0{digits}d}" if digits else ""
    return f"{'-' if value < 0 else ''}PT{seconds}{tail}S"


def _each(values: list[Any], convert: Callable[[Any], Any]) -> list[Any]:
    return [None if value is None else convert(value) for value in values]


def _with_nulls(array: Any, rows: list[Any]) -> list[Any]:
    if not array.null_count:
        return rows
    return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]
