"""Positions: how many records of each object version are done.

`OffsetManagerEntry` is one object's position; `OffsetManager` is the cache in front of an `OffsetStore`. Entries merge by a
law (commutative, associative, idempotent), so the order in which several writers' changes are read does not matter.
"""

from __future__ import annotations

import abc
import itertools
import json
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
from typing_extensions import override

from framework.coverage import Coverage
from framework.errors import NotAcknowledgedError, PositionMismatchError
from framework.past_listing import PastListing
from framework.position_map import PositionMap, PositionView
from framework.records import Acknowledgement, Anchor, Lane, Mark, NativeObject, ObjectState
from framework.shares import Share
from framework.watermark import Watermark

Scalar = str | int | float | bool | None


@attrs.frozen(slots=True)
class OffsetManagerKey:
    """The identity of a position: a small map, for S3 `bucket` and `key`.

    Its serialised form is canonical (sorted): a position whose key is written in another order is never found again.
    """

    properties: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> OffsetManagerKey:
        """The key of a map, whatever the order of its items."""
        return cls(tuple(sorted(properties.items())))

    @classmethod
    def of_object(cls, bucket: str, key: str) -> OffsetManagerKey:
        """The key of an object: `{"bucket": bucket, "key": key}`."""
        return cls((("bucket", bucket), ("key", key)))

    def of_share(self, share: int) -> OffsetManagerKey:
        """The key of a share of this object. Share 1 goes by the object's own: its position says how the object is cut."""
        return self if share <= 1 else self.of({**dict(self.properties), "share": str(share)})

    @property
    def share(self) -> int:
        """Which share of an object it is the key of; 0 for the object's own, which share 1 has too."""
        for name, value in self.properties:
            if name == "share":
                return int(value)
        return 0

    def whole(self) -> OffsetManagerKey:
        """The key of the object that this is a share of."""
        return OffsetManagerKey(tuple(pair for pair in self.properties if pair[0] != "share"))

    def canonical(self) -> str:
        """JSON with sorted names and no spaces; equal keys give equal text."""
        return json.dumps(dict(self.properties), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The union of inclusive ranges, sorted, neighbours joined: `(1, 2), (3, 3)` gives `(1, 3)`."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


@attrs.frozen(kw_only=True, slots=True)
class OffsetManagerEntry:
    """How far one object version is, or one share of a split one.

    Attributes:
        bucket: the object's bucket.
        key: its key.
        version: the version that the count is about.
        generation: 0 for the first version of the object that was seen, one more for each later one. It decides which version is
            the newer one, because last-modified cannot: an overwrite may carry an older time (a multipart upload has that of
            its beginning), and deleting a version brings an older one back.
        modified_ms: last-modified of that version (ms since 1970); 0 when only a replay of the topic told of it.
        share: which share of a split object, counted from 1; 0 when the object is read whole.
        split_size: bytes per share; 0 when the object is read whole. Fixed with the version's first position, whatever the
            configuration says later.
        records_done: records 1 .. records_done are stored, or skipped for good. Never "index of the next". The records of a
            share are counted by themselves.
        state: reading, done or failed.
        lane: where its records go; fixed when it starts.
        mark: a place near `records_done` to resume from without reading what is before.
        depends_on: the options that number its records, canonical; see `Transformer.depends_on`.
        skipped: inclusive ranges of record numbers that were left out; kept while it is read.
        given_up: record number from which on a stored dead letter says that the rest was given up, while the state does not
            say so yet; 0 when there is none.
        extra: what a subclass of the source wants to keep with it; JSON scalars.
    """

    bucket: str
    key: str
    version: str
    generation: int = 0
    modified_ms: int = 0
    share: int = 0
    split_size: int = 0
    records_done: int = 0
    state: ObjectState = ObjectState.READING
    lane: Lane
    mark: Mark | None = None
    depends_on: str = ""
    skipped: tuple[tuple[int, int], ...] = ()
    given_up: int = 0
    extra: Mapping[str, Scalar] = attrs.field(factory=dict, converter=dict)

    @classmethod
    def start(cls, native: NativeObject, lane: Lane, depends_on: str = "") -> OffsetManagerEntry:
        """The position of an object of which nothing has been read."""
        return cls(
            bucket=native.bucket,
            key=native.key,
            version=native.version,
            modified_ms=native.modified_ms,
            lane=lane,
            depends_on=depends_on,
        )

    @property
    def finished(self) -> bool:
        """Whether nothing more is to be read of this version: done, or failed for good."""
        return self.state is not ObjectState.READING

    @property
    def done(self) -> bool:
        """Whether it was read to its end."""
        return self.state is ObjectState.DONE

    @property
    def cut(self) -> Share | None:
        """Which share it is the position of; None when the object is read whole."""
        return Share(self.share, self.split_size) if self.split_size else None

    def bytes_of(self, native: NativeObject) -> int:
        """How many bytes of the object it is about."""
        return Share(self.share, self.split_size).bytes_of(native.size) if self.split_size else native.size

    def get_manager_key(self) -> OffsetManagerKey:
        """The identity under which it is kept."""
        return OffsetManagerKey.of_object(self.bucket, self.key).of_share(self.share)

    def get_properties(self) -> dict[str, Any]:
        """The stored form without the key: a new dict of JSON values; changing it changes nothing here."""
        properties: dict[str, Any] = {
            "version": self.version,
            "generation": self.generation,
            "modified": self.modified_ms,
            "records": self.records_done,
            "state": self.state.value,
            "topic": self.lane.topic,
            "partition": self.lane.partition,
        }
        if self.split_size:
            properties["share"] = self.share
            properties["split_size"] = self.split_size
        if self.mark is not None:
            properties["mark"] = [self.mark.record, self.mark.byte]
        if self.depends_on:
            properties["depends_on"] = self.depends_on
        if self.skipped:
            properties["skipped"] = [list(pair) for pair in self.skipped]
        if self.given_up:
            properties["given_up"] = self.given_up
        if self.extra:
            properties["extra"] = dict(self.extra)
        return properties

    @classmethod
    def from_properties(cls, key: OffsetManagerKey, properties: Mapping[str, Any]) -> OffsetManagerEntry:
        """The inverse of `get_properties`. Nothing of the argument is kept.

        Raises:
            KeyError, TypeError, ValueError: the stored form is not one of ours.
        """
        names = dict(key.properties)
        mark = properties.get("mark")
        return cls(
            bucket=names["bucket"],
            key=names["key"],
            version=str(properties["version"]),
            generation=int(properties.get("generation", 0)),
            modified_ms=int(properties["modified"]),
            share=int(properties.get("share", 0)),
            split_size=int(properties.get("split_size", 0)),
            records_done=int(properties["records"]),
            state=ObjectState(properties["state"]),
            lane=Lane(str(properties["topic"]), int(properties["partition"])),
            mark=Mark(int(mark[0]), int(mark[1])) if mark else None,
            depends_on=str(properties.get("depends_on", "")),
            skipped=tuple((int(first), int(last)) for first, last in properties.get("skipped", ())),
            given_up=int(properties.get("given_up", 0)),
            extra=dict(properties.get("extra", {})),
        )

    def get_int(self, name: str) -> int | None:
        """The extra of that name as a whole number; None when it is not there.

        Raises:
            TypeError: it is something else.
        """
        value = self.extra.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise TypeError(
                f"{self.bucket}/{self.key}: {name} of its position is {type(value).__name__}, not a whole number"
            )
        return value

    get_long = get_int

    def get_string(self, name: str) -> str | None:
        """The extra of that name as text; None when it is not there.

        Raises:
            TypeError: it is something else.
        """
        value = self.extra.get(name)
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{self.bucket}/{self.key}: {name} of its position is {type(value).__name__}, not text")
        return value

    def advanced(
        self, records_done: int, *, mark: Mark | None = None, state: ObjectState = ObjectState.READING
    ) -> OffsetManagerEntry:
        """The position after more records; with `state` other than reading, what is only needed for resuming is dropped."""
        if state is ObjectState.READING:
            return attrs.evolve(self, records_done=records_done, mark=mark or self.mark, state=state)
        return attrs.evolve(self, records_done=records_done, mark=None, state=state, skipped=(), given_up=0)

    def left_out(self, record_number: int) -> bool:
        """Whether that record is known to be left out."""
        return any(first <= record_number <= last for first, last in self.skipped)

    def with_skipped(self, numbers: Iterable[int]) -> OffsetManagerEntry:
        """The position with more record numbers known to be left out; the count does not change."""
        return attrs.evolve(self, skipped=merge_ranges([*self.skipped, *((n, n) for n in numbers)]))

    def with_skipped_ranges(self, ranges: Iterable[tuple[int, int]]) -> OffsetManagerEntry:
        """The same, of inclusive ranges of numbers."""
        return attrs.evolve(self, skipped=merge_ranges([*self.skipped, *ranges]))

    def order(self) -> tuple[Any, ...]:
        """What decides between two positions of one version: the larger is the later one."""
        mark = (self.mark.record, self.mark.byte) if self.mark else (-1, -1)
        rest = json.dumps(dict(self.extra), sort_keys=True)
        return (
            self.split_size,
            self.records_done,
            self.state.rank,
            mark,
            self.lane,
            self.depends_on,
            rest,
            self.given_up,
        )


def merge_entries(left: OffsetManagerEntry, right: OffsetManagerEntry) -> OffsetManagerEntry:
    """The later of two positions of one object.

    A later generation wins, then the newer version by time; within a version and its cut the larger count, then the further
    state; skipped numbers unite. Commutative, associative and idempotent, so several writers' changes can be read in any order and
    more than once.
    """
    if left.generation != right.generation:
        return max(left, right, key=lambda entry: entry.generation)
    if left.version != right.version:
        return max(left, right, key=lambda entry: (entry.modified_ms, entry.version))
    winner = max(left, right, key=OffsetManagerEntry.order)
    modified_ms = max(left.modified_ms, right.modified_ms)
    if modified_ms != winner.modified_ms:  # a replay knows no time, and without one an older version would win later
        winner = attrs.evolve(winner, modified_ms=modified_ms)
    if winner.finished or left.split_size != right.split_size:
        return winner
    given_up = max(left.given_up, right.given_up)
    if left.skipped == right.skipped and given_up == winner.given_up:
        return winner
    return attrs.evolve(winner, skipped=merge_ranges([*left.skipped, *right.skipped]), given_up=given_up)


def settle_shares(entries: PositionMap) -> None:
    """Makes the positions of every split object agree, after they were loaded.

    The position of share 1 says how a version is cut. Where a later version's share was begun and share 1 of it was not, one is
    made, at its beginning. What is left of earlier versions' shares goes: an object has positions of one version.
    """
    shares = [entries[key] for key in entries.share_keys()]
    for entry in shares:
        whole = entry.get_manager_key().whole()
        first = entries.get(whole)
        if first is None or _is_later(entry, first):
            entries[whole] = attrs.evolve(
                entry, share=1, records_done=0, state=ObjectState.READING, mark=None, skipped=(), given_up=0, extra={}
            )
    for entry in shares:
        first = entries[entry.get_manager_key().whole()]
        if (first.generation, first.version, first.split_size) != (entry.generation, entry.version, entry.split_size):
            del entries[entry.get_manager_key()]


def _is_later(entry: OffsetManagerEntry, other: OffsetManagerEntry) -> bool:
    """Whether a position is about a later version: by the same law as `merge_entries`."""
    if entry.generation != other.generation:
        return entry.generation > other.generation
    return entry.version != other.version and (entry.modified_ms, entry.version) > (other.modified_ms, other.version)


def position_map(entries: Iterable[OffsetManagerEntry] = ()) -> PositionMap:
    """A new map of these positions, each under its own key."""
    positions = PositionMap(OffsetManagerKey, OffsetManagerEntry)
    for entry in entries:
        positions[entry.get_manager_key()] = entry
    return positions


def merge_into(positions: PositionMap, entry: OffsetManagerEntry) -> OffsetManagerEntry:
    """Puts a position under its key by the merge law. Returns what holds now."""
    key = entry.get_manager_key()
    known = positions.find(key)
    positions[key] = merged = merge_entries(known, entry) if known is not None else entry
    return merged


@attrs.frozen(kw_only=True, slots=True)
class PositionDelta:
    """What changed since the last save: entries, and the new anchors of their lanes.

    Attributes:
        entries: positions that changed; each is covered by its lane's anchor.
        anchors: lane -> place of its last confirmed message; None while the lane holds no message of anyone.
        removed: keys whose positions are given up.
        topics: data topics that were opened: name -> (id, creation time), so that one made anew is noticed.
        listings: prefix -> what its listing left for the next one; the last one wins.
    """

    entries: Sequence[OffsetManagerEntry] = ()
    anchors: Mapping[Lane, Anchor | None] = attrs.field(factory=dict)
    removed: Sequence[OffsetManagerKey] = ()
    topics: Mapping[str, tuple[int, int]] = attrs.field(factory=dict)
    listings: Mapping[str, PastListing] = attrs.field(factory=dict)

    def __bool__(self) -> bool:
        return bool(self.entries or self.anchors or self.removed or self.topics or self.listings)


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

    Attributes:
        coverage: what a listing tells of the key ranges that it has shown; the watermark rises by it.
    """

    def __init__(
        self,
        store: OffsetStore | None = None,
        *,
        positions: PositionMap | None = None,
        records_found: Callable[[NativeObject], int] | None = None,
        watermark: Watermark | None = None,
    ) -> None:
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
        return bool(self._dirty or self._removed or self._dirty_lanes or self._new_topics or self._new_listings)

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
            )
            self._dirty, self._removed, self._dirty_lanes = {}, {}, set()
            self._new_topics, self._new_listings = {}, {}
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
            raise
        return delta


def canonical_options(options: Mapping[str, str]) -> str:
    """The text under which a position keeps what it depends on: equal maps give equal text."""
    return json.dumps(dict(options), sort_keys=True, separators=(",", ":"))


def check_depends_on(entry: OffsetManagerEntry, depends_on: str, location: str = "") -> None:
    """Refuses a position whose records were numbered under other options.

    Raises:
        PositionMismatchError: naming the object, both sets of options, and the way out.
    """
    if (entry.records_done or entry.finished) and entry.depends_on and entry.depends_on != depends_on:
        place = location or f"{entry.bucket}/{entry.key}"
        raise PositionMismatchError(
            f"{place}: {entry.records_done} records were read with {entry.depends_on}, and the configuration now says "
            f"{depends_on}, which numbers records in another way. Set [input] back; or read it again from its first record: "
            f"`offsets reset --key {shlex.quote(entry.key)}` for this object, `--prefix` for those of a folder, `--all` for all"
        )
