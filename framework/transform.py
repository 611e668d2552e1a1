"""The contract of a transform: records of a format -> records as they are sent.

Transforms stand in the configuration as an ordered list, `[[transforms]]`. They run in the reader's thread, on whole
batches, between the format and the queue. The built-in ones are in `framework.transforms`; others register under the
entry point group `iggy_cloud_sources.transforms`.

Every record keeps the number that the format gave it, also when records before it are filtered. So positions, message
ids and recovery do not depend on the transforms.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from framework.errors import RecordError, TransformContractError
from framework.model.batches import SkippedRecord
from framework.model.header_encoding import HeaderValue
from framework.model.objects import NativeObject, TopicPartition, length_only
from framework.model.payloads import PayloadColumn, join_payloads
from framework.transformer import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    import msgspec
    import numpy as np
    from numpy.typing import NDArray

RecordHeaders = Sequence[Mapping[str, HeaderValue] | None]
"""The headers of each record of a batch; None for a record without."""


GROWN_BYTES = 1 << 24
"""What a batch of several records may become, or twice its own size where that is more."""


class GrownBatchError(Exception):
    """Several records together would become too large: a schema's names or a long value are in each. Smaller batches follow."""


def too_long(size: int) -> str:
    """Return the reason why a record of that size cannot be sent."""
    return f"it has {size:,} bytes after the transforms, Iggy stores at most {MAX_MESSAGE_BYTES:,}"


