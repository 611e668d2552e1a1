"""Output of a running command: log lines, plain or JSON, and on a terminal a progress bar below them.

    with Output(format="auto", level="info") as output:
        output.update(RunStatistics(objects=3, objects_total=40))

Lines and bar go to stderr; stdout is for results. Lines appear above the bar, never through it. Without a
bar, the progress is logged as a line every few seconds, when it changed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TextIO, cast

from typing_extensions import Self, override

from framework.cli import trace as traces
from framework.cli.line_writer import LineWriter
from framework.cli.progress_text import Rate, figures, filters_everything, progress_text, seconds_left
from framework.cli.stall_watch import StallWatch, stacks
from framework.cli.text import printable
from framework.engine.log_forwarding import TRACE, fields_of, message_of, text_of
from framework.engine.process_exit import LAST_SECONDS
from framework.engine.python_messages import log_python_messages, unwritable
from framework.engine.run_statistics import RunStatistics, state_text
from framework.errors import OWN_PACKAGES
from framework.model.secret_masking import without_secrets
from framework.model.text import counted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

_LINE_EVERY_SECONDS = 10.0
_BAR_REFRESHES_PER_SECOND = 8
_QUEUED_CHARACTERS = 1_000_000

log = logging.getLogger(__name__)


class Output:
    """Takes over logging and the terminal while it is open. A context manager; one at a time per process.

    Args:
        format: `auto` (bar and plain lines on a terminal, plain lines elsewhere), `plain` or `json`.
        level: minimum level of lines: `debug`, `info`, `warning`, `error`.
        stream: destination of lines and bar; stderr by default.
        terminal: whether the stream is a terminal; detected by default.
        source: a field of every line, for a process that shares the stream with others; they have no bar.
        waits: whether a line without a bar waits for its reader. Else a thread writes it and holds up no other: while
            about a million characters wait, further lines are lost, and their number is a line once there is room.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        format: str = "auto",  # noqa: A002  as the option is called
        level: str = "info",
        stream: TextIO | None = None,
        terminal: bool | None = None,
        source: str = "",
        waits: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._source = source
        self._waits = waits
        self._with_bar = format == "auto" and not source and (self._stream.isatty() if terminal is None else terminal)
        self._level = logging.getLevelName(level.upper())
        self._formatter: logging.Formatter = JsonFormatter() if format == "json" else PlainFormatter()
        self._clock = clock
        self._rate = Rate()
        self._console: Console | None = None
        self._lines = LineWriter(self._stream)
        self._queue: _LineQueue | None = None
        self._bar: Bar | None = None
        self._last: RunStatistics | None = None
        self._lined = figures(RunStatistics())  # a run that did nothing has nothing to show
        self._line_at = clock() + _LINE_EVERY_SECONDS
        self._stall = StallWatch(clock())
        self._filter_doubted = False
        self._restore = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._restore = _take_over_logging(self._handler(), self._level)
        self._rate.add(self._clock(), RunStatistics())  # a run that ends at once has a speed, too
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the bar as it is and restore logging."""
        if self._bar is not None:
            with contextlib.suppress(OSError):  # the terminal is gone: how the run ended counts
                self._bar.stop()
        elif self._last is not None and figures(self._last) != self._lined:
            self._write_line(self._last)
        self._restore.close()
        if self._queue is not None:
            self.stopping()
            self._queue.close()

    def stopping(self) -> None:
        """Lines wait for their reader no longer: they are written at once, or lost. Idempotent; from any thread."""
        self._lines.stopping = True

    def update(self, progress: RunStatistics) -> None:
        """Show the progress. Cheap; call it on every change, from one thread."""
        now = self._clock()
        self._rate.add(now, progress)
        self._last = progress
        if self._with_bar:
            self._draw(progress)
        elif now >= self._line_at and figures(progress) != self._lined:
            self._line_at = now + _LINE_EVERY_SECONDS
            self._write_line(progress)
        if not self._filter_doubted and filters_everything(progress):
            self._filter_doubted = True
            log.warning(
                "filtered by the transforms: %s: every record that was read so far. Is a condition wrong? They are not "
                "sent later, unless you reset the positions",
                counted(progress.records_filtered, "record"),
            )
        standing = self._stall.standing(now, progress)
        if standing is not None:
            log.warning(
                "nothing was listed, read or confirmed for %d minutes (%s); where the threads are: %s",
                standing // 60,
                progress.state,
                traces.keep(stacks()),
            )

    def _handler(self) -> logging.Handler:
        if self._with_bar:
            from rich.console import Console  # noqa: PLC0415  loaded for a terminal only

            self._console = Console(file=cast("TextIO", self._lines), force_terminal=True, highlight=False)
            write: Callable[[str], object] = functools.partial(
                self._console.print, markup=False, highlight=False, soft_wrap=True
            )
        elif self._waits:
            write = self._lines.write_line
        else:
            self._queue = _LineQueue(self._lines, self._formatter)
            write = self._queue.write
        handler = LineHandler(self._formatter.format, write)
        if self._source:
            handler.addFilter(self._add_source)
        return handler

    def _add_source(self, record: logging.LogRecord) -> bool:
        record.source = self._source
        return True

    def _draw(self, progress: RunStatistics) -> None:
        if self._bar is None:
            from rich.progress import BarColumn, SpinnerColumn, TextColumn  # noqa: PLC0415
            from rich.progress import Progress as Bar  # noqa: PLC0415

            self._bar = Bar(
                SpinnerColumn(),
                BarColumn(bar_width=24),
                # markup=False: a state or a number is text, whatever brackets it has.
                TextColumn("{task.fields[text]}", markup=False),
                console=self._console,
                refresh_per_second=_BAR_REFRESHES_PER_SECOND,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._bar.add_task("", total=None, text="")
            self._bar.start()
            self._bar.console.show_cursor()  # a second Ctrl-C ends the process without a word
        done, total = progress.object_bytes, progress.bytes_total
        text = progress_text(progress, self._rate)
        if progress.standby or progress.waiting_for:
            text = state_text(progress)
        elif progress.state != "sending":
            text = f"{progress.state}  {text}"
        (task,) = self._bar.task_ids
        self._bar.update(task, completed=done, total=total or None, text=text)

    def _write_line(self, progress: RunStatistics) -> None:
        self._lined = figures(progress)
        left = seconds_left(progress, self._rate)
        fields = {
            "state": progress.state,
            "objects_done": progress.objects,
            "objects_total": progress.objects_total,
            "bytes_done": progress.object_bytes,
            "bytes_total": progress.bytes_total,
            "records": progress.records,
            "records_per_second": round(self._rate.records_per_second),
            "records_filtered": progress.records_filtered,
            "bad_records": progress.skipped,
            "bad_objects": progress.failed,
        }
        if left is not None:
            fields["seconds_left"] = round(left)
        log.info("progress", extra=fields)


class PlainFormatter(logging.Formatter):
    """`2024-05-31T12:00:00.123Z INFO    message  name=value`: one line per record, whatever its text contains.

    For an exception it has class and message; the traceback goes to a file, which the line names.
    """

    @override
    def format(self, record: logging.LogRecord) -> str:
        shown = fields_of(record)
        trace = _trace(self, record, shown)
        fields = "".join(f"  {name}={_plain(value)}" for name, value in shown.items())
        where = f" ({traces.keep(trace)})" if trace else ""
        return f"{_time(record)} {record.levelname:<7} {printable(text_of(record))}{where}{fields}"


class JsonFormatter(logging.Formatter):
    """One JSON object per line: `time` (UTC), `level`, `logger`, `message`, and the fields passed as `extra`.

    With an exception also `error`, its class, and `traceback`.
    """

    @override
    def format(self, record: logging.LogRecord) -> str:
        content: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message_of(record),
        }
        shown = fields_of(record)
        trace = _trace(self, record, shown)
        content |= {name: value for name, value in shown.items() if name not in content}
        if record.exc_info and record.exc_info[0] is not None:
            content.setdefault("error", record.exc_info[0].__name__)
        if trace:
            content["traceback"] = trace
        return json.dumps(content, default=str)


def _trace(formatter: logging.Formatter, record: logging.LogRecord, fields: dict[str, Any]) -> str:
    """Return a record's traceback, from this process or another; it is removed from the fields."""
    trace_text = str(fields.pop(TRACE, ""))
    return without_secrets(
        formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else trace_text
    )


