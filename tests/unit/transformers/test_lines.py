"""jsonl and text: which lines are records, which are bad, and that no border of a read is seen."""

import gzip
import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from framework.errors import RecordError, RecordTooLargeError, TruncatedObjectError
from framework.model.batches import SkippedRecord
from framework.model.objects import ResumePoint
from framework.model.payloads import PayloadColumn, owned
from framework.transformer import BatchLimits, InputOptions, PayloadBatch
from tests.support.examples import examples
from tests.support.packing import PACK
from transformers import BytesInput, lines, make_transformer
from transformers.batches import RunBuilder
from transformers.compression import UnpackedStream
from transformers.jsonl import JsonlTransformer
from transformers.lines import LineTransformer, Span, split_lines, whole_lines

BOM = b"\xef\xbb\xbf"


@pytest.fixture(scope="module", autouse=True, params=["lists", "columns"])
def form(request):
    """Every test here runs twice: short lines as lists, as they are read, and as columns, as long blocks are read."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "columns":
            patch.setattr(lines, "_COLUMN_BYTES", 1)
        yield request.param


def flat(runs):
    """[(number, payload or error)], checking what every run must hold."""
    out = []
    for run in runs:
        if isinstance(run, SkippedRecord):
            assert run.error.record_number == run.record_number
            out.append((run.record_number, type(run.error)))
        else:
            assert run.payloads
            assert run.size_bytes == sum(map(len, run.payloads))
            out += enumerate(run.payloads, run.first_record)
    numbers = [number for number, _ in out]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
    return out


def read(data, fmt="jsonl", *, limits=None, **options):
    options.setdefault("compression", "none")
    transformer = make_transformer(InputOptions(format=fmt, **options))
    return flat(transformer.read(BytesInput(data), limits=limits))


def is_json(line):
    """The oracle: json and orjson together, line by line."""

    def no_constant(name):
        raise ValueError(name)

    try:
        text = line.decode()
        value = json.loads(text, parse_constant=no_constant)
        json.dumps(value, ensure_ascii=False).encode()  # fails for half a surrogate pair, which json lets pass
    except (ValueError, RecursionError):
        return False
    return True


def expected(data, validate=True):
    if data.startswith(BOM):
        data = data[3:]
    *ended, last = data.split(b"\n")
    lines = [line.removesuffix(b"\r") for line in ended] + [last]
    lines = [line for line in lines if line.strip()]
    return [(number, line if not validate or is_json(line) else RecordError) for number, line in enumerate(lines, 1)]


FRAGMENTS = [
    b"\n",
    b"\n",
    b"\n",
    b"\r\n",
    b"\r",
    b" ",
    b"\t",
    b'{"a":1}',
    b"[1,2]",
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b":",
    b'"',
    b'"a"',
    b"1",
    b"-0.5e+7",
    b"01",
    b"1.",
    b"-",
    b"true",
    b"null",
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b'"\\ud83d\\ude00"',
    b'"\\ud83d"',
    b'"\\u00e9"',
    b'"\\x"',
    b"\xc3\xa9",
    b"\xff",
    b'"\xff"',
    b'"\xc3\xa9"',
    b'"\xed\xa0\x80"',
    b"\0",
    b"\x0b",
    b"\x1f",
    b'"\x01"',
    BOM,
    b"\xc2\x85",
    b"\xe2\x80\xa8",
    b"//",
    b"123456789012345678901234567890",
    b"1e400",
]
text_of_fragments = st.lists(st.sampled_from(FRAGMENTS), max_size=30).map(b"".join)


@given(data=text_of_fragments, piece=st.integers(1, 40), run=st.integers(1, 5))
@settings(max_examples=examples(300), deadline=None)
@example(data=b'{"a":\n1}\n', piece=40, run=5)
@example(data=b"1 2\n[3,\n4]\n", piece=40, run=5)  # three values on three lines
@example(data=b'{"a":1} {"b":2}\n{"c":\n3}\n', piece=40, run=5)
@example(data=b'{"a":1}{"b":2}\n{"c":[{}\n{"d":1}]}\n', piece=40, run=5)
@example(data=b'"a\nb"\n', piece=40, run=5)
def test_a_line_is_good_exactly_when_json_says_so(data, piece, run):
    # The reads are no longer than a run may be, so this moves the borders of the pieces too.
    limits = BatchLimits(records=run, size_bytes=piece)
    assert read(data, limits=limits) == expected(data)
    assert read(data, limits=limits, validate=False) == expected(data, validate=False)
    assert read(data, "text", limits=limits) == expected(data, validate=False)


@given(
    data=text_of_fragments, fmt=st.sampled_from(["jsonl", "text"]), records=st.integers(1, 5), cap=st.integers(1, 60)
)
@example(data=b'{"a":1}\r\n{"b":2}', fmt="jsonl", records=5, cap=60)
@example(data=b"\x1f\x8b\x08 plain by its name alone\n", fmt="text", records=5, cap=60)
@example(data=BOM + b"1\n", fmt="jsonl", records=5, cap=60)
@example(data=b"a\n\xc3\x28\n", fmt="jsonl", records=5, cap=60)
@example(data=b"a\r", fmt="text", records=5, cap=60)
def test_what_is_read_at_once_is_the_only_batch_of_a_read(data, fmt, records, cap):
    transformer = make_transformer(InputOptions(format=fmt, max_record_bytes=cap))
    limits = BatchLimits(records=records, size_bytes=2 * cap)
    for key in ("k", "k.JSONL", "k.gz", "k.lz4"):
        run = transformer.read_whole(data, key=key, limits=limits)
        if run is None:
            continue
        (only,) = transformer.read(BytesInput(data, key), limits=limits)
        assert (run.first_record, list(run.payloads), run.size_bytes) == (1, list(only.payloads), only.size_bytes)
        assert (type(run.payloads) is PayloadColumn) is (type(only.payloads) is PayloadColumn)
        assert run.mark is None


def test_plain_small_objects_are_read_at_once_by_their_names_too():
    data, limits = b'{"a":1}\n{"b":2}\n', BatchLimits()
    for fmt in ("jsonl", "auto"):
        run = make_transformer(InputOptions(format=fmt)).read_whole(data, key="k.jsonl", limits=limits)
        assert list(run.payloads) == [b'{"a":1}', b'{"b":2}']
        alone = make_transformer(InputOptions(format=fmt)).read_whole(b'{"a":1}\n', key="k.jsonl", limits=limits)
        assert list(alone.payloads) == [b'{"a":1}']
    columns = make_transformer(InputOptions(format="auto", columns=("a",)))
    assert columns.read_whole(data, key="k.jsonl", limits=limits) is None
    assert columns.read_whole(data, key="unknown", limits=limits) is None


@pytest.mark.parametrize("fmt", ["jsonl", "text"])
def test_payloads_of_an_object_that_is_read_at_once_are_not_copied_again(fmt):
    """A list would be: it could change while its batch waits."""
    run = make_transformer(InputOptions(format=fmt)).read_whole(b"1\n2\n", key="k.jsonl", limits=BatchLimits())
    assert owned(run.payloads) is run.payloads
    assert list(run.payloads) == [b"1", b"2"]


def test_the_last_line_of_an_object_that_is_read_at_once_needs_no_end_in_a_list(form):
    run = make_transformer(InputOptions(format="text")).read_whole(b"a\nb", key="k.txt", limits=BatchLimits())
    assert (list(run.payloads) if run is not None else None) == ([b"a", b"b"] if form == "lists" else None)


def test_a_subclass_that_reads_in_its_own_way_is_not_read_at_once():
    class Reversed(JsonlTransformer):
        def _read(self, source, skip, mark, builder):
            yield from ()

    class Other(JsonlTransformer):
        """One that only checks in another way."""

    assert (Reversed.max_whole_bytes, Other.max_whole_bytes) == (0, JsonlTransformer.max_whole_bytes)
    assert Other.max_whole_bytes > 0


@given(data=text_of_fragments)
@settings(max_examples=examples(300), deadline=None)
@example(data=b"1 2\n[3,\n4]")
@example(data=b'{"a":1}{"b":2}\n{"c":\n3}')
@example(data=b'{"a":1}\n"\xff"')
def test_the_fast_check_accepts_what_the_slow_one_does(data):
    transformer = make_transformer(InputOptions(format="jsonl"))
    assert isinstance(transformer, LineTransformer)
    lines = data.split(b"\n")
    slow = all(line.strip() and transformer._problem(line) is None for line in lines)
    assert (transformer._good_lines(lines, ascii_only=data.isascii()) is not None) == slow


INSIDE = [
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b",",
        b'"',
        b" ",
        b"\r",
        b"\\",
        b"\x01",
        b"\xff",
        b"\xc3\xa9",
        b"1",
        b"NaN",
        b"1e400",
    ),
    *(
        b'"a":',
        b'"a":{}',
        b'"a":[',
        b'"a":"',
        b"},{",
        b"} {",
        b"}{",
        b'"\\ud83d":1',
        b'"a":"\\ud83d"',
        b'"\xff":1',
        b",1",
    ),
]


@given(lines=st.lists(st.lists(st.sampled_from(INSIDE), max_size=6).map(b"".join), min_size=1, max_size=4))
@settings(max_examples=examples(1000), deadline=None)
@example(lines=[b'"a":"', b'"', b"} {"])  # a string over a line's end, made up for by two values on a line
@example(lines=[b'"a":[{}', b"}]", b"} {"])
@example(lines=[b'"a":{}', b'}, "b":{}', b"}{"])
@example(lines=[b'"a":{"b":[{', b"}]}", b"}{"])
def test_a_block_of_objects_is_good_exactly_when_each_line_is(lines):
    lines = [b"{" + line + b"}" for line in lines]
    transformer = make_transformer(InputOptions(format="jsonl"))
    column = PayloadColumn(b"\n".join((*lines, b"")))
    good = all(transformer._problem(line) is None for line in lines)
    assert (transformer._good_lines(column, ascii_only=column.data.isascii()) is not None) == good


ROWS = msgspec.json.Decoder(msgspec.defstruct("Rows", [("a", Any, None)]))


def outcome(data, decoder, limits):
    """What is read with a parser of rows, and the rows."""
    transformer = make_transformer(InputOptions(format="jsonl"))
    transformer.row_decoder = decoder
    runs = list(transformer.read(BytesInput(data), limits=limits))
    good = [run for run in runs if isinstance(run, PayloadBatch)]
    bad = [(run.record_number, str(run.error), run.raw, run.length) for run in runs if isinstance(run, SkippedRecord)]
    records = [(run.first_record, list(run.payloads), run.mark) for run in good]
    return records, bad, [getattr(run.payloads, "parsed", None) for run in good]


@given(
    lines=st.lists(st.lists(st.sampled_from(INSIDE), max_size=6).map(b"".join), min_size=1, max_size=9),
    run=st.integers(1, 5),
    piece=st.integers(1, 90),
)
@settings(max_examples=examples(200), deadline=None)
@example(lines=[b'"a":1', b'"a":1e400', b"nonsense"], run=5, piece=90)
@example(lines=[b'"a":"', b'"', b"} {"], run=5, piece=90)
@example(lines=[b'"a":"\xff"', b'"\xff":1', b'"a":1'], run=5, piece=90)
def test_a_parser_of_rows_changes_neither_records_nor_errors(lines, run, piece):
    data = b"".join(b"{" + line + b"}\n" for line in lines)
    limits = BatchLimits(records=run, size_bytes=piece)
    plain, with_rows = outcome(data, None, limits), outcome(data, ROWS, limits)
    assert plain[:2] == with_rows[:2]
    assert not any(plain[2])
    for (_, payloads, _), parsed in zip(with_rows[0], with_rows[2], strict=True):
        if parsed is not None:
            assert parsed.decoder is ROWS
            assert [row.a for row in parsed.rows] == [json.loads(payload).get("a") for payload in payloads]


def test_rows_come_with_the_batches_of_long_blocks():
    data = b"".join(b'{"a":%d,"text":"%s"}\n' % (number, b"x" * 90) for number in range(20_000))
    for columns, bad in ((data, 0), (data + b'{"a":1e400}\n', 1), (data + b"{nonsense}\n", 1)):
        _, _, parsed = outcome(columns, ROWS, BatchLimits(records=1_777))
        assert sum(each is None for each in parsed) <= 4 * bad  # those of the last block
        rows = [row for each in parsed if each is not None for row in each.rows]
        assert [row.a for row in rows] == list(range(len(rows)))
        assert len(rows) > 10_000
        assert bad or len(rows) == 20_000


def test_a_block_with_more_values_than_are_decoded_has_no_rows():
    data = b'{"a":[%s0]}\n' % (b"0," * 600_000)
    records, bad, parsed = outcome(data, ROWS, None)
    assert (len(records), bad, parsed) == (1, [], [None])


@pytest.mark.parametrize("key", ["a.jsonl", "a.jsonl.gz"])
def test_format_auto_hands_the_parser_on(key):
    transformer = make_transformer(InputOptions(format="auto"))
    transformer.row_decoder = ROWS
    assert transformer._made_for("jsonl").row_decoder is ROWS
    data = b'{"a":1}\n' * 2000
    (run,) = transformer.read(BytesInput(gzip.compress(data) if key.endswith("gz") else data, key))
    assert run.payloads.parsed.decoder is ROWS


def test_a_bad_line_among_many_good_ones_is_named():
    lines = [b'{"n":%d,"text":"%s"}' % (number, b"x" * (number % 200)) for number in range(20_000)]
    lines[12_345] = b'{"n":12345,"text":"}'
    data = b"\n".join((*lines, b""))
    runs = list(make_transformer(InputOptions(format="jsonl")).read(BytesInput(data)))
    (skipped,) = [run for run in runs if isinstance(run, SkippedRecord)]
    assert skipped.error.record_number == 12_346
    assert skipped.error.byte_offset == data.index(lines[12_345])
    assert skipped.raw == lines[12_345]
    assert flat(runs) == [(n, RecordError if n == 12_346 else line) for n, line in enumerate(lines, 1)]


@pytest.mark.parametrize("fmt", ["jsonl", "text"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_long_blocks_come_as_columns_with_exact_marks(fmt, end):
    lines = [b'{"n":%d,"text":"%s"}' % (number, b"x" * (number % 200)) for number in range(20_000)]
    data = end.join((*lines, b""))
    transformer = make_transformer(InputOptions(format=fmt))
    runs = list(transformer.read(BytesInput(data), limits=BatchLimits(records=1_777)))
    assert all(isinstance(run.payloads, PayloadColumn) for run in runs)
    assert flat(runs) == list(enumerate(lines, 1))
    for run in runs:
        last = run.first_record + len(run.payloads) - 1
        assert run.mark == ResumePoint(last, len(end.join((*lines[:last], b""))))


@given(
    value=st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**70), 2**70)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab\n\u00e9"), inner, max_size=4),
        max_leaves=10,
    ),
    ascii_only=st.booleans(),
)
@settings(max_examples=examples(100), deadline=None)
def test_every_value_that_json_writes_is_good(value, ascii_only):
    line = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert read(line) == [(1, line)]


@pytest.mark.parametrize("fmt", ["jsonl", "text"])
@pytest.mark.parametrize("data", [b"", b"\n", b"\n\n \t\r\n", BOM, BOM + b"\r\n \n", b"   "])
def test_nothing_but_blank_lines_is_no_record(fmt, data):
    assert read(data, fmt) == []


def test_line_ends_and_the_byte_order_mark_are_dropped():
    for data in (b'{"a":1}\n[2]\n', b'{"a":1}\r\n[2]', BOM + b'\n{"a":1}\r\n\r\n[2]\n\n'):
        assert read(data) == read(data, "text") == [(1, b'{"a":1}'), (2, b"[2]")]
    assert read(b'"a"\n' + BOM + b'"b"') == [(1, b'"a"'), (2, RecordError)]
    assert read(b"a\rb\n", "text") == [(1, b"a\rb")]


MIXED = BOM + b"".join(
    (b'{"n":%d}\n' % n, b'[%d,"\xc3\xa9"]\r\n' % n, b"\n", b'"x%d' % n + b"x" * (n % 7) + b'"\n', b"bad\n", b" \t\n")[
        n % 6
    ]
    for n in range(67)
)


@pytest.mark.parametrize("fmt", ["jsonl", "text"])
@pytest.mark.parametrize("packed", [False, True])
def test_skipping_gives_the_rest_with_and_without_marks(fmt, packed):
    data = gzip.compress(MIXED) if packed else MIXED
    transformer = make_transformer(InputOptions(format=fmt))
    for limits in (
        BatchLimits(records=3, size_bytes=45),
        BatchLimits(records=1),
        BatchLimits(records=7, size_bytes=100),
    ):
        runs = list(transformer.read(BytesInput(data), limits=limits))
        everything = flat(runs)
        marks = [ResumePoint(0, 0), *(run.mark for run in runs if isinstance(run, PayloadBatch) and run.mark)]
        assert (len(marks) > 1) != packed
        for skip in range(len(everything) + 2):
            assert flat(transformer.read(BytesInput(data), skip=skip, limits=limits)) == everything[skip:]
            for mark in [mark for mark in marks if mark.record <= skip][-4:]:
                assert (
                    flat(transformer.read(BytesInput(data), skip=skip, mark=mark, limits=limits)) == everything[skip:]
                )


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_the_mark_is_exact_where_all_lines_end_alike(end):
    data = b"".join(b'{"n":%d}' % n + end for n in range(1003))
    for limits in (BatchLimits(records=7, size_bytes=100), BatchLimits(records=11, size_bytes=10**6)):
        for run in make_transformer(InputOptions(format="jsonl")).read(BytesInput(data), limits=limits):
            last = run.first_record + len(run.payloads) - 1
            assert run.mark.record == last
            assert data[: run.mark.byte].count(b"\n") == last
            assert data[run.mark.byte - 1 : run.mark.byte] == b"\n"


def test_a_mark_saves_reading_what_is_before_it():
    opened = []

    class Watched(BytesInput):
        def open(self, start=0, end=None):
            opened.append(start)
            return super().open(start, end)

    source = Watched(b"1\n22\n333\n")
    transformer = make_transformer(InputOptions(format="jsonl"))
    assert flat(transformer.read(source, skip=2, mark=ResumePoint(2, 5))) == [(3, b"333")]
    assert flat(transformer.read(source, skip=3, mark=ResumePoint(3, 9))) == []
    assert opened == [5]


def test_a_long_block_is_a_run_by_itself_and_shares_its_bytes():
    builder = RunBuilder(1, BatchLimits(records=10_000, size_bytes=1000), 0, "s3://b/k", 100)
    short = PayloadColumn(b"ab\n" * 50)
    long = PayloadColumn(b"cd\n" * 100)
    assert list(builder.add(short, 100)) == []
    assert [len(run.payloads) for run in builder.add(short, 100)] == []
    assert [len(run.payloads) for run in builder.flush()] == [100]
    (run,) = builder.add(long, 200)
    assert run.first_record == 101
    assert run.payloads is long


def test_runs_keep_to_the_limits():
    data = b"".join(b"%d\n" % 10**n for n in range(40)) * 30
    for records, size in ((7, 10**6), (1000, 95), (13, 64), (1, 1)):
        runs = list(
            make_transformer(InputOptions(format="text")).read(
                BytesInput(data), limits=BatchLimits(records=records, size_bytes=size)
            )
        )
        assert all(len(run.payloads) <= records for run in runs)
        assert all(run.size_bytes <= size or len(run.payloads) == 1 for run in runs)
        assert b"\n".join(payload for run in runs for payload in run.payloads) + b"\n" == data


@pytest.mark.parametrize("fmt", ["jsonl", "text"])
def test_a_line_that_is_too_long_is_skipped_and_its_beginning_kept(fmt):
    giant = b'"' + b"x" * 100_000 + b'"'
    for end in (b"\n", b"\r\n"):
        data = b"1" + end + b"2" + end + giant + end + b" " * 200_000 + end + b"3" + end + giant
        for size in (100, 70_000, 10**6):
            runs = list(
                make_transformer(InputOptions(format=fmt, max_record_bytes=100_001)).read(
                    BytesInput(data), limits=BatchLimits(size_bytes=size)
                )
            )
            assert flat(runs) == [(1, b"1"), (2, b"2"), (3, RecordTooLargeError), (4, b"3"), (5, RecordTooLargeError)]
            bad = [run for run in runs if isinstance(run, SkippedRecord)]
            assert all(giant.startswith(run.raw) and len(run.raw) > 100_000 for run in bad)
            assert [run.length for run in bad] == [len(giant)] * 2
            assert [run.error.byte_offset for run in bad] == [2 + 2 * len(end), data.rindex(giant)]
            assert "100001" in str(bad[0].error)
        assert flat(make_transformer(InputOptions(format=fmt, max_record_bytes=100_002)).read(BytesInput(data))) == [
            (1, b"1"),
            (2, b"2"),
            (3, giant),
            (4, b"3"),
            (5, giant),
        ]


@pytest.mark.parametrize("last", [b"", b"\n"])
def test_a_return_at_the_end_belongs_to_the_line_if_no_line_feed_follows(last):
    data = b"1\n" + b"x" * 9 + b"\r" + last
    plain = InputOptions(compression="none")
    for piece in range(1, len(data) + 1):
        spans = list(whole_lines(UnpackedStream(BytesInput(data), plain, piece_bytes=piece), 0, piece, 9, b""))
        assert [span.length for span in spans if span.too_long] == ([] if last else [10]), piece
        assert b"".join(span.data for span in spans if not span.too_long) == (data if last else b"1\n")


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [b"", b"\n"])
def test_quotes_in_lines_that_are_too_long_are_counted_wherever_the_reads_end(end, last):
    """A table of quoted fields needs them: an open quote goes on in the next line."""
    giant = b'"x" ' * 5 + b'"'
    data = end.join([b'a"', giant, b'"b"', b" " * 30, giant[::-1] + b"\r.", b"c"]) + end + giant + last
    starts = [data.index(giant), data.index(giant[::-1] + b"\r."), data.rindex(giant)]
    plain = InputOptions(compression="none")
    for piece in range(1, len(data) + 1):
        for quote, quotes in ((b'"', 11), (b"", 0)):
            spans = list(whole_lines(UnpackedStream(BytesInput(data), plain, piece_bytes=piece), 0, piece, 9, quote))
            long = [span for span in spans if span.too_long]
            assert [(span.start, span.length, span.quotes) for span in long] == [
                (start, length, quotes) for start, length in zip(starts, (21, 23, 21), strict=True)
            ], piece
            assert all(span.data and data.startswith(span.data, span.start) for span in spans)
            short = b"".join(span.data for span in spans if not span.too_long)
            assert short.split() == [b'a"', b'"b"', b"c"]


def test_a_giant_line_is_never_held_whole():
    class Endless(BytesInput):
        """One line of 150 MB in pieces that are made when read."""

        def __init__(self):
            super().__init__(b"")
            self.size = 150_000_000 + 3

        def open(self, start=0, end=None):
            block = b"x" * (1 << 20)

            class Stream:
                left = 150_000_000

                def read(self, size, /):
                    if self.left is None:
                        return b""
                    if self.left == 0:
                        self.left = None
                        return b"\n1\n"
                    size = min(size, self.left, len(block))
                    self.left -= size
                    return block[:size]

                def close(self):
                    pass

            return Stream()

    tracemalloc.start()
    try:
        assert read_all(Endless(), max_record_bytes=5_000_000) == [(1, RecordTooLargeError), (2, b"1")]
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def read_all(source, **options):
    return flat(make_transformer(InputOptions(format="jsonl", compression="none", **options)).read(source))


def test_a_bad_line_names_its_place_and_never_its_content():
    data = b'{"a":1}\n\n{"secret":\n"\xff secret"\n7\n'
    runs = list(make_transformer(InputOptions(format="jsonl")).read(BytesInput(data, "k/e y.jsonl")))
    bad = [run for run in runs if isinstance(run, SkippedRecord)]
    assert [(run.record_number, run.error.byte_offset, run.raw, run.length) for run in bad] == [
        (2, 9, b'{"secret":', 10),
        (3, 20, b'"\xff secret"', 10),
    ]
    for run in bad:
        assert "memory://k/e y.jsonl, record" in str(run.error)
        assert "secret" not in str(run.error) + repr(run)
        assert run.error.__cause__ is None
    packed = list(make_transformer(InputOptions(format="jsonl")).read(BytesInput(gzip.compress(data))))
    assert [run.error.byte_offset for run in packed if isinstance(run, SkippedRecord)] == [None, None]


def test_a_line_that_is_too_long_has_a_byte_offset_only_where_nothing_is_unpacked():
    data = b"1\n" + b"2" * 99 + b"\n3\n"
    for packed, offset in ((data, 2), (gzip.compress(data), None)):
        (bad,) = (
            run
            for run in make_transformer(InputOptions(format="jsonl", max_record_bytes=9)).read(BytesInput(packed))
            if isinstance(run, SkippedRecord)
        )
        assert (bad.record_number, bad.error.byte_offset) == (2, offset)


def test_what_is_not_json_lines_is_bad_line_by_line():
    junk = bytes(range(256)) * 40
    assert {kind for _, kind in read(junk)} == {RecordError}
    assert {kind for _, kind in read(b"plain words\nand more\n")} == {RecordError}
    assert {kind for _, kind in read("{}\n".encode("utf-16-le"))} == {RecordError}


def test_lines_that_end_with_a_cr_alone_are_one_bad_record_that_says_so():
    (run,) = make_transformer(InputOptions(format="jsonl")).read(BytesInput(b'{"a":1}\r{"a":2}\r'))
    assert "not JSON (a CR alone in it, which ends no line)" in str(run.error)
    (run,) = make_transformer(InputOptions(format="jsonl")).read(BytesInput(b'{"a":\r}\n'))
    assert "a CR alone" not in str(run.error)


@pytest.mark.parametrize("name", ["jsonl", "json"])
def test_500_levels_can_be_read_from_any_place_of_a_program(name):
    """The parser's limit shares the recursion limit of Python up to 3.11: its callers take a part of it."""
    deep = b'{"a":[' * 250 + b"]}" * 250
    data = deep + b"\n" if name == "jsonl" else b"[%b]" % deep
    transformer = make_transformer(InputOptions(format=name))

    def read_below(frames):
        if frames:
            return read_below(frames - 1)
        return [payload for run in transformer.read(BytesInput(data)) for payload in run.payloads]

    assert read_below(300) == [deep]


