"""The state at the end of a log: the newest complete snapshot, and every record from its offset on."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import Any

from framework.errors import PositionError
from framework.iggy.offset_log import codec, framing
from framework.iggy.offset_log.framing import LogMessage
from framework.iggy.offset_log.log import OffsetLog, RecordGoneError
from framework.iggy.offset_log.state import LogState

log = logging.getLogger(__name__)

LOADS = 5
"""Maximum of attempts: a running instance may complete a snapshot during a load, and delete what is before it."""


def load(offset_log: OffsetLog) -> LogState:
    """Read a log from its first message to its end.

    Bodies are re-read one by one, on demand: a log may exceed memory.

    Raises:
        PositionError: the log cannot be read, or its beginning is gone.
        IggyUnavailableError: the server cannot read the topic; or the connection broke.
    """
    for attempt in range(1, LOADS):
        try:
            return _load(offset_log)
        except RecordGoneError as error:
            log.debug("attempt %d to load the log: %s", attempt, error)
    return _load(offset_log)


def _load(offset_log: OffsetLog) -> LogState:
    offset_log.rewind()
    heads: list[LogMessage] = []
    snapshot_bytes = 0
    for message in offset_log.follow_to_end():
        heads.append(message.head)
        if message.header.get("last"):
            snapshot = newest_snapshot(heads)
            if snapshot and snapshot[-1].offset == message.offset:
                snapshot_bytes = offset_log.total_bytes
                at = snapshot[0].header["at"]
                # forget what the snapshot replaces: a log that others share is never truncated
                heads = [head for head in heads if head.offset >= at]
    snapshot = newest_snapshot(heads)
    if snapshot:
        state = _restore(offset_log, snapshot)
        at = state.snapshot_at = snapshot[0].header["at"]
        state.snapshot_end, state.snapshot_bytes = snapshot[-1].offset + 1, snapshot_bytes
    else:
        _check_front(offset_log, heads)
        state, at = LogState(source=offset_log.source), 0
    for message in offset_log.read(head for head in heads if head.offset >= at and head.kind != "snapshot"):
        state.apply(message)
    return state


def _check_front(offset_log: OffsetLog, heads: Sequence[LogMessage]) -> None:
    """Check that the log begins with the first leader's claim. Other writers may have written and deleted before it.

    A topic that was deleted and created again may begin with a late claim of a process that knew the old one. The
    epochs after it are higher, so the first opening belongs to a claim behind it. Such a topic still has its first
    message: a log whose first records were deleted can begin with the same records.
    """
    if not heads:
        return
    claims = list(itertools.takewhile(lambda head: head.kind == "claim", heads))
    after = heads[len(claims) : len(claims) + 1]
    if claims and claims[0].epoch == 1:
        (first,) = offset_log.read(claims[:1])
        if codec.decode_claim(first).leader:
            return
    if claims and offset_log.has_first_message():
        if not after:
            return
        if after[0].kind == "opening":
            (opening,) = offset_log.read(after)
            if codec.decode_opening(opening) > claims[0].offset:
                return
    raise PositionError(
        f'offsets topic "{offset_log.topic}" of stream "{offset_log.stream}": the first records of source "{offset_log.source}" '
        f"are gone, and no snapshot stands for them: it was purged, or dropped messages (message_expiry, max_topic_size). "
        f"{framing.WAY_OUT}"
    )


def newest_snapshot(heads: Sequence[LogMessage]) -> list[LogMessage]:
    """Return the parts of the newest complete snapshot whose epoch was not over when it was written; empty if none.

    A snapshot of a state behind itself is of a process that ran while the topic was purged: the log begins with it, and
    has lost that state's offset.
    """
    opened = 0
    begun: dict[tuple[int, int], list[LogMessage]] = {}
    newest = 0, 0
    for head in heads:
        if head.kind == "opening":
            opened = max(opened, head.epoch)
        elif head.kind == "snapshot" and head.epoch >= opened and head.header["at"] <= head.offset:
            name = head.epoch, head.header["number"]
            parts = begun.setdefault(name, [])
            if head.header["part"] == len(parts) + 1:
                parts.append(head)
            if parts and parts[-1].header.get("last"):
                newest = max(newest, name)
    return begun.get(newest, [])


def _restore(offset_log: OffsetLog, parts: Sequence[LogMessage]) -> LogState:
    state = LogState(source=offset_log.source)
    rows = [part for part in parts if part.header.get("rows")]
    if rows:
        packed = map(codec.decode_rows, offset_log.read(rows, ahead=1))
        tables, first = next(packed)
        with framing.shape_of(rows[0]):
            state.positions.load(
                tables, itertools.chain(first, itertools.chain.from_iterable(chunks for _, chunks in packed))
            )
    facts: list[dict[str, dict[Any, Any]]] = []
    for part in offset_log.read(parts[len(rows) :], ahead=1):
        with framing.shape_of(part):
            if part.header.get("facts"):
                facts.append(codec.decode_facts(part))
                continue
            for entry in codec.decode_entries(part):
                state.positions[entry.get_manager_key()] = entry
            if part.header.get("last"):
                state.restore(codec.decode_footer(part), part.epoch)
    for values in facts:
        state.add_facts(values)
    state.now_us = state.saved_us = parts[-1].timestamp_us
    return state
