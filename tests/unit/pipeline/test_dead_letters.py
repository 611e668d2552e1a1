"""Dead letters over an Iggy in memory: whatever a crash leaves behind, every record is there once and every letter at least so.

A letter that is there twice has the same id twice.
"""

import collections
import contextlib
import json
import threading
import tracemalloc
from types import SimpleNamespace

import pytest

from framework.engine.positions_admin import reset_positions
from framework.engine.session import Session
from framework.errors import (
    CorruptObjectError,
    IggyTopicError,
    ReaderFailedError,
    RecordError,
    TooManySkippedError,
)
from framework.iggy.dead_letters.writer import (
    IggyDeadLetters,
    ReplayMarker,
    StoredDeadLetter,
    ensure_dead_letter_topic,
    read_dead_letter,
)
from framework.iggy.header_decoding import join_provenance
from framework.model.batches import SkippedRecord
from framework.model.message_ids import dead_letter_hash64, message_id, object_hash64
from framework.model.objects import ObjectState, TopicPartition
from framework.offsets.position_filter import PositionFilter
from framework.offsets.skip_history import SkippedCount
from framework.pipeline.bounded_queue import BoundedQueue
from framework.pipeline.error_policy import ErrorPolicy, SkipWatch
from framework.testing.fakes.memory_iggy import MemoryIggy
from framework.testing.kit.crash import Bench, CrashPoint
from framework.testing.options import source_config
from tests.conformance.rigs import MemoryRig
from tests.support.core import lines

DEAD = "dead"
OPTIONS = {
    "batch_length": 4,
    "queue_records": 13,
    "linger_time": 0.0,
    "prefetch_objects": 2,
    "tolerance": "skip_record",
    "dead_letter_topic": DEAD,
}


class Source:
    """Objects in a store, good records and letters expected of them, and processes over one server."""

    def __init__(self, **options):
        self.rig = MemoryRig()
        self.server = None
        self.options = {**OPTIONS, **options}
        self.records = collections.Counter()
        self.dead_letters = collections.Counter()

    def put(self, name, *content):
        """Lines; those that are None are bad. A name's earlier version is no longer expected from here on."""
        made = []
        for number, good in enumerate(content, 1):
            line = lines(f"{name}", 1, first=number)[0] if good else b"- bad %d of %s" % (number, name.encode())
            made.append(line)
            if good:
                self.records[line] += 1
            else:
                self.dead_letters[name, number, line] += 1
        self.rig.store.put(name, b"".join(line + b"\n" for line in made))
        return self

    def live(self, at=None, **options):
        crash = CrashPoint(at)
        given = {name: value for name, value in {**self.options, **options}.items() if value is not None}
        bench = Bench(self.rig, server=self.server, **given)
        self.server = bench.server
        try:
            self.entries = {(entry.key, entry.split_number): entry for entry in bench.live(crash)}
        finally:
            self.config = bench.config
        return crash

    def stored(self):
        return [
            dead_letter
            for dead_letter in (read_dead_letter(message, "kit") for message in self.server.messages("kit", DEAD))
            if isinstance(dead_letter, StoredDeadLetter)
        ]

    def raw(self, dead_letter):
        """The bytes of the record that the message of a dead letter holds."""
        (message,) = [m for m in self.server.messages("kit", DEAD) if m.offset == dead_letter.offset]
        return b"" if dead_letter.payload == "none" else message.payload

    def payloads(self):
        found = collections.Counter()
        for partition in range(self.config.iggy.partitions):
            found.update(m.payload for m in self.server.messages("kit", "records", partition))
        return found

    def check(self, *, repeats=False):
        """Everything is there; a letter more than once only when `repeats`, and then with one id."""
        assert self.payloads() == self.records
        stored = [x for x in self.stored() if x.kind == "record"]
        found = collections.Counter((x.key, x.record, self.raw(x)) for x in stored)
        assert found.keys() == self.dead_letters.keys() if repeats else found == self.dead_letters
        assert len({x.message_id for x in stored}) == len(self.dead_letters)
        assert all(entry.finished for entry in self.entries.values())


