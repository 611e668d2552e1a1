"""A source's own listing: many calls at once behind one iterator, what it costs, and what one pass leaves for the next."""

import logging
import threading
import time
from bisect import bisect_right

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framework.errors import ListingError, StoreContractError, StoreUnavailableError, TaskClosedError, ThrottledError
from framework.offsets.listing_hints import ListingHints
from framework.offsets.manager import OffsetManager
from framework.offsets.offset_store import MemoryOffsetStore
from framework.storage.listing.limiter import START_CALLS
from framework.store import ListPage
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.fakes.memory_store import MemoryStore
from tests.support.compaction import ClockStore
from tests.support.core import iterator_over
from tests.support.listing import native

PAGE = 7


class SortedStore(MemoryStore):
    """Keys in a sorted list: pages of large buckets without sorting them each time. `order` gives the place of a key."""

    def __init__(self, keys, order=str.encode, bucket="bucket"):
        super().__init__(bucket)
        self.order = order
        self.lock = threading.Lock()
        self.keys = sorted(keys, key=order)
        self.places = [order(key) for key in self.keys]
        self.server_time_ms = None

    def list_page(self, *, prefix="", after="", continuation=None, page_size=1000):
        self._call("list_page", prefix)
        border = after if continuation is None else continuation
        with self.lock:
            at = bisect_right(self.places, self.order(border)) if border else 0
            keys = [key for key in self.keys[at:] if key.startswith(prefix)][: page_size + 1]
        objects = [native(key) for key in keys[:page_size]]
        more = objects[-1].key if len(keys) > page_size else None
        return ListPage(objects=objects, continuation=more, server_time_ms=self.server_time_ms)

    def add(self, key):
        with self.lock:
            at = bisect_right(self.places, self.order(key))
            self.keys.insert(at, key)
            self.places.insert(at, self.order(key))

    def drop(self, key):
        with self.lock:
            at = self.keys.index(key)
            del self.keys[at], self.places[at]


def like_folders(key):
    """SeaweedFS: a folder's content stands where the folder's name sorts, so `a/b` comes before `a b`."""
    return [part.encode() for part in key.split("/")]


@pytest.fixture
def over():
    made = []

    def make(store, offsets=None, *, page_size=PAGE, prefixes=("",), start_key=None, policy=None, **options):
        task = MemorySourceTask(store, page_size=page_size, prefixes=prefixes, start_key=start_key, policy=policy)
        made.append(iterator_over(store, offsets, task=task, **options))
        return made[-1]

    yield make
    for iterator in made:
        iterator.close()


def keys_of(iterator, after=None):
    return [one.key for one in iterator.get_native_item_stream(after)]


def numbered(count):
    return [f"data/{number:06}" for number in range(count)]


# ---- what it costs, and in which order


@pytest.mark.parametrize("concurrency", [1, 16])
@pytest.mark.parametrize("pages", [1, 2, 3])
def test_up_to_three_pages_cost_a_call_each_in_every_listing_and_keep_the_order(over, concurrency, pages):
    keys = numbered(PAGE * pages - 2)
    store = SortedStore(keys)
    iterator = over(store, list_concurrency=concurrency)
    for number in range(1, 5):
        assert keys_of(iterator) == keys
        assert store.count("list_page") == iterator.statistics.list_requests == number * pages
    assert not iterator.offsets.dirty


def test_a_prefix_that_matches_nothing_costs_one_call(over):
    store = SortedStore(numbered(100))
    iterator = over(store, prefixes=["elsewhere/", "data/1"])
    assert keys_of(iterator) == []
    assert store.count("list_page") == iterator.statistics.list_requests == 2


def test_one_call_at_once_gives_the_keys_in_order(over):
    keys = numbered(1000)
    store = SortedStore(keys)
    iterator = over(store, list_concurrency=1)
    assert keys_of(iterator) == keys
    assert keys_of(iterator, keys[500]) == keys[501:]
    assert store.count("list_page") == iterator.statistics.list_requests == 143 + 72


def test_many_calls_are_under_way_at_once(over):
    keys = numbered(PAGE * 100)
    store, lock, waiting, enough = SortedStore(keys), threading.Lock(), [], threading.Event()

    def wait_for_others(call):
        with lock:
            if store.count("list_page") >= 40:
                waiting.append(call)
            if len(waiting) == 8:
                enough.set()
            hold = len(waiting) and not enough.is_set()
        if hold:
            assert enough.wait(60)

    store.on_call = wait_for_others
    assert sorted(keys_of(over(store, list_concurrency=8))) == keys
    assert enough.is_set()


