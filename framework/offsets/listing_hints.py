"""Hints from a prefix's last complete listing, for the next listing and the next start: a few kB in the offsets log."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from itertools import accumulate, pairwise

from msgspec import Struct, field
from msgspec.structs import replace

from framework.storage.listing.histogram import POINTS, Histogram, thinned
from framework.storage.listing.keyspace import shared_length

SMALL_PAGES = 8
"""Listings with fewer pages are not saved: there is nothing to gain, and an idle source writes nothing."""

NOTABLE = 0.1
"""The hints are rewritten when their counts are off by this fraction of all keys at any split point."""

MAX_BYTES = 4096
"""Maximum size of a histogram, compressed."""

DISTINGUISHING = 4
"""Characters of a shortened split point to keep beyond the first that differs from the previous split point."""


class IncrementalMark(Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """The resume key of a prefix in discovery mode `incremental`; see `framework.discovery.incremental`.

    Attributes:
        after: every object up to this key that the last complete listing or a later listing showed is finished.
        whole_listing_ms: start of that complete listing, by this machine's clock, milliseconds since 1970 UTC.
        selection: the options that decided which objects were read; the mark is valid only under the same options.
    """

    after: str
    whole_listing_ms: int
    selection: str


class ListingHints(Struct, frozen=True, kw_only=True):
    """Hints for the next listing of a prefix. All of them refer to a single place: `of`. Its fields are its stored form.

    Attributes:
        of: the bucket as `s3://bucket`, and its endpoint; hints about another place are ignored.
        keys: split points of the distribution of the keys; empty for small or unordered listings.
        counts: number of keys up to each of them, from the one before it.
        unordered: the store listed out of order before: list it as a single chain of pages from the start.
        incremental: discovery mode `incremental` only.
    """

    of: str
    keys: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    unordered: bool = False
    incremental: IncrementalMark | None = field(default=None, name="tail")

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.counts):
            raise ValueError("split points without counts")

    @property
    def histogram(self) -> Histogram:
        """The distribution of the keys."""
        return tuple(zip(self.keys, self.counts, strict=True))

    def with_histogram(self, histogram: Histogram) -> ListingHints:
        """Return the hints with this distribution of the keys."""
        keys, counts = zip(*histogram, strict=True) if histogram else ((), ())
        return replace(self, keys=keys, counts=counts)


def worth_keeping(histogram: Histogram, page_size: int) -> Histogram:
    """Return the histogram of a complete listing in its stored form; empty for a small listing.

    Its keys are shortened, and then thinned, as far as needed to compress them into `MAX_BYTES`.
    """
    if sum(count for _, count in histogram) < SMALL_PAGES * page_size:
        return ()
    kept, points = histogram, POINTS
    while _packed_bytes(kept) > MAX_BYTES and len(kept) > 1:
        kept = shortened(thinned(histogram, points))
        points //= 2
    return kept


def _packed_bytes(histogram: Histogram) -> int:
    text = "\n".join(f"{key}\t{count}" for key, count in histogram)
    return len(zlib.compress(text.encode("utf-8", "surrogatepass")))


def shortened(histogram: Histogram) -> list[tuple[str, int]]:
    """Return the same split points, cut to the shortest text that stays near them. They need not exist as keys."""
    return [
        *histogram[:1],
        *(
            (key[: shared_length(before, key) + 1 + DISTINGUISHING], count)
            for (before, _), (key, count) in pairwise(histogram)
        ),
    ]


def differs_notably(past: Histogram, now: Histogram) -> bool:
    """Return whether a listing planned from `past` would be split badly, given the current distribution `now`."""
    keys, sums = [key for key, _ in now], [0, *accumulate(count for _, count in now)]
    counted, error = 0, abs(sums[-1] - sum(count for _, count in past))
    for key, count in past:
        counted += count
        error = max(error, abs(counted - sums[bisect_right(keys, key)]))
    return error > NOTABLE * sums[-1]
