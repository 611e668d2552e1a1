"""Large objects in shares, through the whole program: nothing lost, nothing twice, and cut alike by one task and by several."""

import json
import os
import signal
from collections import Counter

import pytest

from framework.testing.faults import FaultProxy
from tests.integration.program_rig import (
    LONG,
    SLOW,
    TASKS,
    Program,
    chance,
    check_exactly,
    children,
    difference,
    encoded,
    json_lines,
    jsonl,
    opened,
    rounds,
    rows,
    wait_for_count,
    wait_until,
    with_limit,
)

SPLIT = 10_007
"""Bytes in a share: no line, batch or object has a length that divides it."""

BIG = {"in/a.jsonl": 3001, "in/b.ndjson": 1709, "in/c.jsonl": 997}
SMALL = {"in/d.jsonl": 60, "in/e.jsonl": 3}


@pytest.fixture
def program(tmp_path, moto_bucket, iggy_url, stream_name):
    made = Program(tmp_path, moto_bucket, iggy_url, stream_name)
    yield made.configure(**SLOW, input={"split_size": SPLIT})
    made.close()


def fill(bucket):
    """Key -> payloads. One of the objects is a single line of several shares, between two others."""
    expected = {key: json_lines(key, count, width=61) for key, count in (BIG | SMALL).items()}
    expected["in/f.jsonl"] = [b'"first"', b'"%s"' % (b"x" * 4 * SPLIT), b'"last"']
    for key, payloads in expected.items():
        bucket.put(key, jsonl(payloads))
    return expected


