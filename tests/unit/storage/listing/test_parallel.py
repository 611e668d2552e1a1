"""A prefix listed by many threads: every object once, in any weather, from any store."""

import logging
import threading
import time
from bisect import bisect_right
from contextlib import closing

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framework.errors import (
    AccessDeniedError,
    ListingError,
    StoreContractError,
    StoreUnavailableError,
    TaskClosedError,
    ThrottledError,
)
from framework.model.objects import NativeObject
from framework.offsets.listing_hints import worth_keeping
from framework.storage.listing import parallel
from framework.storage.listing import planner as listing_planner
from framework.storage.listing.first_contact import SinglePages
from framework.storage.listing.limiter import CallLimiter
from framework.storage.listing.listing import ListingRequest
from framework.storage.listing.pages import checked_keys, list_range
from framework.storage.listing.parallel import ParallelListing
from framework.storage.listing.range_tasks import RangeTask
from framework.storage.retry import RetryPolicy
from framework.store import ListPage, ObjectStore
from framework.testing.clock import FakeClock
from framework.testing.fakes.memory_store import MemoryStore
from tests.support.examples import examples
from tests.support.listing import dates, native
from tests.support.stopwatch import Stopwatch

POLICY = RetryPolicy(jitter=0.0).without_waiting()


class SortedStore(ObjectStore):
    """Lists its keys in the order of `order`, and takes `after` as a place in that order, as real stores do."""

    scheme = "memory"

    def __init__(self, keys, order=str.encode, *, empty_pages=False, delay=0.0):
        self.bucket = "b"
        self.order = order
        self.keys = sorted(keys, key=order)
        self.places = [order(key) for key in self.keys]
        self.empty_pages = empty_pages
        self.delay = delay
        self.calls = []
        self.lock = threading.Lock()
        self.most = self.now = 0
        self.before = lambda: None

    def list_page(self, *, prefix="", after="", continuation=None, page_size=1000):
        with self.lock:
            self.calls.append((after, continuation))
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            self.before()
            time.sleep(self.delay)
            return self.answer(prefix, after, continuation, page_size)
        finally:
            with self.lock:
                self.now -= 1

    def answer(self, prefix, after, continuation, page_size):
        empty = continuation is None or not continuation.startswith("+")
        border = after if continuation is None else continuation[1:]
        if self.empty_pages and empty:
            return ListPage(objects=[], continuation="+" + border)
        at = bisect_right(self.places, self.order(border)) if border else 0
        named = [key for key in self.keys[at:] if key.startswith(prefix)]
        objects = [native(key) for key in named[:page_size]]
        return ListPage(
            objects=objects, continuation="-" + objects[-1].key if len(named) > page_size else None, server_time_ms=5
        )

    def open(self, native, start=0, end=None):
        raise NotImplementedError

    def close(self):
        pass


class BoundedStore(SortedStore):
    """Shows nothing behind `until`, but for a control character: as GCS with an `endOffset`."""

    bounds_pages = True

    def __init__(self, keys, **options):
        super().__init__(keys, **options)
        self.shown = 0

    def list_page(self, *, until=None, **call):
        page = super().list_page(**call)
        objects = [one for one in page.objects if until is None or one.key < f"{until} "]
        with self.lock:
            self.shown += len(objects)
        return page if len(objects) == len(page.objects) else ListPage(objects=objects, server_time_ms=5)


def like_folders(key):
    """SeaweedFS: a folder's content stands where the folder's name sorts, so `a/b` comes before `a b`."""
    return [part.encode() for part in key.split("/")]


def listing_of(store, *, prefix="", after="", histogram=(), unordered=False, **options):
    request = ListingRequest(prefix=prefix, after=after, histogram=histogram, unordered=unordered)
    options = {"policy": POLICY, "concurrency": 4, "page_size": 7, "limiter": CallLimiter()} | options
    return ParallelListing(store=store, request=request, **options)


def listed(store, **options):
    with closing(listing_of(store, **options)) as listing:
        pages = [[one.key for one in page] for page in listing]
        assert listing.complete
    return pages, listing


def flat(pages):
    return [key for page in pages for key in page]


KEYS = st.lists(
    st.text(
        st.one_of(st.sampled_from("ab /-.%2F+\x01\U00010000\ufffd"), st.characters(exclude_categories=["Cs"])),
        min_size=1,
        max_size=5,
    ),
    max_size=120,
    unique=True,
)


