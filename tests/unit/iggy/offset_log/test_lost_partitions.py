"""Partitions that the log names and the server no longer has."""

import pytest

from framework.iggy.offset_log.lost_partitions import abandon_partitions, data_topics, lost_partitions
from framework.iggy.offset_log.records import TopicIdentity
from framework.model.objects import Anchor, TopicPartition
from tests.support.positions import position
from tests.unit.iggy.offset_log.test_partition_replay import PARTITION, Rig


def infos(rig, **more):
    return {"records": rig.info, **more}


def test_a_partition_or_a_topic_that_is_gone_is_counted_with_what_is_unsettled_in_it():
    rig = Rig().known()
    lost, gone = TopicPartition("records", 2), TopicPartition("old", 0)
    rig.state.anchors[lost] = Anchor(1, 1)
    rig.state.topics[gone] = TopicIdentity(topic_id=1, created_at=1)
    rig.begin(
        position("a"),
        position("b", partition=2),
        position("c", 1, partition=2),
        position("d", 3, total=3, partition=2),
        position("e", topic_partition=gone),
    )
    assert lost_partitions(rig.state, infos(rig, old=None), 4) == {lost: 2, gone: 1}
    assert rig.state.partitions == {PARTITION, lost, gone}


def test_topics_are_looked_up_in_the_order_of_their_names():
    """Messages that list them are the same at each start."""
    rig = Rig().known()
    rig.begin(*(position(name, topic_partition=TopicPartition(name, 0)) for name in "hgfedcba"))
    topics = data_topics(rig.connection, "kit", rig.state)
    assert list(topics) == [*"abcdefgh", "records"]
    assert [name for name, info in topics.items() if info is not None] == ["records"]


def test_a_partition_that_nobody_opened_holds_nothing_half_read():
    rig, away = Rig().known(), TopicPartition("records", 2)
    rig.begin(position("a"), position("b", partition=2))
    assert lost_partitions(rig.state, infos(rig), 4) == {away: 0}


def test_a_position_set_for_a_partition_that_nobody_opened_is_half_read():
    """`offsets set` may say that its first records are done: from the start elsewhere, they would be sent."""
    rig, away = Rig().known(), TopicPartition("records", 2)
    rig.begin(position("a", 3, partition=2))
    assert lost_partitions(rig.state, infos(rig), 4) == {away: 1}


def test_a_topic_that_was_never_made_is_lost_beyond_the_partitions_that_it_will_have():
    rig = Rig().known()
    rig.begin(*(position(str(n), topic_partition=TopicPartition("new", n)) for n in range(3)))
    assert lost_partitions(rig.state, infos(rig, new=None), 2) == {TopicPartition("new", 2): 0}


@pytest.mark.parametrize(
    ("done", "total"), [(1, None), (3, 3), (0, None)], ids=["half sent", "settled", "sent by a worker that was killed"]
)
def test_a_split_for_a_partition_that_nobody_opened_is_half_read_when_another_split_is(done, total):
    rig, away = Rig().known(), TopicPartition("records", 2)
    rig.begin(
        position("s", done, total=total, split_number=1, split_size=1024),
        position("s", split_number=2, split_size=1024, partition=2),
    )
    assert lost_partitions(rig.state, infos(rig), 4) == {away: 1}


def test_no_split_of_an_object_is_in_an_opened_partition():
    rig, away = Rig().known(), TopicPartition("records", 2)
    rig.begin(
        position("s", split_number=1, split_size=1024, partition=1),
        position("s", split_number=2, split_size=1024, partition=2),
        position("a"),
    )
    assert lost_partitions(rig.state, infos(rig), 4) == {away: 0}


def test_what_is_given_up_with_a_partition_begins_again_above_its_generation():
    rig = Rig().known(Anchor(5, 5))
    other = TopicPartition("records", 1)
    rig.state.anchors[other] = Anchor(6, 6)
    rig.state.closed = {PARTITION: 5, other: 6}
    splits = [
        position("s", split_number=split_number, split_size=1024, partition=split_number - 1, generation=4)
        for split_number in (1, 2)
    ]
    rig.begin(position("a", generation=9), position("b", partition=1), *splits, position("d", 3, total=3))
    abandon_partitions(rig.state, [PARTITION])
    assert {entry.key for entry in rig.state.positions.view()} == {"b", "d"}
    assert rig.state.positions.floor == 9
    assert rig.state.partitions == rig.state.closed.keys() == {other}
    assert rig.state.anchors == {other: Anchor(6, 6)}
    rig.begin(*splits)
    abandon_partitions(rig.state, [PARTITION, other])
    assert {entry.key for entry in rig.state.positions.view()} == {"d"}, "both splits of an object went with it"
    rig.state.anchors[other] = Anchor(6, 6)
    abandon_partitions(rig.state, [PARTITION])  # nothing of it is known any more
    assert rig.state.anchors == {other: Anchor(6, 6)}
