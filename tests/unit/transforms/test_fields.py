"""Fields of JSON objects: Iggy's semantics, untouched bytes, and what is no JSON object."""

import json
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.errors import ConfigError
from framework.model.objects import NativeObject
from framework.transforms.fields import FilterFields, FilterFieldsOptions
from tests.unit.transforms.conftest import applied

SET_A = {"type": "add_fields", "fields": [{"key": "a", "value": {"static": "new"}}]}
DROP_B = {"type": "delete_fields", "fields": ["b", "none"]}
OTHERS = [b"[1,2]", b'"text"', b"17", b"null", b"no json", b'{"cut":', b"\xff\xfe", b" ", b'{"a":1}x', b"{'a':1}"]


def test_added_fields_stand_behind_the_others_and_replace_in_place(apply):
    found = apply([b'{"z":1,"b":[ 1, 2 ]}', b'{"a":{"x":1},"b":2}', b"{}"], SET_A)
    assert found.payloads == [b'{"z":1,"b":[ 1, 2 ],"a":"new"}', b'{"a":"new","b":2}', b'{"a":"new"}']
    assert found.run.complete


def test_untouched_values_keep_their_bytes(apply):
    payload = b'{"n":1.50e+01,"big":123456789012345678901234567890,"s":"\\u00e9\\/","o":{"x" : [1 ,2]},"f":0.1000}'
    assert apply([payload], SET_A).payloads == [payload[:-1] + b',"a":"new"}']


@pytest.mark.parametrize("payload", OTHERS)
@pytest.mark.parametrize("transform", [SET_A, DROP_B, {"type": "filter_fields", "keep_fields": ["x"]}])
def test_a_payload_that_is_no_json_object_passes_unchanged(apply, payload, transform):
    found = apply([b'{"b":1,"x":2}', payload, b'{"x":3}'], transform)
    assert found.payloads[1] == payload
    assert json.loads(found.payloads[2])["x"] == 3
    assert found.payloads[0] != b'{"b":1,"x":2}'
    assert found.numbers == [1, 2, 3]


def test_deleted_fields(apply):
    assert apply([b'{"a":1,"b":2,"c":3}', b'{"a":1}'], DROP_B).payloads == [b'{"a":1,"c":3}', b'{"a":1}']


@pytest.mark.parametrize(
    ("condition", "there", "missing"),
    [
        ("always", b'{"a":"new","z":1}', b'{"z":1,"a":"new"}'),
        ("key_exists", b'{"a":"new","z":1}', b'{"z":1}'),
        ("key_not_exists", b'{"a":0,"z":1}', b'{"z":1,"a":"new"}'),
    ],
)
def test_updated_fields(apply, condition, there, missing):
    fields = [{"key": "a", "value": {"static": "new"}, "condition": condition}]
    assert apply([b'{"a":0,"z":1}', b'{"z":1}'], {"type": "update_fields", "fields": fields}).payloads == [
        there,
        missing,
    ]


def test_static_values_of_every_kind(apply):
    values = ["text", 5, 0.5, True, False, [1, {"x": []}], {"y": "z"}, ""]
    fields = [{"key": str(number), "value": {"static": value}} for number, value in enumerate(values)]
    (payload,) = apply([b"{}"], {"type": "add_fields", "fields": fields}).payloads
    assert list(json.loads(payload).values()) == values


def computed(name):
    return {"type": "add_fields", "fields": [{"key": "c", "value": {"computed": name}}]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("date_time", "2023-11-14T22:13:20.123+00:00"),
        ("timestamp_nanos", 1_700_000_000_123_000_000),
        ("timestamp_micros", 1_700_000_000_123_000),
        ("timestamp_millis", 1_700_000_000_123),
        ("timestamp_seconds", 1_700_000_000),
    ],
)
def test_computed_times_are_the_objects(apply, name, value):
    assert [json.loads(payload)["c"] for payload in apply([b"{}", b"{}"], computed(name)).payloads] == [value, value]


