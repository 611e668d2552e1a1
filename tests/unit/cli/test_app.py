"""The program and its surroundings: streams that are closed, full or narrow, and an early Ctrl-C."""

from __future__ import annotations

import errno
import importlib
import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from framework.cli import version
from framework.cli.app import run
from framework.errors import FatalError, StoreUnavailableError
from s3_source.demo import demo
from s3_source.task import S3SourceTask

ROOT = Path(__file__).parents[3]
PROGRAM = f"{sys.executable} -P -m s3_source" if sys.version_info >= (3, 11) else f"{sys.executable} -m s3_source"
CONFIG = """
[source]
name = "orders"
[s3]
bucket = "lake"
prefix = "h€/"
endpoint = "http://127.0.0.1:1"
[input]
format = "jsonl"
[iggy]
url = "iggy://iggy:iggy@127.0.0.1:1"
stream = "lake"
topic = "orders"
"""


@pytest.fixture
def shell(tmp_path):
    (tmp_path / "s3.toml").write_text(CONFIG, encoding="utf-8")

    def start(line, **environment):
        return subprocess.run(
            ["/bin/sh", "-c", line.replace("s3_source", PROGRAM)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=60,
        )

    return start


@pytest.mark.parametrize(
    ("command", "code", "closed"),
    [
        *(("config show -c s3.toml", 0, closed) for closed in (">&-", "2>&-", "<&-", "<&- >&- 2>&-")),
        *(
            ("config show -c missing.toml", 2, closed) for closed in ("2>&-", "<&- >&- 2>&-")
        ),  # it writes to stderr alone
    ],
)
def test_a_closed_stream_changes_no_exit_code(shell, command, code, closed):
    """As under a daemon manager that closes them: nothing may take the number of a stream, and no flush may fail."""
    done = shell(f"s3_source {command} {closed}")
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert "unexpected" not in done.stderr


@pytest.mark.parametrize(
    "command", ["--version", "--help", "config schema", "config show -c s3.toml", "check -c s3.toml"]
)
def test_a_full_output_is_one_sentence(shell, tmp_path, command):
    done = shell(f"s3_source {command} >/dev/full")
    assert done.returncode == 1
    assert done.stderr == "error: stdout cannot be written: No space left on device\n"
    assert not list(tmp_path.glob("iggy-cloud-sources-*"))


def test_an_error_that_cannot_be_written_keeps_its_exit_code(shell):
    assert shell("s3_source config show -c missing.toml 2>/dev/full").returncode == 2


@pytest.mark.parametrize("command", ["config schema", "check -c s3.toml"])
def test_a_reader_that_has_seen_enough_is_no_failure(tmp_path, command):
    (tmp_path / "s3.toml").write_text(CONFIG, encoding="utf-8")
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*PROGRAM.split(), *command.split()],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_terminal_of_another_encoding_shows_escapes(shell):
    done = shell("s3_source config show -c s3.toml", PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stderr) == (0, "")
    assert r'prefix = "h\u20ac/"' in done.stdout


EARLY = """
import os, runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background process ignores it
for name in ("typing", "pathlib"):  # they take milliseconds, and a new process has not loaded them
    sys.modules.pop(name, None)
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "%s":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
sys.argv = ["s3_source", "--version"]
runpy.run_module("%s", run_name="__main__")
"""


@pytest.mark.parametrize("module", ["typing", "pathlib", "framework.cli"])
@pytest.mark.parametrize("program", ["s3_source", "gcs_source"])
def test_an_interrupt_while_modules_load_is_no_traceback(program, module):
    script = EARLY % (module, program)
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


