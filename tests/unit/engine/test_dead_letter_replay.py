"""Dead letters sent again: once each, whatever kills the replay, and no recovery counts them."""

import collections
import contextlib

import attrs
import pytest

from framework.cli.dead_letter_commands import DeadLetterChoice
from framework.engine import dead_letter_replay
from framework.engine.dead_letter_replay import DeadLetterReplay
from framework.engine.positions_admin import accept_changes, reset_positions
from framework.engine.session import Session
from framework.errors import (
    AccessDeniedError,
    ConfigError,
    FormatContractError,
    IggyTopicError,
    ObjectChangedError,
    RecordError,
    SourceRunningError,
)
from framework.iggy.dead_letters import writer
from framework.iggy.dead_letters.reader import DeadLetterLog, is_current, topic_of
from framework.iggy.dead_letters.writer import IggyDeadLetters
from framework.iggy.offset_log import fencing, framing
from framework.iggy.offset_log.partition_replay import PartitionGoneError
from framework.iterator.store_iterator import StoreRecordIterator
from framework.model.header_encoding import REPLAY_HEADER
from framework.model.message_ids import dead_letter_hash64, message_id
from framework.model.objects import ObjectState, TopicPartition
from framework.model.splits import KeyPart
from framework.offsets.manager import OffsetManager
from framework.offsets.position_filter import PositionFilter
from framework.offsets.watermark import CoveredRange, Watermark
from framework.task import SourceContext
from framework.testing.kit.crash import CrashError, CrashPoint
from tests.support import transforms as own
from tests.support.core import lines
from tests.support.iggy_messages import append
from tests.unit.pipeline.test_dead_letters import DEAD, Source, rest_failed, usual
from transformers.jsonl import JsonlTransformer


def replay(source, at=None, choice=None, *, may_be_lost=False, **options):
    """One replay, which may die at an event; what came of it."""
    crash = CrashPoint(at)
    given = {name: value for name, value in {**source.options, **options}.items() if value is not None}
    task, config = source.rig.make_task(given)
    source.server.on_event = crash
    connection = source.server.connect()
    counts = None
    try:
        session = Session.begin(connection, config)
        dead_letters = DeadLetterLog.read(connection, config, (choice or DeadLetterChoice()).selects())
        waiting = [x for x in dead_letters.waiting if is_current(x, session.offsets)]
        iterator = task.get_iterator(SourceContext(config=config, offsets=session.offsets))
        iterator.look_up = lambda native: next(
            (one for one in iterator.get_native_item_stream(None) if one.key == native.key), None
        )
        counts = DeadLetterReplay(session, iterator, may_be_lost=may_be_lost).run(waiting, dead_letters.notes)
    except CrashError:
        pass
    finally:
        crash.crashed = True
        source.server.on_event = None
        connection.close()
    return counts, crash


def open_dead_letters(source):
    connection = source.server.connect()
    dead_letters = DeadLetterLog.read(connection, source.config)
    connection.close()
    return dead_letters.waiting


def waiting_dead_letters(source):
    """Those that a replay would take, each once: what repeats has the same id."""
    connection = source.server.connect()
    offsets = Session.begin(connection, source.config).offsets
    connection.close()
    return list({one.message_id: one for one in open_dead_letters(source) if is_current(one, offsets)}.values())


def compact(source):
    """Drop the positions of everything that is done."""
    connection = source.server.connect()
    session = Session.begin(connection, source.config)
    table = session.offsets.table
    youngest = max(entry.modified_ms for entry in table.entries())
    (bucket,) = {entry.bucket for entry in table.entries()}
    table.watermark = Watermark(bucket=bucket).raised("", CoveredRange("", None, youngest + 1))
    session.write_snapshot()
    connection.close()
    assert len(table) == 0


def as_text(source):
    """What the topic holds once the bad lines are taken as they are."""
    return source.records + collections.Counter(line for _, _, line in source.dead_letters)


def marked(source):
    return [
        message
        for partition in range(source.config.iggy.partitions)
        for message in source.server.messages("kit", "records", partition)
        if REPLAY_HEADER in message.headers
    ]


def test_what_is_good_now_is_sent_once_and_its_dead_letters_are_marked():
    source = usual()
    source.live()
    counts, _ = replay(source, validate=False)
    assert (counts.sent, counts.stayed) == (len(source.dead_letters), 0)
    assert source.payloads() == as_text(source)
    assert open_dead_letters(source) == []
    counts, _ = replay(source, validate=False)
    assert counts.sent == 0
    source.live()
    assert source.payloads() == as_text(source)


def test_dead_letters_after_a_purge_beside_a_replay_are_not_taken_for_the_replayed_ones():
    """The replay marks offsets of the former topic, into the topic as it is now."""
    source = Source().put("a", 1, 0, 0, 0, 1)
    source.live()
    server, store = source.server, source.server.store

    def store_after_purge(stream, topic, *rest):
        if topic == "records":
            server.store = store
            server.purge_topic(stream, DEAD)
        return store(stream, topic, *rest)

    server.store = store_after_purge
    replay(source, validate=False)
    assert open_dead_letters(source) == []
    source.put("b", 0, 0, 0)
    source.live()
    assert sorted((one.key, one.record) for one in open_dead_letters(source)) == [("b", 1), ("b", 2), ("b", 3)]


