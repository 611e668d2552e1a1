"""The running server: the lock on its folder, the listener, the connections, and when it ends."""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import selectors
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING

from framework.iggy.server.catalog import Catalog
from framework.iggy.server.commands import Commands
from framework.iggy.server.connection import Connection
from framework.iggy.server.files import FileOps
from framework.iggy.server.notices import announce, warn

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

LOCK_FILE = "lock"
ADDRESS_FILE = "server.json"
IDLE_SECONDS = 1.0
"""How long a server whose owner is gone waits for another client."""
_STOP_SECONDS = 0.7
_LOOK_SECONDS = 0.1
# An owner that asks for the end may just have let go of other connections: they are given this long to close.
_GRACE_SECONDS = 0.05


class FolderInUseError(Exception):
    """Another live process serves the folder."""


class _Owner:
    """The process that started the server, seen through a pipe.

    Attributes:
        gone: Whether it has ended or asked for the end.
        gone_at: When that was noticed.
        asked: Whether it asked, so that the server need not wait for clients that merely linger.
    """

    def __init__(self, fd: int | None) -> None:
        self.gone = False
        self.gone_at = 0.0
        self.asked = False
        self._fd = fd

    def read(self) -> None:
        """Take in what the pipe has: a byte asks, the end of file tells that the owner is gone."""
        if self._fd is not None:
            self.asked = bool(os.read(self._fd, 64))
            self.gone, self.gone_at = True, time.monotonic()


class Service:
    """A server over one folder.

    `run` blocks until SIGTERM, SIGINT, `stop`, or, for a server with an owner, until the owner is gone and no
    client has been connected for a second. What was confirmed is on the disk whenever it ends, however it ends.
    """

    def __init__(self, folder: Path, *, username: str, password: str, sync: bool = True) -> None:
        """Describe the server; do no I/O."""
        self.folder = folder
        self._username = username
        self._password = password
        self._files = FileOps(sync=sync)
        self._catalog = Catalog(folder, self._files)
        self._commands = Commands(self._catalog, folder, self._listed)
        self._connections: dict[Connection, threading.Thread] = {}
        self._connections_lock = threading.Lock()
        self._last_number = 0
        self._idle_since = time.monotonic()
        self._wake_read, self._wake_write = socket.socketpair()
        self._lock_fd = -1

    def run(self, host: str, port: int, *, owner_fd: int | None = None) -> None:
        """Serve until told to end.

        Args:
            host: A loopback address.
            port: The port, or 0 for any free one.
            owner_fd: When given, the read end of a pipe whose write end the owner holds: at its end of file the
                owner is gone; a byte in it asks to end as soon as no other owner uses the server.

        Raises:
            ValueError: `host` is not a loopback address.
            FolderInUseError: Another process serves the folder.
            OSError: The folder cannot be used, or the port is taken.
        """
        try:
            check_loopback(host)
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock_folder()
            self._catalog.open()
            with socket.create_server((host, port), backlog=256) as listener:
                port = listener.getsockname()[1]
                address = {"pid": os.getpid(), "host": host, "port": port}
                self._files.replace(self.folder / ADDRESS_FILE, json.dumps(address).encode())
                announce(
                    f"Embedded Iggy server, for development and tests only: listening on {host}:{port}, "
                    f"data in {self.folder}"
                )
                self._loop(listener, owner_fd)
            self._end()
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the folder; `run` does it by itself. May be called twice."""
        fd, self._lock_fd = self._lock_fd, -1
        if fd >= 0:
            os.close(fd)
        self._wake_read.close()
        self._wake_write.close()

    def stop(self) -> None:
        """Make `run` return; may be called from anywhere, also from a signal handler."""
        try:
            self._wake_write.send(b"s")
        except OSError:
            return

    def install_signals(self) -> None:
        """Let SIGTERM and SIGINT end `run`."""

        def handle(_number: int, _frame: FrameType | None) -> None:
            self.stop()

        signal.signal(signal.SIGTERM, handle)
        signal.signal(signal.SIGINT, handle)

    def _lock_folder(self) -> None:
        self._lock_fd = fd = os.open(self.folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise FolderInUseError(
                f"{self.folder} is served by the process {holder} already: connect to that one, or stop it first"
            ) from exc
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        (self.folder / ADDRESS_FILE).unlink(missing_ok=True)

    def _loop(self, listener: socket.socket, owner_fd: int | None) -> None:
        owner = _Owner(owner_fd)
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            if owner_fd is not None:
                selector.register(owner_fd, selectors.EVENT_READ)
            while not self._done(owner):
                for key, _ in selector.select(self._patience(owner)):
                    if key.fileobj is listener:
                        self._accept(listener)
                    elif key.fileobj is self._wake_read:
                        return
                    elif owner_fd is not None:
                        selector.unregister(owner_fd)
                        owner.read()

    def _done(self, owner: _Owner) -> bool:
        """Tell whether a server with an owner has nobody left to serve."""
        if not owner.gone:
            return False
        with self._connections_lock:
            leases = sum(connection.leased for connection in self._connections)
            clients = len(self._connections)
        if owner.asked and not leases:
            return True
        if owner.asked and time.monotonic() >= owner.gone_at + _GRACE_SECONDS:
            owner.asked = False
            announce("another process still uses the server: it goes on until that one has ended")
        return not clients and time.monotonic() >= max(self._idle_since, owner.gone_at) + IDLE_SECONDS

    def _patience(self, owner: _Owner) -> float | None:
        """Return how long to wait for an event before asking `_done` again; None is for ever."""
        if not owner.gone:
            return None
        return _GRACE_SECONDS if owner.asked else _LOOK_SECONDS

    def _accept(self, listener: socket.socket) -> None:
        self._last_number += 1
        peer: socket.socket | None = None
        try:
            peer, _ = listener.accept()
            connection = Connection(peer, self._last_number, self._commands, self._username, self._password)
        except OSError as exc:
            # Gone already, or no descriptors left: that client's connection fails, the others' go on.
            if peer is not None:
                peer.close()
            warn(f"a client could not be accepted: {exc}")
            time.sleep(_GRACE_SECONDS)
            return
        thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
        with self._connections_lock:
            self._connections[connection] = thread
        thread.start()

    def _serve(self, connection: Connection) -> None:
        try:
            connection.serve()
        finally:
            # Only now: while a client is listed, a request of it may still be stored.
            with self._connections_lock:
                del self._connections[connection]
                self._idle_since = time.monotonic()

    def _listed(self) -> list[Connection]:
        with self._connections_lock:
            return [connection for connection in self._connections if connection.listed]

    def _end(self) -> None:
        (self.folder / ADDRESS_FILE).unlink(missing_ok=True)
        with self._connections_lock:
            connections = dict(self._connections)
        for connection in connections:
            connection.shut()
        deadline = time.monotonic() + _STOP_SECONDS
        for thread in connections.values():
            thread.join(max(deadline - time.monotonic(), 0))
        self._catalog.close()


def check_loopback(host: str) -> None:
    """Raise ValueError unless `host` is an address of this machine only."""
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ValueError(
            f"The embedded server listens on this machine only, not on {host!r}: use 127.0.0.1, "
            "or run a real Iggy server for other machines."
        )
