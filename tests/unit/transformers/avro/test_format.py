"""Avro: values that keep what they were, cuts, damage, skipping by blocks."""

import bz2
import datetime as dt
import io
import json
import lzma
import math
import struct
import tracemalloc
import uuid
import zlib
from decimal import Decimal

import cramjam
import fastavro
import pytest
import zstandard

from framework.errors import CorruptObjectError, RecordError, RecordTooLargeError, TruncatedObjectError
from framework.model.avro_limits import weigh
from framework.model.batches import SkippedRecord
from framework.transformer import BatchLimits, InputOptions
from transformers import BytesInput, make_transformer
from transformers.avro.container_header import SYNC_BYTES
from transformers.avro.format import _BlockSource

LIMITS = BatchLimits(records=7, size_bytes=300)
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}, {"name": "s", "type": "string"}]}


def flat(runs):
    out = []
    for run in runs:
        if isinstance(run, SkippedRecord):
            out.append((run.record_number, type(run.error)))
        else:
            assert run.size_bytes == sum(map(len, run.payloads))
            out += enumerate(run.payloads, run.first_record)
    return out


def read(data, skip=0, mark=None, limits=LIMITS, **options):
    transformer = make_transformer(InputOptions(format="avro", **options))
    return flat(transformer.read(BytesInput(data), skip=skip, mark=mark, limits=limits))


def write(schema, records, codec="null", sync_interval=100):
    out = io.BytesIO()
    fastavro.writer(out, schema, records, codec=codec, sync_interval=sync_interval, sync_marker=b"0123456789abcdef")
    return out.getvalue()


def records(count):
    return [{"n": 2**62 + n, "s": f"text {n}"} for n in range(count)]


def as_json(record):
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()


def expected(count):
    return list(enumerate(map(as_json, records(count)), 1))


def varint(value):
    value, out = value << 1, b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def container(codec, blocks, schema=SCHEMA):
    """Written by hand, so that the oracle is not the library that reads."""

    def string(data):
        return varint(len(data)) + data

    meta = (
        varint(2) + string(b"avro.schema") + string(json.dumps(schema).encode()) + string(b"avro.codec") + string(codec)
    )
    out = b"Obj\x01" + meta + varint(0) + b"S" * 16
    for count, data in blocks:
        out += varint(count) + string(data) + b"S" * 16
    return out


def datum(n):
    text = f"text {n}".encode()
    return varint(2**62 + n) + varint(len(text)) + text


CODECS = {
    b"null": lambda data: data,
    b"deflate": lambda data: zlib.compress(data)[2:-4],  # without zlib's head and check sum
    b"snappy": lambda data: bytes(cramjam.snappy.compress_raw(data)) + struct.pack(">I", zlib.crc32(data)),
    b"zstandard": lambda data: zstandard.ZstdCompressor(write_content_size=False).compress(data),
    b"bzip2": bz2.compress,
    b"xz": lzma.compress,
}


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(codec):
    blocks = [(3, range(3)), (0, range(0)), (11, range(3, 14)), (1, range(14, 15))]
    data = container(codec, [(count, CODECS[codec](b"".join(map(datum, numbers)))) for count, numbers in blocks])
    assert read(data) == expected(15)
    if codec != b"null":
        with pytest.raises(CorruptObjectError, match=codec.decode()):
            read(container(codec, [(3, b"\x01rubbish that no codec takes")]))


@pytest.mark.parametrize("codec", [b"zstandard", b"bzip2", b"xz"])
def test_what_is_wrong_with_a_block_says_nothing_of_how_the_object_is_packed(codec):
    """The object is whole, and another `input.compression` would not help."""
    stored = CODECS[codec](datum(0))
    for block, reason in ((stored[:-3], "data ends too early"), (b"rubbish", "this is not")):
        with pytest.raises(CorruptObjectError, match=rf"codec {codec.decode()} \([^;]*{reason}[^;:]*\)$"):
            read(container(codec, [(1, block)]))


def test_what_pythons_avro_leaves_of_a_check_sum_behind_deflate_is_passed_over():
    assert read(container(b"deflate", [(1, zlib.compress(datum(0))[2:-1])])) == expected(1)


