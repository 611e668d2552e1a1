"""A task's work as a value: what local workers and Spark executors do with a source, without either."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from framework.config.sections import SourceCommonConfig
from framework.discovery.object_feed import AssignedFeed, Assignment
from framework.model.positions import OffsetManagerEntry
from framework.offsets.manager import OffsetManager
from framework.offsets.offset_store import MemoryOffsetStore, PositionDelta
from framework.task import AbstractSourceTask


@attrs.frozen(kw_only=True)
class TaskPlan:
    """The work of a task in another process.

    Attributes:
        make_task: makes the task.
        config: its configuration.
        entries: its start positions.
        assignments: the objects to read.
    """

    make_task: Callable[[], AbstractSourceTask]
    config: SourceCommonConfig
    entries: Sequence[OffsetManagerEntry]
    assignments: Sequence[Assignment]


def read_plan(plan: TaskPlan) -> dict[str, list[bytes]]:
    """Run the plan; return key -> payloads."""
    task = plan.make_task()
    store = MemoryOffsetStore()
    store.save(PositionDelta(entries=plan.entries))
    offsets = OffsetManager(store)
    offsets.populate_offset_manager()
    read: dict[str, list[bytes]] = {}
    try:
        task.start(plan.config, offsets=offsets, feed=AssignedFeed(plan.assignments, closed=True))
        while not task.finished:
            for batch in task.poll(timeout_seconds=1.0):
                read.setdefault(batch.native.key, []).extend(batch.payloads)
    finally:
        task.stop()
    return read
