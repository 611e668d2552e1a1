"""What the offsets topic holds: claims, deltas and snapshots, as bytes.

    message = b"ICSP" | format version u8 | flags u8 (1: body is zstd) | header length u32 LE | header JSON | body JSON

The header says what the message is without unpacking the body:

    {"kind": "claim", "source": "orders", "epoch": 7}
    {"kind": "delta", "source": "orders", "epoch": 7, "base": 4711}          base: offset of the snapshot it builds on
    {"kind": "snapshot", "source": "orders", "epoch": 7, "part": 1, "parts": 3, "since": 4650}

A delta says `"left_out": 3` when so many bad records were left out since the one before, and a snapshot `"reset": true` with which
they no longer count.

A snapshot has as many parts as its size needs; without its last part it does not exist. Deltas may stand between its parts, and
`since` is where it stands among them: it knows every delta before that offset, and those from there on build on it. This layout
is part of the stored data: what is not understood is an error with a way out, never skipped.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import attrs
import orjson
import zstandard

from framework.errors import PositionError
from framework.offsets import OffsetManagerEntry, OffsetManagerKey, PositionDelta
from framework.past_listing import PastListing, TailMark
from framework.position_map import PositionView
from framework.records import Anchor, Lane, Mark, ObjectState, length_only
from framework.reset import Reset
from framework.watermark import CoveredRange, Watermark

WAY_OUT = (
    "It is damaged: bring the topic back from a backup; or name another [offsets] topic and say what is to hold for it: "
    "`offsets reset --all` reads everything again, `offsets accept` goes on behind what the data topics hold"
)

MAGIC = b"ICSP"
FORMAT_VERSION = 1
_PREFIX = struct.Struct("<4sBBI")
_ZSTD = 1
_COMPRESS_FROM_BYTES = 512
PART_BYTES = 1 << 20
"""Entries in one part of a snapshot, as text: some 7,000 and 350 kB packed. A tenth of a second's work, whatever there is."""

_DELTA_BYTES, _ENTRY_BYTES, _ANCHOR_BYTES = 250, 45, 45

_STATES = {ObjectState.READING: 0, ObjectState.DONE: 1, ObjectState.FAILED: 2}
_STATE_OF = {number: state for state, number in _STATES.items()}


@attrs.frozen(kw_only=True, slots=True)
class LogMessage:
    """One message of the log, its body still packed.

    Attributes:
        offset: in the offsets topic.
        kind: `claim`, `delta` or `snapshot`.
        source: whose it is.
        epoch: of its writer.
        base: deltas: offset of the snapshot they build on.
        part: snapshots: 1 .. parts.
        parts: snapshots: how many there are.
        since: snapshots: offset from which on deltas build on it; None: from its last part on.
        left_out: deltas: bad records, and rests of objects, that were left out.
        by_reset: snapshots: whether a reset begins it.
        timestamp_us: when the server stored it.
        body: packed JSON; empty when only the head of the message is kept.
        packed: whether the body is zstd.
    """

    offset: int
    kind: str
    source: str
    epoch: int
    base: int | None = None
    part: int = 1
    parts: int = 1
    since: int | None = None
    left_out: int = 0
    by_reset: bool = False
    timestamp_us: int = 0
    body: bytes = attrs.field(repr=length_only)
    packed: bool = False

    def read(self) -> dict[str, Any]:
        """The body.

        Raises:
            PositionError: it is damaged.
        """
        try:
            body = zstandard.ZstdDecompressor().decompress(self.body) if self.packed else self.body
            value: dict[str, Any] = _loads(body)
        except (zstandard.ZstdError, ValueError) as exc:
            raise PositionError(
                f"offsets topic, message {self.offset}: a {self.kind} that cannot be read. {WAY_OUT}"
            ) from exc
        return value


@attrs.frozen(kw_only=True, slots=True)
class Claim:
    """Who runs, or ran: written before anything else of an epoch, and by every process of it that sends.

    Attributes:
        epoch: the epoch that is claimed.
        host: name of the machine.
        process: process id there.
        leader: whether this claims the epoch (the others belong to the claimant).
        clients: this process's connections as the server lists them, `(client id, "ip:port")`: ids begin again when the
            server restarts, so both must agree.
        token: random; tells two claims of one epoch apart.
        take_over: whether whoever works in an earlier epoch shall end at once.
        at_us: when the server stored it; 0 before it is stored.
    """

    epoch: int
    host: str
    process: int
    leader: bool
    clients: tuple[tuple[int, str], ...]
    token: str
    take_over: bool = False
    at_us: int = 0

    @property
    def who(self) -> str:
        """For messages: the machine, the process and since when."""
        since = f", since {datetime.fromtimestamp(self.at_us / 1e6, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
        return f"{self.host} (process {self.process}{since if self.at_us else ''})"


