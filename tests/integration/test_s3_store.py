"""What is S3 alone: two ways to read, lookups by HEAD, keys, roles and profiles. What stores have in common: test_stores."""

import base64
import contextlib
import http.server
import json
import os
import socket
import threading
import time
from urllib.parse import parse_qs

import attrs
import pytest

from framework.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ConfigError,
    CredentialsError,
    ListingError,
    ObjectChangedError,
    ObjectError,
    ObjectNotFoundError,
    RetriableError,
    StoreUnavailableError,
    TaskClosedError,
    is_low_memory,
)
from framework.model.objects import NativeObject
from framework.storage.preflight import check_store
from framework.testing.faults import Fault, FaultProxy
from framework.testing.servers.ports import free_port
from s3_source import transport, xml_limits
from s3_source.boto_session import AWS_SUFFIXES, is_aws, make_session
from s3_source.client import S3Store
from s3_source.config import S3Config
from tests.integration.test_stores import CONTENT, difficult_keys
from tests.support.reading import only, read, warm
from tests.support.stopwatch import Stopwatch


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


# ---------------------------------------------------------------- listing


@pytest.mark.parametrize("page_size", [1, 2, 3, 40, 41, 1000])
def test_every_object_is_listed_once_whatever_the_page_size(moto_bucket, opened, page_size):
    """Of more objects than the largest page has: law L1 (tests/conformance/test_stores.py)."""
    keys = sorted(f"k/{number:05}" for number in range(41))
    for key in (*keys, "kk/outside"):
        moto_bucket.put(key, b"")
    store = opened(moto_bucket.config())
    assert [native.key for native in store.list_all(prefix="k/", page_size=page_size)] == keys


def test_an_object_is_looked_up_by_head_as_a_listing_shows_it(s3_bucket, opened):
    keys = difficult_keys(s3_bucket)[:-2]
    for key in keys:
        s3_bucket.put(key, key.encode())
    s3_bucket.put("a b longer", b"longer")
    store = opened(s3_bucket.config())
    assert store.lists_milliseconds
    store.lists_milliseconds = False
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


def test_metadata_of_an_object(moto_bucket, opened):
    moto_bucket.put("k", b"1", ContentType="application/json", Metadata={"Team": "blue", "x-y": "caf"})
    store = opened(moto_bucket.config())
    (listed,) = store.list_all()
    assert store.metadata(listed) == {"content-type": "application/json", "meta:team": "blue", "meta:x-y": "caf"}


def test_tags_of_an_object(moto_bucket, opened):
    moto_bucket.put("k", b"1", Tagging="team=blue&cost%20centre=12")
    moto_bucket.put("plain", b"1")
    store = opened(moto_bucket.config())
    tagged, plain = store.list_all()
    assert store.tags(tagged) == {"team": "blue", "cost centre": "12"}
    assert store.tags(plain) == {}
    with pytest.raises(ObjectNotFoundError):
        store.tags(attrs.evolve(plain, key="gone"))


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
        proxy.add(Fault(method="HEAD", status=403, headers={"x-amz-request-id": "7"}, times=None))
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
def test_only_aws_is_known_to_list_whole_seconds_and_to_its_end(opened, endpoint, milliseconds):
    config = S3Config(bucket="lake", endpoint=endpoint, region="eu-west-1", anonymous=True)
    store = opened(config)
    assert (store.lists_milliseconds, store.ends_are_reliable) == (milliseconds, not milliseconds)


def test_a_page_that_promises_more_without_saying_how_is_an_error(moto_bucket, opened):
    body = b"""<?xml version="1.0"?><ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"""
    with FaultProxy(moto_bucket.endpoint) as proxy:
        proxy.add(Fault(status=200, body=body))
        with pytest.raises(ListingError, match="not how to get it"):
            opened(moto_bucket.config(endpoint=proxy.endpoint)).list_page()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        # No word of botocore's: its handlers come after ours, so that none of them parses the page a second time.
        (b"<ListBucketResult><IsTruncated>false</IsTruncated>", "a page of the listing cannot be read"),
        (b"<Error><Code>InternalError</Code><Message>try again</Message></Error>", "InternalError"),
    ],
)
def test_an_answer_that_is_no_page_is_tried_again(moto_bucket, opened, body, said):
    with FaultProxy(moto_bucket.endpoint) as proxy:
        proxy.add(Fault(status=200, body=body))
        with pytest.raises(StoreUnavailableError, match=said):
            opened(moto_bucket.config(endpoint=proxy.endpoint)).list_page()


