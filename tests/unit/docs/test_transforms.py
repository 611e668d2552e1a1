"""The examples of the page on transforms give what the page says, and each shipped transform has one."""

import json
import sys

import pytest
from google.protobuf import descriptor_pb2

from framework.config.transform_registry import SHIPPED, make_transforms
from framework.model.objects import NativeObject, TopicPartition
from framework.pipeline.transforming import TransformChain
from framework.testing.options import source_config
from framework.transform import TransformContext
from framework.transformer import PayloadBatch
from tests.support.docs import ROOT, blocks

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = ROOT / "docs" / "guides" / "transform-records.md"
CONTEXT = TransformContext(
    native=NativeObject(bucket="lake", key="a.jsonl", size=1, version="1", modified_ms=1_717_156_800_000),
    topic_partition=TopicPartition("orders", 0),
    source="orders",
    id_high=0x0123456789ABCDEF,
    metadata={"content-type": "application/json", "meta:team": "blue"},
)


def examples():
    """Each list of transforms of the page with its blocks: name -> lines."""
    found = []
    for block in blocks(PAGE):
        if block.info == "toml":
            found.append((block.line, tomllib.loads(block.text).get("transforms"), {}))
        elif block.info.partition(" ")[2] in {"before", "after", "headers", "times", "partitions of 4"}:
            found[-1][2][block.info] = block.text.splitlines()
    return [example for example in found if example[1] is not None]


EXAMPLES = examples()


def write_descriptors(path):
    """`shop.Order { int64 id = 1; string who = 2; }`."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    field = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind) in enumerate([("id", field.TYPE_INT64), ("who", field.TYPE_STRING)], 1):
        message.field.add(name=name, number=number, type=kind, label=field.LABEL_OPTIONAL)
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())


@pytest.mark.parametrize(
    ("line", "transforms", "parts"), EXAMPLES, ids=lambda part: part if isinstance(part, int) else ""
)
def test_an_example_gives_what_the_page_says(line, transforms, parts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_descriptors(tmp_path / "shop.pb")
    before = [text.encode() for text in parts["json before"]]
    chain = TransformChain(make_transforms(source_config(transforms=transforms).transforms))
    run = chain.apply(PayloadBatch(first_record=1, payloads=before, size_bytes=1), CONTEXT)
    assert run.bad == ()
    payloads = list(run.batch.payloads)
    compared = 0
    if "json after" in parts:
        assert [payload.decode() for payload in payloads] == parts["json after"]
        compared += 1
    if "hex after" in parts:
        assert [payload.hex() for payload in payloads] == parts["hex after"]
        compared += 1
    if "json headers" in parts:
        assert [dict(one) for one in run.batch.headers] == [json.loads(text) for text in parts["json headers"]]
        compared += 1
    if "text times" in parts:
        assert run.batch.timestamps_us.tolist() == [int(text) for text in parts["text times"]]
        compared += 1
    if "text partitions of 4" in parts:
        assert (run.batch.key_hashes % 4).tolist() == [int(text) for text in parts["text partitions of 4"]]
        compared += 1
    assert compared, line


def test_every_shipped_transform_has_an_example():
    assert {one["type"] for _, transforms, _ in EXAMPLES for one in transforms} == set(SHIPPED)


def test_every_shipped_transform_is_in_the_reference():
    text = (ROOT / "docs" / "reference" / "transforms.md").read_text(encoding="utf-8")
    assert [name for name in SHIPPED if f"## `{name}`" not in text] == []
