"""How many splits an object can have: as many as can be numbered, and as begin in a record that a start reads."""

import pytest

from framework.discovery import splitting
from framework.discovery.splitting import MAX_BEGUN_BYTES, InFlight, SplitPolicy, max_splits
from framework.errors import ObjectError
from framework.iggy.offset_log import codec, framing
from framework.model.message_ids import MAX_SPLIT
from framework.model.objects import NativeObject, TopicPartition
from framework.model.positions import OffsetManagerEntry, OffsetManagerKey
from framework.offsets.manager import OffsetManager


def native(key, *, version="v1", size, modified_ms=1):
    return NativeObject(bucket="b", key=key, size=size, version=version, modified_ms=modified_ms)


SPLITTABLE = SplitPolicy(split_size=1024, partitions=1000, can_split=lambda _key: True)


@pytest.mark.parametrize("extra", [{}, {"note": "\x01" * 500, "row": 2**60}])
@pytest.mark.parametrize(
    "key",
    ["a", "k" * 1024, "\x01" * 1024, "\u00e4" * 512, "\U0001f600" * 256, "half \ud800" * 50],
    ids=["short", "long", "control characters", "two bytes", "four bytes", "half a pair"],
)
def test_what_a_start_reads_of_the_splits_of_an_object_has_room(key, extra):
    """They begin in one record, and a start refuses a larger one: the source could never start again."""
    large = native(key, size=200 * 1024, version="v" * 1024, modified_ms=10**13)
    partition = TopicPartition("t" * 255, 0)
    first = OffsetManagerEntry.start(large, partition, "options" * 100).changed(extra=extra)
    entries = SPLITTABLE.positions_of(large, first)
    # as wide as the numbers of splits can be
    entries = [entry.changed(split_number=MAX_SPLIT - entry.split_number) for entry in entries]
    shared = 2000 + 1000 * (255 + 20)  # what all of them have in common, and the names of all partitions
    record = framing.decode(0, codec.encode_begin("orders", 1, entries))
    assert (len(record.unpacked()) - shared) * max_splits(large, extra) / len(entries) <= MAX_BEGUN_BYTES
    assert 2 * MAX_BEGUN_BYTES <= framing.MAX_BODY_BYTES


def test_an_object_of_more_splits_than_can_begin_together_says_so():
    most = max_splits(native("a", size=1))
    assert 500_000 < most <= MAX_SPLIT
    assert SPLITTABLE.size_for(native("a", size=most * 1024)) == 1024
    with pytest.raises(
        ObjectError, match=rf"{most + 1:,} splits, and there can be {most:,}; raise \[input\] split_size"
    ) as error:
        SPLITTABLE.size_for(native("a", size=most * 1024 + 1))
    assert error.value.location == native("a", size=1).location


def test_the_splits_of_an_object_take_the_partitions_in_turn_from_its_own(caplog):
    policy = SplitPolicy(split_size=10, partitions=3, can_split=lambda key: key == "a")
    large = native("a", size=45)
    with caplog.at_level("INFO"):
        entries = policy.positions_of(large, OffsetManagerEntry.start(large, TopicPartition("t", 1)))
    assert [(entry.split_number, entry.split_size, entry.topic_partition) for entry in entries] == [
        (number, 10, TopicPartition("t", partition)) for number, partition in enumerate((1, 2, 0, 1, 2), start=1)
    ]
    assert caplog.messages == [f"{large.location}: 45 bytes, read in 5 splits of 10 bytes"]
    for whole in (native("a", size=10), native("b", size=45)):
        first = OffsetManagerEntry.start(whole, TopicPartition("t", 1))
        assert policy.positions_of(whole, first) == [first]


def test_of_the_splits_in_flight_those_that_are_done_are_forgotten(monkeypatch):
    monkeypatch.setattr(splitting, "PRUNE_FROM", 1)
    offsets = OffsetManager()
    in_flight = InFlight(offsets.table)
    policy = SplitPolicy(split_size=10, partitions=3, can_split=lambda _key: True)
    objects = [native(key, size=25) for key in ("a", "b")]
    for one in objects:
        for entry in policy.positions_of(one, OffsetManagerEntry.start(one, TopicPartition("t", 1))):
            offsets.add_entry(entry)
            in_flight.take(entry.get_manager_key().whole(), one, entry)
    a, b = (OffsetManagerKey.of_object("b", key) for key in ("a", "b"))
    done = [(a, 1), (a, 2), (a, 3), (b, 1)]  # the first split has the object's own key
    with offsets.table.lock:
        for key, number in done:
            entry = offsets.table.positions[key.of_split(number)]
            offsets.table.put(key.of_split(number), entry.changed(records_done=2, records_saved=2, total=2))
    in_flight.prune()
    assert len(in_flight) == 1
    assert in_flight.keys() == ["b"]
    assert set(in_flight.splits(b, "v1")) == {2, 3}
    assert in_flight.splits(a, "v1") == frozenset()


def test_the_parts_of_objects_that_are_divided_by_key_do_not_accumulate():
    """One object has a part in each partition: a thousand objects would be a million positions."""
    in_flight = InFlight(OffsetManager().table)  # it has no positions in progress: all are finished
    policy = SplitPolicy(partitions=1000, by_key=True)
    most = 0
    for number in range(20):
        one = native(f"{number}", size=1)
        for entry in policy.positions_of(one, OffsetManagerEntry.start(one, TopicPartition("t", 0))):
            in_flight.prune()
            in_flight.take(entry.get_manager_key().whole(), one, entry)
        most = max(most, len(in_flight))
    assert most <= 2


def test_a_split_that_is_given_back_twice_changes_nothing():
    """A reader may release what is read to its end by then."""
    offsets = OffsetManager()
    in_flight = InFlight(offsets.table)
    large = native("a", size=25)
    key = OffsetManagerKey.of_object("b", "a")
    policy = SplitPolicy(split_size=10, partitions=3, can_split=lambda _key: True)
    first, second, third = policy.positions_of(large, OffsetManagerEntry.start(large, TopicPartition("t", 1)))
    in_flight.give_back(key, first, gone=False)
    offsets.add_entry(first, second, third)
    for entry in (first, second):
        in_flight.take(key, large, entry)
    for entry in (first, first, third):
        in_flight.give_back(key, entry, gone=False)
    assert set(in_flight.splits(key, "v1")) == {2}
