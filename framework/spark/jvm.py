"""The driver's JVM: looked for, started, and what it says told in lines of our own.

A JVM writes to stderr as it likes, through a progress bar and between JSON lines. Here it writes to a pipe.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from framework.errors import FatalError

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]
    from pyspark import SparkConf

log = logging.getLogger(__name__)

OLDEST_JAVA = 17
"""Spark 4 runs on Java 17 and 21."""

NO_JAVA = (
    'engine "spark" needs Java 17 or newer and finds none: install it (apt-get install openjdk-17-jre-headless), set JAVA_HOME, '
    'or set [runner] engine = "local", which needs no Java'
)

NOISE = ("WARNING: Using incubator modules", "Picked up ", "at ", "... ", "Caused by: ")
"""Lines begin so that say nothing to a reader of our log: what Java says at every start, and its stack traces."""

KEPT_LINES = 5


def log_option() -> str:
    """The option of Java that makes Spark's own log quiet."""
    return f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


def require_java() -> None:
    """Looks for a Java that Spark can use.

    Raises:
        FatalError: there is none, or it is too old; the sentence says what to do.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        raise FatalError(NO_JAVA)
    try:
        # the fixed flag of a program found on the PATH
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr  # noqa: S603
        first = said.split('"')[1].split(".")
        version = int(first[1] if first[0] == "1" else first[0].split("-")[0])
    except (OSError, subprocess.SubprocessError, IndexError, ValueError) as exc:
        raise FatalError(f"{java} does not say its version. {NO_JAVA}") from exc
    if version < OLDEST_JAVA:
        raise FatalError(f"{java} is Java {version}. {NO_JAVA}")


def launch(conf: SparkConf) -> JavaGateway:
    """Starts the JVM that a context made from `conf` needs; it ends with this process.

    Raises:
        FatalError: it did not start; with the last thing it said.
    """
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - the door to Spark
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    ours, theirs = os.pipe()
    told = _Teller(ours)
    try:
        gateway = launch_gateway(conf, {"stdout": theirs, "stderr": theirs})  # type: ignore[no-untyped-call]
    except (PySparkRuntimeError, OSError) as exc:
        os.close(theirs)
        theirs = -1
        raise FatalError(f"Spark's Java process did not start: {told.last_words() or exc}") from exc
    finally:
        if theirs >= 0:
            os.close(theirs)
    return gateway


class _Teller:
    """Reads the pipe to its end and logs what is worth a line."""

    def __init__(self, pipe: int) -> None:
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._thread = threading.Thread(target=self._read, args=(pipe,), name="spark-jvm", daemon=True)
        self._thread.start()

    def _read(self, pipe: int) -> None:
        with open(pipe, encoding="utf-8", errors="replace") as lines:
            for raw in lines:
                line = raw.strip()
                if line and not line.startswith(NOISE):
                    self._lines.append(line)
                    log.warning("Spark says: %s", line)

    def last_words(self) -> str:
        self._thread.join(1.0)
        return self._lines[-1] if self._lines else ""
