"""A listing by waves of key ranges, planned on the driver: every object once, whatever the executors do. No Spark here:
the waves run in this process, through the same bytes."""

import pickle
import threading
import time
from itertools import pairwise

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.engine.spark import listing_waves, range_batch
from framework.engine.spark.listing_waves import Executors, wave_lister
from framework.engine.spark.range_batch import (
    RangeBatch,
    RangeListing,
    list_batch,
    list_ranges,
    packed,
    seconds_asked,
    unpacked,
)
from framework.errors import (
    AccessDeniedError,
    CredentialsError,
    FatalError,
    StoreContractError,
    StoreUnavailableError,
    TaskClosedError,
    ThrottledError,
)
from framework.model.objects import NativeObject
from framework.storage.listing.limiter import CallLimiter
from framework.storage.listing.listing import ListingRequest
from framework.storage.listing.range_tasks import RangeTask
from framework.storage.retry import RetryPolicy
from framework.testing.clock import FakeClock
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.fakes.memory_store import MemoryStore
from tests.support.core import iterator_over
from tests.support.listing import even, skewed
from tests.unit.storage.listing.test_parallel import BoundedStore, Queue, SortedStore, like_folders

PAGE = 7


def listed(store, *, run=None, request=None, width=3, clock=time.monotonic, **options):
    """(keys, the listing, the waves that executors got) of one listing."""
    task = MemorySourceTask(
        store, page_size=PAGE, policy=RetryPolicy(attempts=6, jitter=0.0, clock=clock).without_waiting()
    )
    iterator = iterator_over(store, task=task, **options)
    given_out = []

    def on_executors(wave):
        given_out.append(pickle.loads(pickle.dumps([batch.tasks for batch in wave])))
        if run is not None:
            run(len(given_out))
        return [one for batch in wave for one in list_ranges(iterator, batch)]

    lister = wave_lister(
        iterator,
        MemorySourceTask,
        lambda: Executors(width=lambda: width, run=on_executors),
    )
    listing = lister(request or ListingRequest(prefix="", after=""))
    keys = [one.key for page in listing for one in page]
    iterator.close()
    return keys, listing, given_out


def test_a_single_range_is_listed_by_the_thread_that_asks():
    """The interpreter's exit would wait for a thread of a pool, and so for a store that does not answer."""
    threads = []

    class Watched(SortedStore):
        def list_page(self, **call):
            threads.append(threading.current_thread())
            return super().list_page(**call)

    store = Watched(even(PAGE))
    iterator = iterator_over(store, task=MemorySourceTask(store, page_size=PAGE))
    task = RangeTask(number=0, after="", until=None, max_pages=1)
    (one,) = list_ranges(
        iterator, RangeBatch(task_class=MemorySourceTask, config=iterator.config, prefix="", tasks=[task])
    )
    assert one.failure is None
    assert threads == [threading.current_thread()]
    iterator.close()


def test_a_small_bucket_costs_no_job():
    store = SortedStore(even(PAGE))
    keys, listing, jobs = listed(store)
    assert keys == even(PAGE)
    assert (len(store.calls), jobs, listing.complete) == (1, [], True)


@pytest.mark.parametrize(("pages", "small"), [(8, True), (12, True), (17, False)])
def test_nor_does_it_when_it_is_listed_again(pages, small):
    """What the last pass showed, and what this one has shown, are the same pages."""
    store = SortedStore(even(pages * PAGE - 3))
    _, first, _ = listed(store)
    store.calls.clear()
    keys, listing, jobs = listed(store, request=ListingRequest(prefix="", after="", histogram=first.histogram))
    assert sorted(keys) == store.keys
    assert listing.complete
    assert (jobs == []) == small


def test_a_large_one_is_listed_by_executors_each_key_once():
    store = SortedStore(skewed(3000))
    keys, listing, jobs = listed(store)
    assert sorted(keys) == store.keys
    assert len(keys) == 3000
    assert jobs
    assert max(len(wave) for wave in jobs) == 3
    assert max(sum(map(len, wave)) for wave in jobs) > 3
    assert listing.counts.calls == len(store.calls)
    assert listing.counts.objects == 3000
    assert len(store.calls) <= 1.3 * 3000 / PAGE


