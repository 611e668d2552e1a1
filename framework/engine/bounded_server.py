"""A TCP server with a thread for each client, which slow or numerous clients cannot exhaust, nor the process with it."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterable
from socketserver import BaseRequestHandler, TCPServer, ThreadingMixIn
from typing import Any

from typing_extensions import override

log = logging.getLogger(__name__)

_REST_SECONDS = 0.1
_LOOK_SECONDS = 0.1


class BoundedServer(ThreadingMixIn, TCPServer):
    """Answers from its creation until `close`.

    Args:
        address: host and port to listen on; port 0 takes a free port.
        handler: what serves a client, in a thread of its own.
        name: of the thread that accepts clients.

    Attributes:
        max_clients: beyond so many clients at once the oldest is dropped.
        client_seconds: after so long a client is dropped; see `keep`.

    Raises:
        OSError: the address cannot be listened on.
    """

    daemon_threads = True
    block_on_close = False
    max_clients: int
    client_seconds: float

    def __init__(self, address: tuple[str, int], handler: type[BaseRequestHandler], *, name: str) -> None:
        self.clients: dict[socket.socket, float] = {}  # oldest first
        self._clients_lock = threading.Lock()
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        super().__init__(address, handler)
        self._loop = threading.Thread(target=self.serve_forever, args=(_LOOK_SECONDS,), name=name, daemon=True)
        self._loop.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.server_address[1])

    def close(self) -> None:
        """Free the port. Idempotent."""
        if self._loop.is_alive():
            self.shutdown()
        self.server_close()
        self._loop.join(timeout=1)

    @override
    def __exit__(self, *_: object) -> None:
        self.close()

    def keep(self, client: socket.socket) -> None:
        """Keep a client as long as it wishes, beside those that count."""
        with self._clients_lock:
            self.clients.pop(client, None)

    @override
    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            client, place = super().get_request()
        except OSError:
            time.sleep(_REST_SECONDS)  # no free descriptor: the client waits, and the loop must not spin
            raise
        with self._clients_lock:
            self.clients[client] = time.monotonic()
            surplus = list(self.clients)[: -self.max_clients]
        drop(surplus)
        return client, place

    @override
    def service_actions(self) -> None:
        late = time.monotonic() - self.client_seconds
        with self._clients_lock:
            slow = [client for client, since in self.clients.items() if since < late]
        drop(slow)

    @override
    def shutdown_request(self, request: Any) -> None:
        self.keep(request)
        super().shutdown_request(request)

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a client could not be answered")  # it is gone, or no thread could be started


def drop(clients: Iterable[socket.socket]) -> None:
    """Shut connections down, which ends their threads' waits; each thread closes its own."""
    for client in clients:
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
