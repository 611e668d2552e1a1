"""The partition of a record: the bytes of a key, their hash, and records without a key."""

import json

import msgspec
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.config.transform_registry import partition_options
from framework.errors import ConfigError, TransformContractError
from framework.testing.options import source_config
from framework.transform import Transform
from framework.transforms.partitions import key_bytes
from tests.support import transforms as own
from tests.support.examples import examples
from tests.support.keys import partition_of_key, xxh32
from tests.unit.transforms.conftest import applied

BY = {"type": "partition_by", "field": "k"}


def hashes(found):
    return found.run.batch.key_hashes.tolist()


def test_the_hash_is_xxh32_with_seed_0():
    """Vectors of the specification, and any bytes."""
    assert xxh32(b"") == 0x02CC5D05
    assert xxh32(b"a") == 0x550D7456
    assert xxh32(b"Nobody inspects the spammish repetition") == 0xE2293B2F
    for size in range(70):
        data = bytes((7 * at + size) % 256 for at in range(size))
        assert xxh32(data) == xxhash.xxh32(data).intdigest()


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b'"text"', "text"),
        (b'""', ""),
        (b'"\\u00e9\\n"', "\u00e9\n"),
        (b"17", "17"),
        (b'"17"', "17"),
        (b"17.0", "17"),
        (b"1.7e1", "17"),
        (b"-0.0", "0"),
        (b"0.5", "0.5"),
        (b"1e300", "1e+300"),
        (b"123456789012345678901234567890", "123456789012345678901234567890"),
        (b"true", "true"),
        (b"false", "false"),
    ],
)
def test_equal_values_have_one_key_however_they_are_written(apply, value, key):
    assert hashes(apply([b'{"x":1,"k":%s}' % value, b'{ "k" : %s }' % value], BY)) == [xxh32(key.encode())] * 2
    assert key_bytes(msgspec.json.decode(value)) == key.encode()


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"no json", "its payload is no JSON object"),
        (b"[1]", "its payload is no JSON object"),
        (b'{"k":[1]}', 'field "k" is no text, number or truth value'),
        (b'{"k":{}}', 'field "k" is no text, number or truth value'),
        (b'{"k":null}', 'field "k" is null'),
        (b'{"j":1}', 'field "k" is missing'),
    ],
)
def test_a_record_without_a_key_is_bad_and_has_its_place(apply, payload, reason):
    found = apply([b'{"k":"a"}', payload, b'{"k":"b"}'], BY, first=8)
    assert (found.numbers, hashes(found)) == ([8, 10], [xxh32(b"a"), xxh32(b"b")])
    assert found.reasons == {9: f"transforms[0] (partition_by): {reason}"}
    assert found.bad[9].raw == payload
    assert found.bad[9].error.location == "s3://lake/a/b.jsonl"


def test_records_without_a_key_may_be_spread_by_their_numbers(apply):
    payloads = [b'{"k":"a"}', b'{"k":null}', b"{}", b'{"k":[]}', b'{"k":2}']
    found = apply(payloads, {**BY, "missing": "spread"}, first=8)
    assert hashes(found) == [xxh32(b"a"), 9, 10, xxh32(b"2")]
    assert sorted(found.bad) == [11]


@given(st.lists(st.one_of(st.text(max_size=20), st.integers(), st.booleans(), st.floats(allow_nan=False)), min_size=1))
@settings(max_examples=examples(100), deadline=None)
def test_the_partition_of_a_value_is_that_of_its_text(values):
    values = [value for value in values if not isinstance(value, float) or abs(value) < 1e308]
    payloads = [json.dumps({"k": value}).encode() for value in values]
    if not payloads:
        return
    found = applied(payloads, BY)
    texts = [
        value
        if isinstance(value, str)
        else str(value).lower()
        if isinstance(value, bool)
        else str(int(value))
        if isinstance(value, int) or (value == int(value) and abs(value) < 1 << 53)
        else repr(value)
        for value in values
    ]
    assert hashes(found) == [xxh32(text.encode("utf-8", "surrogatepass")) for text in texts]
    assert [key % 7 for key in hashes(found)] == [partition_of_key(text, 7) for text in texts]


