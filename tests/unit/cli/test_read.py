"""Messages as lines of JSON."""

from framework.cli.read import as_json
from framework.iggy.values import StoredMessage


def test_json_with_more_values_than_are_decoded_is_shown_as_text():
    payload = b"[" + b"0," * 1_000_000 + b"0]"
    line = as_json("topic", 1, StoredMessage(offset=0, message_id=0, payload=payload, headers={}, timestamp_us=0))
    assert line["payload"] == payload.decode()
