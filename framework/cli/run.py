"""The program without a command: runs the source, continuously or once."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from framework.cli.config_file import ConfigFile, Flags
from framework.cli.signals import stopped_by_signals
from framework.cli.terminal import Output
from framework.config.bucket import BucketConfig
from framework.config.layers import Layer, environment_layers, file_layers, merge, setting_layers, value_at
from framework.config.loading import Loaded, load
from framework.discovery.object_filters import FilterReason
from framework.engine.process_setup import set_up_process
from framework.engine.run_statistics import RunStatistics
from framework.errors import EXIT_DONE, EXIT_TRY_AGAIN, ConfigError, FatalError, IggyTopicError, SourceError
from framework.model.open_files import allow_open_files
from framework.model.text import counted

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.engine.epoch_loop import Engine
    from framework.engine.metrics_server import MetricsServer
    from framework.iggy.connection import IggyConnection
    from framework.runtime.child_channel import ChildChannel
    from framework.task import AbstractSourceTask

log = logging.getLogger(__name__)

INTERRUPTED = "interrupted before everything was sent: start it again, and it goes on from here"
"""Of a run with `--once`."""

TAKEN_OVER_SECONDS = 5.0
"""Maximum wait for the port of an instance that was taken over: it ends within that time."""


def load_source(
    task_class: type[AbstractSourceTask], file: ConfigFile, *, may_wait: bool = True
) -> Loaded[SourceCommonConfig]:
    """Return the configuration in a file with its overrides, fully checked, and the origins of its values.

    Args:
        task_class: the source.
        file: its configuration.
        may_wait: whether `${file:PATH}` may be a pipe, which is waited for.

    Raises:
        ConfigError: all mistakes, each with its place.
    """
    root = config_class_of(task_class)
    return load(file.path, root, settings=file.settings, may_wait=may_wait, layers=file.layers)


def config_class_of(task_class: type[AbstractSourceTask]) -> type[SourceCommonConfig]:
    """Return the root class of a source's configuration.

    Raises:
        ConfigError: the source names none.
    """
    if task_class.config_class is None:
        raise ConfigError(f"{task_class.__name__} names no config_class, so it has no configuration")
    return task_class.config_class


def is_new(config: SourceCommonConfig) -> bool:
    """Return whether nothing can have been read yet: the folder of the embedded server does not exist."""
    from framework.engine.iggy_target import IggyTarget  # noqa: PLC0415 - loads the door to Iggy

    return IggyTarget(config).missing_folder is not None


@contextlib.contextmanager
def reached(config: SourceCommonConfig) -> Iterator[IggyConnection]:
    """Yield a connection for a read-only command. It creates nothing, not even the embedded server's folder.

    Raises:
        IggyTopicError: the folder does not exist.
        SourceError: the connection fails.
    """
    from framework.engine.iggy_target import IggyTarget  # noqa: PLC0415 - loads the door to Iggy

    with IggyTarget(config) as target:
        if target.missing_folder is not None:
            raise IggyTopicError(f"[iggy] url: there is no folder {target.missing_folder} yet: run the source first")
        with target.connect() as connection:
            yield connection


def wants_json(
    task_class: type[AbstractSourceTask],
    path: Path | None,
    settings: Sequence[str],
    layers: Sequence[Layer] | None = None,
) -> bool:
    """Return whether a log of JSON lines is asked for; works with mistakes elsewhere, which are then JSON too.

    Of a pipe nothing is known here: it can be read once, and the loader does that.
    """
    root = config_class_of(task_class)
    found: list[Layer] = []
    with contextlib.suppress(ConfigError, OSError):  # the loader says what is wrong with the file
        if layers is not None:
            found += layers
        elif path is not None and not path.is_fifo():
            found += file_layers(path)
    ignored: list[str] = []
    found += environment_layers(os.environ, root, (), ignored.append, ignored.append)
    found += setting_layers(settings, root, ignored.append)
    return bool(value_at(merge(found).values, ("log", "format")) == "json")


def run_source(
    task_class: type[AbstractSourceTask],
    config: SourceCommonConfig,
    flags: Flags,
    *,
    channel: ChildChannel | None = None,
    log_source: str = "",
) -> int:
    """Run a source; return 0 when it ended as requested, and 1 when `--once` was interrupted.

    Args:
        task_class: the source.
        config: its configuration.
        flags: what the command line says.
        channel: the line to the worker that started this process.
        log_source: the source's key, on each line of the log.

    Raises:
        SourceError: the error that ended the run.
    """
    allow_open_files()
    set_up_process()
    with Output(format=config.log.format, level=config.log.level, source=log_source) as output:
        last = run_engine(task_class, config, output, flags, channel=channel)
        if flags.once and last.state == "stopped":
            log.warning(INTERRUPTED)
            return EXIT_TRY_AGAIN
    return EXIT_DONE


def run_engine(
    task_class: type[AbstractSourceTask],
    config: SourceCommonConfig,
    output: Output,
    flags: Flags,
    *,
    channel: ChildChannel | None = None,
) -> RunStatistics:
    """Run the configured engine below an open output; return the figures of the run."""
    engine_class = _engine_class(config)
    watch = EmptyWatch(config)

    def report(progress: RunStatistics) -> None:
        output.update(progress)
        watch.observe(progress)
        if channel is not None:
            channel.report(progress)

    metrics = _Metrics(config, take_over=flags.take_over or flags.standby)
    engine = engine_class(
        task_class,
        config,
        **attrs.asdict(flags),
        report=report,
        on_standby=lambda: metrics.open(engine, standby=True),
        on_claimed=lambda: metrics.open(engine),
    )

    def stop() -> None:
        output.stopping()
        engine.stop()

    if channel is not None:
        channel.on_stop(stop)
    log.info('source "%s": %s', config.source.name, "everything there is now" if flags.once else "until stopped")
    with stopped_by_signals(stop), contextlib.closing(metrics):
        try:
            last = engine.run()
        except SourceError:
            progress = engine.progress()
            if progress.began:
                _summary(progress, config)
            raise
    _summary(last, config)
    # a signal that came with the last record stops what comes after, too
    return attrs.evolve(last, state="stopped") if engine.stop_requested else last


def _engine_class(config: SourceCommonConfig) -> type[Engine]:
    if config.runner.engine != "spark":
        from framework.engine.local import LocalEngine  # noqa: PLC0415 - loads the door to Iggy

        return LocalEngine
    require_pyspark()
    from framework.engine.spark.engine import SparkEngine  # noqa: PLC0415 - the only way to Spark

    return SparkEngine


OLDEST_PYSPARK = 4


def require_pyspark() -> None:
    """Check that the engine "spark" is installed, in a version that works. Imports nothing.

    Raises:
        FatalError: it is not.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise FatalError(
            'engine "spark" needs the package pyspark: pip install "pyspark>=4", or set [runner] engine = "local"'
        )
    place = Path(spec.origin).parent
    try:
        found = re.search(r'^__version__.*?["\'](\d+)\.([^"\']*)', (place / "version.py").read_text(), re.MULTILINE)
    except (OSError, UnicodeDecodeError):  # in an archive; its own import says more
        return
    if found is not None and int(found[1]) < OLDEST_PYSPARK:
        raise FatalError(
            f'engine "spark" needs pyspark 4 or newer, and the one in {place} is {found[1]}.{found[2]}: take it out of '
            'PYTHONPATH, or pip install "pyspark>=4"'
        )


