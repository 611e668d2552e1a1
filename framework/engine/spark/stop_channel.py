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
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from typing_extensions import Self

from framework.engine.spark.session import LOOPBACK, is_local
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


class StopChannel:
    """The driver's end: `open` it, then `close` ends every job that holds a connection.

    Args:
        host: the driver's name for executors.
        bind: the local address to listen on.

    Attributes:
        address: host, port and token for jobs; None before `open`, and when no port was available.
    """

    def __init__(self, host: str, bind: str) -> None:
        self._host = host
        self._bind = bind
        self.address: StopAddress | None = None
        self._token = secrets.token_hex(TOKEN_BYTES // 2)
        self._held: dict[socket.socket, bool] = {}  # whether the job's store is away
        self._strangers: dict[socket.socket, tuple[float, bytes]] = {}  # accepted when, received so far
        self._closed = False
        self._selector: selectors.BaseSelector
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def open(self) -> Self:
        """Listen, in a thread; without a free port only log a warning."""
        try:
            self._listener = socket.create_server((self._bind, 0), backlog=1000)
        except OSError as error:
            log.warning("no port for jobs to hold on to, so a stop kills them: %s", error)
            return self
        self._selector = selectors.DefaultSelector()
        self.address = (self._host, self._listener.getsockname()[1], self._token)
        self._thread = threading.Thread(target=self._serve, args=(self._listener,), name="stop-channel", daemon=True)
        self._thread.start()
        return self

    @classmethod
    def of(cls, context: SparkContext) -> StopChannel:
        """Open a channel at the address where Spark itself listens for executors; those of a local master are here."""
        if is_local(str(context.master)):
            return cls(LOOPBACK, LOOPBACK).open()
        conf = context.getConf()
        host = conf.get("spark.driver.host", "localhost") or "localhost"
        return cls(host, conf.get("spark.driver.bindAddress", host) or host).open()

    @property
    def stores_away(self) -> int:
        """Number of jobs that the store does not answer."""
        return sum(self._held.copy().values())

    def _serve(self, listener: socket.socket) -> None:
        self._selector.register(listener, selectors.EVENT_READ)
        while not self._closed:
            for key, _ in self._selector.select(CONNECT_SECONDS if self._strangers else None):
                if isinstance(key.fileobj, socket.socket) and not self._closed:
                    if key.fileobj is listener:
                        self._accept(listener)
                    else:
                        self._hear(key.fileobj)
            late = time.monotonic() - CONNECT_SECONDS
            surplus = len(self._strangers) - MAX_STRANGERS
            for at, (peer, (since, _)) in enumerate(list(self._strangers.items())):
                if at < surplus or since < late:
                    self._drop(peer)

    def _accept(self, listener: socket.socket) -> None:
        try:
            peer, _ = listener.accept()
        except OSError:
            if not self._closed:
                time.sleep(0.1)  # no descriptor is free: whoever comes waits
            return
        peer.settimeout(0)
        self._strangers[peer] = (time.monotonic(), b"")
        self._selector.register(peer, selectors.EVENT_READ)

    def _hear(self, peer: socket.socket) -> None:
        """Read from a connection: the token, at first; later what a job says of its store, and the job's end."""
        since, before = self._strangers.get(peer, (0.0, b""))
        try:
            received = peer.recv(TOKEN_BYTES - len(before))
        except OSError:
            received = b""
        if not received:
            self._drop(peer)
        elif peer in self._held:
            self._held[peer] = received[-1:] == AWAY
        elif len(before + received) < TOKEN_BYTES:
            self._strangers[peer] = (since, before + received)
        elif hmac.compare_digest(before + received, self._token.encode()):
            del self._strangers[peer]
            self._held[peer] = False
        else:
            self._drop(peer)

    def _drop(self, peer: socket.socket) -> None:
        self._strangers.pop(peer, None)
        self._held.pop(peer, None)
        self._selector.unregister(peer)
        peer.close()

    def close(self) -> None:
        """End every job that holds a connection. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None or self._listener is None:
            return
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        thread.join()  # it waits for nothing
        self._listener.close()
        for peer in (*self._held, *self._strangers):
            peer.close()
        self._selector.close()


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
