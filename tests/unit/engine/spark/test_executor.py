"""A job that loses its driver: it ends in order, and says that it did not do everything."""

import errno
import resource
import threading
from types import SimpleNamespace

import pytest

from framework.engine.spark import executor
from framework.engine.spark.executor import SparkJob, run_job
from framework.engine.spark.stop_channel import StopChannel
from framework.errors import CorruptObjectError, FatalError, ReaderFailedError, UnknownOutcomeError
from framework.pipeline.task_statistics import TaskStatistics

SECONDS = 20


class Run:
    """Sends until it is stopped, or until all of it is sent."""

    def __init__(self, work=lambda: None):
        self.work, self.stopped = work, threading.Event()

    def run(self):
        self.work()

    def stop(self):
        self.stopped.set()

    def statistics(self):
        return TaskStatistics(records=3)

    def close(self):
        pass


@pytest.fixture
def channel():
    made = StopChannel("127.0.0.1", "127.0.0.1")
    yield made
    made.close()


def result_of(monkeypatch, run, channel):
    monkeypatch.setattr(executor, "set_up_process", lambda: None)
    monkeypatch.setattr(executor.TaskRun, "start", lambda *_: run)
    return run_job(SparkJob(plan=SimpleNamespace(), assignments=[], channel=channel.address))


def test_a_job_whose_connection_broke_is_no_job_that_did_everything(monkeypatch, channel):
    """Its driver may live on: a firewall forgot the connection. What was not read would be nobody's."""

    def work():
        channel.close()
        assert run.stopped.wait(SECONDS)

    run = Run(work)
    result = result_of(monkeypatch, run, channel)
    assert isinstance(result.failure, UnknownOutcomeError)
    assert result.statistics.records == 3


def test_why_it_failed_before_says_more(monkeypatch, channel):
    def work():
        channel.close()
        assert run.stopped.wait(SECONDS)
        raise FatalError("no permission")

    run = Run(work)
    assert str(result_of(monkeypatch, run, channel).failure) == "no permission"


def test_a_job_that_did_everything_has_no_failure(monkeypatch, channel):
    run = Run()
    assert result_of(monkeypatch, run, channel).failure is None
    assert not run.stopped.is_set()


def failing(error):
    def work():
        raise error

    return Run(work)


def reader_failed():
    cause = MemoryError("s3://b/k, record 1: no memory")
    error = ReaderFailedError.of(cause)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error", [RuntimeError("can't start new thread"), OSError(errno.ENOMEM, "Cannot allocate memory"), reader_failed()]
)
def test_low_memory_names_the_option_that_limits_a_python_worker(monkeypatch, channel, error):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (700 << 20, 700 << 20))
    failure = result_of(monkeypatch, failing(error), channel).failure
    assert isinstance(failure, FatalError)
    assert str(error) in str(failure)
    assert str(failure).endswith(
        "; a Python worker has 700 MiB of address space: raise spark.executor.pyspark.memory, or leave it out"
    )


def test_a_damaged_object_that_asks_for_too_much_memory_names_no_option(monkeypatch, channel):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (700 << 20, 700 << 20))
    damaged = CorruptObjectError("it cannot be read further")
    damaged.__cause__ = MemoryError("malloc of size 4611686018427387904 failed")
    error = ReaderFailedError.of(damaged)
    error.__cause__ = damaged
    failure = str(result_of(monkeypatch, failing(error), channel).failure)
    assert failure.startswith("it cannot be read further; upload it again, ")
    assert "spark.executor" not in failure


def test_other_failures_and_low_memory_without_a_limit_name_no_option(monkeypatch, channel):
    for limit, error in ((resource.RLIM_INFINITY, MemoryError("no memory")), (700 << 20, KeyError("k"))):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        failure = result_of(monkeypatch, failing(error), channel).failure
        assert str(failure) == f"{type(error).__name__}: {error}"


def test_a_second_attempt_sends_nothing_and_says_how_to_learn_why(monkeypatch):
    monkeypatch.setattr(executor.TaskContext, "get", lambda: SimpleNamespace(attemptNumber=lambda: 1))
    monkeypatch.setattr(executor.TaskRun, "start", lambda *_: pytest.fail("it began"))
    failure = run_job(SparkJob(plan=SimpleNamespace(), assignments=[])).failure
    assert isinstance(failure, UnknownOutcomeError)
    assert str(failure) == (
        "Spark lost a Python worker, its executor or its machine, and started the job again elsewhere; with "
        "spark.task.maxFailures = 1 it does so only after a lost machine, and names any other cause"
    )
