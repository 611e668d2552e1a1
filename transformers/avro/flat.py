"""Blocks of flat records, decoded a column at a time: a record whose fields are single values, or optional ones.

polars decodes them several times faster than fastavro, but trusts the data: a union's number that is not there
reads as a value, a boolean byte of 2 as false, and bytes behind the last record are not seen. So its values count only
if the block is the shortest encoding of exactly these values. Their lengths tell: no other encoding is shorter, so if
their sum is the block's length, each value stands where the sum of those before it says. There the numbers of unions
and the bytes of booleans are looked up. Any other block is left to fastavro, and so is the error.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import attrs

from framework.model.avro_limits import TEXT_MEMORY, Weight, type_of, weigh
from transformers.avro.container_header import SYNC_BYTES, encode_long, file_header
from transformers.avro.json_values import Convert, converter
from transformers.row_json import encode_all, float_form, row_maker

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

_MEMORY_BYTES = 1 << 26
"""Maximum memory of a block's values, as columns and as values of Python."""
_VALUE_BYTES = 16
_ROWS_AT_ONCE = 1000
_NUMBERS = {"int", "long", "enum"}
_FIXED_BYTES = {"boolean": 1, "float": 4, "double": 8}


@attrs.frozen(slots=True)
class _Field:
    """A field.

    Attributes:
        kind: `boolean`, `int`, `long`, `float`, `double`, `bytes`, `string`, `enum` or `fixed`.
        null: number of the branch that is null; None when the field is not optional.
        size: bytes of a value, where all have the same; else 0.
        optional_memory: memory for an optional value, besides what its bytes take; 0 when the field is not optional.
        symbols: those of an enum by their numbers.
        chosen: whether it is part of the payload.
        convert: makes a value ready for the encoder; None when the value needs no conversion.
    """

    kind: str
    null: int | None
    size: int
    optional_memory: int
    symbols: Mapping[int, str]
    chosen: bool
    convert: Convert | None

    @property
    def is_text(self) -> bool:
        """Whether polars reads text, and not bytes."""
        return self.kind == "string" and self.chosen

    @property
    def reader_type(self) -> Any:
        """The type that polars reads: the number of a symbol, and bytes for text that is not needed."""
        if self.kind == "fixed":
            kind: Any = {"type": "fixed", "name": f"fixed{self.size}", "size": self.size}
        elif self.kind in _NUMBERS:
            kind = "long"
        else:
            kind = "bytes" if self.kind == "string" and not self.is_text else self.kind
        if self.null is None:
            return kind
        return ["null", kind] if self.null == 0 else [kind, "null"]


class FlatBlocks:
    """Reads the blocks of a file whose records are flat.

    Args:
        fields: of the record.
        names: those of the fields in the payload.
        weight: of a record.
    """

    def __init__(self, fields: Sequence[_Field], names: Sequence[str], weight: Weight) -> None:
        import polars as pl  # noqa: PLC0415 - only who reads Avro pays for it

        # A panic of Rust, where a length leads behind the block, is no Exception. Rust writes it on stderr first, and
        # polars has no switch for that. Only a thread of its own could have another stderr, and handing it each block
        # costs more than decoding one; the stderr of the process belongs to all threads, and to what they start.
        self._failures: tuple[type[BaseException], ...] = (Exception, pl.exceptions.PanicException)
        self._read: Callable[..., pl.DataFrame] = pl.read_avro
        self._fields = fields
        self._least = weight.least
        # As the weight of a datum, but for optional values: it counts those by their bytes, which may be as few as two.
        self._fixed = weight.fixed + sum(field.optional_memory for field in fields)
        self._row_bytes = sum(_VALUE_BYTES + field.size for field in fields)
        self._make = row_maker(tuple(names))
        kinds = [{"name": f"f{at}", "type": field.reader_type} for at, field in enumerate(fields)]
        self._header = file_header({"type": "record", "name": "r", "fields": kinds})

    @classmethod
    def of(cls, schema: Any, chosen: Sequence[str] | None, weight: Weight) -> FlatBlocks | None:
        """Return the reader of a schema; None when its records are not flat.

        Args:
            schema: of the file, with names resolved.
            chosen: names of the fields in the payload; None: all.
            weight: of a record.
        """
        if not isinstance(schema, dict) or schema.get("type") != "record":
            return None
        names = [field["name"] for field in schema["fields"]]
        picked = frozenset(names if chosen is None else chosen)
        fields = [_field(field["type"], chosen=field["name"] in picked) for field in schema["fields"]]
        flat = [field for field in fields if field is not None]
        if not flat or len(flat) < len(fields) or len(set(names)) < len(names):
            return None
        return cls(flat, [name for name in names if name in picked], weight)

    def payloads(self, count: int, data: bytes, drop: int) -> Iterator[Sequence[bytes]]:
        """Yield the payloads of a block behind the first `drop`, up to those that fastavro must decode.

        Args:
            count: number of records.
            data: their bytes.
            drop: number of records that are not wanted.
        """
        memory = max(count * self._row_bytes, count * self._fixed + TEXT_MEMORY * len(data))
        if memory > _MEMORY_BYTES or count * self._least > len(data):
            return
        block = b"".join((self._header, encode_long(count), encode_long(len(data)), data, bytes(SYNC_BYTES)))
        try:
            frame = self._read(io.BytesIO(block))
            series = frame.get_columns()
            columns = [column.to_list() for column in series]
            if frame.height != count or not _is_encoding(self._fields, series, columns, data):
                return
            forms = [_forms(*field) for field in zip(self._fields, columns, strict=True) if field[0].chosen]
        except MemoryError:
            raise
        except self._failures:
            return
        rows = islice(map(self._make, *forms), drop, None)
        left = count - drop
        while left:
            here = min(left, _ROWS_AT_ONCE)
            try:
                payloads = encode_all(islice(rows, here), here)
            except (TypeError, ValueError):
                return
            left -= here
            yield payloads


