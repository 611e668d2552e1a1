"""Starts the embedded server as a child process, or joins the one that serves the folder already."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from typing_extensions import override

from framework.iggy import protocol
from framework.model.local_hosts import is_this_machine
from framework.model.private_files import ForeignFolderError, open_own

if TYPE_CHECKING:
    from typing_extensions import Self

_READY_SECONDS = 30.0
_STOP_SECONDS = 5.0
_RETRY_SECONDS = 0.02
_LOOK_SECONDS = 0.1
_TAIL_BYTES = 2000
_IN_USE = 3
_log = logging.getLogger(__name__)


class _Address(NamedTuple):
    """What the folder's server says of itself, in a file for this user only."""

    pid: int
    port: int
    host: str
    username: str
    password: str


class EmbeddedServerError(RuntimeError):
    """The embedded server could not be started; the message ends with what it said."""


class EmbeddedServer:
    """A running embedded server, for development and tests: loopback only, one folder, durable.

    The child belongs to this process: when the process ends, however it ends, the child sees it and ends too, a
    second after its last client has left. A process that joined keeps the server alive until it stops or ends.

    Attributes:
        path: The data folder.
        host: The address, always a loopback one.
        port: The port.
        username: The only user.
        password: Its password.
        owned: Whether this object started the server, rather than joined it.
    """

    def __init__(self, path: Path, username: str, password: str | None) -> None:
        """Describe the server; `start` is the way to get a running one."""
        self.path = path
        self.username = username
        self.password = password or ""
        self.host = "127.0.0.1"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._lease: socket.socket | None = None

    @classmethod
    def start(
        cls,
        path: str | os.PathLike[str],
        *,
        username: str = "iggy",
        password: str | None = None,
        sync: bool = True,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Self:
        """Return a server that answers on the folder `path`: a new child, or the live one that serves it already.

        Blocks for up to 30 seconds.

        Args:
            path: The data folder; made when missing.
            username: The only user. When a server is joined, the one it was started with.
            password: Its password; the same. By default the folder's own, made at random and kept in its file `password`.
            sync: Whether every confirmed message survives a power cut too, and not only `kill -9`.
            stopped: Asked ten times a second; ends the start.

        Raises:
            EmbeddedServerError: It was not ready in time, ended at once, or was stopped; or another user serves the folder.
        """
        server = cls(Path(path).absolute(), username, password)
        deadline = time.monotonic() + _READY_SECONDS
        output = ""
        while time.monotonic() < deadline:
            if server._join():
                return server
            code, output = server._launch(deadline, stopped, sync=sync)
            if code is None:
                return server
            if code != _IN_USE:
                raise EmbeddedServerError(f"The embedded server for {server.path} ended with code {code}: {output}")
            # Another process is just starting or ending it: look again in a moment.
            time.sleep(_RETRY_SECONDS)
        raise server._too_late(output)

    @property
    def owned(self) -> bool:
        """Whether this object started the server, rather than joined it."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """The process id of the server that this object started; 0 when it joined one, or has stopped."""
        return self._process.pid if self._process is not None else 0

    @property
    def url(self) -> str:
        """The server's address with its credentials: `iggy://user:password@host:port`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"iggy://{quote(self.username, safe='')}:{quote(self.password, safe='')}@{host}:{self.port}"

    def has_ended(self) -> bool:
        """Whether the server of a `start` has ended without a `stop`."""
        if self._process is not None:
            return self._process.poll() is not None
        if self._lease is None or not _readable(self._lease, 0):
            return False
        try:
            return not self._lease.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def stop(self) -> None:
        """End the server, or, while another process uses it too, leave it to that one. May be called twice."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.close()
        process, self._process = self._process, None
        if process is None:
            return
        stdin, stdout = _pipes(process)
        try:
            stdin.write(b"q")
            stdin.close()
        except OSError:
            _log.debug("the embedded server had ended already")
        if _readable(stdout, _STOP_SECONDS) and stdout.readline():
            # It lives on for another process, on purpose: without a code `Popen` would warn of that.
            process.returncode = 0
        else:
            _wait_or_kill(process)
        stdout.close()

    def __enter__(self) -> Self:
        """Return the running server."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self.stop()

    @override
    def __repr__(self) -> str:
        """Show where it is, never the password."""
        return f"EmbeddedServer({str(self.path)!r}, {self.host}:{self.port})"

    def _launch(self, deadline: float, stopped: Callable[[], bool], *, sync: bool) -> tuple[int | None, str]:
        """Start a child and wait until it listens; return None, or its exit code, and what it wrote on stderr."""
        root = Path(__file__).resolve().parents[3]
        command = [sys.executable, "-m", "framework.iggy.embedded", str(self.path), "--port", "0", "--owned"]
        command += ["--username", self.username, *([] if sync else ["--no-sync"])]
        environment = {**os.environ, **({"IGGY_EMBEDDED_PASSWORD": self.password} if self.password else {})}
        with tempfile.TemporaryFile() as stderr:
            # Its own session, so that Ctrl-C ends this process first, with its last messages sent. The working
            # directory is the import root: `-m` looks there before anything a user's folder could hide it with.
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=root,
                env=environment,
                start_new_session=True,
            )
            stdin, stdout = _pipes(process)
            seconds = 0.0
            try:
                while not (answers := _readable(stdout, min(_LOOK_SECONDS, deadline - time.monotonic()))):
                    if stopped() or time.monotonic() >= deadline:
                        break
                ready = answers and stdout.readline()
                address = self._address() if ready else None
                if ready and address is not None:
                    self._process = process
                    self._take(address)
                    _log.info("%s", ready.decode("utf-8", "replace").strip())
                    return None, ""
                late = time.monotonic() >= deadline
                seconds = _STOP_SECONDS if answers and not ready else 0.0  # it is ending
            finally:
                if self._process is None:  # also when Ctrl-C ended the wait for it
                    stdin.close()
                    stdout.close()
                    code = _wait_or_kill(process, seconds)
            if stopped():
                raise EmbeddedServerError(f"The start of the embedded server for {self.path} was stopped")
            stderr.seek(0)
            output = stderr.read()[-_TAIL_BYTES:].decode("utf-8", "replace").strip() or "it said nothing"
            if late:
                raise self._too_late(output)
            return code, output

    def _too_late(self, output: str) -> EmbeddedServerError:
        return EmbeddedServerError(
            f"The embedded server for {self.path} was not ready within {_READY_SECONDS:g} seconds: {output}"
        )

    def _join(self) -> bool:
        """Connect to the live server of the folder, if there is one, and hold the connection."""
        address = self._address()
        if address is None:
            return False
        try:
            lease = socket.create_connection((address.host, address.port), timeout=2)
        except OSError:
            return False
        try:
            password = address.password.encode()
            request = bytearray(protocol.HEADER_SIZE) + password
            struct.pack_into("<I", request, 48, len(request))
            request[60], request[176] = protocol.COMMAND_REQUEST, protocol.OPERATION_READ
            struct.pack_into("<I", request, 196, protocol.LEASE)
            lease.sendall(request)
            if len(lease.recv(protocol.HEADER_SIZE, socket.MSG_WAITALL)) == protocol.HEADER_SIZE:
                self._lease = lease
                self._take(address)
        except OSError:
            return False
        finally:
            if self._lease is None:  # also when Ctrl-C ended the wait for its answer
                lease.close()
        return self._lease is not None

    def _take(self, address: _Address) -> None:
        self.host, self.port = address.host, address.port
        self.username, self.password = address.username, address.password

    def _address(self) -> _Address | None:
        """Return what the folder's server has written of itself, if it holds the folder's lock.

        A server of another user would get all records, and say which objects have been read.

        Raises:
            EmbeddedServerError: The folder or one of the two files belongs to another user.
        """
        try:
            os.close(open_own(self.path, os.O_DIRECTORY))
            with os.fdopen(open_own(self.path / "server.json"), "rb") as file:
                address = _Address(**json.loads(file.read()))
            if not is_this_machine(address.host):
                return None
            with os.fdopen(open_own(self.path / "lock"), "rb") as lock:
                holder = int(lock.read(32))
                try:
                    # A process of that number may be another one by now, and so may be who listens at that port.
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return address if address.pid == holder else None
        except ForeignFolderError as exc:
            raise EmbeddedServerError(str(exc)) from exc
        except (OSError, ValueError, TypeError):
            return None
        return None


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    if process.stdin is None or process.stdout is None:
        raise EmbeddedServerError("the child has no pipes")
    return process.stdin, process.stdout


def _readable(stream: IO[bytes] | socket.socket, seconds: float) -> bool:
    poller = select.poll()
    poller.register(stream, select.POLLIN | select.POLLHUP)
    return bool(poller.poll(max(seconds, 0) * 1000))


def _wait_or_kill(process: subprocess.Popen[bytes], seconds: float = _STOP_SECONDS) -> int:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
