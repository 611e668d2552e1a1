"""Records a second of each transform alone, on one thread, beside the same batches without it.

    python -m benchmarks.transforms [--records 200000] [--rounds 5]

The batches are those of `jsonl`: columns of 5,000 records of some 215 bytes. Times are of the processor, not of the
clock, so other load disturbs them little. The best of the rounds counts.
"""

from __future__ import annotations

import argparse
import json
import random
import time

from framework.config.transforms import make_transforms
from framework.model.objects import NativeObject, TopicPartition
from framework.model.payloads import PayloadColumn
from framework.pipeline.transforming import TransformChain
from framework.testing.options import source_config
from framework.transform import TransformContext
from framework.transformer import PayloadBatch

BATCH = 5000


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


def runs(lines):
    for at in range(0, len(lines), BATCH):
        payloads = PayloadColumn(b"".join(line + b"\n" for line in lines[at : at + BATCH]))
        yield PayloadBatch(first_record=at + 1, payloads=payloads, size_bytes=payloads.size_bytes)


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
}


def seconds(chain, batches, context, rounds):
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        for batch in batches:
            chain.apply(batch, context)
        best = min(best, time.process_time() - began)
    return best


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    lines = [json.dumps(record).encode() for record in records(given.records)]
    wrapped = [b'{"offset":%d,"topic":"events","payload":%s}' % (number, line) for number, line in enumerate(lines)]
    context = TransformContext(
        native=NativeObject(bucket="lake", key="a.jsonl", size=1, version="1", modified_ms=1_700_000_000_000),
        topic_partition=TopicPartition("events", 0),
        source="bench",
        id_high=0x1234567890ABCDEF,
    )
    print("| transforms | records/s | microseconds a record |")
    print("| --- | ---: | ---: |")
    for name, transforms in ROWS.items():
        if given.only not in name:
            continue
        batches = list(runs(wrapped if name.startswith("unwrap") else lines))
        chain = TransformChain(make_transforms(source_config(transforms=transforms).transforms))
        took = seconds(chain, batches, context, given.rounds)
        print(f"| {name} | {given.records / took:,.0f} | {took / given.records * 1e6:.2f} |")


if __name__ == "__main__":
    main()
