"""The log as a store of positions: what a writer's changes become in the log, and what they change in the state."""

import types

import pytest

from framework.discovery.splitting import MAX_BEGUN_BYTES
from framework.errors import IggyAuthError, IggyProtocolError
from framework.iggy.offset_log import codec, framing, log_offset_store, record_size
from framework.iggy.offset_log.log_offset_store import LogOffsetStore, manager_of
from framework.iggy.offset_log.lost_log import mark_of
from framework.iggy.offset_log.records import Claim, PartitionOpening, Progress, ProgressItem, TopicIdentity
from framework.iggy.offset_log.state import LogState
from framework.iggy.wire import MAX_PAYLOAD_BYTES
from framework.model.message_ids import entry_hash64
from framework.model.objects import Anchor, ResumePoint, TopicPartition
from framework.model.positions import OffsetManagerKey
from framework.offsets.listing_hints import ListingHints
from framework.offsets.offset_store import PositionDelta
from framework.offsets.partition_counts import PartitionState
from framework.offsets.selection_scope import SelectionScope
from framework.testing.clock import FakeClock
from tests.support.positions import LOG, loaded, log_over, position, records, server_with_log

PARTITION = TopicPartition("records", 0)
OTHER = TopicPartition("others", 1)
SELECTED = SelectionScope(bucket="bucket", prefixes=("a/",), options={"filter": "x"})
STARTED_US = 5_000_000


class Rig:
    """The store of one writer in epoch 3, on a clock that stands still."""

    def __init__(self, monkeypatch, **options):
        self.clock = FakeClock()
        monkeypatch.setattr(log_offset_store, "time", types.SimpleNamespace(monotonic=self.clock))
        self.clock.advance(100)
        self.server = server_with_log()
        self.connection = self.server.connect()
        for topic in ("records", "others"):
            self.connection.create_topic("kit", topic, 2)
        self.state = LogState(source="kit", now_us=STARTED_US)
        self.store = LogOffsetStore(log_over(self.connection), self.state, epoch=3, writer="token", **options)

    def last(self):
        return records(self.server)[-1]

    def marked(self):
        return [topic for topic in ("others", "records") if self.connection.has_group("kit", topic, mark_of("kit"))]


@pytest.fixture
def rig(monkeypatch):
    return Rig(monkeypatch)


def test_what_a_manager_learns_is_in_the_snapshots_of_its_leader():
    """The log does not return to a writer what it wrote itself."""
    state = LogState(source="kit")
    manager = manager_of(state)
    hints, anchor = ListingHints(of="s3://bucket"), Anchor(3, 1)
    manager.add_entry(position("a"))
    manager.hints.set("a/", hints)
    manager.partitions.open(PARTITION, PartitionState(), anchor=anchor)
    footer = state.footer()
    assert (footer.anchors, footer.listings) == ({PARTITION: anchor}, {"a/": hints})
    assert [entry.key for entry in state.positions.view()] == ["a"]


@pytest.mark.parametrize("pipelined", [False, True])
def test_very_many_positions_that_start_are_several_records_of_whole_objects(monkeypatch, pipelined):
    """Objects in an order begin together, when all are listed: one record would be larger than a start can read."""
    monkeypatch.setattr(record_size, "MAX_ROWS", 3)
    rig = Rig(monkeypatch, pipelined=pipelined)
    splits = [position("b", split_number=number, split_size=64) for number in range(1, 5)]
    begun = [position("a"), *splits, *(position(key) for key in "cdef")]
    rig.store.begin(PositionDelta(begun=begun, selected=SELECTED))
    decoded = [codec.decode_begin(record) for record in records(rig.server)]
    assert [[entry.key for entry in entries] for entries, _ in decoded] == [["a"], list("bbbb"), list("cd"), list("ef")]
    assert [entry for entries, _ in decoded for entry in entries] == begun
    assert [selected for _, selected in decoded] == [SELECTED] * 4, "before the first position starts"


