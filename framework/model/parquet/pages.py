"""Limit the memory of a Parquet file's pages, calculated from their headers before pyarrow decompresses them.

pyarrow trusts page headers: a thousand bytes can declare a page of 2 GiB, or a list of 2^31 values. So the file
object that pyarrow reads parses each page header as well, and adds up the memory of the pages. pyarrow reads
each column of a row group forward, header before page, so the sum is known in time.

The sum has, of each column, its dictionary, its current page, and the pages read for a batch, whose values are
copied. Values in lists count in addition, because all values of a page may belong to one row. So does the
longest string of a dictionary, once per row of a batch: the footer counts it once, and it may be in every row.
"""

from __future__ import annotations

import io
import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs
from typing_extensions import override

from framework.model.parquet.files import SeekableFile
from framework.model.parquet.page_headers import DELTA_BYTE_ARRAY, PageHeader, PagesError, count_parts, page_header
from framework.model.parquet.strings import ListStringsError, longest_word, repeated_bytes

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
WORDS_BYTES = 1 << 24
"""The same in bytes, unless all are in one row: what a batch takes in each task, and its JSON on top."""
_FOOTER_PART = 1 << 10
"""Memory of a part of a footer, at most: of a column of a row group. The smallest takes three bytes of the file."""
_TAIL = struct.Struct("<I4s")
"""The end of a file: the footer's length and the magic bytes."""


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
        row_values: number of values in a row, on the average.
        times: number of columns that claim its bytes.
        head: bytes of the next header so far.
        page: memory of the current page.
        dictionary: memory of its dictionary.
        reached: number of values in the counted pages.
        ahead: pages that were read early and are not counted yet.
        longest: length of the longest dictionary string.
        longest_page: bytes of the longest page in which each string may repeat the one before it.
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
    row_values: int
    times: int = 1
    head: bytes = b""
    page: int = 0
    dictionary: int = 0
    reached: int = 0
    ahead: deque[PageHeader] = attrs.field(factory=deque)
    longest: int = 0
    longest_page: int = 0
    words: bytes | None = None
    collected: PageHeader | None = None
    list_strings: int = 0
    last_strings: int = 0


