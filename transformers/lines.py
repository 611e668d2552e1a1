"""Lines: pieces of bytes -> blocks of lines, split in C, wherever the borders of the pieces are.

A line ends with LF or CR LF; a CR elsewhere belongs to it. A line of nothing but whitespace is no record. A UTF-8 byte
order mark at the object's start is dropped. No line is held whole once it is longer than the limit.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from contextlib import closing

import attrs
from typing_extensions import override

from framework.errors import RecordError
from framework.records import Mark, SkippedRecord
from framework.transformer import ObjectInput, PayloadRun
from transformers.compression import PIECE_BYTES, UnpackedStream
from transformers.runs import RAW_BYTES, RunBuilder, ShippedTransformer, too_large

_BOM = b"\xef\xbb\xbf"


@attrs.frozen(slots=True)
class LineBlock:
    """Consecutive lines.

    Attributes:
        lines: without their ends; some may be blank. Of a line that is too long, its beginning.
        start: offset of the first in the unpacked stream.
        overhead: bytes that each line's end takes, when all take the same; else None.
        ascii: whether all of them are surely ASCII.
        too_long: this is one line, longer than allowed.
    """

    lines: list[bytes]
    start: int
    overhead: int | None
    ascii: bool = False
    too_long: bool = False


def line_blocks(  # noqa: C901, PLR0912 - one loop with three states: nothing carried, a line begun, one too long
    stream: UnpackedStream, start: int, piece_bytes: int, max_bytes: int
) -> Iterator[LineBlock]:
    """All lines from `start` on, where a line begins; one block per piece that is read, and one per line too long."""
    at = start  # of the first line not yielded yet
    carry: list[bytes] = []  # pieces of a line whose end was not read yet
    carried = 0
    giant: bytes | None = None  # the beginning of a line that is too long, once it is; its pieces are no longer kept
    giant_blank = False
    while piece := stream.read_about(piece_bytes):
        if at == 0 and not carried and piece.startswith(_BOM):
            at = 3
            piece = piece[3:]
        lines = piece.split(b"\n")
        tail = lines.pop()
        if lines:
            length = carried + len(piece) - len(tail)
            if giant is not None:
                giant_blank = giant_blank and not lines[0].strip()
                if not giant_blank:
                    yield LineBlock([giant], at, None, too_long=True)
                skipped = carried + len(lines[0]) + 1
                at, length, giant = at + skipped, length - skipped, None
                del lines[0]
            elif carry:
                lines[0] = b"".join((*carry, lines[0]))
            if lines:
                yield from _blocks(
                    lines,
                    at,
                    max_bytes,
                    size=length,
                    has_cr=b"\r" in piece or lines[0].endswith(b"\r"),
                    ascii_only=piece.isascii() and lines[0].isascii(),
                )
            at += length
            carry, carried = [], 0
        if tail:
            carried += len(tail)
            if giant is None:
                carry.append(tail)
                # One more than allowed may be a CR before the LF to come.
                if carried > max_bytes + 1:
                    whole = b"".join(carry)
                    giant, giant_blank, carry = whole[:RAW_BYTES], not whole.strip(), []
                    del whole
            else:
                giant_blank = giant_blank and not tail.strip()
    if giant is not None:
        if not giant_blank:
            yield LineBlock([giant], at, None, too_long=True)
    elif carry:
        last = b"".join(carry)
        if len(last) > max_bytes and last.strip():
            yield LineBlock([last[:RAW_BYTES]], at, None, too_long=True)
        else:
            yield LineBlock([last], at, None)


def _blocks(
    lines: list[bytes], at: int, max_bytes: int, *, size: int, has_cr: bool, ascii_only: bool
) -> Iterator[LineBlock]:
    """One block of these ended lines of `size` bytes, or several when some are too long."""
    if size > max_bytes and max(map(len, lines)) > max_bytes:
        first, start, here = 0, at, at
        for index, line in enumerate(lines):
            core = line[:-1] if line.endswith(b"\r") else line
            after = here + len(line) + 1
            if len(core) > max_bytes and core.strip():
                if first < index:
                    yield _block(lines[first:index], start, has_cr=has_cr, ascii_only=ascii_only)
                yield LineBlock([core[:RAW_BYTES]], here, None, too_long=True)
                first, start = index + 1, after
            here = after
        lines, at = lines[first:], start
    if lines:
        yield _block(lines, at, has_cr=has_cr, ascii_only=ascii_only)


def _block(lines: list[bytes], at: int, *, has_cr: bool, ascii_only: bool) -> LineBlock:
    overhead: int | None = 1
    if has_cr:
        ends = sum(line.endswith(b"\r") for line in lines)
        lines = [line[:-1] if line.endswith(b"\r") else line for line in lines]
        overhead = 2 if ends == len(lines) else None if ends else 1
    return LineBlock(lines, at, overhead, ascii_only)


class LineTransformer(ShippedTransformer):
    """The base of the formats whose records are lines. A subclass may check them.

    A run's mark is exact, the byte behind its last record, unless something compresses the object or the lines around
    it are blank or end in different ways; then it is the nearest border before.
    """

    @override
    def depends_on(self) -> Mapping[str, str]:
        return {"format": self.name, "compression": self.options.compression}

    @abc.abstractmethod
    def _all_good(self, lines: list[bytes], *, ascii_only: bool) -> bool:
        """Whether surely none of the lines is bad; a blank line is. The fast way: called for every block."""

    @abc.abstractmethod
    def _problem(self, line: bytes) -> str | None:
        """What is wrong with a line that is not blank. Called for each line of a block that is not all good."""

    @override
    def _read(
        self, source: ObjectInput, skip: int, mark: Mark | None, builder: RunBuilder
    ) -> Iterator[PayloadRun | SkippedRecord]:
        done, start = 0, 0
        if mark is not None and mark.record <= skip:
            done, start = mark.record, mark.byte
        if start >= source.size:
            return
        # A piece is no longer than a run may be: what one object holds in memory follows from the limits. The first
        # must hold a whole byte order mark.
        piece_bytes = max(len(_BOM), min(PIECE_BYTES, builder.limits.size_bytes))
        stream = UnpackedStream(source, self.options.compression, start=start, piece_bytes=piece_bytes)
        with closing(stream):
            for block in line_blocks(stream, start, piece_bytes, self.options.max_record_bytes):
                drop = 0
                if done < skip:
                    here = 1 if block.too_long else sum(map(bool, map(bytes.strip, block.lines)))
                    if done + here <= skip:
                        done += here
                        continue
                    drop, done = skip - done, skip
                if not drop and not stream.packed:
                    builder.border(block.start)
                yield from self._take(block, drop, builder, stream)

    def _take(
        self, block: LineBlock, drop: int, builder: RunBuilder, stream: UnpackedStream
    ) -> Iterator[PayloadRun | SkippedRecord]:
        """Adds a block without its first `drop` records."""
        lines = block.lines
        if block.too_long:
            offset = None if stream.packed else block.start
            error = too_large(stream.location, builder.next_record, self.options.max_record_bytes, byte_offset=offset)
            yield from builder.skipped(
                SkippedRecord(record_number=builder.next_record, error=error, raw=block.lines[0])
            )
            return
        if not drop and self._all_good(lines, ascii_only=block.ascii):
            if block.overhead is not None and not stream.packed:
                builder.border(block.start, overhead=block.overhead)
            yield from builder.add(lines, sum(map(len, lines)))
            return
        lines = list(filter(bytes.strip, lines))[drop:]
        if self._all_good(lines, ascii_only=block.ascii):
            yield from builder.add(lines, sum(map(len, lines)))
            return
        yield from self._take_one_by_one(block, drop, builder, stream)

    def _take_one_by_one(
        self, block: LineBlock, drop: int, builder: RunBuilder, stream: UnpackedStream
    ) -> Iterator[PayloadRun | SkippedRecord]:
        offset = None if stream.packed else block.start
        good: list[bytes] = []
        for line in block.lines:
            if line.strip():
                if drop:
                    drop -= 1
                elif (problem := self._problem(line)) is None:
                    good.append(line)
                else:
                    if good:
                        yield from builder.add(good, sum(map(len, good)))
                        good = []
                    error = RecordError(
                        problem, location=stream.location, record_number=builder.next_record, byte_offset=offset
                    )
                    yield from builder.skipped(
                        SkippedRecord(record_number=builder.next_record, error=error, raw=line[:RAW_BYTES])
                    )
            if offset is not None:
                offset = None if block.overhead is None else offset + len(line) + block.overhead
        if good:
            yield from builder.add(good, sum(map(len, good)))
