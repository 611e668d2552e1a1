"""What Google's libraries find out for a store: identity and tokens, endpoint, proxy and certificates.

Every place that uses something private of these libraries is here.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import attrs

from framework.config.bucket import check_environment_proxy
from framework.config.files import read_file
from framework.errors import CredentialsError, StoreUnavailableError
from framework.storage.error_messages import is_loopback
from gcs_source.config import GcsConfig
from gcs_source.errors_map import Failed, describe, from_token_service, translate

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

    from framework.storage.http.transfer import HttpOptions

log = logging.getLogger(__name__)

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"
_CLOUD = "https://www.googleapis.com/auth/cloud-platform"
_OF_ONE_REQUEST = frozenset(("accept-encoding", "authorization", "connection", "range"))

CREDENTIALS = "GOOGLE_APPLICATION_CREDENTIALS"
METADATA_VARIABLES = ("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP")
_MAX_CREDENTIALS_BYTES = 1 << 20
_MAX_ANSWER_BYTES = 1 << 20
_MAX_ANSWER_SECONDS = 60
"""Of a token service: requests limits neither. A token has some thousand bytes."""


def warn_in_the_clear(endpoint: str, credentials: Any) -> None:
    """Log a warning when a token is sent without TLS."""
    parts = urlsplit(endpoint)
    anonymous = type(credentials).__name__ == "AnonymousCredentials"
    if parts.scheme == "http" and not anonymous and not is_loopback(parts.hostname or ""):
        log.warning("%s: the identity's token is sent unencrypted with every request; use https", endpoint)


def is_google(endpoint: str) -> bool:
    """Return whether an endpoint is Google's own."""
    return (urlsplit(endpoint).hostname or "").endswith(".googleapis.com")


def make_client(config: GcsConfig, credentials: Credentials | None) -> Any:
    """Return the library's client, with these credentials or those that the configuration names.

    Raises:
        StoreUnavailableError: the machine's metadata service gives none yet.
        Exception: there are none, or they cannot be used.
    """
    try:
        return _make_client(config, credentials)
    except Exception as error:
        if _is_metadata_away(error):
            host = os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
            raise StoreUnavailableError(
                f"gs://{config.bucket}: the machine's metadata service at {host} cannot be reached, and no other credentials were "
                f"found; look at it: curl -H 'Metadata-Flavor: Google' http://{host}/computeMetadata/v1/ ({describe(error)})"
            ) from error
        raise


def _is_metadata_away(error: BaseException) -> bool:
    """Return whether the machine has a metadata service, and it did not answer. google-auth does not wait for it.

    A client that is made asks no other service. When none answered, and the hardware is not Google's, the environment tells.
    """
    none_found = type(error).__name__ == "DefaultCredentialsError" and "were not found" in str(error)
    return type(error).__name__ == "TransportError" or (none_found and bool(os.environ.get("GCE_METADATA_HOST")))


def _make_client(config: GcsConfig, credentials: Credentials | None) -> Any:
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
        raise CredentialsError(f"{option}: {file} cannot be used: {describe(error)}") from error


def _of_kind(kind: str, info: Mapping[str, Any], scope: str) -> Any:
    if kind == "external_account":
        source = info.get("credential_source") or {}
        aws, program = str(source.get("environment_id", "")).startswith("aws"), "executable" in source
        kind = "aws" if aws else "pluggable" if program else "identity_pool"
    module, maker = _MAKERS[kind]
    make = getattr(importlib.import_module(module).Credentials, maker)
    if kind == "external_account_authorized_user":  # a login, whose scopes are those of its file
        return make(info)
    return make(info, scopes=[scope])


_MAKERS = {
    "service_account": ("google.oauth2.service_account", "from_service_account_info"),
    "authorized_user": ("google.oauth2.credentials", "from_authorized_user_info"),
    "impersonated_service_account": ("google.auth.impersonated_credentials", "from_impersonated_service_account_info"),
    "external_account_authorized_user": ("google.auth.external_account_authorized_user", "from_info"),
    "identity_pool": ("google.auth.identity_pool", "from_info"),
    "aws": ("google.auth.aws", "from_info"),
    "pluggable": ("google.auth.pluggable", "from_info"),
}


def make_session(client: Any, config: GcsConfig) -> Any:
    """The library's authorised session, with the proxy and the certificates of the configuration: it gets tokens."""
    session = client._http  # noqa: SLF001 - the library's own modules use it the same way
    # With each request, because those of the environment come before a session's; and tokens have a session of their own.
    for part in (session, session._auth_request.session):  # noqa: SLF001
        part.request = partial(_send, part.request, config)
    return session


def _send(send: Any, config: GcsConfig, method: str, url: str, **options: Any) -> Any:
    from requests.utils import get_environ_proxies, select_proxy  # noqa: PLC0415

    verify = {"verify": config.ca_bundle} if config.ca_bundle else {}
    proxies = proxies_for(url, config.proxy)
    if not proxies:
        check_environment_proxy(select_proxy(url, get_environ_proxies(url)) or "")
    answer = send(method, url, **{"proxies": proxies, **verify, **options, "stream": True})
    answer._content = _whole(answer)  # noqa: SLF001 - what requests reads itself without `stream`
    return answer


