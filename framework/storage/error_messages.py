"""Common parts of store error messages: the place, the innermost cause, and no secrets.

A store's package maps its vendor's errors to those of `framework.errors`, and builds their messages with this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import ClassVar

import attrs

from framework.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ConfigError,
    CredentialsError,
    FatalError,
    ObjectArchivedError,
    ObjectChangedError,
    ObjectError,
    ObjectNotFoundError,
    SourceError,
    StoreUnavailableError,
    ThrottledError,
)
from framework.model.local_hosts import is_this_machine
from framework.model.secret_masking import MASK, without_secrets
from framework.storage.timestamps import utc_moment

_MAX_DETAIL = 300
_MAX_RETRY_AFTER_DIGITS = 9
NO_DOCUMENT = "this answer is no document of the store: an ingress, load balancer or proxy made it"
"""Why such a refusal is retried: it says nothing about the object, the bucket or the permissions."""

_NEEDS_NO_DOCUMENT = frozenset((407, 408, 412, 416, 429))
"""Refusals that say enough without a document, whoever sends them: the proxy's own, time, condition, range, rate."""

_NOT_MODIFIED = 304
"""Answers a condition that is never sent: a cache in between."""

Kind = type[SourceError]


@attrs.frozen(kw_only=True)
class StoreCall:
    """A failed call to a store, for the message.

    Attributes:
        scheme: the store's URL scheme.
        operation: the vendor's name of the call.
        bucket: its bucket.
        key: the object; empty when the failure concerns the bucket.
        endpoint: the configured address; empty for the vendor's own.
        secrets: the configured secrets; messages mask them, even when the store repeats the request.
    """

    scheme: ClassVar[str]
    operation: str
    bucket: str
    key: str = ""
    endpoint: str = ""
    secrets: tuple[str, ...] = attrs.field(default=(), repr=False)

    @property
    def location(self) -> str:
        """`s3://bucket/key`."""
        return f"{self.scheme}://{self.bucket}/{self.key}" if self.key else f"{self.scheme}://{self.bucket}"

    @property
    def asked(self) -> str:
        """What a message says at its end of the configured address; empty for the vendor's own."""
        return f"; asked was {self.endpoint}" if self.endpoint else ""


def kinds(kind: Kind, names: str) -> dict[str, Kind]:
    """Return the kind for each of these names, which spaces divide."""
    return dict.fromkeys(names.split(), kind)


def advice_of_kinds(section: str, bucket_options: str) -> dict[Kind, str]:
    """Return what to do about each kind of error, as far as the kind tells.

    Args:
        section: the store's section of the configuration.
        bucket_options: the options that name the bucket.
    """
    return {
        ThrottledError: "the store asks for fewer requests",
        StoreUnavailableError: "the store did not answer as it should",
        CredentialsError: f"the store refuses the credentials, or none could be had; check section [{section}]",
        AccessDeniedError: "the credentials do not allow it; grant {action}",
        BucketNotFoundError: f"there is no such bucket; check {bucket_options}",
        ObjectNotFoundError: "it was deleted after it was listed",
        ObjectChangedError: "it was overwritten after it was listed",
        ObjectArchivedError: "it lies in an archive class and must be restored first",
        ConfigError: f"the store cannot be used as configured; check section [{section}]",
    }


def not_open(section: str) -> str:
    """Return what to do when a request without an identity is refused."""
    return f"it is not open to everybody, or does not exist; leave {section}.anonymous out and give credentials"


def advice_of_connections(section: str) -> dict[str, str]:
    """Return what to do about a failed connection, by the name of the class: a vendor's, urllib3's or ours."""
    tls = f"the server's certificate is not trusted, or it speaks no TLS; check {section}.endpoint and {section}.ca_bundle"
    proxy = (
        f"the proxy does not answer, or refuses; check {section}.proxy, or the variables HTTP_PROXY, HTTPS_PROXY, ALL_PROXY "
        "and NO_PROXY"
    )
    connecting = f"the store did not take the connection in time; check {section}.endpoint and the network"
    return {
        **dict.fromkeys(("SSLError", "HttpTlsError"), tls),
        **dict.fromkeys(("ProxyError", "ProxyConnectionError", "HttpProxyError"), proxy),
        **dict.fromkeys(("ConnectTimeout", "ConnectTimeoutError", "HttpConnectTimeoutError"), connecting),
        **dict.fromkeys(
            ("ReadTimeout", "ReadTimeoutError", "HttpReadTimeoutError"), "the store did not answer in time"
        ),
    }


# A certificate that is not trusted or names another host, no TLS at all, a ca_bundle that cannot be read.
_STAYS_SO = ("CERTIFICATE", "WRONG_VERSION", "doesn't match", "[Errno 2]", "[Errno 13]", "[Errno 21]")

