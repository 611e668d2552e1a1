"""The watermark: for each key range the time before which it is done, so that finished objects need no positions.

    prefix -> half-open ranges (after, until] of keys -> time

An object without a position is done if it was last modified before the time of its range. At or after that time, or
outside of all ranges, it is new. So once every object of a range that was modified before its time is done, the
positions are *compacted*: they are dropped, and the range replaces them all.

Keys are compared as Python strings, by code point, which is the order of their UTF-8 bytes. Times are milliseconds
since 1970 by the store's clock. A time never decreases: objects compacted under it would look new. Adjacent ranges with
the same time are merged. Where the number of ranges would exceed `MAX_RANGES`, a range does not advance: this is
always safe, and a later listing advances it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from operator import attrgetter
from typing import TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from framework.model.key_range import prefix_of
from framework.storage.listing.keyspace import MAX_KEY_BYTES

MAX_RANGES = 1000
"""Maximum over all prefixes together: some tens of kB in a snapshot."""

_LAST = chr(0x10FFFF)


class CoveredRange(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A range of keys with its time.

    Attributes:
        after: exclusive; need not exist; empty = from the first key.
        until: inclusive; need not exist; None = to the end of the prefix.
        time_ms: objects last modified before this time are done.
    """

    after: str
    until: str | None
    time_ms: int

    def holds(self, key: str) -> bool:
        """Return whether the range contains a key."""
        return self.after < key and (self.until is None or key <= self.until)


Ranges: TypeAlias = tuple[CoveredRange, ...]

_after = attrgetter("after")


class Watermark(Struct, frozen=True, kw_only=True, dict=True):
    """The ranges of a bucket. Immutable: advancing returns a new watermark. Its fields are its stored form.

    Attributes:
        bucket: the bucket of the keys; empty while there are no ranges.
        prefixes: listed prefix -> its ranges, in order, without overlaps. No prefix begins with another.
        compacted: listed prefix -> compacted objects. Each version counts, so it may exceed the number of objects.
        records: records of those objects.
    """

    bucket: str = ""
    prefixes: dict[str, Ranges] = {}
    compacted: dict[str, int] = field(default_factory=dict, name="folded")
    records: int = 0

    def __bool__(self) -> bool:
        return any(self.prefixes.values())

    @property
    def objects(self) -> int:
        """Number of object versions with compacted positions."""
        return sum(self.compacted.values())

    @property
    def latest_ms(self) -> int:
        """The latest time of all ranges; 0 without any."""
        return max((covered.time_ms for ranges in self.prefixes.values() for covered in ranges), default=0)

    def __len__(self) -> int:
        """Return the number of ranges."""
        return sum(map(len, self.prefixes.values()))

    @property
    def is_full(self) -> bool:
        """Whether there can be no more ranges."""
        return len(self) >= MAX_RANGES

    def place_of(self, key: str) -> tuple[str, CoveredRange] | None:
        """Return the prefix and the range that contain a key; None outside of all ranges."""
        prefix = prefix_of(self._names, key)
        if prefix is None:
            return None
        ranges = self.prefixes[prefix]
        at = bisect_left(ranges, key, key=_after) - 1
        return (prefix, ranges[at]) if at >= 0 and ranges[at].holds(key) else None

    @cached_property
    def _names(self) -> list[str]:
        return sorted(self.prefixes)

    def prefix_over(self, bucket: str, key: str, modified_ms: int) -> str | None:
        """Return the prefix whose ranges account for an object without a position; None when it is not done."""
        place = self.place_of(key) if bucket == self.bucket and modified_ms > 0 else None
        return place[0] if place is not None and modified_ms < place[1].time_ms else None

    def time_of(self, bucket: str, key: str) -> int:
        """Return the time before which every object of that key is done; 0 outside of all ranges."""
        place = self.place_of(key) if bucket == self.bucket else None
        return place[1].time_ms if place is not None else 0

    def covers(self, bucket: str, key: str, modified_ms: int) -> bool:
        """Return whether an object without a position is done."""
        return self.prefix_over(bucket, key, modified_ms) is not None

    def raised(self, prefix: str, covered: CoveredRange) -> Watermark:
        """Advance this range of a prefix to its time; parts with a later time keep it."""
        ranges = self.prefixes.get(prefix, ())
        higher = _changed(ranges, covered.after, covered.until, partial(max, covered.time_ms))
        room = MAX_RANGES - (len(self) - len(ranges))
        if len(higher) <= max(room, len(ranges)):
            ranges = higher
        return replace(self, prefixes={**self.prefixes, prefix: ranges}) if ranges else self

    def with_compacted(self, compacted: Mapping[str, int], records: int) -> Watermark:
        """Add compacted positions: their number per prefix, and their records in total."""
        counts = {**self.compacted}
        for prefix, count in compacted.items():
            counts[prefix] = counts.get(prefix, 0) + count
        return replace(self, compacted=counts, records=self.records + records)

    def without(self, names: str, *, exactly: bool = False) -> Watermark:
        """Remove the keys that begin with `names`, or only that key: their objects are new again, of any age.

        For `offsets reset` of a key or a prefix, in the snapshot of the epoch that it begins.
        """
        first = key_before(names)
        last = names if exactly else _last_of(names)
        prefixes = {prefix: _changed(ranges, first, last, lambda _: 0) for prefix, ranges in self.prefixes.items()}
        return replace(self, prefixes={prefix: ranges for prefix, ranges in prefixes.items() if ranges})


def _changed(ranges: Ranges, after: str, until: str | None, change: Callable[[int], int]) -> Ranges:
    """Return the ranges with the times between two keys changed; 0 is the time of keys in no range."""
    times = {"": 0}  # key -> time of the keys after it, up to the next of these
    times |= {covered.until: 0 for covered in ranges if covered.until is not None}
    times |= {covered.after: covered.time_ms for covered in ranges}
    borders = sorted({*times, after} if until is None else {*times, after, until})
    changed: list[CoveredRange] = []
    time_ms = 0
    for first, last in zip(borders, [*borders[1:], None], strict=True):
        time_ms = times.get(first, time_ms)
        is_between = after <= first and (until is None or first < until)
        part = CoveredRange(first, last, change(time_ms) if is_between else time_ms)
        if changed and changed[-1].time_ms == part.time_ms:
            part = CoveredRange(changed.pop().after, last, part.time_ms)
        changed.append(part)
    return tuple(part for part in changed if part.time_ms > 0)


def key_before(key: str) -> str:
    """Return the last key that a store can hold before this key; keys have at most `MAX_KEY_BYTES` bytes."""
    if not key:
        return ""
    head, code = key[:-1], ord(key[-1])
    if code == 0:
        return head
    lower = chr(code - 1 if not 0xD800 <= code - 1 <= 0xDFFF else 0xD7FF)  # noqa: PLR2004  surrogates are no characters
    return _filled(head + lower)


def _last_of(prefix: str) -> str | None:
    """Return the last key with this prefix; None for the end of all keys."""
    return _filled(prefix) if prefix else None


def _filled(key: str) -> str:
    return key + _LAST * (MAX_KEY_BYTES // len(_LAST.encode()))
