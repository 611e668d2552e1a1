"""What people do to topics and positions: purges told from crashes, resets that the tail does not undo, taking over."""

import collections
from types import SimpleNamespace

import pytest

from framework.engine.by_hand import begin_epoch_by_hand
from framework.engine.inspection import inspect
from framework.engine.session import Session
from framework.errors import PositionError, SourceRunningError, SourceTakenOverError
from framework.iggy import log_codec
from framework.iggy.position_log import EpochWatch, PositionLog, arrange
from framework.iggy.recovery import fence
from framework.offsets import PositionDelta
from framework.records import Anchor, Lane
from framework.reset import Reset
from framework.testing.clock import FakeClock
from framework.testing.crash import CrashPoint
from tests.support.core import lines, put_lines
from tests.unit.test_recovery import LOG, Source

WAYS_OUT = r"offsets reset --all.*offsets accept"


@pytest.fixture
def source():
    made = Source(partitions=2)
    made.live()
    return made


def by_hand(source, **choice):
    connection = source.server.connect()
    try:
        return begin_epoch_by_hand(connection, source.bench.config, **choice)
    finally:
        connection.close()


def stored(source):
    return sum(source.payloads().values())


def partition_with_records(source):
    return next(number for number in range(2) if source.server.messages("kit", "records", number))


# ---- purged


def test_a_purge_of_a_few_messages_is_no_crash(source):
    source.server.purge_topic("kit", "records")
    with pytest.raises(PositionError, match=rf"was purged.*server has been up all the time.*at 0 again.*{WAYS_OUT}"):
        source.live()
    assert stored(source) == 0


def test_a_purge_and_a_restart_of_the_server_are_no_crash_where_the_topic_saves_each_message(source):
    source.server.purge_topic("kit", "records")
    source.server.restart()
    with pytest.raises(PositionError, match=rf"was purged.*no crash takes all of so many.*{WAYS_OUT}"):
        source.live()


def test_a_killed_server_may_lose_a_whole_small_partition_of_a_topic_that_it_keeps_in_memory(source, caplog):
    partition = partition_with_records(source)
    source.server.lose_tail("kit", "records", partition, len(source.server.messages("kit", "records", partition)))
    source.live()
    source.check()
    said = [record.getMessage() for record in caplog.records if "offsets accept" in record.getMessage()]
    assert len(said) == 1, "a purge looks the same: who purged must hear what to do"
    assert f'partition {partition} of topic "records" is empty after a restart' in said[0]
    assert "offsets reset" in said[0]


def test_a_task_that_began_after_the_crash_does_not_make_it_a_purge(source):
    """Seen with a real server, killed while the second of two tasks started: that one connected to the next server, and saved."""
    partition = partition_with_records(source)
    held = source.server.messages("kit", "records", partition)
    connection = source.server.connect()
    log = PositionLog(connection, stream="kit", topic=LOG, source="kit")
    (*_, newest) = arrange(log.messages(), "kit").checkpoints
    source.server.lose_tail("kit", "records", partition, len(held))
    other = Lane("records", 1 - partition)
    connection.append("kit", "records", other.partition, b"of somebody else")
    last = source.server.messages("kit", "records", other.partition)[-1]
    delta = PositionDelta(anchors={other: Anchor(last.offset, last.message_id)})
    log.append(log_codec.encode_delta("kit", newest.epoch, newest.offset, delta))
    connection.close()
    source.live()
    assert source.payloads() == source.once() + collections.Counter({b"of somebody else": 1})


@pytest.mark.parametrize(("early_us", "purged"), [(-1, False), (0, False), (1_990_000, False), (10_000_000, True)])
def test_a_server_that_tells_its_start_too_early_was_restarted_all_the_same(source, early_us, purged):
    """A real one counts in whole seconds, twice: killed within a second or two of the last saved position, it looked older."""
    partition = partition_with_records(source)
    connection = source.server.connect()
    *_, newest = PositionLog(connection, stream="kit", topic=LOG, source="kit").messages()
    connection.close()
    source.server.lose_tail("kit", "records", partition, len(source.server.messages("kit", "records", partition)))
    source.server.started_us = newest.timestamp_us - early_us
    if purged:
        with pytest.raises(PositionError, match="has been up all the time"):
            source.live()
    else:
        source.live()
        source.check()


