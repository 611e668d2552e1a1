"""A bucket of Google Cloud Storage as an `ObjectStore`.

Credentials, tokens, proxy and certificates are google-cloud-storage's and google-auth's (`gcs_source.google_session`). Requests go
over `framework.storage.http.loop` to the JSON API (https://cloud.google.com/storage/docs/json_api/v1). The library's objects
and its own retries are left out: `framework.storage.retry` makes those, and a page of a listing needs five fields of forty.

Google's libraries are imported when a store is made, not before: that takes half a second.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode, urljoin, urlsplit

import attrs
from typing_extensions import override

from framework.config.bucket import customer_key_bytes
from framework.errors import (
    ConfigError,
    ObjectChangedError,
    ObjectError,
    ObjectNotFoundError,
    SourceError,
    StoreUnavailableError,
)
from framework.model.objects import NativeObject
from framework.model.secret_masking import environment_login_secrets, login_secrets
from framework.storage.checksum import Checksum, checksum_of
from framework.storage.http.answer import MAX_DOCUMENT_BYTES, HttpAnswer
from framework.storage.http.body import (
    announces,
    announces_length,
    expected_bytes,
    other_bytes,
)
from framework.storage.http.errors import HttpError
from framework.storage.http.http_store import OK, HttpStore, ObjectGet
from framework.storage.http.loop import HttpLoop
from framework.store import ListPage
from framework.transformer import ReadStream
from gcs_source.config import MAX_PAGE_SIZE, GcsConfig
from gcs_source.errors_map import Failed, from_answer, translate
from gcs_source.google_session import Tokens, http_options, is_google, make_client, make_session, warn_in_the_clear
from gcs_source.pages import (
    FIELDS,
    ITEM_FIELDS,
    check_window,
    offsets,
    other_generation,
    parse_metadata,
    parse_object,
    parse_page,
    resume,
)

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

log = logging.getLogger(__name__)

MAX_REDIRECTS = 4
REDIRECTS = frozenset((301, 302, 303, 307, 308))
_REFUSED = 401

RENEWALS = 2
"""How often a token that is refused is renewed within one request: as often as google-auth does."""

_AUTHORIZATION = "authorization: "
_CRC32C = re.compile(r"\bcrc32c=([A-Za-z0-9+/=]+)")


class GcsStore(HttpStore):
    """One bucket. Threads share one store: its connections are pooled, and at most `max_connections` are kept.

    Every method makes one attempt, save that a token that has expired is renewed and the request made again.

    A version is a generation, and reads name it: another content under the same key is never read in its place.

    Args:
        config: checked beforehand with `gcs_source.config.check`.
        credentials: of one's own making, in place of the identity that `config` names.

    Raises:
        CredentialsError: there are none, or their file cannot be used.
        ConfigError: the configuration cannot be used.
    """

    scheme = "gs"
    section = "gcs"

    def __init__(self, config: GcsConfig, credentials: Credentials | None = None) -> None:
        super().__init__(config.bucket)
        self.config = config
        self.address = config.endpoint
        logins = login_secrets(config.proxy) + environment_login_secrets()
        self._secrets = ((config.customer_key,) if config.customer_key else ()) + logins
        try:
            self._client = make_client(config, credentials)
            self._session = make_session(self._client, config)
            endpoint = self._client.api_endpoint.rstrip("/")  # of the configuration, or STORAGE_EMULATOR_HOST
            timeout = (config.connect_timeout, config.read_timeout)
            options, self._common = http_options(self._session, endpoint, config)
            self._tokens = Tokens(self._session, timeout, self._failed("buckets.get"))
            self._http = HttpLoop(options)
        except Exception as error:
            raise translate(error, self._failed("buckets.get")) from error
        self.address = "" if is_google(endpoint) else endpoint
        self._folds_dots = endpoint.startswith("http:") and bool(options.proxy)
        warn_in_the_clear(endpoint, self._session.credentials)
        bucket = quote(self.bucket, safe="")
        self._objects = f"{endpoint}/storage/v1/b/{bucket}/o"
        self._media = f"{endpoint}/download/storage/v1/b/{bucket}/o"
        # Google promises the order. What else speaks GCS may list as it likes, and the keys behind a cut are what shows it.
        self.order_is_documented = self.bounds_pages = self.ends_are_reliable = is_google(endpoint)
        if is_google(endpoint):  # elsewhere once an answer did; some emulators never do
            self._named_kinds.add("")
        self._payer = {"userProject": config.user_project} if config.user_project else {}
        self._key_headers = _customer_key_headers(customer_key_bytes(config.customer_key, "gcs.customer_key"))

    @override
    def list_page(
        self,
        *,
        prefix: str = "",
        after: str = "",
        continuation: str | None = None,
        page_size: int = 1000,
        until: str | None = None,
    ) -> ListPage:
        after, token = resume(continuation, after)
        asked = {"prefix": prefix, "fields": FIELDS, **offsets(after, until), **self._payer}
        if token:
            asked["pageToken"] = token
        # `startOffset` is inclusive: one more, so that a page that shows that key itself brings something all the same
        asked["maxResults"] = str(min(page_size + bool(after), MAX_PAGE_SIZE))
        body, headers = self._get(self._objects, asked, self._failed("objects.list"))
        page = parse_page(body, headers, self.bucket, after=after, most=page_size)
        if self.bounds_pages:  # Google's; what else speaks GCS may ignore them, and another order show it
            check_window(page, self.bucket, asked, after)
        return page

    def _check_key(self, key: str) -> None:
        """Raise if a request for this key would become one for the list of objects, or the bucket, on its way."""
        if self._folds_dots and key in {".", ".."}:
            raise ObjectError(
                "its key is a part of a path that an HTTP proxy takes out; read it without gcs.proxy, or over https",
                location=f"gs://{self.bucket}/{key}",
            )

    @override
    def stat(self, key: str) -> NativeObject:
        self._check_key(key)
        asked = {"fields": ITEM_FIELDS, **self._payer}
        try:
            body, _ = self._get(f"{self._objects}/{quote(key, safe='')}", asked, self._failed("objects.get", key))
        except ObjectNotFoundError:
            self._check_bucket()
            raise
        self._bucket_seen = True
        return parse_object(body, self.bucket, key)

    @override
    def metadata(self, native: NativeObject) -> Mapping[str, str]:
        self._check_key(native.key)
        asked = {"fields": "contentType,metadata,generation", "generation": native.version, **self._payer}
        failed = self._failed("objects.get", native.key)
        try:
            body, _ = self._get(f"{self._objects}/{quote(native.key, safe='')}", asked, failed)
        except ObjectNotFoundError as error:
            mistake = "does not describe it; when that stays so, what answers is not one store: check gcs.endpoint"
            raise self._replaced(native, mistake) from error
        return parse_metadata(body, native)

    @override
    def _request(self, get: ObjectGet, more: Mapping[str, str]) -> tuple[str, list[str]]:
        native = get.native
        self._check_key(native.key)
        url = f"{self._media_address(native)}?{urlencode(self._media_query(native))}"
        return url, self._lines(url, {**self._media_headers(get), **more})

    def _media_address(self, native: NativeObject) -> str:
        return f"{self._media}/{quote(native.key, safe='')}"

    def _media_query(self, native: NativeObject) -> dict[str, str]:
        return {"alt": "media", "generation": native.version, **self._payer}

    def _media_headers(self, get: ObjectGet) -> dict[str, str]:
        # gzip is accepted, so that an object stored with that encoding comes as it is stored, in its listed size.
        headers = {"Accept-Encoding": "gzip", **self._key_headers}
        if get.wanted is not None:
            headers["Range"] = get.wanted
        return headers

    def _media_failed(self, native: NativeObject) -> Failed:
        return attrs.evolve(self._failed("objects.get", native.key), media=True)

    def _lines(self, url: str, headers: Mapping[str, str]) -> list[str]:
        """Return the lines of a request's headers, with a valid token."""
        tokens: dict[str, str] = {}
        self._tokens.add(url, tokens)
        return [*self._common, *(f"{name}: {value}" for part in (headers, tokens) for name, value in part.items())]

    @override
    def refusal(self, get: ObjectGet, answer: HttpAnswer) -> SourceError | None:
        """Return the error of a refusal; None when another request must decide."""
        if answer.status in REDIRECTS or answer.status == _REFUSED:
            return None
        error = _error_of(answer, self._media_failed(get.native))
        return None if isinstance(error, (ObjectNotFoundError, ObjectChangedError)) else error

    @override
    def is_listed(self, native: NativeObject, headers: Mapping[str, str], data: bytes) -> bool:
        if headers.get("x-goog-generation") != native.version or not announces(headers, native.size):
            return False
        self._named_kinds.add("")
        stored = headers.get("x-goog-stored-content-encoding") or "identity"
        if stored != "identity" or "x-guploader-response-body-transformations" in headers:
            return False
        checksum = self._checksum(headers)
        return checksum is None or checksum.fits(data)

    @override
    def stream_of(self, get: ObjectGet, answer: HttpAnswer) -> ReadStream:
        """Return the stream of an answer; follow redirects and renew a refused token."""
        native, failed = get.native, self._media_failed(get.native)
        if answer.status not in OK:
            address, asked = self._media_address(native), self._media_query(native)
            answer = self._send(address, asked, failed, headers=self._media_headers(get), first=answer)
        try:
            if answer.status not in OK:
                self._refused(answer, failed, native)
            expected = self._check(answer, native, get.start, get.stop)
        except BaseException:
            answer.close()
            raise
        checksum = self._checksum(answer.headers) if get.wanted is None else None
        return self._stream(get, answer, expected, checksum, ends_there=not announces_length(answer.headers))

    def _check(self, answer: Any, native: NativeObject, start: int, stop: int) -> int:
        headers = answer.headers
        generation = headers.get("x-goog-generation")
        self._check_named(native, answer, named=bool(generation))
        if generation and generation != native.version:
            raise other_generation(native, generation)
        stored, sent = headers.get("x-goog-stored-content-encoding"), headers.get("content-encoding") or "identity"
        asked = stop - start if answer.status == 206 else native.size  # noqa: PLR2004
        as_asked = announces(headers, asked) if stored else announces_length(headers)
        if sent != "identity" and stored in {None, "identity"} and not as_asked:
            raise other_bytes(native, f"the answer has the encoding {sent}")
        if (stored or "identity") not in {"identity", sent} or "gunzipped" in (
            headers.get("x-guploader-response-body-transformations") or ""
        ):
            raise ObjectError(
                "the store unpacks it on the way, so that its bytes are not those that were listed. Google does that to objects "
                "whose metadata say that they are packed twice (Content-Encoding: gzip with a Content-Type of packed data): "
                "take one of the two off. A proxy that takes out Accept-Encoding does it to all: check gcs.proxy",
                location=native.location,
            )
        return expected_bytes(native, start, stop, status=answer.status, headers=headers)

    def _checksum(self, headers: Mapping[str, str]) -> Checksum | None:
        """Return the checksum of the whole object: every object has a CRC32C, composite objects no MD5."""
        if not self.config.verify_checksums:
            return None
        found = _CRC32C.search(headers.get("x-goog-hash") or "")
        return checksum_of("crc32c", found[1]) if found is not None else None

    def _refused(self, answer: Any, failed: Failed, native: NativeObject) -> None:
        """Raise the error of a refused read. A missing generation was overwritten or deleted: the key tells which.

        One that is still there was refused by mistake: taken for overwritten it would be listed and refused for ever.
        """
        error = _error_of(answer, failed)
        if not isinstance(error, (ObjectNotFoundError, ObjectChangedError)):
            raise error
        raise self._replaced(
            native,
            f"does not give it (HTTP {answer.status}); when that stays so, what answers does not serve /download/, or no ranges: "
            "check gcs.endpoint and gcs.proxy",
        ) from error

    def _replaced(self, native: NativeObject, mistake: str) -> SourceError:
        """Return the error of a listed generation that is not there, by the description of what has its key now.

        Args:
            native: the object as listed.
            mistake: what the store does, if it shows this generation.

        Raises:
            ObjectNotFoundError: nothing has that key: in a document of the store's own.
        """
        now = self.stat(native.key)
        if (now.version, now.size) != (native.version, native.size):
            return other_generation(native, now.version)
        return StoreUnavailableError(f"{native.location}: the store shows generation {now.version}, and {mistake}")

    def _get(self, url: str, asked: Mapping[str, str], failed: Failed) -> tuple[bytes, Mapping[str, str]]:
        """Return body and head of a complete answer."""
        answer = self._send(url, asked, failed, headers={"Accept-Encoding": "gzip"})
        try:
            if answer.status != 200:  # noqa: PLR2004
                raise _error_of(answer, failed)
            try:
                return _unpacked(answer, answer.read_all()), answer.headers
            except Exception as error:
                raise translate(error, failed) from error
        finally:
            answer.close()

    def _send(
        self,
        url: str,
        asked: Mapping[str, str],
        failed: Failed,
        *,
        headers: Mapping[str, str],
        first: HttpAnswer | None = None,
    ) -> HttpAnswer:
        """Return an answer that has begun; follow redirects and renew a refused token.

        Args:
            url: the address, without a query.
            asked: the query.
            failed: for messages.
            headers: those of this request.
            first: the answer to this request, when it was sent before.
        """
        renewals, redirects = 0 if self.config.anonymous else RENEWALS, MAX_REDIRECTS
        answer = first
        while redirects:
            self._check_open()
            try:
                if answer is None:
                    whole = f"{url}?{urlencode(asked)}"
                    answer = self._http.get(whole, self._lines(whole, headers))
                status = answer.status
                if status not in REDIRECTS and (status != _REFUSED or not renewals):
                    return answer
                answer.wait_refusal()
                answer.close()  # it may go on without end
                if status == _REFUSED:
                    renewals -= 1
                    self._tokens.renew(_token_of(answer))
            except Exception as error:
                self._check_open()
                raise translate(error, failed) from error
            if status in REDIRECTS:
                redirects -= 1
                url, asked = _redirected(url, answer.headers.get("location") or "", failed)
            answer = None
        raise StoreUnavailableError(
            f"{failed.location}: the store redirects in a circle; check gcs.endpoint and gcs.proxy"
        )

    @override
    def close(self) -> None:
        super().close()
        self._session.close()
        self._client.close()

    @override
    def identity(self) -> str:
        credentials = self._session.credentials
        if credentials.valid and not credentials.token:  # anonymous, or before an emulator
            return "none: requests have no identity"
        self._tokens.add(self._objects, {})
        who = self.config.impersonate or getattr(credentials, "service_account_email", "")
        where = "the file of gcs.credentials_file" if self.config.credentials_file else "Google's application default"
        return f"{who}, by {where}" if who else where

    def _failed(self, operation: str, key: str = "") -> Failed:
        config = self.config
        return Failed(
            operation=operation,
            bucket=self.bucket,
            key=key,
            endpoint=self.address,
            secrets=self._secrets,
            anonymous=config.anonymous,
        )

    @override
    def _translate(self, error: BaseException, native: NativeObject) -> SourceError:
        return translate(error, self._failed("objects.get", native.key))


