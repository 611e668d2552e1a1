"""Numbers and names in messages, and names of fields."""

import re

_NOT_RENAMED = re.compile(r'["\\\x00-\x1f]')

NOT_RENAMED = "a quotation mark, a backslash or a control character"


def counted(number: int, thing: str) -> str:
    """Format a number with its noun: `1 object`, `2,000 objects`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def unicode_text(text: str) -> str:
    """Return the text without bytes that are not UTF-8, which names of files and variables may hold."""
    return text.encode(errors="replace").decode()


def can_be_renamed_to(name: str) -> bool:
    """Return whether a field of a msgspec struct can have this name in JSON: it does not escape a name."""
    return _NOT_RENAMED.search(name) is None