@pytest.mark.parametrize("codec", [b"deflate", b"zstandard", b"bzip2", b"xz"])
@pytest.mark.parametrize("behind", [b"\0", b"\0" * 4, b"\n", b"rubbish behind it"])
def test_what_stands_behind_the_data_of_a_block_is_passed_over(codec, behind):
    """As in Avro's libraries. A datum that is missing is still missed."""
    blocks = [(2, CODECS[codec](datum(0) + datum(1)) + behind), (1, CODECS[codec](datum(2)) + behind)]
    assert read(container(codec, blocks)) == expected(3)
    with pytest.raises(CorruptObjectError):
        read(container(codec, [(2, CODECS[codec](datum(0)) + behind)]))


@pytest.mark.parametrize("codec", [b"zstandard", b"bzip2", b"xz"])
def test_a_block_may_have_several_frames_or_streams(codec):
    assert read(container(codec, [(2, CODECS[codec](datum(0)) + CODECS[codec](datum(1)))])) == expected(2)


def test_a_codec_that_is_not_known_is_named():
    with pytest.raises(CorruptObjectError, match="lz77"):
        read(container(b"lz77", [(1, b"x")]))


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_skipping_gives_the_rest_with_and_without_marks(codec):
    data = write(SCHEMA, records(61), codec)
    transformer = make_transformer(InputOptions(format="avro"))
    runs = list(transformer.read(BytesInput(data), limits=LIMITS))
    marks = {run.mark for run in runs}
    assert len(marks) > 3
    for skip in range(63):
        assert read(data, skip=skip) == expected(61)[skip:]
        for mark in marks:
            if mark.record <= skip:
                assert read(data, skip=skip, mark=mark) == expected(61)[skip:]
    last = runs[-1].mark
    opened = []

    class Watched(BytesInput):
        def open(self, start=0, end=None):
            opened.append((start, end))
            return super().open(start, end)

    assert flat(transformer.read(Watched(data), skip=60, mark=last)) == expected(61)[60:]
    assert opened == [(0, len(data)), (last.byte, None)]


def test_a_cut_at_any_byte_is_an_error_but_behind_a_block():
    data = write(SCHEMA, records(23))
    ends = {at + 16 for at in range(len(data)) if data[at : at + 16] == b"0123456789abcdef"}
    clean = set()
    for end in range(1, len(data)):
        transformer, got, error = make_transformer(InputOptions(format="avro")), [], None
        try:
            got.extend(transformer.records(BytesInput(data[:end], "a.avro")))
        except TruncatedObjectError as exc:
            error = exc
        if error is None:
            clean.add(end)
        else:
            assert error.record_number == len(got) + 1
        assert got == [payload for _, payload in expected(23)[: len(got)]]
    assert clean == ends - {len(data)}


def test_a_stream_that_is_shorter_than_listed_is_an_error_behind_a_block_too():
    data = write(SCHEMA, records(23))
    end = data.index(b"0123456789abcdef", 200) + 16

    class Shorter(BytesInput):
        def open(self, start=0, end=None):
            stream, location = super().open(start, end), self.location

            class Stream:
                def read(self, size, /):
                    part = stream.read(size)
                    if not part:
                        raise TruncatedObjectError("shorter than listed", location=location)
                    return part

                close = stream.close

            return Stream()

    with pytest.raises(TruncatedObjectError):
        flat(make_transformer(InputOptions(format="avro")).read(Shorter(data[:end])))


def test_damage_is_an_error_after_the_records_before_it():
    data = write(SCHEMA, records(23))
    second = data.index(b"0123456789abcdef", data.index(b"0123456789abcdef") + 16)
    broken = data[:second] + b"X" + data[second + 1 :]
    with pytest.raises(CorruptObjectError, match="sync marker"):
        read(broken)
    with pytest.raises(CorruptObjectError, match="sync marker"):
        read(broken, skip=20)
    with pytest.raises(CorruptObjectError, match="not an Avro"):
        read(b"Obj\x02" + data[4:])
    for junk in (b"plain text that is long enough", b'{"a":1}\n' * 9):
        with pytest.raises(CorruptObjectError, match=r"not an Avro .* input\.format"):
            read(junk)
    for blocks in ([(2, datum(0))], [(2, datum(0) + datum(1) + b"x")], [(2, datum(0) + b"\x02\x0a\x01")]):
        transformer, got = make_transformer(InputOptions(format="avro")), []
        with pytest.raises(CorruptObjectError) as caught:
            got.extend(transformer.records(BytesInput(container(b"null", blocks))))
        assert got == [as_json(records(1)[0])]
        assert caught.value.record_number == 2
    with pytest.raises(CorruptObjectError, match="impossible size"):
        read(data[: data.index(b"0123456789abcdef") + 16] + varint(1) + varint_signed(-1) + b"x")
    with pytest.raises(CorruptObjectError, match=r"longer than input\.max_block_bytes \(67108864 bytes\)"):
        read(data[: data.index(b"0123456789abcdef") + 16] + varint(1) + varint(2**40) + b"x")
    with pytest.raises(CorruptObjectError, match="schema"):
        read(container(b"null", [(1, b"")], schema={"type": "nonsense"}))


