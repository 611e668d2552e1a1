"""The kinds of Iggy's headers, for a value whose kind its Python type does not tell: an int32, a float32."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

_INTEGERS: Mapping[str, tuple[int, int]] = {
    "int8": (4, 1),
    "int16": (5, 2),
    "int32": (6, 4),
    "int64": (7, 8),
    "int128": (8, 16),
    "uint8": (9, 1),
    "uint16": (10, 2),
    "uint32": (11, 4),
    "uint64": (12, 8),
    "uint128": (13, 16),
}
"""Name -> number and bytes."""

_FLOATS: Mapping[str, tuple[int, str]] = {"float32": (14, "<f"), "float64": (15, "<d")}

NUMBER_KINDS = (*_INTEGERS, *_FLOATS)
"""Names of the kinds of numbers."""


class HeaderNumber(NamedTuple):
    """A number of a certain kind.

    Attributes:
        kind: Iggy's number of the kind.
        data: the value, little-endian.
    """

    kind: int
    data: bytes


def header_number(kind: str, value: float) -> HeaderNumber:
    """Return a number as that kind stores it.

    Args:
        kind: one of `NUMBER_KINDS`.
        value: the number.

    Raises:
        ValueError: the kind cannot hold it.
    """
    if kind in _INTEGERS:
        code, size = _INTEGERS[kind]
        if value != int(value):
            raise ValueError(f"{kind} holds whole numbers")
        try:
            return HeaderNumber(code, int(value).to_bytes(size, "little", signed=not kind.startswith("u")))
        except OverflowError:
            raise ValueError(f"{kind} has {size * 8} bits") from None
    code, form = _FLOATS[kind]
    try:
        return HeaderNumber(code, struct.pack(form, value))
    except OverflowError:
        raise ValueError(f"{kind} cannot hold it") from None
