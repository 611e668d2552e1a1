"""Metrics of a worker: under the names of Iggy's runtime, and beside them the metrics of each source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from framework.engine.metrics import collector_of

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from framework.engine.run_statistics import RunStatistics
    from framework.runtime.managed_source import ManagedSource
    from framework.runtime.supervisor import Supervisor

_COUNTERS = (
    ("messages_produced", "Records read from objects."),
    ("messages_sent", "Records confirmed by Iggy; less what a process that is killed confirmed after its last report."),
    ("messages_filtered", "Records dropped by transforms."),
    ("errors", "Bad records and objects that were skipped, and failures of the source."),
)
_GAUGES = (
    ("sources_total", "Sources in the folder."),
    ("sources_running", "Sources that run."),
    ("sinks_total", "0: this worker has no sinks."),
    ("sinks_running", "0."),
)
_LABELS = ["connector_key", "connector_type"]


def reference_rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield name, kind, labels and meaning of every metric, for the reference page."""
    for name, doc in _GAUGES:
        yield f"iggy_connectors_{name}", "gauge", "", doc
    for name, doc in _COUNTERS:
        yield f"iggy_connector_{name}_total", "counter", ", ".join(_LABELS), doc


def counters_of(source: ManagedSource) -> dict[str, int]:
    """Return a source's counters under the names of Iggy's runtime."""
    progress = source.progress
    return {
        "messages_produced": progress.records_read,
        "messages_sent": progress.records,
        "messages_filtered": progress.records_filtered,
        "errors": progress.skipped + progress.failed + source.errors,
    }


class _RuntimeCollector(Collector):
    """The metrics of Iggy's connector runtime."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    @override
    def collect(self) -> Iterator[Metric]:
        with self._supervisor.locked() as sources:
            counters = {source.key: counters_of(source) for source in sources}
            running = sum(source.status == "running" for source in sources)
        values = {"sources_total": len(counters), "sources_running": running}
        for name, doc in _GAUGES:
            yield GaugeMetricFamily(f"iggy_connectors_{name}", doc, value=values.get(name, 0))
        for name, doc in _COUNTERS:
            family = CounterMetricFamily(f"iggy_connector_{name}", doc, labels=_LABELS)
            for key, counts in counters.items():
                family.add_metric([key, "source"], counts[name])
            yield family


def registry_of(supervisor: Supervisor) -> CollectorRegistry:
    """Return the registry of a worker."""

    def read() -> list[tuple[str, RunStatistics]]:
        with supervisor.locked() as sources:
            return [(source.file.source or source.key, source.progress) for source in sources]

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_RuntimeCollector(supervisor))
    registry.register(collector_of(read))
    return registry
