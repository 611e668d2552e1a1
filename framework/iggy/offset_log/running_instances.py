"""Whether an instance of a source runs, as a standby sees it: from the log and the server's list of clients. Writes nothing.

The members of the lease's consumer group do not tell: a server that was restarted keeps members of connections that it
no longer has (measured on version 0.9).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from framework.iggy.offset_log import codec
from framework.iggy.offset_log.loading import load
from framework.iggy.offset_log.log import OffsetLog
from framework.iggy.offset_log.records import connected

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.iggy.connection import IggyConnection
    from framework.iggy.offset_log.records import Claim


class RunningInstances:
    """Looks for instances of a source over one connection, which makes no claim.

    Args:
        connection: an open connection.
        config: configuration of the source.

    Attributes:
        claimed_before: whether the source ever ran.
        load_seconds: how long it took to load the log; an instance that recovers needs as long before it claims.
    """

    def __init__(self, connection: IggyConnection, config: SourceCommonConfig) -> None:
        self._connection = connection
        self._config = config
        self._log: OffsetLog | None = None
        self._claims: list[Claim] = []
        self.claimed_before = False
        self.load_seconds = 0.0

    def look(self) -> Claim | None:
        """Return a claim whose connection the server lists, the leader's if there is one; None when no instance runs.

        Raises:
            PositionError: the log cannot be read.
            IggyUnavailableError: the connection broke.
        """
        if self._log is None:
            if self._connection.get_topic(self._config.iggy.stream, self._config.offsets_topic) is None:
                return None
            self._log = self._load()
        else:
            self._claims += [codec.decode_claim(message) for message in self._log.follow() if message.kind == "claim"]
        self.claimed_before |= bool(self._claims)
        # a connection that is gone never returns under its number, while this one lives
        self._claims = connected(self._claims, self._connection.clients())
        return min(self._claims, key=lambda claim: (not claim.leader, -claim.epoch), default=None)

    def _load(self) -> OffsetLog:
        """Read the log as far as it is; the positions in it are not kept."""
        began = time.monotonic()
        offset_log = OffsetLog.of(self._connection, self._config)
        state = load(offset_log)
        self._claims = list(state.claims.values())
        self.claimed_before = state.last_epoch > 0
        self.load_seconds = time.monotonic() - began
        return offset_log