@pytest.mark.parametrize(("name", "version"), [("uuid_v4", 4), ("uuid_v7", 7)])
def test_computed_uuids_come_from_the_record(name, version):
    transform = computed(name)
    whole = applied([b"{}"] * 7, transform)
    found = [uuid.UUID(json.loads(payload)["c"]) for payload in whole.payloads]
    assert [(one.version, one.variant) for one in found] == [(version, uuid.RFC_4122)] * 7
    assert len(set(found)) == 7
    again = applied([b"{}"] * 3, transform, first=5)  # batches are cut elsewhere after a restart
    assert again.payloads == whole.payloads[4:]
    assert applied([b"{}"], transform, split_number=1).payloads != whole.payloads[:1]
    if version == 7:
        assert {one.int >> 80 for one in found} == {1_700_000_000_123}
    two = {"type": "add_fields", "fields": [{"key": key, "value": {"computed": name}} for key in "cd"]}
    (payload,) = applied([b"{}"], two).payloads
    assert len(set(json.loads(payload).values())) == 2


@pytest.mark.parametrize("name", ["date_time", "timestamp_millis", "uuid_v7"])
def test_an_object_without_a_time_makes_its_records_bad(name):
    gone = NativeObject(bucket="lake", key="a", size=0, version="1")
    found = applied([b"{}"], computed(name), native=gone)
    assert found.payloads == []
    assert "last-modified time of its object is not known" in found.reasons[1]


FILTERED = b'{"id":1,"meta_a":"x","meta_b":2,"name":"n","none":null,"ok":true,"list":[1],"object":{}}'


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"keep_fields": ["id", "name"]}, "id name"),
        ({"keep_fields": ["id"], "include_matching": False}, "id meta_a meta_b name none ok list object"),
        ({"patterns": [{"key_pattern": {"starts_with": "meta_"}}]}, "meta_a meta_b"),
        (
            {"patterns": [{"key_pattern": {"starts_with": "meta_"}}], "include_matching": False},
            "id name none ok list object",
        ),
        ({"patterns": [{"key_pattern": {"ends_with": "_b"}}, {"key_pattern": {"exact": "ok"}}]}, "meta_b ok"),
        ({"patterns": [{"key_pattern": {"contains": "am"}}]}, "name"),
        ({"patterns": [{"key_pattern": {"regex": "^(id|ok)$"}}]}, "id ok"),
        ({"patterns": [{"value_pattern": "is_number"}]}, "id meta_b"),
        ({"patterns": [{"value_pattern": {"is_null": True}}], "keep_fields": ["id"]}, "id none"),
        ({"patterns": [{"value_pattern": "is_not_null"}]}, "id meta_a meta_b name ok list object"),
        ({"patterns": [{"value_pattern": "is_string"}]}, "meta_a name"),
        ({"patterns": [{"value_pattern": "is_boolean"}]}, "ok"),
        ({"patterns": [{"value_pattern": "is_array"}]}, "list"),
        ({"patterns": [{"value_pattern": "is_object"}]}, "object"),
        ({"patterns": [{"value_pattern": {"equals": 1}}]}, "id"),
        ({"patterns": [{"value_pattern": {"equals": True}}]}, "ok"),
        ({"patterns": [{"value_pattern": {"equals": [1]}}]}, "list"),
        ({"patterns": [{"value_pattern": {"greater_than": 1}}]}, "meta_b"),
        ({"patterns": [{"value_pattern": {"less_than": 2}}]}, "id"),
        ({"patterns": [{"value_pattern": {"between": [1, 2]}}]}, "id meta_b"),
        ({"patterns": [{"value_pattern": {"contains": "n"}}]}, "name"),
        ({"patterns": [{"value_pattern": {"regex": "^[nx]$"}}]}, "meta_a name"),
        ({"patterns": [{"key_pattern": {"contains": "meta"}, "value_pattern": "is_number"}]}, "meta_b"),
    ],
)
def test_filtered_fields(apply, options, left):
    (payload,) = apply([FILTERED], {"type": "filter_fields", **options}).payloads
    assert list(json.loads(payload)) == left.split()


