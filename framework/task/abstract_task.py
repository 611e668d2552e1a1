"""AbstractSourceTask: one reader, one queue, and the interface that a sender needs.

    listing -> iterator -> transformer -> [reader thread] -> bounded queue -> poll ... commit

The task alone wires the stages. It reads; its caller polls and sends (`framework.pipeline.sender` in the program).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, cast

from typing_extensions import Self

from framework.config.format_registry import make_transformer
from framework.config.loading import structure
from framework.config.sections import SourceCommonConfig
from framework.errors import ReaderFailedError, StoreContractError, TaskClosedError
from framework.model.batches import Acknowledgement, RecordBatch
from framework.offsets.manager import OffsetManager
from framework.pipeline.bounded_queue import BoundedQueue
from framework.task.backoff import BackoffConfig
from framework.task.commit_order import CommitOrder
from framework.task.context import SourceContext

if TYPE_CHECKING:
    from framework.discovery.object_feed import ObjectFeed
    from framework.iterator import AbstractSourceRecordIterator
    from framework.storage.preflight import CheckResult

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""`stop` returns within this time, whatever the reader is doing."""

READER_SECONDS = 1.0
"""The part of `CLOSE_SECONDS` that the reader gets after everything is closed.

A reader still in a request, to a store that does not answer, is abandoned. It has nothing to save, and the process has
other things to end in the same five seconds.
"""


