"""Forwarding of a task's log to the leader, which alone knows the format and destination of lines."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from typing_extensions import override

from framework.engine.python_messages import unwritable
from framework.errors import OWN_PACKAGES, SourceError
from framework.model.secret_masking import without_secrets
from framework.pipeline.sender import OBJECTS_LOGGER

TRACE = "traceback"
"""The field of a line that holds the traceback of another process."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

_PLAIN = (str, int, float, bool, type(None))
"""Types of fields that travel as they are. Anything else travels as text: a lock, a socket or a class of a library cannot."""


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields that a record was given as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def message_of(record: logging.LogRecord) -> str:
    """Return a record's message; without secrets when a library wrote it."""
    text = record.getMessage()
    return text if record.name.partition(".")[0] in OWN_PACKAGES else without_secrets(text)


def text_of(record: logging.LogRecord) -> str:
    """Return a record's message, then class and message of its exception, without secrets."""
    error = record.exc_info[1] if record.exc_info else None
    text = message_of(record)
    if error is None:
        return text
    said = (
        str(error) if isinstance(error, SourceError) else without_secrets(str(error))
    )  # ours has masked what others wrote
    return f"{text}: {type(error).__name__}: {said}"


@attrs.frozen(slots=True)
class LogLine:
    """A line of a task's log: its logger, its level (as in `logging`), its text, its fields, and when it was logged.

    Attributes:
        at_seconds: since 1970.
    """

    logger: str
    level: int
    text: str
    fields: Mapping[str, object] = attrs.field(factory=dict)
    at_seconds: float = attrs.field(factory=time.time, eq=False)

    def repeat(self) -> None:
        """Log the line in this process, where logging is configured."""
        logger = logging.getLogger(self.logger)
        if logger.isEnabledFor(self.level):
            made = logger.makeRecord(self.logger, self.level, "", 0, "%s", (self.text,), None, extra=dict(self.fields))
            made.created = self.at_seconds
            logger.handle(made)


class LogForwarder(logging.Handler):
    """Log handler that forwards warnings, and the lines about single objects, when enabled.

    Args:
        send: called with each line, in the thread that logs it.
    """

    def __init__(self, send: Callable[[LogLine], None]) -> None:
        super().__init__()
        self._send = send

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING and record.name != OBJECTS_LOGGER:
            return
        try:
            line = _line_of(record)
        except Exception:  # noqa: BLE001 - of a line that cannot be formatted
            line = _line_of(unwritable(record))
        self._send(line)


def _line_of(record: logging.LogRecord) -> LogLine:
    fields = {name: value if isinstance(value, _PLAIN) else str(value) for name, value in fields_of(record).items()}
    if record.exc_info and record.exc_info[1] is not None:
        fields[TRACE] = "".join(traceback.format_exception(*record.exc_info))
    return LogLine(record.name, record.levelno, text_of(record), fields, record.created)
