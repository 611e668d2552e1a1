"""The command without a name: runs the source, until it is stopped or once."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import attrs

from framework.cli.output import Output
from framework.config.loading import load_config
from framework.errors import ConfigError, SourceError
from framework.memory import limit_arenas
from framework.progress import Progress

if TYPE_CHECKING:
    from types import FrameType

    from framework.config.sections import SourceCommonConfig
    from framework.engine.local import LocalEngine
    from framework.metrics import Counters
    from framework.task import AbstractSourceTask

log = logging.getLogger(__name__)


def read_config(task_class: type[AbstractSourceTask], path: Path) -> SourceCommonConfig:
    """The configuration in a file, checked in full, the format included.

    Raises:
        ConfigError: every mistake, each with its place.
    """
    from framework.formats import make_transformer  # noqa: PLC0415 - formats are found when they are used

    root = task_class.config_class
    if root is None:
        raise ConfigError(f"{task_class.__name__} names no config_class, so no file can be read for it")
    config = load_config(path, root)
    try:
        make_transformer(config.input.options())
    except ConfigError as exc:
        raise ConfigError(
            [f"[input] {mistake.removeprefix('input.')}" for mistake in exc.mistakes], origin=str(path)
        ) from exc
    return config


def run_source(task_class: type[AbstractSourceTask], path: Path, *, once: bool, take_over: bool = False) -> int:
    """Runs a source; returns 0 when it ended as asked.

    Raises:
        ConfigError: mistakes in the file.
        SourceError: what ended the run.
    """
    config = read_config(task_class, path)
    limit_arenas()
    with Output(format=config.log.format, level=config.log.level) as output:
        run_engine(task_class, config, output, once=once, take_over=take_over)
    return 0


def run_engine(
    task_class: type[AbstractSourceTask],
    config: SourceCommonConfig,
    output: Output,
    *,
    once: bool,
    take_over: bool = False,
) -> Progress:
    """Runs the configured engine below an output that is open; returns the figures of the run."""
    from framework.engine.local import LocalEngine  # noqa: PLC0415 - loads the door to Iggy

    engine_class: type[LocalEngine] = LocalEngine
    if config.runner.engine == "spark":
        from framework.spark.engine import SparkEngine  # noqa: PLC0415 - the only way to Spark

        engine_class = SparkEngine
    engine = engine_class(task_class, config, once=once, take_over=take_over, report=output.update)
    log.info('source "%s": %s', config.source.name, "everything there is now" if once else "until stopped")
    with _stopped_by_signals(engine), _metrics(config, engine):
        try:
            last = engine.run()
        except SourceError:
            _summary(engine.progress(), config.errors.dead_letter_topic)
            raise
    _summary(last, config.errors.dead_letter_topic)
    # a signal that came with the last record stops what comes after, too
    return attrs.evolve(last, state="stopped") if engine.stop_requested else last


def _summary(progress: Progress, letters: str | None) -> None:
    log.info(
        "%s records of %s objects are in Iggy",
        f"{progress.records:,}",
        f"{progress.objects_done - progress.failed - progress.vanished - progress.archived:,}",
    )
    if progress.skipped or progress.failed or progress.vanished:
        log.warning(
            "left out: %d bad records, the rest of %d objects; %d objects were deleted between list and read",
            progress.skipped,
            progress.failed,
            progress.vanished,
        )
    if letters is not None and progress.letters:
        log.warning(
            '%d dead letters more in topic "%s": "dead-letter show" lists them, "dead-letter replay" sends them again',
            progress.letters,
            letters,
        )
    if progress.archived:
        log.warning("archived and waited for: %d objects, each counted in each pass", progress.archived)
    for reason, count in progress.left_out.items():
        log.info("not read, %s: %d objects", reason, count)


@contextlib.contextmanager
def _stopped_by_signals(engine: LocalEngine) -> Iterator[None]:
    """SIGINT and SIGTERM end the run in order; a second one ends the process as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    came: SimpleQueue[int | None] = SimpleQueue()

    def note(number: int, _frame: FrameType | None) -> None:
        # Runs between any two lines of the main thread, whatever locks that holds: a thread of its own does the rest.
        for one, handler in before.items():
            signal.signal(one, handler)
        came.put(number)

    def stop() -> None:
        number = came.get()
        if number is not None:
            engine.stop()
            log.info("%s: stopping, positions are saved", signal.Signals(number).name)

    stopper = threading.Thread(target=stop, name="signals", daemon=True)
    stopper.start()
    for number in before:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        came.put(None)
        stopper.join()  # a signal that came with the last record counts


@contextlib.contextmanager
def _metrics(config: SourceCommonConfig, engine: LocalEngine) -> Iterator[None]:
    place = config.metrics.host_and_port()
    if place is None:
        yield
        return
    from framework.metrics import serve  # noqa: PLC0415 - only when it is switched on

    with serve(place, lambda: counters_of(engine.progress()), source=config.source.name):
        yield


def counters_of(progress: Progress) -> Counters:
    """The figures of a run as metrics."""
    from framework.metrics import Counters  # noqa: PLC0415

    return Counters(
        records=progress.records,
        size_bytes=progress.record_bytes,
        requests=progress.send_requests,
        objects=progress.objects_done - progress.failed - progress.vanished - progress.archived,
        skipped_records=progress.skipped,
        skipped_objects=progress.failed + progress.vanished,
        retries=progress.retries,
        list_requests=progress.list_requests,
        get_requests=progress.objects_opened,
        passes=progress.passes,
        position_commits=progress.position_commits,
        recoveries=progress.recoveries,
        blocked_seconds=progress.blocked_seconds,
        queue_records=progress.queue_records,
        queue_bytes=progress.queue_bytes,
        lag_objects=max(0, progress.objects_total - progress.objects_done),
        lag_bytes=max(0, progress.bytes_total - progress.bytes_done),
        left_out=dict(progress.left_out),
        kinds=dict(progress.kinds),
        dead_letters=progress.letters,
    )
