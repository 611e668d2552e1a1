"""What boto3 finds out for a store: its session and identity, region, endpoint, proxy and certificates.

boto3's own retries are off: `framework.storage.retry` makes them.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from typing_extensions import override

from framework.config.bucket import check_environment_proxy
from framework.errors import ConfigError
from framework.storage.error_messages import is_loopback
from s3_source.config import S3Config

if TYPE_CHECKING:
    from boto3.session import Session
    from botocore.config import Config
    from botocore.credentials import CredentialResolver
    from botocore.loaders import Loader
    from botocore.session import Session as BotocoreSession

    from framework.storage.http.transfer import HttpOptions

log = logging.getLogger(__name__)

DEFAULT_REGION = "us-east-1"
DEFAULT_ROLE_SESSION = "iggy-s3-source"
_METADATA_ATTEMPTS = 3

IDENTITIES = {
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
"""Where credentials came from, by botocore's name of the way."""


AWS_SUFFIXES = (
    "amazonaws.com",
    "api.aws",
    "amazonaws.com.cn",
    "api.amazonwebservices.com.cn",
    "amazonaws.eu",
    "api.amazonwebservices.eu",
    "c2s.ic.gov",
    "api.aws.ic.gov",
    "sc2s.sgov.gov",
    "api.aws.scloud",
    "cloud.adc-e.uk",
    "api.cloud-aws.adc-e.uk",
    "csp.hci.ic.gov",
    "api.aws.hci.ic.gov",
)
"""Of all partitions, as botocore knows them; a test compares."""


def is_aws(endpoint: str) -> bool:
    """Return whether an endpoint is of AWS itself, of any partition."""
    host = urlsplit(endpoint).hostname or ""
    return host.endswith(tuple(f".{suffix}" for suffix in AWS_SUFFIXES))


def warn_in_the_clear(config: S3Config, endpoint: str) -> None:
    """Log a warning when a secret is sent to the store without TLS."""
    parts = urlsplit(endpoint)
    secret = "the session token" if config.session_token or config.role_arn else ""
    secret = "the key of encrypted objects" if config.sse_customer_key else secret
    if parts.scheme == "http" and secret and not is_loopback(parts.hostname or ""):
        log.warning("%s: %s is sent unencrypted with every request; use https", endpoint, secret)


def make_session(config: S3Config) -> Session:
    """Return a session with the identity that the configuration names."""
    import boto3  # noqa: PLC0415

    base = _base_session(config)
    if config.role_arn:
        # The role's session takes its keys from the base session's identity. Both read the same profile.
        resolver = _role_resolver(boto3.Session(botocore_session=base), config)
        base = _base_session(config)
        base.register_component("credential_provider", resolver)
    return boto3.Session(botocore_session=base, region_name=config.region or None)


def find_credentials(session: Session) -> None:
    """Have boto3 find the credentials, which it keeps.

    Raises:
        ConfigError: the environment's proxy for the instance's metadata service cannot be used.
        CredentialRetrievalError: what gives them out left a part out, or wrote one in another form; or the instance's
            metadata service, which may come up after this program, is the only one left and failed.
        NoCredentialsError: that service refuses to tell.
    """
    from botocore.credentials import RefreshableCredentials  # noqa: PLC0415
    from botocore.exceptions import CredentialRetrievalError, NoCredentialsError  # noqa: PLC0415

    try:
        with _metadata_watched(session) as watch:
            keys: Any = session.get_credentials()
    except ConfigError:  # a ValueError, too
        raise
    except (KeyError, TypeError, ValueError) as error:
        missing = f"no {error.args[0]}" if isinstance(error, KeyError) else str(error)
        raise CredentialRetrievalError(provider="what gives them out", error_msg=missing) from None
    if keys is None and watch.refusal:
        raise NoCredentialsError from OSError(watch.refusal)
    if keys is None and watch.fault:
        raise CredentialRetrievalError(provider="the instance's metadata service", error_msg=watch.fault)
    if isinstance(keys, RefreshableCredentials):
        renewing: Any = keys
        if not hasattr(renewing._refresh_using, "__wrapped__"):  # noqa: SLF001 - else by another store of this session
            renewing._refresh_using = _marked(renewing._refresh_using)  # noqa: SLF001


