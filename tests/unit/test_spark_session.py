"""Waiting for Spark without being held up by it, what pyspark finds in the environment, and what is refused."""

import os
import sys
import threading

import attrs
import pytest

from framework.config.sections import SparkSection
from framework.errors import ConfigError
from framework.spark import session
from framework.spark.session import check_speculation, wait_for

SECONDS = 20


def test_what_work_gives_or_raises_comes_out():
    assert wait_for(lambda: 7, None, "nothing") == 7
    assert wait_for(lambda: 7, threading.Event(), "nothing") == 7
    with pytest.raises(ZeroDivisionError):
        wait_for(lambda: 1 / 0, threading.Event(), "nothing")


def test_a_stop_leaves_the_work_behind_and_its_late_result_is_taken_care_of():
    go, stopping, late, given = threading.Event(), threading.Event(), threading.Event(), []

    def work():
        stopping.set()
        assert go.wait(SECONDS)
        return 7

    def too_late(result):
        given.append(result)
        late.set()

    assert wait_for(work, stopping, "a master", too_late=too_late) is None
    assert not given
    go.set()
    assert late.wait(SECONDS)
    assert given == [7]


def test_a_failure_after_a_stop_is_nobodys():
    go, stopping, failed = threading.Event(), threading.Event(), threading.Event()

    def work():
        stopping.set()
        assert go.wait(SECONDS)
        failed.set()
        raise OSError("too late")

    assert wait_for(work, stopping, "a master", too_late=lambda _: pytest.fail("there is no result")) is None
    go.set()
    assert failed.wait(SECONDS)


def test_what_is_waited_for_is_told(monkeypatch, caplog):
    monkeypatch.setattr(session, "TELL_SECONDS", 0.0)
    monkeypatch.setattr(session, "SLICE_SECONDS", 0.001)
    told = threading.Event()
    caplog.handler.addFilter(lambda record: told.set() or True)
    assert wait_for(lambda: told.wait(SECONDS), None, "an executor") is True
    assert "still waiting for an executor" in caplog.text


@attrs.frozen
class Context:
    """What a context says of its configuration."""

    conf: dict

    def getConf(self):  # noqa: N802 - pyspark's name
        return self.conf


@pytest.mark.parametrize("value", ["true", "True"])
def test_a_context_that_speculates_is_refused(value):
    with pytest.raises(ConfigError, match=r"spark\.speculation is on: .*set it to false"):
        check_speculation(Context({"spark.speculation": value}))


@pytest.mark.parametrize("conf", [{}, {"spark.speculation": "false"}])
def test_one_that_does_not_is_not(conf):
    check_speculation(Context(conf))


@pytest.mark.parametrize(
    ("given", "conf", "submitted", "python", "address"),
    [
        ({}, {}, False, sys.executable, "127.0.0.1"),
        ({"PYSPARK_PYTHON": "/a", "SPARK_LOCAL_IP": "10.0.0.1"}, {}, False, "/a", "10.0.0.1"),
        ({"PYSPARK_PYTHON": "/a"}, {"spark.pyspark.python": "/b"}, False, "/b", "127.0.0.1"),
        ({}, {"spark.pyspark.python": "/b"}, True, sys.executable, None),
        ({"PYSPARK_PYTHON": "/a"}, {}, True, "/a", None),
    ],
)
def test_the_interpreter_of_executors_and_nothing_is_left_behind(monkeypatch, given, conf, submitted, python, address):
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    with session._variables(SparkSection(conf=conf), submitted=submitted):
        assert os.environ["PYSPARK_PYTHON"] == python
        assert os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
        assert os.environ.get("SPARK_LOCAL_IP") == address
    assert dict(os.environ) == before
