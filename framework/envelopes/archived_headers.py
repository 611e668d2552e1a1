"""Archived headers -> the headers of a message.

A null has no counterpart in Iggy: such a header is left out. A text keeps its text, a number becomes one of 64 bits, unless a
kind is set for its name. A list or an object becomes its JSON text.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping

import msgspec

from framework.envelopes.layout import RestoreError
from framework.model.header_encoding import HeaderValue
from framework.model.header_kinds import NUMBER_KINDS, HeaderNumber, header_number
from framework.model.json_limits import MAX_JSON_VALUES, within_limit

KINDS = ("raw", "string", *NUMBER_KINDS)
"""Kinds that can be set for a header."""

_NO_VALUE = (None, "", b"")
_parse = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class HeaderDecoder:
    """Archived headers -> headers by name.

    Args:
        encoding: what the string of a header holds: `text`, or `base64` of its bytes.
        kinds: the kind of a header, by its name; one of `KINDS`.
    """

    def __init__(self, encoding: str = "text", kinds: Mapping[str, str] | None = None) -> None:
        self._base64 = encoding == "base64"
        self._kinds = dict(kinds or {})
        self._plain = not self._base64 and not self._kinds

    def decode(self, text: bytes) -> dict[str, HeaderValue]:
        """Return the headers of their JSON text; none for null.

        Of several headers with one name the last is kept, since Iggy's headers are a map.

        Raises:
            RestoreError: it is neither an object nor a list of objects with `key` and `value`, a value is
                not of its kind, or there are too many.
        """
        found = _decode(text)
        if self._plain and isinstance(found, dict) and all(map(_is_plain, found.values())):
            return found
        headers: dict[str, HeaderValue] = {}
        for name, value in _pairs(found):
            headers.pop(name, None)
            made = self.value(name, value)
            if made not in _NO_VALUE:
                headers[name] = made
        return headers

    def key(self, name: str, text: bytes) -> HeaderValue | None:
        """Return the value of the header that takes an archived key; None for a record without one.

        Raises:
            RestoreError: it is not of the kind of this name, or has too many values.
        """
        made = self.value(name, _decode(text))
        return None if made in _NO_VALUE else made

    def value(self, name: str, value: object) -> HeaderValue | None:
        """Return the value of a header; None when it has none.

        Raises:
            RestoreError: it is not of the kind of this name.
        """
        if value is None:
            return None
        kind = self._kinds.get(name)
        try:
            if kind in NUMBER_KINDS:
                return _number(kind, value)
            if kind == "raw":
                return value if isinstance(value, bytes) else base64.b64decode(value, validate=True)  # type: ignore[arg-type]
            if kind == "string" and isinstance(value, str):
                return value
            if self._base64 and isinstance(value, str):
                value = base64.b64decode(value, validate=True)
        except (TypeError, ValueError):
            raise RestoreError(f"has a header {name!r} that is no {kind or 'base64'}") from None
        return _plain(value)


def _decode(text: bytes) -> object:
    if not within_limit(text):
        raise RestoreError(
            f"has headers or a key with more than {MAX_JSON_VALUES:,} commas and brackets, more than is decoded"
        )
    return _parse(text)


def _is_plain(value: object) -> bool:
    """Whether a value is a header's as it stands."""
    if isinstance(value, str):
        return value != ""
    return isinstance(value, (bool, float)) or (isinstance(value, int) and -(1 << 63) <= value < 1 << 64)


def _plain(value: object) -> HeaderValue:
    """The value of a header whose kind follows from its JSON."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, (str, float)):
        return value
    if isinstance(value, int):  # a truth value, too
        return value if -(1 << 63) <= value < 1 << 64 else str(value)
    return _encode(value).decode()


def _number(kind: str, value: object) -> HeaderNumber:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError
    if isinstance(value, str):  # of numbers over 64 bits, and of floats that JSON does not have
        value = int(value) if "int" in kind else float(value)
    return header_number(kind, value)


def _pairs(headers: object) -> Iterator[tuple[str, object]]:
    if isinstance(headers, dict):
        yield from headers.items()
    elif isinstance(headers, str):
        yield from _row_pairs(headers)
    elif isinstance(headers, list):
        for header in headers:
            if not isinstance(header, dict) or not isinstance(header.get("key"), str):
                raise RestoreError("has a header that is no object with `key` and `value`")
            yield header["key"], header.get("value")
    elif headers is not None:
        raise RestoreError("has headers that are neither an object nor a list")


def _row_pairs(text: str) -> Iterator[tuple[str, bytes]]:
    """The headers of a row of Aiven's CSV: `name:value;` for each, both in base64."""
    for pair in text.split(";"):
        if not pair:
            continue
        try:
            name, value = (base64.b64decode(part, validate=True) for part in pair.split(":"))
            made = name.decode(), value
        except ValueError:
            raise RestoreError("has headers that are not pairs of base64 with `:` and `;`") from None
        yield made
