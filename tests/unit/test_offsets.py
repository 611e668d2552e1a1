"""Positions: their merge law, their stored form, and a manager that forgets nothing and never goes back."""

import itertools
import json
import pickle

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import NotAcknowledgedError, PositionMismatchError, StoreUnavailableError
from framework.offsets import (
    MemoryOffsetStore,
    OffsetManager,
    OffsetManagerEntry,
    OffsetManagerKey,
    PositionDelta,
    canonical_options,
    check_depends_on,
    merge_entries,
    merge_ranges,
)
from framework.past_listing import PastListing
from framework.records import Acknowledgement, Anchor, Lane, Mark, NativeObject, ObjectState, RecordBatch

LANE = Lane("t", 0)
KEY = OffsetManagerKey.of_object("b", "k")
NATIVE = NativeObject(scheme="memory", bucket="b", key="k", size=9, version="v1", modified_ms=5)


def entry(records=0, *, version="v1", modified_ms=5, key="k", **more):
    return OffsetManagerEntry(
        bucket="b", key=key, version=version, modified_ms=modified_ms, records_done=records, lane=LANE, **more
    )


def batch(position, count=1, native=NATIVE):
    return RecordBatch(
        native=native,
        lane=position.lane,
        first_record=position.records_done - count + 1,
        payloads=[b"x"] * count,
        size_bytes=count,
        entry=position,
    )


def acknowledge(*batches, offset=0, lane=LANE):
    return Acknowledgement(lane=lane, batches=batches, anchor=Anchor(offset, offset + 1000))


# ---- the law

# One version of one object as an epoch can know it: it has one end, at which it is done or failed; nothing is beyond.
ENDS = {"v1": (4, ObjectState.DONE, 10), "v2": (6, ObjectState.FAILED, 20), "v3": (3, ObjectState.DONE, 20)}
ranges = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), max_size=3).map(
    lambda pairs: merge_ranges((first, first + more) for first, more in pairs)
)


@st.composite
def entries_of(draw, version, *, times=None):
    end, state, modified = ENDS[version]
    modified = modified if times is None else draw(times)
    extra = draw(st.dictionaries(st.sampled_from("ab"), st.integers(0, 1), max_size=2))
    common = {"version": version, "modified_ms": modified, "extra": extra}
    if draw(st.booleans()):
        return entry(end, state=state, **common)
    done = draw(st.integers(0, end))
    mark = draw(st.none() | st.builds(Mark, st.integers(0, done), st.integers(0, 99)))
    return entry(done, mark=mark, skipped=draw(ranges), **common)


any_entry = st.sampled_from(sorted(ENDS)).flatmap(entries_of)


def check_law(one, two, three):
    merge = merge_entries
    assert merge(one, two) == merge(two, one)
    assert merge(merge(one, two), three) == merge(one, merge(two, three))
    assert merge(one, one) == one
    assert merge(merge(one, two), two) == merge(one, two)


@given(any_entry, any_entry, any_entry)
def test_merging_does_not_depend_on_the_order_or_on_repetition(one, two, three):
    check_law(one, two, three)


@given(*[entries_of("v1", times=st.sampled_from([0, 10]))] * 3)
def test_nor_when_a_replay_knows_no_time(one, two, three):
    check_law(one, two, three)


@given(entries_of("v1", times=st.sampled_from([0, 10])), entries_of("v1", times=st.sampled_from([0, 10])))
def test_merging_loses_neither_records_nor_the_time(one, two):
    merged = merge_entries(one, two)
    assert merged.records_done == max(one.records_done, two.records_done)
    assert merged.modified_ms == max(one.modified_ms, two.modified_ms)


def test_a_position_whose_time_a_replay_did_not_know_still_beats_the_version_before():
    older = entry(9, version="v0", modified_ms=3)
    known, replayed = entry(2, modified_ms=5), entry(4, modified_ms=0)
    assert merge_entries(merge_entries(known, replayed), older).version == "v1"


def test_a_newer_version_wins_whatever_the_counts():
    assert merge_entries(entry(9, version="v1", modified_ms=5), entry(0, version="v2", modified_ms=6)).version == "v2"


