"""What people do to topics and positions: resets that nothing undoes, changes that are accepted, all or nothing."""

import collections
import itertools
import logging

import attrs
import pytest
from msgspec.structs import replace

from framework.config.format_registry import make_transformer
from framework.engine import positions_admin
from framework.engine.inspection import inspect
from framework.engine.positions_admin import accept_changes, reopen_objects, reset_positions, set_position
from framework.engine.session import Session
from framework.engine.topic_checks import ensure_offsets_topic
from framework.errors import (
    IggyUnavailableError,
    PositionError,
    PositionMismatchError,
    RecordError,
    SourceError,
)
from framework.iggy.dead_letters.reader import DeadLetterLog
from framework.iggy.dead_letters.writer import IggyDeadLetters, ensure_dead_letter_topic
from framework.iggy.offset_log import fencing
from framework.iggy.offset_log.fencing import begin_epoch
from framework.iggy.offset_log.log import OffsetLog
from framework.model.objects import NativeObject, TopicPartition
from framework.offsets.listing_hints import IncrementalMark, ListingHints
from framework.offsets.position_filter import PositionFilter
from framework.offsets.set_position import SetPosition
from framework.offsets.watermark import CoveredRange, Watermark
from framework.pipeline.dead_letters import DeadLetter
from framework.testing.kit.crash import CrashError, CrashPoint
from tests.support.core import lines
from tests.support.examples import THOROUGH
from tests.support.iggy_messages import append
from tests.support.positions import LOG, Source, as_saved, kinds, loaded, records

FOREIGN = b"of somebody else"
COUNTS = {"a": 5, "b": 7, "bb": 3}
NUMBERING = '{"compression":"auto","format":"jsonl"}'
"""The options that number the records of the sources here."""


@pytest.fixture
def source():
    made = Source(partitions=2)
    made.live()
    return made


def by_hand(source, change="accept", **options):
    """A reset, or `accept`, in a process of its own."""
    connection = source.server.connect()
    config = source.rig.make_task({**source.bench._options, **options})[1]
    try:
        if change == "accept":
            numbering = config.numbering_options(make_transformer(config.input.options()).numbering_options())
            return accept_changes(connection, config, numbering_options=numbering)
        if isinstance(change, SetPosition):
            return set_position(connection, config, attrs.evolve(change, partitions=config.iggy.partitions))
        return reset_positions(connection, config, change)
    finally:
        connection.close()


def twice(*names):
    return collections.Counter(line for name in names for line in lines(name, COUNTS[name]))


def others(source, count=1, partition=0):
    connection = source.server.connect()
    for _ in range(count):
        append(connection, "kit", "records", partition, FOREIGN)
    connection.close()


# ---- reset


RESETS = [
    (PositionFilter(key="b"), ["b"]),
    (PositionFilter(key="b/"), []),
    (PositionFilter(prefix="b"), ["b", "bb"]),
    (PositionFilter(prefix=""), ["a", "b", "bb"]),
    (PositionFilter(), ["a", "b", "bb"]),
]


@pytest.mark.parametrize(("choice", "again"), RESETS, ids=str)
def test_what_is_reset_is_read_once_more_and_nothing_undoes_it(choice, again):
    source = Source(COUNTS, partitions=1)
    source.live()
    done = by_hand(source, choice)
    assert done.positions == len(COUNTS) - len(again)
    assert done.epoch == 2
    for _ in range(2):
        source.live()
        assert source.payloads() == source.once() + twice(*again)
    generations = {entry.key: entry.generation for entry in source.entries.values()}
    assert generations == {key: 1 + (key in again) for key in COUNTS}


@pytest.mark.parametrize(("choice", "again"), RESETS, ids=str)
def test_what_was_sent_and_not_saved_before_a_reset_does_not_count_after_it(choice, again):
    """Its ids are of an earlier generation, whatever a killed server does to them."""
    for lost in (0, 2, 30):
        source = Source(COUNTS, partitions=1)
        make_forgetful(source)
        source.live()
        assert all(not entry.final for entry in source.entries.values())
        by_hand(source, choice)
        source.server.lose_tail("kit", "records", 0, min(lost, len(source.messages())))
        before = source.payloads()
        source.live()
        missing = source.once() - before
        kept = collections.Counter({line: n for line, n in missing.items() if line not in twice(*again)})
        assert source.payloads() == before + twice(*again) + kept


