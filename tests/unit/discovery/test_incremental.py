"""Discovery mode `incremental`: cheap passes behind the highest keys that skip nothing for longer than a whole pass is away."""

import threading

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framework.discovery.deferred_keys import KINDS, MAX_DEFERRED, DeferredKeys
from framework.discovery.incremental import HOLD_SECONDS, IncrementalFeed, just_before
from framework.discovery.listing_feed import ListingFeed
from framework.discovery.new_objects import NewObjects
from framework.errors import ListingError
from framework.model.objects import ObjectState, TopicPartition
from framework.offsets.listing_hints import ListingHints
from framework.offsets.manager import OffsetManager
from framework.offsets.offset_store import MemoryOffsetStore
from framework.storage.resuming_stream import StoreInput
from framework.testing.clock import FakeClock
from framework.testing.fakes.memory_source import MemorySourceTask
from tests.support.core import drain, iterator_over, next_pass, payloads, put_lines, store_of
from tests.support.examples import examples
from tests.support.feeds import listing_feed
from tests.support.listing import native

INTERVAL = 1000.0


class Everything:
    """A selection of every object; those in `young` are put off."""

    def __init__(self):
        self.young = set()
        self.deferred = lambda native: None

    def begin_listing(self):
        pass

    def partition_for(self, one, *, started=False):
        if one.key in self.young and not started:
            self.deferred(one)
            return None
        return TopicPartition("t", 0)

    def filtered(self):
        return {}


class Source:
    """Keys, a feed over them, and positions that survive a restart."""

    def __init__(self, keys=(), *, lookback=3, prefixes=("",), base="", min_age=0.0, selection="all", once=False):
        self.versions = dict.fromkeys(keys, 1)
        self.lookback, self.prefixes, self.base, self.min_age = lookback, prefixes, base, min_age
        self.selection, self.once = selection, once
        self.clock = FakeClock()
        self.stored = MemoryOffsetStore()
        self.chosen = Everything()
        self.listed = []
        self.whole = 0
        self.key_seconds = 0.0
        self.start()

    def start(self):
        """A process: positions are loaded, nothing is in anybody's hands."""
        self.offsets = OffsetManager(self.stored)
        self.offsets.populate_offset_manager()
        self.hands = {}
        self.feed = listing_feed(
            IncrementalFeed,
            prefixes=self.prefixes,
            base=self.base,
            lookback_keys=self.lookback,
            full_listing_interval=INTERVAL,
            min_age=self.min_age,
            digest=self.selection,
            past=lambda prefix: self.offsets.hints.get(prefix) or ListingHints(of=""),
            listing=self.list_whole,
            list_behind=self.list_behind,
            time_of_day=self.clock,
            selection=self.chosen,
            offsets=self.offsets,
            numbering_options="",
            poll_interval_seconds=1,
            once=self.once,
            clock=self.clock,
        )
        self.chosen.deferred = self.feed.defer

    def list_whole(self):
        self.whole += 1
        return self.list_behind(dict.fromkeys(self.prefixes, self.base))

    def list_behind(self, starts):
        for prefix, after in starts.items():
            for key in sorted(key for key in self.versions if key.startswith(prefix) and key > after):
                self.listed.append(key)
                self.clock.advance(self.key_seconds)
                yield attrs.evolve(native(key), version=str(self.versions[key]))

    def go(self, seconds=1.0):
        """A pass, after some time: what it listed."""
        self.clock.sleep(max(seconds, self.feed.seconds_until_due))
        self.listed = []
        listings = self.feed.counts.listings
        while (assignment := self.feed.take()) is not None:
            self.hands[assignment.native.key] = assignment
        assert self.feed.counts.listings == listings + 1
        return self.listed

    def finish(self, *keys, state=ObjectState.DONE):
        """The reader is done with these, or with all that it has."""
        for key in keys or list(self.hands):
            self.offsets.add_entry(self.hands.pop(key).entry.advanced(1, state=state))
        self.offsets.flush()

    def release(self, key, *, gone=False):
        self.feed.release(self.hands.pop(key), gone=gone)

    def done(self):
        return {entry.key for entry in self.offsets.table.entries() if entry.finished}


def numbered(*numbers):
    return [f"{number:04}" for number in numbers]


