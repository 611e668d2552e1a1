"""Calls start few, double until the store throttles, then rise by one and fall by half; and never above the budget."""

from itertools import pairwise

import pytest

from framework.storage.listing.limiter import CallPace, pace_of, set_pace
from framework.testing.clock import FakeClock
from framework.testing.fakes.memory_store import MemoryStore


def round_trip(pace, clock, *, throttled=False):
    """All calls that are allowed at once, ended together."""
    began, calls = clock(), pace.take(10_000)
    clock.advance(0.08)
    if throttled:
        for _ in range(calls):
            pace.throttled(began)
    for _ in range(calls):
        pace.give_back(1, succeeded=True)
    return calls


def test_calls_double_with_each_round_trip_until_the_first_throttling():
    clock = FakeClock()
    pace = CallPace(clock=clock, most=100)
    seen = [round_trip(pace, clock) for _ in range(7)]
    assert seen[0] == 4
    for before, calls in pairwise(seen):
        # the last few of a round trip, when less than half is in use, do not count
        assert before < calls <= min(100, 2 * before)
    assert seen[-1] > 16


def test_a_throttling_halves_once_for_all_calls_under_way_and_then_it_rises_by_about_one():
    clock = FakeClock()
    pace = CallPace(clock=clock)
    while pace.allowed < 32:
        round_trip(pace, clock)
    before = pace.allowed
    round_trip(pace, clock, throttled=True)
    assert before // 2 <= pace.allowed <= before // 2 + 1
    seen = []
    for _ in range(6):
        round_trip(pace, clock)
        seen.append(pace.allowed)
    assert 2 <= seen[-1] - before // 2 <= 7


def test_it_never_falls_below_one_call():
    clock = FakeClock()
    pace = CallPace(clock=clock)
    for _ in range(20):
        clock.advance(1)
        pace.throttled(clock())
    assert pace.allowed == 1
    assert pace.take(5) == 1


def test_it_does_not_grow_while_less_is_used_than_allowed():
    pace = CallPace(clock=FakeClock())
    for _ in range(100):
        assert pace.take(1) == 1
        pace.give_back(1, succeeded=True)
    assert pace.allowed == 4


def test_leave_is_shared_and_comes_back():
    pace = CallPace(clock=FakeClock())
    assert [pace.take(3), pace.take(3), pace.take(3)] == [3, 1, 0]
    told = []
    listener = lambda: told.append(pace.take(1))  # noqa: E731
    pace.listen(listener)
    pace.give_back(1, quiet=True)
    assert told == []
    pace.give_back(1)
    assert told == [1]
    pace.unlisten(listener)
    pace.unlisten(listener)
    pace.give_back(1)
    assert told == [1]


@pytest.mark.parametrize("calls", [10, 37])
def test_the_budget_of_requests_holds(calls):
    clock = FakeClock()
    pace = CallPace(clock=clock, requests_per_second=20)
    start = clock()
    for _ in range(calls):
        clock.sleep(pace.delay_seconds())
    assert clock() - start == pytest.approx((calls - 1) / 20)


def test_a_large_answer_delays_the_next_call():
    clock = FakeClock()
    pace = CallPace(clock=clock, bytes_per_second=1000)
    assert pace.delay_seconds() == 0
    pace.spend(500)
    assert pace.delay_seconds() == pytest.approx(0.5)
    clock.advance(10)
    assert pace.delay_seconds() == 0


def test_a_process_has_one_pace_for_each_bucket():
    one, same, other = MemoryStore("pace-a"), MemoryStore("pace-a"), MemoryStore("pace-b")
    assert pace_of(one) is pace_of(same)
    assert pace_of(one) is not pace_of(other)
    mine = CallPace(requests_per_second=5)
    set_pace(other, mine)
    assert pace_of(other) is mine
