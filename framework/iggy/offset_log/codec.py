"""The records of the offsets log as bytes.

    message = b"ICSP" | format version u8 | flags u8 (1: body is zstd) | header length u32 LE | header JSON | body JSON

The header identifies the record without unpacking the body:

    {"kind": "claim", "source": "orders", "epoch": 7}
    {"kind": "opening", "source": "orders", "epoch": 7}
    {"kind": "begin", "source": "orders", "epoch": 7}
    {"kind": "open", "source": "orders", "epoch": 7, "writer": "5f3a..."}           writer: token of the writer's claim
    {"kind": "progress", "source": "orders", "epoch": 7, "writer": "5f3a...", "skipped": 3}
    {"kind": "snapshot", "source": "orders", "epoch": 7, "number": 2, "at": 4650, "part": 3, "last": true}

The body of a snapshot part is JSON. Where the header says `"rows": true`, it is final positions as they lie in
memory:

    length u32 | tables JSON, {} but in the first part | { rows u32 | bytes u32 | end of each row u32 | rows } ...

(`framework.offsets.packed_row` has the layout of a row.) Where the header says `"facts": true`, it is a part of what the
last part holds beside positions, when that is too much for one part.

A snapshot is the state at offset `at` of the log. A loader applies every record from `at` on, whether it is stored
before, between or after the snapshot's parts. A snapshot with a missing part is ignored. This layout is part of the
stored data: unknown content raises an error that names a way out, and is never skipped.
"""

from __future__ import annotations

import copy
import itertools
import json
import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from operator import attrgetter
from typing import Any, NamedTuple

import attrs
import orjson
import zstandard

from framework.errors import PositionError
from framework.iggy.offset_log.record_size import ROW_CHARACTERS, batches, entry_characters, spread
from framework.model.objects import Anchor, ResumePoint, TopicPartition, length_only
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.offsets.listing_hints import IncrementalMark, ListingHints
from framework.offsets.packed_table import RowChunk
from framework.offsets.position_map import PositionView
from framework.offsets.selection_scope import SelectionScope
from framework.offsets.watermark import CoveredRange, Watermark

WAY_OUT = (
    "It is damaged: bring the topic back from a backup; or name another [offsets] topic and read everything again: "
    "`offsets reset --all`"
)

MAGIC = b"ICSP"
FORMAT_VERSION = 2
_PREFIX = struct.Struct("<4sBBI")
_ZSTD = 1
_COMPRESS_FROM_BYTES = 512
MAX_BODY_BYTES = 256 << 20
"""Maximum size of an unpacked body. Real bodies reach some megabytes; other writers to the topic could craft larger."""

MAX_CLAIM_BYTES = 4 << 20
"""Maximum size of an unpacked claim or opening. Real claims have some 100 bytes, and 30 more for each partition."""

MAX_GROUP_CHARACTERS = 60
PART_CHUNKS = 4
"""Chunks of final positions per snapshot part: about 16,000 positions, 0.7 MB packed, a few hundredths of a second. They
never exceed 33 MB: see `framework.offsets.packed_row.MAX_STORED_BYTES`."""

PART_ENTRIES = 4000
"""Other positions per snapshot part."""

_COUNT = struct.Struct("<I")

_SNAPSHOT_NUMBERS = ("number", "at", "part")
_MAX_NUMBER = 2**63 - 1


