"""Streams go on where they broke, keep to one version, and never end short."""

import threading
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import (
    CorruptObjectError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreContractError,
    StoreUnavailableError,
    TaskClosedError,
    TruncatedObjectError,
)
from framework.model.objects import NativeObject
from framework.storage.checksum import Checksum
from framework.storage.http.body import announces_length, expected_bytes
from framework.storage.prefetch import Prefetcher
from framework.storage.resuming_stream import StoreInput
from framework.storage.retry import RetryPolicy
from framework.store import ListPage, ObjectStore

DATA = bytes(range(251)) * 4  # 1004 bytes: 251 is prime, so no read size below lines up with it


class BreakingStore(ObjectStore):
    """Gives `data`, but each connection breaks after so many bytes, as listed; None = whole."""

    scheme = "test"
    bucket = "b"

    def __init__(self, breaks=(), data=DATA, short=None, open_errors=()):
        self.breaks = list(breaks)
        self.data = data
        self.short = short
        self.open_errors = list(open_errors)
        self.opened = []
        self.unclosed = 0
        self.checksum = None

    def list_page(self, *, prefix="", after="", continuation=None, page_size=1000):
        return ListPage(objects=[self.native()])

    def native(self, size=None):
        return NativeObject(scheme="test", bucket="b", key="k", size=len(DATA) if size is None else size, version="v")

    def open(self, native, start=0, end=None):
        self.opened.append((start, end))
        if self.open_errors:
            error = self.open_errors.pop(0)
            if error is not None:
                raise error
        self.unclosed += 1
        limit = self.breaks.pop(0) if self.breaks else None
        return Stream(self, start, native.size if end is None else end, limit)

    def close(self):
        pass


class Stream:
    def __init__(self, store, start, end, limit):
        self.checksum = store.checksum() if store.checksum is not None and not start else None
        self.store, self.position, self.limit = store, start, limit
        self.end = min(end, len(store.data) if store.short is None else store.short)
        self.closed = False

    def read(self, size):
        if self.limit is not None:
            if self.limit <= 0:
                raise StoreUnavailableError("test://b/k: broken")
            size = min(size, self.limit)
        data = self.store.data[self.position : min(self.position + size, self.end)]
        self.position += len(data)
        if self.limit is not None:
            self.limit -= len(data)
        return data

    def close(self):
        if not self.closed:
            self.closed = True
            self.store.unclosed -= 1


def drain(stream, size=100):
    parts = []
    while data := stream.read(size):
        parts.append(data)
    stream.close()
    return b"".join(parts)


def source(store, native=None, **more):
    return StoreInput(store, native or store.native(), RetryPolicy(**more).without_waiting())


def test_a_whole_object_is_one_request_without_a_range_end():
    store = BreakingStore()
    assert drain(source(store).open()) == DATA
    assert store.opened == [(0, None)]
    assert store.unclosed == 0


@pytest.mark.parametrize("error", [StoreUnavailableError("away"), ObjectNotFoundError("gone", location="test://b/k")])
def test_a_read_that_cannot_be_begun_ahead_is_opened_as_any_other(error):
    class Begins(BreakingStore):
        def begin(self, native, start, end, *, room, retry):
            raise error

    store = Begins(open_errors=[StoreUnavailableError("away")])
    fetch = Prefetcher(objects=2, max_bytes=1 << 20)
    fetched = fetch.fetch(source(store), 0)
    assert drain(fetched.open(0)) == DATA
    assert store.opened == [(0, None), (0, None)]
    fetch.close()


def test_a_broken_read_goes_on_at_the_byte_it_reached():
    store = BreakingStore(breaks=[317, 1, None])
    assert drain(source(store).open(), 90) == DATA
    assert store.opened == [(0, None), (317, None), (318, None)]
    assert store.unclosed == 0


