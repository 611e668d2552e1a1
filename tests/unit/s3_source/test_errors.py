"""Every failure of botocore, urllib3 and S3 has its place in the error tree, and no message holds a secret."""

import inspect
import pickle
import re
import string
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import attrs
import botocore.exceptions
import pytest
import urllib3.exceptions
from botocore.configloader import load_config

from framework.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ConfigError,
    CredentialsError,
    FatalError,
    ObjectArchivedError,
    ObjectChangedError,
    ObjectNotFoundError,
    RetriableError,
    StoreUnavailableError,
    ThrottledError,
)
from framework.storage.error_messages import redact, retry_after_seconds
from framework.storage.http.errors import HttpProxyError, HttpTlsError
from s3_source.errors_map import CLASSES, CODES, MAKING, Failed, from_code, translate
from s3_source.signing import error_fields
from tests.support.stopwatch import Stopwatch

READ = Failed(operation="GetObject", bucket="lake", key="a/b c.jsonl", endpoint="http://store:9000")
LIST = Failed(operation="ListObjectsV2", bucket="lake", endpoint="http://store:9000")


def botocore_exceptions():
    for _, cls in inspect.getmembers(botocore.exceptions, inspect.isclass):
        if issubclass(cls, Exception) and not issubclass(cls, Warning) and cls.__module__ == "botocore.exceptions":
            yield cls


def made(cls):
    """An instance with every field of its message filled in."""
    if issubclass(cls, botocore.exceptions.ClientError):
        return cls(
            {"Error": {"Code": "Nonsense", "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": 400}}, "GetObject"
        )
    names = {
        name.split(".")[0].split("[")[0] for _, name, _, _ in string.Formatter().parse(getattr(cls, "fmt", "")) if name
    }
    needs = {"last_response": {}} if cls is botocore.exceptions.WaiterError else {}
    return cls(**dict.fromkeys(names, "thing"), **needs)


# Read by hand, class by class: what a person must do about each. Whatever is in neither list must be fatal.
RETRIABLE = [
    "ConnectionError",
    "EndpointConnectionError",
    "ConnectionClosedError",
    "ReadTimeoutError",
    "ConnectTimeoutError",
    "ProxyConnectionError",
    "HTTPClientError",
    "ResponseStreamingError",
    "IncompleteReadError",
    "ChecksumError",
    "FlexibleChecksumError",
    "AwsChunkedWrapperError",
    "CapacityNotAvailableError",
    "MetadataRetrievalError",
    "CredentialRetrievalError",
    "SSLError",
]
CREDENTIALS = [
    "NoCredentialsError",
    "NoAuthTokenError",
    "TokenRetrievalError",
    "UnknownTokenProviderError",
    "PartialCredentialsError",
    "UnknownCredentialError",
    "RefreshWithMFAUnsupportedError",
    "SSOError",
    "SSOTokenLoadError",
    "UnauthorizedSSOTokenError",
    "LoginError",
    "LoginRefreshRequired",
    "LoginInsufficientPermissions",
    "LoginTokenLoadError",
    "LoginAuthorizationCodeError",
]


@pytest.mark.parametrize("cls", list(botocore_exceptions()), ids=lambda cls: cls.__name__)
def test_every_exception_of_botocore_is_mapped(cls):
    error = translate(made(cls), READ)
    if cls.__name__ in RETRIABLE:
        assert isinstance(error, RetriableError)
    elif cls.__name__ in CREDENTIALS:
        assert isinstance(error, CredentialsError)
    else:
        assert isinstance(error, FatalError)
    assert str(error).startswith("s3://lake/a/b c.jsonl: ")
    assert "\n" not in str(error)


