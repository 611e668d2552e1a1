"""Avro, Protobuf and converters: there and back, and payloads that do not fit."""

import io
import json
import os
from pathlib import Path

import fastavro
import pytest
from google.protobuf import any_pb2, descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.errors import ConfigError
from framework.transforms import unions
from tests.unit.transforms.conftest import applied

SCHEMA = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "who", "type": ["null", "string"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
TO_AVRO = {"type": "avro_convert", "source_format": "json", "target_format": "avro", "schema_json": json.dumps(SCHEMA)}
TO_JSON = {"type": "avro_convert", "schema_json": json.dumps(SCHEMA)}


def datum(value, schema=SCHEMA):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


orders = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "who": st.none() | st.text(max_size=5),
        "tags": st.lists(st.text(max_size=3)),
    }
)


@settings(deadline=None, max_examples=50)
@given(st.lists(orders, min_size=1, max_size=5))
def test_json_to_avro_and_back(values):
    payloads = [json.dumps(value).encode() for value in values]
    encoded = applied(payloads, TO_AVRO)
    assert encoded.payloads == [datum(value) for value in values]
    assert [json.loads(one) for one in applied(encoded.payloads, TO_JSON).payloads] == values


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (["float", "int"], 31_383_203),
        (["double", "null", "long"], 2**60 + 1),
        (["null", "double", {"type": "long", "doc": "x"}], -(2**63)),
        ({"type": "array", "items": ["float", "long"]}, [1, 2.5, 2**60 + 1]),
    ],
)
def test_a_whole_number_in_a_union_is_not_rounded_to_a_float(kind, value):
    """fastavro takes the first branch that a number fits, with fewer digits than the number has."""
    schema = json.dumps({"type": "record", "name": "r", "fields": [{"name": "x", "type": kind}]})
    encoded = applied([json.dumps({"x": value}).encode()], {**TO_AVRO, "schema_json": schema})
    found = applied(encoded.payloads, {**TO_JSON, "schema_json": schema})
    assert found.payloads == [json.dumps({"x": value}, separators=(",", ":")).encode()]


@pytest.mark.parametrize("value", [1e300, -3.5e38, 10**39])
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [1.5, value], lambda value: {"a": value}])
def test_a_number_beyond_a_float_is_bad_and_not_infinite(value, wrap):
    kinds = ["float", {"type": "array", "items": "float"}, {"type": "map", "values": "float"}]
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": kinds}]}
    good = json.dumps({"x": wrap(3.4e38)}).encode()
    found = applied(
        [good, json.dumps({"x": wrap(value)}).encode(), good], {"type": "avro", "schema_json": json.dumps(schema)}
    )
    assert found.numbers == [1, 3]
    assert found.reasons[2] == "transforms[0] (avro): it holds a number that is too large for Avro's float"


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b'{"id":"secret","tags":[]}', "it does not fit the schema: order.id must be long"),
        (b'{"tags":[]}', "it does not fit the schema: order.id must be long"),
        (b'{"id":1,"who":5,"tags":[]}', "it does not fit the schema: order.who must be null or string"),
        (b'{"id":1,"tags":["a",{"secret":1}]}', "it does not fit the schema: order.tags must be string"),
        (b'{"id":1,"tags":5}', "it does not fit the schema: order.tags must be array"),
        (b"[1]", "it does not fit the schema: it must be order"),
        (b'{"id":1,"tags":[],"secret":5}', "it has a field that the schema lacks, or lacks one without a default"),
        (b"no json", "it is no JSON"),
    ],
)
def test_json_that_does_not_fit_the_schema_is_bad_and_the_field_is_named(apply, payload, reason):
    good = b'{"id":1,"who":"ann","tags":["a"]}'
    found = apply([good, payload, good], TO_AVRO)
    assert found.numbers == [1, 3]
    assert found.bad[2].raw == payload
    assert found.reasons[2] == f"transforms[0] (avro_convert): {reason}"


UUID = {"type": "string", "logicalType": "uuid"}


