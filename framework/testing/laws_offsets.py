"""Laws of positions: they never go back, and only what is confirmed is committed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from framework.errors import NotAcknowledgedError
from framework.offsets import OffsetManager, OffsetManagerEntry, OffsetManagerKey, PositionDelta
from framework.records import Acknowledgement, Anchor, RecordBatch
from framework.task import AbstractSourceTask
from framework.testing.law import BATCH, Comparing, fill, law
from framework.testing.laws_iterator import drain
from framework.testing.rig import SourceRig

_ORDERS = 20
_THREADS = 4


@law("O1", "positions never go back: of any saves and commits in any order the greatest holds")
def never_go_back(rig: SourceRig, comparing: Comparing) -> None:
    """Saves of every order by several writers; commits of several threads."""
    fill(rig)
    with rig.open_iterator(batch_length=BATCH) as iterator:
        entries = [batch.entry for batch in drain(iterator)]
    greatest: dict[OffsetManagerKey, int] = {}
    for entry in entries:
        greatest[entry.get_manager_key()] = entry.records_done
    chance = random.Random(comparing.seed)  # noqa: S311 - an order, not a secret
    for number in range(_ORDERS):
        order = entries[::-1] if number == 0 else chance.sample(entries, len(entries))
        store = rig.offset_store()
        for entry in order:
            OffsetManager(store).add_entry(entry)
            store.save(PositionDelta(entries=[entry]))
        comparing.that(
            {entry.get_manager_key(): entry.records_done for entry in store.load()} == greatest,
            f"saves in the order {[entry.records_done for entry in order]}",
        )
    manager = OffsetManager(rig.offset_store())
    _commit_from_threads(manager, entries, chance)
    comparing.that(
        {entry.get_manager_key(): entry.records_done for entry in manager.entries()} == greatest,
        f"commits of {_THREADS} threads",
    )


def _commit_from_threads(manager: OffsetManager, entries: list[OffsetManagerEntry], chance: random.Random) -> None:
    start = threading.Barrier(_THREADS)

    def work(mine: list[OffsetManagerEntry]) -> None:
        start.wait()
        for entry in mine:
            manager.add_entry(entry)
            manager.flush()

    orders = [chance.sample(entries, len(entries)) for _ in range(_THREADS)]
    threads = [threading.Thread(target=work, args=(order,)) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@law("O3", "a commit of what is not confirmed, not handed out, or out of order raises, and moves nothing")
def only_confirmed(rig: SourceRig, comparing: Comparing) -> None:
    """Without a message; of another task's batch; of a second batch before the first; twice."""
    fill(rig)
    with _polled(rig) as (task, first, second):
        before = task.offsets.entries()
        missing = Acknowledgement(lane=first.lane, batches=(first,), anchor=None)
        comparing.that(_refused(lambda: task.commit(missing)), "a commit of records without a confirmed message")
        comparing.that(
            _refused(lambda: task.commit(_confirmed(second))), "a commit of the second batch before the first"
        )
        comparing.that(task.offsets.entries() == before, "positions after commits that were refused")
        task.commit(_confirmed(first))
        comparing.that(_refused(lambda: task.commit(_confirmed(first))), "a commit of one batch twice")
        stranger = rig.open_task(batch_length=BATCH)
        try:
            comparing.that(_refused(lambda: stranger.commit(_confirmed(first))), "a commit of what another task read")
        finally:
            stranger.stop()


def _refused(commit: Callable[[], None]) -> bool:
    try:
        commit()
    except NotAcknowledgedError:
        return True
    return False


def _confirmed(batch: RecordBatch) -> Acknowledgement:
    return Acknowledgement(lane=batch.lane, batches=(batch,), anchor=Anchor(batch.last_record, 1))


class _polled:  # noqa: N801 - a context manager
    """A task, and the first two batches of one of its objects."""

    def __init__(self, rig: SourceRig) -> None:
        self._task = rig.open_task(batch_length=BATCH)

    def __enter__(self) -> tuple[AbstractSourceTask, RecordBatch, RecordBatch]:
        seen: dict[OffsetManagerKey, RecordBatch] = {}
        while not self._task.finished:
            for batch in self._task.poll(timeout_seconds=1.0):
                key = batch.entry.get_manager_key()
                if key in seen:
                    return self._task, seen[key], batch
                seen[key] = batch
        raise AssertionError("no object gave two batches")

    def __exit__(self, *_: object) -> None:
        self._task.stop()
