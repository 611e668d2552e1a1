"""Figures of a run, gathered from its tasks and reported about twice a second."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import attrs
from typing_extensions import Self

from framework.discovery.object_feed import FeedCounts
from framework.engine.reconnect_policy import WorkDone
from framework.engine.run_statistics import RunStatistics, continued
from framework.errors import ObjectArchivedError
from framework.offsets.skip_history import SkippedCount
from framework.pipeline.error_policy import SkipWatch
from framework.pipeline.task_statistics import TaskStatistics

if TYPE_CHECKING:
    from framework.engine.partition_opener import PartitionOpener
    from framework.pipeline.sender import Sender
    from framework.task import AbstractSourceTask

log = logging.getLogger(__name__)

REPORT_SECONDS = 0.5


def statistics_of(task: AbstractSourceTask, sender: Sender, partitions: PartitionOpener) -> list[TaskStatistics]:
    """Return the statistics of a running task, part by part."""
    queue, iterator = task.queue, task.iterator
    assert queue is not None
    assert iterator is not None
    return [sender.statistics, partitions.statistics, iterator.statistics, queue.statistics]


def _to_do(feed: FeedCounts) -> int:
    """Return how many objects are done once nothing is left to do before the next listing."""
    return feed.total_chosen - feed.given_back


@attrs.frozen(kw_only=True)
class _Epoch:
    """Figures of an epoch.

    Attributes:
        before: the figures of the run up to its begin.
        recovers: whether it follows another: what it finds stored is of this run.
        parts: returns the statistics of its tasks, in parts; the last ones once it is over.
        feed: returns the counts of its listings, likewise.
        live: whether it is not over.
    """

    before: RunStatistics = attrs.field(factory=RunStatistics)
    recovers: bool = False
    parts: Callable[[], list[TaskStatistics]] = list
    feed: Callable[[], FeedCounts | None] = lambda: None
    live: bool = False


class Reporter:
    """Sum figures over epochs and tasks, and report them from a separate thread.

    Attributes:
        state: the run's state, in a word.
        waiting_for: for whom a standby waits, or for what a start.
        last: the figures of a run that is over.
    """

    def __init__(self, report: Callable[[RunStatistics], None] | None, *, skipped_per_hour: int) -> None:
        self._report = report
        self._skipped_per_hour = skipped_per_hour
        self._skips = SkipWatch(per_hour=skipped_per_hour)
        self.state = "starting"
        self.waiting_for = ""
        self._epoch = _Epoch()
        self._delivered = 0
        self._idle = False
        self._recoveries = 0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.last = RunStatistics()

    def recovered(self) -> None:
        """Count a recovery after a break of the connection."""
        self._recoveries += 1
        self._idle = False

    def watch(self, task: AbstractSourceTask, sender: Sender, partitions: PartitionOpener) -> None:
        """Watch the task that runs in this process."""
        self.watch_statistics(
            lambda: statistics_of(task, sender, partitions),
            lambda: task.iterator.feed_counts if task.iterator is not None else None,
        )

    def watch_statistics(
        self, parts: Callable[[], list[TaskStatistics]], feed: Callable[[], FeedCounts | None]
    ) -> None:
        """Watch tasks that run elsewhere; the sum over all `parts` is theirs."""
        # at once, here and at the end: figures that a scrape reads in between would count an epoch twice
        self._epoch = _Epoch(
            before=self.progress(),
            recovers=self._recoveries > 0,
            parts=parts,
            feed=feed,
            live=True,
        )
        self._idle = False
        self.state = "sending"

    def unwatch(self) -> None:
        """Keep the statistics of an epoch that is over; they are shown until the next one begins."""
        epoch = self._epoch
        if epoch.live:
            work, feed = TaskStatistics.total(epoch.parts()).without_state(), copy.copy(epoch.feed())
            self._idle = feed is not None and feed.listings > 0 and work.objects >= _to_do(feed)
            self._epoch = attrs.evolve(epoch, parts=lambda: [work], feed=lambda: feed, live=False)

    def work_done(self) -> WorkDone:
        """Return what was done up to the end of the last epoch."""
        done = self.progress()
        return WorkDone(count=done.records + done.objects, idle=self._idle)

    def expect_skipped(self, before: Iterable[SkippedCount]) -> None:
        """Start an epoch's count with what the offsets log says was skipped within the last hour."""
        # What a broken epoch read and did not save is read again: only the saved part of it counts.
        self._skips = SkipWatch(per_hour=self._skipped_per_hour, before=before)

    def check_skipped(self) -> None:
        """Check the skip limit over all tasks together: each task counts only its own.

        Raises:
            TooManySkippedError: the limit is exceeded.
        """
        if (epoch := self._epoch).live:  # the sum of all figures takes long, and this is asked all the time
            archived = ObjectArchivedError.__name__
            self._skips.observe(sum(part.skipped + part.failed - part.kinds.get(archived, 0) for part in epoch.parts()))

    def progress(self) -> RunStatistics:
        """Return the current figures."""
        epoch = self._epoch
        feed, work, state = epoch.feed() or FeedCounts(), TaskStatistics.total(epoch.parts()), self.state
        if state == "sending" and work.objects >= _to_do(feed):
            state = "waiting" if feed.waiting else "listing"
        if work.store_away and state in {"sending", "waiting", "listing"}:
            state = "store away"
        found = work.found_records if epoch.recovers else 0
        now = RunStatistics(
            **attrs.asdict(attrs.evolve(work, records=work.records + found, found_records=0)),
            listed=feed.listed,
            filtered=dict(feed.filtered),
            state=state,
            waiting_for=self.waiting_for if state in {"standby", "starting"} else "",
            objects_total=feed.total_chosen,
            bytes_total=feed.total_chosen_bytes,
            done_before=feed.done_before,
            listings=feed.listings,
        )
        made = continued(epoch.before, epoch.before.saved(), now)
        made.delivered = self._delivered = max(self._delivered, made.objects - made.failed)
        made.recoveries = self._recoveries
        return made

    def __enter__(self) -> Self:
        if self._report is not None:
            self._thread = threading.Thread(target=self._report_regularly, name="report", daemon=True)
            self._thread.start()
        return self

    def _report_regularly(self) -> None:
        while not self._ended.wait(REPORT_SECONDS):
            self._send(self.progress())

    def _send(self, progress: RunStatistics) -> None:
        """Report: a failure, such as a terminal that is gone, changes nothing about the run and how it ends."""
        if self._report is None:
            return
        try:
            self._report(progress)
        except Exception:
            self._report = None
            log.exception("the progress could not be shown, and is shown no more")

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(REPORT_SECONDS * 4)
        self.last = self.progress()
        self._send(self.last)
