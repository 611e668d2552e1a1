"""Creation and login of the official client, in one place."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from framework.errors import ConfigError, FatalError, IggyProtocolError, IggyUnavailableError, SourceError
from framework.iggy.errors_map import Answer, answer_of, classify

if TYPE_CHECKING:
    import apache_iggy

    Config = apache_iggy.TcpConfig | apache_iggy.QuicConfig | apache_iggy.WebSocketConfig

    from framework.config.iggy_address import IggyAddress

_HEARTBEAT = timedelta(seconds=5)
_QUIC_KEEP_ALIVE = timedelta(seconds=2)
_QUIC_IDLE = timedelta(seconds=8)
"""After so long without a packet both sides drop a connection: before a start gives up looking (`LOOK_SECONDS`)."""

_QUIC_WINDOW = 64 << 20
_MIN_HANDSHAKE_SECONDS = 1.0

# The process that made the first client. The client's threads stay behind in a fork, and a client made in the child
# then hangs forever.
_first_pid: int | None = None


def check_process(made_in: int | None = None) -> None:
    """Reject processes where a connection cannot work: children forked after a connection was made.

    Args:
        made_in: process of the connection; None checks for any earlier connection.

    Raises:
        FatalError: this is such a child.
    """
    first = _first_pid if made_in is None else made_in
    if first is not None and first != os.getpid():
        raise FatalError(
            f"a connection to Iggy was made in process {first}, and process {os.getpid()} was forked from it: "
            "connections do not outlive a fork; start processes with the method 'spawn', and connect inside them"
        )


async def open_client(address: IggyAddress, timeout_seconds: float) -> tuple[apache_iggy.IggyClient, str]:
    """Return a connected and logged-in client, and the host's address that it uses: the first that answers.

    Host names are resolved here, so that a wrong name and an unavailable server give different messages.

    Raises:
        IggyUnavailableError: the name is unknown, or there is no answer within the limit.
        IggyAuthError: wrong user, password or token.
        IggyProtocolError: the server speaks another version, or its certificate is rejected.
        ConfigError: the file of authorities cannot be used.
    """
    global _first_pid  # noqa: PLW0603  (one process, one runtime inside the client)
    import apache_iggy as iggy  # noqa: PLC0415  (23 MB, and threads of its own: loaded when used)

    if address.tls and address.tls_ca_file is not None:
        check_ca_file(address.tls_ca_file)
    _first_pid = os.getpid()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    try:
        found = await asyncio.wait_for(
            loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM), timeout_seconds
        )
    except (OSError, UnicodeError, asyncio.TimeoutError) as error:
        raise IggyUnavailableError(
            f"connect: the name of Iggy's host {address.host} was not resolved; check it in [iggy], and the name service"
        ) from error
    failure: BaseException = ConnectionError("no address")
    for ip in dict.fromkeys(str(entry[4][0]) for entry in found):
        client, left = iggy.IggyClient(_config(address, ip)), deadline - loop.time()
        try:
            await asyncio.wait_for(client.connect(), max(0.01, left))
        except asyncio.TimeoutError:
            failure = TimeoutError("no answer in time")
        except Exception as error:  # noqa: BLE001  (classified below)
            failure = error.with_traceback(None)  # whose frame knows the client that is returned
        else:
            return client, ip
        if answer_of(failure) is not Answer.BROKEN or left <= 0:
            break
    raise await _explained(address, failure, max(_MIN_HANDSHAKE_SECONDS, deadline - loop.time())) from failure


async def _explained(address: IggyAddress, failure: BaseException, limit_seconds: float) -> SourceError:
    """Return the error for a failed attempt, with what is known about QUIC and TLS."""
    classified = classify(failure, "connect", server=address.server, login=address.login)
    if not isinstance(classified, IggyUnavailableError):
        return classified
    if address.transport == "quic" and address.tls_validate_certificate:
        return IggyUnavailableError(
            f"{classified}. Over QUIC the client accepts certificates of public authorities only: for another one set "
            "validate_certificate = false in [iggy.tls]"
        )
    if address.tls and address.transport != "quic":
        await _explain_tls(address, classified, limit_seconds)
    return classified


_OPTIONS = "set tls_ca_file or tls_domain in [iggy] url, or ca_file or domain in [iggy.tls]"
_INTERMEDIATE = f"{_OPTIONS}; the server must send its intermediate certificates"
_CLOCK = "renew it on the server, or set this machine's clock"
_NOT_YET_VALID, _EXPIRED, _UNKNOWN_ISSUER, _UNKNOWN_FIRST_ISSUER = 9, 10, 20, 21
_WAYS_OUT = {
    _NOT_YET_VALID: _CLOCK,
    _EXPIRED: _CLOCK,
    _UNKNOWN_ISSUER: _INTERMEDIATE,
    _UNKNOWN_FIRST_ISSUER: _INTERMEDIATE,
}
"""By the codes of X509_verify_cert (OpenSSL, x509_vfy.h)."""
_NO_CONNECTION = "Cannot establish connection"
"""The client's text for a certificate that it refuses, too. After a handshake it has others."""
_PASSING = {_NOT_YET_VALID, _EXPIRED}
"""A program renews it, or a time service sets this machine's clock."""


