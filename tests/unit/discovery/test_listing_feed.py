"""The feed: what a pass hands out, what it leaves alone, and when the next pass begins."""

import threading

import attrs
import pytest

from framework.discovery import new_objects
from framework.discovery.listing_feed import REST_FACTOR
from framework.discovery.object_feed import AssignedFeed, Assignment, ObjectFeed
from framework.discovery.splitting import SplitPolicy
from framework.discovery.stale_listing import MAX_LISTINGS, NOT_GIVEN
from framework.errors import ListingError, ObjectChangedError, ObjectError, PositionMismatchError, StoreUnavailableError
from framework.model.batches import Acknowledgement, RecordBatch
from framework.model.objects import Anchor, NativeObject, ObjectState, ResumePoint, TopicPartition
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey, canonical_options
from framework.offsets.manager import OffsetManager
from framework.testing.clock import FakeClock
from tests.support.feeds import listing_feed

PARTITION = TopicPartition("t", 0)


def native(key, version="v1", size=10, modified_ms=1):
    return NativeObject(bucket="b", key=key, size=size, version=version, modified_ms=modified_ms)


def send(offsets, entry):
    """What a sender does: everything up to there is confirmed."""
    batch = RecordBatch(
        native=native(entry.key, entry.version),
        topic_partition=entry.topic_partition,
        first_record=1,
        payloads=[b"x"],
        size_bytes=1,
        entry=entry,
    )
    offsets.commit(Acknowledgement(topic_partition=entry.topic_partition, batches=(batch,), anchor=Anchor(0, 0, 0)))


class Everything:
    """A selection that leaves out what begins with `-` and cannot route what begins with `?`."""

    def __init__(self):
        self.listings = 0
        self.left = 0

    def begin_listing(self):
        self.listings += 1
        self.left = 0

    def partition_for(self, native, *, started=False):
        if native.key.startswith("?"):
            raise ObjectError("no partition", location=native.location)
        if native.key.startswith("-"):
            self.left += 1
            return None
        return PARTITION

    def filtered(self):
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
        options.setdefault("numbering_options", "")
        self.feed = listing_feed(
            listing=self.listing, selection=Everything(), offsets=self.offsets, clock=self.clock, **options
        )

    def listing(self):
        self.listings += 1
        for one in list(self.objects):
            if isinstance(one, BaseException):
                raise one
            if callable(one):  # what happens while the listing goes on
                one()
                continue
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
        key = OffsetManagerKey.of_object(one.bucket, one.key)
        entry = self.offsets.get_entry(key)
        if entry is None or entry.version != one.version:
            begun = OffsetManagerEntry.start(one, PARTITION)
            entry = self.offsets.add_entry(begun.changed(generation=self.offsets.table.next_generation(key)))
        send(self.offsets, entry.advanced(records, state=state))


def test_a_listing_hands_out_every_object_once_in_order():
    rig = Rig(native("a"), native("b"), native("c"))
    assert rig.keys() == ["a", "b", "c"]
    assert rig.feed.counts.listings == 1
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


@pytest.mark.parametrize("state", ObjectState)
def test_a_position_of_before_the_size_was_part_of_a_version_without_an_etag_stays(state):
    """So it is for S3 stores that list no ETag: nothing is sent again for the new form."""
    offsets = OffsetManager()
    first = native("a", "@1717156800000", modified_ms=1_717_156_800_000)
    Rig(first, offsets=offsets).done(first, state)
    rig = Rig(attrs.evolve(first, version="@1717156800000-10"), offsets=offsets)
    taken = rig.take_all()
    if state is ObjectState.READING:
        (assignment,) = taken
        assert (assignment.entry.records_done, assignment.entry.generation) == (3, 1)
        assert assignment.native.version == assignment.entry.version == first.version
        rig.done(first)
        assert rig.next_pass() == []
    else:
        assert taken == []
    rig.objects = [native("a", "@1717156800001-10", modified_ms=1_717_156_800_001)]
    assert rig.next_pass() == ["a"]
    assert rig.offsets.get_entry(OffsetManagerKey.of_object("b", "a")).generation == 2


@pytest.mark.parametrize("state", [ObjectState.DONE, ObjectState.FAILED])
def test_a_finished_object_costs_nothing_but_its_line(state):
    rig = Rig(native("a"), native("b"))
    rig.done(native("a"), state)
    assert rig.keys() == ["b"]
    assert (rig.feed.counts.listed, rig.feed.counts.total_chosen) == (2, 1)


def test_an_unfinished_object_goes_on_from_its_position():
    rig = Rig(native("a"))
    rig.done(native("a"), ObjectState.READING, 7)
    (assignment,) = rig.take_all()
    assert assignment.entry.records_done == 7


def test_a_late_key_in_front_of_all_others_is_found_by_the_next_listing():
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
    assert slow.feed.seconds_until_due == REST_FACTOR * 4.0
    assert REST_FACTOR == 10
    assert caplog.messages == [
        "a listing takes 4.0 seconds, so that the next one begins in 40: new objects are found then"
    ]


def test_what_a_listing_waited_for_without_asking_the_store_makes_no_wait_longer():
    idle = [50.0]  # of earlier passes
    rig = Rig(native("a"), native("b"), idle_seconds=lambda: idle[0])
    rig.list_seconds = 3.0
    rig.feed.take()
    idle[0] += 2.0
    rig.take_all()
    assert rig.feed.seconds_until_due == REST_FACTOR * 4.0
    assert rig.feed._listing_seconds == 4.0
    assert (rig.next_pass(), rig.next_pass()) == ([], [])
    assert rig.feed.seconds_until_due == REST_FACTOR * 6.0


