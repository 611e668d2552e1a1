"""What the client reads beside objects: documents, which it reads whole."""

import contextlib
import gzip
import io
import json
from types import SimpleNamespace

import attrs
import pytest
import requests

from framework.errors import ConfigError, ObjectChangedError, ObjectError, ObjectNotFoundError, StoreUnavailableError
from framework.storage.error_messages import make_error
from framework.storage.http.errors import HttpError
from framework.storage.http.http_store import ObjectGet
from gcs_source import client
from gcs_source.config import GcsConfig
from gcs_source.google_session import make_session
from tests.support.listing import native


def packed(**headers):
    return SimpleNamespace(headers=headers)


def test_a_document_is_unpacked_up_to_a_limit(monkeypatch):
    """A few kilobytes of gzip unfold to megabytes: the server must not decide how much memory a page takes."""
    monkeypatch.setattr(client, "MAX_DOCUMENT_BYTES", 1_000_000)
    answer = packed(**{"content-encoding": "gzip"})
    assert client._unpacked(answer, gzip.compress(bytes(1_000_000))) == bytes(1_000_000)
    with pytest.raises(HttpError, match=r"unpacks to a document of more than 1,000,000 bytes"):
        client._unpacked(answer, gzip.compress(bytes(5_000_000)))
    with pytest.raises(HttpError, match="cannot be unpacked"):
        client._unpacked(answer, b"no gzip")
    assert client._unpacked(packed(), b"plain") == b"plain"


@pytest.mark.parametrize("key", [".", ".."])
def test_nothing_is_asked_of_a_key_that_a_proxy_would_change(key, monkeypatch):
    asked = []
    config = GcsConfig(bucket="b", anonymous=True, endpoint="http://store.example", proxy="http://127.0.0.1:9")
    store = client.GcsStore(config)
    monkeypatch.setattr(store, "_send", lambda *_, **__: asked.append(1))
    for ask in (store.open, store.metadata, lambda one: store.stat(one.key)):
        with pytest.raises(ObjectError, match=r"gs://b/\.+: .*HTTP proxy takes out"):
            ask(native(key))
    assert asked == []
    store.close()


@pytest.mark.parametrize(("version", "kind"), [("v", StoreUnavailableError), ("w", ObjectChangedError)])
def test_a_description_that_is_not_given_of_an_object_that_is_there_is_asked_for_again(version, kind, monkeypatch):
    def no(*_):
        raise ObjectNotFoundError("gone")

    store = client.GcsStore(GcsConfig(bucket="b", anonymous=True))
    monkeypatch.setattr(store, "_get", no)
    monkeypatch.setattr(store, "stat", lambda key: attrs.evolve(native(key), version=version))
    with pytest.raises(kind):
        store.metadata(native("k"))
    store.close()


@pytest.mark.parametrize(
    ("headers", "surely"),
    [
        ({}, True),
        ({"x-goog-generation": "8"}, False),
        ({"x-goog-generation": None}, False),
        ({"content-length": "6"}, False),
        ({"transfer-encoding": "chunked"}, False),
        ({"x-goog-stored-content-encoding": "gzip", "content-encoding": "gzip"}, False),
        ({"x-guploader-response-body-transformations": "gunzipped"}, False),
        ({"x-goog-hash": "crc32c=4waSgw==,md5=x"}, True),
        ({"x-goog-hash": "crc32c=AAAAAA=="}, False),
    ],
)
def test_a_body_is_surely_the_listed_version_by_length_generation_and_checksum(headers, surely):
    store = client.GcsStore(GcsConfig(bucket="b", anonymous=True))
    head = {"x-goog-generation": "7", "content-length": "9", **headers}
    answered = {name: value for name, value in head.items() if value is not None}
    assert store.is_listed(attrs.evolve(native("k"), version="7", size=9), answered, b"123456789") is surely
    store.close()


@pytest.mark.parametrize(
    ("shown", "asked", "foreign"),
    [
        ("bcd", {"after": "a"}, False),
        ("bcd", {"after": "b"}, False),
        ("bcd", {"after": "c"}, True),
        ("bcd", {"after": "e"}, True),
        ("bcd", {"after": "a", "until": "d"}, False),
        ("bcd", {"after": "a", "until": "c"}, True),
        ("bcd", {"continuation": "t1 ct", "until": "z"}, True),
        ("", {"after": "e", "until": "f"}, False),
    ],
)
def test_a_page_of_other_keys_than_were_asked_for_answers_another_request(shown, asked, foreign, monkeypatch):
    """Taken for the end of a range, it would leave keys out."""
    items = [{"name": k, "size": "1", "generation": "1", "timeCreated": "2026-01-01T00:00:00Z"} for k in shown]
    body = json.dumps({"kind": "storage#objects", "items": items}).encode()
    store = client.GcsStore(GcsConfig(bucket="b", anonymous=True))
    monkeypatch.setattr(store, "_get", lambda *_: (body, {}))
    with contextlib.closing(store):
        if foreign:
            with pytest.raises(StoreUnavailableError, match="answers another request"):
                store.list_page(**asked)
        else:
            assert "".join(one.key for one in store.list_page(**asked).objects) in {shown, shown[1:]}


