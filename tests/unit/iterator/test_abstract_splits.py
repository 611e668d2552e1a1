"""Shares through the iterator: what is asked of the store, what a cut object says, and objects that change under it."""

import gzip
import io
import json
import random

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framework.errors import CorruptObjectError, TruncatedObjectError
from framework.model.objects import ObjectState
from framework.model.splits import TAIL_BYTES
from framework.offsets.manager import OffsetManager
from framework.testing.fakes.memory_store import MemoryStore
from tests.support.core import commit, drain, iterator_over, line, payloads

SPLIT = 1500


@pytest.fixture
def over():
    """Iterators that are closed at the end."""
    made = []

    def make(store, offsets=None, **options):
        iterator = iterator_over(
            store, offsets, **{"split_size": SPLIT, "compression": "none", "once": True, **options}
        )
        made.append(iterator)
        return iterator

    yield make
    for iterator in made:
        iterator.close()


def many(name, count):
    return [line(name, number) + b" " * (number % 5) for number in range(count)]


class AskedStore(MemoryStore):
    """Notes the ranges that are asked for."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def open(self, native, start=0, end=None):
        self.asked.append((start, end))
        return super().open(native, start, end)

    def put_lines(self, name, count):
        written = many(name, count)
        self.put(name, b"\n".join(written) + b"\n")
        return written


def splits_in_order(batches):
    """The payloads of one object, share after share."""
    found = {}
    for batch in batches:
        found.setdefault(batch.entry.split_number, []).extend(batch.payloads)
    return [payload for split_number in sorted(found) for payload in found[split_number]]


def test_each_split_is_one_request_for_its_bytes_and_the_rest_of_its_last_line_and_one_for_the_beginning(over):
    store = AskedStore()
    written = store.put_lines("a", 8000)
    size = sum(len(one) + 1 for one in written)
    assert splits_in_order(drain(over(store, split_size=100_000))) == written
    count = -(-size // 100_000)
    expected = [(max(0, k * 100_000 - 1), (k + 1) * 100_000 + TAIL_BYTES) for k in range(count)]
    expected = [(start, end if end < size else None) for start, end in expected]
    beginnings = [(0, 16)] * (count - 1)  # text in UTF-16 is refused in every split
    assert sorted(store.asked, key=str) == sorted([*beginnings, *expected], key=str)


def test_with_compression_auto_each_split_but_the_first_looks_at_the_objects_beginning(over):
    store = AskedStore()
    store.put_lines("a", 300)
    drain(over(store, compression="auto"))
    assert store.asked.count((0, 16)) == -(-store.list_page().objects[0].size // SPLIT) - 1


def test_an_object_whose_name_hides_that_it_is_packed_is_read_whole_and_right(over):
    store = MemoryStore()
    dice = random.Random(3)
    written = [b'{"n":%d}' % dice.getrandbits(200) for _ in range(300)]
    store.put("a.jsonl", gzip.compress(b"\n".join(written)))
    assert store.list_page().objects[0].size > 3 * SPLIT
    batches = drain(over(store, compression="auto"))
    assert splits_in_order(batches) == written
    assert {batch.entry.split_number for batch in batches if batch.payloads} == {1}
    assert all(
        batch.entry.finished and not batch.entry.records_done for batch in batches if batch.entry.split_number > 1
    )


def test_records_one_by_one_say_which_split_they_are_of(over):
    store = AskedStore()
    written = store.put_lines("a", 200)
    records = list(over(store))
    assert [record.payload for record in records] == written
    assert [record.split_number for record in records] == sorted(record.split_number for record in records)
    assert records[-1].split_number > 2
    assert [record.record_number for record in records].count(1) == records[-1].split_number


def test_an_object_cut_at_any_byte_is_an_error_that_names_it(over):
    store = AskedStore()
    written = store.put_lines("a", 150)
    size = store.list_page().objects[0].size
    for at in range(0, size, 37):
        store.cut("a", at)
        read = []
        iterator = over(store, batch_length=7)

        def read_all(iterator=iterator, read=read):
            while (batch := iterator.next_batch()) is not None:
                read.append(batch)

        with pytest.raises(TruncatedObjectError, match="memory://bucket/a"):
            read_all()
        found = splits_in_order(read)
        assert found == written[: len(found)]
        iterator.close()


def test_a_split_goes_on_from_its_mark(over):
    store = AskedStore()
    written = store.put_lines("a", 150)
    offsets = OffsetManager()
    read = []
    while len(read) < 5:
        iterator = over(store, offsets, batch_length=5)
        batch = iterator.next_batch()
        read.append(batch)
        commit(offsets, [batch])
        iterator.close()
    assert read[-1].entry.records_done == 25
    store.asked.clear()
    rest = drain(over(store, offsets))
    assert any(start == read[-1].entry.mark.byte for start, _ in store.asked)
    assert splits_in_order([*read, *rest]) == written


def test_an_object_overwritten_while_its_splits_are_read_is_read_whole_in_its_new_version(over):
    store, offsets = AskedStore(), OffsetManager()
    store.put_lines("a", 200)
    iterator = over(store, offsets, prefetch_objects=1, batch_length=5)
    first = iterator.next_batch()
    commit(offsets, [first])
    written = store.put_lines("a", 160)
    batches = []
    while not iterator.finished:
        batch = iterator.next_batch()
        if batch is not None:
            batches.append(batch)
            commit(offsets, [batch])
    assert iterator.statistics.changed > 1
    new = [batch for batch in batches if batch.native.version != first.native.version]
    assert splits_in_order(new) == written
    assert payloads(new)["a"] == written
    assert {batch.entry.generation for batch in new} == {2}


# ---- blocks


def blocks_of(form, rows):
    out = io.BytesIO()
    values = [{"n": n, "text": random.Random(n).randbytes(50).hex()} for n in range(rows)]
    if form == "avro":
        fields = [{"name": "n", "type": "long"}, {"name": "text", "type": "string"}]
        fastavro.writer(out, {"type": "record", "name": "R", "fields": fields}, values, sync_interval=20_000)
    else:
        pq.write_table(pa.Table.from_pylist(values), out, row_group_size=2000, compression="none")
    return out.getvalue(), [json.dumps(value, separators=(",", ":")).encode() for value in values]


@pytest.mark.parametrize("form", ["avro", "parquet"])
@pytest.mark.parametrize("named", ["auto", "by format"])
def test_splits_of_blocks_fetch_the_object_once_beside_headers_and_footers(over, form, named):
    store = AskedStore()
    data, written = blocks_of(form, 60_000)
    size = len(data)
    store.put(f"a.{form}", data)
    options = {"format": form if named == "by format" else "auto", "split_size": size // 5}
    batches = drain(over(store, **options))
    assert splits_in_order(batches) == written
    assert len({batch.entry.split_number for batch in batches}) >= 5
    fetched = sum((size if end is None else end) - start for start, end in store.asked)
    assert fetched <= size + 6 * (2 * TAIL_BYTES + (1 << 17))
    assert max((size if end is None else end) - start for start, end in store.asked) < size / 4


def test_a_large_object_of_parquet_is_not_requested_before_its_footer(over):
    store = AskedStore()
    data, written = blocks_of("parquet", 60_000)
    assert len(data) > 1 << 22
    store.put("a.parquet", data)
    assert splits_in_order(drain(over(store, format="auto", split_size=1 << 30, columns=("n",)))) == [
        b'{"n":%d}' % n for n in range(len(written))
    ]
    assert (0, None) not in store.asked
    fetched = sum((len(data) if end is None else end) - start for start, end in store.asked)
    assert fetched < len(data) / 4


def test_a_small_object_of_parquet_is_one_request(over):
    store = AskedStore()
    data, written = blocks_of("parquet", 600)
    store.put("a.parquet", data)
    assert splits_in_order(drain(over(store, format="auto", split_size=1 << 30))) == written
    assert store.asked == [(0, None)]


@pytest.mark.parametrize("form", ["avro", "parquet"])
def test_splits_of_blocks_go_on_where_they_were(over, form):
    store = AskedStore()
    data, written = blocks_of(form, 9000)
    store.put(f"a.{form}", data)
    offsets, read = OffsetManager(), []
    options = {"format": "auto", "split_size": len(data) // 3, "batch_length": 701}
    while not read or not read[-1].entry.finished or len({batch.entry.split_number for batch in read}) < 2:
        iterator = over(store, offsets, **options)
        batch = iterator.next_batch()
        read.append(batch)
        commit(offsets, [batch])
        iterator.close()
    rest = drain(over(store, offsets, **options))
    assert rest
    assert splits_in_order([*read, *rest]) == written


@pytest.mark.parametrize("form", ["avro", "parquet", "csv"])
def test_a_column_that_does_not_exist_obeys_the_tolerance(over, form):
    store = AskedStore()
    data, _ = blocks_of(form, 30) if form != "csv" else (b"n,text\n1,a\n", [])
    store.put(f"a.{form}", data)
    options = {"format": "auto", "split_size": 1 << 30, "columns": ("m",)}
    with pytest.raises(CorruptObjectError, match=rf"memory://bucket/a.{form}, record 1: it has no column 'm'"):
        drain(over(store, tolerance="none", **options))
    (batch,) = drain(over(store, tolerance="skip_object", **options))
    assert batch.entry.state is ObjectState.FAILED
    assert "no column 'm'" in str(batch.failure.error)
