"""All dead letters of a source and their state, for the commands, which read the whole topic."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from framework.errors import ConfigError, IggyTopicError
from framework.iggy.dead_letters.writer import (
    PARTITION,
    IggyDeadLetters,
    ReplayMarker,
    StoredDeadLetter,
    claims_dead_letter,
    read_dead_letter,
)
from framework.iggy.reader import read_whole
from framework.model.positions import OffsetManagerKey
from framework.model.text import counted
from framework.offsets.manager import OffsetManager

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.iggy.connection import IggyConnection
    from framework.iggy.values import PartitionInfo

log = logging.getLogger(__name__)


def is_current(dead_letter: StoredDeadLetter, offsets: OffsetManager) -> bool:
    """Return whether a dead letter belongs to the object's present generation, not to an earlier version or reset.

    An object without a position is done where the watermark covers it. Elsewhere it is read again, as
    after a reset.
    """
    key = OffsetManagerKey.of_object(dead_letter.bucket, dead_letter.key).of_split(dead_letter.split_number)
    entry = offsets.get_entry(key)
    if entry is None:
        return offsets.table.watermark.time_of(dead_letter.bucket, dead_letter.key) > 0
    return entry.generation <= dead_letter.generation


MAX_ERRORS = 20
"""Classes of errors that are counted: whoever may write to the topic can name others without end."""


@attrs.frozen(kw_only=True)
class DeadLetterLog:
    """The dead letters of one source.

    Attributes:
        stored: the selected dead letters, in topic order.
        replayed: offsets of the dead letters that are closed: replayed, discarded, or of objects that were reset.
        discarded: those of them that were discarded.
        notes: markers of replays that had begun to send.
        first_offset: offset of the first message that the topic still has, or will have; earlier ones are gone.
        errors: numbers of dead letters by class of the error, of all that the topic has; of the first `MAX_ERRORS` classes.
    """

    stored: Sequence[StoredDeadLetter]
    replayed: frozenset[int]
    discarded: frozenset[int]
    notes: Sequence[ReplayMarker]
    first_offset: int
    errors: Mapping[str, int]

    @property
    def waiting(self) -> list[StoredDeadLetter]:
        """The selected dead letters that are not closed."""
        return [dead_letter for dead_letter in self.stored if dead_letter.offset not in self.replayed]

    @classmethod
    def read(
        cls,
        connection: IggyConnection,
        config: SourceCommonConfig,
        selected: Callable[[StoredDeadLetter], bool] = lambda _: True,
    ) -> DeadLetterLog:
        """Read the topic to its end. A topic that is missing, as before the first run, has none; a warning names it.

        Args:
            connection: an open connection.
            config: names the topic.
            selected: whether to keep a dead letter in memory.

        Raises:
            ConfigError: no dead letter topic is configured.
            IggyTopicError: the topic has no partition.
            PartitionDamagedError: the server has dead letters that it does not return.
            IggyUnavailableError: the server cannot read the topic.
        """
        stored: list[StoredDeadLetter] = []
        replayed: set[int] = set()
        discarded: set[int] = set()
        notes: list[ReplayMarker] = []
        partition = _partition(connection, config)
        if partition is None:
            return cls(stored=(), replayed=frozenset(), discarded=frozenset(), notes=(), first_offset=0, errors={})
        errors: Counter[str] = Counter()
        first_offset: int | None = None
        for offset, found in _read(connection, config, partition):
            if first_offset is None:
                first_offset = offset
            if isinstance(found, StoredDeadLetter):
                if found.error in errors or len(errors) < MAX_ERRORS:
                    errors[found.error] += 1
                if selected(found):
                    stored.append(found)
            elif found is not None and found.replayed:
                replayed.update(found.dead_letters)
                discarded.update(found.dead_letters if found.discarded else ())
            elif found is not None:
                notes.append(found)
        if first_offset is None:  # the server reports 0 as the last offset of a topic that had no message yet
            first_offset = partition.current_offset + 1 if partition.current_offset else 0
        return cls(
            stored=stored,
            replayed=frozenset(replayed),
            discarded=frozenset(discarded),
            notes=notes,
            first_offset=first_offset,
            errors=errors,
        )


def _partition(connection: IggyConnection, config: SourceCommonConfig) -> PartitionInfo | None:
    topic, stream = topic_of(config), config.iggy.stream
    info = connection.get_topic(stream, topic)
    if info is None:
        log.warning('there is no topic "%s" in stream "%s": nothing was skipped yet', topic, stream)
        return None
    if not info.partitions:
        raise IggyTopicError(f'topic "{topic}" of stream "{stream}" has no partition: dead letters need exactly 1')
    return info.partitions[PARTITION]


def _read(
    connection: IggyConnection, config: SourceCommonConfig, partition: PartitionInfo
) -> Iterator[tuple[int, StoredDeadLetter | ReplayMarker | None]]:
    """Yield each message's offset, and what it says of this source; warn of those that cannot be read."""
    topic, stream = topic_of(config), config.iggy.stream
    unreadable, first = 0, 0
    for message in read_whole(connection, stream, topic, partition):
        found = read_dead_letter(message, config.source.name)
        yield message.offset, found
        if found is None and claims_dead_letter(message, config.source.name):
            unreadable, first = unreadable + 1, first if unreadable else message.offset
    if unreadable:
        log.warning(
            'topic "%s": %s of source "%s" cannot be read; the first is at offset %d: run the version '
            "that wrote them, such as 0.1.0",
            topic,
            counted(unreadable, "dead letter"),
            config.source.name,
            first,
        )


def topic_of(config: SourceCommonConfig) -> str:
    """Return the name of the dead letter topic.

    Raises:
        ConfigError: none is configured.
    """
    topic = config.errors.dead_letter_topic
    if topic is None:
        raise ConfigError('no dead letters are kept: set [errors] dead_letter_topic = "NAME"')
    return topic


def void_dead_letters(
    connection: IggyConnection, config: SourceCommonConfig, restarts: Callable[[str, str], bool]
) -> None:
    """Mark the unreplayed dead letters of objects that restart. A call that is killed marks some of them.

    These objects are read again from their first record, and records that are still bad get new dead
    letters. If an old dead letter could be replayed as well, its record would be sent twice.

    Args:
        connection: an open connection.
        config: names the topic; without one there is nothing to mark.
        restarts: whether the object with this bucket and key restarts.
    """
    if void := dead_letters_of(connection, config, restarts):
        IggyDeadLetters(connection, config, topic_of(config)).replayed(void)


def dead_letters_of(
    connection: IggyConnection, config: SourceCommonConfig, restarts: Callable[[str, str], bool]
) -> list[StoredDeadLetter]:
    """Return the unreplayed dead letters that `void_dead_letters` marks."""
    topic = config.errors.dead_letter_topic
    if topic is None or connection.get_topic(config.iggy.stream, topic) is None:
        return []
    return DeadLetterLog.read(
        connection, config, lambda dead_letter: restarts(dead_letter.bucket, dead_letter.key)
    ).waiting
