"""Parquet: values that keep what they were, missing footers, skipping by row groups, ranged reads."""

import datetime as dt
import errno
import gzip
import io
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
import uuid
from decimal import Decimal
from itertools import pairwise, takewhile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.errors import (
    CorruptObjectError,
    FatalError,
    RecordError,
    RecordTooLargeError,
    StoreUnavailableError,
    TruncatedObjectError,
)
from framework.model.batches import SkippedRecord
from framework.model.parquet import pages, strings
from framework.transformer import BatchLimits, InputOptions
from transformers import BytesInput, make_transformer
from transformers.parquet import batch_sizes, files, row_encoder, row_groups
from transformers.parquet import format as parquet

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
    return flat(transformer.read(source or BytesInput(data, "k.parquet"), skip=skip, limits=LIMITS))


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
                for run in make_transformer(InputOptions(format="parquet")).read(source, limits=LIMITS):
                    found += flat([run])
            except CorruptObjectError as error:
                said.add(error.message)
                assert found == expected(39)[: len(found)]
            else:
                assert found == expected(39)
    assert "the Parquet file's footer counts 39 rows, its row groups 38" in said
    assert len(said) >= 2


def test_counts_below_zero_that_agree_are_an_error():
    data = bytearray(numbers(13))
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    counts = [at for at in range(footer, len(data) - 8) if data[at] == 0x1A]  # 13 as a varint of Thrift
    data[counts[0]] = data[counts[-1]] = 0x01  # -1, in the file's and in its row group's
    meta = pq.ParquetFile(io.BytesIO(bytes(data))).metadata
    assert (meta.num_rows, meta.row_group(0).num_rows) == (-1, -1)
    with pytest.raises(CorruptObjectError, match="footer counts -1 rows, its row groups -1"):
        list(make_transformer(InputOptions(format="parquet")).read(BytesInput(bytes(data), "k.parquet"), limits=LIMITS))


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
    transformer, runs = make_transformer(InputOptions(format="parquet")), []
    with pytest.raises(CorruptObjectError) as caught:
        runs.extend(transformer.read(BytesInput(bytes(data))))
    got = flat(runs)
    assert got[:26] == expected(59)[:26]
    assert got[26:] == [(27, RecordError)]  # its text is what was damaged; behind it no length is right
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
    runs = make_transformer(InputOptions(format="parquet")).read(BytesInput(packed), limits=LIMITS)
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
        (pa.array([1.5, None], pa.float16()), [1.5, None]),
        (pa.array(["é", None], pa.string_view()), ["é", None]),
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
        (pa.array([-13_899_000, -1], pa.time32("ms")), ["-03:51:39.000", "-00:00:00.001"]),
        (pa.array([-1], pa.time64("ns")), ["-00:00:00.000000001"]),
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
    with pytest.raises(CorruptObjectError, match="two columns of the Parquet file have the same name, 'a'"):
        read(write(table))
    struct = pa.StructArray.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "é\n", "é\n"])
    with pytest.raises(CorruptObjectError, match=r"two fields of a struct have the same name, '\\xe9\\n'"):
        read(write(pa.table({"s": struct})))


@pytest.mark.parametrize("plaintext_footer", [True, False])
@pytest.mark.parametrize("small", [True, False], ids=["whole", "by ranges"])
def test_encrypted_columns_are_an_error_and_never_the_end_of_the_process(plaintext_footer, small):
    # in a process of its own, which the library may end
    script = f"""
import io, base64
import pyarrow as pa, pyarrow.parquet as pq, pyarrow.parquet.encryption as encryption
from framework.errors import CorruptObjectError
from framework.transformer import InputOptions
from transformers import BytesInput, make_transformer
from transformers.parquet import format as parquet

class Keys(encryption.KmsClient):
    def __init__(self, config):
        super().__init__()
    def wrap_key(self, key, _):
        return base64.b64encode(key)
    def unwrap_key(self, wrapped, _):
        return base64.b64decode(wrapped)

factory = encryption.CryptoFactory(Keys)
configuration = encryption.EncryptionConfiguration(
    footer_key="f", column_keys={{"c": ["s"]}}, plaintext_footer={plaintext_footer}
)
properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), configuration)
out = io.BytesIO()
table = pa.table({{"n": [1, 2], "s": ["a", "b"]}})
with pq.ParquetWriter(out, table.schema, encryption_properties=properties) as writer:
    writer.write_table(table)
if not {small}:
    parquet._SMALL_OBJECT_BYTES = 0
try:
    print(list(make_transformer(InputOptions(format="parquet")).records(BytesInput(out.getvalue()))))
except CorruptObjectError as exc:
    print(exc)
"""
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("memory://memory, record 1: ")
    assert "crypt" in done.stdout


