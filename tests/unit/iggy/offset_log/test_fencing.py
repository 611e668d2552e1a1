"""One writer at a time: who begins looks who runs, claims, waits until every predecessor is gone, and opens; on a fake clock."""

import logging
import os
import socket

import pytest
from msgspec.structs import replace

from framework.engine.session import Session
from framework.errors import (
    IggyAuthError,
    IggyProtocolError,
    IggyUnavailableError,
    PositionError,
    SourceRunningError,
    SourceTakenOverError,
    UnknownOutcomeError,
)
from framework.iggy.offset_log import codec, fencing, framing
from framework.iggy.offset_log.fencing import (
    FENCE_SECONDS,
    LEASE_SECONDS,
    LOOK_SECONDS,
    Waiting,
    begin_epoch,
    check_alone,
    claim_partitions,
    make_claim,
    wait_until_gone,
)
from framework.iggy.offset_log.loading import load
from framework.iggy.offset_log.records import Claim, PartitionOpening, Progress, TopicIdentity
from framework.iggy.values import StoredMessage
from framework.model.objects import TopicPartition
from framework.testing.clock import FakeClock
from framework.testing.options import source_config
from tests.support.positions import (
    LOG,
    Source,
    as_saved,
    epoch_of,
    kinds,
    loaded,
    log_over,
    position,
    records,
    server_with_log,
)

PARTITIONS = [TopicPartition("records", 0), TopicPartition("records", 1)]


def waiting(clock=None, on_sleep=None):
    """Waits that take no time; told of each."""
    clock = clock or FakeClock()

    def sleep(seconds):
        clock.sleep(seconds)
        if on_sleep is not None:
            on_sleep()

    return Waiting(clock=clock, sleep=sleep)


def claim_of(connection, epoch=1, *, host="elsewhere", process=7, leader=True, partitions=(), token="theirs"):
    client = connection.own_client()
    return Claim(
        epoch=epoch,
        host=host,
        process=process,
        leader=leader,
        client=(client.client_id, client.address),
        token=token,
        partitions=tuple(partitions),
    )


def at_work(server, **values):
    """Another instance: its connection, with its claim in the log."""
    connection = server.connect()
    log_over(connection).append(codec.encode_claim("kit", claim_of(connection, **values)))
    return connection


def claims_in(server):
    return [codec.decode_claim(record) for record in records(server) if record.kind == "claim"]


# ---- the first, and the next


def test_the_first_epoch_is_claimed_by_this_process_and_opened():
    server = server_with_log()
    log, epoch = epoch_of(server)
    (claim,) = claims_in(server)
    client = log.connection.own_client()
    assert claim.at_us == records(server)[0].timestamp_us == epoch.claim.at_us == epoch.state.now_us
    assert replace(claim, token="", at_us=0) == Claim(
        epoch=1,
        host=socket.gethostname(),
        process=os.getpid(),
        leader=True,
        client=(client.client_id, client.address),
        token="",
    )
    assert (epoch.number, epoch.claimed_at, epoch.claim.token) == (1, 0, claim.token)
    assert len(claim.token) == 16
    assert kinds(server) == ["claim", "opening"]
    assert codec.decode_opening(records(server)[1]) == 0
    assert (epoch.state.epoch, epoch.state.last_epoch) == (1, 1)
    assert [one.token for one in epoch.state.claims.values()] == [claim.token]


@pytest.mark.parametrize("given", [[], [StoredMessage(offset=1, message_id=1, payload=b"of another")]])
def test_a_log_that_takes_a_claim_and_does_not_give_it_is_damaged(given, monkeypatch):
    """As a segment with a torn batch does, which a real server can have after a kill."""
    server = server_with_log()
    log = log_over(server.connect())
    poll = log.connection.poll

    def torn(*place, offset, count):
        return given if poll(*place, offset=offset, count=count) else []

    monkeypatch.setattr(log.connection, "poll", torn)
    with pytest.raises(PositionError, match=r"reports a message at offset 0, and does not return it.* damaged"):
        begin_epoch(log, waiting=waiting())