@contextlib.contextmanager
def _metadata_watched(session: Session) -> Iterator[_MetadataWatch]:
    """Learn how the instance's metadata service fails, which botocore takes for a machine that has none."""
    from botocore.exceptions import UnknownCredentialError  # noqa: PLC0415

    watch = _MetadataWatch()
    try:
        provider: Any = _botocore(session).get_component("credential_provider").get_provider("iam-role")
    except UnknownCredentialError:
        yield watch
        return
    fetcher = provider._role_fetcher  # noqa: SLF001 - botocore has no other way to it
    watch.session = fetcher._session  # noqa: SLF001
    fetcher._session = watch  # noqa: SLF001
    try:
        yield watch
    finally:
        fetcher._session = watch.session  # noqa: SLF001


class _MetadataWatch:
    """Sends the requests to the instance's metadata service.

    Attributes:
        session: botocore's, which does it.
        fault: how the last one failed; empty where there is no such service, or it answered that it has no keys.
        refusal: how the last one was refused: the service is switched off, or lets no container ask.
    """

    session: Any = None
    fault: str = ""
    refusal: str = ""

    def send(self, request: Any) -> Any:
        """Send a request; called by botocore."""
        self.fault = self.refusal = ""
        _check_proxy_of(request.url)
        try:
            answer = self.session.send(request)
        except Exception as error:
            # elsewhere than in a cloud the address leads nowhere: no route, or no answer to the connection
            cause = str(getattr(error, "kwargs", {}).get("error"))
            if type(error).__name__ == "ReadTimeoutError" or "refused" in cause:
                self.fault = f"{error} ({cause})"
            raise
        answered = f"HTTP {answer.status_code} of {request.url}"
        if answer.status_code >= 500 or answer.status_code == 429:  # noqa: PLR2004
            self.fault = answered
        if answer.status_code in {401, 403}:
            self.refusal = answered
        return answer


def _marked(refresh: Callable[[], Any]) -> Callable[[], Any]:
    """Return what renews keys; its errors tell that they are not the store's."""

    @functools.wraps(refresh)
    def renewed() -> Any:
        try:
            return refresh()
        except Exception as error:
            error.of_identity = True  # type: ignore[attr-defined]
            raise

    return renewed


def renew(session: Session) -> bool:
    """Have botocore get new keys for the next request, whatever it knows of the end of these; return whether it can.

    It has no method for that. It looks at the time when the keys end; a role's are also in a cache of its own.
    """
    from botocore.credentials import RefreshableCredentials  # noqa: PLC0415

    keys: Any = session.get_credentials()
    if not isinstance(keys, RefreshableCredentials):
        return False
    source: Any = keys
    asked = getattr(source._refresh_using, "__wrapped__", None)  # noqa: SLF001
    cache = getattr(getattr(asked, "__self__", None), "_cache", None)
    if cache:
        cache.clear()
    source._expiry_time = datetime.now(timezone.utc)  # noqa: SLF001
    return True


@functools.cache
def _loader(data_path: str | None) -> Loader:
    """Return what reads the descriptions of AWS's services; it keeps what it has read, which takes 30 ms of CPU.

    A Python worker of Spark makes a store for each job.
    """
    from botocore.loaders import create_loader  # noqa: PLC0415

    return create_loader(data_path)


def _base_session(config: S3Config) -> BotocoreSession:
    from botocore.session import Session as BotocoreSession  # noqa: PLC0415

    session = BotocoreSession(profile=config.profile or None)
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    # The instance's metadata may answer 503 for a moment, or slow down many that ask. botocore's default is one attempt.
    if session.get_config_variable("metadata_service_num_attempts") == 1:
        session.set_config_variable("metadata_service_num_attempts", _METADATA_ATTEMPTS)
    session.set_default_client_config(_client_config(config, proxied=False))  # botocore's own clients of STS and SSO
    for service in _TOKEN_SERVICES:
        session.register(f"before-send.{service}", _check_token_proxy)
    if config.access_key_id and not config.role_arn:
        session.set_credentials(config.access_key_id, config.secret_access_key, config.session_token or None)
    return session


