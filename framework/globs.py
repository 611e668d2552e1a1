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

import re
from collections.abc import Sequence


def compile_globs(globs: Sequence[str]) -> re.Pattern[str] | None:
    """One pattern whose `match` finds any of the globs over a whole key; None when there is none.

    Raises:
        ValueError: a glob that cannot be one (`[z-a]`), named.
    """
    sources: list[str] = []
    for glob in globs:
        source = _source(glob)
        try:
            re.compile(source)
        except re.error as exc:
            raise ValueError(f'"{glob}" is no valid glob: {exc}') from None
        sources.append(source)
    return re.compile(f"(?s:{'|'.join(f'(?:{source})' for source in sources)})\\Z") if sources else None


# An unclosed "[" is not in here, so it falls to the last alternative and means itself.
_TOKEN = re.compile(
    r"(?P<deep>(?:(?<=/)|\A)\*\*/)|(?P<all>\*{2,})|\*|\?|\[(?P<set>!?\]?[^\]]*)\]|(?P<text>.)", re.DOTALL
)


def _source(glob: str) -> str:
    return _TOKEN.sub(_token_source, glob)


def _token_source(token: re.Match[str]) -> str:
    if token["deep"]:
        return "(?:.*/)?"
    if token["all"]:
        return ".*"
    if token[0] == "*":
        return "[^/]*"
    if token[0] == "?":
        return "[^/]"
    members = token["set"]
    if members is not None:
        negated = members.startswith("!")
        members = members.removeprefix("!").replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
        members = members.replace("^", "\\^").replace("&&", "&\\&").replace("||", "|\\|").replace("~~", "~\\~")
        return f"(?!/)[{'^' if negated else ''}{members}]"
    return re.escape(token["text"])
