"""The command `worker`, and a single source with `[http]`: processes of sources below a supervisor and its API."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from framework.cli.config_file import ConfigFile
from framework.cli.run import INTERRUPTED, load_source
from framework.cli.signals import stopped_by_signals
from framework.cli.terminal import Output
from framework.config.layers import ENVIRONMENT_PREFIX, Layer
from framework.config.loading import ConfigWarning, Loaded, load_config
from framework.config.option import sections_of
from framework.errors import EXIT_DONE, EXIT_TRY_AGAIN, ConfigError, FatalError
from framework.model.open_files import allow_open_files
from framework.runtime.commands import end_commands
from framework.runtime.options import WorkerConfig
from framework.runtime.source_program import Kinds
from framework.runtime.state import StateFolder
from framework.runtime.worker import Worker

if TYPE_CHECKING:
    from framework.config.http_sections import HttpSection
    from framework.config.sections import LogSection, SourceCommonConfig
    from framework.task import AbstractSourceTask

log = logging.getLogger(__name__)

API_LIBRARIES = ("fastapi", "psutil", "uvicorn")


def read_worker_config(path: Path | None, settings: Sequence[str]) -> WorkerConfig:
    """Return the worker's own options: of its file, if it has one, of variables and of the command line.

    Raises:
        ConfigError: mistakes in them.
    """
    return load_config(path, WorkerConfig, environment=_own_variables(), settings=settings)


def run_worker(
    program: str,
    task_class: type[AbstractSourceTask],
    folder: Path,
    own: WorkerConfig,
    *,
    state_dir: Path | None = None,
    standby: bool = False,
) -> int:
    """Run the sources of a folder until the worker is stopped; return 0.

    Args:
        program: the name of this program.
        task_class: its source; the folder may hold others, too.
        folder: the configuration files.
        own: the worker's own options.
        state_dir: what survives a restart; by default as the file says, or `.state` in the folder.
        standby: each source waits for the end of another instance of it.

    Raises:
        ConfigError: no such folder, or an address that cannot be used.
    """
    allow_open_files()
    try:
        is_file, is_folder = folder.is_file(), folder.is_dir()
    except OSError as error:
        raise ConfigError(f"--config-dir: the folder {folder} cannot be read: {error.strerror}") from error
    if is_file:
        raise ConfigError(f"--config-dir: {folder} is a file, not a folder; to run its source alone: --config {folder}")
    if not is_folder:
        raise ConfigError(f"--config-dir: there is no folder {folder}")
    state = state_dir or (Path(own.http.state_dir) if own.http.state_dir is not None else folder / ".state")
    kinds = Kinds(program, task_class)
    with _logged(own.log) as output, StateFolder(state) as kept:
        worker = Worker(folder, kept, kinds, _load, arguments=("--standby",) if standby else ())
        log.info("worker of the folder %s, state in %s", folder, state)
        return _serve(worker, own.http, output)


def run_with_api(
    program: str,
    task_class: type[AbstractSourceTask],
    file: ConfigFile,
    config: SourceCommonConfig,
    *,
    flags: Sequence[str],
) -> int:
    """Run a source in a process of its own, and its API in this one; return the exit code of the source.

    With `--once` it is 1 when a stop came while the source was paused or stopped.

    Args:
        program: the name of this program.
        task_class: its source.
        file: its configuration.
        config: the same, read.
        flags: of the command line, `--once`.

    Raises:
        ConfigError: the address or the state folder cannot be used, or the configuration is a pipe.
    """
    allow_open_files()
    state = state_folder(file, config.http)
    load = functools.partial(_load, settings=file.settings)
    with _logged(config.log) as output, StateFolder(state, option="[http] state_dir") as kept:
        kinds = Kinds(program, task_class)
        worker = Worker(file.path, kept, kinds, load, arguments=tuple(flags), settings=file.settings, single=True)
        code = _serve(worker, config.http, output)
        if code == EXIT_DONE and "--once" in flags and not worker.supervisor.ended:
            log.warning("%s", INTERRUPTED)
            return EXIT_TRY_AGAIN
        return code


def state_folder(file: ConfigFile, http: HttpSection) -> Path:
    """Return the state folder of a single source.

    Raises:
        ConfigError: the configuration is a pipe.
    """
    if file.path.is_fifo():
        raise ConfigError(
            f"--config {file.path}: is a pipe, and [http] enabled needs a file: it is read again every few seconds"
        )
    return Path(http.state_dir) if http.state_dir is not None else file.path.parent / f".{file.path.stem}.state"


def _load(
    task_class: type[AbstractSourceTask], path: Path, layers: Sequence[Layer], settings: tuple[str, ...] = ()
) -> Loaded[SourceCommonConfig]:
    """Check a file. No pipe of `${file:}` is waited for: the supervisor's lock is held, and each start reads it again."""
    return load_source(task_class, ConfigFile(path=path, settings=settings, layers=tuple(layers)), may_wait=False)


def _own_variables() -> dict[str, str]:
    """Return the environment without overrides of sections that only sources have."""
    own = tuple(f"{ENVIRONMENT_PREFIX}{name.upper()}__" for name in sections_of(WorkerConfig))
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(ENVIRONMENT_PREFIX) or name.startswith(own)
    }


@contextlib.contextmanager
def _logged(section: LogSection) -> Iterator[Output]:
    """Log as a file says, without a bar: the lines of several processes mix. Supervision and API wait for no reader."""
    warnings.simplefilter("ignore", ConfigWarning)  # the process of each source says them
    form = "plain" if section.format == "auto" else section.format
    with Output(format=form, level=section.level, waits=False) as output:
        yield output


def _serve(worker: Worker, http: HttpSection, output: Output) -> int:
    def stop() -> None:
        output.stopping()
        worker.supervisor.stop()

    with contextlib.ExitStack() as stack:
        server = None
        if http.enabled:
            require_api()
            from framework.runtime.api import make_api  # noqa: PLC0415 - only when it is switched on
            from framework.runtime.server import ApiServer  # noqa: PLC0415

            server = ApiServer(make_api(worker, http), http)
        stack.enter_context(stopped_by_signals(stop))
        worker.supervisor.tick()  # the first answer already shows the sources
        if server is not None:
            stack.enter_context(server)
            stack.callback(end_commands)  # before the server closes: each request gets its answer
            log.info("HTTP API at %s", server.url)
        return worker.supervisor.run()


def require_api() -> None:
    """Check that the packages of the HTTP API are installed.

    Raises:
        FatalError: they are not.
    """
    for name in API_LIBRARIES:
        if importlib.util.find_spec(name) is None:
            raise FatalError(
                f'the HTTP API needs the Python package "{name}", which is not installed: install this project with the '
                'extra `worker`, pip install ".[worker]"'
            )
