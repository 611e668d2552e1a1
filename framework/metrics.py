"""Numbers of a running source, and the door to Prometheus.

The stages add to a plain `Counters` once a batch, not once a record. Nothing of Prometheus is imported or started
unless an address is configured; then each scrape reads the counters as they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Literal

import attrs
from typing_extensions import Self, override

from framework.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector

Kind = Literal["counter", "gauge"]


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
    """What one task has done, and how it stands. Plain numbers with one writer each; a reader may be a moment late.

    Several tasks have one each; `total` adds them up. They pickle, so that worker processes can send theirs.
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
    lag_objects: int = _gauge("lag_objects", "Objects that were found and are not finished.")
    lag_bytes: int = _gauge("lag_bytes", "Their sizes.")
    left_out: dict[str, int] = attrs.field(factory=dict)
    """Reason -> objects left out in the last pass."""
    kinds: dict[str, int] = attrs.field(factory=dict)
    """Error class -> bad records and objects left out for it."""

    @classmethod
    def total(cls, parts: Iterable[Counters]) -> Counters:
        """The sum of several; of none, zeros."""
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
    """Name, kind, labels and meaning of every metric, for the reference page."""
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
    """Answers Prometheus until it is closed; made by `serve`. A context manager."""

    def __init__(self, stop: Callable[[], None], port: int) -> None:
        self._stop: Callable[[], None] | None = stop
        self.port = port

    def close(self) -> None:
        """Frees the port. May be called twice."""
        stop, self._stop = self._stop, None
        if stop is not None:
            stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve(address: tuple[str, int], read: Callable[[], Counters], *, source: str) -> MetricsServer:
    """Answers Prometheus at `http://host:port/metrics`.

    Args:
        address: host and port; port 0 takes a free one, see `MetricsServer.port`.
        read: the counters as they are now; called at each scrape, from another thread.
        source: the source's name, a label on every metric.

    Raises:
        ConfigError: the address cannot be listened at.
    """
    from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415  loaded when used

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_collector(read, source))
    host, port = address
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as exc:
        reason = exc.strerror or type(exc).__name__
        raise ConfigError(f"[metrics] address: cannot listen at {host}:{port}: {reason}") from exc

    def stop() -> None:
        server.shutdown()
        server.server_close()
        if thread is not threading.current_thread():
            thread.join(timeout=1)

    return MetricsServer(stop, int(server.server_port))


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
