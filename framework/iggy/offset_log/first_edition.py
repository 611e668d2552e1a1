"""Logs of version 0.1: read once, if their last run ended in order; the first epoch of this version rewrites them.

    claim      {"epoch", "host", "process", "leader", "clients": [[id, address]], "token"}
    delta      {"entries", "anchors", "removed", "topics", "listings"}        builds on the last snapshot of its epoch
    snapshot   {"entries"}, and in its last part "anchors", "topics", "unclaimed", "listings", "watermark"

Its positions do not say which of their records began them, so records after an anchor cannot always be attributed. A
start then refuses, and names the way out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from framework.errors import PositionError
from framework.iggy.offset_log import codec
from framework.iggy.offset_log.codec import Claim, LogMessage, TopicIdentity
from framework.iggy.offset_log.state import LogState
from framework.model.objects import Anchor, ResumePoint, TopicPartition
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.offsets.selection_scope import SelectionScope

if TYPE_CHECKING:
    from framework.iggy.offset_log.log import OffsetLog

WAY_OUT = "Run version 0.1 once more until it ends in order (`--once`, or a stop), then this version"

_DONE, _FAILED = 1, 2
_ANCHOR_WITH_MESSAGE = 4

_Row = tuple[tuple[int, int, bool, int], OffsetManagerEntry]
"""The order between two positions of one object (the larger is the later), and the position."""


def load(offset_log: OffsetLog, heads: Sequence[LogMessage]) -> LogState:
    """Build the state from records of version 0.1.

    Raises:
        PositionError: they cannot be read, or the last run left records that belong to no known object.
    """
    state = LogState(source=offset_log.source)
    for message in offset_log.read(head for head in heads if head.kind == "claim"):
        state.claims[message.offset] = _claim_in(message)
    state.epoch = state.last_epoch = max((head.epoch for head in heads), default=0)
    parts = newest_snapshot(heads)
    if not parts:
        return state
    since = parts[-1].header.get("since", parts[-1].offset)
    deltas = [head for head in heads if head.kind == "delta" and head.epoch == parts[-1].epoch and head.offset >= since]
    rows: dict[OffsetManagerKey, _Row] = {}
    topics: dict[str, TopicIdentity] = {}
    for message in offset_log.read([*parts, *deltas]):
        with codec.body_of(message) as body:
            _take_entries(rows, body)
            _take_rest(state, topics, body)
    state.topics = {
        topic_partition: topics[topic_partition.topic]
        for topic_partition in state.anchors
        if topic_partition.topic in topics
    }
    objects: dict[OffsetManagerKey, list[OffsetManagerEntry]] = {}
    for key, (_, entry) in rows.items():
        objects.setdefault(key.whole(), []).append(entry)
    with codec.shape_of(parts[-1]):
        for entries in objects.values():
            for entry in _newest(entries):
                state.positions[entry.get_manager_key()] = entry
        state.reindex()
    return state


def _take_entries(rows: dict[OffsetManagerKey, _Row], body: Mapping[str, Any]) -> None:
    for key in body.get("removed", ()):
        rows.pop(OffsetManagerKey(tuple((name, value) for name, value in key)), None)
    for order, entry in _entries_in(body["entries"]):
        key = entry.get_manager_key()
        if key not in rows or rows[key][0] <= order:
            rows[key] = order, entry


def _newest(entries: Sequence[OffsetManagerEntry]) -> Iterator[OffsetManagerEntry]:
    """Yield the positions of an object's newest generation without gaps: version 0.1 began splits in any order."""
    newest = max(entries, key=lambda entry: (entry.generation, entry.split_size))
    begun = {entry.split_number: entry for entry in entries if entry.is_of(newest)}
    for split_number in range(1, max(begun) + 1) if newest.split_size else begun:
        yield begun.get(split_number) or newest.another_split(split_number, newest.topic_partition)


def _take_rest(state: LogState, topics: dict[str, TopicIdentity], body: Mapping[str, Any]) -> None:
    if body.get("unclaimed"):
        raise PositionError(
            f'the positions of source "{state.source}" were written by version 0.1, whose last run was killed before it knew the '
            f"names of all objects it had sent. {WAY_OUT}"
        )
    for row in body.get("anchors", ()):
        topic_partition = TopicPartition(row[0], row[1])
        state.first_edition.add(topic_partition)
        if len(row) == _ANCHOR_WITH_MESSAGE:
            anchor = Anchor(row[2], int(row[3], 16))
            known = state.anchors.get(topic_partition)
            state.anchors[topic_partition] = anchor if known is None or known.offset < anchor.offset else known
    for name, (topic_id, created_at) in body.get("topics", {}).items():
        topics[name] = TopicIdentity(topic_id=topic_id, created_at=created_at)
    state.listings.update(codec.listings_in(body.get("listings", {})))
    if body.get("watermark"):
        _restore_watermark(state, body["watermark"])


def newest_snapshot(heads: Sequence[LogMessage]) -> list[LogMessage]:
    """Return the parts of the newest complete snapshot whose epoch is not below an earlier one's."""
    newest: list[LogMessage] = []
    pending: list[LogMessage] = []
    for head in heads:
        if head.kind != "snapshot" or (newest and head.epoch < newest[-1].epoch):
            continue
        part, parts = head.header.get("part", 1), head.header.get("parts", 1)
        pending = [*pending, head] if part == len(pending) + 1 and part > 1 else [head] if part == 1 else []
        if pending and part == parts:
            newest, pending = pending, []
    return newest


def _claim_in(message: LogMessage) -> Claim:
    with codec.body_of(message) as body:
        client_id, address = body["clients"][0]
        return codec.typed_claim(
            Claim(
                epoch=body["epoch"],
                host=body["host"],
                process=body["process"],
                leader=body["leader"],
                client=(client_id, address),
                token=body["token"],
                at_us=message.timestamp_us,
            )
        )


def _restore_watermark(state: LogState, row: Mapping[str, Any]) -> None:
    state.watermark = codec.watermark_in(row)
    state.selected = SelectionScope(
        bucket=row["bucket"], prefixes=list(row["prefixes"]), options=dict(row["selection"]), oldest_ms=row["oldest"]
    )


def _entries_in(table: Mapping[str, Any]) -> Iterator[_Row]:
    columns = table["columns"]
    names = ("bucket", "key", "version", "modified", "records", "state", "lane", "depends_on")  # codespell:ignore lane
    few = {name: columns.get(name) or {} for name in ("generation", "share", "mark", "reopened", "extra")}
    for at, row in enumerate(zip(*(columns[name] for name in names), strict=True)):
        bucket, key, version, modified, records, stage, topic_partition, numbering_options = row
        number = str(at)
        split_number, split_size = few["share"].get(number, (0, 0))
        mark = few["mark"].get(number)
        generation = few["generation"].get(number, 0)
        finished = stage in {_DONE, _FAILED}
        entry = OffsetManagerEntry(
            bucket=table["buckets"][bucket],
            key=key,
            version=version,
            generation=generation + 1,
            modified_ms=modified,
            split_number=split_number,
            split_size=split_size,
            records_done=records,
            records_saved=records,
            total=records if finished else None,
            failed=stage == _FAILED,
            topic_partition=TopicPartition(*table["lanes"][topic_partition]),  # codespell:ignore lanes
            mark=ResumePoint(*mark) if mark and not finished else None,
            numbering_options=table["options"][numbering_options],
            first_ids=True,
            extra=few["extra"].get(number, {}),
        )
        yield (generation, few["reopened"].get(number, 0), finished, records), entry
