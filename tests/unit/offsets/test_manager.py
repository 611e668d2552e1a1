"""Positions: what they say, their stored form, and a manager that forgets nothing and never goes back."""

import itertools
import json
import pickle
import threading
from collections import deque

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from framework.errors import NotAcknowledgedError, PositionMismatchError, StoreUnavailableError
from framework.model.batches import Acknowledgement, RecordBatch
from framework.model.objects import Anchor, NativeObject, ObjectState, ResumePoint, TopicPartition
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey, canonical_options, check_numbering
from framework.offsets.listing_hints import ListingHints
from framework.offsets.manager import MemoryOffsetStore, OffsetManager, PartitionState, PositionDelta, UnsavedCount
from framework.offsets.table import begin_in, position_map
from framework.offsets.watermark import CoveredRange, Watermark

PARTITION = TopicPartition("t", 0)
KEY = OffsetManagerKey.of_object("b", "k")
NATIVE = NativeObject(scheme="memory", bucket="b", key="k", size=9, version="v1", modified_ms=5)


def entry(records=0, *, version="v1", modified_ms=5, key="k", topic_partition=PARTITION, **more):
    return OffsetManagerEntry(
        bucket="b",
        key=key,
        version=version,
        modified_ms=modified_ms,
        records_done=records,
        topic_partition=topic_partition,
        **more,
    )


def ended(records, **more):
    return entry(records, total=records, **more)


def final(records, **more):
    return ended(records, records_saved=records, **more)


def batch(position, count=1, native=NATIVE):
    return RecordBatch(
        native=native,
        topic_partition=position.topic_partition,
        first_record=position.records_done - count + 1,
        payloads=[b"x"] * count,
        size_bytes=count,
        entry=position,
    )


def anchor_at(offset):
    return Anchor(offset, offset + 1000, offset + 5)


def acknowledge(*batches, offset=0, topic_partition=PARTITION):
    return Acknowledgement(topic_partition=topic_partition, batches=batches, anchor=anchor_at(offset))


# ---- what a position says

counts = st.integers(0, 9)


@st.composite
def any_entry(draw):
    records = draw(counts)
    total = draw(st.none() | st.integers(records, 9))
    mark = draw(st.none() | st.builds(ResumePoint, st.integers(0, records), st.integers(0, 99)))
    split_number = draw(st.integers(0, 3))
    return entry(
        records,
        generation=draw(st.integers(1, 1 << 40)),
        records_saved=draw(st.integers(0, records)),
        total=total,
        failed=total is not None and draw(st.booleans()),
        skipped=draw(st.integers(0, records)),
        split_number=split_number,
        split_size=draw(st.sampled_from([8, -4])) if split_number else 0,
        mark=mark,
        numbering_options=draw(st.sampled_from(["", canonical_options({"format": "jsonl"})])),
        first_ids=draw(st.booleans()),
        may_begin_again=draw(st.booleans()),
        missing_since_ms=draw(st.sampled_from([0, 17])),
        extra=draw(st.dictionaries(st.sampled_from("ab"), st.integers(0, 1) | st.text(max_size=3), max_size=2)),
    )


@given(any_entry())
def test_what_is_final_is_finished_and_what_is_finished_is_done_or_has_failed(position):
    assert position.finished or not position.final
    assert position.finished == (position.state is not ObjectState.READING)
    assert position.done == (position.state is ObjectState.DONE)
    assert position.finished == (position.records_done == position.total)
    assert position.final == (position.records_saved == position.total)


def test_an_end_that_is_sent_and_could_still_be_lost_is_finished_and_not_final():
    position = entry(4, records_saved=3).advanced(6, state=ObjectState.DONE)
    assert (position.total, position.records_done, position.records_saved) == (6, 6, 3)
    assert (position.finished, position.final) == (True, False)


def test_a_position_whose_tail_was_lost_goes_on_where_the_topic_ends_and_keeps_its_total():
    found = ended(6, records_saved=2, mark=ResumePoint(5, 50)).recovered(4)
    assert (found.records_done, found.records_saved, found.total, found.finished) == (4, 2, 6, False)
    assert found.mark is None  # it lies behind what is there
    assert entry(6, mark=ResumePoint(4, 40)).recovered(4).mark == ResumePoint(4, 40)


def test_a_position_that_is_opened_again_goes_on_behind_what_was_given_up():
    failed = entry(3).advanced(3, state=ObjectState.FAILED)
    assert failed.finished
    assert not failed.done
    again = failed.reopened()
    assert (again.records_done, again.finished, again.failed, again.generation) == (3, False, False, failed.generation)


def test_two_positions_are_of_the_same_records_only_in_one_generation_of_one_version_split_alike():
    one = entry(3, generation=2)
    assert one.is_of(entry(7, generation=2, total=7))
    for other in [entry(3, generation=3), entry(3, generation=2, version="v2"), entry(3, generation=2, split_size=8)]:
        assert not one.is_of(other)


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


