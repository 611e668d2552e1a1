"""The feed: what a pass hands out, what it leaves alone, and when the next pass begins."""

import threading

import attrs
import pytest

from framework.came_back import MOST_PASSES, NOT_GIVEN
from framework.cutting import Cutter
from framework.errors import ObjectChangedError, ObjectError, PositionMismatchError, StoreUnavailableError
from framework.feed import LIST_SHARE, Assignment, HandedFeed, ListingFeed
from framework.offsets import OffsetManager, OffsetManagerEntry, canonical_options
from framework.records import Lane, NativeObject, ObjectState
from framework.testing.clock import FakeClock

LANE = Lane("t", 0)


def native(key, version="v1", size=10, modified_ms=1):
    return NativeObject(bucket="b", key=key, size=size, version=version, modified_ms=modified_ms)


class Everything:
    """A selection that leaves out what begins with `-` and cannot route what begins with `?`."""

    def __init__(self):
        self.passes = 0
        self.left = 0

    def begin_pass(self):
        self.passes += 1
        self.left = 0

    def lane_for(self, native, *, started=False):
        if native.key.startswith("?"):
            raise ObjectError("no lane", location=native.location)
        if native.key.startswith("-"):
            self.left += 1
            return None
        return LANE

    def left_out(self):
        return {"minus": self.left} if self.left else {}


class Rig:
    """A feed over a list that tests change, a fake clock, and positions."""

    def __init__(self, *objects, **options):
        self.objects = list(objects)
        self.clock = FakeClock()
        self.list_seconds = 0.0
        self.offsets = options.pop("offsets") if "offsets" in options else OffsetManager()
        self.listings = 0
        options.setdefault("poll_interval_seconds", 5.0)
        options.setdefault("depends_on", "")
        self.feed = ListingFeed(
            listing=self.listing, selection=Everything(), offsets=self.offsets, clock=self.clock, **options
        )

    def listing(self):
        self.listings += 1
        for one in list(self.objects):
            if isinstance(one, BaseException):
                raise one
            self.clock.advance(self.list_seconds)
            yield one

    def take_all(self):
        taken = []
        while (assignment := self.feed.take()) is not None:
            taken.append(assignment)
        return taken

    def keys(self):
        return [assignment.native.key for assignment in self.take_all()]

    def next_pass(self):
        self.clock.advance(self.feed.seconds_until_due)
        return self.keys()

    def done(self, one, state=ObjectState.DONE, records=3):
        entry = OffsetManagerEntry.start(one, LANE)
        self.offsets.add_entry(attrs.evolve(entry, records_done=records, state=state))


def test_a_pass_hands_out_every_object_once_in_order():
    rig = Rig(native("a"), native("b"), native("c"))
    assert rig.keys() == ["a", "b", "c"]
    assert rig.feed.counts.passes == 1
    assert (rig.feed.counts.listed, rig.feed.counts.total_chosen_bytes) == (3, 30)


def test_what_is_in_the_readers_hands_is_not_handed_out_again():
    rig = Rig(native("a"), native("b"))
    rig.keys()
    assert rig.next_pass() == []
    assert rig.listings == 2


def test_an_object_with_a_newer_version_waits_until_the_reader_is_done_with_the_old_one():
    rig = Rig(native("a"))
    rig.keys()
    rig.objects = [native("a", "v2", modified_ms=2)]
    assert rig.next_pass() == []
    rig.done(native("a"))
    assert rig.next_pass() == ["a"]


def test_a_new_version_of_a_finished_object_is_read_from_its_first_record():
    rig = Rig(native("a"))
    rig.keys()
    rig.done(native("a"))
    rig.objects = [native("a", "v2", modified_ms=2)]
    rig.clock.advance(5)
    (assignment,) = rig.take_all()
    assert (assignment.entry.version, assignment.entry.records_done) == ("v2", 0)


@pytest.mark.parametrize("state", [ObjectState.DONE, ObjectState.FAILED])
def test_a_finished_object_costs_nothing_but_its_line(state):
    rig = Rig(native("a"), native("b"))
    rig.done(native("a"), state)
    assert rig.keys() == ["b"]
    assert (rig.feed.counts.listed, rig.feed.counts.chosen) == (2, 1)


def test_an_unfinished_object_goes_on_from_its_position():
    rig = Rig(native("a"))
    rig.done(native("a"), ObjectState.READING, 7)
    (assignment,) = rig.take_all()
    assert assignment.entry.records_done == 7


def test_a_late_key_in_front_of_all_others_is_found_by_the_next_pass():
    rig = Rig(native("m"))
    rig.keys()
    rig.objects = [native("a", modified_ms=0), native("m")]
    assert rig.next_pass() == ["a"]


