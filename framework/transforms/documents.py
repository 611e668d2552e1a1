"""JSON payloads as documents: decoded and encoded once for all transforms that stand next to each other.

A document is a dictionary of field name to the field's bytes, `msgspec.Raw`. So what a transform does not touch keeps its
bytes, and fields keep their order. Transforms that only look at fields decode those fields and nothing else.

A name with dots is that of a field at the top, or else a path through objects: `customer.id`.

A payload that is no JSON object, or has a field whose name is not UTF-8, has no fields, and passes unchanged. Of fields
with one name the last counts, everywhere: the others go when a document is changed.
"""

from __future__ import annotations

import abc
import functools
import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from msgspec import UNSET, Raw
from typing_extensions import override

from framework.errors import RecordError
from framework.model.json_limits import check_json_of
from framework.model.payloads import PayloadColumn, decode_objects, size_of
from framework.model.text import can_be_renamed_to
from framework.model.utf8 import check_utf8
from framework.transform import GROWN_BYTES, GrownBatchError, Transform, TransformBatch, TransformContext

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Document = dict[str, Raw]

_DOCUMENTS: msgspec.json.Decoder[Document] = msgspec.json.Decoder(Document)
_ENCODER = msgspec.json.Encoder()
_decode = msgspec.json.Decoder().decode

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

DOCUMENT_BYTES = 256 * 1024
"""About so many bytes of payloads are whole documents at a time: they take seven times that, and stay near a core's cache.

Measured with `add_fields` and `delete_fields`: 64 KiB take a tenth longer, for what each part costs, and so do 512 KiB.
"""

MISSING = UNSET
"""The value of a field that a document does not have."""


