"""Storage of positions: `OffsetStore`, the changes that it saves, and a store in memory."""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import attrs
from typing_extensions import override

from framework.model.objects import Anchor, TopicPartition
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.offsets.listing_hints import ListingHints
from framework.offsets.position_map import begin_in, position_map
from framework.offsets.selection_scope import SelectionScope


@attrs.frozen(kw_only=True, slots=True)
class PositionDelta:
    """The changes since the last save.

    Attributes:
        begun: positions that start, in place of earlier generations of their objects.
        entries: positions with changed counts; each partition's anchor covers their saved counts.
        anchors: partition -> the message up to which saved counts are complete.
        removed: objects with dropped positions.
        listings: prefix -> hints of its listing for the next listing; the last value wins.
        skipped: skipped records and failed objects since the last save.
        selected: the selection of objects, when it was not stored before.
        written: partitions that received messages.
        counted: partition that can lose messages -> the last message that the counts of `entries` account for.
        closed: partition -> offset of its last message, where everything is confirmed and no message will follow.
    """

    begun: Sequence[OffsetManagerEntry] = ()
    entries: Sequence[OffsetManagerEntry] = ()
    anchors: Mapping[TopicPartition, Anchor] = attrs.field(factory=dict)
    removed: Sequence[OffsetManagerKey] = ()
    listings: Mapping[str, ListingHints] = attrs.field(factory=dict)
    skipped: int = 0
    selected: SelectionScope | None = None
    written: Collection[TopicPartition] = ()
    counted: Mapping[TopicPartition, Anchor] = attrs.field(factory=dict)
    closed: Mapping[TopicPartition, int] = attrs.field(factory=dict)

    def __bool__(self) -> bool:
        counts = (self.begun, self.entries, self.anchors, self.removed, self.closed)
        return any((*counts, self.listings, self.skipped, self.selected))


class OffsetStore(abc.ABC):
    """Storage of positions. Not thread-safe; the manager calls one method at a time."""

    @abc.abstractmethod
    def load(self, keys: Iterable[OffsetManagerKey] | None = None) -> Iterator[OffsetManagerEntry]:
        """Yield the stored entries of these keys, or all. May block. May be called again."""

    @abc.abstractmethod
    def save(self, delta: PositionDelta) -> None:
        """Save a change; on return it is as durable as the store can make it. May block.

        Apply `removed` first, then `begun`, then `entries`. A removed key takes the positions of all splits of its object
        with it. So does a position that is not `is_of` those that are stored for its object: it replaces them.

        Raises:
            RetriableError: the change is not saved, or its state is unknown; the manager keeps it and saves it again.
        """

    def begin(self, delta: PositionDelta) -> None:
        """Store positions that start, before any of their records is sent.

        A store may return earlier if it guarantees that no record of these objects is stored before their positions.

        Raises:
            RetriableError: as `save`.
        """
        self.save(delta)

    def load_listings(self) -> Mapping[str, ListingHints]:
        """Return the saved listing hints by prefix.

        By default none: each start then lists without hints.
        """
        return {}


class MemoryOffsetStore(OffsetStore):
    """Positions for the lifetime of this process: for tests, and for library use without Iggy."""

    def __init__(self) -> None:
        self.entries = position_map()
        self.anchors: dict[TopicPartition, Anchor] = {}
        self.listings: dict[str, ListingHints] = {}

    @override
    def load_listings(self) -> Mapping[str, ListingHints]:
        return self.listings

    @override
    def load(self, keys: Iterable[OffsetManagerKey] | None = None) -> Iterator[OffsetManagerEntry]:
        """Return the entries as saved."""
        if keys is None:
            return iter(self.entries.view())
        return (self.entries[key] for key in keys if key in self.entries)

    @override
    def save(self, delta: PositionDelta) -> None:
        """Save the change in memory."""
        for key in delta.removed:
            self.entries.remove_object(key)
        for entry in (*delta.begun, *delta.entries):
            begin_in(self.entries, entry)
        self.anchors.update(delta.anchors)
        self.listings.update(delta.listings)
