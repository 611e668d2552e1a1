"""The program as its user meets it: a TOML file, a command line, an exit code, and what the official client finds.

Nothing in here asks the framework what it sent: records are read with the unmodified client, and the ids and headers are
taken apart by hand.
"""

import asyncio
import contextlib
import csv
import gzip
import io
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter, defaultdict
from pathlib import Path

import attrs
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framework.cli.app import run
from framework.testing.faults import FaultProxy
from framework.testing.servers.ports import free_port
from gcs_source.task import GcsSourceTask
from s3_source.task import S3SourceTask
from tests.integration.iggy_rig import connect
from tests.support.forked_tasks import forked_tasks
from tests.support.preloaded import Preloaded
from tests.support.stopwatch import Stopwatch

TASK_CLASSES = {"s3_source": S3SourceTask, "gcs_source": GcsSourceTask}

ROOT = Path(__file__).parents[2]
POLL = 2000
SECRETS = ("test-secret", "iggy:iggy", "drowssap")
"""What no output may ever show: the S3 secret, the Iggy login, the password of the tests that use another one."""

SEED = int(os.environ.get("PROGRAM_TEST_SEED", "20260611"))


def rounds(usual):
    """How often a test of chance is repeated; `PROGRAM_TEST_ROUNDS` makes a long form of the suite."""
    return int(os.environ.get("PROGRAM_TEST_ROUNDS", usual))


LONG = "PROGRAM_TEST_ROUNDS" in os.environ
"""Whether this is the long form, with what takes too much time for every day."""

TASKS = [1, 2] if LONG else [2]
"""Several tasks do all that one does, and more."""


def chance(name):
    """Random numbers of a test's own, the same in every run of one seed."""
    return random.Random(SEED ^ zlib.crc32(name.encode()))


def toml(sections):
    """The text of a configuration. JSON's strings, numbers, booleans and lists are TOML's."""
    lines = []
    for name, options in sections.items():
        lines.append(f"[{name}]")
        lines += [
            f"{key if key.isidentifier() else json.dumps(key)} = {json.dumps(value)}"
            for key, value in options.items()
            if value is not None
        ]
    return "\n".join([*lines, ""])


SLOW = {"iggy": {"batch_length": 61, "linger_time": 0}, "offsets": {"commit_interval": 0.05}}
"""Small requests and frequent positions: more moments at which a kill can strike."""

SERVERS = ["embedded"] + (["real"] if os.environ.get("IGGY_SERVER_BINARY") else [])

NO_JAVA = pytest.mark.skipif(shutil.which("java") is None, reason="no Java: Spark needs one")
ENGINES = [
    pytest.param({"engine": "local"}, id="local"),
    pytest.param({"engine": "local", "tasks_max": 2}, id="processes"),
    pytest.param({"engine": "spark", "tasks_max": 2}, id="spark", marks=NO_JAVA),
]

HANGS_SECONDS = 40.0
"""When a program that was told to stop is taken to hang, however busy the machine is."""


def wait_until(check, seconds=120.0, pause=0.01):
    """Waits for `check()` to be true and returns what it gave."""
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, f"it never became true within {seconds} seconds"
        time.sleep(pause)
    return found


def wait_for_count(program, target, running=None, topic="records", seconds=60.0):
    """Waits until the topic holds so many messages, or the program has ended."""
    wait_for_messages(
        program.url,
        program.stream,
        topic,
        lambda count: count >= target or (running is not None and running.process.poll() is not None),
        seconds,
    )


def wait_for_exactly(program, count, topic="records", seconds=120.0):
    """Waits until the topic holds that number of messages."""
    wait_for_messages(program.url, program.stream, topic, lambda found: found == count, seconds)


def wait_for_messages(url, stream, topic, enough, seconds=120.0, pause=0.01):
    """Waits for `enough(count)` of a topic, over one connection: a new one for each look would cost more than what is tested."""

    async def work(client):
        while not enough(await count_of(client, stream, topic)):  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(pause)

    try:
        with_client(url, work, seconds)
    except (TimeoutError, asyncio.TimeoutError):
        raise AssertionError(f"{topic} never held what it should within {seconds} seconds") from None


def with_limit(running, seconds):
    """Lets a program run for that long, or to its end."""
    deadline = time.monotonic() + seconds
    while running.process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)


