"""The front of the log goes, and nothing that a start could need: whatever was deleted, the state that loads is the same."""

import pytest

from framework.iggy import log_codec, log_trim
from framework.iggy.checkpoints import CheckpointLoader
from framework.iggy.log_trim import trim, trim_in_steps
from framework.iggy.position_log import PositionLog, arrange
from tests.support.folding import ClockStore, Leader, wanted

SEGMENT = 3000


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(log_trim, "SLACK_BYTES", 0)


def log_of(one):
    return PositionLog(one.server.connect(), stream="kit", topic="kit-offsets", source="kit")


def kept(one):
    return one.server.messages("kit", "kit-offsets")


def state(one):
    """What a start would load."""
    position_log = log_of(one)
    loaded = CheckpointLoader(position_log, arrange(position_log.outline(), "kit").checkpoints).load()
    return sorted(loaded.entries.view(), key=lambda entry: entry.key), loaded.anchors, loaded.watermark


def busy(rounds, *, segment_bytes=SEGMENT, window="10s"):
    """A leader that reads, saves, and writes a snapshot now and then."""
    store = ClockStore()
    one = Leader(store, window=window)
    one.server.segment_bytes = segment_bytes
    for number in range(rounds):
        store.put_now(f"k{number:03}")
        store.now_ms += 1000
        one.whole_pass()
        one.save()
        if number % 6 == 5:
            one.fold()
    return store, one


def test_segments_before_the_newest_two_snapshots_go_and_the_state_stays():
    store, one = busy(60)
    before, count = state(one), len(kept(one))
    assert trim(one.session.log, epoch=one.session.recovered.epoch) > 3
    assert len(kept(one)) < count
    assert state(one) == before
    assert len(arrange(log_of(one).outline(), "kit").checkpoints) >= 2
    one.start()
    one.quiet()
    assert sorted(one.stored()) == sorted(wanted(store))


def test_a_start_trims_by_itself():
    _, one = busy(60)
    count = len(kept(one))
    one.start()
    assert len(kept(one)) < count


def test_who_runs_is_still_in_the_log_and_is_found():
    _, one = busy(60)
    claim = one.session.connection.own_client()
    assert trim(one.session.log, epoch=one.session.recovered.epoch) > 3
    view = arrange(log_of(one).outline(), "kit")
    assert [(claim.client_id, claim.address)] == [pair for _, found in view.claims for pair in found.clients][-1:]
    assert view.winner(one.session.recovered.epoch) is not None


def test_claims_that_are_written_again_do_not_pile_up_in_a_long_run():
    store, one = busy(12)
    trimmed = 0
    for number in range(60):
        store.put_now(f"later{number:03}")
        store.now_ms += 1000
        one.whole_pass()
        one.fold()
        trimmed += trim(one.session.log, epoch=one.session.recovered.epoch) > 0
    assert trimmed > 5
    claims = arrange(log_of(one).outline(), "kit").claims
    assert len(claims) <= 3, "one may still stand in a segment that was not deleted yet"
    assert len({claim.token for _, claim in claims}) == 1


def test_what_a_server_that_saves_seldom_may_lose_keeps_its_snapshots():
    _, one = busy(60)
    one.server.set_option("kit", "records", "messages_required_to_save", 1024)
    count = len(kept(one))
    assert trim(one.session.log, epoch=one.session.recovered.epoch) == 0
    assert len(kept(one)) == count
    one.server.set_option("kit", "records", "messages_required_to_save", 8)
    assert trim(one.session.log, epoch=one.session.recovered.epoch) > 0
    ends = [len(one.server.messages("kit", "records", partition)) for partition in range(2)]
    for partition in range(2):
        one.server.lose_tail("kit", "records", partition, min(8, ends[partition]))
    one.start()
    one.quiet()
    assert len(one.stored()) == len(set(one.stored())) == 120


def test_a_log_that_another_source_writes_to_as_well_is_left_alone():
    _, one = busy(60)
    other = PositionLog(one.server.connect(), stream="kit", topic="kit-offsets", source="other")
    other.claim(1, leader=True)
    count = len(kept(one))
    assert trim(one.session.log, epoch=one.session.recovered.epoch) == 0
    assert len(kept(one)) == count


def test_the_log_is_read_a_few_messages_at_a_time_while_it_goes_on(monkeypatch):
    """All at once would hold the sender up: half a second for a log of 20,000 deltas."""
    monkeypatch.setattr(log_trim, "STEP_MESSAGES", 10)
    monkeypatch.setattr("framework.iggy.position_log.MOST_READ_MESSAGES", 10)
    monkeypatch.setattr("framework.iggy.position_log.READ_MESSAGES", 10)
    store, one = busy(60)
    count, polls, read = len(kept(one)), [], one.server.read
    monkeypatch.setattr(one.server, "read", lambda *asked: polls.append(asked) or read(*asked))
    steps, number = trim_in_steps(log_of(one), epoch=one.session.recovered.epoch), 0
    while True:
        polls.clear()
        if next(steps, "over") == "over":
            break
        number += 1
        assert len(polls) <= 2
        store.put_now(f"meanwhile{number}")
        store.now_ms += 1000
        one.whole_pass()
        one.save()
        before = state(one)
    assert number >= count // 10
    assert kept(one)[0].offset > 0
    assert state(one) == before
    one.start()
    one.quiet()
    assert sorted(one.stored()) == sorted(wanted(store))


def test_what_was_left_out_within_the_hour_stays_in_the_log():
    _, one = busy(6)
    one.session.offsets.note_left_out(5)
    one.save()
    at = kept(one)[-1].offset
    for number in range(60):
        one.store.put_now(f"more{number:03}")
        one.whole_pass()
        one.save()
        if number % 6 == 5:
            one.fold()

    def left_out():
        return [late.count for late in arrange(log_of(one).outline(), "kit").left_out_lately()]

    trim(one.session.log, epoch=one.session.recovered.epoch)
    assert kept(one)[0].offset <= at
    assert left_out() == [5]
    for _ in range(1800):
        one.server.restart()
    one.start()
    trim(one.session.log, epoch=one.session.recovered.epoch)
    assert kept(one)[0].offset > at
    assert left_out() == []


@pytest.mark.parametrize("segment_bytes", [None, 1 << 30])
def test_large_segments_or_ones_of_unknown_size_are_left_alone(segment_bytes):
    _, one = busy(30, segment_bytes=segment_bytes)
    assert trim(one.session.log, epoch=one.session.recovered.epoch) == 0


def test_deltas_beside_a_snapshot_count_although_the_snapshot_before_it_is_gone():
    _, one = busy(14)
    since = one.session.log.end()
    one.store.put_now("beside")
    one.whole_pass()
    one.save()
    positions, closing = one.session._state()

    for payload in log_codec.encode_snapshot("kit", one.session.recovered.epoch, positions, closing, since=since):
        one.session.log.append(payload)
    before = state(one)
    for count in range(1, since + 1):
        one.server.drop_head("kit", "kit-offsets", 0, 1)
        assert kept(one)[0].offset == count
        assert state(one) == before


def test_at_every_size_of_a_segment_nothing_that_is_needed_goes():
    for segment_bytes in range(500, 6000, 700):
        _, one = busy(40, segment_bytes=segment_bytes)
        before = state(one)
        trim(one.session.log, epoch=one.session.recovered.epoch)
        assert state(one) == before
        assert len(arrange(log_of(one).outline(), "kit").checkpoints) >= 2