def test_a_listing_that_was_held_up_once_does_not_delay_the_next_and_a_second_one_does():
    """A request that stalls for 11 seconds in an outage of the store would delay new objects by two minutes."""
    rig = Rig(native("a"), native("b"))
    rig.keys()
    rig.list_seconds = 5.5
    assert rig.next_pass() == []
    assert rig.feed._listing_seconds == 11.0
    assert rig.feed.seconds_until_due == 5.0
    assert rig.next_pass() == []
    assert rig.feed.seconds_until_due == REST_FACTOR * 11.0
    rig.list_seconds = 0.0
    assert rig.next_pass() == []
    assert rig.feed.seconds_until_due == 5.0


def test_time_that_the_reader_takes_between_two_objects_is_no_time_of_the_listing():
    rig = Rig(native("a"), native("b"))
    rig.feed.take()
    rig.clock.advance(1000)
    rig.take_all()
    assert rig.feed.seconds_until_due == 5.0


def test_nothing_is_listed_before_the_next_listing_is_due():
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


def test_once_ends_after_one_whole_listing():
    rig = Rig(native("a"), once=True)
    assert rig.feed.finished is False
    assert rig.feed.take() is not None
    assert rig.feed.finished is False
    assert rig.feed.take() is None
    assert rig.feed.finished is True
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


def test_a_stop_ends_a_listing_under_way():
    rig = Rig(native("a"), native("b"))
    rig.feed.take()
    rig.feed.stop()
    assert rig.feed.take() is None


def test_an_object_given_back_is_decided_again_with_once_at_once():
    rig = Rig(native("a"), native("b"), once=True)
    first = rig.feed.take()
    rig.objects[0] = native("a", "v2", modified_ms=2)
    rig.feed.release(first)
    assert rig.keys() == ["b"]
    assert not rig.feed.finished
    (again,) = rig.take_all()
    assert (again.native.key, again.native.version) == ("a", "v2")
    assert rig.feed.finished


def test_an_object_given_back_after_the_last_listing_makes_one_more():
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
    for _ in range(MAX_LISTINGS):
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
        assert rig.feed.counts.filtered == {NOT_GIVEN: 1}
    else:
        with pytest.raises(
            ObjectChangedError, match=r"8 times the store said .* v1 again: it does not give what it lists"
        ):
            rig.feed.take()


@pytest.mark.parametrize("once", [True, False])
def test_an_object_that_was_overwritten_in_its_version_begins_again(once):
    """Of a store that lists no ETag: the new content must not go on in the old one's position."""
    rig = Rig(native("a"), once=once)
    (first,) = rig.take_all()
    send(rig.offsets, first.entry.advanced(3))
    rig.feed.release(attrs.evolve(first, in_place=True))
    rig.clock.advance(rig.feed.seconds_until_due)
    (again,) = rig.take_all()
    assert (again.native, again.entry.records_done, again.entry.generation) == (first.native, 0, 2)
    rig.feed.release(again)  # for another reason
    rig.clock.advance(rig.feed.seconds_until_due)
    (more,) = rig.take_all()
    assert more.entry == again.entry


def test_an_object_beside_one_that_was_overwritten_in_its_version_goes_on():
    rig = Rig(native("a"), native("b"))
    first, second = rig.take_all()
    send(rig.offsets, first.entry.advanced(3))
    rig.feed.release(attrs.evolve(second, in_place=True))
    rig.feed.release(first)
    rig.clock.advance(rig.feed.seconds_until_due)
    again = [(one.native.key, one.entry.generation, one.entry.records_done) for one in rig.take_all()]
    assert again == [("a", 1, 3), ("b", 2, 0)]


@pytest.mark.parametrize("once", [True, False])
def test_an_object_of_another_content_at_each_look_is_refused(once):
    rig = Rig(native("a"), once=once)
    for generation in range(1, MAX_LISTINGS + 1):
        (assignment,) = rig.take_all()
        assert assignment.entry.generation == generation
        rig.feed.release(attrs.evolve(assignment, in_place=True))
        rig.clock.advance(rig.feed.seconds_until_due)
    with pytest.raises(ObjectChangedError, match=f"{MAX_LISTINGS} times the store said"):
        rig.take_all()


def test_splits_of_an_object_that_was_overwritten_in_its_version_begin_again_together():
    rig = Rig(native("a", size=25), split_policy=splitting(10))
    first, second, third = rig.take_all()
    rig.feed.release(attrs.evolve(second, in_place=True))
    assert rig.next_pass() == []  # the reader holds others of the old content
    send(rig.offsets, first.entry.advanced(2, state=ObjectState.DONE))
    rig.feed.release(third)
    rig.clock.advance(rig.feed.seconds_until_due)
    again = rig.take_all()
    assert [(one.entry.split_number, one.entry.generation) for one in again] == [(1, 2), (2, 2), (3, 2)]


def test_a_new_version_of_an_object_that_was_overwritten_in_its_version_is_read_once():
    rig = Rig(native("a"))
    (first,) = rig.take_all()
    rig.feed.release(attrs.evolve(first, in_place=True))
    rig.objects = [native("a", "v2", modified_ms=2)]
    rig.clock.advance(rig.feed.seconds_until_due)
    (again,) = rig.take_all()
    rig.feed.release(again)
    rig.clock.advance(rig.feed.seconds_until_due)
    (more,) = rig.take_all()
    assert (more.entry.version, more.entry.generation) == ("v2", again.entry.generation)


def test_one_that_is_overwritten_again_and_again_is_read_without_a_pause():
    rig = Rig(native("a", "v0"), once=True)
    for number in range(1, 3 * MAX_LISTINGS):
        taken = rig.feed.take()
        rig.objects[0] = native("a", f"v{number}", modified_ms=number)
        rig.feed.release(taken)
        assert rig.feed.take() is None
        assert rig.feed.seconds_until_due == 0
    assert rig.keys() == ["a"]


