"""Transforms that the kit makes in another interpreter, too: that loads this module, and no test."""

import numpy as np

from framework.config.envelope import make_envelope
from framework.config.transform_registry import make_transforms
from framework.testing.options import source_config
from framework.transform import NoOptions, Transform, TransformBatch

BUILT_IN = {
    "add_fields": {
        "fields": [
            {"key": "kind", "value": {"static": "order"}},
            {"key": "uuid", "value": {"computed": "uuid_v7"}},
            {"key": "when", "value": {"computed": "timestamp_micros"}},
        ]
    },
    "update_fields": {"fields": [{"key": "name", "value": {"computed": "uuid_v4"}, "condition": "key_exists"}]},
    "delete_fields": {"fields": ["name", "at"]},
    "filter_fields": {"keep_fields": ["id"], "patterns": [{"value_pattern": "is_string"}]},
    "unwrap_envelope": {"field": "message"},
    "filter": {"field": "id", "value_pattern": {"between": [2, 5]}},
    "headers": {"headers": [{"name": "name", "field": "name"}, {"name": "k", "object": "last_modified"}]},
    "timestamp": {"field": "at", "format": "iso8601", "missing": "ignore"},
    "partition_by": {"field": "name", "missing": "spread"},
    "avro_convert": {
        "source_format": "json",
        "target_format": "avro",
        "schema_json": '{"type":"record","name":"r","fields":[{"name":"id","type":"long"}]}',
    },
    "json": {},
    "raw": {},
    "text": {},
    "avro": {"schema_json": '["null","string"]'},
}


def built_in(name):
    ((transform, _),) = make_transforms(source_config(transforms=[{"type": name, **BUILT_IN[name]}]).transforms)
    return transform


def built_in_beside(_other):
    return built_in("json")


def envelope(payload):
    """The transform of an envelope."""
    config = source_config(envelope="custom", envelope_fields=FIELDS, envelope_payload=payload)
    ((transform, _),) = make_envelope(config)
    return transform


FIELDS = {
    "payload": "payload",
    "headers": "headers",
    "timestamp": "timestamp",
    "topic": "topic",
    "partition": "partition_id",
}


class Own(Transform):
    name = "own"

    def __init__(self):
        super().__init__(NoOptions())


class HashesOfThisProcess(Own):
    chooses_partition = True

    def apply(self, batch, context):
        hashes = np.array([hash(payload) & 0xFFFFFFFF for payload in batch.payloads], np.uint32)
        return TransformBatch(payloads=batch.payloads, numbers=batch.numbers, key_hashes=hashes)
