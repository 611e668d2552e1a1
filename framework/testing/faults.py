"""An HTTP proxy that forwards to a store and injects faults: for tests of resuming and retrying.

    with FaultProxy("http://127.0.0.1:8333") as proxy:
        proxy.add(Fault(cut_at=1000, method="GET", path="/bucket/key", times=2))
        ...                                # point the store's `endpoint` at proxy.endpoint
        assert len(proxy.requests) == 3

The client signs for the proxy's address, which is forwarded unchanged, so signatures are valid. Loopback
only, plain HTTP, one thread per connection. Faults are tried in the order of `add`; the first match acts.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import attrs
from typing_extensions import Self, override

COPY_BYTES = 65_536
UPSTREAM_SECONDS = 30.0


@attrs.frozen(kw_only=True)
class Fault:
    """A fault of some requests.

    Attributes:
        method: only this method; empty = any.
        path: a regular expression that is searched in path and query as sent.
        skip: number of matching requests to let through first.
        times: number of requests to hit after that; None = all.
        every: hit only every n-th of them, beginning with the first: 5 hits one call in five.
        delay_seconds: wait before answering. Can be combined with every other fault.
        status: answer this, with `body` and `headers`, without the store.
        body: body of that answer.
        headers: headers of that answer, or set on the store's answer.
        drop: headers to remove from the store's answer, in lower case.
        cut_at: close the connection in order after this many bytes of the body.
        reset_at: reset the connection (RST) after this many bytes of the body.
        refuse: reset the connection before any answer.
        longer_by: announce this many bytes more than are sent; negative = fewer.
        repeat: repeat the answer to the first matching request.
        drop_request: headers to remove from the request, in lower case: a store that ignores them.
        change: replaces the body of the store's answer.
    """

    method: str = ""
    path: str = ""
    skip: int = 0
    times: int | None = 1
    every: int = 1
    delay_seconds: float = 0.0
    status: int | None = None
    body: bytes = b""
    headers: dict[str, str] = attrs.field(factory=dict)
    drop: tuple[str, ...] = ()
    cut_at: int | None = None
    reset_at: int | None = None
    refuse: bool = False
    longer_by: int = 0
    repeat: bool = False
    drop_request: tuple[str, ...] = ()
    change: Callable[[bytes], bytes] | None = None


@attrs.frozen(kw_only=True)
class SeenRequest:
    """A received request.

    Attributes:
        method: as sent.
        path: path and query as sent.
        headers: names in lower case.
    """

    method: str
    path: str
    headers: dict[str, str] = attrs.field(repr=False)


@attrs.define
class _Rule:
    fault: Fault
    seen: int = 0
    answer: tuple[int, list[tuple[str, str]], bytes] | None = None


class FaultProxy:
    """Forwards to `target` and injects its faults, from `start` until `close`. A context manager.

    Args:
        target: the store's address, `http://host:port`.

    Attributes:
        accepted: connections taken so far.
    """

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self.target = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._lock = threading.Lock()
        self._rules: list[_Rule] = []
        self._requests: list[SeenRequest] = []
        self._sockets: set[socket.socket] = set()
        self.accepted = 0
        self._closed = False
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="fault-proxy", daemon=True
        )

    def start(self) -> Self:
        """Begin to forward, in a thread."""
        self._thread.start()
        return self

    @property
    def endpoint(self) -> str:
        """Address for clients."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def requests(self) -> list[SeenRequest]:
        """All requests received so far."""
        with self._lock:
            return list(self._requests)

    def add(self, fault: Fault) -> None:
        """Add a fault; it counts requests from now on."""
        with self._lock:
            self._rules.append(_Rule(fault))

    def clear(self) -> None:
        """Remove all faults and recorded requests."""
        with self._lock:
            self._rules.clear()
            self._requests.clear()

    def close(self) -> None:
        """Close all connections and free the port."""
        if self._closed:
            return
        self._closed = True
        started = self._thread.ident is not None
        if started:
            self._server.shutdown()
        with self._lock:
            for connection in self._sockets:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        if started:
            self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def note(self, request: SeenRequest) -> _Rule | None:
        """Record a request; return the rule that acts on it, if any."""
        with self._lock:
            self._requests.append(request)
            for rule in self._rules:
                fault = rule.fault
                if fault.method and fault.method != request.method:
                    continue
                if re.search(fault.path, request.path) is None:
                    continue
                rule.seen += 1
                number = rule.seen - fault.skip
                if number < 1 or (fault.times is not None and number > fault.times) or (number - 1) % fault.every:
                    continue
                return rule
        return None

    def usual(self, request: SeenRequest) -> Fault:  # noqa: ARG002 - for subclasses
        """Handle a request without a fault: forward it. A subclass may answer some requests itself."""
        return Fault()

    def track(self, connection: socket.socket, *, connected: bool) -> None:
        """Register a connection, to close it at the end."""
        with self._lock:
            (self._sockets.add if connected else self._sockets.discard)(connection)
            self.accepted += connected
            if connected and self._closed:  # it came in while the others were ended; `close` waits for its thread
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 128

    @override
    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnected."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: FaultProxy
    upstream: http.client.HTTPConnection | None = None

    @override
    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.owner.track(self.connection, connected=True)

    @override
    def finish(self) -> None:
        self.owner.track(self.connection, connected=False)
        if self.upstream is not None:
            self.upstream.close()
        with contextlib.suppress(OSError):
            super().finish()

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def forward(self) -> None:
        """Handle any request."""
        sent = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = SeenRequest(method=self.command, path=self.path, headers=headers)
        rule = self.owner.note(request)
        fault = rule.fault if rule is not None else self.owner.usual(request)
        if fault.delay_seconds:
            time.sleep(fault.delay_seconds)
        if fault.refuse:
            self._break()
            return
        if fault.status is not None:
            self._answer(fault.status, list(fault.headers.items()), fault.body, fault)
            return
        if rule is not None and fault.repeat and rule.answer is not None:
            self._answer(*rule.answer, fault)
            return
        answer = self._ask({name: value for name, value in headers.items() if name not in fault.drop_request}, sent)
        if rule is not None and fault.repeat:
            rule.answer = answer
        status, kept, body = answer
        self._answer(status, kept, fault.change(body) if fault.change is not None else body, fault)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = forward  # noqa: N815  # the names http.server looks for

    def _ask(self, headers: dict[str, str], sent: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        if self.upstream is None:
            self.upstream = http.client.HTTPConnection(*self.owner.target, timeout=UPSTREAM_SECONDS)
        self.upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            if name not in ("connection", "expect"):
                self.upstream.putheader(name, value)
        self.upstream.endheaders(sent or None)
        response = self.upstream.getresponse()
        body = response.read()
        hop = ("connection", "transfer-encoding", "keep-alive")
        kept = [(name, value) for name, value in response.getheaders() if name.lower() not in hop]
        return response.status, kept, body

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, fault: Fault) -> None:
        replaced = {name.lower() for name in fault.headers} | set(fault.drop)
        length = len(body)
        lines = [f"HTTP/1.1 {status} {http.client.responses.get(status, '')}"]
        for name, value in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = int(value)
            elif name.lower() != "content-length" and name.lower() not in replaced:
                lines.append(f"{name}: {value}")
        lines += [f"{name}: {value}" for name, value in fault.headers.items()]
        if "content-length" not in replaced:
            lines.append(f"Content-Length: {length + fault.longer_by}")
        bodiless = self.command == "HEAD" or status in (204, 304)
        broken = [end for end in (fault.cut_at, fault.reset_at) if end is not None]
        part = b"" if bodiless else body[: broken[0]] if broken else body
        self.wfile.write("\r\n".join([*lines, "", ""]).encode("latin-1") + part)
        if fault.reset_at is not None:
            time.sleep(0.05)  # a reset throws away what the client has not read yet
            self._break()
        elif broken or fault.longer_by or "content-length" in replaced:
            self.close_connection = True

    def _break(self) -> None:
        """Reset the connection: close it with a linger time of zero."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.close()