HUNDRED = numbered(*range(100))


def final(**options):
    """A source whose first pass is over and done."""
    source = Source(HUNDRED, **options)
    assert source.go() == HUNDRED
    source.finish()
    return source


# ---- cheap


def test_after_a_whole_listing_only_the_look_back_is_listed_until_the_next_is_due():
    source = final()
    for _ in range(5):
        assert source.go() == HUNDRED[-3:]
    assert source.whole == 1
    assert source.go(INTERVAL) == HUNDRED
    assert source.whole == 2
    assert source.go() == HUNDRED[-3:]
    assert source.whole == 2


@pytest.mark.parametrize("kind", [ListingFeed, IncrementalFeed, NewObjects, StoreInput])
def test_an_assignment_to_what_each_object_needs_costs_no_call(kind):
    """With a converter attrs looks at each assignment, and a feed makes three for each listed object."""
    assert kind.__setattr__ is object.__setattr__


def test_a_whole_listing_waits_for_ten_times_as_long_as_the_last_ones_took():
    source = Source(HUNDRED)
    source.key_seconds = 2.0
    assert source.go() == HUNDRED
    source.finish()
    assert source.go(INTERVAL) == HUNDRED[-3:]
    assert source.go(INTERVAL) == HUNDRED


def test_new_keys_move_the_look_back_on():
    source = final()
    source.versions.update(dict.fromkeys(numbered(100, 101), 1))
    assert source.go() == numbered(97, 98, 99, 100, 101)
    assert sorted(source.hands) == numbered(100, 101)
    assert source.go() == numbered(99, 100, 101)


def test_a_bucket_of_fewer_keys_than_the_look_back_is_listed_whole():
    source = Source(numbered(1, 2, 3))
    for _ in range(3):
        assert source.go() == numbered(1, 2, 3)
    source.versions.update(dict.fromkeys(numbered(4), 1))
    assert source.go() == numbered(1, 2, 3, 4)
    assert source.go() == numbered(2, 3, 4)


def test_without_a_look_back_nothing_known_is_listed():
    source = final(lookback=0)
    assert source.go() == []
    source.versions["0100"] = 1
    assert source.go() == ["0100"]
    assert source.go() == []


def test_keys_that_are_deleted_do_not_lead_it_back_for_ever():
    source = final()
    for key in HUNDRED[-2:]:
        del source.versions[key]
    assert source.go() == numbered(97)
    source.versions.update(dict.fromkeys(numbered(*range(100, 110)), 1))
    assert source.go() == numbered(97, *range(100, 110))
    assert source.go() == numbered(107, 108, 109)


def test_a_short_listing_that_was_held_up_once_does_not_delay_the_next():
    source = final()
    source.go()
    listed, pauses = source.list_behind, [11.0]

    def list_slowly(starts):
        for pause in pauses:
            source.clock.sleep(pause)
        yield from listed(starts)

    source.list_behind = list_slowly
    source.start()
    for pause, due in ((0.0, 1), (0.0, 1), (11.0, 1), (11.0, 110), (0.0, 1)):
        pauses[:] = [pause]
        source.go()
        source.finish()
        assert source.feed.seconds_until_due == pytest.approx(due, abs=1)


def test_a_listing_that_took_long_does_not_hold_up_the_short_ones():
    source = Source(HUNDRED)
    slow = source.list_behind

    def list_slowly(starts):
        for one in slow(starts):
            source.clock.sleep(1)
            yield one

    source.list_behind = list_slowly
    source.start()
    source.go()
    assert source.feed.seconds_until_due <= 1
    source.go()
    assert source.feed.seconds_until_due == pytest.approx(30, abs=1)
    assert len(source.go()) == 3
    assert len(source.go(INTERVAL - 400)) == 3  # it took 100 seconds: not more often than every 1000
    assert len(source.go(INTERVAL)) == 100


# ---- nothing is skipped


def test_a_late_key_in_the_look_back_comes_at_once_and_one_below_it_with_the_next_whole_listing():
    source = final()
    source.versions.update({"0098x": 1, "0050x": 1})
    source.go()
    assert list(source.hands) == ["0098x"]
    source.go(INTERVAL)
    assert list(source.hands) == ["0098x", "0050x"]


