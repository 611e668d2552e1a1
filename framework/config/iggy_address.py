"""The Iggy server's address and its credentials: the value of `[iggy] url`.

    iggy://user:password@host:port                      TCP; the default port is 8090
    iggy+tcp://...                                      the same
    iggy+tls://user:password@host:port?tls_ca_file=FILE&tls_domain=NAME
    iggy+quic://user:password@host:port?tls_domain=NAME QUIC, always encrypted; the default port is 8080
    iggy+ws://user:password@host:port                   WebSocket; the default port is 8092
    iggy+wss://user:password@host:port?tls_ca_file=FILE WebSocket over TLS
    iggy://host:port?token=TOKEN                        a personal access token, percent-encoded, as the server gave it
    iggy://iggypat-TOKEN@host:port                      the same; the prefix `iggypat-` is removed
    embedded:PATH                                       the development server of this project, its data in PATH

User, password and token are percent-decoded here: a `%` in a password is written `%25`, a `:` in a user's
name `%3A`. The last `@` ends the credentials, so `@`, `:`, `/`, `?` and `#` in a password may be literal,
or `%40`, `%3A`, `%2F`, `%3F` and `%23`. An IPv6 address is in brackets. The official client supports
neither.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote

import attrs
from typing_extensions import override

from framework.config.option import nearest
from framework.errors import ConfigError
from framework.model.local_hosts import is_this_machine

DEFAULT_PORTS = {"tcp": 8090, "quic": 8080, "websocket": 8092}
DEFAULT_PORT = DEFAULT_PORTS["tcp"]
TRANSPORTS = tuple(DEFAULT_PORTS)
_MAX_PORT = 65535
_PLACE = re.compile(r"(\[(?P<ipv6>[^\]]*)\]|(?!\[)(?P<name>[^:]*))(:(?P<port>[^:]*))?")
_PORT = re.compile(r"[0-9]{1,99}")
TOKEN_MARK = "iggypat-"  # noqa: S105  (a mark, not a secret)
_OPTIONS = ("tls_ca_file", "tls_domain", "tls_validate_certificate", "token")
_TLS_OPTIONS = frozenset(_OPTIONS) - {"token"}
_QUERY = re.compile(rf"\?(?=(?:{'|'.join(_OPTIONS)})=)")
_SCHEMES = {
    "iggy": ("tcp", False),
    "iggy+tcp": ("tcp", False),
    "iggy+tls": ("tcp", True),
    "iggy+quic": ("quic", True),
    "iggy+ws": ("websocket", False),
    "iggy+wss": ("websocket", True),
}
"""Scheme -> transport, whether it is encrypted."""

_HTTP = {"iggy+http", "iggy+https", "http", "https"}
_BARE = {"tcp": "iggy", "tls": "iggy+tls", "quic": "iggy+quic", "ws": "iggy+ws", "wss": "iggy+wss"}


QUIC_AUTHORITIES = "over QUIC the official client trusts public authorities only, and no file; leave it out"


def _hidden(secret: str | None) -> str:
    return "None" if secret is None else "***"


ACCESS_TOKEN = "the access token"  # noqa: S105 - its name in messages


@attrs.frozen(kw_only=True, slots=True)
class IggyAddress:
    """A server and its credentials. Its repr and `str` contain no secret.

    Attributes:
        host: name or IP address, IPv6 without brackets; empty for `embedded:`.
        port: the port; QUIC's is a UDP port.
        transport: `tcp`, `quic` or `websocket`.
        user: the user; empty with a token.
        password: password of that user.
        token: a personal access token, instead of user and password.
        tls: whether the connection is encrypted.
        tls_ca_file: trusted certificates. None: the public authorities that the client was built with
            (Mozilla's list); the system's authorities and `SSL_CERT_FILE` are ignored.
        tls_domain: name in the server's certificate; None means the host.
        tls_validate_certificate: whether the server's certificate is checked.
        embedded_path: data folder of the embedded server; None for a real server.
    """

    host: str = ""
    port: int = DEFAULT_PORT
    transport: str = "tcp"
    user: str = ""
    password: str | None = attrs.field(default=None, repr=_hidden)
    token: str | None = attrs.field(default=None, repr=_hidden)
    tls: bool = False
    tls_ca_file: str | None = None
    tls_domain: str | None = None
    tls_validate_certificate: bool = True
    embedded_path: str | None = None

    @classmethod
    def parse(cls, url: str, *, with_login: bool = False) -> IggyAddress:
        """Parse `url`.

        Args:
            url: the address.
            with_login: whether the login may be given beside it.

        Raises:
            ConfigError: all mistakes of the address at once, without its password or token.
        """
        scheme, colon, rest = url.strip().partition(":")
        scheme = scheme.lower()
        if scheme == "embedded" and colon:
            if not rest:
                raise ConfigError("embedded: needs the path of a data folder, as in embedded:./iggy-data")
            return IggyAddress(embedded_path=rest)
        if scheme in _HTTP:
            raise ConfigError(
                f"{scheme}:// is not supported: HTTP keeps no connection, so Iggy cannot tell when an instance has ended, and two "
                "could send at once; use iggy:// (TCP), iggy+tls://, iggy+quic:// or iggy+ws://"
            )
        if scheme in _BARE and rest.startswith("//"):
            raise ConfigError(f"{scheme}:// is no scheme of an Iggy address; write {_BARE[scheme]}://")
        if scheme not in _SCHEMES or not rest.startswith("//"):
            raise ConfigError("an Iggy address looks like iggy://user:password@host:8090 or embedded:PATH")
        transport, tls = _SCHEMES[scheme]
        return _parse_server(rest[2:], transport=transport, tls=tls, with_login=with_login)

    @property
    def server(self) -> str:
        """`host:port`, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def scheme(self) -> str:
        """The scheme of this address as a URL."""
        kind = (self.transport, self.tls)
        return next(scheme for scheme, known in _SCHEMES.items() if known == kind)

    @property
    def unchecked(self) -> bool:
        """Whether the connection leaves this machine encrypted, to a server whose certificate is not checked."""
        return self.tls and not self.tls_validate_certificate and not is_this_machine(self.host)

    @property
    def in_the_clear(self) -> bool:
        """Whether password and records leave this machine unencrypted."""
        return not self.tls and self.embedded_path is None and not is_this_machine(self.host)

    @property
    def login(self) -> str:
        """The user, for messages: `user "iggy"` or `the access token`."""
        return f'user "{self.user}"' if self.token is None else ACCESS_TOKEN

    @override
    def __str__(self) -> str:
        if self.embedded_path is not None:
            return f"embedded:{self.embedded_path}"
        who = "***@" if self.token is not None else f"{self.user}:***@"
        return f"{self.scheme}://{who}{self.server}"


def _parse_server(rest: str, *, transport: str, tls: bool, with_login: bool) -> IggyAddress:
    mistakes: list[str] = []
    credentials, place, query = _split(rest)
    place, _, path = place.partition("/")
    if path:
        mistakes.append("an Iggy address has no path after the port; write / in a password as %2F")
    host, port = _parse_place(place, DEFAULT_PORTS[transport], mistakes)
    options = _parse_options(query, tls=tls, mistakes=mistakes)
    if transport == "quic" and "tls_ca_file" in options:
        mistakes.append(f"tls_ca_file: {QUIC_AUTHORITIES}")
    validate = options.get("tls_validate_certificate", "true")
    if validate not in {"true", "false"}:
        mistakes.append("tls_validate_certificate must be true or false")
    user, colon, password = (unquote(part) for part in credentials.partition(":"))
    token = options.get("token")
    if user.startswith(TOKEN_MARK) and not colon:
        if token is not None:
            mistakes.append("the access token stands twice: before the @ and as token=")
        token, user = user[len(TOKEN_MARK) :], ""
    if token is not None and (user or password):
        mistakes.append("give either user and password or an access token, not both")
    elif token is None and not (user and password) and (user or password or not with_login):
        mistakes.append("user and password are missing: iggy://user:password@host, or ?token= for an access token")
    elif token == "":
        mistakes.append("the access token is empty")
    if mistakes:
        raise ConfigError(mistakes)
    return IggyAddress(
        host=host,
        port=port,
        transport=transport,
        user=user,
        password=password if token is None and password else None,
        token=token,
        tls=tls,
        tls_ca_file=options.get("tls_ca_file"),
        tls_domain=options.get("tls_domain"),
        tls_validate_certificate=validate == "true",
    )


def _split(rest: str) -> tuple[str, str, str]:
    """Return credentials, place, and options. The last `@` ends the credentials, so a bare `@` or `?` in a password works.

    A `?` begins the options if the name of an option follows it, whatever comes after. Any other `?`
    before that `@` is part of the password, which no message may show.
    """
    options = _QUERY.search(rest)
    if options is not None:
        credentials, _, place = rest[: options.start()].rpartition("@")
        return credentials, place, rest[options.end() :]
    credentials, _, place = rest.rpartition("@")
    place, _, query = place.partition("?")
    return credentials, place, query


def _parse_place(place: str, usual: int, mistakes: list[str]) -> tuple[str, int]:
    found = _PLACE.fullmatch(place)
    if found is None:
        mistakes.append("an IPv6 address stands in brackets: [::1]:8090")
        return "", usual
    host, port = found["ipv6"] or found["name"] or "", usual
    if not host:
        mistakes.append("the host is missing")
    if found["port"]:
        # int() also takes digits of other scripts, and only some thousand of them
        port = int(found["port"]) if _PORT.fullmatch(found["port"]) else 0
    if not 0 < port <= _MAX_PORT:
        mistakes.append("the port is a number from 1 to 65535")
    return host, port


def _parse_options(query: str, *, tls: bool, mistakes: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    # A plus sign is a plus sign: tokens are base64.
    for name, value in parse_qsl(query.replace("+", "%2B"), keep_blank_values=True):
        if name not in _OPTIONS:
            near = nearest(name, _OPTIONS)
            hint = f"; did you mean {near}?" if near else f"; there are {', '.join(_OPTIONS)}"
            # not the name itself: it may be a piece of a password
            mistakes.append(f"unknown option in the address{hint}; a ? in a password may be written %3F")
        elif name in options:
            mistakes.append(f"{name} stands twice in the address")
        else:
            options[name] = value
    if not tls and options.keys() & _TLS_OPTIONS:
        mistakes.append("options that begin with tls_ need iggy+tls:// or iggy+wss://")
    return options