class WatchedFile(SeekableFile):
    """A Parquet file as pyarrow reads it.

    Args:
        file: the file; other readers may use it in between.
        limit: maximum memory of the current pages, and of the footer, in bytes.
        limit_name: name of the limit, for messages.
        footer_fits: whether the footer was looked at before: a large one takes seconds.
        keeps_dictionaries: whether pyarrow leaves the strings of lists in their dictionaries, where each counts once.

    Attributes:
        failure: the page error, because the library may wrap it.
        unpacked: bytes of all pages so far, unpacked.
    """

    def __init__(
        self,
        file: Any,
        limit: int,
        *,
        limit_name: str = "input.max_page_bytes",
        footer_fits: bool = False,
        keeps_dictionaries: bool = False,
    ) -> None:
        file.seek(0, io.SEEK_END)
        super().__init__(file.tell())
        self._file = file
        self._limit = limit
        self._limit_name = limit_name
        self._starts: list[int] = []
        self._columns: list[_Column] = []
        self._next: tuple[pq.ParquetFile, int, Sequence[int] | None] | None = None
        self._used = self._rows = self._until = 0
        self._footer_fits = footer_fits
        self._keeps_dictionaries = keeps_dictionaries
        self.failure: PagesError | None = None
        self.unpacked = 0

    def begin(self, parquet: pq.ParquetFile, index: int, leaves: Sequence[int] | None = None) -> None:
        """Begin the columns of row group `index`, or those of them at the places `leaves`."""
        self._next = parquet, index, leaves
        self._starts, self._columns = [], []
        self._used = self._rows = self._until = 0
        self.failure = None

    def _prepare(self, parquet: pq.ParquetFile, index: int, leaves: Sequence[int] | None) -> None:
        """Record the offsets of the columns. Called late: pyarrow reports unusable metadata when it opens the columns.

        An earlier request for that metadata, for example of an encrypted column, would end the process.
        """
        group, schema = parquet.metadata.row_group(index), parquet.schema
        columns = []
        for at in range(group.num_columns) if leaves is None else leaves:
            chunk, leaf = group.column(at), schema.column(at)
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < start:
                start = chunk.dictionary_page_offset
            end = start + chunk.total_compressed_size
            strings, repeated = chunk.physical_type == "BYTE_ARRAY", leaf.max_repetition_level > 0
            row_values = -(-chunk.num_values // max(1, group.num_rows))
            columns.append(_Column(chunk.path_in_schema, end, start, repeated, strings, chunk.compression, row_values))
        columns.sort(key=lambda column: column.next)
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
        strings_bytes = self._limit // _STRINGS_PART
        words = sum(column.longest * column.row_values for column in self._columns)
        repeats = sum(column.longest_page for column in self._columns)
        rows = min(rows, min(strings_bytes, WORDS_BYTES) // max(1, words), strings_bytes // max(1, repeats))
        self._rows = max(1, rows)
        self._until += self._rows
        self._used = sum((column.page + column.dictionary) * column.times for column in self._columns)
        for column in self._columns:
            column.list_strings = column.last_strings  # the rest of that page may belong to this batch
            while column.ahead and column.reached < self._until:
                self._count(column, column.ahead.popleft())
        return self._rows

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
            if length + count_parts(footer, (self._limit - length) // _FOOTER_PART) * _FOOTER_PART <= self._limit:
                return
        self.failure = PagesError(
            f"the footer of {length:,} bytes takes more memory than {self._limit_name} ({self._limit} bytes)"
        )
        raise self.failure

    def _look_at(self, column: _Column, at: int, data: bytes) -> None:
        """Parse the page headers in these bytes. Columns with the same start count as the last of them."""
        end, view = at + len(data), memoryview(data)
        if column.words is not None:  # first in a column: these bytes continue it
            self._collect(column, view)
        while at <= column.next + len(column.head) < end and column.next < column.end:
            more = view[column.next + len(column.head) - at :]
            head = column.head + more if column.head else more
            try:
                header = page_header(head)
            except IndexError:
                if len(head) > _MAX_HEADER_BYTES:
                    raise PagesError(f"a page header of column {column.name} has no end") from None
                column.head = bytes(head)
                return
            column.head = b""
            body = column.next + header.size
            column.next = body + header.packed
            if min(header.packed, header.unpacked, header.values) < 0:
                raise PagesError(f"a page header of column {column.name} has a number below zero")
            self._check(self._used + header.packed, column)  # pyarrow takes that much, also of a shorter file
            self.unpacked += header.unpacked * column.times
            if column.reached < self._until or column.repeated:  # the row count of a page of lists is unknown
                self._count(column, header)
            else:
                column.ahead.append(header)
            if column.strings and (header.kind == _DICTIONARY_PAGE or self._has_delta_lists(column, header)):
                column.words, column.collected = b"", header
                self._collect(column, view[body - at :])

    def _count(self, column: _Column, header: PageHeader) -> None:
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
            elif column.strings and header.encoding == DELTA_BYTE_ARRAY:
                # each string may repeat the string before it
                column.longest_page = max(column.longest_page, header.unpacked)
                takes += header.unpacked * min(header.values, self._rows)
        self._used += takes * column.times
        self._check(self._used, column)

    def _check(self, used: int, column: _Column) -> None:
        if used > self._limit:
            raise PagesError(
                f"the pages that are read at once take more than {self._limit_name} ({self._limit} bytes), from column "
                f"{column.name} on"
            )

    def _has_delta_lists(self, column: _Column, header: PageHeader) -> bool:
        """Whether a page has lists of strings that each may repeat the string before it."""
        return column.repeated and header.encoding == DELTA_BYTE_ARRAY and not self._keeps_dictionaries

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
                    f"the strings that lists share in their pages may take more than a quarter of {self._limit_name} "
                    f"({self._limit} bytes), from column {column.name} on"
                )

    def _collect(self, column: _Column, data: memoryview) -> None:
        """Collect a page of strings, which these bytes go on with, and measure the longest of a dictionary."""
        page, words = column.collected, column.words
        assert page is not None
        assert words is not None
        data = data[: page.packed - len(words)]
        if len(words) + len(data) < page.packed:
            column.words = words + data
            return
        column.words, packed = None, words + data if words else data
        if page.kind != _DICTIONARY_PAGE:
            self._add_list_strings(column, repeated_bytes(packed, page, column.codec))
            return
        column.longest = longest_word(packed, page, column.codec)
        if not column.repeated and page.unpacked * _BATCH_ROWS * column.times > self._limit // _STRINGS_PART:
            self._check(self._used + column.longest * self._rows * column.times, column)