def test_a_page_that_is_larger_than_any_page_is_not_read_whole(moto_bucket, opened, monkeypatch):
    moto_bucket.put("a")
    store = opened(moto_bucket.config())
    assert len(store.list_page().objects) == 1
    native = only(store)
    monkeypatch.setattr(transport, "MAX_BYTES", 100)
    for ask in (store.list_page, lambda: store.tags(native)):
        with pytest.raises(StoreUnavailableError, match="a document of more than 100 bytes"):
            ask()


DOCTYPE = b'<!DOCTYPE r [<!ENTITY e "a">]>'
REFUSAL = b"<Error><Code>%s</Code><Message>no</Message></Error>"


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, DOCTYPE + b"<ListBucketResult><Name>&e;</Name></ListBucketResult>", "DOCTYPE"),
        (200, "<ListBucketResult/>".encode("utf-16"), "UTF-16"),
        (403, DOCTYPE + REFUSAL % b"AccessDenied", "no document of the store"),
        (503, b"<!DOCTYPE html><html><body>down</body></html>", "503"),
        (403, REFUSAL % (b"<a>" * 2000 + b"</a>" * 2000), "recursion"),
    ],
)
def test_a_document_that_unfolds_in_a_parser_is_not_parsed(moto_bucket, opened, status, body, said):
    moto_bucket.put("a")
    native = only(opened(moto_bucket.config()))
    with FaultProxy(moto_bucket.endpoint) as proxy:
        store = opened(moto_bucket.config(endpoint=proxy.endpoint))
        for ask in (store.list_page, lambda: store.tags(native)):
            proxy.add(Fault(status=status, body=body))
            with pytest.raises(StoreUnavailableError, match=said):
                ask()


def test_a_page_of_more_tags_than_any_page_has_is_not_parsed(moto_bucket, opened, monkeypatch):
    """A parser takes some 90 bytes for a tag of four."""
    for number in range(20):
        moto_bucket.put(f"{number:02}")
    store = opened(moto_bucket.config())
    assert len(store.list_page().objects) == 20
    native = store.list_page(page_size=1).objects[0]
    monkeypatch.setattr(xml_limits, "MAX_TAGS", 2)
    for ask in (store.list_page, lambda: store.tags(native)):
        with pytest.raises(StoreUnavailableError, match=r"a document of [\d,]+ tags"):
            ask()


@pytest.fixture
def endless():
    """A server that begins every answer and never ends its head."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = []

        def answer():
            with contextlib.suppress(OSError):
                while True:
                    taken.append(listener.accept()[0])
                    taken[-1].sendall(b"HTTP/1.1 200 OK\r\nx: ")
                    for _ in range(50):
                        taken[-1].sendall(b"x")
                        time.sleep(0.1)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        for connection in taken:
            connection.close()
        thread.join(10)


LISTED = NativeObject(scheme="s3", bucket="b", key="k", size=5, version="e@1")
SMALL = {"bucket": "b", "region": "us-east-1", "access_key_id": "a", "secret_access_key": "s"}
ASKS = pytest.mark.parametrize(
    "ask",
    [S3Store.list_page, lambda store: store.metadata(LISTED), lambda store: store.tags(LISTED)],
    ids=["list", "head", "tags"],
)


@ASKS
def test_a_head_of_an_answer_that_trickles_is_silence(endless, opened, ask):
    store = opened(S3Config(**SMALL, endpoint=endless, read_timeout=0.5))
    began = Stopwatch()
    with pytest.raises(StoreUnavailableError, match="nothing came for"):
        ask(store)
    assert began.seconds < 4


@ASKS
def test_whoever_waits_for_an_answer_is_ended_with_the_store(endless, opened, ask):
    store = opened(S3Config(**SMALL, endpoint=endless))
    closer = threading.Timer(0.2, store.close)
    closer.start()
    began = Stopwatch()
    with pytest.raises(TaskClosedError):
        ask(store)
    assert began.seconds < 4
    closer.join()


def test_a_listing_goes_on_behind_a_key_with_a_control_character(moto_bucket, opened):
    keys = ["a", "a\x01&b", "c", "c\x1f", "d"]
    for key in keys:
        moto_bucket.put(key)
    store = opened(moto_bucket.config())  # moto repeats StartAfter as it is, as Ceph and versitygw do
    for after in keys:
        assert [native.key for native in store.list_page(after=after).objects] == [key for key in keys if key > after]


# ---------------------------------------------------------------- reading


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


# ---------------------------------------------------------------- identity and world


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
                expired = "Credential=EXPIRED/" in (self.headers["authorization"] or "")
                refusal = outer.refusal("ExpiredToken") if expired else outer.refusal() if status != 200 else b""
                answer = refusal or outer.answer(lifetime)
                self.send_response(403 if expired else status)
                self.send_header("Content-Type", "text/xml")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def do_GET(self):  # as a metadata service that gives out nothing
                outer.asked.append(self.path)
                self.send_error(status)

            def do_PUT(self):
                self.do_GET()

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def answer(self, lifetime):
        action = self.asked[-1]["Action"]
        end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + lifetime))
        number = len(self.asked)
        return (
            f'<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result><Credentials>'
            f"<AccessKeyId>ROLE{number}</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>"
            f"<SessionToken>token-{number}</SessionToken><Expiration>{end}</Expiration></Credentials>"
            f"</{action}Result></{action}Response>"
        ).encode()

    def refusal(self, code="AccessDenied"):
        return (
            '<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type>'
            f"<Code>{code}</Code><Message>not allowed</Message></Error></ErrorResponse>"
        ).encode()

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
                role_duration=1234,
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
        store = opened(moto_bucket.config(role_arn=ROLE, role_duration=900, sts_endpoint=sts.endpoint))
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


@pytest.fixture
def web_identity(monkeypatch, tmp_path):
    """Makes it the environment's identity, at a token service; returns options of `S3Config` that leave it the only one."""

    def at(endpoint):
        (tmp_path / "token").write_text("identity")
        monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
        monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", endpoint)
        return {"access_key_id": "", "secret_access_key": ""}

    return at


