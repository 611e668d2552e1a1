"""The line between a worker and the process of a source: figures and errors up, `stop` down.

A pair of sockets that keeps messages apart, each a JSON document. When the worker ends, even by `kill -9`, the source
reads the end of the line and stops in order.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable

import attrs
import orjson

from framework.engine.run_statistics import RunStatistics
from framework.model.text import unicode_text
from framework.storage.daemon_threads import start_timer

log = logging.getLogger(__name__)

STOP = b"stop"
ORPHAN_SECONDS = 30.0
"""Time that a source has to end in order after the end of its worker."""

SEND_SECONDS = 2.0
"""Time that a worker may take to read an error; a worker that is stuck must not hold up its sources."""

_MESSAGE_BYTES = 1024 * 1024

MAX_ERROR_CHARACTERS = 20_000
"""The error of a source that a worker shows: a message has room for it, however its characters are escaped."""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return the ends of a line: a message of one arrives whole at the other, or not at all."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class ChildChannel:
    """The end of the line in the source's process.

    Args:
        descriptor: the inherited file descriptor of the socket.
        leave: ends the process at once, when it does not stop after the end of its worker.
    """

    def __init__(self, descriptor: int, *, leave: Callable[[int], object] = os._exit) -> None:
        self._leave = leave
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - processes of this source do not keep the line open
        self._socket = socket.socket(fileno=descriptor)
        self._socket.settimeout(SEND_SECONDS)
        self._stop: Callable[[], None] | None = None
        threading.Thread(target=self._watch, name="worker", daemon=True).start()

    def on_stop(self, stop: Callable[[], None]) -> None:
        """Call `stop` when the worker asks for it or is gone. Before this call, the process is ended by SIGTERM."""
        self._stop = stop

    def report(self, progress: RunStatistics) -> None:
        """Send the figures without waiting: while a worker that is stuck leaves no room for them, they are dropped."""
        with contextlib.suppress(OSError):  # it is stuck or gone
            os.write(self._socket.fileno(), orjson.dumps({"progress": attrs.asdict(progress)}))

    def failed(self, message: str) -> None:
        """Send the error that ends the source; it may name a file whose name is no Unicode."""
        error = {"error": unicode_text(message[:MAX_ERROR_CHARACTERS])}
        with contextlib.suppress(OSError):  # it is stuck or gone
            self._socket.sendall(orjson.dumps(error))

    def _watch(self) -> None:
        while not self._is_gone():
            self._ask_to_stop()
        start_timer(ORPHAN_SECONDS, lambda: self._leave(1))
        self._ask_to_stop()  # before the line, which may wait for a reader of the log
        log.warning("the worker is gone: stopping, positions are saved")

    def _is_gone(self) -> bool:
        """Wait for a message of the worker, which is `stop`, or for its end; return whether it is the end."""
        while True:
            try:
                return not self._socket.recv(len(STOP))
            except TimeoutError:
                continue
            except OSError:
                return True

    def _ask_to_stop(self) -> None:
        if self._stop is None:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            self._stop()


class WorkerEnd:
    """The worker's end of the line to one source. Read in a thread of its own until the source has ended.

    Args:
        line: the connected socket.
        ended: called at the end of the line, from the reading thread. Not for each message: of hundreds of sources, two a
            second each, and a worker looks at all of them when it is called.

    Attributes:
        progress: the last figures; None before the first.
        error: the error that ended the source; empty when it reported none.
    """

    def __init__(self, line: socket.socket, ended: Callable[[], None]) -> None:
        self._line = line
        self._ended = ended
        self.progress: RunStatistics | None = None
        self.error = ""
        self._thread = threading.Thread(target=self._read, name="channel", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the source to stop. Idempotent."""
        with contextlib.suppress(OSError):  # it has ended
            self._line.sendall(STOP)

    def close(self) -> None:
        """Read what the ended source has sent, and close the line."""
        self._thread.join(timeout=SEND_SECONDS)
        self._line.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            with contextlib.suppress(
                ConnectionResetError
            ):  # it ended with a `stop` unread, which comes before its messages
                self._receive_all()
            self._receive_all()
        self._ended()

    def _receive_all(self) -> None:
        while message := self._line.recv(_MESSAGE_BYTES):
            self._receive(message)

    def _receive(self, message: bytes) -> None:
        try:
            document = json.loads(message)
            if "error" in document:
                self.error = str(document["error"])
            else:
                self.progress = RunStatistics(**document["progress"])
        except (ValueError, TypeError, KeyError):
            log.debug("what is no message")
