"""The pauses of an idle reader."""

import attrs
import pytest

from framework.task.backoff import BackoffConfig


def pauses(rand, count):
    policy = attrs.evolve(BackoffConfig().policy(), rand=lambda: rand)
    return [policy.delay(waits + 1) for waits in range(count)]


def test_waits_double_from_one_millisecond_to_four_seconds():
    assert pauses(1.0, 15) == pytest.approx([0.001 * 2**n for n in range(12)] + [4.0, 4.0, 4.0])


def test_jitter_adds_at_most_a_quarter_and_never_passes_five_seconds():
    waits = pauses(0.0, 40)
    assert waits[0] == pytest.approx(0.00125)
    assert max(waits) == 5.0


def test_more_than_five_seconds_cannot_be_configured():
    with pytest.raises(ValueError):
        BackoffConfig(cap_seconds=5.1)