_TOKEN_SERVICES = ("sts", "sso", "sso-oidc", "signin")


def _check_token_proxy(**event: Any) -> None:
    """Check the environment's proxy for a request of botocore's; called before botocore sends it."""
    _check_proxy_of(event["request"].url)


def _check_proxy_of(url: str) -> None:
    from botocore.utils import get_environ_proxies  # noqa: PLC0415

    check_environment_proxy(get_environ_proxies(url).get(urlsplit(url).scheme, ""))


def _role_resolver(identity: Session, config: S3Config) -> CredentialResolver:
    """Temporary keys of the role, got at the first request and renewed in time."""
    from botocore.credentials import (  # noqa: PLC0415
        CredentialProvider,
        CredentialResolver,
        DeferredRefreshableCredentials,
        create_assume_role_refresher,
    )
    from botocore.exceptions import ClientError  # noqa: PLC0415

    duration = int(config.role_duration)
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
        if not config.access_key_id:
            find_credentials(identity)
        sts = identity.client("sts", **options)
        if config.proxy:
            sts.meta.events.unregister("before-send.sts", _check_token_proxy)
        assume: Callable[[], dict[str, str]] = create_assume_role_refresher(sts, request)
        try:
            return assume()
        except ClientError as error:
            if error.response["Error"]["Code"] != "ExpiredToken" or config.access_key_id or not renew(identity):
                raise
            return assume()
        finally:
            sts.close()

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


def _client_config(config: S3Config, *, proxied: bool = True, **more: Any) -> Config:
    """Timeouts, connections and proxy, the same for S3 and the token service; botocore's retries off."""
    proxies = {"http": config.proxy, "https": config.proxy} if config.proxy and proxied else None
    from botocore.config import Config  # noqa: PLC0415

    return Config(
        connect_timeout=config.connect_timeout,
        read_timeout=config.read_timeout,
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=config.max_connections,
        proxies=proxies,
        tcp_keepalive=True,
        **more,
    )


def make_client(session: Session, config: S3Config) -> Any:
    """Return boto3's client of S3."""
    from botocore import UNSIGNED  # noqa: PLC0415

    style = config.addressing_style
    if style == "auto" and config.endpoint:
        style = "path"
    more: dict[str, Any] = {
        "s3": {"addressing_style": style},
        # Checksums are compared in framework.storage.resuming_stream, which knows where a read was resumed.
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


def proxies_of(config: S3Config, endpoint: str) -> dict[str, str]:
    """Return the proxies that boto3 uses for this address: those of the environment, less what NO_PROXY names."""
    from botocore.utils import get_environ_proxies  # noqa: PLC0415

    if config.proxy:
        return {"http": config.proxy, "https": config.proxy}
    found: dict[str, str] = get_environ_proxies(endpoint)
    return found if urlsplit(endpoint).scheme in found or "all" in found else {}


def http_options(session: Session, config: S3Config, endpoint: str) -> HttpOptions:
    """Return the options for reading: proxy and certificates as botocore finds them.

    Raises:
        ConfigError: the certificates cannot be found, or the environment's proxy cannot be used.
    """
    from botocore.httpsession import get_cert_path  # noqa: PLC0415

    proxies = proxies_of(config, endpoint)
    proxy = proxies.get(urlsplit(endpoint).scheme) or proxies.get("all") or ""
    ca_bundle: Any = config.ca_bundle or _botocore(session).get_config_variable("ca_bundle")
    ca_file = get_cert_path(ca_bundle or True) or ""
    return config.http_options(proxy, ca_file, "s3.ca_bundle, AWS_CA_BUNDLE, or ca_bundle of the AWS profile")


def _botocore(session: Session) -> BotocoreSession:
    found: BotocoreSession = session._session  # noqa: SLF001 - boto3 has no other way to a setting of the profile
    return found
