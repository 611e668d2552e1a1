"""What millions of positions cost: memory of the process that keeps them, the log they are kept in, and a start from it.

    feed -> commit -> deltas and snapshots -> a second pass -> (another process) recovery

Nothing is read or sent: each listed object is finished at once, without records. The log is a real one, of an embedded server in
a process of its own. Run with no Spark and no bucket, so the figures are those of the positions alone.
"""

from __future__ import annotations

import gc
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from benchmarks.contestants import contestant
from benchmarks.rows_speed import Bench
from benchmarks.table import Row

MB = 1_000_000
LIMIT_MB = 600
POSITION_BYTES = 200
OBJECTS = 2_000_000
WINDOW_OBJECTS = 1_000_000
OLD_OBJECTS = 1_000_000
INSIDE = "36500d"
"""A window that every object of the bucket is younger than."""

GROWTH_MB = 20
STATE_MB = 1
PAST_MB = 100
START_SECONDS = 5
LOG_BYTES = 64
BATCH_SIZE = 1000
"""Objects in one delta: what a second of work finishes."""


@attrs.frozen(kw_only=True)
class Kept:
    """What a process found out about itself.

    Attributes:
        before_mb: its resident size before the first object.
        after_mb: the same after the last one.
        peak_mb: the most that it ever was.
        seconds: the whole work.
        pass_seconds: a second pass, which finds nothing to do.
        longest_seconds: the longest that one save took, with what it did of a snapshot.
        cpu_seconds: of the whole work, those in which this process was at work: what others on the machine take is not in them.
        most: positions, at most.
        state_bytes: the newest snapshot.
    """

    before_mb: float
    after_mb: float
    peak_mb: float
    seconds: float
    pass_seconds: float = 0.0
    longest_seconds: float = 0.0
    cpu_seconds: float = 0.0
    most: int = 0
    state_bytes: int = 0


def position_rows(bench: Bench) -> Iterator[Row]:
    """Two million new objects in one process; then a start that finds them all finished."""
    objects = bench.scaled(OBJECTS, 2_000)
    home = bench.folder / f"positions-{uuid.uuid4().hex[:8]}"
    home.mkdir()
    try:
        yield from _rows(home, objects)
        yield from _window_rows(home, bench.scaled(WINDOW_OBJECTS, 2_000))
        yield from _folded_rows(home, bench.scaled(OLD_OBJECTS, 6_000))
    finally:
        shutil.rmtree(home)


def _rows(home: Path, objects: int) -> Iterator[Row]:
    from framework.iggy.embedded.launcher import EmbeddedServer

    with EmbeddedServer.start(home / "iggy") as server:
        with contestant() as keeper:
            kept = keeper(keep_positions, server.url, objects)
        log_mb = sum(path.stat().st_size for path in home.rglob("*.log")) / MB
        with contestant() as starter:
            found = starter(start_again, server.url, objects)
    each = (kept.after_mb - kept.before_mb) * MB / objects
    yield Row(
        what=f"{objects:,} new objects listed and finished: peak memory of the process that keeps the positions",
        target=f"< {LIMIT_MB} MB",
        measured=f"**{kept.peak_mb:.0f}** MB",
        reached=kept.peak_mb < LIMIT_MB,
        note=f"{kept.before_mb:.0f} MB before, {kept.after_mb:.0f} MB after; {objects / kept.seconds:,.0f} objects/s",
    )
    yield Row(
        what="the same, memory for each position",
        target=f"<= {POSITION_BYTES} bytes",
        measured=f"**{each:.0f}** bytes",
        reached=each <= POSITION_BYTES,
        note="all that the process has grown by; keys of 51 characters, versions of S3",
    )
    yield Row(
        what="the same, a pass over what is finished",
        target="",
        measured=f"**{kept.pass_seconds / objects * 1e6:.1f}** us an object",
        reached=None,
        note="listing from memory, filters, positions",
    )
    yield Row(
        what="the same, the log",
        target=f"<= {LOG_BYTES} bytes an object",
        measured=f"**{log_mb * MB / objects:.0f}** bytes an object",
        reached=log_mb * MB / objects <= LOG_BYTES,
        note=f"{log_mb:.0f} MB; the longest save, with a part of a snapshot, {kept.longest_seconds:.2f} s",
    )
    yield Row(
        what=f"a start from {objects:,} finished objects: peak memory",
        target=f"< {LIMIT_MB} MB",
        measured=f"**{found.peak_mb:.0f}** MB",
        reached=found.peak_mb < LIMIT_MB,
        note=f"{found.seconds:.0f} s from the connection to the first snapshot of the new epoch",
    )