def test_nesting_beyond_the_parser_is_a_bad_record_and_no_crash():
    deep = b"[" * 200_000 + b"]" * 200_000
    assert read(b"1\n" + deep + b"\n2\n") == [(1, b"1"), (2, RecordError), (3, b"2")]
    with pytest.raises(RecordError, match="JSON that is nested too deeply to check"):
        list(make_transformer(InputOptions(format="jsonl")).records(BytesInput(deep)))


def test_records_raises_the_first_bad_one():
    records = make_transformer(InputOptions(format="jsonl")).records(BytesInput(b"1\n2\nx\n4\n"), skip=1)
    assert next(records) == b"2"
    with pytest.raises(RecordError, match="record 3"):
        next(records)


@pytest.mark.parametrize("fmt", ["jsonl", "text"])
def test_a_record_by_itself_is_as_good_or_bad_as_in_its_object(fmt):
    """So a dead letter that was corrected is decoded."""
    transformer = make_transformer(InputOptions(format=fmt, max_record_bytes=8))
    assert transformer.decode_record(b'{"a":1}', key="k") == b'{"a":1}'
    with pytest.raises(RecordTooLargeError):
        transformer.decode_record(b'{"a":1234}', key="k")


def test_a_record_that_is_no_json_is_refused_by_itself_for_the_same_reason():
    transformer = make_transformer(InputOptions(format="jsonl"))
    for bad in (b'{"a":', b"\xff"):
        (found,) = transformer.read(BytesInput(bad + b"\n"))
        with pytest.raises(RecordError) as error:
            transformer.decode_record(bad, key="k")
        reason = str(error.value)
        assert reason.startswith("not ")
        assert reason in str(found.error)
    assert make_transformer(InputOptions(format="text")).decode_record(b"\xff", key="k") == b"\xff"


