"""Checks of topics that keys name, before an object is read, so that only that object fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from framework.errors import IggyUnavailableError
from framework.iggy.dead_letters.topic import LETTER
from framework.iggy.headers import join_provenance
from framework.iggy.offset_log.codec import MAGIC
from framework.model.text import counted

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.iggy.client import IggyConnection
    from framework.iggy.values import StoredMessage


def topic_refusal(connection: IggyConnection, config: SourceCommonConfig, topic: str) -> str | None:
    """Return why a topic cannot receive records: "has ...", "keeps ..."; None when it can.

    Also None while Iggy is unavailable: the sender will notice. A topic with one partition may hold the
    positions or the dead letters of another source, whose configuration is not known here: its first
    message shows that.
    """
    iggy = config.iggy
    try:
        info = connection.get_topic(iggy.stream, topic)
        if info is None:
            return None if iggy.create_topics else "is missing, and [iggy] create_topics is off"
        if len(info.partitions) != iggy.partitions:
            return f"has {counted(len(info.partitions), 'partition')}, and the configuration says {iggy.partitions}"
        if len(info.partitions) != 1:
            return None
        first = connection.poll(iggy.stream, topic, info.partitions[0].id, offset="first", count=1)
    except IggyUnavailableError:
        return None
    return _kept_in(first[0]) if first else None


def _kept_in(message: StoredMessage) -> str | None:
    if LETTER in join_provenance(message.headers):
        return "keeps the dead letters of a source; records never go there"
    # in any format; records have headers, unless that is switched off
    if not message.headers and message.payload.startswith(MAGIC):
        return "keeps the positions of a source; records never go there"
    return None