def test_the_names_in_the_table_are_names_of_classes():
    known = {cls.__name__ for cls in botocore_exceptions()} | set(dir(urllib3.exceptions)) | set(dir(__builtins__))
    known |= set(__builtins__ if isinstance(__builtins__, dict) else ())
    # botocore.parsers, http.client, framework.storage.http.errors
    others = {"ResponseParserError", "HTTPException", "IncompleteRead", "HttpTlsError"}
    # not in every botocore >= 1.36
    newer = {"LoginError", "InvalidChecksumConfigError", "CapacityNotAvailableError", "UnknownTokenProviderError"}
    assert set(CLASSES) - known - others - newer == set()


@pytest.mark.parametrize(
    "error",
    [
        urllib3.exceptions.ProtocolError("Connection broken: IncompleteRead(1 bytes read)"),
        urllib3.exceptions.IncompleteRead(1, 2),
        urllib3.exceptions.ReadTimeoutError(None, "http://store/?X-Amz-Signature=SECRET", "timed out"),
        urllib3.exceptions.SSLError("EOF occurred in violation of protocol"),
        ConnectionResetError(104, "reset"),
        TimeoutError("timed out"),
        OSError(113, "No route to host"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_breaks_below_botocore_is_retriable(error):
    mapped = translate(error, READ)
    assert isinstance(mapped, StoreUnavailableError)
    assert "SECRET" not in str(mapped)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"aws_secret_access_key = drowssap\n", "{path}, line 1: no line above it names a profile"),
        (b"[default\naws_secret_access_key = drowssap\n", "{path}, line 1: no line above it names a profile"),
        (
            b"[default]\naws_access_key_id = AK\naws_secret_access_key drowssap\n",
            "{path}, line 3: it is not NAME = VALUE",
        ),
        (b"[default]\na = drowssap\n[default]\n", "{path}, line 3: the section is repeated"),
        (b"[default]\na = drowssap\na = drowssap\n", "{path}, line 3: the option is repeated"),
        (b"[default]\naws_secret_access_key =\n  drowssap\n", "{path}: a value has the wrong form"),
        (b"\xff\xfe[default]\n", "{path}: not UTF-8"),
    ],
)
def test_a_shared_file_that_cannot_be_read_is_named_and_never_repeated(content, said, tmp_path):
    path = tmp_path / "credentials"
    path.write_bytes(content)
    with pytest.raises(botocore.exceptions.ConfigParseError) as raised:
        load_config(str(path))
    error = translate(raised.value, attrs.evolve(LIST, operation=MAKING))
    assert isinstance(error, ConfigError)
    assert str(error) == f"s3://lake: a shared AWS file cannot be read; correct it ({said.format(path=path)})"


@pytest.mark.parametrize("kind", [FileNotFoundError, PermissionError, IsADirectoryError])
def test_a_file_for_the_credentials_that_cannot_be_read_is_no_fault_of_the_store(kind):
    error = translate(kind(2, "No such file or directory", "/run/secrets/token"), LIST)
    assert isinstance(error, StoreUnavailableError)
    assert "a file or program for the credentials cannot be used; check s3.profile" in str(error)
    assert "/run/secrets/token" in str(error)
    assert "store:9000" not in str(error)


def test_a_proxy_that_does_not_answer_may_be_one_of_the_environment():
    error = translate(HttpProxyError("Failed to connect to proxy.example"), LIST)
    assert isinstance(error, StoreUnavailableError)
    assert "check s3.proxy, or the variables HTTP_PROXY" in str(error)


@pytest.mark.parametrize(
    "said",
    [
        "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate",
        "hostname 'localhost' doesn't match '127.0.0.1'",
        "[Errno 2] No such file or directory",
        "[Errno 21] Is a directory",
    ],
)
def test_a_certificate_that_is_not_trusted_is_no_reason_to_try_again(said):
    error = translate(botocore.exceptions.SSLError(endpoint_url="https://store", error=ValueError(said)), LIST)
    assert isinstance(error, ConfigError)
    assert "s3.ca_bundle" in str(error)


