"""When Spark starts, who waits for it, and that it is stopped in any case."""

import contextlib
import threading
import time
from types import SimpleNamespace

import pytest

from framework.engine import epoch_loop
from framework.engine.epoch_loop import Engine
from framework.engine.iggy_target import IggyTarget
from framework.engine.run_statistics import state_text
from framework.engine.spark import engine as engines
from framework.errors import FatalError, IggyUnavailableError, SourceRunningError, SparkUnavailableError
from framework.testing.options import source_config

SECONDS = 20


@pytest.fixture
def made(monkeypatch):
    """What happened, in order; `turns` says how each wait ends, `runs` how each run."""
    happened, turns, runs = [], [], []
    context_made = object()

    @contextlib.contextmanager
    def context(*_, **__):
        happened.append("spark")
        try:
            yield context_made
        finally:
            happened.append("no spark")

    class Standby:
        def __init__(self, *_, **__):
            pass

        def watch(self, *_):
            happened.append("wait")
            return turns.pop(0)

    def run_epochs(self, _target):
        assert self._await_spark().context is context_made
        happened.append("run")
        if runs and (error := runs.pop(0)) is not None:
            raise error

    monkeypatch.setattr(engines, "spark_context", context)
    monkeypatch.setattr(engines, "require_packages", lambda *_, **__: True)
    monkeypatch.setattr(epoch_loop, "Standby", Standby)
    monkeypatch.setattr(IggyTarget, "connect", lambda _: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(Engine, "_run_epochs", run_epochs)
    return happened, turns, runs


def run(**options):
    engine = engines.SparkEngine(None, source_config(), **options)
    return engine.run()


def test_without_standby_it_starts_first(made):
    happened, _, _ = made
    run()
    assert happened == ["spark", "run", "no spark"]


def test_a_standby_waits_without_spark(made):
    happened, turns, _ = made
    turns[:] = [True]
    run(standby=True)
    assert happened == ["wait", "spark", "run", "no spark"]


def test_a_standby_that_is_stopped_never_starts_it(made):
    happened, turns, _ = made
    turns[:] = [False]
    run(standby=True)
    assert happened == ["wait"]


def test_a_standby_that_another_precedes_stops_it_and_waits_again(made):
    happened, turns, runs = made
    turns[:], runs[:] = [True, True], [SourceRunningError("running"), None]
    run(standby=True)
    assert happened == ["wait", "spark", "run", "no spark"] * 2


def test_without_standby_another_instance_is_an_error(made):
    _, _, runs = made
    runs[:] = [SourceRunningError("running")]
    with pytest.raises(SourceRunningError):
        run()


@pytest.fixture
def slow(monkeypatch):
    """Spark that is ready after `go`: (go, stopped, begin), where `begin` takes what a run does meanwhile."""
    go, stopped, meanwhile = threading.Event(), threading.Event(), []

    @contextlib.contextmanager
    def context(*_, stopping, **__):
        while not go.wait(0.01):
            if stopping.is_set():
                yield None
                return
        try:
            yield "context"
        finally:
            stopped.set()

    monkeypatch.setattr(engines, "spark_context", context)
    monkeypatch.setattr(engines, "require_packages", lambda *_, **__: True)
    monkeypatch.setattr(Engine, "_run_epochs", lambda self, _: meanwhile[0](self))
    return go, stopped, meanwhile.append


def test_a_run_begins_while_it_starts(slow):
    go, stopped, begin = slow
    seen = []

    def work(engine):
        assert not go.is_set()
        go.set()
        seen.append(engine._await_spark().context)
        assert not stopped.is_set()

    begin(work)
    run()
    assert seen == ["context"]
    assert stopped.is_set()


def test_what_is_waited_for_shows(slow):
    go, _, begin = slow
    seen = []

    def work(engine):
        waiting = threading.Thread(target=engine._await_spark)
        waiting.start()
        limit = time.monotonic() + SECONDS
        while not engine.progress().waiting_for and time.monotonic() < limit:
            time.sleep(0.001)
        seen.append(state_text(engine.progress()))
        go.set()
        waiting.join(SECONDS)
        seen.append(state_text(engine.progress()))

    begin(work)
    run()
    assert seen == ["starting, waiting for Spark", "starting"]


def test_an_instance_that_is_taken_over_works_until_it_is_ready(slow):
    go, _, begin = slow
    ready = []
    begin(lambda engine: ready.append(engine._starting.ended.is_set()))
    threading.Timer(0.05, go.set).start()
    run(take_over=True)
    assert ready == [True]


def test_a_stop_ends_the_waiting_for_it(slow):
    _, _, begin = slow
    found = []

    def work(engine):
        engine.stop()
        found.append(engine._await_spark())

    begin(work)
    assert run().state == "stopped"
    assert found == [None]


@pytest.mark.parametrize("answers", [True, False])
def test_a_stop_waits_for_java_for_a_limited_time(slow, monkeypatch, caplog, answers):
    """A call to a JVM that does not answer has no limit of its own."""
    go, _, begin = slow
    killed = threading.Event()

    def kill():
        killed.set()
        return True

    def work(engine):
        assert engine._await_spark().context == "context"
        engine.stop()
        if not answers:
            engine._java_timer.join(SECONDS)
            assert killed.is_set()

    monkeypatch.setattr(engines.jvm, "kill", kill)
    monkeypatch.setattr(engines, "JAVA_SECONDS", SECONDS if answers else 0.05)
    go.set()
    begin(work)
    engine = engines.SparkEngine(None, source_config())
    assert engine.run().state == "stopped"
    if answers:
        engine._java_timer.cancel()
        engine._java_timer.function()  # the time is over after the end
    assert killed.is_set() is not answers
    assert ("Spark's Java process did not answer within" in caplog.text) is not answers


@pytest.mark.parametrize("has_ended", [True, False])
def test_whatever_fails_when_java_ends_is_told_as_its_end(slow, monkeypatch, has_ended):
    """Any call may be the one; a defect is still told as what it is."""
    go, _, begin = slow

    def work(_):
        raise ConnectionRefusedError(111, "Connection refused")

    ended = SparkUnavailableError("Spark's Java process ended: it was killed")
    monkeypatch.setattr(engines.jvm, "ended", lambda: ended if has_ended else None)
    go.set()
    begin(work)
    with pytest.raises(SparkUnavailableError if has_ended else ConnectionRefusedError):
        run()


def test_a_run_that_fails_first_leaves_no_spark_behind(slow):
    go, stopped, begin = slow

    def work(_):
        raise IggyUnavailableError("away")

    begin(work)
    with pytest.raises(IggyUnavailableError, match="away"):
        run()
    go.set()
    assert stopped.wait(SECONDS)


def test_a_start_that_fails_ends_the_run_that_waits_for_it(slow, monkeypatch):
    go, stopped, begin = slow

    def refuse(*_, **__):
        raise FatalError("misses orjson")

    monkeypatch.setattr(engines, "require_packages", refuse)
    go.set()
    begin(lambda engine: engine._await_spark())
    with pytest.raises(FatalError, match="misses orjson"):
        run()
    assert stopped.is_set()