def make_forgetful(source):
    connection = source.server.connect()
    connection.ensure_stream("kit")
    connection.create_topic("kit", "records", source.bench._options["partitions"])
    connection.close()
    source.server.set_option("kit", "records", "messages_required_to_save", 1024)


def test_crashes_after_a_reset_lose_and_repeat_nothing_more():
    events = len(Source(COUNTS, partitions=2).live().events)
    for at in range(1, events, 3):
        source = Source(COUNTS, partitions=2)
        source.live()
        by_hand(source, PositionFilter(key="b"))
        source.live(at)
        source.live()
        assert source.payloads() == source.once() + twice("b")


def test_two_resets_begin_two_generations():
    source = Source(COUNTS, partitions=1)
    source.live()
    for _ in range(2):
        by_hand(source, PositionFilter(key="b"))
        source.live()
    assert source.payloads() == source.once() + twice("b") + twice("b")
    assert source.entries["b"].generation == 3
    by_hand(source, PositionFilter())
    source.live()
    assert {entry.generation for entry in source.entries.values()} == {4}


def test_an_object_half_read_is_read_from_its_first_record_after_a_reset():
    for at in range(10, 60, 3):
        source = Source({"b": 30}, partitions=1)
        source.live(at)
        held = len(source.messages()) if source.server.topic_info("kit", "records") else 0
        if 0 < held < 30:
            break
    assert 0 < held < 30
    by_hand(source, PositionFilter(key="b"))
    source.live()
    assert source.payloads() == source.once() + collections.Counter(lines("b", held))


@pytest.mark.parametrize(
    "choice",
    [
        PositionFilter(key="b"),
        PositionFilter(prefix="b"),
        PositionFilter(),
        SetPosition(key="b", records=2, numbering_options=NUMBERING),
        "accept",
    ],
    ids=str,
)
def test_a_kill_at_any_moment_leaves_all_or_nothing(choice):
    def made():
        source = Source(COUNTS, partitions=1)
        source.live()
        if choice == "accept":
            source.server.purge_topic("kit", "records")
        return source

    source, count = made(), CrashPoint()
    source.server.on_event = count
    by_hand(source, choice)
    source.server.on_event = None
    source.live()
    after = source.payloads()
    outcomes = []
    for at in range(1, len(count.events) + 1):
        source = made()
        before = source.payloads()
        source.server.on_event = CrashPoint(at)
        with pytest.raises(CrashError):
            by_hand(source, choice)
        source.server.on_event = None
        try:
            source.live()
        except PositionError:
            assert choice == "accept"
            outcomes.append("nothing")
            by_hand(source, choice)
            source.live()
            assert source.payloads() == after
            continue
        assert source.payloads() in (before, after)
        outcomes.append("all" if source.payloads() == after else "nothing")
    assert outcomes == sorted(outcomes, reverse=True)
    assert set(outcomes) == {"all", "nothing"}


def test_a_reset_forgets_what_was_compacted_there_and_what_the_last_listing_left():
    source = Source(COUNTS, partitions=1)
    source.live()
    connection = source.server.connect()
    session = Session.begin(connection, source.bench.config)
    left = ListingHints(
        of="x", keys=("b",), counts=(3,), incremental=IncrementalMark(after="z", whole_listing_ms=5, selection="all")
    )
    for prefix in ("", "a", "b"):
        session.offsets.hints.set(prefix, left)
    session.offsets.table.count_skipped(4)
    session.save()
    session.offsets.table.watermark = Watermark(
        bucket="bucket", prefixes={"": (CoveredRange("", None, 99),)}, compacted={"": 2}
    )
    session.write_snapshot()
    connection.close()

    by_hand(source, PositionFilter(prefix="b"))
    state = loaded(source.server)
    assert not state.watermark.covers("bucket", "bb", 5)
    assert state.watermark.covers("bucket", "a", 5)
    assert state.watermark.covers("bucket", "c", 5)
    bare = replace(left, incremental=None)
    assert {prefix: state.listings[prefix] for prefix in ("", "a", "b")} == {"": bare, "a": left, "b": bare}
    assert ([count for _, count in state.skipped], state.has_abandoned_partitions) == ([], False)

    by_hand(source, PositionFilter())
    state = loaded(source.server)
    assert (bool(state.watermark), len(state.positions), state.anchors, state.topics) == (False, 0, {}, {})
    assert state.listings["a"] == bare
    assert (state.skipped, state.has_abandoned_partitions, state.positions.floor) == ([], True, 1)
    assert state.selected is None or not state.selected.changes_accepted


