"""The forms that values have in the JSON of a record."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import attrs

from framework.iggy.offset_log.records import NOTHING, Claim, ProgressItem, TopicIdentity
from framework.model.objects import Anchor, ResumePoint, TopicPartition
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.offsets.listing_hints import IncrementalMark, ListingHints
from framework.offsets.packed_row import check_types
from framework.offsets.selection_scope import SelectionScope
from framework.offsets.watermark import CoveredRange, Watermark

# ---- claims and counts

_CLAIM = [field.name for field in attrs.fields(Claim)]
_EVERY = 5
"""Values that every row has; the others follow where one of them says something."""


def claim_out(claim: Claim) -> dict[str, Any]:
    """Return the form of a claim."""
    values = {name: getattr(claim, name) for name in _CLAIM}
    return values | {"partitions": [(one.topic, one.partition) for one in claim.partitions]}


def claim_in(body: Mapping[str, Any], at_us: int | None = None) -> Claim:
    """Return the claim of a form, as stored at `at_us`; as its form says without one."""
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


def item_out(item: ProgressItem) -> list[Any]:
    """Return the row of the counts of a position."""
    row: list[Any] = list(item[:_EVERY])
    if any(item[_EVERY:]):
        mark = [item.mark.record, item.mark.byte] if item.mark is not None else None
        row += [item.failed, item.skipped, mark, dict(item.extra)]
    return row


def items_in(rows: Iterable[Sequence[Any]]) -> list[ProgressItem]:
    """Return the counts of positions, of the rows of `item_out`."""
    items = [_item_in(row) for row in rows]
    check_types(itertools.chain.from_iterable(item[:4] for item in items), int)
    check_types((item.total for item in items), int, type(None))
    return items


def _item_in(row: Sequence[Any]) -> ProgressItem:
    object_hash, split_number, saved, sent, total, *few = row
    failed, skipped, mark, extra = few or (False, 0, None, {})
    if few:
        check_types((failed,), bool)
        check_types((skipped, *(mark or ())), int)
        check_types((extra,), dict)
    resume = ResumePoint(*mark) if mark else None
    return ProgressItem(object_hash, split_number, saved, sent, total, failed, skipped, resume, extra)


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
    ranges_of = list(itertools.chain.from_iterable(row["prefixes"].values()))
    check_types((row["bucket"], *(after for after, _, _ in ranges_of)), str)
    check_types((until for _, until, _ in ranges_of), str, type(None))
    return Watermark(
        bucket=row["bucket"],
        prefixes={
            prefix: tuple(CoveredRange(after, until, int(time_ms)) for after, until, time_ms in ranges)
            for prefix, ranges in row["prefixes"].items()
        },
        compacted={prefix: int(count) for prefix, count in row["folded"].items()},
        records=int(row["records"]),
    )


def selected_out(selected: SelectionScope | None) -> dict[str, Any] | None:
    """Return the form of a selection."""
    return attrs.asdict(selected) if selected is not None else None


def selected_in(row: Mapping[str, Any] | None) -> SelectionScope | None:
    """The inverse of `selected_out`."""
    if row is None:
        return None
    selected = SelectionScope(**row)
    check_types((selected.bucket, *selected.prefixes, *selected.options.values()), str)
    check_types((selected.address,), str, type(None))
    check_types((selected.oldest_ms,), int, type(None))
    check_types((selected.since_start, selected.changes_accepted), bool)
    return selected


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
    for row in rows.values():
        after, whole_listing_ms, selection = row.get("tail") or ("", 0, "")
        check_types((row["of"], after, selection, *row["keys"]), str)
        check_types((whole_listing_ms, *row["counts"]), int)
        check_types((row["unordered"],), bool)
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


def anchor_out(anchor: Anchor | None) -> list[Any] | None:
    """Return the form of an anchor."""
    return [anchor.offset, f"{anchor.message_id:x}", anchor.origin_us] if anchor is not None else None


def anchor_in(row: Sequence[Any] | None) -> Anchor | None:
    """The inverse of `anchor_out`."""
    if row is None:
        return None
    offset, message_id, origin_us = row
    check_types((offset, origin_us), int)
    return Anchor(offset, int(message_id, 16), origin_us)


def partition_in(topic: Any, partition: Any) -> TopicPartition:
    """Return the partition; raise TypeError for values of other types, which would show where partitions are sorted."""
    if type(topic) is not str or type(partition) is not int:
        raise TypeError("a partition")
    return TopicPartition(topic, partition)


class _Form(NamedTuple):
    """A stored form: how a value becomes JSON, and what it is made into again."""

    out: Callable[[Any], Any]
    into: Callable[[Any], Any]


class _ByPartition(NamedTuple):
    """The form of a map by partition: rows of topic, partition, and the columns of the value."""

    columns_of: Callable[[Any], Iterable[Any]]
    value_of: Callable[..., Any]

    def out(self, values: Mapping[TopicPartition, Any]) -> list[list[Any]]:
        """Return the rows of a map."""
        return [[at.topic, at.partition, *self.columns_of(value)] for at, value in values.items()]

    def into(self, rows: Iterable[Sequence[Any]]) -> Any:
        """The inverse of `out`."""
        return {partition_in(topic, partition): self.value_of(*columns) for topic, partition, *columns in rows}


ANCHORS = _ByPartition(lambda anchor: [anchor_out(anchor)], anchor_in)
FORMS: Mapping[str, _Form | _ByPartition] = {
    "anchors": ANCHORS,
    "topics": _ByPartition(
        lambda topic: (topic.topic_id, topic.created_at),
        lambda topic_id, created_at: TopicIdentity(topic_id=typed(int, topic_id), created_at=typed(int, created_at)),
    ),
    "owners": _ByPartition(lambda writer: [writer], lambda writer: typed(str, writer)),
    "counted": ANCHORS,
    "closed": _ByPartition(lambda end: [end], lambda end: typed(int, end)),
    "claims": _Form(
        lambda claims: [[offset, claim_out(claim)] for offset, claim in claims.items()],
        lambda rows: {typed(int, offset): claim_in(claim) for offset, claim in rows},
    ),
    "removed": _Form(
        lambda keys: [list(map(list, key.properties)) for key in keys],
        lambda rows: [
            OffsetManagerKey(tuple((typed(str, name), typed(str, value)) for name, value in key)) for key in rows
        ],
    ),
    "listings": _Form(_listings_out, _listings_in),
    "watermark": _Form(_watermark_out, _watermark_in),
    "selected": _Form(selected_out, selected_in),
    "skipped": _Form(
        lambda pairs: list(map(list, pairs)),
        lambda rows: [(typed(int, at_us), typed(int, count)) for at_us, count in rows],
    ),
}
"""The stored forms of what a snapshot or progress holds beside positions, by its name there and in the log."""


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


def entries_out(entries: Sequence[OffsetManagerEntry]) -> dict[str, Any]:
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


def entries_in(table: Mapping[str, Any]) -> Iterator[OffsetManagerEntry]:
    """The inverse of `entries_out`."""
    columns = table["columns"]
    few: defaultdict[int, dict[str, Any]] = defaultdict(dict)
    for name, (field, kind) in _FEW.items():
        check_types(columns[name].values(), kind)
        for at, value in columns[name].items():
            few[int(at)][field] = value
    check_types(itertools.chain(*columns["share"].values(), *columns["mark"].values()), int)
    for at, (split_number, split_size) in columns["share"].items():
        few[int(at)].update(split_number=split_number, split_size=split_size)
    for at, mark in columns["mark"].items():
        few[int(at)]["mark"] = ResumePoint(*mark)
    for name in _COLUMNS:
        kinds = (int, type(None)) if name == "total" else (str,) if name in {"key", "version"} else (int,)
        check_types(columns[name], *kinds)
    check_types(itertools.chain(table["buckets"], table["options"]), str)
    if min(itertools.chain.from_iterable(columns[name] for name in _REPEATED), default=0) < 0:
        raise ValueError("a number of a row below 0")
    topic_partitions = [partition_in(topic, partition) for topic, partition in table["partitions"]]
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
            **few.get(row, NOTHING),
        )


def typed(kind: type, value: Any) -> Any:
    """Return the value; raise TypeError if it is of another type."""
    check_types((value,), kind)
    return value
