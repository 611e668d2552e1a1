"""Dead letters: skipped records and failed objects, kept for inspection and replay.

    bad record, rest of an object -> DeadLetter -> [stored and confirmed] -> the records after it are sent

The order is an invariant: a dead letter is confirmed before any record after its own is sent. So a crash never loses a
dead letter. A crash can repeat it when no later record was sent: at least once, with the same id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import attrs

from framework.model.objects import length_only

if TYPE_CHECKING:
    from framework.errors import SkippableError
    from framework.model.batches import RecordBatch
    from framework.model.objects import NativeObject, TopicPartition
    from framework.model.splits import KeyPart, Split


@attrs.frozen(kw_only=True, slots=True)
class DeadLetter:
    """A skipped record, or the failed rest of an object.

    Attributes:
        native: the object version.
        division: the split or part; None when the object has one position.
        generation: generation of the position.
        numbering_options: the options that number the object's records; see `OffsetManagerEntry`.
        record_number: the bad record; for a failed object the first missing record.
        whole_object: whether the letter covers the rest of the object from that record on.
        topic_partition: the record's destination; the first partition when its key would have chosen one.
        error: the reason.
        raw: the record's bytes, or their beginning; empty for a failed object, or when they could not be delimited.
        length: the record's length in bytes; None when unknown.
    """

    native: NativeObject
    division: Split | KeyPart | None
    generation: int = 1
    numbering_options: str = ""
    record_number: int
    whole_object: bool
    topic_partition: TopicPartition
    error: SkippableError
    raw: bytes = attrs.field(default=b"", repr=length_only)
    length: int | None = None


class DeadLetterBox(Protocol):
    """A destination for dead letters."""

    def send(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Store dead letters, in order; return when all are confirmed.

        Raises:
            UnknownOutcomeError, IggyUnavailableError: some may be stored: recover.
        """


def dead_letters_of(batch: RecordBatch) -> Iterator[DeadLetter]:
    """Yield a dead letter for each skipped record of a batch, and for the failed rest of its object."""
    entry = batch.entry
    for skip in batch.skipped:
        yield DeadLetter(
            native=batch.native,
            division=entry.division,
            generation=entry.generation,
            numbering_options=entry.numbering_options,
            record_number=skip.record_number,
            whole_object=False,
            topic_partition=batch.topic_partition,
            error=skip.error,
            raw=skip.raw,
            length=skip.length,
        )
    rest = batch.failure
    if rest is not None:
        yield DeadLetter(
            native=batch.native,
            division=entry.division,
            generation=entry.generation,
            numbering_options=entry.numbering_options,
            record_number=rest.record_number,
            whole_object=True,
            topic_partition=batch.topic_partition,
            error=rest.error,
        )
