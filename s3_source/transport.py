"""How requests of boto3 are sent: over `framework.storage.http.loop`. A GetObject is not sent: it only shows how it is made."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from framework.storage.http.errors import HttpError
from framework.storage.http.loop import HttpLoop
from s3_source.pages import EMPTY_ANSWER
from s3_source.xml_limits import MAX_BYTES, check_document

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

BODY = "_Body"
"""The name in boto3's answer under which the body of a listing is."""

ACCEPT_ENCODING = "Accept-Encoding"
CHECKSUM_MODE = "x-amz-checksum-mode"

_SHOWN = "GetObject"
"""boto3 makes this request to show how; it is never sent as such."""
_SENT = ("ListObjectsV2", "HeadObject", "HeadBucket", "GetObjectTagging", "CreateSession")
"""What boto3 makes and signs, and the loop sends: every other operation that is used."""


class Transport:
    """What botocore calls on the way of a client's requests. Thread-safe.

    Args:
        client: boto3's client of S3.
        http: sends its requests.
        follows_region: whether botocore may look for the bucket in other regions.
    """

    def __init__(self, client: S3Client, http: HttpLoop, *, follows_region: bool) -> None:
        self._client = client
        self._http = http
        self._of_thread = threading.local()
        events: Any = client.meta.events
        if not follows_region:
            events.register("before-call.s3", _stay)
        events.register(f"before-sign.s3.{_SHOWN}", self._complete)
        events.register_first(f"before-send.s3.{_SHOWN}", self._show)
        for operation in _SENT:
            events.register_first(f"before-send.s3.{operation}", self._send)
        # Under this name it comes before botocore's own: one of those parses each answer to see whether it is an error.
        events.register("before-parse.*.ListObjectsV2", _keep_body)

    def get_as_made(self, headers: Mapping[str, str], **options: Any) -> tuple[str, dict[str, str]]:
        """Return address and headers of a GetObject as boto3 signs it, without sending it.

        Args:
            headers: conditions, range, accepted encoding and checksum mode.
            options: the other parameters of boto3's `get_object`.
        """
        names = {"If-Match": "IfMatch", "If-Unmodified-Since": "IfUnmodifiedSince", "Range": "Range"}
        options |= {names[name]: value for name, value in headers.items() if name in names}
        own = self._of_thread
        own.checksum_mode = headers.get(CHECKSUM_MODE)
        self._client.get_object(**options)
        url, made = own.request
        made = {name: value.decode() if isinstance(value, bytes) else str(value) for name, value in made.items()}
        made[ACCEPT_ENCODING] = headers.get(ACCEPT_ENCODING, "identity")  # not signed: caches change it on the way
        return url, made

    def _complete(self, *, request: Any, **_: Any) -> None:
        """Complete a GetObject; called by botocore just before it signs.

        The header is not asked for by its parameter: botocore would compute the checksum, too.
        """
        if self._of_thread.checksum_mode is not None:
            request.headers[CHECKSUM_MODE] = self._of_thread.checksum_mode

    def _show(self, *, request: Any, **_: Any) -> Any:
        """Keep a GetObject instead of sending it, and return an empty answer; called by botocore."""
        from botocore.awsrequest import AWSResponse  # noqa: PLC0415

        self._of_thread.request = request.url, dict(request.headers.items())
        head: Any = {}  # the published types name a class of botocore's own
        return AWSResponse(request.url, HTTPStatus.OK.value, head, io.BytesIO())

    def _send(self, *, request: Any, **_: Any) -> Any:
        """Send a request over the loop, which limits size and time of its answer; called by botocore.

        Raises:
            HttpError: there was no answer, it did not come whole, or is too large.
        """
        from botocore.awsrequest import AWSResponse  # noqa: PLC0415

        made = {ACCEPT_ENCODING: "identity", **request.headers}
        lines = [f"{name}: {value.decode() if isinstance(value, bytes) else value}" for name, value in made.items()]
        send = self._http.head if request.method == "HEAD" else self._http.get
        with contextlib.closing(send(request.url, lines)) as answer:
            status = answer.status
            head: Any = answer.headers  # the published types name classes of botocore's own
            document = answer.read_all(MAX_BYTES)
        try:
            check_document(document)
        except HttpError:
            if status == HTTPStatus.OK:
                raise
            document = b""  # of a refusal, which a proxy may have made: its status tells enough
        body: Any = _Document(document)
        return AWSResponse(request.url, status, head, body)


class _Document(io.BytesIO):
    """A body as botocore reads it."""

    def stream(self, **_: object) -> Iterator[bytes]:
        """Yield the whole body."""
        yield self.getvalue()


def _keep_body(*, response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object) -> None:
    """Keep the body of a listing, and give botocore's parser an empty one; called by botocore."""
    if response_dict["status_code"] == HTTPStatus.OK and b"ListBucketResult" in response_dict["body"][:1000]:
        customized_response_dict[BODY] = response_dict["body"]
        response_dict["body"] = EMPTY_ANSWER


def _stay(*, context: dict[str, Any], **_: object) -> None:
    """Called by botocore before each request: it takes this one for redirected already."""
    context.setdefault("s3_redirect", {})["redirected"] = True
