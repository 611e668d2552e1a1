"""Recovery over an Iggy in memory: whatever a crash or a server's loss leaves behind, every record is there once."""

import collections
import random

import attrs
import pytest

from framework.engine.session import Session
from framework.errors import IggyUnavailableError, PositionError, SourceRunningError, UnknownOutcomeError
from framework.ids import message_id, object_hash64
from framework.iggy import lane_history, log_codec, recovery
from framework.iggy.checkpoints import CheckpointLoader
from framework.iggy.log_codec import Claim
from framework.iggy.position_log import PositionLog, arrange
from framework.iggy.recovery import Recovery, fence
from framework.offsets import OffsetManagerEntry, PositionDelta
from framework.past_listing import PastListing, TailMark
from framework.records import Anchor, Lane
from framework.testing.clock import FakeClock
from framework.testing.crash import Bench, CrashPoint
from framework.testing.memory_iggy import MemoryIggy
from framework.testing.options import source_config
from tests.conformance.rigs import MemoryRig
from tests.support.core import lines, put_lines

LOG = "kit-offsets"


class Source:
    """Objects in a store, and processes over one server."""

    def __init__(self, counts=None, **options):
        self.rig = MemoryRig()
        self.expected = {}
        for name, count in (counts or {"a": 5, "b": 7, "c": 11}).items():
            put_lines(self.rig.store, name, count)
            self.expected[name] = lines(name, count)
        options = {"batch_length": 4, "queue_records": 13, "linger_time": 0.0, "fetch_ahead": 2, **options}
        self.bench = Bench(self.rig, **options)

    @property
    def server(self):
        return self.bench.server

    def live(self, at=None):
        crash = CrashPoint(at)
        self.entries = {entry.key: entry for entry in self.bench.live(crash)}
        return crash

    def payloads(self):
        """Every payload in the data topic, with how often it is there."""
        config = self.bench.config
        found = collections.Counter()
        for partition in range(config.iggy.partitions):
            found.update(m.payload for m in self.server.messages("kit", "records", partition))
        return found

    def once(self):
        return collections.Counter(line for some in self.expected.values() for line in some)

    def check(self):
        assert self.payloads() == self.once()
        assert all(entry.finished for entry in self.entries.values())
        assert set(self.entries) == set(self.expected)


def events_of(**options):
    return len(Source(**options).live().events)


# ---- crashes at every event


def test_without_headers_a_replay_finds_the_records_by_their_ids():
    for at in range(1, events_of(headers="none") + 1):
        source = Source(headers="none")
        source.live(at)
        source.live()
        source.check()


def bad_lines(store):
    """An object whose second, third and last line are bad, and one that is all bad."""
    good = lines("bad", 9)
    store.put("bad", b"\n".join([good[0], b"-", b"-", *good[1:], b"-"]))
    store.put("worse", b"-\n-\n-\n")
    return good


@pytest.mark.parametrize("batch_length", [2, 4])
def test_skipped_records_are_neither_lost_nor_sent(batch_length):
    def source_with_bad_lines():
        source = Source({"a": 3}, tolerance="skip_record", batch_length=batch_length)
        source.expected["bad"] = bad_lines(source.rig.store)
        source.expected["worse"] = []
        return source

    for at in range(1, len(source_with_bad_lines().live().events) + 1):
        source = source_with_bad_lines()
        source.live(at)
        source.live()
        source.check()
        assert source.entries["bad"].records_done == 12


def test_a_server_that_forgets_its_tail_at_the_crash_gets_it_again():
    for at in range(5, events_of(partitions=1) + 1, 3):
        for lost in (1, 3, 6):
            source = Source(partitions=1)
            source.live(at)
            held = len(source.server.messages("kit", "records", 0)) if source.server.topic_info("kit", "records") else 0
            if held:
                source.server.lose_tail("kit", "records", 0, min(lost, held))
            source.live()
            source.check()


