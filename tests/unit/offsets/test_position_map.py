"""Packed positions are the positions: against a plain dict, with odd keys, colliding hashes, and views of earlier moments."""

import enum
import hashlib
import itertools
import json
import marshal
import pickle
import random
import struct
import threading
import tracemalloc
from collections import Counter

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from framework.iggy.offset_log import codec, framing
from framework.iggy.offset_log.records import SnapshotFooter
from framework.model.batches import Acknowledgement, RecordBatch
from framework.model.objects import Anchor, NativeObject, ObjectState, ResumePoint, TopicPartition
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.offsets import packed_row
from framework.offsets.manager import OffsetManager
from framework.offsets.packed_row import RowChunk, RowCodec, Tables
from framework.offsets.packed_table import FinishedTable
from framework.offsets.partition_counts import PartitionState
from framework.offsets.position_map import PositionMap, begin_in, position_map
from framework.offsets.position_view import records_of
from framework.offsets.watermark import CoveredRange, Watermark
from tests.support.entries import entry as small_entry
from tests.support.entries import final, splits_of
from tests.support.examples import examples

PARTITION = TopicPartition("t", 0)
ETAG = "d41d8cd98f00b204e9800998ecf8427e"

anything = st.text(st.characters(), max_size=12)  # lone surrogates too
names = st.one_of(
    st.sampled_from(["a", "a/b", "a/b/", "/", "//", "a/b/c", "ü/\U0001f600", "\ud800/\udc00", "\ud800\udc00"]),
    anything,
    st.builds("/".join, st.lists(st.sampled_from(["x", "y", ""]), max_size=4)),
)
numbers = st.one_of(st.integers(0, 9), st.integers(-(2**70), 2**70))
versions = st.one_of(
    st.sampled_from(
        ["", "v", ETAG, ETAG.upper(), f"{ETAG}@5", f"{ETAG}-12@5", " " + ETAG, "@5", ETAG[:31], "1700000000"]
    ),
    anything,
    st.builds("{}@{}".format, st.sampled_from([ETAG, f"{ETAG}-3", "x"]), st.integers(0, 9)),
)
extras = st.dictionaries(
    anything, st.none() | st.booleans() | numbers | anything | st.floats(allow_nan=False), max_size=2
)
totals = st.none() | numbers


def entries_of(bucket, key, split_number=0):
    """Anything that is well formed; half of them settled as most are, at one count."""
    return st.tuples(any_counts_of(bucket, key, split_number), st.booleans()).map(
        lambda one: (
            one[0].changed(records_saved=one[0].records_done, total=one[0].records_done, mark=None)
            if one[1]
            else one[0]
        )
    )


def any_counts_of(bucket, key, split_number):
    return st.builds(
        OffsetManagerEntry,
        bucket=st.just(bucket),
        key=st.just(key),
        version=versions,
        generation=st.integers(0, 2),
        modified_ms=st.one_of(st.integers(0, 9), numbers),
        split_number=st.just(split_number),
        split_size=st.sampled_from([64, -3]) if split_number else st.just(0),
        records_done=numbers,
        records_saved=numbers,
        total=totals,
        failed=st.booleans(),
        topic_partition=st.builds(TopicPartition, st.sampled_from(["t", "u"]), st.integers(0, 2)),
        mark=st.none() | st.builds(ResumePoint, numbers, numbers),
        numbering_options=st.sampled_from(["", '{"format":"jsonl"}']),
        skipped=numbers,
        may_begin_again=st.booleans(),
        missing_since_ms=numbers,
        extra=extras,
    )


any_entry = st.tuples(st.sampled_from(["lake", "other"]), names, st.sampled_from([0, 0, 1, 2, 3])).flatmap(
    lambda name: entries_of(*name)
)


def small_map(hash_of=None, *, folders=3, templates=12):
    """Few folders and templates, blocks of four rows, and hashes that collide."""
    hash_of = hash_of or (lambda head: sum(head) % 5 << 29)
    codec = type("SmallCodec", (RowCodec,), {"_max_folders": folders, "_max_templates": templates})()
    return PositionMap(finished=table_of(codec, block_rows=4, hash_of=staticmethod(hash_of)))


def compact(positions, watermark):
    """Drop what the watermark covers; return the number of objects by prefix, and their records."""
    gone = [one for one in positions.view().compactable(watermark) if positions.drop(one)]
    positions.clear_away()
    return Counter(one.prefix for one in gone), sum(records_of(entry) for one in gone for entry in one.entries)


def table_of(codec, **limits):
    return type("SmallTable", (FinishedTable,), {f"_{name}": value for name, value in limits.items()})(codec)


def exact(entry):
    """A value that differs when any field differs, in its type too."""
    return repr(entry)


