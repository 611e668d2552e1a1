"""SIGINT and SIGTERM: the run stops in order."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

    from framework.engine.local import Stoppable

log = logging.getLogger(__name__)


@contextlib.contextmanager
def stopped_by_signals(engine: Stoppable) -> Iterator[None]:
    """Stop the run in order on SIGINT and SIGTERM; a second signal ends the process at once, whatever it waits for."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    came: SimpleQueue[int | None] = SimpleQueue()

    def note(number: int, _frame: FrameType | None) -> None:
        # Runs between any two lines of the main thread, whatever locks that holds: a thread of its own does the rest.
        for either in before:
            signal.signal(either, signal.SIG_DFL)
        came.put(number)

    def stop() -> None:
        number = came.get()
        if number is not None:
            engine.stop()
            log.info("%s: stopping, positions are saved", signal.Signals(number).name)

    stopper = threading.Thread(target=stop, name="signals", daemon=True)
    stopper.start()
    for number in before:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        came.put(None)
        stopper.join()  # a signal that came with the last record counts
