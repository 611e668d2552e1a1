"""Objects are taken and opened ahead many at a time, by number and by bytes."""

from collections import deque

import attrs

from framework.config.input_section import InputSection
from framework.discovery.object_feed import Assignment
from framework.errors import ListingError
from framework.model.objects import NativeObject, TopicPartition
from framework.model.positions import OffsetManagerEntry
from framework.offsets.manager import OffsetManager
from framework.offsets.offset_store import MemoryOffsetStore
from framework.pipeline.read_ahead import FILL_SHARE, TAKE_OBJECTS, ReadAhead
from framework.pipeline.task_statistics import TaskStatistics
from framework.transformer import InputOptions
from transformers import BytesInput, make_transformer


def assignment(number, size):
    native = NativeObject(bucket="lake", key=f"{number:04}", version="v", size=size)
    return Assignment(native=native, entry=OffsetManagerEntry.start(native, TopicPartition("records", 0)))


class Rig:
    """Objects of one size, of which `opened` tells how many were opened by each call."""

    def __init__(self, size, count=1000, *, is_handed=False, **limits):
        self.left = deque(assignment(number, size) for number in range(count))
        self.statistics = TaskStatistics()
        self.is_away = False
        self.ahead = ReadAhead(
            limits=InputSection(format="jsonl", **limits),
            take=lambda _: self.left.popleft() if self.left else None,
            open_input=lambda native: BytesInput(b"x" * native.size),
            transformer=make_transformer(InputOptions(format="jsonl")),
            offsets=OffsetManager(MemoryOffsetStore()),
            statistics=self.statistics,
            is_handed=is_handed,
            waits_for_store=lambda: self.is_away,
        )

    def opened(self, read=1):
        """Read so many objects; return how many were opened after each."""
        counts = []
        for _ in range(read):
            before = self.statistics.objects_opened
            assert self.ahead.next() is not None
            self.ahead.fill()
            counts.append(self.statistics.objects_opened - before)
        return counts


def test_large_objects_are_taken_many_at_a_time_and_opened_as_the_bytes_allow():
    size = 1 << 20
    rig = Rig(size, prefetch_bytes=4 * size)
    opened, taken = [], []
    for _ in range(2 * TAKE_OBJECTS):
        left = len(rig.left)
        opened += rig.opened()
        taken.append(left - len(rig.left))
    assert opened == [5] + [1] * (len(opened) - 1)
    assert [count for count in taken if count] == [TAKE_OBJECTS] * 3
    rig.ahead.close()


def test_a_worker_takes_no_more_than_it_opens():
    """Another one may be idle."""
    rig = Rig(3 << 20, prefetch_bytes=1 << 20, is_handed=True)
    for opened in (2, 1, 1, 1):
        left = len(rig.left)
        assert rig.opened() == [opened]
        assert left - len(rig.left) == opened
    rig.ahead.close()


def test_nothing_is_opened_while_the_store_is_away():
    """What was taken before would use up its retries, one object after the other."""
    rig = Rig(3 << 20, prefetch_bytes=1 << 20)
    rig.opened()
    opened, rig.is_away = rig.statistics.objects_opened, True
    while rig.ahead.next() is not None:
        rig.ahead.fill()
    assert rig.statistics.objects_opened == opened
    assert not rig.ahead.is_empty
    rig.ahead._failure = ListingError("broken")
    assert rig.ahead.next() is None, "it comes behind what was taken"
    rig.ahead._failure, rig.is_away = None, False
    assert rig.opened() == [2]
    rig.ahead.close()


def test_what_was_taken_and_not_opened_is_not_forgotten():
    rig = Rig(3 << 20, count=5, prefetch_bytes=1 << 20)
    for number in range(5):
        assert not rig.ahead.is_empty or not number
        assert rig.opened()
    assert rig.ahead.is_empty
    assert rig.ahead.next() is None
    rig.ahead.close()


def test_small_objects_are_opened_when_a_part_of_their_number_is_free():
    rig = Rig(1, prefetch_objects=64)
    at_once = 64 // FILL_SHARE
    _, *later = rig.opened(1 + 4 * at_once)
    assert set(later) == {0, at_once}
    rig.ahead.close()


def test_an_object_larger_than_the_limit_is_opened_alone_and_the_next_one_while_it_is_read():
    rig = Rig(3 << 20, prefetch_bytes=1 << 20)
    assert rig.opened(4) == [2, 1, 1, 1]
    rig.ahead.close()


def resumed(rig, assignment):
    """How many records were handed out of an object that the feed gives again."""
    rig.left.append(assignment)
    (again,) = rig.ahead.next().assignments
    assert (again.native, again.entry.version) == (assignment.native, assignment.entry.version)
    return again.entry.records_done


def test_an_object_that_the_feed_gives_again_goes_on_behind_what_was_handed_out():
    rig = Rig(10, count=0)
    first, other = assignment(1, 10), assignment(2, 10)
    assert resumed(rig, first) == 0
    rig.ahead.note_released(first.entry.advanced(3))
    assert resumed(rig, other) == 0
    assert resumed(rig, first) == 3
    rig.ahead.note_released(first.entry.advanced(3))
    assert resumed(rig, attrs.evolve(first, entry=first.entry.changed(version="w"))) == 0, "another version"
    rig.ahead.close()


def test_a_worker_goes_on_behind_its_own_count_of_an_object():
    """The process that hands it out may not know yet how far it is."""
    rig = Rig(10, count=0, is_handed=True)
    first = assignment(1, 10)
    rig.ahead._offsets.add_entry(first.entry.advanced(4))
    assert resumed(rig, first) == 4
    rig.ahead.close()
