"""Transforms through the whole program, on both engines: what is in the topic, what is said, and what a restart does."""

import json

import pytest

from framework.config.iggy_address import IggyAddress
from framework.iggy.client import IggyConnection
from framework.iggy.reader import read_partition
from tests.integration.program_rig import Program, jsonl

TRANSFORMS = """
[[transforms]]
type = "filter"
field = "n"
value_pattern = { between = [10, 89] }

[[transforms]]
type = "add_fields"
fields = [{ key = "uuid", value = { computed = "uuid_v4" } }, { key = "at", value = { computed = "date_time" } }]

[[transforms]]
type = "headers"
headers = [{ name = "team", metadata = "team" }, { name = "number", field = "n" }]

[[transforms]]
type = "timestamp"
field = "seconds"
format = "seconds"
"""
KEYS = ("a.jsonl", "b.jsonl", "c.jsonl")


@pytest.fixture(params=["local", "spark"])
def program(request, tmp_path, moto_bucket, iggy_url, stream_name):
    made = Program(tmp_path, moto_bucket, iggy_url, stream_name, iggy={"batch_length": 7})
    made.configure(runner={"engine": request.param})
    if request.param == "spark":
        made.configure(spark={"master": "local[2]"}, runner={"tasks_max": 2})
    made.transforms = TRANSFORMS
    made.configure()
    yield made
    made.close()


def put(bucket, key):
    lines = [b'{"n":%d,"seconds":%d,"raw":1.50}' % (n, 1_700_000_000 + n) for n in range(1, 101)]
    bucket.put(key, jsonl(lines), Metadata={"team": key})


def test_records_are_filtered_changed_and_annotated(program, moto_bucket):
    for key in KEYS:
        put(moto_bucket, key)
    said = program.once().err
    assert "sent 240 records of 3 objects" in said
    assert "filtered by the transforms: 60 records" in said
    messages = program.messages()
    assert len(messages) == 3 * 80
    for key in KEYS:
        found = [message for message in messages if message.headers["key"] == key]
        values = [json.loads(message.payload) for message in found]
        assert [value["n"] for value in values] == list(range(10, 90))
        assert all(b'"raw":1.50' in message.payload for message in found)
        assert [message.record for message in found] == list(range(10, 90))
        assert [message.headers["number"] for message in found] == list(range(10, 90))
        assert {message.headers["team"] for message in found} == {key}
    assert len({json.loads(message.payload)["uuid"] for message in messages}) == 240
    with IggyConnection(IggyAddress.parse(program.url)).connect() as connection:
        stored = [one for at in range(3) for one in read_partition(connection, program.stream, "records", at)]
    times = {(one.headers["key"], one.headers["number"]): one.origin_us for one in stored}
    assert times == {(key, n): (1_700_000_000 + n) * 1_000_000 for key in KEYS for n in range(10, 90)}
    program.once()
    assert program.count() == 240


def test_everything_filtered_is_said(program, moto_bucket):
    put(moto_bucket, "a.jsonl")
    program.transforms = TRANSFORMS.replace("[10, 89]", "[200, 300]")
    said = program.configure().once().err
    assert "filtered by the transforms: 100 records: every record that was read" in said
    assert program.messages() == []


def test_a_mistake_names_its_place(program):
    program.transforms = TRANSFORMS.replace("value_pattern", "value_patern")
    ended = program.configure().run("--once")
    assert ended.code == 2
    assert "transforms[0].value_patern: unknown option; did you mean value_pattern?" in ended.err