@attrs.frozen(kw_only=True, eq=False)
class TransformBatch:
    """Records of one object, in order: the input and the output of a transform.

    All sequences have one value per record. A transform never changes a batch; it returns another one.

    Attributes:
        payloads: the records' bytes: a list, or a `framework.model.payloads.PayloadColumn`.
        numbers: the records' numbers, rising: a `range`, or an array of int64 where numbers are missing.
        headers: headers of each record, beside those that name its object; None when no record has any. A header with a
            name of those (`bucket`, `key`, `version`, `share`) replaces it. Records may share a mapping, so a transform
            makes another one: `{**headers, name: value}`.
        timestamps_us: the origin time of each record, microseconds since 1970; 0 for the time of sending. None when no
            record has its own.
        key_hashes: the hash of each record's key, which chooses its partition; None before a transform has set it
            (`partition_by`), or without such a transform.
        bad: the records that a transform found bad. The reader adds their bytes.
    """

    payloads: Sequence[bytes] = attrs.field(repr=length_only)
    numbers: range | NDArray[np.int64]
    headers: RecordHeaders | None = attrs.field(default=None, repr=False)
    timestamps_us: NDArray[np.int64] | None = attrs.field(default=None, repr=False)
    key_hashes: NDArray[np.uint32] | None = attrs.field(default=None, repr=False)
    bad: tuple[SkippedRecord, ...] = ()

    def __len__(self) -> int:
        return len(self.payloads)

    def with_payloads(self, payloads: Sequence[bytes]) -> TransformBatch:
        """Return the batch with other bytes for the same records."""
        return attrs.evolve(self, payloads=payloads)

    def slices(self, most_records: int) -> Iterator[TransformBatch]:
        """Yield the records in batches of at most so many. The bad ones stay with this batch: see `join`."""
        for at in range(0, len(self), most_records):
            part = slice(at, at + most_records)
            yield TransformBatch(
                payloads=self.payloads[part],
                numbers=self.numbers[part],
                headers=None if self.headers is None else self.headers[part],
                timestamps_us=None if self.timestamps_us is None else self.timestamps_us[part],
                key_hashes=None if self.key_hashes is None else self.key_hashes[part],
            )

    def join(self, parts: Sequence[TransformBatch]) -> TransformBatch:
        """Return the results for all `slices` of this batch as one batch."""
        import numpy as np  # noqa: PLC0415 - loaded when used

        headers = timestamps = key_hashes = None
        if any(part.headers is not None for part in parts):
            headers = list(chain.from_iterable(part.headers or [None] * len(part) for part in parts))
        if any(part.timestamps_us is not None for part in parts):
            timestamps = np.concatenate(
                [np.zeros(len(part), np.int64) if part.timestamps_us is None else part.timestamps_us for part in parts]
            )
        hashes = [part.key_hashes for part in parts if len(part)]
        if hashes and all(column is not None for column in hashes):
            key_hashes = np.concatenate([column for column in hashes if column is not None])
        complete = sum(map(len, parts)) == len(self)
        return TransformBatch(
            payloads=join_payloads([part.payloads for part in parts]),
            numbers=self.numbers if complete else np.concatenate([number_array(part.numbers) for part in parts]),
            headers=headers,
            timestamps_us=timestamps,
            key_hashes=key_hashes,
            bad=(*self.bad, *chain.from_iterable(part.bad for part in parts)),
        )

    def keep(self, places: Sequence[int] | NDArray[np.intp], payloads: Sequence[bytes] | None = None) -> TransformBatch:
        """Return the batch with some of its records; the others are filtered: counted, and not sent.

        Args:
            places: places in this batch, counted from 0 and rising, of the records to keep.
            payloads: the kept records' bytes, where the caller has them already.

        Raises:
            TransformContractError: these are no such places, but for example truth values.
        """
        import numpy as np  # noqa: PLC0415 - loaded when used

        given = np.asarray(places)
        if len(given) and given.dtype.kind not in "iu":
            advice = ": numpy.flatnonzero makes places of truth values" if given.dtype.kind == "b" else ""
            raise TransformContractError(f"keep takes the places of records, and was given {given.dtype}{advice}")
        index = given.astype(np.intp, copy=False)
        if len(index) and (index[0] < 0 or index[-1] >= len(self) or (index[1:] <= index[:-1]).any()):
            raise TransformContractError(f"keep takes rising places from 0 to {len(self) - 1}, each once")
        if len(index) == len(self):
            return self if payloads is None else self.with_payloads(payloads)
        rows = index.tolist()
        if payloads is None:
            column = self.payloads
            payloads = _taken(column, index) if isinstance(column, PayloadColumn) else [column[row] for row in rows]
        return attrs.evolve(
            self,
            payloads=payloads,
            numbers=number_array(self.numbers)[index],
            headers=None if self.headers is None else [self.headers[row] for row in rows],
            timestamps_us=None if self.timestamps_us is None else self.timestamps_us[index],
            key_hashes=None if self.key_hashes is None else self.key_hashes[index],
        )

    def reject(self, reasons: Mapping[int, str]) -> TransformBatch:
        """Return the batch without some of its records, which are bad: `[errors] tolerance` decides about them.

        Args:
            reasons: place in this batch, counted from 0, to the reason, as the end of a sentence about the record. It
                never holds the record's content. The transform's place stands before it in messages, in place of a
                name at its begin: `redact: no word` becomes `transforms[1] (redact): no word`.

        Raises:
            TransformContractError: the batch has no such place.
        """
        if not reasons:
            return self
        if any(not 0 <= place < len(self) for place in reasons):
            raise TransformContractError(f"reject takes places from 0 to {len(self) - 1}, each with its reason")
        if any(type(reason) is not str for reason in reasons.values()):
            raise TransformContractError("reject takes the reason of each place as text")
        numbers = self.numbers
        bad = [
            SkippedRecord(
                record_number=int(numbers[place]), error=RecordError(reason, record_number=int(numbers[place]))
            )
            for place, reason in sorted(reasons.items())
        ]
        rest = self.keep([place for place in range(len(self)) if place not in reasons])
        return attrs.evolve(rest, bad=(*self.bad, *bad))