# A program renews it, or a time service sets this machine's clock.
_PASSES = ("certificate has expired", "certificate is not yet valid")


def kind_of_class(error: BaseException, classes: Mapping[str, Kind]) -> Kind:
    """Return the kind of an exception by the name of its class, or of the nearest base that is known."""
    for cls in type(error).__mro__:
        kind = classes.get(cls.__name__)
        if kind is not None:
            text = str(error)
            stays = any(words in text for words in _STAYS_SO) and not any(words in text for words in _PASSES)
            # else it is what a reset looks like inside TLS
            return kind if stays or cls.__name__ not in {"SSLError", "HttpTlsError"} else StoreUnavailableError
    return FatalError


def kind_of_status(status: int, known: Kind | None, failed: StoreCall) -> Kind:
    """Return the kind of a refusal: that of its code or reason, if it is known, else by its status."""
    if known is not None:
        return FatalError if issubclass(known, ObjectError) and not failed.key else known
    # From 500 on it is a failure of the server's own.
    if status >= 500 or status in {_NOT_MODIFIED, 408}:  # noqa: PLR2004
        return StoreUnavailableError
    return ConfigError if 300 <= status < 400 else FatalError  # noqa: PLR2004


def needs_document(status: int) -> bool:
    """Return whether a refusal of that status only counts when the store itself sent it, which a document shows.

    An ingress whose route is being reloaded answers "404 page not found" to every request, which says nothing about an
    object. So does 421 or 499 of a load balancer, 203 of a proxy, and 304 of a cache.
    """
    return status not in _NEEDS_NO_DOCUMENT and not (300 <= status < 400 and status != _NOT_MODIFIED)  # noqa: PLR2004


def make_refusal(
    kind: Kind, failed: StoreCall, advice: str, words: Iterable[str], retry_after: str | None
) -> SourceError:
    """Return the error of a refusal.

    Args:
        kind: its kind.
        failed: the place.
        advice: what to do.
        words: the store's own, some of them empty.
        retry_after: the header of that name.
    """
    own = ", ".join(filter(None, words))
    made = make_error(kind, failed, f"{advice} ({own})" if own else advice)
    if isinstance(made, (ThrottledError, StoreUnavailableError)):
        made.retry_after_seconds = retry_after_seconds(retry_after)
    return made


def make_error(kind: Kind, failed: StoreCall, sentence: str) -> SourceError:
    """Return an error of that kind about that place, secrets masked."""
    for secret in failed.secrets:
        sentence = sentence.replace(secret, MASK)
    if issubclass(kind, ObjectError):
        return kind(sentence, location=failed.location)
    return kind(f"{failed.location}: {sentence}")


def innermost(error: BaseException) -> str:
    """Describe the innermost cause in a few words, without an address's query."""
    bottom, seen = error, {id(error)}
    while True:
        inner = getattr(bottom, "kwargs", {}).get("error") if hasattr(bottom, "kwargs") else None
        inner = inner or getattr(bottom, "reason", None) or bottom.__cause__
        if not isinstance(inner, BaseException) or id(inner) in seen:
            break
        seen.add(id(inner))
        bottom = inner
    message = redact(str(bottom))
    # urllib3: "<botocore.awsrequest.AWSHTTPConnection object at 0x7f...>: Failed to ...": the object adds nothing.
    message = re.sub(r"<[^<>]*object at 0x[0-9a-f]+>(?:: )?", "", message)
    name = type(error).__name__
    return f"{name}: {message}" if message else name


# Each looks at a character a bounded number of times, whatever a server writes: the first takes an address whole.
_ADDRESS = re.compile(r"https?://[^\s'\"]*")
_USER = re.compile(r"(https?://)[^\s/'\"]*@")


def redact(text: str) -> str:
    """Remove users and queries of addresses, and secrets; return one line of at most 300 characters."""
    text = without_secrets(_ADDRESS.sub(_bare_address, " ".join(text.split())))
    return text if len(text) <= _MAX_DETAIL else f"{text[:_MAX_DETAIL]}..."


def _bare_address(address: re.Match[str]) -> str:
    return _USER.sub(r"\1", address[0]).partition("?")[0]


def is_loopback(host: str) -> bool:
    """Return whether traffic to that host stays on this machine."""
    return is_this_machine(host) or host.endswith(".localhost")


def retry_after_seconds(header: str | None) -> float | None:
    """Parse the header `Retry-After` (seconds, or a date); None when it is absent or invalid."""
    if not header:
        return None
    digits = header.strip()
    if digits.isascii() and digits.isdigit():
        return float(digits[:_MAX_RETRY_AFTER_DIGITS])
    try:
        moment = utc_moment(header)
    except (TypeError, ValueError, OverflowError):
        return None
    return max(0.0, (moment - datetime.now(timezone.utc)).total_seconds())
