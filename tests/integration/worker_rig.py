"""A worker as its user meets it: a folder of files, a process, and requests over HTTP."""

import contextlib
import http.client
import json
import ssl
from pathlib import Path

import attrs

from framework.testing.servers.ports import free_port
from tests.integration.program_rig import Running, count_messages, read_topic, toml, wait_for_messages, wait_until

QUICK = {
    "framework.runtime.supervisor.FOLDER_SECONDS": 0.2,
    "framework.runtime.supervisor.FIRST_PAUSE_SECONDS": 0.2,
    "framework.runtime.supervisor._TICK_SECONDS": 0.1,
}
"""How often a worker looks at its folder, and how soon it starts a source again; how long it is, tests/unit/runtime checks."""

KEY = "drowssap-of-the-api"
"""The key of the API; no output may show it."""


@attrs.frozen
class Answer:
    """An answer of the API."""

    status: int
    headers: dict
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


def request(port, method, path, body=None, *, key=KEY, headers=(), tls=None):
    """One request on a connection of its own."""
    if tls is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=tls)
    send = {**({"api-key": key} if key is not None else {}), **dict(headers)}
    if body is not None and not isinstance(body, bytes):
        body, send = json.dumps(body).encode(), {"content-type": "application/json", **send}
    try:
        connection.request(method, path, body=body, headers=send)
        answer = connection.getresponse()
        return Answer(answer.status, dict(answer.getheaders()), answer.read())
    finally:
        connection.close()


def trusting(certificate):
    """A context that trusts that certificate, whatever its host."""
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False
    return context


class WorkerRig:
    """A folder with configurations, a worker over it, and what its topics hold."""

    def __init__(self, folder, url, stream):
        self.folder = folder
        self.conf = folder / "conf.d"
        self.conf.mkdir()
        self.state = folder / "state"
        self.url, self.stream = url, stream
        self.port = free_port()
        self.http = {"address": f"127.0.0.1:{self.port}", "api_key": KEY}
        self.inner = {}
        self.running = None

    def sections(self, name, bucket, **changes):
        """The configuration of a source that reads below a prefix of its own name into a topic of that name."""
        store, section = next(iter(bucket.section().items()))
        made = {
            "source": {"name": name},
            store: {**section, "prefix": f"{name}/"},
            "input": {"format": "jsonl"},
            "iggy": {"url": self.url, "stream": self.stream, "topic": name, "partitions": 3, "batch_length": 61},
            "offsets": {"commit_interval": 0.05},
            "discovery": {"poll_interval": 0.1},
            "runner": {"engine": "local"},
            "log": {"format": "plain"},
        }
        for part, options in changes.items():
            made.setdefault(part, {}).update(options)
        return made

    def add(self, name, bucket, *, file="", head="", **changes):
        """Writes the file of a source."""
        path = self.conf / (file or f"{name}.toml")
        path.write_text(head + toml(self.sections(name, bucket, **changes)))
        return path

    def start(self, *arguments, module="s3_source", environment=()):
        own = self.folder / "worker.toml"
        own.write_text(toml({"http": self.http, **self.inner, "log": {"format": "plain"}}))
        command = ["worker", "--config-dir", str(self.conf), "--config", str(own), "--state-dir", str(self.state)]
        self.running = Running(self.folder, module, [*command, *arguments], environment, constants=QUICK)
        return self

    def ready(self):
        """Waits until the API answers."""

        def answers():
            assert self.running.process.poll() is None, self.running.err
            try:
                return self.get("/health", key=None).status == 200
            except ConnectionError:
                return False

        wait_until(answers, 60)
        return self

    def get(self, path, **options):
        return request(self.port, "GET", path, **options)

    def put(self, path, body=None, **options):
        return request(self.port, "PUT", path, body, **options)

    def post(self, path, body=None, **options):
        return request(self.port, "POST", path, body, **options)

    def source(self, key):
        answer = self.get(f"/sources/{key}")
        return answer.json if answer.status == 200 else None

    def wait_for(self, key, status, seconds=90):
        """Waits until a source has a status, and returns it."""
        found = wait_until(lambda: (made := self.source(key)) and made["status"] == status and made, seconds, 0.1)
        assert self.running.process.poll() is None, self.running.err
        return found

    def stats(self, key):
        return next(one for one in self.get("/stats").json["connectors"] if one["key"] == key)

    def pid(self, key):
        """The process of a source: the only child of the worker that names its file."""
        for child in children(self.running.pid):
            with contextlib.suppress(OSError):  # it has just ended
                if f"\0{key}\0".encode() in Path(f"/proc/{child}/cmdline").read_bytes():
                    return child
        return None

    def payloads(self, topic):
        """What a topic holds, sorted."""
        return sorted(message.payload for message in read_topic(self.url, self.stream, topic))

    def count(self, topic):
        return count_messages(self.url, self.stream, topic)

    def wait_for_messages(self, topic, enough, seconds):
        """Waits for `enough(count)` of a topic."""
        wait_for_messages(self.url, self.stream, topic, enough, seconds)

    def stop(self, within=30.0):
        return self.running.stop(within=within)

    def kill(self):
        if self.running is not None:
            self.running.kill()


def children(pid):
    """The child processes of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid):
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