@pytest.mark.parametrize("left", ["nothing", "an earlier epoch"])
def test_a_log_without_an_epoch_that_this_process_has_led_was_lost(left):
    """The whole stream was deleted, or an old backup restored: to begin from there would send everything again."""
    server = server_with_log()
    if left == "an earlier epoch":
        epoch_of(server)[0].connection.close()
    before = len(records(server))
    log = log_over(server.connect())
    with pytest.raises(PositionError, match=rf'"{LOG}" of stream "kit" was purged, deleted, .*offsets reset --all'):
        begin_epoch(log, own_epochs={1, 2}, waiting=waiting())
    assert len(records(server)) == before
    assert begin_epoch(log, own_epochs={1} if before else (), waiting=waiting()).number == 1 + bool(before)


def test_the_next_epoch_is_higher_than_any_that_was_claimed_and_forgets_who_is_gone():
    server = server_with_log()
    epoch_of(server)[0].connection.close()
    at_work(server, epoch=7).close()
    log, epoch = epoch_of(server)
    assert epoch.number == 8
    assert [record.epoch for record in records(server)] == [1, 1, 7, 8, 8]
    state = loaded(server)
    assert list(state.claims) == list(epoch.state.claims) == [3]
    assert (state.epoch, state.last_epoch) == (8, 8)
    log.connection.close()


def test_who_owned_partitions_owns_none_when_the_next_epoch_is_open():
    server = server_with_log()
    log, epoch = epoch_of(server)
    opening = PartitionOpening(
        topic_partition=PARTITIONS[0], topic=TopicIdentity(topic_id=1, created_at=2), anchor=None
    )
    log.append(codec.encode_open("kit", 1, "w", [opening]))
    log.connection.close()
    log, epoch = epoch_of(server)
    assert epoch.state.owners == loaded(server).owners == {}
    assert epoch.state.topics == {PARTITIONS[0]: opening.topic}


def test_two_claims_never_have_one_token():
    assert len({make_claim(1, (1, "a"), leader=True).token for _ in range(100)}) == 100


# ---- look


def test_another_instance_that_is_alive_is_named_and_nothing_is_written():
    server = server_with_log()
    at_work(server, epoch=1).close()
    other = at_work(server, epoch=3)
    before, clock = server.messages("kit", LOG), FakeClock()
    said = r'"kit" is running already, on elsewhere \(process 7, since 20.*\); stop that one first.*--take-over'
    with pytest.raises(SourceRunningError, match=said):
        begin_epoch(log_over(server.connect()), waiting=waiting(clock))
    assert server.messages("kit", LOG) == before
    assert sum(clock.waits) == pytest.approx(LOOK_SECONDS, abs=0.5)
    assert clock.waits[:7] == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5]
    assert set(clock.waits[6:]) == {0.5}
    other.close()
    clock.waits.clear()
    assert begin_epoch(log_over(server.connect()), waiting=waiting(clock)).number == 4
    assert clock.waits == []


def test_a_worker_that_is_alive_is_named_too():
    server = server_with_log()
    at_work(server, epoch=3, leader=False)
    with pytest.raises(SourceRunningError, match="on elsewhere"):
        begin_epoch(log_over(server.connect()), own_epochs={2}, waiting=waiting())


def test_one_that_leaves_while_it_is_looked_at_is_waited_for():
    server = server_with_log()
    other, clock = at_work(server), FakeClock()
    epoch = begin_epoch(
        log_over(server.connect()), waiting=waiting(clock, lambda: len(clock.waits) > 4 and other.close())
    )
    assert (epoch.number, len(clock.waits)) == (2, 5)


def test_a_long_wait_is_told_once_and_a_short_one_is_not(caplog):
    server = server_with_log()
    connection = server.connect()
    assert wait_until_gone(server.connect(), [claim_of(connection)], 10.0, waiting()) is not None
    (record,) = caplog.records
    assert record.getMessage() == f"waiting up to 10 seconds for the end of the instance on {claim_of(connection).who}"
    caplog.clear()
    clock = FakeClock()
    brief = waiting(clock, lambda: len(clock.waits) > 4 and connection.close())
    assert wait_until_gone(server.connect(), [claim_of(connection)], 10.0, brief) is None
    assert not caplog.records


