"""Envelopes and filters: whole records."""

import json
import time
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from framework.errors import ConfigError
from framework.transforms import documents
from framework.transforms.fields import DeleteFields
from framework.transforms.values import ValuePattern
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
    assert strict.reasons == {2: 'transforms[0] (unwrap_envelope): it has no field "payload"'}


def test_of_two_transforms_of_a_type_the_reason_names_the_one(apply):
    outer, inner = {**UNWRAP, "missing": "fail"}, {**UNWRAP, "field": "inner", "missing": "fail"}
    found = apply([b'{"payload":{"inner":1}}', b'{"payload":{}}', b"{}"], outer, inner)
    assert found.payloads == [b"1"]
    assert found.reasons == {
        2: 'transforms[1] (unwrap_envelope): it has no field "inner"',
        3: 'transforms[0] (unwrap_envelope): it has no field "payload"',
    }


def test_of_transforms_that_are_applied_as_one_the_reason_names_the_one(apply):
    at = {"type": "timestamp", "field": "at", "format": "seconds"}
    rest = [{"type": "delete_fields", "fields": ["at"], "enabled": False}, {**at, "field": "to"}]
    found = apply([b'{"at":1,"to":2}', b'{"at":"x","to":2}', b'{"at":1,"to":"x"}'], at, *rest)
    assert found.payloads == [b'{"at":1,"to":2}']
    assert found.reasons == {
        2: 'transforms[0] (timestamp): field "at" is no number of a time',
        3: 'transforms[2] (timestamp): field "to" is no number of a time',
    }
    named = {"type": "add_fields", "fields": [{"key": "id", "value": {"computed": "uuid_v4"}}]}
    assert apply([b'{"at":"x"}', b'{"at":1}'], named, at).reasons == {
        1: 'transforms[1] (timestamp): field "at" is no number of a time'
    }
    filters = [{"type": "filter", "field": field, "value_pattern": {"between": [1, 9]}} for field in "ab"]
    found = apply([b'{"a":1,"b":2}', b'{"a":1e400,"b":2}', b'{"a":1,"b":1e400}', b'{"a":0,"b":1e400}'], *filters)
    assert found.payloads == [b'{"a":1,"b":2}']
    assert [reason.partition(":")[0] for reason in found.reasons.values()] == [
        "transforms[0] (filter)",
        "transforms[1] (filter)",
    ]


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


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([-2.5, 0.0, 1.0, 2.5]) | st.sampled_from("abc"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
    max_leaves=3,
)
PATTERNS = (
    VALUES.filter(lambda value: value is not None).map(lambda value: ValuePattern(equals=value))
    | st.sampled_from("abc").map(lambda text: ValuePattern(contains=text))
    | st.integers(-3, 3).map(lambda limit: ValuePattern(greater_than=limit))
    | st.integers(-3, 3).map(lambda limit: ValuePattern(less_than=limit))
    | st.integers(-3, 3).map(lambda limit: ValuePattern(between=(limit, limit + 1)))
    | st.sampled_from(ValuePattern.FLAGS).map(lambda flag: ValuePattern(**{flag: True}))
)


@settings(deadline=None)
@given(st.lists(VALUES | st.just(documents.MISSING), max_size=8), PATTERNS)
def test_a_column_is_tested_as_each_of_its_values(values, pattern):
    matches = pattern.matcher()
    assert pattern.column_matcher()(values) == [
        matches(None if value is documents.MISSING else value) for value in values
    ]


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


fragments = st.sampled_from(
    [
        b'{"v":1',
        b'"v":2',
        b"}",
        b",",
        b'{"v":3}',
        b'{"v":4}{"v":5}',
        b"{}",
        b"[1]",
        b" ",
        b'{"v":"a"} ',
        b'{"v":1e400}',
        b"x",
    ]
)
ALL = [
    [UNWRAP | {"field": "v"}],
    [{"type": "filter", "field": "v", "value_pattern": {"greater_than": 2}}],
    [
        {"type": "headers", "headers": [{"name": "v", "field": "v"}]},
        {"type": "timestamp", "field": "v", "format": "millis"},
    ],
    [{"type": "delete_fields", "fields": ["v"]}],
    [
        {"type": "partition_by", "field": "v", "missing": "spread"},
        {"type": "filter", "field": "w", "value_pattern": "is_null"},
    ],
    [{"type": "filter_fields", "patterns": [{"value_pattern": "is_number"}]}],
    [
        {"type": "filter", "field": "v", "value_pattern": {"less_than": 4}},
        {"type": "timestamp", "field": "v", "format": "millis"},
        {"type": "headers", "headers": [{"name": "v", "field": "v"}]},
        {"type": "partition_by", "field": "v", "missing": "spread"},
        {"type": "delete_fields", "fields": ["v"]},
    ],
]


