"""Values and patterns of the transforms' options, under the names of Iggy's connector runtime."""
# ruff: noqa: FBT003  option() is an attrs field

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from typing import Any, ClassVar
from uuid import UUID

import attrs
import xxhash
from msgspec import Raw

from framework.config.option import option
from framework.config.patterns import LimitedPattern
from framework.errors import RecordError
from framework.model.message_ids import MAX_RECORD
from framework.transform import TransformBatch, TransformContext
from framework.transforms.documents import MISSING, raw_value

_UNITS = {
    "timestamp_nanos": (10**6, 1),
    "timestamp_micros": (10**3, 1),
    "timestamp_millis": (1, 1),
    "timestamp_seconds": (1, 10**3),
}
"""Computed value -> factor and divisor of the milliseconds."""

COMPUTED = ("date_time", *_UNITS, "uuid_v4", "uuid_v7")

PATHS = "`a.b` is the field of that name at the top or, without one, `b` in the object `a`."

SLOW_SEARCH = "A record is bad if that takes longer than half a second, and another second per 20 million characters."

_RANDOM_BITS = (1 << 62) - 1
_TIME_BITS = (1 << 48) - 1


@attrs.frozen(kw_only=True)
class FieldValue:
    """The value of a field: one of the two."""

    static: Any = option(None, doc="Any JSON value.")
    computed: str | None = option(
        None,
        choices=COMPUTED,
        doc="A value of the record's object. `date_time` and `timestamp_*` are the object's last-modified time. `uuid_v4` "
        "and `uuid_v7` are made from the record's message id, so a record that is read again has the same value.",
    )

    def validate_options(self) -> Iterator[str]:
        """Yield errors for no value or two, and for a value that is no JSON."""
        if self.static is None and self.computed is None:
            yield "static: missing, and so is computed; give one of the two"
        if self.static is not None and self.computed is not None:
            yield "static: computed is there too; leave one of the two out"
        try:
            raw_value(self.static)
        except (TypeError, ValueError):
            yield "static: is no JSON value"

    @property
    def static_bytes(self) -> int:
        """The length of a static value; 0 of a computed one, which is short."""
        return len(bytes(raw_value(self.static))) if self.computed is None else 0

    def of(self, key: str) -> Computed:
        """Return the value for the records of a batch, under that key."""
        if self.computed is None:
            constant = raw_value(self.static)
            return lambda _batch, _context: constant
        if self.computed.startswith("uuid"):
            return _uuids(key, with_time=self.computed == "uuid_v7")
        return _times(self.computed)


Computed = Callable[[TransformBatch, TransformContext], "Raw | list[Raw]"]
"""Batch and object -> the value that all records have, or the value of each."""


def _modified_ms(context: TransformContext) -> int:
    """Return the object's last-modified time.

    Raises:
        RecordError: it is not known: the record comes from a dead letter, and its object is gone.
    """
    if not context.native.modified_ms:
        raise RecordError("the last-modified time of its object is not known, because the object is gone")
    return context.native.modified_ms


