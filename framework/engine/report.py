"""Figures of a run, gathered from its tasks and reported about twice a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING

import attrs
from typing_extensions import Self

from framework.engine.progress import Progress
from framework.engine.restart_policy import WorkDone
from framework.errors import ObjectArchivedError
from framework.offsets.skipped import SkippedCount
from framework.pipeline.error_budget import SkipWatch
from framework.pipeline.read_counts import ReadCounts, add_counts

if TYPE_CHECKING:
    from framework.discovery.feed import FeedCounts
    from framework.pipeline.sender import Pipeline
    from framework.task import AbstractSourceTask

REPORT_SECONDS = 0.5


@attrs.define(kw_only=True)
class TaskFigures:
    """Figures of one task; worker processes send this value.

    Attributes:
        reads: the iterator's counts.
        records: records that Iggy confirmed.
        objects: objects that are fully confirmed, or whose rest was skipped.
        object_bytes: their listed sizes.
        commits: deltas saved.
        letters: dead letters stored.
        record_bytes: payload bytes of the confirmed records.
        send_requests: confirmed requests that held records.
        queue_records: records waiting to be sent.
        queue_bytes: their payload bytes.
        blocked_seconds: time that a full queue blocked the reader.
        first_record_at: `time.time()` of the first confirmation.
    """

    reads: ReadCounts = attrs.field(factory=ReadCounts)
    records: int = 0
    objects: int = 0
    object_bytes: int = 0
    commits: int = 0
    letters: int = 0
    record_bytes: int = 0
    send_requests: int = 0
    queue_records: int = 0
    queue_bytes: int = 0
    blocked_seconds: float = 0.0
    first_record_at: float | None = None

    @classmethod
    def of(cls, task: AbstractSourceTask, pipeline: Pipeline) -> TaskFigures:
        """Return the figures of a running task."""
        queue, iterator = task.queue, task.iterator
        return cls(
            reads=iterator.counts.copy() if iterator is not None else ReadCounts(),
            records=pipeline.counts.records,
            objects=pipeline.counts.objects,
            object_bytes=pipeline.counts.object_bytes,
            commits=pipeline.counts.commits,
            letters=pipeline.counts.letters,
            record_bytes=pipeline.counts.size_bytes,
            send_requests=pipeline.counts.requests,
            queue_records=queue.records if queue is not None else 0,
            queue_bytes=queue.size_bytes if queue is not None else 0,
            blocked_seconds=queue.blocked_seconds if queue is not None else 0.0,
            first_record_at=pipeline.counts.first_record_at,
        )


class Reporter:
    """Sum figures over epochs and tasks, and report them from a separate thread."""

    def __init__(self, report: Callable[[Progress], None] | None, *, skipped_per_hour: int) -> None:
        self._report = report
        self._skips = SkipWatch(per_hour=skipped_per_hour)
        self._state = "starting"
        self._began = time.time()
        self._past: list[TaskFigures] = []
        self._epoch = 0
        self._idle = False
        self._source: Callable[[], list[TaskFigures]] | None = None
        self._feed: Callable[[], FeedCounts | None] | None = None
        self._past_passes = 0
        self._done_before: int | None = None  # from the first epoch: later epochs also see what this run has done
        self._recoveries = 0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.last = Progress()

    @property
    def state(self) -> str:
        """The run's state, in a word."""
        return self._state

    @state.setter
    def state(self, state: str) -> None:
        self._state = state

    def recovered(self) -> None:
        """Count a recovery after a break of the connection."""
        self._recoveries += 1
        self._idle = False

    def watch(self, task: AbstractSourceTask, pipeline: Pipeline) -> None:
        """Watch the task that runs in this process."""
        self.watch_figures(
            lambda: [TaskFigures.of(task, pipeline)],
            lambda: task.iterator.feed_counts if task.iterator is not None else None,
        )

    def watch_figures(self, source: Callable[[], list[TaskFigures]], feed: Callable[[], FeedCounts | None]) -> None:
        """Watch tasks that run elsewhere."""
        self._source, self._feed = source, feed
        self._epoch, self._idle = len(self._past), False
        self._state = "sending"

    def unwatch(self) -> None:
        """Keep the figures of an epoch that is over."""
        if self._source is not None:
            self._past.extend(self._source())
            feed = self._feed() if self._feed is not None else None
            if feed is not None:
                self._past_passes += feed.passes
                if self._done_before is None:
                    self._done_before = feed.done_before
            done, _ = _finished(self._past[self._epoch :])
            self._idle = feed is not None and feed.passes > 0 and done >= feed.total_chosen
            self._last_feed = feed
        self._source = None

    _last_feed: FeedCounts | None = None

    def work_done(self) -> WorkDone:
        """Return what was done up to the end of the last epoch."""
        objects, _ = _finished(self._past)
        return WorkDone(count=sum(f.records for f in self._past) + objects, idle=self._idle)

    def expect_left_out(self, before: Iterable[SkippedCount]) -> None:
        """Add what earlier runs skipped within the last hour; call once, before the first task begins."""
        self._skips.expect(before)

    def check_skipped(self) -> None:
        """Check the skip limit over all tasks together: each task counts only its own.

        Raises:
            TooManySkippedError: the limit is exceeded.
        """
        source = self._source
        reads = [f.reads for f in (*self._past, *(source() if source is not None else []))]
        self._skips.see(sum(r.skipped + r.objects_failed - r.kinds.get(ObjectArchivedError.__name__, 0) for r in reads))

    def progress(self) -> Progress:
        """Return the current figures."""
        source = self._source
        figures = [*self._past, *(source() if source is not None else [])]
        feed = self._feed() if source is not None and self._feed is not None else self._last_feed
        live = feed if source is not None else None
        # The next epoch chooses and reads again what a broken epoch left unconfirmed: it must not count twice.
        chosen, size = _finished(self._past)
        done, done_bytes = _finished(figures)
        firsts = [f.first_record_at for f in figures if f.first_record_at is not None]
        state = self._state
        if state == "sending" and live is not None and done >= chosen + live.total_chosen:
            state = "waiting" if live.waiting else "listing"
        # current epoch only: earlier outages are over
        away = sum(f.reads.store_away for f in figures[len(self._past) :])
        if away and state in {"sending", "waiting", "listing"}:
            state = "store away"
        return Progress(
            state=state,
            objects_done=done,
            objects_total=chosen + (live.total_chosen if live is not None else 0),
            bytes_done=done_bytes,
            bytes_total=size + (live.total_chosen_bytes if live is not None else 0),
            records=sum(f.records for f in figures),
            skipped=sum(f.reads.skipped for f in figures),
            failed=sum(f.reads.objects_failed for f in figures),
            vanished=sum(f.reads.objects_vanished for f in figures),
            done_before=self._done_before
            if self._done_before is not None
            else feed.done_before
            if feed is not None
            else 0,
            archived=sum(f.reads.objects_archived for f in figures),
            kinds=add_counts(*(f.reads.kinds for f in figures)),
            letters=sum(f.letters for f in figures),
            listed=feed.listed if feed is not None else 0,
            left_out=dict(feed.left_out) if feed is not None else {},
            passes=self._past_passes + (live.passes if live is not None else 0),
            list_requests=sum(f.reads.list_requests for f in figures),
            objects_opened=sum(f.reads.objects_opened for f in figures),
            retries=sum(f.reads.retries for f in figures),
            record_bytes=sum(f.record_bytes for f in figures),
            send_requests=sum(f.send_requests for f in figures),
            queue_records=sum(f.queue_records for f in figures) if source is not None else 0,
            queue_bytes=sum(f.queue_bytes for f in figures) if source is not None else 0,
            blocked_seconds=sum(f.blocked_seconds for f in figures),
            position_commits=sum(f.commits for f in figures),
            recoveries=self._recoveries,
            store_away=away,
            first_record_seconds=min(firsts) - self._began if firsts else None,
        )

    def __enter__(self) -> Self:
        self._began = time.time()
        if self._report is not None:
            self._thread = threading.Thread(target=self._tell, name="report", daemon=True)
            self._thread.start()
        return self

    def _tell(self) -> None:
        while not self._ended.wait(REPORT_SECONDS):
            if self._report is not None:
                self._report(self.progress())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(REPORT_SECONDS * 4)
        self.last = self.progress()
        if self._report is not None:
            self._report(self.last)


def _finished(figures: list[TaskFigures]) -> tuple[int, int]:
    """Return the number of finished objects, and their listed sizes."""
    return (
        sum(f.objects + f.reads.objects_vanished + f.reads.objects_archived for f in figures),
        sum(f.object_bytes + f.reads.bytes_vanished + f.reads.bytes_archived for f in figures),
    )
