"""The loop of all GETs: hundreds at once, paused and resumed, retried, ended, on keys of any form; no thread is left."""

import contextlib
import errno
import gc
import os
import resource
import socket
import ssl
import threading
import time
from collections import Counter

import pycurl
import pytest

from framework.errors import FatalError, StoreUnavailableError, TaskClosedError
from framework.model.objects import NativeObject
from framework.storage.http import answer as answer_module
from framework.storage.http import loop as loop_module
from framework.storage.http import transfer as transfer_module
from framework.storage.http.answer import WINDOW_BYTES, HttpAnswer
from framework.storage.http.body import HttpStream
from framework.storage.http.errors import (
    MAX_REFUSAL_BYTES,
    HttpConnectError,
    HttpCutError,
    HttpError,
    HttpProxyError,
    HttpReadTimeoutError,
    HttpTlsError,
)
from framework.storage.http.http_store import OK, ObjectGet
from framework.storage.http.loop import HttpLoop
from framework.storage.http.read_room import FetchBudget, StreamRoom
from framework.storage.http.transfer import BUFFER_BYTES, HttpOptions
from framework.storage.prefetch import FetchedInput, Prefetcher
from framework.storage.resuming_stream import StoreInput
from framework.storage.retry import RetryPolicy
from framework.store import ListPage, ObjectStore
from tests.support.certificates import self_signed
from tests.support.stopwatch import Stopwatch


class Answering:
    """Answers each request with what `answer(path, number of times it was asked for)` gives: bytes, in parts.

    A part may be an event, which is waited for; None ends the connection.
    """

    def __init__(self, answer, tls=None):
        self.answer = answer
        self.tls = tls
        self.asked = Counter()
        self.open_now = self.most_open = self.connections = 0
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.sockets = set()
        self.threads = [threading.Thread(target=self.accept, daemon=True)]
        self.threads[0].start()

    @property
    def endpoint(self):
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.listener.getsockname()[1]}"

    def accept(self):
        while True:
            try:
                one, _ = self.listener.accept()
            except OSError:
                return
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what is sent is there
            with self.lock:
                self.connections += 1
                self.sockets.add(one)
                thread = threading.Thread(target=self.serve, args=(one,), daemon=True)
                self.threads.append(thread)
            thread.start()

    def serve(self, one):
        with self.tls.wrap_socket(one, server_side=True) if self.tls else one as connection:
            file = connection.makefile("rb")
            with file:
                try:
                    while line := file.readline():
                        while file.readline().strip():
                            pass
                        path = line.split()[1].decode()
                        with self.lock:
                            self.asked[path] += 1
                            number = self.asked[path]
                            self.open_now += 1
                            self.most_open = max(self.most_open, self.open_now)
                        try:
                            for part in self.answer(path, number):
                                if part is None:
                                    return
                                if isinstance(part, threading.Event):
                                    part.wait(60)
                                else:
                                    connection.sendall(part)
                        finally:
                            with self.lock:
                                self.open_now -= 1
                except OSError:
                    return

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        with self.lock:
            for one in self.sockets:
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue
        for thread in self.threads:
            thread.join(30)


def ok(body, head=b""):
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s" % (len(body), head, body)


def refused(status, head=b""):
    return b"HTTP/1.1 %d No\r\nContent-Length: 4\r\n%s\r\nbusy" % (status, head)


@pytest.fixture
def serving():
    made = []

    def make(answer, **options):
        server = Answering(answer)
        loop = HttpLoop(HttpOptions(**{"connect_seconds": 5.0, "read_seconds": 30.0, "max_connections": 64, **options}))
        made.extend((loop, server))
        return server, loop

    yield make
    for one in made:
        one.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "http"]


@pytest.mark.parametrize(
    "proxy", ["http://user:Pr0xy/Secret@127.0.0.1:1", "http://user:Pr0xy Secret@127.0.0.1:1", "http://Pr0xySecret@h:x"]
)
def test_no_message_shows_the_login_of_a_proxy(serving, proxy):
    """libcurl repeats an address that it does not understand."""
    server, loop = serving(lambda *_: None, proxy=proxy)
    with pytest.raises(HttpProxyError, match=r"'\*\*\*'") as caught:
        _ = loop.get(server.endpoint + "/key", []).status
    assert "Secret" not in str(caught.value)
    assert "Pr0xy" not in str(caught.value)


class Store(ObjectStore):
    """Objects of a server, over a loop."""

    scheme = "test"
    bucket = "b"
    believed = True

    def __init__(self, server, loop):
        self.server, self.loop = server, loop
        self.failures = []

    def list_page(self, *, prefix="", after="", continuation=None, page_size=1000):
        return ListPage(objects=[])

    def begin(self, native, start, end, *, room, retry):
        get = ObjectGet(self, native, start, native.size if end is None else end)
        get.send(self.loop, self.server.endpoint + native.key, [], room=room, retry=retry)
        return get

    def open(self, native, start=0, end=None):
        get = ObjectGet(self, native, start, native.size if end is None else end)
        get.send(self.loop, f"{self.server.endpoint}{native.key}?from={start}", [])
        return get.result()

    def refusal(self, get, answer):
        error = StoreUnavailableError(f"{answer.status}: {answer.wait_refusal()!r}")
        if "retry-after" in answer.headers:
            error.retry_after_seconds = float(answer.headers["retry-after"])
        return error

    def failure(self, error, native):
        self.failures.append(error)
        if isinstance(error, TaskClosedError):
            return error
        return StoreUnavailableError(f"{type(error).__name__}: {error}")

    def is_listed(self, native, headers, data):
        return self.believed

    def stream_of(self, get, answer):
        assert answer.status in OK
        return HttpStream(answer, get.stop - get.start, native=get.native, translate=self.failure)

    def close(self):
        self.loop.close()


def native(key, size):
    return NativeObject(scheme="test", bucket="b", key=key, size=size, version="v")


def drain(stream, size=70_000):
    parts = []
    while data := stream.read(size):
        parts.append(data)
    stream.close()
    return b"".join(parts)


