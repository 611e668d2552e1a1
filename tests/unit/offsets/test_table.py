"""The table of positions: what it says of an object, and what it takes over, forgets and drops."""

import threading

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from framework.model.objects import TopicPartition
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.offsets.manager import OffsetManager
from framework.offsets.offset_store import PositionDelta
from framework.offsets.packed_row import RowCodec
from framework.offsets.partition_counts import PartitionState
from framework.offsets.position_map import position_map
from framework.offsets.position_view import PositionView
from framework.offsets.table import PositionTable
from framework.offsets.watermark import CoveredRange, Watermark
from tests.support.entries import KEY, PARTITION, acknowledge, batch, ended, entry, final, splits_of


def test_the_splits_of_an_object_are_those_of_its_first_ones_generation():
    first, second, _ = splits_of(3)
    stray = splits_of(3, generation=2)[2]
    table = PositionTable(position_map([first, second, stray]))
    assert table.splits_of(first) == [second]


# ---- adopted from a leader


def test_a_position_that_a_leader_began_is_known_from_then_on():
    manager = OffsetManager()
    given_out = entry(3, generation=2)
    assert manager.table.adopt(given_out) == given_out == manager.get_entry(KEY)
    assert not manager.dirty  # the leader has stored it


def test_a_position_that_was_set_back_and_is_found_whole_is_known_when_a_leader_assigns_it_by_its_older_count():
    set_back = ended(6).changed(records_done=2, records_saved=2)
    worker = PositionTable(position_map([set_back]))
    found = set_back.recovered(6).changed(records_saved=6)
    worker.put(KEY, found)
    worker.take(PositionDelta())
    worker.forget_final([found])
    assert worker.adopt(set_back).records_done == 6


@pytest.mark.parametrize("leaders", [0, 4, 9])
def test_the_owners_own_count_decides_where_reading_begins(leaders):
    """A leader may know less than its worker, and after a crash of the server, for a moment, more than there is."""
    manager = OffsetManager()
    manager.table.adopt(entry(0))
    manager.commit(acknowledge(batch(entry(4), 4), offset=3))
    assert manager.table.adopt(entry(leaders)).records_done == 4
    assert manager.get_entry(KEY).records_done == 4


def test_a_position_of_a_later_generation_takes_the_place_of_what_was_known_with_all_its_splits():
    table = PositionTable()
    for one in splits_of(2):
        table.adopt(one)
    later = entry(0, generation=5, version="v2")
    assert table.adopt(later) == later
    assert list(table.entries()) == [later]


def test_a_split_that_begins_later_leaves_the_unsaved_counts_of_the_others():
    table = PositionTable()
    first, second = splits_of(2)
    table.begin(first)
    table.put(first.get_manager_key(), first.advanced(1))
    table.begin(second)
    assert table.take(PositionDelta()).entries == [first.advanced(1)]


def test_a_position_that_is_superseded_is_finished_for_whoever_handed_it_out():
    table = PositionTable()
    first = entry(0)
    table.begin(first)
    assert not table.is_finished(first.get_manager_key(), first)
    table.begin(entry(0, generation=2, version="v2"))
    assert table.is_finished(first.get_manager_key(), first)
    table.remove(KEY)
    assert table.is_finished(first.get_manager_key(), first)


