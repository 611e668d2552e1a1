"""One object on its way out: runs of a transformer -> batches with positions, and what becomes of what is bad."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import attrs

from framework.entries import OffsetManagerEntry
from framework.errors import (
    ObjectArchivedError,
    ObjectChangedError,
    ObjectNotFoundError,
    RecordError,
    SkippableError,
    SourceError,
)
from framework.feed import Assignment
from framework.half_way import give_up
from framework.prefetch import FetchedInput
from framework.records import GivenUp, ObjectState, RecordBatch, SkippedRecord
from framework.transformer import BatchLimits, PayloadRun

if TYPE_CHECKING:
    from framework.iterator import AbstractSourceRecordIterator

log = logging.getLogger(__name__)

KEPT_SKIPPED = 100
KEPT_SKIPPED_BYTES = 1 << 20
"""Bad records in a row that are handed on together: they wait in memory, with their bytes."""


class ObjectRead:
    """One object on its way out: runs of a transformer -> batches with positions."""

    def __init__(self, owner: AbstractSourceRecordIterator, assignment: Assignment, source: FetchedInput) -> None:
        self._owner = owner
        self._tolerance = owner.config.errors.tolerance
        self._assignment = assignment
        self._native = assignment.native
        self._entry = assignment.entry
        self._source = source
        self._skipped: list[SkippedRecord] = []
        self._bad = sum(last - first + 1 for first, last in self._entry.skipped)

    def batches(self, limits: BatchLimits) -> Generator[RecordBatch, None, None]:
        """The batches of the object. One run is held back, so that the last one carries the object's end."""
        entry, held = self._entry, None
        read = self._owner.transformer.runs
        if entry.cut is not None:
            read = functools.partial(self._owner.transformer.share_runs, share=entry.cut)
        runs = read(self._source, skip=entry.records_done, mark=entry.mark, limits=limits)
        try:
            for run in self._as_decided(runs):
                if held is not None:
                    yield self._batch(held, ObjectState.READING)
                    held = None
                if isinstance(run, SkippedRecord):
                    self._skip(run)
                    if self._many_skipped:
                        yield self._batch(None, ObjectState.READING)
                else:
                    held = run
        except SourceError as error:
            if held is not None:
                yield self._batch(held, ObjectState.READING)
            yield from self._failed(error)
        else:
            self._owner.counts.objects_done += 1
            self._finish()
            yield self._batch(held, ObjectState.DONE)
        finally:
            try:
                give_up(runs)  # else the traceback of a bad record that ends it all keeps what they have open
            finally:
                self._source.close()

    def _as_decided(self, runs: Iterator[PayloadRun | SkippedRecord]) -> Iterator[PayloadRun | SkippedRecord]:
        """The runs without records that an earlier run left out and that are good now, under other options.

        They stay left out: each has a letter, which is what sends it, or the log says that it was given up.
        """
        decided = self._assignment.entry
        for run in runs:
            if not decided.skipped or isinstance(run, SkippedRecord):
                yield run
            else:
                yield from _without_left_out(run, decided, self._native.location)

    def _skip(self, skipped: SkippedRecord) -> None:
        # what the position has from an earlier run has its letter: a letter comes before the number in the log
        told = self._assignment.entry.left_out(skipped.record_number)
        if not told:
            if self._tolerance != "skip_record":
                raise skipped.error
            self._bad += 1
            self._owner.skip_limits.record(self._native.location, skipped.record_number, self._bad)
        self._owner.counts.skipped += 1
        self._count(skipped.error)
        log.warning("skipped a record: %s", skipped.error)
        self._skipped.append(attrs.evolve(skipped, told=told) if told else skipped)

    def _count(self, error: SourceError) -> None:
        kinds, kind = self._owner.counts.kinds, type(error).__name__
        kinds[kind] = kinds.get(kind, 0) + 1

    @property
    def _many_skipped(self) -> bool:
        kept = self._skipped
        return len(kept) >= KEPT_SKIPPED or sum(len(skip.raw) for skip in kept) >= KEPT_SKIPPED_BYTES

    def _batch(self, run: PayloadRun | None, state: ObjectState, given_up: GivenUp | None = None) -> RecordBatch:
        entry = self._entry
        if self._skipped:
            entry = entry.with_skipped(skip.record_number for skip in self._skipped)
        payloads = run.payloads if run is not None else ()
        first = run.first_record if run is not None else entry.records_done + len(self._skipped) + 1
        mark = run.mark if run is not None else None
        self._entry = entry.advanced(first + len(payloads) - 1, mark=mark, state=state)
        skipped, self._skipped = tuple(self._skipped), []
        return RecordBatch(
            native=self._native,
            lane=entry.lane,
            first_record=first,
            payloads=payloads,
            size_bytes=run.size_bytes if run is not None else 0,
            entry=self._entry,
            skipped=skipped,
            given_up=given_up,
        )

    def _failed(self, error: SourceError) -> Iterator[RecordBatch]:
        counts = self._owner.counts
        if isinstance(error, ObjectNotFoundError):
            counts.objects_vanished += 1
            counts.bytes_vanished += self._assignment.size_bytes
            log.warning("left out an object that is gone: %s", error)
            self._finish()
            self._give_back(self._assignment, gone=True)
        elif isinstance(error, ObjectChangedError):
            counts.objects_changed += 1
            log.warning(
                "overwritten since it was listed; the new version will be read from its first record: %s", error
            )
            self._give_back(self._assignment)
        elif isinstance(error, ObjectArchivedError) and self._owner.config.discovery.archived == "wait":
            counts.objects_archived += 1
            counts.bytes_archived += self._assignment.size_bytes
            self._give_back(attrs.evolve(self._assignment, archived=True), gone=True)
        elif not isinstance(error, SkippableError) or (
            self._tolerance == "none" and not isinstance(error, ObjectArchivedError)
        ):
            raise error
        else:
            number = self._entry.records_done + len(self._skipped) + 1
            told = self._assignment.entry.given_up == number
            if isinstance(error, ObjectArchivedError):  # says nothing about the format
                error = self._with_class(error)
            elif not told:
                self._owner.skip_limits.rest(self._native.location, number)
            counts.objects_failed += 1
            self._count(error)
            log.warning("skipped the rest of an object after record %d: %s", number - 1, error)
            self._finish()
            yield self._batch(None, ObjectState.FAILED, GivenUp(record_number=number, error=error, told=told))

    def _give_back(self, assignment: Assignment, *, gone: bool = False) -> None:
        if self._entry.records_done > assignment.entry.records_done:
            self._owner.left_at(self._entry)
        self._owner.feed.release(assignment, gone=gone)

    def _with_class(self, error: ObjectArchivedError) -> ObjectArchivedError:
        name = self._native.storage_class
        return ObjectArchivedError(f"{error.message}; storage class {name}", location=error.location) if name else error

    def _finish(self) -> None:
        self._owner.counts.bytes_done += self._assignment.size_bytes


def _without_left_out(
    run: PayloadRun, decided: OffsetManagerEntry, location: str
) -> Iterator[PayloadRun | SkippedRecord]:
    last = run.first_record + len(run.payloads) - 1
    for left_out, group in itertools.groupby(range(run.first_record, last + 1), key=decided.left_out):
        numbers = list(group)
        if left_out:
            for number in numbers:
                error = RecordError("left out by an earlier run", location=location, record_number=number)
                yield SkippedRecord(record_number=number, error=error)
        else:
            at = numbers[0] - run.first_record
            payloads = run.payloads[at : at + len(numbers)]
            mark = run.mark if numbers[-1] == last else None
            yield PayloadRun(first_record=numbers[0], payloads=payloads, size_bytes=sum(map(len, payloads)), mark=mark)