def test_splits_of_one_object_that_come_back_count_once_a_listing():
    rig = Rig(native("a", size=25), split_policy=splitting(), once=True)
    for _ in range(MAX_LISTINGS - 1):
        for taken in rig.take_all():
            rig.feed.release(taken)
        rig.clock.advance(rig.feed.seconds_until_due)
    assert len(rig.take_all()) == 3


def test_an_object_that_is_gone_makes_no_listing():
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


def test_once_makes_no_listing_for_an_archived_object_alone():
    rig = Rig(native("a"), once=True)
    (taken,) = rig.take_all()
    rig.feed.release(attrs.evolve(taken, archived=True))
    assert (rig.next_pass(), rig.listings) == ([], 1)


def test_each_archived_object_is_told_once_up_to_a_maximum(caplog, monkeypatch):
    cold = attrs.evolve(native("b"), storage_class="GLACIER")
    rig = Rig(native("a"), cold, native("c"), native("d"))
    monkeypatch.setattr("framework.discovery.new_objects.MAX_LOGGED", 3)

    def archived_again():
        taken = rig.take_all()
        for one in taken:
            rig.feed.release(attrs.evolve(one, archived=True))
        rig.clock.advance(rig.feed.seconds_until_due)
        return len(taken)

    assert [archived_again(), archived_again()] == [4, 4]
    rest = "and waited for: it is tried again after each listing until it is restored"
    assert caplog.messages == [
        f"{native('a').location} is archived {rest}",
        f"{cold.location} is archived (GLACIER) {rest}",
        f"{native('c').location} is archived {rest}",
        "more objects are archived and waited for; no line names them",
    ]


def test_what_is_left_out_is_counted_for_each_listing():
    rig = Rig(native("-a"), native("b"), native("-c"))
    assert rig.keys() == ["b"]
    assert rig.feed.counts.filtered == {"minus": 2}
    rig.objects = [native("-a")]
    rig.next_pass()
    assert rig.feed.counts.filtered == {"minus": 1}
    assert rig.feed.counts.total_chosen == 1


def left(rig):
    counts = rig.feed.counts
    return counts.total_chosen, counts.total_chosen_bytes, counts.given_back


def test_an_object_that_is_given_back_counts_once_however_often_it_is_chosen():
    rig = Rig(native("a"), native("b"))
    a, _ = rig.take_all()
    for _ in range(3):
        rig.feed.release(a)
        assert left(rig) == (2, 20, 1)
        rig.clock.advance(5)
        (a,) = rig.take_all()
        assert left(rig) == (2, 20, 0)


def test_an_object_that_is_given_back_is_left_to_do_while_no_listing_ends():
    rig = Rig(native("a"), native("b"))
    a, _ = rig.take_all()
    rig.feed.release(a)
    rig.objects = [StoreUnavailableError("away")]
    for _ in range(2):
        rig.clock.advance(5)
        with pytest.raises(StoreUnavailableError):
            rig.feed.take()
        assert left(rig) == (2, 20, 1)


def test_an_overwritten_object_counts_once_with_the_size_it_has_now():
    rig = Rig(native("a"), native("b"))
    a, _ = rig.take_all()
    rig.feed.release(a)
    rig.objects = [native("a", "v2", size=300, modified_ms=2), native("b")]
    assert rig.next_pass() == ["a"]
    assert left(rig) == (2, 310, 0)


def test_what_no_listing_shows_again_is_not_left_to_do():
    rig = Rig(native("a"), native("b"), native("c"))
    a, b, c = rig.take_all()
    rig.feed.release(a, gone=True)
    assert left(rig) == (2, 20, 0)
    rig.feed.release(attrs.evolve(b, archived=True), gone=True)
    assert left(rig) == (1, 10, 0)
    assert rig.next_pass() == ["a", "b"]
    assert left(rig) == (3, 30, 0)
    rig.feed.release(c)
    rig.objects = [native("a"), native("b")]
    assert rig.next_pass() == []
    assert left(rig) == (2, 20, 0)


def test_what_is_given_back_while_a_listing_goes_on_waits_for_the_next_one():
    rig = Rig(native("a"), native("b"), native("c"))
    a = rig.feed.take()
    rig.feed.release(a)
    assert rig.keys() == ["b", "c"]
    assert left(rig) == (3, 30, 1)
    assert rig.next_pass() == ["a"]
    assert left(rig) == (3, 30, 0)


def test_the_splits_of_an_object_count_when_each_is_given_back():
    rig = Rig(native("a", size=100), split_policy=SplitPolicy(split_size=40, can_split=lambda _: True))
    splits = rig.take_all()
    for split in splits[:2]:
        rig.feed.release(split)
    assert left(rig) == (3, 100, 2)
    rig.clock.advance(5)
    assert len(rig.take_all()) == 2
    assert left(rig) == (3, 100, 0)


def test_a_name_without_a_partition_stops_or_is_counted():
    with pytest.raises(ObjectError, match="no partition"):
        Rig(native("?a")).feed.take()
    tolerant = Rig(native("?a"), native("b"), tolerant=True)
    assert tolerant.keys() == ["b"]
    assert tolerant.feed.counts.filtered == {"refused for its name": 1}


def test_a_listing_that_broke_is_no_complete_listing():
    rig = Rig(native("a"), StoreUnavailableError("away"), once=True)
    assert rig.feed.take().native.key == "a"
    with pytest.raises(StoreUnavailableError):
        rig.feed.take()
    assert not rig.feed.finished
    assert rig.feed.counts.listings == 0
    rig.objects = [native("a"), native("b")]
    assert rig.keys() == ["b"]
    assert rig.feed.finished


