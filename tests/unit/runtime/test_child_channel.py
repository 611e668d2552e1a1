"""The line between a worker and a source, within one process: sockets in place of an inherited descriptor."""

import logging
import os
import socket
import threading
import time

import attrs
import pytest

from framework.engine.run_statistics import RunStatistics
from framework.runtime import child_channel
from framework.runtime.child_channel import ChildChannel, WorkerEnd, socket_pair


@pytest.fixture
def line():
    """Yields both ends, and how often the worker's end reported an end."""
    ours, theirs = socket_pair()
    ended = threading.Semaphore(0)
    end = WorkerEnd(ours, ended.release)
    descriptor = os.dup(theirs.fileno())
    theirs.close()
    child = ChildChannel(descriptor, leave=lambda _code: None)
    child.on_stop(lambda: None)
    yield child, end, ended
    end._line.shutdown(socket.SHUT_RDWR)
    end.close()
    child._socket.close()


def wait_until(check):
    deadline = time.monotonic() + 10
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_figures_arrive_as_they_were(line):
    child, end, _ = line
    sent = RunStatistics(state="sending", records=7, kinds={"RecordError": 2}, filtered={"empty": 1})
    child.report(sent)
    wait_until(lambda: end.progress is not None)
    assert attrs.asdict(end.progress) == attrs.asdict(sent)
    assert end.error == ""


def test_the_worker_is_woken_by_the_end_and_not_by_figures(line):
    child, end, ended = line
    for number in range(100):
        child.report(RunStatistics(records=number))
    wait_until(lambda: end.progress is not None and end.progress.records == 99)
    assert not ended.acquire(blocking=False)
    child._socket.shutdown(socket.SHUT_RDWR)
    assert ended.acquire(timeout=10)


def test_the_last_error_arrives(line):
    child, end, _ = line
    child.failed('no bucket "lake"\n  - ü')
    wait_until(lambda: end.error)
    assert (end.error, end.progress) == ('no bucket "lake"\n  - ü', None)


@pytest.mark.parametrize("name", ["conf.d/orders-\udcff.toml", "no pair: \ud800"])
def test_an_error_about_a_name_that_is_no_unicode_arrives(line, name):
    child, end, _ = line
    child.failed(f"{name}: no bucket")
    wait_until(lambda: end.error)
    assert end.error == name.encode(errors="replace").decode() + ": no bucket"


def test_the_beginning_of_an_endless_error_arrives(line):
    child, end, _ = line
    child.failed("no such option; " * 200_000)
    wait_until(lambda: end.error)
    assert end.error.startswith("no such option; no such option")


def test_a_request_to_stop_is_passed_on_and_may_be_repeated(line):
    child, end, _ = line
    stopped = threading.Event()
    child.on_stop(stopped.set)
    end.stop()
    end.stop()
    assert stopped.wait(10)


def test_a_worker_that_is_stuck_does_not_hold_up_the_source_and_hears_it_afterwards(monkeypatch):
    monkeypatch.setattr(child_channel, "SEND_SECONDS", 3600)  # as long as a report would take that waits
    ours, theirs = socket_pair()
    child = ChildChannel(theirs.detach(), leave=lambda _code: None)
    child.on_stop(lambda: None)

    def report():
        for number in range(3000):  # without a reader
            child.report(RunStatistics(records=number))

    reporting = threading.Thread(target=report, daemon=True)
    reporting.start()
    reporting.join(60)
    assert not reporting.is_alive()
    end = WorkerEnd(ours, lambda: None)
    wait_until(lambda: child.report(RunStatistics(records=5000)) or (end.progress and end.progress.records == 5000))
    ours.shutdown(socket.SHUT_RDWR)
    end.close()
    child._socket.close()


def test_an_error_waits_for_a_worker_that_is_stuck_for_a_moment_only(monkeypatch):
    monkeypatch.setattr(child_channel, "SEND_SECONDS", 0.05)
    ours, theirs = socket_pair()
    child = ChildChannel(theirs.detach(), leave=lambda _code: None)
    child.on_stop(lambda: None)
    for number in range(3000):  # without a reader
        child.report(RunStatistics(records=number))
    child.failed("it failed")
    ours.close()
    child._socket.close()


def test_an_error_follows_figures_that_found_no_room():
    ours, theirs = socket_pair()
    child = ChildChannel(theirs.detach(), leave=lambda _code: None)
    child.on_stop(lambda: None)
    for number in range(3000):  # without a reader
        child.report(RunStatistics(records=number))
    end = WorkerEnd(ours, lambda: None)
    child.failed("it failed")
    wait_until(lambda: end.error == "it failed")
    ours.shutdown(socket.SHUT_RDWR)
    end.close()
    child._socket.close()


def test_a_source_stops_after_the_end_of_its_worker_and_leaves_when_it_cannot(monkeypatch):
    monkeypatch.setattr(child_channel, "ORPHAN_SECONDS", 0.01)
    ours, theirs = socket_pair()
    stopped, left = threading.Event(), threading.Event()
    child = ChildChannel(theirs.detach(), leave=lambda code: code == 1 and left.set())
    child.on_stop(stopped.set)
    assert not stopped.is_set()
    ours.close()
    assert stopped.wait(10)
    assert left.wait(10)
    child._socket.close()


def test_a_log_that_nobody_reads_does_not_keep_a_source_without_its_worker():
    """Once it is asked to stop, its lines wait for a moment only."""
    ours, theirs = socket_pair()
    stopped = threading.Event()

    class Stuck(logging.Handler):
        said = None

        def emit(self, record):
            Stuck.said = stopped.wait(2)

    handler = Stuck()
    child_channel.log.addHandler(handler)
    try:
        child = ChildChannel(theirs.detach(), leave=lambda _code: None)
        child.on_stop(stopped.set)
        ours.close()
        wait_until(lambda: Stuck.said is not None)
    finally:
        child_channel.log.removeHandler(handler)
    assert Stuck.said
    child._socket.close()


def test_a_source_that_was_asked_to_stop_and_cannot_leaves_after_the_end_of_its_worker(monkeypatch):
    monkeypatch.setattr(child_channel, "ORPHAN_SECONDS", 0.01)
    ours, theirs = socket_pair()
    asked, left = threading.Semaphore(0), threading.Event()
    child = ChildChannel(theirs.detach(), leave=lambda code: code == 1 and left.set())
    child.on_stop(asked.release)
    ours.sendall(child_channel.STOP)
    assert asked.acquire(timeout=10)
    assert not left.wait(0.1)
    ours.close()
    assert left.wait(10)
    child._socket.close()


def test_a_descriptor_is_not_inherited_further(line):
    child, _, _ = line
    assert not os.get_inheritable(child._socket.fileno())


@pytest.mark.parametrize("data", [b"nonsense", b"[]", b"{}", b'{"progress": {"x": 1}}', b"\xff", b"no end"])
def test_what_is_no_message_is_passed_over(data):
    ours, theirs = socket_pair()
    end = WorkerEnd(ours, lambda: None)
    theirs.sendall(data)
    theirs.close()
    end.close()
    assert (end.progress, end.error) == (None, "")


def test_the_error_of_a_source_that_ends_before_it_reads_stop_is_kept():
    ours, theirs = socket_pair()
    theirs.sendall(b'{"error": "no bucket"}')
    ours.sendall(child_channel.STOP)
    theirs.close()  # the end of the line comes first then, as a reset
    ended = threading.Event()
    end = WorkerEnd(ours, ended.set)
    assert ended.wait(10)
    assert end.error == "no bucket"
    end.close()
