"""Calls start few, double until the store throttles, then rise by one and fall by half; and never above the budget."""

from itertools import pairwise

import pytest

from framework.storage.listing.limiter import CallLimiter
from framework.testing.clock import FakeClock


def round_trip(limiter, clock, *, throttled=False):
    """All calls that are allowed at once, ended together."""
    began, calls = clock(), limiter.take(10_000)
    clock.advance(0.08)
    if throttled:
        for _ in range(calls):
            limiter.throttled(began)
    for _ in range(calls):
        limiter.give_back(1, succeeded=True)
    return calls


def test_calls_double_with_each_round_trip_until_the_first_throttling():
    clock = FakeClock()
    limiter = CallLimiter(clock=clock, most=100)
    seen = [round_trip(limiter, clock) for _ in range(7)]
    assert seen[0] == 4
    for before, calls in pairwise(seen):
        # the last few of a round trip, when less than half is in use, do not count
        assert before < calls <= min(100, 2 * before)
    assert seen[-1] > 16


def test_a_throttling_halves_once_for_all_calls_under_way_and_then_it_rises_by_about_one():
    clock = FakeClock()
    limiter = CallLimiter(clock=clock)
    while limiter.allowed < 32:
        round_trip(limiter, clock)
    before = limiter.allowed
    round_trip(limiter, clock, throttled=True)
    assert before // 2 <= limiter.allowed <= before // 2 + 1
    seen = []
    for _ in range(6):
        round_trip(limiter, clock)
        seen.append(limiter.allowed)
    assert 2 <= seen[-1] - before // 2 <= 7


def test_it_never_falls_below_one_call():
    clock = FakeClock()
    limiter = CallLimiter(clock=clock)
    for _ in range(20):
        clock.advance(1)
        limiter.throttled(clock())
    assert limiter.allowed == 1
    assert limiter.take(5) == 1


def test_it_does_not_grow_while_less_is_used_than_allowed():
    limiter = CallLimiter(clock=FakeClock())
    for _ in range(100):
        assert limiter.take(1) == 1
        limiter.give_back(1, succeeded=True)
    assert limiter.allowed == 4


def test_leave_is_shared_and_comes_back():
    limiter = CallLimiter(clock=FakeClock())
    assert [limiter.take(3), limiter.take(3), limiter.take(3)] == [3, 1, 0]
    limiter.give_back(1)
    assert limiter.take(3) == 1


@pytest.mark.parametrize("calls", [10, 37])
def test_the_budget_of_requests_holds(calls):
    clock = FakeClock()
    limiter = CallLimiter(clock=clock, requests_per_second=20)
    start = clock()
    for _ in range(calls):
        clock.sleep(limiter.delay_seconds())
    assert clock() - start == pytest.approx((calls - 1) / 20)


def test_a_large_answer_delays_the_next_call():
    clock = FakeClock()
    limiter = CallLimiter(clock=clock, bytes_per_second=1000)
    assert limiter.delay_seconds() == 0
    limiter.spend(500)
    assert limiter.delay_seconds() == pytest.approx(0.5)
    clock.advance(10)
    assert limiter.delay_seconds() == 0