class Documents:
    """A batch of JSON documents, which transforms change one after the other.

    Args:
        batch: the records.
        fields: the fields that are looked at; None when whole documents are needed.

    Attributes:
        batch: the records as they are now, with their payloads from before; a transform sets its other columns.

    Raises:
        RecordError: a payload has more values than are decoded.
    """

    def __init__(self, batch: TransformBatch, fields: Sequence[str] | None) -> None:
        self.batch = batch
        self._edited = False
        self._places = None if fields is None else _places_of(tuple(fields))
        decoder = _DOCUMENTS if fields is None else _decoder_of(tuple(fields))
        check_json_of(batch.payloads)
        rows = _decoded(batch.payloads, decoder)
        self._has_documents = decoder is _DOCUMENTS or rows is None
        self._has_unread = rows is None
        self._rows: list[Any] = rows if rows is not None else [_document(one, decoder) for one in batch.payloads]

    def __len__(self) -> int:
        return len(self._rows)

    def whole(self) -> list[Document | None]:
        """Return the documents, to be changed in place; None for a payload that is no JSON object."""
        self._edited = True
        return self._rows

    def objects(self) -> list[Document]:
        """Return the documents without the payloads that are no JSON object, to be changed in place."""
        self._edited = True
        return [row for row in self._rows if row is not None] if self._has_unread else self._rows

    def column(self, field: str) -> list[Any]:
        """Return the value of a field in each record; `MISSING` where it is not there.

        Raises:
            RecordError: a value cannot be decoded.
        """
        values = self._top_column(field)
        if "." not in field:
            return values
        root, path = split_path(field)
        place = "" if self._places is None else self._places[root]
        return [
            value if value is not MISSING else _inner_value(row, root, place, path)
            for value, row in zip(values, self._rows, strict=True)
        ]

    def _top_column(self, field: str) -> list[Any]:
        name = "" if self._places is None else self._places[field]
        if not self._has_documents:
            return list(map(operator.attrgetter(name), self._rows))
        return [
            getattr(row, name, MISSING) if type(row) is not dict else decode_value(row.get(field, MISSING), field)
            for row in self._rows
        ]

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Filter all records but those whose value here is true."""
        if not kept.all():
            self.batch = self.batch.keep(kept.nonzero()[0])
            self._rows = list(itertools.compress(self._rows, kept))

    def reject(self, reasons: Mapping[int, str]) -> None:
        """Make the records at these places bad."""
        if reasons:
            self.batch = self.batch.reject(reasons)
            self._rows = [row for place, row in enumerate(self._rows) if place not in reasons]

    def unread(self) -> frozenset[int]:
        """Return the places of payloads that are no JSON object."""
        return frozenset(place for place, row in enumerate(self._rows) if row is None)

    def result(self) -> TransformBatch:
        """Return the records after all changes."""
        if not self._edited or not self._rows:
            return self.batch
        return self.batch.with_payloads(_encoded(self._rows, self.batch.payloads, has_unread=self._has_unread))


class DocumentTransform(Transform):
    """A transform of JSON documents. Several in a row share one decoding and one encoding.

    Attributes:
        fields: the fields that it looks at, set by its constructor; None when it changes documents.
        added_bytes: how many bytes it adds to each record, set by its constructor where that may be much.
    """

    fields: tuple[str, ...] | None = None
    added_bytes: int = 0
    needs_modules: ClassVar[tuple[str, ...]] = ("msgspec",)

    @property
    @override
    def row_decoder(self) -> msgspec.json.Decoder[Any] | None:
        decoder = _DOCUMENTS if self.fields is None else _decoder_of(self.fields)
        return None if decoder is _DOCUMENTS else decoder

    @abc.abstractmethod
    def change(self, documents: Documents, context: TransformContext) -> None:
        """Change the documents, or drop some of them.

        Raises:
            Exception: a record is bad; which one is found out with smaller parts.
        """

    @override
    def apply(self, batch: TransformBatch, context: TransformContext) -> TransformBatch:
        size = size_of(batch.payloads)
        if self.added_bytes * len(batch) > max(GROWN_BYTES, size) and len(batch) > 1:
            raise GrownBatchError
        most = max(1, DOCUMENT_BYTES * len(batch) // (size + 1))
        if self.fields is None and len(batch) > most:
            return batch.join([self._applied(part, context) for part in batch.slices(most)])
        return self._applied(batch, context)

    def _applied(self, batch: TransformBatch, context: TransformContext) -> TransformBatch:
        documents = Documents(batch, self.fields)
        self.change(documents, context)
        return documents.result()

    @override
    def fused_with(self, following: Transform) -> Transform | None:
        return DocumentSteps([self, following]) if isinstance(following, DocumentTransform) else None


class DocumentSteps(DocumentTransform):
    """Several transforms of documents as one.

    Args:
        steps: the transforms, in order.
    """

    name = "steps"

    def __init__(self, steps: Sequence[DocumentTransform]) -> None:
        super().__init__(None)
        self._steps = list(steps)
        self.added_bytes = sum(step.added_bytes for step in steps)
        columns = [step.fields for step in steps]
        if None not in columns:
            self.fields = tuple(dict.fromkeys(name for fields in columns for name in fields or ()))

    @property
    @override
    def needs_metadata(self) -> bool:
        return any(step.needs_metadata for step in self._steps)

    @property
    @override
    def needs_tags(self) -> bool:
        return any(step.needs_tags for step in self._steps)

    @override
    def change(self, documents: Documents, context: TransformContext) -> None:
        for step in self._steps:
            if len(documents):
                step.change(documents, context)


def raw_value(value: object) -> Raw:
    """Return a value as the bytes of a field."""
    return Raw(_ENCODER.encode(value))


def split_path(field: str) -> tuple[str, list[str]]:
    """Return the field at the top with which a path begins, and the names that lead from it to the field."""
    root, *path = field.split(".")
    return root, path


def follow(raw: Any, path: Sequence[str]) -> Any:
    """Return the bytes of a field inside an object's bytes; `MISSING` where it is not there. Lists are not followed."""
    for name in path:
        if raw is MISSING:
            break
        try:
            raw = _DOCUMENTS.decode(raw).get(name, MISSING)
        except _UNREADABLE:  # no object
            return MISSING
    return raw


