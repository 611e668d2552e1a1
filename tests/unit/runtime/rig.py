"""A supervisor over a folder, with processes and a clock that the test moves."""

import attrs

from framework.config.loading import load as load_file
from framework.engine.run_statistics import RunStatistics
from framework.runtime.configuration import read_configuration
from framework.runtime.folder import ConfigFolder
from framework.runtime.source_program import Kinds
from framework.runtime.state import StateFolder
from framework.runtime.supervisor import FOLDER_SECONDS, Supervisor, UnknownVersionError
from s3_source.task import S3SourceTask

TEXT = """
[source]
name = "{name}"
[s3]
bucket = "lake"
[input]
format = "jsonl"
[iggy]
url = "iggy://iggy:iggy@localhost:8090"
stream = "lake"
topic = "{name}"
"""


def text(name="orders", head=""):
    return head + TEXT.format(name=name)


def load(task_class, path, layers):
    return load_file(path, task_class.config_class, layers=layers)


KINDS = Kinds("s3_source", S3SourceTask)


def read(path, **options):
    return read_configuration(path, KINDS, load, **options)


@attrs.define
class FakeChild:
    """A process that ends when the test says so."""

    configuration: object
    pid: int
    code: int | None = None
    asked: int = 0
    killed: bool = False
    closed: bool = False
    progress: RunStatistics | None = None
    error: str = ""
    obeys: bool = True
    dies: bool = True

    def poll(self):
        return self.code

    def stop(self):
        self.asked += 1
        if self.obeys:
            self.code = 0

    def kill(self):
        self.killed = True
        if self.dies:
            self.code = -9

    def close(self):
        self.closed = True

    def runs(self, **figures):
        self.progress = RunStatistics(state="sending", **figures)


class Rig:
    """A supervisor, its fake processes, and time."""

    def __init__(self, folder, *, single=False):
        self.conf = folder / "conf.d"
        self.conf.mkdir(exist_ok=True)
        self.state_path = folder / "state"
        self.now = 1000.0
        self.children = []
        self.refuses = None
        self.single = single
        self.state = None
        self.begin()

    def begin(self):
        """A new worker over the same folders."""
        if self.state is not None:
            self.state.__exit__(None, None, None)
        self.state = StateFolder(self.state_path).__enter__()
        path = self.conf / "orders.toml" if self.single else self.conf
        self.supervisor = Supervisor(
            ConfigFolder(path, read),
            self.state,
            self._start,
            self._version,
            single=self.single,
            clock=lambda: self.now,
        )

    def _start(self, configuration, changed):
        if self.refuses is not None:
            raise self.refuses
        assert callable(changed)
        self.children.append(FakeChild(configuration, 100 + len(self.children)))
        return self.children[-1]

    def _version(self, key, version):
        path = self.state.versions(key).get(version)
        if path is None:
            raise UnknownVersionError(key, version)
        return read(path, key=key)

    def write(self, name="orders", *, file="", head="", content=None):
        path = self.conf / (file or f"{name}.toml")
        path.write_text(text(name, head) if content is None else content)
        return path

    def tick(self, seconds=0.0):
        """Moves time, and lets the supervisor do what is due."""
        self.now += seconds
        return self.supervisor.tick()

    def look(self):
        """Two looks at the folder: then a change counts."""
        self.tick(FOLDER_SECONDS)
        self.tick(FOLDER_SECONDS)
        return self.tick()

    def source(self, key="orders"):
        with self.supervisor.source(key) as source:
            return source

    def keys(self):
        with self.supervisor.locked() as sources:
            return [source.key for source in sources]

    def close(self):
        self.state.__exit__(None, None, None)