def test_hashes_stay_with_their_records_behind_other_transforms(apply):
    payloads = [b'{"k":"%d","n":%d}' % (number % 3, number) for number in range(10)]
    drop = {"type": "filter", "field": "n", "value_pattern": {"between": [3, 6]}, "action": "drop"}
    late = {"type": "timestamp", "field": "at", "missing": "ignore"}
    gone = {"type": "delete_fields", "fields": ["k"]}
    for transforms in ([drop, BY], [BY, drop], [BY, gone, drop, late], [late, BY, gone, drop]):
        found = apply(payloads, *transforms)
        assert found.numbers == [1, 2, 3, 8, 9, 10]
        assert hashes(found) == [xxh32(b"%d" % ((number - 1) % 3)) for number in found.numbers]


class Forgets(Transform):
    name = "forgets"

    def apply(self, batch, context):
        return type(batch)(payloads=list(batch.payloads), numbers=batch.numbers)


def test_a_transform_that_loses_the_hashes_is_refused(monkeypatch):
    own.register(monkeypatch, forgets=Forgets)
    with pytest.raises(TransformContractError, match="without the hashes of their keys"):
        applied([b'{"k":1}'], BY, {"type": "forgets"})


# ---- configuration


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"transforms": [BY, BY]}, r"transforms\[1\] \(partition_by\): transforms\[0\] \(partition_by\) chooses"),
        ({"transforms": [BY], "split_size": "1MB", "format": "jsonl"}, r"\[input\] split_size"),
        ({"transforms": [BY], "template": "{{partition}}-{{key}}", "distribution": "partition"}, "distribution"),
        ({"transforms": [{"type": "raw"}, BY]}, "must be the last transform"),
        ({"transforms": [{"type": "partition_by"}]}, "field"),
        ({"transforms": [{**BY, "missing": "no"}]}, "missing"),
    ],
)
def test_what_cannot_work_together_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        source_config(**options)


def test_a_transform_that_is_off_chooses_nothing():
    config = source_config(transforms=[{**BY, "enabled": False}], split_size="1MB", format="jsonl")
    assert not config.divides_by_key


def rule(*transforms, **options):
    return source_config(transforms=list(transforms), **options).numbering_options({"format": "x"})


def test_the_rule_of_the_partition_is_stored_with_a_position():
    """It changes with whatever may change a record's key, and with nothing else."""
    add = {"type": "add_fields", "fields": [{"key": "k", "value": {"static": 1}}]}
    headers = {"type": "headers", "headers": [{"name": "h", "static": "v"}]}
    assert rule() == rule(add) == '{"format":"x"}'
    assert json.loads(rule(BY))["partition_by"] == "k"
    other = {
        rule(BY),
        rule({**BY, "field": "j"}),
        rule({**BY, "missing": "spread"}),
        rule(add, BY),
        rule({**add, "fields": [{"key": "k", "value": {"static": 2}}]}, BY),
        rule(add, add, BY),
        rule(BY, format="csv", csv_delimiter=";"),
        rule(BY, envelope="iggy-s3-sink"),
    }
    assert len(other) == 8
    same = {
        rule(BY, add),
        rule(BY, headers, {"type": "raw"}),
        rule({**headers, "enabled": False}, BY),
        rule({**BY, "missing": "fail"}),
        rule(BY, max_record_bytes=1000, prefetch_objects=3, partitions=9),
    }
    assert same == {rule(BY)}


def test_the_stored_rule_does_not_change_from_release_to_release():
    """A change refuses every object that is half read: raise `PARTITION_RULE` with it, and say so."""
    config = source_config(transforms=[BY])
    assert partition_options(config.transforms, {}, None) == {"partition_by": "k", "partition_rule": "7a64c54c4f63aa80"}
