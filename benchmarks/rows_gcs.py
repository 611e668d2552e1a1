"""The rows of GCS: JSON lines and small objects, as in `benchmarks.rows_speed`, from fake-gcs-server instead of SeaweedFS."""

from __future__ import annotations

import statistics
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import attrs

from benchmarks.contestants import (
    Run,
    bare_blobs,
    bare_send,
    contestant,
    hold,
    make_topic,
    ours,
)
from benchmarks.data import BUCKET, encode, rows
from benchmarks.rows_speed import BATCHES, JSONL_RATIO, SMALL_OBJECTS, SMALL_ROUNDS, THREADS, Bench, Server, new_stream
from benchmarks.table import Row, at_least


@attrs.frozen(kw_only=True)
class GcsServer:
    """A running fake-gcs-server with one bucket."""

    endpoint: str

    def section(self, prefix: str) -> dict[str, Any]:
        """The `[gcs]` section that reads what is below a prefix."""
        return {"bucket": BUCKET, "prefix": prefix, "endpoint": self.endpoint, "anonymous": True}

    def fill(self, objects: int, lines: int) -> str:
        """Put objects of JSON lines; return their prefix."""
        import requests

        prefix = f"jsonl-{objects}x{lines}/"
        upload = f"{self.endpoint}/upload/storage/v1/b/{BUCKET}/o"
        with requests.Session() as session, ThreadPoolExecutor(8) as pool:

            def put(number: int) -> None:
                name = {"uploadType": "media", "name": f"{prefix}{number:05}.jsonl"}
                session.post(upload, params=name, data=encode("jsonl", rows(number, lines))).raise_for_status()

            list(pool.map(put, range(objects)))
        return prefix


@contextmanager
def running_gcs() -> Iterator[GcsServer]:
    """A server that keeps everything in memory, as SeaweedFS keeps it in the page cache."""
    import requests

    from framework.testing.servers.fake_gcs import FakeGcs

    with FakeGcs.start() as server:
        requests.post(
            f"{server.endpoint}/storage/v1/b?project=bench", json={"name": BUCKET}, timeout=30
        ).raise_for_status()
        yield GcsServer(endpoint=server.endpoint)


def config(store: GcsServer, server_url: str, stream: str, prefix: str) -> dict[str, Any]:
    """The sections of a source that is new, so that it begins with nothing."""
    return {
        "source": {"name": f"bench-{uuid.uuid4().hex[:8]}"},
        "gcs": store.section(prefix),
        "input": {"format": "jsonl"},
        "iggy": {"url": server_url, "stream": stream, "topic": "ours", "partitions": 1},
        "runner": {"engine": "local"},
    }


def gcs_jsonl_rows(bench: Bench) -> Iterator[Row]:
    """JSON lines against the official client's loop."""
    objects, lines = bench.scaled(40, 4), bench.scaled(10_000, 500)
    with running_gcs() as store:
        prefix = store.fill(objects, lines)
        for server in bench.servers:
            yield _jsonl(bench, store, server, prefix, (objects, lines))


def _jsonl(bench: Bench, store: GcsServer, server: Server, prefix: str, size: tuple[int, int]) -> Row:
    objects, lines = size
    mine: list[Run] = []
    best: list[Run] = []
    with contestant() as we, contestant() as bare:
        bare(hold, objects, lines)
        for number in range(bench.rounds + 1):
            with new_stream(bare, server) as stream:
                made = [we(ours, config(store, server.url, stream, prefix))]
                for batch in BATCHES:
                    bare(make_topic, server.url, stream, f"bare-{batch}")
                    made.append(bare(bare_send, server.url, stream, f"bare-{batch}", batch))
            if {run.records for run in made} != {objects * lines}:
                raise RuntimeError(f"not everything was sent: {made}")
            if number:
                mine.append(made[0])
                best.append(max(made[1:], key=lambda run: run.records_per_second))
    rate = statistics.median(run.records_per_second for run in mine)
    theirs = statistics.median(run.records_per_second for run in best)
    cpu = statistics.median(run.cpu_seconds / run.records * 1e6 for run in mine)
    return at_least(
        f"JSONL, {objects} x {lines:,} x 200 B, GCS to {server.name}, records/s against the official client's loop",
        [a.records_per_second / b.records_per_second for a, b in zip(mine, best, strict=True)],
        JSONL_RATIO,
        f"{rate:,.0f}/s against {theirs:,.0f}/s; CPU {cpu:.2f} us/record",
    )


def gcs_small_rows(bench: Bench) -> Iterator[Row]:
    """Many small objects against a pool of downloads by google-cloud-storage."""
    objects, server = bench.scaled(SMALL_OBJECTS, 60), bench.servers[0]
    mine: list[Run] = []
    pools: dict[int, list[Run]] = {threads: [] for threads in THREADS}
    with running_gcs() as store, contestant() as we, contestant() as bare:
        prefix = store.fill(objects, 5)
        for number in range(min(bench.rounds, SMALL_ROUNDS) + 1):
            with new_stream(bare, server) as stream:
                one = we(ours, config(store, server.url, stream, prefix))
            if one.objects != objects or one.records != objects * 5:
                raise RuntimeError(f"not everything was sent: {one}")
            if number:
                mine.append(one)
                for threads, runs in pools.items():
                    runs.append(bare(bare_blobs, store.endpoint, prefix, threads))
    medians = {threads: statistics.median(run.objects_per_second for run in runs) for threads, runs in pools.items()}
    best = max(medians, key=lambda threads: medians[threads])
    rate = statistics.median(run.objects_per_second for run in mine)
    yield at_least(
        f"{objects:,} objects of 1 KB, GCS to {server.name}, objects/s against google-cloud-storage's downloads in a pool",
        [a.objects_per_second / b.objects_per_second for a, b in zip(mine, pools[best], strict=True)],
        0.8,
        f"{rate:,.0f}/s against " + ", ".join(f"{value:,.0f}/s ({threads})" for threads, value in medians.items()),
    )
