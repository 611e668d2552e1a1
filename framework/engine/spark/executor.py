"""The executor's work: one `AbstractSourceTask` over its assigned objects, in partitions that only this job writes.

This runs in a Python worker of Spark. The client of Iggy is created and closed here: no connection
outlives its job, so a recovery never waits for one.
"""

from __future__ import annotations

import logging
import resource
import socket
import threading
from collections.abc import Sequence

import attrs
from pyspark import TaskContext

from framework.discovery.object_feed import AssignedFeed, Assignment
from framework.engine.log_forwarding import LogForwarder, LogLine
from framework.engine.process_setup import set_up_process
from framework.engine.python_messages import log_python_messages
from framework.engine.spark.failure_messages import MORE_MEMORY
from framework.engine.spark.stop_channel import StopAddress, held
from framework.engine.task_run import TaskRun, TaskRunPlan, portable
from framework.errors import FatalError, SourceError, UnknownOutcomeError, is_low_memory
from framework.pipeline.sender import OBJECTS_LOGGER
from framework.pipeline.task_statistics import TaskStatistics

MAX_LOGGED = 200
"""Maximum number of a job's log lines sent to the driver: a bucket of bad records causes as many warnings."""

SECOND_ATTEMPT = (
    "Spark lost a Python worker, its executor or its machine, and started the job again elsewhere; with "
    "spark.task.maxFailures = 1 it does so only after a lost machine, and names any other cause"
)


@attrs.frozen(kw_only=True)
class SparkJob:
    """The work of one task; travels pickled.

    Attributes:
        plan: the source, its configuration, the epoch and the partitions.
        assignments: the objects to read, in this order.
        channel: address of the driver's channel; see `framework.engine.spark.stop_channel`.
    """

    plan: TaskRunPlan
    assignments: Sequence[Assignment]
    channel: StopAddress | None = None


@attrs.frozen(kw_only=True)
class JobResult:
    """Result of a job. A failure is a value: Spark must not retry by itself, the driver recovers first.

    Attributes:
        statistics: counts of the job.
        released: released objects, and whether each is gone.
        failure: the error that ended it early; None without one.
        host: name of the executor's machine; empty for a job that Spark lost.
        log_lines: its warnings, repeated in the driver's log: executors' logs are seldom read.
        more_lines: number of further warnings.
    """

    statistics: TaskStatistics
    released: Sequence[tuple[Assignment, bool]] = ()
    failure: SourceError | None = None
    host: str = ""
    log_lines: Sequence[LogLine] = ()
    more_lines: int = 0


class _KeptWarnings:
    """Keeps warnings, up to a maximum."""

    def __init__(self) -> None:
        self.log_lines: list[LogLine] = []
        self.more_lines = 0

    def keep(self, line: LogLine) -> None:
        if len(self.log_lines) < MAX_LOGGED or line.logger == OBJECTS_LOGGER:  # those are as few as the job's objects
            self.log_lines.append(line)
        else:
            self.more_lines += 1


def run_job(job: SparkJob) -> JobResult:
    """Run a job to its end; never raises the errors of a source."""
    attempt = TaskContext.get()
    if attempt is not None and attempt.attemptNumber() > 0:
        # The first attempt's executor was lost; it may live on, and what it stored is not in our positions.
        return JobResult(statistics=TaskStatistics(), failure=UnknownOutcomeError(SECOND_ATTEMPT))
    set_up_process()
    heard = _KeptWarnings()
    handler = LogForwarder(heard.keep)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        with log_python_messages():
            result = _run(job)
    finally:
        root.removeHandler(handler)
    return attrs.evolve(result, log_lines=heard.log_lines, more_lines=heard.more_lines)


def _run(job: SparkJob) -> JobResult:
    released: list[tuple[Assignment, bool]] = []
    feed = AssignedFeed(job.assignments, closed=True, on_release=lambda given, gone: released.append((given, gone)))
    run: TaskRun | None = None
    failure: SourceError | None = None
    left = threading.Event()

    def leave() -> None:
        left.set()
        if run is not None:
            run.stop()

    def store_away() -> bool:
        return run is not None and run.statistics().store_away > 0

    try:
        with held(job.channel, leave, store_away=store_away):
            run = TaskRun.start(job.plan, feed)
            if left.is_set():  # before there was anything to stop
                run.stop()
            run.run()
        if left.is_set():
            # The driver may live on, and only the connection broke. What is left would be read by no job of this epoch.
            failure = UnknownOutcomeError("the connection of a job to its driver broke")
    except Exception as error:  # noqa: BLE001 - whatever it is, the driver must hear it
        failure = explained(error)
    finally:
        if run is not None:
            run.close()
    return JobResult(
        statistics=run.statistics() if run is not None else TaskStatistics(),
        released=released,
        failure=failure,
        host=socket.gethostname(),
    )


def explained(error: Exception) -> SourceError:
    """Return the error for the driver. Low memory where a Python worker's is limited names the option."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or not is_low_memory(error):
        return portable(error)
    return FatalError(f"{portable(error)}; a Python worker has {limit >> 20} MiB of address space: {MORE_MEMORY}")
