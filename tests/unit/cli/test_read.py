"""Messages as lines of JSON."""

from framework.cli.read import as_json
from framework.iggy.values import StoredMessage


def test_json_with_more_values_than_are_decoded_is_shown_as_text():
    payload = b"[" + b"0," * 1_000_000 + b"0]"
    line = as_json("topic", 1, StoredMessage(offset=0, message_id=0, payload=payload, headers={}, timestamp_us=0))
    assert line["payload"] == payload.decode()


def test_headers_of_a_message_do_not_replace_its_place_its_id_and_its_payload():
    names = ("topic", "partition", "offset", "id", "timestamp_us", "record", "payload", "payload_base64")
    headers = dict.fromkeys(names, "of the header") | {"key": "a.jsonl", "customer": "ann"}
    message = StoredMessage(offset=7, message_id=3, payload=b'{"n":1}', headers=headers, timestamp_us=5)
    assert as_json("orders", 1, message) == {
        "topic": "orders",
        "partition": 1,
        "offset": 7,
        "id": "00000000000000000000000000000003",
        "timestamp_us": 5,
        "key": "a.jsonl",
        "customer": "ann",
        "record": 3,
        "payload": {"n": 1},
    }
