"""A run that stands still: when it is worth a warning, and what its threads do meanwhile.

A listing or a format that never ends raises nothing. Where it stands shows in the stacks of the threads.
"""

from __future__ import annotations

import sys
import threading
import traceback

from framework.cli.progress_text import figures
from framework.engine.run_statistics import RunStatistics

STALL_SECONDS = 300.0
"""After so long without any change comes the first warning; each further one when it stands still twice as long."""

_MOVING_STATES = ("listing", "sending")


class StallWatch:
    """Watches the figures of a run.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: float) -> None:
        self._seen: tuple[object, ...] = ()
        self._since = now
        self._warn_after = STALL_SECONDS

    def standing(self, now: float, progress: RunStatistics) -> float | None:
        """Return for how many seconds nothing has changed, when a warning is due; else None.

        Only while it lists or sends: other states have waits of their own, and their own messages.
        """
        seen = (progress.state, progress.listings, progress.listed, *figures(progress))
        if seen != self._seen or progress.state not in _MOVING_STATES:
            self._seen, self._since, self._warn_after = seen, now, STALL_SECONDS
            return None
        standing = now - self._since
        if standing < self._warn_after:
            return None
        self._warn_after = 2 * standing
        return standing


def stacks() -> str:
    """Return where each thread of this process is, as text of several lines."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = ["The threads of a run that stands still:"]
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - the documented way to all threads
        parts.append(f"\nThread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame)).rstrip()}")
    return "\n".join(parts)
