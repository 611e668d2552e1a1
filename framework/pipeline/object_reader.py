"""The reading of an object: batches of a transformer -> batches with positions, and the handling of errors."""

from __future__ import annotations

import functools
import logging
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import attrs

from framework.discovery.object_feed import Assignment
from framework.errors import (
    AccessDeniedError,
    ObjectArchivedError,
    ObjectChangedError,
    ObjectDeniedError,
    ObjectNotFoundError,
    SourceError,
    StoreUnavailableError,
    ThrottledError,
    drop_tracebacks,
)
from framework.model.batches import ObjectFailure, RecordBatch, SkippedRecord
from framework.model.closing import close_iterator
from framework.model.log_sampler import LogSampler
from framework.model.message_ids import entry_hash64
from framework.model.objects import NativeObject, ObjectState, TopicPartition
from framework.model.payloads import size_of
from framework.pipeline.transforming import TransformChain, TransformedRun
from framework.storage.prefetch import FetchedInput
from framework.transform import TransformContext
from framework.transformer import BatchLimits, PayloadBatch, guarded, whole_batch

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.discovery.object_feed import ObjectFeed
    from framework.model.positions import OffsetManagerEntry
    from framework.pipeline.error_policy import ErrorPolicy
    from framework.pipeline.task_statistics import TaskStatistics
    from framework.transformer import Transformer

log = logging.getLogger(__name__)

KEPT_SKIPPED = 100
KEPT_SKIPPED_BYTES = 1 << 20
"""Maximum number and bytes of consecutive bad records that wait in memory before they are handed on together."""

MAX_DENIED_IN_A_ROW = 10
"""Beyond this many denied objects in a row, the source as a whole lacks permission, not those objects alone."""


class ObjectOwner(Protocol):
    """The owner of object reads: an iterator.

    Attributes:
        config: the whole configuration.
        transformer: the format.
        transforms: the configured transforms; None without any.
        statistics: counts of reading so far.
        denied_in_a_row: number of consecutive objects with denied access.
        given_back: logs the objects that wait for the store.
    """

    config: SourceCommonConfig
    transformer: Transformer
    transforms: TransformChain | None
    statistics: TaskStatistics
    denied_in_a_row: int
    given_back: LogSampler

    @property
    def feed(self) -> ObjectFeed:
        """The feed, which takes back objects that could not be read as listed."""

    @property
    def error_policy(self) -> ErrorPolicy:
        """What happens to bad records and failed objects."""

    def store_works(self, doing: str) -> None:
        """Record a successful call to the store."""

    def metadata_of(self, native: NativeObject) -> Mapping[str, str]:
        """Return the metadata of an object: one request."""

    def tags_of(self, native: NativeObject) -> Mapping[str, str]:
        """Return the tags of an object: one request."""

    def wait_for_store(self, doing: str, error: StoreUnavailableError | ThrottledError, location: str = "") -> None:
        """Return when a continuous run should wait for the store; else raise the error."""

    def note_released(self, entry: OffsetManagerEntry) -> None:
        """Record how far an object was handed out before its release to the feed."""


def context_of(
    owner: ObjectOwner, native: NativeObject, entry: OffsetManagerEntry, *, exists: bool = True
) -> TransformContext:
    """Return the context of an object's records, with metadata and tags if a transform needs them.

    It is the same for all parts of an object.
    """
    chain, source = owner.transforms if exists else None, owner.config.source.name
    return TransformContext(
        native=native,
        topic_partition=entry.topic_partition if entry.part is None else TopicPartition(entry.topic_partition.topic, 0),
        source=source,
        id_high=entry_hash64(source, entry),
        split_number=entry.split_number if entry.part is None else 0,
        metadata=owner.metadata_of(native) if chain is not None and chain.needs_metadata else {},
        tags=owner.tags_of(native) if chain is not None and chain.needs_tags else {},
        object_exists=exists,
    )


