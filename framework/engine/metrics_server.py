"""The HTTP server of the metrics port: slow or numerous clients cannot exhaust it, nor the source with it."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterable
from socketserver import TCPServer
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from typing_extensions import override

from framework.engine.bounded_server import BoundedServer
from framework.engine.metrics import collector_of
from framework.engine.run_statistics import RunStatistics, state_text
from framework.errors import cannot_listen

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger(__name__)

MAX_CLIENTS = 16
CLIENT_SECONDS = 5.0
"""Time limit per client, for its request and the answer."""

METRICS_PATH, HEALTH_PATH, READY_PATH = "/metrics", "/healthz", "/readyz"

NOT_READY = frozenset({"starting", "recovering", "reconnecting", "standby", "stopped", "done"})
"""States of a run in which nothing can be sent."""

_LOOK_SECONDS = 0.1


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_SECONDS

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: probes come every few seconds."""


class MetricsServer(BoundedServer, WSGIServer):
    """Answers until `close`. A scrape is answered at once, so it is never the oldest of too many clients.

    Args:
        address: host and port to listen on; port 0 takes a free port.
        application: the WSGI application.

    Raises:
        OSError: the address cannot be listened on.
    """

    request_queue_size = 128

    def __init__(self, address: tuple[str, int], application: WSGIApplication) -> None:
        self.max_clients, self.client_seconds = MAX_CLIENTS, CLIENT_SECONDS
        self.set_app(application)
        super().__init__(address, _Handler, name="metrics")

    @override
    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's own resolves a name by DNS
        self.server_name, self.server_port = "", self.server_address[1]
        self.setup_environ()


def serve(
    address: tuple[str, int],
    read: Callable[[], RunStatistics],
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


def _application(read: Callable[[], RunStatistics], source: str) -> WSGIApplication:
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
