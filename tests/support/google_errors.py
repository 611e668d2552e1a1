"""The errors of GCS as Google documents them, by status and reason, each with what to do; and the exceptions of its libraries.

Written by hand from the service's own list, not from the table that the source maps by: the two are compared.
"""

import json

import google.auth.exceptions
import requests
import urllib3

from framework.errors import FatalError, RetriableError, SkippableError, SourceError
from framework.testing.rig import VendorError
from gcs_source.errors_map import from_answer, translate

SIGNATURE = "3fb1a9SIGNATURE"
PASSWORD = "hunter2PASSWORD"
ADDRESS = f"https://someone:{PASSWORD}@store.example/a?X-Goog-Signature={SIGNATURE}&X-Goog-Date=1"
SAID = f"Said of {ADDRESS} to you"

AGAIN = (
    "429 rateLimitExceeded, 429 userRateLimitExceeded, 403 rateLimitExceeded, 403 userRateLimitExceeded, 403 quotaExceeded, \
500 backendError, 500 internalError, 503 backendError, 502 backendError, 504 gatewayTimeout, 408 uploadBrokenConnection, \
503 serviceUnavailable, 429 usageLimits"
)

LEAVE_OUT = "404 notFound, 412 conditionNotMet, 416 requestedRangeNotSatisfiable"

STOP = (
    "400 badRequest, 400 badRequestException, 400 customerEncryptionAlgorithmIsInvalid, 400 customerEncryptionKeyFormatIsInvalid, \
400 customerEncryptionKeyIsIncorrect, 400 customerEncryptionKeySha256IsInvalid, 400 invalid, 400 invalidAltValue, \
400 invalidArgument, 400 invalidParameter, 400 notDownload, 400 notUpload, 400 parseError, 400 required, \
400 resourceIsEncryptedWithCustomerEncryptionKey, 400 resourceNotEncryptedWithCustomerEncryptionKey, 400 userProjectInconsistent, \
400 userProjectInvalid, 400 userProjectMissing, 401 authError, 401 required, 401 AuthenticationRequiredRequesterPays, \
403 accountDisabled, 403 countryBlocked, 403 forbidden, 403 insufficientPermissions, 403 objectUnderActiveHold, \
403 retentionPolicyNotMet, 403 sslRequired, 403 UserProjectAccessDenied, 403 userProjectAccessDenied, 405 methodNotAllowed, \
409 conflict, 410 gone, 411 lengthRequired, 418 teapot"
)


class AnswerError(Exception):
    """An answer of the service that is no success."""

    def __init__(self, status, body):
        super().__init__(SAID)
        self.status = status
        self.body = body


def answer(status, reason):
    body = {"error": {"code": status, "message": SAID, "errors": [{"reason": reason, "message": SAID}]}}
    return AnswerError(status, json.dumps(body).encode())


def answers():
    for kind, table in ((RetriableError, AGAIN), (SkippableError, LEAVE_OUT), (FatalError, STOP)):
        for line in table.split(","):
            status, reason = line.split()
            yield VendorError(name=f"{status} {reason}", error=answer(int(status), reason), kind=kind)
    for status, kind in (
        (500, RetriableError),
        (599, RetriableError),
        (429, RetriableError),
        (400, RetriableError),
        (403, RetriableError),
        (404, RetriableError),
    ):
        yield VendorError(name=f"{status} as text", error=AnswerError(status, SAID.encode()), kind=kind)
        yield VendorError(name=f"{status} of a proxy", error=AnswerError(status, f"<html>{SAID}".encode()), kind=kind)


def exceptions():
    """Every exception of the libraries that the source stands on."""
    for library in (requests.exceptions, google.auth.exceptions, urllib3.exceptions):
        for name, cls in vars(library).items():
            if isinstance(cls, type) and issubclass(cls, Exception) and not issubclass(cls, Warning):
                yield VendorError(name=f"{library.__name__}.{name}", error=made(cls))
    for error in (ConnectionResetError(104, SAID), TimeoutError(SAID), OSError(113, SAID)):
        yield VendorError(name=type(error).__name__, error=error, kind=RetriableError)
    yield VendorError(name="an error of Python", error=ZeroDivisionError(SAID), kind=SourceError)


def made(cls):
    """An instance whose words hold secrets, however many arguments it takes."""
    response = urllib3.HTTPResponse(body=b"")
    for arguments in ((SAID,), (None, SAID), (None, ADDRESS, SAID), (1, 2), (response, b"5"), (SAID, SAID, 1)):
        try:
            one = cls(*arguments)
            str(one)  # some make their words of what they were given
        except (TypeError, AttributeError):
            continue
        return one
    raise AssertionError(f"no {cls.__name__} could be made")


def all_errors():
    yield from answers()
    yield from exceptions()


def translated(error, failed):
    """What the source raises."""
    if isinstance(error, AnswerError):
        return from_answer(error.status, error.body, {}, failed)
    return translate(error, failed)
