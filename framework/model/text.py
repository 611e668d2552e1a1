"""Numbers and names in messages."""


def counted(number: int, thing: str) -> str:
    """Format a number with its noun: `1 object`, `2,000 objects`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def unicode_text(text: str) -> str:
    """Return the text without bytes that are not UTF-8, which names of files and variables may hold."""
    return text.encode(errors="replace").decode()
