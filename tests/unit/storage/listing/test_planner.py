"""The planner of key ranges: every key once under any order of answers, in few calls, with all workers busy."""

import random
import statistics
from bisect import bisect_left, insort

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.storage.listing.histogram import CHARACTERS, POINTS, thinned
from framework.storage.listing.pages import in_range, list_range, merged
from framework.storage.listing.planner import Disagreement, RangePlanner, RangeResult, samples_of
from tests.support.examples import examples
from tests.support.listing import BUCKETS, native, page_of, simulate

ODD = st.text(
    st.one_of(
        st.sampled_from("ab/ %2F.0+\x01\x7f\ufffd\ufffe\U00010000\U0001f600\U0010ffff"),
        st.characters(exclude_categories=["Cs"]),
    ),
    min_size=1,
    max_size=6,
)
NUMBERS = st.integers(0, 5000).map(lambda number: f"logs/2024/{number % 12:02d}/part-{number:06d}.gz")
LAST_BYTE = st.integers(0, 5000).map(lambda number: "same/" * 8 + chr(0x100 + number))
KEYS = st.one_of(st.lists(ODD, max_size=150), st.lists(NUMBERS, max_size=400), st.lists(LAST_BYTE, max_size=400)).map(
    lambda keys: sorted(set(keys), key=str.encode)
)


class Listed:
    """Runs a planner over sorted keys, answering in random order; may change the keys on the way."""

    def __init__(self, keys, rand, *, page_size, prefix="", after="", bounded=False, **options):
        self.keys = keys
        self.rand = rand
        self.page_size = page_size
        self.prefix = prefix
        self.workers = options["workers"]
        self.shrink = options.get("shrink", True)
        self.bounded = bounded
        self.planner = RangePlanner(prefix=prefix, after=after, page_size=page_size, **options)
        self.found = []
        self.calls = 0

    def page(self, after, until=None):
        named = self.keys[bisect_left(self.keys, self.prefix) :] if self.prefix else self.keys
        named = [key for key in named if key.startswith(self.prefix)] if self.prefix else named
        if self.bounded and until is not None:
            named = [key for key in named if key <= until]
        return page_of(named, after, self.page_size)

    def run(self, change=lambda listed: None):
        under_way = []
        while not self.planner.finished:
            wanted = self.rand.randint(1, self.workers) - len(under_way)
            under_way += [(task, None) for task in self.planner.next_ranges(max(0, wanted))]
            if not under_way:
                under_way += [(task, None) for task in self.planner.next_ranges(1)]
            assert under_way, "nothing to do, and not finished"
            at = self.rand.randrange(len(under_way))
            task, page = under_way.pop(at)
            if self.shrink and page is None and self.rand.random() < 0.7:
                under_way.append((task, self.page(task.after, task.until)))  # asked now, answered later
            elif self.shrink:
                page = page or self.page(task.after, task.until)
                keys = [one.key for one in page.objects]
                until, bounded = self.planner.until(task.number), self.bounded and task.until is not None
                self.take(in_range(task.number, page, keys, until, 1, bounded=bounded))
            else:
                results = []
                for objects, result in list_range(StoreOf(self), task, prefix=self.prefix, page_size=self.page_size):
                    self.found.append([one.key for one in objects])
                    results.append(result)
                assert len(results) <= task.max_pages
                self.calls += len(results)
                self.planner.report(merged(results))
            change(self)
        return self

    def take(self, answer):
        objects, result = answer
        self.calls += 1
        self.found.append([one.key for one in objects])
        self.planner.report(result)

    @property
    def all(self):
        return sorted(key for page in self.found for key in page)


class StoreOf:
    scheme, bucket = "memory", "b"

    def __init__(self, listed):
        self.listed = listed
        self.bounds_pages = listed.bounded

    def list_page(self, *, prefix, after, continuation, page_size, until=None):
        return self.listed.page(after, until)


@given(
    keys=KEYS,
    page_size=st.integers(1, 50),
    workers=st.integers(1, 20),
    max_pages=st.integers(1, 7),
    shrink=st.booleans(),
    bounded=st.booleans(),
    past=st.one_of(st.just([]), KEYS),
    cut=st.floats(0, 1),
    rand=st.randoms(use_true_random=False),
)
@settings(max_examples=examples(300), deadline=None)
def test_every_key_comes_exactly_once(keys, page_size, workers, max_pages, shrink, bounded, past, cut, rand):
    after = keys[int(cut * (len(keys) - 1))] if keys and cut < 0.5 else ""
    histogram = [(key, rand.randint(1, 500)) for key in past]
    listed = Listed(
        keys, rand, page_size=page_size, workers=workers, max_pages=1 if shrink else max_pages, shrink=shrink,
        histogram=histogram, after=after, bounded=bounded,
    ).run()  # fmt: skip
    assert listed.all == [key for key in keys if key > after]
    assert not listed.planner.disagreements
    assert listed.planner.keys == len(listed.all)
    assert listed.planner.pages == listed.calls
    assert sum(count for _, count in listed.planner.histogram()) == len(listed.all)
    for page in listed.found:
        assert page == sorted(page)


