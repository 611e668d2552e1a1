"""What the program says of itself is true: exit codes, the last line, the summary, warnings, traces."""

import contextlib
import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

from framework import errors
from framework.cli import trace
from framework.errors import exit_code_of
from framework.testing.faults import Fault, FaultProxy
from framework.testing.servers.ports import free_port
from s3_source.task import S3SourceTask
from tests.integration.program_rig import (
    NO_JAVA,
    ROOT,
    TASK_CLASSES,
    Program,
    wait_for_count,
    wait_for_exactly,
    wait_until,
)
from tests.support.iggy_proxy import IggyProxy, WireFault


@pytest.fixture
def program(tmp_path, moto_bucket, iggy_url, stream_name):
    made = Program(tmp_path, moto_bucket, iggy_url, stream_name)
    yield made
    made.close()


def lines(count, start=0):
    return b"".join(b'{"n": %d}\n' % number for number in range(start, start + count))


# ---- exit codes


def all_errors(root=errors.SourceError):
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from all_errors(child)


def test_every_error_knows_its_exit_code():
    codes = {error.__name__: error.exit_code for error in all_errors()}
    assert set(codes.values()) == {1, 2, 3}
    assert {name for name, code in codes.items() if code == 2} == {"ConfigError"}
    again = {name for name, code in codes.items() if code == 1}
    assert {"IggyUnavailableError", "StoreUnavailableError", "ThrottledError", "SourceRunningError"} < again
    person = {name for name, code in codes.items() if code == 3}
    assert {"CredentialsError", "IggyTopicError", "SourceTakenOverError", "CorruptObjectError"} < person


@pytest.mark.parametrize(
    ("cause", "code"),
    [(errors.StoreUnavailableError("away"), 1), (errors.AccessDeniedError("no"), 3), (KeyError("x"), 1)],
)
def test_an_error_of_the_reader_ends_with_the_code_of_its_cause_also_from_another_process(cause, code):
    import pickle

    error = errors.ReaderFailedError.of(cause)
    assert exit_code_of(error) == code
    assert exit_code_of(pickle.loads(pickle.dumps(error))) == code
    assert type(cause).__name__ in str(error) or str(error) == str(cause)


def test_a_bad_object_needs_a_person(program, moto_bucket):
    moto_bucket.put("a.jsonl", b"{no json\n")
    assert program.run("--once").code == 3


def test_once_that_is_interrupted_does_not_look_like_success(program, moto_bucket):
    for number in range(120):
        moto_bucket.put(f"{number:03}.jsonl", lines(100))
    program.configure(input={"prefetch_objects": 1}, iggy={"batch_length": 10}, offsets={"commit_interval": 0.05})
    running = program.start("--once")
    wait_for_count(program, 1, seconds=120)
    ended = running.stop(signal.SIGTERM, within=20)
    assert ended.code == 1, ended.err
    assert "interrupted before everything was sent" in ended.err
    program.once()
    assert program.count() == 12_000


def test_a_continuous_run_that_is_stopped_is_done(program, moto_bucket):
    moto_bucket.put("a.jsonl", lines(3))
    running = program.start()
    wait_for_exactly(program, 3)
    assert running.stop(signal.SIGTERM, within=20).code == 0


# ---- the summary


def test_the_summary_says_what_was_sent_and_what_was_done_before(program, moto_bucket):
    moto_bucket.put("a.jsonl", lines(2))
    assert "sent 2 records of 1 object\n" in program.once().err
    assert "sent 0 records of 0 objects; 1 object done before" in program.once().err
    moto_bucket.put("b.jsonl", lines(1))
    ended = program.once()
    assert "sent 1 record of 1 object; 1 object done before" in ended.err
    assert "records_per_second=0" not in program.configure(source={"name": "again"}).once().err


def test_nothing_is_summed_up_when_nothing_began(program):
    program.configure(s3={"bucket": "no-such-bucket"})
    ended = program.run("--once")
    assert ended.code == 3
    assert "sent" not in ended.err
    assert "progress" not in ended.err


# ---- nothing matched


def test_a_prefix_that_shows_nothing_is_a_warning(program, moto_bucket):
    moto_bucket.put("events/a.jsonl", lines(1))
    program.configure(s3={"prefix": "evnts/"})
    ended = program.once()
    assert f"WARNING nothing to read: s3://{moto_bucket.name}/evnts/ contains no object; check the prefix" in ended.err


def test_a_selection_that_matches_nothing_is_a_warning_with_its_reason(program, moto_bucket):
    moto_bucket.put("a.jsonl", lines(1))
    moto_bucket.put("b.jsonl", lines(1))
    program.configure(naming={"template": "{{topic}}/{{key}}"})
    ended = program.once()
    assert "WARNING nothing to read: all of the 2 objects" in ended.err
    assert "not matched by the template: 2" in ended.err


