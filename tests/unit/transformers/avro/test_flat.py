"""Avro blocks of flat records: the same payloads and errors as value by value, whatever the bytes."""

import io
import math
import struct

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.errors import CorruptObjectError
from framework.model.avro_limits import weigh
from framework.model.batches import SkippedRecord
from framework.transformer import InputOptions
from tests.support.examples import examples
from tests.unit.transformers.avro.test_damage import container, number, record, text
from transformers import BytesInput, make_transformer
from transformers.avro import flat as avro_flat
from transformers.avro import format as avro
from transformers.avro.flat import FlatBlocks

ENUM = {"type": "enum", "name": "E", "symbols": ["X", "Y", "Z"]}
LONGS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-70, 70), st.sampled_from([2**k for k in range(63)]))
KINDS = {
    "boolean": ("boolean", st.booleans()),
    "int": ("int", st.integers(-(2**31), 2**31 - 1)),
    "long": ("long", LONGS),
    "float": ("float", st.floats(width=32)),
    "double": ("double", st.floats()),
    "string": ("string", st.text(max_size=70)),
    "bytes": ("bytes", st.binary(max_size=70)),
    "enum": (ENUM, st.sampled_from(ENUM["symbols"])),
    "fixed": ({"type": "fixed", "name": "F", "size": 3}, st.binary(min_size=3, max_size=3)),
    "date": ({"type": "int", "logicalType": "date"}, st.integers(-800_000, 3_000_000)),
    "micros": ({"type": "long", "logicalType": "timestamp-micros"}, LONGS),
    "decimal": ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, st.binary(max_size=9)),
    "uuid": ({"type": "string", "logicalType": "uuid"}, st.text(max_size=5)),
}


@st.composite
def files(draw):
    """A flat schema, its plain form for the writer, and records."""
    kinds, plain, values = [], [], []
    for at, name in enumerate(draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=6))):
        kind, value = KINDS[name]
        kind = kind if name not in {"enum", "fixed"} else kind | {"name": f"{name}{at}"}
        base = kind if name in {"enum", "fixed"} else kind["type"] if isinstance(kind, dict) else kind
        optional = draw(st.sampled_from(["no", "first", "last"]))
        if optional == "no":
            kinds.append(kind)
            plain.append(base)
        else:
            kinds.append(["null", kind] if optional == "first" else [kind, "null"])
            plain.append(["null", base] if optional == "first" else [base, "null"])
            value = st.none() | value
        values.append(value)
    rows = draw(st.lists(st.tuples(*values), min_size=1, max_size=70))
    return record(*kinds), record(*plain), [{f"f{at}": value for at, value in enumerate(row)} for row in rows]


def encoded(schema, rows):
    out = io.BytesIO()
    for row in rows:
        fastavro.schemaless_writer(out, schema, row)
    return out.getvalue()


def read(data, *, flat=True, **options):
    """The payloads, skipped records and the error of an object, with or without decoding by columns."""
    got = []
    transformer = make_transformer(InputOptions(format="avro", **options))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(avro, "_FLAT_RECORDS", 1)
        if not flat:
            patch.setattr(FlatBlocks, "of", classmethod(lambda *_: None))
        try:
            for run in transformer.read(BytesInput(data), skip=0):
                got += [str(run.error)] if isinstance(run, SkippedRecord) else list(run.payloads)
        except CorruptObjectError as exc:
            got.append(exc.record_number)
            got.append(str(exc))
    return got


def payloads(schema, data, count, drop=0):
    return [
        payload for part in FlatBlocks.of(schema, None, weigh(schema)).payloads(count, data, drop) for payload in part
    ]


@settings(max_examples=examples(200))
@given(files(), st.data())
def test_columns_are_read_as_value_by_value(file, data):
    schema, plain, rows = file
    block = encoded(plain, rows)
    drop = data.draw(st.integers(0, len(rows) - 1))
    expected = read(container(schema, block, len(rows)), flat=False)
    assert payloads(schema, block, len(rows)) == expected
    assert payloads(schema, block, len(rows), drop) == expected[drop:]
    chosen = data.draw(st.sets(st.sampled_from(sorted(rows[0])), min_size=1))
    wanted = {"columns": tuple(sorted(chosen))}
    assert read(container(schema, block, len(rows)), **wanted) == read(
        container(schema, block, len(rows)), flat=False, **wanted
    )