@pytest.mark.parametrize("said", ["certificate has expired", "certificate is not yet valid"])
def test_a_certificate_that_is_renewed_or_a_clock_that_is_set_is_waited_for(said):
    python = f"[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: {said} (_ssl.c:1016)"
    for raised in (
        botocore.exceptions.SSLError(endpoint_url="https://store", error=ValueError(python)),
        HttpTlsError(f"CERTIFICATE: SSL certificate problem: {said}"),
    ):
        error = translate(raised, LIST)
        assert isinstance(error, StoreUnavailableError)
        assert said in str(error)
        assert "s3.ca_bundle" in str(error)


ANSWERS = [
    ("NoSuchKey", 404, ObjectNotFoundError),
    ("PreconditionFailed", 412, ObjectChangedError),
    ("InvalidRange", 416, ObjectChangedError),
    ("InvalidObjectState", 403, ObjectArchivedError),
    ("NoSuchBucket", 404, BucketNotFoundError),
    ("AccessDenied", 403, AccessDeniedError),
    ("AllAccessDisabled", 403, AccessDeniedError),
    ("KMS.DisabledException", 400, AccessDeniedError),
    ("InvalidAccessKeyId", 403, CredentialsError),
    ("SignatureDoesNotMatch", 403, CredentialsError),
    ("ExpiredToken", 400, CredentialsError),
    ("InvalidToken", 400, CredentialsError),
    ("SlowDown", 503, ThrottledError),
    ("ServiceUnavailable", 503, ThrottledError),
    ("TooManyRequests", 429, ThrottledError),
    ("RequestLimitExceeded", 400, ThrottledError),
    ("InternalError", 500, StoreUnavailableError),
    ("InternalError", 200, StoreUnavailableError),
    ("RequestTimeout", 400, StoreUnavailableError),
    ("OperationAborted", 409, StoreUnavailableError),
    ("Unheard", 500, StoreUnavailableError),
    ("Unheard", 599, StoreUnavailableError),
    ("Unheard", 429, ThrottledError),
    ("Unheard", 503, ThrottledError),
    ("Unheard", 403, AccessDeniedError),
    ("Unheard", 418, FatalError),
    ("TemporaryRedirect", 307, StoreUnavailableError),
    ("PermanentRedirect", 301, ConfigError),
    ("AuthorizationHeaderMalformed", 400, ConfigError),
    ("RequestTimeTooSkewed", 403, StoreUnavailableError),
    ("RequestExpired", 400, StoreUnavailableError),
    ("InvalidBucketName", 400, ConfigError),
    ("NotImplemented", 501, FatalError),
    ("InvalidRequest", 400, FatalError),
    ("", 304, StoreUnavailableError),
    ("", 412, ObjectChangedError),
    ("", 416, ObjectChangedError),
    ("NotFound", 404, ObjectNotFoundError),
    ("404", 404, StoreUnavailableError),
    ("", 404, StoreUnavailableError),
    ("403", 403, StoreUnavailableError),
    ("", 400, StoreUnavailableError),
    ("401", 401, StoreUnavailableError),
    ("407", 407, ConfigError),
    ("", 502, StoreUnavailableError),
    ("503", 503, StoreUnavailableError),
    ("429", 429, ThrottledError),
]


@pytest.mark.parametrize(("code", "status", "kind"), ANSWERS)
def test_an_answer_of_s3_is_told_by_its_code_then_by_its_status(code, status, kind):
    response = {"Error": {"Code": code, "Message": "Said so"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error = translate(botocore.exceptions.ClientError(response, "GetObject"), READ)
    assert type(error) is kind
    assert str(error).startswith("s3://lake/a/b c.jsonl: ")
    direct = from_code(code, status, READ, message="Said so")
    assert (type(direct), str(direct)) == (type(error), str(error))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("RequestTimeTooSkewed", "The difference between the request time and the current time is too large."),
        # STS has no code of its own for it
        ("SignatureDoesNotMatch", "Signature expired: 20260131T120000Z is now earlier than 20260131T130000Z"),
        ("SignatureDoesNotMatch", "Signature not yet current: 20260131T120000Z is still later than 20260131T110000Z"),
    ],
)
@pytest.mark.parametrize("operation", ["ListObjectsV2", "AssumeRole"])
def test_a_clock_that_is_off_is_named_and_waited_for_as_it_may_be_set(code, message, operation):
    failed = Failed(operation=operation, bucket="lake", role_arn="arn:aws:iam::1:role/r")
    error = from_code(code, 403, failed, message=message)
    assert isinstance(error, StoreUnavailableError)
    assert "the clock of this machine is off; set it" in str(error)
    assert code in str(error)
    assert isinstance(from_code("SignatureDoesNotMatch", 403, failed, message="It does not match"), CredentialsError)


