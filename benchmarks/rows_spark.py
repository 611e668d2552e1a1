"""The rows of the table that run on Spark: against processes of our own, split against many objects."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.contestants import Run, contestant, engine_run, open_spark
from benchmarks.data import ensure_many
from benchmarks.rows_speed import Bench, config, new_stream
from benchmarks.table import Row, at_least

PARTITIONS = 4


def spark_rows(bench: Bench) -> Iterator[Row]:
    """`local[2]` against two processes of the engine `local`, once running."""
    objects, lines = bench.scaled(100, 8), bench.scaled(10_000, 500)
    prefix = ensure_many(bench.store, "jsonl", objects, lines)
    for server in bench.servers:
        runs: dict[str, list[Run]] = {"spark": [], "local": []}
        with contestant() as spark, contestant() as processes:
            session_seconds = spark(open_spark, "local[2]", {})
            for number in range(bench.rounds + 1):
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
                        )
                        run = who(engine_run, props)
                    if run.records != objects * lines:
                        raise RuntimeError(f"not everything was sent: {run}")
                    if number:
                        runs[engine].append(run)
        yield at_least(
            f"Spark local[2] against two processes, {objects} x {lines:,} lines, S3 to {server.name}, records/s once running",
            [a.records_per_second / b.records_per_second for a, b in zip(runs["spark"], runs["local"], strict=True)],
            0.9,
            f"{_rate(runs['spark']):,.0f}/s against {_rate(runs['local']):,.0f}/s; to the first confirmed record "
            f"{_start(runs['spark']):.2f} s against {_start(runs['local']):.2f} s, and {session_seconds:.1f} s before that for "
            f"Spark's session",
        )


def _rate(runs: list[Run]) -> float:
    return statistics.median(run.records_per_second for run in runs)


def _start(runs: list[Run]) -> float:
    return statistics.median(run.start_seconds for run in runs)
