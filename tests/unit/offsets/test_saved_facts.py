"""What is saved with positions: it is written once, kept when a save fails, and the newer value wins."""

import pytest
from msgspec.structs import replace

from framework.errors import PositionError, StoreUnavailableError
from framework.offsets.listing_hints import ListingHints
from framework.offsets.manager import OffsetManager
from framework.offsets.saved_facts import BoundSelection
from framework.offsets.selection_scope import SelectionScope
from framework.offsets.table import PositionTable
from framework.offsets.watermark import CoveredRange, Watermark
from tests.support.entries import BrokenStore, entry


def scope(*prefixes):
    return SelectionScope(bucket="b", prefixes=prefixes, options={})


# ---- what a listing left


def test_what_a_listing_left_is_saved_once_kept_when_that_fails_and_loaded_again():
    store, left = BrokenStore(), ListingHints(of="s3://b", keys=("k",), counts=(9,))
    manager = OffsetManager(store)
    manager.hints.set("p/", left)
    store.failures = 1
    with pytest.raises(StoreUnavailableError):
        manager.flush()
    assert manager.dirty
    assert manager.flush().listings == {"p/": left}
    assert not manager.dirty
    assert (manager.hints.get("p/"), manager.hints.get("")) == (left, None)
    again = OffsetManager(store)
    again.populate_offset_manager()
    assert again.hints.get("p/") == left
    assert not again.dirty


def test_what_was_noted_while_a_save_failed_wins():
    store, old, new = BrokenStore(), ListingHints(of="s3://b"), ListingHints(of="s3://b", unordered=True)
    manager = OffsetManager(store)
    manager.hints.set("", old)
    store.failures = 1
    store.during = lambda: manager.hints.set("", new)
    with pytest.raises(StoreUnavailableError):
        manager.flush()
    store.during = lambda: None
    assert manager.flush().listings == {"": new}


def test_what_another_writer_saved_of_a_listing_is_taken_over():
    known = {}
    manager = OffsetManager(listings=known)
    known[""] = ListingHints(of="s3://b")
    assert manager.hints.get("") == ListingHints(of="s3://b")
    assert not manager.dirty


# ---- the selection


def test_a_watermark_without_ranges_refuses_no_selection_and_keeps_what_was_compacted():
    """A reset took the ranges: every object is new, whatever is selected."""
    watermark = Watermark(bucket="b").with_compacted({"": 7}, records=70)
    now = replace(scope("p/"), bucket="c", options={"include": "another"})
    now.check(scope(), watermark)
    assert now.left_of(scope(), watermark) == replace(watermark, bucket="c")


def test_the_watermark_of_an_unknown_selection_keeps_its_bucket():
    """It would hide the objects of another one."""
    table = PositionTable(watermark=Watermark(bucket="another").raised("", CoveredRange("", None, 9)))
    BoundSelection(table).bind(scope(""))
    assert table.watermark.bucket == "another"


# ---- skips


def test_skips_are_counted_until_they_are_saved():
    store = BrokenStore()
    manager = OffsetManager(store)
    manager.table.count_skipped(1)
    manager.table.count_skipped(1)
    store.failures = 1
    store.during = lambda: manager.table.count_skipped(3)
    with pytest.raises(StoreUnavailableError):
        manager.flush()
    store.during = lambda: None
    assert manager.dirty
    assert manager.flush().skipped == 5
    assert not manager.dirty
    assert not manager.flush()


# ---- the selection


def test_a_selection_is_stored_with_the_first_position_that_begins_under_it_and_only_once():
    store = BrokenStore()
    manager = OffsetManager(store)
    assert not manager.dirty
    manager.selection.bind(scope("a/"))
    assert (manager.dirty, manager.table.watermark.bucket) == (True, "b")
    manager.add_entry(entry())
    manager.store_begun()
    manager.selection.bind(scope("a/"))
    assert not manager.dirty
    assert [saved.selected for saved in store.saved] == [scope("a/")]


def test_a_selection_that_could_not_be_stored_is_stored_unless_there_is_a_newer_one():
    store = BrokenStore()
    manager = OffsetManager(store)
    manager.selection.bind(scope("a/"))
    store.failures = 2
    with pytest.raises(StoreUnavailableError):
        manager.flush()
    store.during = lambda: manager.selection.bind(scope("a/", "b/"))
    with pytest.raises(StoreUnavailableError):
        manager.flush()
    assert manager.flush().selected == scope("a/", "b/") == manager.selection.scope
    assert not manager.dirty


