"""Compaction changes nothing of what is read: random lives of a source, with the watermark and without, side by side."""

import collections
import logging
import random
import time

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framework.config.format_registry import make_transformer
from framework.engine.positions_admin import accept_changes, reset_positions
from framework.errors import PositionError
from framework.model.objects import ObjectState
from framework.offsets.position_filter import PositionFilter
from framework.offsets.watermark import CoveredRange
from framework.testing.options import source_config
from tests.support.compaction import ClockStore, Leader, wanted
from tests.support.examples import examples
from tests.support.positions import as_saved, loaded

WINDOW_S = 10
KEYS = ["a", "a/b", "a b", "b", "b-1", "b/1", "b/2", "c", "d/x"]


def like_folders(key):
    return [part.encode() for part in key.split("/")]


@st.composite
def steps(draw):
    kind = draw(
        st.sampled_from(
            ["put"] * 4
            + ["late"] * 2
            + ["delete", "take", "take", "take", "send", "send", "send", "pass", "pass"]
            + ["back", "save", "compact", "compact", "crash", "lose", "time", "time"]
        )
    )
    return kind, draw(st.integers(0, 8)), draw(st.integers(0, WINDOW_S * 1000 - 2000))


def act(leader, step):
    """One thing that happens to a source or its bucket; the bucket's part is done by `happen`."""
    kind, number, _ = step
    if kind == "take":
        leader.take()
    elif kind == "send" and leader.in_flight:
        leader.send(number)
    elif kind == "back" and leader.in_flight:
        leader.give_back(number)
    elif kind == "pass":
        leader.finish_all()
        leader.whole_listing()
    elif kind == "save":
        leader.save()
    elif kind == "compact":
        leader.compact()
    elif kind == "crash":
        leader.start()
    elif kind == "lose":
        leader.lose(number % 4)


def happen(store, step):
    kind, number, late_ms = step
    if kind == "put":
        store.put_now(KEYS[number])
    elif kind == "late":
        store.put_now(KEYS[number], late_ms=late_ms)
    elif kind == "delete":
        store.delete(KEYS[number])
    elif kind == "time":
        store.now_ms += [400, 1000, 7000, 60_000][number % 4]


@pytest.mark.parametrize("order", [str.encode, like_folders], ids=["ordered", "like folders"])
@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    happened=st.lists(steps(), max_size=45),
    documented=st.booleans(),
    headers=st.sampled_from(["provenance", "none"]),
    prefixes=st.sampled_from([("",), ("a", "b/")]),
    hold_back=st.sampled_from([2, 4]),
)
def test_the_same_is_read_as_without_a_watermark(order, happened, documented, headers, prefixes, hold_back):
    documented = documented and order is str.encode
    store = ClockStore(documented=documented, order=order)
    compacting = Leader(store, window=f"{WINDOW_S}s", prefixes=prefixes, headers=headers, hold_back=hold_back)
    keeping = Leader(store, prefixes=prefixes, headers=headers, hold_back=hold_back)
    for step in happened:
        happen(store, step)
        for one in (compacting, keeping):
            act(one, step)
    for one in (compacting, keeping):
        one.quiet()
    got = collections.Counter(compacting.stored())
    assert {name for name in wanted(store) if name.startswith(prefixes)} <= got.keys()
    assert max(got.values(), default=1) == 1
    if "lose" not in [kind for kind, _, _ in happened]:  # what is lost of a version that is gone does not come again
        assert got == collections.Counter(keeping.stored())
    store.now_ms += 2 * WINDOW_S * 1000
    compacting.quiet()
    compacting.compact()
    there = {one.split("@")[0] for one in wanted(store)}
    unsaved = {entry.key for entry in compacting.offsets.table.entries() if not entry.final}
    left = [entry for entry in compacting.offsets.table.entries() if entry.final]
    assert left == []
    assert len(compacting.watermark) == len(prefixes)
    assert {key for key in unsaved if key not in there} <= {KEYS[number] for _, number, _ in happened}
    compacting.start()
    compacting.quiet()
    assert collections.Counter(compacting.stored()) == got


def leader(store, **options):
    return Leader(store, **{"window": f"{WINDOW_S}s", **options})


def later(store, seconds=2 * WINDOW_S):
    store.now_ms += 1000 * seconds


