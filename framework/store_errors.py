"""What the errors of all stores have in common: the place, the words at the bottom of a cause, and no secret in them.

A store's package maps its vendor's errors to those of `framework.errors`; it builds their messages with this.
"""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from typing import ClassVar

import attrs

from framework.errors import ObjectError, SourceError

_LONGEST_DETAIL = 300


@attrs.frozen(kw_only=True)
class StoreCall:
    """A call to a store that failed: for the message.

    Attributes:
        scheme: the store, as it stands in an address.
        operation: as the vendor calls it.
        bucket: its bucket.
        key: the object; empty when the failure is of the bucket.
        endpoint: the configured address; empty for the vendor's own.
    """

    scheme: ClassVar[str]
    operation: str
    bucket: str
    key: str = ""
    endpoint: str = ""

    @property
    def location(self) -> str:
        """`s3://bucket/key`."""
        return f"{self.scheme}://{self.bucket}/{self.key}" if self.key else f"{self.scheme}://{self.bucket}"


def make_error(kind: type[SourceError], failed: StoreCall, sentence: str) -> SourceError:
    """An error of that kind about that place."""
    if issubclass(kind, ObjectError):
        return kind(sentence, location=failed.location)
    return kind(f"{failed.location}: {sentence}")


def innermost(error: BaseException) -> str:
    """What went wrong at the bottom, in a few words and without an address's query."""
    bottom = error
    while True:
        inner = getattr(bottom, "kwargs", {}).get("error") if hasattr(bottom, "kwargs") else None
        inner = inner or getattr(bottom, "reason", None) or bottom.__cause__
        if not isinstance(inner, BaseException) or inner is bottom:
            break
        bottom = inner
    said = redact(str(bottom))
    # urllib3: "<botocore.awsrequest.AWSHTTPConnection object at 0x7f...>: Failed to ...": the object says nothing.
    said = re.sub(r"<[^<>]*object at 0x[0-9a-f]+>(?:: )?", "", said)
    name = type(error).__name__
    return f"{name}: {said}" if said else name


_QUERY = re.compile(r"(https?://)(?:[^\s/@'\"]*@)?([^\s?'\"]*)\?[^\s'\"]*")
_USER = re.compile(r"(https?://)[^\s/@'\"]+@")


def redact(text: str) -> str:
    """The text without users and queries of addresses, on one line, at most 300 characters."""
    text = _USER.sub(r"\1", _QUERY.sub(r"\1\2", " ".join(text.split())))
    return text if len(text) <= _LONGEST_DETAIL else f"{text[:_LONGEST_DETAIL]}..."


def retry_after_seconds(header: str | None) -> float | None:
    """The header `Retry-After`: seconds, or a date; None when it is absent or makes no sense."""
    if not header:
        return None
    if header.strip().isdigit():
        return float(header)
    try:
        moment = parsedate_to_datetime(header)
    except (TypeError, ValueError):
        return None
    from datetime import datetime, timezone  # noqa: PLC0415  # seldom needed

    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return max(0.0, (moment - datetime.now(timezone.utc)).total_seconds())
