"""The other commands, the log lines, and the progress bar on a terminal."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest

from framework.testing.servers.ports import free_port
from tests.integration.program_rig import ROOT, Program, check_exactly, fill, json_lines, jsonl, wait_until, with_client
from tests.support.stopwatch import Stopwatch


@pytest.fixture
def program(tmp_path, moto_bucket, iggy_url, stream_name):
    made = Program(tmp_path, moto_bucket, iggy_url, stream_name)
    yield made
    made.close()


# ---- check


def steps(ended):
    """(well or not, step, rest) of each line."""
    return [re.fullmatch(r"(ok  |FAIL) (\S+) +(.*)", line).groups() for line in ended.out.splitlines()]


def test_check_says_a_line_for_each_thing_and_makes_nothing(program, moto_bucket):
    moto_bucket.put("a.jsonl", b"{}\n")
    ended = program.run("check").no_secrets()
    assert ended.code == 0, ended
    assert [(well.strip(), step) for well, step, _ in steps(ended)] == [
        ("ok", "configuration"),
        ("ok", "engine"),
        ("ok", "credentials"),
        ("ok", "bucket"),
        ("ok", "read"),
        ("ok", "selection"),
        ("ok", "records"),
        ("ok", "iggy"),
        ("ok", "topic"),
        ("ok", "topic"),
        ("ok", "permissions"),
        ("ok", "positions"),
    ]
    assert f"s3://{moto_bucket.name}" in ended.out
    assert "will be made" in ended.out
    with pytest.raises(AssertionError, match="no stream"):
        with_client(program.url, lambda client: stream_of(client, program.stream))
    program.once()
    ended = program.run("check")
    assert ended.code == 0
    assert '"records"' in ended.out
    assert "3 partitions, as configured" in ended.out


async def stream_of(client, name):
    found = await client.get_stream(name)
    assert found is not None, "no stream"


@pytest.mark.parametrize(
    ("changes", "step", "names", "code"),
    [
        ({"s3": {"bucket": "no-such-bucket"}}, "bucket", "no-such-bucket", 3),
        ({"s3": {"endpoint": "http://127.0.0.1:1"}}, "bucket", "127.0.0.1:1", 1),
        ({"iggy": {"url": "iggy://iggy:drowssap@127.0.0.1:1"}}, "iggy", "127.0.0.1:1", 1),
        ({"iggy": {"partitions": 7}}, "topic", "7", 3),
        ({"iggy": {"topic": "missing", "create_topics": False}}, "topic", "missing", 3),
    ],
    ids=str,
)
def test_check_fails_with_the_thing_that_is_wrong_and_looks_at_the_rest(
    program, moto_bucket, changes, step, names, code
):
    moto_bucket.put("a.jsonl", b"{}\n")
    program.once()
    program.configure(**changes)
    ended = program.run("check").no_secrets()
    assert ended.code == code
    assert ended.seconds < 10
    failed = [(found, rest) for well, found, rest in steps(ended) if well == "FAIL"]
    assert [found for found, _ in failed] == [step]
    assert names in failed[0][1]
    assert ended.out.startswith("ok   configuration")
    assert step == "iggy" or "ok   iggy" in ended.out


def test_check_names_a_wrong_password(program, iggy_url):
    program.configure(iggy={"url": iggy_url.replace(":iggy@", ":drowssap@")})
    ended = program.run("check").no_secrets()
    assert ended.code == 3
    assert "FAIL iggy" in ended.out


# ---- read


def test_read_writes_a_json_line_for_each_record(program, moto_bucket):
    key = "long " + "é🛫" * 100 + ".jsonl"
    expected = {"a.jsonl": json_lines("a", 30), key: json_lines("b", 20)}
    for name, payloads in expected.items():
        moto_bucket.put(name, jsonl(payloads))
    program.once()
    ended = program.run("read").no_secrets()
    assert ended.code == 0
    lines = ended.lines
    assert len(lines) == 50
    for name, payloads in expected.items():
        ours = [line for line in lines if line["key"] == name]
        assert [line["record"] for line in ours] == list(range(1, len(payloads) + 1))
        assert [line["payload"] for line in ours] == [json.loads(payload) for payload in payloads]
    messages = {(message.partition, message.offset): message for message in program.messages()}
    for line in lines:
        message = messages.pop((line["partition"], line["offset"]))
        assert line["id"] == f"{message.id:032x}"
        assert line["topic"] == "records"
        assert line["bucket"] == moto_bucket.name
        assert line["version"] == message.headers["version"]
    assert not messages


def test_read_takes_a_partition_an_offset_and_a_limit(program, moto_bucket):
    for number in range(12):
        moto_bucket.put(f"{number}.jsonl", jsonl(json_lines(str(number), 10)))
    program.once()
    every = program.run("read").lines
    for partition in range(3):
        ours = [line for line in every if line["partition"] == partition]
        assert program.run("read", "--partition", str(partition)).lines == ours
        assert program.run("read", "--partition", str(partition), "--offset", "7").lines == ours[7:]
        assert program.run("read", "--partition", str(partition), "--offset", "7", "--limit", "2").lines == ours[7:9]
    assert program.run("read", "--limit", "5").lines == every[:5]
    assert program.run("read", "--offset", "1000").lines == []


def test_read_shows_what_is_no_json_and_no_text(program, moto_bucket):
    moto_bucket.put("a.bin", b"plain text" + b"\xff\x00\xfe")
    program.configure(input={"format": "bytes", "chunk_size": 10}).once()
    first, second = program.run("read").lines
    assert first["payload"] == "plain text"
    assert second["payload_base64"] == "/wD+"


@pytest.mark.parametrize(
    ("arguments", "names"),
    [(("--partition", "3"), "partitions 0 to 2"), (("--topic", "elsewhere"), ": check --topic")],
    ids=str,
)
def test_read_says_what_is_not_there(program, moto_bucket, arguments, names):
    moto_bucket.put("a.jsonl", b"{}\n")
    program.once()
    ended = program.run("read", *arguments).no_secrets()
    assert ended.code == 3
    assert names in ended.said


@pytest.mark.parametrize("value", ["-1", "x"])
def test_read_refuses_a_partition_that_is_no_number(program, value):
    assert program.run("read", "--partition", value).code == 2


def test_read_into_a_pipe_that_closes_ends_without_a_word(program, moto_bucket):
    moto_bucket.put("a.jsonl", jsonl(json_lines("a", 20_000, 200)))
    program.once()
    command = [sys.executable, "-m", "s3_source", "read", "--config", str(program.path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert json.loads(process.stdout.readline())["offset"] == 0
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(60) == 0
    assert said == b""


# ---- what it writes while it runs


@pytest.mark.parametrize("form", ["plain", "json", "auto"])
@pytest.mark.parametrize("well", [True, False])
def test_log_lines(program, moto_bucket, form, well):
    moto_bucket.put("odd \n🛫.jsonl".replace("\n", ""), b'{"a":1}\nno json\n')
    program.configure(log={"format": form, "level": "debug"}, errors={"tolerance": "skip_record" if well else "none"})
    ended = program.run("--once").no_secrets()
    assert ended.code == (0 if well else 3)
    assert ended.out == ""
    lines = ended.err.splitlines()
    if not well:
        last = lines.pop()
        assert (json.loads(last)["message"] if form == "json" else last.removeprefix("error: ")).startswith("s3://")
    for line in lines:
        if form == "json":
            found = json.loads(line)
            assert {"time", "level", "message"} <= found.keys(), line
        else:
            assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) ", line), line
    assert any("sent 1 record of" in line for line in lines)


def test_json_lines_carry_the_figures(program, moto_bucket):
    fill(moto_bucket, 3, forms=("jsonl",))
    ended = program.configure(log={"format": "json"}).once()
    (found,) = [line for line in map(json.loads, ended.err.splitlines()) if line["message"] == "progress"]
    assert (found["objects_done"], found["objects_total"]) == (3, 3)
    assert found["records"] == program.count()
    assert found["bytes_done"] == found["bytes_total"] > 0


def on_a_terminal(program, *arguments, columns=150):
    """Everything that a terminal of so many columns is told."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "s3_source", *program.command(arguments)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "LINES": "30"}
    told = bytearray()
    with subprocess.Popen(
        command, cwd=ROOT, stdin=follower, stdout=follower, stderr=follower, env=environment
    ) as process:
        os.close(follower)
        watch = Stopwatch()
        while watch.seconds < 60:
            if select.select([leader], [], [], 0.1)[0]:
                try:
                    data = os.read(leader, 65_536)
                except OSError:  # how Linux says that the other end is closed
                    break
                if not data:
                    break
                told += data
        os.close(leader)
        return process.wait(60), told.decode(errors="replace")


