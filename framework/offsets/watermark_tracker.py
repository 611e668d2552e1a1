"""Tracking of listed key ranges, to advance the watermark.

    listing -> pages with their key ranges -> everything in them has a position, or is done -> the watermark advances

A range advances to the time its listing began, by the store's clock or this machine's if that is earlier, minus
`allowed_lateness`. It never passes the last-modified of a listed object without a position: too young, overwritten
during its read, or refused. The watermark never hides an object with a position, read or not, so nothing waits for the
readers. In a store whose order is documented a range advances page by page. In other stores it advances after the whole
listing, because a key out of order may lie in a range listed before.
"""

from __future__ import annotations

import itertools
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING

from framework.model.text import counted
from framework.offsets.table import PositionTable
from framework.offsets.watermark import CoveredRange

if TYPE_CHECKING:
    from framework.model.key_range import KeyRange
    from framework.model.objects import NativeObject
    from framework.model.positions import OffsetManagerEntry, OffsetManagerKey

log = logging.getLogger(__name__)

_name = itemgetter(0)


class WatermarkTracker:
    """Advance the watermark of a table, and drop the positions that it replaces. For the listing thread.

    Args:
        table: the positions and their watermark.
        store_begun: stores the positions that were started.
    """

    def __init__(self, table: PositionTable, store_begun: Callable[[], None]) -> None:
        self._table = table
        self._store_begun = store_begun
        self._window_ms: int | None = None
        # of all listings
        self._uncompactable: list[tuple[str, OffsetManagerKey]] = []  # in key order
        self._begun: set[str] = set()  # the prefixes whose listings have begun since these were looked up
        self._complete_ms: dict[str, int] = {}  # prefix -> start of its last complete listing
        self._compactable = self._final_before = 0
        self._full_reported = False
        self._expected: dict[str, tuple[int, int]] = {}
        self.begin_listing("", "", in_order=False, whole=False)

    def open(self, window_ms: int | None) -> None:
        """Start tracking.

        Args:
            window_ms: how much later than its last-modified an object may appear; None: nothing is ever compacted.
        """
        self._window_ms = window_ms

    # ---- reports of the listing

    def begin_listing(self, prefix: str, after: str, *, in_order: bool, whole: bool = True) -> None:
        """Start the listing of a prefix; objects count only after `start_at` sets its time.

        Args:
            prefix: the prefix.
            after: the listing starts after this key.
            in_order: the store's order is documented, so every key before a listed key was listed.
            whole: the listing begins at the usual start of this prefix, so it shows which objects are missing.
        """
        self._prefix, self._base, self._in_order = prefix, after, in_order
        self._began_ms: int | None = None
        self._horizon_ms = self._page_ms = self._least_ms = self._old = 0
        self._may_be_missing = self._uncompactable_under(prefix, after) if whole else []
        self._unseen = {key.whole() for key in self._may_be_missing}
        self._without_position = 0
        self._youngest: NativeObject | None = None
        self._compacted_before = self._table.watermark.compacted.get(prefix, 0)

    def _uncompactable_under(self, prefix: str, after: str) -> list[OffsetManagerKey]:
        """Return the positions that no watermark replaces, of objects that a listing should show."""
        if not self._begun or prefix in self._begun:  # all positions are looked through once for all prefixes
            with self._table.lock:
                found = self._table.positions.uncompactable()
            self._uncompactable = sorted(((entry.key, key) for key, entry in found), key=_name)
            self._begun = set()
        self._begun.add(prefix)
        ordered = self._uncompactable
        first = max(bisect_left(ordered, prefix, key=_name), bisect_right(ordered, after, key=_name))
        rest = map(ordered.__getitem__, range(first, len(ordered)))
        return [key for _, key in itertools.takewhile(lambda pair: pair[0].startswith(prefix), rest)]

    def start_at(self, moment_ms: int) -> None:
        """Set the start of the listing, in milliseconds since 1970 by the store's clock, before its first object."""
        if self._window_ms is None:
            return
        self._began_ms = moment_ms
        # stores round last-modified down to seconds: later objects must not look earlier
        self._horizon_ms = max(0, moment_ms // 1000 * 1000 - self._window_ms)
        self._page_ms = self._least_ms = self._horizon_ms

    def add_known(self, native: NativeObject) -> None:
        """Count an object with a position."""
        if self._began_ms is not None and native.modified_ms < self._horizon_ms:
            if native.modified_ms <= 0:
                self.defer(native)
            self._old += 1

    def still_exists(self, key: OffsetManagerKey) -> None:
        """Record that an object with a pending position, or a failed one, still exists, whether selected or not."""
        self._unseen.discard(key)

    def add_compacted(self, native: NativeObject) -> None:
        """Count an object without a position that is done according to the watermark."""
        self._without_position += 1
        if self._youngest is None or native.modified_ms > self._youngest.modified_ms:
            self._youngest = native

    def defer(self, native: NativeObject) -> None:
        """Hold back the watermark: this object or version has no position yet and must not be hidden."""
        self._page_ms = min(self._page_ms, native.modified_ms)

    def advance_over(self, key_range: KeyRange | None) -> None:
        """Advance over a key range whose objects were all handled since the last call; None: an unknown range."""
        if self._began_ms is None:
            return
        page_ms, self._page_ms = self._page_ms, self._horizon_ms
        self._least_ms = min(self._least_ms, page_ms)
        if self._in_order and key_range is not None:
            self._advance(key_range.after, key_range.until, page_ms)

    def complete(self, *, whole: bool) -> None:
        """End the listing of the prefix.

        Args:
            whole: the listing began at the usual start of this prefix.
        """
        if whole:
            self._look_for_late_ones()
        if self._began_ms is None:
            return
        self._least_ms = min(self._least_ms, self._page_ms)
        self._advance(self._base, None, self._least_ms)  # parts that advanced further stay there
        if whole:
            self._complete_ms[self._prefix] = self._began_ms
            self._table.mark_missing(self._may_be_missing, self._unseen, self._began_ms)
        self._began_ms = None

    def _advance(self, after: str, until: str | None, time_ms: int) -> None:
        # first: once the log holds the watermark, it hides every older object without a position
        self._store_begun()
        table = self._table
        with table.lock:
            before = table.watermark
            table.watermark = before.raised(self._prefix, CoveredRange(after, until, time_ms))
        if table.watermark is before and before.is_full and not self._full_reported:
            self._full_reported = True
            log.warning(
                "prefix %r: the positions of its finished objects stay in memory and in the offsets log, since the watermark "
                "has %d other ranges, its maximum; list fewer prefixes",
                self._prefix,
                len(before),
            )
        self._compactable += self._old
        self._old = 0

    def _look_for_late_ones(self) -> None:
        """Warn once of objects that appeared with a last-modified before the watermark: **they are not read**."""
        known, compacted_before = self._expected.get(self._prefix, (0, 0))
        compacted = self._table.watermark.compacted.get(self._prefix, 0)
        more = self._without_position - known - (compacted - compacted_before)
        if more > 0 and self._youngest is not None:
            log.warning(
                "%s appeared under prefix %r with a last-modified older than [discovery] allowed_lateness, for example "
                "%s or an older one; not read. To read what appeared: offsets reset --prefix",
                counted(more, "object"),
                self._prefix,
                self._youngest.location,
            )
        # later compactions may have been counted in this listing, or not: the estimate may be too low, never too high
        self._expected[self._prefix] = self._without_position, self._compacted_before

    def end_key_list(self) -> None:
        """Log the objects of a key list that count as done only by the watermark: one that appeared late does, too."""
        if self._youngest is not None:
            log.info(
                "%s of the key list without a position: listings of the bucket passed them, so they count as done, for "
                "example %s. To read one that appeared late: offsets reset --key",
                counted(self._without_position, "object"),
                self._youngest.location,
            )
        self._without_position, self._youngest = 0, None

    # ---- queries of the leader

    @property
    def compactable(self) -> int:
        """Approximate number of positions that a compaction would drop now.

        Counts old listed objects, up to the number of new final positions.
        """
        return max(0, min(self._compactable, self._table.final - self._final_before))

    def compact(self) -> int:
        """Drop the positions that the watermark replaces, and those of objects gone for good; return their number.

        Unfinished objects wait for a later compaction.
        """
        objects = self._table.compact(self._is_gone_for_good)
        self._compactable = 0
        self._final_before = self._table.final
        return objects

    def _is_gone_for_good(self, entry: OffsetManagerEntry) -> bool:
        """Return whether complete listings missed the object for so long that its return would be a late arrival."""
        if self._window_ms is None:
            return False
        prefix = self._table.watermark.prefix_over(entry.bucket, entry.key, entry.modified_ms)
        return prefix is not None and entry.missing_since_ms <= self._complete_ms.get(prefix, 0) - self._window_ms