def test_a_wave_that_is_queued_for_busy_cores_is_no_time_of_the_listing(monkeypatch):
    monkeypatch.setattr(listing_waves, "_in_background", lambda work: work)  # begun when it is waited for
    clock = FakeClock()
    queued = []

    def run(_):
        queued.append(1000.0)
        clock.advance(1000.0)

    _, listing, _ = listed(SortedStore(skewed(3000)), run=run, clock=clock)
    assert len(queued) > 1
    # requests take no time by that clock, and little by the one that times them
    assert 0.9 * sum(queued) < listing.counts.idle_seconds <= sum(queued)


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ([], 0.0),
        ([(0.0, 0.0)], 0.0),
        ([(10.0, 12.0)], 2.0),
        ([(10.0, 12.0), (11.0, 11.5), (10.5, 13.0)], 3.0),
        ([(20.0, 21.0), (10.0, 12.0)], 3.0),
        ([(10.0, 12.0), (12.0, 12.5), (5.0, 4.0)], 2.5),
    ],
)
def test_ranges_that_are_listed_side_by_side_take_their_time_once(asked, seconds):
    assert seconds_asked([RangeListing(asked_at=at, answered_at=until) for at, until in asked]) == seconds


def test_the_next_listing_goes_to_the_executors_at_once():
    store = SortedStore(skewed(3000))
    _, first, _ = listed(store)
    store.calls.clear()
    request = ListingRequest(prefix="", after="", histogram=first.histogram)
    keys, second, jobs = listed(store, request=request)
    assert sorted(keys) == store.keys
    assert sum(map(len, jobs[0])) > 1
    assert second.counts.calls == len(store.calls) <= 1.1 * 3000 / PAGE


@settings(max_examples=60, deadline=None)
@given(
    keys=st.sets(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6), max_size=400),
    after=st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    width=st.integers(1, 4),
    concurrency=st.integers(2, 9),
    make=st.sampled_from([SortedStore, BoundedStore]),
)
def test_every_key_behind_after_comes_once(keys, after, width, concurrency, make):
    store = make(keys)
    request = ListingRequest(prefix="", after=after)
    found, listing, _ = listed(store, request=request, width=width, list_concurrency=concurrency)
    assert sorted(found) == sorted(key for key in keys if key.encode() > after.encode())
    assert listing.complete


def test_waves_over_a_store_that_bounds_pages_show_nothing_twice():
    store = BoundedStore(skewed(3000))
    keys, _, jobs = listed(store)
    assert sorted(keys) == store.keys
    assert jobs
    assert store.shown == 3000


def test_a_wave_that_spark_loses_is_listed_again():
    def lose(number):
        if number in {1, 3}:
            raise RuntimeError("ExecutorLostFailure")

    store = SortedStore(even(3000))
    keys, _, _ = listed(store, run=lose)
    assert sorted(keys) == store.keys
    assert len(keys) == 3000


def test_a_wave_that_was_cancelled_is_not_listed_again():
    def cancel(number):
        calls.append(number)
        raise FatalError("the listing was cancelled")

    calls = []
    with pytest.raises(FatalError, match="was cancelled"):
        listed(SortedStore(even(3000)), run=cancel)
    assert calls == [1]


def test_waves_that_spark_loses_for_ever_end_the_listing_with_a_sentence():
    def lose(_):
        raise RuntimeError("Python worker exited unexpectedly\n  at java.lang")

    with pytest.raises(FatalError, match=f"lost a listing {listing_waves.WAVE_ATTEMPTS} times: Python worker exited"):
        listed(SortedStore(even(3000)), run=lose)


def test_a_store_without_order_is_listed_by_one_chain_from_the_start(caplog):
    names = [f"a{number % 7} {number}" for number in range(700)] + [f"a{number % 7}/b{number}" for number in range(700)]
    store = SortedStore(names, like_folders)
    keys, listing, _ = listed(store)
    assert set(keys) == set(names)
    assert keys[-len(names) :] == store.keys
    assert listing.unordered
    assert listing.complete
    assert listing.histogram == []
    assert "one chain of pages lists it from the start" in caplog.text
    again, _, jobs = listed(store, request=ListingRequest(prefix="", after="", unordered=True))
    assert (again, jobs) == (store.keys, [])


