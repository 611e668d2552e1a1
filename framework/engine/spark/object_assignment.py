"""Assignment of objects to free tasks: whole partitions, those with most to read first.

A partition has one sender at a time, so partitions are the unit of assignment. They are weighed by bytes,
not by objects. A free task takes about its part of the waiting bytes: no task keeps a large object while
others are idle.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable

from framework.discovery.object_feed import Assignment
from framework.model.objects import TopicPartition

OBJECT_BYTES = 64 << 10
"""Overhead of an object (a request, a position), in bytes."""

LEAST_BYTES = 64 << 20
MAX_BYTES = 512 << 20
MAX_OBJECTS = 5000
"""Maximum objects per job: enough to be worth its start, and few enough for partitions to change owners soon."""

ROUNDS = 4
"""Number of jobs in which a task gets its part of the waiting objects, so that the last jobs end together."""


class PartitionAssigner:
    """Waiting objects by partition, and the owned partitions. For one thread."""

    def __init__(self) -> None:
        self._waiting: dict[TopicPartition, deque[tuple[int, Assignment]]] = {}
        self._weights: dict[TopicPartition, int] = {}
        self._taken: set[TopicPartition] = set()
        self._number = 0

    def __len__(self) -> int:
        """Return the number of waiting objects."""
        return sum(map(len, self._waiting.values()))

    def add(self, assignment: Assignment) -> None:
        """Add an object; a partition's objects are assigned in this order."""
        topic_partition = assignment.entry.topic_partition
        self._number += 1
        self._waiting.setdefault(topic_partition, deque()).append((self._number, assignment))
        self._weights[topic_partition] = self._weights.get(topic_partition, 0) + _weight(assignment)

    def take(self, tasks: int) -> list[Assignment]:
        """Return the next job of a free task: objects of partitions that no task owns; it owns them now. Empty: no work.

        Args:
            tasks: number of free tasks, including this one.
        """
        free = sorted(
            (topic_partition for topic_partition in self._waiting if topic_partition not in self._taken),
            key=self._weights.__getitem__,
        )
        if not free:
            return []
        part = sum(self._weights[topic_partition] for topic_partition in free) / min(tasks, len(free))
        topic_partitions: list[TopicPartition] = []
        weight = 0.0
        # another partition as long as it brings the sum nearer to the part
        while free and (not topic_partitions or weight + self._weights[free[-1]] / 2 <= part):
            topic_partitions.append(free.pop())
            weight += self._weights[topic_partitions[-1]]
        given = self._from(topic_partitions, min(MAX_BYTES, max(LEAST_BYTES, int(part / ROUNDS))))
        self._taken.update(assignment.entry.topic_partition for assignment in given)
        return given

    def _from(self, topic_partitions: Iterable[TopicPartition], most: int) -> list[Assignment]:
        """Return the oldest objects of these partitions, up to a job's maximum, and at least one."""
        heads = [(self._waiting[topic_partition][0][0], topic_partition) for topic_partition in topic_partitions]
        heapq.heapify(heads)
        given: list[Assignment] = []
        while heads and len(given) < MAX_OBJECTS:
            _, topic_partition = heads[0]
            queue = self._waiting[topic_partition]
            weight = _weight(queue[0][1])
            if given and weight > most:
                break
            most -= weight
            given.append(queue.popleft()[1])
            self._weights[topic_partition] -= weight
            if queue:
                heapq.heapreplace(heads, (queue[0][0], topic_partition))
            else:
                heapq.heappop(heads)
                del self._waiting[topic_partition], self._weights[topic_partition]
        return given

    def give_back(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Release the partitions of a sender that has ended."""
        self._taken.difference_update(topic_partitions)


def _weight(assignment: Assignment) -> int:
    return assignment.bytes_left + OBJECT_BYTES
