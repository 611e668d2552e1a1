"""Situations that other sources' own tests play, through ours: a whole task over a store in memory.

Which of them stand elsewhere is told in docs/development/better-than.md.
"""

import io
import threading

import fastavro
import pytest

from framework.discovery.object_feed import AssignedFeed
from framework.discovery.routing import task_of
from framework.pipeline.bounded_queue import BoundedQueue
from framework.task import SourceContext
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.fakes.memory_store import MemoryStore
from framework.testing.options import source_config


def started(store, *, start_key=None, feed=None, **options):
    task = MemorySourceTask(store, start_key=start_key)
    task.start(source_config(**options), feed=feed, once=feed is None)
    return task


def drained(task, *, max_records=500):
    """Everything, poll by poll; and how many records each poll gave."""
    records, polls = [], []
    while not task.finished:
        batches = task.poll(max_records, timeout_seconds=1.0)
        polls.append(sum(len(batch.payloads) for batch in batches))
        records += [payload for batch in batches for payload in batch.payloads]
    task.stop()
    return records, [count for count in polls if count]


def avro(records):
    out = io.BytesIO()
    fastavro.writer(out, {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}, records)
    return out.getvalue()


@pytest.mark.parametrize("max_records", [1, 2])
def test_objects_of_two_records_polled_by_one_and_by_two(max_records):
    store = MemoryStore()
    for key in ("a", "b", "c"):
        store.put(key, b'{"of":"%s","n":1}\n{"of":"%s","n":2}\n' % (key.encode(), key.encode()))
    records, polls = drained(started(store, batch_length=1), max_records=max_records)
    assert records == [b'{"of":"%s","n":%d}' % (key, n) for key in (b"a", b"b", b"c") for n in (1, 2)]
    assert max(polls) <= max_records


def test_five_objects_of_5000_records_by_four_tasks():
    store = MemoryStore()
    for number in range(5):
        store.put(f"{number}.avro", avro([{"id": number * 5000 + n} for n in range(5000)]))
    lister = MemorySourceTask(store)
    listing = lister.get_iterator(SourceContext(config=source_config(format="avro", partitions=8), once=True))
    feeds = [AssignedFeed() for _ in range(4)]
    while (assignment := listing.feed.take()) is not None:
        feeds[task_of(assignment.entry.topic_partition, 4)].give([assignment])
    listing.close()
    assert store.count("list_page") == 1  # however many tasks there are
    read = []
    for feed in feeds:
        feed.close()
        read += drained(started(store, feed=feed, format="avro", partitions=8))[0]
    assert sorted(read) == sorted(b'{"id":%d}' % n for n in range(25_000))
    assert store.count("open") == 5


def test_a_listing_begins_after_the_start_key_which_need_not_exist():
    store = MemoryStore()
    for key in ("a/1", "a/2", "b/1", "b/2"):
        store.put(key, b'{"key":"%s"}' % key.encode())
    assert drained(started(store, start_key="a/2"))[0] == [b'{"key":"b/1"}', b'{"key":"b/2"}']
    assert drained(started(store, start_key="a/9"))[0] == [b'{"key":"b/1"}', b'{"key":"b/2"}']


def test_a_consumer_that_is_slow_gets_everything_in_order_and_the_reader_waits_without_polling(monkeypatch):
    waits = []
    put = BoundedQueue.put
    monkeypatch.setattr(BoundedQueue, "put", lambda self, batch: (waits.append(1), put(self, batch))[1])
    store = MemoryStore()
    expected = [b'{"n":%d}' % n for n in range(100)]
    store.put("one", b"\n".join(expected))
    task = started(store, batch_length=3, queue_records=6)
    read, pause = [], threading.Event()
    while not task.finished:
        for batch in task.poll(1, timeout_seconds=1.0):
            read += batch.payloads
        pause.wait(0.001)
        assert len(task.queue) <= 3  # batches
    task.stop()
    assert read == expected
    assert len(waits) == 34  # one put for each batch: a full queue blocks, nothing tries again and again


def test_an_object_that_cannot_be_opened_for_a_while_is_read_in_the_same_run():
    from framework.errors import StoreUnavailableError

    store = MemoryStore()
    for key in ("a", "b", "c"):
        store.put(key, b'{"key":"%s"}' % key.encode())
    store.fail("open", StoreUnavailableError("away"), key="b", times=3)
    records, _ = drained(started(store, prefetch_objects=1))
    assert records == [b'{"key":"a"}', b'{"key":"b"}', b'{"key":"c"}']
