"""The base of the shipped formats: batches of payloads within the limits, and record numbers on errors."""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, TypeVar

from typing_extensions import override

from framework.errors import CorruptObjectError, RecordError, RecordTooLargeError, SourceError, is_of_machine
from framework.model.batches import SkippedRecord
from framework.model.objects import ResumePoint
from framework.model.payloads import PayloadColumn, count_within, join_payloads, longest, size_of
from framework.model.splits import Split, count_splits
from framework.transformer import (
    MAX_DEAD_LETTER_BYTES,
    BatchLimits,
    InputOptions,
    ObjectInput,
    PayloadBatch,
    Transformer,
)
from transformers.compression import check_expansion, is_plain_by_name

SHARED_MODULES = ("cramjam", "msgspec", "zstandard")
"""What unpacks and what checks; which of them an object needs is seen when it is read."""

CSV_OPTIONS = ("compression", "csv_header", "csv_delimiter", "csv_quote")
"""The options that determine the numbers of CSV's rows."""

T = TypeVar("T")
Runs = Iterator[PayloadBatch | SkippedRecord]
"""What reading gives: batches of good records, and bad records between them, in the order of their numbers."""

Bad = tuple[RecordError] | tuple[RecordError, bytes, int | None]
"""The arguments of `RunBuilder.bad`."""

RAW_BYTES = MAX_DEAD_LETTER_BYTES
"""How much of a bad record is kept: as much as a dead letter can hold."""

_NO_FORM = (TypeError, ValueError, ArithmeticError, RecursionError)
"""What encoding raises for a value that has no form in JSON."""

_PARTS = 5
"""A column of a fifth of the longest run, or more, is a run by itself: to gather more would copy it."""


_RECORD_BYTES = 100
"""What a record counts besides its bytes, about what it costs on the way and in Iggy."""


