"""Objects are opened ahead some at a time, by number and by bytes."""

from collections import deque

from framework.config.input_section import InputSection
from framework.discovery.feed import Assignment
from framework.model.objects import NativeObject, TopicPartition
from framework.model.positions import OffsetManagerEntry
from framework.offsets.manager import OffsetManager
from framework.offsets.store import MemoryOffsetStore
from framework.pipeline.read_ahead import FILL_BYTES_SHARE, FILL_SHARE, ReadAhead
from framework.pipeline.statistics import TaskStatistics
from framework.transformer import InputOptions
from transformers import BytesInput, make_transformer


def assignment(number, size):
    native = NativeObject(bucket="lake", key=f"{number:04}", version="v", size=size)
    return Assignment(native=native, entry=OffsetManagerEntry.start(native, TopicPartition("records", 0)))


class Rig:
    """Objects of one size, of which `opened` tells how many were opened by each call."""

    def __init__(self, size, count=1000, **limits):
        self.left = deque(assignment(number, size) for number in range(count))
        self.statistics = TaskStatistics()
        self.ahead = ReadAhead(
            InputSection(format="jsonl", **limits),
            take=lambda _: self.left.popleft() if self.left else None,
            open_input=lambda native: BytesInput(b"x" * native.size),
            transformer=make_transformer(InputOptions(format="jsonl")),
            offsets=OffsetManager(MemoryOffsetStore()),
            statistics=self.statistics,
            is_handed=False,
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


def test_large_objects_are_opened_when_a_part_of_the_bytes_is_free():
    size = 1 << 20
    rig = Rig(size, prefetch_bytes=16 * size)
    at_once = 16 // FILL_BYTES_SHARE
    first, *later = rig.opened(1 + 4 * at_once)
    assert first >= 16
    assert set(later) == {0, at_once}
    assert later.count(at_once) == 4
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
