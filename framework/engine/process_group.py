"""Several tasks, each in its own process: this process lists and assigns objects, the workers read and send.

A worker owns partitions (`framework.discovery.routing.task_of`) and has its own connection. It appends its progress to
the log, and this process learns of it only by following the log. Workers are spawned, never forked: an Iggy client does
not survive a fork.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import attrs
from typing_extensions import override

from framework.discovery.object_feed import Assignment
from framework.discovery.routing import task_of
from framework.engine.listing_thread import ListingThread
from framework.engine.reporter import Reporter
from framework.engine.task_process import STOP_SIGNALS, work
from framework.engine.task_run import TaskRunPlan, portable
from framework.errors import SourceError, UnknownOutcomeError
from framework.iggy.offset_log.log import DuePolls
from framework.pipeline.task_statistics import TaskStatistics
from framework.task import SourceContext, iterator_of

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.engine.session import Session
    from framework.task import AbstractSourceTask

log = logging.getLogger(__name__)

OUTSTANDING_OBJECTS = 4000
"""Maximum of assigned but unfinished objects over all workers: enough to keep each busy, few enough for memory."""

WAIT_SECONDS = 0.05

FOLLOW_SECONDS = 0.2
"""Interval at which the log is polled for the workers' progress."""

STOP_SECONDS = 3.5
"""How long workers may take to end after a stop."""

CLOSE_SECONDS = 60.0
"""How long they may take after everything was done."""

_EXIT_SECONDS = 0.2
"""A process that ends closes its pipe a little before."""


class _SpawnedProcess(SpawnProcess):
    """A process that is born with blocked signals: Ctrl-C reaches it also while its modules load."""

    @override
    def start(self) -> None:
        try:
            Path.cwd()
        except FileNotFoundError:  # it was removed, and a process cannot start in it
            os.chdir("/")
        resource_tracker.ensure_running()  # its start unblocks them
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class SpawnContext:
    """The usual context: spawned processes."""

    Pipe = staticmethod(multiprocessing.Pipe)
    Process = _SpawnedProcess


@attrs.define(kw_only=True, eq=False)
class _TaskProcess:
    process: BaseProcess
    pipe: Connection
    outbox: SimpleQueue[tuple[str, object] | None] = attrs.field(factory=SimpleQueue)
    threads: list[threading.Thread] = attrs.field(factory=list)
    statistics: TaskStatistics = attrs.field(factory=TaskStatistics)
    started: bool = False
    ended: bool = False

    def kill(self) -> None:
        """End the process; that is no failure."""
        self.ended = True
        self.process.kill()


