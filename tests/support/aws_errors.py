"""The error codes of S3 and STS as AWS documents them, with their HTTP status and what to do; and botocore's exceptions.

Written by hand from the service's own list, not from the table that the source maps by: the two are compared.
"""

import inspect
import string

import botocore.exceptions
import botocore.session

from framework.errors import FatalError, RetriableError, SkippableError, SourceError
from framework.testing.rig import VendorError

SIGNATURE = "3fb1a9SIGNATURE"
PASSWORD = "hunter2PASSWORD"
SAID = f"Said of https://someone:{PASSWORD}@store.example/a?X-Amz-Signature={SIGNATURE}&X-Amz-Date=1 to you"

AGAIN = "InternalError 500, OperationAborted 409, RequestTimeout 400, ServiceUnavailable 503, SlowDown 503, Busy 503, \
InternalFailure 500, ThrottlingException 400, RequestLimitExceeded 503, BandwidthLimitExceeded 503, TemporaryRedirect 307, \
IDPCommunicationError 400, RequestTimeTooSkewed 403, RequestExpired 400"

LEAVE_OUT = "NoSuchKey 404, NoSuchVersion 404, PreconditionFailed 412, InvalidRange 416, InvalidObjectState 403"

STOP = "AccessDenied 403, AccountProblem 403, AllAccessDisabled 403, AuthorizationHeaderMalformed 400, BadDigest 400, \
BucketAlreadyExists 409, BucketAlreadyOwnedByYou 409, BucketNotEmpty 409, ClientTokenConflict 409, CredentialsNotSupported 400, \
CrossLocationLoggingProhibited 403, EntityTooLarge 400, EntityTooSmall 400, ExpiredToken 400, \
IllegalLocationConstraintException 400, IllegalVersioningConfigurationException 400, IncorrectNumberOfFilesInPostRequest 400, \
InlineDataTooLarge 400, InvalidAccessKeyId 403, InvalidAccessPoint 400, InvalidAccessPointAliasError 400, InvalidArgument 400, \
InvalidBucketAclWithObjectOwnership 400, InvalidBucketName 400, InvalidBucketOwnerAWSAccountID 400, InvalidBucketState 409, \
InvalidDigest 400, InvalidEncryptionAlgorithmError 400, InvalidHostHeader 400, InvalidHttpMethod 400, \
InvalidLocationConstraint 400, InvalidPart 400, InvalidPartOrder 400, InvalidPayer 403, InvalidPolicyDocument 400, \
InvalidRegion 403, InvalidRequest 400, InvalidSecurity 403, InvalidSignature 400, InvalidSOAPRequest 400, \
InvalidStorageClass 400, InvalidTag 400, InvalidTargetBucketForLogging 400, InvalidToken 400, InvalidURI 400, \
KeyTooLongError 400, KMS.DisabledException 400, KMS.InvalidKeyUsageException 400, KMS.KMSInvalidStateException 400, \
KMS.NotFoundException 400, MalformedACLError 400, MalformedPOSTRequest 400, MalformedXML 400, MaxMessageLengthExceeded 400, \
MaxPostPreDataLengthExceededError 400, MetadataTooLarge 400, MethodNotAllowed 405, MissingAttachment 400, \
MissingAuthenticationToken 403, MissingContentLength 411, MissingRequestBodyError 400, MissingSecurityElement 400, \
MissingSecurityHeader 400, NoLoggingStatusForKey 400, NoSuchAccessPoint 404, NoSuchBucket 404, NoSuchBucketPolicy 404, \
NoSuchCORSConfiguration 404, NoSuchLifecycleConfiguration 404, NoSuchMultiRegionAccessPoint 404, \
NoSuchObjectLockConfiguration 404, NoSuchTagSet 404, NoSuchUpload 404, NoSuchWebsiteConfiguration 404, NotDeviceOwnerError 400, \
NotImplemented 501, NotModified 400, NotSignedUp 403, ObjectLockConfigurationNotFoundError 404, \
OwnershipControlsNotFoundError 404, PermanentRedirect 301, RequestHeaderSectionTooLarge 400, \
RequestIsNotMultiPartContent 400, RequestTorrentOfBucketError 400, \
ResponseInterrupted 400, RestoreAlreadyInProgress 409, ServerSideEncryptionConfigurationNotFoundError 400, \
SignatureDoesNotMatch 403, TokenCodeInvalidError 400, TokenRefreshRequired 400, TooManyAccessPoints 400, TooManyBuckets 400, \
TooManyMultiRegionAccessPointregionsError 400, UnauthorizedAccessError 403, UnexpectedContent 400, \
UnexpectedIPError 403, UnsupportedArgument 400, UnsupportedSignature 400, UnresolvableGrantByEmailAddress 400, \
UserKeyMustBeSpecified 400, InvalidSecurityToken 403, InvalidIdentityToken 400, IDPRejectedClaim 403, \
ExpiredTokenException 400, MalformedPolicyDocument 400, PackedPolicyTooLarge 400, RegionDisabledException 403"


def answer(code, status):
    """What boto3 raises for an answer of the service."""
    return botocore.exceptions.ClientError(
        {"Error": {"Code": code, "Message": SAID}, "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {}}},
        "GetObject",
    )


def codes():
    """Every documented code; then those of botocore's own model that are not among them, and codes that nobody knows."""
    seen = set()
    for kind, table in ((RetriableError, AGAIN), (SkippableError, LEAVE_OUT), (FatalError, STOP)):
        for line in table.split(","):
            code, status = line.split()
            seen.add(code)
            yield VendorError(name=code, error=answer(code, int(status)), kind=kind)
    for service in ("s3", "sts"):
        for shape in botocore.session.get_session().get_service_model(service).error_shapes:
            said = shape.metadata.get("error", {})
            code, status = said.get("code", shape.name), said.get("httpStatusCode", 400)
            if code not in seen:
                yield VendorError(name=f"{service} {code}", error=answer(code, status))
    for status, kind in ((418, FatalError), (500, RetriableError), (599, RetriableError), (429, RetriableError)):
        yield VendorError(name=f"Unheard {status}", error=answer("Unheard", status), kind=kind)
    for status in (403, 404, 500, 503):  # botocore puts the status where the answer names no code
        yield VendorError(name=f"{status} of a proxy", error=answer(str(status), status), kind=RetriableError)


def exceptions():
    """Every exception of botocore, with every field of its message filled in."""
    for name, cls in inspect.getmembers(botocore.exceptions, inspect.isclass):
        if not issubclass(cls, botocore.exceptions.BotoCoreError):
            continue
        fields = [field for _, field, _, _ in string.Formatter().parse(getattr(cls, "fmt", "")) if field]
        needs = {"last_response": {}} if cls is botocore.exceptions.WaiterError else {}
        words = dict.fromkeys((field.split(".")[0].split("[")[0] for field in fields), SAID)
        yield VendorError(name=name, error=cls(**words, **needs))


def all_errors():
    yield from codes()
    yield from exceptions()
    for error in (ConnectionResetError(104, SAID), TimeoutError(SAID), OSError(113, SAID)):
        yield VendorError(name=type(error).__name__, error=error, kind=RetriableError)
    yield VendorError(name="an error of Python", error=ZeroDivisionError(SAID), kind=SourceError)
