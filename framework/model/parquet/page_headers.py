"""The headers of a Parquet file's pages, and the size of its footer: Thrift's compact protocol (parquet.thrift)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import attrs
from typing_extensions import override

from framework.model.varints import signed, varint_at


class PagesError(Exception):
    """Pages exceed the limit, or a page header is invalid. Never leaves this package."""


@attrs.frozen(slots=True)
class PageHeader:
    """A page header.

    Attributes:
        size: its own length.
        kind: the page's.
        unpacked: bytes of the page, uncompressed.
        packed: the same, compressed.
        values: number of values.
        encoding: of the values.
        levels: bytes of the levels before the values, outside of the compression; None: inside, behind their lengths.
        levels_are_runs: whether the levels are run lengths.
        is_packed: whether the values are compressed at all.
    """

    size: int
    kind: int
    unpacked: int
    packed: int
    values: int
    encoding: int
    levels: int | None = None
    levels_are_runs: bool = True
    is_packed: bool = True


def page_header(data: bytes | memoryview) -> PageHeader:
    """Read a page header (parquet.thrift), in Thrift's compact protocol.

    Raises:
        IndexError: the data ends before the header does.
        PagesError: the data is no page header.
    """
    thrift = Thrift(data)
    numbers: dict[int, int] = {}
    of, inner = 0, dict[int, int]()
    try:
        for field, kind in thrift.fields():
            if kind == _I32:
                numbers[field] = thrift.signed()
            elif field in _ENCODINGS and kind == _STRUCT:
                of, inner = field, thrift.numbers()
            else:
                thrift.skip(kind)
    except RecursionError:
        raise PagesError("a page header is nested too deeply") from None
    if thrift.at > len(data):
        raise IndexError
    return PageHeader(
        size=thrift.at,
        kind=numbers.get(1, -1),
        unpacked=numbers.get(2, -1),
        packed=numbers.get(3, -1),
        values=inner.get(1, 0),
        encoding=inner.get(_ENCODINGS.get(of, 0), 0),
        levels=sum(max(0, inner.get(field, 0)) for field in _LEVEL_LENGTHS) if of == _DATA_V2 else None,
        levels_are_runs=of != _DATA_V1 or all(inner.get(field) == _RLE for field in _LEVEL_ENCODINGS),
        is_packed=of != _DATA_V2 or inner.get(_IS_COMPRESSED, 1) == 1,
    )


def count_parts(footer: bytes, most: int) -> int:
    """Return the number of structs in lists of a footer (FileMetaData of parquet.thrift), or a number above `most`.

    What is no footer counts up to where it is wrong: pyarrow parses no further.
    """
    if footer.count(b"\0") <= most:  # each struct ends with a zero
        return 0
    thrift = _PartCounter(footer, most)
    with suppress(IndexError, PagesError, RecursionError):
        thrift.skip(_STRUCT)
    return thrift.parts


_ENCODINGS = {5: 2, 7: 2, 8: 4}
"""Header field -> its field of the encoding (data, dictionary, data v2); field 1 is the value count."""
_DATA_V1, _DATA_V2 = 5, 8
_LEVEL_ENCODINGS, _LEVEL_LENGTHS, _IS_COMPRESSED = (3, 4), (5, 6), 7
"""Fields of the headers of data pages, version 1 and 2."""
_RLE, DELTA_BYTE_ARRAY = 3, 7
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)


class Thrift:
    """Decodes the compact protocol; an offset beyond the data raises IndexError."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = data
        self.at = 0

    def unsigned(self) -> int:
        """Return the next number without a sign."""
        try:
            number, self.at = varint_at(self._data, self.at)
        except OverflowError:
            raise PagesError("a page header holds a number that is too long") from None
        return number

    def signed(self) -> int:
        """Return the next number."""
        return signed(self.unsigned())

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and type of each field of a struct. Read or skip each before the next."""
        number = 0
        while head := self._data[self.at]:
            self.at += 1
            number = number + (head >> 4) if head >> 4 else self.signed()
            yield number, head & 15
        self.at += 1

    def numbers(self) -> dict[int, int]:
        """Return the 32-bit numbers of a struct by their fields, and its booleans as 0 and 1."""
        found: dict[int, int] = {}
        for field, kind in self.fields():
            if kind == _I32:
                found[field] = self.signed()
            elif kind in {_TRUE, _FALSE}:
                found[field] = int(kind == _TRUE)
            else:
                self.skip(kind)
        return found

    def skip(self, kind: int) -> None:  # noqa: C901 - one for each type
        """Go on behind a value of this type."""
        if kind in {_BYTE, _DOUBLE}:
            self.at += 1 if kind == _BYTE else 8
        elif kind in {_I16, _I32, _I64}:
            self.unsigned()
        elif kind == _BINARY:
            size = self.unsigned()
            self.at += size
        elif kind in {_LIST, _SET}:
            head = self._data[self.at]
            self.at += 1
            for _ in range(head >> 4 if head < 0xF0 else self.unsigned()):  # noqa: PLR2004
                self._skip_item(head & 15)
        elif kind == _MAP:
            if count := self.unsigned():
                kinds = self._data[self.at]
                self.at += 1
                for _ in range(count):
                    self._skip_item(kinds >> 4)
                    self._skip_item(kinds & 15)
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner)
        elif kind not in {_TRUE, _FALSE}:
            raise PagesError("a page header holds something of an unknown type")

    def _skip_item(self, kind: int) -> None:
        """Skip an item of a list or map, where a boolean takes a byte: so the data bounds every count."""
        if kind in {_TRUE, _FALSE}:
            self.at += 1
        else:
            self.skip(kind)
        if self.at > len(self._data):
            raise IndexError


class _PartCounter(Thrift):
    """Counts the structs in lists, up to a number.

    Attributes:
        parts: their number so far.
    """

    def __init__(self, data: bytes, most: int) -> None:
        super().__init__(data)
        self._most = most
        self.parts = 0

    @override
    def _skip_item(self, kind: int) -> None:
        if kind == _STRUCT:
            self.parts += 1
            if self.parts > self._most:
                raise PagesError("too many parts")
        super()._skip_item(kind)
