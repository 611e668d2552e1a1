"""A real standalone cluster of Spark for the tests: a master and workers as processes of their own, from the pip package.

The fixture `spark_cluster` starts one a session, and only when a test asks for it. Each daemon has a session of its own
(setsid), which its executors and their Python processes inherit, so everything can be found and ended by it, whatever
becomes of a test. Signals go to single processes by their id.

Executors run the interpreter that the driver names (`PYSPARK_PYTHON`); `make_environment` makes one that has the
project's dependencies, or some of them, and not the project itself.
"""

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import attrs
import pytest

from tests.support.spark_classes import java_options

READY_SECONDS = 60
WORKERS = 2
CORES = 2
MEMORY = "1200m"
EXECUTOR_MEMORY = "512m"
"""Two applications fit beside each other: one that is dying, and the one that is started after it."""

OWN_DISTRIBUTION = "iggy-cloud-sources"


@attrs.frozen(kw_only=True)
class Process:
    """A line of the process table."""

    pid: int
    parent: int
    session: int
    command: str


def processes():
    """Every process there is just now, zombies left out."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, _group, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended meanwhile
            continue
        if state != "Z":
            found.append(Process(pid=int(entry.name), parent=int(parent), session=int(session), command=command))
    return found


def is_connected(pid, port):
    """Whether a process has a connection to a port of this machine."""
    here = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "01" and int(fields[2].partition(":")[2], 16) == port:
            here[f"socket:[{fields[9]}]"] = port
    found = set()
    with contextlib.suppress(OSError):  # it has ended meanwhile
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(str(entry.readlink()))
    return not found.isdisjoint(here)


class SparkCluster:
    """A master and workers at work. `stop` ends all of it; may be called twice.

    Args:
        folder: for logs and work folders.
        workers: how many.
        cores: of each.
        properties: options of Spark's that the daemons must know.
    """

    def __init__(self, folder, *, workers=WORKERS, cores=CORES, properties=None):
        self.folder = folder
        self._properties = "".join(f" -D{name}={value}" for name, value in (properties or {}).items())
        self.workers = workers
        self.cores = cores
        self.url = ""
        self._page = ""
        self._daemons = []

    def start(self):
        """Starts the master, then the workers, and waits until all of them are registered."""
        self._run("master", "master.Master", "--port", "0")
        self.url = self._find("master", r"Starting Spark master at (spark://\S+)")
        self._page = self._find("master", r"MasterWebUI: Bound \S+ to \S+, and started at (http://\S+)")
        for number in range(1, self.workers + 1):
            name = f"worker-{number}"
            options = ["--cores", str(self.cores), "--memory", MEMORY, "--work-dir", str(self.folder / name)]
            self._run(name, "worker.Worker", "--port", "0", *options, self.url)
        self._wait(lambda: self.state()["aliveworkers"] == self.workers, "the workers did not register")
        return self

    def _run(self, name, daemon, *options):
        import pyspark

        home = Path(pyspark.__file__).parent
        # Nothing of this environment may reach executors except through the session that a test makes.
        kept = {key: os.environ[key] for key in ("PATH", "JAVA_HOME", "HOME", "TMPDIR", "LANG") if key in os.environ}
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    str(home / "bin" / "spark-class"),
                    f"org.apache.spark.deploy.{daemon}",
                    *("--host", "127.0.0.1", "--webui-port", "0"),
                    *options,
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
                    "SPARK_DAEMON_MEMORY": "128m",
                    "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
                    "SPARK_DAEMON_JAVA_OPTS": java_options() + self._properties,
                    "SPARK_NO_DAEMONIZE": "1",
                },
            )
        self._daemons.append(process)

    def _log(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _find(self, name, pattern):
        return self._wait(lambda: re.search(pattern, self._log(name)), f"the {name} did not start")[1]

    def _wait(self, check, complaint):
        limit = time.monotonic() + READY_SECONDS
        while not (found := check()):
            dead = [process.args[1] for process in self._daemons if process.poll() is not None]
            if dead or time.monotonic() > limit:
                logs = "\n".join(path.read_text(errors="replace")[-500:] for path in sorted(self.folder.glob("*.log")))
                pytest.fail(f"{complaint}; ended: {dead}\n{logs}")
            time.sleep(0.05)
        return found

    def state(self):
        """What the master says of itself."""
        with urllib.request.urlopen(f"{self._page}/json/", timeout=10) as answer:
            return json.load(answer)

    def processes(self):
        """Everything that the cluster runs: daemons, executors, Python."""
        ours = {process.pid for process in self._daemons}
        return [process for process in processes() if process.session in ours]

    def executors(self, application=""):
        """Process ids of the executors' JVMs, all of them or those of one application."""
        return [one.pid for one in self.processes() if _is_executor(one) and application in one.command]

    def python_workers(self, application=""):
        """Process id -> executor, of the Python workers that executors have, not of their daemons."""
        found = self.processes()
        executors = {one.pid for one in found if _is_executor(one) and application in one.command}
        daemons = {one.pid: one.parent for one in found if one.parent in executors}
        return {one.pid: daemons[one.parent] for one in found if one.parent in daemons}

    def at_work(self, application, port):
        """The same of those that are connected to a port: at work with the server there."""
        return {pid: jvm for pid, jvm in self.python_workers(application).items() if is_connected(pid, port)}

    def kill(self, pids):
        """Kill -9 for each of them; returns those that were still there."""
        killed = []
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        return killed

    def stop(self):
        """Kill -9 for everything of it: there is nothing to save."""
        while left := self.processes():
            self.kill(process.pid for process in left)
            time.sleep(0.01)
        for process in self._daemons:
            process.wait()


