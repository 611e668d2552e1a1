"""What the tests of the core share: lines as objects, and a task over a store in memory."""

import contextlib

from framework.offsets.manager import OffsetManager
from framework.task import SourceContext
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.fakes.memory_store import MemoryStore
from framework.testing.options import source_config


def line(name, number):
    return b'{"object":"%s","n":%d}' % (name.encode(), number)


def lines(name, count, first=1):
    return [line(name, number) for number in range(first, first + count)]


def put_lines(store, name, count):
    return store.put(name, b"".join(one + b"\n" for one in lines(name, count)))


def store_of(**counts):
    """A store with one object for each name, of so many lines."""
    store = MemoryStore()
    for name, count in counts.items():
        put_lines(store, name, count)
    return store


def iterator_over(store, offsets=None, *, once=False, task_class=MemorySourceTask, task=None, feed=None, **options):
    """The iterator of a task that is not started; the caller closes it."""
    task = task or task_class(store)
    offsets = offsets if offsets is not None else OffsetManager()
    return task.get_iterator(SourceContext(config=source_config(**options), offsets=offsets, feed=feed, once=once))


@contextlib.contextmanager
def started(store, *, task_class=MemorySourceTask, task=None, once=False, offsets=None, feed=None, **options):
    task = task or task_class(store)
    try:
        task.start(source_config(**options), once=once, offsets=offsets, feed=feed)
        yield task
    finally:
        task.stop()


def drain(iterator):
    """Every batch there is just now."""
    batches = []
    while (batch := iterator.next_batch()) is not None:
        batches.append(batch)
    return batches


def next_pass(iterator):
    """The next listing is due, whatever the clock says."""
    iterator.feed._due = 0.0


def payloads(batches):
    """Key -> payloads, in order."""
    found = {}
    for batch in batches:
        found.setdefault(batch.native.key, []).extend(batch.payloads)
    return found


def commit(offsets, batches):
    """Takes the positions over as if they were confirmed, and saves them."""
    for batch in batches:
        offsets.add_entry(batch.entry)
    offsets.flush()


def poll_all(task, limit=1000):
    """Every batch of a task that ends; raises what it raises."""
    batches = []
    for _ in range(limit):
        batches += task.poll(timeout_seconds=60)
        if task.finished:
            return batches
    raise AssertionError("the task did not end")
