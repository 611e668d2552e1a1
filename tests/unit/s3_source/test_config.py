"""Section [s3]: what options get wrong alone and together, and that no secret is shown."""

import base64

import attrs
import pytest

from framework.config.bucket import customer_key_bytes
from framework.config.option import options_of
from s3_source.config import S3Config

ROLE = "arn:aws:iam::123456789012:role/reader"
KEYS = {"access_key_id": "AKIA-visible", "secret_access_key": "very-secret"}


def config(**changed):
    return S3Config(**({"bucket": "lake"} | changed))


@pytest.mark.parametrize(
    "good",
    [
        {},
        KEYS,
        KEYS | {"session_token": "t"},
        {"profile": "p"},
        {"anonymous": True},
        {"role_arn": ROLE},
        KEYS | {"role_arn": ROLE, "role_session_name": "me", "role_external_id": "x", "sts_endpoint": "https://sts"},
        {"profile": "p", "role_arn": ROLE, "role_duration": 900},
        {"role_arn": ROLE, "role_duration": 43_200},
        {"sse_customer_key": base64.b64encode(b"k" * 32).decode()},
        {"prefixes": ("a/", "b/")},
        {"prefix": "/keys/may/begin/so"},
        {"expected_bucket_owner": "123456789012"},
        {"endpoint": "http://localhost:8333", "bucket": "Old_Bucket"},
        {"proxy": "http://user:word@proxy:3128"},
        {"proxy": "http://user:w%2For%20d%40@proxy:3128/"},
        {"bucket": "arn:aws:s3:eu-west-1:123456789012:accesspoint/one"},
        {"bucket": "lake--euw1-az1--x-s3"},
    ],
)
def test_nothing_is_wrong_with(good):
    assert list(config(**good).validate_options()) == []


@pytest.mark.parametrize(
    ("bad", "option", "word"),
    [
        ({"bucket": ""}, "bucket", "empty"),
        ({"bucket": "s3://lake/x"}, "bucket", "bare name"),
        ({"bucket": "UPPER"}, "bucket", "cannot be"),
        ({"bucket": "ab"}, "bucket", "cannot be"),
        ({"bucket": "a..b"}, "bucket", "cannot be"),
        ({"bucket": "-abc"}, "bucket", "cannot be"),
        ({"bucket": "192.168.0.1"}, "bucket", "cannot be"),
        ({"bucket": "a/b", "endpoint": "http://x"}, "bucket", "cannot be"),
        ({"prefix": "a", "prefixes": ("b",)}, "prefix", "one of them"),
        ({"expected_bucket_owner": "12345"}, "expected_bucket_owner", "12 digits"),
        ({"expected_bucket_owner": "arn:aws:iam::1"}, "expected_bucket_owner", "12 digits"),
        ({"prefixes": ("a/", "a/b/")}, "prefixes", "read twice"),
        ({"prefixes": ("a/", "a/")}, "prefixes", "read twice"),
        ({"endpoint": "localhost:8333"}, "endpoint", "scheme"),
        ({"endpoint": "http://key:word@host"}, "endpoint", "neither a user"),
        ({"role_arn": ROLE, "sts_endpoint": "sts.local"}, "sts_endpoint", "scheme"),
        ({"proxy": "proxy:3128"}, "proxy", "scheme"),
        ({"proxy": "http://user:wo rd@proxy:3128"}, "proxy", "percent-encoded"),
        ({"proxy": "http://user:wo\trd@proxy:3128"}, "proxy", "percent-encoded"),
        ({"proxy": "http://user:wo/rd@proxy:3128"}, "proxy", "percent-encoded"),
        ({"proxy": "http://user:12/rd@proxy:3128"}, "proxy", "percent-encoded"),
        ({"proxy": "http://user:12?rd@proxy:3128"}, "proxy", "percent-encoded"),
        ({"proxy": "http://user:12#rd@proxy:3128"}, "proxy", "percent-encoded"),
        ({"proxy": "http://user:12[rd@proxy:3128"}, "proxy", "percent-encoded"),
        ({"proxy": "http://user:12@rd@proxy:3128"}, "proxy", "percent-encoded"),
        ({"proxy": "http://user:w\u00f6rd@proxy:3128"}, "proxy", "percent-encoded"),
        ({"proxy": "http://pr\u00f6xy:3128"}, "proxy", "in ASCII"),
        ({"proxy": "http://user:word@proxy:31280000"}, "proxy", "port must be a number"),
        ({"endpoint": "http://st\u00f6re:1"}, "endpoint", "in ASCII"),
        ({"endpoint": "http://store:0"}, "endpoint", "port must be a number"),
        ({"endpoint": "http://ho st"}, "endpoint", "scheme"),
        ({"access_key_id": "A"}, "secret_access_key", "missing"),
        ({"secret_access_key": "A"}, "access_key_id", "missing"),
        ({"session_token": "A"}, "session_token", "goes with"),
        (KEYS | {"access_key_id": "A\n"}, "access_key_id", "line break"),
        (KEYS | {"secret_access_key": "\u201cS\u201d"}, "secret_access_key", "not ASCII"),
        (KEYS | {"session_token": "T\r\nX: y"}, "session_token", "line break"),
        (KEYS | {"profile": "p"}, "profile", "one of them"),
        (KEYS | {"anonymous": True}, "anonymous", "access_key_id"),
        ({"anonymous": True, "profile": "p"}, "anonymous", "profile"),
        ({"anonymous": True, "role_arn": ROLE}, "anonymous", "role_arn"),
        ({"anonymous": True, "requester_pays": True}, "requester_pays", "cannot pay"),
        ({"role_session_name": "me"}, "role_session_name", "without role_arn"),
        ({"role_external_id": "me"}, "role_external_id", "without role_arn"),
        ({"sts_endpoint": "http://sts"}, "sts_endpoint", "without role_arn"),
        ({"role_duration": 1800}, "role_duration", "without role_arn"),
        ({"role_arn": "reader"}, "role_arn", "arn:aws:iam"),
        ({"role_arn": ROLE, "role_session_name": "a b"}, "role_session_name", "2 to 64"),
        ({"role_arn": ROLE, "role_duration": 899}, "role_duration", "900"),
        ({"role_arn": ROLE, "role_duration": 43_201}, "role_duration", "43200"),
        ({"sse_customer_key": "not base64!"}, "sse_customer_key", "32 bytes"),
        ({"sse_customer_key": base64.b64encode(b"k" * 31).decode()}, "sse_customer_key", "32 bytes"),
        ({"retry_base": 20.0}, "retry_base", "above"),
    ],
)
def test_a_mistake_is_one_sentence_that_begins_with_its_option(bad, option, word):
    mistakes = list(config(**bad).validate_options())
    assert len(mistakes) == 1, mistakes
    assert mistakes[0].startswith(option)
    assert word in mistakes[0]