def test_a_reset_of_one_object_keeps_it_from_nothing_that_is_wrong_elsewhere(source):
    source.server.delete_topic("kit", "records")
    before = kinds(source.server)
    with pytest.raises(PositionError, match=r'topic "records" of stream "kit" was deleted'):
        by_hand(source, PositionFilter(key="b"))
    assert kinds(source.server) == before


@pytest.mark.parametrize("harm", ["purge", "delete", "partition", "fill", "log"])
def test_a_reset_of_everything_goes_whatever_happened(source, harm):
    hurt(source, harm)
    before = source.payloads()
    again = Source({}, rig=source.rig, server=source.server, partitions=1 if harm == "partition" else 2)
    by_hand(again, PositionFilter())
    again.live()
    assert again.payloads() == before + source.once()
    again.live()
    assert again.payloads() == before + source.once()


def hurt(source, harm):
    if harm in {"purge", "fill"}:
        source.server.purge_topic("kit", "records")
    if harm == "fill":
        for partition in range(2):
            others(source, 40, partition)
    elif harm == "delete":
        source.server.delete_topic("kit", "records")
    elif harm == "partition":
        source.server._streams["kit"]["records"].partitions.pop()
    elif harm == "log":
        source.server.delete_topic("kit", LOG)


# ---- set


def set_to(key, records):
    return SetPosition(key=key, records=records, numbering_options=NUMBERING)


def behind(name, records, source):
    return collections.Counter(source.expected[name][records:])


@pytest.mark.parametrize("records", [0, 1, 4, 7])
def test_what_stands_behind_a_set_position_is_sent_once_more_and_nothing_undoes_it(records):
    source = Source(COUNTS, partitions=1)
    source.live()
    assert by_hand(source, set_to("b", records)).positions == len(COUNTS)
    for _ in range(2):
        source.live()
        assert source.payloads() == source.once() + behind("b", records, source)
    generations = {entry.key: entry.generation for entry in source.entries.values()}
    assert generations == {"a": 1, "b": 2, "bb": 1}
    by_hand(source, PositionFilter(key="b"))
    source.live()
    assert source.payloads() == source.once() + behind("b", records, source) + twice("b")
    assert source.entries["b"].generation == 3


def test_an_object_that_is_set_done_is_not_read_further():
    source = saved_in_part()
    before = source.payloads()
    by_hand(source, set_to("b", None))
    for _ in range(2):
        source.live()
        assert source.payloads() == before
    source.put("b", 4)
    source.live()
    assert source.payloads() == before + collections.Counter(lines("b", 4)), "another version is read"


def saved_in_part():
    """One object that a kill left half read."""
    for at in range(10, 120):
        source = Source({"b": 30}, partitions=1)
        source.live(at)
        if source.server.topic_info("kit", LOG) is None:
            continue
        found = [entry for entry in loaded(source.server).positions.view() if 0 < entry.records_saved < 30]
        if found and not found[0].finished:
            return source
    raise AssertionError("no moment leaves it half read")


@pytest.mark.parametrize("lost", [0, 2, 30])
def test_messages_before_a_set_do_not_count_after_it_whatever_a_killed_server_takes(lost):
    """The counterexample to a set within the generation: recovery would find record 7 and send nothing."""
    source = Source(COUNTS, partitions=1)
    make_forgetful(source)
    source.live()
    assert source.entries["b"].records_saved == 0
    by_hand(source, set_to("b", 0))
    source.server.lose_tail("kit", "records", 0, min(lost, len(source.messages())))
    before = source.payloads()
    source.live()
    again = behind("b", 0, source)
    missing = collections.Counter({line: n for line, n in (source.once() - before).items() if line not in again})
    assert source.payloads() == before + again + missing


def test_records_that_a_crash_can_take_never_count_as_saved():
    """Else a killed server would take them, and nothing would send them again."""
    source = Source(COUNTS, partitions=1)
    make_forgetful(source)
    source.live()
    for count in (1, 7, None):
        before = kinds(source.server)
        with pytest.raises(PositionError, match="could still take them"):
            by_hand(source, set_to("b", count))
        assert kinds(source.server) == before


def test_a_refused_set_writes_nothing(source):
    before = kinds(source.server)
    for change in (set_to("b", 8), set_to("x", 1), attrs.evolve(set_to("b", 1), version="x")):
        with pytest.raises(PositionError):
            by_hand(source, change)
    with pytest.raises(PositionMismatchError):
        by_hand(source, attrs.evolve(set_to("b", 1), numbering_options='{"format":"other"}'))
    assert kinds(source.server) == before


