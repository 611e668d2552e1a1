"""Recent skips and failures, as read from the offsets log: an hourly limit must outlive a restart."""

from __future__ import annotations

import attrs

HOUR_SECONDS = 3600.0


@attrs.frozen
class SkippedCount:
    """The skips and failures of a moment, as read from the offsets log: an hourly limit must outlive a restart.

    Attributes:
        seconds_ago: age of the moment in seconds.
        count: skipped records and failed objects.
    """

    seconds_ago: float
    count: int
