"""The executors' side of a listing: key ranges in parallel, each page packed when it arrives.

This also runs on the driver, for the first pages of a bucket.
"""

from __future__ import annotations

import operator
import pickle
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import attrs
import zstandard

from framework.engine.task_run import portable
from framework.errors import FatalError, SourceError, ThrottledError
from framework.iterator.store_iterator import StoreRecordIterator
from framework.model.key_range import KeyRange
from framework.model.objects import NativeObject
from framework.storage.listing.limiter import CallLimiter
from framework.storage.listing.pages import checked_page, list_range, merged
from framework.storage.listing.parallel import OBJECT_BYTES
from framework.storage.listing.range_tasks import RangeResult, RangeTask
from framework.task.context import SourceContext

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.errors import RetriableError
    from framework.store import ListPage
    from framework.task import AbstractSourceTask


FIELDS = tuple(field.name for field in attrs.fields(NativeObject))
VALUES = operator.attrgetter(*FIELDS)


@attrs.frozen(kw_only=True)
class RangeBatch:
    """The ranges of a wave that one Spark task lists in parallel; travels pickled.

    Attributes:
        task_class: the source.
        config: its configuration.
        prefix: prefix of the whole listing.
        tasks: the ranges.
        budget_part: this batch's part of the configured budget of requests and bytes, above 0, at most 1.
    """

    task_class: type[AbstractSourceTask]
    config: SourceCommonConfig
    prefix: str
    tasks: Sequence[RangeTask]
    budget_part: float = 1.0


@attrs.define(kw_only=True)
class RangeListing:
    """Result of listing a range; a failure is a value.

    Attributes:
        pages: packed objects, in order; see `unpacked`. Each with the key range that it covers completely.
        result: the report for the planner; None when it failed before the first page.
        retries: retried calls.
        throttled: retries because the store asked to slow down.
        server_time_ms: the store's clock at the first answer.
        asked_at: when the first request was sent, seconds since 1970 by the sender's clock; 0 = no
            request.
        answered_at: when the last answer arrived, by the same clock.
        failure: the error that ended it early.
        host: name of the executor's machine; empty on the driver.
    """

    pages: list[tuple[bytes, KeyRange]] = attrs.field(factory=list, repr=False)
    result: RangeResult | None = None
    retries: int = 0
    throttled: int = 0
    server_time_ms: int | None = None
    asked_at: float = 0.0
    answered_at: float = 0.0
    failure: SourceError | None = None
    host: str = ""


def seconds_asked(wave: Sequence[RangeListing]) -> float:
    """Return how long a wave had a request in progress or waited for the budget: without its wait for cores.

    With differing clocks the result is longer, never shorter than a machine's own time.
    """
    total, here = 0.0, 0.0
    for began, ended in sorted((listed.asked_at, listed.answered_at) for listed in wave):
        total += max(0.0, ended - max(began, here))
        here = max(here, ended)
    return total


def packed(objects: Sequence[NativeObject]) -> bytes:
    """Compress the objects of a page by columns: 20 to 40 bytes each."""
    columns = list(zip(*map(VALUES, objects), strict=True))
    return zstandard.compress(pickle.dumps(columns, protocol=5), 1)


def unpacked(page: bytes) -> list[NativeObject]:
    """Decompress a page; the inverse of `packed`."""
    columns = pickle.loads(zstandard.decompress(page))  # noqa: S301 - our own bytes
    return [
        NativeObject(
            scheme=scheme,
            bucket=bucket,
            key=key,
            size=size,
            version=version,
            modified_ms=modified_ms,
            storage_class=storage_class,
        )
        for scheme, bucket, key, size, version, modified_ms, storage_class in zip(*columns, strict=True)
    ]


# ---- on an executor

_opened: list[tuple[type[AbstractSourceTask], SourceCommonConfig, StoreRecordIterator]] = []
_opening = threading.Lock()


def list_batch(batch: RangeBatch) -> list[RangeListing]:
    """List the ranges of a batch in parallel; never raises the errors of a source."""
    try:
        listed = list_ranges(_iterator_of(batch), batch)
    except SourceError as error:
        listed = [RangeListing(failure=portable(error))]
    return [attrs.evolve(range_listed, host=socket.gethostname()) for range_listed in listed]


def _iterator_of(batch: RangeBatch) -> StoreRecordIterator:
    """Return the source's iterator; kept while this Python worker lists the same source, for its connections."""
    with _opening:
        for task_class, config, kept in _opened:
            # compared, not pickled: a class that the user's script defines has no name here
            if task_class is batch.task_class and config == batch.config:
                return kept
            kept.close()
            kept.store.close()
        _opened.clear()
        task = batch.task_class()
        with ExitStack() as if_not:
            if_not.callback(task.close_resources)
            iterator = task.get_iterator(SourceContext(config=batch.config))
            if not isinstance(iterator, StoreRecordIterator):  # on the driver it was one
                raise FatalError(f"{batch.task_class.__name__} makes another kind of iterator on an executor")
            _opened.append((batch.task_class, batch.config, iterator))
            if_not.pop_all()
        return iterator


def list_ranges(iterator: StoreRecordIterator, batch: RangeBatch) -> list[RangeListing]:
    """List the ranges of a batch with an existing iterator."""
    discovery = batch.config.discovery
    limiter = CallLimiter(  # 0 = no limit
        requests_per_second=(discovery.list_requests_per_second or 0.0) * batch.budget_part,
        bytes_per_second=(discovery.list_bytes_per_second or 0.0) * batch.budget_part,
    )
    if len(batch.tasks) == 1:  # a thread of the pool would be joined when the interpreter exits
        return [_list_one(iterator, batch, batch.tasks[0], limiter)]
    with ThreadPoolExecutor(len(batch.tasks), thread_name_prefix="range") as threads:
        return list(threads.map(lambda task: _list_one(iterator, batch, task, limiter), batch.tasks))


def _list_one(iterator: StoreRecordIterator, batch: RangeBatch, task: RangeTask, limiter: CallLimiter) -> RangeListing:
    listed = RangeListing()
    results: list[RangeResult] = []
    after = task.after

    def count(error: RetriableError, tries: int, seconds: float) -> None:
        listed.retries += 1
        listed.throttled += isinstance(error, ThrottledError)
        iterator.log_retry(error, tries, seconds)

    def ask(**call: Any) -> ListPage:
        delay = limiter.delay_seconds()
        if delay > 0:
            iterator.policy.wait(delay, iterator.closing)
        what = f"listing {iterator.store.scheme}://{iterator.store.bucket}/{batch.prefix}"
        page = iterator.policy.call(
            lambda: checked_page(iterator.store, **call), what=what, on_retry=count, stop=iterator.closing
        )
        limiter.spend(OBJECT_BYTES * len(page.objects))
        if listed.server_time_ms is None:
            listed.server_time_ms = page.server_time_ms
        return page

    listed.asked_at = time.time()
    try:
        for objects, result in list_range(
            iterator.store, task, prefix=batch.prefix, page_size=iterator.page_size, ask=ask
        ):
            if objects:
                until = task.until if result.exhausted else result.last_key
                listed.pages.append((packed(objects), KeyRange(after, until)))
                after = objects[-1].key
            results.append(result)
    except Exception as error:  # noqa: BLE001 - whatever it is, the driver must hear it
        listed.failure = portable(error)
    listed.answered_at = time.time()
    if results:
        listed.result = merged(results)
    return listed
