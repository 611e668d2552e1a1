"""Record batches -> JSON lines in one call, without a value of Python for each cell.

The JSON writer of arrow-rs (arro3) takes a third of the time of rows. It writes the same bytes as `row_json` for integers,
booleans, valid text, nulls, and records and lists of them; for floats only where neither form has an exponent. Times and
decimals become columns of text first. Whatever else a batch holds, all of it is left to rows.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from arro3.io import write_ndjson

from framework.model.payloads import PayloadColumn
from transformers.parquet.arrow_texts import texts_of

Form = Callable[[Any], Any]
"""An array -> one that is written as JSON in the same way; None: its values are not."""

_FIRST_FLOAT, _END_FLOAT = 1e-5, 1e10
"""Floats between them, and zero, have no exponent: in arrow-rs's form beyond 10 digits, in that of `row_json` later."""


class LineWriter:
    """Writes the batches of one schema.

    Args:
        forms: of its columns.
    """

    def __init__(self, forms: list[Form]) -> None:
        self._forms = forms

    @classmethod
    def of(cls, schema: pa.Schema) -> LineWriter | None:
        """Return the writer of a schema; None when a column of it is left to rows."""
        forms = [_form(field.type) for field in schema if _can_be_named(field)]
        known = [form for form in forms if form is not None]
        return cls(known) if known and len(known) == len(schema) else None

    def lines(self, batch: pa.RecordBatch) -> PayloadColumn | None:
        """Return the payloads of a batch; None when it is left to rows."""
        try:
            batch.validate(full=True)  # arrow-rs takes it for granted that text is UTF-8
        except pa.ArrowInvalid:
            return None
        columns = []
        for form, array in zip(self._forms, batch.columns, strict=True):
            column = form(array)
            if column is None:
                return None
            columns.append(column)
        out = io.BytesIO()
        try:
            write_ndjson(pa.RecordBatch.from_arrays(columns, names=batch.schema.names), out, explicit_nulls=True)
        except BaseException as exc:
            if type(exc).__name__ != "PanicException":  # what arrow-rs did not expect; it is no `Exception`
                raise
            return None
        return PayloadColumn(out.getvalue())


def _can_be_named(field: pa.Field) -> bool:
    """Return whether a name goes from one library to the other whole: as a string of C it ends at a zero."""
    return "\0" not in field.name


def _form(kind: pa.DataType) -> Form | None:
    if pa.types.is_floating(kind):
        return _floats
    if (texts := texts_of(kind)) is not None:
        return texts
    return _nested if _is_plain(kind) else None


def _is_plain(kind: Any) -> bool:
    """Return whether arrays of a type are written as they are, but for floats."""
    types = pa.types
    if types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return bool(fields) and all(_can_be_named(field) and _is_plain(field.type) for field in fields)
    if types.is_list(kind):
        return _is_plain(kind.value_type)
    plain = (
        types.is_integer,
        types.is_boolean,
        types.is_null,
        types.is_string,
        types.is_large_string,
        types.is_float64,
    )
    return any(is_of(kind) for is_of in plain)


def _floats(array: Any) -> Any:
    values = array.cast(pa.float64())
    known = values.fill_null(0) if values.null_count else values
    sizes = np.abs(known.to_numpy())
    return values if (((sizes >= _FIRST_FLOAT) & (sizes < _END_FLOAT)) | (sizes == 0)).all() else None


def _nested(array: Any) -> Any:
    """Return an array that is written as it is; None when a float inside has another form."""
    if not _has_plain_floats(array):
        return None
    # arrow-rs cannot read a record in a record that begins within its buffers; the copy has buffers of its own
    return pa.concat_arrays([array]) if pa.types.is_nested(array.type) else array


def _has_plain_floats(array: Any) -> bool:
    kind = array.type
    if pa.types.is_float64(kind):
        return _floats(array) is not None
    inside = []
    if pa.types.is_struct(kind):
        inside = [array.field(at) for at in range(kind.num_fields)]
    elif pa.types.is_list(kind):
        inside = [array.flatten()]
    return all(map(_has_plain_floats, inside))


__all__ = ["LineWriter"]