def test_several_mistakes_come_at_once():
    mistakes = list(config(bucket="", access_key_id="A", endpoint="x", role_external_id="y").validate_options())
    assert len(mistakes) == 4
    assert list(config(bucket="", access_key_id="A", endpoint="x", role_external_id="y").validate_options()) == mistakes


def test_no_secret_stands_in_a_repr_or_a_mistake():
    secrets = {
        "access_key_id": "SECRET-1",
        "secret_access_key": "SECRET-2",
        "session_token": "SECRET-3",
        "sse_customer_key": "SECRET-4",
        "proxy": "http//user:SECRET-5@proxy",
    }
    made = config(**secrets, profile="p", anonymous=True)
    assert "SECRET" not in repr(made) + str(made)
    assert "SECRET" not in " ".join(made.validate_options())
    assert len(list(made.validate_options())) >= 4


def test_every_option_is_documented_and_its_default_lies_in_its_range():
    options = options_of(S3Config)
    assert {one.name for one in options} == {field.name for field in attrs.fields(S3Config)}
    for one in options:
        assert one.doc.endswith("."), one.name
        if one.minimum is not None:
            assert one.minimum <= one.default <= one.maximum
        if one.choices is not None:
            assert one.default in one.choices
        assert one.required == (one.name == "bucket")


def test_all_prefixes_is_never_empty():
    assert config().all_prefixes == ("",)
    assert config(prefix="a/").all_prefixes == ("a/",)
    assert config(prefixes=("b/", "a/")).all_prefixes == ("b/", "a/")


def test_the_customer_key_is_its_bytes():
    option = "s3.sse_customer_key"
    assert customer_key_bytes(config().sse_customer_key, option) == b""
    assert customer_key_bytes(base64.b64encode(bytes(range(32))).decode(), option) == bytes(range(32))
    with pytest.raises(ValueError, match="32 bytes"):
        customer_key_bytes("AAAA", option)


def test_importing_the_package_and_its_configuration_loads_no_vendor_library(tmp_path):
    import subprocess
    import sys

    program = (
        "import sys, s3_source, s3_source.config, s3_source.client, framework.storage.resuming_stream, framework.storage.retry\n"
        "print(sorted(name for name in ('boto3', 'botocore', 'urllib3') if name in sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
