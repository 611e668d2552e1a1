"""Metrics of a running source, and their export to Prometheus.

Prometheus is imported and started only if an address is configured; each scrape then reads the current `Progress`.
"""

from __future__ import annotations

import errno
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal

import attrs
from typing_extensions import Self, override

from framework.engine.progress import state_text
from framework.errors import EXIT_TRY_AGAIN, ConfigError

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment
    from prometheus_client.core import Metric as MetricFamily
    from prometheus_client.registry import Collector

    from framework.engine.progress import Progress

log = logging.getLogger(__name__)

Kind = Literal["counter", "gauge"]

METRICS_PATH, HEALTH_PATH, READY_PATH = "/metrics", "/healthz", "/readyz"

NOT_READY = frozenset({"starting", "recovering", "reconnecting", "standby", "stopped", "done"})
"""States of a run in which nothing can be sent."""

_LOOK_SECONDS = 0.1


@attrs.frozen(kw_only=True)
class Metric:
    """A metric, and where its value is.

    Attributes:
        attribute: attribute of `Progress` with its value; a dict has a value for each value of `label`.
        kind: `counter` or `gauge`.
        name: its name, without prefix and `_total`.
        doc: its meaning.
        labels: fixed labels; metrics of one name differ in them.
        label: the label that the keys of a dict give; empty otherwise.
    """

    attribute: str
    kind: Kind
    name: str
    doc: str
    labels: tuple[tuple[str, str], ...] = ()
    label: str = ""

    @property
    def label_names(self) -> list[str]:
        """Names of all labels."""
        return ["source", *(name for name, _ in self.labels), *filter(None, [self.label])]


def _counter(attribute: str, name: str, doc: str, *, label: str = "", **labels: str) -> Metric:
    return Metric(attribute=attribute, kind="counter", name=name, doc=doc, labels=tuple(labels.items()), label=label)


def _gauge(attribute: str, name: str, doc: str, *, label: str = "", **labels: str) -> Metric:
    return Metric(attribute=attribute, kind="gauge", name=name, doc=doc, labels=tuple(labels.items()), label=label)


_UP = "1 while the other side answers; 0 while it is away, or the connection is being recovered."
_SKIPPED = "Bad records, and objects whose rest was skipped."

METRICS = (
    _counter("records", "records", "Records confirmed by Iggy."),
    _counter("record_bytes", "record_bytes", "Payload bytes confirmed by Iggy."),
    _counter("send_requests", "send_requests", "Confirmed requests to Iggy that held records."),
    _counter("delivered", "objects", "Objects, or splits of them, of which every record is confirmed."),
    _counter("records_filtered", "records_filtered", "Records that a transform filtered; they are not bad."),
    _counter("skipped", "skipped", _SKIPPED, what="record"),
    _counter("failed", "skipped", _SKIPPED, what="object"),
    _counter("vanished", "vanished_objects", "Objects deleted between list and read; they are not bad data."),
    _counter("dead_letters", "dead_letters", "Dead letters stored in the dead letter topic."),
    _counter("retries", "retries", "Retried calls to the store."),
    _counter("list_requests", "list_requests", "Requested pages of listings; stores charge for them."),
    _counter("objects_opened", "get_requests", "Requested reads of objects."),
    _counter("listings", "passes", "Complete listings."),
    _counter("position_commits", "position_commits", "Writes to the offsets topic."),
    _counter("recoveries", "recoveries", "Times the connection to Iggy broke and the state was recovered."),
    _counter("blocked_seconds", "blocked_seconds", "Time the reader waited for room in the queue: back-pressure."),
    _gauge("queue_records", "queue_records", "Records that wait to be sent."),
    _gauge("queue_bytes", "queue_bytes", "Bytes that wait to be sent."),
    _gauge("iggy_up", "up", _UP, target="iggy"),
    _gauge("store_up", "up", _UP, target="store"),
    _gauge("standby", "standby", "1 while another instance of the source runs, and this one waits for its end."),
    _gauge("lag_objects", "lag_objects", "Objects that were found and are not finished."),
    _gauge("lag_bytes", "lag_bytes", "Their sizes."),
    _gauge("filtered", "left_out_objects", "Objects filtered in the last listing, by reason.", label="reason"),
    _counter("kinds", "bad_data", "Bad records and objects that were skipped, by error.", label="error"),
)
"""All metrics. Metrics of one name stand together."""

_PREFIX = "iggy_source_"


def reference_rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield name, kind, labels and meaning of every metric, for the reference page."""
    for name, group in itertools.groupby(METRICS, key=lambda metric: metric.name):
        metric = next(group)
        suffix = "_total" if metric.kind == "counter" else ""
        yield f"{_PREFIX}{name}{suffix}", metric.kind, ", ".join(metric.label_names), metric.doc


class MetricsServer:
    """Answers Prometheus and probes from `start` until `close`. A context manager."""

    def __init__(self, server: WSGIServer) -> None:
        self._server: WSGIServer | None = server
        self.port = int(server.server_port)
        self._thread = threading.Thread(target=server.serve_forever, args=(_LOOK_SECONDS,), name="metrics", daemon=True)

    def start(self) -> Self:
        """Begin to answer, in a thread."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Free the port. Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        if self._thread.ident is not None:
            server.shutdown()
        server.server_close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
    from framework.engine.metrics_server import BoundedServer  # noqa: PLC0415  loaded when used

    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            return MetricsServer(BoundedServer(address, _application(read, source))).start()
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
                continue
            host, port = address
            reason = exc.strerror or type(exc).__name__
            error = ConfigError(f"[metrics] address: cannot listen at {host}:{port}: {reason}")
            if exc.errno == errno.EADDRINUSE:  # its owner may end
                error.exit_code = EXIT_TRY_AGAIN
            raise error from exc


def _application(read: Callable[[], Progress], source: str) -> WSGIApplication:
    from prometheus_client import CollectorRegistry, make_wsgi_app  # noqa: PLC0415  loaded when used

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_collector(read, source))
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


def _collector(read: Callable[[], Progress], source: str) -> Collector:
    return collector_of(lambda: [(source, read())])


def collector_of(read: Callable[[], Sequence[tuple[str, Progress]]]) -> Collector:
    """Return a collector of the metrics of several sources.

    Args:
        read: returns each source's name and progress; called at each scrape.
    """
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415
    from prometheus_client.registry import Collector  # noqa: PLC0415

    families = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}

    class ProgressCollector(Collector):
        @override
        def collect(self) -> Iterator[MetricFamily]:
            sources = read()
            for name, group in itertools.groupby(METRICS, key=lambda metric: metric.name):
                metrics = list(group)
                first = metrics[0]
                family = families[first.kind](_PREFIX + name, first.doc, labels=first.label_names)
                for source, progress in sources:
                    for metric in metrics:
                        labels = [source, *(value for _, value in metric.labels)]
                        value = getattr(progress, metric.attribute)
                        if metric.label:
                            for key, count in value.items():
                                family.add_metric([*labels, key], count)
                        else:
                            family.add_metric(labels, value)
                yield family

    return ProgressCollector()