def test_a_connection_with_the_same_number_or_the_same_address_is_another_one():
    """Numbers begin again when the server restarts."""
    server = server_with_log()
    connection = server.connect()
    number, address = connection.own_client().client_id, connection.own_client().address
    for client in ((number, "10.0.0.1:1"), (number + 99, address)):
        claim = replace(claim_of(connection), client=client)
        assert wait_until_gone(server.connect(), [claim], 1.0, waiting()) is None
    assert wait_until_gone(server.connect(), [claim_of(connection)], 1.0, waiting()) == claim_of(connection)


def test_both_connections_of_a_claim_are_waited_for():
    server = server_with_log()
    one, beside = server.connect(), server.connect()
    claim = replace(claim_of(one), sending=beside.own_client().identity)
    one.close()
    assert wait_until_gone(server.connect(), [claim], 1.0, waiting()) == claim
    beside.close()
    assert wait_until_gone(server.connect(), [claim], 1.0, waiting()) is None


def test_a_claim_names_the_connection_that_sends(monkeypatch):
    server = server_with_log()
    one, beside = server.connect(), server.connect()
    monkeypatch.setattr(one, "own_clients", lambda: (one.own_client(), beside.own_client()))
    epoch = begin_epoch(log_over(one), waiting=waiting())
    assert (epoch.claim.client, epoch.claim.sending) == (one.client.identity, beside.client.identity)
    (read,) = load(log_over(server.connect())).claims.values()
    assert read == epoch.claim
    worker = server.connect()
    monkeypatch.setattr(worker, "own_clients", lambda: (worker.own_client(), beside.own_client()))
    claim = claim_partitions(log_over(worker), load(log_over(worker)), 1, [], waiting=waiting())
    assert (claim.client, claim.sending) == (worker.client.identity, beside.client.identity)


def test_ones_own_connection_is_not_waited_for():
    server = server_with_log()
    connection = server.connect()
    assert wait_until_gone(connection, [claim_of(connection)], 1.0, waiting()) is None


def test_of_several_the_one_with_the_lowest_number_is_named_and_all_are_waited_for():
    server = server_with_log()
    others = [server.connect() for _ in range(3)]
    claims = [claim_of(one, host=f"host {at}") for at, one in enumerate(others)]
    assert wait_until_gone(server.connect(), reversed(claims), 1.0, waiting()).host == "host 0"
    others[0].close()
    assert wait_until_gone(server.connect(), claims, 1.0, waiting()).host == "host 1"
    clock = FakeClock()
    assert wait_until_gone(server.connect(), claims, 0.0, waiting(clock)).host == "host 1"
    assert clock.waits == [], "it is looked at once"
    for one in others:
        one.close()
    assert wait_until_gone(server.connect(), claims, 1.0, waiting()) is None


def test_an_earlier_connection_of_this_process_is_worth_another_try():
    server = server_with_log()
    epoch_of(server)
    with pytest.raises(IggyUnavailableError, match=r'earlier connection of this process; source "kit" waits'):
        begin_epoch(log_over(server.connect()), waiting=waiting())


@pytest.mark.parametrize(
    ("host", "further"),
    [
        ("elsewhere", 0),
        (socket.gethostname(), 1),
        (socket.gethostname(), 0),  # process 1 of another container, on the network of the same host
    ],
    ids=["host", "process", "token"],
)
def test_another_process_is_not_taken_for_this_one(host, further):
    server = server_with_log()
    at_work(server, host=host, process=os.getpid() + further)
    with pytest.raises(SourceRunningError):
        begin_epoch(log_over(server.connect()), waiting=waiting())


def test_a_lost_worker_of_this_process_is_waited_for_wherever_it_ran():
    server = server_with_log()
    at_work(server, epoch=1).close()
    at_work(server, epoch=3, leader=False)
    with pytest.raises(IggyUnavailableError, match=r"worker that was lost, on elsewhere \(process 7.*may still send"):
        begin_epoch(log_over(server.connect()), own_epochs={3}, waiting=waiting())
    server = server_with_log()
    at_work(server, epoch=1).close()
    at_work(server, epoch=3, leader=True)
    with pytest.raises(SourceRunningError):
        begin_epoch(log_over(server.connect()), own_epochs={3}, waiting=waiting())


