"""What a store's client makes of answers that no ordinary server gives; those of a server are in tests/integration."""

import contextlib
from datetime import datetime, timezone
from types import SimpleNamespace

import attrs
import botocore.session
import pytest
from botocore.exceptions import ClientError
from botocore.loaders import JSONFileLoader, create_loader

from framework.errors import (
    ConfigError,
    ListingError,
    ObjectChangedError,
    ObjectError,
    ObjectNotFoundError,
    StoreUnavailableError,
)
from framework.model.objects import MAX_SIZE
from framework.storage.error_messages import make_error
from framework.storage.http.http_store import ObjectGet
from framework.store import ListPage
from s3_source.client import S3Store
from s3_source.config import S3Config
from s3_source.object_version import condition_of
from s3_source.transport import BODY
from tests.support.listing import native


@pytest.mark.parametrize(
    "answered", [{}, {"ContentLength": 5}, {"LastModified": datetime(2026, 1, 1, tzinfo=timezone.utc)}]
)
def test_an_answer_that_lacks_what_is_asked_for_is_tried_again(answered):
    store = S3Store(S3Config(bucket="b", region="eu-west-1", access_key_id="a", secret_access_key="s"))
    store._client = SimpleNamespace(
        head_object=lambda **_: answered, get_object_tagging=lambda **_: {"TagSet": [{}]}, close=lambda: None
    )
    with pytest.raises(StoreUnavailableError, match=r"s3://b/k: the store's answer lacks a part"):
        store._head("k")
    with pytest.raises(StoreUnavailableError, match="'Key'"):
        store.tags(native("k"))
    store.close()


def test_a_ca_bundle_that_is_not_there_is_named(tmp_path):
    """libcurl would say that the server's certificate is not trusted."""
    with pytest.raises(ConfigError, match=rf"s3\.ca_bundle, .*: {tmp_path}/none\.pem does not exist"):
        S3Store(S3Config(bucket="b", region="eu-west-1", ca_bundle=f"{tmp_path}/none.pem")).open(native("k"))


