"""Starting, stopping, being killed, starting again: nothing is lost, nothing is there twice."""

import fcntl
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from framework.testing.faults import Fault, FaultProxy
from tests.integration.program_rig import (
    LONG,
    SERVERS,
    SLOW,
    TASKS,
    HookProxy,
    OwnServer,
    Program,
    Tarpit,
    chance,
    check_exactly,
    check_saved,
    children,
    fill,
    json_lines,
    jsonl,
    opened,
    place_of,
    rounds,
    stopping,
    wait_for_count,
    wait_for_exactly,
    wait_until,
    with_client,
    with_limit,
)
from tests.support.stopwatch import Stopwatch

EVERY = [("provenance", 1), ("provenance", 2), ("none", 1), ("none", 2)]

STORES = os.environ.get("PROGRAM_TEST_STORE", "moto fake-gcs").split()
ON_EACH = pytest.mark.parametrize(
    ("bucket", "tasks"),
    [(store, tasks) for at, store in enumerate(STORES) for tasks in ([1, 2] if LONG or len(STORES) == 1 else [2 - at])],
    indirect=["bucket"],
)
"""For what a vendor's library has a part in, with several tasks on one store and with one on the other: whose client reads
and how many tasks there are has nothing to do with each other. Everything else is tried on the first of them."""


@pytest.fixture(params=STORES[:1])
def bucket(request, bucket_of):
    return bucket_of(request.param)


@pytest.fixture
def program(tmp_path, bucket, iggy_url, stream_name):
    made = Program(tmp_path, bucket, iggy_url, stream_name)
    yield made
    made.close()


@pytest.fixture(params=SERVERS)
def own_server(request, tmp_path):
    server = OwnServer(tmp_path / "own", request.param)
    yield server.start()
    server.kill()


# ---- once


def test_written_four_read_four_two_more_restart_only_the_two(program, bucket):
    expected = {f"{n}.jsonl": json_lines(str(n), 3 + n) for n in range(4)}
    for key, payloads in expected.items():
        bucket.put(key, jsonl(payloads))
    program.once()
    more = {f"{n}.jsonl": json_lines(str(n), 3 + n) for n in (-1, 5)}  # one before the others, one after
    for key, payloads in more.items():
        bucket.put(key, jsonl(payloads))
    with FaultProxy(bucket.endpoint) as proxy:
        program.store(endpoint=proxy.endpoint)
        assert "of 2 objects" in program.once().err
        assert sorted(path.partition("?")[0].rpartition("/")[2] for path in opened(proxy)) == sorted(more)
    check_exactly(program.messages(), expected | more)


@pytest.mark.parametrize("tasks", TASKS)
def test_objects_that_appear_while_it_runs_are_read(program, bucket, tasks):
    expected = {"a.jsonl": json_lines("a", 700)}
    bucket.put("a.jsonl", jsonl(expected["a.jsonl"]))
    running = program.configure(runner={"tasks_max": tasks}).start()
    wait_for_exactly(program, 700)
    for name in ("0.jsonl", "b.jsonl"):
        expected[name] = json_lines(name, 45)
        bucket.put(name, jsonl(expected[name]))
        wait_for_exactly(program, sum(map(len, expected.values())))
    ended = running.stop().no_secrets()
    assert ended.code == 0
    check_exactly(program.messages(), expected)
    assert "0 records of 0 objects" in program.configure(runner={"tasks_max": 1}).once().err


# ---- stopped by a signal


def stopped_and_run_again(program, running, number, expected, **clean):
    ended = running.stop(number).no_secrets()
    assert ended.code == 0, ended.err
    program.configure(runner={"tasks_max": 1}).store(**clean).once()
    check_exactly(program.messages(), expected, same=json.loads)