def test_a_position_in_a_partition_that_is_gone_is_set_done_and_nothing_else(source):
    """The next start would refuse a position that goes on there."""
    (name, *_) = (key for key, entry in source.entries.items() if entry.topic_partition.partition == 1)
    hurt(source, "partition")
    again = Source({}, rig=source.rig, server=source.server, partitions=1)
    by_hand(again)
    before = kinds(source.server)
    with pytest.raises(PositionError, match=rf"{name}: .*partition 1 of topic records.*`offsets reset --key {name}`"):
        by_hand(again, set_to(name, 1))
    assert kinds(source.server) == before
    by_hand(again, set_to(name, None))
    left = source.payloads()
    again.live()
    assert source.payloads() == left
    by_hand(again, PositionFilter(key=name))
    again.live()
    assert source.payloads() == left + twice(name)


DEAD = {"tolerance": "skip_record", "dead_letter_topic": "dead"}


def bury(source, record, bucket=None):
    """Write a dead letter, as the source does."""
    connection = source.server.connect()
    config = source.rig.make_task({**source.bench._options, **DEAD})[1]
    ensure_dead_letter_topic(connection, "kit", "dead")
    entry = source.entries["b"]
    IggyDeadLetters.of(connection, config).send(
        [
            DeadLetter(
                native=NativeObject(
                    scheme="memory", bucket=bucket or entry.bucket, key="b", size=1, version=entry.version
                ),
                entry=entry,
                record_number=record,
                error=RecordError("no"),
                raw=b"x",
                length=1,
            )
        ]
    )
    connection.close()


@pytest.mark.parametrize("late", [False, True])
def test_dead_letters_before_a_set_position_are_not_left_behind_however_late_they_were_written(
    source, late, monkeypatch
):
    """A source that is about to end may write its last one while the command begins."""
    if late:
        monkeypatch.setattr(positions_admin, "check_topics", lambda *_: bury(source, 3))
    else:
        bury(source, 3)
    with pytest.raises(PositionError, match="1 dead letter of the records up to 3 would be left behind"):
        by_hand(source, set_to("b", 3), **DEAD)
    monkeypatch.undo()
    by_hand(source, set_to("b", 2), **DEAD)
    source.live()
    assert source.payloads() == source.once() + behind("b", 2, source)


def test_dead_letters_of_another_bucket_are_no_matter_of_a_set_position(source):
    bury(source, 3, bucket="elsewhere")
    by_hand(source, set_to("b", 3), **DEAD)
    connection = source.server.connect()
    assert DeadLetterLog.read(connection, source.rig.make_task({**source.bench._options, **DEAD})[1]).replayed == set()
    connection.close()


def test_crashes_after_a_set_lose_and_repeat_nothing_more():
    events = len(Source(COUNTS, partitions=2).live().events)
    for at in range(1, events, 3):
        source = Source(COUNTS, partitions=2)
        source.live()
        by_hand(source, set_to("b", 3))
        source.live(at)
        source.live()
        assert source.payloads() == source.once() + behind("b", 3, source)


def test_a_set_makes_the_next_listing_show_its_object_again():
    source = Source(COUNTS, partitions=1)
    source.live()
    connection = source.server.connect()
    session = Session.begin(connection, source.bench.config)
    left = ListingHints(of="x", incremental=IncrementalMark(after="z", whole_listing_ms=5, selection="all"))
    for prefix in ("", "a", "b"):
        session.offsets.hints.set(prefix, left)
    session.save()
    session.write_snapshot()
    connection.close()
    by_hand(source, set_to("b", 1))
    bare = replace(left, incremental=None)
    state = loaded(source.server)
    assert {prefix: state.listings[prefix] for prefix in ("", "a", "b")} == {"": bare, "a": left, "b": bare}


# ---- accept


def test_a_lost_log_cannot_be_accepted_since_everything_would_come_again(source):
    hurt(source, "log")
    before = source.payloads()
    for attempt in (source.live, lambda: by_hand(source)) * 2:
        with pytest.raises(PositionError, match=r"knows nothing.*offsets reset --all"):
            attempt()
    assert source.payloads() == before
    assert not source.server.messages("kit", LOG)