CUT_SHORT = "stopped before everything was answered"


@attrs.frozen(kw_only=True)
class Ended:
    """A program that has ended."""

    code: int
    out: str
    err: str
    seconds: float = 0.0
    waited: float = 0.0
    """For how long the machine kept it waiting while it stopped."""

    @property
    def said(self):
        """The last line of stderr: the sentence that tells why."""
        return self.err.strip().rsplit("\n", 1)[-1]

    @property
    def cut_short(self):
        """Whether its limit ended a stop before everything was done, as it may where the machine has no time for it."""
        return self.waited > 1 and CUT_SHORT in self.err

    @property
    def lines(self):
        return [json.loads(line) for line in self.out.splitlines()]

    def no_secrets(self):
        for secret in SECRETS:
            assert secret not in self.out, f"{secret!r} was printed"
            assert secret not in self.err, f"{secret!r} was printed"
        assert "Traceback" not in self.err, self.err
        return self


@attrs.frozen(kw_only=True)
class Message:
    """A stored message, as the official client gives it."""

    partition: int
    offset: int
    id: int
    headers: dict
    payload: bytes

    @property
    def record(self):
        return self.id & (1 << 40) - 1

    @property
    def split_number(self):
        return self.id >> 40 & (1 << 24) - 1

    @property
    def key(self):
        """The key's pieces, put together."""
        key, number = self.headers["key"], 1
        while (piece := self.headers.get(f"key.{number}")) is not None:
            key, number = key + piece, number + 1
        return key


