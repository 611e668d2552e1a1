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

_LINE = re.compile(r"[ \t\f]*(?:[#!][^\r\n]*|((?:[^\\\r\n]+|\\(?:\r\n|.|\Z))*))(?:\r\n|\r|\n|\Z)", re.DOTALL)
"""A line: a comment, or what stands in it and in those that continue it."""
_CONTINUATION = re.compile(r"\\(?:(\r\n|\r|\n|\Z)[ \t\f]*|.)", re.DOTALL)
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = re.compile(r"\\(?:u(?P<code>[0-9A-Fa-f]{4})|(?P<char>.))", re.DOTALL)
_SEPARATOR = re.compile(r"(?P<name>(?:\\.|[^\\:=\s])*)[ \t\f]*(?:[:=][ \t\f]*)?", re.DOTALL)


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
    for place in _LINE.finditer(text):
        line = _CONTINUATION.sub(lambda found: found[0] if found[1] is None else "", place[1] or "")
        found = _SEPARATOR.match(line)
        assert found is not None  # it matches nothing at all, too
        if not line:
            continue
        try:
            name, value = _unescaped(found["name"]), _unescaped(line[found.end() :])
        except ValueError as exc:
            number = 1 + len(re.findall(r"\r\n|\r|\n", text[: place.start()]))
            raise ValueError(f"line {number}: {exc}") from None
        if name in values and name not in repeated:
            repeated.append(name)
        values[name] = value
    return values, repeated


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