def test_split_objects_that_start_are_several_records_of_whole_objects(monkeypatch):
    monkeypatch.setattr(record_size, "MAX_ROWS", 4)
    rig = Rig(monkeypatch)
    begun = [position(key, split_number=number, split_size=64) for key in "abc" for number in (1, 2)]
    rig.store.begin(PositionDelta(begun=begun))
    decoded = [codec.decode_begin(record)[0] for record in records(rig.server)]
    assert [[entry.key for entry in entries] for entries in decoded] == [list("aa"), list("bbcc")]


def test_a_start_can_read_the_largest_records_and_iggy_stores_them():
    """Besides those of one row; the splits of an object are one."""
    assert record_size.MAX_BYTES + MAX_BEGUN_BYTES < framing.MAX_BODY_BYTES
    assert record_size.MAX_BYTES < MAX_PAYLOAD_BYTES


@pytest.mark.parametrize("extra", [{}, {"note": "x" * 30}])
def test_positions_with_long_names_start_in_records_that_a_start_can_read(monkeypatch, extra):
    """A store of one's own may have keys of 10,000 characters, and data of its own."""
    rig = Rig(monkeypatch, pipelined=False)
    begun = [position(character * 10, extra=extra) for character in "abcdefg"]
    most = len(framing.decode(0, codec.encode_begin("kit", 3, begun[:2])).unpacked())
    monkeypatch.setattr(record_size, "MAX_BYTES", most)
    rig.store.begin(PositionDelta(begun=begun))
    written = records(rig.server)
    decoded = [codec.decode_begin(record)[0] for record in written]
    assert [entry for entries in decoded for entry in entries] == begun
    assert [len(entries) for entries in decoded] == [1, 2, 2, 2]
    assert all(len(record.unpacked()) <= most for record in written)


@pytest.mark.parametrize("limit", ["MAX_ROWS", "MAX_BYTES"])
def test_progress_is_one_record_as_long_as_it_is_no_larger(monkeypatch, rig, limit):
    entries = [position(f"{number}", 1) for number in range(3)]
    delta = PositionDelta(entries=entries, anchors={PARTITION: Anchor(1, 2)})
    rig.store.save(delta)
    (whole,) = records(rig.server)
    size = {"MAX_ROWS": 4, "MAX_BYTES": len(whole.unpacked())}[limit]
    monkeypatch.setattr(record_size, limit, size)
    rig.store.save(delta)
    assert len(records(rig.server)) == 2
    monkeypatch.setattr(record_size, limit, size - 1)
    rig.store.save(delta)
    assert len(records(rig.server)) == 4


@pytest.mark.parametrize("most", [1, 3, 7, 5000])
def test_what_is_too_much_for_a_record_of_progress_is_divided_and_a_start_reads_it(monkeypatch, most):
    """Also when it finds only the first parts: no anchor is ahead of a count, and no end is behind its anchor."""
    monkeypatch.setattr(record_size, "MAX_ROWS", most)
    rig = Rig(monkeypatch)
    places = [TopicPartition("records", number) for number in range(3)]
    identity = TopicIdentity(topic_id=1, created_at=2)
    opened = [PartitionOpening(topic_partition=place, topic=identity, anchor=Anchor(1, 1)) for place in places]
    begun = [position(f"{number}", partition=number % 3) for number in range(7)]
    log = log_over(rig.connection)
    log.append(
        codec.encode_claim("kit", Claim(epoch=1, host="h", process=1, leader=True, client=(1, "a"), token="token"))
    )
    log.append(codec.encode_opening("kit", 3, fenced=0))
    log.append(codec.encode_begin("kit", 3, begun))
    log.append(codec.encode_open("kit", 3, "token", opened))
    delta = PositionDelta(
        entries=[entry.changed(records_done=5, records_saved=5, total=9, extra={"row": 3}) for entry in begun[1:]],
        anchors=dict.fromkeys(places, Anchor(9, 9)),
        counted=dict.fromkeys(places, Anchor(9, 9)),
        closed=dict.fromkeys(places, 9),
        removed=[begun[0].get_manager_key()],
        listings={"a/": ListingHints(of="s3://bucket", keys=("a/b",), counts=(4,))},
        skipped=2,
        selected=SELECTED,
    )
    before = len(records(rig.server))
    rig.store.save(delta)
    written = records(rig.server)[before:]
    assert (len(written) == 1) == (most == 5000)
    for count in range(len(written) + 1):
        state = loaded(
            server_with_log(*(message.payload for message in rig.server.messages("kit", LOG)[: before + count]))
        )
        is_saved = [entry.records_saved == 5 for entry in state.positions.view() if entry.key != "0"]
        assert all(is_saved) or all(anchor.offset == 1 for anchor in state.anchors.values())
        assert all(state.anchors[place].offset == 9 for place in {*state.closed, *state.counted})
    assert sorted(state.positions.view(), key=lambda entry: entry.key) == list(delta.entries)
    assert (state.anchors, state.counted, state.closed) == (delta.anchors, delta.counted, delta.closed)
    assert (state.listings, state.selected) == (delta.listings, SELECTED)
    assert [count for _, count in state.skipped] == [2]


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("selected", [None, SELECTED])
def test_positions_that_start_are_one_record(monkeypatch, pipelined, selected):
    rig = Rig(monkeypatch, pipelined=pipelined)
    begun = [position("a", generation=2), position("b")]
    rig.store.begin(PositionDelta(begun=begun, selected=selected))
    (record,) = records(rig.server)
    assert (record.kind, record.source, record.epoch) == ("begin", "kit", 3)
    assert codec.decode_begin(record) == (begun, selected)


