"""The stores that ship, against every server: moto (every key, strict order), SeaweedFS (a real store), fake-gcs-server; and on
live buckets when the environment names some. Where they differ, it says so.

What one vendor has alone: test_s3_store, test_gcs_store.
"""

import contextlib
import hashlib
import http.server
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest

from framework.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ConfigError,
    CorruptObjectError,
    ListingError,
    ObjectChangedError,
    ObjectError,
    ObjectNotFoundError,
    StoreUnavailableError,
    TaskClosedError,
    ThrottledError,
)
from framework.model.objects import NativeObject
from framework.storage.prefetch import Prefetcher
from framework.storage.preflight import check_store
from framework.storage.resuming_stream import StoreInput
from framework.storage.retry import RetryPolicy
from framework.testing.faults import Fault, FaultProxy
from framework.testing.servers.ports import free_port
from tests.support.reading import drain, only, read, warm
from tests.support.stopwatch import Stopwatch
from tests.support.stores import PLAIN

CONTENT = hashlib.sha512(b"seed").digest() * 5003  # 320,192 bytes without a short period


@pytest.fixture
def opened():
    """Makes stores of a bucket, with options changed, and closes them at the end."""
    made = []

    def make(bucket, /, **changed):
        made.append(bucket.open(bucket.config(**changed)))
        return made[-1]

    yield make
    for store in made:
        store.close()


# ---------------------------------------------------------------- listing

COMMON_KEYS = [
    "a b", "a+b", "a%2Fb", "a%20b", "a&b=c;d", "a'b\"c<d>", "a?b=c&d", "a#b", "a:b@c", "*", "[x]", "a,b", "a=b", "é/ü", "é",
    "e\u0301", "emoji 😀", "\U0001d4b3/beyond", "\U0001f600", "\uffee", "d/e/f", "~x", "~a", "日本語",
]  # fmt: skip
# SeaweedFS takes a key for a path of folders: empty parts vanish, `.` is refused, control characters and backslashes too.
ODD_KEYS = [
    "a//b", "/lead", "/a", "a/./b", "a/../b", "bell\x07", "tab\there", "\x01first", "\x7f", "a\\b", "trailing/",
]  # fmt: skip