def test_split_1_goes_by_the_objects_key_and_every_other_split_by_its_own():
    def key_of(split_number):
        return entry(split_number=split_number, split_size=8 if split_number else 0).get_manager_key()

    assert key_of(0) == key_of(1) == KEY
    assert key_of(12).canonical() == '{"bucket":"b","key":"k","share":"12"}'
    assert key_of(12) == KEY.of_split(12) != key_of(2)
    assert key_of(12).whole() == key_of(1).whole() == KEY


def test_a_split_knows_its_bytes():
    sizes = [entry(split_number=split_number, split_size=4).bytes_of(NATIVE) for split_number in (1, 2, 3)]
    assert sizes == [4, 4, 1]
    assert entry().bytes_of(NATIVE) == NATIVE.size == 9


@settings(deadline=None)
@given(any_entry(), st.text(), st.text())
def test_the_stored_form_round_trips_through_json(position, bucket, key):
    position = attrs.evolve(position, bucket=bucket, key=key)
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


@pytest.mark.parametrize(
    "missing", ["version", "generation", "records", "saved", "state", "topic", "partition", "modified"]
)
def test_a_stored_form_that_is_not_ours_is_refused(missing):
    properties = entry().get_properties()
    del properties[missing]
    with pytest.raises(KeyError):
        OffsetManagerEntry.from_properties(KEY, properties)


def test_getters_are_typed():
    position = entry(extra={"n": 7, "s": "text", "t": True})
    assert (position.get_int("n"), position.get_long("n"), position.get_string("s")) == (7, 7, "text")
    assert (position.get_int("absent"), position.get_string("absent")) == (None, None)
    for wrong, said in [
        (lambda: position.get_int("s"), "b/k: s of its position is str, not a whole number"),
        (lambda: position.get_int("t"), "b/k: t of its position is bool, not a whole number"),
        (lambda: position.get_string("n"), "b/k: n of its position is int, not text"),
    ]:
        with pytest.raises(TypeError, match=f"^{said}$"):
            wrong()


def test_positions_pickle():
    position = entry(3, generation=4, mark=ResumePoint(3, 30), skipped=2, extra={"a": 1})
    assert pickle.loads(pickle.dumps(position)) == position


# ---- one position in place of another


def splits_of(count, **more):
    return [entry(split_number=split_number, split_size=8, **more) for split_number in range(1, count + 1)]


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_version_that_begins_takes_the_place_of_every_split_of_the_one_before(after):
    positions = position_map(splits_of(3))
    highest = [begin_in(positions, one) for one in splits_of(after, generation=7, version="v2")]
    assert highest == [1, *[0] * (after - 1)]
    assert sorted(one.split_number for one in positions.values()) == list(range(1, after + 1))
    assert {one.version for one in positions.values()} == {"v2"}


def test_one_version_whole_and_split_do_not_mix():
    positions = position_map(splits_of(2))
    begin_in(positions, entry(generation=2))
    assert [(one.split_number, one.split_size) for one in positions.values()] == [(0, 0)]
    begin_in(positions, splits_of(1, generation=3)[0])
    assert [(one.split_number, one.split_size) for one in positions.values()] == [(1, 8)]


def test_another_object_is_left_alone():
    positions = position_map([*splits_of(2), *splits_of(2, key="other")])
    begin_in(positions, entry(generation=2))
    assert len(positions) == 3


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
    assert [(position.records_done, position.records_saved) for position in delta.entries] == [(3, 3)]
    assert delta.anchors == {PARTITION: anchor_at(2)}
    assert not manager.dirty
    assert not manager.flush()
    assert len(store.saved) == 1


@given(st.permutations([1, 2, 3, 4, 5]))
def test_positions_never_go_back(order):
    manager = OffsetManager()
    for offset, records in enumerate(order):
        manager.commit(acknowledge(batch(entry(records)), offset=offset))
    assert manager.get_entry(KEY).records_done == 5


def test_what_is_confirmed_of_an_earlier_generation_moves_nothing():
    manager = OffsetManager()
    manager.add_entry(entry(0, generation=2, version="v2"))
    manager.commit(acknowledge(batch(entry(9, generation=1), 9), offset=8))
    assert manager.get_entry(KEY) == entry(0, generation=2, version="v2")


def test_what_could_not_be_saved_is_saved_the_next_time():
    store = BrokenStore()
    manager = OffsetManager(store)
    manager.commit(acknowledge(batch(entry(1))))
    store.failures = 1
    store.during = lambda: manager.add_entry(entry(0, key="meanwhile"))
    with pytest.raises(StoreUnavailableError):
        manager.flush()
    store.during = lambda: None
    assert manager.dirty
    manager.flush()
    assert {position.key: position.records_done for position in store.load()} == {"k": 1, "meanwhile": 0}


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
    assert store.anchors[PARTITION].offset == 1


