"""The watermark that listings advance: nothing is hidden that is not stored, and what is long gone loses its position."""

import attrs
import pytest

from framework.errors import StoreUnavailableError
from framework.model.batches import Acknowledgement
from framework.model.key_range import KeyRange
from framework.model.positions import OffsetManagerKey
from framework.offsets.manager import OffsetManager
from framework.offsets.position_map import position_map
from framework.offsets.watermark import CoveredRange, Watermark
from tests.support.entries import KEY, NATIVE, PARTITION, BrokenStore, batch, entry, final, splits_of


def test_what_the_watermark_would_hide_is_stored_before_it_rises():
    store = BrokenStore()
    manager = OffsetManager(store)
    risen = []
    store.during = lambda: risen.append(bool(manager.table.watermark))
    tracker = manager.tracker
    tracker.open(1000)
    tracker.begin_listing("", "", in_order=True)
    tracker.start_at(100_000)
    manager.add_entry(entry())
    tracker.complete(whole=True)
    assert [[one.key for one in saved.begun] for saved in store.saved] == [["k"]]
    assert risen == [False]
    assert manager.table.watermark.covers("", "k", 5)


def test_a_watermark_does_not_rise_when_what_began_could_not_be_stored():
    store = BrokenStore()
    manager = OffsetManager(store)
    tracker = manager.tracker
    tracker.open(1000)
    tracker.begin_listing("", "", in_order=True)
    tracker.start_at(100_000)
    manager.add_entry(entry())
    store.failures = 1
    with pytest.raises(StoreUnavailableError):
        tracker.complete(whole=True)
    assert not manager.table.watermark


def test_a_watermark_rises_to_the_second_in_which_its_listing_began_less_the_window():
    """Stores round a last-modified down to its second: what is written later in that second must not look older."""
    manager = OffsetManager()
    manager.tracker.open(1000)
    complete_listing(manager, 2_000_900)
    assert manager.table.watermark.covers("", "k", 1_998_999)
    assert not manager.table.watermark.covers("", "k", 1_999_000)


def list_finished(manager, *modified_ms, moment_ms=100_000):
    tracker = manager.tracker
    tracker.begin_listing("", "", in_order=True)
    tracker.start_at(moment_ms)
    for each in modified_ms:
        tracker.add_known(attrs.evolve(NATIVE, modified_ms=each))
    tracker.complete(whole=True)


@pytest.mark.parametrize(("modified_ms", "risen"), [(0, False), (1, True)])
def test_a_finished_object_without_a_last_modified_holds_the_watermark_back(modified_ms, risen):
    manager = OffsetManager()
    manager.tracker.open(1000)
    list_finished(manager, modified_ms)
    assert manager.table.watermark.covers("", "k", 98_999) is risen


def test_a_window_that_reaches_before_1970_makes_no_watermark():
    manager = OffsetManager()
    manager.tracker.open(1000)
    complete_listing(manager, 900)
    assert not manager.table.watermark


def test_what_is_too_young_for_the_watermark_is_not_counted_as_compactable():
    old = [final(1, key=f"old {number}", modified_ms=5) for number in range(3)]
    manager = OffsetManager(positions=position_map(old), watermark=Watermark(bucket="b"))
    tracker = manager.tracker
    tracker.open(1000)
    list_finished(manager, 5, 5, 5)
    assert (tracker.compactable, tracker.compact(), tracker.compactable) == (3, 3, 0)
    manager.add_entry(final(1, key="young", modified_ms=99_000))
    list_finished(manager, 99_000)
    assert (tracker.compactable, tracker.compact()) == (0, 0)


def test_what_each_page_shows_counts_once_as_compactable():
    old = [final(1, key=f"old {number}", modified_ms=5) for number in range(9)]
    manager = OffsetManager(positions=position_map(old), watermark=Watermark(bucket="b"))
    tracker = manager.tracker
    tracker.open(1000)
    tracker.begin_listing("", "", in_order=True)
    tracker.start_at(100_000)
    for after, until in (("", "old 1"), ("old 1", "old 3"), ("old 3", "old 5")):
        for _ in range(2):
            tracker.add_known(attrs.evolve(NATIVE, modified_ms=5))
        tracker.advance_over(KeyRange(after, until))
    assert tracker.compactable == 6


def test_a_listing_of_a_part_changes_nothing_in_what_the_next_whole_one_expects(caplog):
    tracker = OffsetManager().tracker
    tracker.open(1000)
    for listed, whole in ((3, True), (1, False), (3, True)):
        caplog.clear()
        tracker.begin_listing("", "", in_order=True, whole=whole)
        tracker.start_at(100_000)
        for _ in range(listed):
            tracker.add_compacted(NATIVE)
        tracker.complete(whole=whole)
    assert not caplog.messages


