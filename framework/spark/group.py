"""The driver's side of one epoch: lists, hands objects out by lanes, follows the offsets topic.

There is one slot for each task. A slot owns lanes (`framework.naming.task_of`) and runs one Spark job after the other, each
over what has been found for its lanes meanwhile: no wave waits for its slowest task, and a lane never has two senders.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import attrs

from framework.engine.report import Reporter, TaskFigures
from framework.engine.task_run import WorkerPlan
from framework.errors import SourceError, UnknownOutcomeError
from framework.feed import Assignment, ObjectFeed
from framework.iggy import log_codec
from framework.iterator import ReadCounts
from framework.naming import task_of
from framework.offsets import OffsetManagerEntry, OffsetManagerKey
from framework.spark.job import JobResult, SparkJob, run_job

if TYPE_CHECKING:
    from pyspark import SparkContext

    from framework.config.sections import SourceCommonConfig
    from framework.engine.session import Session
    from framework.task import AbstractSourceTask

log = logging.getLogger(__name__)

OUTSTANDING_OBJECTS = 20_000
"""Objects handed out or waiting for a slot, at most; the listing pauses above that."""

JOB_OBJECTS = 2000
JOB_BYTES = 512 << 20
"""What one job is given at most: long enough to pay for its start, short enough to spread what is found later."""

FOLLOW_SECONDS = 1.0


@attrs.define(kw_only=True, eq=False)
class _Slot:
    number: int
    waiting: list[Assignment] = attrs.field(factory=list)
    thread: threading.Thread | None = None


class SparkGroup:
    """The slots of one epoch. One use.

    Args:
        task_class: the source.
        config: its configuration.
        session: the leader's side of the epoch.
        context: Spark's.
        once: end after one complete pass.
    """

    def __init__(
        self,
        task_class: type[AbstractSourceTask],
        config: SourceCommonConfig,
        session: Session,
        context: SparkContext,
        *,
        once: bool,
    ) -> None:
        self._task_class = task_class
        self._config = config
        self._session = session
        self._context = context
        self._once = once
        self._slots = [_Slot(number=number) for number in range(config.runner.tasks_max)]
        self._group = f"iggy-cloud-sources {config.source.name} {session.recovered.epoch}"
        self._changed = threading.Condition()
        self._failure: SourceError | None = None
        self._results: list[JobResult] = []
        # (object, version) -> its size, of what was handed out and is not finished
        self._outstanding: dict[tuple[OffsetManagerKey, str], int] = {}
        self._live = TaskFigures()
        self._follow_from = session.recovered.base + 1
        self._follow_at = 0.0

    def run(self, stopping: threading.Event, reporter: Reporter) -> None:
        """Works until everything is done (once), `stopping` is set, or a job fails.

        Raises:
            SourceError: of the first job that failed; an `UnknownOutcomeError` when Spark lost it: recover.
        """
        lister = self._task_class()
        lister.config, lister.offsets, lister.once = self._config, self._session.offsets, self._once
        iterator = lister.get_iterator(lister.backoff_config)
        feed = iterator.feed
        reporter.watch_figures(
            lambda: [TaskFigures(reads=iterator.counts), self._live], lambda: getattr(feed, "counts", None)
        )
        try:
            while not stopping.is_set() and self._failure is None:
                self._collect(feed)
                self._follow_when_due()
                assignment = feed.take() if len(self._outstanding) < OUTSTANDING_OBJECTS else None
                if assignment is not None:
                    self._add(assignment)
                    continue
                self._start_jobs()
                if feed.finished and not self._outstanding:
                    break
                due = feed.seconds_until_due
                with self._changed:
                    self._changed.wait(min(due, 0.25) if due else 0.05)
        finally:
            self._end()
            self._collect(feed)
            reporter.unwatch()
            iterator.close()
            lister.close_resources()
        if self._failure is not None and not stopping.is_set():
            raise self._failure

    # ---- handing out

    def _add(self, assignment: Assignment) -> None:
        entry = assignment.entry
        slot = self._slots[task_of(entry.lane, len(self._slots))]
        self._outstanding[(entry.get_manager_key(), entry.version)] = assignment.size_bytes
        slot.waiting.append(assignment)
        if slot.thread is None and len(slot.waiting) >= JOB_OBJECTS:
            self._start_job(slot)

    def _start_jobs(self) -> None:
        for slot in self._slots:
            if slot.waiting and slot.thread is None:
                self._start_job(slot)

    def _start_job(self, slot: _Slot) -> None:
        tasks = len(self._slots)
        taken, size = 0, 0
        for assignment in slot.waiting[:JOB_OBJECTS]:
            if taken and size + assignment.size_bytes > JOB_BYTES:
                break
            taken += 1
            size += assignment.size_bytes
        given, slot.waiting = slot.waiting[:taken], slot.waiting[taken:]
        anchors = self._session.offsets.snapshot_anchors()
        plan = WorkerPlan(
            task_class=self._task_class,
            config=self._config,
            address=self._session.connection.address,
            epoch=self._session.recovered.epoch,
            base=self._session.recovered.base,
            anchors={lane: anchor for lane, anchor in anchors.items() if task_of(lane, tasks) == slot.number},
        )
        slot.thread = spark_thread(lambda: self._run_job(slot, SparkJob(plan=plan, assignments=given)))
        slot.thread.start()

    def _run_job(self, slot: _Slot, job: SparkJob) -> None:
        """In a thread of its own: one Spark job of one task."""
        try:
            self._context.setJobGroup(
                self._group, f"{self._config.source.name}, task {slot.number}", interruptOnCancel=True
            )
            result: JobResult = self._context.parallelize([job], 1).map(run_job).collect()[0]
        except Exception as error:  # noqa: BLE001 - Spark's errors have no common root, and each means the same here
            lost = UnknownOutcomeError(f"Spark lost task {slot.number}: {_sentence(error)}; recovering")
            result = JobResult(figures=TaskFigures(), failure=lost)
        with self._changed:
            self._results.append(result)
            if result.failure is not None and self._failure is None:
                self._failure = result.failure
            slot.thread = None
            self._changed.notify_all()

    def _end(self) -> None:
        """Ends the jobs that are still at work, if any: their lanes are recovered before anybody sends to them again."""
        threads = [slot.thread for slot in self._slots if slot.thread is not None]
        if threads:
            self._context.cancelJobGroup(self._group)
        deadline = time.monotonic() + 4.0
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # ---- what comes back

    def _collect(self, feed: ObjectFeed) -> None:
        with self._changed:
            results, self._results = self._results, []
        for result in results:
            self._live.reads = _sum(self._live.reads, result.figures.reads)
            for delta in result.deltas:
                self._take_delta(delta.entries)
                self._session.offsets.merge_saved(delta)
                self._session.saved(delta)
            for assignment, gone in result.released:
                self._outstanding.pop((assignment.entry.get_manager_key(), assignment.entry.version), None)
                feed.release(assignment, gone=gone)

    def _take_delta(self, entries: Iterable[OffsetManagerEntry]) -> None:
        """Counts what a delta adds to what is known; the same delta twice adds nothing."""
        for entry in entries:
            key = entry.get_manager_key()
            known = self._session.offsets.get_entry(key)
            before = known.records_done if known is not None and known.version == entry.version else 0
            self._live.records += max(0, entry.records_done - before)
            if entry.finished:
                size = self._outstanding.pop((key, entry.version), None)
                if size is not None:
                    self._live.objects += 1
                    self._live.object_bytes += size

    def _follow_when_due(self) -> None:
        """Reads what the executors have appended to the offsets topic: the progress, while their jobs run."""
        if time.monotonic() < self._follow_at:
            return
        self._follow_at = time.monotonic() + FOLLOW_SECONDS
        position_log = self._session.log
        for message in position_log.messages(self._follow_from):
            if message is None or message.source != position_log.source or message.kind != "delta":
                continue
            if message.epoch == self._session.recovered.epoch:
                delta = log_codec.decode_delta(message)
                self._take_delta(delta.entries)
                self._session.offsets.merge_saved(delta)
                self._live.commits += 1
        self._follow_from = max(self._follow_from, position_log.next_offset)


def spark_thread(target: Callable[[], None]) -> threading.Thread:
    """A thread with Spark's local properties of its own, so that its job group is not another thread's."""
    from pyspark import InheritableThread  # noqa: PLC0415

    thread: threading.Thread = InheritableThread(target=target, daemon=True)
    return thread


def _sum(left: ReadCounts, right: ReadCounts) -> ReadCounts:
    names = [field.name for field in attrs.fields(ReadCounts)]
    return ReadCounts(**{name: getattr(left, name) + getattr(right, name) for name in names})


def _sentence(error: Exception) -> str:
    """The line of a Java exception that says what happened."""
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    told = next(
        (line for line in lines if "Lost task" in line or "exited unexpectedly" in line or "cancelled" in line), ""
    )
    return told or (lines[0] if lines else type(error).__name__)