@ON_EACH
def test_a_signal_in_the_middle_of_sending(program, bucket, tasks):
    number = signal.SIGTERM if tasks == 2 else signal.SIGINT
    expected = fill(bucket, 18, least=700)
    with HookProxy(bucket.endpoint, place_of("in/017"), lambda _: stopping(running)) as proxy:
        program.configure(**SLOW, runner={"tasks_max": tasks}, input={"format": "auto"}).store(endpoint=proxy.endpoint)
        running = program.start()
        wait_for_count(program, 2001, seconds=120)
        ended = running.stop(number).no_secrets()
    assert ended.code == 0, ended.err
    sent = program.count()
    assert sent < sum(map(len, expected.values())), "it was not in the middle"
    again = program.configure(runner={"tasks_max": 1}).store(endpoint=bucket.endpoint).once()
    check_saved(ended, again)
    check_exactly(program.messages(), expected, same=json.loads)


def test_a_signal_while_idle(program, bucket):
    expected = fill(bucket, 3)
    program.configure(input={"format": "auto"}, discovery={"poll_interval": 60}, offsets={"commit_interval": 60})
    running = program.start()
    wait_for_exactly(program, sum(map(len, expected.values())))
    ended = running.stop()
    assert ended.code == 0
    again = program.once()
    check_saved(ended, again)
    check_exactly(program.messages(), expected, same=json.loads)


@ON_EACH
def test_a_signal_while_a_listing_hangs(program, bucket, tasks):
    expected = fill(bucket, 3)
    with Tarpit() as pit:
        program.configure(input={"format": "auto"}, runner={"tasks_max": tasks}).store(endpoint=pit.endpoint)
        running = program.start()
        assert pit.touched.wait(60)
        stopped_and_run_again(program, running, signal.SIGTERM, expected, endpoint=bucket.endpoint)


@ON_EACH
def test_a_signal_while_a_read_hangs(program, bucket, tasks):
    expected = fill(bucket, 6)
    answer = threading.Event()
    with HookProxy(bucket.endpoint, place_of("in/003"), lambda _: answer.wait()) as proxy:
        program.configure(input={"format": "auto"}, runner={"tasks_max": tasks}).store(endpoint=proxy.endpoint)
        running = program.start()
        try:
            wait_until(
                lambda: any(re.search(place_of("in/003"), path) for path in opened(proxy)) and program.count() > 0
            )
            stopped_and_run_again(program, running, signal.SIGTERM, expected, endpoint=bucket.endpoint)
        finally:
            answer.set()


@pytest.mark.parametrize("tasks", TASKS)
def test_a_signal_while_iggy_hangs(program, bucket, own_server, tasks):
    """The server wakes up later and may store what was under way: the next start must see that."""
    expected = fill(bucket, 18, least=700)
    program.url = own_server.url
    program.configure(**SLOW, runner={"tasks_max": tasks}, input={"format": "auto"}).configure(
        iggy={"url": program.url}
    )
    running = program.start()
    wait_for_count(program, 1001, seconds=120)
    own_server.send(signal.SIGSTOP)
    try:
        time.sleep(
            1.5
        )  # for every request to be under way, that of who looks once a second too; nothing tells when it is
        ended = running.stop().no_secrets()
    finally:
        own_server.send(signal.SIGCONT)
    assert ended.code == 0, ended.err
    program.configure(runner={"tasks_max": 1}).once()
    check_exactly(program.messages(), expected, same=json.loads)


def test_a_signal_when_iggy_hangs_and_positions_are_not_saved_yet(program, bucket, own_server):
    """A stop saves them, and must not wait for that request as long as its own limit allows."""
    program.url = own_server.url
    program.configure(iggy={"url": own_server.url}, offsets={"commit_interval": 60}, discovery={"poll_interval": 60})
    expected = {"a.jsonl": json_lines("a", 50)}
    bucket.put("a.jsonl", jsonl(expected["a.jsonl"]))
    running = program.start()
    wait_for_count(program, 50)
    own_server.send(signal.SIGSTOP)
    try:
        ended = running.stop().no_secrets()
    finally:
        own_server.send(signal.SIGCONT)
    assert ended.code == 0, ended.err
    assert "stopped while Iggy was away" in ended.err
    program.once()
    check_exactly(program.messages(), expected)


