"""What Java has loaded of Spark, in an archive: a JVM that maps it starts with little more than half of the CPU time.

Tests start some 70 JVMs, each of which takes thousands of classes out of Spark's jars and checks them again. A run with
several workers makes the archive beside the interpreter, in the background and once: later runs have it from the start. Java
takes no archive of other jars or of another Java, and does without, as it does where there is none.
"""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that lives for seconds spends most of them on optimizing itself."""

QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""An archive of other jars is no news: tests look at all that a JVM says."""

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"

MAKES_SECONDS = 120


def java_options(archive=ARCHIVE):
    """Options for each JVM of a test: a quick start, and the archive, unless its path has a blank, which ends an option."""
    return QUICK_JAVA if " " in str(archive) else f"{QUICK_JAVA} {QUIET} -XX:SharedArchiveFile={archive}"


def is_current(archive=ARCHIVE):
    """Whether the archive is newer than Java and Spark; also where one of them is missing."""
    java, pyspark = shutil.which("java"), find_spec("pyspark")
    if java is None or pyspark is None:
        return True
    parts = Path(java).resolve(), Path(pyspark.origin).with_name("jars")
    return archive.exists() and archive.stat().st_mtime > max(part.stat().st_mtime for part in parts)


def make(archive=ARCHIVE):
    """Runs a job and keeps what Java has loaded for it."""
    from pyspark import SparkConf, SparkContext

    part = archive.with_suffix(f".{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{QUICK_JAVA} -Xlog:disable -XX:ArchiveClassesAtExit={part}"
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    try:
        with SparkContext(conf=SparkConf().setMaster("local[1]").set("spark.ui.enabled", "false")) as context:
            context.parallelize([1], 1).map(str).collect()
        gateway = SparkContext._gateway
        gateway.shutdown()
        gateway.proc.stdin.close()
        if gateway.proc.wait(MAKES_SECONDS) == 0:  # whole, or not at all: half of one ends a JVM
            part.replace(archive)
    finally:
        part.unlink(missing_ok=True)


_making = pytest.StashKey()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config):
    if " " in str(ARCHIVE) or is_current():
        return
    config.stash[_making] = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def pytest_unconfigure(config):
    making = config.stash.get(_making, None)
    if making is not None:
        making.wait(MAKES_SECONDS)


if __name__ == "__main__":
    make()