@pytest.mark.parametrize(
    ("kind", "wrap", "named"),
    [
        (UUID, lambda text: text, "uuid"),
        (["null", UUID], lambda text: text, "null or uuid"),
        ({"type": "array", "items": ["float", "long", UUID]}, lambda text: [1, text], "float or long or uuid"),
        ({"type": "map", "values": UUID}, lambda text: {"a": text}, "uuid"),
    ],
)
def test_json_that_is_no_uuid_is_bad_where_the_schema_says_uuid(kind, wrap, named):
    """fastavro writes any value as text, which readers of Avro refuse."""
    schema = json.dumps({"type": "record", "name": "r", "fields": [{"name": "x", "type": kind}]})
    good = ["6ba7b810-9dad-11d1-80b4-00c04fd430c8", "6BA7B810-9DAD-11D1-80B4-00C04FD430C8"]
    bad = ["", "6ba7b8109dad11d180b400c04fd430c8", f"{{{good[0]}}}", f"{good[0]}\n", {}, "\uff10" + good[0][1:]]
    records = [json.dumps({"x": wrap(value)}).encode() for value in [*good, *bad]]
    found = applied(records, {**TO_AVRO, "schema_json": schema})
    assert found.numbers == [1, 2]
    assert set(found.reasons.values()) == {
        f"transforms[0] (avro_convert): it does not fit the schema: r.x must be {named}"
    }
    back = applied(found.payloads, {**TO_JSON, "schema_json": schema})
    assert list(map(json.loads, back.payloads)) == [{"x": wrap(value)} for value in good]


def test_json_that_is_no_uuid_is_bad_in_a_schema_that_holds_itself():
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": ["null", UUID, "r"]}]}
    good = {"x": {"x": "6ba7b810-9dad-11d1-80b4-00c04fd430c8"}}
    found = applied(
        [json.dumps(value).encode() for value in (good, {"x": {"x": "x"}}, {"x": {"x": None}})],
        {**TO_AVRO, "schema_json": json.dumps(schema)},
    )
    assert found.numbers == [1, 3]


@pytest.mark.parametrize(("kind", "day"), [("int", 86_400_000), ("long", 86_400_000_000)])
@pytest.mark.parametrize("wrap", [lambda kind: kind, lambda kind: ["null", kind]])
def test_json_that_is_no_time_of_day_is_bad_where_the_schema_says_so(kind, day, wrap):
    """Readers of Avro refuse such a number, or make another time of it."""
    logical = {"int": "time-millis", "long": "time-micros"}[kind]
    field = {"name": "x", "type": wrap({"type": kind, "logicalType": logical})}
    schema = json.dumps({"type": "record", "name": "r", "fields": [field]})
    values = [0, day - 1, -1, day, True, 1.5]
    found = applied([json.dumps({"x": value}).encode() for value in values], {**TO_AVRO, "schema_json": schema})
    assert found.numbers == [1, 2]
    assert all(reason.endswith(f"{logical}") for reason in found.reasons.values())
    assert len(applied(found.payloads, {**TO_JSON, "schema_json": schema}).payloads) == 2


@pytest.mark.parametrize("text", ["6BA7B810-9DAD-11D1-80B4-00C04FD430C8", "6ba7b8109dad11d180b400c04fd430c8", "x"])
def test_the_text_of_a_uuid_is_sent_as_it_is_in_avro(text):
    """As from an Avro file. An invalid one is text: Avro's specification ignores a logical type that does not fit."""
    out = io.BytesIO()
    fastavro.schemaless_writer(
        out, {"type": "record", "name": "r", "fields": [{"name": "x", "type": "string"}]}, {"x": text}
    )
    schema = json.dumps({"type": "record", "name": "r", "fields": [{"name": "x", "type": ["null", UUID]}]})
    plain = json.dumps({"type": "record", "name": "r", "fields": [{"name": "x", "type": UUID}]})
    assert applied([out.getvalue()], {**TO_JSON, "schema_json": plain}).payloads == [b'{"x":"%b"}' % text.encode()]
    in_union = b"\x02" + out.getvalue()
    assert applied([in_union], {**TO_JSON, "schema_json": schema}).payloads == [b'{"x":"%b"}' % text.encode()]


@pytest.mark.parametrize("payload", [b"\x02", datum({"id": 1, "who": None, "tags": []}) + b"x", b"\xff" * 9])
def test_avro_that_does_not_fit_the_schema_is_bad(payload):
    found = applied([datum({"id": 1, "who": "b", "tags": []}), payload], TO_JSON)
    assert (found.numbers, list(found.bad)) == ([1], [2])


def record_of(kind):
    return {"type": "record", "name": "r", "fields": [{"name": "f", "type": kind}]}


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("boolean", ["true"], ['"no"', "1", "null", "[]"]),
        ("int", ["5"], ["true", "1.5", "3000000000"]),
        ("long", ["3000000000"], ["true", "1.5", "9223372036854775808"]),
        ("double", ["1", "1.5"], ["true", '"12"']),
        ("null", [], ["5"]),
        ({"type": "array", "items": "string"}, ['["ab"]'], ['"ab"', '{"a":1}']),
        ({"type": "map", "values": "int"}, ['{"a":1}'], ["[]"]),
    ],
)
def test_json_is_never_cast_to_the_type_of_a_schema(kind, good, bad):
    schema = record_of(kind)
    transform = {**TO_AVRO, "schema_json": json.dumps(schema)}
    found = applied([f'{{"f":{value}}}'.encode() for value in (*good, *bad)], transform)
    assert found.payloads == [datum({"f": json.loads(value)}, schema) for value in good]
    assert sorted(found.bad) == list(range(len(good) + 1, len(good) + len(bad) + 1))