def test_objects_that_were_done_before_are_not_nothing(program, moto_bucket):
    moto_bucket.put("a.jsonl", lines(1))
    assert "nothing to read" not in program.once().err
    assert "nothing to read" not in program.once().err


# ---- the last error


def test_with_json_logs_the_last_error_is_json(program):
    program.configure(log={"format": "json"}, s3={"bucket": "no-such-bucket"})
    ended = program.run("--once")
    told = [json.loads(line) for line in ended.err.splitlines()]
    assert told[-1]["level"] == "error"
    assert (told[-1]["error"], told[-1]["exit_code"]) == ("BucketNotFoundError", 3)
    assert "no-such-bucket" in told[-1]["message"]


def test_also_a_mistake_of_the_configuration_is(program):
    program.configure(log={"format": "json"}, iggy={"topik": "x"})
    (line,) = program.run().err.splitlines()
    told = json.loads(line)
    assert (told["level"], told["error"], told["exit_code"]) == ("error", "ConfigError", 2)


class BugError(Exception):
    pass


class BrokenTask(S3SourceTask):
    """A source with a bug where no error of ours is expected."""

    def make_store(self, config):
        raise BugError("of ours")


class BrokenReading(S3SourceTask):
    """A source whose objects cannot begin, for a reason that was not thought of."""

    def get_iterator(self, context):
        iterator = super().get_iterator(context)
        iterator.create_offset_manager_entry = lambda *_: {}["of ours"]
        return iterator


@pytest.fixture
def traces(tmp_path, monkeypatch):
    monkeypatch.setattr(trace.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(trace, "_name", None)
    return trace.folder()


def test_an_unexpected_error_is_one_sentence_with_its_class_and_where_the_trace_is(program, traces, monkeypatch):
    monkeypatch.setitem(TASK_CLASSES, "s3_source", BrokenTask)
    ended = program.run("--once")
    assert ended.code == 1
    assert "Traceback" not in ended.err
    (file,) = traces.iterdir()
    assert ended.said.startswith("error: unexpected BugError: of ours; the trace is in ")
    assert str(file) in ended.said
    assert "in make_store" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("tasks", [1, 2])
def test_so_is_one_of_the_reader_also_in_another_process(program, moto_bucket, traces, monkeypatch, tasks):
    moto_bucket.put("a.jsonl", lines(1))
    monkeypatch.setitem(TASK_CLASSES, "s3_source", BrokenReading)
    program.configure(runner={"tasks_max": tasks})
    ended = program.run("--once")
    assert ended.code == 1, ended.err
    assert "Traceback" not in ended.err
    (file,) = traces.iterdir()
    assert ended.said.startswith("error: unexpected KeyError: 'of ours'; the trace is in ")
    assert "<lambda>" in file.read_text()


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_bad_object_is_no_unexpected_error_in_any_process(program, moto_bucket, tasks):
    moto_bucket.put("a.jsonl", b"{no json\n")
    ended = program.configure(runner={"tasks_max": tasks}).run("--once")
    assert ended.code == 3
    assert ended.said.startswith(f"error: s3://{moto_bucket.name}/a.jsonl, record 1")


def test_with_json_logs_it_is_one_line_with_the_trace_in_it(program, traces, monkeypatch):
    monkeypatch.setitem(TASK_CLASSES, "s3_source", BrokenTask)
    program.configure(log={"format": "json"})
    told = json.loads(program.run("--once").said)
    assert (told["level"], told["error"], told["exit_code"]) == ("error", "BugError", 1)
    assert "in make_store" in told["traceback"]


def test_a_trace_that_cannot_be_written_is_said_and_loses_no_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(trace.tempfile, "tempdir", str(tmp_path / "file"))
    assert "could not be written" in trace.keep("x")


def test_traces_fill_no_disk(traces, monkeypatch):
    for number in range(trace.MAX_FILES + 5):
        monkeypatch.setattr(trace, "_name", None)
        monkeypatch.setattr(trace.os, "getpid", lambda number=number: number)
        trace.keep("one")
    assert len(list(traces.iterdir())) == trace.MAX_FILES
    for _ in range(10):
        trace.keep("x" * 100_000)
    assert max(file.stat().st_size for file in traces.iterdir()) < 2 * trace.MAX_BYTES


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links here")
def test_a_folder_of_somebody_else_is_not_written_to(tmp_path, traces):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    traces.symlink_to(elsewhere)
    assert "could not be written" in trace.keep("x")
    assert list(elsewhere.iterdir()) == []


def test_a_missing_package_is_one_sentence(program, monkeypatch):
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "pyspark" else found(name, *more)
    )
    program.configure(runner={"engine": "spark"})
    ended = program.run("--once")
    assert ended.code == 3
    assert ended.said.startswith('error: engine "spark" needs the package pyspark: pip install')