@pytest.mark.parametrize(
    ("led", "code", "text"),
    [({1}, 3, "was taken over by an instance on elsewhere"), ((), 1, "is running already, on elsewhere")],
)
def test_who_was_away_while_another_one_took_over_is_not_started_again(led, code, text):
    """A host that slept for a minute, and connects again."""
    server = server_with_log()
    at_work(server, epoch=1).close()
    at_work(server, epoch=2)
    before = len(records(server))
    with pytest.raises(SourceRunningError, match=text) as caught:
        begin_epoch(log_over(server.connect()), own_epochs=led, waiting=waiting())
    assert caught.value.exit_code == code
    assert len(records(server)) == before


def test_a_second_instance_displaces_nobody():
    source = Source({"a": 3}, partitions=1)
    source.live()
    running = Session.begin(source.server.connect(), source.bench.config)
    before = source.server.messages("kit", LOG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fencing, "LOOK_SECONDS", 0.0)
        with pytest.raises(IggyUnavailableError, match="earlier connection of this process"):
            Session.begin(source.server.connect(), source.bench.config)
    assert source.server.messages("kit", LOG) == before
    running.follow()


# ---- claim and fence


def test_what_is_wrong_with_the_data_is_told_before_anything_is_written():
    server = server_with_log()
    epoch_of(server)[0].connection.close()
    before, seen = server.messages("kit", LOG), []

    def check(state):
        seen.append(state.last_epoch)
        raise PositionError("no")

    with pytest.raises(PositionError, match=r"^no$"):
        begin_epoch(log_over(server.connect()), check=check, waiting=waiting())
    assert server.messages("kit", LOG) == before
    assert seen == [1]


def test_who_is_told_to_take_over_claims_at_once_and_waits_for_the_lease():
    server = server_with_log()
    other, clock = at_work(server), FakeClock()

    def leave():
        if sum(clock.waits) >= LEASE_SECONDS:
            other.close()

    epoch = begin_epoch(log_over(server.connect()), take_over=True, waiting=waiting(clock, leave))
    assert epoch.number == 2
    assert [claim.epoch for claim in claims_in(server)] == [1, 2]
    assert LEASE_SECONDS <= sum(clock.waits) < FENCE_SECONDS


def test_who_does_not_leave_when_it_is_taken_over_keeps_its_place():
    server = server_with_log()
    at_work(server)
    clock = FakeClock()
    with pytest.raises(SourceRunningError, match=r"on elsewhere.* restart Iggy"):
        begin_epoch(log_over(server.connect()), take_over=True, waiting=waiting(clock))
    assert sum(clock.waits) == pytest.approx(FENCE_SECONDS, abs=0.5)
    assert kinds(server) == ["claim", "claim"], "it was not opened"


def events(server, name, *actions):
    """Each of these happens once, at one of the next events of that name each."""
    left = list(actions)

    def happens(event):
        if event == name and left:
            action = left.pop(0)
            server.on_event, mine = None, server.on_event
            action()
            server.on_event = mine

    server.on_event = happens


def test_a_worker_that_claimed_while_the_next_leader_looked_is_fenced():
    server = server_with_log()
    epoch_of(server)[0].connection.close()
    late, clock = [], FakeClock()
    events(server, "append", lambda: late.append(at_work(server, epoch=1, leader=False, partitions=PARTITIONS)))
    epoch = begin_epoch(
        log_over(server.connect()), waiting=waiting(clock, lambda: len(clock.waits) == 3 and late[0].close())
    )
    assert (epoch.number, len(clock.waits)) == (2, 3)
    assert [claim.leader for claim in claims_in(server)] == [True, False, True]


def test_who_claims_behind_the_leader_is_not_waited_for():
    server = server_with_log()
    epoch_of(server)[0].connection.close()
    clock = FakeClock()
    events(server, "appended", lambda: at_work(server, epoch=1, leader=False, partitions=PARTITIONS))
    assert begin_epoch(log_over(server.connect()), waiting=waiting(clock)).number == 2
    assert clock.waits == []


def test_of_two_that_start_at_the_same_moment_the_first_claim_wins():
    server = server_with_log()
    epoch_of(server)[0].connection.close()
    first = []
    events(server, "append", lambda: first.append(begin_epoch(log_over(server.connect()), waiting=waiting())))
    with pytest.raises(SourceRunningError, match=r'"kit" was started at the same moment on .*, which was first'):
        begin_epoch(log_over(server.connect()), waiting=waiting())
    server.on_event = None
    assert first[0].number == 2
    assert [claim.epoch for claim in claims_in(server)] == [1, 2, 2]


