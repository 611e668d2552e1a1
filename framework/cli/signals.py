"""SIGINT and SIGTERM: the run stops in order."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


log = logging.getLogger(__name__)

FIRST_PROCESS = 1
"""Of a container: the kernel ignores a signal for which it has no handler."""


@contextlib.contextmanager
def stopped_by_signals(stop_run: Callable[[], None]) -> Iterator[None]:
    """Stop the run in order on SIGINT and SIGTERM; a second signal ends the process at once, whatever it waits for.

    The first process of a container has no default handlers: there the thread that takes the first signal takes the second.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(_number: int, _frame: FrameType | None) -> None:
        for either in before if os.getpid() != FIRST_PROCESS else ():
            signal.signal(either, signal.SIG_DFL)

    def stop(came: socket.socket) -> None:
        stopping = False
        while number := came.recv(1):
            if number[0] not in before:
                continue
            if stopping:
                os._exit(128 + number[0])
            stopping = True
            stop_run()
            log.info("%s: stopping, positions are saved", signal.Signals(number[0]).name)

    # A handler runs between two lines of the main thread, and that may wait: a signal that comes just before it waits does
    # not end the wait. The number of the signal is written at once, whatever that thread does.
    came, written = socket.socketpair()
    with came, written:
        written.settimeout(0.0)
        wakes_before = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
        stopper = threading.Thread(target=stop, args=(came,), name="signals", daemon=True)
        stopper.start()
        for number in before:
            signal.signal(number, note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakes_before)
            written.shutdown(socket.SHUT_WR)
            stopper.join()  # a signal that came with the last record counts
