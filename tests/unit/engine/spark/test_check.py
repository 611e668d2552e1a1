"""`check` looks from an executor: its credentials, files and routes are others than the driver's."""

import contextlib
import resource
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from pyspark import cloudpickle

from framework.engine.spark import check
from framework.engine.spark.check import check_spark, look
from framework.errors import CredentialsError, IggyUnavailableError, UnknownOutcomeError
from framework.storage.preflight import CheckResult
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.options import source_config
from s3_source.task import S3SourceConfig, S3SourceTask


class NoCredentialsTask(MemorySourceTask):
    def check(self, config):
        yield CheckResult("credentials", ok=True, detail="of the machine")
        yield CheckResult.failed("bucket", CredentialsError("no credentials were found"))


class BrokenTask(MemorySourceTask):
    def check(self, config):
        raise KeyError("key")


class Connection:
    closed = 0

    def close(self):
        Connection.closed += 1


@pytest.fixture(autouse=True)
def iggy(monkeypatch):
    monkeypatch.setattr(check, "open_connection", lambda *_: Connection())
    monkeypatch.setattr(check.socket, "gethostname", lambda: "worker-7")


def context_at(master, run=None):
    """A context whose only executor is this process."""

    def job(values, function):
        return [cloudpickle.loads(cloudpickle.dumps(function(value))) for value in values]

    run = run or job
    return SimpleNamespace(
        master=master,
        version="4.3",
        appName="check",
        setJobGroup=lambda *_, **__: None,
        cancelJobGroup=lambda _: None,
        parallelize=lambda values, _: SimpleNamespace(
            map=lambda function: SimpleNamespace(collect=lambda: run(values, function))
        ),
        _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False)),
    )


def checked(monkeypatch, task_class, context):
    monkeypatch.setattr(check, "require_java", lambda: "java is Java 17")
    monkeypatch.setattr(check, "require_packages", lambda *_, **__: True)
    monkeypatch.setattr(check, "spark_context", lambda *_, **__: contextlib.nullcontext(context))
    return list(check_spark(task_class, source_config(engine="spark")))


def test_credentials_that_only_the_driver_has_are_a_failure_of_its_own_with_the_way_out(monkeypatch):
    *others, last = checked(monkeypatch, NoCredentialsTask, context_at("spark://head:7077"))
    assert [(result.step, result.ok) for result in others] == [("java", True), ("master", True), ("executors", True)]
    assert (last.step, last.ok, last.exit_code) == ("on executors", False, 3)
    assert last.detail.startswith("on executor worker-7: bucket: no credentials were found; executors find credentials")


def test_an_executor_that_reaches_all_is_named(monkeypatch):
    before = Connection.closed
    *_, last = checked(monkeypatch, MemorySourceTask, context_at("spark://head:7077"))
    assert (last.step, last.ok) == ("on executors", True)
    assert last.detail == "executor worker-7 reads the store and connects to Iggy"
    assert Connection.closed == before + 1


def test_a_local_master_has_what_the_driver_has(monkeypatch):
    *_, last = checked(monkeypatch, NoCredentialsTask, context_at("local[2]"))
    assert (last.step, last.ok) == ("executors", True)


def test_a_lost_look_is_one_sentence(monkeypatch):
    def lose(*_):
        raise RuntimeError("Python worker exited unexpectedly (crashed)\n\tat java")

    *_, last = checked(monkeypatch, MemorySourceTask, context_at("spark://head:7077", lose))
    assert (last.step, last.ok, last.exit_code) == ("on executors", False, UnknownOutcomeError.exit_code)
    assert last.detail.startswith("Spark lost the look at the store and Iggy: Python worker exited")


def test_an_iggy_that_executors_do_not_reach_is_named(monkeypatch):
    def away(*_):
        raise IggyUnavailableError("no answer of h:8090")

    monkeypatch.setattr(check, "open_connection", away)
    _, failed = look((MemorySourceTask, source_config()))
    assert (failed.step, failed.detail, failed.exit_code) == ("iggy", "no answer of h:8090", 1)


def test_an_embedded_server_is_not_looked_for(monkeypatch):
    monkeypatch.setattr(check, "open_connection", lambda *_: pytest.fail("a connection"))
    assert look((MemorySourceTask, source_config(url="embedded:x")))[1] is None


def test_an_error_of_anothers_code_is_told_by_the_driver():
    _, failed = look((BrokenTask, source_config()))
    assert (failed.step, failed.detail) == ("store", "KeyError: 'key'")


def test_low_memory_there_names_the_option(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (200 << 20, 200 << 20))
    monkeypatch.setattr(check, "open_connection", Mock(side_effect=MemoryError))
    _, failed = look((MemorySourceTask, source_config()))
    assert "200 MiB of address space: raise spark.executor.pyspark.memory" in failed.detail


def test_a_list_of_keys_on_the_drivers_disk_is_not_looked_for(tmp_path, monkeypatch):
    keys = tmp_path / "only-on-the-driver"
    keys.write_text("a\n")
    config = source_config(
        S3SourceConfig, bucket="lake", mode="keys", keys=str(keys), access_key_id="a", secret_access_key="s", region="r"
    )
    keys.unlink()
    assert look((S3SourceTask, config))[1] is None


def test_the_store_is_closed_there():
    class ClosedTask(NoCredentialsTask):
        def close_resources(self):
            closed.append(self)

    closed = []
    look((ClosedTask, source_config()))
    assert len(closed) == 1
