"""Positions by hand: looking at them, resetting and setting them, going on after a purge, taking a running source over."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
import time
from collections import Counter
from random import Random

import pytest

from framework.testing.servers.ports import free_port
from tests.integration.program_rig import (
    ENGINES,
    ROOT,
    SERVERS,
    OwnServer,
    Program,
    by_key,
    check_exactly,
    json_lines,
    jsonl,
    wait_for_count,
    wait_for_exactly,
    wait_until,
    with_client,
)

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
    return made


def offsets(program, *arguments, code=0):
    ended = program.run(
        "offsets", arguments[0], "--config", str(program.path), *arguments[1:], config=False
    ).no_secrets()
    assert ended.code == code, ended
    return ended


def times(program):
    """Key -> how often each of its records is there; the same for all of them."""
    found = {}
    for key, messages in by_key(program.messages()).items():
        numbers = [message.record for message in messages]
        count = numbers.count(1)
        assert sorted(numbers) == sorted(list(range(1, COUNTS[key] + 1)) * count), key
        found[key] = count
    return found


def using(program, engine):
    program.configure(runner=engine)
    if engine["engine"] == "spark":
        program.configure(spark={"master": "local[2]"})
    return program


# ---- show and export


def test_positions_are_shown_by_partition_and_one_by_one_and_exported(program, expected):
    empty = json.loads(offsets(program, "show", "--json").out)
    assert (empty["positions"], empty["last_saved"]) == ({"done": 0, "reading": 0, "failed": 0}, None)
    program.once()
    counts = json.loads(offsets(program, "show", "--json").out)
    assert counts["positions"] == {"done": 4, "reading": 0, "failed": 0}
    assert counts["records"] == sum(COUNTS.values())
    assert sum(topic_partition["records"] for topic_partition in counts["partitions"].values()) == counts["records"]
    table = offsets(program, "show").out
    assert "records/" in table
    assert "as of 2" in table
    one = offsets(program, "show", "--key", "in/b c.jsonl").out
    assert "records 31  done" in one
    assert '"format":"jsonl"' in one
    assert one.splitlines()[-2] == "1 position"
    rows = [json.loads(line) for line in offsets(program, "export").out.splitlines()]
    assert {row["key"]: row["records"] for row in rows} == COUNTS
    assert {row["state"] for row in rows} == {"done"}
    assert all(row["depends_on"]["format"] == "jsonl" for row in rows)
    assert len(offsets(program, "export", "--prefix", "in/").out.splitlines()) == 3


def test_positions_are_shown_while_the_source_runs_and_who_runs_it_is_not_disturbed(program, expected, moto_bucket):
    running = program.start()
    wait_for_exactly(program, sum(COUNTS.values()))
    wait_until(lambda: json.loads(offsets(program, "show", "--json").out)["positions"]["done"] == 4)
    moto_bucket.put("in/late.jsonl", b'{"n":1}\n')
    wait_for_exactly(program, sum(COUNTS.values()) + 1)
    assert running.stop().code == 0


# ---- reset


@pytest.mark.parametrize("engine", ENGINES)
def test_a_reset_reads_again_what_it_says_and_nothing_else(program, expected, engine):
    using(program, engine).once()
    said = offsets(program, "reset", "--key", "in/b c.jsonl", "--dry-run").out
    assert "the next run reads again: 1 object, 31 records" in said
    program.once()
    assert set(times(program).values()) == {1}
    offsets(program, "reset", "--key", "in/b c.jsonl", "--yes")
    program.once()
    program.once()
    assert times(program) == {**dict.fromkeys(COUNTS, 1), "in/b c.jsonl": 2}
    assert "3 objects, 58 records" in offsets(program, "reset", "--prefix", "in/", "--yes").out
    program.once()
    assert times(program) == {"in/a.jsonl": 2, "in/b c.jsonl": 3, "in/d/e.jsonl": 2, "other.jsonl": 1}
    assert "4 objects, 70 records" in offsets(program, "reset", "--all", "--yes").out
    program.once()
    program.once()
    assert times(program) == {"in/a.jsonl": 3, "in/b c.jsonl": 4, "in/d/e.jsonl": 3, "other.jsonl": 2}


def test_a_split_object_is_reset_with_all_its_splits(program, moto_bucket):
    payloads = json_lines("big", 900)
    moto_bucket.put("big.jsonl", jsonl(payloads))
    program.configure(input={"format": "jsonl", "split_size": 5000}).once()
    assert program.count() == 900
    assert "1 object, 900 records" in offsets(program, "reset", "--key", "big.jsonl", "--yes").out
    program.once()
    program.once()
    assert program.count() == 1800


def numbers_of(program, key):
    """Record number -> how often it is there."""
    return Counter(message.record for message in by_key(program.messages())[key])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_set_position_goes_on_behind_its_record_and_nothing_else_is_sent_again(program, expected, engine):
    using(program, engine).once()
    said = offsets(program, "set", "--key", "in/b c.jsonl", "--records", "21", "--dry-run").out
    assert "in/b c.jsonl: the next run reads again 10 records, and goes on with record 22" in said
    program.once()
    assert set(times(program).values()) == {1}
    offsets(program, "set", "--key", "in/b c.jsonl", "--records", "21", "--yes")
    offsets(program, "set", "--key", "in/a.jsonl", "--done", "--yes")
    program.once()
    program.once()
    assert numbers_of(program, "in/b c.jsonl") == {number: 1 + (number > 21) for number in range(1, 32)}
    assert {key: set(numbers_of(program, key).values()) for key in COUNTS if key != "in/b c.jsonl"} == {
        key: {1} for key in COUNTS if key != "in/b c.jsonl"
    }


def test_a_set_that_is_killed_happens_whole_or_not_at_all(program, expected):
    program.once()
    again, random = 0, Random(11)
    took = program.start("offsets", "set", "--key", "in/d/e.jsonl", "--records", "7", "--yes").wait().seconds
    for _ in range(6):
        running = program.start("offsets", "set", "--key", "in/a.jsonl", "--records", "5", "--yes")
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(random.uniform(0.0, took * 1.2))
        running.kill()
        before = again
        program.once()
        again = numbers_of(program, "in/a.jsonl")[6] - 1
        assert again in {before, before + 1}
        assert numbers_of(program, "in/a.jsonl") == {n: 1 + again * (n > 5) for n in range(1, 21)}


@pytest.mark.usefixtures("short_look")
def test_a_set_that_cannot_be_says_why_and_changes_nothing(program, expected, moto_bucket):
    program.configure(input={"format": "jsonl", "split_size": 1024})
    moto_bucket.put("big.jsonl", jsonl(json_lines("big", 100)))
    program.once()
    for arguments, code, said in (
        (["--records", "1"], 2, "--key KEY"),
        (["--key", "", "--records", "1"], 2, "--key"),
        (["--key", "other.jsonl"], 2, "--records NUMBER, --done"),
        (["--key", "other.jsonl", "--records", "1", "--done"], 2, "--records NUMBER, --done"),
        (["--key", "other.jsonl", "--records", "-1"], 2, "--records"),
        (["--key", "none", "--done"], 3, "'none' has no position"),
        (["--key", "other.jsonl", "--records", "13"], 3, "13 is more than the 12 records"),
        (["--key", "other.jsonl", "--records", "1", "--version", "x"], 3, "not of 'x'"),
        (["--key", "big.jsonl", "--done"], 3, "splits or parts"),
    ):
        assert said in offsets(program, "set", *arguments, "--yes", code=code).said
    program.configure(input={"format": "text"})
    refused = offsets(program, "set", "--key", "other.jsonl", "--records", "1", "--yes", code=3).said
    assert "12 records were read with" in refused
    program.configure(input={"format": "jsonl", "split_size": 1024})
    running = program.start()
    wait_until(lambda: json.loads(offsets(program, "show", "--json").out)["epoch"] == 2)
    said = offsets(program, "set", "--key", "other.jsonl", "--records", "1", "--yes", code=1).said
    assert f"(process {running.pid}, since 20" in said
    assert running.stop().code == 0
    program.once()
    assert numbers_of(program, "other.jsonl") == dict.fromkeys(range(1, 13), 1)


@pytest.mark.usefixtures("short_look")
def test_a_reset_says_what_it_needs(program, expected):
    program.once()
    assert "--key KEY, --prefix PREFIX, --all" in offsets(program, "reset", code=2).said
    assert "--key KEY, --prefix PREFIX, --all" in offsets(program, "reset", "--all", "--key", "a", code=2).said
    unknown = offsets(program, "reset", "--key", "none", "--yes").out
    assert "nothing to reset: no object with the key 'none' has a position" in unknown
    assert "add --yes" in offsets(program, "reset", "--all", code=2).said
    assert "add --yes" in offsets(program, "accept-data-loss", code=2).said
    running = program.start()
    wait_until(lambda: json.loads(offsets(program, "show", "--json").out)["epoch"] == 2)
    said = offsets(program, "reset", "--all", "--yes", code=1).said
    assert f"(process {running.pid}, since 20" in said
    assert os.uname().nodename in said
    assert running.stop().code == 0
    program.once()
    assert set(times(program).values()) == {1}


def test_a_position_is_set_in_the_bucket_of_the_source_after_a_move_to_another_one(
    program, moto_server, moto_bucket, expected
):
    program.configure(runner={"engine": "local"}).once()
    moved = moto_server.bucket()
    for key, payloads in expected.items():
        moved.put(key, jsonl(payloads))
    program.store(bucket=moved.name).once()
    said = offsets(program, "set", "--key", "in/a.jsonl", "--records", "19", "--yes").out
    assert f"{moved.name}/in/a.jsonl: the next run reads again 1 record, and goes on with record 20" in said
    program.once()
    assert numbers_of(program, "in/a.jsonl") == {number: 2 + (number > 19) for number in range(1, 21)}
    program.store(bucket=moto_bucket.name)
    assert f"{moto_bucket.name}/in/a.jsonl" in offsets(program, "set", "--key", "in/a.jsonl", "--done", "--dry-run").out


def test_a_reset_after_the_offsets_topic_was_lost_says_that_everything_is_sent_again(program, expected):
    topic = "orders-offsets"
    assert "no positions are stored" in offsets(program, "reset", "--all", "--dry-run").out
    program.once()
    with_client(program.url, lambda client: client.delete_topic(program.stream, topic))
    assert program.run("--once").code == 3
    said = offsets(program, "reset", "--all", "--yes").out
    assert said.startswith(f'no positions are stored in topic "{topic}": the next run reads every object whole\n')
    program.once()
    assert set(times(program).values()) == {2}


@pytest.mark.parametrize(("answer", "again"), [(b"n\n", 0), (b"y\n", 1)])
def test_on_a_terminal_a_reset_says_what_will_come_of_it_and_asks(program, expected, answer, again):
    program.once()
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "s3_source", "offsets", "reset", "--config", str(program.path), "--all"]
    running = subprocess.Popen(command, cwd=ROOT, stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.close(slave)
    os.write(master, answer)
    out, err = running.communicate(timeout=60)
    os.close(master)
    assert running.returncode == (0 if again else 1), err
    assert b"the next run reads again: 4 objects, 70 records" in out
    program.once()
    assert set(times(program).values()) == {1 + again}


def test_mode_incremental_reads_what_was_reset_below_its_mark(program, expected):
    program.configure(discovery={"mode": "incremental", "lookback_keys": 0, "poll_interval": 0.1})
    running = program.start()
    wait_for_exactly(program, sum(COUNTS.values()))
    assert running.stop().code == 0
    offsets(program, "reset", "--key", "in/a.jsonl", "--yes")
    running = program.start()
    wait_for_exactly(program, sum(COUNTS.values()) + COUNTS["in/a.jsonl"])
    assert running.stop().code == 0
    assert times(program) == {**dict.fromkeys(COUNTS, 1), "in/a.jsonl": 2}


# ---- purges


@pytest.mark.parametrize(
    ("engine", "way_out"),
    [
        *(pytest.param(*one.values, "reset", id=f"reset-{one.id}", marks=one.marks) for one in ENGINES),
        pytest.param(*ENGINES[0].values, "accept-data-loss", id="accept-data-loss"),
    ],
)
def test_a_purge_of_few_records_is_an_error_with_two_ways_out(program, expected, moto_bucket, engine, way_out):
    using(program, engine).once()
    with_client(program.url, lambda client: client.purge_topic(program.stream, "records"))
    ended = program.run("--once").no_secrets()
    assert ended.code == 3
    assert "was purged" in ended.said
    assert "offsets reset --all" in ended.said
    assert "offsets accept-data-loss" in ended.said
    assert program.count() == 0
    done = offsets(program, *{"reset": ("reset", "--all"), "accept-data-loss": ("accept-data-loss",)}[way_out], "--yes")
    if way_out == "accept-data-loss":
        assert re.fullmatch(rf"accepted, in epoch \d+: kept {len(COUNTS)} positions as before\n", done.out)
    moto_bucket.put("in/z.jsonl", jsonl(json_lines("z", 5)))
    program.once()
    program.once()
    new = {"in/z.jsonl": json_lines("z", 5)}
    check_exactly(program.messages(), {**expected, **new} if way_out == "reset" else new)


def test_a_purge_while_the_source_runs_ends_it_with_the_same_error(program, expected, moto_bucket):
    running = program.start()
    wait_until(lambda: json.loads(offsets(program, "show", "--json").out)["records"] == sum(COUNTS.values()))
    with_client(program.url, lambda client: client.purge_topic(program.stream, "records"))
    for number in range(9):  # one of them goes to a partition that held some before
        moto_bucket.put(f"in/z{number}.jsonl", jsonl(json_lines(f"z{number}", 3)))
    ended = running.wait().no_secrets()
    assert ended.code == 3
    assert "was purged" in ended.said


def test_segments_taken_from_the_front_are_not_sent_again(program, moto_bucket):
    size = 1 << 20

    async def make(client):
        await client.create_stream(program.stream)
        await client.create_topic(program.stream, "records", 1, segment_size=size)

    with_client(program.url, make)
    payloads = json_lines("a", 40_000, width=60)
    moto_bucket.put("a.jsonl", jsonl(payloads))
    program.configure(iggy={"partitions": 1}).once()
    delete = b"\x02%c%s\x02\x07records" % (len(program.stream), program.stream.encode()) + bytes(4) + b"\x63\0\0\0"
    with_client(program.url, lambda client: client.send_binary_request(503, delete))
    wait_until(lambda: program.count() < 40_000)
    left = program.count()
    ended = program.once()
    assert program.count() == left
    assert "0 records of 0 objects" in ended.err


# ---- two instances


@pytest.mark.parametrize("engine", ENGINES)
def test_the_second_one_takes_over_and_the_first_ends_by_itself(program, expected, moto_bucket, engine):
    first = using(program, engine).start()
    wait_for_exactly(program, sum(COUNTS.values()), seconds=180)
    second = program.start("--take-over")
    ended = first.wait(120).no_secrets()
    assert ended.code == 3
    assert "was taken over by an instance on" in ended.said
    assert f"(process {second.pid}" in ended.said
    moto_bucket.put("in/late.jsonl", jsonl(json_lines("late", 5)))
    wait_for_exactly(program, sum(COUNTS.values()) + 5, seconds=180)
    assert second.stop().code == 0
    check_exactly(program.messages(), {**expected, "in/late.jsonl": json_lines("late", 5)})


def test_taking_over_in_the_middle_of_the_work_loses_and_repeats_nothing(program, moto_bucket):
    made = {f"{number}.jsonl": json_lines(f"{number}", 4000) for number in range(8)}
    for key, payloads in made.items():
        moto_bucket.put(key, jsonl(payloads))
    program.configure(iggy={"batch_length": 20})
    first = program.start()
    wait_for_count(program, 501, seconds=120)
    second = program.start("--take-over", "--once")
    assert first.wait().code == 3
    assert second.wait().code == 0
    check_exactly(program.messages(), made)


def test_one_that_does_not_answer_is_waited_for_until_its_connection_is_gone(program, expected, moto_bucket):
    """Stopped in its tracks, as a machine that hangs: Iggy lists its connections, and what it has sent may still be stored."""
    import signal

    first = program.start()
    wait_for_exactly(program, sum(COUNTS.values()))
    first.send(signal.SIGSTOP)
    refused = program.start("--once", constants={"framework.iggy.offset_log.fencing.LOOK_SECONDS": 1.0}).wait()
    assert refused.code == 1
    assert f"(process {first.pid}, since 20" in refused.said
    assert "--take-over" in refused.said
    moto_bucket.put("in/late.jsonl", jsonl(json_lines("late", 5)))
    second = program.start("--once", "--take-over")
    time.sleep(3)
    assert second.process.poll() is None
    first.send(signal.SIGCONT)
    ended = first.wait()
    assert ended.code == 3
    assert "taken over" in ended.said
    assert second.wait().code == 0
    assert times_of(program) == {**dict.fromkeys(COUNTS, 1), "in/late.jsonl": 1}


def times_of(program):
    return {key: [m.record for m in messages].count(1) for key, messages in by_key(program.messages()).items()}


# ---- what is lost when a server is killed is no purge


@pytest.mark.parametrize("kind", SERVERS)
def test_a_killed_server_with_the_usual_options_is_no_purge(tmp_path, moto_bucket, stream_name, kind):
    server = OwnServer(tmp_path / "server", kind).start()
    program = Program(tmp_path, moto_bucket, server.url, stream_name)
    try:

        async def make(client):
            await client.create_stream(program.stream)
            await client.create_topic(program.stream, "records", 3)

        with_client(program.url, make)
        made = {f"{number}.jsonl": json_lines(f"{number}", 700 * number) for number in range(1, 5)}
        for key, payloads in made.items():
            moto_bucket.put(key, jsonl(payloads))
        program.once()
        server.kill()
        server.start()
        program.once()
        check_exactly(program.messages(), made)
        with_client(program.url, lambda client: client.purge_topic(program.stream, "records"))
        assert "was purged" in program.run("--once").said
    finally:
        program.close()
        server.kill()


# ---- status and plan


def as_json(program, *arguments):
    ended = program.run(*arguments, "--json").no_secrets()
    assert ended.code == 0, ended
    return json.loads(ended.out)


def test_a_plan_says_what_a_run_reads_and_writes_nothing(program, expected, moto_bucket):
    moto_bucket.put("in/_hidden.jsonl", b"{}\n")
    moto_bucket.put("in/packed.jsonl.gz", b"not looked into")
    sizes = {key: len(jsonl(payloads)) for key, payloads in expected.items()}
    program.configure(discovery={"exclude": ["in/*.gz"]})
    afresh = as_json(
        program, "plan", "--ignore-offsets", "--list-price", "2", "--get-price", "50", "--transfer-price", "1e6"
    )
    assert (afresh["objects"], afresh["size_bytes"]) == (4, sum(sizes.values()))
    assert sum(afresh["left_out"].values()) == 2
    assert afresh["endings"] == {".jsonl": {"objects": 4, "size_bytes": sum(sizes.values())}}
    assert {name: part["objects"] for name, part in afresh["prefixes"].items()} == {"": 1, "in/": 3}
    assert sum(part["objects"] for part in afresh["partitions"].values()) == 4
    assert afresh["get_requests"] == 4
    cost = afresh["cost_usd"]
    assert cost["list"] == pytest.approx(afresh["list_requests"] * 0.002)
    assert cost["get"] == pytest.approx(0.2)
    assert cost["transfer"] == pytest.approx(sum(sizes.values()) / 1000)
    with pytest.raises(AssertionError):
        with_client(program.url, lambda client: stream_of(client, program.stream))
    program.once()
    before = program.count("orders-offsets")
    assert as_json(program, "plan")["objects"] == 0
    moto_bucket.put("in/z.jsonl", b'{"n":1}\n')
    people = program.run("plan").out
    assert "to read: 1 object, 8 bytes" in people
    assert "filtered" in people
    assert program.count("orders-offsets") == before
    assert program.count() == sum(COUNTS.values())
    said = program.once().err
    assert "1 record of 1 object" in said


async def stream_of(client, name):
    assert await client.get_stream(name) is not None


def test_a_plan_fails_where_a_run_would(program, expected):
    program.configure(s3={"bucket": "no-such-bucket-anywhere"})
    assert "no-such-bucket-anywhere" in program.run("plan", "--ignore-offsets").said


@pytest.mark.parametrize("tasks", [1, 2])
def test_status_tells_how_far_it_is_and_who_runs_it(program, expected, moto_bucket, tasks):
    program.configure(runner={"tasks_max": tasks})
    nothing = as_json(program, "status")
    assert (nothing["last_saved"], nothing["running"], nothing["lag"]["objects"]) == (None, [], 4)
    program.once()
    moto_bucket.put("late.jsonl", b'{"n":1}\n')
    status = as_json(program, "status")
    assert status["positions"] == {"done": 4, "reading": 0, "failed": 0}
    assert status["lag"] == {"objects": 1, "bytes": 8}
    assert status["running"] == []
    assert status["log"]["bytes"] > 100
    assert status["last_saved"] > "2026"
    running = program.start()
    wait_until(lambda: as_json(program, "status")["lag"]["objects"] == 0, 90)
    status = as_json(program, "status", "--no-list")
    assert status["lag"] is None
    assert {one["process"] for one in status["running"] if one["leader"]} == {running.pid}
    assert len(status["running"]) == (1 if tasks == 1 else 3)
    people = program.run("status").out
    assert f"running on {os.uname().nodename} (process {running.pid}, since 20" in people
    assert "lag: 0 objects" in people
    assert running.stop().code == 0
    assert "not running" in program.run("status", "--no-list").out


def test_a_status_shows_the_positions_when_the_store_is_away(program, expected):
    program.once()
    ended = program.store(endpoint=f"http://127.0.0.1:{free_port()}", retry_budget=0.1).run("status")
    assert ended.code == 1
    assert "the store cannot be reached" in ended.err
    assert re.search(r"^all +4 +0 +0 +70$", ended.out, re.MULTILINE), ended.out
    assert "not running" in ended.out
    assert "lag" not in ended.out


def test_after_a_clean_stop_a_start_reads_almost_nothing_of_the_data_topic(program, moto_bucket):
    for number in range(6):
        moto_bucket.put(f"{number}.jsonl", jsonl(json_lines(f"{number}", 5000)))
    program.configure(iggy={"batch_length": 700}, log={"level": "debug"})
    running = program.start()
    wait_for_exactly(program, 30_000, seconds=60)
    assert running.stop().code == 0
    assert found_behind_positions(program.once()) < 1000
    assert program.count() == 30_000
    # and what is counted here is said: after a kill there is something to find
    moto_bucket.put("late.jsonl", jsonl(json_lines("late", 400_000)))  # not done when it is killed
    program.configure(offsets={"commit_interval": 60}, discovery={"poll_interval": 60})
    running = program.start()
    wait_for_count(program, 31_001, seconds=60)
    running.kill()
    assert found_behind_positions(program.once()) > 0


def found_behind_positions(ended):
    """How many messages of the data topic a start read."""
    return sum(map(int, re.findall(r"(\d+) messages? behind the last saved positions", ended.err)))
