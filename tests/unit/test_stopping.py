"""A stop that does not wait for Iggy for ever is no failure."""

from types import SimpleNamespace

import pytest

from framework.engine.local import LocalEngine
from framework.engine.session import IggyTarget
from framework.errors import TaskClosedError
from framework.testing.memory_source import MemorySourceTask
from framework.testing.options import source_config


@pytest.mark.parametrize("stopped", [True, False])
def test_a_connection_that_a_stop_closed_is_no_error_and_any_other_closed_one_is(monkeypatch, stopped):
    """Seen under load: what was to be saved last was asked for after the time of a stop was over."""
    engine = LocalEngine(MemorySourceTask, source_config(), once=True)
    monkeypatch.setattr(IggyTarget, "connect", lambda _: SimpleNamespace(close=lambda: None))

    def live(*_):
        if stopped:
            engine.stop()
        raise TaskClosedError("this connection was closed")

    monkeypatch.setattr(engine, "_live", live)
    if stopped:
        assert engine.run().state == "stopped"
    else:
        with pytest.raises(TaskClosedError):
            engine.run()
