"""Parquet files that lie: about their pages, their sizes, their places. Each is an error that names the object and why."""

import io
import itertools
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.errors import CorruptObjectError, RecordTooLargeError, TruncatedObjectError
from framework.model.batches import SkippedRecord
from framework.model.parquet import page_headers, strings
from framework.transformer import InputOptions
from tests.support import parquet_parts as parts
from tests.support.examples import examples
from transformers import BytesInput, make_transformer
from transformers.parquet import format as parquet_module
from transformers.parquet import row_groups

MIB = 1 << 20
STRINGS = parts.data_page(2, parts.string(b"a") + parts.string(b"b"))
PAGES = "input.max_page_bytes (1048576 bytes), from column"


def read(data, **options):
    """How many records came, and the error behind them."""
    count = 0
    transformer = make_transformer(InputOptions(format="parquet", **options))
    try:
        for run in transformer.read(BytesInput(data, "k")):
            if isinstance(run, SkippedRecord):
                return count, run.error
            count += len(run.payloads)
    except (CorruptObjectError, TruncatedObjectError) as exc:
        return count, exc
    return count, None


def listed(values):
    levels = parts.levels(parts.run(1, 0, 1) + parts.run(values - 1, 1, 1)) + parts.levels(parts.run(values, 1, 1))
    pages = [
        parts.dictionary_page(1, b"\7\0\0\0"),
        parts.data_page(values, levels + b"\1" + parts.run(values, 0, 1), parts.RLE_DICTIONARY),
    ]
    column = parts.column(pages, rows=values, kind=parts.INT32, repetition=parts.REPEATED, dictionary=True)
    return parts.parquet(column, rows=1)


def words(size, rows):
    pages = [
        parts.dictionary_page(1, parts.string(bytes(size))),
        parts.data_page(rows, b"\1" + parts.run(rows, 0, 1), parts.RLE_DICTIONARY),
    ]
    return parts.parquet(parts.column(pages, rows=rows, dictionary=True), rows=rows)


def prefixes(size, rows):
    page = parts.data_page(rows, parts.prefixed(size, rows), parts.DELTA_BYTE_ARRAY)
    return parts.parquet(parts.column([page], rows=rows), rows=rows)