NODE = {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}


@pytest.mark.parametrize(
    ("schema", "payload", "reason"),
    [
        (NODE, b"\x02" * 1_000_000 + b"\x00", "more than 250 levels deep"),
        ({"type": "array", "items": "null"}, b"\x80\x80\x80\x80\x80\x01\x00", "bytes of memory"),
        (["null", "int"], b"\x01\x02", "(KeyError)"),
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, b"\x01", "(KeyError)"),
    ],
    ids=["nested", "without end", "branch -1", "symbol -1"],
)
def test_a_datum_takes_no_more_than_in_a_file(schema, payload, reason):
    good = datum({"n": {"n": None}}, schema) if schema is NODE else b"\x00"
    found = applied([good, payload, good], {"type": "avro_convert", "schema_json": json.dumps(schema)})
    assert found.numbers == [1, 3]
    assert reason in found.reasons[2]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (["null", "long"], 5),
        ("string", "a"),
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "B"),
        (NODE, {"n": None}),
    ],
)
def test_a_datum_of_any_type(schema, value):
    transform = {"type": "avro_convert", "schema_json": json.dumps(schema)}
    assert json.loads(applied([datum(value, schema)], transform).payloads[0]) == value


def test_fields_get_other_names():
    found = applied([datum({"id": 1, "who": "b", "tags": []})], {**TO_JSON, "field_mappings": {"who": "customer"}})
    assert json.loads(found.payloads[0]) == {"id": 1, "customer": "b", "tags": []}
    back = applied([b'{"id":1,"customer":"b","tags":[]}'], {**TO_AVRO, "field_mappings": {"customer": "who"}})
    assert back.payloads == [datum({"id": 1, "who": "b", "tags": []})]


@pytest.mark.parametrize("mappings", [{"who": "id"}, {"who": "name", "id": "name"}])
def test_two_fields_that_would_get_one_name_make_the_record_bad(mappings):
    """One of the two would be lost."""
    value = {"id": 1, "who": "b", "tags": []}
    for payload, transform in ((datum(value), TO_JSON), (json.dumps(value).encode(), TO_AVRO)):
        found = applied([payload], {**transform, "field_mappings": mappings})
        assert not found.payloads
        assert "field_mappings gives two of its fields one name" in found.reasons[1]
    swapped = applied([datum(value)], {**TO_JSON, "field_mappings": {"who": "id", "id": "who"}})
    assert json.loads(swapped.payloads[0]) == {"who": 1, "id": "b", "tags": []}


def test_a_schema_in_a_file(tmp_path):
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(SCHEMA))
    value = {"id": 5, "who": None, "tags": ["x"]}
    transform = {"type": "avro", "schema_path": str(path)}
    assert applied([json.dumps(value).encode()], transform).payloads == [datum(value)]


def test_values_that_json_does_not_have():
    schema = {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "raw", "type": "bytes"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        ],
    }
    payload = datum({"raw": b"\xff", "at": 0}, schema)
    (found,) = applied([payload], {"type": "avro_convert", "schema_json": json.dumps(schema)}).payloads
    assert json.loads(found) == {"raw": "\u00ff", "at": "1970-01-01T00:00:00+00:00"}


@pytest.mark.parametrize(
    ("kind", "good"),
    [
        ({"type": "int", "logicalType": "time-millis"}, {0: "00:00:00", 86_399_999: "23:59:59.999000"}),
        ({"type": "long", "logicalType": "time-micros"}, {1: "00:00:00.000001", 86_399_999_999: "23:59:59.999999"}),
    ],
    ids=["millis", "micros"],
)
@pytest.mark.parametrize("inside", [lambda kind: kind, lambda kind: ["null", kind]], ids=["plain", "union"])
def test_a_number_that_is_no_time_of_day_is_bad_and_becomes_no_other_time(kind, good, inside):
    schema = {"type": "record", "name": "r", "fields": [{"name": "at", "type": inside(kind)}]}
    plain = {"type": "record", "name": "r", "fields": [{"name": "at", "type": inside(kind["type"])}]}
    numbers = [-1, *good, -1001, max(good) + 1]
    transform = {"type": "avro_convert", "schema_json": json.dumps(schema)}
    found = applied([datum({"at": number}, plain) for number in numbers], transform)
    assert [json.loads(payload)["at"] for payload in found.payloads] == list(good.values())
    assert set(found.reasons) == {1, 4, 5}
    assert "no time of day" in found.reasons[1]


MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
FIXED_MONEY = {"type": "fixed", "name": "F", "size": 9, "logicalType": "decimal", "precision": 10, "scale": 2}


@pytest.mark.parametrize(
    ("schema", "wrap"),
    [
        (MONEY, lambda text: text),
        (FIXED_MONEY, lambda text: text),
        (["null", MONEY], lambda text: text),
        ({"type": "array", "items": MONEY}, lambda text: [text]),
        ({"type": "map", "values": ["null", FIXED_MONEY]}, lambda text: {"k": text}),
        (
            {"type": "record", "name": "r", "fields": [{"name": "a", "type": FIXED_MONEY}, {"name": "b", "type": "F"}]},
            lambda text: {"a": text, "b": text},
        ),
    ],
    ids=["bytes", "fixed", "union", "array", "map", "name"],
)
@pytest.mark.parametrize(
    ("unscaled", "text"),
    [(12345678901234567890, "123456789012345678.90"), (-5, "-0.05"), (0, "0.00"), (10**12, "10000000000.00")],
)
def test_decimals_are_exact_whatever_precision_the_schema_claims(schema, wrap, unscaled, text):
    wide = json.loads(json.dumps(schema).replace('"logicalType": "decimal", ', ""))
    payload = datum(wrap(unscaled.to_bytes(9, "big", signed=True)), wide)
    (found,) = applied([payload], {"type": "avro_convert", "schema_json": json.dumps(schema)}).payloads
    assert json.loads(found) == wrap(text)


@pytest.mark.parametrize("wrapped", [True, False], ids=["alone", "in a record"])
def test_a_decimal_that_would_take_minutes_is_a_bad_record(wrapped):
    schema = MONEY if wrapped else {"type": "record", "name": "r", "fields": [{"name": "a", "type": MONEY}]}
    payloads = [datum(value, "bytes") for value in (bytes(4096), b"\x01" * 4097, b"\x05")]
    found = applied(payloads, {"type": "avro_convert", "schema_json": json.dumps(schema)})
    assert found.numbers == [1, 3]
    assert found.reasons[2] == "transforms[0] (avro_convert): a decimal of more than 4096 bytes"


