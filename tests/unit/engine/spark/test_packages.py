"""What travels to executors, and what is looked for there."""

import importlib.metadata
import pickle
import re
import resource
import subprocess
import sys
import zipfile
from importlib.util import MAGIC_NUMBER
from types import SimpleNamespace

import attrs
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkAttributeError

from framework.config.format_registry import DISTRIBUTION
from framework.engine.spark import packages
from framework.engine.spark.packages import (
    NEEDED,
    needed_modules,
    require_packages,
    require_packages_of,
    ship_packages,
    write_archive,
)
from framework.errors import FatalError, SparkUnavailableError
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.options import source_config
from framework.transformer import Transformer
from gcs_source.task import GcsSourceTask
from s3_source.task import S3SourceTask
from transformers import SHIPPED_FORMATS, InputOptions, make_transformer

DRIVER_ONLY = {"prometheus-client", "pyspark", "rich", "tomli", "typer"}
"""Dependencies that no executor imports: the command line, metrics, and Spark, which executors bring."""

BY_OPTIONS = {"protobuf", "regex"}
"""Dependencies that only some options need: those of a transform, or a regular expression over keys."""


def needed_for(form, task_class=S3SourceTask):
    config = source_config()
    return needed_modules(task_class, attrs.evolve(config, input=attrs.evolve(config.input, format=form)))


def test_every_dependency_is_looked_for_or_the_drivers_alone():
    """A new dependency must be put into one of the lists, or executors fail in the middle of a run."""
    known = {*NEEDED, *S3SourceTask.needs_modules, *GcsSourceTask.needs_modules}
    for form in SHIPPED_FORMATS:
        known |= {*make_transformer(InputOptions(format=form)).needs_modules}
    declared = {
        re.match(r"[\w-]+", line)[0] for line in importlib.metadata.requires(DISTRIBUTION) if "extra ==" not in line
    }
    wanted = {name.replace("-", "_") for name in declared - DRIVER_ONLY - BY_OPTIONS}
    assert wanted == {name.replace(".", "_") for name in known}


def test_a_regular_expression_needs_its_package():
    over_keys = {"template": r"(?P<topic>\w+)/.*", "regex": True}
    in_values = {"type": "filter", "field": "a", "value_pattern": {"regex": "b"}}
    for options in (over_keys, {"transforms": [in_values]}):
        assert "regex" in needed_modules(S3SourceTask, source_config(**options))
    assert "regex" not in needed_modules(S3SourceTask, source_config())


@pytest.mark.parametrize(
    ("form", "own"),
    [
        ("jsonl", set()),
        ("avro", {"fastavro", "polars"}),
        ("parquet", {"arro3.io", "pyarrow"}),
        ("auto", {"arro3.io", "fastavro", "polars", "pyarrow"}),
    ],
)
def test_a_format_names_what_it_needs(form, own):
    assert set(needed_for(form)) - set(needed_for("text")) == own
    assert set(NEEDED) <= set(needed_for(form))
    assert "boto3" in needed_for(form)


@pytest.mark.parametrize(
    ("transform", "own"),
    [
        ({"type": "delete_fields", "fields": ["a"]}, set()),
        ({"type": "avro", "schema_json": '"string"'}, {"fastavro"}),
        ({"type": "avro", "schema_json": '"string"', "enabled": False}, set()),
    ],
)
def test_a_transform_names_what_it_needs(transform, own):
    config = source_config(transforms=[transform])
    assert set(needed_modules(S3SourceTask, config)) - set(needed_for("jsonl")) == own


def test_a_source_and_a_format_of_others_must_be_installed_there():
    class Source(MemorySourceTask):
        needs_modules = ("their_client",)

    Source.__module__ = "their_source.task"
    assert {"their_client", "their_source"} <= set(needed_for("text", Source))
    Source.__module__ = "__main__"  # a script's own classes travel by their code
    assert "__main__" not in needed_for("text", Source)
    assert Transformer.needs_modules == () == MemorySourceTask.needs_modules


