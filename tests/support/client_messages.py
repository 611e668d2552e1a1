"""The messages of segments by the official client's own objects: the oracle of our encoder, `framework.iggy.wire`."""

from __future__ import annotations

from itertools import repeat

from apache_iggy import HeaderValue, SendMessage

from tests.support.header_blocks import BOOL, STRING, header_fields, number_of


def send_by_client(connection, stream, topic, partition, segments):
    """Send messages that the client encodes; return partition and offset of each confirmation."""
    messages = client_messages(segments)
    return connection.wait(
        connection._submit(
            f"send to {topic}/{partition}",
            lambda client: client.send_messages(stream, topic, partition, messages),
            lambda response: [(found.partition_id, found.base_offset) for found in response.confirmations],
            sending=True,
        )
    )


def client_messages(segments):
    """One object per record, with the ids, headers and payloads that `wire.encode_send` gives them."""
    messages = []
    for segment in segments:
        numbers = range(segment.first_record, segment.first_record + len(segment.payloads))
        if segment.numbers is not None:
            numbers = segment.numbers.tolist()
        own = segment.own_headers
        headers = repeat(client_headers(segment.headers)) if own is None else map(client_headers, own)
        messages.extend(
            SendMessage(bytes(payload), named or None, segment.id_high << 64 | segment.split_number << 40 | number)
            for number, payload, named in zip(numbers, segment.payloads, headers, strict=False)
        )
    return messages


def client_headers(block):
    """Return a header block as the client's values: of a plain number, the client would choose the kind itself."""
    return {name.decode(): client_value(*field) for (_, name), field in header_fields(block)}


def client_value(kind, data):
    if kind == STRING:
        return HeaderValue.String(data.decode())
    if kind == BOOL:
        return HeaderValue.Bool(data != b"\x00")
    number = number_of(kind, data)
    if number is None:
        return HeaderValue.Raw(data)
    name, value = number
    name = f"Unsigned{name[1:].capitalize()}" if name.startswith("u") else name.capitalize()
    return getattr(HeaderValue, name)(value)