def test_files_without_rows_or_columns():
    assert read(write(pa.table({"n": pa.array([], pa.int64())}))) == []
    assert read(b"") == []


def int96(values, **options):
    """A file of one column of INT96: pairs of a Julian day and nanoseconds, or None, put in where pyarrow wrote others."""
    stands_for = [
        None if value is None else dt.datetime(2001, 1, 1, 0, 0, n, tzinfo=dt.timezone.utc).replace(tzinfo=None)
        for n, value in enumerate(values)
    ]
    out = io.BytesIO()
    table = pa.table({"n": range(len(values)), "t": pa.array(stands_for, pa.timestamp("ns"))})
    if options.pop("nested", False):
        rows = [[{"t": value}] * 2 for value in stands_for]
        table = pa.table({"l": pa.array(rows, pa.list_(pa.struct([("t", pa.timestamp("ns"))])))})
    pq.write_table(
        table, out, use_deprecated_int96_timestamps=True, use_dictionary=False, compression="none", **options
    )
    data = out.getvalue()
    for n, value in enumerate(values):
        if value is not None:
            old = struct.pack("<qi", n * 10**9, 2_451_911)
            assert old in data
            data = data.replace(old, struct.pack("<qi", value[1], value[0]))
    return data


EPOCH = 2_440_588  # the Julian day of 1970-01-01
DAY = 86_400 * 10**9
OLD_TIMES = {
    (EPOCH, 1): "1970-01-01T00:00:00.000000001",
    (EPOCH - 1, DAY - 1): "1969-12-31T23:59:59.999999999",
    (EPOCH + 2_932_896, 3 * 3600 * 10**9): "9999-12-31T03:00:00.000000000",
    (EPOCH - 719_162, 5): "0001-01-01T00:00:00.000000005",
    (EPOCH - 200_000, DAY - 7): "1422-06-03T23:59:59.999999993",
    (2**31 - 1, 0): "+5874898-06-03T00:00:00.000000000",
}


def test_times_of_the_old_kind_are_right_beyond_what_64_bits_hold():
    data = int96([*OLD_TIMES, None], row_group_size=4)
    expected = [{"n": n, "t": text} for n, text in enumerate([*OLD_TIMES.values(), None])]
    for skip in range(8):
        assert [json.loads(payload) for _, payload in read(data, skip=skip)] == expected[skip:]
    nested = [json.loads(payload) for _, payload in read(int96(list(OLD_TIMES), nested=True))]
    assert nested == [{"l": [{"t": text}] * 2} for text in OLD_TIMES.values()]


def test_an_int96_that_is_no_time_is_a_bad_record(monkeypatch):
    """Were seconds and nanoseconds ever not those of one moment, no other time may go out."""
    real = row_encoder.counts_of
    # the first column of counts are the seconds 0, 1, 2: the second of them is made another
    monkeypatch.setattr(
        row_encoder, "counts_of", lambda array: pa.array([7 if n == 1 else n for n in real(array).to_pylist()])
    )
    got = read(int96([(EPOCH, n * 10**9) for n in range(3)]))
    assert [number for number, _ in got] == [1, 2, 3]
    assert got[1][1] is RecordError
    assert row_encoder._int96_text(1, 5) is row_encoder._NO_TIME


def test_an_int96_of_a_negative_day_is_a_bad_record():
    """Spark's own arithmetic goes around beyond the year 290,000 and leaves such days."""
    got = read(int96([(EPOCH, 5), (-106_000_000, 3), (EPOCH, 7)]))
    assert [number for number, _ in got] == [1, 2, 3]
    assert got[1][1] is RecordError


