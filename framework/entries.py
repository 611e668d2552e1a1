"""One object's position: how many of its records are done, of which version; and the law by which two of them merge.

The law is commutative, associative and idempotent, so the order in which several writers' changes are read does not matter.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from framework.errors import PositionMismatchError
from framework.position_map import PositionMap
from framework.records import Lane, Mark, NativeObject, ObjectState
from framework.shares import Share

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
        reopened: how often it was read on after it had failed, because its letter was replayed. What was kept before it failed
            is gone by then, so positions from before and after do not unite: the later one wins.
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
    reopened: int = 0
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
        if self.reopened:
            properties["reopened"] = self.reopened
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
            reopened=int(properties.get("reopened", 0)),
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

    def reopen(self) -> OffsetManagerEntry:
        """The position of an object that had failed and is to be read on."""
        return attrs.evolve(self, state=ObjectState.READING, reopened=self.reopened + 1)

    def order(self) -> tuple[Any, ...]:
        """What decides between two positions of one version: the larger is the later one.

        Finished comes before the count. A finished position keeps no skipped numbers; could one that is being read win over it
        by its count, the order of merging would decide which numbers are left.
        """
        mark = (self.mark.record, self.mark.byte) if self.mark else (-1, -1)
        rest = json.dumps(dict(self.extra), sort_keys=True)
        return (
            self.split_size,
            self.reopened,
            self.finished,
            self.records_done,
            self.state.rank,
            mark,
            self.lane,
            self.depends_on,
            rest,
            self.given_up,
            self.skipped,
        )


def merge_entries(left: OffsetManagerEntry, right: OffsetManagerEntry) -> OffsetManagerEntry:
    """The later of two positions of one object.

    A later generation wins. Within a version and its cut one that was reopened more often, then a finished one, then the larger
    count; skipped numbers of what is being read unite. Commutative, associative and idempotent, so several writers' changes can be
    read in any order and more than once. Two versions of one generation do not occur, the writer of a position counts them; the
    newer one by time would win.
    """
    if left.generation != right.generation:
        return max(left, right, key=lambda entry: entry.generation)
    if left.version != right.version:
        return max(left, right, key=lambda entry: (entry.modified_ms, entry.version))
    winner = max(left, right, key=OffsetManagerEntry.order)
    modified_ms = max(left.modified_ms, right.modified_ms)
    if modified_ms != winner.modified_ms:  # a replay knows no time, and without one an older version would win later
        winner = attrs.evolve(winner, modified_ms=modified_ms)
    if winner.finished or (left.split_size, left.reopened) != (right.split_size, right.reopened):
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
                entry,
                share=1,
                records_done=0,
                state=ObjectState.READING,
                mark=None,
                skipped=(),
                given_up=0,
                reopened=0,
                extra={},
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
