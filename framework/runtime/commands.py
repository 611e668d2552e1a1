"""Commands of a source's program, each in a process of its own: what they load and how they fail stays there."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence

import attrs

from framework.errors import EXIT_DONE, EXIT_TRY_AGAIN
from framework.runtime.configuration import Configuration
from framework.storage.daemon_threads import start_timer

COMMAND_SECONDS = 300.0

MAX_COMMANDS = 4
"""Each loads all positions, and each holds a thread of the API's pool while Iggy is away."""


@attrs.frozen
class CommandError(Exception):
    """A command failed.

    Attributes:
        exit_code: the exit code of the program.
        message: the sentence that it wrote.
    """

    exit_code: int
    message: str


def interpreter() -> list[str]:
    """Return how this process's Python is started again, with its options: `-P` keeps the working directory out of its path."""
    return [sys.executable, *subprocess._args_from_interpreter_flags()]  # type: ignore[attr-defined]  # noqa: SLF001


_ERROR = re.compile(r"^error: ", re.MULTILINE)
_running = threading.BoundedSemaphore(MAX_COMMANDS)
_processes: dict[subprocess.Popen[bytes], list[str]] = {}
"""Those that run, and why each was ended, if it was."""


def end_commands() -> None:
    """End what runs: after its request has failed, no change goes on. Each change is whole, or not begun."""
    for process in list(_processes):
        _end(process, "was ended, since the worker stops")


def _end(process: subprocess.Popen[bytes], why: str) -> None:
    _processes.get(process, []).append(why)
    process.kill()


def run_command(
    configuration: Configuration,
    arguments: Sequence[str],
    *,
    max_lines: int = 1000,
    limit_seconds: float = COMMAND_SECONDS,
) -> list[bytes]:
    """Run a command of the program that the configuration belongs to; return the lines it wrote, without line breaks.

    Args:
        configuration: the configuration; a right one.
        arguments: the command, `offsets export`.
        max_lines: the command is ended after that many lines.
        limit_seconds: the command is ended after that time.

    Raises:
        CommandError: it failed, or too many run already.
    """
    if not _running.acquire(blocking=False):
        raise CommandError(EXIT_TRY_AGAIN, f"{MAX_COMMANDS} commands on offsets run already: try again later")
    try:
        return _run(configuration, arguments, max_lines, limit_seconds)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise CommandError(EXIT_TRY_AGAIN, f"{arguments[0]} cannot be started: {reason}") from error
    finally:
        _running.release()


def _run(configuration: Configuration, arguments: Sequence[str], max_lines: int, limit_seconds: float) -> list[bytes]:
    command = [*interpreter(), *configuration.command(*arguments)]
    with configuration.content_file() as content, tempfile.TemporaryFile() as errors:
        with subprocess.Popen(  # noqa: S603 - the program itself
            command, stdin=content, stdout=subprocess.PIPE, stderr=errors
        ) as process:
            assert process.stdout is not None
            ended = _processes[process] = []
            limit = start_timer(limit_seconds, lambda: _end(process, f"did not end within {limit_seconds:g} seconds"))
            try:
                lines = [line.rstrip(b"\n") for line in itertools.islice(process.stdout, max_lines)]
                if len(lines) == max_lines:
                    return lines
                code = process.wait()
            finally:
                process.kill()  # unless it has ended
                limit.cancel()
                del _processes[process]
        if ended and code != EXIT_DONE:
            raise CommandError(EXIT_TRY_AGAIN, f"{arguments[0]} {ended[0]}")
        if code != EXIT_DONE:
            errors.seek(0)
            text = errors.read().decode(errors="replace").strip()
            sentence = _ERROR.split(text)[-1]  # warnings may stand before it
            raise CommandError(code, sentence or f"{arguments[0]} ended with exit code {code}")
        return lines
