"""CSV rows against the standard library's reader, and every kind of bad row."""

import csv
import io
import json
import re
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from framework.errors import CorruptObjectError, RecordError, RecordTooLargeError, TruncatedObjectError
from framework.model.batches import SkippedRecord
from framework.transformer import BatchLimits, InputOptions
from tests.support.examples import examples
from transformers import BytesInput, csv_rows, make_transformer


def read(data, skip=0, piece=2_000_000, **options):
    transformer = make_transformer(InputOptions(format="csv", compression="none", **options))
    out = []
    for run in transformer.read(BytesInput(data), skip=skip, limits=BatchLimits(size_bytes=piece)):
        if isinstance(run, SkippedRecord):
            assert run.error.record_number == run.record_number
            out.append((run.record_number, type(run.error)))
        else:
            assert run.size_bytes == sum(map(len, run.payloads))
            out += [(number, json.loads(payload)) for number, payload in enumerate(run.payloads, run.first_record)]
    assert [number for number, _ in out] == list(range(skip + 1, skip + 1 + len(out)))
    return out


fields = st.text(st.sampled_from('ab ,;"\n\ré\u2028\x0b\x1c'), max_size=5)


@given(
    rows=st.lists(st.lists(fields, min_size=3, max_size=3), max_size=9),
    end=st.sampled_from(["\n", "\r\n"]),
    quote_all=st.booleans(),
    last_end=st.booleans(),
    bom=st.booleans(),
    piece=st.integers(1, 50),
    delimiter=st.sampled_from([",", ";", "\t"]),
)
@settings(max_examples=examples(300), deadline=None)
@example([["a", "b", "c"], ["", "x\r\ny", '"']], "\r\n", False, True, False, 1, ",")
def test_rows_that_the_standard_library_wrote_come_back(rows, end, quote_all, last_end, bom, piece, delimiter):
    text = io.StringIO()
    # The writer of older Pythons leaves a lone CR without quotes when lines end with LF.
    quoting = csv.QUOTE_ALL if quote_all or any("\r" in field for row in rows for field in row) else csv.QUOTE_MINIMAL
    csv.writer(text, lineterminator=end, quoting=quoting, delimiter=delimiter).writerows([["x", "y y", "z"], *rows])
    data = text.getvalue().encode()
    if not last_end:
        data = data.removesuffix(end.encode())
    if bom:
        data = b"\xef\xbb\xbf" + data
    expected = list(enumerate((dict(zip(["x", "y y", "z"], row, strict=True)) for row in rows), 1))
    for size in (piece, 10**6):
        assert read(data, piece=size, csv_delimiter=delimiter) == expected
        for skip in (1, 4, len(rows)):
            assert read(data, piece=size, csv_delimiter=delimiter, skip=skip) == expected[skip:]
    as_lists = read(data, piece=piece, csv_delimiter=delimiter, csv_header=False)
    assert [value for _, value in as_lists] == [["x", "y y", "z"], *rows]


def test_bad_rows_are_told_one_by_one_and_keep_their_numbers():
    for first in (b"1,2", b'"1",2'):  # with and without quotes in the object: two ways through the code
        data = b"a,b\n" + first + b"\n1,2,3\n1\n\n\xff,2\n3,4\n"
        expected = [
            (1, {"a": "1", "b": "2"}),
            (2, RecordError),
            (3, RecordError),
            (4, RecordError),
            (5, {"a": "3", "b": "4"}),
        ]
        for piece in (1, 7, 1000):
            for skip in range(6):
                assert read(data, skip=skip, piece=piece) == expected[skip:]
    assert read(b'a,b\n"1"x,2\n3,4\n') == [(1, RecordError), (2, {"a": "3", "b": "4"})]


def test_names_may_hold_anything():
    names = ['a"b', "c\\d", "e\nf", "", "é", "class", "\u2028"]
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(
        [names, list("1234567"), ["1"], list("7654321")]
    )
    expected = [
        (1, dict(zip(names, "1234567", strict=True))),
        (2, RecordError),
        (3, dict(zip(names, "7654321", strict=True))),
    ]
    assert read(text.getvalue().encode()) == expected


def test_a_bad_row_says_what_is_wrong_and_not_what_is_in_it():
    runs = list(make_transformer(InputOptions(format="csv")).read(BytesInput(b"a,b\nsecret,2,3\n", "k.csv")))
    assert str(runs[0].error) == "memory://k.csv, record 1: 3 fields where the header has 2"
    assert runs[0].raw == b"secret,2,3"
    assert "secret" not in repr(runs)


def test_an_object_whose_header_cannot_be_used_is_an_error():
    for data in (b"a,a\n1,2\n", b"\x00\x01,b\n", b"\xff,b\n1,2\n", b"PAR1\x15\x00\x15,\n"):
        with pytest.raises(CorruptObjectError):
            read(data)