@pytest.mark.parametrize("how", ["filtered", "refused", "overwritten in hand", "finished, and not yet saved"])
def test_an_object_that_is_listed_is_not_missing_whatever_is_decided_about_it(how):
    one = native({"filtered": "-a", "refused": "?a"}.get(how, "a"))
    rig = Rig(one, tolerant=True)
    if how == "overwritten in hand":
        rig.take_all()
        rig.objects = [native("a", "v2", modified_ms=2)]
        rig.clock.advance(5)
    elif how == "finished, and not yet saved":
        begun = OffsetManagerEntry.start(one, PARTITION)
        rig.offsets.add_entry(begun.changed(records_done=3, records_saved=1, total=3))
    else:
        rig.done(one, ObjectState.READING)
    tracker = rig.offsets.tracker
    tracker.open(60_000)
    tracker.begin_listing("", "", in_order=True)
    tracker.start_at(100_000)
    assert rig.take_all() == []
    tracker.complete(whole=True)
    assert [entry.missing_since_ms for entry in rig.offsets.table.entries()] == [0]


# ---- positions that begin


def test_what_is_handed_out_has_begun_and_is_not_stored_yet():
    rig = Rig(native("a", modified_ms=77), native("b"), numbering_options='{"format":"jsonl"}')
    (first, _) = rig.take_all()
    assert first.entry == rig.offsets.get_entry(first.entry.get_manager_key())
    assert (first.entry.generation, first.entry.modified_ms, first.entry.numbering_options) == (
        1,
        77,
        '{"format":"jsonl"}',
    )
    assert [one.key for one in rig.offsets.flush().entries] == []  # a beginning is no progress
    assert not rig.offsets.dirty


def test_a_version_that_is_restored_is_read_again_in_a_generation_of_its_own():
    """An overwritten object that gets its former version back: what is in the topic of it is of an earlier generation."""
    rig = Rig()
    seen = []
    for version, modified_ms in [("v1", 5), ("v2", 9), ("v1", 5)]:
        rig.objects = [native("a", version, modified_ms=modified_ms)]
        rig.clock.advance(5)
        (taken,) = rig.take_all()
        seen.append((taken.entry.version, taken.entry.generation, taken.entry.records_done))
        rig.done(taken.native)
    assert seen == [("v1", 1, 0), ("v2", 2, 0), ("v1", 3, 0)]


def test_an_object_whose_tail_a_killed_server_forgot_is_handed_out_again_from_where_the_topic_ends():
    rig = Rig(native("a"), native("b"))
    for one, there in [("a", 2), ("b", 5)]:
        entry = OffsetManagerEntry.start(native(one), PARTITION).changed(records_done=5, total=5)
        rig.offsets.add_entry(entry.recovered(there))
    (taken,) = rig.take_all()
    assert (taken.native.key, taken.entry.records_done, taken.entry.total) == ("a", 2, 5)


ours, theirs = canonical_options({"format": "jsonl"}), canonical_options({"format": "csv"})


def begun_under_other_options(records, *, splits=0, accepted=False):
    offsets = OffsetManager()
    start = OffsetManagerEntry.start(native("a"), PARTITION, theirs).changed(may_begin_again=accepted)
    if splits:
        offsets.add_entry(
            *(
                start.changed(split_number=split_number, split_size=4, topic_partition=partition_of(split_number))
                for split_number in range(1, splits + 1)
            )
        )
        start = offsets.get_entry(OffsetManagerKey.of_object("b", "a").of_split(splits))
    else:
        offsets.add_entry(start)
    if records:
        send(offsets, start.advanced(records))
    return offsets


@pytest.mark.parametrize("what", ["key", "version"])
def test_an_object_whose_key_or_version_fits_into_no_message_is_refused(what):
    limit = {"key": new_objects.MAX_KEY_CHARACTERS, "version": new_objects.MAX_VERSION_CHARACTERS}[what]
    fits, too_long = (attrs.evolve(native("a"), **{what: "x" * length}) for length in (limit, limit + 1))
    assert len(Rig(fits).take_all()) == 1
    with pytest.raises(ObjectError, match=f"its {what} has {limit + 1:,} characters"):
        Rig(too_long).take_all()
    assert Rig(too_long, native("b"), tolerant=True).keys() == ["b"]


@pytest.mark.parametrize("splits", [0, 3])
def test_an_object_half_read_with_other_options_is_refused(splits):
    offsets = begun_under_other_options(3, splits=splits)
    before = list(offsets.table.entries())
    with pytest.raises(PositionMismatchError, match="csv"):
        Rig(native("a"), offsets=offsets, numbering_options=ours).feed.take()
    assert list(offsets.table.entries()) == before