def usual(**options):
    source = Source(**options)
    source.put("a", 1, 0, 0, 1, 1, 0, 1, 1, 1, 1, 0)
    source.put("b", 0, 0, 0)
    source.put("c", 1, 1, 1, 1, 1, 1, 1)
    source.put("d", 0, 1, 0, 1, 0, 1)
    return source


# ---- what a letter says


def test_a_dead_letter_says_where_what_and_why():
    source = Source(partitions=2)
    source.put("events/a", 1, 0, 1)
    source.live()
    source.check()
    (dead_letter,) = source.stored()
    entry = source.entries["events/a", 0]
    (message,) = source.server.messages("kit", DEAD)
    assert (dead_letter.kind, dead_letter.bucket, dead_letter.key, dead_letter.version) == (
        "record",
        entry.bucket,
        "events/a",
        entry.version,
    )
    assert (dead_letter.record, dead_letter.division, dead_letter.topic_partition) == (2, None, entry.topic_partition)
    assert dead_letter.byte_offset == len(lines("events/a", 1)[0]) + 1
    assert (dead_letter.error, dead_letter.format, dead_letter.payload) == ("RecordError", "jsonl", "whole")
    assert dead_letter.length == len(source.raw(dead_letter)) == len(message.payload)
    assert "not JSON" in dead_letter.text
    assert "bad 2" not in " ".join(join_provenance(message.headers).values())
    of_object = dead_letter_hash64("kit", entry.bucket, "events/a", entry.version, 0, generation=1, kind="dead letter")
    assert message.message_id == message_id(of_object, 0, 2)
    assert of_object != object_hash64("kit", entry.bucket, "events/a", entry.version)


def test_a_long_record_leaves_its_beginning_and_its_length():
    source = Source(dead_letter_bytes=10)
    source.put("a", 1)
    source.rig.store.put("long", b"- this is no JSON\n")
    source.live()
    (dead_letter,) = source.stored()
    assert (source.raw(dead_letter), dead_letter.length, dead_letter.payload) == (b"- this is ", 17, "beginning")


def test_an_object_of_which_the_rest_cannot_be_read_leaves_one_dead_letter_without_bytes():
    source = Source(tolerance="skip_object")
    source.put("a", 1, 1, 0, 1)
    source.records = collections.Counter(lines("a", 2))
    source.dead_letters.clear()
    source.live()
    source.check()
    (dead_letter,) = source.stored()
    (message,) = source.server.messages("kit", DEAD)
    assert (dead_letter.kind, dead_letter.record, dead_letter.payload) == ("object", 3, "none")
    assert json.loads(message.payload) == {"payload": "none"}
    assert source.entries["a", 0].state is ObjectState.FAILED


def test_long_keys_and_long_errors_come_back_whole():
    server = MemoryIggy()
    connection = server.connect()
    ensure_dead_letter_topic(connection, "kit", DEAD)
    source = Source()
    key = "ä€😀" * 100
    source.put(key, 0)
    source.server = server
    source.live()
    (message,) = server.messages("kit", DEAD)
    assert all(len(str(value).encode()) <= 255 for value in message.headers.values())
    assert source.stored()[0].key == key


@pytest.mark.parametrize("options", [{"durability": "none"}, {"messages_required_to_save": 1024}])
def test_a_topic_that_may_lose_dead_letters_is_refused(options):
    server = MemoryIggy()
    connection = server.connect()
    connection.ensure_stream("kit")
    connection.create_topic("kit", DEAD, 1)
    for name, value in options.items():
        server.set_option("kit", DEAD, name, value)
    with pytest.raises(IggyTopicError, match="must not be lost"):
        ensure_dead_letter_topic(connection, "kit", DEAD)