class RunBuilder:
    """Collects payloads and hands them out in runs.

    Attributes:
        next_record: number of the next record that is added, good or bad.
        limits: how long a run may get.
        stored_bytes: how many stored bytes the records so far may come from; see `input.max_expansion`.
        location: the object, or the split of it, in errors. Whoever raises an error about it leaves the location out.
        max_record_bytes: a longer record is bad.
    """

    def __init__(
        self, next_record: int, limits: BatchLimits, stored_bytes: int, location: str, max_record_bytes: int
    ) -> None:
        self.next_record = next_record
        self.limits = limits
        self.stored_bytes = stored_bytes
        self.location = location
        self.max_record_bytes = max_record_bytes
        self._pending: deque[Sequence[bytes]] = deque()
        self._count = 0
        self._size = 0
        self._borders: deque[tuple[ResumePoint, int | None]] = deque()

    def border(self, byte: int, *, overhead: int | None = None) -> None:
        """The next payload that is added begins at `byte` of the stored object.

        Args:
            byte: its offset.
            overhead: up to the next border each payload takes its length and this many bytes; None: that is not so.
        """
        self._borders.append((ResumePoint(self.next_record - 1, byte), overhead))

    def add(self, payloads: Sequence[bytes], size: int) -> Iterable[PayloadBatch]:
        """Take payloads of `size` bytes in all, a list or a column, and return the runs that are full."""
        count = len(payloads)
        if count:
            self._pending.append(payloads)
        self._count += count
        self._size += size
        self.next_record += count
        limits = self.limits
        if self._count >= limits.records or self._size >= limits.size_bytes:
            return self._full()
        if len(self._pending) == 1 and self._size >= limits.size_bytes // _PARTS and type(payloads) is PayloadColumn:
            return self.flush()
        return ()

    def _full(self) -> Iterator[PayloadBatch]:
        while self._count >= self.limits.records or self._size >= self.limits.size_bytes:
            yield self._cut()

    def flush(self) -> Iterator[PayloadBatch]:
        """Yield what is left."""
        while self._count:
            yield self._cut()

    def add_encoded(
        self,
        encode_all: Callable[[], Sequence[bytes]],
        rows: Callable[[], Iterable[T]],
        encode: Callable[[T], bytes],
        refused: Callable[[T, Exception], Bad],
    ) -> Runs:
        """Encode rows and take their payloads: all at once, or one after the other where one is bad or too long.

        Args:
            encode_all: returns the payloads of all rows, or fails.
            rows: returns the rows.
            encode: makes the payload of one.
            refused: returns the arguments of `bad` for a row that cannot be encoded.
        """
        limit = self.max_record_bytes
        try:
            payloads: Sequence[bytes] = encode_all()
        except _NO_FORM:
            payloads = ()
        size = size_of(payloads)
        if payloads and (size <= limit or longest(payloads) <= limit):
            yield from self.add(payloads, size)
            return
        del payloads  # they may be as long as memory allows
        for row in rows():
            try:
                payload = encode(row)
            except _NO_FORM as exc:
                yield from self.bad(*refused(row, exc))
                continue
            if len(payload) > limit:
                yield from self.bad(too_large(limit), payload, len(payload))
            else:
                yield from self.add([payload], len(payload))

    def bad(self, error: RecordError, raw: bytes = b"", length: int | None = None) -> Runs:
        """Take a bad record of which these are the bytes, and yield everything up to it.

        Args:
            error: why; it gets the location and the number of the record.
            raw: the record, or its beginning; nothing when it has no bytes of its own.
            length: how long it is, when `raw` is a beginning only.
        """
        yield from self.flush()
        error.location, error.record_number = self.location, self.next_record
        kept = raw[: RAW_BYTES if length is None else min(RAW_BYTES, length)]
        record = SkippedRecord(record_number=self.next_record, error=error, raw=kept, length=length)
        self.next_record += 1
        yield record

    def _cut(self) -> PayloadBatch:
        first = self.next_record - self._count
        parts: list[Sequence[bytes]] = []
        room, size_room = self.limits.records, self.limits.size_bytes
        while self._pending and room:
            part = self._pending.popleft()
            within = min(len(part), room)
            if self._size > self.limits.size_bytes:
                within = min(within, max(count_within(part, size_room), not parts))
            if within < len(part):
                self._pending.appendleft(part[within:])
                part, room = part[:within], within
            parts.append(part)
            room -= within
            if self._pending:
                size_room -= size_of(part)
        run = join_payloads(parts)
        size = size_of(run) if self._pending else self._size
        self._count -= len(run)
        self._size -= size
        return PayloadBatch(first_record=first, payloads=run, size_bytes=size, mark=self._mark(first, run, size))

    def _mark(self, first: int, run: Sequence[bytes], size: int) -> ResumePoint | None:
        """The best mark for the record behind `run`: exact where lengths tell, else the last border before it."""
        borders, last = self._borders, first + len(run) - 1
        while len(borders) > 1 and borders[1][0].record <= last:
            borders.popleft()
        if not borders or borders[0][0].record > last:
            return None
        mark, overhead = borders[0]
        if overhead is not None and mark.record < last:
            if mark.record >= first:
                size = size_of(run[mark.record - first + 1 :])
            mark = ResumePoint(last, mark.byte + size + overhead * (last - mark.record))
            borders[0] = (mark, overhead)
        return mark


def numbering_of(name: str, options: InputOptions, names: Sequence[str]) -> dict[str, str]:
    """Return the name of a format with the values of these options, as they are saved with a position."""
    values = {each: getattr(options, each) for each in names}
    return {"format": name} | {
        each: value if isinstance(value, str) else str(value).lower() for each, value in values.items()
    }


