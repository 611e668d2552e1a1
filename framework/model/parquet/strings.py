"""How long the strings of a Parquet page can be that stand in a dictionary, or repeat the string before them."""

from __future__ import annotations

import struct

from framework.model.parquet.page_headers import PageHeader, PagesError, Thrift

_LENGTH = struct.Struct("<I")
_MAX_DELTA_PAGE_BYTES = 1 << 26
"""Of a page of lists of strings in DELTA_BYTE_ARRAY, whose lengths are added up; usual pages have 1 MiB."""
_MAX_DELTA_BITS = 32
_DELTAS_AT_ONCE = 1 << 16
"""A multiple of 8, so that each part begins with a byte. Usual writers have 32 in a miniblock."""
_MAX_SHORT_WORDS_BYTES = 1 << 22
"""Of a dictionary page whose strings are found at once, which takes ten times as much memory; usual pages have 1 MiB."""


class ListStringsError(PagesError):
    """A list could take too many long strings from a dictionary, unless they are left in it."""


def _decompressed(packed: bytes | memoryview, size: int, codec: str) -> bytes | None:
    """Return the bytes of a page; None if it cannot be decompressed, which pyarrow cannot either."""
    import pyarrow as pa  # noqa: PLC0415 - 50 MB, only for Parquet

    try:
        return (
            bytes(packed) if codec == "UNCOMPRESSED" else pa.Codec(codec.lower()).decompress(packed, size, asbytes=True)
        )
    except (ValueError, OSError, NotImplementedError):
        return None


def repeated_bytes(packed: bytes | memoryview, page: PageHeader, codec: str) -> int:
    """Return how many bytes the strings of a page in DELTA_BYTE_ARRAY take from the strings before them.

    The values begin with the lengths of these parts (Parquet's Encodings.md, "Delta Strings"), behind the levels.
    """
    if page.unpacked > _MAX_DELTA_PAGE_BYTES:
        raise ListStringsError(
            f"a page of lists of strings has {page.unpacked:,} bytes, more than {_MAX_DELTA_PAGE_BYTES:,}"
        )
    if not page.levels_are_runs:
        raise PagesError("a page of lists has levels in an encoding that no writer uses for them")
    levels = page.levels
    if levels is None:
        values = _decompressed(packed, page.unpacked, codec)
        for _ in ("repetition levels", "definition levels") if values is not None else ():
            assert values is not None
            if len(values) < _LENGTH.size:
                return 0
            values = values[_LENGTH.size + _LENGTH.unpack_from(values)[0] :]
    else:
        values = _decompressed(packed[levels:], page.unpacked - levels, codec if page.is_packed else "UNCOMPRESSED")
    if not values:
        return 0
    try:
        return _sum_of_deltas(values, page.values)
    except (IndexError, ValueError, ZeroDivisionError):
        return 0  # damaged: pyarrow says so


def _sum_of_deltas(data: bytes, most: int) -> int:
    """Return the sum of the first `most` numbers in DELTA_BINARY_PACKED (Parquet's Encodings.md, "Delta Encoding")."""
    import numpy as np  # noqa: PLC0415 - loaded when used

    numbers = Thrift(data)  # its numbers are coded alike
    block, minis, count = numbers.unsigned(), numbers.unsigned(), numbers.unsigned()
    size, value = block // minis, numbers.signed()
    left, total = min(count, most), 0
    if left > 0:
        total, left = max(0, value), left - 1
    while left > 0:
        least = numbers.signed()
        widths, numbers.at = data[numbers.at : numbers.at + minis], numbers.at + minis
        if len(widths) < minis:
            raise IndexError
        for width in widths:
            if left <= 0:
                break
            here, left = min(size, left), left - size
            if width > _MAX_DELTA_BITS:
                raise ValueError(width)
            packed = np.frombuffer(data, np.uint8, size * width // 8, numbers.at)
            numbers.at += len(packed)
            for at in range(0, here, _DELTAS_AT_ONCE):
                some = min(_DELTAS_AT_ONCE, here - at)
                if width:
                    bits = np.unpackbits(packed[at * width // 8 :], count=some * width, bitorder="little")
                    deltas = bits.reshape(some, width) @ (1 << np.arange(width, dtype=np.int64)) + least
                else:
                    deltas = np.full(some, least, np.int64)
                values = deltas.cumsum() + value
                value = int(values[-1])
                total += int(np.maximum(values, 0).sum())
    return total


def longest_word(packed: bytes | memoryview, page: PageHeader, codec: str) -> int:
    """Return the length of the longest string of a dictionary page, or the page size if it cannot be decompressed."""
    size = page.unpacked
    data = _decompressed(packed, size, codec)
    if data is None:
        return size
    if len(data) <= _MAX_SHORT_WORDS_BYTES and (found := _longest_short_word(data)) is not None:
        return found
    longest = at = 0
    last = len(data) - _LENGTH.size
    for _ in range(page.values):  # pyarrow reads no more of them
        if at > last:
            break
        (length,) = _LENGTH.unpack_from(data, at)
        if length > longest:  # noqa: PLR1730 - `max` takes twice the time
            longest = length
        at += _LENGTH.size + length
    return min(longest, size)


def _longest_short_word(data: bytes) -> int | None:
    """Return the same at once, where all strings are short text; else None.

    Their lengths end with three zeros, which text does not have. Of three zeros in a row exactly two lie in one number
    of two bytes. If each place of a length follows from the one before it, these are all strings there are.
    """
    import numpy as np  # noqa: PLC0415 - loaded when used

    held = np.frombuffer(data, np.uint8)
    zeros = 2 * np.flatnonzero(np.frombuffer(data, np.uint16, len(data) // 2) == 0)
    if not len(zeros) or not zeros[0] or zeros[-1] + _LENGTH.size > len(data):
        return None
    at = zeros - 1 - (held[zeros - 1] == 0)  # the first byte of each length
    lengths = held[at]
    ends = at + _LENGTH.size + lengths
    if at[0] or ends[-1] != len(data) or (ends[:-1] != at[1:]).any() or held[at + 3].any():
        return None
    return int(lengths.max())
