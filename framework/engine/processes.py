"""Several tasks, each in a process of its own: this process lists and hands out, they read and send.

A worker owns lanes (`framework.naming.task_of`), has its own connections and appends its own deltas. It tells what it
saved over a pipe, so that this process can write snapshots. Workers are spawned, never forked: a client of Iggy does not
survive a fork.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import attrs

from framework.engine.discovery import Discovery
from framework.engine.report import Reporter, TaskFigures
from framework.engine.task_run import WorkerPlan
from framework.engine.worker import work
from framework.errors import FatalError, SourceError, TooManySkippedError, UnknownOutcomeError
from framework.feed import Assignment
from framework.naming import task_of
from framework.offsets import PositionDelta
from framework.task import iterator_of

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

    from framework.config.sections import SourceCommonConfig
    from framework.engine.session import Session
    from framework.task import AbstractSourceTask

log = logging.getLogger(__name__)

OUTSTANDING_OBJECTS = 4000
"""Objects handed out and not finished, over all workers: enough to keep each busy, little enough to hold in memory."""

HAND_OUT = 64
"""Objects in one message to a worker."""

WAIT_SECONDS = 0.05

STOP_SECONDS = 3.5


@attrs.define(kw_only=True, eq=False)
class _Worker:
    process: SpawnProcess
    pipe: Connection
    tells: threading.Lock = attrs.field(factory=threading.Lock)
    thread: threading.Thread | None = None
    figures: TaskFigures = attrs.field(factory=TaskFigures)
    failure: SourceError | None = None
    ended: bool = False


class ProcessGroup:
    """The workers of one epoch. One use.

    Args:
        task_class: the source.
        config: its configuration.
        session: the leader's side of the epoch.
        once: end after one complete pass.
    """

    def __init__(
        self,
        task_class: type[AbstractSourceTask],
        config: SourceCommonConfig,
        session: Session,
        *,
        once: bool,
    ) -> None:
        self._task_class = task_class
        self._config = config
        self._session = session
        session.expect_other_writers()
        self._address = session.connection.address
        self._once = once
        self._workers: list[_Worker] = []
        self._changed = threading.Condition()
        self._deltas: list[PositionDelta] = []
        self._failure: SourceError | None = None
        self._told_at = math.inf

    def stop(self) -> None:
        """Tells the workers to end, from a thread of its own: `run` may be waiting for an answer of Iggy, as they may."""
        threading.Thread(target=self._tell_to_stop, name="stop", daemon=True).start()

    def _tell_to_stop(self) -> None:
        self._told_at = min(self._told_at, time.monotonic())
        for worker in list(self._workers):
            self._tell(worker, ("stop", None))

    def run(self, stopping: threading.Event, reporter: Reporter) -> None:
        """Works until everything is done (once), `stopping` is set, or a worker fails.

        Raises:
            SourceError: of the first worker that failed; the others have saved what was confirmed.
        """
        lister = self._task_class()
        lister.config, lister.offsets, lister.once = self._config, self._session.offsets, self._once
        with iterator_of(lister) as iterator:
            discovery = Discovery(iterator, self._changed, most=OUTSTANDING_OBJECTS)
            try:
                self._start_workers(discovery)
                reporter.watch_figures(
                    lambda: [TaskFigures(reads=iterator.counts), *(worker.figures for worker in self._workers)],
                    lambda: discovery.counts,
                )
                discovery.start()
                while not stopping.is_set() and not self._failed():
                    self._keep_books()
                    self._check_skipped(reporter)
                    if not self._hand_out(discovery.take()):
                        if discovery.finished:
                            self._keep_books()
                            break
                        with self._changed:
                            self._changed.wait(WAIT_SECONDS)
            finally:
                discovery.end()
                self._end_workers(orderly=not stopping.is_set() and not self._failed())
                reporter.unwatch()
        failure = self._failure or next((one.failure for one in self._workers if one.failure is not None), None)
        if failure is not None:
            raise failure

    # ---- workers

    def _start_workers(self, discovery: Discovery) -> None:
        context = multiprocessing.get_context("spawn")
        tasks = self._config.runner.tasks_max or 1
        for number in range(tasks):
            ours, theirs = context.Pipe()
            plan = WorkerPlan(
                task_class=self._task_class,
                config=self._config,
                address=self._address,
                epoch=self._session.recovered.epoch,
                base=self._session.recovered.base,
                log_from=self._session.recovered.base,
                anchors={
                    lane: anchor
                    for lane, anchor in self._session.offsets.snapshot_anchors().items()
                    if task_of(lane, tasks) == number
                },
                left_out=self._session.left_out_lately(),
            )
            process = context.Process(target=work, args=(plan, theirs), name=f"task-{number}", daemon=True)
            try:
                process.start()  # fails over a class that cannot be pickled
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()
            worker = _Worker(process=process, pipe=ours)
            worker.thread = threading.Thread(
                target=self._listen, args=(worker, discovery), name=f"task-{number}", daemon=True
            )
            worker.thread.start()
            self._workers.append(worker)

    def _listen(self, worker: _Worker, discovery: Discovery) -> None:
        """One thread per worker: takes its messages until its pipe ends."""
        try:
            while True:
                kind, value = worker.pipe.recv()
                if kind == "said":
                    value.repeat()
                    continue
                with self._changed:
                    self._take_message(worker, discovery, kind, value)
                    self._changed.notify_all()
        except (EOFError, OSError):
            pass
        except Exception as error:
            log.exception("a message of %s could not be taken", worker.process.name)
            with self._changed:
                worker.failure = worker.failure or FatalError(f"{type(error).__name__}: {error}")
        with self._changed:
            if not worker.ended and worker.failure is None:
                worker.failure = UnknownOutcomeError(
                    f"{worker.process.name} (process {worker.process.pid}) ended without a word"
                )
            self._changed.notify_all()

    def _take_message(self, worker: _Worker, discovery: Discovery, kind: str, value: Any) -> None:
        if kind == "saved":
            delta, worker.figures = value
            self._session.offsets.merge_saved(delta)
            self._deltas.append(delta)
            for entry in delta.entries:
                if entry.finished:
                    discovery.settle(entry.get_manager_key(), entry.version)
        elif kind == "figures":
            worker.figures = value
        elif kind == "released":
            assignment, gone = value
            discovery.release(assignment, gone=gone)
        elif kind == "failed":
            worker.failure = value
        elif kind == "ended":
            worker.ended = True
            worker.figures = value

    def _failed(self) -> bool:
        return self._failure is not None or any(worker.failure is not None for worker in self._workers)

    def _check_skipped(self, reporter: Reporter) -> None:
        try:
            reporter.check_skipped()
        except TooManySkippedError as error:
            self._failure = error

    def _keep_books(self) -> None:
        """In this thread: what needs the leader's connection."""
        with self._changed:
            deltas, self._deltas = self._deltas, []
        for delta in deltas:
            self._session.saved(delta)
        self._session.keep_books()

    # ---- handing out

    def _hand_out(self, taken: Sequence[Assignment]) -> bool:
        by_worker: dict[int, list[Assignment]] = defaultdict(list)
        for assignment in taken:
            by_worker[task_of(assignment.entry.lane, len(self._workers))].append(assignment)
        for number, given in by_worker.items():
            for start in range(0, len(given), HAND_OUT):
                self._tell(self._workers[number], ("give", given[start : start + HAND_OUT]))
        return bool(taken)

    def _tell(self, worker: _Worker, message: tuple[str, object]) -> None:
        try:
            with worker.tells:
                worker.pipe.send(message)
        except OSError:
            log.debug("%s has ended already", worker.process.name)  # its listener says why

    def _end_workers(self, *, orderly: bool) -> None:
        if orderly:
            deadline = time.monotonic() + 60.0
            for worker in self._workers:
                self._tell(worker, ("close", None))
        else:
            self._tell_to_stop()
            deadline = self._told_at + STOP_SECONDS
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join(1.0)
            if worker.thread is not None:
                worker.thread.join(1.0)
            worker.pipe.close()