def test_after_a_crash_without_headers_and_a_lost_tail_everything_is_there_once():
    for at in range(8, events_of(partitions=1, headers="none") + 1, 5):
        source = Source(partitions=1, headers="none")
        source.live(at)
        held = len(source.server.messages("kit", "records", 0))
        source.server.lose_tail("kit", "records", 0, min(2, held))
        source.live()
        source.check()


def test_three_crashes_in_a_row():
    total = events_of()
    for at in range(3, total + 1, 4):
        source = Source()
        for step in (0, 5, 9):
            source.live((at + step) % total + 1)
        source.live()
        source.check()


def test_an_object_overwritten_between_two_runs_is_sent_in_both_versions():
    source = Source({"a": 5, "b": 3})
    source.live(30)
    first = source.payloads()
    put_lines(source.rig.store, "a", 6)
    source.live()
    assert source.payloads() - first == collections.Counter(lines("a", 6)) + (
        collections.Counter(lines("b", 3)) - first
    )


# ---- snapshots while running, and losses that reach behind several of them


@pytest.fixture
def many_snapshots(monkeypatch):
    """A snapshot of several parts as often as can be, with deltas between its parts."""
    monkeypatch.setattr("framework.engine.snapshots.SNAPSHOT_DELTAS", 1)
    monkeypatch.setattr("framework.engine.snapshots.PAUSE_PARTS", 0)
    monkeypatch.setattr("framework.iggy.log_codec.PART_BYTES", 300)
    monkeypatch.setattr("framework.iggy.log_codec.positions_bytes", lambda count: 0)


MANY = {"a": 5, "b": 7, "c": 11, **{f"d{number}": 2 for number in range(6)}}


def log_of(source):
    return [log_codec.decode(m.offset, m.payload) for m in source.server.messages("kit", LOG)]


def test_deltas_stand_between_the_parts_of_a_snapshot_and_build_on_it(many_snapshots):
    source = Source(MANY)
    source.live()
    kinds = "".join({"snapshot": "s", "delta": "d", "claim": "c"}[message.kind] for message in log_of(source))
    assert "sds" in kinds
    view = arrange(log_of(source), "kit")
    assert len(view.checkpoints) > 3
    assert any(
        delta.offset < checkpoint.parts[-1].offset for checkpoint in view.checkpoints for delta in checkpoint.deltas
    )


def test_a_crash_between_the_parts_of_a_snapshot_loses_nothing(many_snapshots):
    for at in range(1, len(Source(MANY).live().events) + 1):
        source = Source(MANY)
        source.live(at)
        source.live()
        source.check()


def test_bad_lines_between_the_parts_of_a_snapshot_are_neither_lost_nor_sent(many_snapshots):
    def source_with_bad_lines():
        source = Source(MANY, tolerance="skip_record", batch_length=2, headers="none")
        source.expected["bad"] = bad_lines(source.rig.store)
        source.expected["worse"] = []
        return source

    for at in range(1, len(source_with_bad_lines().live().events) + 1, 2):
        source = source_with_bad_lines()
        source.live(at)
        source.live()
        source.check()


@pytest.mark.parametrize("snapshots", ["few", "many"])
@pytest.mark.parametrize("seed", range(5))
def test_losses_behind_several_snapshots_are_made_good(seed, snapshots, request):
    """Crashes, each with a loss in some lanes: what is missing comes again, what is there does not."""
    if snapshots == "many":
        request.getfixturevalue("many_snapshots")
    chance = random.Random(seed)
    for _ in range(10):
        skipping = {"tolerance": "skip_record", "batch_length": 2}
        options = chance.choice([{}, {"headers": "none"}, skipping])
        source = Source(MANY, partitions=3, **options)
        if options is skipping:
            source.expected["bad"] = bad_lines(source.rig.store)
            source.expected["worse"] = []
        for _ in range(chance.randint(1, 5)):
            source.live(chance.randint(10, 90))
            for partition in range(3 if source.server.topic_info("kit", "records") else 0):
                held = len(source.server.messages("kit", "records", partition))
                source.server.lose_tail("kit", "records", partition, min(held, chance.choice([0, 0, 1, 3, 8, 30])))
        source.live()
        source.check()


