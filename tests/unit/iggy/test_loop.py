"""The loop behind the connections of the official client."""

import asyncio
import time

import pytest

from framework.iggy import loop


@pytest.fixture
def fresh(monkeypatch):
    """The loop of a process that has none yet."""
    monkeypatch.setattr(loop, "_loop", None)
    yield loop.background_loop
    made = loop.background_loop()
    made.call_soon_threadsafe(made.stop)
    while made.is_running():
        time.sleep(0.01)
    made.close()


def answered(made):
    return asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "answered"), made).result(60)


def test_one_loop_a_process(fresh):
    made = fresh()
    assert fresh() is made
    assert answered(made) == "answered"
