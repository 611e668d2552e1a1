"""Reconnect policy: how long a run recovers after its work broke off, and when it fails.

There are three limits. Iggy may be away for five minutes, once it has answered, in one piece or in several between which
no record got further, also for processes that send while this one reaches it. A server that has never answered gets some
seconds, enough for a restart: most often its address is wrong, and the user is waiting. Repeated breaks of a send without
progress, or of a worker that runs out of memory over one object, do not resolve by themselves: the run fails soon.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from framework.errors import EXIT_PERSON, FatalError, UnknownOutcomeError

if TYPE_CHECKING:
    from framework.errors import IggyUnavailableError

log = logging.getLogger(__name__)

RECONNECT_SECONDS = 300.0
"""How long a source waits for Iggy to recover before it fails."""

FIRST_ANSWER_SECONDS = 3.0
"""Limit for a server that has never answered this process, from the start on; `[iggy] startup_timeout` overrides it."""

RECONNECT_PAUSES = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0)

FRUITLESS_RECOVERIES = 5
"""Maximum number of breaks without progress in a row: in a send, by the end of a process, or by a full disk."""


_SIZE_ADVICE = (
    ". If the connection breaks at every send, the server (message_bus.max_message_size) or a proxy may refuse requests of that "
    "size: lower [iggy] batch_bytes, or [input] max_record_bytes for a single large record"
)
"""A real server ends the connection then, and says nothing."""


@attrs.frozen
class WorkDone:
    """Work of a run up to a break.

    Attributes:
        count: grows with every confirmed record and every finished object.
        idle: all known work was done, so the break has another cause.
    """

    count: int
    idle: bool


@attrs.define(eq=False, repr=False, slots=False)
class ReconnectPolicy:
    """Counts the breaks of one run. Not thread-safe.

    Args:
        work_done: returns the run's current figures.
        first_answer_seconds: how long to wait for a server that has not answered yet, from now on.
        clock: returns seconds.

    Attributes:
        began: whether a recovery has succeeded.
        at_work: whether work is in progress since the last recovery.
        answered: whether the server has accepted this process.
    """

    _work_done: Callable[[], WorkDone]
    _first_answer_seconds: float = attrs.field(default=FIRST_ANSWER_SECONDS, kw_only=True)
    _clock: Callable[[], float] = attrs.field(default=time.monotonic, kw_only=True)
    _lost_at: float | None = attrs.field(default=None, init=False)
    _tries: int = attrs.field(default=0, init=False)
    _fruitless: int = attrs.field(default=0, init=False)
    _fruitless_counted: int = attrs.field(default=0, init=False)
    _fruitless_seconds: float = attrs.field(default=0.0, init=False)
    _before: int = attrs.field(default=0, init=False)
    _stored: int | None = attrs.field(default=None, init=False)
    at_work: bool = attrs.field(default=False, init=False)
    began: bool = attrs.field(default=False, init=False)
    answered: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._first_answer_until = self._clock() + self._first_answer_seconds

    def connected(self, stored: int) -> None:
        """Note that a recovery succeeded and work begins.

        Args:
            stored: number of records that it found stored, over all objects. More than the last time means progress,
                even if it was not reported before the break.
        """
        if self._stored is not None and stored > self._stored:
            self._begin_count()
        self._stored = stored
        self._before = self._work_done().count
        self.began = self.at_work = True
        self.reached()

    def _begin_count(self) -> None:
        self._fruitless = self._fruitless_counted = 0
        self._fruitless_seconds = 0.0

    def reached(self) -> None:
        """Note that the server answers, also while this process only waits for its turn."""
        self.answered = True
        if self._lost_at is not None:
            what = "Iggy is back" if self._tries else "work goes on"
            seconds = self._clock() - self._lost_at
            self._fruitless_seconds += seconds
            log.warning("%s, after %.1f seconds", what, seconds)
        self._lost_at, self._tries = None, 0

    def broke(self, error: IggyUnavailableError) -> float:
        """Note that work broke off, or a connection failed. Return the seconds to wait before the next attempt.

        Raises:
            IggyUnavailableError: the error itself: Iggy is away for too long.
            FatalError: there is no progress.
        """
        if self.at_work:
            self.at_work = False
            self._lost_at = self._clock()
            done = self._work_done()
            # in a send, or by the end of a process that may have sent; or the server's disk is full
            in_send, full = isinstance(error, UnknownOutcomeError), error.exit_code == EXIT_PERSON
            counted = in_send or full
            if done.idle or done.count > self._before:
                self._begin_count()
            else:
                self._fruitless += 1
                self._fruitless_counted += counted
            if self._fruitless_counted > FRUITLESS_RECOVERIES:
                advice = _SIZE_ADVICE if in_send and not full else ""
                raise FatalError(
                    f"gave up after {FRUITLESS_RECOVERIES} recoveries in a row in which no record got further; the last "
                    f"time it broke off with: {error}{advice}"
                ) from error
            if not counted and self._fruitless_seconds > RECONNECT_SECONDS:
                raise error
            return _pause(max(0, self._fruitless - 1))
        now = self._clock()
        if not self.answered and now >= self._first_answer_until:
            raise error
        if self._lost_at is None:
            self._lost_at = now
        if now - self._lost_at > RECONNECT_SECONDS:
            raise error
        self._tries += 1
        pause = _pause(self._tries - 1)
        return pause if self.answered else min(pause, self._first_answer_until - now)


def _pause(number: int) -> float:
    return RECONNECT_PAUSES[min(number, len(RECONNECT_PAUSES) - 1)]
