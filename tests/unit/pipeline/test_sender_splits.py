"""Split objects over an Iggy in memory: whatever a crash leaves of their shares, every record is there once."""

import collections

import attrs
import pytest

from framework.discovery.object_feed import AssignedFeed, Assignment
from framework.discovery.routing import object_partition_number
from framework.discovery.splitting import SplitPolicy
from framework.engine.session import Session
from framework.iggy.header_decoding import split_of
from framework.model.batches import RecordBatch
from framework.model.message_ids import parse_message_id
from framework.model.objects import ObjectState, TopicPartition
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.model.splits import count_splits
from framework.pipeline.sender import Sender
from framework.testing.fakes.memory_iggy import MemoryIggy
from framework.testing.kit.crash import Bench, CrashPoint
from tests.conformance.rigs import MemoryRig

SPLIT = 1024


def long_lines(name, count, version=1, width=290):
    """Lines of differing lengths, some longer than a share: no cut falls where a line ends."""
    widths = (width + 37 * (number % 7) + (2600 if number % 11 == 5 else 0) for number in range(count))
    return [
        b'{"object":"%s","version":%d,"n":%d,"x":"%s"}' % (name.encode(), version, number, b"x" * size)
        for number, size in enumerate(widths)
    ]


class Source:
    """Objects in a store, and processes over one server, each with options of its own."""

    def __init__(self, counts=None, **options):
        self.rig = MemoryRig()
        self.expected = {}
        self.options = {
            "batch_length": 4,
            "queue_records": 13,
            "linger_time": 0.0,
            "prefetch_objects": 2,
            "split_size": SPLIT,
            "max_record_bytes": 100_000,
            **options,
        }
        self.server = None
        for name, count in (counts or {"big": 17, "small": 2, "zbig": 9}).items():
            self.put(name, count)

    def put(self, name, count, version=1):
        self.expected[name] = long_lines(name, count, version)
        self.rig.store.put(name, b"".join(line + b"\n" for line in self.expected[name]))

    def live(self, at=None, **options):
        """A process that dies at an event; its positions, by object and share."""
        crash = CrashPoint(at)
        given = {name: value for name, value in {**self.options, **options}.items() if value is not None}
        bench = Bench(self.rig, server=self.server, **given)
        self.server = bench.server
        self.entries = {(entry.key, entry.split_number): entry for entry in bench.live(crash)}
        self.config = bench.config
        return crash

    def messages(self):
        for partition in range(self.config.iggy.partitions):
            yield from ((partition, message) for message in self.server.messages("kit", "records", partition))

    def payloads(self):
        return collections.Counter(message.payload for _, message in self.messages())

    def once(self):
        return collections.Counter(line for some in self.expected.values() for line in some)

    def check(self):
        assert self.payloads() == self.once()
        assert all(entry.finished for entry in self.entries.values())
        assert {name for name, _ in self.entries} == set(self.expected)


def events_of(**options):
    return len(Source(**options).live().events)


def events_of_source(source):
    return len(source.live().events)


# ---- how a split object lies in the topic


def test_splits_go_to_all_partitions_and_are_in_order_in_each():
    source = Source({"big": 60}, partitions=3)
    source.live()
    source.check()
    splits, partitions = collections.defaultdict(list), collections.defaultdict(set)
    for partition, message in source.messages():
        parts = parse_message_id(message.message_id)
        cut = split_of(message.headers)
        assert (cut.number, cut.split_size) == (parts.split_number, SPLIT)
        splits[parts.split_number].append((parts.record, message.payload))
        partitions[parts.split_number].add(partition)
    together = [record for split_number in sorted(splits) for record in splits[split_number]]
    assert [payload for _, payload in together] == source.expected["big"]
    assert all([number for number, _ in some] == list(range(1, len(some) + 1)) for some in splits.values())
    assert all(len(some) == 1 for some in partitions.values())
    used = collections.Counter(next(iter(some)) for some in partitions.values())
    assert set(used) == {0, 1, 2}


def test_an_object_not_larger_than_a_split_is_not_split():
    source = Source({"small": 2})
    source.live()
    assert {parse_message_id(message.message_id).split_number for _, message in source.messages()} == {0}
    assert set(source.entries) == {("small", 0)}


def test_a_finished_split_object_costs_no_request_after_a_restart():
    source = Source()
    source.live()
    source.rig.store.calls.clear()
    source.live()
    source.check()
    assert source.rig.store.count("open") == 0


# ---- crashes at every event


@pytest.mark.parametrize("headers", ["provenance", "none"])
def test_a_crash_at_any_event_leaves_every_record_once(headers):
    for at in range(1, events_of(headers=headers) + 1):
        source = Source(headers=headers)
        source.live(at)
        source.live()
        source.check()


