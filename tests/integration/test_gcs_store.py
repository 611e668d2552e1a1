"""The GCS store against the real fake-gcs-server, and through a proxy that breaks what it forwards."""

import gzip
import hashlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qs, urlsplit

import attrs
import pytest
from google.auth import credentials as google_credentials

from framework.checks import check_store
from framework.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    CredentialsError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreUnavailableError,
    TaskClosedError,
    ThrottledError,
)
from framework.reading import StoreInput
from framework.retry import RetryPolicy
from framework.testing.faults import Fault, FaultProxy
from gcs_source.client import GcsStore
from gcs_source.config import GcsConfig

CONTENT = hashlib.sha512(b"seed").digest() * 5003  # 320,192 bytes without a short period
KEYS = [
    "a b", "a+b", "a%2Fb", "a%20b", "a//b", "a/./b", "a/../b", "/a", "a/", "a?b=c&d", "a#b", "é", "e\u0301", "日本", "\uffee",
    "\U0001f600", "\x01", "\x7f", "a\\b", "a'b\"c", "a<b>", "a;b", "a:b@c", "~a", "*", "[x]", "a,b", "a=b", "z" * 1024,
    "é" * 512,
]  # fmt: skip


@pytest.fixture
def opened():
    """Makes stores and closes them at the end."""
    made = []

    def make(config, credentials=None):
        made.append(GcsStore(config, credentials))
        return made[-1]

    yield make
    for store in made:
        store.close()


def drain(stream, size=65_521):
    parts = []
    while data := stream.read(size):
        parts.append(data)
    stream.close()
    return b"".join(parts)


def only(store, prefix=""):
    (native,) = store.list_all(prefix=prefix)
    return native


def asked(request):
    return {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}


# ---------------------------------------------------------------- listing


@pytest.mark.parametrize("page_size", [1, 7, 1000])
def test_difficult_keys_are_listed_and_read_exactly(gcs_bucket, opened, page_size):
    for number, key in enumerate(KEYS):
        gcs_bucket.put(key, f"{number}".encode())
    store = opened(gcs_bucket.config())
    natives = list(store.list_all(page_size=page_size))
    assert [native.key for native in natives] == sorted(KEYS, key=str.encode)
    assert {native.key: drain(store.open(native)) for native in natives} == {
        key: f"{number}".encode() for number, key in enumerate(KEYS)
    }


@pytest.mark.parametrize("page_size", [1, 2, 3, 1000])
def test_after_is_strict_and_need_not_exist(gcs_bucket, opened, page_size):
    keys = ["a", "a/1", "a0", "b", "é"]
    for key in keys:
        gcs_bucket.put(key)
    store = opened(gcs_bucket.config())
    for after in ["", *keys, "a/", "a/10", "aa", "zz", "\U0001f600"]:
        listed = [native.key for native in store.list_all(after=after, page_size=page_size)]
        assert listed == [key for key in keys if key.encode() > after.encode()], after
    first = store.list_page(after="a", page_size=1)
    assert [one.key for one in first.objects] == ["a/1"]  # the key itself is no progress


def test_a_prefix_is_plain_text_on_every_page(gcs_bucket, opened):
    for key in ["a/1", "a/2", "a/3", "ab", "a-2/1", "b"]:
        gcs_bucket.put(key)
    listed = opened(gcs_bucket.config()).list_all(prefix="a/", page_size=2)
    assert [one.key for one in listed] == ["a/1", "a/2", "a/3"]


def test_only_what_is_used_is_asked_for(gcs_bucket, opened):
    gcs_bucket.put("k")
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = opened(gcs_bucket.config(endpoint=proxy.endpoint))
        page = store.list_page(prefix="k", after="j", page_size=10)
        said = asked(proxy.requests[-1])
        assert said["fields"].startswith("nextPageToken,items(")
        assert (said["startOffset"], said["maxResults"], said["prefix"]) == ("j", "11", "k")
        assert abs(page.server_time_ms - page.objects[0].modified_ms) < 600_000
        assert store.stat("k") == page.objects[0]


