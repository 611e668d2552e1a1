"""The HTTP server of the metrics port: slow or numerous clients cannot exhaust it, nor the source with it."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from typing_extensions import override

from framework.engine.metrics import collector_of
from framework.engine.progress import Progress, state_text
from framework.errors import cannot_listen

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger(__name__)

MAX_CLIENTS = 16
CLIENT_SECONDS = 5.0
"""Time limit per client, for its request and the answer."""

_REST_SECONDS = 0.1
METRICS_PATH, HEALTH_PATH, READY_PATH = "/metrics", "/healthz", "/readyz"

NOT_READY = frozenset({"starting", "recovering", "reconnecting", "standby", "stopped", "done"})
"""States of a run in which nothing can be sent."""

_LOOK_SECONDS = 0.1


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_SECONDS

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: probes come every few seconds."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Answers until `close`: each client in its own thread, for `CLIENT_SECONDS` at most, and no more than `MAX_CLIENTS` at once.

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
        self._loop = threading.Thread(target=self.serve_forever, args=(_LOOK_SECONDS,), name="metrics", daemon=True)
        self._loop.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.server_port)

    def close(self) -> None:
        """Free the port. Idempotent."""
        if self._loop.is_alive():
            self.shutdown()
        self.server_close()
        self._loop.join(timeout=1)

    @override
    def __exit__(self, *_: object) -> None:
        self.close()

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


def serve(
    address: tuple[str, int],
    read: Callable[[], Progress],
    *,
    source: str,
    patience_seconds: float = 0.0,
) -> MetricsServer:
    """Serve `http://host:port`: `/metrics` for Prometheus, `/healthz` and `/readyz` for probes, 404 for other paths.

    A client has some seconds for its request and for the answer. At most 16 are served at once; beyond that the oldest
    is dropped.

    Args:
        address: host and port; port 0 takes a free port, see `MetricsServer.port`.
        read: returns the current progress; called at each request, from another thread. A run is ready when it has Iggy.
        source: the source's name, a label on every metric.
        patience_seconds: how long to wait for a port in use: an instance that is taken over needs a moment to end.

    Raises:
        ConfigError: the address cannot be listened on; `exit_code` says to try again when the port is in use.
    """
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            return MetricsServer(address, _application(read, source))
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
                continue
            raise cannot_listen("[metrics] address", f"{address[0]}:{address[1]}", exc) from exc


def _application(read: Callable[[], Progress], source: str) -> WSGIApplication:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector_of(lambda: [(source, read())]))
    metrics: WSGIApplication = make_wsgi_app(registry)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        status, text = "404 Not Found", f"there are {METRICS_PATH}, {HEALTH_PATH} and {READY_PATH}"
        if path == METRICS_PATH:
            try:
                return metrics(environ, start_response)
            except Exception as error:  # noqa: BLE001 - logged, and the next scrape retries
                log.warning("the metrics could not be given: %s: %s", type(error).__name__, error)
                status, text = "500 Internal Server Error", "the metrics could not be given; the log says why"
        elif path == HEALTH_PATH:
            status, text = "200 OK", "ok"
        elif path == READY_PATH:
            progress = read()
            status = "503 Service Unavailable" if progress.state in NOT_READY else "200 OK"
            text = state_text(progress)
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{text}\n".encode()]

    return answer


def _drop(clients: list[socket.socket]) -> None:
    """Shut the connections down, which ends their threads' waits; each thread closes its own."""
    for client in clients:
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
