"""A real server of Spark Connect for the tests, from the pip package: its application runs on a cluster of the tests.

Its executors run the interpreter `executor_python`, which does not have this project, and no pandas: what they run of ours
has travelled through the server.
"""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.spark_cluster import spark_sections

READY_SECONDS = 120


class SparkConnectServer:
    """A server at work; `stop` ends it, and may be called twice.

    Args:
        folder: for its log.
        cluster: where its application runs.
        python: the interpreter of its executors.
    """

    def __init__(self, folder, cluster, python):
        self.folder = folder
        self.cluster = cluster
        self._python = python
        self._process = None
        self.url = self.application = ""

    def start(self):
        import pyspark

        home = Path(pyspark.__file__).parent
        options = {
            **spark_sections(self.cluster)["spark.conf"],
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            "spark.ui.enabled": "false",
            "spark.driver.memory": "512m",
            "spark.log.level": "INFO",
        }
        given = [part for name, value in options.items() for part in ("--conf", f"{name}={value}")]
        kept = {key: os.environ[key] for key in ("PATH", "JAVA_HOME", "HOME", "TMPDIR", "LANG") if key in os.environ}
        with (self.folder / "connect.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(str(home / "bin" / "spark-submit"), "--master", self.cluster.url),
                    *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", *given, "spark-internal"),
                ],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    **kept,
                    "SPARK_HOME": str(home),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "PYSPARK_PYTHON": str(self._python),
                },
            )
        port = self._find(r"Spark Connect server started at: \S+:(\d+)")
        self.application = self._find(r"Connected to Spark cluster with app ID (\S+)")
        self.url = f"sc://127.0.0.1:{port}"
        return self

    def _find(self, pattern):
        limit = time.monotonic() + READY_SECONDS
        while (found := re.search(pattern, self.log())) is None:
            if self._process.poll() is not None or time.monotonic() > limit:
                pytest.fail(f"the server of Spark Connect did not start\n{self.log()[-2000:]}")
            time.sleep(0.05)
        return found[1]

    def log(self):
        return (self.folder / "connect.log").read_text(errors="replace")

    def stop(self):
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


@pytest.fixture(scope="module")
def connect_server(tmp_path_factory, spark_cluster, executor_python):
    """A server of Spark Connect whose executors are those of the cluster; it ends with the module.

    The cluster has room for two applications: with a third one that stays, a driver of another module waits without end.
    """
    server = SparkConnectServer(tmp_path_factory.mktemp("spark-connect"), spark_cluster, executor_python)
    try:
        yield server.start()
    finally:
        server.stop()
