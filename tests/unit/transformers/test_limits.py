"""Objects that unfold to much, between two good ones: each costs itself, and less than 400 MB of memory at its peak."""

import fcntl
import gzip
import io
import json
import os
import sys
from pathlib import Path

import fastavro
import pytest

from framework.errors import MESSAGE_CHARACTERS, CorruptObjectError, RecordTooLargeError
from framework.transformer import InputOptions
from tests.support import parquet_parts as made
from tests.support.bombs import avro
from tests.support.stopwatch import run_within
from transformers import BytesInput, make_transformer

pytestmark = [
    pytest.mark.long,  # what all of them share
    pytest.mark.timeout(3000),  # the process that they share has a limit of its own, on a machine that has time for it
]

BOUND_MB = 400
WINDOW_MB = {"zstd allowed window": 256}
"""What an option allows besides."""

ENDS = {
    "avro deflate": "input.max_block_bytes",
    "avro bzip2": "input.max_block_bytes",
    "avro xz": "input.max_block_bytes",
    "avro zstd": "input.max_block_bytes",
    "avro empty streams": None,
    "avro snappy": "input.max_block_bytes",
    "avro items": "134217728 bytes of memory",
    "avro empty arrays": "134217728 bytes of memory",
    "avro records": "more than 1000000 records",
    "avro list": "250 levels",
    "avro itself": "250 levels",
    "avro schema": "schema",
    "avro scale": "10000 digits",
    "avro decimal": "4096 bytes",
    "avro header": "4194304 bytes",
    "avro names": None,
    "avro list of names": "134217728 bytes of memory",
    "avro symbols": None,
    "avro unions": None,
    "avro branches": None,
    "parquet words": None,
    "parquet one word": "input.max_expansion",
    "parquet late word": None,
    "parquet page": "input.max_page_bytes (1073741824 bytes)",
    "parquet dictionary": None,
    "parquet empty words": None,
    "parquet one miniblock": "cannot be read further",
    "parquet prefix": None,
    "parquet columns": "input.max_page_bytes (67108864 bytes)",
    "parquet list": "input.max_page_bytes (1073741824 bytes)",
    "parquet long list": None,
    "parquet list of words": "input.max_record_bytes",
    "parquet lists of words": None,
    "parquet delta list": "a quarter of input.max_page_bytes",
    "parquet names": None,
    "parquet list of names": "input.max_record_bytes",
    "parquet text": "input.max_record_bytes",
    "json objects": None,
    "json text": None,
    "jsonl text": None,
    "csv fields": "1000000 fields",
    "csv quoted fields": "1000000 fields",
    "csv rows": "1000000 fields",
    "csv header": "header",
    "csv names": None,
    "csv quoted names": None,
    "text line": "input.max_record_bytes",
    "jsonl lines": "input.max_expansion",
    "snappy": "snappy data is damaged",
    "xz": "input.max_window_bytes (134217728 bytes)",
    "zstd window": "input.max_window_bytes (134217728)",
    "zstd allowed window": None,
}
"""What the error says that each ends with; None: it is only large, and is read."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, worker_id):
    """What became of each, worked out once for all workers of the run: it takes some 40 seconds of CPU."""
    base = tmp_path_factory.getbasetemp()
    found = (base if worker_id == "master" else base.parent) / "bombs.jsonl"
    with found.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            root = Path(__file__).parents[3]
            command, environment = [sys.executable, "-m", "tests.support.bombs"], os.environ | {"PYTHONPATH": str(root)}
            done = run_within(300, command, cwd=root, env=environment)
            assert done.returncode == 0, done.stderr[-4000:]
            found.write_text(done.stdout)
    return {outcome["name"]: outcome for outcome in map(json.loads, found.read_text().splitlines())}


@pytest.mark.parametrize("name", ENDS)
def test_a_bomb_costs_itself_and_little_memory(outcomes, name):
    outcome, said = outcomes[name], ENDS[name]
    assert outcome["status"] == 0
    assert (outcome["counts"]["a"], outcome["counts"]["c"]) == (3, 3)
    if said is None:
        assert outcome["errors"] == []
        assert outcome["counts"]["b"] > 0
    else:
        (error,) = outcome["errors"]
        assert error.startswith("memory://bucket/b, record ")
        assert said in error
    assert outcome["peak_mb"] < BOUND_MB + WINDOW_MB.get(name, 0)


BLANK = b"\n" * 3_000_000


@pytest.mark.parametrize(
    ("name", "data"), [("jsonl", BLANK), ("text", BLANK), ("csv", BLANK), ("json", b"[1," + BLANK + b"2]")]
)
def test_what_an_object_unfolds_to_counts_without_records_too(monkeypatch, name, data):
    """100 MB of zstandard can hold 3 TB of blank lines, and reading them took days."""
    monkeypatch.setattr("transformers.compression.FREE_EXPANSION_BYTES", 10_000)

    def read(source, **options):
        return make_transformer(InputOptions(format=name, **options)).records(source)

    packed, plain = BytesInput(gzip.compress(data)), BytesInput(data)
    with pytest.raises(CorruptObjectError, match=r"unpacks to more than \d+ bytes, of \d+ that .*max_expansion is 10$"):
        list(read(packed, max_expansion=10))
    whole = list(read(plain, max_expansion=10))
    assert [list(read(packed, max_expansion=factor)) for factor in (10_000, 0)] == [whole, whole]


def test_records_that_are_too_large_count_as_what_an_object_unfolds_to(monkeypatch):
    monkeypatch.setattr("transformers.compression.FREE_EXPANSION_BYTES", 10_000)
    data = gzip.compress(b"n" * 500 + b"\n" + b"1\n" * 10_000)
    read = make_transformer(InputOptions(format="csv", max_record_bytes=501, max_expansion=10)).read
    found = []
    with pytest.raises(CorruptObjectError, match=r"input\.max_expansion is 10"):
        found.extend(read(BytesInput(data)))
    assert {type(bad.error) for bad in found} == {RecordTooLargeError}
    assert len(found) * 500 < 10_000


def test_pages_and_blocks_count_as_what_an_object_unfolds_to_however_few_values_are_read_of_them(monkeypatch):
    """A page that thousands of row groups share, of a row each, took a tenth of a second and 34 bytes for each of them."""
    monkeypatch.setattr("transformers.compression.FREE_EXPANSION_BYTES", 10_000_000)
    page = made.data_page(1, bytes(1_000_000))
    shared = made.parquet(made.column([page], rows=1, kind=made.INT32), rows=1, groups=20)
    fields = [{"name": "n", "type": "long"}, {"name": "data", "type": "bytes"}]
    blocks = io.BytesIO()
    rows = [{"n": n, "data": bytes(1_000_000)} for n in range(20)]
    fastavro.writer(blocks, {"type": "record", "name": "R", "fields": fields}, rows, codec="deflate", sync_interval=1)
    for name, data, columns in (("parquet", shared, ()), ("avro", blocks.getvalue(), ("n",))):
        transformer = make_transformer(InputOptions(format=name, columns=columns, max_expansion=1))
        found = []
        with pytest.raises(CorruptObjectError, match=r" unpack to more than 10000000 bytes, .*max_expansion is 1$"):
            found.extend(transformer.read(BytesInput(data)))
        assert sum(len(run.payloads) for run in found) in {9, 10}
        free = make_transformer(InputOptions(format=name, columns=columns, max_expansion=0))
        assert len(list(free.records(BytesInput(data)))) == 20


def test_a_message_is_short_however_long_the_names_in_an_object_are():
    name = "n" * 100_000
    twins = {"type": "record", "name": "R", "fields": [{"name": name, "type": "int"}] * 2}
    for schema, codec in (("long", name.encode()), ({"type": "array", "items": name}, b"null"), (twins, b"null")):
        with pytest.raises(CorruptObjectError) as caught:
            list(make_transformer(InputOptions(format="avro")).read(BytesInput(avro(schema, 1, b"\2", codec))))
        assert caught.value.message.endswith("nnn...")
        assert len(caught.value.message) == MESSAGE_CHARACTERS


def test_every_bomb_has_an_end(outcomes):
    assert set(outcomes) == set(ENDS)
