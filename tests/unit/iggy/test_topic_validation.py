"""What a topic that a key names holds already: positions and dead letters of any source are out of reach."""

from __future__ import annotations

import pytest

from framework.config.loading import structure
from framework.config.sections import SourceCommonConfig
from framework.engine.session import Session
from framework.engine.topic_checks import ensure_data_topic
from framework.errors import IggyAuthError, IggyTopicError, IggyUnavailableError, RecordError
from framework.iggy.dead_letters.writer import IggyDeadLetters
from framework.iggy.topic_validation import topic_refusal
from framework.model.objects import NativeObject, TopicPartition
from framework.model.positions import OffsetManagerEntry
from framework.pipeline.dead_letters import DeadLetter
from framework.testing.fakes.memory_iggy import MemoryIggy
from tests.support.iggy_messages import append


def config(name="orders", partitions=1, **iggy):
    mapping = {
        "source": {"name": name},
        "naming": {"template": "{{topic}}/{{key}}"},
        "input": {"format": "bytes"},
        "iggy": {"url": "iggy://u:p@h", "stream": "lake", "partitions": partitions, **iggy},
        "errors": {"tolerance": "skip_record", "dead_letter_topic": f"{name}-bad"},
        "offsets": {"topic": f"{name}.positions"},
    }
    return structure(mapping, SourceCommonConfig)


@pytest.fixture
def connection():
    with MemoryIggy().connect() as made:
        made.ensure_stream("lake")
        yield made


def test_a_topic_that_is_there_with_other_partitions_is_refused(connection):
    connection.create_topic("lake", "t", 3)
    assert topic_refusal(connection, config(partitions=3), "t") is None
    assert "has 3 partitions" in topic_refusal(connection, config(partitions=4), "t")


def test_a_missing_topic_is_refused_where_none_is_made(connection):
    assert topic_refusal(connection, config(), "t") is None
    assert "create_topics is off" in topic_refusal(connection, config(create_topics=False), "t")


def test_positions_of_another_source_are_recognised(connection):
    Session.begin(connection, config("other", partitions=4))
    assert "positions of a source" in topic_refusal(connection, config(), "other.positions")
    # ... and a later version's, which cannot be read here
    connection.create_topic("lake", "later", 1)
    append(connection, "lake", "later", 0, b"ICSP\x63" + bytes(20))
    assert "positions of a source" in topic_refusal(connection, config(), "later")


def test_dead_letters_of_another_source_are_recognised(connection):
    other = config("other", partitions=4)
    Session.begin(connection, other)
    native = NativeObject(scheme="s3", bucket="b", key="k", size=1, version="v")
    box = IggyDeadLetters.of(connection, other)
    dead_letter = DeadLetter(
        native=native,
        entry=OffsetManagerEntry.start(native, TopicPartition("t", 0)),
        record_number=1,
        error=RecordError("no"),
        raw=b"x",
        length=1,
    )
    box.send([dead_letter])
    assert "dead letters of a source" in topic_refusal(connection, config(), "other-bad")


def test_records_of_others_are_no_reason_to_refuse(connection):
    connection.create_topic("lake", "t", 1)
    assert topic_refusal(connection, config(), "t") is None
    append(connection, "lake", "t", 0, b'{"a":1}')
    assert topic_refusal(connection, config(), "t") is None


@pytest.mark.parametrize(
    "headers",
    [{"letter": "A"}, {"letter": "record"}, {"letter": "A", "source": "other"}, {"source": "other", "record": "1"}],
)
def test_records_with_a_header_as_dead_letters_have_it_are_no_reason_to_refuse(connection, headers):
    connection.create_topic("lake", "t", 1)
    append(connection, "lake", "t", 0, b'{"a":1}', headers=headers)
    assert topic_refusal(connection, config(), "t") is None


@pytest.mark.parametrize("kind", ["record", "object", "note", "replayed"])
def test_any_message_of_dead_letters_is_a_reason_to_refuse(connection, kind):
    connection.create_topic("lake", "t", 1)
    append(connection, "lake", "t", 0, b'{"a":1}', headers={"letter": kind, "source": "other"})
    assert "dead letters of a source" in topic_refusal(connection, config(), "t")


def test_when_iggy_is_away_the_sender_is_left_to_notice():
    class Away:
        def get_topic(self, stream, topic):
            raise IggyUnavailableError(f"{stream} {topic}: away")

    assert topic_refusal(Away(), config(), "t") is None


def test_a_topic_that_the_user_may_not_look_at_is_refused(connection, monkeypatch):
    """Whoever may write objects names topics: that of another team must fail this object, and not the source."""

    def deny(*_args, **_options):
        raise IggyAuthError('look up topic "t": user "u" may not do this on Iggy at h (Unauthorized)')

    monkeypatch.setattr(connection, "get_topic", deny)
    refusal = topic_refusal(connection, config(), "t")
    assert refusal.startswith("is closed to ")
    assert "may not do this" in refusal


@pytest.mark.parametrize(
    ("exists", "deeds"), [(True, ["read", "send"]), (False, ["create"])], ids=["there", "to be made"]
)
def test_a_topic_that_the_user_may_not_write_or_make_is_refused(connection, monkeypatch, exists, deeds):
    if exists:
        connection.create_topic("lake", "t", 1)
    asked = []

    def missing_rights(stream, rights):
        asked.extend(right.deed for right in rights)
        assert (stream, {right.topic for right in rights}) == ("lake", {"t"})
        return ['send to the topic "t" (send_messages)']

    monkeypatch.setattr(connection, "missing_rights", missing_rights)
    assert 'no permission to send to the topic "t" (send_messages)' in topic_refusal(connection, config(), "t")
    assert asked == deeds


def test_a_server_that_does_not_tell_permissions_is_no_reason_to_refuse(connection, monkeypatch):
    connection.create_topic("lake", "t", 1)
    monkeypatch.setattr(connection, "missing_rights", lambda _stream, _rights: None)
    assert topic_refusal(connection, config(), "t") is None


def test_no_partition_is_opened_in_the_topics_of_positions_and_dead_letters(connection):
    for topic in ("orders.positions", "orders-bad"):
        with pytest.raises(IggyTopicError, match="records never go there"):
            ensure_data_topic(connection, config(), topic)
    assert connection.get_topic("lake", "orders.positions") is None
