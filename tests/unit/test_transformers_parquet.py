"""Parquet: values that keep what they were, missing footers, skipping by row groups, ranged reads."""

import datetime as dt
import io
import json
import math
import os
import tempfile
import uuid
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framework.errors import (
    CorruptObjectError,
    RecordError,
    RecordTooLargeError,
    StoreUnavailableError,
    TruncatedObjectError,
)
from framework.records import SkippedRecord
from framework.transformer import BatchLimits, InputOptions
from transformers import BytesInput, make_transformer, parquet

PYARROW = int(pa.__version__.split(".")[0])
LIMITS = BatchLimits(records=7, size_bytes=300)


def flat(runs):
    out = []
    for run in runs:
        if isinstance(run, SkippedRecord):
            out.append((run.record_number, type(run.error)))
        else:
            assert run.size_bytes == sum(map(len, run.payloads))
            out += enumerate(run.payloads, run.first_record)
    return out


def read(data, skip=0, source=None, **options):
    transformer = make_transformer(InputOptions(format="parquet", **options))
    return flat(transformer.runs(source or BytesInput(data, "k.parquet"), skip=skip, limits=LIMITS))


def write(table, **options):
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def numbers(count, **options):
    table = pa.table({"n": range(count), "s": [f"text {n}" for n in range(count)]})
    return write(table, row_group_size=options.pop("row_group_size", 13), **options)


def expected(count):
    return [(n + 1, b'{"n":%d,"s":"text %d"}' % (n, n)) for n in range(count)]


@pytest.mark.parametrize("small", [True, False])
def test_skipping_gives_the_rest(small, monkeypatch):
    if not small:
        monkeypatch.setattr(parquet, "_SMALL_OBJECT_BYTES", 0)
    data = numbers(59)
    for skip in range(61):
        assert read(data, skip=skip) == read(data, skip=skip, compression="none") == expected(59)[skip:]


def test_skipped_row_groups_are_not_read(monkeypatch):
    monkeypatch.setattr(parquet, "_SMALL_OBJECT_BYTES", 0)
    data = write(
        pa.table({"x": os.urandom(8 * 200_000).hex(" ", 8).split()}), row_group_size=50_000, use_dictionary=False
    )
    asked = []

    class Watched(BytesInput):
        def open(self, start=0, end=None):
            asked.append((end or len(data)) - start)
            return super().open(start, end)

    assert len(read(data, skip=199_990, source=Watched(data), compression="none")) == 10
    assert sum(asked) < len(data) / 2
    asked.clear()
    assert len(read(data, source=Watched(data), compression="none")) == 200_000
    assert max(asked) <= 1 << 20


def test_a_small_object_takes_one_request():
    opened = []

    class Watched(BytesInput):
        def open(self, start=0, end=None):
            opened.append((start, end))
            return super().open(start, end)

    read(b"", source=Watched(numbers(59)))
    assert opened == [(0, None)]


