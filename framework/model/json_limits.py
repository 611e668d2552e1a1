"""How many values the JSON of a record may have where it is decoded: text of three bytes can become an object of 56 or more."""

from __future__ import annotations

from collections.abc import Sequence

from framework.errors import RecordError
from framework.model.payloads import longest

MAX_JSON_VALUES = 1_000_000
"""The most commas and opening brackets that a decoded payload has: so many values in lists and objects, and not more, have been
seen by the parser. As fields of one object they take about 200 MB, as empty lists 72 MB."""


def within_limit(payload: bytes) -> bool:
    """Return whether a payload may be decoded. Counts the commas and brackets in strings, too."""
    if len(payload) <= MAX_JSON_VALUES:
        return True
    return sum(map(payload.count, (b",", b"[", b"{"))) <= MAX_JSON_VALUES


def check_json(payload: bytes) -> None:
    """Check a payload that is about to be decoded.

    Raises:
        RecordError: it has too many values.
    """
    if not within_limit(payload):
        raise RecordError(f"its JSON has more than {MAX_JSON_VALUES:,} commas and brackets, more than is decoded")


def check_json_of(payloads: Sequence[bytes]) -> None:
    """Check payloads that are about to be decoded.

    Raises:
        RecordError: one of them has too many values.
    """
    if longest(payloads) > MAX_JSON_VALUES:
        for payload in payloads:
            check_json(payload)
