"""What happens to bad records and failed objects: fail or skip (`[errors] tolerance`), and when there are too many.

A wrong `[input] format` makes every record of a bucket bad. Without a limit, the source would turn the bucket into log
lines and dead letters, and mark its objects as done. `framework.pipeline.object_reader` asks here and skips;
`framework.pipeline.sender` stores the dead letters.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeGuard

import attrs

from framework.errors import ObjectArchivedError, SkippableError, SourceError, TooManySkippedError
from framework.model.batches import SkippedRecord
from framework.offsets.skip_history import HOUR_SECONDS, SkippedCount


@attrs.define(eq=False, repr=False, slots=False, kw_only=True)
class ErrorPolicy:
    """Decide whether bad records and failed objects are skipped, count them, and raise at the limits. Single-threaded.

    Args:
        tolerance: `none`, `skip_object` (its rest, from a bad record on) or `skip_record`.
        per_object: allowed bad records per object.
        per_hour: allowed bad records and failed objects within an hour.
        before: skips and failures of earlier runs.
        clock: seconds.
    """

    _tolerance: str
    _per_object: int
    _per_hour: int
    _before: Iterable[SkippedCount] = ()
    _clock: Callable[[], float] = time.monotonic

    def __attrs_post_init__(self) -> None:
        self._watch = SkipWatch(per_hour=self._per_hour, before=self._before, clock=self._clock)
        self._counted = 0

    @property
    def skips_records(self) -> bool:
        """Whether a bad record is skipped; else it fails its object."""
        return self._tolerance == "skip_record"

    @property
    def skips_objects(self) -> bool:
        """Whether the rest of a failed object is skipped; else its error ends the run."""
        return self._tolerance != "none"

    def skips_rest_after(self, error: SourceError) -> TypeGuard[SkippableError]:
        """Return whether the rest of an object is skipped after an error of its own; archived objects always are."""
        return isinstance(error, SkippableError) and (self.skips_objects or isinstance(error, ObjectArchivedError))

    def skip_record(self, skipped: SkippedRecord, location: str, bad: int) -> None:
        """Count a bad record as skipped.

        Args:
            skipped: the record.
            location: its object, for the message.
            bad: number of bad records of its object, including this record and those of earlier runs.

        Raises:
            SkippableError: the record's own error, when the tolerance does not skip it.
            TooManySkippedError: the record exceeds a limit.
        """
        if not self.skips_records:
            raise skipped.error
        number = skipped.record_number
        if bad > self._per_object:
            raise TooManySkippedError(
                f"{bad:,} of the first {number:,} records of {location} are bad: is [input] format right? If it is, allow more "
                f"with [errors] max_bad_records (now {self._per_object:,}), or leave the object out with [discovery] exclude"
            )
        self._count(f"{location}, record {number:,}")

    def skip_rest(self, location: str, number: int) -> None:
        """Count an object that failed from that record on.

        Raises:
            TooManySkippedError: the object exceeds the hourly limit.
        """
        self._count(f"{location} from record {number:,} on")

    def _count(self, place: str) -> None:
        self._watch.observe(self._counted + 1, f"the last one {place} (earlier starts count)")
        self._counted += 1


class SkipWatch:
    """Enforce the hourly limit of a task, or over all tasks of an epoch by their sums. Single-threaded.

    Args:
        per_hour: allowed bad records and failed objects within an hour.
        before: skips and failures before this epoch.
        clock: seconds.
    """

    def __init__(
        self, *, per_hour: int, before: Iterable[SkippedCount] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_hour = per_hour
        self._clock = clock
        self._before = 0
        now = clock()
        self._sums: deque[tuple[float, int]] = deque([(now - HOUR_SECONDS, 0)])
        for skipped in sorted(before, key=lambda skipped: -skipped.seconds_ago):
            self._before += skipped.count
            self._sums.append((now - skipped.seconds_ago, self._before))

    def observe(self, total: int, what: str = "over all tasks and earlier starts") -> None:
        """Update the total of skips and failures since the epoch began.

        Args:
            total: their number.
            what: of what, for the message.

        Raises:
            TooManySkippedError: the last hour exceeds the limit.
        """
        now, sums = self._clock(), self._sums
        total += self._before
        while len(sums) > 1 and sums[1][0] <= now - HOUR_SECONDS:
            sums.popleft()
        if total != sums[-1][1]:
            end_of_second = math.ceil(now)  # one sum a second: a limit of millions must not take memory for each record
            if sums[-1][0] == end_of_second:
                sums.pop()
            sums.append((end_of_second, total))
        if total - sums[0][1] > self._per_hour:
            raise TooManySkippedError(
                f"{total - sums[0][1]:,} bad records and objects within an hour, {what}: is [input] format right? If it is, "
                f"allow more with [errors] max_bad_records_per_hour (now {self._per_hour:,})"
            )
