"""What happened to a lane whose last confirmed message is not there any more: a crash, retention, or somebody's hand.

Measured on Iggy 0.9 (docs/explanation/positions.md has the table): a purge begins the offsets again at 0 and keeps the topic's
id; deleted segments and retention take messages from the front and never the offsets behind them; a killed server forgets the
last messages, at most as many as the topic lets it keep in memory.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import attrs

from framework.errors import IggyAuthError, IggyProtocolError, PositionError

if TYPE_CHECKING:
    from framework.iggy.client import IggyConnection
    from framework.iggy.values import PartitionInfo, TopicInfo
    from framework.records import Anchor, Lane

log = logging.getLogger(__name__)

MAX_STEP_BACK = 100_000
"""A tail longer than this was not lost in a crash, even where the messages before it are the same."""

USUAL_MESSAGES_REQUIRED_TO_SAVE = 1024
"""What a server takes for a topic that does not say it: so many confirmed messages can be in memory only."""

START_RESOLUTION_US = 3_000_000
"""How much earlier than it was a server may tell its start. A real one adds the machine's start and its own age at that, both in
whole seconds and rounded down: up to 2 s (seen: 1.28). The rest is for clocks that were set."""

WAYS_OUT = (
    "To read everything again: `offsets reset --all`. To go on, and leave as done what was done: `offsets accept`"
)


class LaneGoneError(PositionError):
    """The messages of a lane were taken away by hand; a `PositionError` that knows the lane.

    Attributes:
        lane: whose messages are gone.
    """

    def __init__(self, message: str, lane: Lane) -> None:
        super().__init__(message)
        self.lane = lane


def end_of(partition: PartitionInfo) -> int:
    """The offset that the next message will get. One that was emptied keeps its offsets; after a purge it is 0."""
    return partition.current_offset + 1 if partition.messages_count or partition.current_offset else 0


def emptied(partition: PartitionInfo, offset: int) -> bool:
    """Whether a message at that offset was there and fell to retention or to deleted segments, with all others."""
    return not partition.messages_count and end_of(partition) > offset


@attrs.define
class LaneHistory:
    """Judges lanes of one stream, by what the server shows now. One use, one thread.

    Args:
        connection: an open one.
        stream: of the lanes.
        source: the source's name, for messages.
    """

    connection: IggyConnection
    stream: str
    source: str
    _topics: dict[str, TopicInfo | None] = attrs.field(factory=dict, init=False)
    _started_us: float | None = attrs.field(default=None, init=False)

    def partition(self, lane: Lane) -> PartitionInfo | None:
        """The lane as the server describes it; None when it is not there."""
        if lane.topic not in self._topics:
            self._topics[lane.topic] = self.connection.get_topic(self.stream, lane.topic)
        info = self._topics[lane.topic]
        return next((one for one in info.partitions if one.id == lane.partition), None) if info is not None else None

    def check_crash(self, lane: Lane, last: Anchor, *, named_at_us: int, same_history: bool) -> None:
        """Accepts what a crash can do to a lane, and nothing else.

        Args:
            lane: whose messages are missing.
            last: its last confirmed message, which is not there.
            named_at_us: when the log was told of that one, by the server's clock: it was there then. What the log was told later
                says nothing: that may come from another task, whose connection began after the server had.
            same_history: whether an earlier message of ours was seen at its place: then only the end is missing.

        Raises:
            LaneGoneError: it was no crash.
        """
        partition = self.partition(lane)
        end = end_of(partition) if partition is not None else 0
        place = f'partition {lane.partition} of topic "{lane.topic}"'
        if same_history or (end and self._holds_older(lane, named_at_us)):
            lost = last.offset + 1 - end
            if lost <= 0 and not self.connection.poll(
                self.stream, lane.topic, lane.partition, offset=last.offset, count=1
            ):
                raise PositionError(
                    f"{place} ends at offset {end - 1} by the server's own account, but what it confirmed at offset "
                    f"{last.offset} cannot be read: the server's files of it are damaged, as a kill can do, and what is sent "
                    f"there now would be lost to every reader. Mend or restore them on the server; or write to another topic: "
                    f"change [iggy] topic, then `offsets reset --all`"
                )
            if lost > MAX_STEP_BACK:
                raise LaneGoneError(
                    f'{place} ends {lost:,} messages before the last one that source "{self.source}" had confirmed: no crash '
                    f"loses so many, so it was cut, or restored from an old backup. {WAYS_OUT}",
                    lane,
                )
            return
        if not self._restarted_since(named_at_us):
            why = "and the server has been up all the time"
        elif last.offset < self._most_in_memory(lane):
            log.warning(
                "%s %s after a restart of Iggy, and a topic that does not save each message can lose %d in a crash: they are sent "
                "again. If the topic was purged, and they are not to come again, stop the source and run `offsets accept`; "
                "`offsets reset` reads again what is not missed here",
                place,
                "holds none of our messages" if end else "is empty",
                last.offset + 1,
            )
            return
        else:
            why = "and no crash takes all of so many"
        now = "others are in their place now" if end else "its offsets begin at 0 again"
        raise LaneGoneError(
            f'{place} was purged since source "{self.source}" last ran: {last.offset + 1:,} messages are gone, {why}; {now}. '
            f"{WAYS_OUT}",
            lane,
        )

    def _holds_older(self, lane: Lane, at_us: int) -> bool:
        """Whether it holds a message from before that time, when the last one was there: a purge would have taken both."""
        first = self.connection.poll(self.stream, lane.topic, lane.partition, offset=0, count=1)
        return bool(first) and first[0].timestamp_us <= at_us

    def _most_in_memory(self, lane: Lane) -> int:
        """How many confirmed messages can have been in the server's memory only when it died."""
        info = self._topics.get(lane.topic)
        return (info.messages_required_to_save if info is not None else None) or USUAL_MESSAGES_REQUIRED_TO_SAVE

    def _restarted_since(self, at_us: int) -> bool:
        """Whether the server may have begun after that time; a server that never died forgot nothing."""
        if self._started_us is None:
            try:
                self._started_us = self.connection.server_started_us()
            except (IggyAuthError, IggyProtocolError):  # this user may not ask
                self._started_us = math.inf
        return self._started_us + START_RESOLUTION_US > at_us
