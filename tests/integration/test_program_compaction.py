"""The program with a small window: positions go, and what is read stays the same, on every engine."""

import json
import threading
import time

import pytest

from framework.config.iggy_address import IggyAddress
from framework.iggy.connection import IggyConnection
from framework.iggy.offset_log.loading import load
from framework.iggy.offset_log.log import OffsetLog
from tests.integration.program_rig import ENGINES, HookProxy, Program, check_exactly, json_lines, jsonl, wait_until

COUNTS = {"in/a.jsonl": 20, "in/b c.jsonl": 31, "in/d/e.jsonl": 7, "other.jsonl": 12}


@pytest.fixture
def program(spark_of_the_engine, tmp_path, moto_bucket, iggy_url, stream_name):
    made = Program(tmp_path, moto_bucket, iggy_url, stream_name)
    yield made
    made.close()


@pytest.fixture
def expected(moto_bucket):
    made = {key: json_lines(key, count) for key, count in COUNTS.items()}
    for key, payloads in made.items():
        moto_bucket.put(key, jsonl(payloads))
    time.sleep(2)  # the store's clock has whole seconds, and the window is nothing
    return made


def shown(program):
    said = program.run("offsets", "show", "--config", str(program.path), "--json", config=False)
    assert said.code == 0, said
    return json.loads(said.out)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_done_has_no_position_and_is_not_read_again(program, expected, moto_bucket, engine):
    program.configure(discovery={"allowed_lateness": "0s"}, runner=engine)
    program.once()
    found = shown(program)
    assert found["folded"] == {"objects": len(COUNTS), "records": sum(COUNTS.values()), "ranges": 1}
    assert found["positions"] == {"done": 0, "reading": 0, "failed": 0}
    assert "0 records of 0 objects" in program.once().err
    expected["in/late.jsonl"] = json_lines("late", 5)
    moto_bucket.put("in/late.jsonl", jsonl(expected["in/late.jsonl"]))
    assert "5 records of 1 object" in program.once().err
    check_exactly(program.messages(), expected)


def test_status_shows_no_lag_and_a_changed_filter_ends_the_start(program, expected):
    program.configure(discovery={"allowed_lateness": "0s"})
    program.once()
    said = program.run("status", "--config", str(program.path), "--json", config=False)
    assert json.loads(said.out)["lag"] == {"objects": 0, "bytes": 0}
    program.configure(discovery={"allowed_lateness": "0s", "exclude": ["other*"]})
    ended = program.run("--once").no_secrets()
    assert ended.code == 3
    assert "[discovery] exclude changed since" in ended.said
    checked = program.run("check").no_secrets()
    assert checked.code == 3, checked.out
    assert "FAIL positions      [discovery] exclude changed since" in checked.out
    assert "offsets accept-data-loss" in ended.said
    reset = program.run("offsets", "reset", "--all", "--yes", "--config", str(program.path), config=False)
    assert f"reads again: {len(COUNTS)} objects, {sum(COUNTS.values())} records" in reset.out
    program.once()
    assert program.count() == 2 * sum(COUNTS.values()) - COUNTS["other.jsonl"]


def test_one_compacted_object_is_reset_by_its_key(program, expected):
    program.configure(discovery={"allowed_lateness": "0s"})
    program.once()
    reset = program.run(
        "offsets", "reset", "--key", "in/b c.jsonl", "--yes", "--config", str(program.path), config=False
    )
    assert reset.code == 0, reset
    program.once()
    assert program.count() == sum(COUNTS.values()) + COUNTS["in/b c.jsonl"]


OBJECTS, HELD_FROM = 60, 45
"""Objects of the bucket, and the first one that is not given out before the kill."""


def compacted(program):
    """Objects that a start would find no positions of, done by the watermark."""
    with IggyConnection(IggyAddress.parse(program.url)) as connection:
        if connection.get_topic(program.stream, "positions") is None:
            return 0
        return load(OffsetLog(connection, stream=program.stream, topic="positions", source="orders")).watermark.objects


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ENGINES)
def test_killed_while_it_compacts_in_the_middle_of_a_first_listing(program, moto_bucket, engine, request):
    expected = {f"in/{number:03}.jsonl": json_lines(f"{number:03}", 5) for number in range(OBJECTS)}
    for key, payloads in expected.items():
        moto_bucket.put(key, jsonl(payloads))
    time.sleep(2)  # the store's clock has whole seconds, and the window is nothing
    released = threading.Event()
    proxy = HookProxy(moto_bucket.endpoint).start()
    request.addfinalizer(proxy.close)
    request.addfinalizer(released.set)  # before that
    proxy.hook(r"/in/0(4[5-9]|5\d)\.jsonl", lambda _: released.wait(500))
    program.configure(
        s3={"endpoint": proxy.endpoint, "page_size": 5},
        offsets={"topic": "positions", "commit_interval": 0.1},
        discovery={"allowed_lateness": "0s", "list_concurrency": 1},
        input={"prefetch_objects": 4},
        iggy={"partitions": 2},  # each task has one: none waits until a task that is held is free
        runner=engine,
    )
    running = program.start("--once", module="tests.support.small_compactions")

    def compacts():
        assert running.process.poll() is None, running.err
        return compacted(program) > 0

    wait_until(compacts, 300, 0.1)
    running.kill()
    held = compacted(program)
    assert 0 < held <= HELD_FROM
    proxy.unhook()
    released.set()
    program.once()
    check_exactly(program.messages(), expected)
    assert compacted(program) == OBJECTS
