"""The benchmark runs and writes its table. It asserts no figure: those are for a quiet machine and for people."""

import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.main_job import ROWS
from benchmarks.rows_gcs import gcs_jsonl_rows, gcs_small_rows
from benchmarks.rows_positions import position_rows
from benchmarks.rows_speed import Bench, Server

ROOT = Path(__file__).parents[2]


def test_one_row_of_the_benchmark_runs_on_tiny_data(seaweedfs_server):
    parts = urlsplit(seaweedfs_server.endpoint)
    store = f"{parts.scheme}://{seaweedfs_server.access_key}:{seaweedfs_server.secret_key}@{parts.netloc}"
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", "--rounds", "1", "--rows", "jsonl", "--s3", store],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert "| JSONL, 4 x 500 x 200 B, S3 to embedded Iggy" in ended.stdout
    assert parts.netloc not in ended.stdout
    assert seaweedfs_server.secret_key not in ended.stdout + ended.stderr


def test_the_rows_of_gcs_run_on_few(tmp_path, iggy_url):
    bench = Bench(
        store=None, servers=(Server(name="some Iggy", url=iggy_url),), folder=tmp_path, rounds=1, quick=True, keep=False
    )
    (lines,) = gcs_jsonl_rows(bench)
    (small,) = gcs_small_rows(bench)
    assert lines.what.startswith("JSONL, 4 x 500 x 200 B, GCS to some Iggy")
    assert small.what.startswith("60 objects of 1 KB, GCS to some Iggy")


def test_every_promised_row_has_a_name():
    assert list(ROWS) == [
        *("jsonl", "avro", "csv", "parquet", "small", "gcs-jsonl", "gcs-small", "memory", "idle", "start"),
        *("spark", "spark-split", "cluster", "spark-listing", "driver-memory", "positions"),
    ]


def test_the_row_of_positions_runs_on_few(tmp_path):
    bench = Bench(store=None, servers=(), folder=tmp_path, rounds=1, quick=True, keep=False)
    rows = list(position_rows(bench))
    assert [row.what.split()[0] for row in rows] == ["20,000", "the", "the", "the", "a", "a", "the", "a", "the", "the"]
    assert not list(tmp_path.iterdir())
