r"""Reads the property files of Java: `name=value`, `name: value`, `name value`, comments, continuations and escapes.

    # a comment, as is a line that begins with !
    aws.s3.bucket.name = lake
    aws.s3.prefix: events/
    file.name.template = {{topic}}-\
        {{partition}}

The rules are those of `java.util.Properties`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = re.compile(r"\\(?:u(?P<code>[0-9A-Fa-f]{4})|(?P<char>.))", re.DOTALL)
_SEPARATOR = re.compile(r"(?P<name>(?:\\.|[^\\:=\s])*)[ \t\f]*(?:[:=][ \t\f]*)?", re.DOTALL)
_BLANKS = " \t\f"


def parse_properties(data: bytes) -> tuple[dict[str, str], list[str]]:
    r"""Return the values by name, and the names that are given more than once, of which the last value counts.

    Args:
        data: UTF-8, or ISO 8859-1 as Java's own files are.

    Raises:
        ValueError: an escape `\u` is not followed by four hexadecimal digits; the error names the line.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("iso-8859-1")
    values: dict[str, str] = {}
    repeated: list[str] = []
    for number, line in _logical_lines(text):
        found = _SEPARATOR.match(line)
        assert found is not None  # it matches nothing at all, too
        try:
            name, value = _unescaped(found["name"]), _unescaped(line[found.end() :])
        except ValueError as exc:
            raise ValueError(f"line {number}: {exc}") from None
        if name in values and name not in repeated:
            repeated.append(name)
        values[name] = value
    return values, repeated


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are neither empty nor comments, with their numbers; continuations are joined."""
    parts: list[str] = []
    began = 0
    for number, raw in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = raw.lstrip(_BLANKS)
        if not parts:
            if not line or line[0] in "#!":
                continue
            began = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            parts.append(line[:-1])
            continue
        yield began, "".join([*parts, line])
        parts = []
    if parts:
        yield began, "".join(parts)


def _unescaped(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        if found["code"]:
            return chr(int(found["code"], 16))
        if found["char"] == "u":
            raise ValueError(r"\u must be followed by four hexadecimal digits")
        return _ESCAPES.get(found["char"], found["char"])

    replaced = _ESCAPE.sub(character, text)
    # two halves of a character beyond the first 65,536, written as Java does; one alone remains, as there
    return replaced.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
