"""Whether an instance of a source runs, as a standby sees it: from the log and the server's list of clients. Writes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from framework.errors import IggyAuthError, IggyProtocolError
from framework.iggy.offset_log import codec
from framework.iggy.offset_log.epochs import lease_group
from framework.iggy.offset_log.loading import load
from framework.iggy.offset_log.log import OffsetLog

if TYPE_CHECKING:
    from framework.iggy.client import IggyConnection
    from framework.iggy.offset_log.codec import Claim


@attrs.frozen(kw_only=True)
class Sighting:
    """What a look found.

    Attributes:
        claim: a claim whose connection the server lists, the leader's if there is one; None without such a claim.
        starting: an instance is connected and has not claimed yet: it loads its positions.
        claimed_before: the log has a claim, of this or an earlier instance.
    """

    claim: Claim | None = None
    starting: bool = False
    claimed_before: bool = False

    @property
    def running(self) -> bool:
        """Whether an instance runs or starts."""
        return self.claim is not None or self.starting


class RunningInstances:
    """Looks for instances of a source over one connection. The connection joins no group and makes no claim.

    Args:
        connection: an open connection.
        stream: the stream's name.
        topic: the offsets topic.
        source: the source's name.
    """

    def __init__(self, connection: IggyConnection, *, stream: str, topic: str, source: str) -> None:
        self._connection = connection
        self._stream = stream
        self._topic = topic
        self._source = source
        self._log: OffsetLog | None = None
        self._claims: list[Claim] = []
        self._claimed_before = False

    def look(self) -> Sighting:
        """Return what is there now.

        Raises:
            PositionError: the log cannot be read.
            IggyUnavailableError: the connection broke.
        """
        if self._log is None:
            if self._connection.get_topic(self._stream, self._topic) is None:
                return Sighting()
            self._log = OffsetLog(self._connection, stream=self._stream, topic=self._topic, source=self._source)
            state = load(self._log)
            self._claims = list(state.claims.values())
            self._claimed_before = state.last_epoch > 0
        else:
            self._claims += [codec.decode_claim(message) for message in self._log.follow() if message.kind == "claim"]
        # in this order: an instance that claims between the two requests is seen by one of them
        starting = self._members() > 0
        listed = {(client.client_id, client.address) for client in self._connection.clients()}
        # a connection that is gone never returns under its number, while this one lives
        self._claims = [claim for claim in self._claims if claim.client in listed]
        self._claimed_before |= bool(self._claims)
        leaders = sorted(self._claims, key=lambda claim: (not claim.leader, -claim.epoch))
        return Sighting(claim=leaders[0] if leaders else None, starting=starting, claimed_before=self._claimed_before)

    def _members(self) -> int:
        try:
            return self._connection.group_members(self._stream, self._topic, lease_group(self._source))
        except (IggyAuthError, IggyProtocolError):  # the embedded server has no groups; or this user may not see them
            return 0