def _redirected(url: str, location: str, failed: Failed) -> tuple[str, Mapping[str, str]]:
    """Return the address and query of a redirect within the same store.

    Raises:
        ConfigError: that is another place, or none: neither a token nor a key of encrypted objects is sent there.
    """
    here = urlsplit(url)
    try:
        there = urlsplit(urljoin(url, location))
        known = bool(location) and there.port != 0  # raises if it is no number
    except ValueError:
        known = False
    if not known:
        raise ConfigError(
            f"{failed.location}: the store redirects the request to no address; check gcs.endpoint and gcs.proxy{failed.asked}"
        )
    if (there.scheme, there.netloc) != (here.scheme, here.netloc):
        raise ConfigError(
            f"{failed.location}: the store sends the request on to {there.scheme}://{there.hostname or '?'}, where nothing is "
            f"sent: it would get the token and the key; check gcs.endpoint"
        )
    return there._replace(query="", fragment="").geturl(), dict(parse_qsl(there.query, keep_blank_values=True))


def _error_of(answer: HttpAnswer, failed: Failed) -> SourceError:
    """Return the error of a refusal, by its status and the start of its body."""
    try:
        body = _unpacked(answer, answer.wait_refusal())
    except Exception as error:  # noqa: BLE001 - whatever the connection did to it
        return translate(error, failed)
    return from_answer(answer.status, body, answer.headers, failed)


