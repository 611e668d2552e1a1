"""Arrow columns of times, dates and decimals -> their texts for JSON, a column at a time.

pyarrow writes a column in a fiftieth of the time that Python takes for each value. It has no text for years outside
0001 to 9999 and for times beyond a day: such columns are written value by value. Very small decimals have an exponent, and
are written again without.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from transformers.json_time import date_text, time_text, timestamp_text

_UNITS = {0: "s", 3: "ms", 6: "us", 9: "ns"}
DIGITS = {unit: digits for digits, unit in _UNITS.items()}
"""Unit of a type of times -> digits after the second."""
_EPOCH = date(1970, 1, 1).toordinal()
_FIRST_DAY, _LAST_DAY = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH
_DAY_SECONDS = 86_400
_DATE_CHARACTERS = 10
_PLAIN_SCALE = 6
"""Decimals with at most so many digits after the point never have an exponent."""


def all_within(array: Any, first: int, end: int) -> bool:
    """Return whether all integers but nulls are at least `first` and below `end`."""
    bounds = pc.min_max(array).as_py()
    return bounds["min"] is None or (first <= bounds["min"] and bounds["max"] < end)


def texts_of(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return what makes an array of texts of an array of times, dates or decimals; None for another type."""
    types = pa.types
    if types.is_decimal(kind):
        return decimal_texts
    if types.is_date32(kind):
        return lambda array: date_texts(array.cast(pa.int32()))
    if types.is_timestamp(kind):
        digits, zone = DIGITS[kind.unit], "Z" if kind.tz else ""
        return lambda array: timestamp_texts(counts_of(array), digits, zone)
    if types.is_date64(kind):
        return lambda array: timestamp_texts(counts_of(array), 3, "")
    if types.is_time(kind):
        digits = DIGITS[kind.unit]
        counts = pa.int32() if types.is_time32(kind) else pa.int64()
        return lambda array: time_texts(array.cast(counts), digits)
    return None


def counts_of(array: Any) -> Any:
    """Return the integers behind a temporal column."""
    return array.cast(pa.int64())


def timestamp_texts(counts: Any, digits: int, zone: str) -> Any:
    """`2024-02-29T12:34:56.789Z` for each of the integers, 10**-digits seconds since 1970, with `zone` behind it."""
    day = _DAY_SECONDS * 10**digits
    if not all_within(counts, _FIRST_DAY * day, (_LAST_DAY + 1) * day):
        return _each(counts, lambda value: timestamp_text(value, digits, zone))
    texts = counts.cast(pa.timestamp(_UNITS[digits])).cast(pa.string())
    texts = pc.binary_replace_slice(texts, start=_DATE_CHARACTERS, stop=_DATE_CHARACTERS + 1, replacement="T")
    return pc.binary_join_element_wise(texts, zone, "") if zone else texts


def date_texts(days: Any) -> Any:
    """`2024-02-29` for each of the integers, days since 1970-01-01, in 32 bits."""
    if not all_within(days, _FIRST_DAY, _LAST_DAY + 1):
        return _each(days, date_text)
    return days.cast(pa.date32()).cast(pa.string())


def time_texts(counts: Any, digits: int) -> Any:
    """`12:34:56.789` for each of the integers, times of day in 10**-digits seconds."""
    if not all_within(counts, 0, _DAY_SECONDS * 10**digits):
        return _each(counts, lambda value: time_text(value, digits))
    kind = pa.time32 if pa.types.is_int32(counts.type) else pa.time64
    return counts.cast(kind(_UNITS[digits])).cast(pa.string())


def decimal_texts(array: Any) -> Any:
    """`12.3400` for each decimal, with as many digits after the point as the scale."""
    texts = array.cast(pa.string())
    if 0 <= array.type.scale <= _PLAIN_SCALE:
        return texts
    return _each(texts, lambda text: format(Decimal(text), "f") if "E" in text else text)


def _each(array: Any, convert: Callable[[Any], str]) -> Any:
    return pa.array([None if value is None else convert(value) for value in array.to_pylist()], pa.string())