def read_again(one):
    """What is read in a pass from here on."""
    before = collections.Counter(one.stored())
    one.quiet()
    return sorted(collections.Counter(one.stored()) - before)


def old_bucket(*keys, **options):
    store = ClockStore(**options)
    for key in keys:
        store.put_now(key)
    later(store)
    return store


def test_positions_of_finished_objects_older_than_the_window_go_and_nothing_is_read_again():
    store = old_bucket(*KEYS)
    one = leader(store)
    one.quiet()
    assert len(one.offsets.table) == len(KEYS)
    one.compact()
    assert len(one.offsets.table) == 0
    assert (one.watermark.objects, one.watermark.records) == (len(KEYS), 2 * len(KEYS))
    assert read_again(one) == []
    one.start()
    assert one.session.stored_records == 2 * len(KEYS)
    assert read_again(one) == []


def test_without_a_documented_order_it_rises_at_the_end_of_the_listing():
    store = old_bucket(*KEYS, documented=False)
    one = leader(store)
    for _ in KEYS:
        one.take()
        one.finish_all()
    one.compact()
    assert not one.watermark
    assert one.take() is None
    one.compact()
    assert len(one.offsets.table) == 0


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    order=st.sampled_from([str.encode, like_folders]),
    concurrency=st.sampled_from([1, 1, 3]),
)
def test_no_order_that_a_store_may_have_hides_an_object_from_a_start_in_mid_listing(seed, order, concurrency):
    chance = random.Random(seed)
    names = [
        f"{folder}{number}"
        for folder in ("A/", "a/", "a-b/", "a b/", "a0/", "b/c/", "b/c-d/", "b/c")
        for number in range(chance.choice([0, 1, 4, 9]))
    ]
    store = old_bucket(*names, documented=False, order=order)
    one = leader(store, list_concurrency=concurrency)
    for _ in range(chance.randrange(len(names) + 2)):
        one.take()
        if one.in_flight and chance.random() < 0.1:
            one.give_back(0)
        while len(one.in_flight) > chance.choice([0, 0, 2]):
            one.send(chance.randrange(len(one.in_flight)))
        if chance.random() < 0.3:
            one.compact()
        if chance.random() < 0.1:
            store.put_now(chance.choice(["a/new", "a-b/new", "b/new", "z"]))
    one.compact()
    one.start()
    one.quiet()
    assert set(one.stored()) >= set(wanted(store))
    assert max(collections.Counter(one.stored()).values(), default=1) == 1


def test_a_kill_in_the_middle_of_a_first_listing_over_old_objects_loses_none():
    keys = [f"k{number:02}" for number in range(20)]
    for killed_at in range(len(keys)):
        store = old_bucket(*keys)
        one = leader(store)
        for number in range(killed_at):
            one.take()
            if number % 5:
                one.send(0)
                one.send(0)
            if number % 6 == 5:
                one.compact()
        one.start()
        one.quiet()
        assert sorted(one.stored()) == sorted(wanted(store))


@pytest.mark.parametrize("step_ms", [1, 1000], ids=["milliseconds", "whole seconds"])
@pytest.mark.parametrize("window_s", [0, WINDOW_S])
def test_objects_with_the_very_time_of_the_watermark_are_new(window_s, step_ms):
    for at in (0, 1, 400, 999, 1000, 1001):
        store = old_bucket("a", "k", step_ms=step_ms)
        one = leader(store, window=f"{window_s}s")
        store.now_ms += at
        one.quiet()
        one.compact()
        edge = one.watermark.prefixes[""][0].time_ms
        store.put("e", b"x", modified_ms=edge)
        store.put("f", b"x", modified_ms=edge + 1)
        if not window_s:
            store.put_now("now")
        assert {name.split("@")[0] for name in read_again(one)} == ({"e", "f"} if window_s else {"e", "f", "now"})


def test_an_upload_that_began_within_the_window_is_found_before_and_behind_what_was_read():
    store = old_bucket("b", "d")
    one = leader(store)
    one.quiet()
    one.compact()
    for key in ("a", "b", "c", "e"):
        store.put_now(key, late_ms=1000 * (WINDOW_S - 1))
    assert {name.split("@")[0] for name in read_again(one)} == {"a", "b", "c", "e"}