def test_records_of_an_object_wait_for_the_record_in_which_it_begins(monkeypatch):
    rig = Rig(monkeypatch, pipelined=True)
    begins = []
    submit = rig.connection.submit_append
    monkeypatch.setattr(
        rig.connection, "submit_append", lambda *a, **k: (begins.append(k["begins"]), submit(*a, **k))[1]
    )
    rig.store.begin(PositionDelta(begun=[position("a", split_number=2, split_size=64), position("b", bucket="other")]))
    rig.store.save(PositionDelta(entries=[position("c", 1)]))
    assert [set(names) for names in begins] == [{("bucket", "a"), ("other", "b")}, set()]


def test_progress_of_a_position_that_started_here_is_understood(rig):
    begun = position("a")
    rig.state.positions[begun.get_manager_key()] = begun
    assert rig.state.find(entry_hash64("kit", begun), 0) is None
    rig.store.begin(PositionDelta(begun=[begun]))
    assert rig.state.find(entry_hash64("kit", begun), 0) == begun


def test_a_final_position_is_not_kept_for_progress(rig):
    """Between two snapshots there may be a hundred thousand."""
    begun, other = position("a"), position("b")
    rig.state.begin([begun, other])
    rig.store.begin(PositionDelta(begun=[begun, other]))
    rig.store.save(PositionDelta(entries=[begun.changed(records_done=3, records_saved=3, total=3)]))
    assert rig.state.find(entry_hash64("kit", begun), 0) is None
    assert rig.state.find(entry_hash64("kit", other), 0) == other


def test_a_change_is_one_record_with_everything_in_it(rig):
    entry = position(
        "a",
        7,
        records_saved=5,
        total=9,
        failed=True,
        skipped=2,
        split_number=2,
        split_size=64,
        mark=ResumePoint(6, 60),
        extra={"row": 3},
    )
    removed = OffsetManagerKey.of_object("bucket", "gone")
    hints = {"a/": ListingHints(of="s3://bucket", keys=("a/b",), counts=(4,))}
    rig.store.save(
        PositionDelta(
            entries=[entry],
            anchors={PARTITION: Anchor(4, 77, 5)},
            removed=[removed],
            listings=hints,
            skipped=2,
            selected=SELECTED,
            counted={PARTITION: Anchor(4, 77, 5)},
            closed={PARTITION: 4},
        )
    )
    record = rig.last()
    assert (record.kind, record.source, record.epoch, record.writer) == ("progress", "kit", 3, "token")
    item = ProgressItem(
        object_hash=entry_hash64("kit", entry),
        split_number=2,
        saved=5,
        sent=7,
        total=9,
        failed=True,
        skipped=2,
        mark=ResumePoint(6, 60),
        extra={"row": 3},
    )
    assert codec.decode_progress(record) == Progress(
        items=[item],
        anchors={PARTITION: Anchor(4, 77, 5)},
        counted={PARTITION: Anchor(4, 77, 5)},
        closed={PARTITION: 4},
        removed=[removed],
        listings=hints,
        skipped=2,
        selected=SELECTED,
    )