def test_an_object_in_hand_holds_nothing_back_however_long_it_takes():
    source = Source(HUNDRED)
    source.go()
    source.finish(*HUNDRED[1:])
    for _ in range(20):
        assert source.go() == HUNDRED[-3:]
    assert source.go(INTERVAL) == HUNDRED
    assert list(source.hands) == ["0000"]


def test_an_object_that_failed_holds_nothing_back():
    source = Source(HUNDRED)
    source.go()
    source.finish("0000", state=ObjectState.FAILED)
    source.finish()
    assert source.go() == HUNDRED[-3:]
    source.start()
    assert source.go(0) == HUNDRED  # the place was not saved: nobody flushed


def test_an_object_overwritten_while_it_was_read_comes_with_the_next_listing():
    source = Source(HUNDRED)
    source.go()
    source.versions["0010"] = 2
    source.release("0010")
    source.finish()
    assert source.go() == HUNDRED[10:]
    assert source.hands["0010"].entry.version == "2"
    source.finish()
    assert source.go() == HUNDRED[-3:]


def test_a_version_that_was_listed_while_an_older_one_was_read_comes_when_that_one_is_finished():
    source = Source(HUNDRED)
    source.go()
    source.finish(*(key for key in HUNDRED if key != "0010"))
    source.versions["0010"] = 2
    assert source.go(INTERVAL) == HUNDRED
    assert source.hands["0010"].entry.version == "1"
    assert source.go() == HUNDRED[10:]
    source.finish("0010")
    assert source.go() == HUNDRED[10:]
    assert source.hands["0010"].entry.version == "2"
    assert source.go() == HUNDRED[-3:]


def test_an_object_that_is_gone_is_not_waited_for():
    source = Source(HUNDRED)
    source.go()
    del source.versions["0010"]
    source.release("0010", gone=True)
    assert source.go() == HUNDRED[-3:]


def test_an_object_that_is_gone_asks_for_no_other_listing():
    source = Source(HUNDRED, once=True)
    source.go()
    source.release("0010", gone=True)
    assert source.feed.finished
    source.release("0011")
    assert not source.feed.finished


def test_an_object_that_is_overwritten_again_and_again_is_waited_for_a_minute_only():
    source = Source(HUNDRED)
    source.go()
    long = 0
    for _ in range(200):
        if "0010" in source.hands:
            source.versions["0010"] += 1
            source.release("0010")
        source.finish()
        long += len(source.go()) > 3
    assert HOLD_SECONDS / 2 < long <= HOLD_SECONDS + 1
    source.go(INTERVAL)
    assert "0010" in source.hands
    source.versions["0010"] += 1  # a full listing showed it: from now on it is waited for again
    source.release("0010")
    assert source.go() == HUNDRED[10:]


def test_an_object_may_be_released_while_finished_ones_are_forgotten():
    """A person resets an object, and another thread releases it just after its position was looked up."""
    source = Source(HUNDRED)
    source.go()
    source.offsets.remove_entry(source.hands["0010"].entry)
    is_finished, releasing = source.offsets.table.is_finished, []

    def looked_up_too_early(key, entry):
        finished = is_finished(key, entry)
        if finished and not releasing:
            releasing.append(threading.Thread(target=source.release, args=("0010",)))
            releasing[0].start()
        return finished

    source.offsets.table.is_finished = looked_up_too_early
    source.go()
    releasing[0].join(30)
    source.go()
    assert "0010" in source.hands


def test_objects_that_are_too_young_are_looked_at_again_in_each_listing_until_they_are_not():
    source = Source(HUNDRED, min_age=100)
    source.chosen.young = set(numbered(50, 60))
    source.go()
    source.finish()
    for _ in range(100):
        assert source.go() == HUNDRED[50:]
    source.chosen.young = {"0060"}
    assert source.go() == HUNDRED[50:]
    assert list(source.hands) == ["0050"]
    assert source.go() == HUNDRED[60:]
    source.clock.sleep(HOLD_SECONDS + 100)
    assert source.go() == HUNDRED[-3:]  # it is young for ever: another one again and again
    source.go(INTERVAL)
    source.chosen.young = set()
    source.go(INTERVAL)
    assert "0060" in source.hands


