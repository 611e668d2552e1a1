"""Read a data partition beyond its anchor, and take it over for writing.

    anchor still there? -> messages after it -> counts -> hold back what a crash could take -> an `open` record

Positions are never created here. A message of this source is stored after the `begin` of its position. So a message without a
position is foreign, or of an earlier generation.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs
from typing_extensions import override

from framework.errors import PositionError
from framework.iggy.offset_log.records import PartitionOpening, TopicIdentity
from framework.iggy.offset_log.state import LogState
from framework.iggy.reader import read_whole
from framework.iggy.topics import PartitionDamagedError, check_answering
from framework.iggy.values import place_of
from framework.model.message_ids import parse_message_id
from framework.model.objects import Anchor, TopicPartition
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.offsets.partition_counts import PartitionState, UnsavedCount

if TYPE_CHECKING:
    from framework.iggy.connection import IggyConnection, Offset
    from framework.iggy.values import PartitionInfo, StoredMessage, TopicInfo

log = logging.getLogger(__name__)

USUAL_MESSAGES_REQUIRED_TO_SAVE = 1024
"""Assumed for a topic that does not report its setting."""

WAYS_OUT = "To go on, and leave as done what was done: `offsets accept-data-loss`. To read everything again: `offsets reset --all`"


class PartitionGoneError(PositionError):
    """Messages of a partition were removed by an operator; a `PositionError` that names the partition.

    Attributes:
        topic_partition: the partition whose messages are gone.
    """

    def __init__(self, message: str, topic_partition: TopicPartition) -> None:
        super().__init__(message)
        self.topic_partition = topic_partition

    @override
    def __reduce__(self) -> tuple[object, ...]:
        # it travels from a worker to its leader
        return type(self), (str(self), self.topic_partition)


@attrs.define(kw_only=True)
class FoundPartition:
    """A partition as it was found.

    Attributes:
        opening: the `open` record to write for it.
        state: state for the `OffsetManager` that writes the partition from now on.
        anchor: the message up to which `saved` accounts for everything.
        saved: position -> records that no crash can take back.
        messages: number of messages read.
        found: how many of them are records that no position counted.
    """

    opening: PartitionOpening
    state: PartitionState
    anchor: Anchor | None
    saved: Mapping[OffsetManagerKey, int]
    messages: int = 0
    found: int = 0


def hold_back_of(info: TopicInfo) -> int:
    """Return how many of a partition's last messages a killed server may lose; 0 when it loses none."""
    required = info.messages_required_to_save
    required = USUAL_MESSAGES_REQUIRED_TO_SAVE if required is None else required
    return required if required > 1 else 0


def identity_of(info: TopicInfo) -> TopicIdentity:
    """Return the identity of a topic, distinct from a later topic of the same name."""
    return TopicIdentity(topic_id=info.id, created_at=info.created_at)


