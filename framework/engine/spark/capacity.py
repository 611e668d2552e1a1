"""How many tasks Spark runs at once, and a line in the log when it runs none of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from framework.engine.spark.failure_messages import application_ended, is_stopped
from framework.engine.spark.spark_context import NOTICE_SECONDS, is_on
from framework.errors import SparkUnavailableError

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger(__name__)

NO_EXECUTOR = (
    "an executor: has a machine of the cluster free what this application asks for (spark.executor.cores, spark.task.cpus, "
    "spark.executor.memory), and does it reach the driver (spark.driver.host)?"
)
"""What a run waits for that no executor serves."""

LOOK_SECONDS = 5.0

GONE_SECONDS = 300.0
"""How long jobs wait while no executor is left: a master that lost its state in a restart never gives another one."""

SLOTS_SECONDS = 1.0
"""How long an answer of Spark counts: executors join and leave at any time."""


MAX_TASKS = 1000
"""Maximum number of tasks where the option names none."""


class Capacity:
    """The number of tasks that a context runs at once, and warnings of those that wait. For one thread.

    Spark's `defaultParallelism` is not it: it is an option for shuffles, and on a cluster it is 2 until executors join.

    Args:
        context: Spark's context, whose executors were looked at.
        tasks_max: the option; None has as many tasks as cores.
        clock: returns seconds.
    """

    def __init__(
        self, context: SparkContext, *, tasks_max: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._context = context
        self._tasks_max = tasks_max
        self._clock = clock
        self._asked_at = -SLOTS_SECONDS
        self._slots = 1
        self._is_dynamic = is_on(context.getConf(), "spark.dynamicAllocation.enabled")
        self._look_at = clock() + LOOK_SECONDS
        self._all_wait, self._some_wait, self._gone = _Lasting(), _Lasting(), _Lasting(GONE_SECONDS)
        self._warns_of_some = tasks_max is not None

    @property
    def slots(self) -> int:
        """Tasks that the present executors run at once, at least 1; the last answer of a context that has ended."""
        now = self._clock()
        if now - self._asked_at >= SLOTS_SECONDS:
            self._asked_at = now
            self._slots = max(1, _concurrent_tasks(self._context) or self._slots)
        return self._slots

    @property
    def wanted(self) -> int:
        """Tasks to run at once. With dynamic allocation more than `slots`: Spark adds executors for tasks that wait."""
        return self._tasks_max or min(self.slots * 2 if self._is_dynamic else self.slots, MAX_TASKS)

    def look(self, running: int) -> None:
        """Look every `LOOK_SECONDS`; warn every `NOTICE_SECONDS` while all jobs wait, and once when some do.

        Args:
            running: number of jobs with objects to read.

        Raises:
            SparkUnavailableError: the application has ended, which an idle run would learn from its next job; or jobs have
                waited for `GONE_SECONDS` without an executor.
        """
        now = self._clock()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        if is_stopped(self._context):
            raise application_ended(self._context)
        none_runs = self._no_task_runs()
        if self._all_wait.lasts(none_runs, now):
            log.warning("still waiting for %s", NO_EXECUTOR)
        is_gone = none_runs and not self._is_dynamic and _concurrent_tasks(self._context) == 0
        if self._gone.lasts(is_gone, now):
            raise SparkUnavailableError(
                f"no executor is left of the application {self._context.appName} at {self._context.master}, and for "
                f"{GONE_SECONDS:.0f} seconds no other one came; did its master restart without spark.deploy.recoveryMode? "
                "Start the source again"
            )
        if not self._warns_of_some:
            return
        slots = self.slots
        if self._some_wait.lasts(running > slots and not none_runs, now):
            log.warning(
                "%d of %d tasks wait, Spark runs %d at once: give it more cores, or lower [runner] tasks_max",
                *(running - slots, running, slots),
            )
            self._warns_of_some = False

    def _no_task_runs(self) -> bool:
        """Return whether there are jobs and none has a running task."""
        jobs = False
        try:
            tracker = self._context.statusTracker()
            # Not the jobs of a group: Spark keeps a thousand that have ended, and each is a call or more.
            for job_id in tracker.getActiveJobsIds():
                jobs = True
                job = tracker.getJobInfo(job_id)
                stages = [tracker.getStageInfo(stage_id) for stage_id in (job.stageIds if job is not None else ())]
                if any(stage is not None and stage.numActiveTasks for stage in stages):
                    return False
        except Exception:  # noqa: BLE001 - the application has ended, which its jobs report
            return False
        return jobs


class _Lasting:
    """Whether something has been so at each look of so many seconds; then again after as long."""

    def __init__(self, seconds: float = NOTICE_SECONDS) -> None:
        self._seconds = seconds
        self._since: float | None = None

    def lasts(self, is_so: bool, now: float) -> bool:
        if not is_so:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        if now - self._since < self._seconds:
            return False
        self._since = now
        return True


def _concurrent_tasks(context: SparkContext) -> int | None:
    try:
        spark = context._jsc.sc()  # noqa: SLF001 - pyspark has no question for it
        return int(spark.maxNumConcurrentTasks(spark.resourceProfileManager().defaultResourceProfile()))
    except Exception:  # noqa: BLE001 - the application has ended, which its jobs report
        return None
