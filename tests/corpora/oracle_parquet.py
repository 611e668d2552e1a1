"""Parquet by pyarrow's values, one at a time. See `oracle_lines` for what an oracle returns."""

import base64
import io
import uuid

import pyarrow as pa
import pyarrow.parquet as pq

from tests.corpora import oracle_times as times
from tests.corpora.oracle_lines import BAD, is_text

_MAX_ROW_BYTES = 128_000_000
_INT96_END = (2**31 - 2_440_588) * 86_400
"""Seconds, behind the last day; pyarrow takes negative days for later ones."""


def parquet(data):
    rows = []
    try:
        file = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True)
        leaves = [file.schema.column(at) for at in range(len(file.schema))]
        seconds = file
        if any(leaf.physical_type == "INT96" for leaf in leaves):
            seconds = pq.ParquetFile(io.BytesIO(data), coerce_int96_timestamp_unit="s")
        groups = [file.metadata.row_group(at) for at in range(file.num_row_groups)]
        if file.metadata.num_rows not in {0, sum(group.num_rows for group in groups)}:
            return rows, True
        for at, group in enumerate(groups):
            if group.total_byte_size > _MAX_ROW_BYTES * max(1, group.num_rows):
                return rows, True
            made = []
            failed = _read(file, seconds, at, 997, leaves, made) and _read(file, seconds, at, 1, leaves, made)
            rows += made
            if failed or len(made) != group.num_rows:
                return rows, True
    except Exception:  # noqa: BLE001 - pyarrow raises many kinds for damaged files
        return rows, True
    return rows, False


def _read(file, seconds, group, size, leaves, made):
    """Add what follows the rows that were read; return whether that failed."""
    options = {"batch_size": size, "row_groups": [group], "use_threads": False}
    try:
        drop = len(made)
        for one, again in zip(file.iter_batches(**options), seconds.iter_batches(**options), strict=True):
            form = _record(one.schema, iter(leaves))  # of what pyarrow reads: without groups that have no fields
            for at in range(min(drop, one.num_rows), one.num_rows):
                made.append(_row(form, one.slice(at, 1).columns, again.slice(at, 1).columns))
            drop = max(0, drop - one.num_rows)
    except Exception:  # noqa: BLE001
        return True
    return False


def _row(form, columns, again):
    try:
        value = form([column[0] for column in columns], [column[0] for column in again])
    except (UnicodeDecodeError, OverflowError):
        return BAD
    return value if is_text(value) else BAD


def _record(fields, leaves):
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        raise ValueError("two fields with one name")
    parts = [_form(field.type, leaves) for field in fields]

    def values(value, again):
        return {name: part(value[at], again[at]) for at, (name, part) in enumerate(zip(names, parts, strict=True))}

    return values


def _form(kind, leaves):
    """Return the function from a scalar, and the same with INT96 in seconds, to a value of JSON."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        inner = _form(kind.storage_type, leaves)
        return _optional(lambda value, again: inner(value.value, again.value))
    if types.is_struct(kind):
        return _optional(_record(kind, leaves))
    if types.is_map(kind):
        key, item = _form(kind.key_type, leaves), _form(kind.item_type, leaves)
        named = types.is_string(kind.key_type) or types.is_large_string(kind.key_type)

        def pairs(value, again):
            made = [[key(a[0], b[0]), item(a[1], b[1])] for a, b in zip(value.values, again.values, strict=True)]
            return dict(made) if named and len(dict(made)) == len(made) else made

        return _optional(pairs)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = _form(kind.value_type, leaves)
        return _optional(lambda value, again: list(map(inner, value.values, again.values)))
    leaf = next(leaves)
    return _optional(lambda value, again: _leaf(kind, leaf, value, again))


def _optional(form):
    return lambda value, again: form(value, again) if value.is_valid else None


def _leaf(kind, leaf, value, again):  # noqa: PLR0911 - one for each type
    types = pa.types
    if types.is_dictionary(kind):
        return _leaf(kind.value_type, leaf, value.value, again.value)
    if types.is_floating(kind):
        return times.float_value(float(value.as_py()))
    if types.is_decimal(kind):
        return format(value.as_py(), "f")
    if types.is_date32(kind):
        return times.date(value.value)
    if types.is_timestamp(kind) and leaf.physical_type == "INT96":
        return _int96(again.value, value.value)
    if types.is_timestamp(kind):
        return times.timestamp(value.value, kind.unit, "Z" if kind.tz else "")
    if types.is_date64(kind):
        return times.timestamp(value.value, "ms")
    if types.is_time(kind):
        return times.clock(value.value, kind.unit)
    if types.is_duration(kind):
        return times.elapsed(value.value, kind.unit)
    found = value.as_py()
    if not isinstance(found, bytes):
        return found
    logical = leaf.logical_type.type
    if logical in {"ENUM", "JSON", "STRING"}:
        return found.decode()
    if leaf.converted_type == "INTERVAL":
        return times.interval(found)
    return str(uuid.UUID(bytes=found)) if logical == "UUID" else base64.b64encode(found).decode()


def _int96(seconds, wrapped):
    fraction = (wrapped - seconds * 10**9) % 2**64
    if fraction >= 10**9 or seconds >= _INT96_END:
        raise OverflowError
    return times.timestamp(seconds * 10**9 + fraction, "ns")
