"""A framework for sources that read cloud storage and deliver every record to Apache Iggy exactly once, in order.

    bucket -> listing -> discovery -> iterator -> transformer -> transforms -> bounded queue -> sender -> Iggy data topic
                            ^                                                                      | confirmed, then
                            +----------------------- offsets  <------- Iggy offsets topic <--------+

The five contracts lie on the surface; every mechanism is one package deeper. Imports go one way, from the bottom of
this list to its top:

    errors         every error, grouped by how to react to it
    model/         values: objects, batches, positions, splits, key ranges, message ids
    transformer    contract: bytes of an object -> records; the formats themselves are in `transformers`
    transform      contract: records -> records as they are sent; the built-in ones are in `transforms`
    envelopes/     archived records -> records as they are sent: what sinks write around a message
    store          contract: a bucket's pages, and ranged streams of an object
    storage/       access to a store: retries, resuming streams, checks; `storage/listing`: parallel listing
    config/        the typed configuration: sections, options, substitution, templates, formats by name
    transforms/    the transforms of `[[transforms]]`: fields, filters, headers, timestamps, converters
    offsets/       OffsetManager, the table of positions, watermark, listing hints
    discovery/     which objects, in which order, to which partition; `discovery/key_list`: supplied lists
    pipeline/      object reader, bounded queue, sender, error policy, dead letters
    iterator/      contract: objects -> batches, resumable; `iterator.store_iterator` over any object store
    task/          contract: one reader, one queue; it alone wires the stages; `task.store_task` for any object store
    iggy/          access to Iggy: connection, wire, producer; `iggy/offset_log`, `iggy/dead_letters`, `iggy/embedded`
    engine/        an epoch of work: one process, or one per task; `engine/spark`
    runtime/       a worker: many sources in one process tree, and the HTTP API over them
    cli/           the program
    testing/       for authors of sources: the conformance kit, fakes, servers, faults

Importing this package loads no vendor library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from framework.cli import main as main
    from framework.config.bucket import BucketConfig as BucketConfig
    from framework.config.format_registry import make_transformer as make_transformer
    from framework.config.option import option as option
    from framework.config.sections import SourceCommonConfig as SourceCommonConfig
    from framework.discovery.object_feed import (
        AssignedFeed as AssignedFeed,
        Assignment as Assignment,
        ObjectFeed as ObjectFeed,
    )
    from framework.errors import ObjectChangedError as ObjectChangedError, ObjectNotFoundError as ObjectNotFoundError
    from framework.iterator import AbstractSourceRecordIterator as AbstractSourceRecordIterator
    from framework.iterator.store_iterator import StoreRecordIterator as StoreRecordIterator
    from framework.model.batches import (
        Acknowledgement as Acknowledgement,
        RecordBatch as RecordBatch,
        SkippedRecord as SkippedRecord,
        SourceRecord as SourceRecord,
    )
    from framework.model.objects import (
        Anchor as Anchor,
        NativeObject as NativeObject,
        ResumePoint as ResumePoint,
        TopicPartition as TopicPartition,
    )
    from framework.model.positions import OffsetManagerEntry as OffsetManagerEntry, OffsetManagerKey as OffsetManagerKey
    from framework.model.splits import Split as Split
    from framework.offsets.manager import OffsetManager as OffsetManager
    from framework.offsets.offset_store import MemoryOffsetStore as MemoryOffsetStore, OffsetStore as OffsetStore
    from framework.pipeline.producer_contract import Producer as Producer
    from framework.storage.retry import RetryPolicy as RetryPolicy
    from framework.store import ListPage as ListPage, ObjectStore as ObjectStore
    from framework.task import AbstractSourceTask as AbstractSourceTask, SourceContext as SourceContext
    from framework.task.backoff import BackoffConfig as BackoffConfig
    from framework.task.store_task import StoreSourceTask as StoreSourceTask
    from framework.transform import (
        Transform as Transform,
        TransformBatch as TransformBatch,
        TransformContext as TransformContext,
    )
    from framework.transformer import (
        BatchLimits as BatchLimits,
        InputOptions as InputOptions,
        ObjectInput as ObjectInput,
        PayloadBatch as PayloadBatch,
        ReadStream as ReadStream,
        Transformer as Transformer,
    )

_NAMES = {
    "framework.cli": ("main",),
    "framework.config.bucket": ("BucketConfig",),
    "framework.config.format_registry": ("make_transformer",),
    "framework.config.option": ("option",),
    "framework.config.sections": ("SourceCommonConfig",),
    "framework.discovery.object_feed": ("AssignedFeed", "Assignment", "ObjectFeed"),
    "framework.errors": ("ObjectChangedError", "ObjectNotFoundError"),
    "framework.iterator": ("AbstractSourceRecordIterator",),
    "framework.iterator.store_iterator": ("StoreRecordIterator",),
    "framework.model.batches": ("Acknowledgement", "RecordBatch", "SkippedRecord", "SourceRecord"),
    "framework.model.objects": ("Anchor", "NativeObject", "ResumePoint", "TopicPartition"),
    "framework.model.positions": ("OffsetManagerEntry", "OffsetManagerKey"),
    "framework.model.splits": ("Split",),
    "framework.offsets.manager": ("OffsetManager",),
    "framework.offsets.offset_store": ("MemoryOffsetStore", "OffsetStore"),
    "framework.pipeline.producer_contract": ("Producer",),
    "framework.storage.retry": ("RetryPolicy",),
    "framework.store": ("ListPage", "ObjectStore"),
    "framework.task": ("AbstractSourceTask", "SourceContext"),
    "framework.task.backoff": ("BackoffConfig",),
    "framework.task.store_task": ("StoreSourceTask",),
    "framework.transform": ("Transform", "TransformBatch", "TransformContext"),
    "framework.transformer": (
        "BatchLimits",
        "InputOptions",
        "ObjectInput",
        "PayloadBatch",
        "ReadStream",
        "Transformer",
    ),
}
"""Module -> public names in it, which are loaded on first access."""

_FORMER_NAMES = {"Share": "Split"}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    """Load a public name from its module on first access."""
    name = _FORMER_NAMES.get(name, name)
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