def without_field(raw: Raw, path: Sequence[str]) -> Raw:
    """Return an object's bytes without a field inside it; the same bytes where it is not there."""
    try:
        document = _DOCUMENTS.decode(raw)
    except _UNREADABLE:  # no object
        return raw
    name, *further = path
    if name not in document:
        return raw
    if not further:
        del document[name]
    else:
        changed = without_field(document[name], further)
        if changed is document[name]:
            return raw
        document[name] = changed
    return raw_value(document)


def _inner_value(row: Any, root: str, place: str, path: Sequence[str]) -> Any:
    """Return the value of a field inside a row, from the field at the top, which has that place in a row of columns."""
    if type(row) is dict:
        return decode_value(follow(row.get(root, MISSING), path), ".".join((root, *path)))
    value = getattr(row, place, MISSING)
    for name in path:
        if type(value) is not dict:
            return MISSING
        value = value.get(name, MISSING)
    return value


def _places_of(fields: tuple[str, ...]) -> dict[str, str]:
    """Return the attributes of the fields of `_decoder_of`, and of those at the top with which their paths begin."""
    names = dict.fromkeys((*fields, *(split_path(field)[0] for field in fields)))
    return {name: f"f{at}" for at, name in enumerate(names)}


@functools.lru_cache(maxsize=64)
def _decoder_of(fields: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    """Return a decoder that decodes these fields and skips all others; that of whole documents where msgspec cannot."""
    names = {place: name for name, place in _places_of(fields).items()}
    if not all(map(can_be_renamed_to, names.values())):
        return _DOCUMENTS
    kind = msgspec.defstruct("Fields", [(name, Any, MISSING) for name in names], rename=names, gc=False)
    return msgspec.json.Decoder(kind)


def _decoded(payloads: Sequence[bytes], decoder: msgspec.json.Decoder[Any]) -> list[Any] | None:
    """Return each payload as a document; None when one of them is none, or has a field that cannot be decoded."""
    try:
        if isinstance(payloads, PayloadColumn):
            if not _names_are_read(payloads, decoder):
                return None
            rows = decode_objects(payloads, decoder)
            if rows is not None:
                return rows
        elif not all(_is_read(payload, decoder) for payload in payloads):
            return None
        return list(map(decoder.decode, payloads))
    except _UNREADABLE:
        return None


def _names_are_read(column: PayloadColumn, decoder: msgspec.json.Decoder[Any]) -> bool:
    """Return `_is_read` of all payloads. What `jsonl` has parsed, it has checked, too."""
    parsed = column.parsed
    return (parsed is not None and parsed.decoder is decoder) or _is_read(column.data, decoder)


def _is_read(data: bytes | memoryview, decoder: msgspec.json.Decoder[Any]) -> bool:
    """Return whether a decoder reads the names of fields as `_DOCUMENTS` does: others skip a name that is not UTF-8."""
    if decoder is _DOCUMENTS:
        return True
    try:
        check_utf8(data)
    except UnicodeDecodeError:
        return False
    return True


def _document(payload: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    """Return a payload as a document: whole when a field cannot be decoded; None for a payload that is no JSON object."""
    for each in (decoder, _DOCUMENTS) if _is_read(payload, decoder) else (_DOCUMENTS,):
        try:
            return each.decode(payload)
        except _UNREADABLE:
            pass
    return None


def decode_value(raw: Any, field: str) -> Any:
    """Return the value of a field; `MISSING` for that.

    Raises:
        RecordError: it cannot be decoded: a number that is too large, say.
    """
    try:
        return raw if raw is MISSING else _decode(raw)
    except _UNREADABLE as exc:
        why = str(exc) if isinstance(exc, msgspec.DecodeError) else type(exc).__name__
        raise RecordError(f'field "{field}" cannot be read ({why})') from None


def _encoded(rows: list[Document | None], payloads: Sequence[bytes], *, has_unread: bool) -> Sequence[bytes]:
    """Return the documents as payloads; a payload that is no JSON object as it was."""
    if not has_unread:
        column = PayloadColumn(_ENCODER.encode_lines(rows))
        if len(column) == len(rows):  # no line feed inside a value
            return column
    encode = _ENCODER.encode
    return [payload if row is None else encode(row) for row, payload in zip(rows, payloads, strict=True)]
