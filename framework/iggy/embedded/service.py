"""The running server: the lock on its folder, the listener, the connections, and when it ends."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import selectors
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING

from framework.iggy.embedded.catalog import Catalog
from framework.iggy.embedded.commands import Commands
from framework.iggy.embedded.connection import Connection
from framework.iggy.embedded.files import FileOps
from framework.iggy.embedded.notices import announce, warn
from framework.model.local_hosts import is_this_machine
from framework.model.private_files import make_private, open_lock

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

LOCK_FILE = "lock"
ADDRESS_FILE = "server.json"
PASSWORD_FILE = "password"  # noqa: S105 - the name of a file
MAX_CLIENTS = 1000
MAX_STRANGERS = 64
"""Clients that have not logged in yet, at once: of more the oldest is dropped."""
IDLE_SECONDS = 1.0
"""How long a server whose owner is gone waits for another client."""
_STOP_SECONDS = 0.7
_LOOK_SECONDS = 0.1
# An owner that asks for the end may just have let go of other connections: they are given this long to close.
_GRACE_SECONDS = 0.05
# Whoever wants to join looks for a moment whether the lock is held.
_LOCK_SECONDS = 0.2
_USERNAME_BYTES = (3, 50)
_PASSWORD_BYTES = (3, 100)
"""The least and the most, as in Iggy."""


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

    def __init__(self, folder: Path, *, username: str, password: str | None = None, sync: bool = True) -> None:
        """Describe the server; do no I/O. Without a password it is the folder's own, made at random when there is none yet."""
        self.folder = folder
        self._username = username
        self._password = password
        self._credentials = (username, "")
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
        """Serve until it is stopped.

        Args:
            host: A loopback address.
            port: The port, or 0 for any free one.
            owner_fd: When given, the read end of a pipe whose write end the owner holds: at its end of file the
                owner is gone; a byte in it asks to end as soon as no other owner uses the server.

        Raises:
            ValueError: `host` is not a loopback address, or no client could send the name or the password.
            FolderInUseError: Another process serves the folder.
            OSError: The folder cannot be used, or belongs to another user, or the port is taken.
        """
        try:
            check_loopback(host)
            _check_length("the user name (--username)", self._username, _USERNAME_BYTES)
            if self._password is not None:
                _check_length("the password (IGGY_EMBEDDED_PASSWORD)", self._password, _PASSWORD_BYTES)
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            make_private(self.folder)
            self._lock_folder()
            password = self._password if self._password is not None else self._folder_password()
            self._credentials = (self._username, password)
            self._catalog.open()
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            with socket.create_server((host, port), family=family, backlog=256) as listener:
                port = listener.getsockname()[1]
                address = {
                    "pid": os.getpid(),
                    "host": host,
                    "port": port,
                    "username": self._username,
                    "password": password,
                }
                self._files.replace(self.folder / ADDRESS_FILE, json.dumps(address).encode())
                shown = f"[{host}]" if ":" in host else host
                announce(
                    f"Embedded Iggy server, for development and tests only: listening on {shown}:{port}, "
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

    def _folder_password(self) -> str:
        """The password that the folder keeps; a new one is made of 32 random letters."""
        path = self.folder / PASSWORD_FILE
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            password = secrets.token_urlsafe(24)
            self._files.replace(path, f"{password}\n".encode())
            return password
        with os.fdopen(fd, encoding="utf-8") as file:
            password = file.read(_PASSWORD_BYTES[1] + 2).removesuffix("\n")
        try:
            _check_length(f"the password in {path}", password, _PASSWORD_BYTES)
        except ValueError as exc:
            raise OSError(f"{exc}: remove the file, and a new one is made") from exc
        return password

    def _lock_folder(self) -> None:
        self._lock_fd = fd = open_lock(self.folder / LOCK_FILE)
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as exc:
                if time.monotonic() >= deadline:
                    raise self._in_use(fd) from exc
                time.sleep(_GRACE_SECONDS)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        (self.folder / ADDRESS_FILE).unlink(missing_ok=True)

    def _in_use(self, fd: int) -> FolderInUseError:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        return FolderInUseError(
            f"{self.folder} is served by the process {holder} already: connect to that one, or stop it first"
        )

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
        """Return whether a server with an owner has no client left."""
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
        """Return how long to wait for an event before asking `_done` again; None means forever."""
        if not owner.gone:
            return None
        return _GRACE_SECONDS if owner.asked else _LOOK_SECONDS

    def _accept(self, listener: socket.socket) -> None:
        self._last_number += 1
        peer: socket.socket | None = None
        try:
            peer, _ = listener.accept()
            connection = Connection(peer, self._last_number, self._commands, *self._credentials)
            self._start(connection)
        except (OSError, RuntimeError) as exc:
            # Gone already, no descriptors or threads left, or too many: that client's connection fails, the others' go on.
            if peer is not None:
                peer.close()
            warn(f"a client could not be accepted: {exc}")
            time.sleep(_GRACE_SECONDS)

    def _start(self, connection: Connection) -> None:
        """Serve the connection in a thread of its own.

        Raises:
            RuntimeError: There are too many, or no thread can be started.
        """
        thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
        with self._connections_lock:
            if len(self._connections) >= MAX_CLIENTS:
                raise RuntimeError(f"{MAX_CLIENTS} clients are connected")
            strangers = [stranger for stranger in self._connections if not stranger.trusted]
            self._connections[connection] = thread
        for stranger in strangers[: max(0, len(strangers) + 1 - MAX_STRANGERS)]:
            stranger.shut()
        try:
            thread.start()
        except RuntimeError:
            with self._connections_lock:
                del self._connections[connection]
            raise

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


def _check_length(what: str, text: str, limits: tuple[int, int]) -> None:
    least, most = limits
    if not least <= len(text.encode()) <= most:
        raise ValueError(f"{what} must have {least} to {most} bytes, as clients of Iggy refuse others")


def check_loopback(host: str) -> None:
    """Raise ValueError unless `host` is an address of this machine only."""
    if not is_this_machine(host):
        raise ValueError(
            f"The embedded server listens on this machine only, not on {host!r}: use 127.0.0.1, "
            "or run a real Iggy server for other machines."
        )
