"""The thread that takes a leader's messages in a worker: whatever ends it, the leader learns of it and the worker ends."""

import pickle
import sys
import threading
from types import SimpleNamespace

import pytest

from framework.discovery.object_feed import AssignedFeed
from framework.engine import task_run
from framework.engine.task_process import _listen
from framework.engine.task_run import TaskRun
from framework.errors import EXIT_PERSON, EXIT_TRY_AGAIN, ReaderFailedError


@pytest.fixture
def listened():
    """Run the thread's work over messages, the last of which is an error; return what it did."""

    def listen(*messages):
        pending, sent, stops = list(messages), [], []

        def recv():
            message = pending.pop(0)
            if isinstance(message, Exception):
                raise message
            return message

        run = SimpleNamespace(stop=lambda: stops.append("stop"))
        leader = SimpleNamespace(send=lambda kind, value: sent.append((kind, value)))
        _listen(SimpleNamespace(recv=recv), AssignedFeed(), run, leader)
        return sent, stops

    return listen


@pytest.mark.parametrize("end", [EOFError(), OSError("broken"), TypeError("closed while it waited")])
def test_the_end_of_the_leader_ends_the_worker_in_order(listened, end):
    assert listened(("close", None), end) == ([], ["stop"])


@pytest.mark.parametrize("error", [AttributeError("Can't get attribute 'Entry' on <module '__main__'>"), MemoryError()])
def test_a_message_that_cannot_be_read_is_a_failure_and_no_silence(listened, error):
    """The leader would wait for the object without end, and the worker for more of them."""
    sent, stops = listened(error)
    assert [(kind, type(value)) for kind, value in sent] == [("failed", ReaderFailedError)]
    assert (sent[0][1].exit_code, sent[0][1].unexpected) == (EXIT_TRY_AGAIN, type(error).__name__)
    assert type(error).__name__ in str(sent[0][1])
    assert stops == ["stop"]


def test_a_package_that_a_worker_lacks_is_named_as_in_a_run_of_one_task(listened):
    """A supervisor would start the source again and again."""
    sent, _ = listened(ModuleNotFoundError("No module named 'their_package.part'", name="their_package.part"))
    failure = pickle.loads(pickle.dumps(sent[0][1]))
    assert str(failure) == (
        f'the Python package "their_package" is needed and not installed for {sys.executable}: install it with pip'
    )
    assert (failure.exit_code, failure.unexpected) == (EXIT_PERSON, "")
    sent, _ = listened(ModuleNotFoundError("No module named 'framework.gone'", name="framework.gone"))
    assert (sent[0][1].exit_code, sent[0][1].unexpected) == (EXIT_TRY_AGAIN, "ModuleNotFoundError")


def test_a_stop_aborts_requests_that_iggy_does_not_answer(monkeypatch):
    """Else a send that waits on a frozen server would keep the worker until its own limit."""
    monkeypatch.setattr(task_run, "STOP_SECONDS", 0.05)
    monkeypatch.setattr(task_run.OffsetLog, "of", lambda *_: SimpleNamespace())
    done, closed = [], threading.Event()
    run = TaskRun(
        SimpleNamespace(config=None, log_from=0), SimpleNamespace(stop=lambda: None), SimpleNamespace(close=closed.set)
    )
    run._sender = SimpleNamespace(stop=lambda: done.append("stop"))
    run.stop()
    run.stop()
    assert done == ["stop"] * 2
    assert closed.wait(20)
    run.close()
