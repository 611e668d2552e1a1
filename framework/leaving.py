"""How the program ends: with its exit code, whatever threads are left behind."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import warnings
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """Ends the process, without taking the interpreter apart.

    A thread that was left behind in a request or in a decoder may come back while the interpreter is being taken apart;
    it is ended there, and the C++ of pyarrow answers that with an abort: exit code 134 for a run that went well. What was
    registered with `atexit` still runs, and what was written is written.

    Args:
        code: for who started the process.
    """
    # Such a thread may drop a connection after the pool that would have closed it; the system closes it now.
    warnings.simplefilter("ignore", ResourceWarning)
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()  # noqa: SLF001 - the same that the interpreter calls
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it any more
            stream.flush()
    os._exit(code)
