"""Listing by key ranges against one chain of pages: speed and calls, on a store in memory that answers after a set delay.

    python benchmarks/listing.py                     2,000 pages of 50 keys, 80 ms a page, 4, 16 and 64 calls at once
    python benchmarks/listing.py --simulate          the same in simulated time: a few seconds
    python benchmarks/listing.py --cpu               2 million keys, pages of 1,000, no delay: keys per CPU second
    python benchmarks/listing.py --ends              pages end where their range does, as those of GCS; with each of the others

Speed is the time of one chain (pages x delay) over the time taken, divided by the calls at once: 1.00 cannot be passed. It
begins at four calls at once and doubles, and the last pages are waited for; both are in it. Each bucket is listed twice:
without hints, and with the histogram that the first listing left.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from bisect import bisect_right
from pathlib import Path

from typing_extensions import override

sys.path.insert(0, str(Path(__file__).parents[1]))

from framework.model.objects import NativeObject
from framework.storage.listing.limiter import CallLimiter
from framework.storage.listing.listing import ListingRequest
from framework.storage.listing.parallel import ParallelListing
from framework.storage.retry import RetryPolicy
from framework.store import ListPage, ObjectStore
from tests.support.listing import BUCKETS, even, simulate


class DelayedStore(ObjectStore):
    """Sorted keys in memory; each page takes `delay_seconds`, during which nothing is computed."""

    scheme = "memory"

    def __init__(self, keys: list[str], delay_seconds: float, *, ends: bool) -> None:
        self.bounds_pages = ends
        self.bucket = "bench"
        self.keys = keys
        self.objects = [NativeObject(bucket="bench", key=key, size=1, version="v") for key in keys]
        self.delay_seconds = delay_seconds
        self.calls = 0
        self._lock = threading.Lock()

    @override
    def list_page(
        self,
        *,
        prefix: str = "",
        after: str = "",
        continuation: str | None = None,
        page_size: int = 1000,
        until: str | None = None,
    ) -> ListPage:
        with self._lock:
            self.calls += 1
        if self.delay_seconds:
            time.sleep(self.delay_seconds)
        at = bisect_right(self.keys, after if continuation is None else continuation)
        end = len(self.keys) if until is None else bisect_right(self.keys, until)
        objects = self.objects[at : min(at + page_size, end)]
        return ListPage(objects=objects, continuation=objects[-1].key if at + page_size < end else None)

    @override
    def open(self, native: NativeObject, start: int = 0, end: int | None = None) -> None:
        raise NotImplementedError

    @override
    def close(self) -> None:
        pass


def measure(store, page_size, workers, histogram=()):
    """(seconds, calls, histogram) of a listing with threads."""
    store.calls = 0
    began, found = time.perf_counter(), 0
    listing = ParallelListing(
        store=store,
        request=ListingRequest(histogram=histogram),
        page_size=page_size,
        policy=RetryPolicy(),
        concurrency=workers,
        limiter=CallLimiter(),
    )
    for page in listing:
        found += len(page)
    listing.close()
    seconds = time.perf_counter() - began
    assert found == len(store.keys)
    return seconds, store.calls, listing.histogram


def table(pages, page_size, delay_seconds, workers, *, simulated, ends):
    heads = [
        f"{title}, N = {count}" for count in workers for title in ("speed / N", "calls per page", "second pass: calls")
    ]
    print("| keys | " + " | ".join(heads) + " |")
    print("|---" * (1 + len(heads)) + "|", flush=True)
    for name, make in BUCKETS.items():
        keys, cells = make(pages * page_size), []
        store = None if simulated else DelayedStore(keys, delay_seconds, ends=ends)
        for count in workers:
            if store is None:
                first = simulate(keys, count, page_size=page_size, bounded=ends)
                second = simulate(keys, count, page_size=page_size, histogram=first.histogram, bounded=ends)
                cells += [first.speed, first.calls_per_page, second.calls_per_page]
            else:
                seconds, calls, histogram = measure(store, page_size, count)
                _, again, _ = measure(store, page_size, count, histogram)
                cells += [pages * delay_seconds / seconds / count, calls / pages, again / pages]
        texts = [f"{cell:.2f}" if at % 3 == 0 else f"{cell:.3f}" for at, cell in enumerate(cells)]
        print(f"| {name} | " + " | ".join(texts) + " |", flush=True)


def cpu(count, workers, *, ends):
    store = DelayedStore(even(count), 0.0, ends=ends)
    print("| keys | calls at once | keys per CPU second |\n|---|---|---|")
    for at_once in workers:
        began = time.process_time()
        measure(store, 1000, at_once)
        print(f"| {count:,} | {at_once} | {count / (time.process_time() - began):,.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=2000)
    parser.add_argument("--page-size", type=int, default=50)
    parser.add_argument("--delay", type=float, default=0.08, help="seconds of each call")
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--ends", action="store_true", help="the store bounds pages")
    options = parser.parse_args()
    if options.cpu:
        cpu(2_000_000, [1, *options.workers], ends=options.ends)
    else:
        table(
            options.pages,
            options.page_size,
            options.delay,
            options.workers,
            simulated=options.simulate,
            ends=options.ends,
        )


if __name__ == "__main__":
    main()