@pytest.mark.parametrize("ahead_s", [0, 10**9])
def test_this_machines_clock_does_not_count_when_it_is_the_later_one(monkeypatch, ahead_s):
    store = old_bucket("a", "b")
    monkeypatch.setattr(time, "time", lambda: store.now_ms / 1000 + ahead_s)
    one = leader(store)
    one.quiet()
    one.compact()
    assert one.watermark.prefixes[""][0].time_ms <= store.now_ms - 1000 * WINDOW_S
    assert one.watermark.prefixes[""][0].time_ms >= store.now_ms - 1000 * WINDOW_S - 2000
    assert len(one.offsets.table) == 0


@pytest.mark.parametrize("ahead_s", [WINDOW_S + 3600, 10**9])
def test_an_answer_dated_in_the_future_hides_nothing_that_comes_after_it(monkeypatch, ahead_s):
    store = old_bucket("a", "b")
    monkeypatch.setattr(time, "time", lambda: store.now_ms / 1000)
    tell = store.list_page
    store.list_page = lambda **call: attrs.evolve(
        tell(**call), server_time_ms=store.now_ms // 1000 * 1000 + 1000 * ahead_s
    )
    one = leader(store)
    one.quiet()
    one.compact()
    assert len(one.offsets.table) == 0  # positions are compacted in this case, too
    store.list_page = tell
    store.put_now("c")
    store.put_now("a")
    assert {name.split("@")[0] for name in read_again(one)} == {"a", "c"}


def test_a_store_that_does_not_tell_its_time_keeps_every_position():
    store = old_bucket("a", "b")
    tell = store.list_page
    store.list_page = lambda **call: attrs.evolve(tell(**call), server_time_ms=None)
    one = leader(store)
    one.quiet()
    one.compact()
    assert len(one.offsets.table) == 2


def test_forever_keeps_every_position_and_honours_an_earlier_watermark():
    store = old_bucket("a", "b")
    one = leader(store)
    one.quiet()
    one.compact()
    store.put_now("c")
    one.config = attrs.evolve(one.config, discovery=attrs.evolve(one.config.discovery, allowed_lateness=float("inf")))
    one.start()
    assert {name.split("@")[0] for name in read_again(one)} == {"c"}
    later(store)
    one.quiet()
    one.compact()
    assert [entry.key for entry in one.offsets.table.entries()] == ["c"]


def test_what_is_too_young_is_not_hidden_even_by_a_window_shorter_than_its_age():
    store = old_bucket("a", "b")
    store.put_now("young")
    later(store, 5)
    one = leader(store, window="1s", min_age="1h")
    one.quiet()
    assert {name.split("@")[0] for name in one.stored()} == set()
    one.compact()
    store.now_ms += 3_600_000
    assert {name.split("@")[0] for name in read_again(one)} == {"a", "b", "young"}


def test_objects_that_appear_older_than_the_window_are_warned_about_once(caplog):
    store = old_bucket("a", "b")
    one = leader(store)
    one.quiet()
    one.compact()
    one.quiet()
    store.put_now("late", late_ms=1000 * (WINDOW_S + 5))
    with caplog.at_level(logging.WARNING):
        assert read_again(one) == []
    (said,) = [record.getMessage() for record in caplog.records if "allowed_lateness" in record.getMessage()]
    assert said == (
        "1 object appeared under prefix '' with a last-modified older than [discovery] allowed_lateness, for example "
        f"{store.scheme}://{store.bucket}/late or an older one; not read. To read what appeared: offsets reset --prefix"
    )


def test_deleting_and_compacting_between_listings_warns_of_nothing(caplog):
    store = old_bucket(*KEYS)
    one = leader(store)
    with caplog.at_level(logging.WARNING):
        one.quiet()
        one.compact()
        one.start()
        one.quiet()
        store.delete("a")
        store.put_now("b")
        one.quiet()
        later(store)
        one.quiet()
        one.compact()
        one.quiet()
    assert not [record for record in caplog.records if "allowed_lateness" in record.getMessage()]


def test_an_earlier_modified_after_is_refused_and_a_later_one_is_not():
    store = old_bucket("a", "b")
    one = leader(store, modified_after="2020-01-01")
    one.quiet()
    one.compact()
    one.config = source_config(**{**one.options, "modified_after": "2020-01-02"})
    one.start()
    one.quiet()
    one.compact()
    one.config = source_config(**{**one.options, "modified_after": "2019-01-02"})
    one.start()
    with pytest.raises(PositionError, match="modified_after"):
        one.take()


