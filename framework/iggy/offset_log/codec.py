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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from framework.iggy.offset_log import framing
from framework.iggy.offset_log.forms import (
    ANCHORS,
    FORMS,
    anchor_in,
    anchor_out,
    claim_in,
    claim_out,
    entries_in,
    entries_out,
    item_out,
    items_in,
    partition_in,
    selected_in,
    selected_out,
    typed,
)
from framework.iggy.offset_log.framing import MAX_CLAIM_BYTES, LogMessage, shape_of
from framework.iggy.offset_log.record_size import ROW_CHARACTERS, batches, entry_characters, spread
from framework.iggy.offset_log.records import (
    FACTS,
    Claim,
    PartitionOpening,
    Progress,
    SnapshotFooter,
    TopicIdentity,
)
from framework.model.objects import TopicPartition
from framework.model.positions import OffsetManagerEntry
from framework.offsets.packed_table import RowChunk
from framework.offsets.position_map import PositionView
from framework.offsets.selection_scope import SelectionScope

PART_CHUNKS = 4
"""Chunks of final positions per snapshot part: about 16,000 positions, 0.7 MB packed, a few hundredths of a second. They
never exceed 33 MB: see `framework.offsets.packed_row.MAX_STORED_BYTES`."""

PART_ENTRIES = 4000
"""Other positions per snapshot part."""

_COUNT = struct.Struct("<I")

_SPREAD = ("anchors", "topics", "owners", "counted", "closed", "claims", "listings")
"""Facts by partition, offset or prefix: they may be more than a part of a snapshot holds."""

_CHANGES = ("counted", "closed", "removed", "listings", "selected")
"""What progress holds only where there is some."""


# ---- claim, opening


def encode_claim(source: str, claim: Claim) -> bytes:
    """Encode a claim as one message."""
    return framing.encode({"kind": "claim", "source": source, "epoch": claim.epoch}, claim_out(claim))


def decode_claim(message: LogMessage) -> Claim:
    """The inverse of `encode_claim`."""
    with shape_of(message):
        return claim_in(message.read(MAX_CLAIM_BYTES), message.timestamp_us)


def encode_opening(source: str, epoch: int, *, fenced: int) -> bytes:
    """Encode the opening of an epoch: records of earlier epochs after this one do not count.

    Args:
        source: name of the source.
        epoch: its number.
        fenced: offset before which every claim's connection is gone.
    """
    return framing.encode({"kind": "opening", "source": source, "epoch": epoch}, {"fenced": fenced})


def decode_opening(message: LogMessage) -> int:
    """Return the offset before which every claim's connection is gone."""
    with shape_of(message):
        return int(message.read(MAX_CLAIM_BYTES)["fenced"])


# ---- begin


def encode_begin(
    source: str, epoch: int, entries: Sequence[OffsetManagerEntry], selected: SelectionScope | None = None
) -> bytes:
    """Encode new positions as one message."""
    body: dict[str, Any] = {"entries": entries_out(entries)}
    if selected is not None:
        body["selected"] = selected_out(selected)
    return framing.encode({"kind": "begin", "source": source, "epoch": epoch}, body)


def decode_begin(message: LogMessage) -> tuple[list[OffsetManagerEntry], SelectionScope | None]:
    """The inverse of `encode_begin`."""
    with shape_of(message):
        body = message.read()
        return list(entries_in(body["entries"])), selected_in(body.get("selected"))


# ---- open


def encode_open(source: str, epoch: int, writer: str, openings: Sequence[PartitionOpening]) -> bytes:
    """Encode the partitions that a writer took over as one message."""
    rows = [
        [
            opening.topic_partition.topic,
            opening.topic_partition.partition,
            opening.topic.topic_id,
            opening.topic.created_at,
            anchor_out(opening.anchor),
            [[*position, count] for position, count in opening.counts.items()],
        ]
        for opening in openings
    ]
    counted = {opening.topic_partition: opening.counted for opening in openings if opening.counted is not None}
    body = {"partitions": rows, "counted": ANCHORS.out(counted)}
    return framing.encode({"kind": "open", "source": source, "epoch": epoch, "writer": writer}, body)


