"""What the form of a key says: key -> name template -> topic, partition, start offset.

template = NameTemplate.parse("events/{{topic}}/{{partition}}-{{timestamp}}.jsonl")
template.match("events/orders/3-1717000000.jsonl")      # NameMatch(topic="orders", partition=3)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import attrs

from framework.config.patterns import LimitedPattern
from framework.errors import ConfigError, ObjectError

TOPIC_PLACEHOLDER = "{{topic}}"
"""Placeholder in `iggy.topic` for the template's topic."""

OFFSETS_SUFFIX = "-offsets"
"""Suffix of the default name of a source's offsets topic."""

MAX_TOPIC_BYTES = 255
_MAX_SHOWN = 1000
_NUMBER = re.compile(r"\+?[0-9]+", re.ASCII)
# The topic's length is limited by Iggy: a longer one is no match rather than an error in the middle of a run.
_PLACEHOLDERS = {
    "topic": r"(?P<topic>[A-Za-z0-9._-]{1,255})",
    "partition": r"(?P<partition>[0-9]+)",
    "start_offset": r"(?P<start_offset>[0-9]+)",
    "timestamp": "[0-9]+",
    "key": ".+",
}
_SINGLE_BRACES = re.compile(r"(?<!\{)\{(topic|partition|start_offset|timestamp|key)\}(?!\})")
_DIGITS = {"partition", "start_offset", "timestamp"}
_KEY_NUMBER = re.compile("[0-9]{1,4000}")

_FullMatch = Callable[[str], "re.Match[str] | None"]


class NameMatch(NamedTuple):
    """The values of the placeholders in a key; None for placeholders that the template lacks."""

    topic: str | None = None
    partition: int | None = None
    start_offset: int | None = None


NOTHING_NAMED = NameMatch()
"""The match of every key without a template."""


@attrs.frozen(kw_only=True)
class NameTemplate:
    """The form of the keys to read. It always covers the whole key; literal text matches itself.

    The template `{{topic}}-{{partition}}` finds the topic `a-1` and the partition 2 in `a-1-2`: the topic
    is greedy. A key that begins with a date, `22-10-12/orders-1-7.gz`, does not match
    `{{topic}}-{{partition}}-{{start_offset}}.gz`, because a topic contains no `/`.

    Attributes:
        text: as configured.
        fullmatch: the function that matches a whole key.
        has_topic: whether a match gives a topic.
        has_partition: whether a match gives a partition.
    """

    text: str
    fullmatch: _FullMatch = attrs.field(repr=False, eq=False)
    has_topic: bool
    has_partition: bool

    @classmethod
    def parse(cls, text: str, *, regex: bool = False) -> NameTemplate:
        """Parse a template.

        Args:
            text: literal text with `{{topic}}` (letters, digits, `.`, `_`, `-`), `{{partition}}` and
                `{{start_offset}}` (digits), `{{timestamp}}` (digits, ignored, may repeat) and `{{key}}`
                (anything, ignored).
            regex: the rest of the text is a regular expression, not literal; the named groups `topic`,
                `partition` and `start_offset` count as well.

        Raises:
            ConfigError: an unknown placeholder, a repeated one, two without a separator between them, an
                invalid regular expression. All mistakes at once.
        """
        # One of a megabyte may have as many mistakes as characters; each would repeat it.
        shown = f'template = "{text}"' if len(text) <= _MAX_SHOWN else "template"
        mistakes = _placeholder_errors(text) + ([] if regex else _border_errors(text))
        if mistakes:
            raise ConfigError([f"{shown}: {mistake}" for mistake in mistakes])
        try:
            pattern = LimitedPattern(_source(text, str)) if regex else re.compile(_literal_source(text), re.DOTALL)
        except ValueError as exc:
            raise ConfigError(f"{shown}: no valid regular expression: {exc}") from None
        names = pattern.groupindex
        return cls(
            text=text, fullmatch=pattern.fullmatch, has_topic="topic" in names, has_partition="partition" in names
        )

    def match(self, key: str) -> NameMatch | None:
        """Return the placeholders' values in a key; None when the key does not match.

        Raises:
            ObjectError: the search of a regular expression takes too long.
        """
        try:
            found = self.fullmatch(key)
        except TimeoutError as slow:
            raise ObjectError(f"the regular expression in [naming] template {slow}", location=key) from None
        if found is None:
            return None
        groups = found.groupdict()
        if not groups:
            return NOTHING_NAMED
        # In a regular expression a group may be optional, and a partition may be anything: then this is no match.
        topic = groups.get("topic")
        if self.has_topic and not topic:
            return None
        numbers: list[int | None] = []
        for name in ("partition", "start_offset"):
            digits = groups.get(name)
            if name in groups and not _KEY_NUMBER.fullmatch(digits or ""):
                return None
            numbers.append(int(digits) if digits else None)
        return NameMatch(topic, *numbers)


