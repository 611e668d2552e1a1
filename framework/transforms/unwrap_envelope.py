"""Envelopes: a field of a JSON object becomes the payload."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, cast

import attrs
import msgspec
from msgspec import UNSET, Raw, UnsetType
from typing_extensions import override

from framework.config.option import option
from framework.model.json_limits import check_json_of
from framework.model.payloads import PayloadColumn, decode_objects
from framework.model.text import NOT_RENAMED, can_be_renamed_to
from framework.transform import Transform, TransformBatch, TransformContext
from framework.transforms.documents import follow, split_path
from framework.transforms.values import PATHS


@attrs.frozen(kw_only=True)
class UnwrapEnvelopeOptions:
    """Options of `unwrap_envelope`."""

    field: str = option(doc=f"Name of the field whose value becomes the payload. {PATHS}", minimum=1)
    missing: str = option(
        "pass",
        choices=("pass", "fail"),
        doc='A record without the field: `"pass"` leaves it as it is, as Iggy\'s runtime does; `"fail"` makes it bad.',
    )

    def validate_options(self) -> Iterator[str]:
        """Yield an error for a name that an envelope cannot have here."""
        if not can_be_renamed_to(self.field):
            yield f"field: {self.field!r} has {NOT_RENAMED}, which no field of an envelope may have"


class UnwrapEnvelope(Transform):
    """Make the value of a field the payload: its JSON, byte for byte."""

    name = "unwrap_envelope"
    options_class = UnwrapEnvelopeOptions
    needs_modules: ClassVar[tuple[str, ...]] = ("msgspec",)

    def __init__(self, options: object) -> None:
        super().__init__(options)
        given = cast("UnwrapEnvelopeOptions", options)
        self._fail, self._field = given.missing == "fail", given.field
        root, self._path = split_path(given.field)
        names = {"inner": given.field, "root": root} if self._path else {"inner": given.field}
        kind = msgspec.defstruct("Envelope", [(name, Raw | UnsetType, UNSET) for name in names], rename=names, gc=False)
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)

    @property
    @override
    def row_decoder(self) -> msgspec.json.Decoder[Any]:
        return self._decoder

    @override
    def apply(self, batch: TransformBatch, context: TransformContext) -> TransformBatch:
        payloads = batch.payloads
        if self._path:
            check_json_of(payloads)  # an object inside is decoded
        if isinstance(payloads, PayloadColumn):
            try:
                rows = decode_objects(payloads, self._decoder)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                rows = None
            inner: list[Any] = [UNSET] if rows is None else list(map(self._inner_of, rows))
            if UNSET not in inner:
                return batch.with_payloads(PayloadColumn(b"\n".join([*inner, b""])))
        found = [self._inner(payload) for payload in payloads]
        if self._fail:
            reasons = {
                at: f'{self.name}: it has no field "{self._field}"' for at, inner in enumerate(found) if inner is None
            }
            kept = [inner for inner in found if inner is not None]
            return batch.reject(reasons).with_payloads(kept)
        return batch.with_payloads([new or old for new, old in zip(found, payloads, strict=True)])

    def _inner_of(self, row: Any) -> Any:
        return follow(row.root, self._path) if row.inner is UNSET and self._path else row.inner

    def _inner(self, payload: bytes) -> bytes | None:
        try:
            inner = self._inner_of(self._decoder.decode(payload))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return None if inner is UNSET else bytes(inner)
