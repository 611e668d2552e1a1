"""Translation of all errors of the Google libraries and of GCS into `framework.errors`.

Exceptions are recognized by the names of their classes: this module imports no vendor library, and works
with versions that have more or fewer classes. A reason that GCS sends is looked up first, then the HTTP
status, then the exception's class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import attrs
import msgspec

from framework.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ConfigError,
    CredentialsError,
    FatalError,
    ObjectChangedError,
    ObjectError,
    ObjectNotFoundError,
    SourceError,
    StoreUnavailableError,
    ThrottledError,
)
from framework.storage.error_messages import (
    NEEDS_NO_DOCUMENT,
    NO_DOCUMENT,
    StoreCall,
    innermost,
    make_error,
    redact,
    retry_after_seconds,
)

_Kind = type[SourceError]


def _names(kind: _Kind, text: str) -> dict[str, _Kind]:
    return dict.fromkeys(text.split(), kind)


# https://cloud.google.com/storage/docs/json_api/v1/status-codes: the `reason` of the first error of an answer.
REASONS: Mapping[str, _Kind] = {
    **_names(
        ThrottledError,
        "rateLimitExceeded userRateLimitExceeded dailyLimitExceeded quotaExceeded usageLimits tooManyRequests",
    ),
    **_names(StoreUnavailableError, "backendError internalError uploadBrokenConnection serviceUnavailable timeout"),
    **_names(CredentialsError, "authError invalidCredentials expired"),
    **_names(
        AccessDeniedError,
        "forbidden insufficientPermissions accountDisabled vpcServiceControls userProjectMissing userProjectInconsistent"
        " userProjectAccessDenied userAccountDisabled projectAccessDenied kmsKey countryBlocked orgPolicyViolation"
        " customerEncryptionKeyIsIncorrect customerEncryptionKeyFormatIsInvalid"
        " customerEncryptionAlgorithmIsInvalid customerEncryptionKeySha256IsInvalid resourceIsEncryptedWithCustomerEncryptionKey"
        " resourceNotEncryptedWithCustomerEncryptionKey",
    ),
    **_names(ObjectChangedError, "conditionNotMet requestedRangeNotSatisfiable"),
    **_names(FatalError, "badRequest invalid invalidArgument invalidParameter parseError sslRequired notImplemented"),
}

STATUSES: Mapping[int, _Kind] = {
    304: StoreUnavailableError,  # answers a condition that is never sent: a cache in between
    400: FatalError,
    401: CredentialsError,
    403: AccessDeniedError,
    407: ConfigError,
    408: StoreUnavailableError,
    412: ObjectChangedError,
    416: ObjectChangedError,
    429: ThrottledError,
    503: ThrottledError,
}

# By the name of a class or of one of its bases; the most derived one wins.
CLASSES: Mapping[str, _Kind] = {
    **_names(
        StoreUnavailableError,
        # requests, urllib3, google.auth and Python: the connection or its answer failed
        "ConnectionError ConnectTimeout ReadTimeout Timeout ChunkedEncodingError ContentDecodingError RetryError"
        " TransportError ResponseError HTTPError HTTPException IncompleteRead ProtocolError ProxyError TimeoutError OSError",
    ),
    **_names(
        CredentialsError,
        "GoogleAuthError DefaultCredentialsError RefreshError MalformedError UserAccessTokenError ReauthFailError"
        " OAuthError InvalidResource InvalidOperation MutualTLSChannelError",
    ),
    **_names(
        ConfigError,
        "SSLError HttpTlsError InvalidURL MissingSchema InvalidSchema InvalidProxyURL InvalidHeader UnrewindableBodyError"
        " LocationValueError ProxySchemeUnknown ProxySchemeUnsupported FileNotFoundError PermissionError IsADirectoryError",
    ),
    **_names(FatalError, "RequestException Exception"),
}

# A read is refused in plain text, without a reason; and some reasons say less than the words: "required", of a bucket whose
# requester pays. What is found in the words counts for the reason.
WORDS: Mapping[str, str] = {
    "requester pays bucket but no user project": "userProjectMissing",
    "serviceusage.services.use access": "userProjectAccessDenied",
    "object is encrypted by a customer-supplied": "resourceIsEncryptedWithCustomerEncryptionKey",
    "object is not encrypted by a customer-supplied": "resourceNotEncryptedWithCustomerEncryptionKey",
    "provided encryption key is incorrect": "customerEncryptionKeyIsIncorrect",
    "billing account": "accountDisabled",
    "prohibited by organization's policy": "vpcServiceControls",
    "vpc service controls": "vpcServiceControls",
    "cloud kms key": "kmsKey",
}

_REASON_ADVICE: Mapping[str, str] = {
    "userProjectMissing": "the bucket lets the requester pay; set gcs.user_project (who is anonymous cannot pay)",
    "userProjectAccessDenied": "the identity may not charge that project; check gcs.user_project",
    "resourceIsEncryptedWithCustomerEncryptionKey": "it is encrypted with a customer's key; check gcs.customer_key",
    "customerEncryptionKeyIsIncorrect": "it is encrypted with another customer's key; check gcs.customer_key",
    "resourceNotEncryptedWithCustomerEncryptionKey": "it is not encrypted with a customer's key; leave gcs.customer_key out",
    "accountDisabled": "the project that pays, the bucket's or gcs.user_project, has no billing; switch it on there",
    "vpcServiceControls": "a rule of the organisation keeps this machine or identity out; its administrators can let it in",
    "kmsKey": "its key of KMS cannot be used; let the service account of Cloud Storage itself decrypt with it",
}

_CLASS_ADVICE: Mapping[str, str] = {
    "DefaultCredentialsError": "no credentials were found, or their file cannot be used; set gcs.credentials_file or"
    " gcs.anonymous, or run gcloud auth application-default login",
    "MalformedError": "the file of credentials cannot be used; check gcs.credentials_file",
    "RefreshError": "Google gave no token for these credentials; check gcs.credentials_file, gcs.impersonate and the clock",
    "TransportError": "Google's token service, or the machine's metadata service, cannot be reached; check the network",
    **dict.fromkeys(
        ("SSLError", "HttpTlsError"),
        "the server's certificate is not trusted, or it speaks no TLS; check gcs.endpoint and gcs.ca_bundle",
    ),
    **dict.fromkeys(
        ("ProxyError", "HttpProxyError"),
        "the proxy does not answer, or refuses; check gcs.proxy, or the variables HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY",
    ),
    **dict.fromkeys(
        ("InvalidURL", "InvalidSchema", "MissingSchema", "InvalidProxyURL", "LocationParseError", "ProxySchemeUnknown"),
        "an address is none; check gcs.endpoint (or STORAGE_EMULATOR_HOST) and gcs.proxy: each with its scheme, http://host:port",
    ),
    **dict.fromkeys(
        ("ConnectTimeout", "ConnectTimeoutError", "HttpConnectTimeoutError"),
        "the store did not take the connection in time; check gcs.endpoint and the network",
    ),
    **dict.fromkeys(
        ("ConnectionError", "NewConnectionError", "NameResolutionError", "HttpConnectError"),
        "the store cannot be reached; check gcs.endpoint (or STORAGE_EMULATOR_HOST) and the network",
    ),
    "ReadTimeout": "the store did not answer in time",
    "ReadTimeoutError": "the store did not answer in time",
    "HttpReadTimeoutError": "the store did not answer in time",
}

_KIND_ADVICE: Mapping[_Kind, str] = {
    ThrottledError: "the store asks for fewer requests",
    StoreUnavailableError: "the store did not answer as it should",
    CredentialsError: "the store refuses the credentials, or none could be had; check section [gcs]",
    AccessDeniedError: "the credentials do not allow it; grant {action}",
    BucketNotFoundError: "there is no such bucket; check gcs.bucket and gcs.endpoint",
    ObjectNotFoundError: "it was deleted after it was listed",
    ObjectChangedError: "it was overwritten after it was listed",
    ConfigError: "the store cannot be used as configured; check section [gcs]",
}

_STATUS_ADVICE = {407: "the proxy wants to know who asks; give gcs.proxy as http://user:password@host:port"}

_NOT_OPEN = "it is not open to everybody, or does not exist; leave gcs.anonymous out and give credentials"


@attrs.frozen(kw_only=True)
class Failed(StoreCall):
    """The failed operation, for the message. Operations have the names of permissions: `objects.get`.

    Attributes:
        anonymous: whether the request had no identity.
        media: whether it requested an object's bytes, which are refused in plain text.
    """

    scheme: ClassVar[str] = "gs"
    anonymous: bool = False
    media: bool = False


class _ErrorDetail(msgspec.Struct):
    reason: str = ""


class _Error(msgspec.Struct):
    message: str = ""
    errors: list[_ErrorDetail] = []


class _Answer(msgspec.Struct):
    error: _Error


def translate(error: BaseException, failed: Failed) -> SourceError:
    """Return the framework's error for an exception of a library or the socket. Raise it `from error`.

    Errors of the framework are returned unchanged. The message names the place, the text of the library,
    and advice; never a credential or the query of an address.
    """
    if isinstance(error, SourceError):
        return error
    kind, name = _class_kind(error)
    if kind is CredentialsError and failed.anonymous:  # a 401: there is nothing that could be renewed
        return make_error(AccessDeniedError, failed, _NOT_OPEN)
    advice = _CLASS_ADVICE.get(name) or _KIND_ADVICE.get(kind, "see the cause")
    where = f"; asked was {failed.endpoint}" if failed.endpoint and issubclass(kind, StoreUnavailableError) else ""
    if name == "TransportError":  # of google-auth
        where = ""
    return make_error(kind, failed, f"{advice}{where} ({innermost(error)})")


def from_answer(status: int, body: bytes, headers: Mapping[str, str], failed: Failed) -> SourceError:
    """Return the error for an answer of GCS.

    Args:
        status: HTTP status.
        body: JSON with an `error`; or text, from a media request or a proxy.
        headers: looked up in lower case.
        failed: the operation.
    """
    reason, answer_text, document = _read(body)
    meant = next((meant for words, meant in WORDS.items() if words in answer_text.lower()), reason)
    foreign = not document and not meant and not _is_googles(headers) and _needs_document(status, failed)
    kind = StoreUnavailableError if foreign else _status_kind(status, meant, failed, answer_text)
    advice = _REASON_ADVICE.get(meant) or _STATUS_ADVICE.get(status)
    advice = advice or _KIND_ADVICE.get(kind, "the store refuses the request")
    if kind is CredentialsError and failed.anonymous:
        kind, advice = AccessDeniedError, _NOT_OPEN
    if foreign:
        advice = f"{NO_DOCUMENT}; when that stays so, check gcs.endpoint and gcs.proxy"
    advice = advice.format(action=f"storage.{failed.operation}")
    if (foreign or kind is BucketNotFoundError) and failed.endpoint:
        advice = f"{advice}; asked was {failed.endpoint}"
    words = [word for word in (reason, f"HTTP {status}", answer_text) if word]
    made = make_error(kind, failed, f"{advice} ({', '.join(words)})")
    if isinstance(made, (ThrottledError, StoreUnavailableError)):
        made.retry_after_seconds = retry_after_seconds(headers.get("retry-after"))
    return made


def _read(body: bytes) -> tuple[str, str, bool]:
    """Return (reason, message, whether it is a document of the JSON API)."""
    try:
        answer = msgspec.json.decode(body, type=_Answer).error
    except (msgspec.DecodeError, RecursionError):
        return "", redact(body[:1000].decode("utf-8", "replace")) if body[:1] != b"<" else "", False
    return answer.errors[0].reason if answer.errors else "", redact(answer.message), True


def _is_googles(headers: Mapping[str, str]) -> bool:
    """Return whether Google's storage sent the answer: its answers have this field, even in plain text."""
    return headers.get("x-guploader-uploadid") is not None


