"""Laws of delivery: crashes lose and repeat nothing, queues are bounded, stops end, order within an object is kept."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from framework.records import RecordBatch
from framework.task import AbstractSourceTask
from framework.testing.crash import Bench, CrashPoint
from framework.testing.law import BATCH, QUEUE, Comparing, fill, law
from framework.testing.rig import SourceRig

_OBJECTS = 3
_PAIRS = 20
_QUIET_SECONDS = 0.03


@law("D1", "a crash at any event loses nothing and repeats nothing, and the positions come to the end")
def crash_sweep(rig: SourceRig, comparing: Comparing) -> None:
    """One crash at every event of a clean run, then a restart that drains."""
    written = fill(rig, rig.counts[:_OBJECTS])
    clean = CrashPoint()
    _check(comparing, _bench(rig, [clean]), written, "without a crash")
    for at in range(1, len(clean.events) + 1):
        crash = CrashPoint(at)
        bench = _bench(rig, [crash, CrashPoint()])
        _check(comparing, bench, written, f"a crash at event {at} ({crash.events[-1] if crash.events else 'none'})")


@law("D2", "two crashes in a row do no more harm than one")
def double_crash(rig: SourceRig, comparing: Comparing) -> None:
    """Pairs of events at random, the second in the run that recovers from the first."""
    written = fill(rig, rig.counts[:_OBJECTS])
    clean = CrashPoint()
    _bench(rig, [clean])
    chance = random.Random(comparing.seed)  # noqa: S311 - an order, not a secret
    for _ in range(_PAIRS):
        first, second = chance.randint(1, len(clean.events)), chance.randint(1, len(clean.events))
        bench = _bench(rig, [CrashPoint(first), CrashPoint(second), CrashPoint()])
        _check(comparing, bench, written, f"crashes at events {first} and {second}")


class _Lives:
    def __init__(self, bench: Bench, ends: dict[str, tuple[int, bool]]) -> None:
        self.stored = bench.stored()
        self.ends = ends


def _bench(rig: SourceRig, crashes: list[CrashPoint]) -> _Lives:
    bench = Bench(rig, batch_length=BATCH, queue_records=QUEUE, linger_time=0.0, fetch_ahead=2)
    entries = [bench.live(crash) for crash in crashes][-1]
    return _Lives(bench, {entry.key: (entry.records_done, entry.finished) for entry in entries})


def _check(comparing: Comparing, lives: _Lives, written: dict[str, list[bytes]], example: str) -> None:
    for key, records in written.items():
        stored = [payload for _, payload in lives.stored.get(key, [])]
        comparing.same(stored, records, f"{example}: the topic's records of {key!r}")
    comparing.that(
        lives.ends == {key: (len(records), True) for key, records in written.items()},
        f"{example}: positions at the end {lives.ends}",
    )


@law("D3", "while nobody takes, no more is read than the queue holds and one batch")
def bounded(rig: SourceRig, comparing: Comparing) -> None:
    """Nobody polls; the reader must come to rest."""
    written = fill(rig)
    total = sum(map(len, written.values()))
    task = rig.open_task(batch_length=BATCH, queue_records=QUEUE)
    try:
        _at_rest(task)
        read = task.iterator.counts.records if task.iterator is not None else 0
        comparing.that(
            read <= QUEUE + BATCH, f"{read} of {total} records were read for a queue of {QUEUE} and batches of {BATCH}"
        )
        comparing.that(read >= QUEUE - BATCH, f"only {read} records were read for a queue of {QUEUE}")
        taken: list[RecordBatch] = []
        while not task.finished:
            taken += task.poll(max_records=1, timeout_seconds=1.0)
        comparing.same(
            sorted(payload for batch in taken for payload in batch.payloads),
            sorted(record for records in written.values() for record in records),
            "everything after the rest",
        )
    finally:
        task.stop()


def _at_rest(task: AbstractSourceTask) -> None:
    """Waits until the reader reads nothing more."""
    still = threading.Event()
    seen, since = -1, 0
    while since < 3:  # noqa: PLR2004 - looks in a row without a change
        still.wait(_QUIET_SECONDS)
        read = task.iterator.counts.records if task.iterator is not None else 0
        since = since + 1 if read == seen and read > 0 else 0
        seen = read


@law("D4", "stop returns within its limit from every state, and may be called twice")
def stops(rig: SourceRig, comparing: Comparing) -> None:
    """Before the start, at once, with a full queue, while pausing, at the end."""
    fill(rig)

    def unstarted() -> AbstractSourceTask:
        return rig.make_task({})[0]

    def just_started() -> AbstractSourceTask:
        return rig.open_task(batch_length=BATCH, queue_records=QUEUE)

    def full() -> AbstractSourceTask:
        task = just_started()
        _at_rest(task)
        return task

    def pausing() -> AbstractSourceTask:
        task = rig.open_task(once=False, poll_interval=3600.0)
        while not task.poll(timeout_seconds=1.0):
            pass
        _at_rest(task)
        return task

    def ended() -> AbstractSourceTask:
        task = rig.open_task()
        while not task.finished:
            task.poll(timeout_seconds=1.0)
        return task

    states: list[Callable[[], AbstractSourceTask]] = [unstarted, just_started, full, pausing, ended]
    for state in states:
        task = state()
        for again in ("", ", a second time"):
            began = time.monotonic()
            stopper = threading.Thread(target=task.stop, daemon=True)
            stopper.start()
            stopper.join(rig.stop_seconds)
            took = time.monotonic() - began
            comparing.that(
                not stopper.is_alive(), f"stop{again} of a task that is {state.__name__}: {took:.1f} seconds"
            )


@law("D5", "the records of one object are stored in one partition, in their order")
def order_is_kept(rig: SourceRig, comparing: Comparing) -> None:
    """Everything, with small batches over several partitions."""
    written = fill(rig)
    bench = Bench(rig, batch_length=BATCH, queue_records=QUEUE, linger_time=0.0, partitions=3)
    bench.live(CrashPoint())
    stored = bench.stored()
    for key, records in written.items():
        found = stored.get(key, [])
        comparing.that(len({partition for partition, _ in found}) == 1, f"{key!r} is in more than one partition")
        comparing.same([payload for _, payload in found], records, f"the topic's records of {key!r}")
