"""Commands of a source's program, each in a process of its own: what they load and how they fail stays there."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence

import attrs

from framework.errors import EXIT_DONE, EXIT_TRY_AGAIN
from framework.runtime.configuration import Configuration

COMMAND_SECONDS = 300.0


@attrs.frozen
class CommandError(Exception):
    """A command failed.

    Attributes:
        exit_code: the exit code of the program.
        message: the sentence that it wrote.
    """

    exit_code: int
    message: str


def run_command(configuration: Configuration, arguments: Sequence[str], *, max_lines: int = 1000) -> list[bytes]:
    """Run a command of the program that the configuration belongs to; return the lines it wrote, without line breaks.

    Args:
        configuration: the configuration; a right one.
        arguments: the command, `offsets export`.
        max_lines: the command is ended after that many lines.

    Raises:
        CommandError: it failed.
    """
    command = [sys.executable, *configuration.command(*arguments)]
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(  # noqa: S603 - the program itself
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        ) as process:
            assert process.stdout is not None
            lines: list[bytes] = []
            try:
                for line in process.stdout:
                    lines.append(line.rstrip(b"\n"))
                    if len(lines) >= max_lines:
                        process.kill()
                        return lines
                code = process.wait(COMMAND_SECONDS)
            except BaseException as error:
                process.kill()
                if isinstance(error, subprocess.TimeoutExpired):
                    raise CommandError(EXIT_TRY_AGAIN, f"{arguments[0]} did not end in time") from None
                raise
        if code != EXIT_DONE:
            errors.seek(0)
            text = errors.read().decode(errors="replace").strip()
            raise CommandError(code, text.rpartition("error: ")[2] or f"{arguments[0]} ended with exit code {code}")
        return lines