class TwoLanes:
    """A log and two lanes, written by hand: epochs that each saw something else."""

    def __init__(self):
        self.server = MemoryIggy()
        self.begin()

    def begin(self):
        self.session = recovered(self.server, partitions=2)

    def found(self):
        return {entry.key: entry.records_done for entry in self.session.offsets.entries()}

    def store(self, partition, *records, of="x"):
        """Stores records of an object; the anchor of the last one."""
        for number in records:
            self.session.connection.append(
                "kit",
                "records",
                partition,
                b"x",
                message_id=message_id(object_hash64("kit", "bucket", of, "v1"), 0, number),
                headers={"bucket": "bucket", "key": of, "version": "v1"},
            )
        last = self.server.messages("kit", "records", partition)[-1]
        return Anchor(last.offset, last.message_id)

    def save(self, partition, anchor, key, records, **more):
        lane = Lane("records", partition)
        entry = OffsetManagerEntry(
            bucket="bucket", key=key, version="v1", records_done=records, lane=lane, modified_ms=1, **more
        )
        delta = PositionDelta(entries=[entry], anchors={lane: anchor})
        log, epoch = self.session.log, self.session.recovered
        log.append(log_codec.encode_delta("kit", epoch.epoch, epoch.base, delta))

    def lose(self, partition, count):
        self.session.connection.close()
        self.server.lose_tail("kit", "records", partition, count)
        self.begin()


def test_what_an_epoch_lost_is_not_taken_for_done_when_a_later_one_is_stepped_over():
    """Lane 0 loses its end; the next epoch sends a part of it again; then lane 1 loses so much that this epoch does not count.

    The anchors of lane 0 go 6, 2, 3 then: the last one stands, and what the first epoch said about places up to 6 must not hold.
    """
    lanes = TwoLanes()
    lanes.save(0, lanes.store(0, 1, 2, 3, 4, 5, 6, 7, of="a"), "a", 7)
    lanes.save(1, lanes.store(1, 1, 2, 3, of="b"), "b", 3)
    lanes.lose(0, 4)
    assert lanes.found() == {"a": 3, "b": 3}
    lanes.save(0, lanes.store(0, 4, of="a"), "a", 4)
    lanes.lose(1, 2)
    assert lanes.found() == {"a": 4, "b": 1}


def test_a_skipped_number_is_known_also_of_an_epoch_that_is_stepped_over():
    lanes = TwoLanes()
    lanes.save(0, lanes.store(0, *range(1, 8), of="a"), "a", 7)
    lanes.save(1, lanes.store(1, 1, 2, 3, of="b"), "b", 3)
    lanes.lose(0, 4)
    lanes.save(0, lanes.store(0, 1, of="bad"), "bad", 1, skipped=((2, 3),))
    lanes.store(0, 4, of="bad")
    lanes.lose(1, 2)
    assert lanes.found() == {"a": 3, "b": 1, "bad": 4}


def test_an_object_that_is_done_needs_no_skipped_numbers_any_more():
    source = Source({"a": 3}, tolerance="skip_record", batch_length=2)
    source.expected["bad"] = bad_lines(source.rig.store)
    source.expected["worse"] = []
    source.live()
    connection = source.server.connect()
    log = PositionLog(connection, stream="kit", topic=LOG, source="kit")
    loaded = CheckpointLoader(log, arrange(log.outline(), "kit").checkpoints).load()
    assert {entry.key for entry in loaded.entries.view()} == {"a", "bad", "worse"}
    assert loaded.facts == {}


# ---- what a restart costs


def test_a_start_keeps_the_heads_of_the_log_and_reads_bodies_one_by_one(many_snapshots):
    source = Source(MANY)
    source.live()
    log = PositionLog(source.server.connect(), stream="kit", topic=LOG, source="kit")
    heads = list(log.outline())
    assert {len(head.body) for head in heads if head.kind != "claim"} == {0}
    whole = [message for message in log.messages() if message.kind != "claim"]
    assert list(log.read([head for head in heads if head.kind != "claim"], ahead=3)) == whole
    assert list(log.read(heads[::-5])) == list(log.messages())[::-5]