def test_dead_letters_of_other_sources_and_garbage_are_nobodys():
    source = usual()
    source.live()
    message = source.server.messages("kit", DEAD)[0]
    assert read_dead_letter(message, "kit") is not None
    assert read_dead_letter(message, "other") is None
    source.server.store("kit", DEAD, 0, [(1, b"x", {}, 0), (2, b"x", {"letter": "record", "source": "kit"}, 0)])
    assert all(read_dead_letter(one, "kit") is None for one in source.server.messages("kit", DEAD)[-2:])
    source.live()
    source.check()


# ---- crashes


@pytest.mark.parametrize("headers", ["provenance", "none"])
def test_after_a_crash_at_any_event_every_record_is_there_once_and_every_dead_letter_with_one_id(headers):
    total = len(usual(headers=headers).live().events)
    assert total > 60
    repeated = 0
    for at in range(1, total + 1):
        source = usual(headers=headers)
        source.live(at)
        source.live()
        source.check(repeats=True)
        repeated += len(source.stored()) > sum(source.dead_letters.values())
    assert 0 < repeated < total, "only letters behind which nothing was sent come again"


def test_after_two_crashes_too():
    total = len(usual().live().events)
    for at in range(1, total + 1, 7):
        for later in range(1, total + 1, 11):
            source = usual()
            source.live(at)
            source.live(later)
            source.live()
            source.check(repeats=True)


def forgetting(source, required):
    """Its data topic is there already, and forgets: up to `required - 1` messages of a partition."""
    source.server = MemoryIggy()
    with source.server.connect() as connection:
        connection.ensure_stream("kit")
        connection.create_topic("kit", "records", 1)
    source.server.set_option("kit", "records", "messages_required_to_save", required)
    return source


def forget(source, lost):
    held = len(source.server.messages("kit", "records", 0))
    source.server.lose_tail("kit", "records", 0, min(lost, held))


@pytest.mark.parametrize("lost", [1, 3, 6])
def test_a_server_that_forgets_the_tails_of_the_data_loses_no_record_and_no_dead_letter(lost):
    total = len(forgetting(usual(partitions=1), 7).live().events)
    for at in range(1 + lost % 3, total + 1, 4):
        source = forgetting(usual(partitions=1), 7)
        source.live(at)
        forget(source, lost)
        source.live()
        source.check(repeats=True)


def rest_failed(**options):
    source = Source(tolerance="skip_object", **options)
    source.put("a", 1, 1, 1, 1, 1, 1, 0, 1)
    source.put("b", 0, 1)
    source.put("c", 1, 1, 1)
    source.records = collections.Counter([*lines("a", 6), *lines("c", 3)])
    source.dead_letters.clear()
    return source


def dead_hash(source, key):
    entry = source.entries[key, 0]
    return dead_letter_hash64("kit", entry.bucket, key, entry.version, 0, generation=1, kind="dead object")


@pytest.mark.parametrize("lost", [0, 2])
def test_after_a_crash_at_any_event_an_object_is_given_up_in_dead_letters_of_one_id(lost):
    total = len(forgetting(rest_failed(partitions=1), 3).live().events)
    for at in range(1, total + 1):
        source = forgetting(rest_failed(partitions=1), 3)
        source.live(at)
        forget(source, lost)
        source.live()
        source.check()
        assert {(x.key, x.record, x.message_id) for x in source.stored()} == {
            (key, number, message_id(dead_hash(source, key), 0, number)) for key, number in [("a", 7), ("b", 1)]
        }


def test_splits_leave_their_dead_letters():
    def split():
        source = Source(split_size=1024, max_record_bytes=100_000)
        for name in ("big", "more"):
            made = []
            for number in range(60):
                line = b"- bad" if number % 13 == 4 else lines(name, 1, first=number)[0] + b" " * (60 + number)
                made.append(line)
                if number % 13 != 4:
                    source.records[line] += 1
            source.rig.store.put(name, b"".join(line + b"\n" for line in made))
        return source

    whole = split()
    events = len(whole.live().events)
    assert whole.payloads() == whole.records
    expected = collections.Counter((x.key, x.split_number, x.record) for x in whole.stored())
    assert len(expected) == 10
    assert len({split_number for _, split_number, _ in expected}) > 3
    for at in range(1, events + 1, 3):
        source = split()
        source.live(at)
        source.live()
        assert source.payloads() == source.records
        assert {(x.key, x.split_number, x.record) for x in source.stored()} == expected.keys()
        assert len({x.message_id for x in source.stored()}) == len(expected)


