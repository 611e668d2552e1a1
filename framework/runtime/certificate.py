"""The certificate of the HTTP API, which is renewed every few weeks while the worker runs on."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from framework.config.files import read_file
from framework.errors import ConfigError

if TYPE_CHECKING:
    from framework.config.http_sections import HttpTlsSection

log = logging.getLogger(__name__)

_MAX_BYTES = 1 << 20


def check_certificate(cert_file: str, key_file: str) -> None:
    """Check that the files hold a certificate and its private key.

    Raises:
        ConfigError: they do not, or cannot be read.
    """
    for name, path in (("cert_file", cert_file), ("key_file", key_file)):
        try:
            read_file(Path(path), _MAX_BYTES, may_wait=False)
        except OSError as exc:
            raise ConfigError(f"[http.tls] {name}: {path} cannot be read: {exc.strerror}") from exc

    def refuse() -> str:  # OpenSSL would ask for it on the terminal
        raise ConfigError(f"[http.tls] key_file: {key_file} needs a pass phrase: name a key without one")

    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(cert_file, key_file, password=refuse)
    except OSError as exc:  # ssl.SSLError is one
        reason = exc.strerror or str(exc)
        raise ConfigError(
            f"[http.tls] cert_file, key_file: must be a certificate and its private key, both PEM: {reason}"
        ) from exc


def check_tls(tls: HttpTlsSection) -> None:
    """Check the certificate of a section that is enabled; see `check_certificate`."""
    if tls.enabled and tls.cert_file is not None and tls.key_file is not None:
        check_certificate(tls.cert_file, tls.key_file)


class RenewedCertificate:
    """Puts a certificate into the context of a server again once its files have changed.

    Args:
        context: of the server; connections that are open keep the certificate that they began with.
        cert_file: the certificate and its chain.
        key_file: its private key.
    """

    def __init__(self, context: ssl.SSLContext, cert_file: str, key_file: str) -> None:
        self._context = context
        self._files = cert_file, key_file
        self._taken = self._refused = self._state()

    def renew(self) -> None:
        """Look at the files, and take what is new. Until both of them fit, the former certificate stays."""
        now = self._state()
        if now in (self._taken, self._refused):
            return
        try:
            check_certificate(*self._files)
            self._context.load_cert_chain(*self._files)
        except (ConfigError, OSError) as error:  # one is replaced after the other
            log.warning("the new certificate is not taken, the former one stays: %s", error)
            self._refused = now
            return
        self._taken = now
        log.info("a new certificate was taken from %s", self._files[0])

    def _state(self) -> list[tuple[int, int] | None]:
        return [_state_of(Path(file)) for file in self._files]


def _state_of(file: Path) -> tuple[int, int] | None:
    """Return what every change of a file changes, also one of its permissions; None when there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns
