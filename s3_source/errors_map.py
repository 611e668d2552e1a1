"""Translation of all errors of the AWS libraries and of S3 into `framework.errors`.

Exceptions are recognized by the names of their classes: this module imports no vendor library, and works
with versions that have more or fewer classes. A code that S3 sends is looked up first, then the HTTP
status, then the exception's class. A test covers every class of `botocore.exceptions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import attrs

from framework.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ConfigError,
    CredentialsError,
    FatalError,
    ObjectArchivedError,
    ObjectChangedError,
    ObjectNotFoundError,
    SourceError,
    StoreUnavailableError,
    ThrottledError,
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

MAKING = "CreateClient"
"""Pseudo-operation of creating the client: its failures are configuration errors."""


# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html, with those of STS and of stores that speak S3.
CODES: Mapping[str, Kind] = {
    **kinds(
        ThrottledError,
        "SlowDown SlowDownRead SlowDownWrite RequestLimitExceeded Throttling ThrottlingException ThrottledException"
        " RequestThrottled RequestThrottledException TooManyRequests TooManyRequestsException BandwidthLimitExceeded"
        " LimitExceededException PriorRequestNotComplete ServiceUnavailable ServerBusy Busy 429 503",
    ),
    **kinds(
        StoreUnavailableError,
        "InternalError InternalFailure InternalServerError RequestTimeout RequestTimeoutException OperationAborted"
        " ServiceFailure IDPCommunicationError ConditionalRequestConflict TemporaryRedirect IncompleteBody"
        " XMinioServerNotInitialized 500 502 504"
        # this machine's clock is off: a time service sets it soon after a boot or a pause
        " RequestTimeTooSkewed RequestExpired",
    ),
    **kinds(
        CredentialsError,
        "InvalidAccessKeyId SignatureDoesNotMatch ExpiredToken ExpiredTokenException InvalidToken InvalidTokenId"
        " TokenRefreshRequired InvalidSecurity MissingSecurityHeader MissingSecurityElement MissingAuthenticationToken"
        " InvalidClientTokenId UnrecognizedClientException IncompleteSignature CredentialsNotSupported NotSignedUp"
        " ExpiredIdentityToken InvalidIdentityToken IDPRejectedClaim 401",
    ),
    **kinds(
        AccessDeniedError,
        "AccessDenied AccessDeniedException AllAccessDisabled AccountProblem InvalidPayer Forbidden Unauthorized"
        " UnauthorizedAccess KMS.DisabledException KMS.NotFoundException KMS.InvalidStateException"
        " KMS.KMSInvalidStateException RegionDisabledException 403",
    ),
    **kinds(BucketNotFoundError, "NoSuchBucket NoSuchAccessPoint"),
    **kinds(ObjectNotFoundError, "NoSuchKey NoSuchVersion"),
    **kinds(ObjectChangedError, "PreconditionFailed InvalidRange 412 416"),
    **kinds(ObjectArchivedError, "InvalidObjectState"),
    **kinds(
        ConfigError,
        "PermanentRedirect Redirect AuthorizationHeaderMalformed IllegalLocationConstraintException InvalidBucketName"
        " InvalidRegion 301 407",
    ),
    **kinds(FatalError, "NotImplemented MethodNotAllowed InvalidRequest InvalidArgument"),
}

# By the name of a class or of one of its bases; the most derived one wins.
CLASSES: Mapping[str, Kind] = {
    **kinds(
        StoreUnavailableError,
        # botocore, urllib3 and Python: the connection or its answer failed
        "HTTPClientError ConnectionError EndpointConnectionError ConnectionClosedError ReadTimeoutError ConnectTimeoutError"
        " ProxyConnectionError ResponseStreamingError IncompleteReadError ChecksumError FlexibleChecksumError"
        " AwsChunkedWrapperError CapacityNotAvailableError ResponseParserError MetadataRetrievalError HTTPError"
        # an agent or a program that gives credentials out was away, or failed this time
        " CredentialRetrievalError"
        " HTTPException IncompleteRead TimeoutError OSError",
    ),
    **kinds(
        CredentialsError,
        "NoCredentialsError NoAuthTokenError TokenRetrievalError UnknownTokenProviderError PartialCredentialsError"
        " UnknownCredentialError RefreshWithMFAUnsupportedError SSOError LoginError"
        " UnauthorizedSSOTokenError",
    ),
    # A certificate that is not trusted stays so; what a reset looks like inside TLS is told apart in `kind_of_class`.
    **kinds(
        ConfigError,
        "SSLError HttpTlsError ProfileNotFound ConfigParseError ConfigNotFound InvalidConfigError ValidationError",
    ),
    **kinds(
        ConfigError,
        "ParamValidationError BaseEndpointResolverError EndpointProviderError UnknownRegionError InvalidDNSNameError"
        " ServiceNotInRegionError InvalidHostLabelError InvalidS3AddressingStyleError UnsupportedS3ArnError"
        " UnsupportedS3ConfigurationError UnsupportedS3AccesspointConfigurationError InvalidProxiesConfigError"
        " InvalidEndpointConfigurationError InvalidIMDSEndpointError InvalidIMDSEndpointModeError InvalidDefaultsMode"
        " InvalidRetryConfigurationError InvalidSTSRegionalEndpointsConfigError"
        " InvalidS3UsEast1RegionalEndpointConfigError InvalidChecksumConfigError",
    ),
    **kinds(FatalError, "BotoCoreError UndefinedModelAttributeError ClientError Exception"),
}

_EXPIRED = "CredentialsStillExpired"
_UNREADABLE = "CredentialsUnreadable"
_NOT_ASCII = "LoginNotAscii"
_SSO = "single sign-on gives out no keys; check account and role of the profile, or log in again (aws sso login)"
_ADVICE: Mapping[str, str] = {
    **dict.fromkeys(("RequestTimeTooSkewed", "RequestExpired"), "the clock of this machine is off; set it"),
    "ExpiredToken": "the temporary keys have expired; renew them",
    "ExpiredTokenException": "the temporary keys have expired; renew them",
    "InvalidAccessKeyId": "the store does not know this access key; check s3.access_key_id",
    "SignatureDoesNotMatch": "the store refuses the signature; check s3.secret_access_key",
    "InvalidBucketName": "the store does not take this as a bucket's name; check s3.bucket",
    "407": "the proxy wants to know who asks; give s3.proxy as http://user:password@host:port",
    "InvalidPayer": "the requester does not pay; check s3.requester_pays",
    "MethodNotAllowed": "the store does not allow this request here; check s3.endpoint",
    "NotImplemented": "the store does not implement this request; check s3.endpoint",
    "NoCredentialsError": "no credentials were found, nor a role of the container or machine; set"
    " s3.access_key_id, s3.profile or s3.anonymous",
    "PartialCredentialsError": "the credentials found are incomplete; an access key needs its secret",
    **dict.fromkeys(("UnauthorizedSSOTokenError", "SSOTokenLoadError", "TokenRetrievalError"), _SSO),
    "ConfigParseError": "a shared AWS file cannot be read; correct it",
    "ProfileNotFound": "there is no such profile in the shared AWS files; check s3.profile, or the variable AWS_PROFILE",
    **advice_of_connections("s3"),
    "InvalidProxiesConfigError": "the proxy cannot be used; check s3.proxy",
    **dict.fromkeys(
        ("EndpointConnectionError", "HttpConnectError"),
        "the store cannot be reached; check s3.endpoint, s3.region and the network",
    ),
    _EXPIRED: "new keys had expired already when they were given out; check the clock, s3.profile, or the container's agent",
    _NOT_ASCII: "the service that gives out the credentials is asked through a proxy whose user or password is not ASCII;"
    " give it another one (s3.proxy, or the variable HTTPS_PROXY)",
    _UNREADABLE: "a file or program for the credentials cannot be used; check s3.profile, the shared AWS files and the"
    " variables AWS_*",
    "CredentialRetrievalError": "what gives the credentials out did not; check s3.profile, the container's agent, or"
    " the instance's metadata service",
}
_IDENTITY = "the service that gives out the credentials"
_OF_IDENTITY: Mapping[str, str] = {
    "AssumeRole": "the role of the profile cannot be assumed; check role_arn in the shared AWS files, and the role's trust policy",
    "AssumeRoleWithWebIdentity": "the role of the web identity cannot be assumed; check AWS_ROLE_ARN or the profile's role_arn,"
    " the role's trust policy, and whether the token in the file is renewed",
    "GetRoleCredentials": _SSO,
    "CreateToken": _SSO,
}
"""Requests to the service that gives out the credentials -> what to do when it refuses."""
_CLOCK_WORDS = ("Signature expired", "Signature not yet current")
"""STS has no code of its own for a request whose time is off."""
_KIND_ADVICE = advice_of_kinds("s3", "s3.bucket, s3.endpoint and s3.region")
_ACTIONS = {
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
    "GetObjectTagging": "s3:GetObjectTagging",
}


@attrs.frozen(kw_only=True)
class Failed(StoreCall):
    """The failed operation, for the message. Operations have S3's names: `GetObject`.

    Attributes:
        role_arn: the role to assume, if any.
        owner: the account that must own the bucket, if configured.
        anonymous: whether the request had no identity.
        of_identity: whether what gives out the credentials failed, and not the store.
        renew: called when the store says that the keys have expired: has new ones got for the next request, and returns
            whether there can be any.
    """

    scheme: ClassVar[str] = "s3"
    role_arn: str = ""
    owner: str = ""
    anonymous: bool = False
    of_identity: bool = False
    renew: Callable[[], bool] = attrs.field(default=lambda: False, repr=False, eq=False)


def translate(error: BaseException, failed: Failed) -> SourceError:
    """Return the framework's error for an exception of boto3, botocore, urllib3 or the socket. Raise it `from error`.

    Errors of the framework are returned unchanged. The message names the place, the text of S3 or the
    library, and advice; never a credential or the query of an address.

    Raises:
        Exception: the error itself, when memory or threads ran out; it says nothing about the store.
    """
    if isinstance(error, SourceError):
        return error
    if getattr(error, "of_identity", False):
        asked = str(getattr(error, "kwargs", {}).get("endpoint_url") or "")
        failed = attrs.evolve(failed, of_identity=True, endpoint=redact(asked))
    response = getattr(error, "response", None)
    if isinstance(response, Mapping) and "Error" in response:
        return _from_response(error, response, failed)
    kind, name = kind_of_class(error, CLASSES), type(error).__name__
    if kind is FatalError and is_low_memory(error):
        raise error
    if (
        isinstance(error, (ValueError, LookupError, RecursionError))
        and kind is FatalError
        and failed.operation != MAKING
    ):
        kind = StoreUnavailableError  # botocore found a number, date or encoding that is none, or too many tags in tags
    # botocore can send no such login to a proxy
    if isinstance(getattr(error, "kwargs", {}).get("error"), UnicodeEncodeError) and failed.of_identity:
        kind, name = ConfigError, _NOT_ASCII
    if isinstance(error, RuntimeError) and "still expired" in str(error):  # of botocore, which asked for new keys
        kind, name = StoreUnavailableError, _EXPIRED
    if isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError)) and error.filename:
        name = _UNREADABLE  # of a web identity, a container or `credential_process`; it may come, so it is tried again
    advice = _ADVICE.get(name) or _KIND_ADVICE.get(kind, "see the cause")
    if failed.of_identity:
        advice = _identity_advice(kind, name, failed) or advice
    detail = _parse_failure(error) if name == "ConfigParseError" else innermost(error)
    elsewhere = name in {_EXPIRED, _UNREADABLE, "CredentialRetrievalError"}
    where = failed.asked if issubclass(kind, StoreUnavailableError) and not elsewhere else ""
    return make_error(kind, failed, f"{advice}{where} ({detail})")


def _identity_advice(kind: Kind, name: str, failed: Failed) -> str:
    """Return what to do when the service that gives out the credentials cannot be asked; empty when `_ADVICE` tells."""
    if name in {_EXPIRED, _NOT_ASCII, _UNREADABLE, "CredentialRetrievalError", "ProxyConnectionError"}:
        return ""
    if name == "SSLError" and kind is ConfigError:
        bundle = "s3.sts_endpoint and s3.ca_bundle" if failed.role_arn else "the variable AWS_CA_BUNDLE"
        return f"the certificate of {_IDENTITY} is not trusted, or it speaks no TLS; check {bundle}"
    return f"{_IDENTITY} did not answer as it should; {_check(failed)}" if kind is StoreUnavailableError else ""


def _check(failed: Failed) -> str:
    own = "s3.sts_endpoint, s3.region" if failed.role_arn else "s3.profile, the variables AWS_*"
    return f"check {own} and the network"


def _parse_failure(error: BaseException) -> str:
    """Describe why a shared AWS file cannot be read. Never by its lines, as the parser does: they may hold a secret."""
    details = getattr(error, "kwargs", {})
    cause = details.get("error")
    lines = [getattr(cause, "lineno", None), *(line for line, _ in getattr(cause, "errors", ()))]
    place = next((f", line {line}" for line in lines if line is not None), "")
    name = type(cause).__name__ if isinstance(cause, Exception) else ""
    return redact(f"{details.get('path', '')}{place}: {_UNPARSABLE.get(name, 'a value has the wrong form')}")


_UNPARSABLE = {
    "MissingSectionHeaderError": "no line above it names a profile",
    "ParsingError": "it is not NAME = VALUE",
    "DuplicateSectionError": "the section is repeated",
    "DuplicateOptionError": "the option is repeated",
    "UnicodeDecodeError": "not UTF-8",
}


def _from_response(error: BaseException, response: Mapping[str, Any], failed: Failed) -> SourceError:
    meta = response.get("ResponseMetadata") or {}
    status = int(meta.get("HTTPStatusCode") or 0)
    headers = meta.get("HTTPHeaders") or {}
    details = response.get("Error") or {}
    message = redact(str(details.get("Message") or ""))
    facts = {"region": details.get("Region") or headers.get("x-amz-bucket-region") or ""}
    operation = getattr(error, "operation_name", "") or failed.operation
    return from_code(
        str(details.get("Code") or ""),
        status,
        attrs.evolve(failed, operation=operation),
        message=message,
        region=str(facts["region"]),
        retry_after=headers.get("retry-after"),
        signed=not headers or any(name.startswith("x-amz") for name in headers),
    )


def from_code(
    code: str,
    status: int,
    failed: Failed,
    *,
    message: str = "",
    region: str = "",
    retry_after: str | None = None,
    signed: bool = True,
) -> SourceError:
    """Return the error for an answer of S3.

    Args:
        code: S3's code; empty, or the status, when the answer was not an S3 document.
        status: HTTP status.
        failed: the operation.
        message: S3's message, already without secrets.
        region: the bucket's region, if the answer contains it.
        retry_after: the header of that name.
        signed: whether the headers contain an S3 field: the only difference between an answer of S3 to a
            HEAD, which has no body, and an answer of a proxy.
    """
    answer_code = code
    if code == "SignatureDoesNotMatch" and message.startswith(_CLOCK_WORDS):
        code = "RequestTimeTooSkewed"
    foreign = _is_foreign(code, status, failed, signed=signed)
    kind = StoreUnavailableError if foreign else _code_kind(code, status, failed, message)
    advice = _ADVICE.get(code) or _ADVICE.get(str(status)) or _KIND_ADVICE.get(kind, "the store refuses the request")
    if foreign:
        advice = f"{NO_DOCUMENT}; when that stays so, check s3.endpoint and s3.proxy{failed.asked}"
    if code == "NoSuchKey" and failed.operation.startswith("List"):
        advice = f"s3.endpoint names the server alone, without the bucket; asked was {failed.endpoint}"
    advice = advice.format(action=_ACTIONS.get(failed.operation, "s3:ListBucket"))
    if kind is AccessDeniedError:
        advice = _denied_advice(advice, message, failed)
    if failed.operation in _OF_IDENTITY:
        kind, advice = _identity_refusal(kind, code, status, failed, foreign=foreign)
    elif code == "ExpiredToken" and failed.renew():
        kind, advice = (
            StoreUnavailableError,
            "the store says that the temporary keys have expired; new ones are asked for",
        )
    elif kind is ConfigError and code != "InvalidBucketName" and status != 407:  # noqa: PLR2004
        there = f"it lies in region {redact(region)}; set s3.region to that" if region else "it lies elsewhere"
        advice = f"{there}{'' if region else '; check s3.region and s3.endpoint'}"
    elif _about_customer_key(code, message):
        needless = "not applicable" in message
        kind, advice = (
            AccessDeniedError,
            "it is not encrypted with a customer's key; leave s3.sse_customer_key out"
            if needless
            else "it is encrypted with a customer's key; check s3.sse_customer_key",
        )
    words = (redact(answer_code), f"HTTP {status}" if status and code != str(status) else "", message)
    return make_refusal(kind, failed, advice, words, retry_after)


def _denied_advice(advice: str, message: str, failed: Failed) -> str:
    if failed.anonymous:
        advice = not_open("s3")
    if "kms:" in message:
        advice = "the key of KMS that it is encrypted with may not be used; grant kms:Decrypt"
    return (
        f"{advice}; or the bucket's owner is not s3.expected_bucket_owner, {failed.owner}" if failed.owner else advice
    )


def _identity_refusal(kind: Kind, code: str, status: int, failed: Failed, *, foreign: bool) -> tuple[Kind, str]:
    """Return kind and advice of a refusal by the service that gives out the credentials."""
    own = _ADVICE.get(code) or _ADVICE.get(str(status))
    if foreign:
        return kind, f"{NO_DOCUMENT.replace('the store', _IDENTITY)}; when that stays so, {_check(failed)}"
    if issubclass(kind, ThrottledError):
        return kind, f"{_IDENTITY} asks for fewer requests"
    if issubclass(kind, StoreUnavailableError):
        return kind, own or f"{_IDENTITY} did not answer as it should; {_check(failed)}"
    if status == 407 and own:  # noqa: PLR2004 - of the proxy
        return kind, own
    advice = _OF_IDENTITY[failed.operation]
    if failed.operation == "AssumeRole" and kind is CredentialsError:
        role = failed.role_arn or "of the profile"
        advice = f"the keys that the role {role} is assumed with are refused; correct or renew them"
    elif failed.operation == "AssumeRole" and failed.role_arn:
        advice = f"the role {failed.role_arn} cannot be assumed; check s3.role_arn and its trust policy"
    return CredentialsError, advice


def _is_foreign(code: str, status: int, failed: Failed, *, signed: bool) -> bool:
    """Return whether a refusal is not from S3 itself: S3 sends a code, except in answers to a HEAD."""
    if signed if failed.operation.startswith("Head") else code not in ("", str(status)):
        return False
    return needs_document(status)


def _code_kind(code: str, status: int, failed: Failed, message: str) -> Kind:
    if code in ("404", "NotFound", "") and status == 404:  # noqa: PLR2004  # HEAD: no body, so no code
        return ObjectNotFoundError if failed.key else BucketNotFoundError
    if code == "InvalidIdentityToken" and "verification key" in message:  # STS could not reach the identity provider
        return StoreUnavailableError
    return kind_of_status(status, CODES.get(code) or CODES.get(str(status)), failed)


def _about_customer_key(code: str, message: str) -> bool:
    return code in ("InvalidRequest", "InvalidArgument", "400") and "ncrypt" in message
