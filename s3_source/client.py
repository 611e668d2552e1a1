"""The one door to boto3 and botocore: an S3 bucket as an `ObjectStore`.

Listing, credentials, roles, addressing, signing and connections are boto3's and botocore's. boto3's own retries are
off: `framework.retry` makes them. Reading has a short way of its own from the second object on: `s3_source.fastget`.

boto3 is imported when a store is made, not before: that takes half a second. The file is longer than others because one
door means one file: who may talk to boto3 can be checked, and every place that uses something private of it is in sight.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from typing_extensions import override

from framework.errors import (
    AccessDeniedError,
    ListingError,
    ObjectNotFoundError,
    SourceError,
    TaskClosedError,
)
from framework.http_stream import EMPTY, Body, HttpStream, expected_bytes
from framework.records import NativeObject
from framework.store import ListPage, ObjectStore
from framework.store_errors import redact
from framework.transformer import ReadStream
from s3_source.config import S3Config, sse_customer_key
from s3_source.errors_map import Failed, from_code, translate
from s3_source.fastget import Pattern, error_fields, pattern_of
from s3_source.pages import EMPTY_ANSWER, check_etag, parse_page, version_of

if TYPE_CHECKING:
    from boto3.session import Session
    from botocore.config import Config
    from botocore.credentials import CredentialResolver
    from botocore.httpsession import URLLib3Session
    from botocore.session import Session as BotocoreSession

DEFAULT_REGION = "us-east-1"
DEFAULT_ROLE_SESSION = "iggy-s3-source"
_REDIRECTS = frozenset((301, 302, 307, 308, 400))
_LONGEST_ERROR_BYTES = 65_536


_BODY = "_Body"


def _keep_body(*, response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object) -> None:
    """Called by botocore before it parses a listing: the body is kept as it is, its parser gets an empty one."""
    if response_dict["status_code"] == HTTPStatus.OK and b"<ListBucketResult" in response_dict["body"][:1000]:
        customized_response_dict[_BODY] = response_dict["body"]
        response_dict["body"] = EMPTY_ANSWER


class S3Store(ObjectStore):
    """One bucket. Threads share one store: its connections are pooled, and at most `max_connections` are kept.

    Every method makes one attempt, save that boto3 follows a redirect to the bucket's region.

    Args:
        config: checked beforehand with `s3_source.config.check`.
        session: a boto3 session with credentials of one's own making, in place of the identity that `config` names.

    Raises:
        ConfigError: boto3 cannot use the configuration: no such profile, an address that is none.
    """

    scheme = "s3"

    def __init__(self, config: S3Config, session: Session | None = None) -> None:
        self.config = config
        self.bucket = config.bucket
        self.address = config.endpoint
        # Directory buckets (S3 Express) list in no order.
        self.ordered = not config.bucket.endswith("--x-s3")
        self._closed = False
        self._bucket_seen = False
        self._streams: set[HttpStream] = set()
        self._pattern: Pattern | None = None
        self._learnt = threading.local()
        self._options: dict[str, object] = {"RequestPayer": "requester"} if config.requester_pays else {}
        key = sse_customer_key(config)
        self._get_options = dict(self._options)
        if key:
            self._get_options |= {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": key}
        try:
            self._session = session if session is not None else _session(config)
            self._client = _s3_client(self._session, config)
            self._http = _http_session(self._session, config)
        except Exception as error:
            raise translate(error, self._failed("CreateClient")) from error
        # Other stores list milliseconds, which their answer to a HEAD rounds away: only a listing shows their versions.
        self.lists_milliseconds = not _is_aws(self._client.meta.endpoint_url)
        # Only AWS promises the order. Some of the others (SeaweedFS) list folder by folder, and that may show late.
        self.order_is_documented = self.ordered and _is_aws(self._client.meta.endpoint_url)
        self._client.meta.events.register("before-sign.s3.GetObject", self._learn)
        # Under this name it comes before botocore's own: one of those parses each answer to see whether it is an error.
        self._client.meta.events.register("before-parse.*.ListObjectsV2", _keep_body)

    @override
    def list_page(
        self, *, prefix: str = "", after: str = "", continuation: str | None = None, page_size: int = 1000
    ) -> ListPage:
        self._check_open()
        options = dict(self._options)
        if continuation is not None:
            options["ContinuationToken"] = continuation
        elif after:
            options["StartAfter"] = after
        try:
            answer = self._client.list_objects_v2(
                Bucket=self.bucket, Prefix=prefix, MaxKeys=page_size, EncodingType="url", **options
            )
        except Exception as error:
            raise translate(error, self._failed("ListObjectsV2")) from error
        meta = answer["ResponseMetadata"]
        page = parse_page(answer.get(_BODY, b""), meta["HTTPHeaders"], self.bucket)
        if page.continuation is not None and page.continuation == continuation:
            raise ListingError(f"s3://{self.bucket}/{prefix}: a page of the listing repeats itself; stopped")
        return page

    @override
    def stat(self, key: str) -> NativeObject:
        """One HEAD; of a store that lists milliseconds, one page of a listing."""
        self._check_open()
        if self.lists_milliseconds:
            return super().stat(key)
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
        modified_ms = int(answer["LastModified"].timestamp()) * 1000
        return NativeObject(
            scheme="s3",
            bucket=self.bucket,
            key=key,
            size=answer["ContentLength"],
            version=version_of(answer.get("ETag", ""), modified_ms),
            modified_ms=modified_ms,
            storage_class=answer.get("StorageClass", "STANDARD"),  # a HEAD leaves out what a listing names
        )

    def _check_bucket(self) -> None:
        """The answer to a HEAD has no body: a bucket that is missing looks like an object that is. Asked about once."""
        if self._bucket_seen:
            return
        try:
            self._client.head_bucket(Bucket=self.bucket)
        except Exception as error:
            made = translate(error, self._failed("HeadBucket"))
            if not isinstance(made, AccessDeniedError):  # who may not ask about it knows at least that it is there
                raise made from error
        self._bucket_seen = True

    @override
    def listed_version(self, *, etag: str, modified_ms: int) -> str | None:
        return version_of(etag, modified_ms) if etag else None

    @override
    def open(self, native: NativeObject, start: int = 0, end: int | None = None) -> ReadStream:
        if self._closed:
            self._check_open()
        size = native.size
        stop = size if end is None or end > size else end
        if start >= stop:
            return EMPTY
        etag = native.version.rpartition("@")[0]
        wanted = None if start == 0 and stop == size else f"bytes={start}-{stop - 1}"
        pattern = self._pattern
        answer = None if pattern is None else self._get_fast(pattern, native, etag, wanted)
        status, headers, body = answer or self._get_slowly(native, etag, wanted)
        try:
            check_etag(native, etag, headers)
            expected = expected_bytes(native, start, stop, status=status, headers=headers)
        except BaseException:
            body.close()
            raise
        stream = HttpStream(body, expected, native=native, translate=self._translate, on_close=self._streams.discard)
        self._streams.add(stream)
        return stream

    def _get_slowly(self, native: NativeObject, etag: str, wanted: str | None) -> tuple[int, Mapping[str, str], Body]:
        """Through boto3, which follows redirects; its request becomes the pattern of the next ones."""
        options = dict(self._get_options)
        if etag:
            options["IfMatch"] = f'"{etag}"'
        if wanted is not None:
            options["Range"] = wanted
        self._learnt.request = None
        try:
            answer: dict[str, Any] = self._client.get_object(Bucket=self.bucket, Key=native.key, **options)
        except Exception as error:
            raise self._translate(error, native) from error
        learnt = self._learnt.request
        if learnt is not None:
            url, headers, service, region = learnt
            self._pattern = pattern_of(url, headers, native.key, service=service, region=region)
        meta = answer["ResponseMetadata"]
        # botocore's wrapper counts bytes too, and costs as much again as reading; urllib3's response lies inside.
        body: Body = answer["Body"]._raw_stream  # noqa: SLF001
        return meta["HTTPStatusCode"], meta["HTTPHeaders"], body

    def _learn(self, *, request: Any, signing_name: str, region_name: str, signature_version: Any, **_: Any) -> None:
        """Called by botocore just before it signs a GetObject, again after a redirect."""
        from botocore import UNSIGNED  # noqa: PLC0415

        if signature_version is UNSIGNED:
            self._learnt.request = (request.url, dict(request.headers.items()), "", "")
        elif signature_version == "s3v4":
            self._learnt.request = (request.url, dict(request.headers.items()), signing_name, region_name)
        else:  # S3 Express and multi-region access points sign in other ways: leave them to boto3
            self._learnt.request = None

    def _get_fast(
        self, pattern: Pattern, native: NativeObject, etag: str, wanted: str | None
    ) -> tuple[int, Mapping[str, str], Body] | None:
        """The same request without boto3's machinery; None when boto3 must find the bucket again."""
        try:
            request = self._sign(pattern, pattern.url(native.key), pattern.request_headers(etag, wanted))
            answer = self._http.send(request)
            if answer.status_code in (200, 206):
                return answer.status_code, answer.raw.headers, answer.raw
            self._refused(answer, native)
        except SourceError:
            raise
        except Exception as error:
            raise self._translate(error, native) from error
        return None

    def _sign(self, pattern: Pattern, url: str, headers: dict[str, str]) -> Any:
        from botocore.auth import S3SigV4Auth  # noqa: PLC0415
        from botocore.awsrequest import AWSRequest  # noqa: PLC0415
        from botocore.exceptions import NoCredentialsError  # noqa: PLC0415

        request = AWSRequest(method="GET", url=url, headers=headers, stream_output=True)
        if pattern.service:
            credentials = self._session.get_credentials()
            if credentials is None:
                raise NoCredentialsError
            # Frozen anew for every request: keys of a role renew themselves.
            S3SigV4Auth(credentials.get_frozen_credentials(), pattern.service, pattern.region).add_auth(request)
        return request.prepare()

    def _refused(self, answer: Any, native: NativeObject) -> None:
        headers: Mapping[str, str] = answer.raw.headers
        try:
            fields = error_fields(answer.raw.read(_LONGEST_ERROR_BYTES))
        finally:
            answer.raw.close()
        status: int = answer.status_code
        if status in _REDIRECTS:
            self._pattern = None
            return
        raise from_code(
            fields.get("Code", ""),
            status,
            self._failed("GetObject", native.key),
            said=redact(fields.get("Message", "")),
            region=fields.get("Region") or headers.get("x-amz-bucket-region") or "",
            retry_after=headers.get("retry-after"),
        )

    @override
    def close(self) -> None:
        self._closed = True
        for stream in tuple(self._streams):
            stream.abort()
        self._http.close()
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
        return _SOURCES.get(credentials.method, f"found by the AWS libraries ({credentials.method})")

    def _check_open(self) -> None:
        if self._closed:
            raise TaskClosedError(f"s3://{self.bucket}: the store was used after it was closed")

    def _failed(self, operation: str, key: str = "") -> Failed:
        config = self.config
        return Failed(
            operation=operation, bucket=self.bucket, key=key, endpoint=config.endpoint, role_arn=config.role_arn
        )

    def _translate(self, error: BaseException, native: NativeObject) -> SourceError:
        if isinstance(error, TaskClosedError) or self._closed:
            return TaskClosedError(f"{native.location}: the store was closed while reading")
        return translate(error, self._failed("GetObject", native.key))


