"""Laws of an iterator: it resumes at its position, queries change nothing, and it reads no more than needed."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from framework.iterator import AbstractSourceRecordIterator
from framework.model.batches import RecordBatch
from framework.offsets.offset_store import MemoryOffsetStore, PositionDelta
from framework.testing.kit.law import BATCH, Comparing, fill, law
from framework.testing.kit.scenario import BAD_RECORDS
from framework.testing.kit.watch import watch_streams
from framework.testing.rig import Capability, SourceRig

BIG_OBJECT_BYTES = 12 << 20
LITTLE_BYTES = 1 << 20


def drain(iterator: AbstractSourceRecordIterator) -> list[RecordBatch]:
    """Return every batch."""
    batches = []
    while (batch := iterator.next_batch()) is not None:
        batches.append(batch)
    return batches


def payloads_of(batches: Sequence[RecordBatch]) -> list[bytes]:
    """Return the payloads of batches, in order."""
    return [payload for batch in batches for payload in batch.payloads]


@law("I1", "after any record, the position taken there gives exactly the rest to the next iterator")
def resumes_at_every_cut(rig: SourceRig, comparing: Comparing) -> None:
    """Check resumption after every record and every larger batch, with another batch size; with bad records if the rig can."""
    written = fill(rig)
    for length, again in ((1, BATCH), (BATCH, BATCH - 1)):
        _resumes(rig, comparing, written, length, again)
    if Capability.BAD_RECORDS in rig.capabilities:
        contents = BAD_RECORDS.fill(rig, rig.counts)
        _resumes(rig, comparing, contents.good, BATCH, BATCH - 1, tolerance="skip_record")


def _resumes(
    rig: SourceRig,
    comparing: Comparing,
    written: Mapping[str, Sequence[bytes]],
    length: int,
    again: int,
    **options: Any,
) -> None:
    with rig.open_iterator(batch_length=length, **options) as iterator:
        batches = drain(iterator)
    expected = sorted(record for records in written.values() for record in records)
    comparing.same(sorted(payloads_of(batches)), expected, f"everything from the start, read by {length}, {options}")
    everything = _numbered(batches)
    for cut in range(len(batches) + 1):
        store = MemoryOffsetStore()
        for batch in batches[:cut]:
            store.save(PositionDelta(entries=[batch.entry]))
        done = len(_numbered(batches[:cut]))
        with rig.open_iterator(store, batch_length=again, **options) as iterator:
            rest = _numbered(drain(iterator))
        comparing.same(
            rest, everything[done:], f"after {done} of {len(everything)} records, read by {length}, {options}"
        )


def _numbered(batches: Sequence[RecordBatch]) -> list[tuple[str, int, bytes | None]]:
    """Return the records of batches with key and number; a bad record has no payload."""
    found: list[tuple[str, int, bytes | None]] = []
    for batch in batches:
        rows: list[tuple[int, bytes | None]] = [(skipped.record_number, None) for skipped in batch.skipped]
        rows += [(record.record_number, record.payload) for record in batch.records()]
        found += [(batch.native.key, number, payload) for number, payload in sorted(rows, key=itemgetter(0))]
    return found


@law("I2", "asking for positions, counts or a text changes nothing and answers the same twice")
def questions_change_nothing(rig: SourceRig, comparing: Comparing) -> None:
    """Check every query between every two records."""
    written = fill(rig)
    with rig.open_iterator(batch_length=BATCH) as quiet:
        expected = payloads_of(drain(quiet))
    comparing.that(len(expected) == sum(map(len, written.values())), "some records did not come at all")
    with rig.open_iterator(batch_length=BATCH) as iterator:
        seen: list[bytes] = []
        for _ in range(len(expected) + 1):
            first, second = _answers(iterator), _answers(iterator)
            comparing.that(first == second, f"two answers after {len(seen)} records: {first} and {second}")
            record = next(iterator, None)
            if record is not None:
                seen.append(record.payload)
        comparing.same(seen, expected, "records with questions between them")


def _answers(iterator: AbstractSourceRecordIterator) -> tuple[object, ...]:
    offsets = iterator.offsets
    return (
        repr(iterator),
        iterator.finished,
        len(offsets.table),
        offsets.dirty,
        offsets.table.entries(),
        iterator.statistics.records_read,
    )


@law("I3", "the first record opens one object and the ones allowed ahead, and reads no more of it than it needs")
def lazy(rig: SourceRig, comparing: Comparing) -> None:
    """Check with one object ahead, then with an object much larger than the buffers."""
    fill(rig)
    record = rig.make_records("big", 1)[0]
    with rig.open_iterator(prefetch_objects=1) as iterator:
        opened: list[None] = []
        watch_streams(iterator, before=partial(opened.append, None))
        next(iterator)
        comparing.that(len(opened) <= 2, f"the first record opened {len(opened)} objects, with one ahead allowed")  # noqa: PLR2004  itself and one ahead
    big = rig.encode([record] * (BIG_OBJECT_BYTES // len(record)))
    rig.put("A big one", big)  # sorts before all others
    with rig.open_iterator(prefetch_objects=1, prefetch_bytes=LITTLE_BYTES, batch_bytes=LITTLE_BYTES // 16) as iterator:
        tracemalloc.start()
        try:
            next(iterator)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        comparing.that(
            peak <= BIG_OBJECT_BYTES // 2,
            f"the first record of an object of {len(big)} bytes took {peak} bytes, with {LITTLE_BYTES} ahead allowed",
        )