def test_a_replayed_record_lies_in_its_partition_under_its_own_id_with_a_mark():
    source = Source().put("a", 1, 0, 1)
    source.live()
    replay(source, validate=False)
    (message,) = marked(source)
    entry = source.entries["a", 0]
    of_object = dead_letter_hash64("kit", entry.bucket, "a", entry.version, 0, generation=1, kind="replayed")
    assert message.message_id == message_id(of_object, 0, 2)
    assert all(
        message.message_id >> 64 != other.message_id >> 64
        for other in source.server.messages("kit", "records", entry.topic_partition.partition)
        if other != message
    )
    assert {name: message.headers[name] for name in ("bucket", "key", "version")} == {
        "bucket": entry.bucket,
        "key": "a",
        "version": entry.version,
    }
    assert message in source.server.messages("kit", "records", entry.topic_partition.partition)


def test_what_is_still_bad_stays_and_is_said():
    source = usual()
    source.live()
    counts, _ = replay(source)
    assert (counts.sent, counts.stayed) == (0, len(source.dead_letters))
    assert any("not JSON" in sentence for sentence in counts.bad)
    assert len(open_dead_letters(source)) == len(source.dead_letters)
    assert source.payloads() == source.records


@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        ({"topic": "records-offsets"}, "keeps positions or dead letters"),
        ({"topic": DEAD}, "keeps positions or dead letters"),
        ({"topic": "theirs"}, "has 1 partition, and the configuration says"),
        ({"partition": "7"}, "and the dead letter names partition 7"),
    ],
)
def test_a_dead_letter_that_names_a_place_where_no_record_may_go_stays_and_ends_nothing(forged, reason):
    source = Source().put("a", 1, 0, 1, 0)
    source.live()
    if forged.get("topic") == "records-offsets":
        forged = {"topic": source.config.offsets_topic}
    connection = source.server.connect()
    connection.ensure_stream("kit")
    connection.create_topic("kit", "theirs", 1)
    dead_letter = source.server.messages("kit", DEAD)[0]
    append(connection, "kit", DEAD, 0, dead_letter.payload, headers={**dead_letter.headers, **forged})
    connection.close()
    counts, _ = replay(source, validate=False)
    assert (counts.sent, counts.stayed) == (2, 1)
    assert any(reason in sentence for sentence in counts.bad), counts.bad
    assert source.payloads() == as_text(source)


def test_one_partition_is_said_to_be_one():
    source = Source(partitions=1).put("a", 1, 0, 1, 0)
    source.live()
    connection = source.server.connect()
    dead_letter = source.server.messages("kit", DEAD)[0]
    append(connection, "kit", DEAD, 0, dead_letter.payload, headers={**dead_letter.headers, "partition": "7"})
    connection.close()
    counts, _ = replay(source, validate=False)
    assert any("has 1 partition, and the dead letter names partition 7" in sentence for sentence in counts.bad)


@pytest.mark.parametrize("change", ["gone", "other"])
def test_of_an_object_that_is_not_there_any_more_the_dead_letters_own_bytes_are_sent(change):
    source = Source().put("a", 1, 0, 1, 0)
    source.live()
    if change == "gone":
        source.rig.store.delete("a")
    else:
        source.rig.store.put("a", b'{"n":"other"}\n')
    counts, _ = replay(source, validate=False)
    assert (counts.sent, counts.stayed) == (2, 0)
    assert sorted(message.payload for message in marked(source)) == sorted(line for _, _, line in source.dead_letters)


def test_a_dead_letter_with_a_beginning_only_stays_when_its_object_is_gone():
    source = Source(dead_letter_bytes=4).put("a", 1, 0)
    source.live()
    source.rig.store.delete("a")
    counts, _ = replay(source, validate=False)
    assert (counts.sent, counts.stayed) == (0, 1)
    assert "does not hold the whole record" in next(iter(counts.bad))


def test_an_object_whose_version_an_earlier_build_saved_in_another_form_is_read_again(monkeypatch):
    source = Source(dead_letter_bytes=4).put("a", 1, 0)
    ((data, _, modified_ms),) = source.rig.store.stored().values()
    former, present = f"@{modified_ms}", f"@{modified_ms}-{len(data)}"
    source.rig.store.restore({"a": (data, former, modified_ms)})
    source.live()
    source.rig.store.restore({"a": (data, present, modified_ms)})
    opened = StoreRecordIterator.open_input

    def open_input(self, native):  # as the client of S3: either form is this object
        assert native.version == former
        return opened(self, attrs.evolve(native, version=present))

    monkeypatch.setattr(StoreRecordIterator, "open_input", open_input)
    counts, _ = replay(source, validate=False)
    assert (counts.sent, counts.stayed) == (1, 0)
    assert source.payloads() == as_text(source)


def test_a_dead_letter_that_is_dropped_during_the_replay_is_said_to_be_gone(monkeypatch):
    source = Source().put("a", 1, 0, 1, 0)
    source.live()
    source.rig.store.delete("a")
    records = DeadLetterReplay._records

    def dropping(self, native, dead_letters):
        source.server.drop_head("kit", DEAD, 0, 1)
        return records(self, native, dead_letters)

    monkeypatch.setattr(DeadLetterReplay, "_records", dropping)
    counts, _ = replay(source, validate=False)
    assert (counts.sent, counts.stayed) == (1, 1)
    assert next(iter(counts.bad)).endswith(
        "and the dead letter is gone: retention or a purge of its topic has just dropped it"
    )


@pytest.mark.parametrize("headers", ["provenance", "none"])
def test_killed_at_any_event_and_repeated_every_record_is_sent_once(headers):
    def after_a_run():
        source = usual(headers=headers)
        source.live()
        return source

    events = len(replay(after_a_run(), validate=False)[1].events)
    assert events > 8
    for at in range(1, events + 1):
        source = after_a_run()
        replay(source, at, validate=False)
        source.live()  # the source runs between the two
        counts, _ = replay(source, validate=False)
        assert counts.stayed == 0
        assert source.payloads() == as_text(source)
        assert open_dead_letters(source) == []


