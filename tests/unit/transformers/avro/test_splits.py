"""Splits of Avro: the blocks whose marker before them begins in the split, and no made-up block goes unnoticed."""

import bz2
import io
import json
import lzma
import os
import zlib
from collections import Counter

import attrs
import cramjam
import fastavro
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from framework.errors import CorruptObjectError, TruncatedObjectError
from framework.model.batches import SkippedRecord
from framework.model.splits import TAIL_BYTES, Split, count_splits
from framework.transformer import BatchLimits, InputOptions
from tests.support.packing import PACK, Dribble
from tests.unit.transformers.test_lines import flat
from tests.unit.transformers.test_split_lines import Watched
from transformers import BytesInput, make_transformer
from transformers.avro import format as avro

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}, {"name": "b", "type": "bytes"}]}
SYNC = b"0123456789abcdef"
CODECS = {
    "null": lambda data: data,
    "deflate": lambda data: zlib.compress(data)[2:-4],
    "stored": lambda data: zlib.compress(data, 0)[2:-4],
    "snappy": lambda data: bytes(cramjam.snappy.compress_raw(data)) + zlib.crc32(data).to_bytes(4, "big"),
    "zstandard": zstandard.ZstdCompressor().compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}


def transformer(**options):
    return make_transformer(InputOptions(**{"format": "avro", "compression": "none"} | options))


def read(source, split, form=None, **more):
    return flat((form or transformer()).read_split(source, split, **more))


def splits_of(size, split_size):
    return [Split(number, split_size) for number in range(1, count_splits(size, split_size) + 1)]


def varint(value):
    value, out = value << 1, b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def write(payloads, *, codec="null", at_once=1, sync=SYNC, schema=SCHEMA, places=None):
    """A file with so many data in a block; `places` gets the marker before each block, and the numbers in it."""
    out = io.BytesIO()
    header = {"avro.schema": json.dumps(schema), "avro.codec": "deflate" if codec == "stored" else codec}
    out.write(b"Obj\x01" + varint(len(header)))
    for text in (text.encode() for pair in header.items() for text in pair):
        out.write(varint(len(text)) + text)
    out.write(b"\0" + sync)
    for begin in range(0, len(payloads), at_once):
        numbers = range(begin, min(len(payloads), begin + at_once))
        body = b"".join(varint(n) + varint(len(payloads[n])) + payloads[n] for n in numbers)
        body = CODECS[codec](body)
        if places is not None:
            places.append((out.tell() - len(sync), list(numbers)))
        out.write(varint(len(numbers)) + varint(len(body)) + body + sync)
    return out.getvalue()


def numbers(records):
    return [json.loads(payload)["n"] for _, payload in records]


