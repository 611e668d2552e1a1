"""The records of the offsets log as bytes: messages (`framework.iggy.offset_log.framing`) with these headers.

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

import itertools
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
import msgspec
from msgspec import structs

from framework.iggy.offset_log import framing, json_forms, record_size
from framework.iggy.offset_log.framing import MAX_CLAIM_BYTES, LogMessage, shape_of
from framework.iggy.offset_log.record_size import columns_of, divided, is_too_large, rows_of
from framework.iggy.offset_log.records import Claim, LogFacts, PartitionOpening, Progress, SnapshotFooter, TopicIdentity
from framework.model.objects import TopicPartition
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.offsets.packed_row import RowChunk, Tables
from framework.offsets.position_view import PositionView
from framework.offsets.selection_scope import SelectionScope

PART_CHUNKS = 4
"""Chunks of final positions per snapshot part: about 16,000 positions, 0.7 MB packed, a few hundredths of a second. They
never exceed 33 MB: see `framework.offsets.packed_row.MAX_ROW_BYTES`."""

_COUNT = struct.Struct("<I")
_CHUNK = struct.Struct("<II")

_PROGRESS_MAPS = ("anchors", "counted", "closed", "listings")


# ---- claim, opening


def encode_claim(source: str, claim: Claim) -> bytes:
    """Encode a claim as one message."""
    return framing.encode({"kind": "claim", "source": source, "epoch": claim.epoch}, framing.dumps(claim))


def decode_claim(message: LogMessage) -> Claim:
    """The inverse of `encode_claim`."""
    with shape_of(message):
        return structs.replace(message.read(Claim, MAX_CLAIM_BYTES), at_us=message.timestamp_us)


def encode_opening(source: str, epoch: int, *, fenced: int) -> bytes:
    """Encode the opening of an epoch: records of earlier epochs after this one do not count.

    Args:
        source: name of the source.
        epoch: its number.
        fenced: offset before which every claim's connection is gone.
    """
    return framing.encode({"kind": "opening", "source": source, "epoch": epoch}, framing.dumps({"fenced": fenced}))


def decode_opening(message: LogMessage) -> int:
    """Return the offset before which every claim's connection is gone."""
    with shape_of(message):
        return message.read(dict[str, int], MAX_CLAIM_BYTES)["fenced"]


# ---- begin


def encode_begin(
    source: str, epoch: int, entries: Sequence[OffsetManagerEntry], selected: SelectionScope | None = None
) -> bytes:
    """Encode new positions as one message."""
    body = json_forms.BeginForm(json_forms.entries_out(entries), selected)
    return framing.encode({"kind": "begin", "source": source, "epoch": epoch}, framing.dumps(body))


def decode_begin(message: LogMessage) -> tuple[list[OffsetManagerEntry], SelectionScope | None]:
    """The inverse of `encode_begin`."""
    with shape_of(message):
        body = message.read(json_forms.BeginForm)
        return list(json_forms.entries_in(body.entries)), body.selected


# ---- open


def encode_open(source: str, epoch: int, writer: str, openings: Sequence[PartitionOpening]) -> bytes:
    """Encode the partitions that a writer took over as one message."""
    rows = [
        (
            opening.topic_partition.topic,
            opening.topic_partition.partition,
            *opening.topic,
            json_forms.anchor_out(opening.anchor),
            [(*position, count) for position, count in opening.counts.items()],
        )
        for opening in openings
    ]
    counted = {opening.topic_partition: opening.counted for opening in openings if opening.counted is not None}
    body = {"partitions": rows, **json_forms.maps_out(LogFacts(counted=counted), ["counted"])}
    return framing.encode({"kind": "open", "source": source, "epoch": epoch, "writer": writer}, framing.dumps(body))


def decode_open(message: LogMessage) -> list[PartitionOpening]:
    """The inverse of `encode_open`."""
    with shape_of(message):
        body = message.read(json_forms.OpenForm)
        counted = json_forms.maps_in(body, ["counted"])["counted"]
        return [
            PartitionOpening(
                topic_partition=TopicPartition(topic, partition),
                topic=TopicIdentity(topic_id, created_at),
                anchor=json_forms.anchor_in(anchor),
                counts={(object_hash, split_number): count for object_hash, split_number, count in counts},
                counted=counted.get(TopicPartition(topic, partition)),
            )
            for topic, partition, topic_id, created_at, anchor, counts in body.partitions
        ]


# ---- progress


