"""How many rows of a row group are read at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_FIRST_BYTES = 1 << 24
"""What the first batch of a row group may take at most, if each of its rows held the longest value that there can be."""
_BATCH_BYTES = 1 << 22
_AGAIN_ROWS = 100
_GROWTH = 16


class BatchSizes:
    """How many rows of a row group are read at a time: few at first, then by the memory that they took.

    What the footer says is the size of encoded values: a dictionary counts once there, and its strings may be in every row.

    Attributes:
        unsized: the footer says no size, as some writers leave it; the columns' own sizes count once they are open.
    """

    def __init__(self, group: Any, most: int) -> None:
        self._limit = most
        stated = int(group.total_byte_size)
        self.unsized = stated <= 0
        widest = _FIRST_BYTES if self.unsized else stated  # no single value is longer than all of them
        self.most: int = max(1, min(most, _BATCH_BYTES // max(1, widest // max(1, group.num_rows))))
        self._size: int = max(1, min(self.most, _FIRST_BYTES // widest))
        # A small row group is no more than a batch may be, wherever in it the long values are.
        self._growth = _GROWTH if widest > _BATCH_BYTES else most
        self._seen = 0

    def narrow(self, chunk_bytes: int, rows: int) -> int:
        """Take the size of the chosen columns in place of the row group's; return the average of a row."""
        row_bytes = chunk_bytes // max(1, rows)
        self.most = max(1, min(self._limit, _BATCH_BYTES // max(1, row_bytes)))
        return row_bytes

    def next_size(self) -> int:
        """Return the rows of the next batch. Small batches fill up a large one, so that the ones behind are whole runs."""
        return min(self._size, self.most - self._seen % self.most)

    def observe(self, batch: pa.RecordBatch, json_bytes: int) -> None:
        """Count a batch that was read, and the bytes of its JSON: with long names they are far more than its values."""
        self._seen += batch.num_rows
        takes = max(int(batch.get_total_buffer_size()), json_bytes)
        each = max(1, takes // max(1, batch.num_rows))
        self._size = max(1, min(self.most, self._growth * self._size, _BATCH_BYTES // each))


class OneByOne:
    """Rows one at a time, behind those that were read already."""

    def __init__(self, done: int) -> None:
        self._left = done

    def next_size(self) -> int:
        """Return the rows of the next batch."""
        return max(1, min(self._left, _AGAIN_ROWS))

    def observe(self, batch: pa.RecordBatch, json_bytes: int) -> None:
        """Count a batch that was read."""
        del json_bytes
        self._left -= batch.num_rows
