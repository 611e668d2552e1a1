"""Bucket options common to all stores: what to list, and how to retry.

A store's section adds its own options: the bucket's name, the identity.
"""

from __future__ import annotations

import base64
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

import attrs

from framework.config.option import Seconds, option
from framework.errors import ConfigError
from framework.storage.retry import RetryPolicy

if TYPE_CHECKING:
    from framework.storage.http.transfer import HttpOptions

_CUSTOMER_KEY_BYTES = 32


@attrs.frozen(kw_only=True)
class BucketConfig:
    """What to list in a bucket, and how often each call is retried."""

    scheme: ClassVar[str]
    """The store, as the scheme of an address."""

    prefix: str = option("", doc="Only keys that begin with it; compared as plain text, nothing is a folder.")
    prefixes: tuple[str, ...] = option(
        (),
        doc="Several prefixes, in place of `prefix`, listed one after the other. None may begin with another. Of more than "
        "1,000, those listed last keep the positions of all their objects, whatever `[discovery] allowed_lateness` is.",
    )
    page_size: int = option(1000, minimum=1, maximum=1000, doc="Keys in one page of a listing.")
    start_after: str = option(
        "",
        doc="The first listing starts after this key, which need not exist.",
        former_names={"native_start_key": ""},
    )
    ca_bundle: str = option(
        "", doc="Path of a PEM file with the certificate authorities to trust, instead of the default ones."
    )
    proxy: str = option(
        "",
        secret=True,
        doc="Address of an HTTP proxy, `http://host:port` or `http://user:password@host:port`, percent-encoded; empty = "
        "environment.",
    )
    connect_timeout: Seconds = option(
        5.0,
        minimum=0.1,
        maximum=300,
        doc="Limit of one connection attempt.",
        former_names={"connect_timeout_seconds": ""},
    )
    read_timeout: Seconds = option(
        30.0,
        minimum=0.1,
        maximum=3600,
        doc="Maximum wait for bytes. A body that brings fewer than 100 bytes a second, over twice this time, is requested again. "
        "So is a page of a listing that takes twice this time and a second per 50,000 bytes; a refusal then counts as whole.",
        former_names={"read_timeout_seconds": ""},
    )
    max_attempts: int = option(
        8, minimum=1, maximum=100, doc="Maximum number of attempts of a call, including the first."
    )
    retry_base: Seconds = option(
        0.2,
        minimum=0,
        maximum=60,
        doc="Wait after the first failed attempt; doubles each time.",
        former_names={"retry_base_seconds": ""},
    )
    retry_cap: Seconds = option(
        10.0,
        minimum=0,
        maximum=600,
        doc="Maximum wait between two attempts, whatever a store asks for.",
        former_names={"retry_cap_seconds": ""},
    )
    retry_budget: Seconds = option(
        60.0,
        minimum=0,
        maximum=86_400,
        doc="Total time of a call, attempts and waits; a read that makes progress starts again with a full budget.",
        former_names={"retry_budget_seconds": ""},
    )
    verify_checksums: bool = option(
        default=True,
        doc="Compare object contents with the whole-object checksum that the store keeps, where it keeps one.",
    )
    max_connections: int = option(128, minimum=1, maximum=4096, doc="Maximum number of open connections.")

    @property
    def all_prefixes(self) -> tuple[str, ...]:
        """The prefixes to list: at least one; the empty prefix means the whole bucket."""
        return self.prefixes or (self.prefix,)

    @property
    def retry_policy(self) -> RetryPolicy:
        """The retry policy of each call."""
        return RetryPolicy(
            attempts=self.max_attempts,
            base_seconds=self.retry_base,
            cap_seconds=self.retry_cap,
            budget_seconds=self.retry_budget,
        )

    def http_options(self, proxy: str, ca_file: str, named_by: str) -> HttpOptions:
        """Return how to connect to the store, with the proxy and the certificates that its libraries chose.

        Args:
            proxy: as it is written in the configuration or the environment; empty = none.
            ca_file: the certificates.
            named_by: the options and variables that may have named them.

        Raises:
            ConfigError: the certificates cannot be found, or the environment's proxy cannot be used.
        """
        from framework.storage.http.transfer import HttpOptions  # noqa: PLC0415 - loads libcurl

        if not self.proxy:
            check_environment_proxy(proxy, allows_brackets=True)
        if ca_file and not Path(ca_file).exists():
            raise ConfigError(f"{named_by}: {ca_file} does not exist")
        return HttpOptions(
            connect_seconds=self.connect_timeout,
            read_seconds=self.read_timeout,
            max_connections=self.max_connections,
            proxy=proxy if "://" in proxy or not proxy else f"http://{proxy}",
            ca_file=ca_file,
        )


