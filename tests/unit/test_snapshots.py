"""When a snapshot is written while a source runs: by size, part by part, and only once others' deltas are known."""

import itertools

import pytest

from framework.engine import snapshots
from framework.engine.snapshots import SnapshotWriter
from framework.iggy import log_codec
from framework.iggy.log_codec import Closing
from framework.offsets import OffsetManagerEntry, PositionDelta, merge_into, position_map
from framework.records import Lane, ObjectState
from framework.testing.clock import FakeClock


class Log:
    """The log, as the writer sees it; an append takes a while."""

    source = "kit"

    def __init__(self, clock):
        self.clock = clock
        self.append_seconds = 0.0
        self.messages = []

    def end(self):
        return len(self.messages)

    def append(self, payload):
        self.clock.advance(self.append_seconds)
        self.messages.append(payload)
        return len(self.messages) - 1

    def snapshots(self):
        """Of each part that is there: its number, how many there are, and the moment."""
        found = [log_codec.decode(at, payload) for at, payload in enumerate(self.messages)]
        return [(one.part, one.parts, one.since) for one in found if one.kind == "snapshot"]


class Rig:
    """A leader's books: each save is a delta in the log."""

    def __init__(self):
        self.clock = FakeClock()
        self.log = Log(self.clock)
        self.positions = position_map()
        self.number = 0
        self.writer = SnapshotWriter(
            self.log,
            epoch=7,
            state=lambda: (self.positions.view(), Closing()),
            count=self.positions.__len__,
            clock=self.clock,
        )

    def save(self, new=1, again=0):
        """A delta about so many new objects and so many that are known."""
        entries = []
        for _ in range(new + again):
            key = f"folder/{self.number if new > 0 else 0:08}"
            self.number, new = self.number + (new > 0), new - 1
            entry = OffsetManagerEntry(
                bucket="b", key=key, version="v", records_done=1, lane=Lane("t", 0), state=ObjectState.DONE
            )
            entries.append(merge_into(self.positions, entry))
        delta = PositionDelta(entries=entries)
        self.log.messages.append(log_codec.encode_delta("kit", 7, 0, delta))
        self.writer.saved(delta)
        self.writer.advance()


def test_the_first_snapshot_comes_after_some_deltas_whatever_their_size():
    rig = Rig()
    for _ in range(snapshots.SNAPSHOT_DELTAS - 1):
        rig.save(new=3)
    assert rig.log.snapshots() == []
    rig.save()
    assert rig.log.snapshots() == [(1, 1, 1000)]
    for _ in range(snapshots.SNAPSHOT_DELTAS):
        rig.save()
    assert len(rig.log.snapshots()) == 2


@pytest.mark.parametrize("known", [0, 5_000])
def test_all_snapshots_together_are_about_as_large_as_all_deltas(known, monkeypatch):
    monkeypatch.setattr(snapshots, "SNAPSHOT_DELTAS", 10)
    rig = Rig()
    rig.writer.saved(PositionDelta())
    for number in range(known):
        merge_into(rig.positions, OffsetManagerEntry(bucket="b", key=f"old/{number}", version="v", lane=Lane("t", 0)))
    size = {"delta": 0, "snapshot": 0}
    for _ in range(600):
        rig.save(new=40, again=10)
    for at, payload in enumerate(rig.log.messages):
        size[log_codec.decode(at, payload).kind] += len(payload)
    written = [parts for part, parts, _ in rig.log.snapshots() if part == parts]
    assert 1 <= len(written) < 12
    assert size["snapshot"] < 2 * size["delta"]


def test_many_positions_and_few_changes_are_written_seldom():
    rig = Rig()
    for number in range(30_000):
        merge_into(rig.positions, OffsetManagerEntry(bucket="b", key=str(number), version="v", lane=Lane("t", 0)))
    for _ in range(4000):
        rig.save(new=0, again=1)
    assert rig.log.snapshots() == []
    for _ in range(2000):
        rig.save(new=0, again=1)
    assert rig.log.snapshots()


def test_a_snapshot_goes_on_part_by_part_and_leaves_time_for_the_rest(monkeypatch):
    monkeypatch.setattr(snapshots, "SNAPSHOT_DELTAS", 1)
    monkeypatch.setattr(log_codec, "PART_BYTES", 1 << 19)
    rig = Rig()
    rig.log.append_seconds = 0.25
    rig.save(new=9000)
    began = rig.clock()
    assert rig.log.snapshots() == [(1, 2, 1)]
    for _ in range(3):
        rig.save()
        rig.clock.advance(0.25)
    assert rig.log.snapshots() == [(1, 2, 1)]
    rig.clock.advance(0.5)
    rig.save()
    assert rig.log.snapshots() == [(1, 2, 1), (2, 2, 1)]
    assert rig.clock() - began >= snapshots.PAUSE_PARTS * 0.25


def test_what_is_finished_meanwhile_is_in_the_next_snapshot(monkeypatch):
    monkeypatch.setattr(snapshots, "SNAPSHOT_DELTAS", 1)
    monkeypatch.setattr(log_codec, "PART_BYTES", 1 << 19)
    rig = Rig()
    rig.save(new=9000)
    for _ in range(20):
        rig.save(again=1000)
    parts = [
        message for message in map(log_codec.decode, itertools.count(), rig.log.messages) if message.kind == "snapshot"
    ]
    first = [part for part in parts if part.since == parts[0].since]
    assert sum(1 for part in first for _ in log_codec.decode_entries(part)) == 9000
    assert parts[-1].since > parts[0].since


def test_with_other_writers_the_moment_is_settled_before_the_state_is_taken(monkeypatch):
    monkeypatch.setattr(snapshots, "SNAPSHOT_DELTAS", 2)
    rig = Rig()
    rig.writer.others_write = True
    rig.save()
    rig.save()
    moment = len(rig.log.messages)
    for _ in range(3):
        rig.clock.advance(snapshots.SETTLE_SECONDS / 4)
        rig.save()
        assert rig.log.snapshots() == []
    rig.clock.advance(snapshots.SETTLE_SECONDS / 4)
    rig.writer.advance()
    assert rig.log.snapshots() == [(1, 1, moment)]
    (last,) = [
        message for message in map(log_codec.decode, itertools.count(), rig.log.messages) if message.kind == "snapshot"
    ]
    assert len(list(log_codec.decode_entries(last))) == 5


def test_a_broken_append_leaves_a_snapshot_that_counts_for_nothing(monkeypatch):
    monkeypatch.setattr(snapshots, "SNAPSHOT_DELTAS", 1)
    rig = Rig()

    def broken(payload):
        raise ConnectionError

    rig.log.append = broken
    with pytest.raises(ConnectionError):
        rig.save()
    assert rig.log.snapshots() == []


@pytest.mark.parametrize(
    ("count", "foldable", "due"), [(40, 20, True), (40, 19, False), (41, 20, False), (19, 19, False)]
)
def test_a_snapshot_is_due_when_it_would_be_without_half_of_many_positions(count, foldable, due, monkeypatch):
    monkeypatch.setattr(snapshots, "FOLD_FROM", 20)
    rig = Rig()
    writer = SnapshotWriter(
        rig.log,
        epoch=7,
        state=lambda: (rig.positions.view(), Closing()),
        count=lambda: count,
        foldable=lambda: foldable,
        clock=rig.clock,
    )
    writer.advance()
    assert bool(rig.log.snapshots()) is due
