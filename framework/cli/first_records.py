"""The first records of an object, decoded and transformed as a run would: whether `[input]` and `[[transforms]]` fit it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from framework.errors import (
    AccessDeniedError,
    ObjectArchivedError,
    ObjectChangedError,
    ObjectNotFoundError,
    SkippableError,
)
from framework.iterator import AbstractSourceRecordIterator
from framework.model.batches import SkippedRecord
from framework.model.closing import close_iterator
from framework.model.objects import NativeObject, TopicPartition
from framework.model.text import counted
from framework.pipeline.object_reader import context_of
from framework.storage.preflight import CheckResult
from framework.transformer import BatchLimits, guarded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from framework.config.sections import SourceCommonConfig

MAX_RECORDS = 500
MAX_BYTES = 1 << 20
MAX_BAD = 20


def check_records(
    iterator: AbstractSourceRecordIterator, native: NativeObject, topic_partition: TopicPartition
) -> Iterator[CheckResult]:
    """Read about a batch of an object and transform it; send nothing.

    What is wrong with the object is a warning: whether a run reads it, and what it does then, depends on the positions and
    on `[errors] tolerance`.

    Raises:
        SourceError: the store's.
    """
    try:
        read, left, bad = _look(iterator, native, topic_partition)
    except (SkippableError, AccessDeniedError) as error:
        passing = isinstance(error, (ObjectNotFoundError, ObjectChangedError, ObjectArchivedError))
        detail = str(error) if passing else f"{error}{then(iterator.config)}"
        yield CheckResult("records", ok=True, detail=detail, warning=True)
        return
    which = f"the first {f'{read} records' if read > 1 else 'record'} of {native.location}"
    filtered = f", {read - left} filtered by the transforms" if left < read else ""
    detail = f"{which} can be read{filtered}"
    if not read:
        detail = f"{native.location} has no record"
    elif bad:
        detail = f"{counted(len(bad), 'bad record')} in {which}: {bad[0].error}{then(iterator.config)}"
    elif not left:
        detail = f"the transforms leave nothing of {which}"
    yield CheckResult("records", ok=True, detail=detail, warning=bool(bad) or left < min(read, 1))


def _look(
    iterator: AbstractSourceRecordIterator, native: NativeObject, topic_partition: TopicPartition
) -> tuple[int, int, list[SkippedRecord]]:
    """Read and transform until there is enough of something.

    Returns:
        Number of records, bad ones included; number of those that would be sent; the bad ones.

    Raises:
        SourceError: the object cannot be read.
    """
    source, transformer, chain = iterator.open_input(native), iterator.transformer, iterator.transforms
    entry = iterator.create_offset_manager_entry(native, topic_partition, iterator.numbering_options)
    context = context_of(iterator, native, entry)
    limits = BatchLimits(records=MAX_RECORDS, size_bytes=MAX_BYTES)
    runs = guarded(functools.partial(transformer.read, source, limits=limits), native.location, 0, of=transformer)
    read = size = left = 0
    bad: list[SkippedRecord] = []
    try:
        for run in runs:
            if isinstance(run, SkippedRecord):
                read += 1
                bad.append(run)
            else:
                read += len(run.payloads)
                size += run.size_bytes
                if chain is None:
                    left += len(run.payloads)
                else:
                    for result in chain.parts(run, context):
                        bad += result.bad
                        left += len(result.batch)
            if read >= MAX_RECORDS or size >= MAX_BYTES or len(bad) >= MAX_BAD:
                break
    finally:
        close_iterator(runs)
    return read, left, bad


def then(config: SourceCommonConfig) -> str:
    """Return what a run does after a bad record or object, as the end of a sentence; empty when it goes on."""
    return '; with [errors] tolerance = "none" a run ends there' if config.errors.tolerance == "none" else ""