def test_a_position_removed_while_a_save_failed_stays_removed():
    store = BrokenStore()
    manager = OffsetManager(store)
    manager.commit(acknowledge(batch(entry(1))))
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
    manager.commit(acknowledge(batch(entry(9), 9), offset=8))
    manager.flush()
    manager.remove_entry(KEY)
    manager.add_entry(entry(1, generation=manager.next_generation(KEY)))
    manager.flush()
    assert (store.entries[KEY].records_done, store.entries[KEY].generation) == (1, 2)


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


def test_removing_an_object_removes_all_its_splits_also_those_that_are_not_stored_yet():
    store = BrokenStore()
    manager = OffsetManager(store)
    manager.add_entries(splits_of(3))
    manager.remove_entry(KEY)
    delta = manager.flush()
    assert (len(manager), len(store.entries), delta.removed) == (0, 0, [KEY])
    assert all(not saved.begun for saved in store.saved)


def test_loading_in_bulk_keeps_of_each_position_the_one_that_is_further():
    store = MemoryOffsetStore()
    store.save(PositionDelta(entries=[entry(5), entry(2, key="other"), entry(9, key="third")]))
    manager = OffsetManager(store)
    manager.add_entry(entry(3))
    manager.add_entry(entry(4, key="other"))
    manager.add_entry(entry(1, key="third", generation=2, version="v2"))
    manager.populate_offset_manager([KEY])
    assert {one.key: one.records_done for one in manager.entries()} == {"k": 5, "other": 4, "third": 1}
    manager.populate_offset_manager()
    assert {one.key: one.records_done for one in manager.entries()} == {"k": 5, "other": 4, "third": 1}


def test_positions_are_loaded_in_batches_between_which_other_threads_get_the_lock(monkeypatch):
    monkeypatch.setattr("framework.offsets.manager.LOAD_BATCH", 2)
    taken = []

    class Watched(MemoryOffsetStore):
        def load(self, keys=None):
            for one in super().load(keys):
                taken.append(len(manager))
                yield one

    store = Watched()
    store.save(PositionDelta(entries=[entry(1, key=f"k{number}") for number in range(5)]))
    manager = OffsetManager(store)
    manager.populate_offset_manager()
    assert taken == [0, 0, 2, 2, 4]


def test_records_without_a_confirmed_message_are_not_committed():
    manager = OffsetManager()
    with pytest.raises(NotAcknowledgedError):
        manager.commit(Acknowledgement(topic_partition=PARTITION, batches=(batch(entry(1)),), anchor=None))
    assert manager.get_entry(KEY) is None


@pytest.mark.parametrize("hold_back", [0, 5])
def test_an_end_without_records_is_committed_without_a_message(hold_back):
    manager = OffsetManager()
    manager.open_partition(PARTITION, PartitionState(hold_back=hold_back))
    end = attrs.evolve(batch(ended(0), 0), payloads=())
    manager.commit(Acknowledgement(topic_partition=PARTITION, batches=(end,), anchor=None))
    assert manager.get_entry(KEY).final  # nothing of it can be lost


def test_a_position_made_with_other_options_is_refused_with_the_way_out():
    ours, theirs = canonical_options({"format": "bytes", "n": "1"}), canonical_options({"n": "2", "format": "bytes"})
    check_numbering(entry(3), ours)
    check_numbering(entry(3, numbering_options=ours), ours)
    with pytest.raises(PositionMismatchError, match=r"b/k.*3 records.*offsets reset --key k.*--prefix.*--all.*accept"):
        check_numbering(entry(3, numbering_options=theirs), ours)
    with pytest.raises(PositionMismatchError, match=r"^s3://b/k: 3 records were read with \{"):
        check_numbering(entry(3, numbering_options=theirs), ours, "s3://b/k")


# ---- begun first


def test_what_begins_is_stored_by_one_append_and_only_once():
    store = BrokenStore()
    manager = OffsetManager(store)
    manager.store_begun()
    assert store.saved == []
    manager.add_entry(entry())
    manager.add_entries(splits_of(3, key="split"))
    assert manager.dirty
    manager.store_begun()
    manager.store_begun()
    assert [[(one.key, one.split_number) for one in saved.begun] for saved in store.saved] == [
        [("k", 0), ("split", 1), ("split", 2), ("split", 3)]
    ]
    assert not manager.dirty


def test_a_beginning_that_could_not_be_stored_is_stored_before_the_next_send():
    store = BrokenStore()
    manager = OffsetManager(store)
    manager.add_entry(entry())
    store.failures = 1
    store.during = lambda: manager.add_entry(entry(key="meanwhile"))
    with pytest.raises(StoreUnavailableError):
        manager.store_begun()
    store.during = lambda: None
    assert manager.dirty
    manager.store_begun()
    assert [one.key for one in store.saved[0].begun] == ["k", "meanwhile"]


def test_progress_is_never_written_before_the_beginning_that_it_is_about():
    store = BrokenStore()
    manager = OffsetManager(store)
    manager.add_entry(entry())
    manager.commit(acknowledge(batch(entry(1))))
    manager.flush()
    assert [(len(saved.begun), len(saved.entries)) for saved in store.saved] == [(1, 0), (0, 1)]