@pytest.mark.parametrize("name", ["gzip", "zstd", "bzip2", "xz"])
def test_a_packed_object_cut_at_any_byte_gives_what_was_whole_and_an_error(name):
    data = b"".join(b'{"number":%d}\n' % n for n in range(9))
    packed = PACK[name](data)
    transformer = make_transformer(InputOptions(format="jsonl", compression=name))
    everything = data.splitlines()
    for end in range(1, len(packed)):
        got = []
        with pytest.raises(TruncatedObjectError) as caught:
            got.extend(transformer.records(BytesInput(packed[:end])))
        assert got == everything[: len(got)]
        assert caught.value.record_number == len(got) + 1


def test_a_stream_that_fails_gives_what_was_whole_before():
    transformer = make_transformer(InputOptions(format="jsonl"))
    got = []
    with pytest.raises(TruncatedObjectError, match="record 3"):
        got.extend(transformer.records(Shorter(b"1\n2\n3", size=9)))
    assert got == [b"1", b"2"]


class Shorter(BytesInput):
    """Listed with another size than it has."""

    def __init__(self, data, size):
        super().__init__(data)
        self.size = size

    def open(self, start=0, end=None):
        stream, location = super().open(start, end), self.location

        class Stream:
            def read(self, size, /):
                data = stream.read(size)
                if not data:
                    raise TruncatedObjectError("shorter than listed", location=location)
                return data

            close = stream.close

        return Stream()


