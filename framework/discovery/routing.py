"""Routing of an object's records: key -> topic and partition -> task.

Every step is a fixed function of names and numbers: the same object goes to the same partition in every process, on
every machine and after every restart. (Python's own `hash` is salted per process, so it is not used.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache

import xxhash

from framework.config.key_template import OFFSETS_SUFFIX, TOPIC_PLACEHOLDER, NameMatch, topic_name_error
from framework.config.sections import SourceCommonConfig
from framework.errors import ObjectError
from framework.model.objects import NativeObject, TopicPartition

_MAX_ANSWERS = 1000


def object_partition_number(bucket: str, key: str, partitions: int) -> int:
    """Return a stable number from 0 to `partitions - 1` for an object (XXH3, 64 bits, unsigned)."""
    name = f"{bucket}\0{key}".encode("utf-8", "surrogatepass")
    return int(xxhash.xxh3_64_intdigest(name)) % partitions


def task_of(topic_partition: TopicPartition, tasks: int) -> int:
    """Return the number of the task, from 0 to `tasks - 1`, that owns a partition.

    Every partition has exactly one owner, and the partitions of a topic are spread evenly. With fewer tasks than
    partitions each task owns several; with more tasks some are idle.
    """
    return (_topic_number(topic_partition.topic) + topic_partition.partition) % tasks


@lru_cache(maxsize=1024)
def _topic_number(topic: str) -> int:
    return int(xxhash.xxh3_64_intdigest(topic.encode("utf-8", "surrogatepass")))


class Router:
    """Choose an object's partition from the configuration alone.

    A configured topic takes precedence over the template's, unless it contains `{{topic}}`.

    With `{{topic}}`, users who may put objects choose topic names. So a name from a key is checked. It must not be a
    topic of positions or dead letters, invalid in Iggy, outside `[naming] topics`, or beyond `[naming] max_topics`.

    Args:
        config: `[naming]` and `[iggy]` are used, and the names of the topics of positions and dead letters.
        known_topics: topics that hold records of this source: they count towards the limit and are not checked. None:
            no topic is created for what is routed, so there is no limit.
        refusal: returns why a topic cannot take records ("is ...", "keeps ..."); None when it can. Called once for
            each new name of a listing, and at its begin for each refused one, in the thread that lists; may ask Iggy.
    """

    def __init__(
        self,
        config: SourceCommonConfig,
        *,
        known_topics: Iterable[str] | None = None,
        refusal: Callable[[str], str | None] | None = None,
    ) -> None:
        self._topic = TOPIC_PLACEHOLDER if config.iggy.topic is None else config.iggy.topic
        self._partitions = config.iggy.partitions
        self._by_partition = config.naming.distribution == "partition"
        self._of_topic: dict[str, tuple[TopicPartition, ...]] = {}
        self._reserved = {config.offsets_topic: "the positions of this source"}
        if config.errors.dead_letter_topic is not None:
            self._reserved[config.errors.dead_letter_topic] = "its dead letters"
        self._allowed = frozenset(config.naming.topics)
        self._max_topics = config.naming.max_topics if known_topics is not None else math.inf
        self._known = set(known_topics or ())
        self._refusal = refusal
        self._answers: dict[str, str | None] = {}

    @property
    def fixed_topic(self) -> str | None:
        """The only topic; None when objects name theirs."""
        return None if TOPIC_PLACEHOLDER in self._topic else self._topic

    def begin_listing(self) -> None:
        """Start a listing: ask again about the topics that were refused, which may be usable now."""
        if self._refusal is not None:
            refused = [topic for topic, reason in self._answers.items() if reason is not None]
            self._answers = {topic: self._refusal(topic) for topic in refused}

    @property
    def refused_topics(self) -> int:
        """Number of topics that Iggy's answer refuses, as far as they are remembered."""
        return sum(reason is not None for reason in self._answers.values())

    def route(self, native: NativeObject, match: NameMatch) -> TopicPartition:
        """Return the partition of an object.

        Args:
            native: the object.
            match: the template's match in its key.

        Raises:
            ObjectError: the key names a partition that the topic does not have, or a topic that its records must not go to.
                The tolerance decides whether such a key stops the source.
        """
        topic = self._topic
        if match.topic is not None and TOPIC_PLACEHOLDER in topic:
            topic = topic.replace(TOPIC_PLACEHOLDER, match.topic)
        topic_partitions = self._of_topic.get(topic)
        if topic_partitions is None:
            topic_partitions = self._partitions_of(topic, native)
        if not self._by_partition:
            return topic_partitions[object_partition_number(native.bucket, native.key, self._partitions)]
        partition = match.partition
        if partition is None or partition >= self._partitions:
            raise ObjectError(
                f"its name says partition {partition}, but topic {topic} has {self._partitions} (0 to "
                f'{self._partitions - 1}); raise [iggy] partitions, or set [naming] distribution = "object_hash"',
                location=native.location,
            )
        return topic_partitions[partition]

    def _partitions_of(self, topic: str, native: NativeObject) -> tuple[TopicPartition, ...]:
        if self.fixed_topic is None:
            mistake = self._name_error(topic)
            if mistake is not None:
                raise ObjectError(f"its name makes the topic {topic!r}, which {mistake}", location=native.location)
            self._known.add(topic)
        topic_partitions = tuple(TopicPartition(topic, partition) for partition in range(self._partitions))
        self._of_topic[topic] = topic_partitions
        return topic_partitions

    def _name_error(self, topic: str) -> str | None:
        """Return why a topic that a key names is not used ("is ...", "keeps ..."); None when it is used."""
        mistake = topic_name_error(topic)
        if TOPIC_PLACEHOLDER in topic:
            mistake = "has no name to put in"
        elif mistake is None and topic in self._reserved:
            mistake = f"keeps {self._reserved[topic]}; records never go there"
        elif mistake is None and topic not in self._allowed:
            if self._allowed:
                mistake = "is not in [naming] topics"
            elif topic.endswith(OFFSETS_SUFFIX):
                mistake = (
                    f"ends in {OFFSETS_SUFFIX}, as topics of positions do; list it in [naming] topics if it is none"
                )
        if mistake is not None or topic in self._known:
            return mistake
        if len(self._known) >= self._max_topics:
            return f"is one more than the {self._max_topics:,} topics that [naming] max_topics allows"
        return self._asked(topic)

    def _asked(self, topic: str) -> str | None:
        if self._refusal is None:
            return None
        if topic in self._answers:
            return self._answers[topic]
        answer = self._refusal(topic)
        if answer is not None:
            if len(self._answers) >= _MAX_ANSWERS:
                del self._answers[next(iter(self._answers))]
            self._answers[topic] = answer
        return answer