@pytest.fixture
def descriptors(tmp_path):
    """A descriptor set with `shop.Order { int64 id = 1; string who = 2; repeated string tag_list = 3; }`."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    field = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind, label) in enumerate(
        [
            ("id", field.TYPE_INT64, field.LABEL_OPTIONAL),
            ("who", field.TYPE_STRING, field.LABEL_OPTIONAL),
            ("tag_list", field.TYPE_STRING, field.LABEL_REPEATED),
        ],
        1,
    ):
        message.field.add(name=name, number=number, type=kind, label=label)
    parent = {"type": field.TYPE_MESSAGE, "type_name": ".shop.Order", "label": field.LABEL_OPTIONAL}
    message.field.add(name="parent_order", number=4, **parent)
    path = tmp_path / "shop.pb"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    return str(path)


def test_protobuf_there_and_back(descriptors):
    names = {"descriptor_set_path": descriptors, "message_type": "shop.Order"}
    to_proto = {"type": "proto_convert", "source_format": "json", "target_format": "proto", **names}
    encoded = applied([b'{"id":"5","who":"ann","tag_list":["x"]}', b'{"id":"x"}', b"no json"], to_proto)
    assert encoded.payloads == [b"\x08\x05\x12\x03ann\x1a\x01x"]
    assert sorted(encoded.bad) == [2, 3]
    decoded = applied([*encoded.payloads, b"\xff\xff"], {"type": "proto_convert", **names})
    assert [json.loads(one) for one in decoded.payloads] == [{"id": "5", "who": "ann", "tag_list": ["x"]}]
    assert list(decoded.bad) == [2]
    camel = applied(encoded.payloads, {"type": "proto_convert", **names, "preserve_names": False})
    assert "tagList" in json.loads(camel.payloads[0])


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b'{"id":"secret"}', "its field id does not fit the message"),
        (b'{"tagList":["a",["secret"]]}', "its field tag_list does not fit the message"),
        (
            b'{"parentOrder":{"parent_order":{"id":1.5}}}',
            "its field parent_order.parent_order.id does not fit the message",
        ),
        (b'{"parent_order":{"secret":1}}', "its field parent_order does not fit the message"),
        (b'{"secret":1}', "it does not fit the message"),
        (b'["secret"]', "it does not fit the message"),
        (b"no json", "it is no JSON"),
    ],
)
def test_json_that_does_not_fit_a_message_is_bad_and_its_field_is_named(descriptors, payload, reason):
    names = {"descriptor_set_path": descriptors, "message_type": "shop.Order"}
    found = applied([payload], {"type": "proto_convert", "source_format": "json", "target_format": "proto", **names})
    assert found.reasons == {1: f"transforms[0] (proto_convert): {reason}"}


@pytest.fixture
def numbers_and_bytes(tmp_path):
    """A descriptor set with `p.M`: bytes and numbers of 64 bits, alone, repeated, in a map, in a message, and wrapped."""
    from google.protobuf import descriptor_pb2, wrappers_pb2

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package="p", syntax="proto3")
    file.dependency.append("google/protobuf/wrappers.proto")
    message = file.message_type.add(name="M")
    entry = message.nested_type.add(name="NamedEntry")
    entry.options.map_entry = True
    for number, (name, kind) in enumerate((("key", field.TYPE_STRING), ("value", field.TYPE_BYTES)), 1):
        entry.field.add(name=name, number=number, type=kind, label=field.LABEL_OPTIONAL)
    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    for number, (name, kind, label, type_name) in enumerate(
        [
            ("raw", field.TYPE_BYTES, one, None),
            ("raw_list", field.TYPE_BYTES, many, None),
            ("named", field.TYPE_MESSAGE, many, ".p.M.NamedEntry"),
            ("inner", field.TYPE_MESSAGE, one, ".p.M"),
            ("wrapped", field.TYPE_MESSAGE, one, ".google.protobuf.BytesValue"),
            ("wrapped_id", field.TYPE_MESSAGE, one, ".google.protobuf.Int64Value"),
            ("id", field.TYPE_INT64, one, None),
            ("ids", field.TYPE_FIXED64, many, None),
            ("ratio", field.TYPE_DOUBLE, one, None),
        ],
        1,
    ):
        message.field.add(name=name, number=number, type=kind, label=label, type_name=type_name)
    wrappers = descriptor_pb2.FileDescriptorProto()
    wrappers_pb2.DESCRIPTOR.CopyToProto(wrappers)
    path = tmp_path / "m.pb"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[wrappers, file]).SerializeToString())
    return {"descriptor_set_path": str(path), "message_type": "p.M"}


@pytest.mark.parametrize("bad", ["!!!!", "AA AA", "AAA\u00e9A", "plain text", "A", "AA=A", "AAAAA", "AA==="])
@pytest.mark.parametrize(
    ("field", "wrap"),
    [
        ("raw", lambda text: {"raw": text}),
        ("rawList", lambda text: {"rawList": ["AP8=", text]}),
        ("named", lambda text: {"named": {"a": "AP8=", "b": text}}),
        ("raw", lambda text: {"inner": {"inner": {"raw": text}}}),
        ("wrapped", lambda text: {"wrapped": text}),
    ],
)
def test_bytes_that_are_no_base64_are_bad_and_not_cut(numbers_and_bytes, bad, field, wrap):
    """The library drops the characters that are none of base64, and what is left becomes other bytes."""
    to_proto = {"type": "proto_convert", "source_format": "json", "target_format": "proto", **numbers_and_bytes}
    good = [json.dumps(wrap(text)).encode() for text in ("AP8=", "AP8", "-_8=", "+/8")]
    found = applied([json.dumps(wrap(bad)).encode(), *good], to_proto)
    assert found.numbers == [2, 3, 4, 5]
    reasons = (f"its field {field} is not base64", "does not fit the message")
    assert found.reasons[1].endswith(reasons)


@pytest.mark.parametrize("bad", ["9007199254740993.0", "4.611686018427387905e18", '"9007199254740993.0"'])
@pytest.mark.parametrize("wrap", ['{"id":%s}', '{"ids":[1,%s]}', '{"inner":{"id":%s}}', '{"wrapped_id":%s}'])
def test_a_whole_number_whose_digits_a_double_cannot_hold_is_bad(numbers_and_bytes, bad, wrap):
    to_proto = {"type": "proto_convert", "source_format": "json", "target_format": "proto", **numbers_and_bytes}
    good = ["9007199254740993", '"9223372036854775807"', "1e2", "5.0", "7"]
    found = applied([(wrap % number).encode() for number in (bad, *good)], to_proto)
    assert found.numbers == [2, 3, 4, 5, 6]
    assert "without fraction or exponent" in found.reasons[1] or "does not fit the message" in found.reasons[1]
    (back,) = applied(found.payloads[:1], {"type": "proto_convert", **numbers_and_bytes}).payloads
    assert b"9007199254740993" in back
    assert (
        len(applied([b'{"ratio":4.611686018427387905e18}', b'{"raw":null,"id":null,"ratio":1}'], to_proto).payloads)
        == 2
    )


@pytest.mark.parametrize(
    ("kind", "options", "cases"),
    [
        ("json", {}, [(b'{"a": 1}', b'{"a": 1}'), (b"text", b'"text"'), (b"5", b"5"), (b"\xff", None)]),
        (
            "text",
            {},
            [(b'"a\\nb"', b"a\nb"), (b'{"a":1}', b'{"a":1}'), (b'"open', b'"open'), (b"\xff", None), (b'""', None)],
        ),
        (
            "text",
            {},
            [(b' \t"a"', b"a"), (b'"a" ', b"a"), (b' {"a":1}', b' {"a":1}'), (b' "open', b' "open'), (b" ", b" ")],
        ),
        ("raw", {}, [(b"\xff\x00", b"\xff\x00")]),
        (
            "raw",
            {"encoding": "base64"},
            [
                (b"AAH/", b"\x00\x01\xff"),
                (b'"AAH/"', b"\x00\x01\xff"),
                (b' "AAH\\/" ', b"\x00\x01\xff"),
                *((wrong, None) for wrong in (b"A!", b'""', b'"AAH/', b'""AAH/""', b"\xff", b'"\xc3\xa9"')),
            ],
        ),
    ],
)
def test_converters(kind, options, cases):
    found = applied([payload for payload, _ in cases], {"type": kind, **options})
    assert found.payloads == [wanted for _, wanted in cases if wanted is not None]
    assert sorted(found.bad) == [number for number, (_, wanted) in enumerate(cases, 1) if wanted is None]


@pytest.mark.parametrize(
    ("transforms", "mistake"),
    [
        ([{"type": "avro_convert"}], "schema_json: give either schema_json or schema_path"),
        ([{"type": "avro_convert", "schema_json": "{", "schema_path": "x"}], "give either"),
        (
            [{"type": "avro", "schema_json": '{"type":\n "record",}'}],
            "transforms[0].schema_json: is no Avro schema: its JSON is wrong at line 2, column 1",
        ),
        (
            [{"type": "avro", "schema_json": '{"type":"array","items":"strng"}'}],
            'transforms[0].schema_json: is no Avro schema: it has the unknown type "strng"',
        ),
        ([{"type": "avro", "schema_json": '{"type":"record"}'}], "is no Avro schema (SchemaParseException)"),
        ([{"type": "avro", "schema_path": "/none/x.avsc"}], "schema_path: cannot be read: No such file"),
        ([{**TO_JSON, "source_format": "json"}], 'target_format: is "json", as source_format'),
        ([{"type": "proto_convert", "message_type": "x"}], "descriptor_set_path: missing"),
        (
            [{"type": "proto_convert", "message_type": "x", "descriptor_set_path": "/none/x.pb"}],
            "descriptor_set_path: cannot be read",
        ),
        ([{"type": "json"}, {"type": "delete_fields", "fields": ["a"]}], "transforms[0] (json): is a converter"),
    ],
)
def test_mistakes_of_conversions(transforms, mistake):
    with pytest.raises(ConfigError) as caught:
        applied([b"{}"], *transforms)
    assert mistake in str(caught.value)


@pytest.mark.parametrize(
    ("transform", "mistakes"),
    [
        ({"type": "proto_convert"}, ["descriptor_set_path: missing", "message_type: missing"]),
        ({"type": "proto_convert", "message_type": "x"}, ["descriptor_set_path: missing"]),
        ({"type": "avro", "schema_json": 5}, ["schema_json = 5: must be text in quotes"]),
        ({"type": "avro", "schema_path": 5}, ["schema_path = 5: must be text in quotes"]),
    ],
)
def test_a_value_that_is_missing_or_wrong_is_one_mistake(transform, mistakes):
    with pytest.raises(ConfigError) as caught:
        applied([b"{}"], transform)
    assert list(caught.value.mistakes) == [f"transforms[0].{mistake}" for mistake in mistakes]


@pytest.mark.parametrize(
    "transform",
    [
        {"type": "avro", "schema_path": "schema"},
        {"type": "proto_convert", "message_type": "x", "descriptor_set_path": "schema"},
    ],
)
def test_a_schema_is_a_file_that_ends(transform, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("schema")
    with pytest.raises(ConfigError, match="_path: cannot be read: it is a pipe, not a file"):
        applied([b"{}"], transform)
    Path("schema").unlink()
    Path("schema").symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="_path: cannot be read: it is longer than 16 MiB"):
        applied([b"{}"], transform)


def test_no_message_of_that_name(descriptors):
    with pytest.raises(ConfigError, match=r'message_type = "shop\.Nothing"'):
        applied([b"x"], {"type": "proto_convert", "message_type": "shop.Nothing", "descriptor_set_path": descriptors})


BRANCHES = {"type": "record", "name": "B", "fields": [{"name": "v", "type": ["A", "B", "int"]}]}
TREE = {"type": "record", "name": "A", "fields": [{"name": "v", "type": ["A", BRANCHES, "int"]}]}
LINK = {"type": "record", "name": "L", "fields": [{"name": "n", "type": ["null", "L"]}]}


def nested(name, levels, inside):
    return b'{"%s":' % name * levels + inside + b"}" * levels


def to_avro(schema):
    return {"type": "avro_convert", "source_format": "json", "target_format": "avro", "schema_json": json.dumps(schema)}


def test_branches_that_would_take_days_are_chosen_at_once():
    found = applied([nested(b"v", 60, b"1"), nested(b"v", 60, b'"x"'), b'{"v":1}'], to_avro(TREE))
    assert found.payloads == [b"\x00" * 59 + b"\x04\x02", b"\x04\x02"]
    assert "it does not fit the schema" in found.reasons[2]


def test_what_is_remembered_of_a_record_has_a_limit(monkeypatch):
    monkeypatch.setattr(unions, "MAX_COMPARED", 20)
    found = applied([nested(b"v", 60, b"1"), nested(b"v", 5, b"1")], to_avro(TREE))
    assert found.numbers == [2]
    assert "more than 20 comparisons with the schema" in found.reasons[1]


def test_a_type_that_holds_itself_is_written_as_deep_as_it_is_read():
    deep = nested(b"n", 250, b"null")
    found = applied([deep, nested(b"n", 251, b"null"), b'{"n":1}'], to_avro(LINK))
    assert found.numbers == [1]
    assert "more than 250 levels deep" in found.reasons[2]
    assert found.reasons[3] == "transforms[0] (avro_convert): it does not fit the schema: its types differ"
    back = applied(found.payloads, {"type": "avro_convert", "schema_json": json.dumps(LINK)})
    assert back.payloads == [deep]


@pytest.mark.parametrize(
    "value",
    [
        {"v": None},
        {"v": {"v": 1}},
        {"v": {"v": {"m": {"v": None}, "t": "x"}, "w": "y"}},
        {"v": [{"v": 1, "w": "P"}, None, "Q"], "k": [{"v": 1.5}, {"v": {"v": {"v": 2}}}]},
        {"v": [{"v": 1}, "R"]},
        {"v": {"v": 1, "w": 1}},
        {"v": {"w": "y"}},
        {"v": 1, "other": 1},
        {},
        [],
    ],
)
def test_branches_are_those_that_fastavro_chooses(value):
    inner = {"type": "map", "values": ["A", "string"]}
    fields = [
        {"name": "v", "type": ["A", "B", "int", inner]},
        {"name": "w", "type": ["null", "string"], "default": None},
    ]
    items = ["B", "null", {"type": "enum", "name": "e", "symbols": ["P", "Q"]}]
    kinds = ["null", "A", {"type": "record", "name": "B", "fields": fields}, "int", "double"]
    schema = {
        "type": "record",
        "name": "A",
        "namespace": "x.y",
        "fields": [
            {"name": "v", "type": [*kinds, {"type": "array", "items": items}]},
            {"name": "k", "type": {"type": "array", "items": "A"}, "default": []},
        ],
    }
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    found = applied([json.dumps(value).encode()], to_avro(schema))
    try:
        out = io.BytesIO()
        assert fastavro.validate(value, parsed, raise_errors=False)
        fastavro.schemaless_writer(out, parsed, value, strict_allow_default=True)
    except (AssertionError, ValueError):
        assert list(found.bad) == [1]
    else:
        assert found.payloads == [out.getvalue()]


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    """A descriptor set with `b.Message`, whose messages may be far smaller than their JSON."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="b.proto", package="b", syntax="proto2")
    file.dependency.append("google/protobuf/any.proto")
    file.enum_type.add(name="Kind").value.add(name="N" * 100, number=0)
    part = file.message_type.add(name="Part")
    part.field.add(name="n" * 1000, number=1, type=field.TYPE_BOOL, label=field.LABEL_OPTIONAL)
    message = file.message_type.add(name="Message")
    message.nested_type.add(name="Group").field.add(
        name="x" * 1000, number=9, type=field.TYPE_BOOL, label=field.LABEL_REPEATED
    )
    for number, (name, kind, type_name) in enumerate(
        [
            ("numbers", field.TYPE_INT64, None),
            ("kinds", field.TYPE_ENUM, ".b.Kind"),
            ("parts", field.TYPE_MESSAGE, ".b.Part"),
            ("fixed", field.TYPE_FIXED32, None),
            ("texts", field.TYPE_STRING, None),
            ("group", field.TYPE_GROUP, ".b.Message.Group"),
            ("any", field.TYPE_MESSAGE, ".google.protobuf.Any"),
            ("messages", field.TYPE_MESSAGE, ".b.Message"),
        ],
        1,
    ):
        message.field.add(name=name, number=number, type=kind, type_name=type_name, label=field.LABEL_REPEATED)
    files = [file, descriptor_pb2.FileDescriptorProto.FromString(any_pb2.DESCRIPTOR.serialized_pb)]
    path = tmp_path_factory.mktemp("proto") / "b.pb"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=reversed(files)).SerializeToString())
    return {"type": "proto_convert", "descriptor_set_path": str(path), "message_type": "b.Message"}


