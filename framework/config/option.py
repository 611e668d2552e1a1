"""An option of a configuration: its default, range, choices and meaning, declared once where the value lives.

    @attrs.frozen(kw_only=True)
    class DemoSection:
        bucket: str = option(doc="Bucket to read.")
        page_size: int = option(1000, minimum=1, maximum=1000, doc="Keys a listing request asks for.", unit="keys")
        password: str | None = option(None, secret=True, doc="Password.")

The loader checks what is declared here, and the reference page is written from it. A secret is a plain `str` whose
place in every repr reads `***`; `attrs.asdict` still gives the value, so never log that.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import attrs

_METADATA_KEY = "framework.option"


@attrs.frozen
class Unit:
    """Marks a type that also has a text form in the file.

    Attributes:
        name: what the text form holds: `duration`, `lasting`, `size` or `moment`.
        text: how the type is called in messages and in the reference.
    """

    name: str
    text: str


Seconds = Annotated[float, Unit("duration", "duration")]
"""A duration: `"5s"`, `"10ms"`, `"2m"`, `"24h"`, `"7d"` or a number of seconds in the file; seconds in the program."""

SecondsOrForever = Annotated[float, Unit("lasting", 'duration or "forever"')]
"""A duration, or `"forever"`, which is infinite in the program."""

Bytes = Annotated[int, Unit("size", "size")]
"""A size: `"16MiB"`, `"4MB"` or a number of bytes in the file; bytes in the program."""

Moment = Annotated[str, Unit("moment", "date")]
"""`"now"`, or a date with or without a time (UTC when it names no zone); `"now"` or ISO 8601 text in the program."""


@attrs.frozen(kw_only=True)
class OptionMetadata:
    """The arguments of `option()`, kept as metadata of the attribute."""

    doc: str
    secret: bool = False
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] | None = None
    unit: str = ""
    former_names: Mapping[str, str] = attrs.field(factory=dict)
    former_values: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Option:
    """One option as messages and the reference show it.

    Attributes:
        name: the key in the file.
        type: the type, with `Annotated` and `| None` kept.
        type_text: the same in words: `text`, `whole number`, `duration`.
        default: the default value, or `attrs.NOTHING` for a required option.
        metadata: range, choices, meaning.
    """

    name: str
    type: Any
    type_text: str
    default: Any
    metadata: OptionMetadata

    @property
    def required(self) -> bool:
        """Whether a file must name it."""
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
    former_names: Mapping[str, str] | None = None,
    former_values: Mapping[str, str] | None = None,
) -> Any:
    """An attrs field that the loader checks and the reference page documents.

    Args:
        default: the value when the file names none; the option is required without it. A list becomes a tuple.
        doc: what it does, for users: short, one or more whole sentences.
        secret: `***` in every repr and message.
        minimum: smallest number, inclusive; of a duration in seconds, of a size in bytes, of a list its length.
        maximum: largest number, inclusive; the same.
        choices: the texts that are allowed.
        unit: what a plain number counts, for the reference.
        former_names: names that it had once -> what to tell their users. They work and warn.
        former_values: names that a choice had once -> its name now. They work and warn.
    """
    metadata = OptionMetadata(
        doc=doc,
        secret=secret,
        minimum=minimum,
        maximum=maximum,
        choices=None if choices is None else tuple(choices),
        unit=unit,
        former_names=dict(former_names or {}),
        former_values=dict(former_values or {}),
    )
    if isinstance(default, list):
        default = tuple(default)
    shown: Any = _hidden if secret else True
    return attrs.field(default=default, repr=shown, metadata={_METADATA_KEY: metadata})


def options_of(cls: type) -> tuple[Option, ...]:
    """The options of a section class, in the order of its fields; fields without `option()` are omitted."""
    kinds = _kinds(cls)
    found: list[Option] = []
    for field in attrs.fields(cls):
        metadata = field.metadata.get(_METADATA_KEY)
        if metadata is None:
            continue
        kind, text = kinds[field.name]
        default = field.default
        if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
            default = default.factory()
        found.append(Option(name=field.name, type=kind, type_text=text, default=default, metadata=metadata))
    return tuple(found)


@functools.cache
def _kinds(cls: type) -> dict[str, tuple[Any, str]]:
    """Field -> its type, and the type in words. Cached: it takes longer than the rest of a configuration."""
    hints = get_type_hints(cls, include_extras=True)
    names = [field.name for field in attrs.fields(cls) if _METADATA_KEY in field.metadata]
    return {name: (hints[name], type_text(hints[name])) for name in names}


_PLAIN_TEXTS = {str: "text", int: "whole number", float: "number", bool: "true or false", bytes: "text"}


def type_text(kind: Any) -> str:
    """The type in words a user knows: `text`, `whole number`, `list of texts`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        units = [extra for extra in arguments[1:] if isinstance(extra, Unit)]
        return units[0].text if units else type_text(arguments[0])
    if origin in (list, tuple, Sequence):
        return f"list of {type_text(arguments[0])}s"
    if origin in (dict, Mapping):
        return "table of texts"
    if origin is Union or (origin is not None and origin.__name__ == "UnionType"):
        return " or ".join(type_text(argument) for argument in arguments if argument is not type(None))
    return _PLAIN_TEXTS.get(kind, getattr(kind, "__name__", str(kind)))


def _hidden(value: object) -> str:
    if isinstance(value, Mapping):
        return repr(dict.fromkeys(value, "***"))
    return "***" if value else repr(value)
