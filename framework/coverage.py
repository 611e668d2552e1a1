"""What a pass has covered: which stretches of keys it listed wholly, and when everything in them is done.

    listing -> pages with their stretches -> [all that was handed out of a stretch is finished] -> the watermark rises there

A stretch rises to `began - late_arrival_window`, `began` being when its listing began by the store's own clock. What is left for a
later pass (too young, overwritten meanwhile, given back by the reader) keeps the time of its stretch at or below its own
last-modified, so that the watermark does not hide it. It rises page by page, while the pass is still under way, in stores
whose order is documented; in others a stretch counts once the whole listing is complete and was in order, because a key that
comes out of order lies in a stretch that was listed before. But when a first pass over such a store holds many old positions,
its prefix is listed once more in between; see `framework.order_proof` for what that shows.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs

from framework.watermark import CoveredRange

if TYPE_CHECKING:
    from framework.offsets import OffsetManager
    from framework.order_proof import OrderProof
    from framework.records import NativeObject
    from framework.selected import SelectedObjects
    from framework.stretch import Stretch

log = logging.getLogger(__name__)

MOST_STRETCHES = 2000
"""That wait to rise; more are joined by twos: they rise a little later."""

PROVE_FROM = 50_000
"""Old positions that a pass over a store without a documented order holds before its order is looked at: some 4 MB."""

WAIT_FROM = 1_000_000
"""Such positions that it holds, some 85 MB, before it waits for what the look says."""

PASSES = 3
"""Stretches wait on behalf of so many passes: of the oldest that still has some, and of the newest."""


@attrs.define(kw_only=True, slots=True)
class _Waiting:
    """A stretch that was listed.

    Attributes:
        prefix: the listed prefix.
        after: exclusive.
        until: inclusive; None = to the end of the prefix.
        number: of the pass that listed it.
        time_ms: to what it may rise.
        old: positions in it that can be folded then.
    """

    prefix: str
    after: str
    until: str | None
    number: int
    time_ms: int
    old: int

    def holds(self, key: str) -> bool:
        return key.startswith(self.prefix) and self.after < key and (self.until is None or key <= self.until)


@attrs.define(kw_only=True, slots=True)
class _Tally:
    """What was seen since the last stretch ended: the least time that hides nothing, and positions that can be folded."""

    most_ms: int
    old: int = 0


class Coverage:
    """Raises the watermark of some positions. The feed's thread lists; others may give back, settle, or ask.

    Args:
        offsets: the positions. What is finished is known there.
    """

    def __init__(self, offsets: OffsetManager) -> None:
        self._offsets = offsets
        self._window_ms: int | None = None
        self._in_hand: Callable[[], Sequence[str]] = list
        self._lock = threading.Lock()
        self._number = 0
        self._waiting: list[_Waiting] = []
        # of the listing under way
        self._prefix = self._base = ""
        self._in_order = False
        self._horizon_ms: int | None = None
        self._page = self._rest = _Tally(most_ms=0)
        self._listed: list[_Waiting] = []
        self._without_position = 0
        self._youngest: NativeObject | None = None
        self._folded_before = 0
        self._proof: OrderProof | None = None
        self._looked = False
        self._runs: dict[str, _Waiting] = {}  # last key of a page -> what of its run has not risen
        self._held = 0
        # of all
        self._foldable_before = self._foldable = self._unfoldable = 0
        self._expected: dict[str, tuple[int, int]] = {}

    # ---- before the first pass

    def open(self, selected: SelectedObjects, *, window_ms: int | None, in_hand: Callable[[], Sequence[str]]) -> None:
        """Binds the watermark to what is selected; from now on stretches count.

        Args:
            selected: what decides which objects are read.
            window_ms: how much later than its last-modified an object may appear; None: nothing is ever folded.
            in_hand: gives the keys that are handed out and not finished, sorted; from any thread.

        Raises:
            PositionError: positions were folded while others were selected.
        """
        watermark = self._offsets.watermark
        if watermark:
            selected.check(watermark)
        self._in_hand = in_hand
        self._window_ms = window_ms
        self._offsets.set_watermark(
            lambda one: attrs.evolve(
                one, bucket=selected.bucket, selection=dict(selected.options), oldest_ms=selected.oldest_ms
            )
        )

    # ---- what the listing tells

    def begin_pass(self) -> None:
        """A pass begins; what its predecessors listed may still rise."""
        with self._lock:
            self._number += 1
            numbers = sorted({one.number for one in self._waiting})
            if len(numbers) >= PASSES:
                self._waiting = [one for one in self._waiting if one.number in (numbers[0], numbers[-1])]
            self._foldable_before, self._foldable = max(self._foldable, self._foldable_before), 0

    def begin_listing(self, prefix: str, after: str, *, in_order: bool) -> None:
        """A prefix is listed from a key on; nothing of it counts before `began` says when.

        Args:
            prefix: the prefix.
            after: behind which key.
            in_order: the store's order is documented, so that what lies before a listed key was listed.
        """
        with self._lock:
            self._prefix, self._base, self._in_order = prefix, after, in_order
            self._horizon_ms = None
            self._page = self._rest = _Tally(most_ms=0)
            self._listed = []
            self._without_position, self._youngest = 0, None
            self._folded_before = self._folded_of(prefix)
            self._proof, self._looked, self._runs, self._held = None, False, {}, 0

    def began(self, moment_ms: int) -> None:
        """When the listing began, milliseconds since 1970 by the store's clock; told before its first object comes."""
        if self._window_ms is None:
            return
        # stores round last-modified down to seconds: what comes later must not look earlier
        self._horizon_ms = max(0, moment_ms // 1000 * 1000 - self._window_ms)
        self._page = _Tally(most_ms=self._horizon_ms)
        self._rest = _Tally(most_ms=self._horizon_ms)

    def seen(self, native: NativeObject) -> None:
        """An object that is finished, or in the reader's hands from now on."""
        if self._proof is not None:
            self._proof.saw(native.key)
        if self._horizon_ms is not None and native.modified_ms < self._horizon_ms:
            if native.modified_ms <= 0:
                self.put_off(native)
            self._page.old += 1

    def seen_folded(self, native: NativeObject) -> None:
        """An object that is done by the watermark."""
        self._without_position += 1
        if self._youngest is None or native.modified_ms > self._youngest.modified_ms:
            self._youngest = native

    def put_off(self, native: NativeObject) -> None:
        """An object that a later pass decides about: the watermark must not hide it until then."""
        with self._lock:
            self._page.most_ms = min(self._page.most_ms, native.modified_ms)

    def given_back(self, native: NativeObject) -> None:
        """The same of one that was handed out; to be told before it leaves the reader's hands."""
        with self._lock:
            for tally in (self._page, self._rest):
                tally.most_ms = min(tally.most_ms, native.modified_ms)
            for one in (*self._waiting, *self._listed, *self._runs.values()):
                if one.holds(native.key):
                    one.time_ms = min(one.time_ms, native.modified_ms)

    def listed(self, stretch: Stretch | None, last_key: str) -> None:
        """Every object of a stretch was decided about since the last call; None: of one that cannot be named.

        Args:
            stretch: the keys that a page has shown wholly.
            last_key: the last one of the page.
        """
        if self._horizon_ms is None:
            return
        with self._lock:
            page, self._page = self._page, _Tally(most_ms=self._horizon_ms)
            self._held += page.old
            if stretch is None:
                self._proof = None
                self._rest.most_ms = min(self._rest.most_ms, page.most_ms)
                self._rest.old += page.old
                return
            if self._in_order:
                one = self._waiting_for(stretch.after, stretch.until, page)
                self._listed.append(one)
                self._waiting.append(one)
                self._waiting = _fewer(self._waiting)
                return
            if self._proof is not None and self._goes_on(self._proof, stretch, last_key, page):
                page.old = 0  # counted
            # at the end of the pass all of it rises, to the same time
            self._listed.append(self._waiting_for(stretch.after, stretch.until, page))
            self._listed = _fewer(self._listed)

    def _goes_on(self, proof: OrderProof, stretch: Stretch, last_key: str, page: _Tally) -> bool:
        """A page's part of a run between proven places: up to the last place it may rise, the rest goes on with the next page."""
        first, last = proof.page()
        run = self._runs.pop(stretch.after, None)
        if run is None and not first:
            return False
        run = run or _Waiting(
            prefix=self._prefix, after=first, until=None, number=self._number, time_ms=page.most_ms, old=0
        )
        run.time_ms, run.old = min(run.time_ms, page.most_ms), run.old + page.old
        if run.after < last:
            self._waiting.append(attrs.evolve(run, until=last))
            self._waiting = _fewer(self._waiting)
            run = attrs.evolve(run, after=last, time_ms=page.most_ms, old=0)
        if stretch.until == last_key:  # else a range ends here, at a cut that no object has
            run.until = last_key
            self._runs[last_key] = run
        return True

    @property
    def needs_proof(self) -> bool:
        """Whether the pass holds so many old positions that it is worth a look whether the store has an order."""
        return not (self._in_order or self._looked) and self._held >= PROVE_FROM

    def looking(self) -> None:
        """A look has begun; `proven` will tell what it showed."""
        self._looked = True

    @property
    def holds_too_much(self) -> bool:
        """Whether so many old positions are held that the pass should not go on before the look has ended."""
        return self._held >= WAIT_FROM

    def proven(self, proof: OrderProof | None) -> None:
        """The prefix was listed once more since `began`, in one chain from its start to its end.

        Args:
            proof: what that showed; None: the store does not list in the order of keys.
        """
        with self._lock:
            self._looked, self._proof = True, proof

    def complete(self, *, in_order: bool, whole: bool) -> None:
        """The listing of the prefix came to its end.

        Args:
            in_order: whether it came in the order of the keys.
            whole: it began where the listings of this prefix always begin.
        """
        if whole:
            self._look_for_late_ones()
        if self._horizon_ms is None:
            return
        with self._lock:
            rest, listed = self._rest, self._listed
            self._horizon_ms, self._listed = None, []
            if self._in_order and not in_order:
                self._waiting = [one for one in self._waiting if one.number != self._number]
                self._in_order = False
            if in_order:
                if not self._in_order:
                    self._waiting.extend(listed)
                gaps = _gaps(self._base, listed)
            else:  # a stretch may have been listed in two places: only all of it together is whole
                rest.most_ms = min([rest.most_ms, *(one.time_ms for one in listed)])
                rest.old += sum(one.old for one in listed)
                gaps = [(self._base, None)]
            for after, until in gaps:
                self._waiting.append(self._waiting_for(after, until, rest))
                rest = _Tally(most_ms=rest.most_ms)
            self._waiting = _fewer(self._waiting)

    def _waiting_for(self, after: str, until: str | None, tally: _Tally) -> _Waiting:
        return _Waiting(
            prefix=self._prefix,
            after=after,
            until=until,
            number=self._number,
            time_ms=tally.most_ms,
            old=tally.old,
        )

    def _folded_of(self, prefix: str) -> int:
        return self._offsets.watermark.folded.get(prefix, 0)

    def _look_for_late_ones(self) -> None:
        """Warns once of objects that appeared with a last-modified from before the watermark: nobody reads them."""
        counted, folded_before = self._expected.get(self._prefix, (0, 0))
        more = self._without_position - counted - (self._folded_of(self._prefix) - folded_before)
        if more > 0 and self._youngest is not None:
            log.warning(
                "%d objects older than [discovery] late_arrival_window appeared behind the watermark under prefix %r, for example "
                "%s or an older one; they are not read. To read them: offsets reset --prefix",
                more,
                self._prefix,
                self._youngest.location,
            )
        # what is folded from this pass on may have been counted in it, or not: then fewer are missed than there are
        self._expected[self._prefix] = self._without_position, self._folded_before

    # ---- what the leader asks

    def settle(self) -> None:
        """Lets every stretch rise of which nothing is in the reader's hands any more."""
        with self._lock:
            waiting = list(self._waiting)  # first: what is handed out later is in none of these
        if not waiting:
            return
        in_hand = self._in_hand()
        rises: dict[str, list[CoveredRange]] = {}
        with self._lock:
            risen = {id(one) for one in waiting if not _any_in(in_hand, one)}
            for one in self._waiting:
                if id(one) in risen:
                    rises.setdefault(one.prefix, []).append(CoveredRange(one.after, one.until, one.time_ms))
                    self._foldable += one.old
            self._waiting = [one for one in self._waiting if id(one) not in risen]
        for prefix, ranges in rises.items():
            self._raise(prefix, ranges)

    def _raise(self, prefix: str, ranges: Sequence[CoveredRange]) -> None:
        self._offsets.set_watermark(lambda one: one.raised(prefix, ranges))

    @property
    def foldable(self) -> int:
        """About how many positions a fold would drop now."""
        return max(0, max(self._foldable, self._foldable_before) - self._unfoldable)

    def folded(self, count: int) -> None:
        """So many were dropped. What was taken for foldable and was not (failed ones, say) is not counted again."""
        with self._lock:
            self._unfoldable = max(0, max(self._foldable, self._foldable_before) - count)
            self._foldable = self._foldable_before = 0


def _any_in(keys: Sequence[str], stretch: _Waiting) -> bool:
    """Whether one of some sorted keys lies in a stretch."""
    at = bisect_right(keys, stretch.after)
    while at < len(keys) and (stretch.until is None or keys[at] <= stretch.until):
        if keys[at].startswith(stretch.prefix):
            return True
        at += 1
    return False


def _gaps(base: str, listed: Sequence[_Waiting]) -> list[tuple[str, str | None]]:
    """The parts behind `base` of which no page came: no key lies there."""
    gaps: list[tuple[str, str | None]] = []
    here: str | None = base
    for one in sorted(listed, key=lambda one: one.after):
        if here is None:
            return gaps
        if here < one.after:
            gaps.append((here, one.after))
        here = None if one.until is None else max(here, one.until)
    return gaps if here is None else [*gaps, (here, None)]


def _fewer(stretches: list[_Waiting]) -> list[_Waiting]:
    """The same, with neighbours of one listing joined by twos when there are too many."""
    if len(stretches) <= MOST_STRETCHES:
        return stretches
    ordered = sorted(stretches, key=lambda one: (one.number, one.prefix, one.after))
    result: list[_Waiting] = []
    pairs = False
    for one in ordered:
        last = result[-1] if result and pairs else None
        if last is not None and (last.number, last.prefix, last.until) == (one.number, one.prefix, one.after):
            last.until = one.until
            last.time_ms = min(last.time_ms, one.time_ms)
            last.old += one.old
            pairs = False
        else:
            result.append(one)
            pairs = True
    return result
