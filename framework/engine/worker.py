"""One task in a process of its own: the other side of `framework.engine.processes`."""

from __future__ import annotations

import logging
import signal
import threading
from collections import deque
from multiprocessing.connection import Connection

from framework.engine.said import Teller
from framework.engine.task_run import TaskRun, WorkerPlan, portable
from framework.errors import FatalError, SourceError
from framework.feed import Assignment, HandedFeed
from framework.leaving import leave
from framework.memory import limit_arenas
from framework.offsets import PositionDelta

log = logging.getLogger(__name__)

FIGURES_SECONDS = 0.5


class _Voice:
    """The pipe to the leader, shared by the worker's threads. A leader that is gone is told nothing.

    What the collector ends may write to the log, at any time: also in the middle of a message, in the thread that sends it.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.RLock()
        self._sending = False
        self._waiting: deque[tuple[str, object]] = deque()

    def tell(self, kind: str, value: object) -> None:
        self._waiting.append((kind, value))
        with self._lock:
            if self._sending:  # by this thread, below: it is sent behind that message
                return
            self._sending = True
            try:
                while self._waiting:
                    self._pipe.send(self._waiting.popleft())
            except (OSError, ValueError):
                log.debug("the leader is gone")
            finally:
                self._sending = False


def work(plan: WorkerPlan, pipe: Connection) -> None:
    """Runs one task over the objects that the leader gives, until it says that there are no more, or stop."""
    limit_arenas()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the leader stops us, in its order
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    voice = _Voice(pipe)
    # The leader writes the log, ours with it: as its options say, and above its progress bar.
    logging.getLogger().addHandler(Teller(lambda said: voice.tell("said", said)))
    try:
        _run(plan, pipe, voice)
    except SourceError as error:
        voice.tell("failed", portable(error))
    except Exception as error:
        log.exception("a worker failed")
        voice.tell("failed", FatalError(f"{type(error).__name__}: {error}"))
    finally:
        pipe.close()
    leave(0)  # the leader knows all that it has to know


def _run(plan: WorkerPlan, pipe: Connection, voice: _Voice) -> None:
    def released(assignment: Assignment, gone: bool) -> None:
        voice.tell("released", (assignment, gone))

    def saved(delta: PositionDelta) -> None:
        voice.tell("saved", (delta, run.figures()))

    feed = HandedFeed(on_release=released)
    run = TaskRun(plan, feed, on_saved=saved)
    ended = threading.Event()
    try:
        threading.Thread(target=_listen, args=(pipe, feed, run), name="leader", daemon=True).start()
        threading.Thread(target=_tell_figures, args=(voice, run, ended), name="figures", daemon=True).start()
        try:
            run.run()
        finally:
            ended.set()
        voice.tell("ended", run.figures())
    finally:
        run.close()


def _listen(pipe: Connection, feed: HandedFeed, run: TaskRun) -> None:
    try:
        while True:
            kind, value = pipe.recv()
            if kind == "give":
                feed.give(value)
            elif kind == "close":
                feed.close()
            else:
                run.stop()
    except (EOFError, OSError, TypeError):  # TypeError: closed by ourselves while it waited
        run.stop()  # the leader is gone: save what is confirmed and end


def _tell_figures(voice: _Voice, run: TaskRun, ended: threading.Event) -> None:
    while not ended.wait(FIGURES_SECONDS):
        voice.tell("figures", run.figures())
