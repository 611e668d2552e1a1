"""Splitting of objects, and the objects in flight: given to the reader and not finished."""

from __future__ import annotations

from collections.abc import Callable, Collection

import attrs

from framework.errors import ObjectError
from framework.model.message_ids import MAX_SPLIT
from framework.model.objects import NativeObject, TopicPartition
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.model.splits import count_splits
from framework.offsets.manager import OffsetManager

PRUNE_FROM = 1000
"""Number of objects in flight at which finished ones are first removed; then at twice the number that remained."""


def _nothing(_key: str) -> bool:
    return False


@attrs.frozen(kw_only=True)
class SplitPolicy:
    """Choose the split size of an object that was not begun. An object that was begun keeps its split size.

    Attributes:
        split_size: bytes per split; 0: nothing is split.
        partitions: partition count of every data topic.
        can_split: whether the format can read an object of that key from the middle.
    """

    split_size: int = 0
    partitions: int = 1
    can_split: Callable[[str], bool] = _nothing

    def size_for(self, native: NativeObject) -> int:
        """Return the split size for this object; 0 when it is to be read whole.

        Raises:
            ObjectError: it would have more splits than can be numbered.
        """
        size = self.split_size
        if not size or native.size <= size or not self.can_split(native.key):
            return 0
        splits = count_splits(native.size, size)
        if splits > MAX_SPLIT:
            raise ObjectError(
                f"its {native.size:,} bytes would be {splits:,} splits, and there can be {MAX_SPLIT:,}; raise [input] split_size",
                location=native.location,
            )
        return size

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

    def __init__(self, offsets: OffsetManager) -> None:
        self._offsets = offsets
        self._held: dict[OffsetManagerKey, _Held] = {}
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

    def give_back(self, key: OffsetManagerKey, split_number: int, *, gone: bool) -> None:
        """Remove a split that the reader released unfinished."""
        held = self._held.get(key)
        if held is None:
            return
        held.splits.pop(split_number, None)
        held.released_early |= not gone
        if not held.splits:
            del self._held[key]

    def prune(self) -> None:
        """Remove finished objects from time to time, so that they do not accumulate."""
        if len(self._held) < self._prune_at:
            return
        for key, held in list(self._held.items()):
            self._strike(key, held)
        self._prune_at = max(PRUNE_FROM, 2 * len(self._held))

    def _strike(self, key: OffsetManagerKey, held: _Held) -> None:
        for split_number, entry in list(held.splits.items()):
            if self._offsets.is_finished(entry):
                del held.splits[split_number]
        if not held.splits:
            del self._held[key]
