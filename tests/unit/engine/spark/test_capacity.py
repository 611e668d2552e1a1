"""How many tasks Spark runs at once, and jobs that wait for an executor."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from framework.engine.spark.capacity import GONE_SECONDS, LOOK_SECONDS, NO_EXECUTOR, SLOTS_SECONDS, Capacity
from framework.engine.spark.spark_context import NOTICE_SECONDS
from framework.errors import SparkUnavailableError


class Context:
    """A context with `slots`, None: it has ended, and one job of one stage with `active` tasks; None: no job."""

    appName, master = "orders", "spark://head"  # noqa: N815 - the names in pyspark

    def __init__(self, slots=0, *, active=None, conf=()):
        self.slots, self.active, self.conf, self.asked = slots, active, dict(conf), 0
        java = SimpleNamespace(
            isStopped=lambda: self.slots is None,
            maxNumConcurrentTasks=self._answer,
            resourceProfileManager=lambda: SimpleNamespace(defaultResourceProfile=lambda: None),
        )
        self._jsc = SimpleNamespace(sc=lambda: java)

    def _answer(self, _):
        self.asked += 1
        if self.slots is None:
            raise ConnectionRefusedError
        return self.slots

    def getConf(self):  # noqa: N802 - the names in pyspark
        return self.conf

    def statusTracker(self):  # noqa: N802
        return SimpleNamespace(
            getActiveJobsIds=lambda: [1, 2] if self.active is not None else [],
            getJobInfo=lambda job: SimpleNamespace(stageIds=[job]) if job == 2 else None,
            getStageInfo=lambda _: SimpleNamespace(numActiveTasks=self.active),
        )


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_the_cores_of_the_present_executors_count():
    context, clock = Context(4), Clock()
    capacity = Capacity(context, clock=clock)
    assert [capacity.slots, capacity.wanted, context.asked] == [4, 4, 1]
    context.slots = 8
    clock.now += SLOTS_SECONDS
    assert capacity.slots == 8


@pytest.mark.parametrize("slots", [0, None])
def test_one_task_always_waits_for_the_first_executor(slots):
    """None at all would let a run wait without a job, for ever."""
    assert Capacity(Context(slots)).slots == 1


def test_an_application_that_has_ended_has_the_slots_it_had():
    context, clock = Context(4), Clock()
    capacity = Capacity(context, clock=clock)
    assert capacity.slots == 4
    context.slots = None
    clock.now += SLOTS_SECONDS
    assert capacity.slots == 4


def test_with_dynamic_allocation_tasks_wait_for_the_executors_to_come():
    assert Capacity(Context(4, conf={"spark.dynamicAllocation.enabled": "true"})).wanted == 8


def warned(context, seconds, caplog, *, running=1, tasks_max=1):
    """The warnings of a watch over so many seconds."""
    clock = Clock()
    watch = Capacity(context, tasks_max=tasks_max, clock=clock)
    caplog.clear()
    while clock.now < seconds:
        watch.look(running)
        clock.now += 1.0
    return [record.getMessage() for record in caplog.records]


FIRST_SECONDS = LOOK_SECONDS + NOTICE_SECONDS


def test_jobs_that_wait_for_an_executor_are_told_of(caplog):
    assert warned(Context(active=0), FIRST_SECONDS, caplog) == []
    told = warned(Context(active=0), FIRST_SECONDS + NOTICE_SECONDS + 1, caplog, running=2, tasks_max=2)
    assert len(told) == 2
    assert set(told) == {f"still waiting for {NO_EXECUTOR}"}
    assert "spark.driver.host" in NO_EXECUTOR, "executors that do not find the driver end, again and again"


@pytest.mark.parametrize("context", [Context(active=1), Context()])
def test_work_and_the_want_of_it_are_not(context, caplog):
    assert warned(context, 10 * NOTICE_SECONDS, caplog) == []


def test_an_application_that_has_ended_is_noticed_without_a_job(caplog):
    """A run that waits for objects would learn it from the next one, days later."""
    with pytest.raises(SparkUnavailableError, match="Spark has ended the application orders at spark://head"):
        warned(Context(None), FIRST_SECONDS, caplog)


def test_more_tasks_than_cores_are_told_of_once(caplog):
    context = Context(2, active=2)
    assert warned(context, FIRST_SECONDS, caplog, running=6, tasks_max=6) == []
    assert warned(context, 10 * NOTICE_SECONDS, caplog, running=6, tasks_max=6) == [
        "4 of 6 tasks wait, Spark runs 2 at once: give it more cores, or lower [runner] tasks_max"
    ]
    assert warned(context, 10 * NOTICE_SECONDS, caplog, running=2, tasks_max=6) == []
    assert warned(context, 10 * NOTICE_SECONDS, caplog, running=4, tasks_max=None) == [], "of dynamic allocation"


@pytest.mark.parametrize("dynamic", ["false", "true"])
def test_executors_that_are_gone_for_good_end_the_run(dynamic):
    """A standalone master that lost its state in a restart knows nothing of the application."""
    context, clock = Context(2, active=1, conf={"spark.dynamicAllocation.enabled": dynamic}), Clock()
    watch = Capacity(context, tasks_max=1, clock=clock)

    def look_until(seconds):
        while clock.now < seconds:
            watch.look(1)
            clock.now += 1.0

    look_until(GONE_SECONDS)
    context.slots, context.active = 0, 0
    look_until(2 * GONE_SECONDS)
    context.slots, context.active = 2, 1  # machines that come back in time
    look_until(2 * GONE_SECONDS + 2 * LOOK_SECONDS)
    context.slots, context.active = 0, 0
    with pytest.raises(SparkUnavailableError, match="did its master restart") if dynamic == "false" else nullcontext():
        look_until(4 * GONE_SECONDS)
