"""The connection that records are sent over: a socket that the sending thread itself writes and reads.

The official client takes each request through two other threads, and copies it. Without them a record takes a tenth
less CPU (docs/development/measurements.md). So over TCP without TLS records go this way, beside a connection of the
official client, which does all else. The layout of the frames: `framework.iggy.protocol`.

One request at a time. No thread waits for answers: whoever asks for one reads it, or the next request does.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, TypeVar

import attrs
from typing_extensions import override

from framework.iggy import protocol, wire
from framework.iggy.errors_map import CONNECT, Answer, answer_of, classify, not_sent, text_of

if TYPE_CHECKING:
    from framework.config.iggy_address import IggyAddress
    from framework.iggy.values import ConnectedClient

T = TypeVar("T")

HEARTBEAT_SECONDS = 5.0
"""As the official client's: a real server drops a silent member of a consumer group after 61 seconds."""

_OPERATIONS = {command: operation for operation, command in protocol.OPERATION_COMMANDS.items()}
_JOIN, _SEND = _OPERATIONS[protocol.JOIN_GROUP], _OPERATIONS[protocol.SEND]
_READ, _LOGIN = protocol.OPERATION_READ, protocol.OPERATION_REGISTER
_MOST_ANSWERED = 1 << 20
_NO_CONTEXT = bytes(4)


class PulledFuture(Future[T]):
    """A future that is completed by those who ask for it.

    Args:
        pull: completes what is under way, if it can within so many seconds; None: however long it takes.
    """

    def __init__(self, pull: Callable[[float | None], None]) -> None:
        super().__init__()
        self.pull = pull

    @override
    def done(self) -> bool:
        if not super().done():
            self.pull(0)
        return super().done()

    @override
    def result(self, timeout: float | None = None) -> T:
        return super().result(self._pulled(timeout))

    @override
    def exception(self, timeout: float | None = None) -> BaseException | None:
        return super().exception(self._pulled(timeout))

    def _pulled(self, timeout: float | None) -> float | None:
        """Pull; return what is left of the time."""
        if super().done():
            return timeout
        began = time.monotonic()
        self.pull(timeout)
        return None if timeout is None else max(0.0, timeout - (time.monotonic() - began))


@attrs.define(eq=False)
class _Request:
    """The request under way."""

    what: str
    finish: Callable[[bytes], object]
    sending: bool
    future: PulledFuture[object]
    deadline: float
    operation: int
    number: int


