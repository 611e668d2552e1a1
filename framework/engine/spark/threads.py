"""Threads that wait for jobs of Spark, and how the jobs are ended."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext


def spark_thread(target: Callable[[], None]) -> threading.Thread:
    """A thread with Spark's local properties of its own, so that its job group is not another thread's."""
    from pyspark import InheritableThread  # noqa: PLC0415

    thread: threading.Thread = InheritableThread(target=target, daemon=True)
    return thread


def cancel_jobs(context: SparkContext, group: str) -> None:
    """Kills the tasks of a job group; a JVM that is gone has none."""
    with contextlib.suppress(Exception):
        context.cancelJobGroup(group)