def test_a_name_that_is_there_twice_is_told_by_its_columns():
    with pytest.raises(
        CorruptObjectError,
        match=r"names a column twice \(columns 2 and 4\); set input.csv_header = false to read rows as arrays$",
    ):
        read(b"a,secret,c,secret\n1,2,3,4\n")


@pytest.mark.parametrize(
    "line", ['{"a": 1, "b": "x"}', '{"a":1,"b":"x"}', '{"a":"x","b":1}', '  {"a": 1}', '{ "a": {"b": 1}, "c": [2] }']
)
def test_json_lines_are_not_read_as_csv(line):
    with pytest.raises(CorruptObjectError, match=r'header is a JSON object.*set input.format = "jsonl"'):
        read(f"{line}\n{line}\n".encode())


def test_a_header_that_is_no_row_names_the_option():
    with pytest.raises(CorruptObjectError, match=r"the header is not a row of CSV .*See input\.format$"):
        read(b'a,"b"c\n1,2\n')


@pytest.mark.parametrize("header", ["[id],[name]", "{a},{b}", '{a": 1'])
def test_odd_names_of_columns_are_names(header):
    names = header.split(",")
    assert read(f"{header}\n{','.join('1' * len(names))}\n".encode()) == [(1, dict.fromkeys(names, "1"))]


def test_quotes_that_never_close_are_a_cut():
    data = b'a,b\n1,2\n3,"4\n5,6\n'
    for piece in (1, 1000):
        with pytest.raises(TruncatedObjectError, match="quotes") as caught:
            read(data, piece=piece)
        assert caught.value.record_number == 2


def test_without_a_quote_character_quotes_are_text():
    assert read(b'a,b\n"1,2"\n', csv_quote="") == [(1, {"a": '"1', "b": '2"'})]
    assert read(b"a,b\n'1,\n2',3\n", csv_quote="'") == [(1, {"a": "1,\n2", "b": "3"})]


@pytest.mark.parametrize("cr", [b"1,2\r3,4", b"1,2\r3,44"])
def test_without_a_quote_character_a_bad_row_leaves_none_open(cr):
    assert read(b"a,b\n" + cr + b"\n5,6\n", csv_quote="") == [(1, RecordError), (2, {"a": "5", "b": "6"})]


@pytest.mark.parametrize("data", [b"", b"\n", b"\r\n\n", b"a,b", b"a,b\r\n", b"\xef\xbb\xbf"])
def test_no_rows_are_no_records(data):
    assert read(data) == []


def test_rows_that_are_too_long_are_skipped():
    giant = b"x" * 5000
    for first in (b"1,2", b'"1",2'):
        data = b"a,b\n" + first + b"\n" + giant + b",1\n3,4\n"
        for piece in (10, 1000, 10**6):
            expected = [(1, {"a": "1", "b": "2"}), (2, RecordTooLargeError), (3, {"a": "3", "b": "4"})]
            assert read(data, piece=piece, max_record_bytes=4000) == expected
            assert read(data, piece=piece, max_record_bytes=4000, skip=2) == expected[2:]
    # The row fits, its JSON with the names does not.
    assert read(b"name,b\n" + b"x" * 95 + b",1\n", max_record_bytes=100) == [(1, RecordTooLargeError)]
    with pytest.raises(CorruptObjectError, match="header"):
        read(giant + b",b\n1,2\n", max_record_bytes=4000)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (b"x" * 5_000_000, r"longer than input.max_record_bytes \(4000000 bytes\)"),
        (b"," * 10**6, "than 1000000 fields"),
    ],
)
def test_a_row_that_is_too_large_says_in_which_way(row, said):
    (error, _, _), good = exactly(b"a\n" + row + b"\n1\n", frames=True, piece=10**6, max_record_bytes=4_000_000)
    assert re.search(said, error)
    assert good == b'{"a":"1"}'


def test_a_quote_that_is_never_closed_does_not_fill_the_memory():
    data = b'a,b\n1,"' + b"some text, and more\n" * 500_000
    tracemalloc.start()
    try:
        with pytest.raises(CorruptObjectError, match="csv_quote"):
            read(data, max_record_bytes=100_000)
        assert tracemalloc.get_traced_memory()[1] < 15_000_000
    finally:
        tracemalloc.stop()


def test_a_field_may_be_longer_than_the_modules_own_limit():
    long = "x" * 300_000
    assert read(f'a\n"{long}\n{long}"\n'.encode()) == [(1, {"a": f"{long}\n{long}"})]


