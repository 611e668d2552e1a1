"""A framework for sources that read cloud storage and write Apache Iggy: every record once, in order.

    bucket -> listing -> iterator -> transformer -> bounded queue -> sender -> Iggy data topic
              feed       iterator    transformer    queue            pipeline       |
                 ^                                                                  | confirmed, then
                 +------------------ offsets  <--------- Iggy offsets topic <-------+

In reading order, one module for each stage; `task` alone wires them:

    errors records                     what everything stands on
    retry  config                      trying again; the typed configuration
    store  reading                     a bucket: pages of a listing, streams that resume
    shares transformer formats         bytes -> records; the formats themselves are in `transformers`
    naming selection cutting came_back feed   which objects, in how many parts, in which lane, in which order
    ranges listing tail                keys in ranges, listed side by side; passes over the end of a bucket only
    key_rows inventory key_places      a supplied list of keys: text, CSV, an S3 Inventory; in a file, or in the store
    key_list lookups named_objects     its rows -> objects, looked up where the list does not say enough
    prefetch object_read iterator store_iterator   objects -> batches
    http_stream store_errors store_time store_task   what the stores of vendors share: a body that owes bytes, sentences, a task
    finished_rows finished position_map   millions of finished positions in little memory
    entries offsets                    one position and the merge law; all of them
    queue  task                        the reader thread, poll, commit
    producer pipeline                  acknowledge, then commit
    skip_limits dead_letters           what is left out: how much of it may be, and where it is kept
    iggy/                              the one door to Iggy: client, wire, log of positions, recovery, embedded server
    engine/                            an epoch of work: one process, or one per task
    cli/                               the program
    testing/                           for authors of sources: the conformance kit, fakes, faults

Importing this package loads no vendor's library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from framework.feed import Assignment, HandedFeed, ObjectFeed
    from framework.formats import make_transformer
    from framework.iterator import AbstractSourceRecordIterator
    from framework.offsets import MemoryOffsetStore, OffsetManager, OffsetManagerEntry, OffsetManagerKey, OffsetStore
    from framework.producer import Producer
    from framework.records import Acknowledgement, Anchor, Lane, Mark, NativeObject, RecordBatch, SourceRecord
    from framework.retry import BackoffConfig, RetryPolicy
    from framework.shares import Share
    from framework.store import ListPage, ObjectStore
    from framework.store_iterator import StoreRecordIterator
    from framework.store_task import StoreSourceTask
    from framework.task import AbstractSourceTask
    from framework.transformer import BatchLimits, InputOptions, ObjectInput, PayloadRun, ReadStream, Transformer

_HOMES = {
    "AbstractSourceRecordIterator": "iterator",
    "AbstractSourceTask": "task",
    "Acknowledgement": "records",
    "Anchor": "records",
    "Assignment": "feed",
    "BackoffConfig": "retry",
    "BatchLimits": "transformer",
    "HandedFeed": "feed",
    "InputOptions": "transformer",
    "Lane": "records",
    "ListPage": "store",
    "Mark": "records",
    "MemoryOffsetStore": "offsets",
    "NativeObject": "records",
    "ObjectFeed": "feed",
    "ObjectInput": "transformer",
    "ObjectStore": "store",
    "OffsetManager": "offsets",
    "OffsetManagerEntry": "offsets",
    "OffsetManagerKey": "offsets",
    "OffsetStore": "offsets",
    "PayloadRun": "transformer",
    "Producer": "producer",
    "ReadStream": "transformer",
    "RecordBatch": "records",
    "RetryPolicy": "retry",
    "Share": "shares",
    "SourceRecord": "records",
    "StoreRecordIterator": "store_iterator",
    "StoreSourceTask": "store_task",
    "Transformer": "transformer",
    "make_transformer": "formats",
}

__all__ = [  # written out: a type checker cannot work it out
    "AbstractSourceRecordIterator",
    "AbstractSourceTask",
    "Acknowledgement",
    "Anchor",
    "Assignment",
    "BackoffConfig",
    "BatchLimits",
    "HandedFeed",
    "InputOptions",
    "Lane",
    "ListPage",
    "Mark",
    "MemoryOffsetStore",
    "NativeObject",
    "ObjectFeed",
    "ObjectInput",
    "ObjectStore",
    "OffsetManager",
    "OffsetManagerEntry",
    "OffsetManagerKey",
    "OffsetStore",
    "PayloadRun",
    "Producer",
    "ReadStream",
    "RecordBatch",
    "RetryPolicy",
    "Share",
    "SourceRecord",
    "StoreRecordIterator",
    "StoreSourceTask",
    "Transformer",
    "make_transformer",
]


def __getattr__(name: str) -> object:
    """Loads a public name from its module when it is first asked for."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"framework.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
