"""A producer that stores records in a dict, and loses confirmations, stalls or fails on request."""

from __future__ import annotations

import enum
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from typing_extensions import override

from framework.errors import IggyUnavailableError, TaskClosedError, UnknownOutcomeError
from framework.model.batches import Acknowledgement, RecordBatch, SourceRecord
from framework.model.message_ids import entry_hash64, message_id
from framework.model.objects import Anchor, TopicPartition
from framework.pipeline.producer_contract import Producer


class Outcome(enum.Enum):
    """Outcome of a send.

    `STALL` stores the records and delays the confirmation until `MemoryProducer.release`.
    """

    STORE = "stored and confirmed"
    LOSE_ACK = "stored, the confirmation is lost"
    LOSE_ALL = "neither stored nor confirmed, and the outcome is unknown"
    REFUSE = "not sent"
    STALL = "the confirmation comes later"


class MemoryProducer(Producer):
    """Partitions in memory. As `Producer` requires, unusable after a failure. Threads may wait for futures.

    Args:
        source: part of the message ids.
        plan: outcomes of the first sends, in order; later sends are stored.

    Attributes:
        stored: partition -> stored records, in order.
        sends: (partition, number of records) of every send that was stored.
    """

    def __init__(self, source: str = "source", plan: Sequence[Outcome] = ()) -> None:
        self.stored: dict[TopicPartition, list[SourceRecord]] = defaultdict(list)
        self.sends: list[tuple[TopicPartition, int]] = []
        self.on_send: Callable[[TopicPartition, Sequence[RecordBatch]], None] | None = None
        self._source = source
        self._plan = deque(plan)
        self._stalled: deque[tuple[Future[Acknowledgement], Acknowledgement]] = deque()
        self._failure: IggyUnavailableError | None = None
        self._closed = False
        self._lock = threading.Lock()

    @override
    def send(self, topic_partition: TopicPartition, batches: Sequence[RecordBatch]) -> Future[Acknowledgement]:
        if self.on_send is not None:
            self.on_send(topic_partition, batches)
        with self._lock:
            if self._closed:
                raise TaskClosedError("this producer was closed")
            if self._failure is not None:
                raise type(self._failure)(f"not sent, because an earlier send failed: {self._failure}")
            result: Future[Acknowledgement] = Future()
            batches = tuple(batches)
            if not any(batch.payloads for batch in batches):
                result.set_result(Acknowledgement(topic_partition=topic_partition, batches=batches, anchor=None))
                return result
            outcome = self._plan.popleft() if self._plan else Outcome.STORE
            if outcome is Outcome.REFUSE:
                self._failure = IggyUnavailableError("the connection is gone")
                raise self._failure
            if outcome is Outcome.LOSE_ALL:
                self._failure = UnknownOutcomeError("the connection broke")
                result.set_exception(self._failure)
                return result
            acknowledgement = self._store(topic_partition, batches)
            if outcome is Outcome.LOSE_ACK:
                self._failure = UnknownOutcomeError("the connection broke")
                result.set_exception(self._failure)
            elif outcome is Outcome.STALL or self._stalled:  # confirmations come in the order of the sends
                self._stalled.append((result, acknowledgement))
            else:
                result.set_result(acknowledgement)
            return result

    def _store(self, topic_partition: TopicPartition, batches: tuple[RecordBatch, ...]) -> Acknowledgement:
        records = [record for batch in batches for record in batch.records()]
        self.stored[topic_partition].extend(records)
        self.sends.append((topic_partition, len(records)))
        last = records[-1]
        entry = [batch for batch in batches if batch.payloads][-1].entry
        number = message_id(entry_hash64(self._source, entry), entry.split_number, last.record_number)
        return Acknowledgement(
            topic_partition=topic_partition,
            batches=batches,
            anchor=Anchor(len(self.stored[topic_partition]) - 1, number),
        )

    def release(self) -> int:
        """Deliver the delayed confirmations; return their number."""
        with self._lock:
            stalled, self._stalled = self._stalled, deque()
        for future, acknowledgement in stalled:
            future.set_result(acknowledgement)
        return len(stalled)

    def payloads(self) -> dict[str, list[bytes]]:
        """Return key -> stored payloads, in order."""
        found: dict[str, list[bytes]] = defaultdict(list)
        for topic_partition in sorted(self.stored):
            for record in self.stored[topic_partition]:
                found[record.native.key].append(record.payload)
        return dict(found)

    @override
    def close(self) -> None:
        self._closed = True