def _unpacked(answer: HttpAnswer, body: bytes) -> bytes:
    """A document's bytes; what was cut at its limit is unpacked as far as it goes.

    Raises:
        HttpError: it is damaged, or unfolds to more than `MAX_DOCUMENT_BYTES`.
    """
    if answer.headers.get("content-encoding") != "gzip":
        return body
    unpacker = zlib.decompressobj(wbits=31)
    try:
        unpacked = unpacker.decompress(body, MAX_DOCUMENT_BYTES)
    except zlib.error as error:
        raise HttpError(f"the answer cannot be unpacked: {error}") from error
    if unpacker.unconsumed_tail:
        raise HttpError(f"the answer unpacks to a document of more than {MAX_DOCUMENT_BYTES:,} bytes")
    return unpacked


def _token_of(answer: HttpAnswer) -> str:
    """The header `authorization` that was sent; empty when none was."""
    lines = (line for line in answer.request_headers if line.lower().startswith(_AUTHORIZATION))
    return next(lines, "")[len(_AUTHORIZATION) :]


def _customer_key_headers(key: bytes) -> dict[str, str]:
    """Return the headers of https://cloud.google.com/storage/docs/encryption/customer-supplied-keys."""
    if not key:
        return {}
    return {
        "X-Goog-Encryption-Algorithm": "AES256",
        "X-Goog-Encryption-Key": base64.b64encode(key).decode(),
        "X-Goog-Encryption-Key-Sha256": base64.b64encode(hashlib.sha256(key).digest()).decode(),
    }
