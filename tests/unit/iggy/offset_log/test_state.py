"""What records do to the state of the log."""

from msgspec.structs import replace

from framework.iggy.offset_log import codec, framing
from framework.iggy.offset_log.records import Claim, LogFacts, Progress, ProgressItem, TopicIdentity
from framework.iggy.offset_log.state import LogState
from framework.model.message_ids import entry_hash64
from framework.model.objects import Anchor, TopicPartition
from framework.offsets.selection_scope import SelectionScope
from framework.offsets.skip_history import SkippedCount
from framework.offsets.watermark import CoveredRange, Watermark
from tests.support.positions import position

OF_A = entry_hash64("kit", position("a"))


def test_progress_of_the_owner_changes_every_count_and_nothing_else():
    before = position("a")
    state = LogState(source="kit")
    state.begin([before])
    state.owners[before.topic_partition] = "owner"
    item = ProgressItem(
        object_hash=OF_A,
        split_number=before.split_number,
        saved=3,
        sent=5,
        total=9,
        failed=True,
        skipped=2,
        extra={"row": 7},
    )
    after = before.changed(
        records_saved=3, records_done=5, total=9, failed=True, skipped=2, mark=None, extra={"row": 7}
    )
    assert state.advance(Progress(items=[item]), "another", 7) == []
    assert state.find(OF_A, before.split_number) == before
    assert state.advance(Progress(items=[item]), "owner", 7) == [(before, after)]
    assert state.find(OF_A, before.split_number) == after


def test_positions_were_saved_when_a_record_about_them_was_stored_not_when_a_source_started():
    state = LogState(source="kit")
    records = [
        codec.encode_claim("kit", Claim(epoch=1, host="h", process=1, leader=True, client=(1, "a"), token="w")),
        codec.encode_opening("kit", 1, fenced=0),
        codec.encode_begin("kit", 1, [position("a")]),
        codec.encode_opening("kit", 2, fenced=0),
    ]
    saved_us = []
    for offset, payload in enumerate(records):
        state.apply(framing.decode(offset, payload, 10 + offset))
        saved_us.append(state.saved_us)
    assert (saved_us, state.now_us) == ([0, 0, 12, 12], 13)


def test_a_worker_is_told_what_the_log_says_of_its_partitions_and_nothing_else():
    own, other = TopicPartition("t", 0), TopicPartition("t", 1)
    both = {own: Anchor(1, 2, 3), other: Anchor(4, 5, 6)}
    topics = dict.fromkeys(both, TopicIdentity(topic_id=1, created_at=2))
    state = LogState(
        source="kit", anchors=both, topics=topics, counted=both, closed={own: 1, other: 4}, skipped=[(1, 1)]
    )
    assert state.of_partitions([own]) == LogFacts(
        anchors={own: both[own]}, topics={own: topics[own]}, counted={own: both[own]}, closed={own: 1}
    )


def test_an_anchor_alone_reopens_a_partition_that_was_closed():
    at = TopicPartition("t", 0)
    state = LogState(source="s", owners={at: "writer"}, closed={at: 5})
    state.advance(Progress(anchors={at: Anchor(7, 1)}), "another", 0)
    assert state.closed == {at: 5}
    state.advance(Progress(anchors={at: Anchor(7, 1)}), "writer", 0)
    assert state.closed == {}


def test_a_log_in_which_the_selection_changed_has_the_watermark_that_is_left_of_it():
    first = SelectionScope(bucket="b", prefixes=("",), options={})
    state = LogState(source="kit", selected=first, watermark=raised_to(9))
    state.begin([], replace(first, prefixes=("", "more/")))
    assert state.watermark == raised_to(9)
    state.begin([], replace(first, options={"filter": "x"}))
    assert state.watermark == Watermark(bucket="b")


def test_skips_count_for_an_hour_by_the_time_of_the_last_record():
    now_us, hour_us = 10**16, 3_600_000_000
    skipped = [(now_us - hour_us - 1, 1), (now_us - hour_us, 2), (now_us - hour_us + 1, 4), (now_us, 8)]
    state = LogState(source="kit", now_us=now_us, skipped=skipped)
    assert state.skipped_lately() == [SkippedCount(3599.999999, 4), SkippedCount(0.0, 8)]
    assert state.footer().skipped == skipped[2:]


def test_a_writer_that_makes_no_snapshots_forgets_what_it_skipped_more_than_an_hour_ago():
    state, minute_us = LogState(source="kit"), 60_000_000
    for minute in range(1000):
        state.count_skipped(minute * minute_us, 1)
    state.advance(Progress(skipped=3), "a worker", 1000 * minute_us)
    assert state.skipped == [(minute * minute_us, 1) for minute in range(941, 1000)] + [(1000 * minute_us, 3)]


def raised_to(time_ms):
    return Watermark(bucket="b").raised("", CoveredRange("", None, time_ms))
