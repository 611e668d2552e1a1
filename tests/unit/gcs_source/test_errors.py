"""Every error of Google's libraries and of GCS becomes one of the framework's, with a place, advice, and no secret."""

import inspect
import json

import attrs
import google.auth.exceptions
import pytest
import requests.exceptions
import urllib3.exceptions

from framework.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ConfigError,
    CredentialsError,
    FatalError,
    ObjectChangedError,
    ObjectNotFoundError,
    RetriableError,
    SourceError,
    StoreUnavailableError,
    TaskClosedError,
    ThrottledError,
)
from gcs_source.errors_map import CLASSES, REASONS, WORDS, Failed, from_answer, translate

OBJECT = Failed(operation="objects.get", bucket="lake", key="a/b")
BUCKET = Failed(operation="objects.list", bucket="lake")


def answer(status, reason="", message="it says why", failed=OBJECT, **headers):
    body = {"error": {"code": status, "message": message, "errors": [{"reason": reason}] if reason else []}}
    return from_answer(status, json.dumps(body).encode(), headers, failed)


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (400, "invalid", FatalError),
        (401, "authError", CredentialsError),
        (401, "", CredentialsError),
        (403, "forbidden", AccessDeniedError),
        (403, "rateLimitExceeded", ThrottledError),
        (404, "notFound", ObjectNotFoundError),
        (408, "", StoreUnavailableError),
        (412, "conditionNotMet", ObjectChangedError),
        (416, "requestedRangeNotSatisfiable", ObjectChangedError),
        (429, "rateLimitExceeded", ThrottledError),
        (429, "", ThrottledError),
        (500, "backendError", StoreUnavailableError),
        (502, "", StoreUnavailableError),
        (503, "", ThrottledError),
        (504, "", StoreUnavailableError),
        (302, "", ConfigError),
        (304, "", StoreUnavailableError),
        (407, "", ConfigError),
        (418, "", FatalError),
    ],
)
def test_an_answer_becomes_what_is_to_be_done(status, reason, kind):
    error = answer(status, reason)
    assert type(error) is kind
    assert "gs://lake/a/b" in str(error)
    assert "it says why" in str(error)
    assert f"HTTP {status}" in str(error)


def test_a_failure_of_the_bucket_is_none_of_an_object():
    assert type(answer(404, failed=BUCKET)) is BucketNotFoundError
    assert type(answer(404, message="The specified bucket does not exist.")) is BucketNotFoundError
    assert type(answer(412, failed=BUCKET)) is FatalError
    assert "gcs.bucket" in str(answer(404, failed=BUCKET))


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_ends_in_a_sentence_with_a_place(reason):
    error = answer(400, reason)
    assert isinstance(error, SourceError)
    assert str(error).startswith("gs://lake/a/b: ")
    assert "{" not in str(error)


def test_what_is_missing_is_named():
    assert "grant storage.objects.get" in str(answer(403, "forbidden"))
    assert "grant storage.objects.list" in str(answer(403, "forbidden", failed=BUCKET))
    assert "gcs.user_project" in str(answer(400, "userProjectMissing"))
    assert "gcs.customer_key" in str(answer(400, "resourceIsEncryptedWithCustomerEncryptionKey"))
    nobody = Failed(operation="objects.list", bucket="lake", anonymous=True)
    error = answer(401, "required", failed=nobody)
    assert isinstance(error, AccessDeniedError)
    assert "gcs.anonymous" in str(error)


# As Google says them: a listing in JSON, with a reason that says less than the words; a read as plain text.
SENTENCES = {
    "Bucket is a requester pays bucket but no user project provided.": "set gcs.user_project",
    "Bucket is requester pays bucket but no user project provided.": "set gcs.user_project",
    "a@b.com does not have serviceusage.services.use access to the Google Cloud project.": "gcs.user_project",
    "The target object is encrypted by a customer-supplied encryption key.": "check gcs.customer_key",
    "The target object is not encrypted by a customer-supplied encryption key.": "leave gcs.customer_key out",
    "The provided encryption key is incorrect.": "another customer's key; check gcs.customer_key",
    "The billing account for the owning project is disabled in state closed": "has no billing",
    "The project to be billed is associated with an absent billing account.": "has no billing",
    "Request is prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: x": "organisation",
    "Permission denied on Cloud KMS key. Please ensure that your Cloud Storage service account may use it": "KMS",
}


@pytest.mark.parametrize(("said", "advice"), SENTENCES.items())
def test_what_google_says_in_words_only_is_understood(said, advice):
    status = 403 if "illing" in said or "Permission" in said or "serviceusage" in said or "polic" in said else 400
    for error in (answer(status, "required", said), from_answer(status, said.encode(), {}, OBJECT)):
        assert isinstance(error, AccessDeniedError)
        assert advice in str(error)
        assert said[:60] in str(error)
    nobody = Failed(operation="objects.list", bucket="lake", anonymous=True)
    assert advice in str(answer(status, "required", said, failed=nobody))


def test_no_sentence_is_known_that_google_does_not_say():
    assert all(any(words in said.lower() for said in SENTENCES) or words == "vpc service controls" for words in WORDS)


def test_an_address_that_is_none_names_its_options():
    for cls in (requests.exceptions.InvalidSchema, requests.exceptions.InvalidURL):
        error = translate(cls("No connection adapters were found for 'localhost:4443'"), BUCKET)
        assert isinstance(error, ConfigError)
        assert "gcs.endpoint (or STORAGE_EMULATOR_HOST) and gcs.proxy" in str(error)


def test_a_proxy_that_is_down_is_waited_for_as_on_s3():
    error = translate(urllib3.exceptions.ProxyError("Unable to connect to proxy", OSError("refused")), BUCKET)
    assert isinstance(error, RetriableError)
    assert "check gcs.proxy" in str(error)