def test_killed_twice_and_repeated_every_record_is_sent_once():
    source = usual()
    source.live()
    events = len(replay(source, validate=False)[1].events)
    for first in range(1, events + 1, 2):
        for second in range(1, events + 1, 3):
            source = usual()
            source.live()
            replay(source, first, validate=False)
            replay(source, second, validate=False)
            replay(source, validate=False)
            assert source.payloads() == as_text(source)


def test_dead_letters_of_a_source_that_was_killed_wait_until_it_has_gone_beyond_their_records():
    """Else the record would be sent by the replay, and by the source, which comes to it again."""
    total = len(usual().live().events)
    waited = 0
    for at in range(5, total + 1, 6):
        source = usual()
        source.live(at)
        if source.server.topic_info("kit", DEAD) is None:
            continue
        counts, _ = replay(source, validate=False)
        waited += counts.stayed
        assert all("start it first" in sentence for sentence in counts.bad)
        source.live()
        replay(source, validate=False)
        assert source.payloads() == as_text(source)
        assert open_dead_letters(source) == []
    assert waited


def in_splits():
    source = Source(split_size=1024, max_record_bytes=100_000, partitions=3)
    return source.put("a", *[number % 5 for number in range(170)])


@pytest.mark.parametrize(("made", "step"), [(usual, 3), (in_splits, 11)])
def test_a_record_that_its_source_found_good_after_a_kill_is_not_replayed(made, step):
    """Killed behind the dead letter, before the position had passed it; the cause is fixed; the source reads it again."""
    total = len(made().live().events)
    delivered = 0
    for at in range(1, total + 1, step):
        source = made()
        source.live(at)
        source.live(validate=False)
        if source.server.topic_info("kit", DEAD) is not None:
            counts, _ = replay(source, validate=False)
            delivered += counts.delivered
            assert open_dead_letters(source) == []
        assert source.payloads() == as_text(source)
    assert delivered


def test_a_record_of_an_object_divided_by_key_that_its_source_found_good_after_a_kill_is_not_replayed():
    """Its dead letter names the first part; the record can be of any."""
    made = [b'{"key": "%d", "n": %d}' % (n % 5, n) + b" " * (40 if n % 3 == 0 else 0) for n in range(30)]
    options = {"transforms": [{"type": "partition_by", "field": "key"}], "partitions": 3, "max_record_bytes": 30}

    def by_key():
        source = Source(**options)
        source.rig.store.put("a", b"".join(line + b"\n" for line in made))
        return source

    delivered = 0
    for at in range(1, len(by_key().live().events) + 1, 3):
        source = by_key()
        source.live(at)
        source.live(max_record_bytes=1000)
        if source.server.topic_info("kit", DEAD) is not None:
            counts, _ = replay(source, max_record_bytes=1000)
            delivered += counts.delivered
            assert open_dead_letters(source) == []
        assert source.payloads() == collections.Counter(made)
    assert delivered


def test_the_search_for_records_that_are_there_begins_where_the_first_dead_letter_was_stored(monkeypatch):
    monkeypatch.setattr(dead_letter_replay, "CLOCK_STEP_SECONDS", 0)
    source = Source(partitions=1).put("a", *[1] * 40).put("b", 1, 0, 1)
    source.live()
    starts = []

    def read(*place, start):
        starts.append(start)
        return read_topic(*place, start=start)

    read_topic = dead_letter_replay.read_topic
    monkeypatch.setattr(dead_letter_replay, "read_topic", read)
    counts, _ = replay(source, validate=False)
    assert (counts.sent, counts.delivered) == (1, 0)
    assert len(starts) == 1
    assert 40 <= starts[0] <= 42


@pytest.mark.parametrize("change", ["gone", "other"])
def test_dead_letters_of_a_source_that_was_killed_do_not_wait_for_an_object_that_is_not_there_any_more(change):
    """The source never goes beyond the record: it does not read that version again."""
    events = len(Source(partitions=1).put("a", 1, 0, 1, 0).live().events)
    held = 0
    for at in range(1, events + 1):
        source = Source(partitions=1).put("a", 1, 0, 1, 0)
        source.live(at)
        if not all(source.server.topic_info("kit", topic) for topic in ("records", DEAD)):
            continue
        before, bad = source.payloads(), collections.Counter({source.raw(letter): 1 for letter in source.stored()})
        held += bool(bad)
        new = collections.Counter([b'{"n":"other"}']) if change == "other" else collections.Counter()
        if change == "gone":
            source.rig.store.delete("a")
        else:
            source.rig.store.put("a", b'{"n":"other"}\n')
        counts, _ = replay(source, validate=False)
        assert (counts.sent, counts.stayed) == (len(bad), 0)
        source.live(validate=False)
        replay(source, validate=False)
        assert source.payloads() == before + bad + new
    assert held > 2


def test_dead_letters_of_a_source_that_was_killed_wait_where_no_object_can_be_looked_up(monkeypatch):
    """None means that the next listing shows the object."""
    monkeypatch.delattr(StoreRecordIterator, "look_up")
    source = Source(partitions=1).put("a", 1, 0, 1, 0)
    source.live()
    monkeypatch.setattr(DeadLetterReplay, "_is_passed", lambda self, letter: self._stays(RecordError("not passed")))
    counts, _ = replay(source, validate=False)
    assert (counts.sent, counts.bad) == (0, {"not passed": 2})


