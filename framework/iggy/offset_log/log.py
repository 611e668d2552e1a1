"""One source's log over one connection: append records, follow those of other writers, re-read them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING

from typing_extensions import Self

from framework.errors import IggyTopicError, PositionError
from framework.iggy.offset_log import framing
from framework.iggy.offset_log.framing import LogMessage
from framework.iggy.topics import DAMAGE_PAUSES_SECONDS, check_answering

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.iggy.connection import IggyConnection
    from framework.iggy.values import ObjectName, PartitionInfo, StoredMessage

log = logging.getLogger(__name__)

READ_MESSAGES = 8
MAX_READ_MESSAGES = 100
READ_BYTES = 1 << 20
"""Messages of the log per poll, and their bytes if none is larger than the largest of late: a part of a snapshot has
hundreds of kilobytes, progress some hundred bytes. A poll is in memory twice, as the answer and as its messages."""


class RecordGoneError(PositionError):
    """A record was there when the log was followed, and is gone: it was truncated meanwhile, or is damaged."""


class OffsetLog:
    """One source's view of the offsets topic. Thread-safe.

    Attributes:
        connection: the connection over which it is read and written.
        stream: its stream's name.
        topic: its name.
        source: name of the source whose records are read.
        next_offset: everything before it was read, or was appended here.
        total_bytes: approximate size of the log from its present beginning up to `next_offset`, never too large.
        largest_bytes: size of its largest message.
        foreign: messages of other writers to the topic that were read.
        messages: records of the source that were followed.

    Args:
        connection: an open connection.
        stream: the stream's name.
        topic: the topic's name.
        source: the source's name.
    """

    def __init__(self, connection: IggyConnection, *, stream: str, topic: str, source: str) -> None:
        self.connection = connection
        self.stream = stream
        self.topic = topic
        self.source = source
        self._place = f'source "{source}", offsets topic "{topic}" of stream "{stream}"'
        self._lock = threading.RLock()
        self.rewind()

    @classmethod
    def of(cls, connection: IggyConnection, config: SourceCommonConfig) -> Self:
        """Return the view of a configured source."""
        return cls(connection, stream=config.iggy.stream, topic=config.offsets_topic, source=config.source.name)

    # ---- reading

    def rewind(self) -> None:
        """Restart reading at the first message; records appended here are then included."""
        with self._lock:
            self.next_offset = self.foreign = self.messages = self.total_bytes = self.largest_bytes = 0
            self._own: dict[int, int] = {}
            self._replaced_at: int | None = None
            self._last_own = -1

    def follow(self) -> Iterator[LogMessage]:
        """Yield, in order, what other writers appended since the last call; records appended here are skipped.

        Raises:
            PositionError: a record of this source cannot be read; or the topic was purged, or deleted and created again.
        """
        with self._lock:
            count, large = READ_MESSAGES, 0
            self._check_not_replaced()
            while True:
                self._skip_own()
                batch = self._poll(self.next_offset, count)
                if not batch:
                    return
                for stored in batch:
                    own = self._own.pop(stored.offset, None) is not None
                    if stored.offset < self.next_offset:
                        continue
                    self.next_offset = stored.offset + 1
                    self._count(len(stored.payload))
                    message = self._decode(stored)
                    if message is not None and not own:
                        self.messages += 1
                        yield message
                large = max(large * 3 // 4, *(len(stored.payload) for stored in batch), 1)
                count = max(1, min(2 * count, MAX_READ_MESSAGES, READ_BYTES // large))

    def follow_to_end(self) -> Iterator[LogMessage]:
        """Yield as `follow` does, up to the end that the server reports: to a start, an empty answer says nothing.

        Raises:
            PositionError: a record cannot be read, or the server does not return what it holds.
            IggyUnavailableError: the server cannot read the topic.
        """
        yield from self.follow()
        details = self._details()
        end = details.current_offset if details is not None and details.messages_count else -1
        for pause_seconds in (*DAMAGE_PAUSES_SECONDS, None):
            if self.next_offset > end:
                return
            self._check_answering()
            if pause_seconds is None:
                raise self._damaged(self.next_offset)
            time.sleep(pause_seconds)
            yield from self.follow()

    def _details(self) -> PartitionInfo | None:
        info = self.connection.get_topic(self.stream, self.topic)
        return info.partitions[0] if info is not None and info.partitions else None

    def _check_answering(self) -> None:
        """Check, after a poll that returned nothing, that the server could read the topic."""
        details = self._details()
        if details is not None:
            check_answering(self.connection, self.stream, self.topic, details)

    def _damaged(self, offset: int) -> PositionError:
        return PositionError(
            f'offsets topic "{self.topic}" of stream "{self.stream}": Iggy reports a message at offset {offset}, and does not '
            f"return it. See the server's log: if it could not read its files (too many open files, a failing disk), mend that "
            f"and start again. If not, the topic is damaged, as a killed server can leave it: repair or restore it on the server, "
            f"or set another [offsets] topic and read everything again: `offsets reset --all`"
        )

    def _skip_own(self) -> None:
        while (size := self._own.pop(self.next_offset, None)) is not None:
            self._count(size)
            self.next_offset += 1

    def _count(self, size: int) -> None:
        self.total_bytes += size
        self.largest_bytes = max(self.largest_bytes, size)

    def read(self, heads: Iterable[LogMessage], *, ahead: int = READ_MESSAGES) -> Iterator[LogMessage]:
        """Yield these records with their bodies, polled in batches.

        Args:
            heads: the messages' heads, in the order of the log.
            ahead: messages per poll.

        Raises:
            RecordGoneError: a record is gone.
            IggyUnavailableError: the server cannot read the topic.
        """
        batch: dict[int, StoredMessage] = {}
        for head in heads:
            if head.offset not in batch:
                batch = {stored.offset: stored for stored in self._poll(head.offset, ahead)}
            stored = batch.pop(head.offset, None)
            if stored is None:
                self._check_answering()
            message = self._decode(stored) if stored is not None else None
            if message is None or message.head != head.head:
                raise RecordGoneError(
                    f"offsets topic, message {head.offset}: a {head.kind} that was there a moment ago is gone. {framing.WAY_OUT}"
                )
            yield message

    def stored_us(self, offset: int) -> int:
        """When a message was stored that the server has just confirmed, microseconds since 1970 by the server's clock.

        Raises:
            PositionError: the server does not return it.
            IggyUnavailableError: the server cannot read the topic.
        """
        found = self._poll(offset, 1)
        if not found or found[0].offset != offset:
            self._check_answering()
            raise self._damaged(offset)
        return found[0].timestamp_us

    def has_first_message(self) -> bool:
        """Return whether the topic still has its first message, of whatever writer."""
        return any(first.offset == 0 for first in self._poll(0, 1))

    def _poll(self, offset: int, count: int) -> list[StoredMessage]:
        try:
            return self.connection.poll(self.stream, self.topic, 0, offset=offset, count=count)
        except IggyTopicError as error:
            if self.next_offset or self._own:
                raise self.replaced() from error
            raise

    def _decode(self, stored: StoredMessage) -> LogMessage | None:
        message = framing.decode(
            stored.offset, stored.payload, stored.timestamp_us, source=self.source, place=self._place
        )
        if message is None:
            self.foreign += 1
            return None
        message.check_header(self._place)
        return message

    # ---- writing

    def append(self, payload: bytes) -> int:
        """Append one record; return its offset once the server has confirmed it.

        Raises:
            UnknownOutcomeError, IggyUnavailableError: the record may or may not be stored.
            PositionError: the topic was purged, or deleted and created again.
        """
        offset = self.connection.wait(self.submit(payload))
        self._check_not_replaced()
        return offset

    def submit(self, payload: bytes, begins: Collection[ObjectName] = ()) -> Future[int]:
        """Append one record without waiting. Later records, and messages of the objects that begin in it, are stored after it.

        A connection answers requests in order and ends with the first that is not stored. So none of them can be in a
        topic without it.
        """
        size = len(payload)
        return self.connection.submit_append(
            self.stream, self.topic, 0, payload, on_stored=lambda offset: self._appended(offset, size), begins=begins
        )

    def _appended(self, offset: int, size: int) -> None:
        # Without the lock: a following thread holds it while it waits for an answer from the event loop's thread.
        if offset < self.next_offset or offset <= self._last_own:
            self._replaced_at = offset
        self._last_own = offset
        self._own[offset] = size

    def _check_not_replaced(self) -> None:
        if self._replaced_at is not None:
            raise self.replaced(
                f": Iggy stored a message at offset {self._replaced_at}, and had confirmed that one before"
            )

    def replaced(self, how: str = "") -> PositionError:
        """Return the error for a topic that lost what this process had written or read."""
        return PositionError(
            f'offsets topic "{self.topic}" of stream "{self.stream}" was purged, deleted, renamed or restored from a backup while '
            f'source "{self.source}" ran{how}. Bring it back; or name another [offsets] topic and read everything again: '
            "`offsets reset --all`"
        )


class DuePolls:
    """Schedule of polls of an idle log.

    Args:
        interval_seconds: minimum time between two polls.
        clock: returns seconds.
    """

    def __init__(self, interval_seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval_seconds
        self._clock = clock
        self._due = clock() + interval_seconds

    def take(self) -> bool:
        """Return whether a poll is due; if so, schedule the next an interval later."""
        now = self._clock()
        if now < self._due:
            return False
        self._due = now + self._interval
        return True
