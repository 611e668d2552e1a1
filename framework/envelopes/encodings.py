"""Archived payloads and times -> bytes, and microseconds."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone

import msgspec

from framework.envelopes.layout import TIME_UNITS

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
MAX_TIME_US = (datetime(9999, 12, 31, tzinfo=timezone.utc) - _EPOCH) // _MICROSECOND
"""The latest time that is restored."""

_MAX_DIGITS = 30

_check_json = msgspec.json.Decoder(msgspec.Raw).decode
_to_text = msgspec.json.Decoder(str).decode
_QUOTE = b'"'[0]

FIELD_TYPES: Mapping[str, type] = {"json": msgspec.Raw, "text": str, "base64": bytes, "raw": msgspec.Raw}
"""Payload encoding -> the type to which JSON's parser converts the field."""


def payload_maker(encoding: str) -> Callable[[msgspec.Raw | str | bytes], bytes]:
    """Return the function that makes the payload of a field of `FIELD_TYPES[encoding]`."""
    makers: dict[str, Callable[..., bytes]] = {"json": bytes, "text": str.encode, "base64": bytes, "raw": _raw_payload}
    return makers[encoding]


def _raw_payload(field: msgspec.Raw) -> bytes:
    """The payload of a stream that was archived with the schema `raw`.

    The sink writes JSON as JSON, and anything else as base64. So a string is JSON when it is no base64, or when its bytes are
    JSON: those would not have become base64. Any other string could be both, and is taken for base64.
    """
    text = bytes(field)
    if text[0] != _QUOTE:
        return text
    try:
        data = base64.b64decode(_to_text(text), validate=True)
    except (binascii.Error, ValueError):
        return text
    if not data:
        return text
    try:
        _check_json(data)
        data.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return data
    return text


class TimeError(ValueError):
    """A record's time cannot be restored. The text is the end of a sentence about the record, without the value."""


class TimeReader(dict[object, int]):
    """Archived time -> microseconds since 1970; 0 for none. Keeps the times that it has read: many records share one.

    Args:
        unit: of times that are numbers, one of `TIME_UNITS`.
    """

    MAX_KEPT = 10_000
    MAX_KEPT_CHARACTERS = 100

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._nanoseconds = TIME_UNITS[unit]

    def __missing__(self, time: object) -> int:
        if len(self) >= self.MAX_KEPT:
            self.clear()
        made = self._read(time)
        if not isinstance(time, str) or len(time) <= self.MAX_KEPT_CHARACTERS:  # a second's digits may go on and on
            self[time] = made
        return made

    def _read(self, time: object) -> int:
        if time is None or time == "":
            return 0
        if isinstance(time, str) and time.isascii() and time.isdigit() and len(time) <= _MAX_DIGITS:
            time = int(time)  # a row of CSV has texts alone
        if isinstance(time, float) and time.is_integer():
            time = int(time)  # equal numbers share an entry, so they must be read alike
        if isinstance(time, int):
            return _checked(time * self._nanoseconds // 1000)
        if isinstance(time, float):
            return _checked(round(time * self._nanoseconds / 1000))
        return _checked(self._of_text(str(time)))

    @staticmethod
    def _of_text(time: str) -> int:
        try:
            moment = msgspec.convert(time, datetime)
        except (msgspec.ValidationError, UnicodeError):
            raise TimeError("has a time that is neither RFC 3339 nor a number") from None
        if moment.tzinfo is None:
            raise TimeError("has a time without a zone")
        return (moment - _EPOCH) // _MICROSECOND


def _checked(time_us: int) -> int:
    if not 0 <= time_us <= MAX_TIME_US:
        raise TimeError("has a time before 1970 or after 9999")
    return time_us