FIRST_PROCESS = """
import os, runpy, signal
os.getpid = lambda: 1
import framework.cli
def run(*_, **__):
    for one in (signal.SIGTERM, signal.SIGINT):
        assert callable(signal.getsignal(one)), "the kernel would ignore it"
    signal.raise_signal(signal.%s)
    print("went on")
framework.cli.run = run
runpy.run_module("%s", run_name="__main__")
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("program", ["s3_source", "gcs_source"])
def test_a_signal_while_modules_load_ends_also_the_first_process_of_a_container(program, name):
    script = FIRST_PROCESS % (name, program)
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.Signals[name], "", "")


@pytest.mark.parametrize("program", ["s3_source", "gcs_source"])
def test_a_python_without_our_packages_is_named(program):
    without_packages = [sys.executable, "-S", "-m", program, "--version"]
    done = subprocess.run(without_packages, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, "")
    assert re.fullmatch(
        rf"error: {re.escape(sys.executable)} has no package \w+: start .* \.venv/bin/python.*\n", done.stderr
    )


LATER = """
import signal, sys
import typer
from framework.cli.app import run
from framework.cli import version
from s3_source.task import S3SourceTask
signal.signal(signal.SIGINT, signal.SIG_DFL)
interrupt = lambda *_, **__: signal.raise_signal(signal.SIGINT)
%s
sys.exit(run("s3_source", S3SourceTask, ["--version"]))
"""


IN_A_CLASS = "type('Name', (), {'__set_name__': interrupt})()"


@pytest.mark.parametrize(
    "moment",
    [
        "version.version_lines = interrupt",
        "typer.main.get_group_from_info = interrupt",
        f"version.version_lines = lambda _: type('Made', (), {{'name': {IN_A_CLASS}}})",
    ],
)
def test_an_interrupted_command_ends_with_130(moment):
    """Also while typer makes the commands: that takes a tenth of a second, on a busy machine a whole one."""
    done = subprocess.run([sys.executable, "-c", LATER % moment], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(("answer", "code"), [(KeyboardInterrupt, 130), (EOFError, 1)])
def test_ctrl_c_at_a_question_is_an_interrupt_and_ctrl_d_declines(monkeypatch, answer, code):
    class Terminal(io.StringIO):
        def readline(self, *_):
            raise answer

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(version, "version_lines", lambda _: typer.confirm("Sure?"))
    assert run("s3_source", S3SourceTask, ["--version"]) == code


def test_the_commands_are_made_once_in_a_process(monkeypatch, capsys):
    """A tenth of a start goes into that: tests run a thousand commands, and programs that are forks have them already."""
    assert run("s3_source", S3SourceTask, ["--version"], demo=demo) == 0
    monkeypatch.setattr("typer.main.get_group_from_info", None)
    assert run("s3_source", S3SourceTask, ["--version"], demo=demo) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]


def test_a_broken_pipe_that_is_not_stdout_is_reported(monkeypatch, capsys):
    def fail(_program):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(version, "version_lines", fail)
    assert run("s3_source", S3SourceTask, ["--version"]) == 1
    assert "error: unexpected BrokenPipeError: [Errno 32] Broken pipe; the trace is in " in capsys.readouterr().err


def test_the_end_of_some_file_is_an_error_like_any_other(monkeypatch, tmp_path, capsys):
    """typer takes it for a question without an answer, and ends without a word."""

    def fail(*_, **__):
        raise EOFError("marshal data too short")  # a compiled module that was cut short

    monkeypatch.setattr(importlib.import_module("framework.cli.run"), "run_engine", fail)
    (tmp_path / "s3.toml").write_text(CONFIG, encoding="utf-8")
    assert run("s3_source", S3SourceTask, ["--config", str(tmp_path / "s3.toml")]) == 1
    assert "error: unexpected EOFError: marshal data too short; the trace is in " in capsys.readouterr().err


class PanicException(BaseException):
    """What Iggy's client raises, for example when no file can be opened any more."""


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (
            RuntimeError("can't start new thread"),
            "can't start new thread; raise the limit of threads (ulimit -u, TasksMax",
        ),
        (
            UnicodeEncodeError("ascii", "./d\u00e4", 3, 4, "ordinal not in range(128)"),
            "ordinal not in range(128); set PYTHONUTF8=1, or a locale of UTF-8 (LC_ALL=C.UTF-8); ",
        ),
        (MemoryError(), "unexpected MemoryError; give the program more memory, or lower [runner] tasks_max, [input]"),
        (ImportError("a.so: failed to map segment from"), "segment from; give the program more memory, or lower ["),
        (
            OSError(errno.ENOMEM, "Cannot allocate memory: not enough memory"),
            (
                "not enough memory; give the program more memory, or lower [runner] tasks_max, [input] prefetch_bytes and "
                "queue_bytes, and [iggy] batch_bytes; the trace is in "
            ),
        ),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files; raise the limit of open files (ulimit -n"),
        (PanicException('message: "Too many open files"'), 'files"; raise the limit of open files (ulimit -n'),
    ],
    ids=["threads", "locale", "memory", "memory of a library", "memory of the system", "files", "files of a library"],
)
def test_a_limit_of_the_machine_is_named_with_the_way_to_raise_it(failure, said, monkeypatch, tmp_path, capsys):
    def fail(*_, **__):
        raise failure

    monkeypatch.setattr(importlib.import_module("framework.cli.run"), "run_engine", fail)
    (tmp_path / "s3.toml").write_text(CONFIG, encoding="utf-8")
    assert run("s3_source", S3SourceTask, ["--config", str(tmp_path / "s3.toml")]) == 1
    err = capsys.readouterr().err
    assert said in err
    assert "; the trace is in " in err


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (
            StoreUnavailableError("s3://b: [Errno 24] Too many open files"),
            "files; raise the limit of open files (ulimit -n",
        ),
        (
            FatalError("[Errno 2] No usable temporary directory found in ['/tmp']"),
            "; set TMPDIR to a folder that can be w",
        ),
    ],
)
def test_such_a_limit_behind_an_error_of_its_own_has_the_same_way_out(failure, said, monkeypatch, tmp_path, capsys):
    def fail(*_, **__):
        raise failure

    monkeypatch.setattr(importlib.import_module("framework.cli.run"), "run_engine", fail)
    (tmp_path / "s3.toml").write_text(CONFIG, encoding="utf-8")
    assert run("s3_source", S3SourceTask, ["--config", str(tmp_path / "s3.toml")]) == failure.exit_code
    assert said in capsys.readouterr().err