def encode_progress(source: str, epoch: int, writer: str, progress: Progress) -> bytes:
    """Encode the changes that a writer saves as one message."""
    body = json_forms.ProgressForm(
        items=list(map(json_forms.item_out, progress.items)),
        removed=[key.properties for key in progress.removed],
        selected=progress.selected,
        **json_forms.maps_out(progress, _PROGRESS_MAPS),
    )
    header = {"kind": "progress", "source": source, "epoch": epoch, "writer": writer}
    if progress.skipped:
        header["skipped"] = progress.skipped
    return framing.encode(header, framing.dumps(body))


def decode_progress(message: LogMessage) -> Progress:
    """The inverse of `encode_progress`."""
    with shape_of(message):
        body = message.read(json_forms.ProgressForm)
        return Progress(
            items=body.items,
            removed=list(map(OffsetManagerKey, body.removed)),
            skipped=message.header.get("skipped", 0),
            selected=body.selected,
            **json_forms.maps_in(body, _PROGRESS_MAPS),
        )


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
    part = 1

    def message(raw: bytes, **more: bool) -> bytes:
        head = {"kind": "snapshot", "source": source, "epoch": epoch, "number": number, "at": at, "part": part}
        return framing.encode({**head, **more}, raw)

    def last(entries: Sequence[OffsetManagerEntry], footer: SnapshotFooter) -> bytes:
        body = {"entries": json_forms.entries_out(entries), "footer": json_forms.footer_out(footer)}
        return message(framing.dumps(body), last=True)

    chunks = positions.chunks()
    while part_rows := list(itertools.islice(chunks, PART_CHUNKS)):
        yield message(_rows_out(positions.tables if part == 1 else None, part_rows), rows=True)
        part += 1
    entries = sorted(positions.others, key=_name)  # sorted by name they compress better
    whole = last(entries, footer) if len(entries) <= record_size.MAX_ROWS else None
    if whole is None or is_too_large(whole):
        for payload in divided(entries, lambda rows: message(framing.dumps({"entries": json_forms.entries_out(rows)}))):
            yield payload
            part += 1
        whole = last((), footer)
    if is_too_large(whole):
        for payload in divided(
            rows_of(footer, json_forms.MAPS),
            lambda rows: message(
                framing.dumps(json_forms.maps_out(LogFacts(**columns_of(rows, json_forms.MAPS)), json_forms.MAPS)),
                facts=True,
            ),
        ):
            yield payload
            part += 1
        whole = last((), attrs.evolve(footer, **columns_of((), json_forms.MAPS)))
    yield whole


def _name(entry: OffsetManagerEntry) -> tuple[str, str, int]:
    return entry.bucket, entry.key, entry.split_number


def _rows_out(tables: Tables | None, chunks: Iterable[RowChunk]) -> bytes:
    packed = framing.dumps(tables if tables is not None else {})
    pieces: list[bytes | memoryview] = [_COUNT.pack(len(packed)), packed]
    for chunk in chunks:
        pieces += [_CHUNK.pack(len(chunk), len(chunk.rows)), chunk.ends, chunk.rows]
    return b"".join(pieces)


def decode_rows(part: LogMessage) -> tuple[Tables, list[RowChunk]]:
    """Return a part's final positions, and the tables that all parts refer to (empty but in the first part)."""
    body = memoryview(part.unpacked())
    with shape_of(part):
        (length,) = _COUNT.unpack_from(body)
        place = _COUNT.size + length
        tables = msgspec.convert(json.loads(bytes(body[_COUNT.size : place])), Tables)
        chunks: list[RowChunk] = []
        while place < len(body):
            count, size = _CHUNK.unpack_from(body, place)
            ends = place + _CHUNK.size
            rows = ends + count * _COUNT.size
            place = rows + size
            chunks.append(RowChunk(body[rows:place], body[ends:rows]))
        return tables, chunks


def decode_entries(part: LogMessage) -> Iterator[OffsetManagerEntry]:
    """Yield the positions of a snapshot part that are not stored as rows."""
    with shape_of(part):
        yield from json_forms.entries_in(part.read(json_forms.BeginForm).entries)


def decode_facts(part: LogMessage) -> dict[str, dict[Any, Any]]:
    """Return the facts in a part of a snapshot before its last, by name."""
    with shape_of(part):
        return json_forms.maps_in(part.read(json_forms.FactsForm), json_forms.MAPS)


def decode_footer(part: LogMessage) -> SnapshotFooter:
    """Decode the footer in the last part of a snapshot."""
    with shape_of(part):
        form = part.read(json_forms.LastForm).footer
        return SnapshotFooter(**structs.asdict(form) | json_forms.maps_in(form, json_forms.MAPS))
