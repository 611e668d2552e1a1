"""The S3 store against moto (every key, strict order) and SeaweedFS (a real store). Where they differ, it says so."""

import base64
import contextlib
import hashlib
import http.server
import threading
import time
from urllib.parse import parse_qs

import attrs
import pytest

from framework.checks import check_store
from framework.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ConfigError,
    CredentialsError,
    ListingError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreUnavailableError,
    TaskClosedError,
    ThrottledError,
)
from framework.reading import StoreInput
from framework.retry import RetryPolicy
from framework.testing.faults import Fault, FaultProxy
from s3_source.client import S3Store
from s3_source.config import S3Config
from tests.support.stopwatch import Stopwatch

CONTENT = hashlib.sha512(b"seed").digest() * 5003  # 320,192 bytes without a short period


@pytest.fixture
def opened():
    """Makes stores and closes them at the end."""
    made = []

    def make(config):
        made.append(S3Store(config))
        return made[-1]

    yield make
    for store in made:
        store.close()


def read(store, native, start=0, end=None, size=65_521):
    stream = store.open(native, start, end)
    parts = []
    while data := stream.read(size):
        parts.append(data)
    stream.close()
    return b"".join(parts)


def drain(stream):
    parts = []
    while data := stream.read(50_000):
        parts.append(data)
    return b"".join(parts)


def only(store, prefix=""):
    (native,) = store.list_all(prefix=prefix)
    return native


def warm(bucket, store):
    """Opens one object, so that the next one goes the short way."""
    bucket.put("zz-warm", b"warm")
    assert read(store, only(store, "zz-warm")) == b"warm"


# ---------------------------------------------------------------- listing

COMMON_KEYS = [
    "a b",
    "a+b",
    "a%2Fb",
    "a%20b",
    "a&b=c;d",
    "a'b\"c<d>",
    "é/ü",
    "emoji 😀",
    "\U0001d4b3/beyond",
    "d/e/f",
    "~x",
    "日本語",
]
# SeaweedFS takes a key for a path of folders: empty parts vanish, `.` is refused, control characters too.
MOTO_KEYS = [
    "a//b",
    "/lead",
    "a/./b",
    "a/../b",
    "bell\x07",
    "tab\there",
    "\x01first",
    "k" * 1024,
    "é" * 512,
    "trailing/",
]


@pytest.mark.parametrize("page_size", [1, 5, 1000])
def test_difficult_keys_are_listed_and_read_exactly(s3_bucket, opened, page_size):
    keys = COMMON_KEYS + (MOTO_KEYS if s3_bucket.server.kind == "moto" else ["n" * 200 + "/" + "m" * 255])
    for key in keys:
        s3_bucket.put(key, key.encode())
    store = opened(s3_bucket.config())
    listed = list(store.list_all(page_size=page_size))
    assert sorted(native.key for native in listed) == sorted(keys)
    for native in listed:
        assert read(store, native) == native.key.encode()
        assert native.size == len(native.key.encode())
        assert (native.scheme, native.bucket) == ("s3", s3_bucket.name)
    if s3_bucket.server.kind == "moto":
        encoded = [native.key.encode() for native in listed]
        assert encoded == sorted(encoded)


@pytest.fixture(scope="module")
def many_keys(moto_server):
    bucket = moto_server.bucket()
    keys = sorted(f"k/{number:05}" for number in range(1001))
    for key in keys:
        bucket.put(key, b"")
    bucket.put("kk/outside", b"")
    return bucket, keys


@pytest.mark.parametrize("page_size", [1, 2, 3, 1000])
def test_every_object_is_listed_once_whatever_the_page_size(many_keys, opened, page_size):
    bucket, keys = many_keys
    store = opened(bucket.config())
    # A thousand requests take moto ten seconds: of the pages of one and two keys, the last fifty keys are enough.
    after = "" if page_size >= 3 else keys[-50]
    listed = [native.key for native in store.list_all(prefix="k/", after=after, page_size=page_size)]
    assert listed == [key for key in keys if key > after]


@pytest.mark.parametrize("page_size", [1, 2, 3, 1000])
def test_a_page_holds_no_more_than_asked_for_and_the_chain_ends(s3_bucket, opened, page_size):
    keys = [f"k/{number:02}" for number in range(7)]
    for key in keys:
        s3_bucket.put(key)
    store, listed, continuation = opened(s3_bucket.config()), [], None
    while True:
        page = store.list_page(prefix="k/", continuation=continuation, page_size=page_size)
        assert len(page.objects) <= page_size
        listed += [native.key for native in page.objects]
        continuation = page.continuation
        if continuation is None:
            break
    assert listed == keys


