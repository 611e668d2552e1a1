"""The Spark session: the one there is, or one made from the `[spark]` options, ready for our tasks.

Executors need Python, the interpreter that runs here or one like it, with the libraries this project stands on. Our own
packages travel with the session.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from framework.errors import ConfigError, FatalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from framework.config.sections import SparkSection

log = logging.getLogger(__name__)

OLDEST_JAVA = 17
"""Spark 4 runs on Java 17 and 21."""

_SHIPPED: set[str] = set()
"""Applications that have our packages already."""

NEEDED = (
    "apache_iggy",
    "attrs",
    "cattrs",
    "msgspec",
    "numpy",
    "orjson",
    "tenacity",
    "typing_extensions",
    "xxhash",
    "zstandard",
)
"""What the framework imports on an executor whatever the source and the format are."""

PACKAGES = ("framework", "transformers", "s3_source", "gcs_source")
"""What travels to the executors, as far as it is installed here."""

NO_JAVA = (
    'engine "spark" needs Java 17 or newer and finds none: install it (apt-get install openjdk-17-jre-headless), set JAVA_HOME, '
    'or set [runner] engine = "local", which needs no Java'
)


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


def open_session(options: SparkSection, *, name: str) -> tuple[SparkSession, bool]:
    """The active session, or a new one; and whether it is ours to stop.

    Args:
        options: the section `[spark]`.
        name: the application's name, for Spark's pages.

    Raises:
        FatalError: no Java.
        ConfigError: the session speculates, or cannot be made from the options.
    """
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - the door to Spark
    except ImportError as exc:
        raise FatalError('engine "spark" needs the package pyspark: pip install "pyspark>=4"') from exc
    active = SparkSession.getActiveSession()
    if active is not None:
        _check(active)
        ship_packages(active)
        return active, False
    require_java()
    if options.master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).master(options.master)
    quiet = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    for key, value in {
        **quiet,
        **options.conf,
        "spark.speculation": options.conf.get("spark.speculation", "false"),
    }.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except Exception as exc:
        raise ConfigError(f"[spark] no session at master {options.master}: {_first_line(exc)}") from exc
    _check(session)
    ship_packages(session)
    return session, True


def _check(session: SparkSession) -> None:
    if str(session.conf.get("spark.speculation", "false")).lower() == "true":
        raise ConfigError(
            "spark.speculation is on: it runs one task twice at the same time, and a lane has one sender; set it to false"
        )


def ship_packages(session: SparkSession) -> None:
    """Adds our packages to the executors' path, once per application; local masters have them already."""
    context = session.sparkContext
    if str(context.master).startswith("local") or context.applicationId in _SHIPPED:
        return
    archive = Path(tempfile.mkdtemp(prefix="iggy-cloud-sources-")) / "iggy_cloud_sources.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for package in PACKAGES:
            spec = importlib.util.find_spec(package)
            if spec is None or not spec.submodule_search_locations:
                continue
            root = Path(next(iter(spec.submodule_search_locations)))
            for path in sorted(root.rglob("*.py")):
                target.write(path, Path(package) / path.relative_to(root))
    context.addPyFile(str(archive))
    _SHIPPED.add(context.applicationId)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]


def require_packages(session: SparkSession, more: Sequence[str] = ()) -> None:
    """Looks on an executor whether what our packages stand on is installed there.

    Args:
        session: with our packages shipped.
        more: modules that the source needs besides, such as `boto3`.

    Raises:
        FatalError: naming what is missing.
    """
    needed = [*NEEDED, *more]
    try:
        found = session.sparkContext.parallelize([needed], 1).map(_missing).collect()[0]
    except Exception as exc:
        raise FatalError(f"Spark runs no Python task: {_first_line(exc)}") from exc
    python, version, missing = found
    if missing:
        raise FatalError(
            f"Spark's executors run {python} (Python {version}), which misses {', '.join(missing)}: install iggy-cloud-sources "
            f"there, or set PYSPARK_PYTHON to an interpreter that has it"
        )


def _missing(names: list[str]) -> tuple[str, str, list[str]]:
    """On an executor: its interpreter, its version, and which of these modules it does not find."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    return sys.executable, version, [name for name in names if importlib.util.find_spec(name) is None]
