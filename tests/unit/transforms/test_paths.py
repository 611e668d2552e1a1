"""Names of fields with dots: a field at the top, or else a path through objects."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.transforms.conftest import applied

FOUND = [
    b'{"a":{"b":{"c":"x"}}}',
    b'{"n":[1],"a": {"z": 1, "b" : {"c" : "x"} } }',
    b'{"a.b.c":"x"}',
    b'{"a.b.c":"x","a":{"b":{"c":"y"}}}',  # the field at the top wins
    b'{"a":{"b":{"c":"y","c":"x"}}}',  # of two with one name the last
    b'{"a":{"b":{"c":"y"}},"a":{"b":{"c":"x"}}}',
    b'{"a":{"b":{"c":"y"},"b":{"c":"x"}}}',
    b'{"a":{"b":{"c":"x","d":1e400}}}',  # another field cannot be read
]
NOT_FOUND = [
    b"{}",
    b'{"a":null}',
    b'{"a":5}',
    b'{"a":"b"}',
    b'{"a":{}}',
    b'{"a":{"b":null}}',
    b'{"a":{"b":{}}}',
    b'{"a":{"b":{"c":null}}}',
    b'{"a":[{"b":{"c":"x"}}]}',
    b'{"a":{"b":[{"c":"x"}]}}',
    b'{"a":{"b.c":"x"}}',
    b'{"a.b":{"c":"x"}}',
    b'{"a":{"b":{"c":"x"}},"a":null}',
    b'{"a":{"b":{"c":"x"}},"a.b.c":null}',  # the field at the top wins, also when it is null
    b'{"a":{"b":{"c":"x"},"\xff":1}}',  # a name that is not UTF-8: no object, inside as at the top
    b"[1]",
    b"no JSON",
]
IS_X = {"type": "filter", "field": "a.b.c", "value_pattern": {"equals": "x"}}
ADD = {"type": "add_fields", "fields": [{"key": "n", "value": {"static": 1}}]}


@pytest.mark.parametrize("before", [[], [ADD]], ids=["columns", "documents"])
@pytest.mark.parametrize("alone", [False, True])
def test_a_filter_looks_at_a_path(apply, alone, before):
    lines = FOUND + NOT_FOUND
    if alone:  # each record for itself: no neighbour makes the batch take another way
        kept = [number for number, line in enumerate(lines, 1) if apply([line], *before, IS_X).numbers]
    else:
        kept = apply(lines, *before, IS_X).numbers
    assert kept == list(range(1, len(FOUND) + 1))


def test_headers_timestamps_and_keys_from_paths(apply):
    lines = [
        b'{"m":{"id":7,"at":1717156800},"m.id":"top"}',
        b'{"m":{"id":8,"at":1717156801}}',
        b'{"m":{"at":1717156802}}',
    ]
    found = apply(
        lines,
        {"type": "headers", "headers": [{"name": "id", "field": "m.id"}, {"name": "whole", "field": "m"}]},
        {"type": "timestamp", "field": "m.at", "format": "seconds"},
    )
    assert [headers.get("id") for headers in found.headers] == ["top", 8, None]
    assert found.headers[1]["whole"] == '{"id":8,"at":1717156801}'
    assert found.times == [1_717_156_800_000_000, 1_717_156_801_000_000, 1_717_156_802_000_000]

    keyed = apply(lines, {"type": "partition_by", "field": "m.id"})
    assert keyed.reasons == {3: 'transforms[0] (partition_by): field "m.id" is missing'}
    plain = apply([b'{"id":"top"}', b'{"id":8}'], {"type": "partition_by", "field": "id"})
    assert keyed.run.batch.key_hashes.tolist() == plain.run.batch.key_hashes.tolist()


def test_a_value_at_a_path_that_cannot_be_read_makes_the_record_bad(apply):
    found = apply([b'{"a":{"b":{"c":1e400}}}', FOUND[0]], IS_X)
    assert found.numbers == [2]
    assert found.reasons[1].startswith('transforms[0] (filter): field "a.b.c" cannot be read')


@pytest.mark.parametrize(
    ("line", "left"),
    [
        (b'{"x" : 1.50,"a":{"y":1E2,"b":{"c":"x", "d" : 1.0}}}', b'{"x":1.50,"a":{"y":1E2,"b":{"d":1.0}}}'),
        (b'{"a":{"b":{"c":"x"}}}', b'{"a":{"b":{}}}'),
        (b'{"a.b.c":1,"a":{"b":{"c":"x"}}}', b'{"a":{"b":{"c":"x"}}}'),
        (b'{"a":{"b":{"c":1,"d":2,"c":3}}}', b'{"a":{"b":{"d":2}}}'),
        *((line, line) for line in NOT_FOUND if b'"c"' not in line),
        (b'{"a":[{"b":{"c":"x"}}]}', b'{"a":[{"b":{"c":"x"}}]}'),
        (b'{"a":{"b":[ {"c":"x"} ]}}', b'{"a":{"b":[ {"c":"x"} ]}}'),
        (b'{"a":{ "b" : {"d" : 1} }}', b'{"a":{ "b" : {"d" : 1} }}'),  # not there: the object keeps its bytes
    ],
)
def test_a_field_inside_is_deleted_and_the_others_keep_their_bytes(apply, line, left):
    assert apply([line], {"type": "delete_fields", "fields": ["a.b.c"]}).payloads == [left]


@pytest.mark.parametrize("line", FOUND)
def test_the_value_at_a_path_becomes_the_payload(apply, line):
    assert apply([line], {"type": "unwrap_envelope", "field": "a.b.c"}).payloads == [b'"x"']


@pytest.mark.parametrize("line", [line for line in NOT_FOUND if b"null}" not in line or b'"c"' not in line])
def test_a_payload_without_the_path_is_no_envelope(apply, line):
    transform = {"type": "unwrap_envelope", "field": "a.b.c"}
    assert apply([line], transform).payloads == [line]
    assert apply([line], {**transform, "missing": "fail"}).reasons == {
        1: 'transforms[0] (unwrap_envelope): it has no field "a.b.c"'
    }


NAMES = st.sampled_from(["a", "b", "", "a.b", "b.a", "."])
VALUES = st.recursive(
    st.none() | st.sampled_from(["x", 1, True]),
    lambda inner: st.dictionaries(NAMES, inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=6,
)


def looked_up(document, field):
    """The oracle."""
    if field in document:
        return document[field]
    value = document
    for name in field.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


@given(
    st.lists(st.dictionaries(NAMES, VALUES, max_size=4), min_size=1, max_size=5),
    st.sampled_from(["a", "a.b", "b.a", "a.a", "a.b.a", "a.", ".", ".a"]),
    st.booleans(),
)
def test_any_path_against_an_oracle(documents, field, column):
    lines = [json.dumps(document).encode() for document in documents]
    transform = {"type": "filter", "field": field, "value_pattern": {"equals": "x"}}
    wanted = [number for number, document in enumerate(documents, 1) if looked_up(document, field) == "x"]
    assert applied(lines, transform, column=column).numbers == wanted
    assert applied(lines, ADD | {"fields": [{"key": "new", "value": {"static": 1}}]}, transform).numbers == wanted