def test_a_prefix_is_plain_text_on_every_page(s3_bucket, opened):
    for key in ["a-2/x", "a/1", "a/2", "a/3", "ab/x", "a0"]:
        s3_bucket.put(key)
    store = opened(s3_bucket.config())
    for page_size in (1, 2, 1000):
        assert [native.key for native in store.list_all(prefix="a/", page_size=page_size)] == ["a/1", "a/2", "a/3"]
    assert {native.key for native in store.list_all(prefix="a")} == {"a-2/x", "a/1", "a/2", "a/3", "ab/x", "a0"}
    assert list(store.list_all(prefix="nothing/")) == []


@pytest.mark.parametrize("page_size", [1, 2, 1000])
def test_after_is_strict_and_need_not_exist(s3_bucket, opened, page_size):
    keys = ["k1", "k2", "k3", "k5"]
    for key in keys:
        s3_bucket.put(key)
    store = opened(s3_bucket.config())
    for after in ["", "k", "k1", "k2", "k3", "k4", "k5", "k9", "k20"]:
        listed = [native.key for native in store.list_all(after=after, page_size=page_size)]
        assert listed == [key for key in keys if key > after], after


def test_a_listing_tells_version_time_class_and_the_stores_clock(s3_bucket, opened):
    before = time.time()
    s3_bucket.put("k", b"12345")
    store = opened(s3_bucket.config())
    page = store.list_page()
    (native,) = page.objects
    etag = hashlib.md5(b"12345").hexdigest()
    assert native.version == f"{etag}@{native.modified_ms}"
    assert (native.size, native.storage_class) == (5, "STANDARD")
    assert abs(native.modified_ms / 1000 - before) < 30
    assert abs(page.server_time_ms / 1000 - before) < 30


@pytest.mark.parametrize("by_head", [True, False])
def test_an_object_is_looked_up_as_a_listing_shows_it(s3_bucket, opened, by_head):
    keys = COMMON_KEYS + (MOTO_KEYS if s3_bucket.server.kind == "moto" else [])
    for key in keys:
        s3_bucket.put(key, key.encode())
    s3_bucket.put("a b longer", b"longer")
    store = opened(s3_bucket.config())
    assert store.lists_milliseconds
    store.lists_milliseconds = not by_head
    listed = {native.key: native for native in store.list_all()}
    for key in keys:
        assert store.stat(key) == listed[key]
        native = listed[key]
        etag = native.version.rpartition("@")[0]
        for form in (etag, f'"{etag}"'):
            assert store.listed_version(etag=form, modified_ms=native.modified_ms) == native.version
    assert store.listed_version(etag="", modified_ms=5) is None
    with pytest.raises(ObjectNotFoundError, match="s3://bucket-"):
        store.stat("a b l")


@pytest.mark.parametrize("by_head", [True, False])
def test_a_bucket_that_is_missing_does_not_look_like_a_missing_object(moto_bucket, opened, by_head):
    with FaultProxy(moto_bucket.endpoint) as proxy:
        there = opened(moto_bucket.config(endpoint=proxy.endpoint))
        there.lists_milliseconds = not by_head
        for _ in range(3):
            with pytest.raises(ObjectNotFoundError):
                there.stat("missing")
        assert len(proxy.requests) == (4 if by_head else 3)  # whether there is a bucket is asked once
    store = opened(moto_bucket.config(bucket="no-such-bucket"))
    store.lists_milliseconds = not by_head
    with pytest.raises(BucketNotFoundError, match="no-such-bucket"):
        store.stat("missing")


def test_a_look_up_that_is_refused_says_what_else_it_may_mean(moto_bucket, opened):
    with FaultProxy(moto_bucket.endpoint) as proxy:
        proxy.add(Fault(method="HEAD", status=403, times=None))
        store = opened(moto_bucket.config(endpoint=proxy.endpoint))
        store.lists_milliseconds = False
        with pytest.raises(
            AccessDeniedError, match=r"grant s3:GetObject.*without s3:ListBucket an object that is missing"
        ):
            store.stat("k")


def test_an_object_is_looked_up_with_the_customers_key(moto_bucket, opened):
    key = b"0123456789abcdef0123456789abcdef"
    moto_bucket.put("k", b"12345", SSECustomerAlgorithm="AES256", SSECustomerKey=key)
    with FaultProxy(moto_bucket.endpoint) as proxy:
        store = opened(moto_bucket.config(endpoint=proxy.endpoint, sse_customer_key=base64.b64encode(key).decode()))
        store.lists_milliseconds = False
        assert store.stat("k").size == 5
        (request,) = proxy.requests
    assert request.headers["x-amz-server-side-encryption-customer-algorithm"] == "AES256"


