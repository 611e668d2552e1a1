"""The program with a small window: positions go, and what is read stays the same, on every engine."""

import json
import threading
import time

import pytest

from framework.iggy.address import IggyAddress
from framework.iggy.checkpoints import CheckpointLoader
from framework.iggy.client import IggyConnection
from framework.iggy.position_log import PositionLog, arrange
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
    program.configure(discovery={"late_arrival_window": "0s"}, runner=engine)
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
    program.configure(discovery={"late_arrival_window": "0s"})
    program.once()
    said = program.run("status", "--config", str(program.path), "--json", config=False)
    assert json.loads(said.out)["lag"] == {"objects": 0, "bytes": 0}
    program.configure(discovery={"late_arrival_window": "0s", "exclude": ["other*"]})
    ended = program.run("--once").no_secrets()
    assert ended.code == 1
    assert "[discovery] exclude changed since" in ended.said
    assert "offsets reset --all" in ended.said
    reset = program.run("offsets", "reset", "--all", "--yes", "--config", str(program.path), config=False)
    assert f"{len(COUNTS)} objects, {sum(COUNTS.values())} records will be sent again" in reset.out
    program.once()
    assert program.count() == 2 * sum(COUNTS.values()) - COUNTS["other.jsonl"]


def test_one_folded_object_is_reset_by_its_key(program, expected):
    program.configure(discovery={"late_arrival_window": "0s"})
    program.once()
    reset = program.run(
        "offsets", "reset", "--key", "in/b c.jsonl", "--yes", "--config", str(program.path), config=False
    )
    assert reset.code == 0, reset
    program.once()
    assert program.count() == sum(COUNTS.values()) + COUNTS["in/b c.jsonl"]


OBJECTS, HELD_FROM = 60, 45
"""Objects of the bucket, and the first one that is not given out before the kill."""


def folded(program):
    """Objects that the newest whole snapshot in the log has no positions of."""
    with IggyConnection(IggyAddress.parse(program.url)) as connection:
        if connection.get_topic(program.stream, "positions") is None:
            return 0
        log = PositionLog(connection, stream=program.stream, topic="positions", source="orders")
        found = arrange(log.outline(), "orders").checkpoints
        return CheckpointLoader(log, found).load().watermark.objects if found else 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ENGINES)
def test_killed_while_it_folds_in_the_middle_of_a_first_pass(program, moto_bucket, engine, request):
    expected = {f"in/{number:03}.jsonl": json_lines(f"{number:03}", 5) for number in range(OBJECTS)}
    for key, payloads in expected.items():
        moto_bucket.put(key, jsonl(payloads))
    time.sleep(2)  # the store's clock has whole seconds, and the window is nothing
    released = threading.Event()
    proxy = HookProxy(moto_bucket.endpoint)
    request.addfinalizer(proxy.close)
    request.addfinalizer(released.set)  # before that
    proxy.hook(r"/in/0(4[5-9]|5\d)\.jsonl", lambda _: released.wait(500))
    program.configure(
        s3={"endpoint": proxy.endpoint, "page_size": 5},
        offsets={"topic": "positions", "commit_interval": 0.1},
        discovery={"late_arrival_window": "0s", "list_concurrency": 1},
        input={"fetch_ahead": 4},
        iggy={"partitions": 2},  # each task has one: none waits until a task that is held is free
        runner=engine,
    )
    running = program.start("--once", module="tests.support.small_folds")

    def folds():
        assert running.process.poll() is None, running.err
        return folded(program) > 0

    wait_until(folds, 300, 0.1)
    running.kill()
    held = folded(program)
    assert 0 < held <= HELD_FROM
    assert "listed once more" in running.err, "the order of this store is not documented"
    proxy.unhook()
    released.set()
    program.once()
    check_exactly(program.messages(), expected)
    assert folded(program) == OBJECTS