def test_an_object_overwritten_after_its_dead_letters_leaves_those_of_its_new_version_too():
    total = len(usual().live().events)
    for at in range(10, total + 1, 5):
        source = usual()
        source.live(at)
        first = (
            {(x.key, x.version, x.record) for x in source.stored()} if source.server.topic_info("kit", DEAD) else set()
        )
        source.rig.store.put("d", b"- other\n- and one more\n")
        source.live()
        dead_letters = {(x.key, x.version, x.record) for x in source.stored()}
        assert first <= dead_letters
        generations = {x.version: x.generation for x in source.stored() if x.key == "d"}
        assert sorted(generations.values()) == list(
            range(source.entries["d", 0].generation - len(generations) + 1, source.entries["d", 0].generation + 1)
        )
        assert {n for key, version, n in dead_letters if (key, version) == ("d", source.entries["d", 0].version)} == {
            1,
            2,
        }


def test_a_topic_that_was_emptied_begins_again():
    source = usual()
    source.live(at=60)
    source.server.purge_topic("kit", DEAD)
    source.live()
    assert source.payloads() == source.records


def test_a_topic_named_later_takes_what_is_skipped_from_then_on():
    source = usual(dead_letter_topic=None)
    source.live(at=40)
    source.live(dead_letter_topic=DEAD)
    assert source.payloads() == source.records
    assert {(x.key, x.record) for x in source.stored()} <= {(key, record) for key, record, _ in source.dead_letters}


def test_a_record_that_is_good_under_later_options_is_sent_once():
    """It was skipped, and a record behind it was sent: a recovery that took it for a hole would send it again."""
    total = len(Source(partitions=1).put("a", 1, 0, 1, 1).live().events)
    for at in range(1, total + 1):
        for later in range(1 + at % 5, 24, 5):
            source = Source(partitions=1).put("a", 1, 0, 1, 1)
            source.live(at)
            source.live(later, validate=False)
            source.live(validate=False)
            assert max(source.payloads().values()) == 1


# ---- limits


def test_an_object_with_too_many_bad_records_stops_the_source_and_says_so():
    source = Source(max_bad_records=2)
    source.put("a", 1, 0, 0, 1, 0, 1)
    with pytest.raises(ReaderFailedError, match=r"3 of the first 5 records of .*a are bad: is \[input\] format right"):
        source.live()
    assert [x.record for x in source.stored()] == [2, 3]
    with pytest.raises(ReaderFailedError, match="3 of the first 5 records"):  # a restart allows no more
        source.live()
    assert [x.record for x in source.stored()] == [2, 3]
    source.live(max_bad_records=3)
    source.check()


def test_the_limit_holds_without_a_dead_letter_topic():
    source = Source(max_bad_records=0, dead_letter_topic=None)
    source.put("a", 1, 0)
    with pytest.raises(ReaderFailedError) as caught:
        source.live()
    assert isinstance(caught.value.__cause__, TooManySkippedError)


def test_many_bad_objects_stop_the_source():
    source = Source(tolerance="skip_object", max_bad_records_per_hour=3)
    for name in "abcdef":
        source.put(name, 0)
    with pytest.raises(
        ReaderFailedError, match=r"4 bad records and objects within an hour, the last one .*d from record 1 on"
    ):
        source.live()
    assert len(source.stored()) == 3


def bad_objects(**options):
    source = Source(max_bad_records_per_hour=3, **options)
    for name in "abcdef":
        source.put(name, 1, 0, 1)
    return source