class AgainstADict(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.packed = small_map()
        self.model = {}
        self.views = []

    @rule(entry=any_entry)
    def put(self, entry):
        self.packed[entry.get_manager_key()] = self.model[entry.get_manager_key()] = entry

    @rule(data=st.data(), total=totals, records=numbers, saved=numbers)
    def put_again(self, data, total, records, saved):
        if self.model:
            key = data.draw(st.sampled_from(sorted(self.model, key=repr)))
            entry = self.model[key].changed(total=total, records_done=records, records_saved=saved)
            self.packed[key] = self.model[key] = entry

    @rule(
        properties=st.dictionaries(st.sampled_from(["bucket", "key", "part", "x"]), names, max_size=3), entry=any_entry
    )
    def put_under_another_key(self, properties, entry):
        key = OffsetManagerKey.of(properties)
        self.packed[key] = self.model[key] = entry

    @rule(data=st.data())
    def remove(self, data):
        if self.model:
            key = data.draw(st.sampled_from(sorted(self.model, key=repr)))
            del self.model[key], self.packed[key]

    @rule(entry=any_entry)
    def remove_what_may_be_there(self, entry):
        key = entry.get_manager_key()
        found = self.packed.pop(key, None)
        assert exact(found) == exact(self.model.pop(key, None))

    @rule()
    def take_a_view(self):
        self.views.append((self.packed.view(), sorted(map(exact, self.model.values()))))

    @invariant()
    def the_same_is_in_both(self):
        assert len(self.packed) == len(self.model)
        for key, entry in self.model.items():
            assert key in self.packed
            assert exact(self.packed[key]) == exact(entry)
            is_packed = key not in self.packed._objects  # without a row, a listing looks at it as at a pending one
            whole = is_packed and not entry.failed and not entry.split_size
            assert self.packed.listed(key, entry.version) == ((True, None) if whole else (False, entry))
            assert self.packed.listed(key, "another") == (False, entry)
        uncompactable = {key: entry for key, entry in self.model.items() if entry.failed or not entry.final}
        assert dict(self.packed.uncompactable()) == uncompactable
        assert {key: exact(entry) for key, entry in self.packed.items()} == {
            key: exact(entry) for key, entry in self.model.items()
        }
        assert dict(self.packed.pending()) == {key: one for key, one in self.model.items() if not one.final}

    @invariant()
    def views_show_their_own_moment(self):
        records = sum(
            entry.records_done for entry in self.model.values() if entry.split_size >= 0 or entry.split_number == 1
        )
        assert self.packed.view().records_done == records
        for view, then in self.views:
            assert sorted(map(exact, view)) == then
            assert len(view) == len(then)


TestAgainstADict = AgainstADict.TestCase
TestAgainstADict.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


def test_a_row_holds_no_more_of_a_key_than_its_name_in_its_folder():
    codec = RowCodec()
    head = codec.head(OffsetManagerKey.of_object("b", "some/folder/name"), add=True)
    assert head[8:] == b"name"
    assert codec.tables.folders == [("b", "some/folder/")]


def test_what_is_absent_is_a_missing_key_as_in_a_dict():
    positions = position_map([done("folder/a")])
    for name in ("folder/b", "elsewhere/a"):
        absent = OffsetManagerKey.of_object("b", name)
        assert absent not in positions
        assert positions.get(absent) is None
        with pytest.raises(KeyError, match=name):
            positions[absent]
        with pytest.raises(KeyError, match=name):
            del positions[absent]
    assert list(positions.values()) == [done("folder/a")]


@pytest.mark.parametrize("hash_of", [lambda head: 0, lambda head: 2**64 - 1, len, lambda head: head[8] << 24])
def test_hashes_that_collide_mix_nothing_up(hash_of):
    positions = small_map(hash_of)
    model = {}
    chance = random.Random(1)
    for number in range(900):
        entry = done(f"{number % 300:03}/{chance.randrange(3)}", records=number)
        positions[entry.get_manager_key()] = model[entry.get_manager_key()] = entry
    assert dict(positions) == model


@pytest.mark.parametrize("hash_of", [lambda head: 2**64 - 1, lambda head: sum(head) << 23, lambda head: head[-1] << 24])
def test_positions_of_a_snapshot_and_those_that_come_later_are_found(hash_of):
    """Also those whose hashes collide, in the dict and in the array."""
    positions, back = small_map(hash_of), small_map(hash_of)
    model = {(entry := done(f"{number:03}")).get_manager_key(): entry for number in range(400)}
    positions.update(model)
    back.load(positions.view().tables, positions.view().chunks())
    assert back.view().records_done == 400
    for one in (positions, back):
        one.update({(entry := done(f"{number:03}", 9)).get_manager_key(): entry for number in range(700, 1500)})
        assert {key: one.find(key) for key in model} == model
        assert (len(one), one.view().records_done) == (1200, 400 + 9 * 800)


def test_rows_of_a_snapshot_are_kept_when_the_message_that_they_came_in_is_gone():
    positions, back = small_map(), small_map()
    positions.update({(entry := done(f"{number:03}")).get_manager_key(): entry for number in range(50)})
    chunks = [RowChunk(bytearray(chunk.rows), bytearray(chunk.ends)) for chunk in positions.view().chunks()]
    back.load(positions.view().tables, chunks)
    for chunk in chunks:  # the message that they came in is gone
        chunk.rows[:] = bytes(len(chunk.rows))
        chunk.ends[:] = bytes(len(chunk.ends))
    assert dict(back) == dict(positions)


def test_a_snapshot_with_a_field_of_an_earlier_build_is_read_without_it():
    positions, back = small_map(), small_map()
    model = {(entry := done(f"{number}", generation=number)).get_manager_key(): entry for number in range(9)}
    positions.update(model)
    tables = msgspec.to_builtins(positions.view().tables)
    tables["templates"] = [{**template, "former": False} for template in tables["templates"]]
    back.load(msgspec.convert(tables, Tables), positions.view().chunks())
    assert dict(back) == model


@given(
    st.lists(st.booleans(), max_size=40), st.sets(st.integers(0, 39)), st.sets(st.integers(0, 39)), st.integers(0, 9)
)
@example([False], set(), set(), 1)
def test_chunks_hold_every_row_that_is_left_and_has_a_stored_form(pickled, replaced, removed, later):
    """In order, as many as a block has, and the last the rest; what comes later is not in them."""
    positions = small_map()
    for number, unusual in enumerate(pickled):
        entry = done(f"{number}", modified_ms=1 << 70 if unusual else number)
        positions[entry.get_manager_key()] = entry
    for number in replaced & set(range(len(pickled))):
        entry = done(f"{number}", 7, modified_ms=1 << 70 if pickled[number] else number)
        positions[entry.get_manager_key()] = entry
    for number in removed & set(range(len(pickled))):
        del positions[done(f"{number}").get_manager_key()]
    view = positions.view()
    for number in range(later):
        positions[done(f"later{number}").get_manager_key()] = done(f"later{number}")
    chunks, left = list(view.chunks()), list(view)
    sizes = [len(chunk.ends) // 4 for chunk in chunks]
    assert all(size == 4 for size in sizes[:-1])
    assert all(0 < size <= 4 for size in sizes)
    assert [len(chunk.rows) for chunk in chunks] == [int.from_bytes(chunk.ends[-4:], "little") for chunk in chunks]
    back = small_map()
    back.load(view.tables, chunks)
    assert list(back.view()) == [entry for entry in left if entry.modified_ms != 1 << 70]
    assert list(view.others) == [entry for entry in left if entry.modified_ms == 1 << 70]


def test_a_snapshot_and_a_compaction_take_no_step_for_each_of_the_other_rows(monkeypatch):
    """With millions of positions they would hold every send up for seconds."""
    positions = small_map()
    unusual = done("unusual", modified_ms=1 << 70)
    split = done("split", modified_ms=50).changed(split_number=1, split_size=64)
    old = done("old", modified_ms=8)
    others = [done(f"{number}", modified_ms=50 if number % 2 else 0) for number in range(20)]
    for entry in (unusual, split, old, *others):
        positions[entry.get_manager_key()] = entry
    looked_at = []

    def watched(read):
        return lambda row: (looked_at.append(row), read(row))[1]

    monkeypatch.setattr(positions._finished.codec, "entry_of", watched(positions._finished.codec.entry_of))
    assert list(positions.view().others) == [unusual]
    assert looked_at == []
    objects, _ = compact(positions, Watermark(bucket="b").raised("", CoveredRange("", None, 9)))
    assert objects == {"": 1}
    assert len({bytes(row) for row in looked_at}) == 2


def test_a_compaction_of_few_positions_does_not_copy_the_others():
    """It happens at every snapshot: with a million positions a copy took 1.7 s, while senders wait."""
    positions = small_map()
    for number in range(40):
        entry = done(f"{number:02}", modified_ms=10 + number)
        positions[entry.get_manager_key()] = entry
    kept, watermark = positions._finished._blocks[-2], Watermark(bucket="b")
    for time_ms, is_kept in ((15, True), (17, True), (30, False)):
        compact(positions, watermark.raised("", CoveredRange("", None, time_ms)))
        assert [int(entry.key) for entry in positions.view()] == list(range(time_ms - 10, 40))
        assert positions.view().records_done == 50 - time_ms
        assert any(block is kept for block in positions._finished._blocks) == is_kept


@pytest.mark.parametrize("longest", [packed_row.MAX_ROW_BYTES - 30, 9_990])
def test_chunks_hold_no_very_long_row_for_parts_of_a_snapshot_are_bounded(longest):
    """4,096 keys of 10,000 characters would be 160 MB, and Iggy stores 64."""
    positions = small_map()
    entries = [done(f"{number}" * (longest if number % 3 else 1)) for number in range(9)]
    positions.update({entry.get_manager_key(): entry for entry in entries})
    view = positions.view()
    chunks, others = list(view.chunks()), list(view.others)
    assert len(others) == (6 if longest > packed_row.MAX_ROW_BYTES else 0)
    assert all(len(chunk.rows) <= 4 * packed_row.MAX_ROW_BYTES for chunk in chunks)
    back = small_map()
    back.load(view.tables, chunks)
    back.update({entry.get_manager_key(): entry for entry in others})
    assert dict(back) == dict(positions)


@pytest.mark.parametrize("part", [1, 3])
def test_shared_folders_have_few_characters_together(monkeypatch, part):
    """They are all in the first part of a snapshot. A key whose folder is none of them is found, also after a start."""
    monkeypatch.setattr(packed_row, "FOLDER_CHARACTERS", 100)
    model = {(entry := done(f"{number:040}/{number % part}")).get_manager_key(): entry for number in range(20)}
    positions, back = small_map(), small_map()
    positions.update(model)
    assert sum(len(folder) for _, folder in positions.view().tables.folders) < 100 + 41
    back.load(positions.view().tables, positions.view().chunks())
    for one in (positions, back):
        assert dict(one) == model
        one.update({key: entry.changed(records_done=7) for key, entry in model.items()})
        assert len(one) == 20


class Trap:
    """Runs when it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("code from a snapshot ran",)


NAME_AT, BODY_AT, EXTRA_AT = 8, 9, 24
"""In a row of the key `k`."""

FORGED_ROWS = {
    "a pickled row": lambda row: row[:BODY_AT] + b"\x08" + pickle.dumps(Trap()),
    "a row of no kind": lambda row: row[:BODY_AT] + b"\x10" + row[BODY_AT + 1 :],
    "a folder that is not there": lambda row: b"\1" + row[1:],
    "a name longer than the row": lambda row: row[:4] + b"\xff" + row[5:],
    "a name longer than all rows": lambda row: row[:7] + b"\xff" + row[8:],
    "a template that is not there": lambda row: row[: BODY_AT + 1] + b"\1" + row[BODY_AT + 2 :],
    "a very long row": lambda row: row + b"x" * packed_row.MAX_ROW_BYTES,
    "no version": lambda row: row[: EXTRA_AT - 1],
    "an etag that is cut": lambda row: row[:BODY_AT] + b"\2" + row[BODY_AT + 1 :],
    "an extra without a length": lambda row: row[:BODY_AT] + b"\4" + row[BODY_AT + 1 : EXTRA_AT + 3],
    "an extra longer than the row": lambda row: row[:BODY_AT] + b"\4" + row[BODY_AT + 1 : EXTRA_AT] + b"\2\0\0\0x",
    "an extra of an earlier build": lambda row: with_extra(row, marshal.dumps({"a": 1})),
    "an extra that is no object": lambda row: with_extra(row, msgspec.msgpack.encode([1])),
    "a name that is no text": lambda row: row[:NAME_AT] + b"\xff" + row[BODY_AT:],
    "a version that is no text": lambda row: row + b"\xc3",
    "an extra that is no scalar": lambda row: with_extra(row, msgspec.msgpack.encode({"a": [1]})),
}


def with_extra(row, extra):
    return row[:BODY_AT] + b"\4" + row[BODY_AT + 1 : EXTRA_AT] + len(extra).to_bytes(4, "little") + extra


@pytest.mark.parametrize("forged", FORGED_ROWS)
def test_a_row_that_no_source_wrote_is_refused_when_it_is_loaded(forged):
    """Whoever may write to the topic of positions decides which objects are read, and nothing else."""
    view = position_map([done("k")]).view()
    (chunk,) = view.chunks()
    row = bytes(chunk.rows)
    assert row[NAME_AT:BODY_AT] == b"k"
    assert row[EXTRA_AT:] == b"v"

    def loaded(*rows):
        back = PositionMap()
        ends = itertools.accumulate(map(len, rows))
        back.load(view.tables, [RowChunk(b"".join(rows), b"".join(end.to_bytes(4, "little") for end in ends))])
        return back

    good = with_extra(row, msgspec.msgpack.encode({"a": 1})) + b"v"
    assert list(loaded(good).view()) == [done("k", extra={"a": 1})]
    bad, (first, last) = FORGED_ROWS[forged](row), (row[:NAME_AT] + name + row[BODY_AT:] for name in (b"a", b"z"))
    assert len(loaded(first, good, last)) == 3
    for rows in ([bad], [first, bad, last]):
        with pytest.raises((IndexError, ValueError)):
            loaded(*rows)


@settings(max_examples=examples(300))
@given(st.data())
def test_rows_with_a_bad_byte_are_refused_or_can_be_read(data):
    positions = small_map(folders=9)
    for name, extra in (("é/k", {}), ("é/\ud800", {"a": 1}), ("l", {}), ("é/m", {}), ("é/n", {})):
        entry = done(name, extra=extra).changed(version=f"{ETAG}@0" if name == "l" else "ü")
        positions[entry.get_manager_key()] = entry
    first, second = positions.view().chunks()
    rows = bytearray(first.rows)
    rows[data.draw(st.integers(0, len(rows) - 1))] ^= data.draw(st.integers(1, 255))
    back = small_map(folders=9)
    try:
        back.load(positions.view().tables, [RowChunk(bytes(rows), first.ends), second])
    except (IndexError, ValueError):
        return
    assert len(list(back.view())) == len(back) == 5
    compact(back, Watermark(bucket="b").raised("", CoveredRange("", None, 1 << 62)))


@pytest.mark.parametrize("ends", [(), (25,), (50, 25), (0, 50), (25, 25), (25, 49), (25, 51), (2**32 - 1, 50)])
def test_rows_whose_ends_are_elsewhere_are_refused_when_they_are_loaded(ends):
    view = position_map([done("k"), done("l")]).view()
    (chunk,) = view.chunks()
    assert bytes(chunk.ends) == struct.pack("<2I", 25, 50)
    with pytest.raises((IndexError, ValueError)):
        PositionMap().load(view.tables, [RowChunk(chunk.rows, struct.pack(f"<{len(ends)}I", *ends))])


@pytest.mark.parametrize("cut", [1, 3])
def test_chunks_that_do_not_fill_their_blocks_are_refused_when_they_are_loaded(cut):
    """A row is found by its number, which says the block."""
    positions = small_map()
    positions.update({(entry := done(f"{number}")).get_manager_key(): entry for number in range(8)})
    view = positions.view()
    (first, second) = view.chunks()
    end = struct.unpack("<4I", bytes(first.ends))[cut - 1]
    short = RowChunk(bytes(first.rows)[:end], bytes(first.ends)[: 4 * cut])
    small_map().load(view.tables, [first, short])
    with pytest.raises(ValueError, match="block"):
        small_map().load(view.tables, [short, second])
    with pytest.raises(ValueError, match="block"):
        PositionMap(finished=table_of(RowCodec(), block_rows=2)).load(view.tables, [first])


@pytest.mark.parametrize(
    ("table", "place", "value"),
    [
        *(("templates", name, value) for name in ("generation", "split_size", "skipped") for value in ("1", 1.5, True)),
        ("templates", "failed", 1),
        ("templates", "numbering_options", 7),
        ("templates", "topic_partition", ["t", "0"]),
        ("templates", "topic_partition", [7, 0]),
        ("folders", 0, 5),
        ("folders", 0, [["bucket", 7]]),
        ("folders", 1, 5),
    ],
)
def test_tables_with_a_value_of_another_type_are_refused_when_they_are_loaded(table, place, value):
    """It would show where positions are compared."""
    view = position_map([done("k")]).view()
    tables = json.loads(msgspec.json.encode(view.tables))
    PositionMap().load(msgspec.convert(tables, Tables), view.chunks())
    tables[table][0][place] = value
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(tables, Tables)


class Named(enum.IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("a", value) for value in (2**64, -(2**63) - 1, "\ud800", (1, 2), [1], {"a": 1}, b"a", {1}, Named.ONE)]
    + [(1, "a")],
)
def test_an_extra_without_a_stored_form_comes_back_as_it_was(name, value):
    entry = done("k", extra={name: value})
    positions = position_map([entry])
    assert exact(positions[entry.get_manager_key()]) == exact(entry)
    assert not list(positions.view().chunks())


def test_a_position_of_a_class_of_its_own_comes_back_as_one():
    class Own(OffsetManagerEntry):
        pass

    entry = Own(**msgspec.structs.asdict(done()))
    assert type(position_map([entry])[entry.get_manager_key()]) is Own


def test_a_finished_position_with_an_extra_has_a_stored_row():
    assert position_map([done(extra={"a": 1, "b": None})]).final == 1


def done(key="k", records=1, **more):
    return OffsetManagerEntry(
        bucket="b",
        key=key,
        version="v",
        records_done=records,
        records_saved=records,
        total=records,
        topic_partition=PARTITION,
        **more,
    )


def test_the_records_of_loaded_positions_are_counted_whatever_their_number():
    positions, counts = position_map(), [1, 255, 256, 65_536, 3_000_000_000]
    for number, count in enumerate(counts):
        entry = done(f"k{number}", count)
        positions[entry.get_manager_key()] = entry
    ((tables, chunks),) = [
        codec.decode_rows(part)
        for part in [
            framing.decode(at, payload)
            for at, payload in enumerate(
                codec.encode_snapshot("kit", 1, positions.view(), SnapshotFooter(), number=1, at=0)
            )
        ]
        if part.header.get("rows")
    ]
    back = position_map()
    back.load(tables, chunks)
    assert back.view().records_done == positions.view().records_done == sum(counts)


def test_ten_thousand_positions_grow_the_table_and_all_are_found():
    positions = position_map(done(f"{number % 97}/{number}", number) for number in range(10_000))
    assert len(positions) == 10_000
    for number in range(10_000):
        assert positions[OffsetManagerKey.of_object("b", f"{number % 97}/{number}")].records_done == number
    assert positions.find(OffsetManagerKey.of_object("b", "97/0")) is None
    assert positions.find(OffsetManagerKey.of_object("c", "0/0")) is None


def test_what_is_replaced_and_removed_takes_no_memory_for_ever():
    positions = small_map(hash, folders=100)
    for turn in range(40):
        for number in range(50):
            positions[OffsetManagerKey.of_object("b", str(number))] = done(str(number), turn)
    for number in range(45):
        del positions[OffsetManagerKey.of_object("b", str(number))]
    assert sorted(one.key for one in positions.view()) == ["45", "46", "47", "48", "49"]
    table = positions._finished
    assert len(table._dead) <= 3 * 5 + 5


def test_positions_of_many_generations_are_packed_as_small_as_the_first():
    """Objects that are overwritten, and compacted, raise the generation of every later object: over months, by thousands."""
    positions = small_map(hash, folders=100)
    rows, model = [], {}
    for generation in range(1, 60):
        for number in range(6):
            entry = done(str(number), generation).changed(generation=generation, modified_ms=10**12 + generation)
            positions[entry.get_manager_key()] = model[entry.get_manager_key()] = entry
        assert dict(positions) == model
        rows.append(max(map(len, positions._finished.view().rows())))
        assert {one.generation for one in positions.view()} == {generation}
    assert rows == rows[:1] * len(rows)


def test_an_entry_without_a_stored_form_survives_a_change_of_templates():
    positions = small_map(hash, folders=100)
    unusual = done("unusual", 5, modified_ms=1 << 70)
    positions[unusual.get_manager_key()] = unusual
    codec_before = positions._finished.codec
    for generation in range(1, 60):
        entry = done("k", generation).changed(generation=generation)
        positions[entry.get_manager_key()] = entry
    assert positions._finished.codec is not codec_before
    assert positions[unusual.get_manager_key()] == unusual
    assert list(positions.view().others) == [unusual]


# ---- fields

SAMPLES = {
    "bucket": "lake",
    "key": "a/b",
    "version": f"{ETAG}@1700000000123",
    "generation": 3,
    "modified_ms": 1_700_000_000_123,
    "split_number": 2,
    "split_size": 1 << 20,
    "records_done": 41,
    "records_saved": 40,
    "total": 43,
    "failed": True,
    "topic_partition": TopicPartition("other", 7),
    "mark": ResumePoint(40, 4000),
    "numbering_options": '{"format":"csv"}',
    "skipped": 4,
    "may_begin_again": True,
    "missing_since_ms": 1_700_000_000_456,
    "extra": {"a": 1, "b": None, "c": "x", "d": 1.5, "e": True},
}
"""A value other than the default for every field of a position. A new field needs one here, and must then survive everywhere."""


def stored_by_properties(entry):
    properties = json.loads(json.dumps(entry.get_properties()))
    return OffsetManagerEntry.from_properties(entry.get_manager_key(), properties)


def stored_as_a_beginning(entry):
    (begun,), _ = codec.decode_begin(framing.decode(0, codec.encode_begin("s", 1, [entry])))
    return begun


def stored_in_a_snapshot(entry):
    view, back = position_map([entry]).view(), position_map()
    parts = [framing.decode(0, part) for part in codec.encode_snapshot("s", 1, view, SnapshotFooter(), number=1, at=0)]
    for part in parts:
        if part.header.get("rows"):
            back.load(*codec.decode_rows(part))
        else:
            back.update((one.get_manager_key(), one) for one in codec.decode_entries(part))
    return back[entry.get_manager_key()]


def stored_in_a_map(entry):
    return position_map([entry])[entry.get_manager_key()]


def stored_beside_many(entry):
    """When there is room for no folder and no template any more."""
    positions = small_map(folders=0)
    positions._finished.codec._fields.extend([{}] * 10_000)
    positions[entry.get_manager_key()] = entry
    return positions[entry.get_manager_key()]


def test_entries_that_would_need_more_templates_than_there_may_be_have_no_stored_row():
    positions = small_map(templates=2)
    for generation in (1, 2, 3):
        begin_in(positions, final(1, key=f"k{generation}", generation=generation))
    view = positions.view()
    assert [one.generation for one in view.others] == [3]
    assert len(view.tables.templates) == 2


EVERY_FORM = [stored_by_properties, stored_as_a_beginning, stored_in_a_snapshot, stored_in_a_map, stored_beside_many]


@pytest.mark.parametrize("stored", EVERY_FORM)
@pytest.mark.parametrize("field", OffsetManagerEntry.__struct_fields__)
def test_every_field_of_a_position_survives(stored, field):
    assert field in SAMPLES, f"a new field of positions, {field}: give it a sample, and a place in every stored form"
    plain = OffsetManagerEntry(bucket="b", key="k", version="v", topic_partition=PARTITION, total=0)
    cut = {"split_number": 1, "split_size": 64} if field in ("split_number", "split_size") else {}
    entry = plain.changed(**{**cut, field: SAMPLES[field]})
    assert getattr(entry, field) != getattr(plain, field)
    assert exact(stored(entry)) == exact(entry)


@pytest.mark.parametrize("split_size", [1 << 20, -3], ids=["split", "part"])
def test_a_position_with_everything_survives(split_size):
    entry = OffsetManagerEntry(**{**SAMPLES, "split_size": split_size})
    for stored in EVERY_FORM:
        assert exact(stored(entry)) == exact(entry)


def test_the_records_of_an_object_with_parts_count_once_also_from_a_snapshot():
    entries = [
        OffsetManagerEntry(
            bucket="b",
            key=key,
            version="v",
            topic_partition=TopicPartition("t", number),
            split_number=number,
            split_size=split_size,
            records_done=7,
            records_saved=7,
            total=7,
        )
        for key, split_size, numbers in (("parts", -3, (1, 2, 3)), ("splits", 64, (1, 2, 3)), ("part", -1, (1,)))
        for number in numbers
    ]
    positions, back = position_map(entries), position_map()
    assert positions.final == 7
    assert positions.view().records_done == 7 + 3 * 7 + 7
    back.load(positions.view().tables, positions.view().chunks())
    assert back.view().records_done == 7 + 3 * 7 + 7
    assert back.remove_object(entries[0].get_manager_key())
    assert back.view().records_done == 3 * 7 + 7
    pending = position_map(entry.changed(total=None) for entry in entries)
    assert (pending.final, pending.view().records_done) == (0, 7 + 3 * 7 + 7)


class LaterEntry(OffsetManagerEntry, frozen=True, kw_only=True):
    """What a position may be one day."""

    checksum: str = ""
    parts: dict = msgspec.field(default_factory=dict)


@pytest.mark.parametrize("more", [{}, {"checksum": "abc"}, {"parts": {"a": [1]}}])
def test_a_field_of_the_future_is_kept_without_a_change_here(more):
    entry = LaterEntry(**SAMPLES, **more)
    positions = PositionMap()
    positions[entry.get_manager_key()] = entry
    assert exact(positions[entry.get_manager_key()]) == exact(entry)


@given(any_entry)
def test_what_a_source_changes_in_the_extras_it_was_given_changes_nothing_kept(entry):
    positions = position_map([entry])
    if entry.final:
        positions[entry.get_manager_key()].extra["more"] = 1
    assert exact(positions[entry.get_manager_key()]) == exact(entry)


# ---- what a position costs


def s3_entry(number):
    etag = hashlib.md5(b"%d" % number).hexdigest()
    modified_ms = 1_700_000_000_000 + 37 * number
    return OffsetManagerEntry(
        bucket="lake",
        key=f"events/date=2024-11-{number // 5000 + 1:02}/hour={number // 200 % 24:02}/part-{number:08}-{etag[:8]}.jsonl",
        version=f"{etag}@{modified_ms}",
        modified_ms=modified_ms,
        records_done=100 + number % 7,
        records_saved=100 + number % 7,
        total=100 + number % 7,
        topic_partition=TopicPartition("orders", number % 16),
        numbering_options='{"format":"jsonl"}',
    )


def test_a_finished_position_of_s3_costs_about_a_hundred_bytes():
    count = 30_000
    position_map(map(s3_entry, range(2000)))  # numpy is loaded here
    tracemalloc.start()
    try:
        positions = position_map(map(s3_entry, range(count)))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(positions) == count
    assert held / count < 120


# ---- views


def test_a_view_shows_its_own_moment_in_order():
    positions = position_map([done("a"), done("b")])
    reading = OffsetManagerEntry(bucket="b", key="c", version="v", topic_partition=PARTITION)
    positions[reading.get_manager_key()] = reading
    view = positions.view()
    positions.clear()
    assert view == [done("a"), done("b"), reading]
    assert (len(view), repr(view), reading in view, len(positions)) == (3, "<3 positions>", True, 0)
    assert view != [done("a")]
    assert view != [done("a"), done("b"), done("c")]
    assert view != 3


# ---- one position in place of another


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_version_that_begins_takes_the_place_of_every_split_of_the_one_before(after):
    positions = position_map(splits_of(3))
    for one in splits_of(after, generation=7, version="v2"):
        begin_in(positions, one)
    assert sorted(one.split_number for one in positions.values()) == list(range(1, after + 1))
    assert {one.version for one in positions.values()} == {"v2"}


@pytest.mark.parametrize("split_number", [1, 2, 3])
def test_so_does_any_split_of_it_that_comes_first(split_number):
    positions = position_map(splits_of(3))
    begun = splits_of(3, generation=7, version="v2")[split_number - 1]
    begin_in(positions, begun)
    assert dict(positions) == {begun.get_manager_key(): begun}


def test_one_version_whole_and_split_do_not_mix():
    positions = position_map(splits_of(2))
    begin_in(positions, small_entry(generation=2))
    assert [(one.split_number, one.split_size) for one in positions.values()] == [(0, 0)]
    begin_in(positions, splits_of(1, generation=3)[0])
    assert [(one.split_number, one.split_size) for one in positions.values()] == [(1, 8)]


def test_another_object_is_left_alone():
    positions = position_map([*splits_of(2), *splits_of(2, key="other")])
    begin_in(positions, small_entry(generation=2))
    assert len(positions) == 3


# ---- the manager over it


def test_threads_that_read_commit_and_look_see_whole_positions():
    manager = OffsetManager()
    topic_partitions = [TopicPartition("t", thread) for thread in range(3)]
    for topic_partition in topic_partitions:
        manager.partitions.open(topic_partition, PartitionState())
    objects = [f"{thread}/{number}" for thread in range(3) for number in range(300)]
    failures = []

    def finish(thread):
        for number in range(300):
            native = NativeObject(bucket="b", key=f"{thread}/{number}", size=1, version="v")
            entry = manager.add_entry(OffsetManagerEntry.start(native, topic_partitions[thread]))
            end = RecordBatch(
                native=native,
                topic_partition=entry.topic_partition,
                first_record=1,
                payloads=[b"x"] * number,
                size_bytes=number,
                entry=entry.advanced(number, state=ObjectState.DONE),
            )
            manager.commit(
                Acknowledgement(topic_partition=entry.topic_partition, batches=(end,), anchor=Anchor(number, number, 0))
            )

    def look():
        chance = random.Random(2)
        for _ in range(60):
            entries = manager.table.entries()
            keys = [entry.key for entry in entries]
            if len(keys) != len(set(keys)) or len(keys) != len(entries):
                failures.append(keys)
            entry = manager.get_entry(OffsetManagerKey.of_object("b", chance.choice(objects)))
            if entry is not None and entry.final and entry.records_done != int(entry.key[2:]):
                failures.append(entry)

    threads = [threading.Thread(target=finish, args=(number,)) for number in range(3)]
    threads += [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sorted(entry.key for entry in manager.table.entries()) == sorted(objects)
    assert all(manager.table.listed(OffsetManagerKey.of_object("b", key), "v")[0] for key in objects)


# ---- compaction


def a_split(key, split_number, *, modified_ms=5, split_size=4, generation=1, **more):
    return done(key, 3).changed(
        modified_ms=modified_ms,
        split_number=split_number,
        split_size=split_size,
        generation=generation,
        **more,
    )


READING = {"total": None}
FAILED = {"failed": True}
UNSAFE = {"records_saved": 2}


def below(time_ms, bucket="b"):
    return Watermark(bucket=bucket).raised("", CoveredRange("", None, time_ms))


@pytest.mark.parametrize(
    ("entries", "left"),
    [
        ([a_split("k", 1), a_split("k", 2)], 0),
        ([a_split("k", 1)], 0),
        ([a_split("k", 1), a_split("k", 2, **READING)], 2),
        ([a_split("k", 1, **READING), a_split("k", 2)], 2),
        ([a_split("k", 1), a_split("k", 2, **FAILED)], 2),
        ([a_split("k", 1), a_split("k", 2, **UNSAFE)], 2),
        ([a_split("k", 1, **UNSAFE), a_split("k", 2)], 2),
        ([a_split("k", 1), a_split("k", 2, modified_ms=9)], 2),
        ([a_split("k", 1), a_split("k", 2), a_split("l", 1, **READING)], 1),
    ],
)
def test_the_splits_of_an_object_are_compacted_together_or_not_at_all(entries, left):
    positions = position_map(entries)
    objects, records = compact(positions, below(9))
    assert len(positions) == left
    gone = len(entries) - left
    assert (objects, records) == (({"": 1}, 3 * gone) if gone else ({}, 0))


counts = st.sampled_from([{}, READING, FAILED, UNSAFE])


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.integers(0, 9), counts, st.sampled_from("bc"), st.integers(1, 9)),
        max_size=40,
    ),
    st.integers(0, 10),
)
def test_what_is_done_for_good_and_older_is_compacted_and_nothing_else(rows, time_ms):
    positions = PositionMap(finished=table_of(RowCodec(), block_rows=4))
    kept = {}
    for number, (key, modified_ms, more, bucket, generation) in enumerate(rows):
        entry = done(key, 3 + number).changed(bucket=bucket, modified_ms=modified_ms, generation=generation, **more)
        positions[entry.get_manager_key()] = kept[entry.get_manager_key()] = entry
    view, before = positions.view(), list(positions.view())
    _, records = compact(positions, below(time_ms))
    gone = {
        key: one
        for key, one in kept.items()
        if one.bucket == "b" and one.final and one.done and 0 < one.modified_ms < time_ms
    }
    assert {one.get_manager_key(): one for one in positions.view()} == {
        key: one for key, one in kept.items() if key not in gone
    }
    assert records == sum(one.records_done for one in gone.values())
    assert positions.view().records_done == sum(one.records_done for one in positions.view())
    assert list(view) == before, "a view of before stays as it was"
    assert positions.floor == max((one.generation for one in gone.values()), default=0)
    assert all(positions.next_generation(key) > one.generation for key, one in kept.items())


@pytest.mark.parametrize("modified_ms", [5, 9])
def test_a_final_position_without_a_row_is_compacted_as_the_others_are(modified_ms):
    odd = done("odd", 3, modified_ms=modified_ms, extra={"a": [1]})
    split = a_split("k", 2, modified_ms=modified_ms, extra={"a": [1]})
    positions = position_map([odd, a_split("k", 1), split])
    assert (positions.final, positions.pending(), list(positions.view().others)) == (1, [], [odd, split])
    assert positions.listed(odd.get_manager_key(), "v") == (False, odd), "a listing looks at it as at a pending one"
    objects, records = compact(positions, below(9))
    assert len(positions) == (0 if modified_ms < 9 else 3)
    assert (objects, records) == (({"": 2}, 9) if modified_ms < 9 else ({}, 0))


# ---- generations and splits


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.integers(0, 3)), max_size=8), st.data())
def test_what_is_removed_takes_its_splits_with_it_and_leaves_its_generation(rows, data):
    positions, model = position_map(), {}
    for key, generation, splits in rows:
        positions.remove_object(OffsetManagerKey.of_object("b", key))
        model[key] = generation
        many = [a_split(key, split_number, generation=generation) for split_number in range(1, splits + 1)]
        for one in many or [done(key).changed(generation=generation)]:
            positions[one.get_manager_key()] = one
    floor = positions.floor
    name = data.draw(st.sampled_from("abcd"))
    key = OffsetManagerKey.of_object("b", name)
    assert positions.remove_object(key) == (name in model)
    assert {one.key for one in positions.view()} == model.keys() - {name}
    assert positions.floor == max(floor, model.get(name, 0))
    assert positions.next_generation(key) > model.get(name, 0)


def test_the_splits_behind_the_first_are_found_without_a_search():
    positions = position_map([a_split("k", 1, **READING), a_split("k", 2), a_split("k", 3, **READING), a_split("l", 2)])
    key = OffsetManagerKey.of_object("b", "k")
    assert positions.splits_of(key) == [key.of_split(2), key.of_split(3)]
    assert positions.splits_of(OffsetManagerKey.of_object("b", "m")) == []


def test_a_final_position_is_not_pending_also_where_no_row_holds_it():
    entry = done("k").changed(mark=ResumePoint(0, 0))
    positions = position_map([entry])
    assert entry.final
    assert not list(positions.view().chunks())
    assert positions.find_pending(entry.get_manager_key()) is None


@pytest.mark.parametrize("version", ["", "@0", ETAG, f"{ETAG}@0"])
def test_a_row_that_ends_with_its_numbers_or_its_etag_is_loaded(version):
    entry = done("k").changed(version=version)
    view, back = position_map([entry]).view(), PositionMap()
    back.load(view.tables, view.chunks())
    assert list(back.view()) == [entry]


def test_a_first_position_begins_above_every_dropped_one_and_only_where_there_is_none():
    manager, key = OffsetManager(), small_entry().get_manager_key()
    first = manager.table.begin_first(key, small_entry(generation=1))
    assert first is not None
    assert manager.table.begin_first(key, small_entry(generation=1, version="v2")) is None
    manager.store_begun()
    manager.remove_entry(first)
    other = small_entry(generation=1, key="other")
    (removed,) = manager.table.unsaved.removed
    assert manager.table.begin_first(other.get_manager_key(), other) is not None
    assert list(manager.table.unsaved.removed) == [removed]
    manager.store_begun()
    again = manager.table.begin_first(key, small_entry(generation=1))
    assert again is not None
    assert again.generation == first.generation + 1
    assert manager.get_entry(again.get_manager_key()) == again
    assert (manager.table.unsaved.begun, manager.table.unsaved.removed) == ([again], {})
