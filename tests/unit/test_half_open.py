"""What fails half way leaves nothing open: each test breaks the step behind the one that opened something."""

import errno
import fcntl
import io
import os
import socket
import subprocess
import sys
import threading
import urllib.error
from http.client import BadStatusLine
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from framework.engine.process_group import ProcessGroup, _TaskProcess
from framework.engine.reporter import Reporter
from framework.engine.spark import packages, range_batch
from framework.engine.spark.driver import SparkGroup
from framework.engine.spark.stop_channel import StopChannel, held
from framework.engine.task_process import LeaderPipe
from framework.errors import ConfigError, FatalError
from framework.iggy.embedded import launcher as embedded
from framework.iggy.embedded.launcher import EmbeddedServer
from framework.iggy.embedded.service import Service
from framework.iggy.offset_log.state import LogState
from framework.offsets.manager import OffsetManager
from framework.task import SourceContext, iterator_of
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.fakes.memory_store import MemoryStore
from framework.testing.faults import FaultProxy
from framework.testing.options import source_config
from framework.testing.servers import fake_gcs
from transformers import LocalFileInput


class HalfTask(MemorySourceTask):
    """Opens a store, and then cannot make its iterator."""

    made: ClassVar = []

    def __init__(self):
        super().__init__()
        self.made.append(self)

    def get_iterator(self, context):
        raise ConfigError("no such list of keys")


@pytest.fixture(autouse=True)
def made():
    HalfTask.made.clear()
    return HalfTask.made


SESSION = SimpleNamespace(
    connection=SimpleNamespace(address=None),
    config=source_config(),
    log=SimpleNamespace(next_offset=0),
    state=LogState(source="kit"),
    offsets=OffsetManager(),
    epoch=SimpleNamespace(number=1),
    known_partitions=set,
    open_renumbered_partitions=lambda numbering_options: None,
    skipped_lately=list,
)

CONTEXT = SimpleNamespace(
    getConf=lambda: SimpleNamespace(get=lambda name, default=None: "127.0.0.1"), defaultParallelism=2
)


def run(group):
    group.run(threading.Event(), Reporter(None, skipped_per_hour=100))


# ---- tasks


def test_a_task_that_cannot_make_its_iterator_is_closed(made):
    with pytest.raises(ConfigError), iterator_of(HalfTask, SourceContext(config=source_config())):
        pytest.fail("there is none")
    assert made[0].closes == 1


def test_so_is_the_one_that_lists_for_several_processes(made):
    with pytest.raises(ConfigError):
        run(ProcessGroup(HalfTask, source_config(tasks_max=2), SESSION, once=True))
    assert [one.closes for one in made] == [1]


def test_so_is_the_one_that_lists_for_spark_and_the_line_with_it(made):
    group = SparkGroup(HalfTask, source_config(engine="spark"), SESSION, lambda: None, once=True)
    with pytest.raises(ConfigError):
        run(group)
    assert [one.closes for one in made] == [1]
    assert group._stop_channel is None  # it is opened with the first job


def test_so_is_the_one_that_lists_on_an_executor(made):
    batch = range_batch.RangeBatch(task_class=HalfTask, config=source_config(), prefix="", tasks=())
    (listed,) = range_batch.list_batch(batch)
    assert isinstance(listed.failure, ConfigError)
    assert [one.closes for one in made] == [1]


# ---- processes


def test_a_process_that_cannot_be_started_leaves_no_pipe(monkeypatch):
    ends = []

    class Context:
        @staticmethod
        def Pipe():  # noqa: N802
            ends.extend(SimpleNamespace(closed=0) for _ in range(2))
            for one in ends:
                one.close = lambda one=one: setattr(one, "closed", one.closed + 1)
            return ends

        @staticmethod
        def Process(**_):  # noqa: N802
            def start():
                raise TypeError("cannot pickle it")

            return SimpleNamespace(start=start)

    monkeypatch.setattr("framework.engine.process_group.SpawnContext", lambda: Context)
    with pytest.raises(TypeError, match="cannot pickle"):
        run(ProcessGroup(MemorySourceTask, source_config(tasks_max=2), SESSION, once=True))
    assert [one.closed for one in ends] == [1, 1]


