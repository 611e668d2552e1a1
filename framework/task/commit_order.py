"""Refuses commits that a task must not make: twice, out of order, or of batches that it never handed out."""

from __future__ import annotations

from collections.abc import Iterable

from framework.errors import NotAcknowledgedError
from framework.model.batches import RecordBatch
from framework.model.positions import OffsetManagerEntry

Identity = tuple[str, str, int, int]


class CommitOrder:
    """What of each position was handed out and is not committed yet. Positions without such batches are not kept."""

    def __init__(self) -> None:
        self._progress: dict[Identity, tuple[int, int, int]] = {}  # records committed, records polled, batches between

    def hand_out(self, batch: RecordBatch) -> None:
        """Note a batch that `poll` returns."""
        identity = _identity(batch.entry)
        before = batch.records_before
        committed, _, waiting = self._progress.get(identity, (before, before, 0))
        self._progress[identity] = (committed, batch.entry.records_done, waiting + 1)

    def check(self, batches: Iterable[RecordBatch]) -> dict[Identity, tuple[int, int, int]]:
        """Return what `advance` takes once these batches are committed.

        Raises:
            NotAcknowledgedError: a batch was not handed out, or skips an earlier batch of its object.
        """
        advanced: dict[Identity, tuple[int, int, int]] = {}
        for batch in batches:
            identity = _identity(batch.entry)
            committed, polled, waiting = advanced.get(identity) or self._progress.get(identity, (-1, -1, 0))
            _check(batch, committed, polled)
            advanced[identity] = (batch.entry.records_done, polled, waiting - 1)
        return advanced

    def advance(self, advanced: dict[Identity, tuple[int, int, int]]) -> None:
        """Note the commit that `check` allowed."""
        for identity, progress in advanced.items():
            if progress[2]:  # perhaps a batch without records, as the end of an object that failed
                self._progress[identity] = progress
            else:  # also of an object that may never end: deleted, or overwritten, while it is read
                self._progress.pop(identity, None)


def _check(batch: RecordBatch, committed: int, polled: int) -> None:
    done = batch.entry.records_done
    if done > polled:
        raise NotAcknowledgedError(
            f"{batch.native.location}: commit of records up to {done}, which this task did not hand out"
        )
    if batch.records_before != committed:
        raise NotAcknowledgedError(
            f"{batch.native.location}: commit of records {batch.first_record} to {done} when {committed} are committed; "
            f"commit in the order of the confirmations, each once"
        )


def _identity(entry: OffsetManagerEntry) -> Identity:
    """Return what tells a position from all others, as the ids of its messages do; quicker than its key."""
    return entry.bucket, entry.key, entry.split_number, entry.generation