def test_a_skipped_block_is_not_decoded():
    data = container(b"deflate", [(2, b"rubbish"), (1, CODECS[b"deflate"](datum(2)))])
    assert read(data, skip=2) == expected(3)[2:]
    with pytest.raises(CorruptObjectError):
        read(data, skip=1)


def test_text_that_is_not_utf8_and_records_too_long_are_bad_one_by_one():
    bad = varint(1) + varint(2) + b"\xff\xfe"
    assert read(container(b"null", [(3, datum(0) + bad + datum(2))])) == [
        expected(3)[0], (2, RecordError), expected(3)[2],
    ]  # fmt: skip
    data = write(SCHEMA, [{"n": 1, "s": "x" * size} for size in (10, 500, 10)])
    assert [value for _, value in read(data, max_record_bytes=100)][1] is RecordTooLargeError


def value_of(kind, value, *, names=()):
    schema = {"type": "record", "name": "R", "namespace": "a.b", "fields": [*names, {"name": "v", "type": kind}]}
    data = write(schema, [{"v": value, **{field["name"]: None for field in names}}])
    ((_, payload),) = read(data)
    return json.loads(payload)["v"]


UTC = dt.timezone.utc
FIXED_DECIMAL = {"type": "fixed", "name": "D", "size": 8, "logicalType": "decimal", "precision": 9, "scale": 8}
INNER = {"type": "record", "name": "S", "fields": [{"name": "x", "type": "bytes"}]}


def long(logical):
    return {"type": "long", "logicalType": logical}


@pytest.mark.parametrize(
    ("kind", "value", "result"),
    [
        ("long", -(2**63), -(2**63)),
        ("int", 2**31 - 1, 2**31 - 1),
        ("double", 0.1, 0.1),
        ("double", math.nan, "NaN"),
        ("float", math.inf, "Infinity"),
        (["null", "double"], -math.inf, "-Infinity"),
        ({"type": "array", "items": "double"}, [1.5, math.nan], [1.5, "NaN"]),
        ({"type": "map", "values": ["null", "float"]}, {"a": math.inf, "b": None}, {"a": "Infinity", "b": None}),
        ("boolean", True, True),
        ("null", None, None),
        ("bytes", b"\0\xff", "AP8="),
        ({"type": "fixed", "name": "F", "size": 3}, b"abc", "YWJj"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 4}, Decimal("-12.3400"), "-12.3400"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0}, Decimal(10**37 + 1), str(10**37 + 1)),
        (FIXED_DECIMAL, Decimal("0.00000001"), "0.00000001"),
        ({"type": "int", "logicalType": "date"}, dt.date(2024, 2, 29), "2024-02-29"),
        ({"type": "int", "logicalType": "time-millis"}, dt.time(1, 2, 3, 4000), "01:02:03.004"),
        ({"type": "long", "logicalType": "time-micros"}, dt.time(1, 2, 3, 4), "01:02:03.000004"),
        (long("timestamp-millis"), dt.datetime(1960, 1, 1, tzinfo=UTC), "1960-01-01T00:00:00.000Z"),
        (long("timestamp-micros"), dt.datetime(2024, 2, 29, 1, 2, 3, 4, UTC), "2024-02-29T01:02:03.000004Z"),
        (long("timestamp-nanos"), 1, "1970-01-01T00:00:00.000000001Z"),
        (long("local-timestamp-micros"), dt.datetime(2024, 1, 1), "2024-01-01T00:00:00.000000"),  # noqa: DTZ001
        (long("local-timestamp-nanos"), -1, "1969-12-31T23:59:59.999999999"),
        ({"type": "string", "logicalType": "uuid"}, uuid.UUID(int=5), str(uuid.UUID(int=5))),
        ({"type": "long", "logicalType": "no-such-type"}, 5, 5),
        (["null", "string"], "x", "x"),
        (["int", "string"], 5, {"int": 5}),
        (["null", "int", "string", "bytes"], b"\0", {"bytes": "AA=="}),
        (["null", "int", "string", "bytes"], None, None),
        (["double", "string"], math.nan, {"double": "NaN"}),
        (["null", INNER, "string"], {"x": b"a"}, {"a.b.S": {"x": "YQ=="}}),
        (["null", "R"], {"v": {"v": None}}, {"v": {"v": None}}),
    ],
)  # fmt: skip
def test_values_keep_what_they_were(kind, value, result):
    assert value_of(kind, value) == result


