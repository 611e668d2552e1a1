"""Folding changes nothing of what is read: random lives of a source, with the watermark and without, side by side."""

import collections
import logging
import random
import threading
import time
from unittest import mock

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framework import coverage, order_proof
from framework.errors import PositionError
from framework.iggy import log_codec
from framework.iggy.checkpoints import CheckpointLoader
from framework.iggy.log_codec import Closing
from framework.iggy.position_log import PositionLog, arrange
from framework.iggy.recovery import Recovery
from framework.offsets import OffsetManagerEntry, PositionDelta, position_map
from framework.records import Lane, ObjectState
from framework.reset import Reset
from framework.testing.memory_iggy import MemoryIggy
from framework.testing.options import source_config
from framework.watermark import CoveredRange, Watermark
from tests.support.folding import ClockStore, Leader, wanted

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
            + ["back", "save", "fold", "fold", "crash", "lose", "time", "time"]
        )
    )
    return kind, draw(st.integers(0, 8)), draw(st.integers(0, WINDOW_S * 1000 - 2000))


def act(leader, step):
    """One thing that happens to a source or its bucket; the bucket's part is done by `happen`."""
    kind, number, _ = step
    if kind == "take":
        leader.take()
    elif kind == "send" and leader.in_hand:
        leader.send(number)
    elif kind == "back" and leader.in_hand:
        leader.give_back(number)
    elif kind == "pass":
        leader.finish_all()
        leader.whole_pass()
    elif kind == "save":
        leader.save()
    elif kind == "fold":
        leader.fold()
    elif kind == "crash":
        leader.start()
    elif kind == "lose":  # the server was killed, and with it the source
        if leader.server.topic_info("kit", "records") is not None:
            for partition in range(2):
                held = len(leader.server.messages("kit", "records", partition))
                leader.server.lose_tail("kit", "records", partition, min(number % 4, held))
        leader.start()


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
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    happened=st.lists(steps(), max_size=45),
    documented=st.booleans(),
    headers=st.sampled_from(["provenance", "none"]),
    prefixes=st.sampled_from([("",), ("a", "b/")]),
    prove_from=st.sampled_from([1, 3, 1000]),
)
def test_the_same_is_read_as_without_a_watermark(order, happened, documented, headers, prefixes, prove_from):
    with mock.patch.multiple(coverage, PROVE_FROM=prove_from, WAIT_FROM=0):
        live(order, happened, documented, headers, prefixes)


def live(order, happened, documented, headers, prefixes):
    documented = documented and order is str.encode
    store = ClockStore(documented=documented, order=order)
    folding = Leader(store, window=f"{WINDOW_S}s", prefixes=prefixes, headers=headers)
    keeping = Leader(store, prefixes=prefixes, headers=headers)
    for step in happened:
        happen(store, step)
        for leader in (folding, keeping):
            act(leader, step)
    for leader in (folding, keeping):
        leader.quiet()
    got = collections.Counter(folding.stored())
    assert got == collections.Counter(keeping.stored())
    assert {name for name in wanted(store) if name.startswith(prefixes)} <= got.keys()
    if "lose" not in [kind for kind, _, _ in happened]:
        assert max(got.values(), default=1) == 1
    store.now_ms += 2 * WINDOW_S * 1000
    folding.quiet()
    folding.fold()
    there = {one.split("@")[0] for one in wanted(store)}
    left = list(folding.offsets.entries())
    assert all(entry.state is ObjectState.READING and entry.key not in there for entry in left), left
    assert len(folding.offsets.watermark) == len(prefixes)
    folding.start()
    folding.quiet()
    assert collections.Counter(folding.stored()) == got


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
    assert len(one.offsets) == len(KEYS)
    one.fold()
    assert len(one.offsets) == 0
    assert (one.offsets.watermark.objects, one.offsets.watermark.records) == (len(KEYS), 2 * len(KEYS))
    assert read_again(one) == []
    one.start()
    assert one.session.recovered.stored_records == 2 * len(KEYS)
    assert read_again(one) == []