def test_the_archive_runs_by_itself(tmp_path):
    archive = tmp_path / "ours.zip"
    write_archive(archive)
    code = f"""
import sys
sys.path.insert(0, {str(archive)!r})
import framework.engine.spark.executor, s3_source.task
from framework.config.format_registry import make_transformer
from framework.transformer import InputOptions
assert framework.__file__.startswith({str(archive)!r}), framework.__file__
for name in {sorted(SHIPPED_FORMATS)!r}:
    make_transformer(InputOptions(format=name))
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)


@pytest.mark.parametrize(("magic", "kind"), [(MAGIC_NUMBER, {".pyc"}), (b"\0\0\r\n", {".py"})], ids=["same", "other"])
def test_executors_compile_only_for_another_version_of_python(tmp_path, monkeypatch, magic, kind):
    monkeypatch.setattr(packages, "MAGIC_NUMBER", magic)
    archive = tmp_path / "ours.zip"
    write_archive(archive)
    code = f"""
import sys
sys.path.insert(0, {str(archive)!r})
import framework.errors
files = [module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "framework"]
assert {{file[file.rindex("."):] for file in files}} == {kind!r}, files
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)


def test_a_master_that_has_refused_the_application_is_one_sentence(tmp_path, monkeypatch):
    def gone(_):
        raise TypeError("'NoneType' object is not callable")  # pyspark's, once the context is stopped

    monkeypatch.setattr("pyspark.SparkFiles.getRootDirectory", lambda: str(tmp_path))
    context = SimpleNamespace(
        master="spark://a:7077", appName="orders", applicationId="refused", addPyFile=gone, _jsc=None
    )
    with pytest.raises(SparkUnavailableError, match=r"Spark has ended the application orders at spark://a:7077"):
        ship_packages(context)


def local_context(python):
    def no_job(*_):
        raise AssertionError("a job")

    return SimpleNamespace(master="local[2]", pythonExec=python, parallelize=no_job)


def test_a_local_master_with_this_interpreter_costs_no_job():
    assert require_packages(local_context(sys.executable), S3SourceTask, source_config())


@pytest.mark.parametrize("name", ["no_such_client", "no_such_package.client"])
def test_what_it_misses_is_named(name):
    class Source(MemorySourceTask):
        needs_modules = (name, "attrs")

    with pytest.raises(FatalError, match=f"Spark's executors run {sys.executable} .*, which misses {name}: install"):
        require_packages(local_context(sys.executable), Source, source_config())


@pytest.mark.parametrize(
    ("said", "times"), [("a job", packages.CHECK_ATTEMPTS), ("[SPARK_JOB_CANCELLED] Job 1 cancelled", 1)]
)
def test_another_interpreter_is_asked_again_unless_a_stop_cancelled_that(said, times):
    """In a session of the user's, a job without an executor would wait there for good."""
    jobs = []

    def fail(*_):
        jobs.append(said)
        raise RuntimeError(said)

    conf = SimpleNamespace(get=lambda name, default=None: "127.0.0.1")
    context = local_context("/usr/bin/another")
    context.parallelize = fail
    context.getConf = lambda: conf
    context.setJobGroup = lambda *_, **__: None
    context._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))
    with pytest.raises(FatalError, match=f"run no Python task: {re.escape(said)}"):
        require_packages(context, S3SourceTask, source_config())
    assert jobs == [said] * times