def an_hour_passes(source):
    for _ in range(1800):
        source.server.restart()  # each tick of the server's clock is 2 seconds


@pytest.mark.parametrize("tolerance", ["skip_record", "skip_object"])
def test_a_source_that_is_started_again_and_again_leaves_out_no_more_in_an_hour(tolerance):
    source = bad_objects(tolerance=tolerance)
    for _ in range(3):
        with pytest.raises(ReaderFailedError, match=r"4 bad records and objects .*\(earlier starts count\)"):
            source.live()
        assert len(source.stored()) == 3
    an_hour_passes(source)
    source.live()
    assert len(source.stored()) == 6
    source.live()


def test_nor_without_a_dead_letter_topic():
    source = bad_objects(dead_letter_topic=None)
    for _ in range(3):
        with pytest.raises(ReaderFailedError, match="4 bad records"):
            source.live()
    assert {line[11:12] for line in source.payloads()} == set(map(str.encode, "abcd")), "neither e nor f"
    an_hour_passes(source)
    source.live()
    assert source.payloads() == source.records


def test_nor_when_it_is_killed_at_any_moment():
    for at in range(20, 150, 6):
        source = bad_objects()
        for moment in (at, at + 3, None, None):
            with contextlib.suppress(ReaderFailedError):
                source.live(moment)
        assert len({dead_letter.message_id for dead_letter in source.stored()}) <= 3


def test_what_a_reset_forgets_counts_no_more():
    source = bad_objects()
    with pytest.raises(ReaderFailedError):
        source.live()
    connection = source.server.connect()
    reset_positions(connection, source.config, PositionFilter(key="a"))
    connection.close()
    with pytest.raises(ReaderFailedError, match="4 bad records"):
        source.live()
    assert len(source.stored()) == 3 + 3, "a again, d and e"


def test_what_workers_are_told_of_earlier_starts_grows_old_with_the_epoch(monkeypatch):
    source = bad_objects()
    with pytest.raises(ReaderFailedError):
        source.live()
    now = [100.0]
    monkeypatch.setattr("framework.engine.session.time", SimpleNamespace(monotonic=lambda: now[0]))
    session = Session.begin(source.server.connect(), source.config)
    begun = session.skipped_lately()
    assert sum(one.count for one in begun) == 3
    now[0] += 600
    later = session.skipped_lately()
    assert [one.seconds_ago - 600 for one in later] == pytest.approx([one.seconds_ago for one in begun])
    now[0] += 3000
    assert session.skipped_lately() == []


def bad_record(number):
    return SkippedRecord(record_number=number, error=RecordError("bad"))


def test_a_bad_record_that_is_not_tolerated_is_its_own_error():
    policy = ErrorPolicy(tolerance="skip_object", per_object=9, per_hour=9)
    with pytest.raises(RecordError, match="bad"):
        policy.skip_record(bad_record(1), "s3://lake/a", 1)


def test_what_earlier_starts_left_out_counts_until_its_hour_is_over():
    now = [5000.0]
    limits = ErrorPolicy(
        tolerance="skip_record",
        per_object=9,
        per_hour=3,
        before=[SkippedCount(60, 1), SkippedCount(3000, 2)],
        clock=lambda: now[0],
    )
    with pytest.raises(TooManySkippedError, match="4 bad records"):
        limits.skip_record(bad_record(1), "s3://lake/a", 1)
    now[0] += 601
    for number in (1, 2):
        limits.skip_record(bad_record(number), "s3://lake/a", number)
    with pytest.raises(TooManySkippedError, match="4 bad records"):
        limits.skip_rest("s3://lake/a", 3)


def test_over_all_tasks_too():
    now = [5000.0]
    watch = SkipWatch(per_hour=10, before=[SkippedCount(60, 3), SkippedCount(3000, 6)], clock=lambda: now[0])
    watch.observe(1)
    with pytest.raises(TooManySkippedError, match="11 bad records and objects"):
        watch.observe(2)
    now[0] += 601
    watch.observe(7)
    with pytest.raises(TooManySkippedError, match="11 bad records and objects"):
        watch.observe(8)