class Running:
    """A program under way in a process of its own; its output goes to files.

    Args:
        folder: for the output.
        module: the program.
        arguments: of its command line.
        environment: besides that of this process.
        fresh: start a Python of its own, for a test of what happens while it loads (`tests.support.preloaded`).
        constants: full name -> value, of time limits that a test would wait out; not with `fresh`.
    """

    def __init__(self, folder, module, arguments, environment=(), *, fresh=False, constants=()):
        number = len(list(folder.glob("*.err")))
        self._out, self._err = folder / f"{number}.out", folder / f"{number}.err"
        environment = {**os.environ, "PYTHONFAULTHANDLER": "1", **dict(environment)}
        self._began = Stopwatch()
        with self._out.open("wb") as out, self._err.open("wb") as err:
            if fresh:
                command = [sys.executable, "-W", "error", "-m", module, *arguments]
                self.process = subprocess.Popen(
                    command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment
                )
            else:
                self.process = Preloaded(
                    module, arguments, environment=environment, stdout=out, stderr=err, constants=constants
                )

    @property
    def pid(self):
        return self.process.pid

    @property
    def err(self):
        return self._err.read_text(errors="replace")

    def wait(self, seconds=180.0):
        code = self.process.wait(seconds)
        took = self._began.seconds
        return Ended(code=code, out=self._out.read_text(errors="replace"), err=self.err, seconds=took)

    def wait_for(self, text, seconds=120.0):
        """Waits until stderr holds a text."""

        def found():
            assert self.process.poll() is None or text in self.err, f"ended with {self.process.returncode}: {self.err}"
            return text in self.err

        wait_until(found, seconds)

    def send(self, number):
        self.process.send_signal(number)

    def stop(self, number=signal.SIGTERM, within=5.0):
        """Sends a signal; the program must end by itself within that many seconds."""
        before = Stopwatch()
        self.send(number)
        try:
            ended = self.wait(HANGS_SECONDS)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGABRT)  # faulthandler then writes where every thread is
            self.process.wait()
            raise AssertionError(f"it did not end: {self.err}") from None
        took, waited = before.seconds, before.waited
        assert took < within, f"took {took:.1f} seconds: {ended.err}"
        return attrs.evolve(ended, waited=waited)

    def kill(self):
        """Kill -9."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def check_saved(ended, again):
    """A stop saved every position: the next start found nothing behind them in the topics."""
    assert ended.cut_short or "were found in the topics" not in again.err, "positions were not saved"


def stopping(running):
    """Holds what calls it up until a program says that it is stopping: it is then surely in the middle of its work."""
    wait_until(lambda: ": stopping" in running.err or running.process.poll() is not None)


def children(pid):
    """The worker processes of a program."""
    found = []
    for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        command = Path(f"/proc/{one}/cmdline").read_bytes()
        if b"spawn_main" in command:
            found.append(int(one))
    return found


class Program:
    """A source's configuration in a file of its own, and ways to run it."""

    def __init__(self, folder, bucket, url, stream, **changes):
        self.folder = folder
        self.bucket = bucket
        self.module = f"{next(iter(bucket.section()))}_source"
        self.url = url
        self.stream = stream
        self.sections = {
            "source": {"name": "orders"},
            **bucket.section(),
            "naming": {},
            "input": {"format": "jsonl"},
            "iggy": {"url": url, "stream": stream, "topic": "records", "partitions": 3},
            "offsets": {},
            "discovery": {"poll_interval": 0.1},
            "runner": {"engine": "local"},
            "errors": {},
            "log": {"format": "plain"},
        }
        self.transforms = ""  # the list [[transforms]], as TOML
        self._started = []
        self.configure(**changes)

    def configure(self, **changes):
        """Changes options, a section at a time; None takes an option out."""
        for name, options in changes.items():
            self.sections.setdefault(name, {}).update(options)
        self.path.write_text(toml(self.sections) + self.transforms)
        return self

    def store(self, **options):
        """Changes options of the store's section."""
        return self.configure(**{next(iter(self.bucket.section())): options})

    @property
    def path(self):
        return self.folder / "source.toml"

    def command(self, arguments):
        """The arguments with the configuration in the right place."""
        at = next((n for n, one in enumerate(arguments) if one.startswith("--")), len(arguments))
        return [*arguments[:at], "--config", str(self.path), *arguments[at:]]

    def run(self, *arguments, config=True):
        """In this process: for what needs neither signals nor a second process."""
        arguments = self.command(arguments) if config else arguments
        out, err = io.TextIOWrapper(io.BytesIO(), write_through=True), io.StringIO()
        began, interval = Stopwatch(), sys.getswitchinterval()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), forked_tasks():
                code = run(self.module, TASK_CLASSES[self.module], list(arguments))
        finally:
            sys.setswitchinterval(interval)
        return Ended(code=code, out=out.buffer.getvalue().decode(), err=err.getvalue(), seconds=began.seconds)

    def once(self):
        """Everything there is; it must go well."""
        ended = self.run("--once")
        assert ended.code == 0, ended.err
        return ended

    def start(self, *arguments, environment=(), module=None, fresh=False, constants=()):
        """In a process of its own (`Running`)."""
        arguments = self.command(arguments)
        running = Running(self.folder, module or self.module, arguments, environment, fresh=fresh, constants=constants)
        self._started.append(running)
        return running

    def messages(self, topic="records", url=None):
        """Everything the topic holds."""
        return read_topic(url or self.url, self.stream, topic)

    def count(self, topic="records"):
        """How many messages the topic holds; 0 while there is none."""
        return count_messages(self.url, self.stream, topic)

    def close(self):
        for running in self._started:
            running.kill()


def with_client(url, work, seconds=60):
    """Runs `work(client)` to its end, within a minute or so."""

    async def connected():
        return await work(await connect(url))

    return asyncio.run(asyncio.wait_for(connected(), seconds))


def read_topic(url, stream, topic):
    """Every message of a topic, partition after partition."""
    from apache_iggy import Consumer, PollingStrategy

    async def work(client):
        found = await client.get_topic(stream, topic)
        if found is None:
            return []
        messages = []
        for partition in range(found.partitions_count):
            offset = 0
            while True:
                batch = await client.poll_messages(
                    stream,
                    topic,
                    consumer=Consumer.Single(1),
                    polling_strategy=PollingStrategy.Offset(offset),
                    count=POLL,
                    auto_commit=False,
                    partition_id=partition,
                )
                if not batch:
                    break
                messages += [
                    Message(
                        partition=partition,
                        offset=one.offset(),
                        id=one.id(),
                        headers=headers.to_scalar_dict() if (headers := one.user_headers()) else {},
                        payload=bytes(one.payload()),
                    )
                    for one in batch
                ]
                offset = batch[-1].offset() + 1
        return messages

    return with_client(url, work)


def count_messages(url, stream, topic):
    return with_client(url, lambda client: count_of(client, stream, topic))


