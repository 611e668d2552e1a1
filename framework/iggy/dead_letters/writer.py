"""Dead letters as messages: writing, reading, and the markers of replays.

The topic has one partition; several writers share it. A message's id is deterministic, and never the id
of a record:

    bits 127..64   XXH3-64 of (source name, "dead letter" or "dead object", bucket, key, version, split size)
    bits  63..40   split        bits 39..0   record number

The header `letter` gives the kind of a message. `record` and `object` are dead letters; `object` stands
for the rest of an object, from that record on. `dead-letter replay` writes the other two: a `note` before
it sends (which dead letters, and where the partitions end), and a `replayed` afterwards. `dead-letter discard`
writes a `replayed` that says so.

The payload of a dead letter is the record's bytes, their beginning, or a short JSON when there are none.
The header `payload` tells which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from sys import intern
from typing import TYPE_CHECKING, Literal

import attrs
import orjson

from framework.config.key_template import topic_name_error
from framework.errors import IggyTopicError
from framework.iggy import wire
from framework.iggy.header_decoding import division_of, join_provenance, position_headers
from framework.iggy.topics import check_readable, ensure_topic
from framework.model.header_encoding import LETTER_HEADER, encode_headers
from framework.model.message_ids import MAX_RECORD, MAX_SPLIT, dead_letter_hash64
from framework.model.objects import TopicPartition

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.iggy.connection import IggyConnection
    from framework.iggy.values import StoredMessage, TopicInfo
    from framework.model.splits import KeyPart, Split
    from framework.pipeline.dead_letters import DeadLetter

PARTITION = 0

NOTE_ID, MARK_ID = 1, 2

MARKED = 500
"""Maximum number of dead letters that one marker names."""

NUMBERED_BY = "numbered_by"

ERROR_TEXT = 2000
"""Maximum characters of an error's text that are kept."""

_MAX_REQUEST_BYTES = 8_000_000
_MAX_DIGITS = 18
MAX_PARTITIONS = 1000
"""Maximum number of partitions of a topic in Iggy."""

Kind = Literal["record", "object"]
Payload = Literal["whole", "beginning", "none"]


@attrs.frozen(kw_only=True, slots=True)
class StoredDeadLetter:
    """A dead letter as stored in the topic.

    Attributes:
        offset: its place in the topic.
        message_id: its id; a dead letter that was stored again after its replay has the same id.
        timestamp_us: when it was stored, microseconds since 1970.
        kind: whether it stands for a record, or for the rest of an object.
        bucket: the object's bucket.
        key: the object's key.
        version: the object's version.
        division: the split or part; None when the object has one position.
        generation: generation of the position.
        numbering_options: the options that numbered the object's records; empty when the position named none.
        record: the bad record; for an object, the first missing record.
        topic_partition: destination of the record.
        error: class of the error.
        text: message of the error.
        byte_offset: where the record begins in the object, if known.
        length: the record's length in bytes, if known.
        format: the format with which it was read.
        payload: which part of the record the message holds; `IggyDeadLetters.raw` reads it.
    """

    offset: int
    message_id: int
    timestamp_us: int
    kind: Kind
    bucket: str
    key: str
    version: str
    division: Split | KeyPart | None
    generation: int
    numbering_options: str = ""
    record: int
    topic_partition: TopicPartition
    error: str
    text: str
    byte_offset: int | None
    length: int | None
    format: str
    payload: Payload

    @property
    def split_size(self) -> int:
        """The split size of the position; 0 when the object has one position."""
        return self.division.split_size if self.division is not None else 0

    @property
    def split_number(self) -> int:
        """Number of the split or part; 0 when the object has one position."""
        return self.division.number if self.division is not None else 0


@attrs.frozen(kw_only=True, slots=True)
class ReplayMarker:
    """A marker that a replay wrote.

    Attributes:
        offset: its place in the topic.
        replayed: whether the dead letters are closed: sent again, voided or discarded; otherwise they are about to be sent.
        discarded: whether a person closed them without sending.
        dead_letters: offsets of the dead letters.
        ends: partition -> the offset of its next message, when the marker was written.
    """

    offset: int
    replayed: bool
    discarded: bool = False
    dead_letters: tuple[int, ...]
    ends: Mapping[TopicPartition, int] = attrs.field(factory=dict)


