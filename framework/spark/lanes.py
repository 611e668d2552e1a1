"""Which objects a free task is given next: whole lanes, the ones with most to read first.

A lane has one sender at a time, so lanes are what is shared out. They are weighed by bytes, not by objects, and a task that
becomes free takes about its part of what waits then: no task is left with a large object while the others have nothing.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable

from framework.feed import Assignment
from framework.records import Lane

OBJECT_BYTES = 64 << 10
"""What an object costs beside its bytes (a request, a position), as so many bytes more."""

LEAST_BYTES = 64 << 20
MOST_BYTES = 512 << 20
MOST_OBJECTS = 5000
"""A job is worth its start, and ends soon enough for its lanes to change hands."""

ROUNDS = 4
"""A task is given its part of what waits in about so many jobs, so that the last ones end together."""


class LaneBoard:
    """Objects that wait, by lane, and the lanes that are taken. For one thread."""

    def __init__(self) -> None:
        self._waiting: dict[Lane, deque[tuple[int, Assignment]]] = {}
        self._weights: dict[Lane, int] = {}
        self._taken: set[Lane] = set()
        self._number = 0

    def __len__(self) -> int:
        """Objects that wait."""
        return sum(map(len, self._waiting.values()))

    def add(self, assignment: Assignment) -> None:
        """Takes an object in; those of a lane are given out in this order."""
        lane = assignment.entry.lane
        self._number += 1
        self._waiting.setdefault(lane, deque()).append((self._number, assignment))
        self._weights[lane] = self._weights.get(lane, 0) + _weight(assignment)

    def take(self, tasks: int) -> list[Assignment]:
        """The next job of a free task: objects of lanes that nobody has, and has from now on. Empty: there are none.

        Args:
            tasks: how many tasks are free, this one included.
        """
        free = sorted((lane for lane in self._waiting if lane not in self._taken), key=self._weights.__getitem__)
        if not free:
            return []
        part = sum(self._weights[lane] for lane in free) / min(tasks, len(free))
        lanes: list[Lane] = []
        weight = 0.0
        # another lane as long as it brings the sum nearer to the part
        while free and (not lanes or weight + self._weights[free[-1]] / 2 <= part):
            lanes.append(free.pop())
            weight += self._weights[lanes[-1]]
        given = self._from(lanes, min(MOST_BYTES, max(LEAST_BYTES, int(part / ROUNDS))))
        self._taken.update(assignment.entry.lane for assignment in given)
        return given

    def _from(self, lanes: Iterable[Lane], most: int) -> list[Assignment]:
        """The oldest objects of these lanes, as many as a job may have, but one in any case."""
        heads = [(self._waiting[lane][0][0], lane) for lane in lanes]
        heapq.heapify(heads)
        given: list[Assignment] = []
        while heads and len(given) < MOST_OBJECTS:
            _, lane = heads[0]
            queue = self._waiting[lane]
            weight = _weight(queue[0][1])
            if given and weight > most:
                break
            most -= weight
            given.append(queue.popleft()[1])
            self._weights[lane] -= weight
            if queue:
                heapq.heapreplace(heads, (queue[0][0], lane))
            else:
                heapq.heappop(heads)
                del self._waiting[lane], self._weights[lane]
        return given

    def give_back(self, lanes: Iterable[Lane]) -> None:
        """These lanes' sender has ended."""
        self._taken.difference_update(lanes)


def _weight(assignment: Assignment) -> int:
    return assignment.bytes_left + OBJECT_BYTES