def test_a_listing_that_broke_is_made_again():
    source = final()
    whole = source.list_behind

    def breaks(starts):
        yield from list(whole(starts))[:2]
        raise ListingError("broken")

    source.list_behind = breaks
    source.start()
    source.clock.sleep(2)
    with pytest.raises(ListingError):
        list(iter(source.feed.take, None))
    source.list_behind = whole
    source.start()
    assert source.go() == HUNDRED


def test_each_prefix_has_its_own_end():
    source = Source([f"{prefix}/{number}" for prefix in "ab" for number in range(9)], prefixes=("b/", "a/"))
    source.go()
    source.finish()
    assert source.go() == ["b/6", "b/7", "b/8", "a/6", "a/7", "a/8"]
    source.versions["a/9"] = 1
    source.go()
    assert list(source.hands) == ["a/9"]


def test_nothing_before_the_place_where_listings_begin():
    source = Source(HUNDRED, base="0050", lookback=200)
    for _ in range(2):
        assert source.go() == HUNDRED[51:]
    source.release("0051")
    assert source.go() == HUNDRED[51:]


# ---- over a restart


def test_a_restart_goes_on_where_everything_before_was_finished():
    source = final()
    source.go()
    source.offsets.flush()
    source.start()
    assert source.go(0) == HUNDRED[-3:]
    assert not source.offsets.dirty  # an idle source writes nothing
    assert source.go(INTERVAL) == HUNDRED


def test_a_restart_begins_before_the_lowest_unfinished_object():
    source = Source(HUNDRED)
    source.go()
    source.finish(*(key for key in HUNDRED if key not in {"0020", "0070"}))
    source.go()
    source.finish("0070")
    source.go()
    source.offsets.flush()
    source.start()
    assert source.go(0) == HUNDRED[20:]
    assert list(source.hands) == ["0020"]
    source.finish()
    assert source.go() == HUNDRED[-3:]


def test_a_restart_begins_at_the_look_back_once_nothing_unfinished_lies_before_it():
    source = Source(HUNDRED)
    source.go()
    source.finish(*(key for key in HUNDRED if key != "0020"))
    source.go()
    source.finish("0020")
    source.go()
    source.offsets.flush()
    source.start()
    assert source.go(0) == HUNDRED[-3:]


def test_a_restart_begins_before_the_deferred_objects():
    source = Source(HUNDRED)
    source.chosen.young = {"0030"}
    source.go()
    source.finish()
    source.go()
    source.offsets.flush()
    source.chosen.young = set()
    source.start()
    assert source.go(0) == HUNDRED[30:]
    assert list(source.hands) == ["0030"]


@pytest.mark.parametrize("change", ["selection", "prefixes", "late", "clock"])
def test_a_restart_under_other_circumstances_begins_with_a_whole_listing(change):
    source = final()
    source.go()
    source.offsets.flush()
    if change == "selection":
        source.selection = "others"
    elif change == "prefixes":
        source.prefixes = ("00", "01")
    elif change == "late":
        source.clock.sleep(INTERVAL)
    else:
        source.clock = FakeClock()
        source.clock.sleep(-50)
    source.start()
    assert source.go(0) == HUNDRED


def test_a_position_of_an_unfinished_object_counts_also_when_it_came_after_the_place_was_kept():
    source = final()
    source.go()
    source.offsets.flush()
    source.versions["0005"] = 2
    entry = source.offsets.get_entry(next(iter(source.offsets.table.entries())).get_manager_key())
    source.offsets.add_entry(
        entry.changed(key="0005", version="2", generation=2, total=None, records_done=0, records_saved=0)
    )
    source.offsets.flush()
    source.start()
    assert source.go(0) == HUNDRED[5:]
    assert list(source.hands) == ["0005"]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "late", "pass", "pass", "finish", "finish one", "release", "restart", "flush", "wait"]),
        st.integers(0, 999),
    ),
    max_size=40,
)