class SlowBeginnings(MemoryOffsetStore):
    """Takes its time over the first beginning; notes which calls overlap."""

    def __init__(self):
        super().__init__()
        self.begins = threading.Event()
        self.go_on = threading.Event()
        self.events = []

    def begin(self, delta):
        self.events.append(("begin", [one.key for one in delta.begun]))
        self.begins.set()
        assert self.go_on.wait(10)
        super().begin(delta)
        self.events.append(("begun", [one.key for one in delta.begun]))

    def save(self, delta):
        if not delta.begun:
            self.events.append(("save", [one.key for one in delta.entries]))
        super().save(delta)


@pytest.mark.parametrize("second", ["store_begun", "flush"])
def test_while_one_thread_stores_what_began_nobody_else_sends_or_saves(second):
    """The listing's thread stores what began, and the sending thread must not overtake it: it would find nothing to store."""
    store = SlowBeginnings()
    manager = OffsetManager(store)
    manager.add_entry(entry())
    manager.commit(acknowledge(batch(entry(1, key="old"))))
    lister = threading.Thread(target=manager.store_begun)
    lister.start()
    assert store.begins.wait(10)
    done = threading.Event()

    def send():
        getattr(manager, second)()
        done.set()

    sender = threading.Thread(target=send)
    sender.start()
    assert not done.wait(0.05)
    assert store.events == [("begin", ["k"])]
    store.go_on.set()
    assert done.wait(10)
    lister.join()
    sender.join()
    assert store.events[:2] == [("begin", ["k"]), ("begun", ["k"])]
    assert KEY in store.entries


class CheckedStore(MemoryOffsetStore):
    """Notices two threads in it."""

    def __init__(self):
        super().__init__()
        self.inside = threading.Lock()
        self.together = 0

    def save(self, delta):
        if not self.inside.acquire(blocking=False):
            self.together += 1
            return
        try:
            threading.Event().wait(0.0005)
            super().save(delta)
        finally:
            self.inside.release()


def test_a_store_is_asked_by_one_thread_at_a_time():
    store = CheckedStore()
    manager = OffsetManager(store)

    def list_objects():
        for number in range(100):
            manager.add_entry(entry(key=f"new-{number}"))
            manager.store_begun()

    lister = threading.Thread(target=list_objects)
    lister.start()
    for number in range(1, 101):
        manager.commit(acknowledge(batch(entry(number)), offset=number))
        manager.flush()
    lister.join()
    manager.flush()
    assert store.together == 0
    assert len(store.entries) == 101


def test_what_the_watermark_would_hide_is_stored_before_it_rises():
    store = BrokenStore()
    manager = OffsetManager(store)
    risen = []
    store.during = lambda: risen.append(bool(manager.watermark))
    tracker = manager.tracker
    tracker.open(1000)
    tracker.begin_listing("", "", in_order=True)
    tracker.began(100_000)
    manager.add_entry(entry())
    tracker.complete(whole=True)
    assert [[one.key for one in saved.begun] for saved in store.saved] == [["k"]]
    assert risen == [False]
    assert manager.watermark.covers("", "k", 5)


def test_a_watermark_does_not_rise_when_what_began_could_not_be_stored():
    store = BrokenStore()
    manager = OffsetManager(store)
    tracker = manager.tracker
    tracker.open(1000)
    tracker.begin_listing("", "", in_order=True)
    tracker.began(100_000)
    manager.add_entry(entry())
    store.failures = 1
    with pytest.raises(StoreUnavailableError):
        tracker.complete(whole=True)
    assert not manager.watermark


# ---- adopted from a leader


def test_a_position_that_a_leader_began_is_known_from_then_on():
    manager = OffsetManager()
    given_out = entry(3, generation=2)
    assert manager.adopt(given_out) == given_out == manager.get_entry(KEY)
    assert not manager.dirty  # the leader has stored it


@pytest.mark.parametrize("leaders", [0, 4, 9])
def test_the_owners_own_count_decides_where_reading_begins(leaders):
    """A leader may know less than its worker, and after a crash of the server, for a moment, more than there is."""
    manager = OffsetManager()
    manager.adopt(entry(0))
    manager.commit(acknowledge(batch(entry(4), 4), offset=3))
    assert manager.adopt(entry(leaders)).records_done == 4
    assert manager.get_entry(KEY).records_done == 4


def test_a_position_of_a_later_generation_takes_the_place_of_what_was_known_with_all_its_splits():
    manager = OffsetManager()
    for one in splits_of(2):
        manager.adopt(one)
    later = entry(0, generation=5, version="v2")
    assert manager.adopt(later) == later
    assert list(manager.entries()) == [later]


