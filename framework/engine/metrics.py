"""Metrics of a running source, and their export to Prometheus.

Prometheus is imported and started only if an address is configured; each scrape then reads the current `RunStatistics`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import attrs
from typing_extensions import override

if TYPE_CHECKING:
    from prometheus_client.core import Metric as MetricFamily
    from prometheus_client.registry import Collector

    from framework.engine.run_statistics import RunStatistics

Kind = Literal["counter", "gauge"]


@attrs.frozen(kw_only=True)
class Metric:
    """A metric, and where its value is.

    Attributes:
        attribute: attribute of `RunStatistics` with its value; a dict has a value for each value of `label`.
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


def _metric(kind: Kind, attribute: str, name: str, doc: str, *, label: str = "", **labels: str) -> Metric:
    return Metric(attribute=attribute, kind=kind, name=name, doc=doc, labels=tuple(labels.items()), label=label)


_counter, _gauge = partial(_metric, "counter"), partial(_metric, "gauge")


_UP = (
    "1 while the other side answers; 0 while it is away, or the connection is being recovered. Of a source of a worker both are 0 "
    "in `error` and between tries, and 1 while it is paused or stopped."
)
_AGAIN = "What is read again, after Iggy was away, counts again."
_KILLED = "In a worker, what a killed process confirmed after its last report is missing."
_DELIVERED = (
    "Objects, or splits of them, of which every record is confirmed, each once. The last ones of a killed process, or of a save "
    "that Iggy did not confirm, may be missing here."
)
_SKIPPED = f"Bad records, and objects whose rest was skipped. {_AGAIN}"

METRICS = (
    _counter("records", "records", f"Records confirmed by Iggy, or found stored by a recovery. {_KILLED}"),
    _counter(
        "record_bytes",
        "record_bytes",
        f"Payload bytes confirmed by Iggy; those of found records are not known. {_KILLED}",
    ),
    _counter("send_requests", "send_requests", "Confirmed requests to Iggy that held records."),
    _counter("delivered", "objects", _DELIVERED),
    _counter("records_filtered", "records_filtered", f"Records that a transform filtered; they are not bad. {_AGAIN}"),
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


def collector_of(read: Callable[[], Sequence[tuple[str, RunStatistics]]]) -> Collector:
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