@attrs.frozen(kw_only=True, slots=True)
class LogMessage:
    """One record of the log, its body still packed.

    Attributes:
        offset: offset in the offsets topic.
        kind: `claim`, `opening`, `begin`, `open`, `progress` or `snapshot`.
        source: name of the source that wrote it.
        epoch: the writer's epoch.
        header: the remaining fields of the header.
        timestamp_us: when the server stored it.
        body: the body, packed if `packed`; empty when only the head of the message is kept.
        packed: whether the body is zstd.
    """

    offset: int
    kind: str
    source: str
    epoch: int
    header: Mapping[str, Any] = attrs.field(factory=dict)
    timestamp_us: int = 0
    body: bytes = attrs.field(default=b"", repr=length_only)
    packed: bool = False

    @property
    def writer(self) -> str:
        """Token of the writer's claim; empty for records that only the leader writes."""
        return str(self.header.get("writer", ""))

    @property
    def head(self) -> LogMessage:
        """The message without its body."""
        # Not `evolve`, which costs five times as much: a start asks each message of the log for it.
        return LogMessage(
            offset=self.offset,
            kind=self.kind,
            source=self.source,
            epoch=self.epoch,
            header=self.header,
            timestamp_us=self.timestamp_us,
            packed=self.packed,
        )

    def has_head_of(self, other: LogMessage) -> bool:
        """Whether this is the same message, whatever is kept of the bodies."""
        return _head_of(self) == _head_of(other)

    def read(self, limit: int | None = None) -> dict[str, Any]:
        """Return the decoded body.

        Args:
            limit: how many bytes it may have, unpacked; `MAX_BODY_BYTES` without one.

        Raises:
            PositionError: the body is damaged, or has more bytes.
        """
        try:
            value: dict[str, Any] = _loads(self.unpacked(limit))
        except (ValueError, RecursionError) as exc:
            raise self.damaged() from exc
        return value

    def unpacked(self, limit: int | None = None) -> bytes:
        """Return the unpacked bytes of the body.

        Raises:
            PositionError: the body is damaged, or has more than `limit` bytes.
        """
        limit = MAX_BODY_BYTES if limit is None else limit
        if not self.packed and len(self.body) > limit:
            raise self.damaged()
        try:
            return _unpack(self.body, limit) if self.packed else self.body
        except (zstandard.ZstdError, ValueError) as exc:
            raise self.damaged() from exc

    def check_header(self) -> None:
        """Check the types in the header. It is up to the reader to ask for it: what another source wrote is none of ours.

        Raises:
            PositionError: the header is damaged.
        """
        numbers = [self.epoch, self.header.get("skipped", 0)]
        if self.kind == "snapshot":
            numbers += map(self.header.get, _SNAPSHOT_NUMBERS)
        right = type(self.kind) is str and {*map(type, numbers)} == {int}
        if not right or min(numbers) < 0 or max(numbers) > _MAX_NUMBER:
            raise PositionError(_unreadable(self.offset))

    def damaged(self) -> PositionError:
        """Return the error to raise for an unreadable body."""
        return PositionError(f"offsets topic, message {self.offset}: a {self.kind} that cannot be read. {WAY_OUT}")


_head_of = attrgetter("offset", "kind", "source", "epoch", "header", "timestamp_us", "packed")