@pytest.mark.parametrize("later", [None, 2048, 1500])
@pytest.mark.parametrize("headers", ["provenance", "none"])
def test_another_split_size_after_the_crash_reads_nothing_again(later, headers):
    for at in range(1 + (later or 0) % 3, events_of(headers=headers) + 1, 4):
        source = Source(headers=headers)
        source.live(at)
        source.live(split_size=later)
        source.check()


@pytest.mark.parametrize("headers", ["provenance", "none"])
def test_what_was_begun_whole_goes_on_whole(headers):
    for at in range(1, events_of(headers=headers) + 1, 3):
        source = Source(headers=headers)
        source.live(at, split_size=None)
        source.live()
        source.check()


@pytest.mark.parametrize(("first", "then"), [(SPLIT, None), (None, SPLIT), (SPLIT, 3000)])
def test_what_is_finished_is_not_read_again_whatever_split_size_says(first, then):
    source = Source()
    source.live(split_size=first)
    source.rig.store.calls.clear()
    source.live(split_size=then)
    source.check()
    assert source.rig.store.count("open") == 0


def test_three_crashes_in_a_row_with_a_split_size_each():
    total = events_of()
    for at in range(3, total + 1, 7):
        source = Source()
        for step, size in ((0, SPLIT), (5, 2048), (9, None)):
            source.live((at + step) % total + 1, split_size=size)
        source.live(split_size=4096)
        source.check()


def test_a_server_that_forgets_its_tail_at_the_crash_gets_it_again():
    for at in range(8, events_of(partitions=2) + 1, 7):
        for lost in (1, 3, 6):
            source = Source(partitions=2)
            source.server = MemoryIggy()
            with source.server.connect() as connection:
                connection.ensure_stream("kit")
                connection.create_topic("kit", "records", 2)
            source.server.set_option("kit", "records", "messages_required_to_save", 8)
            source.live(at)
            for partition in range(2):
                held = len(source.server.messages("kit", "records", partition))
                source.server.lose_tail("kit", "records", partition, min(lost + partition, held))
            source.live(split_size=2048)
            source.check()


def test_skipped_records_in_splits_are_neither_lost_nor_sent():
    def source_with_bad_lines():
        source = Source({"a": 12}, tolerance="skip_record", batch_length=2)
        good = source.expected["a"]
        source.rig.store.put("a", b"\n".join([b"-", *good[:4], b"-", b"-", *good[4:9], b"-", *good[9:], b"-"]))
        return source

    for at in range(1, events_of_source(source_with_bad_lines()) + 1, 2):
        source = source_with_bad_lines()
        source.live(at)
        source.live()
        assert source.payloads() == source.once()
        assert sum(entry.records_done for entry in source.entries.values()) == 12 + 5


# ---- what a process leaves behind that is killed at a chosen moment


def begin_big(source, *, split_size=SPLIT):
    """A process that has found the object, begun its positions, and stored them."""
    session = Session.begin(source.server.connect(), source.config)
    session.open_partitions()
    (native,) = [one for one in source.rig.store.list_page().objects if one.key == "big"]
    own = TopicPartition("records", object_partition_number(native.bucket, native.key, source.config.iggy.partitions))
    entry = OffsetManagerEntry.start(native, own).changed(
        generation=session.offsets.table.next_generation(OffsetManagerKey.of_object(native.bucket, "big")),
        split_size=split_size,
    )
    split_policy = SplitPolicy(partitions=source.config.iggy.partitions)
    begun = (
        [
            entry.changed(split_number=split_number, topic_partition=split_policy.topic_partition(own, split_number))
            for split_number in range(1, count_splits(native.size, split_size) + 1)
        ]
        if split_size
        else [entry]
    )
    session.offsets.add_entry(*begun)
    session.offsets.store_begun()
    return session, native, begun


def some_splits(source, numbers):
    """It sends some splits, and saves what it has sent."""
    session, native, begun = begin_big(source)
    feed = AssignedFeed([Assignment(native=native, entry=begun[number - 1]) for number in numbers], closed=True)
    task, config = source.rig.make_task({**source.options, "split_size": SPLIT})
    task.start(config, offsets=session.offsets, feed=feed)
    Sender(task, session.producer(), config, open_partition=session.partitions.open_one).run()
    task.stop()
    session.close()


def test_a_version_of_which_only_a_later_split_was_begun_keeps_its_cut():
    source = Source({"big": 17})
    source.live(1)
    some_splits(source, [6, 7])
    assert 0 < len(source.payloads()) < 17
    source.live(split_size=4096)
    source.check()
    assert {entry.split_size for entry in source.entries.values()} == {SPLIT}
    first = object_partition_number("bucket", "big", 3)
    assert all(
        entry.topic_partition.partition == (first + split_number - 1) % 3
        for (_, split_number), entry in source.entries.items()
    )