def test_dead_letters_that_were_stored_twice_are_sent_once(monkeypatch):
    monkeypatch.setattr("framework.engine.dead_letter_replay.BATCH_SIZE", 2)
    source = usual()
    source.live()
    connection = source.server.connect()
    for message in source.server.messages("kit", DEAD):
        append(connection, "kit", DEAD, 0, message.payload, message_id=message.message_id, headers=message.headers)
    assert len(open_dead_letters(source)) == 2 * len(source.dead_letters)
    counts, _ = replay(source, validate=False)
    assert counts.sent == len(source.dead_letters)
    assert source.payloads() == as_text(source)
    assert open_dead_letters(source) == []


def test_a_topic_that_may_forget_gets_a_replayed_record_only_when_that_is_said():
    source = usual()
    source.live()
    source.server.set_option("kit", "records", "messages_required_to_save", 1024)
    with pytest.raises(IggyTopicError, match=r'"records".*only every 1024 messages.*--may-be-lost'):
        replay(source, validate=False)
    assert source.payloads() == source.records
    assert len(open_dead_letters(source)) == len(source.dead_letters)
    counts, _ = replay(source, validate=False, may_be_lost=True)
    assert counts.sent == len(source.dead_letters)
    assert source.payloads() == as_text(source)


def test_a_topic_that_was_purged_gets_no_replayed_record():
    """It would seem never to have been purged, once as many messages are there again."""
    source = usual()
    source.live()
    source.server.purge_topic("kit", "records")
    with pytest.raises(PartitionGoneError, match="it was purged"):
        replay(source, validate=False)
    assert source.payloads() == {}
    assert len(open_dead_letters(source)) == len(source.dead_letters)


def test_an_object_that_was_given_up_is_opened_again_whatever_its_topic_may_forget():
    source = rest_failed()
    source.live()
    source.server.set_option("kit", "records", "messages_required_to_save", 1024)
    counts, _ = replay(source, choice=DeadLetterChoice(key="a"))
    assert counts.reopened == 1


@pytest.mark.parametrize("how", ["overwritten", "reset"])
def test_dead_letters_of_an_earlier_generation_are_not_replayed(how, monkeypatch):
    monkeypatch.setattr(
        "framework.engine.positions_admin.void_dead_letters", lambda *_: 0
    )  # killed behind the snapshot
    source = usual()
    source.live()
    old = {dead_letter.offset for dead_letter in open_dead_letters(source) if dead_letter.key == "d"}
    if how == "reset":
        connection = source.server.connect()
        reset_positions(connection, source.config, PositionFilter(key="d"))
        connection.close()
    else:
        source.rig.store.put("d", b"- other\n")
    source.live()
    before = source.payloads()
    new = {dead_letter.offset for dead_letter in open_dead_letters(source) if dead_letter.key == "d"} - old
    assert new
    counts, _ = replay(source, choice=DeadLetterChoice(key="d"), validate=False)
    assert counts.sent == len(new)
    assert sum(source.payloads().values()) == sum(before.values()) + len(new)
    assert {dead_letter.offset for dead_letter in open_dead_letters(source) if dead_letter.key == "d"} == old


def test_an_object_that_was_given_up_in_a_partition_that_is_gone_stays():
    """The next start would refuse a position that goes on there."""
    source = rest_failed(partitions=2)
    source.live()
    names = [key for (key, _), entry in source.entries.items() if entry.failed and entry.topic_partition.partition == 1]
    assert names
    source.server._streams["kit"]["records"].partitions.pop()
    connection = source.server.connect()
    accept_changes(connection, source.rig.make_task({**source.options, "partitions": 1})[1], numbering_options="")
    connection.close()
    counts, _ = replay(source, partitions=1)
    assert counts.bad['topic "records" has 1 partition, and the dead letter names partition 1'] == len(names)
    source.live(partitions=1)
    assert all(source.entries[name, 0].failed for name in names)


def test_an_object_that_was_given_up_goes_on_where_it_was():
    source = rest_failed()
    source.live()
    counts, _ = replay(source, choice=DeadLetterChoice(key="a"))
    assert (counts.sent, counts.reopened) == (0, 1)
    source.live(tolerance="skip_record")
    entry = source.entries["a", 0]
    assert (entry.state, entry.records_done) == (ObjectState.DONE, 8)
    assert source.payloads() == source.records + collections.Counter(lines("a", 1, first=8))
    assert source.entries["b", 0].state is ObjectState.FAILED
    assert [(x.key, x.kind, x.record) for x in open_dead_letters(source)] == [("b", "object", 1), ("a", "record", 7)]


def test_a_given_up_object_that_has_no_position_any_more_is_done_with_its_dead_letter():
    source = rest_failed()
    source.live()
    connection = source.server.connect()
    session = Session.begin(connection, source.config)
    table = session.offsets.table
    youngest = max(entry.modified_ms for entry in table.entries())
    table.remove(source.entries["a", 0].get_manager_key())
    table.watermark = Watermark(bucket=source.entries["a", 0].bucket).raised("", CoveredRange("", None, youngest + 1))
    session.write_snapshot()
    connection.close()
    counts, _ = replay(source, choice=DeadLetterChoice(key="a"))
    assert (counts.reopened, counts.stayed) == (0, 0)
    assert {each.key for each in open_dead_letters(source)} == {"b"}


def array_cut_short(content):
    """A JSON array that fails behind its second record, or at its first."""
    source = Source(format="json", tolerance="skip_object")
    source.rig.store.put("a", content)
    source.rig.store.put("b", b'[{"n":1}]')
    source.live()
    return source


