"""The figures of a run over breaks of its connection: each object and each record once."""

import itertools

import pytest

from framework.engine.iggy_target import IggyTarget
from framework.engine.local import LocalEngine
from framework.errors import UnknownOutcomeError
from framework.testing.fakes.memory_iggy import MemoryIggy
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.options import source_config
from tests.support.core import store_of

OBJECTS, RECORDS = 40, 5


@pytest.mark.parametrize("event", ["send", "ack", "append", "appended"])
@pytest.mark.parametrize("commit_interval", [0.01, 60.0])
@pytest.mark.parametrize("hold_back", [1, 1000])
def test_breaks_change_nothing_about_the_figures(monkeypatch, event, commit_interval, hold_back):
    """What was not saved is read again, and what was stored and not confirmed is found.

    A save whose confirmation was lost counts as none: its objects are not read again, and may be missing.
    """
    server, store = MemoryIggy(), store_of(**{f"k{number:02}": RECORDS for number in range(OBJECTS)})
    connection = server.connect()
    connection.ensure_stream("kit")
    connection.create_topic("kit", "records", 3)
    server.set_option("kit", "records", "messages_required_to_save", hold_back)
    numbers, breaks = itertools.count(1), []

    def at(name):
        if name == event and next(numbers) % 11 == 0 and len(breaks) < 3:
            breaks.append(name)
            server.break_connections()
            raise UnknownOutcomeError("broke")

    server.on_event = at
    monkeypatch.setattr(IggyTarget, "connect", lambda _: server.connect())
    config = source_config(commit_interval=commit_interval, linger_time=0.0, batch_length=7)
    seen = []
    engine = LocalEngine(lambda: MemorySourceTask(store), config, once=True, report=seen.append)
    last = engine.run()
    stored = sum(len(server.messages("kit", "records", number)) for number in range(3))
    assert stored == OBJECTS * RECORDS
    if event == "appended":
        assert (last.records <= stored, last.objects <= OBJECTS) == (True, True)
    else:
        assert (last.records, last.objects, last.objects_total) == (stored, OBJECTS, OBJECTS)
    assert (last.lag_objects, last.lag_bytes, last.recoveries) == (0, 0, len(breaks))
    for name in ("records", "objects", "object_bytes"):
        counts = [getattr(progress, name) for progress in seen]
        assert counts == sorted(counts), "a counter must not fall"
