"""All dead letters of a source, and what became of them: for the commands, which look at the whole topic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from framework.errors import ConfigError, IggyTopicError
from framework.iggy.dead_letters.topic import (
    PARTITION,
    IggyDeadLetters,
    ReplayMarker,
    StoredDeadLetter,
    read_dead_letter,
)
from framework.iggy.reader import read_partition
from framework.model.positions import OffsetManagerKey
from framework.offsets.manager import OffsetManager

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.iggy.client import IggyConnection
    from framework.offsets.reset import Reset


def is_current(letter: StoredDeadLetter, offsets: OffsetManager) -> bool:
    """Whether a letter is about what its object's position is about: not of an earlier version, nor of before a reset.

    An object without a position is done where the watermark stands for it; elsewhere it is read again, as after a reset.
    """
    key = OffsetManagerKey.of_object(letter.bucket, letter.key).of_split(letter.split_number)
    entry = offsets.get_entry(key)
    if entry is None:
        return offsets.watermark.time_of(letter.bucket, letter.key) > 0
    return letter.generation is None or entry.generation <= letter.generation


BATCH_SIZE = 500
"""Letters that one mark names."""


@attrs.frozen(kw_only=True)
class DeadLetterLog:
    """What a dead letter topic holds of one source.

    Attributes:
        stored: every letter, in the order of the topic, without the records' bytes: those of all may not fit into memory.
        replayed: offsets of those that were replayed, or whose objects were reset.
        notes: of replays that had begun to send.
    """

    stored: Sequence[StoredDeadLetter]
    replayed: frozenset[int]
    notes: Sequence[ReplayMarker]

    @classmethod
    def read(cls, connection: IggyConnection, config: SourceCommonConfig) -> DeadLetterLog:
        """Reads the topic to its end.

        Args:
            connection: an open one.
            config: names the topic.

        Raises:
            ConfigError: no dead letter topic is configured.
            IggyTopicError: it is missing.
        """
        stored: list[StoredDeadLetter] = []
        replayed: set[int] = set()
        notes: list[ReplayMarker] = []
        for found in _read(connection, config):
            if isinstance(found, StoredDeadLetter):
                stored.append(attrs.evolve(found, raw=b""))
            elif found.replayed:
                replayed.update(found.letters)
            else:
                notes.append(found)
        return cls(stored=stored, replayed=frozenset(replayed), notes=notes)


def _read(connection: IggyConnection, config: SourceCommonConfig) -> Iterator[StoredDeadLetter | ReplayMarker]:
    topic, stream = topic_of(config), config.iggy.stream
    if connection.get_topic(stream, topic) is None:
        raise IggyTopicError(f'there is no topic "{topic}" in stream "{stream}": nothing was skipped yet')
    for message in read_partition(connection, stream, topic, PARTITION):
        found = read_dead_letter(message, config.source.name)
        if found is not None:
            yield found


def topic_of(config: SourceCommonConfig) -> str:
    """The dead letter topic.

    Raises:
        ConfigError: none is configured.
    """
    topic = config.errors.dead_letter_topic
    if topic is None:
        raise ConfigError('no dead letters are kept: set [errors] dead_letter_topic = "NAME"')
    return topic


def void_dead_letters(connection: IggyConnection, config: SourceCommonConfig, reset: Reset) -> int:
    """Marks the open letters of objects that were reset; returns how many.

    Those objects are read again from their first record, and leave letters again where they are still bad. An old letter that
    was replayed beside that would send a record twice.
    """
    box, topic = IggyDeadLetters.of(connection, config), config.errors.dead_letter_topic
    if box is None or topic is None or connection.get_topic(config.iggy.stream, topic) is None:
        return 0
    letters = DeadLetterLog.read(connection, config)
    void = [one for one in letters.stored if one.offset not in letters.replayed and reset.takes(one.key)]
    for at in range(0, len(void), BATCH_SIZE):
        box.replayed(void[at : at + BATCH_SIZE])
    return len(void)