@pytest.mark.parametrize(
    ("said", "conf", "advice"),
    [
        ('Cannot run program "/nowhere/python"', {}, "PYSPARK_PYTHON"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9", {}, "PYSPARK_PYTHON"),
        ("Python worker exited unexpectedly (crashed)", {}, "PYSPARK_PYTHON"),
        ("ModuleNotFoundError: No module named 'pyarrow'", {}, "or set PYSPARK_PYTHON to an interpreter that has it"),
        (
            "Python worker exited unexpectedly (crashed)",
            {"spark.executor.pyspark.memory": "180m"},
            "; raise spark.executor.pyspark.memory, or leave it out",
        ),
        ("Total size of serialized results of 1 tasks is bigger than spark.driver.maxResultSize (1024.0 B)", {}, ""),
    ],
)
def test_the_advice_fits_the_cause(said, conf, advice):
    context = SimpleNamespace(pythonExec="python3", getConf=lambda: SimpleNamespace(contains=conf.__contains__))
    found = packages._advice(context, said)
    assert advice in found
    assert bool(found) == bool(advice)


def asked_for(*modules):
    return {"modules": modules, "input": {}, "channel": None}


def test_what_cannot_be_imported_is_one_line_each(tmp_path, monkeypatch):
    (tmp_path / "wordy_module.py").write_text(
        r'raise ImportError("\n\nPLEASE READ\n\nOriginal error was: no such symbol\n")'
    )
    (tmp_path / "silent_module.py").write_text("raise MemoryError")
    monkeypatch.syspath_prepend(tmp_path)
    found = packages._make_probe()(asked_for("wordy_module", "silent_module"))
    with pytest.raises(FatalError) as caught:
        packages._judge(found)
    where = f"Spark's executors run {sys.executable} (Python {sys.version.split()[0]})"
    broken = "wordy_module (Original error was: no such symbol); silent_module (MemoryError)"
    assert str(caught.value).startswith(f"{where}, which cannot import {broken}: install the wheel of")


def test_workers_with_too_little_memory_to_import_are_told_from_a_wrong_interpreter(tmp_path, monkeypatch):
    (tmp_path / "large_module.py").write_text("raise ImportError('failed to map segment from shared object')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (400 << 20, 400 << 20))
    found = packages._make_probe()(asked_for("large_module"))
    with pytest.raises(FatalError) as caught:
        packages._judge(found)
    assert str(caught.value).endswith(
        "which cannot import large_module (failed to map segment from shared object) in 400 MiB of address space: raise "
        "spark.executor.pyspark.memory, or leave it out"
    )


class ConnectSession:
    """What is asked of a session of Spark Connect, which has no context."""

    def __init__(self, session_id, error=None, job_error=None):
        self.session_id = session_id
        self.sent = []
        self.jobs = 0
        self._error, self._job_error = error, job_error

    def __getattr__(self, name):
        raise PySparkAttributeError("JVM_ATTRIBUTE_NOT_SUPPORTED", {"attr_name": name})

    def addArtifacts(self, path, *, pyfile):  # noqa: N802 - Spark's name
        if self._error is not None:
            raise self._error
        with zipfile.ZipFile(path) as archive:
            self.sent.append((pyfile, "framework/errors.py" in archive.namelist()))

    def range(self, *_):
        return self

    def mapInArrow(self, function, schema):  # noqa: N802 - Spark's name
        assert schema == "found string"
        self._function = pickle.loads(cloudpickle.dumps(function))
        return self

    def collect(self):
        self.jobs += 1
        if self._job_error is not None:
            raise self._job_error
        rows = [row for batch in self._function([None]) for row in batch.to_pylist()]
        return [SimpleNamespace(**row) for row in rows]


class LackingTask(MemorySourceTask):
    needs_modules = ("no_such_module",)


@pytest.fixture
def config(monkeypatch):
    monkeypatch.setattr(packages, "_shipped", set())
    monkeypatch.setattr(packages, "_checked", set())
    return source_config()


def test_a_session_of_connect_gets_the_packages_and_the_check_once(config):
    for session in (ConnectSession("a"), ConnectSession("b")):
        require_packages_of(session, MemorySourceTask, config)
        require_packages_of(session, MemorySourceTask, config)
        assert (session.sent, session.jobs) == ([(True, True)], 1)


def test_executors_that_lack_a_module_are_named_before_a_frame_is_made(config):
    session = ConnectSession("a")
    for jobs in (1, 2):  # once it is installed the session goes on
        with pytest.raises(FatalError, match=r"executors run .* which misses no_such_module: install the wheel"):
            require_packages_of(session, LackingTask, config)
        assert session.jobs == jobs


def test_executors_without_pyarrow_are_told_in_one_sentence(config):
    session = ConnectSession("a", job_error=ImportError("PyArrow >= 18 must be installed\n\nJVM stacktrace:\n\tat a.b"))
    with pytest.raises(
        FatalError, match=r"executors run no Python task: PyArrow >= 18 must be installed; install the wheel .* has it$"
    ):
        require_packages_of(session, MemorySourceTask, config)


def test_a_server_of_connect_that_takes_no_packages_is_told_in_one_sentence(config):
    with pytest.raises(FatalError, match=r"cannot be sent to the server of Spark Connect: no room$"):
        require_packages_of(
            ConnectSession("a", error=OSError("no room\n\nJVM stacktrace:\n\tat a.b")), MemorySourceTask, config
        )
    assert not packages._shipped