def test_a_prefix_more_or_less_is_no_change():
    store = old_bucket("a/1", "b/1", "c/1")
    one = leader(store, prefixes=("a/", "b/"))
    one.quiet()
    one.compact()
    one.prefixes = ("b/", "c/")
    one.start()
    assert {name.split("@")[0] for name in read_again(one)} == {"c/1"}
    one.compact()
    one.prefixes = ("a/", "b/", "c/")
    one.start()
    assert read_again(one) == []


@pytest.mark.parametrize("concurrency", [2, 5])
@pytest.mark.parametrize("documented", [True, False])
def test_ranges_that_are_listed_side_by_side_cover_everything_too(concurrency, documented):
    keys = [f"{folder}/{number:03}" for folder in "abcd" for number in range(40)]
    store = old_bucket(*keys, documented=documented)
    one = leader(store, list_concurrency=concurrency)
    one.quiet()
    one.compact()
    assert len(one.offsets.table) == 0
    assert one.watermark.prefixes[""] == (CoveredRange("", None, one.watermark.time_of("bucket", "x")),)


def test_a_folder_that_a_store_lists_late_is_not_hidden_by_the_folder_before_it():
    keys = [f"logs/{number:02}" for number in range(30)] + [f"logs-old/{number:02}" for number in range(30)]
    for killed_at in range(0, 60, 7):
        store = old_bucket(*keys, documented=False, order=like_folders)
        one = leader(store, list_concurrency=3)
        for _ in range(killed_at):
            one.take()
            one.finish_all()
        one.compact()
        one.start()
        one.quiet()
        assert sorted(one.stored()) == sorted(wanted(store))
        later(store)
        one.quiet()
        one.compact()
        assert len(one.offsets.table) == 0


@pytest.mark.parametrize(
    ("reset", "again"),
    [(PositionFilter(key="b"), {"b"}), (PositionFilter(prefix="b/"), {"b/1", "b/2"}), (PositionFilter(), set(KEYS))],
)
def test_a_reset_reads_compacted_objects_again_and_no_others(reset, again):
    store = old_bucket(*KEYS)
    one = leader(store)
    one.quiet()
    one.compact()
    one.session.close()
    connection = one.server.connect()
    reset_positions(connection, one.config, reset)
    connection.close()
    for _ in range(2):  # a start and a crash later it is the same
        one.start()
    assert {name.split("@")[0] for name in read_again(one)} == again
    later(store)
    one.quiet()
    one.compact()
    assert (len(one.offsets.table), len(one.watermark)) == (0, 1)


def test_what_the_filters_leave_out_for_its_age_is_no_late_object(caplog):
    store = old_bucket("a", "b")
    store.put("ancient", b"x", modified_ms=1000)
    one = leader(store, modified_after="2020-01-01")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            one.quiet()
            one.compact()
    assert len(one.offsets.table) == 0
    assert not [record for record in caplog.records if "allowed_lateness" in record.getMessage()]


# ---- what holds a range, and what does not


def ranges(one, prefix=""):
    return [(found.after, found.until) for found in one.watermark.prefixes.get(prefix, ())]


def test_it_rises_page_by_page_also_over_what_is_still_read():
    """What has begun keeps its position, so the watermark does not hide it."""
    store = old_bucket(*(f"k{number:02}" for number in range(20)))
    one = leader(store)
    for _ in range(14):
        one.take()
    slow = one.in_flight.pop(4)  # of the second page, which has three objects
    one.finish_all()
    one.compact()
    assert ranges(one) == [("", "k11")]
    assert sorted(entry.key for entry in one.offsets.table.entries()) == ["k04", "k12", "k13"]
    one.start()
    one.quiet()
    assert sorted(one.stored()) == sorted(wanted(store))
    assert slow.native.key == "k04"


def test_what_begun_and_was_given_back_is_never_hidden():
    store = old_bucket("a", "b", "c")
    one = leader(store)
    for _ in range(3):
        one.take()
    one.give_back(1)
    one.finish_all()
    assert one.take() is None
    one.compact()
    assert [entry.key for entry in one.offsets.table.entries()] == ["b"]
    assert ranges(one) == [("", None)]
    one.start()
    assert {name.split("@")[0] for name in read_again(one)} == {"b"}


