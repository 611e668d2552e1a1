"""The configured Iggy server, and connections to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import Self

from framework.config.iggy_address import IggyAddress
from framework.errors import EXIT_PERSON, ConfigError, FatalError, IggyUnavailableError
from framework.iggy.connection import IggyConnection

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig
    from framework.iggy.embedded.launcher import EmbeddedServer


class IggyTarget:
    """The configured server: its address and, with `embedded:`, the server itself."""

    def __init__(self, config: SourceCommonConfig) -> None:
        self._config = config
        try:
            self._address = config.iggy.server()
        except ConfigError as exc:
            raise ConfigError([f"[iggy] {mistake}" for mistake in exc.mistakes]) from exc
        self._server: EmbeddedServer | None = None
        self._connecting: IggyConnection | None = None
        self._stopped = False

    @property
    def startup_seconds(self) -> float:
        """How long to wait for its first answer: an embedded server that cannot start now cannot start a second later."""
        return 0.0 if self._address.embedded_path is not None else self._config.iggy.startup_timeout

    def network_warnings(self) -> Iterator[str]:
        """Yield what others on the network could read."""
        if self._address.in_the_clear:
            yield f"password and records go to {self._address.server} in the clear; turn TLS on where others can listen"
        if self._address.unchecked:
            yield (
                f"the certificate of {self._address.server} is not checked, so whoever stands between can read password "
                "and records"
            )

    @property
    def missing_folder(self) -> Path | None:
        """The folder that an embedded server would create; None when it exists, or the server is a real one.

        Raises:
            FatalError: this user may not look.
        """
        path = self._address.embedded_path
        try:
            return Path(path) if path is not None and not Path(path).exists() else None
        except OSError as exc:
            raise FatalError(f"[iggy] url: the folder {path} cannot be read: {exc.strerror}") from exc

    def connect(self) -> IggyConnection:
        """Open a new connection; starts or joins the embedded server first if configured.

        Raises:
            IggyUnavailableError, IggyAuthError, IggyProtocolError: the connection failed.
            TaskClosedError: `stop` was called.
        """
        self._connecting = connection = _new_connection(self.address(), self._config)
        try:
            if self._stopped:
                connection.close()
            return connection.connect()
        finally:
            self._connecting = None

    def stop(self) -> None:
        """End a `connect` that waits for an answer, and every later one. Callable from any thread."""
        self._stopped = True
        connecting = self._connecting
        if connecting is not None:
            connecting.close()

    def address(self) -> IggyAddress:
        """Return the current address of the real or embedded server."""
        if self._address.embedded_path is None:
            return self._address
        from framework.iggy.embedded.launcher import EmbeddedServer, EmbeddedServerError  # noqa: PLC0415 - often unused

        try:
            server = EmbeddedServer.start(self._address.embedded_path, stopped=lambda: self._stopped)
        except EmbeddedServerError as exc:
            error = IggyUnavailableError(f"{exc}. [iggy] url needs a folder that can be made and written")
            error.exit_code = EXIT_PERSON  # a folder does not become writable by itself
            raise error from exc
        if self._server is not None:
            self._server.stop()
        self._server = server
        return IggyAddress.parse(server.url)

    def close(self) -> None:
        """Stop the embedded server, if this process started it. Idempotent."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_connection(address: IggyAddress, config: SourceCommonConfig) -> IggyConnection:
    """Open a connection with the configured timeouts."""
    return _new_connection(address, config).connect()


def _new_connection(address: IggyAddress, config: SourceCommonConfig) -> IggyConnection:
    return IggyConnection(
        address,
        connect_timeout_seconds=config.iggy.connect_timeout,
        call_timeout_seconds=config.iggy.request_timeout,
    )