@pytest.mark.parametrize(
    ("endpoint", "milliseconds"),
    [
        ("", False),
        ("https://s3.eu-west-1.amazonaws.com", False),
        ("https://s3.cn-north-1.amazonaws.com.cn", False),
        ("http://127.0.0.1:9000", True),
        ("https://amazonaws.com.example.org", True),
    ],
)
def test_only_aws_is_known_to_list_whole_seconds(opened, endpoint, milliseconds):
    config = S3Config(bucket="lake", endpoint=endpoint, region="eu-west-1", anonymous=True)
    assert opened(config).lists_milliseconds is milliseconds


def test_a_page_that_repeats_itself_is_an_error(s3_bucket, opened):
    for number in range(5):
        s3_bucket.put(f"k{number}")
    with FaultProxy(s3_bucket.endpoint) as proxy:
        store = opened(s3_bucket.config(endpoint=proxy.endpoint))
        proxy.add(Fault(path="continuation-token", repeat=True, times=None))
        with pytest.raises(ListingError, match="repeats itself"):
            list(store.list_all(page_size=2))
        assert len(proxy.requests) <= 4


def test_a_page_that_promises_more_without_saying_how_is_an_error(moto_bucket, opened):
    body = b"""<?xml version="1.0"?><ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"""
    with FaultProxy(moto_bucket.endpoint) as proxy:
        proxy.add(Fault(status=200, body=body))
        with pytest.raises(ListingError, match="not how to get it"):
            opened(moto_bucket.config(endpoint=proxy.endpoint)).list_page()


# ---------------------------------------------------------------- reading


def test_ranges_give_exactly_their_bytes(s3_bucket, opened):
    s3_bucket.put("big", CONTENT)
    store = opened(s3_bucket.config())
    native, size = only(store), len(CONTENT)
    for start, end in [
        (0, None),
        (0, 1),
        (1, 2),
        (size - 1, None),
        (1000, 77_777),
        (0, size),
        (5, size + 9),
        (size, None),
        (9, 9),
    ]:
        assert read(store, native, start, end) == CONTENT[start:end], (start, end)


def test_an_empty_object_and_an_empty_range_need_no_request(s3_bucket, opened):
    s3_bucket.put("empty", b"")
    with FaultProxy(s3_bucket.endpoint) as proxy:
        store = opened(s3_bucket.config(endpoint=proxy.endpoint))
        native = only(store)
        proxy.clear()
        assert read(store, native) == b""
        assert proxy.requests == []


def test_many_threads_share_one_store_and_its_connections(s3_bucket, opened):
    from concurrent.futures import ThreadPoolExecutor

    for number in range(60):
        s3_bucket.put(f"k{number:02}", b"%02d" % number * 700)
    store = opened(s3_bucket.config(max_connections=8))
    natives = list(store.list_all())
    with ThreadPoolExecutor(8) as pool:
        contents = list(pool.map(lambda native: read(store, native), natives * 3))
    assert contents == [b"%02d" % number * 700 for number in range(60)] * 3


def test_the_short_way_sends_what_boto3_sends(s3_bucket, opened):
    s3_bucket.put("x y/1", b"one")
    s3_bucket.put("x y/2", b"two")
    with FaultProxy(s3_bucket.endpoint) as proxy:
        store = opened(s3_bucket.config(endpoint=proxy.endpoint, requester_pays=True))
        first, second = store.list_all()
        listing = proxy.requests[-1]
        assert listing.headers["x-amz-request-payer"] == "requester"
        proxy.clear()
        assert read(store, first, 0, 2) == b"on"
        assert read(store, second, 0, 2) == b"tw"
        through_boto3, short = proxy.requests
    own = {"x-amz-date", "authorization", "if-match", "amz-sdk-invocation-id", "amz-sdk-request"}
    kept = {name: value for name, value in through_boto3.headers.items() if name not in own}
    assert {name: value for name, value in short.headers.items() if name not in own} == kept
    assert kept["x-amz-request-payer"] == "requester"
    assert kept["range"] == "bytes=0-1"
    assert short.headers["if-match"] == f'"{second.version.rpartition("@")[0]}"'
    assert short.path == through_boto3.path.removesuffix("1") + "2"