def test_an_object_that_was_begun_under_other_options_stays_failed_with_its_dead_letter():
    """The next run would stop at it, and nothing would be left to replay."""
    source = array_cut_short(b'[{"n":1},{"n":2} oops')
    counts, _ = replay(source, format="jsonl")
    assert (counts.reopened, counts.stayed, len(open_dead_letters(source))) == (0, 1, 1)
    assert "set [input] and [[transforms]] back, or read" in next(iter(counts.bad))
    before = source.payloads()
    source.live(format="jsonl")
    assert (source.entries["a", 0].state, source.payloads()) == (ObjectState.FAILED, before)
    counts, _ = replay(source)
    assert (counts.reopened, counts.stayed) == (1, 0)


def test_an_object_that_failed_before_its_first_record_begins_under_other_options():
    source = array_cut_short(b'oops {"n":1}\n{"n":2}\n')
    counts, _ = replay(source, format="jsonl", tolerance="skip_record")
    assert (counts.reopened, counts.stayed) == (1, 0)
    source.live(format="jsonl", tolerance="skip_record")
    assert source.payloads() == collections.Counter([b'{"n":1}', b'{"n":2}'])


def by_key(missing):
    return [{"type": "partition_by", "field": "k", "missing": missing}]


def test_parts_of_an_object_are_reopened_as_one_object_and_only_under_the_options_that_divided_it():
    source = Source(tolerance="skip_object", partitions=3, transforms=by_key("fail"))
    source.rig.store.put("a", b'{"k":1}\n{"n":2}\n{"k":3}\n')
    source.live()
    assert len(open_dead_letters(source)) == 3
    counts, _ = replay(source, transforms=by_key("spread"))
    assert (counts.reopened, counts.stayed) == (0, 3)
    source.live(transforms=by_key("spread"))
    counts, _ = replay(source)
    assert (counts.reopened, counts.stayed) == (1, 0)
    source.live(tolerance="skip_record")
    assert source.payloads() == collections.Counter([b'{"k":1}', b'{"k":3}'])


def test_an_object_that_fails_again_after_its_replay_leaves_a_dead_letter_again():
    source = rest_failed()
    source.live()
    for times in (2, 3):
        replay(source, choice=DeadLetterChoice(key="a"))
        source.live()
        assert [(x.key, x.record) for x in source.stored()].count(("a", 7)) == times
        assert sorted((x.key, x.record) for x in open_dead_letters(source)) == [("a", 7), ("b", 1)]
        source.live()  # and no more
        assert [(x.key, x.record) for x in source.stored()].count(("a", 7)) == times


def test_killed_at_any_event_a_given_up_object_goes_on_once():
    source = rest_failed()
    source.live()
    events = len(replay(source)[1].events)
    for at in range(1, events + 1):
        source = rest_failed()
        source.live()
        replay(source, at)
        replay(source)
        total = len(rest_failed().live().events)
        source.live(at * 3 % total, tolerance="skip_record")
        source.live(tolerance="skip_record")
        assert source.payloads() == source.records + collections.Counter(
            [*lines("a", 1, first=8), *lines("b", 1, first=2)]
        )
        assert sorted((x.key, x.record) for x in waiting_dead_letters(source)) == [("a", 7), ("b", 1)]


def test_splits_are_replayed_in_their_partitions():
    source = Source(split_size=1024, max_record_bytes=100_000, partitions=3, dead_letter_bytes=4)  # too few: read again
    made = [b"- bad %d" % n if n % 13 == 4 else lines("big", 1, first=n)[0] + b" " * 70 for n in range(60)]
    source.rig.store.put("big", b"".join(line + b"\n" for line in made))
    source.live()
    counts, _ = replay(source, validate=False)
    assert counts.sent == 5
    assert source.payloads() == collections.Counter(made)
    for message in marked(source):
        assert "/" in message.headers["share"]


def test_a_replay_beside_the_source_is_refused(monkeypatch):
    monkeypatch.setattr(fencing, "LOOK_SECONDS", 0.05)
    source = usual()
    source.live()
    running = Session.begin(source.server.connect(), source.config)
    monkeypatch.setattr(fencing.os, "getpid", lambda: 1)
    with pytest.raises(SourceRunningError, match="is running already"):
        replay(source)
    running.close()


# ---- choosing


def test_dead_letters_are_chosen_by_key_prefix_kind_number_and_time():
    source = usual()
    source.live()
    dead_letters = source.stored()
    latest = dead_letters[-1].timestamp_us / 1e6

    def chosen(**choice):
        return list(filter(DeadLetterChoice(**choice).selects(now=latest + 5), dead_letters))

    assert {x.key for x in chosen(key="a")} == {"a"}
    assert {x.key for x in chosen(prefix="d")} == {"d"}
    assert chosen(kind="ObjectError") == []
    assert len(chosen(kind="RecordError")) == len(dead_letters)
    assert [x.offset for x in chosen(dead_letter=3)] == [3]
    assert chosen(since="1s") == []
    assert len(chosen(since="2 h")) == len(dead_letters)
    assert len(chosen(since="2020-01-01")) == len(dead_letters)
    assert chosen(since="2099-01-01T00:00+01:00") == []
    with pytest.raises(ConfigError, match="--since yesterday"):
        chosen(since="yesterday")


@pytest.mark.parametrize("headers", ["provenance", "none"])
def test_a_replay_before_the_source_reads_the_next_version_leaves_that_one_alone(headers):
    """A recovery that took the replayed record for one of the source's would take the older version for the newer."""
    source = Source(headers=headers).put("a", 1, 0, 1, 0)
    source.live()
    source.rig.store.put("a", b'{"n":"other"}\n')
    counts, _ = replay(source, validate=False)
    assert counts.sent == 2
    before = source.payloads()
    source.live()
    source.live()
    assert source.payloads() == before + collections.Counter([b'{"n":"other"}'])
    assert (source.entries["a", 0].records_done, source.entries["a", 0].generation) == (1, 2)


