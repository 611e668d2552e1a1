"""What is GCS alone: its ranges, stored gzip, generations, refusals and identities. What stores have in common: test_stores."""

import base64
import contextlib
import datetime as dt
import gzip
import os
import socket
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import attrs
import pytest
from google.auth import credentials as google_credentials
from google.oauth2.credentials import Credentials as UserCredentials

from framework.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ConfigError,
    CredentialsError,
    ObjectChangedError,
    ObjectError,
    StoreUnavailableError,
    TaskClosedError,
    ThrottledError,
)
from framework.storage.http.errors import MAX_REFUSAL_BYTES
from framework.storage.preflight import check_store
from framework.storage.resuming_stream import StoreInput
from framework.storage.retry import RetryPolicy
from framework.testing.faults import COPY_BYTES, Fault, FaultProxy
from framework.testing.servers.ports import free_port
from gcs_source.client import GcsStore
from gcs_source.config import GcsConfig
from tests.integration.test_stores import CONTENT
from tests.support.gcs import gcs_refusal
from tests.support.reading import drain, only, read


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


def asked(request):
    return {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}


# ---------------------------------------------------------------- listing


def test_metadata_of_an_object(gcs_bucket, opened):
    blob = gcs_bucket.client.bucket(gcs_bucket.name).blob("k/1")
    blob.metadata = {"Team": "blue"}
    blob.upload_from_string(b"1", content_type="application/json")
    store = opened(gcs_bucket.config())
    (listed,) = store.list_all()
    assert store.metadata(listed) == {"content-type": "application/json", "meta:team": "blue"}


def test_only_what_is_used_is_asked_for(gcs_bucket, opened):
    gcs_bucket.put("k")
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = opened(gcs_bucket.config(endpoint=proxy.endpoint))
        page = store.list_page(prefix="k", after="j", page_size=10)
        said = asked(proxy.requests[-1])
        assert said["fields"].startswith("kind,nextPageToken,items(")
        # neither soft-deleted objects, nor older generations, nor the folders of a hierarchical bucket
        assert set(said) <= {"prefix", "fields", "startOffset", "maxResults", "prettyPrint"}
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
    assert (store.order_is_documented, store.bounds_pages, store.ends_are_reliable) == (google, google, google)


@pytest.mark.parametrize("page_size", [1000, 4999, 5000])
def test_pages_of_up_to_five_thousand_keys_are_asked_for(gcs_bucket, opened, page_size):
    gcs_bucket.put("k")
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = opened(gcs_bucket.config(endpoint=proxy.endpoint, page_size=page_size))
        store.list_page(page_size=page_size)
        store.list_page(page_size=page_size, after="a")
        assert [asked(one)["maxResults"] for one in proxy.requests] == [str(page_size), str(min(page_size + 1, 5000))]


# ---------------------------------------------------------------- reading


def test_an_object_stored_as_gzip_comes_as_it_is_stored(gcs_bucket, opened):
    """The server would unpack it on the way for who does not take gzip: then listed size and bytes differ."""
    packed = gzip.compress(CONTENT)
    gcs_bucket.put("k.jsonl", packed, content_encoding="gzip")
    store = opened(gcs_bucket.config())
    native = only(store)
    assert native.size == len(packed)
    assert read(store, native) == packed
    assert read(store, native, 5, 500) == packed[5:500]


def test_a_composite_object_is_one_like_all_others(gcs_bucket, opened):
    """It has no MD5; nothing here needs one."""
    place = gcs_bucket.client.bucket(gcs_bucket.name)
    for number, part in enumerate((CONTENT[:1000], CONTENT[1000:])):
        gcs_bucket.put(f"part{number}", part)
    place.blob("whole").compose([place.blob("part0"), place.blob("part1")])
    store = opened(gcs_bucket.config())
    native = only(store, "whole")
    assert native.size == len(CONTENT)
    assert read(store, native) == CONTENT
    assert read(store, native, 990, 1010) == CONTENT[990:1010]


