"""A connection from each job to its driver: when it breaks, the job ends in order and saves confirmed records.

The job says through it whether its store answers: its statistics come only at its end.

Spark can only kill a task: records sent until then are in no saved position, and it may still send for
some seconds. So a job holds a connection to the driver. It carries a token at first, then a byte each time the
store stops answering the job (`AWAY`), or answers again (`BACK`). The driver
closes all of them when it stops; the kernel closes them when the driver dies. A job whose connection broke
fails when it has ended in order: a driver that lives on recovers. A client without the token
is dropped. Whether executors can reach the driver's port is tested once before a run
(`framework.engine.spark.packages`). Where they cannot, Spark kills the jobs.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from socketserver import BaseRequestHandler
from typing import TYPE_CHECKING, TypeAlias

from typing_extensions import override

from framework.engine.bounded_server import BoundedServer, drop
from framework.engine.spark.spark_context import LOOPBACK, runs_locally
from framework.errors import UnknownOutcomeError

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger(__name__)

CONNECT_SECONDS = 3.0

TOKEN_BYTES = 32

MAX_STRANGERS = 64
"""Maximum number of connections without a token yet: beyond that the oldest is dropped."""

AWAY, BACK = b"1", b"0"

TELL_SECONDS = 1.0
"""How often a job looks whether its store answers."""

StopAddress: TypeAlias = tuple[str, int, str]
"""Host, port and token."""

KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Seconds of silence, seconds between probes, probes: a driver whose machine is gone is noticed after half a minute."""


class StopChannel(BoundedServer):
    """The driver's end: it listens until `close`, which ends every job that holds a connection.

    Args:
        host: the driver's name for executors.
        bind: the local address to listen on.

    Attributes:
        address: host, port and token for jobs.
        held: connections of jobs, and whether the job's store is away.
        closed: whether jobs must end.

    Raises:
        OSError: no port is free.
    """

    request_queue_size = 1000
    max_clients, client_seconds = MAX_STRANGERS, CONNECT_SECONDS

    def __init__(self, host: str, bind: str) -> None:
        self.held: dict[socket.socket, bool] = {}
        self.closed = False
        self.token = secrets.token_hex(TOKEN_BYTES // 2)
        super().__init__((bind, 0), _Connection, name="stop-channel")
        self.address: StopAddress = (host, self.port, self.token)

    @classmethod
    def of(cls, context: SparkContext) -> StopChannel | None:
        """Open a channel at the address where Spark itself listens for executors; those of a local master are here.

        Without a free port only log a warning, and return None.
        """
        conf = context.getConf()
        host = LOOPBACK if runs_locally(context) else conf.get("spark.driver.host", "localhost") or "localhost"
        bind = LOOPBACK if runs_locally(context) else conf.get("spark.driver.bindAddress", host) or host
        with contextlib.suppress(OSError):  # it is an IPv6 address, or names no other
            bind = socket.gethostbyname(bind)  # as Java does, and so Spark: of a name with both, the IPv4 address
        try:
            return cls(host, bind)
        except OSError as error:
            log.warning("no port for jobs to hold on to, so a stop kills them: %s", error)
            return None

    @property
    def stores_away(self) -> int:
        """Number of jobs that the store does not answer."""
        return sum(self.held.copy().values())

    @override
    def close(self) -> None:
        """End every job that holds a connection. Idempotent."""
        self.closed = True
        super().close()
        drop([*self.clients.copy(), *self.held.copy()])


class _Connection(BaseRequestHandler):
    """A connection: the token, at first; later what a job says of its store, and the job's end."""

    request: socket.socket
    server: StopChannel

    @override
    def handle(self) -> None:
        received = b""
        while len(received) < TOKEN_BYTES and (part := self.request.recv(TOKEN_BYTES - len(received))):
            received += part
        if not hmac.compare_digest(received, self.server.token.encode()):
            return
        self.server.held[self.request] = False
        self.server.keep(self.request)
        while not self.server.closed and (said := self.request.recv(TOKEN_BYTES)):
            self.server.held[self.request] = said[-1:] == AWAY

    @override
    def finish(self) -> None:
        self.server.held.pop(self.request, None)


@contextlib.contextmanager
def held(
    address: StopAddress | None, on_break: Callable[[], None], *, store_away: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Hold a connection, on an executor, and call `on_break` from another thread when it breaks.

    Args:
        address: the driver's address; None holds nothing.
        on_break: called at most once.
        store_away: whether the store does not answer the job; called about every `TELL_SECONDS`.

    Raises:
        UnknownOutcomeError: the driver does not listen: it has ended the run of this job.
    """
    if address is None:
        yield
        return
    connection = _connect(address)
    let_go = threading.Event()

    def watch() -> None:
        told = False
        with contextlib.suppress(OSError):
            while True:
                try:
                    connection.recv(1)  # the driver sends nothing: this is the end
                    break
                except TimeoutError:
                    if store_away() != told:
                        told = not told
                        connection.sendall(AWAY if told else BACK)
        if not let_go.is_set():
            on_break()

    threading.Thread(target=watch, name="job-stop", daemon=True).start()
    try:
        yield
    finally:
        let_go.set()
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()


def _connect(address: StopAddress) -> socket.socket:
    host, port, token = address
    try:
        connection = socket.create_connection((host, port), timeout=CONNECT_SECONDS)
    except OSError as error:
        raise UnknownOutcomeError(f"the driver of this job is gone from {host}:{port} ({error})") from error
    try:
        connection.sendall(token.encode())
        connection.settimeout(TELL_SECONDS)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE.items():
            if hasattr(socket, name):  # not on every system
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    except BaseException:
        connection.close()
        raise
    return connection
