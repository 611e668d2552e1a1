"""Globs over whole keys: `*` and `?` stay between two `/`, `**` does not.

Neither fnmatch (whose `*` crosses `/`) nor pathlib (which folds `//` and `.`, both meaningful in a key, and knows `**`
only since 3.13) says this, and it is twenty lines.

| glob | matches | does not match |
| --- | --- | --- |
| `*.json` | `a.json` | `b/a.json` |
| `**/*.json` | `a.json`, `b/c/a.json` | `a.json.gz` |
| `logs/**` | `logs/a`, `logs/a/b` | `logs2/a` |
| `day-[0-9]?.csv` | `day-01.csv` | `day-1.csv` |
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence


def compile_globs(globs: Sequence[str]) -> re.Pattern[str] | None:
    """Return one pattern whose `match` tests all globs over a whole key; None without globs.

    Its time is linear in the key's length, whatever the glob, because keys may be untrusted. (Only after
    a `**` that does not stand for whole folders, `**a*b*`, it may be quadratic.)

    Raises:
        ValueError: a glob is invalid (`[z-a]`); the error names it.
    """
    sources: list[str] = []
    for glob in globs:
        try:
            re.compile(_source(glob, itertools.count(1)))
        except re.error as exc:
            raise ValueError(f'"{glob}" is no valid glob: {exc}') from None
    groups = itertools.count(1)
    sources = [_source(glob, groups) for glob in globs]
    return re.compile(f"(?s:{'|'.join(f'(?:{source})' for source in sources)})\\Z") if sources else None


_FORM = r"(?P<deep>(?:(?<=/)|\A)\*\*/)|(?P<all>\*{2,})|(?P<star>\*)|\?|(?P<set>%s)|(?P<text>.)"
_TOKENS = re.compile(_FORM % r"\[!?\]?[^\]]*\]", re.DOTALL)
_WITHOUT_SETS = re.compile(_FORM % r"(?!)", re.DOTALL)


def _tokens(glob: str) -> Iterator[re.Match[str]]:
    """Yield the tokens. A "[" after the last "]" means itself; to look for its end would take the square of the length."""
    end = glob.rfind("]") + 1
    return itertools.chain(_TOKENS.finditer(glob, 0, end), _WITHOUT_SETS.finditer(glob, end))


def _source(glob: str, groups: Iterator[int]) -> str:
    """Return the glob as a regular expression without backtracking over wildcards.

    The first place where the text up to the next wildcard matches is as good as any later one: from
    there, the next wildcard reaches everything that it could reach from the later place. So each wildcard
    takes the first place for good, as an atomic group. Only the text after the last wildcard must end
    with the key. (Python has atomic groups since 3.11; a lookahead with a back-reference is equivalent.)
    """
    parts = _split_at(_tokens(glob), {"deep", "all"})
    source = ""
    for at, (wildcard, tokens) in enumerate(parts):
        is_last = at == len(parts) - 1
        body = _part_source(tokens, groups, is_last=is_last)
        if wildcard is None:
            source += body
        elif is_last:
            source += ("(?:.*/)?" if wildcard == "deep" else ".*") + body
        else:
            source += _atomic(("(?:[^/]*/)*?" if wildcard == "deep" else ".*?") + body, groups)
    return source


def _split_at(tokens: Iterable[re.Match[str]], wildcards: set[str]) -> list[tuple[str | None, list[re.Match[str]]]]:
    """Return the tokens after each wildcard, with its name; first the tokens before all wildcards, with None."""
    parts: list[tuple[str | None, list[re.Match[str]]]] = [(None, [])]
    for token in tokens:
        if token.lastgroup in wildcards:
            parts.append((token.lastgroup, []))
        else:
            parts[-1][1].append(token)
    return parts


def _part_source(tokens: Iterable[re.Match[str]], groups: Iterator[int], *, is_last: bool) -> str:
    """Return the expression between two `**`: single characters, and `*`, which stays within a folder."""
    parts = _split_at(tokens, {"star"})
    source = ""
    for at, (wildcard, singles) in enumerate(parts):
        text = "".join(map(_single_source, singles))
        if wildcard is None:
            source += text
        elif is_last and at == len(parts) - 1:
            source += "[^/]*" + text
        else:
            source += _atomic("[^/]*?" + text, groups)
    return source


def _atomic(source: str, groups: Iterator[int]) -> str:
    name = f"g{next(groups)}"
    return f"(?=(?P<{name}>{source}))(?P={name})"


def _single_source(token: re.Match[str]) -> str:
    if token[0] == "?":
        return "[^/]"
    members = token["set"]
    if members is not None:
        members = members[1:-1]
        negated = members.startswith("!")
        members = members.removeprefix("!").replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
        members = members.replace("^", "\\^").replace("&&", "&\\&").replace("||", "|\\|").replace("~~", "~\\~")
        return f"(?!/)[{'^' if negated else ''}{members}]"
    return re.escape(token["text"])
