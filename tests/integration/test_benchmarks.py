"""The benchmark runs and writes its table. It asserts no figure: those are for a quiet machine and for people."""

import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.main_job import ROWS

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


def test_every_promised_row_has_a_name():
    assert list(ROWS) == ["jsonl", "avro", "csv", "parquet", "small", "memory", "idle", "start"]