def outcome(found):
    hashes = found.run.batch.key_hashes
    extra = [found.headers, found.times, None if hashes is None else hashes.tolist()]
    rows = list(zip(found.payloads, *([None] * len(found.numbers) if column is None else column for column in extra)))  # noqa: B905
    return dict(zip(found.numbers, rows, strict=True)), found.reasons


@pytest.mark.parametrize("transforms", ALL, ids=lambda transforms: transforms[0]["type"])
@settings(deadline=None, max_examples=25)
@example([b'{"v":1,', b'"w":2}', b'{"v":3}{"v":4}', b'{"v":5}'], 64 * 1024)
@given(
    st.lists(st.lists(fragments, min_size=1, max_size=3).map(b"".join), min_size=1, max_size=6),
    st.sampled_from([1, 20, 64 * 1024]),
)
def test_no_record_depends_on_its_neighbours_or_on_the_form_of_its_batch(transforms, lines, document_bytes):
    with patch.object(documents, "DOCUMENT_BYTES", document_bytes):
        together = outcome(applied(lines, *transforms, column=True))
        assert together == outcome(applied(lines, *transforms))
    alone = [outcome(applied([line], *transforms, first=number)) for number, line in enumerate(lines, 1)]
    assert together == (
        {k: v for good, _ in alone for k, v in good.items()},
        {k: v for _, bad in alone for k, v in bad.items()},
    )


@pytest.mark.parametrize("column", [True, False])
def test_whole_documents_are_few_at_a_time(column, monkeypatch):
    """Thousands of them at once fall out of a core's cache, and their memory is given back each time."""
    seen = []
    change = DeleteFields.change
    monkeypatch.setattr(
        DeleteFields,
        "change",
        lambda self, documents, context: (seen.append(len(documents)), change(self, documents, context)),
    )
    lines = [b'{"id":%d,"note":"%s"}' % (number, b"x" * 200) for number in range(4000)]
    found = applied(lines, {"type": "delete_fields", "fields": ["note"]}, column=column)
    assert found.payloads == [b'{"id":%d}' % number for number in range(4000)]
    assert found.run.complete
    assert sum(seen) == 4000
    assert 1000 < max(seen) < 1300


def test_large_numbers_are_compared_exactly(apply):
    large = 2**53 + 1
    payloads = [b'{"v":%d}' % number for number in (large - 1, large, large + 1)]

    def kept(pattern):
        return apply(payloads, {"type": "filter", "field": "v", "value_pattern": pattern}).numbers

    assert kept({"greater_than": large}) == [3]
    assert kept({"less_than": large}) == [1]
    assert kept({"between": [large, large]}) == [2]
    assert kept({"greater_than": 10**400}) == []


@pytest.mark.parametrize("value", [b"1e400", b"-1e999", b"1" * 5000])
def test_a_value_that_cannot_be_read_is_never_taken_for_none(apply, value):
    payloads = [b'{"a":1,"b":2}', b'{"a":%b,"b":2}' % value, b'{"a":1,"b":2}']
    by_a = {"type": "filter", "field": "a", "value_pattern": {"equals": 1}}
    for transforms in ([by_a], [by_a, {"type": "add_fields", "fields": [{"key": "c", "value": {"static": 1}}]}]):
        found = apply(payloads, *transforms)
        assert found.numbers == [1, 3]
        assert 'field "a" cannot be read' in found.reasons[2]
    assert apply(payloads, {"type": "timestamp", "field": "a", "format": "millis", "missing": "ignore"}).numbers == [
        1,
        3,
    ]
    by_b = {"type": "filter", "field": "b", "value_pattern": {"equals": 2}}
    assert apply(payloads, by_b).numbers == [1, 2, 3]
    named = {"type": "headers", "headers": [{"name": "h", "field": "a"}]}
    found = apply(payloads, by_b, named)
    assert (found.numbers, list(found.bad)) == ([1, 3], [2])
    drop_a = {"type": "filter", "field": "b", "value_pattern": {"equals": 2}, "action": "drop"}
    assert apply(payloads, drop_a, named).numbers == []
    assert not apply(payloads, drop_a, named).bad


