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
    iterator/      contract: objects -> batches, resumable; `iterator.object_store` over any object store
    task/          contract: one reader, one queue; it alone wires the stages; `task.object_store` for any object store
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
    from framework.cli import main
    from framework.config.bucket import BucketConfig
    from framework.config.format_registry import make_transformer
    from framework.config.option import option
    from framework.config.sections import SourceCommonConfig
    from framework.discovery.object_feed import AssignedFeed, Assignment, ObjectFeed
    from framework.errors import ObjectChangedError, ObjectNotFoundError
    from framework.iterator import AbstractSourceRecordIterator
    from framework.iterator.object_store import StoreRecordIterator
    from framework.model.batches import Acknowledgement, RecordBatch, SkippedRecord, SourceRecord
    from framework.model.objects import Anchor, NativeObject, ResumePoint, TopicPartition
    from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
    from framework.model.splits import Split
    from framework.offsets.manager import OffsetManager
    from framework.offsets.offset_store import MemoryOffsetStore, OffsetStore
    from framework.pipeline.producer_contract import Producer
    from framework.storage.retry import RetryPolicy
    from framework.store import ListPage, ObjectStore
    from framework.task import AbstractSourceTask, SourceContext
    from framework.task.backoff import BackoffConfig
    from framework.task.object_store import StoreSourceTask
    from framework.transform import Transform, TransformBatch, TransformContext
    from framework.transformer import BatchLimits, InputOptions, ObjectInput, PayloadBatch, ReadStream, Transformer

_HOMES = {
    "AbstractSourceRecordIterator": "framework.iterator",
    "AbstractSourceTask": "framework.task",
    "Acknowledgement": "framework.model.batches",
    "Anchor": "framework.model.objects",
    "Assignment": "framework.discovery.object_feed",
    "BackoffConfig": "framework.task.backoff",
    "BatchLimits": "framework.transformer",
    "BucketConfig": "framework.config.bucket",
    "AssignedFeed": "framework.discovery.object_feed",
    "InputOptions": "framework.transformer",
    "ListPage": "framework.store",
    "ResumePoint": "framework.model.objects",
    "MemoryOffsetStore": "framework.offsets.offset_store",
    "NativeObject": "framework.model.objects",
    "ObjectChangedError": "framework.errors",
    "ObjectFeed": "framework.discovery.object_feed",
    "ObjectInput": "framework.transformer",
    "ObjectNotFoundError": "framework.errors",
    "ObjectStore": "framework.store",
    "OffsetManager": "framework.offsets.manager",
    "OffsetManagerEntry": "framework.model.positions",
    "OffsetManagerKey": "framework.model.positions",
    "OffsetStore": "framework.offsets.offset_store",
    "PayloadBatch": "framework.transformer",
    "Producer": "framework.pipeline.producer_contract",
    "ReadStream": "framework.transformer",
    "RecordBatch": "framework.model.batches",
    "RetryPolicy": "framework.storage.retry",
    "SkippedRecord": "framework.model.batches",
    "SourceCommonConfig": "framework.config.sections",
    "SourceContext": "framework.task",
    "SourceRecord": "framework.model.batches",
    "Split": "framework.model.splits",
    "StoreRecordIterator": "framework.iterator.object_store",
    "StoreSourceTask": "framework.task.object_store",
    "TopicPartition": "framework.model.objects",
    "Transform": "framework.transform",
    "TransformBatch": "framework.transform",
    "TransformContext": "framework.transform",
    "Transformer": "framework.transformer",
    "main": "framework.cli",
    "make_transformer": "framework.config.format_registry",
    "option": "framework.config.option",
}

_FORMER_NAMES = {"Share": "Split"}

__all__ = [  # explicit: a type checker cannot compute it
    "AbstractSourceRecordIterator",
    "AbstractSourceTask",
    "Acknowledgement",
    "Anchor",
    "AssignedFeed",
    "Assignment",
    "BackoffConfig",
    "BatchLimits",
    "BucketConfig",
    "InputOptions",
    "ListPage",
    "MemoryOffsetStore",
    "NativeObject",
    "ObjectChangedError",
    "ObjectFeed",
    "ObjectInput",
    "ObjectNotFoundError",
    "ObjectStore",
    "OffsetManager",
    "OffsetManagerEntry",
    "OffsetManagerKey",
    "OffsetStore",
    "PayloadBatch",
    "Producer",
    "ReadStream",
    "RecordBatch",
    "ResumePoint",
    "RetryPolicy",
    "SkippedRecord",
    "SourceCommonConfig",
    "SourceContext",
    "SourceRecord",
    "Split",
    "StoreRecordIterator",
    "StoreSourceTask",
    "TopicPartition",
    "Transform",
    "TransformBatch",
    "TransformContext",
    "Transformer",
    "main",
    "make_transformer",
    "option",
]


def __getattr__(name: str) -> object:
    """Load a public name from its module on first access."""
    name = _FORMER_NAMES.get(name, name)
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