def test_page_checksums_are_looked_at():
    data = write(pa.table({"n": range(1000)}), write_page_checksum=True, compression="none", use_dictionary=False)
    assert len(read(data)) == 1000
    at = data.index(struct.pack("<qq", 500, 501))
    with pytest.raises(CorruptObjectError, match=r"(?i)crc|checksum"):
        read(data[:at] + b"\x07" + data[at + 1 :])


def test_a_struct_without_fields_is_in_the_schema_and_in_no_batch(monkeypatch):
    """As pyarrow reads such a file; it writes none."""

    class File(pq.ParquetFile):
        @property
        def schema_arrow(self):
            return super().schema_arrow.insert(1, pa.field("s", pa.struct([])))

    monkeypatch.setattr(pq, "ParquetFile", File)
    data = write(pa.table({"a": [1, 2], "b": ["x", "y"]}))
    assert pq.ParquetFile(io.BytesIO(data)).schema_arrow.names == ["a", "s", "b"]
    assert [json.loads(payload) for _, payload in read(data)] == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


@pytest.mark.parametrize("kind", ["list_view", "large_list_view"])
def test_list_views_are_lists(kind):
    made = getattr(pa, kind)
    rows = [[{"x": [1, 2]}, None], None, [], [{"x": []}]]
    array = pa.array(rows, made(pa.struct([("x", made(pa.int64()))])))
    assert values(array) == rows


@pytest.mark.parametrize("kind", ["list_view", "large_list_view"])
def test_list_views_in_any_order_are_lists(kind):
    """Those that pyarrow joins have null views that begin at the first value."""
    array = pa.array([[1, 2], None, [], [3]], getattr(pa, kind)(pa.int8()))
    joined = pa.concat_arrays([array, array])
    for begin in range(9):
        part = joined.slice(begin, 3)
        assert row_encoder.plain_lists(part).to_pylist() == part.to_pylist()
        row_encoder.plain_lists(part).validate(full=True)


@pytest.mark.parametrize("views", [False, True])
def test_lists_of_uuids_that_are_all_null(views):
    """As the batches of a column are that few rows have."""
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)], pa.binary(16)))
    null = pa.array([True])

    def null_list(inner):
        if views:
            return pa.ListViewArray.from_arrays(pa.array([0], "int32"), pa.array([0], "int32"), inner, mask=null)
        return pa.ListArray.from_arrays(pa.array([0, 0], "int32"), inner, mask=null)

    inside = pa.StructArray.from_arrays([uuids], ["u"])
    for array in (null_list(uuids), null_list(inside), null_list(null_list(inside)), null_list(uuids).slice(1)):
        assert values(array) == [None] * len(array)
    fixed = pa.FixedSizeListArray.from_arrays(pa.concat_arrays([inside, inside]), 1)
    assert len(values(fixed)) == len(values(fixed.slice(1))) + 1


def test_a_dictionary_without_values_below_nulls():
    kind = pa.struct([pa.field("d", pa.dictionary(pa.int32(), pa.string()), nullable=False)])
    data = write(pa.table({"s": pa.array([None, {"d": "x"}, None], kind)}), row_group_size=1)
    assert read(data) == [(1, b'{"s":null}'), (2, b'{"s":{"d":"x"}}'), (3, b'{"s":null}')]


def test_counts_below_zero_and_a_sum_of_zero(monkeypatch):
    data = numbers(20)

    class Meta:
        def __init__(self, meta, rows):
            self.meta, self.num_rows = meta, rows

        def __getattr__(self, name):
            return getattr(self.meta, name)

    class File(pq.ParquetFile):
        rows = 0

        @property
        def metadata(self):
            return Meta(super().metadata, self.rows)

    monkeypatch.setattr(pq, "ParquetFile", File)
    assert read(data) == expected(20)
    File.rows = -1
    with pytest.raises(CorruptObjectError, match="counts -1 rows"):
        read(data)


