"""The listing side of several tasks: what is out is on the books until it is settled or released."""

import threading

import pytest

from framework.engine.listing_thread import ListingThread
from framework.errors import AccessDeniedError
from framework.iterator.store_iterator import StoreRecordIterator
from framework.model.objects import ObjectState
from tests.support.core import iterator_over, store_of


class Leader:
    """Waits on the lock that it shares with its listing thread, as engines do."""

    def __init__(self, store, *, most=100, once=True, **options):
        self.changed = threading.Condition()
        self.iterator = iterator_over(store, once=once, **options)
        self.listing = ListingThread(self.iterator, self.changed, most=most)
        self.listing.start()

    def take(self, count):
        taken = []
        with self.changed:
            assert self.changed.wait_for(lambda: taken.extend(self.listing.take()) or len(taken) >= count, 10)
        return taken

    def wait(self, check):
        with self.changed:
            return self.changed.wait_for(check, 10)

    def complete(self, *assignments):
        for one in assignments:
            self.iterator.offsets.add_entry(one.entry.advanced(1, state=ObjectState.DONE))
            assert self.listing.complete(one.entry) is one

    def close(self):
        self.listing.end()
        self.iterator.close()


@pytest.fixture
def lead(request):
    def make(*args, **options):
        leader = Leader(*args, **options)
        request.addfinalizer(leader.close)
        return leader

    return make


def keys(assignments):
    return [one.native.key for one in assignments]


def test_it_is_finished_when_everything_is_final(lead):
    leader = lead(store_of(a=1, b=2, c=3))
    taken = leader.take(3)
    assert keys(taken) == ["a", "b", "c"]
    leader.complete(*taken[:2])
    assert leader.wait(lambda: leader.listing.idle)
    assert not leader.listing.finished
    leader.complete(taken[2])
    assert leader.listing.finished
    assert leader.listing.counts.listed == 3


def test_settling_what_is_not_out_says_so(lead):
    leader = lead(store_of(a=1))
    [one] = leader.take(1)
    assert leader.listing.complete(one.entry.changed(generation=2)) is None  # of another version, say
    assert leader.listing.complete(one.entry.advanced(1)) is one  # as it is when it is finished
    assert leader.listing.complete(one.entry) is None


def test_no_more_are_out_than_allowed(lead):
    leader = lead(store_of(a=1, b=1, c=1, d=1), most=2)
    first = leader.take(2)
    assert leader.wait(lambda: leader.listing.idle)
    assert leader.listing.take() == []
    leader.complete(first[0])
    assert keys(leader.take(1)) == ["c"]


def test_what_comes_back_is_found_by_another_listing(lead):
    store = store_of(a=1, b=1)
    leader = lead(store)
    one, two = leader.take(2)
    leader.complete(two)
    leader.listing.release(one, gone=False)
    assert not leader.listing.finished
    assert keys(leader.take(1)) == ["a"]


def test_what_is_gone_is_not_waited_for(lead):
    store = store_of(a=1)
    leader = lead(store)
    [one] = leader.take(1)
    leader.listing.release(one, gone=True)
    assert leader.wait(lambda: leader.listing.finished)


def test_a_finished_object_whose_position_falls_back_is_assigned_again_and_lets_the_next_version_begin(lead):
    """Its last records left no message, and the next opening of the partition finds fewer than were counted."""
    store = store_of(a=1)
    leader = lead(store, once=False, poll_interval=0.01)
    [one] = leader.take(1)
    leader.complete(one)
    leader.iterator.offsets.add_entry(one.entry)
    [again] = leader.take(1)
    assert again.entry == one.entry
    leader.complete(again)
    leader.iterator.offsets.add_entry(one.entry)
    store.put("a", b"other\n")
    while (found := leader.take(1)[0]).native.version == one.native.version:
        leader.complete(found)
    assert found.entry.generation == 2


def test_the_end_of_a_version_that_is_told_late_leaves_the_next_version_in_hand(lead):
    """Its position is finished, and the leader has not yet come to say so."""
    store = store_of(a=1)
    leader = lead(store, once=False, poll_interval=0.01)
    [one] = leader.take(1)
    leader.iterator.offsets.add_entry(one.entry.advanced(1, state=ObjectState.DONE))
    store.put("a", b"other\n")
    [two] = leader.take(1)
    assert two.entry.generation == 2
    assert leader.listing.complete(one.entry) is one
    listings = leader.listing.counts.listings
    assert leader.wait(lambda: leader.listing.counts.listings > listings + 1)
    assert leader.listing.take() == []


def keyed_parts(parts):
    """What a leader has taken at each moment, of objects divided by key; and which object each is of."""
    return [(one.native.key, one.entry.split_number) for one in parts]


def test_the_parts_of_an_object_are_taken_together(lead):
    leader = lead(
        store_of(a=1, b=1, c=1), transforms=[{"type": "partition_by", "field": "n"}], partitions=5, format="jsonl"
    )
    taken = []
    for _ in range(1000):
        some = leader.listing.take()
        counts = {key: sum(one.native.key == key for one in some) for key in {one.native.key for one in some}}
        assert set(counts.values()) <= {5}
        taken += keyed_parts(some)
        if len(taken) == 15:
            break
        threading.Event().wait(0.01)
    assert taken == [(key, number) for key in "abc" for number in range(1, 6)]


def test_why_the_listing_ended_is_raised_where_objects_are_taken_after_what_came_before(lead):
    store = store_of(a=1, b=1)
    store.fail("list_page", AccessDeniedError("no"), skip=1, times=None)
    leader = lead(store, once=False, poll_interval=0.01)
    assert keys(leader.take(2)) == ["a", "b"]
    with pytest.raises(AccessDeniedError, match="no"):
        leader.take(1)


def test_its_end_in_the_middle_of_a_listing_ends_that_in_the_thread_that_listed(lead, monkeypatch):
    """The collector would do it in any thread, also in one that holds a lock which ending a listing needs."""
    ended_in = []

    def listed(iterator, offset):
        try:
            yield from iterator.store.list_all()
        finally:
            ended_in.append(threading.current_thread())

    monkeypatch.setattr(StoreRecordIterator, "get_native_item_stream", listed)
    leader = lead(store_of(a=1, b=1, c=1), most=1)
    leader.take(1)
    leader.listing.end()
    leader.listing._thread.join(60)
    assert ended_in == [leader.listing._thread]
