"""Positions kept: `OffsetManager`, the cache in front of an `OffsetStore`. One position is a value of `framework.entries`."""

from __future__ import annotations

import abc
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs
from typing_extensions import override

from framework.coverage import Coverage
from framework.entries import (
    OffsetManagerEntry,
    OffsetManagerKey,
    canonical_options,
    check_depends_on,
    merge_entries,
    merge_into,
    merge_ranges,
    position_map,
    settle_shares,
)
from framework.errors import NotAcknowledgedError
from framework.past_listing import PastListing
from framework.position_map import PositionMap, PositionView
from framework.records import Acknowledgement, Anchor, Lane, NativeObject
from framework.skip_limits import LeftOut
from framework.watermark import Watermark

__all__ = [
    "LOAD_AT_ONCE",
    "MemoryOffsetStore",
    "OffsetManager",
    "OffsetManagerEntry",
    "OffsetManagerKey",
    "OffsetStore",
    "PositionDelta",
    "canonical_options",
    "check_depends_on",
    "merge_entries",
    "merge_into",
    "merge_ranges",
    "position_map",
    "settle_shares",
]


@attrs.frozen(kw_only=True, slots=True)
class PositionDelta:
    """What changed since the last save: entries, and the new anchors of their lanes.

    Attributes:
        entries: positions that changed; each is covered by its lane's anchor.
        anchors: lane -> place of its last confirmed message; None while the lane holds no message of anyone.
        removed: keys whose positions are given up.
        topics: data topics that were opened: name -> (id, creation time), so that one made anew is noticed.
        listings: prefix -> what its listing left for the next one; the last one wins.
        left_out: bad records, and rests of objects, that were left out since the last save.
    """

    entries: Sequence[OffsetManagerEntry] = ()
    anchors: Mapping[Lane, Anchor | None] = attrs.field(factory=dict)
    removed: Sequence[OffsetManagerKey] = ()
    topics: Mapping[str, tuple[int, int]] = attrs.field(factory=dict)
    listings: Mapping[str, PastListing] = attrs.field(factory=dict)
    left_out: int = 0

    def __bool__(self) -> bool:
        return bool(self.entries or self.anchors or self.removed or self.topics or self.listings or self.left_out)


class OffsetStore(abc.ABC):
    """Where positions are kept. Threads do not share it; the manager calls one method at a time."""

    @abc.abstractmethod
    def load(self, keys: Iterable[OffsetManagerKey] | None = None) -> Iterator[OffsetManagerEntry]:
        """The stored entries of these keys, or all. May block. May be called again."""

    @abc.abstractmethod
    def save(self, delta: PositionDelta) -> None:
        """Keeps a change; when this returns it is as durable as the store can make it. May block.

        Raises:
            RetriableError: not saved, or not known; the manager keeps the change and saves it again.
        """

    def load_listings(self) -> Mapping[str, PastListing]:
        """What was saved of listings, by prefix. Nothing, for a store that does not keep it: then each start lists anew."""
        return {}


class MemoryOffsetStore(OffsetStore):
    """Positions of this process's lifetime: for tests, and for use as a library without Iggy."""

    def __init__(self) -> None:
        self.entries = position_map()
        self.anchors: dict[Lane, Anchor | None] = {}
        self.listings: dict[str, PastListing] = {}

    @override
    def load_listings(self) -> Mapping[str, PastListing]:
        return self.listings

    @override
    def load(self, keys: Iterable[OffsetManagerKey] | None = None) -> Iterator[OffsetManagerEntry]:
        """The entries as they were saved."""
        if keys is None:
            return iter(self.entries.view())
        return (self.entries[key] for key in keys if key in self.entries)

    @override
    def save(self, delta: PositionDelta) -> None:
        """Keeps the change by the merge law."""
        for key in delta.removed:
            self.entries.pop(key, None)
        for entry in delta.entries:
            merge_into(self.entries, entry)
        self.anchors.update(delta.anchors)
        self.listings.update(delta.listings)


LOAD_AT_ONCE = 1000
"""Positions that are taken in while others wait for the lock."""

EntryCreator = Callable[[OffsetManagerKey], OffsetManagerEntry]