def test_a_terminal_shows_objects_bytes_records_rate_and_time_left(program, moto_bucket):
    expected = fill(moto_bucket, 40, forms=("jsonl",), least=600)
    program.configure(log={"format": "auto"}, iggy={"batch_length": 31, "linger_time": 0})
    code, told = on_a_terminal(program, "--once")
    assert code == 0, told
    assert re.search(r"\d+/40", told), told[-2000:]
    assert re.search(r"\d+(\.\d+)?/\d+(\.\d+)? (kB|MB|GB)", told)
    assert re.search(r"[\d,]+ records", told)
    assert re.search(r"[\d,]+/s", told)
    assert re.search(r"\d+:\d\d left", told)
    assert f"{sum(map(len, expected.values())):,} records of 40 objects" in told
    assert "Traceback" not in told
    check_exactly(program.messages(), expected, same=json.loads)


def test_metrics_answer_while_it_runs(program, moto_bucket):
    import urllib.request

    expected = sum(map(len, fill(moto_bucket, 3, forms=("jsonl",)).values()))
    port = free_port()
    running = program.configure(metrics={"address": f"127.0.0.1:{port}"}).start()
    total = None
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and total != expected:
        if program.count():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                found = re.search(r"(?m)^\w*records\w*_total\{[^}]*\} (\S+)$", answer.read().decode())
                total = int(float(found[1])) if found else None
    assert total == program.count() == expected
    assert running.stop().no_secrets().code == 0