def test_a_version_that_waits_for_an_older_one_in_hand_is_not_hidden():
    store = old_bucket("a", "b")
    one = leader(store)
    one.take()  # a
    store.put("a", b"x", modified_ms=store.now_ms - 1000 * (WINDOW_S + 8))
    while one.take() is not None:
        pass
    one.take()
    one.save()
    del one.in_flight[:]
    one.compact()
    one.start()
    one.quiet()
    newest = {name for name in wanted(store) if name.startswith("a@")}
    assert newest <= set(one.stored())


@pytest.mark.parametrize("half", [0, 1])
def test_what_is_archived_and_waited_for_is_not_hidden(half):
    store = old_bucket("a", "b", "c")
    one = leader(store, archived="wait")
    for _ in range(3):
        one.take()
    if half:
        one.send(1)
    one.feed.release(attrs.evolve(one.in_flight.pop(1), archived=True), gone=True)
    one.finish_all()
    assert one.take() is None
    one.compact()
    one.start()
    assert read_again(one) == [f"b@v2#{number}" for number in (1, 2) if number > half]


def test_failed_objects_keep_their_positions_and_hold_nothing_up():
    store = old_bucket("a", "b", "c")
    one = leader(store)
    for _ in range(3):
        one.take()
    one.send(1, failed=True)
    one.finish_all()
    one.quiet()
    one.compact()
    assert [(entry.key, entry.state) for entry in one.offsets.table.entries()] == [("b", ObjectState.FAILED)]
    assert ranges(one) == [("", None)]
    one.start()
    assert read_again(one) == []


def test_what_a_killed_server_could_take_back_keeps_its_position():
    store = old_bucket(*KEYS)
    one = leader(store, hold_back=1024)
    one.quiet()
    one.compact()
    assert len(one.offsets.table) == len(KEYS)
    assert ranges(one) == [("", None)]
    one.lose(3)
    one.quiet()
    assert sorted(one.stored()) == sorted(wanted(store))


def test_a_kill_of_a_forgetful_server_after_a_compaction_loses_nothing():
    for lost in range(4):
        store = old_bucket("a", "b", "c")
        one = leader(store, hold_back=4, partitions=1)
        one.quiet()
        one.compact()
        one.lose(lost)
        assert len(one.offsets.table) > 0
        one.quiet()
        assert sorted(one.stored()) == sorted(wanted(store))


def test_the_splits_of_an_object_go_together():
    store = old_bucket("z")
    data = b"".join(b'{"n":%d}\n' % number for number in range(400))
    store.put("a", data, modified_ms=store.now_ms - 60_000)
    one = leader(store, split_size=1024)
    splits = []
    while one.take() is not None:
        splits = [assignment.entry.split_number for assignment in one.in_flight]
    assert splits == [1, 2, 3, 4, 0]
    one.send(0)
    one.send(0)
    one.compact()
    assert sorted(entry.split_number for entry in one.offsets.table.entries()) == [0, 1, 2, 3, 4], "one of them is done"
    one.finish_all()
    one.quiet()
    one.compact()
    assert (len(one.offsets.table), one.watermark.objects, one.watermark.records) == (0, 2, 10)


def test_an_object_that_is_gone_loses_its_unfinished_position_after_the_window():
    store = old_bucket("a", "b", "c")
    one = leader(store)
    for _ in range(3):
        one.take()
    one.send(1)
    one.give_back(1, gone=True)
    one.finish_all()
    store.delete("b")
    for waited, there in ((0, True), (WINDOW_S - 2, True), (4, False)):
        later(store, waited)
        one.quiet()
        one.compact()
        assert ("b" in {entry.key for entry in one.offsets.table.entries()}) is there, waited
    assert one.session.state.positions.floor == 1
    store.put_now("b")
    later(store)
    one.quiet()
    assert sorted(one.stored()) == sorted([*wanted(store), "b@v2#1"])
    assert {entry.generation for entry in one.offsets.table.entries()} == {2}


def test_an_object_that_comes_back_before_the_window_is_over_goes_on():
    store = old_bucket("a", "b")
    one = leader(store)
    one.take()
    one.take()
    one.send(1)
    one.give_back(1, gone=True)
    one.finish_all()
    listed = store.list_page
    store.list_page = lambda **call: attrs.evolve(
        listed(**call), objects=[native for native in listed(**call).objects if native.key != "b"]
    )
    one.whole_listing()
    store.list_page = listed
    later(store, WINDOW_S - 3)
    one.whole_listing()
    later(store)
    one.quiet()
    one.compact()
    assert len(one.offsets.table) == 0
    assert sorted(one.stored()) == sorted(wanted(store))


