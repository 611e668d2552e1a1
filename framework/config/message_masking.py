"""Mistakes of a configuration without its secrets."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping

from framework.config.option import options_of, sections_of

_SHORTEST_MASKED = 4
"""Shorter secrets are not masked inside sentences: masking every `a` would make the sentence unreadable."""
_WORD = re.compile(rf"\w{{{_SHORTEST_MASKED},}}")
_QUOTED = re.compile(r"(?<=['\"{])[^'\"{}\w]*\w[^'\"{}]*(?=['\"}])")
_PLACE = re.compile(r"(?:\[[\w.]+\] )?[\w.\[\]]+")


def masked(mistake: str, secrets: Collection[str], cls: type) -> str:
    """Return the sentence without secrets: substituted text and values of secret options.

    A secret that is also a word of the message itself, such as Iggy's default password `iggy`, is not
    masked: that would reveal it.

    Args:
        mistake: the sentence.
        secrets: what it must not show.
        cls: the root class of the configuration.
    """
    words = _own_words(cls)
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_MASKED and secret not in words:
            for form in _forms(secret):
                mistake = mistake.replace(form, "***")
    return mistake


def without_pieces(mistake: str, brought_in: Mapping[str, Collection[str]], cls: type) -> str:
    """Return the sentence without pieces of text that a reference brought in: a parser names what it does not know.

    A sentence that begins with an option of such text ends where the first piece of it begins.

    Args:
        mistake: the sentence.
        brought_in: values with such text, by the place of their option: `[naming] template`.
        cls: the root class of the configuration.
    """
    found = _PLACE.match(mistake)
    if found is None or found[0] not in brought_in:
        return mistake
    place, reason = found[0], mistake[found.end() :]
    values, words = brought_in[place], _own_words(cls)
    for value in values:
        reason = reason.replace(f'"{value}"', '"***"').replace(repr(value), "'***'")
    reason = masked(reason, values, cls)
    for pattern in (_QUOTED, _WORD):
        parts = (part for part in pattern.finditer(reason) if part[0] not in words)
        piece = next((part for part in parts if any(part[0] in value for value in values)), None)
        if piece is not None:
            reason = f"{reason[: piece.start()]}***"
    return f"{place}{reason}"


def _forms(text: str) -> Iterator[str]:
    """Yield a text as messages show it: as it is, and as a part of a repr, where another quote may stand beside it."""
    yield text
    yield repr(text)[1:-1]
    yield repr(f'"{text}')[2:-1]


@functools.cache
def _own_words(cls: type) -> frozenset[str]:
    """Return the words of sections, options and their documentation."""
    texts = ["iggy embedded tcp user password host token address localhost"]
    for name, section in sections_of(cls).items():
        texts.append(name)
        texts += [f"{option.name} {option.doc}" for option in options_of(section)]
    return frozenset(re.findall(r"\w+", " ".join(texts)))


def secret_parts(value: str) -> Iterator[str]:
    """Return the parts of a secret option's value to mask: for an address, the login before the `@`, and a token."""
    scheme, mark, rest = value.partition("://")
    if not mark:
        if not scheme.startswith("embedded:"):
            yield value
        return
    login, at, _ = rest.rpartition("@")
    if at:
        yield value
        yield login
        yield login.partition(":")[2]
    if "token=" in rest:
        yield value
        yield rest.partition("token=")[2].partition("&")[0]
