"""The store's clock beside this machine's: which of the two rules on the age of objects go by, so that none is hidden.

The store reports its time in each answer. Between answers this machine's monotonic clock carries it on, so a step of the
local clock changes nothing.
"""

from __future__ import annotations

import logging
import time

log = logging.getLogger(__name__)

CLOCKS_APART_MS = 3_600_000
"""Difference between the store's clock and this machine's above which a warning is logged."""


class StoreClock:
    """The clock of one store, as its answers report it; this machine's until the first.

    Args:
        place: the bucket as a URL, for the warning.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._offset: float | None = None  # from this machine's monotonic clock to the store's time
        self._compared = False

    @property
    def known(self) -> bool:
        """Whether the store has reported its time."""
        return self._offset is not None

    def set(self, server_time_ms: int) -> None:
        """Take over the time of an answer, in milliseconds since 1970."""
        self._offset = server_time_ms / 1000 - time.monotonic()

    def now(self) -> float:
        """Return seconds since 1970."""
        return time.time() if self._offset is None else time.monotonic() + self._offset

    def listing_start_ms(self, server_time_ms: int, began_monotonic: float) -> int:
        """Return a time that is not after the start of a listing, in milliseconds since 1970 by the store's clock.

        The store's clock or this machine's, whichever is earlier: an answer dated in the future, of a proxy or of a store
        whose clock is set back later, must not hide objects that come after it. A time that is too early hides nothing.
        Clocks that are hours apart are logged once.

        Args:
            server_time_ms: the time of the listing's first answer.
            began_monotonic: when the listing began, by this machine's monotonic clock, in seconds.
        """
        here_ms = int(time.time() * 1000)
        ahead_ms = server_time_ms - here_ms
        if abs(ahead_ms) > CLOCKS_APART_MS and not self._compared:
            self._compared = True
            log.warning(
                "%s: the store's clock is %.1f hours %s this machine's clock: one of them is wrong. Positions are "
                "compacted by the earlier one, so they may be kept for longer",
                self._place,
                abs(ahead_ms) / 3_600_000,
                "ahead of" if ahead_ms > 0 else "behind",
            )
        # the listing began before this request, so this is never later than its true start
        passed = time.monotonic() - began_monotonic
        return min(server_time_ms, here_ms) - int(passed * 1000) - 1