def topic_name_error(name: str) -> str | None:
    """Return why Iggy rejects that name of a stream or topic: "is ...", "holds ..."; None when it is valid."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if not 1 <= size <= MAX_TOPIC_BYTES:
        return f"is not 1 to {MAX_TOPIC_BYTES} bytes long, as Iggy's names are"
    if _NUMBER.fullmatch(name):
        return "is digits alone, which Iggy takes for a number and not for a name"
    return None if name.isprintable() else "holds control characters"


def _split(text: str) -> list[str]:
    """Return text and names of placeholders in turn: `a{{topic}}b` -> `["a", "topic", "b"]`."""
    parts: list[str] = []
    at = 0
    while (begin := text.find("{{", at)) >= 0 and (end := text.find("}}", begin + 2)) >= 0:
        parts += [text[at:begin], text[begin + 2 : end]]
        at = end + 2
    return [*parts, text[at:]]


def _placeholder_errors(text: str) -> list[str]:
    mistakes: list[str] = []
    seen: set[str] = set()
    for name in _split(text)[1::2]:
        if name not in _PLACEHOLDERS:
            known = ", ".join(f"{{{{{placeholder}}}}}" for placeholder in _PLACEHOLDERS)
            mistakes.append(f"unknown placeholder {{{{{name}}}}}; known are {known}")
        elif name in seen and name != "timestamp":
            mistakes.append(f"{{{{{name}}}}} stands twice; it may stand once")
        seen.add(name)
    return mistakes


def _border_errors(text: str) -> list[str]:
    """Return errors for adjacent placeholders without a separator: `{{topic}}{{partition}}`.

    Also for separators that a value can contain, `{{partition}}0{{start_offset}}`. They are ambiguous,
    and they make matching slow.
    """
    parts = _split(text)
    mistakes: list[str] = []
    for at in range(1, len(parts) - 2, 2):
        first, between, second = parts[at : at + 3]
        if first == second == "timestamp" and not between:
            continue
        both_digits = first in _DIGITS and second in _DIGITS
        if not between or (both_digits and between.isascii() and between.isdigit()):
            mistakes.append(
                f"nothing tells where {{{{{first}}}}} ends and {{{{{second}}}}} begins; put text between them"
                + (" that is no digit" if between else "")
            )
    return mistakes


def _literal_source(text: str) -> str:
    # Years, months and days written side by side are one run of digits, matched in one way only.
    return re.sub(
        r"(?:\[0-9\]\+){2,}",
        lambda run: f"[0-9]{{{len(run[0]) // len('[0-9]+')},}}",
        _source(text, re.escape),
    )


def _source(text: str, source_of_text: Callable[[str], str]) -> str:
    return "".join(_PLACEHOLDERS[part] if at % 2 else source_of_text(part) for at, part in enumerate(_split(text)))


def single_braces_error(text: str) -> str | None:
    """Return the mistake of a placeholder with single braces, which would be literal; None if there is none."""
    found = _SINGLE_BRACES.search(text)
    return f"a placeholder has two braces on each side: {{{{{found[1]}}}}}" if found is not None else None
