"""Spark starts when a standby's turn has come, and not before."""

import contextlib

import pytest

from framework.engine import local
from framework.engine.spark import engine as engines
from framework.errors import SourceRunningError
from framework.testing.options import source_config


@pytest.fixture
def made(monkeypatch):
    """What happened, in order; `turns` says how each wait ends, `runs` how each run."""
    happened, turns, runs = [], [], []

    @contextlib.contextmanager
    def context(*_, **__):
        happened.append("spark")
        try:
            yield None
        finally:
            happened.append("no spark")

    class Standby:
        def __init__(self, *_, **__):
            pass

        def wait(self):
            happened.append("wait")
            return turns.pop(0)

    def run_epochs(self, _target):
        happened.append("run")
        if runs and (error := runs.pop(0)) is not None:
            raise error

    monkeypatch.setattr(engines, "spark_context", context)
    monkeypatch.setattr(local, "Standby", Standby)
    monkeypatch.setattr(local.LocalEngine, "_run_epochs", run_epochs)
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
