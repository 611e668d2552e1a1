"""Counts of partitions: nothing is saved that a crash of the server can take."""

import itertools
from collections import deque

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from framework.errors import StoreUnavailableError
from framework.model.batches import Acknowledgement
from framework.model.objects import TopicPartition
from framework.model.positions import OffsetManagerKey
from framework.offsets.manager import OffsetManager
from framework.offsets.offset_store import MemoryOffsetStore
from framework.offsets.partition_counts import PartitionState, UnsavedCount
from framework.offsets.position_map import begin_in, position_map
from tests.support.entries import (
    KEY,
    PARTITION,
    BrokenStore,
    acknowledge,
    anchor_at,
    batch,
    ended,
    entry,
)

# ---- nothing is saved that a crash can take


def test_a_count_is_saved_once_so_many_messages_stand_behind_it_that_no_crash_takes_it():
    store = BrokenStore()
    manager = OffsetManager(store)
    manager.partitions.open(PARTITION, PartitionState(hold_back=10))
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


def test_a_partition_holds_back_what_it_was_opened_with_and_another_holds_nothing_back():
    manager = OffsetManager()
    manager.partitions.open(PARTITION, PartitionState(hold_back=10))
    assert manager.partitions.hold_back(PARTITION) == 10
    assert manager.partitions.hold_back(TopicPartition("another", 0)) == 0


def test_a_partition_that_is_opened_without_an_anchor_keeps_the_one_that_is_known():
    anchors = {PARTITION: anchor_at(7)}
    manager = OffsetManager(anchors=anchors)
    manager.partitions.open(PARTITION, PartitionState())
    assert anchors == {PARTITION: anchor_at(7)}
    assert not manager.dirty


def without_message(position, partition=PARTITION):
    return Acknowledgement(topic_partition=partition, batches=(batch(position, 0),), anchor=None)


def test_objects_without_a_message_are_saved_at_once_in_a_partition_that_gets_no_other_messages():
    """Their transforms filter every record, or no key chooses the partition: they would wait in memory without end."""
    manager = OffsetManager()
    state = PartitionState(hold_back=10)
    manager.partitions.open(PARTITION, state)
    manager.commit(acknowledge(batch(entry(1, key="with a message")), offset=0))
    for number in range(50):
        manager.add_entry(entry(0, key=f"key {number}"))
        manager.store_begun()
        manager.commit(without_message(ended(5, key=f"key {number}")))
        manager.flush()
    assert [position.key for _, position in manager.table.positions.pending()] == ["with a message"]
    assert len(state.unsaved) == 1


def test_an_object_with_a_message_that_a_crash_may_take_is_not_saved_with_its_last_filtered_records():
    manager = OffsetManager()
    state = PartitionState(hold_back=10)
    manager.partitions.open(PARTITION, state)
    manager.add_entry(entry(0))
    manager.commit(acknowledge(batch(entry(1)), offset=0))
    for records in (20, 40, 60):
        manager.commit(without_message(entry(records)))
    manager.commit(without_message(ended(70)))
    assert [(one.records_done, one.records_saved) for one in manager.flush().entries] == [(70, 0)]
    assert len(state.unsaved) == 1, "of records without a message the last count is enough"
    manager.commit(acknowledge(batch(entry(10, key="other"), 10), offset=10))
    assert {one.key: one.records_saved for one in manager.flush().entries} == {"k": 70, "other": 0}


def test_an_orderly_end_says_where_every_partition_ended_that_was_written():
    safe, empty = TopicPartition("t", 1), TopicPartition("t", 2)
    manager = OffsetManager()
    manager.partitions.open(PARTITION, PartitionState(hold_back=9))
    manager.partitions.open(safe, PartitionState(last=anchor_at(5)))
    manager.partitions.open(empty, PartitionState())
    manager.commit(acknowledge(batch(entry(3), 3), offset=7))
    assert manager.flush().closed == {}
    delta = manager.flush(closing=True)
    assert delta.closed == {PARTITION: 7, safe: 5}
    assert delta.counted == {PARTITION: anchor_at(7)}


def test_counts_that_a_crash_may_take_back_are_saved_with_the_message_up_to_which_they_count():
    store = BrokenStore()
    safe = TopicPartition("t", 1)
    manager = OffsetManager(store)
    manager.partitions.open(PARTITION, PartitionState(hold_back=9))
    manager.partitions.open(safe, PartitionState(last=anchor_at(5)))
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
    further, gone = entry(9, records_saved=8, key="further"), entry(key="gone")
    found = {KEY: 5, further.get_manager_key(): 6, gone.get_manager_key(): 3}
    manager = OffsetManager(store, positions=position_map([entry(7, records_saved=2), entry(3, key="other"), further]))
    assert PARTITION not in manager.partitions
    state = PartitionState(
        hold_back=3,
        last=anchor_at(9),
        unsaved=deque([UnsavedCount(anchor_at(7), KEY, 1, 6), UnsavedCount(anchor_at(9), KEY, 1, 7)]),
    )
    manager.partitions.open(PARTITION, state, anchor=anchor_at(6), saved=found)
    assert PARTITION in manager.partitions
    assert manager.partitions.ends() == {PARTITION: anchor_at(9)}
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
    manager.partitions.open(PARTITION, PartitionState(hold_back=2))
    manager.commit(acknowledge(batch(entry(3), 3), offset=2))
    manager.add_entry(entry(0, generation=2, version="v2"))
    manager.commit(acknowledge(batch(entry(5, key="other"), 5), offset=7))
    manager.flush()
    assert manager.get_entry(KEY) == entry(0, generation=2, version="v2")