def read_until_error(data, **options):
    """What comes before the error, and the error."""
    runs = []
    with pytest.raises(CorruptObjectError) as caught:
        runs.extend(make_transformer(InputOptions(format="csv", **options)).read(BytesInput(data, "k.csv")))
    got = []
    for run in runs:
        got += [type(run.error)] if isinstance(run, SkippedRecord) else map(json.loads, run.payloads)
    assert caught.value.record_number == len(got) + 1
    return got, str(caught.value)


def test_a_quoted_field_beyond_the_limit_ends_the_object_and_no_rows_are_invented():
    data = b'a,b\n0,first\n1,"' + b"x,y\n" * 20_000_000 + b'"\n2,3\n'
    got, message = read_until_error(data)
    assert got == [{"a": "0", "b": "first"}]
    assert "cannot be told apart" in message


@pytest.mark.parametrize("first", [b"1,2", b'"1",2'])
def test_a_line_that_is_too_long_and_opens_a_quote_ends_the_object(first):
    for rest in (b'\nx,y\nx,y"\n2,3\n', b""):
        data = b"a,b\n" + first + b'\n1,"' + b"z" * 5000 + rest
        got, message = read_until_error(data, max_record_bytes=1000)
        assert got == [{"a": "1", "b": "2"}, RecordTooLargeError]
        assert "leaves a quote open" in message
    data = b"a,b\n" + first + b'\n1,"' + b"z" * 5000 + b'"\n2,3\n'
    assert [value for _, value in read(data, max_record_bytes=1000)] == [
        {"a": "1", "b": "2"}, RecordTooLargeError, {"a": "2", "b": "3"},
    ]  # fmt: skip


@pytest.mark.parametrize("before", [b"", b'7,8\n"9\r\n9",9\n' * 3, b'"' + b"w,\n" * 200_000 + b'",9\n'])
def test_text_behind_a_quote_ends_the_object_only_where_it_leaves_one_open(before):
    good = [value for _, value in read(b"a,b\n" + before)]
    for line in (b'1,"q"z,"open', b'"on\ne"z,"q', b'"q"z"'):
        got, message = read_until_error(b"a,b\n" + before + line + b'\nx,y\nx,y"\n2,3\n')
        assert got == [*good, RecordError]
        assert "leaves a quote open" in message
    for line in (b'1,"q"z', b'"on\ne"z', b'1,"q"z,"closed"', b'"q"z,""', b'"on\ne"z,"q"'):
        values = [value for _, value in read(b"a,b\n" + before + line + b"\n2,3\n")]
        assert values == [*good, RecordError, {"a": "2", "b": "3"}]


def test_a_bad_row_is_looked_at_alone_and_not_with_the_rows_before_it(monkeypatch):
    counted = []

    class Text(str):
        __slots__ = ()

        def count(self, part, *place):
            counted.append(len(self[slice(*place)]))
            return super().count(part, *place)

    monkeypatch.setattr(csv_rows, "_decode", lambda data, real=csv_rows._decode: Text(real(data)))
    assert read(b"a\n" + b'"a"b\n' * 999) == [(number, RecordError) for number in range(1, 1000)]
    assert counted == [5] * 999


def test_a_header_that_is_no_row_is_an_error_of_the_object_and_the_next_row_is_none():
    for data in (b'"a"x,b\n1,2\n3,4\n', b"a,b\r1,2\r3,4\r\n5,6\n"):
        got, message = read_until_error(data)
        assert got == []
        assert "header is not a row" in message


def test_a_cr_alone_is_named():
    (run,) = make_transformer(InputOptions(format="csv", csv_header=False)).read(BytesInput(b"1,2\r3,4\n"))
    assert "a CR alone in it" in str(run.error)


@pytest.mark.parametrize("first", [b"1", b'"1"'])
def test_a_row_with_too_many_fields_is_a_bad_one(first):
    data = b"a\n" + first + b"\n" + b"," * 1_000_000 + b"\n2\n"
    assert read(data) == [(1, {"a": "1"}), (2, RecordTooLargeError), (3, {"a": "2"})]
    got, message = read_until_error(b"a\n" + first + b"\n" + b'"\n",,,,,,,,' * 300_000 + b"\n2\n")
    assert "1000000 fields" in message
    assert got == [{"a": "1"}]
    assert "100000 columns" in read_until_error(b"," * 100_000 + b"\n")[1]


def test_rows_that_fill_pieces_exactly_are_not_one_row():
    data = b"a\n" + b'"%b"\n' % (b"x" * 4093) * 1024
    assert len(read(data, max_record_bytes=100_000)) == 1024