def decode_open(message: LogMessage) -> list[PartitionOpening]:
    """The inverse of `encode_open`."""
    with shape_of(message):
        body = message.read()
        counted = ANCHORS.into(body["counted"])
        return [
            PartitionOpening(
                topic_partition=partition_in(topic, partition),
                topic=TopicIdentity(topic_id=typed(int, topic_id), created_at=typed(int, created_at)),
                anchor=anchor_in(anchor),
                counts={(object_hash, split_number): typed(int, count) for object_hash, split_number, count in counts},
                counted=counted.get(TopicPartition(topic, partition)),
            )
            for topic, partition, topic_id, created_at, anchor, counts in body["partitions"]
        ]


# ---- progress


def encode_progress(source: str, epoch: int, writer: str, progress: Progress) -> bytes:
    """Encode the changes that a writer saves as one message."""
    body: dict[str, Any] = {
        "items": [item_out(item) for item in progress.items],
        "anchors": ANCHORS.out(progress.anchors),
    }
    changes = {name: getattr(progress, name) for name in _CHANGES}
    body.update({name: FORMS[name].out(value) for name, value in changes.items() if value})
    header = {"kind": "progress", "source": source, "epoch": epoch, "writer": writer}
    if progress.skipped:
        header["skipped"] = progress.skipped
    return framing.encode(header, body)


def decode_progress(message: LogMessage) -> Progress:
    """The inverse of `encode_progress`."""
    with shape_of(message):
        body = message.read()
        return Progress(
            items=items_in(body["items"]),
            anchors=ANCHORS.into(body["anchors"]),
            skipped=message.header.get("skipped", 0),
            **{name: FORMS[name].into(body[name]) for name in _CHANGES if name in body},
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
    header = {"kind": "snapshot", "source": source, "epoch": epoch, "number": number, "at": at}
    chunks, part = positions.chunks(), 0
    while part_rows := list(itertools.islice(chunks, PART_CHUNKS)):
        part += 1
        tables = positions.tables if part == 1 else {}
        yield framing.encode_raw({**header, "part": part, "rows": True}, _rows_out(tables, part_rows))
    *more_facts, facts = _spread_facts(footer)
    for values in more_facts:
        part += 1
        yield framing.encode(
            {**header, "part": part, "facts": True}, {name: FORMS[name].out(values[name]) for name in _SPREAD}
        )
    last: Sequence[OffsetManagerEntry] = ()
    for entries in batches(positions.others(), entry_characters, PART_ENTRIES):
        if last:
            part += 1
            yield framing.encode({**header, "part": part}, _part_out(last))
        last = entries
    body = {**_part_out(last), "footer": _footer_out(attrs.evolve(footer, **facts))}
    yield framing.encode({**header, "part": part + 1, "last": True}, body)


def _part_out(entries: Sequence[OffsetManagerEntry]) -> dict[str, Any]:
    return {"entries": entries_out(sorted(entries, key=_name))}  # sorted by name they compress better


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
        yield from entries_in(body["entries"])


def decode_facts(part: LogMessage) -> dict[str, dict[Any, Any]]:
    """Return the facts in a part of a snapshot before its last, by name."""
    with shape_of(part):
        body = part.read()
        return {name: FORMS[name].into(body[name]) for name in _SPREAD}


def decode_footer(part: LogMessage) -> SnapshotFooter:
    """Decode the footer in the last part of a snapshot."""
    with shape_of(part):
        body = part.read()
        row = body["footer"]
        return SnapshotFooter(
            floor=typed(int, row["floor"]),
            has_abandoned_partitions=typed(bool, row["past_given_up"]),
            **{name: form.into(row[name]) for name, form in FORMS.items() if name in FACTS},
        )


def _footer_out(footer: SnapshotFooter) -> dict[str, Any]:
    facts = {name: form.out(getattr(footer, name)) for name, form in FORMS.items() if name in FACTS}
    return {"floor": footer.floor, **facts, "past_given_up": footer.has_abandoned_partitions}
