"""Dead letters: skipped records and failed objects, kept for inspection and replay.

    bad record, rest of an object -> DeadLetter -> [stored and confirmed] -> the records after it are sent

The order is an invariant: a dead letter is confirmed before any record after its own is sent. So a crash never loses a
dead letter. A crash can repeat it when no later record was sent: at least once, with the same id.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import attrs

from framework.model.objects import length_only

if TYPE_CHECKING:
    from framework.errors import SkippableError
    from framework.model.batches import RecordBatch
    from framework.model.objects import NativeObject
    from framework.model.positions import OffsetManagerEntry


@attrs.frozen(kw_only=True, slots=True)
class DeadLetter:
    """A skipped record, or the failed rest of an object.

    Attributes:
        native: the object version.
        entry: the position: its destination is the record's, or the first partition when the key would have chosen one.
        record_number: the bad record; for a failed object the first missing record.
        whole_object: whether the letter covers the rest of the object from that record on.
        error: the reason.
        raw: the record's bytes, or their beginning; empty for a failed object, or when they could not be delimited.
        length: the record's length in bytes; None when unknown.
    """

    native: NativeObject
    entry: OffsetManagerEntry
    record_number: int
    whole_object: bool = False
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
    of = functools.partial(DeadLetter, native=batch.native, entry=batch.entry)
    for skip in batch.skipped:
        yield of(record_number=skip.record_number, error=skip.error, raw=skip.raw, length=skip.length)
    rest = batch.failure
    if rest is not None:
        yield of(record_number=rest.record_number, error=rest.error, whole_object=True)