@attrs.frozen(kw_only=True, slots=True)
class Claim:
    """A running or former instance: the first record written over a new connection.

    Attributes:
        epoch: the epoch that is claimed, or worked in.
        host: name of the machine.
        process: process id on that machine.
        leader: whether this claims the epoch (the other claims belong to the leader's workers).
        client: this connection as the server lists it, `(client id, "ip:port")`: ids restart when the server restarts,
            so both must agree.
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
    partitions: tuple[TopicPartition, ...] = ()
    at_us: int = 0

    @property
    def who(self) -> str:
        """The machine, the process and its start time, for messages."""
        since = f", since {datetime.fromtimestamp(self.at_us / 1e6, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
        return f"{self.host} (process {self.process}{since if self.at_us else ''})"


_CLAIM = [field.name for field in attrs.fields(Claim)]


@attrs.frozen(kw_only=True, slots=True)
class TopicIdentity:
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


_NOTHING: Mapping[str, Any] = {}


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
    extra: Mapping[str, Any] = _NOTHING


_EVERY = 5
"""Values that every row has; the others follow where one of them says something."""

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
        facts = {name: getattr(self, name) for name in _FACTS}
        # what is no container never changes: a copy of it would only take long
        return {name: copy.copy(value) if isinstance(value, dict | list) else value for name, value in facts.items()}

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
_FACTS = [field.name for field in attrs.fields(LogFacts)]


@attrs.define(kw_only=True)
class SnapshotFooter(LogFacts):
    """The last part of a snapshot, apart from positions: the state at that moment.

    Attributes:
        floor: see `PositionMap.floor`.
    """

    floor: int = 0


# ---- messages


def _loads(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return json.loads(body)  # reads what `_encode` writes for names that are not valid Unicode


def _unpack(packed: bytes, limit: int) -> bytes:
    """Unpack a zstd frame. `_frame` never writes a frame without a size, or with a larger one.

    Raises:
        ValueError, ZstdError: the frame is damaged or malicious.
    """
    size = zstandard.frame_content_size(packed)
    if not 0 <= size <= limit:
        raise ValueError(size)
    return zstandard.ZstdDecompressor().decompress(packed)


def _encode(header: Mapping[str, Any], body: Mapping[str, Any]) -> bytes:
    packed_header = orjson.dumps(header)
    try:
        raw = orjson.dumps(body)
    except TypeError:  # a name (such as a file's) is not valid Unicode; only the slower encoder can escape it
        raw = json.dumps(body, separators=(",", ":")).encode()
    return _frame(packed_header, raw)


def _encode_raw(header: Mapping[str, Any], raw: bytes) -> bytes:
    return _frame(orjson.dumps(header), raw)


def _frame(packed_header: bytes, raw: bytes) -> bytes:
    flags = 0
    if len(raw) >= _COMPRESS_FROM_BYTES:
        raw, flags = zstandard.ZstdCompressor(level=3).compress(raw), _ZSTD
    return _PREFIX.pack(MAGIC, FORMAT_VERSION, flags, len(packed_header)) + packed_header + raw


def decode(offset: int, payload: bytes, timestamp_us: int = 0) -> LogMessage | None:
    """Decode a payload; return None when it is not a record of the offsets log.

    Raises:
        PositionError: the record is of another format, or damaged.
    """
    if payload[:4] != MAGIC:
        return None
    try:
        _, version, flags, length = _PREFIX.unpack_from(payload)
        if version != FORMAT_VERSION:
            raise PositionError(
                f"offsets topic, message {offset}: positions in format {version}, and this version reads format "
                f"{FORMAT_VERSION}; run the version that wrote them"
            )
        end = _PREFIX.size + length
        header = orjson.loads(payload[_PREFIX.size : end])
        return LogMessage(
            offset=offset,
            kind=header.pop("kind"),
            source=header.pop("source"),
            epoch=header.pop("epoch"),
            header=header,
            timestamp_us=timestamp_us,
            body=payload[end:],
            packed=bool(flags & _ZSTD),
        )
    except (struct.error, orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as exc:
        raise PositionError(_unreadable(offset)) from exc


_SHAPE_ERRORS = (
    KeyError,
    TypeError,
    ValueError,
    IndexError,
    AttributeError,
    OverflowError,
    RecursionError,
    struct.error,
)


def _unreadable(offset: int) -> str:
    return f"offsets topic, message {offset}: positions that cannot be read. {WAY_OUT}"


class shape_of:  # noqa: N801 - as `contextlib.suppress`
    """Turn a body of an unexpected shape into a `PositionError` that names a way out.

    It is around decoding, and around what takes the decoded values in: a value of another type may show only there. Not
    a generator, which takes three times as long: every record of the log passes two of them.
    """

    __slots__ = ("_message",)

    def __init__(self, message: LogMessage) -> None:
        self._message = message

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, _SHAPE_ERRORS):
            message = self._message
            raise PositionError(
                f"offsets topic, message {message.offset}: a {message.kind} of a shape that this version does not know. "
                f"{WAY_OUT}"
            ) from error


# ---- claim, opening


def encode_claim(source: str, claim: Claim) -> bytes:
    """Encode a claim as one message."""
    return _encode({"kind": "claim", "source": source, "epoch": claim.epoch}, _claim_out(claim))


def decode_claim(message: LogMessage) -> Claim:
    """The inverse of `encode_claim`."""
    with shape_of(message):
        return _claim_in(message.read(MAX_CLAIM_BYTES), message.timestamp_us)


def _claim_out(claim: Claim) -> dict[str, Any]:
    values = {name: getattr(claim, name) for name in _CLAIM}
    return values | {"partitions": [(one.topic, one.partition) for one in claim.partitions]}


def _claim_in(body: Mapping[str, Any], at_us: int | None = None) -> Claim:
    client_id, address = body["client"]
    topic_partitions = tuple(TopicPartition(topic, partition) for topic, partition in body["partitions"])
    values = {**body, "client": (client_id, address), "partitions": topic_partitions}
    claim = _typed_claim(Claim(**values))
    return claim if at_us is None or at_us == claim.at_us else Claim(**{**values, "at_us": at_us})


def _typed_claim(claim: Claim) -> Claim:
    """Return the claim; raise TypeError if a value has another type, which would show where claims are compared."""
    numbers = (claim.epoch, claim.process, claim.client[0], claim.at_us, *(one.partition for one in claim.partitions))
    texts = (claim.host, claim.client[1], claim.token, *(one.topic for one in claim.partitions))
    if {*map(type, numbers)} != {int} or {*map(type, texts)} != {str} or type(claim.leader) is not bool:
        raise TypeError("a claim")
    return claim


def encode_opening(source: str, epoch: int, *, fenced: int) -> bytes:
    """Encode the opening of an epoch: records of earlier epochs after this one do not count.

    Args:
        source: name of the source.
        epoch: its number.
        fenced: offset before which every claim's connection is gone.
    """
    return _encode({"kind": "opening", "source": source, "epoch": epoch}, {"fenced": fenced})


def decode_opening(message: LogMessage) -> int:
    """Return the offset before which every claim's connection is gone."""
    with shape_of(message):
        return int(message.read(MAX_CLAIM_BYTES)["fenced"])