def test_the_second_claim_of_two_does_not_disturb_the_first():
    server = server_with_log()
    loser = server.connect()
    events(server, "appended", lambda: log_over(loser).append(codec.encode_claim("kit", claim_of(loser, epoch=1))))
    log = log_over(server.connect())
    epoch = begin_epoch(log, waiting=waiting())
    server.on_event = None
    epoch.open(log)
    assert [record.kind for record in records(server)] == ["claim", "claim", "opening"]
    assert list(loaded(server).claims) == [0, 1], "the loser's connection is no predecessor's"


def test_a_late_claim_of_a_lost_worker_takes_nothing_over():
    """It was on its way while the topic was deleted and created again, so it names an epoch of the former log."""
    server = server_with_log()
    events(server, "append", lambda: at_work(server, epoch=5, leader=False, partitions=PARTITIONS).close())
    assert begin_epoch(log_over(server.connect()), waiting=waiting()).number == 1
    assert [claim.epoch for claim in claims_in(server)] == [5, 1]


def test_who_is_taken_over_before_it_has_opened_ends():
    server = server_with_log()
    other, clock = at_work(server), FakeClock()

    def third():
        if len(clock.waits) == 3:
            at_work(server, epoch=3, host="third")
            other.close()

    with pytest.raises(SourceTakenOverError, match=r'"kit" was taken over by an instance on third'):
        begin_epoch(log_over(server.connect()), take_over=True, waiting=waiting(clock, third))
    assert "opening" not in kinds(server)


def test_what_a_predecessor_saved_until_its_end_is_in_the_state():
    """Its snapshot too, which a plain reading on would not take in: a reset by hand, for example."""
    server = server_with_log()
    log, _ = epoch_of(server)
    log.append(codec.encode_begin("kit", 1, [position("a"), position("b")]))
    clock, seen = FakeClock(), []

    def go_on():
        if len(clock.waits) == 2:
            at = log.append(codec.encode_begin("kit", 1, [position("c")])) + 1
            state = load(log_over(server.connect()))
            state.positions.remove_object(position("b").get_manager_key())
            payloads = codec.encode_snapshot("kit", 1, state.positions.view(), state.footer(), number=1, at=at)
            for payload in payloads:
                log.append(payload)
            at_work(server, epoch=1, leader=False).close()  # a claim at the end hides nothing
            log.connection.close()

    found = begin_epoch(
        log_over(server.connect()),
        take_over=True,
        check=lambda state: seen.append(sorted(key for key, _ in as_saved(state))),
        waiting=waiting(clock, go_on),
    )
    assert sorted(key for key, _ in as_saved(found.state)) == ["a", "c"]
    assert found.state.positions.floor == 1
    assert seen == [["a", "b"], ["a", "c"]]
    assert (found.number, found.state.claims[found.claimed_at].token) == (2, found.claim.token)


def test_who_is_taken_over_while_the_log_is_read_again_ends(monkeypatch):
    """The claim is in the state that was read again, so whoever follows the log from there does not see it."""
    server = server_with_log()
    log, _ = epoch_of(server)
    loads = []

    def go_on():
        if not loads[1:]:
            log.append(codec.encode_begin("kit", 1, [position("a")]))
            log.connection.close()

    def noted(offset_log):
        loads.append(offset_log)
        if len(loads) == 2:
            at_work(server, epoch=3, host="third")
        return load(offset_log)

    monkeypatch.setattr(fencing, "load", noted)
    with pytest.raises(SourceTakenOverError, match=r'"kit" was taken over by an instance on third'):
        begin_epoch(log_over(server.connect()), take_over=True, waiting=waiting(on_sleep=go_on))
    assert len(loads) == 2


def test_when_nobody_went_on_the_log_is_read_once(monkeypatch):
    server = server_with_log()
    epoch_of(server)[0].connection.close()
    loads = []
    monkeypatch.setattr(fencing, "load", lambda log: loads.append(log) or load(log))
    events(server, "append", lambda: at_work(server, epoch=1, leader=False).close())
    assert begin_epoch(log_over(server.connect()), waiting=waiting()).number == 2
    assert len(loads) == 1, "a claim alone changes nothing"