@pytest.mark.parametrize("warmed", [False, True], ids=["through-boto3", "short-way"])
class TestChangedBetweenListAndRead:
    def test_overwritten(self, s3_bucket, opened, warmed):
        store = opened(s3_bucket.config())
        s3_bucket.put("k", b"first content")
        native = only(store, "k")
        if warmed:
            warm(s3_bucket, store)
        s3_bucket.put("k", b"other content")
        with pytest.raises(ObjectChangedError) as caught:
            store.open(native)
        assert caught.value.location == f"s3://{s3_bucket.name}/k"

    def test_deleted(self, s3_bucket, opened, warmed):
        store = opened(s3_bucket.config())
        s3_bucket.put("k", b"first content")
        native = only(store, "k")
        if warmed:
            warm(s3_bucket, store)
        s3_bucket.delete("k")
        with pytest.raises(ObjectNotFoundError, match=r"s3://bucket-\w+/k: .*deleted"):
            store.open(native)

    def test_overwritten_in_a_store_that_ignores_if_match(self, moto_bucket, opened, warmed):
        # moto does not check signatures, so the signed header can be taken out on the way.
        with FaultProxy(moto_bucket.endpoint) as proxy:
            proxy.add(Fault(method="GET", drop_request=("if-match",), times=None))
            store = opened(moto_bucket.config(endpoint=proxy.endpoint))
            moto_bucket.put("k", b"first content")
            native = only(store, "k")
            if warmed:
                warm(moto_bucket, store)
            moto_bucket.put("k", b"other content")
            with pytest.raises(ObjectChangedError, match="ETag"):
                store.open(native)

    def test_another_size_under_the_same_etag(self, moto_bucket, opened, warmed):
        store = opened(moto_bucket.config())
        moto_bucket.put("k", b"content")
        native = only(store, "k")
        if warmed:
            warm(moto_bucket, store)
        with pytest.raises(ObjectChangedError, match="7 bytes, listed 9"):
            store.open(attrs.evolve(native, size=9))
        with pytest.raises(ObjectChangedError, match="7 bytes, listed 9"):
            store.open(attrs.evolve(native, size=9), 2, 4)
        with pytest.raises(ObjectChangedError):  # 416
            store.open(attrs.evolve(native, size=99), 50, 60)

    def test_archived(self, moto_bucket, opened, warmed):
        from framework.errors import ObjectArchivedError

        store = opened(moto_bucket.config())
        moto_bucket.put("k", b"content", StorageClass="GLACIER")
        native = only(store, "k")
        assert native.storage_class == "GLACIER"
        if warmed:
            warm(moto_bucket, store)
        with pytest.raises(ObjectArchivedError, match="restored"):
            store.open(native)


@pytest.mark.parametrize("fault", ["cut_at", "reset_at"])
def test_a_broken_body_goes_on_at_the_byte_it_reached(s3_bucket, opened, fault):
    s3_bucket.put("big", CONTENT)
    with FaultProxy(s3_bucket.endpoint) as proxy:
        store = opened(s3_bucket.config(endpoint=proxy.endpoint))
        native = only(store)
        proxy.clear()
        proxy.add(Fault(method="GET", path="/big", times=3, **{fault: 70_001}))
        source = StoreInput(store, native, RetryPolicy().without_waiting())
        stream, parts = source.open(), []
        while data := stream.read(10_007):
            parts.append(data)
        stream.close()
        assert b"".join(parts) == CONTENT
        ranges = [request.headers.get("range") for request in proxy.requests]
        etag = native.version.rpartition("@")[0]
        assert {request.headers["if-match"] for request in proxy.requests} == {f'"{etag}"'}
    assert len(ranges) == 4
    if fault == "cut_at":  # what a reset throws away differs
        last = len(CONTENT) - 1
        assert ranges == [None, f"bytes=70001-{last}", f"bytes=140002-{last}", f"bytes=210003-{last}"]


def test_an_object_overwritten_while_it_is_read_is_never_mixed(s3_bucket, opened):
    s3_bucket.put("big", CONTENT)
    with FaultProxy(s3_bucket.endpoint) as proxy:
        store = opened(s3_bucket.config(endpoint=proxy.endpoint))
        native = only(store)
        proxy.add(Fault(method="GET", path="/big", cut_at=50_000))
        stream = StoreInput(store, native, RetryPolicy().without_waiting()).open()
        seen = stream.read(50_000)
        s3_bucket.put("big", CONTENT[::-1])
        with pytest.raises(ObjectChangedError):  # how many reads succeed first depends on the network
            seen += drain(stream)
        stream.close()
        assert CONTENT.startswith(seen)