def _field(schema: Any, *, chosen: bool) -> _Field | None:
    """Return a field of this type; None when it is not flat."""
    null, value = None, schema
    if isinstance(schema, list):
        nulls = [at for at, branch in enumerate(schema) if type_of(branch) == "null"]
        if len(schema) != 2 or len(nulls) != 1:  # noqa: PLR2004
            return None
        null = nulls[0]
        value = schema[1 - null]
    kind = type_of(value)
    if kind not in {*_NUMBERS, *_FIXED_BYTES, "bytes", "string", "fixed"}:
        return None
    size = value["size"] if kind == "fixed" else _FIXED_BYTES.get(kind, 0)
    if kind == "fixed" and not size:
        return None
    symbols = dict(enumerate(value["symbols"])) if kind == "enum" else {}
    memory = 0 if null is None else weigh(value).fixed
    return _Field(kind, null, size, memory, symbols, chosen, converter(schema))


def _is_encoding(
    fields: Sequence[_Field], series: Sequence[pl.Series], columns: Sequence[list[Any]], data: bytes
) -> bool:
    """Return whether a block is the shortest encoding of its columns."""
    import numpy as np  # noqa: PLC0415 - loaded when used

    count = len(columns[0])
    everywhere = np.ones(count, bool)
    looked_up: list[tuple[Any, Any, Any]] = []  # in which records, where in them, and which byte is there
    at: Any = np.zeros(count, np.int64)
    for field, column, values in zip(fields, series, columns, strict=True):
        present = everywhere
        if column.null_count():
            if field.null is None:
                return False
            present = np.fromiter((value is not None for value in values), bool, count)
        if field.null is not None:
            looked_up.append((everywhere, at, 2 * (present if field.null == 0 else ~present)))
            at = at + 1
        if field.kind == "boolean":
            known = [value for value in values if value is not None]
            looked_up.append((present, at[present], np.fromiter(known, np.uint8, len(known))))
        at = at + _sizes(field, column, values) * present
    ends = at.cumsum()
    if ends[-1] != len(data):
        return False
    begins, found = ends - at, np.frombuffer(data, np.uint8)
    return all((found[begins[where] + place] == byte).all() for where, place, byte in looked_up)


def _sizes(field: _Field, column: pl.Series, values: list[Any]) -> Any:
    """Return the length of each value; of null, any number."""
    import numpy as np  # noqa: PLC0415 - loaded when used

    if field.size:
        return field.size
    nulls = column.null_count()
    if field.kind in _NUMBERS:
        numbers = np.array([value or 0 for value in values], np.int64) if nulls else column.to_numpy()
        return _varint_sizes(((numbers << 1) ^ (numbers >> 63)).view(np.uint64))
    texts = [value or "" for value in values] if nulls else values
    if field.is_text and not "".join(texts).isascii():
        texts = list(map(str.encode, texts))
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    return lengths + _varint_sizes((lengths << 1).view(np.uint64))


def _varint_sizes(numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
    import numpy as np  # noqa: PLC0415 - loaded when used

    limits = np.array([1 << 7 * size for size in range(1, 10)], np.uint64)
    return limits.searchsorted(numbers, side="right") + 1


def _forms(field: _Field, values: list[Any]) -> list[Any]:
    """Return the values as the encoder takes them.

    Raises:
        Exception: not all have a form.
    """
    if field.kind == "enum":
        symbols = field.symbols
        if field.null is not None:
            return [None if value is None else symbols[value] for value in values]
        return list(map(symbols.__getitem__, values))
    if field.kind in {"float", "double"}:
        # A sum is finite only if all that it adds is.
        if math.isfinite(sum(filter(None, values))):
            return values
        return [None if value is None else float_form(value) for value in values]
    return values if field.convert is None else list(map(field.convert, values))


__all__ = ["FlatBlocks"]