# ---- begin


def encode_begin(
    source: str, epoch: int, entries: Sequence[OffsetManagerEntry], selected: SelectionScope | None = None
) -> bytes:
    """Encode new positions as one message."""
    body: dict[str, Any] = {"entries": _entries_out(entries)}
    if selected is not None:
        body["selected"] = _selected_out(selected)
    return _encode({"kind": "begin", "source": source, "epoch": epoch}, body)


def decode_begin(message: LogMessage) -> tuple[list[OffsetManagerEntry], SelectionScope | None]:
    """The inverse of `encode_begin`."""
    with shape_of(message):
        body = message.read()
        return list(_entries_in(body["entries"])), _selected_in(body.get("selected"))


# ---- open


def encode_open(source: str, epoch: int, writer: str, openings: Sequence[PartitionOpening]) -> bytes:
    """Encode the partitions that a writer took over as one message."""
    rows = [
        [
            opening.topic_partition.topic,
            opening.topic_partition.partition,
            opening.topic.topic_id,
            opening.topic.created_at,
            _anchor_out(opening.anchor),
            [[*position, count] for position, count in opening.counts.items()],
        ]
        for opening in openings
    ]
    counted = {opening.topic_partition: opening.counted for opening in openings if opening.counted is not None}
    body = {"partitions": rows, "counted": _ANCHORS.out(counted)}
    return _encode({"kind": "open", "source": source, "epoch": epoch, "writer": writer}, body)


def decode_open(message: LogMessage) -> list[PartitionOpening]:
    """The inverse of `encode_open`."""
    with shape_of(message):
        body = message.read()
        counted = _ANCHORS.into(body["counted"])
        return [
            PartitionOpening(
                topic_partition=_partition_in(topic, partition),
                topic=TopicIdentity(topic_id=topic_id, created_at=created_at),
                anchor=_anchor_in(anchor),
                counts={(object_hash, split_number): count for object_hash, split_number, count in counts},
                counted=counted.get(TopicPartition(topic, partition)),
            )
            for topic, partition, topic_id, created_at, anchor, counts in body["partitions"]
        ]


# ---- progress


