"""How much may be left out before the configuration, not the data, is to blame.

A wrong `[input] format` makes every record of a bucket a bad one. Without a limit it would turn the bucket into log lines and
dead letters, and mark its objects as done.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

import attrs

from framework.errors import TooManySkippedError

HOUR_SECONDS = 3600.0


@attrs.frozen
class LeftOut:
    """What was left out at one moment, as the log of positions tells: a limit for an hour must outlive a restart.

    Attributes:
        seconds_ago: how long ago.
        count: bad records and rests of objects.
    """

    seconds_ago: float
    count: int


class SkipLimits:
    """Counts what is left out, and stops at the limits. One thread.

    Args:
        per_object: bad records of one object that are allowed.
        per_hour: bad records, and objects whose rest is left out, that are allowed within an hour.
        before: what earlier runs left out.
        clock: seconds.
    """

    def __init__(
        self,
        *,
        per_object: int,
        per_hour: int,
        before: Iterable[LeftOut] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_object = per_object
        self._per_hour = per_hour
        self._clock = clock
        self._times: deque[float] = deque()
        for one in sorted(before, key=lambda one: -one.seconds_ago):
            self._times.extend([clock() - one.seconds_ago] * min(one.count, per_hour))

    def record(self, location: str, number: int, bad: int) -> None:
        """One more bad record.

        Args:
            location: its object, for the message.
            number: of the record.
            bad: how many records of its object are bad, this one and those of earlier runs included.

        Raises:
            TooManySkippedError: that is one too many.
        """
        if bad > self._per_object:
            raise TooManySkippedError(
                f"{bad:,} of the first {number:,} records of {location} are bad: is [input] format right? If it is, allow more "
                f"with [errors] max_skipped (now {self._per_object:,}), or leave the object out with [discovery] exclude"
            )
        self._count(f"{location}, record {number:,}")

    def rest(self, location: str, number: int) -> None:
        """The rest of an object is left out from that record on.

        Raises:
            TooManySkippedError: that is one too many.
        """
        self._count(f"{location} from record {number:,} on")

    def _count(self, place: str) -> None:
        now = self._clock()
        times = self._times
        while times and times[0] <= now - HOUR_SECONDS:
            times.popleft()
        if len(times) >= self._per_hour:
            raise TooManySkippedError(
                f"{len(times) + 1:,} bad records and objects within an hour, the last one {place} (earlier starts count): is "
                f"[input] format right? If it is, allow more with [errors] max_skipped_per_hour (now {self._per_hour:,})"
            )
        times.append(now)


class SkipWatch:
    """The same limit over all tasks of a run, by their sums. One thread.

    Args:
        per_hour: bad records and objects that are allowed within an hour.
        clock: seconds.
    """

    def __init__(self, *, per_hour: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_hour = per_hour
        self._clock = clock
        self._before = 0
        self._sums: deque[tuple[float, int]] = deque([(clock(), 0)])

    def expect(self, before: Iterable[LeftOut]) -> None:
        """Counts what earlier runs left out, too. Once, before anything is seen."""
        now, sums = self._clock(), self._sums
        sums[0] = now - HOUR_SECONDS, 0
        for one in sorted(before, key=lambda one: -one.seconds_ago):
            self._before += one.count
            sums.append((now - one.seconds_ago, self._before))

    def see(self, total: int) -> None:
        """How many were left out since the run began, as of now.

        Raises:
            TooManySkippedError: too many of them within the last hour.
        """
        now, sums = self._clock(), self._sums
        total += self._before
        while len(sums) > 1 and sums[1][0] <= now - HOUR_SECONDS:
            sums.popleft()
        if total != sums[-1][1]:
            sums.append((now, total))
        if total - sums[0][1] > self._per_hour:
            raise TooManySkippedError(
                f"{total - sums[0][1]:,} bad records and objects within an hour, over all tasks and earlier starts: is [input] "
                f"format right? If it is, allow more with [errors] max_skipped_per_hour (now {self._per_hour:,})"
            )
