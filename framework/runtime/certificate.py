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


def check_tls(tls: HttpTlsSection) -> None:
    """Check that the files of a section that is enabled hold a certificate and its private key.

    Raises:
        ConfigError: they do not, or cannot be read.
    """
    if not tls.enabled or tls.cert_file is None or tls.key_file is None:
        return
    for name, path in (("cert_file", tls.cert_file), ("key_file", tls.key_file)):
        try:
            read_file(Path(path), _MAX_BYTES, may_wait=False)
        except OSError as exc:
            raise ConfigError(f"[http.tls] {name}: {path} cannot be read: {exc.strerror}") from exc

    def refuse() -> str:  # OpenSSL would ask for it on the terminal
        raise ConfigError(f"[http.tls] key_file: {tls.key_file} needs a pass phrase: name a key without one")

    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tls.cert_file, tls.key_file, password=refuse)
    except OSError as exc:  # ssl.SSLError is one
        reason = exc.strerror or str(exc)
        raise ConfigError(
            f"[http.tls] cert_file, key_file: must be a certificate and its private key, both PEM: {reason}"
        ) from exc


class RenewedCertificate:
    """Puts a certificate into the context of a server again once its files have changed.

    Args:
        context: of the server; connections that are open keep the certificate that they began with.
        tls: the section that names the files; it has been checked.
    """

    def __init__(self, context: ssl.SSLContext, tls: HttpTlsSection) -> None:
        self._context = context
        self._tls = tls
        self._files = str(tls.cert_file), str(tls.key_file)
        self._seen = self._state()

    def renew(self) -> None:
        """Look at the files, and take what is new. Until both of them fit, the former certificate stays."""
        before, self._seen = self._seen, self._state()
        if self._seen == before:
            return
        try:
            check_tls(self._tls)
            self._context.load_cert_chain(*self._files)
        except (ConfigError, OSError) as error:  # one is replaced after the other
            log.warning("the new certificate is not taken, the former one stays: %s", error)
        else:
            log.info("a new certificate was taken from %s", self._files[0])

    def _state(self) -> list[tuple[int, int]]:
        """Return what every change of a file changes, also one of its permissions; nothing while one is missing."""
        try:
            found = [Path(file).stat() for file in self._files]
        except OSError:
            return []
        return [(file.st_ino, file.st_ctime_ns) for file in found]