def test_an_object_that_was_overwritten_meanwhile_hides_no_other_of_the_same_request():
    manager = OffsetManager()
    manager.add_entry(entry(0, generation=2, version="v2"))
    manager.commit(acknowledge(batch(entry(3), 3), batch(entry(2, key="other"), 2), offset=4))
    assert {one.key: one.records_saved for one in manager.flush().entries} == {"other": 2}


def test_what_is_saved_of_an_object_stays_saved_when_more_of_it_is_confirmed():
    manager = OffsetManager(positions=position_map([entry(7, records_saved=5)]))
    manager.partitions.open(PARTITION, PartitionState(hold_back=5))
    manager.commit(acknowledge(batch(entry(9), 2), offset=20))
    (saved,) = manager.flush().entries
    assert (saved.records_done, saved.records_saved) == (9, 5)


def test_of_an_object_without_a_position_nothing_is_saved_in_a_partition_that_may_lose_messages():
    manager = OffsetManager()
    manager.partitions.open(PARTITION, PartitionState(hold_back=5, last=anchor_at(3)))
    manager.commit(without_message(ended(5)))
    (saved,) = manager.flush().entries
    assert (saved.records_done, saved.records_saved) == (5, 0)


def test_nothing_of_an_earlier_generation_is_saved_for_a_later_one():
    manager = OffsetManager(positions=position_map([entry(9, records_saved=7)]))
    manager.partitions.open(PARTITION, PartitionState(hold_back=5))
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
        self.messages = []  # (object, record number), or None of another writer
        self.totals = {}
        self.store = MemoryOffsetStore()
        self.manager = OffsetManager(self.store)
        self.manager.partitions.open(PARTITION, PartitionState(hold_back=hold_back))
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
        self.manager.partitions.open(PARTITION, state, anchor=anchor, saved=saved)


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
    manager.partitions.open(PARTITION, PartitionState(hold_back=hold_back))
    ends = list(itertools.accumulate(sizes))
    for size, done in zip(sizes, ends, strict=True):
        manager.commit(acknowledge(batch(entry(done), size), offset=done - 1))
    manager.flush()
    assert manager.get_entry(KEY).records_saved == max(
        (end for end in ends if end - 1 <= ends[-1] - 1 - hold_back), default=0
    )


def test_an_anchor_that_is_saved_already_is_not_written_again():
    anchors = {PARTITION: anchor_at(3)}
    manager = OffsetManager(anchors=anchors)
    manager.partitions.open(PARTITION, PartitionState(), anchor=anchor_at(3))
    assert not manager.dirty
    manager.partitions.open(PARTITION, PartitionState(), anchor=anchor_at(4))
    assert manager.dirty
    assert anchors == {PARTITION: anchor_at(4)}


def test_a_failed_save_leaves_to_the_next_what_it_would_have_written_and_no_more():
    store = BrokenStore()
    manager = OffsetManager(store)
    safe, idle = TopicPartition("t", 5), TopicPartition("t", 6)
    for partition, hold_back in ((PARTITION, 10), (safe, 0), (idle, 10)):
        manager.partitions.open(partition, PartitionState(hold_back=hold_back))
    manager.commit(acknowledge(batch(entry(1, key="idle", topic_partition=idle)), topic_partition=idle))
    manager.flush()
    manager.commit(acknowledge(batch(entry(1))))
    manager.commit(acknowledge(batch(entry(1, key="safe", topic_partition=safe)), topic_partition=safe))
    store.failures = 1
    with pytest.raises(StoreUnavailableError):
        manager.flush()
    delta = manager.flush()
    assert set(delta.written) == {PARTITION, safe}
    assert delta.anchors == {safe: anchor_at(0)}


def test_a_message_of_a_position_that_is_gone_is_saved_as_the_partitions_last():
    """Recovery counts from the end of a partition, whatever the messages there belong to."""
    manager = OffsetManager(positions=position_map([entry(generation=2)]))
    manager.partitions.open(PARTITION, PartitionState(hold_back=10))
    assert not manager.dirty
    manager.commit(acknowledge(batch(entry(1)), offset=3))
    assert manager.dirty
    assert manager.flush().counted == {PARTITION: anchor_at(3)}
    assert not manager.dirty


def test_a_count_that_was_held_back_lowers_no_count_that_is_saved():
    manager = OffsetManager(positions=position_map([entry(9, records_saved=8)]))
    state = PartitionState(hold_back=2, last=anchor_at(5), unsaved=deque([UnsavedCount(anchor_at(4), KEY, 1, 4)]))
    manager.partitions.open(PARTITION, state)
    manager.commit(acknowledge(batch(entry(1, key="other")), offset=9))
    assert manager.flush().anchors == {PARTITION: anchor_at(4)}
    assert manager.get_entry(KEY).records_saved == 8
