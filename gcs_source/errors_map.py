"""Translation of all errors of the Google libraries and of GCS into `framework.errors`.

Exceptions are recognized by the names of their classes: this module imports no vendor library, and works
with versions that have more or fewer classes. A reason that GCS sends is looked up first, then the HTTP
status, then the exception's class.
"""

from __future__ import annotations

import re
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
    ObjectNotFoundError,
    SourceError,
    StoreUnavailableError,
    ThrottledError,
    causes,
    is_low_memory,
)
from framework.storage.error_messages import (
    NO_DOCUMENT,
    Kind,
    StoreCall,
    advice_of_connections,
    advice_of_kinds,
    innermost,
    kind_of_class,
    kind_of_status,
    kinds,
    make_error,
    make_refusal,
    needs_document,
    not_open,
    redact,
)

# https://cloud.google.com/storage/docs/json_api/v1/status-codes: the `reason` of the first error of an answer.
REASONS: Mapping[str, Kind] = {
    **kinds(
        ThrottledError,
        "rateLimitExceeded userRateLimitExceeded dailyLimitExceeded quotaExceeded usageLimits tooManyRequests",
    ),
    **kinds(StoreUnavailableError, "backendError internalError uploadBrokenConnection serviceUnavailable timeout"),
    **kinds(CredentialsError, "authError invalidCredentials expired"),
    **kinds(
        AccessDeniedError,
        "forbidden insufficientPermissions accountDisabled vpcServiceControls userProjectMissing userProjectInconsistent"
        " userProjectAccessDenied userAccountDisabled projectAccessDenied kmsKey countryBlocked orgPolicyViolation"
        " customerEncryptionKeyIsIncorrect customerEncryptionKeyFormatIsInvalid"
        " customerEncryptionAlgorithmIsInvalid customerEncryptionKeySha256IsInvalid resourceIsEncryptedWithCustomerEncryptionKey"
        " resourceNotEncryptedWithCustomerEncryptionKey",
    ),
    **kinds(ObjectChangedError, "conditionNotMet requestedRangeNotSatisfiable"),
    **kinds(FatalError, "badRequest invalid invalidArgument invalidParameter parseError sslRequired notImplemented"),
}

STATUSES: Mapping[int, Kind] = {
    400: FatalError,
    401: CredentialsError,
    403: AccessDeniedError,
    407: ConfigError,
    412: ObjectChangedError,
    416: ObjectChangedError,
    429: ThrottledError,
    503: ThrottledError,
}

# By the name of a class or of one of its bases; the most derived one wins.
CLASSES: Mapping[str, Kind] = {
    **kinds(
        StoreUnavailableError,
        # requests, urllib3, google.auth and Python: the connection or its answer failed
        "ConnectionError ConnectTimeout ReadTimeout Timeout ChunkedEncodingError ContentDecodingError RetryError"
        " TransportError ResponseError HTTPError HTTPException IncompleteRead ProtocolError ProxyError TimeoutError OSError",
    ),
    **kinds(
        CredentialsError,
        "GoogleAuthError DefaultCredentialsError RefreshError MalformedError UserAccessTokenError ReauthFailError"
        " OAuthError InvalidResource InvalidOperation MutualTLSChannelError",
    ),
    **kinds(
        ConfigError,
        "SSLError HttpTlsError InvalidURL MissingSchema InvalidSchema InvalidProxyURL InvalidHeader UnrewindableBodyError"
        " LocationValueError ProxySchemeUnknown ProxySchemeUnsupported FileNotFoundError PermissionError IsADirectoryError",
    ),
    **kinds(FatalError, "RequestException Exception"),
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
    "OAuthError": "Google refuses the platform's token or the login; check the audience, and the attribute mapping and attribute"
    " condition of its provider, or log in again",
    "TransportError": "Google's token service, or the machine's metadata service, cannot be reached; check the network",
    **advice_of_connections("gcs"),
    **dict.fromkeys(
        ("InvalidURL", "InvalidSchema", "MissingSchema", "InvalidProxyURL", "LocationParseError", "ProxySchemeUnknown"),
        "an address is none; check gcs.endpoint (or STORAGE_EMULATOR_HOST) and gcs.proxy: each with its scheme, http://host:port",
    ),
    **dict.fromkeys(
        ("ConnectionError", "NewConnectionError", "NameResolutionError", "HttpConnectError"),
        "the store cannot be reached; check gcs.endpoint (or STORAGE_EMULATOR_HOST) and the network",
    ),
}