class ObjectRead:
    """The reading of an object: batches of a transformer -> batches with positions.

    `framework.pipeline.keyed_reader` reads an object for several positions.
    """

    def __init__(self, owner: ObjectOwner, assignment: Assignment, source: FetchedInput) -> None:
        self._owner = owner
        self._assignment = assignment
        self._native = assignment.native
        self._entry = assignment.entry
        self._source = source
        self._counted = 1
        self._skipped: list[SkippedRecord] = []
        self._bad = self._entry.skipped
        self._transforms = owner.transforms
        self._whole: PayloadBatch | None = None

    def at_once(self, limits: BatchLimits) -> RecordBatch | None:
        """Return the only batch of a small object that is read from its first record; None: `batches` reads it."""
        entry, transformer = self._entry, self._owner.transformer
        if self._native.size > transformer.max_whole_bytes or entry.records_done or entry.split_size:
            return None
        data = self._source.whole()
        if data is not None:
            self._whole = whole_batch(transformer, data, self._native, limits)
        if self._whole is None or self._transforms is not None:
            return None
        self._source.close()
        return self._batch(self._whole, ObjectState.DONE)

    def batches(self, limits: BatchLimits) -> Generator[RecordBatch, None, None]:
        """Yield the batches of the object. It holds back a batch, so that the last batch carries the object's end."""
        held: PayloadBatch | TransformedRun | None = None
        runs = self._runs(limits)
        if self._transforms is not None:
            runs = self._transformed(self._transforms, runs)
        try:
            for run in runs:
                if held is not None:
                    yield self._batch(held, ObjectState.READING)
                    held = None
                if isinstance(run, SkippedRecord):
                    self._skip(run)
                    if self._many_skipped:
                        yield self._batch(None, ObjectState.READING)
                else:
                    self._skip_bad(run)
                    held = run
        except SourceError as error:
            if held is not None:
                yield self._batch(held, ObjectState.READING)
            yield from self._failed(error)
        else:
            yield self._batch(held, ObjectState.DONE)
        finally:
            try:
                close_iterator(runs)  # otherwise the traceback of a fatal bad record would keep their resources open
            finally:
                self._source.close()

    def _runs(self, limits: BatchLimits) -> Iterator[PayloadBatch | TransformedRun | SkippedRecord]:
        """Return the format's batches and bad records."""
        if self._whole is not None:
            return iter((self._whole,))
        entry, transformer = self._entry, self._owner.transformer
        read = transformer.read
        if entry.split is not None:
            read = functools.partial(transformer.read_split, split=entry.split)
        return guarded(
            functools.partial(read, self._source, skip=entry.records_done, mark=entry.mark, limits=limits),
            self._native.location,
            entry.records_done,
            of=transformer,
        )

    def _skip(self, skipped: SkippedRecord) -> None:
        """Count a bad record, which waits for the next batch.

        Raises:
            SkippableError: the tolerance does not skip it.
        """
        self._owner.error_policy.skip_record(skipped, self._native.location, self._bad + 1)
        self._bad += 1
        self._owner.statistics.skipped += 1
        self._count(skipped.error)
        drop_tracebacks(skipped.error)
        log.warning("skipped a record: %s", skipped.error)
        self._skipped.append(skipped)

    def _count(self, error: SourceError) -> None:
        kinds, kind = self._owner.statistics.kinds, type(error).__name__
        kinds[kind] = kinds.get(kind, 0) + 1

    @property
    def _many_skipped(self) -> bool:
        kept = self._skipped
        return len(kept) >= KEPT_SKIPPED or sum(len(skip.raw) for skip in kept) >= KEPT_SKIPPED_BYTES

    @functools.cached_property
    def _context(self) -> TransformContext:
        return context_of(self._owner, self._native, self._entry)

    def _transformed(
        self, chain: TransformChain, runs: Iterator[PayloadBatch | TransformedRun | SkippedRecord]
    ) -> Iterator[PayloadBatch | TransformedRun | SkippedRecord]:
        """Yield a format's batches after the transforms.

        Raises:
            SkippableError: a record that the tolerance does not skip; what is before it was yielded.
        """
        try:
            for run in runs:
                if not isinstance(run, PayloadBatch):
                    yield run
                    continue
                for part in chain.parts(run, self._context):
                    if part.bad and not self._owner.error_policy.skips_records:
                        yield part.before(part.bad[0].record_number)
                        raise part.bad[0].error
                    yield part
        finally:
            close_iterator(runs)

    def _skip_bad(self, run: PayloadBatch | TransformedRun) -> None:
        """Skip the records that a transform found bad; they wait for the batch of their run."""
        if isinstance(run, TransformedRun):
            for skipped in run.bad:
                self._skip(skipped)
            self._owner.statistics.records_filtered += self._filtered(run)

    def _filtered(self, run: TransformedRun) -> int:
        """Return how many filtered records of a run count."""
        return run.filtered

    def _batch(
        self, run: PayloadBatch | TransformedRun | None, state: ObjectState, failure: ObjectFailure | None = None
    ) -> RecordBatch:
        entry = self._entry
        if self._skipped:
            entry = entry.changed(skipped=self._bad)
        if run is not None or self._skipped:  # bytes arrived
            self._owner.denied_in_a_row = 0
            self._owner.store_works("reading")
        if isinstance(run, TransformedRun):
            return self._transformed_batch(run, entry, state)
        payloads = run.payloads if run is not None else ()
        first = run.first_record if run is not None else entry.records_done + len(self._skipped) + 1
        mark = run.mark if run is not None else None
        self._entry = entry.advanced(first + len(payloads) - 1, mark=mark, state=state)
        skipped, self._skipped = tuple(self._skipped), []
        return RecordBatch(
            native=self._native,
            topic_partition=entry.topic_partition,
            first_record=first,
            payloads=payloads,
            size_bytes=run.size_bytes if run is not None else 0,
            entry=self._entry,
            skipped=skipped,
            failure=failure,
        )

    def _transformed_batch(self, run: TransformedRun, entry: OffsetManagerEntry, state: ObjectState) -> RecordBatch:
        batch, complete = run.batch, run.complete
        self._entry = entry.advanced(run.last_record, mark=run.mark, state=state)
        skipped, self._skipped = tuple(self._skipped), []
        return RecordBatch(
            native=self._native,
            topic_partition=entry.topic_partition,
            first_record=run.first_record if complete else entry.records_done + 1,
            payloads=batch.payloads,
            size_bytes=size_of(batch.payloads),
            entry=self._entry,
            skipped=skipped,
            numbers=None if complete else run.number_array(),
            headers=batch.headers,
            timestamps_us=batch.timestamps_us,
        )

    def _failed(self, error: SourceError) -> Iterator[RecordBatch]:
        """Handle what ended the reading of the object, unless the tolerance does not skip it: then raise it."""
        if self._skipped:  # their dead letters do not depend on what becomes of the rest
            yield self._batch(None, ObjectState.READING)
        yield from self._handled(error)
        drop_tracebacks(error)

    def _handled(self, error: SourceError) -> Iterator[RecordBatch]:
        statistics = self._owner.statistics
        if isinstance(error, (StoreUnavailableError, ThrottledError)):
            self._owner.wait_for_store("reading", error, self._native.location)
            self._owner.given_back.log(logging.WARNING, "given back, and read on in a later listing: %s", error)
            self._give_back(self._assignment)
            return
        if isinstance(error, AccessDeniedError) and self._owner.error_policy.skips_objects:
            error = self._denied(error)
        if isinstance(error, ObjectNotFoundError):
            statistics.vanished += self._counted
            log.warning("left out an object that is gone: %s", error)
            self._give_back(self._assignment, gone=True)
        elif isinstance(error, ObjectChangedError):
            statistics.changed += self._counted
            log.warning(
                "overwritten since it was listed; the new version will be read from its first record: %s", error
            )
            self._give_back(attrs.evolve(self._assignment, in_place=error.in_place))
        elif isinstance(error, ObjectArchivedError) and self._owner.config.discovery.archived == "wait":
            statistics.archived += self._counted
            self._give_back(attrs.evolve(self._assignment, archived=True), gone=True)
        elif not self._owner.error_policy.skips_rest_after(error):
            raise error
        else:
            number = self._entry.records_done + 1
            if isinstance(error, ObjectArchivedError):  # says nothing about the format
                error = self._with_class(error)
            elif self._counted:
                self._owner.error_policy.skip_rest(self._native.location, number)
            statistics.failed += self._counted
            if self._counted:
                self._count(error)
            log.warning("skipped the rest of an object after record %d: %s", number - 1, error)
            yield self._batch(None, ObjectState.FAILED, ObjectFailure(record_number=number, error=error))

    def _denied(self, error: AccessDeniedError) -> ObjectDeniedError:
        """Return the error as an error of this object alone, while other objects are readable.

        Raises:
            AccessDeniedError: too many objects in a row were denied, so the source itself lacks permission.
        """
        owner = self._owner
        owner.denied_in_a_row += 1
        if owner.denied_in_a_row > MAX_DENIED_IN_A_ROW:
            raise AccessDeniedError(f"{error} ({owner.denied_in_a_row} objects in a row)") from error
        location = self._native.location
        denied = ObjectDeniedError(str(error).removeprefix(f"{location}: "), location=location)
        denied.__cause__ = error
        return denied

    def _give_back(self, assignment: Assignment, *, gone: bool = False) -> None:
        """Release the object to the feed, and keep how far it was handed out."""
        if self._entry.records_done > assignment.entry.records_done:
            self._owner.note_released(self._entry)
        self._owner.feed.release(assignment, gone=gone)

    def _with_class(self, error: ObjectArchivedError) -> ObjectArchivedError:
        name = self._native.storage_class
        return ObjectArchivedError(f"{error.message}; storage class {name}", location=error.location) if name else error