def encode_progress(source: str, epoch: int, writer: str, progress: Progress) -> bytes:
    """Encode the changes that a writer saves as one message."""
    body: dict[str, Any] = {
        "items": [_item_out(item) for item in progress.items],
        "anchors": _ANCHORS.out(progress.anchors),
    }
    changes = {name: getattr(progress, name) for name in _CHANGES}
    body.update({name: _FORMS[name].out(value) for name, value in changes.items() if value})
    header = {"kind": "progress", "source": source, "epoch": epoch, "writer": writer}
    if progress.skipped:
        header["skipped"] = progress.skipped
    return _encode(header, body)


def decode_progress(message: LogMessage) -> Progress:
    """The inverse of `encode_progress`."""
    with shape_of(message):
        body = message.read()
        return Progress(
            items=[_item_in(row) for row in body["items"]],
            anchors=_ANCHORS.into(body["anchors"]),
            skipped=message.header.get("skipped", 0),
            **{name: _FORMS[name].into(body[name]) for name in _CHANGES if name in body},
        )


def _item_out(item: ProgressItem) -> list[Any]:
    row: list[Any] = list(item[:_EVERY])
    if any(item[_EVERY:]):
        mark = [item.mark.record, item.mark.byte] if item.mark is not None else None
        row += [item.failed, item.skipped, mark, dict(item.extra)]
    return row


def _item_in(row: Sequence[Any]) -> ProgressItem:
    object_hash, split_number, saved, sent, total, *few = row
    failed, skipped, mark, extra = few or (False, 0, None, {})
    resume = ResumePoint(*mark) if mark else None
    return ProgressItem(object_hash, split_number, saved, sent, total, failed, skipped, resume, extra)


# ---- snapshot


def encode_snapshot(
    source: str,
    epoch: int,
    positions: PositionView,
    footer: SnapshotFooter,
    *,
    number: int,
    at: int,
) -> Iterator[bytes]:
    """Yield the messages of a snapshot in the order to write. Each is encoded on demand, so memory use stays small.

    Args:
        source: name of the source.
        epoch: the writer's epoch.
        positions: every position.
        footer: everything else; goes into the last message.
        number: number of the snapshot in its epoch; together they tell the parts of different snapshots apart.
        at: offset in the log whose state the snapshot holds.
    """
    header = {"kind": "snapshot", "source": source, "epoch": epoch, "number": number, "at": at}
    chunks, part = positions.chunks(), 0
    while part_rows := list(itertools.islice(chunks, PART_CHUNKS)):
        part += 1
        tables = positions.tables if part == 1 else {}
        yield _encode_raw({**header, "part": part, "rows": True}, _rows_out(tables, part_rows))
    *more_facts, facts = _spread_facts(footer)
    for values in more_facts:
        part += 1
        yield _encode(
            {**header, "part": part, "facts": True}, {name: _FORMS[name].out(values[name]) for name in _SPREAD}
        )
    last: Sequence[OffsetManagerEntry] = ()
    for entries in batches(positions.others(), entry_characters, PART_ENTRIES):
        if last:
            part += 1
            yield _encode({**header, "part": part}, _part_out(last))
        last = entries
    body = {**_part_out(last), "footer": _footer_out(attrs.evolve(footer, **facts))}
    yield _encode({**header, "part": part + 1, "last": True}, body)


def _part_out(entries: Sequence[OffsetManagerEntry]) -> dict[str, Any]:
    return {"entries": _entries_out(sorted(entries, key=_name))}  # sorted by name they compress better


def _spread_facts(footer: SnapshotFooter) -> list[dict[str, Any]]:
    """Return the facts that may be more than a record holds, in groups for a part each."""
    groups = spread({name: getattr(footer, name).items() for name in _SPREAD}, _characters_of)
    return [{name: dict(values) for name, values in group.items()} for group in groups]


def _characters_of(name: str, fact: tuple[Any, Any]) -> int:
    """Return how many characters a fact takes."""
    key, value = fact
    if name == "claims":
        return ROW_CHARACTERS + sum(ROW_CHARACTERS + len(one.topic) for one in value.partitions)
    if name == "listings":
        return ROW_CHARACTERS + len(key) + sum(20 + len(name) for name, _ in value.histogram)
    return ROW_CHARACTERS + len(key.topic)


