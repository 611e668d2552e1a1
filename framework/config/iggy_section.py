# ruff: noqa: FBT003  option() is an attrs field: it is called once a class, and its default stands first
"""The section of a configuration about Iggy: the server, who logs in, and how records are sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import attrs

from framework.config.iggy_address import QUIC_AUTHORITIES, TRANSPORTS, IggyAddress
from framework.config.key_template import MAX_TOPIC_BYTES, topic_name_error
from framework.config.option import Bytes, Seconds, option
from framework.errors import ConfigError

_MIB = 1024 * 1024


@attrs.frozen(kw_only=True)
class IggyTlsSection:
    """Encryption of the connection to Iggy, beside `[iggy] address` or `url`."""

    enabled: bool | None = option(
        None, doc="Encrypt the connection. Absent: as `url` says; with `address`, no encryption."
    )
    ca_file: str | None = option(
        None,
        doc="Path of a PEM file with the certificate authorities to trust. Absent: the public ones. The same as "
        "`tls_ca_file` in `url`.",
        minimum=1,
    )
    domain: str | None = option(
        None, doc="Name in the server's certificate. Absent: the host. The same as `tls_domain` in `url`.", minimum=1
    )
    validate_certificate: bool | None = option(
        None,
        doc="Check the server's certificate. Absent: `true`. **With `false`, whoever stands between can read the password "
        "and all records.** QUIC needs it for a certificate of your own. The same as `tls_validate_certificate` in `url`.",
    )

    @property
    def names(self) -> list[str]:
        """The options that are given."""
        return [f"tls.{field.name}" for field in attrs.fields(type(self)) if getattr(self, field.name) is not None]


@attrs.frozen(kw_only=True)
class IggySection:
    """Destination of the records. The server is `url`, or `address` with `username` and `password` or `token`."""

    one_of: ClassVar[tuple[str, ...]] = ("url", "address")
    """A file must contain one of these options: what the schema says of it, and a new file has."""

    url: str | None = option(
        None,
        secret=True,
        doc="`iggy://user:password@host:8090`, `iggy+tls://...` for TLS, `iggy+quic://...` for QUIC, `iggy+ws://...` and "
        "`iggy+wss://...` for WebSocket, `iggy://host:8090?token=TOKEN` for an access token; or "
        "`embedded:PATH`: a small server for development that keeps its data in a folder. A `%` in a password is "
        "written `%25`; `@`, `:`, `/`, `?` and `#` may be written `%40`, `%3A`, `%2F`, `%3F` and `%23`.",
        minimum=1,
    )
    address: str | None = option(
        None,
        doc="`host:port` of the server, in place of `url`; without a port that of the transport. An IPv6 address is in brackets.",
        example="localhost:8090",
        minimum=1,
    )
    transport: str | None = option(
        None,
        choices=TRANSPORTS,
        doc='How to reach `address`. Absent: as `url` says; `"tcp"` with `address`. The ports are 8090 (TCP), 8080 (QUIC) and '
        "8092 (WebSocket), unless another is given. Iggy's HTTP interface cannot be used.",
    )
    username: str | None = option(
        None,
        doc="User to log in when `url` contains none: `iggy://host:8090`. Used literally; nothing in it is decoded.",
        example="iggy",
        minimum=1,
    )
    password: str | None = option(
        None,
        secret=True,
        doc="Password of `username`, literally: `${env:IGGY_PASSWORD}` or `${file:PATH}`.",
        example="${env:IGGY_PASSWORD}",
        minimum=1,
    )
    token: str | None = option(
        None,
        secret=True,
        doc="A personal access token, in place of `username` and `password`. Literally, as the server gave it.",
        minimum=1,
    )
    tls: IggyTlsSection = attrs.field(factory=IggyTlsSection)
    stream: str = option(doc="The stream that holds the topics.", example="lake", minimum=1, maximum=MAX_TOPIC_BYTES)
    topic: str | None = option(
        None,
        doc="The topic that receives the records. May contain `{{topic}}` from the name template; without it,"
        " this option overrides the template's topic. Absent: the template's topic.",
        example="orders",
        minimum=1,
        maximum=MAX_TOPIC_BYTES,
    )
    partitions: int = option(
        4,
        minimum=1,
        maximum=1000,
        unit="partitions",
        doc="Number of partitions of a data topic; an existing topic must have this number. A partition is "
        "the unit of order and of parallelism: one task at a time writes to it.",
    )
    create_topics: bool = option(True, doc="Create a missing stream or topic. Otherwise a missing one is an error.")
    batch_length: int = option(
        10_000, minimum=1, maximum=100_000, unit="records", doc="Maximum number of records in one request to Iggy."
    )
    batch_bytes: Bytes = option(
        2 * _MIB,
        minimum=1024,
        maximum=60_000_000,
        doc="Maximum number of bytes in one request to Iggy (or one longer record).",
    )
    linger_time: Seconds = option(0.005, maximum=5, doc="How long an incomplete request waits for more records.")
    headers: str = option(
        "provenance",
        choices=("provenance", "none"),
        doc='`"provenance"`: every message carries bucket, key and version of its object. `"none"`: smaller messages.',
    )
    connect_timeout: Seconds = option(5.0, minimum=0.1, maximum=300, doc="Limit for connecting and logging in.")
    request_timeout: Seconds = option(
        15.0,
        minimum=0.1,
        maximum=300,
        doc="How long Iggy may take to answer. Afterwards the outcome is unknown, and the source recovers.",
    )
    startup_timeout: Seconds = option(
        3.0,
        maximum=3600,
        doc="How long a start waits for Iggy's first answer before it ends with exit code 1. Increase it "
        "where Iggy and the source start together. Later outages are tolerated for five minutes.",
    )

    def server(self) -> IggyAddress:
        """Return the server's address, with the login.

        Raises:
            ConfigError: the options contradict each other, or the address is invalid; the loader finds it earlier.
        """
        if mistakes := [*self._server_errors()]:
            raise ConfigError(mistakes)
        return _completed(self._parsed(), self)

    def _parsed(self) -> IggyAddress:
        with_login = bool(self.login_names) or self.url is None
        return IggyAddress.parse(self.url or _url_of(f"{self.address}", self.transport), with_login=with_login)

    def _server_errors(self) -> Iterator[str]:
        """Yield errors for an invalid address and contradictions; last those of `tls`, which may be a mistake of its own."""
        yield from _login_errors(self)
        if self.url is None and self.address is None:
            yield "url: missing; give url, or address with username and password, or address with token"
        elif self.url is not None and self.address is not None:
            yield "url, address: both name the server; leave one of the two out"
        else:
            place = "address" if self.url is None else "url"
            try:
                parsed = self._parsed()
            except ConfigError as exc:
                yield from (f"{place}: {mistake}" for mistake in exc.mistakes)
            else:
                yield from _contradictions(self, parsed, place)

    @property
    def login_names(self) -> list[str]:
        """The options beside the address that say who logs in."""
        return [name for name in ("username", "password", "token") if getattr(self, name) is not None]

    def validate_options(self) -> Iterator[str]:
        """Yield errors for an invalid address, and for names that Iggy rejects; never the password."""
        for option_name, name in (("stream", self.stream), ("topic", self.topic)):
            # a name that is no text is absent, or a mistake of its own
            mistake = topic_name_error(name) if isinstance(name, str) else None
            if mistake is not None:
                yield f'{option_name} = "{name}": {mistake}'
        yield from self._server_errors()


def _login_errors(section: IggySection) -> Iterator[str]:
    if section.token is not None and (section.username is not None or section.password is not None):
        yield f"{', '.join(section.login_names)}: give either user and password or an access token, not both"
    elif (section.username is None) != (section.password is None):
        missing = "password" if section.password is None else "username"
        yield f"{missing}: missing; username and password belong together"
    elif section.url is None and section.address is not None and not section.login_names:
        yield "address: who logs in is missing; add username and password, or token"


def _url_of(address: str, transport: str | None) -> str:
    """Return the address as a URL without a login."""
    if "://" in address or address.startswith("embedded:"):
        raise ConfigError("must be host:port; an address with a scheme belongs into url")
    if "@" in address or "?" in address:
        # not the value itself: it may hold a password
        raise ConfigError("must be host:port; the login belongs into username and password, or token")
    schemes = {"quic": "iggy+quic", "websocket": "iggy+ws"}
    return f"{schemes.get(transport or '', 'iggy')}://{address}"


def _contradictions(section: IggySection, parsed: IggyAddress, place: str) -> Iterator[str]:
    """Yield errors of options that do not fit the address, or each other; `place`: the option that gave the address."""
    login, transport = section.login_names, section.transport
    if parsed.embedded_path is not None:
        beside = [*login, *(["transport"] if transport is not None else []), *section.tls.names]
        if beside:
            yield f"url, {', '.join(beside)}: embedded: takes no login, no transport and no TLS; leave them out"
        return
    if transport not in {None, parsed.transport}:
        yield f"url, transport: url begins with {parsed.scheme}://, which contradicts transport; leave it out"
    if login and (parsed.user or parsed.token is not None):
        yield f"url, {', '.join(login)}: both say who logs in; leave one of the two out"
    yield from _tls_contradictions(section.tls, parsed, place)


def _tls_contradictions(tls: IggyTlsSection, parsed: IggyAddress, place: str) -> Iterator[str]:
    is_quic = parsed.transport == "quic"
    useless = [name for name in tls.names if name != "tls.enabled"]
    if tls.validate_certificate:  # as without the option
        useless.remove("tls.validate_certificate")
    if is_quic and tls.enabled is False:
        yield f"{'url' if place == 'url' else 'transport'}, tls.enabled: QUIC is always encrypted; leave enabled out"
    elif place == "url" and tls.enabled not in {None, parsed.tls}:
        yield f"url, tls.enabled: url begins with {parsed.scheme}://, which contradicts enabled; leave enabled out"
    elif useless and not (parsed.tls or tls.enabled):
        yield f"{', '.join(useless)}: no effect without TLS; set enabled = true in [iggy.tls], or leave this out"
    elif is_quic and tls.ca_file is not None:
        yield f"tls.ca_file: {QUIC_AUTHORITIES}"
    elif tls.validate_certificate is False and (parsed.tls_ca_file or tls.ca_file):
        yield "tls.ca_file, tls.validate_certificate: a certificate that is not checked needs no ca_file"
    for name in ("ca_file", "domain", "validate_certificate"):
        in_url = getattr(parsed, f"tls_{name}") != getattr(IggyAddress(), f"tls_{name}")
        if in_url and getattr(tls, name) is not None:
            yield f"url, tls.{name}: url contains tls_{name} too; leave one of the two out"


def _completed(parsed: IggyAddress, section: IggySection) -> IggyAddress:
    """Return the address with the login and the TLS options that are given beside it."""
    if section.login_names:
        parsed = attrs.evolve(parsed, user=section.username or "", password=section.password, token=section.token)
    tls = section.tls
    if not (parsed.tls or tls.enabled):
        return parsed
    return attrs.evolve(
        parsed,
        tls=True,
        tls_ca_file=parsed.tls_ca_file or tls.ca_file,
        tls_domain=parsed.tls_domain or tls.domain,
        tls_validate_certificate=parsed.tls_validate_certificate and tls.validate_certificate is not False,
    )
