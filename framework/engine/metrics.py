"""Metrics of a running source, and their export to Prometheus.

The stages add to a plain `Counters` per batch, not per record. Prometheus is imported and started only if an address is
configured; each scrape then reads the current counters.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Literal

import attrs
from typing_extensions import Self, override

from framework.errors import EXIT_TRY_AGAIN, ConfigError

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector

log = logging.getLogger(__name__)

Kind = Literal["counter", "gauge"]

METRICS_PATH, HEALTH_PATH, READY_PATH = "/metrics", "/healthz", "/readyz"

NOT_READY = frozenset({"starting", "recovering", "reconnecting", "stopped", "done"})
"""States of a run in which nothing can be sent."""

_LOOK_SECONDS = 0.1


@attrs.frozen(kw_only=True)
class _Meaning:
    kind: Kind
    metric: str
    doc: str
    labels: tuple[tuple[str, str], ...] = ()


def _counter(metric: str, doc: str, **labels: str) -> int:
    return _figure("counter", metric, doc, labels)


def _gauge(metric: str, doc: str, **labels: str) -> int:
    return _figure("gauge", metric, doc, labels)


def _figure(kind: Kind, metric: str, doc: str, labels: dict[str, str]) -> int:
    meaning = _Meaning(kind=kind, metric=metric, doc=doc, labels=tuple(labels.items()))
    figure: int = attrs.field(default=0, metadata={"meaning": meaning})
    return figure


@attrs.define(kw_only=True)
class Counters:
    """Work and current state of one task. Plain numbers with one writer each; a reader may lag by a moment.

    Each task has its own; `total` adds them up. Picklable, so that worker processes can send theirs.
    """

    records: int = _counter("records", "Records confirmed by Iggy.")
    size_bytes: int = _counter("record_bytes", "Payload bytes confirmed by Iggy.")
    requests: int = _counter("send_requests", "Confirmed requests to Iggy that held records.")
    objects: int = _counter("objects", "Objects, or shares of split ones, of which every record is confirmed.")
    skipped_records: int = _counter("skipped", "What the tolerance let pass.", what="record")
    skipped_objects: int = _counter("skipped", "What the tolerance let pass.", what="object")
    dead_letters: int = _counter("dead_letters", "What was left out and is kept in the dead letter topic.")
    retries: int = _counter("retries", "Calls to the store that were tried again.")
    list_requests: int = _counter("list_requests", "Pages of listings asked for; stores charge for them.")
    get_requests: int = _counter("get_requests", "Reads of objects asked for.")
    passes: int = _counter("passes", "Complete listings.")
    position_commits: int = _counter("position_commits", "Writes to the offsets topic.")
    recoveries: int = _counter("recoveries", "Times the connection to Iggy broke and the state was recovered.")
    blocked_seconds: float = _counter("blocked_seconds", "Time the reader waited for room in the queue: back-pressure.")
    queue_records: int = _gauge("queue_records", "Records that wait to be sent.")
    queue_bytes: int = _gauge("queue_bytes", "Bytes that wait to be sent.")
    iggy_up: int = _gauge(
        "up", "1 while the other side answers; 0 while it is away, or the connection is being recovered.", target="iggy"
    )
    store_up: int = _gauge(
        "up",
        "1 while the other side answers; 0 while it is away, or the connection is being recovered.",
        target="store",
    )
    lag_objects: int = _gauge("lag_objects", "Objects that were found and are not finished.")
    lag_bytes: int = _gauge("lag_bytes", "Their sizes.")
    left_out: dict[str, int] = attrs.field(factory=dict)
    """Reason -> objects filtered in the last listing."""
    kinds: dict[str, int] = attrs.field(factory=dict)
    """Error class -> bad records and objects skipped for it."""

    @classmethod
    def total(cls, parts: Iterable[Counters]) -> Counters:
        """Return the sum of several counters; zeros for none."""
        result = cls()
        for part in parts:
            for field in _FIGURES:
                setattr(result, field, getattr(result, field) + getattr(part, field))
            for name in ("left_out", "kinds"):
                sums = getattr(result, name)
                for reason, count in getattr(part, name).copy().items():
                    sums[reason] = sums.get(reason, 0) + count
        return result


_FIGURES: dict[str, _Meaning] = {
    field.name: field.metadata["meaning"] for field in attrs.fields(Counters) if "meaning" in field.metadata
}
_PREFIX = "iggy_source_"
_LEFT_OUT = _Meaning(kind="gauge", metric="left_out_objects", doc="Objects left out in the last pass, by reason.")
_KINDS = _Meaning(kind="counter", metric="bad_data", doc="Bad records and objects that were skipped, by error.")


def reference_rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield name, kind, labels and meaning of every metric, for the reference page."""
    seen: set[str] = set()
    more = {id(_LEFT_OUT): "reason", id(_KINDS): "error"}
    for meaning in (*_FIGURES.values(), _LEFT_OUT, _KINDS):
        if meaning.metric in seen:
            continue
        seen.add(meaning.metric)
        labels = ["source", *(name for name, _ in meaning.labels), *filter(None, [more.get(id(meaning))])]
        suffix = "_total" if meaning.kind == "counter" else ""
        yield f"{_PREFIX}{meaning.metric}{suffix}", meaning.kind, ", ".join(labels), meaning.doc