def test_what_was_skipped_an_hour_ago_no_longer_counts():
    now = [0.0]
    limits = ErrorPolicy(tolerance="skip_record", per_object=9, per_hour=2, clock=lambda: now[0])
    for at in (0.0, 1800.0, 3600.0, 5400.0):
        now[0] = at
        limits.skip_rest("s3://lake/a", 1)
    with pytest.raises(TooManySkippedError, match="within an hour"):
        limits.skip_record(bad_record(2), "s3://lake/a", 1)


def test_bad_records_of_a_second_take_no_memory_each():
    limits = ErrorPolicy(tolerance="skip_record", per_object=9, per_hour=10_000, clock=lambda: 1.5)
    tracemalloc.start()
    try:
        for _ in range(10_000):
            limits.skip_rest("s3://lake/a", 1)
        assert tracemalloc.get_traced_memory()[0] < 10_000
    finally:
        tracemalloc.stop()
    with pytest.raises(TooManySkippedError, match="10,001 bad records"):
        limits.skip_rest("s3://lake/a", 1)


def test_the_last_bad_record_of_a_second_counts_for_its_hour():
    now = [0.0]
    limits = ErrorPolicy(tolerance="skip_record", per_object=9, per_hour=2, clock=lambda: now[0])
    for at in (0.1, 0.9):
        now[0] = at
        limits.skip_rest("s3://lake/a", 1)
    now[0] = 3600.5
    with pytest.raises(TooManySkippedError, match="3 bad records"):
        limits.skip_rest("s3://lake/a", 1)


def test_over_all_tasks_the_sums_of_an_hour_count():
    now = [0.0]
    watch = SkipWatch(per_hour=10, clock=lambda: now[0])
    for at, total in [(0, 4), (1800, 10), (3601, 14), (5401, 20), (7202, 24)]:
        now[0] = float(at)
        watch.observe(total)
        watch.observe(total)
    with pytest.raises(TooManySkippedError, match="11 bad records and objects within an hour, over all tasks"):
        watch.observe(25)


def test_the_bytes_of_bad_records_count_against_the_queue():
    """Without that an object of long bad records would be held in memory as far as the reader is ahead."""
    from tests.support.core import drain, iterator_over

    source = Source()
    source.rig.store.put("a", b"".join(b"-" * 300_000 + b"\n" for _ in range(40)))
    iterator = iterator_over(source.rig.store, once=True, tolerance="skip_record")
    batches = drain(iterator)
    assert len(batches) > 5
    assert all(batch.size_bytes == 0 and batch.held_bytes < 1_700_000 for batch in batches)
    queue = BoundedQueue(max_records=1000, max_bytes=2_000_000)
    queue.put(batches[0])
    assert queue.size_bytes == batches[0].held_bytes > 1_000_000
    blocked = threading.Thread(target=queue.put, args=(batches[1],))
    blocked.start()
    blocked.join(0.05)
    assert blocked.is_alive()
    assert len(queue.take(1)) == 1
    blocked.join(30)
    assert not blocked.is_alive()
    assert batches[0].without_raw().held_bytes == 0
    assert [skip.record_number for skip in batches[0].without_raw().skipped] == [1, 2, 3, 4]


def test_a_row_of_bad_records_waits_in_memory_no_longer_than_needed():
    source = Source(queue_records=10**6)
    source.put("a", *([0] * 950), 1)
    source.live()
    source.check()
    assert source.entries["a", 0].records_done == 951


# ---- the words of the topic itself