def test_a_partition_is_closed_until_something_is_written_there_again(rig):
    rig.state.owners = dict.fromkeys((PARTITION, OTHER), "token")
    rig.state.closed = {OTHER: 8}
    rig.store.save(PositionDelta(closed={PARTITION: 4}))
    assert rig.state.closed == {OTHER: 8, PARTITION: 4}
    rig.store.save(PositionDelta(anchors={PARTITION: Anchor(5, 78)}))
    assert rig.state.closed == {OTHER: 8}
    rig.store.save(PositionDelta(anchors={PARTITION: Anchor(6, 79), OTHER: Anchor(9, 1)}, closed={PARTITION: 6}))
    assert rig.state.closed == {PARTITION: 6}
    rig.store.save(PositionDelta(anchors={PARTITION: Anchor(7, 80)}))
    assert rig.state.closed == {}


def test_an_end_counts_for_nothing_where_another_writer_has_taken_over(rig):
    rig.state.owners = {PARTITION: "token", OTHER: "another"}
    ends = dict.fromkeys((PARTITION, OTHER), Anchor(4, 5, 6))
    rig.store.save(PositionDelta(counted=ends, closed=dict.fromkeys(ends, 4)))
    assert (rig.state.counted, rig.state.closed) == ({PARTITION: Anchor(4, 5, 6)}, {PARTITION: 4})


def test_skips_count_at_the_servers_time(rig):
    rig.clock.advance(2)
    rig.store.save(PositionDelta(skipped=3))
    rig.store.save(PositionDelta(anchors={PARTITION: Anchor(5, 78)}))
    rig.state.now_us = STARTED_US + 9_000_000  # the server's clock went faster
    rig.store.save(PositionDelta(skipped=1))
    assert rig.state.skipped == [(STARTED_US + 2_000_000, 3), (STARTED_US + 9_000_000, 1)]


def test_topics_that_were_written_are_marked_once_each(rig, monkeypatch):
    asked = []
    ensure = rig.connection.ensure_group
    monkeypatch.setattr(rig.connection, "ensure_group", lambda *place: asked.append(place) or ensure(*place))
    rig.store.save(PositionDelta(skipped=1))
    assert (asked, rig.marked()) == ([], [])
    for _ in range(2):
        rig.store.save(PositionDelta(skipped=1, written={PARTITION, TopicPartition("records", 1)}))
    assert (asked, rig.marked()) == ([("kit", "records", mark_of("kit"))], ["records"])
    rig.store.note_marked("others")
    rig.store.save(PositionDelta(skipped=1, written={PARTITION, OTHER}))
    assert rig.marked() == ["records"]


@pytest.mark.parametrize("error", [IggyAuthError, IggyProtocolError])
def test_a_user_who_may_not_mark_topics_saves_positions_all_the_same(rig, monkeypatch, error, caplog):
    asked = []

    def refused(stream, topic, group):
        asked.append(topic)
        raise error("not allowed")

    monkeypatch.setattr(rig.connection, "ensure_group", refused)
    caplog.set_level("DEBUG", logger=log_offset_store.__name__)
    for _ in range(2):
        rig.store.save(PositionDelta(skipped=1, written=[PARTITION, OTHER]))
    assert asked == ["others", "records"]
    assert [record.kind for record in records(rig.server)] == ["progress", "progress"]
    assert caplog.messages == [f"no mark on topic {topic}: not allowed" for topic in ("others", "records")]


def test_there_is_nothing_to_load_for_the_start_has_read_the_log(rig):
    rig.store.begin(PositionDelta(begun=[position("a")]))
    assert list(rig.store.load()) == []
    assert dict(rig.store.load_listings()) == {}
