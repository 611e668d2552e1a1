"""The form of an archived record: which field holds what, and how."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

FIELDS = ("payload", "headers", "timestamp", "topic", "partition", "key")
"""The parts of an archived record that a message can get back."""

PAYLOAD_ENCODINGS = ("json", "text", "base64", "raw")
"""How a payload is archived. `json`: a JSON value, kept byte for byte. `text`, `base64`: a string. `raw`: a JSON value, or base64
of bytes that are not JSON, as Iggy's sink writes a stream with the schema `raw`."""

HEADER_ENCODINGS = ("text", "base64")
"""How the string of a header is archived."""

TIME_UNITS: Mapping[str, int] = {
    "seconds": 1_000_000_000,
    "milliseconds": 1_000_000,
    "microseconds": 1000,
    "nanoseconds": 1,
}
"""Nanoseconds of each unit of a timestamp that is a number."""


class RestoreError(ValueError):
    """A record cannot be restored. The text is the end of a sentence about the record, without its content."""


@attrs.frozen(kw_only=True, slots=True)
class Layout:
    """The form of an archived record. A field of None is not in it.

    Attributes:
        payload: the field with the payload; None: the record is the payload.
        headers: an object, or an array of objects with `key` and `value`.
        timestamp: text in RFC 3339, or a number of `time_unit`.
        topic: the name of the archived topic.
        partition: the number of its partition.
        key: Kafka's key; Iggy has none, so it becomes a header.
        columns: the fields of a record that is an array, in order; empty: a record is an object.
        payload_encoding: one of `PAYLOAD_ENCODINGS`.
        header_encoding: one of `HEADER_ENCODINGS`.
        time_unit: one of `TIME_UNITS`.
        key_header: name of the header that receives the key; None: the key is not restored.
        header_kinds: the kind of a header, by its name; by default the kind follows from the JSON value.
    """

    payload: str | None = None
    headers: str | None = None
    timestamp: str | None = None
    topic: str | None = None
    partition: str | None = None
    key: str | None = None
    columns: tuple[str, ...] = ()
    payload_encoding: str = "json"
    header_encoding: str = "text"
    time_unit: str = "milliseconds"
    key_header: str | None = None
    header_kinds: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def is_parsed(self) -> bool:
        """Whether a record must be parsed; otherwise it is its payload as it stands."""
        return bool(self.named_fields()) or self.payload_encoding != "json"

    def named_fields(self) -> dict[str, str]:
        """Return the field of each part, for those that the form has: `{"payload": "value"}`."""
        named = {part: getattr(self, part) for part in FIELDS}
        if self.key_header is None:
            del named["key"]
        return {part: name for part, name in named.items() if name is not None}


@attrs.frozen(kw_only=True, slots=True)
class Origin:
    """What the key of an object says of its records; None where it says nothing.

    Attributes:
        topic: their topic.
        partition: their partition.
    """

    topic: str | None = None
    partition: int | None = None
