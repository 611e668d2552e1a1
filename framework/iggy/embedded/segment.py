"""One segment file: batches back to back, and an index of them in memory.

The index is three numbers per batch, in plain arrays: millions of messages cost kilobytes. The bytes themselves
are read from the disk when a poll asks.
"""

from __future__ import annotations

import os
import re
from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from framework.iggy.embedded import batch

if TYPE_CHECKING:
    from pathlib import Path

    from framework.iggy.embedded.files import FileOps

_SMALL_BATCH = 16 << 10
_SCAN_WINDOW = 256 << 10
_HEADER_END = re.compile(rb"[^\0]\0{204}")


class DamagedSegmentError(Exception):
    """A segment is damaged elsewhere than at its very end: no crash does that, so nothing is cut away."""


class Segment:
    """A file of consecutive batches of one partition.

    Appending and truncating belong to the holder of the partition's lock. Reading needs no lock: the arrays only
    grow, and a reader takes `count` first.
    """

    def __init__(self, path: Path, base_offset: int, files: FileOps) -> None:
        """Describe the segment at `path` whose first message has (or will have) `base_offset`; do no I/O."""
        self.path = path
        self.base_offset = base_offset
        self._files = files
        self._fd = -1
        self._ends = array("Q", (base_offset,))
        self._timestamps = array("Q")
        self._positions = array("Q", (0,))

    @property
    def size(self) -> int:
        """Bytes of whole batches in the file."""
        return self._positions[-1]

    @property
    def end_offset(self) -> int:
        """The offset behind the last message."""
        return self._ends[self.batches]

    @property
    def batches(self) -> int:
        """How many batches the segment holds."""
        return len(self._positions) - 1

    @property
    def last_timestamp(self) -> int:
        """The newest batch's append time in microseconds; 0 when there is none."""
        return self._timestamps[-1] if self._timestamps else 0

    def create(self) -> None:
        """Make the empty file, durably."""
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600))
        self._files.flush_directory(self.path.parent)

    def append(self, data: memoryview, end_offset: int, timestamp: int) -> None:
        """Store one stamped batch; when this returns it is on the disk.

        Args:
            data: The batch.
            end_offset: The offset behind its last message.
            timestamp: Its append time in microseconds, not before the last one's.

        Raises:
            OSError: The disk refused. The file is cut back to what it was, and the segment can be used on.
        """
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDWR)
        position = self.size
        try:
            self._files.write_all(self._fd, data, position)
            self._files.flush(self._fd)
        except OSError:
            self._files.truncate(self._fd, position)
            raise
        self._index(end_offset, timestamp, position + len(data))

    def first_at_or_after(self, timestamp: int) -> int | None:
        """Return the offset of the first batch appended at `timestamp` (microseconds) or later, or None."""
        number = bisect_left(self._timestamps, timestamp, 0, self.batches)
        return self._ends[number] if number < self.batches else None

    def find(self, offset: int) -> int:
        """Return the number of the batch that holds `offset`, which lies in this segment."""
        return bisect_right(self._ends, offset, 0, self.batches) - 1

    def batch_span(self, number: int) -> tuple[int, int, int, int]:
        """Return batch `number`'s base offset, end offset, position and length."""
        start = self._positions[number]
        return self._ends[number], self._ends[number + 1], start, self._positions[number + 1] - start

    def recover(self, *, last: bool) -> int:
        """Build the index from the file; return how many bytes of a torn tail were cut off.

        The walk goes from header to header. Only the newest batch can be half written, so its checksums are
        verified, and if they fail, those of the one before, until one is sound.

        Args:
            last: Whether this is the partition's newest segment. Only that one may have a torn tail.

        Raises:
            DamagedSegmentError: There is damage with sound data behind it, or in a segment that was complete.
        """
        with self.path.open("rb", buffering=0) as file:
            fd = file.fileno()
            total = os.fstat(fd).st_size
            broken_at = self._walk(fd, total)
            while self.batches and last:
                _, _, position, length = self.batch_span(self.batches - 1)
                try:
                    batch.verify(memoryview(os.pread(fd, length, position)))
                    break
                except batch.DamagedBatchError:
                    broken_at = position
                    self._forget_last()
            torn = total - self.size
            if torn and (not last or self._sound_batch_behind(fd, broken_at, total)):
                raise DamagedSegmentError(
                    f"{self.path} is damaged at byte {broken_at}, with sound data behind it. Restore the file, or "
                    f"cut it to {broken_at} bytes and remove the later segments to go on without the rest."
                )
        if torn:
            self._fd = os.open(self.path, os.O_RDWR)
            self._files.truncate(self._fd, self.size)
            self._files.flush(self._fd)
        return torn

    def close(self) -> None:
        """Release the file; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _walk(self, fd: int, total: int) -> int:
        """Index every batch whose header fits what came before; return where that ended."""
        window, window_at, length = b"", 0, 0
        while (position := self.size) < total:
            at = position - window_at
            if at + batch.HEADER_SIZE > len(window):
                # Small batches are read many at a time, big ones are stepped over.
                window = os.pread(fd, _SCAN_WINDOW if length < _SMALL_BATCH else batch.HEADER_SIZE, position)
                window_at, at = position, 0
            try:
                header = batch.read_header(window, at)
            except batch.DamagedBatchError:
                break
            length = header.length
            if header.base_offset != self.end_offset or position + length > total:
                break
            self._index(header.base_offset + header.count, header.base_timestamp, position + length)
        return self.size

    def _index(self, end_offset: int, timestamp: int, end_position: int) -> None:
        # The position comes last: it is what readers count batches by, so they never see half an entry.
        self._ends.append(end_offset)
        self._timestamps.append(timestamp)
        self._positions.append(end_position)

    def _forget_last(self) -> None:
        self._positions.pop()
        self._timestamps.pop()
        self._ends.pop()

    def _sound_batch_behind(self, fd: int, position: int, total: int) -> bool:
        """Tell whether any whole batch follows at or behind `position`, later than the one missing there.

        A batch header is recognized by its 204 reserved zeros right behind the last byte of its count that is not zero;
        it counts when its offset is later than what is missing and all its checksums fit.
        """
        tail = memoryview(os.pread(fd, total - position, position))
        for found in _HEADER_END.finditer(tail):
            for start in range(max(found.start() - 51, 0), max(found.start() - 47, 0)):
                try:
                    header = batch.read_header(tail, start)
                    if header.base_offset > self.end_offset:
                        batch.verify(tail[start : start + header.length])
                        return True
                except batch.DamagedBatchError:
                    continue
        return False
