"""The Spark engine: this process is the driver, executors read, transform and send."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from typing_extensions import override

from framework.engine.local import LocalEngine
from framework.spark.group import SparkGroup
from framework.spark.session import open_session, require_packages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from framework.engine.session import Session
    from framework.progress import Progress

log = logging.getLogger(__name__)


class SparkEngine(LocalEngine):
    """Runs a source on Spark until it is stopped, or once. The same epochs, positions and guarantee as the local engine."""

    _spark: SparkSession | None = None

    @override
    def run(self) -> Progress:
        spark, ours = open_session(self._config.spark, name=f"iggy-cloud-sources {self._config.source.name}")
        self._spark = spark
        try:
            require_packages(spark)
            return super().run()
        finally:
            if ours:
                spark.stop()

    @override
    def _run_epoch(self, session: Session) -> None:
        if self._spark is None:
            return
        group = SparkGroup(self._task_class, self._config, session, self._spark.sparkContext, once=self._once)
        group.run(self._stopping, self._reporter)