DELETE_W = {"type": "delete_fields", "fields": ["w"]}
MANY = b"[" + b"[]," * 500_000 + b"[]]"


@pytest.mark.parametrize(
    "transform",
    [
        DELETE_W,
        {"type": "filter", "field": "v", "value_pattern": "is_null"},
        {"type": "avro_convert", "source_format": "json", "target_format": "avro", "schema_json": '"long"'},
    ],
    ids=lambda transform: transform["type"],
)
def test_json_with_more_values_than_may_be_decoded_is_a_bad_record(transform):
    found = applied([b'{"v":%s}' % MANY], transform)
    assert len(found.payloads) == 0
    assert "its JSON has more than 1,000,000 commas and brackets" in found.reasons[1]


def test_what_decodes_nothing_takes_any_number_of_values():
    assert applied([b'{"v":%s}' % MANY], {"type": "json"}).payloads == [b'{"v":%s}' % MANY]


def test_the_records_around_such_json_pass():
    found = applied([b'{"v":1}', b'{"v":%s}' % MANY, b'{"v":"%s"}' % (b" " * len(MANY))], DELETE_W)
    assert (len(found.payloads), found.numbers, list(found.reasons)) == (2, [1, 3], [2])


SLOW = "a" * 60 + "!"
TOO_LONG = (
    "takes more than 0.5 seconds on a text of 61 characters; repeat nothing that matches the same text in several ways"
)


@pytest.mark.parametrize(
    ("transform", "option"),
    [
        ({"type": "filter", "field": "t", "value_pattern": {"regex": "(a|a)*$"}}, "value_pattern"),
        ({"type": "filter_fields", "patterns": [{"value_pattern": {"regex": "(a|a)*$"}}]}, "value_pattern"),
        ({"type": "filter_fields", "patterns": [{"key_pattern": {"regex": "(a|a)*$"}}]}, "key_pattern"),
    ],
)
def test_a_record_in_which_a_search_takes_too_long_is_bad(apply, transform, option):
    lines = [b'{"t":"fine"}'] * 40
    lines[7] = json.dumps({"t": SLOW, SLOW: 1}).encode()
    began = time.process_time()
    got = apply(lines, {"type": "add_fields", "fields": [{"key": "x", "value": {"static": 1}}]}, transform)
    assert time.process_time() - began < 5  # a search for each half of a batch would take longer
    place = f"transforms[1] ({transform['type']})"
    assert got.reasons == {8: f"{place}: {option}.regex {TOO_LONG}"}
    assert len(got.numbers) == 39


@pytest.mark.parametrize("name", ['size "in"', "back\\slash", "line\nfeed", 'outer "o".inner'])
@pytest.mark.parametrize("transforms", [ALL[1], ALL[2], ALL[4]], ids=lambda transforms: transforms[0]["type"])
def test_any_name_of_a_field_works(apply, transforms, name):
    """msgspec has no fields with such names."""
    values = [b"1", b"3", b"1700000000000", b'"x"', b"null"]
    renamed = {"field": name, "headers": [{"name": "v", "field": name}]}
    named = [
        one | {key: renamed[key] for key in renamed if key in one and one.get("field") != "w"} for one in transforms
    ]
    opening, closing = b"", b""
    for part in reversed(name.split(".")):
        opening, closing = b"{" + json.dumps(part).encode() + b":" + opening, closing + b"}"
    plain = apply([b'{"v":' + value + b"}" for value in values], *transforms)
    found = apply([opening + value + closing for value in values], *named)
    assert (found.numbers, found.headers, found.times) == (plain.numbers, plain.headers, plain.times)
    assert list(found.bad) == list(plain.bad)
    assert outcome(found)[1].keys() == outcome(plain)[1].keys()


def test_a_name_that_an_envelope_cannot_have_is_a_mistake():
    with pytest.raises(ConfigError, match="has a quotation mark, a backslash or a control character"):
        applied([b"{}"], UNWRAP | {"field": 'a "b"'})
