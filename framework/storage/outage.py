"""Store outages: how long a continuous run waits for its store before it fails. Only the listing ends meanwhile.

A few objects that cannot be read while nothing else fails are no outage: they are tried again at each listing.

The wait is the same as for Iggy (`framework.engine.reconnect_policy`): five minutes, once the store has answered. A store
that has never answered in this run is most often misspelt, and the user is waiting: the run fails at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from framework.errors import RetriableError

log = logging.getLogger(__name__)

OUTAGE_SECONDS = 300.0
"""How long a source waits for its store to recover before it fails."""

MAX_BROKEN_OBJECTS = 10
"""Up to this many objects that fail to be read are broken themselves; beyond it, reading as a whole fails."""

PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Pauses between tries; each try has all the retries of a single call."""


@attrs.define
class _Trouble:
    began: float
    tries: int = 0
    until: float = 0.0
    objects: set[str] = attrs.field(factory=set)

    def add(self, location: str, now: float) -> None:
        if location and len(self.objects) <= MAX_BROKEN_OBJECTS:
            known = len(self.objects)
            self.objects.add(location)
            if known == MAX_BROKEN_OBJECTS < len(self.objects):
                self.began = now  # of the outage: those that were broken before have used nothing of its time

    @property
    def is_outage(self) -> bool:
        return not 0 < len(self.objects) <= MAX_BROKEN_OBJECTS


@attrs.define(eq=False, repr=False, slots=False)
class StoreOutage:
    """Tracker of failures of a store, for listing and reading separately. One thread writes; others may read.

    Args:
        where: the store, for messages.
        clock: monotonic seconds.

    Attributes:
        answered: whether any call has succeeded yet.
    """

    _where: str
    _clock: Callable[[], float] = attrs.field(default=time.monotonic, kw_only=True)
    _troubles: dict[str, _Trouble] = attrs.field(factory=dict, init=False)
    answered: bool = attrs.field(default=False, init=False)

    @property
    def away(self) -> bool:
        """Whether an operation failed and has not succeeded since."""
        return bool(self._troubles)

    @property
    def seconds_left(self) -> float:
        """Seconds during which the store should not be asked."""
        if not self._troubles:
            return 0.0
        return max(0.0, max(trouble.until for trouble in self._troubles.values()) - self._clock())

    def failed(self, doing: str, error: RetriableError, location: str = "") -> None:
        """Record that all tries of a call failed. Returns if it should be retried later: see `seconds_left`.

        Args:
            doing: `listing` or `reading`.
            error: the error of the last try.
            location: the object that could not be read.

        Raises:
            RetriableError: the error itself: the store has never answered, or the outage has lasted too long.
        """
        if not self.answered:
            raise error
        now = self._clock()
        trouble = self._troubles.get(doing)
        if trouble is None:
            trouble = self._troubles[doing] = _Trouble(now)
            log.warning(
                "%s: the store is away; %s waits for it, for %.0f seconds at most%s: %s",
                self._where,
                doing,
                OUTAGE_SECONDS,
                " unless it is only this object" if location else "",
                error,
            )
        trouble.add(location, now)
        if trouble.is_outage and now - trouble.began > OUTAGE_SECONDS:
            raise error
        trouble.until = now + PAUSES[min(trouble.tries, len(PAUSES) - 1)]
        trouble.tries += 1

    def works(self, doing: str) -> None:
        """Record a success."""
        self.answered = True
        trouble = self._troubles.pop(doing, None)
        if trouble is not None:
            log.warning(
                "%s: the store is back; %s goes on after %.0f seconds",
                self._where,
                doing,
                self._clock() - trouble.began,
            )