def test_a_taken_metrics_address_is_one_sentence(program, moto_bucket, iggy_url):
    taken = iggy_url.rpartition("@")[2]
    ended = program.configure(metrics={"address": taken}).run("--once").no_secrets()
    assert ended.code in (1, 2)
    assert taken in ended.said


@pytest.mark.usefixtures("short_look")
def test_two_instances_may_have_one_metrics_address(program, moto_bucket):
    """It is bound by the instance that is at work: the other one is told of that, and not of the port."""
    import urllib.request

    fill(moto_bucket, 1, forms=("jsonl",))
    port = free_port()
    program.configure(metrics={"address": f"127.0.0.1:{port}"})

    def is_ready():
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60) as answer:
                return answer.status == 200
        except OSError:
            return False

    first = program.start()
    wait_until(is_ready)
    ended = program.run("--once")
    assert ended.code == 1
    assert "--take-over" in ended.err
    assert "cannot listen" not in ended.err
    second = program.start("--take-over")
    assert first.wait().code == 3
    wait_until(is_ready)
    assert "cannot listen" not in second.err
    assert second.stop().no_secrets().code == 0


def test_status_says_why_an_object_stays_reading(program, moto_bucket):
    """Stopped at a bad record, and then excluded, as the message of the stop advises."""
    moto_bucket.put("in/a.jsonl", jsonl([b'{"n":1}', b"- bad"]))
    moto_bucket.put("in/b.jsonl", jsonl([b'{"n":1}']))
    assert program.run("--once").code == 3
    assert "filtered or gone" not in program.run("status").out
    program.configure(discovery={"exclude": ["in/a.jsonl"]}).once()
    said = (
        f"begun, and now filtered or gone: 1 object, {moto_bucket.name}/in/a.jsonl; each counts as reading, and is read "
        f"further only if a listing gives it again\n"
    )
    assert program.run("status").out.endswith(said)
    counts = json.loads(program.run("status", "--json").out)
    assert (counts["positions"]["reading"], counts["lag"]["objects"], counts["unselected"]) == (1, 0, 1)
    assert json.loads(program.run("status", "--json", "--no-list").out)["unselected"] is None
    program.configure(discovery={"exclude": []}, input={"validate": False}).once()
    assert [message.record for message in program.messages() if message.key == "in/a.jsonl"] == [1, 2]
    assert json.loads(program.run("status", "--json").out)["unselected"] == 0


def test_no_output_gives_the_terminal_orders_of_a_key_or_a_record(program, moto_bucket):
    evil = "in/FORGED\x1b]0;t\x07\x9b2J\x7f\u202e"
    moto_bucket.put(evil + ".jsonl", json.dumps({"text": evil}, ensure_ascii=False).encode() + b"\n")
    moto_bucket.put(evil + "bad.jsonl", b"- " + evil.encode() + b"\n")
    program.configure(errors={"tolerance": "skip_record", "dead_letter_topic": "dead"})
    program.run("plan")
    program.once()
    commands = [
        ("read",),
        ("plan",),
        ("status",),
        ("check",),
        ("plan", "--json"),
        ("status", "--json"),
        ("offsets", "show", "--all"),
        ("offsets", "show", "--all", "--json"),
        ("offsets", "export"),
        ("dead-letter", "show"),
        ("dead-letter", "show", "--json"),
        ("dead-letter", "replay", "--all", "--dry-run"),
    ]
    ended = [program.run(*command) for command in commands]
    program.configure(errors={"tolerance": "none", "dead_letter_topic": None})
    program.run("offsets", "reset", "--all", "--yes")
    ended.append(program.run("--once"))
    assert ended[-1].code == 3
    assert "FORGED" in ended[-1].err
    assert sum("FORGED" in one.out for one in ended) >= 5
    for one in ended:
        for line in (one.out + one.err).split("\n"):
            assert line.isprintable(), line


def test_help_names_every_command(program):
    ended = program.run("--help", config=False)
    assert ended.code == 0
    for name in ("check", "read", "--once", "--config"):
        assert name in ended.out
