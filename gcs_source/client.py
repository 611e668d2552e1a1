"""The one door to google-cloud-storage: a bucket as an `ObjectStore`.

Credentials, tokens and their renewal, emulator and endpoint are google-cloud-storage's and google-auth's, and so are proxy and
certificates; requests go over `framework.storage.http.loop` to the JSON API
(https://cloud.google.com/storage/docs/json_api/v1). The library's objects and its own retries are left out:
`framework.storage.retry` makes those, and a page of a listing needs five fields of forty.

Google's libraries are imported when a store is made, not before: that takes half a second. The file is longer than others for
the same reason as S3's: who may talk to the vendor can be checked, and every place that uses something private of it is in sight.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib
import json
import logging
import os
import re
import threading
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode, urljoin, urlsplit

import attrs
from typing_extensions import override

from framework.config.files import read_file
from framework.errors import (
    AccessDeniedError,
    ConfigError,
    CredentialsError,
    ObjectChangedError,
    ObjectError,
    ObjectNotFoundError,
    SourceError,
    StoreUnavailableError,
)
from framework.model.objects import NativeObject
from framework.storage.checksum import Checksum, checksum_of
from framework.storage.error_messages import innermost, is_loopback
from framework.storage.http.answer import MAX_DOCUMENT_BYTES, HttpAnswer
from framework.storage.http.body import (
    LENGTH_HEADERS,
    announces,
    announces_length,
    check_named,
    expected_bytes,
    other_bytes,
)
from framework.storage.http.errors import HttpError
from framework.storage.http.get import OK, ObjectGet
from framework.storage.http.head import pattern_of
from framework.storage.http.loop import HttpLoop
from framework.storage.http.store import HttpStore
from framework.storage.http.transfer import HttpOptions
from framework.store import ListPage
from framework.transformer import ReadStream
from gcs_source.config import MAX_PAGE_SIZE, GcsConfig, customer_key
from gcs_source.errors_map import Failed, from_answer, translate
from gcs_source.pages import FIELDS, ITEM_FIELDS, offsets, parse_metadata, parse_object, parse_page, resume

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

log = logging.getLogger(__name__)

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"
_CLOUD = "https://www.googleapis.com/auth/cloud-platform"
MAX_REDIRECTS = 4
REDIRECTS = frozenset((301, 302, 303, 307, 308))
_REFUSED = 401

RENEWALS = 2
"""How often a token that is refused is renewed within one request: as often as google-auth does."""

_OF_ONE_REQUEST = frozenset(("accept-encoding", "authorization", "connection", "range"))
_AUTHORIZATION = "authorization: "
_CRC32C = re.compile(r"\bcrc32c=([A-Za-z0-9+/=]+)")

CREDENTIALS = "GOOGLE_APPLICATION_CREDENTIALS"
_MAX_CREDENTIALS_BYTES = 1 << 20


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
    judged_headers = pattern_of(
        "x-goog-generation",
        "x-goog-stored-content-encoding",
        "x-guploader-response-body-transformations",
        "x-goog-hash",
        *LENGTH_HEADERS,
    )

    def __init__(self, config: GcsConfig, credentials: Credentials | None = None) -> None:
        super().__init__(config.bucket)
        self.config = config
        self.address = config.endpoint
        self._bucket_seen = False
        try:
            self._client = _client(config, credentials)
            self._session = _session(self._client, config)
            endpoint = self._client.api_endpoint.rstrip("/")  # of the configuration, or STORAGE_EMULATOR_HOST
            self._tokens = _Tokens(self._session, (config.connect_timeout, config.read_timeout))
            options, self._common = _way_to(self._session, endpoint, config)
            self._http = HttpLoop(options)
        except Exception as error:
            raise translate(error, self._failed("buckets.get")) from error
        self.address = "" if _is_google(endpoint) else endpoint
        self._folds_dots = endpoint.startswith("http:") and bool(options.proxy)
        _warn_in_the_clear(endpoint, self._session.credentials)
        bucket = quote(self.bucket, safe="")
        self._objects = f"{endpoint}/storage/v1/b/{bucket}/o"
        self._media = f"{endpoint}/download/storage/v1/b/{bucket}/o"
        # Google promises the order. What else speaks GCS may list as it likes, and the keys behind a cut are what shows it.
        self.order_is_documented = self.bounds_pages = self.ends_are_reliable = _is_google(endpoint)
        self._payer = {"userProject": config.user_project} if config.user_project else {}
        self._key_headers = _customer_key_headers(customer_key(config))

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
        return parse_page(body, headers, self.bucket, after=after, most=page_size)

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
            now = self.stat(native.key)  # raises when there is none
            if now.version == native.version:
                raise StoreUnavailableError(
                    f"{native.location}: the store shows generation {now.version}, and does not describe it; when that stays so, "
                    f"what answers is not one store: check gcs.endpoint"
                ) from error
            raise ObjectChangedError(
                f"it was overwritten after it was listed (generation {now.version}, listed {native.version})",
                location=native.location,
            ) from None
        return parse_metadata(body, native)

    def _check_bucket(self) -> None:
        """Raise if the bucket is missing, which only Google's 404 tells. Asks once."""
        if self._bucket_seen:
            return
        with contextlib.suppress(AccessDeniedError):  # who may not ask about it knows at least that it is there
            self.list_page(page_size=1)
        self._bucket_seen = True

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
        check_named(native, named=bool(generation), status=answer.status, headers=headers, section="gcs")
        if generation and generation != native.version:
            raise ObjectChangedError(
                f"it was overwritten after it was listed (generation {generation}, listed {native.version})",
                location=native.location,
            )
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
        # by its description, which is refused in a document of the store's own
        now = self.stat(native.key)  # raises when there is none
        if (now.version, now.size) == (native.version, native.size):
            raise StoreUnavailableError(
                f"{native.location}: the store shows generation {now.version}, and does not give it (HTTP {answer.status}); "
                f"when that stays so, what answers does not serve /download/, or no ranges: check gcs.endpoint and gcs.proxy"
            ) from error
        raise ObjectChangedError(
            f"it was overwritten after it was listed (generation {now.version}, listed {native.version})",
            location=native.location,
        ) from error

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
        renewals, redirects = RENEWALS, MAX_REDIRECTS
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
                if status == _REFUSED:
                    renewals -= 1
                    self._tokens.renew(_token_of(answer))
            except Exception as error:
                self._check_open()
                raise translate(error, failed) from error
            if status in REDIRECTS:
                redirects -= 1
                url, asked = _redirected(url, answer.headers.get("location") or "", failed)
            answer.close()  # a refusal may go on without end
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
        if not credentials.valid:
            try:
                credentials.refresh(self._session._auth_request)  # noqa: SLF001 - as the session does itself
            except Exception as error:
                raise translate(error, self._failed("buckets.get")) from error
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
            secrets=(config.customer_key,) if config.customer_key else (),
            anonymous=config.anonymous,
        )

    @override
    def _translate(self, error: BaseException, native: NativeObject) -> SourceError:
        return translate(error, self._failed("objects.get", native.key))