def test_the_table_of_codes_is_covered():
    assert set(CODES.values()) <= {kind for _, _, kind in ANSWERS}


@pytest.mark.parametrize("status", [203, 304, 400, 401, 403, 404, 405, 421, 425, 431, 499, 500, 502, 503])
@pytest.mark.parametrize("failed", [READ, LIST])
def test_what_is_no_document_of_the_store_is_tried_again(status, failed):
    # "404 page not found" of an ingress that reloads its routes; a 403 of a firewall; a login page
    error = from_code("", status, failed)
    assert type(error) is StoreUnavailableError
    assert "no document of the store" in str(error)
    assert "s3.endpoint and s3.proxy" in str(error)


@pytest.mark.parametrize("code", ["", "407"])
@pytest.mark.parametrize("failed", [READ, LIST])
def test_a_proxy_that_wants_to_know_who_asks_is_named(code, failed):
    error = from_code(code, 407, failed)
    assert type(error) is ConfigError
    assert "s3.proxy as http://user:password@host:port" in str(error)
    assert "region" not in str(error)


def test_a_page_of_html_is_no_document_of_the_store():
    assert error_fields(b"<html><Code>NoSuchKey</Code></html>") == {}


@pytest.mark.parametrize("code", ["404", "", "NotFound"])
def test_an_answer_to_a_head_has_no_document(code):
    assert type(from_code(code, 404, attrs.evolve(READ, operation="HeadObject"))) is ObjectNotFoundError
    assert type(from_code(code, 404, attrs.evolve(LIST, operation="HeadBucket"))) is BucketNotFoundError


@pytest.mark.parametrize(("operation", "status"), [("HeadObject", 404), ("HeadObject", 403), ("HeadBucket", 404)])
def test_an_answer_to_a_head_with_no_field_of_s3_is_none_of_its_own(operation, status):
    def head(**headers):
        meta = {"HTTPStatusCode": status, "HTTPHeaders": {"date": "x", **headers}}
        response = {"Error": {"Code": str(status), "Message": "No"}, "ResponseMetadata": meta}
        return translate(botocore.exceptions.ClientError(response, operation), READ)

    assert isinstance(head(), StoreUnavailableError)
    assert not isinstance(head(**{"x-amz-request-id": "7"}), RetriableError)


def test_an_error_of_an_object_in_a_listing_is_fatal():
    assert type(from_code("PreconditionFailed", 412, LIST)) is FatalError


def test_the_right_region_is_named():
    response = {
        "Error": {"Code": "AuthorizationHeaderMalformed", "Message": "expecting 'eu-west-1'", "Region": "eu-west-1"},
        "ResponseMetadata": {"HTTPStatusCode": 400},
    }
    error = translate(botocore.exceptions.ClientError(response, "ListObjectsV2"), LIST)
    assert "region eu-west-1; set s3.region" in str(error)
    response = {
        "Error": {"Code": "301", "Message": "Moved"},
        "ResponseMetadata": {"HTTPStatusCode": 301, "HTTPHeaders": {"x-amz-bucket-region": "ap-south-1"}},
    }
    error = translate(botocore.exceptions.ClientError(response, "ListObjectsV2"), LIST)
    assert isinstance(error, ConfigError)
    assert "ap-south-1" in str(error)