class LineHandler(logging.Handler):
    """Passes on each record as a line; one that cannot be formatted or written is replaced by a sentence that says so."""

    def __init__(self, form: Callable[[logging.LogRecord], str], write: Callable[[str], object]) -> None:
        super().__init__()
        self._form = form
        self._write = write

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._write(self._form(record))
        except Exception:  # noqa: BLE001  logging's own rule: a line that cannot be written ends nothing
            with contextlib.suppress(Exception):
                self._write(self._form(unwritable(record)))


class _LineQueue:
    """Hands lines to a thread that writes them: whoever logs, perhaps under a lock, never waits for the reader of the log."""

    def __init__(self, lines: LineWriter, formatter: logging.Formatter) -> None:
        self._lines = lines
        self._formatter = formatter
        self._texts: deque[tuple[int, str]] = deque()
        """Each with the number of lines that were lost before it."""
        self._characters = 0
        self._lost = 0
        self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        """Take a line; lose it while too much waits."""
        with self._changed:
            if self._texts and self._characters + len(text) > _QUEUED_CHARACTERS:
                self._lost += 1
                return
            self._texts.append((self._lost, text))
            self._characters += len(text)
            self._lost = 0
            self._changed.notify()

    def close(self) -> None:
        """Write what waits, for `LAST_SECONDS` at most."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join(1.5 * LAST_SECONDS)

    def _write_all(self) -> None:
        # the stream failed, or took no more during a stop: the number of lost lines waits for the next line
        refused = False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._texts or self._ended or (self._lost and not refused))  # noqa: B023
                if self._texts:
                    lost, text = self._texts.popleft()
                    self._characters -= len(text)
                elif self._lost and not refused:
                    lost, text, self._lost = self._lost, "", 0
                else:
                    return
            lines = [*([self._lost_text(lost)] if lost else ()), *([text] if text else ())]
            refused = True
            with contextlib.suppress(Exception):  # the disk is full, or the reader is gone
                refused = not self._lines.write_line("\n".join(lines))
            if refused:
                with self._changed:
                    self._lost += lost + bool(text)

    def _lost_text(self, lost: int) -> str:
        said = f"lost here, because this log took no more: {counted(lost, 'line')}"
        return self._formatter.format(log.makeRecord(log.name, logging.WARNING, __file__, 0, said, (), None))


def _take_over_logging(handler: logging.Handler, level: int) -> contextlib.ExitStack:
    """Send everything to a handler; closing the stack restores what was before."""
    undo = contextlib.ExitStack()

    def with_level(logger: logging.Logger, new: int) -> None:
        undo.callback(logger.setLevel, logger.level)
        logger.setLevel(new)

    root = logging.getLogger()
    undo.callback(setattr, root, "handlers", root.handlers)
    root.handlers = [handler]
    with_level(root, max(level, logging.WARNING))
    for name in OWN_PACKAGES:
        with_level(logging.getLogger(name), level)
    undo.enter_context(log_python_messages())
    return undo


def _plain(value: object) -> str:
    text = str(value)
    return printable(text) if text and " " not in text else json.dumps(text, ensure_ascii=not text.isprintable())


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, tz=timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
