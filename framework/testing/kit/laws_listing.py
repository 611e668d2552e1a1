"""Laws of a listing: every object once, strictly after the start key, and always in the same partition.

The law of difficult keys (L4) is in `laws_keys`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from framework.discovery.object_feed import AssignedFeed
from framework.discovery.routing import task_of
from framework.errors import SourceError
from framework.iterator import AbstractSourceRecordIterator
from framework.iterator.store_iterator import StoreRecordIterator
from framework.model.objects import TopicPartition
from framework.testing.kit.law import KEYS, PAGES, Comparing, fill, in_order, law
from framework.testing.kit.watch import take_all
from framework.testing.rig import Capability, SourceRig, Stuck

_BEHIND_ALL = "\u8a9e"


def _page_sizes(rig: SourceRig) -> list[dict[str, Any]]:
    return [{"page_size": size} for size in PAGES] if Capability.PAGES in rig.capabilities else [{}]


def _listed(iterator: AbstractSourceRecordIterator, after: str | None = None) -> list[str]:
    return [native.key for native in iterator.get_native_item_stream(after)]


@law("L1", "a listing shows every object once, whatever the size of a page")
def every_object_once(rig: SourceRig, comparing: Comparing) -> None:
    """Check pages of at most 1, 2 and 3 keys, more keys than a usual page, and the name of the bucket."""
    expected = list(fill(rig))
    for options in _page_sizes(rig):
        with rig.open_iterator(**options) as iterator:
            comparing.same(in_order(_listed(iterator)), expected, f"a listing of {len(expected)} objects, {options}")
            natives = [assignment.native for assignment in take_all(iterator.feed)]
            taken = [native.key for native in natives]
            filtered = iterator.feed_counts.filtered if iterator.feed_counts is not None else {}
            comparing.same(in_order(taken), expected, f"the objects of a listing, {options}, filtered: {filtered}")
            strangers = {native.bucket for native in natives} - {iterator.bucket}
            comparing.that(
                not (iterator.bucket and strangers),
                f"objects of {sorted(strangers)} in bucket {iterator.bucket!r}: their positions would stay for good",
            )
            if options and isinstance(iterator, StoreRecordIterator):
                page = iterator.store.list_page(**options)
                comparing.that(
                    len(page.objects) <= options["page_size"], f"list_page gave {len(page.objects)} objects, {options}"
                )
    more = [f"many/{number:05}" for number in range(rig.many_keys - len(expected))]
    rig.put_many(more, b"x")
    for options in _large_pages(rig):
        with rig.open_iterator(**options) as iterator:
            comparing.same(
                in_order(_listed(iterator)),
                in_order(expected + more),
                f"a listing of {rig.many_keys} objects, {options or 'as configured'}",
            )


def _large_pages(rig: SourceRig) -> list[dict[str, Any]]:
    """Check the usual page with and without parallel ranges, and a page that the objects fill exactly."""
    options: list[dict[str, Any]] = [{}, {"list_concurrency": 1}]
    if Capability.PAGES in rig.capabilities and rig.largest_page >= rig.many_keys:
        options.append({"page_size": rig.many_keys})
    return options


@law("L2", "a listing after k shows the keys strictly greater than k, whether or not k exists", Capability.ORDER)
def strictly_after(rig: SourceRig, comparing: Comparing) -> None:
    """Check every key as a start, and starts between, before and after all keys, so every page boundary too."""
    keys = list(fill(rig))
    between = [key + "!" for key in keys] + [key[:-1] for key in keys]
    probes = in_order(list({*keys, *filter(None, between), _BEHIND_ALL}))
    for options in _page_sizes(rig):
        with rig.open_iterator(**options) as iterator:
            for after in probes:
                expected = [key for key in keys if key.encode() > after.encode()]
                comparing.same(in_order(_listed(iterator, after)), expected, f"a listing after {after!r}, {options}")
            check_order(iterator, comparing)


def check_order(iterator: AbstractSourceRecordIterator, comparing: Comparing) -> None:
    """Check that listings did not find the keys out of order: they go around that, and mode `incremental` cannot."""
    unordered = [prefix for prefix in iterator.prefixes if iterator.listing_hints(prefix).unordered]
    comparing.that(
        not unordered,
        f"the keys below {unordered} are not in the order of their UTF-8 bytes, or do not begin behind `after`: set "
        "`ordered = False` on the store and leave ORDER out of the rig's capabilities, or mend `list_page`",
    )


_PREFIXES = ("a/", "a", "a/b")
"""A folder, and beginnings of names that are no folder's whole name."""

