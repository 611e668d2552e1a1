"""One task under a leader: its own connection, its own lanes, its own deltas in the offsets topic.

What a worker process of the local engine and a Python worker of Spark have in common.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from framework.engine.report import TaskFigures
from framework.engine.session import LaneKeeper, make_producer, open_connection
from framework.errors import FatalError, SourceError
from framework.iggy.address import IggyAddress
from framework.iggy.dead_letters import IggyDeadLetters
from framework.iggy.position_log import EpochWatch, LogOffsetStore, PositionLog
from framework.offsets import OffsetManager, PositionDelta
from framework.pipeline import Pipeline
from framework.records import Anchor, Lane
from framework.skip_limits import LeftOut

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.feed import HandedFeed
    from framework.task import AbstractSourceTask


@attrs.frozen(kw_only=True)
class WorkerPlan:
    """What a worker needs to begin; travels pickled.

    Attributes:
        task_class: the source.
        config: its configuration.
        address: where Iggy answers.
        epoch: the epoch that the leader began.
        base: its snapshot.
        log_from: an offset up to which the leader has read the log.
        anchors: the worker's lanes and where they end.
        left_out: what earlier runs left out within the last hour.
    """

    task_class: type[AbstractSourceTask]
    config: SourceCommonConfig
    address: IggyAddress
    epoch: int
    base: int
    log_from: int
    anchors: Mapping[Lane, Anchor | None]
    left_out: Sequence[LeftOut] = ()


class TaskRun:
    """A task at work for a leader. Make it, `run` it in the same thread, `close` it; `stop` from any thread.

    Args:
        plan: what to run.
        feed: the objects that the leader gives.
        on_saved: told of every delta that was saved.

    Raises:
        IggyUnavailableError, IggyAuthError: no connection.
        UnknownOutcomeError: the epoch is over.
        SourceError: what starting the task raises.
    """

    def __init__(self, plan: WorkerPlan, feed: HandedFeed, *, on_saved: Callable[[PositionDelta], None]) -> None:
        config = plan.config
        self._on_saved = on_saved
        self.task: AbstractSourceTask = plan.task_class()
        self._connection = open_connection(plan.address, config)
        try:
            position_log = PositionLog(
                self._connection, stream=config.iggy.stream, topic=config.offsets_topic, source=config.source.name
            )
            position_log.claim(plan.epoch, leader=False)
            position_log.check_epoch(plan.epoch, plan.log_from)
            watch = EpochWatch(position_log, epoch=plan.epoch, since=position_log.next_offset)
            store = LogOffsetStore(position_log, epoch=plan.epoch, base=plan.base, watch=watch)
            offsets = OffsetManager(store, left_out_lately=plan.left_out)
            for lane, anchor in plan.anchors.items():
                offsets.set_anchor(lane, anchor)
            lanes = LaneKeeper(self._connection, config, offsets, on_saved=self._lane_opened)
            self.task.start(config, offsets=offsets, feed=feed)
            self.pipeline = Pipeline(
                self.task,
                make_producer(self._connection, config, plan.anchors),
                config,
                open_lane=lanes.open_lane,
                on_saved=self._saved,
                on_idle=lanes.verify_when_due,
                dead_letters=IggyDeadLetters.of(self._connection, config),
                on_turn=watch.look_when_due,
            )
        except BaseException:
            self.close()
            raise

    def _lane_opened(self, delta: PositionDelta) -> None:
        self._on_saved(delta)

    def _saved(self, delta: PositionDelta) -> None:
        self._on_saved(delta)
        self.task.offsets.forget(delta.entries)  # or a worker would hold every object that it ever read

    def run(self) -> None:
        """Sends what the leader gives until it closes the feed, or `stop`. Raises what `Pipeline.run` raises."""
        self.pipeline.run()

    def stop(self) -> None:
        """Ends `run` soon, positions saved."""
        self.pipeline.stop()

    def figures(self) -> TaskFigures:
        """What was done so far."""
        return TaskFigures.of(self.task, self.pipeline)

    def close(self) -> None:
        """Ends the reader and the connection. May be called twice."""
        self.task.stop()
        self._connection.close()


def portable(error: SourceError) -> SourceError:
    """The error itself when it can be pickled, else one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    except Exception:  # noqa: BLE001 - whatever pickling raises, the sentence must get through
        return FatalError(str(error))
    return error
