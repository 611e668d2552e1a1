"""The Spark engine: this process is the driver, executors read, transform and send."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from typing_extensions import override

from framework.engine.local import LocalEngine
from framework.engine.spark.group import SparkGroup
from framework.engine.spark.packages import require_packages
from framework.engine.spark.session import spark_context

if TYPE_CHECKING:
    from pyspark import SparkContext

    from framework.engine.progress import Progress
    from framework.engine.session import IggyTarget, Session

log = logging.getLogger(__name__)


class SparkEngine(LocalEngine):
    """Runs a source on Spark, continuously or once. Epochs, positions and guarantee are those of the local engine."""

    _context: SparkContext | None = None
    _use_stop_channel = False

    @override
    def run(self) -> Progress:
        if self._standby:  # Spark starts when the wait is over
            return super().run()
        with self._spark():
            return super().run()

    @override
    def _run_epochs(self, target: IggyTarget) -> None:
        if not self._standby:
            super()._run_epochs(target)
            return
        self._reporter.state = "starting"
        with self._spark():
            super()._run_epochs(target)

    @contextlib.contextmanager
    def _spark(self) -> Iterator[None]:
        name = f"iggy-cloud-sources {self._config.source.name}"
        with spark_context(self._config.spark, name=name, stopping=self._stopping) as context:
            if context is not None:
                self._use_stop_channel = require_packages(
                    context, self._task_class, self._config, stopping=self._stopping
                )
            self._context = context
            yield

    @property
    @override
    def _several_writers(self) -> bool:
        return True

    @override
    def _run_epoch(self, session: Session) -> None:
        if self._context is None:  # a stop came first
            return
        group = SparkGroup(
            self._task_class,
            self._config,
            session,
            self._context,
            once=self._once,
            use_stop_channel=self._use_stop_channel,
        )
        with self._stops(group):
            group.run(self._stopping, self._reporter)
        self._finish(session)
