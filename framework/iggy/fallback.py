"""The same messages by the official client's own objects: for a server whose wire layout we do not know."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING

from framework.errors import IggyProtocolError
from framework.iggy.headers import header_fields
from framework.iggy.wire import Segment
from framework.model.header_kinds import number_of
from framework.model.headers import BOOL, STRING

if TYPE_CHECKING:
    from apache_iggy import HeaderValue, SendMessage


def client_messages(segments: Sequence[Segment]) -> list[SendMessage]:
    """One object per record, with the ids, headers and payloads that `wire.encode_send` gives them.

    Raises:
        IggyProtocolError: messages have their own time of origin, which the client's messages cannot carry.
    """
    from apache_iggy import SendMessage  # noqa: PLC0415  (loaded when used)

    messages: list[SendMessage] = []
    for segment in segments:
        if segment.times_us is not None:
            raise IggyProtocolError(
                "origin timestamps can only be sent to a server of version 0.9; leave the transform that sets them out"
            )
        shared = _client_headers(segment.headers)
        own = segment.own_headers
        headers = repeat(shared, len(segment.payloads)) if own is None else map(_client_headers, own)
        messages.extend(
            SendMessage(bytes(payload), named or None, segment.id_high << 64 | low)
            for low, payload, named in zip(segment.message_ids(), segment.payloads, headers, strict=True)
        )
    return messages


def _client_headers(block: bytes) -> dict[str, HeaderValue]:
    """Return a header block as the client's values: of a plain number, the client would choose the kind itself."""
    fields = header_fields(block)
    return {name.decode(): _client_value(*field) for (_, name), field in zip(fields[::2], fields[1::2], strict=True)}


def _client_value(kind: int, data: bytes) -> HeaderValue:
    from apache_iggy import HeaderValue  # noqa: PLC0415  (loaded when used)

    if kind == STRING:
        return HeaderValue.String(data.decode())
    if kind == BOOL:
        return HeaderValue.Bool(data != b"\x00")
    number = number_of(kind, data)
    if number is None:
        return HeaderValue.Raw(data)
    name, value = number
    name = f"Unsigned{name[1:].capitalize()}" if name.startswith("u") else name.capitalize()
    made: HeaderValue = getattr(HeaderValue, name)(value)
    return made
