"""Buckets and a clock of their own for tests and measurements of listings: deterministic, no store, no waiting."""

from __future__ import annotations

import hashlib
import heapq
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import date, timedelta

import attrs

from framework.model.objects import NativeObject
from framework.storage.listing.pages import in_range
from framework.storage.listing.planner import Histogram, RangePlanner
from framework.store import ListPage


def native(key: str) -> NativeObject:
    return NativeObject(bucket="b", key=key, size=1, version="v")


def page_of(keys: Sequence[str], after: str, page_size: int, until: str | None = None) -> ListPage:
    """What a store with those keys, sorted, answers; one that bounds pages, when it is told an end."""
    at, end = bisect_right(keys, after), len(keys) if until is None else bisect_right(keys, until)
    found = [native(key) for key in keys[at : min(at + page_size, end)]]
    return ListPage(objects=found, continuation="more" if at + page_size < end else None)


def even(count: int) -> list[str]:
    return [f"data/{number:08d}" for number in range(count)]


def even_hex(count: int) -> list[str]:
    return [f"{number * (16**8 // count):08x}" for number in range(count)]


def skewed(count: int) -> list[str]:
    """68 % under one tenth of the key space."""
    rand = random.Random(5)
    keys: set[str] = set()
    while len(keys) < count:
        share = 0.3 + 0.1 * rand.random() if rand.random() < 0.68 else rand.random()
        keys.add(f"k{int(share * 1e12):012d}")
    return sorted(keys)


def dates(count: int) -> list[str]:
    keys: list[str] = []
    for day in range(count // (5 * 25) + 1):
        at = date(2023, 11, 1) + timedelta(day)
        keys += [f"logs/{at:%Y/%m/%d}/host-{host:02d}/part-{part:06d}.gz" for host in range(5) for part in range(25)]
    return keys[:count]


def long_prefix(count: int) -> list[str]:
    return ["x" * 199 + f"/{number:07d}" for number in range(count)]


def hashes(count: int) -> list[str]:
    return sorted(hashlib.sha256(str(number).encode()).hexdigest() for number in range(count))


BUCKETS: dict[str, Callable[[int], list[str]]] = {
    "even numbers": even,
    "even hex": even_hex,
    "68 % under a tenth": skewed,
    "date prefixes": dates,
    "one 200-byte prefix": long_prefix,
    "hex hashes": hashes,
}


@attrs.frozen(kw_only=True)
class Run:
    """What a simulated listing took.

    Attributes:
        seconds: in units of one call.
        calls: made.
        pages: full ones that a single chain would take.
        histogram: of the run.
        keys: handed out, in the order of their pages.
    """

    seconds: float
    calls: int
    pages: int
    histogram: Histogram
    keys: list[str]
    workers: int

    @property
    def speed(self) -> float:
        """Times a single chain, over the number of workers."""
        return self.pages / self.seconds / self.workers

    @property
    def calls_per_page(self) -> float:
        return self.calls / self.pages


def simulate(
    keys: Sequence[str],
    workers: int,
    *,
    page_size: int = 50,
    histogram: Histogram = (),
    jitter: float = 0.0,
    start: int = 4,
    bounded: bool = False,
) -> Run:
    """Lists with that many workers that start few and double; a call takes 1, give or take half the jitter."""
    rand = random.Random(7)
    planner = RangePlanner(page_size=page_size, workers=workers, histogram=histogram)
    now, allowed, calls, number = 0.0, min(start, workers), 0, 0
    under_way: list = []
    found: list[str] = []
    while True:
        for task in planner.next_ranges(allowed - len(under_way)):
            calls, number = calls + 1, number + 1
            took = 1.0 + jitter * (rand.random() - 0.5)
            page = page_of(keys, task.after, page_size, task.until if bounded else None)
            heapq.heappush(under_way, (now + took, number, task, page))
        if not under_way:
            break
        now = under_way[0][0]
        while under_way and under_way[0][0] == now:
            _, _, task, page = heapq.heappop(under_way)
            listed = [one.key for one in page.objects]
            ended = bounded and task.until is not None
            objects, result = in_range(task.number, page, listed, planner.until(task.number), 1, bounded=ended)
            found += [one.key for one in objects]
            planner.report(result)
            allowed = min(workers, allowed + 1)
    assert planner.finished
    assert not planner.disagreements
    return Run(
        seconds=now,
        calls=calls,
        pages=-(-len(keys) // page_size),
        histogram=planner.histogram(),
        keys=found,
        workers=workers,
    )
