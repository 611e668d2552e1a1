"""Laws of a listing: every object, once, strictly after, and every object in one lane whatever else there is."""

from __future__ import annotations

from typing import Any

from framework.feed import HandedFeed
from framework.iterator import AbstractSourceRecordIterator
from framework.naming import task_of
from framework.records import Lane
from framework.testing.law import KEYS, PAGES, Comparing, fill, law
from framework.testing.rig import Capability, SourceRig

_BEHIND_ALL = "\u8a9e"


def _page_sizes(rig: SourceRig) -> list[dict[str, Any]]:
    return [{"page_size": size} for size in PAGES] if Capability.PAGES in rig.capabilities else [{}]


def _listed(iterator: AbstractSourceRecordIterator, after: str | None = None) -> list[str]:
    return [native.key for native in iterator.get_native_item_stream(after)]


def _in_order(keys: list[str]) -> list[str]:
    return sorted(keys, key=lambda key: key.encode())


@law("L1", "a pass shows every object once, whatever the size of a page")
def every_object_once(rig: SourceRig, comparing: Comparing) -> None:
    """Pages of 1, 2, 3, and more keys than the usual page has."""
    expected = list(fill(rig))
    for options in _page_sizes(rig):
        with rig.open_iterator(**options) as iterator:
            comparing.same(_in_order(_listed(iterator)), expected, f"a listing of {len(expected)} objects, {options}")
            taken = []
            while (assignment := iterator.feed.take()) is not None:
                taken.append(assignment.native.key)
            comparing.same(_in_order(taken), expected, f"the objects of a pass, {options}")
    more = [f"many/{number:05}" for number in range(rig.many_keys - len(expected))]
    rig.put_many(more, b"x")
    with rig.open_iterator() as iterator:
        comparing.same(
            _in_order(_listed(iterator)), _in_order(expected + more), f"a listing of {rig.many_keys} objects"
        )


@law("L2", "a listing after k shows the keys strictly greater than k, whether or not k exists")
def strictly_after(rig: SourceRig, comparing: Comparing) -> None:
    """Every key, and places between, before and behind all keys; so every edge of a page too."""
    keys = list(fill(rig))
    between = [key + "!" for key in keys] + [key[:-1] for key in keys]
    probes = _in_order(list({*keys, *filter(None, between), _BEHIND_ALL}))
    for options in _page_sizes(rig):
        with rig.open_iterator(**options) as iterator:
            for after in probes:
                expected = [key for key in keys if key.encode() > after.encode()]
                comparing.same(_in_order(_listed(iterator, after)), expected, f"a listing after {after!r}, {options}")


@law("L6", "n tasks share the objects without overlap or gap, and an object's lane depends on nothing but its name")
def disjoint_and_complete(rig: SourceRig, comparing: Comparing) -> None:
    """Every n from 1 to 7; then again after the first objects are gone."""
    written = fill(rig)
    before = {lanes: _lanes(rig, lanes) for lanes in range(1, 8)}
    for tasks, lanes in before.items():
        comparing.same(list(lanes), list(written), f"the objects of {tasks} tasks")
        shares = [[key for key, lane in lanes.items() if task_of(lane, tasks) == task] for task in range(tasks)]
        comparing.same(_in_order([key for share in shares for key in share]), list(written), f"shares of {tasks} tasks")
        comparing.that(
            all(0 <= lane.partition < tasks for lane in lanes.values()), f"lanes beyond the {tasks} partitions: {lanes}"
        )
        _read_shares(rig, comparing, written, tasks)
    gone = list(written)[: len(KEYS) // 2]
    for key in gone:
        rig.delete(key)
    for tasks, lanes in before.items():
        for key, lane in _lanes(rig, tasks).items():
            comparing.that(
                lane == lanes[key],
                f"{key!r} moved from lane {lanes[key]} to {lane} of {tasks} when {gone} were deleted",
            )


def _lanes(rig: SourceRig, partitions: int) -> dict[str, Lane]:
    lanes: dict[str, Lane] = {}
    with rig.open_iterator(partitions=partitions) as iterator:
        while (assignment := iterator.feed.take()) is not None:
            lanes[assignment.native.key] = assignment.entry.lane
    return {key: lanes[key] for key in _in_order(list(lanes))}


def _read_shares(rig: SourceRig, comparing: Comparing, written: dict[str, list[bytes]], tasks: int) -> None:
    """One listing, handed out to n tasks: together they read every record once."""
    shares: list[HandedFeed] = [HandedFeed() for _ in range(tasks)]
    with rig.open_iterator(partitions=tasks) as lister:
        while (assignment := lister.feed.take()) is not None:
            shares[task_of(assignment.entry.lane, tasks)].give([assignment])
    read: list[bytes] = []
    for feed in shares:
        feed.close()
        task = rig.open_task(feed=feed, once=False, partitions=tasks)
        try:
            while not task.finished:
                for batch in task.poll(timeout_seconds=1.0):
                    read.extend(batch.payloads)
        finally:
            task.stop()
    comparing.same(sorted(read), sorted(record for records in written.values() for record in records), f"{tasks} tasks")
