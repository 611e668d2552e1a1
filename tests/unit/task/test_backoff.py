"""The pauses of an idle reader."""

import threading

import pytest

from framework.task.backoff import Backoff, BackoffConfig


class Clock:
    def __init__(self):
        self.waits = []

    def wait(self, seconds, stop):
        self.waits.append(seconds)


class TestBackoff:
    def test_waits_double_from_one_millisecond_to_four_seconds(self):
        clock, stop = Clock(), threading.Event()
        backoff = Backoff(wait=clock.wait, rand=lambda: 0.0)
        for _ in range(15):
            assert backoff.wait(stop) is False
        expected = [0.001 * 2**n for n in range(12)] + [4.0, 4.0, 4.0]
        assert clock.waits == pytest.approx(expected)

    def test_jitter_adds_at_most_a_quarter_and_never_passes_five_seconds(self):
        clock, stop = Clock(), threading.Event()
        backoff = Backoff(wait=clock.wait, rand=lambda: 1.0)
        for _ in range(40):
            backoff.wait(stop)
        assert clock.waits[0] == pytest.approx(0.00125)
        assert max(clock.waits) == pytest.approx(5.0)
        assert max(clock.waits) <= 5.0

    def test_success_begins_again(self):
        clock, stop = Clock(), threading.Event()
        backoff = Backoff(wait=clock.wait, rand=lambda: 0.0)
        backoff.wait(stop)
        backoff.wait(stop)
        backoff.reset()
        backoff.wait(stop)
        assert clock.waits == pytest.approx([0.001, 0.002, 0.001])

    def test_asking_for_the_delay_changes_nothing(self):
        backoff = Backoff()
        assert [backoff.delay_seconds for _ in range(3)] == [0.001] * 3

    def test_a_stop_is_answered_at_once(self):
        clock, stop = Clock(), threading.Event()
        stop.set()
        assert Backoff(wait=clock.wait).wait(stop) is True
        assert clock.waits == []

    def test_a_stop_during_the_wait_is_told(self):
        backoff = Backoff(wait=lambda seconds, stop: stop.set())
        assert backoff.wait(threading.Event()) is True

    def test_more_than_five_seconds_cannot_be_configured(self):
        with pytest.raises(ValueError):
            BackoffConfig(cap_seconds=5.1)