async def count_of(client, stream, topic):
    found = await client.get_topic(stream, topic)
    return 0 if found is None else found.messages_count


def by_key(messages):
    """Key -> its messages, in the order of their partition."""
    found = defaultdict(list)
    for message in messages:
        found[message.key].append(message)
    return dict(found)


def check_exactly(messages, expected, *, same=lambda payload: payload):
    """Each record of each object is there once, in order, in one partition, with its number.

    Args:
        messages: what the topic holds.
        expected: key -> payloads, record 1 first; or key -> {record number: payload} when numbers have holes.
        same: brings a payload into the form of the expected ones.
    """
    found = by_key(messages)
    assert sorted(found) == sorted(key for key, payloads in expected.items() if payloads)
    for key, payloads in expected.items():
        wanted = payloads if isinstance(payloads, dict) else dict(enumerate(payloads, 1))
        ours = found.get(key, [])
        numbers = [message.record for message in ours]
        assert numbers == list(wanted), f"{key}: {difference(numbers, list(wanted))}"
        for message in ours:
            assert same(message.payload) == wanted[message.record], f"{key}, record {message.record}"
        assert len({message.partition for message in ours}) <= 1, f"{key} lies in several partitions"
        assert len({message.id >> 40 for message in ours}) <= 1, f"{key} has several ids"
    assert len({message.id for message in messages}) == len(messages), "an id is there twice"


def difference(numbers, wanted):
    """Where two lists of record numbers differ, in few words."""
    missing = sorted(set(wanted) - set(numbers))
    twice = sorted({number for number in numbers if numbers.count(number) > 1}) if len(numbers) < 10_000 else ()
    unknown = sorted(set(numbers) - set(wanted))
    return (
        f"{len(numbers)} records of {len(wanted)}; missing {missing[:5]} ({len(missing)}), "
        f"twice {list(twice)[:5]} ({len(twice)}), unknown {unknown[:5]}, in order: {numbers == sorted(numbers)}"
    )


class ServerEndedError(AssertionError):
    """A server ended before it let anybody in."""


