"""The envelope as the first transform of a source: archived records -> payloads, headers and times.

One call of JSON's parser reads a block of lines, and takes each payload's bytes as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from framework.envelopes.archived_headers import HeaderDecoder
from framework.envelopes.encodings import PAYLOADS, KnownValues, known_times
from framework.envelopes.layout import Layout, Origin, RestoreError
from framework.errors import RecordError
from framework.model.header_encoding import EncodedHeaders, HeaderValue
from framework.model.payloads import PayloadColumn, decode_objects
from framework.model.utf8 import check_utf8
from framework.transform import Transform, TransformBatch, TransformContext

Headers = Mapping[str, HeaderValue]

_ADVICE = "see [input] envelope and its options"
_MAX_PARTITION_DIGITS = 10
_MAX_KNOWN_BYTES = 500
"""Maximum length of headers that are kept."""

_OTHER_CHARACTER = re.compile(r"[^A-Za-z0-9._-]")


_WRONG = (msgspec.DecodeError, RestoreError, UnicodeError, RecursionError)


class EnvelopeTransform(Transform):
    """Take archived records out of their envelopes. Deterministic: a function of the record and its object's key.

    Not thread-safe: it keeps the headers and times that it has read.

    Args:
        layout: how the topic was archived.
        origin_of: what a key says of the object's records.
        check_origin: whether a record of another topic or partition than its object's is bad.
    """

    name = "envelope"

    def __init__(self, layout: Layout, origin_of: Callable[[str], Origin], *, check_origin: bool = True) -> None:
        super().__init__(None)
        self._layout = layout
        self._origin_of = origin_of
        self._check_origin = check_origin
        self._parts = layout.named_fields()
        self._objects = layout.payload is not None and not layout.columns
        self._decoder = msgspec.json.Decoder(_record_type(layout))
        _, self._make_payload = PAYLOADS[layout.payload_encoding]
        self._times = known_times(layout.time_unit)
        self._header_decoder = HeaderDecoder(layout.header_encoding, layout.header_kinds)
        self._headers = KnownValues(self._read_headers, _MAX_KNOWN_BYTES)

    @override
    def apply(self, batch: TransformBatch, context: TransformContext) -> TransformBatch:
        if not self._layout.is_parsed:
            return batch
        try:
            return self._restore(batch, self._origin_of(context.native.key))
        except _WRONG as error:
            raise RecordError(_reason(error)) from None

    def _restore(self, batch: TransformBatch, origin: Origin) -> TransformBatch:
        """Restore records that are all good.

        Raises:
            DecodeError, RestoreError, UnicodeError, RecursionError: one of them is not.
        """
        records = batch.payloads
        rows = self._rows(records)
        if self._check_origin:
            self._check(rows, origin)
        return attrs.evolve(
            batch,
            payloads=self._payloads(rows, records),
            headers=self._headers_of(rows) if "headers" in self._parts or "key" in self._parts else None,
            timestamps_us=self._times_of(rows) if "timestamp" in self._parts else None,
        )

    def _rows(self, records: Sequence[bytes]) -> list[Any]:
        for text in [records.data] if isinstance(records, PayloadColumn) else records:
            check_utf8(bytes(text))  # JSON's parser lets other bytes pass in what it does not convert
        # of a single record, the decoder's errors name no place in a list
        if self._objects and isinstance(records, PayloadColumn) and len(records) > 1:
            rows = decode_objects(records, self._decoder)
            if rows is not None:
                return rows
        return list(map(self._decoder.decode, records))

    def _payloads(self, rows: list[Any], records: Sequence[bytes]) -> Sequence[bytes]:
        fields = rows if self._layout.payload is None else [row.payload for row in rows]
        if self._layout.payload_encoding == "json" and isinstance(records, PayloadColumn):
            return PayloadColumn(b"\n".join([*fields, b""]))  # a part of a line has no line feed
        payloads = list(map(self._make_payload, fields))
        if not all(payloads):
            raise RestoreError("has an empty payload, and Iggy stores no empty messages")
        return payloads

    def _times_of(self, rows: list[Any]) -> NDArray[np.int64] | None:
        made = np.fromiter(map(self._times.__getitem__, [row.timestamp for row in rows]), np.int64, len(rows))
        return made if made.any() else None

    def _read_headers(self, text: bytes) -> Headers | None:
        found = self._header_decoder.decode(text) if text else None  # a record without the field has no text
        return EncodedHeaders(found) if found else None

    def _headers_of(self, rows: list[Any]) -> list[Headers | None] | None:
        known = self._headers
        found: list[Headers | None] = [None] * len(rows)
        if "headers" in self._parts:
            fields = [row.headers for row in rows]
            if any(fields):
                found = list(map(known.__getitem__, _texts(fields)))
        if "key" in self._parts:
            found = [
                headers if row.key is None else self._with_key(headers, bytes(row.key))
                for headers, row in zip(found, rows, strict=True)
            ]
        return found if any(found) else None

    def _with_key(self, headers: Headers | None, key: bytes) -> Headers | None:
        name = self._layout.key_header
        assert name is not None
        field = self._header_decoder.key(name, key)
        if field is None:
            return headers
        return {**(headers or {}), name: field}

    def _check(self, rows: list[Any], origin: Origin) -> None:
        """Check that the records are of their object's topic and partition, as far as both are known."""
        if origin.partition is not None and "partition" in self._parts:
            for partition in set(map(_partition, {row.partition for row in rows})) - {None, origin.partition}:
                raise RestoreError(
                    f"was archived from partition {partition}, and the name of its object says {origin.partition}; "
                    'set [input] envelope_mismatch = "ignore" to restore it where its object goes'
                )
        if origin.topic is not None and "topic" in self._parts:
            for topic in {row.topic for row in rows} - {None, origin.topic}:
                if _OTHER_CHARACTER.sub("_", topic) != origin.topic:  # sinks replace what keys should not have
                    raise RestoreError(
                        f'was archived from another topic than "{origin.topic}", which the name of its object says; '
                        'check where {{topic}} stands in [naming] template, or set [input] envelope_mismatch = "ignore" to '
                        "restore it where its object goes"
                    )


