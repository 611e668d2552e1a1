"""Records of any other writer: `[input.envelope_fields]` names the fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from framework.envelopes.layout import FIELDS, Layout


def make_layout(fields: Mapping[str, str]) -> Layout:
    """Return the layout of the named fields; `field_errors` checks them."""
    return Layout(**{part: name for part, name in fields.items() if part in FIELDS})  # type: ignore[arg-type]


def field_errors(fields: Mapping[str, str]) -> Iterator[str]:
    """Yield an error for each part that does not exist or has no name, and for a missing payload."""
    for part, name in fields.items():
        if part not in FIELDS:
            yield f"envelope_fields: {part!r} is none of {', '.join(FIELDS)}"
        elif not name:
            yield f"envelope_fields: {part} has no name"
    if "payload" not in fields:
        yield 'envelope_fields: payload is missing; envelope = "custom" needs the field that holds the payload'
    named = [name for name in fields.values() if name]
    for name in sorted({name for name in named if named.count(name) > 1}):
        yield f"envelope_fields: {name!r} is named twice"
