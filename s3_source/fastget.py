"""The short way to an object: the request that boto3 made for the first one is the pattern of all others.

boto3 spends about a millisecond of CPU on every `get_object`: it validates parameters, resolves the endpoint by rules,
emits some twenty events and builds a response, with the same outcome for each object of a bucket. What does change from
object to object is the key in the path, the range, the ETag and the signature. No vendor library in here: the client
signs with botocore's signer and sends over botocore's connections.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from urllib.parse import quote

import attrs

# What belongs to one request only. Everything else that boto3 sent is sent again: SSE-C, requester pays, user agent.
_OF_ONE_REQUEST = frozenset(
    (
        "amz-sdk-invocation-id",
        "amz-sdk-request",
        "authorization",
        "host",
        "accept-encoding",
        "if-match",
        "if-unmodified-since",
        "range",
        "x-amz-checksum-mode",
        "x-amz-content-sha256",
        "x-amz-date",
        "x-amz-security-token",
    )
)

_ERROR_FIELD = re.compile(r"<(Code|Message|Region)>([^<]*)</")


@attrs.frozen(kw_only=True)
class Pattern:
    """The request for any object of the bucket.

    Attributes:
        base: the address up to the key.
        headers: those of every request.
        service: name to sign for; empty = unsigned.
        region: region to sign for.
    """

    base: str
    headers: Mapping[str, str] = attrs.field(repr=False)
    service: str = ""
    region: str = ""

    def url(self, key: str) -> str:
        """The address of an object. The same characters stay as they are as in botocore."""
        return self.base + quote(key, safe="/~")

    def request_headers(self, conditions: Mapping[str, str], wanted: str | None) -> dict[str, str]:
        """The headers of one request, before it is signed."""
        headers = {**self.headers, **conditions}
        if wanted is not None:
            headers["Range"] = wanted
        return headers


def pattern_of(url: str, headers: Mapping[str, object], key: str, *, service: str, region: str) -> Pattern | None:
    """The pattern of a request made for `key`; None when its address does not end with the key."""
    ending = quote(key, safe="/~")
    if not url.endswith("/" + ending):
        return None
    kept = {
        name: value.decode() if isinstance(value, bytes) else str(value)
        for name, value in headers.items()
        if name.lower() not in _OF_ONE_REQUEST
    }
    return Pattern(base=url[: len(url) - len(ending)], headers=kept, service=service, region=region)


def error_fields(body: bytes) -> dict[str, str]:
    """`Code`, `Message` and `Region` of S3's error document; empty when there is none.

    By pattern and not by an XML parser: the document is short and flat, and nothing in it must be followed.
    """
    text = body.decode("utf-8", "replace")
    if "<Error" not in text:
        return {}
    return {name: html.unescape(value) for name, value in _ERROR_FIELD.findall(text)}