@given(
    breaks=st.lists(st.integers(0, 400), max_size=20),
    bounds=st.tuples(st.integers(0, len(DATA) + 9), st.none() | st.integers(0, len(DATA) + 9)),
    size=st.integers(1, 300),
)
def test_any_breaks_any_range_any_read_size_give_exactly_the_range(breaks, bounds, size):
    store = BreakingStore(breaks=breaks)
    start, end = bounds
    assert drain(source(store, attempts=30, budget_seconds=1e9).open(start, end), size) == DATA[start:end]
    assert store.unclosed == 0


def test_an_empty_range_makes_no_request():
    store = BreakingStore()
    assert drain(source(store).open(7, 7)) == b""
    assert drain(source(store).open(len(DATA))) == b""
    assert store.opened == []


def test_progress_renews_the_budget():
    # Each connection gives 3 bytes: 335 breaks in all, with two tries for each.
    store = BreakingStore(breaks=[3] * 400)
    assert drain(source(store, attempts=2).open()) == DATA
    assert len(store.opened) == 335


def test_connections_that_break_before_a_byte_use_the_budget_up():
    store = BreakingStore(breaks=[500] + [0] * 99)
    stream = source(store, attempts=5).open()
    assert len(stream.read(500)) == 500
    with pytest.raises(StoreUnavailableError, match="gave up reading test://b/k on from byte 500 after 5 tries"):
        stream.read(500)
    assert len(store.opened) == 1 + 4
    assert store.unclosed == 0
    with pytest.raises(TaskClosedError, match="after a failure"):
        stream.read(1)
    stream.close()


def test_a_version_that_is_gone_ends_the_resume():
    store = BreakingStore(breaks=[10], open_errors=[None, ObjectChangedError("other", location="test://b/k")])
    stream = source(store).open()
    stream.read(10)
    with pytest.raises(ObjectChangedError):
        stream.read(10)
    stream.close()


def test_opening_is_tried_again():
    store = BreakingStore(open_errors=[StoreUnavailableError("a"), StoreUnavailableError("b"), None])
    assert drain(source(store).open()) == DATA
    assert len(store.opened) == 3


def test_an_object_that_is_gone_is_not_asked_for_again():
    store = BreakingStore(open_errors=[ObjectNotFoundError("gone", location="test://b/k")] * 9)
    with pytest.raises(ObjectNotFoundError):
        source(store).open()
    assert len(store.opened) == 1


@pytest.mark.parametrize("short", [0, 1, 999, len(DATA) - 1])
def test_a_short_end_is_never_silent_and_names_both_numbers(short):
    store = BreakingStore(short=short)
    stream = source(store).open()
    with pytest.raises(TruncatedObjectError, match=rf"ends at byte {short}\b.*\b{len(DATA)}\b"):
        drain(stream, 70)
    stream.close()
    assert store.unclosed == 0


def test_a_short_end_after_a_break_is_not_silent_either():
    store = BreakingStore(breaks=[200], short=200)
    stream = source(store).open()
    with pytest.raises(TruncatedObjectError, match="ends at byte 200"):
        drain(stream, 70)
    stream.close()
    assert store.unclosed == 0


def test_waiting_ends_on_stop():
    stop = threading.Event()
    stop.set()
    store = BreakingStore(breaks=[10])
    stream = StoreInput(store, store.native(), RetryPolicy(base_seconds=60, cap_seconds=60), stop=stop).open()
    stream.read(10)
    with pytest.raises(TaskClosedError):
        stream.read(10)
    stream.close()
    assert store.unclosed == 0


def test_closing_twice_is_fine_and_reading_after_it_is_not():
    store = BreakingStore()
    stream = source(store).open()
    stream.close()
    stream.close()
    assert store.unclosed == 0
    with pytest.raises(TaskClosedError):
        stream.read(1)


def test_retries_are_told():
    store, told = BreakingStore(breaks=[10, 20]), []
    given = StoreInput(
        store,
        store.native(),
        RetryPolicy().without_waiting(),
        on_retry=lambda error, tries, seconds: told.append((type(error), tries)),
    )
    assert drain(given.open()) == DATA
    assert told == [(StoreUnavailableError, 1), (StoreUnavailableError, 1)]


