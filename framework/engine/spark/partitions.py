"""Which objects a free task is given next: whole partitions, the ones with most to read first.

A partition has one sender at a time, so partitions are what is shared out. They are weighed by bytes, not by objects, and a task
that becomes free takes about its part of what waits then: no task is left with a large object while the others have nothing.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable

from framework.discovery.feed import Assignment
from framework.model.objects import TopicPartition

OBJECT_BYTES = 64 << 10
"""What an object costs beside its bytes (a request, a position), as so many bytes more."""

LEAST_BYTES = 64 << 20
MAX_BYTES = 512 << 20
MAX_OBJECTS = 5000
"""A job is worth its start, and ends soon enough for its partitions to change hands."""

ROUNDS = 4
"""A task is given its part of what waits in about so many jobs, so that the last ones end together."""


class PartitionBoard:
    """Objects that wait, by partition, and the partitions that are taken. For one thread."""

    def __init__(self) -> None:
        self._waiting: dict[TopicPartition, deque[tuple[int, Assignment]]] = {}
        self._weights: dict[TopicPartition, int] = {}
        self._taken: set[TopicPartition] = set()
        self._number = 0

    def __len__(self) -> int:
        """Objects that wait."""
        return sum(map(len, self._waiting.values()))

    def add(self, assignment: Assignment) -> None:
        """Takes an object in; those of a partition are given out in this order."""
        topic_partition = assignment.entry.topic_partition
        self._number += 1
        self._waiting.setdefault(topic_partition, deque()).append((self._number, assignment))
        self._weights[topic_partition] = self._weights.get(topic_partition, 0) + _weight(assignment)

    def take(self, tasks: int) -> list[Assignment]:
        """The next job of a free task: objects of partitions that no task owns; it owns them from now on. Empty: there are none.

        Args:
            tasks: how many tasks are free, this one included.
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
        """The oldest objects of these partitions, as many as a job may have, but one in any case."""
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
        """These partitions' sender has ended."""
        self._taken.difference_update(topic_partitions)


def _weight(assignment: Assignment) -> int:
    return assignment.bytes_left + OBJECT_BYTES