def test_the_rows_before_a_value_that_cannot_be_read_go_out_whatever_is_read_with_them(monkeypatch):
    data = numbers(59, row_group_size=59)
    real = pq.ParquetFile.iter_batches

    def failing(self, *args, **options):
        seen = 0
        for batch in real(self, *args, **options):
            seen += batch.num_rows
            if seen > 41:
                raise pa.ArrowInvalid("row 42 is broken")
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", failing)
    for limits in (BatchLimits(records=7), BatchLimits()):
        for skip in (0, 3, 40, 41):
            transformer, runs = make_transformer(InputOptions(format="parquet")), []
            with pytest.raises(CorruptObjectError, match="row 42 is broken") as caught:
                runs.extend(transformer.read(BytesInput(data, "k"), skip=skip, limits=limits))
            assert flat(runs) == expected(41)[skip:]
            assert caught.value.record_number == 42


PAGES_V2 = {"data_page_version": "2.0"}
TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "b\x00", "\u00fc" * 30, "long" * 50]))
LISTS = st.one_of(st.none(), st.lists(TEXTS, max_size=5))
NESTED = {
    "list": (LISTS, pa.list_(pa.string())),
    "large list": (LISTS, pa.large_list(pa.large_string())),
    "lists": (st.lists(LISTS, max_size=3), pa.list_(pa.list_(pa.binary()))),
    "map": (
        st.lists(st.tuples(st.sampled_from(["k", "l", "m"]), TEXTS), max_size=3, unique_by=lambda pair: pair[0]),
        pa.map_(pa.string(), pa.string()),
    ),
    "structs": (
        st.lists(st.fixed_dictionaries({"x": TEXTS, "n": st.integers(0, 9)}), max_size=3),
        pa.list_(pa.struct([("x", pa.string()), ("n", pa.int64())])),
    ),
    "plain": (TEXTS, pa.string()),
}


@settings(deadline=None)
@given(
    st.integers(0, 40).flatmap(
        lambda rows: st.fixed_dictionaries(
            {name: st.lists(values, min_size=rows, max_size=rows) for name, (values, _) in NESTED.items()}
        )
    ),
    st.sampled_from(
        [{}, {"use_dictionary": False}, {"dictionary_pagesize_limit": 10}, {"store_schema": False}, PAGES_V2]
    ),
    st.integers(0, 3),
)
def test_strings_of_lists_are_the_same_when_they_are_left_in_their_dictionaries(columns, options, skip):
    table = pa.table({name: pa.array(values, NESTED[name][1]) for name, values in columns.items()})
    data = write(table, row_group_size=7, data_page_size=20, **options)
    usual = read(data, skip)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "_STRINGS_PART", 1 << 62)  # any string in a list is too much
        assert read(data, skip) == usual


def delta_lists(lists, **options):
    """Lists of strings, each of which takes its beginning from the one before it."""
    table = pa.table({"l": pa.array(lists, pa.list_(pa.string()))})
    return write(table, use_dictionary=False, column_encoding={"l.list.element": "DELTA_BYTE_ARRAY"}, **options)


@settings(deadline=None)
@given(
    st.lists(st.lists(st.one_of(st.none(), st.text("ab", max_size=20)), max_size=70), min_size=1, max_size=20),
    st.sampled_from(
        [{}, PAGES_V2, {"compression": "none"}, {"compression": "zstd"}, PAGES_V2 | {"compression": "none"}]
    ),
    st.sampled_from([8, 24, 1 << 16]),
)
def test_what_strings_of_lists_take_from_the_ones_before_them_is_added_up(lists, options, at_once):
    data = delta_lists(lists, **options)
    words = [word for words in lists for word in words if word is not None]
    shared = sum(
        sum(1 for _ in takewhile(lambda letters: letters[0] == letters[1], zip(*pair, strict=False)))
        for pair in pairwise(words)
    )
    taken = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strings, "_DELTAS_AT_ONCE", at_once)
        patch.setattr(pages.WatchedFile, "_add_list_strings", lambda _self, _column, takes: taken.append(takes))
        rows = read(data)
    assert [json.loads(row)["l"] for _, row in rows] == lists
    assert max(taken) == shared