_SOURCES = {
    "explicit": "static keys (s3.access_key_id)",
    "assume-role": "an assumed role (s3.role_arn or the profile's)",
    "assume-role-with-web-identity": "a role by web identity",
    "env": "the environment (AWS_ACCESS_KEY_ID)",
    "shared-credentials-file": "the shared credentials file",
    "config-file": "the shared configuration file",
    "custom-process": "a program named in the profile",
    "sso": "single sign-on",
    "container-role": "the container's role",
    "iam-role": "the instance's role",
}


def _is_aws(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))


def _session(config: S3Config) -> Session:
    """A session with the identity that the configuration names. No I/O."""
    import boto3  # noqa: PLC0415

    base = _base_session(config)
    if config.role_arn:
        # The role's session takes its keys from the base session's identity. Both read the same profile.
        resolver = _role_resolver(boto3.Session(botocore_session=base), config)
        base = _base_session(config)
        base.register_component("credential_provider", resolver)
    return boto3.Session(botocore_session=base, region_name=config.region or None)


def _base_session(config: S3Config) -> BotocoreSession:
    from botocore.session import Session as BotocoreSession  # noqa: PLC0415

    session = BotocoreSession(profile=config.profile or None)
    if config.access_key_id and not config.role_arn:
        session.set_credentials(config.access_key_id, config.secret_access_key, config.session_token or None)
    return session