def test_the_wait_is_the_poll_interval_or_ten_times_the_listing_and_a_long_one_is_said(caplog):
    caplog.set_level("INFO")
    quick = Rig(native("a"), native("b"))
    quick.keys()
    assert quick.feed.seconds_until_due == 5.0
    assert not caplog.messages
    slow = Rig(native("a"), native("b"))
    slow.list_seconds = 2.0
    slow.keys()
    assert slow.feed.seconds_until_due == LIST_SHARE * 4.0
    assert LIST_SHARE == 10
    assert caplog.messages == [
        "the listing took 4.0 seconds, so that the next one begins in 40: new objects are found then"
    ]


def test_what_a_listing_waited_for_without_asking_the_store_makes_no_wait_longer():
    idle = [50.0]  # of earlier passes
    rig = Rig(native("a"), native("b"), idle_seconds=lambda: idle[0])
    rig.list_seconds = 3.0
    rig.feed.take()
    idle[0] += 2.0
    rig.take_all()
    assert rig.feed.seconds_until_due == LIST_SHARE * 4.0
    assert rig.feed.counts.list_seconds == 4.0
    assert rig.next_pass() == []
    assert rig.feed.seconds_until_due == LIST_SHARE * 6.0


def test_time_that_the_reader_takes_between_two_objects_is_no_time_of_the_listing():
    rig = Rig(native("a"), native("b"))
    rig.feed.take()
    rig.clock.advance(1000)
    rig.take_all()
    assert rig.feed.seconds_until_due == 5.0


def test_nothing_is_listed_before_the_next_pass_is_due():
    rig = Rig(native("a"))
    rig.keys()
    for _ in range(100):
        assert rig.feed.take() is None
    rig.clock.advance(4.999)
    assert rig.feed.take() is None
    assert rig.listings == 1
    rig.clock.advance(0.001)
    rig.feed.take()
    assert rig.listings == 2


def test_asking_how_long_to_wait_changes_nothing():
    rig = Rig(native("a"))
    assert [rig.feed.seconds_until_due, rig.feed.seconds_until_due] == [0.0, 0.0]
    assert rig.listings == 0
    rig.feed.take()
    assert rig.feed.seconds_until_due == 0.0  # under way


def test_once_ends_after_one_whole_pass():
    rig = Rig(native("a"), once=True)
    assert not rig.feed.finished
    assert rig.feed.take() is not None
    assert not rig.feed.finished
    assert rig.feed.take() is None
    assert rig.feed.finished
    rig.clock.advance(100)
    assert rig.feed.take() is None
    assert rig.listings == 1


def test_without_once_it_never_ends_until_it_is_stopped():
    rig = Rig(native("a"))
    rig.keys()
    assert not rig.feed.finished
    rig.feed.stop()
    rig.feed.stop()
    assert rig.feed.finished
    rig.clock.advance(100)
    assert rig.feed.take() is None


def test_a_stop_ends_a_pass_under_way():
    rig = Rig(native("a"), native("b"))
    rig.feed.take()
    rig.feed.stop()
    assert rig.feed.take() is None


def test_an_object_given_back_is_decided_anew_with_once_at_once():
    rig = Rig(native("a"), native("b"), once=True)
    first = rig.feed.take()
    rig.objects[0] = native("a", "v2", modified_ms=2)
    rig.feed.release(first)
    assert rig.keys() == ["b"]
    assert not rig.feed.finished
    (again,) = rig.take_all()
    assert (again.native.key, again.native.version) == ("a", "v2")
    assert rig.feed.finished


def test_an_object_given_back_after_the_last_pass_makes_one_more():
    rig = Rig(native("a"), once=True)
    (taken,) = rig.take_all()
    assert rig.feed.finished
    rig.feed.release(taken)
    assert not rig.feed.finished
    assert rig.keys() == ["a"]
    assert rig.feed.finished


@pytest.mark.parametrize("late", [False, True], ids=["in-the-pass", "after-it"])
@pytest.mark.parametrize("tolerant", [False, True])
def test_an_object_that_comes_back_again_and_again_is_asked_for_at_growing_pauses_and_then_no_more(late, tolerant):
    """A store may list a version that it does not give: without this a thousand requests a second, for ever."""
    rig = Rig(native("a"), native("b"), once=True, tolerant=tolerant)
    pauses = []
    rig.done(native("b"))
    for _ in range(MOST_PASSES):
        taken = rig.feed.take()
        assert taken.native.key == "a"
        if not late:
            rig.feed.release(taken)
        assert rig.feed.take() is None
        if late:
            rig.feed.release(taken)
        pauses.append(rig.feed.seconds_until_due)
        assert not rig.feed.finished
        rig.clock.advance(pauses[-1])
    assert pauses == pytest.approx([0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0])
    if tolerant:
        assert rig.keys() == []
        assert rig.feed.finished
        assert rig.feed.counts.left_out == {NOT_GIVEN: 1}
    else:
        with pytest.raises(
            ObjectChangedError, match=r"8 times the store said .* v1 again: it does not give what it lists"
        ):
            rig.feed.take()