def test_a_message_of_the_log_that_is_gone_when_it_is_needed_is_an_error():
    source = Source({"a": 3})
    source.live()
    log = PositionLog(source.server.connect(), stream="kit", topic=LOG, source="kit")
    heads = list(log.outline())
    source.server.drop_head("kit", LOG, 0, 2)
    with pytest.raises(PositionError, match=r"message 1: .* gone.*another \[offsets\] topic"):
        list(log.read(heads[1:]))


def test_a_second_run_reads_nothing_and_writes_one_snapshot():
    source = Source()
    source.live()
    source.rig.store.calls.clear()
    before = len(source.server.messages("kit", LOG))
    source.live()
    source.check()
    assert source.rig.store.count("open") == 0
    written = [log_codec.decode(m.offset, m.payload).kind for m in source.server.messages("kit", LOG)[before:]]
    assert written == ["claim", "snapshot"]


def test_what_is_already_in_the_topic_is_neither_read_nor_touched_at_the_first_start():
    source = Source({"a": 3}, partitions=1)
    connection = source.server.connect()
    connection.ensure_stream("kit")
    connection.create_topic("kit", "records", 1)
    connection.append("kit", "records", 0, b"of somebody else")
    connection.close()
    source.live()
    assert [m.payload for m in source.server.messages("kit", "records")] == [b"of somebody else", *lines("a", 3)]


def test_messages_of_others_between_ours_do_not_matter():
    for at in range(12, events_of(partitions=1) + 1, 6):
        source = Source(partitions=1)
        source.live(at)
        connection = source.server.connect()
        connection.append("kit", "records", 0, b"of somebody else")
        connection.append("kit", LOG, 0, b"of somebody else, in the log")
        connection.close()
        source.live()
        source.expected["other"] = [b"of somebody else"]
        assert source.payloads() == source.once()


# ---- what is no crash


def recovered(server, **options):
    config = source_config(**options)
    return Session(server.connect(), config)


def test_a_topic_made_anew_stops_the_source_and_says_so():
    source = Source(partitions=1)
    source.live()
    source.server.delete_topic("kit", "records")
    with pytest.raises(PositionError, match=r'topic "records".*made anew.*offsets reset --all.*offsets accept'):
        source.live()


def test_a_partition_that_lost_too_much_was_cut(monkeypatch):
    monkeypatch.setattr(lane_history, "MAX_STEP_BACK", 10)
    source = Source(partitions=1)
    source.live()
    source.server.lose_tail("kit", "records", 0, 12)
    with pytest.raises(PositionError, match=r"ends 12 messages before.*cut.*offsets reset --all.*offsets accept"):
        source.live()


def test_what_retention_took_counts_as_there():
    source = Source(partitions=1)
    source.live()
    source.server.drop_head("kit", "records", 0, 22)
    source.live()
    assert len(source.server.messages("kit", "records")) == 1
    assert all(entry.finished for entry in source.entries.values())


def test_another_instance_that_is_alive_is_named():
    server = MemoryIggy()
    first = recovered(server)
    clock = FakeClock()
    second = server.connect()
    position_log = PositionLog(second, stream="kit", topic=LOG, source="kit")
    claims = [
        Claim(epoch=1, host="elsewhere", process=7, leader=True, clients=pair.clients, token="x")
        for pair in [log_codec.decode_claim(m) for m in position_log.messages() if m.kind == "claim"]
    ]
    with pytest.raises(SourceRunningError, match=r'"kit" is running already, on elsewhere \(process 7\)'):
        fence(second, claims, source="kit", limit_seconds=10, clock=clock, sleep=clock.sleep)
    assert sum(clock.waits) == pytest.approx(10, abs=0.1)
    first.connection.close()
    fence(second, claims, source="kit", clock=clock, sleep=clock.sleep)


