"""Statistics of a run: one value, created by the engine, read by terminal, log lines and metrics."""

from __future__ import annotations

from typing import Any

import attrs

from framework.pipeline.task_statistics import FIELDS, TaskStatistics


def state_text(progress: RunStatistics) -> str:
    """Return the state for people: `standby, waiting for the instance on web-1 (process 17)`."""
    return f"{progress.state}, waiting for {progress.waiting_for}" if progress.waiting_for else progress.state


@attrs.define(kw_only=True)
class RunStatistics(TaskStatistics):
    """Statistics of a run so far: the sum over its tasks, and what only the run knows.

    Totals count what the listing has shown; they grow during a listing.

    Attributes:
        state: `standby`, `starting`, `recovering`, `listing`, `sending`, `waiting`, `reconnecting`, `store away`, and at the end
            `done` or `stopped`; of a worker's source without a process, `stopped` or `failed`.
        waiting_for: for whom a standby waits, or for what a start; empty in other states.
        objects_total: objects that were new or unfinished, and neither deleted nor archived when they were read.
        bytes_total: their listed sizes.
        delivered: objects of which every record is confirmed. Never falls: an object fails when it is read, and is finished later.
        done_before: objects that were finished before this run, as its first complete listing showed.
        listed: objects of the current or last listing.
        filtered: reason -> objects filtered in the last listing.
        listings: complete listings.
        recoveries: times the connection to Iggy broke and the state was recovered.
    """

    state: str = "starting"
    waiting_for: str = ""
    objects_total: int = 0
    bytes_total: int = 0
    delivered: int = 0
    done_before: int = 0
    listed: int = 0
    filtered: dict[str, int] = attrs.field(factory=dict)
    listings: int = 0
    recoveries: int = 0

    @property
    def standby(self) -> bool:
        """Whether another instance does the work, and this one waits for its end."""
        return self.state == "standby"

    @property
    def iggy_up(self) -> bool:
        """Whether a connection to Iggy can carry records."""
        return self.state not in {"starting", "recovering", "reconnecting", "failed"}

    @property
    def store_up(self) -> bool:
        """Whether the store answers every task."""
        return not self.store_away

    @property
    def lag_objects(self) -> int:
        """Number of objects that were found and are not finished."""
        return max(0, self.objects_total - self.objects)

    @property
    def lag_bytes(self) -> int:
        """Their listed sizes."""
        return max(0, self.bytes_total - self.object_bytes)

    @property
    def began(self) -> bool:
        """Whether there are figures to show: the run reached its first listing."""
        return bool(self.listed or self.listings or self.objects_total or self.objects or self.records)


_COUNTED_AGAIN = ("records", "objects", "object_bytes")
"""What falls after a break, until what had not been saved is read again: a counter must not fall."""


def continued(before: RunStatistics, past: TaskStatistics, now: RunStatistics) -> RunStatistics:
    """Return the figures of work that goes on after a break: it is added up, state and lag are those of now.

    A standby has no lag: another instance does the work.

    Args:
        before: the figures at the break; no counter falls below them.
        past: what of that work is not counted again.
        now: the figures since the break.
    """
    work = TaskStatistics.total((past, now))
    objects_total, bytes_total = work.objects + now.lag_objects, work.object_bytes + now.lag_bytes
    if not now.listings and not now.standby:  # it has not shown yet what is left to do
        objects_total, bytes_total = max(objects_total, before.objects_total), max(bytes_total, before.bytes_total)
    fields: dict[str, Any] = {name: getattr(work, name) for name in FIELDS}
    for name in _COUNTED_AGAIN:
        shown = max(fields[name], getattr(before, name))
        fields[f"unsaved_{name}"] += shown - fields[name]
        fields[name] = shown
    return attrs.evolve(
        now,
        **fields,
        objects_total=max(objects_total, fields["objects"]),
        bytes_total=max(bytes_total, fields["object_bytes"]),
        done_before=before.done_before if before.began else now.done_before,  # what this run has done is not
        listings=before.listings + now.listings,
        recoveries=before.recoveries + now.recoveries,
    )