def bucket_errors(config: BucketConfig, bucket: str) -> Iterator[str]:
    """Yield errors of the bucket's name, the prefixes and the retries. Each begins with the option's name."""
    if not bucket:
        yield "bucket: must not be empty"
    elif "://" in bucket:
        yield "bucket: give the bare name, not an address"  # which may hold a login
    if config.prefix and config.prefixes:
        yield "prefix, prefixes: give one of them"
    for prefix in (config.prefix, *config.prefixes):
        if prefix.startswith(f"{config.scheme}://{bucket}"):
            yield f"prefix: {prefix!r} is an address; give what follows the bucket's name"
    for first, second in itertools.pairwise(sorted(config.prefixes)):
        if second.startswith(first):
            yield f"prefixes: {second!r} lies within {first!r}; its objects would be read twice"
    if config.retry_base > config.retry_cap:
        yield "retry_base: must not be above retry_cap"


_ADDRESS = "must be an address with its scheme, like http://host:port, in ASCII and without blanks"


def address_errors(**addresses: str) -> Iterator[str]:
    """Yield errors of HTTP addresses, given by option name. Only a proxy's address may contain a user."""
    for name, value in addresses.items():
        scheme, login, place = _parts_of(value)
        if name != "proxy":
            login, place = "", value.partition("://")[2]
        # The value is not repeated: a proxy's address may hold a password.
        mistake = _mistake_of(login, place) if scheme in {"http", "https"} else _ADDRESS
        if not mistake and name != "proxy" and _holds_more(place):
            mistake = "must hold neither a user nor a query; keys go into their own options"
        if value and mistake:
            yield f"{name}: {mistake}"


def check_environment_proxy(proxy: str, *, allows_brackets: bool = False) -> None:
    """Check a proxy that was chosen from the environment: of a broken one libraries repeat a part in their messages.

    Args:
        proxy: as it is written there; empty = none.
        allows_brackets: whether its login may contain `[` and `]`: libcurl understands them, Python's libraries do not.

    Raises:
        ConfigError: it cannot be used; the message names its variable.
    """
    _, login, place = _parts_of(proxy)
    mistake = _mistake_of(re.sub(r"[\[\]]", "", login) if allows_brackets else login, place)
    if proxy and mistake:
        named = (name for name, value in os.environ.items() if name.lower().endswith("_proxy") and value == proxy)
        raise ConfigError([f"the variable {next(named, 'HTTPS_PROXY')}: {mistake}"])


def _parts_of(address: str) -> tuple[str, str, str]:
    """Return scheme, login, and what follows: a login may hold anything, so it ends at the last `@`."""
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", address)
    login, _, place = address[found.end() if found else 0 :].rpartition("@")
    return found[1].lower() if found else "", login, place


def _mistake_of(login: str, place: str) -> str:
    """Return what must be changed in an address, by its login and the host with port and path; empty if nothing must.

    Libraries would take a part of a login for the host; libcurl ends it at the first `@`, and pycurl takes ASCII alone.
    """
    if re.search(r"[^!-~]|[/?#\[\]@]", login):
        return (
            "its user and password must be percent-encoded where they contain / ? # [ ] @, a blank or what is not ASCII, "
            "with %2F for /: http://user:password@host:port"
        )
    try:
        parts = urlsplit(f"//{place}")
    except ValueError:  # a bracket without its end
        return _ADDRESS
    if not parts.hostname or re.search(r"[^!-~]", place):
        return _ADDRESS
    try:
        is_port = parts.port != 0
    except ValueError:
        is_port = False
    return "" if is_port else "its port must be a number from 1 to 65535"


def _holds_more(place: str) -> bool:
    parts = urlsplit(f"//{place}")
    return bool(parts.username or parts.password or parts.query or parts.fragment)


def customer_key_bytes(text: str, option: str) -> bytes:
    """Return the 32 bytes of a customer's own key; empty without one.

    Args:
        text: the key in base64.
        option: its option in messages, which never show the key.

    Raises:
        ValueError: it is not the base64 form of 32 bytes.
    """
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError:
        key = b"?"
    if text and len(key) != _CUSTOMER_KEY_BYTES:
        raise ValueError(f"{option}: must be the base64 form of exactly {_CUSTOMER_KEY_BYTES} bytes")
    return key


def customer_key_errors(**keys: str) -> Iterator[str]:
    """Yield errors of a customer's own keys, each given under its option's name."""
    for name, text in keys.items():
        try:
            customer_key_bytes(text, name)
        except ValueError as error:
            yield str(error)
