"""Statistics of a task: what it has read and sent, added up with `+`."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable

import attrs
from typing_extensions import Self


@attrs.define(kw_only=True)
class TaskStatistics:
    """Work of a task so far, and its state now. Plain numbers with one writer each; a reader may lag by a moment.

    The iterator counts what it reads, the pipeline what it sends, each in a value of its own; progress, log lines and
    metrics read the sum. Each split of an object counts as an object. What was read and not confirmed before Iggy was away
    is read again, and counts again in what the iterator counts. Picklable: worker processes send theirs.

    Attributes:
        objects_opened: objects with at least one requested byte.
        failed: objects that failed before their end.
        vanished: objects deleted between list and read.
        changed: objects overwritten between list and read.
        archived: how often an object was found archived; each counts once per listing.
        records_read: good records handed out by the iterator.
        skipped: skipped bad records.
        records_filtered: records that a transform filtered; they are neither sent nor bad.
        kinds: error class -> skipped records and failed objects with that error.
        list_requests: requests that find objects: pages of listings, and lookups of single objects.
        retries: retried calls to the store.
        store_away: 1 while the store does not answer and calls are retried, or the run waits for it; 0 otherwise.
        records: records that Iggy has confirmed.
        record_bytes: their payload bytes.
        send_requests: confirmed requests that held records.
        objects: objects that are finished (done or failed) and fully confirmed.
        object_bytes: their listed sizes.
        objects_with_records: how often one of them had a record, also a bad or a filtered one, or one of an earlier run.
        unsaved_objects: how many of them have an end that is not saved: a recovery reads them again.
        unsaved_object_bytes: their listed sizes.
        unsaved_records: confirmed records that no saved position counts: a recovery finds them stored.
        found_records: records behind the last saved positions that were found stored.
        position_commits: changes of positions written to the offsets topic.
        dead_letters: dead letters stored.
        queue_records: records waiting to be sent.
        queue_bytes: their payload bytes.
        blocked_seconds: time that a full queue blocked the reader.
    """

    objects_opened: int = 0
    failed: int = 0
    vanished: int = 0
    changed: int = 0
    archived: int = 0
    records_read: int = 0
    skipped: int = 0
    records_filtered: int = 0
    kinds: dict[str, int] = attrs.field(factory=dict)
    list_requests: int = 0
    retries: int = 0
    store_away: int = 0
    records: int = 0
    record_bytes: int = 0
    send_requests: int = 0
    objects: int = 0
    object_bytes: int = 0
    objects_with_records: int = 0
    unsaved_objects: int = 0
    unsaved_object_bytes: int = 0
    unsaved_records: int = 0
    found_records: int = 0
    position_commits: int = 0
    dead_letters: int = 0
    queue_records: int = 0
    queue_bytes: int = 0
    blocked_seconds: float = 0.0

    def without_state(self) -> Self:
        """Return the work without the state: of a task that has ended."""
        return attrs.evolve(self, store_away=0, queue_records=0, queue_bytes=0)

    def saved(self) -> Self:
        """Return the work without what is counted again after a recovery."""
        return attrs.evolve(
            self,
            objects=self.objects - self.unsaved_objects,
            object_bytes=self.object_bytes - self.unsaved_object_bytes,
            records=self.records - self.unsaved_records,
            unsaved_objects=0,
            unsaved_object_bytes=0,
            unsaved_records=0,
        )

    def __add__(self, other: TaskStatistics) -> TaskStatistics:
        return TaskStatistics.total((self, other))

    @classmethod
    def total(cls, parts: Iterable[TaskStatistics]) -> TaskStatistics:
        """Return the sum; zeros for no parts."""
        parts = tuple(parts)
        columns = zip(*map(_numbers, parts), strict=True)
        return TaskStatistics(
            **dict(zip(NUMBERS, map(sum, columns), strict=False)),
            kinds=dict(
                sum((Counter(part.kinds.copy()) for part in parts), Counter())
            ),  # a task may add a name meanwhile
        )


FIELDS = tuple(field.name for field in attrs.fields(TaskStatistics))

NUMBERS = tuple(name for name in FIELDS if name != "kinds")

_numbers = operator.attrgetter(*NUMBERS)
