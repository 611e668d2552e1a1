"""Section [gcs]: what options get wrong alone and together, and that no secret is shown."""

import base64

import attrs
import pytest

from framework.config.bucket import customer_key_bytes
from framework.config.option import options_of
from gcs_source.config import GcsConfig
from s3_source.config import S3Config

KEY = base64.b64encode(b"k" * 32).decode()


def config(**changed):
    return GcsConfig(**({"bucket": "lake"} | changed))


@pytest.mark.parametrize(
    "good",
    [
        {},
        {"anonymous": True},
        {"credentials_file": "key.json", "impersonate": "reader@project.iam.gserviceaccount.com"},
        {"user_project": "payer", "project": "p"},
        {"customer_key": KEY},
        {"prefixes": ("a/", "b/")},
        {"endpoint": "http://localhost:4443"},
        {"proxy": "http://user:word@proxy:3128"},
        {"bucket": "my_lake-1.example.com"},
        {"bucket": ".".join(["part" * 15] * 3)},
    ],
)
def test_nothing_is_wrong_with(good):
    assert list(config(**good).validate_options()) == []


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"bucket": ""}, "bucket: must not be empty"),
        ({"bucket": "gs://lake/x"}, "bucket: give the bare name, not an address"),
        ({"bucket": "http://user:word@host/lake"}, "bucket: give the bare name, not an address"),
        ({"bucket": "Lake"}, "bucket: 'Lake' cannot be"),
        ({"bucket": "la"}, "bucket: 'la' cannot be"),
        ({"bucket": "a" * 64}, "cannot be a bucket's name"),
        ({"prefix": "a", "prefixes": ("b",)}, "prefix, prefixes: give one of them"),
        ({"prefix": "gs://lake/a"}, "is an address"),
        ({"prefixes": ("a/", "a/b/")}, "'a/b/' lies within 'a/'"),
        ({"endpoint": "localhost:4443"}, "endpoint: must be an address with its scheme"),
        ({"endpoint": "http://[::1"}, "endpoint: must be an address with its scheme"),
        ({"endpoint": "http://h:99999"}, "endpoint: its port must be a number from 1 to 65535"),
        ({"proxy": "http://h:port"}, "proxy: its port must be a number from 1 to 65535"),
        ({"endpoint": "http://u:p@h"}, "endpoint: must hold neither a user nor a query"),
        (
            {"anonymous": True, "credentials_file": "k"},
            "anonymous: requests without an identity have no use for credentials",
        ),
        ({"anonymous": True, "impersonate": "a@b.c"}, "no use for impersonate"),
        ({"anonymous": True, "user_project": "p"}, "no use for user_project"),
        ({"impersonate": "a@" + "." * 100_000 + "@"}, "impersonate: must look like"),
        ({"impersonate": "a@.b"}, "impersonate: must look like"),
        ({"impersonate": "a@b."}, "impersonate: must look like"),
        ({"impersonate": "reader"}, "impersonate: must look like"),
        ({"customer_key": "c2hvcnQ="}, "customer_key: must be the base64 form of exactly 32 bytes"),
        ({"customer_key": "!"}, "customer_key: must be the base64 form"),
        ({"retry_base": 20.0}, "retry_base: must not be above"),
    ],
)
def test_what_is_wrong_is_said_with_the_options_name(bad, words):
    (mistake,) = config(**bad).validate_options()
    assert words in mistake


def test_all_mistakes_come_at_once_and_none_shows_a_secret():
    mistakes = list(
        config(bucket="", prefix="/x", customer_key="c2hvcnQ=", proxy="ftp://u:geheim@p").validate_options()
    )
    assert len(mistakes) == 3
    assert not any("geheim" in one or "c2hvcnQ" in one for one in mistakes)


def test_secrets_do_not_show_in_a_repr():
    shown = repr(config(customer_key=KEY, proxy="http://u:geheim@p"))
    assert KEY not in shown
    assert "geheim" not in shown


def test_the_customers_key_is_decoded():
    assert customer_key_bytes(KEY, "gcs.customer_key") == b"k" * 32
    assert customer_key_bytes(config().customer_key, "gcs.customer_key") == b""
    with pytest.raises(ValueError, match=r"gcs\.customer_key"):
        customer_key_bytes("c2hvcnQ=", "gcs.customer_key")


def test_every_option_is_documented():
    assert {one.name for one in options_of(GcsConfig)} == {field.name for field in attrs.fields(GcsConfig)}
    assert all(one.doc for one in options_of(GcsConfig))


def test_who_knows_one_source_knows_the_other():
    """What is called the same means the same; the two differ in identity and address only."""
    ours, theirs = ({one.name for one in options_of(cls)} for cls in (GcsConfig, S3Config))
    assert ours - theirs == {"project", "credentials_file", "impersonate", "user_project", "customer_key"}
    assert len(ours & theirs) == 17
