"""Times as stores write them -> milliseconds since 1970 UTC, without a datetime for each key."""

from __future__ import annotations

import calendar
from email.utils import parsedate_to_datetime
from functools import lru_cache


@lru_cache(maxsize=4096)
def _day_ms(day: str) -> int:
    year, month, number = day.split("-")
    return calendar.timegm((int(year), int(month), int(number), 0, 0, 0)) * 1000


def milliseconds(time: str) -> int:
    """`2024-05-31T12:00:00.000Z` in milliseconds since 1970, without a datetime for each key.

    Raises:
        ValueError: it is no UTC time of that form.
    """
    if len(time) < 20 or time[10] != "T" or time[-1] != "Z":  # noqa: PLR2004 - seconds are the least there is
        raise ValueError(f"no UTC time: {time!r}")
    whole = _day_ms(time[:10]) + (int(time[11:13]) * 3600 + int(time[14:16]) * 60 + int(time[17:19])) * 1000
    return whole + int((time[20:-1] + "00")[:3]) if time[19] == "." else whole


def server_time_ms(date: str | None) -> int | None:
    """The header `Date` in milliseconds since 1970 UTC; None when it is absent or no date."""
    if not date:
        return None
    try:
        return round(parsedate_to_datetime(date).timestamp() * 1000)
    except (TypeError, ValueError):
        return None