@attrs.define(eq=False, repr=False, slots=False)
class ProcessGroup:
    """The workers of one epoch. Single use.

    Args:
        task_class: the source.
        config: its configuration.
        session: the leader's side of the epoch.
        once: end after one complete listing.
        context: makes pipes and processes as `multiprocessing` does; by default it spawns them. The conformance kit uses threads.
        follow_seconds: interval at which the log is polled for the workers' progress.
    """

    _task_class: type[AbstractSourceTask]
    _config: SourceCommonConfig
    _session: Session
    _once: bool = attrs.field(kw_only=True)
    _context: Any = attrs.field(default=None, kw_only=True)
    _follow_seconds: float = attrs.field(default=FOLLOW_SECONDS, kw_only=True)
    _workers: list[_TaskProcess] = attrs.field(factory=list, init=False)
    _failure: SourceError | None = attrs.field(default=None, init=False)
    _stopping_since: float = attrs.field(default=math.inf, init=False)

    def __attrs_post_init__(self) -> None:
        self._changed = threading.Condition()
        self._due = DuePolls(self._follow_seconds)
        self._wait_seconds = min(WAIT_SECONDS, self._follow_seconds)

    def stop(self) -> None:
        """Stop the workers: they, and `run`, may be waiting for an answer of Iggy."""
        self._stopping_since = min(self._stopping_since, time.monotonic())
        for worker in list(self._workers):
            if worker.started:
                worker.outbox.put(("stop", None))
            else:  # it has sent nothing, and takes no message yet: it loads modules or positions, or opens its store
                worker.kill()

    def run(self, stopping: threading.Event, reporter: Reporter) -> None:
        """Work until everything is done (once), `stopping` is set, or a worker fails.

        Raises:
            SourceError: of the first worker that failed; the other workers have saved what was confirmed.
        """
        context = SourceContext(config=self._config, offsets=self._session.offsets, once=self._once)
        with iterator_of(self._task_class, context, stopping=stopping) as iterator:
            self._session.open_renumbered_partitions(iterator.numbering_options)
            listing = ListingThread(iterator, self._changed, most=OUTSTANDING_OBJECTS)
            done = False
            try:
                self._start_workers(listing)
                reporter.watch_statistics(
                    lambda: [
                        iterator.statistics,
                        self._session.partitions.statistics,
                        *(worker.statistics for worker in self._workers),
                    ],
                    lambda: listing.counts,
                )
                listing.start()
                while not (done or stopping.is_set() or self._failure is not None):
                    self._checkpoint(listing)
                    reporter.check_skipped()
                    if taken := listing.take():
                        self._assign(taken)
                    elif listing.finished:
                        self._checkpoint(listing)
                        done = True
                    else:
                        with self._changed:
                            self._changed.wait(self._wait_seconds)
            finally:
                listing.end()
                self._end_workers(orderly=done and self._failure is None)
                reporter.unwatch()
        if self._failure is not None:
            self._session.check_alone_after(self._failure)
            raise self._failure

    # ---- workers

    def _start_workers(self, listing: ListingThread) -> None:
        context = self._context or SpawnContext()
        tasks = self._config.runner.tasks_max or 1
        for number in range(tasks):
            own_end, worker_end = context.Pipe()
            owned = {
                topic_partition
                for topic_partition in self._session.known_partitions()
                if task_of(topic_partition, tasks) == number
            }
            plan = TaskRunPlan.of(self._session, self._task_class, owned, once=self._once)
            process = context.Process(target=work, args=(plan, worker_end), name=f"task-{number}", daemon=True)
            try:
                process.start()  # fails for a class that cannot be pickled
            except BaseException:
                own_end.close()
                raise
            finally:
                worker_end.close()
            worker = _TaskProcess(process=process, pipe=own_end)
            self._workers.append(worker)  # before its threads: they may not start, and then it must be ended, too
            for target, args in ((self._listen, (worker, listing)), (self._write, (worker,))):
                thread = threading.Thread(target=target, args=args, name=f"task-{number}", daemon=True)
                thread.start()
                worker.threads.append(thread)

    def _listen(self, worker: _TaskProcess, listing: ListingThread) -> None:
        """Handle a worker's messages until its pipe ends. One thread per worker."""
        try:
            while True:
                kind, value = worker.pipe.recv()
                if kind == "log":
                    value.repeat()
                    continue
                with self._changed:
                    self._take_message(worker, listing, kind, value)
                    self._changed.notify_all()
        except (EOFError, OSError):
            worker.process.join(_EXIT_SECONDS)
            how = _ending(worker.process.exitcode)
            if not worker.ended:
                self._fail(UnknownOutcomeError(f"{worker.process.name} (process {worker.process.pid}) {how}"))
        except Exception as error:
            log.exception("a message of %s could not be taken", worker.process.name)
            self._fail(error)

    def _write(self, worker: _TaskProcess) -> None:
        """Send a worker's messages. One thread per worker: a pipe is full while its worker is frozen, and others wait for none."""
        try:
            while (message := worker.outbox.get()) is not None:
                worker.pipe.send(message)
        except OSError:
            log.debug("%s has ended already", worker.process.name)  # its listener reports why
        except Exception as error:
            log.exception("a message to %s could not be sent", worker.process.name)
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Take note of the first failure; the others follow from it."""
        with self._changed:
            self._failure = self._failure or portable(error)
            self._changed.notify_all()

    def _take_message(self, worker: _TaskProcess, listing: ListingThread, kind: str, value: Any) -> None:
        if kind == "started":
            worker.started = True
        elif kind == "statistics":
            worker.statistics = value
        elif kind == "released":
            assignment, gone = value
            listing.release(assignment, gone=gone)
        elif kind == "failed":
            self._fail(value)
        elif kind == "ended":
            worker.ended = True

    def _checkpoint(self, listing: ListingThread) -> None:
        """Do what needs the leader's connection, in this thread: follow the workers' progress in the log, and save."""
        if self._due.take():
            self._session.follow()
        for _, entry in self._session.take_changed():
            if entry.finished:
                listing.complete(entry)
        self._session.save()

    # ---- handing out

    def _assign(self, taken: Sequence[Assignment]) -> None:
        self._session.store_begun(taken)
        by_worker: dict[int, list[Assignment]] = defaultdict(list)
        for assignment in taken:
            by_worker[task_of(assignment.entry.topic_partition, len(self._workers))].append(assignment)
        for number, given in by_worker.items():
            self._workers[number].outbox.put(("give", given))  # all parts of an object: one read serves them

    def _end_workers(self, *, orderly: bool) -> None:
        if orderly:
            limit, deadline = CLOSE_SECONDS, time.monotonic() + CLOSE_SECONDS
            for worker in self._workers:
                worker.outbox.put(("close", None))
        else:
            self.stop()
            limit, deadline = STOP_SECONDS, self._stopping_since + STOP_SECONDS
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                if not worker.ended:
                    name, pid = worker.process.name, worker.process.pid
                    self._fail(
                        UnknownOutcomeError(f"{name} (process {pid}) did not end within {limit:g} seconds: killed it")
                    )
                worker.kill()
                worker.process.join(1.0)
            worker.outbox.put(None)
            for thread in worker.threads:
                thread.join(1.0)
            worker.pipe.close()


def _ending(exitcode: int | None) -> str:
    """What is known of a process that ended without a message."""
    if exitcode is None or exitcode >= 0:
        return "ended and said nothing"
    number = -exitcode
    if number == signal.SIGKILL:
        return (
            "was killed (SIGKILL), as when memory runs out: more memory, or a lower [runner] tasks_max, prevents that"
        )
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    return f"was ended by {name}: a library crashed, the stack trace is above"
