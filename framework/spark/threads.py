"""Threads that wait for jobs of Spark, and what its exceptions say in one line."""

from __future__ import annotations

import threading
from collections.abc import Callable


def spark_thread(target: Callable[[], None]) -> threading.Thread:
    """A thread with Spark's local properties of its own, so that its job group is not another thread's."""
    from pyspark import InheritableThread  # noqa: PLC0415

    thread: threading.Thread = InheritableThread(target=target, daemon=True)
    return thread


def sentence(error: Exception) -> str:
    """The line of a Java exception that says what happened."""
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    told = next(
        (line for line in lines if "Lost task" in line or "exited unexpectedly" in line or "cancelled" in line), ""
    )
    return told or (lines[0] if lines else type(error).__name__)