def test_one_that_is_overwritten_again_and_again_is_read_without_a_pause():
    rig = Rig(native("a", "v0"), once=True)
    for number in range(1, 3 * MOST_PASSES):
        taken = rig.feed.take()
        rig.objects[0] = native("a", f"v{number}", modified_ms=number)
        rig.feed.release(taken)
        assert rig.feed.take() is None
        assert rig.feed.seconds_until_due == 0
    assert rig.keys() == ["a"]


def test_shares_of_one_object_that_come_back_count_once_a_pass():
    rig = Rig(native("a", size=25), cutter=splitting(), once=True)
    for _ in range(MOST_PASSES - 1):
        for taken in rig.take_all():
            rig.feed.release(taken)
        rig.clock.advance(rig.feed.seconds_until_due)
    assert len(rig.take_all()) == 3


def test_an_object_that_is_gone_makes_no_pass():
    rig = Rig(native("a"), once=True)
    (taken,) = rig.take_all()
    rig.feed.release(taken, gone=True)
    assert rig.feed.finished
    assert rig.keys() == []


def test_an_object_that_was_gone_and_is_back_is_read():
    rig = Rig(native("a"))
    (taken,) = rig.take_all()
    rig.feed.release(taken, gone=True)
    assert rig.next_pass() == ["a"]


def test_what_is_left_out_is_counted_for_each_pass():
    rig = Rig(native("-a"), native("b"), native("-c"))
    assert rig.keys() == ["b"]
    assert rig.feed.counts.left_out == {"minus": 2}
    rig.objects = [native("-a")]
    rig.next_pass()
    assert rig.feed.counts.left_out == {"minus": 1}
    assert (rig.feed.counts.chosen, rig.feed.counts.total_chosen) == (0, 1)


def test_a_name_without_a_lane_stops_or_is_counted():
    with pytest.raises(ObjectError, match="no lane"):
        Rig(native("?a")).feed.take()
    tolerant = Rig(native("?a"), native("b"), tolerant=True)
    assert tolerant.keys() == ["b"]
    assert tolerant.feed.counts.left_out == {"name without a lane": 1}


def test_a_listing_that_broke_is_no_complete_pass():
    rig = Rig(native("a"), StoreUnavailableError("away"), once=True)
    assert rig.feed.take().native.key == "a"
    with pytest.raises(StoreUnavailableError):
        rig.feed.take()
    assert not rig.feed.finished
    assert rig.feed.counts.passes == 0
    rig.objects = [native("a"), native("b")]
    assert rig.keys() == ["b"]
    assert rig.feed.finished


def test_a_position_made_with_other_options_is_refused():
    ours = canonical_options({"format": "jsonl"})
    offsets = OffsetManager()
    entry = OffsetManagerEntry.start(native("a"), LANE, canonical_options({"format": "csv"}))
    offsets.add_entry(attrs.evolve(entry, records_done=3))
    with pytest.raises(PositionMismatchError, match="csv"):
        Rig(native("a"), offsets=offsets, depends_on=ours).feed.take()


def test_a_position_that_a_replay_made_gets_its_options_and_its_time():
    ours = canonical_options({"format": "jsonl"})
    offsets = OffsetManager()
    offsets.add_entry(OffsetManagerEntry(bucket="b", key="a", version="v1", records_done=3, lane=LANE))
    (assignment,) = Rig(native("a", modified_ms=77), offsets=offsets, depends_on=ours).take_all()
    assert (assignment.entry.depends_on, assignment.entry.modified_ms) == (ours, 77)
    assert assignment.entry.records_done == 3


def test_memory_for_what_was_handed_out_does_not_grow_with_the_passes():
    rig = Rig()
    for number in range(3):
        rig.objects = [native(f"{number}/{key:05}") for key in range(10_001)]
        for assignment in rig.take_all():
            rig.done(assignment.native)
        rig.clock.advance(5)
    assert len(rig.feed._in_hand) <= 10_001


# ---- shares of split objects


def lane_of(share, partitions=3):
    return Lane("t", (share - 1) % partitions)