def test_a_trace_that_no_folder_takes_is_said_with_the_way_out(monkeypatch, tmp_path, capsys):
    """As in a container that is read-only."""

    def fail(*_, **__):
        raise KeyError("x")

    def no_folder():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(importlib.import_module("framework.cli.run"), "run_engine", fail)
    monkeypatch.setattr(importlib.import_module("tempfile"), "gettempdir", no_folder)
    (tmp_path / "s3.toml").write_text(CONFIG, encoding="utf-8")
    assert run("s3_source", S3SourceTask, ["--config", str(tmp_path / "s3.toml")]) == 1
    err = capsys.readouterr().err
    assert "could not be written: No usable temporary directory found in ['/tmp']; set TMPDIR to a folder that" in err


def test_a_panic_of_a_library_is_an_error_like_any_other(monkeypatch, tmp_path, capsys):
    def fail(*_, **__):
        raise PanicException("failed to create UnixStream")

    monkeypatch.setattr(importlib.import_module("framework.cli.run"), "run_engine", fail)
    (tmp_path / "s3.toml").write_text(CONFIG, encoding="utf-8")
    assert run("s3_source", S3SourceTask, ["--config", str(tmp_path / "s3.toml")]) == 1
    assert "error: unexpected PanicException: failed to create UnixStream; the trace is in " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--config"], "the configuration file cannot be read: File name too long"),
        (["check", "--config"], "the configuration file cannot be read: File name too long"),
        (["worker", "--config-dir", ".", "--config"], "the configuration file cannot be read: File name too long"),
        (["worker", "--config-dir"], "cannot be read: File name too long"),
    ],
)
def test_a_path_that_the_system_refuses_is_a_mistake_of_the_configuration(arguments, said, capsys):
    """As it refuses one in a folder that the user may not enter, where root may: a supervisor would try again, for ever."""
    assert run("s3_source", S3SourceTask, [*arguments, "a" * 300]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["status"], ["plan"], ["offsets", "show"], ["check"]])