def _needs_document(status: int, failed: Failed) -> bool:
    """Return whether a refusal of that status only counts when the store itself sent it.

    An ingress whose route is being reloaded answers "404 page not found" to every request, which says
    nothing about an object. So does 421 or 499 of a load balancer, and 203 of a proxy.
    """
    if failed.media and status == 404:  # noqa: PLR2004  # the description of the object tells: see `GcsStore._refused`
        return False
    # who asks without an identity, or with a token that has expired, is told so in plain text, too
    return status not in (*NEEDS_NO_DOCUMENT, 401) and (status >= 400 or status < 300)  # noqa: PLR2004


def _status_kind(status: int, reason: str, failed: Failed, answer_text: str) -> _Kind:
    if status == 404:  # noqa: PLR2004
        missing = not failed.key or "bucket does not exist" in answer_text.lower()
        return BucketNotFoundError if missing else ObjectNotFoundError
    kind = REASONS.get(reason) or STATUSES.get(status)
    if kind is None:
        if status >= 500:  # noqa: PLR2004  # a failure of the server's own
            return StoreUnavailableError
        return ConfigError if 300 <= status < 400 else FatalError  # noqa: PLR2004
    return FatalError if issubclass(kind, ObjectError) and not failed.key else kind


def _class_kind(error: BaseException) -> tuple[_Kind, str]:
    for cls in type(error).__mro__:
        kind = CLASSES.get(cls.__name__)
        if kind is not None:
            tls = cls.__name__ in ("SSLError", "HttpTlsError")
            if tls and "CERTIFICATE" not in str(error) and "WRONG_VERSION" not in str(error):
                return StoreUnavailableError, type(error).__name__
            if kind is CredentialsError and getattr(error, "retryable", False):
                return StoreUnavailableError, type(error).__name__
            return kind, type(error).__name__
    return FatalError, type(error).__name__
