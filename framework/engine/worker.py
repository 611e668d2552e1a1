"""One task in a process of its own: the other side of `framework.engine.processes`."""

from __future__ import annotations

import logging
import pickle
import signal
import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import attrs

from framework.engine.report import TaskFigures
from framework.engine.session import LaneKeeper, make_producer, open_connection
from framework.errors import FatalError, SourceError
from framework.feed import HandedFeed
from framework.iggy.address import IggyAddress
from framework.iggy.position_log import LogOffsetStore, PositionLog
from framework.memory import limit_arenas
from framework.offsets import OffsetManager, PositionDelta
from framework.pipeline import Pipeline
from framework.records import Anchor, Lane, NativeObject

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.task import AbstractSourceTask

log = logging.getLogger(__name__)

FIGURES_SECONDS = 0.5


@attrs.frozen(kw_only=True)
class WorkerPlan:
    """What a worker needs to begin; travels pickled.

    Attributes:
        task_class: the source.
        config: its configuration.
        address: where Iggy answers.
        epoch: the epoch that the leader began.
        base: its snapshot.
        anchors: the worker's lanes and where they end.
    """

    task_class: type[AbstractSourceTask]
    config: SourceCommonConfig
    address: IggyAddress
    epoch: int
    base: int
    anchors: dict[Lane, Anchor | None]


class _Teller:
    """The pipe to the leader, shared by the worker's threads. A leader that is gone is told nothing."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def tell(self, kind: str, value: object) -> None:
        with self._lock:
            try:
                self._pipe.send((kind, value))
            except (OSError, ValueError):
                log.debug("the leader is gone")


def work(plan: WorkerPlan, pipe: Connection) -> None:
    """Runs one task over the objects that the leader gives, until it says that there are no more, or stop."""
    limit_arenas()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the leader stops us, in its order
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    teller = _Teller(pipe)
    try:
        _run(plan, pipe, teller)
    except SourceError as error:
        teller.tell("failed", _portable(error))
    except Exception as error:
        log.exception("a worker failed")
        teller.tell("failed", FatalError(f"{type(error).__name__}: {error}"))
    finally:
        pipe.close()


def _run(plan: WorkerPlan, pipe: Connection, teller: _Teller) -> None:
    config = plan.config
    connection = open_connection(plan.address, config)
    task = plan.task_class()
    try:
        position_log = PositionLog(
            connection, stream=config.iggy.stream, topic=config.offsets_topic, source=config.source.name
        )
        position_log.claim(plan.epoch, leader=False)
        offsets = OffsetManager(LogOffsetStore(position_log, epoch=plan.epoch, base=plan.base))
        for lane, anchor in plan.anchors.items():
            offsets.set_anchor(lane, anchor)
        lanes = LaneKeeper(connection, config, offsets)

        def released(native: NativeObject, gone: bool) -> None:
            teller.tell("released", (native, gone))

        feed = HandedFeed(on_release=released)
        task.start(config, offsets=offsets, feed=feed)

        def saved(delta: PositionDelta) -> None:
            teller.tell("saved", (delta, TaskFigures.of(task, pipeline)))

        pipeline = Pipeline(
            task,
            make_producer(connection, config, plan.anchors),
            config,
            open_lane=lanes.open_lane,
            on_saved=saved,
            on_idle=lanes.verify_when_due,
        )
        ended = threading.Event()
        threading.Thread(target=_listen, args=(pipe, feed, pipeline), name="leader", daemon=True).start()
        threading.Thread(
            target=_tell_figures, args=(teller, task, pipeline, ended), name="figures", daemon=True
        ).start()
        try:
            pipeline.run()
        finally:
            ended.set()
        teller.tell("ended", TaskFigures.of(task, pipeline))
    finally:
        task.stop()
        connection.close()


def _listen(pipe: Connection, feed: HandedFeed, pipeline: Pipeline) -> None:
    try:
        while True:
            kind, value = pipe.recv()
            if kind == "give":
                feed.give(value)
            elif kind == "close":
                feed.close()
            else:
                pipeline.stop()
    except (EOFError, OSError):
        pipeline.stop()  # the leader is gone: save what is confirmed and end


def _tell_figures(teller: _Teller, task: AbstractSourceTask, pipeline: Pipeline, ended: threading.Event) -> None:
    while not ended.wait(FIGURES_SECONDS):
        teller.tell("figures", TaskFigures.of(task, pipeline))


def _portable(error: SourceError) -> SourceError:
    """The error itself when it can be pickled, else one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    except Exception:  # noqa: BLE001 - whatever pickling raises, the sentence must get through
        return FatalError(str(error))
    return error
