"""A bucket in another region than the configured one: boto3 follows the redirect, and reads are signed for that region."""

import io
from types import SimpleNamespace
from typing import ClassVar

import pytest
from botocore.awsrequest import AWSResponse, HeadersDict

from framework.errors import ConfigError
from framework.model.objects import NativeObject
from framework.storage.http.http_store import ObjectGet
from s3_source.client import S3Store
from s3_source.config import S3Config

NATIVE = NativeObject(scheme="s3", bucket="lake", key="a/k", size=3, version="e@1", modified_ms=1)


class Empty(io.BytesIO):
    """A body without bytes."""

    def stream(self, *_, **__):
        return iter(())


class Refused:
    """The answer that a request to the wrong region gets."""

    status = 301
    headers: ClassVar = {"x-amz-bucket-region": "eu-west-3"}

    def __init__(self, url, lines):
        self.url = url
        self.request_headers = lines

    def wait_refusal(self):
        return b"<Error><Code>PermanentRedirect</Code></Error>"

    def close(self):
        """Nothing is under way."""


@pytest.fixture
def store():
    made = S3Store(
        S3Config(bucket="lake", region="us-east-1", access_key_id="AKIDEXAMPLE", secret_access_key="secret-key")
    )
    yield made
    made.close()


def answering(store, answer):
    """What boto3 is answered when it looks for the bucket; the hosts that it asked."""
    asked = []

    def send(*, request, **_):
        asked.append(request.url.split("/")[2])
        status, headers = answer(asked[-1])
        return AWSResponse(request.url, status, HeadersDict(headers), Empty())

    for operation in ("HeadObject", "HeadBucket"):
        store._client.meta.events.unregister(f"before-send.s3.{operation}", store._transport._send)
        store._client.meta.events.register_first(f"before-send.s3.{operation}", send)
    return asked


def test_reads_are_signed_for_the_region_that_boto3_finds(store):
    url, lines = store._request(ObjectGet(store, NATIVE, 0, 3), {})
    assert url == "https://lake.s3.amazonaws.com/a/k"
    assert any("/us-east-1/s3/" in line for line in lines)

    def answer(host):
        return (200, {}) if "eu-west-3" in host else (301, {"x-amz-bucket-region": "eu-west-3"})

    asked = answering(store, answer)
    store._find_bucket(NATIVE, Refused(url, lines), ConfigError("elsewhere"))
    url, lines = store._request(ObjectGet(store, NATIVE, 0, 3), {})
    assert url == "https://lake.s3.eu-west-3.amazonaws.com/a/k"
    assert any("/eu-west-3/s3/" in line for line in lines)
    assert asked[0] == "lake.s3.amazonaws.com"


def test_a_redirect_to_nowhere_is_the_refusal_itself(store):
    asked = store._request(ObjectGet(store, NATIVE, 0, 3), {})
    answering(store, lambda _: (403, {}))
    with pytest.raises(ConfigError, match="elsewhere"):
        store._find_bucket(NATIVE, Refused(*asked), ConfigError("elsewhere"))


def test_all_reads_that_were_refused_before_the_region_was_found_are_made_again(store):
    gets = [ObjectGet(store, NATIVE, 0, 3) for _ in range(3)]
    refused = [Refused(*store._request(get, {})) for get in gets]  # made ahead, before an answer came
    answering(store, lambda host: (200, {}) if "eu-west-3" in host else (301, {"x-amz-bucket-region": "eu-west-3"}))
    sent = []
    store._send_get = lambda *_: SimpleNamespace(result=lambda: sent.append(store._request(gets[0], {})[0]))
    for get, answer in zip(gets, refused, strict=True):
        store.stream_of(get, answer)
    assert sent == ["https://lake.s3.eu-west-3.amazonaws.com/a/k"] * 3
    with pytest.raises(ConfigError, match="eu-west-3"):
        store.stream_of(gets[0], Refused(*store._request(gets[0], {})))
