"""CSV: every row after the header is a record, as a JSON object of strings; without a header, an array of strings.

The standard library's reader in strict mode decides what a row is (RFC 4180, any delimiter and quote): a line end may
stand inside quotes, a quote inside quotes is doubled. Text is UTF-8. An empty line is no record. A row with too many or
too few fields, with bytes that are not UTF-8, or with something between a closing quote and the delimiter is a bad
record. Where such a row, or a line that is too long, leaves a quote open, the begin of the next row is unknown, and
the object ends there. Rows can only be told apart from the start, so there are no marks; skipped rows are parsed but not encoded.
With `input.columns` the other fields are parsed, and neither checked nor encoded.

Where all fields of a piece are plain, the names are put between them and no field becomes a value. Else rows are split line
by line and encoded; and from the first quote on the standard library's reader splits them.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain, islice, repeat, starmap
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from framework.errors import CorruptObjectError, RecordError, RecordTooLargeError, TruncatedObjectError
from framework.model.objects import ResumePoint
from framework.model.payloads import PayloadColumn, longest
from framework.model.text import counted
from framework.model.utf8 import check_utf8
from framework.transformer import MAX_MESSAGE_BYTES, InputOptions, ObjectInput, Transformer
from transformers.batches import CSV_OPTIONS, RAW_BYTES, Bad, RunBuilder, Runs, ShippedTransformer, too_large
from transformers.columns import Field, choose, nothing_inside
from transformers.compression import UnpackedStream
from transformers.lines import Span, whole_lines
from transformers.row_json import NAMES_BYTES, encode, encode_all, name_bytes, row_maker

if TYPE_CHECKING:
    from _csv import Reader as CsvReader

_PIECE_BYTES = 1 << 18
_ROWS_AT_ONCE = 256
"""Small, both: fields should still be in the processor's cache when they are encoded (2,000 rows: a tenth slower)."""

_LINE_FEED, _SPACE = b"\n "
_ROW_END = b'"}\n'
_MARKS = bytes(mark for mark in range(_SPACE) if mark != _LINE_FEED)
"""One for each column but the last. Rows with more columns are as quick by rows."""

_NO_LIMIT = 2 * MAX_MESSAGE_BYTES

_MAX_FIELDS = 1_000_000
"""Of a row. Each takes some 60 bytes of memory, however short it is."""

_MAX_COLUMNS = 100_000
"""Of a header."""

_JSON_BEGIN = re.compile(r"\s*\{\s*\"")


class CsvTransformer(ShippedTransformer):
    """Rows of CSV."""

    name: ClassVar[str] = "csv"
    reads_columns: ClassVar[bool] = True
    numbered_by: ClassVar[tuple[str, ...]] = CSV_OPTIONS

    def __init__(self, options: InputOptions) -> None:
        super().__init__(options)
        self._dialect: dict[str, Any] = {"delimiter": options.csv_delimiter, "strict": True}
        if options.csv_quote:
            self._dialect["quotechar"] = options.csv_quote
        else:
            self._dialect |= {"quotechar": None, "quoting": csv.QUOTE_NONE}

    @override
    def decode_record(self, raw: bytes, *, key: str) -> bytes:
        return Transformer.decode_record(self, raw, key=key)  # fails: the names of fields are not in a row

    @override
    def _read(self, source: ObjectInput, skip: int, mark: ResumePoint | None, builder: RunBuilder) -> Runs:
        # The module's limit on a field, 131,072 by default, is one for the process and knows no records: behind a field that
        # it refuses it reads on as if no quote were open. So it must lie above what ends an object here.
        if csv.field_size_limit() < _NO_LIMIT:
            csv.field_size_limit(_NO_LIMIT)
        with closing(UnpackedStream(source, self.options, piece_bytes=_PIECE_BYTES, text=True)) as stream:
            yield from _RowReader(self.options, self._dialect, stream, builder, skip).read()


