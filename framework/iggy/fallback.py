"""The same messages by the official client's own objects: for a server whose wire layout we do not know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from framework.iggy.headers import decode_headers
from framework.iggy.wire import Segment
from framework.model.message_ids import message_id

if TYPE_CHECKING:
    from apache_iggy import SendMessage


def client_messages(segments: Sequence[Segment]) -> list[SendMessage]:
    """One object per record, with the ids, headers and payloads that `wire.encode_send` gives them."""
    from apache_iggy import SendMessage  # noqa: PLC0415  (loaded when used)

    messages: list[SendMessage] = []
    for segment in segments:
        headers = decode_headers(segment.headers) or None
        messages.extend(
            SendMessage(payload, headers, message_id(segment.id_high, segment.split_number, number))
            for number, payload in enumerate(segment.payloads, segment.first_record)
        )
    return messages