@pytest.mark.parametrize("length", ["\xb2", "\u0663", "9" * 5000, "-1", "x", ""])
def test_a_length_that_is_no_number_is_none(length):
    native = BreakingStore().native()
    headers = {"content-length": length}
    assert not announces_length(headers)
    assert expected_bytes(native, 0, native.size, status=200, headers=headers) == native.size
    headers["content-range"] = f"bytes 5-9/{'9' * 5000}"
    with pytest.raises(StoreUnavailableError, match=r"without saying which; .*check the options endpoint and proxy"):
        expected_bytes(native, 5, 10, status=206, headers=headers)


def test_the_unit_of_a_range_is_the_same_in_any_case():
    native = BreakingStore().native()
    headers = {"content-range": f"BYTES 5-9/{native.size}"}
    assert expected_bytes(native, 5, 10, status=206, headers=headers) == 5


def crc32_of(data):
    return lambda: Checksum("crc32", zlib.crc32(data), zlib.crc32)


@pytest.mark.parametrize("breaks", [[], [317], [1, 2, 500]])
def test_a_checksum_holds_over_all_the_streams_of_a_read(breaks):
    store = BreakingStore(breaks=breaks)
    store.checksum = crc32_of(DATA)
    assert drain(source(store).open(), 90) == DATA


@pytest.mark.parametrize("breaks", [[], [317]])
def test_bytes_that_were_changed_on_the_way_are_told_before_the_last_of_them(breaks):
    store = BreakingStore(breaks=breaks, data=DATA[:500] + b"?" + DATA[501:])
    store.checksum = crc32_of(DATA)
    stream = source(store).open()
    with pytest.raises(CorruptObjectError, match=r"test://b/k: its bytes have the crc32 [0-9a-f]{8}, the store says"):
        drain(stream, len(DATA))
    stream.close()
    stream = source(store).open()
    seen = stream.read(317) + stream.read(300)
    with pytest.raises(CorruptObjectError):
        drain(stream, len(DATA) - len(seen))
    stream.close()
    assert store.unclosed == 0


def test_a_part_of_an_object_has_no_checksum():
    store = BreakingStore()
    store.checksum = crc32_of(b"something else")
    assert drain(source(store).open(0, 500)) == DATA[:500]
    assert drain(source(store).open(5)) == DATA[5:]


def test_it_is_what_a_transformer_reads_from():
    given = source(BreakingStore())
    assert (given.location, given.key, given.size) == ("test://b/k", "k", len(DATA))
    assert repr(given) == "StoreInput(test://b/k, 1004 bytes)"


def test_a_store_that_opens_nothing_or_reads_nothing_is_named():
    class Opens(BreakingStore):
        def open(self, native, start=0, end=None):
            return None

    class Reads(BreakingStore):
        def open(self, native, start=0, end=None):
            stream = super().open(native, start, end)
            stream.read = lambda size: None
            return stream

    store = Opens()
    with pytest.raises(StoreContractError, match=r"test://b/k: Opens.open returned NoneType, not a ReadStream"):
        StoreInput(store, store.native()).open()
    store = Reads()
    with pytest.raises(StoreContractError, match=r"test://b/k: Stream.read returned NoneType, not bytes"):
        StoreInput(store, store.native()).open().read(10)


@pytest.mark.parametrize(
    ("listed", "end", "error", "message"),
    [
        (1000, None, ObjectChangedError, "test://b/k: more bytes came than the 1000 listed"),
        (1004, 900, StoreContractError, "the bytes up to 900 were requested, and more came: `end` is exclusive"),
    ],
)
def test_more_bytes_than_requested_are_no_bytes_of_the_object(listed, end, error, message):
    class Longer(BreakingStore):
        def open(self, native, start=0, end=None):
            return super().open(self.native(1004), start)

    store = Longer()
    with pytest.raises(error, match=message):
        StoreInput(store, store.native(listed)).open(0, end).read(4096)
