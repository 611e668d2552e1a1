"""The examples run as the documentation says: as programs of their own, against the embedded server."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.support.docs import ROOT, blocks
from tests.support.stopwatch import run_within

EXAMPLES = ROOT / "examples"


def run(*arguments, cwd):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    return run_within(60, [sys.executable, *map(str, arguments)], cwd=cwd, env=environment)


def folder_config(tmp_path):
    """The shipped configuration, run in a folder of its own."""
    shutil.copytree(EXAMPLES / "data", tmp_path / "examples" / "data")
    return EXAMPLES / "local_folder.toml"


def test_the_local_folder_source_sends_every_record_once(tmp_path):
    program, config = EXAMPLES / "local_folder.py", folder_config(tmp_path)
    for _ in range(2):
        done = run(program, "--config", config, "--once", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    (tmp_path / "examples" / "data" / "late.jsonl").write_text('{"late":true}\n')
    assert run(program, "--config", config, "--once", cwd=tmp_path).returncode == 0
    read = run(program, "read", "--config", config, cwd=tmp_path)
    records = [json.loads(line) for line in read.stdout.splitlines()]
    found = sorted((record["key"], record["record"]) for record in records)
    assert found == [
        ("late.jsonl", 1),
        ("notes.txt", 1),
        ("notes.txt", 2),
        ("weather.jsonl", 1),
        ("weather.jsonl", 2),
        ("weather.jsonl", 3),
    ]


def test_a_missing_folder_is_one_sentence_and_exit_3(tmp_path):
    text = (EXAMPLES / "local_folder.toml").read_text().replace('"examples/data"', '"nowhere"')
    (tmp_path / "c.toml").write_text(text)
    done = run(EXAMPLES / "local_folder.py", "--config", "c.toml", "--once", cwd=tmp_path)
    assert done.returncode == 3
    assert "nowhere: there is no such folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_mistake_in_the_folder_section_is_exit_2(tmp_path):
    text = (EXAMPLES / "local_folder.toml").read_text().replace("path =", "pth =")
    (tmp_path / "c.toml").write_text(text)
    done = run(EXAMPLES / "local_folder.py", "--config", "c.toml", "--once", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean path" in done.stderr


def test_the_library_example_reads_without_iggy(tmp_path):
    done = run(EXAMPLES / "library.py", EXAMPLES / "data", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        'record {"city":"Oslo","degrees":-3}',
        'record {"city":"Lima","degrees":19}',
        'record {"city":"Cairo","degrees":31}',
        "notes.txt records 1 to 2",
        "weather.jsonl records 1 to 3",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_library_that_ends_the_process_leaves_the_stack_of_each_thread(tasks, tmp_path):
    """With several tasks it is a worker that ends; what is started in its place would end likewise."""
    (tmp_path / "program.py").write_text(
        "from examples.shelf import *\nShelfStore.open = lambda *_: os.abort()\n"
        "from framework.engine import reconnect_policy\nreconnect_policy.FRUITLESS_RECOVERIES = 0\n"
        "if __name__ == '__main__':\n    main(ShelfTask)\n"
    )
    arguments = ("--config", EXAMPLES / "shelf.toml", "--set", f"runner.tasks_max={tasks}", "--once")
    shutil.copytree(EXAMPLES / "data", tmp_path / "examples" / "data")
    done = run("program.py", *arguments, cwd=tmp_path)
    assert done.returncode != 0
    assert "Fatal Python error: Aborted" in done.stderr
    assert f'File "{tmp_path}/program.py", line 2 in <lambda>' in done.stderr
    assert tasks == 1 or "was ended by SIGABRT: a library crashed, the stack trace is above" in done.stderr


def test_the_tutorial_builds_the_example_and_shows_what_it_writes(tmp_path):
    page = ROOT / "docs" / "tutorials" / "write-your-first-source.md"
    program, commands, shown = tmp_path / "examples" / "shelf.py", [], []
    shutil.copytree(EXAMPLES, program.parent, ignore=shutil.ignore_patterns("shelf.py"))
    program.write_text("\n".join(block.text for block in blocks(page) if block.info.startswith("python from")))
    for block in blocks(page):
        commands += block.text.splitlines() if block.info == "sh" and "pytest" not in block.text else []
        shown += [line for line in block.text.splitlines() if line != "..."] if block.info == "text" else []
    assert len(commands) > 5
    written = ""
    for command in commands:
        if command.startswith("echo "):
            subprocess.run(command, shell=True, check=True, cwd=tmp_path)
            continue
        done = run(*command.split()[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        written += done.stdout + done.stderr
    for line in shown:
        assert re.search(re.escape(line).replace("…", ".*"), written), line
