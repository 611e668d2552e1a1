"""The producer that writes Iggy: batches to requests, confirmations to acknowledgements and anchors.

Encoding a request overlaps with the sending of the one before. Every confirmation is checked: its offset must lie above
the one before in its partition, or the server has lost what it confirmed. The first confirmed message of each partition
is read back before positions are saved: a torn server confirms what it never delivers.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import OrderedDict, deque
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
from framework.iggy.values import Confirmation
from framework.model.batches import Acknowledgement, RecordBatch
from framework.model.header_encoding import HeaderValue, encode_headers, provenance
from framework.model.message_ids import MAX_RECORD, MAX_SPLIT, entry_hash64, message_id
from framework.model.objects import Anchor, TopicPartition
from framework.pipeline.producer_contract import Producer

# A request of 63 MB passes, one of 70 MB breaks the connection; small ones keep memory and the time limit small.
_MAX_REQUEST_BYTES = 8_000_000
_MAX_IN_FLIGHT = 2
"""Sends under way or waiting; one more makes `send` block. At least two: the next one completes that before it."""
_CACHED_OBJECTS = 256
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
        self._confirmed_in: set[TopicPartition] = set()
        self._to_read_back: dict[TopicPartition, int] = {}
        self._objects: OrderedDict[tuple[object, ...], tuple[int, bytes]] = OrderedDict()
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
        groups = list(wire.cut_segments(segments, _MAX_REQUEST_BYTES))
        if any(segment.times_us is not None for segment in segments):
            groups = [part for group in groups for part in wire.cut_times(group, sent_us)]
        bodies = [self._encode(topic_partition, group, sent_us, batches) for group in groups]
        if not self._slots.acquire(timeout=self._slot_limit_seconds):
            raise IggyUnavailableError(
                f"{topic_partition}: earlier sends did not end within {self._slot_limit_seconds:g} s"
            )
        last = segments[-1]
        last_id = message_id(last.id_high, last.split_number, last.last_record)
        origin_us = sent_us if last.times_us is None else int(last.times_us[-1]) or sent_us
        number = 0
        submitted: deque[Future[tuple[Confirmation, ...]]] = deque()
        try:
            self._check()
            for number, (count, submit) in enumerate(bodies, 1):
                finish = (
                    functools.partial(
                        self._acknowledge, acknowledgement, count, (last_id, origin_us), result, cut=len(bodies) > 1
                    )
                    if number == len(bodies)
                    else functools.partial(self._confirmed, topic_partition, count)
                )
                if (
                    len(submitted) == _MAX_REQUESTS_AHEAD
                ):  # each waits for its own confirmation, and not for all of them
                    self._connection.wait(submitted.popleft())
                    self._check()
                submitted.append(submit())
                submitted[-1].add_done_callback(finish)
        except BaseException as error:
            self._slots.release()
            if number > 1 and isinstance(error, IggyUnavailableError):
                raise _partly(error) from error
            raise
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
            topic, partition = topic_partition.topic, topic_partition.partition
            is_on_disk = self._ends[topic_partition] - offset >= self._hold_back(topic_partition)
            check_delivered(self._connection, self._stream, topic, partition, offset)
            if is_on_disk:
                del self._to_read_back[topic_partition]  # not before: a flush at the end must not save what is damaged

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
        object_hash, headers = self._object(batch)
        segment = wire.Segment(
            id_high=object_hash,
            split_number=split_number,
            first_record=batch.first_record,
            payloads=batch.payloads,
            headers=headers,
            numbers=batch.numbers,
            own_headers=None if batch.headers is None else self._own_headers(batch, headers),
            times_us=batch.timestamps_us,
        )
        if not segment.fits:
            self._refuse(batch)
        return segment

    def _refuse(self, batch: RecordBatch) -> None:
        for number, size in zip(batch.record_numbers, map(len, batch.payloads), strict=True):
            if size == 0:
                raise RecordError(
                    "the record is empty, and Iggy stores no empty messages",
                    location=batch.native.location,
                    record_number=number,
                )
            if size > wire.MAX_PAYLOAD_BYTES:
                raise RecordTooLargeError(
                    f"the record has {size:,} bytes, Iggy stores at most {wire.MAX_PAYLOAD_BYTES:,}",
                    location=batch.native.location,
                    record_number=number,
                )

    def _object(self, batch: RecordBatch) -> tuple[int, bytes]:
        """Hash and header block of the batch's object or split, cached for recent ones."""
        native, entry = batch.native, batch.entry
        name = (
            native.bucket,
            native.key,
            native.version,
            entry.generation,
            entry.split_number,
            entry.split_size,
        )
        known = self._objects.get(name)
        if known is not None:
            self._objects.move_to_end(name)
            return known
        block = encode_headers(provenance(native, split=entry.split)) if self._headers == "provenance" else b""
        made = entry_hash64(self._source, entry), block
        if not entry.finished:  # else no other batch of it follows
            self._objects[name] = made
            if len(self._objects) > _CACHED_OBJECTS:
                self._objects.popitem(last=False)
        return made

    def _own_headers(self, batch: RecordBatch, of_object: bytes) -> list[bytes]:
        """The header block of each record that has headers of its own; they replace the object's of the same name."""
        assert batch.headers is not None
        names = provenance(batch.native, split=batch.entry.split) if of_object else {}
        # records of one object often share a mapping, not only neighbours: each mapping is encoded once
        shared = dict(zip(map(id, batch.headers), batch.headers, strict=True))
        blocks = {key: self._own_block(own, of_object, names) if own else of_object for key, own in shared.items()}
        return list(map(blocks.__getitem__, map(id, batch.headers)))

    @staticmethod
    def _own_block(own: Mapping[str, HeaderValue], of_object: bytes, names: Mapping[str, str]) -> bytes:
        if replaced_names(names, own):
            return encode_headers(merge_headers(names, own))
        return of_object + encode_headers(own)

    def _encode(
        self,
        topic_partition: TopicPartition,
        segments: list[wire.Segment],
        sent_us: int,
        batches: Sequence[RecordBatch],
    ) -> tuple[int, Callable[[], Future[tuple[Confirmation, ...]]]]:
        """Return how many messages, and the call that submits them."""
        count = sum(len(segment.payloads) for segment in segments)
        place = self._stream, topic_partition.topic, topic_partition.partition
        body = wire.encode_send(*place, segments, time_us=sent_us)

        def submit() -> Future[tuple[Confirmation, ...]]:
            objects = ((batch.entry.bucket, batch.entry.key) for batch in batches)
            return self._connection.submit_send(*place, body, objects)

        return count, submit

    # ---- confirmations, in the connection's thread

    def _confirmed(
        self, topic_partition: TopicPartition, count: int, future: Future[tuple[Confirmation, ...]]
    ) -> int | None:
        """Offset of the last message; None after a failure, which is kept and raised by the next call."""
        if self._failure is not None:
            return None
        failure = future.exception()
        if failure is None:
            confirmed, end = future.result(), self._ends.get(topic_partition, -1)
            failure = _mistrust(topic_partition, count, confirmed, end)
            if failure is None:
                if topic_partition not in self._confirmed_in:
                    self._confirmed_in.add(topic_partition)
                    self._to_read_back[topic_partition] = confirmed[0].base_offset
                self._ends[topic_partition] = confirmed[0].base_offset + count - 1
                return self._ends[topic_partition]
        self._failure = failure
        return None

    def _acknowledge(
        self,
        acknowledgement: Acknowledgement,
        count: int,
        last: tuple[int, int],
        result: Future[Acknowledgement],
        future: Future[tuple[Confirmation, ...]],
        *,
        cut: bool,
    ) -> None:
        offset = self._confirmed(acknowledgement.topic_partition, count, future)
        self._slots.release()
        if offset is not None:
            where, batches = acknowledgement.topic_partition, acknowledgement.batches
            result.set_result(Acknowledgement(topic_partition=where, batches=batches, anchor=Anchor(offset, *last)))
        elif cut and isinstance(self._failure, IggyUnavailableError):
            result.set_exception(_partly(self._failure))
        else:
            result.set_exception(self._failure)


def _partly(error: IggyUnavailableError) -> UnknownOutcomeError:
    return UnknownOutcomeError(f"some of the requests of one send may be stored: {error}")


def _mistrust(
    topic_partition: TopicPartition, count: int, confirmed: tuple[Confirmation, ...], end: int
) -> UnknownOutcomeError | None:
    """Return the error for a confirmation that shows a loss; None for a sound one."""
    if len(confirmed) != 1:
        return UnknownOutcomeError(
            f"{topic_partition}: the server confirmed {count} records without saying where it stored them; recover"
        )
    if confirmed[0].base_offset <= end:
        return UnknownOutcomeError(
            f"{topic_partition}: {count} records were stored at offset {confirmed[0].base_offset}, but offset {end} was confirmed "
            "before: the server lost confirmed messages, or the topic was purged; recover"
        )
    return None
