"""Which dead letters a command takes."""

import pytest

from framework.cli.dead_letters import DeadLetterChoice, chosen
from framework.errors import ConfigError
from framework.iggy.dead_letters.writer import StoredDeadLetter
from framework.model.objects import TopicPartition


def choice(since):
    return DeadLetterChoice(key=None, prefix=None, kind=None, dead_letter=None, since=since)


@pytest.mark.parametrize("since", ["soon", "now", "5", "400 days", 400 * "9" + "d", 5000 * "9" + "d"])
def test_since_that_is_no_time_is_a_mistake(since):
    with pytest.raises(ConfigError, match=r"--since .*: give"):
        chosen([], choice(since))


@pytest.mark.parametrize("since", [None, "2h", "7 d", "1.5h", "2026-05-01", "2026-05-01T12:00", "2026-05-01T12:00Z"])
def test_since_is_an_age_or_a_date(since):
    assert chosen([], choice(since)) == []


def test_a_number_that_no_dead_letter_has_is_a_mistake_and_not_an_empty_table():
    stored = [
        StoredDeadLetter(
            offset=offset,
            message_id=offset,
            timestamp_us=1,
            kind="record",
            bucket="b",
            key=key,
            version="v",
            division=None,
            generation=0,
            record=1,
            topic_partition=TopicPartition("orders", 0),
            error="RecordError",
            text="",
            byte_offset=None,
            length=None,
            format="jsonl",
            payload="whole",
            raw=b"",
        )
        for offset, key in ((4, "a"), (6, "b"))
    ]
    assert [one.offset for one in chosen(stored, DeadLetterChoice(dead_letter=6))] == [6]
    assert chosen(stored, DeadLetterChoice(dead_letter=6, key="a")) == []  # it is there, and not of that object
    for number, held in ((3, stored), (5, stored), (0, [])):
        with pytest.raises(ConfigError, match=rf"--letter {number}: .*purge or retention.*dead-letter show --replayed"):
            chosen(held, DeadLetterChoice(dead_letter=number))