def test_it_rises_while_the_first_pass_is_under_way_with_objects_in_flight():
    store = old_bucket(*(f"k{number:02}" for number in range(20)))
    one = leader(store)
    for _ in range(14):
        one.take()
    slow = one.in_hand.pop(4)  # of the second page, which has three objects
    one.finish_all()
    one.fold()
    ranges = one.offsets.watermark.prefixes[""]
    assert [(range_.after, range_.until) for range_ in ranges] == [("", "k02"), ("k05", "k11")]
    assert sorted(entry.key for entry in one.offsets.entries()) == ["k03", "k05", "k12", "k13"]
    one.in_hand = [slow]
    one.finish_all()
    one.fold()
    assert [(range_.after, range_.until) for range_ in one.offsets.watermark.prefixes[""]] == [("", "k11")]


def test_without_a_documented_order_it_rises_at_the_end_of_the_pass():
    store = old_bucket(*KEYS, documented=False)
    one = leader(store)
    for _ in KEYS:
        one.take()
        one.finish_all()
    one.fold()
    assert not one.offsets.watermark
    assert one.take() is None
    one.fold()
    assert len(one.offsets) == 0


def test_without_a_documented_order_it_rises_in_mid_pass_once_the_store_has_shown_its_order(monkeypatch):
    monkeypatch.setattr(coverage, "PROVE_FROM", 5)
    monkeypatch.setattr(coverage, "WAIT_FROM", 0)
    keys = [f"k{number:02}" for number in range(40)]
    store = old_bucket(*keys, documented=False)
    one = leader(store)
    held = []
    for _ in keys:
        one.take()
        one.finish_all()
        one.fold()
        held.append(len(one.offsets))
    assert max(held[10:]) <= 5 + 3 * 3, "what was listed before the look, and some pages"
    assert len(one.offsets.watermark) == 1
    assert one.iterator.counts.list_requests < 2 * (len(keys) // 3 + 2), "one look, no more"
    one.start()
    one.quiet()
    assert sorted(one.stored()) == sorted(wanted(store))
    one.fold()
    assert (len(one.offsets), len(one.offsets.watermark)) == (0, 1)


def test_reading_goes_on_while_the_store_is_looked_at_until_too_much_is_held(monkeypatch):
    monkeypatch.setattr(coverage, "PROVE_FROM", 5)
    monkeypatch.setattr(coverage, "WAIT_FROM", 25)
    store = old_bucket(*(f"k{number:02}" for number in range(40)), documented=False)
    one = leader(store)
    asked, goes_on, look = threading.Event(), threading.Event(), order_proof.look_at_order

    def slow(*where, **how):
        asked.set()
        assert goes_on.wait(60)
        return look(*where, **how)

    monkeypatch.setattr(order_proof, "look_at_order", slow)
    taken = 0
    while taken < 15:
        assert one.take() is not None
        taken += 1
        one.finish_all()
        one.fold()
    assert asked.wait(60)
    assert len(one.offsets) == taken  # nothing has risen, and everything was handed out
    threading.Timer(0.2, goes_on.set).start()
    while one.take() is not None:
        taken += 1
        one.finish_all()
        one.fold()
        assert taken <= 28 or goes_on.is_set()
    assert taken == 40
    assert len(one.offsets) < 35  # what was listed before the look ended waits for the end of the pass
    one.quiet()
    one.fold()
    assert (len(one.offsets), len(one.offsets.watermark)) == (0, 1)


def test_what_came_back_behind_the_last_proven_key_of_a_page_is_not_hidden_by_the_next_page(monkeypatch):
    monkeypatch.setattr(coverage, "PROVE_FROM", 3)
    monkeypatch.setattr(coverage, "WAIT_FROM", 0)
    store = old_bucket(*(f"k{number:02}" for number in range(30)), documented=False)
    for back in range(3, 27):
        one = leader(store, list_concurrency=2)  # its pages are not those of the look
        for _ in range(30):
            one.take()
            if any(assignment.native.key == f"k{back:02}" for assignment in one.in_hand):
                one.give_back(0)
            one.finish_all()
            one.fold()
        one.start()
        one.quiet()
        assert sorted(one.stored()) == sorted(wanted(store))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    order=st.sampled_from([str.encode, like_folders]),
    concurrency=st.sampled_from([1, 1, 3]),
    prove_from=st.sampled_from([1, 2, 5, 9]),
)
def test_no_order_that_a_store_may_have_hides_an_object_from_a_start_in_mid_pass(seed, order, concurrency, prove_from):
    chance = random.Random(seed)
    names = [
        f"{folder}{number}"
        for folder in ("A/", "a/", "a-b/", "a b/", "a0/", "b/c/", "b/c-d/", "b/c")
        for number in range(chance.choice([0, 1, 4, 9]))
    ]
    store = old_bucket(*names, documented=False, order=order)
    with mock.patch.multiple(coverage, PROVE_FROM=prove_from, WAIT_FROM=0):
        one = leader(store, list_concurrency=concurrency)
        for _ in range(chance.randrange(len(names) + 2)):
            one.take()
            if one.in_hand and chance.random() < 0.1:
                one.give_back(0)
            while len(one.in_hand) > chance.choice([0, 0, 2]):
                one.send(chance.randrange(len(one.in_hand)))
            if chance.random() < 0.3:
                one.fold()
            if chance.random() < 0.1:
                store.put_now(chance.choice(["a/new", "a-b/new", "b/new", "z"]))
        one.fold()
        one.start()
        one.quiet()
    assert set(one.stored()) >= set(wanted(store))
    assert max(collections.Counter(one.stored()).values(), default=1) == 1


