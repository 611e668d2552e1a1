"""Threads that wait for jobs of Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable


def spark_thread(target: Callable[[], None]) -> threading.Thread:
    """A thread with Spark's local properties of its own, so that its job group is not another thread's."""
    from pyspark import InheritableThread  # noqa: PLC0415

    thread: threading.Thread = InheritableThread(target=target, daemon=True)
    return thread
