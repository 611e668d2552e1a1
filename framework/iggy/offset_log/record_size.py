"""The size of a record: Iggy stores messages of 64 MB, and a start reads records that unpack to 256 MiB.

What can grow is counted in characters: a character takes up to 4 bytes as UTF-8, or 12 where it is escaped. What would be
too much for one record is divided over several.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from framework.model.positions import OffsetManagerEntry

T = TypeVar("T")

MAX_CHARACTERS = 8_000_000
"""Characters of a record, besides those of its last value: up to 32 MB as UTF-8, and 96 MB with every character escaped."""

ROW_CHARACTERS = 200
"""Characters that a row takes at most besides its names: its numbers."""

COUNT_CHARACTERS = 50
"""Characters of a count in the record of a partition."""


def entry_characters(entry: OffsetManagerEntry) -> int:
    """Return how many characters the names and the data of a position have."""
    return len(entry.key) + len(entry.version) + (extra_characters(entry.extra) if entry.extra else 0)


def extra_characters(extra: Mapping[str, Any]) -> int:
    """Return how many characters the data of a subclass has."""
    return sum(len(name) + len(str(value)) for name, value in extra.items())


def batches(values: Iterable[T], characters_of: Callable[[T], int], most: int | None = None) -> Iterator[list[T]]:
    """Yield the values in batches for a record each.

    Args:
        values: the values, in order.
        characters_of: returns how many characters a value takes.
        most: maximum number of values in a batch; None: any number.
    """
    batch: list[T] = []
    characters = 0
    for value in values:
        if characters >= MAX_CHARACTERS or len(batch) == most:
            yield batch
            batch, characters = [], 0
        batch.append(value)
        characters += characters_of(value)
    if batch:
        yield batch


def spread(
    columns: Mapping[str, Collection[Any]], characters_of: Callable[[str, Any], int]
) -> list[dict[str, list[Any]]]:
    """Return the values of all columns in groups for a record each, in order; at least one group, perhaps of nothing.

    Args:
        columns: name -> values.
        characters_of: returns how many characters a value of a column takes.
    """
    groups: list[dict[str, list[Any]]] = []
    rows = ((name, value) for name, values in columns.items() for value in values)
    for batch in batches(rows, lambda row: characters_of(*row)):
        group: dict[str, list[Any]] = {name: [] for name in columns}
        for name, value in batch:
            group[name].append(value)
        groups.append(group)
    return groups or [{name: [] for name in columns}]
