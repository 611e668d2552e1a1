"""When the leader writes a snapshot, and how: part by part between deltas, so that nothing waits for millions of positions.

A snapshot is due when the deltas since the last one have become as large as itself. So all snapshots together are about as
large as all deltas, whatever the number of objects, and a start reads about twice what a snapshot takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from framework.iggy import log_codec

if TYPE_CHECKING:
    from framework.iggy.log_codec import Closing
    from framework.iggy.position_log import PositionLog
    from framework.offsets import PositionDelta
    from framework.position_map import PositionView

SNAPSHOT_DELTAS = 1000
"""Deltas between two snapshots, at least."""

FOLD_FROM = 10_000
"""So many positions that can be folded make a snapshot due, when they are half of all: some 1 MB of memory."""

SETTLE_SECONDS = 10.0
"""How long the leader waits until it knows every delta of others that stands in the log: a pipe brings them in milliseconds."""

PAUSE_PARTS = 4
"""After a part everything else has so many times its duration."""


class SnapshotWriter:
    """Writes the snapshots of one epoch but the first. One thread.

    Attributes:
        others_write: whether deltas of other processes are in the log, which the leader learns of a little later.

    Args:
        position_log: the log.
        epoch: the leader's.
        state: the whole state of a moment.
        count: how many positions there are, about.
        on_appended: told of the offset of each part.
        on_complete: told of each snapshot that is whole, a little later.
        foldable: how many of them the next snapshot would be without, about.
        clock: seconds.
    """

    def __init__(
        self,
        position_log: PositionLog,
        *,
        epoch: int,
        state: Callable[[], tuple[PositionView, Closing]],
        count: Callable[[], int],
        on_appended: Callable[[int], None] = lambda _: None,
        on_complete: Callable[[], None] = lambda: None,
        foldable: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.others_write = False
        self._log = position_log
        self._epoch = epoch
        self._state = state
        self._count = count
        self._on_appended = on_appended
        self._on_complete = on_complete
        self._foldable = foldable
        self._clock = clock
        self._deltas = 0
        self._bytes = 0
        self._since: int | None = None
        self._begins_at = 0.0
        self._parts: Iterator[bytes] | None = None
        self._goes_on_at = 0.0

    def saved(self, delta: PositionDelta) -> None:
        """A delta stands in the log, and in the leader's positions."""
        self._deltas += 1
        self._bytes += log_codec.delta_bytes(delta)

    def advance(self) -> None:
        """Does a little of what is due: one part at most.

        Raises:
            UnknownOutcomeError, IggyUnavailableError: the connection broke. What was written of a snapshot counts for nothing.
        """
        now = self._clock()
        if now < self._goes_on_at:
            return
        if self._parts is None:
            self._parts = self._begin(now)
            if self._parts is None:
                return
        payload = next(self._parts, None)
        if payload is None:
            self._parts = None
            self._on_complete()
            return
        self._on_appended(self._log.append(payload))
        self._goes_on_at = self._clock() + PAUSE_PARTS * (self._clock() - now)

    def _is_large_enough(self) -> bool:
        return self._deltas >= SNAPSHOT_DELTAS and self._bytes >= log_codec.positions_bytes(self._count())

    def _is_worth_folding(self) -> bool:
        """What goes is as much as what stays: so all snapshots that fold are no larger than what was ever folded."""
        return (
            self._count() >= FOLD_FROM and (foldable := self._foldable()) >= FOLD_FROM and 2 * foldable >= self._count()
        )

    def _begin(self, now: float) -> Iterator[bytes] | None:
        if self._since is None:
            if not (self._is_large_enough() or self._is_worth_folding()):
                return None
            # what stands in the log now will be in the snapshot, what comes from now on counts beside it
            self._since = self._log.end()
            self._begins_at = now + (SETTLE_SECONDS if self.others_write else 0.0)
            self._deltas = self._bytes = 0
        if now < self._begins_at:
            return None
        since, self._since = self._since, None
        positions, closing = self._state()
        return log_codec.encode_snapshot(self._log.source, self._epoch, positions, closing, since=since)
