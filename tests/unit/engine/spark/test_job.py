"""A job that loses its driver: it ends in order, and says that it did not do everything."""

import threading
from types import SimpleNamespace

import pytest

from framework.engine.spark import job as jobs
from framework.engine.spark.job import SparkJob, run_job
from framework.engine.spark.stop_channel import StopChannel
from framework.errors import FatalError, UnknownOutcomeError
from framework.pipeline.statistics import TaskStatistics

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
    made = StopChannel("127.0.0.1", "127.0.0.1").open()
    yield made
    made.close()


def result_of(monkeypatch, run, channel):
    monkeypatch.setattr(jobs, "set_up_process", lambda: None)
    monkeypatch.setattr(jobs.TaskRun, "start", lambda *_: run)
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
