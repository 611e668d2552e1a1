"""The change of `offsets set`: the position of one object by hand.

A set position is a new generation whose saved count begins at the given number. So its messages have ids that were never
used, and whatever the topics hold of earlier generations never counts again: recovery takes the greater of the saved count
and the highest number of *this* generation behind the anchor.

Setting the same number twice is two generations. It must be: the log may know less than the topic holds, so an unchanged
count can stand for a position that recovery would find further on.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

import attrs

from framework.errors import PositionError
from framework.model.positions import OffsetManagerEntry, check_numbering
from framework.model.text import counted


@attrs.frozen(kw_only=True, slots=True)
class SetPosition:
    """The position that an object gets.

    Attributes:
        key: the object's key.
        records: number of its records that count as sent; None: nothing more of it is read.
        version: the version that is meant; None for the one that the position has.
        bucket: bucket of the source: of several with an object of that key, it is meant. None: not known.
        numbering_options: the options of the configuration that number records, canonical.
        partitions: number of partitions that a topic has now. None: not known.
    """

    key: str
    records: int | None
    version: str | None = None
    bucket: str | None = None
    numbering_options: str = ""
    partitions: int | None = None

    def find(self, entries: Iterable[OffsetManagerEntry]) -> OffsetManagerEntry:
        """Return the position to change.

        Args:
            entries: all positions.

        Raises:
            PositionError: there is none, it is of another version, or this position cannot be set; says why.
        """
        found = [entry for entry in entries if entry.key == self.key]
        if not found:
            raise PositionError(
                f"{self.key!r} has no position: it was never begun, or was finished long ago and compacted; only a position "
                f"that `offsets show --key` shows can be set"
            )
        # a source may have read another bucket before
        found = [entry for entry in found if entry.bucket == self.bucket] or found
        entry = found[0]
        place = f"{entry.bucket}/{entry.key}"
        if any(not other.whole for other in found):
            raise PositionError(
                f"{place} is read in {len(found)} splits or parts, each with a count of its own, so no count of records is a "
                f"place in it; {self._or_reset}"
            )
        if len(found) > 1:
            raise PositionError(
                f"{self.key!r} has positions in {len(found)} buckets, none of them that of the source, so it is not clear "
                f"which is meant; {self._or_reset}"
            )
        if self.version is not None and self.version != entry.version:
            raise PositionError(f"{place}: its position is of version {entry.version!r}, not of {self.version!r}")
        if entry.extra:
            raise PositionError(f"{place}: its position holds data of the source's own code; {self._or_reset}")
        if self.records is not None:
            if entry.is_abandoned:
                raise PositionError(
                    f"{place}: its partition is gone, so the next listing reads it from its first record"
                )
            check_numbering(entry, self.numbering_options)
        self._check_partition(entry, place)
        self._check_count(entry, place)
        return entry

    def _check_partition(self, entry: OffsetManagerEntry, place: str) -> None:
        """Refuse a position that would go on in a partition that is gone: the next start would refuse it."""
        topic, partition = entry.topic_partition.topic, entry.topic_partition.partition
        is_gone = self.partitions is not None and partition >= self.partitions
        if is_gone and not self.applied(entry, entry.generation).final:
            raise PositionError(
                f"{place}: its records went to partition {partition} of topic {topic}, which has only "
                f"{counted(self.partitions or 0, 'partition')} now; {self._or_reset}, into another partition"
            )

    def _check_count(self, entry: OffsetManagerEntry, place: str) -> None:
        count = self.count_of(entry)
        known = entry.records_saved if entry.total is None or entry.failed else entry.total
        if self.records is not None and count > max(known, entry.records_saved):
            end = "its end is not known yet" if entry.total is None or entry.failed else "that is its end"
            raise PositionError(
                f"{place}: {count} is more than the {known} records that are known to be in it ({end}); give at most "
                f"{known}, or set it done"
            )
        if entry.records_done > entry.records_saved and count > entry.records_saved:
            raise PositionError(
                f"{place}: records {entry.records_saved + 1} to {entry.records_done} were sent, and a crash of the server could "
                f"still take them; a position that counts them would lose them then. Give at most {entry.records_saved}, or wait "
                f"until they are saved: `offsets show --key` shows that"
            )

    @property
    def _or_reset(self) -> str:
        return f"`offsets reset --key {shlex.quote(self.key)}` reads it again from its first record"

    def count_of(self, entry: OffsetManagerEntry) -> int:
        """Return how many records of the object count as sent after the change."""
        if self.records is not None:
            return self.records
        return entry.records_done if entry.total is None or entry.failed else entry.total

    def applied(self, entry: OffsetManagerEntry, generation: int) -> OffsetManagerEntry:
        """Return the position after the change.

        Args:
            entry: the position from `find`.
            generation: one that the object never had before.
        """
        count = self.count_of(entry)
        total = count if self.records is None else None if entry.failed else entry.total
        made = entry.recovered(count)
        return made.changed(
            generation=generation,
            records_saved=count,
            total=total,
            failed=False,
            skipped=entry.skipped if count >= entry.records_done else 0,
            mark=None if count == total else made.mark,
            may_begin_again=False,
        )
