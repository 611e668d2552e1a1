"""Deletes what no recovery can need any more from the front of the log of positions: whole sealed segments.

    heads of the log -> the oldest snapshot that may be needed -> segments that end before it -> claims again -> delete

A start can step back to an older snapshot only because a server forgot confirmed messages. Of a topic that saves each message it
forgets none; of another one at most the last `messages_required_to_save` of each partition. So what is kept is the newest
snapshots, `KEPT_SNAPSHOTS` of them, and where a topic saves less often, all from the newest one on whose anchors lie so many
messages before those of the last one. What stands before the kept ones is read by nobody.

The server does not say which messages lie in which segment. A sealed segment holds at most its size and one more append; so the
first n segments surely end before a message when more than n times that lie before it.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

import attrs

from framework.iggy import log_codec
from framework.iggy.position_log import Checkpoint, LogView, PositionLog, arrange
from framework.skip_limits import HOUR_SECONDS

if TYPE_CHECKING:
    from framework.iggy.log_codec import Claim, Closing, LogMessage

log = logging.getLogger(__name__)

KEPT_SNAPSHOTS = 2

LEAST_SEGMENTS = 3
"""With fewer there is nothing worth a look: the last one is being written, the one before holds what is needed."""

DEFAULT_SAVED_TOGETHER = 1024
"""Messages that a topic of another maker may lose, when it does not say."""

SLACK_BYTES = 1 << 16

STEP_MESSAGES = 200
STEP_BYTES = 1 << 20
"""What is read of the log between two turns of the sender, about: some milliseconds."""


@attrs.define
class _Sizes:
    """What lies before each message of the log, in bytes of payload: less than what it takes in a segment."""

    before: dict[int, int] = attrs.field(factory=dict)
    total: int = 0
    largest: int = 0


def trim(position_log: PositionLog, *, epoch: int) -> int:
    """All of `trim_in_steps` at once, for a start: nobody waits to send then."""
    steps = trim_in_steps(position_log, epoch=epoch)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return int(end.value)


def trim_in_steps(position_log: PositionLog, *, epoch: int) -> Generator[None, None, int]:
    """Deletes the segments before what recovery can need. Returns how many were asked for.

    The log is read on from step to step, and may grow meanwhile; no other one may trim it.

    Nothing happens in a log that somebody else writes to as well, or whose segments are of unknown size.

    Args:
        position_log: the leader's.
        epoch: its own. Claims from the last snapshot's epoch on that would go are written again first: who fences looks for them.

    Raises:
        UnknownOutcomeError, IggyUnavailableError: the connection broke.
        PositionError: the log cannot be read.
    """
    info = position_log.connection.get_topic(position_log.stream, position_log.topic)
    segment_bytes = info.options.get("segment_size") if info is not None else None
    if info is None or info.partitions[0].segments_count < LEAST_SEGMENTS or not isinstance(segment_bytes, int):
        return 0
    sizes = _Sizes()
    heads = yield from _measured(position_log, sizes)
    view = arrange(heads, position_log.source)
    if view.foreign or len(view.checkpoints) <= KEPT_SNAPSHOTS:
        return 0
    needed = _first_needed(view.checkpoints[_oldest_needed(position_log, view.checkpoints)])
    since = view.now_us - HOUR_SECONDS * 1e6  # the limits of a start begin with what was left out from here on
    needed = min([needed, *(one.offset for one in heads if one and one.left_out and one.timestamp_us > since)])
    # the segment in which the log begins was perhaps not its first: its size is bounded as that of any other
    most = segment_bytes + 2 * sizes.largest + SLACK_BYTES
    count = sizes.before.get(needed, 0) // most
    if count < 1:
        return 0
    _claim_again(position_log, view, needed, epoch)
    position_log.connection.delete_segments(position_log.stream, position_log.topic, 0, count)
    log.debug("deleted %d segments of the log of positions, all before message %d", count, needed)
    return count


def _measured(position_log: PositionLog, sizes: _Sizes) -> Generator[None, None, list[LogMessage | None]]:
    heads: list[LogMessage | None] = []
    told = 0
    for message in position_log.messages():
        if (heads and len(heads) % STEP_MESSAGES == 0) or sizes.total - told >= STEP_BYTES:
            told = sizes.total
            yield
        if message is not None:
            sizes.before[message.offset] = sizes.total
            sizes.total += len(message.body)
            sizes.largest = max(sizes.largest, len(message.body))
        heads.append(message if message is None or message.kind == "claim" else attrs.evolve(message, body=b""))
    return heads


def _first_needed(checkpoint: Checkpoint) -> int:
    """The first message that a load from this snapshot reads."""
    deltas = [checkpoint.deltas[0].offset] if checkpoint.deltas else []
    return min([checkpoint.parts[0].offset, *deltas])


def _oldest_needed(position_log: PositionLog, checkpoints: Sequence[Checkpoint]) -> int:
    """The number of the oldest snapshot that a start may have to step back to."""

    def closing(at: int) -> Closing:
        return log_codec.decode_closing(next(position_log.read(checkpoints[at].parts[-1:])))

    last = closing(len(checkpoints) - 1)
    room: dict[str, int] = {}
    for topic in {lane.topic for lane in last.anchors}:
        info = position_log.connection.get_topic(position_log.stream, topic)
        together = info.messages_required_to_save if info is not None else None
        room[topic] = 0 if together == 1 else together or DEFAULT_SAVED_TOGETHER
    at = len(checkpoints) - KEPT_SNAPSHOTS
    while at > 0:
        for lane, anchor in closing(at).anchors.items():
            end = last.anchors.get(lane)
            if (
                room.get(lane.topic)
                and anchor is not None
                and (end is None or anchor.offset > end.offset - room[lane.topic])
            ):
                break
        else:
            return at
        at -= 1
    return 0


def _claim_again(position_log: PositionLog, view: LogView, needed: int, epoch: int) -> None:
    """Each once, and none that stays: with copies of copies their number would double every time."""
    since = min(epoch, view.checkpoints[-1].epoch)
    stays = {_identity(claim) for offset, claim in view.claims if offset >= needed}
    for offset, claim in view.claims:
        if offset < needed and claim.epoch >= since and _identity(claim) not in stays:
            stays.add(_identity(claim))
            position_log.append(log_codec.encode_claim(position_log.source, claim))


def _identity(claim: Claim) -> Claim:
    """The claim, whenever it was stored."""
    return attrs.evolve(claim, at_us=0)