def test_a_position_that_is_superseded_is_finished_for_whoever_handed_it_out():
    manager = OffsetManager()
    first = manager.add_entry(entry(0))
    assert not manager.is_finished(first)
    manager.add_entry(entry(0, generation=2, version="v2"))
    assert manager.is_finished(first)
    manager.remove_entry(KEY)
    assert manager.is_finished(first)


# ---- nothing is saved that a crash can take


def test_a_count_is_saved_once_so_many_messages_stand_behind_it_that_no_crash_takes_it():
    store = BrokenStore()
    manager = OffsetManager(store)
    manager.open_partition(PARTITION, PartitionState(hold_back=10))
    manager.commit(acknowledge(batch(entry(1)), offset=0))
    manager.commit(acknowledge(batch(entry(10), 9), offset=9))
    first = manager.flush()
    assert first.anchors == {}
    assert [(one.records_done, one.records_saved) for one in first.entries] == [(10, 0)]
    manager.commit(acknowledge(batch(entry(11)), offset=10))
    second = manager.flush()
    assert second.anchors == {PARTITION: anchor_at(0)}
    assert [(one.records_done, one.records_saved) for one in second.entries] == [(11, 1)]
    assert set(first.written) == set(second.written) == {PARTITION}


def test_an_orderly_end_says_where_every_partition_ended_that_was_written():
    safe, empty = TopicPartition("t", 1), TopicPartition("t", 2)
    manager = OffsetManager()
    manager.open_partition(PARTITION, PartitionState(hold_back=9))
    manager.open_partition(safe, PartitionState(last=anchor_at(5)))
    manager.open_partition(empty, PartitionState())
    manager.commit(acknowledge(batch(entry(3), 3), offset=7))
    assert manager.flush().closed == {}
    delta = manager.flush(closing=True)
    assert delta.closed == {PARTITION: 7, safe: 5}
    assert delta.counted == {PARTITION: anchor_at(7)}


def test_counts_that_a_crash_may_take_back_are_saved_with_the_message_up_to_which_they_count():
    store = BrokenStore()
    safe = TopicPartition("t", 1)
    manager = OffsetManager(store)
    manager.open_partition(PARTITION, PartitionState(hold_back=9))
    manager.open_partition(safe, PartitionState(last=anchor_at(5)))
    manager.commit(acknowledge(batch(entry(3), 3), offset=7))
    store.failures = 1
    with pytest.raises(StoreUnavailableError):
        manager.flush()
    assert manager.flush().counted == {PARTITION: anchor_at(7)}, "also when it is saved the second time"
    manager.commit(acknowledge(batch(entry(5), 2), offset=9))
    assert manager.flush().counted == {PARTITION: anchor_at(9)}
    assert manager.flush().counted == {}


def test_taking_over_a_partition_saves_what_was_found_safe_with_the_anchor_that_accounts_for_it():
    store = BrokenStore()
    manager = OffsetManager(store, positions=position_map([entry(7, records_saved=2), entry(3, key="other")]))
    assert not manager.is_open(PARTITION)
    state = PartitionState(
        hold_back=3,
        last=anchor_at(9),
        unsaved=deque([UnsavedCount(anchor_at(7), KEY, 1, 6), UnsavedCount(anchor_at(9), KEY, 1, 7)]),
    )
    manager.open_partition(PARTITION, state, anchor=anchor_at(6), saved={KEY: 5})
    assert manager.is_open(PARTITION)
    assert manager.ends() == {PARTITION: anchor_at(9)}
    delta = manager.flush()
    assert delta.anchors == {PARTITION: anchor_at(6)}
    assert [(one.key, one.records_done, one.records_saved) for one in delta.entries] == [("k", 7, 5)]
    other = entry(4, key="other")
    manager.commit(acknowledge(batch(other), offset=10))
    delta = manager.flush()
    assert delta.anchors == {PARTITION: anchor_at(7)}
    assert {one.key: one.records_saved for one in delta.entries} == {"k": 6, "other": 0}


def test_what_was_overwritten_or_reset_before_it_was_safe_is_not_saved_for_what_took_its_place():
    manager = OffsetManager()
    manager.open_partition(PARTITION, PartitionState(hold_back=2))
    manager.commit(acknowledge(batch(entry(3), 3), offset=2))
    manager.add_entry(entry(0, generation=2, version="v2"))
    manager.commit(acknowledge(batch(entry(5, key="other"), 5), offset=7))
    manager.flush()
    assert manager.get_entry(KEY) == entry(0, generation=2, version="v2")


def test_nothing_of_an_earlier_generation_is_saved_for_a_later_one():
    manager = OffsetManager(positions=position_map([entry(9, records_saved=7)]))
    manager.open_partition(PARTITION, PartitionState(hold_back=5))
    manager.commit(acknowledge(batch(entry(2, generation=2, version="v2"), 2), offset=20))
    (saved,) = manager.flush().entries
    assert (saved.generation, saved.records_done, saved.records_saved) == (2, 2, 0)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from("xyz"), st.integers(1, 4)),
        st.tuples(st.just("end"), st.sampled_from("xyz"), st.integers(0, 2)),
        st.tuples(st.just("others"), st.just(""), st.integers(1, 3)),
        st.tuples(st.just("flush"), st.just(""), st.just(0)),
        st.tuples(st.just("crash"), st.just(""), st.integers(0, 9)),
    ),
    max_size=30,
)