@pytest.mark.parametrize("options", [{}, {"data_page_version": "2.0"}])
def test_lists_of_strings_that_share_too_much_end_the_object_with_the_option(options):
    healthy = [[f"some/folder/{number}"] * 4 for number in range(30_000)]
    assert len(read(delta_lists(healthy, **options))) == 30_000
    with pytest.raises(
        CorruptObjectError, match=r"strings that lists share.* more than a quarter of input\.max_page_bytes"
    ):
        read(delta_lists([["x" * 500] * 10_000], **options), max_page_bytes=1 << 20)


def test_a_packed_file_that_unpacks_to_too_much_is_an_error():
    data = gzip.compress(numbers(1000))
    assert len(read(data, max_temporary_bytes=len(numbers(1000)))) == 1000
    with pytest.raises(CorruptObjectError, match=r"input\.max_temporary_bytes \(3000 bytes\)"):
        read(data, max_temporary_bytes=3000)


FULL = OSError(errno.ENOSPC, "No space left on device")
NO_FOLDER = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")


@pytest.mark.parametrize(
    ("failure", "folder", "said"),
    [
        (FULL, "/small", r"in /small \(No space left on device\)"),
        (NO_FOLDER, None, r"anywhere \(No usable temporary directory found in \['/tmp'\]\)"),
    ],
    ids=["full", "a read-only container"],
)
def test_a_temporary_file_that_cannot_be_made_is_not_the_objects_fault(failure, folder, said, monkeypatch):
    def fail(*_, **_options):
        raise failure

    monkeypatch.setattr(parquet, "_SPOOL_BYTES", 100)
    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", fail)
    monkeypatch.setattr(tempfile, "tempdir", folder)
    with pytest.raises(FatalError, match=rf"k\.parquet.*: cannot be unpacked into a temporary file {said}; .*TMPDIR"):
        read(gzip.compress(numbers(1000)))


class FullDisk(io.BytesIO):
    """A file on a full disk, as Python writes it: a short piece waits in memory, and is tried again at each end."""

    def __init__(self, most):
        super().__init__()
        self.most = most

    def write(self, data):
        if len(data) > self.most:
            raise FULL
        return super().write(data)

    def flush(self):
        raise FULL

    def seek(self, *place):
        raise FULL

    def close(self):
        super().close()
        raise FULL


@pytest.mark.parametrize("most", [0, 1_000_000], ids=["a long piece", "a short piece"])
def test_a_disk_that_is_full_is_told_however_much_of_a_piece_waits_in_memory(most, monkeypatch):
    monkeypatch.setattr(parquet, "_SPOOL_BYTES", 100)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda *_, **__: FullDisk(most))
    monkeypatch.setattr(tempfile, "tempdir", "/small")
    said = r"k\.parquet.*: cannot be unpacked into a temporary file in /small \(No space left on device\); .*TMPDIR"
    with pytest.raises(FatalError, match=said):
        read(gzip.compress(numbers(1000)))


@pytest.mark.parametrize("error", [
    ImportError("libarrow.so: failed to map segment from shared object"),
    RuntimeError("can't start new thread"),
    OSError(errno.ENOSPC, "No space left on device"),
])  # fmt: skip
def test_what_this_machine_lacks_is_not_the_objects_fault(error, monkeypatch):
    def failing(*_, **__):
        raise error

    data = numbers(1000)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", failing)
    with pytest.raises(type(error)) as caught:
        read(data)
    assert caught.value is error
    monkeypatch.setattr(pq, "ParquetFile", failing)
    with pytest.raises(type(error)) as caught:
        read(data)
    assert caught.value is error


def test_short_memory_is_never_the_objects_fault_but_a_size_that_cannot_be_is():
    message = "malloc of size {} failed"
    assert not row_groups.is_absurd(pa.ArrowMemoryError(message.format(10**9)))
    assert row_groups.is_absurd(pa.ArrowMemoryError(message.format(2**62)))
    assert not row_groups.is_absurd(MemoryError())