def test_a_ca_bundle_of_the_aws_profile_that_is_not_there_is_named(tmp_path, monkeypatch):
    (tmp_path / "config").write_text(f"[profile p]\nca_bundle = {tmp_path}/none.pem\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(ConfigError, match=rf"ca_bundle of the AWS profile: {tmp_path}/none\.pem does not exist"):
        S3Store(S3Config(bucket="b", region="eu-west-1", profile="p")).open(native("k"))


@contextlib.contextmanager
def answering(head):
    store = S3Store(S3Config(bucket="b", region="eu-west-1", access_key_id="a", secret_access_key="s"))
    store._client = SimpleNamespace(head_object=lambda **_: head, close=lambda: None)
    with contextlib.closing(store):
        yield store


@pytest.mark.parametrize("size", [-1, MAX_SIZE + 1, 2**63])
def test_a_size_that_no_object_has_is_an_answer_that_cannot_be_read(size):
    moment = datetime(2026, 1, 1, tzinfo=timezone.utc)
    with answering({"ContentLength": MAX_SIZE, "LastModified": moment}) as store:
        assert store._head("k").size == MAX_SIZE
    with (
        answering({"ContentLength": size, "LastModified": moment}) as store,
        pytest.raises(StoreUnavailableError, match=rf"an object of {size} bytes"),
    ):
        store._head("k")


def test_an_answer_without_a_version_says_nothing_of_the_metadata():
    """A page of an ingress answers a HEAD with 200, too."""
    listed = attrs.evolve(native("k"), version="abc@1")
    with (
        answering({"ContentType": "text/html"}) as store,
        pytest.raises(StoreUnavailableError, match="names no version"),
    ):
        store.metadata(listed)
    with answering({"ETag": '"other"'}) as store, pytest.raises(ObjectChangedError):
        store.metadata(listed)


@pytest.mark.parametrize(
    ("sent", "text"), [(b"caf\xc3\xa9", "caf\xe9"), (b"caf\xe9", "caf\xe9"), (b"\xe6\x97\xa5", "\u65e5"), (b"", "")]
)
def test_metadata_in_utf8_is_text(sent, text):
    """botocore and libcurl take the bytes of a header for Latin-1."""
    with answering({"ETag": '"abc"', "Metadata": {"a": sent.decode("latin-1")}}) as store:
        assert store.metadata(attrs.evolve(native("k"), version="abc@1"))["meta:a"] == text


@pytest.mark.parametrize("ask", ["metadata", "tags"])
@pytest.mark.parametrize(
    ("shown", "kind"),
    [("the same", StoreUnavailableError), ("another", ObjectChangedError), ("nothing", ObjectNotFoundError)],
)
def test_gone_says_a_request_for_metadata_or_tags_only_when_a_look_confirms_it(ask, shown, kind, monkeypatch):
    def says_no(**_):
        raise ClientError(
            {
                "Error": {"Code": "404" if ask == "metadata" else "NoSuchKey"},
                "ResponseMetadata": {"HTTPStatusCode": 404, "HTTPHeaders": {"x-amz-request-id": "1"}},
            },
            "HeadObject",
        )

    def look(_, key):
        if shown == "nothing":
            raise ObjectNotFoundError("gone")
        return attrs.evolve(native(key), size=1 if shown == "the same" else 2)

    store = S3Store(S3Config(bucket="b", region="eu-west-1", access_key_id="a", secret_access_key="s"))
    store._client = SimpleNamespace(head_object=says_no, get_object_tagging=says_no, close=lambda: None)
    monkeypatch.setattr(S3Store, "_look", look)
    with pytest.raises(kind):
        getattr(store, ask)(native("k"))
    store.close()


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("a+b", "a b"),  # decoded, and was not encoded
        ("a%20c", "a c"),
        ("a b", "a+b"),  # encoded, and not said to be
        ("a b", "a%20b"),
        ("\u00e9", "%C3%A9"),
    ],
)
def test_an_object_that_a_listing_shows_under_another_key_is_not_gone(key, shown, monkeypatch):
    def list_page(_, *, prefix, **__):
        return ListPage(objects=[native(shown)] if key.startswith(prefix) else [])

    monkeypatch.setattr(S3Store, "list_page", list_page)
    store = S3Store(S3Config(bucket="b", region="eu-west-1", access_key_id="a", secret_access_key="s"))
    with contextlib.closing(store):
        error = store._missing(native(shown), ObjectNotFoundError("gone"))
        assert type(error) is ObjectError
        assert "another form than its EncodingType says" in str(error)
        monkeypatch.setattr(S3Store, "list_page", lambda *_, **__: ListPage(objects=[]))
        assert type(store._missing(native(shown), ObjectNotFoundError("gone"))) is ObjectNotFoundError


@pytest.mark.parametrize("key", ["x/../../b2/k", "./k", "a/.."])
def test_nothing_is_asked_of_a_key_that_a_proxy_would_change(key):
    config = {"bucket": "b", "region": "eu-west-1", "access_key_id": "a", "secret_access_key": "s"}
    store = S3Store(S3Config(**config, endpoint="http://store.example", proxy="http://127.0.0.1:9"))
    store._client = SimpleNamespace(close=lambda: None)  # any request is an AttributeError
    store.lists_milliseconds = False
    for ask in (store.open, store.metadata, store.tags, lambda one: store.stat(one.key)):
        with pytest.raises(ObjectError, match=r"s3://b/.*HTTP proxy takes out"):
            ask(native(key))
    store.close()


@pytest.mark.parametrize("etag", ["\u00e9t\u00e9", "\U0001f600", "a\r\nX-Other: b", "\x7f"])
@pytest.mark.parametrize("ask", ["open", "metadata"])
def test_an_etag_that_no_header_can_hold_is_an_error_of_its_object_at_once(etag, ask):
    store = S3Store(S3Config(bucket="b", region="eu-west-1", access_key_id="a", secret_access_key="s"))
    listed = attrs.evolve(native("k"), version=f"{etag}@1")
    with pytest.raises(ObjectError, match=r"b/k: its ETag '[ -~]+' has characters other than printable ASCII"):
        getattr(store, ask)(listed)
    store.close()