_KIND_ADVICE = advice_of_kinds("gcs", "gcs.bucket and gcs.endpoint")

_STATUS_ADVICE = {407: "the proxy wants to know who asks; give gcs.proxy as http://user:password@host:port"}


@attrs.frozen(kw_only=True)
class Failed(StoreCall):
    """The failed operation, for the message. Operations have the names of permissions: `objects.get`.

    Attributes:
        anonymous: whether the request had no identity.
        media: whether it requested an object's bytes, which are refused in plain text.
        service: who was asked for a token; empty when the store was asked.
    """

    scheme: ClassVar[str] = "gs"
    anonymous: bool = False
    media: bool = False
    service: str = ""


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

    Raises:
        Exception: the error itself, when memory or threads ran out; it says nothing about the store.
    """
    if isinstance(error, SourceError):
        return error
    connection = _failed_connection(error)
    kind, name = kind_of_class(connection, CLASSES), type(connection).__name__
    if kind is FatalError and is_low_memory(error):
        raise error
    if kind is CredentialsError and getattr(error, "retryable", False):
        kind = StoreUnavailableError
    if name == "RefreshError" and "reasonable timeframe" in str(error):  # of the signed request for a token
        # a time service sets the clock soon after a boot or a pause
        return make_error(
            StoreUnavailableError, failed, f"the clock of this machine is off; set it ({describe(error)})"
        )
    advice = _CLASS_ADVICE.get(name) or _KIND_ADVICE.get(kind, "see the cause")
    if failed.service:
        kind, advice = _of_token_service(error, connection, kind, advice, failed)
    of_store = not failed.service and issubclass(kind, StoreUnavailableError) and connection is error
    where = failed.asked if of_store and name != "TransportError" else ""  # that one is google-auth's
    return make_error(kind, failed, f"{advice}{where} ({describe(error)})")


def describe(error: BaseException) -> str:
    """Describe the innermost cause in a few words, as `innermost` does, with nothing that google-auth only repeats.

    It puts whole answers of token services, what a program of a workload identity printed, and values of the file of
    credentials into its errors: of these, the reason alone is shown.
    """
    *_, inner = causes(error)
    if all(cls.__name__ != "GoogleAuthError" for cls in type(inner).__mro__):
        return innermost(error)
    documents = [_document(arg) for arg in inner.args]
    first = inner.args[0] if inner.args and isinstance(inner.args[0], str) and documents[0] is None else ""
    parts = [_NOT_CONVERTED.sub("a value could", _REPEATED.sub("", first)).strip()]
    for document in filter(None, documents):
        parts += [reason for reason in _reasons(document) if reason and reason not in " ".join(parts)]
    text = redact(", ".join(filter(None, parts)))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


_REPEATED = re.compile(r"(?:\. Error: |\s*Response(?: details)?:|\{|^\s*<).*", re.DOTALL)
"""From where google-auth repeats: the output of a program, an answer of the metadata service, a document, a page."""

_NOT_CONVERTED = re.compile(r"^.* could(?= not be converted to )", re.DOTALL)


def _document(arg: object) -> Mapping[str, object] | None:
    """Return an answer among an exception's arguments; None for others."""
    if isinstance(arg, str):
        try:
            arg = msgspec.json.decode(arg)
        except (msgspec.DecodeError, RecursionError):
            return None
    return arg if isinstance(arg, Mapping) else None


def _reasons(document: Mapping[str, object]) -> list[str]:
    """Return why a token service refuses: in the form of OAuth, or of Google's APIs."""
    error = document.get("error")
    found = [error.get("status"), error.get("message")] if isinstance(error, Mapping) else [error]
    return [reason for reason in (*found, document.get("error_description")) if isinstance(reason, str)]


