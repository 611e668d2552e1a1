"""A request of libcurl: its options, its callbacks, and what its errors mean."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pycurl

from framework.model.secret_masking import without_login
from framework.storage.http.errors import (
    HttpConnectError,
    HttpConnectTimeoutError,
    HttpCutError,
    HttpError,
    HttpProxyError,
    HttpTlsError,
)

if TYPE_CHECKING:
    from framework.storage.http.answer import HttpAnswer
    from framework.storage.http.kept_connections import KeptConnections

_CA_CACHE_TIMEOUT = 321
"""`CURLOPT_CA_CACHE_TIMEOUT`, seconds, of libcurl 7.87 (`curl/curl.h`); pycurl has no name for it."""

AUTHORITIES_SECONDS = 60
"""How long the authorities of `ca_file` are kept: to read the public ones takes 30 ms of CPU, and a new
authority is put into the file before a server's certificate is of it. libcurl's default is a day."""

BUFFER_BYTES = 1 << 19
"""The most that libcurl takes off a socket at once: large, because each piece costs a call into Python."""


@attrs.frozen(kw_only=True)
class HttpOptions:
    """How the loop connects.

    Attributes:
        connect_seconds: limit of a connection attempt, with TLS.
        read_seconds: limit of silence; over twice this time a body must bring `MIN_BYTES_PER_SECOND`; documents
            and refusals have an end, too: `DOCUMENT_BYTES_PER_SECOND`.
        max_connections: connections kept, and requests made ahead at once.
        proxy: address of the proxy; empty = none, whatever the environment says.
        ca_file: the certificate authorities to trust; a file, or a folder of hashed names.
    """

    connect_seconds: float
    read_seconds: float
    max_connections: int
    proxy: str = attrs.field(default="", repr=False)
    ca_file: str = ""


class Transfer:
    """An easy handle of libcurl, used for one request after the other: options that stay are set once.

    Attributes:
        answer: the request that it makes.
        spoilt: whether the request was not sent, because something had come on the kept connection. It is closed.
    """

    __slots__ = ("_is_head", "_is_small", "_kept", "_opened", "_receive", "answer", "curl", "spoilt")

    def __init__(
        self, options: HttpOptions, receive: Callable[[HttpAnswer, bytes], bool], kept: KeptConnections
    ) -> None:
        """Make a handle.

        Args:
            options: how it connects.
            receive: takes a piece of a body; False when there is no room for it: the transfer is then paused.
            kept: the connections of its loop.
        """
        self._receive = receive
        self._kept = kept
        self._opened: list[int] = []
        self.spoilt = False
        self.answer: HttpAnswer | None = None
        self._is_head = self._is_small = False
        self.curl = curl = pycurl.Curl()
        for option, value in (
            (pycurl.NOSIGNAL, 1),
            (pycurl.PATH_AS_IS, 1),  # a key may be `./x` or `a//b`
            (pycurl.FOLLOWLOCATION, 0),
            (pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS),
            (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1),
            (pycurl.CONNECTTIMEOUT_MS, int(options.connect_seconds * 1000)),
            (pycurl.TCP_KEEPALIVE, 1),
            (pycurl.TCP_NODELAY, 1),
            (pycurl.BUFFERSIZE, BUFFER_BYTES),
            (pycurl.PROXY, options.proxy),
            (pycurl.NOPROXY, ""),
            (pycurl.WRITEFUNCTION, self._body),
            (pycurl.SOCKOPTFUNCTION, self._open),
            (pycurl.PREREQFUNCTION, self._before_request),
        ):
            curl.setopt(option, value)
        if options.ca_file:
            folder, path = Path(options.ca_file).is_dir(), os.fsencode(options.ca_file)
            curl.setopt(pycurl.CAPATH if folder else pycurl.CAINFO, path)
            curl.setopt(pycurl.PROXY_CAPATH if folder else pycurl.PROXY_CAINFO, path)
            curl.setopt(_CA_CACHE_TIMEOUT, AUTHORITIES_SECONDS)

    def prepare(self, answer: HttpAnswer) -> None:
        """Take the next request."""
        self.answer = answer
        self.spoilt = False
        self._opened.clear()
        curl = self.curl
        if answer.is_head is not self._is_head:
            self._is_head = answer.is_head
            curl.setopt(pycurl.NOBODY if answer.is_head else pycurl.HTTPGET, 1)  # codespell:ignore nobody
        if answer.is_small is not self._is_small:
            self._is_small = answer.is_small
            version = pycurl.CURL_HTTP_VERSION_2TLS if answer.is_small else pycurl.CURL_HTTP_VERSION_1_1
            curl.setopt(pycurl.HTTP_VERSION, version)
        curl.setopt(pycurl.URL, answer.url)
        curl.setopt(pycurl.HTTPHEADER, answer.request_headers)
        curl.setopt(pycurl.HEADERFUNCTION, answer.lines.append)

    def go_on(self) -> None:
        """Resume the transfer, which is paused."""
        self.curl.pause(pycurl.PAUSE_CONT)

    def close_request(self) -> None:
        """Learn from a request that has ended whether its connection speaks HTTP/1.1."""
        kept = self._kept
        if not kept.unproven or not self._is_small:
            return
        if self.curl.getinfo(pycurl.INFO_HTTP_VERSION) == pycurl.CURL_HTTP_VERSION_1_1:
            kept.prove(self.curl.getinfo(pycurl.LOCAL_PORT))

    def _open(self, fd: int, _purpose: int) -> int:
        """Called by libcurl for each socket that it opens."""
        self._opened.append(fd)
        going: int = pycurl.SOCKOPT_OK
        return going

    def _before_request(self, _address: str, _local: str, _port: int, local_port: int) -> int:
        """Called by libcurl when the connection stands, before it sends the request."""
        if self._opened:
            answer = self.answer
            may_share = self._is_small and answer is not None and answer.url.startswith("https:")
            self._kept.add(local_port, self._opened, may_share=may_share)
            self._opened.clear()
        elif self._kept.is_spoilt(local_port):
            self.spoilt = True
        verdict: int = pycurl.PREREQFUNC_ABORT if self.spoilt else pycurl.PREREQFUNC_OK
        return verdict

    def _body(self, data: bytes) -> int | None:
        answer = self.answer
        if answer is None or self._receive(answer, data):
            return None
        pause: int = pycurl.WRITEFUNC_PAUSE
        return pause


def failure_of(code: int, message: str, *, proxy: str) -> HttpError:
    """Return what an error of libcurl means, without the proxy's login: libcurl repeats an address that it cannot use.

    Args:
        code: its number, `CURLE_...`.
        message: its text.
        proxy: address of the proxy; empty = none.
    """
    message = without_login(message, proxy)
    if code == pycurl.E_PARTIAL_FILE:
        return HttpCutError(message)
    if code == pycurl.E_OPERATION_TIMEDOUT:
        return HttpConnectTimeoutError(message)
    if code in _TLS:
        message = f"WRONG_VERSION: {message}" if "wrong version" in message.lower() else message
        return HttpTlsError(message if code == pycurl.E_SSL_CONNECT_ERROR else f"CERTIFICATE: {message}")
    if proxy and (code in _PROXY or "CONNECT tunnel" in message):
        return HttpProxyError(message)
    if code in (pycurl.E_COULDNT_CONNECT, pycurl.E_COULDNT_RESOLVE_HOST):
        return HttpConnectError(f"{message}{_no_file_left()}")
    return HttpError(message or _UNNAMED.get(code) or f"libcurl's error {code}")


def _no_file_left() -> str:
    """Return what the system says of another open file, if it refuses one: libcurl says only that it cannot connect."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return f": {error.strerror}"
    return ""


_TLS = (
    pycurl.E_SSL_CONNECT_ERROR,
    pycurl.E_PEER_FAILED_VERIFICATION,
    pycurl.E_SSL_CACERT_BADFILE,
    pycurl.E_SSL_CERTPROBLEM,
)
_UNNAMED = {pycurl.E_HTTP2: "the connection over HTTP/2 broke", 100: "a header of the answer is too large"}
"""What libcurl gives no message for; pycurl has no name for the 100."""
_PROXY = (pycurl.E_COULDNT_RESOLVE_PROXY, pycurl.E_COULDNT_CONNECT)