def test_one_that_was_unpacked_all_the_same_is_told(gcs_bucket, opened):
    gcs_bucket.put("k", CONTENT)
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = opened(gcs_bucket.config(endpoint=proxy.endpoint))
        native = only(store)
        for headers in (
            {"x-guploader-response-body-transformations": "gunzipped"},
            {"x-goog-stored-content-encoding": "gzip"},
        ):
            proxy.add(Fault(path="/download/", headers=headers))
            with pytest.raises(
                ObjectError, match=r"gs://.*/k: the store unpacks it.*packed twice.*gcs\.proxy"
            ) as caught:
                store.open(native)
            assert not isinstance(caught.value, ObjectChangedError)
        both = {"x-goog-stored-content-encoding": "gzip", "content-encoding": "gzip"}
        proxy.add(Fault(path="/download/", headers=both))
        assert read(store, native) == CONTENT


@pytest.mark.parametrize(
    ("stored", "drop"),
    [
        ({"x-goog-stored-content-encoding": "identity"}, ("content-length",)),
        ({"x-goog-stored-content-encoding": "identity"}, ()),
        ({}, ("content-length", "x-goog-stored-content-encoding")),
    ],
    ids=["no length", "its length", "nothing"],
)
def test_one_that_was_packed_on_the_way_is_told_and_not_read_on_in_another_form(gcs_bucket, opened, stored, drop):
    """A proxy packs whole answers for who takes gzip, and leaves ranges as they are."""
    gcs_bucket.put("k", CONTENT)
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = opened(gcs_bucket.config(endpoint=proxy.endpoint, verify_checksums=False))
        native = only(store)
        headers = {"content-encoding": "gzip", **stored}
        proxy.add(Fault(path="/download/", headers=headers, drop=drop, change=gzip.compress))
        with pytest.raises(ObjectError, match=r"the answer has the encoding gzip.*keep what lies in between") as caught:
            drain(StoreInput(store, native, RetryPolicy().without_waiting()).open())
        assert not isinstance(caught.value, ObjectChangedError)


def test_a_store_that_ignores_generations_is_seen_through(gcs_bucket, opened):
    gcs_bucket.put("k", CONTENT)
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = opened(gcs_bucket.config(endpoint=proxy.endpoint))
        native = only(store)
        proxy.add(Fault(path="/download/", headers={"x-goog-generation": "42"}))
        with pytest.raises(ObjectChangedError, match=r"generation 42, listed"):
            store.open(native)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        (gcs_refusal(403, "forbidden"), AccessDeniedError),
        (gcs_refusal(401, "required"), AccessDeniedError),  # anonymous: there is nothing to renew
        (gcs_refusal(429, "rateLimitExceeded"), ThrottledError),
        (gcs_refusal(400, "userProjectMissing"), AccessDeniedError),
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


@pytest.mark.parametrize("what", [{"cut_at": 5}, {"reset_at": 5}], ids=["cut", "reset"])
def test_a_refusal_that_breaks_off_is_tried_again(gcs_bucket, opened, what):
    gcs_bucket.put("k", CONTENT)
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = opened(gcs_bucket.config(endpoint=proxy.endpoint))
        native = only(store)
        proxy.add(Fault(path="/download/", **gcs_refusal(404, "notFound", "No such object"), **what))
        with pytest.raises(StoreUnavailableError, match=r"gs://.*/k: "):
            store.open(native)


def test_an_endpoint_that_is_down_is_told(opened, gcs_bucket):
    store = opened(gcs_bucket.config(endpoint="http://127.0.0.1:9"))
    with pytest.raises(
        StoreUnavailableError, match=r"cannot be reached; check gcs\.endpoint \(or STORAGE_EMULATOR_HOST\)"
    ):
        store.list_page()


