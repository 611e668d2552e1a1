"""From a task's queue to Iggy: batches buffered by partition, sent, confirmed, then committed.

    task.poll -> one buffer per partition -> producer.send -> confirmation -> task.commit -> offsets.flush

The order is an invariant: acknowledge, then commit. While a request is in flight the next is encoded.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Protocol

import attrs

from framework.errors import IggyUnavailableError, ReaderFailedError, SourceTakenOverError, UnknownOutcomeError
from framework.model.batches import Acknowledgement, RecordBatch
from framework.model.objects import TopicPartition
from framework.model.positions import OffsetManagerKey
from framework.offsets.manager import OffsetManager
from framework.offsets.offset_store import PositionDelta
from framework.pipeline.dead_letters import DeadLetter, DeadLetterBox, dead_letters_of
from framework.pipeline.producer_contract import Producer
from framework.pipeline.task_statistics import TaskStatistics

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.pipeline.bounded_queue import BoundedQueue

log = logging.getLogger(__name__)

OBJECTS_LOGGER = "framework.objects"
"""The logger that writes a line per object, on request: `[log] objects`, or the level debug."""

objects_log = logging.getLogger(OBJECTS_LOGGER)

MAX_BEGUN = 10_000
"""Maximum number of objects in progress whose start times are kept."""

IN_FLIGHT = 2
"""Maximum number of unconfirmed requests at the producer: one in flight, one encoded and waiting."""

GATHER_SECONDS = 0.1
"""Extra time beyond the linger time for a request to gather records while other partitions keep the sender busy."""

MAX_POLLED = 5000
"""Maximum number of records taken from the queue at once: more would empty it, and it would fill a second time."""

IDLE_POLL_SECONDS = 0.5

WAIT_SLICE_SECONDS = 0.25

STOP_SECONDS = 3.0
"""After a stop, the maximum wait for an answer in flight."""


class _PartitionBuffer:
    """Batches of a partition that wait to be sent together."""

    __slots__ = ("batches", "records", "since", "size_bytes")

    def __init__(self, since: float) -> None:
        self.batches: list[RecordBatch] = []
        self.records = 0
        self.size_bytes = 0
        self.since = since


class ObjectLines:
    """Log a line for each finished and confirmed object, for a single pipeline. Made only when enabled."""

    def __init__(self, level: str, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began: dict[tuple[OffsetManagerKey, str], float] = {}
        # a task's own process has no log setup; in the program the level is already the user's choice
        if level in {"debug", "info"} and not objects_log.isEnabledFor(logging.INFO):
            objects_log.setLevel(logging.INFO)

    def begin(self, batch: RecordBatch) -> None:
        """Record the first batch of an object from the reader."""
        self._began.setdefault((batch.entry.get_manager_key(), batch.entry.version), self._clock())
        if len(self._began) > MAX_BEGUN:  # objects that were replaced during their read never end
            del self._began[next(iter(self._began))]

    def confirmed(self, batch: RecordBatch) -> None:
        """Log the object's line when this confirmed batch ends the object."""
        entry = batch.entry
        if not entry.finished:
            return
        now = self._clock()
        seconds = now - self._began.pop((entry.get_manager_key(), entry.version), now)
        fields = {
            "key": entry.key,
            "version": entry.version,
            "records": entry.records_done,
            "topic": entry.topic_partition.topic,
            "partition": entry.topic_partition.partition,
            "seconds": round(seconds, 3),
        }
        if entry.split_size:
            fields["part" if entry.part is not None else "split"] = entry.split_number
        if batch.failure:
            fields["error"] = type(batch.failure.error).__name__
        objects_log.info("object done", extra=fields)


class PolledTask(Protocol):
    """A started task, as the sender uses it.

    Attributes:
        offsets: the task's positions.
        queue: the queue between reader and poll; None before the start.
    """

    offsets: OffsetManager
    queue: BoundedQueue | None

    @property
    def finished(self) -> bool:
        """Whether the task has ended and everything was polled."""

    def poll(self, max_records: int = ..., *, timeout_seconds: float = ...) -> list[RecordBatch]:
        """Return the available batches in order."""

    def commit(self, acknowledgement: Acknowledgement) -> None:
        """Commit the positions of batches that the server has confirmed."""


