"""Laws of positions: they never go back, and only what is confirmed is committed."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence

from framework.errors import NotAcknowledgedError, PositionError, SourceError
from framework.iggy.offset_log.framing import FORMAT_VERSION, MAGIC
from framework.iterator import AbstractSourceRecordIterator
from framework.model.batches import Acknowledgement, RecordBatch
from framework.model.objects import Anchor, NativeObject
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.offsets.manager import OffsetManager
from framework.offsets.offset_store import MemoryOffsetStore, OffsetStore, PositionDelta
from framework.task import AbstractSourceTask
from framework.testing.fakes.memory_iggy import MemoryIggy
from framework.testing.kit.crash import Bench, CrashPoint
from framework.testing.kit.law import BATCH, Comparing, fill, law
from framework.testing.kit.laws_iterator import drain
from framework.testing.rig import Capability, SourceRig

_ORDERS = 20
_THREADS = 4


@law("O1", "positions never go back: of any commits in any order the greatest holds")
def never_go_back(rig: SourceRig, comparing: Comparing) -> None:
    """Check commits in every order, from one thread and from several."""
    fill(rig)
    with rig.open_iterator(batch_length=BATCH) as iterator:
        batches = list(drain(iterator))
    greatest: dict[OffsetManagerKey, int] = {}
    for batch in batches:
        greatest[batch.entry.get_manager_key()] = batch.entry.records_done
    chance = random.Random(comparing.seed)  # noqa: S311 - an order, not a secret
    for number in range(_ORDERS):
        order = batches[::-1] if number == 0 else chance.sample(batches, len(batches))
        store = rig.offset_store()
        manager = OffsetManager(store)
        for batch in order:
            manager.commit(_confirmed(batch))
            manager.flush()
        comparing.that(
            {entry.get_manager_key(): entry.records_done for entry in store.load()} == greatest,
            f"commits in the order {[batch.entry.records_done for batch in order]}",
        )
    manager = OffsetManager(rig.offset_store())
    _commit_from_threads(manager, batches, chance)
    comparing.that(
        {entry.get_manager_key(): entry.records_done for entry in manager.table.entries()} == greatest,
        f"commits of {_THREADS} threads",
    )


def _commit_from_threads(manager: OffsetManager, batches: list[RecordBatch], chance: random.Random) -> None:
    start = threading.Barrier(_THREADS)

    def work(mine: list[RecordBatch]) -> None:
        start.wait()
        for batch in mine:
            manager.commit(_confirmed(batch))

    orders = [chance.sample(batches, len(batches)) for _ in range(_THREADS)]
    threads = [threading.Thread(target=work, args=(order,)) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    manager.flush()


@law("O2", "the stored form of a position gives the position back, and a form of an unknown version is a clear error")
def stored_form(rig: SourceRig, comparing: Comparing) -> None:
    """Check every position of a run through its text form; the log after a run; the log in a later version.

    A store of the source's own must give back what a manager saves in several lives, as one in memory does.
    """
    fill(rig)
    with rig.open_iterator(batch_length=BATCH - 1) as iterator:
        entries = [batch.entry for batch in drain(iterator)]
        keys = {
            batch.key: iterator.get_offset_manager_key(iterator.get_native_key(batch)) for batch in _natives(iterator)
        }
    for entry in [*entries, *(entry.changed(skipped=2, missing_since_ms=7) for entry in entries)]:
        key = entry.get_manager_key()
        comparing.that(
            key == keys[entry.key], f"the key of {entry.key!r}: {key} in its position, {keys[entry.key]} in a listing"
        )
        again = OffsetManagerKey.of(dict(reversed(json.loads(key.canonical()).items())))
        comparing.that(again == key, f"the key of {entry.key!r} when its parts come in another order: {again}")
        text = json.dumps(entry.get_properties())
        back = type(entry).from_properties(key, json.loads(text))
        comparing.that(back == entry, f"{entry} was stored as {text} and came back as {back}")
        entry.get_properties().clear()
        comparing.that(
            json.dumps(entry.get_properties()) == text, f"the stored form of {entry.key!r} was changed outside"
        )
    _in_the_log(rig, comparing)
    if Capability.POSITIONS in rig.capabilities:
        _in_its_own_store(rig, comparing, entries)


def _natives(iterator: AbstractSourceRecordIterator) -> list[NativeObject]:
    return list(iterator.get_native_item_stream(None))


def _in_the_log(rig: SourceRig, comparing: Comparing) -> None:
    """Check that the next run loads the positions of a run, and rejects a later version."""
    server = MemoryIggy()
    bench = Bench(rig, server=server, batch_length=BATCH, linger_time=0.0)
    ends = bench.live(CrashPoint())
    bench.live(CrashPoint())
    comparing.same(_sorted(bench.recovered or []), _sorted(ends), "the positions that a restart finds in the log")
    config = bench.config
    assert config is not None
    place = len(MAGIC)
    server.rewrite(
        config.iggy.stream,
        config.offsets_topic,
        0,
        lambda raw: raw[:place] + bytes([FORMAT_VERSION + 1]) + raw[place + 1 :],
    )
    before = bench.stored()
    error = _refusal(lambda: bench.live(CrashPoint()))
    comparing.that(isinstance(error, PositionError), f"a log of an unknown version: {error!r}")
    comparing.that(bench.stored() == before, "records were sent again after a log of an unknown version")


def _in_its_own_store(rig: SourceRig, comparing: Comparing, entries: list[OffsetManagerEntry]) -> None:
    store = rig.offset_store()
    store.save(PositionDelta(entries=entries))
    greatest = list({entry.get_manager_key(): entry for entry in entries}.values())
    comparing.same(
        _sorted(list(rig.reopen(store).load())), _sorted(greatest), "the positions that the store gives back"
    )
    store = rig.offset_store()
    right = MemoryOffsetStore()
    for what, delta in _lives(list({entry.key: entry for entry in entries}.values())):
        store.save(delta)
        right.save(delta)
        store = rig.reopen(store)
        comparing.same(
            _counted(store),
            _counted(right),
            f"key, split, generation and records that the store gives back when {what}",
        )
    rig.spoil(store)
    found: list[OffsetManagerEntry] = []
    error = _refusal(lambda: found.extend(rig.reopen(store).load()))
    comparing.that(
        isinstance(error, PositionError),
        f"stored positions of an unknown version gave {len(found)} positions, {error!r}",
    )


def _counted(store: OffsetStore) -> list[tuple[object, ...]]:
    """Return the stored positions, with what may differ first: an example is cut."""
    entries = _sorted(list(store.load()))
    return [(entry.key, entry.split_number, entry.generation, entry.records_done, entry) for entry in entries]


def _lives(entries: list[OffsetManagerEntry]) -> Iterator[tuple[str, PositionDelta]]:
    """Yield what a manager saves about some objects one after the other, and what happens to them."""
    begun = [entry.changed(records_done=0, records_saved=0, total=None, mark=None) for entry in entries]
    yield "objects begin", PositionDelta(begun=begun)
    yield "they are read", PositionDelta(entries=[entry.changed(extra={**entry.extra, "kit": 7}) for entry in entries])
    first, second = begun[:2]
    splits = [first.changed(generation=2, split_number=number, split_size=10) for number in (1, 2, 3)]
    yield "a new version is read in splits", PositionDelta(begun=splits, entries=[splits[1].changed(records_done=1)])
    yield (
        "two of them are read further",
        PositionDelta(entries=[split.changed(records_done=2) for split in splits[::2]]),
    )
    yield "an object is removed", PositionDelta(removed=[second.get_manager_key()])
    yield "a version in splits becomes one that is whole", PositionDelta(begun=[first.changed(generation=3)])
    splits = [second.changed(generation=2, split_number=number, split_size=10) for number in (1, 2)]
    yield "the removed one begins again", PositionDelta(begun=splits)
    again = second.changed(generation=3)
    yield "it is removed and begins again", PositionDelta(removed=[second.get_manager_key()], begun=[again])


def _sorted(entries: Sequence[OffsetManagerEntry]) -> list[OffsetManagerEntry]:
    return sorted(entries, key=lambda entry: (entry.bucket, entry.key, entry.split_number))


def _refusal(call: Callable[[], object]) -> SourceError | None:
    try:
        call()
    except SourceError as error:
        return error
    return None


@law("O3", "a commit of what is not confirmed, not handed out, or out of order raises, and moves nothing")
def only_confirmed(rig: SourceRig, comparing: Comparing) -> None:
    """Check commits without a message, of another task's batch, of a second batch before the first, and repeated."""
    fill(rig)
    with _polled(rig) as (task, first, second):
        before = task.offsets.table.entries()
        missing = Acknowledgement(topic_partition=first.topic_partition, batches=(first,), anchor=None)
        comparing.that(_refused(lambda: task.commit(missing)), "a commit of records without a confirmed message")
        comparing.that(
            _refused(lambda: task.commit(_confirmed(second))), "a commit of the second batch before the first"
        )
        comparing.that(task.offsets.table.entries() == before, "positions after commits that were refused")
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
    return Acknowledgement(topic_partition=batch.topic_partition, batches=(batch,), anchor=Anchor(batch.last_record, 1))


@contextlib.contextmanager
def _polled(rig: SourceRig) -> Iterator[tuple[AbstractSourceTask, RecordBatch, RecordBatch]]:
    """Yield a task and the first two batches of one of its objects."""
    task = rig.open_task(batch_length=BATCH)
    try:
        yield task, *_first_two(task)
    finally:
        task.stop()


def _first_two(task: AbstractSourceTask) -> tuple[RecordBatch, RecordBatch]:
    seen: dict[OffsetManagerKey, RecordBatch] = {}
    while not task.finished:
        for batch in task.poll(timeout_seconds=1.0):
            first = seen.setdefault(batch.entry.get_manager_key(), batch)
            if first is not batch:
                return first, batch
    raise AssertionError("no object gave two batches")
