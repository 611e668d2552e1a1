"""When the state is written down: by size, part by part, between everything else; and what is deleted is never needed again."""

import hashlib
import itertools
import random

import pytest
from msgspec.structs import replace

from framework.errors import UnknownOutcomeError
from framework.iggy.offset_log import codec, record_size, snapshots
from framework.iggy.offset_log.loading import load
from framework.iggy.offset_log.records import PartitionOpening, Progress, ProgressItem, SnapshotFooter, TopicIdentity
from framework.iggy.offset_log.snapshots import SnapshotWriter, trim
from framework.model.batches import Acknowledgement, RecordBatch
from framework.model.message_ids import entry_hash64, parse_message_id
from framework.model.objects import Anchor, NativeObject, TopicPartition
from framework.offsets.listing_hints import IncrementalMark, ListingHints
from framework.offsets.position_map import position_map
from framework.testing.clock import FakeClock
from framework.testing.fakes.memory_iggy import MemoryIggy
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
    session_of,
)

SEGMENT = 3000


class Leader:
    """A leader's log: each save is a record about new positions and known ones. An append takes a while."""

    def __init__(self, *, segment_bytes=None, **how):
        self.server = server_with_log()
        self.server.segment_bytes = segment_bytes
        self.clock = FakeClock(0.0)  # as of a machine that has just started
        self.append_seconds = 0.0
        self.log, self.epoch = epoch_of(self.server)
        self.positions = self.epoch.state.positions
        self.state = self.epoch.state
        self.log.append(codec.encode_open("kit", 1, "w", [opening(0)]))
        self.state.open([opening(0)], "w")
        self.number = 0
        append = self.log.append

        def slowly(payload):
            self.clock.advance(self.append_seconds)
            return append(payload)

        self.log.append = slowly
        self.writer = SnapshotWriter(
            self.log,
            epoch=1,
            state=lambda: (self.positions.view(), self.state.footer()),
            catch_up=self.follow,
            count=how.get("count", self.positions.__len__),
            since=0,
            since_bytes=0,
            compactable=how.get("compactable", lambda: 0),
            clock=self.clock,
        )

    def follow(self):
        for message in self.log.follow():
            self.state.apply(message)

    def begin(self, count=1):
        entries = [position(f"folder/{name_of(self.number + more)}") for more in range(count)]
        self.number += count
        self.log.append(codec.encode_begin("kit", 1, entries))
        self.state.begin(entries)

    def save(self, *entries, total=1):
        done = [entry.changed(records_done=1, records_saved=1, total=total) for entry in entries]
        items = [
            ProgressItem(object_hash=entry_hash64("kit", entry), split_number=0, saved=1, sent=1, total=total)
            for entry in done
        ]
        self.log.append(codec.encode_progress("kit", 1, "w", Progress(items=items)))
        for entry in done:
            self.state.positions[entry.get_manager_key()] = entry

    def work(self, rounds=1, count=1):
        for _ in range(rounds):
            self.begin(count)
            self.save(*(entry for _, entry in self.positions.pending()))
            self.follow()
            self.writer.advance()

    def written(self):
        """(number, part, whether it is the last one, at) of each part that is there."""
        return [
            (record.header["number"], record.header["part"], bool(record.header.get("last")), record.header["at"])
            for record in records(self.server)
            if record.kind == "snapshot"
        ]

    def whole(self):
        """(number, at) of each snapshot that is whole."""
        return [(number, at) for number, _, last, at in self.written() if last]


def name_of(number):
    return hashlib.md5(b"%d" % number).hexdigest()


def opening(partition):
    return PartitionOpening(
        topic_partition=TopicPartition("records", partition),
        topic=TopicIdentity(topic_id=1, created_at=2),
        anchor=None,
    )


def is_whole(state, leader):
    """What a start would load is what the leader knows."""
    return as_saved(state) == as_saved(leader.state) and state.owners == leader.state.owners


# ---- when