@pytest.mark.parametrize("page_size", [1, 3, 1000])
def test_a_page_ends_where_its_range_does(gcs_bucket, opened, page_size):
    keys = ["a", "a\x01", "a ", "a/1", "b", "b\x01", "b ", "b0", "c", "k" * 1024]
    for key in keys:
        gcs_bucket.put(key)
    store = opened(gcs_bucket.config())
    for until in [*keys, "a0", "zz"]:
        shown, continuation = [], None
        while True:
            page = store.list_page(after="a", until=until, continuation=continuation, page_size=page_size)
            shown += [one.key for one in page.objects]
            continuation = page.continuation
            if continuation is None:
                break
        assert [key for key in shown if key <= until] == sorted(key for key in keys if "a" < key <= until), until
        assert len(until) == 1024 or [key[len(until) :] for key in shown if key > until] in ([], ["\x01"]), until


@pytest.mark.parametrize(
    ("endpoint", "google"),
    [
        ("", True),
        ("https://storage.europe-west3.rep.googleapis.com", True),
        ("http://127.0.0.1:4443", False),
        ("https://googleapis.com.example.org", False),
    ],
)
def test_only_google_is_believed_to_keep_the_order_and_asked_for_ranges_by_their_ends(opened, endpoint, google):
    store = opened(GcsConfig(bucket="lake", endpoint=endpoint, anonymous=True))
    assert (store.order_is_documented, store.bounds_pages) == (google, google)


@pytest.mark.parametrize("page_size", [1000, 4999, 5000])
def test_pages_of_up_to_five_thousand_keys_are_asked_for(gcs_bucket, opened, page_size):
    gcs_bucket.put("k")
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = opened(gcs_bucket.config(endpoint=proxy.endpoint, page_size=page_size))
        store.list_page(page_size=page_size)
        store.list_page(page_size=page_size, after="a")
        assert [asked(one)["maxResults"] for one in proxy.requests] == [str(page_size), str(min(page_size + 1, 5000))]


# ---------------------------------------------------------------- reading


def test_ranges_give_exactly_their_bytes(gcs_bucket, opened):
    gcs_bucket.put("k", CONTENT)
    store = opened(gcs_bucket.config())
    native = only(store)
    for start, end in [(0, None), (0, 1), (1, 2), (7, 70_000), (320_191, None), (5, 10**9), (320_192, None), (9, 9)]:
        assert drain(store.open(native, start, end)) == CONTENT[start:end]


def test_an_object_stored_as_gzip_comes_as_it_is_stored(gcs_bucket, opened):
    """The server would unpack it on the way for who does not take gzip: then listed size and bytes differ."""
    packed = gzip.compress(CONTENT)
    gcs_bucket.put("k.jsonl", packed, content_encoding="gzip")
    store = opened(gcs_bucket.config())
    native = only(store)
    assert native.size == len(packed)
    assert drain(store.open(native)) == packed
    assert drain(store.open(native, 5, 500)) == packed[5:500]


def test_one_that_was_unpacked_all_the_same_is_told(gcs_bucket, opened):
    gcs_bucket.put("k", CONTENT)
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = opened(gcs_bucket.config(endpoint=proxy.endpoint))
        native = only(store)
        proxy.add(Fault(path="/download/", headers={"x-guploader-response-body-transformations": "gunzipped"}))
        with pytest.raises(StoreUnavailableError, match=r"gs://.*/k: the store unpacked the object.*gcs\.proxy"):
            store.open(native)


def test_an_object_overwritten_after_it_was_listed_is_never_mixed(gcs_bucket, opened):
    gcs_bucket.put("k", CONTENT)
    store = opened(gcs_bucket.config())
    old = only(store)
    gcs_bucket.put("k", CONTENT[::-1])
    for start in (0, 1000):
        with pytest.raises(ObjectChangedError, match=r"gs://.*/k: it was overwritten.*generation"):
            store.open(old, start)
    assert drain(store.open(only(store))) == CONTENT[::-1]


def test_a_store_that_ignores_generations_is_seen_through(gcs_bucket, opened):
    gcs_bucket.put("k", CONTENT)
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = opened(gcs_bucket.config(endpoint=proxy.endpoint))
        native = only(store)
        proxy.add(Fault(path="/download/", headers={"x-goog-generation": "42"}))
        with pytest.raises(ObjectChangedError, match=r"generation 42, listed"):
            store.open(native)


def test_an_object_that_was_deleted_is_gone(gcs_bucket, opened):
    gcs_bucket.put("k", CONTENT)
    store = opened(gcs_bucket.config())
    old = only(store)
    gcs_bucket.delete("k")
    with pytest.raises(ObjectNotFoundError, match=r"gs://.*/k: it was deleted"):
        store.open(old)
    with pytest.raises(ObjectNotFoundError):
        store.stat("k")


