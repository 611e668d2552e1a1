"""Options of a configuration: default, range, choices and documentation, declared once, beside the attribute.

    @attrs.frozen(kw_only=True)
    class DemoSection:
        bucket: str = option(doc="Bucket to read.")
        page_size: int = option(1000, minimum=1, maximum=1000, doc="Keys per listing request.", unit="keys")
        password: str | None = option(None, secret=True, doc="Password.")

The loader checks the declarations, and the reference page is generated from them. A secret is a plain
`str` that every repr shows as `***`. `attrs.asdict` still returns the value, so never log that.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import attrs

from framework.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
_METADATA_KEY = "framework.option"
_UNDECORATED: type = type(attrs.field())
"""What an option is until attrs has made its class."""


@attrs.frozen
class Unit:
    """Marks a type that also has a text form in the file.

    Attributes:
        name: the text form: `duration`, `lasting`, `size` or `moment`.
        text: name of the type in messages and in the reference.
    """

    name: str
    text: str


Seconds = Annotated[float, Unit("duration", "duration")]
"""A duration in the file: `"5s"`, `"10ms"`, `"2m"`, `"24h"`, `"7d"` or a number of seconds. Seconds in the program."""

SecondsOrForever = Annotated[float, Unit("lasting", 'duration or "forever"')]
"""A duration, or `"forever"`, which is infinite in the program."""

Bytes = Annotated[int, Unit("size", "size")]
"""A size: `"16MiB"`, `"4MB"` or a number of bytes in the file; bytes in the program."""

Moment = Annotated[str, Unit("moment", "date")]
"""`"now"`, or a date with or without a time (UTC when it names no zone); `"now"` or ISO 8601 text in the program."""


@attrs.frozen(kw_only=True)
class Option:
    """An option, as messages and the reference show it: what `option()` was given, with the name and the type.

    Attributes:
        name: the key in the file.
        type: the type, with `Annotated` and `| None` kept.
        type_text: the type in words: `text`, `whole number`, `duration`.
        default: the default value, or `attrs.NOTHING` for a required option; not to be changed.
    """

    name: str
    type: Any
    type_text: str
    default: Any
    doc: str
    secret: bool
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...] | None
    unit: str
    example: object
    former_names: Mapping[str, str]
    former_values: Mapping[str, str]

    @property
    def required(self) -> bool:
        """Whether a file must contain it."""
        return self.default is attrs.NOTHING


def option(
    default: Any = attrs.NOTHING,
    *,
    doc: str,
    secret: bool = False,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[str] | None = None,
    unit: str = "",
    example: object = None,
    former_names: Mapping[str, str] | None = None,
    former_values: Mapping[str, str] | None = None,
) -> Any:
    """Return an attrs field that the loader checks and the reference page documents.

    Args:
        default: the value when the file has none; the option is required without it. A list becomes a
            tuple.
        doc: documentation for users: short, one or more whole sentences.
        secret: `***` in every repr and message.
        minimum: minimum, inclusive; of a duration in seconds, of a size in bytes, of a list its length.
        maximum: maximum, inclusive; the same.
        choices: the allowed texts.
        unit: the unit of a plain number, for the reference.
        example: the value in a new file (`config init`); without one the option is commented out there.
        former_names: former names -> additional advice for their users. They work and warn.
        former_values: former names of choices -> their present names. They work and warn.
    """
    made = functools.partial(
        Option,
        doc=doc,
        secret=secret,
        minimum=minimum,
        maximum=maximum,
        choices=None if choices is None else tuple(choices),
        unit=unit,
        example=example,
        former_names=dict(former_names or {}),
        former_values=dict(former_values or {}),
    )
    if isinstance(default, list):
        default = tuple(default)
    shown: Any = _hidden if secret else True
    return attrs.field(default=default, repr=shown, metadata={_METADATA_KEY: made})


def _cached(function: F) -> F:
    """`functools.cache`, by whose types a class is not hashable."""
    return cast("F", functools.cache(function))


@_cached
def options_of(cls: type) -> tuple[Option, ...]:
    """Return the options of a section class, in field order; tables without `option()`, and `init=False`, are omitted.

    Cached: a configuration asks several times, and the types take longer than the rest of it.

    Raises:
        ConfigError: another field has no `option()`, or the class is no attrs class.
    """
    bare = [name for name, value in vars(cls).items() if isinstance(value, _UNDECORATED)]
    if bare:
        raise ConfigError(
            f"{cls.__qualname__}: its option {bare[0]} counts only with @attrs.frozen(kw_only=True) above the class"
        )
    hints = get_type_hints(cls, include_extras=True)
    found: list[Option] = []
    for field in attrs.fields(cls):
        make = field.metadata.get(_METADATA_KEY)
        if make is not None:
            made = isinstance(field.default, attrs.Factory)  # type: ignore[arg-type]
            default = field.default.factory() if made else field.default
            kind = bare_type(hints[field.name])
            found.append(make(name=field.name, type=kind, type_text=type_text(kind), default=default))
        elif field.init and table_class(hints[field.name]) is None:
            raise ConfigError(
                f'{cls.__qualname__}: its field {field.name} is no option: write {field.name}: ... = option(..., doc="..."), '
                "or attrs.field(init=False)"
            )
    return tuple(found)


@_cached
def sections_of(cls: type) -> Mapping[str, type]:
    """Return the sections of a root class by name: `iggy`, and `iggy.tls` for a section inside another."""
    found: dict[str, type] = {}
    for name, section in subsections_of(cls).items():
        found[name] = section
        found |= {f"{name}.{inner}": kind for inner, kind in sections_of(section).items()}
    return found


@_cached
def subsections_of(cls: type) -> Mapping[str, type]:
    """Return the sections directly inside a root class or a section: field name -> class."""
    hints = get_type_hints(cls)
    return {
        field.name: hints[field.name]
        for field in attrs.fields(cls)
        if _METADATA_KEY not in field.metadata and attrs.has(hints[field.name])
    }


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the most similar known name; None when none is similar."""
    lower = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower().replace("-", "_"), lower, n=1, cutoff=0.6)
    return lower[found[0]] if found else None


