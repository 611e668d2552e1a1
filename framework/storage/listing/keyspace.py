"""Interpolation between keys, used to split key ranges.

Keys are read as numbers whose digits are characters. Each place of the key has its own alphabet: the characters seen
there, and those that are likely there too (`3` and `7` suggest digits; of scripts other than Latin, what lies between
and beyond). A place where all keys agree counts almost nothing. So a shared prefix of 200 bytes, or the `/host-` in the
middle of a path, does not distort the result. Estimates decide only where a listing is split, never which keys it finds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

import attrs

CLASSES = ("0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")
"""Character classes whose members suggest each other, in code point order."""

OTHER_CLASS = 0.5
"""Weight of a whole unseen class relative to a seen character, before anything is known."""

GUESSES = 15
"""Characters beyond the last one seen that are tried, in scripts other than Latin: 1, 2, 4, 8 ... code points beyond it."""

FINEST = 1e-12
"""Differences in position below this are not followed further along a key: float precision is about 1e-16."""

MAX_CODE = 0x10FFFF
"""The last code point."""

MAX_SEEN = 256
"""Maximum of characters distinguished per place; ASCII fits."""

MAX_KEY_BYTES = 1024
"""The longest key of S3 and GCS; a store may refuse a longer start key."""


def bytes_of(key: str) -> int:
    """Return the length of a key in UTF-8; a name that is not valid Unicode, such as a file's, has one, too."""
    return len(key.encode("utf-8", "surrogatepass"))


def shared_length(first: str, other: str) -> int:
    """Return the length of the common prefix of two keys."""
    if other.startswith(first):
        return len(first)
    low, high = 0, min(len(first), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def after_all(stem: str) -> str | None:
    """Return the smallest text after every key that begins with `stem`; None when there is none.

    It is the stem with its last character raised by 1, skipping surrogates, which no key can hold. So it is about as
    printable as the keys themselves. U+10FFFF at the end has no successor and is removed with its place.
    """
    while stem:
        code = ord(stem[-1]) + 1
        if code <= MAX_CODE:
            return stem[:-1] + chr(0xE000 if 0xD800 <= code <= 0xDFFF else code)  # noqa: PLR2004
        stem = stem[:-1]
    return None


@attrs.define(slots=True)
class _Place:
    """One place of the keys: the characters seen there, and the alphabet derived from them.

    Attributes:
        seen: characters.
        draws: how often a neighboring key could have had another character here.
        alphabet: candidates in order.
        starts: start of each candidate's slot, as a fraction of 1; followed by the end.
        refresh_at: number of draws at which the alphabet is rebuilt.
    """

    seen: set[str] = attrs.field(factory=set)
    draws: int = 0
    alphabet: str = ""
    starts: list[float] = attrs.field(factory=lambda: [0.0])
    refresh_at: int = 0

    def add(self, letter: str) -> None:
        """Add a character that was not seen here; of hundreds of non-ASCII characters, every second is dropped."""
        self.seen.add(letter)
        self.refresh_at = 0
        if len(self.seen) > MAX_SEEN:
            rare = sorted(character for character in self.seen if character > "~")
            self.seen.difference_update(rare[1:-1:2])

    def refresh(self) -> None:
        """Rebuild the alphabet from the characters seen."""
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
        self._guess(weights, unlikely)
        self.alphabet = "".join(sorted(weights))
        total = sum(weights.values())
        self.starts = [0.0, *(part / total for part in accumulate(weights[letter] for letter in self.alphabet))]
        self.refresh_at = max(2 * self.draws, self.draws + 1)

    def _guess(self, weights: dict[str, float], unlikely: float) -> None:
        """Add characters of scripts other than Latin, without a list of any script.

        One in the middle of each two that were seen, so that their part can be cut; and some beyond the last one, which
        together are as likely as all that were seen.
        """
        codes = sorted(ord(letter) for letter in self.seen if letter > "~")
        if not codes:
            return
        middles = ((first + other) // 2 for first, other in pairwise(codes))
        beyond = (codes[-1] + 2**power for power in range(GUESSES))
        for guesses, weight in ((middles, 1.0), (beyond, unlikely * max(1.0, len(codes) / GUESSES))):
            for code in guesses:
                if code <= MAX_CODE and chr(code).isprintable():
                    weights.setdefault(chr(code), weight)

    def slot(self, letter: str) -> tuple[float, float]:
        """Return the start and width of a character's slot; a character that is no candidate has no width."""
        index = bisect_right(self.alphabet, letter) - 1
        if index < 0:
            return 0.0, 0.0
        start, end = self.starts[index : index + 2]
        return (start, end - start) if self.alphabet[index] == letter else (end, 0.0)

    def letter_at(self, at: float) -> tuple[str, float, float]:
        """Return the character whose slot contains `at`, the slot's start, and its width."""
        index = min(max(bisect_right(self.starts, at) - 1, 0), len(self.alphabet) - 1)
        return self.alphabet[index], self.starts[index], self.starts[index + 1] - self.starts[index]


class KeySpace:
    """Statistics of the keys of one listing. Not thread-safe; bounded by the length of a key.

    Args:
        prefix: prefix of all keys.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._places: list[_Place] = []
        self._base = ""
        self._recent: str | None = None

    def observe(self, keys: Sequence[str]) -> None:
        """Learn from keys in order; a few of each page are enough."""
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
        """Return the position (0 .. 1) of a key among keys that share its first `depth` characters."""
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
        """Return the natural logarithm of the fraction of the key space below `stem`."""
        total = 0.0
        for depth in range(len(self._base), len(stem)):
            place = self._place(depth)
            if place is None:
                break
            total += math.log(max(place.slot(stem[depth])[1], 1e-6))
        return total

    def stem(self, after: str, until: str | None) -> str:
        """Return the common prefix of all keys in `(after, until]`, as far as known. None is the end of the prefix."""
        if until is None:
            return self._prefix
        length = shared_length(after, until)
        if length < len(after) and after_all(after[: length + 1]) == until:
            length += 1  # `(a/07/x, a/1]` holds only keys that begin with `a/0`
        return after[:length]

    def span(self, after: str, until: str | None) -> tuple[str, float, float]:
        """Return the stem of a range, and its bounds `low .. high` (0 .. 1) among the keys that begin with the stem."""
        stem = self.stem(after, until)
        low = self.position(after, len(stem)) if after.startswith(stem) else 0.0
        high = self.position(until, len(stem)) if until is not None and until.startswith(stem) else 1.0
        return stem, low, high

    def log_size(self, after: str, until: str | None) -> float | None:
        """Return the natural logarithm of the fraction of the key space in `(after, until]`; None when it is empty.

        Logarithms, because fractions as small as 62**-200 are compared.
        """
        stem, low, high = self.span(after, until)
        return self.log_share(stem) + math.log(high - low) if high > low else None

    def key_at(self, stem: str, position: float, precision: float) -> str:
        """Return a short text at `position` among the keys that begin with `stem`, within `precision`."""
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
