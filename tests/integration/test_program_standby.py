"""Two programs of one source, one of them with `--standby`: whatever ends the first one, nothing is lost or there twice."""

import json
import os
import signal
import urllib.error
import urllib.request

import pytest

from framework.engine import reconnect_policy
from framework.engine import standby as standby_of_the_engine
from framework.testing.servers.ports import free_port
from tests.integration.program_rig import (
    SERVERS,
    TASKS,
    OwnServer,
    Program,
    check_exactly,
    json_lines,
    jsonl,
    wait_for_count,
    wait_until,
    with_client,
)

QUICK = {
    "framework.engine.standby.LOOK_SECONDS": 0.2,
    "framework.engine.standby.ABSENT_SECONDS": 0.6,
    "framework.engine.standby.RETURN_SECONDS": 4.0,
    "framework.engine.reconnect_policy.RECONNECT_PAUSES": [0.1, 0.25, 0.5, 1.0],
}
"""A fifth of what it takes, in the same proportions: how long an instance must be away, and how soon it comes back when Iggy
does. Why they are so long is in framework/engine/standby.py."""

WAITS = "standby, waiting for the instance on"
TAKES_OVER = "no instance of source"


@pytest.fixture
def bucket(bucket_of):
    return bucket_of("moto")


@pytest.fixture(params=SERVERS)
def server(request, tmp_path):
    own = OwnServer(tmp_path / "own", request.param)
    yield own.start()
    own.kill()


@pytest.fixture
def program(tmp_path, bucket, server, stream_name):
    made = Program(tmp_path, bucket, server.url, stream_name)
    yield made
    made.close()


def fill(bucket, prefix, objects=6, count=4000):
    expected = {f"{prefix}/{n}.jsonl": json_lines(f"{prefix}{n}", count + n) for n in range(objects)}
    for key, payloads in expected.items():
        bucket.put(key, jsonl(payloads))
    return expected


def total(expected):
    return sum(map(len, expected.values()))


def at_work(program, *arguments):
    running = program.start(*arguments, constants=QUICK)
    wait_until(lambda: program.count("orders-offsets") > 0 or running.process.poll() is not None)
    return running


def waiting(program, *arguments, environment=()):
    standby = program.start("--standby", *arguments, environment=environment, constants=QUICK)
    standby.wait_for(WAITS)
    return standby