class ShippedTransformer(Transformer):
    """The base of the formats here: made from `InputOptions`; a subclass writes `_read`."""

    needs_modules: ClassVar[tuple[str, ...]] = SHARED_MODULES
    numbered_by: ClassVar[tuple[str, ...]] = ()
    """Options that determine the record numbers, besides the format. Not the compression of a format whose objects, read
    with a wrong one, have no record at all: then no number can change its meaning.
    """

    def __init__(self, options: InputOptions) -> None:
        self.options = options

    @override
    def numbering_options(self) -> Mapping[str, str]:
        return numbering_of(self.name, self.options, self.numbered_by)

    @override
    def read(
        self, source: ObjectInput, *, skip: int = 0, mark: ResumePoint | None = None, limits: BatchLimits | None = None
    ) -> Runs:
        if source.size == 0:
            # An empty object has no records in any format; opening it would be a request for nothing.
            return
        builder = self._builder(skip, limits, source, source.location)
        yield from self._numbered(self._read(source, skip, mark, builder), builder)

    def _builder(self, skip: int, limits: BatchLimits | None, source: ObjectInput, location: str) -> RunBuilder:
        return RunBuilder(skip + 1, limits or BatchLimits(), source.size, location, self.options.max_record_bytes)

    def _numbered(self, runs: Runs, builder: RunBuilder) -> Runs:
        """The runs and what is left in the builder; an error of the rest gets its location and the number of its record.

        The runs end with the one with which they take more than is allowed.
        """
        done = builder.next_record - 1
        total, factor = 0, self.options.max_expansion
        try:
            for run in runs:
                yield run
                if isinstance(run, SkippedRecord):
                    done = run.record_number
                    total += _RECORD_BYTES + (run.length or 0)
                else:
                    done = run.first_record + len(run.payloads) - 1
                    total += run.size_bytes + _RECORD_BYTES * len(run.payloads)
                check_expansion("its records take", total, factor, builder.stored_bytes)
            yield from builder.flush()
        except Exception as failure:
            if not isinstance(failure, SourceError) and is_of_machine(failure):
                raise  # low memory may have left the builder half changed, and its records are read again
            for run in builder.flush():
                yield run
                done = run.first_record + len(run.payloads) - 1
            if isinstance(failure, CorruptObjectError):
                failure.location = failure.location or builder.location
                failure.record_number = failure.record_number or done + 1
            raise

    def _problem(self, record: bytes) -> str | None:
        """Return the fault of a record by its bytes alone; None, the default, without one."""
        del record
        return None

    @override
    def decode_record(self, raw: bytes, *, key: str) -> bytes:
        """Return the bytes of a dead letter: those of a record as it was sent, or as it would have been."""
        if len(raw) > self.options.max_record_bytes:
            raise too_large(self.options.max_record_bytes)
        if (problem := self._problem(raw)) is not None:
            raise RecordError(problem)
        return raw

    @abc.abstractmethod
    def _read(self, source: ObjectInput, skip: int, mark: ResumePoint | None, builder: RunBuilder) -> Runs:
        """Read the records after `skip` into `builder`, yielding what comes out of it but for the last flush.

        `builder.next_record` is `skip + 1`. Must close what it opens.
        """


class SplittableTransformer(ShippedTransformer):
    """The base of the formats here whose objects can be split; a subclass writes `_read_split`, too."""

    @override
    def can_split(self, key: str) -> bool:
        """Return whether neither option nor key says that the object is compressed."""
        return is_plain_by_name(self.options.compression, key)

    @override
    def read_split(
        self,
        source: ObjectInput,
        split: Split,
        *,
        skip: int = 0,
        mark: ResumePoint | None = None,
        limits: BatchLimits | None = None,
    ) -> Runs:
        place = f"{source.location} (split {split.number} of {count_splits(source.size, split.split_size)})"
        builder = self._builder(skip, limits, source, place)
        if mark is not None and mark.record > skip:
            mark = None
        yield from self._numbered(self._read_split(source, split, skip, mark, builder), builder)

    @abc.abstractmethod
    def _read_split(
        self, source: ObjectInput, split: Split, skip: int, mark: ResumePoint | None, builder: RunBuilder
    ) -> Runs:
        """Read the records of a split as `_read` does those of an object; a mark is never behind `skip`.

        Where records can unfold to many times their bytes, `builder.stored_bytes` counts the bytes that were read.
        """


def too_large(limit: int, *, byte_offset: int | None = None) -> RecordTooLargeError:
    """The error of a record that is longer than `limit`."""
    return RecordTooLargeError(f"longer than input.max_record_bytes ({limit} bytes)", byte_offset=byte_offset)


def keep_part(parts: list[bytes], part: bytes, length: int, limit: int) -> None:
    """Add a part to the `length` bytes of a record that came before; of one that is too long the beginning is kept."""
    if length <= limit < length + len(part):
        parts[:] = [b"".join((*parts, part))[:RAW_BYTES]]
    elif length <= limit:
        parts.append(part)
    elif length < RAW_BYTES:
        parts.append(part[: RAW_BYTES - length])