@pytest.mark.parametrize("columns", [(), ("c0",)], ids=["all columns", "chosen"])
def test_columns_that_the_schema_and_a_row_group_do_not_share_never_end_the_process(columns, tmp_path):
    """Each file in a process of its own: `std::terminate` cannot be caught."""
    files = {lie: tmp_path / str(place) for place, lie in enumerate(itertools.product(range(3), range(3), (0, 1000)))}
    for (known, count, size), file in files.items():
        column = parts.column([STRINGS], rows=2)
        file.write_bytes(parts.parquet(*[column] * count, rows=2, in_schema=known, said=size))
    script = """
import os, sys
from tests.unit.transformers.parquet.test_pages import read
for name in sys.argv[2:]:
    if not os.fork():
        with open(name, "rb") as file:
            _, error = read(file.read(), columns=sys.argv[1].split())
        print(getattr(error, "message", ""), file=sys.stderr, flush=True)
        os._exit(1)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, " ".join(columns), *map(str, files.values())],
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["1"] * len(files)
    for (known, count, _), said in zip(files, done.stderr.splitlines(), strict=True):
        if known != count:
            assert said == f"a row group of the Parquet file has {count} columns, its schema {known}"


def one_page(**claims):
    return parts.parquet(parts.column([parts.data_page(1, parts.string(b"a"), **claims)], rows=1), rows=1)


def shared(columns):
    """Columns that all claim the same page, of nearly half of what is allowed."""
    page = parts.data_page(1, parts.string(bytes(400_000)))
    first = parts.column([page], rows=1)
    others = [parts.column([], rows=1, data_offset=4, packed=len(page)) for _ in range(columns - 1)]
    return parts.parquet(first, *others, rows=1)


def test_files_made_by_hand_are_read():
    assert read(parts.parquet(parts.column([STRINGS], rows=2), rows=2)) == (2, None)
    assert read(listed(9)) == (1, None)
    assert read(words(9, 7)) == (7, None)
    assert read(prefixes(9, 32)) == (32, None)
    assert read(shared(1), max_page_bytes=MIB) == (1, None)


UNFOLD = {
    "a page": parts.parquet(parts.column([parts.data_page(1, parts.string(bytes(2 * MIB)))], rows=1), rows=1),
    "a page that says so": one_page(unpacked=2**31 - 1),
    "a page that says so of its packed form": parts.parquet(
        parts.column([parts.page(0, b"", {3: parts.i32(2**31 - 1)})], rows=1), rows=1
    ),
    "a page of no kind that says so": parts.parquet(
        parts.column([parts.page(10240, b"", {3: parts.i32(2**31 - 1)})], rows=1), rows=1
    ),
    "a dictionary": words(MIB, 3),
    "a dictionary that says so": parts.parquet(
        parts.column([parts.dictionary_page(2**31 - 1, b""), STRINGS], rows=2, dictionary=True), rows=2
    ),
    "a list": listed(2**28),
    "columns": parts.parquet(*[parts.column([parts.data_page(1, parts.string(bytes(99_000)))], rows=1)] * 9, rows=1),
    "columns of the same bytes": shared(3),
    "a long prefix": prefixes(500_000, 32),
}


@pytest.mark.parametrize("small", [True, False], ids=["whole", "by ranges"])
@pytest.mark.parametrize("name", UNFOLD)
def test_pages_that_unfold_to_too_much_are_an_error(name, small, monkeypatch):
    if not small:
        monkeypatch.setattr(parquet_module, "_SMALL_OBJECT_BYTES", 0)
    count, error = read(UNFOLD[name], max_page_bytes=MIB)
    assert count == 0
    assert isinstance(error, CorruptObjectError)
    assert str(error).startswith("memory://k, record 1: ")
    assert PAGES in str(error)


def wide_footer(columns):
    file = io.BytesIO()
    pq.write_table(pa.table({f"c{number}": [1] for number in range(columns)}), file)
    return file.getvalue()


def footer_of_small_parts(count):
    """A file whose footer says that it has a row group of many columns, each of three bytes."""
    columns = parts.many([parts.structure({2: parts.i64(0)})] * count)
    group = parts.structure({1: columns, 2: parts.i64(0), 3: parts.i64(0)})
    schema = parts.many([parts.structure({4: parts.text(b"schema"), 5: parts.i32(0)})])
    _, footer = parts.structure({1: parts.i32(1), 2: schema, 3: parts.i64(0), 4: parts.many([group])})
    return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"


@pytest.mark.parametrize("small", [True, False], ids=["whole", "by ranges"])
@pytest.mark.parametrize(
    "file", [wide_footer(2000), footer_of_small_parts(5000), b"PAR1" + bytes(2 * MIB) + b"\0\0 \0PAR1"]
)
def test_a_footer_that_unfolds_to_too_much_is_an_error(file, small, monkeypatch):
    if not small:
        monkeypatch.setattr(parquet_module, "_SMALL_OBJECT_BYTES", 0)
    count, error = read(file, max_page_bytes=MIB)
    assert count == 0
    assert isinstance(error, CorruptObjectError)
    assert "the footer of" in str(error)
    assert "input.max_page_bytes" in str(error)


def test_a_wide_footer_within_the_limit_is_read():
    assert read(wide_footer(2000), max_page_bytes=16 * MIB) == (1, None)


def test_strings_that_are_in_every_row_are_read_in_small_batches():
    assert read(words(200_000, 300), max_page_bytes=MIB) == (300, None)
    assert read(prefixes(300_000, 32), max_page_bytes=MIB) == (32, None)


def test_pages_that_are_read_ahead_are_not_held():
    # all fifty are in the first megabyte that is read
    page = parts.data_page(1, parts.string(b"x" * 300_000))
    assert read(parts.parquet(parts.column([page] * 50, rows=50), rows=50), max_page_bytes=MIB) == (50, None)


LIES = {
    "an offset behind the end": {"data_offset": 10**12},
    "an offset below zero": {"data_offset": -5},
    "an offset of another place": {"data_offset": 9},
    "a dictionary behind the end": {"dictionary_offset": 10**12, "data_offset": 10**12 + 9},
    "more bytes than there are": {"packed": 10**12},
    "bytes below zero": {"packed": -7},
    "fewer bytes than a page has": {"packed": 20},
    "values below zero": {"values": -3},
}


@pytest.mark.parametrize("name", LIES)
def test_a_footer_that_lies_is_an_error_of_the_object(name):
    count, error = read(parts.parquet(parts.column([STRINGS], rows=2, **LIES[name]), rows=2))
    assert count < 2
    assert str(error).startswith("memory://k, record ")


def test_a_count_of_values_that_lies_changes_nothing():
    for values in (1, 2**40):
        assert read(parts.parquet(parts.column([STRINGS], rows=2, values=values), rows=2)) == (2, None)


@pytest.mark.parametrize("size", [2**31 - 1, 2**31, 2**32 - 9, 200])
def test_a_footer_that_is_longer_than_the_file_is_an_error(size):
    _, error = read(parts.parquet(parts.column([STRINGS], rows=2), rows=2, footer_bytes=size))
    assert isinstance(error, CorruptObjectError)


def test_counts_of_rows_that_lie_are_an_error_behind_the_rows():
    for rows in (3, 2**31, 2**40, 2**62):
        count, error = read(parts.parquet(parts.column([STRINGS], rows=2), rows=2, rows_said=rows))
        assert count == 2
        assert f"has 2 rows where the footer counts {rows}" in str(error)


@pytest.mark.parametrize("claims", [{"unpacked": -9}, {"unpacked": -(2**31)}])
def test_a_size_below_zero_is_an_error(claims):
    assert "has a number below zero" in str(read(one_page(**claims))[1])


def test_a_header_may_hold_what_is_not_known_here():
    item = parts.structure({1: parts.i32(4), 2: (1, b""), 3: (2, b"")})
    unknown = {
        20: parts.many([item, item]), 21: (7, bytes(8)), 22: (3, b"x"), 23: (4, parts.signed(-9)), 24: parts.text(b"abc"),
        25: (11, parts.unsigned(1) + bytes([0x85]) + parts.unsigned(1) + b"k" + parts.signed(7)), 26: (11, b"\0"),
        27: (9, bytes([0x21]) + b"\1\2"), 28: (10, bytes([0xF5]) + parts.unsigned(16) + b"\2" * 16), 300: parts.i64(1),
    }  # fmt: skip
    fields = {number: value for number, value in unknown.items() if number < 300}
    head = {5: parts.structure({1: parts.i32(1), 2: parts.i32(0), 3: parts.i32(3), 4: parts.i32(3)}), **fields}
    data = parts.page(0, parts.string(b"a"), head, codec=parts.UNCOMPRESSED)
    header = page_headers.page_header(data)
    assert (header.size, header.unpacked, header.packed, header.values) == (len(data) - 5, 5, 5, 1)
    column = parts.column([data], rows=1, codec=parts.UNCOMPRESSED)
    assert read(parts.parquet(column, rows=1)) == (1, None)
    for end in range(header.size):
        with pytest.raises(IndexError):
            page_headers.page_header(data[:end])


def test_what_is_no_header_is_refused():
    for data in (b"\x15" + b"\xff" * 20, b"\x1d", b"\xcc" + b"\x1c" * 5000 + b"\0" * 5001):
        with pytest.raises(page_headers.PagesError):
            page_headers.page_header(data)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "zstd", "lz4"])
def test_pages_of_other_writers_are_followed(codec, version, monkeypatch):
    monkeypatch.setattr(parquet_module, "_SMALL_OBJECT_BYTES", 0)
    monkeypatch.setattr(row_groups, "_BUFFER_BYTES", 256)
    rows = 3000
    table = pa.table({
        "n": range(rows), "s": [f"text {n % 700}" * 9 for n in range(rows)], "l": [[n] * (n % 4) for n in range(rows)],
        "d": pa.array([None if n % 3 else f"{n}" for n in range(rows)]),
    })  # fmt: skip
    out = io.BytesIO()
    pq.write_table(
        table, out, compression=codec, data_page_version=version, data_page_size=500, write_batch_size=50,
        row_group_size=1700, use_dictionary=["s"], dictionary_pagesize_limit=9000,
    )  # fmt: skip
    assert read(out.getvalue(), max_page_bytes=MIB) == (rows, None)


def test_a_row_of_too_many_values_is_a_bad_record():
    large = pa.array([[1], [2] * 9_000_000, [3]], pa.list_(pa.int8()))
    out = io.BytesIO()
    pq.write_table(pa.table({"l": large}), out)
    transformer = make_transformer(InputOptions(format="parquet"))
    got = []
    for run in transformer.read(BytesInput(out.getvalue())):
        got += [run.error] if isinstance(run, SkippedRecord) else [bytes(payload) for payload in run.payloads]
    assert (got[0], got[2]) == (b'{"l":[1]}', b'{"l":[3]}')
    assert isinstance(got[1], RecordTooLargeError)
    assert got[1].record_number == 2


WORDS = st.one_of(
    st.binary(max_size=6),
    st.text(max_size=40).map(str.encode),
    st.sampled_from([b"", b"a" * 255, b"a" * 256, b"\0" * 3, b"\5\0\0\0", b"a\0\0\0b", b"ab\3\0\0\0"]),
)


@settings(max_examples=examples(300))
@given(st.lists(WORDS, max_size=8) | st.lists(st.text("abc", min_size=1).map(str.encode)), st.binary(max_size=5))
def test_the_longest_string_of_a_dictionary_is_found_whatever_its_bytes(words, behind):
    data = b"".join(len(word).to_bytes(4, "little") + word for word in words) + behind
    expected = at = 0
    while at + 4 <= len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        expected, at = max(expected, length), at + 4 + length
    header = page_headers.page_header(parts.dictionary_page(len(words) + 2, data, codec=parts.UNCOMPRESSED))
    assert strings.longest_word(data, header, "UNCOMPRESSED") == min(expected, len(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strings, "_MAX_SHORT_WORDS_BYTES", 0)
        assert strings.longest_word(data, header, "UNCOMPRESSED") == min(expected, len(data))
        header = page_headers.page_header(parts.dictionary_page(2, data, codec=parts.UNCOMPRESSED))
        longest = max(map(len, words[:2]), default=0)
        assert len(words) < 2 or strings.longest_word(data, header, "UNCOMPRESSED") == longest