@pytest.mark.parametrize("way", ["role", "web identity"])
@pytest.mark.parametrize("reads", [0, 1, 3], ids=["listing", "through-boto3", "short-way"])
def test_keys_that_the_store_calls_expired_are_renewed_before_their_end(moto_bucket, opened, web_identity, way, reads):
    """As when an administrator ends a role's sessions, or the store's clock is ahead."""
    for number in range(4):
        moto_bucket.put(f"k{number}")
    with FakeSts() as sts, FaultProxy(moto_bucket.endpoint) as proxy:
        config = moto_bucket.config(endpoint=proxy.endpoint)
        if way == "role":
            config = attrs.evolve(config, role_arn=ROLE, sts_endpoint=sts.endpoint)
        else:
            config = attrs.evolve(config, **web_identity(sts.endpoint))
        store = opened(config)
        natives = list(store.list_all())
        for native in natives[1 : max(1, reads)]:
            read(store, native)
        expired = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
        proxy.add(Fault(status=400, body=expired, times=1))
        ask = (lambda: read(store, natives[0])) if reads else store.list_page
        with pytest.raises(StoreUnavailableError, match="temporary keys have expired; new ones are asked for"):
            ask()
        ask()
        tokens = [request.headers["x-amz-security-token"] for request in proxy.requests]
        assert tokens[-2:] == ["token-1", "token-2"]
        assert len(sts.asked) == 2


@pytest.mark.parametrize("way", ["role", "web identity"])
def test_a_proxy_login_that_botocore_cannot_send_to_the_token_service_is_a_mistake(
    opened, web_identity, monkeypatch, way
):
    proxy, identity = f"http://user:S%C3%A4cret@127.0.0.1:{free_port()}", {"role_arn": ROLE, "access_key_id": "A"}
    options = {**identity, "secret_access_key": "S", "proxy": proxy, "sts_endpoint": "https://sts.test"}
    if way == "web identity":
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        options = web_identity("https://sts.test")
    with pytest.raises(ConfigError, match=r"a proxy whose user or password is not ASCII; .*s3\.proxy") as caught:
        opened(S3Config(bucket="b", region="us-east-1", endpoint="http://store.test", **options)).list_page()
    assert "cret" not in str(caught.value)


