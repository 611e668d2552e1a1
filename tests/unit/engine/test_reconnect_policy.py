"""When a run gives up: Iggy away for too long, or work that breaks off again and again and gets no further."""

import pickle

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.discovery.object_feed import FeedCounts
from framework.engine.reconnect_policy import (
    FIRST_ANSWER_SECONDS,
    FRUITLESS_RECOVERIES,
    RECONNECT_PAUSES,
    RECONNECT_SECONDS,
    ReconnectPolicy,
    WorkDone,
)
from framework.engine.reporter import Reporter
from framework.errors import EXIT_PERSON, FatalError, IggyUnavailableError, UnknownOutcomeError
from framework.pipeline.task_statistics import TaskStatistics

AWAY = IggyUnavailableError("away")
LOST = UnknownOutcomeError("Spark lost a task: Python worker exited unexpectedly")


@attrs.define
class Run:
    """A run whose figures the test sets."""

    count: int = 0
    idle: bool = False
    now: float = 0.0
    stored: int = 0
    policy: ReconnectPolicy = attrs.field(init=False)

    def __attrs_post_init__(self):
        self.policy = ReconnectPolicy(lambda: WorkDone(self.count, self.idle), clock=lambda: self.now)

    def epoch(self, *, records=0, unseen=0, idle=False):
        """An epoch that confirms so many records, of which `unseen` are only found by the next recovery, and breaks."""
        self.policy.connected(self.stored)
        self.count += records - unseen
        self.stored += records
        self.idle = idle
        return self.policy.broke(LOST)


def test_work_that_gets_no_further_is_given_up_with_its_cause():
    run = Run()
    pauses = [run.epoch() for _ in range(FRUITLESS_RECOVERIES)]
    assert pauses == list(RECONNECT_PAUSES[:FRUITLESS_RECOVERIES])
    with pytest.raises(FatalError, match=r"5 recoveries .* no record got further.*exited unexpectedly") as caught:
        run.epoch()
    assert caught.value.__cause__ is LOST
    assert "lower [iggy] batch_bytes" in str(caught.value), (
        "a server that limits requests ends the connection without a word"
    )


def test_a_server_that_comes_back_for_moments_has_as_long_as_one_that_stays_away():
    """Also executors on machines that a network cut off, while this process reaches Iggy: nothing is wrong with the work."""
    cut_off = IggyUnavailableError("Iggy at iggy:8090 did not answer")
    run = Run()
    run.policy.connected(run.stored)
    run.policy.broke(LOST)
    while run.now <= RECONNECT_SECONDS:
        run.policy.connected(run.stored)
        pause = run.policy.broke(pickle.loads(pickle.dumps(cut_off)))
        assert pause in RECONNECT_PAUSES
        run.now += pause + 1
    assert pause == RECONNECT_PAUSES[-1]
    run.policy.connected(run.stored)
    with pytest.raises(IggyUnavailableError) as raised:
        run.policy.broke(cut_off)
    assert raised.value is cut_off
    run.policy.connected(run.stored + 1)
    assert run.policy.broke(cut_off) == RECONNECT_PAUSES[0], "a record got further"


@pytest.mark.parametrize("fruit", [{"records": 1}, {"records": 1, "unseen": 1}, {"idle": True}])
def test_anything_that_gets_further_begins_the_count_again(fruit):
    run = Run()
    for _ in range(4):
        for _ in range(FRUITLESS_RECOVERIES - 1):
            run.epoch()
        run.epoch(**fruit)
    assert run.epoch() <= RECONNECT_PAUSES[1]


@given(st.lists(st.booleans(), max_size=60))
def test_it_is_given_up_exactly_when_so_many_in_a_row_brought_nothing(fruits):
    run, row = Run(), 0
    for fruit in fruits:
        row = 0 if fruit else row + 1
        if row > FRUITLESS_RECOVERIES:
            with pytest.raises(FatalError):
                run.epoch(records=int(fruit))
            return
        run.epoch(records=int(fruit))