def test_a_kill_in_the_middle_of_a_first_pass_over_old_objects_loses_none():
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
                one.fold()
        one.start()
        one.quiet()
        assert sorted(one.stored()) == sorted(wanted(store))


def test_a_step_back_past_a_fold_brings_the_positions_and_the_older_watermark():
    store = old_bucket("a", "b", "c")
    one = leader(store)
    one.quiet()
    one.save()
    store.put_now("d")
    one.quiet()
    one.fold()  # anchors behind the record of d
    assert [entry.key for entry in one.offsets.entries()] == ["d"]
    lane = next(iter(one.offsets.entries())).lane
    one.server.lose_tail("kit", "records", lane.partition, 2)
    one.start()
    assert sorted(entry.key for entry in one.offsets.entries()) == ["a", "b", "c"]
    assert not one.offsets.watermark
    assert read_again(one) == [f"d@v4#{number}" for number in (1, 2)]
    assert sorted(one.stored()) == sorted(wanted(store))


@pytest.mark.parametrize("step_ms", [1, 1000], ids=["milliseconds", "whole seconds"])
@pytest.mark.parametrize("window_s", [0, WINDOW_S])
def test_objects_with_the_very_time_of_the_watermark_are_new(window_s, step_ms):
    for at in (0, 1, 400, 999, 1000, 1001):
        store = old_bucket("a", "k", step_ms=step_ms)
        one = leader(store, window=f"{window_s}s")
        store.now_ms += at
        one.quiet()
        one.fold()
        edge = one.offsets.watermark.prefixes[""][0].time_ms
        store.put("e", b"x", modified_ms=edge)
        store.put("f", b"x", modified_ms=edge + 1)
        if not window_s:
            store.put_now("now")
        assert {name.split("@")[0] for name in read_again(one)} == ({"e", "f"} if window_s else {"e", "f", "now"})


