# ruff: noqa: FBT003  option() is an attrs field: it is called once a class, and its default stands first
"""The section of a configuration about Iggy: the server, who logs in, and how records are sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import attrs

from framework.config.iggy_address import QUIC_AUTHORITIES, TRANSPORTS, IggyAddress, parse_address
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
    """A file must contain one of these options."""

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
        mistakes: list[str] = []
        address = _address_of(self, mistakes)
        if mistakes or address is None:
            raise ConfigError(mistakes)
        return address

    @property
    def login_names(self) -> list[str]:
        """The options beside the address that say who logs in."""
        return [name for name in ("username", "password", "token") if getattr(self, name) is not None]

    def validate_options(self) -> Iterator[str]:
        """Yield errors for an invalid address, and for names that Iggy rejects; never the password."""
        for option_name, name in (("stream", self.stream), ("topic", self.topic)):
            mistake = topic_name_error(name) if name is not None else None
            if mistake is not None:
                yield f'{option_name} = "{name}": {mistake}'
        try:
            self.server()
        except ConfigError as exc:
            yield from exc.mistakes


def _address_of(section: IggySection, mistakes: list[str]) -> IggyAddress | None:
    """Return the address that `url`, or `address`, and the options beside it describe; None with a mistake in it.

    Args:
        section: the options.
        mistakes: receives each mistake, beginning with the options that it is about.
    """
    url, address, transport, login = section.url, section.address, section.transport, section.login_names
    if url is not None and address is not None:
        mistakes.append("url, address: both name the server; leave one of the two out")
        return None
    mistakes.extend(_login_errors(section))
    if address is not None:
        place, text = "address", _url_of(address, transport, mistakes)
    elif url is not None:
        place, text = "url", url
    else:
        mistakes.append("url: missing; give url, or address with username and password, or address with token")
        return None
    embedded = place == "url" and text.strip().lower().startswith("embedded:")
    beside = [*login, *(["transport"] if transport is not None else []), *section.tls.names]
    if embedded and beside:
        mistakes.append(f"url, {', '.join(beside)}: embedded: takes no login, no transport and no TLS; leave them out")
    parsed = None
    try:
        parsed = parse_address(text, with_login=not embedded and (bool(login) or address is not None))
    except ConfigError as exc:
        mistakes.extend(f"{place}: {mistake}" for mistake in exc.mistakes)
    if address is not None and not login:
        mistakes.append("address: who logs in is missing; add username and password, or token")
    if parsed is None or embedded:
        return parsed
    if transport not in {None, parsed.transport}:
        mistakes.append(
            f"url, transport: url begins with {parsed.scheme}://, which contradicts transport; leave it out"
        )
    return _with_tls(_with_login(parsed, section, mistakes), place, section.tls, mistakes)


def _login_errors(section: IggySection) -> Iterator[str]:
    if section.token is not None and (section.username is not None or section.password is not None):
        yield f"{', '.join(section.login_names)}: give either user and password or an access token, not both"
    elif (section.username is None) != (section.password is None):
        missing = "password" if section.password is None else "username"
        yield f"{missing}: missing; username and password belong together"


def _url_of(address: str, transport: str | None, mistakes: list[str]) -> str:
    """Return the address as a URL without a login."""
    if "://" in address or address.startswith("embedded:"):
        mistakes.append("address: must be host:port; an address with a scheme belongs into url")
    elif "@" in address or "?" in address:
        # not the value itself: it may hold a password
        mistakes.append("address: must be host:port; the login belongs into username and password, or token")
    else:
        schemes = {"quic": "iggy+quic", "websocket": "iggy+ws"}
        return f"{schemes.get(transport or '', 'iggy')}://{address}"
    return "iggy://unused"


def _with_login(parsed: IggyAddress, section: IggySection, mistakes: list[str]) -> IggyAddress:
    if not section.login_names:
        return parsed
    if parsed.user or parsed.token is not None:
        mistakes.append(f"url, {', '.join(section.login_names)}: both say who logs in; leave one of the two out")
    return attrs.evolve(parsed, user=section.username or "", password=section.password, token=section.token)


def _with_tls(parsed: IggyAddress, place: str, tls: IggyTlsSection, mistakes: list[str]) -> IggyAddress:
    mistakes.extend(_tls_errors(parsed, place, tls))
    if not (parsed.tls or tls.enabled):
        return parsed
    return attrs.evolve(
        parsed,
        tls=True,
        tls_ca_file=parsed.tls_ca_file or tls.ca_file,
        tls_domain=parsed.tls_domain or tls.domain,
        tls_validate_certificate=parsed.tls_validate_certificate and tls.validate_certificate is not False,
    )


def _tls_errors(parsed: IggyAddress, place: str, tls: IggyTlsSection) -> Iterator[str]:
    is_quic = parsed.transport == "quic"
    if is_quic and tls.enabled is False:
        yield f"{'url' if place == 'url' else 'transport'}, tls.enabled: QUIC is always encrypted; leave enabled out"
        return
    if place == "url" and tls.enabled not in {None, parsed.tls}:
        yield f"url, tls.enabled: url begins with {parsed.scheme}://, which contradicts enabled; leave enabled out"
        return
    useless = [name for name in tls.names if name != "tls.enabled"]
    if tls.validate_certificate:  # as without the option
        useless.remove("tls.validate_certificate")
    if useless and not (parsed.tls or tls.enabled):
        yield f"{', '.join(useless)}: no effect without TLS; set enabled = true in [iggy.tls], or leave this out"
        return
    if is_quic and tls.ca_file is not None:
        yield f"tls.ca_file: {QUIC_AUTHORITIES}"
    twice = {
        "ca_file": parsed.tls_ca_file is not None and tls.ca_file is not None,
        "domain": parsed.tls_domain is not None and tls.domain is not None,
        "validate_certificate": not parsed.tls_validate_certificate and tls.validate_certificate is not None,
    }
    for name in (name for name, is_twice in twice.items() if is_twice):
        yield f"url, tls.{name}: url contains tls_{name} too; leave one of the two out"
    if tls.validate_certificate is False and (parsed.tls_ca_file or tls.ca_file):
        yield "tls.ca_file, tls.validate_certificate: a certificate that is not checked needs no ca_file"