@pytest.mark.parametrize("kind", [IggyUnavailableError, UnknownOutcomeError])
def test_a_disk_that_stays_full_is_given_up_soon_and_without_advice_about_sizes(kind):
    full = kind("is the disk of the server full?")
    full.exit_code = EXIT_PERSON
    run = Run()
    for _ in range(FRUITLESS_RECOVERIES):
        run.policy.connected(run.stored)
        run.policy.broke(full)
    run.policy.connected(run.stored)
    with pytest.raises(FatalError, match=r"is the disk of the server full\?$"):
        run.policy.broke(full)


def test_only_the_time_without_iggy_counts_however_long_nothing_got_further():
    """The store was away, or a listing of many finished objects takes an hour, and Iggy is restarted twice."""
    run = Run()
    for _ in range(3):
        run.policy.connected(run.stored)
        run.now += 10 * RECONNECT_SECONDS
        assert run.policy.broke(AWAY) in RECONNECT_PAUSES
        run.now += 2


def test_a_server_that_stays_away_is_waited_for_some_minutes_with_growing_pauses():
    run = Run()
    run.policy.connected(0)
    run.policy.broke(AWAY)
    pauses = []
    while run.now <= RECONNECT_SECONDS:
        pauses.append(run.policy.broke(AWAY))
        run.now += pauses[-1]
    assert pauses[: len(RECONNECT_PAUSES)] == list(RECONNECT_PAUSES)
    assert set(pauses[len(RECONNECT_PAUSES) :]) == {RECONNECT_PAUSES[-1]}
    with pytest.raises(IggyUnavailableError) as caught:
        run.policy.broke(AWAY)
    assert caught.value is AWAY


def test_a_server_that_came_back_is_waited_for_as_long_the_next_time():
    run = Run()
    for _ in range(3):
        run.policy.connected(run.stored)
        run.stored += 1
        assert run.policy.broke(AWAY) == RECONNECT_PAUSES[0]
        run.now += RECONNECT_SECONDS - 1
        assert run.policy.broke(AWAY) == RECONNECT_PAUSES[0]


def ends_after(run):
    """The seconds until a server that does not answer is given up, and the error."""
    while True:
        try:
            run.now += run.policy.broke(AWAY)
        except IggyUnavailableError as error:
            return run.now, error


def test_a_server_that_never_answered_is_waited_for_some_seconds_only():
    seconds, error = ends_after(Run())
    assert seconds == pytest.approx(FIRST_ANSWER_SECONDS)
    assert error is AWAY


def test_a_call_that_took_longer_than_that_is_the_last_one():
    run = Run()
    run.now = FIRST_ANSWER_SECONDS  # a place that takes connections and says nothing
    assert ends_after(run) == (FIRST_ANSWER_SECONDS, AWAY)


def test_a_server_that_answered_is_waited_for_as_long_in_a_first_recovery_as_later():
    run = Run()
    run.now = FIRST_ANSWER_SECONDS - 1
    run.policy.answered = True
    seconds, error = ends_after(run)
    assert seconds > RECONNECT_SECONDS
    assert error is AWAY
    assert not run.policy.began


def test_the_reporter_tells_what_got_further_and_whether_there_was_anything_to_do():
    reporter = Reporter(None, skipped_per_hour=10)

    def epoch(figures, feed):
        reporter.watch_statistics(lambda: [figures], lambda: feed)
        reporter.unwatch()
        return reporter.work_done()

    assert epoch(TaskStatistics(), FeedCounts(total_chosen=2)) == WorkDone(0, idle=False)
    assert epoch(TaskStatistics(records=7, objects=1), FeedCounts(total_chosen=2, listings=1)) == WorkDone(
        8, idle=False
    )
    assert epoch(TaskStatistics(objects=2), FeedCounts(total_chosen=2, listings=1)) == WorkDone(10, idle=True)
    reporter.recovered()
    assert not reporter.work_done().idle
    assert epoch(TaskStatistics(), FeedCounts()) == WorkDone(10, idle=False)
