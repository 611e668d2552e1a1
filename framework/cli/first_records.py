"""The first records of an object, decoded and transformed as a run would: whether `[input]` and `[[transforms]]` fit it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from framework.errors import (
    AccessDeniedError,
    ObjectArchivedError,
    ObjectChangedError,
    ObjectNotFoundError,
    SkippableError,
    SourceError,
)
from framework.iterator import AbstractSourceRecordIterator
from framework.model.batches import SkippedRecord
from framework.model.closing import close_iterator
from framework.model.objects import NativeObject, TopicPartition
from framework.model.text import counted
from framework.pipeline.object_reader import context_of
from framework.storage.preflight import CheckResult
from framework.transformer import BatchLimits, PayloadBatch, guarded

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_RECORDS = 500
MAX_BYTES = 1 << 20
MAX_BAD = 20


@attrs.define
class _Looked:
    """What was seen of an object.

    Attributes:
        read: number of records, bad ones included.
        left: number of those that would be sent.
        bad: the bad ones.
    """

    read: int = 0
    left: int = 0
    bad: list[SkippedRecord] = attrs.field(factory=list)


def check_records(
    iterator: AbstractSourceRecordIterator, native: NativeObject, topic_partition: TopicPartition
) -> CheckResult:
    """Read about a batch of an object and transform it; send nothing.

    What is wrong with the object is a warning: whether a run reads it, and what it does then, depends on the positions and
    on `[errors] tolerance`.
    """
    try:
        looked = _look(iterator, native, topic_partition)
    except (ObjectNotFoundError, ObjectChangedError, ObjectArchivedError) as error:
        return CheckResult("records", ok=True, detail=str(error), warning=True)
    except (SkippableError, AccessDeniedError) as error:
        return CheckResult("records", ok=True, detail=f"{error}{_effect(iterator)}", warning=True)
    except SourceError as error:
        return CheckResult.failed("records", error)
    return _result(iterator, native, looked)


def _result(iterator: AbstractSourceRecordIterator, native: NativeObject, looked: _Looked) -> CheckResult:
    if not looked.read:
        return CheckResult("records", ok=True, detail=f"{native.location} has no record")
    which = f"the first {f'{looked.read} records' if looked.read > 1 else 'record'} of {native.location}"
    if looked.bad:
        bad = counted(len(looked.bad), "bad record")
        detail = f"{bad} in {which}: {looked.bad[0].error}{_effect(iterator)}"
        return CheckResult("records", ok=True, detail=detail, warning=True)
    if not looked.left:
        return CheckResult("records", ok=True, detail=f"the transforms leave nothing of {which}", warning=True)
    filtered = f", {looked.read - looked.left} filtered by the transforms" if looked.left < looked.read else ""
    return CheckResult("records", ok=True, detail=f"{which} can be read{filtered}")


def _look(iterator: AbstractSourceRecordIterator, native: NativeObject, topic_partition: TopicPartition) -> _Looked:
    """Read and transform until there is enough of something.

    Raises:
        SourceError: the object cannot be read.
    """
    source, transformer, chain = iterator.open_input(native), iterator.transformer, iterator.transforms
    entry = iterator.create_offset_manager_entry(native, topic_partition, iterator.numbering_options)
    context = context_of(iterator, native, entry)

    def read() -> Iterator[PayloadBatch | SkippedRecord]:
        return transformer.read(source, limits=BatchLimits(records=MAX_RECORDS, size_bytes=MAX_BYTES))

    runs = guarded(read, native.location, 0, of=transformer)
    looked, size = _Looked(), 0
    try:
        for run in runs:
            if isinstance(run, SkippedRecord):
                looked.read += 1
                looked.bad.append(run)
            else:
                looked.read += len(run.payloads)
                size += run.size_bytes
                if chain is None:
                    looked.left += len(run.payloads)
                else:
                    for result in chain.parts(run, context):
                        looked.bad += result.bad
                        looked.left += len(result.batch)
            if looked.read >= MAX_RECORDS or size >= MAX_BYTES or len(looked.bad) >= MAX_BAD:
                break
    finally:
        close_iterator(runs)
    return looked


def _effect(iterator: AbstractSourceRecordIterator) -> str:
    if iterator.config.errors.tolerance == "none":
        return '; with [errors] tolerance = "none" a run ends there'
    return ""
