"""Commands of a source's program, which the API runs."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import attrs
import pytest

from framework.runtime import commands
from framework.runtime.commands import CommandError, run_command
from tests.unit.runtime.rig import read, text


def program(tmp_path, code):
    """A configuration whose program is a few lines of Python."""
    path = tmp_path / "orders.toml"
    path.write_text(text())
    made = read(path, settings=("iggy.topic=other",))
    return attrs.evolve(made, kind=attrs.evolve(made.kind, arguments=("-c", f"import sys\n{code}")))


def test_a_command_gets_its_words_its_file_and_its_overrides(tmp_path):
    lines = run_command(program(tmp_path, "print(*sys.argv[1:], sep='\\n')"), ["offsets", "export"])
    file = str(tmp_path / "orders.toml")
    words = ["offsets", "export", "--config", file, "--set", "iggy.topic=other"]
    assert [line.decode() for line in lines] == ["--content-on-stdin", *words]


def test_a_command_gets_the_content_that_was_read_whatever_its_files_hold_by_now(tmp_path):
    path, common = tmp_path / "orders.toml", tmp_path / "common.toml"
    common.write_text('[discovery]\nmodified_after = 2026-01-02T03:04:05Z\npoll_interval = "7s"\n')
    path.write_text(text(head='include = ["common.toml"]\n'))
    made = read(path)
    assert made.mistake == ""
    path.write_text("[source\nname = ")
    common.write_text("")
    lines = [line.decode() for line in run_command(made, ["config", "show"])]
    assert "[iggy]" in lines
    assert any(line.startswith('topic = "orders"') and str(path) in line for line in lines)
    assert any(line.startswith("poll_interval") and line.endswith(str(common)) for line in lines)


def test_a_command_has_the_options_of_the_workers_python(tmp_path):
    """Among them is `-P`: without it a file of the working directory could stand in for a package of the program."""
    script = (
        "from pathlib import Path; from framework.runtime.commands import run_command; "
        "from tests.unit.runtime.test_commands import program; "
        f"print(run_command(program(Path({str(tmp_path)!r}), 'print(sys.flags.optimize)'), ['offsets']))"
    )
    command = [sys.executable, "-O", "-c", script]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout
    assert said == "[b'1']\n"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("error: cannot connect: connect error: refused", "cannot connect: connect error: refused"),
        ("warning: an error: no\nerror: two mistakes\n  the second", "two mistakes\n  the second"),
        ("Fatal Python error: bus", "Fatal Python error: bus"),
        ("", "offsets ended with exit code 3"),
    ],
)
def test_the_whole_sentence_of_a_failure_is_told(tmp_path, written, said):
    with pytest.raises(CommandError) as caught:
        run_command(program(tmp_path, f"sys.stderr.write({written!r})\nsys.exit(3)"), ["offsets", "export"])
    assert (caught.value.exit_code, caught.value.message) == (3, said)


def test_more_lines_than_wanted_end_it(tmp_path):
    lines = run_command(program(tmp_path, "while True: print(7)"), ["offsets"], max_lines=5)
    assert lines == [b"7"] * 5


def test_a_command_that_stands_still_is_ended(tmp_path):
    with pytest.raises(CommandError, match="did not end within") as caught:
        run_command(
            program(tmp_path, "sys.stdin = open('/dev/null')\nimport time\ntime.sleep(3600)"),
            ["offsets"],
            limit_seconds=0.2,
        )
    assert caught.value.exit_code == 1


def test_what_runs_when_the_worker_stops_is_ended_and_said(tmp_path):
    """A reset that goes on alone would be done after its request had failed."""
    said = []

    def run():
        with pytest.raises(CommandError) as caught:
            run_command(program(tmp_path, "import time\ntime.sleep(3600)"), ["offsets", "reset"])
        said.append(caught.value)

    thread = threading.Thread(target=run)
    thread.start()
    while not commands._processes:
        time.sleep(0.01)
    (process,) = commands._processes
    commands.end_commands()
    thread.join(30)
    assert [(one.exit_code, one.message) for one in said] == [(1, "offsets was ended, since the worker stops")]
    assert process.returncode == -signal.SIGKILL
    assert not commands._processes
    commands.end_commands()


def test_a_command_that_cannot_be_started_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    with pytest.raises(CommandError, match="offsets cannot be started: No such file"):
        run_command(program(tmp_path, ""), ["offsets"])


def test_more_commands_than_allowed_are_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "_running", threading.BoundedSemaphore(1))
    assert commands._running.acquire(blocking=False)
    with pytest.raises(CommandError, match="try again") as caught:
        run_command(program(tmp_path, ""), ["offsets"])
    assert caught.value.exit_code == 1
    commands._running.release()
    assert run_command(program(tmp_path, ""), ["offsets"]) == []
