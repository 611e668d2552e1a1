"""The port of the HTTP API: uvicorn in a thread of its own."""

from __future__ import annotations

import contextlib
import functools
import logging
import socket
import threading
from typing import TYPE_CHECKING, Any

import uvicorn
from typing_extensions import Self, override
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from framework.errors import cannot_listen
from framework.runtime.certificate import RenewedCertificate, check_tls

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from framework.config.http_sections import HttpSection

log = logging.getLogger(__name__)

MAX_CLIENTS = 64
KEY_SHOWN = "api-key shown"
"""In a request's state: it has sent the key, and its client keeps its place until it is answered."""

REQUEST_SECONDS = 10.0
"""Time for the line and the headers of a request, from the connection or from the last answer."""

CLOSE_SECONDS = 3.0
_BACKLOG = 128
IN_THE_CLEAR = "[http.tls] is off: the API key goes over the network in the clear"


class _Listener(socket.socket):
    """Drops the oldest of too many connections that only begin TLS: uvicorn learns of a client after its handshake.

    Attributes:
        certificate: looked at before each connection is accepted; None without TLS.
    """

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(fileno=listening.detach())
        self.certificate: RenewedCertificate | None = None
        self._new: dict[int, socket.socket] = {}  # by descriptor, oldest first

    @override
    def accept(self) -> tuple[socket.socket, Any]:
        if self.certificate is not None:
            self.certificate.renew()
        client, place = super().accept()
        open_still = {number: known for number, known in self._new.items() if known.fileno() == number}
        if len(open_still) >= MAX_CLIENTS:
            with contextlib.suppress(OSError):  # the client has gone
                open_still.pop(next(iter(open_still))).shutdown(socket.SHUT_RDWR)
        self._new = {**open_still, client.fileno(): client}
        return client, place

    def greeted(self, descriptor: int) -> None:
        """Take note that uvicorn knows a client."""
        self._new.pop(descriptor, None)


class _Protocol(H11Protocol):
    """Drops a client that sends no whole request, and the oldest of too many: they would hold the few places.

    uvicorn itself waits without end, for the first request and for one of which a byte came. Its `limit_concurrency`
    limits answers: connections beyond it keep their descriptors, of which the source needs some. No answer shall find the
    limit reached: clients without the key could then keep everyone out.
    """

    def __init__(self, *args: Any, listener: _Listener, **options: Any) -> None:
        super().__init__(*args, **options)
        self._listener = listener
        self.dropped = False

    @override
    def connection_made(self, transport) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        super().connection_made(transport)
        self._listener.greeted(transport.get_extra_info("socket").fileno())
        self.since = self.loop.time()
        clients = [one for one in self.connections if isinstance(one, _Protocol) and not one.dropped]
        if len(clients) >= MAX_CLIENTS:
            min(clients, key=_worth).drop()
        self._expect_request()

    def drop(self) -> None:
        """End the connection at once: in TLS, the end in order waits half a minute for a silent client."""
        self.dropped = True
        self.transport.abort()

    @override
    def on_response_complete(self) -> None:
        self._expect_request()  # before a request that came with this one begins
        super().on_response_complete()

    def _expect_request(self) -> None:
        self.loop.call_later(REQUEST_SECONDS, self._close_silent, self.cycle)

    def _close_silent(self, last: object) -> None:
        if self.cycle is last and not self.transport.is_closing():
            self.transport.close()


def _worth(client: _Protocol) -> tuple[bool, bool, float]:
    """Return the order in which clients are dropped: first those that end, last those that wait and have shown the key.

    Then by age: no request without the key keeps a new client out.
    """
    cycle: RequestResponseCycle | None = client.cycle
    waits = cycle is not None and not cycle.response_complete and KEY_SHOWN in cycle.scope["state"]
    return not client.transport.is_closing(), waits, client.since


class ApiServer:
    """Serves the API until it is closed. A context manager.

    Args:
        app: the application.
        http: where, with which key and certificate.

    Attributes:
        port: of the address, or the one that was free when that is 0.
        url: where it answers.

    Raises:
        ConfigError: the address or the certificate cannot be used.
    """

    def __init__(self, app: ASGIApp, http: HttpSection) -> None:
        if in_the_clear(http):
            log.warning(IN_THE_CLEAR)
        self._socket = _listen(http)
        self.port = int(self._socket.getsockname()[1])
        self.url = f"{'https' if http.tls.enabled else 'http'}://{http.address.rpartition(':')[0]}:{self.port}"
        try:
            check_tls(http.tls)
            config = uvicorn.Config(
                app,
                http=functools.partial(_Protocol, listener=self._socket),  # type: ignore[arg-type]
                loop="asyncio",  # its listeners are accepted from in Python
                backlog=_BACKLOG,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",  # a warning for each broken request would let any client fill the log
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=2 * MAX_CLIENTS,  # dropped clients count until the loop's next turn
                timeout_graceful_shutdown=int(CLOSE_SECONDS),
                ssl_certfile=http.tls.cert_file if http.tls.enabled else None,
                ssl_keyfile=http.tls.key_file if http.tls.enabled else None,
            )
            config.load()
            if config.ssl is not None:
                self._socket.certificate = RenewedCertificate(config.ssl, http.tls)
        except BaseException:
            self._socket.close()
            raise
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="http", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(CLOSE_SECONDS + 1)
        self._socket.close()


def _listen(http: HttpSection) -> _Listener:
    host, port = http.host_and_port()
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return _Listener(socket.create_server((host, port), family=found[0][0], backlog=_BACKLOG))
    except OSError as exc:
        raise cannot_listen("[http] address", http.address, exc) from exc


def in_the_clear(http: HttpSection) -> bool:
    """Return whether others on the network can read the key."""
    return not (http.tls.enabled or http.only_local)
