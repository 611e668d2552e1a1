"""From a task's queue to Iggy: batches gathered by lane, sent, confirmed, then committed.

    task.poll -> one buffer per lane -> producer.send -> confirmation -> task.commit -> offsets.flush

The order is the law: acknowledge, then commit. While one request is under way the next is encoded.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING

import attrs

from framework.dead_letters import DeadLetter, DeadLetterBox, letters_of
from framework.errors import IggyUnavailableError, SourceTakenOverError, UnknownOutcomeError
from framework.offsets import OffsetManager, OffsetManagerEntry, PositionDelta
from framework.producer import Producer
from framework.records import Acknowledgement, Lane, ObjectState, RecordBatch
from framework.task import AbstractSourceTask

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig

log = logging.getLogger(__name__)

IN_FLIGHT = 2
"""Requests handed to the producer and not yet confirmed: one under way, one encoded and waiting."""

GATHER_SECONDS = 0.1
"""How much longer than the linger time a request may gather while other lanes keep the sender busy."""

IDLE_POLL_SECONDS = 0.5

WAIT_SLICE_SECONDS = 0.25

STOP_SECONDS = 3.0
"""After a stop, how long an answer that is under way is waited for."""


@attrs.define(kw_only=True)
class SendCounts:
    """What a pipeline has sent.

    Attributes:
        records: confirmed records.
        size_bytes: their payload bytes.
        requests: confirmed requests that held records.
        objects: objects, or shares of split ones, of which everything is confirmed, or the rest was left out.
        object_bytes: their sizes.
        commits: deltas saved.
        letters: dead letters stored.
        first_record_at: `time.time()` of the first confirmation; None before.
    """

    records: int = 0
    size_bytes: int = 0
    requests: int = 0
    objects: int = 0
    object_bytes: int = 0
    commits: int = 0
    letters: int = 0
    first_record_at: float | None = None


class _LaneBuffer:
    """Batches of one lane that wait to be sent together."""

    __slots__ = ("batches", "records", "since", "size_bytes")

    def __init__(self, since: float) -> None:
        self.batches: list[RecordBatch] = []
        self.records = 0
        self.size_bytes = 0
        self.since = since


class Pipeline:
    """Runs one task to its end, or until it is stopped. One thread; `stop` may come from another.

    Args:
        task: started.
        producer: the door to the data topics.
        config: for the sizes and times of `[iggy]` and `[offsets]`.
        open_lane: called before a lane's first send; must leave the lane's anchor in the log.
        on_saved: called with every delta that was saved.
        on_idle: called when there was nothing to send for a while.
        dead_letters: where what is left out is kept; None: nowhere.
        on_turn: called again and again, at work or not; must be cheap.
        clock: seconds.
    """

    def __init__(
        self,
        task: AbstractSourceTask,
        producer: Producer,
        config: SourceCommonConfig,
        *,
        open_lane: Callable[[Lane], None] | None = None,
        on_saved: Callable[[PositionDelta], None] | None = None,
        on_idle: Callable[[], None] | None = None,
        dead_letters: DeadLetterBox | None = None,
        on_turn: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._task = task
        self._producer = producer
        self._offsets: OffsetManager = task.offsets
        self._batch_length = config.iggy.batch_length
        self._batch_bytes = config.iggy.batch_bytes
        self._linger = config.iggy.linger_time
        self._request_timeout = config.iggy.request_timeout
        self._commit_interval = config.offsets.commit_interval
        self._open_lane = open_lane
        self._on_saved = on_saved
        self._on_idle = on_idle
        self._dead_letters = dead_letters
        self._on_turn = on_turn
        self._clock = clock
        self._buffers: dict[Lane, _LaneBuffer] = {}
        self._lanes: set[Lane] = set()
        self._in_flight: deque[Future[Acknowledgement]] = deque()
        self._flush_at = clock() + self._commit_interval
        self._stopping = threading.Event()
        self.counts = SendCounts()

    def stop(self) -> None:
        """Ends `run` soon: what is buffered is dropped (it comes again), what is under way is confirmed and committed."""
        self._stopping.set()
        queue = self._task.queue
        if queue is not None:
            queue.wake()

    def run(self) -> None:
        """Sends until the task is finished or `stop` is called; saves positions at the end in any case but a broken Iggy.

        Raises:
            ReaderFailedError: the reader died; everything it had read is sent and saved.
            UnknownOutcomeError, IggyUnavailableError: the connection broke: recover, then run a new task.
            SourceTakenOverError: another instance works now.
        """
        try:
            while not self._stopping.is_set():
                # no more than one request holds: more would empty the queue, which would be filled a second time
                batches = self._task.poll(self._batch_length, timeout_seconds=self._patience())
                if not batches and self._task.finished:
                    break
                self._turn(batches)
            if not self._stopping.is_set():
                self._send_waiting(all_of_them=True)
        except (IggyUnavailableError, SourceTakenOverError):
            raise  # nothing more can be sent or saved over this connection, or may be
        except Exception:
            if not self._stopping.is_set():
                self._send_waiting(all_of_them=True)
            self._finish()
            raise
        self._finish()

    def _turn(self, batches: Sequence[RecordBatch]) -> None:
        for batch in batches:
            self._add(batch)
        if batches:
            self._send_waiting(longer_by=GATHER_SECONDS)
        else:
            self._send_waiting()
            if self._on_idle is not None and not self._in_flight:
                self._on_idle()
        self._confirm(0)
        self._flush_when_due()
        if self._on_turn is not None:
            self._on_turn()

    def _finish(self) -> None:
        while self._in_flight:
            self._confirm_first()
        self._flush()

    def _patience(self) -> float:
        """How long to wait for more: briefly while something is under way or waits, else until positions are due."""
        if self._in_flight or self._buffers:
            return max(self._linger, 0.001)
        if self._offsets.dirty:
            return min(max(self._flush_at - self._clock(), 0.001), IDLE_POLL_SECONDS)
        return IDLE_POLL_SECONDS

    def _add(self, batch: RecordBatch) -> None:
        lane = batch.lane
        if lane not in self._lanes:
            if self._open_lane is not None:
                self._open_lane(lane)
            self._lanes.add(lane)
        if batch.skipped or batch.given_up:
            self._offsets.note_left_out(batch.left_out)
        known = self._known(batch.entry) if batch.skipped or batch.given_up or batch.entry.split_size else None
        letters = list(letters_of(batch)) if self._dead_letters is not None else []
        if letters:
            known = self._send_letters(batch, known, letters)
        if batch.skipped or (batch.entry.split_size and batch.payloads and known is None):
            self._write_ahead(batch, known)
        batch = batch.without_raw()
        buffer = self._buffers.get(lane)
        if buffer is not None and not self._fits(buffer, batch):
            self._send(lane)
            buffer = None
        if buffer is None:
            buffer = self._buffers[lane] = _LaneBuffer(self._clock())
        buffer.batches.append(batch)
        buffer.records += len(batch.payloads)
        buffer.size_bytes += batch.size_bytes
        if buffer.records >= self._batch_length or buffer.size_bytes >= self._batch_bytes:
            self._send(lane)

    def _fits(self, buffer: _LaneBuffer, batch: RecordBatch) -> bool:
        return (
            buffer.records + len(batch.payloads) <= self._batch_length
            and buffer.size_bytes + batch.size_bytes <= self._batch_bytes
        )

    def _known(self, entry: OffsetManagerEntry) -> OffsetManagerEntry | None:
        """What the positions say of the same version of the same object or share."""
        known = self._offsets.get_entry(entry.get_manager_key())
        same = known is not None and (known.version, known.generation) == (entry.version, entry.generation)
        return known if same else None

    def _send_letters(
        self, batch: RecordBatch, known: OffsetManagerEntry | None, letters: Sequence[DeadLetter]
    ) -> OffsetManagerEntry:
        """Stores what is left out; returns the object's position as it is in the log by then.

        First comes the position, if it is not in the log yet, then the letter, then the number in the position: a recovery that
        finds the letter finds the position to which it belongs, and the position says that the letter is there.
        """
        assert self._dead_letters is not None
        if known is None:
            known = self._offsets.add_entry(self._begun(batch))
        self._flush()
        self._dead_letters.send(letters)
        self.counts.letters += len(letters)
        return known

    def _begun(self, batch: RecordBatch) -> OffsetManagerEntry:
        # not what stands before this batch: that may be on its way, and a crash now would lose it
        done = self._task.committed_records(batch.entry)
        return attrs.evolve(
            batch.entry, records_done=done, mark=None, state=ObjectState.READING, skipped=(), given_up=0
        )

    def _write_ahead(self, batch: RecordBatch, known: OffsetManagerEntry | None) -> None:
        """Saves what a replay could not tell from the topic alone, before what it is about is sent.

        Which record numbers are left out: a replay accepts a hole only where the log says that they were skipped; any other
        hole is a loss. And that a share was begun: shares lie in several lanes, and only the order inside a lane tells which
        of two versions is the newer one.
        """
        known = known if known is not None else self._begun(batch)
        self._offsets.add_entry(known.with_skipped(skip.record_number for skip in batch.skipped))
        self._flush()

    def _send_waiting(self, *, all_of_them: bool = False, longer_by: float = 0.0) -> None:
        limit = self._clock() - self._linger - longer_by
        for lane in [lane for lane, buffer in self._buffers.items() if all_of_them or buffer.since <= limit]:
            self._send(lane)

    def _send(self, lane: Lane) -> None:
        buffer = self._buffers.pop(lane)
        self._confirm(IN_FLIGHT - 1)
        self._in_flight.append(self._producer.send(lane, buffer.batches))

    def _confirm(self, most_left: int) -> None:
        """Commits what is confirmed; waits until at most that many requests are under way (0: does not wait)."""
        while self._in_flight and (self._in_flight[0].done() or (most_left and len(self._in_flight) > most_left)):
            self._confirm_first()

    def _confirm_first(self) -> None:
        acknowledgement = self._answer(self._in_flight.popleft())
        self._task.commit(acknowledgement)
        counts = self.counts
        for batch in acknowledgement.batches:
            if batch.entry.finished:
                counts.objects += 1
                counts.object_bytes += batch.entry.bytes_of(batch.native)
        if acknowledgement.anchor is not None:
            counts.requests += 1
            counts.records += sum(len(batch.payloads) for batch in acknowledgement.batches)
            counts.size_bytes += sum(batch.size_bytes for batch in acknowledgement.batches)
            if counts.first_record_at is None:
                counts.first_record_at = time.time()

    def _answer(self, future: Future[Acknowledgement]) -> Acknowledgement:
        """The confirmation, waited for no longer than the request may take, and shorter once a stop was asked for."""
        waited = 0.0
        while True:
            try:
                return future.result(timeout=WAIT_SLICE_SECONDS)
            except FutureTimeoutError:
                if future.done():  # just now; or a time limit is what the producer answered
                    return future.result()
                waited += WAIT_SLICE_SECONDS
                limit = STOP_SECONDS if self._stopping.is_set() else self._request_timeout + 1.0
                if waited < limit:
                    continue
                raise UnknownOutcomeError(f"Iggy did not answer a send within {waited:.0f} seconds") from None

    def _flush_when_due(self) -> None:
        if self._clock() >= self._flush_at:
            self._flush()

    def _flush(self) -> None:
        self._flush_at = self._clock() + self._commit_interval
        if self._offsets.dirty:
            delta = self._offsets.flush()
            self.counts.commits += 1
            if self._on_saved is not None:
                self._on_saved(delta)
