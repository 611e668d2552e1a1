"""Failures of an HTTP request that got no complete answer; the stores' tables of errors name these classes."""

from __future__ import annotations

MAX_REFUSAL_BYTES = 65_536
"""Bytes of the body of a refusal by which its reader judges it. It gives none of them back before."""


class HttpError(OSError):
    """The connection or its answer failed."""


class HttpConnectError(HttpError):
    """The server cannot be reached."""


class HttpConnectTimeoutError(HttpConnectError):
    """The server did not take the connection in time."""


class HttpCutError(HttpError):
    """The connection ended before the announced length."""


class HttpReadTimeoutError(HttpError):
    """The server was silent for too long."""


class HttpProxyError(HttpError):
    """The proxy cannot be reached, or refuses."""


class HttpTlsError(HttpError):
    """The server speaks no TLS, or its certificate is not trusted."""
