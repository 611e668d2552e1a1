"""One JSON array: every element is a record and goes out with the bytes it had, without the whitespace around it.

The array is read in pieces. How a piece is cut without reading it byte by byte: guess a comma between two elements near
its end; if `[` + what is before it + `]` is valid JSON, the guess is right, because then the text before the comma is a
sequence of whole elements. msgspec does that check, and gives every element's bytes, in C. A guess looks for the bytes
that stood between the first two elements, up to the second one's first key. Where guessing fails, Python's own scanner
finds the end of one element after the other; it builds the values, so a long element is cut by its brackets and quotes
alone. Either way an element is checked as a line of `jsonl` is.

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
_GUESSES = 4
_FEW_BYTES = 2000
_GUESSED_BYTES = 1 << 21
_SCANNED_BYTES = 1 << 21
"""Up to this Python's scanner looks for an element's end: its values take up to 40 times the memory of their text."""
_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
_element = msgspec.json.Decoder(msgspec.Raw).decode
_NOT_UTF8 = "not UTF-8"
_NO_END = "the JSON array has no end: the object was cut short"
_whitespace = re.compile(r"[ \t\r\n]*").match
_begun_fraction = re.compile(r"(?:\.|[eE][+-]?)\Z").match
_separator = re.compile(r'[ \t\r\n]*,[ \t\r\n]*(?:\{[ \t\r\n]*"[^"\\]*"|[\[{"]?)').match
_outside = re.compile(rb'["\[\]{},]').search
_inside = re.compile(rb'["\\]').search
_whole_escapes = re.compile(rb'[^"\\]*(?:\\.[^"\\]*){0,1000}', re.DOTALL).match


# Numbers become floats only because their values are not looked at: `int` refuses very long ones.
_scan = json.JSONDecoder(parse_int=float).raw_decode
_MAX_WORD_BYTES = 9
"""`-Infinity`: how far before the end of the text an error can stand that more text would mend."""


class JsonArrayTransformer(ShippedTransformer):
    """Elements of one array."""

    name: ClassVar[str] = "json"

    @override
    def decode_record(self, raw: bytes, *, key: str) -> bytes:
        problem = _problem(self._fitting(raw))
        if problem is not None:
            raise RecordError(problem)
        return raw

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
        closed = False
        while not closed:
            if self._between:
                yield from self._take_guessed()
            knew = bool(self._between)
            closed = yield from self._take_scanned()
            if closed or (self._between and not knew):
                continue
            if len(self._data) > min(_SCANNED_BYTES, self._max_bytes + self._piece_bytes):
                closed = yield from self._take_long()
            elif not self._more():
                raise TruncatedObjectError(_NO_END)
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

    def _take_guessed(self) -> Runs:
        """Hand out all elements up to a comma near the end, if a guess finds one."""
        comma = self._between.index(b",", 1)
        end = min(len(self._data), _GUESSED_BYTES)
        for _ in range(_GUESSES):
            end = self._data.rfind(self._between, 0, end)
            if end < 0:
                return
            body = self._data[: end + comma]
            try:
                raws = _elements(b"[%b]" % body)
                check_utf8(body)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            self._data = self._data[end + comma + 1 :]
            self._first = False
            elements = list(map(bytes, raws))
            if self._left:
                dropped = min(self._left, len(elements))
                self._left -= dropped
                elements = elements[dropped:]
            size = sum(map(len, elements))
            if size <= self._max_bytes or max(map(len, elements)) <= self._max_bytes:
                yield from self._builder.add(elements, size)
            else:
                for element in elements:
                    yield from self._take_one(element)
            return

    def _take_scanned(self) -> Generator[PayloadBatch | SkippedRecord, None, bool]:
        """Hand out one element after the other, as far as they are whole. Returns whether the array is closed.

        Stops as soon as it has seen what stands between two elements for the first time.
        """
        text = self._data.decode("utf-8", "surrogateescape")
        taken, last_end = 0, -1
        closed = False
        while not closed:
            start = _skip_whitespace(text, taken)
            if self._first and text.startswith("]", start):
                taken, closed = start + 1, True
                break
            end = self._scan_one(text, start)
            comma = len(text) if end is None else _skip_whitespace(text, end)
            if end is None or comma == len(text) or _begun_fraction(text, end):
                break  # what follows decides: a number may go on
            if text[comma] not in ",]":
                raise CorruptObjectError("there is no comma between two elements of the JSON array")
            self._first = False
            yield from self._take_one(text[start:end].encode("utf-8", "surrogateescape"))
            taken, closed = comma + 1, text[comma] == "]"
            if not self._between and last_end >= 0:
                self._between = _between(text, last_end).encode("utf-8", "surrogateescape")
                break
            last_end = end
        if taken:
            rest = self._data[taken:] if self._data.isascii() else text[taken:].encode("utf-8", "surrogateescape")
            self._data = rest.lstrip(_WHITESPACE)
        return closed

    def _scan_one(self, text: str, start: int) -> int | None:
        """Return the end of the element that begins at `start`; None when the text ends first."""
        try:
            return _scan(text, start)[1]
        except RecursionError:
            raise CorruptObjectError("an element is nested too deeply to find its end (about 1,000 levels)") from None
        except json.JSONDecodeError as exc:
            near_end = exc.pos >= len(text.rstrip(" \t\r\n")) - _MAX_WORD_BYTES
            if exc.msg.startswith("Unterminated string") or (near_end and text.find("]", exc.pos) < 0):
                return None
            raise CorruptObjectError(f"an element of the JSON array is not JSON ({exc.msg})") from None

    def _take_one(self, element: bytes, length: int = 0) -> Runs:
        """Hand out one element; `length` is that of a long one, of which there may be the beginning only."""
        if self._left and not length:
            self._left -= 1
            return
        too_long = max(length, len(element)) > self._max_bytes
        problem = None if too_long else _problem(element)
        if problem not in {None, _NOT_UTF8} and length and not _is_whole(element):
            raise CorruptObjectError(f"an element of the JSON array is {problem}")
        if self._left:
            self._left -= 1
        elif too_long:
            yield from self._builder.bad(too_large(self._max_bytes), element, length or len(element))
        elif problem is not None:
            yield from self._builder.bad(RecordError(problem), element, len(element))
        else:
            yield from self._builder.add([element], len(element))

    def _take_long(self) -> Generator[PayloadBatch | SkippedRecord, None, bool]:  # noqa: C901, PLR0912 - a scanner
        """Hand out, or leave out, an element that is long. Returns whether the array is closed behind it."""
        parts: list[bytes] = []
        length = depth = at = 0
        quoted, gap = False, b""
        while True:
            if quoted and at < len(self._data) and (inside := _whole_escapes(self._data, at)) is not None:
                at = inside.end()
            if depth and not quoted:
                at, depth = _without_strings(self._data, at, depth)
            found = (_inside if quoted else _outside)(self._data, at)
            if found is None:
                at = max(0, at - len(self._data))
                part, gap = gap + self._data, b""
                if not (depth or quoted):
                    part, gap = _without_end(part)
                length += self._keep(parts, part, length)
                self._data = b""
                if not self._more():
                    raise TruncatedObjectError(_NO_END)
                continue
            at, char = found.end(), found.group()
            if char == b"\\":
                at += 1  # the escaped byte, which may be the next piece's first
            elif char == b'"':
                quoted = not quoted
            elif char in b"[{":
                depth += 1
            elif depth and char in b"]}":
                depth -= 1
            elif not depth:
                break
        if char == b"}":
            raise CorruptObjectError("an element of the JSON array is not JSON")
        length += self._keep(parts, (gap + self._data[: at - 1]).rstrip(_WHITESPACE), length)
        self._data = self._data[at:]
        element = b"".join(parts)
        del parts
        if element:
            yield from self._take_one(element, length)
        elif not self._first or char != b"]":
            raise CorruptObjectError("an element of the JSON array is not JSON")
        self._first = False
        return char == b"]"

    def _keep(self, parts: list[bytes], part: bytes, length: int) -> int:
        """Add a part to those of a long element, of which only the beginning is kept when it is too long."""
        if not length:
            part = part.lstrip(_WHITESPACE)
        keep_part(parts, part, length, self._max_bytes)
        return len(part)


def _without_end(part: bytes) -> tuple[bytes, bytes]:
    """Return a part without the whitespace at its end, which is no part of the element if that ends here, and a space."""
    kept = part.rstrip(_WHITESPACE)
    return kept, b" " if len(kept) < len(part) else b""


def _without_strings(data: bytes, at: int, depth: int) -> tuple[int, int]:
    """Scan a long part without quotes to the end of the value; return where it stops, and the depth there."""
    end = data.find(b'"', at)
    end = len(data) if end < 0 else end
    if end - at < _FEW_BYTES:
        return at, depth
    import numpy as np  # noqa: PLC0415 - only for long elements

    steps = np.zeros(256, np.int8)
    steps[[*b"[{"]], steps[[*b"]}"]] = 1, -1
    depths = np.cumsum(steps[np.frombuffer(data, np.uint8, end - at, at)], dtype=np.int32) + depth
    closed = int(np.argmax(depths == 0))
    return (at + closed + 1, 0) if depths[closed] == 0 else (end, int(depths[-1]))


def _is_whole(element: bytes) -> bool:
    """Return whether Python's scanner, which knows NaN and half surrogate pairs, finds the end of an element at its end."""
    if len(element) > _SCANNED_BYTES:
        return False
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
    except (msgspec.DecodeError, RecursionError) as exc:
        return f"not JSON ({exc})"
    return None


def _skip_whitespace(text: str, at: int) -> int:
    found = _whitespace(text, at)
    return at if found is None else found.end()


def _between(text: str, at: int) -> str:
    """The last character of an element that ends at `at`, what stands behind it, and the next one's first key."""
    found = _separator(text, at)
    return text[at - 1 : at] + ("," if found is None else found.group())