def check_ca_file(path: str) -> None:
    """Check that a file has certificates: the client's error for any other file blames the server.

    Raises:
        ConfigError: names the option, the path and what is wrong.
    """
    where = f"iggy.tls.ca_file, or tls_ca_file in iggy.url: {path}"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except ssl.SSLError as exc:
        raise ConfigError(f"{where} has no certificate that can be read ({exc.reason}): PEM is needed") from exc
    except OSError as exc:
        raise ConfigError(f"{where} cannot be read: {exc.strerror}") from exc


async def _explain_tls(address: IggyAddress, error: IggyUnavailableError, limit_seconds: float) -> None:
    """Make a handshake to find the cause of a failed TLS connection: the client gives the same text for most.

    Raises:
        IggyProtocolError: the server's certificate is rejected.
        IggyUnavailableError: it has expired, or is not valid yet; or the handshake breaks off, or succeeds.
    """
    trusted = f"tls_ca_file = {address.tls_ca_file}" if address.tls_ca_file is not None else "no tls_ca_file"
    try:
        # the same default as the client's is not at hand: the machine's authorities are close to it
        context = ssl.create_default_context(cafile=address.tls_ca_file)
        if not address.tls_validate_certificate:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        opening = asyncio.open_connection(
            address.host, address.port, ssl=context, server_hostname=address.tls_domain or address.host
        )
        _, writer = await asyncio.wait_for(opening, limit_seconds)
    except ssl.SSLCertVerificationError as exc:
        kind = IggyUnavailableError if exc.verify_code in _PASSING else IggyProtocolError
        raise kind(
            f"connect: the certificate of Iggy at {address.server} is not accepted: {exc.verify_message} (the name asked for is "
            f"{address.tls_domain or address.host}, with {trusted}); {_WAYS_OUT.get(exc.verify_code, _OPTIONS)}"
        ) from exc
    except ssl.SSLError as exc:
        raise IggyUnavailableError(
            f"{error}; the TLS handshake fails ({exc.reason}): does this port speak TLS?"
        ) from exc
    except (OSError, asyncio.TimeoutError):
        return
    writer.close()
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), _MIN_HANDSHAKE_SECONDS)
    if not address.tls_validate_certificate or _NO_CONNECTION not in str(error):
        return
    raise IggyUnavailableError(
        f"{error}; a TLS handshake with {trusted} goes well, so the client refuses the certificate: it accepts no certificate "
        "that is its own authority, and without tls_ca_file those of public authorities only"
    )


def _config(address: IggyAddress, ip: str) -> Config:
    """Return the client's configuration.

    Its reconnection is off everywhere: it hides restarts in which confirmed messages were lost, and by default it
    retries forever.
    """
    import apache_iggy as iggy  # noqa: PLC0415  (loaded when used)

    if address.token is not None:
        login = iggy.AutoLogin.personal_access_token(address.token)
    else:
        login = iggy.AutoLogin.username_password(address.user, address.password or "")
    server = f"[{ip}]:{address.port}" if ":" in ip else f"{ip}:{address.port}"
    domain = (address.tls_domain or address.host) if address.tls else None
    if address.transport == "quic":
        return iggy.QuicConfig(
            server_address=server,
            # by default it is bound to loopback
            client_address="[::]:0" if ":" in ip else "0.0.0.0:0",
            server_name=domain,
            validate_certificate=address.tls_validate_certificate,
            auto_login=login,
            reconnection=iggy.QuicReconnectionConfig(enabled=False),
            heartbeat_interval=_HEARTBEAT,
            keep_alive_interval=_QUIC_KEEP_ALIVE,
            max_idle_timeout=_QUIC_IDLE,
            # with the default windows of 100 kB, a request of 2 MB takes half a second
            send_window=_QUIC_WINDOW,
            receive_window=_QUIC_WINDOW,
            datagram_send_buffer_size=_QUIC_WINDOW,
            response_buffer_size=_QUIC_WINDOW,
        )
    options: dict[str, Any] = {
        "server_address": server,
        "auto_login": login,
        "heartbeat_interval": _HEARTBEAT,
        "tls_enabled": address.tls,
        "tls_domain": domain,
        "tls_ca_file": address.tls_ca_file,
        "tls_validate_certificate": address.tls and address.tls_validate_certificate,
    }
    if address.transport == "websocket":
        return iggy.WebSocketConfig(reconnection=iggy.WebSocketReconnectionConfig(enabled=False), **options)
    return iggy.TcpConfig(
        reconnection=iggy.TcpReconnectionConfig(enabled=False),
        # Without it each send waits 44 ms for the other side's delayed acknowledgement.
        nodelay=True,
        **options,
    )