@attrs.define(eq=False, repr=False, slots=False)
class Sender:
    """Run a task to its end, or until it is stopped. Single-threaded; `stop` may come from another thread.

    Args:
        task: a started task.
        producer: sends to the data topics.
        config: for the sizes and times of `[iggy]` and `[offsets]`.
        open_partition: called before the first send to a partition; takes over the partition.
        on_saved: called with every saved delta.
        dead_letters: where skipped records and failed objects are stored; None: nowhere.
        on_turn: called on every loop turn, busy or idle; must be cheap.
        clock: seconds.
    """

    _task: PolledTask
    _producer: Producer
    _config: SourceCommonConfig
    _open_partition: Callable[[TopicPartition], None] | None = attrs.field(default=None, kw_only=True)
    _on_saved: Callable[[PositionDelta], None] | None = attrs.field(default=None, kw_only=True)
    _dead_letters: DeadLetterBox | None = attrs.field(default=None, kw_only=True)
    _on_turn: Callable[[], None] | None = attrs.field(default=None, kw_only=True)
    _clock: Callable[[], float] = attrs.field(default=time.monotonic, kw_only=True)

    def __attrs_post_init__(self) -> None:
        config = self._config
        self._offsets: OffsetManager = self._task.offsets
        self._batch_length = config.iggy.batch_length
        self._batch_bytes = config.iggy.batch_bytes
        self._most_polled = min(self._batch_length, MAX_POLLED)
        self._linger = config.iggy.linger_time
        self._request_timeout = config.iggy.request_timeout
        self._commit_interval = config.offsets.commit_interval
        self._buffers: dict[TopicPartition, _PartitionBuffer] = {}
        self._partitions: set[TopicPartition] = set()
        self._in_flight: deque[Future[Acknowledgement]] = deque()
        self._flush_at = self._clock() + self._commit_interval
        self._stopping = threading.Event()
        wanted = config.log.objects or config.log.level == "debug"
        self._object_lines = ObjectLines(config.log.level, self._clock) if wanted else None
        self.statistics = TaskStatistics()

    def stop(self) -> None:
        """End `run` soon.

        Buffered batches are dropped, and delivered again after a restart; sends in flight are confirmed and committed.
        """
        self._stopping.set()
        queue = self._task.queue
        if queue is not None:
            queue.wake()

    def run(self) -> None:
        """Send until the task is finished or `stop` is called.

        Positions are saved at the end, except after a broken connection or a takeover.

        Raises:
            ReaderFailedError: the reader failed; everything it had read is sent and saved.
            UnknownOutcomeError, IggyUnavailableError: the connection broke: recover, then run a new task.
            SourceTakenOverError: another instance has taken over.
        """
        try:
            while not self._stopping.is_set():
                batches = self._task.poll(self._most_polled, timeout_seconds=self._patience())
                if not batches and self._task.finished:
                    break
                self._turn(batches)
            if not self._stopping.is_set():
                self._send_waiting(all_of_them=True)
        except (IggyUnavailableError, SourceTakenOverError):
            raise  # this connection can no longer send or save, or this instance must not
        except Exception as error:
            of_reader = isinstance(error, ReaderFailedError)
            try:
                if not self._stopping.is_set():
                    self._send_waiting(all_of_them=True)
                # a send that was refused may have been stored in part: only the reader's failure leaves an orderly end
                self._finish(closing=of_reader)
            except IggyUnavailableError:
                if of_reader:  # it is found again by the next epoch, behind what it had read
                    raise
            raise
        self._finish()

    def _turn(self, batches: Sequence[RecordBatch]) -> None:
        for batch in batches:
            self._add(batch)
        self._send_waiting(longer_by=GATHER_SECONDS if batches else 0.0)
        self._confirm(0)
        if self._clock() >= self._flush_at:
            self._flush()
        if self._on_turn is not None:
            self._on_turn()

    def _finish(self, *, closing: bool = True) -> None:
        while self._in_flight:
            self._confirm_first()
        self._flush(closing=closing)

    def _patience(self) -> float:
        """Return the wait for a batch: short while sends or buffers are pending, else until positions are due."""
        if self._in_flight or self._buffers:
            return max(self._linger, 0.001)
        if self._offsets.dirty:
            return min(max(self._flush_at - self._clock(), 0.001), IDLE_POLL_SECONDS)
        return IDLE_POLL_SECONDS

    def _add(self, batch: RecordBatch) -> None:
        topic_partition = batch.topic_partition
        buffer = self._buffers.get(topic_partition)
        if buffer is None and topic_partition not in self._partitions:
            if self._open_partition is not None:
                self._open_partition(topic_partition)
            self._partitions.add(topic_partition)
        if batch.skipped or batch.failure:
            self._offsets.table.count_skipped(batch.error_count)
            self._flush()  # the log holds the count before the dead letters: a restart does not reset the limit
            self._send_dead_letters(list(dead_letters_of(batch)))
        if self._object_lines is not None:
            self._object_lines.begin(batch)
        batch = batch.without_raw()
        records, size_bytes = len(batch.payloads), batch.held_bytes
        if buffer is not None and (
            buffer.records + records > self._batch_length or buffer.size_bytes + size_bytes > self._batch_bytes
        ):
            self._send(topic_partition)
            buffer = None
        if buffer is None:
            buffer = self._buffers[topic_partition] = _PartitionBuffer(self._clock())
        buffer.batches.append(batch)
        buffer.records += records
        buffer.size_bytes += size_bytes
        if buffer.records >= self._batch_length or buffer.size_bytes >= self._batch_bytes:
            self._send(topic_partition)

    def _send_dead_letters(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Store dead letters before any later record is sent.

        Recovery treats everything before a stored record as done.
        """
        if self._dead_letters is not None and dead_letters:
            self._dead_letters.send(dead_letters)
            self.statistics.dead_letters += len(dead_letters)

    def _send_waiting(self, *, all_of_them: bool = False, longer_by: float = 0.0) -> None:
        limit = self._clock() - self._linger - longer_by
        for topic_partition in [
            topic_partition for topic_partition, buffer in self._buffers.items() if all_of_them or buffer.since <= limit
        ]:
            self._send(topic_partition)

    def _send(self, topic_partition: TopicPartition) -> None:
        buffer = self._buffers.pop(topic_partition)
        self._confirm(IN_FLIGHT - 1)
        self._offsets.store_begun()
        self._in_flight.append(self._producer.send(topic_partition, buffer.batches))

    def _confirm(self, most_left: int) -> None:
        """Commit confirmed sends; wait until at most `most_left` requests are in flight (0: do not wait)."""
        while self._in_flight and (self._in_flight[0].done() or (most_left and len(self._in_flight) > most_left)):
            self._confirm_first()

    def _confirm_first(self) -> None:
        acknowledgement = self._answer(self._in_flight.popleft())
        self._task.commit(acknowledgement)
        statistics = self.statistics
        objects = object_bytes = 0
        for batch in acknowledgement.batches:
            if batch.entry.finished:
                objects += batch.entry.counts_object
                object_bytes += batch.entry.bytes_of(batch.native)
                statistics.objects_with_records += batch.entry.records_done > 0
            if self._object_lines is not None:
                self._object_lines.confirmed(batch)
        statistics.objects += objects
        statistics.unsaved_objects += objects
        statistics.object_bytes += object_bytes
        statistics.unsaved_object_bytes += object_bytes
        if acknowledgement.anchor is not None:
            records = sum(len(batch.payloads) for batch in acknowledgement.batches)
            statistics.send_requests += 1
            statistics.records += records
            statistics.unsaved_records += records
            statistics.record_bytes += sum(batch.size_bytes for batch in acknowledgement.batches)

    def _answer(self, future: Future[Acknowledgement]) -> Acknowledgement:
        """Wait for the confirmation, up to the request timeout plus a second; after a stop, up to `STOP_SECONDS`."""
        waited = 0.0
        while True:
            try:
                return future.result(timeout=WAIT_SLICE_SECONDS)
            except FutureTimeoutError:
                if future.done():  # it completed just now; or the producer answered with a timeout error
                    return future.result()
                waited += WAIT_SLICE_SECONDS
                limit = STOP_SECONDS if self._stopping.is_set() else self._request_timeout + 1.0
                if waited < limit:
                    continue
                raise UnknownOutcomeError(f"Iggy did not answer a send within {waited:.0f} seconds") from None

    def _flush(self, *, closing: bool = False) -> None:
        self._flush_at = self._clock() + self._commit_interval
        if closing or self._offsets.dirty:
            self._producer.check_delivered()
            delta = self._offsets.flush(closing=closing)
            statistics = self.statistics
            statistics.position_commits += 1
            statistics.unsaved_objects = statistics.unsaved_object_bytes = statistics.unsaved_records = 0
            if self._on_saved is not None:
                self._on_saved(delta)