@attrs.frozen(kw_only=True, slots=True)
class TopicIdentity:
    """What tells a topic from another one made later under the same name."""

    topic_id: int
    created_at: int


@attrs.frozen(kw_only=True, slots=True)
class Closing:
    """What the last part of a snapshot says beside positions: the state at one moment.

    Attributes:
        anchors: every lane that holds or may hold a record of ours.
        topics: data topic -> its identity.
        unclaimed: replayed records of objects that are known by their hash only: hash -> records done.
        listings: prefix -> what its last listing left.
        letters: dead letter topic -> the place up to which the positions know its letters. It moves with an epoch only: several
            writers share the topic, so none of them can tell for all.
        reset: what was forgotten by hand just before this snapshot. Its anchors are the lanes' ends of that moment: records of
            these objects up to there do not count, also for a start that has to go back to an older snapshot.
        watermark: under which objects without a position are done.
    """

    anchors: Mapping[Lane, Anchor | None] = attrs.field(factory=dict)
    topics: Mapping[str, TopicIdentity] = attrs.field(factory=dict)
    unclaimed: Mapping[int, int] = attrs.field(factory=dict)
    listings: Mapping[str, PastListing] = attrs.field(factory=dict)
    letters: Mapping[str, Anchor] = attrs.field(factory=dict)
    reset: Reset | None = None
    watermark: Watermark = attrs.field(factory=Watermark)