class ForgettingPartition:
    """A partition, its source and its store, with an oracle that shares no code with the manager.

    A crash takes at most `hold_back - 1` messages off the end, and what was not flushed. What is left is on the disk, and stays.
    """

    def __init__(self, hold_back):
        self.hold_back = hold_back
        self.messages = []  # (object, record number), or None of somebody else's
        self.totals = {}
        self.store = MemoryOffsetStore()
        self.manager = OffsetManager(self.store)
        self.manager.open_partition(PARTITION, PartitionState(hold_back=hold_back))
        self.risen = -1
        self.on_disk = 0
        for name in "xyz":
            self.manager.add_entry(entry(key=name))
        self.manager.store_begun()

    def highest(self, name, below):
        return max((message[1] for message in self.messages[:below] if message and message[0] == name), default=0)

    def send(self, name, count, *, end=False):
        if name in self.totals:
            return
        before = self.highest(name, None)
        self.messages += [(name, before + number) for number in range(1, count + 1)]
        total = before + count if end else None
        position = batch(entry(before + count, key=name, total=total), count)
        anchor = anchor_at(len(self.messages) - 1) if count else None
        self.manager.commit(Acknowledgement(topic_partition=PARTITION, batches=(position,), anchor=anchor))
        if end:
            self.totals[name] = total

    def others(self, count):
        self.messages += [None] * count

    def flush(self):
        self.manager.flush()
        self.check()

    def check(self):
        """Whatever tail is forgotten: the anchor is there, saved counts are exactly what stands up to it."""
        anchor = self.store.anchors.get(PARTITION)
        at = anchor.offset if anchor is not None else -1
        assert anchor is None or anchor == anchor_at(at)
        assert at >= self.risen
        self.risen = at
        assert anchor is None or at < max(self.on_disk, len(self.messages) - max(self.hold_back - 1, 0))
        for name in "xyz":
            stored = self.store.entries[OffsetManagerKey.of_object("b", name)]
            # nothing of it in the tail: an end that came alone may be ahead of the anchor
            assert stored.records_saved == self.highest(name, at + 1)

    def crash(self, lost):
        left = max(self.on_disk, len(self.messages) - min(lost, max(self.hold_back - 1, 0)))
        self.messages = self.messages[:left]
        self.on_disk = left
        self.check_recovery()

    def check_recovery(self):
        anchor = self.store.anchors.get(PARTITION)
        start = anchor.offset + 1 if anchor is not None else 0
        positions, unsaved, counts = position_map(), deque(), {}
        for at, message in enumerate(self.messages[start:], start):
            if message is not None:
                key = OffsetManagerKey.of_object("b", message[0])
                counts[message[0]] = message[1]
                unsaved.append(UnsavedCount(anchor_at(at), key, 1, message[1]))
        for name in "xyz":
            stored = self.store.entries[OffsetManagerKey.of_object("b", name)]
            count = max(stored.records_saved, counts.get(name, 0))
            assert count == self.highest(name, None)  # nothing lost, nothing twice
            begin_in(positions, stored.recovered(count))
            if stored.total is None or count < stored.total:
                self.totals.pop(name, None)
        last = anchor_at(len(self.messages) - 1) if self.messages else None
        saved = {}
        while unsaved and unsaved[0].anchor.offset <= last.offset - self.hold_back:
            anchor = unsaved[0].anchor
            item = unsaved.popleft()
            saved[item.key] = item.records
        state = PartitionState(hold_back=self.hold_back, last=last, unsaved=unsaved)
        self.manager = OffsetManager(self.store, positions=positions, anchors=dict(self.store.anchors))
        self.manager.open_partition(PARTITION, state, anchor=anchor, saved=saved)


@settings(deadline=None)
@given(st.sampled_from([0, 2, 3, 7]), steps)
@example(0, [("send", "x", 1), ("crash", "", 0), ("send", "y", 1)])
@example(3, [("send", "x", 4), ("others", "", 3), ("send", "y", 1), ("flush", "", 0), ("crash", "", 2)])
def test_whatever_tail_a_killed_server_forgets_saved_counts_and_anchor_say_the_same_and_are_there(hold_back, some):
    partition = ForgettingPartition(hold_back)
    for kind, name, number in some:
        if kind == "send":
            partition.send(name, number)
        elif kind == "end":
            partition.send(name, number, end=True)
        elif kind == "others":
            partition.others(number)
        elif kind == "flush":
            partition.flush()
        else:
            partition.crash(number)
    partition.flush()
    partition.crash(9)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12))