def splitting(size=10, partitions=3):
    return Cutter(split_size=size, partitions=partitions, can_split=lambda key: not key.endswith(".gz"))


def shares_of(assignments):
    return [(one.native.key, one.entry.share, one.entry.split_size, one.entry.lane) for one in assignments]


def finish(rig, assignment, records=3):
    rig.offsets.add_entry(assignment.entry.advanced(records, state=ObjectState.DONE))


def test_a_large_object_is_handed_out_share_by_share_each_in_a_lane_of_its_own():
    rig = Rig(
        native("a", size=9), native("b", size=31), native("c.gz", size=99), native("d", size=10), cutter=splitting()
    )
    taken = rig.take_all()
    assert shares_of(taken) == [
        ("a", 0, 0, LANE),
        *[("b", share, 10, lane_of(share)) for share in (1, 2, 3, 4)],
        ("c.gz", 0, 0, LANE),
        ("d", 0, 0, LANE),
    ]
    assert [one.size_bytes for one in taken] == [9, 10, 10, 10, 1, 99, 10]
    counts = rig.feed.counts
    assert (counts.listed, counts.chosen, counts.total_chosen, counts.total_chosen_bytes) == (4, 7, 7, 149)


def test_a_later_pass_hands_out_the_shares_that_are_neither_finished_nor_in_hand():
    rig = Rig(native("a", size=45), cutter=splitting())
    taken = rig.take_all()
    finish(rig, taken[1])
    rig.feed.release(taken[2])
    assert rig.next_pass() == ["a"]
    assert rig.next_pass() == []
    for one in taken:
        finish(rig, one)
    assert rig.next_pass() == []


@pytest.mark.parametrize("size", [None, 7, 1000])
def test_an_object_begun_in_shares_keeps_its_cut(size):
    offsets = OffsetManager()
    first = Rig(native("a", size=45), cutter=splitting(), offsets=offsets)
    taken = first.take_all()
    for number in (0, 3):
        offsets.add_entry(taken[number].entry.advanced(2))
    finish(first, taken[1])
    again = Rig(
        native("a", size=45), cutter=splitting(size) if size else Cutter(partitions=3), offsets=offsets
    ).take_all()
    assert shares_of(again) == [("a", share, 10, lane_of(share)) for share in (1, 3, 4, 5)]
    assert [one.entry.records_done for one in again] == [2, 0, 2, 0]


@pytest.mark.parametrize("state", [ObjectState.READING, ObjectState.DONE])
def test_an_object_begun_whole_stays_whole(state):
    rig = Rig(native("a", size=45), cutter=splitting())
    rig.done(native("a", size=45), state=state)
    assert shares_of(rig.take_all()) == ([("a", 0, 0, LANE)] if state is ObjectState.READING else [])


def test_so_does_one_of_which_only_its_records_were_found():
    found = OffsetManager(records_found=lambda one: 4 if one.key == "a" else 0)
    taken = Rig(native("a", size=45), native("b", size=11), cutter=splitting(), offsets=found).take_all()
    assert shares_of(taken) == [("a", 0, 0, LANE), ("b", 1, 10, LANE), ("b", 2, 10, lane_of(2))]
    assert [one.entry.records_done for one in taken] == [4, 0, 0]


def test_all_shares_of_a_new_version_are_of_the_next_generation():
    rig = Rig(native("a", size=25), cutter=splitting())
    for one in rig.take_all():
        finish(rig, one)
    rig.objects = [native("a", "v2", size=35)]
    rig.clock.advance(5)
    taken = rig.take_all()
    assert [(one.entry.share, one.entry.generation, one.entry.records_done) for one in taken] == [
        (share, 1, 0) for share in (1, 2, 3, 4)
    ]
    # of another process: its share 1 has no position yet, and the others are not begun a second time
    rig.offsets.add_entry(taken[2].entry.advanced(3, state=ObjectState.DONE))
    other = Rig(native("a", "v2", size=35), cutter=splitting(), offsets=rig.offsets)
    assert [(one.entry.share, one.entry.generation) for one in other.take_all()] == [(1, 1), (2, 1), (4, 1)]


def test_a_version_that_comes_back_is_read_in_all_its_shares():
    rig = Rig(native("a", size=25), cutter=splitting())
    for version in ("v1", "v2", "v1"):
        rig.objects = [native("a", version, size=25)]
        rig.clock.advance(5)
        taken = rig.take_all()
        assert [one.entry.share for one in taken] == [1, 2, 3]
        for one in taken:
            finish(rig, one)
    assert {one.entry.generation for one in taken} == {2}