_DATA = ("a/1", "a/b/c", "a/bc", "a/z", "a-2/1", "a", "ab/1", "b/1", "A/1", "a0")
"""What lies below the prefixes, what a comparison of folders or strings would take for it, and a key that is a prefix."""

_MARKS = ("a/", "a/empty", "a/d/", "a/d_$folder$", "ab/")
"""Folder marks of several tools, and an empty object: nothing in them is data."""

_HIDDEN = ("a/_SUCCESS", "a/.part", "a/_temporary/0", "a/d/.hidden/x")


@law("L3", "a prefix is plain text; folder marks, empty objects and hidden names are filtered, and counted")
def prefixes_and_marks(rig: SourceRig, comparing: Comparing) -> None:
    """Check ten objects, five folder markers and four hidden names; all and below `a/`, `a` and `a/b`, in pages of every size."""
    data, marks, hidden = ([key for key in keys if not rig.cannot_hold(key)] for keys in (_DATA, _MARKS, _HIDDEN))
    for key in {*_DATA, *_MARKS, *_HIDDEN} - {*data, *marks, *hidden}:
        comparing.note(f"{key!r} was not tried: {rig.cannot_hold(key)}")
    for number, key in enumerate(data):
        rig.put(key, rig.encode(rig.make_records(f"k{number}", 3)))
    for key in marks:
        rig.put(key, b"")
    for key in hidden:
        rig.put(key, rig.encode(rig.make_records("hidden", 3)))
    prefixes = ["", *_PREFIXES] if Capability.PREFIX in rig.capabilities else [""]
    if len(prefixes) == 1:
        comparing.note(f"no prefix was tried: the rig cannot do {Capability.PREFIX.value}")
    for prefix in prefixes:
        limit = {"prefix": prefix} if prefix else {}
        for options in (*_page_sizes(rig), {}):
            _taken_below(rig, comparing, prefix, data, [*marks, *hidden], {**limit, **options})


def _taken_below(
    rig: SourceRig,
    comparing: Comparing,
    prefix: str,
    data: Sequence[str],
    others: Sequence[str],
    options: dict[str, Any],
) -> None:
    with rig.open_iterator(**options) as iterator:
        listed = _listed(iterator)
        strangers = [key for key in listed if not key.startswith(prefix)]
        comparing.same(strangers, [], f"keys that do not begin with {prefix!r}, {options}")
        taken = [assignment.native.key for assignment in take_all(iterator.feed)]
        expected = [key for key in data if key.startswith(prefix)]
        comparing.same(in_order(taken), in_order(expected), f"the objects to read below {prefix!r}, {options}")
        counts = iterator.feed_counts
        filtered = sum(counts.filtered.values()) if counts is not None else 0
        shown = [key for key in others if key in listed]
        comparing.that(
            filtered == len(shown), f"{filtered} of the {len(shown)} that are no data were counted, {options}"
        )
    goes_on = len(options) > 1 and Capability.ORDER in rig.capabilities
    for after in in_order(expected) if goes_on else ():
        with rig.open_iterator(**options) as iterator:
            rest = [key for key in _listed(iterator, after) if key in data]
        behind = [key for key in expected if key.encode() > after.encode()]
        comparing.same(in_order(rest), in_order(behind), f"a listing of {prefix!r} after {after!r}, {options}")


_STUCK_SECONDS = 10.0