def test_a_worker_forgets_what_is_final_and_saved_and_nothing_else():
    manager = OffsetManager()
    manager.partitions.open(PARTITION, PartitionState())
    manager.partitions.open(TopicPartition("t", 1), PartitionState(hold_back=9))
    unsafe = ended(2, key="unsafe", topic_partition=TopicPartition("t", 1))
    manager.commit(acknowledge(batch(ended(2), 2), batch(entry(2, key="open"), 2), offset=3))
    manager.commit(acknowledge(batch(unsafe, 2), offset=1, topic_partition=TopicPartition("t", 1)))
    delta = manager.flush()
    manager.commit(acknowledge(batch(entry(3, key="open")), offset=4))
    manager.table.forget_final(delta.entries)
    assert sorted(one.key for one in manager.table.entries()) == ["open", "unsafe"]


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
    manager = OffsetManager(watermark=Watermark(bucket="b").raised("", CoveredRange("", None, 1000)))
    used = set()
    for name, change in some:
        key = OffsetManagerKey.of_object("b", name)
        if change in {"overwrite", "restore", "split"}:
            generation = manager.table.next_generation(key)
            assert (name, generation) not in used
            used.add((name, generation))
            version = "v1" if change == "restore" else f"v{len(used) + 1}"
            if change == "split":
                splits = splits_of(2, key=name, version=version, generation=generation)
                manager.add_entry(*splits)
            else:
                manager.add_entry(entry(key=name, version=version, generation=generation))
        elif change == "finish":
            for one in [one for one in manager.table.entries() if one.key == name]:
                manager.commit(acknowledge(batch(one.changed(records_done=4, total=4), 4)))
        elif change == "reset":
            manager.remove_entry(key)
        elif change == "compact":
            manager.tracker.compact()
            assert not any(one.final for one in manager.table.entries() if not one.split_size)
        else:
            manager.tracker.open(0)
            for moment in (1_000_000, 2_000_000):
                manager.tracker.begin_listing("", "", in_order=True)
                manager.tracker.start_at(moment)
                manager.tracker.complete(whole=True)
            manager.tracker.compact()
            assert manager.get_entry(key) is None


# ---- what the watermark hides


def test_an_object_without_a_position_is_done_under_the_watermark_of_its_bucket():
    watermark = Watermark(bucket="b").raised("", CoveredRange("", None, 10))
    table = PositionTable(positions=position_map([entry()]), watermark=watermark)
    absent = OffsetManagerKey.of_object("b", "absent")
    assert table.is_compacted(absent, "absent", 9)
    assert table.is_compacted(OffsetManagerKey.of({"table": "x", "key": "absent"}), "absent", 9)
    assert not table.is_compacted(absent, "absent", 10)
    assert not table.is_compacted(OffsetManagerKey.of_object("other", "absent"), "absent", 9)
    assert not table.is_compacted(KEY, "k", 9)
    assert not PositionTable().is_compacted(absent, "absent", 9)


# ---- what a flush saves


def test_what_changed_is_given_out_once_and_taken_back_when_it_was_not_saved():
    table = PositionTable(position_map([entry(1), entry(1, key="gone")]))
    assert not table.dirty
    table.put(KEY, entry(2))
    table.remove(OffsetManagerKey.of_object("b", "gone"))
    table.unsaved.skipped = 7
    delta = table.take(PositionDelta(closed={PARTITION: 9}))
    assert (list(delta.entries), list(delta.removed), delta.skipped, delta.closed) == (
        [entry(2)],
        [OffsetManagerKey.of_object("b", "gone")],
        7,
        {PARTITION: 9},
    )
    assert not table.dirty
    table.restore(delta)
    assert table.dirty
    assert table.take(PositionDelta(closed={PARTITION: 9})) == delta


def test_what_happened_since_is_newer_than_what_is_taken_back():
    absent = OffsetManagerKey.of_object("b", "absent")
    table = PositionTable(position_map([entry(1), entry(1, key="gone"), entry(1, key="absent")]))
    table.put(KEY, entry(2))
    table.put(absent, entry(2, key="absent"))
    table.remove(OffsetManagerKey.of_object("b", "gone"))
    unsaved = table.take(PositionDelta())
    table.put(KEY, entry(3))
    table.remove(absent)
    table.begin(entry(0, key="gone", generation=2))
    table.restore(unsaved)
    delta = table.take(PositionDelta())
    assert (list(delta.entries), list(delta.removed)) == ([entry(3)], [absent])
    assert [one.key for one in table.take_begun().begun] == ["gone"]
    assert not table.dirty


def test_a_count_of_a_version_that_gave_way_to_another_is_not_taken_back():
    table = PositionTable(position_map([entry(1)]))
    table.put(KEY, entry(2))
    unsaved = table.take(PositionDelta())
    table.begin(entry(0, version="v2", generation=2))
    table.restore(unsaved)
    assert table.take_begun().begun
    assert not table.take(PositionDelta()).entries


