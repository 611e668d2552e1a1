"""What an existing topic does not promise."""

import pytest

from framework.errors import IggyTopicError
from framework.iggy.topics import ensure_topic, topic_warnings
from framework.iggy.values import NEVER, PartitionInfo, TopicInfo

GOOD = {"enforce_fsync": True, "messages_required_to_save": 1, "message_expiry": NEVER, "max_topic_size": NEVER}


def topic(partitions=2, **options):
    return TopicInfo(
        stream="lake",
        name="orders",
        id=1,
        created_at=2,
        partitions=tuple(
            PartitionInfo(id=number, current_offset=0, messages_count=0, segments_count=1)
            for number in range(partitions)
        ),
        options=GOOD | options,
    )


def test_a_topic_as_sources_make_it_is_silent():
    assert topic_warnings(topic()) == ()
    assert topic_warnings(topic(enforce_fsync=False, durability="persisted")) == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"enforce_fsync": False}, "not persisted"),
        ({"messages_required_to_save": 1024}, "every 1024 messages"),
        ({"message_expiry": 3_600_000_000}, "3600 seconds"),
        ({"max_topic_size": 20_000_000_000}, "20,000,000,000 bytes"),
    ],
)
def test_each_weak_promise_is_one_sentence(options, words):
    (sentence,) = topic_warnings(topic(**options))
    assert words in sentence
    assert 'topic "orders" of stream "lake"' in sentence


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
