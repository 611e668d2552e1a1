"""Packed positions are the positions: against a plain dict, with odd keys, colliding hashes, and views of earlier moments."""

import hashlib
import json
import random
import threading
import tracemalloc

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from framework.finished import FinishedTable
from framework.finished_rows import RowCodec
from framework.iggy import log_codec
from framework.offsets import (
    OffsetManager,
    OffsetManagerEntry,
    OffsetManagerKey,
    PositionDelta,
    position_map,
)
from framework.position_map import PositionMap
from framework.records import Lane, Mark, NativeObject, ObjectState
from framework.watermark import CoveredRange, Watermark

LANE = Lane("t", 0)
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
ranges = st.lists(st.tuples(numbers, numbers), max_size=2).map(tuple)


def entries_of(bucket, key, share=0):
    return st.builds(
        OffsetManagerEntry,
        bucket=st.just(bucket),
        key=st.just(key),
        version=versions,
        generation=st.integers(0, 2),
        modified_ms=st.one_of(st.integers(0, 9), numbers),
        share=st.just(share),
        split_size=st.just(64 if share else 0),
        records_done=numbers,
        state=st.sampled_from(ObjectState),
        lane=st.builds(Lane, st.sampled_from(["t", "u"]), st.integers(0, 2)),
        mark=st.none() | st.builds(Mark, numbers, numbers),
        depends_on=st.sampled_from(["", '{"format":"jsonl"}']),
        skipped=ranges,
        extra=extras,
    )


any_entry = st.tuples(st.sampled_from(["lake", "other"]), names, st.sampled_from([0, 0, 1, 2, 3])).flatmap(
    lambda name: entries_of(*name)
)


def small_map(hash_of=None, *, folders=3):
    """Few folders, blocks of four rows, and hashes that collide."""
    hash_of = hash_of or (lambda head: sum(head) % 5 << 29)
    table = FinishedTable(RowCodec(OffsetManagerEntry, folders=folders), hash_of=hash_of, block_bits=2)
    return PositionMap(OffsetManagerKey, OffsetManagerEntry, finished=table)


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

    @rule(data=st.data(), state=st.sampled_from(ObjectState), records=numbers)
    def put_again(self, data, state, records):
        if self.model:
            key = data.draw(st.sampled_from(sorted(self.model, key=repr)))
            entry = attrs.evolve(self.model[key], state=state, records_done=records)
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
            whole = entry.finished and not entry.split_size
            assert self.packed.finished_version(key) == (entry.version if whole else None)
        assert {key: exact(entry) for key, entry in self.packed.items()} == {
            key: exact(entry) for key, entry in self.model.items()
        }
        assert dict(self.packed.unfinished()) == {key: one for key, one in self.model.items() if not one.finished}

        assert sorted(self.packed.share_keys(), key=repr) == sorted((key for key in self.model if key.share), key=repr)

    @invariant()
    def views_show_their_own_moment(self):
        assert self.packed.view().records_done == sum(entry.records_done for entry in self.model.values())
        for view, then in self.views:
            assert sorted(map(exact, view)) == then
            assert len(view) == len(then)


TestAgainstADict = AgainstADict.TestCase
TestAgainstADict.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("hash_of", [lambda head: 0, lambda head: 2**64 - 1, len, lambda head: head[8] << 24])
def test_hashes_that_collide_mix_nothing_up(hash_of):
    positions = small_map(hash_of)
    model = {}
    chance = random.Random(1)
    for number in range(900):
        entry = done(f"{number % 300:03}/{chance.randrange(3)}", records=number)
        positions[entry.get_manager_key()] = model[entry.get_manager_key()] = entry
    assert dict(positions) == model


def done(key="k", records=1, **more):
    return OffsetManagerEntry(
        bucket="b", key=key, version="v", records_done=records, lane=LANE, state=ObjectState.DONE, **more
    )


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


# ---- fields

SAMPLES = {
    "bucket": "lake",
    "key": "a/b",
    "version": f"{ETAG}@1700000000123",
    "generation": 3,
    "modified_ms": 1_700_000_000_123,
    "share": 2,
    "split_size": 1 << 20,
    "records_done": 41,
    "state": ObjectState.FAILED,
    "lane": Lane("other", 7),
    "mark": Mark(40, 4000),
    "depends_on": '{"format":"csv"}',
    "skipped": ((3, 5), (9, 9)),
    "given_up": 42,
    "reopened": 2,
    "extra": {"a": 1, "b": None, "c": "x", "d": 1.5, "e": True},
}
"""A value other than the default for every field of a position. A new field needs one here, and must then survive everywhere."""


