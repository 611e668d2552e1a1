"""Values of JSON that Protobuf's library changes instead of refusing them.

Of base64 it drops every character that is none, and it takes a number with a fraction or an exponent for a whole number of
64 bits although a double cannot hold its digits.
"""

from __future__ import annotations

import re
from typing import Any

import attrs

from framework.errors import RecordError

_BASE64 = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")
_EXACT = 1 << 53
"""Doubles below it hold each whole number."""

_WELL_KNOWN = "google.protobuf."
_WRAPPERS = {"BytesValue": "bytes", "Int64Value": "whole", "UInt64Value": "whole"}
"""Messages whose JSON is the value of their only field."""


@attrs.frozen(kw_only=True)
class _Field:
    """A field by its form in JSON: what its values are, and whether they are in an array, or in an object of a map."""

    kind: str = ""
    message: Any = None
    within: type | None = None


class ValueCheck:
    """Checks JSON that the library has taken for a message of a type.

    Args:
        descriptor: the type.
    """

    def __init__(self, descriptor: Any) -> None:
        self._descriptor = descriptor
        self._fields: dict[str, dict[str, _Field]] = {}

    def check(self, value: Any) -> None:
        """Check the values in an object.

        Raises:
            RecordError: one of them is not what the message holds.
        """
        self._check_message(value, self._descriptor)

    def _check_message(self, value: Any, descriptor: Any) -> None:
        fields = self._fields.get(descriptor.full_name)
        if fields is None:
            fields = self._fields[descriptor.full_name] = _fields_of(descriptor)
        if not fields or not isinstance(value, dict):
            return
        for name, given in value.items():
            field = fields.get(name)
            if field is None or given is None:
                continue
            values = (given,) if field.within is None else given.values() if field.within is dict else given
            for each in values:
                if field.message is not None:
                    self._check_message(each, field.message)
                elif not _is_exact(each, field.kind):
                    wanted = "base64" if field.kind == "bytes" else "a whole number without fraction or exponent"
                    raise RecordError(f"its field {name} is not {wanted}")


def _fields_of(descriptor: Any) -> dict[str, _Field]:
    """Return the fields to check, by both of the names that JSON may have."""
    found = {}
    for field in descriptor.fields:
        within: type | None = None
        holder = field
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            within, holder = dict, field.message_type.fields_by_name["value"]
        elif _is_repeated(field):
            within = list
        kind, message = _kind_of(holder)
        if kind or message is not None:
            found[field.name] = found[field.json_name] = _Field(kind=kind, message=message, within=within)
    return found


def _is_repeated(field: Any) -> bool:
    given = getattr(field, "is_repeated", None)  # of newer versions, which warn of `label`
    return bool(field.label == field.LABEL_REPEATED if given is None else given)


def _kind_of(field: Any) -> tuple[str, Any]:
    """Return what a field's values are, and their message."""
    message = field.message_type
    if message is None:
        if field.type == field.TYPE_BYTES:
            return "bytes", None
        return ("whole" if field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64) else ""), None
    if message.full_name.startswith(_WELL_KNOWN):
        return _WRAPPERS.get(message.full_name.removeprefix(_WELL_KNOWN), ""), None
    return "", message


def _is_exact(value: Any, kind: str) -> bool:
    if kind == "bytes":
        return bool(_BASE64.fullmatch(value)) and len(value.rstrip("=")) % 4 != 1
    if isinstance(value, str) and not value.lstrip("-").isdigit():
        value = float(value)
    return not isinstance(value, float) or abs(value) < _EXACT
