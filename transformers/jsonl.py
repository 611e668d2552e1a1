"""JSON Lines: every line that is not blank is a record and goes out as it is.

With `input.validate` each line must be one JSON value in UTF-8 (RFC 8259, without NaN, without a byte order mark, and
without escapes of half a surrogate pair, which no UTF-8 can hold). The check runs in C: msgspec skips through the values
without building them, and the UTF-8 that it lets pass is checked over the whole block.

A block in which every line begins with `{` and ends with `}` goes through the parser as a whole, which is exact: see
`framework.model.payloads.all_braced`. Every other block is checked line by line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import ClassVar

import msgspec
from typing_extensions import override

from framework.model.payloads import PayloadColumn, all_braced
from framework.transformer import InputOptions
from transformers.batches import check_utf8
from transformers.lines import LineTransformer, none_blank


class _Object(msgspec.Struct, gc=False):
    """Any JSON object; its members are skipped."""


_check = msgspec.json.Decoder(msgspec.Raw).decode
_check_objects = msgspec.json.Decoder(_Object).decode_lines


class JsonlTransformer(LineTransformer):
    """Lines of JSON."""

    name: ClassVar[str] = "jsonl"

    def __init__(self, options: InputOptions) -> None:
        super().__init__(options)
        self._validate = options.validate

    @override
    def _all_good(self, lines: Sequence[bytes], *, ascii_only: bool) -> bool:
        if not self._validate:
            return none_blank(lines)
        try:
            if type(lines) is PayloadColumn and all_braced(lines):
                if len(_check_objects(lines.data)) != len(lines):
                    return False
            else:
                # The quickest way through an iterator that keeps nothing. A blank line is no JSON and fails here.
                deque(map(_check, lines), maxlen=0)
            if not ascii_only:
                check_utf8(bytes(lines.data) if type(lines) is PayloadColumn else b"\n".join(lines))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        return True

    @override
    def _problem(self, line: bytes) -> str | None:
        if not self._validate:
            return None
        try:
            check_utf8(line)
        except UnicodeDecodeError as exc:
            return f"not UTF-8 from byte {exc.start} of the line on; is this really jsonl? See input.format"
        try:
            _check(line)
        except msgspec.DecodeError as exc:
            cause = "a CR alone in it, which ends no line" if _begins_with_line_of_cr(line) else exc
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
