"""An S3 bucket as an `ObjectStore`.

Credentials, roles, addressing and signing are boto3's and botocore's (`s3_source.boto_session`). All requests go over
`framework.storage.http.loop`. boto3 makes and signs them; for the bytes of objects it finds out address, headers and
keys, and `s3_source.signing` signs.

boto3 is imported when a store is made, not before: that takes half a second.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote_plus

from typing_extensions import override

from framework.config.bucket import customer_key_bytes
from framework.errors import (
    AccessDeniedError,
    ListingError,
    ObjectChangedError,
    ObjectError,
    ObjectNotFoundError,
    SourceError,
    StoreUnavailableError,
)
from framework.model.objects import NativeObject, is_older_form
from framework.model.secret_masking import environment_login_secrets, login_secrets
from framework.storage.error_messages import redact
from framework.storage.http.answer import HttpAnswer
from framework.storage.http.body import (
    announces,
    announces_length,
    expected_bytes,
)
from framework.storage.http.http_store import OK, HttpStore, ObjectGet
from framework.storage.http.loop import HttpLoop
from framework.store import ListPage
from framework.transformer import ReadStream
from s3_source.boto_session import (
    IDENTITIES,
    find_credentials,
    http_options,
    is_aws,
    make_client,
    make_session,
    proxies_of,
    renew,
    warn_in_the_clear,
)
from s3_source.conditions_without_etag import VersionConditions
from s3_source.config import S3Config
from s3_source.errors_map import MAKING, Failed, from_code, translate
from s3_source.object_version import (
    bare_etag,
    check_version,
    checksum_in,
    etag_of,
    listed_etag,
    may_be_unpacked,
    version_of,
)
from s3_source.pages import REPLACEMENT, checked_size, parse_page, text_of
from s3_source.repeated_fields import Repeats
from s3_source.signing import Credentials, Signer, error_fields, template_of
from s3_source.transport import ACCEPT_ENCODING, BODY, CHECKSUM_MODE, Transport

if TYPE_CHECKING:
    from boto3.session import Session

SHORTEST_SECRET = 8
"""Shorter ones could be part of any word."""

log = logging.getLogger(__name__)

_ELSEWHERE = frozenset(("AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"))
_WITH_ETAG = "with an ETag"
"""Objects that are listed so; others are named by their time."""
_STALE = frozenset(("ExpiredToken", "RequestExpired", "RequestTimeTooSkewed"))


class S3Store(HttpStore):
    """One bucket. Threads share one store: its connections are pooled, and at most `max_connections` are kept.

    Every method makes one attempt, save that boto3 follows a redirect to the bucket's region.

    Args:
        config: checked beforehand with `s3_source.config.check`.
        session: a boto3 session with credentials of one's own making, in place of the identity that `config` names.

    Raises:
        ConfigError: boto3 cannot use the configuration: no such profile, an address that is none.
    """

    scheme = section = "s3"

    def __init__(self, config: S3Config, session: Session | None = None) -> None:
        super().__init__(config.bucket)
        self.config = config
        # Directory buckets (S3 Express) list in no order.
        self.ordered = not config.bucket.endswith(("--x-s3", "--xa-s3"))
        secrets = (config.secret_access_key, config.session_token, config.sse_customer_key, config.access_key_id)
        self._secrets = tuple(secret for secret in secrets if len(secret) >= SHORTEST_SECRET)
        self._secrets += login_secrets(config.proxy) + environment_login_secrets()
        self._signer: Signer | None = None
        self._keys: tuple[float, Credentials | None] = (0.0, None)
        self._renewal = (-math.inf, False)
        self._version_conditions = VersionConditions()
        self._repeats = Repeats(config.bucket)
        self._accepts_gzip: bool | None = None
        self._warned = False
        self._options: dict[str, object] = {"RequestPayer": "requester"} if config.requester_pays else {}
        if config.expected_bucket_owner:
            self._options["ExpectedBucketOwner"] = config.expected_bucket_owner
        key = customer_key_bytes(config.sse_customer_key, "s3.sse_customer_key")
        self._get_options = dict(self._options)
        if key:
            self._get_options |= {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": key}
        try:
            self._session = session if session is not None else make_session(config)
            if not config.anonymous:
                find_credentials(self._session)
            self._client = make_client(self._session, config)
            endpoint: str = self._client.meta.endpoint_url
            self._http = HttpLoop(http_options(self._session, config, endpoint))
        except Exception as error:
            raise translate(error, self._failed(MAKING)) from error
        # Other stores list milliseconds, which their answer to a HEAD rounds away: only a listing shows their versions.
        self.lists_milliseconds = not is_aws(endpoint)
        self.address = "" if is_aws(endpoint) and not config.endpoint else endpoint  # the environment may name one, too
        self._folds_dots = endpoint.startswith("http:") and bool(proxies_of(config, endpoint))
        # Only AWS promises the order. Some of the others (SeaweedFS) list folder by folder, and that may show late.
        self.order_is_documented = self.ordered and is_aws(endpoint)
        self.ends_are_reliable = is_aws(endpoint)
        warn_in_the_clear(config, endpoint)
        # Elsewhere than at AWS there is no region to find: botocore would ask the same address again, without an end.
        self._transport = Transport(self._client, self._http, follows_region=not self.address)

    @override
    def list_page(
        self, *, prefix: str = "", after: str = "", continuation: str | None = None, page_size: int = 1000
    ) -> ListPage:
        self._check_open()
        options = dict(self._options)
        if continuation is not None:
            if REPLACEMENT in continuation:
                self._check_continuation(continuation)
            options["ContinuationToken"] = continuation
        elif after and after >= prefix:  # else it excludes nothing, and SeaweedFS shows nothing or too little behind it
            options["StartAfter"] = after
        try:
            answer = self._client.list_objects_v2(
                Bucket=self.bucket, Prefix=prefix, MaxKeys=page_size, EncodingType="url", **options
            )
        except Exception as error:
            raise translate(error, self._failed("ListObjectsV2")) from error
        meta = answer["ResponseMetadata"]
        started = str(options.get("StartAfter", ""))
        check = partial(self._repeats.check, prefix=prefix, after=started, continuation=continuation)
        page = parse_page(answer.get(BODY, b""), meta["HTTPHeaders"], self.bucket, check=check)
        if self.address and not self._warned:  # AWS lists them all
            self._warn_without_etag(page.objects)
        return page

    def _check_continuation(self, key: str) -> None:
        """Raise if a continuation that is a key (versitygw's) was changed on its way: keys up to the shown one would be missed."""
        try:
            self._head(key)
        except ObjectNotFoundError as error:
            raise ListingError(
                f"s3://{self.bucket}: a page of the listing ends with {key!r}, and there is no such key: {REPLACEMENT!r} stands "
                "for characters that the store does not show, and what follows cannot be asked for. Rename that object"
            ) from error

    def _warn_without_etag(self, objects: Sequence[NativeObject]) -> None:
        bare = next((native for native in objects if native.version[0] == "@"), None)
        if bare is not None:
            self._warned = True
            log.warning(
                "%s: listed without an ETag. What overwrites it with as many bytes within the second that the listing shows is "
                'not noticed; [discovery] min_age = "2s" prevents that',
                bare.location,
            )

    @override
    def stat(self, key: str) -> NativeObject:
        """Return the object, by a HEAD; for a store that lists milliseconds by a page of a listing."""
        self._check_open()
        return super().stat(key) if self.lists_milliseconds else self._head(key)

    def _check_key(self, key: str) -> None:
        """Raise if a request for this key would become one for another key, or bucket, on its way."""
        if self._folds_dots and _has_dots(key):
            raise ObjectError(
                "its key has a part that is '.' or '..', which an HTTP proxy takes out: another object would be asked "
                "for. Read it without s3.proxy, or over https",
                location=f"s3://{self.bucket}/{key}",
            )

    def _head(self, key: str) -> NativeObject:
        self._check_key(key)
        try:
            answer: dict[str, Any] = self._client.head_object(Bucket=self.bucket, Key=key, **self._get_options)
        except Exception as error:
            made = translate(error, self._failed("HeadObject", key))
            if isinstance(made, ObjectNotFoundError):
                self._check_bucket()
            elif isinstance(made, AccessDeniedError):
                made = AccessDeniedError(f"{made}; without s3:ListBucket an object that is missing looks the same")
            raise made from error
        self._bucket_seen = True
        with self._complete_answer(key):
            size, modified_ms = checked_size(answer["ContentLength"]), int(answer["LastModified"].timestamp()) * 1000
        return NativeObject(
            scheme="s3",
            bucket=self.bucket,
            key=key,
            size=size,
            version=version_of(answer.get("ETag", ""), modified_ms, size),
            modified_ms=modified_ms,
            storage_class=answer.get("StorageClass", "STANDARD"),  # a HEAD leaves out what a listing names
        )

    @override
    def metadata(self, native: NativeObject) -> Mapping[str, str]:
        """One HEAD of the listed ETag."""
        etag = etag_of(native)
        pinned = {"IfMatch": f'"{etag}"'} if etag else {}
        answer = self._ask_about(native, "HeadObject", "head_object", **pinned, **self._get_options)
        answered = bare_etag(answer.get("ETag", ""))
        if etag and not answered:
            raise StoreUnavailableError(
                f"{native.location}: the answer to a HEAD names no version of it; when that stays so, check s3.endpoint and "
                f"s3.proxy"
            )
        if etag and answered != etag:  # a store that does not look at the condition
            raise ObjectChangedError("it was overwritten after it was listed", location=native.location)
        own = {f"meta:{name.lower()}": text_of(value) for name, value in answer.get("Metadata", {}).items()}
        return {"content-type": answer.get("ContentType", ""), **own}

    @override
    def tags(self, native: NativeObject) -> Mapping[str, str]:
        """One GetObjectTagging, which has no condition on the ETag."""
        answer = self._ask_about(native, "GetObjectTagging", "get_object_tagging", **self._options)
        with self._complete_answer(native.key):
            return {tag["Key"]: tag["Value"] for tag in answer["TagSet"]}

    def _ask_about(self, native: NativeObject, operation: str, method: str, **options: object) -> dict[str, Any]:
        """Return the answer to a request about a listed object, which a method of boto3's client makes."""
        self._check_open()
        self._check_key(native.key)
        try:
            answer: dict[str, Any] = getattr(self._client, method)(Bucket=self.bucket, Key=native.key, **options)
        except Exception as error:
            made = translate(error, self._failed(operation, native.key))
            raise (self._missing(native, made) if isinstance(made, ObjectNotFoundError) else made) from error
        return answer

    @contextlib.contextmanager
    def _complete_answer(self, key: str) -> Iterator[None]:
        try:
            yield
        except (KeyError, ValueError, OverflowError) as error:
            raise StoreUnavailableError(
                f"s3://{self.bucket}/{key}: the store's answer lacks a part, or has an invalid one ({error}); when that stays "
                f"so, check s3.endpoint and s3.proxy"
            ) from error

    @override
    def listed_version(self, *, etag: str, modified_ms: int) -> str | None:
        return version_of(etag, modified_ms, 0) if bare_etag(etag) else None

    @override
    def _request(self, get: ObjectGet, more: Mapping[str, str]) -> tuple[str, list[str]]:
        """Return the address of a GET and the lines of its signed headers."""
        native, wanted = get.native, get.wanted
        if self._folds_dots:
            self._check_key(native.key)
        etag = etag_of(native)
        get.pinned = {} if etag else self._version_conditions.of(native)
        headers = {"If-Match": f'"{etag}"', **more} if etag else {**get.pinned, **more}
        if wanted is not None:
            headers["Range"] = wanted
        elif self.config.verify_checksums:
            headers[CHECKSUM_MODE] = "ENABLED"
        if self._accepts_gzip:
            headers.setdefault(ACCEPT_ENCODING, "gzip")
        get.accepts_gzip, get.repeats = headers.get(ACCEPT_ENCODING) == "gzip", ACCEPT_ENCODING in more
        signer = self._signer
        if signer is None:
            url, made = self._as_boto3(native.key, headers)
            template = template_of(url, made, native.key)
            if template is None:  # S3 Express and multi-region access points sign in other ways: boto3 signs each
                return url, [*(f"{name}: {value}" for name, value in made.items()), "Accept:"]
            signer = self._signer = Signer(template)
        url = signer.template.url(native.key)
        return url, signer.lines(url, headers, self._credentials() if signer.template.service else None)

    def _credentials(self) -> Credentials:
        """Return the signing keys, refreshed every second: a role's keys are renewed."""
        now = time.monotonic()
        at, known = self._keys
        if known is None or now - at >= 1.0:
            found = self._session.get_credentials()
            if found is None:
                from botocore.exceptions import NoCredentialsError  # noqa: PLC0415

                raise NoCredentialsError
            frozen = found.get_frozen_credentials()
            known = Credentials(
                access_key=frozen.access_key or "", secret_key=frozen.secret_key or "", token=frozen.token or ""
            )
            self._keys = now, known
        return known

    def _renew(self) -> bool:
        """Have new keys got for the next request; return whether there can be any.

        Once in a second: of many requests that are under way, each is refused.
        """
        now = time.monotonic()
        at, renewable = self._renewal
        if now - at >= 1.0:
            renewable = renew(self._session)
            self._renewal = now, renewable
            self._keys = (0.0, None)
        return renewable

    def _as_boto3(self, key: str, headers: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        return self._transport.get_as_made(headers, Bucket=self.bucket, Key=key, **self._get_options)

    @override
    def refusal(self, get: ObjectGet, answer: HttpAnswer) -> SourceError | None:
        """Return the error of a refusal; None when a listing, or boto3's search for the bucket, must decide."""
        error = self._refused(get, answer)
        undecided = isinstance(error, ObjectNotFoundError) or self._is_stale(get, answer) or self._is_elsewhere(answer)
        return None if undecided else error

    def _is_stale(self, get: ObjectGet, answer: HttpAnswer) -> bool:
        """Return whether a request made ahead may have waited until its signature or its keys expired."""
        return get.ahead and error_fields(answer.wait_refusal()).get("Code") in _STALE

    def _is_elsewhere(self, answer: HttpAnswer) -> bool:
        """Return whether the bucket may lie in another region: elsewhere than at AWS there is none to find."""
        if self.address:
            return False
        return 300 <= answer.status < 400 or error_fields(answer.wait_refusal()).get("Code") in _ELSEWHERE  # noqa: PLR2004

    def _refused(self, get: ObjectGet, answer: HttpAnswer) -> SourceError:
        fields = error_fields(answer.wait_refusal())
        error = from_code(
            fields.get("Code", ""),
            answer.status,
            self._failed("GetObject", get.native.key),
            message=redact(fields.get("Message", "")),
            region=fields.get("Region") or answer.headers.get("x-amz-bucket-region") or "",
            retry_after=answer.headers.get("retry-after"),
        )
        if get.pinned and isinstance(error, ObjectChangedError):
            error.in_place = True
            self._version_conditions.drop(get.native, get.pinned)
        return error

    @override
    def is_listed(self, native: NativeObject, headers: Mapping[str, str], data: bytes) -> bool:
        etag = listed_etag(native)
        if not etag or headers.get("etag") != f'"{etag}"' or not announces(headers, native.size):
            return False
        self._named_kinds.add(_WITH_ETAG)
        checksum = checksum_in(headers) if self.config.verify_checksums else None
        return checksum is None or checksum.fits(data)

    @override
    def stream_of(self, get: ObjectGet, answer: HttpAnswer) -> ReadStream:
        """Return the stream of an answer that is sure to have the stored bytes.

        Cloudflare R2 and Google's S3 interface unpack objects with `Content-Encoding: gzip` for who does not accept gzip,
        and then announce no length. So an answer without a length is asked for again the other way, once, unless it was
        found out that this store announces none; whichever of the two announces one is how the next requests are made.
        Accepting it is not the first choice: what compresses on the way, such as a network of caches, does so for who
        accepts it.
        """
        native, status = get.native, answer.status
        if status not in OK:
            if self._is_stale(get, answer):
                answer.close()
                return self._send_get(native, get.start, get.stop).result()
            error = self._refused(get, answer)
            if isinstance(error, ObjectNotFoundError):
                raise self._missing(native, error) from error
            self._find_bucket(native, answer, error)
            answer.close()
            return self._send_get(native, get.start, get.stop).result()
        headers, etag = answer.headers, listed_etag(native)
        named = bool(headers.get("etag") or (not etag and headers.get("last-modified")))
        if not named:
            self._check_named(native, answer, named=False)
        announced = announces_length(headers)
        if not announced and not get.repeats:
            other = self._in_other_form(get, headers)
            if other is not None:
                answer.close()
                return other
        check_version(native, etag, headers)
        self._check_named(native, answer, named=named, kind=_WITH_ETAG if etag else "without an ETag")
        expected = expected_bytes(native, get.start, get.stop, status=status, headers=headers)
        if not etag:
            self._version_conditions.check(native, headers)
            self._version_conditions.remember(native, headers)
        checksum = checksum_in(headers) if get.wanted is None and self.config.verify_checksums else None
        return self._stream(get, answer, expected, checksum, ends_there=not announced)

    def _in_other_form(self, get: ObjectGet, headers: Mapping[str, str]) -> ReadStream | None:
        """Ask again, accepting gzip or not as the first request did not; return None when its answer is the one to take.

        Each request decides for itself: those made ahead were sent before the first answer came, and a store may send
        one object without a length and unpack another.
        """
        if get.accepts_gzip == self._accepts_gzip and not may_be_unpacked(headers):
            return None
        encoding = "identity" if get.accepts_gzip else "gzip"
        other = self._send_get(get.native, get.start, get.stop, {ACCEPT_ENCODING: encoding})
        announced = other.announces_length()
        if announced is None:  # a refusal, which says nothing about it
            return other.result()
        if announced:
            self._accepts_gzip = other.accepts_gzip
            return other.result()
        other.close()
        if self._accepts_gzip is None:
            self._accepts_gzip = False
        return None

    def _find_bucket(self, native: NativeObject, answer: HttpAnswer, refused: SourceError) -> None:
        """Have boto3 follow a redirect to the bucket's region, and learn how it asks there, unless another read has.

        Raises:
            SourceError: it finds no other place: the refusal itself.
        """
        if self._signer is None:
            raise refused
        if not self._signer.template.has_made(answer.url, answer.request_headers):
            return  # of several that were requested ahead, the first one has found it
        with contextlib.suppress(Exception):  # whatever the answer there: where the bucket is, boto3 knows then
            self._client.head_object(Bucket=self.bucket, Key=native.key, **self._get_options)
        url, made = self._as_boto3(native.key, {})
        found = template_of(url, made, native.key)
        if found is None or found.has_made(answer.url, answer.request_headers):
            raise refused
        self._signer = Signer(found)

    def _missing(self, native: NativeObject, error: ObjectNotFoundError) -> SourceError:
        """Return the error of "no such key" for a listed object: deleted only if a listing confirms it.

        A server whose node or index is behind says it for a moment of objects that are there.
        """
        try:
            now = self._look(native.key)
        except ObjectNotFoundError:
            if REPLACEMENT in native.key:
                return ObjectError(
                    f"the listing shows it and there is no such key: its {REPLACEMENT!r} stands for characters that the store "
                    f"does not show in a listing. Rename the object, or filter it with [discovery] exclude",
                    location=native.location,
                )
            if self._shows_for_another(native.key):
                return ObjectError(
                    "the listing shows it and there is no such key: it writes keys with '+', '%' or a space in another form than "
                    "its EncodingType says. Rename the object, and check s3.endpoint and s3.proxy",
                    location=native.location,
                )
            return error
        same = now.version == native.version or is_older_form(native.version, now.version)
        if same and now.size == native.size:
            return StoreUnavailableError(
                f"{native.location}: the store lists it and says that there is no such key; when that stays so, the store has "
                f"lost its content, or what answers is not one store: check s3.endpoint"
            )
        return ObjectChangedError("it was overwritten after it was listed", location=native.location)

    def _shows_for_another(self, key: str) -> bool:
        """Return whether the listing shows this key for an object with another one, by encoding it wrongly."""
        page_size = 1 if self.ordered else 1000
        with contextlib.suppress(AccessDeniedError):
            for other in {unquote_plus(key), key.replace(" ", "+"), quote(key)} - {key}:
                page = self.list_page(prefix=other, page_size=page_size)
                if any(native.key == key for native in page.objects):
                    return True
        return False

    def _look(self, key: str) -> NativeObject:
        if self.ordered:
            try:
                return super().stat(key)
            except AccessDeniedError:  # who supplies a list of keys need not be allowed to list
                pass
        return self._head(key)

    @override
    def close(self) -> None:
        super().close()
        self._client.close()

    @override
    def identity(self) -> str:
        if self.config.anonymous:
            return "none: requests are unsigned (s3.anonymous)"
        from botocore.exceptions import NoCredentialsError  # noqa: PLC0415

        try:
            credentials = self._session.get_credentials()
            if credentials is not None:
                credentials.get_frozen_credentials()
        except Exception as error:
            raise translate(error, self._failed("GetCredentials")) from error
        if credentials is None:
            raise translate(NoCredentialsError(), self._failed("GetCredentials"))
        return IDENTITIES.get(credentials.method, f"found by the AWS libraries ({credentials.method})")

    def _failed(self, operation: str, key: str = "") -> Failed:
        config = self.config
        return Failed(
            operation=operation,
            bucket=self.bucket,
            key=key,
            endpoint=self.address,
            role_arn=config.role_arn,
            secrets=self._secrets,
            owner=config.expected_bucket_owner,
            anonymous=config.anonymous,
            renew=self._renew,
        )

    @override
    def _translate(self, error: BaseException, native: NativeObject) -> SourceError:
        return translate(error, self._failed("GetObject", native.key))


def _has_dots(key: str) -> bool:
    return not {".", ".."}.isdisjoint(key.split("/"))