def test_the_end_beats_the_same_count_without_it():
    done = entry(4, state=ObjectState.DONE)
    assert merge_entries(entry(4, mark=Mark(4, 40)), done) is done


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5))))
def test_merged_ranges_hold_the_same_numbers_and_do_not_touch(pairs):
    given_ranges = [(first, first + more) for first, more in pairs]
    merged = merge_ranges(given_ranges)

    def numbers(some):
        return set(itertools.chain.from_iterable(range(first, last + 1) for first, last in some))

    assert numbers(merged) == numbers(given_ranges)
    assert all(left[1] + 1 < right[0] for left, right in itertools.pairwise(merged))


# ---- keys and the stored form

names = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=5)


@given(names, st.randoms(use_true_random=False))
def test_a_key_is_the_same_in_whatever_order_its_names_come(properties, random):
    shuffled = list(properties.items())
    random.shuffle(shuffled)
    one, other = OffsetManagerKey.of(properties), OffsetManagerKey.of(dict(shuffled))
    assert one == other
    assert hash(one) == hash(other)
    assert (
        one.canonical()
        == other.canonical()
        == json.dumps(properties, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    )


def test_the_short_way_to_an_objects_key_gives_the_same_key():
    assert OffsetManagerKey.of_object("b", "k") == OffsetManagerKey.of({"key": "k", "bucket": "b"})


def test_share_1_goes_by_the_objects_key_and_every_other_share_by_its_own():
    def key_of(share):
        return entry(share=share, split_size=8 if share else 0).get_manager_key()

    assert key_of(0) == key_of(1) == KEY
    assert key_of(12).canonical() == '{"bucket":"b","key":"k","share":"12"}'
    assert key_of(12) == KEY.of_share(12) != key_of(2)


def test_one_version_whole_and_split_do_not_mix():
    whole, split = entry(9, skipped=((3, 4),)), entry(2, share=1, split_size=8)
    assert merge_entries(whole, split) == merge_entries(split, whole) == split


def test_a_share_knows_its_bytes():
    sizes = [entry(share=share, split_size=4).bytes_of(NATIVE) for share in (1, 2, 3)]
    assert sizes == [4, 4, 1]
    assert entry().bytes_of(NATIVE) == NATIVE.size == 9


@given(any_entry, st.text(), st.text())
def test_the_stored_form_round_trips_through_json(position, bucket, key):
    position = attrs.evolve(position, bucket=bucket, key=key, depends_on=canonical_options({"format": "jsonl"}))
    stored = json.loads(json.dumps(position.get_properties()))
    back = OffsetManagerEntry.from_properties(position.get_manager_key(), stored)
    assert back == position
    assert back.get_properties() == position.get_properties()


def test_nothing_that_is_handed_out_or_taken_in_is_shared():
    extra = {"a": 1}
    position = entry(1, extra=extra)
    extra["a"] = 2
    properties = position.get_properties()
    properties["extra"]["a"] = 3
    again = OffsetManagerEntry.from_properties(KEY, properties)
    properties["extra"]["a"] = 4
    assert (position.get_int("a"), again.get_int("a")) == (1, 3)


@pytest.mark.parametrize("missing", ["version", "records", "state", "topic", "partition", "modified"])
def test_a_stored_form_that_is_not_ours_is_refused(missing):
    properties = entry().get_properties()
    del properties[missing]
    with pytest.raises(KeyError):
        OffsetManagerEntry.from_properties(KEY, properties)


def test_getters_are_typed():
    position = entry(extra={"n": 7, "s": "text", "t": True})
    assert (position.get_int("n"), position.get_long("n"), position.get_string("s")) == (7, 7, "text")
    assert (position.get_int("absent"), position.get_string("absent")) == (None, None)
    for wrong in [lambda: position.get_int("s"), lambda: position.get_int("t"), lambda: position.get_string("n")]:
        with pytest.raises(TypeError):
            wrong()


def test_positions_pickle():
    position = entry(3, mark=Mark(3, 30), skipped=((1, 2),), extra={"a": 1})
    assert pickle.loads(pickle.dumps(position)) == position


# ---- the manager


class BrokenStore(MemoryOffsetStore):
    """Fails as often as told; `during` runs while a save is under way."""

    def __init__(self):
        super().__init__()
        self.failures = 0
        self.during = lambda: None
        self.saved = []

    def save(self, delta):
        self.during()
        if self.failures:
            self.failures -= 1
            raise StoreUnavailableError("away")
        self.saved.append(delta)
        super().save(delta)


def test_a_commit_moves_the_position_and_a_flush_writes_it_once():
    store = BrokenStore()
    manager = OffsetManager(store)
    manager.commit(acknowledge(batch(entry(2), 2), batch(entry(3)), offset=2))
    assert manager.dirty
    delta = manager.flush()
    assert [position.records_done for position in delta.entries] == [3]
    assert delta.anchors == {LANE: Anchor(2, 1002)}
    assert not manager.dirty
    assert not manager.flush()
    assert len(store.saved) == 1


def test_positions_never_go_back():
    manager = OffsetManager()
    for records in (3, 5, 4):
        manager.add_entry(entry(records))
    assert manager.get_entry(KEY).records_done == 5


def test_what_could_not_be_saved_is_saved_the_next_time():
    store = BrokenStore()
    manager = OffsetManager(store)
    manager.add_entry(entry(1))
    store.failures = 1
    store.during = lambda: manager.add_entry(entry(1, key="meanwhile"))
    with pytest.raises(StoreUnavailableError):
        manager.flush()
    store.during = lambda: None
    assert manager.dirty
    manager.flush()
    assert {position.key for position in store.load()} == {"k", "meanwhile"}


def test_what_could_not_be_saved_does_not_hide_what_was_committed_meanwhile():
    store = BrokenStore()
    manager = OffsetManager(store)
    manager.commit(acknowledge(batch(entry(1)), offset=0))
    store.failures = 1
    store.during = lambda: manager.commit(acknowledge(batch(entry(2)), offset=1))
    with pytest.raises(StoreUnavailableError):
        manager.flush()
    store.during = lambda: None
    manager.flush()
    assert store.entries[KEY].records_done == 2
    assert store.anchors[LANE].offset == 1


def test_a_position_removed_while_a_save_failed_stays_removed():
    store = BrokenStore()
    manager = OffsetManager(store)
    manager.add_entry(entry(1))
    store.failures = 1
    store.during = lambda: manager.remove_entry(KEY)
    with pytest.raises(StoreUnavailableError):
        manager.flush()
    store.during = lambda: None
    manager.flush()
    assert store.entries == {}


def test_a_position_removed_and_begun_again_begins_again_in_the_store_too():
    store = MemoryOffsetStore()
    manager = OffsetManager(store)
    manager.add_entry(entry(9))
    manager.flush()
    manager.remove_entry(KEY)
    manager.add_entry(entry(1))
    manager.flush()
    assert store.entries[KEY].records_done == 1


def test_removing_takes_a_key_or_a_position_and_minds_nothing_that_is_not_there():
    store = MemoryOffsetStore()
    manager = OffsetManager(store)
    manager.remove_entry(KEY)
    assert not manager.dirty
    manager.add_entry(entry(1))
    manager.add_entry(entry(1, key="other"))
    manager.flush()
    manager.remove_entry(entry(1))
    manager.remove_entry(OffsetManagerKey.of_object("b", "other"))
    manager.flush()
    assert (len(manager), store.entries) == (0, {})


def test_an_entry_is_created_once_and_only_when_asked():
    manager = OffsetManager()
    assert manager.get_entry(KEY) is None
    made = manager.get_entry(KEY, lambda key: entry(7))
    assert manager.get_entry(KEY, lambda key: pytest.fail("made twice")) is made
    assert not manager.dirty


def test_loading_in_bulk_merges_with_what_is_here():
    store = MemoryOffsetStore()
    store.save(PositionDelta(entries=[entry(5), entry(2, key="other")]))
    manager = OffsetManager(store)
    manager.add_entry(entry(3))
    manager.populate_offset_manager([KEY])
    assert [position.records_done for position in manager.entries()] == [5]
    manager.populate_offset_manager()
    assert len(manager) == 2


def test_records_without_a_confirmed_message_are_not_committed():
    manager = OffsetManager()
    with pytest.raises(NotAcknowledgedError):
        manager.commit(Acknowledgement(lane=LANE, batches=(batch(entry(1)),), anchor=None))
    assert manager.get_entry(KEY) is None


def test_an_end_without_records_is_committed_without_a_message():
    manager = OffsetManager()
    end = attrs.evolve(batch(entry(0, state=ObjectState.DONE), 0), payloads=())
    manager.commit(Acknowledgement(lane=LANE, batches=(end,), anchor=None))
    assert manager.get_entry(KEY).finished


def test_every_lane_of_a_delta_has_its_anchor():
    manager = OffsetManager()
    manager.set_anchor(LANE, Anchor(7, 1), save=True)
    manager.add_entry(attrs.evolve(entry(1), lane=Lane("t", 1)))
    assert manager.flush().anchors == {LANE: Anchor(7, 1), Lane("t", 1): None}


def test_what_another_writer_saved_is_taken_over_and_not_saved_again():
    manager = OffsetManager()
    manager.merge_saved(PositionDelta(entries=[entry(4)], anchors={LANE: Anchor(3, 3)}))
    assert (manager.get_entry(KEY).records_done, manager.dirty) == (4, False)
    assert manager.snapshot() == ([entry(4)], {LANE: Anchor(3, 3)})


def test_a_delta_that_comes_twice_takes_no_anchor_back():
    manager = OffsetManager()
    deltas = [PositionDelta(anchors={LANE: anchor}) for anchor in (None, Anchor(3, 3), Anchor(5, 5))]
    for delta in [*deltas, *deltas[:2]]:
        manager.merge_saved(delta)
    assert manager.snapshot_anchors() == {LANE: Anchor(5, 5)}


def test_a_position_made_with_other_options_is_refused_with_the_way_out():
    ours, theirs = canonical_options({"format": "bytes", "n": "1"}), canonical_options({"n": "2", "format": "bytes"})
    check_depends_on(entry(0, depends_on=theirs), ours)
    check_depends_on(entry(3, depends_on=ours), ours)
    with pytest.raises(PositionMismatchError, match=r"b/k.*3 records.*offsets reset --key k.*--prefix.*--all"):
        check_depends_on(entry(3, depends_on=theirs), ours)


# ---- what a listing left


def test_what_a_listing_left_is_saved_once_kept_when_that_fails_and_loaded_again():
    store, left = BrokenStore(), PastListing(of="s3://b", histogram=[("k", 9)])
    manager = OffsetManager(store)
    manager.note_listing("p/", left)
    store.failures = 1
    with pytest.raises(StoreUnavailableError):
        manager.flush()
    assert manager.dirty
    assert manager.flush().listings == {"p/": left}
    assert not manager.dirty
    assert (manager.past_listing("p/"), manager.past_listing("")) == (left, None)
    again = OffsetManager(store)
    again.populate_offset_manager()
    assert again.past_listing("p/") == left
    assert not again.dirty


def test_what_was_noted_while_a_save_failed_wins():
    store, old, new = BrokenStore(), PastListing(of="s3://b"), PastListing(of="s3://b", unordered=True)
    manager = OffsetManager(store)
    manager.note_listing("", old)
    store.failures = 1
    store.during = lambda: manager.note_listing("", new)
    with pytest.raises(StoreUnavailableError):
        manager.flush()
    store.during = lambda: None
    assert manager.flush().listings == {"": new}


def test_what_another_writer_saved_of_a_listing_is_taken_over():
    manager = OffsetManager()
    manager.merge_saved(PositionDelta(listings={"": PastListing(of="s3://b")}))
    assert manager.past_listing("") == PastListing(of="s3://b")
    assert not manager.dirty