class IggyDeadLetters:
    """Writes dead letters to one topic over one connection. For one thread at a time.

    Args:
        connection: an open connection; it stays open.
        config: configuration of the source.
        topic: name of an existing topic.
    """

    def __init__(self, connection: IggyConnection, config: SourceCommonConfig, topic: str) -> None:
        self._connection = connection
        self._stream = config.iggy.stream
        self._topic = topic
        self._source = config.source.name
        self._max_bytes = config.errors.dead_letter_bytes
        self._format = config.input.format

    @classmethod
    def of(cls, connection: IggyConnection, config: SourceCommonConfig) -> IggyDeadLetters | None:
        """Return a writer to the configured topic; None when none is configured."""
        topic = config.errors.dead_letter_topic
        return cls(connection, config, topic) if topic is not None else None

    def send(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Store dead letters, in order; return when all are confirmed.

        Raises:
            UnknownOutcomeError, IggyUnavailableError: some may be stored; recover.
        """
        self._send([self._segment(dead_letter) for dead_letter in dead_letters])

    def raw(self, dead_letter: StoredDeadLetter) -> bytes:
        """Read the bytes of a dead letter's record from the topic; empty when it holds none, or is gone."""
        if dead_letter.payload == "none":
            return b""
        found = self._connection.poll(self._stream, self._topic, PARTITION, offset=dead_letter.offset, count=1)
        same = bool(found) and (found[0].offset, found[0].message_id) == (dead_letter.offset, dead_letter.message_id)
        return found[0].payload if same else b""

    def note(self, dead_letters: Sequence[StoredDeadLetter], ends: Mapping[TopicPartition, int]) -> None:
        """Record that these dead letters are about to be sent again, after these ends."""
        topic_partitions = [
            [topic_partition.topic, topic_partition.partition, end] for topic_partition, end in ends.items()
        ]
        self._mark("note", NOTE_ID, dead_letters, {"ends": topic_partitions})

    def replayed(self, dead_letters: Sequence[StoredDeadLetter]) -> None:
        """Record that these dead letters were sent again."""
        self._mark("replayed", MARK_ID, dead_letters, {})

    def discarded(self, dead_letters: Sequence[StoredDeadLetter]) -> None:
        """Record that these dead letters are never sent again. A call that is killed records some of them.

        Builds that know no such mark take it for `replayed`.
        """
        self._mark("replayed", MARK_ID, dead_letters, {"discarded": True})

    def _mark(
        self, kind: str, number: int, dead_letters: Sequence[StoredDeadLetter], more: Mapping[str, object]
    ) -> None:
        headers = encode_headers({LETTER_HEADER: kind, "source": self._source})
        for at in range(0, len(dead_letters), MARKED):
            named = [[each.offset, f"{each.message_id:032x}", each.kind] for each in dead_letters[at : at + MARKED]]
            body = orjson.dumps({"letters": named, **more})
            self._send([wire.Segment(id_high=0, first_record=number, payloads=[body], headers=headers)])

    def _segment(self, dead_letter: DeadLetter) -> wire.Segment:
        kept = dead_letter.raw[: self._max_bytes]
        body: Payload = "none" if not kept else "whole" if len(kept) == dead_letter.length else "beginning"
        native, entry, error = dead_letter.native, dead_letter.entry, dead_letter.error
        headers = {
            LETTER_HEADER: "object" if dead_letter.whole_object else "record",
            "source": self._source,
            **position_headers(native, entry.division),
            "generation": str(entry.generation),
            NUMBERED_BY: entry.numbering_options,
            "record": str(dead_letter.record_number),
            "topic": entry.topic_partition.topic,
            "partition": str(entry.topic_partition.partition),
            "error": type(error).__name__,
            "text": "".join(char if char.isprintable() else "?" for char in error.message)[:ERROR_TEXT],
            "byte_offset": "" if error.byte_offset is None else str(error.byte_offset),
            "length": "" if dead_letter.length is None else str(dead_letter.length),
            "format": self._format,
            "payload": body,
        }
        return wire.Segment(
            id_high=dead_letter_hash64(
                self._source,
                native.bucket,
                native.key,
                native.version,
                entry.split_size,
                generation=entry.generation,
                kind="dead object" if dead_letter.whole_object else "dead letter",
            ),
            split_number=entry.split_number,
            first_record=dead_letter.record_number,
            payloads=[kept or b'{"payload":"none"}'],
            headers=encode_headers(headers),
        )

    def _send(self, segments: list[wire.Segment]) -> None:
        for group in wire.cut_segments(segments, _MAX_REQUEST_BYTES):
            body = wire.encode_send(self._stream, self._topic, PARTITION, group)
            self._connection.send_raw(self._stream, self._topic, PARTITION, body)


def ensure_dead_letter_topic(
    connection: IggyConnection, stream: str, topic: str, *, create: bool = True
) -> tuple[str, ...]:
    """Create the topic, or check an existing one; return one warning per setting that can delete dead letters.

    Raises:
        IggyTopicError: it is missing and `create` is off, has several partitions, or can lose confirmed
            messages.
        PartitionDamagedError: the server has dead letters that it does not return.
    """
    info, warnings = ensure_topic(
        connection,
        stream,
        topic,
        1,
        create=create,
        advice="dead letters need exactly 1; delete the others, or name another topic with [errors] dead_letter_topic",
    )
    if not keeps_dead_letters(info):
        raise IggyTopicError(
            f'topic "{topic}" of stream "{stream}" may lose what it confirmed, and a dead letter must not be lost: name another '
            f"one with [errors] dead_letter_topic, and let the source make it, or make it with durability persisted and "
            f"messages_required_to_save=1"
        )
    check_readable(connection, stream, topic, info.partitions[PARTITION])
    return warnings


def keeps_dead_letters(info: TopicInfo) -> bool:
    """Return whether a topic keeps every confirmed message, even when the server is killed."""
    return info.persisted and info.messages_required_to_save in {None, 1}


def read_dead_letter(message: StoredMessage, source: str) -> StoredDeadLetter | ReplayMarker | None:
    """Parse a message of the topic; None for a message of another source, or an unknown one."""
    headers = join_provenance(message.headers)
    kind = headers.get(LETTER_HEADER)
    if headers.get("source") != source or kind is None:
        return None
    try:
        if kind in {"note", "replayed"}:
            return _mark_of(message, replayed=kind == "replayed")
        return _dead_letter_of(message, headers, kind) if kind in {"record", "object"} else None
    except (KeyError, TypeError, ValueError):
        return None  # written by another program under these names


def is_of_dead_letters(message: StoredMessage) -> bool:
    """Return whether a message is a dead letter or a marker, of any source."""
    headers = join_provenance(message.headers)
    return "source" in headers and headers.get(LETTER_HEADER) in {"record", "object", "note", "replayed"}


def claims_dead_letter(message: StoredMessage, source: str) -> bool:
    """Return whether a message says that it is a dead letter of the source, readable or not."""
    headers = join_provenance(message.headers)
    return headers.get("source") == source and headers.get(LETTER_HEADER) in {"record", "object"}


def _mark_of(message: StoredMessage, *, replayed: bool) -> ReplayMarker:
    """Parse a marker. Dead letters are before it: offsets behind it are of a topic that was purged during the replay."""
    body = orjson.loads(message.payload)
    return ReplayMarker(
        offset=message.offset,
        replayed=replayed,
        dead_letters=tuple(number for offset, _, _ in body["letters"] if (number := _number(offset)) < message.offset),
        discarded=replayed and body.get("discarded") is True,
        ends={_partition(topic, partition): _number(end) for topic, partition, end in body.get("ends", ())},
    )


def _dead_letter_of(message: StoredMessage, headers: Mapping[str, str], kind: str) -> StoredDeadLetter:
    """Parse a dead letter. A million of them are held at once, so equal texts are one text in memory."""
    body = headers["payload"]
    division, record = division_of(headers), _number(headers["record"])
    if record > MAX_RECORD or (division is not None and division.number > MAX_SPLIT):
        raise ValueError(record)
    return StoredDeadLetter(
        offset=message.offset,
        message_id=message.message_id,
        timestamp_us=message.timestamp_us,
        kind="object" if kind == "object" else "record",
        bucket=intern(headers["bucket"]),
        key=intern(headers["key"]),
        version=intern(headers["version"]),
        division=division,
        generation=_number(headers["generation"]),
        numbering_options=intern(headers.get(NUMBERED_BY, "")),
        record=record,
        topic_partition=_partition(headers["topic"], headers["partition"]),
        error=intern(headers["error"]),
        text=intern(headers.get("text", "")),
        byte_offset=_number(headers["byte_offset"]) if "byte_offset" in headers else None,
        length=_number(headers["length"]) if "length" in headers else None,
        format=intern(headers.get("format", "")),
        payload="whole" if body == "whole" else "beginning" if body == "beginning" else "none",
    )


def _number(value: str | int) -> int:
    """Parse a number that this program may have written. Not trusted: any client may write to the topic."""
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise ValueError(text[:_MAX_DIGITS])
    return int(text)


@lru_cache(maxsize=MAX_PARTITIONS)
def _partition(topic: object, partition: str | int) -> TopicPartition:
    if not isinstance(topic, str) or topic_name_error(topic) is not None:
        raise ValueError(topic)
    number = _number(partition)
    if number >= MAX_PARTITIONS:
        raise ValueError(number)
    return TopicPartition(topic, number)