def test_a_start_after_a_reset_of_everything_that_was_killed_is_still_refused_when_the_log_was_lost(source):
    """Else it would send everything again, although the reset never came to its end."""
    hurt(source, "log")
    connection = source.server.connect()
    config = source.rig.make_task({"partitions": 2})[1]
    ensure_offsets_topic(connection, config)
    offset_log = OffsetLog(connection, stream="kit", topic=LOG, source="kit")
    begin_epoch(offset_log).open(offset_log)
    connection.close()
    assert kinds(source.server) == ["claim", "opening"]
    with pytest.raises(PositionError, match=r"knows nothing.*offsets reset --all"):
        source.live()
    before = source.payloads()
    by_hand(source, PositionFilter())
    source.live()
    assert source.payloads() == before + source.once()


def test_everything_comes_again_after_a_lost_log_also_what_a_topic_may_still_forget():
    """Its last messages are counted at each start; those of the lost log must not count for what begins after the reset."""
    events = len(Source(COUNTS, partitions=2).live().events)
    for at in range(1, events, 3):
        source = Source(COUNTS, partitions=2)
        make_forgetful(source)
        source.live()
        for times in (2, 3):
            hurt(source, "log")
            by_hand(source, PositionFilter())
            source.live(at)
            source.live()
            assert set(source.payloads().values()) == {times}


@pytest.mark.parametrize("harm", ["purge", "delete", "fill"])
def test_what_was_done_stays_done_when_that_is_accepted(source, harm):
    hurt(source, harm)
    with pytest.raises(PositionError, match="offsets accept-data-loss"):
        source.live()
    before = source.payloads()
    by_hand(source)
    source.put("new", 4)
    source.live()
    expected = collections.Counter(lines("new", 4))
    assert source.payloads() == before + expected
    source.live()
    assert source.payloads() == before + expected


def test_a_partition_that_was_emptied_by_hand_is_accepted_and_the_others_go_on():
    counts = {"a": 5, "b": 7, "c": 11, "d": 9, "e": 6}
    source = Source(counts, partitions=2)
    source.live()
    gone = {message.payload for message in source.messages(1)}
    part = source.server._streams["kit"]["records"].partitions[1]
    part.messages.clear()
    part.end = 0
    with pytest.raises(PositionError, match=r"partition 1.*is empty"):
        source.live()
    by_hand(source)
    source.live()
    assert source.payloads() == collections.Counter({p: 1 for p in source.once() if p not in gone})
    assert loaded(source.server).anchors.keys() >= {TopicPartition("records", 0)}


@pytest.mark.parametrize("harm", ["purge", "delete"])
def test_what_was_sent_between_a_purge_and_its_notice_is_not_sent_again(harm):
    """A source runs while its topic is emptied. What it sends next is there, and no progress says so."""
    source = Source({"a": 5}, partitions=1)
    source.live()
    source.put("b", 7)
    server, store = source.server, source.server.store

    def store_after_harm(stream, topic, *rest):
        if topic == "records":
            server.store = store
            hurt(source, harm)
            server.make_topic(stream, topic, 1)
        return store(stream, topic, *rest)

    server.store = store_after_harm
    with pytest.raises(SourceError):
        source.live()
    assert source.payloads() == collections.Counter(lines("b", 7)[:4])
    with pytest.raises(PositionError, match="offsets accept-data-loss"):
        source.live()
    by_hand(source)
    source.live()
    assert source.payloads() == collections.Counter(lines("b", 7))


def test_a_purge_of_a_topic_that_may_forget_stops_the_source_once_it_has_sent_more():
    """No position is saved there, so an emptied partition alone is what a killed server may leave."""
    source = Source({"a": 11}, partitions=1)
    make_forgetful(source)
    server, store = source.server, source.server.store
    sends = itertools.count(1)

    def store_and_purge(stream, topic, *rest):
        if topic == "records" and next(sends) == 2:
            server.purge_topic(stream, topic)
        return store(stream, topic, *rest)

    server.store = store_and_purge
    with pytest.raises(SourceError):
        source.live()
    told = r"record 5 of .*/a is at offset 0, .* counted 4 records .* purged.*offsets accept-data-loss"
    with pytest.raises(PositionError, match=told):
        source.live()
    by_hand(source)
    source.live()
    assert source.payloads() == collections.Counter(lines("a", 11)[4:])


