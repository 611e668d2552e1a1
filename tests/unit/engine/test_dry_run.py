"""What a plan shows is what a run reads: also of what was begun, split, folded, or left out."""

import tracemalloc

import attrs
import pytest

from framework.discovery.object_feed import Assignment
from framework.discovery.splitting import SplitPolicy
from framework.engine.dry_run import DryRun, dry_run, ending_of, folder_of
from framework.engine.inspection import inspect
from framework.errors import ObjectError
from framework.iterator.store_iterator import StoreRecordIterator
from framework.model.objects import NativeObject, TopicPartition
from framework.model.positions import OffsetManagerEntry
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.options import source_config
from tests.support.compaction import ClockStore, Leader
from tests.support.core import store_of


def plan(leader):
    connection = leader.server.connect()
    found = inspect(connection, leader.config)
    connection.close()
    return dry_run(lambda: MemorySourceTask(leader.store, prefixes=leader.prefixes), leader.config, found)


def test_what_was_compacted_is_not_to_be_read_and_what_is_new_is():
    store = ClockStore()
    for number in range(12):
        store.put_now(f"in/{number:02}")
    store.now_ms += 10_000_000
    leader = Leader(store, window=60)
    while leader.take() is not None:
        leader.send(0)
        leader.send(0)
    leader.save()
    leader.compact()
    assert inspect(leader.server.connect(), leader.config).state.watermark.objects == 12
    assert plan(leader).total.objects == 0
    store.put_now("in/new")
    assert plan(leader).total.objects == 1
    assert plan(leader).listed == 13


def test_what_was_begun_is_counted_as_such():
    store = ClockStore()
    for name in "abc":
        store.put_now(name)
    leader = Leader(store)
    leader.take()
    leader.send(0)
    leader.save()
    run = plan(leader)
    assert (run.total.objects, run.begun) == (3, 1)
    assert run.list_requests == 1
    assert sum(part.objects for part in run.topic_partitions.values()) == 3


def test_an_object_whose_records_go_to_every_partition_is_read_once():
    config = source_config(transforms=[{"type": "partition_by", "field": "n"}])
    run = dry_run(lambda: MemorySourceTask(store_of(a=10, b=20)), config)
    assert run.total.objects == 2
    assert [totals.objects for totals in run.prefixes.values()] == [2]
    assert {name: totals.objects for name, totals in run.topic_partitions.items()} == {
        f"records/{number}": 2 for number in range(3)
    }
    assert run.total.size_bytes == sum(native.size for native in store_of(a=10, b=20).list_all())


def test_an_object_counts_as_begun_once_whichever_of_its_parts_has_records():
    run = DryRun()
    for native, begun in zip(store_of(a=10, b=20, c=30).list_all(), [{2}, {1, 3}, set()], strict=True):
        first = OffsetManagerEntry.start(native, TopicPartition("records", 0))
        for entry in SplitPolicy(partitions=3, by_key=True).positions_of(native, first):
            done = 5 if entry.split_number in begun else 0
            run.add(Assignment(native=native, entry=entry.changed(records_done=done)), [""])
    assert (run.total.objects, run.begun) == (3, 2)


def test_an_object_of_a_plan_takes_no_more_memory_than_a_packed_position(monkeypatch):
    def listed(iterator, offset):
        for number in range(count):
            version = f"{number:032x}"
            yield NativeObject(scheme="memory", bucket="b", key=f"in/{number}", size=9, version=version, modified_ms=1)

    monkeypatch.setattr(StoreRecordIterator, "get_native_item_stream", listed)
    for count in (2000, 5000):  # the first loads modules
        tracemalloc.start()
        run = dry_run(lambda: MemorySourceTask(store_of()), source_config())
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert run.total.objects == count
    assert peak_bytes < count * 700  # a thousand and more are not packed yet


@pytest.mark.parametrize("how", ["excluded", "deleted", "overwritten", "kept"])
def test_what_was_begun_and_is_not_selected_any_more_is_named(how):
    store = ClockStore()
    for name in "abc":
        store.put_now(name)
    leader = Leader(store)
    leader.take()
    leader.send(0)
    leader.save()
    ((_, begun),) = inspect(leader.server.connect(), leader.config).state.positions.pending()
    if how == "excluded":
        leader.config = attrs.evolve(
            leader.config, discovery=attrs.evolve(leader.config.discovery, exclude=[begun.key])
        )
    elif how == "deleted":
        store.delete(begun.key)
    elif how == "overwritten":
        store.now_ms += 1000
        store.put_now(begun.key)
    assert plan(leader).unselected == ([f"{begun.bucket}/{begun.key}"] if how in {"excluded", "deleted"} else [])


def test_a_plan_that_ends_in_the_middle_of_its_listing_leaves_nothing_to_the_collector(monkeypatch):
    ended = []

    def listed(iterator, offset):
        try:
            yield from iterator.store.list_all()
        finally:
            ended.append(True)

    monkeypatch.setattr(StoreRecordIterator, "get_native_item_stream", listed)
    config = source_config(template="{{partition}}", distribution="partition")
    with pytest.raises(ObjectError) as kept:
        dry_run(lambda: MemorySourceTask(store_of(**{"9": 1, "91": 1})), config)
    assert kept.value.__traceback__ is not None
    assert ended


@pytest.mark.parametrize(
    ("key", "ending"),
    [
        ("a/b.jsonl", ".jsonl"),
        ("a/b.JSONL.gz", ".jsonl.gz"),
        ("a.b/c", ""),
        ("x.gz", ".gz"),
        ("part-0.snappy.parquet", ".parquet"),
        (".hidden", ""),
    ],
)
def test_endings(key, ending):
    assert ending_of(key) == ending


@pytest.mark.parametrize(
    ("key", "prefix", "folder"),
    [
        ("events/2026/07/a", "events/", "events/2026/"),
        ("events/a", "events/", "events/"),
        ("a", "", ""),
        ("a/b", "", "a/"),
        ("ev/x/y", "e", "ev/"),
    ],
)
def test_folders(key, prefix, folder):
    assert folder_of(key, prefix) == folder
