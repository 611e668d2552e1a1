"""The same messages by the official client's own objects: for a server whose wire layout we do not know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from framework.errors import IggyProtocolError
from framework.iggy.headers import decode_headers
from framework.iggy.wire import Segment

if TYPE_CHECKING:
    from apache_iggy import SendMessage


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
        blocks = segment.own_headers if segment.own_headers is not None else [segment.headers] * len(segment.payloads)
        messages.extend(
            SendMessage(payload, decode_headers(block) or None, segment.id_high << 64 | low)
            for low, payload, block in zip(segment.message_ids(), segment.payloads, blocks, strict=True)
        )
    return messages