@pytest.mark.parametrize(("counts", "found"), [({"a": 1}, "1 message"), ({"a": 1, "b": 2, "c": 1}, "4 messages")])
def test_a_start_says_how_many_messages_were_behind_the_saved_positions(caplog, counts, found):
    """On a topic that can forget, none of its newest 1,024 messages is saved as done."""
    source = Source(counts, partitions=1)
    make_forgetful(source)
    with caplog.at_level(logging.INFO):
        source.live()
        source.live()
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("recovered: ")]
    assert said == [f"recovered: found {found} behind the last saved positions in the topics"]


def test_objects_half_read_in_a_partition_that_is_gone_begin_once_more_elsewhere():
    for at in range(20, 120, 3):
        source = Source({"a": 40, "b": 40, "c": 40}, partitions=2)
        source.live(at)
        half = [
            entry
            for entry in loaded(source.server).positions.view()
            if not entry.final and entry.topic_partition.partition
        ]
        if half and source.messages(1):
            break
    kept = [entry.key for entry in loaded(source.server).positions.view() if entry.final]
    source.server._streams["kit"]["records"].partitions.pop()
    there = source.payloads()
    fewer = Source({}, rig=source.rig, server=source.server, partitions=1)
    with pytest.raises(
        PositionError, match=r"partition 1 .* is gone, with (1 half-read object|\d+ half-read objects)\."
    ):
        fewer.live()
    done = by_hand(fewer)
    assert done.restarting == sum(entry.records_done > 0 for entry in half)
    assert done.positions == len(as_saved(loaded(fewer.server)))
    fewer.live()
    again = {entry.key for entry in half}
    for name, expected in source.expected.items():
        found = [fewer.payloads()[line] for line in expected]
        if name in again:
            assert set(found) == {1}, "from its first record, in the partition that is left"
        elif name not in kept:
            assert set(found) == {1}
    assert sum(there.values()) < sum(fewer.payloads().values())


def killed(source_of, when):
    """A source that was killed so. On a busy machine its threads take turns otherwise in each life: what one life of each
    event misses, another finds."""
    for _ in range(20):
        for at in itertools.count(1):
            source = source_of()
            crash = source.live(at)
            if when(source):
                return source
            if not crash.struck:
                break
    raise AssertionError("no such kill")


def forgetful():
    source = Source({"a": 9}, partitions=1)
    make_forgetful(source)
    return source


def sent_and_did_not_save(source):
    return sum(source.payloads().values()) > 2 and "progress" not in kinds(source.server)


@pytest.mark.parametrize("source_of", [forgetful, lambda: Source({"a": 9}, partitions=1)])
def test_what_expired_unaccounted_stops_the_source_and_accepted_what_is_left_counts(source_of):
    """A later record that is there shows that the earlier ones were sent."""
    source = killed(source_of, sent_and_did_not_save)
    dropped = collections.Counter(message.payload for message in source.messages(0)[:2])
    source.server.drop_head("kit", "records", 0, 2)
    with pytest.raises(PositionError, match=r"messages 0 to 1 expired.*`offsets accept-data-loss`"):
        source.live()
    by_hand(source)
    source.live()
    assert source.payloads() == source.once() - dropped


def killed_before_its_end():
    """A source that had counted at least four messages, and saved no count: a killed server may lose all of them."""

    def counted(source):
        state = loaded(source.server)
        return source.payloads() == source.once() and not state.closed and counted_in(state) >= 4

    return killed(forgetful, counted)


def counted_in(state):
    counted = state.counted.get(TopicPartition("records", 0))
    return counted.offset + 1 if counted is not None else 0


@pytest.mark.parametrize("left", [0, 1, 3])
def test_what_expired_after_it_was_counted_is_no_matter_also_after_a_kill(left):
    source = killed_before_its_end()
    gone = counted_in(loaded(source.server)) - left
    source.server.drop_head("kit", "records", 0, gone)
    source.live()
    assert [message.payload for message in source.messages()] == source.expected["a"][gone:]
    (entry,) = loaded(source.server).positions.view()
    assert (entry.records_done, entry.records_saved) == (9, gone), "what expired was on disk"


def test_what_expired_is_never_sent_again_whatever_a_killed_server_loses_afterwards():
    source = killed_before_its_end()
    source.server.drop_head("kit", "records", 0, 3)
    source.live()
    for lost in (4, 6):
        source.server.lose_tail("kit", "records", 0, lost)
        source.live()
        assert [message.payload for message in source.messages()] == source.expected["a"][3:]


