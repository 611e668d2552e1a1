"""Streams, topics and partitions: what exists, kept in one small file that is replaced as a whole.

Every partition's messages lie in a folder with a number that is never given again. So to purge or delete is to
save a catalog that no longer names the folder, and then to remove it; a crash in between leaves a folder that the
next start removes.
"""

from __future__ import annotations

import json
import shutil
import threading
from typing import TYPE_CHECKING, Any

from framework.iggy.embedded import fields, options
from framework.iggy.embedded.fields import RefusedError
from framework.iggy.embedded.partition import Partition, now_micros

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from framework.iggy.embedded.files import FileOps
    from framework.iggy.embedded.options import Option

_FORMAT = 1
_MAX_PARTITIONS_A_REQUEST = 1000


class Topic:
    """A topic: its name, options and partitions."""

    def __init__(self, number: int, name: str, created_at: int, given: list[Option]) -> None:
        """Describe a topic without partitions."""
        self.number = number
        self.name = name
        self.created_at = created_at
        self.options = given
        self.partitions: list[Partition] = []
        self.groups: dict[int, str] = {}
        self.turn = 0


class Stream:
    """A stream: its name and topics."""

    def __init__(self, number: int, name: str, created_at: int, given: list[Option]) -> None:
        """Describe a stream without topics."""
        self.number = number
        self.name = name
        self.created_at = created_at
        self.options = given
        self.topics: dict[int, Topic] = {}