class OffsetManager:
    """The positions of a source: a cache in front of a store. Threads may share it.

    Reading threads ask `get_entry`; the sending thread gives what the server confirmed to `commit`, and `flush` writes what
    changed since the last flush as one delta. Positions never go back. Those of finished objects are packed: about 100 bytes
    each.

    Args:
        store: where they are kept; in memory by default.
        positions: what is known already, given away: the manager changes it.
        records_found: tells how many records of an object without a position a recovery found in the topics.
        watermark: of the snapshot that the positions come from.
        left_out_lately: what earlier runs left out within the last hour, for the limits.

    Attributes:
        left_out_lately: the same.
        coverage: what a listing tells of the key ranges that it has shown; the watermark rises by it.
    """

    def __init__(
        self,
        store: OffsetStore | None = None,
        *,
        positions: PositionMap | None = None,
        records_found: Callable[[NativeObject], int] | None = None,
        watermark: Watermark | None = None,
        left_out_lately: Sequence[LeftOut] = (),
    ) -> None:
        self.left_out_lately = left_out_lately
        self._left_out = 0
        self._store = store if store is not None else MemoryOffsetStore()
        self._watermark = watermark if watermark is not None else Watermark()
        self.coverage = Coverage(self)
        self._records_found = records_found
        self._entries = positions if positions is not None else position_map()
        self._dirty: dict[OffsetManagerKey, OffsetManagerEntry] = {}
        self._removed: dict[OffsetManagerKey, None] = {}
        self._anchors: dict[Lane, Anchor | None] = {}
        self._dirty_lanes: set[Lane] = set()
        self._new_topics: dict[str, tuple[int, int]] = {}
        self._listings: dict[str, PastListing] = {}
        self._new_listings: dict[str, PastListing] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def populate_offset_manager(self, keys: Iterable[OffsetManagerKey] | None = None) -> None:
        """Loads the positions of these keys, or all, in one go; those already here merge with what is loaded."""
        listings = self._store.load_listings()
        with self._lock:
            self._listings = {**listings, **self._listings}
        loaded = self._store.load(keys)
        while some := list(itertools.islice(loaded, LOAD_AT_ONCE)):
            with self._lock:
                for entry in some:
                    merge_into(self._entries, entry)
        with self._lock:
            settle_shares(self._entries)

    def get_entry(self, key: OffsetManagerKey, creator: EntryCreator | None = None) -> OffsetManagerEntry | None:
        """The position of a key; one that is not here is made by `creator`, kept, and saved with its first commit."""
        with self._lock:
            entry = self._entries.find(key)
            if entry is None and creator is not None:
                entry = self._entries[key] = creator(key)
            return entry

    def records_found(self, native: NativeObject) -> int:
        """Records of an object without a position that a recovery found in the topics by their ids alone."""
        return self._records_found(native) if self._records_found is not None else 0

    def finished_version(self, key: OffsetManagerKey) -> str | None:
        """The version of an object that is done or has failed; None when it has no position, is being read, or is split.

        What a pass asks for each object that it lists: cheaper than the position.
        """
        with self._lock:
            return self._entries.finished_version(key)

    @property
    def watermark(self) -> Watermark:
        """Under which objects without a position are done."""
        return self._watermark

    def set_watermark(self, change: Callable[[Watermark], Watermark]) -> None:
        """Puts another watermark in place of the one that is here: never one with a time that is lower."""
        with self._lock:
            self._watermark = change(self._watermark)

    def is_folded(self, key: OffsetManagerKey, name: str, modified_ms: int) -> bool:
        """Whether an object is done and has no position any more.

        Args:
            key: under which its position was kept.
            name: the object's key in its bucket.
            modified_ms: last-modified, milliseconds since 1970.
        """
        watermark = self._watermark
        if not watermark or not watermark.covers(watermark.bucket, name, modified_ms):
            return False
        return dict(key.properties).get("bucket", watermark.bucket) == watermark.bucket and key not in self

    def is_finished(self, key: OffsetManagerKey, name: str, version: str, modified_ms: int) -> bool:
        """Whether a version that was handed out is done or has failed, whether or not it still has its position."""
        entry = self.get_entry(key)
        if entry is None:
            return self.is_folded(key, name, modified_ms)
        return entry.finished and entry.version == version

    def __contains__(self, key: OffsetManagerKey) -> bool:
        with self._lock:
            return key in self._entries

    def forget(self, entries: Iterable[OffsetManagerEntry]) -> None:
        """Drops positions that are finished and saved, for a worker: its leader has them, and decides by them."""
        with self._lock:
            for entry in entries:
                key = entry.get_manager_key()
                if entry.finished and key not in self._dirty and self._entries.find(key) == entry:
                    del self._entries[key]

    def fold(self) -> int:
        """Drops the positions that the watermark stands for, to be left out of the next snapshot. Returns how many objects'."""
        with self._lock:
            folded, records = self._entries.fold(self._watermark)
            if folded:
                self._watermark = self._watermark.with_folded(folded, records)
        self.coverage.folded(sum(folded.values()))
        return sum(folded.values())

    def entries(self) -> PositionView:
        """All positions that are here, as of now: a sequence that makes each when it is asked for it."""
        with self._lock:
            return self._entries.view()

    def add_entry(self, entry: OffsetManagerEntry) -> OffsetManagerEntry:
        """Adds a position to what the next flush saves, by the merge law. Returns what holds now."""
        key = entry.get_manager_key()
        with self._lock:
            return self._add(key, entry)

    def _add(self, key: OffsetManagerKey, entry: OffsetManagerEntry) -> OffsetManagerEntry:
        self._dirty[key] = merged = merge_into(self._entries, entry)
        self._dirty_lanes.add(merged.lane)
        return merged

    def remove_entry(self, key: OffsetManagerKey | OffsetManagerEntry) -> None:
        """Forgets a position; the next flush removes it from the store, before what was added since.

        With the position of a split object (that of its share 1) those of all its shares go. Nothing happens when it is not here.
        """
        if isinstance(key, OffsetManagerEntry):
            key = key.get_manager_key()
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return
            # without share 1's, the others would be taken for a version that was begun
            shares = [other for other in self._entries.share_keys() if other.whole() == key] if entry.share == 1 else []
            for gone in (key, *shares):
                del self._entries[gone]
                self._dirty.pop(gone, None)
                self._removed[gone] = None

    def set_anchor(self, lane: Lane, anchor: Anchor | None, *, save: bool = False) -> None:
        """Tells where a lane stands before anything is sent to it; with `save` the next flush writes it."""
        with self._lock:
            self._anchors[lane] = anchor
            if save:
                self._dirty_lanes.add(lane)

    def note_topic(self, name: str, identity: tuple[int, int]) -> None:
        """Tells which topic of that name records go to; the next flush writes it."""
        with self._lock:
            self._new_topics[name] = identity

    def past_listing(self, prefix: str) -> PastListing | None:
        """What the last listing of that prefix left for the next one."""
        with self._lock:
            return self._listings.get(prefix)

    def note_listing(self, prefix: str, past: PastListing) -> None:
        """Leaves something for the next listing of that prefix; the next flush writes it."""
        with self._lock:
            self._listings[prefix] = self._new_listings[prefix] = past

    def note_left_out(self, count: int) -> None:
        """So many bad records, or rests of objects, are left out; the next flush writes it."""
        with self._lock:
            self._left_out += count

    def commit(self, acknowledgement: Acknowledgement) -> None:
        """Takes over the positions of confirmed batches, and the lane's anchor. The law: acknowledge, then commit.

        Raises:
            NotAcknowledgedError: the batches hold records but the confirmation names no message.
        """
        if acknowledgement.anchor is None and any(batch.payloads for batch in acknowledgement.batches):
            raise NotAcknowledgedError(
                f"{acknowledgement.lane}: a commit of records without a confirmed message; commit only what a producer returned"
            )
        last: dict[OffsetManagerKey, OffsetManagerEntry] = {}
        for batch in acknowledgement.batches:
            last[batch.entry.get_manager_key()] = batch.entry
        with self._lock:
            if acknowledgement.anchor is not None:
                self._anchors[acknowledgement.lane] = acknowledgement.anchor
                self._dirty_lanes.add(acknowledgement.lane)
            for key, entry in last.items():
                self._add(key, entry)

    def snapshot(self) -> tuple[PositionView, dict[Lane, Anchor | None]]:
        """All positions and anchors of one moment: each position is covered by its lane's anchor."""
        with self._lock:
            return self._entries.view(), dict(self._anchors)

    def snapshot_listings(self) -> dict[str, PastListing]:
        """What is known of listings, by prefix."""
        with self._lock:
            return dict(self._listings)

    def snapshot_anchors(self) -> dict[Lane, Anchor | None]:
        """Every known lane and its last confirmed message."""
        with self._lock:
            return dict(self._anchors)

    def merge_saved(self, delta: PositionDelta) -> None:
        """Takes over what another writer has saved already; nothing becomes dirty."""
        with self._lock:
            for key in delta.removed:
                self._entries.pop(key, None)
            for entry in delta.entries:
                merge_into(self._entries, entry)
            for lane, anchor in delta.anchors.items():
                known = self._anchors.get(lane)
                # a delta may come twice: an anchor that went back would stand for positions that it does not cover
                if known is None or (anchor is not None and anchor.offset > known.offset):
                    self._anchors[lane] = anchor
            self._listings.update(delta.listings)

    @property
    def dirty(self) -> bool:
        """Whether a flush would write something."""
        return bool(
            self._dirty
            or self._removed
            or self._dirty_lanes
            or self._new_topics
            or self._new_listings
            or self._left_out
        )

    def flush(self) -> PositionDelta:
        """Saves what changed since the last flush as one delta; what could not be saved stays to be saved again."""
        with self._lock:
            entries, removed, lanes = self._dirty, self._removed, self._dirty_lanes
            lanes = lanes | {entry.lane for entry in entries.values()}
            delta = PositionDelta(
                entries=list(entries.values()),
                anchors={lane: self._anchors.get(lane) for lane in sorted(lanes)},
                removed=list(removed),
                topics=self._new_topics,
                listings=self._new_listings,
                left_out=self._left_out,
            )
            self._dirty, self._removed, self._dirty_lanes = {}, {}, set()
            self._new_topics, self._new_listings, self._left_out = {}, {}, 0
        if not delta:
            return delta
        try:
            self._store.save(delta)  # outside the lock: the reader asks for positions meanwhile
        except BaseException:
            with self._lock:
                kept = {key: entry for key, entry in entries.items() if key not in self._removed}
                self._dirty = {**kept, **self._dirty}
                self._removed = {**removed, **self._removed}
                self._dirty_lanes |= lanes
                self._new_topics = {**delta.topics, **self._new_topics}
                self._new_listings = {**delta.listings, **self._new_listings}
                self._left_out += delta.left_out
            raise
        return delta
