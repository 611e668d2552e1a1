"""One policy: every number counts, and nothing waits past a stop."""

import gc
import math
import pickle
import threading
import weakref

import attrs
import pytest

from framework.errors import (
    AccessDeniedError,
    IggyUnavailableError,
    StoreUnavailableError,
    TaskClosedError,
    ThrottledError,
)
from framework.storage.retry import RetryPolicy
from tests.support.stopwatch import Stopwatch


class Clock:
    """Seconds that pass only when somebody waits."""

    def __init__(self):
        self.now = 100.0
        self.waits = []

    def __call__(self):
        return self.now

    def wait(self, seconds, stop):
        self.waits.append(seconds)
        self.now += seconds


def policy(clock, **changed):
    return RetryPolicy(**({"clock": clock, "wait": clock.wait, "jitter": 0.0} | changed))


class Failing:
    def __init__(self, *errors, result="done"):
        self.errors = list(errors)
        self.result = result
        self.calls = []

    def __call__(self, *args, **kwargs):
        self.calls.append((args, kwargs))
        if self.errors:
            raise self.errors.pop(0)
        return self.result


def throttled(seconds):
    error = ThrottledError("slow down")
    error.retry_after_seconds = seconds
    return error


def test_a_call_that_succeeds_is_made_once_with_its_arguments():
    clock, fn = Clock(), Failing()
    assert policy(clock).call(fn, 1, "b", what="it", flag=True) == "done"
    assert fn.calls == [((1, "b"), {"flag": True})]
    assert clock.waits == []


def test_waits_double_up_to_the_cap():
    clock = Clock()
    fn = Failing(*(StoreUnavailableError("away") for _ in range(7)))
    assert policy(clock, cap_seconds=5).call(fn) == "done"
    assert clock.waits == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])


def test_the_last_error_says_how_often_and_for_how_long_and_keeps_its_type_and_cause():
    clock = Clock()
    cause = OSError("reset")

    def fn():
        raise StoreUnavailableError("s3://b/k: no answer") from cause

    with pytest.raises(StoreUnavailableError) as caught:
        policy(clock).call(fn, what="opening s3://b/k")
    assert type(caught.value) is StoreUnavailableError
    assert str(caught.value) == "s3://b/k: no answer (gave up opening s3://b/k after 8 tries in 22.6 seconds)"
    assert caught.value.__cause__ is cause
    assert len(clock.waits) == 7


def test_what_a_failed_try_held_is_free_before_the_next():
    """Each of them could hold what was read of an object so far, until Python looks for cycles."""
    held = []

    class Block:
        """Stands for some megabytes."""

    def fn():
        block = Block()
        held.append(weakref.ref(block))
        if len(held) < 4:
            error = StoreUnavailableError("away")  # a name for it in its own frame: a cycle
            raise error from OSError("reset")
        return [one() is None for one in held[:-1]]

    gc.disable()
    try:
        assert policy(Clock()).call(fn) == [True] * 3
    finally:
        gc.enable()


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_attempts_are_tries_in_all(attempts):
    clock, fn = Clock(), Failing(*(StoreUnavailableError("x") for _ in range(9)))
    with pytest.raises(StoreUnavailableError, match=r"after 1 try in|after [23] tries in"):
        policy(clock, attempts=attempts).call(fn)
    assert len(fn.calls) == attempts


def test_a_wait_that_would_end_after_the_budget_is_not_begun():
    clock, fn = Clock(), Failing(*(StoreUnavailableError("x") for _ in range(99)))
    with pytest.raises(StoreUnavailableError):
        policy(clock, attempts=99, budget_seconds=3.5).call(fn)
    assert sum(clock.waits) <= 3.5
    assert clock.waits == pytest.approx([0.2, 0.4, 0.8, 1.6])  # the next, 3.2, would end at 6.2


def test_the_time_that_tries_take_counts():
    clock = Clock()

    def slow():
        clock.now += 2.0
        raise StoreUnavailableError("timeout")

    with pytest.raises(StoreUnavailableError, match="after 3 tries in"):
        policy(clock, attempts=99, budget_seconds=7.0).call(slow)


def test_a_store_that_asks_for_time_gets_it():
    clock = Clock()
    assert policy(clock).call(Failing(throttled(5.0), throttled(0.01))) == "done"
    assert clock.waits == [5.0, 0.4]