def test_a_later_version_of_a_compacted_object_begins_above_its_generation():
    store = old_bucket("a")
    one = leader(store, partitions=1)
    one.quiet()
    one.compact()
    store.put_now("a")
    one.take()
    one.send(0)
    one.start()
    (entry,) = one.offsets.table.entries()
    assert (entry.version, entry.generation, entry.records_done) == ("v2", 2, 1)
    assert read_again(one) == ["a@v2#2"]
    assert sorted(one.stored()) == ["a@v1#1", "a@v1#2", "a@v2#1", "a@v2#2"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"include": ["b*"]}, r"\[discovery\] include changed"),
        ({"exclude": ["b*"], "ignore_hidden": False}, r"\[discovery\] exclude, \[discovery\] ignore_hidden changed"),
        ({"template": "{{key}}"}, r"\[naming\] template changed"),
        ({"prefixes": ("a",)}, r'the prefix \("" then, "a" now\) changed'),
        ({"allowed_lateness": "1h", "poll_interval": 3.0, "modified_after": "2020-01-01"}, None),
    ],
)
def test_a_changed_selection_is_refused_once_something_was_compacted(options, said):
    store = old_bucket("a", "b")
    one = leader(store)
    one.quiet()
    one.compact()
    one.prefixes = options.pop("prefixes", one.prefixes)
    one.config = source_config(**{**one.options, **options})
    one.start()
    if said is None:
        assert read_again(one) == []
        return
    with pytest.raises(PositionError, match=said) as error:
        one.take()
    assert "offsets accept-data-loss" in str(error.value)
    assert "[source] name" in str(error.value)


@pytest.mark.parametrize("part", ["bucket", "address"])
def test_another_place_is_refused_and_accepted_what_has_no_position_there_is_read(part):
    store = old_bucket("a", "b")
    one = leader(store)
    one.quiet()
    store.put_now("young")
    one.quiet()
    one.compact()
    assert (len(one.offsets.table), one.watermark.objects) == (1, 2)
    before = collections.Counter(one.stored())
    if part == "bucket":
        store.bucket = "other"
        said = r'the bucket \("bucket" then, "other" now\)'
    else:
        store.address = "http://elsewhere"
        said = 'the address of the store .*"http://elsewhere" now'
    one.start()
    with pytest.raises(PositionError, match=rf"{said}.*changed since positions of 2 finished objects"):
        one.take()
    one.session.close()
    connection = one.server.connect()
    accept_changes(connection, one.config, numbering_options="")
    connection.close()
    one.start()
    one.quiet()
    again = [one for one in wanted(store) if part == "bucket" or "young" not in str(one)]
    assert collections.Counter(one.stored()) == before + collections.Counter(again)
    assert not one.offsets.selection.scope.changes_accepted
    one.compact()
    assert as_saved(loaded(one.server)).keys() == {("young", 0)}


def half_read_in_a_partition_that_goes(**options):
    """A source that was killed with one record of each object sent, and lost one of its two partitions."""
    store = old_bucket(*"abcdef")
    one = leader(store, **options)
    while one.take() is not None:
        pass
    for at in range(len(one.in_flight)):
        one.send(at)
    one.compact()
    moved = {one.native.key for one in one.in_flight if one.entry.topic_partition.partition == 1}
    one.iterator.close()
    one.session.close()
    one.session = None
    one.server._streams["kit"]["records"].partitions.pop()
    one.options["partitions"] = 1
    one.config = source_config(**one.options)
    return one, moved


def accepted(one):
    connection = one.server.connect()
    of_format = make_transformer(one.config.input.options()).numbering_options()
    done = accept_changes(connection, one.config, numbering_options=one.config.numbering_options(of_format))
    connection.close()
    return done


