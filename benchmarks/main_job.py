"""Speed and memory of the main job, as one table: from a bucket to a topic, against the barest loops there are.

    python -m benchmarks                                  all rows, on the embedded development server
    python -m benchmarks --iggy iggy://iggy:iggy@127.0.0.1:8090     and on a real one (or set IGGY_TEST_URL)
    python -m benchmarks --rows jsonl,small --rounds 3
    python -m benchmarks --rows memory --data FOLDER      keeps the large objects for the next time

Ours and theirs run in turn, in processes of their own, on the same servers: ratios can be believed on a busy machine,
absolute numbers cannot. The S3 server is SeaweedFS. What each row means: docs/concepts/speed.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.data import Store, ensure_bucket
from benchmarks.rows_gcs import gcs_jsonl_rows, gcs_small_rows
from benchmarks.rows_life import idle_row, spark_start_rows, start_rows
from benchmarks.rows_memory import memory_rows
from benchmarks.rows_positions import position_rows
from benchmarks.rows_spark import cluster_rows, driver_memory_row, spark_listing_rows, spark_rows, spark_split_rows
from benchmarks.rows_speed import (
    RESTORES,
    TRANSFORMS,
    Bench,
    Server,
    change_rows,
    format_row,
    jsonl_rows,
    small_memory_rows,
    small_rows,
)
from benchmarks.table import Row, load, machine, markdown

ROWS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "jsonl": jsonl_rows,
    "avro": partial(format_row, kind="avro"),
    "csv": partial(format_row, kind="csv"),
    "parquet": partial(format_row, kind="parquet"),
    "restore": partial(change_rows, changes=RESTORES),
    "transforms": partial(change_rows, changes=TRANSFORMS),
    "small": small_rows,
    "small-memory": small_memory_rows,
    "gcs-jsonl": gcs_jsonl_rows,
    "gcs-small": gcs_small_rows,
    "memory": memory_rows,
    "idle": idle_row,
    "start": start_rows,
    "spark-start": spark_start_rows,
    "spark": spark_rows,
    "spark-split": spark_split_rows,
    "cluster": cluster_rows,
    "spark-listing": spark_listing_rows,
    "driver-memory": driver_memory_row,
    "positions": position_rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default=",".join(ROWS), help=f"which, by name: {', '.join(ROWS)}")
    parser.add_argument("--rounds", type=int, default=5, help="how many are counted; one before them warms up")
    parser.add_argument(
        "--iggy", default=os.environ.get("IGGY_TEST_URL"), help="a real Iggy server, beside the embedded"
    )
    parser.add_argument("--s3", help="http://KEY:SECRET@HOST:PORT of a running S3 server; by default one is started")
    parser.add_argument("--data", type=Path, help="where the S3 server keeps its data, for the next time too")
    parser.add_argument("--quick", action="store_true", help="tiny data: shows that it runs; the figures mean nothing")
    given = parser.parse_args()
    names = [name for name in given.rows.split(",") if name]
    if unknown := set(names) - set(ROWS):
        parser.error(f"unknown rows: {', '.join(sorted(unknown))}; known are {', '.join(ROWS)}")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        bench = Bench(
            store=_store(stack, given.s3, given.data or folder / "s3"),
            servers=tuple(_servers(stack, folder, given.iggy)),
            folder=folder,
            rounds=given.rounds,
            quick=given.quick,
            keep=given.data is not None,
        )
        ensure_bucket(bench.store)
        before, rows = load(), []
        for name in names:
            for row in ROWS[name](bench):
                rows.append(row)
                print(f"{row.what}: {row.measured} (target {row.target}); {row.note}", file=sys.stderr, flush=True)
    print(f"{machine()}; load average {before} before, {load()} after, the benchmark's own work included\n")
    print(markdown(rows))
    quick = " --quick" if given.quick else ""
    real = " --iggy URL" if given.iggy else ""
    print(f"\n`python -m benchmarks --rows {','.join(names)} --rounds {given.rounds}{quick}{real}`")


def _store(stack: contextlib.ExitStack, address: str | None, folder: Path) -> Store:
    if address is not None:
        parts = urlsplit(address)
        endpoint = f"{parts.scheme}://{parts.hostname}:{parts.port}"
        return Store(endpoint=endpoint, access_key=parts.username or "", secret_key=parts.password or "")
    from framework.testing.servers.seaweedfs import SeaweedFs

    folder.mkdir(parents=True, exist_ok=True)
    server = stack.enter_context(SeaweedFs.start(folder))
    return Store(endpoint=server.endpoint, access_key=server.access_key, secret_key=server.secret_key)


def _servers(stack: contextlib.ExitStack, folder: Path, real: str | None) -> Iterator[Server]:
    from framework.iggy.embedded.launcher import EmbeddedServer

    yield Server(name="embedded Iggy", url=stack.enter_context(EmbeddedServer.start(folder / "iggy")).url)
    if real:
        yield Server(name="real Iggy", url=real)