class OwnServer:
    """An Iggy server of a test's own, which it may kill: the embedded one, or the binary that IGGY_SERVER_BINARY names."""

    def __init__(self, folder, kind="embedded"):
        self.folder = folder
        self.folder.mkdir()
        self.port = free_port()
        self.url = f"iggy://iggy:iggy@127.0.0.1:{self.port}"
        self._kind = kind
        self._ports = {"QUIC": free_port(), "WEBSOCKET": free_port()}
        self._process = None
        self._log = folder.parent / f"{folder.name}.log"

    def start(self):
        """Starts it, and waits until it lets a client in."""
        with self._log.open("ab") as log:
            if self._kind == "embedded":
                arguments = [str(self.folder), "--port", str(self.port)]
                environment = {**os.environ, "IGGY_EMBEDDED_PASSWORD": "iggy"}
                self._process = Preloaded(
                    "framework.iggy.embedded", arguments, environment=environment, stdout=log, stderr=log
                )
            else:
                command = [os.environ["IGGY_SERVER_BINARY"], "--with-default-root-credentials"]
                listening = {f"IGGY_{name}_ADDRESS": f"127.0.0.1:{port}" for name, port in self._ports.items()}
                listening |= {"IGGY_HTTP_ENABLED": "false", "IGGY_TCP_ADDRESS": f"127.0.0.1:{self.port}"}
                self._process = subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env={**os.environ, **listening},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )

        def answers():
            if self._process.poll() is not None:
                raise ServerEndedError(self._log.read_text()[-1000:])
            try:
                with_client(self.url, lambda client: client.ping())
            except (RuntimeError, TimeoutError, asyncio.TimeoutError):
                return False
            return True

        try:
            wait_until(answers, 60, 0.02)
        except BaseException:
            self.kill()  # nobody else knows it yet
            raise
        return self

    def url_of(self, transport):
        """Its address over TCP, or, of the real one, over QUIC or WebSocket; its certificate is its own."""
        if transport == "quic":
            return f"iggy+quic://iggy:iggy@127.0.0.1:{self._ports['QUIC']}?tls_validate_certificate=false"
        if transport == "websocket":
            return f"iggy+ws://iggy:iggy@127.0.0.1:{self._ports['WEBSOCKET']}"
        return self.url

    @property
    def pid(self):
        """Of the server."""
        return self._process.pid

    def send(self, number):
        self._process.send_signal(number)

    def kill(self):
        """Kill -9."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        if self._process is not None:
            self._process.wait()


class Tarpit:
    """Takes connections and never says a word."""

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.touched = threading.Event()
        self._taken = []
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self):
        with contextlib.suppress(OSError):
            while True:
                self._taken.append(self._listener.accept()[0])
                self.touched.set()

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for one in self._taken:
            one.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def json_lines(prefix, count, width=20):
    """`count` lines that differ, as payloads."""
    return [
        b'{"of":"%s","n":%d,"pad":"%s"}' % (prefix.encode(), n, b"x" * (n * 7 % width)) for n in range(1, count + 1)
    ]


def jsonl(payloads):
    return b"\n".join(payloads) + b"\n"


class HookProxy(FaultProxy):
    """Forwards, and calls `hook(path)` before the n-th request for each object whose path a pattern finds."""

    def __init__(self, target, pattern="", hook=None, *, at=1):
        self._hooks = []
        if hook is not None:
            self.hook(pattern, hook, at=at)
        super().__init__(target)

    def hook(self, pattern, hook, *, at=1):
        """Another one; counting begins here."""
        self._hooks.append((re.compile(pattern), hook, at, Counter()))

    def unhook(self):
        """None any more."""
        self._hooks.clear()

    def note(self, request):
        rule = super().note(request)
        if request.method == "GET" and is_read(request.path):
            for pattern, hook, at, asked in list(self._hooks):
                place = request.path.partition("?")[0]  # the query of GCS has the version in it
                if pattern.search(place):
                    asked[place] += 1
                    if asked[place] == at:
                        hook(request.path)
        return rule


def opened(proxy):
    """The paths of the objects of which bytes were asked for."""
    return [one.path for one in proxy.requests if one.method == "GET" and is_read(one.path)]


def place_of(key):
    """A pattern for a key in a path: GCS wants its slashes quoted."""
    return "(/|%2F)".join(map(re.escape, f"/{key}".split("/")))


def is_read(path):
    """Whether a GET asks for bytes of an object; a listing and a lookup do not."""
    return "list-type" not in path and not path.startswith("/storage/v1/")


ROWS = {"type": "record", "name": "Row", "fields": [{"name": "n", "type": "long"}, {"name": "text", "type": "string"}]}


def rows(name, count):
    """Rows that differ, some with what formats stumble over."""
    return [
        {"n": n, "text": f"{name} {n}" + ("\n" if n % 11 == 0 else "") + ', "' * (n % 3)} for n in range(1, count + 1)
    ]


def encoded(form, values, schema=ROWS):
    """An object of that format, made with the usual libraries, in blocks, chunks or groups of an odd size."""
    out = io.BytesIO()
    if form == "jsonl":
        out.write(b"".join(json.dumps(row).encode() + b"\n" for row in values))
    elif form == "jsonl.gz":
        out.write(gzip.compress(encoded("jsonl", values[:311]), 1) + gzip.compress(encoded("jsonl", values[311:]), 1))
    elif form == "json":
        out.write(json.dumps(values).encode())
    elif form == "csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, list(values[0]))
        writer.writeheader()
        writer.writerows(values)
        out.write(text.getvalue().encode())
    elif form == "avro":
        fastavro.writer(out, schema, values, codec="deflate", sync_interval=1777)
    elif form == "parquet":
        pq.write_table(pa.Table.from_pylist(values), out, row_group_size=173)
    return out.getvalue()


def decoded(form, values):
    """The records that the program makes of them."""
    return [{"n": str(row["n"]), "text": row["text"]} for row in values] if form == "csv" else values


FORMS = ("jsonl", "jsonl.gz", "csv", "avro", "parquet", "json")


def fill(bucket, objects, *, forms=FORMS, least=400, more=600):
    """Puts objects of all formats into a bucket; returns key -> records."""
    expected = {}
    for number in range(objects):
        form = forms[number % len(forms)]
        values = rows(f"o{number}", least + number * 97 % more)
        key = f"in/{number:03d}.{form}"
        bucket.put(key, encoded(form, values))
        expected[key] = decoded(form, values)
    return expected
