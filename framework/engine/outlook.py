"""What the next pass of a source would read: listed and decided as a run does it, and nothing read, sent or written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import attrs

from framework.ids import object_hash64
from framework.offsets import MemoryOffsetStore, OffsetManager
from framework.task import iterator_of

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.engine.inspection import Inspection
    from framework.feed import Assignment
    from framework.records import NativeObject
    from framework.task import AbstractSourceTask

_CODECS = frozenset({".gz", ".gzip", ".zst", ".zstd", ".bz2", ".xz", ".snappy", ".sz"})


@attrs.define(kw_only=True)
class Part:
    """A part of what is to be read.

    Attributes:
        objects: how many; of a split object each share that is left counts.
        size_bytes: what is left of them.
    """

    objects: int = 0
    size_bytes: int = 0


@attrs.frozen(kw_only=True)
class Outlook:
    """What a pass would read.

    Attributes:
        total: everything.
        begun: of it, objects that were begun before.
        endings: by the ending of the name, `.jsonl.gz`; empty for a name without.
        lanes: by lane.
        prefixes: by folder: the configured prefix and one level more.
        listed: objects that the listing showed.
        left_out: reason -> objects that the filters left out.
        list_requests: requests that it took to find them; the next pass takes about as many.
        get_requests: requests that reading them takes at least: one for each; formats that are read in pieces take more.
    """

    total: Part
    begun: int
    endings: Mapping[str, Part]
    lanes: Mapping[str, Part]
    prefixes: Mapping[str, Part]
    listed: int
    left_out: Mapping[str, int]
    list_requests: int
    get_requests: int


def look_ahead(
    task_class: type[AbstractSourceTask], config: SourceCommonConfig, found: Inspection | None = None
) -> Outlook:
    """Lists the bucket once and decides about each object.

    Args:
        task_class: the source.
        config: its configuration.
        found: its positions; they are given away. None: as if nothing had been read.

    Raises:
        SourceError: what a run would say about the bucket, a listing, or positions that were made with other options.
    """
    task = task_class()
    task.config, task.offsets, task.once = config, _offsets(config, found), True
    tally = _Tally()
    with iterator_of(task) as iterator:
        try:
            feed = iterator.feed
            while not feed.finished:
                assignment = feed.take()
                if assignment is not None:
                    tally.add(assignment, iterator.prefixes)
            counts = iterator.feed_counts
            return tally.outlook(
                listed=counts.listed if counts is not None else 0,
                left_out=dict(counts.left_out) if counts is not None else {},
                list_requests=iterator.counts.list_requests,
            )
        finally:
            iterator.leave()


def _offsets(config: SourceCommonConfig, found: Inspection | None) -> OffsetManager:
    """Positions that nobody saves."""
    if found is None:
        return OffsetManager()
    # the watermark stands for finished objects without positions: without it they would look new

    def records_found(native: NativeObject) -> int:
        if not found.unclaimed:
            return 0
        hashed = object_hash64(config.source.name, native.bucket, native.key, native.version)
        return found.unclaimed.get(hashed, 0)

    store = MemoryOffsetStore()
    store.listings.update(found.listings)
    offsets = OffsetManager(store, positions=found.entries, records_found=records_found, watermark=found.watermark)
    offsets.populate_offset_manager()
    return offsets


@attrs.define
class _Tally:
    total: Part = attrs.field(factory=Part)
    begun: int = 0
    parts: tuple[dict[str, Part], ...] = attrs.field(factory=lambda: ({}, {}, {}))

    def add(self, assignment: Assignment, prefixes: Sequence[str]) -> None:
        native, entry, size = assignment.native, assignment.entry, assignment.bytes_left
        self.begun += entry.records_done > 0
        configured = [one for one in prefixes if native.key.startswith(one)]
        names = ending_of(native.key), str(entry.lane), folder_of(native.key, configured[0] if configured else "")
        parts = [part.setdefault(name, Part()) for part, name in zip(self.parts, names, strict=True)]
        for part in (self.total, *parts):
            part.objects += 1
            part.size_bytes += size

    def outlook(self, *, listed: int, left_out: Mapping[str, int], list_requests: int) -> Outlook:
        endings, lanes, prefixes = self.parts
        return Outlook(
            total=self.total,
            begun=self.begun,
            endings=endings,
            lanes=lanes,
            prefixes=prefixes,
            listed=listed,
            left_out=Counter(left_out),
            list_requests=list_requests,
            get_requests=self.total.objects,
        )


def ending_of(key: str) -> str:
    """`.jsonl` of `a/b.jsonl`, `.jsonl.gz` of `a/b.jsonl.gz`; empty when the name has none."""
    suffixes = PurePosixPath(key).suffixes
    if not suffixes:
        return ""
    packed = suffixes[-1].lower() in _CODECS and len(suffixes) > 1
    return "".join(suffixes[-2:] if packed else suffixes[-1:]).lower()


def folder_of(key: str, prefix: str) -> str:
    """The configured prefix and one level below it: `events/2026/` of `events/2026/07/a.jsonl` below `events/`."""
    folder, slash, _ = key[len(prefix) :].partition("/")
    return f"{prefix}{folder}/" if slash else prefix