class Catalog:
    """All streams of one server.

    Look-ups and changes hold `lock`; what they return may be used without it. A change is durable when its method
    returns, and when the disk refuses it, it did not happen.
    """

    def __init__(self, folder: Path, files: FileOps) -> None:
        """Describe the catalog kept in `folder`; do no I/O."""
        self.lock = threading.RLock()
        self.streams: dict[int, Stream] = {}
        self._folder = folder
        self._logs = folder / "logs"
        self._path = folder / "catalog.json"
        self._files = files
        self._next_log = 0

    def open(self) -> None:
        """Load everything, and remove folders that nothing names.

        Raises:
            DamagedSegmentError: A partition is damaged elsewhere than at its end.
            ValueError: The catalog is of another version, or no catalog.
        """
        self._logs.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            self._load(json.loads(self._path.read_bytes()))
        known = {partition.folder for partition in self.partitions()}
        for folder in self._logs.iterdir():
            if folder not in known:
                shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Close every partition, waiting for appends under way."""
        with self.lock:
            for partition in self.partitions():
                partition.close()

    def partitions(self) -> Iterator[Partition]:
        """Yield all partitions of all topics."""
        for stream in self.streams.values():
            for topic in stream.topics.values():
                yield from topic.partitions

    # -- look-ups -----------------------------------------------------------------------------------------------

    def stream(self, name: int | str) -> Stream:
        """Return a stream by number or name, or raise `RefusedError`."""
        with self.lock:
            for stream in self.streams.values():
                if name in (stream.number, stream.name):
                    return stream
        raise RefusedError(fields.STREAM_NOT_FOUND)

    def topic(self, stream: int | str, name: int | str) -> Topic:
        """Return a topic by number or name, or raise `RefusedError`."""
        with self.lock:
            for topic in self.stream(stream).topics.values():
                if name in (topic.number, topic.name):
                    return topic
        raise RefusedError(fields.TOPIC_NOT_FOUND)

    def partition(self, stream: int | str, topic: int | str, number: int) -> Partition:
        """Return a partition, or raise `RefusedError`."""
        with self.lock:
            partitions = self.topic(stream, topic).partitions
            if number < len(partitions):
                return partitions[number]
        raise RefusedError(fields.PARTITION_NOT_FOUND)

    # -- streams ------------------------------------------------------------------------------------------------

    def create_stream(self, name: str, given: list[Option]) -> Stream:
        """Make a stream with the lowest free number."""
        with self.lock:
            self._check_stream_name(name, None)
            if given:
                raise RefusedError(fields.UNSUPPORTED_OPTION)
            stream = Stream(_lowest_free(self.streams), name, now_micros(), given)
            self.streams[stream.number] = stream
            self._save_or(lambda: self.streams.pop(stream.number))
            return stream

    def update_stream(self, which: int | str, name: str, given: list[Option]) -> None:
        """Rename a stream."""
        with self.lock:
            stream = self.stream(which)
            self._check_stream_name(name, stream)
            if given:
                raise RefusedError(fields.UNSUPPORTED_OPTION)
            before, stream.name = stream.name, name
            self._save_or(lambda: setattr(stream, "name", before))

    def delete_stream(self, which: int | str) -> None:
        """Remove a stream with everything in it."""
        with self.lock:
            stream = self.stream(which)
            del self.streams[stream.number]
            self._save_or(lambda: self.streams.update({stream.number: stream}))
            for topic in stream.topics.values():
                _destroy(topic.partitions)

    def purge_stream(self, which: int | str) -> None:
        """Remove the messages of all topics of a stream."""
        with self.lock:
            self._purge(list(self.stream(which).topics.values()))

    # -- topics -------------------------------------------------------------------------------------------------

    def create_topic(self, which: int | str, name: str, partitions: int, given: list[Option]) -> tuple[Stream, Topic]:
        """Make a topic with the lowest free number in its stream."""
        with self.lock:
            stream = self.stream(which)
            self._check_topic_name(stream, name, None)
            if partitions > _MAX_PARTITIONS_A_REQUEST:
                raise RefusedError(fields.TOO_MANY_PARTITIONS)
            topic = Topic(_lowest_free(stream.topics), name, now_micros(), options.admit(given))
            topic.partitions = self._new_partitions(topic, range(partitions))
            stream.topics[topic.number] = topic
            self._save_or(lambda: stream.topics.pop(topic.number))
            return stream, topic

    def update_topic(self, which: int | str, name: int | str, new_name: str, given: list[Option]) -> None:
        """Rename a topic and change the options that may change; options not given stay."""
        with self.lock:
            topic = self.topic(which, name)
            self._check_topic_name(self.stream(which), new_name, topic)
            changed = {option[0]: option for option in topic.options}
            changed |= {option[0]: option for option in options.admit(given, update=True)}
            before = (topic.name, topic.options)
            topic.name, topic.options = new_name, sorted(changed.values())

            def restore() -> None:
                topic.name, topic.options = before

            self._save_or(restore)

    def delete_topic(self, which: int | str, name: int | str) -> None:
        """Remove a topic with its messages."""
        with self.lock:
            stream, topic = self.stream(which), self.topic(which, name)
            del stream.topics[topic.number]
            self._save_or(lambda: stream.topics.update({topic.number: topic}))
            _destroy(topic.partitions)

    def purge_topic(self, which: int | str, name: int | str) -> None:
        """Remove a topic's messages: its offsets start at 0 again, its number stays."""
        with self.lock:
            self._purge([self.topic(which, name)])

    def create_partitions(self, which: int | str, name: int | str, count: int) -> None:
        """Add `count` partitions behind the last one."""
        with self.lock:
            topic = self.topic(which, name)
            if not 0 < count <= _MAX_PARTITIONS_A_REQUEST:
                raise RefusedError(fields.TOO_MANY_PARTITIONS)
            before = topic.partitions
            topic.partitions = before + self._new_partitions(topic, range(len(before), len(before) + count))
            self._save_or(lambda: setattr(topic, "partitions", before))

    def delete_partitions(self, which: int | str, name: int | str, count: int) -> None:
        """Remove the last `count` partitions with their messages."""
        with self.lock:
            topic = self.topic(which, name)
            before = topic.partitions
            if not 0 < count <= len(before):
                raise RefusedError(fields.INVALID_PARTITIONS_COUNT)
            topic.partitions = before[: len(before) - count]
            self._save_or(lambda: setattr(topic, "partitions", before))
            _destroy(before[len(before) - count :])

    # -- consumer groups ----------------------------------------------------------------------------------------

    def group(self, which: int | str, name: int | str, group: int | str) -> tuple[Topic, int]:
        """Return a topic and the number of one of its groups, or raise `RefusedError`."""
        with self.lock:
            topic = self.topic(which, name)
            for number, known in topic.groups.items():
                if group in (number, known):
                    return topic, number
        raise RefusedError(fields.GROUP_NOT_FOUND)

    def create_group(self, which: int | str, name: int | str, group: str) -> tuple[Topic, int]:
        """Make a group with the lowest free number in its topic."""
        with self.lock:
            topic = self.topic(which, name)
            if group in topic.groups.values():
                raise RefusedError(fields.GROUP_EXISTS)
            number = _lowest_free(topic.groups)
            topic.groups[number] = group
            self._save_or(lambda: topic.groups.pop(number))
            return topic, number

    def delete_group(self, which: int | str, name: int | str, group: int | str) -> None:
        """Remove a group."""
        with self.lock:
            topic, number = self.group(which, name, group)
            before = topic.groups.pop(number)
            self._save_or(lambda: topic.groups.update({number: before}))

    # -- inside -------------------------------------------------------------------------------------------------

    def _check_stream_name(self, name: str, stream: Stream | None) -> None:
        if any(other.name == name and other is not stream for other in self.streams.values()):
            raise RefusedError(fields.STREAM_EXISTS)

    def _check_topic_name(self, stream: Stream, name: str, topic: Topic | None) -> None:
        if any(other.name == name and other is not topic for other in stream.topics.values()):
            raise RefusedError(fields.TOPIC_EXISTS)

    def _new_partitions(self, topic: Topic, numbers: range) -> list[Partition]:
        first, self._next_log = self._next_log, self._next_log + len(numbers)
        created_at = now_micros()
        return [self._partition(topic, number, first + i, created_at) for i, number in enumerate(numbers)]

    def _partition(self, topic: Topic, number: int, log: int, created_at: int) -> Partition:
        segment_size = options.number(topic.options, "segment_size")
        return Partition(number, self._logs / str(log), segment_size, self._files, created_at=created_at)

    def _purge(self, topics: list[Topic]) -> None:
        before = [topic.partitions for topic in topics]
        for topic in topics:
            created = [partition.created_at for partition in topic.partitions]
            topic.partitions = self._new_partitions(topic, range(len(created)))
            for partition, created_at in zip(topic.partitions, created, strict=True):
                partition.created_at = created_at

        def restore() -> None:
            for topic, partitions in zip(topics, before, strict=True):
                topic.partitions = partitions

        self._save_or(restore)
        for partitions in before:
            _destroy(partitions)

    def _save_or(self, restore: Any) -> None:
        """Save the catalog; if the disk refuses, call `restore` and refuse the request."""
        document = {
            "format": _FORMAT,
            "next_log": self._next_log,
            "streams": [
                {
                    "id": stream.number,
                    "name": stream.name,
                    "created_at": stream.created_at,
                    "topics": [
                        {
                            "id": topic.number,
                            "name": topic.name,
                            "created_at": topic.created_at,
                            "options": fields.encode_options(topic.options).hex(),
                            "partitions": [[int(p.folder.name), p.created_at] for p in topic.partitions],
                            "groups": list(topic.groups.items()),
                        }
                        for topic in stream.topics.values()
                    ],
                }
                for stream in self.streams.values()
            ],
        }
        try:
            self._files.replace(self._path, json.dumps(document).encode())
        except OSError as exc:
            restore()
            raise RefusedError(fields.CANNOT_WRITE_FILE) from exc

    def _load(self, document: dict[str, Any]) -> None:
        if document.get("format") != _FORMAT:
            raise ValueError(
                f"{self._path} has format {document.get('format')!r}, this server reads {_FORMAT}: "
                "use the version that wrote it, or another folder"
            )
        self._next_log = document["next_log"]
        for entry in document["streams"]:
            stream = Stream(entry["id"], entry["name"], entry["created_at"], [])
            self.streams[stream.number] = stream
            for inner in entry["topics"]:
                given = fields.decode_options(memoryview(bytes.fromhex(inner["options"])))
                topic = Topic(inner["id"], inner["name"], inner["created_at"], given)
                for number, (log, created_at) in enumerate(inner["partitions"]):
                    partition = self._partition(topic, number, log, created_at)
                    partition.open()
                    topic.partitions.append(partition)
                topic.groups = dict(inner.get("groups", ()))
                stream.topics[topic.number] = topic


def _lowest_free(taken: dict[int, Any]) -> int:
    return next(number for number in range(len(taken) + 1) if number not in taken)


def _destroy(partitions: list[Partition]) -> None:
    for partition in partitions:
        partition.destroy()
