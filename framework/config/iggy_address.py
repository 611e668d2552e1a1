"""The Iggy server's address and the credentials: the value of `[iggy] url`, or of `address` and the options beside it.

    iggy://user:password@host:port                      TCP; the default port is 8090
    iggy+tcp://...                                      the same
    iggy+tls://user:password@host:port?tls_ca_file=FILE&tls_domain=NAME
    iggy://host:port?token=TOKEN                        a personal access token, percent-encoded, as the server gave it
    iggy://iggypat-TOKEN@host:port                      the same; the prefix `iggypat-` is removed
    embedded:PATH                                       the development server of this project, its data in PATH

User, password and token are percent-decoded here: a `%` in a password is written `%25`, a `:` in a user's
name `%3A`. The last `@` ends the credentials, so `@`, `:`, `/`, `?` and `#` in a password may be literal,
or `%40`, `%3A`, `%2F`, `%3F` and `%23`. An IPv6 address is in brackets. The official client supports
neither.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Callable, Iterator
from urllib.parse import parse_qsl, unquote

import attrs
from typing_extensions import override

from framework.errors import ConfigError

DEFAULT_PORT = 8090
_MAX_PORT = 65535
_TOKEN_MARK = "iggypat-"  # noqa: S105  (a mark, not a secret)
_OPTIONS = ("tls_ca_file", "tls_domain", "token")
_QUERY = re.compile(rf"\?(?=(?:{'|'.join(_OPTIONS)})=)")
_UNSUPPORTED = {"iggy+http", "iggy+https", "iggy+quic", "iggy+ws", "iggy+wss", "http", "https"}


def _hidden(secret: str | None) -> str:
    return "None" if secret is None else "***"


@attrs.frozen(kw_only=True, slots=True)
class IggyAddress:
    """A server and its credentials. Its repr and `str` contain no secret.

    Attributes:
        host: name or IP address, IPv6 without brackets; empty for `embedded:`.
        port: TCP port.
        user: the user; empty with a token.
        password: password of that user.
        token: a personal access token, instead of user and password.
        tls: whether the connection is encrypted.
        tls_ca_file: trusted certificates. None: the public authorities that the client was built with
            (Mozilla's list); the system's authorities and `SSL_CERT_FILE` are ignored.
        tls_domain: name in the server's certificate; None means the host.
        embedded_path: data folder of the embedded server; None for a real server.
    """

    host: str = ""
    port: int = DEFAULT_PORT
    user: str = ""
    password: str | None = attrs.field(default=None, repr=_hidden)
    token: str | None = attrs.field(default=None, repr=_hidden)
    tls: bool = False
    tls_ca_file: str | None = None
    tls_domain: str | None = None
    embedded_path: str | None = None

    @classmethod
    def parse(cls, url: str) -> IggyAddress:
        """Parse `url`.

        Raises:
            ConfigError: all mistakes of the address at once, without its password or token.
        """
        return _parse_address(url, with_login=False)

    @property
    def server(self) -> str:
        """`host:port`, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def in_the_clear(self) -> bool:
        """Whether password and records leave this machine unencrypted."""
        if self.tls or self.embedded_path is not None or self.host == "localhost":
            return False
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return True  # a name

    @property
    def login(self) -> str:
        """The user, for messages: `user "iggy"` or `the access token`."""
        return f'user "{self.user}"' if self.token is None else "the access token"

    @override
    def __str__(self) -> str:
        if self.embedded_path is not None:
            return f"embedded:{self.embedded_path}"
        who = "***@" if self.token is not None else f"{self.user}:***@"
        return f"{'iggy+tls' if self.tls else 'iggy'}://{who}{self.server}"


def _parse_address(url: str, *, with_login: bool) -> IggyAddress:
    """Return the parsed address. `with_login`: the login may be beside it."""
    scheme, colon, rest = url.strip().partition(":")
    scheme = scheme.lower()
    if scheme == "embedded" and colon:
        if not rest:
            raise ConfigError("embedded: needs the path of a data folder, as in embedded:./iggy-data")
        return IggyAddress(embedded_path=rest)
    if scheme in _UNSUPPORTED:
        raise ConfigError(f"{scheme}:// is not supported for now: only TCP (iggy://) and TLS (iggy+tls://) are")
    if scheme not in {"iggy", "iggy+tcp", "iggy+tls"} or not rest.startswith("//"):
        raise ConfigError("an Iggy address looks like iggy://user:password@host:8090 or embedded:PATH")
    return _parse_server(rest[2:], tls=scheme == "iggy+tls", with_login=with_login)


@attrs.frozen(kw_only=True)
class Login:
    """The options beside an address that say who logs in, each taken literally."""

    username: str | None = None
    password: str | None = attrs.field(default=None, repr=_hidden)
    token: str | None = attrs.field(default=None, repr=_hidden)

    @property
    def names(self) -> list[str]:
        """The options that are given."""
        return [name for name, value in attrs.asdict(self).items() if value is not None]


@attrs.frozen(kw_only=True)
class Tls:
    """The options of `[iggy.tls]`."""

    enabled: bool | None = None
    ca_file: str | None = None
    domain: str | None = None

    @property
    def names(self) -> list[str]:
        """The options that are given."""
        return [f"tls.{name}" for name, value in attrs.asdict(self).items() if value is not None]


def iggy_address(*, url: str | None, address: str | None, login: Login, tls: Tls) -> IggyAddress:
    """Return the address that `url`, or `address`, and the options beside it describe.

    Raises:
        ConfigError: all mistakes and contradictions, each with the options that it is about; never a secret.
    """
    if url is not None and address is not None:
        raise ConfigError("url, address: both name the server; leave one of the two out")
    mistakes = [*_login_errors(login)]
    if url is not None and url.strip().lower().startswith("embedded:"):
        beside = [*login.names, *tls.names]
        if beside:
            mistakes.append(f"url, {', '.join(beside)}: embedded: takes no login and no TLS; leave them out")
        parsed = _parsed("url", mistakes, lambda: IggyAddress.parse(url))
        return _unless(mistakes, parsed)
    if url is None and address is None:
        raise ConfigError(
            [*mistakes, "url: missing; give url, or address with username and password, or address with token"]
        )
    place, text = ("address", _url_of(address, mistakes)) if address is not None else ("url", url or "")
    parsed = _parsed(place, mistakes, lambda: _parse_address(text, with_login=bool(login.names) or address is not None))
    if address is not None and not login.names:
        mistakes.append("address: who logs in is missing; add username and password, or token")
    if parsed is not None:
        parsed = _with_login(parsed, login, mistakes)
        parsed = _with_tls(parsed, place, tls, mistakes)
    return _unless(mistakes, parsed)


def _login_errors(login: Login) -> Iterator[str]:
    if login.token is not None and (login.username is not None or login.password is not None):
        yield f"{', '.join(login.names)}: give either user and password or an access token, not both"
    elif (login.username is None) != (login.password is None):
        missing = "password" if login.password is None else "username"
        yield f"{missing}: missing; username and password belong together"


def _url_of(address: str, mistakes: list[str]) -> str:
    """Return the address as a URL without a login."""
    if "://" in address or address.startswith("embedded:"):
        mistakes.append("address: must be host:port; an address with a scheme belongs into url")
    elif "@" in address or "?" in address:
        # not the value itself: it may hold a password
        mistakes.append("address: must be host:port; the login belongs into username and password, or token")
    else:
        return f"iggy://{address}"
    return "iggy://unused"


def _parsed(place: str, mistakes: list[str], parse: Callable[[], IggyAddress]) -> IggyAddress | None:
    try:
        return parse()
    except ConfigError as exc:
        mistakes.extend(f"{place}: {mistake}" for mistake in exc.mistakes)
        return None


def _with_login(parsed: IggyAddress, login: Login, mistakes: list[str]) -> IggyAddress:
    if not login.names:
        return parsed
    if parsed.user or parsed.token is not None:
        mistakes.append(f"url, {', '.join(login.names)}: both say who logs in; leave one of the two out")
    return attrs.evolve(parsed, user=login.username or "", password=login.password, token=login.token)


def _with_tls(parsed: IggyAddress, place: str, tls: Tls, mistakes: list[str]) -> IggyAddress:
    if place == "url" and tls.enabled is not None and tls.enabled != parsed.tls:
        scheme = "iggy+tls" if parsed.tls else "iggy"
        mistakes.append(f"url, tls.enabled: url begins with {scheme}://, which contradicts enabled; leave enabled out")
        return parsed
    enabled = parsed.tls if tls.enabled is None else tls.enabled
    if not enabled:
        useless = [name for name in tls.names if name != "tls.enabled"]
        if useless:
            mistakes.append(f"{', '.join(useless)}: no effect without TLS; set enabled = true in [iggy.tls]")
        return parsed
    for name, in_url, beside in (
        ("ca_file", parsed.tls_ca_file, tls.ca_file),
        ("domain", parsed.tls_domain, tls.domain),
    ):
        if in_url is not None and beside is not None:
            mistakes.append(f"url, tls.{name}: url contains tls_{name} too; leave one of the two out")
    return attrs.evolve(
        parsed, tls=True, tls_ca_file=parsed.tls_ca_file or tls.ca_file, tls_domain=parsed.tls_domain or tls.domain
    )


def _unless(mistakes: list[str], parsed: IggyAddress | None) -> IggyAddress:
    if mistakes or parsed is None:
        raise ConfigError(mistakes)
    return parsed


def _parse_server(rest: str, *, tls: bool, with_login: bool) -> IggyAddress:
    mistakes: list[str] = []
    credentials, place, query = _split(rest)
    place, _, path = place.partition("/")
    if path:
        mistakes.append("an Iggy address has no path after the port; write / in a password as %2F")
    host, port = _parse_place(place, mistakes)
    options = _parse_options(query, tls=tls, mistakes=mistakes)
    user, colon, password = (unquote(part) for part in credentials.partition(":"))
    token = options.get("token")
    if user.startswith(_TOKEN_MARK) and not colon:
        if token is not None:
            mistakes.append("the access token stands twice: before the @ and as token=")
        token, user = user[len(_TOKEN_MARK) :], ""
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
        user=user,
        password=password if token is None and password else None,
        token=token,
        tls=tls,
        tls_ca_file=options.get("tls_ca_file"),
        tls_domain=options.get("tls_domain"),
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


def _parse_place(place: str, mistakes: list[str]) -> tuple[str, int]:
    if place.startswith("["):
        host, bracket, tail = place[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            mistakes.append("an IPv6 address stands in brackets: [::1]:8090")
            return "", DEFAULT_PORT
        text = tail[1:]
    else:
        if place.count(":") > 1:
            mistakes.append("an IPv6 address stands in brackets: [::1]:8090")
            return "", DEFAULT_PORT
        host, _, text = place.partition(":")
    if not host:
        mistakes.append("the host is missing")
    if not text:
        return host, DEFAULT_PORT
    # isascii: int() also takes digits of other scripts
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= _MAX_PORT):
        mistakes.append("the port is a number from 1 to 65535")
        return host, DEFAULT_PORT
    return host, int(text)


def _parse_options(query: str, *, tls: bool, mistakes: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    # A plus sign is a plus sign: tokens are base64.
    for name, value in parse_qsl(query.replace("+", "%2B"), keep_blank_values=True):
        if name not in _OPTIONS:
            near = difflib.get_close_matches(name, _OPTIONS, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(_OPTIONS)}"
            # not the name itself: it may be a piece of a password
            mistakes.append(f"unknown option in the address{hint}; a ? in a password may be written %3F")
        elif name in options:
            mistakes.append(f"{name} stands twice in the address")
        else:
            options[name] = value
    if not tls and (options.keys() & {"tls_ca_file", "tls_domain"}):
        mistakes.append("tls_ca_file and tls_domain need iggy+tls://")
    return options
