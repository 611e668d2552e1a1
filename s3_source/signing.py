"""GET requests for objects: the address and headers that boto3 finds out for a bucket, and Signature Version 4.

boto3 spends about a millisecond of CPU on every `get_object`: it validates parameters, resolves the endpoint by rules and
emits some twenty events, with the same outcome for each object of a bucket. So boto3 makes one request, which is not sent,
and that is the template of all others: what differs is the key in the path, the range, the conditions and the signature.
No vendor library in here: the client hands template and credentials over.

The signature is that of https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html. The signing key
depends on day, region and secret only and is kept; a request costs two hashes. A test compares with botocore's signer.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import re
import time
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import quote, urlsplit

import attrs

# What belongs to one request only. Everything else that boto3 would send is sent: SSE-C, requester pays, user agent.
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

_UNSIGNED = frozenset(("accept", "accept-encoding", "expect", "transfer-encoding", "user-agent", "x-amzn-trace-id"))
"""Caches, proxies and Google's interface change them on the way; botocore leaves out the same but for the first two."""

_EMPTY_BODY = hashlib.sha256(b"").hexdigest()
_SCOPE = re.compile(r"AWS4-HMAC-SHA256 Credential=[^/]+/\d{8}/([^/]+)/([^/]+)/aws4_request,")
_PLAIN = re.compile(r"[A-Za-z0-9_.~/-]*")
_ERROR_FIELD = re.compile(r"<(Code|Message|Region)>([^<]*)</")


@attrs.frozen(kw_only=True)
class Credentials:
    """Keys that are valid now.

    Attributes:
        access_key: id of the key.
        secret_key: the secret.
        token: of temporary keys; empty for others.
    """

    access_key: str
    secret_key: str = attrs.field(repr=False)
    token: str = attrs.field(default="", repr=False)


@attrs.frozen(kw_only=True)
class Template:
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
        return self.base + (key if _PLAIN.fullmatch(key) else quote(key, safe="/~"))

    def has_made(self, url: str, lines: Sequence[str]) -> bool:
        """Whether a request with this address and these headers was made after this template."""
        scope = f"/{self.region}/{self.service}/aws4_request"
        return url.startswith(self.base) and (not self.service or any(scope in line for line in lines))


def template_of(url: str, headers: Mapping[str, object], key: str) -> Template | None:
    """The template in a request that boto3 made and signed for `key`.

    None when requests are signed in another way (S3 Express, multi-region access points), or the address does not end
    with the key.
    """
    ending = quote(key, safe="/~")
    if not url.endswith("/" + ending):
        return None
    texts = {
        name.lower(): value.decode() if isinstance(value, bytes) else str(value) for name, value in headers.items()
    }
    region = service = ""
    if "authorization" in texts:
        scope = _SCOPE.match(texts["authorization"])
        if scope is None or scope[2] != "s3":
            return None
        region, service = scope[1], scope[2]
    kept = {name: value for name, value in texts.items() if name not in _OF_ONE_REQUEST}
    return Template(base=url[: len(url) - len(ending)], headers=kept, service=service, region=region)


@attrs.frozen(kw_only=True)
class _Second:
    """What all requests of a second have in common.

    Attributes:
        at: the second, since 1970.
        credentials: the keys.
        scope: day, region and service.
        keyed: the HMAC with the signing key; copies of it take the text, which costs a third of a new one.
        begun: a copy, which has taken what the texts to sign of all requests begin with.
        always: names and values of the headers that every request signs.
        lines: of the headers that every request has.
    """

    at: int
    credentials: Credentials
    scope: str
    keyed: hmac.HMAC = attrs.field(repr=False)
    begun: hmac.HMAC = attrs.field(repr=False)
    always: Mapping[str, str] = attrs.field(repr=False)
    lines: Sequence[str] = attrs.field(repr=False)