def test_a_subclass_may_say_by_properties_what_is_listed(over, monkeypatch):
    class Chosen(MemorySourceTask.iterator_class):
        prefixes = property(lambda _: ("b/",))
        bucket = property(lambda _: "other")
        address = property(lambda _: "https://other")
        start_key = property(lambda _: "b/1")
        named_objects = property(lambda _: None)
        listing_idle_seconds = property(lambda _: 7.0)
        error_policy = property(lambda iterator: iterator._error_policy)

    monkeypatch.setattr(MemorySourceTask, "iterator_class", Chosen)
    iterator = over(SortedStore(["a/1", "b/1", "b/2"]))
    assert keys_of(iterator, iterator.start_key) == ["b/2"]
    assert (iterator.bucket, iterator.address, iterator.listing_idle_seconds) == ("other", "https://other", 7.0)


def test_each_prefix_is_listed_in_its_turn(over):
    keys = [f"{prefix}{number:04}" for prefix in "abc" for number in range(300)]
    iterator = over(SortedStore(keys), prefixes=["c", "a"])
    found = keys_of(iterator)
    assert (sorted(found[:300]), sorted(found[300:])) == (keys[600:], keys[:300])


def test_the_budget_of_the_configuration_holds_for_every_listing_of_the_source(over):
    store = SortedStore(numbered(10))
    limiter = over(store, list_requests_per_second=0.01, list_bytes_per_second=1000).limiter
    assert limiter.delay_seconds() == 0
    assert limiter.delay_seconds() == pytest.approx(100, abs=1)
    limiter.spend(50_000)
    assert limiter.delay_seconds() == pytest.approx(250, abs=2)


def test_what_one_listing_learned_of_the_bucket_holds_for_the_next(over):
    iterator = over(SortedStore(numbered(3000)))
    keys_of(iterator)
    learned = iterator.limiter.allowed
    assert learned > START_CALLS
    keys_of(iterator)
    assert iterator.limiter.allowed >= learned


def test_the_budget_of_a_source_ends_with_it(over):
    """A process may run several sources, one after the other: a notebook."""
    store = SortedStore(numbered(10))
    over(store, list_requests_per_second=0.01)
    later = over(store).limiter
    assert (later.delay_seconds(), later.delay_seconds()) == (0, 0)


def test_an_empty_listing_tells_the_stores_clock_too(over):
    store = SortedStore([])
    store.server_time_ms = 4_000_000_000_000
    iterator = over(store)
    assert keys_of(iterator) == []
    assert iterator.store_clock() == pytest.approx(4e9, abs=5)


def test_the_stores_clock_is_taken_over_and_a_listing_began_no_later_than_it_did(over, monkeypatch):
    store = SortedStore(numbered(10))
    store.server_time_ms = 1_000_000_000_000
    iterator, began = over(store), []
    monkeypatch.setattr(iterator.offsets.tracker, "start_at", began.append)
    keys_of(iterator)
    assert iterator.store_clock() == pytest.approx(1e9, abs=5)
    assert len(began) == 1 and 1_000_000_000_000 - 5000 < began[0] < 1_000_000_000_000  # noqa: PT018


@pytest.mark.parametrize("apart_hours", [-30, -0.5, 0.5, 30])
def test_a_listing_began_by_the_earlier_of_two_clocks_and_clocks_far_apart_are_named(
    over, monkeypatch, caplog, apart_hours
):
    store = SortedStore(numbered(10))
    here_ms = int(time.time() * 1000)
    store.server_time_ms = here_ms + int(apart_hours * 3_600_000)
    iterator, began = over(store), []
    monkeypatch.setattr(iterator.offsets.tracker, "start_at", began.append)
    for _ in range(2):
        keys_of(iterator)
    assert min(here_ms, store.server_time_ms) - 5000 < began[0] < min(int(time.time() * 1000), store.server_time_ms)
    said = [record.getMessage() for record in caplog.records if "clock" in record.getMessage()]
    assert len(said) == (abs(apart_hours) > 1)
    for text in said:
        assert f"the store's clock is 30.0 hours {'ahead of' if apart_hours > 0 else 'behind'} this machine's" in text