def test_a_role_that_cannot_be_assumed_is_named():
    failed = Failed(operation="GetObject", bucket="lake", key="k", role_arn="arn:aws:iam::123456789012:role/r")
    response = {"Error": {"Code": "AccessDenied", "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
    error = translate(botocore.exceptions.ClientError(response, "AssumeRole"), failed)
    assert type(error) is CredentialsError
    assert "role/r cannot be assumed" in str(error)
    response["Error"]["Code"] = "Throttling"
    assert type(translate(botocore.exceptions.ClientError(response, "AssumeRole"), failed)) is ThrottledError


def test_an_object_under_a_customers_key_asks_for_the_key():
    said = "The object was stored using a form of Server Side Encryption. The correct parameters must be provided"
    error = from_code("InvalidRequest", 400, READ, message=said)
    assert type(error) is AccessDeniedError
    assert "check s3.sse_customer_key" in str(error)
    said = "The encryption parameters are not applicable to this object."
    assert "leave s3.sse_customer_key out" in str(from_code("InvalidRequest", 400, READ, message=said))


def test_a_key_of_kms_that_may_not_be_used_is_named():
    said = "User: arn:aws:iam::1:user/u is not authorized to perform: kms:Decrypt on resource: arn:aws:kms:eu-west-1:1:key/k"
    assert "grant kms:Decrypt" in str(from_code("AccessDenied", 403, READ, message=said))


def test_a_store_that_repeats_the_request_gets_no_secret_into_a_message():
    token = "FwoGZXIvYXdzE" + "aB3/+" * 60
    failed = attrs.evolve(READ, secrets=("wJalrXUtnFEMI/K7MDENG", "short-token"))
    said = f"GET /b/k x-amz-security-token: {token} AKIAIOSFODNN7EXAMPLE wJalrXUtnFEMI/K7MDENG short-token"
    text = str(from_code("InvalidToken", 400, failed, message=redact(said)))
    for secret in (token[:30], "AKIAIOSFODNN7EXAMPLE", *failed.secrets):
        assert secret not in text
    assert "wJalr" not in repr(failed)


def test_a_code_of_a_server_shows_no_token_and_no_more_than_a_line():
    text = str(from_code("<SessionToken>hunter22</SessionToken>" + "x " * 9999, 418, READ))
    assert "hunter22" not in text
    assert len(text) < 600


def _refused(operation, code, status, role_arn=""):
    failed = Failed(operation="ListObjectsV2", bucket="lake", endpoint="http://store.test", role_arn=role_arn)
    response = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return translate(botocore.exceptions.ClientError(response, operation), failed)


@pytest.mark.parametrize(
    ("operation", "role_arn", "words"),
    [
        (
            "AssumeRole",
            "arn:aws:iam::1:role/r",
            r"the role arn:aws:iam::1:role/r cannot be assumed; check s3\.role_arn",
        ),
        ("AssumeRole", "", r"the role of the profile cannot be assumed; check role_arn .*trust policy"),
        ("AssumeRoleWithWebIdentity", "", r"the role of the web identity cannot be assumed; check AWS_ROLE_ARN"),
        ("AssumeRoleWithWebIdentity", "arn:aws:iam::1:role/r", r"the role of the web identity cannot be assumed"),
        ("GetRoleCredentials", "", r"single sign-on gives out no keys; check .*aws sso login"),
        ("CreateToken", "", r"single sign-on gives out no keys; check .*aws sso login"),
    ],
)
def test_a_refusal_of_the_identitys_service_names_the_identity(operation, role_arn, words):
    for code, status in (
        ("AccessDenied", 403),
        ("ForbiddenException", 403),
        ("ExpiredTokenException", 400),
        ("X", 400),
    ):
        if (operation, code) == ("AssumeRole", "ExpiredTokenException"):
            continue  # of the keys that the role is assumed with
        error = _refused(operation, code, status, role_arn)
        assert type(error) is CredentialsError
        assert re.search(words, str(error))
        assert "s3:ListBucket" not in str(error)
        assert "store.test" not in str(error)
    for code, status, kind in (
        ("ServiceUnavailable", 503, ThrottledError),
        ("Throttling", 400, ThrottledError),
        ("InternalFailure", 500, StoreUnavailableError),
        ("503", 503, StoreUnavailableError),  # no document: of a load balancer
    ):
        error = _refused(operation, code, status, role_arn)
        assert type(error) is kind
        assert "the service that gives out the credentials" in str(error)
        assert "the store" not in str(error)
        assert "store.test" not in str(error)


@pytest.mark.parametrize(
    ("role_arn", "role"), [("arn:aws:iam::1:role/r", "arn:aws:iam::1:role/r"), ("", "of the profile")]
)
@pytest.mark.parametrize(
    "code", ["ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "SignatureDoesNotMatch"]
)
def test_keys_that_a_role_is_assumed_with_are_told_from_the_role(code, role_arn, role):
    error = _refused("AssumeRole", code, 403, role_arn)
    assert type(error) is CredentialsError
    assert f"the keys that the role {role} is assumed with are refused; correct or renew them" in str(error)
    assert "trust policy" not in str(error)


def test_an_identity_provider_that_could_not_be_reached_is_tried_again():
    web = attrs.evolve(LIST, operation="AssumeRoleWithWebIdentity")
    said = "Couldn't retrieve verification key from your identity provider, please reference AssumeRoleWithWebIdentity"
    assert isinstance(from_code("InvalidIdentityToken", 400, web, message=said), StoreUnavailableError)
    assert isinstance(from_code("InvalidIdentityToken", 400, web, message="Incorrect token audience"), CredentialsError)


def test_a_request_without_an_identity_that_is_refused_is_not_said_to_lack_a_permission():
    failed = attrs.evolve(LIST, anonymous=True)
    said = str(from_code("AccessDenied", 403, failed))
    assert "leave s3.anonymous out and give credentials" in said
    assert "grant" not in said
    assert "grant s3:ListBucket" in str(from_code("AccessDenied", 403, LIST))


def test_an_owner_that_is_expected_is_named_when_access_is_denied():
    failed = attrs.evolve(LIST, owner="123456789012")
    assert "s3.expected_bucket_owner, 123456789012" in str(from_code("AccessDenied", 403, failed))
    assert "123456789012" not in str(from_code("NoSuchBucket", 404, failed))


def test_denied_names_the_permission():
    assert "s3:GetObject" in str(from_code("AccessDenied", 403, READ))
    assert "s3:ListBucket" in str(from_code("AccessDenied", 403, LIST))


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_kept(form):
    moment = datetime.now(timezone.utc) + timedelta(seconds=7)
    header = "7" if form == "seconds" else format_datetime(moment, usegmt=True)
    response = {
        "Error": {"Code": "SlowDown"},
        "ResponseMetadata": {"HTTPStatusCode": 503, "HTTPHeaders": {"retry-after": header}},
    }
    error = translate(botocore.exceptions.ClientError(response, "GetObject"), READ)
    assert 4 < error.retry_after_seconds <= 7


@pytest.mark.parametrize("header", [None, "", "soon", "-3", "Thu, 99 Nov", "\xb2", "\u0663"])
def test_a_retry_after_without_sense_is_left_out(header):
    assert retry_after_seconds(header) is None


def test_a_retry_after_of_any_length_is_a_number():
    assert retry_after_seconds("9" * 5000) == 999_999_999


def test_no_query_and_no_user_of_an_address_stays():
    text = "GET https://user:SECRET@host/b/k?X-Amz-Credential=SECRET&X-Amz-Signature=SECRET failed\nthere"
    assert redact(text) == "GET https://host/b/k failed there"
    assert len(redact("x" * 9999)) < 400


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://us?er:SECRET@host/b?x=SECRET", "http://host/b"),
        ("http://user:SEC@RET@host/b", "http://host/b"),
        ("'https://a/http://user:SECRET@b/c?d=SECRET' (https://c/d)", "'https://a/http://b/c' (https://c/d)"),
        ("no address: a?b=c d@e", "no address: a?b=c d@e"),
        ("https://host:9000/b is silent", "https://host:9000/b is silent"),
    ],
)
def test_an_address_keeps_host_and_path(text, shown):
    assert redact(text) == shown


@pytest.mark.parametrize(
    "part", ["http://", "https://x", "http://a/", "https://a:@", "http://?", "ya29.", "-AKIA", "@"]
)
def test_a_long_text_of_a_server_costs_no_more_than_its_length(part):
    """Ten seconds for 64 KB, when each address in it was looked through to the end of the text."""
    watch = Stopwatch()
    redact(part * (262_144 // len(part)))
    assert watch.seconds < 2


def test_a_message_of_a_connection_error_shows_the_reason_and_no_object():
    below = urllib3.exceptions.NewConnectionError(object(), "Failed to establish a new connection: [Errno 111] refused")
    url = "http://store:9000/lake?list-type=2&X-Amz-Signature=SECRET"
    error = translate(botocore.exceptions.EndpointConnectionError(endpoint_url=url, error=below), LIST)
    assert "0x" not in str(error)
    assert "refused" in str(error)
    assert "http://store:9000" in str(error)
    assert "SECRET" not in str(error)


def test_causes_that_go_in_a_circle_have_an_end():
    first, second = OSError("first"), OSError("second")
    first.__cause__, second.__cause__ = second, first
    assert "OSError: second" in str(translate(first, READ))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("invalid literal for int() with base 10: 'x'"),  # botocore, of a Content-Length
        LookupError("unknown encoding: x-foo"),  # its parser, of a document
    ],
)
def test_an_answer_that_makes_no_sense_is_asked_for_again(error):
    assert type(translate(error, READ)) is StoreUnavailableError
    assert type(translate(error, attrs.evolve(READ, operation=MAKING))) is FatalError  # an address that is none


def test_errors_of_the_framework_pass():
    error = ThrottledError("x")
    assert translate(error, READ) is error


@pytest.mark.parametrize("kind", sorted({kind for _, _, kind in ANSWERS}, key=lambda kind: kind.__name__))
def test_mapped_errors_pickle(kind):
    code, status = next((code, status) for code, status, one in ANSWERS if one is kind)
    error = from_code(code, status, READ)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (type(error), str(error))


def test_the_error_document_is_read_by_its_fields():
    body = (
        b'<?xml version="1.0"?>\n<Error><Code>NoSuchKey</Code><Message>It&apos;s &lt;gone&gt;</Message>'
        b"<Key>a</Key><Region>eu-west-1</Region></Error>"
    )
    assert error_fields(body) == {"Code": "NoSuchKey", "Message": "It's <gone>", "Region": "eu-west-1"}
    assert error_fields(b"") == {}
    assert error_fields(b"<html>\xff bad gateway</html>") == {}


def test_a_listing_that_is_answered_as_an_object_asks_about_the_endpoint():
    """`endpoint = "https://store/lake"`, as some stores show it: the bucket's name then begins a key."""
    error = from_code("NoSuchKey", 404, attrs.evolve(LIST, endpoint="http://store:9000/lake"), message="no such key")
    assert isinstance(error, FatalError)
    assert "s3.endpoint names the server alone, without the bucket; asked was http://store:9000/lake" in str(error)
    assert "it was deleted" in str(from_code("NoSuchKey", 404, READ, message="no such key"))


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_low_memory_says_nothing_about_the_store(error):
    with pytest.raises(type(error)) as caught:
        translate(error, LIST)
    assert caught.value is error
