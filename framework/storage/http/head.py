"""The head of an HTTP answer: its status and its headers, out of the lines as they came."""

from __future__ import annotations

import re
from collections.abc import Sequence

_STATUS = re.compile(r"HTTP/[^\s]*[^\S\n]+([0-9]{3})(?!\S)", re.ASCII)

_END = re.compile(r"\n\r?\n")


class HttpHead:
    """The head of an answer.

    Args:
        lines: all that came: a proxy's answer to CONNECT and informational ones come before the last head, trailers of a
            chunked body behind it.

    Attributes:
        status: the status; 0 without one.
        is_whole: whether the blank line behind the headers has come.
    """

    __slots__ = ("_headers", "_text", "is_whole", "status")

    def __init__(self, lines: Sequence[bytes]) -> None:
        text = b"".join(lines).decode("latin-1")
        text = text[text.rfind("\nHTTP/") + 1 :]
        end = _END.search(text)
        self.is_whole = end is not None
        self._text = text = text[: end.start()] if end is not None else text
        self._headers: dict[str, str] | None = None
        found = _STATUS.match(text)
        self.status = int(found[1]) if found is not None else 0

    @property
    def headers(self) -> dict[str, str]:
        """The headers, names in lower case; different values of a name are joined, equal ones in a row count once.

        Some proxies add headers that are there already.
        """
        if self._headers is None:
            self._headers = {}
            for line in self._text.split("\n")[1:]:
                written, colon, value = line.partition(":")
                if colon:
                    name, text = written.lower(), value.strip()
                    before = self._headers.get(name, text)
                    self._headers[name] = text if text == before else f"{before}, {text}"
        return self._headers
