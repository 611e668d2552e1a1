"""The values that records of the offsets log hold."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

import attrs
from msgspec import Struct

from framework.iggy.values import ConnectedClient
from framework.model.objects import Anchor, ResumePoint, TopicPartition, length_only
from framework.model.positions import OffsetManagerKey
from framework.offsets.listing_hints import ListingHints
from framework.offsets.selection_scope import SelectionScope
from framework.offsets.watermark import Watermark


class Claim(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A running or former instance: the first record written over a new connection. Its fields are its stored form.

    Attributes:
        epoch: the epoch that is claimed, or worked in.
        host: name of the machine.
        process: process id on that machine.
        leader: whether this claims the epoch (the other claims belong to the leader's workers).
        client: this connection as the server lists it, `(client id, "ip:port")`.
        sending: the connection beside it that sends records, in the same form; None when there is no other.
        token: random token; every record that this connection writes carries it.
        partitions: partitions that a worker wants; empty for the leader, which wants all, and
            for a worker whose partitions no other worker wants.
        at_us: when the server stored it; 0 before it is stored.
    """

    epoch: int
    host: str
    process: int
    leader: bool
    client: tuple[int, str]
    token: str
    sending: tuple[int, str] | None = None
    partitions: tuple[TopicPartition, ...] = ()
    at_us: int = 0

    @property
    def who(self) -> str:
        """The machine, the process and its start time, for messages."""
        since = f", since {datetime.fromtimestamp(self.at_us / 1e6, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
        return f"{self.host} (process {self.process}{since if self.at_us else ''})"


def connected(claims: Iterable[Claim], clients: Iterable[ConnectedClient]) -> list[Claim]:
    """Return the claims of which a connection is among these clients.

    A server that restarts counts the numbers from 1 again; one may come to a connection from the same port. While it runs
    no number has two addresses: where one of a claim's numbers has another address, the server has restarted since.
    """
    addresses = {client.client_id: client.address for client in clients}

    def is_listed(claim: Claim) -> bool:
        pairs = [pair for pair in (claim.client, claim.sending) if pair is not None and pair[0] in addresses]
        return bool(pairs) and all(addresses[number] == address for number, address in pairs)

    return list(filter(is_listed, claims))


class TopicIdentity(NamedTuple):
    """Identity of a topic, distinct from a topic created later under the same name."""

    topic_id: int
    created_at: int


@attrs.frozen(kw_only=True, slots=True)
class PartitionOpening:
    """A partition as its writer found it when it took it over.

    Attributes:
        topic_partition: the partition.
        topic: its topic's identity.
        anchor: the message up to which saved counts account for everything; None when no message of this source was ever
            saved.
        counts: (object hash, split) -> records found, for positions with more records in the partition than saved.
        counted: the message up to which the partition was read; None when it was empty.
    """

    topic_partition: TopicPartition
    topic: TopicIdentity
    anchor: Anchor | None
    counts: Mapping[tuple[int, int], int] = attrs.field(factory=dict)
    counted: Anchor | None = None


NOTHING: Mapping[str, Any] = {}


class ProgressItem(NamedTuple):
    """Counts of one position, in the order of a stored row.

    Attributes:
        object_hash: upper 64 bits of its message ids.
        split_number: which split; 0 when the object is read whole.
        saved: see `OffsetManagerEntry.records_saved`.
        sent: see `OffsetManagerEntry.records_done`.
        total: number of records; None until it is known.
        failed: see `OffsetManagerEntry.failed`.
        skipped: see `OffsetManagerEntry.skipped`.
        mark: see `OffsetManagerEntry.mark`.
        extra: see `OffsetManagerEntry.extra`.
    """

    object_hash: int
    split_number: int
    saved: int
    sent: int
    total: int | None
    failed: bool = False
    skipped: int = 0
    mark: ResumePoint | None = None
    extra: Mapping[str, Any] = NOTHING


COUNTED = ("records_saved", "records_done", "total", "failed", "skipped", "mark", "extra")
"""The fields of a position that the values from `saved` on are."""