@pytest.mark.parametrize("status", [404, 412, 416])
def test_an_object_that_is_shown_and_not_given_is_not_taken_for_overwritten(gcs_bucket, opened, status):
    gcs_bucket.put("k", CONTENT)
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = opened(gcs_bucket.config(endpoint=proxy.endpoint))
        native = only(store)
        proxy.add(Fault(path="/download/", status=status, body=b"no", times=2))
        with pytest.raises(
            StoreUnavailableError, match=rf"HTTP {status}.*does not serve /download/.*check gcs\.endpoint"
        ):
            store.open(native)
        gcs_bucket.put("k", CONTENT[1:])
        with pytest.raises(ObjectChangedError, match=rf"generation \d+, listed {native.version}"):
            store.open(native)
        assert read(store, only(store)) == CONTENT[1:]


# ---------------------------------------------------------------- the way


def sockets_to(endpoint):
    """This process's connections to an address."""
    port = int(endpoint.rpartition(":")[2])
    found = []
    for number in own_sockets():
        try:
            one = socket.socket(fileno=os.dup(number))
        except OSError:  # closed meanwhile, by a thread of the proxy
            continue
        # Other libraries hold socket pairs: these have no port, and their peer's name is empty.
        if one.family == socket.AF_INET and peer_port(one) == port:
            found.append(one)
        else:
            one.close()
    return found


def own_sockets():
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own descriptor is closed by now
            if stat.S_ISSOCK(os.fstat(int(entry.name)).st_mode):
                found.append(int(entry.name))
    return found


def peer_port(connection):
    with contextlib.suppress(OSError):
        return connection.getpeername()[1]
    return None


def test_connections_are_counted_beside_socket_pairs():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        one, other = socket.socketpair()
        with one, other, socket.create_connection(("127.0.0.1", port)):
            assert count_of(sockets_to(f"http://127.0.0.1:{port}")) == 1


def count_of(sockets):
    for one in sockets:
        one.close()
    return len(sockets)


def test_one_connection_serves_one_thread(gcs_bucket, opened):
    for number in range(5):
        gcs_bucket.put(f"k{number}", CONTENT)
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = opened(gcs_bucket.config(endpoint=proxy.endpoint))
        for native in store.list_all():
            assert read(store, native) == CONTENT
            with pytest.raises(ObjectChangedError):
                store.open(attrs.evolve(native, version="1"))
        assert proxy.accepted == 1


def test_connections_are_closed_with_the_store(gcs_bucket, opened):
    gcs_bucket.put("big", CONTENT * 150)  # more than a window and the buffers of sockets
    gcs_bucket.put("small", CONTENT)
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = opened(gcs_bucket.config(endpoint=proxy.endpoint))
        first, second = store.list_all()
        busy, idle = store.open(first), store.open(second)
        assert drain(idle) == CONTENT
        idle.close()
        assert count_of(sockets_to(proxy.endpoint)) == 2
        store.close()
        with pytest.raises(TaskClosedError):
            drain(busy)
        busy.close()
        assert count_of(sockets_to(proxy.endpoint)) == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "http"]


def test_a_redirect_is_followed(gcs_bucket, opened):
    gcs_bucket.put("k", CONTENT)
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = opened(gcs_bucket.config(endpoint=proxy.endpoint))
        native = only(store)
        place = f"{proxy.endpoint}/download/storage/v1/b/{gcs_bucket.name}/o/k?alt=media&redirected=1"
        proxy.add(Fault(path="/download/", status=307, headers={"Location": place}, times=2))
        assert read(store, native, 3, 9) == CONTENT[3:9]
        assert [asked(one).get("redirected") for one in proxy.requests[1:]] == [None, "1", "1"]