@pytest.mark.parametrize("first", [None, 2048])
def test_so_does_a_later_version_of_a_finished_object(first):
    source = Source({"big": 17})
    source.live(split_size=first)
    source.put("big", 21, version=2)
    some_splits(source, [2, 4])
    source.live(split_size=4096)
    assert source.payloads() & source.once() == source.once()
    assert max(source.payloads().values()) == 1
    source.live()
    assert {(entry.version, entry.split_size, entry.generation) for entry in source.entries.values()} == {
        ("v2", SPLIT, 2)
    }


def send_unsaved(source, count):
    """It sends the first records of the object whole, and dies before it saves anything of it."""
    session, native, (entry,) = begin_big(source, split_size=0)
    batch = RecordBatch(
        native=native,
        topic_partition=entry.topic_partition,
        first_record=1,
        payloads=source.expected["big"][:count],
        size_bytes=1000,
        entry=entry.advanced(count),
    )
    session.producer().send(entry.topic_partition, [batch]).result(60)
    session.close()


@pytest.mark.parametrize("sent", [3, 17])
def test_records_of_an_older_whole_version_are_not_taken_for_those_of_the_newer_splits(sent):
    source = Source({"big": 17})
    source.live(1)
    send_unsaved(source, sent)
    old = source.payloads()
    source.put("big", 21, version=2)
    begin_big(source)[0].close()
    source.live()
    assert source.payloads() == old + source.once()
    assert {(entry.version, entry.generation) for entry in source.entries.values()} == {("v2", 2)}


def test_what_was_sent_of_a_newer_whole_version_is_not_sent_again_because_of_older_splits():
    source = Source({"big": 17})
    source.live(1)
    begin_big(source)[0].close()
    source.put("big", 21, version=2)
    send_unsaved(source, 5)
    source.live()
    source.live()  # which finds nothing left of the version before
    source.check()
    assert {(entry.version, entry.generation, entry.split_size) for entry in source.entries.values()} == {("v2", 2, 0)}


def test_a_version_that_was_restored_is_not_taken_for_what_is_there_of_it():
    """v1 half sent and not saved, v2 begun, v1 again: three generations, and what is there is of the first."""
    source = Source({"big": 17})
    source.live(1)
    send_unsaved(source, 5)
    first = source.rig.store.list_page().objects[0]
    half = source.payloads()
    source.put("big", 21, version=2)
    begin_big(source)[0].close()
    source.put("big", 17, version=1)
    list_page = source.rig.store.list_page

    def listed(**call):
        page = list_page(**call)
        return attrs.evolve(page, objects=[attrs.evolve(page.objects[0], modified_ms=first.modified_ms)])

    source.rig.store.list_page = listed
    source.live()
    assert source.payloads() == half + source.once()
    assert {entry.generation for entry in source.entries.values()} == {3}


# ---- other versions


CUTS = [(SPLIT, SPLIT), (None, SPLIT), (SPLIT, None), (SPLIT, 2048)]


@pytest.mark.parametrize(("first", "then"), CUTS)
@pytest.mark.parametrize("count", [3, 17, 30])
def test_an_overwritten_object_is_sent_once_in_its_new_version(first, then, count):
    """The new version has fewer, as many or more shares; both processes die somewhere."""
    total = events_of()
    for at in range(4 + count % 5, total + 1, 11):
        source = Source()
        source.live(at, split_size=first)
        source.put("big", count, version=2)
        source.live(at // 2 + 3, split_size=then)
        source.live(split_size=then)
        found = source.payloads()
        assert max(found.values()) == 1
        assert found & source.once() == source.once()
        source.live(split_size=then)
        assert source.payloads() == found
        assert len({entry.version for entry in source.entries.values() if entry.key == "big"}) == 1


def test_a_version_that_comes_back_is_sent_again_from_its_first_record():
    source = Source({"big": 17})
    source.live()
    source.put("big", 12, version=2)
    source.live()
    before = source.payloads()
    source.put("big", 17, version=1)
    source.live()
    assert source.payloads() - before == source.once()
    generations = {entry.generation for entry in source.entries.values()}
    assert generations == {3}


def test_a_split_that_fails_does_not_hold_the_others_up():
    source = Source({"a": 12}, tolerance="skip_object")
    lines = source.expected["a"]
    bad = [*lines[:6], b"-", *lines[6:]]
    source.rig.store.put("a", b"\n".join(bad))
    source.live()
    states = {split_number: entry.state for (_, split_number), entry in source.entries.items()}
    (failed,) = [split_number for split_number, state in states.items() if state is ObjectState.FAILED]
    begin, offsets = 0, []
    for line in bad:
        offsets.append(begin // SPLIT + 1)
        begin += len(line) + 1
    lost = [line for line, split_number in zip(bad[7:], offsets[7:], strict=True) if split_number == failed]
    assert failed == offsets[6]
    assert source.payloads() == source.once() - collections.Counter(lost)
    source.rig.store.calls.clear()
    source.live(tolerance="skip_object")
    assert source.rig.store.count("open") == 0
