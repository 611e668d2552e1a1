"""The positions of a source as its log tells them, read beside a source that may be running: no claim, nothing written."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import attrs

from framework.iggy.checkpoints import CheckpointLoader
from framework.iggy.position_log import PositionLog, arrange
from framework.offsets import position_map, settle_shares
from framework.records import Anchor, Lane, length_only
from framework.watermark import Watermark

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.iggy.client import IggyConnection
    from framework.iggy.log_codec import Claim, LogMessage
    from framework.past_listing import PastListing
    from framework.position_map import PositionMap
    from framework.reset import Reset


@attrs.frozen(kw_only=True)
class Inspection:
    """What a log says.

    Attributes:
        source: whose it is.
        topic: the offsets topic.
        as_of_ms: when it was read, by this machine's clock, milliseconds since 1970 UTC.
        entries: every position, as saved. What was sent since the last save is not in it: at most `commit_interval`.
        anchors: every known lane and its last accounted message.
        unclaimed: records found in the topics whose objects only a listing can name.
        listings: prefix -> what its last listing left.
        watermark: what stands for the finished objects that have no position any more.
        epoch: the last one that anybody claimed; 0 for an empty log.
        epochs: how many epochs began in what the log still holds.
        last_saved_us: when positions were last written, by the server's clock; 0 for never.
        log_messages: messages of this source in the log.
        log_bytes: their size.
        reset: with which the last epoch began, if with any: dead letters of it may not be marked yet.
        running: the claims of the last epochs whose connections the server lists now: who runs.
    """

    source: str
    topic: str
    as_of_ms: int
    entries: PositionMap = attrs.field(factory=position_map, repr=length_only)
    anchors: Mapping[Lane, Anchor | None] = attrs.field(factory=dict)
    unclaimed: Mapping[int, int] = attrs.field(factory=dict, repr=length_only)
    listings: Mapping[str, PastListing] = attrs.field(factory=dict, repr=length_only)
    watermark: Watermark = attrs.field(factory=Watermark)
    epoch: int = 0
    epochs: int = 0
    last_saved_us: int = 0
    log_messages: int = 0
    log_bytes: int = 0
    reset: Reset | None = None
    running: tuple[Claim, ...] = ()


def inspect(connection: IggyConnection, config: SourceCommonConfig) -> Inspection:
    """Reads the log of a source. Looks at no data topic: a start checks what the log says against them, this does not.

    Raises:
        PositionError: the log cannot be read.
    """
    source, topic = config.source.name, config.offsets_topic
    as_of_ms = int(time.time() * 1000)
    if connection.get_topic(config.iggy.stream, topic) is None:
        return Inspection(source=source, topic=topic, as_of_ms=as_of_ms)
    position_log = PositionLog(connection, stream=config.iggy.stream, topic=topic, source=source)
    size = _Size()
    view = arrange(size.measured(position_log.messages(), source), source)
    loader = CheckpointLoader(position_log, view.checkpoints)
    loader.accepted.update(loader.lanes)
    loaded = loader.load()
    settle_shares(loaded.entries)
    since = view.checkpoints[-1].epoch if view.checkpoints else 0
    listed = {(client.client_id, client.address) for client in connection.clients()}
    claims = [claim for _, claim in view.claims if claim.epoch >= since and listed.intersection(claim.clients)]
    return Inspection(
        source=source,
        topic=topic,
        as_of_ms=as_of_ms,
        entries=loaded.entries,
        anchors=loaded.anchors,
        unclaimed=loaded.unclaimed,
        listings=loaded.listings,
        watermark=loaded.watermark,
        epoch=view.last_epoch,
        epochs=len({checkpoint.epoch for checkpoint in view.checkpoints}),
        last_saved_us=size.last_saved_us,
        log_messages=size.messages,
        log_bytes=size.size_bytes,
        reset=loader.last_reset,
        running=tuple(sorted(claims, key=lambda claim: not claim.leader)),
    )


@attrs.define
class _Size:
    messages: int = 0
    size_bytes: int = 0
    last_saved_us: int = 0

    def measured(self, messages: Iterator[LogMessage | None], source: str) -> Iterator[LogMessage | None]:
        """The same, without the bodies: a log may hold more than memory does."""
        for message in messages:
            if message is None or message.source != source:
                yield None
                continue
            self.messages += 1
            self.size_bytes += len(message.body)
            if message.kind != "claim":
                self.last_saved_us = max(self.last_saved_us, message.timestamp_us)
            yield message if message.kind == "claim" else attrs.evolve(message, body=b"")