def test_a_signal_while_the_first_connection_hangs(program):
    with Tarpit() as pit:
        program.configure(iggy={"url": f"iggy://iggy:iggy@127.0.0.1:{pit.port}", "connect_timeout": 300})
        running = program.start()
        assert pit.touched.wait(60)
        ended = running.stop().no_secrets()
    assert (ended.code, "WARNING" in ended.err) == (0, False), ended.err


def test_a_signal_while_iggy_is_away(program, bucket, own_server):
    expected = fill(bucket, 3)
    program.url = own_server.url
    running = program.configure(iggy={"url": own_server.url}, input={"format": "auto"}).start()
    wait_for_exactly(program, sum(map(len, expected.values())))
    own_server.kill()
    running.wait_for("Iggy is away")
    assert running.stop().no_secrets().code == 0
    own_server.start()
    program.once()
    check_exactly(program.messages(), expected, same=json.loads)


def test_a_second_signal_ends_it_at_once(program, bucket):
    fill(bucket, 1)
    with Tarpit() as pit:
        running = program.store(endpoint=pit.endpoint).start()
        assert pit.touched.wait(60)
        running.send(signal.SIGTERM)
        running.wait_for("SIGTERM: stopping")
        began = Stopwatch()
        running.send(signal.SIGTERM)
        assert running.wait().code in (0, -signal.SIGTERM)
        assert began.seconds < 5


def catches(pid, number):
    """Whether a process has a handler for that signal."""
    (mask,) = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(mask, 16) >> number - 1 & 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_while_its_log_waits_for_a_reader(program, bucket, number):
    """`2>&1 | less`: the reader of the log has paused, and the pipe is full."""
    bucket.put("a.jsonl", b"bad\n" * 900)
    program.configure(errors={"tolerance": "skip_record"}, input={"format": "jsonl"})
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    room = select.poll()
    room.register(writer, select.POLLOUT)
    running = subprocess.Popen([sys.executable, "-m", program.module, "--config", str(program.path)], stderr=writer)
    try:
        wait_until(lambda: catches(running.pid, signal.SIGTERM) and not room.poll(0))
        time.sleep(1.0)
        assert running.poll() is None
        assert not room.poll(0), "nothing reads"
        running.send_signal(number)
        assert running.wait(30) == 0
    finally:
        running.kill()
        running.wait()
        os.close(reader)
        os.close(writer)


# ---- killed