@attrs.define
class EmptyWatch:
    """Warns once when the first complete listing finds nothing to read: probably a wrong prefix or filter."""

    _config: SourceCommonConfig
    _done: bool = False

    def observe(self, progress: RunStatistics) -> None:
        """Observe the figures. For one thread."""
        if self._done or not progress.listings or progress.state not in {"waiting", "done", "stopped"}:
            return
        self._done = True
        skipped = sum(progress.filtered.values())
        if progress.objects_total or progress.done_before or progress.objects or progress.listed > skipped:
            return
        reasons = ", ".join(f"{reason}: {count:,}" for reason, count in progress.filtered.items())
        place = place_of(self._config)
        many = f"all of the {counted(progress.listed, 'object')} below {place} are"
        found = many if progress.listed > 1 else f"the only object below {place} is"
        text = f"{found} filtered ({reasons}); check [naming] template and [discovery]"
        if not progress.listed:
            why = f" ({reasons})" if reasons else ""  # rows of a list of keys
            text = f"{nothing_at(self._config)}{why}; {empty_advice(self._config)}"
        elif set(progress.filtered) == {FilterReason.EMPTY.value}:
            text = f"{found} empty"
        log.warning("nothing to read: %s", text)


def _bucket_section(config: SourceCommonConfig) -> tuple[str, BucketConfig | None]:
    """Return the name and the section of the source's store, as far as it is a bucket."""
    sections = {field.name: getattr(config, field.name) for field in attrs.fields(type(config))}
    return next((item for item in sections.items() if isinstance(item[1], BucketConfig)), ("", None))


