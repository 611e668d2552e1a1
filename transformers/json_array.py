"""One JSON array: every element is a record and goes out with the bytes it had, without the whitespace around it.

The array is read in pieces. How a piece is cut without reading it byte by byte: guess a comma between two elements near
its end; if `[` + what is before it + `]` is valid JSON, the guess is right, because then the text before the comma is a
sequence of whole elements. msgspec does that check, and gives every element's bytes, in C. A guess looks for the bytes
that stood between the first two elements, up to the second one's first key. Where guessing fails, elements are cut by
their brackets and quotes. Either way an element is checked as a line of `jsonl` is.

Between elements the syntax must be right, else the rest of the object cannot be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from contextlib import closing
from typing import ClassVar

import msgspec
from typing_extensions import override

from framework.errors import CorruptObjectError, RecordError, TruncatedObjectError
from framework.model.batches import SkippedRecord
from framework.model.objects import ResumePoint
from framework.model.utf8 import check_utf8
from framework.transformer import ObjectInput, PayloadBatch
from transformers.batches import RunBuilder, Runs, ShippedTransformer, keep_part, too_large
from transformers.compression import PIECE_BYTES, UnpackedStream

_WHITESPACE = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_STEPS = bytes(1 if byte in b"[{" else 255 if byte in b"]}" else 0 for byte in range(256))
"""Byte -> how much deeper it leads; 255 is -1."""
_IS_MARK = bytes(byte in b'"[]{},' for byte in range(256))
_NO_MARKS = bytes(byte for byte in range(256) if not _IS_MARK[byte])
_FEW_BYTES = 1 << 14
_GUESSES = 4
_GUESSED_BYTES = 1 << 21
_LONG_BYTES = 1 << 21
"""Of an element that is longer, parts are kept. Python's scanner, whose values take 40 times its memory, does not see it."""
_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
_element = msgspec.json.Decoder(msgspec.Raw).decode
_NOT_UTF8 = "not UTF-8"
_CUT = "Input data was truncated"
"""What msgspec says of JSON that only ends too early; of whatever else is wrong it says another thing."""
_NO_END = "the JSON array has no end: the object was cut short"
_separator = re.compile(rb'[ \t\r\n]*,[ \t\r\n]*(?:\{[ \t\r\n]*"[^"\\]*"|[\[{"]?)').match

_WORD_BYTES = 9
"""Length of the longest word of JSON: what is wrong so near the end may be one that is cut."""

# Numbers become floats only because their values are not looked at: `int` refuses very long ones.
_scan = json.JSONDecoder(parse_int=float).raw_decode


class JsonArrayTransformer(ShippedTransformer):
    """Elements of one array."""

    name: ClassVar[str] = "json"

    @override
    def _problem(self, record: bytes) -> str | None:
        return _problem(record)

    @override
    def _read(self, source: ObjectInput, skip: int, mark: ResumePoint | None, builder: RunBuilder) -> Runs:
        piece_bytes = max(len(_BOM), min(PIECE_BYTES, builder.limits.size_bytes))
        stream = UnpackedStream(source, self.options, piece_bytes=piece_bytes, text=True)
        with closing(stream):
            yield from _ArrayReader(stream, piece_bytes, skip, builder).read()