def test_an_unsaved_count_of_a_former_version_is_not_saved_behind_the_new_one():
    table = PositionTable(position_map([entry(1)]))
    table.put(KEY, entry(2))
    table.begin(entry(0, version="v2", generation=2))
    assert [position.version for position in table.take_begun().begun] == ["v2"]
    assert not table.take(PositionDelta()).entries


def test_a_compaction_gives_other_threads_the_lock_after_each_batch(monkeypatch):
    monkeypatch.setattr("framework.offsets.table.COMPACT_BATCH", 2)
    table, held = compacting_table(5), []
    drop = table.positions.drop

    def watched(compactable):
        held.append(compactable)
        return drop(compactable)

    monkeypatch.setattr(table.positions, "drop", watched)
    batches, lock = [], table.lock

    class Watched:
        def __enter__(self):
            lock.acquire()

        def __exit__(self, *_):
            batches.append(len(held))
            held.clear()
            lock.release()

    table.lock = Watched()
    assert table.compact(lambda _: False) == 5
    assert list(filter(None, batches)) == [2, 2, 1]


def test_a_compaction_counts_what_the_watermark_replaces_and_what_is_gone():
    watermark = Watermark(bucket="b").raised("", CoveredRange("", None, 9))
    old = final(3, key="old", modified_ms=5)
    gone = [entry(1, key=key, missing_since_ms=7) for key in ("gone", "gone too", "stays")]
    table = PositionTable(position_map([old, *gone]), watermark)
    assert table.compact(lambda position: position.key != "stays") == 3
    assert [position.key for position in table.entries()] == ["stays"]
    assert len(table.entries()) == 1


def test_unfinished_positions_are_those_with_records_left():
    known = [entry(1, key="a"), entry(2, key="b", total=2), final(3, key="c"), entry(0, key="d", total=1)]
    assert [position.key for position in PositionTable(position_map(known)).unfinished()] == ["a", "d"]


class Meanwhile:
    """What other threads do while a compaction looks at the positions, without their lock."""

    def __init__(self, monkeypatch, act):
        look = PositionView.compactable

        def compactable(view, watermark):
            found = look(view, watermark)
            act()
            return found

        monkeypatch.setattr(PositionView, "compactable", compactable)


def compacting_table(count=3):
    table = PositionTable(watermark=Watermark(bucket="b").raised("", CoveredRange("", None, 2_000)))
    for number in range(count):
        entry = OffsetManagerEntry(
            bucket="b", key=str(number), version="v", modified_ms=1_000, total=0, topic_partition=TopicPartition("t", 0)
        )
        table.positions[entry.get_manager_key()] = entry
    return table


def test_an_object_that_begins_again_while_a_compaction_looks_at_it_keeps_its_position(monkeypatch):
    table = compacting_table()
    first = OffsetManagerKey.of_object("b", "0")
    again = table.positions[first].changed(generation=2, version="w", total=None)
    Meanwhile(monkeypatch, lambda: table.begin(again))
    assert table.compact(lambda _: False) == 2
    assert [(entry.key, entry.version) for entry in table.entries()] == [("0", "w")]
    assert table.watermark.objects == 2


@pytest.mark.parametrize("crowded", [False, True])
def test_rows_that_are_written_anew_while_a_compaction_looks_at_them_are_dropped(monkeypatch, crowded):
    table = compacting_table()
    monkeypatch.setattr(RowCodec, "is_crowded", crowded)
    with monkeypatch.context() as patched:
        Meanwhile(patched, table.positions._finished._clear_away)
        assert table.compact(lambda _: False) == 3
    assert (len(table), table.watermark.objects) == (0, 3)


def test_other_threads_use_the_positions_while_a_compaction_looks_at_them_and_none_changes_the_selection(monkeypatch):
    table, seen = compacting_table(), []

    def look():
        other = threading.Thread(target=lambda: seen.append(len(table.entries())))
        other.start()
        other.join(10)
        seen.append(table.compacting.locked())

    Meanwhile(monkeypatch, look)
    assert table.compact(lambda _: False) == 3
    assert seen == [3, True]
    assert not table.compacting.locked()
