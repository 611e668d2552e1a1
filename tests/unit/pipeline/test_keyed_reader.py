"""Objects divided by key over an Iggy in memory: every record once, in the partition of its key, in order."""

import collections
import json
import random

import pytest

from framework import transform
from framework.engine.session import Session
from framework.errors import (
    ObjectArchivedError,
    ObjectChangedError,
    ObjectNotFoundError,
    PositionMismatchError,
    ReaderFailedError,
    RecordTransformError,
    TransformContractError,
)
from framework.iggy.header_decoding import join_provenance
from framework.model.header_encoding import LETTER_HEADER
from framework.model.message_ids import parse_message_id
from framework.offsets.manager import OffsetManager
from framework.pipeline import keyed_reader
from framework.testing.fakes.memory_iggy import MemoryIggy
from framework.testing.fakes.memory_store import MemoryStore
from framework.testing.kit.crash import Bench, CrashPoint
from tests.conformance.rigs import MemoryRig
from tests.support.core import commit, drain, iterator_over, next_pass
from tests.support.keys import partition_of_key

BY_KEY = {"type": "partition_by", "field": "key"}
KEYS = ("a", "b", "c", "dd", "ee", "fff", "g" * 40)
PARTITIONS = 3


class Source:
    """Objects in a store, and processes over one server, each with options of its own."""

    def __init__(self, counts=None, seed=0, **options):
        self.rig = MemoryRig()
        self.dice = random.Random(seed)
        self.expected = {}
        self.bad = {}
        self.options = {
            "batch_length": 4,
            "queue_records": 13,
            "linger_time": 0.0,
            "prefetch_objects": 2,
            "partitions": PARTITIONS,
            "transforms": [BY_KEY],
            **options,
        }
        self.server = None
        for name, count in (counts or {"big": 17, "small": 2, "zbig": 9}).items():
            self.put(name, count)

    def put(self, name, count, version=1, bad=()):
        """Write an object; `bad` are the numbers of records without the field."""
        rows, lines = [], []
        for number in range(1, count + 1):
            row = {"object": name, "version": version, "n": number, "key": self.dice.choice(KEYS)}
            if number in bad:
                del row["key"]
            rows.append(row)
            lines.append(json.dumps(row).encode() + b"\n")
        self.expected[name] = [row for row in rows if "key" in row]
        self.bad[name] = [row["n"] for row in rows if "key" not in row]
        self.rig.store.put(name, b"".join(lines))

    def live(self, at=None, **options):
        """A process that dies at an event; its positions, by object and part."""
        crash = CrashPoint(at)
        given = {name: value for name, value in {**self.options, **options}.items() if value is not None}
        bench = Bench(self.rig, server=self.server, **given)
        self.bench, self.server = bench, bench.server
        try:
            self.entries = {(entry.key, entry.split_number): entry for entry in bench.live(crash)}
        finally:
            self.config = bench.config
        return crash

    def messages(self, partitions=None):
        for partition in range(partitions or self.config.iggy.partitions):
            yield from ((partition, message) for message in self.server.messages("kit", "records", partition))

    def check(self, partitions=PARTITIONS, *, finished=True):
        """Every record once, in the partition of its key; numbers of an object rise in each partition."""
        last = collections.defaultdict(int)
        found = collections.Counter()
        ids = set()
        for partition, message in self.messages():
            row, parts = json.loads(message.payload), parse_message_id(message.message_id)
            if self.options.get("headers") != "none":
                headers = join_provenance(message.headers)
                assert headers["key"] == row["object"]
                assert "share" not in headers
            assert partition == partition_of_key(row["key"], partitions)
            assert (parts.split_number, parts.record) == (partition + 1, row["n"])
            assert row["n"] > last[row["object"], row["version"], partition], "not in order"
            last[row["object"], row["version"], partition] = row["n"]
            found[json.dumps(row)] += 1
            ids.add(message.message_id)
        assert found == collections.Counter(json.dumps(row) for rows in self.expected.values() for row in rows)
        assert len(ids) == found.total()
        if finished:
            for name, rows in self.expected.items():
                total = len(rows) + len(self.bad[name])
                parts = {
                    number: (entry.finished, entry.total) for (of, number), entry in self.entries.items() if of == name
                }
                assert parts == dict.fromkeys(range(1, partitions + 1), (True, total))


