"""The configured transforms, applied in order to a format's batches, with their results checked.

A record that a transform cannot handle becomes a bad record with its original bytes. So a replay of its dead letter
applies the transforms again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from framework.errors import (
    RecordError,
    RecordTransformError,
    SkippableError,
    SourceError,
    TransformContractError,
    is_low_memory,
    raised_at,
)
from framework.model.batches import SkippedRecord
from framework.model.header_encoding import EncodedHeaders, headers_error, own_headers_room
from framework.model.payloads import PayloadColumn, owned, size_of
from framework.transform import (
    GrownBatchError,
    Transform,
    TransformBatch,
    TransformContext,
    number_array,
    too_long,
)
from framework.transformer import MAX_DEAD_LETTER_BYTES, MAX_MESSAGE_BYTES, PayloadBatch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from framework.model.objects import NativeObject, ResumePoint

log = logging.getLogger(__name__)

FILTERED_OBJECTS = 10
"""After so many objects in a row without a record left, a warning."""


@attrs.frozen(kw_only=True, eq=False)
class TransformedRun:
    """A format's batch after the transforms.

    Attributes:
        batch: the records that are left.
        first_record: number of the format's first record.
        last_record: number of the last record that the run accounts for.
        mark: where to find the record after it.
        bad: the bad records, in the order of their numbers, with their original bytes.
        filtered: number of filtered records.
    """

    batch: TransformBatch
    first_record: int
    last_record: int
    mark: ResumePoint | None
    bad: tuple[SkippedRecord, ...] = ()
    filtered: int = 0

    @property
    def complete(self) -> bool:
        """Whether every record is left."""
        return not self.filtered and not self.bad

    def number_array(self) -> NDArray[np.int64]:
        """Return the numbers of the records that are left."""
        return number_array(self.batch.numbers)

    def before(self, number: int) -> TransformedRun:
        """Return the part of the run before its first bad record, which has that number."""
        left, first = int(self.number_array().searchsorted(number)), self.first_record
        return TransformedRun(
            batch=self.batch.keep(range(left)),
            first_record=first,
            last_record=number - 1,
            mark=None,
            filtered=number - first - left,
        )


class TransformChain:
    """The transforms of a source, in order.

    Args:
        transforms: at least one, each with its place in the configuration, `transforms[0] (add_fields)`.

    Attributes:
        needs_metadata: whether a transform needs the metadata of the objects.
        needs_tags: whether a transform needs their tags.
        by_key: whether a transform chooses the partition of each record.
        row_decoder: the first transform's parser.
    """

    def __init__(self, transforms: Sequence[tuple[Transform, str]]) -> None:
        self._steps = _fused(transforms)
        self.needs_metadata = any(transform.needs_metadata for transform, _ in transforms)
        self.needs_tags = any(transform.needs_tags for transform, _ in transforms)
        self.by_key = any(transform.chooses_partition for transform, _ in transforms)
        self.row_decoder = self._steps[0].transform.row_decoder
        self._filtered_objects: set[tuple[int, int]] = set()
        self._warned = False

    def parts(self, run: PayloadBatch, context: TransformContext) -> Iterator[TransformedRun]:
        """Yield a format's batch after every transform, in smaller batches where it grows. Only the last has the mark.

        Raises:
            TransformContractError: a transform's result is impossible.
            SourceError: an error that is no error of a record, such as a failing store.
        """
        try:
            result = self.apply(run, context)
        except GrownBatchError:
            for part in _halves(run):
                yield from self.parts(part, context)
        else:
            yield result

    def apply(self, run: PayloadBatch, context: TransformContext) -> TransformedRun:
        """Return a format's batch after every transform.

        Raises:
            GrownBatchError: it becomes too large; never of a single record.
            TransformContractError: a transform's result is impossible.
            SourceError: an error that is no error of a record, such as a failing store.
        """
        first, count = run.first_record, len(run.payloads)
        batch = TransformBatch(payloads=run.payloads, numbers=range(first, first + count))
        for step in self._steps:
            if not len(batch):
                break
            batch = step.apply(batch, context)
        if self.by_key and batch.key_hashes is None and len(batch):
            raise TransformContractError(f"{self._places} returned records without the hashes of their keys")
        batch = _within_limits(_without_rows(batch), context.native, changed=batch.payloads is not run.payloads)
        self._watch_filters(len(batch), context)
        bad = tuple(
            _with_raw(skipped, run, context) for skipped in sorted(batch.bad, key=lambda bad: bad.record_number)
        )
        return TransformedRun(
            batch=batch,
            first_record=first,
            last_record=first + count - 1,
            mark=run.mark,
            bad=bad,
            filtered=count - len(batch) - len(bad),
        )

    def _watch_filters(self, left: int, context: TransformContext) -> None:
        """Warn once when nothing is left of several objects in a row: most likely a condition is wrong."""
        if left:
            self._filtered_objects.clear()
        elif not self._warned:
            self._filtered_objects.add((context.id_high, context.split_number))
            if len(self._filtered_objects) == FILTERED_OBJECTS:
                self._warned = True
                log.warning(
                    "the transforms left no record of %d objects in a row, the last one %s: is a condition of %s wrong?",
                    FILTERED_OBJECTS,
                    context.native.location,
                    self._places,
                )

    @property
    def _places(self) -> str:
        return ", ".join(step.place for step in self._steps)


@attrs.frozen(kw_only=True, eq=False)
class _Step:
    """A transform, or several that are applied as one.

    Attributes:
        transform: what is applied.
        place: its place in the configuration.
        parts: of several, each alone; else empty.
    """

    transform: Transform
    place: str
    parts: tuple[_Step, ...] = ()

    def apply(self, batch: TransformBatch, context: TransformContext) -> TransformBatch:
        """Apply it; after an exception to each half, again and again, until each bad record is alone.

        Records among which several transforms find a bad one go through each of them, so that its reason names the one.
        """
        place = self.place
        try:
            result = self.transform.apply(batch, context)
        except GrownBatchError:
            raise
        except TransformContractError as failure:
            raise TransformContractError(f"{place}: {failure} ({raised_at(failure)})") from failure
        except Exception as failure:
            if isinstance(failure, SourceError) and not isinstance(failure, SkippableError):
                raise
            if isinstance(failure, ImportError) or is_low_memory(failure):
                raise
            if self.parts:
                return self._apart(batch, context)
            if len(batch) > 1:
                halves = batch.slices((len(batch) + 1) // 2)
                return batch.join([_with_own_headers(self.apply(half, context)) for half in halves])
            return batch.reject({0: _reason(place, failure)})
        _check(place, batch, result)
        result = _owned(place, batch, result)
        known = len(batch.bad)
        if len(result.bad) == known:
            return result
        bad = self._found_apart(batch, result.bad[known:], context) if self.parts else self._named(result.bad[known:])
        return attrs.evolve(result, bad=(*batch.bad, *bad))

    def _apart(self, batch: TransformBatch, context: TransformContext) -> TransformBatch:
        for part in self.parts:
            if len(batch):
                batch = part.apply(batch, context)
        return batch

    def _found_apart(
        self, batch: TransformBatch, bad: Sequence[SkippedRecord], context: TransformContext
    ) -> Iterator[SkippedRecord]:
        """Return the bad records with the reasons that the parts give for them, one part after the other."""
        numbers = sorted(skipped.record_number for skipped in bad)
        alone = attrs.evolve(batch.keep(number_array(batch.numbers).searchsorted(numbers)), bad=())
        named = {skipped.record_number: skipped for skipped in self._apart(alone, context).bad}
        return (named.get(skipped.record_number, skipped) for skipped in bad)

    def _named(self, bad: Sequence[SkippedRecord]) -> Iterator[SkippedRecord]:
        """Yield the bad records with the place of the transform, not its name alone, in their reasons."""
        for skipped in bad:
            reason = skipped.error.message.removeprefix(f"{self.transform.name}: ")
            error = RecordError(f"{self.place}: {reason}", record_number=skipped.record_number)
            error.__cause__ = skipped.error.__cause__
            yield attrs.evolve(skipped, error=error)


def _halves(run: PayloadBatch) -> Iterator[PayloadBatch]:
    half = len(run.payloads) // 2
    for first, payloads, mark in ((0, run.payloads[:half], None), (half, run.payloads[half:], run.mark)):
        yield PayloadBatch(
            first_record=run.first_record + first, payloads=payloads, size_bytes=size_of(payloads), mark=mark
        )


def _fused(transforms: Sequence[tuple[Transform, str]]) -> list[_Step]:
    """Return the transforms with neighbours made one where they can be."""
    steps: list[_Step] = []
    for transform, place in transforms:
        step = _Step(transform=transform, place=place)
        last = steps[-1] if steps else None
        both = last.transform.fused_with(transform) if last is not None else None
        if last is None or both is None:
            steps.append(step)
        else:
            parts = (*(last.parts or (last,)), step)
            steps[-1] = _Step(transform=both, place=f"{last.place}, {place}", parts=parts)
    return steps


def _reason(place: str, failure: Exception) -> str:
    text = failure.message if isinstance(failure, SkippableError) else ""
    return f"{place}: {text}" if text else f"{place} failed with {type(failure).__name__} ({raised_at(failure)})"


def _check(place: str, before: TransformBatch, after: object) -> None:
    """Reject a result with records that did not come in, or that come in another order.

    Raises:
        TransformContractError: names the transform.
    """
    import numpy as np  # noqa: PLC0415 - loaded when used

    if not isinstance(after, TransformBatch):
        raise TransformContractError(f"{place} returned {type(after).__name__}, not a TransformBatch")
    _check_values(place, after)
    count = len(after.payloads)
    lengths = {len(after.numbers)}
    columns = (after.headers, after.timestamps_us, after.key_hashes)
    lengths.update(len(column) for column in columns if column is not None)
    if lengths != {count}:
        raise TransformContractError(
            f"{place} returned {count} payloads with {sorted(lengths)} numbers, headers, timestamps or key hashes"
        )
    new_bad = after.bad[len(before.bad) :]
    if after.numbers is before.numbers and not new_bad:
        return
    numbers = number_array(after.numbers)
    known = number_array(before.numbers)
    if (numbers[1:] <= numbers[:-1]).any():
        raise TransformContractError(
            f"{place} returned records twice or in another order: a transform may only change or drop"
        )
    if after.bad[: len(before.bad)] != before.bad:
        raise TransformContractError(f"{place} dropped bad records that an earlier transform had found")
    bad = [skipped.record_number for skipped in new_bad]
    given = np.sort(np.concatenate((numbers, np.array(bad, np.int64)))) if bad else numbers
    if not len(given):
        return
    places = known.searchsorted(given)
    if places[-1] == len(known) or (known[places] != given).any():
        raise TransformContractError(f"{place} returned a record number that was not given to it")
    if (given[1:] == given[:-1]).any():
        raise TransformContractError(f"{place} returned a bad record twice, or among the good ones too")


def _owned(place: str, before: TransformBatch, after: TransformBatch) -> TransformBatch:
    """Return the result, independent of what the transform does next with its lists, arrays and buffers.

    Its headers are copied at the end of the chain: see `_within_limits`.

    Raises:
        TransformContractError: a payload is of another type.
    """
    changed: dict[str, Any] = {}
    if after.payloads is not before.payloads:
        try:
            payloads = owned(after.payloads)
        except TypeError as exc:
            raise TransformContractError(f"{place} returned a payload that is {exc}, not bytes") from None
        if payloads is not after.payloads:
            changed["payloads"] = payloads
    for name in ("numbers", "timestamps_us", "key_hashes"):
        column = getattr(after, name)
        if not (column is None or column is getattr(before, name) or isinstance(column, range)):
            changed[name] = column.copy()
    return attrs.evolve(after, **changed) if changed else after


def _with_own_headers(batch: TransformBatch) -> TransformBatch:
    """Return the result with copies of its headers: the transform is applied again before they are encoded."""
    if batch.headers is None:
        return batch
    copies = {id(headers): dict(headers) for headers in batch.headers if headers is not None}
    return attrs.evolve(batch, headers=[None if headers is None else copies[id(headers)] for headers in batch.headers])


def _check_values(place: str, after: TransformBatch) -> None:
    """Reject headers, times and hashes of other types, and payloads in no list; `_owned` looks at each of these.

    Raises:
        TransformContractError: names the transform.
    """
    payloads: object = after.payloads
    if not isinstance(payloads, Sequence):
        raise TransformContractError(f"{place} returned payloads that are {type(payloads).__name__}, not a list")
    for kind in set(map(type, after.headers or ())):
        if kind is not type(None) and not issubclass(kind, Mapping):
            raise TransformContractError(
                f"{place} returned headers of a record that are {kind.__name__}, not a mapping"
            )
    for name, kinds, wanted in (("timestamps_us", "i", "int64"), ("key_hashes", "iu", "uint32")):
        column: object = getattr(after, name)
        if column is None:
            continue
        if getattr(getattr(column, "dtype", None), "kind", "") not in tuple(kinds) or getattr(column, "ndim", 0) != 1:
            raise TransformContractError(
                f"{place} returned {name} that are {type(column).__name__}, not an array of {wanted}"
            )


def _without_rows(batch: TransformBatch) -> TransformBatch:
    """Return the batch without what a parser has made of its payloads, which would be held until they are sent."""
    payloads = batch.payloads
    if not isinstance(payloads, PayloadColumn) or payloads.parsed is None:
        return batch
    return batch.with_payloads(payloads.with_parsed(None))


def _within_limits(batch: TransformBatch, native: NativeObject, *, changed: bool) -> TransformBatch:
    """Reject the records that Iggy cannot store."""
    import numpy as np  # noqa: PLC0415 - loaded when used

    reasons: dict[int, str] = {}
    payloads = batch.payloads
    if changed:
        sizes = payloads.sizes if isinstance(payloads, PayloadColumn) else np.fromiter(map(len, payloads), np.int64)
        for place in np.flatnonzero((sizes < 1) | (sizes > MAX_MESSAGE_BYTES)).tolist():
            reasons[place] = (
                too_long(int(sizes[place]))
                if sizes[place]
                else "it is empty after the transforms, and Iggy stores no empty messages"
            )
    if batch.headers is not None:
        # records often share a mapping, so each mapping is encoded once
        keys = list(map(id, batch.headers))
        shared = dict(zip(keys, batch.headers, strict=True))
        encoded = {
            key: headers if type(headers) is EncodedHeaders else EncodedHeaders(headers)
            for key, headers in shared.items()
            if headers
        }
        room = own_headers_room(native)
        wrong = {key for key, headers in encoded.items() if headers.error or len(headers.encoded) > room}
        for place, key in enumerate(keys) if wrong else ():
            if key in wrong and (reason := headers_error(encoded[key], room)):
                reasons.setdefault(place, reason)
        batch = attrs.evolve(batch, headers=list(map(encoded.get, keys)))
    if batch.timestamps_us is not None:
        for place in (batch.timestamps_us < 0).nonzero()[0].tolist():
            reasons.setdefault(place, "its origin timestamp is before 1970")
    return batch.reject(reasons)


def _with_raw(skipped: SkippedRecord, run: PayloadBatch, context: TransformContext) -> SkippedRecord:
    """Return a bad record with the bytes that the format had read, and its place."""
    raw, error, number = run.payloads[skipped.record_number - run.first_record], skipped.error, skipped.record_number
    located = RecordTransformError(error.message, location=context.native.location, record_number=number)
    located.__cause__ = error.__cause__
    return attrs.evolve(skipped, error=located, raw=raw[:MAX_DEAD_LETTER_BYTES], length=len(raw))
