"""Dead letters: what was left out of the data, kept where somebody can look at it and send it again.

    bad record, rest of an object -> DeadLetter -> [stored and confirmed] -> skip saved in the log -> position passes it

The order is a law of its own: a letter is confirmed before the log says that its record is left out. So a crash can repeat
the way to a letter, never lose one; what was stored by then is found again by a recovery (`framework.iggy.recovery`), which
tells the reader, so that nothing is stored twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import attrs

from framework.records import length_only

if TYPE_CHECKING:
    from framework.errors import SkippableError
    from framework.records import Lane, NativeObject, RecordBatch
    from framework.shares import Share


@attrs.frozen(kw_only=True, slots=True)
class DeadLetter:
    """One thing that was left out.

    Attributes:
        native: the object version.
        cut: which share of it; None when it is read whole.
        record_number: the bad record; of a whole object the first one that is missing.
        whole_object: whether it is about the rest of the object from there on.
        lane: where the record would have gone.
        error: why.
        raw: the record's bytes, or their beginning; none of a whole object, or when they could not be told apart.
        length: how many bytes the record has; None when that is not known.
    """

    native: NativeObject
    cut: Share | None
    record_number: int
    whole_object: bool
    lane: Lane
    error: SkippableError
    raw: bytes = attrs.field(default=b"", repr=length_only)
    length: int | None = None


class DeadLetterBox(Protocol):
    """Where dead letters go."""

    def send(self, letters: Sequence[DeadLetter]) -> None:
        """Stores them, in order; returns when all are confirmed.

        Raises:
            UnknownOutcomeError, IggyUnavailableError: some may be stored: recover.
        """


def letters_of(batch: RecordBatch) -> Iterator[DeadLetter]:
    """What a batch leaves out and no letter tells of yet."""
    entry = batch.entry
    for skip in batch.skipped:
        if not skip.told:
            yield DeadLetter(
                native=batch.native,
                cut=entry.cut,
                record_number=skip.record_number,
                whole_object=False,
                lane=batch.lane,
                error=skip.error,
                raw=skip.raw,
                length=skip.length,
            )
    rest = batch.given_up
    if rest is not None and not rest.told:
        yield DeadLetter(
            native=batch.native,
            cut=entry.cut,
            record_number=rest.record_number,
            whole_object=True,
            lane=batch.lane,
            error=rest.error,
        )