@pytest.mark.parametrize(
    "fault",
    [
        Fault(path="/download/", cut_at=100_001, times=2),
        Fault(path="/download/", reset_at=100_001, times=2),
        Fault(path="/download/", refuse=True, times=2),
        Fault(path="/download/", longer_by=-7),
        Fault(path="/download/", longer_by=7),
        Fault(path="/download/", status=503, times=2),
        Fault(path="/download/", status=429, times=2),
        Fault(path="/download/", status=500, times=2),
        Fault(path="/download/", status=408, times=2),
    ],
)
def test_what_breaks_goes_on_at_the_byte_it_reached(gcs_bucket, opened, fault):
    gcs_bucket.put("k", CONTENT)
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = opened(gcs_bucket.config(endpoint=proxy.endpoint))
        native = only(store)
        proxy.add(fault)
        policy = RetryPolicy(base_seconds=0.001, cap_seconds=0.001)
        try:
            assert drain(StoreInput(store, native, policy).open()) == CONTENT
        except ObjectChangedError:
            assert fault.longer_by  # another length than listed: the object is listed again
        assert len(proxy.requests) > 1


def test_a_read_that_waits_ends_when_the_store_is_closed(gcs_bucket, opened):
    gcs_bucket.put("k", CONTENT)
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = opened(gcs_bucket.config(endpoint=proxy.endpoint))
        native = only(store)
        proxy.add(Fault(path="/download/", cut_at=1000, longer_by=0, times=None))
        stream = store.open(native)
        closer = threading.Timer(0.1, store.close)
        closer.start()
        with pytest.raises((TaskClosedError, StoreUnavailableError)):
            drain(stream)
        closer.join()
        with pytest.raises(TaskClosedError):
            store.open(native)
    store.close()


def test_many_threads_share_one_store(gcs_bucket, opened):
    for number in range(24):
        gcs_bucket.put(f"k{number:02d}", CONTENT[number:])
    store = opened(gcs_bucket.config())
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(lambda native: drain(store.open(native)), store.list_all()))
    assert read == [CONTENT[number:] for number in range(24)]


# ---------------------------------------------------------------- refusals


def test_a_bucket_that_does_not_exist_is_named(gcs_bucket, opened):
    store = opened(gcs_bucket.config(bucket="no-such-bucket-anywhere"))
    with pytest.raises(
        BucketNotFoundError, match=r"gs://no-such-bucket-anywhere: there is no such bucket; check gcs\.bucket"
    ):
        store.list_page()


def refusal(status, reason, message="no"):
    body = {"error": {"code": status, "message": message, "errors": [{"reason": reason, "message": message}]}}
    return {"status": status, "body": json.dumps(body).encode(), "headers": {"Content-Type": "application/json"}}


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        (refusal(403, "forbidden"), AccessDeniedError),
        (refusal(401, "required"), AccessDeniedError),  # anonymous: there is nothing to renew
        (refusal(429, "rateLimitExceeded"), ThrottledError),
        (refusal(400, "userProjectMissing"), AccessDeniedError),
        (refusal(412, "conditionNotMet"), ObjectChangedError),
        (refusal(416, "requestedRangeNotSatisfiable"), ObjectChangedError),
        ({"status": 502, "body": b"<html>bad gateway</html>"}, StoreUnavailableError),
    ],
)
def test_a_refused_read_says_what_to_do(gcs_bucket, opened, what, kind):
    gcs_bucket.put("k", CONTENT)
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = opened(gcs_bucket.config(endpoint=proxy.endpoint))
        native = only(store)
        proxy.add(Fault(path="/download/", **what))
        with pytest.raises(kind, match=r"gs://.*/k: "):
            store.open(native, 1, 7)


def test_an_endpoint_that_is_down_is_told(opened, gcs_bucket):
    store = opened(gcs_bucket.config(endpoint="http://127.0.0.1:9"))
    with pytest.raises(
        StoreUnavailableError, match=r"cannot be reached; check gcs\.endpoint \(or STORAGE_EMULATOR_HOST\)"
    ):
        store.list_page()


# ---------------------------------------------------------------- identity


