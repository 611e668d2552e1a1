"""What a standby sees: whose connection the server lists, of those that claimed the source in the log."""

import pytest

from framework.errors import PositionError
from framework.iggy.offset_log import codec
from framework.iggy.offset_log.records import Claim, SnapshotFooter
from framework.iggy.offset_log.running_instances import RunningInstances
from framework.offsets.position_map import position_map
from framework.testing.fakes.memory_iggy import MemoryIggy
from framework.testing.options import source_config
from tests.support.positions import LOG, epoch_of, kinds, log_over, server_with_log


@pytest.fixture
def clock(monkeypatch):
    """Each look at the time takes two seconds."""
    times = iter(range(100, 1000, 2))
    monkeypatch.setattr("framework.iggy.offset_log.running_instances.time.monotonic", lambda: float(next(times)))


def standby(server):
    return RunningInstances(server.connect(), source_config())


def claim_of(connection, epoch, *, leader=True):
    client = connection.own_client()
    address = (client.client_id, client.address)
    return Claim(epoch=epoch, host="elsewhere", process=7, leader=leader, client=address, token=f"token {epoch}")


def claims(connection, epoch, *, leader=True, source="kit"):
    """An instance claims the source over its connection."""
    log_over(connection, source).append(codec.encode_claim(source, claim_of(connection, epoch, leader=leader)))


def test_before_there_is_a_log_no_instance_runs():
    server = MemoryIggy()
    instances = standby(server)
    assert (instances.look(), instances.claimed_before, instances.load_seconds) == (None, False, 0.0)
    connection = server.connect()
    connection.ensure_stream("kit")
    server.make_topic("kit", LOG, 1)
    assert (instances.look(), instances.claimed_before) == (None, False)
    claims(connection, 1)
    assert instances.look().epoch == 1


def test_an_instance_is_seen_as_long_as_the_server_lists_its_connection(clock):
    server = server_with_log()
    log, epoch = epoch_of(server)
    before = kinds(server)
    instances = standby(server)
    for _ in range(2):
        assert instances.look().token == epoch.claim.token
        assert (instances.claimed_before, instances.load_seconds) == (True, 2.0)
    log.connection.close()
    for _ in range(2):
        assert (instances.look(), instances.claimed_before, instances.load_seconds) == (None, True, 2.0)
    assert kinds(server) == before, "a standby writes nothing"


def test_a_later_look_reads_only_what_is_new_in_the_log(monkeypatch):
    server = server_with_log()
    epoch_of(server)
    connection, polled = server.connect(), []
    instances = RunningInstances(connection, source_config())
    instances.look()
    poll = connection.poll
    monkeypatch.setattr(
        connection,
        "poll",
        lambda *place, offset, count: polled.append(offset) or poll(*place, offset=offset, count=count),
    )
    assert instances.look() is not None
    assert set(polled) == {len(kinds(server))}


def test_an_instance_that_has_gone_before_the_first_look_has_run():
    server = server_with_log()
    log, _ = epoch_of(server)
    log.connection.close()
    instances = standby(server)
    assert (instances.look(), instances.claimed_before) == (None, True)


def test_a_log_whose_snapshot_names_no_claim_is_of_a_source_that_has_run():
    instances = standby(
        server_with_log(*codec.encode_snapshot("kit", 1, position_map().view(), SnapshotFooter(), number=1, at=0))
    )
    assert (instances.look(), instances.claimed_before) == (None, True)


def test_an_instance_that_claims_later_is_seen_and_others_sources_are_not():
    server = server_with_log()
    instances = standby(server)
    claims(server.connect(), 1, source="another")
    assert instances.look() is None
    connection = server.connect()
    claims(connection, 1)
    assert (instances.look().epoch, instances.claimed_before) == (1, True)
    connection.close()
    assert (instances.look(), instances.claimed_before) == (None, True)


def test_an_instance_that_began_and_ended_between_two_looks_has_run():
    server = server_with_log()
    instances = standby(server)
    assert (instances.look(), instances.claimed_before) == (None, False)
    connection = server.connect()
    claims(connection, 1)
    connection.close()
    assert (instances.look(), instances.claimed_before) == (None, True)


def test_of_several_the_leader_of_the_newest_epoch_is_named():
    server = server_with_log()
    instances = standby(server)
    for epoch, leader in ((1, True), (2, True), (3, False)):
        claims(server.connect(), epoch, leader=leader)
    assert instances.look().epoch == 2
    claims(server.connect(), 4)
    claims(server.connect(), 5, leader=False)
    assert instances.look().epoch == 4


def test_a_log_that_cannot_be_read_is_an_error():
    server = server_with_log()
    claims(server.connect(), 1)
    server.rewrite("kit", LOG, 0, lambda payload: payload.replace(b'"epoch":1', b'"epoch":"one"'))
    with pytest.raises(PositionError):
        standby(server).look()
