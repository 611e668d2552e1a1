"""The origin timestamp of a message, from a field of its payload."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any, cast

import attrs
import msgspec
import numpy as np
from typing_extensions import override

from framework.config.option import option
from framework.transform import TransformContext
from framework.transforms.documents import MISSING, Documents, DocumentTransform
from framework.transforms.values import PATHS

_PER_UNIT = {"seconds": (10**6, 1), "millis": (10**3, 1), "micros": (1, 1), "nanos": (1, 10**3)}
"""Unit -> factor and divisor to microseconds."""

FORMATS = ("iso8601", *_PER_UNIT)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_LAST_US = (datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone.utc) - _EPOCH) // _MICROSECOND


@attrs.frozen(kw_only=True)
class TimestampOptions:
    """Options of `timestamp`."""

    field: str = option(doc=f"Name of the field. {PATHS}", minimum=1)
    format: str = option(
        "iso8601",
        choices=FORMATS,
        doc='`"iso8601"`: text such as `"2024-05-31T12:00:00.5Z"`, UTC when it names no zone. The others: a number since 1970, '
        "in that unit.",
    )
    missing: str = option(
        "fail",
        choices=("fail", "ignore"),
        doc='A record without the field, or with null: `"fail"` makes it bad; `"ignore"` gives it the time of sending.',
    )


class Timestamp(DocumentTransform):
    """Make a field the time of origin of the message. Iggy's own timestamp stays the time of storing."""

    name = "timestamp"
    options_class = TimestampOptions

    def __init__(self, options: object) -> None:
        super().__init__(options)
        given = cast("TimestampOptions", options)
        self.fields = (given.field,)
        self._field, self._optional = given.field, given.missing == "ignore"
        self._unit = _PER_UNIT.get(given.format)

    @override
    def change(self, documents: Documents, context: TransformContext) -> None:
        times: list[int] = []
        reasons: dict[int, str] = {}
        for place, value in enumerate(documents.column(self._field)):
            at = self._microseconds(value)
            if isinstance(at, str):
                reasons[place] = f'{self.name}: field "{self._field}" {at}'
            else:
                times.append(at)
        documents.reject(reasons)
        timestamps_us = np.asarray(times, dtype=np.int64)
        documents.batch = attrs.evolve(documents.batch, timestamps_us=timestamps_us)

    def _microseconds(self, value: Any) -> int | str:
        """Return a value in microseconds since 1970; 0 for none, a reason when it is no time."""
        if value is MISSING or value is None:
            return 0 if self._optional else "is null" if value is None else "is missing"
        try:
            at = _of_text(value) if self._unit is None else _of_number(value, *self._unit)
        except (ValueError, OverflowError):
            at = None
        if at is None:
            return "is no ISO 8601 date with a time" if self._unit is None else "is no number of a time"
        return at if 0 < at <= _LAST_US else "is not between 1970 and 9999"


def _of_number(value: Any, factor: int, divisor: int) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value * factor // divisor if isinstance(value, int) else round(value * factor / divisor)


def _of_text(value: Any) -> int | None:
    if not isinstance(value, str):
        return None
    try:
        at = msgspec.convert(value, datetime)
    except msgspec.ValidationError:
        at = datetime.fromisoformat(value)  # a date alone, and other forms that RFC 3339 does not have
    return ((at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)) - _EPOCH) // _MICROSECOND