# ---- workers


@pytest.fixture
def led():
    """A server, and the epoch of a leader at work."""
    server = server_with_log()
    log, epoch = epoch_of(server)
    yield server, log, epoch
    log.connection.close()


def worker_log(server):
    return log_over(server.connect())


def claimed(server, state=None, epoch=1, topic_partitions=PARTITIONS, **how):
    log = worker_log(server)
    found = state or load(log)
    return claim_partitions(log, found, epoch, topic_partitions, waiting=waiting(**how))


def test_a_worker_claims_its_partitions_beside_its_leader(led):
    server, _, epoch = led
    clock = FakeClock()
    claim = claimed(server, clock=clock)
    assert clock.waits == []
    assert replace(claims_in(server)[-1], at_us=0) == claim
    assert (claim.epoch, claim.leader, claim.partitions, claim.process) == (1, False, tuple(PARTITIONS), os.getpid())
    assert claim.token != epoch.claim.token


@pytest.mark.parametrize(
    ("partitions", "epoch", "leader", "waits"),
    [
        (PARTITIONS[:1], 1, False, True),
        (PARTITIONS, 1, False, True),
        ([TopicPartition("records", 2)], 1, False, False),
        ([TopicPartition("other", 0)], 1, False, False),
        ((), 1, False, False),
        (PARTITIONS, 0, False, False),
        (PARTITIONS, 1, True, False),
    ],
    ids=str,
)
def test_a_worker_waits_for_an_earlier_one_of_its_epoch_that_wants_one_of_its_partitions(
    led, partitions, epoch, leader, waits
):
    server = led[0]
    clock = FakeClock()
    earlier = at_work(server, epoch=epoch, leader=leader, partitions=partitions)
    claimed(server, clock=clock, on_sleep=lambda: len(clock.waits) == 2 and earlier.close())
    assert len(clock.waits) == (2 if waits else 0)


def test_a_worker_whose_predecessor_stays_ends(led):
    at_work(led[0], leader=False, partitions=PARTITIONS)
    clock = FakeClock()
    with pytest.raises(UnknownOutcomeError, match=r"worker that was lost, on elsewhere \(process 7"):
        claimed(led[0], clock=clock)
    assert sum(clock.waits) == pytest.approx(FENCE_SECONDS, abs=0.5)


def test_a_worker_that_claims_later_is_not_waited_for(led):
    server, clock = led[0], FakeClock()
    events(server, "appended", lambda: at_work(server, leader=False, partitions=PARTITIONS))
    claimed(server, clock=clock)
    assert clock.waits == []


def test_a_worker_that_begins_when_its_epoch_is_over_sends_nothing(led):
    server, log, _ = led
    state = loaded(server)
    log.connection.close()
    epoch_of(server)
    with pytest.raises(UnknownOutcomeError, match=r'another epoch of source "kit" began before this worker did'):
        claimed(server, state)


def test_a_worker_whose_log_was_replaced_sends_nothing(led):
    server, log, _ = led
    state, behind = loaded(server), worker_log(server)
    list(behind.follow())
    for _ in range(2):
        server.delete_topic("kit", LOG)
        log.connection.create_topic("kit", LOG, 1)
        with pytest.raises(PositionError, match=rf'"{LOG}" of stream "kit" was purged, deleted, .*offset 0'):
            claim_partitions(behind, state, 1, PARTITIONS, waiting=waiting())


def test_a_worker_that_waits_while_its_epoch_ends_sends_nothing(led):
    server, clock = led[0], FakeClock()
    earlier = at_work(server, leader=False, partitions=PARTITIONS)

    def over():
        if len(clock.waits) == 2:
            at_work(server, epoch=2)
            earlier.close()

    with pytest.raises(UnknownOutcomeError, match="another epoch"):
        claimed(server, clock=clock, on_sleep=over)


