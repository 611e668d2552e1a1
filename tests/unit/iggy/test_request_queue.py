"""The queue of requests: order, one at a time, and what a failure does to those behind it. No network: a client of futures."""

import asyncio
import threading
import time
import weakref

import pytest

from framework.config.iggy_address import IggyAddress
from framework.errors import (
    IggyProtocolError,
    IggyTopicError,
    IggyUnavailableError,
    TaskClosedError,
    UnknownOutcomeError,
)
from framework.iggy.connection import IggyConnection
from framework.iggy.loop import background_loop
from framework.iggy.request_queue import RequestQueue


class Client:
    """Hands out futures that the test answers, in the order in which the requests were begun."""

    def __init__(self):
        self.begun = []
        self.more = threading.Semaphore(0)

    def call(self, name):
        future = asyncio.get_running_loop().create_future()
        self.begun.append((name, future))
        self.more.release()
        return future

    def answer(self, number, result):
        assert self.more.acquire(timeout=60)
        future = self.begun[number][1]

        def do():
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        background_loop().call_soon_threadsafe(do)


@pytest.fixture
def client():
    return Client()


@pytest.fixture
def queue(client):
    return RequestQueue(client, background_loop(), server="h:1", login="user", timeout_seconds=30)


def submit(queue, name, *, sending=False, finish=lambda answer: answer):
    return queue.submit(name, lambda client: client.call(name), finish, sending=sending)


def test_one_at_a_time_in_order(queue, client):
    futures = [submit(queue, name) for name in "abc"]
    for number, name in enumerate("abc"):
        client.answer(number, name.upper())
        assert futures[number].result(60) == name.upper()
        assert len(client.begun) <= number + 2
    assert [name for name, _ in client.begun] == ["a", "b", "c"]


def test_a_request_that_must_wait_wakes_no_thread(queue, client, monkeypatch):
    """The end of the one under way begins it: a wake-up costs two threads a turn of the interpreter."""
    loop, woken = background_loop(), []
    wake = loop.call_soon_threadsafe
    first = submit(queue, "a")
    assert client.more.acquire(timeout=60)
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(60)  # it has begun, and is known as under way
    client.more.release()
    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_soon_threadsafe", lambda *call: (woken.append(call), wake(*call))[1])
        second = submit(queue, "b")
    assert woken == []
    client.answer(0, "A")
    client.answer(1, "B")
    assert (first.result(60), second.result(60)) == ("A", "B")


def test_the_next_request_is_on_its_way_before_an_answer_is_handed_on(queue, client):
    """Whoever takes the answer would keep the server waiting."""
    begun, first = [], submit(queue, "a")
    first.add_done_callback(lambda _: begun.extend(name for name, _ in client.begun))
    second = submit(queue, "b")
    client.answer(0, "A")
    assert first.result(60) == "A"
    client.answer(1, "B")
    assert second.result(60) == "B"
    assert begun == ["a", "b"]


def test_an_answer_counts_also_when_the_next_request_cannot_begin(queue, client):
    def panic(_client):
        raise RuntimeError("panicked")

    first = submit(queue, "a", sending=True)
    second = queue.submit("b", panic, lambda answer: answer, sending=True)
    client.answer(0, "A")
    assert first.result(60) == "A"
    with pytest.raises(IggyUnavailableError, match="panicked"):
        second.result(60)
    assert queue.failure == "panicked"


def test_requests_of_many_threads_all_end(queue, client):
    """Each comes while another ends: none is left waiting."""

    def answer():
        for number in range(400):
            client.answer(number, number)

    def ask(results):
        results += [submit(queue, "a").result(60) for _ in range(100)]

    answering = threading.Thread(target=answer)
    answering.start()
    found = [[], [], [], []]
    threads = [threading.Thread(target=ask, args=(results,)) for results in found]
    for thread in threads:
        thread.start()
    for thread in (*threads, answering):
        thread.join(60)
    assert sorted(answer for results in found for answer in results) == list(range(400))


def test_a_break_ends_everything(queue, client):
    first, second, third = submit(queue, "a", sending=True), submit(queue, "b", sending=True), submit(queue, "c")
    client.answer(0, RuntimeError("Disconnected"))
    with pytest.raises(UnknownOutcomeError, match=r"a: .*may or may not"):
        first.result(60)
    for future in (second, third):
        with pytest.raises(IggyUnavailableError, match="not sent") as caught:
            future.result(60)
        assert not isinstance(caught.value, UnknownOutcomeError)
    with pytest.raises(IggyUnavailableError, match="not sent"):
        submit(queue, "d")
    assert len(client.begun) == 1


def test_a_refusal_of_a_question_ends_nothing(queue, client):
    first, second = submit(queue, "a"), submit(queue, "b")
    client.answer(0, RuntimeError("Topic with ID: 0 was not found."))
    client.answer(1, 7)
    with pytest.raises(IggyTopicError):
        first.result(60)
    assert second.result(60) == 7


def test_a_refused_send_lets_no_later_one_through(queue, client):
    first, second = submit(queue, "a", sending=True), submit(queue, "b", sending=True)
    client.answer(0, RuntimeError("Too many messages"))
    with pytest.raises(IggyProtocolError):
        first.result(60)
    with pytest.raises(IggyUnavailableError, match="not sent"):
        second.result(60)
    assert len(client.begun) == 1