# ---- a line per object


def object_lines(ended):
    return [line for line in map(json.loads, ended.err.splitlines()) if line["logger"] == "framework.objects"]


@pytest.mark.parametrize("log", [{"objects": True}, {"level": "debug"}], ids=str)
@pytest.mark.parametrize("tasks", [1, 2])
def test_each_object_has_a_line_on_request(program, moto_bucket, log, tasks):
    moto_bucket.put("a.jsonl", lines(7))
    moto_bucket.put("b.jsonl", lines(5))
    level = logging.getLogger("framework.objects").level
    program.configure(log={"format": "json", **log}, runner={"tasks_max": tasks})
    try:
        told = object_lines(program.once())
    finally:
        logging.getLogger("framework.objects").setLevel(level)
    assert sorted((one["key"], one["records"]) for one in told) == [("a.jsonl", 7), ("b.jsonl", 5)]
    assert all(one["version"] and one["topic"] == "records" and 0 <= one["partition"] < 3 for one in told)
    assert all(one["seconds"] >= 0 for one in told)


@NO_JAVA
def test_executors_tell_of_their_objects(program, moto_bucket):
    moto_bucket.put("a.jsonl", lines(7))
    program.configure(log={"format": "json", "objects": True}, runner={"engine": "spark"}, spark={"master": "local[1]"})
    (told,) = object_lines(program.start("--once").wait())
    assert (told["key"], told["records"], told["level"]) == ("a.jsonl", 7, "info")


def test_nobody_asked_so_there_is_none(program, moto_bucket):
    moto_bucket.put("a.jsonl", lines(7))
    program.configure(log={"format": "json"})
    assert object_lines(program.once()) == []


# ---- outages