def test_the_first_snapshot_is_due_after_some_records_and_so_is_the_next():
    leader = Leader()
    leader.work((snapshots.SNAPSHOT_RECORDS - 4) // 2)
    assert leader.written() == []
    leader.work(4)
    ((number, at),) = leader.whole()
    assert number == 1
    assert snapshots.SNAPSHOT_RECORDS <= at <= snapshots.SNAPSHOT_RECORDS + 1
    leader.work(snapshots.SNAPSHOT_RECORDS // 2 + 3)
    assert [number for number, _ in leader.whole()] == [1, 2]
    assert leader.whole()[1][1] - at == pytest.approx(snapshots.SNAPSHOT_RECORDS, abs=4)
    assert is_whole(loaded(leader.server), leader)


@pytest.mark.parametrize("known", [0, 5_000])
def test_all_snapshots_together_are_about_as_large_as_everything_else(known, monkeypatch):
    monkeypatch.setattr(snapshots, "SNAPSHOT_RECORDS", 10)
    leader = Leader()
    leader.state.begin(position(f"old/{number}", 1, total=1) for number in range(known))
    size = {"snapshot": 0, "other": 0}
    for _ in range(400):
        leader.work(1, count=20)
        leader.save(*itertools.islice(leader.positions.view(), 90))
    for record in records(leader.server):
        size["snapshot" if record.kind == "snapshot" else "other"] += len(record.body)
    assert 1 <= len(leader.whole()) < 20
    assert size["snapshot"] < 2 * size["other"]


def test_many_positions_and_few_changes_are_written_seldom():
    leader = Leader()
    leader.state.begin(position(str(number), 1, total=1) for number in range(20_000))
    before = leader.log.total_bytes
    while leader.log.total_bytes - before < snapshots.POSITION_BYTES * 20_000 - 25_000:
        leader.log.append(
            codec.encode_progress(
                "kit",
                1,
                "w",
                Progress(
                    listings={"p": ListingHints(of=random.Random(leader.log.total_bytes).randbytes(20_000).hex())}
                ),
            )
        )
        leader.follow()
        leader.writer.advance()
        assert leader.written() == []
    assert leader.log.next_offset < snapshots.SNAPSHOT_RECORDS
    leader.work(480)
    assert len({number for number, *_ in leader.written()}) == 1


@pytest.mark.parametrize(("written", "due"), [(45_000, False), (65_000, True)])
def test_with_many_positions_a_sixteenth_of_them_makes_a_snapshot_due(written, due, monkeypatch):
    """20,000 positions take about 900,000 bytes: a sixteenth of that changed, and loads slower than they do."""
    monkeypatch.setattr(snapshots, "REPLAY_BYTES", 20_000)
    leader = Leader(count=lambda: 20_000)
    leader.writer.advance()
    body = random.Random(1).randbytes(written).hex()
    progress = Progress(listings={"p": ListingHints(of=body)})
    leader.log.append(codec.encode_progress("kit", 1, "w", progress))
    leader.follow()
    size = leader.log.total_bytes
    assert (size > snapshots.POSITION_BYTES * 20_000 // 16) is due
    leader.writer.advance()
    assert bool(leader.written()) is due


def test_a_snapshot_does_not_make_the_next_one_due(monkeypatch):
    """With many positions its own parts are larger than a sixteenth of them; nor do they at the next start."""
    monkeypatch.setattr(snapshots, "REPLAY_BYTES", 10_000)
    leader = Leader()
    leader.work(1, count=20_000)
    for _ in range(50):
        leader.follow()
        leader.writer.advance()
    assert [number for number, _ in leader.whole()] == [1]
    parts = sum(len(record.body) for record in records(leader.server) if record.kind == "snapshot")
    assert parts > snapshots.POSITION_BYTES * 20_000 // 16
    log = log_over(leader.server.connect())
    state = load(log)
    again = SnapshotWriter(
        log,
        epoch=1,
        state=lambda: (state.positions.view(), state.footer()),
        catch_up=lambda: None,
        count=state.positions.__len__,
        since=state.snapshot_end,
        since_bytes=state.snapshot_bytes,
        compactable=lambda: 0,
        clock=leader.clock,
    )
    again.advance()
    assert [number for number, _ in leader.whole()] == [1]


def test_deleted_segments_do_not_delay_the_next_snapshot(monkeypatch):
    monkeypatch.setattr(snapshots, "SNAPSHOT_RECORDS", 30)
    monkeypatch.setattr(snapshots, "POSITION_BYTES", 1)
    monkeypatch.setattr(snapshots, "SLACK_BYTES", 0)
    trimmed, whole = Leader(segment_bytes=SEGMENT), Leader()
    for leader in (trimmed, whole):
        leader.work(300)
    assert trimmed.log.total_bytes < whole.log.total_bytes / 2
    assert [number for number, _ in trimmed.whole()][-1] == [number for number, _ in whole.whole()][-1] > 5


@pytest.mark.parametrize(
    ("count", "compactable", "due"), [(40, 20, True), (40, 19, False), (41, 20, False), (19, 19, False), (20, 25, True)]
)
def test_a_snapshot_is_due_when_it_would_be_without_half_of_many_positions(count, compactable, due, monkeypatch):
    monkeypatch.setattr(snapshots, "COMPACT_FROM", 20)
    leader = Leader(count=lambda: count, compactable=lambda: compactable)
    leader.writer.advance()
    assert bool(leader.written()) is due


def test_what_was_written_since_the_last_snapshot_before_counts_from_its_place(monkeypatch):
    monkeypatch.setattr(snapshots, "SNAPSHOT_RECORDS", 30)
    leader = Leader()
    leader.writer.advance = lambda: None
    leader.work(13)
    leader.writer = SnapshotWriter(
        leader.log,
        epoch=1,
        state=lambda: (leader.positions.view(), leader.state.footer()),
        catch_up=leader.follow,
        count=lambda: 0,
        since=10,
        since_bytes=0,
        compactable=lambda: 0,
        clock=leader.clock,
    )
    leader.work(5)
    assert (leader.log.next_offset, leader.written()) == (39, [])
    leader.work(1)
    assert {at for *_, at in leader.written()} == {41}


# ---- part by part


def test_a_snapshot_goes_on_part_by_part_and_leaves_time_for_the_rest(monkeypatch):
    monkeypatch.setattr(snapshots, "SNAPSHOT_RECORDS", 2)
    monkeypatch.setattr(snapshots, "POSITION_BYTES", 0)
    monkeypatch.setattr(record_size, "MAX_ROWS", 2000)
    leader = Leader()
    leader.begin(4000)
    leader.follow()
    leader.append_seconds = 0.25
    at, began = leader.log.next_offset, leader.clock()
    leader.writer.advance()
    assert leader.written() == [(1, 1, False, at)]
    for _ in range(3):
        leader.clock.advance(0.25)
        leader.writer.advance()
    assert leader.written() == [(1, 1, False, at)]
    leader.append_seconds = 0.0
    leader.begin()
    leader.clock.advance(snapshots.PAUSE_PARTS * 0.25 - 0.75)
    leader.writer.advance()
    assert leader.written() == [(1, 1, False, at), (1, 2, False, at)]
    assert leader.clock() - began >= snapshots.PAUSE_PARTS * 0.25
    leader.writer.advance()
    assert leader.written()[2:] == [(1, 3, True, at)]
    assert is_whole(loaded(leader.server), leader), "what stands between its parts too"
    assert loaded(leader.server).snapshot_at == at


def test_a_snapshot_that_is_asked_for_is_written_at_once():
    leader = Leader()
    leader.work(3, count=7)
    leader.append_seconds = 9.0
    leader.writer.write()
    leader.writer.write()
    assert [number for number, _ in leader.whole()] == [1, 2]
    (_, first), (_, second) = leader.whole()
    assert second - first == len([one for one in leader.written() if one[0] == 1])


def test_one_that_is_asked_for_while_another_is_under_way_takes_its_place(monkeypatch):
    monkeypatch.setattr(snapshots, "SNAPSHOT_RECORDS", 2)
    monkeypatch.setattr(snapshots, "PAUSE_PARTS", 0)
    monkeypatch.setattr(record_size, "MAX_ROWS", 2)
    leader = Leader()
    leader.work(1, count=9)
    assert [part for _, part, *_ in leader.written()] == [1]
    leader.begin()
    leader.writer.write()
    for _ in range(9):
        leader.writer.advance()
    state = loaded(leader.server)
    assert is_whole(state, leader)
    assert state.snapshot_at == max(leader.whole())[1]


def test_what_others_appended_is_in_the_state_before_it_is_taken():
    leader = Leader()
    leader.begin()
    other = log_over(leader.server.connect())
    items = [
        ProgressItem(
            object_hash=entry_hash64("kit", position(f"folder/{name_of(0)}")), split_number=0, saved=3, sent=4, total=5
        )
    ]
    other.append(codec.encode_progress("kit", 1, "w", Progress(items=items)))
    leader.writer.write()
    ((_, at),) = leader.whole()
    assert at == 5
    (part,) = [record for record in records(leader.server) if record.header.get("last")]
    (found,) = codec.decode_entries(part)
    assert (found.records_saved, found.records_done, found.total) == (3, 4, 5)


def test_a_broken_append_leaves_a_snapshot_that_counts_for_nothing(monkeypatch):
    monkeypatch.setattr(record_size, "MAX_ROWS", 2)
    leader = Leader()
    leader.begin(15)
    before = as_saved(loaded(leader.server))
    append, left = leader.log.append, [2]

    def breaking(payload):
        if not left[0]:
            raise UnknownOutcomeError("gone")
        left[0] -= 1
        return append(payload)

    leader.log.append = breaking
    with pytest.raises(UnknownOutcomeError):
        leader.writer.write()
    state = loaded(leader.server)
    assert (as_saved(state), state.snapshot_at) == (before, 0)
    assert len(leader.written()) == 2


# ---- deleting what stands before


@pytest.fixture(autouse=True)
def no_slack(monkeypatch):
    monkeypatch.setattr(snapshots, "SLACK_BYTES", 0)


def busy(rounds, segment_bytes=SEGMENT):
    leader = Leader(segment_bytes=segment_bytes)
    leader.work(rounds)
    return leader


def kept(leader):
    return leader.server.messages("kit", LOG)


def test_segments_before_the_moment_of_a_whole_snapshot_go_and_the_state_stays():
    leader = busy(150)
    count = len(kept(leader))
    leader.writer.write()
    assert len(kept(leader)) < count // 2
    assert kept(leader)[0].offset > 0
    assert is_whole(loaded(leader.server), leader)
    assert loaded(leader.server).claims.keys() == {0}, "who runs is in the snapshot"


def test_nothing_goes_before_the_last_part_is_there(monkeypatch):
    monkeypatch.setattr(record_size, "MAX_ROWS", 2)
    monkeypatch.setattr(snapshots, "SNAPSHOT_RECORDS", 10**9)
    leader = busy(100)
    leader.begin(30)
    monkeypatch.setattr(snapshots, "SNAPSHOT_RECORDS", 1)
    monkeypatch.setattr(snapshots, "POSITION_BYTES", 0)
    monkeypatch.setattr(snapshots, "PAUSE_PARTS", 0)
    while not leader.whole():
        assert kept(leader)[0].offset == 0
        leader.writer.advance()
        assert is_whole(loaded(leader.server), leader)
    assert len(leader.written()) > 5
    leader.writer.advance()
    assert kept(leader)[0].offset > 0
    assert is_whole(loaded(leader.server), leader)


def test_at_every_size_of_a_segment_nothing_that_is_needed_goes():
    deleted = 0
    for segment_bytes in range(300, 9000, 370):
        leader = busy(60, segment_bytes)
        for _ in range(4):
            leader.work(7)
            leader.writer.write()
            leader.follow()
            assert is_whole(loaded(leader.server), leader)
        deleted += kept(leader)[0].offset
    assert deleted > 1000


def test_a_log_that_another_source_writes_to_as_well_is_left_alone():
    leader = busy(150)
    epoch_of(leader.server, source="other")
    count = len(kept(leader))
    leader.writer.write()
    assert kept(leader)[0].offset == 0
    assert len(kept(leader)) > count
    assert leader.log.foreign == 2
    assert trim(leader.log, leader.log.next_offset, leader.log.total_bytes) == 0


def test_a_shared_log_that_only_grows_is_reported_once(caplog, monkeypatch):
    leader = busy(150)
    leader.writer.write()
    epoch_of(leader.server, source="other")
    leader.writer.write()
    assert not caplog.messages
    monkeypatch.setattr(snapshots, "SHARED_BYTES", 1000)
    for _ in range(2):
        leader.writer.write()
    (said,) = caplog.messages
    assert said.startswith(f'offsets topic "{LOG}" of stream "kit" has 0 MB, and nothing of it can be deleted')
    assert said.endswith("Give each source an [offsets] topic of its own")


@pytest.mark.parametrize("segment_bytes", [None, 1 << 30])
def test_large_segments_or_ones_of_unknown_size_are_left_alone(segment_bytes, monkeypatch):
    leader = busy(150, segment_bytes)
    asked = []
    monkeypatch.setattr(leader.log.connection, "delete_segments", lambda *place: asked.append(place))
    assert trim(leader.log, leader.log.next_offset, leader.log.total_bytes) == 0
    assert asked == [], "no user needs a permission for what deletes nothing"


def test_of_a_log_whose_topic_is_gone_nothing_is_deleted(monkeypatch):
    leader = busy(150)
    monkeypatch.setattr(leader.log.connection, "get_topic", lambda *_: None)
    assert trim(leader.log, leader.log.next_offset, leader.log.total_bytes) == 0


def test_the_segment_that_is_being_written_is_never_deleted(caplog):
    caplog.set_level("DEBUG", logger=snapshots.__name__)
    leader = busy(150)
    info = leader.server.topic_info("kit", LOG)
    held = info.partitions[0].segments_count
    leader.log.total_bytes, leader.log.largest_bytes = 10**9, 0
    assert trim(leader.log, 10**6, 10**9) == held - 1
    assert caplog.messages == [f"deleted {held - 1} segments of the offsets log, all before message 1000000"]
    assert leader.server.topic_info("kit", LOG).partitions[0].segments_count == 1
    assert kept(leader)


def test_what_is_deleted_is_not_counted_again():
    leader = busy(150)
    before = leader.log.total_bytes
    count = trim(leader.log, leader.log.next_offset, leader.log.total_bytes)
    assert count > 1
    most = SEGMENT + 2 * leader.log.largest_bytes
    assert leader.log.total_bytes == before - count * most
    assert trim(leader.log, leader.log.next_offset, leader.log.total_bytes) * most <= leader.log.total_bytes


def test_the_size_up_to_a_snapshot_is_that_of_the_messages_before_its_end():
    leader = busy(150)
    leader.writer.write()
    leader.work(3)
    log = log_over(leader.server.connect())
    state = load(log)
    left = leader.server.messages("kit", LOG)
    assert 0 < state.snapshot_end < log.next_offset
    sizes = [len(stored.payload) for stored in left if stored.offset < state.snapshot_end]
    assert state.snapshot_bytes == sum(sizes) < log.total_bytes


def test_many_thousand_records_with_small_segments_load_to_the_same_at_any_moment(monkeypatch):
    monkeypatch.setattr(snapshots, "SNAPSHOT_RECORDS", 120)
    monkeypatch.setattr(snapshots, "PAUSE_PARTS", 0)
    monkeypatch.setattr(record_size, "MAX_ROWS", 2)
    chance = random.Random(5)
    leader = Leader(segment_bytes=4000)
    looked = 0
    while leader.log.next_offset < 2500:
        leader.work(1, count=chance.choice([1, 1, 2, 5]))
        for key in [entry.get_manager_key() for entry in itertools.islice(leader.positions.view(), 3)]:
            if len(leader.positions) > 40 and chance.random() < 0.7:  # so that snapshots stay small
                leader.log.append(codec.encode_progress("kit", 1, "w", Progress(removed=[key])))
                leader.positions.remove_object(key)
        if chance.random() < 0.05:
            looked += 1
            assert is_whole(loaded(leader.server), leader)
    assert looked > 10
    assert len({number for number, *_ in leader.written()}) >= 1
    assert kept(leader)[0].offset > 500
    assert is_whole(loaded(leader.server), leader)


# ---- a session's


def test_what_a_listing_left_is_there_after_a_restart_and_the_last_one_wins():
    left = ListingHints(
        of="memory://bucket",
        keys=("b", "c"),
        counts=(3, 20),
        incremental=IncrementalMark(after="a", whole_listing_ms=5, selection="all"),
    )
    server = MemoryIggy()
    session = session_of(server)
    session.offsets.hints.set("p/", replace(left, unordered=True))
    session.save()
    session.offsets.hints.set("p/", left)
    session.offsets.hints.set("q/", left.with_histogram(()))
    session.save()
    assert not session.offsets.dirty
    for _ in range(2):  # from single records, then from a snapshot
        session.close()
        session = session_of(server)
        assert session.offsets.hints.get("p/") == left
        assert session.offsets.hints.get("q/") == left.with_histogram(())
        assert session.offsets.hints.get("r/") is None
        session.write_snapshot()


def test_what_was_skipped_within_the_hour_outlives_snapshots_and_what_is_older_does_not():
    server = MemoryIggy()
    session = session_of(server)
    session.offsets.table.count_skipped(5)
    session.save()
    for _ in range(2):
        session.write_snapshot()
        session.close()
        session = session_of(server)
        assert [one.count for one in session.skipped_lately()] == [5]
        assert 0 <= session.skipped_lately()[0].seconds_ago < 3600
    for _ in range(1800):
        server.restart()  # each moves the server's clock on by two seconds
    session = session_of(server)
    session.write_snapshot()
    assert session_of_closed(session, server).skipped_lately() == []
    footer = codec.decode_footer([one for one in records(server) if one.kind == "snapshot"][-1])
    assert footer.skipped == []


def session_of_closed(session, server):
    session.close()
    return session_of(server)


def test_claims_of_workers_that_are_gone_do_not_pile_up_in_snapshots():
    server = MemoryIggy()
    session = session_of(server)
    for number in range(5):
        worker = log_over(server.connect())
        claim = replace(
            session.epoch.claim,
            leader=False,
            token=str(number),
            client=(worker.connection.own_client().client_id, worker.connection.own_client().address),
        )
        worker.append(codec.encode_claim("kit", claim))
        if number % 2:
            worker.connection.close()
    session.write_snapshot()
    footer = codec.decode_footer(records(server)[-1])
    assert [claim.token for claim in footer.claims.values()] == [session.epoch.claim.token, "0", "2", "4"]
    assert list(footer.claims) == [0, 2, 4, 6]


@pytest.mark.parametrize("owner", ["itself", "a worker"])
def test_counts_that_are_not_saved_yet_go_into_a_snapshot_with_the_message_up_to_which_they_count(owner):
    """A leader that only opened a partition knows nothing of what the worker sent that took it over."""
    server = MemoryIggy()
    topic_partition = TopicPartition("records", 0)
    connection = server.connect()
    connection.ensure_stream("kit")
    connection.create_topic("kit", "records", 3)
    server.set_option("kit", "records", "messages_required_to_save", 1024)
    session = session_of(server)
    session.partitions.open_one(topic_partition)
    session.offsets.add_entry(position("a"))
    sent = position("a", 2, records_saved=0)
    batch = RecordBatch(
        native=NativeObject(bucket="bucket", key="a", version="v1", size=9, modified_ms=0),
        topic_partition=topic_partition,
        first_record=1,
        payloads=[b"x"] * 2,
        size_bytes=2,
        entry=sent,
    )
    anchor = Anchor(1, 2, 3)
    session.offsets.commit(Acknowledgement(topic_partition=topic_partition, batches=(batch,), anchor=anchor))
    if owner == "a worker":
        session.state.owners[topic_partition] = "its token"
    session.write_snapshot()
    footer = codec.decode_footer(records(server)[-1])
    assert footer.counted == ({topic_partition: anchor} if owner == "itself" else {})


def test_a_crash_at_any_event_while_snapshots_are_written_and_segments_deleted_loses_nothing(monkeypatch):
    monkeypatch.setattr(snapshots, "SNAPSHOT_RECORDS", 3)
    monkeypatch.setattr(snapshots, "POSITION_BYTES", 0)
    monkeypatch.setattr(snapshots, "PAUSE_PARTS", 0)
    monkeypatch.setattr(record_size, "MAX_ROWS", 2)
    monkeypatch.setattr("framework.engine.session.FOLLOW_SECONDS", 0.0)
    counts = {"a": 5, "b": 7, "c": 11, **{f"d{number}": 2 for number in range(40)}}

    def made():
        source = Source(counts)
        source.server.segment_bytes = 100
        return source

    whole = made()
    events = len(whole.live().events)
    assert whole.server.messages("kit", LOG)[0].offset > 0
    assert kinds(whole.server).count("snapshot") > 2
    for at in range(1, events + 1, 9):
        source = made()
        source.live(at)
        source.live()
        source.check()


@pytest.mark.parametrize("commit_interval", [0.01, 60.0])
def test_sent_counts_account_for_all_up_to_the_counted_message_whenever_the_log_is_read(commit_interval, monkeypatch):
    """In progress and in snapshots: what expired up to there is known from the counts alone."""
    monkeypatch.setattr(snapshots, "SNAPSHOT_RECORDS", 1)
    monkeypatch.setattr(snapshots, "POSITION_BYTES", 0)
    monkeypatch.setattr(snapshots, "PAUSE_PARTS", 0)
    monkeypatch.setattr("framework.engine.session.FOLLOW_SECONDS", 0.0)

    def made():
        source = Source({"a": 5, "b": 7, "c": 11, "d": 2, "e": 3}, partitions=1, commit_interval=commit_interval)
        connection = source.server.connect()
        connection.ensure_stream("kit")
        connection.create_topic("kit", "records", 1)
        source.server.set_option("kit", "records", "messages_required_to_save", 1024)
        return source

    seen = set()
    for at in range(1, len(made().live().events) + 1):
        source = made()
        source.live(at)
        state = loaded(source.server)
        for topic_partition, counted in state.counted.items():
            sent = {}
            for message in source.messages(topic_partition.partition)[: counted.offset + 1]:
                parts = parse_message_id(message.message_id)
                sent[parts.object_hash] = parts.record
            counts = {entry_hash64("kit", entry): entry.records_done for entry in state.positions.view()}
            assert {name: count for name, count in counts.items() if count} == sent
            seen.add((counted.offset, kinds(source.server)[-1]))
    assert len({offset for offset, kind in seen if kind == ("progress" if commit_interval < 1 else "snapshot")}) > 2


def test_a_log_that_was_cut_behind_a_snapshot_is_read_from_there():
    leader = busy(100)
    leader.writer.write()
    assert kept(leader)[0].offset > 0
    log = log_over(leader.server.connect())
    assert is_whole(load(log), leader)
    leader.log.connection.close()
    _, epoch = epoch_of(leader.server)
    assert epoch.number == 2
    assert is_whole(loaded(leader.server), leader) is False, "a new epoch has no owners yet"
    assert as_saved(epoch.state) == as_saved(leader.state)


def test_a_snapshot_of_nothing_is_whole():
    server = server_with_log()
    log, _ = epoch_of(server)
    for payload in codec.encode_snapshot("kit", 1, position_map().view(), SnapshotFooter(floor=7), number=1, at=2):
        log.append(payload)
    state = loaded(server)
    assert (len(state.positions), state.positions.floor, state.epoch, state.last_epoch) == (0, 7, 1, 1)