def test_dead_letters_of_objects_that_were_reset_are_void_and_come_again():
    source = usual()
    source.live()
    connection = source.server.connect()
    reset_positions(connection, source.config, PositionFilter(key="a"))
    connection.close()
    assert {x.key for x in open_dead_letters(source)} == {"b", "d"}
    source.live(at=40)  # read again, killed in between, and read on
    source.live()
    again = [(x.key, x.record) for x in waiting_dead_letters(source) if x.key == "a"]
    assert sorted(again) == sorted((key, number) for key, number, _ in source.dead_letters if key == "a")
    assert all(count == (2 if b'"object":"a"' in line else 1) for line, count in source.payloads().items())
    replay(source, validate=False)
    assert collections.Counter(message.payload for message in marked(source)) == collections.Counter(
        line for _, _, line in source.dead_letters
    )


def reset(source, at=None, **choice):
    """`offsets reset`, which may die at an event; the events."""
    crash = CrashPoint(at)
    connection = source.server.connect()
    source.server.on_event = crash
    try:
        reset_positions(connection, source.config, PositionFilter(**choice))
    except CrashError:
        pass
    finally:
        source.server.on_event = None
        connection.close()
    return crash.events


def accept(source, **options):
    """`offsets accept-data-loss` under other options."""
    task, config = source.rig.make_task({k: v for k, v in {**source.options, **options}.items() if v is not None})
    numbering = task.get_iterator(SourceContext(config=config)).numbering_options
    with source.server.connect() as connection:
        return accept_changes(connection, config, numbering_options=numbering)


@pytest.mark.parametrize("harm", ["other options", "a partition that is gone"])
def test_dead_letters_of_objects_that_restart_when_that_is_accepted_are_void(harm):
    """Their records come again, in another generation, which is unknown once the position was compacted."""
    options = {"format": "text", "validate": None} if harm == "other options" else {"partitions": 1}
    restarted = 0
    for at in range(20, len(usual(partitions=2).live().events), 9):
        source = usual(partitions=2)
        source.live(at)
        if source.server.topic_info("kit", DEAD) is None:
            continue
        if harm != "other options":
            source.server._streams["kit"]["records"].partitions.pop()
        done = accept(source, **options)
        restarted += done.restarting > 0 and bool(source.stored())
        source.live(**options)
        with source.server.connect() as connection:
            after = {
                entry.key: entry.generation
                for entry in Session.begin(connection, source.config).offsets.table.entries()
            }
        assert all(letter.generation == after[letter.key] for letter in open_dead_letters(source))
    assert restarted


def test_a_change_by_hand_warns_that_it_cannot_void_dead_letters_of_a_topic_it_does_not_know(caplog):
    source = Source().put("a", 1, 0, 1).put("b", 1)
    source.live()
    config = source.rig.make_task({k: v for k, v in source.options.items() if k != "dead_letter_topic"})[1]
    for key, warned in (("b", 0), ("a", 1)):
        caplog.clear()
        with source.server.connect() as connection:
            reset_positions(connection, config, PositionFilter(key=key))
        assert sum("`dead-letter discard`" in text for text in caplog.messages) == warned


def test_a_discard_that_is_killed_anywhere_is_finished_by_the_same_command(monkeypatch):
    monkeypatch.setattr("framework.iggy.dead_letters.writer.MARKED", 3)
    total = len(usual().dead_letters)
    for at in (1, 2, 3, 4, None):
        source = usual()
        source.live()
        for event in (at, None):
            source.server.on_event = CrashPoint(event)
            connection = source.server.connect()
            with contextlib.suppress(CrashError):
                box = IggyDeadLetters(connection, source.config, topic_of(source.config))
                box.discarded(open_dead_letters(source))
            source.server.on_event = None
            connection.close()
        with source.server.connect() as connection:
            found = DeadLetterLog.read(connection, source.config)
        assert (len(found.discarded), found.waiting) == (total, [])
        assert replay(source, validate=False)[0].sent == 0


def usual_and_many():
    """With more letters of one object than a mark names."""
    return usual().put("many", *[0] * 8)


def in_the_log(source):
    """Whether the last thing in the log is a snapshot, which is that of a reset."""
    return framing.decode(0, source.server.messages("kit", "kit-offsets")[-1].payload).kind == "snapshot"


@pytest.mark.parametrize("then", ["a start", "the command again", "a replay", "a killed start"])
def test_a_reset_that_is_killed_anywhere_is_undone_or_finished_with_its_dead_letters(then, monkeypatch):
    """The letters of a reset are marked after its snapshot: without the rest, old ones and new ones would both be replayed."""
    monkeypatch.setattr("framework.iggy.dead_letters.writer.MARKED", 3)
    source = usual_and_many()
    source.live()
    events = reset(source)
    assert events.count("ack") > 2, "several marks"
    for at in range(1, len(events) + 1):
        source = usual_and_many()
        source.live()
        reset(source, at)
        new = in_the_log(source)
        if then == "the command again":
            reset(source)
            new = True
        elif then == "a replay":
            replay(source, validate=False)
        elif then == "a killed start":
            source.live(at=1 + at % 5)
        assert not (new and then == "the command again" and open_dead_letters(source))
        assert not (new and then in ("the command again", "a replay") and waiting_dead_letters(source))
        source.live()
        waiting = collections.Counter((x.key, x.record) for x in waiting_dead_letters(source))
        assert waiting == ({} if then == "a replay" and not new else {(k, n): 1 for k, n, _ in source.dead_letters})
        replay(source, validate=False)
        sent = collections.Counter(message.payload for message in marked(source))
        assert sent == {line: 1 for _, _, line in source.dead_letters}, (at, events[at - 1])
        good = {line: count * (2 if new else 1) for line, count in source.records.items()}
        assert {line: count for line, count in source.payloads().items() if line in good} == good


