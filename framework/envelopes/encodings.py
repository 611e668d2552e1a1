"""Archived payloads and times -> bytes, and microseconds."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TypeVar

import msgspec

from framework.envelopes.layout import TIME_UNITS, RestoreError

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
MAX_TIME_US = (datetime(9999, 12, 31, tzinfo=timezone.utc) - _EPOCH) // _MICROSECOND
"""The latest time that is restored."""

_MAX_DIGITS = 30
_MAX_TIME_CHARACTERS = 100  # a second's digits may go on and on

_check_json = msgspec.json.Decoder(msgspec.Raw).decode
_to_text = msgspec.json.Decoder(str).decode
_QUOTE = b'"'[0]


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


PAYLOADS: Mapping[str, tuple[type, Callable[..., bytes]]] = {
    "json": (msgspec.Raw, bytes),
    "text": (str, str.encode),
    "base64": (bytes, bytes),
    "raw": (msgspec.Raw, _raw_payload),
}
"""Payload encoding -> the type to which JSON's parser converts the field, and what makes the payload of it."""

K = TypeVar("K")
V = TypeVar("V")


class KnownValues(dict[K, V]):
    """What an archived field means. Keeps what it has read, as many records share one, but nothing of long texts.

    Args:
        read: reads a field.
        max_length: maximum length of a text that is kept.
    """

    MAX_KEPT = 10_000

    def __init__(self, read: Callable[[K], V], max_length: int) -> None:
        super().__init__()
        self._read = read
        self._max_length = max_length

    def __missing__(self, field: K) -> V:
        if len(self) >= self.MAX_KEPT:
            self.clear()
        made = self._read(field)
        if not isinstance(field, (str, bytes)) or len(field) <= self._max_length:
            self[field] = made
        return made


def known_times(unit: str) -> KnownValues[object, int]:
    """Archived time -> microseconds since 1970; 0 for none. Times that are numbers are of that unit, one of `TIME_UNITS`."""
    return KnownValues(partial(_time_us, TIME_UNITS[unit]), _MAX_TIME_CHARACTERS)


def _time_us(nanoseconds: int, time: object) -> int:
    if time is None or time == "":
        return 0
    if isinstance(time, str) and time.isascii() and time.isdigit() and len(time) <= _MAX_DIGITS:
        time = int(time)  # a row of CSV has texts alone
    if isinstance(time, float) and time.is_integer():
        time = int(time)  # equal numbers share an entry, so they must be read alike
    if isinstance(time, int):
        time_us = time * nanoseconds // 1000
    elif isinstance(time, float):
        time_us = round(time * nanoseconds / 1000)
    else:
        try:
            moment = msgspec.convert(time, datetime)
        except (msgspec.ValidationError, UnicodeError):
            raise RestoreError("has a time that is neither RFC 3339 nor a number") from None
        if moment.tzinfo is None:
            raise RestoreError("has a time without a zone")
        time_us = (moment - _EPOCH) // _MICROSECOND
    if not 0 <= time_us <= MAX_TIME_US:
        raise RestoreError("has a time before 1970 or after 9999")
    return time_us