class Tokens(google_credentials.Credentials):
    """Tokens that a test makes: t1, t2 ..."""

    def __init__(self):
        super().__init__()
        self.made = 0

    def refresh(self, request):
        self.made += 1
        self.token = f"t{self.made}"


def test_a_token_that_is_refused_in_the_middle_is_renewed(gcs_bucket, opened):
    gcs_bucket.put("k", CONTENT)
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        tokens = Tokens()
        store = opened(gcs_bucket.config(endpoint=proxy.endpoint, anonymous=False), tokens)
        native = only(store)
        proxy.add(Fault(path="/download/", **refusal(401, "authError")))
        assert drain(store.open(native)) == CONTENT
        assert [one.headers["authorization"] for one in proxy.requests] == ["Bearer t1", "Bearer t1", "Bearer t2"]


def test_credentials_that_are_refused_for_good_are_told(gcs_bucket, opened):
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = opened(gcs_bucket.config(endpoint=proxy.endpoint, anonymous=False), Tokens())
        proxy.add(Fault(times=None, **refusal(401, "authError", "Invalid Credentials")))
        with pytest.raises(CredentialsError, match=r"check section \[gcs\] .*Invalid Credentials"):
            store.list_page()


@pytest.mark.parametrize("content", ["", "{", '{"type": "service_account"}', '{"type": "no such type"}'])
def test_a_key_file_that_is_none_is_told(gcs_bucket, tmp_path, content):
    file = tmp_path / "key.json"
    file.write_text(content)
    with pytest.raises(CredentialsError, match=r"gcs\.credentials_file"):
        GcsStore(gcs_bucket.config(anonymous=False, credentials_file=str(file)))


def test_a_key_file_that_is_missing_is_told(gcs_bucket, tmp_path):
    with pytest.raises(CredentialsError, match=r"missing\.json"):
        GcsStore(gcs_bucket.config(anonymous=False, credentials_file=str(tmp_path / "missing.json")))


def test_no_credentials_at_all_is_one_sentence(gcs_bucket):
    config = attrs.evolve(gcs_bucket.config(), anonymous=False, endpoint="")
    with pytest.raises(CredentialsError, match=r"no credentials were found.*gcloud auth application-default login"):
        GcsStore(config)


def test_the_emulator_of_the_environment_is_used(gcs_bucket, opened, monkeypatch):
    gcs_bucket.put("k", b"content")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_bucket.endpoint)
    store = opened(attrs.evolve(gcs_bucket.config(), anonymous=False, endpoint=""))
    assert drain(store.open(only(store))) == b"content"


def test_who_pays_and_the_customers_key_are_sent(gcs_bucket, opened):
    gcs_bucket.put("k", b"content")
    key = b"0" * 32
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        config = gcs_bucket.config(
            endpoint=proxy.endpoint,
            anonymous=False,
            user_project="payer",
            customer_key="MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDA=",
        )
        store = opened(config, Tokens())
        drain(store.open(only(store)))
        store.stat("k")
        assert [asked(one)["userProject"] for one in proxy.requests] == ["payer"] * 3
        read = proxy.requests[1].headers
        assert read["x-goog-encryption-algorithm"] == "AES256"
        assert read["x-goog-encryption-key"] == config.customer_key
        assert "x-goog-encryption-key" not in proxy.requests[0].headers
        assert len(key) == 32


def test_requests_go_through_the_proxy(gcs_bucket, opened):
    gcs_bucket.put("k", b"content")
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = opened(gcs_bucket.config(endpoint="http://storage.test", proxy=proxy.endpoint))
        assert drain(store.open(only(store))) == b"content"
        assert len(proxy.requests) == 2


def test_check_says_what_works_line_by_line(gcs_bucket, opened):
    store = opened(gcs_bucket.config())
    assert [(one.step, one.ok) for one in check_store(store)] == [
        ("credentials", True),
        ("bucket", True),
        ("read", True),
    ]
    gcs_bucket.put("k", b"content")
    assert f"gs://{gcs_bucket.name}/k can be read" in list(check_store(store))[2].detail
    missing = opened(gcs_bucket.config(bucket="no-such-bucket-anywhere"))
    assert [(one.step, one.ok) for one in check_store(missing)] == [("credentials", True), ("bucket", False)]
    assert "application default" in next(check_store(opened(gcs_bucket.config(anonymous=False), Tokens()))).detail