class _ArrayReader:
    """The state of one read: `_data` is what was read of the array and not handed out."""

    def __init__(self, stream: UnpackedStream, piece_bytes: int, skip: int, builder: RunBuilder) -> None:
        self._stream = stream
        self._piece_bytes = piece_bytes
        self._max_bytes = builder.max_record_bytes
        self._left = skip
        self._builder = builder
        self._data = b""
        self._between = b""
        self._first = True

    def read(self) -> Runs:
        if not self._begin():
            return
        if len(self._data) > _FEW_BYTES:
            self._between = _between(self._data, _ends_of(self._data[:_FEW_BYTES])[0])
        closed = False
        while not closed:
            while self._between and (yield from self._take_guessed()):
                pass
            closed = yield from self._take_scanned()
        while self._data or self._more():
            if self._data.strip(_WHITESPACE):
                raise CorruptObjectError("something follows the end of the JSON array")
            self._data = b""

    def _begin(self) -> bool:
        """Go to the first element. False when there is nothing but whitespace."""
        if not self._more():
            return False
        self._data = self._data.removeprefix(_BOM).lstrip(_WHITESPACE)
        while not self._data:
            if not self._more():
                return False
            self._data = self._data.lstrip(_WHITESPACE)
        if not self._data.startswith(b"["):
            raise CorruptObjectError(
                'not a JSON array: it does not begin with "["; if every line is a value, set input.format = "jsonl"'
            )
        self._data = self._data[1:]
        return True

    def _more(self) -> bool:
        """Read on; twice as much each time that one element needs, so that a long one is not scanned too often."""
        piece = self._stream.read_about(max(self._piece_bytes, len(self._data)))
        self._data = self._data + piece if self._data else piece
        return bool(piece)

    def _take_guessed(self) -> Generator[PayloadBatch | SkippedRecord, None, bool]:
        """Hand out all elements up to a comma near the end, if a guess finds one. Returns whether it did."""
        comma = self._between.index(b",", 1)
        end = min(len(self._data), _GUESSED_BYTES)
        for _ in range(_GUESSES):
            end = self._data.rfind(self._between, 0, end)
            if end < 0:
                break
            elements = _elements_in(self._data[: end + comma])
            if elements is not None:
                self._data = self._data[end + comma + 1 :]
                yield from self._take(elements)
                return True
        return False

    def _take_scanned(self) -> Generator[PayloadBatch | SkippedRecord, None, bool]:
        """Hand out elements that end in the data, or read on for one that does not. Returns whether the array is closed."""
        parts: list[bytes] = []
        length, depth, quoted, is_long = 0, 0, False, False
        most = min(_LONG_BYTES, self._max_bytes + self._piece_bytes)
        while True:
            data = self._data
            ends, next_depth, next_quoted = _ends_of(data, depth, quoted=quoted)
            if ends:
                break
            if is_long or len(data) > most:
                _check_begun(data, is_checked=is_long)
                is_long, depth, quoted = True, next_depth, next_quoted
                part, self._data = _without_end(data, is_value_over=not depth and not quoted)
                length += self._keep(parts, part, length)
            if not self._more():
                _check_begun(data, is_checked=is_long)
                raise TruncatedObjectError(_NO_END)
            if not is_long:
                return False
        last = ends[0] if is_long else ends[-1]
        close, self._data = data[last : last + 1], data[last + 1 :]
        if is_long:
            length += self._keep(parts, data[:last].rstrip(_WHITESPACE), length)
            yield from self._take_one(b"".join(parts), length, close)
        elif close != b"}" and (elements := _elements_in(data[:last])):
            self._between = self._between or _between(data, ends)
            yield from self._take(elements)
        else:
            at = 0
            for end in ends:
                element = data[at:end].strip(_WHITESPACE)
                yield from self._take_one(element, len(element), data[end : end + 1])
                at = end + 1
        return close == b"]"

    def _keep(self, parts: list[bytes], part: bytes, length: int) -> int:
        """Add a part to those of a long element, of which only the beginning is kept when it is too long."""
        if not length:
            part = part.lstrip(_WHITESPACE)
        keep_part(parts, part, length, self._max_bytes)
        return len(part)

    def _take(self, elements: list[bytes]) -> Runs:
        """Hand out elements that are JSON values."""
        self._first = False
        if self._left:
            dropped = min(self._left, len(elements))
            self._left -= dropped
            elements = elements[dropped:]
        size = sum(map(len, elements))
        if size <= self._max_bytes or max(map(len, elements)) <= self._max_bytes:
            yield from self._builder.add(elements, size)
        else:
            for element in elements:
                yield from self._take_one(element, len(element), b",")

    def _take_one(self, element: bytes, length: int, close: bytes) -> Runs:
        """Hand out one element of that length, of which there may be the beginning only, and behind which stands `close`."""
        if not element and self._first and close == b"]":
            return
        problem = _problem(element) if length == len(element) else None
        if close == b"}" or (problem is not None and not _is_whole(element, problem)):
            raise CorruptObjectError(f"an element of the JSON array is {problem or 'not JSON'}")
        self._first = False
        if self._left:
            self._left -= 1
        elif length > self._max_bytes:
            yield from self._builder.bad(too_large(self._max_bytes), element, length)
        elif problem is not None:
            yield from self._builder.bad(RecordError(problem), element, length)
        else:
            yield from self._builder.add([element], length)


