"""Dead letters sent again: the command `dead-letter replay`.

    claim, fence, recover -> open letters -> [note where the lanes end -> send, marked -> confirmed -> mark the letters]

It is an epoch of its own, so it never runs beside its source. It can be repeated: letters that were sent and not marked when it
was killed are looked for in the lanes, behind the ends that it had noted before it sent. What it sends bears a header that
makes recoveries leave it out of the objects' counts.

A letter about a record sends that record. A letter about the rest of an object is only marked: the next start reads the mark,
and goes on with the object where it was given up (`framework.iggy.known_letters`).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from framework.errors import ObjectError, RecordError, SkippableError
from framework.half_way import give_up
from framework.ids import message_id, object_hash64
from framework.iggy import wire
from framework.iggy.dead_letters import IggyDeadLetters, Mark, StoredLetter
from framework.iggy.headers import REPLAY_HEADER, encode_headers, provenance
from framework.iggy.reader import read_partition
from framework.records import Lane, NativeObject, SkippedRecord, length_only
from framework.transformer import BatchLimits

if TYPE_CHECKING:
    from framework.engine.session import Session
    from framework.iterator import AbstractSourceRecordIterator

log = logging.getLogger(__name__)

AT_ONCE = 500
"""Letters between two marks."""

AT_ONCE_BYTES = 8 << 20

SCAN_RECORDS = 1000
"""Records of an object in memory while the wanted ones are looked for."""


@attrs.define(kw_only=True)
class ReplayCounts:
    """What came of a replay.

    Attributes:
        sent: records sent.
        found: records that an earlier replay, which was killed, had sent already.
        reopened: objects that the next start reads on.
        bad: letters that stay: sentence -> how many.
    """

    sent: int = 0
    found: int = 0
    reopened: int = 0
    bad: dict[str, int] = attrs.field(factory=dict)

    @property
    def stayed(self) -> int:
        """Letters that stay."""
        return sum(self.bad.values())


@attrs.frozen
class _Remade:
    letter: StoredLetter
    payload: bytes = attrs.field(repr=length_only)


class LetterReplay:
    """One replay, in the epoch of a session. One thread.

    Args:
        session: of this process; it has recovered.
        iterator: of a task that is not started: reads objects, with the format of now.
    """

    def __init__(self, session: Session, iterator: AbstractSourceRecordIterator) -> None:
        config = session.config
        box = IggyDeadLetters.of(session.connection, config)
        assert box is not None
        self._session = session
        self._iterator = iterator
        self._box = box
        self._source = config.source.name
        self._stream = config.iggy.stream
        self._provenance = config.iggy.headers == "provenance"
        self._ends: dict[Lane, int] = {}
        self.counts = ReplayCounts()

    def run(self, letters: Sequence[StoredLetter], notes: Sequence[Mark]) -> ReplayCounts:
        """Sends letters again, or marks them.

        Args:
            letters: that are not replayed yet.
            notes: every note of earlier replays.

        Raises:
            UnknownOutcomeError, IggyUnavailableError: what was sent and not marked is found by the next replay.
            SourceError: what the store or a topic says.
        """
        records = [letter for letter in letters if letter.kind == "record"]
        waiting = self._found(records, notes)
        for group in _groups(self._remade(waiting)):
            self._send(group)
        rests = [letter for letter in letters if letter.kind == "object"]
        for at in range(0, len(rests), AT_ONCE):
            self._box.replayed(rests[at : at + AT_ONCE])
        self.counts.reopened = len(rests)
        return self.counts

    # ---- what an earlier replay had sent

    def _found(self, letters: Sequence[StoredLetter], notes: Sequence[Mark]) -> list[StoredLetter]:
        """Marks the letters that an earlier replay had sent when it was killed; returns the others."""
        by_offset = {letter.offset: letter for letter in letters}
        suspects: set[int] = set()
        since: dict[Lane, int] = {}
        for note in notes:
            ours = [by_offset[offset] for offset in note.letters if offset in by_offset]
            suspects.update(map(self._id, ours))
            for lane in {letter.lane for letter in ours}:
                end = note.ends.get(lane, 0)
                since[lane] = min(end, since.get(lane, end))
        found: set[int] = set()
        for lane, end in since.items():
            for message in read_partition(
                self._session.connection, self._stream, lane.topic, lane.partition, start=end
            ):
                if REPLAY_HEADER in message.headers and message.message_id in suspects:
                    found.add(message.message_id)
        done = [letter for letter in letters if self._id(letter) in found]
        for at in range(0, len(done), AT_ONCE):
            self._box.replayed(done[at : at + AT_ONCE])
        self.counts.found = len(found)
        return [letter for letter in letters if self._id(letter) not in found]

    def _id(self, letter: StoredLetter) -> int:
        """Of the record's own message."""
        of_object = object_hash64(self._source, letter.bucket, letter.key, letter.version, letter.split_size)
        return message_id(of_object, letter.share, letter.record)

    # ---- the records

    def _remade(self, letters: Iterable[StoredLetter]) -> Iterator[_Remade]:
        """The records that are good now, object by object."""
        by_object = sorted(
            letters, key=lambda one: (one.bucket, one.key, one.version, one.share, one.record, one.offset)
        )
        for (bucket, key, version, _), group in itertools.groupby(
            by_object, key=lambda one: (one.bucket, one.key, one.version, one.share)
        ):
            wanted = list(group)
            native = self._as_it_was(bucket, key, version)
            read = self._from_object(native, wanted) if native is not None else {}
            for letter in wanted:
                try:
                    payload = self._payload(letter, read.get(letter.record))
                except SkippableError as error:
                    self._stays(error)
                else:
                    yield _Remade(letter, payload)

    def _stays(self, error: SkippableError) -> None:
        self.counts.bad[error.message] = self.counts.bad.get(error.message, 0) + 1

    def _as_it_was(self, bucket: str, key: str, version: str) -> NativeObject | None:
        """The object of the letters; None when it is gone, or is another version."""
        native = self._iterator.look_up(NativeObject(bucket=bucket, key=key, size=0, version=version))
        return native if native is not None and native.version == version else None

    def _payload(self, letter: StoredLetter, read: bytes | SkippableError | None) -> bytes:
        if isinstance(read, bytes):
            return read
        if isinstance(read, RecordError):
            raise read
        raw = self._box.raw(letter) if letter.payload == "whole" else b""
        if not raw:
            reason = read.message if read is not None else "its object is gone, or there in another version"
            raise RecordError(f"{reason}, and the letter does not hold the whole record")
        return self._iterator.transformer.remake(raw, key=letter.key)

    def _from_object(
        self, native: NativeObject, letters: Sequence[StoredLetter]
    ) -> Mapping[int, bytes | SkippableError]:
        """What the wanted records of an object, or of one of its shares, are under the configuration of now."""
        wanted = {letter.record for letter in letters}
        cut, skip = letters[0].cut, min(wanted) - 1
        source, read = self._iterator.get_input_stream(native), self._iterator.transformer
        limits = BatchLimits(records=SCAN_RECORDS)
        if cut is not None:
            runs = read.share_runs(source, cut, skip=skip, limits=limits)
        else:
            runs = read.runs(source, skip=skip, limits=limits)
        found: dict[int, bytes | SkippableError] = {}
        try:
            for run in runs:
                if isinstance(run, SkippedRecord):
                    if run.record_number in wanted:
                        found[run.record_number] = run.error
                else:
                    last = run.first_record + len(run.payloads) - 1
                    for number in wanted.intersection(range(run.first_record, last + 1)):
                        found[number] = bytes(run.payloads[number - run.first_record])
                if len(found) == len(wanted):
                    break
        except ObjectError as error:  # of the rest: the letters' own bytes are left
            for number in wanted - found.keys():
                found[number] = error
        finally:
            give_up(runs)
        return found

    # ---- sending

    def _send(self, group: Sequence[_Remade]) -> None:
        """Notes the ends, sends, marks. Letters with one id are one record: it is sent once."""
        lanes = sorted({one.letter.lane for one in group})
        for lane in lanes:
            self._open(lane)
        letters = [one.letter for one in group]
        self._box.note(letters, {lane: self._ends[lane] for lane in lanes})
        for lane in lanes:
            ours = {self._id(one.letter): one for one in group if one.letter.lane == lane}
            segments = [self._segment(one) for one in ours.values()]
            for some in wire.cut_segments(segments, AT_ONCE_BYTES):
                body = wire.encode_send(self._stream, lane.topic, lane.partition, some)
                self._session.connection.send_raw(self._stream, lane.topic, lane.partition, body)
            self.counts.sent += len(ours)
        self._box.replayed(letters)

    def _open(self, lane: Lane) -> None:
        self._session.lanes.ensure_topic(lane.topic)
        last = self._session.connection.poll(self._stream, lane.topic, lane.partition, offset="last", count=1)
        self._ends[lane] = last[-1].offset + 1 if last else 0

    def _segment(self, one: _Remade) -> wire.Segment:
        letter = one.letter
        native = NativeObject(bucket=letter.bucket, key=letter.key, size=0, version=letter.version)
        headers = provenance(native, share=letter.cut) if self._provenance else {}
        number = self._id(letter)
        return wire.Segment(
            id_high=number >> 64,
            share=letter.share,
            first_record=letter.record,
            payloads=[one.payload],
            headers=encode_headers({**headers, REPLAY_HEADER: "1"}),
        )


def _groups(remade: Iterable[_Remade]) -> Iterator[list[_Remade]]:
    group: list[_Remade] = []
    size = 0
    for one in remade:
        group.append(one)
        size += len(one.payload)
        if len(group) >= AT_ONCE or size >= AT_ONCE_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


__all__ = ["LetterReplay", "ReplayCounts"]
