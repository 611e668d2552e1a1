"""Where a key lies between two others: the interpolation that key ranges are cut by.

Keys are read as numbers whose digits are characters, each place of the key with an alphabet of its own: the characters
seen there, and those that are likely there too (who has seen `3` and `7` expects digits). A place where all keys agree
counts almost nothing, so a prefix of 200 bytes that all keys share, or the `/host-` in the middle of a path, does not
blur the picture. Whatever is guessed here decides only where a listing is cut, never which keys it finds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

import attrs

CLASSES = ("0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")
"""Characters of which one lets expect the others, in the order of their codes."""

OTHER_CLASS = 0.5
"""Weight of a whole class of which nothing was seen, against one character that was, before anything is known."""

FINEST = 1e-12
"""Differences in position below this are not followed further down a key: floats end at about 1e-16."""

LAST_SCRIPT = 0x1FFFF
"""Characters behind this one are seldom used in names."""

SCRIPT = 16
"""So many characters beyond ASCII, or most, are taken for a script of which more will come, not for accents."""

MOST_SEEN = 256
"""Characters of one place that are told apart; ASCII fits in."""

MAX_KEY_BYTES = 1024
"""The longest key of S3 and GCS; a longer place to start behind may be refused."""


def shared_length(one: str, other: str) -> int:
    """How many characters two keys have in common at their beginning."""
    if other.startswith(one):
        return len(one)
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def after_all(stem: str) -> str | None:
    """The smallest text behind every key that begins with `stem`; None when there is none.

    It is the stem with its last character raised by one (surrogates, which no key can hold, left out), so it is about
    as printable as the keys themselves; U+10FFFF at the end has no successor and falls away with the place it stands in.
    """
    while stem:
        code = ord(stem[-1]) + 1
        if code <= 0x10FFFF:  # noqa: PLR2004 - the last character there is
            return stem[:-1] + chr(0xE000 if 0xD800 <= code <= 0xDFFF else code)  # noqa: PLR2004
        stem = stem[:-1]
    return None


@attrs.define(slots=True)
class _Place:
    """One place of the keys: what was seen there, and the alphabet made of it.

    Attributes:
        seen: characters.
        draws: how often a neighbouring key could have had another character here.
        alphabet: candidates in order.
        starts: where each candidate's slot begins, as a part of 1; one more at the end.
        refresh_at: the alphabet is made anew when there were so many draws.
    """

    seen: set[str] = attrs.field(factory=set)
    draws: int = 0
    alphabet: str = ""
    starts: list[float] = attrs.field(factory=lambda: [0.0])
    refresh_at: int = 0

    def add(self, letter: str) -> None:
        """Notes a character that was not seen here; of another script's hundreds every other one is forgotten."""
        self.seen.add(letter)
        self.refresh_at = 0
        if len(self.seen) > MOST_SEEN:
            rare = sorted(one for one in self.seen if one > "~")
            self.seen.difference_update(rare[1:-1:2])

    def refresh(self) -> None:
        """Makes the alphabet of what was seen."""
        weights = dict.fromkeys(self.seen, 1.0)
        unlikely = 1.0 / (1 + self.draws)
        for letters in CLASSES:
            there = sorted(self.seen.intersection(letters))
            if not there:
                weights[letters[0]] = OTHER_CLASS * unlikely
                continue
            for letter in letters:
                between = there[0] < letter < there[-1]
                weights.setdefault(letter, 1.0 if between else unlikely)
        rare = sorted(one for one in self.seen if one > "~")
        if len(rare) > 1 and (2 * len(rare) > len(self.seen) or len(rare) >= SCRIPT):
            # what lies between stands for itself; beyond: as far again, then twice, four times ... as far
            step, code = ord(rare[-1]) - ord(rare[0]), ord(rare[-1])
            for letter, following in pairwise(rare):
                weights[letter] = ord(following) - ord(letter)
            while (code := code + step) <= LAST_SCRIPT:
                if not 0xD800 <= code <= 0xDFFF:  # noqa: PLR2004
                    weights.setdefault(chr(code), step * unlikely)
                step *= 2
        self.alphabet = "".join(sorted(weights))
        total = sum(weights.values())
        self.starts = [0.0, *(part / total for part in accumulate(weights[letter] for letter in self.alphabet))]
        self.refresh_at = max(2 * self.draws, self.draws + 1)

    def slot(self, letter: str) -> tuple[float, float]:
        """Where the slot of a character begins and how wide it is; one that is no candidate has no width."""
        index = bisect_right(self.alphabet, letter) - 1
        if index < 0:
            return 0.0, 0.0
        first, (start, width) = self.alphabet[index], (self.starts[index], self.starts[index + 1] - self.starts[index])
        gap, steps = self._gap(index), _rank(letter) - _rank(first)
        return (start + width * steps / gap, width / gap) if steps < gap else (start + width, 0.0)

    def _gap(self, index: int) -> int:
        """How many characters of another script stand for the one in the alphabet."""
        if index + 1 == len(self.alphabet) or self.alphabet[index] <= "~":
            return 1
        return _rank(self.alphabet[index + 1]) - _rank(self.alphabet[index])

    def letter_at(self, at: float) -> tuple[str, float, float]:
        """The character whose slot `at` lies in, where its slot begins, and how wide it is."""
        index = min(max(bisect_right(self.starts, at) - 1, 0), len(self.alphabet) - 1)
        start, gap = self.starts[index], self._gap(index)
        width = (self.starts[index + 1] - start) / gap
        step = min(int((at - start) / width), gap - 1)
        return _letter(_rank(self.alphabet[index]) + step), start + step * width, width