def test_a_partition_whose_end_cannot_be_read_any_more_is_damaged_and_nothing_more_is_sent_there(source, monkeypatch):
    """Seen with a real server: what it confirmed after a kill lay behind torn bytes, and no reader ever got it."""
    partition = partition_with_records(source)
    before = len(source.server.messages("kit", "records", partition))
    read = source.server.read

    def torn(stream, topic, number, offset, count):
        found = read(stream, topic, number, offset, count)
        damaged = (topic, number) == ("records", partition)
        return [one for one in found if not (damaged and one.offset >= before - 3)]

    monkeypatch.setattr(source.server, "read", torn)
    with pytest.raises(
        PositionError, match=rf'partition {partition} of topic "records" ends at offset {before - 1} .*damaged'
    ):
        source.live()
    assert len(source.server.messages("kit", "records", partition)) == before


def test_a_purged_topic_that_others_fill_again_is_noticed(source):
    source.server.purge_topic("kit", "records")
    connection = source.server.connect()
    for partition in range(2):
        for _ in range(40):
            connection.append("kit", "records", partition, b"of somebody else")
    connection.close()
    with pytest.raises(PositionError, match=rf"was purged.*others are in their place.*{WAYS_OUT}"):
        source.live()


def test_a_lane_whose_tail_was_lost_and_that_others_went_on_with_is_a_crash(source):
    partition = partition_with_records(source)
    source.server.lose_tail("kit", "records", partition, 3)
    connection = source.server.connect()
    for _ in range(9):
        connection.append("kit", "records", partition, b"of somebody else")
    connection.close()
    source.live()
    assert source.payloads() == source.once() + collections.Counter({b"of somebody else": 9})


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_what_retention_took_is_not_sent_again_even_when_it_took_all(source, keep):
    for partition in range(2):
        held = len(source.server.messages("kit", "records", partition))
        source.server.drop_head("kit", "records", partition, max(0, held - keep))
    left = source.payloads()
    source.live()
    assert source.payloads() == left


def test_an_idle_source_does_not_take_an_emptied_lane_for_a_loss(source, monkeypatch):
    monkeypatch.setattr("framework.engine.session.VERIFY_SECONDS", -1.0)
    for partition in range(2):
        source.server.drop_head("kit", "records", partition, 99)
    connection = source.server.connect()
    session = Session(connection, source.bench.config)
    session.lanes.verify_when_due()
    connection.close()


def test_messages_that_fell_to_retention_unaccounted_are_told(source, caplog):
    connection = source.server.connect()
    for partition in range(2):
        for _ in range(5):
            connection.append("kit", "records", partition, b"of somebody else")
    connection.close()
    source.server.drop_head("kit", "records", 0, len(source.server.messages("kit", "records", 0)) - 2)
    source.live()
    assert "3 messages fell to retention" in caplog.text


# ---- the two ways out


@pytest.mark.parametrize("harm", ["purge", "anew", "purge and fill"])
def test_after_a_purge_everything_comes_again_or_nothing_as_one_chooses(harm):
    for accept in (False, True):
        source = Source(partitions=2)
        source.live()
        if harm == "anew":
            source.server.delete_topic("kit", "records")
        else:
            source.server.purge_topic("kit", "records")
        others = 0
        if harm == "purge and fill":
            connection = source.server.connect()
            connection.append("kit", "records", 0, b"of somebody else")
            connection.close()
            others = 1
        with pytest.raises(PositionError, match=WAYS_OUT):
            source.live()
        by_hand(source, **({"accept": True} if accept else {"reset": Reset()}))
        put_lines(source.rig.store, "new", 4)
        source.expected["new"] = lines("new", 4)
        source.live()
        found = source.payloads()
        assert found.pop(b"of somebody else", 0) == others
        assert found == (collections.Counter(lines("new", 4)) if accept else source.once())
        source.live()
        assert stored(source) == sum(found.values()) + others


def test_accepting_a_purge_of_one_partition_does_not_forgive_the_loss_in_another():
    source = Source({"a": 5, "b": 7, "c": 11, "d": 9, "e": 6}, partitions=2)
    source.live()
    gone = {message.payload for message in source.server.messages("kit", "records", 1)}
    source.server._streams["kit"]["records"].partitions[1].messages.clear()
    source.server._streams["kit"]["records"].partitions[1].end = 0
    with pytest.raises(PositionError, match=r"partition 1.*was purged"):
        source.live()
    source.server.lose_tail("kit", "records", 0, 2)
    source.server.set_option("kit", "records", "messages_required_to_save", 1)
    by_hand(source, accept=True)
    source.live()
    assert source.payloads() == collections.Counter({p: 1 for p in source.once() if p not in gone})


def test_an_offsets_topic_that_is_gone_does_not_send_everything_again_by_itself(source):
    before = source.payloads()
    source.server.delete_topic("kit", LOG)
    with pytest.raises(PositionError, match=r'"kit-offsets" holds no positions.*' + WAYS_OUT):
        source.live()
    source.server.purge_topic("kit", LOG)
    by_hand(source, accept=True)
    put_lines(source.rig.store, "new", 4)
    source.live()
    assert source.payloads() == before + collections.Counter(lines("new", 4))


