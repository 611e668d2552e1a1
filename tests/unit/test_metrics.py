"""Counters, and what Prometheus sees of them."""

from __future__ import annotations

import pickle
import subprocess
import sys
import urllib.request

import attrs
import pytest
from prometheus_client.parser import text_string_to_metric_families

from framework.errors import ConfigError
from framework.metrics import Counters, reference_rows, serve


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def numbered():
    names = [field.name for field in attrs.fields(Counters) if field.name not in {"left_out", "kinds"}]
    numbers = {name: at for at, name in enumerate(names, 1)}
    return Counters(**numbers, left_out={"hidden": 3, "too old": 1}, kinds={"RecordError": 5})


def test_a_scrape_gives_every_figure_as_it_is_now():
    counters = numbered()
    source = ("source", 'or"ders')
    with serve(("127.0.0.1", 0), lambda: counters, source=source[1]) as server:
        seen = scrape(server.port)
        assert seen["iggy_source_records_total", (source,)] == counters.records
        assert seen["iggy_source_skipped_total", (source, ("what", "record"))] == counters.skipped_records
        assert seen["iggy_source_skipped_total", (source, ("what", "object"))] == counters.skipped_objects
        assert seen["iggy_source_queue_bytes", (source,)] == counters.queue_bytes
        assert seen["iggy_source_left_out_objects", (("reason", "hidden"), source)] == 3
        assert seen["iggy_source_bad_data_total", (("error", "RecordError"), source)] == 5
        assert len(seen) == len(attrs.fields(Counters)) - 1 + 2
        assert {name for name, _ in seen} == {row[0] for row in reference_rows()}
        counters.records += 5
        assert scrape(server.port)["iggy_source_records_total", (source,)] == counters.records


def test_closing_frees_the_port_and_may_be_repeated():
    server = serve(("127.0.0.1", 0), Counters, source="o")
    server.close()
    server.close()
    with serve(("127.0.0.1", server.port), Counters, source="o") as again:
        assert again.port == server.port


def test_a_port_in_use_is_a_mistake_of_the_configuration():
    with (
        serve(("127.0.0.1", 0), Counters, source="o") as server,
        pytest.raises(ConfigError, match=rf"\[metrics\] address: cannot listen at 127\.0\.0\.1:{server.port}: Address"),
    ):
        serve(("127.0.0.1", server.port), Counters, source="p")


def test_counters_add_up_and_pickle():
    both = Counters.total([numbered(), numbered(), Counters()])
    assert both.records == 2 * numbered().records
    assert both.lag_bytes == 2 * numbered().lag_bytes
    assert both.left_out == {"hidden": 6, "too old": 2}
    assert both.kinds == {"RecordError": 10}
    assert Counters.total([]) == Counters()
    assert pickle.loads(pickle.dumps(both)) == both


def test_nothing_of_prometheus_is_loaded_before_it_is_served():
    code = "import sys, framework.metrics; sys.exit('prometheus_client' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
