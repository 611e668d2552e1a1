"""A source of a worker: its configuration, its process while there is one, and its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from framework.engine.run_statistics import RunStatistics, continued
from framework.runtime.configuration import Configuration
from framework.runtime.state import RUNNING

if TYPE_CHECKING:
    from framework.runtime.children import ChildProcess

Status = Literal["starting", "running", "stopping", "stopped", "error"]
STARTING = frozenset({"starting", "standby"})
"""States of a source's run in which it does not work yet."""


@attrs.frozen
class Failure:
    """The last error of a source: a sentence, and the time in microseconds since 1970."""

    message: str
    timestamp: int


@attrs.define(eq=False, kw_only=True)
class ManagedSource:
    """A source of the worker, and its process while there is one. Read and changed under the supervisor's lock.

    Attributes:
        id: its number, unique in this worker.
        file: its configuration in the folder.
        kept_state: what a person asked for; it survives a restart of the worker.
        active: the configuration to run.
        running: the configuration of the running process.
        child: the process; None without one.
        restarts: times that the process was started again after a failure.
        last_error: the last failure; None when there was none since the last change by a person.
    """

    id: int
    file: Configuration
    kept_state: str
    active: Configuration
    running: Configuration | None = None
    child: ChildProcess | None = None
    last_error: Failure | None = None
    errors: int = 0
    restarts: int = 0
    removed: bool = False
    held: bool = False
    """Whether it waits for a person: it failed with exit code 2 or 3, or ended by itself."""
    restart: bool = False
    waits_for: str = ""
    """The key under which it still runs."""
    busy: bool = False
    started_at: float = 0.0
    stop_at: float | None = None
    retry_at: float = 0.0
    failures: int = 0
    seen: bytes | None = None
    """What the files that its activated version includes held at the last look."""
    settled: bytes | None = None
    """What they held when they were last read: a change counts when two looks in a row find the same."""
    past: RunStatistics = attrs.field(factory=RunStatistics)

    @property
    def key(self) -> str:
        """Its key in the API."""
        return self.file.key

    @property
    def wanted(self) -> bool:
        """Whether it is to run now, if its configuration allows."""
        return self.kept_state == RUNNING and self.active.enabled and not self.removed and not self.busy

    @property
    def described(self) -> Configuration:
        """The configuration that says what it is: the active one, or the former one that runs while that has a mistake."""
        return self.running if self.running is not None and self.active.mistake else self.active

    @property
    def status(self) -> Status:
        """Its status in the words of Iggy's runtime."""
        if self.child is not None:
            if self.stop_at is not None:
                return "stopping"
            progress = self.child.progress
            return "running" if progress is not None and progress.state not in STARTING else "starting"
        if self.kept_state != RUNNING or not self.active.enabled:
            return "stopped"
        return "error" if self.last_error is not None else "stopped" if self.held else "starting"

    @property
    def retries(self) -> bool:
        """Whether it failed and will be started again."""
        return self.status == "error" and not self.held and not self.active.mistake

    @property
    def progress(self) -> RunStatistics:
        """The figures over all its processes in this worker.

        Nothing is up when it cannot work: in `error`, between tries, and until a process has begun after them. A source that is
        `stopped` asks for nothing, and nothing fails to answer.
        """
        now = self.child.progress if self.child is not None else None
        if now is not None:
            return _sum(self.past, now)
        if self.status == "error":
            return attrs.evolve(self.past, state="failed", store_away=1)
        if self.status == "stopped":
            return attrs.evolve(self.past, state="stopped", store_away=0)
        return attrs.evolve(self.past, state="starting")


def _sum(past: RunStatistics, now: RunStatistics) -> RunStatistics:
    """Return the figures of all processes so far, as those of a run that recovers.

    A standby asks the store nothing that it could fail to answer. Records that a killed process had not saved are found
    stored by the next one, which does not count them.
    """
    total = continued(past, attrs.evolve(past.saved(), records=past.records), now)
    # the store has not answered since
    is_silent = past.store_away and not now.standby and not now.listed and not now.listings
    return attrs.evolve(
        total,
        store_away=1 if is_silent else now.store_away,
        delivered=max(past.delivered, max(0, past.delivered - past.unsaved_objects) + now.delivered),
    )
