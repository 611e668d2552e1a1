"""Dry run: the objects that a source would read next. Lists and decides like a run; reads, sends and writes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import attrs

from framework.offsets.manager import OffsetManager, StartFacts
from framework.offsets.store import MemoryOffsetStore
from framework.task import SourceContext, iterator_of

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.discovery.feed import Assignment
    from framework.engine.inspection import Inspection
    from framework.task import AbstractSourceTask

_CODECS = frozenset({".gz", ".gzip", ".zst", ".zstd", ".bz2", ".xz", ".snappy", ".sz"})


@attrs.define(kw_only=True)
class ObjectTotals:
    """A part of the objects to read.

    Attributes:
        objects: number of objects; each remaining split of a split object counts.
        size_bytes: their remaining bytes.
    """

    objects: int = 0
    size_bytes: int = 0


@attrs.frozen(kw_only=True)
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
        list_requests: requests that the listing took; the next takes about as many.
        get_requests: minimum of requests to read the objects: one each; formats that are read in pieces take more.
    """

    total: ObjectTotals
    begun: int
    endings: Mapping[str, ObjectTotals]
    topic_partitions: Mapping[str, ObjectTotals]
    prefixes: Mapping[str, ObjectTotals]
    listed: int
    filtered: Mapping[str, int]
    list_requests: int
    get_requests: int


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
    context = SourceContext(config=config, offsets=_offsets(found), once=True)
    tally = _Tally()
    with iterator_of(task_class, context) as iterator:
        try:
            feed = iterator.feed
            while not feed.finished:
                assignment = feed.take()
                if assignment is not None:
                    tally.add(assignment, iterator.prefixes)
            counts = iterator.feed_counts
            return tally.result(
                listed=counts.listed if counts is not None else 0,
                filtered=dict(counts.filtered) if counts is not None else {},
                list_requests=iterator.statistics.list_requests,
            )
        finally:
            iterator.leave()


def _offsets(found: Inspection | None) -> OffsetManager:
    """Return a manager whose positions are never saved."""
    if found is None:
        return OffsetManager()
    # the watermark represents finished objects without positions: without it they would look new
    store = MemoryOffsetStore()
    state = found.state
    store.listings.update(state.listings)
    offsets = OffsetManager(
        store,
        positions=state.positions,
        watermark=state.watermark,
        selected=state.selected,
        facts=StartFacts(known_topics={topic_partition.topic for topic_partition in state.anchors}),
    )
    offsets.populate_offset_manager()
    return offsets


@attrs.define
class _Tally:
    total: ObjectTotals = attrs.field(factory=ObjectTotals)
    begun: int = 0
    parts: tuple[dict[str, ObjectTotals], ...] = attrs.field(factory=lambda: ({}, {}, {}))

    def add(self, assignment: Assignment, prefixes: Sequence[str]) -> None:
        native, entry, size = assignment.native, assignment.entry, assignment.bytes_left
        self.begun += entry.records_done > 0
        configured = [prefix for prefix in prefixes if native.key.startswith(prefix)]
        names = (
            ending_of(native.key),
            str(entry.topic_partition),
            folder_of(native.key, configured[0] if configured else ""),
        )
        parts = [part.setdefault(name, ObjectTotals()) for part, name in zip(self.parts, names, strict=True)]
        for part in (self.total, *parts):
            part.objects += 1
            part.size_bytes += size

    def result(self, *, listed: int, filtered: Mapping[str, int], list_requests: int) -> DryRun:
        endings, topic_partitions, prefixes = self.parts
        return DryRun(
            total=self.total,
            begun=self.begun,
            endings=endings,
            topic_partitions=topic_partitions,
            prefixes=prefixes,
            listed=listed,
            filtered=Counter(filtered),
            list_requests=list_requests,
            get_requests=self.total.objects,
        )


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