def lost_log(**options):
    """A source whose offsets topic is gone, behind its records some of others."""
    source = Source(partitions=2, **options)
    source.live()
    others(source, 3)
    source.server.delete_topic("kit", LOG)
    return source


def others(source, count):
    """Messages of a program that gives them no headers: random ids in one partition, small ones in the other."""
    connection = source.server.connect()
    for number in range(1, count + 1):
        connection.append("kit", "records", 0, b"of somebody else")
        connection.append("kit", "records", 1, b"of somebody else", message_id=number)
    connection.close()


@pytest.mark.parametrize("headers", ["none", "provenance"])
@pytest.mark.parametrize("accept", [True, False])
def test_an_offsets_topic_that_is_gone_is_noticed_behind_messages_of_others_and_without_headers(headers, accept):
    source = lost_log(headers=headers)
    before = source.payloads()
    said = "records without headers" if headers == "none" else 'records of source "kit"'
    with pytest.raises(PositionError, match=rf'"records" .*{said}.*"kit-offsets" holds no positions.*{WAYS_OUT}'):
        source.live()
    assert source.payloads() == before
    by_hand(source, **({"accept": True} if accept else {"reset": Reset()}))
    source.live()
    assert source.payloads() == (before if accept else before + source.once())


def test_records_without_headers_that_a_split_object_left_are_noticed():
    source = Source({"a": 300}, partitions=2, headers="none", split_size=1024, batch_length=50)
    source.live()
    source.server.delete_topic("kit", LOG)
    with pytest.raises(PositionError, match="records without headers"):
        source.live()


def test_messages_of_others_alone_keep_no_new_source_from_its_work():
    source = Source({"a": 5}, partitions=2, headers="none")
    connection = source.server.connect()
    connection.ensure_stream("kit")
    connection.create_topic("kit", "records", 2)
    connection.close()
    others(source, 40)
    source.live()
    assert source.payloads() == source.once() + collections.Counter({b"of somebody else": 80})


def test_an_offsets_topic_that_a_killed_server_lost_is_made_again_from_the_records():
    for at in range(30, len(Source(partitions=2).live().events) + 1, 9):
        source = Source(partitions=2)
        source.live(at)
        source.server.lose_tail("kit", LOG, 0, len(source.server.messages("kit", LOG)))
        source.live()
        source.check()


# ---- reset


def twice(*names):
    return collections.Counter(line for name, count in names for line in lines(name, count))


@pytest.mark.parametrize(
    ("choice", "again"),
    [
        (Reset(key="b"), [("b", 7)]),
        (Reset(key="b/"), []),
        (Reset(prefix="b"), [("b", 7), ("bb", 3)]),
        (Reset(prefix=""), [("a", 5), ("b", 7), ("bb", 3)]),
        (Reset(), [("a", 5), ("b", 7), ("bb", 3)]),
    ],
    ids=str,
)
@pytest.mark.parametrize("lost", [0, 1, 4])
def test_what_is_reset_is_read_once_more_and_the_tail_does_not_undo_it(choice, again, lost):
    counts = {"a": 5, "b": 7, "bb": 3}
    source = Source(counts, partitions=1)
    source.live()
    before = source.payloads()
    by_hand(source, reset=choice)
    if lost:  # the start has to go back behind the reset
        source.server.lose_tail("kit", "records", 0, lost)
        before = source.payloads()
    source.live()
    source.live()
    missing = source.once() - before
    expected = (
        before
        + twice(*again)
        + collections.Counter({payload: 1 for payload in missing if payload not in twice(*again)})
    )
    assert source.payloads() == expected


def test_a_kill_at_any_moment_of_a_reset_leaves_all_or_nothing():
    source = Source(partitions=1)
    source.live()
    count = CrashPoint()
    source.server.on_event = count
    by_hand(source, reset=Reset())
    for at in range(1, len(count.events) + 1):
        source = Source(partitions=1)
        source.live()
        source.server.on_event = CrashPoint(at)
        with pytest.raises(BaseException, match="append"):
            by_hand(source, reset=Reset(key="a"))
        source.server.on_event = None
        done_before = log_codec.decode(0, source.server.messages("kit", LOG)[-1].payload).kind == "snapshot"
        source.live()
        again = source.payloads() - source.once()
        assert again == (twice(("a", 5)) if done_before else collections.Counter())


