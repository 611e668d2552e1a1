"""Which dead letters a command takes."""

import pytest

from framework.cli.dead_letters import DeadLetterChoice, chosen
from framework.errors import ConfigError


def choice(since):
    return DeadLetterChoice(key=None, prefix=None, kind=None, dead_letter=None, since=since)


@pytest.mark.parametrize("since", ["soon", "now", "5", "400 days", 400 * "9" + "d", 5000 * "9" + "d"])
def test_since_that_is_no_time_is_a_mistake(since):
    with pytest.raises(ConfigError, match=r"--since .*: give"):
        chosen([], choice(since))


@pytest.mark.parametrize("since", [None, "2h", "7 d", "1.5h", "2026-05-01", "2026-05-01T12:00", "2026-05-01T12:00Z"])
def test_since_is_an_age_or_a_date(since):
    assert chosen([], choice(since)) == []