@pytest.mark.parametrize("small", [True, False])
def test_a_cut_anywhere_is_an_error(small, monkeypatch):
    if not small:
        monkeypatch.setattr(parquet, "_SMALL_OBJECT_BYTES", 0)
    data = numbers(3)
    for end in range(1, len(data)):
        with pytest.raises(CorruptObjectError, match=r"k\.parquet, record 1"):
            read(data[:end])
    with pytest.raises(TruncatedObjectError, match="footer"):
        read(data[: len(data) // 2])
    with pytest.raises(TruncatedObjectError):
        read(data[:2])


def test_counts_that_do_not_agree_are_an_error_and_no_row_has_another_ones_number():
    """Each byte of the footer that could be a count of 13 rows becomes one of 12 and of 14."""
    data = numbers(39)
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    said = set()
    for at in range(footer, len(data) - 8):
        for other in (b"\x18", b"\x1c") if data[at : at + 1] == b"\x1a" else ():
            found = []
            source = BytesInput(data[:at] + other + data[at + 1 :], "k.parquet")
            try:
                for run in make_transformer(InputOptions(format="parquet")).runs(source, limits=LIMITS):
                    found += flat([run])
            except CorruptObjectError as error:
                said.add(error.message)
                assert found == expected(39)[: len(found)]
            else:
                assert found == expected(39)
    assert "the Parquet file's footer counts 39 rows, its row groups 38" in said
    assert len(said) >= 2


def test_what_is_no_parquet_is_named():
    for junk in (b"plain text, and more of it", b"PK\3\4" + b"\0" * 50):
        with pytest.raises(CorruptObjectError, match=r"not a Parquet file.*input\.format"):
            read(junk)
    with pytest.raises(CorruptObjectError, match="encrypted"):
        read(b"PARE" + b"\0" * 50 + b"PARE")


def test_damage_inside_is_an_error_after_the_rows_before_it():
    data = bytearray(numbers(59, compression="none", use_dictionary=False))
    at = data.index(b"text 30") - 40
    data[at : at + 30] = b"\xff" * 30
    transformer, got = make_transformer(InputOptions(format="parquet")), []
    with pytest.raises(CorruptObjectError) as caught:
        got.extend(transformer.records(BytesInput(bytes(data))))
    assert got == [payload for _, payload in expected(59)[: len(got)]]
    assert len(got) >= 26
    assert caught.value.record_number == len(got) + 1


def test_an_error_of_the_store_stays_what_it_is(monkeypatch):
    monkeypatch.setattr(parquet, "_SMALL_OBJECT_BYTES", 0)

    class Broken(BytesInput):
        left = 2

        def open(self, start=0, end=None):
            self.left -= 1
            if self.left < 0:
                raise StoreUnavailableError("away")
            return super().open(start, end)

    with pytest.raises(StoreUnavailableError):
        read(b"", source=Broken(numbers(59)), compression="none")


def test_the_temporary_file_is_deleted(monkeypatch, tmp_path):
    monkeypatch.setattr(parquet, "_SPOOL_BYTES", 10)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    import gzip

    packed = gzip.compress(numbers(59))
    runs = make_transformer(InputOptions(format="parquet")).runs(BytesInput(packed), limits=LIMITS)
    next(runs)
    runs.close()
    assert read(packed) == expected(59)
    with pytest.raises(TruncatedObjectError):
        read(packed[:-20])
    assert list(tmp_path.iterdir()) == []


def test_a_skipped_row_group_is_not_decoded():
    data = bytearray(numbers(39, compression="none", use_dictionary=False))
    at = data.index(b"text 6") - 40
    data[at : at + 30] = b"\xff" * 30
    assert read(bytes(data), skip=13) == expected(39)[13:]
    with pytest.raises(CorruptObjectError):
        read(bytes(data), skip=12)


def values(array, skip=0, **options):
    data = write(pa.table({"v": array}), **options)
    return [json.loads(payload)["v"] for _, payload in read(data, skip=skip)]


@pytest.mark.parametrize(
    ("array", "result"),
    [
        (pa.array([-(2**63), None, 2**63 - 1]), [-(2**63), None, 2**63 - 1]),
        (pa.array([0, 2**64 - 1], pa.uint64()), [0, 2**64 - 1]),
        (pa.array([1.5, None, math.nan, -math.inf]), [1.5, None, "NaN", "-Infinity"]),
        (pa.array([0.1, math.inf], pa.float32()), [0.10000000149011612, "Infinity"]),
        (pa.array([True, None, False]), [True, None, False]),
        (pa.nulls(2), [None, None]),
        (pa.array(["é\n", None, ""]), ["é\n", None, ""]),
        (pa.array([b"\0\xff", None]), ["AP8=", None]),
        (pa.array([b"ab", None], pa.binary(2)), ["YWI=", None]),
        (pa.array([Decimal("1.50"), None], pa.decimal128(30, 10)), ["1.5000000000", None]),
        (pa.array([Decimal("0.0000000001")], pa.decimal128(30, 10)), ["0.0000000001"]),
        (pa.array([10**30], pa.decimal256(60, 0)), [str(10**30)]),
        (pa.array([dt.date(2024, 2, 29), None]), ["2024-02-29", None]),
        (pa.array([3_000_000, -800_000], pa.date32()), ["+10183-09-21", "-0221-09-04"]),
        (pa.array([1, None, -1], pa.timestamp("ns")), ["1970-01-01T00:00:00.000000001", None, "1969-12-31T23:59:59.999999999"]),
        (pa.array([1], pa.timestamp("us", tz="UTC")), ["1970-01-01T00:00:00.000001Z"]),
        (pa.array([1], pa.timestamp("ms", tz="Europe/Berlin")), ["1970-01-01T00:00:00.001Z"]),
        (pa.array([1, None], pa.time32("ms")), ["00:00:00.001", None]),
        (pa.array([86_399_999_999], pa.time64("us")), ["23:59:59.999999"]),
        (pa.array([1], pa.time64("ns")), ["00:00:00.000000001"]),
        (pa.array([1500, None, -1], pa.duration("ms")), ["PT1.500S", None, "-PT0.001S"]),
        (pa.array(["a", "b", None, "a"]).dictionary_encode(), ["a", "b", None, "a"]),
        (pa.array([[1, None], None, []]), [[1, None], None, []]),
        (pa.array([[math.nan], [1.0]]), [["NaN"], [1.0]]),
        pytest.param(
            pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)), [[1, 2], None, [3, 4]],
            marks=pytest.mark.skipif(PYARROW < 26, reason="pyarrow could not read a null list of fixed size"),
        ),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)), [[1, 2], [3, 4]]),
        (pa.array([{"a": 1, "b": [b"x"]}, None]), [{"a": 1, "b": ["eA=="]}, None]),
        (pa.array([[{"a": 1}, None], [], None]), [[{"a": 1}, None], [], None]),
        (pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())), [{"a": 1}, None, {}]),
        (pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64())), [[["a", 1], ["a", 2]]]),
        (pa.array([[(1, b"x")]], pa.map_(pa.int64(), pa.binary())), [[[1, "eA=="]]]),
    ],
)  # fmt: skip
def test_values_keep_what_they_were(array, result):
    assert values(array) == result
    # The same in slices, as batches that do not begin a row group are.
    for skip in range(3):
        assert values(pa.chunked_array([array] * 9), skip=skip) == (result * 9)[skip:]


def test_uuids_and_enums_are_known_by_the_files_own_types():
    identifier = uuid.UUID(int=7)
    if hasattr(pa, "uuid"):
        array = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([identifier.bytes, None], pa.binary(16)))
        assert values(array) == values(array, store_schema=False) == [str(identifier), None]


def test_text_that_is_not_utf8_and_rows_too_long_are_bad_one_by_one():
    raw = pa.array([b"a", b"\xff", b"c"])
    text = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    assert read(write(pa.table({"v": text}))) == [(1, b'{"v":"a"}'), (2, RecordError), (3, b'{"v":"c"}')]
    data = write(pa.table({"v": ["a", "b" * 200, "c"]}))
    assert read(data, max_record_bytes=100) == [(1, b'{"v":"a"}'), (2, RecordTooLargeError), (3, b'{"v":"c"}')]


def test_two_columns_of_one_name_are_an_error():
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(CorruptObjectError, match="same name"):
        read(write(table))


def test_files_without_rows_or_columns():
    assert read(write(pa.table({"n": pa.array([], pa.int64())}))) == []
    assert read(b"") == []
