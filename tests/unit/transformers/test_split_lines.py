"""Lines of split objects: every line belongs to the share in which it begins, wherever the cuts and the reads' borders are."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from framework.errors import CorruptObjectError, RecordError, RecordTooLargeError, TruncatedObjectError
from framework.model.batches import SkippedRecord
from framework.model.objects import ResumePoint
from framework.model.splits import TAIL_BYTES, Split, count_splits
from framework.transformer import BatchLimits, InputOptions
from tests.support.packing import PACK, Dribble
from tests.unit.transformers.test_lines import flat
from transformers import BytesInput, make_transformer
from transformers.split_input import OnwardInput

BOM = b"\xef\xbb\xbf"
MAX = 9


def expected(data, split_size, max_bytes=MAX):
    """Share -> what it holds, by a look at every line from the object's first byte on."""
    splits = {number: [] for number in range(1, count_splits(len(data), split_size) + 1)}
    begin = 0
    while begin < len(data):
        end = data.find(b"\n", begin)
        line = data[begin:] if end < 0 else data[begin:end].removesuffix(b"\r")
        if begin == 0:
            line = line.removeprefix(BOM)
        if line.strip():
            splits[begin // split_size + 1].append(line if len(line) <= max_bytes else RecordTooLargeError)
        begin = len(data) if end < 0 else end + 1
    return splits


def text(**options):
    return make_transformer(
        InputOptions(**{"format": "text", "compression": "none", "max_record_bytes": MAX} | options)
    )


def read(source, split, transformer=None, **more):
    return flat((transformer or text()).read_split(source, split, **more))


def numbered(values, first=1):
    return list(enumerate(values, first))


fragments = st.lists(
    st.sampled_from([b"\n", b"\n", b"\r\n", b"\r", b" ", b"a", b"bc", b"\0", b"12345678", b"123456789x", BOM]),
    max_size=60,
).map(b"".join)
objects = st.builds(lambda bom, data: BOM * bom + data, st.booleans(), fragments).filter(len)
# A mark may stand behind the byte order mark: smaller shares would end before it (the option begins at 1 KiB).
split_sizes = st.integers(len(BOM) + 1, 70)
limits = st.builds(BatchLimits, records=st.integers(1, 5), size_bytes=st.integers(1, 40))


@given(objects, st.integers(1, 70), limits, st.sampled_from([1, 3, 50]))
@example(b"a\nb\n", 2, BatchLimits(), 50)
@example(b"a\nb\n", 3, BatchLimits(), 50)
@example(b"a\r\nb", 2, BatchLimits(), 50)
@example(b"\n" * 9, 1, BatchLimits(), 1)
@example(b"x" * 40 + b"\na", 7, BatchLimits(), 3)
def test_each_split_has_the_lines_that_begin_in_it(data, split_size, limit, step):
    source = Dribble(data, step=step)
    for number, records in expected(data, split_size).items():
        assert read(source, Split(number, split_size), limits=limit) == numbered(records)


@given(objects, st.integers(1, 70))
def test_all_splits_together_are_the_object(data, split_size):
    transformer, source = text(), BytesInput(data)
    whole = [value for _, value in flat(transformer.read(source))]
    splits = [Split(number, split_size) for number in range(1, count_splits(len(data), split_size) + 1)]
    assert [value for split in splits for _, value in read(source, split)] == whole


@given(objects, split_sizes, limits, st.data())
def test_a_split_goes_on_at_any_record_and_from_any_mark(data, split_size, limit, choice):
    transformer, source = text(), BytesInput(data)
    split = Split(choice.draw(st.integers(1, count_splits(len(data), split_size))), split_size)
    records = expected(data, split_size)[split.number]
    marks = [
        run.mark for run in transformer.read_split(source, split, limits=limit) if not isinstance(run, SkippedRecord)
    ]
    skip = choice.draw(st.integers(0, len(records) + 1))
    # also marks that are of no use here, because they lie behind what is to be skipped
    mark = choice.draw(st.sampled_from([None, *filter(None, marks)]))
    assert read(source, split, skip=skip, mark=mark, limits=limit) == numbered(records[skip:], skip + 1)


@given(objects, st.integers(1, 70))
def test_marks_are_bytes_of_the_object_and_lines_begin_there(data, split_size):
    source = BytesInput(data)
    for number, records in expected(data, split_size).items():
        for run in text().read_split(source, Split(number, split_size), limits=BatchLimits(records=1)):
            mark = None if isinstance(run, SkippedRecord) else run.mark
            if mark is not None:
                assert mark.byte in {0, len(BOM)} or data[mark.byte - 1 : mark.byte] == b"\n"
                rest = expected(b"\n" + data[mark.byte :], len(data) + 1)[1]
                following = records[mark.record :]
                assert rest[: len(following)] == following


class Watched(BytesInput):
    """Notes what is asked for and how much of it is read."""

    def __init__(self, data, key="memory"):
        super().__init__(data, key)
        self.asked = []
        self.read_bytes = 0
        self.largest_read = 0

    def open(self, start=0, end=None):
        self.asked.append((start, end))
        stream, watched = super().open(start, end), self

        class Stream:
            def read(self, size, /):
                data = stream.read(size)
                watched.read_bytes += len(data)
                watched.largest_read = max(watched.largest_read, size)
                return data

            def close(self):
                stream.close()

        return Stream()


S = 1 << 20
HEAD = (0, 16)
"""The request for the first bytes of the object, which show whether it can be split."""


def test_a_split_asks_for_its_bytes_once_and_no_more_than_it_needs():
    source = Watched(b'{"a":"0123456789"}\n' * (3 * S // 19))
    assert len(read(source, Split(2, S), text(format="jsonl", max_record_bytes=100))) == pytest.approx(S / 19, abs=1)
    assert source.asked == [(S - 1, 2 * S + TAIL_BYTES), HEAD]


def test_a_split_is_read_in_pieces_no_larger_than_a_run_may_be():
    source = Watched(b"12345678\n" * 100)
    assert len(read(source, Split(2, 450), limits=BatchLimits(size_bytes=64))) == 50
    assert source.largest_read == 64


def test_a_split_inside_of_one_line_owns_nothing_and_does_not_read_on_to_the_lines_end():
    source = Watched(b"x" * 5 * S + b"\nlast")
    assert read(source, Split(2, S)) == []
    assert source.read_bytes <= S + TAIL_BYTES + 1
    assert source.asked == [(S - 1, 2 * S + TAIL_BYTES), HEAD]
    assert read(source, Split(6, S)) == [(1, b"last")]


def test_a_split_that_is_opened_from_its_objects_first_byte_asks_for_more_once_it_is_read():
    source = Watched(b"0123456789")
    stream = OnwardInput(source, 4).open()
    assert stream.read(99) == b"0123"
    assert source.asked == [(0, 4)]
    assert (stream.read(99), stream.read(99)) == (b"456789", b"")
    assert source.asked == [(0, 4), (4, 10)]


def test_a_split_goes_on_with_the_line_at_its_mark():
    data = b"".join(b"line %d\n" % number for number in range(9))
    mark = ResumePoint(1, data.index(b"line 4"))
    assert read(BytesInput(data), Split(2, 16)) == [(1, b"line 3"), (2, b"line 4")]
    assert read(BytesInput(data), Split(2, 16), skip=1, mark=mark) == [(2, b"line 4")]


def test_a_split_that_begins_like_a_packed_object_is_read_as_it_is():
    lines = [b"{}", b"\x1f\x8b\x08\0", b"{}"]
    data = b"".join(line + b"\n" for line in lines)
    for size in (3, 4):  # the byte before a split is read, too
        found = [read(BytesInput(data), Split(number, size), text(compression="auto")) for number in (1, 2, 3)]
        assert [line for part in found for _, line in part] == lines


def test_a_request_is_closed_before_the_next_begins_and_with_its_stream():
    events = []

    class Source(BytesInput):
        def open(self, start=0, end=None):
            stream = super().open(start, end)
            events.append("open")
            close = stream.close
            stream.close = lambda: (events.append("close"), close())
            return stream

    stream = OnwardInput(Source(b"0123456789"), 4).open()
    assert stream.read(99) + stream.read(99) == b"0123456789"
    stream.close()
    assert events == ["open", "close"] * 2


def test_a_line_longer_than_a_split_is_read_to_its_end_with_few_requests():
    line = b"x" * (9 * S)
    source = Watched(b"first\n" + line + b"\nlast\n")
    assert read(source, Split(1, S), text(max_record_bytes=64_000_000)) == [(1, b"first"), (2, line)]
    assert len(source.asked) < 12
    assert [end for _, end in source.asked[:-1]] == [start for start, _ in source.asked[1:]]
    onward = [end - start for start, end in source.asked[1:-1]]
    assert onward == [onward[0] << at for at in range(len(onward))], "twice as many bytes with each request"
    assert len(onward) > 2


def test_a_line_that_is_too_long_is_reported_once_by_the_split_in_which_it_begins():
    data = b"ab\n" + b"x" * 40 + b"\ncd\n"
    found = {number: read(BytesInput(data), Split(number, 8)) for number in range(1, count_splits(len(data), 8) + 1)}
    assert found == {1: [(1, b"ab"), (2, RecordTooLargeError)], 2: [], 3: [], 4: [], 5: [], 6: [(1, b"cd")]}
    (error,) = [run.error for run in text().read_split(BytesInput(data), Split(1, 8)) if isinstance(run, SkippedRecord)]
    assert error.byte_offset == 3


def test_a_bad_line_says_which_split_and_which_byte_of_the_object():
    data = b'{"a":1}\n' * 4 + b"oops\n" + b'{"a":1}\n'
    transformer = text(format="jsonl")
    found = [run for run in transformer.read_split(BytesInput(data), Split(3, 16)) if isinstance(run, SkippedRecord)]
    (bad,) = found
    assert isinstance(bad.error, RecordError)
    assert (bad.record_number, bad.error.byte_offset) == (1, 32)
    assert "memory://memory (split 3 of 3)" in str(bad.error)


# ---- which objects can be split


@pytest.mark.parametrize(
    ("options", "key", "can"),
    [
        ({"format": "jsonl", "compression": "none"}, "a.jsonl.gz", True),
        ({"format": "jsonl", "compression": "auto"}, "a.jsonl", True),
        ({"format": "jsonl", "compression": "auto"}, "a.jsonl.GZ", False),
        ({"format": "jsonl", "compression": "gzip"}, "a.jsonl", False),
        ({"format": "text", "compression": "auto"}, "a", True),
        ({"format": "auto"}, "a.ndjson", True),
        ({"format": "auto"}, "a.log", True),
        ({"format": "auto"}, "a.log.zst", False),
        ({"format": "auto"}, "a.csv", False),
        ({"format": "auto"}, "a.unknown", False),
        ({"format": "csv"}, "a.csv", False),
        ({"format": "json"}, "a.json", False),
        ({"format": "bytes"}, "a", False),
        ({"format": "avro"}, "a.avro", True),
        ({"format": "avro"}, "a.avro.gz", False),
        ({"format": "avro", "compression": "zstd"}, "a.avro", False),
        ({"format": "parquet"}, "part-0.snappy.parquet", True),
        ({"format": "parquet"}, "a.parquet.zst", False),
        ({"format": "auto"}, "a.avro", True),
        ({"format": "auto"}, "a.pq", True),
        ({"format": "auto"}, "a.pq.gz", False),
    ],
)
def test_what_can_be_split_is_decided_by_options_and_key(options, key, can):
    assert make_transformer(InputOptions(**options)).can_split(key) is can


def test_a_format_that_reads_objects_whole_says_so():
    with pytest.raises(NotImplementedError, match=r"csv reads memory://memory whole, not split 2"):
        make_transformer(InputOptions(format="csv")).read_split(BytesInput(b"a,b\n"), Split(2, 2))


def test_the_format_by_name_reads_splits_too():
    source = BytesInput(b'{"a":1}\n{"a":2}\n', "x.jsonl")
    assert read(source, Split(2, 8), make_transformer(InputOptions(format="auto"))) == [(1, b'{"a":2}')]


# ---- packed after all


@pytest.mark.parametrize("packing", ["gzip", "zstd", "snappy", "bzip2", "xz"])
@pytest.mark.parametrize("split_size", [1, 7, 30, 4096])
def test_an_object_whose_name_hides_that_it_is_packed_is_read_whole_by_split_1(packing, split_size):
    lines = [b"%d" % number for number in range(1000)]
    data = PACK[packing](b"\n".join(lines))
    transformer = text(compression="auto")
    splits = range(1, count_splits(len(data), split_size) + 1)
    assert transformer.can_split("data.txt")
    assert read(BytesInput(data, "data.txt"), Split(1, split_size), transformer) == numbered(lines)
    for number in [*splits[1:5], *splits[-2:]][: len(splits) - 1]:
        assert read(BytesInput(data, "data.txt"), Split(number, split_size), transformer) == []


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("compression", ["auto", "none"])
@pytest.mark.parametrize("mark", ["\ufeff", ""])
def test_text_in_utf16_is_refused_by_split_1_and_the_other_splits_own_nothing(encoding, compression, mark):
    data = (mark + "one line\n" * 100).encode(encoding)
    source = BytesInput(data, "data.txt")
    with pytest.raises(CorruptObjectError, match="UTF-16"):
        read(source, Split(1, 100), text(compression=compression))
    for number in range(2, count_splits(len(data), 100) + 1):
        assert read(source, Split(number, 100), text(compression=compression)) == []


def test_a_packed_object_resumes_in_split_1():
    lines = [b"%d" % number for number in range(1000)]
    source = BytesInput(PACK["gzip"](b"\n".join(lines)), "data.txt")
    assert read(source, Split(1, 100), text(compression="auto"), skip=990) == numbered(lines[990:], 991)


def test_the_objects_beginning_is_asked_for_once_and_with_compression_none_it_may_look_packed():
    data = PACK["gzip"](b"\n".join(b"%d" % number for number in range(1000)))
    splits = range(2, count_splits(len(data), 100) + 1)
    for compression in ("none", "auto"):
        source, found = Watched(data), []
        for number in splits:
            found += read(source, Split(number, 100), text(compression=compression))
        assert bool(found) == (compression == "none")
        assert source.asked.count(HEAD) == len(splits)


def test_split_1_of_an_object_whose_name_says_that_it_is_packed_in_an_unknown_way_is_refused_as_the_whole_is():
    """A position may say that it is split, from a version that did not know the name."""
    source = BytesInput(b"\x04\x22\x4d\x18\x00\xff" * 40, "data.lz4")
    assert not text(compression="auto").can_split(source.key)
    with pytest.raises(CorruptObjectError, match="its name says lz4, and it is not supported"):
        read(source, Split(1, 100), text(compression="auto"))


# ---- the end of an object is never taken for granted


def test_an_object_that_is_shorter_than_listed_is_an_error_for_the_split_that_misses_bytes():
    class Short(BytesInput):
        def open(self, start=0, end=None):
            whole = BytesInput(self._data[: self.size - 5])
            opened = whole.open(start, end)
            missing = min(self.size, self.size if end is None else end) > whole.size

            class Stream:
                def read(self, size, /):
                    data = opened.read(size)
                    if not data and missing:
                        raise TruncatedObjectError("cut short", location="memory")
                    return data

                def close(self):
                    opened.close()

            return Stream()

    source = Short(b"0123456\n" * 40)
    with pytest.raises(TruncatedObjectError):
        read(source, Split(3, 128))


def test_a_mark_behind_the_splits_last_line_means_that_nothing_is_left():
    data = b"aaaa\nbbbb\ncccc\n"
    assert read(BytesInput(data), Split(1, 4), skip=1, mark=ResumePoint(1, 5)) == []
    assert read(BytesInput(data), Split(3, 6), skip=1, mark=ResumePoint(1, 15)) == []
    assert read(BytesInput(data), Split(1, 5), skip=1, mark=ResumePoint(1, 5)) == []
    assert read(BytesInput(data), Split(2, 5)) == [(1, b"bbbb")]


@pytest.mark.parametrize("skip", [2, 3, 4])
def test_of_the_records_to_skip_those_before_the_mark_are_not_skipped_again(skip):
    records = [b"a", b"b", b"c", b"d"]
    found = read(BytesInput(b"a\nb\nc\nd\n"), Split(1, 8), skip=skip, mark=ResumePoint(2, 4))
    assert found == numbered(records[skip:], skip + 1)


def test_what_compresses_an_object_is_asked_once_however_far_the_first_line_is():
    source = Watched(b"x" * 1500 + b"\nnext\n" * 100, "data.txt")
    read(source, Split(2, 1000), text(compression="auto"), limits=BatchLimits(size_bytes=64))
    assert [start for start, _ in source.asked].count(0) == 1
