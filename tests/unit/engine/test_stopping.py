"""A stop that does not wait for Iggy for ever is no failure."""

import logging
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import attrs
import pytest

from framework import BucketConfig, StoreSourceTask
from framework.cli.signals import stopped_by_signals
from framework.engine import epoch_loop, iggy_target
from framework.engine.iggy_target import IggyTarget
from framework.engine.local import LocalEngine
from framework.engine.session import Session
from framework.errors import IggyUnavailableError, TaskClosedError
from framework.testing.fakes.memory_iggy import MemoryIggy
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.fakes.memory_store import MemoryStore
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

    monkeypatch.setattr(engine, "_run_epoch", live)
    if stopped:
        assert engine.run().state == "stopped"
    else:
        with pytest.raises(TaskClosedError):
            engine.run()


def test_a_stop_does_not_wait_for_positions_that_are_being_loaded(monkeypatch, caplog):
    loads, closed = threading.Event(), threading.Event()

    def begin(*_, **__):
        loads.set()
        assert closed.wait(20)
        raise IggyUnavailableError("read: it was closed")

    monkeypatch.setattr(epoch_loop, "STOP_SECONDS", 3600)
    monkeypatch.setattr(IggyTarget, "connect", lambda _: SimpleNamespace(close=closed.set))
    monkeypatch.setattr(Session, "begin", begin)
    engine = LocalEngine(MemorySourceTask, source_config(), once=True)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(engine.run)
        assert loads.wait(20)
        engine.stop()
        assert run.result(20).state == "stopped"
    assert caplog.text == ""


