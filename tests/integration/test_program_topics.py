"""Keys that name topics: whatever somebody puts into the bucket, it never reaches positions or dead letters, nor ends the run."""

import pytest

from tests.integration.program_rig import Program, check_exactly, json_lines, jsonl, with_client

KEYS = (
    "in/0017/a.jsonl",
    "in/orders-offsets/a.jsonl",
    "in/dead/a.jsonl",
    "in/later-offsets/a.jsonl",
    "in/taken/a.jsonl",
)
"""A number, positions of this source, its dead letters, positions of another source, a topic with other partitions."""


@pytest.fixture
def program(tmp_path, moto_bucket, iggy_url, stream_name):
    made = Program(
        tmp_path,
        moto_bucket,
        iggy_url,
        stream_name,
        naming={"template": "in/{{topic}}/{{key}}"},
        iggy={"topic": None, "partitions": 1},
        errors={"tolerance": "skip_object", "dead_letter_topic": "dead"},
    )
    yield made
    made.close()


def topics_of(program):
    async def work(client):
        return {topic.name for topic in await client.get_topics(program.stream)}

    return with_client(program.url, work)


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_bad_name_costs_its_object_and_nothing_else(program, moto_bucket, tasks):
    moto_bucket.put("in/good/a.jsonl", jsonl(json_lines("a", 20)))
    program.once()

    async def work(client):
        await client.create_topic(program.stream, "taken", 3)

    with_client(program.url, work)
    for key in KEYS:
        moto_bucket.put(key, jsonl(json_lines(key, 20)))
    moto_bucket.put("in/good/b.jsonl", jsonl(json_lines("b", 20)))
    program.configure(runner={"tasks_max": tasks})
    ended = program.once()
    for key in KEYS:
        assert f"{key}: its name makes the topic" in ended.err
    assert "refused for its name: 5 objects" in ended.err
    check_exactly(program.messages("good"), {f"in/good/{one}.jsonl": json_lines(one, 20) for one in ("a", "b")})
    assert not program.messages("dead")
    assert topics_of(program) == {"good", "taken", "dead", "orders-offsets"}
    assert "0 records of 0 objects" in program.once().err


def test_without_tolerance_the_sentence_names_the_object(program, moto_bucket):
    program.configure(errors={"tolerance": "none", "dead_letter_topic": None})
    moto_bucket.put("in/17/a.jsonl", jsonl(json_lines("a", 2)))
    ended = program.run("--once")
    assert ended.code == 3
    assert "in/17/a.jsonl: its name makes the topic '17'" in ended.err


def test_positions_cannot_be_forged_by_an_object(program, moto_bucket):
    """Bytes of a bucket's object as a message of the offsets topic: a claim, or a watermark that hides what comes later."""
    program.configure(input={"format": "bytes"})
    moto_bucket.put("in/orders-offsets/x", b"ICSP" + bytes(60))
    moto_bucket.put("in/good/a", b"first")
    program.once()
    assert not [one for one in program.messages("orders-offsets") if one.payload == b"ICSP" + bytes(60)]
    moto_bucket.put("in/good/b", b"second")
    program.once()
    assert sorted(one.payload for one in program.messages("good")) == [b"first", b"second"]


def test_the_number_of_topics_is_limited_over_all_runs(program, moto_bucket):
    program.configure(naming={"max_topics": 3})
    for name in "abc":
        moto_bucket.put(f"in/{name}/1.jsonl", jsonl(json_lines(name, 2)))
    program.once()
    for name in "abcde":
        moto_bucket.put(f"in/{name}/2.jsonl", jsonl(json_lines(name, 2)))
    ended = program.once()
    assert ended.err.count("[naming] max_topics allows") == 2
    assert topics_of(program) == {"a", "b", "c", "dead", "orders-offsets"}
    assert [len(program.messages(name)) for name in "abc"] == [4, 4, 4]