def test_expired_keys_that_a_role_is_assumed_with_are_asked_for_again(moto_bucket, monkeypatch, tmp_path, opened):
    """As when an administrator ends the sessions of that identity, or this machine's clock is behind."""
    moto_bucket.put("k", b"by role")
    keys = {"Version": 1, "SecretAccessKey": "S", "SessionToken": "T", "Expiration": "2099-01-01T00:00:00Z"}
    (tmp_path / "keys.json").write_text(json.dumps(keys | {"AccessKeyId": "EXPIRED"}))
    (tmp_path / "renewed.json").write_text(json.dumps(keys | {"AccessKeyId": "RENEWED"}))
    give = "sh -c 'cat keys.json; cp renewed.json keys.json'"
    (tmp_path / "config").write_text(f"[profile given]\ncredential_process = {give}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    identity = {"profile": "given", "access_key_id": "", "secret_access_key": ""}
    with FakeSts() as sts:
        store = opened(moto_bucket.config(role_arn=ROLE, sts_endpoint=sts.endpoint, **identity))
        assert read(store, only(store)) == b"by role"
        asked = [request["authorization"].partition("Credential=")[2].partition("/")[0] for request in sts.asked]
        assert asked == ["EXPIRED", "RENEWED"]


@pytest.mark.parametrize("way", ["role", "web identity"])
def test_a_token_service_that_is_silent_is_named_and_waited_for_as_the_store_is(opened, web_identity, way):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sts = f"http://127.0.0.1:{silent.getsockname()[1]}"
        identity = {"role_arn": ROLE, "sts_endpoint": sts, "access_key_id": "A", "secret_access_key": "S"}
        if way == "web identity":
            identity = web_identity(sts)
        store_address = f"http://127.0.0.1:{free_port()}"
        store = opened(S3Config(bucket="b", region="us-east-1", endpoint=store_address, read_timeout=0.5, **identity))
        for ask in (S3Store.list_page, S3Store.identity, lambda store: store.open(LISTED)):
            watch = Stopwatch()
            with pytest.raises(StoreUnavailableError, match="the service that gives out the credentials") as caught:
                ask(store)
            assert watch.seconds < 3
            assert f"asked was {sts}/ (ReadTimeoutError: " in str(caught.value)
            assert store_address not in str(caught.value)


@pytest.mark.parametrize("answer", [b"<html>login</html>", b"<AssumeRoleResult><Credentials><SecretAccessKey>hunter22"])
def test_an_answer_of_the_token_service_that_is_none_is_not_the_stores(monkeypatch, opened, answer):
    with FakeSts() as sts:
        monkeypatch.setattr(sts, "answer", lambda lifetime: answer)
        config = S3Config(
            bucket="b",
            region="us-east-1",
            endpoint="http://store.test",
            role_arn=ROLE,
            sts_endpoint=sts.endpoint,
            access_key_id="A",
            secret_access_key="S",
        )
        with pytest.raises(StoreUnavailableError, match="the service that gives out the credentials") as caught:
            opened(config).list_page()
        assert "store.test" not in str(caught.value)
        assert "hunter22" not in str(caught.value)


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


@pytest.mark.parametrize("named_by", ["option", "environment"])
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_of_another_store_is_not_followed(moto_bucket, opened, monkeypatch, status, named_by):
    moto_bucket.put("k", CONTENT)
    with FaultProxy(moto_bucket.endpoint) as proxy, FaultProxy(moto_bucket.endpoint) as other:
        if named_by == "environment":
            monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint)
        store = opened(
            moto_bucket.config(endpoint=proxy.endpoint if named_by == "option" else "", addressing_style="path")
        )
        native = only(store, "k")
        proxy.clear()
        proxy.add(Fault(status=status, headers={"Location": f"{other.endpoint}/x"}, times=None))
        for call in (lambda: store.open(native), store.list_page):
            with pytest.raises((ConfigError, StoreUnavailableError), match="s3://"):  # no RecursionError
                call()
        assert len(proxy.requests) == 2
        assert other.requests == []


def test_the_proxy_is_the_one_that_boto3_takes_for_the_same_address(moto_bucket, opened, monkeypatch):
    for number in range(3):
        moto_bucket.put(f"k{number}", b"x")
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,.s3.eu-west-1.amazonaws.com")
    monkeypatch.setenv("no_proxy", "127.0.0.1,.s3.eu-west-1.amazonaws.com")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", moto_bucket.endpoint)
    store = opened(moto_bucket.config(endpoint="", addressing_style="path"))
    assert store.address == moto_bucket.endpoint
    assert [read(store, native) for native in store.list_all()] == [b"x"] * 3  # the second one goes the short way
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    for region, proxied in (("eu-west-1", False), ("eu-central-1", True)):
        store = opened(S3Config(bucket="lake", region=region, anonymous=True))
        assert bool(store._http.options.proxy) is proxied
        assert bool(store._client._endpoint.http_session._proxy_config._proxies) is proxied
        assert store.address == ""


