"""The last words of the program: the error that ends it, in one sentence or as a JSON line, and its exit code."""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

from framework.cli import trace as traces
from framework.cli.line_writer import LineWriter
from framework.cli.terminal import JsonFormatter, LineHandler
from framework.cli.text import error_text, printable
from framework.engine.log_forwarding import text_of
from framework.engine.python_messages import log_python_messages
from framework.errors import (
    EXIT_CONFIGURATION,
    EXIT_PERSON,
    EXIT_TRY_AGAIN,
    ConfigError,
    ReaderFailedError,
    SourceError,
    missing_package,
)
from framework.model.secret_masking import without_secrets

if TYPE_CHECKING:
    from framework.runtime.child_channel import ChildChannel

_MORE_MEMORY = (
    "give the program more memory, or lower [runner] tasks_max, [input] prefetch_bytes and queue_bytes, and "
    "[iggy] batch_bytes"
)

WAYS_OUT = {
    **dict.fromkeys(
        ("MemoryError", "not enough memory", "Cannot allocate memory", "failed to map segment"), _MORE_MEMORY
    ),
    "can't start new thread": "raise the limit of threads (ulimit -u, TasksMax of systemd, pids of a container) or of memory",
    "Too many open files": "raise the limit of open files (ulimit -n, LimitNOFILE of systemd)",
    "No usable temporary directory": "set TMPDIR to a folder that can be written",
    "'ascii' codec can't encode": "set PYTHONUTF8=1, or a locale of UTF-8 (LC_ALL=C.UTF-8)",
}
"""What to do when the system refuses something, by its words; any library may be the one that is refused."""

_OF_OLD_PACKAGES = {"AttributeError", "ImportError", "TypeError"}
"""Errors that a package older than required may cause. Without memory or open files none is looked at."""


def _ways_out(text: str) -> str:
    ways = dict.fromkeys(way for words, way in WAYS_OUT.items() if words in text and way not in text)
    return "".join(f"; {way}" for way in ways)


@attrs.define
class ErrorReporter:
    """Reports the error that ends the program, as text or as a JSON line.

    Attributes:
        json: the last error is a JSON line.
        channel: the line to the worker that started this process.
        source: the source's key, on each line; empty outside of a worker.
        file_as_command: a configuration that stands where a command does.
    """

    json: bool = False
    channel: ChildChannel | None = None
    source: str = ""
    file_as_command: str = ""

    def ended(self, error: BaseException) -> int:
        """Report what ended the program; return the exit code."""
        show = getattr(error, "show", None)  # a mistake on the command line
        if show is None:
            return self.failed(error)
        with contextlib.suppress(OSError):
            show()
            if self.file_as_command:
                sys.stderr.write(f"A configuration is given by an option: --config {self.file_as_command}\n")
        return int(getattr(error, "exit_code", EXIT_CONFIGURATION))

    def failed(self, error: BaseException) -> int:
        """Report the error in one sentence; return the exit code."""
        if isinstance(error, ReaderFailedError) and error.unexpected:
            return self._unexpected(error.unexpected, str(error), error.trace)
        if sentence := missing_package(error):
            self._report(sentence, error=type(error).__name__, code=EXIT_PERSON)
            return EXIT_PERSON
        if not isinstance(error, SourceError):
            name, text = type(error).__name__, str(error)
            trace = "".join(traceback.format_exception(error))
            return self._unexpected(name, f"{name}: {text}" if text else name, trace)
        # a reader's error only carries another one
        cause = error.__cause__ if isinstance(error, ReaderFailedError) and error.__cause__ is not None else error
        shown_error = cause if isinstance(cause, ConfigError) else error
        ways = _ways_out(str(error))
        self._report(
            f"{error}{ways}", shown=error_text(shown_error) + ways, error=type(cause).__name__, code=error.exit_code
        )
        return error.exit_code

    def _unexpected(self, name: str, text: str, trace: str) -> int:
        """Report an error that is not a `SourceError`; keep its traceback."""
        ways = _ways_out(text)
        if name in _OF_OLD_PACKAGES:
            from framework.cli.version import outdated_packages  # noqa: PLC0415 - only for this

            outdated = outdated_packages()
            ways += f"; {outdated}" if outdated else ""
        trace = without_secrets(trace)
        kept = traces.keep(trace)
        sentence = f"unexpected {without_secrets(text)}{ways}; {kept}{_ways_out(kept)}"
        self._report(sentence, error=name, code=EXIT_TRY_AGAIN, traceback=trace)
        return EXIT_TRY_AGAIN

    def warn(self, text: str) -> None:
        """Write a warning."""
        self._write(self.line_of(_record(logging.WARNING, text)))

    @contextlib.contextmanager
    def log_written(self) -> Iterator[None]:
        """Write the log's warnings and errors as `warn` does. An output that is open in between has its own lines."""
        handler = LineHandler(self.line_of, self._write)
        handler.setLevel(logging.WARNING)
        root = logging.getLogger()
        root.addHandler(handler)
        try:
            with log_python_messages():
                yield
        finally:
            root.removeHandler(handler)

    def line_of(self, record: logging.LogRecord, shown: str = "") -> str:
        """Return a record as a line. `shown`: its text for people, when that has several lines."""
        if self.source:
            record.source = self.source
        if self.json:
            return JsonFormatter().format(record)
        text, error = text_of(record), record.exc_info[1] if record.exc_info else None
        if error is not None:
            text = f"{text} ({traces.keep(''.join(traceback.format_exception(error)))})"
        place = f"{self.source}: " if self.source else ""
        return f"{record.levelname.lower()}: {place}{shown or printable(text)}"

    def _report(self, text: str, *, error: str, code: int, shown: str = "", **fields: str) -> None:
        """Write the last line. `shown`: the text for people, when it has several lines."""
        if self.channel is not None:
            self.channel.failed(text)
        self._write(self.line_of(_record(logging.ERROR, text, error=error, exit_code=code, **fields), shown))

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the exit code still tells
            LineWriter(sys.stderr).write_line(line)


def _record(level: int, text: str, **fields: str | int) -> logging.LogRecord:
    return logging.makeLogRecord(
        {"name": __name__, "levelno": level, "levelname": logging.getLevelName(level), "msg": text, **fields}
    )
