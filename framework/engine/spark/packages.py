"""Packages on the executors: the framework's travel as an archive, their dependencies must be installed.

An executor is checked once before a run, so that a missing package is one sentence and not a Java stack
trace.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import marshal
import re
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from framework.config.format_registry import DISTRIBUTION, make_transformer
from framework.config.transform_registry import transform_class
from framework.engine.spark.capacity import NO_EXECUTOR
from framework.engine.spark.failure_messages import MORE_MEMORY, application_ended, is_cancelled, is_stopped, sentence
from framework.engine.spark.spark_context import runs_locally, wait_for
from framework.engine.spark.stop_channel import StopChannel
from framework.engine.spark.threads import cancel_jobs, context_of
from framework.errors import OWN_PACKAGES, FatalError, SparkUnavailableError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from framework.config.sections import SourceCommonConfig
    from framework.task import AbstractSourceTask

log = logging.getLogger(__name__)

NEEDED = (
    "apache_iggy",
    "attrs",
    "numpy",
    "orjson",
    "tenacity",
    "typing_extensions",
    "xxhash",
    "zstandard",
)
"""Modules that the framework imports on an executor, for every source and format."""

_WAY_OUT = (
    f"install the wheel of {DISTRIBUTION} there (docs/guides/run-on-spark.md), or set PYSPARK_PYTHON to an interpreter that "
    "has it"
)

_WRONG_PYTHON = re.compile("Cannot run program|[Vv]ersion|VERSION|exited unexpectedly")

CHECK_GROUP = "iggy-cloud-sources check"

CHECK_ATTEMPTS = 3
"""Attempts of the check: an executor may be lost; a wrong interpreter fails each time."""

ARCHIVE = "iggy_cloud_sources.zip"

_FOR_IGGY = {"apache_iggy"}
"""What DataFrames do not need."""

_shipped: set[str] = set()
"""Applications, and sessions of Spark Connect, that have the packages already."""

_checked: set[tuple[str, ...]] = set()
"""Applications or sessions, each with the modules that its executors can import."""


def ship_packages(context: SparkContext) -> None:
    """Add the packages to the executors' path, once per application; a local master has them already.

    Raises:
        SparkUnavailableError: the master has refused or ended the application.
        FatalError: they cannot be sent.
    """
    try:
        if runs_locally(context) or context.applicationId in _shipped:
            return
        from pyspark import SparkFiles  # noqa: PLC0415 - the door to Spark

        # Executors fetch it from here whenever they start; Spark deletes the folder when the context stops.
        archive = Path(SparkFiles.getRootDirectory()) / "packages" / ARCHIVE
        archive.parent.mkdir(exist_ok=True)
        write_archive(archive)
        before = sys.path[:]
        context.addPyFile(str(archive))
        sys.path[:] = before  # the driver has the packages themselves
        _shipped.add(str(context.applicationId))
    except Exception as exc:
        if is_stopped(context):
            raise application_ended(context) from exc
        raise FatalError(f"the packages cannot be sent to Spark's executors: {sentence(exc)}") from exc


def require_packages_of(spark: SparkSession, task_class: type[AbstractSourceTask], config: SourceCommonConfig) -> None:
    """Ship the packages to a session's executors, and check there that what a source needs can be imported; for DataFrames.

    The check is a small job. It is made once per session for the same modules.

    Raises:
        SparkUnavailableError: the master has refused or ended the application.
        FatalError: they cannot be sent; or names the missing module and the interpreter that lacks it.
    """
    modules = [name for name in needed_modules(task_class, config) if name not in _FOR_IGGY]
    context = context_of(spark)
    if context is None:
        _ship_to_server(spark)
        session = str(spark.session_id)  # type: ignore[attr-defined]
    else:
        ship_packages(context)
        if runs_locally(context) and context.pythonExec == sys.executable:
            _require_here(modules)
            return
        session = str(context.applicationId)
    if (session, *modules) in _checked:
        return
    asked = {"modules": modules, "input": attrs.asdict(config.input.options()), "channel": None}
    probe = _make_probe()

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # nested, as the probe
        import json  # noqa: PLC0415

        import pyarrow as pa  # noqa: PLC0415

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"found": [json.dumps(probe(asked))]})

    try:
        (answer,) = spark.range(0, 1, 1, 1).mapInArrow(rows, "found string").collect()
    except Exception as exc:
        said = sentence(exc)
        raise FatalError(f"Spark's executors run no Python task: {said}{_advice(context, said)}") from exc
    _judge({**json.loads(answer.found), "channel": ""})
    _checked.add((session, *modules))


def _ship_to_server(spark: SparkSession) -> None:
    session = spark.session_id  # type: ignore[attr-defined]
    if session in _shipped:
        return
    try:
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder) / ARCHIVE
            write_archive(archive)
            spark.addArtifacts(str(archive), pyfile=True)
    except Exception as exc:
        raise FatalError(f"the packages cannot be sent to the server of Spark Connect: {sentence(exc)}") from exc
    _shipped.add(session)


def write_archive(archive: Path) -> None:
    """Write the packages.

    Modules that this process has imported, as executors will, have their bytecode beside them: to compile them takes each
    Python worker 0.6 s of CPU.
    """
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for package in OWN_PACKAGES:
            for path, name in _modules(package):
                target.write(path, name)
                if name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") in sys.modules:
                    target.writestr(f"{name}c", _bytecode(path))


def _modules(package: str) -> Iterator[tuple[Path, str]]:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return
    root = Path(next(iter(spec.submodule_search_locations)))
    for path in sorted(root.rglob("*.py")):
        yield path, str(Path(package) / path.relative_to(root))


def _bytecode(path: Path) -> bytes:
    """Return a module's bytecode as a file that is not compared with its source (PEP 552): times in an archive have no zone.

    Another version of Python ignores it and compiles the source.
    """
    code = SourceFileLoader(path.stem, str(path)).get_code(path.stem)  # from Python's cache, where it is there
    return MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code)


def needed_modules(task_class: type[AbstractSourceTask], config: SourceCommonConfig) -> list[str]:
    """Return the modules that executors need for this source: of the framework, the source, the format and transforms."""
    needed = [*NEEDED, *task_class.needs_modules]
    transformer = make_transformer(config.input.options())
    needed += transformer.needs_modules
    transforms = [transform_class(entry.type) for entry in config.transforms if entry.enabled]
    needed += [name for transform in transforms for name in transform.needs_modules]
    needed += ["regex"] if config.naming.regex else []
    for part in (task_class, type(transformer), *transforms):
        own = part.__module__.partition(".")[0]
        if own not in {*OWN_PACKAGES, "__main__"}:  # what a script defines travels pickled
            needed.append(own)
    return sorted(set(needed))


def require_packages(
    context: SparkContext,
    task_class: type[AbstractSourceTask],
    config: SourceCommonConfig,
    *,
    stopping: threading.Event | None = None,
    limit_seconds: float | None = None,
) -> bool:
    """Ship the packages, and check on an executor that everything that this source needs can be imported.

    A local master with this interpreter is checked here: a job takes a second and more.

    Args:
        context: Spark's context.
        task_class: the source.
        config: its configuration.
        stopping: ends the wait for an executor.
        limit_seconds: maximum wait for an executor; None means no limit.

    Returns:
        Whether executors can reach a port of the driver unknown to Spark: see
            `framework.engine.spark.stop_channel`.

    Raises:
        SparkUnavailableError: the master has refused or ended the application, or no executor came.
        FatalError: names the missing module and the interpreter that lacks it.
    """
    modules = needed_modules(task_class, config)
    if runs_locally(context) and context.pythonExec == sys.executable:
        _require_here(modules)
        return True
    ship_packages(context)
    channel = StopChannel.of(context)
    asked = {
        "modules": modules,
        "input": attrs.asdict(config.input.options()),
        "channel": channel.address[:2] if channel is not None else None,
    }
    try:
        found = wait_for(lambda: _ask(context, asked), stopping, NO_EXECUTOR, limit_seconds=limit_seconds)
    except SparkUnavailableError:
        cancel_jobs(context, CHECK_GROUP)
        raise
    except Exception as exc:
        if is_stopped(context):
            raise application_ended(context) from exc
        said = sentence(exc)
        raise FatalError(f"Spark's executors run no Python task: {said}{_advice(context, said)}") from exc
    finally:
        if channel is not None:
            channel.close()
    if found is None:
        cancel_jobs(context, CHECK_GROUP)
        return False
    _judge(found)
    return not found["channel"]


def _advice(context: SparkContext | None, said: str) -> str:
    """Return the way out that fits the cause, if one does. No context: the session is of Spark Connect."""
    if "No module named" in said or "must be installed" in said:
        return f"; {_WAY_OUT}"
    if context is None:
        return ""
    if "exited unexpectedly" in said and context.getConf().contains("spark.executor.pyspark.memory"):
        return f"; {MORE_MEMORY}"
    if _WRONG_PYTHON.search(said) is None:
        return ""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return f". PYSPARK_PYTHON ({context.pythonExec}) must name a Python {version} there, the driver's version"


def _require_here(modules: Sequence[str]) -> None:
    version = ".".join(map(str, sys.version_info[:3]))
    missing = [name for name in modules if not _is_installed(name)]
    _judge({"python": sys.executable, "version": version, "missing": missing})


def _is_installed(name: str) -> bool:
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of a package that a dotted name begins with
        return False


def _ask(context: SparkContext, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    context.setJobGroup(CHECK_GROUP, "are the packages there?", interruptOnCancel=True)

    def attempt() -> Mapping[str, Any]:
        answers: Sequence[Mapping[str, Any]] = context.parallelize([asked], 1).map(_make_probe()).collect()
        return answers[0]

    for _ in range(CHECK_ATTEMPTS - 1):
        try:
            return attempt()
        except Exception as error:
            if is_cancelled(error):  # a stop has left it
                raise
    return attempt()


def _judge(found: Mapping[str, Any]) -> None:
    where = f"Spark's executors run {found['python']} (Python {found['version']})"
    if found["missing"]:
        raise FatalError(f"{where}, which misses {', '.join(found['missing'])}: {_WAY_OUT}")
    if found.get("broken"):
        broken, memory = f"{where}, which cannot import {'; '.join(found['broken'])}", found["memory"]
        if memory:
            raise FatalError(f"{broken} in {memory >> 20} MiB of address space: {MORE_MEMORY}")
        raise FatalError(f"{broken}: {_WAY_OUT}")
    if found.get("format"):
        raise FatalError(f"{where}, where {found['format']}: install there what the format comes in")
    if found.get("channel"):
        log.warning("executors reach no free port of the driver, so a stop kills their jobs: %s", found["channel"])


def _make_probe() -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Return the check for an executor. A nested function travels by its code, so it needs no package of the framework."""

    def probe(asked: Mapping[str, Any]) -> Mapping[str, Any]:
        import importlib  # noqa: PLC0415
        import resource  # noqa: PLC0415
        import socket  # noqa: PLC0415
        import sys  # noqa: PLC0415

        missing, broken, wrong, cut = [], [], "", "it has none"
        for name in [*asked["modules"], "framework"]:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                missing.append(error.name or name)
            except Exception as error:  # noqa: BLE001 - a library for another machine may raise anything
                # numpy's text is a page, of which the last line names the cause
                broken.append(f"{name} ({str(error).strip().rpartition(chr(10))[2] or type(error).__name__})")
        if not missing and not broken:
            from framework.config.format_registry import make_transformer  # noqa: PLC0415
            from framework.errors import ConfigError  # noqa: PLC0415
            from framework.transformer import InputOptions  # noqa: PLC0415

            try:
                make_transformer(InputOptions(**asked["input"]))
            except ConfigError as error:
                wrong = str(error)
        if asked["channel"] is not None:
            try:
                socket.create_connection(asked["channel"], timeout=3.0).close()
                cut = ""
            except OSError as error:
                cut = str(error)
        memory, _ = resource.getrlimit(resource.RLIMIT_AS)
        return {
            "python": sys.executable,
            "version": ".".join(map(str, sys.version_info[:3])),
            "missing": sorted(set(missing)),
            "broken": broken,
            "memory": memory if memory != resource.RLIM_INFINITY else 0,
            "format": wrong,
            "channel": cut,
        }

    return probe
