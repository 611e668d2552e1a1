"""The connection that sends records, against a server that answers as a test says (`tests/integration` has whole ones)."""

import asyncio
import contextlib
import gc
import socket
import struct
import threading
import time
import weakref
from concurrent.futures import TimeoutError as FutureTimeoutError

import pytest

from framework.config.iggy_address import IggyAddress
from framework.errors import (
    EXIT_PERSON,
    IggyAuthError,
    IggyProtocolError,
    IggyUnavailableError,
    UnknownOutcomeError,
)
from framework.iggy import protocol, send_connection
from framework.iggy.send_connection import PulledFuture, SendConnection
from tests.support.stopwatch import Stopwatch

SEND, JOIN = 160, 148
OWN = struct.pack("<IIBI", 7, 1, 1, 11) + b"127.0.0.1:5" + bytes(4)
LOGGED_IN = 0, bytes(4) + struct.pack("<IQ", 1, 99)


class FakeServer:
    """Answers the login and the question for the own client; what comes behind as `answers` says, in order.

    An answer is `(status, body)`, the reason of an eviction, bytes for the wire, "end", or None: none. An event is waited
    for first.
    """

    def __init__(self, *answers, login=LOGGED_IN):
        self.requests = []
        self.answers = [login, (0, OWN), *answers]
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.peer = None
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    @property
    def port(self):
        return self.listening.getsockname()[1]

    def serve(self):
        with contextlib.suppress(OSError):  # the client is gone, or the test is over
            self.peer, _ = self.listening.accept()
            with self.peer:
                self.answer_all()

    def answer_all(self):
        while (head := self.peer.recv(256, socket.MSG_WAITALL)) and len(head) == 256:
            request = protocol.Request(head)
            body = self.peer.recv(request.body_size, socket.MSG_WAITALL) if request.body_size else b""
            self.requests.append((request.operation, request.request, request.code, body, head))
            answer = self.answers.pop(0) if self.answers else (0, bytes(4) if request.operation == JOIN else b"")
            if isinstance(answer, threading.Event):
                answer.wait(20)
                answer = self.answers.pop(0)
            if answer == "end":
                return
            if isinstance(answer, int):
                self.peer.sendall(protocol.eviction(request.client, answer))
            elif isinstance(answer, bytes):
                self.peer.sendall(answer)
            elif answer is not None:
                status, told = answer
                self.peer.sendall(protocol.reply_header(request, len(told), status) + told)

    def close(self):
        with contextlib.suppress(OSError):
            self.listening.shutdown(socket.SHUT_RDWR)
            self.peer.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.listening.close()

    @property
    def sent(self):
        return [body for operation, *_, body, _ in self.requests if operation == SEND]


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def open_sending(address, loop, on_end, *, on_made=lambda _: None, **seconds):
    limits = {"timeout_seconds": 20, "connect_timeout_seconds": 20, **seconds}
    made = SendConnection(address, "127.0.0.1", on_end=on_end, **limits)
    on_made(made)
    made.open(loop)
    return made


@pytest.fixture
def connect(loop):
    opened, servers, ends = [], [], []

    def connect(*answers, timeout_seconds=20, connect_timeout_seconds=20, **options):
        server = FakeServer(*answers, **options)
        servers.append(server)
        address = IggyAddress(host="127.0.0.1", port=server.port, user="iggy", password="secret")
        made = open_sending(
            address,
            loop,
            ends.append,
            timeout_seconds=timeout_seconds,
            connect_timeout_seconds=connect_timeout_seconds,
        )
        opened.append(made)
        return made, server

    connect.ends = ends
    yield connect
    for made in opened:
        made.close()
    for server in servers:
        server.close()


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_login_and_the_numbers_of_requests(connect):
    connection, server = connect()
    assert connection.client.identity == (7, "127.0.0.1:5")
    assert connection.submit("send", b"one", bytes).result() == b""
    connection.join_group("join", "s", "t", "g")
    assert connection.submit("send", b"two", bytes).result() == b""
    assert [(operation, number, code) for operation, number, code, *_ in server.requests] == [
        (protocol.OPERATION_REGISTER, 0, 0),
        (protocol.OPERATION_READ, 1, protocol.GET_ME),
        (SEND, 1, protocol.SEND),
        (JOIN, 2, protocol.JOIN_GROUP),
        (SEND, 3, protocol.SEND),
    ]
    heads = [head for *_, head in server.requests]
    assert [struct.unpack_from("<Q", head, 184)[0] for head in heads] == [0, 99, 99, 99, 99], "the session of the login"
    assert len({head[128:144] for head in heads}) == 1
    login = server.requests[0][3]
    assert struct.unpack_from("<I", login)[0] == protocol.PROTOCOL_VERSION
    assert login.endswith(b"\x04iggy\x06secret" + bytes(4))
    assert server.requests[3][3] == b"\x02\x01s\x02\x01t\x02\x01g"


