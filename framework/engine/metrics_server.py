"""A small HTTP server for the metrics port: slow or numerous clients cannot exhaust it, nor the source with it."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from typing_extensions import override

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

log = logging.getLogger(__name__)

MAX_CLIENTS = 16
CLIENT_SECONDS = 5.0
"""Time limit per client, for its request and the answer."""

_REST_SECONDS = 0.1


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_SECONDS

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: probes come every few seconds."""


class BoundedServer(ThreadingMixIn, WSGIServer):
    """Serves each client in its own thread, for `CLIENT_SECONDS` at most, and no more than `MAX_CLIENTS` at once.

    Beyond that the oldest client is dropped: a scrape is answered at once, so it is never the oldest.

    Args:
        address: host and port to listen on; port 0 takes a free port.
        application: the WSGI application.

    Raises:
        OSError: the address cannot be listened on.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], application: WSGIApplication) -> None:
        self._clients: dict[socket.socket, float] = {}  # oldest first
        self._clients_lock = threading.Lock()
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        super().__init__(address, _Handler)
        self.set_app(application)

    @override
    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's own resolves a name by DNS
        self.server_name, self.server_port = "", self.server_address[1]
        self.setup_environ()

    @override
    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            client, place = super().get_request()
        except OSError:
            time.sleep(_REST_SECONDS)  # no free descriptor: the client waits, and the loop must not spin
            raise
        with self._clients_lock:
            self._clients[client] = time.monotonic()
            surplus = list(self._clients)[:-MAX_CLIENTS]
        _drop(surplus)
        return client, place

    @override
    def service_actions(self) -> None:
        late = time.monotonic() - CLIENT_SECONDS
        with self._clients_lock:
            slow = [client for client, since in self._clients.items() if since < late]
        _drop(slow)

    @override
    def shutdown_request(self, request: Any) -> None:
        with self._clients_lock:
            self._clients.pop(request, None)
        super().shutdown_request(request)

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a client of the metrics could not be answered")  # it is gone, or no thread could be started


def _drop(clients: list[socket.socket]) -> None:
    """Shut the connections down, which ends their threads' waits; each thread closes its own."""
    for client in clients:
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
