"""Dry run: the objects that a source would read next. Lists and decides like a run; reads, sends and writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import attrs
from typing_extensions import override

from framework.errors import PositionMismatchError
from framework.iggy.offset_log.log_offset_store import manager_of
from framework.model.key_range import prefix_of
from framework.model.objects import ObjectState
from framework.model.positions import check_numbering
from framework.offsets.manager import OffsetManager, StartFacts
from framework.offsets.offset_store import OffsetStore, PositionDelta
from framework.task import SourceContext, iterator_of

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.discovery.object_feed import Assignment
    from framework.engine.inspection import Inspection
    from framework.model.objects import NativeObject
    from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
    from framework.task import AbstractSourceTask

_CODECS = frozenset({".gz", ".gzip", ".zst", ".zstd", ".bz2", ".xz", ".snappy", ".sz"})


@attrs.define(kw_only=True)
class ObjectTotals:
    """A part of the objects to read.

    Attributes:
        objects: number of objects; each remaining split of a split object counts, and of parts by key the first alone.
        size_bytes: their remaining bytes.
    """

    objects: int = 0
    size_bytes: int = 0


@attrs.define(kw_only=True)
class DryRun:
    """The objects that a listing would read.

    Attributes:
        total: all objects.
        begun: of these, objects that were begun before.
        endings: by file name suffix, such as `.jsonl.gz`; empty for a name without a suffix.
        topic_partitions: by partition.
        prefixes: by folder: the configured prefix and one more level.
        listed: objects that the listing showed.
        filtered: reason -> number of objects that were filtered.
        unselected: `bucket/key` of objects that were begun and not finished, and that the listing did not give: they are
            filtered now, or gone.
        list_requests: requests that the listing took; the next takes about as many.
    """

    total: ObjectTotals = attrs.field(factory=ObjectTotals)
    begun: int = 0
    endings: dict[str, ObjectTotals] = attrs.field(factory=dict)
    topic_partitions: dict[str, ObjectTotals] = attrs.field(factory=dict)
    prefixes: dict[str, ObjectTotals] = attrs.field(factory=dict)
    listed: int = 0
    filtered: Mapping[str, int] = attrs.field(factory=dict)
    unselected: Sequence[str] = ()
    list_requests: int = 0
    _last: NativeObject | None = attrs.field(default=None, init=False)
    _last_begun: bool = attrs.field(default=False, init=False)

    def add(self, assignment: Assignment, prefixes: Sequence[str]) -> None:
        """Count an object, under one of the sorted prefixes."""
        native, entry = assignment.native, assignment.entry
        # the parts of an object follow each other, and one read serves them
        counts = entry.part is None or native is not self._last
        if counts:
            self._last, self._last_begun = native, False
        if entry.records_done > 0 and not self._last_begun:
            self.begun += 1
            self._last_begun = True
        configured = prefix_of(prefixes, native.key) or ""
        for totals, adds in (
            (self.total, counts),
            (self.endings.setdefault(ending_of(native.key), ObjectTotals()), counts),
            (self.topic_partitions.setdefault(str(entry.topic_partition), ObjectTotals()), True),
            (self.prefixes.setdefault(folder_of(native.key, configured), ObjectTotals()), counts),
        ):
            totals.objects += adds
            totals.size_bytes += assignment.bytes_left


def dry_run(
    task_class: type[AbstractSourceTask], config: SourceCommonConfig, found: Inspection | None = None
) -> DryRun:
    """List the bucket once and decide about each object.

    Args:
        task_class: the source.
        config: its configuration.
        found: its positions; this call consumes them. None: as if nothing had been read.

    Raises:
        SourceError: as in a run, for the bucket, a listing, or positions made with other options.
    """
    pending = found.state.positions.pending() if found is not None else ()
    begun = {key.whole(): f"{entry.bucket}/{entry.key}" for key, entry in pending if not entry.finished}
    context = SourceContext(config=config, offsets=_offsets(found), once=True)
    plan = DryRun()
    with iterator_of(task_class, context) as iterator:
        try:
            feed, prefixes = iterator.feed, sorted(iterator.prefixes)
            while not feed.finished:
                assignment = feed.take()
                if assignment is not None:
                    plan.add(assignment, prefixes)
                    begun.pop(assignment.entry.get_manager_key().whole(), None)
                    _finish(context.offsets, assignment.entry)
            counts = iterator.feed_counts
            if counts is not None:
                plan.listed, plan.filtered = counts.listed, dict(counts.filtered)
            plan.unselected = sorted(begun.values())
            plan.list_requests = iterator.statistics.list_requests
            return plan
        finally:
            iterator.leave()


def check_positions(task_class: type[AbstractSourceTask], config: SourceCommonConfig, found: Inspection) -> str | None:
    """Check that positions fit the configuration, as a start does before its first listing.

    Args:
        task_class: the source.
        config: its configuration.
        found: its positions; this call consumes them.

    Returns:
        Why a run stops at an object, if it still lists it in that version; None when it does not.

    Raises:
        PositionError: the selection changed so that positions can hide objects.
        SourceError: the store's, for a source that asks it first.
    """
    with iterator_of(task_class, SourceContext(config=config, offsets=_offsets(found), once=True)) as iterator:
        assert (
            iterator.feed is not None
        )  # made on first use, which binds the positions to the selection; it lists nothing
        iterator.leave()
        for _, entry in found.state.positions.pending():
            if entry.records_done and not entry.may_begin_again:
                try:
                    check_numbering(entry, iterator.numbering_options)
                except PositionMismatchError as error:
                    return str(error)
    return None


class _NoStore(OffsetStore):
    """Keeps nothing."""

    @override
    def load(self, keys: Iterable[OffsetManagerKey] | None = None) -> Iterator[OffsetManagerEntry]:
        return iter(())

    @override
    def save(self, delta: PositionDelta) -> None:
        pass


def _finish(offsets: OffsetManager, entry: OffsetManagerEntry) -> None:
    """Finish the position of a counted object: final ones are packed, and a listing may show millions."""
    offsets.store_begun()
    with offsets.table.lock:
        final = entry.advanced(entry.records_done, state=ObjectState.DONE).changed(records_saved=entry.records_done)
        offsets.table.positions[entry.get_manager_key()] = final


def _offsets(found: Inspection | None) -> OffsetManager:
    """Return a manager whose positions are never saved."""
    if found is None:
        return OffsetManager(_NoStore())
    # the watermark represents finished objects without positions: without it they would look new
    known_topics = {topic_partition.topic for topic_partition in found.state.anchors}
    return manager_of(found.state, _NoStore(), StartFacts(known_topics=known_topics))


def ending_of(key: str) -> str:
    """Return the suffix: `.jsonl` of `a/b.jsonl`, `.jsonl.gz` of `a/b.jsonl.gz`; empty when the name has none."""
    suffixes = PurePosixPath(key).suffixes
    if not suffixes:
        return ""
    packed = suffixes[-1].lower() in _CODECS and len(suffixes) > 1
    return "".join(suffixes[-2:] if packed else suffixes[-1:]).lower()


def folder_of(key: str, prefix: str) -> str:
    """Return the configured prefix and one level below: `events/2026/` of `events/2026/07/a.jsonl` below `events/`."""
    folder, slash, _ = key[len(prefix) :].partition("/")
    return f"{prefix}{folder}/" if slash else prefix
