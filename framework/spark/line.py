"""A line from each job to its driver: when it breaks, the job ends in order and saves what is confirmed.

Spark can only kill a task: what it has sent by then is in no saved position, and for some seconds it may still send. So a
job holds a connection to the driver, over which nothing is said. The driver closes all of them when it stops, and the
kernel does when the driver dies. Whether executors can reach the driver's port is tried once, before a run
(`framework.spark.packages`); where they cannot, jobs end by Spark's way alone.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from framework.errors import UnknownOutcomeError

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger(__name__)

CONNECT_SECONDS = 3.0

KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A driver whose machine is gone is noticed after half a minute: seconds of silence, seconds between probes, probes."""


class DriverLine:
    """The driver's end. Begins when it is made; `close` ends every job that holds it, and may be called twice.

    Attributes:
        address: host and port for jobs; None when no port could be had.
    """

    def __init__(self, host: str, bind: str) -> None:
        """Listens.

        Args:
            host: the driver's name for executors.
            bind: the address of this machine to listen on.
        """
        self.address: tuple[str, int] | None = None
        self._held: list[socket.socket] = []
        self._lock = threading.Lock()
        self._closed = False
        self._listener: socket.socket | None = None
        try:
            self._listener = socket.create_server((bind, 0), backlog=1000)
        except OSError as error:
            log.warning("no port for jobs to hold on to, so a stop kills them: %s", error)
            return
        self.address = (host, self._listener.getsockname()[1])
        threading.Thread(target=self._accept, args=(self._listener,), name="driver-line", daemon=True).start()

    @classmethod
    def of(cls, context: SparkContext) -> DriverLine:
        """Where Spark itself listens for executors."""
        conf = context.getConf()
        host = conf.get("spark.driver.host", "localhost") or "localhost"
        return cls(host, conf.get("spark.driver.bindAddress", host) or host)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                one, _ = listener.accept()
                with self._lock:
                    if self._closed:
                        one.close()
                    else:
                        self._held.append(one)

    def close(self) -> None:
        """Ends every job that holds the line."""
        with self._lock:
            self._closed = True
            held, self._held = self._held, []
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            self._listener.close()
        for one in held:
            one.close()


@contextlib.contextmanager
def held(address: tuple[str, int] | None, on_break: Callable[[], None]) -> Iterator[None]:
    """On an executor: holds the line, and calls `on_break` from another thread when it breaks.

    Args:
        address: the driver's; None holds nothing.
        on_break: called at most once.

    Raises:
        UnknownOutcomeError: nobody listens: the driver has ended what this job is a part of.
    """
    if address is None:
        yield
        return
    line = _connect(address)
    let_go = threading.Event()

    def watch() -> None:
        with contextlib.suppress(OSError):
            line.recv(1)
        if not let_go.is_set():
            on_break()

    threading.Thread(target=watch, name="job-line", daemon=True).start()
    try:
        yield
    finally:
        let_go.set()
        with contextlib.suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)
        line.close()


def _connect(address: tuple[str, int]) -> socket.socket:
    try:
        line = socket.create_connection(address, timeout=CONNECT_SECONDS)
    except OSError as error:
        host, port = address
        raise UnknownOutcomeError(f"the driver of this job is gone from {host}:{port} ({error})") from error
    try:
        line.settimeout(None)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE.items():
            if hasattr(socket, name):  # not on every system
                line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    except BaseException:
        line.close()
        raise
    return line
