"""The sections `[metrics]` and `[http]`: what answers over HTTP."""
# ruff: noqa: FBT003  option() is an attrs field: it is called once a class, and its default stands first

from __future__ import annotations

import re
from collections.abc import Iterator

import attrs

from framework.config.option import option
from framework.model.local_hosts import is_this_machine


@attrs.frozen(kw_only=True)
class MetricsSection:
    """Metrics for Prometheus."""

    address: str | None = option(
        None,
        doc="`host:port` to answer Prometheus at, for example `127.0.0.1:9464`: `/metrics`, and `/healthz` "
        "and `/readyz` for probes. Absent: off.",
        minimum=1,
    )

    def host_and_port(self) -> tuple[str, int] | None:
        """Return the address in two parts; None when metrics are off.

        Raises:
            ValueError: it is not `host:port`.
        """
        return None if self.address is None else _host_and_port(self.address)

    def validate_options(self) -> Iterator[str]:
        """Yield an error for an invalid address."""
        try:
            self.host_and_port()
        except ValueError:
            yield f'address = "{self.address}": must be host:port, for instance "127.0.0.1:9464"'


@attrs.frozen(kw_only=True)
class HttpTlsSection:
    """TLS of the HTTP API."""

    enabled: bool = option(False, doc="Answer over TLS only.")
    cert_file: str | None = option(None, minimum=1, doc="The certificate and its chain, a PEM file.")
    key_file: str | None = option(None, minimum=1, doc="Its private key, a PEM file.")

    def validate_options(self) -> Iterator[str]:
        """Yield an error for TLS without its files."""
        if self.enabled and (self.cert_file is None or self.key_file is None):
            yield "enabled: needs cert_file and key_file"


API_PATHS = frozenset({"connector-plugins", "connectors", "health", "openapi.json", "sinks", "sources", "stats"})
"""First parts of the HTTP API's own paths."""


@attrs.frozen(kw_only=True)
class HttpMetricsSection:
    """Metrics for Prometheus at the HTTP API, under the names of Iggy's connector runtime and our own."""

    enabled: bool = option(True, doc="Answer Prometheus at `endpoint`.")
    endpoint: str = option("/metrics", minimum=2, doc="Path of the metrics.")

    def validate_options(self) -> Iterator[str]:
        """Yield an error for a path that is none, or that the API has."""
        if not re.fullmatch(r"(/[A-Za-z0-9._-]+)+", self.endpoint):
            yield f'endpoint = "{self.endpoint}": must be a path such as "/metrics"'
        elif self.endpoint.split("/")[1] in API_PATHS:
            yield f'endpoint = "{self.endpoint}": is a path of the API; choose another, such as "/metrics"'


@attrs.frozen(kw_only=True)
class HttpSection:
    """HTTP API to watch, pause, restart and reconfigure the source.

    It has no effect in a worker's folder: the worker answers for all its sources.
    """

    enabled: bool = option(
        False,
        doc="Run the source in a process of its own, and answer the HTTP API beside it. Needs the extra `worker`.",
    )
    address: str = option(
        "127.0.0.1:8081",
        minimum=1,
        doc="`host:port` to listen on. Without `api_key` only an address that other machines cannot reach.",
    )
    api_key: str | None = option(
        None,
        secret=True,
        minimum=1,
        doc="Key that each request except `/` and `/health` must send in the header `api-key`. Who knows it can do what the "
        "source's user can do. Absent: only requests that read (`GET`) are answered.",
    )
    state_dir: str | None = option(
        None,
        minimum=1,
        doc="Folder for paused states and configuration versions; only the user of the source may read it. Absent: "
        "`.NAME.state` beside the configuration file `NAME.toml`; of a worker, `.state` in its folder.",
    )
    tls: HttpTlsSection = attrs.field(factory=HttpTlsSection)
    metrics: HttpMetricsSection = attrs.field(factory=HttpMetricsSection)

    def host_and_port(self) -> tuple[str, int]:
        """Return the address in two parts.

        Raises:
            ValueError: it is not `host:port`.
        """
        return _host_and_port(self.address)

    @property
    def only_local(self) -> bool:
        """Whether only this machine can reach the address."""
        return is_this_machine(self.host_and_port()[0])

    def validate_options(self) -> Iterator[str]:
        """Yield errors for an invalid address, and for one that everybody can use."""
        try:
            only_local = self.only_local
            if self.enabled and self.api_key is None and not only_local:
                yield f'address = "{self.address}": other machines can reach it; set api_key, or listen on 127.0.0.1'
        except ValueError:
            yield f'address = "{self.address}": must be host:port, for instance "127.0.0.1:8081"'
        if self.api_key is not None and (
            self.api_key.strip() != self.api_key or re.search(r"[\0-\x1f\x7f]", self.api_key)
        ):
            yield "api_key: has a space or a line break at an end, or a control character: no header can send it"


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    number = int(port) if re.fullmatch("[0-9]{1,99}", port) else -1
    if not host or not 0 <= number <= 65535:  # noqa: PLR2004
        raise ValueError(address)
    return host.removeprefix("[").removesuffix("]"), number
