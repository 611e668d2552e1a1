"""Which dead letters are stored already: read from their topic by a recovery, and told to the positions.

Letters are stored before the log knows of them. So after a crash the topic is read on from where the last epoch began, and each
letter about an object that is not finished becomes a skipped number of its position, or the place from which its rest was given
up: whoever reads the object again leaves no second letter. A mark says that the letter about an object's rest was replayed: the
object is read on from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from framework.ids import dead_letter_hash64, message_id
from framework.iggy.dead_letters import PARTITION, Mark, StoredLetter, read_letter
from framework.iggy.reader import read_partition
from framework.offsets import OffsetManagerEntry, OffsetManagerKey
from framework.records import Anchor, ObjectState

if TYPE_CHECKING:
    from framework.iggy.checkpoints import SkipFacts
    from framework.iggy.client import IggyConnection
    from framework.position_map import PositionMap

_Place = tuple[OffsetManagerKey, str, int]
"""Key, version, split size: what a letter and a position must agree in."""


class KnownLetters:
    """The letters behind an anchor. One use: `read`, then `apply`.

    Args:
        connection: an open one.
        stream: its name.
        topic: the dead letter topic; it exists.
        source: the source's name.

    Attributes:
        count: letters that were found.
    """

    def __init__(self, connection: IggyConnection, *, stream: str, topic: str, source: str) -> None:
        self._connection = connection
        self._stream = stream
        self._topic = topic
        self._source = source
        self._records: dict[_Place, list[int]] = {}
        self._rests: dict[_Place, int] = {}
        self._places: dict[int, _Place] = {}
        self._replayed: set[int] = set()
        self._reopened: dict[_Place, int] = {}
        self.count = 0

    def end(self) -> Anchor | None:
        """The last message of the topic."""
        last = self._connection.poll(self._stream, self._topic, PARTITION, offset="last", count=1)
        return Anchor(last[-1].offset, last[-1].message_id) if last else None

    def read(self, anchor: Anchor | None) -> Anchor | None:
        """Reads what follows the anchor; returns the last message's place.

        A topic without the anchor's message was emptied or made anew, which its owner may do at any time: all of it is read.
        """
        start = anchor.offset + 1 if anchor is not None and self._stands(anchor) else 0
        last = anchor if start else None
        for message in read_partition(self._connection, self._stream, self._topic, PARTITION, start=start):
            last = Anchor(message.offset, message.message_id)
            letter = read_letter(message, self._source)
            if isinstance(letter, StoredLetter):
                self._see(letter)
            elif isinstance(letter, Mark) and letter.replayed:
                self._see_replayed(letter)
        return last

    def _stands(self, anchor: Anchor) -> bool:
        found = self._connection.poll(self._stream, self._topic, PARTITION, offset=anchor.offset, count=1)
        return bool(found) and (found[0].offset, found[0].message_id) == (anchor.offset, anchor.message_id)

    def _see(self, letter: StoredLetter) -> None:
        self.count += 1
        place = _place(letter)
        if letter.kind == "record":
            self._records.setdefault(place, []).append(letter.record)
        else:
            self._rests[place] = letter.record
            self._places[letter.message_id] = place
            self._replayed.discard(letter.message_id)

    def _see_replayed(self, mark: Mark) -> None:
        for offset, number in zip(mark.letters, mark.ids, strict=True):
            self._rests.pop(self._places.get(number, _NOWHERE), None)
            self._replayed.add(number)
            if offset in mark.objects:
                # the letter may stand far before the anchor
                for message in self._connection.poll(self._stream, self._topic, PARTITION, offset=offset, count=1):
                    letter = read_letter(message, self._source)
                    if isinstance(letter, StoredLetter) and letter.message_id == number:
                        self._reopened[_place(letter)] = letter.record

    def apply(self, entries: PositionMap, facts: SkipFacts) -> None:
        """Tells the positions: of objects that are not finished, and of those whose letter was replayed.

        Args:
            entries: is changed.
            facts: skipped numbers that the log knows beyond those in the positions: their letters are stored as well.
        """
        for (key, version, split_size), record in self._reopened.items():
            given_up = entries.get(key)
            if (
                given_up is not None
                and given_up.state is ObjectState.FAILED
                and (given_up.version, given_up.split_size, given_up.records_done + 1) == (version, split_size, record)
            ):
                entries[key] = given_up.reopen()
        for key, entry in entries.unfinished():
            place = key, entry.version, entry.split_size
            numbers = [*self._records.get(place, ())]
            ranges = facts.get((key, entry.version), ())
            told = entry.with_skipped(numbers).with_skipped_ranges(ranges) if numbers or ranges else entry
            told = attrs.evolve(told, given_up=self._rests.get(place, self._still_given_up(told)))
            if told != entry:
                entries[key] = told

    def _still_given_up(self, entry: OffsetManagerEntry) -> int:
        """What the position knew; nothing once the letter was replayed: then the object may be given up anew."""
        if not entry.given_up:
            return 0
        of_object = dead_letter_hash64(
            self._source, entry.bucket, entry.key, entry.version, entry.split_size, whole_object=True
        )
        return 0 if message_id(of_object, entry.share, entry.given_up) in self._replayed else entry.given_up


def _place(letter: StoredLetter) -> _Place:
    key = OffsetManagerKey.of_object(letter.bucket, letter.key).of_share(letter.share)
    return key, letter.version, letter.split_size


_NOWHERE: _Place = (OffsetManagerKey(()), "", 0)
