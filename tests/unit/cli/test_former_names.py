"""Commands under the names that they had: they work, are not in --help, and warn on stderr; and so do options of a file."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import types
import warnings

import pytest

from framework.cli import offsets_commands, plan, program
from framework.cli.app import run
from framework.config.loading import ConfigWarning
from framework.engine import dry_run, inspection, positions_admin
from s3_source.task import S3SourceTask

FILE = """
[source]
name = "orders"
[s3]
bucket = "lake"
native_start_key = "in/a"
[input]
format = "jsonl"
[iggy]
url = "iggy://u:p@127.0.0.1:1"
stream = "lake"
topic = "orders"
[discovery]
mode = "after"
[log]
format = "{log}"
"""

USED = [
    "[s3] native_start_key: now called start_after.",
    '[discovery] mode = "after": now called "incremental".',
]


@pytest.fixture
def calls(monkeypatch):
    """What the commands would do, in place of it: each with the file, and whether the positions were read."""
    made = []

    def plan_of(_task, file, found):
        made.append((str(file.path), found))
        return dry_run.DryRun()

    def accept(_connection, file, *, numbering_options):
        made.append((str(file.path), numbering_options))
        return positions_admin.AdminResult(epoch=2, positions=3)

    monkeypatch.setattr(program, "load_source", lambda _task, file: types.SimpleNamespace(config=file))
    monkeypatch.setattr(plan, "is_new", lambda _config: False)
    monkeypatch.setattr(offsets_commands, "_numbering_options", lambda _config: "options")
    for module in (plan, offsets_commands):
        monkeypatch.setattr(module, "reached", contextlib.nullcontext)
    monkeypatch.setattr(inspection, "inspect", lambda *_, **__: "positions")
    monkeypatch.setattr(dry_run, "dry_run", plan_of)
    monkeypatch.setattr(positions_admin, "accept_changes", accept)
    return made


def answer(capsys, *arguments):
    code = run("s3_source", S3SourceTask, arguments)
    out, err = capsys.readouterr()
    assert code == 0
    return out, err


def told(capsys, *arguments):
    return answer(capsys, *arguments)[1]


@pytest.mark.parametrize(
    ("former", "new", "call"),
    [
        (("plan", "--afresh", "--json"), ("plan", "--ignore-offsets", "--json"), ("a.toml", None)),
        (("offsets", "accept", "--yes"), ("offsets", "accept-data-loss", "--yes"), ("a.toml", "options")),
    ],
    ids=["plan", "offsets"],
)
def test_a_command_under_its_former_name_does_the_same_and_warns(capsys, calls, former, new, call):
    out, err = answer(capsys, *new, "--config", "a.toml")
    assert out
    assert err == ""
    old, name = " ".join(former[:2]), " ".join(new[:2])
    assert answer(capsys, *former, "--config", "a.toml") == (out, f"warning: {old}: now called {name}\n")
    # the file may also stand before the command
    assert answer(capsys, "--config", "a.toml", *former) == (out, f"warning: {old}: now called {name}\n")
    assert calls == [call] * 3


def test_a_plan_takes_the_offsets_into_account_unless_told(capsys, calls):
    assert told(capsys, "plan", "--config", "a.toml") == ""
    assert calls == [("a.toml", "positions")]


def test_help_names_the_new_names_only(capsys):
    for command, former, new in (("plan", "--afresh", "--ignore-offsets"), ("offsets", "accept ", "accept-data-loss ")):
        run("s3_source", S3SourceTask, [command, "--help"])
        out = capsys.readouterr().out
        assert new in out
        assert former not in out


@pytest.mark.filterwarnings("default::framework.config.loading.ConfigWarning")
@pytest.mark.parametrize("log", ["plain", "json"])
def test_a_former_name_in_a_file_is_a_line_on_stderr(capsys, monkeypatch, tmp_path, log):
    ended = types.SimpleNamespace(state="done")
    monkeypatch.setattr(importlib.import_module("framework.cli.run"), "run_engine", lambda *_, **__: ended)
    file = tmp_path / "a.toml"
    file.write_text(FILE.format(log=log))
    lines = told(capsys, "--once", "--config", str(file)).splitlines()
    if log == "json":
        rows = [json.loads(line) for line in lines]
        assert {row["level"] for row in rows} == {"warning"}
        assert [row["message"] for row in rows] == USED
    else:
        assert lines == [f"warning: {line}" for line in USED]


@pytest.mark.filterwarnings("default::UserWarning", "default::framework.config.loading.ConfigWarning")
def test_other_warnings_are_lines_too(capsys, calls, monkeypatch):
    def note(*_, **__):
        warnings.warn("something else", UserWarning, stacklevel=1)
        warnings.warn("[s3] kind: now called style.", ConfigWarning, stacklevel=1)
        return dry_run.DryRun()

    monkeypatch.setattr(dry_run, "dry_run", note)
    before = warnings.showwarning
    lines = told(capsys, "plan", "--config", "a.toml").splitlines()
    assert lines == ["warning: UserWarning: something else", "warning: [s3] kind: now called style."]
    assert warnings.showwarning is before


def test_what_a_command_logs_is_a_line_that_says_how_grave_it_is(capsys, calls, monkeypatch):
    """As the dead letters that cannot be shown; an exception keeps its traceback in a file."""

    def note(*_, **__):
        logging.getLogger("framework.something").info("not shown")
        logging.getLogger("framework.something").warning("%d messages\nare gone", 3)
        try:
            int("x")
        except ValueError:
            logging.getLogger("a_library").exception("it failed at iggy://user:secret@host")
        return dry_run.DryRun()

    monkeypatch.setattr(dry_run, "dry_run", note)
    before = logging.getLogger().handlers[:]
    first, second = told(capsys, "plan", "--config", "a.toml").splitlines()
    assert first == r"warning: 3 messages\nare gone"
    assert second.startswith("error: it failed at iggy://")
    assert "ValueError: invalid literal for int() with base 10: 'x' (the trace is in " in second
    assert logging.getLogger().handlers == before
