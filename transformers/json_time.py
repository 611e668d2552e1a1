"""Days, seconds and their fractions since 1970 -> ISO 8601 text that keeps the unit: as many digits as the unit has.

Years outside 0001 to 9999 are written with a sign and at least four digits, as ISO 8601 allows by agreement; the
calendar is the Gregorian one throughout.
"""

from __future__ import annotations

from functools import lru_cache

_DAY_SECONDS = 86_400


@lru_cache(maxsize=4096)
def date_text(days: int) -> str:
    """`2024-02-29` for days since 1970-01-01."""
    # Days -> civil date, Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_index = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_index + 2) // 5 + 1
    month = month_index + 3 if month_index < 10 else month_index - 9  # noqa: PLR2004
    year = year_of_era + era * 400 + (month <= 2)  # noqa: PLR2004
    if 1 <= year <= 9999:  # noqa: PLR2004
        return f"{year:04d}-{month:02d}-{day:02d}"
    return f"{year:+05d}-{month:02d}-{day:02d}"


@lru_cache(maxsize=4096)
def _clock_text(seconds: int) -> str:
    minutes, second = divmod(seconds, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}"


def time_text(value: int, digits: int) -> str:
    """`12:34:56.789` for a time of day in 10**-digits seconds; below zero, a sign and the magnitude."""
    if value < 0:
        return "-" + time_text(-value, digits)
    seconds, fraction = divmod(value, 10**digits)
    return f"{_clock_text(seconds)}.{fraction:0{digits}d}" if digits else _clock_text(seconds)


def timestamp_text(value: int, digits: int, zone: str) -> str:
    """`2024-02-29T12:34:56.789Z` for 10**-digits seconds since 1970, with `zone` behind it."""
    seconds, fraction = divmod(value, 10**digits)
    days, seconds = divmod(seconds, _DAY_SECONDS)
    if digits:
        return f"{date_text(days)}T{_clock_text(seconds)}.{fraction:0{digits}d}{zone}"
    return f"{date_text(days)}T{_clock_text(seconds)}{zone}"
