"""Snapshots: the state, written part by part between other records, and the log truncated before it.

A snapshot is due when the log since the last snapshot has grown to the snapshot's size. So all snapshots together take
about as much as everything else. A change takes thirty times longer to load than a position in a snapshot, so with many
positions a sixteenth is enough: all snapshots together then take about 10 us and 270 bytes per object.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import attrs

from framework.iggy.offset_log import codec

if TYPE_CHECKING:
    from framework.iggy.offset_log.log import OffsetLog
    from framework.iggy.offset_log.records import SnapshotFooter
    from framework.offsets.position_view import PositionView

log = logging.getLogger(__name__)

SNAPSHOT_RECORDS = 1000
"""Minimum number of records between two snapshots, unless they are large."""

COMPACT_FROM = 10_000
"""Compactable positions that make a snapshot due when they are half of all: about 1 MB of memory."""

POSITION_BYTES = 45
"""Approximate bytes per position in the log."""

REPLAY_BYTES = 2 << 20
"""From this length a sixteenth of the snapshot's size is enough: about 70,000 changes, which load in two seconds."""

PAUSE_PARTS = 4
"""Pause after a part, in multiples of the part's duration."""

SHARED_BYTES = 100_000_000
"""Size from which a warning says that the log cannot be trimmed, because others write to its topic."""

SLACK_BYTES = 1 << 16


@attrs.define(eq=False, repr=False, slots=False)
class SnapshotWriter:
    """Writer of the snapshots of one epoch. Not thread-safe.

    Args:
        offset_log: the log.
        epoch: the leader's epoch.
        state: returns the whole state once everything before `offset_log.next_offset` is known.
        catch_up: applies records that other writers appended.
        count: returns the number of positions.
        since: offset after the last part of the previous snapshot; 0 without one.
        since_bytes: size of the log up to there.
        compactable: returns approximately how many positions the next snapshot would omit.
        clock: returns seconds.
    """

    _log: OffsetLog = attrs.field(alias="offset_log")
    _epoch: int
    _state: Callable[[], tuple[PositionView, SnapshotFooter]]
    _catch_up: Callable[[], object]
    _count: Callable[[], int]
    _since: int
    _since_bytes: int
    _compactable: Callable[[], int]
    _clock: Callable[[], float] = time.monotonic
    _number: int = attrs.field(default=0, init=False)
    _shared_reported: bool = attrs.field(default=False, init=False)
    _writing: Iterator[bytes] | None = attrs.field(default=None, init=False)
    _goes_on_at: float = attrs.field(default=0.0, init=False)

    def write(self) -> None:
        """Write a snapshot at once. Used at a start or an end, when no sender waits."""
        for _ in self._written():
            pass

    def advance(self) -> None:
        """Write at most one part of a snapshot that is due.

        Raises:
            UnknownOutcomeError, IggyUnavailableError: the connection broke. The incomplete snapshot does not count.
        """
        now = self._clock()
        if now < self._goes_on_at:
            return
        if self._writing is None:
            if not (self._is_large_enough() or self._is_worth_compacting()):
                return
            self._writing = self._written()
        if next(self._writing, None) is None:
            self._writing = None
            return
        self._goes_on_at = self._clock() + PAUSE_PARTS * (self._clock() - now)

    def _is_large_enough(self) -> bool:
        records, grown = self._log.next_offset - self._since, self._log.total_bytes - self._since_bytes
        if records < SNAPSHOT_RECORDS and grown < REPLAY_BYTES:
            return False
        size = POSITION_BYTES * self._count()
        return grown >= min(size, max(REPLAY_BYTES, size // 16))

    def _is_worth_compacting(self) -> bool:
        """Return whether at least half would go: so compacting snapshots never exceed all that was ever compacted."""
        count, compactable = self._count(), self._compactable()
        return compactable >= COMPACT_FROM and 2 * compactable >= count

    def _written(self) -> Iterator[bytes]:
        """Write a snapshot of the current state; yield each part that is written, before the next one is.

        Every confirmed record has been read by now, so positions of a later `begin` have no records yet.
        """
        self._number += 1
        self._catch_up()
        at = self._since = self._log.next_offset
        at_bytes = self._since_bytes = self._log.total_bytes
        positions, footer = self._state()
        for payload in codec.encode_snapshot(
            self._log.source, self._epoch, positions, footer, number=self._number, at=at
        ):
            self._log.append(payload)
            # it does not count for the next snapshot: with many positions it alone would make that due
            self._since_bytes += len(payload)
            self._since += 1
            yield payload
        before = self._log.total_bytes
        if self._log.foreign and before >= SHARED_BYTES and not self._shared_reported:
            self._shared_reported = True
            log.warning(
                'offsets topic "%s" of stream "%s" has %d MB, and nothing of it can be deleted, since others write to it, too: '
                "each start reads all of it. Give each source an [offsets] topic of its own",
                self._log.topic,
                self._log.stream,
                before // 1_000_000,
            )
        trim(self._log, at, at_bytes)
        self._since_bytes -= before - self._log.total_bytes  # sizes count from the present beginning of the log


def trim(offset_log: OffsetLog, needed: int, bytes_before: int) -> int:
    """Delete the log segments that surely end before an offset; return how many were requested.

    The server does not say which messages lie in which segment. A sealed segment holds at most its size and one more
    append. So the first n end before a message when more than n times that much lies before it. Does nothing if another
    source writes to the log, or if the segment size is unknown.

    Args:
        offset_log: the log.
        needed: the offset.
        bytes_before: size of the log before it; rather too small than too large.
    """
    if offset_log.foreign:
        return 0
    info = offset_log.connection.get_topic(offset_log.stream, offset_log.topic)
    if info is None or not isinstance(size := info.options.get("segment_size"), int):
        return 0
    # the first segment of the log may not be the original first: its size is bounded like any other's
    most = size + 2 * offset_log.largest_bytes + SLACK_BYTES
    count = min(bytes_before // most, info.partitions[0].segments_count - 1)
    if count < 1:
        return 0
    offset_log.connection.delete_segments(offset_log.stream, offset_log.topic, 0, count)
    offset_log.total_bytes -= count * most  # at least what was deleted
    log.debug("deleted %d segments of the offsets log, all before message %d", count, needed)
    return count