class MetricsServer:
    """Answers Prometheus and probes until it is closed; created by `serve`. A context manager."""

    def __init__(self, server: WSGIServer) -> None:
        self._server: WSGIServer | None = server
        self.port = int(server.server_port)
        self._thread = threading.Thread(target=server.serve_forever, args=(_LOOK_SECONDS,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Free the port. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            if self._thread is not threading.current_thread():
                self._thread.join(timeout=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve(
    address: tuple[str, int],
    read: Callable[[], Counters],
    *,
    source: str,
    state: Callable[[], str] = lambda: "sending",
    patience_seconds: float = 0.0,
) -> MetricsServer:
    """Serve `http://host:port`: `/metrics` for Prometheus, `/healthz` and `/readyz` for probes, 404 for other paths.

    A client has some seconds for its request and for the answer. At most 16 are served at once; beyond that the oldest
    is dropped.

    Args:
        address: host and port; port 0 takes a free port, see `MetricsServer.port`.
        read: returns the current counters; called at each scrape, from another thread.
        source: the source's name, a label on every metric.
        state: returns the run's state, see `framework.engine.progress.Progress`; a run is ready if it has Iggy.
        patience_seconds: how long to wait for a port in use: an instance that is taken over needs a moment to end.

    Raises:
        ConfigError: the address cannot be listened on; `exit_code` says to try again when the port is in use.
    """
    from framework.engine.metrics_server import BoundedServer  # noqa: PLC0415  loaded when used

    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            return MetricsServer(BoundedServer(address, _application(read, source, state)))
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


def _application(read: Callable[[], Counters], source: str, state: Callable[[], str]) -> WSGIApplication:
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
            text = state()
            status = "503 Service Unavailable" if text in NOT_READY else "200 OK"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{text}\n".encode()]

    return answer


def _collector(read: Callable[[], Counters], source: str) -> Collector:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415
    from prometheus_client.registry import Collector  # noqa: PLC0415

    families = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}

    class CountersCollector(Collector):
        @override
        def collect(self) -> Iterator[Metric]:
            counters = read()
            made: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
            for field, meaning in _FIGURES.items():
                if meaning.metric not in made:
                    names = ["source", *(name for name, _ in meaning.labels)]
                    made[meaning.metric] = families[meaning.kind](_PREFIX + meaning.metric, meaning.doc, labels=names)
                values = [source, *(value for _, value in meaning.labels)]
                made[meaning.metric].add_metric(values, getattr(counters, field))
            left_out = GaugeMetricFamily(_PREFIX + _LEFT_OUT.metric, _LEFT_OUT.doc, labels=["source", "reason"])
            for reason, count in counters.left_out.copy().items():
                left_out.add_metric([source, reason], count)
            kinds = CounterMetricFamily(_PREFIX + _KINDS.metric, _KINDS.doc, labels=["source", "error"])
            for kind, count in counters.kinds.copy().items():
                kinds.add_metric([source, kind], count)
            yield from made.values()
            yield left_out
            yield kinds

    return CountersCollector()