def test_an_earlier_connection_of_this_process_is_waited_for():
    server = MemoryIggy()
    first = recovered(server)
    clock = FakeClock()
    second = server.connect()
    claims = [
        log_codec.decode_claim(m)
        for m in PositionLog(second, stream="kit", topic=LOG, source="kit").messages()
        if m.kind == "claim"
    ]
    with pytest.raises(IggyUnavailableError):
        fence(second, claims, source="kit", limit_seconds=1, clock=clock, sleep=clock.sleep)

    def leave(seconds):
        clock.sleep(seconds)
        first.connection.close()

    fence(second, claims, source="kit", limit_seconds=1, clock=clock, sleep=leave)


def test_a_lost_worker_of_this_process_is_waited_for_wherever_it_ran():
    server = MemoryIggy()
    recovered(server).connection.close()
    worker, second = server.connect(), server.connect()
    own = worker.own_client()
    clients = ((own.client_id, own.address),)
    claim = Claim(epoch=3, host="elsewhere", process=7, leader=False, clients=clients, token="x")
    clock = FakeClock()
    waiting = {"source": "kit", "limit_seconds": 1, "clock": clock, "sleep": clock.sleep}
    with pytest.raises(IggyUnavailableError, match=r"worker that was lost, on elsewhere \(process 7\)"):
        fence(second, [claim], own_epochs={3}, **waiting)
    for claims, epochs in [([claim], {2, 4}), ([attrs.evolve(claim, leader=True)], {3})]:
        with pytest.raises(SourceRunningError, match="on elsewhere"):
            fence(second, claims, own_epochs=epochs, **waiting)
    worker.close()
    fence(second, [claim], own_epochs={3}, **waiting)


class Late(PositionLog):
    """A log in which a worker of the epoch before claims just before the leader does, after its first look."""

    worker = None

    def claim(self, epoch, *, leader, take_over=False):
        if leader and self.worker is not None:
            self.worker.claim(epoch - 1, leader=False)
        return super().claim(epoch, leader=leader, take_over=take_over)


def log_over(connection, kind=PositionLog):
    return kind(connection, stream="kit", topic=LOG, source="kit")


def test_a_worker_that_began_while_the_next_leader_looked_is_fenced(monkeypatch):
    server = MemoryIggy()
    recovered(server).connection.close()
    worker = server.connect()
    log = log_over(server.connect(), Late)
    log.worker = log_over(worker)
    fenced = []
    monkeypatch.setattr(recovery, "fence", lambda _, claims, **__: fenced.extend(claims))
    Recovery(log, topics=[], partitions=1).run()
    assert {pair for claim in fenced for pair in claim.clients} >= {
        (worker.own_client().client_id, worker.own_client().address)
    }
    own = log.connection.own_client()
    assert (own.client_id, own.address) not in {pair for claim in fenced for pair in claim.clients}


def test_a_worker_that_begins_when_its_epoch_is_over_sends_nothing():
    server = MemoryIggy()
    first = recovered(server)
    epoch, base = first.recovered.epoch, first.recovered.base
    in_time, late = log_over(server.connect()), log_over(server.connect())
    in_time.claim(epoch, leader=False)
    in_time.check_epoch(epoch, base)
    for connection in (first.connection, in_time.connection):
        connection.close()
    recovered(server)
    late.claim(epoch, leader=False)
    with pytest.raises(UnknownOutcomeError, match="another epoch"):
        late.check_epoch(epoch, base)


def test_who_claims_later_yields_so_nobody_waits_for_each_other():
    server = MemoryIggy()
    first = recovered(server)
    log = log_over(server.connect())
    list(log.messages())
    own = log.claim(first.recovered.epoch + 1, leader=True)
    log_over(server.connect()).claim(first.recovered.epoch + 2, leader=True)
    view = arrange(log_over(server.connect()).messages(), "kit")
    assert {claim.epoch for claim in view.claims_before(own, 0)} == {first.recovered.epoch}