def owners(payloads, split_size):
    """Share -> the payloads that begin in it."""
    found, begin = {}, 0
    for payload in payloads:
        found.setdefault(begin // split_size + 1, []).append(payload)
        begin += len(payload) + 1
    return found


def check_split(messages, expected, split_size=SPLIT, partitions=3):
    """Each record once, with the share it begins in and its number there; a share in one partition, in order."""
    split = {
        key: payloads for key, payloads in expected.items() if sum(map(len, payloads)) + len(payloads) > split_size
    }
    check_exactly(
        [one for one in messages if one.key not in split], {k: v for k, v in expected.items() if k not in split}
    )
    hashes = {}
    for key, payloads in split.items():
        ours = [message for message in messages if message.key == key]
        hashes[key] = {message.id >> 64 for message in ours}
        assert len(hashes[key]) == 1
        wanted = owners(payloads, split_size)
        assert {message.split_number for message in ours} == set(wanted), key
        for split_number, lines in wanted.items():
            part = [message for message in ours if message.split_number == split_number]
            numbers = [message.record for message in part]
            assert numbers == list(range(1, len(lines) + 1)), (
                f"{key}, share {split_number}: {difference(numbers, lines)}"
            )
            assert [message.payload for message in part] == lines
            assert {message.headers["share"] for message in part} == {f"{split_number}/{split_size}"}
            assert len({message.partition for message in part}) == 1
        used = Counter(message.partition for message in ours)
        assert len(used) == min(partitions, len(wanted)), f"{key} lies in {used}"
    assert len({message.id for message in messages}) == len(messages), "an id is there twice"


@pytest.mark.parametrize("tasks", TASKS)
def test_the_progress_ends_at_its_total_and_a_second_run_opens_nothing(program, moto_bucket, tasks):
    expected = fill(moto_bucket)
    size = sum(len(payload) + 1 for payloads in expected.values() for payload in payloads)
    with FaultProxy(moto_bucket.endpoint) as proxy:
        program.configure(s3={"endpoint": proxy.endpoint}, runner={"tasks_max": tasks}, input={"compression": "none"})
        program.configure(log={"format": "json"})
        ended = program.start("--once").wait().no_secrets()
        assert ended.code == 0, ended.err
        check_split(program.messages(), expected)
        assert f'"bytes_done": {size}, "bytes_total": {size}' in ended.err
        splits = sum(-(-sum(len(line) + 1 for line in lines) // SPLIT) for lines in expected.values())
        assert f'"objects_done": {splits}, "objects_total": {splits}' in ended.err
        proxy.clear()
        program.once()
        assert opened(proxy) == []


def test_one_task_and_several_cut_alike(tmp_path, moto_bucket, iggy_url, stream_name):
    fill(moto_bucket)
    found = {}
    for tasks in (1, 2, 3):
        folder = tmp_path / str(tasks)
        folder.mkdir()
        program = Program(folder, moto_bucket, iggy_url, f"{stream_name}-{tasks}")
        program.configure(input={"split_size": SPLIT}, runner={"tasks_max": tasks}).once()
        found[tasks] = {(one.id, one.partition, one.payload) for one in program.messages()}
    assert found[1] == found[2] == found[3]


@pytest.mark.parametrize("form", ["avro", "parquet"])
def test_an_object_in_blocks_killed_at_any_moment(tmp_path, moto_bucket, iggy_url, stream_name, form):
    written = rows(form, 5000)
    moto_bucket.put(f"in/a.{form}", encoded(form, written))
    program = Program(tmp_path, moto_bucket, iggy_url, stream_name)
    program.configure(**SLOW, input={"format": "auto", "split_size": 2003}, runner={"tasks_max": 2})
    dice = chance(f"split-{form}")
    for _ in range(2):
        running = program.start("--once")
        wait_for_count(program, min(5000, program.count() + dice.randrange(1, 2000)), running)
        running.kill()
    program.once()
    messages = sorted(program.messages(), key=lambda one: one.id & (1 << 64) - 1)
    assert [json.loads(one.payload) for one in messages] == written
    assert len({one.id for one in messages}) == 5000
    assert {one.partition for one in messages} == {0, 1, 2}
    assert "0 records of 0 splits" in program.once().err
    program.close()


@pytest.mark.parametrize(("headers", "tasks"), [("provenance", 2), ("none", 1), ("none", 2)][: 3 if LONG else 2])
def test_killed_at_any_moment_and_run_again(tmp_path, moto_bucket, iggy_url, stream_name, headers, tasks):
    """Killed three times a round; the next start says another split size each time, or none."""
    expected = fill(moto_bucket)
    total = sum(map(len, expected.values()))
    dice = chance(f"split-{tasks}-{headers}")
    for number in range(rounds(1)):
        folder = tmp_path / str(number)
        folder.mkdir()
        program = Program(folder, moto_bucket, iggy_url, f"{stream_name}-{number}")
        program.configure(**SLOW, input={"split_size": SPLIT}, runner={"tasks_max": tasks})
        program.configure(iggy={"headers": headers})
        for _ in range(3):
            running = program.start("--once")
            if dice.random() < 0.3:
                with_limit(running, dice.uniform(0.05, 1.2))
            else:
                wait_for_count(program, min(total, program.count() + dice.randrange(1, total // 2)), running)
            running.kill()
            assert running.process.returncode in (0, -signal.SIGKILL), running.err
            if (
                headers == "none"
            ):  # what was not begun is cut anew: the ids differ, and nothing but them tells the objects
                continue
            begun = {one.key for one in program.messages()}
            if begun >= set(BIG):
                program.configure(input={"split_size": dice.choice([None, 4001, 50_021])})
        program.configure(runner={"tasks_max": 1}).once()
        messages = program.messages()
        assert Counter(one.payload for one in messages) == Counter(
            line for lines in expected.values() for line in lines
        )
        if headers == "provenance":
            check_split([one for one in messages if one.key in BIG], {key: expected[key] for key in BIG})
        assert len({one.id for one in messages}) == len(messages)
        assert "0 records of 0 splits" in program.once().err
        program.close()


def test_a_killed_worker_is_replaced_and_its_splits_are_finished(program, moto_bucket):
    expected = fill(moto_bucket)
    running = program.configure(runner={"tasks_max": 2}).start("--once")
    wait_for_count(program, 1 + chance("split-worker").randrange(2000))
    os.kill(chance("split-worker").choice(children(running.pid)), signal.SIGKILL)
    ended = running.wait().no_secrets()
    assert ended.code == 0, ended.err
    check_split(program.messages(), expected)


def test_an_object_overwritten_while_its_splits_are_read_is_sent_whole_in_its_new_version(program, moto_bucket):
    expected = fill(moto_bucket)
    running = program.configure(runner={"tasks_max": 2}).start("--once")
    wait_until(lambda: any(one.key == "in/a.jsonl" for one in program.messages()))
    new = json_lines("new", 2003, width=61)
    moto_bucket.put("in/a.jsonl", jsonl(new))
    ended = running.wait().no_secrets()
    assert ended.code == 0, ended.err
    program.once()
    messages = program.messages()
    versions = {}
    for one in messages:
        if one.key == "in/a.jsonl":
            versions.setdefault(one.headers["version"], []).append(one)
    check_split(
        [one for one in messages if one.key != "in/a.jsonl" or one.payload in new], expected | {"in/a.jsonl": new}
    )
    assert 1 <= len(versions) <= 2
    assert all(len({one.id for one in ours}) == len(ours) for ours in versions.values())


def test_an_option_that_comes_later_reads_nothing_again(program, moto_bucket):
    expected = fill(moto_bucket)
    program.configure(input={"split_size": None}).once()
    check_exactly(program.messages(), expected)
    with FaultProxy(moto_bucket.endpoint) as proxy:
        for size in (SPLIT, 4001, None):
            program.configure(s3={"endpoint": proxy.endpoint}, input={"split_size": size}).once()
        assert opened(proxy) == []
    check_exactly(program.messages(), expected)


def test_read_tells_split_and_split_size(program, moto_bucket):
    expected = fill(moto_bucket)
    program.once()
    lines = program.run("read").lines
    cut = [line for line in lines if line["key"] == "in/c.jsonl"]
    splits = owners(expected["in/c.jsonl"], SPLIT)
    assert Counter(line["share"] for line in cut) == {split_number: len(some) for split_number, some in splits.items()}
    assert {line["split_size"] for line in cut} == {SPLIT}
    assert all("share" not in line and "split_size" not in line for line in lines if line["key"] in SMALL)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"naming": {"template": "{{partition}}-{{key}}", "distribution": "partition"}}, "leave one of the two out"),
        ({"input": {"compression": "gzip"}}, "can only be read from its beginning"),
        ({"input": {"split_size": 1000}}, "split_size"),
    ],
)
def test_what_cannot_go_together_is_refused_at_the_start(program, changes, said):
    ended = program.configure(**changes).run("--once")
    assert ended.code == 2
    assert said in ended.err