def test_types_by_name_and_records_inside_themselves():
    fixed = {"name": "f", "type": ["null", {"type": "fixed", "name": "F", "size": 2}]}
    schema = {
        "type": "record", "name": "R", "namespace": "a.b",
        "fields": [
            fixed, {"name": "g", "type": "F"}, {"name": "d", "type": "double"}, {"name": "next", "type": ["null", "a.b.R"]},
        ],
    }  # fmt: skip
    record = {"f": b"ab", "g": b"cd", "d": math.nan, "next": {"f": None, "g": b"ef", "d": math.inf, "next": None}}
    ((_, payload),) = read(write(schema, [record]))
    assert json.loads(payload) == {
        "f": "YWI=", "g": "Y2Q=", "d": "NaN", "next": {"f": None, "g": "ZWY=", "d": "Infinity", "next": None},
    }  # fmt: skip


def test_a_duration_and_a_uuid_in_16_bytes():
    schema = {
        "type": "record", "name": "R",
        "fields": [
            {"name": "d", "type": {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}},
            {"name": "u", "type": {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}},
        ],
    }  # fmt: skip
    ((_, payload),) = read(container(b"null", [(1, struct.pack("<III", 1, 2, 2**32 - 1) + bytes(15) + b"\1")], schema))
    assert json.loads(payload) == {"d": {"months": 1, "days": 2, "milliseconds": 2**32 - 1}, "u": str(uuid.UUID(int=1))}


def test_years_beyond_the_calendar_of_python():
    kind = {"type": "long", "logicalType": "timestamp-millis"}
    schema = {"type": "record", "name": "R", "fields": [{"name": "v", "type": kind}]}
    values = [-(2**62), 253402300800000]
    data = container(b"null", [(2, b"".join(varint_signed(value) for value in values))], schema)
    texts = [json.loads(payload)["v"] for _, payload in read(data)]
    assert texts == ["-146136543-09-08T08:23:32.096Z", "+10000-01-01T00:00:00.000Z"]


def test_a_negative_time_of_day_has_a_sign_and_its_magnitude():
    kind = {"type": "int", "logicalType": "time-millis"}
    schema = {"type": "record", "name": "R", "fields": [{"name": "v", "type": kind}]}
    values = [-13_899_000, -1, 0, 86_400_000]
    data = container(b"null", [(4, b"".join(varint_signed(value) for value in values))], schema)
    texts = [json.loads(payload)["v"] for _, payload in read(data)]
    assert texts == ["-03:51:39.000", "-00:00:00.001", "00:00:00.000", "24:00:00.000"]


def varint_signed(value):
    value, out = (value << 1) ^ (value >> 63), b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def test_5000_records():
    data = write(SCHEMA, records(5000), "deflate", sync_interval=16000)
    got = read(data, limits=BatchLimits(records=701))
    assert got == expected(5000)


def test_data_that_are_no_records():
    assert read(write("double", [1.5, math.nan])) == [(1, b"1.5"), (2, b'"NaN"')]
    assert read(write(["null", "string", "int"], [None, "a"])) == [(1, b"null"), (2, b'{"string":"a"}')]
    assert read(write(SCHEMA, [])) == []
    assert read(b"") == []


@pytest.mark.parametrize("skip", [0, 1, 499, 500, 501, 999, 1000, 1001, 1500, 1501])
def test_reading_goes_on_anywhere_inside_a_block(skip):
    data = container(b"deflate", [(1501, CODECS[b"deflate"](b"".join(map(datum, range(1501)))))])
    assert read(data, skip=skip) == expected(1501)[skip:]


BARE_INNER = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "long"}]}