def test_no_more_than_has_to_be_is_held_back(sizes):
    hold_back = 5
    manager = OffsetManager()
    manager.open_partition(PARTITION, PartitionState(hold_back=hold_back))
    ends = list(itertools.accumulate(sizes))
    for size, done in zip(sizes, ends, strict=True):
        manager.commit(acknowledge(batch(entry(done), size), offset=done - 1))
    manager.flush()
    assert manager.get_entry(KEY).records_saved == max(
        (end for end in ends if end - 1 <= ends[-1] - 1 - hold_back), default=0
    )


def test_a_worker_forgets_what_is_final_and_saved_and_nothing_else():
    manager = OffsetManager()
    manager.open_partition(PARTITION, PartitionState())
    manager.open_partition(TopicPartition("t", 1), PartitionState(hold_back=9))
    unsafe = ended(2, key="unsafe", topic_partition=TopicPartition("t", 1))
    manager.commit(acknowledge(batch(ended(2), 2), batch(entry(2, key="open"), 2), offset=3))
    manager.commit(acknowledge(batch(unsafe, 2), offset=1, topic_partition=TopicPartition("t", 1)))
    delta = manager.flush()
    manager.commit(acknowledge(batch(entry(3, key="open")), offset=4))
    manager.forget_final(delta.entries)
    assert sorted(one.key for one in manager.entries()) == ["open", "unsafe"]


# ---- generations

changes = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from(["overwrite", "restore", "split", "finish", "reset", "compact", "missing"]),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(changes)
@example([("a", "overwrite"), ("a", "finish"), ("a", "compact"), ("a", "restore")])
@example([("a", "overwrite"), ("a", "overwrite"), ("a", "reset"), ("a", "restore"), ("b", "overwrite")])
@example([("a", "split"), ("a", "finish"), ("a", "compact"), ("a", "overwrite")])
def test_no_generation_is_ever_used_twice_for_one_object(some):
    manager = OffsetManager(watermark=Watermark(bucket="b").raised("", [CoveredRange("", None, 1000)]))
    used = set()
    for name, change in some:
        key = OffsetManagerKey.of_object("b", name)
        if change in {"overwrite", "restore", "split"}:
            generation = manager.next_generation(key)
            assert (name, generation) not in used
            used.add((name, generation))
            version = "v1" if change == "restore" else f"v{len(used) + 1}"
            if change == "split":
                splits = splits_of(2, key=name, version=version, generation=generation)
                manager.add_entries(splits)
            else:
                manager.add_entry(entry(key=name, version=version, generation=generation))
        elif change == "finish":
            for one in [one for one in manager.entries() if one.key == name]:
                manager.commit(acknowledge(batch(attrs.evolve(one, records_done=4, total=4), 4)))
        elif change == "reset":
            manager.remove_entry(key)
        elif change == "compact":
            manager.compact()
            assert not any(one.final for one in manager.entries() if not one.split_size)
        else:
            manager.tracker.open(0)
            for moment in (1_000_000, 2_000_000):
                manager.tracker.begin_listing("", "", in_order=True)
                manager.tracker.began(moment)
                manager.tracker.complete(whole=True)
            manager.compact()
            assert manager.get_entry(key) is None


# ---- objects that listings do not show any more


def complete_listing(manager, moment_ms, *shown, prefix="", after=""):
    tracker = manager.tracker
    tracker.begin_listing(prefix, after, in_order=True)
    tracker.began(moment_ms)
    for name in shown:
        tracker.seen_open(OffsetManagerKey.of_object("b", name), attrs.evolve(NATIVE, key=name))
    tracker.complete(whole=True)


def names_left(manager):
    manager.compact()
    return sorted({one.key for one in manager.entries()})


def test_a_position_goes_when_complete_listings_a_window_apart_did_not_show_its_object():
    manager = OffsetManager()
    manager.tracker.open(60_000)
    manager.add_entries(splits_of(2, key="gone"))
    manager.add_entry(entry(3, key="here"))
    complete_listing(manager, 100_000, "here", "gone")
    complete_listing(manager, 110_000, "here")
    assert {one.missing_since_ms for one in manager.entries() if one.key == "gone"} == {110_000}
    complete_listing(manager, 169_999, "here")
    assert names_left(manager) == ["gone", "here"]
    complete_listing(manager, 170_000, "here")
    assert names_left(manager) == ["here"]
    assert manager.next_generation(OffsetManagerKey.of_object("b", "gone")) == 2


def test_an_object_that_comes_back_is_not_missing_any_more():
    manager = OffsetManager()
    manager.tracker.open(60_000)
    manager.add_entry(entry(3, key="away"))
    complete_listing(manager, 110_000)
    complete_listing(manager, 120_000, "away")
    complete_listing(manager, 171_000)
    assert names_left(manager) == ["away"]
    assert [one.missing_since_ms for one in manager.entries()] == [171_000]


