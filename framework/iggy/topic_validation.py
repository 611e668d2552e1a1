"""Checks of topics that keys name, before an object is read, so that only that object fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from framework.errors import IggyAuthError, IggyUnavailableError
from framework.iggy.dead_letters.writer import is_of_dead_letters
from framework.iggy.offset_log.framing import MAGIC
from framework.iggy.rights import Right
from framework.model.text import counted

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.iggy.connection import IggyConnection
    from framework.iggy.values import StoredMessage, TopicInfo


def topic_refusal(connection: IggyConnection, config: SourceCommonConfig, topic: str) -> str | None:
    """Return why a topic cannot receive records: "has ...", "keeps ..."; None when it can.

    Also None while Iggy is unavailable: the sender will notice. A topic with one partition may hold the
    positions or the dead letters of another source, whose configuration is not known here: its first
    message shows that. A permission that the user lacks for it would end the source when it sends.
    """
    try:
        info = connection.get_topic(config.iggy.stream, topic)
        if info is None and not config.iggy.create_topics:
            return "is missing, and [iggy] create_topics is off"
        return _closed(connection, config, topic, info) or (_unfit(connection, config, info) if info else None)
    except IggyAuthError as error:
        return f"is closed to {connection.address.login}: {error}"
    except IggyUnavailableError:
        return None


def _closed(connection: IggyConnection, config: SourceCommonConfig, topic: str, info: TopicInfo | None) -> str | None:
    rights = [Right("create", topic)]
    if info is not None:
        rights = [Right("read", topic, info.id), Right("send", topic, info.id)]
    missing = connection.missing_rights(config.iggy.stream, rights)
    return f"is closed to {connection.address.login}: no permission to {', '.join(missing)}" if missing else None


def _unfit(connection: IggyConnection, config: SourceCommonConfig, info: TopicInfo) -> str | None:
    if len(info.partitions) != config.iggy.partitions:
        return f"has {counted(len(info.partitions), 'partition')}, and the configuration says {config.iggy.partitions}"
    if len(info.partitions) != 1:
        return None
    first = connection.poll(config.iggy.stream, info.name, info.partitions[0].id, offset=0, count=1)
    return _kept_in(first[0]) if first else None


def _kept_in(message: StoredMessage) -> str | None:
    if is_of_dead_letters(message):
        return "keeps the dead letters of a source; records never go there"
    # in any format; records have headers, unless that is switched off
    if not message.headers and message.payload.startswith(MAGIC):
        return "keeps the positions of a source; records never go there"
    return None
