"""How long a run tries to go on after its work broke off, and when it gives up.

Three limits. Iggy may be away for five minutes, from its first answer on: a start whose recovery breaks off is no different
from a run that does. A server that has never answered has some seconds, as it takes to restart one: what is wrong then is most
often its address, and a person waits to hear it. And a break that comes again and again while nothing gets any further has a
cause that does not go away by itself, such as a worker that runs out of memory over one object: that ends soon.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from framework.errors import FatalError

if TYPE_CHECKING:
    from framework.errors import IggyUnavailableError

RECONNECT_SECONDS = 300.0
"""How long a source waits for Iggy to come back before it gives up."""

FIRST_ANSWER_SECONDS = 3.0
"""The same for a server that has never answered this process, from the start on."""

RECONNECT_PAUSES = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0)

FRUITLESS_RECOVERIES = 5
"""So often in a row work may break off without any record or object having got further since the last time."""


@attrs.frozen
class WorkDone:
    """What a run had done when its work broke off.

    Attributes:
        count: grows with every confirmed record and every finished object.
        idle: everything that is known of was done, so the break came from elsewhere.
    """

    count: int
    idle: bool


class Patience:
    """Counts the breaks of one run. One thread.

    Args:
        work_done: the run's figures as of now.
        first_answer_seconds: how long to wait for a server that has not answered yet, from now on.
        clock: seconds.

    Attributes:
        began: there was a recovery that went well.
        at_work: work goes on since the last one.
        answered: the server has let this process in.
    """

    def __init__(
        self,
        work_done: Callable[[], WorkDone],
        *,
        first_answer_seconds: float = FIRST_ANSWER_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._work_done = work_done
        self._first_answer_until = clock() + first_answer_seconds
        self._clock = clock
        self._lost_at: float | None = None
        self._tries = 0
        self._fruitless = 0
        self._before = 0
        self._stored: int | None = None
        self.at_work = False
        self.began = False
        self.answered = False

    def connected(self, stored: int) -> None:
        """A recovery went well, and work begins.

        Args:
            stored: records that it found stored, over all objects. More than the last time means that something got
                further, even if nobody could tell of it before the break.
        """
        if self._stored is not None and stored > self._stored:
            self._fruitless = 0
        self._stored = stored
        self._before = self._work_done().count
        self.answered = self.began = self.at_work = True
        self._lost_at, self._tries = None, 0

    def broke(self, error: IggyUnavailableError) -> float:
        """Work broke off, or a connection did not come about. Returns the seconds to wait before the next one.

        Raises:
            IggyUnavailableError: the error itself: Iggy is away for too long.
            FatalError: nothing gets any further.
        """
        if self.at_work:
            self.at_work = False
            self._lost_at = self._clock()
            done = self._work_done()
            self._fruitless = 0 if done.idle or done.count > self._before else self._fruitless + 1
            if self._fruitless > FRUITLESS_RECOVERIES:
                raise FatalError(
                    f"gave up after {FRUITLESS_RECOVERIES} recoveries in a row in which no record got further; the last "
                    f"time it broke off with: {error}"
                ) from error
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