def unreadable(_):
    raise UnknownOutcomeError("no offset in it")


def not_started(_):
    raise TypeError("bad arguments")


@pytest.mark.parametrize(
    ("start", "finish", "answer"),
    [
        (None, str, RuntimeError("refused")),
        (None, unreadable, b"x"),
        (not_started, str, None),
    ],
)
def test_whoever_learns_of_a_failed_send_finds_the_queue_ended(queue, client, start, finish, answer):
    """Records wait in another thread for the append in which their object begins: none may follow one that failed."""
    blocked, found = threading.Event(), []
    background_loop().call_soon_threadsafe(blocked.wait, 60)
    append = queue.submit("append", start or (lambda client: client.call("append")), finish, sending=True)
    append.add_done_callback(lambda _: found.append(queue.failure))
    blocked.set()
    if answer is not None:
        client.answer(0, answer)
    assert append.exception(60) is not None
    assert found[0] is not None
    with pytest.raises(IggyUnavailableError, match="not sent"):
        queue.check("send")


def test_an_answer_that_cannot_be_read_reaches_the_caller(queue, client):
    def unreadable(_answer):
        raise IggyProtocolError("no sense in it")

    first, second = submit(queue, "a", finish=unreadable), submit(queue, "b")
    client.answer(0, 1)
    client.answer(1, 2)
    with pytest.raises(IggyProtocolError, match="no sense"):
        first.result(60)
    assert second.result(60) == 2


@pytest.mark.parametrize("sending", [False, True])
def test_a_panic_of_the_client_while_an_answer_is_read_reaches_the_caller(queue, client, sending):
    class Panic(BaseException):
        """As pyo3's `PanicException`: no `Exception`."""

    def unreadable(_answer):
        raise Panic("index out of bounds")

    first, second = submit(queue, "a", finish=unreadable, sending=sending), submit(queue, "b")
    client.answer(0, 1)
    with pytest.raises(UnknownOutcomeError if sending else IggyUnavailableError, match=r"a: .*index out of bounds"):
        first.result(10)
    if sending:
        with pytest.raises(IggyUnavailableError, match="not sent"):
            second.result(10)
    else:
        client.answer(1, 2)
        assert second.result(10) == 2


def test_bad_arguments_were_not_sent(queue):
    def bad(_client):
        raise OverflowError("too large")

    with pytest.raises(IggyProtocolError, match="too large"):
        queue.submit("a", bad, int).result(60)
    assert queue.failure is None
    with pytest.raises(IggyProtocolError, match="too large"):
        queue.submit("b", bad, int, sending=True).result(60)
    assert queue.failure is not None


def test_silence_ends_at_the_limit(client):
    queue = RequestQueue(client, background_loop(), server="h:1", login="user", timeout_seconds=0.02)
    first, second = submit(queue, "a", sending=True), submit(queue, "b")
    with pytest.raises(UnknownOutcomeError, match=r"no answer within 0\.02 s, \[iggy\] request_timeout") as late:
        first.result(60)
    assert isinstance(late.value.__cause__, TimeoutError)
    with pytest.raises(IggyUnavailableError, match="not sent"):
        second.result(60)


def test_stop_twice_and_the_client_is_dropped(queue, client):
    first = submit(queue, "a", sending=True)
    assert client.more.acquire(timeout=60)
    queue.stop("it was closed")
    queue.stop("again")
    with pytest.raises(UnknownOutcomeError, match="it was closed"):
        first.result(60)
    assert queue._client is None


def test_a_cancelled_request_that_has_not_begun_is_never_sent(queue, client):
    first, second, third = submit(queue, "a"), submit(queue, "b"), submit(queue, "c")
    assert second.cancel()
    client.answer(0, 1)
    client.answer(1, 3)
    assert (first.result(60), third.result(60)) == (1, 3)
    assert [name for name, _ in client.begun] == ["a", "c"]


def test_a_request_lets_go_of_its_bytes_once_it_is_out(queue, client):
    class Token:
        pass

    token = Token()
    gone = weakref.ref(token)
    future = queue.submit("a", lambda client, token=token: client.call(repr(token)), lambda answer: answer)
    del token
    assert client.more.acquire(timeout=60)
    deadline = time.monotonic() + 60
    while gone() is not None and time.monotonic() < deadline:
        time.sleep(0.001)
    assert gone() is None
    assert not future.done()


def test_a_process_that_stood_still_while_it_connected_connects_again(monkeypatch):
    """Frozen for longer than all limits, it may see its own limit before that of the attempt."""

    async def never(_address, _seconds):
        await asyncio.Event().wait()

    monkeypatch.setattr("framework.iggy.connection.open_client", never)
    monkeypatch.setattr("framework.iggy.connection._GRACE_SECONDS", 0.0)
    connection = IggyConnection(IggyAddress.parse("iggy://user:pass@127.0.0.1:1"), connect_timeout_seconds=0.01)
    with pytest.raises(IggyUnavailableError, match=r"127\.0\.0\.1:1"):
        connection.connect()
    with pytest.raises(TaskClosedError, match="not made yet"):
        connection.own_client()