def exactly(data, *, frames, piece, **options):
    """The payloads, bad records and the error, with or without frames around the fields."""
    out = []
    with pytest.MonkeyPatch.context() as patch:
        if not frames:
            patch.setattr(csv_rows._Frames, "fit", staticmethod(lambda *_: False))
        transformer = make_transformer(InputOptions(format="csv", compression="none", **options))
        try:
            for run in transformer.read(BytesInput(data), limits=BatchLimits(size_bytes=piece)):
                if isinstance(run, SkippedRecord):
                    out.append((str(run.error), run.raw, run.length))
                else:  # one by one: by the place of its end
                    out += [run.payloads[at] for at in range(len(run.payloads))]
        except (CorruptObjectError, TruncatedObjectError) as exc:
            out.append((str(exc), exc.record_number))
    return out


PARTS = [b"a", b"b1", b"", b"'", b"\xc3\xa9", b"\xff", b"\\", b"\x7f", b"\t", b"\x00", b"\x1f", b"\r", b'"', b"x" * 30]
plain_parts = st.sampled_from([*PARTS[:5], PARTS[7], PARTS[-1]])
plain_rows = st.lists(st.tuples(plain_parts, plain_parts, plain_parts), max_size=80)


@given(
    rows=st.lists(st.lists(st.sampled_from(PARTS), max_size=4), max_size=6),
    before=plain_rows,
    behind=plain_rows,
    end=st.sampled_from([b"\n", b"\r\n"]),
    last_end=st.booleans(),
    delimiter=st.sampled_from([",", ";", "\t", "\x01", "|"]),
    quote=st.sampled_from(['"', "'", ""]),
    columns=st.sampled_from([(), ("b",), ("c", "a\\é")]),
    limit=st.sampled_from([40, 60, 10**6]),
    piece=st.sampled_from([1, 50, 10**6]),
)
@settings(max_examples=examples(400), deadline=None)
def test_framed_rows_are_as_line_by_line(rows, before, behind, end, last_end, delimiter, quote, columns, limit, piece):
    lines = ["a\\é".encode() + b"%sb%sc", *(b"%s".join(row) for row in (*before, *rows, *behind))]
    data = end.join(line.replace(b"%s", delimiter.encode()) for line in lines) + (end if last_end else b"")
    options = {"csv_delimiter": delimiter, "csv_quote": quote, "columns": columns, "max_record_bytes": limit}
    assert exactly(data, frames=True, piece=piece, **options) == exactly(data, frames=False, piece=piece, **options)


@pytest.mark.parametrize("header", ["name,b", '"na\nme",b'])
@pytest.mark.parametrize("row", ["1,2", '1,"2"', "1,2,3"])
def test_rows_of_long_names_are_encoded_in_parts(monkeypatch, header, row):
    data = f"{header}\n1,2\n{row}\n".encode() + b"1,2\n" * 99
    usual = read(data)
    parts = []

    def encode_all(rows, count, real=csv_rows.encode_all):
        parts.append(count)
        return real(rows, count)

    monkeypatch.setattr(csv_rows, "NAMES_BYTES", 30)
    monkeypatch.setattr(csv_rows, "encode_all", encode_all)
    assert read(data) == usual
    assert max(parts) <= 3


def test_plain_rows_are_framed(monkeypatch):
    framed = []
    taken = csv_rows._Frames.payloads

    def payloads(self, data):
        framed.append(taken(self, data))
        return framed[-1]

    monkeypatch.setattr(csv_rows._Frames, "payloads", payloads)
    rows = b"".join(b"%d,\xc3\xa9,\r\n" % at for at in range(500))
    got = exactly(b"a,b,c\n" + rows, frames=True, piece=10**6)
    assert [len(column) for column in framed] == [500]
    assert got == [b'{"a":"%d","b":"\xc3\xa9","c":""}' % at for at in range(500)]


@pytest.mark.parametrize("delimiter", [",", "\x01", "\x1f"])
@pytest.mark.parametrize(
    ("width", "chosen", "framed"), [(32, 32, True), (33, 32, True), (200, 2, True), (33, 33, False)]
)
def test_as_many_columns_as_there_are_marks_are_framed(monkeypatch, width, chosen, framed, delimiter):
    taken = []
    payloads = csv_rows._Frames.payloads
    monkeypatch.setattr(csv_rows._Frames, "payloads", lambda self, data: taken.append(1) or payloads(self, data))
    names = [f"{at}\t" for at in range(width)]
    rows = [[f"{row * at}" for at in range(width)] for row in range(9)]
    data = "".join(delimiter.join(row) + "\n" for row in (names, *rows)).encode()
    columns = names[width - chosen :]
    got = exactly(data, frames=True, piece=10**6, csv_delimiter=delimiter, columns=tuple(columns))
    assert [json.loads(payload) for payload in got] == [
        dict(zip(columns, row[width - chosen :], strict=True)) for row in rows
    ]
    assert bool(taken) == framed