@law("L5", "a page that makes no progress is an error, never an endless listing", Capability.STUCK)
def progress_or_error(rig: SourceRig, comparing: Comparing) -> None:
    """Check three kinds of listings without progress, with and without parallel ranges."""
    expected = list(fill(rig))
    sizes: dict[str, Any] = {"page_size": 2} if Capability.PAGES in rig.capabilities else {}
    for how in Stuck:
        for concurrency in (1, 4):
            rig.stick(how)
            limit = len(expected) * 4
            with rig.open_iterator(list_concurrency=concurrency, **sizes) as iterator:
                listed, error, over = _list_for_a_while(iterator, limit)
            example = f"{how.value}, {concurrency} requests at once"
            comparing.that(over, f"{example}: the listing did not end within {_STUCK_SECONDS:.0f} seconds")
            comparing.that(len(listed) < limit, f"{example}: {len(listed)} objects came of {len(expected)}, and no end")
            comparing.that(isinstance(error, SourceError), f"{example}: a listing of {listed} ended with {error!r}")
    rig.stick(None)
    with rig.open_iterator(**sizes) as iterator:
        comparing.same(in_order(_listed(iterator)), expected, "a listing once the store pages as it should")


def _list_for_a_while(
    iterator: AbstractSourceRecordIterator, limit: int
) -> tuple[list[str], BaseException | None, bool]:
    """Return the objects of a listing until it ends, fails or times out; in a thread, as it may never return."""
    listed: list[str] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for native in iterator.get_native_item_stream(None):
                listed.append(native.key)
                if len(listed) >= limit:
                    return
        except BaseException as error:  # noqa: BLE001 - looked at by the law
            errors.append(error)

    lister = threading.Thread(target=work, daemon=True)
    lister.start()
    lister.join(_STUCK_SECONDS)
    return listed, errors[0] if errors else None, not lister.is_alive()


@law(
    "L6", "n tasks divide the objects without overlap or gap, and an object's partition depends on nothing but its name"
)
def disjoint_and_complete(rig: SourceRig, comparing: Comparing) -> None:
    """Check every n from 1 to 7; then again after the first objects were deleted."""
    written = fill(rig)
    before = {topic_partitions: _partitions(rig, topic_partitions) for topic_partitions in range(1, 8)}
    for tasks, topic_partitions in before.items():
        comparing.same(list(topic_partitions), list(written), f"the objects of {tasks} tasks")
        parts = [
            [key for key, topic_partition in topic_partitions.items() if task_of(topic_partition, tasks) == task]
            for task in range(tasks)
        ]
        comparing.same(in_order([key for part in parts for key in part]), list(written), f"parts of {tasks} tasks")
        comparing.that(
            all(0 <= topic_partition.partition < tasks for topic_partition in topic_partitions.values()),
            f"partitions beyond the {tasks} partitions: {topic_partitions}",
        )
        _read_parts(rig, comparing, written, tasks)
    gone = list(written)[: len(KEYS) // 2]
    for key in gone:
        rig.delete(key)
    for tasks, topic_partitions in before.items():
        for key, topic_partition in _partitions(rig, tasks).items():
            comparing.that(
                topic_partition == topic_partitions[key],
                f"{key!r} moved from partition {topic_partitions[key]} to {topic_partition} of {tasks} when {gone} were deleted",
            )


def _partitions(rig: SourceRig, partitions: int) -> dict[str, TopicPartition]:
    with rig.open_iterator(partitions=partitions) as iterator:
        found = {assignment.native.key: assignment.entry.topic_partition for assignment in take_all(iterator.feed)}
    return {key: found[key] for key in in_order(found)}


def _read_parts(rig: SourceRig, comparing: Comparing, written: dict[str, list[bytes]], tasks: int) -> None:
    """Distribute a listing to n tasks; together they read every record once."""
    parts: list[AssignedFeed] = [AssignedFeed() for _ in range(tasks)]
    with rig.open_iterator(partitions=tasks) as lister:
        for assignment in take_all(lister.feed):
            parts[task_of(assignment.entry.topic_partition, tasks)].give([assignment])
    read: list[bytes] = []
    for feed in parts:
        feed.close()
        task = rig.open_task(feed=feed, once=False, partitions=tasks)
        try:
            while not task.finished:
                for batch in task.poll(timeout_seconds=1.0):
                    read.extend(batch.payloads)
        finally:
            task.stop()
    comparing.same(sorted(read), sorted(record for records in written.values() for record in records), f"{tasks} tasks")
