"""Lines: pieces of bytes -> blocks of lines, split in C, wherever the borders of the pieces are.

A line ends with LF or CR LF; a CR elsewhere belongs to it. A line of nothing but whitespace is no record. A UTF-8 byte
order mark at the object's start is dropped. No line is held whole once it is longer than the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from string import whitespace
from typing import ClassVar

import attrs
from typing_extensions import override

from framework.errors import RecordError
from framework.model.batches import SkippedRecord
from framework.model.objects import ResumePoint
from framework.model.payloads import PayloadColumn, size_of
from framework.model.splits import Split
from framework.transformer import BatchLimits, ObjectInput, PayloadBatch
from transformers.batches import RAW_BYTES, RunBuilder, Runs, SplittableTransformer, too_large
from transformers.compression import UnpackedStream, is_plain, is_wide
from transformers.split_lines import SplitLines

_BOM = b"\xef\xbb\xbf"

_BLANKS = whitespace.encode()

_BLOCK_BYTES = 1 << 19
"""About how much is split and checked at a time: what the streams of stores give at once, and small enough for caches."""

_COLUMN_BYTES = 4096
"""The size from which lines become a column; a list of less is quicker."""


@attrs.frozen(slots=True)
class Span:
    """Bytes of whole lines.

    Attributes:
        data: the lines with their ends; of a line that is too long, its beginning.
        start: offset of the first byte in the unpacked stream.
        ended: whether the last line has an end; only the object's last may have none.
        too_long: this is one line, longer than allowed.
        length: of a line that is too long, how many bytes it has without its end.
        quotes: of a line that is too long, how many quotes are in it.
    """

    data: bytes = attrs.field(repr=False)
    start: int
    ended: bool = True
    too_long: bool = False
    length: int = 0
    quotes: int = 0


def whole_lines(  # noqa: C901, PLR0912 - one loop with three states: nothing carried, a line begun, one too long
    stream: UnpackedStream, start: int, piece_bytes: int, max_bytes: int, quote: bytes = b""
) -> Iterator[Span]:
    """All bytes from `start` on, where a line begins: about a piece at a time, and each line too long by itself.

    Where `quote` is given it is counted in lines that are too long.
    """
    # The first piece must hold a whole byte order mark.
    piece_bytes = max(len(_BOM), piece_bytes)
    at = start  # of the first line not yielded yet
    carry: list[bytes] = []  # pieces of a line whose end was not read yet
    carried = 0
    giant: bytearray | None = None  # the beginning of a line that is too long, once it is
    giant_blank = False
    quotes = 0
    tail = b""
    while piece := stream.read_about(piece_bytes):
        if at == 0 and not carried and piece.startswith(_BOM):
            at = len(_BOM)
            piece = piece[at:]
        begin, cut = 0, piece.rfind(b"\n") + 1
        if cut:
            if giant is not None:
                begin = piece.index(b"\n") + 1
                giant += piece[: min(begin, RAW_BYTES - len(giant))]
                quotes += piece.count(quote, 0, begin) if quote else 0
                if not giant_blank or piece[:begin].strip():
                    before = piece[begin - 2 : begin - 1] if begin > 1 else tail[-1:]
                    length = carried + begin - (2 if before == b"\r" else 1)
                    yield Span(bytes(giant[:length]), at, too_long=True, length=length, quotes=quotes)
                at += carried + begin
                giant = None
            if begin < cut:
                as_it_is = not carry and cut - begin == len(piece)
                data = piece if as_it_is else b"".join((*carry, memoryview(piece)[begin:cut]))
                yield from _without_giants(Span(data, at), max_bytes, quote)
                at += len(data)
            carry, carried = [], 0
        if cut < len(piece):
            tail = piece[cut:]
            carried += len(tail)
            if giant is not None:
                giant += tail[: RAW_BYTES - len(giant)]
                giant_blank = giant_blank and not tail.strip()
                quotes += tail.count(quote) if quote else 0
            else:
                carry.append(tail)
                # One more than allowed may be a CR before the LF to come.
                if carried > max_bytes + 1:
                    whole = b"".join(carry)
                    giant, giant_blank, carry = bytearray(whole[:RAW_BYTES]), not whole.strip(), []
                    quotes = whole.count(quote) if quote else 0
                    del whole
    if giant is not None:
        if not giant_blank:
            yield Span(bytes(giant), at, too_long=True, length=carried, quotes=quotes)
    elif carry:
        yield from _without_giants(Span(b"".join(carry), at, ended=False), max_bytes, quote)


def _without_giants(span: Span, max_bytes: int, quote: bytes) -> Iterable[Span]:
    """The span, or its parts when some of its lines are too long."""
    lines = span.data.split(b"\n") if len(span.data) > max_bytes else []
    if not lines or max(map(len, lines)) <= max_bytes:
        return (span,)
    return _giants_apart(span, lines, max_bytes, quote)


def _giants_apart(span: Span, lines: list[bytes], max_bytes: int, quote: bytes) -> Iterator[Span]:
    if span.ended:
        del lines[-1]
    begin = here = 0
    for line in lines:
        core = line.removesuffix(b"\r") if span.ended else line
        if len(core) > max_bytes and core.strip():
            if begin < here:
                yield Span(span.data[begin:here], span.start + begin)
            quotes = core.count(quote) if quote else 0
            yield Span(core[:RAW_BYTES], span.start + here, too_long=True, length=len(core), quotes=quotes)
            begin = here + len(line) + 1
        here += len(line) + 1
    if begin < len(span.data):
        yield Span(span.data[begin:], span.start + begin, ended=span.ended)


def split_lines(span: Span) -> tuple[Sequence[bytes], int | None]:
    """Return the lines of a span without their ends, and how many bytes each end takes; None when these differ.

    Many lines are a column; some may be blank. Of a line that is too long it is the beginning.
    """
    data = span.data
    if span.too_long or not span.ended:
        return [data], None
    returns = data.count(b"\r\n") if b"\r" in data else 0
    if returns:
        data = data.replace(b"\r\n", b"\n")
    lines: Sequence[bytes] = PayloadColumn(data) if len(data) >= _COLUMN_BYTES else data.split(b"\n")[:-1]
    return lines, 2 if returns == len(lines) else None if returns else 1


def whole_block(data: bytes) -> Sequence[bytes] | None:
    """The lines of a small object; None for those that are not read at once: with a mark, in UTF-16, or a cut end."""
    if data.startswith(_BOM) or is_wide(data):
        return None
    if b"\r" in data:  # one byte is found in a tenth of the time of two
        data = data.replace(b"\r\n", b"\n")
    if not data.endswith(b"\n"):
        return data.split(b"\n") if len(data) < _COLUMN_BYTES else None
    if len(data) >= _COLUMN_BYTES:
        return PayloadColumn(data)
    lines = data.split(b"\n")
    lines.pop()
    return lines


def none_blank(lines: Sequence[bytes]) -> bool:
    """Return whether no line is blank."""
    if isinstance(lines, PayloadColumn):
        first = lines.first_bytes.tobytes()
        if len(first.translate(None, _BLANKS)) == len(first):
            return True
    return all(map(bytes.strip, lines))


def _piece_bytes(limits: BatchLimits) -> int:
    """No longer than a run may be: what one object holds in memory follows from the limits."""
    return min(_BLOCK_BYTES, limits.size_bytes)


class LineTransformer(SplittableTransformer):
    """The base of the formats whose records are lines. A subclass may check them.

    A run's mark is exact, the byte behind its last record, unless something compresses the object or the lines around
    it are blank or end in different ways; then it is the nearest border before.
    """

    max_whole_bytes: ClassVar[int] = _BLOCK_BYTES
    numbered_by: ClassVar[tuple[str, ...]] = ("compression",)

    def _good_lines(self, lines: Sequence[bytes], *, ascii_only: bool) -> Sequence[bytes] | None:
        """Return the lines when surely none is bad or blank, else None; the quick test of every block.

        A column may come back with what the test made of its lines.
        """
        del ascii_only
        return lines if none_blank(lines) else None

    @override
    def read_whole(self, data: bytes, *, key: str, limits: BatchLimits) -> PayloadBatch | None:
        options, size = self.options, len(data)
        if size > options.max_record_bytes or size >= limits.size_bytes or not is_plain(data, options.compression, key):
            return None
        lines = whole_block(data)
        if lines is None or not 0 < len(lines) < limits.records:
            return None
        good = self._good_lines(lines, ascii_only=data.isascii())
        if good is None:
            return None
        payloads = tuple(good) if type(good) is list else good  # not copied again
        return PayloadBatch(first_record=1, payloads=payloads, size_bytes=size_of(payloads))

    @override
    def _read(self, source: ObjectInput, skip: int, mark: ResumePoint | None, builder: RunBuilder) -> Runs:
        done, start = 0, 0
        if mark is not None and mark.record <= skip:
            done, start = mark.record, mark.byte
        if start >= source.size:
            return
        piece_bytes = _piece_bytes(builder.limits)
        stream = UnpackedStream(source, self.options, start=start, piece_bytes=piece_bytes, text=True)
        with closing(stream):
            yield from self._lines_of(stream, start, skip - done, builder)

    @override
    def _read_split(
        self, source: ObjectInput, split: Split, skip: int, mark: ResumePoint | None, builder: RunBuilder
    ) -> Runs:
        stream = SplitLines(source, split, self.options, mark=mark, piece_bytes=_piece_bytes(builder.limits))
        with closing(stream):
            start = stream.seek()
            if start is not None:
                yield from self._lines_of(stream, start, skip - (mark.record if mark is not None else 0), builder)

    def _lines_of(self, stream: UnpackedStream, start: int, drop_records: int, builder: RunBuilder) -> Runs:
        """The records of a stream that begins with a line at byte `start`, without the first `drop_records`."""
        for span in whole_lines(stream, start, _piece_bytes(builder.limits), self.options.max_record_bytes):
            if span.data.isspace():
                continue  # at once: each blank line would take as long as a record
            lines, overhead = split_lines(span)
            drop = 0
            if drop_records:
                here = 1 if span.too_long else sum(map(bool, map(bytes.strip, lines)))
                if here <= drop_records:
                    drop_records -= here
                    continue
                drop, drop_records = drop_records, 0
            yield from self._take(span, lines, overhead, drop, builder, is_packed=stream.packed)

    def _take(
        self,
        span: Span,
        lines: Sequence[bytes],
        overhead: int | None,
        drop: int,
        builder: RunBuilder,
        *,
        is_packed: bool,
    ) -> Iterable[PayloadBatch | SkippedRecord]:
        """Add the lines of a span without its first `drop` records; return the runs that are full."""
        ascii_only = span.data.isascii()
        good = None if drop or span.too_long else self._good_lines(lines, ascii_only=ascii_only)
        if not drop and not is_packed:
            builder.border(span.start, overhead=overhead if good is not None else None)
        offset = None if is_packed else span.start
        if span.too_long:
            error = too_large(self.options.max_record_bytes, byte_offset=offset)
            return builder.bad(error, span.data, span.length)
        if good is None:
            good = self._good_lines(list(filter(bytes.strip, lines))[drop:], ascii_only=ascii_only)
        if good is not None:
            return builder.add(good, size_of(good))
        return self._take_one_by_one(lines, overhead, drop, builder, offset)

    def _take_one_by_one(
        self, lines: Sequence[bytes], overhead: int | None, drop: int, builder: RunBuilder, offset: int | None
    ) -> Runs:
        good: list[bytes] = []
        for line in lines:
            if line.strip():
                if drop:
                    drop -= 1
                elif (problem := self._problem(line)) is None:
                    good.append(line)
                else:
                    if good:
                        yield from builder.add(good, size_of(good))
                        good = []
                    yield from builder.bad(RecordError(problem, byte_offset=offset), line, len(line))
            if offset is not None:
                offset = None if overhead is None else offset + len(line) + overhead
        if good:
            yield from builder.add(good, size_of(good))
