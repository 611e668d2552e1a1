"""The leader of several processes, over an Iggy in memory; pipes and processes are made up."""

import threading
from types import SimpleNamespace

import pytest

from framework.engine import process_group
from framework.engine.process_group import ProcessGroup
from framework.engine.reporter import Reporter
from framework.engine.session import Session
from framework.errors import IggyUnavailableError, ReaderFailedError, SourceTakenOverError, UnknownOutcomeError
from framework.iggy.offset_log import codec
from framework.iggy.offset_log.fencing import make_claim
from framework.iggy.offset_log.log import OffsetLog
from framework.testing.fakes.memory_iggy import MemoryIggy
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.options import source_config
from tests.support.core import store_of

SECONDS = 20


class Frozen:
    """Starts processes that read nothing from their pipes, whose buffers are full, until they are killed."""

    def __init__(self, refusal=None, *, started=True):
        self.sends, self.killed, self.refusal = threading.Event(), threading.Event(), refusal
        self.started = started

    def Pipe(self):  # noqa: N802 - the name in `multiprocessing`
        messages = [("started", None)] if self.started else []

        def recv():
            return messages.pop() if messages else self.recv()

        return SimpleNamespace(send=self.send, recv=recv, close=lambda: None), SimpleNamespace(close=lambda: None)

    def Process(self, **_):  # noqa: N802
        return SimpleNamespace(
            name="task",
            pid=1,
            start=lambda: None,
            join=self.killed.wait,
            is_alive=lambda: not self.killed.is_set(),
            kill=self.killed.set,
            exitcode=None,
        )

    def send(self, _):
        self.sends.set()
        if self.refusal is not None:
            raise self.refusal
        self.killed.wait(SECONDS)
        raise BrokenPipeError

    def recv(self):
        self.killed.wait(SECONDS)
        raise EOFError


@pytest.fixture
def leading(monkeypatch):
    """Start a leader of such processes: (its thread, its errors, what stops it)."""
    monkeypatch.setattr(process_group, "STOP_SECONDS", 0.2)

    def lead(context, server=None, **options):
        store, config = store_of(a=1, b=1, c=1), source_config(tasks_max=2)
        session = Session.begin((server or MemoryIggy()).connect(), config, several_writers=True)
        group = ProcessGroup(lambda: MemorySourceTask(store), config, session, once=True, context=context, **options)
        stopping, errors = threading.Event(), []

        def run():
            try:
                group.run(stopping, Reporter(None, skipped_per_hour=1000))
            except Exception as error:  # noqa: BLE001 - the tests look at it
                errors.append(error)

        def stop():
            stopping.set()
            group.stop()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread, errors, stop

    return lead


def test_a_stop_does_not_wait_for_a_frozen_worker(leading):
    context = Frozen()
    thread, errors, stop = leading(context)
    assert context.sends.wait(SECONDS)
    stop()
    thread.join(SECONDS / 2)
    assert not thread.is_alive()
    assert context.killed.is_set()
    assert [type(error) for error in errors] == [UnknownOutcomeError]
    assert "task (process 1) did not end within 0.2 seconds: killed it" in str(errors[0])


def test_a_stop_does_not_wait_for_a_worker_that_starts_and_its_end_is_no_failure(leading, monkeypatch):
    """It loads modules or positions, and takes the message of the stop only when it has done so."""
    monkeypatch.setattr(process_group, "STOP_SECONDS", 3600)
    context = Frozen(started=False)
    thread, errors, stop = leading(context)
    assert context.sends.wait(SECONDS)
    stop()
    thread.join(SECONDS / 2)
    assert not thread.is_alive()
    assert context.killed.is_set()
    assert errors == []


def test_a_worker_whose_threads_cannot_start_is_ended(leading, monkeypatch):
    """It ignores SIGTERM, and Python waits at its exit for processes that it has started."""
    start = threading.Thread.start

    def refuse(thread):
        if thread.name.startswith("task-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    context = Frozen()
    thread, errors, _ = leading(context)
    thread.join(SECONDS / 2)
    assert context.killed.is_set()
    assert [str(error) for error in errors] == ["can't start new thread"]


def test_a_leader_whose_connection_breaks_does_not_wait_for_its_workers(leading, monkeypatch):
    """It recovers at once. Workers that go on would send what they hold for a minute, and nothing is listed meanwhile."""
    context = Frozen()

    def follow(_):
        if context.sends.is_set():
            raise IggyUnavailableError("the connection broke")

    monkeypatch.setattr(Session, "follow", follow)
    thread, errors, _ = leading(context)
    thread.join(SECONDS / 2)
    assert not thread.is_alive()
    assert [type(error) for error in errors] == [IggyUnavailableError]


def test_an_object_that_cannot_be_handed_out_ends_the_run(leading):
    thread, errors, _ = leading(Frozen(TypeError("cannot pickle it")))
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert [type(error) for error in errors] == [ReaderFailedError]
    assert str(errors[0]) == "TypeError: cannot pickle it"


def test_a_worker_that_reads_the_claim_of_another_instance_first_does_not_hide_it(leading):
    """Its failure is one to recover from; the run has ended for good, and says who took the source over."""
    server = MemoryIggy()

    class Claimed(Frozen):
        def recv(self):
            config = source_config(tasks_max=2)
            connection, name = server.connect(), config.source.name
            log = OffsetLog(connection, stream=config.iggy.stream, topic=config.offsets_topic, source=name)
            log.append(codec.encode_claim(name, make_claim(2, (99, "127.0.0.1:1"), leader=True)))
            self.killed.set()
            raise EOFError

    thread, errors, _ = leading(Claimed(), server, follow_seconds=3600)
    thread.join(SECONDS)
    assert [type(error) for error in errors] == [SourceTakenOverError]