def up(program, target):
    """What the port says just now; None while there is none."""
    try:
        with urllib.request.urlopen(f"http://{program.sections['metrics']['address']}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return None
    (found,) = re.findall(rf'^iggy_source_up\{{source="orders",target="{target}"\}} (\d)', text, re.MULTILINE)
    return int(found)


@contextlib.contextmanager
def server_at(folder, port):
    """The embedded server by itself, at a port of its own."""
    command = [sys.executable, "-m", "framework.iggy.embedded", str(folder), "--port", str(port)]
    environment = {**os.environ, "IGGY_EMBEDDED_PASSWORD": "iggy"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            yield server
        finally:
            server.kill()


def test_an_outage_of_iggy_shows_in_metrics_while_it_lasts_and_its_end_is_said(tmp_path, moto_bucket, stream_name):
    moto_bucket.put("a.jsonl", lines(3))
    port = free_port()
    program = Program(tmp_path, moto_bucket, f"iggy://iggy:iggy@127.0.0.1:{port}", stream_name)
    program.configure(metrics={"address": f"127.0.0.1:{free_port()}"}, iggy={"startup_timeout": "60s"})
    running = program.start()  # before there is an Iggy
    with server_at(tmp_path / "iggy", port):
        wait_until(lambda: up(program, "iggy") == 1)
        away = running.err.count("Iggy is away")
    wait_until(lambda: up(program, "iggy") == 0)
    wait_until(lambda: running.err.count("Iggy is away") > away)
    before = running.err.count("Iggy is back, after")
    with server_at(tmp_path / "iggy", port):
        wait_until(lambda: up(program, "iggy") == 1)
        wait_until(lambda: running.err.count("Iggy is back, after") > before)
        assert running.stop(within=20).code == 0


def test_an_outage_of_the_store_shows_in_metrics_while_it_lasts_and_its_end_is_said(program, moto_bucket):
    moto_bucket.put("a.jsonl", lines(3))
    with FaultProxy(moto_bucket.endpoint) as proxy:
        program.configure(
            s3={"endpoint": proxy.endpoint, "retry_cap": 0.5, "retry_budget": 3},
            metrics={"address": f"127.0.0.1:{free_port()}"},
        )
        running = program.start()
        wait_until(lambda: program.count() == 3 and up(program, "store") == 1)
        proxy.add(Fault(status=500, times=None))
        wait_until(lambda: up(program, "store") == 0)
        running.wait_for("the store is away")
        assert up(program, "store") == 0
        assert "the store is back" not in running.err
        proxy.clear()
        wait_until(lambda: up(program, "store") == 1)
        running.wait_for("the store is back")
        assert running.stop(within=20).code == 0


@pytest.mark.parametrize("tasks", [1, 3])
def test_the_last_line_counts_each_object_and_record_once_however_often_iggy_breaks(
    program, moto_bucket, iggy_url, tasks
):
    for number in range(150):
        moto_bucket.put(f"{number:03}.jsonl", lines(20))
    with IggyProxy(int(iggy_url.rpartition(":")[2])) as proxy:
        program.configure(
            iggy={"url": f"iggy://iggy:iggy@127.0.0.1:{proxy.port}", "linger_time": "0ms", "batch_length": 20},
            input={"format": "jsonl", "queue_records": 100},
            runner={"engine": "local", "tasks_max": tasks},
        )
        fault = WireFault(kind="before", skip=25)  # it may hit a save: one that is stored unanswered is not known
        proxy.arm(fault)
        running = program.start("--once")
        for count in (1, 2):
            assert proxy.fired.wait(60)
            # another task may reach the next one while this one is not known yet: they would be one break
            wait_until(lambda count=count: running.err.count("work broke off") == count)
            proxy.arm(fault)
        assert proxy.fired.wait(60)
        ended = running.wait(60)
    assert ended.code == 0, ended.err
    assert ended.err.count("work broke off") == 3
    wait_for_exactly(program, 3000)
    assert "sent 3,000 records of 150 objects" in ended.err


# ---- hints


@pytest.mark.parametrize(
    ("command", "has"), [(("offsets", "reset", "--all"), True), (("offsets", "accept-data-loss"), False)]
)
def test_a_command_without_a_terminal_names_only_options_that_it_has(program, moto_bucket, monkeypatch, command, has):
    moto_bucket.put("a.jsonl", lines(1))
    program.once()
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    ended = program.run(*command)
    assert ended.code == 2
    assert "add --yes" in ended.said
    assert ("--dry-run" in ended.said) is has


@pytest.mark.usefixtures("short_look")
def test_a_command_beside_a_running_source_does_not_offer_an_option_that_only_the_run_has(program, moto_bucket):
    moto_bucket.put("a.jsonl", lines(1))
    running = program.start()
    wait_for_exactly(program, 1)
    ended = program.run("offsets", "reset", "--all", "--yes")
    assert ended.code == 1
    assert "run the source with --standby; to replace it, with --take-over" in ended.said
    assert running.stop(within=20).code == 0


def test_a_stop_while_another_instance_is_waited_for_leaves_nothing_unanswered(program, moto_bucket):
    moto_bucket.put("a.jsonl", lines(1))
    running = program.start()
    wait_for_exactly(program, 1)
    second = program.start()
    second.wait_for("for the end of the instance on")
    ended = second.stop(within=20)
    assert ended.code == 0
    assert "WARNING stopped" not in ended.err  # "before Iggy had answered everything", or "while Iggy was away"
    assert running.stop(within=20).code == 0


# ---- what is around the program


@pytest.mark.parametrize("source", ["s3_source", "gcs_source"])
def test_a_folder_of_the_working_directory_hides_no_package(tmp_path, source):
    for name in ("framework", "transformers", "boto3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package')\n")
    ended = subprocess.run(
        [sys.executable, "-m", source, "check", "--config", "none.toml"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 2, ended.stderr
    assert "none.toml: the configuration file cannot be read" in ended.stderr


@pytest.mark.parametrize("source", ["s3_source", "gcs_source"])
def test_a_working_directory_that_was_removed_is_no_traceback(tmp_path, source):
    """That of a deployment before; the shell still stands in it."""
    there = tmp_path / "deployed"
    there.mkdir()
    command = 'rmdir "$PWD" && exec "$@"'
    for arguments, code in (("--version",), 0), (("check", "--config", "none.toml"), 2), (("config", "init"), 2):
        there.mkdir(exist_ok=True)
        ended = subprocess.run(
            ["sh", "-c", command, "sh", sys.executable, "-m", source, *arguments],
            cwd=there, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ended.returncode == code, ended.stderr
        assert "Traceback" not in ended.stderr
        assert "unexpected" not in ended.stderr


def test_several_tasks_start_in_a_working_directory_that_was_removed(program, moto_bucket, tmp_path):
    """As after a broken connection, long after the deployment."""
    moto_bucket.put("a.jsonl", lines(3))
    program.configure(runner={"tasks_max": 2})
    there = tmp_path / "deployed"
    there.mkdir()
    ended = subprocess.run(
        ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", sys.executable, "-m", program.module, *program.command(["--once"])],
        cwd=there, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert program.count() == 3


def test_a_package_that_is_missing_is_named_wherever_it_is_needed(program, moto_bucket, monkeypatch):
    moto_bucket.put("a.jsonl", lines(1))
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "framework.engine.metrics_server", raising=False)  # loaded before the fork
    program.configure(metrics={"address": f"127.0.0.1:{free_port()}"})
    ended = program.run("--once")
    assert ended.code == 3, ended.err
    assert 'the Python package "prometheus_client" is needed and not installed' in ended.said
    assert "Traceback" not in ended.err