def bucket_of(config: SourceCommonConfig) -> str | None:
    """Return the bucket of the source; None for a source that has none."""
    return getattr(_bucket_section(config)[1], "bucket", None)


def place_of(config: SourceCommonConfig) -> str:
    """Return the listed places as addresses."""
    name, section = _bucket_section(config)
    if section is None:
        return "the source"
    scheme, bucket = getattr(section, "scheme", ""), getattr(section, "bucket", "")
    bucket = f"{scheme}://{bucket}/" if scheme else f"[{name}] "  # a source of others may have no address
    return ", ".join(f"{bucket}{prefix}".rstrip() for prefix in section.all_prefixes)


def nothing_at(config: SourceCommonConfig) -> str:
    """Return that there is no object, and where."""
    if config.discovery.mode == "keys":
        return f"{config.discovery.keys} names no object that exists below {place_of(config)}"
    return f"{place_of(config)} contains no object"


def empty_advice(config: SourceCommonConfig) -> str:
    """Return what to check if the listed places contain nothing."""
    if config.discovery.mode == "keys":
        return "check the list, and the prefix"
    _, section = _bucket_section(config)
    if section is not None and not any(section.all_prefixes):
        return "check the bucket"
    prefixes = section.all_prefixes if section is not None else ()
    if any(set(prefix) & set("*?[") for prefix in prefixes):
        return "check the prefix, which is plain text: a pattern belongs into [discovery] include"
    if any(prefix.startswith("/") for prefix in prefixes):
        return "check the prefix: keys rarely begin with /"
    return "check the prefix"


def _summary(progress: RunStatistics, config: SourceCommonConfig) -> None:
    dead_letters, unit = config.errors.dead_letter_topic, "object" if config.input.split_size is None else "split"
    before = f"; {counted(progress.done_before, 'object')} done before" if progress.done_before else ""
    log.info("sent %s of %s%s", counted(progress.records, "record"), counted(progress.delivered, unit), before)
    had_records = (progress.records, progress.records_filtered, progress.skipped, progress.objects_with_records)
    if progress.delivered and not any(had_records):
        log.warning("there was no record in %s: check [input] format", counted(progress.delivered, unit))
    if progress.records_filtered:
        level = logging.INFO if progress.records else logging.WARNING
        every = "" if progress.records or progress.skipped else ": every record that was read"
        log.log(level, "filtered by the transforms: %s%s", counted(progress.records_filtered, "record"), every)
    if progress.skipped or progress.failed or progress.vanished:
        parts = [
            *([f"{counted(progress.skipped, 'bad record')}"] if progress.skipped else []),
            *([f"the rest of {counted(progress.failed, 'object')}"] if progress.failed else []),
            *([f"{counted(progress.vanished, 'object')} deleted between list and read"] if progress.vanished else []),
        ]
        log.warning("skipped: %s", ", ".join(parts))
    if dead_letters is not None and progress.dead_letters:
        log.warning(
            'stored %s in topic "%s": "dead-letter show" lists them, "dead-letter replay" sends them again',
            counted(progress.dead_letters, "dead letter"),
            dead_letters,
        )
    if progress.archived:
        log.warning("archived and waited for: %s, counted again in each listing", counted(progress.archived, "object"))
    for reason, count in progress.filtered.items():
        log.info("filtered, %s: %s", reason, counted(count, "object"))


@attrs.define
class _Metrics:
    """The port for Prometheus, open from the time when this instance owns the source."""

    _config: SourceCommonConfig
    _take_over: bool
    _server: MetricsServer | None = None

    def open(self, engine: Engine, *, standby: bool = False) -> None:
        """Open the port, if an address is configured; once.

        Args:
            engine: its figures are served.
            standby: on the host of the running instance the port is in use; it is opened later, when this one takes over.

        Raises:
            ConfigError: the address cannot be used.
        """
        place = self._config.metrics.host_and_port()
        if place is None or self._server is not None:
            return
        from framework.engine.metrics_server import serve  # noqa: PLC0415 - only when it is switched on

        patience = TAKEN_OVER_SECONDS if self._take_over and not standby else 0.0
        try:
            self._server = serve(place, engine.progress, source=self._config.source.name, patience_seconds=patience)
        except ConfigError as error:
            if not standby or error.exit_code != EXIT_TRY_AGAIN:
                raise
            log.warning("%s; it is opened when this instance takes over", error)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
