"""Plain text: every line that is not blank is a record and goes out as it is, in whatever encoding it has.

No line is checked: one of a picture is a record too. UTF-16 and UTF-32 cannot be split at line feeds: an object that
begins as they do is refused.
"""

from __future__ import annotations

from typing import ClassVar

from transformers.lines import LineTransformer


class TextTransformer(LineTransformer):
    """Lines of anything."""

    name: ClassVar[str] = "text"