class SendConnection:
    """A logged-in connection that sends. Threads may share it.

    After a break, a missed time limit or a send that failed it is dead for good, as `IggyConnection` is.

    Attributes:
        failure: why it ended; None while it works.
        client: this connection as the server lists it.

    Args:
        address: the server, over TCP without TLS, and the credentials.
        ip: the host's address that the other connection uses.
        connect_timeout_seconds: for connecting, and for each of the two requests of the login.
        timeout_seconds: for each later request, from the moment it goes out.
        on_end: called with the reason when it ends.
    """

    client: ConnectedClient

    def __init__(
        self,
        address: IggyAddress,
        ip: str,
        *,
        connect_timeout_seconds: float,
        timeout_seconds: float,
        on_end: Callable[[str], None],
    ) -> None:
        self.failure: str | None = None
        self._address, self._ip = address, ip
        self._limit = connect_timeout_seconds, "connect_timeout"
        self._limit_when_open = timeout_seconds, "request_timeout"
        self._on_end = on_end
        self._lock = threading.RLock()  # a signal may close it in the middle of a call
        self._current: _Request | None = None
        self._received = bytearray()
        self._id, self._session, self._requests = secrets.token_bytes(16), 0, 0
        self._used = time.monotonic()
        try:
            self._socket = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET)
        except OSError as error:  # no descriptor is left, or the kernel has no such addresses
            raise classify(error, CONNECT, server=address.server, login=address.login) from error
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)
        weakref.finalize(self, self._socket.close)

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Connect and log in. Ends when another thread closes it.

        Args:
            loop: sends heartbeats.

        Raises:
            IggyUnavailableError: no answer in time.
            IggyAuthError, IggyProtocolError: the login was refused.
        """
        try:
            self._connect()
            self._session = _session_of(self._ask(CONNECT, _LOGIN, _encode_login(self._address)))
            self.client = wire.parse_own_client(self._ask("ask for the own client id", _READ, code=protocol.GET_ME))
        except BaseException:
            self._socket.close()
            raise
        self._limit = self._limit_when_open
        loop.call_soon_threadsafe(_keep_alive, weakref.ref(self), loop)

    def _connect(self) -> None:
        timeout_seconds, _ = self._limit_when_open
        limit = struct.pack("ll", int(timeout_seconds), int(timeout_seconds % 1 * 1e6))
        try:
            self._socket.settimeout(self._limit[0])
            self._socket.connect((self._ip, self._address.port))
            self._socket.settimeout(None)  # the kernel limits the writing, without a step for each part of a request
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            if self.failure is not None:  # another thread closed it
                raise not_sent(CONNECT, self.failure, server=self._address.server) from error
            raise classify(error, CONNECT, server=self._address.server, login=self._address.login) from error

    def join_group(self, what: str, stream: str, topic: str, group: str) -> None:
        """Join a consumer group that exists.

        Raises:
            IggyAuthError, IggyProtocolError: this user may not, or the server has no groups.
        """
        self._ask(what, _JOIN, b"".join(map(wire.encode_name, (stream, topic, group))))

    def submit(self, what: str, body: bytes | bytearray, finish: Callable[[bytes], T]) -> Future[T]:
        """Send a body made by `wire.encode_send`, behind the answer to the request before.

        Args:
            what: for messages, with the names in it.
            body: the request.
            finish: makes the result out of the answer.
        """
        return self._submit(what, _SEND, body, finish, sending=True)

    def pull(self, seconds: float | None) -> None:
        """Complete the request under way, if its answer comes within so many seconds."""
        if self._lock.acquire(timeout=-1 if seconds is None else seconds):
            try:
                if self._current is not None:
                    self._receive(seconds)
            finally:
                self._lock.release()

    def close(self) -> None:
        """End: the request in progress fails as after a break. Idempotent, from any thread."""
        self._shut()
        with self._lock:
            if self.failure is None:
                self._end("it was closed")

    # ---- requests

    def _ask(self, what: str, operation: int, body: bytes = b"", *, code: int = 0) -> bytes:
        return self._submit(what, operation, body, bytes, code=code).result()

    def _submit(
        self,
        what: str,
        operation: int,
        body: bytes | bytearray,
        finish: Callable[[bytes], T],
        *,
        code: int = 0,
        sending: bool = False,
    ) -> Future[T]:
        with self._lock:
            while self._current is not None:
                self._receive(None)
            if self.failure is not None:
                raise not_sent(what, self.failure, server=self._address.server)
            future: PulledFuture[T] = PulledFuture(self.pull)
            future.set_running_or_notify_cancel()
            self._used = time.monotonic()
            request = _Request(
                what,
                finish,
                sending,
                future,  # type: ignore[arg-type] # of any type
                self._used + self._limit[0],
                operation,
                self._requests,
            )
            self._current = request
            head = protocol.request_header(
                len(body),
                client=self._id,
                request=self._requests,
                operation=operation,
                session=self._session,
                code=code,
            )
            self._requests += operation != _READ
            with self._ending():
                self._write(head, body, request.deadline)
            return future

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """End with what goes wrong. After an interruption, too: it may have come in the middle of a frame."""
        try:
            yield
        except BlockingIOError:
            seconds, option = self._limit
            self._end(f"no answer within {seconds:g} s, [iggy] {option}")
        except (OSError, protocol.BrokenFrameError) as error:
            self._end(str(error))
        except BaseException as error:
            self._end(f"it was interrupted by {type(error).__name__}")
            raise

    def _write(self, head: bytes, body: bytes | bytearray, deadline: float) -> None:
        sent = self._socket.sendmsg((head, body))
        while sent < len(head) + len(body):
            if time.monotonic() > deadline:
                raise BlockingIOError
            left = sent - len(head)
            sent += self._socket.sendmsg((head[sent:], body) if left < 0 else (memoryview(body)[left:],))

    # ---- answers; the caller has the lock

    def _receive(self, seconds: float | None) -> None:
        """Complete the request under way with its answer, if it comes within so many seconds."""
        request = self._current
        assert request is not None
        until = request.deadline if seconds is None else min(request.deadline, time.monotonic() + seconds)
        with self._ending():
            while (frame := self._read()) is None:
                left = until - time.monotonic()
                if left <= 0:
                    if until == request.deadline:
                        raise BlockingIOError
                    return
                self._readable.poll(math.ceil(left * 1000))
            status, answer = protocol.read_reply(frame, request.operation, request.number)
            self._current = None
            self._complete(request, status, answer)

    def _read(self) -> bytes | None:
        """Return the next frame; None while it is not whole."""
        received = self._received
        while (missing := protocol.missing_bytes(received)) > 0:
            if missing > _MOST_ANSWERED:
                raise ConnectionError(f"an answer of {missing:,} bytes")
            try:
                data = self._socket.recv(missing, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            if not data:
                raise ConnectionError("the server closed the connection")
            received += data
        self._received = bytearray()
        return bytes(received)

    def _complete(self, request: _Request, status: int, answer: bytes) -> None:
        try:
            if status:
                raise RuntimeError(text_of(status))  # noqa: TRY301 - refused, as an answer that cannot be read is
            result = request.finish(answer)
        except Exception as error:  # noqa: BLE001 - goes to the caller
            if request.sending or (status and answer_of(error) is Answer.BROKEN):
                self._end(str(error))
            self._fail(request, error)
        else:
            with contextlib.suppress(InvalidStateError):  # a signal closed the connection meanwhile
                request.future.set_result(result)

    # ---- the end

    def _end(self, reason: str) -> None:
        """The caller has the lock."""
        if self.failure is None:
            self.failure = reason
        request, self._current = self._current, None
        self._shut()
        self._socket.close()
        if request is not None:
            self._fail(request, ConnectionError(reason))
        self._on_end(reason)

    def _fail(self, request: _Request, error: Exception) -> None:
        made = classify(
            error, request.what, server=self._address.server, login=self._address.login, sending=request.sending
        )
        if made is not error:
            made.__cause__ = error
        with contextlib.suppress(InvalidStateError):  # it has ended
            request.future.set_exception(made)

    def _shut(self) -> None:
        with contextlib.suppress(OSError):  # it is closed, or the server closed it
            self._socket.shutdown(socket.SHUT_RDWR)

    def send_heartbeat_if_idle(self) -> None:
        """Send one unless a request is under way; called in the loop's thread."""
        if self._lock.acquire(blocking=False):  # else it is in use
            try:
                if self._current is not None:
                    self._receive(0)
                is_idle = self._current is None and time.monotonic() - self._used >= HEARTBEAT_SECONDS
                if is_idle and self.failure is None:
                    self._submit("send a heartbeat", _READ, b"", bytes, code=protocol.PING)
            finally:
                self._lock.release()


def _keep_alive(known: weakref.ref[SendConnection], loop: asyncio.AbstractEventLoop) -> None:
    """Send heartbeats until the connection ends, or nothing refers to it any more: its claim would never end."""
    connection = known()
    if connection is not None and connection.failure is None:
        connection.send_heartbeat_if_idle()
        loop.call_later(HEARTBEAT_SECONDS, _keep_alive, known, loop)


def _encode_login(address: IggyAddress) -> bytes:
    """The body of a login: versions, who logs in, and no context."""
    version = struct.pack("<I", protocol.PROTOCOL_VERSION) + b"".join(map(_short, ("send-records", "0.9.0")))
    if address.token is not None:
        return version + _short(address.token) + _NO_CONTEXT
    return version + _short(address.user) + _short(address.password or "") + _NO_CONTEXT


def _session_of(answer: bytes) -> int:
    with wire.laid_out("the answer to a login"):
        (session,) = struct.unpack_from("<Q", answer, 8)  # behind a count and the user's number
    return int(session)


def _short(text: str) -> bytes:
    raw = text.encode()
    return bytes((len(raw),)) + raw