_FIRST_SURROGATE, _SURROGATES = 0xD800, 0x800


def _rank(letter: str) -> int:
    """Which character it is, counted without the 2,048 code points that stand for none."""
    code = ord(letter)
    return code - _SURROGATES if code > _FIRST_SURROGATE else code


def _letter(rank: int) -> str:
    return chr(rank + _SURROGATES if rank >= _FIRST_SURROGATE else rank)


class KeySpace:
    """What has been seen of the keys of one listing. For one thread at a time; bounded by the length of a key.

    Args:
        prefix: of all keys.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._places: list[_Place] = []
        self._base = ""
        self._recent: str | None = None

    def observe(self, keys: Sequence[str]) -> None:
        """Learns from some keys, in order; a few of each page are enough."""
        for key in keys:
            if self._recent is None:
                shared, self._base = 0, key
            else:
                shared = shared_length(self._recent, key)
                if shared < len(self._base):
                    self._base = self._base[: shared_length(self._base, key)]
            self._learn(key, shared)
            self._recent = key

    def _learn(self, key: str, shared: int) -> None:
        places = self._places
        while len(places) < len(key):
            places.append(_Place())
        for depth in range(shared, len(key)):
            place = places[depth]
            place.draws += depth > shared
            if key[depth] not in place.seen:
                place.add(key[depth])

    def _place(self, depth: int) -> _Place | None:
        if depth >= len(self._places):
            return None
        place = self._places[depth]
        if place.draws >= place.refresh_at:
            place.refresh()
        return place

    def position(self, key: str, depth: int) -> float:
        """Where a key lies among those that share its first `depth` characters: 0 .. 1."""
        at, scale = 0.0, 1.0
        for index in range(depth, len(key)):
            place = self._place(index)
            if place is None or not place.alphabet:
                break
            start, width = place.slot(key[index])
            at += scale * start
            scale *= width
            if scale < FINEST:
                break
        return at

    def log_share(self, stem: str) -> float:
        """The natural logarithm of the part of the whole space that the keys beginning with `stem` have."""
        total = 0.0
        for depth in range(len(self._base), len(stem)):
            place = self._place(depth)
            if place is None:
                break
            total += math.log(max(place.slot(stem[depth])[1], 1e-6))
        return total

    def stem(self, after: str, until: str | None) -> str:
        """What all keys in `(after, until]` begin with, as far as the two bounds tell. None is the end of the prefix."""
        if until is None:
            return self._prefix
        length = shared_length(after, until)
        if length < len(after) and after_all(after[: length + 1]) == until:
            length += 1  # `(a/07/x, a/1]` holds nothing but what begins with `a/0`
        return after[:length]

    def span(self, after: str, until: str | None) -> tuple[str, float, float]:
        """The stem of a range, and where the range lies among the keys that begin with it: `low .. high` of 0 .. 1."""
        stem = self.stem(after, until)
        low = self.position(after, len(stem)) if after.startswith(stem) else 0.0
        high = self.position(until, len(stem)) if until is not None and until.startswith(stem) else 1.0
        return stem, low, high

    def log_size(self, after: str, until: str | None) -> float | None:
        """The natural logarithm of the part of the space that lies in `(after, until]`; None when it is nothing.

        Logarithms, because parts as small as 62**-200 are compared with each other.
        """
        stem, low, high = self.span(after, until)
        return self.log_share(stem) + math.log(high - low) if high > low else None

    def key_at(self, stem: str, position: float, precision: float) -> str:
        """A short text that lies at `position` among the keys beginning with `stem`, give or take `precision`."""
        letters, scale = [], 1.0
        at = min(max(position, 0.0), 1.0)
        for depth in range(len(stem), MAX_KEY_BYTES):
            place = self._place(depth)
            if place is None or not place.alphabet:
                break
            letter, start, width = place.letter_at(at)
            letters.append(letter)
            at = min(max((at - start) / width, 0.0), 1.0)
            scale *= width
            if scale <= precision:
                break
        return stem + "".join(letters)