@pytest.mark.parametrize("proxied", [False, True])
def test_connections_are_kept_alive_by_tcp(gcs_bucket, opened, proxied):
    gcs_bucket.put("k", CONTENT)
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = opened(gcs_bucket.config(**{"proxy" if proxied else "endpoint": proxy.endpoint}))
        stream = store.open(only(store))
        (kept,) = sockets_to(proxy.endpoint)
        with kept:
            assert kept.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert kept.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert drain(stream) == CONTENT


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_another_place_carries_nothing_there(gcs_bucket, opened, status):
    gcs_bucket.put("k", CONTENT)
    with FaultProxy(gcs_bucket.endpoint) as proxy, FaultProxy(gcs_bucket.endpoint) as other:
        key = base64.b64encode(b"k" * 32).decode()
        store = opened(gcs_bucket.config(endpoint=proxy.endpoint, customer_key=key))
        native = only(store)
        for place in (other.endpoint, other.endpoint.replace("http:", "https:")):
            proxy.add(Fault(status=status, headers={"Location": f"{place}/x"}, times=2))
            with pytest.raises(ConfigError, match=r"sends the request on to .*gcs\.endpoint"):
                store.open(native)
            with pytest.raises(ConfigError, match="sends the request on"):
                store.list_page()
        assert other.requests == []
        proxy.add(Fault(status=status, headers={"Location": f"{proxy.endpoint}/again"}, times=None))
        with pytest.raises(StoreUnavailableError, match="circle"):
            store.list_page()


@pytest.mark.parametrize("headers", [{}, {"Location": "http://[x"}])
def test_a_redirect_to_no_address_is_told(headers, gcs_bucket, opened):
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = opened(gcs_bucket.config(endpoint=proxy.endpoint))
        proxy.add(Fault(status=308, headers=headers))
        with pytest.raises(
            ConfigError, match=r"redirects the request to no address; check gcs\.endpoint and gcs\.proxy"
        ):
            store.list_page()


def test_a_refused_redirect_that_goes_on_without_end_is_closed(opened):
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        store = opened(GcsConfig(bucket="b", anonymous=True, endpoint=f"http://127.0.0.1:{listener.getsockname()[1]}"))
        asked = pool.submit(store.list_page)
        connection, _ = listener.accept()
        with connection:
            connection.recv(COPY_BYTES)
            connection.sendall(b"HTTP/1.1 308 To nowhere\r\nContent-Length: 1000000\r\n\r\n" + b"x" * MAX_REFUSAL_BYTES)
            with pytest.raises(ConfigError, match="redirects the request to no address"):
                asked.result()
            connection.settimeout(5)
            assert connection.recv(1) == b""


def test_a_token_in_the_clear_is_warned_of(gcs_bucket, caplog):
    credentials = UserCredentials("token")
    for endpoint, warned in (
        ("http://store.example:4443", True),
        ("https://store.example", False),
        ("http://127.0.0.1:4443", False),
        ("http://localhost:4443", False),
    ):
        for own in (credentials, None):
            caplog.clear()
            GcsStore(gcs_bucket.config(endpoint=endpoint), own).close()  # None: anonymous, as the bucket's options say
            assert ("unencrypted" in caplog.text) is (warned and own is not None)
            assert "token" not in caplog.text.replace("the identity's token", "")


@pytest.mark.parametrize("configured", [True, False], ids=["option", "environment"])
def test_a_proxy_is_gone_through(gcs_bucket, opened, monkeypatch, configured):
    gcs_bucket.put("k", CONTENT)
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        for name in ("NO_PROXY", "no_proxy", "http_proxy"):
            monkeypatch.delenv(name, raising=False)
        # what is configured comes first
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}" if configured else proxy.endpoint)
        store = opened(gcs_bucket.config(proxy=proxy.endpoint if configured else ""))
        assert read(store, only(store)) == CONTENT
        listing, reading = proxy.requests
        assert listing.path.startswith(f"{gcs_bucket.endpoint}/storage/v1/")
        assert reading.path.startswith(f"{gcs_bucket.endpoint}/download/")