def test_a_run_is_starting_at_first_and_recovering_after_a_break(monkeypatch):
    engine = LocalEngine(MemorySourceTask, source_config(), once=True)
    session = SimpleNamespace(
        epoch=SimpleNamespace(number=1),
        open_partitions=lambda: None,
        skipped_lately=list,
        stored_records=0,
        finish=lambda: None,
    )
    states, breaks = [], [IggyUnavailableError("the connection broke")]

    def begin(*_, **__):
        states.append(engine.progress().state)
        return session

    def work(_session):
        for error in breaks:
            breaks.clear()
            raise error

    monkeypatch.setattr(IggyTarget, "connect", lambda _: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(Session, "begin", begin)
    monkeypatch.setattr(engine, "_run_tasks", work)
    assert engine.run().state == "done"
    assert states == ["starting", "recovering"]


def test_a_stop_while_iggy_is_slow_to_answer_begins_no_epoch(monkeypatch):
    """Its waits for predecessors take up to a minute, and the time of the stop was over before the connection was there."""
    engine = LocalEngine(MemorySourceTask, source_config(), once=True)
    closed, lived = [], []

    def connect(_target):
        engine.stop()
        return SimpleNamespace(close=lambda: closed.append(True))

    monkeypatch.setattr(IggyTarget, "connect", connect)
    monkeypatch.setattr(engine, "_run_epoch", lambda *_: lived.append(True))
    assert engine.run().state == "stopped"
    assert (lived, closed) == ([], [True])


@attrs.frozen(kw_only=True)
class DrawerConfig(BucketConfig):
    """A store that waits for credentials."""


class WaitingTask(StoreSourceTask):
    section, section_class = "drawer", DrawerConfig
    asked, answer = threading.Event(), threading.Event()

    def make_store(self, config):
        self.asked.set()
        assert self.answer.wait(20)
        return MemoryStore()


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_stop_does_not_wait_for_a_store_that_is_being_opened(monkeypatch, tasks):
    server = MemoryIggy()
    monkeypatch.setattr(IggyTarget, "connect", lambda _: server.connect())
    monkeypatch.setattr(WaitingTask, "asked", threading.Event())
    monkeypatch.setattr(WaitingTask, "answer", threading.Event())
    engine = LocalEngine(WaitingTask, source_config(WaitingTask.config_class, tasks_max=tasks), once=True)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(engine.run)
        assert WaitingTask.asked.wait(20)
        engine.stop()
        try:
            assert run.result(10).state == "stopped"
        finally:
            WaitingTask.answer.set()


@pytest.mark.parametrize("slow", ["starts", "in use"])
def test_a_stop_does_not_wait_for_an_embedded_server_that_starts(monkeypatch, tmp_path, slow):
    program = tmp_path / "python"
    program.write_text(
        f"#!/bin/sh\ntouch {tmp_path}/started\n" + ("exec sleep 60\n" if slow == "starts" else "exit 3\n")
    )
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    engine = LocalEngine(MemorySourceTask, source_config(url=f"embedded:{tmp_path}/iggy"), once=True)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(engine.run)
        while not (tmp_path / "started").exists():
            threading.Event().wait(0.01)
        engine.stop()
        assert run.result(15).state == "stopped"


class SilentConnection:
    """A connection to a server that never answers."""

    def __init__(self, *_, **__):
        self.closed = threading.Event()

    def connect(self):
        assert self.closed.wait(20)
        raise IggyUnavailableError("closed before it was open")

    def close(self):
        self.closed.set()


def test_a_stop_ends_an_attempt_to_connect(monkeypatch):
    attempts = SimpleQueue()

    def connection(*_, **__):
        attempts.put(True)
        return SilentConnection()

    monkeypatch.setattr(iggy_target, "IggyConnection", connection)
    engine = LocalEngine(MemorySourceTask, source_config(), once=True)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(engine.run)
        assert attempts.get(timeout=20)
        engine.stop()
        assert run.result(20).state == "stopped"


def test_a_stop_before_an_attempt_to_connect_ends_that_too(monkeypatch):
    monkeypatch.setattr(iggy_target, "IggyConnection", SilentConnection)
    target = IggyTarget(source_config())
    target.stop()
    with pytest.raises(IggyUnavailableError, match="closed before"):
        target.connect()


def test_a_signal_may_come_while_the_main_thread_holds_what_a_stop_needs(caplog):
    """Its handler runs in that thread, and must wait for nothing; what it asks for is done when the thread goes on."""
    caplog.set_level(logging.INFO)
    engine = LocalEngine(MemorySourceTask, source_config(), once=True)
    with stopped_by_signals(engine.stop), engine._stopping._cond, threading._active_limbo_lock:
        signal.raise_signal(signal.SIGTERM)
        assert not engine.stop_requested
    assert engine.stop_requested
    assert "SIGTERM: stopping, positions are saved" in caplog.text
    engine._stop_timer.cancel()


def test_a_signal_that_does_not_wake_the_main_thread_stops_all_the_same():
    """As one that comes just before that thread waits: here another thread gets it."""
    stopped = threading.Event()
    with stopped_by_signals(stopped.set):
        threading.Timer(0.1, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM)).start()
        assert stopped.wait(10)


ROOT = Path(__file__).parents[3]
FIRST_PROCESS = """
import os, signal, time
os.getpid = lambda: 1
from framework.cli.signals import stopped_by_signals
with stopped_by_signals(lambda: print("stopping", flush=True)):
    signal.raise_signal(signal.SIGTERM)
    time.sleep(0.5)
    print("at work", flush=True)
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, "the kernel would ignore it"
    signal.raise_signal(signal.SIGTERM)
    time.sleep(60)
"""


def test_a_second_signal_ends_also_the_first_process_of_a_container():
    done = subprocess.run([sys.executable, "-c", FIRST_PROCESS], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.splitlines()) == (128 + signal.SIGTERM, ["stopping", "at work"]), done.stderr


def test_without_a_signal_nothing_is_stopped_and_the_handlers_are_as_before():
    before = signal.getsignal(signal.SIGTERM)
    engine = LocalEngine(MemorySourceTask, source_config(), once=True)
    with stopped_by_signals(engine.stop):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
    assert not engine.stop_requested
