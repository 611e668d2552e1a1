"""Replay of dead letters: the command `dead-letter replay`.

    claim, fence, load -> unreplayed dead letters -> [note where the partitions end -> send, marked -> confirmed -> mark them]

A replay has its own epoch, so it never runs beside its source. It is repeatable: it first searches the
partitions for records that are there already. Those of a killed replay are behind the ends that it had noted before it
sent. The source itself may have sent a record behind its dead letter: it was killed before it had passed the record, and
found it good on the next read. Replayed records have their own ids: no recovery takes them for records of their objects. They
have no position either, so they are not sent to a topic that may lose them.

A dead letter about a record sends that record, after the configured transforms; with `partition_by` to the partition of
its key, among those that the topic has now. A dead letter about the rest of an object
sends nothing: it reopens the object's position, and the next run resumes where the object failed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from framework.discovery.routing import Router
from framework.engine.positions_admin import reopen_objects
from framework.errors import (
    AccessDeniedError,
    FormatContractError,
    IggyTopicError,
    ObjectError,
    RecordError,
    RecordTransformError,
    SkippableError,
)
from framework.iggy import wire
from framework.iggy.dead_letters.writer import MARKED, IggyDeadLetters, ReplayMarker, StoredDeadLetter
from framework.iggy.header_decoding import merge_headers
from framework.iggy.offset_log.partition_replay import hold_back_of
from framework.iggy.reader import offset_since, read_topic
from framework.iggy.topic_validation import topic_refusal
from framework.iterator import AbstractSourceRecordIterator
from framework.model.batches import SkippedRecord
from framework.model.closing import close_iterator
from framework.model.header_encoding import REPLAY_HEADER, encode_headers, provenance
from framework.model.message_ids import MAX_SPLIT, dead_letter_hash64, entry_hash64, message_id
from framework.model.objects import NativeObject, TopicPartition, is_older_form
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey, is_numbered_by, numbers_alike
from framework.model.splits import KeyPart, Split
from framework.model.text import counted
from framework.pipeline.object_reader import context_of
from framework.storage.prefetch import FetchedInput
from framework.transform import TransformBatch, TransformContext
from framework.transformer import BatchLimits, PayloadBatch, explained, guarded

if TYPE_CHECKING:
    from framework.engine.session import Session

log = logging.getLogger(__name__)

BATCH_SIZE = MARKED
"""Dead letters between two marks."""

BATCH_BYTES = 8 << 20

CLOCK_STEP_SECONDS = 60
"""How far the server's clock may have stepped back between a dead letter and a later message."""

SCAN_RECORDS = 1000
"""Records of an object in memory during the search for the wanted ones."""


@attrs.define(kw_only=True)
class ReplayCounts:
    """The results of a replay.

    Attributes:
        sent: records sent.
        filtered: records that a transform filtered: there is nothing to send.
        found: records that an earlier, killed replay had already sent.
        delivered: records that the source has sent as good ones: it was killed behind the dead letter, and read them again.
        superseded: dead letters of earlier versions of objects; the present version was read.
        reopened: objects that the next start resumes.
        bad: dead letters that remain: error message -> count.
    """

    sent: int = 0
    filtered: int = 0
    found: int = 0
    delivered: int = 0
    superseded: int = 0
    reopened: int = 0
    bad: dict[str, int] = attrs.field(factory=dict)

    @property
    def stayed(self) -> int:
        """Number of dead letters that remain."""
        return sum(self.bad.values())


@attrs.frozen
class _Remade:
    dead_letter: StoredDeadLetter
    topic_partition: TopicPartition
    batch: TransformBatch = attrs.field(repr=False)  # of this record alone


