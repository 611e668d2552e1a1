"""Reading ahead: bounded in bytes by all streams together, never stuck, and everything given back."""

import io
import threading
import time

import pytest

from framework.errors import CorruptObjectError, StoreContractError, TaskClosedError
from framework.storage.http.read_room import CHUNK_BYTES, FetchBudget, StreamRoom
from framework.storage.prefetch import FetchedInput, FetchedStream, Prefetcher
from transformers import BytesInput


class Watched:
    """An input that counts what is open, and can hold its reads back."""

    def __init__(self, data, error=None, gate=None):
        self.inner = BytesInput(data)
        self.key, self.location, self.size = "k", "memory://k", len(data)
        self.error, self.gate = error, gate
        self.opened, self.open_now = [], 0

    def open(self, start=0, end=None):
        self.opened.append((start, end))
        self.open_now += 1
        return _WatchedStream(self, self.inner.open(start, end))


class _WatchedStream:
    def __init__(self, owner, inner):
        self.owner, self.inner, self.closed = owner, inner, False

    def read(self, size, /):
        if self.owner.gate is not None:
            assert self.owner.gate.wait(60)
        data = self.inner.read(size)
        if not data and self.owner.error is not None:
            raise self.owner.error
        return data

    def close(self):
        if not self.closed:
            self.closed = True
            self.owner.open_now -= 1


@pytest.fixture
def ahead():
    made = []

    def make(objects=3, max_bytes=8 * CHUNK_BYTES):
        made.append(Prefetcher(objects=objects, max_bytes=max_bytes))
        return made[-1]

    yield make
    for one in made:
        end_threads(one)


def end_threads(fetch):
    fetch._pool.shutdown()
    for thread in fetch._pool._threads:
        thread.join()


def read_all(stream, size=70_000):
    data = []
    while chunk := stream.read(size):
        data.append(chunk)
    return b"".join(data)