def test_an_upload_that_began_within_the_window_is_found_before_and_behind_what_was_read():
    store = old_bucket("b", "d")
    one = leader(store)
    one.quiet()
    one.fold()
    for key in ("a", "b", "c", "e"):
        store.put_now(key, late_ms=1000 * (WINDOW_S - 1))
    assert {name.split("@")[0] for name in read_again(one)} == {"a", "b", "c", "e"}


def test_this_machines_clock_does_not_count(monkeypatch):
    store = old_bucket("a", "b")
    real = time.time
    for ahead in (-(10**9), 10**9):
        monkeypatch.setattr(time, "time", lambda ahead=ahead: real() + ahead)
        one = leader(store)
        one.quiet()
        one.fold()
        assert one.offsets.watermark.prefixes[""][0].time_ms <= store.now_ms - 1000 * WINDOW_S
        assert one.offsets.watermark.prefixes[""][0].time_ms >= store.now_ms - 1000 * WINDOW_S - 2000
        assert len(one.offsets) == 0


def test_a_store_that_does_not_tell_its_time_keeps_every_position():
    store = old_bucket("a", "b")
    tell = store.list_page
    store.list_page = lambda **call: attrs.evolve(tell(**call), server_time_ms=None)
    one = leader(store)
    one.quiet()
    one.fold()
    assert len(one.offsets) == 2


def test_forever_keeps_every_position_and_honours_an_earlier_watermark():
    store = old_bucket("a", "b")
    one = leader(store)
    one.quiet()
    one.fold()
    store.put_now("c")
    one.config = attrs.evolve(
        one.config, discovery=attrs.evolve(one.config.discovery, late_arrival_window=float("inf"))
    )
    one.start()
    assert {name.split("@")[0] for name in read_again(one)} == {"c"}
    later(store)
    one.quiet()
    one.fold()
    assert [entry.key for entry in one.offsets.entries()] == ["c"]


def test_what_is_too_young_is_not_hidden_even_by_a_window_shorter_than_its_age():
    store = old_bucket("a", "b")
    store.put_now("young")
    later(store, 5)
    one = leader(store, window="1s", min_age="1h")
    one.quiet()
    assert {name.split("@")[0] for name in one.stored()} == set()
    one.fold()
    store.now_ms += 3_600_000
    assert {name.split("@")[0] for name in read_again(one)} == {"a", "b", "young"}


def test_what_the_reader_gave_back_is_not_hidden():
    store = old_bucket("a", "b", "c")
    one = leader(store)
    for _ in range(3):
        one.take()
    one.give_back(1)
    one.finish_all()
    assert one.take() is None
    one.fold()
    assert one.offsets.watermark.time_of("bucket", "b") <= store.list_page().objects[1].modified_ms
    one.start()
    assert {name.split("@")[0] for name in read_again(one)} == {"b"}


def test_failed_objects_keep_their_positions_and_hold_nothing_up():
    store = old_bucket("a", "b", "c")
    one = leader(store)
    for _ in range(3):
        one.take()
    failed = one.in_hand.pop(1)
    one.offsets.add_entry(failed.entry.advanced(0, state=ObjectState.FAILED))
    one.finish_all()
    one.quiet()
    one.fold()
    assert [(entry.key, entry.state) for entry in one.offsets.entries()] == [("b", ObjectState.FAILED)]
    assert one.offsets.coverage.foldable == 0
    one.quiet()
    one.session._settle_at = 0
    assert one.session._foldable() == 0, "it must not make one snapshot after the other due"


def test_objects_that_appear_older_than_the_window_are_warned_about_once(caplog):
    store = old_bucket("a", "b")
    one = leader(store)
    one.quiet()
    one.fold()
    one.quiet()
    store.put_now("late", late_ms=1000 * (WINDOW_S + 5))
    with caplog.at_level(logging.WARNING):
        assert read_again(one) == []
    (said,) = [record.getMessage() for record in caplog.records if "late_arrival_window" in record.getMessage()]
    assert "1 objects older" in said
    assert "offsets reset --prefix" in said


