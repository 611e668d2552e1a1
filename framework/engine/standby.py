"""A standby: waits until no instance of the source runs, then lets this one begin.

It reads the offsets log and the list of clients, and changes nothing. An instance that is gone for a moment is not
ended: it may be reconnecting. So a standby waits until nothing was seen for some seconds, and longer after Iggy itself
was away. Whoever begins then is decided by the claim, as at any start: of two standbys one is refused, and waits on.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

import attrs

from framework.errors import IggyUnavailableError
from framework.iggy.offset_log.running_instances import RunningInstances

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.engine.reconnect_policy import ReconnectPolicy
    from framework.engine.reporter import Reporter
    from framework.iggy.connection import IggyConnection
    from framework.iggy.offset_log.records import Claim

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Interval between two looks."""

ABSENT_SECONDS = 3.0
"""How long nothing must be seen of an instance: longer than a reconnection takes while Iggy is there."""

RETURN_SECONDS = 12.0
"""The same after Iggy was away: the other instance tries to connect again every five seconds."""

LOADS = 2
"""Both are longer by so many times the time that loading the log takes: a recovery loads it before it claims."""


@attrs.define(eq=False, repr=False, slots=False)
class Standby:
    """Waits for the end of another instance.

    Args:
        config: configuration of the source.
        reporter: shows the state, and for whom it waits.
        stopping: set when the wait must end.
    """

    _config: SourceCommonConfig
    _reporter: Reporter
    _stopping: threading.Event = attrs.field(kw_only=True)
    _shown: str = attrs.field(default="", init=False)
    _was_away: bool = attrs.field(default=False, init=False)

    def watch(self, connection: IggyConnection, policy: ReconnectPolicy) -> bool:
        """Look until no instance runs; return whether this one may begin, which a stop prevents.

        Raises:
            SourceError: what would also end a start: the log cannot be read, or the connection broke.
        """
        try:
            instances = RunningInstances(connection, self._config)
            absent_since: float | None = None
            while not self._stopping.is_set():
                claim = instances.look()
                policy.reached()
                self._reporter.state = "standby"
                now = time.monotonic()
                if claim is not None:
                    self._show(claim)
                    absent_since, self._was_away = None, False
                else:
                    absent_since = now if absent_since is None else absent_since
                    if now - absent_since >= self._patience(instances):
                        log.info('standby: no instance of source "%s" runs; taking over', self._config.source.name)
                        self._reporter.waiting_for = self._shown = ""
                        return True
                self._stopping.wait(LOOK_SECONDS)
        except IggyUnavailableError:
            self._was_away = True
            raise
        return False

    def _patience(self, seen: RunningInstances) -> float:
        if not seen.claimed_before:
            return 0.0  # the source never ran
        return (RETURN_SECONDS if self._was_away else ABSENT_SECONDS) + LOADS * seen.load_seconds

    def _show(self, claim: Claim) -> None:
        who = f"the instance on {claim.who}"
        self._reporter.waiting_for = who
        if who != self._shown:
            self._shown = who
            log.info("standby, waiting for %s", who)
