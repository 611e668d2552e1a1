"""What an existing topic does not promise."""

import pytest

from framework.engine.topic_checks import offsets_topic_refusal
from framework.errors import IggyTopicError
from framework.iggy.dead_letters.writer import keeps_dead_letters
from framework.iggy.offset_log.partition_replay import hold_back_of
from framework.iggy.topics import ensure_topic, topic_warnings
from framework.iggy.values import PartitionInfo, TopicInfo

GOOD = {"enforce_fsync": True, "messages_required_to_save": 1}


def topic(partitions=2, expiry_microseconds=None, max_bytes=None, **options):
    return TopicInfo(
        stream="lake",
        name="orders",
        id=1,
        created_at=2,
        partitions=tuple(
            PartitionInfo(id=number, current_offset=0, messages_count=0, segments_count=1)
            for number in range(partitions)
        ),
        expiry_microseconds=expiry_microseconds,
        max_bytes=max_bytes,
        options=GOOD | options,
    )


def test_a_topic_as_sources_make_it_is_silent():
    assert topic_warnings(topic()) == ()
    assert topic_warnings(topic(enforce_fsync=False, durability="persisted")) == ()
    assert topic_warnings(topic(enforce_fsync="true", messages_required_to_save="1")) == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"enforce_fsync": False}, "not persisted"),
        ({"messages_required_to_save": 1024}, "every 1024 messages"),
        ({"enforce_fsync": "false"}, "not persisted"),
        ({"messages_required_to_save": "16384"}, "every 16384 messages"),
        ({"expiry_microseconds": 3_600_000_000}, "3600 seconds"),
        ({"max_bytes": 20_000_000_000}, "20,000,000,000 bytes"),
    ],
)
def test_each_weak_promise_is_one_sentence(options, words):
    (sentence,) = topic_warnings(topic(**options))
    assert words in sentence
    assert 'topic "orders" of stream "lake"' in sentence


def test_a_number_that_is_reported_as_a_text_counts_as_the_number_does():
    info = topic(messages_required_to_save="1024")
    assert (info.messages_required_to_save, hold_back_of(info)) == (1024, 1024)
    assert "saves only every 1024 messages" in (offsets_topic_refusal(info) or "")


@pytest.mark.parametrize("value", ["many", "", "1.5", True, 1.5, "\u0661"])
def test_an_option_that_is_no_number_is_never_taken_for_one_that_is_not_reported(value):
    info = topic(messages_required_to_save=value)
    for asked in (topic_warnings, offsets_topic_refusal, hold_back_of, keeps_dead_letters):
        with pytest.raises(IggyTopicError, match=r'topic "orders" .* has messages_required_to_save = .*Make it again'):
            asked(info)


class Connection:
    def __init__(self, *answers):
        self.answers = list(answers)
        self.made = []

    class address:  # noqa: N801
        server = "h:1"

    def get_topic(self, _stream, _topic):
        return self.answers.pop(0)

    def ensure_stream(self, stream):
        self.made.append(stream)

    def create_topic(self, *arguments, segment_bytes):
        self.made.append((*arguments, segment_bytes))


def test_a_missing_topic_is_made_with_its_stream():
    connection = Connection(None, topic())
    assert ensure_topic(connection, "lake", "orders", 2, segment_bytes=7)[0] == topic()
    assert connection.made == ["lake", ("lake", "orders", 2, 7)]


def test_a_missing_topic_is_an_error_when_it_must_exist():
    connection = Connection(None)
    with pytest.raises(IggyTopicError, match="there is no topic"):
        ensure_topic(connection, "lake", "orders", 2, create=False)
    assert connection.made == []


def test_another_number_of_partitions_names_both_and_the_ways_out():
    with pytest.raises(IggyTopicError, match=r"the configuration says 2: set \[iggy\] partitions = 3, or name"):
        ensure_topic(Connection(topic(3)), "lake", "orders", 2)


def test_a_topic_that_is_deleted_meanwhile():
    with pytest.raises(IggyTopicError, match="gone again"):
        ensure_topic(Connection(None, None), "lake", "orders", 2)
