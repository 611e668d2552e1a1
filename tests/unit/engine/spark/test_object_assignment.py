"""Which objects a free task gets: whole partitions by weight, each partition to one task, nothing lost on the way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.discovery.object_feed import Assignment
from framework.engine.spark import object_assignment
from framework.engine.spark.object_assignment import PartitionAssigner
from framework.model.objects import NativeObject, ResumePoint, TopicPartition
from framework.model.positions import OffsetManagerEntry

MIB = 1 << 20


def assignment(key, topic_partition, size, *, mark=None):
    native = NativeObject(bucket="b", key=key, size=size, version="v")
    entry = OffsetManagerEntry.start(native, TopicPartition("t", topic_partition))
    return Assignment(native=native, entry=entry if mark is None else entry.advanced(1, mark=ResumePoint(1, mark)))


def board(*sizes_of_partitions):
    made = PartitionAssigner()
    for topic_partition, sizes in enumerate(sizes_of_partitions):
        for number, size in enumerate(sizes):
            made.add(assignment(f"{topic_partition}-{number}", topic_partition, size))
    return made


def keys(given_out):
    return [one.native.key for one in given_out]


def test_the_heaviest_partition_goes_first_and_to_one_task_only():
    made = board([1 * MIB], [90 * MIB], [2 * MIB])
    assert keys(made.take(2)) == ["1-0"]
    assert sorted(keys(made.take(1))) == ["0-0", "2-0"]
    assert made.take(1) == []
    assert len(made) == 0


def test_bytes_count_and_not_objects():
    made = board([300 * MIB], [MIB] * 40, [MIB] * 40)
    assert keys(made.take(2)) == ["0-0"]
    assert {one.entry.topic_partition.partition for one in made.take(1)} == {1, 2}


def test_what_was_read_already_weighs_nothing():
    made = PartitionAssigner()
    made.add(assignment("nearly done", 0, 300 * MIB, mark=299 * MIB))
    made.add(assignment("new", 1, 30 * MIB))
    assert keys(made.take(2)) == ["new"]


def test_a_partition_that_is_taken_waits_until_it_is_given_back():
    made = board([600 * MIB, MIB])
    assert keys(made.take(1)) == ["0-0"]
    assert made.take(1) == []
    assert len(made) == 1
    made.give_back({TopicPartition("t", 0)})
    assert keys(made.take(1)) == ["0-1"]


def test_a_job_is_bounded_and_the_oldest_objects_go_first():
    made = PartitionAssigner()
    for number in range(5 * object_assignment.MAX_OBJECTS):
        made.add(assignment(f"{number:05d}", number % 2, 1))
    first = keys(made.take(1))
    assert len(first) == object_assignment.MAX_OBJECTS
    assert first == sorted(first)


def test_partitions_that_wait_are_shared_out_evenly():
    made = board(*[[10 * MIB] for _ in range(8)])
    sizes = [len(made.take(4 - taken)) for taken in range(4)]
    assert sizes == [2, 2, 2, 2]


@given(
    sizes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 700 * MIB)), min_size=1, max_size=60),
    tasks=st.integers(1, 5),
    data=st.data(),
)
def test_every_object_is_given_out_once_in_the_order_of_its_partition(sizes, tasks, data):
    made = PartitionAssigner()
    expected = {}
    for number, (topic_partition, size) in enumerate(sizes):
        made.add(assignment(str(number), topic_partition, size))
        expected.setdefault(topic_partition, []).append(str(number))
    found = {}
    running = []
    while len(made) or running:
        taken = made.take(tasks - len(running)) if len(running) < tasks else []
        if taken:
            held = {one.entry.topic_partition for one in taken}
            assert not any(held & other for other in running)
            for one in taken:
                found.setdefault(one.entry.topic_partition.partition, []).append(one.native.key)
            running.append(held)
        else:
            made.give_back(running.pop(data.draw(st.integers(0, len(running) - 1))))
    assert found == expected


@pytest.mark.parametrize("tasks", [1, 3])
def test_nothing_waits(tasks):
    assert PartitionAssigner().take(tasks) == []