class _RowReader:
    """The state of one read."""

    def __init__(
        self, options: InputOptions, dialect: dict[str, Any], stream: UnpackedStream, builder: RunBuilder, skip: int
    ) -> None:
        self._options = options
        self._dialect = dialect
        self._builder = builder
        self._left = skip
        self._rows: list[list[str]] = []
        self._giant: Span | None = None
        self._delimiter, self._quote = options.csv_delimiter.encode(), options.csv_quote.encode()
        self._text, self._lines = "", io.StringIO()
        self._ended = False
        self._make: Callable[..., Any] | None = None
        self._chosen: Callable[[list[str]], Any] | None = None
        self._width: int | None = None
        self._frames: _Frames | None = None
        self._encoded_rows = _ROWS_AT_ONCE
        piece_bytes = min(_PIECE_BYTES, builder.limits.size_bytes)
        spans = whole_lines(stream, 0, piece_bytes, options.max_record_bytes, self._quote)
        self._spans: Iterator[Span] = self._narrow(spans)
        self._at_once = max(1, min(_ROWS_AT_ONCE, builder.limits.records))

    def read(self) -> Runs:
        for span in self._spans:
            if span.too_long:
                yield from self._take_giant(span)
            elif (column := self._framed(span.data)) is not None:
                yield from self._builder.add(column, column.size_bytes)
            elif (lines := self._plain_lines(span.data)) is None:
                # From the first quote on the csv module reads: only it knows whether a line end is inside quotes.
                self._spans = chain((span,), self._spans)
                yield from self._read_quoted()
                return
            else:
                for at in range(0, len(lines), _ROWS_AT_ONCE):
                    part = lines[at : at + _ROWS_AT_ONCE]
                    yield from self._take(list(map(str.split, part, repeat(self._options.csv_delimiter))))

    def _framed(self, data: bytes) -> PayloadColumn | None:
        """The payloads of lines, when each is a row of plain fields within the limit, and none is skipped; else None."""
        if self._frames is None or self._left or (self._quote and self._quote in data):
            return None
        column, limit = self._frames.payloads(data), self._options.max_record_bytes
        return None if column is None or (column.size_bytes > limit and longest(column) > limit) else column

    def _plain_lines(self, data: bytes) -> list[str] | None:
        """The lines, when each is a row whose fields only the delimiter parts; else None."""
        if (quote := self._options.csv_quote) and quote.encode() in data:
            return None
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
            if b"\r" in data:
                return None
        if data.isspace() and not data.strip(b"\n"):
            return []  # at once: each blank line would take as long as a row
        return list(filter(None, _decode(data).split("\n")))

    def _read_quoted(self) -> Runs:
        while not self._ended:
            # One reader for all lines up to one that is too long, which ends it.
            reader = csv.reader(chain.from_iterable(self._texts()), **self._dialect)
            exhausted = False
            while not exhausted:
                problem, exhausted, failure = self._fill(reader)
                yield from self._take(self._rows)
                if problem is not None and self._width is None and self._options.csv_header:
                    _refuse_json(self._text, self._text)
                    raise CorruptObjectError(f"the header is {problem}; is this really csv? See input.format")
                if problem is not None:
                    yield from self._skipped(RecordError(problem), b"", 0)
                if failure is not None:
                    raise failure
            if self._giant is not None:
                giant, self._giant = self._giant, None
                yield from self._take_giant(giant)

    def _narrow(self, spans: Iterator[Span]) -> Iterator[Span]:
        """The spans, in which a line with too many fields is one that is too long, and the header stands alone."""
        for span in spans:
            if self._width is None and not span.too_long and 0 < (end := span.data.find(b"\n") + 1) < len(span.data):
                yield from self._with_short_rows(Span(span.data[:end], span.start))
                yield from self._with_short_rows(Span(span.data[end:], span.start + end, ended=span.ended))
            else:
                yield from self._with_short_rows(span)

    def _with_short_rows(self, span: Span) -> Iterator[Span]:
        """The parts of a span, in which a line with too many fields is one that is too long."""
        data = span.data
        if span.too_long or len(data) <= _MAX_FIELDS or data.count(self._delimiter) < _MAX_FIELDS:
            yield span
            return
        at = 0
        while at < len(data):
            end = data.find(b"\n", at) + 1 or len(data)
            line = data[at:end]
            if line.count(self._delimiter) < _MAX_FIELDS:
                yield Span(line, span.start + at, ended=line.endswith(b"\n"))
            else:
                quotes = line.count(self._quote) if self._quote else 0
                yield Span(line[:RAW_BYTES], span.start + at, too_long=True, length=len(line), quotes=quotes)
            at = end

    def _texts(self) -> Iterator[io.StringIO]:
        """Lines with their ends, span by span, until one is too long."""
        open_bytes = open_fields = rows_before = 0
        list_before, data_before = self._rows, b""
        for span in self._spans:
            if span.too_long:
                self._giant = span
                return
            # The csv module grows the list as it reads: no new row since the last span was taken means that it is all in one.
            if self._rows is list_before and len(self._rows) == rows_before:
                open_bytes += len(data_before)
                open_fields += data_before.count(self._delimiter)
            else:
                open_bytes = open_fields = 0
            list_before, rows_before, data_before = self._rows, len(self._rows), span.data
            if open_bytes > self._options.max_record_bytes or open_fields > _MAX_FIELDS:
                raise CorruptObjectError(
                    f"a row goes on for more than {self._options.max_record_bytes} bytes or {_MAX_FIELDS} fields (is a "
                    "quote never closed?), so the rows behind it cannot be told apart; see input.csv_quote"
                )
            self._text = _decode(span.data)
            self._lines = io.StringIO(self._text, newline="\n")
            yield self._lines
        self._ended = True

    def _fill(self, reader: CsvReader) -> tuple[str | None, bool, Exception | None]:
        """Read up to some rows. Returns what is wrong with the one behind them, whether all were read, a failure."""
        self._rows = []
        lines_before = reader.line_num
        try:
            # Rows that came before an error stay in the list.
            self._rows.extend(islice(reader, self._at_once))
        except csv.Error as exc:
            if str(exc) != "unexpected end of data":
                problem = str(exc) if not str(exc).startswith("new-line") else "a CR alone in it, which ends no line"
                if not self._leaves_open(reader.line_num - lines_before):
                    return f"not a row of CSV ({problem})", False, None
                return f"not a row of CSV ({problem})", True, _left_open("text behind a quoted field")
            cause = "the last row ends inside quotes: the object was cut short, or a quote is never closed"
            if self._giant is not None:
                cause = (
                    "a line in quotes is longer than input.max_record_bytes, so the rows behind it cannot be told apart"
                )
            return None, True, TruncatedObjectError(cause)
        except Exception as exc:  # noqa: BLE001 - raised again once the rows before it are out
            return None, True, exc
        return None, len(self._rows) < self._at_once, None

    def _leaves_open(self, lines: int) -> bool:
        """Return whether the row that cannot be read, the last of `lines`, ends inside quotes; a quote more decides it."""
        end = self._lines.tell()
        begin = self._text.rfind("\n", 0, end - 1) + 1
        quotes = self._text.count(self._options.csv_quote, begin, end) if self._quote else 0
        whole = sum(1 + sum(field.count("\n") for field in row) for row in self._rows)
        begun_before = lines - whole > 1  # then its last line begins inside quotes
        return (quotes + begun_before) % 2 == 1

    def _take_header(self, rows: list[list[str]]) -> None:
        while rows and not rows[0]:
            del rows[0]
        if not rows:
            return
        if not self._options.csv_header:
            self._width = len(rows[0])
            return
        names = rows.pop(0)
        if len(names) > _MAX_COLUMNS:
            raise CorruptObjectError(f"the header names more than {_MAX_COLUMNS} columns; is this CSV?")
        if any("\0" in name or (not name.isprintable() and not _is_text(name)) for name in names):
            raise CorruptObjectError("the header is not text in UTF-8: this is not CSV; see input.format")
        _refuse_json(names[0], names[-1])
        if len(set(names)) < len(names):
            # By number: of a file without a header, the names would be a record.
            places: dict[str, int] = {}
            first, second = next(
                (places[name], at) for at, name in enumerate(names) if places.setdefault(name, at) != at
            )
            raise CorruptObjectError(
                f"the header names a column twice (columns {first + 1} and {second + 1}); set input.csv_header = false to read "
                "rows as arrays"
            )
        self._width = len(names)
        chosen = list(range(len(names)))
        if self._options.columns:
            # Not listed in an error: of a file without a header, the names would be a record.
            fields = [Field(name, nothing_inside) for name in names]
            chosen = list(choose(self._options.columns, fields, listed=False))
            names = [names[place] for place in chosen]
            self._chosen = itemgetter(*chosen) if len(chosen) > 1 else itemgetter(slice(chosen[0], chosen[0] + 1))
        self._make = row_maker(tuple(names))
        self._encoded_rows = max(1, min(_ROWS_AT_ONCE, NAMES_BYTES // name_bytes(names)))
        if _Frames.fit(self._delimiter, self._width, len(names)):
            self._frames = _Frames(names, chosen, self._width, self._delimiter)

    def _take(self, rows: list[list[str]]) -> Runs:
        if self._width is None and rows:
            self._take_header(rows)
        if not all(rows):
            rows = list(filter(None, rows))
        if self._left:
            dropped = min(self._left, len(rows))
            self._left -= dropped
            rows = rows[dropped:]
        for at in range(0, len(rows), self._encoded_rows):
            yield from self._encode(rows[at : at + self._encoded_rows])

    def _encode(self, rows: list[list[str]]) -> Runs:
        return self._builder.add_encoded(partial(self._dump, rows), partial(iter, rows), self._dump_one, self._refused)

    def _dump_one(self, row: list[str]) -> bytes:
        return self._dump([row])[0]

    def _dump(self, rows: list[list[str]]) -> Sequence[bytes]:
        if self._chosen is not None and self._make is not None:
            if any(map(self._width.__ne__, map(len, rows))):
                raise ValueError("a row with too many or too few fields")
            return encode_all(starmap(self._make, map(self._chosen, rows)), len(rows))
        return encode_all(rows if self._make is None else starmap(self._make, rows), len(rows))

    def _refused(self, row: list[str], failure: Exception) -> Bad:
        del failure
        raw, reason = self._raw(row), "not UTF-8"
        if self._make is not None and len(row) != self._width:
            reason = f"{counted(len(row), 'field')} where the header has {self._width}"
        return RecordError(reason), raw, len(raw)

    def _take_giant(self, span: Span) -> Runs:
        limit = self._options.max_record_bytes
        if self._width is None and self._options.csv_header:
            raise CorruptObjectError("the header is longer than input.max_record_bytes; is this CSV?")
        error = too_large(limit) if span.length > limit else RecordTooLargeError(f"more than {_MAX_FIELDS} fields")
        yield from self._skipped(error, span.data, None)
        if span.quotes % 2:
            raise _left_open("a line that is too long")

    def _raw(self, row: list[str]) -> bytes:
        """The row written again: its bytes are gone, and may have had quotes where none were needed."""
        return self._options.csv_delimiter.join(
            f"{q}{field.replace(q, q + q)}{q}"
            if (q := self._options.csv_quote) and _needs_quotes(field, self._options)
            else field
            for field in row
        ).encode("utf-8", "surrogateescape")

    def _skipped(self, error: RecordError, raw: bytes, length: int | None) -> Runs:
        if self._left:
            self._left -= 1
            return
        yield from self._builder.bad(error, raw, length)


def _refuse_json(begin: str, end: str) -> None:
    """Refuse a header that begins and ends as a JSON object."""
    if _JSON_BEGIN.match(begin) and end.rstrip().endswith("}"):
        raise CorruptObjectError('the header is a JSON object, so this is no CSV; set input.format = "jsonl"')


def _left_open(what: str) -> CorruptObjectError:
    return CorruptObjectError(
        f"{what} leaves a quote open, so the rows behind it cannot be told apart; see input.csv_quote"
    )


class _Frames:
    """Rows of plain fields -> payloads, with the names put between the fields of all rows at once.

    Plain is a field that stands in the payload as it does in the row: without quotes, and nothing that JSON escapes. So no
    control character is in it, and the delimiters of each column become one of their own, which is replaced by a name.

    Args:
        names: of the chosen columns.
        places: theirs in the row.
        width: number of fields of a row.
        delimiter: between them.
    """

    def __init__(self, names: Sequence[str], places: Sequence[int], width: int, delimiter: bytes) -> None:
        self._places, self._width, self._delimiter = places, width, delimiter
        first, *others = [encode(name)[1:] + b':"' for name in names]
        self._first = b'{"' + first
        self._between = [b'","' + name for name in others]
        # What a row gains: all names, and its end, in place of what ends each field.
        self._gain = sum(map(len, (self._first, *self._between, _ROW_END))) - len(names)

    @staticmethod
    def fit(delimiter: bytes, width: int, chosen: int) -> bool:
        """Return whether lines can be told to be rows by their delimiters, and their columns by control characters."""
        is_plain = len(delimiter) == 1 and delimiter not in b'"\\\r\n'
        return is_plain and width > 1 and chosen <= len(_MARKS) + 1  # of one field, an empty line is none

    def payloads(self, data: bytes) -> PayloadColumn | None:
        """Return the payloads of whole lines; None when not each is a row of plain fields."""
        import numpy as np  # noqa: PLC0415 - loaded when used

        if b'"' in data or b"\\" in data:
            return None
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        if not data.endswith(b"\n"):
            data += b"\n"
        delimiter, width, chosen = self._delimiter, self._width, len(self._places)
        held = np.frombuffer(data, np.uint8)
        is_end = held == _LINE_FEED
        ends = np.flatnonzero(is_end)
        parted = np.flatnonzero(is_end | (held == delimiter[0]))
        controls = len(parted) if delimiter < b" " else len(ends)
        if (
            len(parted) != len(ends) * width
            or not np.array_equal(parted[width - 1 :: width], ends)
            or np.count_nonzero(held < _SPACE) != controls
            or len(ends) * self._gain > NAMES_BYTES
        ):
            return None
        try:
            check_utf8(data)
        except UnicodeDecodeError:
            return None
        if chosen == width:
            marked = held.copy()
        else:
            is_chosen = np.zeros((len(ends), width), bool)
            is_chosen[:, self._places] = True
            sizes = np.diff(parted, prepend=-1)  # of the fields, with what ends them
            marked = held[np.repeat(is_chosen.ravel(), sizes)]
            parted = sizes[is_chosen.ravel()].cumsum() - 1
        for at in range(chosen - 1):
            marked[parted[at::chosen]] = _MARKS[at]
        ends = parted[chosen - 1 :: chosen]
        marked[ends] = _LINE_FEED
        text = marked[:-1].tobytes()
        for at, name in enumerate(self._between):
            text = text.replace(_MARKS[at : at + 1], name)
        text = b"".join((self._first, text.replace(b"\n", _ROW_END + self._first), _ROW_END))
        return PayloadColumn(text, ends + self._gain * np.arange(1, len(ends) + 1))


def _needs_quotes(field: str, options: InputOptions) -> bool:
    return not {options.csv_delimiter, options.csv_quote, "\n", "\r"}.isdisjoint(field)


def _decode(data: bytes) -> str:
    """Decode; bytes that are not UTF-8 become lone surrogates, which cannot be encoded: the row is bad."""
    return data.decode("utf-8", "surrogateescape")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