def _failed_connection(error: BaseException) -> BaseException:
    """Return the exception of the connection beneath one of google-auth's; the error itself if no connection failed."""
    chain = list(causes(error))
    own = [link for link in chain if type(link).__name__ == "TransportError"]
    refused = any(len(link.args) > 1 for link in own)  # the second is an answer of the metadata service
    if refused or not own:
        return error
    return chain[-1] if isinstance(chain[-1], OSError) else own[-1]


def _of_token_service(
    error: BaseException, connection: BaseException, kind: Kind, advice: str, failed: Failed
) -> tuple[Kind, str]:
    """Return kind and advice of a token that could not be had: what passes is waited for, as with the store."""
    inner = connection if kind is FatalError else connection.__cause__
    if isinstance(inner, _SPOILT) or "Unexpected response from metadata server" in str(error):
        return StoreUnavailableError, f"{failed.service} gave no valid answer"
    # another program writes it, and may be late
    if (isinstance(error, OSError) and error.filename) or _NO_SUBJECT.search(str(error)):
        return StoreUnavailableError, "the platform's token cannot be read; check credential_source of the credentials"
    if type(error).__name__ != "TransportError":
        return kind, advice
    name = type(connection).__name__
    if name == "ProxyError" and "407" in str(connection):
        return ConfigError, _STATUS_ADVICE[407]
    if name == "SSLError" and kind is ConfigError:
        advice = f"the certificate of {failed.service} is not trusted, or it speaks no TLS; check gcs.ca_bundle"
    elif kind is ConfigError:
        advice = "an address is none; check token_uri, token_url and credential_source in the file of credentials, and gcs.proxy"
    elif name == "ReadTimeout":
        advice = f"{failed.service} did not answer in time"
    elif name != "ProxyError":
        advice = f"{failed.service} cannot be reached; check the network"
    return kind, advice


_SPOILT = (ValueError, LookupError, TypeError, AttributeError)
"""What google-auth raises, or takes for a cause, when an answer has another form than it should."""

_NO_SUBJECT = re.compile(r"^File '.*' was not found\.$")


def from_token_service(status: int, headers: Mapping[str, str], failed: Failed) -> SourceError | None:
    """Return the error of a token service's answer that says nothing about the credentials; None for others."""
    if status == 407:  # noqa: PLR2004  # the proxy's
        return make_refusal(ConfigError, failed, _STATUS_ADVICE[status], (f"HTTP {status}",), None)
    if status < 500 and status not in {408, 429}:  # noqa: PLR2004
        return None
    advice = f"{failed.service} did not answer as it should"
    return make_refusal(StoreUnavailableError, failed, advice, (f"HTTP {status}",), headers.get("retry-after"))


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
        kind, advice = AccessDeniedError, not_open("gcs")
    if foreign:
        advice = f"{NO_DOCUMENT}; when that stays so, check gcs.endpoint and gcs.proxy"
    advice = advice.format(action=f"storage.{failed.operation}")
    if foreign or kind is BucketNotFoundError:
        advice = f"{advice}{failed.asked}"
    words = (reason, f"HTTP {status}", answer_text)
    return make_refusal(kind, failed, advice, words, headers.get("retry-after"))


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
    """Return whether a refusal of that status only counts when the store itself sent it."""
    if failed.media and status == 404:  # noqa: PLR2004  # the description of the object tells: see `GcsStore._refused`
        return False
    # who asks without an identity, or with a token that has expired, is told so in plain text, too
    return status != 401 and needs_document(status)  # noqa: PLR2004


def _status_kind(status: int, reason: str, failed: Failed, answer_text: str) -> Kind:
    if status == 404:  # noqa: PLR2004
        missing = not failed.key or "bucket does not exist" in answer_text.lower()
        return BucketNotFoundError if missing else ObjectNotFoundError
    return kind_of_status(status, REASONS.get(reason) or STATUSES.get(status), failed)