def ask(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("tasks", TASKS)
def test_kill_nine_in_the_middle_of_its_work(program, bucket, tasks):
    program.configure(runner={"tasks_max": tasks}, iggy={"batch_length": 200})
    first = at_work(program)
    standby = waiting(program)
    assert f"(process {first.pid}" in standby.err
    expected = fill(bucket, "a")
    wait_for_count(program, 3000, first)
    first.kill()
    expected |= fill(bucket, "b", objects=3)
    wait_for_count(program, total(expected), standby)
    assert standby.process.poll() is None
    assert standby.stop(within=40).no_secrets().code == 0
    check_exactly(program.messages(), expected)
    again = program.once()
    assert "sent 0 records" in again.err
    check_exactly(program.messages(), expected)


def test_a_clean_stop_and_the_first_one_comes_back_as_the_standby(program, bucket):
    expected = fill(bucket, "a", objects=2, count=500)
    first = at_work(program)
    second = waiting(program)
    wait_for_count(program, total(expected), first)
    for round_ in "bcd":
        assert first.stop(within=40).code == 0
        second.wait_for(TAKES_OVER, 60)
        expected |= fill(bucket, round_, objects=2, count=500)
        wait_for_count(program, total(expected), second)
        first, second = second, waiting(program)
    assert second.stop(within=40).code == 0
    assert first.stop(within=40).code == 0
    check_exactly(program.messages(), expected)


def test_it_waits_over_restarts_of_iggy(program, bucket, server):
    assert 2 * reconnect_policy.RECONNECT_PAUSES[-1] < standby_of_the_engine.RETURN_SECONDS, "as it is in `QUICK`"
    first = at_work(program)
    standby = waiting(program)
    expected = {}
    for number, round_ in enumerate("ab", 1):
        server.kill()
        server.start()
        expected |= fill(bucket, round_, objects=2, count=500)
        wait_for_count(program, total(expected), first)
        wait_until(lambda wanted=number: standby.err.count("Iggy is back") >= wanted)
    assert (first.process.poll(), standby.process.poll()) == (None, None)
    assert TAKES_OVER not in standby.err
    first.kill()
    expected |= fill(bucket, "c", objects=2, count=500)
    wait_for_count(program, total(expected), standby)
    standby.stop(within=40)
    check_exactly(program.messages(), expected)


def test_of_two_standbys_one_takes_over_and_the_other_waits_on(program, bucket):
    first = at_work(program)
    others = [waiting(program) for _ in range(2)]
    expected = {}
    for number in range(2):
        first.kill()
        expected |= fill(bucket, f"r{number}", objects=2, count=500)
        wait_for_count(program, total(expected))
        assert [one.process.poll() for one in others] == [None] * len(others)
        (first,) = [one for one in others if "recovering" in one.err or leads(program, one)]
        others.remove(first)
        for other in others:  # it names the new one
            other.wait_for(f"(process {first.pid}")
    first.stop(within=40)
    check_exactly(program.messages(), expected)


def leads(program, running):
    shown = json.loads(program.run("status", "--no-list", "--json").out)
    return any(one["process"] == running.pid for one in shown["running"])


def test_it_is_live_and_not_ready_and_says_for_whom_it_waits(program, bucket):
    first = at_work(program)
    port = free_port()
    standby = waiting(program, environment={"IGGY_SOURCE__METRICS__ADDRESS": f"127.0.0.1:{port}"})
    assert ask(port, "/healthz") == (200, "ok\n")
    wait_until(lambda: "process" in ask(port, "/readyz")[1])
    status, text = ask(port, "/readyz")
    assert status == 503
    assert text.startswith(f"{WAITS} ")
    assert f"(process {first.pid}" in text
    assert 'iggy_source_standby{source="orders"} 1.0' in ask(port, "/metrics")[1]
    first.kill()
    wait_until(lambda: ask(port, "/readyz")[0] == 200)
    assert 'iggy_source_standby{source="orders"} 0.0' in ask(port, "/metrics")[1]
    assert standby.stop(within=40).code == 0


def test_on_the_same_host_the_port_of_the_metrics_is_opened_when_it_takes_over(program):
    port = free_port()
    program.configure(metrics={"address": f"127.0.0.1:{port}"})
    first = at_work(program)
    standby = waiting(program)
    assert "it is opened when this instance takes over" in standby.err
    first.kill()
    wait_until(lambda: standby.process.poll() is not None or TAKES_OVER in standby.err)
    wait_until(lambda: answers(port))
    assert ask(port, "/healthz") == (200, "ok\n")
    assert standby.stop(within=40).code == 0


def answers(port):
    try:
        return ask(port, "/healthz")[0] == 200
    except OSError:
        return False


def test_once_behind_once_finds_nothing_left_and_ends(program, bucket):
    program.configure(iggy={"batch_length": 100})
    expected = fill(bucket, "a", objects=4, count=2000)
    first = at_work(program, "--once")
    standby = program.start("--standby", "--once", constants=QUICK)
    assert first.wait().code == 0
    ended = standby.wait()
    assert ended.code == 0, ended.err
    assert "sent 0 records" in ended.err
    check_exactly(program.messages(), expected)


def test_before_any_run_it_begins_at_once(program, bucket):
    expected = fill(bucket, "a", objects=2, count=50)
    ended = program.run("--standby", "--once")
    assert ended.code == 0, ended.err
    assert "standby, waiting" not in ended.err
    check_exactly(program.messages(), expected)


@pytest.mark.parametrize(("arguments", "code"), [((), 0), (("--once",), 1)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_the_wait(program, arguments, code, number):
    first = at_work(program)
    standby = waiting(program, *arguments)
    assert standby.stop(number, within=10).no_secrets().code == code
    assert first.process.poll() is None
    assert first.stop(within=40).code == 0


def topics(program):
    """The number of topics in the first stream: the source may be stopped before it has made the topic of records."""
    return with_client(program.url, lambda client: client.get_streams())[0].topics_count


def test_waiting_leaves_the_log_as_it_is(program):
    first = at_work(program)
    os.kill(first.pid, signal.SIGSTOP)  # it is there, and writes nothing
    try:
        before = program.count("orders-offsets"), topics(program)
        standby = waiting(program)
        assert standby.stop(within=40).code == 0
        assert (program.count("orders-offsets"), topics(program)) == before
    finally:
        os.kill(first.pid, signal.SIGCONT)
    assert first.stop(within=40).code == 0


@pytest.mark.parametrize("server", ["real"] if "real" in SERVERS else ["embedded"], indirect=True)
def test_a_silent_host(program, bucket, server):
    """A real server drops a silent member of a group after 61 seconds; the embedded one never does, and the standby waits."""
    expected = fill(bucket, "a", objects=2, count=500)
    first = at_work(program)
    standby = waiting(program)
    wait_for_count(program, total(expected), first)
    os.kill(first.pid, signal.SIGSTOP)
    try:
        expected |= fill(bucket, "b", objects=2, count=500)
        if "real" in SERVERS:
            wait_for_count(program, total(expected), seconds=120)
        else:
            assert TAKES_OVER not in standby.err
    finally:
        os.kill(first.pid, signal.SIGCONT)
    if "real" in SERVERS:
        ended = first.wait()  # it wakes, recovers, and finds the other one
        assert ended.code == 1
        assert f"(process {standby.pid}" in ended.said
    else:
        wait_for_count(program, total(expected), first)
        first.stop(within=40)
    assert standby.stop(within=40).code == 0
    check_exactly(program.messages(), expected)


def test_without_iggy_it_ends_as_any_start_does(program, server):
    server.kill()
    program.configure(iggy={"startup_timeout": 0.5})
    ended = program.run("--standby")
    assert ended.code == 1
    assert "did not answer" in ended.said


def test_it_cannot_also_take_over(program):
    ended = program.run("--standby", "--take-over")
    assert ended.code == 2
    assert ended.said.startswith("error: --standby, --take-over: one waits")