def test_a_message_that_cannot_be_taken_is_a_failure_and_no_wait_for_ever(caplog):
    """Nobody reads the pipe any more: the worker would wait at its end, the leader for what it was to tell."""

    def recv():
        raise ImportError("no module of that name here")

    group = ProcessGroup(MemorySourceTask, source_config(tasks_max=2), SESSION, once=True)
    worker = _TaskProcess(process=SimpleNamespace(name="task-0", pid=1), pipe=SimpleNamespace(recv=recv))
    group._listen(worker, None)
    assert isinstance(group._failure, FatalError)
    assert "no module of that name" in str(group._failure)
    assert "could not be taken" in caplog.text


def test_a_worker_whose_collector_writes_to_the_log_while_it_tells_something_does_not_wait_for_itself():
    told = []

    def send(message):
        if not told:
            leader.send("said", "never retrieved")  # a finalizer runs wherever something is made
        told.append(message)

    leader = LeaderPipe(SimpleNamespace(send=send))
    in_time(lambda: leader.send("figures", 1))
    assert told == [("figures", 1), ("said", "never retrieved")]


def test_a_stream_that_nobody_closed_is_ended_in_the_middle_of_a_call_of_its_limiter():
    """The collector may do it wherever something is made, also while that lock is held."""
    store = MemoryStore()
    store.put("a", b"1\n")
    iterator = MemorySourceTask(store).get_iterator(SourceContext(config=source_config()))
    limiter, kept = iterator.limiter, [iterator.get_native_item_stream(None)]
    assert next(kept[0]).key == "a"

    def collect():
        with limiter._lock:
            kept.clear()

    in_time(collect)


def in_time(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for itself"


# ---- Spark


def test_a_format_that_is_not_there_opens_no_line(monkeypatch):
    opened = []
    monkeypatch.setattr(packages, "ship_packages", lambda _: None)
    monkeypatch.setattr(packages, "needed_modules", lambda *_: fail(ConfigError("no such format")))
    monkeypatch.setattr(StopChannel, "of", lambda _: opened.append(StopChannel("127.0.0.1", "127.0.0.1")) or opened[0])
    with pytest.raises(ConfigError):
        packages.require_packages(CONTEXT, MemorySourceTask, source_config())
    assert all(one.socket.fileno() == -1 for one in opened)


def test_a_line_that_cannot_be_kept_alive_is_closed(monkeypatch):
    line = Socket(setsockopt=lambda *_: fail(OSError("not on this system")))
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: line)
    with pytest.raises(OSError, match="not on this system"), held(("127.0.0.1", 1, "t"), lambda: None):
        pytest.fail("there is none")
    assert line.closed


class Socket:
    def __init__(self, **calls):
        self.closed = False
        self.__dict__.update(calls)

    def settimeout(self, seconds):
        pass

    def sendall(self, data):
        pass

    def close(self):
        self.closed = True


def fail(error):
    raise error


# ---- the embedded server


def service_over(folder):
    return Service(folder, username="iggy", password="iggy")


@pytest.mark.parametrize(("folder", "host"), [("data", "192.0.2.1"), ("file/data", "127.0.0.1")])
def test_a_server_that_cannot_begin_leaves_no_socket(tmp_path, folder, host):
    (tmp_path / "file").touch()
    service = service_over(tmp_path / folder)
    with pytest.raises((ValueError, OSError)):
        service.run(host, 0)
    assert (service._wake_read.fileno(), service._wake_write.fileno()) == (-1, -1)