_PLAIN_TEXTS = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    bytes: "text",
    Any: "any value",
}


def bare_type(kind: Any) -> Any:
    """Return the type of a value: without a name of its own (`NewType`), and without marks that are no unit."""
    while hasattr(kind, "__supertype__") or (get_origin(kind) is Annotated and unit_of(kind) is None):
        kind = kind.__supertype__ if hasattr(kind, "__supertype__") else get_args(kind)[0]
    return kind


def union_members(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union without None; empty for another type."""
    origin = get_origin(kind)
    is_union = origin is Union or (origin is not None and origin.__name__ == "UnionType")
    return tuple(member for member in get_args(kind) if member is not type(None)) if is_union else ()


def unit_of(kind: Any) -> Unit | None:
    """Return the unit of a type; None without one."""
    extras = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    return next((extra for extra in extras if isinstance(extra, Unit)), None)


def is_list(kind: Any) -> bool:
    """Return whether the type is a list."""
    return get_origin(kind) in {list, tuple, Sequence}


def table_class(kind: Any) -> type | None:
    """Return the class of a table, or of the tables in a list; None for another type."""
    item = get_args(kind)[0] if is_list(kind) else kind
    members = union_members(item)
    item = members[0] if len(members) == 1 else item
    return item if isinstance(item, type) and attrs.has(item) else None


def literals(kind: Any) -> tuple[Any, ...]:
    """Return the values of a `Literal`; empty for another type."""
    return get_args(kind) if get_origin(kind) is Literal else ()


def is_table(kind: Any) -> bool:
    """Return whether the type is a table of texts."""
    return get_origin(kind) in {dict, Mapping}


def type_text(kind: Any) -> str:
    """Return the type in words that users know: `text`, `whole number`, `list of texts`."""
    kind = bare_type(kind)
    unit = unit_of(kind)
    if unit is not None:
        return unit.text
    members = union_members(kind)
    if members:
        return " or ".join(map(type_text, members))
    if is_list(kind):
        return f"list of {type_text(get_args(kind)[0])}s"
    if is_table(kind):
        return "table of texts"
    if literals(kind):
        return " or ".join(f'"{value}"' if isinstance(value, str) else f"{value}" for value in literals(kind))
    return "table" if table_class(kind) else _PLAIN_TEXTS.get(kind, getattr(kind, "__name__", str(kind)))


def _hidden(value: object) -> str:
    if isinstance(value, Mapping):
        return repr(dict.fromkeys(value, "***"))
    return "***" if value else repr(value)
