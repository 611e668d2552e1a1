"""RunStatistics, and what Prometheus sees of them."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import attrs
import pytest
from prometheus_client.parser import text_string_to_metric_families

from framework.engine import metrics_server
from framework.engine.metrics import METRICS, reference_rows
from framework.engine.metrics_server import MAX_CLIENTS, serve
from framework.engine.run_statistics import RunStatistics
from framework.errors import ConfigError


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def numbered():
    names = [field.name for field in attrs.fields(RunStatistics) if field.type in {"int", "float"}]
    numbers = {name: 1000 + at for at, name in enumerate(names)}
    return RunStatistics(**numbers, filtered={"hidden": 3, "too old": 1}, kinds={"RecordError": 5})


def test_a_scrape_gives_every_figure_as_it_is_now():
    progress = numbered()
    source = ("source", 'or"ders')
    with serve(("127.0.0.1", 0), lambda: progress, source=source[1]) as server:
        seen = scrape(server.port)
        assert seen["iggy_source_records_total", (source,)] == progress.records
        assert seen["iggy_source_objects_total", (source,)] == progress.delivered
        assert seen["iggy_source_skipped_total", (source, ("what", "record"))] == progress.skipped
        assert seen["iggy_source_skipped_total", (source, ("what", "object"))] == progress.failed
        assert seen["iggy_source_vanished_objects_total", (source,)] == progress.vanished
        assert seen["iggy_source_up", (source, ("target", "store"))] == 0
        assert seen["iggy_source_up", (source, ("target", "iggy"))] == 0
        assert seen["iggy_source_queue_bytes", (source,)] == progress.queue_bytes
        assert seen["iggy_source_left_out_objects", (("reason", "hidden"), source)] == 3
        assert seen["iggy_source_bad_data_total", (("error", "RecordError"), source)] == 5
        assert len(seen) == len(METRICS) + 1, "two reasons, one error"
        assert {name for name, _ in seen} == {row[0] for row in reference_rows()}
        progress.records += 5
        assert scrape(server.port)["iggy_source_records_total", (source,)] == progress.records


def test_closing_frees_the_port_and_may_be_repeated():
    server = serve(("127.0.0.1", 0), RunStatistics, source="o")
    server.close()
    server.close()
    with serve(("127.0.0.1", server.port), RunStatistics, source="o") as again:
        assert again.port == server.port


def test_a_port_in_use_is_a_mistake_of_the_configuration():
    with (
        serve(("127.0.0.1", 0), RunStatistics, source="o") as server,
        pytest.raises(ConfigError, match=rf"\[metrics\] address: cannot listen at 127\.0\.0\.1:{server.port}: Address"),
    ):
        serve(("127.0.0.1", server.port), RunStatistics, source="p")


def ask(port, path, method="GET"):
    try:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize(
    ("state", "ready"),
    [
        ("starting", 503),
        ("recovering", 503),
        ("reconnecting", 503),
        ("listing", 200),
        ("sending", 200),
        ("waiting", 200),
    ],
)
def test_probes_have_paths_of_their_own(state, ready):
    with serve(("127.0.0.1", 0), lambda: RunStatistics(state=state), source="o") as server:
        assert ask(server.port, "/healthz") == (200, "ok\n")
        assert ask(server.port, "/readyz") == (ready, f"{state}\n")
        assert ask(server.port, "/metrics")[0] == 200
        assert ask(server.port, "/metrics", method="POST")[0] == 405
        for path in ("/", "/health", "/metrics/", "/metrics/x", "/%2Fmetrics"):
            assert ask(server.port, path)[0] == 404


def test_many_slow_clients_keep_nobody_out_and_no_descriptors():
    before = len(list(Path("/proc/self/fd").iterdir()))
    with contextlib.ExitStack() as stack, serve(("127.0.0.1", 0), numbered, source="o") as server:
        clients = []
        for _ in range(10 * MAX_CLIENTS):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            client.sendall(b"GET /met")
            clients.append(client)
        assert scrape(server.port)["iggy_source_records_total", (("source", "o"),)] == numbered().records
        for client in clients[: 9 * MAX_CLIENTS]:
            with contextlib.suppress(ConnectionError):
                client.recv(1000)  # its end; a client that is served on would wait for it until the time limit
        served = len(list(Path("/proc/self/fd").iterdir())) - before - len(clients)
        assert served <= 2 * MAX_CLIENTS


def test_a_client_that_sends_a_byte_now_and_then_is_dropped_all_the_same(monkeypatch):
    monkeypatch.setattr(metrics_server, "CLIENT_SECONDS", 0.5)
    with (
        serve(("127.0.0.1", 0), RunStatistics, source="o") as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as client,
    ):
        client.settimeout(0.05)
        for _ in range(400):
            try:
                client.sendall(b"x")
                if not client.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("the client is served for ever")


def test_a_port_of_somebody_who_is_ending_is_waited_for():
    before = serve(("127.0.0.1", 0), RunStatistics, source="o")
    threading.Timer(0.3, before.close).start()
    with serve(("127.0.0.1", before.port), RunStatistics, source="o", patience_seconds=20) as server:
        assert ask(server.port, "/healthz")[0] == 200


def test_a_figure_that_fails_is_an_answer_and_no_traceback(capsys):
    def broken():
        raise RuntimeError("no figures")

    with serve(("127.0.0.1", 0), broken, source="o") as server:
        assert ask(server.port, "/metrics")[0] == 500
    assert capsys.readouterr().err == ""


def test_nothing_of_prometheus_is_loaded_before_it_is_served():
    code = "import sys, framework.engine.metrics; sys.exit('prometheus_client' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
