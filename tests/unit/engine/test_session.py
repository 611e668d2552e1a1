"""A leader's epoch: what its snapshots may hold."""

import pytest

from framework.engine.session import Session
from framework.errors import PositionError
from framework.model.batches import RecordBatch
from framework.model.objects import NativeObject, TopicPartition
from framework.testing.fakes.memory_iggy import MemoryIggy
from framework.testing.kit.crash import Bench, CrashPoint
from framework.testing.options import source_config
from tests.conformance.rigs import MemoryRig
from tests.support.positions import kinds, loaded, position, session_of


def records(entry, first, count):
    """A batch of an object's records, of which `entry` is the position behind them."""
    return RecordBatch(
        native=NativeObject(scheme="memory", bucket="bucket", key="a", size=4, version="v1", modified_ms=1000),
        topic_partition=entry.topic_partition,
        first_record=first,
        payloads=[b"1"] * count,
        size_bytes=count,
        entry=entry,
    )


def test_a_snapshot_holds_no_position_of_records_that_are_confirmed_and_not_delivered(monkeypatch):
    """It may be due before the first flush, which looks for such damage."""

    def torn(*_place):
        raise PositionError("it confirms and does not deliver")

    server = MemoryIggy()
    session = session_of(server)
    session.open_partitions()
    entry = position("a", 2, records_saved=0)
    session.offsets.add_entry(entry.changed(records_done=0))
    session.offsets.store_begun()
    session.offsets.commit(session.producer().send(entry.topic_partition, [records(entry, 1, 2)]).result(60))
    monkeypatch.setattr("framework.iggy.producer.check_delivered", torn)
    with pytest.raises(PositionError, match="does not deliver"):
        session.write_snapshot()
    assert "snapshot" not in kinds(server)
    assert loaded(server).anchors == {}
    session.close()


def test_partitions_that_are_too_many_for_one_record_are_taken_over_in_several(monkeypatch):
    monkeypatch.setattr("framework.iggy.offset_log.record_size.MAX_ROWS", 3)
    server = MemoryIggy()
    session = session_of(server, partitions=7)
    session.open_partitions()
    session.close()
    assert kinds(server) == ["claim", "opening", "open", "open", "open"]
    assert sorted(loaded(server).owners) == [TopicPartition("records", number) for number in range(7)]


def test_what_was_sent_first_is_read_back_until_the_server_cannot_hold_it_in_memory_alone(monkeypatch):
    looked_at = []
    monkeypatch.setattr("framework.iggy.producer.check_delivered", lambda *place: looked_at.append(place[-1]))
    server = MemoryIggy()
    with server.connect() as connection:
        connection.ensure_stream("kit")
        connection.create_topic("kit", "records", 3)
    server.set_option("kit", "records", "messages_required_to_save", 4)
    session = session_of(server)
    session.open_partitions()
    producer, entry = session.producer(), position("a", 2, records_saved=0)
    producer.send(entry.topic_partition, [records(entry, 1, 2)]).result(60)
    for _ in range(2):
        producer.check_delivered()
    producer.send(entry.topic_partition, [records(entry.changed(records_done=5), 3, 3)]).result(60)
    for _ in range(2):
        producer.check_delivered()
    assert looked_at == [0, 0, 0]
    session.close()


def test_an_object_that_is_dropped_with_a_partition_is_not_half_read_at_the_next_start():
    """Its other split lies in a partition that this start opened, for other objects."""
    server = MemoryIggy()
    session = session_of(server, partitions=2)
    session.offsets.table.begin(*(position("s", split_number=n, split_size=9, partition=n - 1) for n in (1, 2)))
    session.offsets.store_begun()  # and ends before anybody made the topic
    session.close()
    for _ in range(2):
        session = session_of(server, partitions=1)
        session.open_partitions()
        session.close()
        assert len(loaded(server).positions) == 0
    assert kinds(server).count("snapshot") == 1


def test_what_goes_on_in_a_topic_that_is_no_longer_configured_is_said(caplog):
    rig = MemoryRig()
    for key in ("a", "b"):
        rig.store.put(key, b"".join(b'{"n":%d}\n' % number for number in range(60)))
    events = len(record_events(rig))
    bench = Bench(rig, topic="first", batch_length=5, queue_records=5)
    bench.live(CrashPoint(events // 2))
    assert "goes to topic" not in caplog.text
    rig.store.put("c", b'{"n":1}\n')
    Bench(rig, server=bench.server, topic="second").live(CrashPoint())
    assert 'the rest of 2 objects goes to topic "first", where it began' in caplog.text
    assert 'what begins from now on goes to [iggy] topic "second"' in caplog.text
    numbers = {
        topic: sum(len(bench.server.messages("kit", topic, at)) for at in range(bench.config.iggy.partitions))
        for topic in ("first", "second")
    }
    assert numbers == {"first": 120, "second": 1}, "an object is in one topic"
    caplog.clear()
    Bench(rig, server=bench.server, topic="second").live(CrashPoint())
    assert "goes to topic" not in caplog.text


def record_events(rig):
    crash = CrashPoint()
    Bench(rig, topic="first", batch_length=5, queue_records=5).live(crash)
    return crash.events


def test_a_recovery_makes_no_second_topic_of_positions():
    """Its stream was renamed while the source ran: a new one would be in the way of the rename back."""
    server = MemoryIggy()
    with pytest.raises(PositionError, match=r"renamed .* while source .* Bring it back"):
        Session.begin(server.connect(), source_config(), own_epochs={1})
    assert server.topic_names("kit") == []