def test_a_listing_that_started_over_tells_that_its_objects_may_be_there_twice():
    """DataFrames then take each key once."""
    names = [f"a{number % 7} {number}" for number in range(700)] + [f"a{number % 7}/b{number}" for number in range(700)]
    store = SortedStore(names, like_folders)
    iterator = iterator_over(store, task=MemorySourceTask(store, page_size=PAGE))
    run = Executors(width=lambda: 3, run=lambda wave: [one for batch in wave for one in list_ranges(iterator, batch)])
    iterator.lister = wave_lister(iterator, MemorySourceTask, lambda: run)
    assert not iterator.listing_hints("").unordered
    assert {native.key for native in iterator.get_native_item_stream(None)} == set(names)
    assert iterator.listing_hints("").unordered
    iterator.close()


@pytest.mark.parametrize("documented", [True, False])
def test_keys_that_come_and_go_do_not_cast_doubt_on_a_documented_order(documented, monkeypatch):
    looked_again = []
    look_again = listing_waves.look_again
    monkeypatch.setattr(listing_waves, "look_again", lambda *given: looked_again.append(look_again(*given)))
    store = Queue(range(8), taken=1)
    store.order_is_documented = documented
    keys, listing, _ = listed(store)
    assert bool(looked_again) != documented
    assert not listing.unordered
    assert len(keys) == len(set(keys))
    assert {f"{folder:02}/{number:05}" for folder in range(8) for number in range(1190, 1200)} <= set(keys)


def test_what_executors_meet_is_raised_here_and_its_type_is_kept():
    store = SortedStore(even(3000))
    count = 0

    def deny():
        nonlocal count
        count += 1
        if count > 150:
            raise AccessDeniedError("no")

    store.before = deny
    with pytest.raises(AccessDeniedError, match="no"):
        listed(store)


def test_an_error_of_a_listing_names_the_executor_that_met_it(monkeypatch):
    monkeypatch.setattr(range_batch.socket, "gethostname", lambda: "worker-7")
    store = SortedStore(even(3000))

    class Task(MemorySourceTask):
        def get_iterator(self, context):
            raise CredentialsError("no credentials were found")

    iterator = iterator_over(store, task=MemorySourceTask(store, page_size=PAGE))
    executors = Executors(
        width=lambda: 1, run=lambda wave: [one for batch in wave for one in list_batch(batch)], remote=True
    )
    iterator.lister = wave_lister(iterator, Task, lambda: executors)
    with pytest.raises(CredentialsError, match=r"no credentials were found \(on executor worker-7\)$"):
        list(iterator.get_native_item_stream(None))
    iterator.close()


def test_a_page_of_a_range_that_is_no_page_names_the_store(monkeypatch):
    """The first page of a listing is looked at by the driver, the others by the executors."""
    store = SortedStore(even(3000))
    calls, list_page = [], store.list_page

    def list_no_page(**call):
        calls.append(call)
        return list_page(**call) if len(calls) < 150 else ("a", "b")

    monkeypatch.setattr(store, "list_page", list_no_page)
    with pytest.raises(
        StoreContractError, match=r"SortedStore.list_page returned tuple, not a ListPage with a list of"
    ):
        listed(store)


def test_throttling_halves_what_the_next_wave_asks_at_once():
    store = SortedStore(even(6000))
    refused = []

    def refuse():
        if len(store.calls) > 200 and len(refused) < 5:
            refused.append(1)
            raise ThrottledError("slow down")

    store.before = refuse
    keys, listing, jobs = listed(store, list_concurrency=16)
    assert sorted(keys) == store.keys
    assert listing.counts.throttled == 5
    sizes = [sum(map(len, wave)) for wave in jobs]
    assert any(later < before for before, later in pairwise(sizes))


