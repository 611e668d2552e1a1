"""The driver's side of an epoch: lists, assigns objects by partitions, follows the offsets topic.

    listing thread -> board of partitions -> one Spark job per free task -> saved positions -> positions of the driver

Each task has a thread. A free task gets its part of the waiting objects, in partitions that no other task
owns (`framework.engine.spark.object_assignment`). So no wave waits for its slowest task, and a partition never
has two senders.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, TypeAlias

import attrs

from framework.discovery.object_feed import Assignment
from framework.engine.listing_thread import ListingThread
from framework.engine.reporter import Reporter
from framework.engine.spark.capacity import Capacity
from framework.engine.spark.executor import JobResult, SparkJob, run_job
from framework.engine.spark.failure_messages import lost_job, on_executor
from framework.engine.spark.listing_waves import Executors, executors_of, wave_lister
from framework.engine.spark.object_assignment import PartitionAssigner
from framework.engine.spark.spark_context import runs_locally
from framework.engine.spark.stop_channel import StopChannel
from framework.engine.spark.threads import cancel_jobs, for_thread
from framework.engine.task_run import TaskRunPlan
from framework.errors import SourceError, SparkUnavailableError, TaskClosedError
from framework.iggy.offset_log.log import DuePolls
from framework.iterator.store_iterator import StoreRecordIterator
from framework.pipeline.task_statistics import TaskStatistics
from framework.storage.daemon_threads import Awaited
from framework.task import SourceContext, iterator_of

if TYPE_CHECKING:
    from pyspark import SparkContext

    from framework.config.sections import SourceCommonConfig
    from framework.engine.session import Session
    from framework.iterator import AbstractSourceRecordIterator
    from framework.model.objects import TopicPartition
    from framework.model.positions import OffsetManagerEntry
    from framework.task import AbstractSourceTask

log = logging.getLogger(__name__)

OUTSTANDING_OBJECTS = 50_000
"""Maximum number of waiting and assigned objects; the listing pauses above it, which bounds the driver's memory."""

GATHER_SECONDS = 0.3
"""How long a free task waits while a listing still yields objects, instead of taking the first one alone."""

FOLLOW_SECONDS = 1.0

WAIT_SECONDS = 0.05

IDLE_SECONDS = 0.5
"""The same between two listings; a listing that finds an object ends the wait."""

ORDERLY_SECONDS = 3.2
"""Maximum time for jobs to end in order: slightly longer than a pipeline waits for Iggy's answer after a stop."""

KILLED_SECONDS = 0.8


@attrs.define(kw_only=True, eq=False)
class _Running:
    """A running job.

    Attributes:
        topic_partitions: the partitions that it owns.
        result: awaited in a thread of its own.
        counts: what its saved positions have shown so far, of records approximately; at its end what it has counted.
    """

    topic_partitions: frozenset[TopicPartition]
    result: Awaited[JobResult]
    counts: TaskStatistics = attrs.field(factory=TaskStatistics)


@attrs.frozen(kw_only=True)
class ReadySpark:
    """Spark whose executors have what the source needs.

    Attributes:
        context: its context.
        use_stop_channel: whether executors can reach the driver, so that jobs end in order; see
            `framework.engine.spark.stop_channel`.
        stop: stops it.
    """

    context: SparkContext
    use_stop_channel: bool
    stop: Callable[[], None] = lambda: None


AwaitSpark: TypeAlias = "Callable[[], ReadySpark | None]"
"""Waits for Spark; returns None when a stop came first."""


