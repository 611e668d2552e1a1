"""Discovery mode `incremental`: most listings cover only keys after the highest key seen, minus a look-back.

    full listing -> after the look-back -> after the look-back -> ... -> full listing, every `full_listing_interval`

Objects that must be found although they lie before the look-back:

- *Deferred objects*: too young for `min_age`, or overwritten while they were read. The next listings start before the
  lowest of them. An object that is deferred repeatedly (it keeps being overwritten) holds the start back for `min_age`
  plus a minute. After that it waits for full listings, so it cannot make every listing a full one.
- *Objects in flight*, however long they take: they need no listing, and hold nothing back. After a restart they are no
  longer in flight. So the resume key kept in the positions lies before the lowest unfinished object.
- *Late keys*, written below the look-back, and objects overwritten there: the next full listing finds them.

A restart resumes from the kept key if the last full listing is younger than the interval and the same objects are
selected; otherwise it starts with a full listing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappush, heapreplace

import attrs
from msgspec.structs import replace
from typing_extensions import override

from framework.discovery.deferred_keys import DeferredKeys
from framework.discovery.listing_feed import COMPARED_LISTINGS, REST_FACTOR, ListingFeed
from framework.discovery.object_feed import Assignment
from framework.model.key_range import prefix_of
from framework.model.objects import NativeObject
from framework.offsets.listing_hints import IncrementalMark, ListingHints

HOLD_SECONDS = 60.0
"""How much longer than `min_age` a repeatedly deferred object holds the start of listings back."""


def just_before(key: str) -> str:
    """Return a key just before `key`, so that a listing after it shows `key` and few keys before it."""
    last = key[-1:]
    # only if that is a plain character: stores and proxies treat others differently
    return key[:-1] + chr(ord(last) - 1) if "!" < last <= "~" else key[:-1]


@attrs.define(kw_only=True)
class _Prefix:
    """State of one prefix.

    Attributes:
        start: key after which the current listing lists it.
        back: key after which the next partial listing starts, if nothing deferred lies before it.
        top: the highest keys of the current listing, a heap.
    """

    start: str = ""
    back: str = ""
    top: list[str] = attrs.field(factory=list)


@attrs.define(kw_only=True, eq=False, repr=False, slots=False)
class IncrementalFeed(ListingFeed):
    """Feed whose listings mostly cover only the end of the key range.

    Args:
        prefixes: listed prefixes.
        base: full listings start after this key; empty = at the first.
        lookback_keys: number of the highest keys that each listing repeats.
        full_listing_interval: seconds between full listings.
        min_age: seconds for which objects are deferred.
        digest: of the other selection options; a resume key of another digest is not used.
        past: returns the stored hints of a prefix, which keep the resume keys.
        list_behind: runs a listing after a key of each prefix.
        time_of_day: seconds since 1970.
        listing: runs a full listing.
    """

    _prefixes: Sequence[str]
    _base: str
    _lookback_keys: int
    _full_listing_interval: float
    _min_age: float
    _digest: str
    _past: Callable[[str], ListingHints]
    _list_behind: Callable[[Mapping[str, str]], Iterator[NativeObject]]
    _time_of_day: Callable[[], float] = time.time

    @override
    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        base = self._base
        self._states = {name: _Prefix(start=base, back=base) for name in self._prefixes or ("",)}
        self._names = sorted(self._states)
        self._kept_keys = self._lookback_keys + 1  # listings start after the first of them
        patience = self._min_age + HOLD_SECONDS
        self._deferred = DeferredKeys(patience, self._time_of_day, self._names)
        self._whole = True
        self._whole_began: float | None = None
        self._marks: dict[str, str] | None = None  # as kept since the last full listing; None = keep no more
        # durations of the last full and of the last partial listings
        self._seconds: dict[bool, deque[float]] = {whole: deque(maxlen=COMPARED_LISTINGS) for whole in (True, False)}
        self._resume()

    @override
    def defer(self, native: NativeObject) -> None:
        super().defer(native)
        self._deferred.add(native.key)

    @override
    def release(self, assignment: Assignment, *, gone: bool = False) -> None:
        """Let a later listing decide about this object, unless it is gone."""
        if not gone:
            self._deferred.add(assignment.native.key)  # before the next listing can begin
        super().release(assignment, gone=gone)

    @override
    def _rest_seconds(self) -> float:
        """Return the shortest pause after the listing; a full one does not delay the partial ones."""
        self._seconds[self._whole].append(self._listing_seconds)
        return REST_FACTOR * min(self._seconds[False], default=0.0)

    # ---- listings

    @override
    def _list(self) -> Iterator[NativeObject]:
        began = self._time_of_day()
        self._whole = self._is_whole_due(began)
        if not self._whole:
            self._note_marks()
        waited_for = self._deferred.waited_for()
        self._deferred.begin_listing()
        starts = dict.fromkeys(self._states, self._base) if self._whole else self._starts(waited_for)
        for name, state in self._states.items():
            state.start, state.top = starts[name], []
        stream = super()._list() if self._whole else self._list_behind(starts)
        for native in stream:
            key = native.key
            prefix = self._prefix_of(key)
            if prefix is not None and len(prefix.top) < self._kept_keys:
                heappush(prefix.top, key)
            elif prefix is not None and key > prefix.top[0]:
                heapreplace(prefix.top, key)
            yield native
        self._end(began)

    def _end(self, began: float) -> None:
        for prefix in self._states.values():
            prefix.back = prefix.top[0] if len(prefix.top) == self._kept_keys else prefix.start
            prefix.top = []
        self._deferred.end_listing(self._was_listed, whole=self._whole)
        if self._whole:
            self._whole_began, self._marks = began, {}

    def _was_listed(self, key: str) -> bool:
        prefix = self._prefix_of(key)
        return prefix is not None and key > prefix.start

    def _prefix_of(self, key: str) -> _Prefix | None:
        name = prefix_of(self._names, key)
        return None if name is None else self._states[name]

    def _is_whole_due(self, now: float) -> bool:
        age = None if self._whole_began is None else now - self._whole_began
        # a negative age: the clock was set back, so nothing is known
        rest = REST_FACTOR * min(self._seconds[True], default=0.0)
        return age is None or age < 0 or age >= max(self._full_listing_interval, rest)

    def _starts(self, keys: Iterable[str]) -> dict[str, str]:
        """Return, for each prefix, the key after which a listing shows everything after its `back`, and these keys."""
        starts = {name: prefix.back for name, prefix in self._states.items()}
        for key in keys:
            name = prefix_of(self._names, key)
            if name is not None:
                starts[name] = min(starts[name], just_before(key))
        return {name: max(self._base, start) for name, start in starts.items()}

    # ---- across a restart

    def _resume(self) -> None:
        marks = [self._past(name).incremental for name in self._states]
        known = [mark for mark in marks if mark is not None and mark.selection == self._digest]
        if len(known) < len(marks):
            return
        self._whole_began = min(mark.whole_listing_ms for mark in known) / 1000
        unfinished = [entry.key for entry in self._objects.offsets.table.unfinished()]
        for prefix, mark in zip(self._states.values(), known, strict=True):
            prefix.back = mark.after
        for name, start in self._starts(unfinished).items():
            self._states[name].back = start

    def _note_marks(self) -> None:
        """Keep the resume key: after each full listing, and again once nothing holds it back any longer."""
        if self._marks is None or self._whole_began is None:
            return
        with self._objects.lock:
            unfinished = [*self._objects.in_flight.keys(), *self._deferred.waiting()]
        marks = self._starts(unfinished)
        held = any(marks[name] < prefix.back for name, prefix in self._states.items())
        if not held or not self._marks:
            for name, after in marks.items():
                mark = IncrementalMark(
                    after=after, whole_listing_ms=int(self._whole_began * 1000), selection=self._digest
                )
                self._objects.offsets.hints.set(name, replace(self._past(name), incremental=mark))
            self._marks = marks if held else None