def test_crashes_after_a_reset_lose_and_repeat_nothing_more():
    for at in range(1, 40, 4):
        source = Source(partitions=2)
        source.live()
        by_hand(source, reset=Reset(key="b"))
        source.live(at)
        source.live()
        assert source.payloads() == source.once() + twice(("b", 7))


def test_a_reset_is_refused_while_the_source_runs(source, monkeypatch):
    monkeypatch.setattr(fence, "__kwdefaults__", {**fence.__kwdefaults__, "limit_seconds": 0.0})
    running = source.server.connect()
    Session(running, source.bench.config)
    monkeypatch.setattr("framework.iggy.recovery.socket", SimpleNamespace(gethostname=lambda: "another"))
    with pytest.raises(SourceRunningError, match=r"running already, on .*process \d+, since 20"):
        by_hand(source, reset=Reset())
    running.close()


def test_a_choice_takes_what_it_says_and_survives_its_stored_form():
    for choice in (Reset(), Reset(key=""), Reset(key="a/b"), Reset(prefix="a/"), Reset(prefix="")):
        again = Reset.from_json(choice.to_json())
        for key in ("", "a/b", "a/bc", "a/", "b"):
            assert again.takes(key) == choice.takes(key)
    assert Reset(key="a").touches("")
    assert not Reset(key="a").touches("b/")
    assert Reset(prefix="a/b").touches("a/")
    assert Reset(prefix="a/").touches("a/b/")
    assert not Reset(prefix="a/").touches("b/")


# ---- taking over


def test_a_later_epoch_is_noticed_by_the_next_delta_and_while_idle():
    source = Source({"a": 3}, partitions=1)
    source.live()
    clock = FakeClock()
    old = source.server.connect()
    session = Session(old, source.bench.config)
    log = PositionLog(old, stream="kit", topic=LOG, source="kit")
    watches = [
        EpochWatch(log, epoch=session.recovered.epoch, since=session.recovered.base + 1, clock=clock) for _ in range(2)
    ]
    other = PositionLog(source.server.connect(), stream="kit", topic=LOG, source="kit")
    list(other.messages())
    other.claim(session.recovered.epoch + 1, leader=True)
    clock.sleep(2)
    for watch in watches:
        watch.look_when_due()  # who only claims yields
    other.claim(session.recovered.epoch + 2, leader=True, take_over=True)
    watches[0].look_when_due()
    clock.sleep(2)
    with pytest.raises(SourceTakenOverError, match=r"taken over by an instance on .*process"):
        watches[0].look_when_due()
    with pytest.raises(SourceTakenOverError):
        watches[1].appended(other.append(b"anything"))


def test_deltas_of_other_workers_of_the_same_epoch_disturb_nobody():
    source = Source({"a": 3}, partitions=1)
    source.live()
    connection = source.server.connect()
    session = Session(connection, source.bench.config)
    for number in range(200):
        mine = number % 3 == 0
        offset = session.log.append(log_codec.encode_claim("other", _claim(number)) if number % 2 else b"garbage")
        if mine:
            session.watch.appended(offset)


def _claim(epoch):
    return log_codec.Claim(epoch=epoch, host="h", process=1, leader=True, clients=(), token="t", take_over=True)


def test_who_is_taken_over_from_is_waited_for_and_then_left():
    source = Source({"a": 3}, partitions=1)
    source.live()
    old = source.server.connect()
    Session(old, source.bench.config)
    new = source.server.connect()
    claims = [
        log_codec.decode_claim(m)
        for m in PositionLog(new, stream="kit", topic=LOG, source="kit").messages()
        if m.kind == "claim"
    ]
    clock = FakeClock()
    fence(new, claims, source="kit", take_over=True, clock=clock, sleep=clock.sleep)
    assert sum(clock.waits) == pytest.approx(10, abs=0.1)


# ---- looking on


def test_an_inspection_sees_what_is_saved_writes_nothing_and_tells_who_runs(source):
    connection = source.server.connect()
    before = len(source.server.messages("kit", LOG))
    found = inspect(connection, source.bench.config)
    assert {entry.key: entry.records_done for entry in found.entries.view()} == {"a": 5, "b": 7, "c": 11}
    assert found.running == ()
    assert found.last_saved_us
    assert found.log_bytes
    assert len(source.server.messages("kit", LOG)) == before
    running = source.server.connect()
    session = Session(running, source.bench.config)
    found = inspect(connection, source.bench.config)
    assert [claim.epoch for claim in found.running] == [session.recovered.epoch]
    assert found.epoch == session.recovered.epoch
    source.server.purge_topic("kit", "records")
    assert len(inspect(connection, source.bench.config).entries) == 3
