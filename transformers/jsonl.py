"""JSON Lines: every line that is not blank is a record and goes out as it is.

With `input.validate` each line must be one JSON value in UTF-8 (RFC 8259, without NaN, without a byte order mark, and
without escapes of half a surrogate pair, which no UTF-8 can hold). The check runs in C over a block of lines: msgspec
skips through each line without building the value, and the UTF-8 that it lets pass is checked over the whole block. A
value that goes over a line's end and two values on one line are bad: each line is given to the parser by itself.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar

import msgspec
from typing_extensions import override

from framework.transformer import InputOptions
from transformers.batches import check_utf8
from transformers.lines import LineTransformer

_check = msgspec.json.Decoder(msgspec.Raw).decode


class JsonlTransformer(LineTransformer):
    """Lines of JSON."""

    name: ClassVar[str] = "jsonl"

    def __init__(self, options: InputOptions) -> None:
        super().__init__(options)
        self._validate = options.validate

    @override
    def _all_good(self, lines: list[bytes], *, ascii_only: bool) -> bool:
        if not self._validate:
            return all(map(bytes.strip, lines))
        try:
            # The quickest way through an iterator that keeps nothing. A blank line is no JSON and fails here.
            deque(map(_check, lines), maxlen=0)
            if not ascii_only:
                check_utf8(b"\n".join(lines))
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
            return f"not JSON ({exc}); is this really jsonl? See input.format and input.validate"
        except RecursionError:
            return "JSON that is nested too deeply to check (about 1,000 levels)"
        return None