@settings(max_examples=examples(300))
@given(files(), st.data())
def test_damage_is_read_as_value_by_value(file, data):
    schema, plain, rows = file
    block = bytearray(encoded(plain, rows))
    count = len(rows)
    how = data.draw(st.sampled_from(["bytes", "cut", "more", "count"]))
    if how == "bytes":
        for _ in range(data.draw(st.integers(1, 3))):
            value = data.draw(st.integers(0, 255) | st.sampled_from([0, 1, 2, 3, 4, 127, 128, 255]))
            block[data.draw(st.integers(0, len(block) - 1))] = value
    elif how == "cut":
        del block[data.draw(st.integers(0, len(block) - 1)) :]
    elif how == "more":
        block += data.draw(st.binary(min_size=1, max_size=9))
    else:
        count = data.draw(st.integers(1, count + 3))
    damaged = container(schema, bytes(block), count)
    assert read(damaged) == read(damaged, flat=False)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("boolean", b"\x02"),
        ("boolean", b"\xff"),
        ("long", b"\x80\x00"),
        ("long", b"\x82" + b"\x80" * 8 + b"\x00"),
        ("string", b"\x82\x00a"),
        ("string", b"\x02\xff"),
        ("string", b"\x04a"),
        ("string", b"\x01a"),
        ("string", number(2**62) + b"a"),
        (["null", "long"], b"\x04\x02"),
        (["null", "long"], b"\x01\x02"),
        (["null", "long"], b"\x82\x00\x02"),
        (["null", "boolean"], b"\x02\x02"),
        (["long", "null"], b"\x04"),
        (["long", "null"], b"\x80\x00\x02"),
        (ENUM, b"\x06"),
        (ENUM, b"\x01"),
        ({"type": "fixed", "name": "F", "size": 3}, b"ab"),
    ],
)
def test_what_is_no_shortest_encoding_is_left_to_the_other_decoder(kind, data):
    schema = record("long", kind, "long")
    block = b"\x02" + data + b"\x02"
    assert payloads(schema, block, 1) == []
    assert read(container(schema, block, 1)) == read(container(schema, block, 1), flat=False)


@pytest.mark.parametrize(
    "kind",
    [
        "null",
        ["int"],
        ["null", "int", "long"],
        ["null", "null"],
        {"type": "array", "items": "int"},
        {"type": "map", "values": "int"},
        record("int") | {"name": "Inner"},
        {"type": "fixed", "name": "F", "size": 0},
    ],
)
def test_other_records_are_not_flat(kind):
    schema = record("int", kind)
    assert FlatBlocks.of(schema, None, weigh(schema)) is None
    assert FlatBlocks.of("int", None, weigh("int")) is None
    empty = record()
    assert FlatBlocks.of(empty, None, weigh(empty)) is None


def test_the_fields_of_a_wide_schema_are_looked_up_and_not_searched(monkeypatch):
    """A file of 30,000 fields took 17 seconds, before its first record."""

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__
        compared = 0

        def __eq__(self, other):
            Name.compared += 1
            return str.__eq__(self, other)

    monkeypatch.setattr(avro_flat, "row_maker", len)  # msgspec takes plain texts alone
    schema = record(*["boolean"] * 300)
    for field in schema["fields"]:
        field["name"] = Name(field["name"])
    assert FlatBlocks.of(schema, None, weigh(schema)) is not None
    assert Name.compared < 3000


def test_the_symbols_of_an_enum_are_numbered_once_and_not_for_each_block():
    class Symbols(list):
        listed = 0

        def __iter__(self):
            Symbols.listed += 1
            return super().__iter__()

    schema = record({**ENUM, "symbols": Symbols(ENUM["symbols"])})
    flat = FlatBlocks.of(schema, None, weigh(schema))
    before = Symbols.listed
    for _ in range(3):
        assert [list(part) for part in flat.payloads(2, number(2) + number(0), 0)] == [[b'{"f0":"Z"}', b'{"f0":"X"}']]
    assert Symbols.listed == before > 0


@pytest.mark.parametrize("count", [127, 128])
def test_small_blocks_are_read_value_by_value(count, monkeypatch):
    counts = []
    monkeypatch.setattr(FlatBlocks, "payloads", lambda _, count, *__: iter(counts.append(count) or ()))
    data = container(record("long"), number(7) * count, count)
    got = list(make_transformer(InputOptions(format="avro")).records(BytesInput(data)))
    assert (got, counts) == ([b'{"f0":7}'] * count, [128] if count == 128 else [])


def test_long_blocks_of_optional_values_are_decoded_by_columns():
    """As polars writes them: all rows of a frame in one block."""
    schema = record(*[["null", "long"], ["null", "string"]] * 10)
    row = encoded(schema, [{f"f{at}": "text of a field" if at % 2 else 2013 for at in range(20)}])
    flat = FlatBlocks.of(schema, None, weigh(schema))
    assert sum(map(len, flat.payloads(6000, row * 6000, 0))) == 6000
    assert list(flat.payloads(20_000, row * 20_000, 0)) == []


def test_counts_and_sizes_that_cannot_be_take_no_memory():
    for kind in ("long", ["null", {"type": "fixed", "name": "F", "size": 2**31 - 1}], ["null", "string"]):
        schema = record(kind)
        assert payloads(schema, b"\x00" * 1000, 2**60) == []
        assert payloads(schema, b"\x00" * 1000, 2**20) == []


def test_records_behind_one_without_a_form_are_read_too():
    schema = record("string", "double")
    rows = [{"f0": "é" * (at % 7), "f1": at / 3} for at in range(2500)]
    block = encoded(schema, rows) + text(b"\xff") + struct.pack("<d", math.nan) + encoded(schema, rows)
    got = read(container(schema, block, 5001))
    assert got == read(container(schema, block, 5001), flat=False)
    assert got[2500].endswith("the datum has no JSON form (text that is not UTF-8)")


def test_a_record_that_is_too_long_is_a_bad_record():
    schema = record("string")
    rows = [{"f0": "a" * (200 if at == 1500 else at % 5)} for at in range(2500)]
    data = container(schema, encoded(schema, rows), 2500)
    got = read(data, max_record_bytes=100)
    assert got == read(data, flat=False, max_record_bytes=100)
    assert "record 1501: longer than" in got[1500]
