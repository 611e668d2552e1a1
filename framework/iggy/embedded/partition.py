"""One partition: a chain of segment files, and the consumer offsets stored for it."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from typing import TYPE_CHECKING

from framework.iggy.embedded import batch, fields
from framework.iggy.embedded.fields import RefusedError
from framework.iggy.embedded.notices import warn
from framework.iggy.embedded.segment import DamagedSegmentError, Segment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from framework.iggy.embedded.files import FileOps

_REPLY_SIZE = 32 << 20
"""A poll's reply stops growing here, and the client polls again. A larger batch comes alone."""

Consumer = str
"""A consumer's key: its kind and its identifier, such as `1:7` or `1:reader`."""


def now_micros() -> int:
    """Return the wall clock in microseconds."""
    return time.time_ns() // 1000


class Partition:
    """The messages of one partition, in order and durable.

    A message that `append` has confirmed survives the death of the process. Threads may share a partition: one
    appends at a time, and polls do not wait for it.
    """

    def __init__(
        self,
        number: int,
        folder: Path,
        segment_size: int,
        files: FileOps,
        *,
        created_at: int,
        clock: Callable[[], int] = now_micros,
    ) -> None:
        """Describe partition `number` kept in `folder`; do no I/O.

        Args:
            number: The partition's id within its topic.
            folder: Its own folder; made when the first message arrives.
            segment_size: A segment that has reached this many bytes is sealed.
            files: The file operations to use.
            created_at: When the partition was made, in microseconds.
            clock: The time in microseconds, for append times.
        """
        self.number = number
        self.folder = folder
        self.created_at = created_at
        self._segment_size = segment_size
        self._files = files
        self._clock = clock
        self._lock = threading.Lock()
        self._closed = False
        self._segments: tuple[Segment, ...] = ()
        self._consumers: dict[Consumer, int] = {}
        self._last_timestamp = 0

    # -- what there is ------------------------------------------------------------------------------------------

    @property
    def first_offset(self) -> int:
        """The offset of the oldest message left (or of the next one, if there is none)."""
        segments = self._segments
        return segments[0].base_offset if segments else 0

    @property
    def end_offset(self) -> int:
        """The offset that the next message will get."""
        segments = self._segments
        return segments[-1].end_offset if segments else 0

    @property
    def current_offset(self) -> int:
        """The newest message's offset; 0 also when there is none, as in Iggy's replies."""
        return max(self.end_offset - 1, 0)

    @property
    def messages(self) -> int:
        """How many messages the partition holds."""
        segments = self._segments
        return segments[-1].end_offset - segments[0].base_offset if segments else 0

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> int:
        """How many segments there are; at least one, as in Iggy's replies."""
        return max(len(self._segments), 1)

    # -- life ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Load what is on the disk, and cut a torn tail off.

        Raises:
            DamagedSegmentError: Something else than a torn tail is wrong.
        """
        if not self.folder.is_dir():
            return
        paths = sorted(self.folder.glob("*.log"))
        segments = [Segment(path, int(path.stem), self._files) for path in paths]
        for number, segment in enumerate(segments):
            torn = segment.recover(last=segment is segments[-1])
            if torn:
                warn(f"{segment.path}: cut {torn} bytes of an unconfirmed batch")
            if number and segment.base_offset != segments[number - 1].end_offset:
                raise DamagedSegmentError(
                    f"{self.folder}: the messages {segments[number - 1].end_offset} to {segment.base_offset - 1} are "
                    f"missing before {segment.path.name}. Restore the file before it, or remove it and older ones."
                )
            self._last_timestamp = max(self._last_timestamp, segment.last_timestamp)
        self._segments = tuple(segments)
        stored = self.folder / "consumers.json"
        if stored.exists():
            self._consumers = json.loads(stored.read_bytes())

    def close(self) -> None:
        """Wait for an append under way and refuse later ones; may be called twice."""
        with self._lock:
            self._closed = True
            for segment in self._segments:
                segment.close()

    def destroy(self) -> None:
        """Close, and remove everything from the disk."""
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- messages -----------------------------------------------------------------------------------------------

    def append(self, data: memoryview, header: batch.Header, checksums: bytes) -> int:
        """Stamp a verified batch and store it; when this returns it is on the disk.

        Args:
            data: The batch; it is changed in place.
            header: What `batch.verify` returned for it.
            checksums: The same.

        Returns:
            The offset of its first message.

        Raises:
            RefusedError: The disk refused the write, and nothing is stored; or the partition is gone.
        """
        with self._lock:
            if self._closed:
                raise RefusedError(fields.RESOURCE_NOT_FOUND)
            try:
                segment = self._writable_segment()
                offset = segment.end_offset
                timestamp = self._last_timestamp = max(self._clock(), self._last_timestamp)
                batch.stamp(data, header, checksums, partition=self.number, offset=offset, timestamp=timestamp)
                segment.append(data, offset + header.count, timestamp)
            except OSError as exc:
                warn(f"{self.folder}: a batch was not stored: {exc}")
                raise RefusedError(fields.CANNOT_APPEND) from exc
            return offset

    def resolve(self, strategy: int, value: int, count: int, consumer: Consumer) -> int:
        """Return the offset at which a poll begins.

        Args:
            strategy: One of the `STRATEGY_` codes.
            value: An offset or a time in microseconds, for the strategies that need one.
            count: How many messages are wanted; `LAST` steps back by it.
            consumer: Whose stored offset `NEXT` goes on from.
        """
        first, end = self.first_offset, self.end_offset
        if strategy == fields.STRATEGY_OFFSET:
            return max(value, first)
        if strategy == fields.STRATEGY_FIRST:
            return first
        if strategy == fields.STRATEGY_LAST:
            return max(end - count, first)
        if strategy == fields.STRATEGY_NEXT:
            stored = self._consumers.get(consumer)
            return first if stored is None else max(stored + 1, first)
        if strategy == fields.STRATEGY_TIMESTAMP:
            for segment in self._segments:
                found = segment.first_at_or_after(value)
                if found is not None:
                    return found
            return end
        raise RefusedError(fields.INVALID_COMMAND)

    def read(self, offset: int, count: int) -> tuple[list[bytes | memoryview], int, int]:
        """Return up to `count` messages from `offset` on as stored batches.

        Returns:
            The batches in pieces, how many messages they hold, and the offset behind the last of them.

        Fewer come when the partition ends, or when the reply would grow beyond 32 MiB.
        """
        parts: list[bytes | memoryview] = []
        taken = size = 0
        for segment in self._segments:
            # A segment that is being deleted at this moment has been left behind: its messages are gone.
            if offset >= segment.end_offset or taken >= count or not segment.batches:
                continue
            offset = max(offset, segment.base_offset)
            try:
                file = segment.path.open("rb", buffering=0)
            except FileNotFoundError:
                continue
            with file:
                for number in range(segment.find(offset), segment.batches):
                    base, end, position, length = segment.batch_span(number)
                    if taken >= count or (taken and size + length > _REPLY_SIZE):
                        return parts, taken, offset
                    data = memoryview(_read_exactly(file.fileno(), length, position))
                    start, stop = offset - base, min(end - base, offset - base + count - taken)
                    if start == 0 and stop == end - base:
                        parts.append(data)
                    else:
                        parts += batch.cut(data, start, stop)
                    size += length
                    taken += stop - start
                    offset = base + stop
        return parts, taken, offset

    def delete_segments(self, count: int) -> None:
        """Remove up to `count` of the oldest sealed segments, none that a consumer still has to read.

        As in Iggy: a stored consumer offset holds back the segment it lies in and all later ones; the active
        segment always stays.
        """
        with self._lock:
            if self._closed or not self._segments:
                return
            self._writable_segment()
            barrier = min(self._consumers.values(), default=None)
            gone = 0
            for segment in self._segments[:-1][:count]:
                if barrier is not None and segment.end_offset - 1 > barrier:
                    break
                gone += 1
            removed, self._segments = self._segments[:gone], self._segments[gone:]
            for segment in removed:
                segment.close()
                segment.path.unlink()
            if removed:
                self._files.flush_directory(self.folder)

    # -- consumers ----------------------------------------------------------------------------------------------

    def stored_offset(self, consumer: Consumer) -> int | None:
        """Return the offset stored for `consumer`, or None."""
        return self._consumers.get(consumer)

    def store_offset(self, consumer: Consumer, offset: int) -> None:
        """Store `offset` for `consumer`, durably.

        Raises:
            RefusedError: There is no message with that offset yet, or the disk refused.
        """
        if offset >= self.end_offset:
            raise RefusedError(fields.INVALID_OFFSET)
        self._save_consumers(lambda consumers: consumers.update({consumer: offset}))

    def delete_offset(self, consumer: Consumer) -> None:
        """Forget the offset stored for `consumer`, durably.

        Raises:
            RefusedError: There is none, or the disk refused.
        """
        if consumer not in self._consumers:
            raise RefusedError(fields.CONSUMER_OFFSET_NOT_FOUND)
        self._save_consumers(lambda consumers: consumers.pop(consumer, None))

    def _save_consumers(self, change: Callable[[dict[Consumer, int]], object]) -> None:
        with self._lock:
            if self._closed:
                raise RefusedError(fields.RESOURCE_NOT_FOUND)
            consumers = dict(self._consumers)
            change(consumers)
            try:
                self._files.replace(self.folder / "consumers.json", json.dumps(consumers).encode())
            except OSError as exc:
                raise RefusedError(fields.CANNOT_WRITE_FILE) from exc
            self._consumers = consumers

    def _writable_segment(self) -> Segment:
        """Return the active segment with room left, making the next one when needed."""
        if self._segments and self._segments[-1].size < self._segment_size:
            return self._segments[-1]
        if not self._segments:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._files.flush_directory(self.folder.parent)
        segment = Segment(self.folder / f"{self.end_offset:020d}.log", self.end_offset, self._files)
        segment.create()
        if self._segments:
            self._segments[-1].close()
        self._segments += (segment,)
        return segment


def _read_exactly(fd: int, size: int, position: int) -> bytes:
    data = os.pread(fd, size, position)
    while len(data) < size:
        more = os.pread(fd, size - len(data), position + len(data))
        if not more:
            raise RefusedError(fields.RESOURCE_NOT_FOUND)
        data += more
    return data
