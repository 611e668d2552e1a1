"""Limit the memory of a Parquet file's pages, calculated from their headers before pyarrow decompresses them.

pyarrow trusts page headers: a thousand bytes can declare a page of 2 GiB, or a list of 2^31 values. So the file
object that pyarrow reads parses each page header as well, and adds up the memory of the pages. pyarrow reads
each column of a row group forward, header before page, so the sum is known in time.

The sum has, of each column, its dictionary, its current page, and the pages read for a batch, whose values are
copied. Values in lists count in addition, because all values of a page may belong to one row. So does the
longest string of a dictionary, once per row of a batch.
"""

from __future__ import annotations

import io
import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs
from typing_extensions import override

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_DICTIONARY_PAGE = 2
_MAX_HEADER_BYTES = 1 << 24
_LIST_VALUE = 12
"""Memory of a value in a list beyond its bytes in the page: the dictionary value and its levels."""
_WORD = 16
"""Memory of a string in a dictionary beyond its bytes."""
_BATCH_ROWS = 10_000
"""Usual maximum rows of a batch: a dictionary is small if its bytes in each of them stay within the limit."""
_STRINGS_PART = 4
"""Dictionary strings of a batch may take at most 1/_STRINGS_PART of the limit."""
_FOOTER_PART = 1 << 10
"""Memory of a part of a footer, at most: of a column of a row group. The smallest takes three bytes of the file."""
_TAIL = struct.Struct("<I4s")
"""The end of a file: the footer's length and the magic bytes."""


_LENGTH = struct.Struct("<I")


class PagesError(Exception):
    """Pages exceed the limit, or a page header is invalid. Never leaves this package."""


class ListStringsError(PagesError):
    """A list could take too many long strings from a dictionary, unless they are left in it."""


@attrs.define(slots=True)
class _Column:
    """Read state of a column.

    Attributes:
        name: its path.
        end: end offset of its bytes.
        next: offset of the next header.
        repeated: whether it is in a list.
        strings: whether it has strings.
        codec: its compression.
        times: number of columns that claim its bytes.
        head: bytes of the next header so far.
        page: memory of the current page.
        dictionary: memory of its dictionary.
        reached: number of values in the counted pages.
        ahead: pages that were read early and are not counted yet.
        longest: length of the longest dictionary string.
        words: bytes of a page of strings while it is collected, else None.
        collected: the header of that page.
        list_strings: what the strings of the batch's lists take, at most, beyond their bytes in the pages.
        last_strings: those of the last page.
    """

    name: str
    end: int
    next: int
    repeated: bool
    strings: bool
    codec: str
    times: int = 1
    head: bytes = b""
    page: int = 0
    dictionary: int = 0
    reached: int = 0
    ahead: deque[_PageHeader] = attrs.field(factory=deque)
    longest: int = 0
    words: bytes | None = None
    collected: _PageHeader | None = None
    list_strings: int = 0
    last_strings: int = 0


