"""All positions of a moment, which later changes do not affect: final ones as rows, the others as objects."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import attrs
from typing_extensions import override

from framework.offsets.packed_row import RowChunk, RowCodec, RowColumns, Tables

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from framework.model.positions import OffsetManagerEntry
    from framework.offsets.watermark import Watermark


class Compactable(NamedTuple):
    """The positions of an object that a watermark replaces.

    Attributes:
        prefix: the prefix under which the object counts as compacted.
        entries: its position, or those of all its splits.
    """

    prefix: str
    entries: Sequence[OffsetManagerEntry]


def records_of(entry: OffsetManagerEntry) -> int:
    """Return how many records an entry adds to its source: the parts of an object count once."""
    return entry.records_done if entry.counts_object else 0


@attrs.define(eq=False, repr=False)
class PositionView:
    """A snapshot of positions, each entry built on access. Immutable; threads may share it.

    Equal to any sequence of equal entries in the same order: rows first, in the order in which they became final.

    Args:
        codec: unpacks the rows.
        blocks: the rows.
        dead: which rows are dead, 0 or 1 each.
        block_rows: how many rows each block but the last has.
        others: all entries that are no rows.

    Attributes:
        others: as the argument.
    """

    _codec: RowCodec
    _blocks: Sequence[RowChunk]
    _dead: bytes
    _block_rows: int
    others: Sequence[OffsetManagerEntry]

    def __len__(self) -> int:
        return len(self.others) + self._dead.count(0)

    def __iter__(self) -> Iterator[OffsetManagerEntry]:
        yield from map(self._codec.entry_of, self.rows())
        yield from self.others

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PositionView | Sequence):
            return NotImplemented
        return len(self) == len(other) and all(left == right for left, right in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    @override
    def __repr__(self) -> str:
        return f"<{len(self)} positions>"

    @property
    def tables(self) -> Tables:
        """The tables that the rows refer to."""
        return self._codec.tables

    def rows(self, chosen: Callable[[RowColumns], NDArray[np.bool_]] | None = None) -> Iterator[bytes]:
        """Yield the live rows in the order of insertion; without a step for each of the others.

        Args:
            chosen: returns which rows of a block to yield; None: all.
        """
        for block, columns, live in self._columns():
            wanted = live if chosen is None else live & chosen(columns)
            yield from map(block.row, wanted.nonzero()[0].tolist())

    def chunks(self) -> Iterator[RowChunk]:
        """Yield the live rows in chunks of a block's size: the form of a snapshot."""
        import numpy as np  # noqa: PLC0415 - not loaded for few objects, or for an import only

        whole = self._block_rows
        rows, sizes = b"", np.zeros(0, np.uint32)
        for _, columns, live in self._columns():
            more = columns.ends - columns.starts
            rows += columns.raw[np.repeat(live, more)].tobytes()
            sizes = np.concatenate((sizes, more[live]))
            if len(sizes) >= whole:
                cut = int(sizes[:whole].sum())
                yield RowChunk(rows[:cut], sizes[:whole].cumsum(dtype=np.uint32).tobytes())
                rows, sizes = rows[cut:], sizes[whole:]
        if len(sizes):
            yield RowChunk(rows, sizes.cumsum(dtype=np.uint32).tobytes())

    def compactable(self, watermark: Watermark) -> Iterator[Compactable]:
        """Yield the positions of done objects that the watermark covers; without a step for each row of a younger one.

        The splits of an object are compacted together, when all splits present are done. A split left behind would look
        like a started version.
        """
        latest_ms = watermark.latest_ms
        rows = self.rows(lambda columns: self._codec.may_be_compacted(columns, latest_ms)) if latest_ms else ()
        splits: defaultdict[tuple[str, str], list[OffsetManagerEntry]] = defaultdict(list)
        for entry in itertools.chain(map(self._codec.entry_of, rows), self.others):
            if entry.whole:
                yield from _compactable([entry], watermark)
            else:
                splits[entry.bucket, entry.key].append(entry)
        for entries in splits.values():
            yield from _compactable(entries, watermark)

    def failed(self) -> Iterator[OffsetManagerEntry]:
        """Yield the rows of failed objects as entries; without a step for each of the others."""
        if self._codec.has_failed:
            yield from map(self._codec.entry_of, self.rows(self._codec.failed))

    @property
    def records_done(self) -> int:
        """Total records of all entries, those of an object with parts once; each row is read."""
        rows = sum(self._codec.sum_records(columns, live) for _, columns, live in self._columns())
        return rows + sum(map(records_of, self.others))

    def _columns(self) -> Iterator[tuple[RowChunk, RowColumns, NDArray[np.bool_]]]:
        """Yield the blocks, with their columns, and which of their rows are live."""
        import numpy as np  # noqa: PLC0415 - as above

        for at, block in enumerate(self._blocks):
            yield (
                block,
                RowColumns.of(block),
                np.frombuffer(self._dead, np.bool_, len(block), at * self._block_rows) == 0,
            )


def _compactable(entries: Sequence[OffsetManagerEntry], watermark: Watermark) -> Iterator[Compactable]:
    """Yield an object's positions when all are done and covered."""
    prefixes = [
        watermark.prefix_over(entry.bucket, entry.key, entry.modified_ms) if entry.final and entry.done else None
        for entry in entries
    ]
    if prefixes[0] is not None and None not in prefixes:
        yield Compactable(prefixes[0], entries)