def test_the_dead_letter_of_an_object_whose_position_the_watermark_stands_for_is_replayed():
    source = usual()
    source.live()
    offsets = OffsetManager()
    (dead_letter, *_) = source.stored()
    assert not is_current(dead_letter, offsets)  # it is read again
    offsets.table.watermark = Watermark(bucket=dead_letter.bucket).raised("", CoveredRange("", None, 5))
    assert is_current(dead_letter, offsets)


@pytest.mark.parametrize("compacted", [False, True])
def test_a_dead_letter_of_an_earlier_version_is_not_replayed_also_once_the_new_one_has_no_position(compacted):
    """The corrected object was sent whole: the replay would repeat what it corrected."""
    source = Source().put("a", 1, 0, 1)
    source.live()
    source.put("a", 1, 1, 1)
    source.live()
    if compacted:
        compact(source)
    counts, _ = replay(source, validate=False)
    assert (counts.sent, counts.stayed, counts.superseded) == (0, 0, int(compacted))
    assert source.payloads() == source.records


def test_a_dead_letter_of_a_compacted_object_is_replayed_before_its_new_version_is_read():
    source = Source().put("a", 1, 0, 1)
    source.live()
    compact(source)
    source.put("a", 1, 1)
    counts, _ = replay(source, validate=False)
    assert (counts.sent, counts.superseded) == (1, 0)
    source.live()
    assert source.payloads() == as_text(source)


# ---- transforms


@pytest.fixture
def _transforms(monkeypatch):
    own.register(monkeypatch, drop=own.DropMarked, fail=own.FailOnMarked, shout=own.Shout, tag=own.Tag)


def marked_lines(*marks):
    return b"".join(b"line %d%s\n" % (number, mark.encode()) for number, mark in enumerate(marks, 1))


@pytest.mark.usefixtures("_transforms")
@pytest.mark.parametrize("gone", [False, True])
def test_a_replay_applies_the_transforms_to_the_original_record(gone):
    source = Source(format="text", transforms=[{"type": "shout"}, {"type": "fail"}])
    source.rig.store.put("a", marked_lines("", "?", "?!", "", "?"))
    source.live()
    assert [source.raw(letter) for letter in source.stored()] == [b"line 2?", b"line 3?!", b"line 5?"]
    if gone:
        source.rig.store.delete("a")
    counts, _ = replay(source, transforms=[{"type": "drop"}, {"type": "shout"}, {"type": "tag"}])
    assert (counts.sent, counts.filtered, counts.stayed) == (2, 1, 0)
    assert open_dead_letters(source) == []
    found = marked(source)
    assert sorted(message.payload for message in found) == [b"LINE 2?", b"LINE 5?"]
    assert sorted(message.origin_us for message in found) == [2_000_000, 5_000_000]
    assert all(message.headers["key"] == "a" for message in found)


@pytest.mark.usefixtures("_transforms")
def test_a_record_that_the_transforms_still_refuse_stays():
    source = Source(format="text", transforms=[{"type": "fail"}])
    source.rig.store.put("a", marked_lines("", "?"))
    source.live()
    counts, _ = replay(source)
    assert (counts.sent, counts.stayed) == (0, 1)
    assert len(open_dead_letters(source)) == 1


def test_a_header_of_an_object_that_is_gone_leaves_the_record_to_a_replay_without_it():
    source = Source().put("a", 1, 0)
    source.live()
    source.rig.store.delete("a")
    sized = [{"type": "headers", "headers": [{"name": "size", "object": "size"}]}]
    counts, _ = replay(source, validate=False, transforms=sized)
    assert (counts.sent, counts.stayed) == (0, 1)
    assert "the object of the record is gone" in next(iter(counts.bad))
    counts, _ = replay(source, validate=False)
    assert (counts.sent, counts.stayed) == (1, 0)


# ---- options and objects that changed


CSV = b"id,v\n1,one\n2,two\n3,%b\n4,four\n" % (b"x" * 40)


def long_csv_rows(**options):
    """Rows 3 and 4 are too long: row 4 as JSON."""
    source = Source(format="csv", max_record_bytes=20, **options)
    source.rig.store.put("a", CSV)
    source.live()
    assert [(letter.record, source.raw(letter)[:1]) for letter in source.stored()] == [(3, b"3"), (4, b"{")]
    return source


@pytest.mark.parametrize("known", ["by the dead letter", "by the position"])
def test_a_record_that_has_another_number_now_is_not_sent_in_place_of_the_bad_one(known, monkeypatch):
    source = long_csv_rows()
    if known == "by the position":  # as in dead letters of an earlier version
        monkeypatch.setattr(writer, "NUMBERED_BY", "not-there")
    before = source.payloads()
    counts, _ = replay(source, csv_header=False, max_record_bytes=200)
    assert (counts.sent, counts.stayed) == (0, 2)
    assert all('"csv_header":"true"' in sentence for sentence in counts.bad)
    assert source.payloads() == before
    assert len(open_dead_letters(source)) == 2
    counts, _ = replay(source, max_record_bytes=200)  # as the message says
    assert (counts.sent, counts.stayed) == (2, 0)