@pytest.mark.parametrize("window", [f"{WINDOW_S}s", "forever"])
def test_objects_half_read_in_a_partition_that_is_gone_are_not_taken_for_done(window):
    """The watermark stands above them: without a position they would look finished."""
    one, moved = half_read_in_a_partition_that_goes(window=window)
    with pytest.raises(PositionError, match="To read from the first record, into other partitions"):
        one.start()
    done = accepted(one)
    assert 0 < len(moved) < 6
    assert (done.restarting, done.positions) == (len(moved), 6 - len(moved))
    one.start()
    one.start()  # a start before the first listing changes nothing
    one.quiet()
    assert set(one.stored()) == wanted(one.store)
    one.compact()
    assert len(one.offsets.table) == (0 if window != "forever" else 6)


@pytest.mark.parametrize("failed", [False, True], ids=["done", "failed"])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "objects"])
def test_objects_that_are_gone_leave_no_positions_also_where_they_failed(failed, packed, monkeypatch):
    """A bucket that is used as a queue: what was read is deleted, and some of it could not be read."""
    if not packed:
        monkeypatch.setattr("framework.offsets.packed_row.MAX_ROW_BYTES", 0)
    store = ClockStore()
    one = leader(store)
    for day in range(6):
        names = [f"{day}-{number}" for number in range(5)]
        for name in names:
            store.put_now(name)
        while one.take() is not None:
            while one.in_flight:
                one.send(0, failed=failed)
        one.save()
        for name in names:
            store.delete(name)
        for _ in range(3):
            later(store)
            one.whole_listing()
            one.compact()
        assert len(one.offsets.table) <= len(names), day
        one.start()
    store.put_now("0-0")
    one.quiet()
    assert [entry.generation > 1 for entry in one.offsets.table.entries() if entry.key == "0-0"] == [True]


def test_a_failed_object_that_is_still_there_keeps_its_position():
    store = old_bucket("a", "b")
    one = leader(store)
    one.take()
    one.send(0, failed=True)
    one.quiet()
    for _ in range(4):
        later(store)
        one.whole_listing()
        one.compact()
    assert [(entry.key, entry.failed) for entry in one.offsets.table.entries()] == [("a", True)]
    assert one.watermark.objects == 1


def test_what_another_bucket_left_does_not_keep_the_positions_of_this_one():
    """Nothing was ever covered there, so the watermark is of no bucket yet."""
    before = ClockStore()
    before.bucket = "another"
    one = leader(before, window="forever")
    one.quiet()
    one.compact()
    one.store = old_bucket("a", "b", "c")
    one.options["allowed_lateness"] = f"{WINDOW_S}s"
    one.config = source_config(**one.options)
    one.start()
    one.quiet()
    one.compact()
    assert set(one.stored()) == wanted(one.store)
    assert (len(one.offsets.table), one.watermark.bucket, one.watermark.objects) == (0, one.store.bucket, 3)


def test_a_key_list_tells_which_objects_the_watermark_alone_calls_done(tmp_path, caplog):
    """One that came late is not read in mode list, so a user names it: silence would look as if it had been read."""
    one = leader(old_bucket("a", "b"))
    one.quiet()
    one.compact()
    one.store.put_now("late", late_ms=60_000)
    (tmp_path / "keys.txt").write_text("late\nyoung\n")
    one.store.put_now("young")
    one.options |= {"mode": "keys", "keys": str(tmp_path / "keys.txt")}
    one.config = source_config(**one.options)
    one.start()
    with caplog.at_level(logging.INFO):
        one.quiet()
    (said,) = {line.getMessage() for line in caplog.records if "count as done" in line.getMessage()}
    assert said.startswith("1 object of the key list without a position")
    assert f"{one.store.scheme}://{one.store.bucket}/late" in said
    assert said.endswith("offsets reset --key")
    assert not any("late@" in payload for payload in one.stored())
    assert sum("young@" in payload for payload in one.stored()) == 2


def test_a_prefix_for_which_the_watermark_has_no_room_is_reported_once(monkeypatch, caplog):
    monkeypatch.setattr("framework.offsets.watermark.MAX_RANGES", 2)
    one = leader(old_bucket("a/1", "b/1", "c/1", "d/1"), prefixes=("a/", "b/", "c/", "d/"))
    one.quiet()
    one.compact()
    assert {entry.key for entry in one.offsets.table.entries()} == {"c/1", "d/1"}
    (said,) = [line.getMessage() for line in caplog.records if "stay in memory" in line.getMessage()]
    assert said.startswith("prefix 'c/': ")
    assert said.endswith("since the watermark has 2 other ranges, its maximum; list fewer prefixes")
