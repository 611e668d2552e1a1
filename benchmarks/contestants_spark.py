"""The contestants that run on Spark, or against it. As in `benchmarks.contestants`, each in a process of its own."""

from __future__ import annotations

import contextlib
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.contestants import Run

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.storage.listing.histogram import Histogram


def engine_run(props: dict[str, Any]) -> Run:
    """One run of the configured engine, several tasks. The clock runs from the first stored record to the end.

    What is before it, `start_seconds`: recovery, worker processes or the first jobs of Spark, and the listing. A session
    of Spark that is active is used.
    """
    from benchmarks.synthetic import SyntheticTask
    from framework.engine.local import LocalEngine
    from framework.engine.spark.engine import SparkEngine
    from s3_source.task import S3SourceTask

    task_class = SyntheticTask if "synthetic" in props else S3SourceTask
    config = task_class().configure(props)
    engine_class = SparkEngine if config.runner.engine == "spark" else LocalEngine
    engine = engine_class(task_class, config, once=True)
    began, began_at = time.perf_counter(), time.time()
    progress = engine.run()
    took = time.perf_counter() - began
    start = _first_stored(config) - began_at if progress.records else 0.0
    return Run(
        records=progress.records,
        objects=progress.objects,
        wall_seconds=took - start,
        cpu_seconds=0.0,
        start_seconds=start,
    )


def _first_stored(config: SourceCommonConfig) -> float:
    """When Iggy, on this machine, stored the first record of the topic: seconds since 1970."""
    from framework.config.iggy_address import IggyAddress
    from framework.iggy.connection import IggyConnection

    place = config.iggy.stream, str(config.iggy.topic)
    with IggyConnection(IggyAddress.parse(str(config.iggy.url))) as connection:
        firsts = [connection.poll(*place, partition, offset=0, count=1) for partition in range(config.iggy.partitions)]
    return min(messages[0].timestamp_us for messages in firsts if messages) / 1e6


_opened = contextlib.ExitStack()
"""What this process holds open until it ends."""


def open_spark(master: str, conf: dict[str, str]) -> float:
    """Start Spark for this process; how long that took, seconds."""
    from framework.config.sections import SparkSection
    from framework.engine.spark.spark_context import spark_context

    began = time.perf_counter()
    _opened.enter_context(spark_context(SparkSection(master=master, conf=conf), name="benchmark"))
    return time.perf_counter() - began


def list_on_spark(
    *, pages: int, page_ms: int, concurrency: int, histogram: Histogram
) -> tuple[float, int, list[tuple[str, int]]]:
    """List so many pages of 50 keys by waves, in the session that is open: seconds, calls, the next pass's histogram."""
    from pyspark import SparkContext

    from benchmarks.synthetic import SyntheticTask
    from framework.engine.spark.listing_waves import executors_of, wave_lister
    from framework.storage.listing.listing import ListingRequest
    from framework.task import SourceContext

    task = SyntheticTask()
    config = task.configure(
        {
            "source": {"name": "bench"},
            "synthetic": {"objects": pages * 50, "page_size": 50, "page_delay": page_ms / 1000},
            "input": {"format": "jsonl"},
            "iggy": {"url": "iggy://a:b@127.0.0.1", "stream": "s", "topic": "t"},
            "discovery": {"list_concurrency": concurrency},
        }
    )
    iterator = task.get_iterator(SourceContext(config=config))
    context = SparkContext.getOrCreate()
    executors = executors_of(context, config, group="listing")
    lister = wave_lister(iterator, SyntheticTask, lambda: executors)
    began = time.perf_counter()
    listing = lister(ListingRequest(prefix="", after="", histogram=histogram))
    keys = sum(len(page) for page in listing)
    seconds = time.perf_counter() - began
    if keys != pages * 50:
        raise RuntimeError(f"{keys} keys of {pages * 50}")
    return seconds, listing.counts.calls, list(listing.histogram)


def peak_of_engine(url: str, objects: int) -> tuple[float, float, float]:
    """Run so many synthetic objects through Spark: this process's highest resident size, that before, MB; seconds."""
    from benchmarks.synthetic import SyntheticTask
    from framework.engine.process_setup import set_up_process
    from framework.engine.spark.engine import SparkEngine

    set_up_process()
    open_spark("local[2]", {})
    name = f"bench-{uuid.uuid4().hex[:8]}"
    config = SyntheticTask().configure(
        {
            "source": {"name": name},
            "synthetic": {"objects": objects},
            "input": {"format": "jsonl"},
            "iggy": {"url": url, "stream": name, "topic": "records", "partitions": 8},
        }
    )
    before, began = resident_mb("VmHWM"), time.perf_counter()
    progress = SparkEngine(SyntheticTask, config, once=True).run()
    if progress.records != objects:
        raise RuntimeError(f"{progress.records} records of {objects}")
    return resident_mb("VmHWM"), before, time.perf_counter() - began


def resident_mb(which: str) -> float:
    """A size of this process from the kernel, MB: `VmRSS` now, `VmHWM` the highest."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(which)).split()[1]) * 1024 / 1e6
