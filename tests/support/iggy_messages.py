"""Single messages in a topic: of other programs, forged or damaged."""

from __future__ import annotations

import secrets

from framework.iggy import wire
from framework.model.header_encoding import encode_headers
from framework.model.message_ids import MAX_RECORD, MAX_SPLIT


def append(connection, stream, topic, partition, payload, *, message_id=None, headers=None):
    """Store a message and return its offset. The id is random when left out."""
    number = secrets.randbits(128) if message_id is None else message_id
    segment = wire.Segment(
        id_high=number >> 64,
        split_number=number >> 40 & MAX_SPLIT,
        first_record=number & MAX_RECORD,
        payloads=[payload],
        headers=encode_headers(headers or {}),
    )
    body = wire.encode_send(stream, topic, partition, [segment])
    return connection.send_raw(stream, topic, partition, body)