def events_of(**options):
    return len(Source(**options).live().events)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 40])
def test_each_record_goes_to_the_partition_of_its_key_in_order(count):
    source = Source({"a": count, "b": 7})
    source.live()
    source.check()


def test_no_column_is_cut_into_parts(monkeypatch):
    """The records of a part are scattered: many cuts of a few records each took half of the time of a division."""
    monkeypatch.setattr(transform, "_taken", None)
    source = Source({"a": 300})
    source.live()
    source.check()


def test_one_read_serves_all_parts():
    source = Source({"a": 30, "b": 12})
    source.live()
    assert source.rig.store.count("open") == 2
    source.rig.store.calls.clear()
    source.live()
    source.check()
    assert source.rig.store.count("open") == 0, "finished objects are not opened again"


def test_each_of_several_tasks_reads_an_object_once():
    source = Source({f"o{number}": 30 for number in range(8)}, tasks_max=2, partitions=7)
    source.live()
    source.check(partitions=7)
    assert source.rig.store.count("open") == 2 * 8


@pytest.mark.parametrize("headers", ["provenance", "none"])
def test_a_crash_at_any_event_leaves_every_record_once(headers):
    for at in range(1, events_of(headers=headers) + 1):
        source = Source(headers=headers)
        source.live(at)
        source.live()
        source.check()


def test_crashes_in_a_row_leave_every_record_once():
    total = events_of(seed=5)
    dice = random.Random(7)
    for _ in range(40):
        source = Source(seed=5)
        for _ in range(3):
            source.live(dice.randrange(1, total + 1))
        source.live()
        source.check()


