"""Values of docs/reference/record-json.md that Avro and Parquet share, by Python's calendar."""

import datetime as dt

_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_ERA_DAYS = 146_097
"""Days in 400 years of the Gregorian calendar."""
_FIRST_DAY = 719_162
"""0001-01-01, in days before 1970."""


def float_value(value):
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(str(value), value)


def date(days):
    eras, day = divmod(days + _FIRST_DAY, _ERA_DAYS)
    found = dt.date.fromordinal(day + 1)
    year = found.year + 400 * eras
    return f"{year:04d}{found:-%m-%d}" if 0 < year < 10_000 else f"{year:+05d}{found:-%m-%d}"


def clock(value, unit):
    if value < 0:
        return "-" + clock(-value, unit)
    seconds, tail = _seconds(value, unit)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{tail}"


def timestamp(value, unit, zone=""):
    days, rest = divmod(value, 86_400 * 10 ** _DIGITS[unit])
    return f"{date(days)}T{clock(rest, unit)}{zone}"


def elapsed(value, unit):
    seconds, tail = _seconds(abs(value), unit)
    return f"{'-' if value < 0 else ''}PT{seconds}{tail}S"


def _seconds(value, unit):
    seconds, fraction = divmod(value, 10 ** _DIGITS[unit])
    return seconds, f".{fraction:0{_DIGITS[unit]}d}" if _DIGITS[unit] else ""


def interval(value):
    names = ("months", "days", "milliseconds")
    return {name: int.from_bytes(value[4 * at : 4 * at + 4], "little") for at, name in enumerate(names)}
