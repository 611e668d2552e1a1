"""Regular expressions of a configuration: those of Python's `re`, with a limit on the time of a search.

A search of `re` can take years on a text made for its pattern, and until it ends, no other thread of the process runs. So
`regex` searches, which stops at a limit and lets other threads run; what it reads in another way than `re` is rewritten.
Only what cannot take long stays with `re`, which is ten times as quick on a short text.

Differences that remain: characters that are newer than this Python's Unicode are letters already; without case `i` is not
the Turkish dotless one, and U+0345 is an iota; and a group that `re` leaves over from an attempt that failed is not set.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

LIMIT_SECONDS = 0.5
"""The processor time of a search in a short text."""

_CHARACTERS_PER_SECOND = 20_000_000
"""A longer text has a second more for each so many characters."""

_SHORT = 1000
_QUICK_CHARACTERS, _QUICK_SECONDS = 10_000, 0.02
_REMEMBERED = 10_000

_WORD = r"\p{L}\p{N}_"
_NOT_WORD = r"\p{M}\p{S}\p{Z}\p{C}\p{Pd}\p{Ps}\p{Pe}\p{Pi}\p{Pf}\p{Po}\u203f\u2040\u2054\ufe33\ufe34\ufe4d-\ufe4f\uff3f"
_SPACE = r"\s\x1c-\x1f"
_NOT_SPACE = (
    r"\x00-\x08\x0e-\x1b!-\x84\x86-\x9f\xa1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff\u3001-"
    r"\U0010ffff"
)
_IN_SETS = {r"\w": _WORD, r"\W": _NOT_WORD, r"\s": _SPACE, r"\S": _NOT_SPACE}
_OUTSIDE = {
    r"\w": f"[{_WORD}]",
    r"\W": f"[^{_WORD}]",
    r"\s": f"[{_SPACE}]",
    r"\S": f"[^{_SPACE}]",
    r"\b": f"(?:(?<=[{_WORD}])(?![{_WORD}])|(?<![{_WORD}])(?=[{_WORD}]))",
    r"\B": rf"(?!\A\Z)(?:(?<=[{_WORD}])(?=[{_WORD}])|(?<![{_WORD}])(?![{_WORD}]))",
}
_ESCAPE = r"\\(?:N\{[^{}\\]*\}|.)"
_SET = r"\[\^?\]?(?:\\.|[^\]\\])*\]"
# An escape, a comment, a set, the repeat `{,3}`, and a brace that is no repeat: `regex` takes that for "about so".
# After a bracket that no set begins with, as in a comment of `(?x:...)`, no set follows; each would look for its end again.
_TOKEN = (
    rf"{_ESCAPE}|\(\?#[^)]*\)|(?P<set>%s)|(?P<open>%s)"
    r"|\{,(?=\d*\})|(?P<brace>\{(?!\d+(?:,\d*)?\}))"
)
_TOKENS = re.compile(_TOKEN % (_SET, r"\[.*"), re.DOTALL)
_VERBOSE_TOKENS = re.compile(r"#[^\n]*|" + _TOKEN % (_SET, r"\[.*"), re.DOTALL)
_TOKENS_WITHOUT_SETS = re.compile(_TOKEN % (r"(?!)", r"(?!)"), re.DOTALL)
_REPEAT = re.compile(r"(?<!\()[*+?{]|\\\([*+?{]")  # a few more, never less
_IN_SET = re.compile(rf"{_ESCAPE}|[\[\]]", re.DOTALL)


class LimitedPattern:
    """A regular expression whose searches end.

    A text that took too long is remembered, so that the next search in it fails at once, and in the same way.

    Attributes:
        groupindex: the names of its groups, and their numbers.

    Args:
        source: the expression.

    Raises:
        ValueError: it is none.
    """

    def __init__(self, source: str) -> None:
        import regex  # noqa: PLC0415 - loaded when used

        try:
            self._plain = re.compile(source)
            self._limited: Any = regex.compile(_rewritten(source, self._plain.flags), regex.VERSION0)
        except (re.error, regex.error, OverflowError, RecursionError) as exc:
            raise ValueError(str(exc)) from None
        self.groupindex = self._plain.groupindex
        # One repeat without a choice in it takes the square of a text's length at most.
        self._is_cheap = len(_REPEAT.findall(source)) <= ("|" not in source)
        self._slow: set[tuple[int, int]] = set()

    def search(self, text: str) -> re.Match[str] | None:
        """Return the first match in a text.

        Raises:
            TimeoutError: it takes too long; says how long.
        """
        return self._find(self._plain.search, self._limited.search, text)

    def fullmatch(self, text: str) -> re.Match[str] | None:
        """Return the match of a whole text.

        Raises:
            TimeoutError: it takes too long; says how long.
        """
        return self._find(self._plain.fullmatch, self._limited.fullmatch, text)

    def _find(
        self,
        plain: Callable[[str], re.Match[str] | None],
        limited: Callable[..., re.Match[str] | None],
        text: str,
    ) -> re.Match[str] | None:
        if self._is_cheap and len(text) <= _SHORT:
            return plain(text)
        seconds = LIMIT_SECONDS + len(text) / _CHARACTERS_PER_SECOND
        if not self._slow or (len(text), hash(text)) not in self._slow:
            if len(text) <= _QUICK_CHARACTERS:
                try:  # without other threads: whoever lets them run, waits for them
                    return limited(text, timeout=_QUICK_SECONDS)
                except TimeoutError:
                    pass
            try:
                return limited(text, timeout=seconds, concurrent=True)
            except TimeoutError:
                if len(self._slow) >= _REMEMBERED:
                    self._slow.clear()
                self._slow.add((len(text), hash(text)))
        raise TimeoutError(
            f"takes more than {seconds:.1f} seconds on a text of {len(text):,} characters; repeat nothing that matches the "
            "same text in several ways"
        )


def _rewritten(source: str, flags: int) -> str:
    """Return an expression of `re` for `regex`."""
    has_unicode = not flags & re.ASCII

    def token(found: re.Match[str]) -> str:
        text = found[0]
        if found["set"]:
            begin = 1 + text.startswith("[^")
            return text[:begin] + _IN_SET.sub(member, text[begin:-1]) + "]"
        if found["open"]:
            return "[" + _TOKENS_WITHOUT_SETS.sub(token, text[1:])
        if found["brace"]:
            return r"\{"
        if text == "{,":
            return "{0,"
        return _OUTSIDE.get(text, text) if has_unicode else text

    def member(found: re.Match[str]) -> str:
        text = found[0]
        return f"\\{text}" if text in {"[", "]"} else _IN_SETS.get(text, text) if has_unicode else text

    return (_VERBOSE_TOKENS if flags & re.VERBOSE else _TOKENS).sub(token, source)
