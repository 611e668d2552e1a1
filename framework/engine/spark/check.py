"""Lines of the command `check` about Spark: Java, the master, an executor. Starts an application and ends it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

from framework.engine.iggy_target import open_connection
from framework.engine.spark.executor import explained
from framework.engine.spark.failure_messages import lost_job
from framework.engine.spark.jvm import require_java
from framework.engine.spark.packages import CHECK_GROUP, require_packages
from framework.engine.spark.spark_context import runs_locally, spark_context, wait_for
from framework.engine.spark.threads import cancel_jobs
from framework.errors import SourceError
from framework.storage.preflight import CheckResult, check_store
from framework.task.store_task import StoreSourceTask

if TYPE_CHECKING:
    from pyspark import SparkContext

    from framework.config.sections import SourceCommonConfig
    from framework.task import AbstractSourceTask

EXECUTOR_SECONDS = 60.0
"""Maximum wait for an executor, and again for what it looks at."""

WAY_OUT = (
    "executors find credentials, profiles and files of certificates on their own machine: set the same up there, or put "
    "keys into the configuration (docs/guides/run-on-spark.md)"
)


def check_spark(task_class: type[AbstractSourceTask], config: SourceCommonConfig) -> Iterator[CheckResult]:
    """Yield a line per step that a run takes with Spark before its first object; stop after the first failure."""
    try:
        yield CheckResult("java", ok=True, detail=require_java())
    except SourceError as error:
        yield CheckResult.failed("java", error)
        return
    step = "master"
    try:
        with spark_context(config.spark, name=f"iggy-cloud-sources check {config.source.name}") as context:
            if context is None:  # only a stop ends the waiting
                return
            yield CheckResult("master", ok=True, detail=f"{context.master}, Spark {context.version}")
            step = "executors"
            require_packages(context, task_class, config, limit_seconds=EXECUTOR_SECONDS)
            yield CheckResult("executors", ok=True, detail="have all that this source needs")
            if not runs_locally(context):
                step = "on executors"
                yield _look(context, task_class, config)
    except SourceError as error:
        yield CheckResult.failed(step, error)


def _look(context: SparkContext, task_class: type[AbstractSourceTask], config: SourceCommonConfig) -> CheckResult:
    """Look from an executor at what jobs need there: the store, with a list and a read, and Iggy."""

    def job() -> tuple[str, CheckResult | None]:
        context.setJobGroup(CHECK_GROUP, "are the store and Iggy reached?", interruptOnCancel=True)
        found: tuple[str, CheckResult | None] = context.parallelize([(task_class, config)], 1).map(look).collect()[0]
        return found

    try:
        answer = wait_for(job, None, "an executor that looks at the store and Iggy", limit_seconds=EXECUTOR_SECONDS)
    except SourceError:
        cancel_jobs(context, CHECK_GROUP)
        raise
    except Exception as error:
        raise lost_job(context, error, "the look at the store and Iggy") from error
    assert answer is not None  # only a stop ends the wait without one
    host, failed = answer
    if failed is None:
        return CheckResult("on executors", ok=True, detail=f"executor {host} reads the store and connects to Iggy")
    return attrs.evolve(
        failed, step="on executors", detail=f"on executor {host}: {failed.step}: {failed.detail}; {WAY_OUT}"
    )


# ---- on an executor


def look(given: tuple[type[AbstractSourceTask], SourceCommonConfig]) -> tuple[str, CheckResult | None]:
    """Return the name of this machine, and the first step that fails here; None when none does."""
    task_class, config = given
    host = socket.gethostname()
    task = task_class()
    step = "store"
    try:
        for result in _store(task, config):
            if not result.ok:
                return host, result
        step = "iggy"
        address = config.iggy.server()
        if address.embedded_path is None:  # which runs where the driver starts it
            open_connection(address, config).close()
    except Exception as error:  # noqa: BLE001 - whatever it is, the driver must hear it
        return host, CheckResult.failed(step, explained(error))
    finally:
        task.close_resources()
    return host, None


def _store(task: AbstractSourceTask, config: SourceCommonConfig) -> Iterator[CheckResult]:
    if config.discovery.mode == "keys" and isinstance(task, StoreSourceTask):
        # the list may be a file of the driver's machine; executors read only what it names
        return check_store(task.open_store(task.bucket_config(config)), named=iter(()))
    return task.check(config)