@pytest.mark.parametrize("inner", [
    BARE_INNER,
    {"type": "enum", "name": "Inner", "symbols": ["A", "B", "C"]},
    {"type": "fixed", "name": "Inner", "size": 1},
])  # fmt: skip
def test_types_without_a_namespace_are_found_again_behind_a_union(inner):
    fields = [{"name": "u", "type": ["null", "string", inner]}, {"name": "again", "type": "Inner"}]
    ((_, payload),) = read(container(b"null", [(1, varint(2) + varint(1) + varint(2))], {
        "type": "record", "name": "R", "fields": fields,
    }))  # fmt: skip
    value = {"record": [{"x": 1}, {"x": 2}], "enum": ["B", "C"], "fixed": ["Ag==", "BA=="]}[inner["type"]]
    assert json.loads(payload) == {"u": {"Inner": value[0]}, "again": value[1]}


def test_a_record_without_a_namespace_may_hold_itself_in_a_union():
    fields = [{"name": "n", "type": "long"}, {"name": "next", "type": ["null", "string", "R"]}]
    data = varint(1) + varint(2) + varint(2) + varint(0)
    ((_, payload),) = read(container(b"null", [(1, data)], {"type": "record", "name": "R", "fields": fields}))
    assert json.loads(payload) == {"n": 1, "next": {"R": {"n": 2, "next": None}}}


def test_the_same_types_may_be_branches_of_many_unions():
    """The second union and the third refer to the types of the first one; the record holds itself in two of them."""
    pair = {"type": "fixed", "name": "Pair", "size": 2}
    unions = [["null", pair, "long", "R"], ["long", "Pair"], ["R", "null", "Pair", "long"]]
    fields = [{"name": f"f{at}", "type": union} for at, union in enumerate(unions)]
    leaf = varint(1) + b"ab" + varint(0) + varint(7) + varint(2) + b"cd"
    data = varint(3) + leaf + varint(1) + b"ef" + varint(0) + leaf
    ((_, payload),) = read(container(b"null", [(1, data)], {"type": "record", "name": "R", "fields": fields}))
    wanted = {"f0": {"Pair": "YWI="}, "f1": {"long": 7}, "f2": {"Pair": "Y2Q="}}
    assert json.loads(payload) == {"f0": {"R": wanted}, "f1": {"Pair": "ZWY="}, "f2": {"R": wanted}}


def test_a_union_may_stand_inside_of_a_union():
    """In a record, an array or a map that is a branch: each has branches of its own."""
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "v", "type": ["int", "null", "string"]}]}
    schema = ["string", {"type": "array", "items": ["long", inner]}, {"type": "map", "values": ["Inner", "boolean"]}]
    data = [
        varint(0) + varint(1) + b"a",
        varint(1)
        + varint(3)
        + varint(0)
        + varint(5)
        + varint(1)
        + varint(0)
        + varint(6)
        + varint(1)
        + varint(1)
        + varint(0),
        varint(2) + varint(1) + varint(1) + b"k" + varint(0) + varint(2) + varint(1) + b"b" + varint(0),
    ]
    wanted = [
        {"string": "a"},
        {"array": [{"long": 5}, {"Inner": {"v": {"int": 6}}}, {"Inner": {"v": None}}]},
        {"map": {"k": {"Inner": {"v": {"string": "b"}}}}},
    ]
    assert [json.loads(payload) for _, payload in read(container(b"null", [(3, b"".join(data))], schema))] == wanted


def test_the_same_name_with_and_without_a_namespace():
    fields = [
        {"name": "a", "type": {"type": "fixed", "name": "X", "namespace": "a.b", "size": 1}},
        {"name": "b", "type": {"type": "fixed", "name": "X", "size": 2}},
        {"name": "c", "type": "X"},
    ]
    ((_, payload),) = read(container(b"null", [(1, b"abbcc")], {"type": "record", "name": "R", "fields": fields}))
    assert json.loads(payload) == {"a": "YQ==", "b": "YmI=", "c": "Y2M="}