def test_a_folder_of_the_configuration_that_the_system_refuses_is_named(arguments, tmp_path, capsys):
    long = "a" * 300
    content = CONFIG.replace("iggy://iggy:iggy@127.0.0.1:1", f"embedded:{long}")
    content += f'[runner]\nengine = "local"\n[http]\nenabled = true\naddress = "127.0.0.1:0"\nstate_dir = "{long}"\n'
    (tmp_path / "s3.toml").write_text(content, encoding="utf-8")
    settings = ["--set", "s3.max_attempts=1", "--set", "s3.access_key_id=a", "--set", "s3.secret_access_key=b"]
    assert run("s3_source", S3SourceTask, [*arguments, "--config", str(tmp_path / "s3.toml"), *settings]) == 3
    said = "".join(capsys.readouterr())
    assert f"[iggy] url: the folder {long} cannot be read: File name too long" in said
    assert "unexpected" not in said


@pytest.mark.parametrize("arguments", [["s3.toml"], ["check", "s3.toml"], ["offsets", "show", "s3.toml"]])
def test_a_configuration_without_its_option_is_told_the_option(arguments, capsys):
    assert run("s3_source", S3SourceTask, arguments) == 2
    assert "A configuration is given by an option: --config s3.toml\n" in capsys.readouterr().err


def test_another_mistake_on_the_command_line_is_told_nothing_about_files(capsys):
    assert run("s3_source", S3SourceTask, ["chekc", "--config", "s3.toml"]) == 2
    assert "given by an option" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "arguments"),
    [
        ("--config", ()),
        ("--config", ("status",)),
        ("--config", ("worker", "--config-dir", ".")),
        ("--config-dir", ("worker",)),
        ("--state-dir", ("worker", "--config-dir", ".")),
        ("--payload", ("dead-letter", "show")),
    ],
)
def test_an_empty_path_is_not_the_current_folder(option, arguments, capsys):
    """`--config-dir "$DIR"` with a variable that is not set."""
    code = run("s3_source", S3SourceTask, [*arguments, option, ""])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert f"Error: Invalid value for '{option}'" in err
    assert err.endswith(": the path is empty\n")


def test_a_start_without_a_configuration_names_the_command_that_writes_one(capsys):
    assert run("s3_source", S3SourceTask, ["check"]) == 2
    assert "the command config init writes one" in capsys.readouterr().err


@pytest.mark.parametrize("group", [[], ["config"], ["offsets"], ["dead-letter"]], ids=" ".join)
def test_help_lists_each_command_with_a_whole_sentence(capsys, monkeypatch, group):
    monkeypatch.setenv("COLUMNS", "80")
    assert run("s3_source", S3SourceTask, [*group, "--help"], demo=demo) == 0
    listed = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert len(listed) > 1
    assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == []


@pytest.mark.parametrize("name", ["shelf", "local_folder"])
def test_a_program_of_an_author_shows_the_command_that_started_it(tmp_path, name):
    script = ROOT / "examples" / f"{name}.py"
    for arguments, said in (
        (["--help"], f"Usage: python {script} [OPTIONS]"),
        (["config", "init", "new.toml"], f"then: python {script} check --config new.toml"),
    ):
        done = subprocess.run(
            [sys.executable, str(script), *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert said in " ".join(done.stdout.split())
    written = (tmp_path / "new.toml").read_text()
    assert written.startswith(f"# Configuration of {name}. ")
    assert f"#   python {script} --config new.toml --once " in written


@pytest.mark.parametrize("option", ["--partition 4294967296", "--offset 18446744073709551616"])
def test_a_place_that_no_topic_can_have_is_a_wrong_option(option, capsys):
    assert run("s3_source", S3SourceTask, ["read", "--config", "s3.toml", *option.split()]) == 2
    assert f"Invalid value for '{option.split()[0]}'" in capsys.readouterr().err