def test_a_worker_takes_in_what_was_written_until_its_claim_and_while_it_waited(led):
    server, log, _ = led
    state, clock = loaded(server), FakeClock()
    behind = worker_log(server)
    list(behind.follow())
    log.append(codec.encode_begin("kit", 1, [position("a")]))
    earlier = at_work(server, leader=False, partitions=PARTITIONS)

    def more():
        if len(clock.waits) == 1:
            log.append(codec.encode_begin("kit", 1, [position("b")]))
            earlier.close()

    claim_partitions(behind, state, 1, PARTITIONS, waiting=waiting(clock, more))
    assert as_saved(state).keys() == {("a", 0), ("b", 0)}


# ---- taken over


@pytest.mark.parametrize(
    ("kind", "epoch", "leader", "ends"),
    [
        ("claim", 3, True, True),
        ("claim", 3, False, False),
        ("claim", 2, True, False),
        ("claim", 1, True, False),
        ("opening", 3, True, True),
        ("opening", 2, True, False),
        ("progress", 3, True, False),
    ],
)
def test_a_leader_ends_when_a_later_epoch_is_claimed_or_open(kind, epoch, leader, ends):
    server = server_with_log()
    payload = {
        "claim": codec.encode_claim("kit", claim_of(server.connect(), epoch=epoch, leader=leader)),
        "opening": codec.encode_opening("kit", epoch, fenced=0),
        "progress": codec.encode_progress("kit", epoch, "w", Progress()),
    }[kind]
    message = framing.decode(0, payload)
    if not ends:
        check_alone("kit", 2, message)
        return
    where = r"on elsewhere \(process 7\)" if kind == "claim" else "somewhere else"
    with pytest.raises(SourceTakenOverError, match=rf'"kit" was taken over by an instance {where}, so this one ends'):
        check_alone("kit", 2, message)


def test_a_session_ends_when_it_reads_that_it_was_taken_over():
    server = server_with_log()
    session = Session.begin(server.connect(), source_config())
    session.follow()
    at_work(server, epoch=2, leader=False)
    session.follow()
    at_work(server, epoch=2)
    with pytest.raises(SourceTakenOverError):
        session.follow()


# ---- the lease


class Joining:
    """What joins a group, or may not."""

    def __init__(self, error=None):
        self.error = error
        self.joined = []

    def open_sending(self):
        self.joined.append("opened")

    def join_group(self, *names):
        self.joined.append(names)
        if self.error is not None:
            raise self.error


def test_who_claims_joins_a_group_by_which_the_server_drops_the_silent(monkeypatch):
    server, connection = server_with_log(), Joining()
    fencing.lease(log_over(connection))
    fencing.lease(log_over(connection, source="s" * 99))
    assert connection.joined == [
        "opened",
        ("kit", LOG, "lease of kit"),
        "opened",
        ("kit", LOG, "lease of " + "s" * 51),
    ]
    joined = []
    one = server.connect()
    monkeypatch.setattr(one, "join_group", lambda *names: joined.append((names, kinds(server))))
    begin_epoch(log_over(one), waiting=waiting())
    assert joined == [(("kit", LOG, "lease of kit"), [])], "before anything is written"
    other = server.connect()
    monkeypatch.setattr(other, "join_group", lambda *names: joined.append(names))
    claim_partitions(log_over(other), loaded(server), 1, PARTITIONS, waiting=waiting())
    assert joined[1] == ("kit", LOG, "lease of kit")


@pytest.mark.parametrize(
    ("error", "level", "text"),
    [
        (
            IggyAuthError("may not"),
            logging.WARNING,
            "Iggy will not notice by itself when this host falls silent: may not",
        ),
        (IggyProtocolError("no groups"), logging.DEBUG, "no lease: no groups"),
    ],
)
def test_a_server_that_has_no_groups_or_a_user_who_may_not_join_goes_without(error, level, text, caplog):
    with caplog.at_level(logging.DEBUG):
        fencing.lease(log_over(Joining(error)))
    (said,) = caplog.records
    assert (said.levelno, said.getMessage()) == (level, text)


def test_a_process_that_makes_claims_for_months_keeps_the_last_ones():
    """A Python worker of Spark is used for job after job."""
    for _ in range(3000):
        last = make_claim(1, (1, "a"), leader=False)
    assert len(fencing._OWN_TOKENS) == 1000
    assert fencing._OWN_TOKENS[-1] == last.token
