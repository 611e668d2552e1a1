"""What the pages of a Parquet file unfold to, told from their headers before they are unpacked.

A footer may lie, and pyarrow believes the headers of pages: a thousand bytes can name a page of 2 GiB, or a list of 2^31
values. So the file that pyarrow reads looks at what goes by: where a page begins, its header is read here too, and what the
page will take is added up. pyarrow reads each column of a row group forward, header before page, so the sum is known in time.

What counts: of each column its dictionary and the page that it stands in, and the pages that are read for a batch, whose
values are copied. Values in lists count besides, because all those of a page may belong to one row, and so does the longest
string of a dictionary, as often as a batch has rows.
"""

from __future__ import annotations

import io
import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import attrs
from typing_extensions import override

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_DICTIONARY_PAGE = 2
_LONGEST_HEADER = 1 << 24
_LIST_VALUE = 12
"""Memory of a value in a list, besides its bytes in the page: the value of a dictionary, and its levels."""
_WORD = 16
"""Memory of a string in a dictionary, besides its bytes."""
_BATCH_ROWS = 10_000
"""As many as a batch usually has at most: a dictionary is small when its bytes in each of so many rows would not matter."""
_WORDS_SHARE = 4
"""The strings of dictionaries may take so much less in a batch than is allowed in all."""


_LENGTH = struct.Struct("<I")


class PagesError(Exception):
    """Pages that take more than is allowed, or whose headers cannot be read; never leaves this package."""


@attrs.define(slots=True)
class _Column:
    """Where the reading of a column stands.

    Attributes:
        name: its path.
        end: of its bytes.
        next: where the next header begins.
        repeated: whether it is in a list.
        strings: whether it is of strings.
        codec: what packs it.
        times: how many columns claim its bytes.
        head: what was read of the next header.
        page: what the page takes that was read last.
        dictionary: what its dictionary takes.
        reached: how many values the pages have that were counted.
        ahead: pages that were read with others, and are not reached yet.
        longest: of the strings in the dictionary, or more.
        words: the dictionary page, while it is collected; None: it is not.
        words_packed: how long that page is.
        words_size: its bytes, unpacked.
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
    words_packed: int = 0
    words_size: int = 0


class WatchedFile(io.RawIOBase):
    """A Parquet file as pyarrow reads it.

    Args:
        file: the file; others may read it in between.
        limit: what pages may take at a time, in bytes.

    Attributes:
        failure: what was wrong with the pages, because the library may wrap it.
    """

    def __init__(self, file: Any, limit: int) -> None:
        super().__init__()
        self._file = file
        self._limit = limit
        self._at = 0
        self._starts: list[int] = []
        self._columns: list[_Column] = []
        self._next: tuple[pq.ParquetFile, int] | None = None
        self._used = self._rows = self._until = 0
        self.failure: PagesError | None = None

    def begin(self, parquet: pq.ParquetFile, index: int) -> None:
        """The columns of row group `index` come next, from their beginning."""
        self._next = parquet, index
        self._starts, self._columns = [], []
        self._used = self._rows = self._until = 0
        self.failure = None

    def _prepare(self, parquet: pq.ParquetFile, index: int) -> None:
        """Takes down where the columns are. Only now: of metadata that it cannot use pyarrow makes an error when it opens them.

        To ask for that metadata earlier, of an encrypted column for example, would end the process.
        """
        group, schema = parquet.metadata.row_group(index), parquet.schema
        columns = []
        for at in range(group.num_columns):
            chunk, leaf = group.column(at), schema.column(at)
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < start:
                start = chunk.dictionary_page_offset
            end = start + chunk.total_compressed_size
            strings, repeated = chunk.physical_type == "BYTE_ARRAY", leaf.max_repetition_level > 0
            columns.append(_Column(chunk.path_in_schema, end, start, repeated, strings, chunk.compression))
        columns.sort(key=lambda column: column.next)
        self._starts = [column.next for column in columns]
        self._columns = columns
        furthest = shared = 0
        for column in columns:
            shared += column.next < furthest
            furthest = max(furthest, column.end)
        for column in columns if shared else ():  # only in a file that was made to deceive
            column.times = 1 + shared

    def step(self, rows: int) -> int:
        """A batch of so many rows comes next, or of fewer. Returns of how many."""
        longest = sum(column.longest for column in self._columns)
        self._rows = max(1, min(rows, self._limit // _WORDS_SHARE // max(1, longest)))
        self._until += self._rows
        self._used = sum((column.page + column.dictionary) * column.times for column in self._columns)
        for column in self._columns:
            while column.ahead and column.reached < self._until:
                self._count(column, column.ahead.popleft())
        return self._rows

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
        if whence == io.SEEK_END:
            self._at = self._file.seek(offset, whence)
        else:
            self._at = offset + (self._at if whence == io.SEEK_CUR else 0)
        return self._at

    @override
    def read(self, size: int = -1, /) -> bytes:
        self._file.seek(self._at)
        data: bytes = self._file.read(size)
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

    def _look_at(self, column: _Column, at: int, data: bytes) -> None:
        """Bytes of a column go by. Those of columns that begin at the same byte go by as the last one's."""
        end = at + len(data)
        if column.words is not None:  # the first thing of a column: what comes is its rest
            self._collect(column, data[: column.words_packed - len(column.words)])
        while at <= column.next + len(column.head) < end and column.next < column.end:
            head = column.head + data[column.next + len(column.head) - at :]
            try:
                header = _page_header(head)
            except IndexError:
                if len(head) > _LONGEST_HEADER:
                    raise PagesError(f"a page header of column {column.name} has no end") from None
                column.head = head
                return
            column.head = b""
            body = column.next + header.size
            column.next = body + header.packed
            if min(header.packed, header.unpacked, header.values) < 0:
                raise PagesError(f"a page header of column {column.name} has a number below zero")
            if column.reached < self._until or column.repeated:  # how many rows are in a page of lists is not known
                self._count(column, header)
            else:
                column.ahead.append(header)
            if header.kind == _DICTIONARY_PAGE and column.strings:
                column.words, column.words_packed, column.words_size = b"", header.packed, header.unpacked
                self._collect(column, data[body - at : column.next - at])

    def _count(self, column: _Column, header: _PageHeader) -> None:
        if header.kind == _DICTIONARY_PAGE:
            takes = column.dictionary = 2 * header.unpacked + _WORD * header.values
        else:
            # What is not of a fixed size may all be in the rows of the batch, and in a list all the values.
            copied = header.unpacked if column.repeated or column.strings else min(header.unpacked, _WORD * self._rows)
            takes = header.unpacked + copied + (_LIST_VALUE * header.values if column.repeated else 0)
            column.page = header.unpacked
            column.reached += header.values
            if column.strings and header.encoding == _DELTA_BYTE_ARRAY:
                # A string may be the one before it, again and again.
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

    def _collect(self, column: _Column, part: bytes) -> None:
        """A part of a dictionary page of strings. None of them is longer than all; where that is too much they are looked at."""
        if column.words_size * _BATCH_ROWS * column.times <= self._limit // _WORDS_SHARE:
            column.longest, column.words = column.words_size, None
            return
        column.words = (column.words or b"") + part
        if len(column.words) == column.words_packed:
            column.longest = _longest_word(column.words, column.words_size, column.codec)
            column.words = None
            self._check(self._used + column.longest * self._rows * column.times, column)