def test_a_listing_says_nothing_of_objects_that_it_does_not_cover():
    manager = OffsetManager()
    manager.tracker.open(60_000)
    for name in ("a/old", "b/1", "b/9"):
        manager.add_entry(entry(3, key=name))
    complete_listing(manager, 110_000, prefix="b/", after="b/5")
    assert {one.key: one.missing_since_ms for one in manager.entries()} == {"a/old": 0, "b/1": 0, "b/9": 110_000}
    complete_listing(manager, 120_000, prefix="a/")
    complete_listing(manager, 175_000, prefix="b/")
    assert names_left(manager) == ["a/old", "b/1"]


def test_a_listing_of_another_prefix_does_not_make_an_object_gone_for_good():
    manager = OffsetManager()
    manager.tracker.open(60_000)
    manager.add_entry(entry(3, key="a/1"))
    complete_listing(manager, 110_000, prefix="a/")
    complete_listing(manager, 900_000, prefix="b/")
    assert names_left(manager) == ["a/1"]
    complete_listing(manager, 900_000, prefix="a/")
    assert names_left(manager) == []


def test_without_a_window_nothing_is_ever_missing():
    manager = OffsetManager()
    manager.add_entry(entry(3))
    manager.tracker.open(None)
    complete_listing(manager, 100_000)
    complete_listing(manager, 9_000_000)
    assert names_left(manager) == ["k"]
    assert manager.get_entry(KEY).missing_since_ms == 0


# ---- what a listing left


def test_what_a_listing_left_is_saved_once_kept_when_that_fails_and_loaded_again():
    store, left = BrokenStore(), ListingHints(of="s3://b", histogram=[("k", 9)])
    manager = OffsetManager(store)
    manager.note_listing("p/", left)
    store.failures = 1
    with pytest.raises(StoreUnavailableError):
        manager.flush()
    assert manager.dirty
    assert manager.flush().listings == {"p/": left}
    assert not manager.dirty
    assert (manager.listing_hints("p/"), manager.listing_hints("")) == (left, None)
    again = OffsetManager(store)
    again.populate_offset_manager()
    assert again.listing_hints("p/") == left
    assert not again.dirty


def test_what_was_noted_while_a_save_failed_wins():
    store, old, new = BrokenStore(), ListingHints(of="s3://b"), ListingHints(of="s3://b", unordered=True)
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
    manager.observe_listings({"": ListingHints(of="s3://b")})
    assert manager.listing_hints("") == ListingHints(of="s3://b")
    assert not manager.dirty


# ---- what the watermark hides


def test_an_object_without_a_position_is_done_under_the_watermark_of_its_bucket():
    watermark = Watermark(bucket="b").raised("", [CoveredRange("", None, 10)])
    manager = OffsetManager(positions=position_map([entry()]), watermark=watermark)
    absent = OffsetManagerKey.of_object("b", "absent")
    assert manager.is_compacted(absent, "absent", 9)
    assert manager.is_compacted(OffsetManagerKey.of({"table": "x", "key": "absent"}), "absent", 9)
    assert not manager.is_compacted(absent, "absent", 10)
    assert not manager.is_compacted(OffsetManagerKey.of_object("other", "absent"), "absent", 9)
    assert not manager.is_compacted(KEY, "k", 9)
    assert not OffsetManager().is_compacted(absent, "absent", 9)


def test_what_lies_where_a_listing_began_or_before_it_is_not_missing():
    names = ("a", "k", "m", "z/1")
    manager = OffsetManager(positions=position_map([entry(1, key=name) for name in names]))

    def missing():
        return [one.key for one in manager.entries() if one.missing_since_ms]

    manager.mark_missing([OffsetManagerKey.of_object("b", "m")], "", "k", 77)
    assert missing() == ["z/1"]
    manager.mark_missing([], "z/", "", 88)
    assert missing() == ["z/1"]
    assert manager.get_entry(OffsetManagerKey.of_object("b", "z/1")).missing_since_ms == 77
    manager.mark_missing([OffsetManagerKey.of_object("b", "z/1")], "z/", "", 99)
    assert missing() == []


def test_progress_of_an_object_that_is_removed_is_not_saved_any_more():
    store = MemoryOffsetStore()
    manager = OffsetManager(store)
    splits = manager.add_entries(splits_of(2))
    manager.flush()
    for at, one in enumerate(splits):
        manager.commit(acknowledge(batch(attrs.evolve(one, records_done=1)), offset=at))
    manager.remove_entry(KEY)
    delta = manager.flush()
    assert (list(delta.entries), list(delta.removed)) == ([], [KEY])
    assert list(store.load()) == []


def test_an_anchor_that_is_saved_already_is_not_written_again():
    anchors = {PARTITION: anchor_at(3)}
    manager = OffsetManager(anchors=anchors)
    manager.open_partition(PARTITION, PartitionState(), anchor=anchor_at(3))
    assert not manager.dirty
    manager.open_partition(PARTITION, PartitionState(), anchor=anchor_at(4))
    assert manager.dirty
    assert anchors == {PARTITION: anchor_at(4)}