def test_deleting_and_folding_between_passes_warns_of_nothing(caplog):
    store = old_bucket(*KEYS)
    one = leader(store)
    with caplog.at_level(logging.WARNING):
        one.quiet()
        one.fold()
        one.start()
        one.quiet()
        store.delete("a")
        store.put_now("b")
        one.quiet()
        later(store)
        one.quiet()
        one.fold()
        one.quiet()
    assert not [record for record in caplog.records if "late_arrival_window" in record.getMessage()]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"include": ["b*"]}, r"\[discovery\] include changed"),
        ({"exclude": ["b*"], "ignore_hidden": False}, r"\[discovery\] exclude, \[discovery\] ignore_hidden changed"),
        ({"template": "{{key}}"}, r"\[naming\] template changed"),
        ({"prefixes": ("a",)}, r'the prefix \("" then, "a" now\) changed'),
        ({"late_arrival_window": "1h", "poll_interval": 3.0, "modified_after": "2020-01-01"}, None),
    ],
)
def test_a_changed_selection_is_refused_once_something_was_folded(options, said):
    store = old_bucket("a", "b")
    one = leader(store)
    one.quiet()
    prefixes = options.pop("prefixes", one.prefixes)
    one.fold()
    again = Leader.__new__(Leader)
    again.__dict__.update(one.__dict__)
    again.config = source_config(**{**one.options, **options})
    again.prefixes = prefixes
    again.start()
    if said is None:
        again.quiet()
        return
    with pytest.raises(PositionError, match=said) as error:
        again.take()
    assert "offsets reset --all" in str(error.value)
    assert "[source] name" in str(error.value)


def test_an_earlier_modified_after_is_refused_and_a_later_one_is_not():
    store = old_bucket("a", "b")
    one = leader(store, modified_after="2020-01-01")
    one.quiet()
    one.fold()
    one.config = source_config(**{**one.options, "modified_after": "2020-01-02"})
    one.start()
    one.quiet()
    one.fold()
    one.config = source_config(**{**one.options, "modified_after": "2019-01-02"})
    one.start()
    with pytest.raises(PositionError, match="modified_after"):
        one.take()


def test_a_prefix_more_or_less_is_no_change():
    store = old_bucket("a/1", "b/1", "c/1")
    one = leader(store, prefixes=("a/", "b/"))
    one.quiet()
    one.fold()
    one.prefixes = ("b/", "c/")
    one.start()
    assert {name.split("@")[0] for name in read_again(one)} == {"c/1"}
    one.fold()
    one.prefixes = ("a/", "b/", "c/")
    one.start()
    assert read_again(one) == []


def test_a_later_version_of_a_folded_object_wins_after_a_step_back_although_nobody_saved_its_time():
    store = old_bucket("a")
    one = leader(store, partitions=1)
    one.quiet()
    one.fold()
    store.put_now("a")
    one.take()
    one.send(0)
    one.start()  # the replay finds its record, and no time
    assert [(entry.version, entry.records_done) for entry in one.offsets.entries()] == [("v2", 1)]
    assert read_again(one) == ["a@v2#2"]
    assert sorted(one.stored()) == ["a@v1#1", "a@v1#2", "a@v2#1", "a@v2#2"]


@pytest.mark.parametrize("concurrency", [2, 5])
@pytest.mark.parametrize("documented", [True, False])
def test_ranges_that_are_listed_side_by_side_cover_everything_too(concurrency, documented):
    keys = [f"{folder}/{number:03}" for folder in "abcd" for number in range(40)]
    store = old_bucket(*keys, documented=documented)
    one = leader(store, list_concurrency=concurrency)
    one.quiet()
    one.fold()
    assert len(one.offsets) == 0
    assert one.offsets.watermark.prefixes[""] == (CoveredRange("", None, one.offsets.watermark.time_of("bucket", "x")),)


