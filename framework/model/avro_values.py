"""Values that fastavro reads wrongly, for those who read data with it.

Decimals become text: exact, and none so long that it takes minutes to write. A negative time of day is refused: fastavro
makes another time of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

from framework.model.avro_limits import MAX_DECIMAL_DIGITS, is_decimal

MAX_DECIMAL_BYTES = 4096
"""Of the longest decimal: the time to write one grows with the square of its length."""

_WIDE = Context(prec=MAX_DECIMAL_DIGITS)
_EXACT = "iggy-cloud-sources-decimal"


_DAY = {("int", "time-millis"): 86_400_000, ("long", "time-micros"): 86_400_000_000}
_TIME = "iggy-cloud-sources-"


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
    """Return a schema that fastavro accepts, with decimals by `decimal_text`, and times of day that are checked.

    Its own decimals are rounded, and have no limit.
    """
    from fastavro import read  # noqa: PLC0415 - only who reads Avro pays for it

    for kind in ("bytes", "fixed"):
        read.LOGICAL_READERS[f"{kind}-{_EXACT}"] = _read_decimal
    for (kind, logical), day in _DAY.items():
        as_time = read.LOGICAL_READERS[f"{kind}-{logical}"]
        read.LOGICAL_READERS[f"{kind}-{_TIME}{logical}"] = functools.partial(_read_time, as_time, day)
    return _marked(schema)


def _read_time(as_time: Callable[..., Any], day: int, value: int, *schemas: object) -> Any:
    if not 0 <= value < day:
        raise NoTimeError("it holds a number that is no time of day")
    return as_time(value, *schemas)


def _read_decimal(value: bytes, schema: Any, _reader_schema: object = None) -> str:
    return decimal_text(value, schema.get("scale", 0))


def _marked(schema: Any) -> Any:
    if isinstance(schema, list):
        return list(map(_marked, schema))
    if not isinstance(schema, dict):
        return schema
    if is_decimal(schema):
        return {**schema, "logicalType": _EXACT}
    kind = schema["type"]
    if isinstance(kind, str) and (kind, schema.get("logicalType")) in _DAY:
        return {**schema, "logicalType": _TIME + schema["logicalType"]}
    if kind in {"record", "error"}:
        fields = [{**field, "type": _marked(field["type"])} for field in schema["fields"]]
        return {**schema, "fields": fields}
    inner = {"array": "items", "map": "values"}.get(kind)
    return schema if inner is None else {**schema, inner: _marked(schema[inner])}