def test_a_killed_server_that_lost_what_was_counted_leaves_nobody_who_knows_what_expired():
    source = killed_before_its_end()
    source.server.lose_tail("kit", "records", 0, 6)
    others(source, 8)
    source.server.drop_head("kit", "records", 0, 2)
    with pytest.raises(PositionError, match=r"messages 0 to 1 expired.*`offsets accept-data-loss`"):
        source.live()


def test_an_opening_ends_what_an_orderly_end_said():
    """The next life sends and is killed before it counts; then all that it sent expires: it is not known to be there."""

    def second_life_of():
        source = forgetful()
        source.live()
        source.put("b", 5)
        source.written = kinds(source.server).count("progress")
        return source

    def sent_and_did_not_count(source):
        return len(source.messages()) > 9 and kinds(source.server).count("progress") == source.written

    source = killed(second_life_of, sent_and_did_not_count)
    source.server.drop_head("kit", "records", 0, 14)
    with pytest.raises(PositionError, match=r"messages 0 to \d+ expired.*`offsets accept-data-loss`"):
        source.live()


def test_a_partition_that_was_left_in_order_and_expired_is_opened_again_and_again():
    """As a leader of several tasks and its worker do: an opening that changes nothing leaves it as it was left."""
    source = Source({"a": 9}, partitions=1)
    make_forgetful(source)
    source.live()
    source.server.drop_head("kit", "records", 0, 3)
    for _ in range(2):
        connection = source.server.connect()
        session = Session.begin(connection, source.bench.config)
        session.open_partitions()
        connection.close()
    left = source.payloads()
    source.live()
    assert source.payloads() == left


def test_another_selection_is_refused_and_accepted():
    source = Source(COUNTS, partitions=1, allowed_lateness=0.0)
    source.live()
    connection = source.server.connect()
    session = Session.begin(connection, source.bench.config)
    session.offsets.table.watermark = Watermark(bucket="bucket", prefixes={"": (CoveredRange("", None, 1 << 60),)})
    session.offsets.tracker.compact()
    session.write_snapshot()
    connection.close()
    assert len(loaded(source.server).positions) == 0
    changed = Source({}, rig=source.rig, server=source.server, partitions=1, include=["b*"])
    before = source.payloads()
    with pytest.raises(SourceError, match=r"\[discovery\] include changed.*`offsets accept-data-loss`"):
        changed.live()
    by_hand(changed)
    changed.live()
    assert changed.payloads() == before + twice("b", "bb"), (
        "what is selected now is read, also what was finished long ago"
    )
    changed.live()
    assert changed.payloads() == before + twice("b", "bb")
    assert not loaded(source.server).selected.changes_accepted


def half_read(**options):
    """Objects of which some records are sent, and how many of each."""
    for at in range(12, 90):
        source = Source({"a": 20, "b": 20}, partitions=2, **options)
        source.live(at)
        if not source.server.topic_info("kit", "records"):
            continue
        counts = {name: sum(source.payloads()[line] for line in source.expected[name]) for name in "ab"}
        if any(0 < count < 20 for count in counts.values()):
            return source, counts
    raise AssertionError("no object is half read")


def test_objects_half_read_under_other_options_are_refused_and_begin_once_more_when_that_is_accepted():
    source, counts = half_read()
    before = source.payloads()
    other = Source({}, rig=source.rig, server=source.server, partitions=2, format="text")
    with pytest.raises(SourceError, match="offsets accept-data-loss"):
        other.live()
    assert other.payloads() == before
    begun = sum(count > 0 for count in counts.values())
    done = by_hand(other)
    assert (done.restarting, done.positions) == (begun, len(as_saved(loaded(other.server))) - begun)
    other.live()
    assert other.payloads() == before + source.once()
    assert any(counts.values())
    assert by_hand(other).restarting == 0
    other.live()
    assert other.payloads() == before + source.once()


def several_half_read():
    """Five objects, each half read when the next one, which is listed before it, took its place."""
    source = Source({}, partitions=2)
    for name in "edcba":
        source.put(name, 20)
        for at in range(8, 90):
            source.live(at)
            if source.server.topic_info("kit", "records") and source.payloads()[source.expected[name][0]]:
                break
    half = [name for name in "abcde" if 0 < sum(source.payloads()[line] for line in source.expected[name]) < 20]
    assert len(half) > 3
    return source


def test_a_kill_at_any_moment_after_other_options_were_accepted_needs_no_second_accept():
    events = 150
    for at in range(1, events, 11 if THOROUGH else 19):
        source = several_half_read()
        before = source.payloads()
        other = Source({}, rig=source.rig, server=source.server, partitions=2, format="text")
        by_hand(other)
        other.live(at)
        other.live()
        assert other.payloads() == before + source.once(), at


