"""One task in its own process: the other side of `framework.engine.process_group`."""

from __future__ import annotations

import logging
import signal
import threading
from collections import deque
from multiprocessing.connection import Connection

from framework.discovery.object_feed import AssignedFeed, Assignment
from framework.engine.iggy_target import open_connection
from framework.engine.log_forwarding import LogForwarder
from framework.engine.process_exit import leave
from framework.engine.process_setup import set_up_process
from framework.engine.python_messages import log_python_messages
from framework.engine.task_run import Connect, TaskRun, TaskRunPlan, portable
from framework.errors import SourceError

log = logging.getLogger(__name__)

FIGURES_SECONDS = 0.5

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals of a terminal or a supervisor to all processes: the leader stops the workers in its own order."""


class LeaderPipe:
    """The pipe to the leader, shared by the worker's threads. If the leader is gone, messages are dropped.

    It carries the statistics, log lines and errors of a task. Its positions are not sent over it: the leader reads them
    from the offsets topic. The garbage collector may run finalizers that log at any time, even while this thread is
    sending a message.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.RLock()
        self._sending = False
        self._waiting: deque[tuple[str, object]] = deque()

    def send(self, kind: str, value: object) -> None:
        """Send a message, after those that wait."""
        self._waiting.append((kind, value))
        with self._lock:
            if self._sending:  # by this thread, below: the loop sends it next
                return
            self._sending = True
            try:
                while self._waiting:
                    self._pipe.send(self._waiting.popleft())
            except (OSError, ValueError):
                log.debug("the leader is gone")
            finally:
                self._sending = False


def work(plan: TaskRunPlan, pipe: Connection) -> None:
    """Run one task over the assigned objects until the leader closes the feed or stops it."""
    set_up_process()
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # blocked while the modules were loaded
    leader = LeaderPipe(pipe)
    # The leader writes the worker's log, too: with the leader's log options, and above its progress bar.
    logging.getLogger().addHandler(LogForwarder(lambda line: leader.send("log", line)))
    log_python_messages()
    serve(plan, pipe, leader)
    leave(0)  # the leader has everything it needs


def serve(plan: TaskRunPlan, pipe: Connection, leader: LeaderPipe, *, connect: Connect = open_connection) -> None:
    """Run one task to its end and report how it ended: all of `work` that does not concern the process as a whole."""
    try:
        _run(plan, pipe, leader, connect)
    except Exception as error:
        if not isinstance(error, SourceError):
            log.exception("a worker failed")
        leader.send("failed", portable(error))
    finally:
        pipe.close()


def _run(plan: TaskRunPlan, pipe: Connection, leader: LeaderPipe, connect: Connect) -> None:
    def released(assignment: Assignment, gone: bool) -> None:
        leader.send("released", (assignment, gone))

    feed = AssignedFeed(on_release=released)
    run = TaskRun.start(plan, feed, connect=connect, on_opened=lambda found: leader.send("statistics", found))
    ended = threading.Event()
    try:
        leader.send("started", None)
        threading.Thread(target=_listen, args=(pipe, feed, run, leader), name="leader", daemon=True).start()
        threading.Thread(target=_send_statistics, args=(leader, run, ended), name="statistics", daemon=True).start()
        try:
            run.run()
        finally:
            ended.set()
            leader.send("statistics", run.statistics())
        leader.send("ended", None)
    finally:
        run.close()


def _listen(pipe: Connection, feed: AssignedFeed, run: TaskRun, leader: LeaderPipe) -> None:
    """Take the leader's messages until its pipe ends; one that cannot be read, as of an object of unknown class, is a failure."""
    try:
        while True:
            kind, value = pipe.recv()
            if kind == "give":
                feed.give(value)
            elif kind == "close":
                feed.close()
            else:
                run.stop()
    except (EOFError, OSError, TypeError):  # TypeError: closed by this process while it waited
        run.stop()  # the leader is gone: save what is confirmed and end
    except Exception as error:
        log.exception("a message of the leader could not be taken")
        leader.send("failed", portable(error))
        run.stop()


def _send_statistics(leader: LeaderPipe, run: TaskRun, ended: threading.Event) -> None:
    while not ended.wait(FIGURES_SECONDS):
        leader.send("statistics", run.statistics())
