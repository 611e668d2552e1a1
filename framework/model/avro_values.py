"""Values that fastavro reads or writes wrongly, for those who do that with it.

Decimals become text: exact, and none so long that it takes minutes to write. A number that is no time of day is neither
read, as fastavro makes another time of it, nor written. The text of a UUID is read as it is, and written only if it is one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from typing import Any

from framework.model.avro_limits import MAX_DECIMAL_DIGITS, is_decimal

MAX_DECIMAL_BYTES = 4096
"""Of the longest decimal: the time to write one grows with the square of its length."""

_WIDE = Context(prec=MAX_DECIMAL_DIGITS)
_DAY = {("int", "time-millis"): 86_400_000, ("long", "time-micros"): 86_400_000_000}
_OWN = "iggy-cloud-sources-"
"""What the names of logical types begin with that are read or written by functions of this module."""

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_CHECKED = frozenset((*_DAY, ("string", "uuid")))


class LongDecimalError(ValueError):
    """A decimal that is too long, and what is allowed."""


class NoTimeError(ValueError):
    """A number that is no time of day."""


def decimal_text(value: bytes, scale: int) -> str:
    """Return a decimal with as many digits behind the point as the scale.

    Raises:
        LongDecimalError: it is too long.
    """
    if len(value) > MAX_DECIMAL_BYTES:
        raise LongDecimalError(f"a decimal of more than {MAX_DECIMAL_BYTES} bytes")
    return format(Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-scale, _WIDE), "f")


def exact_values(schema: Any) -> Any:
    """Return a schema to read with: decimals by `decimal_text`, times of day that are checked, and UUIDs as text.

    fastavro's own decimals are rounded, and have no limit; its UUIDs have another text.
    """
    from fastavro import read  # noqa: PLC0415 - only who reads Avro pays for it

    for kind in ("bytes", "fixed"):
        read.LOGICAL_READERS[f"{kind}-{_OWN}decimal"] = _read_decimal
    for (kind, logical), day in _DAY.items():
        as_time = read.LOGICAL_READERS[f"{kind}-{logical}"]
        read.LOGICAL_READERS[f"{kind}-{_OWN}{logical}"] = functools.partial(_read_time, as_time, day)
    return _marked(schema, lambda plain: is_decimal(plain) or _is_checked(plain))


def checked_values(schema: Any) -> Any:
    """Return a schema to write with: times of day and the text of a UUID must be such. fastavro writes anything for them.

    A value that is none is taken for None, which does not fit their types.
    """
    from fastavro import write  # noqa: PLC0415 - only who writes Avro pays for it

    for (kind, logical), day in _DAY.items():
        write.LOGICAL_WRITERS[f"{kind}-{_OWN}{logical}"] = functools.partial(_time_of_day, day)
    write.LOGICAL_WRITERS[f"string-{_OWN}uuid"] = _uuid_text
    return _marked(schema, _is_checked)


def _time_of_day(day: int, value: object, _schema: object) -> int | None:
    return value if type(value) is int and 0 <= value < day else None


def _uuid_text(value: object, _schema: object) -> str | None:
    return value if isinstance(value, str) and _UUID.fullmatch(value) else None


def logical_name(schema: Mapping[str, Any]) -> str:
    """Return what a message calls a type: a name of the schema, its logical type of this module, or the type itself."""
    logical = str(schema.get("logicalType", ""))
    return str(schema.get("name") or (logical.removeprefix(_OWN) if logical.startswith(_OWN) else schema["type"]))


def _read_time(as_time: Callable[..., Any], day: int, value: int, *schemas: object) -> Any:
    if not 0 <= value < day:
        raise NoTimeError("it holds a number that is no time of day")
    return as_time(value, *schemas)


def _read_decimal(value: bytes, schema: Any, _reader_schema: object = None) -> str:
    return decimal_text(value, schema.get("scale", 0))


def _is_checked(schema: Mapping[str, Any]) -> bool:
    kind = schema["type"]
    return isinstance(kind, str) and (kind, schema.get("logicalType")) in _CHECKED


def _marked(schema: Any, marks: Callable[[dict[str, Any]], bool]) -> Any:
    """Return a schema in which the types that `marks` chooses have an own name of their logical type."""
    if isinstance(schema, list):
        return [_marked(branch, marks) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    if marks(schema):
        return {**schema, "logicalType": _OWN + schema["logicalType"]}
    kind = schema["type"]
    if kind in {"record", "error"}:
        fields = [{**field, "type": _marked(field["type"], marks)} for field in schema["fields"]]
        return {**schema, "fields": fields}
    inner = {"array": "items", "map": "values"}.get(kind)
    return schema if inner is None else {**schema, inner: _marked(schema[inner], marks)}