def content(size):
    return bytes(range(251)) * (size // 251) + b"\0" * (size % 251)


def final(fetch, *, least=0):
    """Waits until the threads have read what they may, and so much at the least."""
    budget = fetch._budget
    seen = None
    for _ in range(3000):
        if seen == budget.used >= least:
            return budget.used
        seen = budget.used
        time.sleep(0.02)
    raise AssertionError("it never settles")


def test_the_bytes_come_whole_and_in_order(ahead):
    data = content(3 * CHUNK_BYTES + 17)
    source = Watched(data)
    fetch = ahead()
    stream = fetch.fetch(source, 5).open(5)
    assert read_all(stream) == data[5:]
    stream.close()
    end_threads(fetch)
    assert (source.opened, source.open_now, fetch._budget.used) == ([(5, None)], 0, 0)


def test_all_streams_together_hold_no_more_than_the_budget(ahead):
    limit = 6 * CHUNK_BYTES
    sources = [Watched(content(4 * CHUNK_BYTES)) for _ in range(5)]
    fetch = ahead(objects=5, max_bytes=limit)
    fetched = [fetch.fetch(source, 0) for source in sources]
    assert final(fetch, least=CHUNK_BYTES) <= limit
    for source, one in zip(sources, fetched, strict=True):
        stream = one.open(0)
        assert len(read_all(stream)) == source.size
        assert fetch._budget.used <= limit
        stream.close()
    end_threads(fetch)
    assert fetch._budget.used == 0


def test_the_object_that_is_handed_out_goes_on_when_others_have_taken_the_budget(ahead):
    fetch = ahead(objects=3, max_bytes=CHUNK_BYTES)
    gate = threading.Event()
    head = Watched(content(3 * CHUNK_BYTES), gate=gate)
    first = fetch.fetch(head, 0)
    others = [fetch.fetch(Watched(content(CHUNK_BYTES)), 0) for _ in range(2)]
    gate.set()
    assert len(read_all(first.open(0))) == head.size
    for one in others:
        one.close()


def test_a_small_object_takes_no_more_of_the_budget_than_it_has(ahead):
    fetch = ahead(objects=3, max_bytes=CHUNK_BYTES)
    for _ in range(3):
        fetch.fetch(Watched(b"x" * 10), 0)
    assert final(fetch) <= 33


def test_what_fails_fails_after_what_came_before(ahead):
    error = CorruptObjectError("broken", location="memory://k")
    stream = ahead().fetch(Watched(b"abc", error=error), 0).open(0)
    assert stream.read(100) == b"abc"
    for _ in range(2):
        with pytest.raises(CorruptObjectError):
            stream.read(100)


def test_another_range_goes_to_the_object_and_gives_the_fetched_one_up(ahead):
    data = content(1000)
    source = Watched(data)
    fetch = ahead()
    fetched = fetch.fetch(source, 0)
    assert read_all(fetched.open(10, 20)) == data[10:20]
    end_threads(fetch)
    assert fetch._budget.used == 0
    assert (10, 20) in source.opened
    assert read_all(fetched.open(0)) == data  # the fetched one is gone: asked for anew


def test_an_input_that_nothing_was_fetched_of_asks_when_it_is_opened():
    source = Watched(b"abc")
    fetched = FetchedInput(source, 0, None)
    assert (fetched.location, fetched.key, fetched.size, source.opened) == ("memory://k", "k", 3, [])
    assert fetched.open(1, 2).read(10) == b"b"
    fetched.close()


def test_closing_gives_the_bytes_and_the_connection_back_and_may_be_done_twice(ahead):
    source = Watched(content(4 * CHUNK_BYTES))
    fetch = ahead(max_bytes=2 * CHUNK_BYTES)
    fetched = fetch.fetch(source, 0)
    final(fetch)
    fetched.close()
    fetched.close()
    fetch.close()
    fetch.close()
    end_threads(fetch)
    assert (fetch._budget.used, source.open_now) == (0, 0)


@pytest.mark.parametrize("size", [1, 3, 7, 8])
def test_a_chunk_is_read_in_pieces_of_any_size(size):
    budget = FetchBudget(1000)
    stream = FetchedStream(Watched(b"abcdefg").open, 7, StreamRoom(budget))
    stream.fill()
    pieces = [stream.read(size) for _ in range(7 // size + 2)]
    assert b"".join(pieces) == b"abcdefg"
    assert [len(piece) for piece in pieces][: 7 // size] == [min(size, 7)] * (7 // size)
    assert (pieces[-1], budget.used) == (b"", 0)


def test_what_is_left_of_a_chunk_is_given_back_with_its_stream():
    budget = FetchBudget(1000)
    stream = FetchedStream(Watched(b"abcdefg").open, 7, StreamRoom(budget))
    stream.fill()
    assert (stream.read(3), budget.used) == (b"abc", 4)
    stream.close()
    assert budget.used == 0


@pytest.mark.parametrize("change", ["give", "make_head", "close"])
def test_who_waits_for_room_is_woken_once_and_without_the_lock(change):
    budget = FetchBudget(1000)
    full, waiting = StreamRoom(budget), StreamRoom(budget)
    free = []

    def look():
        free.append(budget.lock.acquire(blocking=False))
        budget.lock.release()

    def resume():
        looking = threading.Thread(target=look)  # as the thread of the requests, which takes the lock at once
        looking.start()
        looking.join()

    assert full.take(750, resume)
    assert not waiting.take(1, resume)
    for _ in range(2):
        getattr(full, change)(*([750] if change == "give" else []))
    assert free == [True]


def test_a_read_that_waits_ends_when_the_stream_is_closed():
    gate = threading.Event()
    stream = FetchedStream(Watched(b"abc", gate=gate).open, 3, StreamRoom(FetchBudget(1000)))
    failed = []

    def read():
        try:
            stream.read(10)
        except TaskClosedError as error:
            failed.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    stream.close()
    reader.join(30)
    assert len(failed) == 1
    gate.set()


def test_a_read_of_what_no_thread_has_begun_ends_when_everything_is_closed(ahead):
    gate = threading.Event()
    fetch = ahead(objects=1)
    busy = fetch.fetch(Watched(b"abc", gate=gate), 0)
    waiting = fetch.fetch(Watched(b"abc"), 0).open(0)
    failed = []

    def read():
        try:
            waiting.read(10)
        except TaskClosedError as error:
            failed.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    fetch.close()
    reader.join(30)
    gate.set()
    assert len(failed) == 1
    busy.close()


def test_a_stream_that_cannot_be_closed_is_an_error_and_no_wait_for_ever(ahead):
    source = Watched(b"x")
    source.open = lambda *_: Unclosable()
    stream = ahead().fetch(source, 0).open(0)
    assert stream.read(10) == b"x"
    with pytest.raises(StoreContractError, match="OSError: it cannot be closed"):
        stream.read(10)


class Endless:
    """A stream that its author gave no `close`."""

    def read(self, size, /):
        return b""


def test_a_stream_without_close_and_an_input_without_open_are_mistakes_of_the_source(ahead):
    source = Watched(b"")
    source.open = lambda *_: Endless()
    with pytest.raises(StoreContractError, match=r"^memory://k: .*AttributeError: 'Endless' object has no .* 'close'"):
        ahead().fetch(source, 0).open(0).read(10)
    stream = FetchedInput(source, 0, None).open(0)
    with pytest.raises(StoreContractError, match=r"^memory://k: .*AttributeError: 'Endless' object has no .* 'close'"):
        stream.close()
    with pytest.raises(StoreContractError, match=r"^memory://k: .*AttributeError: 'Closed' object has no .* 'open'"):
        FetchedInput(Closed(), 0, None).open(0)


class Reusing:
    """An input whose stream gives the same buffer with each read, as some files and sockets are read."""

    key, location = "k", "memory://k"

    def __init__(self, data, given):
        self.file, self.size = io.BytesIO(data), len(data)
        self.buffer, self.given = bytearray(70_000), given

    def open(self, start=0, end=None):
        return self

    def read(self, size, /):
        with memoryview(self.buffer) as whole, whole[: min(size, len(whole))] as part:
            length = self.file.readinto(part)
        return self.given(self.buffer, length)

    def close(self):
        pass


def as_view(buffer, length):
    return memoryview(buffer)[:length]


def as_bytearray(buffer, length):
    return buffer if length == len(buffer) else buffer[:length]


@pytest.mark.parametrize("ahead_of", [True, False])
@pytest.mark.parametrize("given", [as_view, as_bytearray])
def test_a_stream_that_gives_its_own_buffer_may_use_it_again(ahead, given, ahead_of):
    data = content(300_000)
    fetch = ahead()
    source = Reusing(data, given)
    fetched = fetch.fetch(source, 0) if ahead_of else FetchedInput(source, 0, None)
    stream = fetched.open(0)
    if ahead_of:
        final(fetch, least=len(data))
    read = list(iter(lambda: stream.read(50_000), b""))
    assert b"".join(read) == data
    assert {type(piece) for piece in read} == {bytes}


class Closed:
    """An input that its author gave no `open`."""

    key, location, size = "k", "memory://k", 9


class Unclosable:
    def __init__(self):
        self.data = [b"x"]

    def read(self, size, /):
        return self.data.pop() if self.data else b""

    def close(self):
        raise OSError("it cannot be closed")


class VendorError(Exception):
    """An error that the source should have mapped."""


class Failing:
    """An input whose stream does in each read what it is given, or else ends."""

    key, location, size = "k", "memory://k", 9

    def __init__(self, read=None, opened=None):
        self.read_with, self.opened = read, opened

    def open(self, start=0, end=None):
        if isinstance(self.opened, Exception):
            raise self.opened
        return self if self.opened is None else self.opened

    def read(self, size, /):
        if isinstance(self.read_with, Exception):
            raise self.read_with
        return self.read_with

    def close(self):
        pass


def prefetched(ahead, source):
    return ahead().fetch(source, 0).open(0).read(9)


def on_demand(ahead, source):
    return FetchedInput(source, 0, None).open(0).read(9)


@pytest.mark.parametrize("read", [prefetched, on_demand])
@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            Failing(VendorError("slow down")),
            rf"reading it failed with VendorError: slow down \({__name__}, line \d+, in read",
        ),
        (Failing(ConnectionResetError()), r"failed with ConnectionResetError \("),
        (Failing(opened=TimeoutError("of http://u:p@h/b?Signature=s")), r"TimeoutError: of http://h/b \(.* in open\)"),
        (Failing(StopIteration()), "failed with StopIteration"),
        (Failing("text"), "Failing.read returned str, not bytes"),
        (Failing(opened=b"bytes"), "Failing.open returned bytes, not a ReadStream"),
    ],
)
def test_what_a_source_may_not_raise_or_return_is_no_damage_of_the_object(ahead, read, source, message):
    with pytest.raises(StoreContractError, match=rf"^memory://k: .*{message}"):
        read(ahead, source)


@pytest.mark.parametrize("read", [prefetched, on_demand])
@pytest.mark.parametrize("error", [CorruptObjectError("cut"), MemoryError(), ModuleNotFoundError("boto3")])
def test_what_a_source_may_raise_stays_what_it_is(ahead, read, error):
    with pytest.raises(type(error)) as caught:
        read(ahead, Failing(error))
    assert caught.value is error


def test_a_small_object_is_there_as_a_whole_and_can_still_be_opened(ahead):
    source = Watched(content(1000))
    fetch = ahead()
    fetched = fetch.fetch(source, 0)
    assert fetched.whole() == fetched.whole() == content(1000)
    assert read_all(fetched.open()) == content(1000)
    fetched.close()
    assert (source.opened, fetch._budget.used) == ([(0, None)], 0)


def test_what_was_taken_as_a_whole_gives_its_room_back(ahead):
    fetch = ahead()
    fetched = fetch.fetch(Watched(content(1000)), 0)
    assert fetched.whole() == content(1000)
    fetched.close()
    fetched.close()
    assert fetch._budget.used == 0


def test_only_a_whole_object_is_there_as_a_whole(ahead):
    source = Watched(content(1000))
    fetch = ahead()
    for start, end in ((1, None), (0, 999)):
        part = fetch.fetch(source, start, end)
        assert part.whole() is None
        part.close()
    assert FetchedInput(source, 0, None).whole() is None


def test_an_object_that_fails_is_not_there_as_a_whole_and_its_stream_tells_why(ahead):
    fetched = ahead().fetch(Watched(content(1000), error=CorruptObjectError("cut", location="k")), 0)
    assert fetched.whole() is None
    with pytest.raises(CorruptObjectError):
        read_all(fetched.open())


def test_an_object_that_has_no_room_as_a_whole_is_read_in_pieces(ahead):
    data = content(9 * CHUNK_BYTES)
    fetched = ahead(max_bytes=2 * CHUNK_BYTES).fetch(Watched(data), 0)
    assert fetched.whole() is None
    assert read_all(fetched.open()) == data


def test_a_close_while_the_whole_object_is_joined_takes_none_of_its_bytes():
    stream = FetchedStream(Watched(b"abcdefg").open, 7, StreamRoom(FetchBudget(1000)))
    stream.fill()
    closer = threading.Thread(target=stream.close)

    class Chunks(type(stream._chunks)):
        def __iter__(self):
            closer.start()
            closer.join(0.05)
            return super().__iter__()

    stream._chunks = Chunks(stream._chunks)
    assert stream.whole() == b"abcdefg"
    closer.join()
    assert stream.whole() is None


def test_what_comes_after_a_close_is_not_kept():
    stream = FetchedStream(lambda: Closing(), 7, StreamRoom(FetchBudget(1000)))  # noqa: PLW0108

    class Closing:
        def read(self, size, /):
            stream.close()
            return b"abcdefg"

        def close(self):
            pass

    stream.fill()
    assert not stream._chunks


def test_a_close_ends_the_wait_for_the_whole_object(ahead):
    gate = threading.Event()
    fetched = ahead().fetch(Watched(content(1000), gate=gate), 0)
    room = fetched._stream._room

    def close():
        while not room.is_head:  # `whole` has begun
            time.sleep(0.001)
        fetched.close()

    closer = threading.Thread(target=close)
    closer.start()
    with pytest.raises(TaskClosedError):
        fetched.whole()
    closer.join()
    gate.set()