@attrs.define(eq=False, repr=False, slots=False)
class SparkGroup:
    """The tasks of one epoch. For one use.

    Args:
        task_class: the source.
        config: its configuration.
        session: the leader's side of the epoch.
        await_spark: waits for Spark; called when the listing has begun.
        once: end after one complete listing.
    """

    _task_class: type[AbstractSourceTask]
    _config: SourceCommonConfig
    _session: Session
    _await_spark: AwaitSpark
    _once: bool = attrs.field(kw_only=True)
    _context: SparkContext = attrs.field(init=False)
    _capacity: Capacity = attrs.field(init=False)
    _executors: Future[Executors] = attrs.field(factory=Future, init=False)
    _board: PartitionAssigner = attrs.field(factory=PartitionAssigner, init=False)
    _gathering_since: float | None = attrs.field(default=None, init=False)
    _running: list[_Running] = attrs.field(factory=list, init=False)
    _failure: SourceError | None = attrs.field(default=None, init=False)
    _done: TaskStatistics = attrs.field(factory=TaskStatistics, init=False)
    _counts: TaskStatistics = attrs.field(factory=TaskStatistics, init=False)
    _due: DuePolls = attrs.field(factory=lambda: DuePolls(FOLLOW_SECONDS), init=False)
    _stopping_since: float = attrs.field(default=math.inf, init=False)
    _stop_channel: StopChannel | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._changed = threading.Condition()
        self._group = f"iggy-cloud-sources {self._config.source.name} {self._session.epoch.number}"
        self._listing_group = f"{self._group} listing"

    def stop(self) -> None:
        """Stop the jobs: they, and `run`, may be waiting for an answer of Iggy."""
        self._stopping_since = min(self._stopping_since, time.monotonic())
        if self._stop_channel is not None:
            self._stop_channel.close()

    def run(self, stopping: threading.Event, reporter: Reporter) -> None:
        """Work until everything is done (once), `stopping` is set, or a job fails.

        Raises:
            SourceError: of the first failed job; an `UnknownOutcomeError` when Spark lost it: recover.
        """
        context = SourceContext(config=self._config, offsets=self._session.offsets, once=self._once)
        with iterator_of(self._task_class, context, stopping=stopping) as iterator:
            if isinstance(iterator, StoreRecordIterator):
                iterator.lister = wave_lister(iterator, self._task_class, self._executors.result)
            self._session.open_renumbered_partitions(iterator.numbering_options)
            listing = ListingThread(iterator, self._changed, most=OUTSTANDING_OBJECTS)
            try:
                listing.start()
                self._gathering_since = time.monotonic()  # a start of Spark is time enough
                ready = self._await_spark()
                reporter.watch_statistics(
                    lambda: [iterator.statistics, self._session.partitions.statistics, self._counts, self._outages()],
                    lambda: listing.counts,
                )
                if ready is not None:
                    self._begin(ready)
                    self._work(listing, stopping, reporter)
            except BaseException:
                self._leave(listing, iterator)
                with contextlib.suppress(SourceError):  # the first error tells what to do
                    self._collect(listing)
                raise
            else:
                self._leave(listing, iterator)
                self._collect(listing)
            finally:
                self.stop()  # closes the channel in any case
                reporter.unwatch()
        if self._failure is not None and not stopping.is_set():
            self._session.check_alone_after(self._failure)
            raise self._failure

    def _work(self, listing: ListingThread, stopping: threading.Event, reporter: Reporter) -> None:
        while not stopping.is_set():
            self._collect(listing)
            if self._failure is not None:
                break
            reporter.check_skipped()
            taken = listing.take()
            self._session.store_begun(taken)
            for assignment in taken:
                self._board.add(assignment)
            self._start_jobs(all_there_is=listing.idle)
            if listing.finished and not self._running:
                break
            try:
                self._capacity.look(len(self._running))
            except SparkUnavailableError as error:
                self._failure = error  # raised unless the signal that ended it also stops this run
            with self._changed:
                if not taken and not any(running.result.done() for running in self._running):
                    self._changed.wait(WAIT_SECONDS if len(self._board) or self._running else IDLE_SECONDS)

    def _begin(self, ready: ReadySpark) -> None:
        """Take Spark into use: for tasks, for the listing, and for a stop."""
        self._context = ready.context
        self._capacity = Capacity(ready.context, tasks_max=self._config.runner.tasks_max)
        if ready.use_stop_channel:
            self._stop_channel = StopChannel.of(ready.context)
        self._executors.set_result(executors_of(ready.context, self._config, group=self._listing_group))

    # ---- handing out

    def _start_jobs(self, *, all_there_is: bool) -> None:
        if not len(self._board):
            self._gathering_since = None
            return
        now = time.monotonic()
        self._gathering_since = self._gathering_since or now
        if not all_there_is and now - self._gathering_since < GATHER_SECONDS:
            return
        while (free := self._capacity.wanted - len(self._running)) > 0:
            given = self._board.take(free)
            if not given:
                return
            self._start_job(given)

    def _start_job(self, given: Sequence[Assignment]) -> None:
        topic_partitions = frozenset(assignment.entry.topic_partition for assignment in given)
        plan = TaskRunPlan.of(self._session, self._task_class, topic_partitions, shared=True, once=self._once)
        channel = self._stop_channel.address if self._stop_channel is not None else None
        job = SparkJob(plan=plan, assignments=given, channel=channel)
        run = for_thread(self._context, self._run_job)
        result = Awaited(lambda: self._result_of(run, job), "job")
        self._running.append(_Running(topic_partitions=topic_partitions, result=result))
        result.add_done_callback(self._notify)

    def _run_job(self, job: SparkJob) -> JobResult:
        self._context.setJobGroup(
            self._group, f"{self._config.source.name}: {len(job.assignments)} objects", interruptOnCancel=True
        )
        result: JobResult = self._context.parallelize([job], 1).map(run_job).collect()[0]
        return result

    def _result_of(self, run: Callable[[SparkJob], JobResult], job: SparkJob) -> JobResult:
        """Run one Spark job of one task, in its own thread."""
        try:
            return run(job)
        except Exception as error:  # noqa: BLE001 - Spark's errors have no common root, and each means the same here
            return JobResult(statistics=TaskStatistics(), failure=lost_job(self._context, error, "a task"))

    def _notify(self, _: object) -> None:
        with self._changed:
            self._changed.notify_all()

    def _leave(self, listing: ListingThread, iterator: AbstractSourceRecordIterator) -> None:
        listing.end()
        begun = self._executors.done()
        if not begun:  # the listing may wait for them
            self._executors.set_exception(TaskClosedError("closed while listing"))
        iterator.close()  # before the jobs: a wave of the listing is one of them
        if begun:
            self._end()

    def _end(self) -> None:
        """End the remaining jobs: their partitions are recovered before another sender uses them."""
        cancel_jobs(self._context, self._listing_group)
        results = [running.result for running in self._running]
        self.stop()
        if self._stop_channel is not None:
            wait(results, max(0.0, self._stopping_since + ORDERLY_SECONDS - time.monotonic()))
        if not all(result.done() for result in results):
            cancel_jobs(self._context, self._group)
            wait(results, KILLED_SECONDS)

    # ---- what comes back

    def _collect(self, listing: ListingThread) -> None:
        ended = [running for running in self._running if running.result.done()]
        try:
            if ended or self._due.take():
                self._follow(listing)  # the next sender of their partitions starts from what they had saved
        finally:
            self._take_results(ended, listing)  # their figures are the run's, also when the connection is broken
            self._counts = TaskStatistics.total((self._done, *(running.counts for running in self._running)))
        self._session.save()

    def _take_results(self, ended: Sequence[_Running], listing: ListingThread) -> None:
        for running in ended:
            result = running.result.result()
            failure = result.failure
            if failure is not None and result.host and not runs_locally(self._context):
                failure = on_executor(failure, result.host)
            self._failure = self._failure or failure
            for line in result.log_lines:
                line.repeat()
            if result.more_lines:
                log.warning("... and %d more warnings of the same job", result.more_lines)
            for assignment, gone in result.released:
                listing.release(assignment, gone=gone)
            self._running.remove(running)
            if result.host:  # else Spark lost it, and its positions tell what it did
                job, seen = result.statistics.without_state(), running.counts
                running.counts = attrs.evolve(
                    job,
                    records=max(job.records, seen.records),  # fewer: the job found sent what another had not saved
                    objects=max(job.objects, seen.objects),
                    object_bytes=max(job.object_bytes, seen.object_bytes),
                    position_commits=0,
                )
            self._done += running.counts
            self._board.give_back(running.topic_partitions)

    def _outages(self) -> TaskStatistics:
        """Return the outages that running jobs tell of; everything else they tell only at their end."""
        return TaskStatistics(store_away=self._stop_channel.stores_away if self._stop_channel is not None else 0)

    def _follow(self, listing: ListingThread) -> None:
        """Apply the positions that executors have saved, including progress of running jobs."""
        self._session.follow()
        changed = self._session.take_changed()
        self._done.position_commits += bool(changed)
        for before, entry in changed:
            # a transform may have filtered them: then only a job's end tells how many were sent
            more = max(0, _good_records(entry) - _good_records(before)) if not self._config.transforms else 0
            completed = listing.complete(entry) if entry.finished else None
            owners = (running.counts for running in self._running if entry.topic_partition in running.topic_partitions)
            counts = next(owners, self._done)
            counts.records += more
            if completed is not None:
                counts.objects += completed.entry.counts_object
                counts.object_bytes += completed.size_bytes


def _good_records(entry: OffsetManagerEntry) -> int:
    return entry.records_done - entry.skipped