def settled(count, *, least=0):
    """Waits until a count no longer changes."""
    seen = None
    for _ in range(3000):
        now = count()
        if seen == now >= least:
            return now
        seen = now
        threading.Event().wait(0.05)
    raise AssertionError("it never settles")


def test_requests_that_nobody_waits_for_overlap(serving):
    gate = threading.Event()
    server, loop = serving(lambda path, _: [gate, ok(path.encode())])
    loop.limiter._allowed = 40.0
    fetch = Prefetcher(objects=40, max_bytes=1 << 20)
    store = Store(server, loop)
    inputs = [fetch.fetch(StoreInput(store, native(f"/k{number}", len(f"/k{number}"))), 0) for number in range(40)]
    assert settled(lambda: server.open_now, least=40) == 40
    gate.set()
    assert [drain(one.open()) for one in inputs] == [f"/k{number}".encode() for number in range(40)]
    assert server.connections == 40
    fetch.close()
    assert fetch._budget.used == 0


def answers():
    return [held for held in gc.get_objects() if isinstance(held, HttpAnswer)]


@pytest.mark.parametrize("read", [lambda one: drain(one.open()), FetchedInput.whole])
def test_what_a_read_held_is_freed_without_a_search_for_cycles(serving, read):
    server, loop = serving(lambda path, _: [ok(b"x")])
    gc.collect()
    of_others = answers()  # an earlier test of this process may hold some: they stay, so that the counts compare
    fetch = Prefetcher(objects=1, max_bytes=1 << 20)
    one = fetch.fetch(StoreInput(Store(server, loop), native("/k", 1)), 0)
    gc.collect()
    gc.disable()
    try:
        assert read(one) == b"x"
        one.close()
        del one
        assert settled(lambda: len(answers())) == len(of_others)
    finally:
        gc.enable()


def test_more_is_requested_at_once_as_long_as_the_store_keeps_up(serving):
    server, loop = serving(lambda path, _: [ok(b"x")])
    fetch = Prefetcher(objects=500, max_bytes=1 << 20)
    store = Store(server, loop)
    before = loop.limiter.allowed
    inputs = [fetch.fetch(StoreInput(store, native(f"/{number}", 1)), 0) for number in range(500)]
    assert [drain(one.open()) for one in inputs] == [b"x"] * 500
    assert loop.limiter.allowed > before
    assert server.connections <= 64


@pytest.mark.parametrize("status", [429, 503])
def test_a_store_that_throttles_is_asked_for_less_and_nothing_is_lost(serving, status):
    server, loop = serving(lambda path, number: [refused(status) if number <= 2 else ok(path.encode())])
    loop.limiter._allowed = 64.0
    fetch = Prefetcher(objects=100, max_bytes=1 << 20)
    store, told = Store(server, loop), []
    policy = RetryPolicy(base_seconds=0.001, cap_seconds=0.002)
    inputs = [
        fetch.fetch(StoreInput(store, native(f"/{number:03}", 4), policy, on_retry=lambda *said: told.append(said)), 0)
        for number in range(100)
    ]
    assert [drain(one.open()) for one in inputs] == [b"/%03d" % number for number in range(100)]
    assert set(server.asked.values()) == {3}
    assert len(told) == 200
    assert loop.limiter.allowed < 64
    assert fetch._budget.used == 0


def test_a_wait_that_the_store_asks_for_is_a_hint_with_a_cap(serving):
    server, loop = serving(lambda path, number: [refused(503, b"Retry-After: 3600\r\n") if number == 1 else ok(b"x")])
    fetch = Prefetcher(objects=1, max_bytes=1 << 20)
    waits = []
    source = StoreInput(
        Store(server, loop),
        native("/k", 1),
        RetryPolicy(base_seconds=0.001, cap_seconds=0.05, jitter=0),
        on_retry=lambda error, tries, seconds: waits.append((error.retry_after_seconds, tries, seconds)),
    )
    assert drain(fetch.fetch(source, 0).open()) == b"x"
    assert waits == [(3600.0, 1, 0.05)]


def test_tries_are_used_up_once_and_counted(serving):
    server, loop = serving(lambda path, _: [refused(503)])
    fetch = Prefetcher(objects=1, max_bytes=1 << 20)
    policy = RetryPolicy(attempts=4, base_seconds=0.001)
    fetched = fetch.fetch(StoreInput(Store(server, loop), native("/k", 1), policy), 0)
    with pytest.raises(StoreUnavailableError, match=r"503: b'busy' \(gave up opening test://b//k after 4 tries"):
        fetched.open()
    assert server.asked["/k"] == 4
    fetched.close()
    assert fetch._budget.used == 0


def test_a_body_that_breaks_is_read_on_where_it_broke(serving):
    content = bytes(range(256)) * 40

    def answer(path, _number):
        if "from=" in path:
            return [ok(content[int(path.partition("from=")[2]) :])]
        return [ok(content)[:-7000], None]

    server, loop = serving(answer)
    fetch = Prefetcher(objects=1, max_bytes=1 << 20)
    source = StoreInput(Store(server, loop), native("/k", len(content)), RetryPolicy(base_seconds=0.001))
    assert drain(fetch.fetch(source, 0).open()) == content
    assert sum(server.asked.values()) == 2


def test_what_is_read_ahead_stays_within_the_budget_and_the_head_goes_on(serving):
    content = bytes(1 << 22)
    server, loop = serving(lambda path, _: [ok(content)])
    limit = 1 << 20
    fetch = Prefetcher(objects=6, max_bytes=limit)
    store = Store(server, loop)
    inputs = [fetch.fetch(StoreInput(store, native(f"/{number}", len(content))), 0) for number in range(6)]
    assert 0 < settled(lambda: fetch._budget.used, least=1) <= limit
    for one in inputs:
        stream, got = one.open(), 0
        while data := stream.read(1 << 17):
            got += len(data)
            assert fetch._budget.used <= limit
        stream.close()
        assert got == len(content)
    assert fetch._budget.used == 0


