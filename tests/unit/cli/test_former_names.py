"""Commands under the names that they had: they work, are not in --help, and warn on stderr; and so do options of a file."""

from __future__ import annotations

import json
import logging
import types
import warnings

import pytest

from framework.cli import offsets_commands, plan
from framework.cli import run as runs
from framework.cli.app import run
from framework.config.loading import ConfigWarning
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
    """What the commands would do, in place of it."""
    made = []

    def note(_task, path, **options):
        made.append((str(path), options))
        return 0

    monkeypatch.setattr(plan, "show_plan", note)
    monkeypatch.setattr(offsets_commands, "accept_topics", note)
    return made


def told(capsys, *arguments):
    code = run("s3_source", S3SourceTask, arguments)
    out, err = capsys.readouterr()
    assert (code, out) == (0, "")
    return err


@pytest.mark.parametrize(
    ("former", "new", "options"),
    [
        (("plan", "--afresh", "--json"), ("plan", "--ignore-offsets", "--json"), {"ignore_offsets": True}),
        (("offsets", "accept", "--yes"), ("offsets", "accept-data-loss", "--yes"), {"yes": True}),
    ],
    ids=["plan", "offsets"],
)
def test_a_command_under_its_former_name_does_the_same_and_warns(capsys, calls, former, new, options):
    assert told(capsys, *new, "--config", "a.toml") == ""
    old, name = " ".join(former[:2]), " ".join(new[:2])
    assert told(capsys, *former, "--config", "a.toml") == f"warning: {old}: now called {name}\n"
    assert calls[0] == calls[1]
    assert calls[0][1].items() >= options.items()
    # the file may also stand before the command
    assert told(capsys, "--config", "a.toml", *former) == f"warning: {old}: now called {name}\n"
    assert calls[0] == calls[2]


def test_a_plan_takes_the_offsets_into_account_unless_told(capsys, calls):
    assert told(capsys, "plan", "--config", "a.toml") == ""
    assert calls[0][1]["ignore_offsets"] is False


def test_help_names_the_new_names_only(capsys):
    for command, former, new in (("plan", "--afresh", "--ignore-offsets"), ("offsets", "accept ", "accept-data-loss ")):
        run("s3_source", S3SourceTask, [command, "--help"])
        out = capsys.readouterr().out
        assert new in out
        assert former not in out


@pytest.mark.filterwarnings("default::framework.config.loading.ConfigWarning")
@pytest.mark.parametrize("log", ["plain", "json"])
def test_a_former_name_in_a_file_is_a_line_on_stderr(capsys, monkeypatch, tmp_path, log):
    monkeypatch.setattr(runs, "run_engine", lambda *_, **__: types.SimpleNamespace(state="done"))
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
        return 0

    monkeypatch.setattr(plan, "show_plan", note)
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
        return 0

    monkeypatch.setattr(plan, "show_plan", note)
    before = logging.getLogger().handlers[:]
    first, second = told(capsys, "plan", "--config", "a.toml").splitlines()
    assert first == r"warning: 3 messages\nare gone"
    assert second.startswith("error: it failed at iggy://")
    assert "ValueError: invalid literal for int() with base 10: 'x' (the trace is in " in second
    assert logging.getLogger().handlers == before
