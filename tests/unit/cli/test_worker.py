"""Options of the command `worker`: its own file, the environment, `--set`, and options that stand before a command."""

import importlib
import os
import resource
import sys
import threading
from pathlib import Path

import pytest

from framework.cli import worker
from framework.cli.app import run
from framework.cli.config_file import ConfigFile
from framework.cli.run import load_source
from framework.config.sections import LogSection
from framework.errors import FatalError
from s3_source.task import S3SourceTask
from tests.unit.runtime.rig import FakeChild, text


@pytest.fixture
def begin(tmp_path, monkeypatch, capsys):
    """Starts the command up to its loop; returns the exit code, what was said, and the section [http]."""
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "worker.toml").write_text('[http]\naddress = "127.0.0.1:1"\n')
    monkeypatch.chdir(tmp_path)
    found = []
    monkeypatch.setattr(worker, "_serve", lambda _worker, http, _output: found.append(http) or 0)

    def start(*arguments, before=()):
        code = run("s3_source", S3SourceTask, [*before, "worker", "--config-dir", "conf.d", *arguments])
        return code, capsys.readouterr().err, found[-1] if found else None

    return start


@pytest.mark.parametrize("file", [(), ("--config", "worker.toml")])
def test_variables_count_for_the_worker_with_and_without_a_file(begin, monkeypatch, file):
    monkeypatch.setenv("IGGY_SOURCE__HTTP__ADDRESS", "127.0.0.1:2")
    monkeypatch.setenv("IGGY_SOURCE__HTTP__API_KEY", "drowssap")
    monkeypatch.setenv("IGGY_SOURCE__IGGY__TOPIC", "of the sources")
    code, _, http = begin(*file)
    assert (code, http.address, http.api_key) == (0, "127.0.0.1:2", "drowssap")


@pytest.mark.parametrize("file", [(), ("--config", "worker.toml")])
def test_settings_count_for_the_worker_before_and_behind_the_command(begin, file):
    code, _, http = begin(*file, "--set", "http.address=127.0.0.1:4", before=("--set", "http.api_key=drowssap"))
    assert (code, http.address, http.api_key) == (0, "127.0.0.1:4", "drowssap")