def _longest_word(packed: bytes, size: int, codec: str) -> int:
    """The length of the longest string of a dictionary page; when it cannot be unpacked here, that of all."""
    import pyarrow as pa  # noqa: PLC0415 - 50 MB, only for who reads Parquet

    try:
        data = packed if codec == "UNCOMPRESSED" else pa.Codec(codec.lower()).decompress(packed, size, asbytes=True)
    except (ValueError, OSError, NotImplementedError):
        return size
    longest = at = 0
    last = len(data) - _LENGTH.size
    while at <= last:
        (length,) = _LENGTH.unpack_from(data, at)
        if length > longest:  # noqa: PLR1730 - `max` takes twice the time
            longest = length
        at += _LENGTH.size + length
    return min(longest, size)


@attrs.frozen(slots=True)
class _PageHeader:
    """Of a page header: its own bytes; of the page: kind, bytes unpacked and packed, how many values, and their encoding."""

    size: int
    kind: int
    unpacked: int
    packed: int
    values: int
    encoding: int


def _page_header(data: bytes) -> _PageHeader:
    """Reads a page header (parquet.thrift), in Thrift's compact protocol.

    Raises:
        IndexError: it goes on behind the data.
        PagesError: it is none.
    """
    thrift = _Thrift(data)
    numbers = {1: -1, 2: -1, 3: -1}
    values = encoding = 0
    try:
        for field, kind in thrift.fields():
            if field in numbers and kind == _I32:
                numbers[field] = thrift.signed()
            elif field in _ENCODINGS and kind == _STRUCT:
                for inner, inner_kind in thrift.fields():
                    if inner == 1 and inner_kind == _I32:
                        values = thrift.signed()
                    elif inner == _ENCODINGS[field] and inner_kind == _I32:
                        encoding = thrift.signed()
                    else:
                        thrift.skip(inner_kind)
            else:
                thrift.skip(kind)
    except RecursionError:
        raise PagesError("a page header is nested too deeply") from None
    if thrift.at > len(data):
        raise IndexError
    return _PageHeader(thrift.at, numbers[1], numbers[2], numbers[3], values, encoding)


_ENCODINGS = {5: 2, 7: 2, 8: 4}
"""Of data pages, dictionary pages and data pages of version 2 the field of the encoding; the first one is the count of values."""
_DELTA_BYTE_ARRAY = 7
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)


class _Thrift:
    """Goes through the compact protocol; a place behind the data is an IndexError, sooner or later."""

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
        """The fields of a structure, number and type. Each must be read, or skipped, before the next."""
        number = 0
        while head := self._data[self.at]:
            self.at += 1
            number = number + (head >> 4) if head >> 4 else self.signed()
            yield number, head & 15
        self.at += 1

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
        """Of a list or a map: there a boolean has a byte. So every item has one, and a count without its bytes an end."""
        if kind in {_TRUE, _FALSE}:
            self.at += 1
        else:
            self.skip(kind)
        if self.at > len(self._data):
            raise IndexError