def _is_executor(process):
    return "CoarseGrainedExecutorBackend" in process.command


def spark_or_skip():
    """Skips the test where Spark cannot run."""
    if shutil.which("java") is None:
        pytest.skip("no Java: Spark needs one")
    pytest.importorskip("pyspark")


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory):
    """A standalone cluster of two workers."""
    spark_or_skip()
    cluster = SparkCluster(tmp_path_factory.mktemp("spark-cluster"))
    try:
        yield cluster.start()
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def local_spark():
    """A context in this process, which every run of a module's tests takes that names `spark` for its engine.

    A program of its own has its own context, and pays for it: what executors need is imported anew by each of them. Tests
    of what is stored share one; those of a program's own Spark are in test_spark and test_spark_cluster.
    """
    spark_or_skip()
    from framework.config.sections import SparkSection
    from framework.engine.spark.spark_context import spark_context

    with spark_context(SparkSection(master="local[2]"), name="tests") as made:
        yield made


@pytest.fixture
def spark_of_the_engine(request):
    """The same, for tests whose parameter `engine` says that they run on Spark; nothing for the others."""
    engine = request.node.callspec.params.get("engine", {}) if hasattr(request.node, "callspec") else {}
    if engine.get("engine") == "spark":
        request.getfixturevalue("local_spark")


# ---- environments for executors


def make_environment(folder, *, without=()):
    """A second virtual environment, for executors: what the project depends on, and not the project.

    It is filled with links to what is installed here, so nothing is downloaded. pyspark is left out too: executors bring
    their own.

    Args:
        folder: where it is made.
        without: names of distributions to leave out.

    Returns:
        Its interpreter.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    (target,) = folder.glob("lib/python3*/site-packages")
    for name in needed_distributions() - {"pyspark", *without}:
        distribution = importlib.metadata.distribution(name)
        for top in {path.parts[0] for path in distribution.files or () if ".." not in path.parts}:
            source = Path(distribution.locate_file(top))
            if source.exists() and not (target / top).exists() and top != "__pycache__":
                (target / top).symlink_to(source)
    return folder / "bin" / "python"


def needed_distributions():
    """The names of everything that the project's dependencies need, without its extras."""
    from packaging.requirements import Requirement

    found, waiting = set(), [OWN_DISTRIBUTION]
    while waiting:
        for line in importlib.metadata.requires(waiting.pop()) or ():
            requirement = Requirement(line)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            if requirement.name.lower() not in found:
                found.add(requirement.name.lower())
                waiting.append(requirement.name)
    return found


@pytest.fixture(scope="session")
def executor_python(tmp_path_factory):
    """An interpreter that has what the project depends on, and not the project."""
    python = make_environment(tmp_path_factory.mktemp("executors") / "venv")
    seen = [str(python), "-c", "import framework"]
    done = subprocess.run(seen, cwd=python.parent, capture_output=True, text=True, timeout=60)
    assert "No module named 'framework'" in done.stderr, "executors must not see the project, or nothing is proven"
    return python


def spark_sections(cluster, python=None, **conf):
    """The sections of a configuration that runs on the cluster, with executors that are small and quick to start."""
    options = {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": EXECUTOR_MEMORY,
        "spark.cores.max": "2",
        "spark.driver.extraJavaOptions": java_options(),
        "spark.executor.extraJavaOptions": java_options(),
        **conf,
    }
    if python is not None:
        options["spark.pyspark.python"] = str(python)
    return {"runner": {"engine": "spark", "tasks_max": 2}, "spark": {"master": cluster.url}, "spark.conf": options}
