"""What a Protobuf message takes when it is decoded and becomes JSON, counted by its bytes before that.

Packed numbers, empty messages and names of fields and enums are a byte or two in a message, and a hundred or more as
values of JSON.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import attrs

from framework.errors import RecordError
from framework.model.avro_limits import MEMORY_BYTES
from framework.model.varints import varint_at

_VALUE, _MESSAGE, _FIELD, _TEXT = 120, 200, 16, 2
_ANY = 100
"""Memory for each byte of a message inside an `Any`, whose type is only known when it is decoded."""

_DEEPEST = 100
"""How deep protobuf itself decodes messages in messages."""

_CONTINUED = bytes(range(128, 256))
_VARINT, _FIXED64, _BYTES, _BEGIN, _END, _FIXED32 = range(6)


class _DamagedError(Exception):
    """The bytes are no message."""


@attrs.frozen(slots=True)
class _Field:
    """A field: the memory of a value and of its name, the bytes of a packed number (0: it varies), the message inside."""

    value: int
    name: int
    text: int
    width: int
    message: Any


class ProtoLimit:
    """Refuses messages that take too much memory.

    Args:
        descriptor: of the message, from protobuf.
    """

    def __init__(self, descriptor: Any) -> None:
        self._types: dict[str, tuple[int, dict[int, _Field]]] = {}
        self._descriptor = descriptor
        waiting = [descriptor]
        while waiting:
            message = waiting.pop()
            if message.full_name not in self._types:
                fields = {field.number: _field_of(field) for field in message.fields}
                self._types[message.full_name] = _MESSAGE + _FIELD * len(fields), fields
                waiting += [field.message for field in fields.values() if field.message is not None]
        parts = [field for _, fields in self._types.values() for field in fields.values()]
        self._densest = max(
            [own for own, _ in self._types.values()] + [max(part.value + part.name, part.text) for part in parts]
        )
        self._taken = 0

    def check(self, payload: bytes) -> None:
        """Check a message that is about to be decoded. Where its bytes are wrong, protobuf decodes no further either.

        Raises:
            RecordError: it takes too much.
        """
        if len(payload) * self._densest <= MEMORY_BYTES:
            return
        self._taken = 0
        with suppress(IndexError, OverflowError, _DamagedError):
            self._walk(memoryview(payload), 0, self._descriptor, 0)

    def _take(self, memory: int) -> None:
        self._taken += memory
        if self._taken > MEMORY_BYTES:
            raise RecordError(
                f"its message takes more than {MEMORY_BYTES} bytes of memory when it is decoded, which no record may"
            )

    def _walk(self, data: memoryview, at: int, descriptor: Any, depth: int) -> int:
        """Add up what a message takes, and return the place behind it. A group ends within the data.

        Raises:
            IndexError, OverflowError, _DamagedError: its bytes are wrong; what is before that was added up.
        """
        if depth > _DEEPEST:
            raise _DamagedError("too deep")
        own, fields = self._types[descriptor.full_name] if descriptor is not None else (0, {})
        self._take(own)
        while at < len(data):
            tag, at = varint_at(data, at)
            field, kind = fields.get(tag >> 3), tag & 7
            if kind == _BYTES:
                size, at = varint_at(data, at)
                if field is not None:
                    self._add(field, data[at : at + size], depth)
                at += size
                continue
            if kind == _END:
                break
            if field is not None:
                self._take(field.value + field.name)
            if kind == _VARINT:
                _, at = varint_at(data, at)
            elif kind == _BEGIN:
                at = self._walk(data, at, field and field.message, depth + 1)
            elif kind in {_FIXED32, _FIXED64}:
                at += 4 if kind == _FIXED32 else 8
            else:
                raise _DamagedError("no such kind")
        return at

    def _add(self, field: _Field, part: memoryview, depth: int) -> None:
        if field.message is not None:
            self._take(field.name)
            self._walk(part, 0, field.message, depth + 1)
        elif field.text:
            self._take(field.value + field.name + field.text * len(part))
        else:
            count = len(part) // field.width if field.width else len(bytes(part).translate(None, _CONTINUED))
            self._take(field.name + field.value * count)


def _field_of(field: Any) -> _Field:
    widths = {field.CPPTYPE_DOUBLE: 8, field.CPPTYPE_FLOAT: 4}
    fixed = {field.TYPE_FIXED64: 8, field.TYPE_SFIXED64: 8, field.TYPE_FIXED32: 4, field.TYPE_SFIXED32: 4}
    names = [value.name for value in field.enum_type.values] if field.enum_type is not None else []
    text = 0
    if field.cpp_type == field.CPPTYPE_STRING:
        text = _ANY if field.containing_type.full_name == "google.protobuf.Any" else _TEXT
    return _Field(
        value=_VALUE + 2 * max(map(len, names), default=0),
        name=_VALUE + 2 * len(field.name.encode()),
        text=text,
        width=widths.get(field.cpp_type) or fixed.get(field.type, 0),
        message=field.message_type,
    )