def test_a_key_that_a_proxy_would_change_is_not_asked_for(moto_bucket, opened):
    with FaultProxy(moto_bucket.endpoint) as proxy:
        store = opened(moto_bucket.config(proxy=proxy.endpoint))
        for key in ("x/../../other/k", "./k", "a/.."):
            with pytest.raises(ObjectError, match="HTTP proxy takes out"):
                store.open(NativeObject(scheme="s3", bucket=moto_bucket.name, key=key, size=1, version="e@0"))
        assert proxy.requests == []


def test_the_owner_is_named_in_every_request(moto_bucket, opened):
    for number in range(2):
        moto_bucket.put(f"k{number}", b"x")
    with FaultProxy(moto_bucket.endpoint) as proxy:
        store = opened(moto_bucket.config(endpoint=proxy.endpoint, expected_bucket_owner="123456789012"))
        natives = list(store.list_all())
        assert [read(store, native) for native in natives] == [b"x"] * 2
        store.lists_milliseconds = False
        store.stat("k0")
        with pytest.raises(ObjectNotFoundError):
            store.stat("missing")
        assert {one.headers.get("x-amz-expected-bucket-owner") for one in proxy.requests} == {"123456789012"}


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("https://s3.eu-west-1.amazonaws.com", True),
        ("https://s3.dualstack.eu-west-1.api.aws:443", True),
        ("https://s3.cn-north-1.amazonaws.com.cn", True),
        ("https://s3.us-iso-east-1.c2s.ic.gov", True),
        ("https://s3.us-iso-east-1.api.aws.ic.gov", True),
        ("https://s3.eusc-de-east-1.amazonaws.eu", True),
        ("https://amazonaws.com", False),
        ("https://s3.notamazonaws.com", False),
        ("http://localhost:8333", False),
    ],
)
def test_an_address_of_aws_ends_with_a_name_of_aws(endpoint, expected):
    assert is_aws(endpoint) is expected


def test_the_addresses_of_aws_are_those_that_botocore_knows():
    from botocore.session import Session

    partitions = Session().get_data("partitions")["partitions"]
    suffixes = {one["outputs"][name] for one in partitions for name in ("dnsSuffix", "dualStackDnsSuffix")}
    assert suffixes <= set(AWS_SUFFIXES)  # an older botocore, which is allowed, knows fewer


@pytest.mark.parametrize("bucket", ["lake--euw1-az1--x-s3", "point--euw1-az1--xa-s3"])
def test_directory_buckets_list_in_no_order(opened, bucket):
    store = opened(S3Config(bucket=bucket, region="eu-west-1", anonymous=True))
    assert not store.ordered
    assert not store.order_is_documented


def test_a_secret_in_the_clear_is_warned_of(opened, caplog):
    key = base64.b64encode(b"k" * 32).decode()
    plain = {"bucket": "lake", "region": "us-east-1", "anonymous": True}
    opened(S3Config(**plain, endpoint="http://store.example"))
    opened(S3Config(**plain, endpoint="https://store.example", sse_customer_key=key))
    opened(S3Config(**plain, endpoint="http://127.0.0.1:9000", sse_customer_key=key))
    assert not caplog.messages
    opened(S3Config(**plain, endpoint="http://store.example", sse_customer_key=key))
    assert "http://store.example: the key of encrypted objects is sent unencrypted" in caplog.text
    assert key not in caplog.text


def test_addressing_style(moto_bucket, opened):
    for style, bucket, expected in [
        ("auto", "lake-a", "http://store.test/lake-a/k"),
        ("path", "lake-a", "http://store.test/lake-a/k"),
        ("virtual", "lake-a", "http://lake-a.store.test/k"),
    ]:
        with FaultProxy(moto_bucket.endpoint) as proxy:
            proxy.add(Fault(status=500, times=None))
            store = opened(
                moto_bucket.config(
                    bucket=bucket, endpoint="http://store.test", addressing_style=style, proxy=proxy.endpoint
                )
            )
            with pytest.raises(StoreUnavailableError):
                store.open(NativeObject(bucket=bucket, key="k", size=1, version="e@0"))
            # Through an HTTP proxy the request line holds the whole address: the proxy option is used as well.
            assert [request.path for request in proxy.requests] == [expected]