def test_marks_name_dead_letters_by_place_and_id():
    source = usual()
    source.live()
    dead_letters = source.stored()[:2]
    connection = source.server.connect()
    box = IggyDeadLetters.of(connection, source.config)
    box.note(dead_letters, {TopicPartition("records", 1): 7})
    box.replayed(dead_letters)
    messages = source.server.messages("kit", DEAD)[-2:]
    note, replayed = (read_dead_letter(message, "kit") for message in messages)
    assert isinstance(note, ReplayMarker)
    assert (note.replayed, replayed.replayed) == (False, True)
    assert note.ends == {TopicPartition("records", 1): 7}
    assert note.dead_letters == replayed.dead_letters == tuple(dead_letter.offset for dead_letter in dead_letters)
    named = [(offset, int(number, 16)) for offset, number, _ in json.loads(messages[0].payload)["letters"]]
    assert named == [(dead_letter.offset, dead_letter.message_id) for dead_letter in dead_letters]


def test_without_a_topic_there_is_no_box():
    assert IggyDeadLetters.of(MemoryIggy().connect(), source_config()) is None
    assert issubclass(RecordError, ValueError)
    assert issubclass(CorruptObjectError, ValueError)


# ---- nothing of a record outside its payload


SECRET = b"hunter2"


def secret_objects():
    """Objects of every format with a record that is bad, and in it a word that must stay there."""
    import io

    import fastavro
    import pyarrow as pa
    import pyarrow.parquet as pq

    long = b'"' + SECRET * 100 + b'"'
    yield "jsonl", b'{"a":1}\n{"a":' + SECRET + b"}\n", {}
    yield "jsonl", b"[" * 5000 + SECRET + b"\n", {}
    yield "jsonl", b'{"a":"' + SECRET + b'\xff"}\n', {}
    yield "jsonl", long + b"\n", {"max_record_bytes": 50}
    yield "text", long + b"\n", {"max_record_bytes": 50}
    yield "json", b"[1," + SECRET + b"]", {}
    yield "json", b'[1,"' + SECRET + b'\xff"]', {}
    yield "json", b"[1," + long + b"]", {"max_record_bytes": 50}
    yield "csv", b"a,b\n1,2\n" + SECRET + b",2,3\n", {}
    yield "csv", b"a,b\n1,2\n" + SECRET + b"\xff,2\n", {}
    yield "csv", b"a,b\n1,2\n" + long + b",2\n", {"max_record_bytes": 50}
    yield "bytes", SECRET * 20, {"whole_object": True, "max_record_bytes": 50}
    avro = io.BytesIO()
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "string"}]}
    fastavro.writer(avro, schema, [{"a": SECRET.decode() * 20}])
    yield "avro", avro.getvalue(), {"max_record_bytes": 50}
    parquet = io.BytesIO()
    pq.write_table(pa.table({"a": [SECRET.decode() * 20]}), parquet)
    yield "parquet", parquet.getvalue(), {"max_record_bytes": 50}


@pytest.mark.parametrize("at", range(14))
@pytest.mark.parametrize("tolerance", ["skip_record", "skip_object"])
def test_no_header_and_no_line_of_the_log_shows_what_a_record_holds(at, tolerance, caplog):
    form, data, options = list(secret_objects())[at]
    source = Source(format=form, tolerance=tolerance, **options)
    source.rig.store.put("a", data)
    source.live()
    (message,) = source.server.messages("kit", DEAD)
    headers = " ".join(str(value) for value in message.headers.values())
    assert SECRET.decode() not in headers
    assert SECRET.decode() not in caplog.text
    assert message.headers["text"]
    (dead_letter,) = source.stored()
    assert SECRET in source.raw(dead_letter) or dead_letter.kind == "object"


@pytest.mark.parametrize("headers", ["provenance", "none"])
def test_a_key_that_fits_into_no_message_is_an_object_left_out(headers, caplog):
    """No store has such keys; a header block that Iggy refuses would end every start."""
    source = Source(headers=headers, tolerance="skip_record").put("k" * 10_000, 1, 0).put("z", 1)
    source.rig.store.put("l" * 100_001, b'{"n":1}\n')
    source.live()
    source.check()
    assert "its key has 100,001 characters" in caplog.text
    assert all(len(message) < 1000 for message in caplog.messages if "its key has" in message)