def test_the_first_start_is_known_only_of_a_source_that_reads_from_it_on():
    table = PositionTable()
    assert BoundSelection(table).first_start_ms is None
    chosen = replace(scope(), oldest_ms=5)
    assert BoundSelection(table, chosen).first_start_ms is None
    assert BoundSelection(table, replace(chosen, since_start=True)).first_start_ms == 5


def test_a_watermark_of_other_objects_is_dropped_or_refused():
    watermark = Watermark(bucket="b").raised("a/", CoveredRange("a/", None, 10))
    table = PositionTable(watermark=watermark)
    for others in (scope("a/", "c/"), scope("c/")):
        BoundSelection(table, scope("a/")).bind(others)
        assert table.watermark == watermark
    BoundSelection(table, scope("a/")).bind(scope("a"))
    assert table.watermark == Watermark(bucket="b")
    table.watermark = watermark.with_compacted({"a/": 1}, records=1)
    with pytest.raises(
        PositionError, match=r'^the prefix \("a/" then, "a" now\) changed since positions of 1 finished '
    ):
        BoundSelection(table, scope("a/")).bind(scope("a"))


@pytest.mark.parametrize(("then", "now"), [(None, "https://store"), ("https://store", None), (None, None)])
def test_an_address_that_is_unknown_is_no_other_store(then, now):
    watermark = Watermark(bucket="b").raised("", CoveredRange("", None, 10)).with_compacted({"": 1}, records=1)
    table = PositionTable(watermark=watermark)
    BoundSelection(table, replace(scope(""), address=then)).bind(replace(scope(""), address=now))
    assert table.watermark == watermark


@pytest.mark.parametrize(
    ("before", "now", "changed"),
    [
        ({"bucket": "c"}, {}, r'the bucket \("c" then, "b" now\)'),
        ({"address": ""}, {"address": "x:9"}, r'the address of the store \(its vendor\'s then, "x:9" now\)'),
        ({"address": None}, {"address": "x:9"}, None),
        ({"oldest_ms": 5}, {"oldest_ms": 4}, r"\[discovery\] modified_after \(earlier now\)"),
        ({"oldest_ms": 5}, {"oldest_ms": None}, r"\[discovery\] modified_after \(earlier now\)"),
        ({"oldest_ms": 5}, {"oldest_ms": 5}, None),
        ({"oldest_ms": 5}, {"oldest_ms": 6}, None),
        ({"oldest_ms": None}, {"oldest_ms": 6}, None),
        ({"options": {"x": "1", "y": "1"}}, {"options": {"y": "2", "z": "1"}}, "x, y, z"),
        ({"options": {"x": "1"}}, {}, "x"),
        ({"options": {"x": "1"}, "oldest_ms": 5}, {}, r"x, \[discovery\] modified_after \(earlier now\)"),
        ({"options": {"x": "1"}, "changes_accepted": True}, {}, None),
    ],
)
def test_what_may_show_objects_that_the_watermark_hides_is_refused_by_name(before, now, changed):
    watermark = Watermark(bucket="b", compacted={"": 1}).raised("", CoveredRange("", None, 10))
    known, new = replace(scope(""), **before), replace(scope(""), **now)
    bound = BoundSelection(PositionTable(watermark=watermark), known)
    left = watermark if changed is None and not known.changes_accepted else Watermark(bucket="b")
    assert new.left_of(known, watermark) == left
    if changed is None:
        bound.bind(new)
        return
    with pytest.raises(
        PositionError, match=rf"^{changed} changed since positions of 1 finished objects were compacted, "
    ):
        bound.bind(new)


class Prefix(str):
    __slots__ = ()
    asked = 0

    def startswith(self, *args):
        Prefix.asked += 1
        return super().startswith(*args)


def test_prefixes_that_stay_are_not_compared_with_each_other():
    """Each start of a source with 5,000 prefixes compared each of 1,000 of the watermark with all of them."""
    names = [Prefix(f"{number:03}/") for number in range(50)]
    watermark = Watermark(bucket="b")
    for name in names:
        watermark = watermark.raised(name, CoveredRange("", None, 9))
    assert scope(*names).left_of(scope(*names), watermark) == watermark
    assert scope(*names[1:]).left_of(scope(*names), watermark) == watermark
    assert 0 < Prefix.asked <= 2 * len(names)