class DeadLetterReplay:
    """A replay, in the epoch of a session. Not thread-safe.

    Args:
        session: a session of this process; it has recovered.
        iterator: iterator of a task that is not started: reads objects, with the current format.
        may_be_lost: send also to topics that may lose confirmed messages.
    """

    def __init__(self, session: Session, iterator: AbstractSourceRecordIterator, *, may_be_lost: bool = False) -> None:
        config = session.config
        box = IggyDeadLetters.of(session.connection, config)
        assert box is not None
        self._session = session
        self._iterator = iterator
        self._box = box
        self._source = config.source.name
        self._stream = config.iggy.stream
        self._provenance = config.iggy.headers == "provenance"
        self._may_be_lost = may_be_lost
        self._can_look_up = type(iterator).look_up is not AbstractSourceRecordIterator.look_up
        self._refusal = functools.cache(self._refusal_of)  # asked of each dead letter
        self._filtered: list[StoredDeadLetter] = []
        self.counts = ReplayCounts()

    def run(self, dead_letters: Sequence[StoredDeadLetter], notes: Sequence[ReplayMarker]) -> ReplayCounts:
        """Replay dead letters, and mark them.

        Args:
            dead_letters: dead letters that are not replayed yet.
            notes: every marker of earlier replays.

        Raises:
            IggyTopicError: a topic may lose confirmed messages.
            PositionError: messages of a partition that positions count as saved are gone.
            UnknownOutcomeError, IggyUnavailableError: the next replay finds what was sent and not marked.
            SourceError: an error of the store or a topic.
        """
        placed = [dead_letter for dead_letter in dead_letters if self._has_place(dead_letter)]
        waiting = self._found([dead_letter for dead_letter in placed if dead_letter.kind == "record"], notes)
        with contextlib.closing(self._remade(waiting)) as remade:
            for group in self._groups(remade):
                self._send(group)
        self._box.replayed(self._filtered)
        self.counts.filtered = len(self._filtered)
        self._reopen([dead_letter for dead_letter in placed if dead_letter.kind == "object"])
        return self.counts

    def _has_place(self, dead_letter: StoredDeadLetter) -> bool:
        """Return whether records may go where the dead letter says: any program with access can write dead letters."""
        topic_partition, partitions = dead_letter.topic_partition, self._session.config.iggy.partitions
        refusal = self._refusal(topic_partition.topic)
        if refusal is None and topic_partition.partition >= partitions:
            has = counted(partitions, "partition")
            refusal = f"has {has}, and the dead letter names partition {topic_partition.partition}"
        if refusal is not None:
            self._stays(RecordError(f'topic "{topic_partition.topic}" {refusal}'))
        return refusal is None

    def _refusal_of(self, topic: str) -> str | None:
        config = self._session.config
        if topic in {config.offsets_topic, config.errors.dead_letter_topic}:
            return "keeps positions or dead letters; records never go there"
        if topic == Router(config).fixed_topic:
            return None  # a problem with it ends the replay: the user must fix it
        return topic_refusal(self._session.connection, config, topic)

    def _is_passed(self, dead_letter: StoredDeadLetter) -> bool:
        """Return whether the source is past the record of an object that it can still read; else it would send it, too."""
        entry = self._session.offsets.get_entry(_position(dead_letter).get_manager_key())
        if entry is None or entry.version != dead_letter.version:
            return True
        entries = [entry]
        if entry.part is not None:  # a record that is good now can be of any part
            entries += self._session.offsets.table.splits_of(entry)
        if all(part.records_done >= dead_letter.record for part in entries):
            return True
        self._stays(RecordError("the source was killed before it had gone beyond the record; start it first"))
        return False

    def _reopen(self, dead_letters: Sequence[StoredDeadLetter]) -> None:
        """Reopen positions before marking: a dead letter that was only marked would never be replayed."""
        dead_letters = [dead_letter for dead_letter in dead_letters if self._can_resume(dead_letter)]
        places = {
            (dead_letter.bucket, dead_letter.key, dead_letter.split_number, dead_letter.version, dead_letter.record - 1)
            for dead_letter in dead_letters
        }
        self.counts.reopened = reopen_objects(
            self._session,
            lambda entry: (entry.bucket, entry.key, entry.split_number, entry.version, entry.records_done) in places,
        )
        self._box.replayed(dead_letters)

    def _can_resume(self, dead_letter: StoredDeadLetter) -> bool:
        """Return whether the next run can resume the object; it stops at records that other options numbered."""
        now = self._iterator.numbering_options
        entry = self._session.offsets.get_entry(_position(dead_letter).get_manager_key().whole())
        if entry is None:
            return True
        entries = [entry, *(self._session.offsets.table.splits_of(entry) if entry.split_size else ())]
        others = [each for each in entries if not is_numbered_by(each, now)]
        if not others or not any(each.records_done for each in entries):
            return True
        self._stays(
            RecordError(
                f"records of its object were read under {others[0].numbering_options or 'no options'}, and the configuration "
                f"now says {now}: set [input] and [[transforms]] back, or read the object again from its first record with "
                f"`offsets reset --key`"
            )
        )
        return False

    # ---- records that are in the topic already

    def _found(self, dead_letters: Sequence[StoredDeadLetter], notes: Sequence[ReplayMarker]) -> list[StoredDeadLetter]:
        """Mark the dead letters whose records are in the topic; return the others.

        An earlier, killed replay sent them, under their ids of a replay. Or the source did, under their own ids: it was
        killed behind a dead letter, the cause was fixed, and it read the record again, as a good one.
        """
        by_offset = {dead_letter.offset: dead_letter for dead_letter in dead_letters}
        suspects: set[int] = set()
        since: dict[TopicPartition, int] = {}
        for note in notes:
            noted = [by_offset[offset] for offset in note.dead_letters if offset in by_offset]
            suspects.update(map(self._id, noted))
            unknown = dict.fromkeys((dead_letter.topic_partition for dead_letter in noted), 0)
            for topic_partition, end in ((note.ends or unknown) if noted else {}).items():
                since[topic_partition] = min(end, since.get(topic_partition, end))
        for topic_partition, offset in self._ends_before(dead_letters).items():
            since[topic_partition] = min(offset, since.get(topic_partition, offset))
        own = {self._own_id(dead_letter) for dead_letter in dead_letters}
        replayed: set[int] = set()
        delivered: set[int] = set()
        for topic_partition, offset in since.items():
            topic, partition = topic_partition.topic, topic_partition.partition
            for _, message in read_topic(self._session.connection, self._stream, topic, [partition], start=offset):
                if message.message_id in suspects and REPLAY_HEADER in message.headers:
                    replayed.add(message.message_id)
                delivered.update({message.message_id, _of_any_part(message.message_id)} & own)
        self.counts.found = len(replayed)
        self.counts.delivered = len(delivered)
        known = [self._id(each) in replayed or self._own_id(each) in delivered for each in dead_letters]
        self._box.replayed(list(itertools.compress(dead_letters, known)))
        return [dead_letter for dead_letter, is_known in zip(dead_letters, known, strict=True) if not is_known]

    def _ends_before(self, dead_letters: Iterable[StoredDeadLetter]) -> dict[TopicPartition, int]:
        """Return where the partitions ended when the first of the dead letters was stored."""
        first: dict[tuple[TopicPartition, int], int] = {}  # of a partition and a number of parts
        for dead_letter in dead_letters:
            division = dead_letter.division
            at = dead_letter.topic_partition, division.parts if isinstance(division, KeyPart) else 0
            first[at] = min(dead_letter.timestamp_us, first.get(at, dead_letter.timestamp_us))
        times: dict[TopicPartition, int] = {}
        for (own, parts), time_us in first.items():
            # a record of a part that is good now can be of any part
            places = [TopicPartition(own.topic, partition) for partition in range(parts)] or [own]
            for place in places:
                times[place] = min(time_us, times.get(place, time_us))
        ends: dict[TopicPartition, int] = {}
        connection, slack_us = self._session.connection, CLOCK_STEP_SECONDS * 1_000_000
        for topic in {place.topic for place in times}:
            info = connection.get_topic(self._stream, topic)
            for found in info.partitions if info is not None else ():
                place = TopicPartition(topic, found.id)
                if place in times:
                    ends[place] = offset_since(connection, self._stream, topic, found, times[place] - slack_us)
        return ends

    def _own_id(self, dead_letter: StoredDeadLetter) -> int:
        """Return the id of the record's own message, as if it were of no part."""
        number = message_id(
            entry_hash64(self._source, _position(dead_letter)), dead_letter.split_number, dead_letter.record
        )
        return _of_any_part(number) if isinstance(dead_letter.division, KeyPart) else number

    def _id(self, dead_letter: StoredDeadLetter) -> int:
        """Return the id of the message that replays the dead letter."""
        bucket, key, version, split_size, generation, split_number = _object_of(dead_letter)
        of_object = dead_letter_hash64(
            self._source, bucket, key, version, split_size, generation=generation, kind="replayed"
        )
        return message_id(of_object, split_number, dead_letter.record)

    # ---- the records

    def _remade(self, dead_letters: Iterable[StoredDeadLetter]) -> Generator[_Remade, None, None]:
        """Yield the records that can be read now, object by object."""
        by_object = sorted(
            dead_letters, key=lambda dead_letter: (*_object_of(dead_letter), dead_letter.record, dead_letter.offset)
        )
        for _, group in itertools.groupby(by_object, key=_object_of):
            wanted = list(group)
            try:
                native, wanted = self._present(wanted)
                if not wanted:
                    continue
                context = self._context(wanted[0], native)
            except (ObjectError, AccessDeniedError) as error:  # of this object alone; the others are replayed
                for _ in wanted:
                    self._stays(error)
                continue
            with contextlib.closing(self._records(native, wanted)) as records:
                for dead_letter, record in zip(wanted, records, strict=True):
                    try:
                        payload = self._payload(dead_letter, record)
                        remade = self._transformed(dead_letter, payload, context)
                    except SkippableError as error:
                        self._stays(error)
                    else:
                        if remade is not None:
                            yield remade

    def _present(self, wanted: list[StoredDeadLetter]) -> tuple[NativeObject | None, list[StoredDeadLetter]]:
        """Return the object of dead letters, None unless it is there in their version; and those that can be replayed now."""
        native = self._iterator.look_up(_native(wanted[0]))
        if native is not None and is_older_form(wanted[0].version, native.version):
            native = attrs.evolve(native, version=wanted[0].version)
        if native is not None and native.version != wanted[0].version:
            # read in its present version, and its position compacted since: with a position, its generation tells which dead
            # letters are those of the present version
            key = OffsetManagerKey.of_object(native.bucket, native.key)
            if self._session.offsets.table.is_compacted(key, native.key, native.modified_ms):
                self.counts.superseded += len(wanted)
                return None, []
            return None, wanted
        if native is None and self._can_look_up:
            return None, wanted  # no source goes on with an object that is gone
        return native, [dead_letter for dead_letter in wanted if self._is_passed(dead_letter)]

    def _context(self, dead_letter: StoredDeadLetter, native: NativeObject | None) -> TransformContext:
        """Return the object of dead letters for the transforms; without its times when it is gone."""
        position = _position(dead_letter)
        return context_of(self._iterator, native or _native(dead_letter), position, exists=native is not None)

    def _transformed(self, dead_letter: StoredDeadLetter, payload: bytes, context: TransformContext) -> _Remade | None:
        """Return a record after the configured transforms; None when they filter it: then the dead letter is done.

        Raises:
            SkippableError: a transform cannot handle it.
        """
        batch = TransformBatch(payloads=[payload], numbers=range(dead_letter.record, dead_letter.record + 1))
        transforms, topic_partition = self._iterator.transforms, dead_letter.topic_partition
        if transforms is not None:
            run = PayloadBatch(first_record=dead_letter.record, payloads=[payload], size_bytes=len(payload))
            result = transforms.apply(run, context)
            if result.bad:
                raise result.bad[0].error
            if result.filtered:
                self._filtered.append(dead_letter)
                return None
            batch = result.batch
        if batch.key_hashes is not None:
            partition = int(batch.key_hashes[0]) % self._session.config.iggy.partitions
            topic_partition = TopicPartition(topic_partition.topic, partition)
        return _Remade(dead_letter, topic_partition, batch)

    def _stays(self, error: SkippableError | AccessDeniedError) -> None:
        reason = error.message if isinstance(error, SkippableError) else str(error)
        self.counts.bad[reason] = self.counts.bad.get(reason, 0) + 1

    def _payload(self, dead_letter: StoredDeadLetter, read: bytes | SkippableError | None) -> bytes:
        if isinstance(read, bytes):
            return read
        if isinstance(read, RecordError):
            raise read
        raw = self._box.raw(dead_letter) if dead_letter.payload == "whole" else b""
        if not raw:
            reason = read.message if read is not None else "its object is gone, or there in another version"
            held = "does not hold the whole record"
            if dead_letter.payload == "whole":
                held = "is gone: retention or a purge of its topic has just dropped it"
            raise RecordError(f"{reason}, and the dead letter {held}")
        if dead_letter.error == RecordTransformError.__name__:  # the format had read it
            return raw
        transformer = self._iterator.transformer
        try:
            payload: object = transformer.decode_record(raw, key=dead_letter.key)
        except Exception as failure:
            error = explained(failure, f"{dead_letter.bucket}/{dead_letter.key}", dead_letter.record)
            if isinstance(error, RecordError) and read is not None:
                raise RecordError(f"{read.message}, and {error.message}") from failure
            if error is failure:
                raise
            raise error from failure
        if not isinstance(payload, bytes):
            kind = type(transformer).__name__
            raise FormatContractError(f"{kind}.decode_record returned {type(payload).__name__}, not bytes")
        return payload

    def _records(
        self, native: NativeObject | None, dead_letters: Sequence[StoredDeadLetter]
    ) -> Generator[bytes | SkippableError | None, None, None]:
        """Yield the record of each dead letter of an object, or of one of its splits, under the current configuration.

        Instead of a record that cannot be read, yield the reason; None when there is none. Holds one run of records, however
        many are wanted.
        """
        unreadable = self._numbered_otherwise(native, dead_letters[0]) if native is not None else None
        if native is None or unreadable is not None:
            yield from itertools.repeat(unreadable, len(dead_letters))
            return
        split, skip = dead_letters[0].division, dead_letters[0].record - 1
        source, transformer = FetchedInput(self._iterator.open_input(native), 0, None), self._iterator.transformer
        read = transformer.read
        if isinstance(split, Split):
            read = functools.partial(transformer.read_split, split=split)
        runs = guarded(
            functools.partial(read, source, skip=skip, limits=BatchLimits(records=SCAN_RECORDS)),
            native.location,
            skip,
            of=transformer,
        )
        try:
            yield from _found(runs, [dead_letter.record for dead_letter in dead_letters])
        finally:
            close_iterator(runs)

    def _numbered_otherwise(self, native: NativeObject, dead_letter: StoredDeadLetter) -> ObjectError | None:
        """Return an error when the current options give the object's records other numbers: another would be sent."""
        entry = self._session.offsets.get_entry(_position(dead_letter).get_manager_key())
        then, now = dead_letter.numbering_options, self._iterator.numbering_options
        if not then and entry is not None and entry.version == dead_letter.version:
            then = entry.numbering_options
        if numbers_alike(then, now):
            return None
        return ObjectError(
            f"its records were numbered under {then}, and the configuration now says {now}: set [input] back",
            location=native.location,
        )

    # ---- sending

    def _groups(self, remade: Iterable[_Remade]) -> Iterator[list[_Remade]]:
        """Yield groups to send between two marks. Dead letters with the same id are adjacent, and stay together."""
        group: list[_Remade] = []
        size = 0
        for remade_record in remade:
            full = len(group) >= BATCH_SIZE or size >= BATCH_BYTES
            if full and self._id(remade_record.dead_letter) != self._id(group[-1].dead_letter):
                yield group
                group, size = [], 0
            group.append(remade_record)
            size += len(remade_record.batch.payloads[0])
        if group:
            yield group

    def _send(self, group: Sequence[_Remade]) -> None:
        """Note the ends, send, mark. Dead letters with the same id are one record, which is sent once."""
        topic_partitions = sorted({remade_record.topic_partition for remade_record in group})
        ends = {topic_partition: self._end_of(topic_partition) for topic_partition in topic_partitions}
        dead_letters = [remade_record.dead_letter for remade_record in group]
        self._box.note(dead_letters, ends)
        for topic_partition in topic_partitions:
            noted = {
                self._id(remade_record.dead_letter): remade_record
                for remade_record in group
                if remade_record.topic_partition == topic_partition
            }
            segments = [self._segment(remade_record) for remade_record in noted.values()]
            for part in wire.cut_segments(segments, BATCH_BYTES):
                for timed in wire.cut_times(part, time.time_ns() // 1000):
                    place = self._stream, topic_partition.topic, topic_partition.partition
                    self._session.connection.send_raw(*place, wire.encode_send(*place, timed))
            self.counts.sent += len(noted)
        self._box.replayed(dead_letters)

    def _end_of(self, topic_partition: TopicPartition) -> int:
        """Return the offset of a partition's next message.

        Raises:
            IggyTopicError: the topic may lose confirmed messages.
            PositionError: messages that positions count as saved are gone: what is sent now would hide that.
        """
        self._session.partitions.check([topic_partition])
        info = self._session.partitions.ensure_topic(topic_partition.topic)
        if hold_back_of(info) and not self._may_be_lost:
            raise IggyTopicError(
                f'topic "{topic_partition.topic}" of stream "{self._stream}" saves only every '
                f"{info.messages_required_to_save} messages, "
                f"and a record that is sent again has no position: were the server killed, it would be gone. To send it all "
                f"the same: --may-be-lost"
            )
        last = self._session.connection.poll(
            self._stream, topic_partition.topic, topic_partition.partition, offset="last", count=1
        )
        return last[-1].offset + 1 if last else 0

    def _segment(self, remade: _Remade) -> wire.Segment:
        dead_letter, batch = remade.dead_letter, remade.batch
        split = dead_letter.division if isinstance(dead_letter.division, Split) else None
        headers = provenance(_native(dead_letter), split=split) if self._provenance else {}
        made = batch.headers[0] if batch.headers is not None else None
        number = self._id(dead_letter)
        return wire.Segment(
            id_high=number >> 64,
            split_number=dead_letter.split_number,
            first_record=dead_letter.record,
            payloads=[bytes(batch.payloads[0])],
            headers=encode_headers({**merge_headers(headers, made or {}), REPLAY_HEADER: "1"}),
            times_us=batch.timestamps_us,
        )


def _found(
    runs: Iterator[PayloadBatch | SkippedRecord], numbers: Iterable[int]
) -> Iterator[bytes | SkippableError | None]:
    """Yield the records with these numbers, which do not fall: each, or why it cannot be read; None when there is none."""
    waiting = deque(numbers)
    error: ObjectError | None = None
    try:
        for run in runs:
            found: Sequence[bytes | SkippableError]
            if isinstance(run, SkippedRecord):
                first, found = run.record_number, [run.error]
            else:
                first, found = run.first_record, run.payloads
            while waiting and waiting[0] < first + len(found):
                at = waiting.popleft() - first
                yield found[at] if at >= 0 else None
            if not waiting:
                return
    except (SkippableError, AccessDeniedError) as failure:
        # covers the remaining records: only the dead letters' own bytes are left for them
        error = failure if isinstance(failure, ObjectError) else ObjectError(str(failure))
    yield from itertools.repeat(error, len(waiting))


def _of_any_part(number: int) -> int:
    """Return a message id without the number of the split or part."""
    return number & ~(MAX_SPLIT << 40)


def _object_of(dead_letter: StoredDeadLetter) -> tuple[str, str, str, int, int, int]:
    """Return bucket, key, version, split size, generation and split number."""
    position = _position(dead_letter)
    object_version = position.bucket, position.key, position.version
    return *object_version, position.split_size, position.generation, position.split_number


def _position(dead_letter: StoredDeadLetter) -> OffsetManagerEntry:
    """Return the position of its object, or of the split, before the first record."""
    return OffsetManagerEntry(
        bucket=dead_letter.bucket,
        key=dead_letter.key,
        version=dead_letter.version,
        generation=dead_letter.generation,
        split_number=dead_letter.split_number,
        split_size=dead_letter.split_size,
        topic_partition=dead_letter.topic_partition,
    )


def _native(dead_letter: StoredDeadLetter) -> NativeObject:
    """Return the object as far as a dead letter knows it."""
    return NativeObject(bucket=dead_letter.bucket, key=dead_letter.key, size=0, version=dead_letter.version)