def test_each_key_list_tells_of_its_own_objects(caplog):
    caplog.set_level("INFO")
    tracker = OffsetManager().tracker
    for listed in (2, 0, 1):
        for _ in range(listed):
            tracker.add_compacted(NATIVE)
        tracker.end_key_list()
    assert [said.split(" of the key list")[0] for said in caplog.messages] == ["2 objects", "1 object"]


# ---- objects that listings do not show any more


def complete_listing(manager, moment_ms, *shown, prefix="", after=""):
    tracker = manager.tracker
    tracker.begin_listing(prefix, after, in_order=True)
    tracker.start_at(moment_ms)
    for name in shown:
        tracker.still_exists(OffsetManagerKey.of_object("b", name))
        tracker.add_known(attrs.evolve(NATIVE, key=name))
    tracker.complete(whole=True)


def names_left(manager):
    manager.tracker.compact()
    return sorted({one.key for one in manager.table.entries()})


def test_a_listing_keeps_the_keys_of_objects_that_were_pending_at_its_begin_and_no_others():
    """A first listing of millions of objects kept the key of each to its end."""
    manager = OffsetManager(watermark=Watermark(bucket="b"))
    tracker = manager.tracker
    tracker.open(1000)
    for moment_ms in (100_000, 200_000):
        tracker.begin_listing("", "", in_order=True)
        tracker.start_at(moment_ms)
        for number in range(500):
            begun = entry(key=f"{number:03}")
            known = manager.get_entry(begun.get_manager_key())
            if known is None:
                manager.add_entry(begun)
            tracker.still_exists(begun.get_manager_key())
            tracker.add_known(attrs.evolve(NATIVE, key=begun.key))
            if number % 50 and known is None:
                done = attrs.evolve(batch(final(0, key=begun.key)), payloads=())
                manager.commit(Acknowledgement(topic_partition=PARTITION, batches=(done,), anchor=None))
            assert len(tracker._unseen) <= (10 if moment_ms > 100_000 else 0)
        tracker.complete(whole=True)
        assert [one.key for _, one in manager.table.positions.pending()] == [f"{n:03}" for n in range(0, 500, 50)]
        assert not any(one.missing_since_ms for one in manager.table.entries())


def test_an_object_that_a_listing_did_not_show_is_missing():
    manager = OffsetManager(watermark=Watermark(bucket="b"))
    manager.tracker.open(60_000)
    for key in ("a", "b", "c", "gone"):
        manager.add_entry(entry(key=key))
    complete_listing(manager, 100_000, "a", "b", "c")
    assert [one.key for one in manager.table.entries() if one.missing_since_ms] == ["gone"]


def test_a_position_goes_when_complete_listings_a_window_apart_did_not_show_its_object():
    manager = OffsetManager(watermark=Watermark(bucket="b"))
    manager.tracker.open(60_000)
    manager.add_entry(*splits_of(2, key="gone"))
    manager.add_entry(entry(3, key="here"))
    complete_listing(manager, 100_000, "here", "gone")
    complete_listing(manager, 110_000, "here")
    assert {one.missing_since_ms for one in manager.table.entries() if one.key == "gone"} == {110_000}
    complete_listing(manager, 169_999, "here")
    assert names_left(manager) == ["gone", "here"]
    complete_listing(manager, 170_000, "here")
    assert names_left(manager) == ["here"]
    assert manager.table.next_generation(OffsetManagerKey.of_object("b", "gone")) == 2


@pytest.mark.parametrize(
    ("moment_ms", "deferred_ms", "left"),
    [(170_900, None, True), (171_000, None, False), (900_000, 110_000, True), (900_000, 110_001, False)],
    ids=["in the second of its last-modified", "a second later", "held back by another object", "held back later"],
)
def test_a_position_that_its_object_would_go_on_from_when_it_came_back_stays(moment_ms, deferred_ms, left):
    """The records that were sent would be sent again, as those of an unknown object."""
    manager = OffsetManager(watermark=Watermark(bucket="b"))
    manager.tracker.open(60_000)
    manager.add_entry(entry(3, key="gone", modified_ms=110_000))
    complete_listing(manager, 110_600)
    manager.tracker.begin_listing("", "", in_order=True)
    manager.tracker.start_at(moment_ms)
    if deferred_ms is not None:
        manager.tracker.defer(attrs.evolve(NATIVE, modified_ms=deferred_ms))
    manager.tracker.complete(whole=True)
    assert names_left(manager) == (["gone"] if left else [])
    assert manager.table.watermark.covers("b", "gone", 110_000) is not left


