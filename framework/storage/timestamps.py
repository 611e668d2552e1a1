"""Timestamps of stores -> milliseconds since 1970 UTC, without a datetime for each key."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from functools import lru_cache

UTC = "+00:00"


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EPOCH_DAY = _EPOCH.toordinal()
_MILLISECOND = timedelta(milliseconds=1)


@lru_cache(maxsize=4096)
def _day_ms(day: str) -> int:
    return (date.fromisoformat(day).toordinal() - _EPOCH_DAY) * 86_400_000


_MINUTES_MS = {f"T{hour:02d}:{minute:02d}": (hour * 60 + minute) * 60_000 for hour in range(24) for minute in range(60)}
_SECONDS_MS = {f":{second:02d}": second * 1000 for second in range(61)}  # 60 is a leap second


def milliseconds(time: str) -> int:
    """Convert `2024-05-31T12:00:00.000Z` to milliseconds since 1970, without a datetime for each key.

    Raises:
        ValueError: it is not a UTC time of that form.
    """
    try:
        whole = _MINUTES_MS[time[10:16]] + _SECONDS_MS[time[16:19]] + _day_ms(time[:10])
    except (KeyError, ValueError):
        raise _no_time(time) from None
    part = time[19:]
    if part in {"Z", ".000Z"}:
        return whole
    if part.endswith(UTC):
        part = f"{part[: -len(UTC)]}Z"
        if part == "Z":
            return whole
    digits = part[1:-1]
    if part[:1] != "." or part[-1:] != "Z" or not (digits.isascii() and digits.isdigit()):
        raise _no_time(time)
    return whole + int((digits + "00")[:3])


def _no_time(time: str) -> ValueError:
    return ValueError(f"no UTC time: {time[:40]!r}")


def utc_moment(header: str) -> datetime:
    """Convert a date of an HTTP header, which is UTC also in the old forms that name no zone (RFC 9110, 5.6.7).

    Raises:
        TypeError, ValueError, OverflowError: it is none.
    """
    moment = parsedate_to_datetime(header)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)


def moment_ms(moment: datetime) -> int:
    """Convert a time with a zone to the millisecond in which it lies, as `milliseconds` does."""
    return (moment - _EPOCH) // _MILLISECOND


def server_time_ms(header: str | None) -> int | None:
    """Convert the header `Date` to milliseconds since 1970 UTC; None when it is absent or invalid."""
    if not header:
        return None
    try:
        return moment_ms(utc_moment(header))
    except (TypeError, ValueError, OverflowError):
        return None
