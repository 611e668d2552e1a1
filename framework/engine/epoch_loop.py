"""What all engines do: connect -> recover -> one epoch of work -> (connection broke: connect, recover, continue).

What an epoch's work is, and who does it, the engines differ in: `framework.engine.local`, `framework.engine.spark.engine`.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import attrs

from framework.engine.iggy_target import IggyTarget
from framework.engine.reconnect_policy import ReconnectPolicy
from framework.engine.reporter import Reporter
from framework.engine.run_statistics import RunStatistics
from framework.engine.session import Session
from framework.engine.standby import Standby
from framework.errors import IggyUnavailableError, SourceRunningError, TaskClosedError, drop_tracebacks
from framework.storage.daemon_threads import start_timer

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.iggy.connection import IggyConnection
    from framework.task import AbstractSourceTask

log = logging.getLogger(__name__)

STOP_SECONDS = 3.0
"""Time after a stop before requests that Iggy has not answered are ended."""

Report = Callable[[RunStatistics], None]

_Result = TypeVar("_Result")


@attrs.define(eq=False, repr=False, slots=False)
class Engine(abc.ABC):
    """Run a source until it is stopped, or once.

    Guarantee: with one running instance every record is stored once, in the order of its object, also across kills of
    this process and of Iggy.

    Args:
        task_class: the source.
        config: its validated configuration.
        once: read everything that exists now, then return.
        take_over: begin although another instance of the source is running; that instance then ends.
        standby: wait until no other instance of the source runs, then begin.
        report: called with the progress about twice a second, from another thread.
        on_standby: called when a standby begins to wait.
        on_claimed: called when this instance has begun an epoch, and again after each recovery.
    """

    _task_class: type[AbstractSourceTask]
    _config: SourceCommonConfig
    _once: bool = attrs.field(default=False, kw_only=True)
    _take_over: bool = attrs.field(default=False, kw_only=True)
    _standby: bool = attrs.field(default=False, kw_only=True)
    _report: Report | None = attrs.field(default=None, kw_only=True)
    _on_standby: Callable[[], None] = attrs.field(default=lambda: None, kw_only=True)
    _on_claimed: Callable[[], None] = attrs.field(default=lambda: None, kw_only=True)
    _stop_running: Callable[[], None] | None = attrs.field(default=None, init=False)
    _connection: IggyConnection | None = attrs.field(default=None, init=False)
    _stop_timer: threading.Timer | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._stopping = threading.Event()
        self._reporter = Reporter(self._report, skipped_per_hour=self._config.errors.max_bad_records_per_hour)

    def stop(self) -> None:
        """End `run` within some seconds, positions saved. Idempotent; callable from any thread, but not from a signal handler."""
        self._stopping.set()
        stop_running = self._stop_running
        if stop_running is not None:  # in a thread: it may wait for a store, or for an answer of Iggy
            threading.Thread(target=stop_running, name="stop", daemon=True).start()
        if self._stop_timer is None:
            self._stop_timer = start_timer(STOP_SECONDS, self._abandon)

    def _abandon(self) -> None:
        """Abort requests that Iggy has not answered: their own timeouts exceed the time a stop may take."""
        connection = self._connection
        if connection is not None:
            connection.close()

    @property
    def stop_requested(self) -> bool:
        """Whether `stop` was called, even if everything was done by then."""
        return self._stopping.is_set()

    def progress(self) -> RunStatistics:
        """Return the current figures. Thread-safe."""
        return self._reporter.progress()

    def run(self) -> RunStatistics:
        """Run to the end; return the figures of the run.

        Raises:
            SourceError: the failure that ended the run. Everything before it is in the topic, positions saved.
            FatalError: the run failed repeatedly without progress.
        """
        with self._reporter, IggyTarget(self._config) as target:
            for warning in target.network_warnings():
                log.warning("[iggy]: %s", warning)
            try:
                self._run_in_turn(target)
            finally:
                if self._stop_timer is not None:
                    self._stop_timer.cancel()
            self._reporter.state = "stopped" if self._stopping.is_set() else "done"
        return self._reporter.last

    def _run_in_turn(self, target: IggyTarget) -> None:
        """Run; as a standby, when no other instance runs. A standby that another one precedes waits again."""
        if not self._standby:
            self._run_epochs(target)
            return
        self._on_standby()
        standby = Standby(self._config, self._reporter, stopping=self._stopping)
        self._reporter.state = "standby"
        while self._reconnecting(target, standby.watch):
            try:
                self._run_epochs(target)
            except SourceRunningError as error:
                if self._stopping.is_set():
                    return
                log.warning("standby again: %s", error)
                self._reporter.state = "standby"
            else:
                return

    @contextlib.contextmanager
    def _connected(self, target: IggyTarget) -> Iterator[IggyConnection]:
        """Connect; a stop ends the attempt, and can close the connection while it is open."""
        with self._stops(target.stop):
            self._connection = connection = target.connect()
        try:
            yield connection
        finally:
            connection.close()

    def _run_epochs(self, target: IggyTarget) -> None:
        self._reporter.state = "starting"
        own_epochs: set[int] = set()
        self._reconnecting(target, lambda connection, policy: self._run_epoch(connection, policy, own_epochs))

    def _reconnecting(
        self, target: IggyTarget, work: Callable[[IggyConnection, ReconnectPolicy], _Result]
    ) -> _Result | None:
        """Connect and work; after a broken connection, again. Return None when a stop came first."""
        policy = ReconnectPolicy(self._reporter.work_done, first_answer_seconds=target.startup_seconds)
        while not self._stopping.is_set():
            try:
                with self._connected(target) as connection:
                    policy.answered = True
                    if self._stopping.is_set():  # while it connected: `_abandon` may have run, and runs once
                        return None
                    return work(connection, policy)
            except (TaskClosedError, IggyUnavailableError) as error:
                if self._stopping.is_set():
                    how = "while Iggy was away; what it did not confirm comes again"
                    if isinstance(error, TaskClosedError):  # by `_abandon`, or the store was not open yet
                        how = "before everything was answered; the next start goes on from what the topic holds"
                    if policy.began:  # a start that waited for its turn has sent nothing
                        log.warning("stopped %s: %s", how, error)
                    return None
                if isinstance(error, TaskClosedError):
                    raise
                what = "work broke off, recovering" if policy.at_work else "Iggy is away, connecting again"
                pause = policy.broke(error)
                log.warning("%s in %.1f seconds: %s", what, pause, error)
                drop_tracebacks(error)  # their frames hold what was being sent
                self._reporter.state = "reconnecting"
                self._stopping.wait(pause)
        return None

    def _run_epoch(self, connection: IggyConnection, policy: ReconnectPolicy, own_epochs: set[int]) -> None:
        """Run one epoch. Its positions, perhaps millions, are freed before the next recovery loads them again."""
        self._reporter.state = "recovering" if policy.began else "starting"
        take_over = self._take_over and not policy.began
        with self._stops(connection.close):  # nothing was sent yet, so a stop need not wait for its requests
            session = Session.begin(
                connection,
                self._config,
                own_epochs=own_epochs,
                take_over=take_over,
                several_writers=self._several_writers,
            )
            own_epochs.add(session.epoch.number)
            self._on_claimed()
            if self._several_writers:
                session.open_forgetful_partitions()
            else:
                session.open_partitions()
        if policy.began:
            self._reporter.recovered()
        self._reporter.expect_skipped(session.skipped_lately())
        policy.connected(session.stored_records)
        self._run_tasks(session)
        if not self._stopping.is_set():
            session.finish()

    @property
    @abc.abstractmethod
    def _several_writers(self) -> bool:
        """Whether other processes send, and this process only leads."""

    @abc.abstractmethod
    def _run_tasks(self, session: Session) -> None:
        """Read and send until everything is done, a stop, or a failure."""

    @contextlib.contextmanager
    def _stops(self, stop_running: Callable[[], None]) -> Iterator[None]:
        """Let `stop` also stop this work while it runs. It is called from any thread, perhaps more than once."""
        self._stop_running = stop_running
        try:
            if self._stopping.is_set():  # stop was called before there was anything to stop
                stop_running()
            yield
        finally:
            self._stop_running = None