@given(st.integers(0, 5), st.integers(1, 12), STEPS)
@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_was_listed_once_is_read_and_late_keys_wait_no_longer_than_for_a_whole_listing(lookback, count, steps):
    source = Source(numbered(*range(500, 500 + count)), lookback=lookback)
    seen = set()  # (key, version) that a pass has shown
    highest = 500 + count
    for step, number in steps:
        if step == "add":
            highest += 1
            source.versions[f"{highest:04}"] = 1
        elif step == "late":
            source.versions.setdefault(f"{number % highest:04}x", 1)
        elif step == "pass":
            source.go(number % 7)
            seen |= {(key, source.versions[key]) for key in source.listed}
            for key, version in seen:
                if source.versions[key] == version:  # in hand, or finished: nothing is left lying
                    assert key in source.hands or key in source.done()
        elif step == "finish":
            source.finish()
        elif step == "finish one" and source.hands:
            source.finish(sorted(source.hands)[number % len(source.hands)])
        elif step == "release" and source.hands:
            key = sorted(source.hands)[number % len(source.hands)]
            source.versions[key] += 1
            source.release(key)
        elif step == "restart":
            source.start()
        elif step == "flush":
            source.offsets.flush()
        elif step == "wait":
            source.clock.sleep(number % 10)
    source.go(INTERVAL)
    source.finish()
    assert source.done() == set(source.versions)


# ---- the parts


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5))
def test_a_place_just_before_a_key_is_before_it(key):
    assert just_before(key) < key
    assert just_before(key).encode() < key.encode()


def test_few_keys_lie_between():
    assert just_before("part-000123") == "part-000122"
    assert just_before("a/b") == "a/a"
    assert just_before("a/") == "a."
    assert just_before("a\U0001f600") == "a"


def test_more_young_objects_than_are_known_come_when_they_are_old_enough_also_after_others_did():
    source = Source(min_age=10.0)
    for letter in "ab":
        keys = [f"{letter}{number:04d}" for number in range(MAX_DEFERRED + 500)]
        source.versions |= dict.fromkeys(keys, 1)
        source.chosen.young = set(keys)
        source.go()
        source.chosen.young = set()
        source.go()
        assert sorted(source.hands) == keys
        source.finish()


def test_more_young_objects_than_are_known_under_one_prefix_drive_out_none_of_another():
    source = Source(["a/0", "b/0"], lookback=3, prefixes=("a/", "b/"), min_age=10.0)
    source.go()
    source.finish()
    young = [f"{prefix}{number}" for prefix in ("a/", "b/") for number in numbered_long(2 * MAX_DEFERRED)]
    source.versions |= dict.fromkeys(young, 1)
    source.chosen.young = set(young)
    source.go()
    source.chosen.young = set()
    source.go()
    assert list(source.hands) == young


def test_young_objects_are_waited_for_also_while_the_listing_shows_as_many_that_are_old_enough_by_now():
    source = Source(min_age=10.0)
    before = []
    for letter in "abcd":
        young = [f"{letter}{number}" for number in numbered_long(MAX_DEFERRED + 500)]
        source.versions |= dict.fromkeys(young, 1)
        source.chosen.young = set(young)
        source.go()
        assert sorted(source.hands) == before
        source.finish()
        before = young


def test_deferred_keys_are_few_however_many_prefixes_there_are():
    prefixes = [f"{number}/" for number in range(300)]
    deferred = DeferredKeys(60, FakeClock(), prefixes)
    for number in range(20 * KINDS):
        for prefix in reversed(prefixes):
            deferred.add(f"{prefix}{number:02}")
    assert {f"{prefix}00" for prefix in prefixes} <= set(deferred.waited_for())
    assert len(deferred.waiting()) < 4 * KINDS * len(prefixes)


def test_of_many_objects_deferred_the_lowest_are_known():
    deferred = DeferredKeys(60, FakeClock())
    for number in range(5 * MAX_DEFERRED):
        deferred.add(f"{number:05}")
    assert len(deferred.waiting()) < 2 * MAX_DEFERRED
    assert set(numbered_long(MAX_DEFERRED)) <= set(deferred.waited_for())


def test_what_a_listing_has_shown_waits_no_longer_however_many_were_deferred_meanwhile():
    deferred = DeferredKeys(60, FakeClock())
    for number in range(MAX_DEFERRED - 1):
        deferred.add(f"a{number:05}")
    deferred.begin_listing()
    fresh = [f"b{number:05}" for number in range(MAX_DEFERRED + 1)]
    for key in fresh:
        deferred.add(key)
    deferred.end_listing(lambda key: True, whole=False)
    assert set(deferred.waiting()) <= set(fresh)
    assert deferred.waiting()