def without_group_size(table):
    """A file of one row group whose footer says 0 for the group's size, as some writers do."""
    data = write(table, compression="none", use_dictionary=False)
    size = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0).total_byte_size
    count, stated = size << 1, b""
    while count > 127:
        stated, count = stated + bytes([count & 127 | 128]), count >> 7
    stated += bytes([count])
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    zero = b"\x80" * (len(stated) - 1) + b"\0"
    changed = data[:footer] + data[footer:].replace(stated, zero, 1)
    assert pq.ParquetFile(io.BytesIO(changed)).metadata.row_group(0).total_byte_size == 0
    return changed


@pytest.fixture
def sizes(monkeypatch):
    """The size in memory of each batch of rows that was read, and that of its JSON."""
    found = []
    real = batch_sizes.BatchSizes.observe

    def observe(self, batch, json_bytes):
        found.append((batch.nbytes, json_bytes))
        real(self, batch, json_bytes)

    monkeypatch.setattr(batch_sizes.BatchSizes, "observe", observe)
    return found


def test_a_small_row_group_is_read_in_few_batches(sizes):
    """A look at the first rows, then as many as a run holds: nothing in it can be too large for that."""
    data = write(pa.table({"n": range(10_000), "s": [f"text {n}" for n in range(10_000)]}))
    assert len(list(make_transformer(InputOptions(format="parquet")).records(BytesInput(data)))) == 10_000
    assert len(sizes) == 3


@pytest.mark.parametrize("columns", [(), ("a",)])
def test_a_row_group_without_a_size_is_read_in_small_batches(sizes, columns):
    rows = [{"a": f"{n:06d}" + "x" * 20_000, "b": n} for n in range(1000)]
    data = without_group_size(pa.Table.from_pylist(rows))
    transformer = make_transformer(InputOptions(format="parquet", columns=columns))
    payloads = [payload for run in transformer.read(BytesInput(data)) for payload in run.payloads]
    assert [json.loads(payload)["a"] for payload in payloads] == [row["a"] for row in rows]
    assert max(sizes)[0] < 6e6
    assert sum(written for _, written in sizes) == sum(map(len, payloads))


def test_memory_follows_what_rows_take_and_not_what_the_footer_says(monkeypatch, sizes):
    """A string of a dictionary counts once in the footer and may be in every row."""
    monkeypatch.setattr(batch_sizes, "_FIRST_BYTES", 1 << 20)
    monkeypatch.setattr(pages, "WORDS_BYTES", 1 << 20)
    long = "x" * 20_000
    rows = [*map(str, range(600)), *[long] * 100]
    nested = [[{"s": row}] for row in rows]
    for table in (
        pa.table({"s": rows}),
        pa.table({"l": [[]] * 3 + nested[3:]}),
        pa.table({"s": pa.array(rows).dictionary_encode()}),
    ):
        sizes.clear()
        count = 0
        data = write(table, row_group_size=700, data_page_size=1000)
        for run in make_transformer(InputOptions(format="parquet")).read(BytesInput(data)):
            count += len(run.payloads)
        assert count == 700
        assert max(sizes)[0] < 1.5e6


def test_rows_whose_json_is_far_larger_than_their_values_are_read_in_small_batches(sizes):
    rows = [{"in": {f"{'x' * 60}{at}": n + at for at in range(50)}} for n in range(5000)]
    data = write(pa.Table.from_pylist(rows))
    assert (
        sum(len(run.payloads) for run in make_transformer(InputOptions(format="parquet")).read(BytesInput(data)))
        == 5000
    )
    read_bytes, written = map(sum, zip(*sizes, strict=True))
    assert written > 5 * read_bytes
    assert max(written for _, written in sizes) < 4.5e6


