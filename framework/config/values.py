"""Strict conversion of single values of a file: a wrong type is never converted by guess.

`"5"` is not a number and `true` is not a number, because a file with them has another mistake as well.
The one exception is text from `${env:NAME}` or `${file:PATH}`: it can only be text, so it is parsed as
the option's type.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timezone
from typing import Any, get_args

from framework.config.option import Moment, bare_type, is_list, is_table, literals, type_text, union_members, unit_of


class SubstitutedText(str):
    """Text from a variable or a file: never shown in a message."""

    __slots__ = ()


def is_unicode(text: str) -> bool:
    """Return whether a text of the command line or the environment was UTF-8; Python keeps other bytes as surrogates."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def texts_in(value: object) -> Iterator[str]:
    """Yield the texts in a value of a file."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(item)


def with_texts(value: object, change: Callable[[str], object]) -> object:
    """Return a value of a file with each text in it changed."""
    if isinstance(value, Mapping):
        return {name: with_texts(item, change) for name, item in value.items()}
    if isinstance(value, list):
        return [with_texts(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


class InvalidValueError(ValueError):
    """The error of one value, as the end of a sentence: `must be a whole number`."""


_EXACT_FLOATS = 1 << 53
"""Whole numbers up to this one are floats without loss."""

_MAX_FLOAT = sys.float_info.max

_MAX_DIGITS = 99
"""Digits of an amount. With some hundred it is infinite, and Python refuses to read some thousand."""

_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_UNITS = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", re.ASCII)
_DURATION_ADVICE = 'must be a duration such as "5s", "10ms", "2m" or "24h", or a number of seconds'
_SIZE_ADVICE = 'must be a size such as "16MiB" or "4MB", or a whole number of bytes'
_MOMENT_ADVICE = 'must be "now", or a date such as "2024-05-31" or "2024-05-31T12:00:00Z"'


def _amount(text: str, units: Mapping[str, float]) -> float | None:
    """Return a number with a unit in the smallest unit; None for another text."""
    found = _AMOUNT.fullmatch(text.strip())
    if found is None or found[2] not in units or len(found[1]) > _MAX_DIGITS:
        return None
    return float(found[1]) * units[found[2]]


def parse_duration(value: object) -> float:
    """Return the seconds of `"5s"`, `"1.5h"`, `"10ms"`, or of a plain number of seconds.

    Raises:
        InvalidValueError: it is neither, or it is negative or not finite.
    """
    if isinstance(value, str):
        value = _amount(value, _DURATION_UNITS)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MAX_FLOAT:
        raise InvalidValueError(_DURATION_ADVICE)
    return float(value)


def parse_lasting(value: object) -> float:
    """Return the seconds of a duration, or infinity for `"forever"`.

    Raises:
        InvalidValueError: it is neither.
    """
    if isinstance(value, str) and value.strip() == "forever":
        return math.inf
    try:
        return parse_duration(value)
    except InvalidValueError as mistake:
        raise InvalidValueError(f'{mistake}, or "forever"') from None


def parse_size(value: object) -> int:
    """Return the bytes of `"16MiB"`, `"4MB"`, `"0.5GiB"`, or of a plain whole number.

    Raises:
        InvalidValueError: it is neither, or it is negative.
    """
    if isinstance(value, str):
        amount = _amount(value, _SIZE_UNITS)
        value = None if amount is None else round(amount)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidValueError(_SIZE_ADVICE)
    return value


def parse_moment(value: object) -> str:
    """Return `"now"`, or ISO 8601 text with a zone; a date alone is its first instant, and no zone means UTC.

    Raises:
        InvalidValueError: it is neither.
    """
    if isinstance(value, str):
        text = value.strip()
        if text == "now":
            return text
        try:
            # Python 3.10 does not read the Z that everybody writes.
            value = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
        except ValueError:
            raise InvalidValueError(_MOMENT_ADVICE) from None
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, datetime):
        raise InvalidValueError(_MOMENT_ADVICE)
    aware = value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)
    try:
        return aware.astimezone(timezone.utc).isoformat()
    except OverflowError:  # in UTC it is before the year 1, or after 9999
        raise InvalidValueError(_MOMENT_ADVICE) from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidValueError("must be text in quotes")
    return str(value)


def _whole_number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidValueError("must be a whole number")
    return value


def _number(value: object) -> float:
    if isinstance(value, int) and abs(value) > _EXACT_FLOATS and not isinstance(value, bool):
        return value  # to compare with: as a float it would be another number
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidValueError("must be a number")
    return float(value)


def _parsed(text: SubstitutedText) -> object:
    """Return the number or the truth value that a text says; the text when it says neither."""
    bare = text.strip().lower()
    if bare in {"true", "false"}:
        return bare == "true"
    try:
        return int(bare) if re.fullmatch(r"[+-]?\d{1,30}", bare, re.ASCII) else float(bare)
    except ValueError:
        return text


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidValueError("must be true or false")
    return value


def flat_table(value: Mapping[str, object]) -> dict[str, object]:
    """Return values by name. TOML parses dots in a bare name as nested tables; in a table of texts they belong to the name."""
    flat: dict[str, object] = {}
    for name, item in value.items():
        if isinstance(item, dict):
            flat |= {f"{name}.{inner}": text for inner, text in flat_table(item).items()}
        else:
            flat[str(name)] = item
    return flat


def _table(value: object) -> dict[str, str]:
    """Return texts by name."""
    if not isinstance(value, dict):
        raise InvalidValueError("must be a table of texts")
    flat = flat_table(value)
    if not all(isinstance(item, (str, int, float)) for item in flat.values()):
        raise InvalidValueError("must be a table of texts")
    return {name: str(item).lower() if isinstance(item, bool) else str(item) for name, item in flat.items()}


_PLAIN: Mapping[Any, Callable[[object], object]] = {
    str: _text,
    int: _whole_number,
    float: _number,
    bool: _truth,
    Any: lambda value: value,
}
_WITH_UNIT: Mapping[str, Callable[[object], object]] = {
    "duration": parse_duration,
    "lasting": parse_lasting,
    "size": parse_size,
    "moment": parse_moment,
}


def converted(value: object, kind: Any) -> object:
    """Return a value of a file as the type of its option; nothing is guessed.

    Raises:
        InvalidValueError: it is of another type.
    """
    kind = bare_type(kind)
    unit = unit_of(kind)
    if isinstance(value, SubstitutedText) and (kind in {int, float, bool} or unit is not None) and kind != Moment:
        value = _parsed(value)
    if unit is not None:
        return _WITH_UNIT[unit.name](value)
    members = union_members(kind)
    if members:
        return _any_of(value, members)
    if is_table(kind):
        return _table(value)
    if is_list(kind):
        return _items(value, get_args(kind)[0])
    return _PLAIN[kind](value) if kind in _PLAIN else _own(value, kind)


def _any_of(value: object, members: Sequence[Any]) -> object:
    mistakes: list[str] = []
    for member in members:
        try:
            return converted(value, member)
        except InvalidValueError as mistake:
            mistakes.append(str(mistake))
    raise InvalidValueError(" or ".join(mistakes))


def _items(value: object, kind: Any) -> tuple[object, ...]:
    if not isinstance(value, (list, tuple)):
        raise InvalidValueError("must be a list in square brackets")
    try:
        return tuple(converted(item, kind) for item in value)
    except InvalidValueError as mistake:
        raise InvalidValueError(f"every item {mistake}") from None


def _own(value: object, kind: Any) -> object:
    """Return a value of a type that only authors' options have: a literal, or made by a class, as an enumeration or a path."""
    given = str(value) if isinstance(value, str) else value
    for literal in literals(kind):
        if (type(given), given) == (type(literal), literal):
            return literal
    try:
        return kind(value)
    except (ArithmeticError, TypeError, ValueError):
        raise InvalidValueError(f"must be {type_text(kind)}") from None
