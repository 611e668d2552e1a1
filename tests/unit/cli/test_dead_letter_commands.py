"""Which dead letters a command takes, and what it says of those that the topic does not have any more."""

import pytest

from framework.cli import dead_letter_commands as commands
from framework.cli.dead_letter_commands import DeadLetterChoice, read_selected
from framework.errors import ConfigError
from framework.iggy.dead_letters.writer import IggyDeadLetters
from tests.unit.pipeline.test_dead_letters import DEAD, Source


@pytest.mark.parametrize("since", ["soon", "now", "5", "400 days", 400 * "9" + "d", 5000 * "9" + "d"])
def test_since_that_is_no_time_is_a_mistake(since):
    with pytest.raises(ConfigError, match=r"--since .*: give"):
        DeadLetterChoice(since=since).selects()


@pytest.mark.parametrize("since", ["2h", "7 d", "1.5h", "2026-05-01", "2026-05-01T12:00", "2026-05-01T12:00Z"])
def test_since_is_an_age_or_a_date(since):
    assert callable(DeadLetterChoice(since=since).selects())


@pytest.fixture
def source():
    """A source with the dead letters 0, 1, 2 and 3."""
    made = Source()
    made.put("a", 0, 0, 1, 0)
    made.put("b", 1, 0)
    made.live()
    assert [each.offset for each in made.stored()] == [0, 1, 2, 3]
    return made


def numbers(source, **choice):
    with source.server.connect() as connection:
        return [each.offset for each in read_selected(connection, source.config, DeadLetterChoice(**choice)).stored]


def test_a_number_that_no_dead_letter_has_is_a_mistake_and_not_an_empty_table(source):
    assert numbers(source, dead_letter=2, key="a") == [2]
    for choice in ({"dead_letter": 4}, {"dead_letter": 2, "key": "b"}):
        with pytest.raises(
            ConfigError, match=r"--letter \d: the source has no such dead letter; `dead-letter show --replayed` lists"
        ):
            numbers(source, **choice)


@pytest.mark.parametrize("choice", [{"kind": "Record"}, {"key": "kit/a"}, {"prefix": "c"}])
def test_a_selection_of_none_says_what_the_topic_has(source, choice, capsys):
    def shown(**choice):
        with source.server.connect() as connection:
            dead_letters = read_selected(connection, source.config, DeadLetterChoice(**choice))
        commands._write_table(dead_letters.waiting, dead_letters)
        return capsys.readouterr().out

    said = "none that the topic has was selected (4 RecordError); keys begin behind the bucket's name\n"
    assert shown(**choice).endswith(f"0 dead letters\n{said}")
    assert "selected" not in shown(kind="RecordError")


def test_dropped_dead_letters_are_named_in_a_warning_and_not_missed_in_silence(source, caplog):
    assert numbers(source) == [0, 1, 2, 3]
    assert not caplog.messages
    source.server.drop_head("kit", DEAD, 0, 3)
    assert numbers(source, key="b") == [3]
    (warning,) = caplog.messages
    assert warning == (
        'topic "dead": its first 3 messages are gone (retention or deleted segments); dead letters among them cannot be '
        "shown or replayed"
    )
    with pytest.raises(ConfigError, match=r"--letter 2: it is gone: .* left the topic from message 3 on; `dead-letter"):
        numbers(source, dead_letter=2)
    caplog.clear()
    assert numbers(source, dead_letter=3) == [3]
    assert not caplog.messages
    source.server.drop_head("kit", DEAD, 0, 1)
    assert numbers(source) == []
    assert "its first 4 messages are gone" in caplog.text


def test_bytes_that_are_dropped_while_they_are_asked_for_are_not_said_to_be_unknown(source, monkeypatch, tmp_path):
    with source.server.connect() as connection:
        found = read_selected(connection, source.config, DeadLetterChoice(dead_letter=0)).stored
        source.server.drop_head("kit", DEAD, 0, 1)
        assert IggyDeadLetters(connection, source.config, DEAD).raw(found[0]) == b""
        with pytest.raises(ConfigError, match="dead letter 0 is gone: retention or a purge of its topic"):
            commands._write_payload(connection, source.config, found, tmp_path / "bytes")
