"""Bucket options common to all stores: what to list, and how to retry.

A store's section adds its own options: the bucket's name, the identity.
"""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Iterator
from typing import ClassVar
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies

import attrs

from framework.config.option import Seconds, option
from framework.errors import ConfigError
from framework.storage.retry import RetryPolicy

_CUSTOMER_KEY_BYTES = 32


@attrs.frozen(kw_only=True)
class BucketConfig:
    """What to list in a bucket, and how often each call is retried."""

    scheme: ClassVar[str]
    """The store, as the scheme of an address."""

    prefix: str = option("", doc="Only keys that begin with it; compared as plain text, nothing is a folder.")
    prefixes: tuple[str, ...] = option((), doc="Several prefixes, in place of `prefix`. None may begin with another.")
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


def address_errors(**addresses: str) -> Iterator[str]:
    """Yield errors of HTTP addresses, given by option name. Only a proxy's address may contain a user."""
    for name, value in addresses.items():
        if not value:
            continue
        parts = _parts_of(value)
        # The value is not repeated: a proxy's address may hold a password.
        if parts is None or parts.scheme not in ("http", "https") or (name == "proxy" and _is_cut(parts)):
            encoded = _ENCODED if name == "proxy" and "@" in value else ""
            yield f"{name}: must be an address with its scheme, like http://host:port{encoded}"
        elif name != "proxy" and (parts.username or parts.password or parts.query or parts.fragment):
            yield f"{name}: must hold neither a user nor a query; keys go into their own options"


def check_proxy_variables() -> None:
    """Check the logins in proxies of the environment: of a broken one libraries repeat a part in their messages.

    Raises:
        ConfigError: one must be encoded; the message names its variable.
    """
    mistakes = []
    for scheme, value in getproxies().items():
        if scheme in ("http", "https", "all") and "@" in value:
            parts = _parts_of(value if "://" in value else f"http://{value}")
            if parts is None or _is_cut(parts):
                mistakes.append(f"the variable {scheme.upper()}_PROXY: must be an address{_ENCODED}")
    if mistakes:
        raise ConfigError(mistakes)


_ENCODED = "; its user and password percent-encoded, with %2F for / and %20 for a blank: http://user:password@host:port"


def _parts_of(address: str) -> SplitResult | None:
    """Return the parts of an address; None where it is none."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:  # a bracket without its end, a port that is none
        return None
    return parts if parts.hostname and port != 0 and not re.search(r"\s", address) else None


def _is_cut(parts: SplitResult) -> bool:
    """Return whether a login ends at a `/`, `?` or `#` within it: a part of it would be taken for the host."""
    return "@" in parts.path + parts.query + parts.fragment


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
