"""Lines of the command `check` about Spark: Java, the master, an executor. Starts an application and ends it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from framework.engine.spark.capacity import NO_EXECUTOR
from framework.engine.spark.jvm import require_java
from framework.engine.spark.packages import require_packages
from framework.engine.spark.spark_context import spark_context
from framework.errors import EXIT_TRY_AGAIN, SourceError
from framework.storage.daemon_threads import start_timer
from framework.storage.preflight import CheckResult

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.task import AbstractSourceTask

EXECUTOR_SECONDS = 60.0
"""Maximum wait for an executor."""


def check_spark(task_class: type[AbstractSourceTask], config: SourceCommonConfig) -> Iterator[CheckResult]:
    """Yield a line per step that a run takes with Spark before its first object; stop after the first failure."""
    try:
        yield CheckResult("java", ok=True, detail=require_java())
    except SourceError as error:
        yield CheckResult.failed("java", error)
        return
    waited = threading.Event()
    step = "master"
    try:
        with spark_context(config.spark, name=f"iggy-cloud-sources check {config.source.name}") as context:
            if context is None:  # only a stop ends the waiting
                return
            yield CheckResult("master", ok=True, detail=f"{context.master}, Spark {context.version}")
            step = "executors"
            timer = start_timer(EXECUTOR_SECONDS, waited.set)
            try:
                require_packages(context, task_class, config, stopping=waited)
            finally:
                timer.cancel()
    except SourceError as error:
        yield CheckResult.failed(step, error)
        return
    if waited.is_set():
        detail = f"waited {EXECUTOR_SECONDS:.0f} seconds for {NO_EXECUTOR}"
        yield CheckResult("executors", ok=False, detail=detail, exit_code=EXIT_TRY_AGAIN)
    else:
        yield CheckResult("executors", ok=True, detail="have all that this source needs")