def test_decimals_up_to_their_longest_are_exact_and_longer_ones_are_bad_records():
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 20_000, "scale": 3}
    numbers = [(1 << 8 * 4096 - 1) - 1, -(1 << 8 * 4096 - 1), 1 << 8 * 4096, 5]
    values = [
        number.to_bytes(size, "big", signed=True) for number, size in zip(numbers, (4096, 4096, 5000, 1), strict=True)
    ]
    got = read(container(b"null", [(4, b"".join(varint(len(value)) + value for value in values))], schema))
    assert [number for number, _ in got] == [1, 2, 3, 4]
    for (_, payload), number in zip(got[:2], numbers, strict=False):
        sign, digits, exponent = Decimal(json.loads(payload)).as_tuple()
        whole = 0
        for digit in digits:
            whole = whole * 10 + digit
        assert (exponent, -whole if sign else whole) == (-3, number)
    assert got[2:] == [(3, RecordError), (4, b'"0.005"')]


def test_a_decimal_that_is_none_by_avros_rules_stays_bytes():
    for scale, precision in ((5, 4), (-1, 4), ("2", 4), (True, 4)):
        schema = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
        assert read(container(b"null", [(1, varint(1) + b"\x05")], schema)) == [(1, b'"BQ=="')]


LIST = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}


def error_of(data, **options):
    with pytest.raises(CorruptObjectError) as caught:
        read(data, **options)
    return str(caught.value)


def test_data_that_are_too_deep_are_an_error_and_never_the_end_of_the_process():
    inside = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "R"}]}
    assert "nested more than 250 levels" in error_of(container(b"null", [(1, b"")], inside))
    assert read(container(b"null", [(1, b"\x02" * 200 + b"\0")], LIST))[0][0] == 1
    for depth in (300, 5_000, 100_000):
        one = b"\x02" * depth + b"\0"
        assert "record 2: a record is nested more than 250 levels" in error_of(
            container(b"null", [(3, b"\0" + one)], LIST)
        )
    chain = ["null", {"type": "record", "name": "T0", "fields": []}]
    chain += [
        {"type": "record", "name": f"T{n}", "fields": [{"name": "f", "type": f"T{n - 1}"}]} for n in range(1, 5000)
    ]
    assert "more than 250 levels deep" in error_of(container(b"null", [(1, varint(4999))], chain))


@pytest.mark.parametrize("depth", [300, 5_000, 100_000])
def test_a_schema_that_is_too_deep_is_an_error(depth):
    schema = '{"type":"array","items":' * depth + '"null"' + "}" * depth
    data = container(b"null", [(1, b"\0")]).replace(varint(len(json.dumps(SCHEMA))) + json.dumps(SCHEMA).encode(), b"")
    data = data.replace(b"avro.schema", b"avro.schema" + varint(len(schema)) + schema.encode())
    assert "schema" in error_of(data)


@pytest.mark.parametrize("count", [2**28, 2**40, 2**60])
def test_items_without_bytes_are_counted_before_they_are_made(count):
    for items in ("null", {"type": "record", "name": "E", "fields": [{"name": "n", "type": "null"}] * 1}):
        schema = {"type": "array", "items": items}
        assert "bytes of memory" in error_of(container(b"null", [(1, varint(count) + b"\0")], schema))
    assert read(container(b"null", [(1, varint(3) + b"\0")], {"type": "array", "items": "null"})) == [
        (1, b"[null,null,null]")
    ]


def test_memory_for_the_json_of_values_that_take_none_themselves_is_counted():
    schema = {"type": "array", "items": "null"}
    one = varint(100_000) + b"\0"
    assert len(read(container(b"null", [(1, one)], schema))) == 1  # what is loaded on the way
    transformer = make_transformer(InputOptions(format="avro"))
    tracemalloc.start()
    try:
        runs = transformer.read(BytesInput(container(b"null", [(170, one * 170)], schema)))
        assert sum(len(run.payloads) for run in runs) == 170
        assert tracemalloc.get_traced_memory()[1] < 200_000_000
    finally:
        tracemalloc.stop()
    assert weigh("boolean").fixed >= 2 * len("false,")


def test_types_that_multiply_without_bytes_are_refused():
    fields = [{"name": "T0", "fields": []}]
    fields += [
        {"name": f"T{n}", "fields": [{"name": f"f{m}", "type": f"T{n - 1}"} for m in range(10)]} for n in range(1, 12)
    ]
    types = [{"type": "record", **kind} for kind in fields]
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": f"t{n}", "type": kind} for n, kind in enumerate(types)],
    }
    assert "without any content" in error_of(container(b"null", [(1, b"")], schema))
    assert "bytes of memory" in error_of(container(b"null", [(1, varint(11))], types))