def number_array(numbers: range | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of a batch as an array."""
    import numpy as np  # noqa: PLC0415 - loaded when used

    if isinstance(numbers, range):  # many times as quick as the way through its elements
        return np.arange(numbers.start, numbers.stop, numbers.step, dtype=np.int64)
    return np.asarray(numbers, dtype=np.int64)


def _taken(column: PayloadColumn, index: NDArray[np.intp]) -> PayloadColumn:
    """Return the payloads at these places. Neighbours are copied in one piece, and no payload becomes an object."""
    import numpy as np  # noqa: PLC0415 - loaded when used

    gaps = np.flatnonzero(index[1:] - index[:-1] > 1)
    firsts, lasts = np.concatenate((index[:1], index[gaps + 1])), np.concatenate((index[gaps], index[-1:]))
    begins = (column.begins[firsts] - column.base).tolist()
    ends = (column.ends[lasts] + (1 - column.base)).tolist()
    data = column.data
    pieces = [data[begin:end] for begin, end in zip(begins, ends, strict=True)]
    return PayloadColumn(b"".join(pieces), (column.sizes[index] + 1).cumsum() - 1)


@attrs.frozen(kw_only=True)
class TransformContext:
    """The object whose records are transformed.

    Attributes:
        native: the object: bucket, key, version, size, last-modified time.
        topic_partition: where its records go. The position of the object is bound to it, so no transform changes it.
            With `partition_by` records go to every partition of the topic; then it names the first.
        source: the source's name.
        id_high: the upper 64 bits of the message ids of the object's records.
        split_number: number of the split, counted from 1; 0 when records are numbered in the whole object.
        metadata: the object's metadata by name, when a transform's `needs_metadata` asks for it; else empty.
        tags: the object's tags by name, when a transform's `needs_tags` asks for them; else empty. They can change while
            the version stays the same.
        object_exists: whether the object is there in this version. It need not be when a dead letter is replayed: then
            nothing is known but bucket, key and version, and `metadata` and `tags` are empty.
    """

    native: NativeObject
    topic_partition: TopicPartition
    source: str
    id_high: int = 0
    split_number: int = 0
    metadata: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    tags: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    object_exists: bool = True


@attrs.frozen(kw_only=True)
class NoOptions:
    """The options of a transform without any."""


class Transform(abc.ABC):
    """Change records, or drop some of them: a batch in, a batch out.

    **Deterministic**: the same version of an object must give the same result on every read. After a restart the source
    reads the records again that the server had not stored yet. A transform that drops a record at one time and not at
    another loses it or sends it twice; a value of the clock or of chance gives a record that differs from try to try.
    So use only the payload, the record's number, and the context. Batches may be cut elsewhere on the next read: a
    record's result must not depend on the records around it.

    An instance serves many objects, one batch at a time, and keeps no state between batches.

    An exception makes a record bad, not the batch: the framework then gives the transform smaller parts, down to one record.

    Attributes:
        name: the value of `type` in the configuration.
        options_class: the attrs class of its options, each an `option()`; the loader checks them, and calls its
            `validate_options` when it has one.
        converts: whether it makes a message's bytes in their last form, so that no transform may stand behind it.
        chooses_partition: whether it sets `TransformBatch.key_hashes`: records whose hashes have the same remainder go to
            the same partition. A function of the record alone.
        needs_modules: modules that it imports besides the framework's; checked on Spark's executors before a run.

    Args:
        options: an instance of `options_class`.
    """

    name: ClassVar[str]
    options_class: ClassVar[type] = NoOptions
    converts: ClassVar[bool] = False
    chooses_partition: ClassVar[bool] = False
    needs_modules: ClassVar[tuple[str, ...]] = ()

    def __init__(self, options: object) -> None:
        self.options = options

    @property
    def needs_metadata(self) -> bool:
        """Whether `TransformContext.metadata` must be there: one request more for each object. False by default."""
        return False

    @property
    def needs_tags(self) -> bool:
        """Whether `TransformContext.tags` must be there: one request more for each object. False by default."""
        return False

    @property
    def row_decoder(self) -> msgspec.json.Decoder[Any] | None:
        """The parser of JSON objects that gives it what it looks at; None, the default, without such a parser.

        The format may have used the first transform's parser: then the rows are in `PayloadColumn.parsed`.
        """
        return None

    def fused_with(self, following: Transform) -> Transform | None:
        """Return a transform that does both, for speed; None, the default, when there is none.

        Args:
            following: the transform after this one in the configuration.
        """
        del following
        return None

    @abc.abstractmethod
    def apply(self, batch: TransformBatch, context: TransformContext) -> TransformBatch:
        """Return the records as they go on, in the same order; fewer of them, never more.

        Called by the reader's thread. May not block. `batch.keep`, `batch.with_payloads` and `batch.reject` make the
        results; whoever makes a batch otherwise keeps each record's number with it.

        Args:
            batch: the records; one or more.
            context: their object.

        Raises:
            Exception: a record is bad; which one is found out with smaller parts.
        """
