"""Records in flight: batches of an object, the records skipped in them, and their confirmation.

On the hot path a batch is one value, with its payloads in a list or a column (`framework.model.payloads`). No stage
between the format and the socket creates a Python object per record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from framework.errors import ObjectArchivedError, SkippableError
from framework.model.header_encoding import EncodedHeaders, HeaderValue
from framework.model.objects import Anchor, NativeObject, TopicPartition, length_only
from framework.model.positions import OffsetManagerEntry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@attrs.frozen(kw_only=True, slots=True)
class SkippedRecord:
    """A bad record that the source skipped.

    Attributes:
        record_number: counted from 1; a skipped record keeps its number, so numbers do not depend on the tolerance.
        error: the reason.
        raw: the record's bytes, or their beginning; empty when they could not be delimited. Never logged.
        length: the record's length in bytes; None when unknown. `raw` is the whole record when it has this length.
    """

    record_number: int
    error: SkippableError
    raw: bytes = attrs.field(default=b"", repr=False)
    length: int | None = None


@attrs.frozen(kw_only=True, slots=True)
class ObjectFailure:
    """The reason why the rest of an object failed.

    Attributes:
        record_number: the first missing record, counted from 1.
        error: the reason.
        counts: whether it counts towards the limits of bad records. One failure of an object ends all of its parts, and
            counts once.
    """

    record_number: int
    error: SkippableError
    counts: bool = True


@attrs.frozen(kw_only=True, slots=True, eq=False)
class RecordBatch:
    """Records of an object, or of a split, in order: the unit that moves through the pipeline.

    Without transforms the record numbers are `first_record .. first_record + len(payloads) - 1`, and skipped records
    precede the first. With them, records may be missing anywhere in the batch: then `numbers` has the numbers.

    Attributes:
        native: the object version of the records.
        topic_partition: their destination.
        first_record: number of the first payload, counted from 1. With `numbers`: the first number that the batch
            accounts for, whatever became of that record.
        payloads: each 1 byte or more.
        size_bytes: sum of the payloads' lengths.
        entry: the object's position once every record of this batch is confirmed.
        skipped: bad records skipped just before this batch.
        failure: the failure that ends the object with this batch, before its real end; None without a failure.
        numbers: the number of each payload, rising; None when they are consecutive.
        headers: each record's own headers, encoded after the transforms, or None for a record without; None when no
            record has any.
        timestamps_us: each record's time of origin, microseconds since 1970, or 0 for the time of sending; None when no
            record has its own.
    """

    native: NativeObject
    topic_partition: TopicPartition
    first_record: int
    payloads: Sequence[bytes] = attrs.field(repr=length_only)
    size_bytes: int
    entry: OffsetManagerEntry
    skipped: tuple[SkippedRecord, ...] = ()
    failure: ObjectFailure | None = None
    numbers: NDArray[np.int64] | None = attrs.field(default=None, repr=False)
    headers: Sequence[Mapping[str, HeaderValue] | None] | None = attrs.field(default=None, repr=False)
    timestamps_us: NDArray[np.int64] | None = attrs.field(default=None, repr=False)

    @property
    def last_record(self) -> int:
        """Number of the last payload; `first_record - 1` when the batch has none."""
        if self.numbers is not None:
            return int(self.numbers[-1]) if len(self.numbers) else self.first_record - 1
        return self.first_record + len(self.payloads) - 1

    @property
    def records_before(self) -> int:
        """Number of the object's records that come before the batch: sent, skipped or filtered."""
        if self.numbers is not None:
            return self.first_record - 1
        return self.first_record - len(self.skipped) - 1

    @property
    def record_numbers(self) -> Sequence[int]:
        """The number of each payload."""
        if self.numbers is not None:
            numbers: list[int] = self.numbers.tolist()
            return numbers
        return range(self.first_record, self.first_record + len(self.payloads))

    @property
    def held_bytes(self) -> int:
        """Bytes that the batch keeps in memory: its payloads, its records' own headers, the bytes of its bad records."""
        held = self.size_bytes
        if self.headers is not None:
            held += sum(len(headers.encoded) for headers in self.headers if isinstance(headers, EncodedHeaders))
        if self.skipped:
            held += sum(len(skip.raw) for skip in self.skipped)
        return held

    @property
    def error_count(self) -> int:
        """Number of skips and failures that count towards the limits of bad records; archived objects do not count."""
        rest = self.failure
        return len(self.skipped) + (
            rest is not None and rest.counts and not isinstance(rest.error, ObjectArchivedError)
        )

    def without_raw(self) -> RecordBatch:
        """Return the batch without the bytes of its bad records, for use once their dead letters are stored."""
        if not self.skipped:
            return self
        return attrs.evolve(self, skipped=tuple(attrs.evolve(skip, raw=b"") for skip in self.skipped))

    def records(self) -> Iterator[SourceRecord]:
        """Yield the records individually."""
        for place, (number, payload) in enumerate(zip(self.record_numbers, self.payloads, strict=True)):
            yield SourceRecord(
                native=self.native,
                topic_partition=self.topic_partition,
                record_number=number,
                payload=payload,
                split_number=self.entry.split_number,
                headers=self.headers_of(place),
                timestamp_us=self.timestamp_of(place),
            )

    def headers_of(self, place: int) -> Mapping[str, HeaderValue]:
        """Return the own headers of the record at that place of the batch, counted from 0; empty without any."""
        return (self.headers[place] or {}) if self.headers is not None else {}

    def timestamp_of(self, place: int) -> int:
        """Return the time of origin of the record at that place of the batch; 0 for the time of sending."""
        return int(self.timestamps_us[place]) if self.timestamps_us is not None else 0


@attrs.frozen(kw_only=True, slots=True)
class SourceRecord:
    """A record with its provenance.

    Attributes:
        native: the object version of the record.
        topic_partition: its destination.
        record_number: 1, 2, 3 ... within its object, or within its split.
        payload: the bytes that Iggy stores.
        split_number: number of the split, counted from 1; 0 when the object is read whole.
        headers: the headers that transforms gave it.
        timestamp_us: its time of origin, microseconds since 1970; 0 for the time of sending.
    """

    native: NativeObject
    topic_partition: TopicPartition
    record_number: int
    payload: bytes = attrs.field(repr=length_only)
    split_number: int = 0
    headers: Mapping[str, HeaderValue] = attrs.field(factory=dict, repr=False)
    timestamp_us: int = 0


@attrs.frozen(kw_only=True, slots=True, eq=False)
class Acknowledgement:
    """The server's confirmation that batches are stored; only confirmed batches may be committed.

    Attributes:
        topic_partition: where they were stored.
        batches: the stored batches, in order.
        anchor: place of the last message; None when the batches held no record (an object's end, or only skips).
    """

    topic_partition: TopicPartition
    batches: tuple[RecordBatch, ...]
    anchor: Anchor | None
