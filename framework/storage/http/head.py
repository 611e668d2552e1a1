"""The head of an HTTP answer: its status and its headers, out of the lines as they came."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_STATUS = re.compile(r"HTTP/[^\s]*[^\S\n]+([0-9]{3})(?!\S)", re.ASCII)


def pattern_of(*names: str) -> re.Pattern[str]:
    """Return a pattern of the headers of these names, for `HttpHead.named`."""
    return re.compile(rf"\n({'|'.join(map(re.escape, names))})(:)([^\n]*)", re.ASCII | re.IGNORECASE)


class HttpHead:
    """The head of an answer.

    Args:
        lines: all that came: a proxy's answer to CONNECT and informational ones come before the last head.

    Attributes:
        status: the status; 0 without one.
        is_whole: whether the blank line behind the headers has come.
    """

    __slots__ = ("_headers", "_text", "is_whole", "status")

    def __init__(self, lines: Sequence[bytes]) -> None:
        text = b"".join(lines).decode("latin-1")
        self._text = text = text[text.rfind("\nHTTP/") + 1 :]
        self._headers: dict[str, str] | None = None
        found = _STATUS.match(text)
        self.status = int(found[1]) if found is not None else 0
        self.is_whole = "\n\r\n" in text or "\n\n" in text

    @property
    def headers(self) -> dict[str, str]:
        """The headers, names in lower case; the values of a name that is there several times are joined."""
        if self._headers is None:
            self._headers = _by_name(line.partition(":") for line in self._text.split("\n")[1:])
        return self._headers

    def named(self, pattern: re.Pattern[str]) -> dict[str, str]:
        """Return those of `headers` that a pattern names, in a third of the time."""
        return _by_name(pattern.findall(self._text))


def _by_name(fields: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for written, colon, value in fields:
        if colon:
            name, text = written.lower(), value.strip()
            headers[name] = f"{headers[name]}, {text}" if name in headers else text
    return headers