def test_records_without_bytes_have_an_end():
    for schema in ("null", {"type": "record", "name": "E", "fields": []}):
        text = b"null" if schema == "null" else b"{}"
        assert read(container(b"null", [(2, b""), (1, b"")], schema)) == [(1, text), (2, text), (3, text)]
        flood = container(b"null", [(999_999, b""), (2, b"")], schema)
        assert "record 1000000: the Avro file has more than 1000000 records" in error_of(flood, limits=BatchLimits())
        assert "more than 1000000 records" in error_of(container(b"null", [(2**60, b"")], schema))
        assert "more than 1000000 records" in error_of(flood, skip=2**61)


@pytest.mark.parametrize("codec", CODECS)
def test_a_block_that_unpacks_to_too_much_is_an_error(codec):
    one = varint(1) + varint(2000) + b"x" * 2000
    blocks = [(1, CODECS[codec](datum(0))), (1, CODECS[codec](one))]
    message = error_of(container(codec, blocks), max_block_bytes=1024)
    assert "max_block_bytes" in message
    assert "record 2" in message
    assert len(read(container(codec, blocks), max_block_bytes=4096)) == 2


def test_a_window_that_a_block_needs_is_named_and_can_be_allowed():
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=28)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = packer.compress(datum(0)) + packer.flush()
    message = error_of(container(b"zstandard", [(1, data)]))
    assert "a block cannot be unpacked with the Avro codec zstandard (the zstd data needs a window of " in message
    assert "more than input.max_window_bytes (134217728)" in message
    assert read(container(b"zstandard", [(1, data)]), max_window_bytes=1 << 28) == expected(1)
    packed = lzma.compress(datum(0), filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 200 << 20}])
    assert "needs more than input.max_window_bytes (134217728 bytes)" in error_of(container(b"xz", [(1, packed)]))
    assert read(container(b"xz", [(1, packed)]), max_window_bytes=256 << 20) == expected(1)


def test_a_header_has_an_end():
    def string(data):
        return varint(len(data)) + data

    data = b"Obj\x01" + varint(9)
    for n in range(8):
        data += string(b"%d" % n) + string(b"x" * 1_000_000)
    assert "header" in error_of(data + varint(0) + b"S" * 16)


def test_big_blocks_of_small_data_are_read_in_parts():
    schema = {"type": "array", "items": {"type": "array", "items": "long"}}
    one = varint(100) + b"\0" * 100 + b"\0"
    assert len(read(container(b"null", [(20_000, one * 20_000)], schema), limits=BatchLimits())) == 20_000
    message = error_of(container(b"null", [(2, one + varint(4_000_000) + b"\0" * 4_000_001)], schema))
    assert "record 2: a record takes more than 134217728 bytes of memory" in message


def test_short_memory_is_never_the_objects_fault(monkeypatch):
    from transformers.avro import codecs as avro_codecs

    def no_memory(*_):
        raise MemoryError

    data = write(SCHEMA, records(3), "deflate")
    monkeypatch.setitem(avro_codecs._CODECS, "deflate", no_memory)
    with pytest.raises(MemoryError, match=r"memory://memory, record 1: there is not enough memory"):
        list(make_transformer(InputOptions(format="avro")).records(BytesInput(data)))


@pytest.mark.parametrize("place", ["codec", "schema", "records"])
def test_what_this_machine_lacks_is_not_the_objects_fault(place, monkeypatch):
    from transformers.avro import codecs as avro_codecs
    from transformers.avro import format as avro_format

    def failing(*_, **__):
        raise ImportError("lib.so: failed to map segment from shared object")

    data = write(SCHEMA, records(3), "deflate")
    if place == "codec":
        monkeypatch.setitem(avro_codecs._CODECS, "deflate", failing)
    elif place == "schema":
        monkeypatch.setattr(avro_format, "plain_schema", failing)
    else:
        monkeypatch.setattr(avro_format, "islice", failing)
    with pytest.raises(ImportError, match="failed to map segment"):
        list(make_transformer(InputOptions(format="avro")).records(BytesInput(data)))


def test_a_block_goes_to_the_decoder_without_a_copy():
    data, source = bytes(100), _BlockSource(SCHEMA)
    source.put(3, data)
    source.read(len(varint(3) + varint(100)))
    assert source.read(100) is data
    assert source.read(SYNC_BYTES) == bytes(SYNC_BYTES)