@given(
    KEYS, st.integers(1, 9), st.integers(1, 9), st.booleans(), st.sampled_from([SortedStore, BoundedStore]), st.data()
)
@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_object_comes_once_from_an_ordered_store(keys, page_size, concurrency, empty_pages, make, data):
    after = data.draw(st.sampled_from(["", *keys]))
    store = make(keys, empty_pages=empty_pages)
    pages, listing = listed(store, page_size=page_size, concurrency=concurrency, after=after)
    assert sorted(flat(pages)) == sorted(key for key in keys if key > after)
    assert listing.counts.objects == len(flat(pages))
    assert listing.counts.calls == len(store.calls)
    assert listing.server_time_ms == 5
    if concurrency > 1:
        assert not listing.counts.serial
        again, _ = listed(store, page_size=page_size, concurrency=concurrency, after=after, histogram=listing.histogram)
        assert sorted(flat(again)) == sorted(flat(pages))


@pytest.mark.parametrize("concurrency", [1, 4, 16])
def test_names_that_are_no_unicode_are_keys_as_any_other(concurrency):
    """Names of files, as Python decodes them: a source of such a store lists them, and keeps its plan for the next listing."""
    keys = [f"dir{number % 7}/{chr(0xDC80 + number % 128)}\u00e9{number}\ud800" for number in range(700)]
    store = SortedStore(keys, order=str)
    pages, listing = listed(store, concurrency=concurrency)
    assert sorted(flat(pages)) == sorted(keys)
    assert bool(worth_keeping(listing.histogram, 7)) is (concurrency > 1)
    again, _ = listed(store, concurrency=concurrency, histogram=listing.histogram)
    assert sorted(flat(again)) == sorted(keys)


FOLDERS = st.lists(st.text(st.sampled_from("ab /-"), min_size=1, max_size=5), max_size=100, unique=True)