def _whole(answer: Any) -> bytes:
    from requests.exceptions import ConnectionError as AnswerError  # noqa: PLC0415

    body, end = bytearray(), time.monotonic() + _MAX_ANSWER_SECONDS
    with answer:
        for byte in answer.iter_content(1):  # a larger piece waits until it is whole
            body += byte
            if len(body) > _MAX_ANSWER_BYTES or time.monotonic() > end:
                raise AnswerError(
                    f"an answer of more than {_MAX_ANSWER_BYTES:,} bytes or {_MAX_ANSWER_SECONDS} seconds"
                )
    return bytes(body)


_METADATA_HOSTS = frozenset(("metadata.google.internal", "fd20:ce::254", "fd00:ec2::254"))
"""Metadata services of Google's and Amazon's machines; others have addresses of the link (169.254.169.254)."""


def proxies_for(url: str, proxy: str) -> dict[str, str | None]:
    """Return through which proxy a token is asked for: none for a service of this machine, whose identity it gives.

    A proxy that passes such a request on asks its own machine, and would give that one's identity.

    Args:
        url: the request's.
        proxy: the configured one; empty to look at the environment, as requests does.
    """
    from requests.utils import should_bypass_proxies  # noqa: PLC0415

    if _is_of_this_machine(urlsplit(url).hostname or "") or (proxy and should_bypass_proxies(url, no_proxy=None)):
        return {"http": None, "https": None}
    return {"http": proxy, "https": proxy} if proxy else {}


def _is_of_this_machine(host: str) -> bool:
    named = {urlsplit(f"//{os.environ.get(name, '')}").hostname for name in METADATA_VARIABLES}
    if is_loopback(host) or host in _METADATA_HOSTS or host in named:
        return True
    try:
        return ip_address(host).is_link_local
    except ValueError:
        return False


class _TokenRequest:
    """google-auth's way to ask for a token, with the limits of any request. Deep copies are threads' own: google-auth makes them.

    Its own retries are off: `framework.storage.retry` makes those, and ends them when the source stops.

    Raises:
        SourceError: no answer came, or one that says nothing about the credentials.
    """

    def __init__(self, request: Any, timeout: tuple[float, float], failed: Failed) -> None:
        self._request = request
        self._timeout = timeout
        self._failed = failed
        self.session = request.session  # google-auth adds a certificate there, when the metadata service wants one

    def __call__(self, url: str, method: str = "GET", **options: Any) -> Any:
        failed = attrs.evolve(self._failed, service=_name_of(url))
        try:
            answer = self._request(url, method, **{"timeout": self._timeout, **options})
        except Exception as error:
            raise translate(error, failed) from error
        refused = from_token_service(answer.status, answer.headers, failed)
        if refused is not None:
            raise refused
        return answer


def _name_of(url: str) -> str:
    """What messages call a service that was asked for a token."""
    host = urlsplit(url).netloc.rpartition("@")[2]
    return f"the machine's metadata service at {host}" if "/computeMetadata/" in url else f"the token service at {host}"


class Tokens:
    """Those of a session, asked for as it does itself, with the limits of any request.

    One thread renews for all: a metadata service refuses who asks too often. The others wait as long as one request may take,
    then they ask for themselves.

    Args:
        session: of `make_session`.
        timeout: seconds to connect, and to wait for an answer.
        failed: for messages.
    """

    def __init__(self, session: Any, timeout: tuple[float, float], failed: Failed) -> None:
        self._credentials = session.credentials
        self._failed = attrs.evolve(failed, service="the token service")
        self._request = _TokenRequest(session._auth_request, timeout, self._failed)  # noqa: SLF001
        self._patience = sum(timeout)
        self._renewing = threading.Lock()

    def add(self, url: str, headers: dict[str, str]) -> None:
        """Add the token to the headers of a request.

        Raises:
            SourceError: there is none.
        """
        with contextlib.nullcontext() if self._credentials.valid else self._alone(), self._translated():
            self._credentials.before_request(self._request, "GET", url, headers)

    def renew(self, refused: str) -> None:
        """Renew the token, unless another thread has: this one was refused.

        Raises:
            SourceError: there is none.
        """
        with self._alone(), self._translated():
            now: dict[str, str] = {}
            self._credentials.apply(now)
            if now.get("authorization", refused) == refused:
                self._credentials.refresh(self._request)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise translate(error, self._failed) from error

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        held = self._renewing.acquire(timeout=self._patience)
        try:
            yield
        finally:
            if held:
                self._renewing.release()


def http_options(session: Any, endpoint: str, config: GcsConfig) -> tuple[HttpOptions, list[str]]:
    """Return how the session connects to the endpoint, and the headers of its every request. No I/O.

    Raises:
        ConfigError: the certificates cannot be found, or the environment's proxy cannot be used.
    """
    from requests import Request  # noqa: PLC0415
    from requests.utils import select_proxy  # noqa: PLC0415

    request = session.prepare_request(Request("GET", f"{endpoint}/"))
    session.get_adapter(request.url)  # refuses an address without a scheme
    proxies = {"http": config.proxy, "https": config.proxy} if config.proxy else {}
    found = session.merge_environment_settings(
        request.url, proxies, stream=True, verify=config.ca_bundle or None, cert=None
    )
    proxy = select_proxy(request.url, found["proxies"]) or ""
    ca_file = found["verify"] if isinstance(found["verify"], str) else importlib.import_module("requests.certs").where()
    options = config.http_options(proxy, ca_file, "gcs.ca_bundle, or REQUESTS_CA_BUNDLE of the environment")
    return options, [
        f"{name}: {value}" for name, value in request.headers.items() if name.lower() not in _OF_ONE_REQUEST
    ]