def _window_rows(home: Path, objects: int) -> Iterator[Row]:
    from framework.iggy.embedded.launcher import EmbeddedServer

    with EmbeddedServer.start(home / "window") as server:
        with contestant() as keeper:
            keeper(keep_positions, server.url, objects, INSIDE)
        log_mb = sum(path.stat().st_size for path in (home / "window").rglob("*.log")) / MB
        with contestant() as starter:
            found = starter(start_again, server.url, objects, INSIDE)
    yield Row(
        what=f"a start from {objects:,} finished objects inside the window: from the connection to the first snapshot",
        target=f"< {START_SECONDS} s",
        measured=f"**{found.seconds:.1f}** s",
        reached=found.seconds < START_SECONDS,
        note=f"{found.cpu_seconds:.1f} s of them at work",
    )
    grown = found.peak_mb - found.before_mb
    yield Row(
        what="the same, what the process grows by, at most",
        target=f"< {PAST_MB} MB",
        measured=f"**{grown:.0f}** MB",
        reached=grown < PAST_MB,
        note=f"peak memory {found.peak_mb:.0f} MB",
    )
    yield Row(
        what="the same, the log before it",
        target=f"<= {LOG_BYTES} bytes an object",
        measured=f"**{log_mb * MB / objects:.0f}** bytes an object",
        reached=log_mb * MB / objects <= LOG_BYTES,
        note=f"{log_mb:.0f} MB, all of it read",
    )


def _folded_rows(home: Path, objects: int) -> Iterator[Row]:
    from framework.iggy.embedded.launcher import EmbeddedServer

    with EmbeddedServer.start(home / "folding") as server:
        with contestant() as folder:
            folded = folder(fold_positions, server.url, objects)
        log_mb = sum(path.stat().st_size for path in (home / "folding").rglob("*.log")) / MB
        with contestant() as starter:
            found = starter(start_folded, server.url, objects)
    grown = folded.peak_mb - folded.before_mb
    yield Row(
        what=f"a first pass over {objects:,} objects older than the window: what the process grows by, at most",
        target=f"< {GROWTH_MB} MB",
        measured=f"**{grown:.0f}** MB",
        reached=grown < GROWTH_MB,
        note=f"{folded.most:,} positions at most; {objects / folded.seconds:,.0f} objects/s",
    )
    yield Row(
        what="the same, the positions that are left: the newest snapshot",
        target=f"< {STATE_MB} MB",
        measured=f"**{folded.state_bytes:,}** bytes",
        reached=folded.state_bytes < STATE_MB * MB,
        note=f"{log_mb:.1f} MB of log, most of it to be deleted with the next segments",
    )
    yield Row(
        what="the same, a start from them",
        target=f"< {START_SECONDS} s",
        measured=f"**{found.seconds:.1f}** s",
        reached=found.seconds < START_SECONDS,
        note=f"then a pass: {found.pass_seconds / objects * 1e6:.1f} us an object, nothing to read",
    )


def _config(url: str, objects: int, *, window: str = "forever") -> Any:
    from benchmarks.synthetic import SyntheticTask

    return SyntheticTask().configure(
        {
            "source": {"name": "positions"},
            # one chain of pages: what a listing reads ahead is no position
            "discovery": {"allowed_lateness": window, "list_concurrency": 1 if window == "24h" else 16},
            "synthetic": {"objects": objects},
            "input": {"format": "jsonl"},
            "iggy": {"url": url, "stream": "bench", "topic": "positions", "partitions": 16},
        }
    )


def keep_positions(url: str, objects: int, window: str = "forever") -> Kept:
    """List and finish every object; then list them again."""
    from framework.engine.iggy_target import IggyTarget
    from framework.engine.process_setup import set_up_process
    from framework.engine.session import Session
    from framework.model.batches import Acknowledgement, RecordBatch
    from framework.model.objects import ObjectState

    set_up_process()
    config = _config(url, objects, window=window)
    with IggyTarget(config) as target:
        session = Session.begin(target.connect(), config)
        iterator = _iterator(config, session)
        gc.collect()
        before, began, longest, done = _resident_mb("VmRSS"), time.perf_counter(), 0.0, 0
        while (assignment := iterator.feed.take()) is not None:
            entry = assignment.entry.advanced(1, state=ObjectState.DONE)
            end = RecordBatch(
                native=assignment.native,
                topic_partition=entry.topic_partition,
                first_record=2,
                payloads=(),
                size_bytes=0,
                entry=entry,
            )
            session.partitions.open_one(entry.topic_partition)
            session.offsets.commit(Acknowledgement(topic_partition=entry.topic_partition, batches=(end,), anchor=None))
            done += 1
            if done % BATCH_SIZE == 0:
                longest = max(longest, _save(session))
        _save(session)
        seconds = time.perf_counter() - began
        if done != objects or len(session.offsets.table) != objects:
            raise RuntimeError(f"{done} objects were handed out and {len(session.offsets.table)} positions are there")
        gc.collect()
        iterator = _iterator(config, session)
        after, again = _resident_mb("VmRSS"), time.perf_counter()
        if iterator.feed.take() is not None:
            raise RuntimeError("a finished object was handed out")
        pass_seconds = time.perf_counter() - again
        session.close()
    return Kept(
        before_mb=before,
        after_mb=after,
        peak_mb=_resident_mb("VmHWM"),
        seconds=seconds,
        pass_seconds=pass_seconds,
        longest_seconds=longest,
    )