def _times(computed: str) -> Computed:
    def values(_batch: TransformBatch, context: TransformContext) -> Raw:
        modified_ms = _modified_ms(context)
        if computed == "date_time":
            at = datetime.fromtimestamp(modified_ms / 1000, tz=timezone.utc)
            return raw_value(at.isoformat(timespec="milliseconds"))
        factor, divisor = _UNITS[computed]
        return raw_value(modified_ms * factor // divisor)

    return values


def _uuids(key: str, *, with_time: bool) -> Computed:
    """Return UUIDs whose random bits are a hash of the field's name and the message's id."""
    name = key.encode("utf-8", "surrogatepass")

    def values(batch: TransformBatch, context: TransformContext) -> list[Raw]:
        time_ms = (_modified_ms(context) & _TIME_BITS) << 80 if with_time else 0
        version, high = (0x7000, 0x0FFF) if with_time else (0x4000, (1 << 64) - 1 - 0xF000)
        found = []
        for number in batch.numbers:
            identity = context.id_high << 64 | context.split_number << 40 | int(number) & MAX_RECORD
            chance = xxhash.xxh3_128_intdigest(identity.to_bytes(16, "little") + name)
            bits = time_ms | (chance >> 64 & high | version) << 64 | 1 << 63 | chance & _RANDOM_BITS
            found.append(Raw(b'"%s"' % str(UUID(int=bits)).encode()))
        return found

    return values


@attrs.frozen(kw_only=True)
class KeyPattern:
    """A pattern of a field's name: one of these."""

    exact: str | None = option(None, doc="The name.")
    starts_with: str | None = option(None, doc="Its beginning.")
    ends_with: str | None = option(None, doc="Its end.")
    contains: str | None = option(None, doc="A part of it.")
    regex: str | None = option(None, doc=f"A regular expression (Python's) that is found in it. {SLOW_SEARCH}")

    def validate_options(self) -> Iterator[str]:
        """Yield errors for no pattern or several, and for an invalid regular expression."""
        yield from _one_pattern(self)

    def matcher(self) -> Callable[[str], bool]:
        """Return whether a name matches."""
        name, wanted = _pattern_of(self)
        tests: dict[str, Callable[[str], bool]] = {
            "exact": lambda key: key == wanted,
            "starts_with": lambda key: key.startswith(wanted),
            "ends_with": lambda key: key.endswith(wanted),
            "contains": lambda key: wanted in key,
        }
        return _search("key_pattern", wanted) if name == "regex" else tests[name]


@attrs.frozen(kw_only=True)
class ValuePattern:
    """A pattern of a field's value: one of these. A value of another type does not match.

    Patterns without a value may be written as a text: `value_pattern = "is_null"`.
    """

    FLAGS: ClassVar[tuple[str, ...]] = (
        *("is_null", "is_not_null", "is_string", "is_number", "is_boolean", "is_object", "is_array"),
    )

    equals: Any = option(None, doc="Any JSON value.")
    contains: str | None = option(None, doc="A part of a text.")
    regex: str | None = option(None, doc=f"A regular expression (Python's) that is found in a text. {SLOW_SEARCH}")
    greater_than: float | None = option(None, doc="A number is greater.")
    less_than: float | None = option(None, doc="A number is less.")
    between: tuple[float, ...] | None = option(
        None, minimum=2, maximum=2, doc="A number is between these two, or one of them."
    )
    is_null: bool = option(False, doc="It is null. In a `filter`: or missing.")
    is_not_null: bool = option(False, doc="It is not null.")
    is_string: bool = option(False, doc="It is a text.")
    is_number: bool = option(False, doc="It is a number.")
    is_boolean: bool = option(False, doc="It is true or false.")
    is_object: bool = option(False, doc="It is an object.")
    is_array: bool = option(False, doc="It is an array.")

    def validate_options(self) -> Iterator[str]:
        """Yield errors for no pattern or several, an invalid regular expression, and a range without a number in it."""
        yield from _one_pattern(self)
        if self.between is not None and not self.between[0] <= self.between[-1]:
            yield "between: no number is in this range; give the smaller one first"

    def matcher(self) -> Callable[[Any], bool]:
        """Return whether a decoded value matches."""
        name, wanted = _pattern_of(self)
        return _value_tests(name, wanted)

    def column_matcher(self) -> Callable[[Sequence[Any]], list[bool]]:
        """Return which values of a column match; one that is `MISSING` counts as null."""
        name, wanted = _pattern_of(self)
        return _column_tests(name, wanted) or _each(_value_tests(name, wanted))


ColumnTest = Callable[[Sequence[Any]], "list[bool]"]


def _each(matches: Callable[[Any], bool]) -> ColumnTest:
    missing = matches(None)
    return lambda values: [missing if value is MISSING else matches(value) for value in values]


def _column_tests(name: str, wanted: Any) -> ColumnTest | None:
    """Return a test that needs no call for each value; None when there is none."""
    if name == "equals":
        if isinstance(wanted, bool):
            return lambda values: [value is wanted for value in values]
        return (lambda values: [value == wanted for value in values]) if type(wanted) is str else None
    tests: dict[str, ColumnTest] = {
        "greater_than": lambda values: [type(value) in _NUMBERS and value > wanted for value in values],
        "less_than": lambda values: [type(value) in _NUMBERS and value < wanted for value in values],
        "between": lambda values: [type(value) in _NUMBERS and wanted[0] <= value <= wanted[1] for value in values],
    }
    return tests.get(name)


_NUMBERS = frozenset({int, float})


def _value_tests(name: str, wanted: Any) -> Callable[[Any], bool]:
    if name == "regex":
        matches = _search("value_pattern", wanted)
        return lambda value: isinstance(value, str) and matches(value)
    plain = type(wanted) is str
    tests: dict[str, Callable[[Any], bool]] = {
        "equals": (lambda value: value == wanted) if plain else (lambda value: _equal(value, wanted)),
        "contains": lambda value: isinstance(value, str) and wanted in value,
        "greater_than": lambda value: _is_number(value) and value > wanted,
        "less_than": lambda value: _is_number(value) and value < wanted,
        "between": lambda value: _is_number(value) and wanted[0] <= value <= wanted[1],
        "is_null": lambda value: value is None,
        "is_not_null": lambda value: value is not None,
        "is_number": _is_number,
        "is_string": lambda value: isinstance(value, str),
        "is_boolean": lambda value: isinstance(value, bool),
        "is_object": lambda value: isinstance(value, dict),
        "is_array": lambda value: isinstance(value, list),
    }
    return tests[name]


def _search(option_name: str, expression: str) -> Callable[[str], bool]:
    """Return whether a regular expression is found in a text; a record in which that takes too long is bad."""
    search = LimitedPattern(expression).search

    def matches(text: str) -> bool:
        try:
            return search(text) is not None
        except TimeoutError as slow:
            raise RecordError(f"{option_name}.regex {slow}") from None

    return matches


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equal(value: Any, wanted: Any) -> bool:
    """Return whether two JSON values are the same: `true` is not 1, and 1 is 1.0."""
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    if isinstance(value, list) and isinstance(wanted, list | tuple):
        return len(value) == len(wanted) and all(map(_equal, value, wanted))
    if isinstance(value, dict) and isinstance(wanted, dict):
        return value.keys() == wanted.keys() and all(_equal(value[name], wanted[name]) for name in value)
    return bool(value == wanted)


def choice_errors(names: Sequence[str], given: Sequence[str]) -> Iterator[str]:
    """Yield errors for several options, or none, where one of these names must be given."""
    if not given:
        yield f"{names[0]}: missing; give one of {', '.join(names)}"
    for name in given[1:]:
        yield f"{name}: {given[0]} is there too; leave one of the two out"


def _given(pattern: Any) -> list[tuple[str, Any]]:
    """Return the patterns that the configuration gives, of all that there are."""
    values = [(field.name, getattr(pattern, field.name)) for field in attrs.fields(type(pattern))]
    return [(name, value) for name, value in values if value is not None and (value is not False or name == "equals")]


def _pattern_of(pattern: Any) -> tuple[str, Any]:
    (found,) = _given(pattern)
    return found


def _one_pattern(pattern: Any) -> Iterator[str]:
    given = _given(pattern)
    yield from choice_errors([field.name for field in attrs.fields(type(pattern))], [name for name, _ in given])
    for name, value in given:
        if name == "regex":
            try:
                LimitedPattern(value)
            except ValueError as error:
                yield f"regex: is no regular expression: {error}"