def test_a_token(loop):
    server = FakeServer()
    address = IggyAddress(host="127.0.0.1", port=server.port, token="a-token")
    open_sending(address, loop, print, timeout_seconds=20).close()
    assert server.requests[0][3].endswith(b"\x05" + b"0.9.0" + b"\x07a-token" + bytes(4))
    server.close()


def test_answers_are_read_by_whoever_asks_and_by_the_next_request(connect):
    held = threading.Event()
    connection, server = connect(held, (0, b"one"), (0, b"two"))
    seen = []
    first = connection.submit("send", b"1", bytes)
    first.add_done_callback(lambda future: seen.append(future.result()))
    assert not first.done()
    with pytest.raises(FutureTimeoutError):
        first.result(0.05)
    with pytest.raises(FutureTimeoutError):
        first.exception(0.05)
    held.set()
    second = connection.submit("send", b"2", bytes)
    assert seen == [b"one"], "before the second went out"
    wait_until(second.done)
    assert (second.result(), second.exception(), second.result(0)) == (b"two", None, b"two")
    assert server.sent == [b"1", b"2"]


def test_a_large_body_and_a_slow_reader(connect):
    connection, server = connect()
    body = bytearray(range(256)) * 40_000
    assert connection.submit("send", body, bytes).result() == b""
    assert server.sent == [body]


def test_an_answer_in_pieces(connect):
    request = protocol.Request(
        protocol.request_header(0, client=bytes(16), request=1, operation=SEND, session=1, code=0)
    )
    whole = protocol.reply_header(request, 5) + b"piece"
    connection, server = connect(whole[:100], (0, b"next"))
    future = connection.submit("send", b"x", bytes)
    for part in (whole[100:256], whole[256:258], whole[258:]):
        assert not future.done()
        wait_until(lambda: server.sent)
        server.peer.sendall(part)
    assert future.result(20) == b"piece"
    assert connection.submit("send", b"y", bytes).result() == b"next"


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [
        (20, IggyUnavailableError, "no such stream, topic or partition any more"),
        (1009, IggyUnavailableError, "no such stream"),
        (41, IggyAuthError, "may not do this"),
        (10006, UnknownOutcomeError, "is the disk of the server full"),
        (4017, IggyProtocolError, "status 4017"),
        (57, UnknownOutcomeError, "transiently"),
        (77777, UnknownOutcomeError, "status 77777"),
    ],
)
def test_a_send_that_is_refused_is_the_last(connect, status, kind, text):
    connection, server = connect((status, b""))
    failed = connection.submit('send to topic "t"', b"x", bytes)
    with pytest.raises(kind, match=text) as caught:
        failed.result()
    assert 'send to topic "t"' in str(caught.value)
    assert (caught.value.exit_code == EXIT_PERSON) == (status == 10006 or kind in {IggyAuthError, IggyProtocolError})
    assert connection.failure
    assert connect.ends == [connection.failure]
    with pytest.raises(IggyUnavailableError, match="not sent"):
        connection.submit("send", b"y", bytes)
    assert server.sent == [b"x"]


def test_a_membership_that_is_refused_leaves_it_alive(connect):
    connection, _ = connect((0, struct.pack("<III", 1, 0, 41)), (0, b""), (77777, b""))
    with pytest.raises(IggyAuthError, match=r"join: .*may not"):
        connection.join_group("join", "s", "t", "g")
    assert connection.failure is None
    with pytest.raises(IggyUnavailableError, match="the answer to operation 148 has 0 bytes"):
        connection.join_group("join", "s", "t", "g")