def _loads(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return json.loads(body)  # takes what `_encode` writes of names that are no valid Unicode


def _encode(header: Mapping[str, Any], body: Mapping[str, Any]) -> bytes:
    packed_header = orjson.dumps(header)
    try:
        raw = orjson.dumps(body)
    except TypeError:  # a name that is no valid Unicode (a file's, say): as escapes, which only the slower one writes
        raw = json.dumps(body, separators=(",", ":")).encode()
    flags = 0
    if len(raw) >= _COMPRESS_FROM_BYTES:
        raw, flags = zstandard.ZstdCompressor(level=6).compress(raw), _ZSTD
    return _PREFIX.pack(MAGIC, FORMAT_VERSION, flags, len(packed_header)) + packed_header + raw


def decode(offset: int, payload: bytes, timestamp_us: int = 0) -> LogMessage | None:
    """The message of that payload; None when it is none of ours.

    Raises:
        PositionError: ours, but of a later format, or damaged.
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
            kind=header["kind"],
            source=header["source"],
            epoch=header["epoch"],
            base=header.get("base"),
            part=header.get("part", 1),
            parts=header.get("parts", 1),
            since=header.get("since"),
            left_out=header.get("left_out", 0),
            by_reset=header.get("reset", False),
            timestamp_us=timestamp_us,
            body=payload[end:],
            packed=bool(flags & _ZSTD),
        )
    except (struct.error, orjson.JSONDecodeError, KeyError, TypeError) as exc:
        raise PositionError(f"offsets topic, message {offset}: positions that cannot be read. {WAY_OUT}") from exc


@contextlib.contextmanager
def _shape_of(message: LogMessage) -> Iterator[None]:
    """Around what reads a body: one of another shape is one sentence with a way out."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as exc:
        raise PositionError(
            f"offsets topic, message {message.offset}: a {message.kind} of a shape that this version does not know. {WAY_OUT}"
        ) from exc


def encode_claim(source: str, claim: Claim) -> bytes:
    """A claim as one message."""
    body = attrs.asdict(claim)
    del body["at_us"]
    if not claim.take_over:  # so that earlier versions can read what an ordinary start writes
        del body["take_over"]
    return _encode({"kind": "claim", "source": source, "epoch": claim.epoch}, body)


def decode_claim(message: LogMessage) -> Claim:
    """The inverse of `encode_claim`."""
    body = message.read()
    with _shape_of(message):
        body["clients"] = tuple((client_id, address) for client_id, address in body["clients"])
        return Claim(**body, at_us=message.timestamp_us)


def encode_delta(source: str, epoch: int, base: int, delta: PositionDelta) -> bytes:
    """A delta as one message: entries and anchors grouped by lane."""
    body = {
        "anchors": _anchors_out(delta.anchors),
        "entries": _entries_out(delta.entries),
        "removed": [list(map(list, key.properties)) for key in delta.removed],
        "topics": {name: list(identity) for name, identity in delta.topics.items()},
        "listings": _listings_out(delta.listings),
    }
    header = {"kind": "delta", "source": source, "epoch": epoch, "base": base}
    if delta.left_out:
        header["left_out"] = delta.left_out
    return _encode(header, body)


def decode_delta(message: LogMessage, *, entries: bool = True) -> PositionDelta:
    """The inverse of `encode_delta`; without `entries` everything but the positions."""
    body = message.read()
    with _shape_of(message):
        return PositionDelta(
            entries=list(_entries_in(body["entries"])) if entries else (),
            anchors=_anchors_in(body["anchors"]),
            removed=[OffsetManagerKey(tuple((name, value) for name, value in key)) for key in body["removed"]],
            topics={name: (one, two) for name, (one, two) in body.get("topics", {}).items()},
            listings=_listings_in(body.get("listings", {})),
            left_out=message.left_out,
        )


def delta_bytes(delta: PositionDelta) -> int:
    """About how many bytes of the log a delta takes. Encoding it again to know would cost more than it is worth."""
    return _DELTA_BYTES + positions_bytes(len(delta.entries)) + _ANCHOR_BYTES * len(delta.anchors)


def positions_bytes(count: int) -> int:
    """About how many bytes of the log so many positions take."""
    return _ENTRY_BYTES * count


def encode_snapshot(
    source: str,
    epoch: int,
    positions: PositionView,
    closing: Closing,
    *,
    since: int | None = None,
    part_bytes: int | None = None,
) -> Iterator[bytes]:
    """A snapshot as its messages, in the order to write. Each is made when it is asked for: none of them needs much memory.

    Args:
        source: whose it is.
        epoch: of the writer.
        positions: every position.
        closing: everything else; goes into the last message.
        since: offset in the log from which on deltas count as well; None: from the snapshot's last message on.
        part_bytes: what the positions of one message may take as text, about.
    """
    views = positions.parts(part_bytes or PART_BYTES)
    for part, view in enumerate(views, 1):
        # in the order of their names they pack better
        body: dict[str, Any] = {"entries": _entries_out(sorted(view, key=_name))}
        if part == len(views):
            body["anchors"] = _anchors_out(closing.anchors)
            body["topics"] = {name: attrs.astuple(identity) for name, identity in closing.topics.items()}
            body["unclaimed"] = [[object_hash, done] for object_hash, done in closing.unclaimed.items()]
            body["listings"] = _listings_out(closing.listings)
            if closing.letters:
                body["letters"] = {topic: [at.offset, f"{at.message_id:x}"] for topic, at in closing.letters.items()}
            if closing.reset is not None:
                body["reset"] = closing.reset.to_json()
            body["watermark"] = _watermark_out(closing.watermark)
        header = {"kind": "snapshot", "source": source, "epoch": epoch, "part": part, "parts": len(views)}
        if since is not None:
            header["since"] = since
        if closing.reset is not None:
            header["reset"] = True
        yield _encode(header, body)


def _name(entry: OffsetManagerEntry) -> tuple[str, str, int]:
    return entry.bucket, entry.key, entry.share


def decode_entries(part: LogMessage) -> Iterator[OffsetManagerEntry]:
    """The positions in one part of a snapshot."""
    body = part.read()
    with _shape_of(part):
        yield from _entries_in(body["entries"])


def decode_closing(part: LogMessage) -> Closing:
    """What the last part of a snapshot says beside positions."""
    body = part.read()
    with _shape_of(part):
        return Closing(
            anchors=_anchors_in(body["anchors"]),
            topics={
                name: TopicIdentity(topic_id=one, created_at=two) for name, (one, two) in body.get("topics", {}).items()
            },
            unclaimed={int(object_hash): done for object_hash, done in body["unclaimed"]},
            listings=_listings_in(body.get("listings", {})),
            letters={topic: Anchor(row[0], int(row[1], 16)) for topic, row in body.get("letters", {}).items()},
            reset=Reset.from_json(body["reset"]) if body.get("reset") else None,
            watermark=_watermark_in(body.get("watermark", {})),
        )


def _watermark_out(watermark: Watermark) -> dict[str, Any]:
    if not watermark.bucket:
        return {}
    return {
        "bucket": watermark.bucket,
        "prefixes": {
            prefix: [[one.after, one.until, one.time_ms] for one in ranges]
            for prefix, ranges in watermark.prefixes.items()
        },
        "folded": dict(watermark.folded),
        "records": watermark.records,
        "selection": dict(watermark.selection),
        "oldest": watermark.oldest_ms,
    }


def _watermark_in(row: Mapping[str, Any]) -> Watermark:
    if not row:
        return Watermark()
    return Watermark(
        bucket=row["bucket"],
        prefixes={
            prefix: tuple(CoveredRange(after, until, int(time_ms)) for after, until, time_ms in ranges)
            for prefix, ranges in row["prefixes"].items()
        },
        folded={prefix: int(count) for prefix, count in row["folded"].items()},
        records=int(row["records"]),
        selection=dict(row["selection"]),
        oldest_ms=row["oldest"],
    )


def _listings_out(listings: Mapping[str, PastListing]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for prefix, past in listings.items():
        row = rows[prefix] = {
            "of": past.of,
            "keys": [key for key, _ in past.histogram],
            "counts": [count for _, count in past.histogram],
            "unordered": past.unordered,
        }
        if past.tail is not None:
            row["tail"] = [past.tail.after, past.tail.whole_pass_ms, past.tail.selection]
    return rows


def _listings_in(rows: Mapping[str, Any]) -> dict[str, PastListing]:
    return {
        prefix: PastListing(
            of=row["of"],
            histogram=zip(row["keys"], row["counts"], strict=True),
            unordered=row["unordered"],
            tail=TailMark(after=row["tail"][0], whole_pass_ms=row["tail"][1], selection=row["tail"][2])
            if row.get("tail")
            else None,
        )
        for prefix, row in rows.items()
    }


def _anchors_out(anchors: Mapping[Lane, Anchor | None]) -> list[list[Any]]:
    return [
        [lane.topic, lane.partition, *([anchor.offset, f"{anchor.message_id:x}"] if anchor else [])]
        for lane, anchor in anchors.items()
    ]


def _anchors_in(rows: Iterable[Sequence[Any]]) -> dict[Lane, Anchor | None]:
    return {
        Lane(row[0], row[1]): Anchor(row[2], int(row[3], 16)) if len(row) > 2 else None  # noqa: PLR2004
        for row in rows
    }


def _entries_out(entries: Sequence[OffsetManagerEntry]) -> dict[str, Any]:
    """Entries by column, with tables for what repeats: packs to a third of the same rows."""
    buckets: dict[str, int] = {}
    lanes: dict[tuple[str, int], int] = {}
    options: dict[str, int] = {}
    columns: dict[str, Any] = {
        "bucket": [buckets.setdefault(entry.bucket, len(buckets)) for entry in entries],
        "key": [entry.key for entry in entries],
        "version": [entry.version for entry in entries],
        "modified": [entry.modified_ms for entry in entries],
        "records": [entry.records_done for entry in entries],
        "state": [_STATES[entry.state] for entry in entries],
        "lane": [lanes.setdefault((entry.lane.topic, entry.lane.partition), len(lanes)) for entry in entries],
        "depends_on": [options.setdefault(entry.depends_on, len(options)) for entry in entries],
    }
    # what only a few have: row number -> value
    columns["generation"] = {str(at): e.generation for at, e in enumerate(entries) if e.generation}
    columns["share"] = {str(at): [e.share, e.split_size] for at, e in enumerate(entries) if e.split_size}
    columns["mark"] = {str(at): [e.mark.record, e.mark.byte] for at, e in enumerate(entries) if e.mark is not None}
    columns["skipped"] = {str(at): e.skipped for at, e in enumerate(entries) if e.skipped}
    columns["given_up"] = {str(at): e.given_up for at, e in enumerate(entries) if e.given_up}
    columns["reopened"] = {str(at): e.reopened for at, e in enumerate(entries) if e.reopened}
    columns["extra"] = {str(at): e.extra for at, e in enumerate(entries) if e.extra}
    return {"columns": columns, "buckets": list(buckets), "lanes": list(lanes), "options": list(options)}


def _entries_in(table: Mapping[str, Any]) -> Iterator[OffsetManagerEntry]:
    columns = table["columns"]
    lanes = [Lane(topic, partition) for topic, partition in table["lanes"]]
    marks, skipped, extras = columns["mark"], columns["skipped"], columns["extra"]
    generations, shares, given_up = columns.get("generation"), columns.get("share"), columns.get("given_up")
    reopened = columns.get("reopened")
    names = ("bucket", "key", "version", "modified", "records", "state", "lane", "depends_on")
    for at, row in enumerate(zip(*(columns[name] for name in names), strict=True)):
        bucket, key, version, modified, records, state, lane, depends_on = row
        mark = marks.get(str(at)) if marks else None
        share, split_size = shares.get(str(at), (0, 0)) if shares else (0, 0)
        yield OffsetManagerEntry(
            bucket=table["buckets"][bucket],
            key=key,
            version=version,
            generation=generations.get(str(at), 0) if generations else 0,
            modified_ms=modified,
            share=share,
            split_size=split_size,
            records_done=records,
            state=_STATE_OF[state],
            lane=lanes[lane],
            mark=Mark(*mark) if mark else None,
            depends_on=table["options"][depends_on],
            skipped=tuple((first, last) for first, last in skipped.get(str(at), ())) if skipped else (),
            given_up=given_up.get(str(at), 0) if given_up else 0,
            reopened=reopened.get(str(at), 0) if reopened else 0,
            extra=extras.get(str(at), {}) if extras else {},
        )