@pytest.mark.parametrize("how", ["option", "environment"])
def test_a_proxy_is_told_who_asks(gcs_bucket, opened, monkeypatch, how):
    gcs_bucket.put("k", CONTENT)
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        address = proxy.endpoint.replace("//", "//user:p%40ss@")
        for name in ("NO_PROXY", "no_proxy", "http_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HTTP_PROXY", address)
        store = opened(gcs_bucket.config(proxy=address if how == "option" else ""))
        assert read(store, only(store)) == CONTENT
        who = "Basic " + base64.b64encode(b"user:p@ss").decode()
        assert [one.headers.get("proxy-authorization") for one in proxy.requests] == [who, who]
        proxy.add(Fault(status=407))
        with pytest.raises(ConfigError, match=r"give gcs\.proxy as http://user:password@host:port"):
            store.list_page()


@pytest.mark.parametrize("how", ["option", "environment"])
def test_certificates_that_cannot_be_read_are_told_at_once(gcs_bucket, monkeypatch, how):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere/ca.pem")
    with pytest.raises(ConfigError, match=r"gcs\.ca_bundle, or REQUESTS_CA_BUNDLE.*/nowhere/ca\.pem"):
        GcsStore(gcs_bucket.config(endpoint="https://x", ca_bundle="/nowhere/ca.pem" if how == "option" else ""))


def test_an_endpoint_with_a_path_is_asked_below_it(gcs_bucket, opened):
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = opened(gcs_bucket.config(endpoint=f"{proxy.endpoint}/gcs/"))
        with pytest.raises(StoreUnavailableError, match=f"asked was {proxy.endpoint}/gcs"):
            store.list_page()
        assert proxy.requests[0].path.startswith("/gcs/storage/v1/b/")


def test_connections_that_the_server_has_closed_meanwhile_are_made_again(gcs_bucket, opened):
    """A request may go out just before the server's word arrives: the framework tries it again."""
    gcs_bucket.put("k", CONTENT)
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = opened(gcs_bucket.config(endpoint=proxy.endpoint))
        native = only(store)
        proxy.add(Fault(path="/download/", refuse=True, every=2, times=None))
        policy = RetryPolicy().without_waiting()
        for _ in range(5):
            assert drain(StoreInput(store, native, policy).open()) == CONTENT
        assert len(proxy.requests) == 11


def test_hosts_that_need_no_proxy_are_reached_without(gcs_bucket, opened, monkeypatch):
    gcs_bucket.put("k", CONTENT)
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    store = opened(gcs_bucket.config())
    assert read(store, only(store)) == CONTENT


# ---------------------------------------------------------------- identity


class Tokens(google_credentials.Credentials):
    """Tokens that a test makes: t1, t2 ..."""

    def __init__(self):
        super().__init__()
        self.made = 0

    def refresh(self, request):
        self.made += 1
        self.expiry = None
        self.token = f"t{self.made}"


def test_a_token_that_is_refused_in_the_middle_is_renewed(gcs_bucket, opened):
    gcs_bucket.put("k", CONTENT)
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        tokens = Tokens()
        store = opened(gcs_bucket.config(endpoint=proxy.endpoint, anonymous=False), tokens)
        native = only(store)
        proxy.add(Fault(path="/download/", **gcs_refusal(401, "authError")))
        assert read(store, native) == CONTENT
        assert [one.headers["authorization"] for one in proxy.requests] == ["Bearer t1", "Bearer t1", "Bearer t2"]


@pytest.mark.parametrize("how", ["expired", "refused"])
def test_one_thread_renews_a_token_for_all(gcs_bucket, opened, how):
    gcs_bucket.put("k", CONTENT)
    tokens = Tokens()
    store = opened(gcs_bucket.config(anonymous=False), tokens)
    native = only(store)
    if how == "expired":
        tokens.expiry = dt.datetime(2001, 1, 1)  # noqa: DTZ001 - as google-auth has it
    barrier = threading.Barrier(8)

    def go(_):
        barrier.wait(30)
        if how == "refused":
            store._tokens.renew("Bearer t1")
        return read(store, native)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(go, range(8))) == [CONTENT] * 8
    assert (tokens.made, tokens.token) == (2, "t2")