@pytest.fixture
def piped(tmp_path):
    """Writes a configuration into a pipe, once, as a shell does for `--config <(sops -d worker.toml)`; returns its path."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writers = []

    def write(content):
        writers.append(threading.Thread(target=path.write_text, args=(content,), daemon=True))
        writers[-1].start()
        return str(path)

    yield write
    for writer in writers:
        writer.join(10)
        assert not writer.is_alive()


def test_the_file_of_the_worker_may_be_a_pipe(begin, piped):
    content = '[http]\naddress = "127.0.0.1:3"\napi_key = "drowssap"\n[log]\nformat = "json"\n'
    code, said, http = begin("--config", piped(content))
    assert (code, http.address, http.api_key) == (0, "127.0.0.1:3", "drowssap"), said


@pytest.mark.parametrize("json", [True, False])
def test_the_file_of_a_source_may_be_a_pipe(piped, monkeypatch, capsys, json):
    def fail(_class, config, *_, **__):
        raise FatalError(config.source.name)

    monkeypatch.setattr(importlib.import_module("framework.cli.run"), "run_engine", fail)
    content = text() + ('[log]\nformat = "json"\n' if json else "")
    assert run("s3_source", S3SourceTask, ["--config", piped(content)]) == 3
    said = capsys.readouterr().err
    assert ('"message": "orders"' if json else "error: orders") in said


def test_a_source_with_an_api_needs_a_file_and_no_pipe(piped, capsys):
    path = piped(text() + "[http]\nenabled = true\n")
    assert run("s3_source", S3SourceTask, ["--config", path]) == 2
    refusal = f"--config {path}: is a pipe, and [http] enabled needs a file: it is read again every few seconds"
    assert refusal in capsys.readouterr().err


def test_a_pipe_in_a_reference_keeps_no_worker_waiting(begin, tmp_path, monkeypatch):
    """The supervisor reads under its lock: the API would stand still for as long as the pipe is waited for."""
    monkeypatch.setattr("framework.config.files.PIPE_SECONDS", 600.0)
    os.mkfifo(tmp_path / "secret")
    (tmp_path / "conf.d" / "orders.toml").write_text(text().replace('"lake"', f'"${{file:{tmp_path}/secret}}"', 1))
    found = []
    monkeypatch.setattr(worker, "_serve", lambda made, _http, _output: found.append(made) or 0)
    assert begin()[0] == 0
    found[0].supervisor.tick()
    with found[0].supervisor.source("orders") as source:
        assert source.last_error.message.endswith(
            "secret cannot be read: it is a pipe, not a file, and is read more than once"
        )


def test_a_run_and_a_worker_allow_as_many_open_files_as_they_can(begin, tmp_path, monkeypatch):
    usual, seen = resource.getrlimit(resource.RLIMIT_NOFILE), []
    few = (
        max(int(file.name) for file in Path("/proc/self/fd").iterdir()) + 64
    )  # other tests of this process have files open, too

    def fail(*_, **__):
        seen.append(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        raise FatalError("enough")

    monkeypatch.setattr(importlib.import_module("framework.cli.run"), "run_engine", fail)
    monkeypatch.setattr(worker, "_serve", fail)
    (tmp_path / "orders.toml").write_text(text())
    for start in (lambda: run("s3_source", S3SourceTask, ["--config", str(tmp_path / "orders.toml")]), begin):
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, usual[1]))
        try:
            start()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, usual)
    assert len(seen) == 2
    assert min(seen) > few


def test_a_wrong_override_is_named(begin, monkeypatch):
    code, said, http = begin("--set", "iggy.topic=x")
    assert (code, "--set iggy.topic: unknown option" in said, http) == (2, True, None), said
    monkeypatch.setenv("IGGY_SOURCE__HTTP__ADDRESS", "nonsense")
    monkeypatch.setenv("IGGY_SOURCE__LOG__FORMAT", "json")
    code, said, http = begin()
    assert (code, said.startswith("{"), http) == (2, True, None), said
    assert "must be host:port" in said
    assert "from IGGY_SOURCE__HTTP__ADDRESS" in said


def test_what_belongs_to_a_source_is_shown_its_place(begin, tmp_path):
    (tmp_path / "orders.toml").write_text(text())
    code, said, _ = begin("--config", "orders.toml")
    assert code == 2
    for section in ("source", "s3", "iggy"):
        own = "known are http, log; what a source needs stands in its own file in --config-dir"
        assert f"[{section}]: unknown section; {own}" in said
    code, said, _ = begin("--set", "s3.bucket=lake")
    assert (code, "--set s3.bucket: unknown option; known sections are http, http.tls" in said) == (2, True), said
    code, said, _ = begin("--config-dir", "orders.toml")
    assert code == 2
    assert "orders.toml is a file, not a folder; to run its source alone: --config orders.toml" in said


@pytest.mark.parametrize("flag", ["--standby", "--once", "--take-over"])
def test_an_option_of_a_run_before_a_command_is_not_dropped(begin, flag):
    code, said, http = begin(before=(flag,))
    assert (code, f"{flag} before the command worker" in said, http) == (2, True, None), said
    assert ("write --standby behind it" in said) == (flag == "--standby")


@pytest.mark.parametrize(
    ("flags", "ended", "code"), [((), False, 0), (("--once",), False, 1), (("--once",), True, 0), ((), True, 0)]
)
def test_a_single_run_that_is_stopped_while_its_source_is_paused_is_not_done(tmp_path, monkeypatch, flags, ended, code):
    path = tmp_path / "orders.toml"
    path.write_text(text())
    file = ConfigFile(path=path)

    def serve(made, _http, _output):
        made.supervisor.tick()
        if ended:
            child.code = 0
        else:
            made.supervisor.set_state("orders", "paused")
        for _ in range(2):
            made.supervisor.tick()
        made.supervisor.stop()
        return made.supervisor.run()

    child = FakeChild(None, 1)
    monkeypatch.setattr("framework.runtime.worker.ChildProcess", lambda *_: child)
    monkeypatch.setattr(worker, "_serve", serve)
    config = load_source(S3SourceTask, file).config
    assert worker.run_with_api("s3_source", S3SourceTask, file, config, flags=flags) == code


def test_a_source_takes_over_once_and_not_whenever_its_api_starts_it_again(tmp_path, monkeypatch):
    path = tmp_path / "orders.toml"
    path.write_text(text())
    file, children, commands = ConfigFile(path=path), [], []

    def begin(arguments, *_):
        commands.append(arguments[len(arguments) - 2 :])
        children.append(FakeChild(None, 1))
        return children[-1]

    def serve(made, _http, _output):
        made.supervisor.tick()
        made.supervisor.restart("orders")
        for _ in range(2):
            made.supervisor.tick()
        made.supervisor.stop()
        return made.supervisor.run()

    monkeypatch.setattr("framework.runtime.worker.ChildProcess", begin)
    monkeypatch.setattr(worker, "_serve", serve)
    config = load_source(S3SourceTask, file).config
    worker.run_with_api("s3_source", S3SourceTask, file, config, flags=["--once", "--take-over"])
    assert commands == [["--once", "--take-over"], [str(path), "--once"]]


def test_an_installation_without_the_http_api_names_the_extra(tmp_path, monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "framework.runtime.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert run("s3_source", S3SourceTask, ["worker", "--config-dir", str(tmp_path)]) == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert 'needs the Python package "uvicorn"' in last
    assert 'pip install ".[worker]"' in last


def test_a_log_that_nobody_reads_holds_up_no_worker(monkeypatch):
    """Its lines are written under the supervisor's lock, which each request to the API wants."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as reader, os.fdopen(write_end, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)

        def fill():
            for _ in range(100):
                worker.log.info("x" * 5000)

        with worker._logged(LogSection()):
            thread = threading.Thread(target=fill, daemon=True)
            thread.start()
            thread.join(20)
            held_up = thread.is_alive()
            os.set_blocking(read_end, False)
            while held_up and thread.is_alive():
                reader.read()
    assert not held_up
