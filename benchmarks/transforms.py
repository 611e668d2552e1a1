"""Records a second of `jsonl` with each transform or envelope, on one thread, from bytes in memory.

    python -m benchmarks.transforms [--records 200000] [--rounds 5]

The first row has no transform: the others' difference to it is what a transform costs. Records have some 215 bytes and come
in batches of 5,000. Times are of the processor, not of the clock, so other load disturbs them little. The best of the rounds
counts.
"""

from __future__ import annotations

import argparse
import json
import random
import time

from framework.config.envelope import make_envelope
from framework.config.format_registry import make_transformer
from framework.config.transform_registry import make_transforms
from framework.model.objects import NativeObject, TopicPartition
from framework.pipeline.transforming import TransformChain
from framework.testing.options import source_config
from framework.transform import TransformContext
from framework.transformer import BatchLimits
from transformers.local_inputs import BytesInput

LIMITS = BatchLimits(records=5000)


def records(count):
    chance = random.Random(7)
    for number in range(count):
        yield {
            "id": number,
            "user": f"user-{chance.randrange(1_000_000)}",
            "event": "click",
            "amount": round(chance.random() * 100, 2),
            "country": chance.choice(["DE", "FR", "US", "JP"]),
            "tags": ["a", "b"],
            "nested": {"x": 1, "y": "zz"},
            "ok": True,
            "ts": f"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}Z",
            "note": "some text of a usual length",
        }


ADD = {"type": "add_fields", "fields": [{"key": "source", "value": {"static": "archive"}}]}
DELETE = {"type": "delete_fields", "fields": ["note", "tags"]}
FILTER = {"type": "filter", "field": "country", "value_pattern": {"equals": "DE"}}
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "event",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "user", "type": "string"},
            {"name": "event", "type": "string"},
            {"name": "amount", "type": "double"},
            {"name": "country", "type": "string"},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {
                "name": "nested",
                "type": {
                    "type": "record",
                    "name": "inner",
                    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "string"}],
                },
            },
            {"name": "ok", "type": "boolean"},
            {"name": "ts", "type": "string"},
            {"name": "note", "type": "string"},
        ],
    }
)
ROWS = {
    "no transform": [],
    "partition_by": [{"type": "partition_by", "field": "user"}],
    "add_fields": [ADD],
    "add_fields, uuid_v4": [{"type": "add_fields", "fields": [{"key": "uuid", "value": {"computed": "uuid_v4"}}]}],
    "add_fields + delete_fields": [ADD, DELETE],
    "update_fields": [
        {
            "type": "update_fields",
            "fields": [{"key": "event", "value": {"static": "view"}, "condition": "key_exists"}],
        }
    ],
    "delete_fields": [DELETE],
    "filter_fields": [{"type": "filter_fields", "keep_fields": ["id", "user", "event"]}],
    "filter, keeps 1 of 4": [FILTER],
    "filter, keeps 3 of 4": [{**FILTER, "action": "drop"}],
    "filter, number": [{"type": "filter", "field": "amount", "value_pattern": {"greater_than": 50}}],
    "filter + add_fields": [FILTER, ADD],
    "headers, one field": [{"type": "headers", "headers": [{"name": "user", "field": "user"}]}],
    "headers, the object's": [{"type": "headers", "headers": [{"name": "size", "object": "size"}]}],
    "timestamp": [{"type": "timestamp", "field": "ts"}],
    "avro_convert, to Avro": [
        {"type": "avro_convert", "source_format": "json", "target_format": "avro", "schema_json": SCHEMA}
    ],
    "json": [{"type": "json"}],
    "unwrap_envelope": [{"type": "unwrap_envelope", "field": "payload"}],
    "restore": None,
    "restore, two headers": None,
}
"""By name; None is an archive of Iggy's S3 sink."""

FORMS = {
    "unwrap_envelope": b'{"offset":%(n)d,"topic":"events","payload":%(line)s}',
    "restore": b'{"offset":%(n)d,"timestamp":"2026-03-16T14:00:%(second)02dZ","topic":"events","payload":%(line)s}',
    "restore, two headers": (
        b'{"timestamp":"2026-03-16T14:00:%(second)02dZ","headers":{"a":%(second)d,"b":"x"},"payload":%(line)s}'
    ),
}
"""Of the archived lines."""


def wrapped(form, lines):
    return [form % {b"n": n, b"second": n % 60, b"line": line} for n, line in enumerate(lines)]


def seconds(data, config, rounds):
    context = TransformContext(
        native=NativeObject(bucket="lake", key="a.jsonl", size=1, version="1", modified_ms=1_700_000_000_000),
        topic_partition=TopicPartition("events", 0),
        source="bench",
        id_high=0x1234567890ABCDEF,
    )
    transforms = [*make_envelope(config), *make_transforms(config.transforms)]
    chain = TransformChain(transforms) if transforms else None
    transformer = make_transformer(config.input.options())
    transformer.row_decoder = chain.row_decoder if chain is not None else None
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        for run in transformer.read(BytesInput(data, "a.jsonl"), limits=LIMITS):
            if chain is not None:
                chain.apply(run, context)
        best = min(best, time.process_time() - began)
    return best


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    lines = [json.dumps(record).encode() for record in records(given.records)]
    print("| transforms | records/s | microseconds a record |")
    print("| --- | ---: | ---: |")
    for name, transforms in ROWS.items():
        if given.only not in name:
            continue
        data = b"\n".join([*(wrapped(FORMS[name], lines) if name in FORMS else lines), b""])
        options = {"envelope": "iggy-s3-sink"} if transforms is None else {"transforms": transforms}
        took = seconds(data, source_config(format="jsonl", **options), given.rounds)
        print(f"| {name} | {given.records / took:,.0f} | {took / given.records * 1e6:.2f} |")


if __name__ == "__main__":
    main()