def test_an_object_that_comes_back_is_not_missing_any_more():
    manager = OffsetManager(watermark=Watermark(bucket="b"))
    manager.tracker.open(60_000)
    manager.add_entry(entry(3, key="away"))
    complete_listing(manager, 110_000)
    complete_listing(manager, 120_000, "away")
    complete_listing(manager, 171_000)
    assert names_left(manager) == ["away"]
    assert [one.missing_since_ms for one in manager.table.entries()] == [171_000]


def test_a_listing_says_nothing_of_objects_that_it_does_not_cover():
    manager = OffsetManager(watermark=Watermark(bucket="b"))
    manager.tracker.open(60_000)
    for name in ("a/old", "b/1", "b/9"):
        manager.add_entry(entry(3, key=name))
    complete_listing(manager, 110_000, prefix="b/", after="b/5")
    assert {one.key: one.missing_since_ms for one in manager.table.entries()} == {"a/old": 0, "b/1": 0, "b/9": 110_000}
    complete_listing(manager, 120_000, prefix="a/")
    complete_listing(manager, 175_000, prefix="b/")
    assert names_left(manager) == ["a/old", "b/1"]


def test_what_lies_where_a_listing_began_or_before_it_is_not_missing():
    manager = OffsetManager(watermark=Watermark(bucket="b"))
    manager.tracker.open(60_000)
    for name in ("a", "k", "m", "z/1"):
        manager.add_entry(entry(3, key=name))
    complete_listing(manager, 110_000, "m", after="k")
    missing = {one.key: one.missing_since_ms for one in manager.table.entries()}
    assert missing == {"a": 0, "k": 0, "m": 0, "z/1": 110_000}


def test_the_positions_are_looked_through_once_for_all_prefixes():
    """With a single failed object, each of 5,000 prefixes looked through a million positions, twice."""
    manager = OffsetManager(watermark=Watermark(bucket="b"))
    manager.tracker.open(60_000)
    prefixes = [f"{number}/" for number in range(5)]
    for prefix in prefixes:
        manager.add_entry(*splits_of(2, key=f"{prefix}gone"))
        manager.add_entry(entry(3, key=f"{prefix}here"))
    positions, looks = manager.table.positions, 0
    uncompactable = positions.uncompactable

    def looked():
        nonlocal looks
        looks += 1
        return uncompactable()

    positions.uncompactable = looked
    for listing in (1, 2):
        for prefix in prefixes:
            complete_listing(manager, 100_000 * listing, f"{prefix}here", prefix=prefix)
        assert looks == listing
    missing = {one.key: one.missing_since_ms for one in manager.table.entries()}
    assert missing == {f"{p}{name}": 100_000 * (name == "gone") for p in prefixes for name in ("gone", "here")}


def test_an_object_that_ends_before_the_listing_of_its_prefix_does_is_not_missing():
    manager = OffsetManager(watermark=Watermark(bucket="b"))
    manager.tracker.open(60_000)
    manager.add_entry(entry(key="b/deleted"))
    complete_listing(manager, 100_000, prefix="a/")
    done = attrs.evolve(batch(final(0, key="b/deleted")), payloads=())
    manager.commit(Acknowledgement(topic_partition=PARTITION, batches=(done,), anchor=None))
    complete_listing(manager, 110_000, prefix="b/")
    assert [one.missing_since_ms for one in manager.table.entries()] == [0]


def test_a_listing_of_another_prefix_does_not_make_an_object_gone_for_good():
    manager = OffsetManager(watermark=Watermark(bucket="b"))
    manager.tracker.open(60_000)
    manager.add_entry(entry(3, key="a/1"))
    complete_listing(manager, 110_000, prefix="a/")
    complete_listing(manager, 900_000, prefix="b/")
    assert names_left(manager) == ["a/1"]
    complete_listing(manager, 900_000, prefix="a/")
    assert names_left(manager) == []


def missed_before(window_ms):
    """An earlier run with a window had a watermark, and missed an object in its listings."""
    manager = OffsetManager(
        positions=position_map([entry().changed(missing_since_ms=5)]),
        watermark=Watermark(bucket="b").raised("", CoveredRange("", None, 100_000)),
    )
    manager.tracker.open(window_ms)
    return manager


def test_an_object_that_an_earlier_run_missed_is_not_gone_before_a_listing_of_this_run_is_complete():
    assert names_left(missed_before(1000)) == ["k"]


def test_without_a_window_nothing_is_ever_missing():
    manager = OffsetManager(watermark=Watermark(bucket="b"))
    manager.add_entry(entry(3))
    manager.tracker.open(None)
    complete_listing(manager, 100_000)
    complete_listing(manager, 9_000_000)
    assert names_left(manager) == ["k"]
    assert manager.get_entry(KEY).missing_since_ms == 0
    assert names_left(missed_before(None)) == ["k"]
