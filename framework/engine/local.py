"""The local engine: everything in this process, or one process per task. No JVM.

connect -> recover -> one epoch of work -> (connection broke: connect, recover, go on)
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol

import attrs

from framework.engine.patience import FIRST_ANSWER_SECONDS, Patience
from framework.engine.report import Reporter
from framework.engine.session import IggyTarget, Session
from framework.errors import IggyUnavailableError, TaskClosedError
from framework.pipeline import Pipeline
from framework.progress import Progress

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.iggy.client import IggyConnection
    from framework.task import AbstractSourceTask

log = logging.getLogger(__name__)

STOP_SECONDS = 3.0
"""How long after a stop an answer of Iggy is waited for."""

Report = Callable[[Progress], None]


class Stoppable(Protocol):
    """What an epoch runs, on this engine or another one."""

    def stop(self) -> None:
        """Ends it soon; returns at once, and may be called twice, from any thread or a signal handler."""


class LocalEngine:
    """Runs a source on this machine until it is stopped, or once.

    Guarantee: with one running instance every record is stored once, in the order of its object, also across kills of this
    process and of Iggy.

    Args:
        task_class: the source.
        config: its configuration, checked.
        once: everything there is now, then return.
        take_over: begin although another instance of the source is at work; it ends then.
        report: told of the progress about twice a second, from another thread.
    """

    def __init__(
        self,
        task_class: type[AbstractSourceTask],
        config: SourceCommonConfig,
        *,
        once: bool = False,
        take_over: bool = False,
        report: Report | None = None,
    ) -> None:
        self._take_over = take_over
        self._task_class = task_class
        self._config = with_moment(config)
        self._once = once
        self._stopping = threading.Event()
        # What `run` waits on: an event's lock is held by who waits for it, at times, and a signal handler runs in that thread.
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._running: Stoppable | None = None
        self._connection: IggyConnection | None = None
        self._patience: threading.Timer | None = None
        self._reporter = Reporter(report, skipped_per_hour=config.errors.max_skipped_per_hour)

    def stop(self) -> None:
        """Ends `run` within some seconds, positions saved. May be called twice, from any thread or a signal handler."""
        self._stopping.set()
        self._woken.put(None)
        running = self._running
        if running is not None:
            running.stop()
        if self._patience is None:
            self._patience = threading.Timer(STOP_SECONDS, self._give_up)
            self._patience.daemon = True
            self._patience.start()

    def _give_up(self) -> None:
        """Ends whatever request Iggy still has not answered: their own time limits are longer than a stop may take."""
        connection = self._connection
        if connection is not None:
            connection.close()

    @property
    def stop_requested(self) -> bool:
        """Whether `stop` was called, also when everything was done by then."""
        return self._stopping.is_set()

    def progress(self) -> Progress:
        """The figures as of now; from any thread."""
        return self._reporter.progress()

    def run(self) -> Progress:
        """Runs to the end; returns the figures of the run.

        Raises:
            SourceError: what ended it. Everything before the failure is in the topic, positions saved.
            FatalError: it broke off again and again and got no further.
        """
        with self._reporter, IggyTarget(self._config) as target:
            try:
                self._run_epochs(target)
            finally:
                if self._patience is not None:
                    self._patience.cancel()
            self._reporter.state = "stopped" if self._stopping.is_set() else "done"
        return self._reporter.last

    def _run_epochs(self, target: IggyTarget) -> None:
        # an embedded server that cannot be started at all will not be in a second, either
        patience = Patience(
            self._reporter.work_done, first_answer_seconds=0.0 if target.embedded else FIRST_ANSWER_SECONDS
        )
        own_epochs: set[int] = set()
        while not self._stopping.is_set():
            try:
                self._reporter.state = "recovering" if patience.began else "starting"
                self._connection = connection = target.connect()
                patience.answered = True
                try:
                    self._live(connection, patience, own_epochs)
                finally:
                    connection.close()
            except TaskClosedError as error:
                if not self._stopping.is_set():
                    raise
                # `_give_up` closed the connection under what was still to be asked or saved
                log.warning(
                    "stopped before Iggy had answered everything; the next start finds it in the topic: %s", error
                )
                return
            except IggyUnavailableError as error:
                if self._stopping.is_set():
                    log.warning("stopped while Iggy was away; what it did not confirm comes again: %s", error)
                    return
                at_work, pause = patience.at_work, patience.broke(error)
                if at_work:
                    log.warning("work broke off, recovering in %.1f seconds: %s", pause, error)
                else:
                    log.warning("Iggy is away, connecting again in %.1f seconds: %s", pause, error)
                self._reporter.state = "reconnecting"
                with contextlib.suppress(Empty):
                    self._woken.get(timeout=pause)
            else:
                return

    def _live(self, connection: IggyConnection, patience: Patience, own_epochs: set[int]) -> None:
        """One epoch. Its millions of positions go with it, before the next recovery loads them again."""
        take_over = self._take_over and not patience.began
        session = Session(connection, self._config, own_epochs=own_epochs, take_over=take_over)
        own_epochs.add(session.recovered.epoch)
        if patience.began:
            self._reporter.recovered()
        else:
            self._reporter.expect_left_out(session.recovered.left_out)
        patience.connected(session.recovered.stored_records)
        self._run_epoch(session)

    def _run_epoch(self, session: Session) -> None:
        if (self._config.runner.tasks_max or 1) > 1:
            from framework.engine.processes import ProcessGroup  # noqa: PLC0415 - one task needs no processes

            group = ProcessGroup(self._task_class, self._config, session, once=self._once)
            with self._stops(group):
                group.run(self._stopping, self._reporter)
            self._finish(session)
        else:
            self._run_task(session)

    @contextlib.contextmanager
    def _stops(self, running: Stoppable) -> Iterator[None]:
        """For as long as it is at work, `stop` stops it, too."""
        self._running = running
        try:
            if self._stopping.is_set():  # it was asked for before there was anything to stop
                running.stop()
            yield
        finally:
            self._running = None

    def _finish(self, session: Session) -> None:
        """After everything was done, and while the connection is there."""
        if not self._stopping.is_set():
            session.finish()

    def _run_task(self, session: Session) -> None:
        task = self._task_class()
        producer = session.producer()
        try:
            task.start(self._config, offsets=session.offsets, once=self._once)
            pipeline = Pipeline(
                task,
                producer,
                self._config,
                open_lane=session.lanes.open_lane,
                on_saved=session.saved,
                on_idle=session.lanes.verify_when_due,
                dead_letters=session.dead_letters(),
                on_turn=session.watch.look_when_due,
            )
            self._reporter.watch(task, pipeline)
            with self._stops(pipeline):
                pipeline.run()
            self._finish(session)
        finally:
            self._reporter.unwatch()
            task.stop()
            producer.close()


def with_moment(config: SourceCommonConfig) -> SourceCommonConfig:
    """`modified_after = "now"` as the time of this start, so that a recovery later on means the same moment."""
    if config.discovery.modified_after != "now":
        return config
    moment = datetime.now(timezone.utc).isoformat()
    return attrs.evolve(config, discovery=attrs.evolve(config.discovery, modified_after=moment))
