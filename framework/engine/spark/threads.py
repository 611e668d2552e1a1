"""Threads that wait for Spark jobs, and cancelling of jobs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext


def spark_thread(target: Callable[[], None]) -> threading.Thread:
    """Return a thread with its own local properties of Spark, so that job groups of threads do not mix."""
    from pyspark import InheritableThread  # noqa: PLC0415

    thread: threading.Thread = InheritableThread(target=target, daemon=True)
    return thread


def cancel_jobs(context: SparkContext, group: str) -> None:
    """Kill the tasks of a job group; a JVM that is gone has none."""
    with contextlib.suppress(Exception):
        context.cancelJobGroup(group)