def test_a_bucket_that_is_missing_elsewhere_than_at_google_names_the_place():
    emulator = Failed(operation="objects.list", bucket="lake", endpoint="http://localhost:4443")
    assert "asked was http://localhost:4443" in str(answer(404, failed=emulator))


def test_how_long_to_wait_is_taken_over():
    assert answer(429, **{"retry-after": "7"}).retry_after_seconds == 7.0
    assert answer(503).retry_after_seconds is None


FOREIGN = [b"", b"404 page not found", b"<html>no</html>", b'{"error": "no"}', b"\xff\xfe"]


@pytest.mark.parametrize("body", FOREIGN)
@pytest.mark.parametrize("status", [203, 400, 403, 404, 405, 421, 425, 431, 499, 500, 502, 503])
@pytest.mark.parametrize("failed", [OBJECT, BUCKET])
def test_what_is_no_document_of_the_store_is_tried_again(body, status, failed):
    error = from_answer(status, body, {}, failed)
    assert type(error) is StoreUnavailableError
    assert "no document of the store" in str(error)
    assert "<html>" not in str(error)


@pytest.mark.parametrize("body", FOREIGN)
def test_a_read_is_refused_in_plain_text(body):
    read = attrs.evolve(OBJECT, media=True)
    assert type(from_answer(404, body, {}, read)) is ObjectNotFoundError  # which the description confirms, or not
    google = {"x-guploader-uploadid": "x"}
    assert type(from_answer(403, body, google, read)) is AccessDeniedError
    assert type(from_answer(403, body, {}, read)) is StoreUnavailableError


def classes(module):
    return [
        one
        for _, one in inspect.getmembers(module, inspect.isclass)
        if issubclass(one, Exception) and not issubclass(one, Warning)
    ]


@pytest.mark.parametrize(
    "cls", [*classes(google.auth.exceptions), *classes(requests.exceptions), *classes(urllib3.exceptions)]
)
def test_every_class_of_the_libraries_is_known(cls):
    known = [base.__name__ for base in cls.__mro__ if base.__name__ in CLASSES]
    assert known[0] not in {"Exception", "RequestException"} or cls.__name__ in {
        "BaseHTTPError", "JSONDecodeError", "CompatJSONDecodeError", "RequestException", "StreamConsumedError",
        "TooManyRedirects", "InvalidJSONError", "URLRequired", "MessageDefect",
    }, cls  # fmt: skip


def test_a_token_service_that_is_down_is_waited_for():
    again = google.auth.exceptions.RefreshError("no", retryable=True)
    assert isinstance(translate(again, BUCKET), RetriableError)
    assert isinstance(translate(google.auth.exceptions.RefreshError("no"), BUCKET), CredentialsError)
    error = translate(google.auth.exceptions.TransportError("no"), attrs.evolve(BUCKET, endpoint="http://h"))
    assert isinstance(error, RetriableError)
    assert "http://h" not in str(error)  # another service was asked


GOOGLE = google.auth.exceptions
DENIED = '{"error": {"code": 403, "message": "no", "status": "DENIED"}, "id_token": "geheim"}'


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (GOOGLE.RefreshError("Executable exited with non-zero return code 1. Error: b'geheim'"), "return code 1)"),
        (GOOGLE.RefreshError("invalid_grant: Bad JWT", {"error": "invalid_grant", "id": "geheim"}), "t: Bad JWT)"),
        (GOOGLE.RefreshError("Unable to acquire", DENIED), "(RefreshError: Unable to acquire, DENIED, no)"),
        (GOOGLE.OAuthError("Error code {'code': 403, 'x': 'geheim'}", DENIED), "(OAuthError: Error code, DENIED, no)"),
        (GOOGLE.OAuthError(DENIED, DENIED), "(OAuthError: DENIED, no)"),
        (GOOGLE.OAuthError('{"id_token": "geheim"}', '{"id_token": "geheim"}'), "(OAuthError)"),
        (GOOGLE.OAuthError('{"id_token": "geh', '{"id_token": "geh'), "(OAuthError)"),
        (GOOGLE.OAuthError("<p>geheim</p>", "<p>geheim</p>"), "(OAuthError)"),
        (GOOGLE.OAuthError("not found", "not found"), "(OAuthError: not found)"),
        (GOOGLE.TransportError("Failed. Status: 404 Response:\nb'geheim'", object()), "Failed. Status: 404)"),
        (GOOGLE.InvalidValue("['geheim'] could not be converted to bytes"), "a value could not be converted to bytes)"),
    ],
)
def test_what_a_token_service_or_program_answered_is_not_repeated(error, words):
    text = str(translate(error, attrs.evolve(BUCKET, service="the token service")))
    assert text.endswith(words)
    assert "geh" not in text


def test_neither_users_nor_queries_of_addresses_are_shown():
    inner = requests.exceptions.ConnectionError("at https://u:geheim@h/x?access_token=geheim failed")
    text = str(translate(inner, Failed(operation="objects.list", bucket="lake", endpoint="http://h")))
    assert "geheim" not in text
    assert "asked was http://h" in text
    assert "geheim" not in str(answer(403, message="no https://h/?sig=geheim"))


def test_errors_of_the_framework_stay_what_they_are():
    error = TaskClosedError("closed")
    assert translate(error, OBJECT) is error


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_low_memory_says_nothing_about_the_store(error):
    with pytest.raises(type(error)) as caught:
        translate(error, OBJECT)
    assert caught.value is error


def test_an_error_that_is_its_own_cause_is_translated():
    first, second = google.auth.exceptions.TransportError("away"), OSError("no route")
    first.__cause__, second.__cause__ = second, first
    assert "TransportError" in str(translate(first, OBJECT))