def test_a_folder_that_a_store_lists_late_is_not_hidden_by_the_folder_before_it():
    keys = [f"logs/{number:02}" for number in range(30)] + [f"logs-old/{number:02}" for number in range(30)]
    for killed_at in range(0, 60, 7):
        store = old_bucket(*keys, documented=False, order=like_folders)
        one = leader(store, list_concurrency=3)
        for _ in range(killed_at):
            one.take()
            one.finish_all()
        one.fold()
        one.start()
        one.quiet()
        assert sorted(one.stored()) == sorted(wanted(store))
        later(store)
        one.quiet()
        one.fold()
        assert len(one.offsets) == 0


@pytest.mark.parametrize(
    ("reset", "again"), [(Reset(key="b"), {"b"}), (Reset(prefix="b/"), {"b/1", "b/2"}), (Reset(), set(KEYS))]
)
def test_a_reset_reads_folded_objects_again_and_no_others(reset, again):
    store = old_bucket(*KEYS)
    one = leader(store)
    one.quiet()
    one.fold()
    one.session.close()
    log = PositionLog(one.server.connect(), stream="kit", topic="kit-offsets", source="kit")
    Recovery(log, topics=["records"], partitions=2, reset=reset).run()
    log.connection.close()
    for _ in range(2):  # a start and a crash later it is the same
        one.start()
    assert {name.split("@")[0] for name in read_again(one)} == again
    later(store)
    one.quiet()
    one.fold()
    assert (len(one.offsets), len(one.offsets.watermark)) == (0, 1)


def test_what_the_filters_leave_out_for_its_age_is_no_late_object(caplog):
    store = old_bucket("a", "b")
    store.put("ancient", b"x", modified_ms=1000)
    one = leader(store, modified_after="2020-01-01")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            one.quiet()
            one.fold()
    assert len(one.offsets) == 0
    assert not [record for record in caplog.records if "late_arrival_window" in record.getMessage()]


def test_what_is_archived_and_waited_for_is_not_hidden():
    store = old_bucket("a", "b", "c")
    one = leader(store, archived="wait")
    for _ in range(3):
        one.take()
    one.feed.release(attrs.evolve(one.in_hand.pop(1), archived=True), gone=True)
    one.finish_all()
    assert one.take() is None
    one.fold()
    one.start()
    assert {name.split("@")[0] for name in read_again(one)} == {"b"}


def test_what_a_snapshot_has_folded_is_counted_once_when_a_delta_tells_of_it_again():
    """With several processes a snapshot stands in the log behind deltas of what it has folded, and both count."""
    server = MemoryIggy()
    connection = server.connect()
    connection.ensure_stream("kit")
    connection.create_topic("kit", "log", 1)
    done = OffsetManagerEntry(
        bucket="b", key="k", version="v", modified_ms=1, records_done=7, state=ObjectState.DONE, lane=Lane("records", 0)
    )
    reading = attrs.evolve(done, records_done=3, state=ObjectState.READING)
    anchors = {done.lane: None}
    watermark = Watermark(bucket="b", prefixes={"": (CoveredRange("", None, 10),)}).with_folded({"": 1}, 7)
    for payload in (
        *log_codec.encode_snapshot("kit", 1, position_map().view(), Closing()),
        log_codec.encode_delta("kit", 1, 0, PositionDelta(entries=[reading], anchors=anchors)),
        log_codec.encode_delta("kit", 1, 0, PositionDelta(entries=[done], anchors=anchors)),
        *log_codec.encode_snapshot(
            "kit", 1, position_map().view(), Closing(watermark=watermark, anchors=anchors), since=1
        ),
    ):
        connection.append("kit", "log", 0, payload)
    log = PositionLog(connection, stream="kit", topic="log", source="kit")
    loaded = CheckpointLoader(log, arrange(log.outline(), "kit").checkpoints).load()
    assert (len(loaded.entries), loaded.watermark.objects, loaded.watermark.records) == (0, 1, 7)
