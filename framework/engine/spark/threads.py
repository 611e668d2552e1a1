"""Work of threads that wait for Spark jobs, and cancelling of jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from framework.engine.spark.failure_messages import is_stopped

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

P = ParamSpec("P")
R = TypeVar("R")


def for_thread(context: SparkContext, work: Callable[P, R]) -> Callable[P, R]:
    """Return work for another thread, with a copy of this thread's local properties of Spark, such as its scheduler pool.

    A context that is stopped has none: then the work itself fails, where its errors are expected.
    """
    try:
        properties = context._jsc.sc().getLocalProperties().clone()  # noqa: SLF001 - as pyspark.InheritableThread does
    except Exception:
        if is_stopped(context):
            return work
        raise

    def inherits(*args: P.args, **kwargs: P.kwargs) -> R:
        context._jsc.sc().setLocalProperties(properties)  # noqa: SLF001
        return work(*args, **kwargs)

    return inherits


def context_of(spark: SparkSession) -> SparkContext | None:
    """Return the context of a session; None over Spark Connect, which has none."""
    try:
        return spark.sparkContext
    except AttributeError:
        return None


def for_thread_of(spark: SparkSession, work: Callable[P, R]) -> Callable[P, R]:
    """Return work for another thread, with this thread's job group, scheduler pool and tags: the session's user set them."""
    tags = spark.getTags()

    def tagged(*args: P.args, **kwargs: P.kwargs) -> R:
        for tag in tags:
            spark.addTag(tag)
        return work(*args, **kwargs)

    context = context_of(spark)
    return for_thread(context, tagged) if context is not None else tagged


def cancel_jobs(context: SparkContext, group: str) -> None:
    """Kill the tasks of a job group; a JVM that is gone has none."""
    with contextlib.suppress(Exception):
        context.cancelJobGroup(group)
