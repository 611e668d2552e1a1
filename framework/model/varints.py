"""Numbers of varying length, as Avro, Protobuf and Thrift write them: seven bits in a byte, the lowest first."""

from __future__ import annotations

_MAX_BITS = 63


def varint_at(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the number that begins at a place, and the place behind it.

    Raises:
        IndexError: the data ends in it.
        OverflowError: it has more than ten bytes.
    """
    value = shift = 0
    while (byte := data[at]) > 0x7F:  # noqa: PLR2004
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > _MAX_BITS:
            raise OverflowError("a number has more than ten bytes")
    return value | byte << shift, at + 1


def signed_at(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the same for a number in zigzag form. Most have one byte, which takes one call.

    Raises:
        IndexError, OverflowError: as `varint_at`.
    """
    number, end = data[at], at + 1
    if number > 0x7F:  # noqa: PLR2004
        number, end = varint_at(data, at)
    return number >> 1 ^ -(number & 1), end


def signed(number: int) -> int:
    """Return the number that another stands for in zigzag form."""
    return number >> 1 ^ -(number & 1)
