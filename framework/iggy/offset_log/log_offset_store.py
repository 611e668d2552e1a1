"""The log as an `OffsetStore`: changes of an `OffsetManager` become `begin` and `progress` records."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import attrs
from typing_extensions import override

from framework.errors import IggyAuthError, IggyProtocolError
from framework.iggy.offset_log import codec, records
from framework.iggy.offset_log.lost_log import mark_of
from framework.iggy.offset_log.record_size import columns_of, divided, rows_of
from framework.iggy.offset_log.records import Progress, ProgressItem
from framework.model.message_ids import entry_hash64
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.offsets.manager import OffsetManager, StartFacts
from framework.offsets.offset_store import OffsetStore, PositionDelta

if TYPE_CHECKING:
    from framework.iggy.offset_log.log import OffsetLog
    from framework.iggy.offset_log.state import LogState


log = logging.getLogger(__name__)


def manager_of(state: LogState, store: OffsetStore | None = None, facts: StartFacts | None = None) -> OffsetManager:
    """Return a manager of a state's positions, which it changes; without a store they are never saved."""
    return OffsetManager(
        store,
        positions=state.positions,
        anchors=state.anchors,
        listings=state.listings,
        watermark=state.watermark,
        selected=state.selected,
        facts=facts,
        source=state.source,
    )


class LogOffsetStore(OffsetStore):
    """Store of one writer of an epoch. A start reads the whole log, so there is nothing to load.

    Args:
        offset_log: the log.
        state: state of the log, with the positions of the manager.
        epoch: the epoch.
        writer: token of the writer's claim.
        pipelined: records are sent by the log's own `IggyConnection`, behind the append in which their object begins: a
            begin need not be waited for.
    """

    def __init__(
        self, offset_log: OffsetLog, state: LogState, *, epoch: int, writer: str, pipelined: bool = False
    ) -> None:
        self._log = offset_log
        self._state = state
        self._epoch = epoch
        self._writer = writer
        self._pipelined = pipelined
        self._marked: set[str] = set()
        self._began, self._began_us = time.monotonic(), state.now_us

    @override
    def load(self, keys: Iterable[OffsetManagerKey] | None = None) -> Iterator[OffsetManagerEntry]:
        """Return nothing: see the class."""
        return iter(())

    def note_marked(self, topic: str) -> None:
        """Note that the topic already has the mark of this source."""
        self._marked.add(topic)

    @override
    def begin(self, delta: PositionDelta) -> None:
        """Append new positions.

        Raises:
            UnknownOutcomeError, IggyUnavailableError: they may or may not be there; recovery settles it.
        """
        payloads = divided(
            delta.begun,
            lambda entries: codec.encode_begin(self._log.source, self._epoch, entries, delta.selected),
            lambda entry: entry.split_number <= 1,  # the splits of an object begin in one record
        )
        if self._pipelined:
            begins = {(entry.bucket, entry.key) for entry in delta.begun}
            for payload in payloads:
                self._log.submit(payload, begins)
        else:
            for payload in payloads:
                self._log.append(payload)
            self._state.index(delta.begun)  # progress will refer to them

    @override
    def save(self, delta: PositionDelta) -> None:
        """Append progress.

        Raises:
            UnknownOutcomeError, IggyUnavailableError: it may or may not be there; recovery settles it.
        """
        self._mark({topic_partition.topic for topic_partition in delta.written})
        progress = Progress(
            items=[_item_of(self._log.source, entry) for entry in delta.entries],
            **{name: getattr(delta, name) for name in _SAVED},
        )
        for payload in self._progress(progress):
            self._log.append(payload)
        self._state.unindex_final(delta.entries, progress.items)
        self._state.apply_ends(delta, [entry.topic_partition for entry in delta.entries], self._writer)
        if delta.skipped:
            # by the server's clock, as a start finds it in the log: the local clock may be years off
            passed_us = int((time.monotonic() - self._began) * 1e6)
            self._state.count_skipped(max(self._state.now_us, self._began_us + passed_us), delta.skipped)

    def _progress(self, progress: Progress) -> Iterator[bytes]:
        """Yield the messages of progress, usually one.

        Counts come before anchors: a saved count covers no message that a crash can take, so it may be ahead of its
        partition's anchor, and a start that finds only the first parts reads the partition from the former anchor. What
        ends a partition comes after its anchor, which would reopen it. The last message has the rest.
        """
        rows = rows_of(progress, (*_LISTS, *_MAPS))

        def encode(part: Sequence[tuple[str, Any]]) -> bytes:
            rest = progress if part is rows or part[-1] is rows[-1] else Progress()
            changes = attrs.evolve(rest, **columns_of(part, _MAPS, _LISTS))
            return codec.encode_progress(self._log.source, self._epoch, self._writer, changes)

        return divided(rows, encode) if rows else iter([encode(rows)])

    def _mark(self, topics: Collection[str]) -> None:
        """Mark topics that this source has written, once each: a start then notices that a log is lost."""
        for topic in sorted(set(topics) - self._marked):
            self._marked.add(topic)
            try:
                self._log.connection.ensure_group(self._log.stream, topic, mark_of(self._log.source))
            except (IggyAuthError, IggyProtocolError) as error:  # not every user has the permission
                log.debug("no mark on topic %s: %s", topic, error)


def _item_of(source: str, entry: OffsetManagerEntry) -> ProgressItem:
    return ProgressItem(entry_hash64(source, entry), entry.split_number, *_counted(entry))


_counted = attrgetter(*records.COUNTED)
_LISTS = ("items", "removed")
_MAPS = ("anchors", "counted", "closed")
"""What of progress may be more than a record holds; it is stored in this order."""
_SAVED = [field.name for field in attrs.fields(Progress) if field.name != "items"]
