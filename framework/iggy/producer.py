"""The producer that writes Iggy: batches to requests, confirmations to acknowledgements and anchors.

Encoding a request overlaps with the sending of the one before. Every confirmation is checked: its offset must lie above
the one before in its partition, or the server has lost what it confirmed. The first confirmed message of each partition
is read back before positions are saved: a torn server confirms what it never delivers.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Literal

import attrs
from typing_extensions import override

from framework.errors import (
    IggyUnavailableError,
    RecordError,
    RecordTooLargeError,
    TaskClosedError,
    UnknownOutcomeError,
)
from framework.iggy import wire
from framework.iggy.connection import IggyConnection
from framework.iggy.header_decoding import merge_headers, replaced_names
from framework.iggy.send_connection import PulledFuture
from framework.iggy.topics import check_delivered
from framework.model.batches import Acknowledgement, RecordBatch
from framework.model.header_encoding import HeaderValue, encode_headers, provenance
from framework.model.message_ids import MAX_RECORD, MAX_SPLIT, entry_hash64, message_id
from framework.model.objects import Anchor, TopicPartition
from framework.pipeline.producer_contract import Producer

# A request of 63 MB passes, one of 70 MB breaks the connection; small ones keep memory and the time limit small.
_MAX_REQUEST_BYTES = 8_000_000
_MAX_IN_FLIGHT = 2
"""Sends under way or waiting; one more makes `send` block. At least two: the next one completes that before it."""
_MAX_REQUESTS_AHEAD = 8
"""Requests of one send that wait for the server. Records whose times of origin lie far apart need a request each."""


@attrs.define(eq=False, repr=False, slots=False)
class IggyProducer(Producer):
    """Sends batches to one stream, in order, at most once each: nothing is ever sent again by itself.

    Args:
        connection: an open one of this producer's own; `close` closes it. After an error that is retriable it is dead:
            recover, then make a new connection and a new producer.
        stream: name of the stream; the partitions name topic and partition.
        source: the source's name, part of every message id.
        headers: `"provenance"` (bucket, key, version, split) or `"none"`.
        hold_back: partition -> number of last messages that a killed server may lose; 0 when it loses none.
    """

    _connection: IggyConnection
    _stream: str = attrs.field(kw_only=True)
    _source: str = attrs.field(kw_only=True)
    _headers: Literal["provenance", "none"] = attrs.field(default="provenance", kw_only=True)
    _hold_back: Callable[[TopicPartition], int] = attrs.field(default=lambda _: 0, kw_only=True)

    def __attrs_post_init__(self) -> None:
        self._slots = threading.BoundedSemaphore(_MAX_IN_FLIGHT)
        self._slot_limit_seconds = self._connection.call_timeout_seconds * (_MAX_IN_FLIGHT + 1)
        self._ends: dict[TopicPartition, int] = {}
        self._to_read_back: dict[TopicPartition, int | None] = {}  # the first offset; None once it was read back
        self._failure: BaseException | None = None
        self._closed = False

    def expect_above(self, topic_partition: TopicPartition, offset: int) -> None:
        """Say that the partition holds a message at `offset` already: confirmations must lie above it.

        Called after a recovery, with the anchors it began the epoch with, before anything is sent.
        """
        self._ends[topic_partition] = max(offset, self._ends.get(topic_partition, -1))

    @override
    def send(self, topic_partition: TopicPartition, batches: Sequence[RecordBatch]) -> Future[Acknowledgement]:
        self._check()
        batches = tuple(batches)
        result: Future[Acknowledgement] = PulledFuture(self._connection.pull)
        segments = [self._segment(topic_partition, batch) for batch in batches if batch.payloads]
        acknowledgement = Acknowledgement(topic_partition=topic_partition, batches=batches, anchor=None)
        if not segments:
            result.set_result(acknowledgement)
            return result
        sent_us = time.time_ns() // 1000
        groups = [
            part for group in wire.cut_segments(segments, _MAX_REQUEST_BYTES) for part in wire.cut_times(group, sent_us)
        ]
        place = self._stream, topic_partition.topic, topic_partition.partition
        bodies = [
            (sum(len(segment.payloads) for segment in group), wire.encode_send(*place, group, time_us=sent_us))
            for group in groups
        ]
        if not self._slots.acquire(timeout=self._slot_limit_seconds):
            raise IggyUnavailableError(
                f"{topic_partition}: earlier sends did not end within {self._slot_limit_seconds:g} s"
            )
        last = segments[-1]
        last_id = message_id(last.id_high, last.split_number, last.last_record)
        origin_us = sent_us if last.times_us is None else int(last.times_us[-1]) or sent_us
        submitted: deque[Future[int]] = deque()
        try:
            self._check()
            for number, (count, body) in enumerate(bodies, 1):
                # each waits for its own confirmation, and not for all of them
                if len(submitted) == _MAX_REQUESTS_AHEAD:
                    self._connection.wait(submitted.popleft())
                    self._check()
                objects = ((batch.entry.bucket, batch.entry.key) for batch in batches)
                submitted.append(self._connection.submit_send(*place, body, objects))
                if number < len(bodies):  # one call for each answer: two could run in two threads at a time
                    submitted[-1].add_done_callback(functools.partial(self._confirm, topic_partition, count))
        except BaseException as error:
            self._slots.release()
            if submitted and isinstance(error, IggyUnavailableError):
                raise _partly(error) from error
            raise
        acknowledge = functools.partial(
            self._acknowledge, acknowledgement, bodies[-1][0], (last_id, origin_us), result, cut=len(bodies) > 1
        )
        submitted[-1].add_done_callback(acknowledge)
        return result

    @override
    def check_delivered(self) -> None:
        """Read back the first message that the server confirmed in each partition in this producer's life.

        Each call reads it again until it is on disk, because a damaged partition may still return it from memory. No position
        beyond it is saved before that.

        Raises:
            PartitionDamagedError: the server does not return it.
            IggyUnavailableError: the connection is lost.
        """
        for topic_partition, offset in list(self._to_read_back.items()):
            if offset is None:
                continue
            topic, partition = topic_partition.topic, topic_partition.partition
            is_on_disk = self._ends[topic_partition] - offset >= self._hold_back(topic_partition)
            check_delivered(self._connection, self._stream, topic, partition, offset)
            if is_on_disk:  # not before: a flush at the end must not save what is damaged
                self._to_read_back[topic_partition] = None

    @override
    def close(self) -> None:
        self._closed = True
        self._connection.close()

    def _check(self) -> None:
        if self._closed:
            raise TaskClosedError("this producer was closed")
        failure = self._failure
        if isinstance(failure, UnknownOutcomeError):
            raise UnknownOutcomeError(f"not sent, because an earlier send failed: {failure}") from failure
        if failure is not None:
            raise IggyUnavailableError(f"not sent, because an earlier send failed: {failure}") from failure

    # ---- batches to requests

    def _segment(self, topic_partition: TopicPartition, batch: RecordBatch) -> wire.Segment:
        if batch.topic_partition is not topic_partition and batch.topic_partition != topic_partition:
            raise ValueError(
                f"a batch of partition {batch.topic_partition} was given to a send to partition {topic_partition}"
            )
        split_number = batch.entry.split_number
        if not (0 <= split_number <= MAX_SPLIT and batch.last_record <= MAX_RECORD):
            raise RecordError(
                f"no message id: at most {MAX_SPLIT} splits and {MAX_RECORD} records",
                location=batch.native.location,
                record_number=batch.last_record,
            )
        names = provenance(batch.native, split=batch.entry.split) if self._headers == "provenance" else {}
        headers = encode_headers(names)
        segment = wire.Segment(
            id_high=entry_hash64(self._source, batch.entry),
            split_number=split_number,
            first_record=batch.first_record,
            payloads=batch.payloads,
            headers=headers,
            numbers=batch.numbers,
            own_headers=None if batch.headers is None else _own_headers(batch.headers, headers, names),
            times_us=batch.timestamps_us,
        )
        if not segment.fits:
            self._refuse(batch)
        return segment

    def _refuse(self, batch: RecordBatch) -> None:
        for number, size in zip(batch.record_numbers, map(len, batch.payloads), strict=True):
            if not 0 < size <= wire.MAX_PAYLOAD_BYTES:
                kind, reason = RecordError, "the record is empty, and Iggy stores no empty messages"
                if size:
                    kind = RecordTooLargeError
                    reason = f"the record has {size:,} bytes, Iggy stores at most {wire.MAX_PAYLOAD_BYTES:,}"
                raise kind(reason, location=batch.native.location, record_number=number)

    # ---- confirmations, in the connection's thread

    def _confirm(self, topic_partition: TopicPartition, count: int, future: Future[int]) -> None:
        """Record the end of the partition, or the failure, which the next call raises."""
        if self._failure is not None:
            return
        self._failure = future.exception()
        if self._failure is not None:
            return
        base = future.result()
        self._failure = _mistrust(topic_partition, count, base, self._ends.get(topic_partition, -1))
        if self._failure is None:
            self._to_read_back.setdefault(topic_partition, base)
            self._ends[topic_partition] = base + count - 1

    def _acknowledge(
        self,
        acknowledgement: Acknowledgement,
        count: int,
        last: tuple[int, int],
        result: Future[Acknowledgement],
        future: Future[int],
        *,
        cut: bool,
    ) -> None:
        """Record the answer to the last request of a send, and complete the future of the send."""
        self._confirm(acknowledgement.topic_partition, count, future)
        self._slots.release()
        if self._failure is None:
            anchor = Anchor(self._ends[acknowledgement.topic_partition], *last)
            result.set_result(attrs.evolve(acknowledgement, anchor=anchor))
        elif cut and isinstance(self._failure, IggyUnavailableError):
            result.set_exception(_partly(self._failure))
        else:
            result.set_exception(self._failure)


def _own_headers(
    headers: Sequence[Mapping[str, HeaderValue] | None], of_object: bytes, names: Mapping[str, str]
) -> list[bytes]:
    """Return the header block of each record; its own headers replace those of the same name that name its object."""
    # records of one object often share a mapping, not only neighbours: each mapping is encoded once
    shared = dict(zip(map(id, headers), headers, strict=True))
    blocks = {}
    for key, own in shared.items():
        if own and replaced_names(names, own):
            blocks[key] = encode_headers(merge_headers(names, own))
        else:
            blocks[key] = of_object + encode_headers(own) if own else of_object
    return list(map(blocks.__getitem__, map(id, headers)))


def _partly(error: IggyUnavailableError) -> UnknownOutcomeError:
    return UnknownOutcomeError(f"some of the requests of one send may be stored: {error}")


def _mistrust(topic_partition: TopicPartition, count: int, base: int, end: int) -> UnknownOutcomeError | None:
    """Return the error for an offset that shows a loss; None for a sound one."""
    if base <= end:
        return UnknownOutcomeError(
            f"{topic_partition}: {count} records were stored at offset {base}, but offset {end} was confirmed "
            "before: the server lost confirmed messages, or the topic was purged; recover"
        )
    return None
