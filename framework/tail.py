"""Discovery mode `after`: most passes list only what lies behind the highest key seen, and a look-back before it.

    whole pass -> behind the look-back -> behind the look-back -> ... -> whole pass, every `full_pass_interval`

What a partial pass must not skip, although it lies before the look-back:

- *objects put off*: too young for `min_age`, or overwritten while they were read. The next passes begin before the lowest
  of them. One that stays so (it is overwritten again and again) holds them back for `min_age` and a minute; after that it
  waits for whole passes, so that it cannot make every pass a whole one;
- *objects in hand*, however long they take: they need no listing, and hold nothing back. After a restart nobody has them in
  hand; so the place from which a restart goes on, kept in the positions, lies before the lowest unfinished one;
- *late keys*, written below the look-back, and objects overwritten there: the next whole pass finds them.

A restart goes on from the place that was kept, when the last whole pass is younger than the interval and the same objects
are selected; else with a whole pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
from typing_extensions import override

from framework.cutting import PRUNE_FROM
from framework.feed import LIST_SHARE, Assignment, ListingFeed
from framework.offsets import OffsetManager, OffsetManagerKey
from framework.past_listing import PastListing, TailMark
from framework.put_off import PutOff
from framework.records import NativeObject

HOLD_SECONDS = 60.0
"""How much longer than `min_age` an object that is put off again and again holds the start of passes back."""


def just_before(key: str) -> str:
    """A place before a key, so that a listing behind it shows the key and few others before it."""
    last = key[-1:]
    # only where that is a plain character: stores and proxies are at odds over others
    return key[:-1] + chr(ord(last) - 1) if "!" < last <= "~" else key[:-1]


@attrs.define(kw_only=True)
class _Prefix:
    """What is known of one prefix.

    Attributes:
        name: the prefix.
        start: behind which key the pass under way lists it.
        back: behind which key the next partial pass begins, if nothing is put off before it.
        top: the highest keys of the pass under way, in any order; all keys above `floor` are in it.
        floor: keys up to this one are no longer of interest in this pass.
    """

    name: str
    start: str = ""
    back: str = ""
    top: list[str] = attrs.field(factory=list)
    floor: str = ""


class Tail:
    """Where passes begin. The feed's thread lists; objects may come back from any thread.

    Args:
        prefixes: what is listed.
        base: whole passes begin behind this key; empty = at the first.
        lookback_keys: so many of the highest keys are listed again in each pass.
        full_pass_interval: seconds from one whole pass to the next.
        min_age: seconds for which objects are put off.
        selection: what else decides which objects are read; a place kept under another one is not used.
        offsets: positions.
        past: what is kept of a prefix; `OffsetManager.note_listing` changes it.
        list_whole: a whole pass.
        list_behind: a pass behind a key of each prefix.
        clock: seconds since 1970.

    Attributes:
        put_off: objects that were listed and left for later.
    """

    def __init__(
        self,
        *,
        prefixes: Sequence[str],
        base: str = "",
        lookback_keys: int,
        full_pass_interval: float,
        min_age: float = 0.0,
        selection: str,
        offsets: OffsetManager,
        past: Callable[[str], PastListing],
        list_whole: Callable[[], Iterator[NativeObject]],
        list_behind: Callable[[Mapping[str, str]], Iterator[NativeObject]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._prefixes = [_Prefix(name=prefix, start=base, back=base) for prefix in prefixes or ("",)]
        self._base = base
        self._kept_keys = lookback_keys + 1  # passes begin behind the first of them
        self._interval = full_pass_interval
        self.put_off = PutOff(min_age + HOLD_SECONDS, clock)
        self._selection = selection
        self._offsets = offsets
        self._past = past
        self._list_whole = list_whole
        self._list_behind = list_behind
        self._clock = clock
        self._whole = True
        self._whole_began: float | None = None
        self._marks: dict[str, str] | None = None  # as kept since the last whole pass; None = not to be kept any more
        self._seconds = {True: 0.0, False: 0.0}  # what the last whole and the last partial pass took
        self._in_hand: dict[OffsetManagerKey, NativeObject] = {}
        self._prune_at = PRUNE_FROM
        self._resume()

    # ---- what the feed tells

    def hand_out(self, assignment: Assignment) -> None:
        """An object is in the reader's hands from now on."""
        entry = assignment.entry
        self._in_hand[entry.get_manager_key()] = assignment.native
        if len(self._in_hand) >= self._prune_at:
            self._prune()
            self._prune_at = max(PRUNE_FROM, 2 * len(self._in_hand))

    def take_back(self, assignment: Assignment, *, gone: bool) -> None:
        """It is not any more, and is to be listed again, unless it is gone."""
        self._in_hand.pop(assignment.entry.get_manager_key(), None)
        if not gone:
            self.put_off.add(assignment.native.key)

    def rest_seconds(self, listing_seconds: float) -> float:
        """How long to wait after a pass that listed for so long; a whole pass does not hold the partial ones up."""
        self._seconds[self._whole] = listing_seconds
        return LIST_SHARE * self._seconds[False]

    # ---- passes

    def listing(self) -> Iterator[NativeObject]:
        """The objects of one pass."""
        began = self._clock()
        self._whole = self._is_whole_due(began)
        if not self._whole:
            self._note_marks()
        waited_for = self.put_off.waited_for()
        self.put_off.begin_pass()
        for prefix in self._prefixes:
            prefix.start = self._base if self._whole else self._before(prefix, prefix.back, waited_for)
            prefix.top, prefix.floor = [], prefix.start
        starts = {prefix.name: prefix.start for prefix in self._prefixes}
        stream = self._list_whole() if self._whole else self._list_behind(starts)
        prefix = self._prefixes[0]
        for native in stream:
            key = native.key
            if not key.startswith(prefix.name):
                prefix = next((one for one in self._prefixes if key.startswith(one.name)), prefix)
            if key > prefix.floor:
                prefix.top.append(key)
                if len(prefix.top) >= 2 * self._kept_keys:
                    self._trim(prefix)
            yield native
        self._end(began)

    def _trim(self, prefix: _Prefix) -> None:
        prefix.top = sorted(prefix.top)[-self._kept_keys :]
        if len(prefix.top) == self._kept_keys:
            prefix.floor = prefix.top[0]

    def _end(self, began: float) -> None:
        for prefix in self._prefixes:
            self._trim(prefix)
            prefix.back = prefix.top[0] if len(prefix.top) == self._kept_keys else prefix.start
            prefix.top = []
        self.put_off.end_pass(self._was_listed, whole=self._whole)
        if self._whole:
            self._whole_began, self._marks = began, {}

    def _was_listed(self, key: str) -> bool:
        return any(key.startswith(prefix.name) and key > prefix.start for prefix in self._prefixes)

    def _is_whole_due(self, now: float) -> bool:
        age = None if self._whole_began is None else now - self._whole_began
        # a negative age: the clock was put back, and nothing is known
        return age is None or age < 0 or age >= max(self._interval, LIST_SHARE * self._seconds[True])

    def _before(self, prefix: _Prefix, after: str, keys: Iterable[str]) -> str:
        """Behind which key to list so that everything behind `after` is shown, and these keys."""
        places = (just_before(key) for key in keys if key.startswith(prefix.name))
        return max(self._base, min((after, *places)))

    # ---- over a restart

    def _resume(self) -> None:
        marks = {prefix.name: self._past(prefix.name).tail for prefix in self._prefixes}
        known = [mark for mark in marks.values() if mark is not None and mark.selection == self._selection]
        if len(known) < len(marks):
            return
        self._whole_began = min(mark.whole_pass_ms for mark in known) / 1000
        unfinished = [entry.key for entry in self._offsets.entries() if not entry.finished]
        for prefix, mark in zip(self._prefixes, known, strict=True):
            prefix.back = self._before(prefix, mark.after, unfinished)

    def _note_marks(self) -> None:
        """Keeps the place for a restart: after each whole pass, and once more when nothing holds it back any longer."""
        if self._marks is None or self._whole_began is None:
            return
        self._prune()
        unfinished = [*(native.key for native in list(self._in_hand.values())), *self.put_off.waiting()]
        marks = {prefix.name: self._before(prefix, prefix.back, unfinished) for prefix in self._prefixes}
        held = any(marks[prefix.name] < prefix.back for prefix in self._prefixes)
        if not held or not self._marks:
            for name, after in marks.items():
                mark = TailMark(after=after, whole_pass_ms=int(self._whole_began * 1000), selection=self._selection)
                self._offsets.note_listing(name, attrs.evolve(self._past(name), tail=mark))
            self._marks = marks if held else None

    def _prune(self) -> None:
        for key, native in list(self._in_hand.items()):
            if self._offsets.is_finished(key, native.key, native.version, native.modified_ms):
                self._in_hand.pop(key, None)


class TailFeed(ListingFeed):
    """Passes of which most list the tail of the bucket only.

    Args:
        tail: where they begin.
        **options: of `ListingFeed`; its listing is the tail's.
    """

    def __init__(self, tail: Tail, **options: Any) -> None:
        super().__init__(**{**options, "listing": tail.listing, "rest_seconds": tail.rest_seconds})
        self._tail = tail

    @override
    def take(self) -> Assignment | None:
        """The next new or unfinished object of the pass under way; begins a pass when one is due."""
        assignment = super().take()
        if assignment is not None:
            self._tail.hand_out(assignment)
        return assignment

    @override
    def _put_off(self, native: NativeObject) -> None:
        self._tail.put_off.add(native.key)

    @override
    def release(self, assignment: Assignment, *, gone: bool = False) -> None:
        """Lets a later pass decide about this object again, unless it is gone."""
        self._tail.take_back(assignment, gone=gone)
        super().release(assignment, gone=gone)
