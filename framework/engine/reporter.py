"""Figures of a run, gathered from its tasks and reported about twice a second."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from framework.engine.restart_policy import WorkDone
from framework.engine.run_statistics import RunStatistics
from framework.errors import ObjectArchivedError
from framework.offsets.skip_history import SkippedCount
from framework.pipeline.error_policy import SkipWatch
from framework.pipeline.task_statistics import FIELDS, TaskStatistics

if TYPE_CHECKING:
    from framework.discovery.object_feed import FeedCounts
    from framework.pipeline.sender import Sender
    from framework.task import AbstractSourceTask

log = logging.getLogger(__name__)

REPORT_SECONDS = 0.5


def statistics_of(task: AbstractSourceTask, sender: Sender) -> list[TaskStatistics]:
    """Return the statistics of a running task, part by part."""
    queue, iterator = task.queue, task.iterator
    parts = [sender.statistics]
    if iterator is not None:
        parts.append(iterator.statistics)
    if queue is not None:
        parts.append(
            TaskStatistics(
                queue_records=queue.records, queue_bytes=queue.size_bytes, blocked_seconds=queue.blocked_seconds
            )
        )
    return parts


def _to_do(feed: FeedCounts) -> int:
    """Return how many objects are done once nothing is left to do before the next listing."""
    return feed.total_chosen - feed.given_back


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
        self._past = TaskStatistics()
        self._idle = False
        self._parts: Callable[[], list[TaskStatistics]] | None = None
        self._feed: Callable[[], FeedCounts | None] | None = None
        self._last_feed: FeedCounts | None = None
        self._past_listings = 0
        self._done_before: int | None = None  # from the first epoch: later epochs also see what this run has done
        self._recoveries = 0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.last = RunStatistics()

    def recovered(self) -> None:
        """Count a recovery after a break of the connection."""
        self._recoveries += 1
        self._idle = False

    def watch(self, task: AbstractSourceTask, sender: Sender) -> None:
        """Watch the task that runs in this process."""
        self.watch_statistics(
            lambda: statistics_of(task, sender),
            lambda: task.iterator.feed_counts if task.iterator is not None else None,
        )

    def watch_statistics(
        self, parts: Callable[[], list[TaskStatistics]], feed: Callable[[], FeedCounts | None]
    ) -> None:
        """Watch tasks that run elsewhere; the sum over all `parts` is theirs."""
        self._parts, self._feed = parts, feed
        self._idle = False
        self.state = "sending"

    def unwatch(self) -> None:
        """Keep the statistics of an epoch that is over."""
        if self._parts is not None:
            epoch = TaskStatistics.total(self._parts()).without_state()
            feed = self._feed() if self._feed is not None else None
            if feed is not None:
                self._past_listings += feed.listings
                if self._done_before is None:
                    self._done_before = feed.done_before
            self._idle = feed is not None and feed.listings > 0 and epoch.objects >= _to_do(feed)
            self._last_feed = feed
            # at once: figures that a scrape reads in between would count the epoch twice
            self._past, self._parts = self._past + epoch, None

    def work_done(self) -> WorkDone:
        """Return what was done up to the end of the last epoch."""
        return WorkDone(count=self._past.records + self._past.objects, idle=self._idle)

    def expect_skipped(self, before: Iterable[SkippedCount]) -> None:
        """Start an epoch's count with what the offsets log says was skipped within the last hour."""
        # What a broken epoch read and did not save is read again: only the saved part of it counts.
        self._skips = SkipWatch(per_hour=self._skipped_per_hour)
        self._skips.expect(before)

    def check_skipped(self) -> None:
        """Check the skip limit over all tasks together: each task counts only its own.

        Raises:
            TooManySkippedError: the limit is exceeded.
        """
        if (parts := self._parts) is not None:  # the sum of all figures takes long, and this is asked all the time
            archived = ObjectArchivedError.__name__
            self._skips.observe(sum(part.skipped + part.failed - part.kinds.get(archived, 0) for part in parts()))

    def progress(self) -> RunStatistics:
        """Return the current figures."""
        past, parts = self._past, self._parts
        feed = self._feed() if parts is not None and self._feed is not None else self._last_feed
        live = feed if parts is not None else None
        total = TaskStatistics.total([past, *parts()]) if parts is not None else past
        state = self.state
        # The next epoch chooses and reads again what a broken epoch left unconfirmed: it must not count twice.
        if state == "sending" and live is not None and total.objects >= past.objects + _to_do(live):
            state = "waiting" if live.waiting else "listing"
        if total.store_away and state in {"sending", "waiting", "listing"}:
            state = "store away"
        before = self._done_before if self._done_before is not None else feed.done_before if feed is not None else 0
        fields: dict[str, Any] = {name: getattr(total, name) for name in FIELDS}
        return RunStatistics(
            **fields,
            listed=feed.listed if feed is not None else 0,
            filtered=dict(feed.filtered) if feed is not None else {},
            state=state,
            waiting_for=self.waiting_for if state in {"standby", "starting"} else "",
            objects_total=past.objects + (live.total_chosen if live is not None else 0),
            bytes_total=past.object_bytes + (live.total_chosen_bytes if live is not None else 0),
            done_before=before,
            listings=self._past_listings + (live.listings if live is not None else 0),
            recoveries=self._recoveries,
        )

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
