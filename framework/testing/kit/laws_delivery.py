"""Laws of delivery: bounded queues, stops without loss, order within an object. Crashes: `laws_crash`."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from framework.errors import ReaderFailedError, StoreUnavailableError
from framework.iterator import AbstractSourceRecordIterator
from framework.model.batches import Acknowledgement, RecordBatch
from framework.model.objects import Anchor, NativeObject
from framework.offsets.offset_store import MemoryOffsetStore
from framework.task import AbstractSourceTask
from framework.testing.kit.crash import Bench, CrashPoint
from framework.testing.kit.law import BATCH, QUEUE, Comparing, fill, law
from framework.testing.kit.watch import change_iterators, replace
from framework.testing.rig import SourceRig
from framework.transformer import ObjectInput

_QUIET_SECONDS = 0.03
_HANGS_SECONDS = 20.0


@law("D3", "while no batch is taken, no more is read than the queue holds and one batch")
def bounded(rig: SourceRig, comparing: Comparing) -> None:
    """Check that the reader pauses without polls."""
    written = fill(rig)
    total = sum(map(len, written.values()))
    task = rig.open_task(batch_length=BATCH, queue_records=QUEUE)
    try:
        _at_rest(task, least=QUEUE - BATCH)
        read = _read_by(task)
        comparing.that(
            read <= QUEUE + BATCH, f"{read} of {total} records were read for a queue of {QUEUE} and batches of {BATCH}"
        )
        comparing.that(read >= QUEUE - BATCH, f"only {read} records were read for a queue of {QUEUE}")
        taken: list[RecordBatch] = []
        while not task.finished:
            taken += task.poll(max_records=1, timeout_seconds=1.0)
            read, given = _read_by(task), sum(len(batch.payloads) for batch in taken)
            comparing.that(read <= given + QUEUE + BATCH, f"{read} records were read when {given} were taken")
        comparing.same(
            sorted(payload for batch in taken for payload in batch.payloads),
            sorted(record for records in written.values() for record in records),
            "everything after the rest",
        )
    finally:
        task.stop()


def _read_by(task: AbstractSourceTask) -> int:
    return task.iterator.statistics.records_read if task.iterator is not None else 0


def _at_rest(task: AbstractSourceTask, *, least: int = 1) -> None:
    """Wait until the reader has read a minimum and pauses: on a busy machine it may only be slow."""
    still = threading.Event()
    limit = time.monotonic() + _HANGS_SECONDS
    seen, since = -1, 0
    while since < 3 and time.monotonic() < limit:  # noqa: PLR2004 - looks in a row without a change
        still.wait(_QUIET_SECONDS)
        read = _read_by(task)
        since = since + 1 if read == seen and read >= least else 0
        seen = read


@law(
    "D4", "stop returns within its limit from every state, may be called twice, and what was not committed comes again"
)
def stops(rig: SourceRig, comparing: Comparing) -> None:  # noqa: C901 - a list of states
    """Check stops: before the start, at once, with a full queue, polled, pausing, in a hanging call, failed, at the end."""
    written = fill(rig)

    def unstarted() -> AbstractSourceTask:
        return rig.make_task({})[0]

    def just_started() -> AbstractSourceTask:
        return rig.open_task(batch_length=BATCH, queue_records=QUEUE)

    def full() -> AbstractSourceTask:
        task = just_started()
        _at_rest(task)
        return task

    def polled() -> AbstractSourceTask:
        task = just_started()
        task.poll(BATCH, timeout_seconds=1.0)
        return task

    def pausing() -> AbstractSourceTask:
        task = rig.open_task(once=False, poll_interval=3600.0)
        while not task.poll(timeout_seconds=1.0):
            pass
        _at_rest(task)
        return task

    def failed() -> AbstractSourceTask:
        task = _started_with(rig, _fails)
        with contextlib.suppress(ReaderFailedError):
            while True:
                task.poll(timeout_seconds=1.0)
        return task

    def ended() -> AbstractSourceTask:
        task = rig.open_task()
        while not task.finished:
            task.poll(timeout_seconds=1.0)
        return task

    states: list[Callable[[], AbstractSourceTask]] = [unstarted, just_started, full, polled, pausing, failed, ended]
    for state in states:
        _stop_in_time(rig, comparing, state(), state.__name__)
    for call in ("listing", "opening"):
        hangs = threading.Event()
        task = _started_with(rig, partial(_hangs, call, hangs))
        try:
            _stop_in_time(rig, comparing, task, f"in a {call} that hangs")
        finally:
            hangs.set()
    _nothing_is_lost(rig, comparing, written)


def _stop_in_time(rig: SourceRig, comparing: Comparing, task: AbstractSourceTask, state: str) -> None:
    for again in ("", ", a second time"):
        began = time.monotonic()
        stopper = threading.Thread(target=task.stop, daemon=True)
        stopper.start()
        stopper.join(rig.stop_seconds)
        took = time.monotonic() - began
        comparing.that(not stopper.is_alive(), f"stop{again} of a task that is {state}: {took:.1f} seconds")


def _started_with(rig: SourceRig, change: Callable[[AbstractSourceRecordIterator], None]) -> AbstractSourceTask:
    """Return a started task whose iterator was changed before its first call."""
    task, config = rig.make_task({})
    change_iterators(task, change)
    task.start(config, once=True)
    return task


def _fails(iterator: AbstractSourceRecordIterator) -> None:
    def get_native_item_stream(_: str | None) -> Iterator[NativeObject]:
        raise StoreUnavailableError("away, for good")

    replace(iterator, get_native_item_stream=get_native_item_stream)


def _hangs(call: str, until: threading.Event, iterator: AbstractSourceRecordIterator) -> None:
    list_objects, get_input = iterator.get_native_item_stream, iterator.get_input_stream

    def get_native_item_stream(offset: str | None) -> Iterator[NativeObject]:
        until.wait(_HANGS_SECONDS)
        return list_objects(offset)

    def get_input_stream(native: NativeObject) -> ObjectInput:
        until.wait(_HANGS_SECONDS)
        return get_input(native)

    if call == "listing":
        replace(iterator, get_native_item_stream=get_native_item_stream)
    else:
        replace(iterator, get_input_stream=get_input_stream)


def _nothing_is_lost(rig: SourceRig, comparing: Comparing, written: dict[str, list[bytes]]) -> None:
    """Check two polls, a commit of the first, a stop, then the rest."""
    store = MemoryOffsetStore()
    task = rig.open_task(store, batch_length=BATCH, queue_records=QUEUE)
    done: list[bytes] = []
    for number, batch in enumerate(_poll_some(task) + _poll_some(task)):
        if number % 2 == 0 and not done:  # the first one only: the others wait for a confirmation that never comes
            task.commit(Acknowledgement(topic_partition=batch.topic_partition, batches=(batch,), anchor=Anchor(0, 1)))
            done += batch.payloads
    task.offsets.flush()
    task.stop()
    again = rig.open_task(store, batch_length=BATCH, queue_records=QUEUE)
    try:
        while not again.finished:
            done += [payload for batch in again.poll(timeout_seconds=1.0) for payload in batch.payloads]
    finally:
        again.stop()
    everything = sorted(record for records in written.values() for record in records)
    comparing.same(sorted(done), everything, "what was committed before a stop, and what came after the next start")


def _poll_some(task: AbstractSourceTask) -> list[RecordBatch]:
    while not task.finished:
        batches = task.poll(BATCH, timeout_seconds=1.0)
        if batches:
            return batches
    return []


@law("D5", "the records of one object are stored in one partition, in their order")
def order_is_kept(rig: SourceRig, comparing: Comparing) -> None:
    """Check all records, in small batches over several partitions."""
    written = fill(rig)
    bench = Bench(rig, batch_length=BATCH, queue_records=QUEUE, linger_time=0.0, partitions=3)
    bench.live(CrashPoint())
    stored = bench.stored()
    for key, records in written.items():
        found = stored.get(key, [])
        comparing.that(len({partition for partition, _ in found}) == 1, f"{key!r} is in more than one partition")
        comparing.same([payload for _, payload in found], records, f"the topic's records of {key!r}")