@pytest.mark.parametrize("warmed", [False, True], ids=["through-boto3", "short-way"])
class TestFaults:
    @pytest.fixture
    def rig(self, moto_bucket, opened, warmed):
        moto_bucket.put("k", CONTENT)
        with FaultProxy(moto_bucket.endpoint) as proxy:
            yield proxy, *self.ready(proxy, moto_bucket, opened, warmed)

    def ready(self, proxy, bucket, opened, warmed, **config):
        """A store behind the proxy, and the object listed."""
        store = opened(bucket.config(endpoint=proxy.endpoint, **config))
        native = only(store, "k")
        if warmed:
            warm(bucket, store)
        proxy.clear()
        return store, native

    def test_slow_down_is_throttling_and_one_request(self, rig):
        proxy, store, native = rig
        body = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
        proxy.add(Fault(status=503, body=body, headers={"Retry-After": "7"}))
        with pytest.raises(ThrottledError, match="SlowDown, HTTP 503, Please reduce") as caught:
            store.open(native)
        assert caught.value.retry_after_seconds == 7
        assert len(proxy.requests) == 1

    @pytest.mark.parametrize("status", [500, 502, 504])
    def test_a_failure_of_the_store_is_retriable_and_one_request(self, rig, status):
        proxy, store, native = rig
        proxy.add(Fault(status=status, body=b"<html>gateway</html>"))
        with pytest.raises(StoreUnavailableError, match=str(status)):
            store.open(native)
        assert len(proxy.requests) == 1

    def test_denied_is_one_request(self, rig):
        proxy, store, native = rig
        proxy.add(Fault(status=403, body=b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"))
        with pytest.raises(AccessDeniedError, match="grant s3:GetObject"):
            store.open(native)
        assert len(proxy.requests) == 1

    def test_a_connection_refused_or_dropped_is_retriable(self, rig):
        proxy, store, native = rig
        proxy.add(Fault(refuse=True))
        with pytest.raises(StoreUnavailableError):
            store.open(native)
        assert read(store, native) == CONTENT

    def test_silence_is_a_timeout(self, rig, moto_bucket, opened, warmed):
        proxy, *_ = rig
        for _ in range(50):  # a busy machine may not answer in time before it is told to be silent
            with contextlib.suppress(StoreUnavailableError):
                store, native = self.ready(proxy, moto_bucket, opened, warmed, read_timeout_seconds=0.5)
                break
        proxy.add(Fault(delay_seconds=1.0))
        with pytest.raises(StoreUnavailableError, match="in time"):
            store.open(native)

    def test_more_announced_than_sent_under_the_listed_size(self, rig):
        proxy, store, native = rig
        proxy.add(Fault(longer_by=100))
        with pytest.raises(ObjectChangedError, match=rf"{len(CONTENT) + 100} bytes, listed {len(CONTENT)}"):
            store.open(native)

    def test_a_range_that_announces_another_length_is_a_break(self, rig):
        proxy, store, native = rig
        proxy.add(Fault(longer_by=100))
        with pytest.raises(StoreUnavailableError, match=r"asked for 10 bytes, the store announces 110"):
            store.open(native, 5, 15)
        assert read(store, native, 5, 15) == CONTENT[5:15]

    def test_another_range_than_asked_for_is_a_break(self, rig):
        proxy, store, native = rig
        proxy.add(Fault(headers={"Content-Range": f"bytes 6-15/{len(CONTENT)}"}))
        with pytest.raises(StoreUnavailableError, match="asked for bytes 5 to 14, the store answered 6 to 15"):
            store.open(native, 5, 15)

    def test_a_store_without_ranges_is_told(self, rig):
        from framework.errors import FatalError

        proxy, store, native = rig
        proxy.add(Fault(drop_request=("range",)))
        with pytest.raises(FatalError, match="ignores range requests"):
            store.open(native, 5, 15)

    def test_a_body_without_a_length_that_ends_early_is_a_break(self, rig):
        proxy, store, native = rig
        proxy.add(Fault(drop=("content-length",), cut_at=1000))
        stream = store.open(native)
        assert len(stream.read(5000)) == 1000
        with pytest.raises(StoreUnavailableError, match=f"ended after 1000 of {len(CONTENT)} bytes"):
            stream.read(5000)
        stream.close()

    def test_closing_early_leaves_the_store_usable(self, rig):
        _, store, native = rig
        for wanted in (1, 1000, len(CONTENT) - 10):
            stream = store.open(native)
            assert stream.read(wanted) == CONTENT[:wanted]
            stream.close()
            stream.close()
            with pytest.raises(TaskClosedError):
                stream.read(1)
        assert read(store, native) == CONTENT


def test_a_read_that_waits_ends_when_the_store_is_closed(moto_bucket, opened):
    listener = _Trickle()
    moto_bucket.put("k", CONTENT)
    try:
        store = opened(moto_bucket.config())
        native = only(store)
        slow = opened(moto_bucket.config(endpoint=listener.endpoint))
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


class _Trickle:
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
                outer.done.wait(20)

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


# ---------------------------------------------------------------- identity and world


def test_a_bucket_that_does_not_exist_is_named(s3_bucket, opened):
    store = opened(s3_bucket.config(bucket="no-such-bucket-anywhere"))
    with pytest.raises(BucketNotFoundError, match=r"s3://no-such-bucket-anywhere: .*s3\.bucket"):
        store.list_page()


def test_wrong_keys_are_told_and_never_shown(seaweedfs_bucket, opened):  # moto takes any key
    for wrong in ({"access_key_id": "AKIASECRETSECRET"}, {"secret_access_key": "SECRETSECRET"}):
        store = opened(seaweedfs_bucket.config(**wrong))
        with pytest.raises(CredentialsError) as caught:
            store.list_page()
        assert "SECRETSECRET" not in str(caught.value)
        assert next(iter(wrong)) in str(caught.value)


def test_anonymous_requests_are_unsigned_and_denied_where_they_should_be(seaweedfs_bucket, opened):
    with FaultProxy(seaweedfs_bucket.endpoint) as proxy:
        config = seaweedfs_bucket.config(
            endpoint=proxy.endpoint, access_key_id="", secret_access_key="", anonymous=True
        )
        store = opened(config)
        with pytest.raises(AccessDeniedError):
            store.list_page()
        assert all("authorization" not in request.headers for request in proxy.requests)


def test_anonymous_reads_stay_unsigned_on_the_short_way(moto_bucket, opened):
    moto_bucket.client.put_bucket_acl(Bucket=moto_bucket.name, ACL="public-read")
    for number in range(3):
        moto_bucket.put(f"k{number}", b"open", ACL="public-read")
    with FaultProxy(moto_bucket.endpoint) as proxy:
        config = moto_bucket.config(endpoint=proxy.endpoint, access_key_id="", secret_access_key="", anonymous=True)
        store = opened(config)
        assert [read(store, native) for native in store.list_all()] == [b"open"] * 3
        assert len(proxy.requests) == 4
        assert all("authorization" not in request.headers for request in proxy.requests)


def test_no_credentials_at_all_is_one_sentence(moto_bucket, opened):
    store = opened(moto_bucket.config(access_key_id="", secret_access_key=""))
    with pytest.raises(CredentialsError, match=r"set s3\.access_key_id, s3\.profile or s3\.anonymous"):
        store.list_page()


def test_an_endpoint_that_is_down_is_told_within_seconds(moto_bucket, opened):
    from framework.testing.ports import free_port

    endpoint = f"http://127.0.0.1:{free_port()}"
    store = opened(moto_bucket.config(endpoint=endpoint))
    began = Stopwatch()
    with pytest.raises(StoreUnavailableError, match="cannot be reached") as caught:
        store.list_page()
    assert began.seconds < 5
    assert endpoint in str(caught.value)


def test_an_unknown_profile_is_a_configuration_error(moto_bucket):
    with pytest.raises(ConfigError, match=r"s3\.profile"):
        S3Store(moto_bucket.config(access_key_id="", secret_access_key="", profile="nobody"))


def test_a_profile_and_the_environment_are_found(moto_bucket, opened, tmp_path, monkeypatch):
    moto_bucket.put("k")
    shared = tmp_path / "credentials"
    shared.write_text("[lake]\naws_access_key_id = from-profile\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shared))
    with FaultProxy(moto_bucket.endpoint) as proxy:
        bare = {"access_key_id": "", "secret_access_key": "", "endpoint": proxy.endpoint}
        store = opened(moto_bucket.config(profile="lake", **bare))
        assert "shared credentials file" in next(check_store(store)).detail
        store.list_page()
        assert "Credential=from-profile/" in proxy.requests[-1].headers["authorization"]
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-environment")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
        store = opened(moto_bucket.config(**bare))
        assert "environment" in next(check_store(store)).detail
        store.list_page()
        assert "Credential=from-environment/" in proxy.requests[-1].headers["authorization"]


def test_static_session_tokens_are_sent(moto_bucket, opened):
    for number in range(2):
        moto_bucket.put(f"k{number}")
    with FaultProxy(moto_bucket.endpoint) as proxy:
        store = opened(moto_bucket.config(endpoint=proxy.endpoint, session_token="the-token"))
        for native in store.list_all():
            read(store, native)
        assert [request.headers["x-amz-security-token"] for request in proxy.requests] == ["the-token"] * 3


class FakeSts:
    """A token service that remembers what it was asked."""

    def __init__(self, *, lifetime=3600, status=200):
        self.asked = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"])).decode()
                asked = {name: values[0] for name, values in parse_qs(body).items()}
                outer.asked.append(asked | {"authorization": self.headers["authorization"]})
                answer = outer.answer(lifetime) if status == 200 else outer.refusal()
                self.send_response(status)
                self.send_header("Content-Type", "text/xml")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def answer(self, lifetime):
        end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + lifetime))
        number = len(self.asked)
        return (
            '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>'
            f"<AccessKeyId>ROLE{number}</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>"
            f"<SessionToken>token-{number}</SessionToken><Expiration>{end}</Expiration></Credentials>"
            "</AssumeRoleResult></AssumeRoleResponse>"
        ).encode()

    def refusal(self):
        return (
            b'<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type>'
            b"<Code>AccessDenied</Code><Message>not allowed</Message></Error></ErrorResponse>"
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


ROLE = "arn:aws:iam::123456789012:role/reader"


def test_every_option_of_a_role_reaches_the_token_service(moto_bucket, opened):
    for number in range(4):
        moto_bucket.put(f"k{number}")
    with FakeSts() as sts, FaultProxy(moto_bucket.endpoint) as proxy:
        store = opened(
            moto_bucket.config(
                endpoint=proxy.endpoint,
                role_arn=ROLE,
                role_session_name="session-7",
                role_external_id="external-9",
                role_duration_seconds=1234,
                sts_endpoint=sts.endpoint,
            )
        )
        assert sts.asked == []  # nothing is asked before it is needed
        for native in store.list_all():
            read(store, native)
        (asked,) = sts.asked
        assert asked["Action"] == "AssumeRole"
        assert asked["RoleArn"] == ROLE
        assert asked["RoleSessionName"] == "session-7"
        assert asked["ExternalId"] == "external-9"
        assert asked["DurationSeconds"] == "1234"
        assert "Credential=test-access/" in asked["authorization"]
        assert len(proxy.requests) == 5
        for request in proxy.requests:
            assert "Credential=ROLE1/" in request.headers["authorization"]
            assert request.headers["x-amz-security-token"] == "token-1"


def test_keys_of_the_shortest_role_are_not_renewed_at_every_request(moto_bucket, opened):
    moto_bucket.put("k")
    with FakeSts(lifetime=900) as sts:
        store = opened(moto_bucket.config(role_arn=ROLE, role_duration_seconds=900, sts_endpoint=sts.endpoint))
        for _ in range(3):
            read(store, only(store))
        assert len(sts.asked) == 1


def test_keys_of_a_role_renew_themselves_on_the_short_way_too(moto_bucket, opened):
    for number in range(3):
        moto_bucket.put(f"k{number}")
    with FakeSts(lifetime=5) as sts, FaultProxy(moto_bucket.endpoint) as proxy:  # as good as expired
        store = opened(moto_bucket.config(endpoint=proxy.endpoint, role_arn=ROLE, sts_endpoint=sts.endpoint))
        natives = list(store.list_all())
        try:
            for native in natives:
                read(store, native)
        except CredentialsError:
            pytest.fail("fresh keys were refused")
        tokens = [request.headers["x-amz-security-token"] for request in proxy.requests]
        assert len(set(tokens)) > 1
        assert len(sts.asked) > 1


def test_a_role_that_is_refused_is_named(moto_bucket, opened):
    with FakeSts(status=403) as sts:
        store = opened(moto_bucket.config(role_arn=ROLE, sts_endpoint=sts.endpoint))
        with pytest.raises(CredentialsError, match="role/reader cannot be assumed"):
            store.list_page()
        (result,) = list(check_store(store))
        assert (result.step, result.ok) == ("credentials", False)


def test_a_role_works_with_a_real_token_service(moto_bucket, opened):
    moto_bucket.put("k", b"by role")
    store = opened(moto_bucket.config(role_arn=ROLE, sts_endpoint=moto_bucket.endpoint))
    assert read(store, only(store)) == b"by role"
    assert "assumed role" in next(check_store(store)).detail


def test_objects_under_a_customers_key_are_read_with_it(seaweedfs_bucket, opened):
    key = bytes(range(32))
    for number in range(3):
        seaweedfs_bucket.put(f"k{number}", CONTENT[: 1000 + number], SSECustomerAlgorithm="AES256", SSECustomerKey=key)
    store = opened(seaweedfs_bucket.config(sse_customer_key=base64.b64encode(key).decode()))
    natives = list(store.list_all())
    assert [read(store, native) for native in natives] == [CONTENT[: 1000 + number] for number in range(3)]
    assert read(store, natives[1], 7, 77) == CONTENT[7:77]


def test_a_missing_customers_key_is_asked_for(seaweedfs_bucket, opened):
    seaweedfs_bucket.put("k", b"x" * 100, SSECustomerAlgorithm="AES256", SSECustomerKey=bytes(32))
    store = opened(seaweedfs_bucket.config())
    with pytest.raises(AccessDeniedError, match=r"s3\.sse_customer_key"):
        store.open(only(store))


def test_the_customers_key_is_sent_with_every_read(moto_bucket, opened):
    for number in range(2):
        moto_bucket.put(f"k{number}")
    with FaultProxy(moto_bucket.endpoint) as proxy:
        key = base64.b64encode(bytes(32)).decode()
        store = opened(moto_bucket.config(endpoint=proxy.endpoint, sse_customer_key=key))
        for native in store.list_all():
            read(store, native)
        reads = proxy.requests[1:]
        assert [one.headers["x-amz-server-side-encryption-customer-key"] for one in reads] == [key, key]
        assert {one.headers["x-amz-server-side-encryption-customer-algorithm"] for one in reads} == {"AES256"}


def test_addressing_style(moto_bucket, opened):
    for style, bucket, expected in [
        ("auto", "lake-a", "http://store.test/lake-a/k"),
        ("path", "lake-a", "http://store.test/lake-a/k"),
        ("virtual", "lake-a", "http://lake-a.store.test/k"),
    ]:
        with FaultProxy(moto_bucket.endpoint) as proxy:
            proxy.add(Fault(status=404, times=None))
            store = opened(
                moto_bucket.config(
                    bucket=bucket, endpoint="http://store.test", addressing_style=style, proxy=proxy.endpoint
                )
            )
            from framework.records import NativeObject

            with pytest.raises(ObjectNotFoundError):
                store.open(NativeObject(bucket=bucket, key="k", size=1, version="e@0"))
            # Through an HTTP proxy the request line holds the whole address: the proxy option is used as well.
            assert [request.path for request in proxy.requests] == [expected]


def test_both_ways_go_through_the_proxy(moto_bucket, opened):
    for number in range(3):
        moto_bucket.put(f"k{number}", b"%d" % number)
    with FaultProxy(moto_bucket.endpoint) as proxy:
        store = opened(moto_bucket.config(proxy=proxy.endpoint))
        assert [read(store, native) for native in store.list_all()] == [b"0", b"1", b"2"]
        assert len(proxy.requests) == 4
        assert all(request.path.startswith(moto_bucket.endpoint) for request in proxy.requests)


@pytest.fixture
def tls_store(tmp_path):
    """A store behind TLS with a certificate that nobody trusts: its address and the path of the certificate."""
    import datetime as dt
    import ipaddress
    import ssl

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "store")])
    now = dt.datetime.now(dt.timezone.utc)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = tmp_path / "ca.pem"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    both = tmp_path / "both.pem"
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    both.write_bytes(pem.read_bytes() + key.private_bytes(encoding, form, serialization.NoEncryption()))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            listing = "list-type" in self.path
            body = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>" if listing else b"content"
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