class Signer:
    """Makes the lines of the headers of GETs after one template. Threads may share it.

    Args:
        template: what all requests have in common.
        clock: seconds since 1970.
    """

    def __init__(self, template: Template, clock: Callable[[], float] = time.time) -> None:
        self.template = template
        self._clock = clock
        parts = urlsplit(template.base)
        self._path_at = len(f"{parts.scheme}://{parts.netloc}")
        self._host = _host(parts.netloc, parts.scheme)
        self._common = [f"{name}: {value}" for name, value in template.headers.items()]
        self._common += ["Accept:"]  # libcurl would send one
        self._second: _Second | None = None

    def lines(self, url: str, more: Mapping[str, str], credentials: Credentials | None) -> list[str]:
        """The lines of one request's headers.

        Args:
            url: of the object, after `Template.url`.
            more: headers of this request.
            credentials: to sign with; None: unsigned.
        """
        lines = [f"{name}: {value}" for name, value in more.items()]
        if "Accept-Encoding" not in more:
            lines.append("Accept-Encoding: identity")
        if credentials is None:
            return lines + self._common
        second, at = self._second, int(self._clock())
        known = second is not None and (second.credentials is credentials or second.credentials == credentials)
        if second is None or second.at != at or not known:
            second = self._second = self._begin(at, credentials)
        own = {name.lower(): " ".join(value.split()) for name, value in more.items()}
        texts = {**second.always, **{name: own[name] for name in own if name not in _UNSIGNED}}
        names = sorted(texts)
        signed = ";".join(names)
        headers = "\n".join([f"{name}:{texts[name]}" for name in names])
        request = f"GET\n{url[self._path_at :]}\n\n{headers}\n\n{signed}\n{_EMPTY_BODY}"
        digest = hashlib.sha256(request.encode()).hexdigest()
        signature = second.begun.copy()
        signature.update(digest.encode())
        lines += second.lines
        lines.append(
            f"Authorization: AWS4-HMAC-SHA256 Credential={credentials.access_key}/{second.scope}, "
            f"SignedHeaders={signed}, Signature={signature.hexdigest()}"
        )
        return lines

    def _begin(self, at: int, credentials: Credentials) -> _Second:
        template, last = self.template, self._second
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at))
        scope = f"{moment[:8]}/{template.region}/{template.service}/aws4_request"
        if last is not None and last.credentials == credentials and last.scope == scope:
            keyed = last.keyed
        else:
            key = b"AWS4" + credentials.secret_key.encode()
            for part in scope.split("/"):
                key = hmac.digest(key, part.encode(), "sha256")
            keyed = hmac.new(key, digestmod="sha256")
        begun = keyed.copy()
        begun.update(f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n".encode())
        of_second = {"x-amz-date": moment, "x-amz-content-sha256": _EMPTY_BODY}
        if credentials.token:
            of_second["x-amz-security-token"] = credentials.token
        texts = {**template.headers, **of_second}
        always = {name: " ".join(value.split()) for name, value in texts.items() if name not in _UNSIGNED}
        return _Second(
            at=at,
            credentials=credentials,
            scope=scope,
            keyed=keyed,
            begun=begun,
            always={**always, "host": self._host},
            lines=[*self._common, *(f"{name}: {value}" for name, value in of_second.items())],
        )


def _host(netloc: str, scheme: str) -> str:
    """The header `Host` as libcurl sends it: without a user, and without the port that is usual."""
    host = netloc.rpartition("@")[2]
    usual = ":80" if scheme == "http" else ":443"
    return host.removesuffix(usual)


def error_fields(body: bytes) -> dict[str, str]:
    """`Code`, `Message` and `Region` of S3's error document; empty when there is none.

    By pattern and not by an XML parser: the document is short and flat, and nothing in it must be followed.
    """
    text = body.decode("utf-8", "replace")
    if "<Error" not in text:
        return {}
    return {name: html.unescape(value) for name, value in _ERROR_FIELD.findall(text)}