@pytest.mark.parametrize("accepted", [True, False])
def test_what_is_finished_is_not_read_again_under_other_options_split_or_not(accepted):
    source = Source({"a": 90, "b": 3}, partitions=2, split_size=1024)
    source.live()
    other = Source({}, rig=source.rig, server=source.server, partitions=2, format="text", split_size=1024)
    if accepted:
        by_hand(other)
    source.rig.store.calls.clear()
    other.live()
    assert other.payloads() == source.once()
    assert source.rig.store.count("open") == 0


# ---- who may, and what is left


def test_a_change_by_hand_is_refused_while_the_source_runs(source, monkeypatch):
    monkeypatch.setattr(fencing, "LOOK_SECONDS", 0.0)
    running = Session.begin(source.server.connect(), source.bench.config)
    before = source.server.messages("kit", LOG)
    for change in (PositionFilter(), PositionFilter(key="a"), "accept"):
        with pytest.raises(IggyUnavailableError, match="earlier connection of this process"):
            by_hand(source, change)
    assert source.server.messages("kit", LOG) == before
    running.follow()
    running.close()
    assert by_hand(source, PositionFilter()).positions == 0


def test_an_epoch_of_its_own_stands_in_the_log_for_each_change(source):
    before = len(kinds(source.server))
    done = by_hand(source, PositionFilter(key="a"))
    written = records(source.server)[before:]
    assert [record.kind for record in written] == ["claim", "opening", "snapshot", "snapshot"]
    assert {record.epoch for record in written} == {done.epoch} == {2}
    assert sorted(key for key, _ in as_saved(loaded(source.server))) == ["b", "c"]
    assert done.positions == 2


def test_objects_that_failed_are_read_on_from_where_they_were_given_up():
    source = Source({"a": 3}, partitions=1, tolerance="skip_object")
    good = lines("bad", 4)
    source.rig.store.put("bad", b"\n".join([*good[:2], b"-", *good[2:]]) + b"\n")
    source.live()
    assert source.entries["bad"].failed
    source.rig.store.restore({**source.rig.store.stored()})
    connection = source.server.connect()
    session = Session.begin(connection, source.bench.config)
    assert reopen_objects(session, lambda entry: entry.key == "a") == 0
    at = len(kinds(source.server))
    assert reopen_objects(session, lambda entry: entry.key == "bad") == 1
    assert set(kinds(source.server)[at:]) == {"snapshot"}
    connection.close()
    assert as_saved(loaded(source.server))["bad", 0][2:] == (2, 2, None)
    good_again = Source({}, rig=source.rig, server=source.server, partitions=1, tolerance="skip_record")
    good_again.live()
    assert good_again.payloads() == collections.Counter([*lines("a", 3), *good])


@pytest.mark.parametrize("lose", ["purge_topic", "delete_topic"])
def test_an_inspection_of_a_lost_log_warns_and_is_no_first_start(source, lose, caplog):
    connection = source.server.connect()
    assert not inspect(connection, source.bench.config).state.knows_nothing
    assert not caplog.messages
    getattr(source.server, lose)("kit", LOG)
    assert inspect(connection, source.bench.config).state.knows_nothing
    (warning,) = caplog.messages
    assert "its offsets topic knows nothing of that: it was purged, deleted or renamed" in warning


def test_an_inspection_sees_what_is_saved_writes_nothing_and_tells_who_runs(source):
    connection = source.server.connect()
    before = len(source.server.messages("kit", LOG))
    found = inspect(connection, source.bench.config)
    assert {entry.key: entry.records_done for entry in found.state.positions.view()} == {"a": 5, "b": 7, "c": 11}
    assert (found.running, found.state.last_epoch, found.log_messages) == ((), 1, before)
    assert found.state.saved_us
    assert found.log_bytes == sum(len(stored.payload) for stored in source.server.messages("kit", LOG))
    assert len(source.server.messages("kit", LOG)) == before
    session = Session.begin(source.server.connect(), source.bench.config)
    found = inspect(connection, source.bench.config)
    assert [claim.epoch for claim in found.running] == [session.epoch.number]
    assert found.state.last_epoch == session.epoch.number
    source.server.purge_topic("kit", "records")
    assert len(inspect(connection, source.bench.config).state.positions) == 3
    assert isinstance(session.log, OffsetLog)