def test_credentials_that_are_refused_for_good_are_told(gcs_bucket, opened):
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = opened(gcs_bucket.config(endpoint=proxy.endpoint, anonymous=False), Tokens())
        proxy.add(Fault(times=None, **gcs_refusal(401, "authError", "Invalid Credentials")))
        with pytest.raises(CredentialsError, match=r"check section \[gcs\] .*Invalid Credentials"):
            store.list_page()


PRIVATE = "-----BEGIN PRIVATE KEY-----\\nAAAA\\n-----END PRIVATE KEY-----"


@pytest.mark.parametrize("how", ["option", "environment"])
@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"{",
        b"[]",
        b"\xff\x00",
        b'{"type": "no such type"}',
        b'{"type": []}',
        b'{"type": "service_account"}',
        b'{"type": "service_account", "client_email": "a@b.c", "token_uri": "http://x", "private_key": "%s"}'
        % PRIVATE.encode(),
        b'{"type": "authorized_user"}',
        b'{"type": "impersonated_service_account"}',
        b'{"type": "external_account"}',
        b'{"type": "external_account", "credential_source": 7}',
    ],
)
def test_a_key_file_that_is_none_is_told_with_its_name(gcs_bucket, tmp_path, monkeypatch, content, how):
    file = tmp_path / "key.json"
    if content is not None:
        file.write_bytes(content)
    if how == "environment":
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    name = "gcs.credentials_file" if how == "option" else "GOOGLE_APPLICATION_CREDENTIALS"
    with pytest.raises(CredentialsError, match=f"{name}: .*key.json") as told:
        GcsStore(gcs_bucket.config(anonymous=False, credentials_file=str(file) if how == "option" else ""))
    assert "AAAA" not in str(told.value)


def test_no_credentials_at_all_is_one_sentence(gcs_bucket):
    config = attrs.evolve(gcs_bucket.config(), anonymous=False, endpoint="")
    with pytest.raises(CredentialsError, match=r"no credentials were found.*gcloud auth application-default login"):
        GcsStore(config)


@pytest.mark.parametrize("slash", ["", "/"])
def test_the_emulator_of_the_environment_is_used_and_named(gcs_bucket, opened, monkeypatch, slash):
    gcs_bucket.put("k", b"content")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_bucket.endpoint + slash)
    store = opened(gcs_bucket.config(anonymous=False, endpoint=""))
    assert read(store, only(store)) == b"content"
    assert (store.identity(), store.address) == ("none: requests have no identity", gcs_bucket.endpoint)
    missing = opened(gcs_bucket.config(anonymous=False, endpoint="", bucket="no-such-bucket"))
    with pytest.raises(BucketNotFoundError, match=f"asked was {gcs_bucket.endpoint}"):
        missing.list_page()


def test_an_emulator_without_a_scheme_is_told(gcs_bucket, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_bucket.endpoint.removeprefix("http://"))
    with pytest.raises(ConfigError, match=r"STORAGE_EMULATOR_HOST.*with its scheme"):
        GcsStore(gcs_bucket.config(anonymous=False, endpoint=""))


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
        read(store, only(store))
        store.stat("k")
        assert [asked(one)["userProject"] for one in proxy.requests] == ["payer"] * 3
        sent = proxy.requests[1].headers
        assert sent["x-goog-encryption-algorithm"] == "AES256"
        assert sent["x-goog-encryption-key"] == config.customer_key
        assert "x-goog-encryption-key" not in proxy.requests[0].headers
        assert len(key) == 32


def test_check_says_where_the_identity_comes_from(gcs_bucket, opened):
    store = opened(gcs_bucket.config(anonymous=False), Tokens())
    assert "application default" in next(check_store(store)).detail