def _elements_in(body: bytes) -> list[bytes] | None:
    """Return the elements in the bytes between the brackets of an array; None when these are not valid JSON."""
    try:
        raws = _elements(b"[%b]" % body)
        check_utf8(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return list(map(bytes, raws))


def _ends_of(data: bytes, depth: int = 0, *, quoted: bool = False) -> tuple[list[int], int, bool]:
    """Return where elements of the array end, and how deep and whether within quotes the data ends.

    Args:
        data: bytes of the array.
        depth: how many brackets are open before them, of elements.
        quoted: whether a quote is.
    """
    import numpy as np  # noqa: PLC0415 - loaded when used

    unescaped = data.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    marks = unescaped.translate(None, _NO_MARKS)
    held = np.frombuffer(marks, np.uint8)
    inside = ((held == ord('"')).view(np.uint8).cumsum(dtype=np.uint8) + quoted) & 1 == 1
    steps = np.frombuffer(marks.translate(_STEPS), np.int8) * ~inside
    depths = steps.cumsum(dtype=np.int32)
    depths += depth
    closed = np.flatnonzero(depths < 0)[:1]
    ends = np.flatnonzero((held == ord(",")) & (depths == 0) & ~inside)
    if len(closed):
        ends = np.append(ends[ends < closed[0]], closed)
    if len(ends):
        ends = np.flatnonzero(np.frombuffer(unescaped.translate(_IS_MARK), bool))[ends]
    return ends.tolist(), depth + int(steps.sum()), (marks.count(b'"') + quoted) % 2 == 1


def _without_end(part: bytes, *, is_value_over: bool) -> tuple[bytes, bytes]:
    """Return a part of a long element, and what at its end is only understood with what follows.

    That is whitespace, which is no part of the element if that is over, and a backslash that escapes the next byte.
    """
    if is_value_over:
        kept = part.rstrip(_WHITESPACE)
        return kept, b" " if len(kept) < len(part) else b""
    if (len(part) - len(part.rstrip(b"\\"))) % 2:
        return part[:-1], b"\\"
    return part, b""


def _check_begun(data: bytes, *, is_checked: bool) -> None:
    """Check the beginning of an element that has no end yet: one that is no JSON must not take its neighbours with it.

    Raises:
        CorruptObjectError: whatever follows, it is no JSON.
    """
    if is_checked:  # it goes on in pieces
        return
    try:
        _element(data)
    except (msgspec.DecodeError, RecursionError) as exc:
        if str(exc) == _CUT:
            return
    text = data.decode("utf-8", "surrogateescape").strip(" \t\r\n")
    try:
        _scan(text)
    except json.JSONDecodeError as error:
        if not error.msg.startswith("Unterminated string") and error.pos < len(text) - _WORD_BYTES:
            raise CorruptObjectError(f"an element of the JSON array is not JSON ({error.msg})") from None
    except RecursionError:  # said where it is taken
        pass


def _is_whole(element: bytes, problem: str) -> bool:
    """Return whether an element with this problem ends where Python's scanner, which knows NaN and half pairs, finds its end."""
    if len(element) > _LONG_BYTES:
        return problem == _NOT_UTF8
    text = element.decode("utf-8", "surrogateescape")
    try:
        return _scan(text)[1] == len(text)
    except (json.JSONDecodeError, RecursionError):
        return False


def _problem(element: bytes) -> str | None:
    """Return the fault of an element; None when it is a JSON value."""
    try:
        check_utf8(element)
        _element(element)
    except UnicodeDecodeError:
        return _NOT_UTF8
    except msgspec.DecodeError as exc:
        return f"not JSON ({exc})"
    except RecursionError:
        return "nested too deeply to check (about 1,000 levels)"
    return None


def _between(data: bytes, ends: list[int]) -> bytes:
    """Return the last byte of the first element, what stands between it and the second, and that one's first key.

    Nothing without a second.
    """
    begin = len(data[: ends[0]].rstrip(_WHITESPACE)) if len(ends) > 1 else 0
    if not begin:
        return b""
    found = _separator(data, begin)
    return data[begin - 1 : begin] + (b"," if found is None else found.group())
