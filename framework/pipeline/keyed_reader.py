"""The reading of an object that is divided by key: one read, and batches for each part that this task owns.

    batch of the object -> rows by partition -> batch of each part, with the numbers of its records

To a part the records of the others are filtered: its position passes over them. A read begins at the part that has come
least far, and drops what a part has already. A bad record belongs to part 1, whichever key it may have had.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING

import attrs
from typing_extensions import override

from framework.errors import TransformContractError
from framework.model.batches import ObjectFailure, RecordBatch, SkippedRecord
from framework.model.objects import ObjectState
from framework.model.payloads import size_of
from framework.pipeline.object_reader import ObjectOwner, ObjectRead
from framework.pipeline.transforming import TransformedRun
from framework.transform import TransformBatch, number_array

if TYPE_CHECKING:
    from framework.discovery.object_feed import Assignment
    from framework.model.positions import OffsetManagerEntry
    from framework.storage.prefetch import FetchedInput
    from framework.transformer import BatchLimits, PayloadBatch

MAX_BEHIND = 20_000
"""Records after which the position of a part without records of its own is advanced: a restart reads from the lowest."""

NO_RECORDS = TransformBatch(payloads=(), numbers=range(0))

BAD_RECORDS_PART = 1
"""The part that skips bad records, and sends their dead letters."""


class KeyedRead(ObjectRead):
    """The reading of some parts of an object.

    Args:
        owner: the iterator.
        assignments: parts of one object version, by their numbers.
        source: the object's bytes, prefetched from the mark of the part that has come least far.
    """

    def __init__(self, owner: ObjectOwner, assignments: Sequence[Assignment], source: FetchedInput) -> None:
        least = min(assignments, key=lambda assignment: assignment.entry.records_done)
        super().__init__(owner, least, source)
        self._assignments = assignments
        self._parts = {assignment.entry.split_number: assignment.entry for assignment in assignments}
        self._part_count = -least.entry.split_size
        self._counted = int(BAD_RECORDS_PART in self._parts)
        first = self._parts.get(BAD_RECORDS_PART)
        self._bad = first.skipped if first is not None else 0
        self._records = NO_RECORDS

    @override
    def batches(self, limits: BatchLimits) -> Generator[RecordBatch, None, None]:
        """Yield the batches of the parts. Those of a run follow each other, with part 1 and its dead letters first."""
        whole = super().batches(limits)
        try:
            for batch in whole:
                yield from self._divided(batch)
        finally:
            whole.close()

    @override
    def _batch(
        self, run: PayloadBatch | TransformedRun | None, state: ObjectState, failure: ObjectFailure | None = None
    ) -> RecordBatch:
        self._records = run.batch if isinstance(run, TransformedRun) else NO_RECORDS
        return super()._batch(run, state, failure)

    def _divided(self, batch: RecordBatch) -> Iterator[RecordBatch]:
        """Yield the batches of the parts: with records, with bad records, at the end, or where a part is far behind."""
        import numpy as np  # noqa: PLC0415 - loaded with the transforms

        records, hashes = self._records, self._records.key_hashes
        if len(batch.payloads) != len(records) or (hashes is None and len(records)):
            raise TransformContractError(f"{batch.native.location}: records without the hashes of their keys")
        if hashes is None:
            hashes = np.zeros(0, dtype=np.uint32)
        numbers, partitions = number_array(records.numbers), hashes % np.uint32(self._part_count)
        order = np.argsort(partitions, kind="stable")
        bounds = partitions[order].searchsorted(np.arange(self._part_count + 1))
        records = records.with_payloads(list(records.payloads))  # cutting a column for each part takes twice as long
        last, reading = batch.entry.records_done, not batch.entry.finished
        counts = bool(self._counted)
        for number, entry in self._parts.items():
            rows = order[bounds[number - 1] : bounds[number]]
            if len(rows) and numbers[rows[0]] <= entry.records_done:  # another part was further behind
                rows = rows[numbers[rows] > entry.records_done]
            skipped = self._skipped_of(number, batch.skipped)
            if reading and not len(rows) and not skipped and last - entry.records_done < MAX_BEHIND:
                continue
            part = _batch_of(batch, entry, skipped, records.keep(rows))
            if batch.failure is not None:
                at = part.entry.records_done + 1
                failure = attrs.evolve(batch.failure, record_number=at, counts=counts)
                part, counts = attrs.evolve(part, failure=failure), False
            self._parts[number] = part.entry
            yield part

    def _skipped_of(self, number: int, skipped: tuple[SkippedRecord, ...]) -> tuple[SkippedRecord, ...]:
        if number != BAD_RECORDS_PART or not skipped:
            return ()
        return tuple(bad for bad in skipped if self._owns(bad))

    def _owns(self, skipped: SkippedRecord) -> bool:
        """Return whether a bad record is this read's, and was not handed out before."""
        first = self._parts.get(BAD_RECORDS_PART)
        return first is not None and skipped.record_number > first.records_done

    @override
    def _skip(self, skipped: SkippedRecord) -> None:
        if self._owner.error_policy.skips_records and not self._owns(skipped):
            self._skipped.append(attrs.evolve(skipped, raw=b""))  # it has a number, and nothing else
        else:
            super()._skip(skipped)

    @override
    def _filtered(self, run: TransformedRun) -> int:
        first = self._parts.get(BAD_RECORDS_PART)  # the task with part 1 counts
        return run.filtered if first is not None and run.last_record > first.records_done else 0

    @override
    def _give_back(self, assignment: Assignment, *, gone: bool = False) -> None:
        for part in self._assignments:
            entry = self._parts[part.entry.split_number]
            if entry.records_done > part.entry.records_done:
                self._owner.note_released(entry)
            given = attrs.evolve(part, archived=assignment.archived, in_place=assignment.in_place)
            self._owner.feed.release(given, gone=gone)


def _batch_of(
    batch: RecordBatch, entry: OffsetManagerEntry, skipped: tuple[SkippedRecord, ...], records: TransformBatch
) -> RecordBatch:
    """Return the batch of a part: its own records of a batch of the whole object."""
    last = max(batch.entry.records_done, entry.records_done)
    after = entry.advanced(last, mark=batch.entry.mark, state=batch.entry.state)
    if skipped:
        after = after.changed(skipped=entry.skipped + len(skipped))
    return RecordBatch(
        native=batch.native,
        topic_partition=entry.topic_partition,
        first_record=entry.records_done + 1,
        payloads=records.payloads,
        size_bytes=size_of(records.payloads),
        entry=after,
        skipped=skipped,
        numbers=number_array(records.numbers),
        headers=records.headers,
        timestamps_us=records.timestamps_us,
    )
