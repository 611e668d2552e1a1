"""The positions that an object begins with, and the objects in flight: given to the reader and not finished."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping

import attrs

from framework.errors import ObjectError
from framework.model.message_ids import MAX_SPLIT
from framework.model.objects import NativeObject, TopicPartition
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey, Scalar
from framework.model.splits import KeyPart, count_splits
from framework.offsets.table import PositionTable

log = logging.getLogger(__name__)

PRUNE_FROM = 1000
"""Number of positions that are given out between two removals of the finished ones, at least; then as many as remained."""

MAX_BEGUN_BYTES = 128 << 20
"""Bytes that the positions of an object's splits may take: they begin in one record of the offsets log, together or not at
all. A start reads records of twice that."""

_POSITION_BYTES = 150
"""Bytes that a split's position takes there at most, besides key, version and the data of a subclass."""


def max_splits(native: NativeObject, extra: Mapping[str, Scalar] | None = None) -> int:
    """Return how many splits an object can have: some 500,000, fewer with a very long key, or data of a subclass."""
    # with every escape: never shorter than in the record
    own = json.dumps((native.key, native.version, dict(extra or {})))
    return min(MAX_SPLIT, MAX_BEGUN_BYTES // (_POSITION_BYTES + len(own)))


def _nothing(_key: str) -> bool:
    return False


@attrs.frozen(kw_only=True)
class SplitPolicy:
    """Choose the positions of an object that was not begun. An object that was begun keeps its splits or parts.

    Attributes:
        split_size: bytes per split; 0: nothing is split.
        partitions: partition count of every data topic.
        can_split: whether the format can read an object of that key from the middle.
        by_key: whether each object is divided by key over all partitions (`partition_by`). Then nothing is split.
    """

    split_size: int = 0
    partitions: int = 1
    can_split: Callable[[str], bool] = _nothing
    by_key: bool = False

    def size_for(self, native: NativeObject, extra: Mapping[str, Scalar] | None = None) -> int:
        """Return the split size for this object; 0 when it is to be read whole.

        Args:
            native: the object.
            extra: the data that a subclass gives its position.

        Raises:
            ObjectError: it would have more splits than can begin together.
        """
        size = self.split_size
        if not size or native.size <= size or not self.can_split(native.key):
            return 0
        splits, most = count_splits(native.size, size), max_splits(native, extra)
        if splits > most:
            raise ObjectError(
                f"its {native.size:,} bytes would be {splits:,} splits, and there can be {most:,}; raise [input] split_size",
                location=native.location,
            )
        return size

    def positions_of(self, native: NativeObject, first: OffsetManagerEntry) -> list[OffsetManagerEntry]:
        """Return the positions that an object begins with: one, or those of all splits or parts.

        Args:
            native: the object.
            first: the position of the object as a whole.

        Raises:
            ObjectError: it would have more splits than can begin together.
        """
        if self.by_key:
            return [
                first.changed(
                    split_number=part.number,
                    split_size=part.split_size,
                    topic_partition=TopicPartition(first.topic_partition.topic, part.partition),
                )
                for part in (KeyPart(number, self.partitions) for number in range(1, self.partitions + 1))
            ]
        split_size = self.size_for(native, first.extra)
        if not split_size:
            return [first]
        count = count_splits(native.size, split_size)
        log.info("%s: %d bytes, read in %d splits of %d bytes", native.location, native.size, count, split_size)
        return [
            first.changed(
                split_number=split_number,
                split_size=split_size,
                topic_partition=self.topic_partition(first.topic_partition, split_number),
            )
            for split_number in range(1, count + 1)
        ]

    def topic_partition(self, first: TopicPartition, split_number: int) -> TopicPartition:
        """Return the partition of a split: round robin from the object's own partition, so all get equally many."""
        return TopicPartition(first.topic, (first.partition + split_number - 1) % self.partitions)


@attrs.define
class _Held:
    native: NativeObject
    splits: dict[int, OffsetManagerEntry]
    released_early: bool = False


class InFlight:
    """Objects in flight: given out, and neither finished nor released. The caller must lock.

    Only one version of an object is in flight at a time: the next waits until all of its splits are finished or
    released. So no split of a version is sent after the first split of the next.

    Attributes:
        awaited: a version was deferred because of an older version that was partly released, so will not be finished.
    """

    def __init__(self, table: PositionTable) -> None:
        self._table = table
        self._held: dict[OffsetManagerKey, _Held] = {}
        self._taken = 0  # positions, not objects: one that is divided by key has as many as the topic has partitions
        self._prune_at = PRUNE_FROM
        self.awaited = False

    def __len__(self) -> int:
        return len(self._held)

    def splits(self, key: OffsetManagerKey, version: str) -> Collection[int] | None:
        """Return the splits of this version in flight, {0} for a whole object; None while another version is in flight.

        Args:
            key: the object's key.
            version: the version that could be given out.
        """
        held = self._held.get(key)
        if held is None:
            return frozenset()
        self._strike(key, held)
        if not held.splits:
            return frozenset()
        if held.native.version != version:
            self.awaited |= held.released_early
            return None
        return held.splits

    def take(self, key: OffsetManagerKey, native: NativeObject, entry: OffsetManagerEntry) -> None:
        """Add an object, or a split of it, that is given out; no other version may be in flight."""
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = _Held(native, {})
        held.splits[entry.split_number] = entry
        self._taken += 1

    def give_back(self, key: OffsetManagerKey, entry: OffsetManagerEntry, *, gone: bool) -> None:
        """Remove what the reader released unfinished, or a worker has finished; no effect on another generation."""
        held = self._held.get(key)
        known = held.splits.get(entry.split_number) if held is not None else None
        if held is None or known is None or not known.is_of(entry):
            return
        del held.splits[entry.split_number]
        held.released_early |= not gone
        if not held.splits:
            del self._held[key]

    def keys(self) -> list[str]:
        """Return the keys of all objects in flight."""
        self._strike_all()
        return [held.native.key for held in self._held.values()]

    def prune(self) -> None:
        """Remove finished positions from time to time, so that they do not accumulate."""
        if self._taken < self._prune_at:
            return
        self._strike_all()
        self._taken, self._prune_at = 0, max(PRUNE_FROM, sum(len(held.splits) for held in self._held.values()))

    def _strike_all(self) -> None:
        for key, held in list(self._held.items()):
            self._strike(key, held)

    def _strike(self, key: OffsetManagerKey, held: _Held) -> None:
        for split_number, entry in list(held.splits.items()):
            if self._table.is_finished(key.of_split(split_number), entry):
                del held.splits[split_number]
        if not held.splits:
            del self._held[key]
