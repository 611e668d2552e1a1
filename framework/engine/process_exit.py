"""Process exit: with the right exit code, whatever threads are left running."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
import warnings
from typing import NoReturn, TextIO

LAST_SECONDS = 1.0
"""How long a stop, and then the end, waits for whoever reads the log and does not."""


def leave(code: int) -> NoReturn:
    """End the process without finalizing the interpreter.

    A thread left in a request or a decoder may resume during finalization, which terminates it. pyarrow's C++ then
    aborts: exit code 134 for a successful run. `atexit` handlers still run, and output is flushed. Ctrl-C meanwhile ends
    the process at once.

    Args:
        code: exit code for the parent process.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Such a thread may drop a connection after the pool that would have closed it; the system closes it now.
    warnings.simplefilter("ignore", ResourceWarning)
    atexit.unregister(logging.shutdown)  # below
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()  # noqa: SLF001 - the function that the interpreter itself calls
    _flush(sys.stdout)
    # such a thread may also write a line that nothing reads, with the locks that this needs
    flushing = threading.Thread(target=_flush_log, daemon=True)
    flushing.start()
    flushing.join(LAST_SECONDS)
    os._exit(code)


def _flush_log() -> None:
    logging.shutdown()
    _flush(sys.stderr)


def _flush(stream: TextIO) -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):  # none, closed, or no longer read
        stream.flush()