class SeekableFile(io.RawIOBase):
    """Base of the files that pyarrow reads; a subclass reads from `_at` on, and moves it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._at = 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._at

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at


class WatchedFile(SeekableFile):
    """A Parquet file as pyarrow reads it.

    Args:
        file: the file; other readers may use it in between.
        limit: maximum memory of the current pages, and of the footer, in bytes.
        footer_fits: whether the footer was looked at before: a large one takes seconds.
        keeps_dictionaries: whether pyarrow leaves the strings of lists in their dictionaries, where each counts once.

    Attributes:
        failure: the page error, because the library may wrap it.
    """

    def __init__(self, file: Any, limit: int, *, footer_fits: bool = False, keeps_dictionaries: bool = False) -> None:
        super().__init__(file.seek(0, io.SEEK_END))
        self._file = file
        self._limit = limit
        self._starts: list[int] = []
        self._columns: list[_Column] = []
        self._by_leaf: dict[int, _Column] = {}
        self._next: tuple[pq.ParquetFile, int, Sequence[int] | None] | None = None
        self._used = self._rows = self._until = 0
        self._footer_fits = footer_fits
        self._keeps_dictionaries = keeps_dictionaries
        self.failure: PagesError | None = None

    def begin(self, parquet: pq.ParquetFile, index: int, leaves: Sequence[int] | None = None) -> None:
        """Begin the columns of row group `index`, or those of them at the places `leaves`."""
        self._next = parquet, index, leaves
        self._starts, self._columns, self._by_leaf = [], [], {}
        self._used = self._rows = self._until = 0
        self.failure = None

    def _prepare(self, parquet: pq.ParquetFile, index: int, leaves: Sequence[int] | None) -> None:
        """Record the offsets of the columns. Called late: pyarrow reports unusable metadata when it opens the columns.

        An earlier request for that metadata, for example of an encrypted column, would end the process.
        """
        group, schema = parquet.metadata.row_group(index), parquet.schema
        by_leaf = {}
        for at in range(group.num_columns) if leaves is None else leaves:
            chunk, leaf = group.column(at), schema.column(at)
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < start:
                start = chunk.dictionary_page_offset
            end = start + chunk.total_compressed_size
            strings, repeated = chunk.physical_type == "BYTE_ARRAY", leaf.max_repetition_level > 0
            by_leaf[at] = _Column(chunk.path_in_schema, end, start, repeated, strings, chunk.compression)
        columns = sorted(by_leaf.values(), key=lambda column: column.next)
        self._by_leaf = by_leaf
        self._starts = [column.next for column in columns]
        self._columns = columns
        furthest = shared = 0
        for column in columns:
            shared += column.next < furthest
            furthest = max(furthest, column.end)
        for column in columns if shared else ():  # only in a malicious file
            column.times = 1 + shared

    def step(self, rows: int) -> int:
        """Begin a batch of at most `rows` rows; return the allowed number."""
        longest = sum(column.longest for column in self._columns if not column.repeated)
        self._rows = max(1, min(rows, self._limit // _STRINGS_PART // max(1, longest)))
        self._until += self._rows
        self._used = sum((column.page + column.dictionary) * column.times for column in self._columns)
        for column in self._columns:
            column.list_strings = column.last_strings  # the rest of that page may belong to this batch
            while column.ahead and column.reached < self._until:
                self._count(column, column.ahead.popleft())
        return self._rows

    def longest_word(self, leaf: int) -> int:
        """Return the length of the longest string in the dictionary of a column; 0 when no dictionary was read."""
        column = self._by_leaf.get(leaf)
        return 0 if column is None else column.longest

    @override
    def read(self, size: int = -1, /) -> bytes:
        self._file.seek(self._at)
        data: bytes = self._file.read(size)
        if not self._footer_fits:
            self._look_at_footer(self._at, data)
        if self._next is not None:
            upcoming, self._next = self._next, None
            self._prepare(*upcoming)
        place = bisect_right(self._starts, self._at) - 1
        if place >= 0:
            try:
                self._look_at(self._columns[place], self._at, data)
            except PagesError as exc:
                self.failure = exc
                raise
        self._at += len(data)
        return data

    def _look_at_footer(self, at: int, data: bytes) -> None:
        """Add up the memory of the footer before pyarrow parses it; pyarrow reads the end of the file first."""
        self._footer_fits = True
        if len(data) < _TAIL.size:
            return
        length, magic = _TAIL.unpack_from(data, len(data) - _TAIL.size)
        end = at + len(data) - _TAIL.size
        if magic != b"PAR1" or length > end or length * _FOOTER_PART <= self._limit:
            return
        if length <= self._limit:
            self._file.seek(end - length)
            footer: bytes = self._file.read(length)
            if length + _count_parts(footer, (self._limit - length) // _FOOTER_PART) * _FOOTER_PART <= self._limit:
                return
        self.failure = PagesError(
            f"the footer of {length:,} bytes takes more memory than input.max_page_bytes ({self._limit} bytes)"
        )
        raise self.failure

    def _look_at(self, column: _Column, at: int, data: bytes) -> None:
        """Parse the page headers in these bytes. Columns with the same start count as the last of them."""
        end = at + len(data)
        if column.words is not None:  # first in a column: these bytes continue it
            self._collect(column, data)
        while at <= column.next + len(column.head) < end and column.next < column.end:
            head = column.head + data[column.next + len(column.head) - at :]
            try:
                header = _page_header(head)
            except IndexError:
                if len(head) > _MAX_HEADER_BYTES:
                    raise PagesError(f"a page header of column {column.name} has no end") from None
                column.head = head
                return
            column.head = b""
            body = column.next + header.size
            column.next = body + header.packed
            if min(header.packed, header.unpacked, header.values) < 0:
                raise PagesError(f"a page header of column {column.name} has a number below zero")
            self._check(self._used + header.packed, column)  # pyarrow takes that much, also of a shorter file
            if column.reached < self._until or column.repeated:  # the row count of a page of lists is unknown
                self._count(column, header)
            else:
                column.ahead.append(header)
            if column.strings and (header.kind == _DICTIONARY_PAGE or self._has_delta_lists(column, header)):
                column.words, column.collected = b"", header
                self._collect(column, data[body - at :])

    def _count(self, column: _Column, header: _PageHeader) -> None:
        if header.kind == _DICTIONARY_PAGE:
            takes = column.dictionary = 2 * header.unpacked + _WORD * header.values
        else:
            # all values of variable size may be in the rows of the batch, and all values of a list
            copied = header.unpacked if column.repeated or column.strings else min(header.unpacked, _WORD * self._rows)
            takes = header.unpacked + copied + (_LIST_VALUE * header.values if column.repeated else 0)
            column.page = header.unpacked
            column.reached += header.values
            if column.repeated:
                self._add_list_strings(column, header.values * column.longest)
            elif column.strings and header.encoding == _DELTA_BYTE_ARRAY:
                # each string may repeat the string before it
                column.longest = max(column.longest, header.unpacked)
                takes += header.unpacked * min(header.values, self._rows)
        self._used += takes * column.times
        self._check(self._used, column)

    def _check(self, used: int, column: _Column) -> None:
        if used > self._limit:
            raise PagesError(
                f"the pages that are read at once take more than input.max_page_bytes ({self._limit} bytes), from column "
                f"{column.name} on"
            )

    def _has_delta_lists(self, column: _Column, header: _PageHeader) -> bool:
        """Whether a page has lists of strings that each may repeat the string before it."""
        return column.repeated and header.encoding == _DELTA_BYTE_ARRAY and not self._keeps_dictionaries

    def _add_list_strings(self, column: _Column, takes: int) -> None:
        """Count what the lists of a page take if they all belong to this batch.

        Raises:
            ListStringsError: that is too much.
        """
        if not self._keeps_dictionaries:
            column.last_strings = takes * column.times
            column.list_strings += column.last_strings
            if sum(each.list_strings for each in self._columns) > self._limit // _STRINGS_PART:
                raise ListStringsError(
                    f"the strings that lists share in their pages may take more than a quarter of input.max_page_bytes "
                    f"({self._limit} bytes), from column {column.name} on"
                )

    def _collect(self, column: _Column, data: bytes) -> None:
        """Collect a page of strings, which these bytes go on with, and measure the longest of a dictionary."""
        page, words = column.collected, column.words
        assert page is not None
        assert words is not None
        column.words = words = words + data[: page.packed - len(words)]
        if len(words) < page.packed:
            return
        column.words = None
        if page.kind != _DICTIONARY_PAGE:
            self._add_list_strings(column, _repeated_bytes(words, page, column.codec))
            return
        column.longest = _longest_word(words, page, column.codec)
        if not column.repeated and page.unpacked * _BATCH_ROWS * column.times > self._limit // _STRINGS_PART:
            self._check(self._used + column.longest * self._rows * column.times, column)


def _decompressed(packed: bytes, size: int, codec: str) -> bytes | None:
    """Return the bytes of a page; None if it cannot be decompressed, which pyarrow cannot either."""
    import pyarrow as pa  # noqa: PLC0415 - 50 MB, only for Parquet

    try:
        return packed if codec == "UNCOMPRESSED" else pa.Codec(codec.lower()).decompress(packed, size, asbytes=True)
    except (ValueError, OSError, NotImplementedError):
        return None


def _repeated_bytes(packed: bytes, page: _PageHeader, codec: str) -> int:
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

    numbers = _Thrift(data)  # its numbers are coded alike
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


def _longest_word(packed: bytes, page: _PageHeader, codec: str) -> int:
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

    Their lengths end with three zeros, which text does not have. If each place of three zeros follows from the one before
    it, these are all strings there are.
    """
    import numpy as np  # noqa: PLC0415 - loaded when used

    held = np.frombuffer(data, np.uint8)
    zero = held == 0
    at = np.flatnonzero(zero[1:-2] & zero[2:-1] & zero[3:])
    if not len(at) or at[0]:
        return None
    lengths = held[at]
    ends = at + _LENGTH.size + lengths
    return int(lengths.max()) if ends[-1] == len(data) and (ends[:-1] == at[1:]).all() else None