@pytest.mark.parametrize("now_ms", [1_000_000_000_000, 4_000_000_000_000])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_ages_are_by_the_stores_clock_in_the_first_listing_too(over, now_ms, concurrency):
    store = ClockStore()
    store.now_ms = now_ms
    for number in range(2 * PAGE):
        store.put_now(f"{number:02}", late_ms=60_000 * (number % 2))
    iterator = over(store, min_age=30, list_concurrency=concurrency)
    taken = [assignment.native.key for assignment in iter(iterator.feed.take, None)]
    assert taken == [f"{number:02}" for number in range(1, 2 * PAGE, 2)]


# ---- keys and changes


ODD = [
    "a/\ufffd",
    "a/\ufffe",
    "a/\U00010000",
    "a/\U0010ffff",
    "a/\ud7ff",
    "a/\ue000",
    "a//b",
    "a/./b",
    "a/ ",
    "a/%2F",
    "a/\x01",
]


@given(
    st.lists(
        st.sampled_from(ODD).flatmap(lambda key: st.sampled_from([key, key * 2, key + "x", "x" + key])), unique=True
    ),
    st.integers(1, 4),
    st.data(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_odd_keys_come_once_behind_any_key(over, keys, page_size, data):
    store = MemoryStore()
    for key in keys:
        store.put(key, b"x")
    iterator = over(store, page_size=page_size)
    after = data.draw(st.sampled_from(["", *keys]))
    for _ in range(2):
        assert sorted(keys_of(iterator)) == sorted(keys)
        assert sorted(keys_of(iterator, after)) == sorted(key for key in keys if key.encode() > after.encode())


def test_keys_above_the_first_plane_next_to_the_end_of_it(over):
    keys = sorted(f"p/{head}{number:03}" for head in "\ufffd\U00010000\ufffe\U0001f600" for number in range(300))
    assert sorted(keys_of(over(SortedStore(keys)))) == keys


def test_ten_thousand_keys_that_differ_in_their_last_character_only(over):
    stem = "one/very/long/stem/" * 10
    keys = [stem + chr(0x4E00 + number) for number in range(10_000)]
    store = SortedStore(keys)
    iterator = over(store, page_size=100)
    assert sorted(keys_of(iterator)) == keys
    before = iterator.statistics.list_requests
    assert before == store.count("list_page")  # how few they are is the planner's test: here threads decide
    assert sorted(keys_of(iterator)) == keys
    assert iterator.statistics.list_requests - before <= 110


@pytest.mark.parametrize("seed", range(5))
def test_what_is_there_all_the_time_comes_once_whatever_else_changes(over, seed):
    keys = numbered(2000)
    store = SortedStore(keys)
    store_keys = keys[seed::3]
    gone, added, lock = [], [], threading.Lock()

    def change(call):
        with lock:
            at = store.count("list_page") * 37 % 1900
            if len(added) > 2 * len(gone) and keys[at] in store.keys and keys[at] not in store_keys:
                store.drop(keys[at])
                gone.append(keys[at])
            elif keys[at] + "+" not in store.keys:
                store.add(keys[at] + "+")
                added.append(keys[at] + "+")

    store.on_call = change
    found = keys_of(over(store))
    assert gone
    assert added
    assert len(set(found)) == len(found)
    assert set(store_keys) <= set(found) <= {*keys, *added}


def test_keys_deleted_at_the_cut_points_are_missed_by_nobody(over):
    keys = numbered(3000)
    store = SortedStore(keys)
    iterator = over(store)
    assert sorted(keys_of(iterator)) == keys
    cuts = {key for key, _ in iterator.offsets.hints.get("").histogram}
    for key in cuts & set(keys):
        store.drop(key)
    assert sorted(keys_of(iterator)) == sorted(set(keys) - cuts)


# ---- weather


def test_a_store_that_throttles_one_call_in_five_is_listed_whole(over):
    keys = numbered(2000)
    store = SortedStore(keys)
    lock, numbers = threading.Lock(), iter(range(1, 10**6))

    def throttle(call):
        with lock:
            if next(numbers) % 5 == 0:
                raise ThrottledError("slow down")

    store.on_call = throttle
    iterator = over(store)
    assert sorted(keys_of(iterator)) == keys
    assert iterator.statistics.retries > 50


def test_calls_that_failed_are_counted_also_when_the_listing_fails(over):
    store = SortedStore(numbered(300))
    store.fail("list_page", StoreUnavailableError("away"), skip=5, times=None)
    iterator = over(store, list_concurrency=1)
    with pytest.raises(StoreUnavailableError):
        keys_of(iterator)
    assert iterator.statistics.list_requests == 5
    assert iterator.statistics.retries == 7


def test_a_close_ends_a_listing_under_way_and_it_is_no_whole_one(over):
    iterator = over(SortedStore(numbered(3000)))
    stream = iterator.get_native_item_stream(None)
    next(stream)
    iterator.close()
    with pytest.raises(TaskClosedError):
        list(stream)
    assert iterator.offsets.hints.get("") is None


# ---- what one pass leaves for the next


def test_the_second_listing_and_the_next_start_begin_from_where_the_keys_lie(over):
    keys = numbered(PAGE * 200)
    store, kept = SortedStore(keys), MemoryOffsetStore()
    first = over(store, OffsetManager(kept))
    assert sorted(keys_of(first)) == keys
    calls = first.statistics.list_requests
    assert first.offsets.flush().listings[""].of == "memory://bucket"
    assert sorted(keys_of(first)) == keys
    assert first.statistics.list_requests - calls <= min(calls, 1.1 * 200)
    assert not first.offsets.dirty  # an idle pass writes nothing
    again = OffsetManager(kept)
    again.populate_offset_manager()
    second = over(store, again)
    assert sorted(keys_of(second)) == keys
    assert second.statistics.list_requests <= 1.1 * 200
    assert not second.offsets.dirty


def test_a_bucket_that_grew_a_lot_is_noted_again_and_one_that_became_small_is_forgotten(over):
    store = SortedStore(numbered(PAGE * 50))
    iterator = over(store)
    keys_of(iterator)
    assert iterator.offsets.flush()
    for key in [f"data/1{number:05}" for number in range(200)]:
        store.add(key)
    keys_of(iterator)
    (noted,) = iterator.offsets.flush().listings.values()
    assert sum(count for _, count in noted.histogram) == PAGE * 50 + 200
    for key in store.keys[10:]:
        store.drop(key)
    assert len(keys_of(iterator)) == 10
    assert iterator.offsets.flush().listings[""].histogram == ()


def test_a_part_of_a_prefix_is_not_taken_for_the_whole(over):
    keys = numbered(PAGE * 100)
    iterator = over(SortedStore(keys))
    keys_of(iterator, keys[100])
    assert iterator.offsets.hints.get("") is None


def test_where_listings_begin_is_all_of_it(over):
    keys = numbered(PAGE * 100)
    iterator = over(SortedStore(keys), start_key=keys[100])
    assert sorted(keys_of(iterator, keys[100])) == keys[101:]
    assert sum(count for _, count in iterator.offsets.hints.get("").histogram) == len(keys) - 101


def test_what_was_learnt_of_another_bucket_is_not_used(over):
    offsets = OffsetManager()
    offsets.hints.set("", ListingHints(of="memory://other", unordered=True))
    store = SortedStore(numbered(PAGE * 3))
    iterator = over(store, offsets)
    asked = []
    iterator.lister = lambda request: asked.append(request) or pytest.skip("asked")
    with pytest.raises(pytest.skip.Exception):
        keys_of(iterator)
    assert not asked[0].unordered


FOLDERS = [f"{folder}{letter}{number:02}" for folder in ("a", "a ", "a/") for letter in "xy" for number in range(30)]


def test_a_store_without_order_is_listed_twice_once_and_by_one_chain_ever_after(over, caplog):
    store, kept = SortedStore(FOLDERS, like_folders), MemoryOffsetStore()
    iterator = over(store, OffsetManager(kept))
    pages = -(-len(FOLDERS) // PAGE)
    with caplog.at_level(logging.WARNING):
        assert sorted(keys_of(iterator)) == sorted(FOLDERS)
    assert len([one for one in caplog.messages if "out of order" in one]) == 1
    assert iterator.statistics.list_requests > pages
    assert iterator.offsets.flush().listings[""].unordered
    caplog.clear()
    before = iterator.statistics.list_requests
    for _ in range(2):
        assert sorted(keys_of(iterator)) == sorted(FOLDERS)
    assert iterator.statistics.list_requests - before == 2 * pages
    assert caplog.messages == []
    assert not iterator.offsets.dirty
    again = OffsetManager(kept)
    again.populate_offset_manager()
    second = over(store, again, start_key="a x")
    for _ in range(2):
        assert sorted(keys_of(second, "a x")) == sorted(key for key in FOLDERS if key > "a x")
    assert second.statistics.list_requests == 2 * pages
    assert [one for one in caplog.messages if "one chain of pages" in one] == caplog.messages
    assert len(caplog.messages) == 1


class HidingStore(SortedStore):
    """Its chains are in order, but behind a key that it does not have it misses the next one: as SeaweedFS with folders."""

    def list_page(self, *, prefix="", after="", continuation=None, page_size=1000):
        page = super().list_page(prefix=prefix, after=after, continuation=continuation, page_size=page_size)
        hides = after and continuation is None and after not in self.keys and len(page.objects) > 1
        objects = page.objects[1:] if hides else page.objects
        return ListPage(objects=objects, continuation=page.continuation, server_time_ms=page.server_time_ms)


def test_a_chain_in_order_clears_what_ranges_hide_once_and_not_at_every_listing(over, caplog):
    """Each attempt by ranges is thrown away: it costs as much again, and a warning."""
    keys = numbered(PAGE * 20)
    iterator = over(HidingStore(keys))
    with caplog.at_level(logging.WARNING):
        for _ in range(8):
            assert sorted(keys_of(iterator)) == keys
    assert len([one for one in caplog.messages if "out of order" in one]) == 2
    assert iterator.offsets.hints.get("").unordered


def test_a_store_that_says_it_has_no_order_is_believed_without_being_noted(over, caplog):
    store = SortedStore(FOLDERS, like_folders)
    store.ordered = False
    iterator = over(store)
    for _ in range(2):
        assert sorted(keys_of(iterator)) == sorted(FOLDERS)
    assert iterator.statistics.list_requests == 2 * -(-len(FOLDERS) // PAGE)
    assert len(caplog.messages) == 1
    assert not iterator.offsets.dirty


def test_a_store_that_came_to_have_an_order_is_listed_in_parallel_again(over):
    offsets = OffsetManager()
    offsets.hints.set("", ListingHints(of="memory://bucket", unordered=True))
    keys = numbered(PAGE * 20)
    iterator = over(SortedStore(keys), offsets)
    assert keys_of(iterator) == keys
    assert not offsets.hints.get("").unordered
    assert sorted(keys_of(iterator)) == keys
    assert offsets.hints.get("").histogram


def test_an_order_missed_too_late_to_begin_again_is_known_at_the_next_start(over, monkeypatch):
    monkeypatch.setattr("framework.storage.listing.parallel.REMEMBERED_KEYS", 20)
    keys = [f"0/{number:04}" for number in range(100)] + FOLDERS
    store, offsets = SortedStore(keys, like_folders), OffsetManager()
    with pytest.raises(ListingError, match=r"too late.*start the source again"):
        keys_of(over(store, offsets))
    assert sorted(keys_of(over(store, offsets))) == sorted(keys)


def test_one_chain_notices_a_missing_order_too(over):
    iterator = over(SortedStore(FOLDERS, like_folders), list_concurrency=1)
    assert sorted(keys_of(iterator)) == sorted(FOLDERS)
    assert iterator.statistics.list_requests == -(-len(FOLDERS) // PAGE)
    assert iterator.offsets.hints.get("").unordered


@pytest.mark.parametrize(
    ("method", "ask"),
    [
        ("list_page", lambda iterator: list(iterator.get_native_item_stream(None))),
        ("stat", lambda iterator: iterator.look_up(attrs.evolve(native("k"), bucket="bucket"))),
        ("metadata", lambda iterator: iterator.metadata_of(native("k"))),
        ("tags", lambda iterator: iterator.tags_of(native("k"))),
    ],
)
def test_an_error_of_an_authors_store_names_the_place_and_is_final(over, monkeypatch, method, ask):
    calls = []

    def fail(*_, **__):
        calls.append(method)
        raise StoreUnavailableError("away") if len(calls) == 1 else KeyError("NextToken")

    store = SortedStore(["k"])
    monkeypatch.setattr(store, method, fail)
    place = (
        rf"b(ucket)?/.* failed with KeyError: 'NextToken' \({__name__}, line \d+, in fail\); mend that line, or, if the"
    )
    with pytest.raises(StoreContractError, match=place):
        ask(over(store))
    assert len(calls) == 2
