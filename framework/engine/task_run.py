"""One task under a leader: its own connection, its own partitions, its own progress in the offsets log.

Shared by the worker processes of the local engine and the Python workers of Spark.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import attrs

from framework.config.iggy_address import IggyAddress
from framework.engine.iggy_target import open_connection
from framework.engine.partition_opener import PartitionOpener
from framework.engine.reporter import statistics_of
from framework.engine.session import FOLLOW_SECONDS, make_producer
from framework.errors import FatalError, ReaderFailedError, SourceError, UnknownOutcomeError
from framework.iggy.connection import IggyConnection
from framework.iggy.dead_letters.writer import IggyDeadLetters
from framework.iggy.offset_log.fencing import claim_partitions
from framework.iggy.offset_log.log import DuePolls, OffsetLog
from framework.iggy.offset_log.log_offset_store import LogOffsetStore, manager_of
from framework.iggy.offset_log.records import LogFacts
from framework.iggy.offset_log.state import LogState
from framework.model.objects import TopicPartition
from framework.model.positions import OffsetManagerEntry
from framework.offsets.manager import StartFacts
from framework.offsets.position_map import begin_in
from framework.offsets.skip_history import SkippedCount
from framework.pipeline.sender import STOP_SECONDS, Sender
from framework.pipeline.task_statistics import TaskStatistics
from framework.storage.daemon_threads import start_timer

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.discovery.object_feed import AssignedFeed
    from framework.engine.session import Session
    from framework.task import AbstractSourceTask


Connect = Callable[[IggyAddress, "SourceCommonConfig"], IggyConnection]


@attrs.frozen(kw_only=True)
class TaskRunPlan:
    """Input of a worker; pickled for transport.

    Attributes:
        task_class: the source.
        config: its configuration.
        address: address of Iggy.
        epoch: the epoch that the leader began.
        log_from: offset up to which the leader has read the log; the fields below are the state at that offset.
        facts: what the log says of the worker's partitions.
        entries: the pending positions of these partitions.
        partitions: partitions that an earlier worker of this epoch may have written.
        skipped_lately: what earlier runs skipped within the last hour.
        once: whether the run ends after one complete listing; a store outage then ends it.
    """

    task_class: type[AbstractSourceTask]
    config: SourceCommonConfig
    address: IggyAddress
    epoch: int
    log_from: int
    facts: LogFacts = attrs.field(factory=LogFacts)
    entries: Sequence[OffsetManagerEntry] = ()
    partitions: Sequence[TopicPartition] = ()
    skipped_lately: Sequence[SkippedCount] = ()
    once: bool = False

    @classmethod
    def of(
        cls,
        session: Session,
        task_class: type[AbstractSourceTask],
        topic_partitions: Collection[TopicPartition],
        *,
        shared: bool = False,
        once: bool = False,
    ) -> TaskRunPlan:
        """Return the plan of one worker.

        Args:
            session: the leader's session.
            task_class: the source.
            topic_partitions: the partitions that the worker writes, as far as they are known.
            shared: whether an earlier worker of this epoch may have written them.
            once: whether the run ends after one complete listing.
        """
        state = session.state
        with session.offsets.table.lock:
            return cls(
                task_class=task_class,
                config=session.config,
                address=session.connection.address,
                epoch=session.epoch.number,
                log_from=session.log.next_offset,
                facts=state.of_partitions(topic_partitions),
                entries=[entry for _, entry in state.positions.pending() if entry.topic_partition in topic_partitions],
                partitions=sorted(topic_partitions) if shared else (),
                skipped_lately=session.skipped_lately(),
                once=once,
            )

    def state(self) -> LogState:
        """Return the log's state of the worker's partitions, as of `log_from`."""
        state = LogState(
            source=self.config.source.name,
            epoch=self.epoch,
            last_epoch=self.epoch,
            **self.facts.facts(),
        )
        for entry in self.entries:
            begin_in(state.positions, entry)
        state.reindex()
        return state


class TaskRun:
    """A task that runs for a leader. `start` it, `run` it in the same thread, `close` it; call `stop` from any thread."""

    def __init__(self, plan: TaskRunPlan, task: AbstractSourceTask, connection: IggyConnection) -> None:
        config = plan.config
        self.task = task
        self._plan = plan
        self._connection = connection
        self._log = OffsetLog.of(connection, config)
        self._log.next_offset = plan.log_from
        self._due = DuePolls(FOLLOW_SECONDS)
        self._sender: Sender
        self._partitions: PartitionOpener
        self._stop_timer: threading.Timer | None = None

    @classmethod
    def start(
        cls,
        plan: TaskRunPlan,
        feed: AssignedFeed,
        *,
        connect: Connect = open_connection,
        on_opened: Callable[[TaskStatistics], None] = lambda _: None,
    ) -> TaskRun:
        """Connect, claim the partitions, and start the task.

        Args:
            plan: the worker's plan.
            feed: the objects that the leader assigns.
            connect: opens the task's connection to Iggy.
            on_opened: called with what was found stored in the partitions: they tell it once, and the start takes longer.

        Raises:
            IggyUnavailableError, IggyAuthError: no connection.
            UnknownOutcomeError: the epoch is over.
            SourceError: starting the task failed.
        """
        task = plan.task_class()
        run = cls(plan, task, connect(plan.address, plan.config))
        try:
            run._start(feed, on_opened)
        except BaseException:
            run.close()
            raise
        return run

    def _start(self, feed: AssignedFeed, on_opened: Callable[[TaskStatistics], None]) -> None:
        plan, config, state = self._plan, self._plan.config, self._plan.state()
        own = state.partitions  # before the state follows the log, to what other workers opened
        claim = claim_partitions(self._log, state, plan.epoch, plan.partitions)
        store = LogOffsetStore(self._log, state, epoch=plan.epoch, writer=claim.token, pipelined=True)
        offsets = manager_of(state, store, StartFacts(skipped_lately=plan.skipped_lately))
        self._partitions = opener = PartitionOpener(
            self._log, config, state, offsets, store, epoch=plan.epoch, writer=claim.token
        )
        opener.open(own)
        on_opened(opener.statistics)
        self.task.start(config, offsets=offsets, feed=feed, once=plan.once)
        self._sender = Sender(
            self.task,
            make_producer(self._connection, config, offsets),
            config,
            open_partition=opener.open_one,
            # otherwise a worker would hold every object that it ever read
            on_saved=lambda delta: offsets.table.forget_final(delta.entries),
            dead_letters=IggyDeadLetters.of(self._connection, config),
            on_turn=self._look_when_due,
        )

    def _look_when_due(self) -> None:
        if self._due.take():
            for message in self._log.follow():
                if message.epoch > self._plan.epoch and message.kind in {"claim", "opening"}:
                    raise UnknownOutcomeError(f'another epoch of source "{self._log.source}" began')

    def run(self) -> None:
        """Send the assigned objects until the leader closes the feed, or `stop`. Raises what `Sender.run` raises."""
        self._sender.run()

    def stop(self) -> None:
        """End `run` soon, positions saved. Requests that Iggy has not answered by then are aborted."""
        self._sender.stop()
        if self._stop_timer is None:
            self._stop_timer = start_timer(STOP_SECONDS, self._connection.close)

    def statistics(self) -> TaskStatistics:
        """Return the current statistics."""
        return TaskStatistics.total(statistics_of(self.task, self._sender, self._partitions))

    def close(self) -> None:
        """Stop the reader and close the connection. Idempotent."""
        if self._stop_timer is not None:
            self._stop_timer.cancel()
        self.task.stop()
        self._connection.close()


def portable(error: Exception) -> SourceError:
    """Return a source's error if it can be pickled, else a `FatalError` with the same message.

    Any other error gets the exit code and the trace that it has in a run of one task.
    """
    if not isinstance(error, SourceError):
        return ReaderFailedError.of(error)
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    except Exception:  # noqa: BLE001 - whatever pickling raises, the message must get through
        return FatalError(str(error))
    return error
