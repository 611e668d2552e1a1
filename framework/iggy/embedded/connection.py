"""One client's connection: frames in, replies out, in a thread of its own."""

from __future__ import annotations

import hmac
import socket
import time
from typing import Protocol

from framework.iggy import protocol
from framework.iggy.embedded import fields, replies
from framework.iggy.embedded.fields import Cursor, RefusedError
from framework.iggy.embedded.notices import warn
from framework.iggy.protocol import BrokenFrameError, Request

_KEPT_BUFFER = 8 << 20
_OPEN_TO_ALL = frozenset({protocol.PING})
MAX_STRANGER_BODY = 1 << 16
LOGIN_SECONDS = 10.0
"""How much a client may send, and how long it may take, before it has logged in."""
# Linux only, and reset by the kernel at will: hence set before each receive.
_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)


class CommandTable(Protocol):
    """What answers requests."""

    def run(self, code: int, connection: Connection, body: memoryview) -> list[bytes | memoryview]:
        """The parts of the answer's body."""


class Connection:
    """A connected client.

    Attributes:
        number: The client id that commands 20 and 22 show.
        address: The peer, as `host:port`.
        local_address: Host and port of this end.
        logged_in: Whether a login has succeeded on this connection.
        leased: Whether a joined `EmbeddedServer`, which knows the password, holds this connection to keep the server alive.
    """

    def __init__(self, peer: socket.socket, number: int, commands: CommandTable, username: str, password: str) -> None:
        """Take over the accepted socket."""
        self.number = number
        host, port = peer.getpeername()[:2]
        self.address = f"{host}:{port}"
        self.local_address: tuple[str, int] = peer.getsockname()[:2]
        self.logged_in = False
        self.listed = False
        self.leased = False
        self._peer = peer
        self._commands = commands
        self._credentials = (username.encode(), password.encode())
        self._head = bytearray(protocol.HEADER_SIZE)
        self._buffer = bytearray(1 << 16)
        self._login_until = time.monotonic() + LOGIN_SECONDS
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def trusted(self) -> bool:
        """Whether the client has shown the password."""
        return self.logged_in or self.leased

    def serve(self) -> None:
        """Answer requests until the client leaves, misbehaves, or `shut` is called."""
        try:
            while self._receive(memoryview(self._head)):
                request = Request(self._head)
                self._make_room(request.body_size)
                body = memoryview(self._buffer)[: request.body_size]
                if not self._receive(body) or not self._answer(request, body):
                    return
                if len(self._buffer) > _KEPT_BUFFER:
                    self._buffer = bytearray(1 << 16)
        except BrokenFrameError as exc:
            warn(f"client {self.address} was dropped: {exc}")
        except OSError:
            return  # The client is gone; nothing is owed to it.
        finally:
            self._peer.close()

    def shut(self) -> None:
        """Make `serve` return after the request it is working on."""
        try:
            self._peer.shutdown(socket.SHUT_RD)
        except OSError:
            return

    def _receive(self, target: memoryview) -> bool:
        """Fill `target`; return False when the client has left."""
        peer = self._peer
        while target:
            if self._login_until:
                self._limit_wait()
            if _QUICKACK is not None:
                peer.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
            size = peer.recv_into(target)
            if not size:
                return False
            target = target[size:]
        return True

    def _make_room(self, size: int) -> None:
        if size > MAX_STRANGER_BODY and not self.trusted:
            raise BrokenFrameError(f"{size} bytes from a client that has not logged in")
        if size > len(self._buffer):
            self._buffer = bytearray(size)

    def _limit_wait(self) -> None:
        """Limit the wait for a login; after it there is no limit."""
        if self.trusted:
            self._login_until = 0.0
            self._peer.settimeout(None)
        else:
            self._peer.settimeout(max(0.01, self._login_until - time.monotonic()))

    def _answer(self, request: Request, body: memoryview) -> bool:
        """Carry out one request and reply; return False when the connection is to be closed."""
        if request.operation == protocol.OPERATION_REGISTER:
            return self._log_in(request, body)
        if request.operation == protocol.OPERATION_LOGOUT:
            self.logged_in = False
            self._reply(request, [])
            return True
        if request.code == protocol.LEASE:
            self.leased = self.leased or hmac.compare_digest(bytes(body), self._credentials[1])
        elif not self.logged_in and request.code not in _OPEN_TO_ALL:
            self._peer.sendall(protocol.reply_header(request, 0, fields.UNAUTHENTICATED))
            return True
        try:
            parts = self._commands.run(request.code, self, body)
        except RefusedError as exc:
            self._peer.sendall(protocol.reply_header(request, 0, exc.status))
            return True
        if request.operation in protocol.RESULT_FRAMED:
            parts.insert(0, fields.U32.pack(0))
        self._reply(request, parts)
        return True

    def _reply(self, request: Request, parts: list[bytes | memoryview]) -> None:
        head = protocol.reply_header(request, sum(map(len, parts)))
        if sum(map(len, parts)) < 1 << 16:
            self._peer.sendall(b"".join((head, *parts)))
            return
        self._peer.sendall(head)
        for part in parts:
            self._peer.sendall(part)

    def _log_in(self, request: Request, body: memoryview) -> bool:
        reason = self._check_login(body)
        if reason:
            self._peer.sendall(protocol.eviction(request.client, reason))
            return False
        self.logged_in = self.listed = True
        self._reply(request, [fields.U32.pack(0), replies.login_body(self.number)])
        return True

    def _check_login(self, body: memoryview) -> int:
        """Return 0 for the right user and password, else the reason for the eviction."""
        try:
            cursor = Cursor(body)
            version = cursor.u32()
            cursor.name(), cursor.name()
        except RefusedError:
            return protocol.EVICTED_MALFORMED_LOGIN
        if version < protocol.PROTOCOL_VERSION_MIN or version >> 10 > protocol.PROTOCOL_VERSION >> 10:
            return protocol.EVICTED_INCOMPATIBLE
        start = cursor.position
        try:
            name, password = cursor.take(cursor.u8()), cursor.take(cursor.u8())
            cursor.take(cursor.u32())
        except RefusedError:
            return self._refuse_token(Cursor(body, start))
        if not cursor.end():
            return self._refuse_token(Cursor(body, start))
        right_name = hmac.compare_digest(name, self._credentials[0])
        right_password = hmac.compare_digest(password, self._credentials[1])
        return 0 if right_name and right_password else protocol.EVICTED_BAD_CREDENTIALS

    def _refuse_token(self, cursor: Cursor) -> int:
        try:
            cursor.take(cursor.u8())
            cursor.take(cursor.u32())
        except RefusedError:
            return protocol.EVICTED_MALFORMED_LOGIN
        warn(
            f"client {self.address}: a personal access token was refused: the embedded server has no tokens, "
            "log in with user and password"
        )
        return protocol.EVICTED_BAD_TOKEN