@pytest.mark.parametrize(
    ("transform", "mistake"),
    [
        ({"type": "add_fields"}, "transforms[0].fields: missing"),
        ({"type": "add_fields", "fields": []}, "transforms[0].fields: must have at least 1 item"),
        ({"type": "add_fields", "fields": [{"key": "a"}]}, "transforms[0].fields[0].value: missing"),
        ({"type": "add_fields", "fields": [{"key": "a", "value": {}}]}, "fields[0].value.static: missing, and so is"),
        (
            {"type": "add_fields", "fields": [{"key": "a", "value": 5}]},
            "fields[0].value: must be a table, such as { static = ... }",
        ),
        (
            {"type": "add_fields", "fields": [{"key": "a", "value": {"static": 1, "computed": "uuid_v4"}}]},
            "leave one of the two out",
        ),
        (
            {"type": "add_fields", "fields": {"key": "a"}},
            "transforms[0].fields: must be a list of tables, such as [{ key = ..., value = ... }]",
        ),
        ({"type": "delete_fields", "fields": [5]}, "transforms[0].fields = [5]: every item must be text"),
        ({"type": "filter_fields"}, "keep_fields: missing, and so is patterns"),
        ({"type": "filter_fields", "patterns": [{}]}, "transforms[0].patterns[0].key_pattern: missing"),
        (
            {"type": "filter_fields", "patterns": [{"key_pattern": {"exact": "a", "regex": "("}}]},
            "transforms[0].patterns[0].key_pattern.regex: exact is there too",
        ),
        ({"type": "filter_fields", "patterns": [{"key_pattern": {"regex": "("}}]}, "is no regular expression"),
        (
            {"type": "filter_fields", "patterns": [{"key_pattern": {"regex": "a{99999999999}"}}]},
            "patterns[0].key_pattern.regex: is no regular expression: the repetition number is too large",
        ),
        (
            {"type": "filter", "field": "a", "value_pattern": {"regex": "*a"}},
            "transforms[0].value_pattern.regex: is no regular expression",
        ),
        (
            {"type": "filter_fields", "patterns": [{"value_pattern": "is_nul"}]},
            'value_pattern: must be a table; did you mean "is_null"?',
        ),
        (
            {"type": "filter", "field": "a", "value_pattern": "DE"},
            "transforms[0].value_pattern: must be a table, such as { equals = ... }",
        ),
        (
            {"type": "filter_fields", "patterns": [{"value_pattern": {"between": [1]}}]},
            "patterns[0].value_pattern.between = [1]: must have 2 items",
        ),
        (
            {"type": "filter", "field": "a", "value_pattern": {"between": [5, 1]}},
            "transforms[0].value_pattern.between: no number is in this range; give the smaller one first",
        ),
    ],
)
def test_mistakes_are_named_with_their_place(transform, mistake):
    with pytest.raises(ConfigError) as caught:
        applied([b"{}"], transform)
    assert mistake in str(caught.value)


names = st.sampled_from(["a", "b", "c", "\u00e9"])
scalars = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=5)
documents = st.dictionaries(names, scalars | st.lists(scalars, max_size=2), max_size=4)
payload_lists = st.lists(
    documents.map(lambda one: json.dumps(one).encode()) | st.sampled_from(OTHERS), min_size=1, max_size=6
)


@settings(max_examples=60, deadline=None)
@given(payload_lists, st.booleans())
def test_several_in_a_row_give_what_one_after_the_other_gives(payloads, column):
    steps = [
        {"type": "update_fields", "fields": [{"key": "b", "value": {"static": 0}, "condition": "key_not_exists"}]},
        DROP_B,
        {"type": "filter", "field": "c", "value_pattern": "is_string", "action": "drop"},
        SET_A,
        {"type": "filter", "field": "a", "value_pattern": {"equals": "new"}},
    ]
    together = applied(payloads, *steps, column=column)
    one_by_one, numbers = list(payloads), list(range(1, len(payloads) + 1))
    for step in steps:
        if one_by_one:
            found = applied(one_by_one, step, column=column)
            numbers = [numbers[at - 1] for at in found.numbers]
            one_by_one = found.payloads
    assert (together.payloads, together.numbers) == (one_by_one, numbers)
    oracle = {}
    for number, payload in enumerate(payloads, 1):
        try:
            document = json.loads(payload)
        except ValueError:
            document = None
        if isinstance(document, dict) and not isinstance(document.get("c"), str):
            document.pop("b", None)
            oracle[number] = {**document, "a": "new"}
    assert {
        number: json.loads(payload) for number, payload in zip(together.numbers, together.payloads, strict=True)
    } == oracle