class AbstractSourceTask:
    """A source's task. A subclass sets `config_class` and `iterator_class`, or overrides the methods that use them.

    Use: `start`, then `poll` and `commit` from the same thread, then `stop`; or as a context manager after `start`.

    Guarantee: at least once by itself. Batches of an object are in order; batches polled but not committed are
    delivered again after a restart. Delivery is exactly once with `framework.pipeline.sender`, which recovers from the
    data topic.

    Attributes:
        config: the whole configuration; None before the start.
        offsets: positions.
        iterator: None before the start.
        queue: the queue between reader and poll, for its metrics; None before the start.
        backoff_config: the pauses of the reader.
    """

    config_class: ClassVar[type[SourceCommonConfig] | None] = None
    """The root class of the configuration; the program reads its file into this class."""

    iterator_class: ClassVar[type[AbstractSourceRecordIterator] | None] = None
    """The class of the iterator that `get_iterator` makes."""

    needs_modules: ClassVar[tuple[str, ...]] = ()
    """Modules that this source imports besides the framework's, such as `("boto3",)`.

    They are checked on Spark's executors before a run.
    """

    def __init__(self) -> None:
        self.config: SourceCommonConfig | None = None
        self.offsets = OffsetManager()
        self.iterator: AbstractSourceRecordIterator | None = None
        self.queue: BoundedQueue | None = None
        self._reader: threading.Thread | None = None
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._exhausted = False
        self.backoff_config = BackoffConfig()
        self._order = CommitOrder()

    # Overridable by a subclass

    def configure(self, props: Mapping[str, Any]) -> SourceCommonConfig:
        """Build the configuration from sections and options, validated in full, before any I/O.

        For `start` with a dict, and for DataFrames. The program makes the configuration from `config_class` itself: checks
        of options belong into the `validate_options` of its sections.

        Args:
            props: `{"source": {"name": ...}, "iggy": {...}, ...}`, as in a TOML file.

        Raises:
            ConfigError: lists every mistake.
        """
        if self.config_class is None:
            raise TypeError(f"{type(self).__name__} names no config_class")
        return structure(props, self.config_class)

    def get_iterator(self, context: SourceContext) -> AbstractSourceRecordIterator:
        """Return a new iterator. May connect; called once per start, and by commands that only inspect.

        Args:
            context: what to read, and from which positions.
        """
        if self.iterator_class is None:
            raise TypeError(f"{type(self).__name__} names no iterator_class")
        transformer = make_transformer(context.config.input.options())
        return self.iterator_class(context.config, transformer, context.offsets, feed=context.feed, once=context.once)

    def close_resources(self) -> None:
        """Release the resources that `get_iterator` opened, within 5 seconds; by default nothing.

        `stop` calls it after the iterator's `close`. It may be called twice, and after `get_iterator` failed midway.
        """

    def check(self, config: SourceCommonConfig) -> Iterator[CheckResult]:
        """Yield a result for each precondition of a run: credentials, the bucket, a listing, a read.

        Called instead of `start`; may block for some seconds. Yields nothing by default.

        Args:
            config: the whole configuration.
        """
        del config
        return iter(())

    # Life cycle

    def start(
        self,
        props: Mapping[str, Any] | SourceCommonConfig,
        *,
        offsets: OffsetManager | None = None,
        feed: ObjectFeed | None = None,
        once: bool = False,
    ) -> None:
        """Configure the task, make the iterator, and start the reader.

        Args:
            props: sections and options, or a configuration that is already validated.
            offsets: positions to resume from; by default an empty table in memory.
            feed: which objects to read; by default the task lists the bucket itself.
            once: with its own listing: one complete listing, then `finished`. With any feed: a store outage ends it.

        Raises:
            ConfigError: mistakes in the configuration.
            TaskClosedError: the task was started before, or is stopped.
        """
        if self._stopping.is_set():
            raise TaskClosedError("the task is stopped; make a new one")
        if self.queue is not None:
            raise TaskClosedError("a task can be started once; make a new one")
        self.config = props if isinstance(props, SourceCommonConfig) else self.configure(props)
        self.offsets = offsets if offsets is not None else self.offsets
        self.queue = BoundedQueue(max_records=self.config.input.queue_records, max_bytes=self.config.input.queue_bytes)
        self.iterator = _iterator_of(
            self,
            SourceContext(config=self.config, offsets=self.offsets, feed=feed, once=once, backoff=self.backoff_config),
        )
        self._reader = threading.Thread(target=self._read, name="reader", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Drain the iterator into the queue, in the reader thread.

        Without a batch it pauses; the pauses grow and are interruptible.
        """
        iterator, queue = self.iterator, self.queue
        if iterator is None or queue is None:
            return
        try:
            pauses, waits = self.backoff_config.policy(), 0
            while not self._stopping.is_set():
                batch = _next_batch_of(iterator)
                if batch is not None:
                    waits = 0
                    queue.put(batch)
                elif iterator.finished:
                    break
                else:
                    due, pause = iterator.seconds_until_due, pauses.delay(waits + 1)
                    waits += due <= pause
                    iterator.wait(max(pause, min(due, pauses.cap_seconds)), self._stopping)
        except TaskClosedError as error:
            if not self._stopping.is_set():
                self._failure = error
        except BaseException as error:  # noqa: BLE001 - raised in the polling thread, with its cause
            self._failure = error
        finally:
            try:
                iterator.leave()
            except Exception:
                log.exception("what was half read was not given back; going on without it")
            self._exhausted = True
            queue.wake()

    def poll(self, max_records: int = 50_000, *, timeout_seconds: float = 0.0) -> list[RecordBatch]:
        """Return the available batches in order, at most `max_records` records (a larger batch is returned alone).

        Waits up to the timeout for the first batch. Empty: no batch available now, or the task is `finished`.

        Raises:
            ReaderFailedError: the reader failed and everything it had read was delivered; the cause is in `__cause__`.
            TaskClosedError: the task is not started, or stopped.
        """
        queue = self.queue
        if queue is None or self._stopping.is_set():
            raise TaskClosedError("poll before start or after stop")
        batches = queue.take(max_records, timeout_seconds=0.0 if self._exhausted else timeout_seconds)
        if not batches and self._exhausted and self._failure is not None and not len(queue):
            raise ReaderFailedError.of(self._failure) from self._failure
        for batch in batches:
            self._order.hand_out(batch)
        return batches

    def commit(self, acknowledgement: Acknowledgement) -> None:
        """Commit the positions of batches that the server has confirmed; call it in the order of the confirmations.

        Raises:
            NotAcknowledgedError: a batch was not polled from this task, or skips an earlier batch of its object.
        """
        advanced = self._order.check(acknowledgement.batches)
        self.offsets.commit(acknowledgement)  # the acknowledgement is the proof: only a producer makes it
        self._order.advance(advanced)

    @property
    def finished(self) -> bool:
        """Whether the task has ended and everything was polled. False after a failure until it is raised."""
        return self._exhausted and self._failure is None and self.queue is not None and not len(self.queue)

    def stop(self) -> None:
        """Stop the reader and close everything, within 5 seconds. Commit polled batches before this call.

        May be called twice, and from another thread.
        """
        deadline = time.monotonic() + CLOSE_SECONDS
        self._stopping.set()
        if self.queue is not None:
            self.queue.close()
        _close(self, self.iterator, deadline)
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(max(0.0, min(READER_SECONDS, deadline - time.monotonic())))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _iterator_of(task: AbstractSourceTask, context: SourceContext) -> AbstractSourceRecordIterator:
    """Return a task's iterator; without this check a task that returns none would read nothing, without end."""
    iterator: object = task.get_iterator(context)
    if not hasattr(iterator, "next_batch"):
        raise StoreContractError(
            f"{type(task).__name__}.get_iterator returned {type(iterator).__name__}, not an AbstractSourceRecordIterator"
        )
    return cast("AbstractSourceRecordIterator", iterator)


def _next_batch_of(iterator: AbstractSourceRecordIterator) -> RecordBatch | None:
    batch: object = iterator.next_batch()
    if batch is not None and not isinstance(batch, RecordBatch):
        raise StoreContractError(
            f"{type(iterator).__name__}.next_batch returned {type(batch).__name__}, not a RecordBatch or None"
        )
    return batch


def _close(task: AbstractSourceTask, iterator: AbstractSourceRecordIterator | None, deadline: float) -> None:
    """Close the iterator, then call `close_resources`.

    Neither a failure nor a silence of these may hide how the work ended, or delay what follows.
    """
    steps = {"close_resources": task.close_resources}
    if iterator is not None:
        steps = {"close of the iterator": iterator.close, **steps}
    closing = ""

    def close() -> None:
        nonlocal closing
        for closing, step in steps.items():
            try:
                step()
            except Exception:
                log.exception("%s failed; going on without it", closing)

    closer = threading.Thread(target=close, name="close", daemon=True)
    closer.start()
    closer.join(max(0.0, deadline - time.monotonic()))
    if closer.is_alive():
        log.warning("%s did not return within %.0f seconds; going on without it", closing, CLOSE_SECONDS)


@contextlib.contextmanager
def iterator_of(
    task_class: type[AbstractSourceTask], context: SourceContext, *, stopping: threading.Event | None = None
) -> Iterator[AbstractSourceRecordIterator]:
    """Make an iterator for inspection, from a task that is not started.

    Closes everything at the end, also after a failure midway.

    Args:
        task_class: the source.
        context: what the iterator reads.
        stopping: stops the task as its own `stop` does.

    Raises:
        TaskClosedError: stopped before the store was open.
    """
    task, iterator = task_class(), None
    if stopping is not None:
        task._stopping = stopping  # noqa: SLF001 - of this module
    try:
        iterator = _iterator_of(task, context)
        yield iterator
    finally:
        _close(task, iterator, time.monotonic() + CLOSE_SECONDS)
