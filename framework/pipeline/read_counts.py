"""Counts of reading."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.define(kw_only=True)
class ReadCounts:
    """Counts of an iterator since it was made.

    Attributes:
        objects_opened: objects with at least one requested byte; here and below, each split counts separately.
        objects_done: objects read to their end.
        objects_failed: objects that failed before their end.
        objects_vanished: objects deleted between list and read.
        objects_changed: objects overwritten between list and read.
        objects_archived: objects that await a restore; each counts once per listing.
        records: good records handed out.
        bytes_done: sizes of the objects that are done, failed or deleted.
        bytes_vanished: sizes of the deleted objects alone.
        bytes_archived: sizes of the archived objects that await a restore.
        skipped: skipped bad records.
        kinds: error class -> skipped records and failed objects with that error.
        list_requests: requests that find objects: pages of listings, and lookups of single objects.
        retries: retried calls to the store.
        store_away: 1 while the store does not answer and calls are retried, or the run waits for it; 0 otherwise.
    """

    objects_opened: int = 0
    objects_done: int = 0
    objects_failed: int = 0
    objects_vanished: int = 0
    objects_changed: int = 0
    objects_archived: int = 0
    records: int = 0
    bytes_done: int = 0
    bytes_vanished: int = 0
    bytes_archived: int = 0
    skipped: int = 0
    kinds: dict[str, int] = attrs.field(factory=dict)
    list_requests: int = 0
    retries: int = 0
    store_away: int = 0

    def copy(self) -> ReadCounts:
        """Return a copy of the current counts."""
        return attrs.evolve(self, kinds=self.kinds.copy())

    def __add__(self, other: ReadCounts) -> ReadCounts:
        names = [field.name for field in attrs.fields(ReadCounts) if field.name != "kinds"]
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return ReadCounts(**sums, kinds=add_counts(self.kinds, other.kinds))


def add_counts(*counts: Mapping[str, int]) -> dict[str, int]:
    """Return the sums by name."""
    total: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            total[name] = total.get(name, 0) + count
    return total