@pytest.mark.parametrize("asked", [60.0, 120.0, 3600.0, math.inf])
@pytest.mark.parametrize(("budget", "attempts"), [(60.0, 8), (12.0, 8), (60.0, 2), (600.0, 8)])
def test_a_store_that_asks_for_more_than_the_budget_costs_no_try(asked, budget, attempts):
    # MinIO sends `Retry-After: 60` with every 503; the budget of a first contact is 12 seconds
    clock, fn = Clock(), Failing(*(throttled(asked) for _ in range(99)))
    with pytest.raises(ThrottledError, match=f"after {attempts} tries"):
        policy(clock, attempts=attempts, budget_seconds=budget, base_seconds=0.01).call(fn)
    assert len(fn.calls) == attempts
    assert max(clock.waits) <= 10.0
    assert sum(clock.waits) <= budget


@pytest.mark.parametrize("error", [AccessDeniedError("no"), ValueError("no"), KeyboardInterrupt()])
def test_what_is_not_retriable_is_raised_at_once_and_untouched(error):
    clock, fn = Clock(), Failing(error)
    with pytest.raises(type(error)) as caught:
        policy(clock).call(fn)
    assert caught.value is error
    assert len(fn.calls) == 1
    fn = Failing(StoreUnavailableError("x"), error)
    with pytest.raises(type(error)) as caught:
        policy(clock).call(fn)
    assert caught.value is error
    assert len(fn.calls) == 2


def test_each_retry_is_told_before_its_wait():
    clock, seen = Clock(), []
    errors = [StoreUnavailableError("a"), IggyUnavailableError("b")]
    policy(clock).call(Failing(*errors), on_retry=lambda *told: seen.append((*told, len(clock.waits))))
    assert seen == [(errors[0], 1, 0.2, 0), (errors[1], 2, 0.4, 1)]


def test_a_stop_ends_the_wait_and_the_call():
    stop = threading.Event()
    last = StoreUnavailableError("away")
    clock = Clock()
    slow = attrs.evolve(policy(clock), wait=lambda seconds, event: event.set())
    fn = Failing(last, last)
    with pytest.raises(TaskClosedError, match="stopped while waiting to try again reading x") as caught:
        slow.call(fn, stop=stop, what="reading x")
    assert caught.value.__cause__ is last
    assert len(fn.calls) == 1


def test_a_stop_in_the_real_pause_ends_it_at_once():
    stop = threading.Event()
    timer = threading.Timer(0.02, stop.set)
    timer.start()
    began = Stopwatch()
    with pytest.raises(TaskClosedError):
        RetryPolicy(base_seconds=30, cap_seconds=30, jitter=0).call(Failing(StoreUnavailableError("x")), stop=stop)
    timer.join()
    assert began.seconds < 10


def test_a_stop_before_the_first_failure_makes_no_second_try():
    stop = threading.Event()
    stop.set()
    fn = Failing(StoreUnavailableError("x"))
    with pytest.raises(TaskClosedError):
        RetryPolicy().call(fn, stop=stop)
    assert len(fn.calls) == 1


def test_jitter_shortens_and_never_lengthens():
    for rand, expected in ((0.0, 4.0), (0.5, 3.0), (1.0, 2.0)):
        assert RetryPolicy(base_seconds=4, jitter=0.5, rand=lambda rand=rand: rand).delay(1) == expected


def test_many_failures_do_not_overflow():
    assert RetryPolicy(jitter=0).delay(100_000) == 10.0


def test_within_only_lowers_the_budget():
    assert RetryPolicy().within(5).budget_seconds == 5
    assert RetryPolicy(budget_seconds=3).within(5).budget_seconds == 3


def test_a_policy_pickles():
    made = RetryPolicy(attempts=3)
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"base_seconds": -1}, {"jitter": 1.5}, {"budget_seconds": -1}])
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError):
        RetryPolicy(**wrong)


def test_without_waiting_tries_as_often():
    fn = Failing(*(StoreUnavailableError("x") for _ in range(9)))
    with pytest.raises(StoreUnavailableError):
        RetryPolicy(attempts=4).without_waiting().call(fn)
    assert len(fn.calls) == 4