@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_a_small_object_is_there_as_a_whole_and_its_connection_stays(serving, pieces):
    body = bytes(range(256)) * 7
    answer, step = ok(body), -(-len(ok(body)) // pieces)
    server, loop = serving(lambda path, _: [answer[at : at + step] for at in range(0, len(answer), step)])
    fetch, store = Prefetcher(objects=1, max_bytes=1 << 20), Store(server, loop)
    for number in range(3):
        fetched = fetch.fetch(StoreInput(store, native(f"/{number}", len(body))), 0)
        assert fetched.whole() == body
        fetched.close()
        assert fetch._budget.used == 0
        settled(lambda: -loop.connections)
    assert server.connections == 1


@pytest.mark.parametrize(
    "answers",
    [
        [ok(b"12345")],  # longer than listed
        [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n12", None],
        [b"HTTP/1.1 206 Partial\r\nContent-Length: 4\r\n\r\n1234"],
        [refused(404)],
    ],
)
def test_any_other_answer_is_not_there_as_a_whole(serving, answers):
    server, loop = serving(lambda path, _: answers)
    fetched = Prefetcher(objects=1, max_bytes=1 << 20).fetch(
        StoreInput(Store(server, loop), native("/k", 4), RetryPolicy(attempts=1)), 0
    )
    assert fetched.whole() is None
    fetched.close()


def test_a_refusal_that_is_as_long_as_the_object_does_not_make_a_beginning_whole(serving, monkeypatch):
    """The reader sees as many bytes as it waits for; before it asks for their status, the request is made again."""
    again, never = threading.Event(), threading.Event()

    def answer(_, number):
        if number == 1:
            return [b"HTTP/1.1 503 No\r\nContent-Length: 5\r\n\r\nbusy", again, b"!"]
        return [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngo", never, b"od"]

    status_so_far, reader = HttpAnswer.status_so_far, threading.current_thread()

    def late(answer):
        if threading.current_thread() is reader:
            again.set()
            settled(lambda: list(answer._chunks) == [b"go"], least=True)
        return status_so_far(answer)

    monkeypatch.setattr(HttpAnswer, "status_so_far", late)
    server, loop = serving(answer)
    room = StreamRoom(FetchBudget(1 << 20))
    assert loop.get(f"{server.endpoint}/k", [], room=room, retry=lambda _: 0.0).whole(4) is None
    never.set()


def test_what_the_store_does_not_believe_is_left_to_its_stream(serving):
    server, loop = serving(lambda path, _: [ok(b"1234")])
    store = Store(server, loop)
    store.believed = False
    fetched = Prefetcher(objects=1, max_bytes=1 << 20).fetch(StoreInput(store, native("/k", 4)), 0)
    assert fetched.whole() is None
    assert drain(fetched.open()) == b"1234"


def test_an_object_that_has_no_room_as_a_whole_is_read_in_pieces(serving):
    content = bytes(1 << 21)
    server, loop = serving(lambda path, _: [ok(content)])
    fetch = Prefetcher(objects=1, max_bytes=1 << 20)
    fetched = fetch.fetch(StoreInput(Store(server, loop), native("/k", len(content))), 0)
    assert fetched.whole() is None
    assert drain(fetched.open()) == content
    assert fetch._budget.used == 0


def test_a_transfer_that_waits_for_room_is_not_resumed_before_there_is_some(serving, monkeypatch):
    content = bytes(1 << 20)
    server, loop = serving(lambda *_: [ok(content)])
    pieces = {True: 0, False: 0}
    keep = HttpAnswer.keep

    def counting(answer, data):
        kept = keep(answer, data)
        pieces[kept] += 1
        return kept

    monkeypatch.setattr(HttpAnswer, "keep", counting)
    fetch = Prefetcher(objects=24, max_bytes=1 << 19)
    store = Store(server, loop)
    ahead = [fetch.fetch(StoreInput(store, native(f"/k{number}", len(content))), 0) for number in range(24)]
    for opened in ahead:
        assert len(drain(opened.open())) == len(content)
        opened.close()
    assert fetch._budget.used == 0
    assert pieces[False] < pieces[True] / 4  # each refused piece is copied in vain


def test_a_transfer_that_libcurl_cannot_resume_is_requested_again_and_others_go_on(serving, monkeypatch):
    """libcurl 8.16 could not resume some; the thread of all requests must not end with it."""
    content, tried = bytes(range(256)) * 32_768, []
    go_on = transfer_module.Transfer.go_on

    def fail_once(transfer):
        tried.append(transfer)
        if len(tried) == 1:
            raise transfer_module.pycurl.error(81, "pause/unpause failed")
        go_on(transfer)

    monkeypatch.setattr(transfer_module.Transfer, "go_on", fail_once)
    server, loop = serving(lambda path, _: [ok(content[int(path.partition("=")[2] or 0) :])])
    fetch = Prefetcher(objects=1, max_bytes=1 << 20)
    store = Store(server, loop)
    fetched = fetch.fetch(StoreInput(store, native("/k", len(content)), RetryPolicy(base_seconds=0.001)), 0)
    assert settled(lambda: fetch._budget.used, least=1 << 19) < len(content)  # it waits for room
    assert drain(fetched.open()) == content
    assert [str(error) for error in store.failures] == ["pause/unpause failed"]
    fetch.close()


def test_a_stream_without_a_budget_holds_a_window_only(serving):
    size = 8 * WINDOW_BYTES
    sent = []

    def parts():
        yield b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size
        for _ in range(size // 65_536):
            sent.append(65_536)
            yield bytes(65_536)

    server, loop = serving(lambda *_: parts())
    answer = loop.get(f"{server.endpoint}/k", [])
    assert answer.status == 200
    held = settled(lambda: sum(map(len, answer._chunks)))
    assert held <= WINDOW_BYTES + (1 << 19)
    assert len(sent) * 65_536 < size
    assert len(drain(answer)) == size


def test_a_request_that_is_waited_for_overtakes_those_that_are_not(serving):
    gate = threading.Event()
    server, loop = serving(lambda path, _: [gate, ok(b"x")] if path.startswith("/ahead") else [ok(b"now")])
    fetch = Prefetcher(objects=80, max_bytes=1 << 20)
    store = Store(server, loop)
    ahead = [fetch.fetch(StoreInput(store, native(f"/ahead{number}", 1)), 0) for number in range(80)]
    assert drain(store.open(native("/now", 3))) == b"now"
    gate.set()
    assert [drain(one.open()) for one in ahead] == [b"x"] * 80


@pytest.mark.parametrize("ends", [True, False])
def test_a_refusal_that_is_larger_than_the_budget_is_judged_and_tried_again(serving, ends):
    def answer(path, number):
        if path == "/a" and number == 1:
            yield b"HTTP/1.1 500 No\r\n" + (b"Content-Length: %d\r\n\r\n" % (32 << 20) if ends else b"\r\n")
            for _ in range(32):
                yield b"x" * (1 << 20)
            if not ends:
                yield threading.Event()
        yield ok(b"good")

    server, loop = serving(answer)
    ahead = Prefetcher(objects=4, max_bytes=1 << 20)
    fetched = ahead.fetch(StoreInput(Store(server, loop), native("/a", 4), RetryPolicy().without_waiting()), 0, None)
    found = []
    reader = threading.Thread(target=lambda: found.append(drain(fetched.open())), daemon=True)
    reader.start()
    reader.join(30)
    assert found == [b"good"]
    ahead.close()


def test_a_refusal_that_its_reader_has_seen_is_not_requested_again(serving):
    """The answer to the second request would be taken for the rest of the refusal."""
    gate, refusal = threading.Event(), b"x" * (2 * MAX_REFUSAL_BYTES)

    def answer(path, number):
        if number == 1:
            head = b"HTTP/1.1 503 No\r\nContent-Length: %d\r\n\r\n" % len(refusal)
            return [head, refusal[:-1], gate, refusal[-1:]]
        return [ok(b"y" * 100_000)]

    server, loop = serving(answer)
    room = StreamRoom(FetchBudget(1 << 22))
    answer = loop.get(f"{server.endpoint}/k", [], room=room, retry=lambda _: 0.0)
    assert answer.status == 503
    gate.set()
    settled(lambda: answer.ended, least=True)
    assert answer.status == 503
    assert answer.wait_refusal() == refusal[:MAX_REFUSAL_BYTES]
    assert server.asked["/k"] == 1


def test_the_beginning_of_a_refusal_always_has_room_at_the_head(serving):
    """Its reader gives nothing back before it has judged it, and the objects behind it give nothing back before that."""
    start, rest = b"x" * 10_000, b"x" * 500_000

    def answer(path, _):
        return [b"HTTP/1.1 500 No\r\nContent-Length: %d\r\n\r\n" % len(start + rest), start, gate, rest]

    gate = threading.Event()
    server, loop = serving(answer)
    budget = FetchBudget(100_000)
    head, behind = StreamRoom(budget), StreamRoom(budget)
    answer = loop.get(f"{server.endpoint}/k", [], room=head, retry=lambda _: None)
    settled(lambda: budget.used, least=len(start))
    while behind.take(10_000, lambda: None):
        pass
    head.make_head()
    gate.set()
    found = []
    reader = threading.Thread(target=lambda: found.append((answer.status, len(answer.wait_refusal()))), daemon=True)
    reader.start()
    reader.join(10)
    assert found == [(500, MAX_REFUSAL_BYTES)]
    assert budget.used <= 100_000 + MAX_REFUSAL_BYTES + BUFFER_BYTES


def test_an_object_that_is_requested_again_does_not_wait_for_those_that_wait_for_it(serving):
    content = bytes(1 << 22)
    server, loop = serving(
        lambda path, number: [refused(503) if (path, number) == ("/0", 1) else ok(content)], max_connections=1
    )
    fetch = Prefetcher(objects=3, max_bytes=1 << 20)
    store, policy = Store(server, loop), RetryPolicy(base_seconds=0.3, jitter=0)
    inputs = [fetch.fetch(StoreInput(store, native(f"/{number}", len(content)), policy), 0) for number in range(3)]
    settled(lambda: fetch._budget.used, least=1)  # the second has come meanwhile, and is paused
    assert [len(drain(one.open())) for one in inputs] == [len(content)] * 3
    assert server.asked["/0"] == 2
    fetch.close()


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ([None], HttpError),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", None], HttpCutError),
        ([b"not HTTP at all\r\n\r\n", None], HttpError),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", None], HttpError),
        ([b"HTTP/1.1 103 Early\r\nLink: a\r\n\r\n", None], HttpError),
    ],
    ids=["nothing", "no body", "no HTTP", "no length", "no last head"],
)
def test_an_answer_that_is_none_is_an_error(serving, parts, kind):
    server, loop = serving(lambda *_: parts)
    with pytest.raises(kind):
        assert loop.get(f"{server.endpoint}/k", []).status == 0


HEAD_LINES = [b"HTTP/1.1 200 OK\r\n", b"Content-Length: 0\r\n", b"ETag: e\r\n", b"x-amz-meta-a: 1\r\n", b"\r\n"]


@pytest.mark.parametrize("lines", range(1, len(HEAD_LINES)))
@pytest.mark.parametrize("method", ["get", "head"])
def test_a_head_that_breaks_off_between_two_headers_is_no_answer(serving, method, lines):
    """libcurl takes it for a whole one. What is missing may be metadata of the object."""
    server, loop = serving(lambda *_: [b"".join(HEAD_LINES[:lines]), None])
    with pytest.raises(HttpError, match="ended within the head"):
        assert getattr(loop, method)(f"{server.endpoint}/k", []).status == 0


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
def test_a_head_that_is_whole_is_an_answer_without_a_body_too(serving, end):
    whole = b"".join(HEAD_LINES).replace(b"\r\n", end)
    trailer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx-trailer: t\r\n\r\n".replace(b"\r\n", end)
    server, loop = serving(lambda path, _: [trailer if path == "/trailer" else whole])
    answer = loop.head(f"{server.endpoint}/k", [])
    assert (answer.status, answer.headers["x-amz-meta-a"]) == (200, "1")
    assert loop.get(f"{server.endpoint}/k", []).read_all() == b""
    assert loop.get(f"{server.endpoint}/trailer", []).read_all() == b""


def test_a_header_without_end_is_told(serving):
    server, loop = serving(lambda *_: [b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 20)])
    with pytest.raises(HttpError, match="a header of the answer is too large"):
        assert loop.get(f"{server.endpoint}/k", []).status == 0


def test_a_document_without_end_is_given_up_at_its_limit(serving, monkeypatch):
    """A listing's page is read whole: a server must not decide how much memory that takes."""
    monkeypatch.setattr(answer_module, "MAX_DOCUMENT_BYTES", 3 * WINDOW_BYTES)
    size = 8 * WINDOW_BYTES
    server, loop = serving(lambda *_: [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size, bytes(size)])
    answer = loop.get(f"{server.endpoint}/list", [])
    with pytest.raises(HttpError, match=r"a document of more than [\d,]+ bytes"):
        answer.read_all()
    answer.close()


class Clock:
    """The loop's clock: the real one, and as much more as a test lets pass at once. Its limits of a minute are then no matter
    of how busy the machine is."""

    def __init__(self):
        self.passed = 0.0

    def monotonic(self):
        return time.monotonic() + self.passed


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(loop_module, "time", made)
    monkeypatch.setattr(loop_module, "_SLOWEST_SWEEP_SECONDS", 0.02)
    return made


def sweeps(loop, count):
    """Waits until the loop has looked so often for what is silent or slow."""
    looks, look = [], loop._end_silent
    loop._end_silent = lambda: (looks.append(1), look())
    settled(lambda: min(count, len(looks)), least=count)


def test_silence_is_an_error_and_other_transfers_go_on(serving, clock):
    gate = threading.Event()
    server, loop = serving(
        lambda path, _: [ok(b"abc")[:-1], gate, b"c"] if path == "/slow" else [ok(b"abc")], read_seconds=60
    )
    slow = loop.get(f"{server.endpoint}/slow", [])
    assert slow.status == 200
    clock.passed += 50
    sweeps(loop, 2)
    assert not slow.ended
    clock.passed += 11
    with pytest.raises(HttpReadTimeoutError, match="nothing came for 60 seconds"):
        drain(slow)
    assert drain(loop.get(f"{server.endpoint}/k", [])) == b"abc"
    gate.set()


class Paced:
    """A body in pieces, one in that many seconds: the clock goes on when the loop has received a piece."""

    def __init__(self, clock, content, size, seconds, status=200):
        self.clock, self.content, self.size, self.seconds, self.status = clock, content, size, seconds, status
        self.answer, self.received = None, 0

    def watch(self, loop):
        """Sees what the loop receives; to be called before its first request."""
        receive = loop._receive

        def counted(answer, data):
            taken = receive(answer, data)
            self.answer = self.answer or answer
            self.received += len(data) * (answer is self.answer)
            return taken

        loop._receive = counted

    def __iter__(self):
        yield b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n" % (self.status, len(self.content))
        for end in range(self.size, len(self.content) + 1, self.size):
            yield self.content[end - self.size : end]
            while self.received < end:
                if self.answer is not None and (self.answer.ended or self.answer.complete):
                    return
                threading.Event().wait(0.001)
            self.clock.passed += self.seconds


def test_a_body_that_trickles_is_broken_off_and_read_on_over_another_connection(serving, clock):
    content = bytes(range(200)) * 5
    tried, paced = [], Paced(clock, content, 1, seconds=10)

    def answer(path, _):
        start = int(path.partition("=")[2])
        tried.append(start)
        return [ok(content[start:])] if start else paced

    server, loop = serving(answer, read_seconds=60)
    paced.watch(loop)
    store = Store(server, loop)
    source = StoreInput(store, native("/k", len(content)), RetryPolicy(base_seconds=0.001))
    assert drain(source.open()) == content
    assert len(tried) == 2
    assert 0 < tried[1] < len(content)
    (error,) = map(str, store.failures)
    assert error == f"only {int(error.split()[1])} bytes came within 120 seconds"


def test_a_body_that_comes_slowly_but_fast_enough_is_not_broken_off(serving, clock):
    paced = Paced(clock, bytes(60_000), 1000, seconds=9)
    server, loop = serving(lambda *_: paced, read_seconds=60)
    paced.watch(loop)
    assert drain(loop.get(f"{server.endpoint}/k", [])) == paced.content
    assert sum(server.asked.values()) == 1


def test_a_document_that_trickles_is_broken_off_however_fast_a_body_must_be(serving, clock):
    """300 bytes a second would keep a page of a listing for hours, far beyond any budget of retries."""
    paced = Paced(clock, bytes(600_000), 1500, seconds=5)
    server, loop = serving(lambda *_: paced, read_seconds=60)
    paced.watch(loop)
    with pytest.raises(HttpReadTimeoutError, match=r"only [34]\d,\d00 bytes came within 1[23]\d seconds"):
        loop.get(f"{server.endpoint}/k", []).read_all()


def test_a_document_that_is_long_may_take_long(serving, clock):
    paced = Paced(clock, bytes(600_000), 20_000, seconds=0.39)
    server, loop = serving(lambda *_: paced, read_seconds=1)
    paced.watch(loop)
    assert loop.get(f"{server.endpoint}/k", []).read_all() == paced.content
    assert clock.passed > 10
    assert sum(server.asked.values()) == 1


@pytest.mark.parametrize("ahead", [False, True])
def test_a_refusal_that_trickles_is_judged_by_what_has_come(serving, clock, ahead):
    judged = []

    def again(answer):
        judged.append(answer.wait_refusal())

    paced = Paced(clock, b"busy" * 15_000, 1500, seconds=5, status=503)
    server, loop = serving(lambda *_: paced, read_seconds=60)
    paced.watch(loop)
    more = {"size": 100, "room": StreamRoom(FetchBudget(1 << 20)), "retry": again} if ahead else {}
    answer = loop.get(f"{server.endpoint}/k", [], **more)
    assert answer.status == 503
    body = answer.wait_refusal()
    assert 0 < len(body) < 60_000
    assert body == b"busy" * (len(body) // 4)
    assert judged == ([body] if ahead else [])


@pytest.mark.parametrize("rests", [1, 6])
def test_a_transfer_that_its_reader_holds_up_is_not_broken_off(serving, clock, rests):
    content = bytes(4 * WINDOW_BYTES)
    server, loop = serving(lambda *_: [ok(content)], read_seconds=60)
    answer, got = loop.get(f"{server.endpoint}/k", []), 0
    for _ in range(rests):
        settled(lambda: answer.paused, least=1)
        clock.passed += 300 / rests  # as long as several measurements
        sweeps(loop, 2)
        got += len(answer.read(1000))
    got += len(drain(answer))
    assert got == len(content)


def test_nobody_listens(serving):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    _, loop = serving(lambda *_: [])
    with pytest.raises(HttpConnectError, match=str(port)):
        assert loop.get(f"http://127.0.0.1:{port}/k", []).status == 0


def test_any_path_is_sent_as_it_is(serving):
    server, loop = serving(lambda path, _: [ok(b"x")])
    paths = ["/b/a//b", "/b/./x", "/b/../x", "/b/a/%2E%2E/b", "/b/%01%7F%0A", "/b//", "/b/a%3Fb%23c", "/b/%F0%9F%98%80"]
    for path in paths:
        assert drain(loop.get(server.endpoint + path, [])) == b"x"
    assert list(server.asked) == paths


def test_a_redirect_is_handed_back_and_not_followed(serving):
    other, _ = serving(lambda *_: [ok(b"theirs")])
    place = other.endpoint.encode()
    server, loop = serving(lambda *_: [refused(307, b"Location: %s/x\r\n" % place)])
    answer = loop.get(f"{server.endpoint}/k", ["Authorization: secret"])
    assert (answer.status, answer.headers["location"]) == (307, f"{other.endpoint}/x")
    assert answer.wait_refusal() == b"busy"
    assert not other.asked


def test_an_informational_answer_comes_before_the_answer(serving):
    _, loop = made = serving(lambda *_: [b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + ok(b"x", b"ETag: e\r\n")])
    answer = loop.get(f"{made[0].endpoint}/k", [])
    assert (answer.status, answer.headers.get("link"), answer.headers["etag"], drain(answer)) == (200, None, "e", b"x")


def test_a_connection_is_used_again(serving):
    server, loop = serving(lambda *_: [ok(b"x" * 1000)])
    for _ in range(20):
        assert len(drain(loop.get(f"{server.endpoint}/k", []))) == 1000
    assert server.connections == 1


def test_a_head_and_a_get_take_turns_on_one_connection(serving):
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: e\r\n\r\n"
    server, loop = serving(lambda path, _: [head if path == "/head" else ok(b"x")])
    for _ in range(3):
        answer = loop.head(f"{server.endpoint}/head", [])
        assert (answer.status, answer.headers["etag"], answer.read_all()) == (200, "e", b"")
        answer.close()
        assert drain(loop.get(f"{server.endpoint}/k", [])) == b"x"
    assert server.connections == 1


def followed(paths, read, sent):
    """Answers each path with itself, and these with one more answer once the first is `read`."""

    def answer(path, number):
        yield ok(path.encode())
        if path in paths and number == 1:
            yield read
            yield ok(b"stray")
            sent.release()

    return answer


def test_what_comes_on_a_kept_connection_is_not_the_answer_to_the_next_request(serving):
    """libcurl looks for it only when the connection was idle for more than a second."""
    read, sent = threading.Event(), threading.Semaphore(0)
    server, loop = serving(followed({"/first"}, read, sent))
    for path in ("/first", "/second", "/third"):
        assert loop.get(f"{server.endpoint}{path}", []).read_all() == path.encode()
        if path == "/first":
            read.set()
            assert sent.acquire(timeout=30)
    assert server.connections == 2
    assert server.asked == {"/first": 1, "/second": 1, "/third": 1}


def test_as_many_connections_are_given_up_as_something_came_on(serving):
    read, sent, together = threading.Event(), threading.Semaphore(0), threading.Barrier(8)
    paths = [f"/{number}" for number in range(8)]
    stray = followed(set(paths), read, sent)

    def answer(path, number):
        if path in paths:
            together.wait(30)
        yield from stray(path, number)

    server, loop = serving(answer)
    for one in [loop.get(f"{server.endpoint}{path}", []) for path in paths]:
        one.read_all()
    read.set()
    for _ in paths:
        assert sent.acquire(timeout=30)
    assert loop.get(f"{server.endpoint}/next", []).read_all() == b"/next"
    assert server.connections == 9


@pytest.mark.parametrize("name", ["Zertifik\u00e4te", "Zertifik\u00e4te/ca.pem"])
def test_the_path_of_the_authorities_may_be_none_of_ascii(tmp_path, name):
    """pycurl takes no such text, but bytes."""
    (tmp_path / "Zertifik\u00e4te").mkdir()
    pem, both = self_signed(tmp_path)
    (tmp_path / "Zertifik\u00e4te/ca.pem").write_bytes(pem.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    server = Answering(lambda *_: [ok(b"x")], context)
    options = HttpOptions(connect_seconds=5.0, read_seconds=30.0, max_connections=64, ca_file=str(tmp_path / name))
    with contextlib.closing(server), contextlib.closing(HttpLoop(options)) as loop:
        answer = loop.get(f"{server.endpoint}/k", [])
        if name.endswith("pem"):
            assert answer.read_all() == b"x"
        else:  # a folder without hashed names
            with pytest.raises(HttpTlsError):
                answer.read_all()


@pytest.mark.parametrize("small", [True, False])
def test_over_tls_connections_are_kept_and_looked_at_as_well(tmp_path, small):
    """Tickets of TLS 1.3 come behind the handshake, before the first answer: they are nothing that came unasked."""
    pem, both = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    read, sent = threading.Event(), threading.Semaphore(0)
    server = Answering(followed({"/stray"}, read, sent), context)
    loop = HttpLoop(HttpOptions(connect_seconds=5.0, read_seconds=30.0, max_connections=64, ca_file=str(pem)))
    try:
        size = 7 if small else None
        for _ in range(20):
            assert loop.get(f"{server.endpoint}/normal", [], size=size).read_all() == b"/normal"
            time.sleep(0.005)
        assert server.connections == 1
        assert loop.get(f"{server.endpoint}/stray", [], size=size).read_all() == b"/stray"
        read.set()
        assert sent.acquire(timeout=30)
        assert loop.get(f"{server.endpoint}/behind", [], size=size).read_all() == b"/behind"
        assert server.connections == 2
    finally:
        loop.close()
        server.close()


def test_an_authority_that_is_added_to_the_file_is_trusted_once_the_time_is_over(tmp_path, monkeypatch):
    """As authorities are replaced: first the file has both, then the server's certificate is of the new one."""
    monkeypatch.setattr(transfer_module, "AUTHORITIES_SECONDS", 0)
    pems = []
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        pems.append(self_signed(tmp_path / name))
    trusted = tmp_path / "trusted.pem"
    with contextlib.ExitStack() as stack:
        servers = []
        for _, both in pems:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(both)
            server = Answering(followed(set(), threading.Event(), threading.Semaphore(0)), context)
            servers.append(stack.enter_context(contextlib.closing(server)))
        options = HttpOptions(connect_seconds=5.0, read_seconds=30.0, max_connections=64, ca_file=str(trusted))
        trusted.write_bytes(pems[0][0].read_bytes())
        loop = stack.enter_context(
            contextlib.closing(HttpLoop(options))
        )  # closed before the servers, which wait for it
        assert loop.get(f"{servers[0].endpoint}/normal", []).read_all() == b"/normal"
        trusted.write_bytes(b"".join(pem.read_bytes() for pem, _ in pems))
        assert loop.get(f"{servers[1].endpoint}/normal", []).read_all() == b"/normal"


def test_an_answer_that_came_while_its_request_was_made_is_not_slept_over(serving, monkeypatch):
    sent = transfer_module.pycurl.INFOTYPE_HEADER_OUT
    prepare = transfer_module.Transfer.prepare

    def slowly(transfer, answer):
        prepare(transfer, answer)
        transfer.curl.setopt(transfer_module.pycurl.VERBOSE, 1)
        # between the request and libcurl's first look for an answer
        transfer.curl.setopt(transfer_module.pycurl.DEBUGFUNCTION, lambda kind, _: kind == sent and time.sleep(0.05))

    monkeypatch.setattr(transfer_module.Transfer, "prepare", slowly)
    monkeypatch.setattr(loop_module, "_SLOWEST_SWEEP_SECONDS", 3600.0)
    server, loop = serving(lambda *_: [ok(b"x")])
    for _ in range(5):
        assert drain(loop.get(f"{server.endpoint}/k", [])) == b"x"


@pytest.mark.parametrize("wait", [lambda answer: answer.status, lambda answer: answer.read(10), HttpAnswer.read_all])
def test_an_answer_that_ends_just_before_its_reader_waits_is_seen(serving, monkeypatch, wait):
    """The reader looked, and saw nothing; before it waits, all comes at once, and nothing comes after it."""
    gate = threading.Event()
    server, loop = serving(lambda *_: [gate, ok(b"x")])
    answer = loop.get(f"{server.endpoint}/k", [])
    make = answer_module.allocate_lock

    def late():
        if not gate.is_set():
            gate.set()
            settled(lambda: answer.ended, least=True)
        return make()

    monkeypatch.setattr(answer_module, "allocate_lock", late)
    assert wait(answer) in (200, b"x")


def test_room_that_a_reader_makes_just_before_the_transfer_is_paused_is_seen(serving, monkeypatch):
    keep, empty = HttpAnswer.keep, []

    def slowly(answer, data):
        kept = keep(answer, data)
        if not kept and not empty:  # between the look and the pause, the reader takes all there is
            reader.start()
            empty.append(settled(lambda: not answer._chunks, least=True))
        return kept

    monkeypatch.setattr(HttpAnswer, "keep", slowly)
    size = 4 * WINDOW_BYTES
    server, loop = serving(lambda *_: [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size, bytes(size)])
    answer = loop.get(f"{server.endpoint}/k", [])
    came = []
    reader = threading.Thread(target=lambda: came.append(len(drain(answer, size))), daemon=True)
    settled(lambda: bool(empty), least=True)
    reader.join(10)
    assert came == [size]


@pytest.mark.parametrize("missing", ["file", "thread"])
def test_a_loop_that_cannot_start_says_so_and_starts_later(serving, monkeypatch, missing):
    """The process has no file or thread left for it: a request without a thread behind it would wait without end."""
    server, loop = serving(lambda *_: [ok(b"x")])

    def fail(*_):
        raise (
            OSError(errno.EMFILE, "Too many open files")
            if missing == "file"
            else RuntimeError("can't start new thread")
        )

    with monkeypatch.context() as patch:
        if missing == "file":
            patch.setattr(loop_module.select, "epoll", fail)
        else:
            patch.setattr(loop_module.threading.Thread, "start", fail)
        for _ in range(2):
            with pytest.raises((OSError, RuntimeError), match=r"Too many open files|can't start new thread"):
                loop.get(f"{server.endpoint}/k", [])
    assert drain(loop.get(f"{server.endpoint}/k", [])) == b"x"


def test_a_connection_for_which_no_file_is_left_says_so(serving):
    """libcurl says that it could not connect, and nothing of why: the store would seem to be away."""
    server, loop = serving(lambda *_: [ok(b"x")])
    assert drain(loop.get(f"{server.endpoint}/k", [])) == b"x"
    limits, taken = resource.getrlimit(resource.RLIMIT_NOFILE), []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(HttpConnectError, match="Too many open files"):
            drain(loop.get("http://127.0.0.1:9/k", []))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for one in taken:
            os.close(one)


def test_when_the_loop_fails_each_request_says_why(serving, monkeypatch, caplog):
    """Not that the store was closed: nothing in the message would tell what happened."""
    server, loop = serving(lambda *_: [ok(b"x")])

    def fail(*_):
        raise ValueError("no sense")

    monkeypatch.setattr(HttpLoop, "_end_silent", fail)
    for _ in range(2):
        answer = loop.get(f"{server.endpoint}/k", [])
        with pytest.raises(
            FatalError, match=r"requests failed, start the source again: ValueError: no sense"
        ) as caught:
            drain(answer)
        assert not isinstance(caught.value, TaskClosedError)
        settled(lambda: loop._closed, least=True)
    loop.close()
    assert [record.message for record in caplog.records] == ["the thread of the store's requests failed"]


@pytest.mark.parametrize("ahead", [False, True])
def test_a_request_that_the_loop_fails_at_ends(serving, ahead):
    """It is in none of the loop's lists yet. pycurl takes no address that is not ASCII."""
    server, loop = serving(lambda *_: [ok(b"x")], proxy="http://user:w\u00f6rd@127.0.0.1:1")
    room = StreamRoom(FetchBudget(1 << 20)) if ahead else None
    for _ in range(2):
        with pytest.raises(FatalError, match="requests failed, start the source again: UnicodeEncodeError") as caught:
            _ = loop.get(f"{server.endpoint}/k", [], room=room).status
        assert "w\u00f6rd" not in str(caught.value)


def test_closing_ends_whoever_waits_at_once(serving):
    gate = threading.Event()
    server, loop = serving(lambda path, _: [gate, ok(b"x")])
    ended = []

    def wait(answer):
        try:
            answer.read(1)
        except TaskClosedError:
            ended.append(answer)

    answers = [loop.get(f"{server.endpoint}/{number}", []) for number in range(5)]
    threads = [threading.Thread(target=wait, args=(answer,), daemon=True) for answer in answers]
    for thread in threads:
        thread.start()
    settled(lambda: server.open_now, least=5)
    began = Stopwatch()
    loop.close()
    loop.close()
    for thread in threads:
        thread.join(30)
    assert began.seconds < 5
    assert len(ended) == 5
    with pytest.raises(TaskClosedError):
        assert loop.get(f"{server.endpoint}/k", []).status == 0
    gate.set()


def test_closing_ends_whoever_waits_before_libcurl_ends(serving, monkeypatch):
    """Its end waits for a name that is being resolved, as long as the resolver takes."""
    resolved, sent = threading.Event(), threading.Event()

    class Resolving(pycurl.CurlMulti):
        def close(self):
            assert resolved.wait(60)
            super().close()

    monkeypatch.setattr(loop_module.pycurl, "CurlMulti", Resolving)
    server, loop = serving(lambda path, _: [sent, ok(b"x")], max_connections=1)
    room = StreamRoom(FetchBudget(1 << 20))
    answers = [loop.get(f"{server.endpoint}/{number}", [], room=room, retry=lambda _: None) for number in range(2)]
    settled(lambda: server.open_now, least=1)
    failed = []

    def wait(answer):
        try:
            assert answer.status
        except TaskClosedError:
            failed.append(answer)

    threads = [threading.Thread(target=wait, args=(answer,), daemon=True) for answer in answers]
    for thread in threads:
        thread.start()
    loop.close()
    for thread in threads:
        thread.join(5)
    ended = len(failed)
    resolved.set()
    sent.set()
    loop._thread.join(30)
    assert ended == 2


def test_a_read_that_waits_ends_when_its_input_is_closed(serving):
    gate = threading.Event()
    server, loop = serving(lambda path, _: [gate, ok(b"x")])
    fetch = Prefetcher(objects=1, max_bytes=1 << 20)
    fetched, failed = fetch.fetch(StoreInput(Store(server, loop), native("/k", 1)), 0), []

    def read():
        try:
            fetched.open()
        except TaskClosedError as error:
            failed.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    settled(lambda: server.open_now, least=1)
    while not failed:
        fetched.close()  # also before the reader has got so far
        reader.join(0.05)
    assert len(failed) == 1
    gate.set()


def test_an_object_that_is_given_up_costs_no_connection_of_others(serving):
    gate = threading.Event()
    server, loop = serving(lambda path, _: [gate, ok(b"x")] if path == "/hangs" else [ok(b"x")], max_connections=1)
    fetch = Prefetcher(objects=9, max_bytes=1 << 20)
    store = Store(server, loop)
    hangs = fetch.fetch(StoreInput(store, native("/hangs", 1)), 0)
    others = [fetch.fetch(StoreInput(store, native(f"/{number}", 1)), 0) for number in range(3)]
    settled(lambda: server.open_now, least=1)
    hangs.close()
    assert [drain(one.open()) for one in others] == [b"x"] * 3
    gate.set()


def test_a_forked_process_begins_with_connections_of_its_own(serving):
    server, loop = serving(lambda *_: [ok(b"x")])
    assert drain(loop.get(f"{server.endpoint}/k", [])) == b"x"
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if drain(loop.get(f"{server.endpoint}/k", [])) == b"x" else 2
        finally:
            os._exit(code)
    deadline = time.monotonic() + 60
    while not (done := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    assert done == (child, 0)
    assert drain(loop.get(f"{server.endpoint}/k", [])) == b"x"
    assert server.connections == 2


def test_a_forked_process_may_request_ahead_whatever_its_parent_has_under_way(serving):
    gate = threading.Event()
    server, loop = serving(lambda path, _: [gate, ok(b"x")] if path == "/parent" else [ok(b"x")])
    parents = Prefetcher(objects=40, max_bytes=1 << 20)
    store = Store(server, loop)
    inputs = [parents.fetch(StoreInput(store, native("/parent", 1)), 0) for _ in range(40)]
    settled(lambda: server.open_now, least=1)
    child = os.fork()
    if not child:
        code = 1
        try:
            ahead = Prefetcher(objects=1, max_bytes=1 << 20).fetch(StoreInput(store, native("/child", 1)), 0)
            code = 0 if drain(ahead.open()) == b"x" else 2
        finally:
            os._exit(code)
    deadline = time.monotonic() + 20
    while not (done := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    gate.set()
    assert [drain(one.open()) for one in inputs] == [b"x"] * 40
    if not done[0]:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert done == (child, 0)