def test_objects_that_wait_for_a_full_listing_drive_out_none_that_holds_listings_back():
    clock = FakeClock()
    deferred = DeferredKeys(60, clock)
    for key in numbered_long(MAX_DEFERRED + 500):
        deferred.add(f"a{key}")
    clock.sleep(61)
    young = [f"b{key}" for key in numbered_long(MAX_DEFERRED)]
    for key in young:
        deferred.add(key)
    assert sorted(deferred.waited_for()) == young
    assert len(deferred.waiting()) < 2 * MAX_DEFERRED


def numbered_long(count):
    return [f"{number:05}" for number in range(count)]


# ---- a source


def over(store, offsets=None, *, once=False, page_size=10, **options):
    # an interval that no machine takes for one listing, however busy it is: `go` says when the next begins
    options = {"mode": "incremental", "lookback_keys": 15, "poll_interval": 3600.0, **options}
    return iterator_over(store, offsets, task=MemorySourceTask(store, page_size=page_size), once=once, **options)


def go(iterator):
    next_pass(iterator)
    return payloads(drain(iterator))


def test_a_source_in_mode_incremental_lists_two_pages_a_time_instead_of_all():
    store = store_of(**{f"k{number:03}": 1 for number in range(200)})
    iterator = over(store, list_concurrency=1)
    assert len(go(iterator)) == 200
    assert store.count("list_page") == 20
    for _ in range(3):
        before = store.count("list_page")
        assert go(iterator) == {}
        assert store.count("list_page") - before == 2
    put_lines(store, "k200", 1)
    assert list(go(iterator)) == ["k200"]
    iterator.close()


def test_one_complete_listing_is_a_whole_one_in_any_mode():
    store = store_of(**{f"k{number:03}": 1 for number in range(100)})
    offsets = OffsetManager()
    iterator = over(store, offsets)
    go(iterator)
    iterator.close()
    put_lines(store, "a late one", 1)
    iterator = over(store, offsets, once=True)
    assert "a late one" in go(iterator), "however many listed it at a time, and in what order"
    assert iterator.finished
    iterator.close()


def test_young_objects_come_when_they_are_old_enough():
    store = store_of(**{f"k{number:03}": 1 for number in range(50)})
    now = store.put("k010", b'{"n":1}\n', modified_ms=4_000_000_000_000).modified_ms / 1000
    iterator = over(store, min_age=10, lookback_keys=5)
    assert "k010" not in go(iterator)
    assert go(iterator) == {}
    iterator.store_clock = lambda: now + 20
    iterator.feed._objects._selection._selector._now = iterator.store_clock
    assert list(go(iterator)) == ["k010"]
    iterator.close()


def test_a_store_without_order_is_refused_with_the_way_out():
    store = store_of(a=1)
    store.ordered = False
    iterator = over(store)
    with pytest.raises(
        ListingError, match=r'memory://bucket/: .*not list in the order.*set \[discovery\] mode = "list"'
    ):
        go(iterator)
    assert store.count("list_page") == 0
    iterator.close()


def test_a_store_noticed_to_have_no_order_is_refused_when_its_objects_are_handed_out():
    class Shuffled(type(store_of())):
        def list_page(self, **arguments):
            page = super().list_page(**arguments)
            return attrs.evolve(page, objects=page.objects[::-1])

    store, offsets = Shuffled(), OffsetManager()
    for name in "abc":
        put_lines(store, name, 1)
    iterator = over(store, offsets)
    batches = [iterator.next_batch() for _ in range(3)]
    assert sorted(payloads(batches)) == ["a", "b", "c"]
    with pytest.raises(ListingError, match=r'set \[discovery\] mode = "list"'):
        iterator.next_batch()
    iterator.close()
    calls = store.count("list_page")
    iterator = over(store, offsets)
    with pytest.raises(ListingError, match=r'set \[discovery\] mode = "list"'):
        go(iterator)
    assert store.count("list_page") == calls
    iterator.close()
