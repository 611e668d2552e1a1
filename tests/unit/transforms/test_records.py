"""Envelopes and filters: whole records."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.errors import ConfigError
from tests.unit.transforms.conftest import applied

UNWRAP = {"type": "unwrap_envelope", "field": "payload"}


@pytest.mark.parametrize(
    "value", [b'{"x": 1, "y":"z"}', b'"text"', b"[1, 2]", b"17.50", b"null", b"true", b'{"payload":{"payload":1}}']
)
def test_the_field_becomes_the_payload_byte_for_byte(apply, value):
    payloads = [b'{"offset":1,"payload":%s}' % value, b'{"payload" : %s , "z":[{}]}' % value]
    assert apply(payloads, UNWRAP).payloads == [value, value]


@pytest.mark.parametrize("payload", [b'{"other":1}', b"{}", b"[1]", b"no json", b'{"payload":', b"7", b"\xff", b" "])
def test_an_envelope_without_the_field_passes_or_is_bad(apply, payload):
    payloads = [b'{"payload":1}', payload, b'{"payload":3}']
    assert apply(payloads, UNWRAP).payloads == [b"1", payload, b"3"]
    strict = apply(payloads, {**UNWRAP, "missing": "fail"})
    assert (strict.payloads, strict.numbers) == ([b"1", b"3"], [1, 3])
    assert strict.bad[2].raw == payload
    assert strict.reasons == {2: 'unwrap_envelope: it has no field "payload"'}


def test_a_value_with_line_feeds_inside():
    assert applied([b'{"payload":{\n"x":1}}'], UNWRAP).payloads == [b'{\n"x":1}']


def test_nested_envelopes(apply):
    assert apply([b'{"data":{"payload":[1]}}'], {**UNWRAP, "field": "data"}, UNWRAP).payloads == [b"[1]"]


RECORDS = [
    b'{"v":"text"}',
    b'{"v":5}',
    b'{"v":5.0}',
    b'{"v":true}',
    b'{"v":null}',
    b'{"v":[1]}',
    b'{"v":{"x":1}}',
    b'{"w":1}',
    b"[5]",
    b"no json",
    b'{"v":"6"}',
    b'{"v":1}',
]


@pytest.mark.parametrize(
    ("pattern", "kept"),
    [
        ({"equals": 5}, [2, 3]),
        ({"equals": 1}, [12]),
        ({"equals": True}, [4]),
        ({"equals": "text"}, [1]),
        ({"equals": {"x": 1}}, [7]),
        ({"contains": "ex"}, [1]),
        ({"regex": "^[0-9]$"}, [11]),
        ({"greater_than": 4.5}, [2, 3]),
        ({"less_than": 5}, [12]),
        ({"between": [1, 5]}, [2, 3, 12]),
        ("is_null", [5, 8, 9, 10]),
        ("is_not_null", [1, 2, 3, 4, 6, 7, 11, 12]),
        ("is_string", [1, 11]),
        ("is_number", [2, 3, 12]),
        ("is_boolean", [4]),
        ("is_object", [7]),
        ("is_array", [6]),
    ],
)
def test_a_filter_keeps_or_drops_what_matches(apply, pattern, kept):
    options = {"type": "filter", "field": "v", "value_pattern": pattern}
    found = apply(RECORDS, options)
    assert found.numbers == kept
    assert found.payloads == [RECORDS[number - 1] for number in kept]
    assert (found.run.filtered, found.bad) == (len(RECORDS) - len(kept), {})
    dropped = apply(RECORDS, {**options, "action": "drop"})
    assert sorted([*dropped.numbers, *kept]) == list(range(1, len(RECORDS) + 1))


def test_a_filter_in_front_of_a_change_sees_the_same_values(apply):
    keep = {"type": "filter", "field": "v", "value_pattern": {"between": [1, 5]}}
    add = {"type": "add_fields", "fields": [{"key": "a", "value": {"static": 1}}]}
    assert apply(RECORDS, keep, add).numbers == apply(RECORDS, keep).numbers == [2, 3, 12]


def test_a_filter_can_drop_everything(apply):
    found = apply(RECORDS, {"type": "filter", "field": "none", "value_pattern": "is_not_null"})
    assert (found.payloads, found.numbers, found.run.filtered) == ([], [], len(RECORDS))


@settings(deadline=None)
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=20), st.integers(-5, 5), st.booleans())
def test_a_filter_against_an_oracle(values, limit, column):
    payloads = [json.dumps({"other": "x", "v": value}).encode() for value in values]
    found = applied(payloads, {"type": "filter", "field": "v", "value_pattern": {"greater_than": limit}}, column=column)
    assert found.numbers == [number for number, value in enumerate(values, 1) if value > limit]


@pytest.mark.parametrize(
    ("options", "mistake"),
    [
        ({}, "transforms[0].field: missing"),
        ({"field": "v"}, "transforms[0].value_pattern: missing"),
        ({"field": "v", "value_pattern": {}}, "value_pattern.equals: missing; give one of"),
        ({"field": "v", "value_pattern": {"equals": 1, "contains": "x"}}, "contains: equals is there too"),
        ({"field": "v", "value_pattern": "is_null", "action": "keeps"}, 'did you mean "keep"?'),
        ({"field": "v", "value_pattern": {"greater_than": "5"}}, "must be a number"),
    ],
)
def test_mistakes_of_a_filter(options, mistake):
    with pytest.raises(ConfigError) as caught:
        applied([b"{}"], {"type": "filter", **options})
    assert mistake in str(caught.value)