@pytest.mark.parametrize("split_size", [None, 3, 4])
@pytest.mark.parametrize(("records", "accepted"), [(0, False), (0, True), (3, True)])
@pytest.mark.parametrize("splits", [0, 3])
def test_an_object_of_which_nothing_was_sent_or_when_that_is_accepted_begins_again(
    splits, records, accepted, split_size
):
    offsets = begun_under_other_options(records, splits=splits, accepted=accepted)
    split_policy = splitting(split_size) if split_size else SplitPolicy()
    taken = Rig(native("a"), offsets=offsets, numbering_options=ours, split_policy=split_policy).take_all()
    assert {(one.entry.generation, one.entry.numbering_options, one.entry.records_done) for one in taken} == {
        (2, ours, 0)
    }
    assert len(taken) == (-(-10 // split_size) if split_size else 1)
    assert sorted(offsets.table.entries(), key=lambda one: one.split_number) == [one.entry for one in taken]


def test_what_is_finished_depends_on_nothing_any_more():
    offsets = begun_under_other_options(0)
    send(offsets, offsets.get_entry(OffsetManagerKey.of_object("b", "a")).advanced(4, state=ObjectState.DONE))
    assert Rig(native("a"), offsets=offsets, numbering_options=ours).take_all() == []


def test_a_position_that_says_nothing_of_options_goes_on_under_any():
    offsets = OffsetManager()
    offsets.add_entry(OffsetManagerEntry(bucket="b", key="a", version="v1", records_done=3, topic_partition=PARTITION))
    (assignment,) = Rig(native("a"), offsets=offsets, numbering_options=ours).take_all()
    assert (assignment.entry.records_done, assignment.entry.generation) == (3, 1)


def test_memory_for_what_was_handed_out_does_not_grow_with_the_listings():
    rig = Rig()
    for number in range(3):
        rig.objects = [native(f"{number}/{key:05}") for key in range(2_001)]
        for assignment in rig.take_all():
            rig.done(assignment.native)
        rig.clock.advance(5)
    assert len(rig.feed._objects.in_flight) <= 2_001


# ---- shares of split objects


def partition_of(split_number, partitions=3):
    return TopicPartition("t", (split_number - 1) % partitions)


def splitting(size=10, partitions=3):
    return SplitPolicy(split_size=size, partitions=partitions, can_split=lambda key: not key.endswith(".gz"))


def splits_of(assignments):
    return [
        (one.native.key, one.entry.split_number, one.entry.split_size, one.entry.topic_partition) for one in assignments
    ]


def finish(rig, assignment, records=3):
    send(rig.offsets, assignment.entry.advanced(records, state=ObjectState.DONE))


def test_a_large_object_is_handed_out_split_by_split_each_in_a_partition_of_its_own():
    rig = Rig(
        native("a", size=9),
        native("b", size=31),
        native("c.gz", size=99),
        native("d", size=10),
        split_policy=splitting(),
    )
    taken = rig.take_all()
    assert splits_of(taken) == [
        ("a", 0, 0, PARTITION),
        *[("b", split_number, 10, partition_of(split_number)) for split_number in (1, 2, 3, 4)],
        ("c.gz", 0, 0, PARTITION),
        ("d", 0, 0, PARTITION),
    ]
    assert [one.size_bytes for one in taken] == [9, 10, 10, 10, 1, 99, 10]
    counts = rig.feed.counts
    assert (counts.listed, counts.total_chosen, counts.total_chosen_bytes) == (4, 7, 149)


def test_a_later_listing_hands_out_the_splits_that_are_neither_finished_nor_in_hand():
    rig = Rig(native("a", size=45), split_policy=splitting())
    taken = rig.take_all()
    finish(rig, taken[1])
    rig.feed.release(taken[2])
    assert rig.next_pass() == ["a"]
    assert rig.next_pass() == []
    for one in taken:
        finish(rig, one)
    assert rig.next_pass() == []


def test_a_split_that_ends_between_two_takes_of_a_listing_is_not_handed_out_again():
    """A leader of several tasks takes no more while too much is out, and workers go on."""
    rig = Rig(native("a", size=25), split_policy=splitting())
    first, second, _ = rig.take_all()
    rig.feed.release(first)
    rig.clock.advance(rig.feed.seconds_until_due)
    assert rig.feed.take().entry.split_number == 1
    finish(rig, second)
    rig.feed.complete(second)
    assert rig.feed.take() is None


@pytest.mark.parametrize("size", [25, 1], ids=["split", "whole"])
def test_what_ends_while_a_listing_decides_about_it_is_not_handed_out_again(size, monkeypatch):
    """The listing has read its position by then; a leader hears of a worker's progress in another thread."""
    rig = Rig(native("a", size=size), split_policy=splitting())
    handed_out = rig.take_all()
    decide = rig.feed._objects._is_done

    def end_and_decide(*arguments, **options):
        done = decide(*arguments, **options)
        for taken in handed_out:
            finish(rig, taken)
            rig.feed.complete(taken)
        return done

    monkeypatch.setattr(rig.feed._objects, "_is_done", end_and_decide)
    assert rig.next_pass() == []


KEYED = canonical_options({"format": "jsonl", "partition_by": "customer", "partition_rule": "1"})


def by_key(partitions=3):
    return {"split_policy": SplitPolicy(partitions=partitions, by_key=True), "numbering_options": KEYED}


def test_an_object_that_is_divided_by_key_has_a_part_in_every_partition():
    rig = Rig(native("a", size=10), native("b", size=0), **by_key())
    taken = rig.take_all()
    assert splits_of(taken) == [
        (key, number, -3, TopicPartition("t", number - 1)) for key in "ab" for number in (1, 2, 3)
    ]
    counts = rig.feed.counts
    assert (counts.listed, counts.total_chosen, counts.total_chosen_bytes) == (2, 2, 10)
    finish(rig, taken[1])
    rig.feed.release(taken[2])
    assert rig.next_pass() == ["a"]
    more = Rig(native("a", size=10), native("c", size=4), offsets=rig.offsets, **by_key(5)).take_all()
    assert splits_of(more) == [("a", number, -3, TopicPartition("t", number - 1)) for number in (1, 3)] + [
        ("c", number, -5, TopicPartition("t", number - 1)) for number in range(1, 6)
    ]


@pytest.mark.parametrize(
    "division",
    [by_key(), {"split_policy": SplitPolicy(split_size=4, can_split=lambda _: True)}],
    ids=["parts", "splits"],
)
def test_an_object_is_done_before_once_each_part_of_it_is(division):
    rig = Rig(native("a", size=10), **division)
    taken = rig.take_all()
    for assignment in taken[:-1]:
        finish(rig, assignment)
    again = Rig(native("a", size=10), offsets=rig.offsets, **division)
    assert len(again.take_all()) == 1
    assert again.feed.counts.done_before == 0
    finish(rig, taken[-1])
    last = Rig(native("a", size=10), offsets=rig.offsets, **division)
    assert last.take_all() == []
    assert last.feed.counts.done_before == 1


def test_an_object_of_which_nothing_was_sent_yet_is_not_begun_again_under_the_same_options():
    options = canonical_options({"format": "jsonl"})
    offsets = OffsetManager()
    begun = offsets.add_entry(OffsetManagerEntry.start(native("a"), PARTITION, options))
    (assignment,) = Rig(native("a"), offsets=offsets, numbering_options=options).take_all()
    assert assignment.entry == begun


@pytest.mark.parametrize("before", ["", canonical_options({"format": "jsonl"})], ids=["no options", "whole"])
@pytest.mark.parametrize("records", [0, 3])
def test_an_object_begun_whole_is_not_divided_while_it_is_half_read(before, records):
    offsets = OffsetManager()
    entry = offsets.add_entry(OffsetManagerEntry.start(native("a"), PARTITION, before))
    if records:
        send(offsets, entry.advanced(records))
    rig = Rig(native("a"), offsets=offsets, **by_key())
    if not records:
        assert splits_of(rig.take_all()) == [("a", number, -3, TopicPartition("t", number - 1)) for number in (1, 2, 3)]
        return
    with pytest.raises(PositionMismatchError, match="divides records in another way"):
        rig.feed.take()


def test_an_object_that_is_half_read_is_not_read_without_its_keys():
    offsets = OffsetManager()
    parts = Rig(native("a"), offsets=offsets, **by_key()).take_all()
    send(offsets, parts[1].entry.advanced(2))
    with pytest.raises(PositionMismatchError, match="2 records were read") as refused:
        Rig(native("a"), offsets=offsets, numbering_options=canonical_options({"format": "jsonl"})).feed.take()
    assert "Set [input] and [[transforms]] back" in str(refused.value)


@pytest.mark.parametrize("size", [None, 7, 1000])
def test_an_object_begun_in_splits_keeps_its_cut(size):
    offsets = OffsetManager()
    first = Rig(native("a", size=45), split_policy=splitting(), offsets=offsets)
    taken = first.take_all()
    for number in (0, 3):
        send(offsets, taken[number].entry.advanced(2))
    finish(first, taken[1])
    again = Rig(
        native("a", size=45), split_policy=splitting(size) if size else SplitPolicy(partitions=3), offsets=offsets
    ).take_all()
    assert splits_of(again) == [("a", split_number, 10, partition_of(split_number)) for split_number in (1, 3, 4, 5)]
    assert [one.entry.records_done for one in again] == [2, 0, 2, 0]


@pytest.mark.parametrize("state", [ObjectState.READING, ObjectState.DONE])
def test_an_object_begun_whole_stays_whole(state):
    rig = Rig(native("a", size=45), split_policy=splitting())
    rig.done(native("a", size=45), state=state)
    assert splits_of(rig.take_all()) == ([("a", 0, 0, PARTITION)] if state is ObjectState.READING else [])


def test_all_splits_of_a_new_version_are_of_the_next_generation():
    rig = Rig(native("a", size=25), split_policy=splitting())
    for one in rig.take_all():
        finish(rig, one)
    rig.objects = [native("a", "v2", size=35)]
    rig.clock.advance(5)
    taken = rig.take_all()
    assert [(one.entry.split_number, one.entry.generation, one.entry.records_done) for one in taken] == [
        (split_number, 2, 0) for split_number in (1, 2, 3, 4)
    ]
    # of another process: they have begun, and do not begin a second time
    finish(rig, taken[2])
    other = Rig(native("a", "v2", size=35), split_policy=splitting(), offsets=rig.offsets)
    assert [(one.entry.split_number, one.entry.generation) for one in other.take_all()] == [(1, 2), (2, 2), (4, 2)]


def test_a_version_that_comes_back_is_read_in_all_its_splits():
    rig = Rig(native("a", size=25), split_policy=splitting())
    for version in ("v1", "v2", "v1"):
        rig.objects = [native("a", version, size=25)]
        rig.clock.advance(5)
        taken = rig.take_all()
        assert [one.entry.split_number for one in taken] == [1, 2, 3]
        for one in taken:
            finish(rig, one)
    assert {one.entry.generation for one in taken} == {3}


@pytest.mark.parametrize("size", [10, 25, 45])
def test_a_newer_version_waits_until_no_split_of_the_older_one_is_in_hand(size):
    rig = Rig(native("a", size=25), split_policy=splitting())
    taken = rig.take_all()
    rig.objects = [native("a", "v2", size=size)]
    for one in taken[::-1]:
        assert rig.next_pass() == []
        finish(rig, one)
    assert len(rig.next_pass()) == -(-size // 10)


def test_with_once_a_version_deferred_for_an_older_one_that_came_back_is_still_read():
    rig = Rig(native("a", size=25), split_policy=splitting(), once=True)
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


def test_with_once_a_version_deferred_for_an_older_one_that_is_read_to_its_end_makes_no_listing():
    """A split that a worker has finished was not released: the older version will be complete."""
    rig = Rig(split_policy=splitting(), once=True)
    taken = []

    def end_of_first_split():
        finish(rig, taken[0])
        rig.feed.complete(taken[0])

    rig.objects = [native("a", size=25), end_of_first_split, native("a", "v2", size=25)]
    taken += [rig.feed.take() for _ in range(3)]
    assert rig.take_all() == []
    assert rig.feed.finished


def test_gone_splits_do_not_keep_a_source_going():
    rig = Rig(native("a", size=25), split_policy=splitting(), once=True)
    taken = rig.take_all()
    rig.objects = []
    for one in taken:
        rig.feed.release(one, gone=True)
    assert rig.feed.finished


def test_a_split_read_with_other_options_refuses_the_whole_object():
    rig = Rig(native("a", size=25), split_policy=splitting(), numbering_options='{"format":"text"}')
    finish(rig, rig.take_all()[1], records=0)
    other = Rig(
        native("a", size=25), split_policy=splitting(), numbering_options='{"format":"jsonl"}', offsets=rig.offsets
    )
    with pytest.raises(PositionMismatchError, match="b/a"):
        other.take_all()


def test_too_many_splits_are_an_error_that_names_the_option():
    rig = Rig(native("a", size=3 << 24), split_policy=splitting(2))
    with pytest.raises(ObjectError, match=r"25,165,824 splits.*split_size"):
        rig.take_all()
    assert Rig(native("a", size=3 << 24), native("b"), split_policy=splitting(2), tolerant=True).keys() == ["b"] * 5


def test_memory_for_what_was_handed_out_does_not_grow_within_a_listing():
    rig = Rig(*[native(f"{key:05}") for key in range(5_000)])
    most = 0
    for _ in range(5_000):
        rig.done(rig.feed.take().native)
        most = max(most, len(rig.feed._objects.in_flight))
    assert most <= 1000
    assert rig.take_all() == []


def test_what_is_in_the_readers_hands_is_kept_however_much_is_finished(monkeypatch):
    monkeypatch.setattr("framework.discovery.splitting.PRUNE_FROM", 10)
    rig = Rig(*[native(f"{key:03}") for key in range(100)])
    held = {"003", "050"}
    for _ in range(100):
        taken = rig.feed.take().native
        if taken.key not in held:
            rig.done(taken)
    assert len(rig.feed._objects.in_flight) < 20
    assert rig.next_pass() == []
    rig.objects = [native(key, "v2") for key in held]
    assert rig.next_pass() == []


# ---- what an assignment and a feed say by themselves


@pytest.mark.parametrize(
    ("size", "mark", "split", "total", "left"),
    [
        (25, None, (0, 0), 25, 25),
        (25, 7, (0, 0), 25, 18),
        (5, 7, (0, 0), 5, 0),  # the object became shorter
        (25, None, (2, 10), 10, 10),
        (25, 13, (2, 10), 10, 7),
        (25, None, (3, 10), 5, 5),
        (25, None, (2, -5), 5, 5),
        (25, 10, (2, -5), 5, 3),  # a part, of which the records lie all over the object
    ],
)
def test_what_is_left_of_an_object_or_a_split_counts_from_where_it_resumes(size, mark, split, total, left):
    entry = OffsetManagerEntry.start(native("a"), PARTITION)
    point = ResumePoint(3, mark) if mark is not None else None
    entry = entry.changed(mark=point, split_number=split[0], split_size=split[1])
    given = Assignment(native=native("a", size=size), entry=entry)
    assert (given.size_bytes, given.bytes_left) == (total, left)


def test_a_feed_that_is_left_ends_the_listing_that_it_has_begun():
    ended = []

    def pages():
        try:
            yield native("a")
            yield native("b")
        finally:
            ended.append(True)

    listing = pages()
    feed = listing_feed(
        listing=lambda: listing,
        selection=Everything(),
        offsets=OffsetManager(),
        numbering_options="",
        poll_interval_seconds=5.0,
    )
    assert feed.take().native.key == "a"
    assert not ended
    for _ in range(2):
        feed.leave()
        assert ended == [True]


class Bare(ObjectFeed):
    """A feed with nothing but its abstract methods."""

    finished = True

    def take(self):
        return None

    def release(self, assignment, *, gone=False):
        pass

    def stop(self):
        pass


class Stop(threading.Event):
    """One that tells for how long it was waited for, and does not wait."""

    waited = ()

    def wait(self, timeout=None):
        self.waited = (*self.waited, timeout)
        return True


def test_a_feed_that_cannot_tell_waits_as_long_as_it_is_asked_to_or_until_the_stop():
    stop = Stop()
    Bare().wait(3.5, stop)
    Bare().wait(3.5, None)
    Bare().leave()
    assert stop.waited == (3.5,)
    assert Bare().seconds_until_due == 0.0


def test_without_a_format_that_can_be_read_from_the_middle_nothing_is_split():
    assert SplitPolicy(split_size=10).size_for(native("a", size=100)) == 0


# ---- objects that somebody else chose


def assignment(key):
    return Assignment(native=native(key), entry=OffsetManagerEntry.start(native(key), PARTITION))


def test_a_handed_feed_gives_what_it_was_given_and_ends_when_closed():
    feed = AssignedFeed([assignment("a")])
    feed.give([assignment("b")])
    assert [feed.take().native.key, feed.take().native.key, feed.take()] == ["a", "b", None]
    assert not feed.finished
    feed.close()
    assert feed.finished


def test_a_handed_feed_tells_of_what_comes_back():
    told = []
    feed = AssignedFeed(on_release=lambda given, gone: told.append((given.native.key, gone)))
    feed.release(assignment("a"), gone=True)
    feed.release(assignment("b"))
    assert told == [("a", True), ("b", False)]


@pytest.mark.parametrize("end", ["give", "close", "stop"])
def test_waiting_for_a_handed_feed_ends_when_something_happens(end):
    feed = AssignedFeed()
    waiter = threading.Thread(target=feed.wait, args=(60.0, None))
    waiter.start()
    feed.give([assignment("a")]) if end == "give" else getattr(feed, end)()
    waiter.join(30)
    assert not waiter.is_alive()


def test_waiting_for_a_handed_feed_ends_at_once_when_the_task_was_stopped_already():
    stop = threading.Event()
    stop.set()
    feed = AssignedFeed()
    waiter = threading.Thread(target=feed.wait, args=(60.0, stop), daemon=True)
    waiter.start()
    waiter.join(30)
    alive = waiter.is_alive()
    feed.stop()
    assert not alive


# ---- order


def by_number(native):
    return int(native.key.rpartition("-")[2]), native.key


def test_with_an_order_the_objects_of_a_listing_come_in_it_however_they_were_listed():
    rig = Rig(native("t-10"), native("t-2"), native("-t-1"), native("t-1"), native("u-1"), order=by_number)
    assert rig.keys() == ["t-1", "u-1", "t-2", "t-10"]
    assert (rig.feed.counts.listings, rig.feed.counts.listed, rig.feed.counts.total_chosen) == (1, 5, 4)
    assert rig.next_pass() == []


def test_with_an_order_objects_of_the_same_place_come_as_they_were_listed():
    rig = Rig(native("b"), native("c"), native("a"), order=lambda native: (native.key == "b",))
    assert rig.keys() == ["c", "a", "b"]


def test_with_an_order_a_listing_that_breaks_off_gives_nothing_and_the_next_gives_all():
    rig = Rig(native("t-10"), StoreUnavailableError("away"), native("t-2"), order=by_number)
    with pytest.raises(StoreUnavailableError):
        rig.feed.take()
    rig.objects.pop(1)
    assert rig.keys() == ["t-2", "t-10"]


def test_with_an_order_only_what_was_taken_is_in_the_readers_hands():
    rig = Rig(native("t-10"), native("t-2"), order=by_number, once=True)
    first = rig.feed.take()
    assert first.native.key == "t-2"
    rig.done(native("t-2"))
    rig.feed.stop()
    again = Rig(native("t-10"), native("t-2"), order=by_number, offsets=rig.offsets)
    assert again.keys() == ["t-10"]


def test_with_an_order_a_released_object_comes_in_the_next_listing():
    rig = Rig(native("t-10"), native("t-2"), order=by_number)
    taken = rig.take_all()
    rig.feed.release(taken[0])
    assert rig.next_pass() == ["t-2"]


def test_with_an_order_an_object_that_a_listing_shows_twice_is_handed_out_once():
    rig = Rig(native("t-2"), native("t-10"), native("t-2"), order=by_number)
    assert rig.keys() == ["t-2", "t-10"]


def test_with_an_order_the_version_that_a_listing_showed_last_is_handed_out():
    rig = Rig(native("t-2", "v1"), native("t-10"), native("t-2", "v2"), order=by_number)
    assert [(taken.native.key, taken.entry.version) for taken in rig.take_all()] == [("t-2", "v2"), ("t-10", "v1")]


def test_with_an_order_what_ends_while_its_listing_goes_on_is_not_handed_out_again():
    rig = Rig(native("t-2"), order=by_number)
    (taken,) = rig.take_all()

    def end():
        rig.done(native("t-2"))
        rig.feed.complete(taken)

    rig.objects = [native("t-2"), end, native("t-10")]
    assert rig.next_pass() == ["t-10"]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"version": None}, "version None, which must be str"),
        ({"version": 7}, "version 7, which must be str"),
        ({"version": ""}, "version '', which must not be empty: an overwritten object would look unchanged"),
        ({"size": -1}, "size -1, which must not be below 0"),
        ({"size": None}, "size None, which must be int"),
        ({"size": "10"}, "size '10', which must be int"),
        ({"modified_ms": None}, "modified_ms None, which must be int"),
        (
            {"modified_ms": 1_700_000_000},
            "modified_ms 1700000000, which are seconds: milliseconds since 1970 are needed",
        ),
        (
            {"modified_ms": 1_700_000_000_000_000},
            "modified_ms 1700000000000000, which are microseconds or nanoseconds: milliseconds since 1970 are needed",
        ),
        ({"modified_ms": 1.5}, "modified_ms 1.5, which must be int"),
    ],
)
def test_an_object_that_is_listed_wrongly_ends_the_run_and_is_not_done(given, shown):
    rig = Rig(attrs.evolve(native("a"), **given))
    with pytest.raises(ListingError, match=f"^b/a: the listing shows the {shown}"):
        rig.feed.take()
    assert rig.feed.counts.done_before == 0


