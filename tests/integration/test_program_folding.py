"""The program with a small window: positions go, and what is read stays the same, on every engine."""

import json
import shutil
import time

import pytest

from tests.integration.program_rig import Program, check_exactly, json_lines, jsonl

NO_JAVA = pytest.mark.skipif(shutil.which("java") is None, reason="no Java: Spark needs one")
ENGINES = [
    pytest.param({"engine": "local"}, id="local"),
    pytest.param({"engine": "local", "tasks_max": 2}, id="processes"),
    pytest.param({"engine": "spark", "tasks_max": 2}, id="spark", marks=NO_JAVA),
]
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