def _partition(field: int | str | None) -> int | None:
    """Return the partition of a field; None where it says nothing.

    Raises:
        RestoreError: it is text without a number.
    """
    if not isinstance(field, str):
        return field
    if field and not (field.isascii() and field.isdigit() and len(field) <= _MAX_PARTITION_DIGITS):
        raise RestoreError(f"has a partition that is no number; {_ADVICE}")
    return int(field) if field else None  # a row of CSV has texts alone


def _texts(fields: Sequence[msgspec.Raw | None]) -> list[bytes]:
    """Return the bytes of each field; none of a field that is not there."""
    given = [b"" if field is None else field for field in fields]
    texts = b"\n".join(given).split(b"\n")  # in a third of the time that a copy of each takes
    return texts if len(texts) == len(fields) else list(map(bytes, given))  # a line feed inside a field


def _record_type(layout: Layout) -> Any:
    """Return the type to which JSON's parser converts a record."""
    payload_type, _ = PAYLOADS[layout.payload_encoding]
    if layout.payload is None:
        return payload_type
    types: dict[str, tuple[Any, ...]] = {
        "payload": (payload_type,),
        "headers": (msgspec.Raw, None),
        "timestamp": (str | int | float | None, None),
        "topic": (str | None, None),
        "partition": (int | str | None, None),
        "key": (msgspec.Raw, None),
    }
    parts = {name: part for part, name in layout.named_fields().items()}
    if layout.columns:
        members = [
            (parts[name], types[parts[name]][0]) if name in parts else (f"column_{number}", msgspec.Raw)
            for number, name in enumerate(layout.columns)
        ]
        # a field more is no other member: a comma in a text that was archived without quotes has cut it
        return msgspec.defstruct("ArchivedRow", members, array_like=True, forbid_unknown_fields=True, gc=False)
    return msgspec.defstruct(
        "ArchivedRecord",
        [(part, *types[part]) for part in parts.values()],
        rename={part: name for name, part in parts.items()},
        kw_only=True,
        gc=False,
    )


def _reason(error: Exception) -> str:
    if isinstance(error, RestoreError):
        return f"the record {error}"
    if isinstance(error, msgspec.DecodeError):
        return f"the record is not in its envelope: {error}; {_ADVICE}"  # msgspec names types and places, no values
    why = "it is nested too deeply" if isinstance(error, RecursionError) else "it is not UTF-8"
    return f"the record is not in its envelope: {why}; {_ADVICE}"