@given(st.lists(ODD, max_size=80), ODD, st.integers(1, 7), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_only_the_prefix_is_listed(names, prefix, page_size, rand):
    keys = sorted({prefix + name for name in names} | set(names))
    listed = Listed(keys, rand, page_size=page_size, workers=5, prefix=prefix).run()
    assert listed.all == [key for key in keys if key.startswith(prefix)]


@given(KEYS, KEYS, st.integers(1, 20), st.integers(1, 12), st.randoms(use_true_random=False))
@settings(max_examples=examples(200), deadline=None)
def test_keys_that_exist_all_the_time_come_once_whatever_is_deleted_and_added(keys, added, page_size, workers, rand):
    before, extra, gone, new = set(keys), [key for key in added if key not in keys], set(), set()

    def change(listed):
        cuts = [one.until for one in listed.planner._ranges if one.until in listed.keys]
        if cuts or (listed.keys and rand.random() < 0.3):
            key = rand.choice(cuts or listed.keys)  # a key at a cut point, when there is one
            listed.keys.remove(key)
            gone.add(key)
        if extra and rand.random() < 0.3:
            new.add(extra[-1])
            insort(listed.keys, extra.pop())

    listed = Listed(list(keys), rand, page_size=page_size, workers=workers).run(change)
    found = listed.all
    assert len(found) == len(set(found))
    assert before - gone <= set(found) <= before | new


def test_ten_thousand_keys_that_differ_in_the_last_character_only():
    keys = ["same" * 50 + chr(0x20 + number) for number in range(10_000)]
    run = simulate(keys, 16, page_size=50)
    assert sorted(run.keys) == keys
    assert run.calls_per_page < 1.3


def test_keys_that_differ_in_the_last_character_only_cost_few_calls_in_whatever_order_pages_come():
    keys = ["one/very/long/stem/" * 10 + chr(0x4E00 + number) for number in range(10_000)]
    runs = [Listed(keys, random.Random(seed), page_size=100, workers=16).run() for seed in range(20)]
    assert all(run.all == keys for run in runs)
    assert statistics.mean(run.calls for run in runs) <= 1.3 * 100 + 24


def test_a_bucket_of_one_page_costs_one_call_and_a_small_one_little_more():
    assert simulate(["a", "b"], 64).calls == 1
    assert simulate([], 64).calls == 1
    for pages in (2, 3, 5):
        keys = [f"data/{number:05d}" for number in range(50 * pages)]
        assert simulate(keys, 64).calls <= 3 * pages, pages


FULL = 100_000
"""Keys; 2,000 pages of 50: the size that the limits are set for."""


@pytest.fixture(scope="module")
def buckets():
    return {name: make(FULL) for name, make in BUCKETS.items()}


@pytest.mark.parametrize(
    ("name", "workers", "jitter"),
    [
        *((name, *few_or_many) for name in BUCKETS for few_or_many in ((16, 0.6), (64, 0.0))),
        ("one 200-byte prefix", 4, 0.0),  # four are busy in each: 98 % of the time, with 1 % more calls at most
    ],
)
def test_the_workers_are_busy_and_calls_are_few(buckets, name, workers, jitter):
    keys = buckets[name]
    is_even = name.startswith("even")
    least = (0.6 if workers == 64 else 0.8) if is_even else (0.45 if workers == 64 else 0.7)
    first = simulate(keys, workers, jitter=jitter)
    assert sorted(first.keys) == keys
    assert first.speed >= least
    assert first.calls_per_page <= (1.1 if is_even else 1.3)
    second = simulate(keys, workers, histogram=first.histogram, jitter=jitter)
    assert sorted(second.keys) == keys
    assert second.calls_per_page <= 1.02
    assert second.speed >= least


SCRIPTS = {
    "Cyrillic": (range(0x0430, 0x0450), 0.8),
    "Thai": (range(0x0E01, 0x0E2F), 0.8),
    "Japanese": ([*range(0x3041, 0x3094), *range(0x30A1, 0x30F5), *range(0x4E00, 0x9FA6, 30)], 0.5),
    "Korean": (range(0xAC00, 0xD7A4), 0.35),
    "Chinese": (range(0x4E00, 0x9FA6), 0.35),
    "emoji": (range(0x1F300, 0x1F650), 0.5),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_workers_are_busy_whatever_the_script(script):
    """Of thousands of characters the first pages show a few, which are neighbors."""
    codes, least = SCRIPTS[script]
    rand, characters = random.Random(5), list(map(chr, codes))
    words = {
        "".join(rand.choices(characters, k=rand.randint(2, 6))) + f"/{rand.randrange(1000)}" for _ in range(40_000)
    }
    keys = sorted(words)
    found = simulate(keys, 16)
    assert sorted(found.keys) == keys
    assert found.speed >= least
    assert found.calls_per_page <= 1.1


def test_pages_that_end_with_their_range_cost_no_more_calls(buckets):
    keys = buckets["even numbers"]
    for histogram in ([], simulate(keys, 16).histogram):
        free, ended = (simulate(keys, 16, histogram=histogram, bounded=bounded) for bounded in (False, True))
        assert sorted(ended.keys) == keys
        assert ended.calls <= 1.01 * free.calls


def test_waves_of_long_tasks_need_few_waves(buckets):
    keys = buckets["date prefixes"]
    planner, waves, calls, found = RangePlanner(page_size=50, workers=16, max_pages=40, shrink=False), 0, 0, 0

    class Store:
        scheme, bucket, bounds_pages = "memory", "b", False

        @staticmethod
        def list_page(*, prefix, after, continuation, page_size):
            return page_of(keys, after, page_size)

    while not planner.finished:
        waves += 1
        for task in planner.next_ranges(16):
            results = [result for _, result in list_range(Store(), task, prefix="", page_size=50)]
            calls += len(results)
            found += sum(one.keys for one in results)
            planner.report(merged(results))
    assert found == len(keys)
    assert calls <= 1.3 * 2000
    assert waves <= 40


def test_both_sides_of_a_cut_must_agree_on_what_comes_first_behind_it():
    keys = [f"{number:04d}" for number in range(400)]
    planner = RangePlanner(page_size=10, workers=2, histogram=[("0199x", 200), ("0399", 200)])
    low, high = planner.next_ranges(2)
    assert (low.until, high.after) == ("0199x", "0199x")
    hole = page_of(keys, "0200", 10)  # the listing from the cut leaves "0200" out; the one from before will show it
    planner.report(in_range(high.number, hole, [one.key for one in hole.objects], high.until, 1)[1])
    planner.next_ranges(1)
    for start in range(0, 200, 10):
        assert not planner.disagreements
        page = page_of(keys, low.after, 15)
        listed = [one.key for one in page.objects]
        _, result = in_range(low.number, page, listed[: 10 if start < 190 else 15], low.until, 1)
        planner.report(result)
        low = next(iter(planner.next_ranges(1)), low)
    assert planner.disagreements == [Disagreement("0199", "0199x")]


def test_a_report_without_keys_and_without_end_is_refused():
    planner = RangePlanner(workers=2)
    (task,) = planner.next_ranges(1)
    with pytest.raises(ValueError, match="exhausted"):
        planner.report(RangeResult(number=task.number, last_key=None, keys=0, pages=1, exhausted=False))


@given(st.lists(ODD, max_size=60, unique=True).map(sorted), st.integers(1, 9))
def test_samples_count_every_key_once(keys, most):
    samples = samples_of(keys, most)
    assert sum(count for _, count in samples) == len(keys)
    assert [key for key, _ in samples] == sorted({key for key, _ in samples})
    if keys:
        assert (samples[0], samples[-1][0]) == ((keys[0], 1), keys[-1])
    for key, before in zip(samples[1:], samples, strict=False):
        assert keys.index(key[0]) - keys.index(before[0]) == key[1]


@given(st.lists(st.integers(1, 60), max_size=200), st.integers(1, 40))
def test_thinning_keeps_the_sum(counts, points):
    marks = [(f"{at:04d}", count) for at, count in enumerate(counts)]
    kept = thinned(marks, points)
    assert sum(count for _, count in kept) == sum(counts)
    assert len(kept) <= points + 1
    assert {key for key, _ in kept} <= {key for key, _ in marks}
    assert not marks or kept[-1][0] == marks[-1][0]


def test_a_histogram_is_small_even_for_long_keys():
    keys = ["k" * 900 + f"{number:06d}" for number in range(20_000)]
    histogram = simulate(keys, 8).histogram
    assert len(histogram) <= POINTS
    assert sum(len(key) for key, _ in histogram) <= CHARACTERS


def test_order_is_that_of_utf8_where_code_units_differ():
    keys = ["a\ufffd1", "a\ufffd2", "a\U00010000", "a\U0001f600", "b"]
    assert keys == sorted(keys, key=str.encode) == sorted(keys)
    assert sorted(keys, key=lambda key: key.encode("utf-16-be")) != keys
    for workers in (1, 3):
        listed = Listed(keys, random.Random(1), page_size=1, workers=workers).run()
        assert listed.all == keys


def test_a_native_object_is_what_pages_hold():
    assert page_of(["a"], "", 5).objects == [native("a")]
