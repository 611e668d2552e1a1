"""The Spark engine: this process is the driver, executors read, transform and send."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from typing_extensions import override

from framework.engine.epoch_loop import Engine
from framework.engine.spark import jvm
from framework.engine.spark.driver import ReadySpark, SparkGroup
from framework.engine.spark.packages import require_packages
from framework.engine.spark.spark_context import spark_context
from framework.errors import SourceError
from framework.storage.daemon_threads import Awaited, start_timer

if TYPE_CHECKING:
    from framework.engine.iggy_target import IggyTarget
    from framework.engine.session import Session

log = logging.getLogger(__name__)

JAVA_SECONDS = 10.0
"""Time after a stop before a JVM that does not answer is killed. Usually it ends within 5 seconds."""


class SparkEngine(Engine):
    """Runs a source on Spark, continuously or once. Epochs, positions and guarantee are those of every engine.

    Spark starts in a thread, in which it takes seconds. Meanwhile the run connects to Iggy, recovers and begins to list.
    """

    _several_writers = True
    _starting: Awaited[ReadySpark | None] | None = None
    _java_timer: threading.Timer | None = None
    _uses_java = False

    @override
    def stop(self) -> None:
        super().stop()
        if self._java_timer is None:
            self._java_timer = start_timer(JAVA_SECONDS, self._end_java)

    def _end_java(self) -> None:
        if self._uses_java and jvm.kill():
            log.warning("Spark's Java process did not answer within %.0f seconds of the stop: killed it", JAVA_SECONDS)

    @override
    def _run_epochs(self, target: IggyTarget) -> None:
        self._reporter.state = "starting"
        try:
            with self._spark():
                if self._take_over:
                    self._await_spark()  # until then the other instance works
                super()._run_epochs(target)
        except SourceError:
            raise
        except Exception as error:
            # any call may be the one during which the JVM ends, and py4j's errors have no common root
            if (ended := jvm.ended()) is None:
                raise
            raise ended from error

    @contextlib.contextmanager
    def _spark(self) -> Iterator[None]:
        log.info("starting Spark")
        self._starting = starting = Awaited(self._start, "spark", too_late=_stop)
        self._uses_java = True
        try:
            yield
        finally:
            if not starting.leave():
                _stop(starting.result())
            self._uses_java = False

    def _start(self) -> ReadySpark | None:
        name = f"iggy-cloud-sources {self._config.source.name}"
        with contextlib.ExitStack() as stack:
            context = stack.enter_context(spark_context(self._config.spark, name=name, stopping=self._stopping))
            if context is None:  # a stop came first
                return None
            reachable = require_packages(context, self._task_class, self._config, stopping=self._stopping)
            return ReadySpark(context=context, use_stop_channel=reachable, stop=stack.pop_all().close)

    def _await_spark(self) -> ReadySpark | None:
        """Wait for Spark; return None when a stop came first."""
        assert self._starting is not None  # epochs run below `_spark`
        self._reporter.waiting_for = "Spark"
        try:
            return self._starting.wait(self._stopping)
        finally:
            self._reporter.waiting_for = ""

    @override
    def _run_tasks(self, session: Session) -> None:
        group = SparkGroup(self._task_class, self._config, session, self._await_spark, once=self._once)
        with self._stops(group.stop):
            group.run(self._stopping, self._reporter)


def _stop(spark: ReadySpark | None) -> None:
    if spark is not None:
        spark.stop()