@pytest.mark.parametrize("whole", [False, True])
def test_a_range_that_names_no_generation_is_taken_only_from_a_store_that_names_none(whole):
    def ranged(**headers):
        head = {"content-range": "bytes 4-8/9", "content-length": "5", **headers}
        return SimpleNamespace(status=206, headers=head, close=lambda: None)

    named = {"x-goog-generation": "7"}
    store = client.GcsStore(GcsConfig(bucket="b", anonymous=True, endpoint="http://127.0.0.1:9"))
    listed = attrs.evolve(native("k"), version="7", size=9)
    get = ObjectGet(store, listed, 4, 9)
    with contextlib.closing(store):
        store.stream_of(get, ranged())
        if whole:
            assert store.is_listed(listed, {**named, "content-length": "9"}, b"123456789")
        else:
            store.stream_of(get, ranged(**named))
        with pytest.raises(StoreUnavailableError, match="names no version of it and others of this store do"):
            store.stream_of(get, ranged())
        store.stream_of(get, ranged(**named))


def test_google_names_the_generation_in_each_answer():
    store = client.GcsStore(GcsConfig(bucket="b", anonymous=True))
    head = {"content-range": "bytes 4-8/9", "content-length": "5"}
    answer = SimpleNamespace(status=206, headers=head, close=lambda: None)
    get = ObjectGet(store, attrs.evolve(native("k"), version="7", size=9), 4, 9)
    with contextlib.closing(store), pytest.raises(StoreUnavailableError, match="names no version of it"):
        store.stream_of(get, answer)


BROKEN_PROXIES = [
    ("http://user:Pr0xy/Secret@h:1", "percent-encoded"),
    ("user:12#Secret@h:1", "percent-encoded"),
    ("http//user:Secret@h:1", "percent-encoded"),
    ("http://user:Pr Secret@h:1", "percent-encoded"),
    ("http://user:Pr@Secret@h:1", "percent-encoded"),
    ("http://user:S\u00e9Secret@h:1", "percent-encoded"),
    ("http://user:Secret@h:99999", "port must be a number"),
    ("http://user:Secret@h:1 ", "an address with its scheme, like"),
]


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY", "ALL_PROXY"])
@pytest.mark.parametrize(("proxy", "words"), BROKEN_PROXIES)
def test_a_proxy_of_the_environment_must_be_right(monkeypatch, name, proxy, words):
    """Libraries would take a part of its login for the host, and repeat it in their messages."""
    monkeypatch.setenv(name, proxy)
    with pytest.raises(ConfigError, match=rf"the variable {name}: .*{words}") as caught:
        client.GcsStore(GcsConfig(bucket="b", anonymous=True))
    assert "Secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "options"),
    [
        ({"HTTPS_PROXY": "http://u:12/x@h:1"}, {"proxy": "http://h:1"}),
        ({"HTTPS_PROXY": "http://u:12/x@h:1"}, {"endpoint": "http://store.example"}),
        ({"HTTPS_PROXY": "http://u:12/x@h:1", "NO_PROXY": "*"}, {}),
        ({"HTTPS_PROXY": "http://u:w[rd]@h:1"}, {}),  # libcurl understands it
    ],
)
def test_a_proxy_of_the_environment_that_is_not_used_may_be_wrong(monkeypatch, environment, options):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    client.GcsStore(GcsConfig(bucket="b", anonymous=True, **options)).close()


@pytest.mark.parametrize("proxy", ["http://user:Pr0xy%2FSecret@h:1", "user:Secret1@h:1", "socks5://user:Secret1@h:1"])
def test_no_message_shows_the_login_of_a_proxy_of_the_environment(monkeypatch, proxy):
    monkeypatch.setenv("ALL_PROXY", proxy)
    store = client.GcsStore(GcsConfig(bucket="b", anonymous=True))
    failed = store._failed("ListObjects")
    for text in (proxy, "user:Pr0xy/Secret", "Pr0xy%2FSecret") if "%" in proxy else (proxy, "user:Secret1", "Secret1"):
        assert "Secret" not in str(make_error(StoreUnavailableError, failed, f"no answer of '{text}'"))
    store.close()


def test_the_proxy_of_the_token_service_is_checked_too(monkeypatch):
    """Python's libraries do not understand a bracket in a login."""
    monkeypatch.setenv("HTTPS_PROXY", "http://user:Pr0xy[Secret@127.0.0.1:1")

    def answer(*_, proxies, **__):
        made = requests.Response()
        made.raw = io.BytesIO(json.dumps(proxies).encode())
        return made

    session = SimpleNamespace(request=answer)
    session._auth_request = SimpleNamespace(session=SimpleNamespace(request=session.request))
    config, token = GcsConfig(bucket="b"), "https://oauth2.googleapis.com/token"
    made = make_session(SimpleNamespace(_http=session), config)
    with pytest.raises(ConfigError, match=r"the variable HTTPS_PROXY: .*percent-encoded") as caught:
        made.request("POST", token)
    assert "Secret" not in str(caught.value)
    assert made.request("POST", "http://oauth2.googleapis.com/token").json() == {}
    monkeypatch.setenv("NO_PROXY", "googleapis.com")
    assert made.request("POST", token).json() == {}


def test_no_message_shows_the_login_of_another_proxy_of_the_environment(monkeypatch):
    monkeypatch.setenv("FTP_PROXY", "http://user:Secret1@h:1")
    with contextlib.closing(client.GcsStore(GcsConfig(bucket="b", anonymous=True, proxy="http://h:1"))) as store:
        error = make_error(StoreUnavailableError, store._failed("ListObjects"), "no answer of user:Secret1@h")
    assert "Secret" not in str(error)