def test_closing_ends_a_wave_that_spark_loses_meanwhile():
    store = SortedStore(even(3000))
    iterator = iterator_over(store, task=MemorySourceTask(store, page_size=PAGE))

    def on_executors(wave):
        iterator.close()
        raise RuntimeError("job was cancelled")

    lister = wave_lister(iterator, MemorySourceTask, lambda: Executors(width=lambda: 2, run=on_executors))
    listing = lister(ListingRequest(prefix="", after=""))
    with pytest.raises(TaskClosedError):
        list(listing)
    assert not listing.complete


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "left"])
def test_what_a_wave_may_ask_at_once_is_given_back_when_nobody_waits_for_its_end(lost):
    """What one listing keeps, all later ones lack."""
    store = SortedStore(even(3000))
    iterator = iterator_over(store, task=MemorySourceTask(store, page_size=PAGE))
    begun = []

    def on_executors(wave):
        begun.append(wave)
        if lost:
            raise RuntimeError("executors are gone")
        return [one for batch in wave for one in list_ranges(iterator, batch)]

    lister = wave_lister(iterator, MemorySourceTask, lambda: Executors(width=lambda: 2, run=on_executors))
    listing = lister(ListingRequest(prefix="", after=""))
    if lost:
        with pytest.raises(FatalError):
            list(listing)
    while not begun:
        next(listing)
    listing.close()
    iterator.close()
    assert iterator.limiter._under_way == 0


def test_a_budget_is_dealt_out_with_the_ranges(monkeypatch):
    store = SortedStore(even(3000))
    budgets, given = [], []
    monkeypatch.setattr(range_batch, "CallLimiter", lambda **options: given.append(options) or CallLimiter(**options))
    iterator = iterator_over(
        store,
        task=MemorySourceTask(store, page_size=PAGE),
        list_requests_per_second=1e6,
        list_bytes_per_second=10**9,
    )

    def on_executors(wave):
        given.clear()
        found = [one for batch in wave for one in list_ranges(iterator, batch)]
        assert len(given) == len(wave)
        budgets.append(tuple(sum(one[name] for one in given) for name in ("requests_per_second", "bytes_per_second")))
        return found

    lister = wave_lister(iterator, MemorySourceTask, lambda: Executors(width=lambda: 3, run=on_executors))
    list(lister(ListingRequest(prefix="", after="")))
    iterator.close()
    assert budgets
    assert all(pair == pytest.approx((1e6, 1e9)) for pair in budgets)


@given(
    st.lists(
        st.builds(
            NativeObject,
            scheme=st.just("s3"),
            bucket=st.just("b"),
            key=st.text(min_size=1),
            size=st.integers(0, 1 << 45),
            version=st.text(),
            modified_ms=st.integers(0, 1 << 42),
            storage_class=st.sampled_from(["", "STANDARD"]),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_pages_are_packed_and_unpacked(objects):
    assert unpacked(packed(objects)) == objects


def test_an_executor_makes_its_iterator_once_for_a_source(monkeypatch):
    made = []

    class CountedTask(MemorySourceTask):
        def get_iterator(self, context):
            made.append(self)
            return super().get_iterator(context)

    monkeypatch.setitem(globals(), "CountedTask", CountedTask)
    CountedTask.__qualname__ = "CountedTask"
    config = iterator_over(MemoryStore()).config
    batch = listing_waves.RangeBatch(
        task_class=CountedTask, config=config, prefix="", tasks=[listing_waves.RangeTask(1, "", None, 1)]
    )
    for _ in range(3):
        assert [(one.pages, one.failure) for one in list_batch(batch)] == [([], None)]
    assert len(made) == 1


def test_an_executor_lists_for_a_source_that_the_users_script_defines():
    """Its class travels by its code, and is no attribute of any module there."""
    made = []

    class ScriptTask(MemorySourceTask):
        def get_iterator(self, context):
            made.append(self)
            return super().get_iterator(context)

    ScriptTask.__module__ = "__main__"
    config = iterator_over(MemoryStore()).config
    tasks = [listing_waves.RangeTask(1, "", None, 1)]
    for _ in range(2):
        batch = listing_waves.RangeBatch(
            task_class=ScriptTask, config=pickle.loads(pickle.dumps(config)), prefix="", tasks=tasks
        )
        assert [(one.pages, one.failure) for one in list_batch(batch)] == [([], None)]
    assert len(made) == 1
    with_another = attrs.evolve(config, source=attrs.evolve(config.source, name="another"))
    list_batch(attrs.evolve(batch, config=with_another))
    assert len(made) == 2


def test_a_store_that_stays_away_is_reported_with_what_was_found_before():
    store = SortedStore(even(3000))

    def away():
        if len(store.calls) > 30:
            raise StoreUnavailableError("away")

    store.before = away
    with pytest.raises(StoreUnavailableError, match=r"away \(gave up"):
        listed(store)