def test_an_answer_that_cannot_be_read(connect):
    def unreadable(_):
        raise IggyProtocolError("odd")

    connection, _ = connect()
    with pytest.raises(IggyProtocolError, match="odd"):
        connection.submit("send", b"x", unreadable).result()
    assert connection.failure == "odd"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("end", "closed the connection"),
        (13, "Stale client"),
        (12, "reason 12"),
        (bytes(256), "a frame of kind 0 is not a reply"),
        (struct.pack("<48xI204x", 1 << 31), "an answer of 2,147,483,392 bytes"),
    ],
)
def test_an_answer_that_is_none_leaves_the_outcome_open(connect, answer, text):
    connection, _ = connect(answer)
    with pytest.raises(UnknownOutcomeError, match=f"{text}.*may or may not be stored"):
        connection.submit("send", b"x", bytes).result()
    assert len(connect.ends) == 1


def test_no_answer_in_time(connect):
    connection, _ = connect(None, timeout_seconds=0.2)
    watch = Stopwatch()
    future = connection.submit("send", b"x", bytes)
    with pytest.raises(UnknownOutcomeError, match=r"no answer within 0\.2 s, \[iggy\] request_timeout"):
        future.result()
    assert watch.seconds < 10
    later = connect(None, timeout_seconds=0.2)[0]
    unread = later.submit("send", b"x", bytes)
    time.sleep(0.25)
    with pytest.raises(IggyUnavailableError, match=r"not sent.*no answer"):
        later.submit("send", b"y", bytes)
    assert isinstance(unread.exception(), UnknownOutcomeError)


def test_a_server_that_reads_nothing(connect):
    held = threading.Event()
    connection, _ = connect(held, None, timeout_seconds=0.3)
    head = protocol.request_header(0, client=bytes(16), request=1, operation=SEND, session=99, code=0)
    connection._write(head, b"", time.monotonic() + 9)  # the server waits with this one
    watch = Stopwatch()
    with pytest.raises(UnknownOutcomeError, match="no answer within"):
        connection.submit("send", bytes(60_000_000), bytes).result()
    assert watch.seconds < 10
    held.set()


@pytest.mark.parametrize(
    ("reason", "kind"),
    [(9, IggyAuthError), (10, IggyAuthError), (14, IggyProtocolError), (12, IggyUnavailableError)],
)
def test_a_login_that_is_refused(connect, reason, kind):
    with pytest.raises(kind) as caught:
        connect(login=reason)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("login", "kind"), [(9, IggyAuthError), ((41, b""), IggyAuthError), ((0, b""), IggyProtocolError)]
)
def test_a_login_that_is_refused_leaves_no_socket(loop, login, kind):
    server = FakeServer(login=login)
    address = IggyAddress(host="127.0.0.1", port=server.port, user="iggy", password="secret")
    with pytest.raises(kind) as caught:
        open_sending(address, loop, print)
    server.thread.join(20)  # until it reads an end
    assert not server.thread.is_alive()
    assert caught.value.__traceback__ is not None  # which knows the connection
    server.close()


def test_the_answer_to_a_login_of_another_layout(connect):
    with pytest.raises(IggyProtocolError, match="the answer to a login"):
        connect(login=(0, bytes(8)))


def test_nobody_listens(loop):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    address = IggyAddress(host="127.0.0.1", port=port, user="iggy", password="secret")
    with pytest.raises(IggyUnavailableError, match="did not answer"):
        open_sending(address, loop, print, timeout_seconds=1)


def test_no_answer_to_the_login_names_the_limit_of_connecting(connect):
    with pytest.raises(IggyUnavailableError, match=r"no answer within 0\.3 s, \[iggy\] connect_timeout"):
        connect(login=None, connect_timeout_seconds=0.3)


def test_a_close_ends_the_login(loop):
    server = FakeServer(login=None)
    address = IggyAddress(host="127.0.0.1", port=server.port, user="iggy", password="secret")
    watch, ends = Stopwatch(), []
    with pytest.raises(IggyUnavailableError):
        open_sending(address, loop, ends.append, on_made=lambda made: threading.Timer(0.1, made.close).start())
    assert watch.seconds < 10
    assert len(ends) == 1
    server.close()


def test_a_close_before_it_connects(loop):
    address = IggyAddress(host="127.0.0.1", port=1, user="iggy", password="secret")
    with pytest.raises(IggyUnavailableError, match="it was closed"):
        open_sending(address, loop, print, on_made=SendConnection.close)


