"""Stores that speak HTTP/2: small answers share connections, large ones have one each, and what breaks is told as before."""

import asyncio
import contextlib
import threading

import pytest

from framework.storage.http.errors import HttpError, HttpReadTimeoutError
from framework.storage.http.loop import MULTIPLEXED_BYTES, HttpLoop
from framework.storage.http.transfer import HttpOptions
from tests.support.certificates import self_signed


class Http2Store:
    """A real server of both versions; answers `/NUMBER` with so many bytes, and breaks `/cut` off in its body.

    It answers nothing to the connections in `silent`.
    """

    def __init__(self, folder):
        self.versions = []
        self.clients = set()
        self.silent = set()
        self.endpoint = ""
        self._pem, both = self_signed(folder)
        self._both = both
        self._ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),))
        self._thread.start()
        assert self._ready.wait(30)

    @property
    def ca_file(self):
        return str(self._pem)

    async def _serve(self):
        from hypercorn.asyncio import serve
        from hypercorn.config import Config

        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        config = Config()
        config.bind = ["127.0.0.1:0"]
        config.certfile = config.keyfile = str(self._both)
        config.accesslog = config.errorlog = None
        config.graceful_timeout = 0.1
        sockets = config.create_sockets()
        config.create_sockets = lambda: sockets
        sockets.secure_sockets[0].listen()  # else the first requests would be refused
        self.endpoint = f"https://127.0.0.1:{sockets.secure_sockets[0].getsockname()[1]}"
        self._ready.set()
        await serve(self._answer, config, shutdown_trigger=self._ended.wait)

    async def _answer(self, scope, receive, send):
        if scope["type"] != "http":
            raise NotImplementedError
        self.versions.append(scope["http_version"])
        self.clients.add(scope["client"])
        if scope["client"] in self.silent:
            await self._ended.wait()
        what = scope["path"].strip("/")
        size = int(what) if what.isdecimal() else 1000
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
        if what == "cut":
            await send({"type": "http.response.body", "body": b"x" * 10, "more_body": True})
            raise RuntimeError("cut")
        await send({"type": "http.response.body", "body": b"x" * size})

    def close(self):
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(30)


@pytest.fixture
def store(tmp_path):
    server = Http2Store(tmp_path)
    yield server
    server.close()


@pytest.fixture
def loop(store):
    made = HttpLoop(HttpOptions(connect_seconds=5.0, read_seconds=30.0, max_connections=64, ca_file=store.ca_file))
    yield made
    made.close()


def test_small_answers_share_a_connection(store, loop):
    assert loop.get(f"{store.endpoint}/7", [], size=7).read_all() == b"x" * 7
    answers = [loop.get(f"{store.endpoint}/{size}", [], size=size) for size in range(1, 51)]
    assert [len(answer.read_all()) for answer in answers] == list(range(1, 51))
    assert store.versions == ["2"] * 51
    assert len(store.clients) == 1


def test_large_answers_and_those_of_unknown_size_have_one_each(store, loop):
    """libcurl buffers megabytes of a paused answer over HTTP/2, beside the memory that its reader may take."""
    for size, told in [(7, 7), (MULTIPLEXED_BYTES, MULTIPLEXED_BYTES), (MULTIPLEXED_BYTES + 1,) * 2, (9, None), (7, 7)]:
        assert len(loop.get(f"{store.endpoint}/{size}", [], size=told).read_all()) == size
    assert store.versions == ["2", "2", "1.1", "1.1", "2"]
    assert len(store.clients) == 2


def test_an_answer_that_breaks_off_is_told_and_the_next_arrives(store, loop):
    with pytest.raises(HttpError):
        loop.get(f"{store.endpoint}/cut", [], size=1000).read_all()
    assert loop.get(f"{store.endpoint}/7", [], size=7).read_all() == b"x" * 7
    assert store.versions == ["2", "2"]


def test_a_shared_connection_that_fell_silent_is_not_used_again(store):
    """A load balancer forgets a connection: nothing comes on it any more, and nothing says so."""
    options = HttpOptions(connect_seconds=5.0, read_seconds=0.5, max_connections=64, ca_file=store.ca_file)
    with contextlib.closing(HttpLoop(options)) as loop:
        assert loop.get(f"{store.endpoint}/7", [], size=7).read_all() == b"x" * 7
        store.silent |= store.clients
        waiting = [loop.get(f"{store.endpoint}/{size}", [], size=size) for size in (8, 9)]
        for answer in waiting:
            with pytest.raises(HttpError):
                answer.read_all()
        assert isinstance(waiting[0].failure, HttpReadTimeoutError)
        assert loop.get(f"{store.endpoint}/10", [], size=10).read_all() == b"x" * 10
    assert store.versions == ["2"] * 4
    assert len(store.clients) == 2