def _role_resolver(identity: Session, config: S3Config) -> CredentialResolver:
    """Temporary keys of the role, got at the first request and renewed in time."""
    from botocore.credentials import (  # noqa: PLC0415
        CredentialProvider,
        CredentialResolver,
        DeferredRefreshableCredentials,
        create_assume_role_refresher,
    )

    duration = int(config.role_duration_seconds)
    request: dict[str, object] = {
        "RoleArn": config.role_arn,
        "RoleSessionName": config.role_session_name or DEFAULT_ROLE_SESSION,
        "DurationSeconds": duration,
    }
    if config.role_external_id:
        request["ExternalId"] = config.role_external_id
    options: dict[str, Any] = {
        "region_name": _region(identity, config),
        "endpoint_url": config.sts_endpoint or None,
        "verify": config.ca_bundle or None,
        "config": _client_config(config),
    }
    if config.access_key_id:
        options["aws_access_key_id"] = config.access_key_id
        options["aws_secret_access_key"] = config.secret_access_key
        options["aws_session_token"] = config.session_token or None

    def refresh() -> dict[str, str]:
        sts = identity.client("sts", **options)
        try:
            fresh: dict[str, str] = create_assume_role_refresher(sts, request)()
        finally:
            sts.close()
        return fresh

    class Keys(DeferredRefreshableCredentials):
        # botocore renews keys 15 minutes before they end. Those of the shortest role live 15 minutes: it would ask for
        # new ones at every request.
        _advisory_refresh_timeout = min(15 * 60, duration // 3)
        _mandatory_refresh_timeout = min(10 * 60, duration // 6)

    class Role(CredentialProvider):
        METHOD = "assume-role"

        @override
        def load(self) -> DeferredRefreshableCredentials:
            return Keys(refresh_using=refresh, method=self.METHOD)

    return CredentialResolver([Role()])


def _region(session: Session, config: S3Config) -> str:
    region: str | None = config.region or session.region_name
    return region or DEFAULT_REGION


def _client_config(config: S3Config, **more: Any) -> Config:
    """Timeouts, connections and proxy, the same for S3 and the token service; botocore's retries off."""
    from botocore.config import Config  # noqa: PLC0415

    return Config(
        connect_timeout=config.connect_timeout_seconds,
        read_timeout=config.read_timeout_seconds,
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=config.max_connections,
        proxies={"http": config.proxy, "https": config.proxy} if config.proxy else None,
        tcp_keepalive=True,
        **more,
    )


def _s3_client(session: Session, config: S3Config) -> Any:
    from botocore import UNSIGNED  # noqa: PLC0415

    style = config.addressing_style
    if style == "auto" and config.endpoint:
        style = "path"
    more: dict[str, Any] = {
        "s3": {"addressing_style": style},
        # Checksums that nobody asked for: the length and the ETag are checked here.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    if config.anonymous:
        more["signature_version"] = UNSIGNED
    return session.client(
        "s3",
        region_name=_region(session, config),
        endpoint_url=config.endpoint or None,
        verify=config.ca_bundle or None,
        config=_client_config(config, **more),
    )


def _http_session(session: Session, config: S3Config) -> URLLib3Session:
    """Connections for the short way, with the settings that botocore gives its own."""
    from botocore.httpsession import URLLib3Session  # noqa: PLC0415
    from botocore.utils import get_environ_proxies  # noqa: PLC0415

    if config.proxy:
        proxies = {"http": config.proxy, "https": config.proxy}
    else:
        proxies = get_environ_proxies(config.endpoint or f"https://{config.bucket}.s3.amazonaws.com")
    # A dict, because the types that are published for this class are narrower than what botocore itself passes.
    options: dict[str, Any] = {
        "verify": config.ca_bundle or session._session.get_config_variable("ca_bundle") or True,  # noqa: SLF001
        "proxies": proxies,
        "timeout": (config.connect_timeout_seconds, config.read_timeout_seconds),
        "max_pool_connections": config.max_connections,
        "socket_options": [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)],
    }
    return URLLib3Session(**options)