def test_the_answer_to_another_request_ends_it(connect):
    """Its offsets would pass for those of records that the server has not confirmed."""
    again = threading.Event()
    connection, server = connect((0, b"one"), again, None)
    assert connection.submit("send", b"1", bytes).result() == b"one"
    future = connection.submit("send", b"2", bytes)
    wait_until(lambda: len(server.sent) == 2)
    operation, number, *_, head = server.requests[-2]
    assert (operation, number) == (SEND, 1)
    server.peer.sendall(protocol.reply_header(protocol.Request(head), 3) + b"one")
    with pytest.raises(UnknownOutcomeError, match="an answer to another request"):
        future.result(20)
    again.set()


def test_closing_between_an_answer_and_its_result(connect, monkeypatch):
    connection, _ = connect()
    read_reply = protocol.read_reply
    monkeypatch.setattr(protocol, "read_reply", lambda *frame: (connection.close(), read_reply(*frame))[1])
    with pytest.raises(UnknownOutcomeError, match="was closed"):
        connection.submit("send", b"x", bytes).result(20)


def test_an_interrupted_answer_ends_it(connect, monkeypatch):
    """The rest of it would pass for the next one."""
    connection, _ = connect()
    future = connection.submit("send", b"x", bytes)

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(connection, "_read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        future.result(20)
    assert connection.failure == "it was interrupted by KeyboardInterrupt"
    with pytest.raises(UnknownOutcomeError):
        future.result(20)


def test_closing_ends_a_wait_in_another_thread(connect):
    connection, _ = connect(None)
    future = connection.submit("send", b"x", bytes)
    threading.Timer(0.1, connection.close).start()
    watch = Stopwatch()
    with pytest.raises(UnknownOutcomeError):
        future.result()
    assert watch.seconds < 10
    connection.close()
    with pytest.raises(IggyUnavailableError, match="not sent"):
        connection.submit("send", b"x", bytes)


def test_closing_in_the_middle_of_a_call_as_a_signal_does(connect, monkeypatch):
    connection, _ = connect(None)
    future = connection.submit("send", b"x", bytes)
    monkeypatch.setattr(connection, "_read", connection.close)
    with pytest.raises(UnknownOutcomeError, match="was closed"):
        future.result(5)


def test_an_interrupted_request_ends_it(connect, monkeypatch):
    connection, _ = connect()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(connection, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        connection.submit("send", b"x", bytes)
    assert connection.failure == "it was interrupted by KeyboardInterrupt"


def test_heartbeats_while_it_is_idle(connect, monkeypatch):
    monkeypatch.setattr(send_connection, "HEARTBEAT_SECONDS", 0.05)
    connection, server = connect()
    wait_until(lambda: sum(code == protocol.PING for _, _, code, *_ in server.requests) > 3)
    assert connection.submit("send", b"x", bytes).result() == b"", "the answer to a heartbeat is not that to a send"
    server.peer.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: connect.ends)
    with pytest.raises(IggyUnavailableError, match="not sent"):
        connection.submit("send", b"x", bytes)


def test_a_heartbeat_that_is_not_answered_ends_it(connect, monkeypatch):
    monkeypatch.setattr(send_connection, "HEARTBEAT_SECONDS", 0.05)
    connect(None, timeout_seconds=0.3)
    wait_until(lambda: connect.ends)
    assert "no answer within 0.3 s" in connect.ends[0]


def test_one_that_nobody_has_any_more_is_closed(loop):
    """Its heartbeats would keep it, and with it a claim."""
    server = FakeServer()
    address = IggyAddress(host="127.0.0.1", port=server.port, user="iggy", password="secret")
    made = open_sending(address, loop, print, timeout_seconds=20)
    assert made.submit("send", b"x", bytes).result() == b""
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()  # its first turn in the loop is over
    del made
    server.thread.join(20)
    assert not server.thread.is_alive()
    server.close()


def test_a_request_leaves_no_cycle(connect):
    connection, _ = connect((0, b"a"), (20, b""))
    gc.collect()
    gc.disable()
    try:
        future = connection.submit("send", b"x", bytes)
        future.result()
        gone = weakref.ref(future)
        del future
        assert gone() is None
    finally:
        gc.enable()


def test_what_nobody_pulls_completes_by_itself():
    future = PulledFuture(lambda seconds: None)
    assert not future.done()
    with pytest.raises(FutureTimeoutError):
        future.result(0)
    threading.Timer(0.05, future.set_result, (5,)).start()
    assert future.result(20) == 5
    assert future.exception() is None