def test_a_key_that_fits_into_no_message_is_refused_with_its_length():
    assert Rig(native("k" * 10_000)).keys() == ["k" * 10_000]
    with pytest.raises(
        ObjectError, match="its key has 10,001 characters; with more than 10,000 it fits into no message"
    ) as refused:
        Rig(native("k" * 10_001)).feed.take()
    assert len(refused.value.location) == 300


def test_something_else_than_an_object_in_a_listing_is_named():
    with pytest.raises(ListingError, match="the listing shows tuple, not a NativeObject"):
        Rig(("a", 10)).feed.take()


@pytest.mark.parametrize("order", [None, lambda native: native.key])
def test_none_in_a_listing_is_not_its_end(order):
    rig = Rig(native("a"), None, native("b"), order=order, once=True)
    with pytest.raises(ListingError, match="the listing shows NoneType, not a NativeObject"):
        list(iter(rig.feed.take, None))
    assert rig.feed.counts.listings == 0


def test_a_listing_that_is_none_is_named():
    rig = Rig(native("a"))
    rig.feed._listing = lambda: None
    with pytest.raises(ListingError, match="get_native_item_stream returned NoneType, not an iterator"):
        rig.feed.take()


def test_an_object_that_is_done_and_not_yet_saved_for_good_counts_as_done_before():
    one = native("a")
    rig = Rig(one)
    begun = OffsetManagerEntry.start(one, PARTITION)
    rig.offsets.add_entry(begun.changed(generation=1, records_done=3, records_saved=1, total=3))
    assert rig.keys() == []
    assert rig.feed.counts.done_before == 1


def test_objects_that_were_done_before_a_run_are_counted_by_its_first_listing_alone():
    objects = [native("a"), native("b"), native("c")]
    rig = Rig(*objects)
    for one in objects[:2]:
        rig.done(one)
    assert rig.keys() == ["c"]
    assert rig.feed.counts.done_before == 2
    rig.done(objects[2])
    assert rig.next_pass() == []
    assert rig.feed.counts.done_before == 2