def test_a_folder_that_cannot_be_locked_leaves_no_file_open(tmp_path, monkeypatch):
    locked = []

    def flock(fd, _):
        locked.append(fd)
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="no locks here"):
        service_over(tmp_path).run("127.0.0.1", 0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(locked[0])


def test_a_client_that_was_gone_when_it_was_accepted_leaves_no_socket(tmp_path, monkeypatch):
    monkeypatch.setattr("framework.iggy.embedded.service._GRACE_SECONDS", 0)
    peer = Socket(getpeername=lambda: fail(OSError(errno.ENOTCONN, "not connected")))
    service = service_over(tmp_path)
    service._accept(SimpleNamespace(accept=lambda: (peer, None)))
    service.close()
    assert peer.closed


def test_a_start_that_is_interrupted_leaves_no_server(tmp_path, monkeypatch):
    children, popen = [], subprocess.Popen

    def start(_command, **options):
        children.append(popen([sys.executable, "-c", "import sys; sys.stdin.read()"], **options))
        return children[0]

    monkeypatch.setattr(embedded.subprocess, "Popen", start)
    monkeypatch.setattr(embedded, "_readable", lambda *_: fail(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        EmbeddedServer.start(tmp_path)
    (child,) = children
    left = child.returncode is None or not child.stdin.closed or not child.stdout.closed
    with child:
        child.kill()
    assert not left


def test_a_join_that_is_interrupted_leaves_no_connection(tmp_path, monkeypatch):
    lease = Socket(recv=lambda *_: fail(KeyboardInterrupt()))
    monkeypatch.setattr(EmbeddedServer, "_address", lambda _: embedded._Address(1, 2, "127.0.0.1", "iggy", "iggy"))
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: lease)
    with pytest.raises(KeyboardInterrupt):
        EmbeddedServer.start(tmp_path)
    assert lease.closed


# ---- files


def test_a_file_that_cannot_be_looked_at_is_not_left_open(tmp_path, monkeypatch):
    opened, whole = [], Path.open
    (tmp_path / "a").write_bytes(b"1")
    source = LocalFileInput(tmp_path / "a")
    monkeypatch.setattr(Path, "open", lambda self, mode: opened.append(whole(self, mode)) or opened[-1])
    monkeypatch.setattr(
        "transformers.local_inputs.os", SimpleNamespace(fstat=lambda _: fail(OSError(errno.ESTALE, "stale")))
    )
    with pytest.raises(OSError, match="stale"):
        source.open()
    assert opened[0].closed


# ---- what tests are made with


def test_a_gcs_server_that_is_not_waited_for_to_the_end_is_ended(monkeypatch):
    children, popen = [], subprocess.Popen

    def start(_command, **options):
        children.append(popen([sys.executable, "-c", "import sys, time; time.sleep(600)"], **options))
        return children[0]

    monkeypatch.setattr(fake_gcs, "fake_gcs_binary", lambda: "fake-gcs-server")
    monkeypatch.setattr(fake_gcs.subprocess, "Popen", start)
    monkeypatch.setattr(fake_gcs, "_answers", lambda _: fail(BadStatusLine("another server has its port")))
    with pytest.raises(BadStatusLine):
        fake_gcs.FakeGcs.start()
    left = children[0].returncode is None
    with children[0] as child:
        child.kill()
    assert not left


def test_a_refusal_of_a_server_that_is_not_ready_is_closed(monkeypatch):
    body = io.BytesIO()
    error = urllib.error.HTTPError("http://127.0.0.1", 503, "not yet", None, body)
    monkeypatch.setattr(fake_gcs.urllib.request, "urlopen", lambda *_, **__: fail(error))
    assert not fake_gcs._answers("http://127.0.0.1")
    assert body.closed


def test_a_connection_that_comes_in_while_a_proxy_is_closed_is_ended():
    """`close` waits for its thread, which would wait for a request."""
    proxy = FaultProxy("http://127.0.0.1:9").start()
    proxy.close()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(0)
        proxy.track(ours, connected=True)
        assert theirs.recv(1) == b""
