"""Avro: numbers in the data that name what is not there are an error with their cause, never another value."""

import json

import pytest

from framework.errors import CorruptObjectError
from framework.transformer import InputOptions
from transformers import BytesInput, make_transformer
from transformers.avro import format as avro

SYNC = 16


def number(value):
    """A varint of Avro."""
    value, out = value << 1 ^ value >> 63, b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def text(data):
    return number(len(data)) + data


def container(schema, data, count):
    meta = number(1) + text(b"avro.schema") + text(json.dumps(schema).encode()) + number(0)
    return b"Obj\x01" + meta + b"S" * 16 + number(count) + text(data) + b"S" * 16


def read(schema, data, count):
    """The payloads, and the error behind them."""
    got = []
    records = make_transformer(InputOptions(format="avro")).records(BytesInput(container(schema, data, count)))
    try:
        got.extend(records)
    except CorruptObjectError as exc:
        return got, exc
    return got, None


UNION = ["null", "int", "string"]
ENUM = {"type": "enum", "name": "E", "symbols": ["X", "Y"]}
LINK = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}


def record(*kinds):
    fields = [{"name": f"f{at}", "type": kind} for at, kind in enumerate(kinds)]
    return {"type": "record", "name": "R", "fields": fields}


PLACES = {
    "field": (record("long", UNION), lambda branch: number(7) + branch, 3),
    "optional": (record(["null", "int"]), lambda branch: branch, 2),
    "one branch": (record(["int"]), lambda branch: branch, 1),
    "whole datum": (UNION, lambda branch: branch, 3),
    "items": ({"type": "array", "items": UNION}, lambda branch: number(1) + branch + number(0), 3),
    "values": ({"type": "map", "values": UNION}, lambda branch: number(1) + text(b"k") + branch + number(0), 3),
    "within a branch": (["null", record("string", UNION)], lambda branch: number(1) + text(b"a") + branch, 3),
    "named before": (record(record("int", UNION) | {"name": "S"}, "S"), lambda branch: b"\0\0\0" + branch, 3),
    "itself": (LINK, lambda branch: number(1) + branch, 2),
    "enum": (record("long", ENUM), lambda symbol: number(7) + symbol, 2),
    "enum named before": (record(ENUM, "E"), lambda symbol: number(0) + symbol, 2),
    "enum in a union": (["null", "int", ENUM], lambda symbol: number(2) + symbol, 2),
    "enum itself": (ENUM, lambda symbol: symbol, 2),
}


@pytest.mark.parametrize("checked", [True, False], ids=["decoder", "walked"])
@pytest.mark.parametrize("place", PLACES)
def test_a_branch_or_symbol_that_is_not_there_is_an_error_with_its_number(place, checked, monkeypatch):
    monkeypatch.setattr(avro, "refuses_indexes", lambda: checked)
    schema, around, there = PLACES[place]
    good = around(number(0) + (b"\0" if place == "one branch" else b""))
    assert read(schema, good, 1)[1] is None
    for index in (-1, -2, -there, -there - 1, -(2**31), -(2**63), there, there + 1, 2**31, 2**62):
        bad = around(number(index) + b"\0" * 8)
        got, error = read(schema, good + bad, 2)
        assert (len(got), error.record_number) == (1, 2), index
        assert str(error).startswith("memory://memory, record 2: ")
        assert f"a union has no branch, or an enum no symbol, with the number {index})" in str(error)


def test_the_installed_decoder_refuses_indexes():
    assert avro.refuses_indexes()


@pytest.mark.parametrize("kind", ["string", "bytes", {"type": "map", "values": "null"}])
@pytest.mark.parametrize("size", [-1, -2, -3, -(2**31), -(2**63), 4, 2**31, 2**62])
def test_a_length_that_cannot_be_is_an_error(kind, size):
    one = isinstance(kind, dict)
    data = (number(1) if one else b"") + number(size) + b"abc"
    got, error = read(kind, data, 1)
    assert got == []
    assert error.record_number == 1
    assert "its bytes end too early, or a length is below zero" in str(error)


@pytest.mark.parametrize("kind", ["float", "double", "boolean", {"type": "fixed", "name": "F", "size": 5}, "long"])
def test_a_value_that_is_cut_at_the_blocks_end_is_an_error(kind):
    data = {"boolean": b"", "long": b"\x80\x80"}.get(kind if isinstance(kind, str) else "", b"\1\2\3")
    got, error = read(record("int", kind), number(1) + data, 1)
    assert got == []
    assert "its bytes end too early, or a length is below zero" in str(error)


def test_counts_below_zero_are_those_of_parts_with_a_size():
    array, mapping = {"type": "array", "items": "int"}, {"type": "map", "values": "int"}
    parts = number(-2) + number(2) + number(5) + number(6) + number(1) + number(7) + number(0)
    assert read(array, parts, 1) == ([b"[5,6,7]"], None)
    parts = number(-1) + number(3) + text(b"a") + number(5) + number(-1) + number(3) + text(b"b") + number(6)
    assert read(mapping, parts + number(0), 1) == ([b'{"a":5,"b":6}'], None)
    nothing = {"type": "array", "items": "null"}
    assert read(nothing, number(-3) + number(0) + number(0), 1) == ([b"[null,null,null]"], None)
    assert "bytes of memory" in str(read(nothing, number(-(2**60)) + number(0) + number(0), 1)[1])


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_count_that_is_too_low_is_an_error_on_every_start(count):
    data = container("long", number(1) + number(2) + number(3), count)
    transformer = make_transformer(InputOptions(format="avro"))
    for skip in range(count or 1):
        got = []
        with pytest.raises(CorruptObjectError, match="holds more than its records"):
            got.extend(transformer.records(BytesInput(data), skip=skip))
        assert got == [b"1"][skip : max(0, count - 1)]


@pytest.mark.parametrize("skip", range(4))
def test_a_block_of_no_data_that_has_bytes_ends_the_object_for_every_start(skip):
    """Between two whole blocks, each of one datum; records 1 and 2 around it."""
    whole, empty, last = (
        container("long", data, count) for data, count in ((number(1), 1), (number(7), 0), (number(2), 1))
    )
    head = len(container("long", b"", 0)) - len(number(0) + number(0)) - SYNC
    transformer = make_transformer(InputOptions(format="avro"))
    got = []
    with pytest.raises(CorruptObjectError, match="holds more than its records"):
        got.extend(transformer.records(BytesInput(whole + empty[head:] + last[head:]), skip=skip))
    assert got == [b"1"][skip:]


@pytest.mark.parametrize("scales", [(2, 4), (2, 2)])
def test_two_branches_of_one_name_are_an_error(scales):
    """Avro forbids them, and fastavro writes them: 123.45 was sent as 1.2345."""
    branches = [{"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": scale} for scale in scales]
    got, error = read(record(["null", *branches]), number(1) + number(2) + b"\x30\x39", 1)
    assert got == []
    assert error.message == (
        "the Avro schema cannot be used (two branches of a union have the same name, bytes: "
        "as JSON they could not be distinguished)"
    )


@pytest.mark.parametrize("wrapped", [False, True])
def test_two_fields_of_one_name_are_an_error(wrapped):
    """fastavro keeps the last of both values."""
    twice = {"type": "record", "name": "T", "namespace": "n", "fields": [{"name": "a", "type": "int"}] * 2}
    got, error = read(record("int", ["null", {"type": "array", "items": twice}]) if wrapped else twice, b"\2\4", 1)
    assert got == []
    assert error.message == (
        "the Avro schema cannot be used (two fields of the record n.T have the same name, a: as JSON one of them would be lost)"
    )