def difficult_keys(bucket):
    if bucket.kind == "seaweedfs":
        return [*COMMON_KEYS, "n" * 200 + "/" + "m" * 255]
    most = bucket.longest_key
    return [*COMMON_KEYS, *ODD_KEYS, "k" * most, "é" * (most // 2)]


@pytest.mark.parametrize("page_size", [1, 5, 7, 1000])
def test_difficult_keys_are_listed_and_read_exactly(any_bucket, opened, page_size):
    keys = difficult_keys(any_bucket)
    for key in keys:
        any_bucket.put(key, key.encode())
    store = opened(any_bucket)
    listed = list(store.list_all(page_size=page_size))
    assert sorted(native.key for native in listed) == sorted(keys)
    for native in listed:
        assert read(store, native) == native.key.encode()
        assert native.size == len(native.key.encode())
        assert (native.scheme, native.bucket) == (any_bucket.scheme, any_bucket.name)
    if any_bucket.in_order:
        assert [native.key for native in listed] == sorted(keys, key=str.encode)


@pytest.mark.parametrize("page_size", [1, 2, 3, 1000])
def test_a_page_holds_no_more_than_asked_for_and_the_chain_ends(any_bucket, opened, page_size):
    keys = [f"k/{number:02}" for number in range(7)]
    for key in keys:
        any_bucket.put(key)
    store, listed, continuation = opened(any_bucket), [], None
    while True:
        page = store.list_page(prefix="k/", continuation=continuation, page_size=page_size)
        assert len(page.objects) <= page_size
        listed += [native.key for native in page.objects]
        continuation = page.continuation
        if continuation is None:
            break
    assert listed == keys


def test_a_prefix_is_plain_text_on_every_page(any_bucket, opened):
    keys = ["a-2/1", "a-2/x", "a/1", "a/2", "a/3", "ab/x", "a0", "b"]
    for key in keys:
        any_bucket.put(key)
    store = opened(any_bucket)
    for page_size in (1, 2, 1000):
        assert [native.key for native in store.list_all(prefix="a/", page_size=page_size)] == ["a/1", "a/2", "a/3"]
    assert {native.key for native in store.list_all(prefix="a")} == set(keys) - {"b"}
    assert list(store.list_all(prefix="nothing/")) == []


@pytest.mark.parametrize("page_size", [1, 2, 3, 1000])
def test_after_is_strict_and_need_not_exist(any_bucket, opened, page_size):
    keys = ["k1", "k2", "k3", "k5"]
    if any_bucket.in_order:
        keys += ["a", "a/1", "a0", "b", "é"]
    for key in keys:
        any_bucket.put(key)
    store = opened(any_bucket)
    behind = ["", "k", "k1", "k2", "k3", "k4", "k5", "k9", "k20"]
    if any_bucket.in_order:
        behind += ["a", "a/1", "a0", "b", "é", "a/", "a/10", "aa", "zz", "\U0001f600"]
    for after in behind:
        listed = [native.key for native in store.list_all(after=after, page_size=page_size)]
        assert listed == sorted(key for key in keys if key.encode() > after.encode()), after
    if any_bucket.in_order:
        assert [one.key for one in store.list_page(after="a", page_size=1).objects] == [
            "a/1"
        ]  # the key itself is no progress


@pytest.mark.parametrize("after", ["!", "/z", "a", "a/9", "b", "b-"])
def test_a_start_key_before_the_prefix_leaves_nothing_out(any_bucket, opened, after):
    keys = ["b/1", "b/2", "b/3"]
    for key in [*keys, "a/1", "c/1"]:
        any_bucket.put(key)
    store = opened(any_bucket)
    for page_size in (2, 1000):
        assert [native.key for native in store.list_all(prefix="b/", after=after, page_size=page_size)] == keys


def test_a_listing_tells_version_time_class_and_the_stores_clock(any_bucket, opened):
    before = time.time()
    any_bucket.put("k", b"12345")
    page = opened(any_bucket).list_page()
    (native,) = page.objects
    if native.scheme == "s3":
        assert native.version == f"{hashlib.md5(b'12345').hexdigest()}@{native.modified_ms}"
    else:
        assert native.version.isdigit()
    assert (native.size, native.storage_class) == (5, "STANDARD")
    assert abs(native.modified_ms / 1000 - before) < 30
    assert abs(page.server_time_ms / 1000 - before) < 30


def test_an_object_is_looked_up_as_a_listing_shows_it(any_bucket, opened):
    keys = difficult_keys(any_bucket)[:-2]
    for key in keys:
        any_bucket.put(key, key.encode())
    any_bucket.put("a b longer", b"longer")
    store = opened(any_bucket)
    listed = {native.key: native for native in store.list_all()}
    for key in keys:
        assert store.stat(key) == listed[key]
    with pytest.raises(ObjectNotFoundError, match=rf"{any_bucket.scheme}://{any_bucket.name}/"):
        store.stat("a b l")


def test_metadata_is_of_the_listed_version(any_bucket, opened):
    any_bucket.put("a b", b"1")
    store = opened(any_bucket)
    (listed,) = store.list_all()
    found = store.metadata(listed)
    assert isinstance(found.pop("content-type"), str)
    assert all(name.startswith("meta:") for name in found)
    any_bucket.put("a b", b"other bytes")
    with pytest.raises(ObjectChangedError):
        store.metadata(listed)
    any_bucket.delete("a b")
    with pytest.raises(ObjectNotFoundError):
        store.metadata(listed)


def test_a_bucket_that_is_missing_does_not_look_like_a_missing_object(local_bucket, opened):
    with pytest.raises(ObjectNotFoundError):
        opened(local_bucket).stat("missing")
    with pytest.raises(BucketNotFoundError, match="no-such-bucket"):
        opened(local_bucket, bucket="no-such-bucket").stat("missing")


def test_a_page_that_repeats_itself_is_an_error(local_bucket, opened):
    for number in range(5):
        local_bucket.put(f"k{number}")
    with FaultProxy(local_bucket.endpoint) as proxy:
        store = opened(local_bucket, endpoint=proxy.endpoint)
        proxy.add(Fault(path="continuation-token|pageToken", repeat=True, times=None))
        # where a store repeats the token that it was asked with, the page is known before as that of another request
        with pytest.raises((ListingError, StoreUnavailableError), match=r"repeats itself|answers another request"):
            list(store.list_all(page_size=2))
        assert len(proxy.requests) <= 4


# ---------------------------------------------------------------- reading


def test_ranges_give_exactly_their_bytes(any_bucket, opened):
    any_bucket.put("big", CONTENT)
    store = opened(any_bucket)
    native, size = only(store), len(CONTENT)
    for start, end in [
        (0, None), (0, 1), (1, 2), (size - 1, None), (7, 70_000), (1000, 77_777), (0, size), (5, size + 9), (5, 10**9),
        (size, None), (9, 9),
    ]:  # fmt: skip
        assert read(store, native, start, end) == CONTENT[start:end], (start, end)


def test_an_empty_object_and_an_empty_range_need_no_request(local_bucket, opened):
    local_bucket.put("empty", b"")
    with FaultProxy(local_bucket.endpoint) as proxy:
        store = opened(local_bucket, endpoint=proxy.endpoint)
        native = only(store)
        proxy.clear()
        assert read(store, native) == b""
        assert proxy.requests == []


def test_many_threads_share_one_store_and_its_connections(any_bucket, opened):
    for number in range(60):
        any_bucket.put(f"k{number:02}", b"%02d" % number * 700)
    store = opened(any_bucket, max_connections=8)
    natives = list(store.list_all())
    with ThreadPoolExecutor(8) as pool:
        contents = list(pool.map(lambda native: read(store, native), natives * 3))
    assert contents == [b"%02d" % number * 700 for number in range(60)] * 3


def read_through(store, native):
    """The whole object as a transformer reads it: resumed, and compared."""
    return drain(StoreInput(store, native, RetryPolicy().without_waiting()).open())


WAYS = [
    *((kind, way) for kind in ("moto", "seaweedfs") for way in ("through-boto3", "short-way")),
    ("fake-gcs", "one-way"),
]
"""S3 is read by another way from the second object on."""

PLAIN_WAYS = [(kind, way) for kind, way in WAYS if kind in PLAIN]


def ways(which):
    return pytest.mark.parametrize("way", which, ids="-".join)


def on_its_way(way, bucket, store):
    if way[1] == "short-way":
        warm(bucket, store)


class TestChangedBetweenListAndRead:
    @ways(WAYS)
    @pytest.mark.parametrize("start", [0, 7])
    def test_overwritten(self, bucket_of, opened, way, start):
        bucket = bucket_of(way[0])
        store = opened(bucket)
        bucket.put("k", b"first content")
        native = only(store, "k")
        on_its_way(way, bucket, store)
        bucket.put("k", b"other content")
        with pytest.raises(ObjectChangedError) as caught:
            store.open(native, start)
        assert caught.value.location == f"{bucket.scheme}://{bucket.name}/k"
        assert read(store, only(store, "k")) == b"other content"

    @ways(WAYS)
    def test_deleted(self, bucket_of, opened, way):
        bucket = bucket_of(way[0])
        store = opened(bucket)
        bucket.put("k", b"first content")
        native = only(store, "k")
        on_its_way(way, bucket, store)
        bucket.delete("k")
        with pytest.raises(ObjectNotFoundError, match=rf"{bucket.scheme}://{bucket.name}/k: .*deleted"):
            store.open(native)
        with pytest.raises(ObjectNotFoundError):
            store.stat("k")

    @ways(PLAIN_WAYS)
    def test_another_size_under_the_same_version(self, bucket_of, opened, way):
        bucket = bucket_of(way[0])
        store = opened(bucket)
        bucket.put("k", b"content")
        native = only(store, "k")
        on_its_way(way, bucket, store)
        with pytest.raises(ObjectChangedError, match="7 bytes, listed 9"):
            store.open(attrs.evolve(native, size=9))
        with pytest.raises(ObjectChangedError, match="7 bytes, listed 9"):
            store.open(attrs.evolve(native, size=9), 2, 4)
        with pytest.raises(ObjectChangedError):  # 416
            store.open(attrs.evolve(native, size=99), 50, 60)


@pytest.mark.parametrize("fault", ["cut_at", "reset_at"])
def test_a_broken_body_goes_on_at_the_byte_it_reached(local_bucket, opened, fault):
    local_bucket.put("big", CONTENT)
    with FaultProxy(local_bucket.endpoint) as proxy:
        store = opened(local_bucket, endpoint=proxy.endpoint)
        native = only(store)
        proxy.clear()
        proxy.add(Fault(method="GET", path=local_bucket.reading("big"), times=3, **{fault: 70_001}))
        source = StoreInput(store, native, RetryPolicy().without_waiting())
        stream, parts = source.open(), []
        while data := stream.read(10_007):
            parts.append(data)
        stream.close()
        assert b"".join(parts) == CONTENT
        ranges = [request.headers.get("range") for request in proxy.requests]
        assert all(local_bucket.asks_for(request, native) for request in proxy.requests)
    assert len(ranges) == 4
    if fault == "cut_at":  # what a reset throws away differs
        last = len(CONTENT) - 1
        assert ranges == [None, f"bytes=70001-{last}", f"bytes=140002-{last}", f"bytes=210003-{last}"]


def test_an_object_overwritten_while_it_is_read_is_never_mixed(local_bucket, opened):
    local_bucket.put("big", CONTENT)
    with FaultProxy(local_bucket.endpoint) as proxy:
        store = opened(local_bucket, endpoint=proxy.endpoint)
        native = only(store)
        proxy.add(Fault(method="GET", path=local_bucket.reading("big"), cut_at=50_000))
        stream = StoreInput(store, native, RetryPolicy().without_waiting()).open()
        seen = stream.read(50_000)
        local_bucket.put("big", CONTENT[::-1])
        with pytest.raises(ObjectChangedError):  # how many reads succeed first depends on the network
            seen += drain(stream)
        stream.close()
        assert CONTENT.startswith(seen)


class TestFaults:
    @pytest.fixture(params=PLAIN_WAYS, ids="-".join)
    def rig(self, request, bucket_of, opened):
        bucket = bucket_of(request.param[0])
        bucket.put("k", CONTENT)
        self.way = request.param
        with FaultProxy(bucket.endpoint) as proxy:
            yield bucket, proxy, *self.ready(proxy, bucket, opened)

    def ready(self, proxy, bucket, opened, **changed):
        """A store behind the proxy, and the object listed."""
        store = opened(bucket, endpoint=proxy.endpoint, **changed)
        native = only(store, "k")
        on_its_way(self.way, bucket, store)
        proxy.clear()
        return store, native

    def test_slow_down_is_throttling_and_one_request(self, rig):
        bucket, proxy, store, native = rig
        status, code = bucket.throttled
        answer = bucket.refusal(status, code, "Please reduce your request rate.")
        proxy.add(Fault(**answer | {"headers": {"Retry-After": "7"}}))
        with pytest.raises(ThrottledError, match=f"{code}, HTTP {status}, Please reduce") as caught:
            store.open(native)
        assert caught.value.retry_after_seconds == 7
        assert len(proxy.requests) == 1

    @pytest.mark.parametrize("status", [400, 403, 404, 421, 500, 502, 503])
    @pytest.mark.parametrize("body", [b"", b"404 page not found\n", b"<html><body>no route</body></html>"])
    def test_what_is_no_document_of_the_store_says_nothing_of_the_object(self, rig, status, body):
        bucket, proxy, store, native = rig
        proxy.add(Fault(path=bucket.reading("k"), status=status, body=body, times=None))
        # as much as an ingress takes for a reload: the description of the object is not to be had either
        proxy.add(Fault(path=r"/o/k\?", status=status, body=body, times=None))
        with pytest.raises(StoreUnavailableError):
            store.open(native)
        proxy.clear()
        proxy.add(Fault(path=bucket.listing(), status=status, body=body))
        with pytest.raises(StoreUnavailableError):
            store.list_page()
        assert read(store, native) == CONTENT

    @pytest.mark.parametrize("drop", [(), ("content-length",)], ids=["length", "no-length"])
    @pytest.mark.parametrize("begin", [0, 70_000])
    def test_a_page_that_names_no_version_is_no_beginning_of_the_object(self, rig, begin, drop):
        bucket, proxy, store, native = rig
        page = b"<html><body>We will be back soon.</body></html>"
        proxy.add(Fault(path=bucket.reading("k"), status=200, body=page, drop=drop, times=2))
        with pytest.raises(StoreUnavailableError, match=r"/k: the answer names no version of it .*\.endpoint"):
            store.open(native, begin)
        assert drain(StoreInput(store, native, RetryPolicy().without_waiting()).open(begin)) == CONTENT[begin:]
        proxy.add(Fault(path=bucket.reading("k"), status=200, body=page, drop=drop, times=2))
        ahead = Prefetcher(objects=4, max_bytes=1 << 20)
        with contextlib.closing(ahead):
            source = StoreInput(store, native, RetryPolicy().without_waiting())
            assert drain(ahead.fetch(source, begin).open(begin)) == CONTENT[begin:]

    def test_an_object_that_is_said_to_be_gone_and_is_listed_is_tried_again(self, rig):
        bucket, proxy, store, native = rig
        code = "NoSuchKey" if bucket.scheme == "s3" else "notFound"
        proxy.add(Fault(path=bucket.reading("k"), **bucket.refusal(404, code)))
        with pytest.raises(StoreUnavailableError, match=r"shows|lists"):
            store.open(native)
        assert read(store, native) == CONTENT

    def test_an_object_is_not_gone_while_no_look_can_confirm_it(self, rig):
        bucket, proxy, store, native = rig
        bucket.delete("k")
        for pattern in (bucket.listing(), r"/o/k\?"):
            proxy.add(Fault(path=pattern, status=404, body=b"404 page not found\n"))
        with pytest.raises(StoreUnavailableError):
            store.open(native)
        proxy.clear()
        with pytest.raises(ObjectNotFoundError):
            store.open(native)

    @pytest.mark.parametrize("status", [500, 502, 504])
    def test_a_failure_of_the_store_is_retriable_and_one_request(self, rig, status):
        _, proxy, store, native = rig
        proxy.add(Fault(status=status, body=b"<html>gateway</html>"))
        with pytest.raises(StoreUnavailableError, match=str(status)):
            store.open(native)
        assert len(proxy.requests) == 1

    def test_denied_is_one_request(self, rig):
        bucket, proxy, store, native = rig
        proxy.add(Fault(**bucket.refusal(*bucket.denied)))
        with pytest.raises(AccessDeniedError, match=f"grant {bucket.may_read}"):
            store.open(native)
        assert len(proxy.requests) == 1

    def test_a_connection_refused_or_dropped_is_retriable(self, rig):
        _, proxy, store, native = rig
        proxy.add(Fault(refuse=True, times=None))  # a connection that was idle is made anew by itself
        with pytest.raises(StoreUnavailableError):
            store.open(native)
        proxy.clear()
        assert read(store, native) == CONTENT

    def test_silence_is_a_timeout(self, rig, opened):
        bucket, proxy, *_ = rig
        for _ in range(50):  # a busy machine may not answer in time before it is told to be silent
            with contextlib.suppress(StoreUnavailableError):
                store, native = self.ready(proxy, bucket, opened, read_timeout=0.5)
                break
        proxy.add(Fault(delay_seconds=1.0))
        with pytest.raises(StoreUnavailableError, match="in time"):
            store.open(native)

    def test_more_announced_than_sent_under_the_listed_size(self, rig):
        _, proxy, store, native = rig
        proxy.add(Fault(longer_by=100))
        with pytest.raises(ObjectChangedError, match=rf"{len(CONTENT) + 100} bytes, listed {len(CONTENT)}"):
            store.open(native)

    def test_a_range_that_announces_another_length_is_a_break(self, rig):
        _, proxy, store, native = rig
        proxy.add(Fault(longer_by=100))
        with pytest.raises(StoreUnavailableError, match=r"asked for 10 bytes, the store announces 110"):
            store.open(native, 5, 15)
        assert read(store, native, 5, 15) == CONTENT[5:15]

    def test_another_range_than_asked_for_is_a_break(self, rig):
        _, proxy, store, native = rig
        proxy.add(Fault(headers={"Content-Range": f"bytes 6-15/{len(CONTENT)}"}))
        with pytest.raises(StoreUnavailableError, match="asked for bytes 5 to 14, the store answered 6 to 15"):
            store.open(native, 5, 15)

    def test_a_whole_object_in_place_of_a_range_is_a_break(self, rig):
        _, proxy, store, native = rig
        proxy.add(Fault(drop_request=("range",)))
        with pytest.raises(
            StoreUnavailableError, match=r"asked for bytes 5 to 14, .* answered the whole object; .*endpoint"
        ):
            store.open(native, 5, 15)
        assert read(store, native, 5, 15) == CONTENT[5:15]

    def test_a_body_without_a_length_that_ends_early_is_a_break(self, rig):
        _, proxy, store, native = rig
        proxy.add(Fault(drop=("content-length",), cut_at=1000, times=None))
        stream = store.open(native)
        assert len(stream.read(5000)) == 1000
        with pytest.raises(StoreUnavailableError, match=f"ended after 1000 of {len(CONTENT)} bytes"):
            stream.read(5000)
        stream.close()

    def test_a_bit_that_flips_on_the_way_is_seen_where_the_store_keeps_a_checksum(self, rig, opened):
        bucket, proxy, store, native = rig
        flipped = CONTENT[:1000] + bytes([CONTENT[1000] ^ 1]) + CONTENT[1001:]
        algorithms = {"moto": ("CRC32",), "fake-gcs": (None,)}.get(bucket.kind, ("CRC32",))
        for algorithm in algorithms:
            bucket.put("k", CONTENT, **({"ChecksumAlgorithm": algorithm} if algorithm else {}))
            native = only(store, "k")
            assert read_through(store, native) == CONTENT
            proxy.add(Fault(path=bucket.reading("k"), change=lambda _: flipped))
            with pytest.raises(CorruptObjectError, match="crc32"):
                read_through(store, native)
            off = opened(bucket, endpoint=proxy.endpoint, verify_checksums=False)
            proxy.add(Fault(path=bucket.reading("k"), change=lambda _: flipped))
            assert read_through(off, native) == flipped
            assert read_through(store, native) == CONTENT

    @pytest.mark.parametrize("size", [1000, len(CONTENT) + 5])
    def test_a_body_that_goes_on_behind_the_listed_length_is_not_cut(self, rig, size):
        _, proxy, store, native = rig
        proxy.add(Fault(drop=("content-length",), change=lambda body: body + b"x", times=None))
        stream = store.open(native)
        with pytest.raises(ObjectError, match="more than its"):
            drain(stream, size)
        stream.close()

    def test_closing_early_leaves_the_store_usable(self, rig):
        _, _, store, native = rig
        for wanted in (1, 1000, len(CONTENT) - 10):
            stream = store.open(native)
            assert stream.read(wanted) == CONTENT[:wanted]
            stream.close()
            stream.close()
            with pytest.raises(TaskClosedError):
                stream.read(1)
        assert read(store, native) == CONTENT

    @pytest.mark.parametrize(
        "fault",
        [
            {"refuse": True, "times": 2},
            {"longer_by": -7},
            {"longer_by": 7},
            *({"status": status, "times": 2} for status in (408, 429, 500, 503)),
        ],
        ids=str,
    )
    def test_what_breaks_is_tried_again_or_known_for_a_change(self, rig, fault):
        _, proxy, store, native = rig
        proxy.add(Fault(**fault))
        policy = RetryPolicy(base_seconds=0.001, cap_seconds=0.001)
        try:
            assert drain(StoreInput(store, native, policy).open()) == CONTENT
        except ObjectChangedError:
            assert "longer_by" in fault  # another length than listed: the object is listed again
            assert len(proxy.requests) == 1
        else:
            assert len(proxy.requests) > 1


def test_a_read_that_waits_ends_when_the_store_is_closed(plain_bucket, opened):
    listener = Trickle()
    plain_bucket.put("k", CONTENT)
    try:
        native = only(opened(plain_bucket))
        slow = opened(plain_bucket, endpoint=listener.endpoint)
        stream = slow.open(attrs.evolve(native, version="@0"))
        began = Stopwatch()
        closer = threading.Timer(0.1, slow.close)
        closer.start()
        with pytest.raises(TaskClosedError):
            drain(stream)
        closer.join()
        assert began.seconds < 5
        stream.close()
        with pytest.raises(TaskClosedError):
            slow.open(native)
        with pytest.raises(TaskClosedError):
            slow.list_page()
    finally:
        listener.close()


class Trickle:
    """Answers every request with the head of a large object, ten bytes, and silence."""

    def __init__(self):
        outer = self
        self.done = threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Length", str(len(CONTENT)))
                self.end_headers()
                self.wfile.write(CONTENT[:10])
                outer.done.wait(30)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def close(self):
        self.done.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


# ---------------------------------------------------------------- the world


def test_a_bucket_that_does_not_exist_is_named(local_bucket, opened):
    store = opened(local_bucket, bucket="no-such-bucket-anywhere")
    section = next(iter(local_bucket.section()))
    with pytest.raises(
        BucketNotFoundError, match=rf"{local_bucket.scheme}://no-such-bucket-anywhere: .*{section}\.bucket"
    ):
        store.list_page()


def test_an_endpoint_that_is_down_is_told_within_seconds(plain_bucket, opened):
    endpoint = f"http://127.0.0.1:{free_port()}"
    store = opened(plain_bucket, endpoint=endpoint)
    began = Stopwatch()
    with pytest.raises(StoreUnavailableError, match="cannot be reached") as caught:
        store.list_page()
    assert began.seconds < 5
    assert endpoint in str(caught.value)


def test_all_requests_go_through_the_proxy(plain_bucket, opened, monkeypatch):
    for number in range(3):
        plain_bucket.put(f"k{number}", b"%d" % number)
    with FaultProxy(plain_bucket.endpoint) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")  # what is configured comes first
        store = opened(plain_bucket, proxy=proxy.endpoint)
        assert [read(store, native) for native in store.list_all()] == [b"0", b"1", b"2"]
        assert len(proxy.requests) == 4
        assert all(request.path.startswith(plain_bucket.endpoint) for request in proxy.requests)


@pytest.fixture
def tls_store(tmp_path):
    """A store behind TLS with a certificate that nobody trusts: its address and the path of the certificate."""
    import ssl

    from tests.support.certificates import self_signed

    pem, both = self_signed(tmp_path)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = b"content"
            if "list-type" in self.path:
                body = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
            elif "nextPageToken" in self.path:
                body = b'{"kind": "storage#objects"}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    class Server(http.server.ThreadingHTTPServer):
        def get_request(self):
            connection, address = super().get_request()
            return context.wrap_socket(connection, server_side=True), address

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"https://127.0.0.1:{server.server_address[1]}", str(pem)
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("other", [False, True], ids=["alone", "another-in-the-environment"])
def test_a_ca_bundle_is_trusted_everywhere_and_nothing_is_without_it(
    plain_bucket, opened, tls_store, monkeypatch, other
):
    import certifi

    endpoint, ca_bundle = tls_store
    for name in ("REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
        if other:
            monkeypatch.setenv(name, certifi.where())
    section = next(iter(plain_bucket.section()))
    with pytest.raises(ConfigError, match=rf"not trusted.*{section}\.ca_bundle"):
        opened(plain_bucket, endpoint=endpoint).list_page()
    store = opened(plain_bucket, endpoint=endpoint, ca_bundle=ca_bundle)
    assert store.list_page().objects == []
    native = NativeObject(scheme=plain_bucket.scheme, bucket=plain_bucket.name, key="k", size=7, version="@0")
    assert [read(store, native) for _ in range(3)] == [b"content"] * 3


def test_check_says_what_works_line_by_line(any_bucket, opened):
    store = opened(any_bucket)
    assert [(one.step, one.ok) for one in check_store(store)] == [
        ("credentials", True),
        ("bucket", True),
        ("read", True),
    ]
    assert "nothing to read yet" in list(check_store(store))[2].detail
    any_bucket.put("k", b"content")
    assert f"{any_bucket.scheme}://{any_bucket.name}/k can be read" in list(check_store(store))[2].detail


def test_check_names_a_bucket_that_is_missing(local_bucket, opened):
    missing = opened(local_bucket, bucket="no-such-bucket-anywhere")
    assert [(one.step, one.ok) for one in check_store(missing)] == [("credentials", True), ("bucket", False)]
    assert all("\n" not in one.detail for one in check_store(missing))


def test_closing_twice_is_fine(plain_bucket):
    store = plain_bucket.open()
    store.close()
    store.close()