def _redirected(url: str, location: str, failed: Failed) -> tuple[str, Mapping[str, str]]:
    """Return the address and query of a redirect within the same store.

    Raises:
        ConfigError: that is another place: neither a token nor a key of encrypted objects is sent there.
    """
    here = urlsplit(url)
    try:
        there = urlsplit(urljoin(url, location))
    except ValueError:  # no address at all
        there, location = here, ""
    if not location or (there.scheme, there.netloc) != (here.scheme, here.netloc):
        raise ConfigError(
            f"{failed.location}: the store sends the request on to {there.scheme}://{there.hostname or '?'}, where nothing is "
            f"sent: it would get the token and the key; check gcs.endpoint"
        )
    return there._replace(query="", fragment="").geturl(), dict(parse_qsl(there.query, keep_blank_values=True))


def _warn_in_the_clear(endpoint: str, credentials: Any) -> None:
    parts = urlsplit(endpoint)
    anonymous = type(credentials).__name__ == "AnonymousCredentials"
    if parts.scheme == "http" and not anonymous and not is_loopback(parts.hostname or ""):
        log.warning("%s: the identity's token is sent unencrypted with every request; use https", endpoint)


def _is_google(endpoint: str) -> bool:
    return (urlsplit(endpoint).hostname or "").endswith(".googleapis.com")


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


def _client(config: GcsConfig, credentials: Credentials | None) -> Any:
    from gcs_source.google_packages import AnonymousCredentials, Client  # noqa: PLC0415

    if credentials is None:
        if config.anonymous:
            credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
        elif config.credentials_file or config.impersonate or _application_default():
            credentials = _credentials(config)
    options = {"api_endpoint": config.endpoint.rstrip("/")} if config.endpoint else None
    return Client(project=config.project or None, credentials=credentials, client_options=options)


def _credentials(config: GcsConfig) -> Credentials:
    scope = _CLOUD if config.impersonate else _SCOPE
    if config.credentials_file:
        found = _from_file(config.credentials_file, scope, "gcs.credentials_file")
    elif file := _application_default():
        found = _from_file(file, scope, CREDENTIALS)
    else:
        found, _ = importlib.import_module("google.auth").default(scopes=[scope])
    if config.impersonate:
        impersonated = importlib.import_module("google.auth.impersonated_credentials")
        found = impersonated.Credentials(
            source_credentials=found, target_principal=config.impersonate, target_scopes=[_SCOPE]
        )
    made: Credentials = found
    return made


def _application_default() -> str:
    """The file that the environment names for it; empty when it names none, and before an emulator.

    It is read here, because google-auth's own errors name no file; and of workload identity it would ask Google which project
    that is, over the network and as long as it takes, when a bucket needs none.
    """
    return "" if os.environ.get("STORAGE_EMULATOR_HOST") else os.environ.get(CREDENTIALS, "")


