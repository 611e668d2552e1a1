"""Projection: the columns that `input.columns` names, found among those of a file.

A name is that of a column at the top, or a dotted path to a field of a record inside it: `b.c`. Lists are transparent,
so `items.sku` is the field `sku` of each element. A name of a record means all of it. Paths do not lead into maps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from functools import cached_property

import attrs

from framework.errors import CorruptObjectError

Choice = dict[int, "Choice | None"]
"""Place among the fields -> the chosen fields inside, None for all of it. In the file's order."""

_SHOWN = 30
_COMPARED = 3
"""Missing columns for which similar names are looked up: among 30,000 names each takes a tenth of a second."""

_NAME_CHARACTERS = 100


@attrs.frozen
class Field:
    """A column, or a field of a record.

    Attributes:
        name: its name.
        inside: returns the fields of the record that it is, or holds in lists; none for anything else.
    """

    name: str
    inside: Callable[[], Sequence[Field]]

    @cached_property
    def fields(self) -> _Fields:
        """What is inside, to be found by name."""
        return _Fields(self.inside())


class _Fields:
    """Fields side by side, found by name: a file may have thousands, and so may the option."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self._by_name: dict[str, list[tuple[int, Field]]] = {}
        for place, field in enumerate(fields):
            self._by_name.setdefault(field.name, []).append((place, field))

    def add(self, choice: Choice, path: str) -> bool:
        """Add what a path names; return whether there is such a field."""
        found = False
        for place, _ in self._by_name.get(path, ()):
            choice[place] = None
            found = True
        for dot in _dots(path):
            for place, field in self._by_name.get(path[:dot], ()):
                known = choice.get(place, {})
                inner: Choice = {} if known is None else known
                if field.fields.add(inner, path[dot + 1 :]):
                    choice[place] = None if known is None else inner
                    found = True
        return found


def _dots(path: str) -> Iterator[int]:
    return (place for place, character in enumerate(path) if character == ".")


def nothing_inside() -> Sequence[Field]:
    """Return no fields: of a column that is no record."""
    return ()


def choose(columns: Sequence[str], fields: Sequence[Field], *, listed: bool = True) -> Choice:
    """Return the chosen fields.

    Args:
        columns: the names.
        fields: the columns of the file.
        listed: whether the error may name all columns that exist; False where they may be data.

    Raises:
        CorruptObjectError: a column does not exist. It names those that do.
    """
    choice: Choice = {}
    known = _Fields(fields)
    missing = [column for column in columns if not known.add(choice, column)]
    if missing:
        names = _names(iter(missing))
        existing = _listed(fields, missing[0]) if listed else _near(fields, missing)
        raise CorruptObjectError(f"it has no column {names} ([input] columns); {existing}")
    return _in_order(choice)


def _in_order(choice: Choice) -> Choice:
    return {place: None if (inner := choice[place]) is None else _in_order(inner) for place in sorted(choice)}


def _listed(fields: Sequence[Field], missing: str) -> str:
    """Return the names beside the missing one: those inside the record that its path leads to."""
    prefix = ""
    while (record := _record_of(fields, missing)) is not None:
        fields, missing, prefix = record.inside(), missing[len(record.name) + 1 :], f"{prefix}{record.name}."
    if not fields:
        return "it has no columns"
    return f"it has {_names(f'{prefix}{field.name}' for field in fields)}"


def _record_of(fields: Sequence[Field], path: str) -> Field | None:
    return next((field for field in fields if path.startswith(f"{field.name}.") and field.inside()), None)


def _near(fields: Sequence[Field], missing: Sequence[str]) -> str:
    names = [field.name for field in fields]
    near = [name for column in missing[:_COMPARED] for name in get_close_matches(column, names, n=3)]
    return f"it has {len(names)}" + (f", among them {_names(iter(dict.fromkeys(near)))}" if near else "")


def _names(names: Iterator[str]) -> str:
    shown: list[str] = []
    for name in names:
        if len(shown) == _SHOWN:
            return f"{', '.join(shown)} and more"
        shown.append(ascii(name[:_NAME_CHARACTERS]))
    return ", ".join(shown)
