"""What a person does to the positions of a source: an epoch of its own, so that nobody else writes meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from framework.engine.session import OFFSETS_SEGMENT_BYTES
from framework.iggy.position_log import PositionLog
from framework.iggy.recovery import Recovered, Recovery
from framework.iggy.stored_letters import void_letters
from framework.iggy.topics import ensure_topic
from framework.naming import Router

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.iggy.client import IggyConnection
    from framework.reset import Reset


def begin_epoch_by_hand(
    connection: IggyConnection, config: SourceCommonConfig, *, reset: Reset | None = None, accept: bool = False
) -> Recovered:
    """Claims, fences, recovers as a start does, changes the positions, and leaves them as the snapshot of a new epoch.

    All or nothing: before that snapshot is whole, nothing has happened. Dead letters of what was reset are marked after it, or,
    when it was killed in between, by whoever begins the next epoch.

    Args:
        connection: an open one, which the caller closes.
        config: of the source.
        reset: positions to forget.
        accept: take for done what positions call done where the messages are gone.

    Raises:
        SourceRunningError: the source is at work.
        PositionError: what a start says too, unless it is what this is the way out of.
        IggyTopicError: a topic is not as configured.
    """
    iggy = config.iggy
    ensure_topic(
        connection, iggy.stream, config.offsets_topic, 1, create=iggy.create_topics, segment_bytes=OFFSETS_SEGMENT_BYTES
    )
    fixed = Router(config).fixed_topic
    topics = [fixed] if fixed is not None and connection.get_topic(iggy.stream, fixed) is not None else []
    for topic in topics:
        ensure_topic(connection, iggy.stream, topic, iggy.partitions, create=False)
    position_log = PositionLog(connection, stream=iggy.stream, topic=config.offsets_topic, source=config.source.name)
    letters = config.errors.dead_letter_topic
    return Recovery(
        position_log,
        topics=topics,
        partitions=iggy.partitions,
        dead_letters=letters
        if letters is not None and connection.get_topic(iggy.stream, letters) is not None
        else None,
        reset=reset,
        accept=accept,
        on_reset=lambda done: void_letters(connection, config, done),
    ).run()
