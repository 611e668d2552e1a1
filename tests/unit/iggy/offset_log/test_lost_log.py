"""A lost log is noticed by the marks of the topics that its source has written."""

import pickle

import pytest

from framework.errors import IggyAuthError, IggyProtocolError
from framework.iggy.offset_log.lost_log import TopicMarks, mark_of
from framework.iggy.offset_log.partition_replay import PartitionGoneError
from framework.iggy.offset_log.records import TopicIdentity
from framework.model.objects import TopicPartition
from tests.support.positions import position
from tests.unit.iggy.offset_log.test_partition_replay import PARTITION, Rig


def check(rig):
    TopicMarks(rig.connection, "kit", rig.state).check_topic(rig.info)


SAID = r'topic "records" of stream "kit" was written by source "kit", and its offsets topic knows nothing of that'


def test_a_mark_tells_of_a_lost_log_behind_any_number_of_messages_and_without_headers():
    rig = Rig()
    rig.send(position(), 1)
    rig.connection.ensure_group("kit", "records", mark_of("kit"))
    rig.others(48)
    with pytest.raises(PartitionGoneError, match=SAID) as error:
        check(rig)
    assert error.value.topic_partition == PARTITION
    for way in ("[offsets] topic", "offsets reset --all", "[discovery] modified_after"):
        assert way in str(error.value)
    arrived = pickle.loads(pickle.dumps(error.value))  # from a worker
    assert (type(arrived), str(arrived)) == (PartitionGoneError, str(error.value))
    assert arrived.topic_partition == PARTITION


def test_a_topic_that_the_log_knows_or_that_a_person_vouched_for_is_not_looked_at():
    rig = Rig()
    rig.connection.ensure_group("kit", "records", mark_of("kit"))
    rig.state.topics[TopicPartition("other", 0)] = TopicIdentity(topic_id=1, created_at=1)
    with pytest.raises(PartitionGoneError, match=SAID):
        check(rig)
    rig.state.has_abandoned_partitions = True
    check(rig)
    rig.state.has_abandoned_partitions = False
    rig.known()
    check(rig)


@pytest.mark.parametrize("error", [IggyAuthError("may not"), IggyProtocolError("no groups"), None])
def test_the_mark_of_another_source_or_one_that_may_not_be_looked_at_says_nothing(error, monkeypatch):
    rig = Rig()
    rig.others()
    rig.connection.ensure_group("kit", "records", mark_of("other"))
    if error is not None:

        def refuse(*_):
            raise error

        monkeypatch.setattr(rig.connection, "has_group", refuse)
    check(rig)
    assert TopicMarks(rig.connection, "kit", rig.state).is_marked("records") is False
    assert mark_of("kit") != mark_of("kit2")
    assert len(mark_of("s" * 99)) == 60
    assert mark_of("s" * 53) == f"source {'s' * 53}"
    assert mark_of("s" * 99) != mark_of("s" * 98)
    assert mark_of("s" * 99) == f"source {'s' * 36} 8eb7c5ba2fe9c606", "earlier versions have set it"


@pytest.mark.parametrize("error", [IggyAuthError("may not"), IggyProtocolError("no groups")])
def test_a_user_who_may_not_list_the_topics_finds_no_log_lost(error, monkeypatch):
    rig = Rig()
    rig.connection.ensure_group("kit", "records", mark_of("kit"))

    def refuse(*_):
        raise error

    monkeypatch.setattr(rig.connection, "topic_names", refuse)
    TopicMarks(rig.connection, "kit", rig.state).check_log(["offsets"])


def test_the_server_is_asked_once_for_the_mark_of_a_topic(monkeypatch):
    rig = Rig()
    rig.connection.ensure_group("kit", "records", mark_of("kit"))
    asked, has_group = [], rig.connection.has_group
    monkeypatch.setattr(rig.connection, "has_group", lambda *place: asked.append(place) or has_group(*place))
    marks = TopicMarks(rig.connection, "kit", rig.state)
    assert [marks.is_marked("records") for _ in range(3)] == [True] * 3
    assert asked == [("kit", "records", mark_of("kit"))]


@pytest.mark.parametrize("known", [False, True], ids=["log of epochs alone", "log that knows a topic"])
def test_a_log_that_was_lost_is_noticed_at_any_topic_of_the_stream(known):
    rig = Rig()
    rig.connection.create_topic("kit", "named-by-a-key", 1)
    marks = TopicMarks(rig.connection, "kit", rig.state)
    marks.check_log(["offsets"])
    rig.connection.ensure_group("kit", "named-by-a-key", mark_of("kit2"))
    marks.check_log(["offsets"])
    rig.connection.ensure_group("kit", "named-by-a-key", mark_of("kit"))
    rig.state.last_epoch = 1
    if known:
        rig.known()
    marks = TopicMarks(rig.connection, "kit", rig.state)
    marks.check_log(["named-by-a-key"])
    if known:
        marks.check_log(["offsets"])
        return
    with pytest.raises(PartitionGoneError, match=SAID.replace("records", "named-by-a-key")) as error:
        marks.check_log(["offsets"])
    assert error.value.topic_partition == TopicPartition("named-by-a-key", 0)