@attrs.frozen
class File:
    """A file, and what is in it."""

    data: bytes = attrs.field(repr=False)
    places: list

    @classmethod
    def made(cls, payloads, **options):
        places = []
        return cls(write(payloads, places=places, **options), places)

    def expected(self, split_size):
        """Split -> its numbers."""
        found = {split.number: [] for split in splits_of(len(self.data), split_size)}
        for marker, rows in self.places:
            found[marker // split_size + 1] += rows
        return found


objects = st.builds(
    File.made,
    st.lists(st.binary(max_size=60), max_size=25),
    codec=st.sampled_from(list(CODECS)),
    at_once=st.integers(1, 30),
)
limits = st.builds(BatchLimits, records=st.integers(1, 5), size_bytes=st.integers(1, 400))


@given(objects, st.integers(1, 700), limits, st.sampled_from([1, 3, 50, 1000]))
@example(File.made([b"a", b"b"]), 1, BatchLimits(), 1000)
@example(File.made([]), 3, BatchLimits(), 1000)
def test_each_split_has_the_blocks_whose_marker_begins_in_it(file, split_size, limit, step):
    source = Dribble(file.data, step=step)
    for split_number, rows in file.expected(split_size).items():
        records = read(source, Split(split_number, split_size), limits=limit)
        assert numbers(records) == rows
        assert [at for at, _ in records] == list(range(1, len(rows) + 1))


@given(objects, st.integers(16, 700))
def test_all_splits_together_are_the_object(file, split_size):
    form = transformer(compression="auto")
    whole = [payload for _, payload in flat(form.read(BytesInput(file.data)))]
    splits = [read(BytesInput(file.data), split, form) for split in splits_of(len(file.data), split_size)]
    assert [payload for records in splits for _, payload in records] == whole


def test_files_of_another_library_are_read_alike():
    for codec in ("null", "deflate", "snappy", "bzip2", "xz"):
        out = io.BytesIO()
        fastavro.writer(out, SCHEMA, [{"n": n, "b": os.urandom(9)} for n in range(300)], codec=codec, sync_interval=200)
        data = out.getvalue()
        for split_size in (100, 333, 1024, 5000):
            blocks = fastavro.block_reader(io.BytesIO(data))
            counts = Counter((block.offset - 16) // split_size + 1 for block in blocks for _ in block)
            found = [read(BytesInput(data), split) for split in splits_of(len(data), split_size)]
            assert [n for records in found for n in numbers(records)] == list(range(300))
            assert {number: len(records) for number, records in enumerate(found, 1) if records} == counts


@given(objects, st.integers(16, 700), limits, st.data())
def test_a_split_goes_on_at_any_record_and_from_any_mark(file, split_size, limit, choice):
    form, source = transformer(), BytesInput(file.data)
    split = choice.draw(st.sampled_from(splits_of(len(file.data), split_size)))
    records = read(source, split)
    marks = [run.mark for run in form.read_split(source, split, limits=limit)]
    skip = choice.draw(st.integers(0, len(records) + 1))
    mark = choice.draw(st.sampled_from([None, *filter(None, marks)]))
    assert read(source, split, skip=skip, mark=mark, limits=limit) == records[skip:]


def test_a_mark_saves_the_bytes_before_it():
    data = write([os.urandom(2000) for _ in range(100)])
    source, split = Watched(data), Split(2, 100_000)
    runs = list(transformer().read_split(source, split, limits=BatchLimits(records=5)))
    mark = runs[-2].mark
    assert mark.byte > 150_000
    source.asked.clear()
    rest = flat(transformer().read_split(source, split, skip=runs[-1].first_record - 1, mark=mark))
    assert rest == flat(runs[-1:])
    assert source.asked == [
        (mark.byte, min(len(data), 200000 + TAIL_BYTES)),
        (0, 1 << 16),
    ]


def test_a_split_asks_for_its_bytes_and_the_header_once():
    data = write([os.urandom(1000) for _ in range(4000)], at_once=20)
    size = 1_000_000
    source = Watched(data)
    splits = splits_of(len(data), size)
    assert sum(len(read(source, split)) for split in splits) == 4000
    assert source.asked[0] == (0, size + TAIL_BYTES)
    own = [(split.begin - 1, min(len(data), split.end + TAIL_BYTES)) for split in splits[1:]]
    assert source.asked[1:] == [asked for window in own for asked in (window, (0, 1 << 16))]
    assert source.read_bytes <= len(data) + len(splits) * (2 * TAIL_BYTES + (1 << 16))


def test_a_split_inside_of_one_block_owns_nothing_and_does_not_read_on_to_its_end():
    data = write([os.urandom(500_000), b"last"])
    source = Watched(data)
    assert read(source, Split(3, 100_000)) == []
    assert source.asked == [(199_999, 300_000 + TAIL_BYTES), (0, 1 << 16)]


def test_a_header_longer_than_splits_begins_with_the_split_in_which_its_marker_is():
    schema = SCHEMA | {"doc": "x" * 900}
    data = write([b"a", b"b"], schema=schema)
    marker = data.index(SYNC)
    for split_size in (100, 333, marker, marker + 1, marker + 15, marker + 16):
        found = {split.number: read(BytesInput(data), split) for split in splits_of(len(data), split_size)}
        assert [n for records in found.values() for n in numbers(records)] == [0, 1]
        assert min(number for number, records in found.items() if records) == marker // split_size + 1


def test_data_without_a_byte_belong_to_split_1_whose_number_is_limited_for_the_object(monkeypatch):
    out = io.BytesIO()
    fastavro.writer(out, "null", [None] * 300, sync_interval=1, sync_marker=SYNC)
    data = out.getvalue()
    for split in splits_of(len(data), 64):
        assert len(read(BytesInput(data), split)) == (300 if split.number == 1 else 0)
    monkeypatch.setattr(avro, "EMPTY_DATA", 200)
    with pytest.raises(CorruptObjectError, match="more than 200 records without a single byte"):
        read(BytesInput(data), Split(1, 64))


# ---- limits


def test_a_block_over_the_limit_fails_the_split_that_it_is_in():
    data = write([b"a" * 10, b"b" * 5000, b"c" * 10])
    form = transformer(max_block_bytes=1000)
    found = []
    for split in splits_of(len(data), 1024):
        try:
            found += numbers(read(BytesInput(data), split, form))
        except CorruptObjectError as exc:
            found.append("longer than input.max_block_bytes (1000 bytes)" in str(exc))
    assert found == [True, 2]


def test_a_bomb_is_an_error_in_a_split_too():
    data = write([b"\0" * 100_000] * 3, codec="deflate")
    with pytest.raises(CorruptObjectError, match=r"unpacks to more than input.max_block_bytes"):
        read(BytesInput(data), Split(1, 4096), transformer(max_block_bytes=10_000))


def test_the_expansion_is_limited_by_the_bytes_that_a_split_reads(monkeypatch):
    monkeypatch.setattr("transformers.compression.FREE_EXPANSION_BYTES", 1000)
    data = write([b"\0" * 10_000] * 3, codec="deflate")
    form = transformer(max_expansion=5)
    with pytest.raises(CorruptObjectError, match=r"its blocks unpack to more than \d+ bytes, of \d+ that are stored"):
        read(BytesInput(data), Split(1, len(data)), form, limits=BatchLimits(records=1))
    assert len(read(BytesInput(data), Split(1, len(data)), transformer(max_expansion=1000))) == 3


# ---- damage, and ends that come early


def outcome(data, split_size, form=None, source=None):
    """The records of all splits, and the errors in place of what follows."""
    found, errors = [], []
    for split in splits_of(len(data), split_size):
        runs = (form or transformer()).read_split(source or BytesInput(data), split)
        try:
            for run in runs:
                assert not isinstance(run, SkippedRecord)
                found += [json.loads(payload)["n"] for payload in run.payloads]
        except CorruptObjectError as exc:
            errors.append(exc)
    assert all("(split " in str(error) for error in errors)
    return found, errors


@pytest.mark.parametrize("at", ["count", "size", "marker", "header"])
def test_damage_is_an_error_of_a_split_and_nothing_goes_missing_without_one(at):
    data = write([bytes([n]) * 30 for n in range(20)])
    blocks = [block.offset for block in fastavro.block_reader(io.BytesIO(data))]
    place = {"count": blocks[7], "size": blocks[7] + 1, "marker": blocks[8] - 3, "header": 3}[at]
    for change in (0xFF, 0x01, 0x7F):
        damaged = bytearray(data)
        damaged[place] ^= change
        for split_size in (64, 100, 300, 1000):
            found, errors = outcome(bytes(damaged), split_size)
            assert errors
            assert set(found) <= set(range(20))
            assert found == sorted(set(found))


def test_a_file_cut_at_any_byte_is_an_error():
    data = write([b"x" * 20] * 6)
    for at in range(len(data)):
        source = BytesInput(data[:at])
        source.size = len(data)  # as listed

        def open_cut(start=0, end=None, at=at):
            opened = BytesInput(data[:at]).open(start, end)
            stop = len(data) if end is None else end

            class Stream:
                def read(self, size, /):
                    found = opened.read(size)
                    if not found and stop > at:
                        raise TruncatedObjectError("shorter than listed", location="memory://memory")
                    return found

                def close(self):
                    opened.close()

            return Stream()

        source.open = open_cut
        errors, found = 0, []
        for split in splits_of(len(data), 97):
            try:
                found += numbers(read(source, split))
            except TruncatedObjectError:
                errors += 1
        assert errors
        assert found == sorted(set(found))


# ---- a marker inside of data


def fake_blocks(*rows):
    """Blocks that look real, from one marker to the next."""
    out = b""
    for n in rows:
        body = varint(n) + varint(2) + b"!!"
        out += SYNC + varint(1) + varint(len(body)) + body
    return out + SYNC


HOSTILE = [
    SYNC,
    SYNC * 3,
    SYNC + b"\xff" * 12,
    SYNC + varint(1) + varint(3) + b"\x02\x02a",
    fake_blocks(100),
    fake_blocks(100, 101, 102),
    fake_blocks(100) + varint(1) + varint(1 << 25),
]


@pytest.mark.parametrize("codec", ["null", "stored"])
@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_marker_inside_of_data_never_goes_unnoticed(hostile, codec):
    """Whatever the split size: either the records are those of a whole read, or a split fails."""
    payloads = [b"a" * 5, b"x" * 40 + hostile + b"y" * 30, b"b" * 50]
    data = write(payloads, codec=codec)
    whole = numbers(flat(transformer().read(BytesInput(data))))
    assert whole == [0, 1, 2]
    noticed = 0
    for split_size in range(16, len(data)):
        found, errors = outcome(data, split_size)
        assert found == whole or errors, split_size
        noticed += bool(errors)
        # the split that holds the block names the cause, whatever became of the next
        assert not errors or any("also stands inside of a block" in str(exc) for exc in errors)
    assert noticed


def test_a_marker_of_equal_bytes_never_goes_unnoticed():
    """Where the bytes before a marker are like it, a search finds it too early."""
    for sync in (bytes(16), b"ab" * 8):
        data = write([sync[-1:] * 3, b"x", sync[-2:], b""], sync=sync)
        whole = numbers(flat(transformer().read(BytesInput(data))))
        for split_size in range(16, len(data)):
            found, errors = outcome(data, split_size)
            assert found == whole or errors


def test_lengths_that_are_longer_than_they_need_to_be_are_searched_too():
    """The marker may stand over the numbers of a block, when these are padded."""
    data = write([b"a", b"b"])
    block = data.rindex(SYNC, 0, -16) + 16
    padded = data[:block] + b"\x82\x80\x00" + data[block + 1 :]
    assert numbers(flat(transformer().read(BytesInput(padded)))) == [0, 1]
    for split_size in range(16, len(padded)):
        assert outcome(padded, split_size) == ([0, 1], [])


# ---- compressed although the name does not show it


@pytest.mark.parametrize("packing", ["gzip", "zstd", "snappy", "bzip2", "xz"])
def test_an_object_whose_name_hides_that_it_is_packed_is_read_whole_by_split_1(packing):
    data = PACK[packing](write([os.urandom(20) for _ in range(100)]))
    form = transformer(compression="auto")
    splits = splits_of(len(data), 500)
    assert numbers(read(BytesInput(data), splits[0], form)) == list(range(100))
    assert numbers(read(BytesInput(data), splits[0], form, skip=97)) == [97, 98, 99]
    for split in splits[1:]:
        assert read(BytesInput(data), split, form) == []
    for split in splits:
        with pytest.raises(CorruptObjectError, match="not an Avro object container file"):
            read(BytesInput(data), split, transformer(compression="none"))