def _from_file(file: str, scope: str, option: str) -> Any:
    """Return the file's content: a service account key, a user's login, or a workload identity configuration."""
    try:
        info = json.loads(read_file(Path(file), _MAX_CREDENTIALS_BYTES, may_wait=False))  # google.auth may read again
        kind = str(info["type"])
    except OSError as error:
        raise CredentialsError(f"{option}: {file} cannot be read ({error.strerror})") from error
    except (ValueError, TypeError, KeyError) as error:
        raise CredentialsError(f"{option}: {file} is no file of credentials of Google's; make it again") from error
    if option != CREDENTIALS and kind not in {*_MAKERS, "external_account"}:
        raise CredentialsError(f"{option}: {file} holds credentials of an unknown type, {kind!r}")
    try:
        if option == CREDENTIALS and kind != "external_account":
            return importlib.import_module("google.auth").default(scopes=[scope])[0]
        return _of_kind(kind, info, scope)
    except Exception as error:  # google.auth's own say no more than that something is missing, if that
        raise CredentialsError(f"{option}: {file} cannot be used: {innermost(error)}") from error


def _of_kind(kind: str, info: Mapping[str, Any], scope: str) -> Any:
    if kind == "external_account":
        source = info.get("credential_source") or {}
        aws, program = str(source.get("environment_id", "")).startswith("aws"), "executable" in source
        kind = "aws" if aws else "pluggable" if program else "identity_pool"
    module, maker = _MAKERS[kind]
    return getattr(importlib.import_module(module).Credentials, maker)(info, scopes=[scope])


_MAKERS = {
    "service_account": ("google.oauth2.service_account", "from_service_account_info"),
    "authorized_user": ("google.oauth2.credentials", "from_authorized_user_info"),
    "impersonated_service_account": ("google.auth.impersonated_credentials", "from_impersonated_service_account_info"),
    "external_account_authorized_user": ("google.auth.external_account_authorized_user", "from_info"),
    "identity_pool": ("google.auth.identity_pool", "from_info"),
    "aws": ("google.auth.aws", "from_info"),
    "pluggable": ("google.auth.pluggable", "from_info"),
}


def _session(client: Any, config: GcsConfig) -> Any:
    """The library's authorised session, with the proxy and the certificates of the configuration: it gets tokens."""
    session = client._http  # noqa: SLF001 - the library's own modules use it the same way
    # With each request, because those of the environment come before a session's; and tokens have a session of their own.
    for part in (session, session._auth_request.session):  # noqa: SLF001
        part.request = partial(part.request, **_way(config))
    return session


def _way(config: GcsConfig) -> dict[str, Any]:
    way: dict[str, Any] = {}
    if config.proxy:
        way["proxies"] = {"http": config.proxy, "https": config.proxy}
    if config.ca_bundle:
        way["verify"] = config.ca_bundle
    return way


class _Tokens:
    """Those of a session, asked for as it does itself, with the limits of any request.

    One thread renews for all: a metadata service refuses who asks too often. The others wait as long as one request may take,
    then they ask for themselves.
    """

    def __init__(self, session: Any, timeout: tuple[float, float]) -> None:
        self._credentials = session.credentials
        self._request = partial(session._auth_request, timeout=timeout)  # noqa: SLF001
        self._patience = sum(timeout)
        self._renewing = threading.Lock()

    def add(self, url: str, headers: dict[str, str]) -> None:
        with contextlib.nullcontext() if self._credentials.valid else self._alone():
            self._credentials.before_request(self._request, "GET", url, headers)

    def renew(self, refused: str) -> None:
        with self._alone():
            now: dict[str, str] = {}
            self._credentials.apply(now)
            if now.get("authorization", refused) == refused:
                self._credentials.refresh(self._request)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        held = self._renewing.acquire(timeout=self._patience)
        try:
            yield
        finally:
            if held:
                self._renewing.release()


def _way_to(session: Any, endpoint: str, config: GcsConfig) -> tuple[HttpOptions, list[str]]:
    """Return how the session connects to the endpoint, and the headers of its every request. No I/O.

    Raises:
        ConfigError: the certificates cannot be found.
    """
    from requests import Request  # noqa: PLC0415
    from requests.utils import select_proxy  # noqa: PLC0415

    way = _way(config)
    request = session.prepare_request(Request("GET", f"{endpoint}/"))
    session.get_adapter(request.url)  # refuses an address without a scheme
    found = session.merge_environment_settings(
        request.url, way.get("proxies", {}), stream=True, verify=way.get("verify"), cert=None
    )
    proxy = select_proxy(request.url, found["proxies"]) or ""
    ca_file = found["verify"] if isinstance(found["verify"], str) else importlib.import_module("requests.certs").where()
    if not Path(ca_file).exists():
        raise ConfigError(f"gcs.ca_bundle, or REQUESTS_CA_BUNDLE of the environment: {ca_file} does not exist")
    options = HttpOptions(
        connect_seconds=config.connect_timeout,
        read_seconds=config.read_timeout,
        max_connections=config.max_connections,
        proxy=proxy if "://" in proxy or not proxy else f"http://{proxy}",
        ca_file=ca_file,
    )
    return options, [
        f"{name}: {value}" for name, value in request.headers.items() if name.lower() not in _OF_ONE_REQUEST
    ]