def test_rows_of_long_names_are_encoded_in_parts(monkeypatch):
    name = "n" * 1000
    inside = pa.struct([(name, pa.int16())])
    rows = [[{name: n}] * (n % 4) for n in range(200)]
    columns = {
        "list": pa.array(rows, pa.list_(inside)),
        "map": pa.array([list(zip("abc", row, strict=False)) for row in rows], pa.map_(pa.string(), inside)),
        "record": pa.array([{name: n} for n in range(200)], inside),
        name: range(200),
    }
    data = write(pa.table(columns))
    usual = read(data)
    encoded = []

    def payloads(self, batch, *others, real=row_encoder.RowEncoder.payloads):
        encoded.append(sum(map(len, real(self, batch, *others))))
        return real(self, batch, *others)

    monkeypatch.setattr(row_encoder.RowEncoder, "payloads", payloads)
    monkeypatch.setattr(row_groups, "NAMES_BYTES", 20_000)
    assert read(data) == usual
    assert max(encoded) < 22_000
    longest = max(len(payload) for _, payload in usual)
    assert read(data, max_record_bytes=longest) == usual
    bad = [number for number, found in read(data, max_record_bytes=longest - 1) if found is RecordTooLargeError]
    assert bad == [number for number, payload in usual if len(payload) == longest]


def test_the_names_of_a_null_record_make_no_row_too_large(monkeypatch):
    monkeypatch.setattr(row_groups, "NAMES_BYTES", 20)
    array = pa.array([None, {"n" * 100: 1}, None], pa.struct([("n" * 100, pa.int8())]))
    data = write(pa.table({"r": array}))
    assert read(data, max_record_bytes=50) == [(1, b'{"r":null}'), (2, RecordTooLargeError), (3, b'{"r":null}')]


def test_rows_that_are_far_too_long_are_not_read(monkeypatch):
    data = write(pa.table({"s": ["x" * 100_000] * 3}), use_dictionary=False)
    assert [value for _, value in read(data, max_record_bytes=90_000)] == [RecordTooLargeError] * 3
    monkeypatch.setattr(row_groups, "_MAX_ROW_BYTES", 90_000)
    with pytest.raises(CorruptObjectError, match=r"row group 1 .* about 1000\d\d bytes"):
        read(data)


def test_dictionaries_are_looked_at_without_a_request_more(monkeypatch):
    monkeypatch.setattr(parquet, "_SMALL_OBJECT_BYTES", 0)
    data = write(
        pa.table({"s": [f"text {n % 4000}" for n in range(50_000)], "n": range(50_000)}), row_group_size=25_000
    )
    asked = []

    class Watched(BytesInput):
        def open(self, start=0, end=None):
            asked.append((start, end))
            return super().open(start, end)

    transformer = make_transformer(InputOptions(format="parquet", compression="none"))
    assert sum(len(run.payloads) for run in transformer.read(Watched(data))) == 50_000
    assert len(set(asked)) == len(asked) == 5


def test_dictionaries_are_measured_where_they_are_read_the_first_time(monkeypatch):
    opened = []

    class Counted(pages.WatchedFile):
        def __init__(self, *arguments, **options):
            opened.append(self)
            super().__init__(*arguments, **options)

    monkeypatch.setattr(row_groups, "WatchedFile", Counted)
    monkeypatch.setattr(batch_sizes, "_FIRST_BYTES", 1000)
    monkeypatch.setattr(pages, "WORDS_BYTES", 1000)
    data = write(
        pa.table({
            "s": [f"text {n % 7 * 111}" for n in range(500)], "n": range(500),
            "l": [[f"t{n}" * 10] * (n % 2) for n in range(500)], "e": [""] * 500,
        })
    )  # fmt: skip
    assert len(read(data)) == 500
    assert [[column.longest for column in watched._columns] for watched in opened] == [[8, 0, 40, 0]]


def test_reads_are_kept_up_to_a_limit_for_one_repetition(monkeypatch):
    monkeypatch.setattr(files, "_KEPT_BYTES", 100)
    file = files.RangedFile(BytesInput(bytes(range(250))))

    def read(at):
        file.seek(at)
        before = file.fetched
        assert file.read(40) == bytes(range(at, at + 40))
        return file.fetched - before

    file.keep()
    assert [read(at) for at in (0, 40, 80, 120)] == [40] * 4
    assert [read(at) for at in (0, 40, 80)] == [0] * 3, "kept"
    assert [read(at) for at in (120, 0)] == [40] * 2, "beyond the limit, and given back once"
    assert [read(at) for at in (120, 0)] == [0] * 2, "with room again"
    file.keep()
    assert [read(at) for at in (0, 40, 80, 80)] == [40, 40, 40, 0]
    file.forget()
    assert read(0) == 40
