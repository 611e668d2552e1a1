"""A few lines of a kind, and how many there were."""

import logging

from framework.model.log_sampler import LINES, SECONDS, LogSampler

LOG = logging.getLogger("framework.of_many")


def test_of_many_lines_at_once_a_few_are_shown_and_the_others_are_counted(caplog):
    caplog.set_level(logging.DEBUG, LOG.name)
    now = 100.0
    sampler = LogSampler(LOG, lambda: now)
    for number in range(100):
        sampler.log(logging.WARNING, "try %d failed", number)
    now += SECONDS
    sampler.log(logging.WARNING, "try %d failed", 100)
    shown = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [line.partition(" (")[0] for line in shown] == [f"try {number} failed" for number in (*range(LINES), 100)]
    assert shown[LINES - 1].endswith("(more such lines in the next 10 seconds: at level debug)")
    assert shown[-1].endswith(f"({100 - LINES} more such lines before, at level debug)")
    assert len([record for record in caplog.records if record.levelno == logging.DEBUG]) == 100 - LINES


def test_single_lines_are_as_they_are(caplog):
    caplog.set_level(logging.INFO, LOG.name)
    now = 0.0
    sampler = LogSampler(LOG, lambda: now)
    for _ in range(3 * LINES):
        sampler.log(logging.INFO, "100%% of %s", "a")
        now += SECONDS / 2
    assert {record.getMessage() for record in caplog.records} == {"100% of a"}
    assert len(caplog.records) == 3 * LINES