def test_a_ca_bundle_is_trusted_on_both_ways_and_nothing_is_without_it(moto_bucket, opened, tls_store):
    from framework.records import NativeObject

    endpoint, ca_bundle = tls_store
    with pytest.raises(ConfigError, match=r"not trusted.*s3.ca_bundle"):
        opened(moto_bucket.config(endpoint=endpoint)).list_page()
    store = opened(moto_bucket.config(endpoint=endpoint, ca_bundle=ca_bundle))
    assert store.list_page().objects == []
    native = NativeObject(scheme="s3", bucket=moto_bucket.name, key="k", size=7, version="@0")
    assert [read(store, native) for _ in range(3)] == [b"content"] * 3


def test_check_says_what_works_line_by_line(s3_bucket, opened):
    store = opened(s3_bucket.config())
    assert [(one.step, one.ok) for one in check_store(store)] == [
        ("credentials", True),
        ("bucket", True),
        ("read", True),
    ]
    assert "nothing to read yet" in list(check_store(store))[2].detail
    s3_bucket.put("k", b"content")
    assert f"s3://{s3_bucket.name}/k can be read" in list(check_store(store))[2].detail
    missing = opened(s3_bucket.config(bucket="no-such-bucket-anywhere"))
    assert [(one.step, one.ok) for one in check_store(missing)] == [("credentials", True), ("bucket", False)]
    assert all("\n" not in one.detail for one in check_store(missing))


def test_closing_twice_is_fine(moto_bucket):
    store = S3Store(moto_bucket.config())
    store.close()
    store.close()