@pytest.mark.parametrize("size", [10, 25, 45])
def test_a_newer_version_waits_until_no_share_of_the_older_one_is_in_hand(size):
    rig = Rig(native("a", size=25), cutter=splitting())
    taken = rig.take_all()
    rig.objects = [native("a", "v2", size=size)]
    for one in taken[::-1]:
        assert rig.next_pass() == []
        finish(rig, one)
    assert len(rig.next_pass()) == -(-size // 10)


def test_with_once_a_version_put_off_for_an_older_one_that_came_back_is_still_read():
    rig = Rig(native("a", size=25), cutter=splitting(), once=True)
    taken = rig.take_all()
    rig.objects = [native("a", "v2", size=25)]
    rig.feed.release(taken[0])
    assert rig.next_pass() == []
    assert not rig.feed.finished  # shares 2 and 3 are still being read, and share 1 is of no version that is wanted
    assert rig.next_pass() == []
    for one in taken[1:]:
        finish(rig, one)
    assert rig.next_pass() == ["a"] * 3
    assert rig.feed.finished


def test_gone_shares_do_not_keep_a_source_going():
    rig = Rig(native("a", size=25), cutter=splitting(), once=True)
    taken = rig.take_all()
    rig.objects = []
    for one in taken:
        rig.feed.release(one, gone=True)
    assert rig.feed.finished


def test_a_share_read_with_other_options_refuses_the_whole_object():
    rig = Rig(native("a", size=25), cutter=splitting(), depends_on='{"format":"text"}')
    finish(rig, rig.take_all()[1], records=0)
    other = Rig(native("a", size=25), cutter=splitting(), depends_on='{"format":"jsonl"}', offsets=rig.offsets)
    with pytest.raises(PositionMismatchError, match="b/a"):
        other.take_all()


def test_too_many_shares_are_an_error_that_names_the_option():
    rig = Rig(native("a", size=3 << 24), cutter=splitting(2))
    with pytest.raises(ObjectError, match=r"25,165,824 shares.*split_size"):
        rig.take_all()
    assert Rig(native("a", size=3 << 24), native("b"), cutter=splitting(2), tolerant=True).keys() == ["b"] * 5


def test_memory_for_what_was_handed_out_does_not_grow_within_a_pass():
    rig = Rig(*[native(f"{key:05}") for key in range(5_000)])
    most = 0
    for _ in range(5_000):
        rig.done(rig.feed.take().native)
        most = max(most, len(rig.feed._in_hand))
    assert most <= 1000
    assert rig.take_all() == []


def test_what_is_in_the_readers_hands_is_kept_however_much_is_finished(monkeypatch):
    monkeypatch.setattr("framework.cutting.PRUNE_FROM", 10)
    rig = Rig(*[native(f"{key:03}") for key in range(100)])
    held = {"003", "050"}
    for _ in range(100):
        taken = rig.feed.take().native
        if taken.key not in held:
            rig.done(taken)
    assert len(rig.feed._in_hand) < 20
    assert rig.next_pass() == []
    rig.objects = [native(key, "v2") for key in held]
    assert rig.next_pass() == []


# ---- objects that somebody else chose


def assignment(key):
    return Assignment(native=native(key), entry=OffsetManagerEntry.start(native(key), LANE))


def test_a_handed_feed_gives_what_it_was_given_and_ends_when_closed():
    feed = HandedFeed([assignment("a")])
    feed.give([assignment("b")])
    assert [feed.take().native.key, feed.take().native.key, feed.take()] == ["a", "b", None]
    assert not feed.finished
    feed.close()
    assert feed.finished


def test_a_handed_feed_tells_of_what_comes_back():
    told = []
    feed = HandedFeed(on_release=lambda given, gone: told.append((given.native.key, gone)))
    feed.release(assignment("a"), gone=True)
    feed.release(assignment("b"))
    assert told == [("a", True), ("b", False)]


@pytest.mark.parametrize("end", ["give", "close", "stop"])
def test_waiting_for_a_handed_feed_ends_when_something_happens(end):
    feed = HandedFeed()
    waiter = threading.Thread(target=feed.wait, args=(60.0, None))
    waiter.start()
    feed.give([assignment("a")]) if end == "give" else getattr(feed, end)()
    waiter.join(30)
    assert not waiter.is_alive()


def test_waiting_for_a_handed_feed_ends_at_once_when_the_task_was_stopped_already():
    stop = threading.Event()
    stop.set()
    feed = HandedFeed()
    waiter = threading.Thread(target=feed.wait, args=(60.0, stop), daemon=True)
    waiter.start()
    waiter.join(30)
    alive = waiter.is_alive()
    feed.stop()
    assert not alive


# ---- order
