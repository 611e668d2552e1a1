"""The benchmark runs and writes its table. It asserts no figure: those are for a quiet machine and for people."""

import multiprocessing
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from benchmarks import contestants
from benchmarks.listing_client import BUCKET, CLIENTS, FIRST_BYTES, Keys, make_server
from benchmarks.main_job import ROWS, main
from benchmarks.rows_gcs import gcs_jsonl_rows, gcs_small_rows
from benchmarks.rows_positions import position_rows
from benchmarks.rows_speed import Bench, Server, small_memory_rows
from benchmarks.transforms import ROWS as TRANSFORMS
from gcs_source.client import GcsStore
from gcs_source.config import GcsConfig
from s3_source.client import S3Store
from s3_source.config import S3Config
from tests.support import forked_tasks  # noqa: F401 - what a fork has loaded

ROOT = Path(__file__).parents[2]


@pytest.fixture
def forks(monkeypatch):
    """Contestants and servers are forks of a process that has loaded them: no figure of a quick look means anything."""
    context = multiprocessing.get_context("forkserver")
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: context)
    monkeypatch.setattr(contestants, "get_context", lambda _: context)


def test_some_rows_of_the_benchmark_run_on_tiny_data(seaweedfs_server, forks, monkeypatch, capfd):
    parts = urlsplit(seaweedfs_server.endpoint)
    store = f"{parts.scheme}://{seaweedfs_server.access_key}:{seaweedfs_server.secret_key}@{parts.netloc}"
    monkeypatch.delenv("IGGY_TEST_URL", raising=False)
    rows = ["--rows", "jsonl,restore,transforms"]
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick", "--rounds", "1", *rows, "--s3", store])
    main()
    out, err = capfd.readouterr()
    names = ("JSONL", "restore", "restore with two headers each", "add_fields and delete_fields", "unwrap_envelope")
    for name in (*names, "filter that keeps two of three"):
        assert f"| {name}, 4 x 500 x 200 B, memory to embedded Iggy" in out, name
    assert parts.netloc not in out
    assert seaweedfs_server.secret_key not in out + err


def test_the_rows_of_gcs_run_on_few(tmp_path, iggy_url, forks):
    bench = Bench(
        store=None, servers=(Server(name="some Iggy", url=iggy_url),), folder=tmp_path, rounds=1, quick=True, keep=False
    )
    (lines,) = gcs_jsonl_rows(bench)
    (small,) = gcs_small_rows(bench)
    assert lines.what.startswith("JSONL, 4 x 500 x 200 B, GCS to some Iggy")
    assert small.what.startswith("60 objects of 1 KB, GCS to some Iggy")


def test_the_rows_of_small_objects_run_on_few(tmp_path, iggy_url, forks):
    bench = Bench(
        store=None, servers=(Server(name="some Iggy", url=iggy_url),), folder=tmp_path, rounds=1, quick=True, keep=False
    )
    rows = list(small_memory_rows(bench))
    assert [row.what.partition(",")[0] for row in rows] == ["60 objects of 1 KB", "the same"] * 2


def test_every_promised_row_has_a_name():
    assert list(ROWS) == [
        *("jsonl", "avro", "csv", "parquet", "restore", "transforms"),
        *("small", "small-memory", "gcs-jsonl", "gcs-small"),
        *("memory", "idle", "start", "spark-start"),
        *("spark", "spark-split", "cluster", "spark-listing", "driver-memory", "positions"),
    ]


def test_the_row_of_positions_runs_on_few(tmp_path, forks):
    bench = Bench(store=None, servers=(), folder=tmp_path, rounds=1, quick=True, keep=False)
    rows = list(position_rows(bench))
    assert [row.what.split()[0] for row in rows] == [
        *("2,000", "the", "the", "the"),
        *("a", "a", "the", "the"),
        *("a", "the", "the"),
    ]
    assert not list(tmp_path.iterdir())


LISTED = 2345


@pytest.fixture(scope="module")
def listing_server():
    """What the benchmark of listings lists, in a thread instead of a process."""
    server = make_server(LISTED)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_keys_of_the_listing_benchmark_are_in_order_and_its_server_knows_where_each_is():
    keys = Keys(LISTED)
    names = [keys.key(number) for number in range(LISTED)]
    assert names == sorted(set(names))
    assert [keys.behind(name) for name in names] == list(range(1, LISTED + 1))
    assert [keys.from_(name) for name in names] == list(range(LISTED))
    assert keys.page(names[100][:17], 0, LISTED, LISTED) == (range(84, 168), False)  # one day


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_the_listing_benchmarks_server_is_a_store(listing_server, kind):
    if kind == "s3":
        store = S3Store(
            S3Config(
                bucket=BUCKET, endpoint=listing_server, region="us-east-1", access_key_id="a", secret_access_key="b"
            )
        )
    else:
        store = GcsStore(GcsConfig(bucket=BUCKET, endpoint=listing_server, anonymous=True))
    keys = Keys(LISTED)
    try:
        listed = list(store.list_all(prefix="events/2026/01/", page_size=500))
        assert [(native.key, native.size) for native in listed] == [
            (keys.key(number), FIRST_BYTES + number) for number in range(LISTED)
        ]
        behind = store.list_page(after=keys.key(99), page_size=7)
        assert [native.key for native in behind.objects] == [keys.key(number) for number in range(100, 107)]
        if kind == "gs":
            bounded = store.list_page(after=keys.key(99), until=keys.key(103), page_size=7)
            assert [native.key for native in bounded.objects] == [keys.key(number) for number in range(100, 104)]
            assert bounded.continuation is None
    finally:
        store.close()


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("calls", [1, None])
def test_every_client_of_the_listing_benchmark_lists_all(listing_server, name, calls):
    found, found_bytes, requests = CLIENTS[name].list_all(listing_server, calls)
    assert (found, found_bytes) == (LISTED, LISTED * FIRST_BYTES + LISTED * (LISTED - 1) // 2)
    assert requests >= 3


def test_the_listing_benchmark_runs_on_few():
    ended = subprocess.run(
        [sys.executable, "benchmarks/listing_client.py", "--keys", "1500", "--calls", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert ended.returncode == 0, ended.stderr
    for name in CLIENTS:
        assert f"| {name} | 2 | 1,500 | " in ended.stdout


def test_the_benchmark_of_transforms_runs_on_few():
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.transforms", "--records", "700", "--rounds", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert ended.returncode == 0, ended.stderr
    for name in TRANSFORMS:
        assert f"| {name} | " in ended.stdout
