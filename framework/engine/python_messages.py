"""What Python itself would print on stderr goes to the log, whose lines have one form.

In the program, and in the processes of its tasks.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import warnings
from types import TracebackType

log = logging.getLogger(__name__)


def log_python_messages() -> contextlib.ExitStack:
    """Log warnings, and exceptions that nothing catches, which Python would print; closing the stack restores that."""
    undo = contextlib.ExitStack()
    for module, name, hook in (
        (threading, "excepthook", _log_thread_error),
        (sys, "excepthook", _log_callback_error),
        (sys, "unraisablehook", _log_unraisable),
        (warnings, "showwarning", _log_warning),  # called by position only, so the names of its arguments are free
    ):
        undo.callback(setattr, module, name, getattr(module, name))
        setattr(module, name, hook)
    return undo


def _log_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    """Log a warning as a line: the message, without Python's line of code."""
    from framework.config.loading import ConfigWarning  # noqa: PLC0415 - only for a warning

    name = "" if issubclass(category, ConfigWarning) else f"{category.__name__}: "
    log.warning("%s%s", name, message)


def _log_thread_error(args: threading.ExceptHookArgs) -> None:
    """Log the uncaught exception of a thread as a line, instead of the traceback that Python prints."""
    if args.exc_value is None or args.exc_type is SystemExit:
        return
    name = args.thread.name if args.thread is not None else "unknown"
    log.error("the thread %s ended", name, exc_info=(args.exc_type, args.exc_value, args.exc_traceback))


def _log_callback_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Log an exception that a library in C prints, as pycurl does with that of a function which it calls."""
    log.error("a function that a library called failed", exc_info=(kind, error, trace))


def _log_unraisable(args: sys.UnraisableHookArgs) -> None:
    """Log an exception that cannot be raised anywhere."""
    if args.exc_value is not None:
        text = args.err_msg or "an error that cannot be caught"
        log.warning("%s", text, exc_info=(args.exc_type, args.exc_value, args.exc_traceback))


def unwritable(record: logging.LogRecord) -> logging.LogRecord:
    """Return the record that says that another one could not be formatted or written. Call it while that is handled."""
    error = sys.exc_info()[1]
    text = f"a line of the log {record.name} could not be written: {type(error).__name__}: {error}"
    level = logging.ERROR
    return logging.makeLogRecord(
        {"name": __name__, "levelno": level, "levelname": logging.getLevelName(level), "msg": text}
    )