@attrs.frozen(slots=True)
class _PageHeader:
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


def _page_header(data: bytes) -> _PageHeader:
    """Read a page header (parquet.thrift), in Thrift's compact protocol.

    Raises:
        IndexError: the data ends before the header does.
        PagesError: the data is no page header.
    """
    thrift = _Thrift(data)
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
    return _PageHeader(
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


def _count_parts(footer: bytes, most: int) -> int:
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
_RLE, _DELTA_BYTE_ARRAY = 3, 7
_MAX_DELTA_PAGE_BYTES = 1 << 26
"""Of a page of lists of strings in DELTA_BYTE_ARRAY, whose lengths are added up; usual pages have 1 MiB."""
_MAX_DELTA_BITS = 32
_DELTAS_AT_ONCE = 1 << 16
"""A multiple of 8, so that each part begins with a byte. Usual writers have 32 in a miniblock."""
_MAX_SHORT_WORDS_BYTES = 1 << 22
"""Of a dictionary page whose strings are found at once, which takes ten times as much memory; usual pages have 1 MiB."""
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)


class _Thrift:
    """Decodes the compact protocol; an offset beyond the data raises IndexError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004
                return value
            shift += 7
            if shift > 63:  # noqa: PLR2004
                raise PagesError("a page header holds a number that is too long")

    def signed(self) -> int:
        value = self.unsigned()
        return value >> 1 ^ -(value & 1)

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


class _PartCounter(_Thrift):
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
