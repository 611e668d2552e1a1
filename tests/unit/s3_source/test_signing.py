"""Requests of our own making are those of boto3: address, headers, and the signature to the letter."""

import datetime as dt
import hashlib

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import example, given
from hypothesis import strategies as st

from s3_source.signing import Credentials, Signer, Template, template_of

NOON = 1_790_000_000

keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
plain = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20)
secrets = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=90)


def signed_by_botocore(url, headers, credentials, region, moment):
    """The header `Authorization` that botocore makes for the same request at that moment."""
    request = AWSRequest(method="GET", url=url, headers=headers)
    given = BotoCredentials(credentials.access_key, credentials.secret_key, credentials.token or None)
    auth = S3SigV4Auth(given, "s3", region)
    request.context["timestamp"] = dt.datetime.fromtimestamp(moment, dt.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    request.headers["X-Amz-Date"] = request.context["timestamp"]
    request.headers["X-Amz-Content-SHA256"] = hashlib.sha256(b"").hexdigest()
    if credentials.token:
        request.headers["X-Amz-Security-Token"] = credentials.token
    signature = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    names = auth.signed_headers(auth.headers_to_sign(request))
    said = f"AWS4-HMAC-SHA256 Credential={auth.scope(request)}, SignedHeaders={names}, Signature={signature}"
    return {"authorization": said, **{name.lower(): value for name, value in request.headers.items()}}


def of_lines(lines):
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


@given(
    key=keys,
    base=st.sampled_from(
        [
            "https://lake.s3.eu-west-1.amazonaws.com/",
            "http://127.0.0.1:8333/lake/",
            "http://store.example:80/lake/",
            "https://store.example:443/lake/",
            "https://[::1]:9000/lake/",
        ]
    ),
    region=st.sampled_from(["us-east-1", "eu-west-1"]),
    token=plain,
    secret=secrets,
    more=st.dictionaries(st.sampled_from(["If-Match", "Range", "x-amz-checksum-mode", "If-Unmodified-Since"]), plain),
    always=st.dictionaries(st.sampled_from(["x-amz-request-payer", "x-amz-expected-bucket-owner"]), plain),
    days=st.lists(st.integers(0, 3), min_size=1, max_size=4),
)
@example(key="k", base="http://127.0.0.1/b/", region="r", token="two  spaces", secret="s", more={}, always={}, days=[0])
def test_signatures_are_those_of_botocore(key, base, region, token, secret, more, always, days):
    template = Template(base=base, headers={"user-agent": "Boto3/1", **always}, service="s3", region=region)
    moment = [NOON]
    signer = Signer(template, lambda: moment[0])
    credentials = Credentials(access_key="AKIDEXAMPLE", secret_key=secret, token=token.strip())
    for day in days:  # the key that is kept must change with the day
        moment[0] = NOON + day * 86_400
        url = template.url(key)
        sent = of_lines(signer.lines(url, more, credentials))
        expected = signed_by_botocore(url, {**template.headers, **more}, credentials, region, moment[0])
        assert sent["authorization"] == expected["authorization"]
        names = ("x-amz-date", "x-amz-content-sha256", "x-amz-security-token")
        assert [sent.get(name) for name in names] == [expected.get(name) for name in names]


def test_keys_that_rotate_are_signed_with_within_the_same_second():
    signer = Signer(Template(base="https://b/", headers={}, service="s3", region="r"), lambda: NOON)
    old, new = (Credentials(access_key=name, secret_key="s", token=token) for name, token in (("A", ""), ("B", "t")))
    lines = [of_lines(signer.lines("https://b/k", {}, keys)) for keys in (old, new, old)]
    assert ["Credential=A/" in one["authorization"] for one in lines] == [True, False, True]
    assert [one.get("x-amz-security-token") for one in lines] == [None, "t", None]
    assert lines[0] == lines[2]


def test_without_keys_nothing_is_signed():
    lines = of_lines(
        Signer(Template(base="https://b/", headers={"user-agent": "x"})).lines("https://b/k", {"Range": "r"}, None)
    )
    assert lines == {"range": "r", "accept-encoding": "identity", "user-agent": "x", "accept": ""}


AUTHORIZATION = "AWS4-HMAC-SHA256 Credential=AKID/20260101/eu-west-1/s3/aws4_request, SignedHeaders=host, Signature=0"


def test_a_template_keeps_what_belongs_to_every_request():
    headers = {
        "Authorization": AUTHORIZATION.encode(),
        "User-Agent": b"x",
        "X-Amz-Date": "d",
        "x-amz-request-payer": "requester",
    }
    made = template_of("https://lake.example/a%20b/k", headers, "a b/k")
    assert (made.base, made.region, made.service) == ("https://lake.example/", "eu-west-1", "s3")
    assert made.headers == {"user-agent": "x", "x-amz-request-payer": "requester"}
    assert made.url("./ä//~") == "https://lake.example/./%C3%A4//~"


@pytest.mark.parametrize(
    ("url", "authorization"),
    [
        ("https://lake.example/other", AUTHORIZATION),
        ("https://lake.example/k", AUTHORIZATION.replace("/s3/", "/s3express/")),
        ("https://mrap.example/k", "AWS4-ECDSA-P256-SHA256 Credential=AKID/20260101/s3/aws4_request, Signature=0"),
    ],
    ids=["another address", "S3 Express", "multi-region access point"],
)
def test_what_is_signed_in_another_way_has_no_template(url, authorization):
    assert template_of(url, {"Authorization": authorization}, "k") is None


def test_secrets_are_not_shown():
    shown = repr(Credentials(access_key="AKID", secret_key="hidden", token="hidden"))
    shown += repr(Template(base="https://b/", headers={"x-amz-server-side-encryption-customer-key": "hidden"}))
    assert "hidden" not in shown