def part_of(number, data):
    """A field of bytes."""
    out, size = bytes([number << 3 | 2]), len(data)
    while size > 127:
        out, size = out + bytes([size & 127 | 128]), size >> 7
    return out + bytes([size]) + data


@pytest.mark.parametrize(
    "payload",
    [
        part_of(1, bytes(2_000_000)),
        part_of(2, bytes(10_000_000)),
        b"\x10\x00" * 500_000,
        b"\x1a\x02\x08\x01" * 100_000,
        b"\x1a\x00" * 1_000_000,
        part_of(4, bytes(8_000_000)),
        b"\x2a\x00" * 1_000_000,
        b"\x33" + b"\x48\x01" * 100_000 + b"\x34",
        part_of(7, part_of(2, b"\x0a\x00" * 1_000_000)),
        part_of(8, part_of(8, part_of(1, bytes(2_000_000)))),
        part_of(1, bytes(2_000_000)) + b"\x07",
    ],
    ids=["numbers", "enums", "enum", "names", "empty", "fixed", "texts", "group", "any", "inside", "damaged behind"],
)
def test_a_message_that_takes_too_much_memory_is_bad(messages, payload):
    good = part_of(1, b"\x05")
    found = applied([good, payload, good], messages)
    assert found.payloads == [b'{"numbers":["5"]}'] * 2
    assert "its message takes more than 134217728 bytes of memory" in found.reasons[2]


