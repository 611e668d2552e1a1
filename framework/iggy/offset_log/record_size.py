"""The size of a record: Iggy stores messages of 64 MB, and a start reads records that unpack to 256 MiB.

What would be too much for one record is divided over several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from framework.iggy.offset_log import framing

T = TypeVar("T")

MAX_ROWS = 5000
"""Positions or other rows of a record: about a megabyte, encoded in a few hundredths of a second."""

MAX_BYTES = 16 << 20
"""Bytes of an unpacked record of more than one row."""


def divided(
    rows: Sequence[T], encode: Callable[[Sequence[T]], bytes], begins: Callable[[T], bool] = lambda _: True
) -> Iterator[bytes]:
    """Yield the messages of some rows, usually one: halves, where it would be too large. None of no rows.

    Args:
        rows: the rows, in order.
        encode: returns the message of some of them.
        begins: whether a message may begin with this row.
    """
    message = encode(rows) if len(rows) <= MAX_ROWS else None
    if message is None or is_too_large(message):
        borders = [at for at in range(1, len(rows)) if begins(rows[at])]
        if borders:
            middle = min(borders, key=lambda at: abs(2 * at - len(rows)))
            yield from divided(rows[:middle], encode, begins)
            yield from divided(rows[middle:], encode, begins)
            return
    if rows:
        yield message or encode(rows)


def is_too_large(message: bytes) -> bool:
    """Return whether a message of several rows is to be divided."""
    return framing.unpacked_bytes(message) > MAX_BYTES


def rows_of(values: object, names: Iterable[str]) -> list[tuple[str, Any]]:
    """Return what these attributes hold as rows, each with the name of its attribute."""
    columns = {name: getattr(values, name) for name in names}
    items = {name: column.items() if isinstance(column, Mapping) else column for name, column in columns.items()}
    return [(name, row) for name, column in items.items() for row in column]


def columns_of(rows: Iterable[tuple[str, Any]], maps: Iterable[str], lists: Iterable[str] = ()) -> dict[str, Any]:
    """The inverse of `rows_of`: return the attributes, those without a row empty."""
    columns: dict[str, list[Any]] = {name: [] for name in (*maps, *lists)}
    for name, row in rows:
        columns[name].append(row)
    return {name: column if name in lists else dict(column) for name, column in columns.items()}
