"""The values that move through the pipeline: objects, lanes, batches, acknowledgements.

On the hot path a batch is one value with a plain list of payloads inside; there is never one Python object per record and
per stage.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence, Sized
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import attrs
from typing_extensions import override

from framework.errors import ObjectArchivedError, SkippableError

if TYPE_CHECKING:
    from framework.offsets import OffsetManagerEntry


def length_only(value: Sized) -> str:
    """What the repr of a long value shows: how long it is, never what it holds."""
    return f"<{len(value)}>"


@attrs.frozen(kw_only=True, slots=True)
class NativeObject:
    """One object version of a bucket, as a listing shows it.

    Attributes:
        scheme: the store, as it stands in an address: `s3`, `gs`, `file`.
        bucket: its bucket.
        key: its key, exactly as stored.
        size: bytes, as listed.
        version: what tells two contents under the same key apart: an etag with its last-modified (S3), a generation (GCS).
        modified_ms: last-modified, milliseconds since 1970 UTC. A plain number: millions of them are listed.
        storage_class: as the store names it; empty when the store has none.
    """

    scheme: str = ""
    bucket: str
    key: str
    size: int
    version: str
    modified_ms: int = 0
    storage_class: str = ""

    @property
    def location(self) -> str:
        """The address for messages: `s3://bucket/key`."""
        return f"{self.scheme}://{self.bucket}/{self.key}" if self.scheme else f"{self.bucket}/{self.key}"

    @property
    def last_modified(self) -> datetime:
        """The time of the last change, aware, UTC."""
        return datetime.fromtimestamp(self.modified_ms / 1000, tz=timezone.utc)


@attrs.frozen(order=True, slots=True)
class Lane:
    """One partition of one data topic: the unit of work, of order and of recovery."""

    topic: str
    partition: int

    @override
    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@attrs.frozen(slots=True)
class Mark:
    """A place to resume from without reading what is before it.

    Attributes:
        record: records that end at or before `byte`.
        byte: offset in the stored object of the first byte after them.
    """

    record: int
    byte: int


class ObjectState(str, enum.Enum):
    """How far an object is. The order of the members is the order in which an object can go through them."""

    READING = "reading"
    DONE = "done"
    FAILED = "failed"

    @property
    def rank(self) -> int:
        """Larger is further: 0 reading, 1 done, 2 failed."""
        return _STATE_RANKS[self]


_STATE_RANKS = {ObjectState.READING: 0, ObjectState.DONE: 1, ObjectState.FAILED: 2}


@attrs.frozen(kw_only=True, slots=True)
class SkippedRecord:
    """A bad record that the source went on without.

    Attributes:
        record_number: counted from 1; a skipped record keeps its number, so numbers do not depend on the tolerance.
        error: why.
        raw: its bytes, or their beginning; empty when they could not be told apart. Never logged.
        length: how many bytes it has; None when that is not known. `raw` is the whole record when it has as many.
        told: whether a dead letter about it is stored already, from an earlier run.
    """

    record_number: int
    error: SkippableError
    raw: bytes = attrs.field(default=b"", repr=False)
    length: int | None = None
    told: bool = False


@attrs.frozen(kw_only=True, slots=True)
class GivenUp:
    """Why the rest of an object was left out.

    Attributes:
        record_number: the first record that is missing, counted from 1.
        error: why.
        told: whether a dead letter about it is stored already, from an earlier run.
    """

    record_number: int
    error: SkippableError
    told: bool = False


@attrs.frozen(kw_only=True, slots=True, eq=False)
class RecordBatch:
    """Consecutive records of one object, or of one share of a split one: the unit that moves through the pipeline.

    The record numbers are `first_record .. first_record + len(payloads) - 1`; skipped records stand before the first.

    Attributes:
        native: the object version they come from.
        lane: where they go.
        first_record: number of the first payload, counted from 1.
        payloads: each 1 byte or more.
        size_bytes: sum of the payloads' lengths.
        entry: the object's position once every record of this batch is confirmed.
        skipped: bad records left out just before this batch.
        given_up: why the object ends with this batch although there is more of it; None when it does not.
    """

    native: NativeObject
    lane: Lane
    first_record: int
    payloads: Sequence[bytes] = attrs.field(repr=length_only)
    size_bytes: int
    entry: OffsetManagerEntry
    skipped: tuple[SkippedRecord, ...] = ()
    given_up: GivenUp | None = None

    @property
    def last_record(self) -> int:
        """Number of the last payload; `first_record - 1` when there is none."""
        return self.first_record + len(self.payloads) - 1

    @property
    def held_bytes(self) -> int:
        """What it keeps in memory: its payloads, and the bytes of the bad records."""
        return self.size_bytes + sum(len(skip.raw) for skip in self.skipped) if self.skipped else self.size_bytes

    @property
    def left_out(self) -> int:
        """What counts against the limits of what may be left out: not what an earlier run has counted, nor what is archived."""
        rest = self.given_up
        new_rest = rest is not None and not rest.told and not isinstance(rest.error, ObjectArchivedError)
        return sum(not skip.told for skip in self.skipped) + new_rest

    def without_raw(self) -> RecordBatch:
        """The batch without the bytes of its bad records, which nobody needs once their letters are stored."""
        if not self.skipped:
            return self
        return attrs.evolve(self, skipped=tuple(attrs.evolve(skip, raw=b"") for skip in self.skipped))

    def records(self) -> Iterator[SourceRecord]:
        """The records one by one, for those who want them so."""
        for number, payload in enumerate(self.payloads, self.first_record):
            yield SourceRecord(
                native=self.native, lane=self.lane, record_number=number, payload=payload, share=self.entry.share
            )


@attrs.frozen(kw_only=True, slots=True)
class SourceRecord:
    """One record with its provenance.

    Attributes:
        native: the object version it comes from.
        lane: where it goes.
        record_number: 1, 2, 3 ... inside its object, or inside its share.
        payload: the bytes that Iggy stores.
        share: which share of a split object, counted from 1; 0 when the object is read whole.
    """

    native: NativeObject
    lane: Lane
    record_number: int
    payload: bytes = attrs.field(repr=length_only)
    share: int = 0


@attrs.frozen(slots=True)
class Anchor:
    """The place of a message in a lane: a checkpoint accounts for every message of ours up to it.

    Attributes:
        offset: the message's offset in its partition.
        message_id: its 128-bit id.
    """

    offset: int
    message_id: int


@attrs.frozen(kw_only=True, slots=True, eq=False)
class Acknowledgement:
    """The server's confirmation that batches are stored; nothing else may be committed.

    Attributes:
        lane: where they were stored.
        batches: what was stored, in this order.
        anchor: place of the last message; None when the batches held no record (an object's end, or skips alone).
    """

    lane: Lane
    batches: tuple[RecordBatch, ...]
    anchor: Anchor | None