def test_a_record_that_has_another_number_now_is_made_from_its_own_bytes():
    source = Source().put("a", 1, 0, 1)
    source.live()
    counts, _ = replay(source, format="text", validate=None)
    assert (counts.sent, counts.stayed) == (1, 0)
    assert source.payloads() == as_text(source)


def test_an_object_that_the_formats_code_cannot_read_leaves_the_others_to_the_replay(monkeypatch):
    source = usual()
    source.live()

    def read(self, source, **options):
        if source.key == "a":
            raise IndexError
        yield from original(self, source, **options)

    original = JsonlTransformer.read
    monkeypatch.setattr(JsonlTransformer, "read", read)
    source.rig.store.delete("b")
    monkeypatch.setattr(JsonlTransformer, "decode_record", lambda _, raw, *, key: [][len(raw)])
    counts, _ = replay(source, validate=False)
    of_d = sum(count for (name, *_), count in source.dead_letters.items() if name == "d")
    assert (counts.sent, counts.stayed) == (of_d, len(source.dead_letters) - of_d)
    assert all("IndexError" in sentence for sentence in counts.bad)


def test_a_format_that_raises_the_error_of_a_record_leaves_the_dead_letters_own_bytes(monkeypatch):
    source = usual()
    source.live()

    def read(self, source, **options):
        if source.key == "a":
            raise RecordError("a format yields it instead")
        yield from original(self, source, **options)

    original = JsonlTransformer.read
    monkeypatch.setattr(JsonlTransformer, "read", read)
    counts, _ = replay(source, validate=False)
    assert (counts.sent, counts.stayed) == (len(source.dead_letters), 0)
    assert source.payloads() == as_text(source)


def test_a_format_that_finds_fewer_records_now_leaves_the_dead_letters_own_bytes(monkeypatch):
    source = usual()
    source.live()
    monkeypatch.setattr(JsonlTransformer, "read", lambda *_, **__: iter(()))
    counts, _ = replay(source, validate=False)
    assert (counts.sent, counts.stayed) == (len(source.dead_letters), 0)
    assert source.payloads() == as_text(source)


def test_a_format_that_decodes_a_record_to_something_else_than_bytes_is_named(monkeypatch):
    source = usual()
    source.live()
    source.rig.store.delete("a")
    monkeypatch.setattr(JsonlTransformer, "decode_record", lambda *_, **__: "text")
    with pytest.raises(FormatContractError, match=r"^JsonlTransformer\.decode_record returned str, not bytes"):
        replay(source, validate=False)
    assert len(open_dead_letters(source)) == len(source.dead_letters)


def test_a_format_that_yields_something_else_than_records_is_named(monkeypatch):
    source = usual()
    source.live()
    monkeypatch.setattr(JsonlTransformer, "read", lambda *_, **__: iter([b"{}"]))
    with pytest.raises(FormatContractError, match=r"the format transformers\.jsonl\.JsonlTransformer is defective"):
        replay(source, validate=False)


def test_no_more_of_an_object_is_in_memory_than_a_run_and_a_group(monkeypatch):
    source = Source().put("a", *[0] * 40)
    source.live()
    events, most = [], 0
    monkeypatch.setattr(dead_letter_replay, "SCAN_RECORDS", 4)
    monkeypatch.setattr(dead_letter_replay, "BATCH_SIZE", 4)
    original = JsonlTransformer.read

    def read(self, source, **options):
        for run in original(self, source, **options):
            events.append(len(run.payloads))
            yield run

    def send(self, group):
        events.append(-len(group))
        return sends(self, group)

    sends = DeadLetterReplay._send
    monkeypatch.setattr(JsonlTransformer, "read", read)
    monkeypatch.setattr(DeadLetterReplay, "_send", send)
    counts, _ = replay(source, validate=False)
    assert (counts.sent, counts.stayed) == (40, 0)
    assert source.payloads() == as_text(source)
    held = 0
    for records in events:
        held += records
        most = max(most, held)
    assert most <= 8


@pytest.mark.parametrize("error", [AccessDeniedError("s3://b/a: no tags"), ObjectChangedError("overwritten")])
def test_an_object_whose_metadata_cannot_be_had_leaves_the_others_to_the_replay(error, monkeypatch):
    source = usual()
    source.live()

    def tags_of(_, native):
        if native.key == "a":
            raise error
        return {}

    monkeypatch.setattr(StoreRecordIterator, "tags_of", tags_of)
    team = [{"type": "headers", "headers": [{"name": "team", "tag": "team"}]}]
    counts, _ = replay(source, validate=False, transforms=team)
    of_a = sum(count for (name, *_), count in source.dead_letters.items() if name == "a")
    assert (counts.sent, counts.stayed) == (len(source.dead_letters) - of_a, of_a)


def test_transforms_are_told_the_same_of_a_part_as_when_its_object_was_read():
    """All parts of an object have one context: what a transform makes of a record must not depend on its part."""
    source = usual()
    source.live()
    part = attrs.evolve(open_dead_letters(source)[0], division=KeyPart(3, 4), topic_partition=TopicPartition("t", 2))
    connection = source.server.connect()
    session = Session.begin(connection, source.config)
    iterator = source.rig.make_task(source.options)[0].get_iterator(SourceContext(config=source.config))
    context = DeadLetterReplay(session, iterator)._context(part, None)
    connection.close()
    assert (context.topic_partition, context.split_number) == (TopicPartition("t", 0), 0)
    assert (context.native.key, context.native.version) == (part.key, part.version)