@pytest.mark.parametrize(
    "payload",
    [
        part_of(5, b"x" * 10_000_000),
        part_of(5, b"x" * 1000) * 10_000,
        part_of(1, b"\xff\xff\xff\xff\x7f" * 400_000),
        part_of(4, bytes(2_000_000)),
        part_of(15, bytes(10_000_000)),
        b"\x9b\x06" + b"\x48\x01" * 700_000 + b"\x9c\x06",
        b"\x1a\x02\x08\x01" * 10_000 + part_of(15, bytes(1_000_000)),
    ],
    ids=["text", "texts", "long numbers", "fixed", "unknown", "unknown group", "names"],
)
def test_a_large_message_is_converted(messages, payload):
    found = applied([payload], messages)
    assert found.reasons == {}
    assert json.loads(found.payloads[0]) is not None


@pytest.mark.parametrize("payload", [b"\x07" + bytes(2_000_000), b"\x0a\xff\xff\xff\x7f", b"\xff" * 2_000_000])
def test_what_is_no_message_is_bad(messages, payload):
    assert applied([payload], messages).reasons == {
        1: "transforms[0] (proto_convert): does not fit the schema (DecodeError)"
    }


@pytest.mark.parametrize("payload", [b'{"a":1e400}', b"-1e9999", b"123456789012345678901234567890", b"-0", b"[[]]"])
def test_json_of_any_number_stays_json(payload):
    """As `jsonl` reads it: it may not become a text that holds JSON."""
    assert applied([payload], {"type": "json"}).payloads == [payload]


def test_json_that_is_nested_too_deeply_to_check_becomes_no_text():
    found = applied([b"[" * 100_000 + b"]" * 100_000, b"[" * 400 + b"]" * 400], {"type": "json"})
    assert found.numbers == [2]
    assert "nested too deeply" in found.reasons[1]


def test_a_record_that_grows_too_large_is_not_kept():
    found = applied([b"\x01" * 11_000_000, b"x"], {"type": "json"})
    assert found.payloads == [b'"x"']
    assert "66,000,002 bytes after the transforms, Iggy stores at most 64,000,000" in found.reasons[1]