def test_closing_early_closes_the_stream():
    closed = []

    class Watched(BytesInput):
        def open(self, start=0, end=None):
            stream = super().open(start, end)
            stream.close = lambda: closed.append(1)
            return stream

    runs = make_transformer(InputOptions(format="jsonl")).read(Watched(b"1\n" * 99), limits=BatchLimits(records=2))
    assert closed == []
    next(runs)
    runs.close()
    assert closed


@pytest.mark.parametrize(
    ("data", "overhead"),
    [(b"a\nb\n", 1), (b"a\r\nb\r\n", 2), (b"a\r\nb\n", None), (b"a\rb\nc\n", 1)],
    ids=["line feeds", "both", "mixed", "a carriage return within a line"],
)
def test_a_block_knows_how_many_bytes_the_end_of_each_of_its_lines_takes(data, overhead):
    lines, found = split_lines(Span(data, 7, ended=True))
    assert found == overhead
    assert lines == [line.removesuffix(b"\r") for line in data.split(b"\n")[:-1]]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("piece", [1, 7, 40, 2_000_000])
def test_of_a_line_that_is_too_long_the_same_beginning_is_kept(piece, end):
    line = b'{"a":"' + b"x" * 300 + b'"}'
    transformer = make_transformer(InputOptions(format="jsonl", max_record_bytes=20))
    runs = transformer.read(BytesInput(b"1\n" + line + end), limits=BatchLimits(size_bytes=piece))
    (skipped,) = [run for run in runs if isinstance(run, SkippedRecord)]
    assert (skipped.raw, skipped.length) == (line, len(line))


def test_low_memory_sends_nothing_of_a_batch_that_may_be_half_changed(monkeypatch):
    """Its records are read again; a batch without its payloads would be called a defect of the format."""

    def read(_self, _source, _skip, _mark, builder):
        yield from builder.add([b"a"], 1)
        raise MemoryError

    transformer = make_transformer(InputOptions(format="text"))
    monkeypatch.setattr(type(transformer), "_read", read)
    with pytest.raises(MemoryError, match="record 1: there is not enough memory"):
        list(transformer.records(BytesInput(b"a\nb\n")))