@pytest.mark.parametrize(("headers", "tasks"), EVERY if LONG else [("provenance", 2), ("none", 1)])
def test_killed_at_any_moment_and_run_again(tmp_path, bucket, iggy_url, stream_name, headers, tasks):
    """Killed three times a round, at a moment by the clock or by how much is sent."""
    expected = fill(bucket, 18, least=600)
    total = sum(map(len, expected.values()))
    dice = chance(f"killed-{tasks}-{headers}")
    for number in range(rounds(1)):
        folder = tmp_path / str(number)
        folder.mkdir()
        program = Program(folder, bucket, iggy_url, f"{stream_name}-{number}")
        program.configure(**SLOW, input={"format": "auto"}, runner={"tasks_max": tasks})
        program.configure(iggy={"headers": headers})
        for _ in range(3):
            running = program.start("--once")
            if dice.random() < 0.3:
                with_limit(running, dice.uniform(0.05, 1.2))
            else:
                target = min(total, program.count() + dice.randrange(total // 2))
                wait_for_count(program, target, running)
            running.kill()
            assert running.process.returncode in (0, -signal.SIGKILL), running.err
        program.configure(runner={"tasks_max": 1}).once()
        messages = program.messages()
        if headers == "provenance":
            check_exactly(messages, expected, same=json.loads)
        else:
            check_without_headers(messages, expected)
        assert "0 records of 0 objects" in program.once().err
        program.close()


def check_without_headers(messages, expected):
    """The objects are told apart by their ids' upper part."""
    objects = {}
    for message in messages:
        assert message.headers == {}
        objects.setdefault(message.id >> 40, []).append(message)
    found = [[json.loads(one.payload) for one in ours] for ours in map(in_order, objects.values())]
    assert sorted(map(str, found)) == sorted(map(str, expected.values()))


def in_order(messages):
    numbers = [message.record for message in messages]
    assert numbers == list(range(1, len(numbers) + 1)), numbers[:5]
    return messages


def test_a_killed_worker_is_replaced_and_nothing_is_lost_or_repeated(tmp_path, bucket, iggy_url, stream_name):
    expected = fill(bucket, 18, least=600)
    total = sum(map(len, expected.values()))
    dice = chance("worker")
    for number in range(rounds(1)):
        folder = tmp_path / str(number)
        folder.mkdir()
        program = Program(folder, bucket, iggy_url, f"{stream_name}-{number}")
        program.configure(**SLOW, input={"format": "auto"}, runner={"tasks_max": 2})
        running = program.start("--once")
        target = dice.randrange(total // 2)
        wait_for_count(program, target + 1)
        os.kill(dice.choice(children(running.pid)), signal.SIGKILL)
        ended = running.wait().no_secrets()
        assert ended.code == 0, ended.err
        check_exactly(program.messages(), expected, same=json.loads)
        assert "0 records of 0 objects" in program.configure(runner={"tasks_max": 1}).once().err
        program.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_process_ignores_a_signal_from_its_first_instruction_on(program, bucket, number):
    """Ctrl-C reaches the whole group of processes; also workers whose modules are loading."""
    expected = fill(bucket, 4)
    running = program.configure(input={"format": "auto"}, runner={"tasks_max": 2}).start("--once")
    for worker in wait_until(lambda: children(running.pid), pause=0):
        os.kill(worker, number)
    ended = running.wait().no_secrets()
    assert (ended.code, "WARNING" in ended.err) == (0, False), ended.err
    check_exactly(program.messages(), expected, same=json.loads)


@pytest.mark.parametrize("tasks", TASKS)
def test_iggy_is_killed_and_comes_back_while_the_source_runs_on(tmp_path, bucket, own_server, tasks):
    expected = fill(bucket, 18, least=600)
    total = sum(map(len, expected.values()))
    dice = chance(f"iggy-{tasks}")
    for number in range(rounds(1)):
        folder = tmp_path / str(number)
        folder.mkdir()
        program = Program(folder, bucket, own_server.url, f"s-{number}")
        program.configure(**SLOW, input={"format": "auto"}, runner={"tasks_max": tasks})
        running = program.start()
        for _ in range(2):
            target = min(total, program.count() + dice.randrange(total // 2))
            wait_for_count(program, target)
            own_server.kill()
            own_server.start()
        wait_for_count(program, total)
        ended = running.stop().no_secrets()
        assert ended.code == 0, ended.err
        check_exactly(program.messages(), expected, same=json.loads)
        assert "0 records of 0 objects" in program.configure(runner={"tasks_max": 1}).once().err
        program.close()


def test_the_embedded_server_of_the_program_is_killed_while_it_works(tmp_path, bucket):
    expected = fill(bucket, 18, least=600)
    folder = tmp_path / "data"
    program = Program(tmp_path, bucket, f"embedded:{folder}", "s")
    program.configure(**SLOW, input={"format": "auto"})
    running = program.start("--once")
    address = folder / "server.json"
    wait_until(lambda: address.exists() and address.read_bytes())
    served = json.loads(address.read_bytes())
    program.url = f"iggy://iggy:{served['password']}@127.0.0.1:{served['port']}"
    wait_for_count(program, 3000)
    os.kill(served["pid"], signal.SIGKILL)
    ended = running.wait().no_secrets()
    program.close()
    assert ended.code == 0, ended.err
    read = program.run("read")
    assert read.code == 0
    assert len(read.lines) == len({line["id"] for line in read.lines}) == sum(map(len, expected.values()))


# ---- objects that change under its hands


@pytest.mark.parametrize("tasks", TASKS)
def test_two_versions_are_never_mixed(program, bucket, tasks):
    """The download is cut in the middle, and the object is another one when it is asked to go on from there."""
    old, new = json_lines("old", 30_000), json_lines("new", 20_000)
    bucket.put("a.jsonl", jsonl(old))

    def overwrite(_path):
        bucket.put("a.jsonl", jsonl(new))

    with HookProxy(bucket.endpoint, "a.jsonl", overwrite, at=2) as proxy:
        proxy.add(Fault(path="/a.jsonl", cut_at=700_001))
        program.configure(runner={"tasks_max": tasks}).store(endpoint=proxy.endpoint)
        ended = program.start("--once").wait().no_secrets()
    assert ended.code == 0, ended.err
    assert "overwritten" in ended.err
    versions = {}
    for message in program.messages():
        versions.setdefault(message.headers["version"], []).append(message)
    first, second = versions.values()
    assert 0 < len(first) < len(old)
    assert [message.payload for message in first] == old[: len(first)]
    assert [message.payload for message in second] == new
    for ours in (first, second):
        assert [message.record for message in ours] == list(range(1, len(ours) + 1))


# ---- topics


def test_keys_name_topics_and_partitions(program, bucket):
    expected = {}
    for topic in ("orders", "users.v2"):
        for partition in range(3):
            key = f"events/{topic}/{partition}-1717000000.jsonl"
            expected[key] = json_lines(key, 30 + partition)
            bucket.put(key, jsonl(expected[key]))
    bucket.put("events/readme.txt", b"no match\n")
    program.configure(
        naming={"template": "events/{{topic}}/{{partition}}-{{timestamp}}.jsonl", "distribution": "partition"},
        iggy={"topic": "lake-{{topic}}"},
    )
    ended = program.once()
    assert "filtered, not matched by the template: 1 object" in ended.err, ended.err
    for topic in ("orders", "users.v2"):
        messages = program.messages(f"lake-{topic}")
        check_exactly(messages, {key: payloads for key, payloads in expected.items() if f"/{topic}/" in key})
        for message in messages:
            assert f"/{message.partition}-" in message.key
    assert "0 records of 0 objects" in program.once().err


def test_keys_name_topics_and_it_is_killed(tmp_path, bucket, iggy_url, stream_name):
    topics = ("a", "b", "c")
    expected = {topic: {} for topic in topics}
    for number in range(18):
        topic = topics[number % 3]
        key = f"{topic}/{number}.jsonl"
        expected[topic][key] = json_lines(key, 900 + number)
        bucket.put(key, jsonl(expected[topic][key]))
    dice = chance("topics")
    for number in range(rounds(1)):
        folder = tmp_path / str(number)
        folder.mkdir()
        program = Program(folder, bucket, iggy_url, f"{stream_name}-{number}", naming={"template": "{{topic}}/{{key}}"})
        program.configure(**SLOW, runner={"tasks_max": 2}).configure(iggy={"topic": None})
        for _ in range(2):
            running = program.start("--once")
            target = program.count(topics[0]) + dice.randrange(2500)
            wait_for_count(program, target, running, topics[0])
            running.kill()
        program.configure(runner={"tasks_max": 1}).once()
        for topic in topics:
            check_exactly(program.messages(topic), expected[topic])
        program.close()


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made-anew"])
def test_a_data_topic_that_is_not_the_old_one_is_an_error_that_names_the_ways_out(program, bucket, again):
    expected = {"a.jsonl": json_lines("a", 20)}
    bucket.put("a.jsonl", jsonl(expected["a.jsonl"]))
    program.once()

    async def work(client):
        await client.delete_topic(program.stream, "records")
        if again:
            await client.create_topic(program.stream, "records", 3)

    with_client(program.url, work)
    ended = program.run("--once").no_secrets()
    assert ended.code == 3
    assert '"records"' in ended.said
    assert program.stream in ended.said
    assert "offsets reset --all" in ended.said
    assert "offsets accept-data-loss" in ended.said
    assert program.count() == 0
    assert program.run("offsets", "reset", "--all", "--yes").code == 0
    program.once()
    check_exactly(program.messages(), expected)
