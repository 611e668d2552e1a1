"""Transforms through the whole program, on both engines: what is in the topic, what is said, and what a restart does."""

import json

import pytest

from framework.config.iggy_address import IggyAddress
from framework.iggy.connection import IggyConnection
from framework.iggy.reader import read_partition
from tests.integration.program_rig import Program, jsonl
from tests.support.keys import partition_of_key

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
        request.getfixturevalue("local_spark")
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


def test_everything_filtered_is_said_while_the_run_goes_on(program, moto_bucket):
    put(moto_bucket, "a.jsonl")
    program.transforms = TRANSFORMS.replace("[10, 89]", "[200, 300]")
    said = "filtered by the transforms: 100 records: every record that was read so far. Is a condition wrong?"
    program.configure().start().wait_for(said)


def test_a_record_that_ends_the_run_names_the_ways_out(program, moto_bucket):
    moto_bucket.put("a.jsonl", b'{"n":20}\n[1]\n')
    program.transforms = '[[transforms]]\ntype = "unwrap_envelope"\nfield = "n"\nmissing = "fail"\n'
    ended = program.configure().run("--once")
    assert ended.code == 3
    place = "record 2: transforms[0] (unwrap_envelope)"
    assert f'{place}: it has no field "n"; correct it, or go on behind it with [errors] tolerance = ' in ended.err


def test_a_mistake_names_its_place(program):
    program.transforms = TRANSFORMS.replace("value_pattern", "value_patern")
    ended = program.configure().run("--once")
    assert ended.code == 2
    assert "transforms[0].value_patern: unknown option; did you mean value_pattern?" in ended.err


BY_KEY = """
[[transforms]]
type = "partition_by"
field = "who"
"""
PARTITIONS = 3


def put_people(bucket, key):
    lines = [b'{"n":%d,"who":"%d"}' % (n, n * n % 7) if n % 50 else b'{"n":%d}' % n for n in range(1, 101)]
    bucket.put(key, jsonl(lines))


def check_people(messages, copies=1):
    """Each record with a key is there, in the partition of its key, and those of a key in order."""
    numbers = {}
    for message in messages:
        value = json.loads(message.payload)
        assert message.partition == partition_of_key(value["who"], PARTITIONS)
        assert message.record == value["n"]
        assert "share" not in message.headers
        numbers.setdefault((message.headers["key"], value["who"]), []).append(value["n"])
    for (_, who), found in numbers.items():
        once = [n for n in range(1, 101) if n % 50 and n * n % 7 == int(who)]
        assert found in (once, once * copies)
    assert {key for key, _ in numbers} == set(KEYS)


def test_records_go_to_the_partitions_of_their_keys(program, moto_bucket):
    program.transforms = BY_KEY
    program.configure(iggy={"partitions": PARTITIONS}, errors={"tolerance": "skip_record", "dead_letter_topic": "dead"})
    for key in KEYS:
        put_people(moto_bucket, key)
    said = program.once().err
    assert "sent 294 records of 3 objects" in said
    assert "bad_records=6" in said
    assert program.count() == 294
    check_people(program.messages())
    letters = program.messages("dead")
    assert sorted((one.headers["key"], one.headers["record"]) for one in letters) == [
        (key, number) for key in KEYS for number in ("100", "50")
    ]
    assert {one.headers["part"] for one in letters} == {f"1/{PARTITIONS}"}
    program.once()
    assert (program.count(), program.count("dead")) == (294, 6)

    shown = program.run("offsets", "show", "--key", "b.jsonl").out
    for number in range(1, PARTITIONS + 1):
        assert f"b.jsonl  part {number} of {PARTITIONS} by key" in shown
    assert json.loads(program.run("offsets", "show", "--json").out)["records"] == 300
    exported = [json.loads(line) for line in program.run("offsets", "export").out.splitlines()]
    assert {(one["part"], one["parts"], one["partition"]) for one in exported} == {
        (number, PARTITIONS, number - 1) for number in range(1, PARTITIONS + 1)
    }

    said = program.run("offsets", "reset", "--key", "b.jsonl", "--yes")
    assert "1 object, 100 records" in said.out
    program.once()
    assert program.count() == 294 + 98
    check_people(program.messages(), copies=2)


def test_a_replayed_record_goes_to_the_partition_of_its_key(program, moto_bucket):
    program.transforms = BY_KEY
    program.configure(iggy={"partitions": PARTITIONS}, errors={"tolerance": "skip_record", "dead_letter_topic": "dead"})
    put_people(moto_bucket, "a.jsonl")
    program.once()
    program.transforms = BY_KEY.replace("who", "n")
    program.configure()
    ended = program.run("dead-letter", "replay")
    assert ended.code == 0, ended.err
    found = [one for one in program.messages() if "replay" in one.headers]
    assert sorted(json.loads(one.payload)["n"] for one in found) == [50, 100]
    assert all(one.partition == partition_of_key(str(one.record), PARTITIONS) for one in found)
    program.run("dead-letter", "replay")
    assert program.count() == 98 + 2