def fold_positions(url: str, objects: int) -> Kept:
    """List and finish every object, with the window as it is by default: all of them are older."""
    import numpy  # noqa: F401, ICN001 - the table of positions loads it; it is code, not positions

    from framework.engine.iggy_target import IggyTarget
    from framework.engine.process_setup import set_up_process
    from framework.engine.session import Session
    from framework.iggy.offset_log.loading import newest_snapshot
    from framework.model.batches import Acknowledgement, RecordBatch
    from framework.model.objects import ObjectState

    set_up_process()
    config = _config(url, objects, window="24h")
    with IggyTarget(config) as target:
        session = Session.begin(target.connect(), config)
        iterator = _iterator(config, session)
        began, most, done = time.perf_counter(), 0, 0
        assignment = iterator.feed.take()  # the listing is under way, with what it reads ahead
        gc.collect()
        before = _resident_mb("VmRSS")
        while assignment is not None:
            entry = assignment.entry.advanced(1, state=ObjectState.DONE)
            end = RecordBatch(
                native=assignment.native,
                topic_partition=entry.topic_partition,
                first_record=2,
                payloads=(),
                size_bytes=0,
                entry=entry,
            )
            session.partitions.open_one(entry.topic_partition)
            session.offsets.commit(Acknowledgement(topic_partition=entry.topic_partition, batches=(end,), anchor=None))
            done += 1
            if done % BATCH_SIZE == 0:
                most = max(most, len(session.offsets.table))
                _save(session)
            assignment = iterator.feed.take()
        _save(session)
        session.finish()
        seconds = time.perf_counter() - began
        if done != objects or len(session.offsets.table):
            raise RuntimeError(f"{done} objects were handed out and {len(session.offsets.table)} positions are left")
        session.log.rewind()
        messages = list(session.log.follow())
        heads = newest_snapshot([message.head for message in messages])
        last = [message for message in messages if message.offset in {head.offset for head in heads}]
        session.close()
    return Kept(
        before_mb=before,
        after_mb=_resident_mb("VmRSS"),
        peak_mb=_resident_mb("VmHWM"),
        seconds=seconds,
        most=most,
        state_bytes=sum(len(one.body) for one in last),
    )


def start_folded(url: str, objects: int) -> Kept:
    """A start after that, and a pass that finds nothing to do."""
    from framework.engine.iggy_target import IggyTarget
    from framework.engine.process_setup import set_up_process
    from framework.engine.session import Session

    set_up_process()
    config = _config(url, objects, window="24h")
    with IggyTarget(config) as target:
        connection = target.connect()
        before, began = _resident_mb("VmRSS"), time.perf_counter()
        session = Session.begin(connection, config)
        seconds, again = time.perf_counter() - began, time.perf_counter()
        if _iterator(config, session).feed.take() is not None:
            raise RuntimeError("a finished object was handed out")
        pass_seconds = time.perf_counter() - again
        session.close()
    return Kept(
        before_mb=before,
        after_mb=_resident_mb("VmRSS"),
        peak_mb=_resident_mb("VmHWM"),
        seconds=seconds,
        pass_seconds=pass_seconds,
    )


def _iterator(config: Any, session: Any) -> Any:
    """A task's iterator over these positions: its feed begins with a pass."""
    from benchmarks.synthetic import SyntheticTask
    from framework.task import SourceContext

    return SyntheticTask().get_iterator(SourceContext(config=config, offsets=session.offsets))


def _save(session: Any) -> float:
    began = time.perf_counter()
    session.offsets.flush()
    session.look_when_due()
    return time.perf_counter() - began


def start_again(url: str, objects: int, window: str = "forever") -> Kept:
    """A start: everything is recovered, and a new epoch begun."""
    import numpy  # noqa: F401, ICN001 - as above: code, not positions

    from framework.engine.iggy_target import IggyTarget
    from framework.engine.process_setup import set_up_process
    from framework.engine.session import Session

    set_up_process()
    config = _config(url, objects, window=window)
    with IggyTarget(config) as target:
        connection = target.connect()
        before, began, busy = _resident_mb("VmRSS"), time.perf_counter(), time.process_time()
        session = Session.begin(connection, config)
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - busy
        if len(session.offsets.table) != objects:
            raise RuntimeError(f"{len(session.offsets.table)} positions were recovered, and {objects} are there")
        session.close()
    return Kept(
        before_mb=before,
        after_mb=_resident_mb("VmRSS"),
        peak_mb=_resident_mb("VmHWM"),
        seconds=seconds,
        cpu_seconds=cpu_seconds,
    )


def _resident_mb(name: str) -> float:
    """Of this process: `VmRSS`, what it has now; `VmHWM`, the most that it ever had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / MB for line in lines if line.startswith(f"{name}:"))
