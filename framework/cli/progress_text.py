"""The progress of a run as one line of text, with speed and time left."""

from __future__ import annotations

from collections import deque

from framework.engine.run_statistics import RunStatistics
from framework.model.text import counted

_WINDOW_SECONDS = 10.0
_MINUTE, _HOUR = 60, 3600


class Rate:
    """Speed over the last ten seconds of values."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()

    def add(self, now: float, progress: RunStatistics) -> None:
        """Add a value.

        Args:
            now: monotonic seconds.
            progress: the value.
        """
        seen = self._seen
        seen.append((now, progress.records, progress.object_bytes))
        # The oldest one left is the last that is at least as old as the window: so the window is always covered.
        while len(seen) > 2 and seen[1][0] <= now - _WINDOW_SECONDS:  # noqa: PLR2004
            seen.popleft()

    @property
    def records_per_second(self) -> float:
        """Records per second; 0 before the second value."""
        return self._per_second(1)

    @property
    def bytes_per_second(self) -> float:
        """Bytes per second; 0 before the second value."""
        return self._per_second(2)

    def _per_second(self, index: int) -> float:
        if not self._seen:
            return 0.0
        first, last = self._seen[0], self._seen[-1]
        elapsed = last[0] - first[0]
        return max(0.0, (last[index] - first[index]) / elapsed) if elapsed > 0 else 0.0


def figures(progress: RunStatistics) -> tuple[int, ...]:
    """Return the figures whose change is worth a new line; the listings of an idle source are not."""
    return (
        progress.objects,
        progress.object_bytes,
        progress.vanished,
        progress.records,
        progress.records_filtered,
        progress.skipped,
        progress.failed,
    )


def filters_everything(progress: RunStatistics) -> bool:
    """Return whether a run has read all that there is, and the transforms have filtered every record."""
    nothing_else = not progress.records and not progress.skipped
    return progress.state == "waiting" and progress.records_filtered > 0 and nothing_else


def seconds_left(progress: RunStatistics, rate: Rate) -> float | None:
    """Return the time left, by bytes, which a listing shows in advance; None while total or speed are unknown."""
    speed = rate.bytes_per_second
    if not progress.bytes_total or speed <= 0:
        return None
    return max(0, progress.bytes_total - progress.object_bytes) / speed


def progress_text(progress: RunStatistics, rate: Rate) -> str:
    """`12/40 objects  3.1/9.0 MB  120,000 records  41,000/s  0:12 left`."""
    total = f"/{counted(progress.objects_total, 'object')}" if progress.objects_total else ""
    objects = f"{progress.objects:,}{total}" if total else counted(progress.objects, "object")
    parts = [objects, _bytes(progress), counted(progress.records, "record")]
    parts.append(f"{rate.records_per_second:,.0f}/s")
    if progress.records_filtered:
        parts.append(f"{progress.records_filtered:,} filtered")
    if progress.skipped:
        parts.append(counted(progress.skipped, "bad record"))
    if progress.failed:
        parts.append(counted(progress.failed, "bad object"))
    left = seconds_left(progress, rate)
    if left:
        parts.append(f"{duration_text(left)} left")
    return "  ".join(parts)


def duration_text(seconds: float) -> str:
    """`0:12`, `3:07`, `1:02:03`."""
    whole = round(seconds)
    minutes = f"{whole % _HOUR // _MINUTE:02d}" if whole >= _HOUR else f"{whole // _MINUTE}"
    return f"{whole // _HOUR}:{minutes}:{whole % _MINUTE:02d}" if whole >= _HOUR else f"{minutes}:{whole % _MINUTE:02d}"


def _bytes(progress: RunStatistics) -> str:
    total = progress.bytes_total
    for name, unit in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if max(total, progress.object_bytes) >= unit:
            return f"{progress.object_bytes / unit:,.1f}{f'/{total / unit:,.1f}' if total else ''} {name}"
    return f"{progress.object_bytes}{f'/{total}' if total else ''} B"
