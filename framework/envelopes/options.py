"""The options of an envelope: the part of `[input]` that says how a topic was archived."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from framework.envelopes.archive_layouts import LAYOUTS
from framework.envelopes.archived_headers import KINDS
from framework.envelopes.layout import FIELDS, Layout
from framework.model.text import NOT_RENAMED, can_be_renamed_to

ENVELOPES = (*LAYOUTS, "custom")
"""The values of `input.envelope`."""

_AIVEN_COLUMNS = ("key", "value", "offset", "timestamp", "headers")
_MAX_NAME_BYTES = 255


@attrs.frozen(kw_only=True, slots=True)
class EnvelopeOptions:
    """How a topic was archived.

    Attributes:
        envelope: one of `ENVELOPES`.
        payload: encoding of the payload; None: that of the envelope.
        fields: the fields of `custom`: part -> name.
        columns: the fields of rows of CSV without a header, in order.
        headers: encoding of the strings of headers.
        header_kinds: kinds of headers by name.
        key_header: name of the header that receives an archived key.
        timestamp_unit: unit of times that are numbers.
        check_origin: whether a record of another topic or partition than its object's is bad.
    """

    envelope: str
    payload: str | None = None
    fields: Mapping[str, str] = attrs.field(factory=dict)
    columns: tuple[str, ...] = ()
    headers: str = "text"
    header_kinds: Mapping[str, str] = attrs.field(factory=dict)
    key_header: str | None = None
    timestamp_unit: str = "milliseconds"
    check_origin: bool = True

    @property
    def parses_records(self) -> bool:
        """Whether every record is parsed as JSON here, so that its format need not check it."""
        return self.layout().is_parsed

    def validate_options(self) -> Iterator[str]:
        """Yield an error for each option that is invalid, or has no effect with this envelope."""
        if self.envelope == "custom":
            yield from _field_errors(self.fields)
            for name in () if self.columns else self.fields.values():
                if not can_be_renamed_to(name):
                    yield f"envelope_fields: {name!r} has {NOT_RENAMED}, which no field of an envelope may have"
        elif self.fields:
            yield f'envelope_fields: has no effect with envelope = "{self.envelope}", whose fields are known; set "custom"'
        for name, kind in self.header_kinds.items():
            if kind not in KINDS:
                yield f"envelope_header_kinds: {name} = {kind!r} is none of {', '.join(KINDS)}"
        if self.key_header is not None and not 1 <= len(self.key_header.encode()) <= _MAX_NAME_BYTES:
            yield f"envelope_key_header: must have 1 to {_MAX_NAME_BYTES} bytes"
        if self.key_header is not None and self._base().key is None:
            yield f'envelope_key_header: envelope = "{self.envelope}" has no field with a key'
        yield from self._column_errors()

    def _column_errors(self) -> Iterator[str]:
        if not self.columns:
            return
        if self.envelope not in {"aiven", "custom"}:
            yield f'envelope_columns: has no effect with envelope = "{self.envelope}", whose records are no rows'
            return
        doubled = sorted({name for name in self.columns if self.columns.count(name) > 1})
        if doubled:
            yield f"envelope_columns: {doubled[0]!r} is named twice"
        known = _AIVEN_COLUMNS if self.envelope == "aiven" else self.columns
        unknown = [name for name in self.columns if name not in known]
        if unknown:
            yield f"envelope_columns: {unknown[0]!r} is none of {', '.join(known)}"
        payload = self._base().payload
        if payload is not None and payload not in self.columns:
            yield f"envelope_columns: {payload!r}, the payload, is missing"

    def _base(self) -> Layout:
        if self.envelope != "custom":
            return LAYOUTS[self.envelope]
        return Layout(**{part: name for part, name in self.fields.items() if part in FIELDS})  # type: ignore[arg-type]

    def layout(self) -> Layout:
        """Return the form of the archived records."""
        rows = self.envelope == "aiven" and bool(self.columns)  # Aiven's CSV: everything but numbers is base64
        made = attrs.evolve(
            self._base(),
            payload_encoding=self.payload or ("base64" if rows else "json"),
            header_encoding="base64" if rows else self.headers,
            header_kinds=self.header_kinds,
            key_header=self.key_header,
            time_unit=self.timestamp_unit if self.envelope == "custom" else "milliseconds",
            columns=self.columns,
        )
        if not self.columns:
            return made
        missing: dict[str, Any] = {part: None for part, name in made.named_fields().items() if name not in self.columns}
        return attrs.evolve(made, **missing)


def _field_errors(fields: Mapping[str, str]) -> Iterator[str]:
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
