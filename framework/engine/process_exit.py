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
from typing import NoReturn


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
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()  # noqa: SLF001 - the function that the interpreter itself calls
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or no longer read
            stream.flush()
    os._exit(code)