def stored_by_properties(entry):
    properties = json.loads(json.dumps(entry.get_properties()))
    return OffsetManagerEntry.from_properties(entry.get_manager_key(), properties)


def stored_in_a_delta(entry):
    message = log_codec.decode(0, log_codec.encode_delta("s", 1, 0, PositionDelta(entries=[entry])))
    return log_codec.decode_delta(message).entries[0]


def stored_in_a_map(entry):
    return position_map([entry])[entry.get_manager_key()]


def stored_beside_many(entry):
    """When there is room for no folder and no template any more."""
    positions = small_map(folders=0)
    positions._finished._codec._templates.extend([{}] * 10_000)
    positions[entry.get_manager_key()] = entry
    return positions[entry.get_manager_key()]


@pytest.mark.parametrize("stored", [stored_by_properties, stored_in_a_delta, stored_in_a_map, stored_beside_many])
@pytest.mark.parametrize("field", [field.name for field in attrs.fields(OffsetManagerEntry)])
def test_every_field_of_a_position_survives(stored, field):
    assert field in SAMPLES, f"a new field of positions, {field}: give it a sample, and a place in every stored form"
    plain = OffsetManagerEntry(bucket="b", key="k", version="v", lane=LANE, state=ObjectState.DONE)
    cut = {"share": 1, "split_size": 64} if field in ("share", "split_size") else {}
    entry = attrs.evolve(plain, **{**cut, field: SAMPLES[field]})
    assert getattr(entry, field) != getattr(plain, field)
    assert exact(stored(entry)) == exact(entry)


def test_a_position_with_everything_survives():
    entry = OffsetManagerEntry(**SAMPLES)
    for stored in (stored_by_properties, stored_in_a_delta, stored_in_a_map, stored_beside_many):
        assert exact(stored(entry)) == exact(entry)


@attrs.frozen(kw_only=True, slots=True)
class LaterEntry(OffsetManagerEntry):
    """What a position may be one day."""

    checksum: str = ""
    parts: dict = attrs.field(factory=dict)


@pytest.mark.parametrize("more", [{}, {"checksum": "abc"}, {"parts": {"a": [1]}}])
def test_a_field_of_the_future_is_kept_without_a_change_here(more):
    entry = LaterEntry(**SAMPLES, **more)
    for entry_class in (OffsetManagerEntry, LaterEntry):
        positions = PositionMap(OffsetManagerKey, entry_class)
        positions[entry.get_manager_key()] = entry
        assert exact(positions[entry.get_manager_key()]) == exact(entry)


@given(any_entry)
def test_what_a_source_changes_in_the_extras_it_was_given_changes_nothing_kept(entry):
    positions = position_map([entry])
    if entry.finished:
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
        state=ObjectState.DONE,
        lane=Lane("orders", number % 16),
        depends_on='{"format":"jsonl"}',
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


def test_a_view_is_a_sequence_of_its_moment():
    positions = position_map([done("a"), done("b")])
    reading = OffsetManagerEntry(bucket="b", key="c", version="v", lane=LANE)
    positions[reading.get_manager_key()] = reading
    view = positions.view()
    positions.clear()
    assert view == [done("a"), done("b"), reading]
    assert (view[0], view[-1], view[1:], view[::-1][0]) == (done("a"), reading, [done("b"), reading], reading)
    assert (len(view), repr(view), reading in view, len(positions)) == (3, "<3 positions>", True, 0)
    assert view != [done("a")]
    assert view != [done("a"), done("b"), done("c")]
    for out in (3, -4):
        with pytest.raises(IndexError):
            view[out]


@given(st.lists(any_entry, max_size=40, unique_by=OffsetManagerEntry.get_manager_key), st.integers(1, 2000))
def test_the_parts_of_a_view_are_the_view(all_entries, most_bytes):
    positions = small_map()
    for entry in all_entries:
        positions[entry.get_manager_key()] = entry
    view = positions.view()
    parts = view.parts(most_bytes)
    assert [exact(entry) for part in parts for entry in part] == [exact(entry) for entry in view]
    assert len(parts) == 1 or all(len(part) for part in parts)


