"""The results of commands on stdout, as lines and as JSON: nothing in them controls a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence

import typer

from framework.errors import ConfigError


def write_lines(lines: Iterable[str]) -> None:
    """Write lines for people."""
    sys.stdout.writelines(f"{printable(line)}\n" for line in lines)


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, its cells in columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def write_json(value: object) -> None:
    """Write one JSON object over several lines."""
    sys.stdout.write(f"{json_text(value, indent=True)}\n")


def write_json_lines(values: Iterable[object]) -> None:
    """Write a line of JSON for each value."""
    out = sys.stdout.buffer
    for value in values:
        out.write(f"{json_text(value)}\n".encode())
    out.flush()


def printable(text: str) -> str:
    r"""Return the text with control characters as `\n`, `\x1b`: keys may contain them, and terminals obey them."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def error_text(error: BaseException) -> str:
    """Return the error for people: one line, and a further line for each of several mistakes."""
    mistakes = error.mistakes if isinstance(error, ConfigError) else ()
    if len(mistakes) < 2:  # noqa: PLR2004
        return printable(str(error))
    head, *_ = str(error).split("\n")
    return "\n".join([printable(head), *(f"  - {printable(mistake)}" for mistake in mistakes)])


def json_text(value: object, *, indent: bool = False) -> str:
    r"""The value as JSON, with every character escaped that a terminal may obey (`\u009b`): the same JSON to a program.

    Raises:
        RecursionError: it is nested too deeply.
    """
    import orjson  # noqa: PLC0415 - what only imports a program does not load it

    try:
        text = orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else 0).decode()
    except TypeError:  # numbers of more than 64 bits, text that is no valid Unicode, deep nesting: of others
        text = json.dumps(value, indent=2 if indent else None, separators=(",", ": " if indent else ":"))
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)


def confirmed(question: str, *, yes: bool, dry_run: bool = False) -> bool:
    """Ask for confirmation, unless it was given. `dry_run`: the command has that option.

    Raises:
        ConfigError: there is no terminal to ask on.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        more = " (or --dry-run to see what would happen)" if dry_run else ""
        raise ConfigError(f"there is no terminal to ask on: add --yes{more}")
    return typer.confirm(question)
