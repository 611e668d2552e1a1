"""JSON Lines: every line that is not blank is a record and goes out as it is.

With `input.validate` each line must be one JSON value in UTF-8 (RFC 8259, without NaN, without a byte order mark, and
without escapes of half a surrogate pair, which no UTF-8 can hold). The check runs in C: msgspec skips through the values
without building them, and the UTF-8 that it lets pass is checked over the whole block.

A block in which every line begins with `{` and ends with `}` goes through the parser as a whole, which is exact: see
`framework.model.payloads.PayloadColumn.all_braced`. Every other block is checked line by line.

If the first transform has a parser, blocks go through that parser, so that nothing parses a record twice. A block that it
cannot read is checked as any other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
from typing_extensions import override

from framework.model.json_limits import MAX_JSON_VALUES
from framework.model.payloads import ParsedRows, PayloadColumn, decode_objects
from framework.model.utf8 import check_utf8
from framework.transformer import InputOptions
from transformers.lines import LineTransformer


class _Object(msgspec.Struct, gc=False):
    """Any JSON object; its members are skipped."""


_check = msgspec.json.Decoder(msgspec.Raw).decode
_objects = msgspec.json.Decoder(_Object)
_BAD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class JsonlTransformer(LineTransformer):
    """Lines of JSON."""

    name: ClassVar[str] = "jsonl"

    def __init__(self, options: InputOptions) -> None:
        super().__init__(options)
        self._validate = options.validate

    @override
    def _good_lines(self, lines: Sequence[bytes], *, ascii_only: bool) -> Sequence[bytes] | None:
        if not self._validate:
            return super()._good_lines(lines, ascii_only=ascii_only)
        try:
            if type(lines) is PayloadColumn and lines.all_braced:
                lines = self._parsed(lines)
                if lines.parsed is None and decode_objects(lines, _objects) is None:
                    return None
            else:
                # The quickest way through an iterator that keeps nothing. A blank line is no JSON and fails here.
                deque(map(_check, lines), maxlen=0)
            if not ascii_only:
                check_utf8(bytes(lines.data) if type(lines) is PayloadColumn else b"\n".join(lines))
        except _BAD:
            return None
        return lines

    def _parsed(self, lines: PayloadColumn) -> PayloadColumn:
        """Return lines of objects as the first transform needs them; as they are when it needs no parsing, or that fails.

        Then a line is bad, or only a value in it is one that the transform cannot read.
        """
        decoder = self.row_decoder
        if decoder is None or len(lines.data) > MAX_JSON_VALUES:
            return lines
        try:
            rows: list[Any] | None = decode_objects(lines, decoder)
        except _BAD:
            return lines
        return lines if rows is None else lines.with_parsed(ParsedRows(decoder, rows))

    @override
    def _problem(self, record: bytes) -> str | None:
        if not self._validate:
            return None
        try:
            check_utf8(record)
        except UnicodeDecodeError as exc:
            return f"not UTF-8 from byte {exc.start} of the line on; is this really jsonl? See input.format"
        try:
            _check(record)
        except msgspec.DecodeError as exc:
            # as text: a name for the exception in its own frame would keep frame and lines until cycles are looked for
            cause = "a CR alone in it, which ends no line" if _begins_with_line_of_cr(record) else str(exc)
            return f"not JSON ({cause}); is this really jsonl? See input.format and input.validate"
        except RecursionError:
            return "JSON that is nested too deeply to check (about 1,000 levels)"
        return None


def _begins_with_line_of_cr(line: bytes) -> bool:
    first, cr, _ = line.partition(b"\r")
    try:
        _check(first)
    except (msgspec.DecodeError, RecursionError):
        return False
    return bool(cr)