@given(FOLDERS, st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_object_comes_once_from_a_store_in_another_order_than_it_says(keys, page_size, concurrency):
    pages, _ = listed(SortedStore(keys, like_folders), page_size=page_size, concurrency=concurrency)
    assert sorted(flat(pages)) == sorted(keys)


def test_a_hole_that_no_page_shows_is_noticed_and_nothing_is_lost_or_repeated(caplog):
    folders = [f"{name}/{number:03d}" for name in "BCDEF" for number in range(60)]
    siblings = [f"{name}-{number:03d}" for name in "BCDEF" for number in range(60)]
    store = SortedStore(folders + siblings, like_folders, delay=0.001)
    with caplog.at_level(logging.WARNING, "framework"):
        pages, listing = listed(store, concurrency=8)
    assert sorted(flat(pages)) == sorted(folders + siblings)
    assert listing.counts.serial
    assert listing.histogram == []
    assert len(caplog.messages) == 1
    assert "out of order" in caplog.text
    assert "memory://b/" in caplog.text


class Queue(SortedStore):
    """A bucket that is used as a queue: between any two calls the front of every folder is taken, or something is put there."""

    def __init__(self, folders, *, taken, put=False, **options):
        super().__init__([f"{folder:02}/{number:05}" for folder in folders for number in range(1000, 1200)], **options)
        self.folders, self.taken, self.put = folders, taken, put
        self.before = self.change
        self.front = dict.fromkeys(folders, 1000)

    def change(self):
        with self.lock:
            for folder in self.folders:
                for _ in range(self.taken):
                    name = f"{folder:02}/{self.front[folder]:05}"
                    if self.put:  # the newest first: each comes before all others
                        self.front[folder] -= 1
                        name = f"{folder:02}/{self.front[folder]:05}"
                        if name not in self.keys:
                            self.keys.insert(bisect_right(self.keys, name), name)
                    elif self.front[folder] < 1190:
                        self.front[folder] += 1
                        if name in self.keys:
                            self.keys.remove(name)
            self.places = [self.order(key) for key in self.keys]

    def answer(self, *call):
        with self.lock:  # each answer shows one state of the bucket
            return super().answer(*call)


@pytest.mark.parametrize("documented", [True, False])
@pytest.mark.parametrize("put", [True, False])
def test_keys_that_come_and_go_at_every_cut_do_not_make_a_store_unordered(documented, put, caplog):
    store = Queue(range(8), taken=1, put=put, delay=0.0005)
    store.order_is_documented = documented
    histogram = [(f"{folder:02}/00999", 200) for folder in range(8)]  # each cut is where the keys change
    with caplog.at_level(logging.WARNING, "framework"):
        pages, listing = listed(store, concurrency=8, histogram=histogram, page_size=5)
    assert not listing.unordered
    assert not listing.counts.serial
    assert not caplog.messages
    found = flat(pages)
    assert len(found) == len(set(found))
    stable = {f"{folder:02}/{number:05}" for folder in range(8) for number in range(1190 if not put else 1000, 1200)}
    assert stable <= set(found)


class Locked(SortedStore):
    """A bucket of folders with a lock file each: between any two calls every lock is deleted, or written again."""

    def __init__(self, folders, **options):
        super().__init__([f"{folder:02}/{number:05}" for folder in folders for number in range(1000, 1200)], **options)
        self.folders = folders
        self.before = self.change
        self.changes = 0

    def change(self):
        with self.lock:
            self.changes += 1
            locks = [f"{folder:02}/00999" for folder in self.folders if self.changes % 2]
            self.keys = sorted([key for key in self.keys if not key.endswith("/00999")] + locks)
            self.places = [self.order(key) for key in self.keys]

    def answer(self, *call):
        with self.lock:  # each answer shows one state of the bucket
            page, version = super().answer(*call), f"{self.changes}"
        shown = [attrs.evolve(one, version=version) if one.key.endswith("/00999") else one for one in page.objects]
        return attrs.evolve(page, objects=shown)


def test_a_key_that_is_deleted_and_put_again_between_calls_does_not_make_a_store_unordered(caplog):
    store = Locked(range(8), delay=0.0005)
    store.order_is_documented = False
    histogram = [(f"{folder:02}/00998", 200) for folder in range(8)]  # each cut is where the keys change
    with caplog.at_level(logging.WARNING, "framework"):
        pages, listing = listed(store, concurrency=8, histogram=histogram, page_size=5)
    assert not caplog.messages
    assert not listing.unordered
    assert {key for key in store.keys if not key.endswith("/00999")} <= set(flat(pages))


@pytest.mark.parametrize("period", [1, 2, 3, 7])
@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("after", ["", "0"])
def test_empty_pages_whose_tokens_go_in_a_circle_end_with_an_error(period, concurrency, after):
    class Circle(SortedStore):
        def answer(self, prefix, after, continuation, page_size):
            number = int(continuation or 0)
            return ListPage(objects=[], continuation=str(1 + number % period))

    store = Circle(["a"])
    store.before = lambda: len(store.calls) < 200 or pytest.fail("it lists without end")
    with pytest.raises(ListingError, match="without objects, repeats itself"):
        listed(store, concurrency=concurrency, after=after)
    with pytest.raises(ListingError, match="repeats itself"):
        list(store.list_all())
    with pytest.raises(ListingError, match="repeats itself"):
        store.stat("a")
    assert len(store.calls) < 100


@pytest.mark.parametrize(
    "read", [lambda store: listed(store)[0], lambda store: [[native.key for native in store.list_all()]]]
)
def test_a_listing_of_thousands_of_empty_pages_says_so_and_goes_on(caplog, read):
    class Empty(SortedStore):
        def answer(self, prefix, after, continuation, page_size):
            number = int(continuation or 0)
            if number < 5000:
                return ListPage(objects=[], continuation=str(number + 1))
            return super().answer(prefix, after, None, page_size)

    with caplog.at_level(logging.WARNING, "framework"):
        assert flat(read(Empty(["a"]))) == ["a"]
    told = [
        message.partition("the store answered ")[2].partition(" without an object")[0] for message in caplog.messages
    ]
    assert told == [f"{count} pages of the listing" for count in (1024, 2048, 4096)]


class Mangling(SortedStore):
    """Shows U+FFFD where a key has a control character: behind that, the next keys would be missing."""

    def answer(self, prefix, after, continuation, page_size):
        page = super().answer(prefix, after, continuation, page_size)
        shown = [attrs.evolve(one, key=one.key.replace("\x01", "\ufffd")) for one in page.objects]
        return attrs.evolve(page, objects=shown, exact=all("\ufffd" not in one.key for one in shown))


def test_a_key_that_is_not_shown_as_it_is_is_never_gone_on_behind(caplog):
    keys = ["a", "b\x01c", "ba", "bb", "c"]
    for concurrency in (1, 4):
        pages, listing = listed(Mangling(keys), concurrency=concurrency, page_size=2, after="a")
        assert sorted(flat(pages)) == sorted(["b\ufffdc", "ba", "bb", "c"])
        assert listing.counts.serial


@pytest.mark.parametrize("page_size", [2, 1000])
def test_a_key_that_is_not_shown_as_it_is_makes_the_next_listing_one_chain_without_a_warning(caplog, page_size):
    keys = ["a", "b\x01c", "c", "d", "e"]  # in order also as they are shown
    _, first = listed(Mangling(keys), page_size=page_size)
    assert first.unordered
    caplog.clear()
    with caplog.at_level(logging.WARNING, "framework"):
        pages, second = listed(Mangling(keys), page_size=page_size, unordered=first.unordered)
    assert flat(pages) == ["a", "b\ufffdc", "c", "d", "e"]
    assert second.unordered
    assert caplog.messages == []
    assert not listed(Mangling(["a", "c", "d", "e"]), page_size=page_size, unordered=True)[1].unordered


def test_a_store_that_shows_the_key_it_was_asked_to_start_behind_repeats_nothing():
    class Inclusive(SortedStore):
        def answer(self, prefix, after, continuation, page_size):
            if continuation is None and after in self.keys:
                page = super().answer(prefix, after, None, page_size)
                return ListPage(objects=[native(after), *page.objects], continuation=page.continuation)
            return super().answer(prefix, after, continuation, page_size)

    pages, _ = listed(Inclusive(dates(300)))
    assert sorted(flat(pages)) == dates(300)


def test_a_store_without_order_is_listed_by_one_chain_that_never_starts_in_the_middle(caplog):
    store = SortedStore(dates(300), lambda key: key[::-1])
    store.ordered = False
    with caplog.at_level(logging.WARNING, "framework"):
        pages, listing = listed(store, after="logs/2023/11/02")
    assert sorted(flat(pages)) == sorted(key for key in store.keys if key > "logs/2023/11/02")
    assert {after for after, _ in store.calls} == {""}
    assert store.most == 1
    assert listing.counts.serial
    assert caplog.messages == []  # the iterator says so once, and not with each listing


def test_with_one_call_at_once_it_is_one_chain():
    store = SortedStore(dates(200))
    pages, listing = listed(store, concurrency=1)
    assert flat(pages) == store.keys
    assert len(store.calls) == -(-200 // 7)
    assert listing.counts.serial


def test_one_chain_behind_a_key_notices_that_there_is_no_order():
    keys = [f"a/{number:02d}" for number in range(30)] + [f"a {number:02d}" for number in range(30)]
    store = SortedStore(keys, like_folders)
    pages, _ = listed(store, concurrency=1, after="a/05")
    assert sorted(flat(pages)) == sorted(key for key in keys if key > "a/05")


class SkipsBehindItsToken(SortedStore):
    """MinIO: the token of a page that was asked for behind a key that does not exist leaves a key out (minio/minio 21463)."""

    def answer(self, prefix, after, continuation, page_size):
        page = super().answer(prefix, after, continuation, page_size)
        if page.continuation is None or not after or after in self.keys:
            return page
        behind = self.keys.index(page.objects[-1].key) + 1
        return attrs.evolve(page, continuation=f"-{self.keys[behind]}")


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_token_that_leaves_a_key_out_behind_a_start_key_is_not_used(concurrency):
    store = SkipsBehindItsToken(dates(60))
    pages, listing = listed(store, concurrency=concurrency, after="logs/2023/11/01/host-01!")
    assert sorted(flat(pages)) == [key for key in store.keys if key > "logs/2023/11/01/host-01!"]
    assert listing.counts.calls == len(store.calls)


def test_order_noticed_too_late_to_remember_is_an_error(monkeypatch):
    monkeypatch.setattr(parallel, "REMEMBERED_KEYS", 5)
    keys = [f"A{number:03d}" for number in range(60)] + ["Z/1", "Z 1", "Z/2", "Z 2"]
    with pytest.raises(ListingError, match="too late"):
        listed(SortedStore(keys, like_folders))


class Stuck(SortedStore):
    """Answers the same page for ever."""

    def answer(self, prefix, after, continuation, page_size):
        objects = [native(key) for key in self.keys[:page_size]]
        return ListPage(objects=objects, continuation=f"{len(self.calls)}")


class StuckEmpty(SortedStore):
    def answer(self, prefix, after, continuation, page_size):
        return ListPage(objects=[], continuation="same")


@pytest.mark.parametrize("concurrency", [1, 4])
def test_pages_that_make_no_progress_end_with_an_error_that_names_bucket_and_keys(concurrency):
    with pytest.raises(ListingError, match=r"memory://b/.*'k00' to 'k06'.*repeats itself"):
        listed(Stuck([f"k{number:02d}" for number in range(20)]), concurrency=concurrency)
    with pytest.raises(ListingError, match="repeats itself"):
        listed(StuckEmpty([]), concurrency=concurrency)


def test_a_circle_of_pages_is_noticed():
    class Circle(SortedStore):
        def answer(self, prefix, after, continuation, page_size):
            at = int(continuation or 0)
            return ListPage(objects=[native(f"k{at}")], continuation=str((at + 1) % 5))

    store = Circle([])
    store.ordered = False
    with pytest.raises(ListingError, match="repeats itself"):
        listed(store)


class WithoutPrefix(SortedStore):
    """What answers loses the prefix on the way."""

    def answer(self, prefix, after, continuation, page_size):
        return super().answer("", after, continuation, page_size)


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("after", ["", "b/05"])
def test_keys_of_another_prefix_are_an_error(concurrency, ordered, after):
    store = WithoutPrefix([f"{folder}/{number:02}" for folder in "abc" for number in range(10)])
    store.ordered = ordered
    seen = []
    with (
        pytest.raises(ListingError, match=r"memory://b/b/: the listing shows '[ac]/.*does not begin with the prefix"),
        closing(listing_of(store, prefix="b/", after=after, concurrency=concurrency)) as listing,
    ):
        seen.extend(key.key for page in listing for key in page)
    assert all(key.startswith("b/") for key in seen)
    with pytest.raises(ListingError, match="does not begin with the prefix"):
        SinglePages(store, POLICY, 7, lambda *_: None).ask("b/", "")
    with pytest.raises(ListingError, match="does not begin with the prefix"):
        list(list_range(store, RangeTask(1, "b/05", None, 9), prefix="b/", page_size=7))


@pytest.mark.parametrize("ordered", [True, False])
def test_a_key_of_another_prefix_between_keys_out_of_order_is_an_error(ordered):
    class Mixed(SortedStore):
        def answer(self, prefix, after, continuation, page_size):
            return ListPage(objects=[native(key) for key in ("b/2", "c/1", "b/1")])

    store = Mixed([])
    store.ordered = ordered
    with (
        pytest.raises(ListingError, match=r"memory://b/b/: the listing shows 'c/1'.*does not begin with the prefix"),
        closing(listing_of(store, prefix="b/")) as listing,
    ):
        list(listing)


@pytest.mark.parametrize(
    ("page", "found"),
    [
        (None, "NoneType"),
        ([], "list"),
        (ListPage(objects=iter(())), "a page whose objects are tuple_iterator"),
        (ListPage(objects=["a"]), "a page of str"),
        (ListPage(objects=[NativeObject(bucket="b", key=7, size=1, version="v")]), "an object with the key 7"),
    ],
)
@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_page_that_is_none_is_named(page, found, concurrency):
    class Mistaken(SortedStore):
        """Its pages behind a key are none."""

        def answer(self, prefix, after, continuation, page_size):
            return page if after or continuation else super().answer(prefix, after, continuation, page_size)

    store = Mistaken(dates(60))
    message = f"^memory://b/: Mistaken.list_page returned {found}, not a ListPage"
    with (
        pytest.raises(StoreContractError, match=message),
        closing(listing_of(store, concurrency=concurrency)) as listing,
    ):
        list(listing)
    with pytest.raises(StoreContractError, match=message):
        SinglePages(store, POLICY, 7, lambda *_: None).ask("", store.keys[0])


def test_a_first_page_that_failed_is_asked_for_again():
    store = SortedStore(["a", "b"], delay=0.05)
    pages = SinglePages(store, RetryPolicy(attempts=1), 7, lambda *_: None)
    for text in ("away", "still away"):
        store.before = lambda text=text: (_ for _ in ()).throw(StoreUnavailableError(text))
        with pytest.raises(StoreUnavailableError, match=rf"^{text} "):
            pages.ask("", "")
    store.before = lambda: None
    assert [native.key for native in pages.ask("", "").objects] == ["a", "b"]
    assert pages.answered


def test_a_first_page_is_not_waited_for_once_it_is_closed():
    store, gate = SortedStore(["a"]), threading.Event()
    store.before = lambda: gate.wait(60)
    pages = SinglePages(store, POLICY, 7, lambda *_: None)
    pages.close()
    with pytest.raises(TaskClosedError, match=r"^memory://b/: closed while listing"):
        pages.ask("", "")
    gate.set()


def test_pages_of_a_range_are_refused_when_out_of_order():
    with pytest.raises(ListingError, match=r"memory://b/p.*'a b' after 'a/b'"):
        checked_keys("memory://b/p", ListPage(objects=[native("a/b"), native("a b")]), "")
    with pytest.raises(ListingError, match=r"'m'.*'k'"):
        checked_keys("memory://b/p", ListPage(objects=[native("k"), native("z")]), "m")
    with pytest.raises(ListingError, match=r"'k'.*'k'"):
        checked_keys("memory://b/p", ListPage(objects=[native("k"), native("z")]), "k")
    with pytest.raises(ListingError, match="out of order"):
        list(list_range(Stuck(["a", "b"]), RangeTask(1, "", None, 5), prefix="", page_size=2))


def test_a_range_stops_after_its_pages_and_at_its_end():
    store = SortedStore([f"{number:03d}" for number in range(100)])
    results = [result for _, result in list_range(store, RangeTask(1, "009", "029", 9), prefix="", page_size=8)]
    assert [one.keys for one in results] == [8, 8, 4]
    assert (results[-1].exhausted, results[-1].beyond) == (True, "030")
    results = [result for _, result in list_range(store, RangeTask(1, "009", None, 2), prefix="", page_size=8)]
    assert [(one.keys, one.exhausted) for one in results] == [(8, False), (8, False)]


def test_a_range_of_a_store_that_bounds_pages_is_asked_for_to_its_end():
    store = BoundedStore([f"{number:03d}" for number in range(100)])
    results = [result for _, result in list_range(store, RangeTask(1, "009", "029", 9), prefix="", page_size=8)]
    assert [one.keys for one in results] == [8, 8, 4]
    assert store.shown == 20
    assert (results[-1].exhausted, results[-1].beyond, results[-1].looked_beyond) == (True, None, False)
    (result,) = [result for _, result in list_range(store, RangeTask(1, "0291", "0295", 9), prefix="", page_size=8)]
    assert (result.keys, result.exhausted, store.shown) == (0, True, 20)


def test_a_second_listing_over_a_store_that_bounds_pages_is_shown_no_key_twice():
    keys = [f"{number:05d}" for number in range(1000)]
    _, first = listed(SortedStore(keys), concurrency=4)
    store = BoundedStore(keys)
    pages, listing = listed(store, concurrency=4, histogram=first.histogram, page_size=50)
    assert sorted(flat(pages)) == keys
    assert not listing.counts.serial
    assert store.shown - len(keys) <= 50 * 4  # ranges that were cut while they were asked for


def test_throttled_calls_are_tried_again_and_the_limit_falls():
    store, limiter = SortedStore(dates(2000), delay=0.001), CallLimiter()
    numbers = iter(range(10**6))

    def one_in_five():
        if next(numbers) % 5 == 3:
            raise ThrottledError("slow down")

    store.before = one_in_five
    seen = []
    pages, listing = listed(store, concurrency=16, limiter=limiter, on_retry=lambda *told: seen.append(told))
    assert sorted(flat(pages)) == store.keys
    assert listing.counts.throttled == listing.counts.retries == len(seen) > 50
    assert store.most <= 16
    assert limiter.allowed < 16


def test_calls_at_once_start_few_and_never_pass_the_concurrency_or_the_limiter():
    store = SortedStore(dates(2000), delay=0.002)
    listed(store, concurrency=8)
    assert 4 < store.most <= 8
    store = SortedStore(dates(2000), delay=0.002)
    listed(store, concurrency=8, limiter=CallLimiter(most=3))
    assert store.most == 3


def test_two_listings_share_one_limiter():
    limiter, stores = CallLimiter(most=3), [SortedStore(dates(700), delay=0.001) for _ in range(2)]
    found = [None, None]

    def run(at):
        found[at] = flat(listed(stores[at], limiter=limiter)[0])

    threads = [threading.Thread(target=run, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [sorted(keys) for keys in found] == [stores[0].keys] * 2
    assert limiter.take(10) == 3  # all leave came back


def test_the_budget_of_requests_is_kept_on_the_policy_s_clock():
    clock = FakeClock()
    policy = RetryPolicy(clock=clock, wait=clock.wait)
    store = SortedStore(dates(350))
    began = clock()
    _, listing = listed(store, policy=policy, limiter=CallLimiter(clock=clock, requests_per_second=10))
    assert clock() - began >= (listing.counts.calls - 1) / 10 - 1e-6


def test_what_was_listed_before_a_failure_is_handed_out_first():
    store = MemoryStore()
    for key in dates(100):
        store.put(key, b"x")
    store.fail("list_page", AccessDeniedError("no"), skip=3, times=None)
    with closing(listing_of(store, concurrency=2)) as listing:
        assert len(next(listing)) == 7  # the first page; of the next two one may be for nothing
        for _ in range(2):
            with pytest.raises(AccessDeniedError):
                flat(listing)
        assert listing.counts.objects in (14, 21)
        assert not listing.complete
        assert listing.histogram == []


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_store_that_is_closed_under_it_is_a_failure_and_not_the_end(concurrency):
    store = MemoryStore()
    for key in dates(100):
        store.put(key, b"x")
    with closing(listing_of(store, concurrency=concurrency)) as listing:
        store.on_call = lambda call: store.count("list_page") == 2 and store.close()
        with pytest.raises(TaskClosedError):
            flat(listing)
        assert not listing.complete


def test_a_failure_that_lasts_ends_with_the_policy():
    store = MemoryStore()
    store.put("a", b"x")
    store.fail("list_page", StoreUnavailableError("away"), times=None)
    with pytest.raises(StoreUnavailableError, match=r"memory://bucket/p.*8 tries"):
        listed(store, prefix="p")


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_consumer_that_does_not_take_holds_the_calls_up(concurrency):
    store = SortedStore(dates(3000))
    with closing(listing_of(store, concurrency=concurrency)) as listing:
        next(listing)
        calls = -1
        while calls != len(store.calls):  # until it stands still
            calls = len(store.calls)
            time.sleep(0.05)
        assert calls <= 4 * concurrency + 2
        rest = sum(len(page) for page in listing)
    assert rest + 7 == 3000


@pytest.mark.parametrize("concurrency", [1, 4])
def test_closing_ends_it_early_and_soon_even_in_a_wait_between_tries(concurrency):
    store = SortedStore(dates(2000))
    store.before = lambda: (_ for _ in ()).throw(StoreUnavailableError("away"))
    policy = RetryPolicy(base_seconds=30, cap_seconds=30, budget_seconds=300)
    with closing(listing_of(store, policy=policy, concurrency=concurrency)) as listing:
        threading.Timer(0.05, listing.close).start()
        began = Stopwatch()
        assert list(listing) == []
        assert began.seconds < 5
        assert not listing.complete


def test_closing_ends_the_threads_and_twice_is_fine():
    store = SortedStore(dates(2000), delay=0.001)
    listing = listing_of(store)
    next(listing)
    listing.close()
    listing.close()
    assert list(listing) == []
    deadline = time.monotonic() + 60
    while any(one.name.startswith("listing-") for one in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [one for one in threading.enumerate() if one.name.startswith("listing-")]


def test_nothing_is_asked_before_it_is_iterated_and_a_small_prefix_costs_one_call():
    store = SortedStore(["a/1", "a/2", "b/1"])
    listing = listing_of(store, prefix="a/", concurrency=8)
    assert store.calls == []
    assert flat([[one.key for one in page] for page in listing]) == ["a/1", "a/2"]
    assert len(store.calls) == 1
    pages, listing = listed(store, prefix="none/")
    assert pages == []
    assert listing.counts.calls == 1


def test_a_store_known_to_have_no_order_is_listed_by_one_chain_at_once(caplog):
    keys = [f"{folder}{letter}{number}" for folder in ("a", "a ", "a/") for letter in "xy" for number in range(20)]
    noticed, told = SortedStore(keys, like_folders), SortedStore(keys, like_folders)
    with caplog.at_level(logging.WARNING):
        _, listing = listed(noticed)
    assert listing.unordered
    assert len(caplog.messages) == 1
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        pages, listing = listed(told, unordered=True, after="a x")
    assert listing.unordered
    assert caplog.messages == []
    assert sorted(flat(pages)) == sorted(key for key in keys if key > "a x")
    assert len(told.calls) == len(keys) // 7 + 1


def test_what_lists_in_order_is_not_called_unordered():
    _, listing = listed(SortedStore([f"k{number:03}" for number in range(100)]))
    assert not listing.unordered


class EndsTooEarly(SortedStore):
    """Leaves hidden entries out after it has counted a page, and takes a page that is not full for the last one.

    So did SeaweedFS (10652), RustFS (3217) and others.
    """

    ends_are_reliable = False

    def answer(self, prefix, after, continuation, page_size):
        page = super().answer(prefix, after, continuation, page_size)
        shown = [one for one in page.objects if not one.key.endswith("!")]
        return attrs.evolve(page, objects=shown, continuation=page.continuation if len(shown) == page_size else None)


@given(st.integers(1, 9), st.integers(2, 9), st.integers(0, 300), st.data())
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_an_end_that_is_none_is_gone_on_behind(concurrency, page_size, count, data):
    keys = [f"k/{number:04}" for number in range(count)]
    hidden = data.draw(st.sets(st.sampled_from(keys))) if keys else set()
    marks = {f"{key}!" for key in sorted(hidden)[::page_size]}  # never a whole page of them: such an end shows no key
    store = EndsTooEarly([*keys, *marks])
    after = data.draw(st.sampled_from(["", "k/0007", *keys]))
    pages, listing = listed(store, concurrency=concurrency, page_size=page_size, after=after)
    assert sorted(flat(pages)) == [key for key in keys if key > after]
    assert listing.counts.calls == len(store.calls)
    assert not listing.unordered


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_writer_that_is_faster_than_a_call_does_not_keep_a_listing_from_its_end(concurrency, monkeypatch):
    monkeypatch.setattr(listing_planner, "MAX_CONFIRMATIONS", 20)
    store = EndsTooEarly(dates(20))

    def write():
        store.keys.append(f"z/{len(store.calls):05}")
        store.places.append(store.keys[-1].encode())

    store.before = write
    pages, _ = listed(store, concurrency=concurrency)
    assert set(dates(20)) < set(flat(pages))
    assert len(flat(pages)) == len(set(flat(pages)))
    assert len(store.calls) < 40


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("count", [0, 1, 7, 20])
def test_one_more_call_confirms_the_end_of_a_small_prefix(count, concurrency):
    store = EndsTooEarly(dates(20)[:count])
    pages, _ = listed(store, concurrency=concurrency)
    assert flat(pages) == store.keys
    assert len(store.calls) == -(-count // 7) + 1


@pytest.mark.parametrize("concurrency", [1, 4])
def test_no_end_is_confirmed_behind_a_control_character(concurrency):
    store = EndsTooEarly(["a", "b\x01"])
    pages, _ = listed(store, concurrency=concurrency)
    assert flat(pages) == store.keys
    assert len(store.calls) == 1


class Deaf(EndsTooEarly):
    def answer(self, prefix, after, continuation, page_size):
        return super().answer(prefix, "", continuation, page_size)


@pytest.mark.parametrize(("concurrency", "count"), [(1, 30), (1, 5), (4, 5)])
def test_a_store_that_takes_no_start_key_is_shown_no_key_twice_when_its_end_is_confirmed(concurrency, count):
    store = Deaf(dates(count))
    pages, listing = listed(store, concurrency=concurrency)
    assert flat(pages) == store.keys
    assert not listing.unordered


class Shifted(EndsTooEarly):
    """Gives the first calls behind the end another request's last page."""

    def __init__(self, keys, times):
        super().__init__(keys)
        self.times = times

    def answer(self, prefix, after, continuation, page_size):
        page = super().answer(prefix, after, continuation, page_size)
        if after != self.keys[-1] or not self.times:
            return page
        self.times -= 1
        return attrs.evolve(page, objects=[native(key) for key in self.keys[:2]], continuation=None)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_another_requests_answer_is_no_proof_of_an_end(concurrency):
    store = Shifted(dates(5), times=1)
    pages, listing = listed(store, concurrency=concurrency)
    assert flat(pages) == store.keys
    assert len(store.calls) == 3
    assert not listing.unordered
    with pytest.raises(StoreUnavailableError, match=r"the listing ends with .*: it answers another request"):
        listed(Shifted(dates(5), times=2), concurrency=concurrency)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_store_that_lists_two_versions_of_a_key_is_an_error(ordered, concurrency):
    """An index of all versions: each listing would send both again."""

    class Versions(SortedStore):
        def answer(self, prefix, after, continuation, page_size):
            return ListPage(objects=[attrs.evolve(native("k"), version=version) for version in ("v2", "v1")])

    store = Versions([])
    store.ordered = ordered
    with (
        pytest.raises(ListingError, match="the listing shows 'k' twice, as 'v2' and 'v1'; a store lists the present"),
        closing(listing_of(store, concurrency=concurrency)) as listing,
    ):
        list(listing)