@pytest.mark.parametrize(("etag", "condition"), [('"a"', "If-Match"), ('"\u00e9"', "If-Unmodified-Since")])
def test_an_answers_etag_becomes_a_condition_only_when_a_header_can_hold_it(etag, condition):
    headers = {"etag": etag, "last-modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
    assert list(condition_of(headers)) == [condition]


@pytest.mark.parametrize(
    ("headers", "surely"),
    [
        ({}, True),
        ({"etag": '"e2"'}, False),
        ({"etag": 'W/"e"'}, False),
        ({"content-length": "6"}, False),
        ({"content-length": None}, False),
        ({"transfer-encoding": "chunked"}, False),
        ({"x-amz-checksum-crc32": "y/Q5Jg=="}, True),
        ({"x-amz-checksum-crc32": "AAAAAA=="}, False),
        ({"x-amz-checksum-crc32": "AAAAAA==", "x-amz-checksum-type": "COMPOSITE"}, True),
    ],
)
def test_a_body_is_surely_the_listed_version_by_length_etag_and_checksum(headers, surely):
    store = S3Store(S3Config(bucket="b", region="eu-west-1", access_key_id="a", secret_access_key="s"))
    listed = attrs.evolve(native("k"), version="e@1", size=9)
    head = {"etag": '"e"', "content-length": "9", **headers}
    answered = {name: value for name, value in head.items() if value is not None}
    assert store.is_listed(listed, answered, b"123456789") is surely
    assert not store.is_listed(attrs.evolve(listed, version="@1"), answered, b"123456789")
    store.close()


def test_descriptions_of_services_are_read_once_in_a_process(monkeypatch):
    """They are 60 ms of work, and a Python worker of Spark makes a store for each job."""
    read, load_file = [], JSONFileLoader.load_file

    def counting(self, path):
        found = load_file(self, path)
        read.append(found)
        return found

    config = S3Config(bucket="lake", region="eu-west-1", access_key_id="a", secret_access_key="b")
    monkeypatch.setattr(botocore.session, "create_loader", create_loader)  # tests share one, so as to be quick
    S3Store(config).close()
    monkeypatch.setattr(JSONFileLoader, "load_file", counting)
    S3Store(config).close()
    assert not read


def test_a_page_of_another_request_is_an_error_and_no_end_of_a_listing():
    body = (
        b"<ListBucketResult><Name>b</Name><Prefix/><StartAfter>k5</StartAfter><EncodingType>url</EncodingType>"
        b"<IsTruncated>false</IsTruncated></ListBucketResult>"
    )
    store = S3Store(S3Config(bucket="b", region="eu-west-1", access_key_id="a", secret_access_key="s"))
    answer = {BODY: body, "ResponseMetadata": {"HTTPHeaders": {}}}
    store._client = SimpleNamespace(list_objects_v2=lambda **_: answer, close=lambda: None)
    with contextlib.closing(store):
        assert store.list_page(after="k5").objects == []
        for asked in ({}, {"after": "k4"}, {"continuation": "t"}, {"prefix": "k9", "after": "k5"}):
            with pytest.raises(StoreUnavailableError, match="answers another request"):
                store.list_page(**asked)


@pytest.mark.parametrize("there", [True, False])
def test_a_continuation_that_was_changed_like_the_key_it_is_does_not_miss_what_follows(there):
    """That of versitygw is the last key; in both, U+FFFD stands for what XML does not take, and sorts behind it."""

    def head(**_):
        if not there:
            meta = {"HTTPStatusCode": 404, "HTTPHeaders": {"x-amz-request-id": "1"}}
            raise ClientError({"Error": {"Code": "404"}, "ResponseMetadata": meta}, "HeadObject")
        return {"ContentLength": 1, "LastModified": datetime(2026, 1, 1, tzinfo=timezone.utc)}

    body = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
    answer = {BODY: body, "ResponseMetadata": {"HTTPHeaders": {}}}
    with answering(None) as store:
        store._client.head_object, store._client.list_objects_v2 = head, lambda **_: answer
        if there:
            assert store.list_page(continuation="a\ufffd").objects == []
            return
        with pytest.raises(ListingError, match=r"a page of the listing ends with 'a\ufffd'.*Rename that object"):
            store.list_page(continuation="a\ufffd")


def ranged(**headers):
    return SimpleNamespace(
        status=206, headers={"content-range": "bytes 4-8/9", "content-length": "5", **headers}, close=lambda: None
    )


@pytest.mark.parametrize(
    ("version", "name"), [("e@1", {"etag": '"e"'}), ("@1000", {"last-modified": "Thu, 01 Jan 1970 00:00:01 GMT"})]
)
def test_a_range_that_names_no_version_is_taken_only_from_a_store_that_names_none(version, name):
    """With the size that is listed it may be of a later version: a read would go on with other bytes."""
    store = S3Store(S3Config(bucket="b", region="eu-west-1", access_key_id="a", secret_access_key="s"))
    get = ObjectGet(store, attrs.evolve(native("k"), version=version, size=9), 4, 9)
    whole = SimpleNamespace(status=200, headers={"content-length": "9"}, close=lambda: None)
    with contextlib.closing(store):
        for _ in range(2):
            store.stream_of(get, ranged())
        store.stream_of(get, ranged(**name))
        for answer in (ranged(), whole):
            with pytest.raises(StoreUnavailableError, match="names no version of it and others of this store do"):
                store.stream_of(get, answer)
        store.stream_of(get, ranged(**name))
        other = "e@1" if version.startswith("@") else "@1000"  # whether it names the one says nothing of the other
        store.stream_of(ObjectGet(store, attrs.evolve(get.native, version=other), 4, 9), ranged())


def test_a_store_whose_answer_was_taken_as_a_whole_names_versions():
    store = S3Store(S3Config(bucket="b", region="eu-west-1", access_key_id="a", secret_access_key="s"))
    listed = attrs.evolve(native("k"), version="e@1", size=9)
    with contextlib.closing(store):
        assert store.is_listed(listed, {"etag": '"e"', "content-length": "9"}, b"123456789")
        with pytest.raises(StoreUnavailableError, match="others of this store do"):
            store.stream_of(ObjectGet(store, listed, 4, 9), ranged())


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
        S3Store(S3Config(bucket="b", region="eu-west-1", access_key_id="a", secret_access_key="s"))
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
    S3Store(S3Config(bucket="b", region="eu-west-1", access_key_id="a", secret_access_key="s", **options)).close()


@pytest.mark.parametrize("proxy", ["http://user:Pr0xy%2FSecret@h:1", "user:Secret1@h:1", "socks5://user:Secret1@h:1"])
def test_no_message_shows_the_login_of_a_proxy_of_the_environment(monkeypatch, proxy):
    monkeypatch.setenv("ALL_PROXY", proxy)
    store = S3Store(S3Config(bucket="b", region="eu-west-1", access_key_id="a", secret_access_key="s"))
    failed = store._failed("ListObjects")
    for text in (proxy, "user:Pr0xy/Secret", "Pr0xy%2FSecret") if "%" in proxy else (proxy, "user:Secret1", "Secret1"):
        assert "Secret" not in str(make_error(StoreUnavailableError, failed, f"no answer of '{text}'"))
    store.close()


def test_the_proxy_of_the_token_service_is_checked_too(monkeypatch):
    """Python's libraries do not understand a bracket in a login."""
    monkeypatch.setenv("http_proxy", "http://user:Pr0xy[Secret@127.0.0.1:1")
    role = {"role_arn": "arn:aws:iam::123456789012:role/r", "sts_endpoint": "http://sts.example"}
    config = S3Config(bucket="b", region="eu-west-1", access_key_id="a", secret_access_key="s", **role)
    with contextlib.closing(S3Store(config)) as store:
        with pytest.raises(ConfigError, match=r"the variable http_proxy: .*percent-encoded") as caught:
            store.list_page()
        assert "Secret" not in str(caught.value)
    with (
        contextlib.closing(S3Store(attrs.evolve(config, proxy="http://127.0.0.1:1"))) as store,
        pytest.raises(StoreUnavailableError, match="proxy does not answer"),
    ):
        store.list_page()


def test_no_message_shows_the_login_of_another_proxy_of_the_environment(monkeypatch):
    monkeypatch.setenv("FTP_PROXY", "http://user:Secret1@h:1")
    config = S3Config(bucket="b", region="eu-west-1", access_key_id="a", secret_access_key="s", proxy="http://h:1")
    with contextlib.closing(S3Store(config)) as store:
        error = make_error(StoreUnavailableError, store._failed("ListObjects"), "no answer of user:Secret1@h")
    assert "Secret" not in str(error)
