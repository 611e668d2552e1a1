"""What is kept of a prefix's last complete listing, for the next pass and the next start: a few kB in the offsets log."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate, pairwise

import attrs

from framework.histogram import POINTS, Histogram, thinned
from framework.keyspace import shared_length
from framework.records import length_only

SMALL_PAGES = 8
"""A listing of fewer pages is not kept: there is nothing to gain, and an idle source writes nothing."""

NOTABLE = 0.1
"""What is kept is written anew when its counts are wrong by this part of all keys at any of its cut points."""

MOST_BYTES = 4096
"""What a histogram may take, packed."""

DISTINGUISHING = 4
"""So many characters of a shortened cut point are kept beyond the first that tells it from the one before."""


@attrs.frozen(kw_only=True, slots=True)
class TailMark:
    """Up to where a prefix was read, in discovery mode `after`; see `framework.tail`.

    Attributes:
        after: every object up to this key that the last whole pass or a later one showed is finished.
        whole_pass_ms: when that pass began, by this machine's clock, milliseconds since 1970 UTC.
        selection: the options that decided which objects were read; under others the mark says nothing.
    """

    after: str
    whole_pass_ms: int
    selection: str


def _frozen(histogram: Iterable[tuple[str, int]]) -> Histogram:
    return tuple(histogram)


@attrs.frozen(kw_only=True, slots=True)
class PastListing:
    """What the next listing of a prefix should know. Everything in it is about one place: `of`.

    Attributes:
        of: the bucket as `s3://bucket`, and where it answers; what was learnt of another one is not used.
        histogram: where the keys lie; empty for small listings and those without order.
        unordered: the store was seen to list out of order: one chain of pages lists it, at once.
        tail: discovery mode `after` only.
    """

    of: str
    histogram: Histogram = attrs.field(default=(), converter=_frozen, repr=length_only)
    unordered: bool = False
    tail: TailMark | None = None


def worth_keeping(histogram: Histogram, page_size: int) -> Histogram:
    """The histogram of a complete listing as it is kept; empty for a small listing.

    Its keys are shortened, and then there are fewer of them, as far as it takes to pack them into `MOST_BYTES`.
    """
    if sum(count for _, count in histogram) < SMALL_PAGES * page_size:
        return ()
    kept, points = histogram, POINTS
    while _packed_bytes(kept) > MOST_BYTES and len(kept) > 1:
        kept = shortened(thinned(histogram, points))
        points //= 2
    return kept


def _packed_bytes(histogram: Histogram) -> int:
    return len(zlib.compress("\n".join(f"{key}\t{count}" for key, count in histogram).encode()))


def shortened(histogram: Histogram) -> list[tuple[str, int]]:
    """The same cut points, written out no longer than it takes to lie near them. They need not exist as keys."""
    return [
        *histogram[:1],
        *(
            (key[: shared_length(before, key) + 1 + DISTINGUISHING], count)
            for (before, _), (key, count) in pairwise(histogram)
        ),
    ]


def differs_notably(past: Histogram, now: Histogram) -> bool:
    """Whether a listing that starts from `past` would be cut badly, `now` being how the keys lie."""
    if not past or not now:
        return bool(past) != bool(now)
    keys, sums = [key for key, _ in now], [0, *accumulate(count for _, count in now)]
    told, error = 0, abs(sums[-1] - sum(count for _, count in past))
    for key, count in past:
        told += count
        error = max(error, abs(told - sums[bisect_right(keys, key)]))
    return error > NOTABLE * sums[-1]