def test_another_batch_length_after_the_crash_cuts_elsewhere_and_sends_the_same():
    for at in range(1, events_of() + 1, 3):
        source = Source()
        source.live(at)
        source.live(at // 2 + 5, batch_length=7)
        source.live(batch_length=1)
        source.check()


def test_a_server_that_forgets_its_tail_at_the_crash_gets_it_again():
    for at in range(8, events_of() + 1, 5):
        for lost in (1, 3, 6):
            source = Source()
            source.server = MemoryIggy()
            with source.server.connect() as connection:
                connection.ensure_stream("kit")
                connection.create_topic("kit", "records", PARTITIONS)
            source.server.set_option("kit", "records", "messages_required_to_save", 8)
            source.live(at)
            for partition in range(PARTITIONS):
                held = len(source.server.messages("kit", "records", partition))
                source.server.lose_tail("kit", "records", partition, min(lost + partition, held))
            source.live()
            source.check()


def test_bad_records_have_one_letter_each_and_are_counted_once():
    options = {"tolerance": "skip_record", "dead_letter_topic": "dead"}

    def made():
        source = Source({"a": 3}, **options)
        source.put("b", 23, bad={1, 2, 9, 10, 11, 23})
        return source

    source = made()
    source.live()
    source.check()
    letters = source.server.messages("kit", "dead", 0)
    headers = [join_provenance(letter.headers) for letter in letters]
    assert [(each["key"], int(each["record"]), each[LETTER_HEADER]) for each in headers] == [
        ("b", number, "record") for number in (1, 2, 9, 10, 11, 23)
    ]
    assert {entry.skipped for (_, number), entry in source.entries.items() if number > 1} == {0}
    assert source.entries["b", 1].skipped == 6
    total = len(made().live().events)
    for at in range(1, total + 1, 2):
        source = made()
        source.live(at)
        source.live()
        source.check()
        letters = source.server.messages("kit", "dead", 0)
        assert len({letter.message_id for letter in letters}) == 6, at
        assert {int(join_provenance(letter.headers)["record"]) for letter in letters} == {1, 2, 9, 10, 11, 23}


def test_records_whose_keys_are_unknown_are_an_error(monkeypatch):
    """They would count as filtered in every part."""
    monkeypatch.setattr(keyed_reader.KeyedRead, "_transformed", lambda read, transforms, runs: runs)
    with pytest.raises(ReaderFailedError, match="without the hashes of their keys") as failed:
        Source({"a": 5}).live()
    assert isinstance(failed.value.__cause__, TransformContractError)


def test_a_changed_field_refuses_an_object_that_is_half_read():
    refused = 0
    for at in range(1, events_of() + 1, 4):
        source = Source()
        source.live(at)
        if not any(entry.records_done and not entry.finished for entry in source.bench.known):
            continue
        for transforms in (
            [{**BY_KEY, "field": "n"}],
            [{**BY_KEY, "missing": "spread"}],
            [{"type": "delete_fields", "fields": ["x"]}, BY_KEY],
        ):
            with pytest.raises(ReaderFailedError) as failed:
                source.live(transforms=transforms)
            assert isinstance(failed.value.__cause__, PositionMismatchError)
            assert "[[transforms]]" in str(failed.value)
            assert "offsets reset --key" in str(failed.value)
        refused += 1
        source.live(transforms=[BY_KEY, {"type": "delete_fields", "fields": ["x"]}])  # behind it: moves nothing
        source.check()
    assert refused > 5


def test_objects_that_are_half_read_keep_the_partitions_with_which_they_began():
    for at in range(1, events_of() + 1, 4):
        source = Source({"big": 17})
        source.live(at)
        begun = {entry.split_size for entry in source.bench.known}
        if source.server.topic_info("kit", "records") is not None:
            source.server.add_partitions("kit", "records", 5 - PARTITIONS)
        source.live(partitions=5)
        sizes = {entry.split_size for entry in source.entries.values()}
        assert sizes in ({-PARTITIONS}, {-5})
        if begun:
            source.check(partitions=-sizes.pop())


def test_a_new_version_is_divided_anew():
    for at in range(1, events_of() + 1, 5):
        source = Source({"big": 17})
        source.live(at)
        before = source.expected["big"]
        source.put("big", 11, version=2)
        source.live()
        rows = [json.loads(message.payload) for _, message in source.messages()]
        assert sorted(row["n"] for row in rows if row["version"] == 2) == list(range(1, 12))
        assert all(row in before for row in rows if row["version"] == 1)


def test_a_part_without_records_goes_on_with_the_others(monkeypatch):
    """A restart reads from the lowest of them."""
    monkeypatch.setattr(keyed_reader, "MAX_BEHIND", 12)
    store = MemoryStore()
    store.put("a.jsonl", b'{"key":"same"}\n' * 61)
    iterator = iterator_over(store, once=True, format="jsonl", transforms=[BY_KEY], partitions=3, batch_length=4)
    reached = {1: [], 2: [], 3: []}
    for batch in drain(iterator):
        known = reached[batch.entry.split_number]
        assert batch.records_before == (known[-1] if known else 0)
        known.append(batch.entry.records_done)
    each, behind = [*range(4, 61, 4), 61], [*range(12, 61, 12), 61]
    assert sorted(reached.values(), key=len) == [behind, behind, each]
    iterator.close()


@pytest.mark.parametrize("tolerance", ["none", "skip_object"])
def test_a_bad_record_ends_the_object_for_all_parts(tolerance):
    def made(**options):
        source = Source({"b": 3}, tolerance=tolerance, **options)
        source.put("a", 23, bad={12})
        source.bad["a"], source.expected["a"] = [12], source.expected["a"]
        return source

    source = made()
    if tolerance == "none":
        with pytest.raises(ReaderFailedError) as failed:
            source.live()
        assert isinstance(failed.value.__cause__, RecordTransformError)
        assert failed.value.__cause__.record_number == 12
    else:
        source.live()
        assert {(entry.failed, entry.total) for (key, _), entry in source.entries.items() if key == "a"} == {(True, 11)}
    sent = [json.loads(message.payload) for _, message in source.messages()]
    assert sorted(row["n"] for row in sent if row["object"] == "a") == list(range(1, 12))
    if tolerance == "none":
        source.live(tolerance="skip_record")
        source.check()


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_the_failed_rest_of_an_object_is_a_failure_of_each_part_and_counts_once(tasks):
    """A replay reopens each of them. Only the task with part 1 counts."""
    source = Source({"b": 3}, tolerance="skip_object", dead_letter_topic="dead", tasks_max=tasks)
    source.put("a", 23, bad={12})
    source.live()
    letters = [join_provenance(letter.headers) for letter in source.server.messages("kit", "dead", 0)]
    assert sorted((one[LETTER_HEADER], one["part"], one["record"]) for one in letters) == [
        ("object", f"{number}/{PARTITIONS}", "12") for number in range(1, PARTITIONS + 1)
    ]
    session = Session.begin(source.server.connect(), source.config)
    assert sum(skips.count for skips in session.skipped_lately()) == 1
    session.close()


def test_each_record_keeps_its_headers_and_its_time_of_origin():
    transforms = [
        BY_KEY,
        {"type": "headers", "headers": [{"name": "of", "field": "key"}]},
        {"type": "timestamp", "field": "n", "format": "seconds"},
    ]
    source = Source({"a": 20}, transforms=transforms)
    source.live()
    kept = [(each.headers["of"], each.origin_us) for _, each in source.messages()]
    assert sorted(kept) == sorted((row["key"], row["n"] * 1_000_000) for row in source.expected["a"])


@pytest.mark.parametrize("behind", [1, 2, 3])
def test_filtered_records_count_until_part_1_has_passed_them(behind):
    """A restart reads again from where the part that has come least far stands."""
    store, offsets = MemoryStore(), OffsetManager()
    store.put("a.jsonl", b"".join(b'{"key":"%d","odd":%d}\n' % (number % 7, number % 2) for number in range(200)))
    odd = {"type": "filter", "field": "odd", "value_pattern": {"equals": 1}}
    options = {"once": True, "format": "jsonl", "transforms": [odd, BY_KEY], "partitions": 3, "batch_length": 20}
    before = iterator_over(store, offsets, **options)
    batches = drain(before)
    assert before.statistics.records_filtered == 100
    before.close()
    reached = dict.fromkeys((1, 2, 3), 100) | {behind: 40}
    commit(offsets, [batch for batch in batches if batch.entry.records_done <= reached[batch.entry.split_number]])
    after = iterator_over(store, offsets, **options)
    drain(after)
    assert after.statistics.records_filtered == (200 - reached[1]) / 2
    after.close()


def changed_in_its_version():
    error = ObjectChangedError("changed")
    error.in_place = True
    return error


@pytest.mark.parametrize(
    ("error", "counted"),
    [
        (ObjectNotFoundError("gone"), {"vanished": 1}),
        (ObjectArchivedError("it must be restored first", location="memory://bucket/a.jsonl"), {"archived": 1}),
        (ObjectChangedError("changed"), {"changed": 1}),
        (changed_in_its_version(), {"changed": 1}),
    ],
)
def test_each_part_of_an_object_that_cannot_be_read_now_is_read_in_a_later_listing(error, counted, caplog):
    store = MemoryStore()
    store.put("a.jsonl", b"".join(b'{"key":"%d"}\n' % (number % 7) for number in range(40)))
    store.fail("open", error, key="a.jsonl", times=1)
    options = {"format": "jsonl", "transforms": [BY_KEY], "partitions": 3, "archived": "wait", "poll_interval": 3600}
    iterator = iterator_over(store, **options)
    assert drain(iterator) == []
    found = {name: getattr(iterator.statistics, name) for name in ("vanished", "archived", "changed")}
    assert found == {**dict.fromkeys(found, 0), **counted}
    assert ("is archived" in caplog.text) is ("archived" in counted)
    next_pass(iterator)
    read = drain(iterator)
    assert {batch.entry.generation for batch in read} == {2 if getattr(error, "in_place", False) else 1}
    assert {batch.entry.split_number: batch.entry.finished for batch in read} == dict.fromkeys((1, 2, 3), True)
    assert sum(len(batch.payloads) for batch in read) == 40
    iterator.close()
