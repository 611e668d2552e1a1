"""The positions of a source, read from its log while the source may be running: no claim, nothing written."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import attrs

from framework.engine.topic_checks import check_log, check_topics
from framework.errors import PositionError
from framework.iggy.offset_log.loading import load
from framework.iggy.offset_log.log import OffsetLog
from framework.iggy.offset_log.lost_partitions import data_topics
from framework.iggy.offset_log.partition_replay import PartitionReader
from framework.iggy.offset_log.records import connected
from framework.iggy.offset_log.state import LogState

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.iggy.connection import IggyConnection
    from framework.iggy.offset_log.records import Claim

log = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class Inspection:
    """The contents of a log.

    Attributes:
        topic: the offsets topic.
        as_of_ms: when it was read, by this machine's clock, milliseconds since 1970 UTC.
        state: the state at its end, as saved. Excludes what was sent since the last save: at most `commit_interval`.
        log_messages: messages of this source in the log.
        log_bytes: their size.
        running: claims whose connections the server lists now: the running instances.
    """

    topic: str
    as_of_ms: int
    state: LogState
    log_messages: int
    log_bytes: int
    running: tuple[Claim, ...]


def inspect(connection: IggyConnection, config: SourceCommonConfig, *, check: bool = False) -> Inspection:
    """Read the log of a source. Log a warning when it was lost.

    Args:
        connection: an open connection.
        config: configuration of the source.
        check: also check, as a start does, that the topics hold what the log counts on; not beside a running
            instance, which moves on meanwhile.

    Raises:
        PositionError: the log cannot be read; or a topic was deleted, purged or recreated.
    """
    topic = config.offsets_topic
    as_of_ms = int(time.time() * 1000)
    offset_log = OffsetLog.of(connection, config)
    found = connection.get_topic(config.iggy.stream, topic) is not None
    state = load(offset_log) if found else LogState(source=config.source.name)
    claims = connected(state.claims.values(), connection.clients()) if found else []
    if check and not claims:
        _check(connection, config, state)
    elif not check:
        try:
            check_log(connection, config, state)
        except PositionError as error:  # the commands show what there is, and the next start ends with it
            log.warning("%s", error)
    return Inspection(
        topic=topic,
        as_of_ms=as_of_ms,
        state=state,
        log_messages=offset_log.messages,
        log_bytes=offset_log.total_bytes,
        running=tuple(sorted(claims, key=lambda claim: not claim.leader)),
    )


def _check(connection: IggyConnection, config: SourceCommonConfig, state: LogState) -> None:
    """Check the topics against the log. Reads a message of each partition.

    Raises:
        PositionError: they do not match; the message names the ways out.
    """
    check_topics(connection, config, state)
    stream = config.iggy.stream
    reader = PartitionReader(connection, stream, state)
    topics = data_topics(connection, stream, state)
    for topic_partition in sorted(state.partitions):
        info = topics[topic_partition.topic]
        if info is not None:
            reader.check(topic_partition, info)