def test_parts_hold_about_what_they_are_asked_to():
    view = position_map(map(s3_entry, range(30_000))).view()
    for part in view.parts(2_000_000):
        as_text = sum(len(entry.key) + len(entry.version) for entry in part)
        assert as_text < 2_000_000
    assert len(view.parts(2_000_000)) < 4
    reading = [attrs.evolve(s3_entry(number), state=ObjectState.READING) for number in range(1000)]
    assert 10 < len(position_map(reading).view().parts(20_000)) < 25


# ---- the manager over it


def test_threads_that_read_commit_and_look_see_whole_positions():
    manager = OffsetManager()
    objects = [f"{thread}/{number}" for thread in range(3) for number in range(300)]
    failures = []

    def finish(thread):
        for number in range(300):
            entry = OffsetManagerEntry.start(
                NativeObject(bucket="b", key=f"{thread}/{number}", size=1, version="v"), LANE
            )
            manager.add_entry(entry)
            manager.add_entry(entry.advanced(number, state=ObjectState.DONE))

    def look():
        chance = random.Random(2)
        for _ in range(60):
            entries, _ = manager.snapshot()
            keys = [entry.key for entry in entries]
            if len(keys) != len(set(keys)) or len(keys) != len(entries):
                failures.append(keys)
            entry = manager.get_entry(OffsetManagerKey.of_object("b", chance.choice(objects)))
            if entry is not None and entry.finished and entry.records_done != int(entry.key[2:]):
                failures.append(entry)

    threads = [threading.Thread(target=finish, args=(number,)) for number in range(3)]
    threads += [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sorted(entry.key for entry in manager.entries()) == sorted(objects)
    assert all(manager.finished_version(OffsetManagerKey.of_object("b", key)) == "v" for key in objects)


# ---- folding


def a_share(key, share, state=ObjectState.DONE, *, modified_ms=5, split_size=4):
    return OffsetManagerEntry(
        bucket="b",
        key=key,
        version="v",
        modified_ms=modified_ms,
        share=share,
        split_size=split_size,
        records_done=3,
        state=state,
        lane=Lane("t", 0),
    )


def below(time_ms, bucket="b"):
    return Watermark(bucket=bucket).raised("", [CoveredRange("", None, time_ms)])


@pytest.mark.parametrize(
    ("entries", "left"),
    [
        ([a_share("k", 1), a_share("k", 2)], 0),
        ([a_share("k", 1), a_share("k", 2, ObjectState.READING)], 2),
        ([a_share("k", 1, ObjectState.READING), a_share("k", 2)], 2),
        ([a_share("k", 1), a_share("k", 2, ObjectState.FAILED)], 2),
        ([a_share("k", 2), a_share("k", 3)], 0),
        ([a_share("k", 1), a_share("k", 2, modified_ms=9)], 2),
        ([a_share("k", 1), a_share("k", 2), a_share("l", 1, ObjectState.READING)], 1),
    ],
)
def test_the_shares_of_an_object_are_folded_together_or_not_at_all(entries, left):
    positions = position_map(entries)
    folded, records = positions.fold(below(9))
    assert len(positions) == left
    gone = len(entries) - left
    assert (folded, records) == (({"": 1}, 3 * gone) if gone else ({}, 0))


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.integers(0, 9), st.sampled_from(ObjectState), st.sampled_from("bc")),
        max_size=40,
    ),
    st.integers(0, 10),
)
def test_what_is_done_and_older_is_folded_and_nothing_else(rows, time_ms):
    positions = PositionMap(
        OffsetManagerKey, OffsetManagerEntry, finished=FinishedTable(RowCodec(OffsetManagerEntry), block_bits=2)
    )
    kept = {}
    for number, (key, modified_ms, state, bucket) in enumerate(rows):
        entry = OffsetManagerEntry(
            bucket=bucket,
            key=key,
            version="v",
            modified_ms=modified_ms,
            records_done=number,
            state=state,
            lane=Lane("t", 0),
        )
        positions[entry.get_manager_key()] = kept[entry.get_manager_key()] = entry
    view, before = positions.view(), list(positions.view())
    _, records = positions.fold(below(time_ms))
    gone = {
        key: one
        for key, one in kept.items()
        if one.bucket == "b" and one.state is ObjectState.DONE and 0 < one.modified_ms < time_ms
    }
    assert {one.get_manager_key(): one for one in positions.view()} == {
        key: one for key, one in kept.items() if key not in gone
    }
    assert records == sum(one.records_done for one in gone.values())
    assert positions.records_done == sum(one.records_done for one in positions.view())
    assert list(view) == before, "a view of before stays as it was"
