"""Numbers in messages."""


def counted(number: int, thing: str) -> str:
    """Format a number with its noun: `1 object`, `2,000 objects`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
