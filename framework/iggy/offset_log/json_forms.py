"""The forms that values have in the JSON of a record. msgspec checks the type of every value that is read.

Where a class is its own form, its fields are stored data: `Claim`, `SelectionScope`, `Watermark`, `ListingHints`,
`ProgressItem`, `TopicPartition`, `ResumePoint`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from framework.iggy.offset_log.records import (
    NOTHING,
    Claim,
    LogFacts,
    Progress,
    ProgressItem,
    SnapshotFooter,
    TopicIdentity,
)
from framework.model.objects import Anchor, ResumePoint, TopicPartition
from framework.model.positions import OffsetManagerEntry
from framework.offsets.listing_hints import ListingHints
from framework.offsets.selection_scope import SelectionScope
from framework.offsets.watermark import Watermark

AnchorForm: TypeAlias = tuple[int, str, int]
"""Offset, id in hexadecimal, time of origin."""

AnchorRows: TypeAlias = list[tuple[str, int, AnchorForm]]

_EVERY = 5
"""Values that every row of progress has; the others follow where one of them says something."""


class FactsForm(Struct):
    """What a part of a snapshot holds beside positions: maps by partition, offset or prefix."""

    anchors: AnchorRows
    topics: list[tuple[str, int, int, int]]
    owners: list[tuple[str, int, str]]
    counted: AnchorRows
    closed: list[tuple[str, int, int]]
    claims: list[tuple[int, Claim]]
    listings: dict[str, ListingHints]


class FooterForm(FactsForm):
    """What the last part of a snapshot holds beside positions."""

    floor: int
    watermark: Watermark
    selected: SelectionScope | None
    skipped: list[tuple[int, int]]
    has_abandoned_partitions: bool = msgspec.field(name="past_given_up")


class LastForm(Struct):
    """The body of the last part of a snapshot, apart from its positions."""

    footer: FooterForm


class Columns(Struct):
    """The columns of positions; those with a default value for most rows are maps by row number."""

    bucket: list[Annotated[int, Meta(ge=0)]]
    key: list[str]
    version: list[str]
    modified: list[int]
    generation: list[int]
    saved: list[int]
    sent: list[int]
    total: list[int | None]
    partition: list[Annotated[int, Meta(ge=0)]]
    depends_on: list[Annotated[int, Meta(ge=0)]]
    share: dict[int, tuple[int, int]]
    mark: dict[int, ResumePoint]
    failed: dict[int, bool]
    skipped: dict[int, int]
    may_begin_again: dict[int, bool]
    missing: dict[int, int]
    extra: dict[int, dict[str, Any]]


class EntriesForm(Struct):
    """Positions by column, with tables for repeated values: a third of the packed size of rows."""

    columns: Columns
    buckets: list[str]
    partitions: list[TopicPartition]
    options: list[str]


class BeginForm(Struct, omit_defaults=True):
    """The body of a begin."""

    entries: EntriesForm
    selected: SelectionScope | None = None


class OpenForm(Struct):
    """The body of an open."""

    partitions: list[tuple[str, int, int, int, AnchorForm | None, list[tuple[int, int, int]]]]
    counted: AnchorRows


class ProgressForm(Struct, omit_defaults=True):
    """The body of progress."""

    items: list[ProgressItem]
    anchors: AnchorRows
    counted: AnchorRows = []
    closed: list[tuple[str, int, int]] = []
    removed: list[tuple[tuple[str, str], ...]] = []
    listings: dict[str, ListingHints] = {}
    selected: SelectionScope | None = None


# ---- values


def item_out(item: ProgressItem) -> Any:
    """Return the row of the counts of a position."""
    return item if any(item[_EVERY:]) else item[:_EVERY]


def anchor_out(anchor: Anchor | None) -> AnchorForm | None:
    """Return the form of an anchor."""
    return (anchor.offset, f"{anchor.message_id:x}", anchor.origin_us) if anchor is not None else None


def anchor_in(form: AnchorForm | None) -> Anchor | None:
    """The inverse of `anchor_out`."""
    return Anchor(form[0], int(form[1], 16), form[2]) if form is not None else None


def footer_out(footer: SnapshotFooter) -> FooterForm:
    """Return the form of a footer."""
    values = {name: getattr(footer, name) for name in FooterForm.__struct_fields__}
    return FooterForm(**values | maps_out(footer, MAPS))


def maps_out(values: LogFacts | Progress, names: Iterable[str]) -> dict[str, Any]:
    """Return the forms of these attributes, by name."""
    return {name: _FORMS[name][0](getattr(values, name)) for name in names}


def maps_in(form: FactsForm | ProgressForm | OpenForm, names: Iterable[str]) -> dict[str, dict[Any, Any]]:
    """The inverse of `maps_out`."""
    return {name: _FORMS[name][1](getattr(form, name)) for name in names}


def _rows_of(columns_of: Callable[[Any], Iterable[Any]], values: Mapping[TopicPartition, Any]) -> list[Any]:
    """Return the form of a map: rows of topic, partition, and the columns of the value."""
    return [(at.topic, at.partition, *columns_of(value)) for at, value in values.items()]


def _map_of(value_of: Callable[..., Any], rows: Iterable[Any]) -> dict[TopicPartition, Any]:
    """The inverse of `_rows_of`."""
    return {TopicPartition(topic, number): value_of(*columns) for topic, number, *columns in rows}


_Form: TypeAlias = tuple[Callable[[Any], Any], Callable[[Any], dict[Any, Any]]]
_ANCHORS = partial(_rows_of, lambda anchor: (anchor_out(anchor),)), partial(_map_of, anchor_in)
_VALUES = partial(_rows_of, lambda value: (value,)), partial(_map_of, lambda value: value)
_FORMS: Mapping[str, _Form] = {
    "anchors": _ANCHORS,
    "topics": (partial(_rows_of, tuple), partial(_map_of, TopicIdentity)),
    "owners": _VALUES,
    "counted": _ANCHORS,
    "closed": _VALUES,
    "claims": (lambda claims: list(claims.items()), dict),
    "listings": (dict, dict),
}
MAPS = tuple(_FORMS)
"""Facts by partition, offset or prefix: they may be more than a part of a snapshot holds."""


# ---- entries

_FIELDS = {
    "bucket": "bucket",
    "key": "key",
    "version": "version",
    "modified": "modified_ms",
    "generation": "generation",
    "saved": "records_saved",
    "sent": "records_done",
    "total": "total",
    "partition": "topic_partition",
    "depends_on": "numbering_options",
}
"""Columns that most entries fill, and their fields."""

_REPEATED = {"bucket": "buckets", "partition": "partitions", "depends_on": "options"}
"""Columns of numbers in a table of values."""

_FEW = {"may_begin_again": "may_begin_again", "missing": "missing_since_ms"}
_FEW |= {name: name for name in ("failed", "skipped", "extra", "mark")}
"""Columns that few entries fill, and their fields. Another such column is `share`."""


def entries_out(entries: Sequence[OffsetManagerEntry]) -> EntriesForm:
    """Return the form of positions."""
    columns: dict[str, Any] = {name: list(map(attrgetter(field), entries)) for name, field in _FIELDS.items()}
    tables: dict[str, list[Any]] = {}
    for name, repeated in _REPEATED.items():
        numbers: dict[Any, int] = {}
        columns[name] = [numbers.setdefault(value, len(numbers)) for value in columns[name]]
        tables[repeated] = list(numbers)
    columns["share"] = {at: (e.split_number, e.split_size) for at, e in enumerate(entries) if e.split_size}
    for name, field in _FEW.items():
        values = list(map(attrgetter(field), entries))
        columns[name] = {at: value for at, value in enumerate(values) if value} if any(values) else {}
    return EntriesForm(columns=Columns(**columns), **tables)


def entries_in(form: EntriesForm) -> Iterator[OffsetManagerEntry]:
    """The inverse of `entries_out`."""
    columns = {name: getattr(form.columns, name) for name in _FIELDS}
    for name, repeated in _REPEATED.items():
        columns[name] = list(map(getattr(form, repeated).__getitem__, columns[name]))
    few: defaultdict[int, dict[str, Any]] = defaultdict(dict)
    for name, field in _FEW.items():
        for row, value in getattr(form.columns, name).items():
            few[row][field] = value
    for row, (split_number, split_size) in form.columns.share.items():
        few[row].update(split_number=split_number, split_size=split_size)
    for row, values in enumerate(zip(*columns.values(), strict=True)):
        fields = dict(zip(_FIELDS.values(), values, strict=True))
        yield OffsetManagerEntry(**fields, **few.get(row, NOTHING))
