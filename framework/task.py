"""AbstractSourceTask: one reader, one queue, and what a sender needs of them.

    listing -> iterator -> transformer -> [reader thread] -> bounded queue -> poll ... commit

The task alone wires the stages. It reads; sending is done by whoever polls it (`framework.pipeline` for the program).
"""

from __future__ import annotations

import abc
import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from framework.errors import NotAcknowledgedError, ReaderFailedError, TaskClosedError
from framework.offsets import OffsetManager, OffsetManagerEntry, OffsetManagerKey
from framework.queue import BoundedQueue
from framework.records import Acknowledgement, RecordBatch
from framework.retry import Backoff, BackoffConfig

if TYPE_CHECKING:
    from framework.checks import CheckResult
    from framework.config.sections import SourceCommonConfig
    from framework.feed import ObjectFeed
    from framework.iterator import AbstractSourceRecordIterator

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""`stop` returns within this time, whatever the reader is doing."""

READER_SECONDS = 1.0
"""How much of it the reader gets once everything is closed. One that is still in a request, to a store that does not
answer, is left behind: it has nothing to save, and the process has other things to end in the same five seconds."""


class AbstractSourceTask(abc.ABC):
    """A source's task. A subclass writes three methods: `configure`, `get_iterator`, `close_resources`.

    Use: `start`, then `poll` and `commit` from one thread, then `stop`; or as a context manager after `start`.

    Guarantee: at least once by itself. Batches of an object come in order; what is polled and not committed comes again after
    a restart. Together with `framework.pipeline`, which recovers from the data topic, nothing comes twice.
    """

    config_class: ClassVar[type[SourceCommonConfig] | None] = None
    """The root class of the configuration; the program reads its file into this."""

    needs_modules: ClassVar[tuple[str, ...]] = ()
    """Modules that this source imports besides the framework's, `("boto3",)`: looked for on Spark's executors before a run."""

    def __init__(self) -> None:
        self.config: SourceCommonConfig | None = None
        self.offsets = OffsetManager()
        self.iterator: AbstractSourceRecordIterator | None = None
        self.feed: ObjectFeed | None = None
        self.once = False
        self._queue: BoundedQueue | None = None
        self._reader: threading.Thread | None = None
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._exhausted = False
        self.backoff_config = BackoffConfig()
        # (object, version) -> records committed, records polled; only for objects between the two
        self._progress: dict[tuple[OffsetManagerKey, str], tuple[int, int]] = {}

    # What a subclass writes

    @abc.abstractmethod
    def configure(self, props: Mapping[str, Any]) -> SourceCommonConfig:
        """The configuration of sections and options, checked in full, before any I/O.

        Args:
            props: `{"source": {"name": ...}, "iggy": {...}, ...}`, as a TOML file holds it.

        Raises:
            ConfigError: with every mistake at once.
        """

    @abc.abstractmethod
    def get_iterator(self, backoff_config: BackoffConfig) -> AbstractSourceRecordIterator:
        """A new iterator over `self.config`, `self.offsets`, `self.feed` and `self.once`. May connect; called once per start.

        Args:
            backoff_config: the pauses the task makes, for an iterator that has to wait inside.
        """

    @abc.abstractmethod
    def close_resources(self) -> None:
        """Gives back what `get_iterator` opened, within 5 seconds.

        Called by `stop`, after the iterator's `close`; may be called twice, and when `get_iterator` failed half way.
        """

    # What a subclass may add

    def check(self) -> Iterator[CheckResult]:
        """One line for each thing that must work before a run: credentials, the bucket, a listing, a read.

        Called after `self.config` is set, instead of `start`; may block for some seconds. By default there is nothing to say.
        """
        return iter(())

    # The life of a task

    def start(
        self,
        props: Mapping[str, Any] | SourceCommonConfig,
        *,
        offsets: OffsetManager | None = None,
        feed: ObjectFeed | None = None,
        once: bool = False,
    ) -> None:
        """Configures, makes the iterator, and starts the reader.

        Args:
            props: sections and options, or a configuration that is checked already.
            offsets: positions to begin from; by default none, kept in memory.
            feed: which objects to read; by default the task lists by itself.
            once: with its own listing: one complete pass, then `finished`.

        Raises:
            ConfigError: mistakes in the configuration.
            TaskClosedError: it was started before.
        """
        if self._queue is not None or self._stopping.is_set():
            raise TaskClosedError("a task can be started once; make a new one")
        self.config = self.configure(props) if isinstance(props, Mapping) else props
        self.offsets = offsets if offsets is not None else self.offsets
        self.feed, self.once = feed, once
        self._queue = BoundedQueue(max_records=self.config.input.queue_records, max_bytes=self.config.input.queue_bytes)
        self.iterator = self.get_iterator(self.backoff_config)
        self._reader = threading.Thread(target=self._read, name="reader", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """The reader thread: drains the iterator into the queue; pauses, growing and interruptible, when it has nothing."""
        iterator, queue = self.iterator, self._queue
        if iterator is None or queue is None:
            return
        try:
            backoff = Backoff(self.backoff_config, wait=iterator.feed.wait)  # making the feed may ask the store already
            while not self._stopping.is_set():
                batch = iterator.next_batch()
                if batch is not None:
                    backoff.reset()
                    queue.put(batch)
                elif iterator.finished:
                    break
                else:
                    self._pause(iterator, backoff)
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

    def _pause(self, iterator: AbstractSourceRecordIterator, backoff: Backoff) -> None:
        due = iterator.seconds_until_due
        if due > backoff.delay_seconds:
            iterator.feed.wait(min(due, self.backoff_config.cap_seconds), self._stopping)
        else:
            backoff.wait(self._stopping)

    def poll(self, max_records: int = 50_000, *, timeout_seconds: float = 0.0) -> list[RecordBatch]:
        """Batches in order, as many as are there, at most `max_records` records (one larger batch comes alone).

        Waits up to the timeout for the first. Empty: nothing just now, or never again (`finished`).

        Raises:
            ReaderFailedError: the reader died and all it had read was delivered; the cause is in `__cause__`.
            TaskClosedError: not started, or stopped.
        """
        queue = self._queue
        if queue is None or self._stopping.is_set():
            raise TaskClosedError("poll before start or after stop")
        batches = queue.take(max_records, timeout_seconds=0.0 if self._exhausted else timeout_seconds)
        if not batches and self._exhausted and self._failure is not None and not len(queue):
            raise ReaderFailedError(str(self._failure)) from self._failure
        for batch in batches:
            identity = (batch.entry.get_manager_key(), batch.entry.version)
            before = batch.first_record - len(batch.skipped) - 1
            committed, _ = self._progress.get(identity, (before, before))
            self._progress[identity] = (committed, batch.entry.records_done)
        return batches

    def commit(self, acknowledgement: Acknowledgement) -> None:
        """Takes over the positions of batches that the server has confirmed; call it in the order of the confirmations.

        Raises:
            NotAcknowledgedError: a batch was not polled from this task, or one before it in its object is not committed.
        """
        advanced: dict[tuple[OffsetManagerKey, str], tuple[int, int]] = {}
        for batch in acknowledgement.batches:
            identity = (batch.entry.get_manager_key(), batch.entry.version)
            committed, polled = advanced.get(identity) or self._progress.get(identity, (-1, -1))
            self._check_commit(batch, committed, polled)
            advanced[identity] = (batch.entry.records_done, polled)
        self.offsets.commit(acknowledgement)  # the proof: only a producer makes an acknowledgement
        for batch in acknowledgement.batches:
            identity = (batch.entry.get_manager_key(), batch.entry.version)
            if batch.entry.finished:
                self._progress.pop(identity, None)
            else:
                self._progress[identity] = advanced[identity]

    def committed_records(self, entry: OffsetManagerEntry) -> int:
        """Records of a polled object that are committed; where its reading began, while none are."""
        return self._progress.get((entry.get_manager_key(), entry.version), (0, 0))[0]

    def _check_commit(self, batch: RecordBatch, committed: int, polled: int) -> None:
        done = batch.entry.records_done
        if done > polled:
            raise NotAcknowledgedError(
                f"{batch.native.location}: commit of records up to {done}, which this task did not hand out"
            )
        if batch.first_record - len(batch.skipped) - 1 != committed:
            raise NotAcknowledgedError(
                f"{batch.native.location}: commit of records {batch.first_record} to {done} when {committed} are committed; "
                f"commit in the order of the confirmations, each once"
            )

    @property
    def finished(self) -> bool:
        """Whether nothing will ever come again and everything was polled. False after a failure until it is raised."""
        return self._exhausted and self._failure is None and self._queue is not None and not len(self._queue)

    @property
    def queue(self) -> BoundedQueue | None:
        """The queue between reader and poll, for its figures."""
        return self._queue

    def stop(self) -> None:
        """Ends the reader and closes everything, within 5 seconds. What was polled can still be committed before.

        May be called twice, and from another thread.
        """
        deadline = time.monotonic() + CLOSE_SECONDS
        self._stopping.set()
        if self._queue is not None:
            self._queue.close()
        if self.iterator is not None:
            self.iterator.close()
        closer = threading.Thread(target=self._close_quietly, name="close-resources", daemon=True)
        closer.start()
        closer.join(max(0.0, deadline - time.monotonic()))
        if closer.is_alive():
            log.warning("close_resources did not return within %.0f seconds; going on without it", CLOSE_SECONDS)
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(max(0.0, min(READER_SECONDS, deadline - time.monotonic())))

    def _close_quietly(self) -> None:
        try:
            self.close_resources()
        except Exception:
            log.exception("close_resources failed; going on without it")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


@contextlib.contextmanager
def iterator_of(task: AbstractSourceTask) -> Iterator[AbstractSourceRecordIterator]:
    """The iterator of a task that is not started. At the end all is closed, also when `get_iterator` failed half way."""
    try:
        iterator = task.get_iterator(task.backoff_config)
        try:
            yield iterator
        finally:
            iterator.close()
    finally:
        task.close_resources()