def _name(entry: OffsetManagerEntry) -> tuple[str, str, int]:
    return entry.bucket, entry.key, entry.split_number


def _rows_out(tables: Mapping[str, Any], chunks: Iterable[RowChunk]) -> bytes:
    packed = json.dumps(tables, separators=(",", ":")).encode()
    pieces: list[bytes | memoryview] = [_COUNT.pack(len(packed)), packed]
    for chunk in chunks:
        pieces += [_COUNT.pack(len(chunk.ends) // _COUNT.size), _COUNT.pack(len(chunk.rows)), chunk.ends, chunk.rows]
    return b"".join(pieces)


def decode_rows(part: LogMessage) -> tuple[dict[str, Any], list[RowChunk]]:
    """Return a part's final positions, and the tables that all parts refer to (empty but in the first part)."""
    body = memoryview(part.unpacked())
    with shape_of(part):
        (length,) = _COUNT.unpack_from(body)
        place = _COUNT.size + length
        tables: dict[str, Any] = json.loads(bytes(body[_COUNT.size : place]))
        chunks: list[RowChunk] = []
        while place < len(body):
            rows, size = _COUNT.unpack_from(body, place)[0], _COUNT.unpack_from(body, place + _COUNT.size)[0]
            place += 2 * _COUNT.size
            ends = body[place : place + rows * _COUNT.size]
            place += rows * _COUNT.size
            chunks.append(RowChunk(body[place : place + size], ends))
            place += size
        return tables, chunks


def decode_entries(part: LogMessage) -> Iterator[OffsetManagerEntry]:
    """Yield the positions of a snapshot part that are not stored as rows."""
    with shape_of(part):
        body = part.read()
        yield from _entries_in(body["entries"])


def decode_facts(part: LogMessage) -> dict[str, dict[Any, Any]]:
    """Return the facts in a part of a snapshot before its last, by name."""
    with shape_of(part):
        body = part.read()
        return {name: _FORMS[name].into(body[name]) for name in _SPREAD}


def decode_footer(part: LogMessage) -> SnapshotFooter:
    """Decode the footer in the last part of a snapshot."""
    with shape_of(part):
        body = part.read()
        row = body["footer"]
        return SnapshotFooter(
            floor=row["floor"],
            has_abandoned_partitions=row["past_given_up"],
            **{name: form.into(row[name]) for name, form in _FORMS.items() if name in _FACTS},
        )


def _footer_out(footer: SnapshotFooter) -> dict[str, Any]:
    facts = {name: form.out(getattr(footer, name)) for name, form in _FORMS.items() if name in _FACTS}
    return {"floor": footer.floor, **facts, "past_given_up": footer.has_abandoned_partitions}


# ---- values


def _watermark_out(watermark: Watermark) -> dict[str, Any]:
    return {
        "bucket": watermark.bucket,
        "prefixes": {
            prefix: [[covered.after, covered.until, covered.time_ms] for covered in ranges]
            for prefix, ranges in watermark.prefixes.items()
        },
        "folded": dict(watermark.compacted),
        "records": watermark.records,
    }


def _watermark_in(row: Mapping[str, Any]) -> Watermark:
    """Decode a watermark from its stored form; an empty row is an empty watermark."""
    if not row:
        return Watermark()
    return Watermark(
        bucket=row["bucket"],
        prefixes={
            prefix: tuple(CoveredRange(after, until, int(time_ms)) for after, until, time_ms in ranges)
            for prefix, ranges in row["prefixes"].items()
        },
        compacted={prefix: int(count) for prefix, count in row["folded"].items()},
        records=int(row["records"]),
    )


def _selected_out(selected: SelectionScope | None) -> dict[str, Any] | None:
    return attrs.asdict(selected) if selected is not None else None


def _selected_in(row: Mapping[str, Any] | None) -> SelectionScope | None:
    return SelectionScope(**row) if row is not None else None


def _listings_out(listings: Mapping[str, ListingHints]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for prefix, past in listings.items():
        row = rows[prefix] = {
            "of": past.of,
            "keys": [key for key, _ in past.histogram],
            "counts": [count for _, count in past.histogram],
            "unordered": past.unordered,
        }
        if past.incremental is not None:
            row["tail"] = [past.incremental.after, past.incremental.whole_listing_ms, past.incremental.selection]
    return rows


def _listings_in(rows: Mapping[str, Any]) -> dict[str, ListingHints]:
    """Decode listing hints from their stored form."""
    return {
        prefix: ListingHints(
            of=row["of"],
            histogram=zip(row["keys"], row["counts"], strict=True),
            unordered=row["unordered"],
            incremental=IncrementalMark(after=row["tail"][0], whole_listing_ms=row["tail"][1], selection=row["tail"][2])
            if row.get("tail")
            else None,
        )
        for prefix, row in rows.items()
    }


def _anchor_out(anchor: Anchor | None) -> list[Any] | None:
    return [anchor.offset, f"{anchor.message_id:x}", anchor.origin_us] if anchor is not None else None


def _anchor_in(row: Sequence[Any] | None) -> Anchor | None:
    if row is None:
        return None
    offset, message_id, origin_us = row
    _check_types((offset, origin_us), int)
    return Anchor(offset, int(message_id, 16), origin_us)


def _partition_in(topic: Any, partition: Any) -> TopicPartition:
    """Return the partition; raise TypeError for values of other types, which would show where partitions are sorted."""
    if type(topic) is not str or type(partition) is not int:
        raise TypeError("a partition")
    return TopicPartition(topic, partition)


class _Form(NamedTuple):
    """A stored form: how a value becomes JSON, and what it is made into again."""

    out: Callable[[Any], Any]
    into: Callable[[Any], Any]


def _by_partition(columns_of: Callable[[Any], Iterable[Any]], value_of: Callable[..., Any]) -> _Form:
    """Return the form of a map by partition: rows of topic, partition, and the columns of the value."""
    return _Form(
        lambda values: [[at.topic, at.partition, *columns_of(value)] for at, value in values.items()],
        lambda rows: {_partition_in(topic, partition): value_of(*columns) for topic, partition, *columns in rows},
    )


_ANCHORS = _by_partition(lambda anchor: [_anchor_out(anchor)], _anchor_in)
_SINGLE = _by_partition(lambda value: [value], lambda value: value)
_FORMS: Mapping[str, _Form] = {
    "anchors": _ANCHORS,
    "topics": _by_partition(
        lambda topic: (topic.topic_id, topic.created_at),
        lambda topic_id, created_at: TopicIdentity(topic_id=topic_id, created_at=created_at),
    ),
    "owners": _SINGLE,
    "counted": _ANCHORS,
    "closed": _SINGLE,
    "claims": _Form(
        lambda claims: [[offset, _claim_out(claim)] for offset, claim in claims.items()],
        lambda rows: {offset: _claim_in(claim) for offset, claim in rows},
    ),
    "removed": _Form(
        lambda keys: [list(map(list, key.properties)) for key in keys],
        lambda rows: [OffsetManagerKey(tuple((name, value) for name, value in key)) for key in rows],
    ),
    "listings": _Form(_listings_out, _listings_in),
    "watermark": _Form(_watermark_out, _watermark_in),
    "selected": _Form(_selected_out, _selected_in),
    "skipped": _Form(lambda pairs: list(map(list, pairs)), lambda rows: [(at_us, count) for at_us, count in rows]),
}
"""The stored forms of what a snapshot or progress holds beside positions, by its name there and in the log."""

_SPREAD = ("anchors", "topics", "owners", "counted", "closed", "claims", "listings")
"""Facts by partition, offset or prefix: they may be more than a part of a snapshot holds."""

_CHANGES = ("counted", "closed", "removed", "listings", "selected")
"""What progress holds only where there is some."""


# ---- entries

_COLUMNS = ("bucket", "key", "version", "modified", "generation", "saved", "sent", "total", "partition", "depends_on")
"""Columns that most entries fill."""

_REPEATED = {"bucket": "buckets", "partition": "partitions", "depends_on": "options"}
"""Columns of numbers in a table of values."""

_FEW = {
    "failed": ("failed", bool),
    "skipped": ("skipped", int),
    "may_begin_again": ("may_begin_again", bool),
    "missing": ("missing_since_ms", int),
    "extra": ("extra", dict),
}
"""Columns that few entries fill: row number -> value. Other such columns are `share` and `mark`."""


def _entries_out(entries: Sequence[OffsetManagerEntry]) -> dict[str, Any]:
    """Encode entries by column, with tables for repeated values: a third of the packed size of rows."""
    columns: dict[str, Any] = {
        "bucket": [entry.bucket for entry in entries],
        "key": [entry.key for entry in entries],
        "version": [entry.version for entry in entries],
        "modified": [entry.modified_ms for entry in entries],
        "generation": [entry.generation for entry in entries],
        "saved": [entry.records_saved for entry in entries],
        "sent": [entry.records_done for entry in entries],
        "total": [entry.total for entry in entries],
        "partition": [(entry.topic_partition.topic, entry.topic_partition.partition) for entry in entries],
        "depends_on": [entry.numbering_options for entry in entries],
    }
    table: dict[str, Any] = {"columns": columns}
    for name, repeated in _REPEATED.items():
        numbers: dict[Any, int] = {}
        columns[name] = [numbers.setdefault(value, len(numbers)) for value in columns[name]]
        table[repeated] = list(numbers)
    columns["share"] = {str(at): [e.split_number, e.split_size] for at, e in enumerate(entries) if e.split_size}
    columns["mark"] = {str(at): [e.mark.record, e.mark.byte] for at, e in enumerate(entries) if e.mark is not None}
    for name, (field, _) in _FEW.items():
        values = list(map(attrgetter(field), entries))
        columns[name] = {str(at): value for at, value in enumerate(values) if value} if any(values) else {}
    return table


def _entries_in(table: Mapping[str, Any]) -> Iterator[OffsetManagerEntry]:
    columns = table["columns"]
    few: defaultdict[int, dict[str, Any]] = defaultdict(dict)
    for name, (field, kind) in _FEW.items():
        _check_types(columns[name].values(), kind)
        for at, value in columns[name].items():
            few[int(at)][field] = value
    _check_types(itertools.chain(*columns["share"].values(), *columns["mark"].values()), int)
    for at, (split_number, split_size) in columns["share"].items():
        few[int(at)].update(split_number=split_number, split_size=split_size)
    for at, mark in columns["mark"].items():
        few[int(at)]["mark"] = ResumePoint(*mark)
    for name in _COLUMNS:
        kinds = (int, type(None)) if name == "total" else (str,) if name in {"key", "version"} else (int,)
        _check_types(columns[name], *kinds)
    _check_types(itertools.chain(table["buckets"], table["options"]), str)
    if min(itertools.chain.from_iterable(columns[name] for name in _REPEATED), default=0) < 0:
        raise ValueError("a number of a row below 0")
    topic_partitions = [_partition_in(topic, partition) for topic, partition in table["partitions"]]
    for row, values in enumerate(zip(*(columns[name] for name in _COLUMNS), strict=True)):
        bucket, key, version, modified, generation, saved, sent, total, topic_partition, numbering_options = values
        yield OffsetManagerEntry(
            bucket=table["buckets"][bucket],
            key=key,
            version=version,
            generation=generation,
            modified_ms=modified,
            records_done=sent,
            records_saved=saved,
            total=total,
            topic_partition=topic_partitions[topic_partition],
            numbering_options=table["options"][numbering_options],
            **few.get(row, _NOTHING),
        )


def _check_types(values: Iterable[Any], *kinds: type) -> None:
    """Raise TypeError for a value of another type, which would show where positions are compared."""
    if not {*map(type, values)} <= {*kinds}:
        raise TypeError("a value of another type")
