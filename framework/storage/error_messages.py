"""Common parts of store error messages: the place, the innermost cause, and no secrets.

A store's package maps its vendor's errors to those of `framework.errors`, and builds their messages with this module.
"""

from __future__ import annotations

import ipaddress
import re
from datetime import datetime, timezone
from typing import ClassVar

import attrs

from framework.errors import ObjectError, SourceError
from framework.storage.timestamps import utc_moment

_MAX_DETAIL = 300
MASK = "***"
_MAX_RETRY_AFTER_DIGITS = 9
NO_DOCUMENT = "this answer is no document of the store: an ingress, load balancer or proxy made it"
"""Why such a refusal is retried: it says nothing about the object, the bucket or the permissions."""

NEEDS_NO_DOCUMENT = frozenset((407, 408, 412, 416, 429))
"""Refusals that say enough without a document, whoever sends them: the proxy's own, time, condition, range, rate."""


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


def make_error(kind: type[SourceError], failed: StoreCall, sentence: str) -> SourceError:
    """Return an error of that kind about that place, secrets masked."""
    for secret in failed.secrets:
        sentence = sentence.replace(secret, MASK)
    if issubclass(kind, ObjectError):
        return kind(sentence, location=failed.location)
    return kind(f"{failed.location}: {sentence}")


def innermost(error: BaseException) -> str:
    """Describe the innermost cause in a few words, without an address's query."""
    bottom = error
    while True:
        inner = getattr(bottom, "kwargs", {}).get("error") if hasattr(bottom, "kwargs") else None
        inner = inner or getattr(bottom, "reason", None) or bottom.__cause__
        if not isinstance(inner, BaseException) or inner is bottom:
            break
        bottom = inner
    message = redact(str(bottom))
    # urllib3: "<botocore.awsrequest.AWSHTTPConnection object at 0x7f...>: Failed to ...": the object adds nothing.
    message = re.sub(r"<[^<>]*object at 0x[0-9a-f]+>(?:: )?", "", message)
    name = type(error).__name__
    return f"{name}: {message}" if message else name


# Each looks at a character a bounded number of times, whatever a server writes: the first takes an address whole.
_ADDRESS = re.compile(r"https?://[^\s'\"]*")
_USER = re.compile(r"(https?://)[^\s/'\"]*@")
# Unconfigured secrets come from roles and metadata services: AWS access key ids, Google's tokens, and long base64.
_TOKENS = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b|\bya29\.[\w.-]+|[A-Za-z0-9+/=_-]{100,}")


def redact(text: str) -> str:
    """Remove users and queries of addresses, keys and tokens; return one line of at most 300 characters."""
    text = _TOKENS.sub(MASK, _ADDRESS.sub(_bare_address, " ".join(text.split())))
    return text if len(text) <= _MAX_DETAIL else f"{text[:_MAX_DETAIL]}..."


def _bare_address(address: re.Match[str]) -> str:
    return _USER.sub(r"\1", address[0]).partition("?")[0]


def is_loopback(host: str) -> bool:
    """Return whether traffic to that host stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


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