class PartitionReader:
    """Reader of a stream's partitions before they are written. Not thread-safe.

    Args:
        connection: an open connection.
        stream: the stream's name.
        state: state of the log.
    """

    def __init__(self, connection: IggyConnection, stream: str, state: LogState) -> None:
        self._connection = connection
        self._stream = stream
        self._state = state

    def read(self, topic_partition: TopicPartition, info: TopicInfo) -> FoundPartition:
        """Read a partition beyond its anchor.

        Args:
            topic_partition: an existing partition.
            info: its topic.

        Raises:
            PartitionGoneError: messages that positions count as saved are gone.
            PartitionDamagedError: the server has messages that it does not return.
            IggyUnavailableError: the server cannot read the partition.
        """
        left_from = self.check(topic_partition, info)
        anchor = self._state.anchors.get(topic_partition)
        if anchor is None and topic_partition not in self._state.topics:
            anchor = self._safe_end(topic_partition, info)
        opening = PartitionOpening(topic_partition=topic_partition, topic=identity_of(info), anchor=anchor)
        return self._replay(topic_partition, opening, info, left_from)

    def check(self, topic_partition: TopicPartition, info: TopicInfo) -> int | None:
        """Check with one poll that the messages that positions count as saved are still in the partition.

        Args:
            topic_partition: an existing partition.
            info: its topic.

        Returns:
            The first offset that is left, if messages after the anchor have expired and sent counts account for them.

        Raises:
            PartitionGoneError: they are not.
            PartitionDamagedError: the server has messages that it does not return.
            IggyUnavailableError: the server cannot read the partition.
        """
        state = self._state
        known, anchor = state.topics.get(topic_partition), state.anchors.get(topic_partition)
        if known is None and anchor is None:
            return None
        if known is not None and known != identity_of(info):
            raise PartitionGoneError(
                f'topic "{topic_partition.topic}" of stream "{self._stream}" was recreated since source "{state.source}" last '
                f"ran, so what its positions call done is not there. {WAYS_OUT}",
                topic_partition,
            )
        return self._check_anchor(topic_partition, anchor, info)

    def count_from_first(self, topic_partition: TopicPartition, info: TopicInfo) -> None:
        """Change the state so that a partition whose messages are gone is counted from the first message that is left.

        Args:
            topic_partition: an existing partition.
            info: its topic.

        Raises:
            IggyUnavailableError: the connection broke.
        """
        state, anchor = self._state, self._before_first(topic_partition, info)
        state.forget(topic_partition)
        state.topics[topic_partition] = identity_of(info)
        if anchor is not None:
            state.anchors[topic_partition] = anchor

    def _safe_end(self, topic_partition: TopicPartition, info: TopicInfo) -> Anchor | None:
        """Return the last message that no crash can take, of a partition without messages that count.

        If that one has expired, the place before the first message: nothing that counts was ever there.
        """
        found = self._poll(topic_partition, "last")
        hold_back = hold_back_of(info)
        if found and hold_back:
            at = found[0].offset - hold_back
            found = [message for message in self._poll(topic_partition, at) if message.offset == at] if at >= 0 else []
        return anchor_of(found[0]) if found else self._before_first(topic_partition, info)

    def _before_first(self, topic_partition: TopicPartition, info: TopicInfo) -> Anchor | None:
        first = self._poll(topic_partition, 0)
        left_from = first[0].offset if first else _end_of(topic_partition, info)
        return Anchor(left_from - 1, 0) if left_from else None

    def _check_anchor(self, topic_partition: TopicPartition, anchor: Anchor | None, info: TopicInfo) -> int | None:
        """Check that the anchor's message is unchanged, or has expired and nothing after it is unknown.

        A crash never takes it: a message becomes an anchor only when the server can no longer lose it.

        Returns:
            The first offset that is left, if messages after it have expired, too, and sent counts account for them.

        Raises:
            PartitionGoneError, PartitionDamagedError, IggyUnavailableError: see `check`.
        """
        at = anchor.offset if anchor is not None else -1
        found = self._poll(topic_partition, max(at, 0))
        place = self._place(topic_partition)
        if not found:
            partition = _details_of(topic_partition, info)
            check_answering(self._connection, self._stream, topic_partition.topic, partition)
            if partition.messages_count and partition.current_offset > at:
                raise PartitionDamagedError.found(place, partition.current_offset, missing=max(at, 0))
        if anchor is not None and found and found[0].offset == at:
            message = found[0]
            if anchor.is_at(message.offset, message.message_id, message.origin_us):
                return None
            raise PartitionGoneError(
                f'{place}: another message stands where source "{self._state.source}" had saved its own: the topic was purged, or '
                f"restored from elsewhere. {WAYS_OUT}",
                topic_partition,
            )
        end = _end_of(topic_partition, info)
        first = found[0].offset if found else end
        if first <= at:
            now = f"ends at {end - 1}" if end else "is empty"
            raise PartitionGoneError(
                f'{place}: source "{self._state.source}" had saved positions up to offset {at}, and the partition {now}: it was '
                f"purged, restored from an old backup, or damaged by a killed server. {WAYS_OUT}",
                topic_partition,
            )
        if first == at + 1:
            return None
        if not self._is_counted(topic_partition, first, end):
            raise PartitionGoneError(
                f"{place}: messages {at + 1} to {first - 1} expired before it was known what of them is of source "
                f'"{self._state.source}": the records sent there are unknown now. To send again what is not known to be '
                f"there: `offsets accept-data-loss`",
                topic_partition,
            )
        return first

    def _is_counted(self, topic_partition: TopicPartition, first: int, end: int) -> bool:
        """Return whether sent counts account for all that expired, and no crash has taken messages since.

        A crash takes the last messages: if the last counted message is there, or has expired, those before it were there.

        Args:
            topic_partition: a partition whose anchor has expired.
            first: offset of the first message that is left.
            end: offset of the next message.
        """
        counted, closed_at = self._state.counted.get(topic_partition), self._state.closed.get(topic_partition)
        if closed_at is None and (counted is None or counted.offset < first - 1):
            return False
        if closed_at is not None and closed_at >= end:
            return False
        if counted is None or counted.offset < first:
            return True
        found = self._poll(topic_partition, counted.offset)
        return any(counted.is_at(message.offset, message.message_id, message.origin_us) for message in found)

    def _poll(self, topic_partition: TopicPartition, offset: Offset) -> list[StoredMessage]:
        topic, partition = topic_partition.topic, topic_partition.partition
        return self._connection.poll(self._stream, topic, partition, offset=offset, count=1)

    def _place(self, topic_partition: TopicPartition) -> str:
        return place_of(self._stream, topic_partition.topic, topic_partition.partition)

    # ---- replay

    def _replay(
        self,
        topic_partition: TopicPartition,
        opening: PartitionOpening,
        info: TopicInfo,
        left_from: int | None,
    ) -> FoundPartition:
        """Count the messages after the anchor.

        Args:
            topic_partition: the partition.
            opening: its `open` record, without counts.
            info: its topic.
            left_from: the first offset that is left, if messages after the anchor expired: sent counts account for them.

        Raises:
            PartitionGoneError: records were sent to an emptied partition.
            PartitionDamagedError, IggyUnavailableError: see `read`.
        """
        known: dict[OffsetManagerKey, OffsetManagerEntry] = {}
        anchor = last = opening.anchor
        if left_from is not None:
            anchor = last = Anchor(left_from - 1, 0)
            pending = self._state.positions.pending()
            known = {key: entry for key, entry in pending if entry.topic_partition == topic_partition}
        counts = {self._state.identity(entry): entry.records_done for entry in known.values()}
        lowest: dict[OffsetManagerKey, int] = {}
        reached: dict[OffsetManagerKey, int] = {}
        saved: dict[OffsetManagerKey, int] = {}
        state = PartitionState(hold_back=hold_back_of(info), last=last)
        messages = new = 0
        counted = self._state.counted.get(topic_partition)
        start = last.offset + 1 if last is not None else 0
        partition = _details_of(topic_partition, info)
        for message in read_whole(self._connection, self._stream, info.name, partition, start=start):
            messages += 1
            state.last = last = anchor_of(message)
            parts = parse_message_id(message.message_id)
            entry = self._state.find(parts.object_hash, parts.split_number)
            if entry is not None and entry.topic_partition == topic_partition:
                below = counted is not None and message.offset <= counted.offset
                if below and 0 < entry.records_done < parts.record:
                    raise self._written_after_purge(entry, message, parts.record)
                new += parts.record > entry.records_done
                key = entry.get_manager_key()
                lowest.setdefault(key, parts.record)
                reached[key] = max(parts.record, reached.get(key, entry.records_saved))
                identity = parts.object_hash, parts.split_number
                counts[identity] = max(reached[key], counts.get(identity, 0))
                state.unsaved.append(UnsavedCount(last, key, entry.generation, reached[key]))
            for item in state.take_safe():
                anchor = item.anchor
                saved[item.key] = item.records
            if not state.hold_back:
                anchor = last
        held = {item.key: place for place, item in enumerate(state.unsaved)}
        for key, entry in known.items():
            count = counts[self._state.identity(entry)]
            if key not in held:
                saved[key] = count
                continue
            # what expired was on disk: no crash takes it back; records after its last message have none
            saved.setdefault(key, lowest[key] - 1)
            state.unsaved[held[key]] = attrs.evolve(state.unsaved[held[key]], records=count)
        return FoundPartition(
            opening=attrs.evolve(opening, counts=counts, counted=last),
            state=state,
            anchor=anchor,
            saved=saved,
            messages=messages,
            found=new,
        )

    def _written_after_purge(
        self, entry: OffsetManagerEntry, message: StoredMessage, record: int
    ) -> PartitionGoneError:
        """Return the error for a record that is before the last counted message, and was sent after it.

        A killed server loses the last messages, too. But nothing is sent in their place before a later opening counts again.
        """
        return PartitionGoneError(
            f"{self._place(entry.topic_partition)}: record {record} of {entry.bucket}/{entry.key} is at offset "
            f'{message.offset}, and source "{self._state.source}" had counted {entry.records_done} records there before: the '
            f"topic was purged, or restored from elsewhere. {WAYS_OUT}",
            entry.topic_partition,
        )


def _end_of(topic_partition: TopicPartition, info: TopicInfo) -> int:
    """Return the offset of a partition's next message; 0 of an empty one that may have held one message."""
    partition = _details_of(topic_partition, info)
    return partition.current_offset + 1 if partition.messages_count or partition.current_offset else 0


def _details_of(topic_partition: TopicPartition, info: TopicInfo) -> PartitionInfo:
    return next(candidate for candidate in info.partitions if candidate.id == topic_partition.partition)


def anchor_of(message: StoredMessage) -> Anchor:
    """Return a message as an anchor."""
    return Anchor(message.offset, message.message_id, message.origin_us)