def test_the_names_that_are_remembered_take_little_memory():
    """Each record of a hostile object may have a name of a megabyte."""
    transform = FilterFields(FilterFieldsOptions(keep_fields=("id",)))
    transform._learn({"x" * 600_000 + str(at): 1 for at in range(2)}.keys())
    for at in range(100):
        transform._learn({f"{at}" * 300_000: 1, "id": 1}.keys())
        assert sum(map(len, transform._by_key)) < 3 << 20
    assert transform._by_key["id"]


ADD = {"type": "add_fields", "fields": [{"key": "k", "value": {"static": 0}}]}
"""Makes what stands before it look at whole documents."""

TWICE = [
    (b'{"a":1,"b":2,"a":3}', b'{"a":3,"b":2,"k":0}', b"3"),
    (b'{"a":1,"\\u0061":3}', b'{"a":3,"k":0}', b"3"),
    (b'{"a":1e400,"a":3}', b'{"a":3,"k":0}', b"3"),
    (b'{"a":"\xff","a":3}', b'{"a":3,"k":0}', b"3"),
]


@pytest.mark.parametrize(("payload", "changed", "inner"), TWICE)
def test_of_fields_with_one_name_the_last_counts_in_every_transform(apply, payload, changed, inner):
    equals = {"type": "filter", "field": "a", "value_pattern": {"equals": 3}}
    header = {"type": "headers", "headers": [{"name": "h", "field": "a"}]}
    key = {"type": "partition_by", "field": "a"}
    assert apply([payload], equals).payloads == [payload]
    assert apply([payload], equals, ADD).payloads == [changed]
    assert apply([payload], ADD, equals).payloads == [changed]
    assert apply([payload], {"type": "unwrap_envelope", "field": "a"}).payloads == [inner]
    for transforms in ([header], [header, ADD]):
        assert apply([payload], *transforms).headers == [{"h": 3}]
    alone = apply([b'{"a":3}'], key).run.batch.key_hashes.tolist()
    for transforms in ([key], [key, ADD]):
        assert apply([payload], *transforms).run.batch.key_hashes.tolist() == alone
    gone = apply([payload], {"type": "delete_fields", "fields": ["a"]}).payloads
    assert gone == ([b'{"b":2}'] if b'"b"' in payload else [b"{}"])


@pytest.mark.parametrize("payload", [b'{"\xff":1,"a":3}', b'{"x":2,"a":3,"n\xc3":1}'])
def test_a_name_that_is_not_utf8_makes_no_object_whether_fields_or_documents_are_read(apply, payload):
    equals = {"type": "filter", "field": "a", "value_pattern": {"equals": 3}}
    key = {"type": "partition_by", "field": "a"}
    good = b'{"a":3}'
    for transforms in ([equals], [equals, ADD], [ADD, equals]):
        assert apply([payload, good], *transforms).numbers == [2]
    for transforms in ([key], [key, ADD]):
        found = apply([payload, good], *transforms)
        assert (found.numbers, list(found.reasons)) == ([2], [1])
    assert apply([payload], ADD).payloads == [payload]


def test_a_value_that_is_not_utf8_leaves_the_other_fields_readable(apply):
    payload = b'{"x":"\xff","a":3}'
    equals = {"type": "filter", "field": "a", "value_pattern": {"equals": 3}}
    assert apply([payload], equals).payloads == [payload]
    assert apply([payload], equals, ADD).payloads == [b'{"x":"\xff","a":3,"k":0}']
