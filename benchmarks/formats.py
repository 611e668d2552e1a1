"""CPU of each format a record, against the best bare loop that only decodes and makes the same JSON.

    python benchmarks/formats.py [RECORDS]

Objects are in memory; both sides run in turns in one process, best of five. A bare loop drops each record at once and
checks nothing: no limits, no runs, no sync markers, no cut.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import time
from decimal import Decimal
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import fastavro
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from framework.config.format_registry import make_transformer
from framework.transformer import InputOptions
from transformers import BytesInput

ROUNDS = 5
COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
RECORDS = [
    {
        "id": 10_000_000 + number,
        "name": f"customer {number}",
        "time": "2024-02-29T01:02:03.000004Z",
        "amount": number * 1.25,
        "currency": "EUR",
        "note": "x" * 67,
        "paid": number % 3 == 0,
    }
    for number in range(COUNT)
]
NAMES = list(RECORDS[0])


def as_jsonl():
    return b"".join(orjson.dumps(record) + b"\n" for record in RECORDS)


def as_csv():
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(NAMES)
    writer.writerows(list(map(str, record.values())) for record in RECORDS)
    return out.getvalue().encode()


def as_quoted_csv():
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n", quoting=csv.QUOTE_ALL)
    writer.writerow(NAMES)
    writer.writerows(record.values() for record in RECORDS)
    return out.getvalue().encode()


def as_avro():
    kinds = {int: "long", str: "string", float: "double", bool: "boolean"}
    fields = [{"name": name, "type": kinds[type(value)]} for name, value in RECORDS[0].items()]
    schema = {"type": "record", "name": "Order", "fields": fields}
    out = io.BytesIO()
    fastavro.writer(out, schema, RECORDS, codec="deflate")
    return out.getvalue()


def as_parquet():
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(RECORDS), out)
    return out.getvalue()


def as_trips(**options):
    """Rows as of flights or taxis: times, dates, decimals, repeated short texts, and nulls."""
    times = pa.array(range(1_357_000_000_000_000, 1_357_000_000_000_000 + COUNT * 1_234_567, 1_234_567), pa.int64())
    table = pa.table({
        "pickup": times.cast(pa.timestamp("us", "UTC")),
        "dropoff": times.cast(pa.timestamp("us")),
        "day": pa.array([15_706 + number % 7000 for number in range(COUNT)], pa.int32()).cast(pa.date32()),
        "delay": [None if number % 50 == 0 else number % 200 for number in range(COUNT)],
        "distance": [number % 3000 / 8 for number in range(COUNT)],
        "fare": pa.array([Decimal(number % 100_000) / 100 for number in range(COUNT)], pa.decimal128(10, 2)),
        "carrier": [("UA", "AA", "DL", "B6")[number % 4] for number in range(COUNT)],
    })  # fmt: skip
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def bare_lines(data):
    data.split(b"\n")


def bare_csv(data):
    rows = csv.reader(io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", newline=""))
    names, dumps = next(rows), orjson.dumps
    for row in rows:
        dumps(dict(zip(names, row)))  # noqa: B905 - as quick as it can be


def bare_avro(data):
    dumps = orjson.dumps
    for record in fastavro.reader(io.BytesIO(data)):
        dumps(record)


def bare_parquet(data):
    dumps = orjson.dumps
    for batch in pq.ParquetFile(io.BytesIO(data)).iter_batches(5000, use_threads=False):
        for row in batch.to_pylist():
            dumps(row)


def bare_trips(data):
    dumps = orjson.dumps
    for batch in pq.ParquetFile(io.BytesIO(data)).iter_batches(5000, use_threads=False):
        for row in batch.to_pylist():
            dumps(row, default=str)


def bare_json(data):
    for element in orjson.loads(data):
        orjson.dumps(element)


def cpu_seconds(work):
    before = time.process_time()
    work()
    return time.process_time() - before


def main():
    lines = as_jsonl()
    array = json.dumps(RECORDS, separators=(",", ":")).encode()
    cases = [
        ("jsonl", "jsonl", {}, lines, bare_lines),
        ("jsonl, not validated", "jsonl", {"validate": False}, lines, bare_lines),
        ("text", "text", {}, lines, bare_lines),
        ("csv", "csv", {}, as_csv(), bare_csv),
        ("csv, all quoted", "csv", {}, as_quoted_csv(), bare_csv),
        ("avro, deflate", "avro", {}, as_avro(), bare_avro),
        ("parquet, snappy", "parquet", {}, as_parquet(), bare_parquet),
        ("parquet, trips", "parquet", {}, as_trips(), bare_trips),
        ("parquet, trips, INT96", "parquet", {}, as_trips(use_deprecated_int96_timestamps=True), bare_trips),
        ("json", "json", {}, array, bare_json),
    ]
    print(f"{COUNT} records of about {len(lines) // COUNT} bytes as JSON, best of {ROUNDS}")
    print(f"{'format':22}{'records/s':>12}{'us/record':>11}{'bare us':>9}{'ratio':>7}")
    for title, name, options, data, bare in cases:
        transformer = make_transformer(InputOptions(format=name, **options))

        def ours(transformer=transformer, data=data):
            assert sum(len(run.payloads) for run in transformer.read(BytesInput(data))) == COUNT

        rounds = [(cpu_seconds(ours), cpu_seconds(lambda bare=bare, data=data: bare(data))) for _ in range(ROUNDS)]
        mine, theirs = (min(column) / COUNT * 1e6 for column in zip(*rounds, strict=True))
        print(f"{title:22}{1e6 / mine:12,.0f}{mine:11.3f}{theirs:9.3f}{theirs / mine:7.2f}")


main()
