"""A leader's epoch: what its snapshots may hold."""

import pytest

from framework.errors import PositionError
from framework.model.batches import RecordBatch
from framework.model.objects import NativeObject
from framework.testing.fakes.memory_iggy import MemoryIggy
from tests.support.positions import kinds, loaded, position, session_of


def test_a_snapshot_holds_no_position_of_records_that_are_confirmed_and_not_delivered(monkeypatch):
    """It may be due before the first flush, which looks for such damage."""

    def torn(*_place):
        raise PositionError("it confirms and does not deliver")

    server = MemoryIggy()
    session = session_of(server)
    session.open_partitions()
    entry = position("a", 2, records_saved=0)
    native = NativeObject(scheme="memory", bucket="bucket", key="a", size=4, version="v1", modified_ms=1000)
    session.offsets.add_entry(entry.changed(records_done=0))
    session.offsets.store_begun()
    batch = RecordBatch(
        native=native,
        topic_partition=entry.topic_partition,
        first_record=1,
        payloads=[b"1", b"2"],
        size_bytes=2,
        entry=entry,
    )
    session.offsets.commit(session.producer().send(entry.topic_partition, [batch]).result(60))
    monkeypatch.setattr("framework.iggy.sender.check_delivered", torn)
    with pytest.raises(PositionError, match="does not deliver"):
        session.write_snapshot()
    assert "snapshot" not in kinds(server)
    assert loaded(server).anchors == {}
    session.close()