@pytest.mark.parametrize(
    ("expiration", "said"),
    [("soon", "what gives the credentials out did not"), ("2001-01-01T00:00:00Z", "had expired already")],
)
def test_keys_that_a_program_gives_out_wrongly_are_asked_for_again(monkeypatch, tmp_path, opened, expiration, said):
    keys = {"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "S", "SessionToken": "T", "Expiration": expiration}
    (tmp_path / "keys.json").write_text(json.dumps(keys))
    (tmp_path / "config").write_text(f"[profile given]\ncredential_process = cat {tmp_path / 'keys.json'}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    config = S3Config(bucket="b", region="us-east-1", profile="given", endpoint=f"http://127.0.0.1:{free_port()}")
    for ask in (S3Store.list_page, lambda store: store.open(LISTED)):
        with pytest.raises(StoreUnavailableError, match=rf"^s3://b.*: .*{said}.*s3\.profile") as caught:
            ask(opened(config))
        assert "asked was" not in str(caught.value)  # the store was not


@pytest.fixture
def instance(monkeypatch):
    """An instance of a cloud: nothing but its metadata service, whose address the function takes, gives out keys."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    return lambda endpoint: monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint)


BARE = S3Config(bucket="b", region="us-east-1", endpoint="http://store.test")


@pytest.mark.parametrize("role_arn", ["", ROLE])
def test_a_metadata_service_that_is_not_up_yet_is_named_and_asked_again(instance, opened, role_arn):
    config = attrs.evolve(BARE, role_arn=role_arn)
    metadata = r"did not; .*the instance's metadata service: .*http://127\.0\.0\.1:"
    instance(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(StoreUnavailableError, match=rf"{metadata}.*refused"):
        opened(config).list_page()
    with FakeSts(status=503) as busy:
        instance(busy.endpoint)
        with pytest.raises(StoreUnavailableError, match=f"HTTP 503 of {busy.endpoint}"):
            opened(config).list_page()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        instance(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(StoreUnavailableError, match=rf"{metadata}.*timed out"):
            opened(config).list_page()


@pytest.mark.parametrize("role_arn", ["", ROLE])
@pytest.mark.parametrize("proxy", ["http://user:Pr/Secret@h.invalid:1", "http://user:Secret@h.invalid:99999"])
def test_a_broken_proxy_to_the_metadata_service_is_named_without_its_password(
    instance, opened, monkeypatch, proxy, role_arn
):
    instance("http://metadata.invalid")
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, proxy)
    with pytest.raises(ConfigError, match=r"the variable (HTTP_PROXY|http_proxy): ") as caught:
        opened(attrs.evolve(BARE, role_arn=role_arn, endpoint="https://store.test")).list_page()
    assert "Pr" not in str(caught.value).replace("PROXY", "")
    assert "Secret" not in str(caught.value)
    assert not is_low_memory(caught.value)  # it is its own cause: raised again from itself


def test_a_machine_without_credentials_and_without_a_metadata_service_is_a_mistake(instance, opened, monkeypatch):
    def ask():
        with pytest.raises(CredentialsError, match="no credentials were found") as caught:
            opened(BARE).list_page()
        assert not isinstance(caught.value, RetriableError)

    with FakeSts(status=404) as without_role:
        instance(without_role.endpoint)
        ask()
        assert without_role.asked
    instance("http://metadata.invalid")  # as good as no route
    ask()
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    ask()


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("role_arn", ["", ROLE])
def test_a_metadata_service_that_refuses_to_tell_is_named(instance, opened, role_arn, status):
    with FakeSts(status=status) as refusing:
        instance(refusing.endpoint)
        with pytest.raises(CredentialsError, match=f"no credentials were found.*HTTP {status} of {refusing.endpoint}"):
            opened(attrs.evolve(BARE, role_arn=role_arn)).list_page()


@pytest.mark.parametrize("failing", [0, 1, 2, 3])
def test_instance_metadata_that_fails_once_still_gives_the_keys(instance, failing):
    answers = {
        "/latest/api/token": b"token",
        "/latest/meta-data/iam/security-credentials/": b"a-role",
        "/latest/meta-data/iam/security-credentials/a-role": json.dumps(
            {
                "Code": "Success",
                "AccessKeyId": "A",
                "SecretAccessKey": "S",
                "Token": "T",
                "Expiration": "2099-01-01T00:00:00Z",
            }
        ).encode(),
    }
    asked = []

    class Metadata(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(503 if len(asked) == failing else 200)
            self.send_header("Content-Length", str(len(answers[self.path])))
            self.end_headers()
            self.wfile.write(answers[self.path])

        def do_PUT(self):
            self.do_GET()

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        instance(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            keys = make_session(S3Config(bucket="lake", region="us-east-1")).get_credentials()
        finally:
            server.shutdown()
            thread.join()
    assert keys is not None
    assert (keys.access_key, len(asked) >= 3 + (failing > 1)) == ("A", True)
