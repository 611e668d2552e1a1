"""What is kept of a listing: small, as good as the whole, and written anew only when it tells something else."""

import hashlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.offsets import listing_hints
from framework.offsets.listing_hints import (
    MAX_BYTES,
    SMALL_PAGES,
    ListingHints,
    differs_notably,
    shortened,
    worth_keeping,
)
from tests.support.listing import BUCKETS, simulate

text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9)
histograms = st.dictionaries(text, st.integers(1, 100), min_size=1, max_size=30).map(
    lambda found: sorted(found.items())
)


@pytest.mark.parametrize("name", BUCKETS)
def test_what_is_kept_is_small_and_serves_the_next_listing_as_well_as_the_whole(name):
    keys = BUCKETS[name](50 * 600)
    first = simulate(keys, 16, page_size=50)
    kept = worth_keeping(first.histogram, 50)
    assert len(zlib.compress(repr(kept).encode())) < 1.5 * MAX_BYTES
    assert sum(count for _, count in kept) == len(keys)
    assert len(kept) >= len(first.histogram) // 2, "no more is left out than its size needs"
    second = simulate(keys, 16, page_size=50, histogram=kept)
    assert second.calls_per_page <= 1.02
    assert sorted(second.keys) == sorted(keys)


def test_of_a_histogram_that_is_too_large_no_more_is_left_out_than_its_size_needs(monkeypatch):
    monkeypatch.setattr(listing_hints, "MAX_BYTES", 1000)
    digests = sorted(hashlib.sha256(b"%d" % number).hexdigest() for number in range(480))  # they do not compress
    kept = worth_keeping([(digest, 100) for digest in digests], 50)
    assert 60 < len(kept) < 240
    assert sum(count for _, count in kept) == 48_000


@given(histograms)
def test_shortened_cut_points_keep_their_order_and_lie_between_the_keys_they_lay_between(histogram):
    kept = shortened(histogram)
    assert [count for _, count in kept] == [count for _, count in histogram]
    assert kept[0] == histogram[0]
    before = ""
    for (key, _), (cut, _) in zip(histogram, kept, strict=True):
        assert before < cut <= key
        before = key


@pytest.mark.parametrize("pages", [1, 3, SMALL_PAGES - 1])
def test_nothing_is_kept_of_a_small_listing(pages):
    keys = BUCKETS["even numbers"](50 * pages)
    assert worth_keeping(simulate(keys, 4, page_size=50).histogram, 50) == ()


@pytest.mark.parametrize("histogram", [(), (("a", 1), ("b", 2))])
def test_hints_have_the_distribution_that_they_were_given(histogram):
    given_before = ListingHints(of="s3://b", keys=("z",), counts=(9,), unordered=True)
    assert given_before.with_histogram(histogram).histogram == histogram
    assert given_before.with_histogram(histogram).unordered


def test_a_listing_of_as_many_pages_as_are_worth_it_is_kept():
    assert worth_keeping([("a", 10 * SMALL_PAGES)], 10) == [("a", 10 * SMALL_PAGES)]


def kept_of(keys):
    return worth_keeping([(key, 1) for key in sorted(keys)], 10)


EVEN = [f"{number:04}" for number in range(1000)]


@pytest.mark.parametrize(
    ("keys", "notable"),
    [
        (EVEN, False),
        (EVEN + [f"{number:04}x" for number in range(0, 1000, 20)], False),  # 5 % more, everywhere
        (EVEN + [f"{number:04}x" for number in range(0, 1000, 5)], True),  # 20 % more
        (EVEN + [f"{number:04}" for number in range(1000, 1050)], False),
        (EVEN + [f"{number:04}" for number in range(1000, 1300)], True),
        (EVEN[:500] + [f"{key}x" for key in EVEN[:500]], True),  # as many, elsewhere
        (EVEN[:850], True),
        ([], True),
    ],
)
def test_only_what_differs_notably_is_written_again(keys, notable):
    assert differs_notably(kept_of(EVEN), kept_of(keys)) is notable


def test_nothing_kept_and_nothing_to_keep_differ_in_nothing():
    assert not differs_notably((), ())
    assert differs_notably((), kept_of(EVEN))


@given(histograms, histograms)
def test_a_difference_is_notable_when_the_counts_at_a_cut_point_are_off_by_a_tenth(past, now):
    def up_to(histogram, key):
        return sum(count for one, count in histogram if one <= key)

    total = up_to(now, "\U0010ffff" * 10)
    worst = max(abs(up_to(past, key) - up_to(now, key)) for key in [*(one for one, _ in past), "\U0010ffff" * 10])
    assert differs_notably(past, now) is (worst > total / 10)
