"""Plain text: every line that is not blank is a record and goes out as it is, in whatever encoding it has.

Nothing is checked: a line of a picture is a record too. UTF-16 and UTF-32 are not split rightly; recode them first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from typing_extensions import override

from transformers.lines import LineTransformer, none_blank


class TextTransformer(LineTransformer):
    """Lines of anything."""

    name: ClassVar[str] = "text"

    @override
    def _good_lines(self, lines: Sequence[bytes], *, ascii_only: bool) -> Sequence[bytes] | None:
        return lines if none_blank(lines) else None

    @override
    def _problem(self, line: bytes) -> str | None:
        return None