def test_of_two_that_start_at_the_same_moment_the_first_claim_wins():
    server = MemoryIggy()
    recovered(server).connection.close()
    one, other = server.connect(), server.connect()
    logs = [PositionLog(connection, stream="kit", topic=LOG, source="kit") for connection in (one, other)]
    for log in logs:
        list(log.messages())
    logs[0].claim(2, leader=True)
    with pytest.raises(SourceRunningError, match="at the same moment"):
        logs[1].claim(2, leader=True)


def test_a_writer_that_outlived_its_epoch_cannot_spoil_the_state():
    source = Source({"a": 5}, partitions=1)
    source.live(16)
    server = source.server
    epochs = [log_codec.decode(m.offset, m.payload).epoch for m in server.messages("kit", LOG)]
    Session(server.connect(), source.bench.config).connection.close()
    stale = server.connect()
    lie = OffsetManagerEntry(bucket="bucket", key="a", version="v1", records_done=99, lane=Lane("records", 0))
    payload = log_codec.encode_delta("kit", max(epochs), 0, PositionDelta(entries=[lie]))
    PositionLog(stale, stream="kit", topic=LOG, source="kit").append(payload)
    stale.close()
    source.live()
    source.check()


def test_after_every_connection_broke_a_new_one_recovers():
    source = Source()

    class Breaking(CrashPoint):
        def __call__(self, name):
            if name == "ack":
                source.server.on_event = None
                source.server.break_connections()

    with pytest.raises(IggyUnavailableError):
        source.bench.live(Breaking())
    source.live()
    source.check()


def test_lanes_that_were_never_used_cost_one_look_each():
    server = MemoryIggy()
    recovered(server, partitions=7).connection.close()
    again = recovered(server, partitions=7)
    assert len(again.recovered.anchors) == 7
    assert again.recovered.replayed == 0


# ---- what a listing left for the next one


LEFT = PastListing(
    of="memory://bucket", histogram=[("b", 3), ("c", 20)], tail=TailMark(after="a", whole_pass_ms=5, selection="all")
)


def test_what_a_listing_left_is_there_after_a_restart_and_the_last_one_wins():
    server = MemoryIggy()
    session = recovered(server)
    session.offsets.note_listing("p/", attrs.evolve(LEFT, unordered=True))
    session.saved(session.offsets.flush())
    session.offsets.note_listing("p/", LEFT)
    session.offsets.note_listing("q/", attrs.evolve(LEFT, histogram=()))
    session.keep_books()
    assert not session.offsets.dirty
    session.connection.close()
    for _ in range(2):  # from the deltas, then from the snapshot that the start before wrote
        session = recovered(server)
        assert session.offsets.past_listing("p/") == LEFT
        assert session.offsets.past_listing("q/") == attrs.evolve(LEFT, histogram=())
        assert session.offsets.past_listing("r/") is None
        session.connection.close()


def test_a_snapshot_written_while_running_holds_what_listings_left(monkeypatch):
    server = MemoryIggy()
    session = recovered(server)
    session.offsets.note_listing("p/", LEFT)
    monkeypatch.setattr("framework.engine.snapshots.SNAPSHOT_DELTAS", 1)
    session.keep_books()
    written = [log_codec.decode(m.offset, m.payload) for m in server.messages("kit", LOG)]
    assert log_codec.decode_closing(written[-1]).listings == {"p/": LEFT}


def test_records_that_the_server_lost_take_the_mark_of_what_was_read_with_them():
    source = Source({"a": 11}, partitions=1)
    source.live()
    session = recovered(source.server, partitions=1)
    session.offsets.note_listing("", LEFT)
    session.keep_books()
    session.connection.close()
    source.server.lose_tail("kit", "records", 0, 2)
    again = recovered(source.server, partitions=1)
    assert again.offsets.past_listing("") == attrs.evolve(LEFT, tail=None)
    again.connection.close()
    source.live()
    source.check()