@attrs.frozen(kw_only=True, slots=True)
class Progress:
    """The changes that one writer saved.

    Attributes:
        items: positions whose counts changed.
        anchors: partitions whose anchor moved.
        counted: partition -> the message up to which sent counts account for everything.
        closed: partition -> offset of its last message, where everything was confirmed and nothing followed.
        removed: objects whose positions were removed.
        listings: prefix -> hints that its last listing left for the next.
        skipped: number of bad records and remainders of objects that were skipped.
        selected: which objects are read, if that changed.
    """

    items: Sequence[ProgressItem] = ()
    anchors: Mapping[TopicPartition, Anchor] = attrs.field(factory=dict)
    counted: Mapping[TopicPartition, Anchor] = attrs.field(factory=dict)
    closed: Mapping[TopicPartition, int] = attrs.field(factory=dict)
    removed: Sequence[OffsetManagerKey] = attrs.field(factory=list)
    listings: Mapping[str, ListingHints] = attrs.field(factory=dict)
    skipped: int = 0
    selected: SelectionScope | None = None


@attrs.define(kw_only=True)
class LogFacts:
    """What a log says apart from positions: part of its state, and of a snapshot.

    Attributes:
        anchors: partition -> the message up to which saved counts account for everything.
        topics: partition that was ever opened -> its topic's identity at that time.
        owners: partition -> token of its writer.
        counted: partition -> the message up to which sent counts account for everything; below the anchor, it means nothing.
        closed: partition -> offset of its last message, where everything was confirmed and nothing followed.
        claims: offset -> claim whose connection has not been fenced.
        listings: prefix -> hints that its last listing left for the next.
        watermark: progress up to which objects without a position are done.
        selected: which objects are read.
        skipped: (microseconds since 1970 by the server's clock, count) of what was skipped.
        has_abandoned_partitions: whether partitions that are not known here may hold records of this source, as the operator
            accepted.
    """

    anchors: dict[TopicPartition, Anchor] = attrs.field(factory=dict)
    topics: dict[TopicPartition, TopicIdentity] = attrs.field(factory=dict)
    owners: dict[TopicPartition, str] = attrs.field(factory=dict)
    counted: dict[TopicPartition, Anchor] = attrs.field(factory=dict)
    closed: dict[TopicPartition, int] = attrs.field(factory=dict)
    claims: dict[int, Claim] = attrs.field(factory=dict)
    listings: dict[str, ListingHints] = attrs.field(factory=dict, repr=length_only)
    watermark: Watermark = attrs.field(factory=Watermark)
    selected: SelectionScope | None = None
    skipped: list[tuple[int, int]] = attrs.field(factory=list)
    has_abandoned_partitions: bool = False

    def facts(self) -> dict[str, Any]:
        """Return a copy of every attribute above, by name; later changes of them do not affect it."""
        return {name: copy.copy(getattr(self, name)) for name in FACTS}

    def of_partitions(self, topic_partitions: Collection[TopicPartition]) -> LogFacts:
        """Return what the log says of these partitions, for their writer."""
        own: dict[str, Any] = {}
        for name in _BY_PARTITION:
            own[name] = {at: value for at, value in getattr(self, name).items() if at in topic_partitions}
        return LogFacts(**own)

    def add_facts(self, facts: Mapping[str, Mapping[Any, Any]]) -> None:
        """Add facts by name: those of a part of a snapshot."""
        for name, values in facts.items():
            getattr(self, name).update(values)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Remove what the log says of a partition."""
        for name in _BY_PARTITION:
            getattr(self, name).pop(topic_partition, None)


_BY_PARTITION = ("anchors", "topics", "counted", "closed")
FACTS = [field.name for field in attrs.fields(LogFacts)]


@attrs.define(kw_only=True)
class SnapshotFooter(LogFacts):
    """The last part of a snapshot, apart from positions: the state at that moment.

    Attributes:
        floor: see `PositionMap.floor`.
    """

    floor: int = 0
