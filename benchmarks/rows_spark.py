"""The rows of the table that run on Spark: against processes of our own, split against many objects."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.contestants import Run, contestant
from benchmarks.contestants_spark import engine_run, list_on_spark, open_spark, peak_of_engine
from benchmarks.data import Large, ensure_large, ensure_many, forget_large
from benchmarks.rows_speed import Bench, Server, config, new_stream
from benchmarks.table import Row, at_least
from tests.support.spark_cluster import SparkCluster

MB = 1_000_000
PARTITIONS = 4
PAGES = 2000
PAGE_MS = 80
SPEED = {4: 0.8, 16: 0.8, 64: 0.6}
DRIVER_MB = 600


def spark_rows(bench: Bench) -> Iterator[Row]:
    """`local[2]` against two processes of the engine `local`, once running: many objects, and one that is split."""
    objects, lines = bench.scaled(100, 8), bench.scaled(10_000, 500)
    prefix = ensure_many(bench.store, "jsonl", objects, lines)
    for server in bench.servers:
        yield _against_processes(bench, server, f"{objects} x {lines:,} lines", prefix, rounds=bench.rounds)


def spark_split_rows(bench: Bench) -> Iterator[Row]:
    """The same with a single large object, cut into shares."""
    large = Large(name="JSONL 2 GB", kind="jsonl", suffix="jsonl", size_bytes=bench.scaled(2000 * MB, 4 * MB))
    with contestant() as maker:  # its memory goes away with it
        maker(ensure_large, bench.store, large)
    size = bench.scaled(64 << 20, 1 << 18)
    what = f"one object of {large.size_bytes / MB:,.0f} MB, split_size {size >> 10:,} KiB"
    yield _against_processes(
        bench, bench.servers[0], what, large.prefix, rounds=min(bench.rounds, 3), input={"split_size": size}
    )
    if not bench.keep:
        forget_large(bench.store, large)


def _against_processes(
    bench: Bench, server: Server, what: str, prefix: str, *, rounds: int, **more: dict[str, Any]
) -> Row:
    runs: dict[str, list[Run]] = {"spark": [], "local": []}
    with contestant() as spark, contestant() as processes:
        session_seconds = spark(open_spark, "local[2]", {})
        for number in range(rounds + 1):
            made: list[Run] = []
            for engine, who in (("spark", spark), ("local", processes)):
                with new_stream(processes, server) as stream:
                    props = config(
                        bench.store,
                        server.url,
                        stream,
                        engine,
                        prefix,
                        "jsonl",
                        iggy={"partitions": PARTITIONS},
                        runner={"engine": engine, "tasks_max": 2},
                        **more,
                    )
                    made.append(who(engine_run, props))
            if made[0].records != made[1].records or not made[0].records:
                raise RuntimeError(f"not everything was sent: {made}")
            if number:
                runs["spark"].append(made[0])
                runs["local"].append(made[1])
    return at_least(
        f"Spark local[2] against two processes, {what}, S3 to {server.name}, records/s once running",
        [a.records_per_second / b.records_per_second for a, b in zip(runs["spark"], runs["local"], strict=True)],
        0.9,
        f"{_rate(runs['spark']):,.0f}/s against {_rate(runs['local']):,.0f}/s; to the first confirmed record "
        f"{_start(runs['spark']):.2f} s against {_start(runs['local']):.2f} s, and {session_seconds:.1f} s before that for "
        f"Spark's session",
    )


def cluster_rows(bench: Bench) -> Iterator[Row]:
    """A standalone cluster of two workers with a core each against one of one: what waits, and what computes."""
    objects, lines = bench.scaled(40, 4), bench.scaled(10_000, 500)
    waiting = {"objects": bench.scaled(3000, 100), "read_delay": 0.02}
    prefix = ensure_many(bench.store, "jsonl", objects, lines)
    runs: dict[tuple[str, int], list[Run]] = {}
    for workers in (1, 2):
        folder = bench.folder / f"cluster-{workers}"
        folder.mkdir()
        cluster = SparkCluster(folder, workers=workers, cores=1)
        try:
            cluster.start()
            with contestant() as driver, contestant() as helper:
                conf = {
                    "spark.driver.host": "127.0.0.1",
                    "spark.executor.memory": "512m",
                    "spark.executorEnv.PYTHONPATH": str(Path.cwd()),
                }
                driver(open_spark, cluster.url, conf)
                for number in range(min(bench.rounds, 3) + 1):
                    for what in ("waiting", "computing"):
                        with new_stream(helper, bench.servers[0]) as stream:
                            props = config(
                                bench.store,
                                bench.servers[0].url,
                                stream,
                                what,
                                prefix,
                                "jsonl",
                                iggy={"partitions": PARTITIONS},
                                runner={"engine": "spark", "tasks_max": workers},
                            )
                            if what == "waiting":
                                props = {
                                    **props,
                                    "synthetic": waiting,
                                    "input": {"format": "jsonl", "prefetch_objects": 8},
                                }
                                del props["s3"]
                            run = driver(engine_run, props)
                        if number:
                            runs.setdefault((what, workers), []).append(run)
        finally:
            cluster.stop()
    for what, how in (
        ("waiting", f"{waiting['objects']:,} objects that take 20 ms each"),
        ("computing", f"{objects} x {lines:,} lines, S3 and Iggy on the same two cores"),
    ):
        one, two = runs[what, 1], runs[what, 2]
        yield at_least(
            f"standalone cluster, 2 workers of one core against 1, {how}, records/s once running",
            [b.records_per_second / a.records_per_second for a, b in zip(one, two, strict=True)],
            1.7,
            f"{_rate(two):,.0f}/s against {_rate(one):,.0f}/s",
        )


def spark_listing_rows(bench: Bench) -> Iterator[Row]:
    """Pages that take 80 ms, listed by waves on `local[2]`; the driver's and the executors' Python work included."""
    pages = bench.scaled(PAGES, 100)
    with contestant() as spark:
        spark(open_spark, "local[2]", {})
        spark(list_on_spark, pages=pages // 10, page_ms=0, concurrency=4, histogram=())
        for concurrency, target in SPEED.items():
            histogram: list[tuple[str, int]] = []
            for which in ("first", "second"):
                seconds, calls, histogram = spark(
                    list_on_spark, pages=pages, page_ms=PAGE_MS, concurrency=concurrency, histogram=histogram
                )
                yield at_least(
                    f"listing on Spark local[2], {pages:,} pages of 50 keys, {PAGE_MS} ms a page, {concurrency} at once, {which} "
                    f"pass, against a chain of pages, by {concurrency}",
                    [pages * PAGE_MS / 1000 / seconds / concurrency],
                    target,
                    f"{seconds:.1f} s; {calls / pages:.3f} calls for each full page",
                )


def driver_memory_row(bench: Bench) -> Iterator[Row]:
    """Two million new objects of one record each, listed, read and sent on Spark: the driver's Python process."""
    objects = bench.scaled(2_000_000, 5000)
    with contestant() as driver:
        peak_mb, before_mb, seconds = driver(peak_of_engine, bench.servers[0].url, objects)
    yield Row(
        what=f"driver memory (Python), {objects:,} new objects listed, sent and saved on Spark local[2]",
        target=f"< {DRIVER_MB} MB",
        measured=f"**{peak_mb:.0f}** MB",
        reached=peak_mb < DRIVER_MB,
        note=f"{before_mb:.0f} MB before the first object; whole run {seconds:.0f} s",
    )


def _rate(runs: list[Run]) -> float:
    return statistics.median(run.records_per_second for run in runs)


def _start(runs: list[Run]) -> float:
    return statistics.median(run.start_seconds for run in runs)
